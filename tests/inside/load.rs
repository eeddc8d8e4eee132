//! Episodes as they are found on disk: recorded ones, awkward ones, and broken ones that fail alone.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use backsight::episode::{Arguments, Message};
use backsight::store::episodes::{BadFile, Loaded, Source, find, load, natural};
use backsight::wire::published::{MAX_TOOL_RESULT_CHARS, messages_by_line};
use backsight::wire::{episode_record, pi_session};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hcapo")
}

fn load_all(input: &Path) -> Vec<Result<Loaded, BadFile>> {
    load(find(input).unwrap()).collect()
}

#[test]
fn the_recorded_episodes() {
    let loaded: Vec<_> = load_all(&fixtures().join("episodes")).into_iter().map(Result::unwrap).collect();
    let shape: Vec<_> = loaded.iter().map(|it| (it.episode.id.as_str(), it.episode.steps().len())).collect();
    assert_eq!(shape, [("episode_001", 9), ("episode_002", 8), ("episode_003", 10)]);
    let first = &loaded[0].episode;
    assert_eq!((&loaded[0].file_id, first.started_at), (&json!(1), Some(1_777_111_200)));
    assert_eq!(first.outcome.as_ref().unwrap().reward, 0.5391);
    assert_eq!(first.progress.plan.as_ref().unwrap()[1].id, "S2");
    assert_eq!(first.messages[1].reasoning.as_deref(), Some("I should look at the code first."));
    let Arguments::Object(arguments) = &first.messages[1].tool_calls[0].arguments else { unreachable!() };
    assert_eq!(arguments["command"], "ls -la && cat src/main.zig");
    let one_task = loaded.iter().all(|it| it.episode.task.id == first.task.id);
    assert!(one_task, "equal prompts are one task");
}

#[test]
fn the_published_conversion_gives_the_recorded_messages() {
    let expected: Value =
        serde_json::from_str(&fs::read_to_string(fixtures().join("load_episode_expected.json")).unwrap())
            .unwrap();
    let expected = expected.as_array().unwrap();
    assert_eq!(expected.len(), 3);
    for (idx, expected) in expected.iter().enumerate() {
        let path = fixtures().join(format!("episodes/episode_{:03}/pi_session.jsonl", idx + 1));
        let found = messages_by_line(&fs::read_to_string(path).unwrap(), MAX_TOOL_RESULT_CHARS).unwrap();
        let found: Vec<_> = found.into_iter().map(|(_, message)| message).collect();
        // As text, so that the order of keys counts.
        assert_eq!(Value::Array(found).to_string(), expected["messages"].to_string(), "episode {}", idx + 1);
    }
}

/// Reads a session of these entries and shows its messages, compactions and what was left out.
fn check_session(entries: &[Value], expected: Expect) {
    let lines: Vec<_> = entries.iter().map(Value::to_string).collect();
    let shown = match pi_session::parse(&lines.join("\n")) {
        Err(fault) => format!("error: {fault}\n"),
        Ok(session) => {
            let messages = session.messages.iter().enumerate().map(|(idx, it)| {
                let failed = if session.failed_results.contains(&idx) { " failed" } else { "" };
                format!("{idx} {}{failed} {}\n", it.role.name(), shown(it))
            });
            let compactions = session.compactions.iter().map(|it| {
                format!("compaction at {} keeps from {}: {}\n", it.at, it.kept_from, shown(&it.summary))
            });
            let left_out = session.left_out.iter().map(|it| format!("left out: {it}\n"));
            messages.chain(compactions).chain(left_out).collect()
        }
    };
    expected.assert_eq(&shown);
}

fn shown(message: &Message) -> String {
    let content = message.content.as_ref().map(|it| format!("{:?}", it.text()));
    let thinking = message.reasoning.as_ref().map(|it| format!("thinking {it:?}"));
    let calls = message.tool_calls.iter().map(|it| format!("calls {}", it.name));
    content.into_iter().chain(thinking).chain(calls).collect::<Vec<_>>().join(" ")
}

fn header(version: Option<u64>) -> Value {
    let mut header = json!({"type": "session", "id": "s"});
    if let Some(version) = version {
        header["version"] = version.into();
    }
    header
}

fn entry(id: &str, parent: Option<&str>, message: Value) -> Value {
    json!({"type": "message", "id": id, "parentId": parent, "message": message})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": [{"type": "text", "text": text}]})
}

fn says(text: &str) -> Value {
    json!({"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"})
}

fn calls(id: &str, stop: &str) -> Value {
    let call = json!({"type": "toolCall", "id": id, "name": "bash", "arguments": {"command": "ls"}});
    json!({"role": "assistant", "content": [call], "stopReason": stop})
}

fn result(id: &str, text: &str) -> Value {
    json!({"role": "toolResult", "toolCallId": id, "toolName": "bash", "content": [{"type": "text", "text": text}]})
}

#[test]
fn an_abandoned_branch_is_not_part_of_the_conversation() {
    check_session(
        &[
            header(Some(3)),
            entry("a", None, user("hi")),
            entry("b", Some("a"), says("wrong way")),
            json!({"type": "branch_summary", "id": "s", "parentId": "a", "summary": "tried it"}),
            json!({"type": "label", "id": "l", "parentId": "s", "label": "x"}),
            entry("c", Some("l"), says("right way")),
        ],
        expect![[r#"
            0 user "hi"
            1 user "The following is a summary of a branch that this conversation came back from:\n\n<summary>\ntried it</summary>"
            2 assistant "right way"
        "#]],
    );
}

#[test]
fn an_entry_that_names_no_parent_continues_the_line_before() {
    let bare = |message: Value| json!({"type": "message", "message": message});
    check_session(
        &[
            header(Some(3)),
            json!({"type": "model_change", "id": "m", "modelId": "x"}),
            entry("a", Some("m"), user("hi")),
            entry("b", Some("a"), says("abandoned")),
            entry("c", Some("a"), says("one")),
            json!({"type": "message", "id": "d", "message": user("go on")}),
            bare(says("two")),
        ],
        expect![[r#"
            0 user "hi"
            1 assistant "one"
            2 user "go on"
            3 assistant "two"
        "#]],
    );
    check_session(
        &[header(Some(3)), entry("a", None, user("hi")), entry("b", None, says("another root"))],
        expect![[r#"
            0 assistant "another root"
        "#]],
    );
}

/// As the collector's session files have it: neither id nor parent.
#[test]
fn a_compaction_outside_of_the_tree_counts() {
    let compaction =
        json!({"type": "compaction", "summary": "so far", "firstKeptEntryId": "b", "tokensBefore": 118_000});
    let talk = [header(Some(3)), entry("a", None, user("hi")), entry("b", Some("a"), says("one"))];
    let at_the_end = [&talk[..], std::slice::from_ref(&compaction)].concat();
    check_session(
        &at_the_end,
        expect![[r#"
            0 user "hi"
            1 assistant "one"
            compaction at 2 keeps from 1: "The conversation history before this point was compacted into the following summary:\n\n<summary>\nso far\n</summary>"
        "#]],
    );
    let in_the_middle = [&talk[..], &[compaction, entry("c", Some("b"), says("two"))]].concat();
    check_session(
        &in_the_middle,
        expect![[r#"
            0 user "hi"
            1 assistant "one"
            2 assistant "two"
            compaction at 2 keeps from 1: "The conversation history before this point was compacted into the following summary:\n\n<summary>\nso far\n</summary>"
        "#]],
    );
}

#[test]
fn images_in_results_are_left_out() {
    let content =
        json!([{"type": "text", "text": "a"}, {"type": "image", "data": "…"}, {"type": "text", "text": "b"}]);
    let shown = json!({"role": "toolResult", "toolCallId": "1", "toolName": "read", "content": content});
    let only =
        json!({"role": "toolResult", "toolCallId": "2", "content": [{"type": "image"}, {"type": "image"}]});
    check_session(
        &[
            header(Some(3)),
            entry("a", None, user("hi")),
            entry("b", Some("a"), calls("1", "toolUse")),
            entry("c", Some("b"), shown),
            entry("d", Some("c"), calls("2", "toolUse")),
            entry("e", Some("d"), only),
        ],
        expect![[r#"
            0 user "hi"
            1 assistant calls bash
            2 tool "a\nb"
            3 assistant calls bash
            4 tool ""
            left out: line 4: an image in the result cannot be re-read by a text model
            left out: line 6: 2 images in the result cannot be re-read by a text model
        "#]],
    );
}

#[test]
fn a_mark_before_the_text_is_no_part_of_it() {
    let root = tempfile::tempdir().unwrap();
    for file in ["result.json", "pi_session.jsonl"] {
        let text = fs::read_to_string(fixtures().join("episodes/episode_001").join(file)).unwrap();
        fs::create_dir_all(root.path().join("episode_001")).unwrap();
        fs::write(root.path().join("episode_001").join(file), format!("\u{feff}{text}")).unwrap();
    }
    assert_eq!(load_all(root.path())[0].as_ref().unwrap().episode.steps().len(), 9);
    let lines = root.path().join("talks.jsonl");
    let talk = json!({"messages": [user_says("hi")], "reward": 1});
    fs::write(&lines, format!("\u{feff}{talk}\n{talk}\n")).unwrap();
    assert!(load_all(&lines).iter().all(Result::is_ok));
}

fn user_says(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn a_file_that_can_never_be_read_is_one_error() {
    // A directory is opened like a file, and fails at every read.
    let directory = tempfile::tempdir().unwrap();
    let found: Vec<_> = load(vec![Source::Lines(directory.path().to_owned())]).collect();
    assert!(matches!(&found[..], [Err(_)]), "{found:?}");
}

#[test]
fn a_file_of_many_without_any_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("empty.jsonl");
    for text in ["", "\n \n", "\u{feff}"] {
        fs::write(&path, text).unwrap();
        let why = format!("{}: there is no episode in the file", path.display());
        assert_eq!(find(&path).unwrap_err().to_string(), why, "{text:?}");
        // Found among others, it is their loss no more than any other bad file.
        let found = load_all(root.path()).into_iter().map(|it| it.unwrap_err().to_string());
        assert_eq!(found.collect::<Vec<_>>(), [why], "{text:?}");
    }
}

#[test]
fn version_one_is_a_list() {
    check_session(
        &[
            header(None),
            json!({"type": "message", "message": user("hi")}),
            json!({"type": "message", "message": says("one")}),
            json!({"type": "compaction", "summary": "so far", "firstKeptEntryIndex": 2}),
            json!({"type": "message", "message": says("two")}),
        ],
        expect![[r#"
            0 user "hi"
            1 assistant "one"
            2 assistant "two"
            compaction at 2 keeps from 1: "The conversation history before this point was compacted into the following summary:\n\n<summary>\nso far\n</summary>"
        "#]],
    );
}

#[test]
fn aborted_turns_and_lost_results_are_as_the_model_saw_them() {
    check_session(
        &[
            header(Some(2)),
            entry("a", None, user("hi")),
            entry("b", Some("a"), calls("1", "aborted")),
            entry("c", Some("b"), result("1", "Operation aborted")),
            entry("d", Some("c"), calls("2", "toolUse")),
            entry("e", Some("d"), user("go on")),
            entry("f", Some("e"), calls("3", "toolUse")),
            entry("g", Some("f"), result("3", "ok")),
            entry("h", Some("g"), json!({"role": "hookMessage", "content": "a hook"})),
            entry("i", Some("h"), json!({"role": "assistant", "content": [], "stopReason": "error"})),
            entry("j", Some("i"), calls("4", "length")),
        ],
        expect![[r#"
            0 user "hi"
            1 assistant calls bash
            2 tool failed "No result provided"
            3 user "go on"
            4 assistant calls bash
            5 tool "ok"
            6 user "a hook"
            7 assistant calls bash
            left out: line 3: the turn ended with `aborted` and was never shown to the model again
            left out: line 10: the turn ended with `error` and was never shown to the model again
        "#]],
    );
}

#[test]
fn thinking_is_read_under_both_keys_and_text_is_not_touched() {
    let blocks = json!([
        {"type": "thinking", "thinking": "one"}, {"type": "thinking", "text": "two"}, {"type": "thinking", "thinking": " "},
        {"type": "text", "text": " a\n"}, {"type": "text", "text": "b "},
    ]);
    check_session(
        &[
            header(Some(3)),
            entry("a", None, user(" hi ")),
            entry("b", Some("a"), json!({"role": "assistant", "content": blocks})),
        ],
        expect![[r#"
            0 user " hi "
            1 assistant " a\nb " thinking "one\ntwo"
        "#]],
    );
}

#[test]
fn commands_the_person_ran_are_shown_as_text() {
    let bash = |extra: Value| {
        let mut message = json!({"role": "bashExecution", "command": "ls", "output": "", "exitCode": 2});
        message.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        message
    };
    check_session(
        &[
            header(Some(3)),
            entry("a", None, bash(json!({}))),
            entry(
                "b",
                Some("a"),
                bash(json!({"output": "x", "exitCode": 0, "truncated": true, "fullOutputPath": "/tmp/o"})),
            ),
            entry("c", Some("b"), bash(json!({"excludeFromContext": true}))),
            entry("d", Some("c"), json!({"role": "elsewhere"})),
        ],
        expect![[r#"
            0 user "Ran `ls`\n(no output)\n\nCommand exited with code 2"
            1 user "Ran `ls`\n```\nx\n```\n\n[Output truncated. Full output: /tmp/o]"
            left out: line 5: a message with the role `elsewhere` is never shown to the model
        "#]],
    );
}

#[test]
fn sessions_that_cannot_be_read() {
    check_session(
        &[header(Some(4))],
        expect![[r#"
        error: line 1: session version 4 is not known; versions 1 to 3 are
    "#]],
    );
    check_session(
        &[header(Some(3)), entry("a", Some("gone"), user("hi"))],
        expect![[r#"
        error: line 2: its parent `gone` is not in the file
    "#]],
    );
    check_session(
        &[header(Some(3)), json!({"type": "message", "id": "a", "parentId": 7, "message": user("hi")})],
        expect![[r#"
        error: line 2: `parentId` must be a string or null, not a number
    "#]],
    );
    check_session(
        &[header(Some(3)), entry("a", Some("b"), user("hi")), entry("b", Some("a"), user("hi"))],
        expect![[r#"
        error: line 3: the entry is its own ancestor
    "#]],
    );
    check_session(
        &[header(Some(3)), entry("a", None, json!({"role": "user", "content": null}))],
        expect![[r#"
        error: line 2: `content` must be a string or a list of blocks, not null
    "#]],
    );
    let image = json!({"role": "user", "content": [{"type": "image", "data": "…"}]});
    check_session(
        &[header(Some(3)), entry("a", None, image)],
        expect![[r#"
        error: line 2: a block of image cannot be used, only text can
    "#]],
    );
    check_session(
        &[json!(3)],
        expect![[r#"
        error: line 1: must be an object, not a number
    "#]],
    );
}

/// Writes an episode directory.
fn episode_at(root: &Path, name: &str, result: &str, session: &[Value]) {
    let directory = root.join(name);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("result.json"), result).unwrap();
    let lines: Vec<_> = session.iter().map(Value::to_string).collect();
    fs::write(directory.join("pi_session.jsonl"), lines.join("\n")).unwrap();
}

fn outcomes(root: &Path) -> String {
    let show = |it: Result<Loaded, BadFile>| match it {
        Ok(loaded) => format!("{} {}\n", loaded.episode.id, loaded.episode.task.id),
        Err(error) => format!("error: {}\n", error.to_string().replace(&root.display().to_string(), "ROOT")),
    };
    load_all(root).into_iter().map(show).collect()
}

#[test]
fn one_bad_episode_fails_alone() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let talk = [header(Some(3)), entry("a", None, user("hi")), entry("b", Some("a"), says("yes"))];
    episode_at(root, "episode_10", r#"{"episode_reward": 1, "task": "t"}"#, &talk);
    episode_at(root, "episode_9", "{\"episode_reward\": 0.5,\n\"plan_score\": null}", &talk);
    episode_at(root, "episode_2", r#"{"episode_reward": 0.5}"#, &talk[..2]);
    episode_at(root, "episode_1", r#"{"error": "timeout", "turns": 0}"#, &talk);
    episode_at(root, "episode_3", r#"{"episode_reward": 0.5}"#, &talk);
    let session = root.join("episode_3/pi_session.jsonl");
    fs::write(&session, fs::read_to_string(&session).unwrap() + "\n{\"type\": \"mess").unwrap();
    episode_at(root, "episode_4", r#"{"episode_reward": 0.5}"#, &talk);
    fs::write(root.join("episode_4/pi_session.jsonl"), b"{}\n{\"a\": \"\xff\"}").unwrap();
    fs::create_dir(root.join("episode_5")).unwrap();
    fs::write(root.join("episode_6"), "no directory").unwrap();
    expect![[r#"
        error: ROOT/episode_1/result.json line 1: the collector gave up: timeout
        error: ROOT/episode_2/pi_session.jsonl: there are fewer than two messages
        error: ROOT/episode_3/pi_session.jsonl line 4: not JSON: EOF while parsing a string
        error: ROOT/episode_4/pi_session.jsonl line 2: not UTF-8
        error: ROOT/episode_5/result.json: the file is missing
        error: ROOT/episode_9/result.json line 2: `plan_score` must be a number, not null
        episode_10 t
    "#]]
    .assert_eq(&outcomes(root));
}

#[test]
fn lines_of_every_kind_are_read_one_by_one() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let talk = json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]);
    let openai = json!({"id": "o", "task": "t", "messages": talk, "reward": 0.5});
    let group =
        json!({"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": [1.0], "messages": [talk], "task": "g"});
    let line = serde_json::from_value(openai.clone()).unwrap();
    let episode = backsight::wire::openai_episodes::read(&line, "x").unwrap();
    let mut ours = episode_record::to_json(&episode).unwrap();
    ours["id"] = "r".into();
    let lines = [
        openai.to_string(),
        "{\"id\": ".into(),
        String::new(),
        group.to_string(),
        ours.to_string(),
        "{}".into(),
        openai.to_string(),
    ];
    fs::write(root.join("talks.jsonl"), lines.join("\n")).unwrap();
    expect![[r#"
        o t
        error: ROOT/talks.jsonl line 2: not JSON: EOF while parsing a value
        talks:4/0 g
        r t
        error: ROOT/talks.jsonl line 6: neither an episode (`messages`, `reward`) nor a group (`tokens`, `masks`, `scores`)
        error: ROOT/talks.jsonl line 7: the id `o` is already used by ROOT/talks.jsonl line 1
    "#]]
    .assert_eq(&outcomes(root));
    fs::create_dir(root.join("episodes")).unwrap();
    fs::write(root.join("episodes/r.json"), ours.to_string()).unwrap();
    assert_eq!(find(root).unwrap(), [Source::Record(root.join("episodes/r.json"))]);
    assert_eq!(outcomes(root), "r t\n");
    let empty = tempfile::tempdir().unwrap();
    assert!(find(empty.path()).unwrap_err().to_string().contains("no episodes here; help: "));
}

#[test]
fn names_are_in_natural_order() {
    let mut names = [
        "episode_101",
        "episode_1000",
        "episode_2",
        "episode_002",
        "b",
        "episode_",
        "episode_10a",
        "episode_10",
    ];
    names.sort_by(|a, b| natural(a, b));
    let expected = [
        "b",
        "episode_",
        "episode_002",
        "episode_2",
        "episode_10",
        "episode_10a",
        "episode_101",
        "episode_1000",
    ];
    assert_eq!(names, expected);
}

/// JSON that looks like sessions and results, with anything anywhere.
fn any_json() -> impl Strategy<Value = Value> {
    let words = [
        "message",
        "assistant",
        "user",
        "toolResult",
        "text",
        "thinking",
        "toolCall",
        "compaction",
        "a",
        "b",
        "",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop::sample::select(words.to_vec()).prop_map(Value::from),
    ];
    let keys = [
        "type",
        "id",
        "parentId",
        "message",
        "role",
        "content",
        "text",
        "version",
        "summary",
        "firstKeptEntryId",
        "stopReason",
        "messages",
        "reward",
        "tokens",
        "masks",
        "scores",
        "steps",
        "format",
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(keys.to_vec()), inner), 0..6)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_reader_panics(entries in prop::collection::vec(any_json(), 0..6), text in ".{0,40}") {
        let mut lines: Vec<_> = entries.iter().map(Value::to_string).collect();
        let session = lines.join("\n");
        if let Ok(found) = pi_session::parse(&session) {
            prop_assert!(found.compactions.iter().all(|it| it.kept_from <= it.at && it.at <= found.messages.len()));
        }
        let _ = messages_by_line(&session, 3);
        lines.push(text);
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("x.jsonl"), lines.join("\n")).unwrap();
        fs::write(root.path().join("x.json"), &lines[0]).unwrap();
        load_all(root.path()).into_iter().for_each(drop);
        let _ = backsight::wire::pi_result::parse(&session);
        let _ = backsight::wire::hindsight::HindsightScores::parse(&session);
    }
}
