//! The embedded engine against Hugging Face transformers, and against itself computed in other ways.
//!
//! The tiny models were made by `tests/reference/make_tiny_models.py` and are always tested. SmolLM2 is tested
//! where `BACKSIGHT_SMOLLM2_GGUF` names the file `SmolLM2-135M-Instruct.Q4_1.gguf`.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backsight::model::embedded::engine::{Engine, Options};
use backsight::model::embedded::simd::Isa;
use backsight::score::{Absence, ScoreJob, SpanScore};
use backsight::tokens::{TokenId, TokenSpan};
use serde_json::Value;

/// A text as ids, and the logprobs of all its tokens but the first.
struct Case {
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
    top: Vec<(TokenId, f64)>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn engine(path: &str, options: Options) -> Engine {
    Engine::load_with(&fixture(path), &options).unwrap()
}

fn cases(path: &Path) -> Vec<Case> {
    let json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let pair = |it: &Value| (it[0].as_u64().unwrap() as TokenId, it[1].as_f64().unwrap());
    let case = |it: &Value| Case {
        tokens: it["tokens"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as TokenId).collect(),
        logprobs: it["logprobs"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect(),
        top: it["top"].as_array().map_or(Vec::new(), |top| top.iter().map(pair).collect()),
    };
    json.as_array().unwrap().iter().map(case).collect()
}

fn job(tokens: &[TokenId], spans: &[(usize, usize)], top_k: usize) -> ScoreJob {
    let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
    ScoreJob::new(Arc::from(tokens), spans, top_k).unwrap()
}

fn numbers(span: &SpanScore) -> Vec<f64> {
    span.logprobs().flatten().map(|it| it.get()).collect()
}

fn all_logprobs(engine: &mut Engine, tokens: &[TokenId]) -> Vec<f64> {
    numbers(&engine.score(&job(tokens, &[(1, tokens.len())], 0)).unwrap().spans[0])
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// All texts of a tiny model, on every set of vector instructions; gives back the largest difference.
fn check(weights: &str, expected: &str) {
    let cases = cases(&fixture(expected));
    for isa in Isa::available() {
        let mut engine = engine(weights, Options { isa, ..Options::default() });
        let off = cases.iter().map(|case| worst(&all_logprobs(&mut engine, &case.tokens), &case.logprobs));
        let off = off.fold(0.0, f64::max);
        println!("{weights} on {isa:?}: largest difference {off:.1e}");
        assert!(off < 1e-4, "{weights} on {isa:?}: off by {off}");
    }
}

#[test]
fn a_tiny_llama_agrees_with_transformers() {
    check("tiny-llama", "tiny-llama/expected.json");
}

#[test]
fn a_tiny_llama_from_gguf_agrees_with_transformers() {
    check("tiny-llama/model.gguf", "tiny-llama/expected.json");
}

#[test]
fn a_tiny_qwen2_agrees_with_transformers() {
    check("tiny-qwen2", "tiny-qwen2/expected.json");
}

#[test]
fn a_tiny_qwen3_agrees_with_transformers() {
    check("tiny-qwen3", "tiny-qwen3/expected.json");
}

#[test]
fn the_likeliest_tokens_are_ranked_and_hold_the_given_one() {
    for model in ["tiny-llama", "tiny-qwen3"] {
        let mut engine = engine(model, Options::default());
        for case in cases(&fixture(&format!("{model}/expected.json"))) {
            // The expected row is the prediction after the last token, whatever would follow it.
            let tokens = [&case.tokens[..], &[5]].concat();
            let last = case.tokens.len();
            let scored = engine.score(&job(&tokens, &[(last, last + 1)], 5)).unwrap();
            let score = &scored.spans[0].scores()[0];
            let found: Vec<_> = score.top.entries().iter().map(|(id, lp)| (*id, lp.get())).collect();
            let ids = |rows: &[(TokenId, f64)]| rows.iter().take(5).map(|row| row.0).collect::<Vec<_>>();
            assert_eq!(ids(&found), ids(&case.top));
            let values = |rows: &[(TokenId, f64)]| rows.iter().take(5).map(|row| row.1).collect::<Vec<_>>();
            assert!(worst(&values(&found), &values(&case.top)) < 1e-4);
            assert_eq!(score.top.get(5), score.logprob.clone().ok());
            assert_eq!(found.len(), if ids(&case.top).contains(&5) { 5 } else { 6 });
        }
    }
}

#[test]
fn spans_may_overlap_be_empty_and_touch_the_first_token() {
    let mut engine = engine("tiny-llama", Options::default());
    let case = &cases(&fixture("tiny-llama/expected.json"))[3];
    let spans = [(10, 20), (0, 3), (5, 5), (15, 40), (0, 1)];
    let scored = engine.score(&job(&case.tokens, &spans, 0)).unwrap();
    for (&(start, end), span) in spans.iter().zip(&scored.spans) {
        assert_eq!(span.span(), TokenSpan::new(start, end).unwrap());
        assert!(worst(&numbers(span), &case.logprobs[start.max(1) - 1..end.max(1) - 1]) < 1e-4);
        let absent: Vec<_> = span.absent().collect();
        assert_eq!(absent, if start == 0 { vec![(0, &Absence::NoContext)] } else { vec![] });
    }
    assert_eq!(scored.usage.prompt_tokens, 39);
}

#[test]
fn results_do_not_depend_on_threads_chunks_or_company() {
    let tokens: Vec<TokenId> = (0..900).map(|i| (i * i + 7 * i) % 131).collect();
    let options = |threads: usize| Options { threads, cache_bytes: 0, ..Options::default() };
    let expected = all_logprobs(&mut engine("tiny-llama", options(1)), &tokens);
    for threads in [2, 3, 7] {
        assert_eq!(
            all_logprobs(&mut engine("tiny-llama", options(threads)), &tokens),
            expected,
            "{threads} threads"
        );
    }
    let mut engine = engine("tiny-llama", options(2));
    let jobs: Vec<_> = [30, 100, 7, 64, 90, 450].map(|end| job(&tokens[..end], &[(1, end)], 0)).into();
    for (job, scored) in jobs.iter().zip(engine.score_many(&jobs)) {
        let end = job.tokens().len();
        assert_eq!(
            numbers(&scored.unwrap().spans[0]),
            expected[..end - 1],
            "the first {end} tokens, in company"
        );
    }
}

#[test]
fn thirty_branches_along_a_trunk_compute_the_trunk_once() {
    let trunk: Vec<TokenId> = (0..6000).map(|i| (i * i + 3 * i) % 131).collect();
    let branch = |i: usize| {
        let at = (i + 1) * 200;
        let tail = (0..40).map(|j| ((i * 37 + j * 11) % 131) as TokenId);
        let tokens: Vec<_> = trunk[..at].iter().copied().chain(tail).collect();
        let end = tokens.len();
        job(&tokens, &[(at, end)], 0)
    };
    let jobs: Vec<_> = (0..30).map(branch).collect();
    let (mut with, mut without) = (
        engine("tiny-llama", Options::default()),
        engine("tiny-llama", Options { cache_bytes: 0, ..Options::default() }),
    );
    with.score(&job(&trunk, &[(5999, 6000)], 0)).unwrap();
    let reused: Vec<_> =
        with.score_many(&jobs).into_iter().map(|it| numbers(&it.unwrap().spans[0])).collect();
    for i in (0..30).step_by(4) {
        let alone = numbers(&without.score(&jobs[i]).unwrap().spans[0]);
        assert_eq!(reused[i], alone, "branch {i}");
    }
    let naive: u64 = jobs.iter().map(|job| job.tokens().len() as u64 - 1).sum();
    let computed = with.counters().computed;
    println!("{computed} tokens computed, {naive} without reuse");
    assert!(computed * 8 <= naive, "{computed} tokens were computed, {naive} would be without reuse");
    assert_eq!(computed + with.counters().reused, naive + 5999);
}

#[test]
fn what_cannot_be_read_is_refused_and_the_rest_goes_on() {
    let mut engine = engine("tiny-llama", Options::default());
    let long = vec![1; 8193];
    let jobs = [
        job(&[1, 2, 3], &[(1, 3)], 0),
        job(&[1, 131], &[(1, 2)], 0),
        job(&long, &[(1, 8193)], 0),
        job(&[4, 5], &[(1, 2)], 0),
    ];
    let results = engine.score_many(&jobs);
    let message = |i: usize| results[i].as_ref().unwrap_err().to_string();
    assert!(results[0].is_ok() && results[3].is_ok());
    assert_eq!(message(1), "token 131 at position 1 is outside the vocabulary of 131");
    assert_eq!(message(2), "8193 tokens do not fit into the model's context of 8192");
}
