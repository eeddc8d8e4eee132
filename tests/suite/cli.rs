//! The binary as a user runs it: what it prints where, and what bad input gets.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn run(arguments: &[&str], stdin: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Who refuses its arguments does not read on.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A model directory with our small tokenizer and the given template.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(template: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(tokenizer.join(file), place.path(file)).unwrap();
        }
        place.write("chat_template.jinja", template);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Runs `chat render` on messages in this directory, with further arguments.
    fn render(&self, messages: &Value, more: &[&str]) -> Ran {
        let file = self.write("messages.json", &messages.to_string());
        let dir = self.dir.path().to_str().unwrap();
        run(&[&["chat", "render", "--tokenizer", dir, "--messages", &file], more].concat(), "")
    }
}

fn talk() -> Value {
    json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "so?"}])
}

fn talk_with_call() -> Value {
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{\"path\": \".\"}"}});
    json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]},
           {"role": "tool", "content": "a b", "tool_call_id": "c1", "name": "ls"}])
}

#[test]
fn text_is_printed_byte_for_byte() {
    let ran = Place::new(CHATML).render(&talk(), &["--add-generation-prompt"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nso?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(ran.stdout, expected);
    assert!(ran.stderr.contains("ignores tool schemas, tool calls, reasoning"), "{}", ran.stderr);
}

#[test]
fn spans_say_where_each_message_and_action_is() {
    let place = Place::new(CHATML);
    let ran = place.render(&talk(), &["--format", "spans", "--add-generation-prompt"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let ids: Value =
        serde_json::from_str(&place.render(&talk(), &["--format", "ids", "--add-generation-prompt"]).stdout)
            .unwrap();
    assert_eq!(report["ids"], ids);
    assert_eq!(report["tokens"], "rendered");
    let tokenizer = backsight::chat::tokenizer::Tokenizer::open(place.dir.path()).unwrap();
    let text = |start: &Value, end: &Value| {
        let ids =
            ids.as_array().unwrap()[start.as_u64().unwrap() as usize..end.as_u64().unwrap() as usize].iter();
        tokenizer.decode(&ids.map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>()).unwrap()
    };
    let messages = report["messages"].as_array().unwrap();
    assert_eq!(text(&messages[0]["start"], &messages[0]["end"]), "<|im_start|>user\nhi<|im_end|>\n");
    assert_eq!(text(&messages[1]["action"][0], &messages[1]["action"][1]), "yes<|im_end|>");
    assert_eq!(messages[2].get("action"), None);
    let generation = &report["generation_prompt"];
    assert_eq!(text(&generation[0], &generation[1]), "<|im_start|>assistant\n");
}

#[test]
fn a_rewritten_turn_is_shown_as_the_student_saw_it() {
    let strips = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content if loop.last else message.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>x</think>yes"},
                          {"role": "user", "content": "so?"}, {"role": "assistant", "content": "<think>y</think>no"}]);
    let place = Place::new(strips);
    let ran = place.render(&messages, &["--format", "spans"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["messages"][1]["action"], Value::Null);
    let tokenizer = backsight::chat::tokenizer::Tokenizer::open(place.dir.path()).unwrap();
    let ids = |ids: &Value| {
        ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>()
    };
    let seen = &report["messages"][1]["as_seen"];
    let sequence = &report["sequences"][seen["sequence"].as_u64().unwrap() as usize];
    let mut whole = ids(&report["ids"])[..sequence["shared"].as_u64().unwrap() as usize].to_vec();
    whole.extend(ids(&sequence["ids"]));
    let place_of = |idx: usize| seen["action"][idx].as_u64().unwrap() as usize;
    let action = tokenizer.decode(&whole[place_of(0)..place_of(1)]).unwrap();
    assert_eq!(action, "<think>x</think>yes<|im_end|>");
    assert_eq!(
        tokenizer.decode(&whole).unwrap(),
        format!("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{action}")
    );
    assert!(report["messages"][3]["action"].is_array());
    // The border behind the turn that was rewritten is not known, those around it are.
    let borders =
        |idx: usize| (report["messages"][idx]["start"].as_u64(), report["messages"][idx]["end"].as_u64());
    let [first, second, third, last] = [0, 1, 2, 3].map(borders);
    assert_eq!((first.0, second, third.0), (Some(0), (first.1, None), None));
    assert_eq!((third.1, last.1), (last.0, report["n_tokens"].as_u64()));
    assert!(first.1 < third.1 && third.1 < last.1);
}

#[test]
fn a_dropped_tool_call_is_an_error_until_a_rendering_is_chosen() {
    let place = Place::new(CHATML);
    let refused = place.render(&talk_with_call(), &[]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
    assert!(
        refused.stderr.contains("leaves out the name and the arguments of the call of \"ls\" in message 1")
    );
    assert!(refused.stderr.contains("help: choose how tool calls are written with --tool-text hermes"));
    let hermes = place.render(&talk_with_call(), &["--tool-text", "hermes"]);
    assert!(
        hermes
            .stdout
            .contains("<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \".\"}}\n</tool_call>"),
        "{}",
        hermes.stdout
    );
    let flat = place.render(&talk_with_call(), &["--tool-text", "flatten"]);
    assert!(
        flat.stdout.contains("[Tool Call: ls]\n{\"path\": \".\"}")
            && flat.stdout.contains("[Tool Result: ls]\na b")
    );
}

#[test]
fn variables_are_json_or_text_and_override_special_tokens() {
    let place = Place::new(
        "{{ eos_token }}|{{ flag is sameas false }}|{{ name }}|{{ strftime_now('%d %b %Y') }}|{{ messages|map(attribute='content')|join(' ') }}",
    );
    let vars = [
        "--var",
        "flag=false",
        "--var",
        "name=a=b",
        "--var",
        "eos_token=<e>",
        "--now",
        "2026-01-31T12:00:00Z",
    ];
    assert_eq!(place.render(&talk(), &vars).stdout, "<e>|True|a=b|31 Jan 2026|hi yes so?");
    let refused = place.render(&talk(), &["--var", "flag=false", "--var", "name=x"]);
    assert!(
        refused.stderr.contains("asks for the current time")
            && refused.stderr.contains("help: give the time with --now")
    );
}

#[test]
fn a_template_in_a_file_of_its_own_is_given_the_models_special_tokens() {
    let place = Place::new("unused");
    let template = place.write("own.jinja", "{{ messages[0].content }}{{ eos_token }}");
    std::fs::remove_file(place.path("chat_template.jinja")).unwrap();
    let hi = json!([{"role": "user", "content": "hi"}]);
    let expected = "hi<|im_end|>";
    assert_eq!(place.render(&hi, &["--template", &template]).stdout, expected);
    // A file of the model leads to its directory.
    let messages = place.write("messages.json", &hi.to_string());
    let file = place.path("tokenizer.json").to_str().unwrap().to_owned();
    let ran =
        run(&["chat", "render", "--tokenizer", &file, "--template", &template, "--messages", &messages], "");
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
    let ran = run(&["chat", "render", "--tokenizer", &template, "--messages", &messages], "");
    check_refusal(&ran, "own.jinja: neither a model directory, nor its tokenizer.json, nor a GGUF file");
    check_refusal(&run(&["chat", "render", "--messages", &messages], ""), "no template is named");
}

#[test]
fn numbers_are_rendered_as_they_were_written_or_refused() {
    let template = "{{ messages[0].content }}{{ tools | tojson }}";
    let place = Place::new(template);
    let render = |number: &str| {
        let text =
            format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"x\"}}], \"tools\": [{number}]}}");
        let messages = place.write("numbers.json", &format!("\u{feff}{text}"));
        run(
            &["chat", "render", "--tokenizer", place.dir.path().to_str().unwrap(), "--messages", &messages],
            "",
        )
    };
    assert_eq!(render("-0, 18446744073709551615, 0.1").stdout, "x[0, 18446744073709551615, 0.1]");
    check_refusal(
        &render("123456789012345678901234567890"),
        "the integer 123456789012345678901234567890 is too large",
    );
}

#[test]
fn what_is_said_is_not_lost_in_silence() {
    let call_or_text = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}";
    let mut messages = talk_with_call();
    messages[1]["content"] = "I look".into();
    let place = Place::new(call_or_text);
    let shown = place.render(&messages, &[]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(
        shown.stderr.contains("warning: message 1: the text is not in the rendered text"),
        "{}",
        shown.stderr
    );
    let refused = place.render(&messages, &["--format", "spans"]);
    check_refusal_after_notes(
        &refused,
        "leaves out the text of message 1, an assistant's beside a tool call",
    );
    assert_eq!(place.render(&messages, &["--format", "spans", "--tool-text", "hermes"]).code, 0);
    let tools = place.write("tools.json", r#"[{"type": "function", "function": {"name": "ls"}}]"#);
    let flat = place.render(&messages, &["--tool-text", "flatten", "--tools", &tools]);
    assert!(
        flat.stderr.contains("warning: the schemas of these tools are not in the rendered text: ls"),
        "{}",
        flat.stderr
    );
    check_refusal(&Place::new("").render(&talk(), &[]), "leaves out the text of message 0, a user's");
    let odd = json!({"messages": talk(), "tools": {"name": "ls"}});
    check_refusal(&place.render(&odd, &[]), "messages.json: tools must be a list, not an object");
}

/// Every refusal: exit 2, nothing on stdout, one `error:` line with the reason, one `help:` line.
fn check_refusal(ran: &Ran, reason: &str) {
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("error: ") && lines[1].starts_with("help: "),
        "{}",
        ran.stderr
    );
    assert!(lines[0].contains(reason), "{} lacks {reason}", lines[0]);
}

#[test]
fn bad_input_gets_one_clear_line_and_help() {
    let place = Place::new(CHATML);
    let message = |role: &str, content: Value| json!([{"role": role, "content": content}]);
    check_refusal(
        &place.render(&message("robot", "x".into()), &[]),
        "messages.json: message 0: unknown role `robot`",
    );
    check_refusal(
        &place.render(&message("user", Value::Null), &[]),
        "messages.json: message 0: the user message has null content",
    );
    check_refusal(&place.render(&json!("hi"), &[]), "messages.json: messages must be a list, not a string");
    check_refusal(&place.render(&talk(), &["--now", "noon"]), "--now noon: not a time");
    check_refusal(&place.render(&talk(), &["--var", "x"]), "--var x: no `=`");
    check_refusal(&Place::new("{% for %}").render(&talk(), &[]), "chat_template.jinja: line 1");
    check_refusal(&Place::new("{{ raise_exception('only cats') }}").render(&talk(), &[]), "only cats");
    let broken = place.write("broken.json", "[{");
    let dir = place.dir.path().to_str().unwrap();
    check_refusal(
        &run(&["chat", "render", "--tokenizer", dir, "--messages", &broken], ""),
        "broken.json: not JSON",
    );
    check_refusal(
        &run(&["chat", "render", "--tokenizer", "/nowhere", "--messages", &broken], ""),
        "not JSON",
    );
    let messages = place.write("ok.json", &talk().to_string());
    check_refusal(
        &run(&["chat", "render", "--tokenizer", "/nowhere", "--messages", &messages], ""),
        "/nowhere",
    );
    place.write("tokenizer.json", "{");
    check_refusal_after_notes(&place.render(&talk(), &["--format", "ids"]), "tokenizer.json");
    check_refusal(
        &run(&["chat", "parse", "--tool-call-parser", "nope"], "x"),
        "no tool-call parser is called `nope`; known are hermes",
    );
}

/// As above, but the template was looked at before the tokenizer failed.
fn check_refusal_after_notes(ran: &Ran, reason: &str) {
    let kept: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| !line.starts_with("note: ") && !line.starts_with("warning: "))
        .collect();
    check_refusal(&Ran { code: ran.code, stdout: ran.stdout.clone(), stderr: kept.join("\n") }, reason);
}

#[test]
fn parse_prints_content_and_calls() {
    let text = "I look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"p\": 1.0}}\n</tool_call>";
    let ran = run(&["chat", "parse", "--tool-call-parser", "hermes"], text);
    let expected = json!({"content": "I look.", "tool_calls": [{"id": null, "name": "ls", "arguments": "{\"p\": 1.0}"}], "malformed": []});
    assert_eq!(serde_json::from_str::<Value>(&ran.stdout).unwrap(), expected);
}

#[test]
fn parse_keeps_what_the_tools_want_as_text() {
    let dir = tempfile::tempdir().unwrap();
    let tools = dir.path().join("tools.json");
    let properties = json!({"content": {"type": "string"}});
    std::fs::write(&tools, json!([{"name": "write", "parameters": {"properties": properties}}]).to_string())
        .unwrap();
    let text = "<function=write>\n<parameter=content>\n  1.10\n\n</parameter>\n</function>";
    let arguments = |more: &[&str]| {
        let ran = run(&[&["chat", "parse", "--tool-call-parser", "qwen3_coder"], more].concat(), text);
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["tool_calls"][0]["arguments"].clone()
    };
    assert_eq!(arguments(&["--tools", tools.to_str().unwrap()]), r#"{"content": "  1.10\n"}"#);
    assert_eq!(arguments(&[]), r#"{"content": 1.1}"#);
}

#[test]
fn commands_without_a_server_say_how_to_name_one() {
    let ran = run(&["score", "--jobs", "j", "--out", "o"], "");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("--url"), "{}", ran.stderr);
    let gone = run(&["probe", "http://127.0.0.1:9"], "");
    assert_eq!(gone.code, 3);
    assert!(gone.stderr.contains("error: http://127.0.0.1:9 cannot be reached"), "{}", gone.stderr);
}

#[test]
fn help_has_examples_for_every_command() {
    let n_commands = check_help(&[]);
    assert!(n_commands >= 9, "only {n_commands} commands were found");
}

/// Each reads its keys from a file, and names the file where a value of it is wrong.
#[test]
fn every_command_with_keys_reads_a_file() {
    let place = Place::new(CHATML);
    for (command, key) in [
        ("collect", "group_size"),
        ("evaluate", "attempts"),
        ("credit", "gamma"),
        ("dataset", "omega"),
        ("score", "timeout"),
        ("probe", "timeout"),
        ("chat render", "format"),
        ("chat parse", "tool_call_parser"),
        ("model serve", "port"),
    ] {
        let file = place.write("c.toml", &format!("{key} = []\n"));
        let words: Vec<&str> = command.split(' ').chain(["--config", &file]).collect();
        check_refusal(&run(&words, ""), &format!("{key} in {file} is [], which is not "));
    }
    let file = place.write("typed.toml", "run = 'runs/x'\n");
    check_refusal(&run(&["collect", "--config", &file], ""), "there is no key `run`");
    // And heeds them, with paths from where the file is; flags win.
    place.write("c.toml", "tokenizer = '.'\ntool_text = 'flatten'\n");
    let messages = place.write("messages.json", &talk_with_call().to_string());
    let file = place.path("c.toml").to_str().unwrap().to_owned();
    let all = ["chat", "render", "--config", &file, "--messages", &messages];
    assert!(run(&all, "").stdout.contains("[Tool Call: ls]"));
    assert!(run(&[&all[..], &["--tool-text", "hermes"]].concat(), "").stdout.contains("<tool_call>"));
}

#[test]
fn tools_are_written_as_text_where_the_template_needs_it() {
    let auto = |template: &str| Place::new(template).render(&talk_with_call(), &["--tool-text", "auto"]);
    assert!(auto(CHATML).stdout.contains("<tool_call>\n{\"name\": \"ls\""));
    let shows = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments }}>{% endfor %}{% endfor %}{{ tools }}";
    let ran = auto(shows);
    assert!(ran.stdout.contains("<ls ") && !ran.stdout.contains("tool_call"), "{}{}", ran.stdout, ran.stderr);
}

/// The working order, and behind each command what comes after it.
#[test]
fn commands_are_listed_in_working_order_and_name_the_next() {
    let help = run(&["--help"], "").stdout;
    let listed = help.split_once("Commands:\n").unwrap().1.lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = listed.filter_map(|line| line.trim().split(' ').next()).collect();
    let expected =
        "quickstart probe run collect distill credit dataset evaluate score chat model config help"
            .split(' ');
    assert_eq!(names, expected.collect::<Vec<_>>());
    let next = |command: &str| {
        let help = run(&[command, "--help"], "").stdout;
        help.trim_end().rsplit_once("\n\n").unwrap().1.to_owned()
    };
    assert_eq!(next("probe"), "Next: backsight collect --url http://localhost:8000 --tasks builtin");
    assert_eq!(next("collect"), "Next: backsight distill --url http://localhost:8000 --run runs/collect");
    assert_eq!(next("credit"), "Next: backsight dataset");
    let parsed = run(&["chat", "parse", "--tool-call-parser", "hermes"], "hi");
    assert!(parsed.stderr.ends_with(" --tool-call-parser hermes\n"), "{}", parsed.stderr);
    assert!(parsed.stderr.starts_with("next: "), "{}", parsed.stderr);
    assert_eq!(run(&["config", "--json"], "").stderr, "");
}

/// What is typed most comes first, the rest under what it is about.
#[test]
fn help_has_headings() {
    let help = run(&["credit", "--help"], "").stdout;
    let is_heading = |line: &&str| line.ends_with(':') && !line.starts_with(' ');
    let headings: Vec<&str> = help.lines().filter(is_heading).collect();
    let expected = ["Options:", "Server:", "Lens:", "Conversation:", "Credit:", "Advantages:", "Examples:"];
    assert_eq!(headings, expected);
    let first = help.split_once("Options:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let flags = first.lines().filter_map(|line| line.trim().strip_prefix("--")?.split([' ', '[']).next());
    let flags: Vec<&str> = flags.collect();
    let expected = "input-dir episodes run url kind model tokenizer dry-run recompute overwrite min-reward";
    assert_eq!(flags, format!("{expected} tools json config").split(' ').collect::<Vec<_>>());
    assert!(help.contains("[alias: --api-base]") && help.contains("The same as --smoothing none"));
    let both = run(&["credit", "--no-smooth", "--smoothing", "paper"], "");
    assert!(both.code == 2 && both.stderr.contains("--no-smooth"), "{}", both.stderr);
}

#[test]
fn help_says_what_exit_codes_mean() {
    let help = run(&["--help"], "").stdout;
    assert!(help.contains("130 and 143 ended by SIGINT and SIGTERM"), "{help}");
}

/// Looks at the help of a command and of all below it; gives how many there are that do something.
fn check_help(command: &[&str]) -> usize {
    let ran = run(&[command, &["--help"]].concat(), "");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{command:?}");
    let Some((_, below)) = ran.stdout.split_once("Commands:\n") else {
        assert!(ran.stdout.contains("Examples:\n  "), "{command:?} has no examples");
        let example = format!("backsight {}", command.join(" "));
        assert!(ran.stdout.contains(&example), "{command:?} shows no `{example}`");
        return 1;
    };
    let lines = below.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names
        .filter(|name| !name.is_empty() && *name != "help")
        .map(|name| check_help(&[command, &[name]].concat()))
        .sum()
}
