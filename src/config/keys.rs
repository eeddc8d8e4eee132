//! Every key there is: what it accepts, its default, what it means, and which commands use it.
//!
//! Flags, configuration files, `backsight config` and the record in a run directory are all made from
//! this one list. So are the keys of further roles: a teacher's server has the keys of the student's behind a prefix.

use std::sync::LazyLock;

use toml::Value;

use super::parts::{MessageForm, NewWeights};
use crate::model::budget::ModelRole;
use crate::model::kinds;
use crate::model::serve::Personality;
use backsight_core::credit::advantage::Normalise;
use backsight_core::credit::distill::Audit;
use backsight_core::credit::hcapo::{Ratio, Smoothing};
use backsight_core::episode::ToolText;
use backsight_core::hint::{Choice, Pairs, Quorum};
use backsight_core::lens::{self, Placement};
use backsight_core::named;

/// What values a key can have.
#[derive(Clone, Debug)]
pub enum Accepts {
    /// Any text.
    Text,
    /// Texts, in order.
    Words,
    /// The path of a file or directory.
    Path,
    /// A program: a path, or a name that is looked for.
    Program,
    /// A whole number from here up.
    Whole(i64),
    /// A number between these two, both included.
    Number(f64, f64),
    /// A number above zero.
    Positive,
    /// True or false.
    Truth,
    /// Said or not said.
    Switch,
    /// One of these.
    OneOf(Vec<&'static str>),
}

/// What a key has an influence on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What is made. A run directory belongs to one value.
    Result,
    /// How much of it is made. What a run directory belongs to may grow.
    Extent,
    /// What is computed from what was measured, again and without a server.
    Recomputed,
    /// How it is made: where the server is, how much at once, when to stop.
    Manner,
    /// This call alone: what it works on and where it writes. Only typed, never in a file.
    Call,
}

named!(
    Effect: Result = "result", Extent = "extent", Recomputed = "recomputed", Manner = "manner", Call = "call"
);

/// One key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name in files.
    pub name: &'static str,
    /// Its name as a flag, without the dashes in front.
    pub flag: &'static str,
    /// What it is about, for `--help`; empty for those that are typed most.
    pub section: &'static str,
    /// What values it can have.
    pub accepts: Accepts,
    /// Its value when none is given, as it would be typed.
    pub default: Option<&'static str>,
    /// What it has an influence on.
    pub effect: Effect,
    /// What it means.
    pub about: &'static str,
    /// Who uses it.
    pub commands: &'static [&'static str],
}

/// A key without what it has in common with those around it.
type Row = (Effect, &'static str, Accepts, Option<&'static str>, &'static str);

/// Another name that a key goes by, as published scripts have it: the command, the flag, the key, and the value it says
/// where it takes none itself.
pub type Alias = (&'static str, &'static str, &'static str, Option<&'static str>);

/// All of them.
pub const ALIASES: [Alias; 6] = [
    ("credit", "api-base", "url", None),
    ("credit", "batch-size", "episode_requests", None),
    ("credit", "no-smooth", "smoothing", Some("none")),
    ("credit", "no-dense-rewards", "dense_rewards", Some("false")),
    ("dataset", "output-dir", "out", None),
    ("dataset", "no-smooth", "smoothed", Some("false")),
];

/// The commands with a key that can be typed without its flag.
pub const BARE: [(&str, &str); 3] = [("probe", "url"), ("model pull", "model"), ("model path", "model")];

/// Keys that say the same thing in two ways.
pub(super) const EITHER: [(&str, &str); 7] = [
    ("api_key_env", "api_key_file"),
    ("tasks", "dataset_name"),
    ("system_prompt", "instructions"),
    ("input_dir", "episodes"),
    ("dry_run", "recompute"),
    ("overwrite", "recompute"),
    ("quiet", "verbose"),
];

/// A role beside the student, the commands that have it, and the keys it has of its own.
type Role = (ModelRole, &'static [&'static str], fn() -> Vec<Row>);

/// The roles; one that no command has yet has no keys.
const ROLES: [Role; 2] = [(ModelRole::Teacher, DISTILLING, Vec::new), (ModelRole::Judge, DISTILLING, judge)];

/// What is true of one server, and of no other.
pub const OF_SERVER: [&str; 6] = ["url", "kind", "model", "tokenizer", "api_key_env", "api_key_file"];

/// What every role's server has.
pub const OF_SERVERS: [&str; 8] =
    ["url", "kind", "model", "tokenizer", "api_key_env", "api_key_file", "timeout", "patience"];

fn judge() -> Vec<Row> {
    vec![
        (Result, "answer_tokens", Whole(1), Some("2048"), "Tokens of one answer at most, thinking included"),
        (Result, "temperature", Number(0.0, 10.0), Some("0.7"), "How votes are drawn"),
        (Result, "structured", Truth, Some("false"), "Force answers into form, where the server can"),
        (
            Recomputed,
            "evaluates",
            Truth,
            Some("false"),
            "Ask of each action itself whether it was good, neither or bad; kept beside the votes",
        ),
    ]
}

/// The stages that have a section of their own in a run directory's files.
pub const STAGES: [&str; 6] = ["collect", "evaluate", "distill", "credit", "dataset", "score"];

/// Who runs an agent.
const RUNNING: &[&str] = &["collect", "evaluate", "run"];
/// Who makes groups of episodes.
const COLLECTING: &[&str] = &["collect", "run"];
const COLLECT: &[&str] = &["collect"];
const EVALUATE: &[&str] = &["evaluate"];
const CREDIT: &[&str] = &["credit"];
const DISTILL: &[&str] = &["distill"];
/// Who makes hints and targets.
const DISTILLING: &[&str] = &["distill", "run"];
/// Who reads recorded episodes again.
const REREADING: &[&str] = &["credit", "distill"];
/// Who credits steps.
const CREDITING: &[&str] = &["credit", "run"];
const DATASET: &[&str] = &["dataset"];
const SCORE: &[&str] = &["score"];
const SERVE: &[&str] = &["model serve"];
const RENDER: &[&str] = &["chat render"];
/// Who asks a model.
const ASKING: &[&str] = &["collect", "evaluate", "run", "distill", "credit", "score", "probe"];
/// Who asks it so much that a budget makes sense.
const PAYING: &[&str] = &["collect", "evaluate", "run", "distill", "credit", "score"];
/// Who renders conversations.
const RENDERING: &[&str] = &["collect", "evaluate", "run", "distill", "credit", "chat render"];

use Accepts::{Number, Path, Positive, Program, Switch, Text, Truth, Whole, Words};
use Effect::{Call, Extent, Manner, Recomputed, Result};

const ANY: Accepts = Number(f64::MIN, f64::MAX);

/// These values, beside those that a choice has.
fn one_of(first: &[&'static str], choice: &[&'static str]) -> Accepts {
    Accepts::OneOf([first, choice].concat())
}

/// All keys by section and commands, in the order they are shown.
#[rustfmt::skip]
fn rows() -> Vec<(&'static str, &'static [&'static str], Vec<Row>)> {
    let tool_text = || one_of(&["auto", "none"], ToolText::NAMES);
    vec![
    ("", &["distill", "credit", "dataset"], vec![
        (Call, "input_dir", Path, None, "Directory with episodes: a run directory, episode_*/ directories, or .json and .jsonl files; without it those of run, else trajectories"),
        (Call, "episodes", Words, None, "Files with episodes, instead of a directory"),
        (Call, "run", Path, None, "The run directory, where scores, ledger and summary are; without it the run of the episodes, else .backsight beside them"),
    ]),
    ("", SCORE, vec![
        (Call, "jobs", Path, None, "The jobs, one JSON object a line"),
        (Call, "out", Path, None, "Where the answers go"),
    ]),
    ("", DATASET, vec![(Call, "out", Path, Some("datasets"), "Directory the dataset goes to")]),
    ("", RENDER, vec![(Call, "messages", Path, None, "JSON list of messages, or an object with `messages` and perhaps `tools`; `-` reads stdin")]),
    ("", ASKING, vec![
        (Manner, "url", Words, None, "A server's address, with or without /v1; several share the work; none for kind embedded"),
        (Result, "kind", one_of(&[], &kinds::NAMES), Some(kinds::AUTO), "What the server is"),
        (Result, "model", Text, None, "The model to ask, as the server names it; any name if its only model's tokenizer agrees; for kind embedded from `model list` or a path"),
    ]),
    ("", &["quickstart", "model serve"], vec![(Result, "model", Text, None, "A name from `model list`, a model directory or a GGUF file; without it the default one")]),
    ("", &["model pull", "model path"], vec![(Result, "model", Text, None, "A name that `model list` shows, OWNER/NAME on the hub, or OWNER/NAME:FILE.gguf; without it the default one")]),
    ("", &["quickstart"], vec![(Call, "out", Path, Some("runs/quickstart"), "Where the results go")]),
    ("", &["collect", "evaluate", "run", "distill", "credit", "score", "probe", "chat render", "model serve"], vec![
        (Result, "tokenizer", Path, None, "The model's tokenizer: a directory, or owner/name on the hub; else the directory the server names, if readable here; else model"),
    ]),
    ("", RUNNING, vec![(Result, "tasks", Words, None, "`builtin` (the default), names of built-in tasks, or files of tasks (JSON lines, Parquet)")]),
    ("", COLLECTING, vec![
        (Extent, "groups", Whole(1), None, "How many groups to collect; without it one for each training task"),
        (Result, "group_size", Whole(1), Some("4"), "Episodes of one task that are compared with each other"),
    ]),
    ("", COLLECT, vec![(Call, "run", Path, Some("runs/collect"), "Where everything that is made is kept")]),
    ("", &["run"], vec![(Call, "run", Path, Some("runs/run"), "Where everything that is made is kept")]),
    ("", EVALUATE, vec![
        (Result, "eval_tasks", Accepts::OneOf(vec!["held-out", "all"]), Some("held-out"), "Evaluate the held-out tasks, or every task"),
        (Extent, "attempts", Whole(1), Some("1"), "Attempts at each task; with several, pass@k is told"),
        (Call, "run", Path, Some("runs/evaluate"), "Where everything that is made is kept"),
    ]),
    ("", CREDIT, vec![
        (Call, "dry_run", Switch, None, "Show what would be done; needs no server, and a tokenizer only to count tokens"),
        (Call, "recompute", Switch, None, "Compute credit again from the files that are there, with the hyper-parameters that are given; needs no server"),
        (Call, "overwrite", Switch, None, "Score again what is complete; paid answers are used again, and a file stays until one at least as complete is made"),
        (Extent, "min_reward", ANY, Some("0.0"), "Leave out episodes with less reward"),
    ]),
    ("", DISTILL, vec![
        (Call, "dry_run", Switch, None, "Show what would be done; needs no server, and a tokenizer only to count tokens"),
        (Call, "overwrite", Switch, None, "Make again what is there; paid answers are used again"),
    ]),
    ("", DATASET, vec![(Extent, "min_reward", ANY, Some("0.2"), "Leave out episodes with less reward")]),
    ("", SCORE, vec![(Result, "top_k", Whole(0), Some("0"), "Candidates per position, for jobs that name no top_k")]),
    ("", RENDER, vec![
        (Manner, "format", Accepts::OneOf(vec!["text", "ids", "spans"]), Some("text"), "What to print: the text byte for byte; token ids as a JSON list; or JSON that says where messages and actions are"),
        (Manner, "add_generation_prompt", Truth, Some("false"), "End with the header that asks the model to speak"),
    ]),
    ("", &["chat parse"], vec![(Result, "tool_call_parser", Text, None, "The format to read; an unknown name lists those there are")]),
    ("", &["distill", "credit", "chat render", "chat parse"], vec![(Result, "tools", Path, None, "The tools' schemas as a JSON list, for conversations that do not have any")]),
    ("", SERVE, vec![
        (Manner, "host", Text, Some("127.0.0.1"), "The address to listen on"),
        (Manner, "port", Whole(0), Some("8000"), "The port to listen on; 0 takes a free one"),
        (Manner, "as", one_of(&[], Personality::NAMES), Some(Personality::NAMES[0]), "Which server to play"),
        (Manner, "max_logprobs", Whole(0), Some("20"), "The largest number of candidates per position, as vLLM has it"),
    ]),
    ("", &["collect", "evaluate", "run", "distill", "credit", "dataset", "score", "probe", "config"], vec![
        (Call, "json", Switch, None, "Print the result as JSON on stdout, and what happens as one JSON object a line on stderr"),
    ]),
    ("", RUNNING, vec![
        (Call, "quiet", Switch, None, "Tell only what goes wrong"),
        (Call, "verbose", Switch, None, "Tell of each turn"),
    ]),

    ("Server", ASKING, vec![
        (Manner, "api_key_env", Text, None, "Environment variable that holds the API key"),
        (Manner, "api_key_file", Path, None, "File that holds the API key"),
        (Manner, "concurrency", Whole(1), None, "Requests at once at most; an episode that is run asks one at a time, and without it 16 are, or 4 for kind embedded"),
        (Manner, "timeout", Whole(1), Some("600"), "Seconds one request may take"),
        (Manner, "patience", Whole(0), Some("300"), "Seconds every server may be gone before work on them ends"),
        (Manner, "weights_check_answers", Whole(1), Some("200"), "Measure the server's weights again after so many answers"),
        (Manner, "weights_check_seconds", Whole(1), Some("60"), "Measure them again after so many seconds"),
        (Manner, "new_weights", one_of(&[], NewWeights::NAMES), Some("stop"), "What to do when the server has new weights: end the run, or go on with them and say which gave what"),
    ]),
    ("Server", REREADING, vec![(Manner, "episode_requests", Whole(0), Some("0"), "Requests of one plan of an episode at once at most; 0 is no bound")]),
    ("Server", CREDIT, vec![
        (Call, "api_key", Text, None, "The API key itself; it is never stored or shown, but api_key_env hides it from `ps` too"),
    ]),
    ("Server", PAYING, vec![
        (Manner, "max_requests", Whole(0), None, "Stop this process after so many requests, each role for itself; questions about the server itself and tries without an answer are not counted"),
        (Manner, "max_tokens", Whole(0), None, "Stop this process after so many tokens, sent and sampled, counted in the same way"),
    ]),

    ("Lens", DATASET, vec![
        (Result, "lens", one_of(&[], &lens::NAMES), Some(lens::NAMES[0]), "The lens whose scores are taken"),
        (Result, "placement", one_of(&[], Placement::NAMES), None, "Where that lens was written; without it where it is written by itself"),
    ]),
    ("Lens", CREDIT, vec![
        (Result, "lens", one_of(&[], &lens::NAMES), Some(lens::NAMES[0]), "What an action is re-read under: the outcome, hints from a file, as many words about nothing that matters, or nothing"),
        (Result, "placement", one_of(&[], Placement::NAMES), None, "Where it is written: in the first user message, the last one, the last message, or as messages of its own; each lens has its place"),
        (Result, "hints", Path, None, "File of hints, a JSON object a line: {\"episode_id\", \"step_idx\", \"hint\"}, or instead of the hint an exchange as \"messages\""),
        (Result, "hindsight_template", Path, None, "File with the outcome's words: a minijinja template, or the published scorer's Python format"),
        (Result, "seed", Whole(0), Some("0"), "What every draw comes from: here which sentences a placebo says"),
    ]),
    ("Hints", DISTILLING, vec![
        (Recomputed, "pairs", one_of(&[], Pairs::NAMES), Some("actions"), "Which actions are judged: every one, by everything that answered it; or those with prose, as published"),
        (Extent, "prm_votes", Whole(1), Some("3"), "Votes on each pair of an action and its next state"),
        (Recomputed, "verdict", one_of(&[], Quorum::NAMES), Some("majority"), "When there is a hint: where more than half of the votes say so, or any with a hint, as published"),
        (Recomputed, "hint_choice", one_of(&[], Choice::NAMES), Some("longest"), "Which of several hints is taken; the most effective is found by reading under each"),
        (Recomputed, "hint_placement", one_of(&[], Placement::NAMES), Some("last_user"), "Where a hint is written: last_user as published, last where servers cache, turns as an exchange"),
        (Recomputed, "hint_exchange_file", Path, None, "JSON list of messages, the worked exchange that turns show; without it the judge writes one for each hint"),
        (Recomputed, "hint_leak_words", Whole(0), Some("12"), "Drop a hint that shares so many words in a row with the next state; 0 drops none"),
        (Result, "hint_max_next_state_chars", Whole(1), Some("4000"), "Characters of each part of a next state that a judge is shown"),
    ]),
    ("Teacher", DISTILLING, vec![
        (Result, "lens", one_of(&[], &lens::NAMES), Some("hint"), "What actions are re-read under: hint, or plain for all of them as they are, without a judge"),
        (Recomputed, "distill_topk", Whole(1), Some("50"), "The teacher's candidates at each token; a server may give fewer"),
        (Recomputed, "at_student_topk", Truth, Some("false"), "Ask the teacher about the student's own candidates (student_topk); a server that cannot is asked for distill_topk"),
        (Recomputed, "placebo", Truth, Some("false"), "Re-read under as many irrelevant words too, so that what a hint says can be told from its being there"),
        (Recomputed, "audit", one_of(&[], Audit::NAMES), Some("sample"), "Re-read one action of each episode as the student, all, or none, and compare with its sampling"),
        (Recomputed, "audit_max_mean_diff", Number(0.0, 1e6), Some("0.1"), "Nats an action may differ on average before its episode teaches nothing"),
    ]),
    ("Teacher", DISTILL, vec![(Result, "seed", Whole(0), Some("0"), "What every draw comes from: here votes, irrelevant words and which action is audited")]),
    ("Groups", DISTILLING, vec![
        (Recomputed, "opd_enabled", Truth, Some("true"), "Judge and distil; without it groups have rewards alone"),
        (Recomputed, "include_messages", Truth, Some("true"), "Whether groups hold the conversations"),
        (Recomputed, "allow_rendered", Truth, Some("false"), "Whether episodes ship whose tokens were made from text"),
        (Recomputed, "ship_credit", Truth, Some("false"), "Ship the credit of steps as advantages of their tokens; a step without any is not trained"),
        (Recomputed, "ensure_scores_are_not_same", Truth, Some("false"), "Ship a group of equal rewards for distillation alone, or not at all"),
    ]),
    ("Conversation", RENDERING, vec![
        (Result, "template", Path, None, "Chat template file to use instead of the model's own"),
        (Result, "now", Text, None, "The time templates may print: seconds since 1970, or like 2026-01-31T12:00:00Z; without it when the run or the episode began"),
    ]),
    ("Conversation", RUNNING, vec![(Result, "tool_text", tool_text(), Some("auto"), "Write tools as text; auto does so where the template leaves them out")]),
    ("Conversation", &["distill", "credit", "chat render"], vec![
        (Result, "tool_text", tool_text(), Some("none"), "Write tools as text; auto does so where the template leaves them out"),
        (Result, "var", Words, None, "Give the template a variable, K=V; a value that is JSON is taken as JSON, otherwise as text"),
    ]),
    ("Conversation", &["collect", "evaluate", "run", "distill", "credit"], vec![
        (Result, "system_prompt", Path, None, "File with other instructions for the agent; for `credit`, with those of episodes that do not have any"),
    ]),
    ("Conversation", REREADING, vec![
        (Result, "reread_result_chars", Whole(0), None, "Cut every tool's result to this many characters; without it they are uncut"),
        (Result, "max_context", Whole(1), None, "Shorten longer sequences, whole messages at a time; without it the server's own context counts"),
    ]),

    ("Credit", &["run"], vec![
        (Recomputed, "credit_enabled", Truth, Some("false"), "Credit every step in hindsight of its episode's reward too, before distilling"),
    ]),
    ("Credit", CREDITING, vec![
        (Recomputed, "max_logprob_tokens", Whole(i64::MIN), Some("0"), "Only the last so many tokens of an action count; 0 or less is all of them"),
        (Recomputed, "t_temp", Positive, Some("5.0"), "Temperature of the hindsight probability (Eq. 6)"),
        (Recomputed, "gamma", Number(0.0, 1.0), Some("0.95"), "Discount per step"),
        (Recomputed, "c_min", ANY, Some("0.8"), "Least ratio"),
        (Recomputed, "c_max", ANY, Some("1.2"), "Largest ratio"),
        (Recomputed, "alpha", Number(0.0, 1.0), Some("0.5"), "Weight of a step's own credit when smoothing"),
        (Recomputed, "smoothing", one_of(&[], Smoothing::NAMES), Some("recursive"), "How credit reaches back: from the end as published, one step as in the paper, or not at all"),
        (Recomputed, "smooth_within_subtasks", Truth, Some("false"), "Smooth only among steps of the same subtask"),
        (Recomputed, "ratio", one_of(&[], Ratio::NAMES), Some("mean"), "What an action is compared with: the episode's mean, or itself without the outcome"),
    ]),
    ("Credit", CREDIT, vec![
        (Recomputed, "dense_rewards", Truth, Some("true"), "Reward every step by its subtask instead of by the episode"),
    ]),
    ("Advantages", &["credit", "run", "dataset"], vec![
        (Recomputed, "omega", ANY, Some("1.0"), "How much a step's own credit counts beside its episode's reward"),
        (Recomputed, "smoothed", Truth, Some("true"), "Take each step's credit smoothed, or as it was before"),
    ]),
    ("Rows", DATASET, vec![
        (Recomputed, "normalise", one_of(&[], Normalise::NAMES), Some("global"), "Which episodes are compared with each other: all of them, or those of the same task"),
        (Result, "message_form", one_of(&[], MessageForm::NAMES), Some("full"), "Messages with thinking and uncut results, or exactly as the published loader converts session files"),
    ]),

    ("Tasks", RUNNING, vec![
        (Result, "dataset_name", Text, None, "A dataset of the Hugging Face hub, owner/name or owner/name:config, instead of tasks"),
        (Result, "dataset_split", Text, Some("train"), "The dataset's split"),
        (Result, "prompt_field", Text, None, "The column with the question; without it known layouts are recognised by their columns"),
        (Result, "test_field", Text, None, "The column with the tests: a script, inputs and outputs; without it as above"),
        (Result, "entry_point_field", Text, None, "The column with the name of the function that tests are about"),
        (Result, "show_tests", Truth, Some("true"), "Whether the prompt quotes the tests a dataset publishes; built-in tasks never show theirs"),
        (Result, "check_references", Truth, Some("true"), "Whether a dataset's own solutions are tried first; a task whose check they do not pass is refused"),
        (Result, "tasks_sha256", Text, None, "What the tasks must be; without it what they are, so that a run is not continued with others"),
        (Result, "eval_size", Whole(0), Some("10"), "Tasks held out at least (built-in ones are held out by share alone), and evaluated at most"),
        (Result, "eval_split_ratio", Number(0.0, 0.999_999), Some("0.15"), "Share of the tasks held out at least"),
    ]),
    ("Agent", &["collect", "evaluate", "run", "distill"], vec![
        (Result, "student_topk", Whole(0), Some("5"), "The student's own candidates kept at each token it samples, or reads again"),
    ]),
    ("Agent", COLLECTING, vec![(Result, "agent_temperature", Number(0.0, 10.0), Some("1.0"), "Sampling temperature")]),
    ("Agent", EVALUATE, vec![(Result, "eval_temperature", Number(0.0, 10.0), Some("0.0"), "Sampling temperature; 0 takes the likeliest token")]),
    ("Agent", RUNNING, vec![
        (Result, "max_agent_turns", Whole(1), Some("15"), "Steps of an episode at most"),
        (Result, "max_turn_tokens", Whole(1), Some("2048"), "Tokens of one action at most"),
        (Result, "context_budget", Whole(1), None, "Tokens of an episode at most; without it what the model can take"),
        (Result, "episode_seconds", Whole(1), Some("1800"), "Time an episode may take, its tests not counted"),
        (Result, "instructions", Text, None, "Other instructions for the agent, as they are instead of in a file"),
        (Result, "tool_call_parser", Text, None, "The format of the model's tool calls, as `chat parse` names them; without it found out from the template"),
        (Result, "forced_calls", Whole(1), None, "Force a well-formed call in this many first turns, for models too small to write one; logprobs are absent there"),
        (Result, "forced_tools", Words, None, "The tools of forced calls, turn by turn and again from the first; without it any tool"),
        (Result, "forced_arguments", Words, None, "Regular expressions for their arguments, in the same way; without it what the tool's schema says"),
        (Result, "forced_text", Whole(1), Some("200"), "Characters a text in a forced call may have"),
        (Result, "terminal_timeout", Whole(1), Some("120"), "Seconds a command may run when the student does not say, and a file tool at most"),
        (Result, "tool_output_chars", Whole(100), Some("50000"), "Characters of a command's output the student sees; head and tail are kept, all of it is saved in the workspace"),
        (Result, "tool_result_chars", Whole(100), Some("100000"), "Characters any other tool may answer"),
        (Result, "turn_output_chars", Whole(100), Some("200000"), "Characters all answers to one turn may have together"),
        (Result, "episode_output_chars", Whole(100), Some("6000000"), "Characters of answers an episode records: half as shown, half whole texts of what was cut"),
        (Result, "tool_work_mb", Whole(1), Some("256"), "Text one call of a file tool may go through, in MiB"),
        (Result, "tool_memory_mb", Whole(1), Some("32"), "Output of commands that is held for an episode, in MiB"),
        (Result, "saved_results_mb", Whole(0), Some("32"), "Results an episode saves in its workspace because they are too long to show, in MiB"),
    ]),
    ("Reward", RUNNING, vec![
        (Result, "correctness_weight", Number(0.0, 1e6), Some("0.7"), "Weight of the hidden tests"),
        (Result, "efficiency_weight", Number(0.0, 1e6), Some("0.15"), "Weight of needing few steps"),
        (Result, "tool_usage_weight", Number(0.0, 1e6), Some("0.15"), "Weight of using the tools"),
        (Result, "verifier_seconds", Whole(1), Some("60"), "Processor time the hidden tests and the solution may take together; four times as long by the clock"),
        (Result, "reward_command", Text, None, "Shell command that reads the episode as JSON and prints its reward; runs as you, outside the sandbox"),
        (Result, "reward_seconds", Whole(1), Some("60"), "Time the reward command may take"),
    ]),
    ("Sandbox", RUNNING, vec![
        (Result, "sandbox", Accepts::OneOf(vec!["namespaces", "docker", "none"]), Some("namespaces"), "What keeps the agent's programs from this machine; `none` runs them unprotected"),
        (Result, "sandbox_network", Truth, Some("false"), "Whether the agent's programs may use the network"),
        (Result, "sandbox_python", Program, None, "The Python interpreter inside; without it python3 of the search path"),
        (Result, "sandbox_memory_mb", Whole(16), Some("2048"), "Memory"),
        (Result, "sandbox_processes", Whole(4), Some("128"), "Processes and threads at once"),
        (Result, "sandbox_file_mb", Whole(1), Some("256"), "Size of one file"),
        (Result, "sandbox_workspace_mb", Whole(1), Some("256"), "Size of all files of the workspace"),
        (Result, "sandbox_scratch_mb", Whole(1), Some("64"), "Size of all files in /tmp"),
        (Result, "sandbox_cpu_seconds", Whole(1), Some("600"), "Processor time of one process"),
        (Result, "sandbox_open_files", Whole(16), Some("1024"), "Open files of one process"),
        (Result, "sandbox_wall_seconds", Whole(1), Some("3600"), "Life of the sandbox"),
        (Result, "docker_image", Text, Some("python:3.12-slim"), "The image for sandbox docker; it must hold a shell and Python"),
        (Result, "docker_runtime", Text, None, "The engine's runtime for sandbox docker, such as gVisor's runsc; without it the engine's own"),
        (Manner, "docker_program", Program, Some("docker"), "The engine's client for sandbox docker"),
    ]),
    ("Run", RUNNING, vec![
        (Result, "seed", Whole(0), Some("0"), "What every draw comes from: the order of tasks, and what is sampled"),
        (Manner, "episode_retries", Whole(0), Some("2"), "How often an episode that failed by its server, its sandbox or its time is run again at once"),
    ]),
    ]
}

static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let of = |(section, commands, rows): (_, _, Vec<Row>)| {
        rows.into_iter().map(move |row| key(section, commands, row))
    };
    let student: Vec<Key> = rows().into_iter().flat_map(of).collect();
    let roles = ROLES.iter().filter(|(_, commands, _)| !commands.is_empty());
    let others: Vec<Key> = roles.flat_map(|role| of_role(role, &student)).collect();
    [student, others].concat()
});

fn key(section: &'static str, commands: &'static [&'static str], row: Row) -> Key {
    let (effect, name, accepts, default, about) = row;
    // Names live as long as the program, as the list does.
    let flag = name.replace('_', "-").leak();
    Key { name, flag, section, accepts, default, effect, about, commands }
}

/// A role's keys: those of the student's server behind its name, which say what differs, and its own.
fn of_role((role, commands, own): &Role, student: &[Key]) -> Vec<Key> {
    let section = role.name();
    let server = OF_SERVERS.iter().filter_map(|name| student.iter().find(|key| key.name == *name));
    let server = server.map(|key| {
        let about = format!("As {}, for the {section}; without it the student's", key.name);
        (key.effect, key.name, key.accepts.clone(), None, &*about.leak())
    });
    let rows = server.chain(own()).map(|(effect, name, accepts, default, about)| {
        (effect, &*format!("{section}_{name}").leak(), accepts, default, about)
    });
    rows.map(|row| key(section, commands, row)).collect()
}

/// Every key, in the order they are shown.
pub fn all() -> &'static [Key] {
    &KEYS
}

/// The keys of a command.
pub fn of(command: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.commands.contains(&command))
}

/// The key of that name that a file may have.
pub fn find(name: &str) -> Option<&'static Key> {
    in_files().find(|key| key.name == name)
}

fn in_files() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| key.effect != Call)
}

/// The key whose name is most like `name`, if any is much like it.
pub fn nearest(name: &str) -> Option<&'static str> {
    let distance = |key: &&Key| strsim::osa_distance(name, key.name);
    let nearest = in_files().min_by_key(distance)?;
    (distance(&nearest) <= 1 + name.len() / 3).then_some(nearest.name)
}

impl Accepts {
    /// Reads what was typed; none where it is no such thing at all.
    pub(super) fn read_words(&self, words: &[String]) -> Option<Value> {
        let last = words.last()?;
        match self {
            Text | Path | Program | Self::OneOf(_) => Some(Value::String(last.clone())),
            Words => Some(Value::Array(words.iter().cloned().map(Value::String).collect())),
            Whole(_) => last.parse().ok().map(Value::Integer),
            Number(..) | Positive => last.parse().ok().map(Value::Float),
            Truth | Switch => last.parse().ok().map(Value::Boolean),
        }
    }

    /// The value in the form the key keeps it, or the value as it was.
    pub(super) fn fit(&self, value: Value) -> std::result::Result<Value, Value> {
        let is_in = |number: f64| match self {
            Number(least, most) => (*least..=*most).contains(&number),
            _ => number > 0.0 && number.is_finite(),
        };
        match (self, value) {
            (Words, Value::String(word)) => Ok(Value::Array(vec![Value::String(word)])),
            (Number(..) | Positive, Value::Integer(number)) => self.fit(Value::Float(number as f64)),
            (accepts, value) => {
                let fits = match (accepts, &value) {
                    (Words, Value::Array(words)) => words.iter().all(Value::is_str),
                    (Text | Path | Program, Value::String(text)) => !text.is_empty(),
                    (Self::OneOf(names), Value::String(name)) => names.contains(&name.as_str()),
                    (Whole(least), Value::Integer(number)) => number >= least,
                    (Number(..) | Positive, Value::Float(number)) => is_in(*number),
                    (Truth | Switch, Value::Boolean(_)) => true,
                    _ => false,
                };
                if fits { Ok(value) } else { Err(value) }
            }
        }
    }

    /// What would do, for error messages.
    pub fn wanted(&self) -> String {
        match self {
            Text => "a text".to_owned(),
            Words => "a text or a list of texts".to_owned(),
            Path => "a path".to_owned(),
            Program => "a program's path or name".to_owned(),
            Whole(i64::MIN) => "a whole number".to_owned(),
            Whole(least) => format!("a whole number from {least} up"),
            Number(f64::MIN, f64::MAX) => "a number".to_owned(),
            Number(least, most) => format!("a number from {least} to {most}"),
            Positive => "a number above 0".to_owned(),
            Truth | Switch => "true or false".to_owned(),
            Self::OneOf(names) => format!("one of {}", names.join(", ")),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_its_key_can_have() {
        for key in all() {
            let Some(default) = key.default else { continue };
            let value = key.accepts.read_words(&[default.to_owned()]).map(|value| key.accepts.fit(value));
            assert!(matches!(value, Some(Ok(_))), "{} = {default}", key.name);
        }
    }

    #[test]
    fn a_misspelt_key_is_recognised() {
        assert_eq!(nearest("gruop_size"), Some("group_size"));
        assert_eq!(nearest("max_agent_turn"), Some("max_agent_turns"));
        assert_eq!(nearest("gruop"), Some("groups"));
        assert_eq!((nearest("colour_of_the_sky"), nearest("verbosity")), (None, None));
    }

    /// A key may have another default in another command, but not another meaning.
    #[test]
    fn a_name_is_one_key_and_fits_into_flags() {
        for (idx, key) in all().iter().enumerate() {
            assert!(key.name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_')), "{}", key.name);
            assert!(!key.about.ends_with('.') && key.about.chars().count() < 150, "{}", key.name);
            for other in all()[idx + 1..].iter().filter(|other| other.name == key.name) {
                assert_eq!(
                    (key.effect, key.accepts.wanted()),
                    (other.effect, other.accepts.wanted()),
                    "{}",
                    key.name
                );
                let both = key.commands.iter().find(|it| other.commands.contains(it));
                assert_eq!(both, None, "{} twice", key.name);
            }
        }
    }

    #[test]
    fn other_names_and_alternatives_are_of_keys_that_are() {
        for (command, flag, name, value) in ALIASES {
            let key = of(command).find(|key| key.name == name).unwrap();
            let read = |it: &str| key.accepts.fit(key.accepts.read_words(&[it.to_owned()]).unwrap());
            assert!(value.is_none_or(|it| read(it).is_ok()), "{flag}");
            assert!(of(command).all(|key| key.flag != flag), "{flag} is a key too");
        }
        for name in EITHER.iter().flat_map(|(a, b)| [a, b]) {
            assert!(all().iter().any(|key| key.name == *name), "{name}");
        }
    }

    #[test]
    fn a_role_has_the_keys_of_a_server_behind_its_name() {
        let keys: Vec<&Key> = of("distill").filter(|key| key.section == "judge").collect();
        let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
        let expected = [
            "judge_url",
            "judge_kind",
            "judge_model",
            "judge_tokenizer",
            "judge_api_key_env",
            "judge_api_key_file",
            "judge_timeout",
            "judge_patience",
            "judge_answer_tokens",
            "judge_temperature",
            "judge_structured",
            "judge_evaluates",
        ];
        assert_eq!(names, expected);
        for key in &keys {
            let student = all().iter().find(|it| format!("judge_{}", it.name) == key.name);
            if let Some(student) = student {
                assert_eq!((key.accepts.wanted(), key.effect), (student.accepts.wanted(), student.effect));
                assert_eq!(key.default, None, "{}", key.name);
            }
            assert_eq!(key.commands, DISTILLING);
        }
        assert_eq!(keys[8].flag, "judge-answer-tokens");
    }
}
