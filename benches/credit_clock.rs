//! How long scoring a small episode takes on real servers, side by side.
//!
//! `cargo bench --bench credit_clock -- --model DIR [--vllm URL] [--sglang URL --published-script DIR [--python PYTHON]]
//! [--rounds N]`
//!
//! The episode is made up: 30 steps, planning and three subtasks, which fit a context of 4,096 tokens. DIR is the
//! directory of the model that is served, SmolLM2. Its own template drops tool calls, so both sides are given one that
//! writes them. On vLLM, `backsight credit` is compared with one request for each step; on SGLang with the published
//! script at its defaults, its plan kept. Sides take turns, each round on another episode and an empty cache; medians
//! are compared. What the servers say they computed is counted in a round of its own, which is not timed. Ours is timed
//! as a whole process; so is the published script. The exit code is 1 when a promise is missed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]
#![allow(dead_code, reason = "the shared parts can do more than is needed here")]

#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/sides.rs"]
mod sides;
#[path = "support/synthetic.rs"]
mod synthetic;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use backsight::chat::tokenizer::Tokenizer;
use backsight::lens::{Lenses, OUTCOME_TEMPLATE, OutcomeLens, Placement, Wording};
use backsight::model::Model;
use backsight::model::Vllm;
use backsight::model::{Remote, Wanted, kind_named};
use backsight::model::{Settings, Transport};
use backsight::pipeline::{Framing, outline};
use backsight::pipeline::{Reader, Texts};
use backsight::score::ScoreJob;
use backsight::store::load_directory;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;

use proxy::{Counted, Proxy};
use sides::{Published, measure, median, n_scored, option, ours, range};

const N_STEPS: usize = 30;
const MIN_VLLM: f64 = 5.0;
const MIN_SGLANG: f64 = 1.0;
const TEMPLATE: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {%- set arguments = call.function.arguments %}
        {{- '\\n<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}
        {{- arguments if arguments is string else arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

fn main() -> ExitCode {
    let Some(model) = option("--model").map(PathBuf::from) else {
        println!(
            "credit_clock: nothing to measure; name the served model's directory with --model, and a server"
        );
        return ExitCode::SUCCESS;
    };
    let bench = Bench::new(&model);
    let mut kept = true;
    if let Some(url) = option("--vllm") {
        kept &= bench.vllm(&url);
    }
    if let (Some(url), Some(script)) = (option("--sglang"), option("--published-script")) {
        let python = option("--python").unwrap_or_else(|| "python3".to_owned());
        kept &= bench.sglang(&url, &Published { script: PathBuf::from(script), python });
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One way of scoring an episode: given its directory, a server's address and a file for its talk.
type Run<'a> = Box<dyn Fn(&Path, &str, &Path) + 'a>;
type Way<'a> = (&'static str, Run<'a>);

struct Bench {
    runtime: Runtime,
    /// The model's tokenizer, with a template that writes tool calls.
    tokenizer: tempfile::TempDir,
    n_rounds: usize,
}

impl Bench {
    fn new(model: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let tokenizer = tempfile::tempdir().unwrap();
        fs::copy(model.join("tokenizer.json"), tokenizer.path().join("tokenizer.json")).unwrap();
        let config = fs::read_to_string(model.join("tokenizer_config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        config.as_object_mut().unwrap().remove("chat_template");
        fs::write(tokenizer.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        fs::write(tokenizer.path().join("chat_template.jinja"), TEMPLATE).unwrap();
        let n_rounds = option("--rounds").map_or(3, |it| it.parse().unwrap());
        Self { runtime, tokenizer, n_rounds }
    }

    fn vllm(&self, url: &str) -> bool {
        let naive =
            |episodes: &Path, url: &str, _: &Path| self.one_by_one(&episodes.join("episode_001"), url);
        let ways: [Way<'_>; 2] =
            [("one request a step", Box::new(naive)), ("ours, first", self.ours("first"))];
        let measured = self.measure("vLLM", url, &ways);
        promise(
            "vLLM, one request a step against ours",
            measured[0].seconds() / measured[1].seconds(),
            MIN_VLLM,
        )
    }

    fn sglang(&self, url: &str, published: &Published) -> bool {
        let script = |episodes: &Path, url: &str, log: &Path| {
            measure(&mut published.command(episodes, url, self.tokenizer.path()), log);
            assert_eq!(n_scored(&episodes.join("episode_001")), N_STEPS);
        };
        let ways: [Way<'_>; 3] = [
            ("published script", Box::new(script)),
            ("ours, first", self.ours("first")),
            ("ours, last", self.ours("last")),
        ];
        let measured = self.measure("SGLang", url, &ways);
        let cheaper = measured[1..].iter().min_by_key(|it| it.counted.sent - it.counted.cached).unwrap();
        let what = format!("SGLang, published script against {} (the cheaper placement)", cheaper.name);
        promise(&what, measured[0].seconds() / cheaper.seconds(), MIN_SGLANG)
    }

    fn ours(&self, placement: &'static str) -> Run<'_> {
        Box::new(move |episodes, url, log| {
            measure(&mut ours(episodes, url, self.tokenizer.path(), placement), log);
            assert_eq!(n_scored(&episodes.join("episode_001")), N_STEPS);
        })
    }

    /// Every step's own request, all of them handed to the client at once: what a plan replaces.
    fn one_by_one(&self, episode: &Path, url: &str) {
        let (jobs, vocab_size) = self.jobs(episode);
        self.runtime.block_on(async {
            let options = Wanted { vocab_size: Some(vocab_size), ..Wanted::default() };
            let transport = Transport::open(&[url], Settings::default()).unwrap();
            let model: Arc<dyn Model> = Arc::new(
                Remote::ask(transport, kind_named("vllm").unwrap(), &options).await.map(Vllm::new).unwrap(),
            );
            let mut tasks = tokio::task::JoinSet::new();
            for job in jobs {
                let model = Arc::clone(&model);
                tasks.spawn(async move { model.score(&job).await.unwrap() });
            }
            let scored = tasks.join_all().await;
            let is_whole = |it: &backsight::model::Scored| it.spans[0].absent().next().is_none();
            assert!(scored.len() == N_STEPS && scored.iter().all(is_whole));
        });
    }

    /// The jobs of `backsight credit` for an episode, one for each step.
    fn jobs(&self, episode: &Path) -> (Vec<ScoreJob>, usize) {
        let tokenizer = Arc::new(Tokenizer::open(self.tokenizer.path()).unwrap());
        let vocab_size = tokenizer.vocab_size();
        let texts = Texts::open(self.tokenizer.path(), tokenizer, None, &Map::new()).unwrap();
        let lens =
            OutcomeLens { template: Wording::parse(OUTCOME_TEMPLATE).unwrap(), placement: Placement::First };
        let lenses = Lenses::default().and(Arc::new(lens), 0);
        let framing = Framing::default();
        let episode = load_directory(episode).unwrap().episode;
        let outline = outline(&episode, &framing, &lenses, &|text| texts.n_tokens(text)).unwrap();
        let reader = Reader { texts: &texts, framing: &framing, limit: Some(4095) };
        let read = reader.read(&episode, &outline);
        let seen = read.steps.iter().map(|step| step.as_ref().unwrap().view(0).unwrap().as_ref().unwrap());
        let job = |seen: &backsight::pipeline::Seen| {
            ScoreJob::new(Arc::from(read.tree.all(seen.tip)), vec![seen.action(0)], 0).unwrap()
        };
        (seen.map(job).collect(), vocab_size)
    }

    /// Lets the ways take turns and shows what each took.
    fn measure(&self, server: &str, url: &str, ways: &[Way<'_>]) -> Vec<Measured> {
        let proxy = self.runtime.block_on(Proxy::start(url));
        let mut all: Vec<Measured> = Vec::new();
        for (name, way) in ways {
            // The first round also warms the server up, and is not timed.
            self.round(1, url, &proxy.url, way);
            all.push(Measured { name, counted: proxy.take(), seconds: Vec::new() });
        }
        for round in 0..self.n_rounds {
            for (measured, (_, way)) in all.iter_mut().zip(ways) {
                measured.seconds.push(self.round(2 + round as u64, url, url, way));
            }
        }
        println!("{server}, {} rounds", self.n_rounds);
        println!(
            "  {:<20}{:>9}{:>9}{:>9}{:>10}{:>10}{:>18}",
            "", "requests", "sent", "cached", "computed", "seconds", "range"
        );
        for measured in &all {
            measured.print();
        }
        all
    }

    /// Scores a fresh episode on an empty cache; gives the seconds it took.
    fn round(&self, seed: u64, server: &str, url: &str, way: &dyn Fn(&Path, &str, &Path)) -> f64 {
        let directory = tempfile::tempdir().unwrap();
        let shape = synthetic::Shape { seed, ..synthetic::Shape::SMALL };
        synthetic::write(&directory.path().join("episode_001"), &shape).unwrap();
        // Only SGLang has the route; vLLM scores without its cache.
        let flush = format!("{}/flush_cache", server.trim_end_matches('/'));
        let _ = Command::new("curl").args(["-s", "-o", "/dev/null", "-X", "POST", &flush]).status();
        let begun = Instant::now();
        way(directory.path(), url, &directory.path().join("log.txt"));
        begun.elapsed().as_secs_f64()
    }
}

/// What one way took.
struct Measured {
    name: &'static str,
    counted: Counted,
    seconds: Vec<f64>,
}

impl Measured {
    fn seconds(&self) -> f64 {
        median(self.seconds.clone())
    }

    fn print(&self) {
        let Counted { requests, sent, cached } = self.counted;
        let ((least, most), computed) = (range(&self.seconds), sent - cached);
        println!(
            "  {:<20}{requests:>9}{sent:>9}{cached:>9}{computed:>10}{:>10.2}{:>18}",
            self.name,
            self.seconds(),
            format!("{least:.2} to {most:.2}")
        );
    }
}

fn promise(what: &str, ratio: f64, least: f64) -> bool {
    println!("{what}: {ratio:.2}x of at least {least}x");
    ratio >= least
}
