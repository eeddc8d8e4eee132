//! vLLM's completions route over the embedded model.
//!
//! Owns the answer's shape: `prompt_logprobs` per position keyed by id, sampled tokens named by id on request.
//! The rank of a given token outside the top K is not computed and is null.

use serde_json::{Map, Value, json};

use super::{Personality, Refusal, Served, best_of, finish_word, sampling};
use crate::model::{GenerateRequest, Generated, Model as _, Usage};
use crate::wire::served::{self, Completion, Prompt};
use backsight_core::score::TokenScore;
use backsight_core::tokens::TokenId;

/// How many tokens vLLM samples when it is not told.
const MAX_TOKENS: usize = 16;

impl Served {
    pub(super) async fn completion(&self, body: &[u8]) -> Result<Value, Refusal> {
        let asked: Completion = served::read(body).map_err(Refusal::bad)?;
        self.check_model(asked.model.as_deref())?;
        let prompts = self.prompts_ids(&asked.prompt, asked.add_special_tokens)?;
        self.check_logprobs(asked.logprobs.map(|it| it as i64), "logprobs")?;
        let prompt_top_k = self.check_logprobs(asked.prompt_logprobs, "prompt_logprobs")?;
        let mut choices = Vec::with_capacity(prompts.len());
        let mut total = Usage::NOTHING;
        for (index, prompt) in prompts.into_iter().enumerate() {
            let (choice, usage) = self.complete(&asked, index, prompt, prompt_top_k).await?;
            choices.push(choice);
            total += usage;
        }
        let id = format!("cmpl-{}", asked.request_id.as_deref().unwrap_or("backsight"));
        Ok(json!({
            "id": id, "object": "text_completion", "created": 0, "model": self.name,
            "choices": choices, "usage": usage(&total),
        }))
    }

    async fn complete(
        &self,
        asked: &Completion,
        index: usize,
        prompt: Vec<TokenId>,
        prompt_top_k: Option<usize>,
    ) -> Result<(Value, Usage), Refusal> {
        let prompt_logprobs = match prompt_top_k {
            Some(top_k) => Some(self.prompt_logprobs(&prompt, top_k).await?),
            None => None,
        };
        let sampling = sampling(&asked.drawing, MAX_TOKENS)?;
        let request = GenerateRequest {
            prompt,
            stop_ids: self.stop_ids(&asked.stop_token_ids),
            top_k: asked.logprobs.unwrap_or(0),
            place: self.place(&sampling),
            sampling,
        };
        let mut generated = self.model.generate(&request).await?;
        if let Some((_, cached)) = &prompt_logprobs {
            // Sampling finds what scoring has just read, which was not there before.
            generated.usage.cached_tokens = *cached;
        }
        let ids: Vec<TokenId> = generated.tokens.iter().map(|token| token.id).collect();
        let logprobs = asked.logprobs.map(|_| self.logprobs(&generated, asked.return_tokens_as_token_ids));
        let choice = json!({
            "index": index, "logprobs": logprobs,
            "text": self.sampled_text(&ids, &request.stop_ids, asked.drawing.skip_special_tokens),
            "finish_reason": finish_word(&generated.finish), "stop_reason": null,
            "token_ids": asked.return_token_ids.then_some(&ids),
            "prompt_logprobs": prompt_logprobs.map(|(rows, _)| rows),
            "prompt_token_ids": asked.return_token_ids.then_some(&request.prompt),
        });
        Ok((choice, generated.usage))
    }

    fn prompts_ids(&self, prompt: &Prompt, add_special: bool) -> Result<Vec<Vec<TokenId>>, Refusal> {
        let encode = |text: &String| self.encode(text, add_special);
        let prompts = match prompt {
            Prompt::Ids(ids) => vec![ids.clone()],
            Prompt::Text(text) => vec![encode(text)?],
            Prompt::Texts(texts) => texts.iter().map(encode).collect::<Result<_, _>>()?,
            Prompt::Batch(all) => all.clone(),
        };
        let is_empty = prompts.is_empty() || prompts.iter().any(Vec::is_empty);
        if is_empty { Err(Refusal::bad("You must pass at least one prompt")) } else { Ok(prompts) }
    }

    /// Like vLLM, a text also ends where the model ends its turn.
    pub(super) fn stop_ids(&self, asked: &[TokenId]) -> Vec<TokenId> {
        let ends = self.model.tokenizer().map(|it| it.end_ids().to_vec()).unwrap_or_default();
        [asked, &ends].concat()
    }

    /// K within the limit; -1 is the whole vocabulary.
    pub(super) fn check_logprobs(
        &self,
        asked: Option<i64>,
        param: &'static str,
    ) -> Result<Option<usize>, Refusal> {
        let Some(asked) = asked else { return Ok(None) };
        let bad = |message: String| Refusal { param: Some(param), ..Refusal::bad(message) };
        let vocab = self.model.limits().vocab_size.unwrap_or(usize::MAX);
        // SGLang has no limit of its own.
        let limit = if self.personality == Personality::Vllm { self.max_logprobs.min(vocab) } else { vocab };
        let top_k = if asked == -1 { Ok(vocab) } else { usize::try_from(asked) };
        let top_k = top_k.map_err(|_| bad(format!("{param} must be a non-negative value or -1")))?;
        if top_k <= limit {
            return Ok(Some(top_k));
        }
        let what = param.replace('_', " ");
        Err(bad(format!(
            "Requested {what} of {top_k}, which is greater than max allowed: {limit} \
             (parameter={param}, value={top_k})"
        )))
    }

    /// One object per position of the prompt, the first null, and how many tokens were found in the cache.
    pub(super) async fn prompt_logprobs(
        &self,
        prompt: &[TokenId],
        top_k: usize,
    ) -> Result<(Vec<Value>, Option<u64>), Refusal> {
        let (mut rows, mut cached) = (vec![Value::Null], Some(0));
        if prompt.len() > 1 {
            let scored = self.score_from(prompt, 1, top_k).await?;
            cached = scored.usage.cached_tokens;
            let scores = scored.spans.iter().flat_map(|span| span.scores());
            rows.extend(scores.zip(&prompt[1..]).map(|(score, &id)| self.row(score, id, top_k)));
        }
        Ok((rows, cached))
    }

    fn row(&self, score: &TokenScore, given: TokenId, top_k: usize) -> Value {
        let Ok(own) = score.logprob else { return Value::Null };
        let mut row = Map::new();
        let entry = |id: TokenId, logprob: f64, rank: Option<usize>| json!({"logprob": logprob, "rank": rank, "decoded_token": self.text(&[id])});
        row.insert(given.to_string(), entry(given, own.get(), None));
        for (idx, &(id, logprob)) in best_of(&score.top, given, top_k).enumerate() {
            row.insert(id.to_string(), entry(id, logprob.get(), Some(idx + 1)));
        }
        Value::Object(row)
    }

    fn logprobs(&self, generated: &Generated, as_ids: bool) -> Value {
        let name = |id: TokenId| match self.text(&[id]) {
            Some(text) if !as_ids => text,
            _ => format!("token_id:{id}"),
        };
        let row = |token: &crate::model::SampledToken| -> Map<String, Value> {
            let own = token.logprob.map(|logprob| (token.id, logprob));
            let all = token.top.entries().iter().copied().chain(own);
            all.map(|(id, logprob)| (name(id), json!(logprob.get()))).collect()
        };
        let tokens: Vec<String> = generated.tokens.iter().map(|token| name(token.id)).collect();
        let values: Vec<Option<f64>> =
            generated.tokens.iter().map(|token| token.logprob.map(|it| it.get())).collect();
        let offsets: Vec<usize> = tokens
            .iter()
            .scan(0, |end, token| Some(std::mem::replace(end, *end + token.chars().count())))
            .collect();
        let tops: Vec<_> = generated.tokens.iter().map(row).collect();
        json!({"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops})
    }
}

/// `usage` as OpenAI writes it.
pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}
