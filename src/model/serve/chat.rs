//! OpenAI's chat route over the embedded model, with what each of the two servers adds to it.
//!
//! Owns how a conversation is put, and the answer's shape. Tool calls are read as `<tool_call>` text. vLLM gives the
//! prompt's ids and logprobs beside the choices, SGLang its ids inside of them and under other names.

use serde_json::{Map, Value, json};

use super::vllm::usage;
use super::{Personality, Refusal, Served, finish_word, sampling};
use crate::model::{ChatRequest, Generated, Model as _};
use crate::wire::served;
use backsight_chat::messages;
use backsight_core::tokens::{Logprob, TokenId};
use backsight_engine::model::{TalkOptions, Talked};

impl Served {
    pub(super) async fn chat(&self, body: &[u8]) -> Result<Value, Refusal> {
        let asked: served::Chat = served::read(body).map_err(Refusal::bad)?;
        self.check_model(asked.model.as_deref())?;
        if asked.messages.as_array().is_some_and(Vec::is_empty) {
            return Err(Refusal::bad("messages cannot be empty"));
        }
        let candidates = i64::try_from(asked.top_logprobs).unwrap_or(i64::MAX);
        self.check_logprobs(Some(candidates), "top_logprobs")?;
        let prompt_top_k = self.check_logprobs(asked.prompt_logprobs, "prompt_logprobs")?;
        let manner = manner(&asked)?;
        let talked = self.model.talk(&self.chat_request(&asked, &manner)?, &manner).await?;
        let mut answer = json!({
            "id": "chatcmpl-backsight", "object": "chat.completion", "created": 0, "model": self.name,
            "choices": [self.chat_choice(&asked, &talked)], "usage": usage(&talked.answer.usage),
        });
        if self.personality == Personality::Vllm {
            let rows = match prompt_top_k {
                Some(top_k) => Some(self.prompt_logprobs(&talked.prompt, top_k).await?.0),
                None => None,
            };
            answer["prompt_logprobs"] = json!(rows);
            answer["prompt_token_ids"] = json!(asked.return_token_ids.then_some(&talked.prompt));
        }
        Ok(answer)
    }

    fn chat_request(&self, asked: &served::Chat, manner: &TalkOptions) -> Result<ChatRequest, Refusal> {
        // OpenAI's default is as many tokens as the context has room for.
        let room = self.model.limits().context_length.unwrap_or(usize::MAX);
        let sampling = sampling(&asked.drawing, room)?;
        // Where no calls are wanted, SGLang does not even tell the model of its tools; vLLM does.
        let tells_tools = manner.reads_calls || self.personality == Personality::Vllm;
        Ok(ChatRequest {
            messages: messages::list_from_json(&asked.messages).map_err(Refusal::bad)?,
            tools: asked.tools.clone().filter(|_| tells_tools).unwrap_or_default(),
            place: self.place(&sampling),
            sampling,
        })
    }

    fn chat_choice(&self, asked: &served::Chat, talked: &Talked) -> Value {
        let mut message = messages::to_json(&talked.answer.message);
        if message.get("content").is_none() {
            message["content"] = Value::Null;
        }
        let as_ids = asked.return_tokens_as_token_ids;
        let logprobs =
            asked.logprobs.then(|| self.chat_logprobs(&talked.generated, asked.top_logprobs, as_ids));
        let mut choice = json!({
            "index": 0, "message": message, "logprobs": logprobs,
            "finish_reason": finish_word(&talked.answer.finish),
        });
        let ids: Vec<TokenId> = talked.generated.tokens.iter().map(|token| token.id).collect();
        match self.personality {
            Personality::Vllm => choice["token_ids"] = json!(asked.return_token_ids.then_some(ids)),
            Personality::Sglang => {
                choice["response_token_ids"] = json!(asked.return_token_ids.then_some(ids));
                choice["prompt_token_ids"] = json!(asked.return_prompt_token_ids.then_some(&talked.prompt));
            }
        }
        choice
    }

    fn chat_logprobs(&self, generated: &Generated, top_k: usize, as_ids: bool) -> Value {
        let entry = |id: TokenId, logprob: Option<Logprob>| {
            let text = self.text(&[id]).unwrap_or_default();
            let name = if as_ids { format!("token_id:{id}") } else { text.clone() };
            json!({"token": name, "bytes": text.as_bytes(), "logprob": logprob.map(Logprob::get)})
        };
        let content = generated.tokens.iter().map(|token| {
            let mut row = entry(token.id, token.logprob);
            let best = token.top.entries().iter().take(top_k);
            row["top_logprobs"] = best.map(|&(id, logprob)| entry(id, Some(logprob))).collect();
            row
        });
        json!({"content": content.collect::<Vec<_>>()})
    }
}

/// How the conversation is to be put and the answer read.
fn manner(asked: &served::Chat) -> Result<TalkOptions, Refusal> {
    if asked.add_special_tokens {
        return Err(Refusal::bad("add_special_tokens is not supported by this server for conversations"));
    }
    let has_tools = asked.tools.as_ref().is_some_and(|tools| !tools.is_empty());
    Ok(TalkOptions {
        top_k: asked.top_logprobs,
        stop_ids: asked.stop_token_ids.clone().unwrap_or_default(),
        vars: template_vars(asked)?,
        add_generation_prompt: asked.add_generation_prompt,
        reads_calls: reads_calls(asked.tool_choice.as_ref())?,
        // The marks of a call may be special tokens.
        skips_special: asked.drawing.skip_special_tokens && !has_tools,
    })
}

/// The variables of the template; what is a field of the request is no variable.
fn template_vars(asked: &served::Chat) -> Result<Map<String, Value>, Refusal> {
    let vars = asked.chat_template_kwargs.clone().unwrap_or_default();
    match ["messages", "chat_template"].into_iter().find(|name| vars.contains_key(*name)) {
        Some(name) => Err(Refusal::bad(format!("chat_template_kwargs cannot hold `{name}`"))),
        None => Ok(vars),
    }
}

/// Whether calls are read. To be made to call something is refused: the model is left to choose.
fn reads_calls(choice: Option<&Value>) -> Result<bool, Refusal> {
    match choice {
        None | Some(Value::Null) => Ok(true),
        Some(Value::String(word)) if word == "auto" => Ok(true),
        Some(Value::String(word)) if word == "none" => Ok(false),
        Some(other) => {
            let message =
                format!("tool_choice {other} is not supported by this server: use `auto` or `none`");
            Err(Refusal { param: Some("tool_choice"), ..Refusal::bad(message) })
        }
    }
}
