//! The embedded model over real HTTP: our own clients against `backsight model serve`.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::program::backsight;
use crate::support::tiny::{VOCAB, write_model};
use backsight::chat::tokenizer::Tokenizer;
use backsight::engine::engine::Engine;
use backsight::engine::model::Embedded;
use backsight::episode::{Message, Role};
use backsight::model::Sglang;
use backsight::model::{ChatRequest, Constraint, Error, GenerateRequest, Model, Place, Sampling};
use backsight::model::{Opened, open};
use backsight::model::{Remote, Wanted, kind_named};
use backsight::model::{Settings, Transport};
use backsight::score::{ScoreJob, SpanScore};
use backsight::tokens::{TokenId, TokenSpan};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A served model; the process ends with it.
struct Server {
    process: Child,
    url: String,
    dir: TempDir,
}

impl Server {
    fn start(personality: &str) -> Self {
        let dir = TempDir::new().unwrap();
        write_model(dir.path(), json!({}));
        let mut process = Command::new(env!("CARGO_BIN_EXE_backsight"))
            .args(["model", "serve", "--port", "0", "--as", personality, "--model"])
            .arg(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://127.0.0.1:"), "{url:?}");
        Self { process, url: url.trim().to_owned(), dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn engine(&self) -> Engine {
        Engine::load(self.path()).unwrap()
    }

    fn transport(&self) -> Transport {
        Transport::open(&[&self.url], Settings::default()).unwrap()
    }

    /// As every command opens it: the kind is found out, the tokenizer found beside the model.
    async fn open(&self, expected: &str) -> Opened {
        let opened = open(&Wanted { urls: vec![self.url.clone()], ..Wanted::default() }).await.unwrap();
        assert_eq!((opened.info.kind.name, opened.tokenizer.is_some()), (expected, true));
        assert_eq!(opened.model.limits().vocab_size, Some(VOCAB));
        assert_eq!(opened.model.limits().context_length, Some(512));
        opened
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn ids(n: u32, seed: u32) -> Vec<TokenId> {
    (0..n).map(|i| (i * i * 31 + seed * 17 + i) % VOCAB as u32).collect()
}

fn jobs() -> Vec<ScoreJob> {
    let job = |n: u32, spans: &[(usize, usize)], top_k: usize| {
        let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
        ScoreJob::new(Arc::from(ids(n, n)), spans, top_k).unwrap()
    };
    vec![
        job(40, &[(0, 40)], 0),
        job(40, &[(30, 40), (5, 6), (8, 8)], 3),
        job(300, &[(250, 299)], 5),
        job(2, &[(1, 2)], 20),
        job(5, &[(0, 1)], 2),
    ]
}

fn greedy(max_tokens: usize) -> Sampling {
    Sampling { temperature: 0.0, top_p: 1.0, top_k: None, seed: Some(1), max_tokens, constraint: None }
}

fn generate(sampling: Sampling) -> GenerateRequest {
    GenerateRequest { prompt: ids(20, 3), sampling, stop_ids: vec![702], top_k: 2, place: Place::default() }
}

/// The very numbers of the engine come back, scored and sampled.
async fn check_numbers(server: &Server, model: &dyn Model) {
    let mut engine = server.engine();
    for job in jobs() {
        let over_http = model.score(&job).await.unwrap();
        assert_eq!(over_http.spans, engine.score(&job).unwrap().spans);
    }
    for sampling in [greedy(8), Sampling { temperature: 0.7, top_p: 0.9, top_k: Some(40), ..greedy(8) }] {
        let request = generate(sampling);
        let sampled = model.generate(&request).await.unwrap();
        assert_eq!(sampled.tokens.len(), 8);
        let prompt = request.prompt.len();
        let all: Vec<TokenId> =
            request.prompt.iter().copied().chain(sampled.tokens.iter().map(|it| it.id)).collect();
        let job = ScoreJob::new(all.into(), vec![TokenSpan::at(prompt, 8)], 2).unwrap();
        let scored = engine.score(&job).unwrap();
        for (token, score) in sampled.tokens.iter().zip(scored.spans[0].scores()) {
            let (own, again) = (token.logprob.unwrap().get(), score.logprob.clone().unwrap().get());
            assert!((own - again).abs() < 1e-5, "sampled {own}, scored {again}");
            assert_eq!(token.top.entries()[0].0, score.top.entries()[0].0);
        }
    }
}

/// The same answer as in the process; with tools, a constraint forces a call that is read as one.
async fn check_chat(server: &Server, model: &dyn Model) {
    let embedded = Embedded::load(server.path(), None).unwrap();
    let tool = json!({"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}});
    let call =
        Constraint::Regex(r#"<tool_call>\n\{"name": "ls", "arguments": \{\}\}\n</tool_call>"#.to_owned());
    let cases = [(vec![], None, 0), (vec![tool], Some(call), 1)];
    for (tools, constraint, n_calls) in cases {
        let request = ChatRequest {
            messages: vec![Message::text(Role::User, "List the files.")],
            tools,
            sampling: Sampling { constraint, ..greedy(60) },
            place: Place::default(),
        };
        let answer = model.chat(&request).await.unwrap();
        assert_eq!(answer.message, embedded.chat(&request).await.unwrap().message);
        assert_eq!(answer.message.tool_calls.len(), n_calls, "{:?}", answer.message);
        assert!(answer.usage.completion_tokens > 0);
    }
}

fn check_probe(server: &Server, kind: &str) -> Value {
    let output = backsight(server.path(), &["probe", &server.url, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["kind"], kind);
    assert_eq!(report["self_test"]["ok"], true, "{report}");
    for key in ["ids_in", "ids_out", "ids_echoed", "prompt_logprobs", "tokenizer_agrees", "deterministic"] {
        assert_eq!(report[key], true, "{key} in {report}");
    }
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing is left unmeasured");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn it_answers_as_vllm() {
    let server = Server::start("vllm");
    let opened = server.open("vllm").await;
    assert_eq!(opened.model.limits().max_top_k, Some(20));
    check_numbers(&server, &*opened.model).await;
    check_chat(&server, &*opened.model).await;
    let report = check_probe(&server, "vllm");
    assert_eq!(report["prefix_cache_with_logprobs"], false, "all of a prompt is scored");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_answers_as_sglang() {
    let server = Server::start("sglang");
    let opened = server.open("sglang").await;
    check_numbers(&server, &*opened.model).await;
    check_chat(&server, &*opened.model).await;
    let report = check_probe(&server, "sglang");
    assert_eq!(report["prefix_cache_with_logprobs"], true);
    let wanted = Wanted { vocab_size: Some(VOCAB), ..Wanted::default() };
    let sglang = kind_named("sglang").unwrap();
    let client = Remote::ask(server.transport(), sglang, &wanted).await.map(Sglang::new).unwrap();
    let mut engine = server.engine();
    let expected: Vec<Vec<SpanScore>> = jobs().iter().map(|job| engine.score(job).unwrap().spans).collect();
    let found = client.score_many(&jobs()).await;
    let found: Vec<Vec<SpanScore>> = found.into_iter().map(|it| it.unwrap().spans).collect();
    assert_eq!(found, expected);
}

async fn post(server: &Server, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let request = crate::support::http::client().post(format!("{}{path}", server.url)).body(body);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn ask(server: &Server, path: &str, body: Value) -> Value {
    let (status, answer) = post(server, path, body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn ids_of(json: &Value) -> Vec<TokenId> {
    json.as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as TokenId).collect()
}

/// The ids of a rendered conversation and of the answer, which are those that are scored alike.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_come_with_ids_and_logprobs() {
    let messages = json!([{"role": "user", "content": "What now?"}]);
    let wanted = json!({
        "messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 2,
        "return_token_ids": true, "return_prompt_token_ids": true, "return_tokens_as_token_ids": true,
        "prompt_logprobs": 1,
    });
    for personality in ["vllm", "sglang"] {
        let server = Server::start(personality);
        let answer = ask(&server, "/v1/chat/completions", wanted.clone()).await;
        let choice = &answer["choices"][0];
        let (prompt, sampled) = match personality {
            "vllm" => (&answer["prompt_token_ids"], &choice["token_ids"]),
            _ => (&choice["prompt_token_ids"], &choice["response_token_ids"]),
        };
        let (prompt, sampled) = (ids_of(prompt), ids_of(sampled));
        let embedded = Embedded::load(server.path(), None).unwrap();
        let message = [Message::text(Role::User, "What now?")];
        assert_eq!(prompt, embedded.prompt(&message, &[]).unwrap());
        let all: Vec<TokenId> = prompt.iter().chain(&sampled).copied().collect();
        let job =
            ScoreJob::new(all.into(), vec![TokenSpan::at(1, prompt.len() + sampled.len() - 1)], 2).unwrap();
        let scored = server.engine().score(&job).unwrap();
        let expected = scored.spans[0].scores();
        let rows = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!(rows.len(), sampled.len());
        for ((row, id), score) in rows.iter().zip(&sampled).zip(&expected[prompt.len() - 1..]) {
            assert_eq!(row["token"], format!("token_id:{id}"));
            assert_eq!(row["logprob"], score.logprob.clone().unwrap().get());
            assert_eq!(row["top_logprobs"].as_array().unwrap().len(), 2);
        }
        if personality == "vllm" {
            let rows = answer["prompt_logprobs"].as_array().unwrap();
            assert_eq!((rows.len(), &rows[0]), (prompt.len(), &Value::Null));
            for ((row, id), score) in rows[1..].iter().zip(&prompt[1..]).zip(expected) {
                assert_eq!(row[id.to_string()]["logprob"], score.logprob.clone().unwrap().get());
            }
        }
    }
}

/// What a constraint forces arrives to its last token, with or without a token that ends it.
#[tokio::test(flavor = "multi_thread")]
async fn constrained_text_arrives_whole() {
    let (vllm, sglang) = (Server::start("vllm"), Server::start("sglang"));
    let regex = json!({"regex": "(yes|no)"});
    let body =
        json!({"prompt": [5, 6], "structured_outputs": regex, "temperature": 0, "return_token_ids": true});
    let choice = ask(&vllm, "/v1/completions", body.clone()).await["choices"][0].clone();
    assert!(["yes", "no"].contains(&choice["text"].as_str().unwrap()), "{choice}");
    assert_eq!(choice["finish_reason"], "stop");
    let params = json!({"regex": "(yes|no)", "temperature": 0});
    let answer = ask(&sglang, "/generate", json!({"input_ids": [5, 6], "sampling_params": params})).await;
    assert_eq!(answer["text"], choice["text"]);
    assert_eq!(answer["meta_info"]["finish_reason"], json!({"type": "stop", "matched": null}));
    // A token that was named as a stop is no part of the text.
    let first = &choice["token_ids"][0];
    let stopped = ask(&vllm, "/v1/completions", with(&body, json!({"stop_token_ids": [first]}))).await;
    assert_eq!(stopped["choices"][0]["text"], "");
    let params = json!({"regex": "(yes|no)", "temperature": 0, "stop_token_ids": [first]});
    let stopped = ask(&sglang, "/generate", json!({"input_ids": [5, 6], "sampling_params": params})).await;
    assert_eq!((&stopped["text"], &stopped["meta_info"]["finish_reason"]["matched"]), (&json!(""), first));
}

/// The request with more in it.
fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// What is asked of a conversation is done.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_put_and_read_as_asked() {
    let tool = json!({"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}});
    let call = r#"<tool_call>\n\{"name": "ls", "arguments": \{\}\}\n</tool_call>"#;
    let plain = json!({"messages": [{"role": "user", "content": "What now?"}], "max_tokens": 60,
                       "temperature": 0, "return_token_ids": true, "return_prompt_token_ids": true});
    let called = with(&plain, json!({"tools": [tool]}));
    for personality in ["vllm", "sglang"] {
        let server = Server::start(personality);
        let chat = |body: Value| {
            let server = &server;
            async move { ask(server, "/v1/chat/completions", body).await }
        };
        let prompt = |answer: &Value| match personality {
            "vllm" => ids_of(&answer["prompt_token_ids"]),
            _ => ids_of(&answer["choices"][0]["prompt_token_ids"]),
        };
        let asked = prompt(&chat(plain.clone()).await);
        let bare = prompt(&chat(with(&plain, json!({"add_generation_prompt": false}))).await);
        assert!(asked.starts_with(&bare) && asked.len() > bare.len());
        let vars = json!({"chat_template_kwargs": {"add_generation_prompt": false}});
        assert_eq!(prompt(&chat(with(&plain, vars)).await), bare, "variables reach the template");
        let object = chat(with(&plain, json!({"response_format": {"type": "json_object"}}))).await;
        let text = object["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(text.starts_with('{'), "{text}");
        let forced = with(&called, json!({"structured_outputs": {"regex": call}}));
        for (choice, n_calls) in [("auto", 1), ("none", 0)] {
            let answer = chat(with(&forced, json!({"tool_choice": choice}))).await;
            let message = &answer["choices"][0]["message"];
            let calls = message["tool_calls"].as_array().map_or(0, Vec::len);
            assert_eq!(calls, n_calls, "{message}");
            assert_eq!(message["content"].is_null(), n_calls == 1, "{message}");
        }
        let told = prompt(&chat(with(&called, json!({"tool_choice": "none"}))).await);
        assert_eq!(told == asked, personality == "sglang", "vLLM tells of the tools all the same");
    }
}

/// What the servers that are played would follow and this one does not is refused, never ignored.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_followed_is_refused_by_name() {
    let refused = [
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function", "function": {"name": "ls"}})),
        ("response_format", json!({"type": "structural_tag"})),
        ("response_format", json!({"type": "json_schema"})),
        ("chat_template", json!("{{ messages }}")),
        ("chat_template_kwargs", json!({"messages": []})),
        ("continue_final_message", json!(true)),
        ("add_special_tokens", json!(true)),
        ("stop", json!("now")),
        ("ebnf", json!("root ::= \"a\"")),
        ("reasoning_effort", json!("high")),
    ];
    let body = json!({"messages": [{"role": "user", "content": "What now?"}], "max_tokens": 2});
    for personality in ["vllm", "sglang"] {
        let server = Server::start(personality);
        for (key, value) in &refused {
            let body = with(&body, json!({*key: value}));
            let (status, answer) = post(&server, "/v1/chat/completions", body.to_string()).await;
            assert_eq!(status, 400, "{key}: {answer}");
            assert!(answer.to_string().contains(key), "{key}: {answer}");
        }
        let two = json!({"response_format": {"type": "json_object"}, "regex": "a"});
        assert_eq!(post(&server, "/v1/chat/completions", with(&body, two).to_string()).await.0, 400);
    }
}

/// Special tokens are part of the text only where that is asked for; a seed makes both the same draw.
#[tokio::test(flavor = "multi_thread")]
async fn special_tokens_are_shown_on_request() {
    let special = |ids: &[TokenId]| ids.iter().any(|id| [701, 703, 704, 705, 706].contains(id));
    let vllm = Server::start("vllm");
    let body = |seed: u32, skips: bool| {
        json!({"prompt": [5, 6], "temperature": 5, "seed": seed, "max_tokens": 60, "return_token_ids": true,
               "skip_special_tokens": skips})
    };
    for seed in 0.. {
        let shown = ask(&vllm, "/v1/completions", body(seed, false)).await["choices"][0].clone();
        let ids = ids_of(&shown["token_ids"]);
        if !special(&ids) {
            continue;
        }
        let hidden = ask(&vllm, "/v1/completions", body(seed, true)).await["choices"][0].clone();
        assert_eq!(ids_of(&hidden["token_ids"]), ids, "a seed makes a draw repeatable");
        let tokenizer = Tokenizer::open(vllm.path()).unwrap();
        let without = |id: &TokenId| !tokenizer.is_special(*id);
        let plain: Vec<TokenId> = ids.iter().copied().filter(without).collect();
        assert_eq!(hidden["text"], tokenizer.decode(&plain).unwrap());
        let text = shown["text"].as_str().unwrap();
        assert!(["<|im_start|>", "think>", "tool_call>"].iter().any(|it| text.contains(it)), "{text}");
        break;
    }
}

/// Several prompts in one request give what each gives alone.
#[tokio::test(flavor = "multi_thread")]
async fn prompts_come_alone_or_together() {
    let server = Server::start("vllm");
    let body = |prompt: Value| json!({"prompt": prompt, "prompt_logprobs": 2, "max_tokens": 3, "temperature": 0, "return_token_ids": true});
    let alone = [json!([5, 6, 7]), json!([8, 9]), json!("so it is")];
    for together in [json!([[5, 6, 7], [8, 9]]), json!(["so it is", "so it is"])] {
        let answer = ask(&server, "/v1/completions", body(together.clone())).await;
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 2);
        for (index, (choice, prompt)) in choices.iter().zip(together.as_array().unwrap()).enumerate() {
            assert!(alone.contains(prompt));
            let mut expected =
                ask(&server, "/v1/completions", body(prompt.clone())).await["choices"][0].clone();
            expected["index"] = json!(index);
            assert_eq!(choice, &expected);
        }
    }
}

/// The names of requests come back in every form, and the ids of the prompt where they are wanted.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_by_name() {
    let server = Server::start("vllm");
    let wanted =
        json!({"prompt": [5, 6, 7], "max_tokens": 1, "request_id": "mine", "return_token_ids": true});
    let answer = ask(&server, "/v1/completions", wanted).await;
    assert_eq!((&answer["id"], &answer["usage"]["prompt_tokens"]), (&json!("cmpl-mine"), &json!(3)));
    assert_eq!(answer["choices"][0]["prompt_token_ids"], json!([5, 6, 7]));
    let server = Server::start("sglang");
    let wanted = |ids: Value, rid: Value| json!({"input_ids": ids, "rid": rid, "sampling_params": {"max_new_tokens": 1}});
    let named = async |ids: Value, rid: Value| {
        let answer = ask(&server, "/generate", wanted(ids, rid)).await;
        let all = answer.as_array().cloned().unwrap_or_else(|| vec![answer]);
        let told = |it: &Value| (it["meta_info"]["id"].clone(), it["meta_info"]["prompt_tokens"].clone());
        all.iter().map(told).collect::<Vec<_>>()
    };
    assert_eq!(named(json!([5, 6, 7]), json!("mine")).await, [(json!("mine"), json!(3))]);
    let both = named(json!([[5, 6, 7], [8]]), json!(["a", "b"])).await;
    assert_eq!(both, [(json!("a"), json!(3)), (json!("b"), json!(1))]);
    for rid in [json!(["a", "a"]), json!(["a"])] {
        let body = wanted(json!([[5, 6, 7], [8]]), rid.clone()).to_string();
        assert_eq!(post(&server, "/generate", body).await.0, 400, "{rid}");
    }
}

/// Whatever is sent, the answer is a refusal in JSON, and the next request is answered.
#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused_and_harm_nobody() {
    let bodies = [
        &b""[..],
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe\x00",
        b"{\"prompt\": {}, \"input_ids\": {}, \"messages\": {}}",
        b"{\"prompt\": [-1], \"input_ids\": [-1], \"messages\": [{}]}",
        b"{\"prompt\": [4294967295], \"input_ids\": [4294967295], \"messages\": [{\"role\": \"user\"}]}",
        b"{\"prompt\": [99999999999], \"input_ids\": [99999999999], \"messages\": 7}",
        b"{\"prompt\": [1], \"input_ids\": [1], \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
        b"{\"prompt\": [1], \"temperature\": -1, \"input_ids\": [1], \"sampling_params\": {\"temperature\": -1}, \"messages\": []}",
        b"{\"prompt\": [1], \"top_p\": 7, \"input_ids\": [1], \"sampling_params\": {\"top_p\": 7}, \"messages\": []}",
        b"{\"prompt\": [1], \"prompt_logprobs\": -2, \"input_ids\": [1], \"return_logprob\": true, \"logprob_start_len\": 9, \"messages\": []}",
        b"{\"prompt\": [1], \"logprobs\": 18446744073709551615, \"input_ids\": [1], \"return_logprob\": true, \"top_logprobs_num\": 18446744073709551615, \"messages\": []}",
        b"{\"prompt\": [1], \"structured_outputs\": {\"regex\": \"(\"}, \"input_ids\": [1], \"sampling_params\": {\"regex\": \"(\"}, \"messages\": []}",
        b"{\"prompt\": [1], \"structured_outputs\": {\"json\": 7}, \"input_ids\": [1], \"sampling_params\": {\"json_schema\": \"{\"}, \"messages\": []}",
    ];
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    for (personality, score) in [("vllm", "/v1/completions"), ("sglang", "/generate")] {
        let server = Server::start(personality);
        for path in [score, "/v1/chat/completions", "/tokenize"] {
            for body in bodies.iter().copied().chain([deep.as_bytes()]) {
                let (status, answer) = post(&server, path, body.to_vec()).await;
                let said = answer.pointer("/error/message").or(answer.get("message")).and_then(Value::as_str);
                let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
                assert_eq!(status, 400, "{path} {shown}: {answer}");
                assert!(said.is_some_and(|said| said.len() > 5), "{path} {shown}: {answer}");
            }
        }
        let opened = server.open(personality).await;
        assert_eq!(
            opened.model.score(&jobs()[0]).await.unwrap().spans,
            server.engine().score(&jobs()[0]).unwrap().spans
        );
    }
}

/// Many at once give what each gives alone.
#[tokio::test(flavor = "multi_thread")]
async fn company_changes_nothing() {
    let dir = TempDir::new().unwrap();
    write_model(dir.path(), json!({}));
    let model = Arc::new(Embedded::load(dir.path(), None).unwrap());
    let request = |n: u32| GenerateRequest {
        prompt: ids(10 + n, n),
        ..generate(Sampling { temperature: 1.0, ..greedy(12) })
    };
    let mut tasks = Vec::new();
    for n in 0..8 {
        let model = Arc::clone(&model);
        tasks.push(tokio::spawn(async move { model.generate(&request(n)).await.unwrap().tokens }));
    }
    let scores: Vec<_> = jobs()
        .into_iter()
        .map(|job| {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.score(&job).await.unwrap().spans })
        })
        .collect();
    let mut engine = Engine::load(dir.path()).unwrap();
    for (n, task) in tasks.into_iter().enumerate() {
        let alone = engine.generate(&[request(n as u32)]).pop().unwrap().unwrap();
        assert_eq!(task.await.unwrap(), alone.tokens);
    }
    for (job, task) in jobs().iter().zip(scores) {
        assert_eq!(task.await.unwrap(), engine.score(job).unwrap().spans);
    }
}

/// Bad requests are refused in the words of the server that is played.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_the_servers_shapes() {
    let (vllm, sglang) = (Server::start("vllm"), Server::start("sglang"));
    let long: Vec<u32> = vec![1; 600];
    let cases = [
        (
            &vllm,
            "/v1/completions",
            json!({"prompt": [1, 2], "prompt_logprobs": 21}),
            400,
            "/error/message",
            "Requested prompt logprobs of 21, which is greater than max allowed: 20 (parameter=prompt_logprobs, value=21)",
        ),
        (
            &vllm,
            "/v1/completions",
            json!({"prompt": []}),
            400,
            "/error/message",
            "You must pass at least one prompt",
        ),
        (
            &vllm,
            "/v1/completions",
            json!({"prompt": [1, 720]}),
            400,
            "/error/message",
            "token 720 at position 1 is outside the vocabulary of 720",
        ),
        (
            &vllm,
            "/v1/completions",
            json!({"prompt": long}),
            400,
            "/error/message",
            "600 tokens do not fit into the model's context of 512",
        ),
        (
            &vllm,
            "/v1/completions",
            json!({"prompt": [1], "model": "nope"}),
            404,
            "/error/type",
            "NotFoundError",
        ),
        (&vllm, "/generate", json!({"input_ids": [1]}), 404, "/detail", "Not Found"),
        (&vllm, "/health", json!({}), 405, "/detail", "Method Not Allowed"),
        (
            &sglang,
            "/generate",
            json!({}),
            400,
            "/error/message",
            "Either text, input_ids or input_embeds should be provided.",
        ),
        (&sglang, "/generate", json!({"input_ids": []}), 400, "/error/message", "input_ids cannot be empty."),
        (&sglang, "/v1/chat/completions", json!({"messages": []}), 400, "/object", "error"),
    ];
    for (server, path, body, status, pointer, expected) in cases {
        let client = crate::support::http::client();
        let answer = client.post(format!("{}{path}", server.url)).json(&body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{path} {body}");
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer.pointer(pointer).and_then(Value::as_str), Some(expected), "{answer}");
    }
}

#[test]
fn a_port_that_is_taken_is_told() {
    let vllm = Server::start("vllm");
    let taken = vllm.url.rsplit(':').next().unwrap();
    let output = backsight(vllm.path(), &["model", "serve", "--model", ".", "--port", taken]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot be listened on") && said.contains("help: choose another --port"), "{said}");
}

/// A prompt that is too long is told by the client before it is sent, and by the model itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_refused() {
    let dir = TempDir::new().unwrap();
    write_model(dir.path(), json!({}));
    let model = Embedded::load(dir.path(), None).unwrap();
    let job = ScoreJob::new(Arc::from(ids(600, 1)), vec![TokenSpan::at(590, 10)], 0).unwrap();
    assert!(matches!(model.score(&job).await, Err(Error::Invalid { .. })));
    let request = GenerateRequest { prompt: ids(512, 1), ..generate(greedy(1)) };
    assert!(matches!(model.generate(&request).await, Err(Error::Invalid { .. })));
}
