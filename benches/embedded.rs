//! How fast the embedded engine is, beside llama.cpp on the same f32 weights and the same threads.
//!
//! `cargo bench --bench embedded -- --gguf SmolLM2-135M-Instruct.Q4_1.gguf [--rounds 3] [--threads 2]
//! [--llama PYTHON] [--only score|decode] [--branches]`. With `--llama`, PYTHON runs `benches/llama_baseline.py`, and rounds of both
//! alternate; medians are printed. Both sides do the same work: the logprob of the given token at every position, or of
//! the token taken at every step. llama.cpp only gives logits, so its log-softmax is numpy's, on as many threads; the
//! ratio is also given without it. Ours can not be told apart from the head, which never stores logits. The share of
//! peak compares with multiply-adds on registers alone, measured in the same run. `--branches` also counts what the KV
//! tree saves on thirty branches along a trunk of 6,000 tokens.
//!
//! PYTHON is made by `python3 -m venv v && v/bin/pip install --no-binary llama-cpp-python llama-cpp-python gguf numpy`, which
//! needs a C++ compiler and takes about twenty minutes; then `--llama v/bin/python`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark that cannot run should say why by panicking"
)]
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use backsight::engine::engine::{Engine, EngineOptions};
use backsight::engine::generate::Sequence;
use backsight::engine::simd::{Isa, Kernel, Simd};
use backsight::model::{GenerateRequest, Place, Sampling};
use backsight::score::ScoreJob;
use backsight::tokens::{TokenId, TokenSpan};

const LENGTHS: [usize; 3] = [512, 2048, 4096];
const BATCHES: [usize; 2] = [1, 4];
const CONTEXT: usize = 256;
const STEPS: usize = 64;

struct Arguments {
    gguf: PathBuf,
    rounds: usize,
    threads: usize,
    llama: Option<String>,
    only: Option<String>,
    branches: bool,
}

fn arguments() -> Arguments {
    let all: Vec<String> = std::env::args().collect();
    let after = |flag: &str| all.iter().position(|it| it == flag).and_then(|at| all.get(at + 1)).cloned();
    let number = |flag: &str, default: usize| after(flag).map_or(default, |it| it.parse().unwrap());
    let gguf = after("--gguf").or_else(|| std::env::var("BACKSIGHT_SMOLLM2_GGUF").ok());
    Arguments {
        gguf: gguf.unwrap_or_else(|| panic!("name the model by --gguf or BACKSIGHT_SMOLLM2_GGUF")).into(),
        rounds: number("--rounds", 3),
        threads: number("--threads", EngineOptions::default().threads),
        llama: after("--llama"),
        only: after("--only"),
        branches: all.iter().any(|it| it == "--branches"),
    }
}

fn tokens(n: usize, salt: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 7919 + salt * 31) % 49052 + 50) as TokenId).collect()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn timed(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

/// Multiply-adds on registers alone: what no program on this machine can exceed.
struct Peak {
    steps: usize,
}

impl Kernel for Peak {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (a, b) = (simd.splat(std::hint::black_box(0.999)), simd.splat(std::hint::black_box(0.001)));
        let mut sums = [simd.splat(1.0); 12];
        for _ in 0..self.steps {
            for sum in &mut sums {
                *sum = simd.mul_add(*sum, a, b);
            }
        }
        sums.iter().map(|&sum| simd.sum(sum)).sum()
    }
}

/// Peak GFLOP/s of all threads together.
fn peak(threads: usize) -> f64 {
    let steps = 20_000_000;
    let seconds = timed(|| {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| std::hint::black_box(Isa::best().run(Peak { steps })));
            }
        });
    });
    (threads * steps * 12 * 16 * 2) as f64 / seconds / 1e9
}

/// Multiplications and additions of scoring `n` tokens.
fn flops(engine: &Engine, n: usize) -> f64 {
    let config = engine.config();
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let layer = config.hidden * (2 * q + 2 * kv) + 3 * config.hidden * config.inner;
    let linear = config.layers * layer + config.hidden * config.vocab;
    let attention = config.layers * 2 * q * n / 2;
    2.0 * n as f64 * (linear + attention) as f64
}

/// What one round took, and the sum of the logprobs it gave.
#[derive(Clone, Copy)]
struct Round {
    seconds: f64,
    /// Of those, the log-softmax, where it can be told apart.
    softmax: f64,
    sum: f64,
}

fn score(engine: &mut Engine, n: usize) -> Round {
    // One token more than is read: the last one is only predicted.
    let job = ScoreJob::new(Arc::from(tokens(n + 1, 0)), vec![TokenSpan::at(1, n)], 0).unwrap();
    let mut scored = None;
    let seconds = timed(|| scored = engine.score(&job).ok());
    let sum = scored.unwrap().spans[0].logprobs().map(|it| it.unwrap().get()).sum();
    Round { seconds, softmax: 0.0, sum }
}

fn decode(engine: &mut Engine, n_sequences: usize) -> Round {
    let sampling = Sampling {
        temperature: 0.0,
        top_p: 1.0,
        top_k: None,
        seed: None,
        max_tokens: STEPS + 1,
        constraint: None,
    };
    let request = |salt: usize| GenerateRequest {
        prompt: tokens(CONTEXT, salt),
        sampling: sampling.clone(),
        stop_ids: vec![],
        top_k: 0,
        place: Place::default(),
    };
    let mut sequences: Vec<Sequence> =
        (0..n_sequences).map(|salt| engine.admit(&request(salt)).unwrap()).collect();
    let mut all: Vec<&mut Sequence> = sequences.iter_mut().collect();
    engine.step(&mut all);
    let seconds = timed(|| (0..STEPS).for_each(|_| engine.step(&mut all)));
    drop(all);
    let generated = sequences.into_iter().map(|it| it.into_generated().unwrap());
    let logprobs = generated.flat_map(|it| it.tokens.into_iter().skip(1).map(|it| it.logprob.unwrap().get()));
    Round { seconds, softmax: 0.0, sum: logprobs.sum() }
}

/// llama.cpp in a process of its own, asked one question at a time.
struct Llama {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Llama {
    fn start(python: &str, arguments: &Arguments) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/llama_baseline.py");
        let mut command = Command::new(python);
        command.arg(script).arg(&arguments.gguf).arg(arguments.threads.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut llama = Self { child, stdin, stdout };
        println!("llama.cpp: {}", llama.line());
        llama
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, question: &str) -> Round {
        writeln!(self.stdin, "{question}").unwrap();
        let line = self.line();
        let numbers: Vec<f64> = line.split(' ').map(|it| it.parse().unwrap()).collect();
        Round { seconds: numbers[0], softmax: numbers[1], sum: numbers[2] }
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Rounds of ours and theirs in turn.
fn compare(
    rounds: usize,
    mut ours: impl FnMut() -> Round,
    mut theirs: Option<impl FnMut() -> Round>,
) -> (Vec<Round>, Vec<Round>) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        a.push(ours());
        b.extend(theirs.as_mut().map(|theirs| theirs()));
    }
    (a, b)
}

/// Medians of both, their ratio with and without llama.cpp's log-softmax, and how far the logprobs are apart.
fn print_row(name: &str, n_tokens: usize, ours: &[Round], theirs: &[Round], share: Option<f64>) {
    let seconds = |rounds: &[Round], of: fn(&Round) -> f64| median(rounds.iter().map(of).collect());
    let rate = |seconds: f64| n_tokens as f64 / seconds;
    let own = seconds(ours, |it| it.seconds);
    print!("{name:<26} {:7.1} tokens/s", rate(own));
    if let Some(last) = theirs.last() {
        let (all, bare) = (seconds(theirs, |it| it.seconds), seconds(theirs, |it| it.seconds - it.softmax));
        let apart = (ours[0].sum - last.sum).abs() / n_tokens as f64;
        print!(
            "  llama.cpp {:7.1}  ratio {:.2} ({:.2} without its log-softmax)",
            rate(all),
            all / own,
            bare / own
        );
        print!("  mean logprobs {apart:.0e} apart");
    }
    println!("{}", share.map_or(String::new(), |it| format!("  {:.0} % of peak", it * 100.0)));
}

fn branches(engine: &mut Engine, alone: &mut Engine) {
    let trunk = tokens(6000, 0);
    let branch = |i: usize| {
        let at = (i + 1) * 200;
        let tokens = [&trunk[..at], &tokens(40, i + 1)].concat();
        ScoreJob::new(Arc::from(tokens), vec![TokenSpan::at(at, 40)], 0).unwrap()
    };
    let jobs: Vec<ScoreJob> = (0..30).map(branch).collect();
    let before = engine.counters();
    let mut with = Vec::new();
    let seconds = timed(|| {
        let whole = ScoreJob::new(Arc::from(trunk.clone()), vec![TokenSpan::at(5999, 1)], 0).unwrap();
        engine.score(&whole).unwrap();
        with = engine.score_many(&jobs);
    });
    let computed = engine.counters().computed - before.computed;
    let naive: usize = jobs.iter().map(|job| job.tokens().len() - 1).sum();
    let logprobs = |scored: &backsight::model::Scored| {
        scored.spans[0].logprobs().map(|it| it.unwrap().get()).collect::<Vec<_>>()
    };
    let (mut worst, mut n_compared) = (0f64, 0);
    for i in (0..30).step_by(4) {
        let expected = logprobs(&alone.score(&jobs[i]).unwrap());
        let found = logprobs(with[i].as_ref().unwrap());
        worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(worst, f64::max);
        n_compared += 1;
    }
    println!(
        "30 branches along 6,000 tokens: {computed} tokens computed in {seconds:.1} s, {naive} without reuse \
         ({:.1}x fewer); {n_compared} branches compared, largest difference {worst:e}",
        naive as f64 / computed as f64
    );
}

fn main() {
    let arguments = arguments();
    let load = |cache_bytes: usize| {
        let options = EngineOptions { threads: arguments.threads, cache_bytes, ..EngineOptions::default() };
        Engine::load_with(&arguments.gguf, &options).unwrap()
    };
    // Without memory of earlier rounds: every round computes everything.
    let mut engine = load(0);
    println!("{} threads, {:?}", arguments.threads, Isa::best());
    let mut llama = arguments.llama.as_ref().map(|python| Llama::start(python, &arguments));
    let wanted = |what: &str| arguments.only.as_ref().is_none_or(|only| only == what);
    for n in LENGTHS.into_iter().filter(|_| wanted("score")) {
        let theirs = llama.as_mut().map(|llama| || llama.ask(&format!("score {n}")));
        let (ours, theirs) = compare(arguments.rounds, || score(&mut engine, n), theirs);
        let peak = median((0..3).map(|_| peak(arguments.threads)).collect());
        let share = flops(&engine, n) / median(ours.iter().map(|it| it.seconds).collect()) / 1e9 / peak;
        print_row(&format!("score {n} (peak {peak:.0} GFLOP/s)"), n, &ours, &theirs, Some(share));
    }
    for n in BATCHES.into_iter().filter(|_| wanted("decode")) {
        let theirs = llama.as_mut().map(|llama| || llama.ask(&format!("decode {n} {CONTEXT} {STEPS}")));
        let (ours, theirs) = compare(arguments.rounds, || decode(&mut engine, n), theirs);
        print_row(&format!("decode, batch {n}"), n * STEPS, &ours, &theirs, None);
    }
    if arguments.branches {
        branches(&mut load(2 << 30), &mut engine);
    }
}
