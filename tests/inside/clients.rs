//! What the clients ask of servers, and what they make of their answers.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use crate::inside::support::stub::{Request, Stub};
use backsight::episode::{Message, Role};
use backsight::model::anthropic::Anthropic;
use backsight::model::openai::OpenAi;
use backsight::model::sglang::Sglang;
use backsight::model::transport::{Settings, Transport};
use backsight::model::vllm::Vllm;
use backsight::model::{
    ChatRequest, Constraint, Error, Finish, GenerateRequest, Limits, Model, Place, Sampling, ToldVersion,
};
use backsight::model::{Remote, Wanted, kind_named};
use backsight::score::ScoreJob;
use backsight::tokens::{Logprob, TokenId, TokenSpan};
use serde_json::{Value, json};

fn transport(stub: &Stub) -> Transport {
    Transport::open(&[&stub.url], Settings::default()).unwrap()
}

fn job(tokens: &[TokenId], span: (usize, usize), top_k: usize) -> ScoreJob {
    ScoreJob::new(Arc::from(tokens), vec![TokenSpan::new(span.0, span.1).unwrap()], top_k).unwrap()
}

fn sampling(temperature: f64) -> Sampling {
    Sampling { temperature, top_p: 0.9, top_k: None, seed: Some(8), max_tokens: 5, constraint: None }
}

fn generate(temperature: f64, top_k: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: vec![1, 2, 3],
        sampling: sampling(temperature),
        stop_ids: vec![2],
        top_k,
        place: Place::default(),
    }
}

fn chat(messages: Vec<Message>) -> ChatRequest {
    ChatRequest { messages, tools: vec![], sampling: sampling(0.5), place: Place::default() }
}

fn hello() -> Vec<Message> {
    vec![Message::text(Role::System, "Be brief."), Message::text(Role::User, "hi")]
}

fn refuse(message: &str) -> (u16, Value) {
    (400, json!({"error": {"message": message}}))
}

fn lines(requests: &[Request]) -> Vec<&str> {
    requests.iter().map(|request| request.line.as_str()).collect()
}

/// A vLLM server with 100 tokens, `--max-logprobs 3` and a context of 8 tokens.
fn vllm_answer(request: &Request) -> (u16, Value) {
    let body = &request.body;
    match request.line.as_str() {
        "GET /version" => (200, json!({"version": "0.32.0"})),
        "GET /v1/models" => {
            let model = json!({"id": "m", "owned_by": "vllm", "root": "models/m", "max_model_len": 8});
            (200, json!({"object": "list", "data": [model]}))
        }
        "POST /v1/completions" => match (body["prompt_logprobs"].as_i64(), body["logprobs"].as_i64()) {
            (Some(-1), _) => refuse("Requested prompt logprobs of 100, which is greater than max allowed: 3"),
            (Some(k), _) | (None, Some(k)) if k > 3 => {
                refuse(&format!("Requested logprobs of {k}, which is greater than max allowed: 3"))
            }
            (Some(k), _) => (200, vllm_scores(body["prompt"].as_array().unwrap(), k)),
            (None, k) => (200, vllm_sample(body, k.unwrap())),
        },
        _ => (404, json!({"detail": "Not Found"})),
    }
}

fn vllm_scores(prompt: &[Value], k: i64) -> Value {
    let row = |id: &Value| {
        let mut row = json!({id.to_string(): {"logprob": -5.0, "rank": 9}});
        for rank in 1..=k {
            row[(90 + rank).to_string()] = json!({"logprob": -(rank as f64), "rank": rank});
        }
        row
    };
    let rows: Vec<Value> = std::iter::once(Value::Null).chain(prompt[1..].iter().map(row)).collect();
    let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": 1});
    json!({"choices": [{"prompt_logprobs": rows}], "usage": usage})
}

/// Two tokens whose logprobs, like those of a server that applies it, depend on the temperature.
fn vllm_sample(body: &Value, k: i64) -> Value {
    let temperature = body["temperature"].as_f64().unwrap().max(0.25);
    let lp = |value: f64| value / temperature;
    let row = |id: i64| {
        let mut row = json!({format!("token_id:{id}"): lp(-1.0)});
        for rank in 1..=k {
            row[format!("token_id:{}", 90 + rank)] = json!(lp(-(rank as f64) / 4.0));
        }
        row
    };
    let logprobs = json!({
        "token_logprobs": [lp(-1.0), lp(-1.0)], "tokens": ["token_id:7", "token_id:2"],
        "top_logprobs": [row(7), row(2)],
    });
    let choice = json!({
        "token_ids": [7, 2], "prompt_token_ids": body["prompt"], "finish_reason": "stop", "logprobs": logprobs,
    });
    let n_prompt = body["prompt"].as_array().unwrap().len();
    json!({"choices": [choice], "usage": {"prompt_tokens": n_prompt, "completion_tokens": 2}})
}

async fn vllm() -> (Stub, Vllm, Wanted) {
    let stub = Stub::start(vllm_answer).await;
    let options = Wanted::default();
    let model =
        Remote::ask(transport(&stub), kind_named("vllm").unwrap(), &options).await.map(Vllm::new).unwrap();
    (stub, model, options)
}

#[tokio::test]
async fn vllm_is_asked_what_it_can_do() {
    let (stub, model, _) = vllm().await;
    let expected = Limits {
        context_length: Some(8),
        vocab_size: Some(100),
        max_top_k: Some(3),
        token_ids: true,
        scores: true,
        ..Limits::default()
    };
    assert_eq!(model.limits(), &expected);
    assert_eq!(
        (model.remote.info.version.as_deref(), model.remote.info.model.as_str()),
        (Some("0.32.0"), "m")
    );
    assert_eq!(model.remote.info.model_path.as_deref(), Some("models/m"));
    assert_eq!(lines(&stub.take()), ["GET /version", "GET /v1/models", "POST /v1/completions"]);
    let options = Wanted { model: Some("x".into()), ..Wanted::default() };
    let Err(why) = Remote::ask(transport(&stub), kind_named("vllm").unwrap(), &options).await.map(Vllm::new)
    else {
        unreachable!()
    };
    assert_eq!(why.to_string(), format!("{} has no model `x`; it lists `m`", stub.url));
}

#[tokio::test]
async fn vllm_scores_what_is_needed_and_caps_k() {
    let (stub, model, options) = vllm().await;
    stub.take();
    let scored = model.score(&job(&[1, 2, 3, 4, 5], (1, 3), 50)).await.unwrap();
    let seen = stub.take();
    assert_eq!(seen[0].body["prompt"], json!([1, 2, 3]), "tokens behind the span are not sent");
    assert_eq!((&seen[0].body["prompt_logprobs"], &seen[0].body["max_tokens"]), (&json!(3), &json!(1)));
    let row = &scored.spans[0].scores()[1].top;
    assert_eq!(row.entries().iter().map(|it| it.0).collect::<Vec<_>>(), [91, 92, 93, 3]);
    assert_eq!(scored.usage.prompt_tokens, 3);
    let notice = "gives at most 3 candidates per position, 50 were asked for; start it with --max-logprobs 50 to get them";
    assert_eq!(options.notices.take(), [format!("{} {notice}", stub.url)]);
}

#[tokio::test]
async fn vllm_learns_a_limit_it_was_not_told() {
    let (stub, open, options) = vllm().await;
    let model = Vllm::new(Remote { limits: Limits::default(), ..open.remote });
    stub.take();
    assert!(model.score(&job(&[1, 2], (1, 2), 9)).await.is_ok());
    let asked: Vec<_> = stub.take().iter().map(|it| it.body["prompt_logprobs"].clone()).collect();
    assert_eq!(asked, [9, 3]);
    assert_eq!(options.notices.take().len(), 1);
    assert_eq!(model.generate(&generate(0.0, 9)).await.unwrap().tokens[0].top.entries().len(), 4);
    assert_eq!(stub.take()[0].body["logprobs"], 3);
}

#[tokio::test]
async fn vllm_is_not_asked_what_cannot_be_answered() {
    let (stub, model, _) = vllm().await;
    stub.take();
    let why = model.score(&job(&[1, 100], (1, 2), 0)).await.unwrap_err();
    assert_eq!(why.to_string(), "token 100 at position 1 is outside the vocabulary of 100");
    assert!(matches!(model.score(&job(&[1; 8], (1, 8), 0)).await, Err(Error::Invalid { .. })));
    assert!(model.score(&job(&[1; 8], (1, 7), 0)).await.is_ok());
    let first = model.score(&job(&[1, 2], (0, 1), 0)).await.unwrap();
    assert_eq!(first.spans[0].absent().count(), 1);
    assert_eq!(first.usage.prompt_tokens, 0);
    assert_eq!(stub.take().len(), 1);
}

#[tokio::test]
async fn vllm_samples_with_every_parameter() {
    let (stub, model, _) = vllm().await;
    stub.take();
    let drawn = model.generate(&generate(1.0, 2)).await.unwrap();
    let expected = json!({
        "model": "m", "prompt": [1, 2, 3], "max_tokens": 5, "temperature": 1.0, "top_p": 0.9, "top_k": 0,
        "min_p": 0.0, "repetition_penalty": 1.0, "seed": 4, "stop_token_ids": [2], "logprobs": 2,
        "return_token_ids": true, "return_tokens_as_token_ids": true, "skip_special_tokens": false,
    });
    let mut body = stub.take()[0].body.clone();
    let id = body.as_object_mut().unwrap().shift_remove("request_id").unwrap();
    assert!(id.as_str().unwrap().starts_with("backsight-"), "{id}");
    assert_eq!(body, expected);
    assert_eq!(drawn.tokens.iter().map(|it| it.id).collect::<Vec<_>>(), [7, 2]);
    assert_eq!(drawn.tokens[0].logprob.map(Logprob::get), Some(-1.0));
    assert_eq!((drawn.finish, drawn.usage.completion_tokens), (Finish::Stop, 2));
}

#[tokio::test]
async fn logprobs_that_are_not_the_models_own_are_left_out() {
    let (stub, model, options) = vllm().await;
    stub.take();
    let none = async |request: GenerateRequest| {
        let drawn = model.generate(&request).await.unwrap();
        drawn.tokens.iter().all(|it| it.logprob.is_none() && it.top.is_empty())
    };
    assert!(none(generate(0.7, 2)).await);
    assert!(none(generate(0.7, 2)).await);
    let asked: Vec<_> = stub.take().iter().map(|it| it.body["temperature"].clone()).collect();
    assert_eq!(asked, [0.5, 1.0, 0.7, 0.7], "the server is tested once");
    let mut constrained = generate(1.0, 2);
    constrained.sampling.constraint = Some(Constraint::Regex("a|b".into()));
    assert!(none(constrained).await);
    assert_eq!(stub.take()[0].body["structured_outputs"], json!({"regex": "a|b"}));
    let notices = options.notices.take();
    assert!(notices[0].contains("after the temperature") && notices[0].contains("--logprobs-mode"));
    assert!(notices[1].contains("under the constraint"));
    assert!(!none(generate(0.0, 2)).await);
}

/// An SGLang server with a context of 8 tokens that refuses batches with token 66.
fn sglang_answer(request: &Request) -> (u16, Value) {
    let body = &request.body;
    match request.line.as_str() {
        "GET /get_model_info" => (404, json!({"detail": "Not Found"})),
        "GET /model_info" => (200, json!({"model_path": "models/m", "weight_version": "7"})),
        "GET /get_server_info" => {
            (200, json!({"version": "0.5.23", "context_length": 8, "model_path": "other"}))
        }
        "GET /v1/models" => (200, json!({"data": [{"id": "m", "max_model_len": 8}]})),
        "POST /generate" if body["input_ids"].to_string().contains("66") => refuse("no 66"),
        "POST /generate" if body["input_ids"][0].is_array() => {
            let ids = body["input_ids"].as_array().unwrap();
            let starts = body["logprob_start_len"].as_array().unwrap();
            (200, ids.iter().zip(starts).map(|(ids, start)| sglang_scores(ids, start)).collect())
        }
        "POST /generate" if body["sampling_params"]["max_new_tokens"] == 0 => {
            (200, sglang_scores(&body["input_ids"], &body["logprob_start_len"]))
        }
        "POST /generate" => (200, sglang_sample(body)),
        _ => (404, json!({"detail": "Not Found"})),
    }
}

fn sglang_scores(ids: &Value, start: &Value) -> Value {
    let start = start.as_u64().unwrap() as usize;
    let ids = &ids.as_array().unwrap()[start..];
    let value = |index: usize| if index == 0 { Value::Null } else { json!(-(index as f64)) };
    let own: Vec<_> = ids.iter().enumerate().map(|(index, id)| json!([value(index), id, null])).collect();
    json!({"meta_info": {
        "input_token_logprobs": own, "prompt_tokens": start + ids.len(),
        "weight_version": "7",
        "cached_tokens": start, "completion_tokens": 0, "finish_reason": {"type": "length", "length": 0},
    }})
}

fn sglang_sample(body: &Value) -> Value {
    let lp = |value: f64| value / body["sampling_params"]["temperature"].as_f64().unwrap();
    json!({"output_ids": [7], "meta_info": {
        "output_token_logprobs": [[lp(-1.0), 7, null]],
        "output_top_logprobs": [[[lp(-1.0), 7, null], [lp(-2.0), 8, null]]],
        "prompt_tokens": body["input_ids"].as_array().unwrap().len(),
        "completion_tokens": 1, "cached_tokens": 2, "finish_reason": {"type": "stop", "matched": 7},
        "weight_versions": [{"version": "7", "start": 0, "end": 1}],
    }})
}

async fn sglang(vocab_size: Option<usize>) -> (Stub, Sglang, Wanted) {
    let stub = Stub::start(sglang_answer).await;
    let options = Wanted { vocab_size, ..Wanted::default() };
    let model = Remote::ask(transport(&stub), kind_named("sglang").unwrap(), &options)
        .await
        .map(Sglang::new)
        .unwrap();
    (stub, model, options)
}

#[tokio::test]
async fn sglang_is_asked_what_it_is() {
    let (_, model, _) = sglang(Some(100)).await;
    let info = &model.remote.info;
    assert_eq!((info.version.as_deref(), info.weight_version.as_deref()), (Some("0.5.23"), Some("7")));
    assert_eq!(info.model_path.as_deref(), Some("models/m"));
    let limits = model.limits();
    assert_eq!((limits.context_length, limits.max_top_k), (Some(8), None));
    assert!(limits.scores && limits.start_index && limits.cached_scores);
}

#[tokio::test]
async fn sglang_is_never_sent_an_id_it_may_not_know() {
    let (stub, model, _) = sglang(None).await;
    stub.take();
    assert!(!model.limits().scores);
    assert!(matches!(model.score(&job(&[1, 2], (1, 2), 0)).await, Err(Error::Unsupported { .. })));
    assert!(matches!(model.generate(&generate(1.0, 0)).await, Err(Error::Unsupported { .. })));
    let model = Sglang::new(model.remote.knowing_vocab(Some(10)));
    let outside = job(&[1, 10], (1, 2), 0);
    assert!(matches!(model.score(&outside).await, Err(Error::Invalid { .. })));
    assert!(matches!(model.score_many(&[outside]).await[0], Err(Error::Invalid { .. })));
    let stop = GenerateRequest { stop_ids: vec![10], ..generate(1.0, 0) };
    assert!(matches!(model.generate(&stop).await, Err(Error::Invalid { .. })));
    assert_eq!(stub.take(), []);
}

#[tokio::test]
async fn sglang_scores_from_one_token_before_the_span() {
    let (stub, model, _) = sglang(Some(100)).await;
    stub.take();
    let scored = model.score(&job(&[1, 2, 3, 4, 5, 6], (3, 5), 0)).await.unwrap();
    let logprobs: Vec<_> = scored.spans[0].logprobs().map(|it| it.unwrap().get()).collect();
    assert_eq!(logprobs, [-1.0, -2.0]);
    assert_eq!((scored.usage.cached_tokens, scored.version.as_deref()), (Some(2), Some("7")));
    let body = &stub.take()[0].body;
    assert_eq!((&body["input_ids"], &body["logprob_start_len"]), (&json!([1, 2, 3, 4, 5]), &json!(2)));
}

#[tokio::test]
async fn sglang_batches_leave_each_job_its_own_fate() {
    let (stub, model, _) = sglang(Some(100)).await;
    stub.take();
    let jobs = [
        job(&[1, 2, 3], (1, 3), 0),
        job(&[1, 200], (1, 2), 0),
        job(&[4], (0, 1), 0),
        job(&[5, 6, 7, 8], (2, 4), 0),
    ];
    let all = model.score_many(&jobs).await;
    let logprobs = |index: usize| {
        let span = &all[index].as_ref().unwrap().spans[0];
        span.logprobs().map(|it| it.map(Logprob::get)).collect::<Vec<_>>()
    };
    assert_eq!(logprobs(0), [Some(-1.0), Some(-2.0)]);
    assert!(matches!(all[1], Err(Error::Invalid { .. })));
    assert_eq!(logprobs(2), [None]);
    assert_eq!(logprobs(3), [Some(-1.0), Some(-2.0)]);
    let seen = stub.take();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].body["logprob_start_len"], json!([0, 1]));
    let all = model.score_many(&[jobs[0].clone(), job(&[66, 2], (1, 2), 0), jobs[3].clone()]).await;
    assert!(all[0].is_ok() && matches!(all[1], Err(Error::Refused { .. })) && all[2].is_ok());
    assert_eq!(stub.take().len(), 4);
}

#[tokio::test]
async fn sglang_samples_within_the_context_and_reports_no_scaled_logprobs() {
    let (stub, model, options) = sglang(Some(100)).await;
    stub.take();
    let request = GenerateRequest { prompt: vec![1, 2, 3, 4, 5], ..generate(1.0, 2) };
    let drawn = model.generate(&request).await.unwrap();
    assert_eq!(drawn.tokens[0].logprob.map(Logprob::get), Some(-1.0));
    assert_eq!((drawn.finish, drawn.usage.cached_tokens), (Finish::Stop, Some(2)));
    assert_eq!(drawn.versions, [ToldVersion { version: "7".into(), span: TokenSpan::at(0, 1) }]);
    let body = &stub.take()[0].body;
    assert_eq!(body["sampling_params"]["max_new_tokens"], 3, "a limit beyond the context is refused");
    assert_eq!(body["sampling_params"]["top_k"], -1);
    let drawn = model.generate(&generate(0.7, 2)).await.unwrap();
    assert_eq!(drawn.tokens[0].logprob, None);
    assert!(options.notices.take()[0].contains("SGLANG_RETURN_ORIGINAL_LOGPROB=1"));
}

/// An OpenAI model that wants `max_completion_tokens` and takes no temperature.
fn openai_answer(request: &Request) -> (u16, Value) {
    let body = &request.body;
    match request.line.as_str() {
        "GET /v1/models" => (200, json!({"data": [{"id": "gpt-5", "owned_by": "openai"}, {"id": "gpt-6"}]})),
        _ if body.get("max_tokens").is_some() => refuse(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        ),
        _ if body.get("temperature").is_some() => {
            refuse("Unsupported value: 'temperature' does not support 0.5 with this model.")
        }
        _ => {
            let message = json!({"role": "assistant", "content": "hello"});
            let usage = json!({"prompt_tokens": 9, "completion_tokens": 1});
            (200, json!({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}))
        }
    }
}

#[tokio::test]
async fn openai_chats_and_nothing_else() {
    let stub = Stub::start(openai_answer).await;
    let options = Wanted { model: Some("gpt-5".into()), ..Wanted::default() };
    let model = Remote::ask(transport(&stub), kind_named("openai").unwrap(), &options)
        .await
        .map(OpenAi::new)
        .unwrap();
    stub.take();
    let why = model.score(&job(&[1, 2], (1, 2), 0)).await.unwrap_err();
    assert_eq!(why.to_string(), format!("{} cannot score a prompt", stub.url));
    assert!(matches!(model.generate(&generate(1.0, 0)).await, Err(Error::Unsupported { .. })));
    let mut forced = chat(hello());
    forced.sampling.constraint = Some(Constraint::Regex("a".into()));
    assert!(matches!(model.chat(&forced).await, Err(Error::Unsupported { .. })));
    assert_eq!(stub.take(), [], "nothing is paid for what cannot be done");
    let answer = model.chat(&chat(hello())).await.unwrap();
    assert_eq!(answer.message, Message::text(Role::Assistant, "hello"));
    assert_eq!((answer.finish, answer.usage.prompt_tokens), (Finish::Stop, 9));
    assert_eq!(stub.take().len(), 3);
    model.chat(&chat(hello())).await.unwrap();
    let seen = stub.take();
    assert_eq!(seen.len(), 1, "what is refused is left out from then on");
    assert_eq!(seen[0].body["max_completion_tokens"], 5);
    let notice = format!("`gpt-5` at {} takes no temperature; it is left out", stub.url);
    assert_eq!(options.notices.take(), [notice]);
}

#[tokio::test]
async fn openai_names_what_it_has() {
    let stub = Stub::start(openai_answer).await;
    let Err(why) = Remote::ask(transport(&stub), kind_named("openai").unwrap(), &Wanted::default())
        .await
        .map(OpenAi::new)
    else {
        unreachable!()
    };
    assert_eq!(why.to_string(), format!("{} has 2 models: `gpt-5`, `gpt-6`", stub.url));
}

fn anthropic_answer(request: &Request) -> (u16, Value) {
    match request.line.as_str() {
        "GET /v1/models?limit=1000" => {
            (200, json!({"data": [{"type": "model", "id": "claude-opus-4-6-20260101"}], "has_more": false}))
        }
        "GET /v1/models/claude-opus-4-6" => (200, json!({"type": "model", "id": "claude-opus-4-6-20260101"})),
        "POST /v1/messages" => {
            let content = json!([{"type": "text", "text": "hello"}]);
            let usage = json!({"input_tokens": 9, "output_tokens": 1});
            (200, json!({"type": "message", "content": content, "stop_reason": "max_tokens", "usage": usage}))
        }
        _ => (404, json!({"type": "error", "error": {"type": "not_found_error", "message": "no"}})),
    }
}

#[tokio::test]
async fn anthropic_is_asked_in_its_own_words() {
    let stub = Stub::start(anthropic_answer).await;
    let options = Wanted { model: Some("anthropic/claude-opus-4.6".into()), ..Wanted::default() };
    let model = Remote::ask(transport(&stub), kind_named("anthropic").unwrap(), &options)
        .await
        .map(Anthropic::new)
        .unwrap();
    stub.take();
    let mut thinking = hello();
    thinking.push(Message { reasoning: Some("hm".into()), ..Message::text(Role::Assistant, "x") });
    thinking.push(Message::text(Role::User, "and?"));
    let answer = model.chat(&chat(thinking)).await.unwrap();
    assert_eq!((answer.finish, answer.usage.completion_tokens), (Finish::Length, 1));
    let text = |role: &str, text: &str| json!({"role": role, "content": [{"type": "text", "text": text}]});
    let expected = json!({
        "model": "claude-opus-4-6", "max_tokens": 5, "system": "Be brief.",
        "messages": [text("user", "hi"), text("assistant", "x"), text("user", "and?")],
        "temperature": 0.5, "top_p": 0.9,
    });
    assert_eq!(stub.take()[0].body, expected);
    assert_eq!(options.notices.take().len(), 1);
    let mut hot = chat(hello());
    hot.sampling.temperature = 1.5;
    assert!(matches!(model.chat(&hot).await, Err(Error::Invalid { .. })));
    assert!(matches!(model.score(&job(&[1, 2], (1, 2), 0)).await, Err(Error::Unsupported { .. })));
    assert_eq!(stub.take(), []);
    let options = Wanted { model: Some("claude-x".into()), ..Wanted::default() };
    let Err(why) =
        Remote::ask(transport(&stub), kind_named("anthropic").unwrap(), &options).await.map(Anthropic::new)
    else {
        unreachable!()
    };
    let listed = format!("{} has no model `claude-x`; it lists `claude-opus-4-6-20260101`", stub.url);
    assert_eq!(why.to_string(), listed);
}
