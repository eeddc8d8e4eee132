//! The embedded model behind the same trait as every other one.
//!
//! Owns [`Embedded`]: an engine on its own thread, with the tokenizer and the chat template that came with
//! the weights. A model without a tokenizer still takes and scores ids. Deliberately absent: numbers,
//! which are the engine's, and reasoning apart from the text, which needs to know the model's own marks.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::constrain::TokenBytes;
use super::engine::Engine;
use super::worker::Worker;
use backsight_chat::drops::drops;
use backsight_chat::messages;
use backsight_chat::parse::Parser;
use backsight_chat::render::render_conversation;
use backsight_chat::source::ChatTemplates;
use backsight_chat::template::{Now, RenderInput};
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::episode::{Content, Message, Role, ToolText};
use backsight_core::model::{
    ChatAnswer, ChatRequest, Error, Finish, GenerateRequest, Generated, Limits, Model, Scored,
};
use backsight_core::score::ScoreJob;
use backsight_core::tokens::TokenId;

/// What to do about a model that has no text.
const NO_TEXT_HELP: &str = "use a model directory with tokenizer.json, or name one by --tokenizer";

/// A model that runs in this process.
pub struct Embedded {
    worker: Worker,
    limits: Limits,
    /// Or why there is none.
    tokenizer: Result<Arc<Tokenizer>, String>,
    /// Or why there are none.
    templates: Result<ChatTemplates, String>,
    /// The named rendering of conversations with tools, where the template leaves those out.
    tool_text: Option<ToolText>,
    /// What templates that print the date print: when the model was opened.
    now: Now,
}

/// An answered conversation with the ids behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Talked {
    /// The answer.
    pub answer: ChatAnswer,
    /// The conversation as the model saw it.
    pub prompt: Vec<TokenId>,
    /// What was sampled.
    pub generated: Generated,
}

/// How a conversation is put to the model and its answer read, where more can be told than every model understands.
#[derive(Clone, Debug, PartialEq)]
pub struct TalkOptions {
    /// Candidates at every sampled token.
    pub top_k: usize,
    /// Ids after which to stop, beside those that end a turn.
    pub stop_ids: Vec<TokenId>,
    /// What the template is given beside the conversation and the special tokens.
    pub vars: Map<String, Value>,
    /// Whether the prompt ends with the header that asks the model to speak.
    pub add_generation_prompt: bool,
    /// Whether tool calls are read out of the answer.
    pub reads_calls: bool,
    /// Whether special tokens are left out of the answer's text.
    pub skips_special: bool,
}

impl Default for TalkOptions {
    fn default() -> Self {
        Self {
            top_k: 0,
            stop_ids: Vec::new(),
            vars: Map::new(),
            add_generation_prompt: true,
            reads_calls: true,
            skips_special: false,
        }
    }
}

impl Embedded {
    /// Loads the model at `path`, a Hugging Face directory or a GGUF file, with the tokenizer beside or inside it or another one.
    pub fn load(path: &Path, tokenizer: Option<&Path>) -> Result<Self, Error> {
        let text_path = tokenizer.unwrap_or(path);
        let tokenizer = open_tokenizer(text_path, tokenizer.is_some())?;
        let mut engine = Engine::load(path)?;
        if let Ok(tokenizer) = &tokenizer {
            set_vocabulary(&mut engine, tokenizer)?;
        }
        let templates = ChatTemplates::open(text_path).map_err(|error| error.to_string());
        let (limits, now) = (engine.limits(), now());
        let tool_text = templates.as_ref().ok().and_then(|templates| tool_text(templates, now));
        let (worker, tokenizer) = (Worker::start(engine)?, tokenizer.map(Arc::new));
        Ok(Self { worker, limits, tokenizer, templates, tool_text, now })
    }

    /// The named rendering that is used for conversations with tools because the template leaves those out; `None` where it does not.
    pub fn tool_text(&self) -> Option<ToolText> {
        self.tool_text
    }

    /// The model's tokenizer, or an error that says why it has none.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, Error> {
        self.tokenizer.as_ref().map_err(|why| no_text(why))
    }

    /// The model's chat templates, or an error that says why it has none.
    pub fn templates(&self) -> Result<&ChatTemplates, Error> {
        self.templates.as_ref().map_err(|why| no_text(why))
    }

    /// Answers a conversation.
    pub async fn talk(&self, request: &ChatRequest, options: &TalkOptions) -> Result<Talked, Error> {
        let tokenizer = self.tokenizer()?;
        let prompt = self.prompt_in(&request.messages, &request.tools, options)?;
        let generate = GenerateRequest {
            prompt: prompt.clone(),
            sampling: request.sampling.clone(),
            stop_ids: [&options.stop_ids, tokenizer.end_ids()].concat(),
            top_k: options.top_k,
            place: request.place.clone(),
        };
        let generated = self.worker.generate(&generate).await?;
        let text = answer_text(tokenizer, &generate.stop_ids, options, &generated)?;
        let tools = if options.reads_calls { &request.tools[..] } else { &[] };
        Ok(Talked { answer: answer(&text, tools, &generated), prompt, generated })
    }

    /// A conversation as the model sees it when it is its turn to speak.
    ///
    /// Tools are written as [`Embedded::tool_text`] says, and the time is that at which the model was opened.
    pub fn prompt(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<TokenId>, Error> {
        self.prompt_in(messages, tools, &TalkOptions::default())
    }

    fn prompt_in(
        &self,
        messages: &[Message],
        tools: &[Value],
        options: &TalkOptions,
    ) -> Result<Vec<TokenId>, Error> {
        let templates = self.templates()?;
        let has_tools = !tools.is_empty();
        let template = templates.select(has_tools).map_err(|error| Error::invalid(&error, error.help()))?;
        let has_calls = messages.iter().any(|message| !message.tool_calls.is_empty());
        let tool_text = self.tool_text.filter(|_| has_tools || has_calls);
        let messages: Vec<Value> = messages.iter().map(messages::to_json).collect();
        let vars = templates.special_tokens().clone().into_iter().chain(options.vars.clone()).collect();
        let input = RenderInput {
            messages: &messages,
            tools: has_tools.then_some(tools),
            add_generation_prompt: options.add_generation_prompt,
            vars: &vars,
            now: Some(self.now),
        };
        let rendering = render_conversation(&template, &input, tool_text);
        let text = rendering.map_err(|error| Error::invalid(&error, error.help()))?.rendered.text;
        let encoded = self.tokenizer()?.encode(&text);
        encoded.map(|it| it.ids).map_err(|error| Error::invalid(&error, error.help()))
    }
}

#[async_trait]
impl Model for Embedded {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        self.worker.generate(request).await
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.worker.score(job).await
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        self.talk(request, &TalkOptions::default()).await.map(|talked| talked.answer)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// The tokenizer at `path`. One that was named, or that is there and broken, is an error; one that is not there is none.
fn open_tokenizer(path: &Path, is_named: bool) -> Result<Result<Tokenizer, String>, Error> {
    let is_optional = !is_named && !path.join("tokenizer.json").exists();
    match Tokenizer::open(path) {
        Ok(tokenizer) => Ok(Ok(tokenizer)),
        Err(error) if is_optional => Ok(Err(error.to_string())),
        Err(error) => Err(Error::invalid(&error, error.help())),
    }
}

/// Refuses a tokenizer of another model; tells the engine what its tokens stand for.
fn set_vocabulary(engine: &mut Engine, tokenizer: &Tokenizer) -> Result<(), Error> {
    let tokens = tokenizer.token_bytes();
    engine.check_vocabulary(tokens.len())?;
    match tokenizer.end_ids().first() {
        Some(&end) => engine.set_vocabulary(&TokenBytes { tokens, end }),
        // Without a token that ends a text there is nothing to end a constrained one with.
        None => Ok(()),
    }
}

/// What the model said, without the token that ended it.
fn answer_text(
    tokenizer: &Tokenizer,
    stop_ids: &[TokenId],
    options: &TalkOptions,
    generated: &Generated,
) -> Result<String, Error> {
    let mut ids: Vec<TokenId> = generated.tokens.iter().map(|token| token.id).collect();
    ids.pop_if(|id| stop_ids.contains(id));
    ids.retain(|&id| !(options.skips_special && tokenizer.is_special(id)));
    tokenizer.decode(&ids).map_err(|error| Error::invalid(&error, error.help()))
}

/// The answer that a text is, its tool calls read if the model was given tools.
fn answer(text: &str, tools: &[Value], generated: &Generated) -> ChatAnswer {
    let mut message = Message::text(Role::Assistant, text);
    let mut finish = generated.finish.clone();
    if !tools.is_empty() {
        let parsed = Parser::Hermes.parse(text, tools);
        message.content = parsed.content.map(Content::Text);
        message.tool_calls = parsed.calls.iter().map(|call| call.to_tool_call()).collect();
        for (idx, call) in message.tool_calls.iter_mut().enumerate() {
            call.id.get_or_insert_with(|| format!("call_{idx}"));
        }
        if finish == Finish::Stop && !message.tool_calls.is_empty() {
            finish = Finish::ToolCalls;
        }
    }
    ChatAnswer { message, finish, usage: generated.usage }
}

/// Tools are written as text where the template for conversations with tools ignores them.
fn tool_text(templates: &ChatTemplates, now: Now) -> Option<ToolText> {
    let template = templates.select(true).ok()?;
    let dropped = drops(&template, templates.special_tokens(), Some(now));
    (dropped.tools || dropped.tool_calls).then_some(ToolText::Hermes)
}

fn now() -> Now {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    Now::utc(i64::try_from(seconds).unwrap_or(i64::MAX))
}

fn no_text(why: &str) -> Error {
    Error::unsupported("the embedded model", format!("read or write text: {why}"), NO_TEXT_HELP)
}
