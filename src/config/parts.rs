//! What one part of a command needs of the configuration, as types.
//!
//! Each structure is read with [`Config::read`](super::Config::read); a field is a key of the same name.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

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

const MIB: u64 = 1 << 20;

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

/// The tasks, and how they are split.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TaskPart {
    #[serde(default)]
    tasks: Vec<String>,
    dataset_name: Option<String>,
    dataset_split: String,
    prompt_field: Option<String>,
    test_field: Option<String>,
    entry_point_field: Option<String>,
    show_tests: bool,
    /// Whether known solutions are tried before anything is paid for.
    pub check_references: bool,
    /// What the tasks must be.
    pub tasks_sha256: Option<String>,
    /// Tasks held out at least, and evaluated at most.
    pub eval_size: usize,
    eval_split_ratio: f64,
    reward_command: Option<String>,
    seed: u64,
}

impl TaskPart {
    /// Where tasks come from; the built-in ones when nothing is named.
    pub fn sources(&self) -> Vec<TaskSource> {
        match (&self.dataset_name, self.tasks.as_slice()) {
            (Some(name), _) => {
                vec![TaskSource::Hub { name: name.clone(), split: self.dataset_split.clone() }]
            }
            (None, []) => vec![TaskSource::Builtin(None)],
            (None, names) => names.iter().map(|name| TaskSource::parse(name)).collect(),
        }
    }

    /// How rows become tasks.
    pub fn options(&self) -> DatasetOptions {
        let named = Named {
            prompt: self.prompt_field.clone(),
            test: self.test_field.clone(),
            entry_point: self.entry_point_field.clone(),
        };
        DatasetOptions { named, show_tests: self.show_tests, needs_tests: self.reward_command.is_none() }
    }

    /// How tasks are split.
    pub fn split(&self) -> SplitOptions {
        let Self { eval_size, eval_split_ratio, seed, .. } = *self;
        SplitOptions { eval_size, eval_split_ratio, seed }
    }
}

/// What an episode may do and take.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct AgentPart {
    max_agent_turns: usize,
    /// Tokens of one action at most.
    pub max_turn_tokens: usize,
    context_budget: Option<usize>,
    student_topk: usize,
    episode_seconds: u64,
    verifier_seconds: u64,
    forced_calls: Option<usize>,
    forced_text: usize,
    #[serde(default)]
    forced_tools: Vec<String>,
    #[serde(default)]
    forced_arguments: Vec<String>,
    seed: u64,
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
    terminal_timeout: u64,
    tool_output_chars: usize,
    tool_result_chars: usize,
    turn_output_chars: usize,
    episode_output_chars: usize,
    tool_work_mb: u64,
    tool_memory_mb: u64,
    saved_results_mb: u64,
}

impl AgentPart {
    /// What the loop is allowed, with the instructions that `system_prompt` names where it names any.
    pub fn options(&self, agent_temperature: f64, system_prompt: Option<String>) -> LoopOptions {
        let forced = |turns| ForcedCalls {
            turns,
            max_text: self.forced_text,
            tools: self.forced_tools.clone(),
            arguments: self.forced_arguments.clone(),
        };
        let default = LoopOptions::default();
        LoopOptions {
            max_agent_turns: self.max_agent_turns,
            agent_temperature,
            student_topk: self.student_topk,
            max_turn_tokens: self.max_turn_tokens,
            context_budget: self.context_budget,
            turn_output_chars: self.turn_output_chars,
            episode_output_chars: self.episode_output_chars,
            episode_time: Duration::from_secs(self.episode_seconds),
            verifier_time: Duration::from_secs(self.verifier_seconds),
            forced_calls: self.forced_calls.map(forced),
            system_prompt: system_prompt.or(default.system_prompt),
            seed: self.seed,
        }
    }

    /// What tools may take and say.
    pub fn tools(&self) -> ToolLimits {
        let default = ToolLimits::default();
        let terminal_timeout = Duration::from_secs(self.terminal_timeout);
        ToolLimits {
            terminal_timeout,
            max_timeout: default.max_timeout.max(terminal_timeout),
            output_chars: self.tool_output_chars,
            result_chars: self.tool_result_chars,
            work_bytes: self.tool_work_mb.saturating_mul(MIB),
            memory: usize::try_from(self.tool_memory_mb.saturating_mul(MIB)).unwrap_or(usize::MAX),
            saved_bytes: self.saved_results_mb.saturating_mul(MIB),
        }
    }
}

/// How an episode is rewarded.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RewardPart {
    correctness_weight: f64,
    efficiency_weight: f64,
    tool_usage_weight: f64,
    reward_command: Option<String>,
    reward_seconds: u64,
}

impl RewardPart {
    /// The weights, and the user's own command if there is one.
    pub fn rule(&self) -> RewardRule {
        let timeout = Duration::from_secs(self.reward_seconds);
        let weights = RewardWeights {
            correctness: self.correctness_weight,
            efficiency: self.efficiency_weight,
            tool_usage: self.tool_usage_weight,
        };
        let custom = |command| CustomReward { command, timeout };
        RewardRule { weights, custom: self.reward_command.clone().map(custom) }
    }
}

/// What keeps an episode apart from the machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SandboxPart {
    sandbox: String,
    sandbox_network: bool,
    sandbox_python: Option<PathBuf>,
    sandbox_memory_mb: u64,
    sandbox_processes: u64,
    sandbox_file_mb: u64,
    sandbox_workspace_mb: u64,
    sandbox_scratch_mb: u64,
    sandbox_cpu_seconds: u64,
    sandbox_open_files: u64,
    sandbox_wall_seconds: u64,
    docker_image: String,
    docker_runtime: Option<String>,
    docker_program: PathBuf,
}

impl SandboxPart {
    /// What every sandbox is made from.
    pub fn sandbox(&self) -> SandboxConfig {
        SandboxConfig {
            kind: SandboxKind::from_name(&self.sandbox).unwrap_or_default(),
            limits: self.limits(),
            network: self.sandbox_network,
            python: self.sandbox_python.clone(),
            init: None,
            docker: DockerConfig {
                program: self.docker_program.clone(),
                image: self.docker_image.clone(),
                runtime: self.docker_runtime.clone(),
            },
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            memory: self.sandbox_memory_mb.saturating_mul(MIB),
            processes: self.sandbox_processes,
            file_size: self.sandbox_file_mb.saturating_mul(MIB),
            cpu_seconds: self.sandbox_cpu_seconds,
            open_files: self.sandbox_open_files,
            workspace: self.sandbox_workspace_mb.saturating_mul(MIB),
            scratch: self.sandbox_scratch_mb.saturating_mul(MIB),
            wall_seconds: self.sandbox_wall_seconds,
        }
    }
}

/// How a run is gone about.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RunPart {
    /// The run directory.
    pub run: PathBuf,
    /// What every draw comes from.
    pub seed: u64,
    /// The time templates may print.
    pub now: Option<String>,
    /// How often an episode that failed is run again.
    pub episode_retries: u32,
}

/// What only `collect` needs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CollectPart {
    /// How many groups; one for each task when absent.
    pub groups: Option<usize>,
    /// Episodes of a group.
    pub group_size: usize,
    /// The sampling temperature.
    pub agent_temperature: f64,
}

/// What only `evaluate` needs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct EvaluatePart {
    /// `held-out` or `all`.
    pub eval_tasks: String,
    /// Attempts at each task.
    pub attempts: usize,
    /// The sampling temperature.
    pub eval_temperature: f64,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::config::{Config, Typed};

    fn read<T: DeserializeOwned>(command: &str, flags: &[(&'static str, &str)]) -> T {
        let typed: Typed = flags.iter().map(|(key, word)| (*key, vec![(*word).to_owned()])).collect();
        Config::resolve(command, None, &typed).unwrap().read().unwrap()
    }

    #[test]
    fn defaults_are_those_of_the_parts_they_are_for() {
        for command in ["collect", "evaluate"] {
            assert_eq!(read::<SandboxPart>(command, &[]).sandbox(), SandboxConfig::default());
            assert_eq!(read::<AgentPart>(command, &[]).tools(), ToolLimits::default());
            assert_eq!(read::<RewardPart>(command, &[]).rule(), RewardRule::default());
            assert_eq!(read::<AgentPart>(command, &[]).options(1.0, None), LoopOptions::default());
            assert_eq!(read::<TaskPart>(command, &[]).split(), SplitOptions::default());
            assert_eq!(read::<TaskPart>(command, &[]).options(), DatasetOptions::default());
            assert_eq!(read::<RunPart>(command, &[]).seed, 0);
        }
        assert_eq!(read::<CollectPart>("collect", &[]).group_size, 4);
        assert_eq!(read::<EvaluatePart>("evaluate", &[]).attempts, 1);
    }

    #[test]
    fn tasks_come_from_one_place() {
        let sources = |flags: &[(&'static str, &str)]| read::<TaskPart>("collect", flags).sources();
        assert_eq!(sources(&[]), vec![TaskSource::Builtin(None)]);
        assert_eq!(sources(&[("tasks", "flatten")]), vec![TaskSource::Builtin(Some("flatten".into()))]);
        let hub = TaskSource::Hub { name: "a/b".into(), split: "train".into() };
        assert_eq!(sources(&[("dataset_name", "a/b")]), vec![hub]);
        let typed =
            [("dataset_name", "a/b"), ("tasks", "x.jsonl")].map(|(key, word)| (key, vec![word.to_owned()]));
        let both = Config::resolve("collect", None, &typed.into()).unwrap_err();
        assert_eq!(both.help(), "give --tasks or --dataset-name, not both");
    }

    #[test]
    fn a_longer_terminal_timeout_is_not_cut_by_the_longest() {
        let tools = read::<AgentPart>("collect", &[("terminal_timeout", "900")]).tools();
        assert_eq!(
            (tools.terminal_timeout, tools.max_timeout),
            (Duration::from_secs(900), Duration::from_secs(900))
        );
    }
}
