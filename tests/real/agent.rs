//! Token exactness on a real vLLM: many turns with tools, every prompt compared with what the server read and with
//! what its own chat route makes of the same conversation.
//!
//! `BACKSIGHT_VLLM_URL` names a server with SmolLM2, `BACKSIGHT_VLLM_QWEN3_URL` one with a Qwen3 (start them with
//! `tests/servers/real-servers`). Servers named in `BACKSIGHT_REQUIRE_SERVERS` must be there.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests fail by panicking and may talk")]

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use backsight::agent::{AgentSetting, Speech, run_episode};
use backsight::agent::{ForcedCalls, LoopOptions};
use backsight::chat::format::ChatFormat;
use backsight::chat::messages::to_json;
use backsight::chat::parse::Parser;
use backsight::chat::render::needed_tool_text;
use backsight::chat::source::ChatTemplates;
use backsight::chat::template::{Now, RenderInput, Template};
use backsight::chat::tokenizer::Tokenizer;
use backsight::chat::tool_text;
use backsight::episode::{Episode, Stop, ToolText};
use backsight::model::Vllm;
use backsight::model::{
    ChatAnswer, ChatRequest, Error, Finish, GenerateRequest, Generated, Limits, Model, SampledToken, Scored,
};
use backsight::model::{Remote, Wanted, kind_named};
use backsight::model::{Settings, Transport};
use backsight::score::ScoreJob;
use backsight::tokens::{TokenId, TopK};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

use crate::student::{call, place, sandboxes, task, write_solution};

pub fn url(name: &str) -> Option<String> {
    let url = std::env::var(name).ok().filter(|url| !url.is_empty());
    let required = std::env::var("BACKSIGHT_REQUIRE_SERVERS").unwrap_or_default();
    let is_required =
        required.split_whitespace().any(|it| format!("BACKSIGHT_{}_URL", it.to_uppercase()) == name);
    assert!(url.is_some() || !is_required, "{name} is not set");
    if url.is_none() {
        eprintln!("{name} is not set: nothing was checked");
    }
    url.map(|url| url.trim_end_matches('/').to_owned())
}

/// A request and its answer, as they went over the wire.
struct Exchange {
    request: Value,
    answer: Value,
}

/// Stands before a server and keeps every sampling of more than one token.
struct Tap {
    url: String,
    seen: Arc<Mutex<Vec<Exchange>>>,
}

impl Tap {
    async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (seen, server) = (Arc::new(Mutex::new(Vec::new())), server.to_owned());
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (kept, server) = (Arc::clone(&kept), server.clone());
                let service = service_fn(move |request| pass(request, server.clone(), Arc::clone(&kept)));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { url, seen }
    }
}

async fn pass(
    request: Request<Incoming>,
    server: String,
    kept: Arc<Mutex<Vec<Exchange>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let url = format!("{server}{}", parts.uri);
    let sent =
        crate::support::http::client().request(parts.method, url).header("content-type", "application/json");
    let answer = sent.body(body.clone()).send().await.unwrap();
    let (status, bytes) = (answer.status(), answer.bytes().await.unwrap());
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    if request["return_token_ids"] == true && request["prompt_logprobs"].is_null() {
        let answer = serde_json::from_slice(&bytes).unwrap();
        kept.lock().unwrap().push(Exchange { request, answer });
    }
    Ok(Response::builder().status(status.as_u16()).body(Full::new(bytes)).unwrap())
}

fn ids(json: &Value) -> Vec<TokenId> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

/// A model of a real server, with its own template and tokenizer.
struct Real {
    server: String,
    name: String,
    model: Arc<dyn Model>,
    template: Template,
    vars: Map<String, Value>,
    tokenizer: Arc<Tokenizer>,
    tool_text: Option<ToolText>,
    tap: Tap,
}

impl Real {
    async fn open(server: &str) -> Self {
        let tap = Tap::start(server).await;
        let transport = Transport::open(&[&*tap.url], Settings::default()).unwrap();
        let model = Remote::ask(transport, kind_named("vllm").unwrap(), &Wanted::default())
            .await
            .map(Vllm::new)
            .unwrap();
        let dir = model.remote.info.model_path.clone().unwrap();
        let templates = ChatTemplates::open(Path::new(&dir)).unwrap();
        let template = templates.select(true).unwrap();
        let vars = templates.special_tokens().clone();
        let tools = backsight::agent::schemas();
        let input = RenderInput {
            messages: &[],
            tools: Some(&tools),
            add_generation_prompt: true,
            vars: &vars,
            now: Some(Now::utc(0)),
        };
        let tool_text = needed_tool_text(&template, &input);
        let tokenizer = Arc::new(Tokenizer::open(Path::new(&dir)).unwrap());
        let name = model.remote.info.model.clone();
        Self {
            server: server.to_owned(),
            name,
            model: Arc::new(model),
            template,
            vars,
            tokenizer,
            tool_text,
            tap,
        }
    }

    fn setting(&self, student: Arc<dyn Model>, options: LoopOptions) -> AgentSetting {
        let template = Template::compile(self.template.source(), "server").unwrap();
        let (vars, tokenizer) = (self.vars.clone(), Arc::clone(&self.tokenizer));
        let format = ChatFormat::new(template, vars, tokenizer, Parser::Hermes, self.tool_text);
        let speech = Speech::Exact(Arc::new(format));
        AgentSetting {
            student,
            speech,
            sandboxes: sandboxes(),
            tool_limits: Default::default(),
            reward: Default::default(),
            options,
            on_step: None,
        }
    }

    /// What the server's chat route makes of the first messages.
    async fn chat_route(&self, episode: &Episode, n_messages: usize) -> Vec<TokenId> {
        let mut messages: Vec<Value> = episode.messages[..n_messages].iter().map(to_json).collect();
        for message in &mut messages {
            // The name under which newer servers take a thought.
            if let Some(thought) = message.get("reasoning_content").cloned() {
                message["reasoning"] = thought;
            }
        }
        let mut body = json!({"model": self.name, "messages": messages, "tools": episode.tools, "add_generation_prompt": true});
        if let Some(choice) = self.tool_text {
            let input = RenderInput {
                messages: &messages,
                tools: Some(&episode.tools),
                add_generation_prompt: true,
                vars: &self.vars,
                now: Some(Now::utc(0)),
            };
            body["messages"] = tool_text::apply(choice, &self.template, &input).into();
            body.as_object_mut().unwrap().remove("tools");
        }
        let answer =
            crate::support::http::client().post(format!("{}/tokenize", self.server)).json(&body).send().await;
        let answer: Value = answer.unwrap().json().await.unwrap();
        ids(&answer["tokens"])
    }

    fn text(&self, ids: &[TokenId]) -> String {
        self.tokenizer.decode(ids).unwrap()
    }
}

/// How a prompt compares with what the chat route makes of the same conversation.
#[derive(Debug, PartialEq, Eq)]
enum Compared {
    Equal,
    /// The same text in other tokens, because these actions were not sampled in the tokenizer's own tokens.
    NotCanonical(Vec<usize>),
    /// These actions are written differently by the template; all that stands between actions is the same.
    Rewritten(Vec<Rewrite>),
}

/// An action, and from where on the template writes it differently.
#[derive(Debug, PartialEq, Eq)]
struct Rewrite {
    action: usize,
    sampled: String,
    written: String,
}

impl Rewrite {
    fn new(action: usize, sampled: &str, written: &str) -> Option<Self> {
        let n_same = sampled.chars().zip(written.chars()).take_while(|(a, b)| a == b).count();
        let rest = |text: &str| text.chars().skip(n_same.saturating_sub(10)).take(30).collect::<String>();
        (sampled != written).then(|| Self { action, sampled: rest(sampled), written: rest(written) })
    }
}

#[derive(Debug, Default)]
struct Figures {
    prompts: usize,
    tokens: usize,
    equal: usize,
    not_canonical: usize,
    rewritten: usize,
}

/// Every prompt of an episode is what the server read; compares each with the server's chat route.
async fn check(real: &Real, episode: &Episode, figures: &mut Figures) -> Vec<Compared> {
    let seen = std::mem::take(&mut *real.tap.seen.lock().unwrap());
    let steps = episode.steps();
    let sequence = &episode.sequences[0];
    assert_eq!(seen.len(), steps.len());
    let mut compared = Vec::new();
    for (turn, (step, exchange)) in steps.iter().zip(&seen).enumerate() {
        let span = step.tokens.as_ref().unwrap().span;
        let prompt = &sequence[..span.start()];
        assert_eq!(ids(&exchange.request["prompt"]), prompt, "turn {turn}: what was sent");
        assert_eq!(
            ids(&exchange.answer["choices"][0]["prompt_token_ids"]),
            prompt,
            "turn {turn}: what was read"
        );
        let server = real.chat_route(episode, step.message_idx).await;
        let found = compare(real, episode, turn, prompt, &server);
        figures.prompts += 1;
        figures.tokens += prompt.len();
        match &found {
            Compared::Equal => figures.equal += 1,
            Compared::NotCanonical(_) => figures.not_canonical += 1,
            Compared::Rewritten(_) => figures.rewritten += 1,
        }
        compared.push(found);
    }
    compared
}

fn compare(real: &Real, episode: &Episode, turn: usize, prompt: &[TokenId], server: &[TokenId]) -> Compared {
    if prompt == server {
        return Compared::Equal;
    }
    let actions: Vec<_> =
        episode.steps()[..turn].iter().map(|step| step.tokens.as_ref().unwrap().span).collect();
    let action = |idx: usize| real.text(&prompt[actions[idx].range()]);
    if real.text(prompt) == real.text(server) {
        let not_canonical: Vec<usize> = (0..turn)
            .filter(|&idx| real.tokenizer.encode(&action(idx)).unwrap().ids != prompt[actions[idx].range()])
            .collect();
        assert!(!not_canonical.is_empty(), "turn {turn}: other tokens without a reason");
        return Compared::NotCanonical(not_canonical);
    }
    // What stands between the actions must be found in the server's text, in order, from its first to its last letter.
    let shown = real.text(server);
    let (mut rest, mut rewritten, mut from) = (shown.as_str(), Vec::new(), 0);
    for (idx, span) in actions.iter().enumerate() {
        let between = real.text(&prompt[from..span.start()]);
        let at = rest
            .find(&between)
            .unwrap_or_else(|| unreachable!("turn {turn}: {between:?} is not in {rest:?}"));
        assert!(idx > 0 || at == 0, "turn {turn}: the beginning differs");
        if idx > 0 {
            rewritten.extend(Rewrite::new(idx - 1, &action(idx - 1), &rest[..at]));
        }
        rest = &rest[at + between.len()..];
        from = span.end();
    }
    let last = real.text(&prompt[from..]);
    let before = rest.strip_suffix(last.as_str());
    let before = before.unwrap_or_else(|| unreachable!("turn {turn}: {rest:?} does not end with {last:?}"));
    rewritten.extend(Rewrite::new(turn - 1, &action(turn - 1), before));
    assert!(!rewritten.is_empty(), "turn {turn}: {shown}");
    Compared::Rewritten(rewritten)
}

/// Has the server read every prompt, and says what the test wants instead of what the server samples.
struct Steered {
    inner: Arc<dyn Model>,
    turns: Vec<Vec<TokenId>>,
}

#[async_trait]
impl Model for Steered {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let mut asked = request.clone();
        asked.sampling.max_tokens = 1;
        let generated = self.inner.generate(&asked).await?;
        let token = |&id: &TokenId| SampledToken { id, logprob: None, top: TopK::default() };
        let tokens = self.turns[request.place.step].iter().map(token).collect();
        Ok(Generated { tokens, finish: Finish::Stop, ..generated })
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.inner.score(job).await
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        self.inner.chat(request).await
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
}

fn options() -> LoopOptions {
    LoopOptions {
        system_prompt: Some("You write Python.".to_owned()),
        max_turn_tokens: 160,
        max_agent_turns: 4,
        ..LoopOptions::default()
    }
}

/// Runs a conversation whose actions are given, in the tokenizer's own tokens.
async fn steered(real: &Real, turns: &[String], figures: &mut Figures) -> (Episode, Vec<Compared>) {
    let end = *real.tokenizer.end_ids().last().unwrap();
    let ids = |text: &String| [real.tokenizer.encode(text).unwrap().ids, vec![end]].concat();
    let student = Steered { inner: Arc::clone(&real.model), turns: turns.iter().map(ids).collect() };
    let setting = real.setting(Arc::new(student), LoopOptions { max_agent_turns: 15, ..options() });
    let episode = run_episode(&setting, &task(), place()).await;
    let compared = check(real, &episode, figures).await;
    (episode, compared)
}

/// Lets the server sample calls in a forced form, so that also a model that cannot call tools does.
async fn forced(real: &Real, temperature: f64, figures: &mut Figures) -> (Episode, Vec<Compared>) {
    let forced_calls = Some(ForcedCalls { turns: 3, max_text: 16, tools: Vec::new(), arguments: Vec::new() });
    let options = LoopOptions { forced_calls, agent_temperature: temperature, ..options() };
    let setting = real.setting(Arc::clone(&real.model), options);
    let episode = run_episode(&setting, &task(), place()).await;
    assert!(episode.outcome.is_ok(), "{:?}", episode.outcome);
    let n_calls: Vec<usize> =
        episode.steps().iter().take(3).map(|it| episode.messages[it.message_idx].tool_calls.len()).collect();
    assert_eq!(n_calls, [1, 1, 1], "{:?}", episode.messages);
    // Logprobs under a constraint are not the student's own; the last turn is free.
    let known =
        |step: usize| episode.steps()[step].tokens.as_ref().unwrap().logprobs.iter().flatten().count();
    assert_eq!((0..3).map(known).sum::<usize>(), 0);
    assert!(episode.steps().len() < 4 || known(3) > 0);
    let compared = check(real, &episode, figures).await;
    (episode, compared)
}

fn solving() -> Vec<String> {
    let check = call("terminal", r#"{"command": "python3 -c 'import solution; print(solution.add(1, 2))'"}"#);
    let look = call("read_file", r#"{"path": "solution.py"}"#);
    let both = format!("I look at both.\n{look}\n{}", call("terminal", r#"{"command": "ls; seq 3"}"#));
    vec![write_solution(), both, check, "It works: 1 + 2 = 3.".to_owned()]
}

async fn check_model(real: &Real) -> Figures {
    let mut figures = Figures::default();
    let (episode, compared) = steered(real, &solving(), &mut figures).await;
    assert_eq!((episode.stop, episode.outcome.as_ref().unwrap().reward), (Some(Stop::Answered), 0.97));
    assert!(compared.iter().all(|it| *it == Compared::Equal), "{compared:?}");
    for temperature in [0.0, 1.0] {
        let (episode, compared) = forced(real, temperature, &mut figures).await;
        for (turn, compared) in compared.iter().enumerate() {
            eprintln!("  sampled at {temperature}, turn {turn}: {compared:?}");
        }
        assert_eq!(compared[0], Compared::Equal);
        assert!(episode.steps().len() >= 3);
    }
    figures
}

#[tokio::test]
async fn smollm2() {
    let Some(url) = url("BACKSIGHT_VLLM_URL") else { return };
    let real = Real::open(&url).await;
    assert_eq!(real.tool_text, Some(ToolText::Hermes), "its template ignores tools");
    let figures = check_model(&real).await;
    eprintln!("SmolLM2 on vLLM: {figures:?}");
    crate::compared(figures.prompts, "prompts");
}

#[tokio::test]
async fn qwen3() {
    let Some(url) = url("BACKSIGHT_VLLM_QWEN3_URL") else { return };
    let real = Real::open(&url).await;
    assert_eq!(real.tool_text, None, "its template writes tools");
    let mut figures = check_model(&real).await;
    // A broken call is answered by a user's message: from then on the template forgets what was thought before it.
    let think = format!("<think>\nI need a file.\n</think>\n\n{}", write_solution());
    let broken =
        "<tool_call>\n{\"name\": \"terminal\", \"arguments\": {\"command\": \"ls}\n</tool_call>".to_owned();
    let turns = [think, broken, solving()[2].clone(), "It works.".to_owned()];
    let (episode, compared) = steered(&real, &turns, &mut figures).await;
    assert_eq!(episode.messages[2].reasoning.as_deref(), Some("I need a file."));
    for (turn, compared) in compared.iter().enumerate() {
        eprintln!("  thinking, turn {turn}: {compared:?}");
    }
    assert_eq!(compared[1], Compared::Equal, "thinking since the last question is kept");
    let Compared::Rewritten(rewritten) = &compared[2] else { unreachable!("the thought is forgotten") };
    assert!(rewritten[0].sampled.starts_with("<think>") && rewritten[0].written.starts_with("<tool_call>"));
    eprintln!("Qwen3 on vLLM: {figures:?}");
    crate::compared(figures.prompts, "prompts");
}
