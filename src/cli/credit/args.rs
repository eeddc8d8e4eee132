//! What can be typed after `backsight credit`, and what the environment fills in.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args as ClapArgs, ValueEnum};

use crate::cli::args::{ToolTextName, finite, inputs, placement};
use crate::cli::failure::Failure;
use crate::cli::server::ServerArgs;
use crate::model::secret::Secret;
use crate::store::episodes::run_dir_for;
use crate::store::hindsight::Settings;
use backsight_core::credit::hcapo::{Params, Ratio, Smoothing};
use backsight_core::lens::{self, Placement};

pub(in crate::cli) const EXAMPLES: &str = "\
Every action is re-read by a model that is told the outcome; what it then thinks of the action's tokens becomes the
step's credit (HCAPO): hindsight_scores.json beside each episode, and hindsight_tokens.json with every token's logprob.
Complete files are left alone and partial ones completed; another lens or placement makes files of its own beside them.
Every paid answer is kept in the run directory, or in INPUT_DIR/.backsight; the same command continues where it stopped. FSWE_AGENT_API_URL, FSWE_AGENT_MODEL and FSWE_AGENT_API_KEY stand in for
--url, --model and --api-key.

Examples:
  backsight credit --run runs/collect --url http://localhost:30000
  backsight credit --input-dir trajectories --dry-run
  backsight credit --input-dir trajectories --url http://localhost:30000 --model Qwen/Qwen3-4B
  backsight credit --input-dir trajectories --url http://localhost:8000 --system system.txt --tools tools.json \\
      --placement last --ratio lift
  backsight credit --episodes talks.jsonl --kind embedded --tool-text hermes
  backsight credit --input-dir trajectories --recompute --gamma 0.9 --smoothing paper";

/// What only a new measurement could heed.
const MEASURING: [&str; 20] = [
    "url",
    "kind",
    "model",
    "tokenizer",
    "api_key",
    "api_key_env",
    "api_key_file",
    "hindsight_template",
    "system",
    "tools",
    "vars",
    "template",
    "tool_text",
    "now",
    "tool_result_chars",
    "min_reward",
    "batch_size",
    "max_context",
    "max_requests",
    "max_tokens",
];

#[derive(Clone, Debug, ClapArgs)]
pub(in crate::cli) struct CreditArgs {
    /// Directory with episodes: a run directory, episode_*/ directories, or .json and .jsonl files [default: those of --run, else trajectories]
    #[arg(long, value_name = "DIR")]
    pub(super) input_dir: Option<PathBuf>,
    /// Files with episodes, instead of a directory
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "input_dir")]
    pub(super) episodes: Vec<PathBuf>,
    /// A server's address, with or without /v1; several share the work; none for --kind embedded
    #[arg(long, visible_alias = "api-base")]
    pub(super) url: Vec<String>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// The API key itself; it is never stored or shown, but --api-key-env hides it from `ps` too
    #[arg(long, value_name = "KEY", value_parser = secret)]
    api_key: Option<Secret>,
    #[command(flatten)]
    pub(super) lens: LensArgs,
    #[command(flatten)]
    pub(super) method: MethodArgs,
    /// Skip episodes with a smaller reward
    #[arg(long, value_name = "R", default_value_t = 0.0, value_parser = finite, allow_negative_numbers = true)]
    pub(super) min_reward: f64,
    /// At most this many requests of one episode at once; 0 is no bound
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Shorten longer sequences, whole messages at a time; without it the server's own context counts
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    max_context: Option<u64>,
    /// Score again what is complete; answers that were paid for before are used again, and a file stays until one at least as complete is made
    #[arg(long, conflicts_with = "recompute")]
    pub(super) overwrite: bool,
    /// Show what would be done; needs no server, and a tokenizer only to count tokens
    #[arg(long, conflicts_with = "recompute")]
    pub(super) dry_run: bool,
    /// Compute credit again from the files that are there, with the hyper-parameters that are given; needs no server
    #[arg(long, conflicts_with_all = MEASURING)]
    pub(super) recompute: bool,
    /// The run directory, with the ledger and the summary [default: the run of the episodes, else .backsight beside them]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Stop after this many requests
    #[arg(long, value_name = "N")]
    pub(super) max_requests: Option<u64>,
    /// Stop after this many tokens
    #[arg(long, value_name = "N")]
    pub(super) max_tokens: Option<u64>,
    /// Print the result as JSON on stdout, and what happens as one JSON object a line on stderr
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

/// How the conversation and the outcome are shown.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct LensArgs {
    /// What an action is re-read under: the outcome, hints from a file, as many words about nothing that matters, or
    /// nothing at all
    #[arg(long, value_name = "NAME", default_value = lens::NAMES[0], value_parser = PossibleValuesParser::new(lens::NAMES))]
    pub(super) lens: String,
    /// Where it is written: in the first user message, in the last one or in the last message of all before each action,
    /// or as messages of its own [default: first for the outcome, last_user for hints]
    #[arg(long, value_name = "PLACE", value_parser = placement())]
    pub(super) placement: Option<Placement>,
    /// What hints say, a JSON object a line: {"episode_id": "a", "step_idx": 0, "hint": "…"}, or instead of the hint an
    /// exchange as "messages"
    #[arg(long, value_name = "FILE.jsonl")]
    pub(super) hints: Option<PathBuf>,
    /// The outcome's words: a minijinja template, or the published scorer's Python format
    #[arg(long, value_name = "FILE")]
    pub(super) hindsight_template: Option<PathBuf>,
    /// Which sentences a placebo says
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// The system prompt, for episodes that do not have one
    #[arg(long, value_name = "FILE")]
    pub(super) system: Option<PathBuf>,
    /// The tools' schemas as a JSON list, for episodes that do not have any
    #[arg(long, value_name = "FILE.json")]
    pub(super) tools: Option<PathBuf>,
    /// Give the chat template a variable; a value that is JSON is taken as JSON, otherwise as text
    #[arg(long = "var", value_name = "K=V")]
    pub(super) vars: Vec<String>,
    /// Chat template to use instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub(super) template: Option<PathBuf>,
    /// Write tools as text, for templates that ignore them
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) tool_text: Option<ToolTextName>,
    /// When episodes began that do not say so, for templates that print the date: like 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(super) now: Option<String>,
    /// Cut every tool's result to this many characters [default: uncut]
    #[arg(long, value_name = "N")]
    pub(super) tool_result_chars: Option<usize>,
}

/// How scores become credit. What is not typed is the default, or with --recompute what the file was made with.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct MethodArgs {
    /// Only the last so many tokens of an action count; 0 or less is all of them [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_logprob_tokens: Option<i64>,
    /// Temperature of the hindsight probability (Eq. 6) [default: 5.0]
    #[arg(long, value_name = "T", value_parser = above_zero)]
    t_temp: Option<f64>,
    /// Discount per step, from 0 to 1 [default: 0.95]
    #[arg(long, value_name = "G", value_parser = share)]
    gamma: Option<f64>,
    /// Least ratio [default: 0.8]
    #[arg(long, value_name = "C", value_parser = finite)]
    c_min: Option<f64>,
    /// Largest ratio [default: 1.2]
    #[arg(long, value_name = "C", value_parser = finite)]
    c_max: Option<f64>,
    /// Weight of a step's own credit when smoothing, from 0 to 1 [default: 0.5]
    #[arg(long, value_name = "A", value_parser = share)]
    alpha: Option<f64>,
    /// Do not smooth; the same as --smoothing none
    #[arg(long, conflicts_with = "smoothing")]
    no_smooth: bool,
    /// How credit reaches back: from the end as published, one step as in the paper, or not at all [default: recursive]
    #[arg(long, value_enum)]
    smoothing: Option<SmoothingName>,
    /// Smooth only among steps of the same subtask
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    smooth_within_subtasks: Option<bool>,
    /// Reward every step by the episode, not by its subtask
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_dense_rewards: Option<bool>,
    /// What an action is compared with: the episode's mean, or itself without the outcome [default: mean]
    #[arg(long, value_enum)]
    ratio: Option<RatioName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SmoothingName {
    /// From the end, as published
    Recursive,
    /// One step, as in the paper
    Paper,
    /// Not at all
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RatioName {
    /// The mean over the episode
    Mean,
    /// The same action without the outcome
    Lift,
}

impl MethodArgs {
    /// What was typed over `base`, if it goes together.
    pub(super) fn checked(&self, base: &Settings) -> Result<Settings, String> {
        let settings = self.settings(base);
        let Params { c_min, c_max, .. } = settings.params;
        let is_typed = self.c_min.is_some() || self.c_max.is_some();
        match !is_typed || c_min <= c_max {
            true => Ok(settings),
            false => Err(format!("the least ratio --c-min {c_min} is above the largest --c-max {c_max}")),
        }
    }

    /// What was typed over `base`.
    fn settings(&self, base: &Settings) -> Settings {
        let old = base.params;
        let smoothing = match self.smoothing {
            _ if self.no_smooth => Some(Smoothing::None),
            Some(SmoothingName::Recursive) => Some(Smoothing::Recursive),
            Some(SmoothingName::Paper) => Some(Smoothing::Paper),
            Some(SmoothingName::None) => Some(Smoothing::None),
            None => None,
        };
        let ratio = self.ratio.map(|ratio| match ratio {
            RatioName::Mean => Ratio::Mean,
            RatioName::Lift => Ratio::Lift,
        });
        let params = Params {
            t_temp: self.t_temp.unwrap_or(old.t_temp),
            gamma: self.gamma.unwrap_or(old.gamma),
            c_min: self.c_min.unwrap_or(old.c_min),
            c_max: self.c_max.unwrap_or(old.c_max),
            alpha: self.alpha.unwrap_or(old.alpha),
            smoothing: smoothing.unwrap_or(old.smoothing),
            within_subtasks: self.smooth_within_subtasks.unwrap_or(old.within_subtasks),
            dense_rewards: self.no_dense_rewards.map_or(old.dense_rewards, |without| !without),
            ratio: ratio.unwrap_or(old.ratio),
        };
        let typed = self.max_logprob_tokens.map(|it| usize::try_from(it).unwrap_or(0));
        let max_logprob_tokens = typed.unwrap_or(base.max_logprob_tokens);
        Settings { params, max_logprob_tokens }
    }
}

impl CreditArgs {
    /// What was typed, and what the environment says where nothing was. `env` gives a variable's value.
    pub(super) fn with_env(&self, env: impl Fn(&str) -> Option<String>) -> Self {
        let env = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let mut args = self.clone();
        if !self.server.is_here() {
            if args.url.is_empty() {
                args.url.extend(env("FSWE_AGENT_API_URL"));
            }
            args.server.model = args.server.model.or_else(|| env("FSWE_AGENT_MODEL"));
            const KEY: &str = "FSWE_AGENT_API_KEY";
            let key = args.api_key.take().or_else(|| env(KEY).map(|key| Secret::new(&key).found_in(KEY)));
            // The published script's word for no key.
            args.server.api_key = key.filter(|key| !matches!(key.expose(), "" | "unused"));
        }
        args
    }

    /// Hyper-parameters of a new scoring.
    pub(super) fn settings(&self) -> Settings {
        self.method.settings(&NEW)
    }

    /// Refuses what no scoring could be made with.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let checked = self.method.checked(&NEW);
        checked.map(drop).map_err(|why| Failure::input(why, "give --c-min a smaller number than --c-max"))
    }

    /// Refuses to score without a model.
    pub(super) fn check_server(&self) -> Result<(), Failure> {
        if self.url.is_empty() && !self.server.is_here() {
            let help = "give its address with --url http://HOST:PORT or in FSWE_AGENT_API_URL, or use --kind embedded";
            return Err(Failure::input("no server was named", help));
        }
        self.server.check(&self.url)
    }

    /// The directory or files with the episodes.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        inputs(&self.episodes, self.input_dir.as_ref(), self.run.as_ref())
    }

    /// The run directory.
    pub(super) fn run_dir(&self) -> PathBuf {
        self.run.clone().unwrap_or_else(|| run_dir_for(&self.inputs()[0]))
    }

    /// Where the tokenizer is, if anything that was typed says so; a model's name on the hub is left to those who ask it.
    pub(super) fn text_path(&self) -> Option<PathBuf> {
        let model = self.server.model.as_deref().map(PathBuf::from);
        let has_text = |path: &PathBuf| {
            path.join("tokenizer.json").is_file() || path.extension().is_some_and(|it| it == "gguf")
        };
        self.server.tokenizer.clone().or_else(|| model.filter(has_text))
    }

    /// The most requests of an episode at once.
    pub(super) fn requests_at_once(&self) -> usize {
        self.batch_size.filter(|n| *n > 0).unwrap_or(usize::MAX)
    }

    /// The most tokens of a sequence: what was typed, and what leaves room for one more in the model's context.
    pub(super) fn limit(&self, context_length: Option<usize>) -> Option<usize> {
        let typed = self.max_context.map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        let own = context_length.map(|length| length.saturating_sub(1));
        typed.into_iter().chain(own).min()
    }
}

/// What a new scoring begins with.
const NEW: Settings = Settings { params: Params::PUBLISHED, max_logprob_tokens: 0 };

fn above_zero(text: &str) -> Result<f64, String> {
    finite(text).and_then(|it| if it > 0.0 { Ok(it) } else { Err("must be above 0".to_owned()) })
}

fn share(text: &str) -> Result<f64, String> {
    finite(text).and_then(|it| match (0.0..=1.0).contains(&it) {
        true => Ok(it),
        false => Err("must be from 0 to 1".to_owned()),
    })
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text).found_in("--api-key"))
}
