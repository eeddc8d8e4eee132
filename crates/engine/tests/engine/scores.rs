//! The embedded engine against Hugging Face transformers, and against itself computed in other ways.
//!
//! The tiny models were made by `tests/reference/make_tiny_models.py` and are always tested. SmolLM2 is tested
//! where `BACKSIGHT_SMOLLM2_GGUF` names the file `SmolLM2-135M-Instruct.Q4_1.gguf`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and show their figures"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backsight_core::model::{Constraint, Finish, GenerateRequest, Generated, Place, Sampling};
use backsight_core::score::{Absence, ScoreJob, SpanScore};
use backsight_core::tokens::{TokenId, TokenSpan};
use backsight_engine::constrain::TokenBytes;
use backsight_engine::engine::{Engine, EngineOptions};
use backsight_engine::simd::Isa;
use serde_json::Value;

/// A text as ids, and the logprobs of all its tokens but the first.
struct Case {
    tokens: Vec<TokenId>,
    logprobs: Vec<f64>,
    top: Vec<(TokenId, f64)>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

fn engine(path: &str, options: EngineOptions) -> Engine {
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
        let mut engine = engine(weights, EngineOptions { isa, ..EngineOptions::default() });
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

/// The reference values were made by `tests/reference/make_logprobs.py` on the same dequantised weights.
#[test]
fn smollm2_agrees_with_transformers_on_two_hundred_texts() {
    let Ok(path) = std::env::var("BACKSIGHT_SMOLLM2_GGUF") else {
        println!("skipped: BACKSIGHT_SMOLLM2_GGUF does not name the model");
        return;
    };
    let mut engine = Engine::load(Path::new(&path)).unwrap();
    let cases = cases(&fixture("smollm2-logprobs.json"));
    assert_eq!(cases.len(), 200);
    let jobs: Vec<_> = cases.iter().map(|case| job(&case.tokens, &[(1, case.tokens.len())], 0)).collect();
    let scored = engine.score_many(&jobs);
    let off = cases
        .iter()
        .zip(scored)
        .map(|(case, scored)| worst(&numbers(&scored.unwrap().spans[0]), &case.logprobs));
    let off = off.fold(0.0, f64::max);
    println!("SmolLM2: largest difference {off:.1e}");
    assert!(off < 1e-4, "off by {off}");
}

#[test]
fn the_likeliest_tokens_are_ranked_and_hold_the_given_one() {
    for model in ["tiny-llama", "tiny-qwen3"] {
        let mut engine = engine(model, EngineOptions::default());
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
    let mut engine = engine("tiny-llama", EngineOptions::default());
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
    let options = |threads: usize| EngineOptions { threads, cache_bytes: 0, ..EngineOptions::default() };
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

/// The head is the dearest part of a small model: it works for the positions of the spans and for no other.
#[test]
fn logits_are_computed_only_where_a_span_needs_them() {
    let tokens: Vec<TokenId> = (0..900).map(|i| (i * i + 7 * i) % 131).collect();
    let mut engine = engine("tiny-llama", EngineOptions::default());
    let mut check = |spans: &[(usize, usize)], expected: u64| {
        let before = engine.counters().predicted;
        engine.score(&job(&tokens, spans, 3)).unwrap();
        assert_eq!(engine.counters().predicted - before, expected, "{spans:?}");
    };
    check(&[(890, 900)], 10);
    check(&[(0, 1)], 0);
    check(&[(0, 3), (100, 110), (105, 120), (50, 50)], 2 + 20);
    check(&[(1, 900)], 899);
}

/// Bit for bit, on the real model: a branch over a remembered trunk, the same without memory, read in company.
#[test]
fn reuse_changes_no_bit_of_smollm2() {
    let Ok(path) = std::env::var("BACKSIGHT_SMOLLM2_GGUF") else {
        println!("skipped: BACKSIGHT_SMOLLM2_GGUF does not name the model");
        return;
    };
    let load = |cache_bytes: usize| {
        Engine::load_with(Path::new(&path), &EngineOptions { cache_bytes, ..EngineOptions::default() })
            .unwrap()
    };
    let trunk: Vec<TokenId> = (0..700).map(|i| (i * 7919 + 31) % 49_000).collect();
    let branch = |at: usize| {
        let tail = (0..20).map(|j| ((at * 37 + j * 11) % 49_000) as TokenId);
        let tokens: Vec<_> = trunk[..at].iter().copied().chain(tail).collect();
        job(&tokens, &[(at - 3, at + 20)], 4)
    };
    let jobs: Vec<_> = [100, 137, 300, 301, 512, 650].map(branch).into();
    let (mut with, mut without) = (load(1 << 30), load(0));
    with.score(&job(&trunk, &[(699, 700)], 0)).unwrap();
    let reused = with.counters().reused;
    for (job, scored) in jobs.iter().zip(with.score_many(&jobs)) {
        assert_eq!(scored.unwrap().spans, without.score(job).unwrap().spans);
    }
    assert!(with.counters().reused - reused > 1900 && without.counters().reused == 0);
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
        engine("tiny-llama", EngineOptions::default()),
        engine("tiny-llama", EngineOptions { cache_bytes: 0, ..EngineOptions::default() }),
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
    let mut engine = engine("tiny-llama", EngineOptions::default());
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

fn request(prompt: &[TokenId], temperature: f64, max_tokens: usize) -> GenerateRequest {
    let sampling =
        Sampling { temperature, top_p: 1.0, top_k: None, seed: Some(1), max_tokens, constraint: None };
    GenerateRequest { prompt: prompt.to_vec(), sampling, stop_ids: vec![], top_k: 0, place: Place::default() }
}

fn ids(generated: &Generated) -> Vec<TokenId> {
    generated.tokens.iter().map(|it| it.id).collect()
}

fn generate(engine: &mut Engine, requests: &[GenerateRequest]) -> Vec<Generated> {
    engine.generate(requests).into_iter().map(Result::unwrap).collect()
}

#[test]
fn sampled_logprobs_are_those_that_scoring_gives() {
    let mut engine = engine("tiny-qwen3", EngineOptions::default());
    for temperature in [0.0, 1.5] {
        let mut request = request(&[3, 1, 4, 1, 5], temperature, 40);
        request.top_k = 3;
        let generated = generate(&mut engine, &[request.clone()]).remove(0);
        assert_eq!((generated.tokens.len(), &generated.finish), (40, &Finish::Length));
        let tokens = [&request.prompt[..], &ids(&generated)].concat();
        let scored = engine.score(&job(&tokens, &[(5, 45)], 3)).unwrap();
        for (sampled, score) in generated.tokens.iter().zip(scored.spans[0].scores()) {
            assert_eq!((sampled.logprob, &sampled.top), (score.logprob.clone().ok(), &score.top));
            assert!(temperature > 0.0 || sampled.top.entries()[0].0 == sampled.id);
        }
    }
}

#[test]
fn a_sequence_does_not_depend_on_its_company() {
    let long: Vec<TokenId> = (0..200).map(|i| (i * 31) % 128).collect();
    let requests = [
        GenerateRequest { place: Place { vote: 1, ..Place::default() }, ..request(&long, 1.0, 30) },
        request(&long, 1.0, 50),
        request(&long[..7], 0.7, 20),
        request(&[9], 0.0, 45),
        request(&long[..100], 1.0, 1),
    ];
    let mut engine = engine("tiny-qwen2", EngineOptions::default());
    let together = generate(&mut engine, &requests);
    assert_ne!(ids(&together[0]), ids(&together[1])[..30], "another place is another draw");
    assert_eq!(together[1].usage.cached_tokens, Some(199), "an equal prompt is read once");
    let fresh = || {
        Engine::load_with(
            &fixture("tiny-qwen2"),
            &EngineOptions { cache_bytes: 0, ..EngineOptions::default() },
        )
    };
    for (request, together) in requests.iter().zip(&together) {
        let alone = generate(&mut fresh().unwrap(), std::slice::from_ref(request)).remove(0);
        assert_eq!(alone.tokens, together.tokens);
    }
}

#[test]
fn sampling_stops_where_it_should() {
    let mut engine = engine("tiny-llama", EngineOptions::default());
    let free = ids(&generate(&mut engine, &[request(&[7, 8], 0.0, 12)])[0]);
    let stop = free[5];
    let first = free.iter().position(|&id| id == stop).unwrap();
    let stopped =
        generate(&mut engine, &[GenerateRequest { stop_ids: vec![stop], ..request(&[7, 8], 0.0, 12) }])
            .remove(0);
    assert_eq!((ids(&stopped), stopped.finish), (free[..=first].to_vec(), Finish::Stop));
    let nothing = generate(&mut engine, &[request(&[7, 8], 0.0, 0)]).remove(0);
    assert_eq!((nothing.tokens.len(), nothing.finish), (0, Finish::Length));
    let edge = generate(&mut engine, &[request(&vec![3; 8190], 0.0, 9)]).remove(0);
    assert_eq!((edge.tokens.len(), edge.finish), (2, Finish::Length));
    let message = |request: GenerateRequest| engine.generate(&[request])[0].as_ref().unwrap_err().to_string();
    let mut message = message;
    assert_eq!(message(request(&[], 0.0, 1)), "the prompt has no tokens");
    assert_eq!(message(request(&[200], 0.0, 1)), "token 200 at position 0 is outside the vocabulary of 131");
    assert_eq!(
        message(request(&vec![3; 8192], 0.0, 1)),
        "8192 tokens do not fit into the model's context of 8192"
    );
    assert_eq!(message(request(&[1], -1.0, 1)), "temperature -1 is no temperature");
}

#[test]
fn a_constraint_shapes_what_even_a_random_model_writes() {
    let mut engine = engine("tiny-llama", EngineOptions::default());
    let mut tokens: Vec<_> = (0..128u8).map(|byte| Some(vec![byte])).collect();
    tokens.resize(131, None);
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "name": {"enum": ["read_file", "run_tests"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 999},
            "ok": {"type": "boolean"},
            "note": {"type": "string", "maxLength": 12},
        },
        "required": ["name", "count", "ok", "note"],
        "additionalProperties": false,
    });
    let constrained = |constraint: Constraint, seed: u64| {
        let mut request = request(&[1, 2, 3], 1.0, 200);
        request.sampling.constraint = Some(constraint);
        request.sampling.seed = Some(seed);
        request
    };
    let requests: Vec<_> =
        (0..20).map(|seed| constrained(Constraint::JsonSchema(schema.clone()), seed)).collect();
    assert!(
        engine.generate(&requests[..1])[0].is_err(),
        "without the tokens' bytes no constraint can be followed"
    );
    engine.set_vocabulary(&TokenBytes { tokens, end: 130 }).unwrap();
    let text = |generated: &Generated| {
        let bytes = ids(generated).iter().filter(|&&id| id != 130).map(|&id| id as u8).collect();
        String::from_utf8(bytes).unwrap()
    };
    for generated in generate(&mut engine, &requests) {
        let text = text(&generated);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{text}: {why}"));
        assert_eq!(generated.finish, Finish::Stop, "{text}");
        assert!(value["count"].as_u64().is_some_and(|it| it < 1000) && value["ok"].is_boolean(), "{text}");
        assert!(["read_file", "run_tests"].contains(&value["name"].as_str().unwrap()), "{text}");
    }
    let regex = constrained(Constraint::Regex("[a-f]{3}-(x|yz)+!".to_owned()), 3);
    let generated = generate(&mut engine, &[regex]).remove(0);
    let text = text(&generated);
    let (head, tail) = text.strip_suffix('!').unwrap().split_once('-').unwrap();
    assert!(head.len() == 3 && head.bytes().all(|it| (b'a'..=b'f').contains(&it)), "{text}");
    assert!(!tail.is_empty() && tail.replace("yz", "").bytes().all(|it| it == b'x'), "{text}");
}
