//! The commands, each with what can be typed behind it.

use clap::{Parser, Subcommand};

use super::args::{
    COLLECT_EXAMPLES, CONFIG_EXAMPLES, ChatCommand, CollectArgs, DATASET_EXAMPLES, DatasetArgs,
    EVALUATE_EXAMPLES, EvaluateArgs, ModelCommand, PROBE_EXAMPLES, ProbeArgs, QUICKSTART_EXAMPLES,
    QuickstartArgs, SCORE_EXAMPLES, ScoreArgs,
};
use super::credit::{CreditArgs, EXAMPLES};
use super::keys::ConfigArgs;

const EXIT_CODES: &str = "\
New here? Run: backsight quickstart

Exit codes: 0 all was made; 1 finished with losses, each with its reason; 2 usage or unreadable input; 3 stopped early;
130 and 143 ended by SIGINT and SIGTERM. After 1, 3 and a signal the same command continues.";

/// Turns LLM-agent trajectories into dense training signal.
#[derive(Debug, Parser)]
#[command(name = "backsight", version, max_term_width = 110, arg_required_else_help = true)]
#[command(after_help = EXIT_CODES)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// See the whole thing work: a model, a recorded episode, and what its outcome changes
    #[command(after_help = QUICKSTART_EXAMPLES)]
    Quickstart(QuickstartArgs),
    /// Run an agent on tasks, in groups of attempts, and record every token of it
    #[command(after_help = COLLECT_EXAMPLES)]
    Collect(CollectArgs),
    /// Measure a model on tasks that were held out
    #[command(after_help = EVALUATE_EXAMPLES)]
    Evaluate(EvaluateArgs),
    /// List every configuration key: default, meaning, and the commands that use it
    #[command(after_help = CONFIG_EXAMPLES)]
    Config(ConfigArgs),
    /// See what a model really sees: render conversations, parse tool calls
    #[command(subcommand)]
    Chat(ChatCommand),
    /// Find out what a server is and can do
    #[command(after_help = PROBE_EXAMPLES)]
    Probe(ProbeArgs),
    /// Score spans of given tokens: the primitive under everything else
    #[command(after_help = SCORE_EXAMPLES)]
    Score(ScoreArgs),
    /// Credit every step of recorded episodes in hindsight of their outcome (HCAPO)
    #[command(after_help = EXAMPLES)]
    Credit(Box<CreditArgs>),
    /// Turn scored episodes into training rows with a weight for every step and token
    #[command(after_help = DATASET_EXAMPLES)]
    Dataset(DatasetArgs),
    /// Get and find the models that run inside Backsight
    #[command(subcommand)]
    Model(ModelCommand),
}

impl Command {
    /// Whether it tells what it does as events.
    pub(super) fn as_json(&self) -> bool {
        match self {
            Self::Collect(args) => args.talk.json,
            Self::Evaluate(args) => args.talk.json,
            Self::Probe(args) => args.json,
            Self::Score(args) => args.json,
            Self::Credit(args) => args.json,
            Self::Dataset(args) => args.json,
            Self::Quickstart(_) | Self::Config(_) | Self::Chat(_) | Self::Model(_) => false,
        }
    }
}
