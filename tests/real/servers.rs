//! The clients against real servers: every logprob compared with a direct request read as plain JSON, and with a forward
//! pass of our own over the very directory the server loaded.
//!
//! Runs where `BACKSIGHT_VLLM_URL` or `BACKSIGHT_SGLANG_URL` names a running server (start one with
//! `tests/servers/real-servers`). Servers named in `BACKSIGHT_REQUIRE_SERVERS` must be there.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests fail by panicking and may talk")]

use std::env;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use backsight::engine::engine::Engine;
use backsight::episode::{Content, Message, Role};
use backsight::model::Sglang;
use backsight::model::Vllm;
use backsight::model::{ChatRequest, Constraint, Finish, GenerateRequest, Generated, Model, Place, Sampling};
use backsight::model::{Remote, Wanted, kind_named};
use backsight::model::{Settings, Transport};
use backsight::score::ScoreJob;
use backsight::tokens::{Logprob, TokenId, TokenSpan};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::compared;

/// Servers repeat themselves to far better than this; the same text under another batch differs by 1e-4.
const TOLERANCE: f64 = 1e-3;
const VOCAB_SIZE: usize = 49_152;
const TEXTS: [&str; 3] = [
    "The capital of France is Paris, and naïve café owners in 東京 pay 12345 yen.",
    "fn main() {\n    let x: Vec<u32> = (0..10).collect();\n    println!(\"{x:?}\");\n}\n",
    "{\"name\": \"bash\", \"arguments\": {\"command\": \"ls -la && cat \\\"a b\\\"\"}}\t\u{1F600}",
];

fn url(name: &str) -> Option<String> {
    let url = env::var(name).ok().filter(|url| !url.is_empty());
    let required = env::var("BACKSIGHT_REQUIRE_SERVERS").unwrap_or_default();
    let is_required = required.split_whitespace().any(|server| name.contains(&server.to_uppercase()));
    assert!(url.is_some() || !is_required, "{name} is not set");
    if url.is_none() {
        eprintln!("{name} is not set: nothing was checked");
    }
    url.map(|url| url.trim_end_matches('/').to_owned())
}

fn transport(url: &str) -> Transport {
    Transport::open(&[url], Settings::default()).unwrap()
}

fn options() -> Wanted {
    Wanted { vocab_size: Some(VOCAB_SIZE), ..Wanted::default() }
}

async fn post(url: &str, path: &str, body: Value) -> Value {
    let response =
        crate::support::http::client().post(format!("{url}{path}")).json(&body).send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    assert!(status.is_success(), "{status} {text}");
    serde_json::from_str(&text).unwrap()
}

/// The texts as the server's own tokenizer has them, and sequences of random ids.
async fn sequences(url: &str, model: &str) -> Vec<Vec<TokenId>> {
    let mut all = Vec::new();
    for text in TEXTS {
        let answer = post(url, "/tokenize", json!({"model": model, "prompt": text})).await;
        all.push(ids(&answer["tokens"]));
    }
    let mut random = 7_u64;
    for length in [2, 17, 60] {
        let next = |_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % VOCAB_SIZE as u64) as TokenId
        };
        all.push((0..length).map(next).collect());
    }
    all
}

fn ids(json: &Value) -> Vec<TokenId> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

/// Jobs over one sequence with different spans and K.
fn jobs(tokens: &[TokenId]) -> Vec<ScoreJob> {
    let n = tokens.len();
    let spans = [vec![(0, n)], vec![(n / 2, n)], vec![(n - 1, n), (1, n / 2 + 1)]];
    let job = |(spans, top_k): (&Vec<(usize, usize)>, usize)| {
        let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
        ScoreJob::new(Arc::from(tokens), spans, top_k).unwrap()
    };
    spans.iter().zip([5, 0, 20]).map(job).collect()
}

/// What a position is worth according to a direct request: its logprob and its K best candidates.
type Truth = Vec<Option<(f64, Vec<(TokenId, f64)>)>>;

/// Compares every position of every span; gives how many were compared and the largest difference.
async fn compare(model: &dyn Model, job: &ScoreJob, truth: &Truth) -> (usize, f64) {
    let scored = model.score(job).await.unwrap();
    let (mut n, mut worst) = (0, 0.0_f64);
    for score in &scored.spans {
        for (position, score) in score.span().range().zip(score.scores()) {
            let found = score.logprob.as_ref().ok().map(|it| it.get());
            let expected = truth[position].as_ref();
            assert_eq!(found.is_some(), expected.is_some(), "position {position}");
            let (Some(found), Some((own, row))) = (found, expected) else { continue };
            worst = worst.max((found - own).abs());
            for (id, logprob) in row.iter().take(job.top_k()) {
                // Near ties may change places at the end of a row.
                let found = score.top.get(*id).map_or(row[job.top_k() - 1].1, Logprob::get);
                worst = worst.max((found - logprob).abs());
            }
            assert!(job.top_k() == 0 || score.top.get(job.tokens()[position]).is_some());
            n += 1;
        }
    }
    assert!(worst < TOLERANCE, "{worst}");
    (n, worst)
}

/// The largest difference to a forward pass of our own over the weights the server says it loaded.
async fn differs_from_own_pass(model: &dyn Model, path: &str, sequences: &[Vec<TokenId>]) -> f64 {
    let mut engine = Engine::load(Path::new(path)).unwrap();
    let (mut n, mut worst) = (0, 0.0_f64);
    for tokens in sequences {
        let job =
            ScoreJob::new(Arc::from(tokens.as_slice()), vec![TokenSpan::at(1, tokens.len() - 1)], 0).unwrap();
        let (theirs, ours) = (model.score(&job).await.unwrap(), engine.score(&job).unwrap());
        for (theirs, ours) in theirs.spans[0].logprobs().zip(ours.spans[0].logprobs()) {
            worst = worst.max((theirs.unwrap().get() - ours.unwrap().get()).abs());
            n += 1;
        }
    }
    compared(n, "positions with our own pass");
    worst
}

/// `backsight probe` and `backsight score`, as a user runs them, agree with the client.
async fn check_commands(url: &str, kind: &str, model: &dyn Model, tokens: &[TokenId]) {
    let run =
        |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_backsight")).args(arguments).output().unwrap();
    let probed = run(&["probe", url, "--json"]);
    let report: Value = serde_json::from_slice(&probed.stdout).unwrap();
    assert_eq!(
        (report["kind"].as_str(), report["tokenizer_agrees"].as_bool()),
        (Some(kind), Some(true)),
        "{report}"
    );
    assert_eq!(
        (report["deterministic"].as_bool(), report["self_test"]["ok"].as_bool()),
        (Some(true), Some(true))
    );
    let dir = tempfile::tempdir().unwrap();
    let (jobs, out) = (dir.path().join("jobs.jsonl"), dir.path().join("out.jsonl"));
    let line = json!({"id": 1, "tokens": tokens, "spans": [[0, tokens.len()]], "top_k": 4});
    std::fs::write(&jobs, format!("{line}\n")).unwrap();
    let scored =
        run(&["score", "--url", url, "--jobs", jobs.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(scored.status.success(), "{}", String::from_utf8_lossy(&scored.stderr));
    let row: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    let job = ScoreJob::new(Arc::from(tokens), vec![TokenSpan::at(0, tokens.len())], 4).unwrap();
    let direct = model.score(&job).await.unwrap();
    let mut n = 0;
    for (written, direct) in
        row["spans"][0]["logprobs"].as_array().unwrap().iter().zip(direct.spans[0].logprobs())
    {
        let difference = written.as_f64().zip(direct).map(|(a, b)| (a - b.get()).abs());
        assert!(
            difference.map_or(written.is_null() && direct.is_none(), |it| it < TOLERANCE),
            "{written} {direct:?}"
        );
        n += usize::from(difference.is_some());
    }
    compared(n, "positions of the command");
}

async fn vllm_truth(url: &str, model: &str, tokens: &[TokenId]) -> Truth {
    let body =
        json!({"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 20});
    let answer = post(url, "/v1/completions", body).await;
    let rows = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!(rows.len(), tokens.len());
    let row = |(row, id): (&Value, &TokenId)| {
        let entries = row.as_object()?;
        let own = entries[&id.to_string()]["logprob"].as_f64().unwrap();
        let mut best: Vec<(u64, TokenId, f64)> = entries
            .iter()
            .map(|(id, it)| {
                (it["rank"].as_u64().unwrap(), id.parse().unwrap(), it["logprob"].as_f64().unwrap())
            })
            .collect();
        best.sort_by_key(|entry| entry.0);
        Some((own, best.into_iter().map(|entry| (entry.1, entry.2)).collect()))
    };
    rows.iter().zip(tokens).map(row).collect()
}

async fn sglang_truth(url: &str, tokens: &[TokenId]) -> Truth {
    let sampling = json!({"max_new_tokens": 1, "temperature": 0});
    let body = json!({
        "input_ids": tokens, "sampling_params": sampling, "return_logprob": true,
        "logprob_start_len": 0, "top_logprobs_num": 20,
    });
    let meta = &post(url, "/generate", body).await["meta_info"];
    let own = meta["input_token_logprobs"].as_array().unwrap();
    assert_eq!(own.len(), tokens.len());
    let row = |(own, row): (&Value, &Value)| {
        let entry = |it: &Value| (it[1].as_u64().unwrap() as TokenId, it[0].as_f64().unwrap());
        Some((own[0].as_f64()?, row.as_array()?.iter().map(entry).collect()))
    };
    own.iter().zip(meta["input_top_logprobs"].as_array().unwrap()).map(row).collect()
}

fn sampling(temperature: f64, constraint: Option<Constraint>) -> Sampling {
    Sampling { temperature, top_p: 1.0, top_k: None, seed: Some(5), max_tokens: 12, constraint }
}

fn request(temperature: f64, constraint: Option<Constraint>) -> GenerateRequest {
    GenerateRequest {
        prompt: vec![1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
        sampling: sampling(temperature, constraint),
        stop_ids: vec![2],
        top_k: 3,
        place: Place::default(),
    }
}

/// What is sampled must be scored the same afterwards.
async fn check_samples(model: &dyn Model) -> Generated {
    let request = request(1.0, None);
    let drawn = model.generate(&request).await.unwrap();
    let sampled: Vec<_> = drawn.tokens.iter().map(|token| token.id).collect();
    let all: Vec<_> = request.prompt.iter().copied().chain(sampled).collect();
    let span = TokenSpan::new(request.prompt.len(), all.len()).unwrap();
    let scored = model.score(&ScoreJob::new(Arc::from(all), vec![span], 3).unwrap()).await.unwrap();
    for (token, score) in drawn.tokens.iter().zip(scored.spans[0].scores()) {
        let difference = token.logprob.unwrap().get() - score.logprob.as_ref().unwrap().get();
        assert!(difference.abs() < TOLERANCE, "{difference}");
        assert!(token.top.get(token.id).is_some());
    }
    assert!(!drawn.tokens.is_empty());
    compared(drawn.tokens.len(), "sampled tokens");
    drawn
}

async fn check_chat(model: &dyn Model) {
    let messages = vec![Message::text(Role::User, "What is the capital of France?")];
    let request =
        ChatRequest { messages, tools: vec![], sampling: sampling(0.0, None), place: Place::default() };
    let answer = model.chat(&request).await.unwrap();
    assert_eq!(answer.message.content, Some(Content::Text("The capital of France is Paris.".to_owned())));
    assert_eq!(answer.finish, Finish::Stop);
    assert!(answer.usage.prompt_tokens > 10 && answer.usage.completion_tokens == 8);
    let regex = Some(Constraint::Regex("yes|no".to_owned()));
    let forced = model.chat(&ChatRequest { sampling: sampling(1.0, regex), ..request }).await.unwrap();
    let text = forced.message.content.as_ref().map(Content::text).unwrap();
    assert!(["yes", "no"].contains(&text.as_str()), "{text}");
}

#[tokio::test]
async fn vllm() {
    let Some(url) = url("BACKSIGHT_VLLM_URL") else { return };
    let options = options();
    let model =
        Remote::ask(transport(&url), kind_named("vllm").unwrap(), &options).await.map(Vllm::new).unwrap();
    let limits = model.limits();
    assert!(limits.token_ids && limits.scores && !limits.start_index, "{limits:?}");
    assert_eq!(
        (limits.context_length, limits.vocab_size, limits.max_top_k),
        (Some(4096), Some(VOCAB_SIZE), Some(50))
    );
    let (mut n, mut worst) = (0, 0.0_f64);
    for tokens in sequences(&url, &model.remote.info.model).await {
        let truth = vllm_truth(&url, &model.remote.info.model, &tokens).await;
        for job in jobs(&tokens) {
            let (more, difference) = compare(&model, &job, &truth).await;
            (n, worst) = (n + more, worst.max(difference));
        }
    }
    eprintln!("vLLM: {n} positions compared, largest difference {worst:.2e}");
    compared(n, "positions");
    assert!(n > 200);
    let sequences = sequences(&url, &model.remote.info.model).await;
    let own =
        differs_from_own_pass(&model, model.remote.info.model_path.as_deref().unwrap(), &sequences).await;
    eprintln!("vLLM: largest difference from our own pass {own:.2e}");
    assert!(own < TOLERANCE);
    check_commands(&url, "vllm", &model, &sequences[0]).await;
    check_samples(&model).await;
    let own = model.generate(&request(0.7, None)).await.unwrap();
    assert!(own.tokens.iter().all(|token| token.logprob.is_some()), "vLLM reports before the temperature");
    let forced = model.generate(&request(1.0, Some(Constraint::Regex("yes|no".into())))).await.unwrap();
    assert!(forced.tokens.iter().all(|token| token.logprob.is_none()));
    assert_eq!(options.notices.take().len(), 1);
    let job = ScoreJob::new(Arc::from([1, 2]), vec![TokenSpan::at(1, 1)], 60).unwrap();
    let row = &model.score(&job).await.unwrap().spans[0].scores()[0].top.clone();
    assert!((50..=51).contains(&row.entries().len()));
    assert!(options.notices.take()[0].contains("at most 50 candidates"));
    check_chat(&model).await;
}

#[tokio::test]
async fn sglang() {
    let Some(url) = url("BACKSIGHT_SGLANG_URL") else { return };
    let options = options();
    let model =
        Remote::ask(transport(&url), kind_named("sglang").unwrap(), &options).await.map(Sglang::new).unwrap();
    let limits = model.limits();
    assert!(limits.token_ids && limits.scores && limits.start_index && limits.cached_scores, "{limits:?}");
    assert_eq!((limits.context_length, limits.max_top_k), (Some(4096), None));
    let (mut n, mut worst) = (0, 0.0_f64);
    for tokens in sequences(&url, &model.remote.info.model).await {
        let truth = sglang_truth(&url, &tokens).await;
        let jobs = jobs(&tokens);
        for job in &jobs {
            let (more, difference) = compare(&model, job, &truth).await;
            (n, worst) = (n + more, worst.max(difference));
        }
        check_batch(&model, &jobs).await;
    }
    eprintln!("SGLang: {n} positions compared, largest difference {worst:.2e}");
    compared(n, "positions");
    assert!(n > 200);
    let sequences = sequences(&url, &model.remote.info.model).await;
    let own =
        differs_from_own_pass(&model, model.remote.info.model_path.as_deref().unwrap(), &sequences).await;
    eprintln!("SGLang: largest difference from our own pass {own:.2e}");
    assert!(own < TOLERANCE);
    check_commands(&url, "sglang", &model, &sequences[0]).await;
    check_samples(&model).await;
    let scaled = model.generate(&request(0.7, None)).await.unwrap();
    assert!(
        scaled.tokens.iter().all(|token| token.logprob.is_none()),
        "SGLang reports after the temperature"
    );
    assert!(options.notices.take()[0].contains("after the temperature"));
    check_chat(&model).await;
    check_cache(&model).await;
}

/// A batch gives what its jobs give alone.
async fn check_batch(model: &Sglang, jobs: &[ScoreJob]) {
    for (job, batched) in jobs.iter().zip(model.score_many(jobs).await) {
        let alone = model.score(job).await.unwrap();
        for (alone, batched) in alone.spans.iter().zip(&batched.unwrap().spans) {
            let both = alone.logprobs().zip(batched.logprobs());
            let close = |(a, b): (Option<Logprob>, Option<Logprob>)| match (a, b) {
                (Some(a), Some(b)) => (a.get() - b.get()).abs() < TOLERANCE,
                (a, b) => a == b,
            };
            assert!(both.into_iter().all(close));
        }
    }
}

/// The beginning of a prompt that was seen before is not computed again.
async fn check_cache(model: &Sglang) {
    let tokens: Vec<TokenId> = (0..200).map(|it| 1000 + it * 7).collect();
    let job = ScoreJob::new(Arc::from(tokens), vec![TokenSpan::at(150, 50)], 2).unwrap();
    model.score(&job).await.unwrap();
    let again = model.score(&job).await.unwrap();
    assert_eq!(again.usage.cached_tokens, Some(149));
}

/// A prompt of eight tokens, unlike any other `n` at its beginning and like all of them at its end, which is scored.
fn alike(n: usize, top_k: usize) -> ScoreJob {
    let first = [n % 16, n / 16 % 16, n / 256 % 16, 7].map(|it| 3000 + 17 * it as TokenId);
    let tokens: Vec<TokenId> = first.into_iter().chain([3575, 282, 4649, 314]).collect();
    ScoreJob::new(tokens.into(), vec![TokenSpan::at(4, 4)], top_k).unwrap()
}

/// A way to a server that counts how often something had to be asked again.
fn counting(url: &str) -> (Transport, Arc<AtomicUsize>) {
    let retries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&retries);
    let watch = Arc::new(move |_| {
        counted.fetch_add(1, Relaxed);
    });
    let settings = Settings { watch: Some(watch), ..Settings::default() };
    (Transport::open(&[url], settings).unwrap(), retries)
}

/// A thousand requests at once, alone and in batches: each prompt gets its own numbers, and no answer is refused.
async fn check_thousand(model: &dyn Model, path: &str) {
    let mut engine = Engine::load(Path::new(path)).unwrap();
    let expected: Vec<_> = (0..250).map(|n| engine.score(&alike(n, 0)).unwrap()).collect();
    let check = |n: usize, scored: backsight::model::Scored| {
        let both = scored.spans[0].logprobs().zip(expected[n].spans[0].logprobs());
        for (found, expected) in both {
            let difference = found.unwrap().get() - expected.unwrap().get();
            assert!(difference.abs() < TOLERANCE, "prompt {n}: {difference}");
        }
        scored.spans[0].scores().len()
    };
    let asked = (0..1000).map(async |request| match (request % 25, request % 250) {
        (0, n) => {
            let prompt = alike(n, 0).tokens().to_vec();
            let drawn =
                model.generate(&GenerateRequest { prompt, ..self::request(1.0, None) }).await.unwrap();
            drawn.tokens.iter().filter(|token| token.logprob.is_some()).count()
        }
        (1..5, n) => {
            let pair = [n, (n + 100) % 250];
            let all = model.score_many(&pair.map(|n| alike(n, 3))).await;
            pair.into_iter().zip(all).map(|(n, scored)| check(n, scored.unwrap())).sum()
        }
        (_, n) => check(n, model.score(&alike(n, request % 3)).await.unwrap()),
    });
    let n = join_all(asked).await.into_iter().sum();
    compared(n, "tokens of a thousand requests at once");
}

#[tokio::test]
async fn vllm_answers_by_name() {
    let Some(url) = url("BACKSIGHT_VLLM_URL") else { return };
    let (transport, retries) = counting(&url);
    let model =
        Remote::ask(transport.clone(), kind_named("vllm").unwrap(), &options()).await.map(Vllm::new).unwrap();
    let prompt = alike(1, 0).tokens().to_vec();
    for more in [json!({"prompt_logprobs": 2}), json!({"logprobs": 2})] {
        let mut body = json!({"model": model.remote.info.model, "prompt": prompt, "max_tokens": 1, "request_id": "mine", "return_token_ids": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = post(&url, "/v1/completions", body).await;
        assert_eq!((&answer["id"], &answer["usage"]["prompt_tokens"]), (&json!("cmpl-mine"), &json!(8)));
        assert_eq!(ids(&answer["choices"][0]["prompt_token_ids"]), prompt);
    }
    check_thousand(&model, model.remote.info.model_path.as_deref().unwrap()).await;
    assert_eq!((transport.ids_echoed(), retries.load(Relaxed)), (Some(true), 0));
}

#[tokio::test]
async fn sglang_answers_by_name() {
    let Some(url) = url("BACKSIGHT_SGLANG_URL") else { return };
    let (transport, retries) = counting(&url);
    let model = Remote::ask(transport.clone(), kind_named("sglang").unwrap(), &options())
        .await
        .map(Sglang::new)
        .unwrap();
    let [one, two] = [1, 2].map(|n| alike(n, 0).tokens().to_vec());
    let forms = [
        json!({"input_ids": one, "rid": "mine", "sampling_params": {"max_new_tokens": 0}, "logprob_start_len": 3}),
        json!({"input_ids": one, "rid": "mine", "sampling_params": {"max_new_tokens": 2}, "logprob_start_len": -1}),
        json!({"input_ids": [one, two], "rid": ["mine", "other"], "sampling_params": {"max_new_tokens": 0}, "logprob_start_len": [3, 3]}),
    ];
    for mut body in forms {
        body["return_logprob"] = json!(true);
        let answer = post(&url, "/generate", body.clone()).await;
        let all = answer.as_array().cloned().unwrap_or_else(|| vec![answer]);
        for (answer, id) in all.iter().zip(["mine", "other"]) {
            let meta = &answer["meta_info"];
            assert_eq!((&meta["id"], &meta["prompt_tokens"]), (&json!(id), &json!(8)), "{body}");
            assert_eq!(meta["weight_version"], meta["weight_versions"][0]["version"]);
        }
    }
    check_thousand(&model, model.remote.info.model_path.as_deref().unwrap()).await;
    assert_eq!((transport.ids_echoed(), retries.load(Relaxed)), (Some(true), 0));
}

#[tokio::test]
async fn both_servers_agree() {
    let (Some(vllm), Some(sglang)) = (url("BACKSIGHT_VLLM_URL"), url("BACKSIGHT_SGLANG_URL")) else { return };
    let a =
        Remote::ask(transport(&vllm), kind_named("vllm").unwrap(), &options()).await.map(Vllm::new).unwrap();
    let b = Remote::ask(transport(&sglang), kind_named("sglang").unwrap(), &options())
        .await
        .map(Sglang::new)
        .unwrap();
    let (mut n, mut worst) = (0, 0.0_f64);
    for tokens in sequences(&vllm, &a.remote.info.model).await {
        let job =
            ScoreJob::new(Arc::from(tokens.as_slice()), vec![TokenSpan::at(0, tokens.len())], 0).unwrap();
        let (a, b) = (a.score(&job).await.unwrap(), b.score(&job).await.unwrap());
        for (a, b) in a.spans[0].logprobs().zip(b.spans[0].logprobs()).skip(1) {
            worst = worst.max((a.unwrap().get() - b.unwrap().get()).abs());
            n += 1;
        }
    }
    eprintln!("vLLM and SGLang differ by at most {worst:.2e}");
    compared(n, "positions between servers");
    assert!(worst < TOLERANCE);
}
