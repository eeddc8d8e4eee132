//! Every key there is: its shape, its default, what it means, and which commands use it.
//!
//! Flags, configuration files, `backsight config` and the record in a run directory are all made from
//! this one list.

use toml::Value;

/// What values a key can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
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
    /// True or false.
    Truth,
    /// One of these.
    OneOf(&'static [&'static str]),
}

/// What a key has an influence on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What is made. A run directory belongs to one value.
    Result,
    /// How much of it is made. What a run directory belongs to may grow.
    Extent,
    /// How it is made: where the server is, how much at once, when to stop.
    Manner,
}

/// One key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Its name in files.
    pub name: &'static str,
    /// What it is about, for `--help`.
    pub section: &'static str,
    /// What values it can have.
    pub shape: Shape,
    /// Its value when none is given, as it would be typed.
    pub default: Option<&'static str>,
    /// What it has an influence on.
    pub effect: Effect,
    /// What it means.
    pub about: &'static str,
    /// Who uses it.
    pub commands: &'static [&'static str],
}

/// The stages that have a section of their own in a run directory's files.
pub const STAGES: [&str; 5] = ["collect", "evaluate", "credit", "dataset", "score"];

const BOTH: &[&str] = &["collect", "evaluate"];
const COLLECT: &[&str] = &["collect"];
const EVALUATE: &[&str] = &["evaluate"];
const KINDS: &[&str] = &crate::model::kinds::NAMES;

/// A key that decides what is made.
const fn result(
    section: &'static str,
    commands: &'static [&'static str],
    name: &'static str,
    shape: Shape,
    default: Option<&'static str>,
    about: &'static str,
) -> Key {
    Key { name, section, shape, default, effect: Effect::Result, about, commands }
}

/// A key that decides how much is made.
const fn extent(
    section: &'static str,
    commands: &'static [&'static str],
    name: &'static str,
    default: Option<&'static str>,
    about: &'static str,
) -> Key {
    Key { name, section, shape: Whole(1), default, effect: Effect::Extent, about, commands }
}

/// A key that decides only how.
const fn manner(
    section: &'static str,
    name: &'static str,
    shape: Shape,
    default: Option<&'static str>,
    about: &'static str,
) -> Key {
    Key { name, section, shape, default, effect: Effect::Manner, about, commands: BOTH }
}

const MODEL: &str = "Model";
const TASKS: &str = "Tasks";
const AGENT: &str = "Agent";
const REWARD: &str = "Reward";
const SANDBOX: &str = "Sandbox";
const RUN: &str = "Run";

use Shape::{Number, OneOf, Path, Program, Text, Truth, Whole, Words};

/// All keys, in the order they are shown.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    manner(MODEL, "url", Words, None, "A server's address, with or without /v1; several share the work; none for kind embedded"),
    result(MODEL, BOTH, "kind", OneOf(KINDS), Some("auto"), "What the server is"),
    result(MODEL, BOTH, "model", Text, None, "The model to ask, as the server names it; any name if its only model's tokenizer agrees; for kind embedded from `model list` or a path"),
    result(MODEL, BOTH, "tokenizer", Path, None, "The model's tokenizer: a directory, or owner/name on the hub; else the directory the server names, if readable here; else model"),
    manner(MODEL, "api_key_env", Text, None, "Environment variable that holds the API key"),
    manner(MODEL, "api_key_file", Path, None, "File that holds the API key"),
    manner(MODEL, "timeout", Whole(1), Some("600"), "Seconds one request may take"),
    manner(MODEL, "patience", Whole(0), Some("300"), "Seconds every server may be gone before work on them ends"),

    result(TASKS, BOTH, "tasks", Words, None, "`builtin` (the default), names of built-in tasks, or files of tasks (JSON lines, Parquet)"),
    result(TASKS, BOTH, "dataset_name", Text, None, "A dataset of the Hugging Face hub, owner/name or owner/name:config, instead of tasks"),
    result(TASKS, BOTH, "dataset_split", Text, Some("train"), "The dataset's split"),
    result(TASKS, BOTH, "prompt_field", Text, None, "The column with the question; without it known layouts are recognised by their columns"),
    result(TASKS, BOTH, "test_field", Text, None, "The column with the tests: a script, inputs and outputs; without it as above"),
    result(TASKS, BOTH, "entry_point_field", Text, None, "The column with the name of the function that tests are about"),
    result(TASKS, BOTH, "show_tests", Truth, Some("true"), "Whether the prompt quotes the tests a dataset publishes; built-in tasks never show theirs"),
    result(TASKS, BOTH, "check_references", Truth, Some("true"), "Whether a dataset's own solutions are tried first; a task whose check they do not pass is refused"),
    result(TASKS, BOTH, "tasks_sha256", Text, None, "What the tasks must be; without it what they are, so that a run is not continued with others"),
    result(TASKS, BOTH, "eval_size", Whole(0), Some("10"), "Tasks held out at least (built-in ones are held out by share alone), and evaluated at most"),
    result(TASKS, BOTH, "eval_split_ratio", Number(0.0, 0.999_999), Some("0.15"), "Share of the tasks held out at least"),
    result(TASKS, EVALUATE, "eval_tasks", OneOf(&["held-out", "all"]), Some("held-out"), "Evaluate the held-out tasks, or every task"),
    extent(TASKS, COLLECT, "groups", None, "How many groups to collect; without it one for each training task"),
    result(TASKS, COLLECT, "group_size", Whole(1), Some("4"), "Episodes of one task that are compared with each other"),
    extent(TASKS, EVALUATE, "attempts", Some("1"), "Attempts at each task; with several, pass@k is told"),

    result(AGENT, BOTH, "max_agent_turns", Whole(1), Some("15"), "Steps of an episode at most"),
    result(AGENT, COLLECT, "agent_temperature", Number(0.0, 10.0), Some("1.0"), "Sampling temperature"),
    result(AGENT, EVALUATE, "eval_temperature", Number(0.0, 10.0), Some("0.0"), "Sampling temperature; 0 takes the likeliest token"),
    result(AGENT, BOTH, "max_turn_tokens", Whole(1), Some("2048"), "Tokens of one action at most"),
    result(AGENT, BOTH, "context_budget", Whole(1), None, "Tokens of an episode at most; without it what the model can take"),
    result(AGENT, BOTH, "student_topk", Whole(0), Some("5"), "The student's own candidates kept at each sampled token"),
    result(AGENT, BOTH, "episode_seconds", Whole(1), Some("1800"), "Time an episode may take, its tests not counted"),
    result(AGENT, BOTH, "system_prompt", Path, None, "File with other instructions for the agent"),
    result(AGENT, BOTH, "instructions", Text, None, "Other instructions for the agent, as they are instead of in a file"),
    result(AGENT, BOTH, "template", Path, None, "Chat template file to use instead of the model's own"),
    result(AGENT, BOTH, "tool_text", OneOf(&["auto", "hermes"]), Some("auto"), "Write tools as text; auto does so where the template leaves them out"),
    result(AGENT, BOTH, "tool_call_parser", Text, None, "The format of the model's tool calls, as `chat parse` names them; without it found out from the template"),
    result(AGENT, BOTH, "forced_calls", Whole(1), None, "Force a well-formed call in this many first turns, for models too small to write one; logprobs are absent there"),
    result(AGENT, BOTH, "forced_tools", Words, None, "The tools of forced calls, turn by turn and again from the first; without it any tool"),
    result(AGENT, BOTH, "forced_arguments", Words, None, "Regular expressions for their arguments, in the same way; without it what the tool's schema says"),
    result(AGENT, BOTH, "forced_text", Whole(1), Some("200"), "Characters a text in a forced call may have"),
    result(AGENT, BOTH, "terminal_timeout", Whole(1), Some("120"), "Seconds a command may run when the student does not say, and a file tool at most"),
    result(AGENT, BOTH, "tool_output_chars", Whole(100), Some("50000"), "Characters of a command's output the student sees; head and tail are kept, all of it is saved in the workspace"),
    result(AGENT, BOTH, "tool_result_chars", Whole(100), Some("100000"), "Characters any other tool may answer"),
    result(AGENT, BOTH, "turn_output_chars", Whole(100), Some("200000"), "Characters all answers to one turn may have together"),
    result(AGENT, BOTH, "episode_output_chars", Whole(100), Some("6000000"), "Characters of answers an episode records: half as shown, half whole texts of what was cut"),
    result(AGENT, BOTH, "tool_work_mb", Whole(1), Some("256"), "Text one call of a file tool may go through, in MiB"),
    result(AGENT, BOTH, "tool_memory_mb", Whole(1), Some("32"), "Output of commands that is held for an episode, in MiB"),
    result(AGENT, BOTH, "saved_results_mb", Whole(0), Some("32"), "Results an episode saves in its workspace because they are too long to show, in MiB"),

    result(REWARD, BOTH, "correctness_weight", Number(0.0, 1e6), Some("0.7"), "Weight of the hidden tests"),
    result(REWARD, BOTH, "efficiency_weight", Number(0.0, 1e6), Some("0.15"), "Weight of needing few steps"),
    result(REWARD, BOTH, "tool_usage_weight", Number(0.0, 1e6), Some("0.15"), "Weight of using the tools"),
    result(REWARD, BOTH, "verifier_seconds", Whole(1), Some("60"), "Processor time the hidden tests and the solution may take together; four times as long by the clock"),
    result(REWARD, BOTH, "reward_command", Text, None, "Shell command that reads the episode as JSON and prints its reward; runs as you, outside the sandbox"),
    result(REWARD, BOTH, "reward_seconds", Whole(1), Some("60"), "Time the reward command may take"),

    result(SANDBOX, BOTH, "sandbox", OneOf(&["namespaces", "docker", "none"]), Some("namespaces"), "What keeps the agent's programs from this machine; `none` runs them unprotected"),
    result(SANDBOX, BOTH, "sandbox_network", Truth, Some("false"), "Whether the agent's programs may use the network"),
    result(SANDBOX, BOTH, "sandbox_python", Program, None, "The Python interpreter inside; without it python3 of the search path"),
    result(SANDBOX, BOTH, "sandbox_memory_mb", Whole(16), Some("2048"), "Memory"),
    result(SANDBOX, BOTH, "sandbox_processes", Whole(4), Some("128"), "Processes and threads at once"),
    result(SANDBOX, BOTH, "sandbox_file_mb", Whole(1), Some("256"), "Size of one file"),
    result(SANDBOX, BOTH, "sandbox_workspace_mb", Whole(1), Some("256"), "Size of all files of the workspace"),
    result(SANDBOX, BOTH, "sandbox_scratch_mb", Whole(1), Some("64"), "Size of all files in /tmp"),
    result(SANDBOX, BOTH, "sandbox_cpu_seconds", Whole(1), Some("600"), "Processor time of one process"),
    result(SANDBOX, BOTH, "sandbox_open_files", Whole(16), Some("1024"), "Open files of one process"),
    result(SANDBOX, BOTH, "sandbox_wall_seconds", Whole(1), Some("3600"), "Life of the sandbox"),
    result(SANDBOX, BOTH, "docker_image", Text, Some("python:3.12-slim"), "The image for sandbox docker; it must hold a shell and Python"),
    result(SANDBOX, BOTH, "docker_runtime", Text, None, "The engine's runtime for sandbox docker, such as gVisor's runsc; without it the engine's own"),
    manner(SANDBOX, "docker_program", Program, Some("docker"), "The engine's client for sandbox docker"),

    result(RUN, BOTH, "seed", Whole(0), Some("0"), "What the order of tasks and every draw come from"),
    result(RUN, BOTH, "now", Text, None, "The time templates may print: seconds since 1970, or like 2026-01-31T12:00:00Z; without it when the run began"),
    manner(RUN, "concurrency", Whole(1), None, "Episodes at once; without it 16, or 4 for kind embedded"),
    manner(RUN, "episode_retries", Whole(0), Some("2"), "How often an episode that failed by its server, its sandbox or its time is run again at once"),
    manner(RUN, "max_requests", Whole(0), None, "Stop this process after so many requests"),
    manner(RUN, "max_tokens", Whole(0), None, "Stop this process after so many tokens, sent and sampled"),
    manner(RUN, "weights_check_answers", Whole(1), Some("200"), "Measure the server's weights again after so many answers"),
    manner(RUN, "weights_check_seconds", Whole(1), Some("60"), "Measure them again after so many seconds"),
    manner(RUN, "new_weights", OneOf(&["stop", "continue"]), Some("stop"), "What to do when the server has new weights: end the run, or go on with them and say which gave what"),
];

/// The key whose name is most like `name`, if any is much like it.
pub fn nearest(name: &str) -> Option<&'static str> {
    let distance = |key: &&Key| strsim::osa_distance(name, key.name);
    let nearest = KEYS.iter().min_by_key(distance)?;
    (distance(&nearest) <= 1 + name.len() / 3).then_some(nearest.name)
}

/// The key of that name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Key {
    /// Its name as a flag, without the dashes in front.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Whether `command` uses it.
    pub fn is_used_by(&self, command: &str) -> bool {
        self.commands.contains(&command)
    }
}

impl Shape {
    /// Reads what was typed; none where it is no such thing at all.
    pub(super) fn read_words(self, words: &[String]) -> Option<Value> {
        let last = words.last()?;
        match self {
            Self::Text | Self::Path | Self::Program | Self::OneOf(_) => Some(Value::String(last.clone())),
            Self::Words => Some(Value::Array(words.iter().cloned().map(Value::String).collect())),
            Self::Whole(_) => last.parse().ok().map(Value::Integer),
            Self::Number(..) => last.parse().ok().map(Value::Float),
            Self::Truth => last.parse().ok().map(Value::Boolean),
        }
    }

    /// The value in the form the key keeps it, or the value as it was.
    pub(super) fn fit(self, value: Value) -> Result<Value, Value> {
        match (self, value) {
            (Self::Words, Value::String(word)) => Ok(Value::Array(vec![Value::String(word)])),
            (Self::Words, Value::Array(words)) if words.iter().all(Value::is_str) => Ok(Value::Array(words)),
            (Self::Text | Self::Path | Self::Program, Value::String(text)) if !text.is_empty() => {
                Ok(Value::String(text))
            }
            (Self::OneOf(names), Value::String(name)) if names.contains(&name.as_str()) => {
                Ok(Value::String(name))
            }
            (Self::Whole(least), Value::Integer(number)) if number >= least => Ok(Value::Integer(number)),
            (Self::Number(..), Value::Integer(number)) => self.fit(Value::Float(number as f64)),
            (Self::Number(least, most), Value::Float(number)) if (least..=most).contains(&number) => {
                Ok(Value::Float(number))
            }
            (Self::Truth, Value::Boolean(truth)) => Ok(Value::Boolean(truth)),
            (_, value) => Err(value),
        }
    }

    /// What would do, for error messages.
    pub fn wanted(self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Words => "a text or a list of texts".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::Program => "a program's path or name".to_owned(),
            Self::Whole(least) => format!("a whole number from {least} up"),
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Truth => "true or false".to_owned(),
            Self::OneOf(names) => format!("one of {}", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_its_key_can_have() {
        for key in KEYS {
            let Some(default) = key.default else { continue };
            let value = key.shape.read_words(&[default.to_owned()]).map(|value| key.shape.fit(value));
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

    #[test]
    fn names_are_unique_and_fit_into_flags() {
        for (idx, key) in KEYS.iter().enumerate() {
            assert!(key.name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_')), "{}", key.name);
            assert_eq!(KEYS.iter().position(|it| it.name == key.name), Some(idx), "{} twice", key.name);
            assert!(!key.about.ends_with('.') && key.about.chars().count() < 140, "{}", key.name);
        }
    }
}
