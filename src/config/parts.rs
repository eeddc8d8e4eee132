//! What one part of a command needs of the configuration, as the types of that part.
//!
//! Owns which keys those are. A structure that stands here is read with [`Config::read`]: a field is a key of the same
//! name.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::{Config, ConfigError};
use crate::agent::options::{ForcedCalls, LoopOptions};
use crate::agent::reward::{CustomReward, RewardRule, RewardWeights};
use crate::agent::tools::ToolLimits;
use crate::model::secret::Secret;
use crate::model::{Error, Settings, Wanted, kinds};
use crate::tasks::dataset::DatasetOptions;
use crate::tasks::layout::Named;
use crate::tasks::source::TaskSource;
use crate::tasks::split::SplitOptions;
use crate::wire::named;
use backsight_core::named;
use backsight_sandbox::{DockerConfig, Limits, SandboxConfig, SandboxKind};

/// What happens when a server has new weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewWeights {
    /// The run ends.
    #[default]
    Stop,
    /// The run goes on with them: beside a trainer they are what is waited for.
    Continue,
}

named!(NewWeights: Stop = "stop", Continue = "continue");

/// How messages are written into rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageForm {
    /// With thinking and uncut results, tool arguments as strings.
    Full,
    /// As the published loader converts them.
    Published,
}

named!(MessageForm: Full = "full", Published = "published");

/// The model that is asked, and how.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ModelPart {
    /// Its servers.
    #[serde(default)]
    pub url: Vec<String>,
    /// What they are.
    pub kind: String,
    /// The model's name.
    pub model: Option<String>,
    /// Where its tokenizer is.
    pub tokenizer: Option<PathBuf>,
    /// The variable that holds the key.
    pub api_key_env: Option<String>,
    /// The file that holds the key.
    pub api_key_file: Option<PathBuf>,
    /// Seconds one request may take.
    pub timeout: u64,
    /// Seconds every server may be gone.
    pub patience: u64,
    /// Requests at once at most.
    pub concurrency: Option<usize>,
    /// Answers after which weights are measured again.
    pub weights_check_answers: u64,
    /// Seconds after which weights are measured again.
    pub weights_check_seconds: u64,
    /// What a change of them means.
    #[serde(with = "named")]
    pub new_weights: NewWeights,
    /// When to stop.
    pub max_requests: Option<u64>,
    /// When to stop.
    pub max_tokens: Option<u64>,
}

impl ModelPart {
    /// The model that these keys name.
    pub fn wanted(self) -> Result<Wanted, Error> {
        let key = Secret::find(self.api_key_env.as_deref(), self.api_key_file.as_deref())?;
        let mut settings = Settings { timeout: Duration::from_secs(self.timeout), ..Settings::default() };
        settings.pool.patience = Duration::from_secs(self.patience);
        settings.pool.concurrency = self.concurrency.unwrap_or(settings.pool.concurrency);
        let (urls, kind, model, tokenizer) = (self.url, kinds::named(&self.kind), self.model, self.tokenizer);
        Ok(Wanted { urls, kind, model, tokenizer, key, settings, ..Wanted::default() })
    }
}

/// Where tasks come from; the built-in ones when nothing is named.
pub fn sources(config: &Config) -> Result<Vec<TaskSource>, ConfigError> {
    let names: Vec<String> = config.get("tasks")?;
    Ok(match (config.get("dataset_name")?, names.as_slice()) {
        (Some(name), _) => vec![TaskSource::Hub { name, split: config.get("dataset_split")? }],
        (None, []) => vec![TaskSource::Builtin(None)],
        (None, names) => names.iter().map(|name| TaskSource::parse(name)).collect(),
    })
}

/// How rows become tasks.
pub fn dataset(config: &Config) -> Result<DatasetOptions, ConfigError> {
    let named = Named {
        prompt: config.get("prompt_field")?,
        test: config.get("test_field")?,
        entry_point: config.get("entry_point_field")?,
    };
    let needs_tests = config.get::<Option<String>>("reward_command")?.is_none();
    Ok(DatasetOptions { named, show_tests: config.get("show_tests")?, needs_tests })
}

/// How tasks are split.
pub fn split(config: &Config) -> Result<SplitOptions, ConfigError> {
    let (eval_size, eval_split_ratio) = (config.get("eval_size")?, config.get("eval_split_ratio")?);
    Ok(SplitOptions { eval_size, eval_split_ratio, seed: config.get("seed")? })
}

/// How the agent is spoken to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SpeechPart {
    /// File with other instructions.
    pub system_prompt: Option<PathBuf>,
    /// Other instructions themselves.
    pub instructions: Option<String>,
    /// File with another chat template.
    pub template: Option<PathBuf>,
    /// `auto`, `none` or a rendering's name.
    pub tool_text: String,
    /// The format of tool calls.
    pub tool_call_parser: Option<String>,
}

/// What the loop is allowed, with other instructions where there are any.
pub fn agent(config: &Config, instructions: Option<String>) -> Result<LoopOptions, ConfigError> {
    let forced_calls = match config.get("forced_calls")? {
        None => None,
        Some(turns) => Some(ForcedCalls {
            turns,
            max_text: config.get("forced_text")?,
            tools: config.get("forced_tools")?,
            arguments: config.get("forced_arguments")?,
        }),
    };
    Ok(LoopOptions {
        max_agent_turns: config.get("max_agent_turns")?,
        agent_temperature: match config.get("agent_temperature")? {
            Some(temperature) => temperature,
            None => config.get("eval_temperature")?,
        },
        student_topk: config.get("student_topk")?,
        max_turn_tokens: config.get("max_turn_tokens")?,
        context_budget: config.get("context_budget")?,
        turn_output_chars: config.get("turn_output_chars")?,
        episode_output_chars: config.get("episode_output_chars")?,
        episode_time: seconds(config, "episode_seconds")?,
        verifier_time: seconds(config, "verifier_seconds")?,
        forced_calls,
        system_prompt: instructions.or(LoopOptions::default().system_prompt),
        seed: config.get("seed")?,
    })
}

/// What tools may take and say.
pub fn tools(config: &Config) -> Result<ToolLimits, ConfigError> {
    let terminal_timeout = seconds(config, "terminal_timeout")?;
    Ok(ToolLimits {
        terminal_timeout,
        max_timeout: ToolLimits::default().max_timeout.max(terminal_timeout),
        output_chars: config.get("tool_output_chars")?,
        result_chars: config.get("tool_result_chars")?,
        work_bytes: mib(config, "tool_work_mb")?,
        memory: usize::try_from(mib(config, "tool_memory_mb")?).unwrap_or(usize::MAX),
        saved_bytes: mib(config, "saved_results_mb")?,
    })
}

/// How an episode is rewarded: the weights, and the user's own command if there is one.
pub fn reward(config: &Config) -> Result<RewardRule, ConfigError> {
    let weights = RewardWeights {
        correctness: config.get("correctness_weight")?,
        efficiency: config.get("efficiency_weight")?,
        tool_usage: config.get("tool_usage_weight")?,
    };
    let (command, timeout) =
        (config.get::<Option<String>>("reward_command")?, seconds(config, "reward_seconds")?);
    Ok(RewardRule { weights, custom: command.map(|command| CustomReward { command, timeout }) })
}

/// What keeps an episode apart from the machine: what every sandbox is made from.
pub fn sandbox(config: &Config) -> Result<SandboxConfig, ConfigError> {
    Ok(SandboxConfig {
        kind: SandboxKind::from_name(&config.get::<String>("sandbox")?).unwrap_or_default(),
        limits: Limits {
            memory: mib(config, "sandbox_memory_mb")?,
            processes: config.get("sandbox_processes")?,
            file_size: mib(config, "sandbox_file_mb")?,
            cpu_seconds: config.get("sandbox_cpu_seconds")?,
            open_files: config.get("sandbox_open_files")?,
            workspace: mib(config, "sandbox_workspace_mb")?,
            scratch: mib(config, "sandbox_scratch_mb")?,
            wall_seconds: config.get("sandbox_wall_seconds")?,
        },
        network: config.get("sandbox_network")?,
        python: config.get("sandbox_python")?,
        init: None,
        docker: DockerConfig {
            program: config.get("docker_program")?,
            image: config.get("docker_image")?,
            runtime: config.get("docker_runtime")?,
        },
    })
}

/// The time a key gives in seconds.
pub fn seconds(config: &Config, key: &str) -> Result<Duration, ConfigError> {
    config.get(key).map(Duration::from_secs)
}

fn mib(config: &Config, key: &str) -> Result<u64, ConfigError> {
    config.get::<u64>(key).map(|it| it.saturating_mul(1 << 20))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::config::Typed;

    fn config(command: &str, flags: &[(&'static str, &str)]) -> Config {
        let typed: Typed = flags.iter().map(|(key, word)| (*key, vec![(*word).to_owned()])).collect();
        Config::resolve(command, None, &typed).unwrap()
    }

    #[test]
    fn defaults_are_those_of_the_parts_they_are_for() {
        for command in ["collect", "evaluate"] {
            let config = config(command, &[]);
            assert_eq!(sandbox(&config), Ok(SandboxConfig::default()));
            assert_eq!(tools(&config), Ok(ToolLimits::default()));
            assert_eq!(reward(&config), Ok(RewardRule::default()));
            assert_eq!(split(&config), Ok(SplitOptions::default()));
            assert_eq!(dataset(&config), Ok(DatasetOptions::default()));
            assert_eq!(config.get("seed"), Ok(0));
        }
        let evaluated = LoopOptions { agent_temperature: 0.0, ..LoopOptions::default() };
        assert_eq!(agent(&config("collect", &[]), None), Ok(LoopOptions::default()));
        assert_eq!(agent(&config("evaluate", &[]), None), Ok(evaluated));
        assert_eq!(config("collect", &[]).get("group_size"), Ok(4));
        assert_eq!(config("evaluate", &[]).get("attempts"), Ok(1));
    }

    #[test]
    fn tasks_come_from_one_place() {
        let sources = |flags: &[(&'static str, &str)]| sources(&config("collect", flags)).unwrap();
        assert_eq!(sources(&[]), vec![TaskSource::Builtin(None)]);
        assert_eq!(sources(&[("tasks", "flatten")]), vec![TaskSource::Builtin(Some("flatten".into()))]);
        let hub = TaskSource::Hub { name: "a/b".into(), split: "train".into() };
        assert_eq!(sources(&[("dataset_name", "a/b")]), vec![hub]);
        let typed =
            [("dataset_name", "a/b"), ("tasks", "x.jsonl")].map(|(key, word)| (key, vec![word.to_owned()]));
        let both = Config::resolve("collect", None, &typed.into()).unwrap_err();
        assert_eq!(both.help, "give --tasks or --dataset-name, not both");
    }

    #[test]
    fn a_longer_terminal_timeout_is_not_cut_by_the_longest() {
        let tools = tools(&config("collect", &[("terminal_timeout", "900")])).unwrap();
        assert_eq!(
            (tools.terminal_timeout, tools.max_timeout),
            (Duration::from_secs(900), Duration::from_secs(900))
        );
    }
}
