//! What can be typed: commands, flags and their help, exactly as given and not yet checked.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

/// Turns LLM-agent trajectories into dense training signal.
#[derive(Debug, Parser)]
#[command(name = "backsight", version, max_term_width = 110, arg_required_else_help = true)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// See what a model really sees: render conversations, parse tool calls
    #[command(subcommand)]
    Chat(ChatCommand),
}

#[derive(Debug, Subcommand)]
pub(super) enum ChatCommand {
    /// Render a conversation with a model's own template, as text, token ids or spans
    #[command(after_help = RENDER_EXAMPLES)]
    Render(RenderArgs),
    /// Read tool calls out of a model's text on stdin
    #[command(after_help = PARSE_EXAMPLES)]
    Parse(ParseArgs),
}

const RENDER_EXAMPLES: &str = "\
Examples:
  backsight chat render --tokenizer models/Qwen3-4B --messages talk.json
  backsight chat render --tokenizer models/Qwen3-4B --messages talk.json --tools tools.json \\
      --add-generation-prompt --var enable_thinking=false --format ids
  backsight chat render --tokenizer models/SmolLM2 --messages talk.json --tool-text hermes --format spans
  backsight chat render --template chat_template.jinja --messages talk.json --var bos_token='<s>'";

const PARSE_EXAMPLES: &str = "\
Examples:
  echo '<tool_call>{\"name\": \"ls\", \"arguments\": {}}</tool_call>' | backsight chat parse --parser hermes";

#[derive(Debug, ClapArgs)]
pub(super) struct RenderArgs {
    /// Model directory with tokenizer.json and a chat template, or a GGUF file for `--format text`
    #[arg(long, value_name = "DIR", required_unless_present = "template")]
    pub(super) tokenizer: Option<PathBuf>,
    /// Template file to use instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub(super) template: Option<PathBuf>,
    /// JSON list of messages, or an object with `messages` and perhaps `tools`; `-` reads stdin
    #[arg(long, value_name = "FILE.json")]
    pub(super) messages: PathBuf,
    /// JSON list of tool schemas
    #[arg(long, value_name = "FILE.json")]
    pub(super) tools: Option<PathBuf>,
    /// End with the header that asks the model to speak
    #[arg(long)]
    pub(super) add_generation_prompt: bool,
    /// Give the template a variable; a value that is JSON is taken as JSON, otherwise as text
    #[arg(long = "var", value_name = "K=V")]
    pub(super) vars: Vec<String>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// Write tools as text, for templates that ignore them
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) tool_text: Option<ToolTextName>,
    /// The time templates may print: seconds since 1970, or like 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(super) now: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// The rendered text, byte for byte
    Text,
    /// Token ids, as a JSON list
    Ids,
    /// JSON: ids, and where each message and each action is
    Spans,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ToolTextName {
    /// Schemas in the system message, calls as `<tool_call>` text
    Hermes,
    /// Plain text in square brackets, as the published hindsight scorer writes it
    Flatten,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ParseArgs {
    /// The format to read; an unknown name lists those there are
    #[arg(long, value_name = "NAME")]
    pub(super) parser: String,
}
