//! Whole episodes with a scripted student: what is recorded, to the token, and what it is worth.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scripted::{Asked, Scripted};
use async_trait::async_trait;
use backsight::agent::CustomReward;
use backsight::agent::ForcedCalls;
use backsight::agent::{AgentSetting, EpisodePlace, Speech, run_episode};
use backsight::chat::format::ChatFormat;
use backsight::chat::parse::Parser;
use backsight::chat::template::{Now, Template};
use backsight::engine::model::Embedded;
use backsight::episode::{Content, Episode, Message, Role, Step, Stop, TokenSource, ToolText};
use backsight::model::ModelRole;
use backsight::model::{ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored};
use backsight::sandbox::{SandboxConfig, Sandboxes};
use backsight::score::ScoreJob;
use backsight::store::{Fingerprint, Identity, Ledger, Ledgered, RunLock, RunPlace, Versions, WeightRules};
use backsight::store::{episode_from_json, episode_to_json};
use backsight::tasks::{Check, CodingTask};
use backsight::tokens::TokenId;
use serde_json::{Map, json};

use crate::student::{PLAIN, TOOLS, call, format, place, saying, setting, task, tokenizer, write_solution};
use crate::support::schema;
use crate::support::tiny;

/// Hands calls on and keeps the prompts.
struct Watched {
    inner: Arc<dyn Model>,
    prompts: Mutex<Vec<Vec<TokenId>>>,
}

#[async_trait]
impl Model for Watched {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        self.prompts.lock().unwrap().push(request.prompt.clone());
        self.inner.generate(request).await
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.inner.score(job).await
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        self.inner.chat(request).await
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
}

/// Runs an episode and checks what holds for every one.
async fn run(setting: &AgentSetting) -> Episode {
    let watched = Arc::new(Watched { inner: Arc::clone(&setting.student), prompts: Mutex::default() });
    let setting = AgentSetting { student: Arc::clone(&watched) as Arc<dyn Model>, ..setting.clone() };
    let episode = run_episode(&setting, &task(), place()).await;
    check_record(&episode);
    let prompts = watched.prompts.lock().unwrap();
    for (step, prompt) in episode.steps().iter().zip(prompts.iter()) {
        let tokens = step.tokens.as_ref().unwrap();
        assert_eq!(&episode.sequences[0][..tokens.span.start()], prompt, "a prompt is what is recorded");
    }
    if !prompts.is_empty() {
        assert!(!shown(&episode).contains("<|im_end|><|im_end|>"), "{}", shown(&episode));
    }
    episode
}

/// The record says everything, and is what its schema says.
fn check_record(episode: &Episode) {
    let json = episode_to_json(episode).unwrap();
    assert_eq!(schema::check(include_str!("../../../docs/episode.schema.json"), &json), None);
    let read = serde_json::from_str(&json.to_string()).unwrap();
    assert_eq!(episode_from_json(&read).as_ref(), Ok(episode));
}

fn shown(episode: &Episode) -> String {
    tokenizer().decode(&episode.sequences[0]).unwrap()
}

fn text(message: &Message) -> String {
    message.content.as_ref().map(Content::text).unwrap_or_default()
}

/// The messages behind the task, each as its role and text.
fn talk(episode: &Episode) -> Vec<String> {
    episode.messages[2..].iter().map(|it| format!("{}: {}", it.role.name(), text(it))).collect()
}

fn components(episode: &Episode) -> Vec<f64> {
    episode.outcome.as_ref().unwrap().components.iter().map(|it| it.1).collect()
}

/// What the template and the tokenizer make of the whole conversation.
fn canonical(setting: &AgentSetting, episode: &Episode) -> Vec<TokenId> {
    let Speech::Exact(format) = &setting.speech else { panic!("no tokens") };
    // The last action is no prompt; the one before it and its answer are.
    let last = episode.steps().last().unwrap().message_idx;
    format.opening(&episode.messages[..last], &episode.tools, Now::utc(place().started_at)).unwrap().ids
}

fn solving() -> [String; 3] {
    let check = call("terminal", r#"{"command": "python3 -c 'import solution; print(solution.add(1, 2))'"}"#);
    [write_solution(), check, "It works.".to_owned()]
}

fn texts(texts: &[String]) -> Scripted {
    saying(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test]
async fn a_solved_task_is_recorded_to_the_token() {
    for (template, tool_text) in [(TOOLS, None), (PLAIN, Some(ToolText::Hermes))] {
        let mut setting = setting(texts(&solving()));
        setting.speech = Speech::Exact(format(template, tool_text));
        let episode = run(&setting).await;
        assert_eq!((episode.stop, episode.token_source), (Some(Stop::Answered), TokenSource::Exact));
        assert_eq!(
            (episode.outcome.as_ref().unwrap().reward, components(&episode)),
            (1.0, vec![1.0, 1.0, 1.0])
        );
        assert_eq!((episode.tool_text, episode.temperature), (tool_text, Some(1.0)));
        let found = episode.verification.as_ref().unwrap();
        assert_eq!((found.n_passed, found.n_failed, found.error.as_deref()), (2, 0, None));
        let steps = episode.steps();
        assert_eq!(steps.len(), 3);
        let last = steps[2].tokens.as_ref().unwrap().span;
        assert_eq!(
            episode.sequences[0][..last.start()],
            canonical(&setting, &episode),
            "{}",
            shown(&episode)
        );
        for step in steps {
            let tokens = step.tokens.as_ref().unwrap();
            assert!(tokens.logprobs.iter().all(Option::is_some));
            assert!(tokens.top.iter().all(|row| row.entries().len() >= 5));
        }
        let rows = episode.trained_sequences();
        let n_trained = rows[0].trained.iter().filter(|it| **it).count();
        assert_eq!(n_trained, steps.iter().map(|it| it.tokens.as_ref().unwrap().span.len()).sum::<usize>());
        assert_eq!(rows[0].logprobs.iter().flatten().count(), n_trained);
    }
}

#[tokio::test]
async fn calls_of_one_turn_are_run_in_order() {
    let look = call("terminal", r#"{"command": "cat a.txt"}"#);
    let write = call("write_file", r#"{"path": "a.txt", "content": "hello"}"#);
    let episode = run(&setting(saying(&[&format!("Both.\n{write}\n{look}"), "Done."]))).await;
    let expected = [
        "assistant: Both.",
        r#"tool: {"path":"a.txt","bytes_written":5}"#,
        r#"tool: {"output":"hello","exit_code":0,"error":null}"#,
        "assistant: Done.",
    ];
    assert_eq!(talk(&episode), expected);
    let ids: Vec<_> = episode.messages[2].tool_calls.iter().map(|it| it.id.clone().unwrap()).collect();
    assert_eq!(ids, ["c00000000", "c00000001"]);
    assert_eq!(episode.messages[4].tool_call_id.as_ref(), Some(&ids[1]));
    // Nothing was solved: no solution, but few turns and both kinds of tools.
    assert_eq!(components(&episode), [0.1, 1.0, 1.0]);
}

#[tokio::test]
async fn what_cannot_be_called_is_answered_and_the_student_goes_on() {
    let broken = "<tool_call>\n{\"name\": \"terminal\", \"arguments\": {\"command\": \"ls}\n</tool_call>";
    let unknown = call("web_search", r#"{"q": "add"}"#);
    let text_arguments = call("terminal", r#""ls""#);
    let missing = call("read_file", r#"{"path": "nothing.py"}"#);
    let escape = call("read_file", r#"{"path": "../../etc/passwd"}"#);
    let turns = [broken, &unknown, &text_arguments, &missing, &escape, &*write_solution(), "Done."];
    let episode = run(&setting(saying(&turns))).await;
    assert_eq!(episode.stop, Some(Stop::Answered));
    let answers: Vec<_> = talk(&episode).into_iter().filter(|it| !it.starts_with("assistant")).collect();
    assert!(answers[0].starts_with("user: {\"error\":\"Invalid JSON in tool call: "), "{}", answers[0]);
    assert!(answers[0].ends_with("Please retry with valid JSON.\"}"), "{}", answers[0]);
    assert!(answers[1].contains("Unknown tool 'web_search'. Available tools: "), "{}", answers[1]);
    assert!(answers[2].contains("the arguments are no JSON object"), "{}", answers[2]);
    assert!(answers[3].contains("error") && answers[3].contains("nothing.py"), "{}", answers[3]);
    assert!(answers[4].contains("error"), "{}", answers[4]);
    assert_eq!(episode.failed_results, [3, 5, 7, 9, 11]);
    assert_eq!(components(&episode)[0], 1.0);
    let idx = episode.steps()[0].next_state.clone();
    assert_eq!(episode.messages[idx.start].role, Role::User);
}

#[tokio::test]
async fn endless_output_is_shown_in_part_and_stored_whole() {
    let loud = call("terminal", r#"{"command": "echo begin; yes | head -c 400000; echo; echo end"}"#);
    let episode = run(&setting(saying(&[&loud, "Done."]))).await;
    let shown = text(&episode.messages[3]);
    assert!(shown.chars().count() < 110_000, "{}", shown.len());
    assert!(shown.contains("begin") && shown.contains("characters omitted") && shown.contains("end"));
    let (message_idx, whole) = &episode.whole_results[0];
    assert_eq!((*message_idx, whole.chars().count()), (3, 400_011));
    let endless = call("terminal", r#"{"command": "yes", "timeout": 1}"#);
    let mut setting = setting(saying(&[&endless, "Done."]));
    setting.options.turn_output_chars = 1000;
    let episode = run(&setting).await;
    assert!(text(&episode.messages[3]).chars().count() < 1200);
    assert!(episode.whole_results[0].1.chars().count() < 1_000_100);
    assert_eq!(episode.stop, Some(Stop::Answered));
}

#[tokio::test]
async fn a_full_context_ends_an_episode() {
    let look = call("terminal", r#"{"command": "seq 200"}"#);
    let plain = run(&setting(saying(&[&look, &look, "Done."]))).await;
    let spans: Vec<_> = plain.steps().iter().map(|it| it.tokens.as_ref().unwrap().span).collect();
    // The second prompt would fill the context to the last token: there is no room to speak.
    for (budget, n_steps) in [(spans[1].start(), 1), (spans[1].start() + 1, 2), (spans[1].end(), 2)] {
        let mut setting = setting(saying(&[&look, &look, "Done."]));
        setting.options.context_budget = Some(budget);
        let episode = run(&setting).await;
        let found: Vec<_> = episode.steps().iter().map(|it| it.tokens.as_ref().unwrap().span).collect();
        assert_eq!(
            (episode.stop, found.len()),
            (Some(Stop::ContextFull), n_steps),
            "{budget} {spans:?} {found:?}"
        );
        assert!(episode.outcome.is_ok() && episode.verification.is_some());
        let last = episode.steps().last().unwrap().tokens.as_ref().unwrap().span;
        assert_eq!(episode.sequences[0].len(), last.end(), "nothing stands behind the last action");
    }
}

#[tokio::test]
async fn a_task_that_does_not_fit_is_not_the_students_failure() {
    let mut setting = setting(saying(&["Done."]));
    setting.options.context_budget = Some(5);
    let episode = run_episode(&setting, &task(), place()).await;
    check_record(&episode);
    assert_eq!((episode.stop, episode.steps().len()), (Some(Stop::Failed), 0));
    let why = episode.outcome.unwrap_err();
    assert!(
        why.starts_with(
            "turn 1: the task with its tools has 3089 tokens and leaves no room in a context of 5"
        ),
        "{why}"
    );
}

/// A tool that takes its own sandbox away ends the episode without a reward: nothing could be learned from the rest.
#[tokio::test]
async fn a_sandbox_that_dies_fails_the_episode() {
    let look = call("terminal", r#"{"command": "ls"}"#);
    let wait = call("terminal", r#"{"command": "sleep 20"}"#);
    let mut setting = setting(saying(&[&look, &wait, &look, "Done."]));
    let init = Some(PathBuf::from(env!("CARGO_BIN_EXE_backsight")));
    let limits = backsight::sandbox::Limits { wall_seconds: 2, ..Default::default() };
    setting.sandboxes = Arc::new(Sandboxes::new(SandboxConfig { init, limits, ..SandboxConfig::default() }));
    let episode = run(&setting).await;
    assert_eq!(episode.stop, Some(Stop::Failed), "{:?}", talk(&episode));
    // The third, unless the machine was too busy to come so far.
    let last = episode.steps().len();
    let why = episode.outcome.unwrap_err();
    assert!(why.starts_with(&format!("turn {last}: the sandbox has ended")), "{why}");
}

#[tokio::test]
async fn a_cut_turn_ends_an_episode_unless_it_called() {
    let cut = run(&setting(saying(&["I will now begin to…"]))).await;
    assert_eq!((cut.stop, cut.messages.len()), (Some(Stop::TurnCut), 3));
    let half = run(&setting(saying(&["<tool_call>\n{\"name\": \"terminal\", \"arg…"]))).await;
    assert_eq!((half.stop, half.failed_results.len()), (Some(Stop::TurnCut), 0));
    let setting = setting(saying(&[&format!("{}…", write_solution()), "Done."]));
    let called = run(&setting).await;
    assert_eq!((called.stop, components(&called)[0]), (Some(Stop::Answered), 1.0));
    // The end that was not sampled is there, and is not trained.
    let (span, end) = (called.steps()[0].tokens.as_ref().unwrap().span, tokenizer().end_ids()[0]);
    assert_eq!(called.sequences[0][span.end()], end);
    assert!(!called.trained_sequences()[0].trained[span.end()]);
    let last = called.steps()[1].tokens.as_ref().unwrap().span.start();
    assert_eq!(called.sequences[0][..last], canonical(&setting, &called));
}

#[tokio::test]
async fn another_end_stands_in_the_place_of_the_usual_one() {
    let (tokenizer, other) = (tokenizer(), tokenizer().id_of("</think>").unwrap());
    let first = [tokenizer.encode(&write_solution()).unwrap().ids, vec![other]].concat();
    let last = vec![tokenizer.end_ids()[0]];
    let student = Scripted::new(720)
        .on_generate(move |it| Some(if it.place.step == 0 { first.clone() } else { last.clone() }));
    // A server may stop at a token our files do not name: then the turn has not ended for us, and the end is added.
    let episode = run(&setting(student)).await;
    assert!(shown(&episode).contains("</tool_call></think><|im_end|>"), "{}", shown(&episode));
}

#[tokio::test]
async fn turns_are_limited() {
    let mut setting = setting(saying(&[&*call("process", r#"{"action": "list"}"#); 4]));
    setting.options.max_agent_turns = 3;
    let episode = run(&setting).await;
    assert_eq!((episode.stop, episode.steps().len()), (Some(Stop::TurnLimit), 3));
    assert_eq!(episode.steps()[2].next_state, 7..8, "the last calls are run too");
    assert_eq!((episode.progress.turns, episode.progress.tool_calls), (Some(3), Some(3)));
    assert!(episode.outcome.is_ok());
}

#[tokio::test]
async fn time_is_limited() {
    let sleep = call("terminal", r#"{"command": "setsid sleep 100 & sleep 100"}"#);
    let mut slow = setting(saying(&[&format!("{sleep}\n{sleep}"), "Done."]));
    slow.options.episode_time = Duration::from_millis(1500);
    let episode = run(&slow).await;
    assert_eq!((episode.stop, episode.messages.len()), (Some(Stop::WallClock), 5));
    assert!(episode.outcome.is_ok(), "what took too long was the student's doing");
    assert_eq!(episode.failed_results, [3, 4]);
}

/// A server that takes a request and never answers.
struct Silent(Limits);

#[async_trait]
impl Model for Silent {
    async fn generate(&self, _: &GenerateRequest) -> Result<Generated, Error> {
        std::future::pending().await
    }

    async fn score(&self, _: &ScoreJob) -> Result<Scored, Error> {
        std::future::pending().await
    }

    async fn chat(&self, _: &ChatRequest) -> Result<ChatAnswer, Error> {
        std::future::pending().await
    }

    fn limits(&self) -> &Limits {
        &self.0
    }
}

#[tokio::test]
async fn a_server_that_never_answers_fails_the_episode() {
    for speech in [Speech::Exact(format(TOOLS, None)), Speech::Chat(None)] {
        let mut setting = setting(saying(&[]));
        setting.student = Arc::new(Silent(Limits { token_ids: true, ..Limits::default() }));
        setting.speech = speech;
        setting.options.episode_time = Duration::from_millis(1100);
        let episode = run_episode(&setting, &task(), place()).await;
        check_record(&episode);
        assert_eq!((episode.stop, episode.steps().len()), (Some(Stop::WallClock), 0));
        let why = episode.outcome.unwrap_err();
        assert!(why.starts_with("turn 1: the episode's 1 seconds were over before"), "{why}");
    }
}

#[tokio::test]
async fn a_server_that_goes_away_leaves_what_happened() {
    let gone = |asked: Asked<'_>, nth: u64| {
        let error = Error::Unreachable { server: "http://there".into(), why: "connection refused".into() };
        (matches!(asked, Asked::Generate(_)) && nth == 1).then_some(error)
    };
    let episode = run(&setting(texts(&solving()).failing(gone))).await;
    assert_eq!(
        (episode.stop, episode.steps().len(), episode.verification.is_none()),
        (Some(Stop::Failed), 1, true)
    );
    let why = episode.outcome.clone().unwrap_err();
    assert!(why.starts_with("turn 2: http://there cannot be reached: connection refused\nhelp: "), "{why}");
    assert_eq!(talk(&episode)[1], r#"tool: {"path":"solution.py","bytes_written":32}"#);
    assert!(episode.steps()[0].tokens.is_some());
}

#[tokio::test]
async fn a_sandbox_that_is_refused_costs_nothing() {
    let student = Arc::new(texts(&solving()));
    let mut setting = setting(saying(&[]));
    setting.student = Arc::clone(&student) as Arc<dyn Model>;
    let init = Some(PathBuf::from("/nonexistent/backsight"));
    setting.sandboxes = Arc::new(Sandboxes::new(SandboxConfig { init, ..SandboxConfig::default() }));
    let episode = run_episode(&setting, &task(), place()).await;
    check_record(&episode);
    assert_eq!((episode.stop, student.calls().generate), (Some(Stop::Failed), 0));
    let why = episode.outcome.unwrap_err();
    assert!(why.contains("launcher /nonexistent/backsight cannot be started"), "{why}");
}

#[tokio::test]
async fn a_server_without_ids_is_talked_to_and_the_episode_says_so() {
    let turns = solving();
    let native = |step: usize| {
        let parsed = Parser::Hermes.parse(&turns[step], &[]);
        let mut message = Message::text(Role::Assistant, parsed.content.clone().unwrap_or_default());
        message.tool_calls = parsed.calls.iter().map(|it| it.to_tool_call()).collect();
        message
    };
    let messages: Vec<Message> = (0..3).map(native).collect();
    let in_text: Vec<Message> = turns.iter().map(|it| Message::text(Role::Assistant, it.as_str())).collect();
    for (messages, parser) in [(messages, None), (in_text, Some(Parser::Hermes))] {
        let student = Scripted::new(8)
            .with_limits(Limits::default())
            .on_chat(move |request| messages.get(request.place.step).cloned());
        let mut setting = setting(student);
        setting.speech = Speech::Chat(parser);
        let episode = run(&setting).await;
        assert_eq!((episode.stop, episode.token_source), (Some(Stop::Answered), TokenSource::Rendered));
        assert_eq!((episode.outcome.as_ref().unwrap().reward, episode.sequences.len()), (1.0, 0));
        assert!(episode.steps().iter().all(|step| step.tokens.is_none()));
        assert_eq!(episode.steps().len(), 3);
    }
}

/// What is written as bare text reaches the tool as it was written, in both ways of asking.
#[tokio::test]
async fn bare_text_reaches_the_tools_unchanged() {
    let written = "<tool_call>\n<function=write_file>\n<parameter=path>\nVERSION\n</parameter>\n\
                   <parameter=content>\n1.10\n\n</parameter>\n</function>\n</tool_call>";
    let template = Template::compile(TOOLS, "student.jinja").unwrap();
    let format = ChatFormat::new(template, Map::new(), tokenizer(), Parser::Qwen3Coder, None);
    let messages = [written, "Done."].map(|it| Message::text(Role::Assistant, it));
    let talking = Scripted::new(8)
        .with_limits(Limits::default())
        .on_chat(move |request| messages.get(request.place.step).cloned());
    let ways = [
        (saying(&[written, "Done."]), Speech::Exact(Arc::new(format))),
        (talking, Speech::Chat(Some(Parser::Qwen3Coder))),
    ];
    for (student, speech) in ways {
        let mut setting = setting(student);
        setting.speech = speech;
        assert_eq!(talk(&run(&setting).await)[1], r#"tool: {"path":"VERSION","bytes_written":5}"#);
    }
}

#[tokio::test]
async fn a_server_that_says_the_context_is_full_ends_the_episode() {
    let full = |asked: Asked<'_>, nth: u64| {
        let message = "This model's maximum context length is 4096 tokens".to_owned();
        let error = Error::Refused { server: "http://there".into(), status: 400, message };
        (matches!(asked, Asked::Chat(_)) && nth == 1).then_some(error)
    };
    let calls = Message::text(Role::Assistant, write_solution());
    let student = Scripted::new(8).on_chat(move |_| Some(calls.clone())).failing(full);
    let mut setting = setting(student);
    setting.speech = Speech::Chat(Some(Parser::Hermes));
    let episode = run(&setting).await;
    assert_eq!((episode.stop, components(&episode)[0]), (Some(Stop::ContextFull), 1.0));
}

#[tokio::test]
async fn thinking_is_kept_apart_and_never_called() {
    let hidden = call("terminal", r#"{"command": "touch wrong"}"#);
    let first = format!("<think>\nPerhaps {hidden}?\n</think>\n\nI write.\n{}", write_solution());
    let look = call("terminal", r#"{"command": "ls"}"#);
    let setting = setting(saying(&[&first, &look, &look, "Done."]));
    let episode = run(&setting).await;
    let thought = episode.messages[2].reasoning.clone().unwrap();
    assert!(thought.starts_with("Perhaps <tool_call>") && thought.ends_with('?'), "{thought}");
    assert_eq!(
        (text(&episode.messages[2]), episode.messages[2].tool_calls.len()),
        ("I write.".to_owned(), 1)
    );
    assert_eq!(talk(&episode)[3], r#"tool: {"output":"solution.py\n","exit_code":0,"error":null}"#);
    // The template forgets the thought in later prompts; what the student saw still holds it.
    let last = episode.steps()[3].tokens.as_ref().unwrap().span.start();
    let seen = tokenizer().decode(&episode.sequences[0][..last]).unwrap();
    let rewritten = tokenizer().decode(&canonical(&setting, &episode)).unwrap();
    assert!(seen.contains("Perhaps") && !rewritten.contains("Perhaps"));
}

#[tokio::test]
async fn calls_are_forced_in_the_first_turns() {
    let student = saying(&[&*call("process", r#"{"action": "list"}"#), "Done."]);
    let patterns = Arc::new(Mutex::new(Vec::new()));
    struct Noting(Scripted, Arc<Mutex<Vec<bool>>>);
    #[async_trait]
    impl Model for Noting {
        async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
            self.1.lock().unwrap().push(request.sampling.constraint.is_some());
            self.0.generate(request).await
        }
        async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
            self.0.score(job).await
        }
        async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
            self.0.chat(request).await
        }
        fn limits(&self) -> &Limits {
            self.0.limits()
        }
    }
    let mut setting = setting(saying(&[]));
    setting.student = Arc::new(Noting(student, Arc::clone(&patterns)));
    setting.options.forced_calls =
        Some(ForcedCalls { turns: 1, max_text: 20, tools: Vec::new(), arguments: Vec::new() });
    let episode = run(&setting).await;
    assert_eq!(
        (episode.stop, patterns.lock().unwrap().as_slice()),
        (Some(Stop::Answered), &[true, false][..])
    );
    setting.speech = Speech::Chat(None);
    let error = setting.checked().err().unwrap().to_string();
    assert!(error.starts_with("forced_calls is 1, but must be absent for a server"), "{error}");
}

#[tokio::test]
async fn a_command_may_reward() {
    let rewarded = async |command: &str| {
        let mut setting = setting(texts(&solving()));
        let (command, timeout) = (command.to_owned(), Duration::from_secs(20));
        setting.reward.custom = Some(CustomReward { command, timeout });
        run(&setting).await
    };
    let half = rewarded(
        "python3 -c 'import json, sys; e = json.load(sys.stdin); print(e[\"outcome\"][\"reward\"] / 2 + len(e[\"steps\"]))'",
    )
    .await;
    let outcome = half.outcome.unwrap();
    assert_eq!((outcome.reward, outcome.components.last().unwrap()), (3.5, &("published".to_owned(), 1.0)));
    let failed = rewarded("exit 3").await;
    assert_eq!((failed.stop, failed.verification.is_some()), (Some(Stop::Failed), true));
    assert!(failed.outcome.unwrap_err().starts_with("the reward command `exit 3` failed"));
}

/// Tests that tell nothing give no reward, not the level of a failed solution; a command may still know one.
#[tokio::test]
async fn unusable_tests_give_no_reward() {
    let cases = [
        (None, "assert add(1, 2==3\n", Err("the tests are unusable: the tests are no Python: SyntaxError: ")),
        (None, "print(1)\n", Err("the tests are unusable: the tests make no assertion")),
        (Some("echo 0.25"), "print(1)\n", Ok(0.25)),
    ];
    for (command, tests, expected) in cases {
        let mut setting = setting(texts(&solving()));
        setting.reward.custom = command.map(|command: &str| CustomReward {
            command: command.to_owned(),
            timeout: Duration::from_secs(20),
        });
        let task = CodingTask { check: Some(Check::Script(tests.to_owned())), ..task() };
        let episode = run_episode(&setting, &task, place()).await;
        check_record(&episode);
        assert!(episode.verification.as_ref().unwrap().error.is_some());
        match (&episode.outcome, expected) {
            (Ok(outcome), Ok(reward)) => {
                assert_eq!((episode.stop, outcome.reward), (Some(Stop::Answered), reward));
            }
            (Err(why), Err(reason)) => {
                assert!(why.starts_with(reason), "{why}");
                assert_eq!(episode.stop, Some(Stop::UnusableTests));
            }
            (outcome, _) => panic!("{tests}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn attempts_are_draws_of_their_own() {
    let mut setting = setting(Scripted::new(720));
    setting.options.max_turn_tokens = 12;
    setting.options.student_topk = 2;
    let ids = async |episode: usize| {
        let place = EpisodePlace { episode, ..place() };
        let episode = run_episode(&setting, &task(), place).await;
        let span = episode.steps()[0].tokens.as_ref().unwrap().span;
        episode.sequences[0][span.range()].to_vec()
    };
    let (first, again, second) = (ids(0).await, ids(0).await, ids(1).await);
    assert_eq!(first, again);
    assert_ne!(first, second);
}

/// An episode that was interrupted, or is run once more, pays for nothing it has had already.
#[tokio::test]
async fn what_was_paid_is_not_paid_again() {
    let dir = tempfile::tempdir().unwrap();
    let student = Arc::new(texts(&solving()));
    let ledger = Ledger::open(Arc::new(RunLock::acquire(dir.path()).unwrap())).unwrap();
    let fingerprint = Fingerprint::measure(&*student, Identity::default(), &[1, 2, 3]).await.unwrap();
    let known = (vec![ledger.identify(&fingerprint, 0.0).await.unwrap().0], Default::default());
    let (role, run_place) = (ModelRole::Student, RunPlace { stage: "run", seed: 0 });
    let versions = Versions::new(Arc::clone(&ledger), role, WeightRules::default(), None, vec![], known);
    let inner = Arc::clone(&student) as Arc<dyn Model>;
    let ledgered = Ledgered::new(ledger, inner, versions, role, run_place);
    let mut setting = setting(saying(&[]));
    setting.student = Arc::new(ledgered);
    let first = run(&setting).await;
    let mut second = run(&setting).await;
    assert_eq!(student.calls().generate, 3);
    second.verification.as_mut().unwrap().seconds = first.verification.as_ref().unwrap().seconds;
    assert_eq!(first, second);
}

/// The embedded engine with random weights: free it babbles, forced it calls.
#[tokio::test]
async fn a_real_engine_is_driven_the_same_way() {
    let dir = tempfile::tempdir().unwrap();
    tiny::write_model(dir.path(), json!({"max_position_embeddings": 16384}));
    let model = Embedded::load(dir.path(), None).unwrap();
    let mut setting = setting(saying(&[]));
    setting.student = Arc::new(model);
    setting.speech = Speech::Exact(format(PLAIN, Some(ToolText::Hermes)));
    setting.options.max_turn_tokens = 400;
    setting.options.max_agent_turns = 3;
    setting.options.forced_calls = Some(ForcedCalls {
        turns: 2,
        max_text: 12,
        tools: vec!["write_file".to_owned(), "terminal".to_owned()],
        arguments: Vec::new(),
    });
    let episode = run(&setting).await;
    let called = |step: &Step| {
        let calls = episode.messages[step.message_idx].tool_calls.iter();
        calls.map(|call| call.name.clone()).collect::<Vec<_>>()
    };
    let called: Vec<_> = episode.steps().iter().map(called).collect();
    assert_eq!(called, [vec!["write_file"], vec!["terminal"], vec![]], "{}", shown(&episode));
    let scored = setting.student.score(&job(&episode)).await.unwrap();
    let drawn = episode.steps().iter().flat_map(|it| &it.tokens.as_ref().unwrap().logprobs);
    let mut n_compared = 0;
    for (scored, drawn) in scored.spans.iter().flat_map(|it| it.logprobs()).zip(drawn) {
        let (scored, drawn) = (scored.unwrap().get(), drawn.unwrap().get());
        assert!((scored - drawn).abs() < 1e-4, "{scored} {drawn}");
        n_compared += 1;
    }
    assert!(n_compared > 100);
}

/// All actions of an episode, to be scored in the sequence that is recorded.
fn job(episode: &Episode) -> ScoreJob {
    let spans = episode.steps().iter().map(|step| step.tokens.as_ref().unwrap().span).collect();
    ScoreJob::new(Arc::from(episode.sequences[0].as_slice()), spans, 0).unwrap()
}
