//! OpenAI's chat route over the embedded model, the same for both servers.
//!
//! Owns the answer's shape. Tool calls are read as `<tool_call>` text.

use serde_json::{Value, json};

use super::vllm::usage;
use super::{Refusal, Served, finish_word, sampling};
use crate::model::{ChatRequest, Generated, Model as _};
use crate::tokens::{Logprob, TokenId};
use crate::wire::{messages, served};

impl Served {
    pub(super) async fn chat(&self, body: &[u8]) -> Result<Value, Refusal> {
        let asked: served::Chat = served::read(body).map_err(Refusal::bad)?;
        self.check_model(asked.model.as_deref())?;
        if asked.messages.as_array().is_some_and(Vec::is_empty) {
            return Err(Refusal::bad("messages cannot be empty"));
        }
        // OpenAI's default is as many tokens as the context has room for.
        let room = self.model.limits().context_length.unwrap_or(usize::MAX);
        let request = ChatRequest {
            messages: messages::list_from_json(&asked.messages).map_err(Refusal::bad)?,
            tools: asked.tools.unwrap_or_default(),
            sampling: sampling(&asked.drawing, room)?,
            place: self.place(),
        };
        let talked = self.model.talk(&request, asked.top_logprobs).await?;
        let mut message = messages::to_json(&talked.answer.message);
        if message.get("content").is_none() {
            message["content"] = Value::Null;
        }
        let logprobs = asked.logprobs.then(|| self.chat_logprobs(&talked.generated, asked.top_logprobs));
        let choice = json!({
            "index": 0, "message": message, "logprobs": logprobs,
            "finish_reason": finish_word(&talked.answer.finish),
        });
        Ok(json!({
            "id": "chatcmpl-backsight", "object": "chat.completion", "created": 0, "model": self.name,
            "choices": [choice], "usage": usage(&talked.answer.usage),
        }))
    }

    fn chat_logprobs(&self, generated: &Generated, top_k: usize) -> Value {
        let entry = |id: TokenId, logprob: Option<Logprob>| {
            let text = self.text(&[id]).unwrap_or_default();
            json!({"token": text, "bytes": text.as_bytes(), "logprob": logprob.map(Logprob::get)})
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
