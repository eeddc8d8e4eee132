//! How fast a vLLM scoring answer is read, and in how much memory, against Python's `json` on the same bytes.
//!
//! 4,000 positions with 50 candidates each, of which a span of 300 is wanted. Both sides are timed
//! in one run by the CPU time of their thread. Run with `cargo bench --bench decode`; the exit code
//! is 1 when the promised ratios are missed.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark talks and fails by panicking")]
#![expect(unsafe_code, reason = "counting allocations needs a global allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use backsight::measured::vllm_scores;
use backsight::score::ScoreJob;
use backsight::tokens::TokenSpan;
use rustix::time::{ClockId, clock_gettime};

const N_POSITIONS: usize = 4000;
const TOP_K: usize = 50;
const SPAN: (usize, usize) = (3600, 300);
const RUNS: usize = 25;
const MIN_SPEED: f64 = 12.0;
const MIN_MEMORY: f64 = 10.0;

const PYTHON: &str = r#"
import json, sys, time, tracemalloc
body = open(sys.argv[1], "rb").read()
times = []
for _ in range(7):
    start = time.thread_time()
    answer = json.loads(body)
    times.append(time.thread_time() - start)
    del answer
tracemalloc.start()
answer = json.loads(body)
peak = tracemalloc.get_traced_memory()[1]
times.sort()
print(times[0], times[len(times) // 2], peak)
"#;

/// The system's allocator, with the bytes in use and their peak counted.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let in_use = IN_USE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(in_use, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let job = job();
    let body = answer(&job);
    let (times, peak) = ours(&body, &job);
    let python = python(&body);
    let (min, median) = (times[0], times[times.len() / 2]);
    println!(
        "answer: {:.2} MB, {N_POSITIONS} positions x top-{TOP_K}, span of {}",
        body.len() as f64 / 1e6,
        SPAN.1
    );
    report("backsight", min, median, peak);
    report("python json.loads", python.min, python.median, python.peak);
    let speed = python.min.as_secs_f64() / min.as_secs_f64();
    let memory = python.peak as f64 / peak as f64;
    println!("speed: {speed:.1}x (at least {MIN_SPEED}), memory: 1/{memory:.0} (at most 1/{MIN_MEMORY})");
    if speed >= MIN_SPEED && memory >= MIN_MEMORY { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(who: &str, min: Duration, median: Duration, peak: usize) {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{who:>18}: min {:.2} ms, median {:.2} ms, peak {:.2} MB",
        ms(min),
        ms(median),
        peak as f64 / 1e6
    );
}

fn ours(body: &[u8], job: &ScoreJob) -> (Vec<Duration>, usize) {
    let mut times = Vec::with_capacity(RUNS);
    let mut peak = 0;
    for _ in 0..RUNS {
        let before = IN_USE.load(Relaxed);
        PEAK.store(before, Relaxed);
        let start = thread_time();
        let scores = vllm_scores(body, job, N_POSITIONS, TOP_K).unwrap();
        times.push(thread_time() - start);
        peak = peak.max(PEAK.load(Relaxed) - before);
        assert_eq!(scores.1.spans[0].scores().len(), SPAN.1);
        assert!(scores.1.spans[0].scores().iter().all(|it| it.top.entries().len() >= TOP_K));
    }
    times.sort();
    (times, peak)
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Python {
    min: Duration,
    median: Duration,
    peak: usize,
}

fn python(body: &[u8]) -> Python {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("answer.json");
    std::fs::write(&path, body).unwrap();
    let output = Command::new("python3").args(["-c", PYTHON]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let seconds = Duration::from_secs_f64;
    Python { min: seconds(numbers[0]), median: seconds(numbers[1]), peak: numbers[2] as usize }
}

fn job() -> ScoreJob {
    let mut random = Random(7);
    let tokens: Vec<u32> = (0..N_POSITIONS).map(|_| random.below(49_152)).collect();
    ScoreJob::new(Arc::from(tokens), vec![TokenSpan::at(SPAN.0, SPAN.1)], TOP_K).unwrap()
}

/// An answer as vLLM writes it, compact, numbers as the doubles of its single-precision values.
fn answer(job: &ScoreJob) -> Vec<u8> {
    let mut random = Random(11);
    let mut json = String::from(
        r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"x","logprobs":null,"finish_reason":"length","prompt_logprobs":[null"#,
    );
    for &given in &job.tokens()[1..] {
        json.push_str(",{");
        let rank = TOP_K as u32 + 1 + random.below(1000);
        push_candidate(&mut json, &mut random, given, rank);
        for rank in 1..=TOP_K as u32 {
            json.push(',');
            let id = 100_000 + rank * 1000 + random.below(1000);
            push_candidate(&mut json, &mut random, id, rank);
        }
        json.push('}');
    }
    let ids: Vec<String> = job.tokens().iter().map(u32::to_string).collect();
    let ids = ids.join(",");
    let usage =
        format!(r#""usage":{{"prompt_tokens":{N_POSITIONS},"total_tokens":4001,"completion_tokens":1}}"#);
    write!(json, r#"],"prompt_token_ids":[{ids}]}}],{usage}}}"#).unwrap();
    json.into_bytes()
}

fn push_candidate(json: &mut String, random: &mut Random, id: u32, rank: u32) {
    const TEXTS: [&str; 8] = [" the", "\\n", " function", "\\\"", "}", " é", ").", " capital"];
    // A worse rank is never likelier.
    let logprob = f64::from(-(rank as f32) - random.below(1 << 24) as f32 / (1 << 24) as f32);
    let text = TEXTS[random.below(8) as usize];
    write!(json, r#""{id}":{{"logprob":{logprob},"rank":{rank},"decoded_token":"{text}"}}"#).unwrap();
}

/// A small generator, so that every run reads the same bytes.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }
}
