//! Recorded answers of real servers, decoded and compared with a plain reading of the same JSON.
//!
//! Every file below `tests/fixtures/wire` for a model server belongs to one kind of answer; the
//! number of files of each kind is part of the test, so that none is passed over unseen.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use backsight::model::ToldVersion;
use backsight::model::{Finish, Generated, Scored, Usage};
use backsight::score::{ScoreJob, SpanScore};
use backsight::tokens::{Logprob, TokenId, TokenSpan, TopK};
use backsight::wire::{error, openai, sglang, vllm};
use serde_json::Value;

/// One recorded exchange.
struct Exchange {
    name: String,
    path: String,
    status: u64,
    request: Value,
    response: Value,
}

impl Exchange {
    fn body(&self) -> Vec<u8> {
        self.response.to_string().into_bytes()
    }
}

fn exchanges(server: &str) -> Vec<Exchange> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/wire").join(server);
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let exchange = |path: &std::path::PathBuf| {
        let json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let url = json["url"].as_str().unwrap_or_default();
        Exchange {
            name: format!("{server}/{}", path.file_stem().unwrap().to_str().unwrap()),
            path: url.split_once("//").and_then(|it| it.1.split_once('/')).map_or("", |it| it.1).to_owned(),
            status: json["status"].as_u64().unwrap_or(0),
            request: json["request"].clone(),
            response: json["response"].clone(),
        }
    };
    paths.iter().map(exchange).collect()
}

/// Runs `check` on every exchange and compares how many there were of each kind.
fn check(server: &str, expected: &[(&str, usize)], check: impl Fn(&Exchange) -> &'static str) {
    let mut found = BTreeMap::new();
    for exchange in exchanges(server) {
        *found.entry(check(&exchange)).or_insert(0) += 1;
    }
    assert_eq!(found, expected.iter().copied().collect(), "kinds of answers of {server}");
}

#[test]
fn vllm() {
    let expected = [
        ("a list of models", 1),
        ("a version", 1),
        ("a cut prompt", 1),
        ("a refusal", 17),
        ("chat", 6),
        ("no ids", 7),
        ("sampled", 5),
        ("scores", 8),
        ("two prompts", 1),
        ("routes we do not use", 10),
    ];
    check("vllm-0.32.0", &expected, |it| match it.path.as_str() {
        _ if it.status >= 400 => check_refusal(it),
        "v1/models" => check_models(it, "smollm2", "vllm", Some(4096)),
        "version" => {
            assert_eq!(vllm::version(&it.body()).unwrap(), "0.32.0");
            "a version"
        }
        "v1/chat/completions" => check_chat(it),
        "v1/completions" => check_vllm_completion(it),
        _ => "routes we do not use",
    });
}

#[test]
fn sglang() {
    let expected = [
        ("a list of models", 1),
        ("a refusal", 6),
        ("about the server", 4),
        ("batch", 4),
        ("chat", 2),
        ("killed", 1),
        ("no logprobs", 3),
        ("sampled", 6),
        ("scores", 10),
        ("scores of chosen candidates", 2),
        ("routes we do not use", 7),
    ];
    check("sglang-0.5.23", &expected, |it| match it.path.as_str() {
        "" => "killed",
        _ if it.status >= 400 => check_refusal(it),
        "v1/models" => check_models(it, "smollm2", "sglang", Some(4096)),
        "get_model_info" | "model_info" | "get_server_info" | "server_info" => check_info(it),
        "v1/chat/completions" => check_chat(it),
        "generate" => check_sglang_generate(it),
        _ => "routes we do not use",
    });
}

#[test]
fn llama_cpp() {
    let expected = [
        ("a list of models", 1),
        ("a refusal", 2),
        ("chat", 1),
        ("no prompt logprobs", 3),
        ("routes we do not use", 5),
    ];
    check("llama.cpp", &expected, |it| match it.path.as_str() {
        _ if it.status >= 400 => check_refusal(it),
        "v1/models" => {
            let listed = openai::models(&it.body()).unwrap();
            assert_eq!(listed[0].vocab_size(), Some(49_152));
            check_models(it, "smollm2", "llamacpp", Some(4096))
        }
        "v1/chat/completions" => check_chat(it),
        "v1/completions" => {
            let job = whole_job(&[1, 2, 3], 1, 3);
            let why = vllm::scores(&it.body(), &job, 3, 3).unwrap_err();
            assert_eq!(why, "the answer has no prompt_logprobs", "{}", it.name);
            "no prompt logprobs"
        }
        _ => "routes we do not use",
    });
}

fn check_refusal(it: &Exchange) -> &'static str {
    let message = error::server_message(&it.body());
    let places = ["/error/message", "/message", "/detail"];
    let told = places.iter().find_map(|place| it.response.pointer(place)?.as_str()).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(told), words(&message), "{}", it.name);
    let limit = vllm::logprob_limit(&message).map(|limit| (limit.asked, limit.allowed));
    let expected = match it.name.as_str() {
        "vllm-0.32.0/14_prompt_logprobs_over_limit" | "vllm-0.32.0/16_logprobs_over_limit_chat" => {
            Some((51, 50))
        }
        "vllm-0.32.0/15_prompt_logprobs_minus1" => Some((49_152, 50)),
        _ => None,
    };
    assert_eq!(limit, expected, "{}", it.name);
    "a refusal"
}

fn check_models(it: &Exchange, id: &str, owner: &str, context_length: Option<usize>) -> &'static str {
    let listed = openai::models(&it.body()).unwrap();
    assert_eq!(listed.len(), it.response["data"].as_array().unwrap().len());
    assert_eq!((listed[0].id.as_str(), listed[0].owned_by.as_deref()), (id, Some(owner)));
    assert_eq!(listed[0].context_length(), context_length);
    assert_eq!(listed[0].root.as_deref(), it.response["data"][0]["root"].as_str());
    "a list of models"
}

fn check_info(it: &Exchange) -> &'static str {
    let info = sglang::info(&it.body()).unwrap();
    assert_eq!(info.model_path.as_deref(), Some("models/SmolLM2-135M-Instruct"));
    assert_eq!(info.tokenizer_path.as_deref(), Some("models/SmolLM2-135M-Instruct"));
    assert_eq!(info.weight_version.as_deref(), it.response["weight_version"].as_str());
    assert_eq!(info.version.as_deref(), it.response["version"].as_str());
    assert_eq!(info.context_length.map(|it| it as u64), it.response["context_length"].as_u64());
    if it.path.contains("server") {
        assert_eq!((info.version.as_deref(), info.disable_radix_cache), (Some("0.5.23"), Some(false)));
    }
    "about the server"
}

fn check_chat(it: &Exchange) -> &'static str {
    let answered = openai::answered(&it.body()).unwrap().remove(0);
    let choice = &it.response["choices"][0];
    let written = backsight::chat::messages::to_json(&answered.message);
    assert_eq!(written["content"], choice["message"]["content"], "{}", it.name);
    let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
    // A server may say `stop` beside a call.
    let ended = if calls.is_empty() { choice["finish_reason"].as_str() } else { Some("tool_calls") };
    assert_eq!(written.get("tool_calls").cloned().unwrap_or(Value::Array(vec![])), Value::Array(calls));
    assert_eq!(Some(word(&answered.finish)), ended);
    assert_eq!(answered.usage, openai_counts(&it.response));
    "chat"
}

/// A reason to end as servers write it.
fn word(finish: &Finish) -> &str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
        Finish::Other(word) => word,
    }
}

fn openai_counts(response: &Value) -> Usage {
    let usage = &response["usage"];
    Usage {
        prompt_tokens: usage["prompt_tokens"].as_u64().unwrap(),
        cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        completion_tokens: usage["completion_tokens"].as_u64().unwrap(),
    }
}

fn ids(json: &Value) -> Vec<TokenId> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

fn check_vllm_completion(it: &Exchange) -> &'static str {
    let choice = &it.response["choices"][0];
    if choice["prompt_logprobs"].is_null() {
        return check_vllm_sampled(it);
    }
    let top_k = it.request["prompt_logprobs"].as_u64().or(it.request["logprobs"].as_u64()).unwrap() as usize;
    if it.response["choices"].as_array().unwrap().len() > 1 {
        let job = whole_job(&ids(&it.request["prompt"][0]), top_k, 3);
        let why = vllm::scores(&it.body(), &job, 3, top_k).unwrap_err();
        assert!(why.contains("choices for one prompt") || why.contains("tokens were sent"), "{why}");
        return "two prompts";
    }
    let prompt = match (&it.request["prompt"], &choice["prompt_token_ids"]) {
        (Value::Array(_), _) => ids(&it.request["prompt"]),
        (_, Value::Array(_)) => ids(&choice["prompt_token_ids"]),
        _ => return "no ids",
    };
    if !it.request["truncate_prompt_tokens"].is_null() {
        let why = vllm::scores(&it.body(), &whole_job(&prompt, top_k, 1), prompt.len(), top_k).unwrap_err();
        assert_eq!(why, "position 1 has no logprob for token 87, which was sent there");
        return "a cut prompt";
    }
    for job in jobs(&prompt, top_k) {
        let (_, scores) = vllm::scores(&it.body(), &job, prompt.len(), top_k).unwrap();
        assert_eq!(scores.usage, openai_counts(&it.response));
        assert_eq!(scores.version, None, "completions tell no version");
        let row = |position: usize| vllm_row(&choice["prompt_logprobs"][position], top_k);
        let own = |position: usize| {
            choice["prompt_logprobs"][position][prompt[position].to_string()]["logprob"].as_f64()
        };
        check_spans(&it.name, &job, &scores.spans, own, row);
    }
    "scores"
}

/// The candidates in the order of their ranks, the given token among them.
fn vllm_row(json: &Value, top_k: usize) -> Vec<(TokenId, f64)> {
    let Some(entries) = json.as_object().filter(|_| top_k > 0) else { return vec![] };
    let mut ranked: Vec<_> = entries
        .iter()
        .map(|(id, it)| (it["rank"].as_u64().unwrap(), id.parse().unwrap(), it["logprob"].as_f64().unwrap()))
        .collect();
    ranked.sort_by_key(|entry| entry.0);
    ranked.into_iter().map(|(_, id, logprob)| (id, logprob)).collect()
}

fn check_vllm_sampled(it: &Exchange) -> &'static str {
    let choice = &it.response["choices"][0];
    let Some(prompt) = choice["prompt_token_ids"].as_array() else {
        assert_eq!(
            vllm::drawn(&it.body(), &[1], 0).unwrap_err(),
            "the answer has no token_ids",
            "{}",
            it.name
        );
        return "no ids";
    };
    let prompt = ids(&Value::Array(prompt.clone()));
    let top_k = it.request["logprobs"].as_u64().unwrap_or(0) as usize;
    let (_, drawn) = vllm::drawn(&it.body(), &prompt, top_k).unwrap();
    let logprobs = &choice["logprobs"];
    let top = |index: usize| {
        let row = logprobs["top_logprobs"][index].as_object().unwrap().iter();
        let entry = |(name, it): (&String, &Value)| {
            (name.strip_prefix("token_id:").unwrap().parse().unwrap(), it.as_f64().unwrap())
        };
        row.map(entry).filter(|it: &(TokenId, f64)| it.1 > -9999.0).collect()
    };
    check_drawn(
        it,
        &drawn,
        &ids(&choice["token_ids"]),
        top_k,
        |index| logprobs["token_logprobs"][index].as_f64(),
        top,
    );
    assert_eq!(Some(word(&drawn.finish)), choice["finish_reason"].as_str());
    assert_eq!(drawn.usage, openai_counts(&it.response));
    assert_eq!(drawn.versions, [], "completions tell no version");
    let why = vllm::drawn(&it.body(), &prompt[1..], top_k).unwrap_err();
    assert_eq!(why, "the server read another prompt than the one that was sent");
    "sampled"
}

fn check_drawn(
    it: &Exchange,
    drawn: &Generated,
    ids: &[TokenId],
    top_k: usize,
    own: impl Fn(usize) -> Option<f64>,
    top: impl Fn(usize) -> Vec<(TokenId, f64)>,
) {
    assert!(drawn.tokens.iter().map(|token| &token.id).eq(ids), "{}", it.name);
    assert!(!ids.is_empty());
    for index in 0..ids.len() {
        assert_eq!(drawn.tokens[index].logprob.map(Logprob::get), own(index), "{}", it.name);
        let mut expected = if top_k > 0 { top(index) } else { vec![] };
        expected.sort_by(|a, b| b.1.total_cmp(&a.1));
        assert_eq!(entries(&drawn.tokens[index].top), expected, "{}", it.name);
    }
}

fn check_sglang_generate(it: &Exchange) -> &'static str {
    if it.response.is_array() {
        return check_sglang_batch(it);
    }
    let meta = &it.response["meta_info"];
    if it.request["return_logprob"] != true {
        let why = sglang::drawn(&it.body(), 1, 0).unwrap_err();
        assert_eq!(why, "the answer has no output_token_logprobs", "{}", it.name);
        return "no logprobs";
    }
    if meta["input_token_logprobs"].as_array().unwrap().is_empty() {
        return check_sglang_sampled(it);
    }
    let given =
        ids(&meta["input_token_logprobs"].as_array().unwrap().iter().map(|it| it[1].clone()).collect());
    let prompt = it.request["input_ids"].as_array().map_or(given, |_| ids(&it.request["input_ids"]));
    let start = start_len(&it.request, None);
    let job = choosing(whole_job(&prompt, top_k(&it.request, None), start + 1), &it.request);
    check_sglang_scores(&it.name, &job, start, &it.response);
    if job.chosen().is_empty() { "scores" } else { "scores of chosen candidates" }
}

/// A job that asks at every position for the candidates a recorded request names.
fn choosing(job: ScoreJob, request: &Value) -> ScoreJob {
    if request["token_ids_logprob"].is_null() {
        return job;
    }
    let n = job.spans().iter().map(|span| span.len()).sum();
    job.choosing(vec![ids(&request["token_ids_logprob"]).into(); n]).unwrap()
}

fn start_len(request: &Value, index: Option<usize>) -> usize {
    let start = &request["logprob_start_len"];
    index.map_or(start, |index| if start.is_array() { &start[index] } else { start }).as_u64().unwrap()
        as usize
}

fn top_k(request: &Value, index: Option<usize>) -> usize {
    let top_k = &request["top_logprobs_num"];
    let top_k = index.map_or(top_k, |index| if top_k.is_array() { &top_k[index] } else { top_k });
    top_k.as_u64().unwrap_or(0) as usize
}

fn check_sglang_scores(name: &str, job: &ScoreJob, start: usize, response: &Value) {
    let window = sglang::Window::of(job).unwrap();
    assert_eq!(window.start_len(), start);
    let (_, scores) = sglang::scores(response.to_string().as_bytes(), job, window).unwrap();
    check_sglang_spans(name, job, start, &scores, response);
}

fn check_sglang_spans(name: &str, job: &ScoreJob, start: usize, scores: &Scored, response: &Value) {
    let meta = &response["meta_info"];
    let prompt = job.tokens();
    assert_eq!(scores.usage.cached_tokens, meta["cached_tokens"].as_u64());
    assert_eq!(scores.usage.prompt_tokens, prompt.len() as u64);
    assert_eq!(scores.version.as_deref(), Some("default"));
    let own = |position: usize| meta["input_token_logprobs"][position - start][0].as_f64();
    let row = |position: usize| {
        let mut row = sglang_row(meta, position - start, job.top_k());
        if !job.chosen().is_empty() {
            row.extend(triples(&meta["input_token_ids_logprobs"][position - start]));
        }
        let has_row = job.top_k() > 0 || !job.chosen().is_empty();
        if has_row && row.iter().all(|entry| entry.0 != prompt[position]) {
            row.push((prompt[position], own(position).unwrap()));
        }
        if !job.chosen().is_empty() {
            row.sort_by(|a, b| b.1.total_cmp(&a.1));
        }
        row
    };
    check_spans(name, job, &scores.spans, own, row);
}

fn triples(json: &Value) -> Vec<(TokenId, f64)> {
    let entry = |it: &Value| (it[1].as_u64().unwrap() as TokenId, it[0].as_f64().unwrap());
    json.as_array().unwrap().iter().map(entry).collect()
}

/// One row from the nested, the flat or the base64 form.
fn sglang_row(meta: &Value, index: usize, top_k: usize) -> Vec<(TokenId, f64)> {
    if top_k == 0 {
        return vec![];
    }
    if let Some(rows) = meta["input_top_logprobs"].as_array() {
        return triples(&rows[index]);
    }
    let first = (index - meta["input_top_logprobs_null_prefix"].as_u64().unwrap() as usize) * top_k;
    let entry = |at: usize| match &meta["input_top_logprobs_val_flat"] {
        Value::Array(values) => (
            meta["input_top_logprobs_idx_flat"][at].as_u64().unwrap() as TokenId,
            values[at].as_f64().unwrap(),
        ),
        _ => {
            let value = f32::from_le_bytes(base64_word(&meta["input_top_logprobs_val_flat_b64"], at));
            let id = i32::from_le_bytes(base64_word(&meta["input_top_logprobs_idx_flat_b64"], at));
            (id as TokenId, f64::from(value))
        }
    };
    (first..first + top_k).map(entry).collect()
}

/// The four bytes of word `at`, decoded by hand.
fn base64_word(text: &Value, at: usize) -> [u8; 4] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.as_str().unwrap().bytes().filter(|&it| it != b'=');
    let values: Vec<u32> =
        digits.map(|it| DIGITS.iter().position(|&digit| digit == it).unwrap() as u32).collect();
    let bit = |n: usize| (values[n / 6] >> (5 - n % 6)) & 1;
    let byte = |n: usize| (0..8).fold(0, |byte, i| byte << 1 | bit(8 * n + i)) as u8;
    [0, 1, 2, 3].map(|i| byte(4 * at + i))
}

fn check_sglang_batch(it: &Exchange) -> &'static str {
    let prompts: Vec<_> = it.request["input_ids"].as_array().unwrap().iter().map(ids).collect();
    let jobs: Vec<ScoreJob> = prompts
        .iter()
        .enumerate()
        .map(|(index, prompt)| {
            whole_job(prompt, top_k(&it.request, Some(index)), start_len(&it.request, Some(index)) + 1)
        })
        .collect();
    let sent: Vec<_> = jobs.iter().map(|job| (job, sglang::Window::of(job).unwrap())).collect();
    let all = sglang::batch_scores(&it.body(), &sent).unwrap();
    for (index, scores) in all.iter().enumerate() {
        let start = start_len(&it.request, Some(index));
        check_sglang_spans(&it.name, &jobs[index], start, &scores.as_ref().unwrap().1, &it.response[index]);
    }
    assert_eq!(all.len(), prompts.len());
    let why = sglang::batch_scores(&it.body(), &sent[..1]).unwrap_err();
    assert_eq!(why, "2 answers for 1 jobs");
    "batch"
}

fn check_sglang_sampled(it: &Exchange) -> &'static str {
    let meta = &it.response["meta_info"];
    let top_k = top_k(&it.request, None);
    let n_sent = meta["prompt_tokens"].as_u64().unwrap() as usize;
    let (_, drawn) = sglang::drawn(&it.body(), n_sent, top_k).unwrap();
    let own = |index: usize| meta["output_token_logprobs"][index][0].as_f64();
    let top = |index: usize| {
        let given = meta["output_token_logprobs"][index][1].as_u64().unwrap() as TokenId;
        let mut row = triples(&meta["output_top_logprobs"][index]);
        row.retain(|entry| entry.1 > -1e38);
        if row.iter().all(|entry| entry.0 != given) {
            row.push((given, own(index).unwrap()));
        }
        row
    };
    check_drawn(it, &drawn, &ids(&it.response["output_ids"]), top_k, own, top);
    assert_eq!(Some(word(&drawn.finish)), meta["finish_reason"]["type"].as_str());
    assert_eq!(drawn.usage.cached_tokens, meta["cached_tokens"].as_u64());
    let version = ToldVersion { version: "default".to_owned(), span: TokenSpan::at(0, drawn.tokens.len()) };
    assert_eq!(drawn.versions, [version]);
    "sampled"
}

/// The job that scores everything from `first` on.
fn whole_job(prompt: &[TokenId], top_k: usize, first: usize) -> ScoreJob {
    let span = TokenSpan::new(first.min(prompt.len()), prompt.len()).unwrap();
    let spans = if span.is_empty() { vec![TokenSpan::at(0, prompt.len())] } else { vec![span] };
    ScoreJob::new(Arc::from(prompt), spans, top_k).unwrap()
}

/// Jobs over one prompt: everything, one token, and spans that overlap, touch and go backwards.
fn jobs(prompt: &[TokenId], top_k: usize) -> Vec<ScoreJob> {
    let n = prompt.len();
    let spans = [
        vec![(0, n)],
        vec![(n - 1, n)],
        vec![(n / 2, n), (0, n / 3), (n / 4, n / 2 + 1), (n / 2, n / 2)],
        vec![(1.min(n), n), (1.min(n), n)],
    ];
    let job = |spans: &Vec<(usize, usize)>| {
        let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
        ScoreJob::new(Arc::from(prompt), spans, top_k).unwrap()
    };
    spans.iter().map(job).collect()
}

fn entries(row: &TopK) -> Vec<(TokenId, f64)> {
    row.entries().iter().map(|entry| (entry.0, entry.1.get())).collect()
}

/// Compares every position of every span with what `own` and `row` read.
fn check_spans(
    name: &str,
    job: &ScoreJob,
    spans: &[SpanScore],
    own: impl Fn(usize) -> Option<f64>,
    row: impl Fn(usize) -> Vec<(TokenId, f64)>,
) {
    assert_eq!(spans.iter().map(SpanScore::span).collect::<Vec<_>>(), job.spans(), "{name}");
    for span in spans {
        for (position, score) in span.span().range().zip(span.scores()) {
            if position == 0 {
                assert_eq!(score.logprob.as_ref().unwrap_err().to_string(), "the first token has no context");
                continue;
            }
            let found = score.logprob.as_ref().map(|it| it.get());
            assert_eq!(found.ok(), own(position), "{name} position {position}");
            let has_row = job.top_k() > 0 || !job.chosen().is_empty();
            let row = if has_row { row(position) } else { vec![] };
            assert_eq!(entries(&score.top), row, "{name} position {position}");
            assert!(!has_row || score.top.get(job.tokens()[position]).is_some());
        }
    }
}
