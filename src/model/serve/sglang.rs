//! SGLang's own `/generate` route over the embedded model.
//!
//! Owns its window (`logprob_start_len`, whose first entry is null), its triples and its batches.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Refusal, Served, best_of, matched};
use crate::model::{
    Constraint, Finish, GenerateRequest, Generated, Model as _, SampledToken, Sampling, Scored, Usage,
};
use crate::wire::OneOrMany;
use crate::wire::served;
use crate::wire::sglang::{GenerateRequest as Generate, SamplingParams};
use backsight_core::score::TokenScore;
use backsight_core::tokens::{Logprob, TokenId, TopK};

/// One prompt of a request.
struct One {
    rid: String,
    prompt: Vec<TokenId>,
    /// The token before the first whose logprob is wanted.
    start: Option<usize>,
    top_k: usize,
}

impl Served {
    pub(super) async fn generate(&self, body: &[u8]) -> Result<Value, Refusal> {
        let asked: Generate<'_> = served::read(body).map_err(Refusal::bad)?;
        let (prompts, is_batch) = self.prompts(&asked)?;
        let named = rids(asked.rid.as_ref(), prompts.len())?.into_iter().zip(prompts).enumerate();
        let all = named.map(|(idx, (rid, prompt))| self.one(&asked, idx, rid, prompt));
        let all = all.collect::<Result<Vec<One>, Refusal>>()?;
        let sampling = sampling(&asked.sampling_params)?;
        let mut answers = Vec::with_capacity(all.len());
        for one in &all {
            answers.push(self.generate_one(&asked, one, &sampling).await?);
        }
        Ok(if is_batch { Value::Array(answers) } else { answers.pop().unwrap_or_default() })
    }

    fn prompts(&self, asked: &Generate<'_>) -> Result<(Vec<Vec<TokenId>>, bool), Refusal> {
        let (prompts, is_batch) = match (&asked.input_ids, &asked.text) {
            (Some(OneOrMany::One(ids)), _) => (vec![ids.to_vec()], false),
            (Some(OneOrMany::Many(all)), _) => (all.iter().map(|ids| ids.to_vec()).collect(), true),
            (None, Some(text)) => (vec![self.encode(text, true)?], false),
            (None, None) => {
                return Err(Refusal::bad("Either text, input_ids or input_embeds should be provided."));
            }
        };
        if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
            return Err(Refusal::bad("input_ids cannot be empty."));
        }
        Ok((prompts, is_batch))
    }

    fn one(
        &self,
        asked: &Generate<'_>,
        idx: usize,
        rid: String,
        prompt: Vec<TokenId>,
    ) -> Result<One, Refusal> {
        let missing = || Refusal::bad("a list of the request has another length than input_ids");
        let start =
            asked.logprob_start_len.as_ref().map_or(Some(-1), |it| it.get(idx)).ok_or_else(missing)?;
        let top_k = asked.top_logprobs_num.as_ref().map_or(Some(0), |it| it.get(idx)).ok_or_else(missing)?;
        let start = usize::try_from(start).ok().filter(|_| asked.return_logprob);
        if start.is_some_and(|start| start >= prompt.len()) {
            return Err(Refusal::bad("logprob_start_len is beyond the end of the prompt"));
        }
        if self.model.limits().vocab_size.is_some_and(|vocab| top_k > vocab) {
            return Err(Refusal::bad("top_logprobs_num is larger than the vocabulary"));
        }
        Ok(One { rid, prompt, start, top_k })
    }

    async fn generate_one(
        &self,
        asked: &Generate<'_>,
        one: &One,
        sampling: &Sampling,
    ) -> Result<Value, Refusal> {
        let scored = match one.start {
            Some(start) => Some((start, self.score_from(&one.prompt, start + 1, one.top_k).await?)),
            None => None,
        };
        let mut generated = Generated {
            tokens: Vec::new(),
            finish: Finish::Length,
            versions: Vec::new(),
            usage: Usage::default(),
        };
        let params = &asked.sampling_params;
        let stop_ids = self.stop_ids(&params.stop_token_ids);
        if sampling.max_tokens > 0 {
            let request = GenerateRequest {
                prompt: one.prompt.clone(),
                sampling: sampling.clone(),
                stop_ids: stop_ids.clone(),
                top_k: one.top_k,
                place: self.place(sampling),
            };
            generated = self.model.generate(&request).await?;
        }
        let ids: Vec<TokenId> = generated.tokens.iter().map(|token| token.id).collect();
        let finish = match generated.finish {
            Finish::Stop => json!({"type": "stop", "matched": matched(&ids, &stop_ids)}),
            _ => json!({"type": "length", "length": ids.len()}),
        };
        let cached = scored.as_ref().map_or(generated.usage, |(_, scored)| scored.usage).cached_tokens;
        let mut meta = json!({
            "id": one.rid, "finish_reason": finish, "prompt_tokens": one.prompt.len(),
            "completion_tokens": ids.len(), "cached_tokens": cached, "weight_version": "default",
        });
        if asked.return_logprob {
            let (inputs, input_tops) = input_logprobs(one, scored.as_ref());
            let own = |token: &SampledToken| triple(token.logprob, token.id);
            meta["input_token_logprobs"] = inputs;
            meta["output_token_logprobs"] = generated.tokens.iter().map(own).collect();
            if one.top_k > 0 {
                let row = |token: &SampledToken| best(&token.top, token.id, one.top_k);
                meta["input_top_logprobs"] = input_tops;
                meta["output_top_logprobs"] = generated.tokens.iter().map(row).collect();
            }
        }
        let text = self.sampled_text(&ids, &stop_ids, params.skip_special_tokens);
        Ok(json!({"text": text, "output_ids": ids, "meta_info": meta}))
    }
}

/// What each of `n` prompts is called. SGLang refuses a name that is there twice.
fn rids(asked: Option<&OneOrMany<String>>, n: usize) -> Result<Vec<String>, Refusal> {
    match asked {
        None => Ok(vec!["backsight".to_owned(); n]),
        Some(OneOrMany::One(rid)) if n == 1 => Ok(vec![rid.clone()]),
        Some(OneOrMany::One(rid)) => Ok((0..n).map(|idx| format!("{rid}_{idx}")).collect()),
        Some(OneOrMany::Many(all)) if all.len() != n => {
            Err(Refusal::bad("rid has another length than input_ids"))
        }
        Some(OneOrMany::Many(all)) if all.iter().collect::<BTreeSet<_>>().len() < n => {
            Err(Refusal::bad("Duplicate request IDs detected"))
        }
        Some(OneOrMany::Many(all)) => Ok(all.clone()),
    }
}

/// The lists over the prompt: behind a null for the first token, one entry per scored one.
fn input_logprobs(one: &One, scored: Option<&(usize, Scored)>) -> (Value, Value) {
    let Some((start, scored)) = scored else { return (json!([]), json!([])) };
    let scores: Vec<&TokenScore> = scored.spans.iter().flat_map(|span| span.scores()).collect();
    let given = &one.prompt[start + 1..];
    let (mut own, mut tops) = (vec![triple(None, one.prompt[*start])], vec![Value::Null]);
    for (score, &id) in scores.iter().zip(given) {
        own.push(triple(score.logprob.as_ref().ok().copied(), id));
        tops.push(best(&score.top, id, one.top_k));
    }
    (Value::Array(own), Value::Array(tops))
}

fn triple(logprob: Option<Logprob>, id: TokenId) -> Value {
    json!([logprob.map(Logprob::get), id, null])
}

/// The K best alone, without the given token when it is not among them.
fn best(top: &TopK, given: TokenId, top_k: usize) -> Value {
    best_of(top, given, top_k).map(|&(id, logprob)| triple(Some(logprob), id)).collect()
}

fn sampling(params: &SamplingParams) -> Result<Sampling, Refusal> {
    let constraint = match (&params.json_schema, &params.regex) {
        (Some(_), Some(_)) => return Err(Refusal::bad("json_schema and regex cannot be followed together")),
        (Some(schema), None) => {
            Some(Constraint::JsonSchema(serde_json::from_str(schema).map_err(Refusal::bad)?))
        }
        (None, Some(regex)) => Some(Constraint::Regex(regex.clone())),
        (None, None) => None,
    };
    Ok(Sampling {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: usize::try_from(params.top_k).ok().filter(|&top_k| top_k > 0),
        seed: params.sampling_seed.map(i64::cast_unsigned),
        max_tokens: params.max_new_tokens,
        constraint,
    })
}
