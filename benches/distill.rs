//! What distilling a group costs: time, tokens and bytes, against the published way.
//!
//! `cargo bench --bench distill` needs no server: it starts stand-ins that have vLLM's and SGLang's rules of what is computed
//! again. The group is made up as the published figures' was: 4 episodes of 8 turns, 1,196 tokens each, 12 of them
//! sampled in every turn. Every turn gets a hint.
//!
//! - *Time*: with 100 ms a judge's call and 100 ms a score, from the stage's first word to its last episode, against one
//!   call and one score after another, measured in the same run. One call after another would take 64 of each.
//! - *Tokens*: what the server computes to score the group, with the hint in the last user message and in the last
//!   message; against the published way, which sends every turn's whole prefix for itself.
//! - *Bytes*: of a scored token at K = 50, as Atropos' JSON and in the compact form; what unscored positions take is left out.
//!
//! The exit code is 1 when a promise is missed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]
#![allow(dead_code, reason = "the stand-in can do more than is needed here")]

#[path = "../tests/support/stand_in.rs"]
mod stand_in;
#[path = "../tests/support/toy.rs"]
mod toy;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use backsight::chat::tokenizer::Tokenizer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use stand_in::{Asked, Dialect, Fault, Setup, StandIn};

const N_EPISODES: usize = 4;
const N_TURNS: usize = 8;
const N_TOKENS: usize = 1_196;
const N_ACTION: usize = 12;
const DELAY: Duration = Duration::from_millis(100);
const MOST_OF_CRITICAL_PATH: f64 = 1.75;
const MOST_BYTES: f64 = 432.0;
const K: usize = 50;
/// A hint, with a number that tells it from others.
const HINT: &str = "Look at the file before you write to it: 77";
const TEMPLATE: &str = "\
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

fn main() -> ExitCode {
    if std::env::args().any(|it| it == "--test") {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let group = Group::new();
    let kept = [clock(&group, &runtime), tokens(&group, &runtime), bytes(&group, &runtime)];
    ExitCode::from(u8::from(kept.contains(&false)))
}

/// A directory with the model's text files and the group.
struct Group {
    dir: TempDir,
    tokenizer: Tokenizer,
    /// Where each action of an episode begins.
    actions: Vec<usize>,
}

impl Group {
    fn new() -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml");
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("model")).unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(fixtures.join(file), dir.path().join("model").join(file)).unwrap();
        }
        fs::write(dir.path().join("model/chat_template.jinja"), TEMPLATE).unwrap();
        let tokenizer = Tokenizer::open(&fixtures).unwrap();
        let mut group = Self { dir, tokenizer, actions: Vec::new() };
        let episodes: Vec<Episode> = (0..N_EPISODES).map(|nth| group.episode(nth)).collect();
        group.actions = episodes[0].actions.clone();
        let list = |of: fn(&Episode) -> Value| episodes.iter().map(of).collect::<Vec<Value>>();
        let line = json!({
            "tokens": list(|it| json!(it.tokens)), "masks": list(|it| json!(it.masks)),
            "inference_logprobs": list(|it| json!(it.logprobs)), "messages": list(|it| json!(it.messages)),
            "scores": [0.0, 0.0, 1.0, 1.0], "task": "made-up",
        });
        fs::write(group.dir.path().join("group.jsonl"), format!("{line}\n")).unwrap();
        group
    }

    /// Words that are so many tokens.
    fn words(&self, seed: usize, n: usize) -> String {
        const WORDS: [&str; 7] = [" one", " two", " go", " on", " the", " to", " a"];
        let mut text = String::new();
        let mut at = seed;
        while self.ids(&text).len() < n {
            let longer = format!("{text}{}", WORDS[at % WORDS.len()]);
            text = if self.ids(&longer).len() <= n { longer } else { format!("{text}.") };
            at = at * 5 + 1;
            at %= 1_000_003;
        }
        text
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text).unwrap().ids
    }

    fn episode(&self, nth: usize) -> Episode {
        let mut episode = Episode::default();
        let frame = |role: &str| self.ids(&format!("<|im_start|>{role}\n<|im_end|>\n")).len();
        let frames = frame("user") + N_TURNS * frame("tool");
        let answer = self.ids("<|im_start|>assistant\n").len() + self.ids("\n").len();
        // What the sampled tokens and the frames leave goes to the task and the results.
        let rest = N_TOKENS - N_TURNS * (N_ACTION + answer) - frames;
        let result = rest / (N_TURNS + 1);
        episode.say(self, "user", &self.words(nth, rest - N_TURNS * result), false);
        for turn in 0..N_TURNS {
            episode.say(self, "assistant", &self.words(31 * nth + turn, N_ACTION - 1), true);
            episode.say(self, "tool", &self.words(57 * nth + turn, result), false);
        }
        assert_eq!(episode.tokens.len(), N_TOKENS);
        episode
    }

    /// Tokens the published way sends: each turn's prefix with its hint and its action, for itself.
    fn published(&self) -> usize {
        let hint = self.ids(&format!("\n\n[user's hint / instruction]\n{HINT}")).len();
        let of_episode: usize = self.actions.iter().map(|start| start + hint + N_ACTION).sum();
        N_EPISODES * of_episode
    }

    /// Distils the group with a server, in a run directory of this name.
    fn distil(&self, url: &str, dialect: Dialect, run: &str, more: &[&str]) {
        let kind = if dialect == Dialect::Vllm { "vllm" } else { "sglang" };
        let usual =
            ["distill", "--episodes", "group.jsonl", "--tokenizer", "model", "--json", "--audit", "off"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command
            .current_dir(self.dir.path())
            .args(usual)
            .args(["--url", url, "--kind", kind, "--run", run])
            .args(more);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let wanted = if more.contains(&"--opd-enabled") { 0 } else { N_EPISODES * N_TURNS * N_ACTION };
        assert_eq!(summary["made"]["scored_tokens"], json!(wanted), "{summary}");
    }
}

#[derive(Default)]
struct Episode {
    tokens: Vec<u32>,
    masks: Vec<i64>,
    logprobs: Vec<f64>,
    messages: Vec<Value>,
    actions: Vec<usize>,
}

impl Episode {
    fn say(&mut self, group: &Group, role: &str, text: &str, is_sampled: bool) {
        let head = group.ids(&format!("<|im_start|>{role}\n"));
        let said = group.ids(&format!("{text}<|im_end|>"));
        let end = group.ids("\n");
        self.add(&head, false);
        if is_sampled {
            self.actions.push(self.tokens.len());
        }
        self.add(&said, is_sampled);
        self.add(&end, false);
        // The published way takes prose and what answers it.
        self.messages.push(json!({"role": role, "content": text}));
    }

    fn add(&mut self, ids: &[u32], is_sampled: bool) {
        self.tokens.extend(ids);
        self.masks.extend(ids.iter().map(|id| if is_sampled { i64::from(*id) } else { -100 }));
        self.logprobs.extend(ids.iter().map(|_| if is_sampled { -1.5 } else { 1.0 }));
    }
}

fn setup(dialect: Dialect) -> Setup {
    let mut setup = Setup::new(dialect).talks(|body| {
        // Another hint for every turn, as judges have them.
        let number = 10 + body.to_string().bytes().map(u64::from).sum::<u64>() % 90;
        let hint = HINT.replace("77", &number.to_string());
        let vote = format!("\\boxed{{1}}\n[HINT_START]{hint}[HINT_END]");
        Some(json!({"role": "assistant", "content": vote}))
    });
    setup.max_logprobs = 1_000;
    setup
}

/// Whether a request scores something of the group, beside what finds out what the server is.
fn scores(asked: &Asked) -> bool {
    asked.ids.len() > 80
}

fn clock(group: &Group, runtime: &Runtime) -> bool {
    let slow = |it: &Asked| (it.route == "/v1/chat/completions" || scores(it)).then_some(Fault::Slow(DELAY));
    let server = runtime.block_on(StandIn::start(setup(Dialect::Sglang).faults(slow)));
    group.distil(&server.url(), Dialect::Sglang, "clock", &[]);
    let events = fs::read_to_string(group.dir.path().join("clock/events.jsonl")).unwrap();
    let times = |name: &str| {
        let lines = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|it| it["event"] == name).map(|it| it["time"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let stage = times("episode").into_iter().fold(0.0, f64::max) - times("began")[0];
    let path = runtime.block_on(critical_path(&server.url(), group));
    let serial = (N_EPISODES * N_TURNS) as f64 * path;
    println!(
        "time: {stage:.3} s for {N_EPISODES} x {N_TURNS} turns; one call and one score take {path:.3} s, one after"
    );
    println!(
        "      another {serial:.1} s: {:.2} of the critical path (at most {MOST_OF_CRITICAL_PATH})",
        stage / path
    );
    stage / path <= MOST_OF_CRITICAL_PATH
}

/// A judge's call and then a score, by a plain client.
async fn critical_path(url: &str, group: &Group) -> f64 {
    let client = plain::Client::new(url);
    let began = Instant::now();
    client
        .post(
            "/v1/chat/completions",
            &json!({"model": "toy", "messages": [{"role": "user", "content": "?"}]}),
        )
        .await;
    let ids: Vec<u32> = group.ids(&"go on ".repeat(100));
    let body = json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, "return_logprob": true,
                      "logprob_start_len": ids.len() - 13, "top_logprobs_num": K});
    client.post("/generate", &body).await;
    began.elapsed().as_secs_f64()
}

/// As little of HTTP as it takes to measure a server from outside.
mod plain {
    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    pub struct Client(String);

    impl Client {
        pub fn new(url: &str) -> Self {
            Self(url.trim_start_matches("http://").to_owned())
        }

        pub async fn post(&self, path: &str, body: &Value) {
            let mut stream = TcpStream::connect(&self.0).await.unwrap();
            let body = body.to_string();
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                self.0,
                body.len()
            );
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            let mut answer = vec![0; 4096];
            let n = stream.read(&mut answer).await.unwrap();
            assert!(answer[..n].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..n]));
        }
    }
}

fn tokens(group: &Group, runtime: &Runtime) -> bool {
    let published = group.published();
    println!(
        "tokens: the published way computes {published} for {} positions",
        N_EPISODES * N_TURNS * N_ACTION
    );
    let mut kept = true;
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        for placement in ["last_user", "last"] {
            let server = runtime.block_on(StandIn::start(setup(dialect)));
            let run = format!("{dialect:?}-{placement}");
            group.distil(&server.url(), dialect, &run, &["--hint-placement", placement]);
            let computed: usize = computed(&server, dialect);
            println!(
                "        {dialect:?}, {placement}: {computed}, {:.2} of it",
                computed as f64 / published as f64
            );
            // A hint in the last user message stands before all turns, so nothing behind it is shared.
            kept &= computed <= published;
        }
    }
    kept
}

/// Tokens the server computed to score the group: what was sent but for what its cache held.
fn computed(server: &StandIn, dialect: Dialect) -> usize {
    let mut cache = toy::PrefixCache::default();
    let toy = toy::Toy { weights: 1 };
    let prompts = server.asked().into_iter().filter(scores).flat_map(|it| {
        let body: Value = serde_json::from_slice(&it.body).unwrap_or_default();
        let start = body["logprob_start_len"].clone();
        it.prompts.into_iter().enumerate().map(move |(nth, ids)| {
            let own = start.get(nth).unwrap_or(&start).as_u64();
            (ids, own)
        })
    });
    let of = |(ids, start): (Vec<u32>, Option<u64>)| match dialect {
        // It computes the whole prompt for its logprobs.
        Dialect::Vllm => ids.len(),
        Dialect::Sglang => {
            let most = start.map_or(0, |start| start as usize);
            ids.len() - cache.reuse(&toy.contexts(&ids), most)
        }
    };
    prompts.map(of).sum()
}

fn bytes(group: &Group, runtime: &Runtime) -> bool {
    let server = runtime.block_on(StandIn::start(setup(Dialect::Vllm)));
    group.distil(&server.url(), Dialect::Vllm, "bytes", &[]);
    group.distil(&server.url(), Dialect::Vllm, "none", &["--opd-enabled", "false"]);
    let size =
        |run: &str, file: &str| fs::metadata(group.dir.path().join(run).join(file)).unwrap().len() as f64;
    let n = (N_EPISODES * N_TURNS * N_ACTION) as f64;
    // Empty rows are `[],` in both lists of Atropos; they, and what every token has, are taken away.
    let unscored = (N_EPISODES * N_TOKENS) as f64 - n;
    let json = (size("bytes", "groups.jsonl") - size("none", "groups.jsonl") - unscored * 6.0) / n;
    let header = |run: &str| {
        let file = fs::read(group.dir.path().join(run).join("groups.safetensors")).unwrap();
        8.0 + u64::from_le_bytes(file[..8].try_into().unwrap()) as f64
    };
    let own = |run: &str| size(run, "groups.safetensors") - header(run);
    let compact = (own("bytes") - own("none")) / n + 9.0;
    println!("bytes: a scored token at K = {K} takes {json:.0} as JSON and {compact:.1} in the compact form");
    println!("       (at most {MOST_BYTES}, the 9 of the token itself included)");
    compact <= MOST_BYTES
}
