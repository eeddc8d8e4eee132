//! Sampling continuations, several sequences together.
//!
//! Owns [`Sequence`] (one continuation under way) and the steps that lengthen it. All sequences of a step
//! share one pass, so each weight is read once for all of them; a sequence's tokens do not depend on its
//! company. Reported logprobs are those of the model itself, before temperature, top-k, top-p and
//! constraint. Deliberately absent: text, and waiting for requests.

use super::constrain::{Follower, Grammars, TokenBytes};
use super::engine::{Engine, garbled};
use super::forward::Reading;
use super::head::{Ask, answer_from_logits};
use super::kv::Cache;
use super::sample::{Dice, draw};
use backsight_core::model::{
    Error, Finish, GenerateRequest, Generated, SampledToken, Sampling, Usage, check_prompt, check_top_k,
};
use backsight_core::tokens::TokenId;

/// A continuation under way.
pub struct Sequence {
    /// The prompt and what was sampled.
    tokens: Vec<TokenId>,
    n_prompt: usize,
    reused: usize,
    /// Remembers all tokens but the last; empty until the prompt is read.
    cache: Cache,
    sampling: Sampling,
    stop_ids: Vec<TokenId>,
    top_k: usize,
    dice: Dice,
    follower: Option<Follower>,
    sampled: Vec<SampledToken>,
    outcome: Option<Result<Finish, Error>>,
}

impl Sequence {
    /// Whether nothing more will come.
    pub fn is_finished(&self) -> bool {
        self.outcome.is_some()
    }

    /// What was sampled. A sequence that is taken away early ends as if its length were reached.
    pub fn into_generated(self) -> Result<Generated, Error> {
        let usage = Usage {
            prompt_tokens: self.n_prompt as u64,
            cached_tokens: Some(self.reused as u64),
            completion_tokens: self.sampled.len() as u64,
        };
        let finish = self.outcome.unwrap_or(Ok(Finish::Length))?;
        Ok(Generated { tokens: self.sampled, finish, versions: Vec::new(), usage })
    }

    /// Draws the next token from its logits.
    fn advance(&mut self, engine: &Engine, logits: &[f32]) -> Result<(), Error> {
        let token = self.choose(logits)?;
        let score = answer_from_logits(engine.isa, logits, Ask { token, top_k: self.top_k });
        self.tokens.push(token);
        self.sampled.push(SampledToken { id: token, logprob: score.logprob.ok(), top: score.top });
        let ended =
            self.stop_ids.contains(&token) || self.follower.as_ref().is_some_and(|it| it.end() == token);
        let complete = self.follower.as_ref().is_some_and(Follower::is_done);
        if ended || complete {
            self.outcome = Some(Ok(Finish::Stop));
        } else if self.sampled.len() >= self.sampling.max_tokens || self.tokens.len() >= engine.config.context
        {
            self.outcome = Some(Ok(Finish::Length));
        }
        Ok(())
    }

    fn choose(&mut self, logits: &[f32]) -> Result<TokenId, Error> {
        let Some(follower) = &mut self.follower else {
            return draw(logits, &self.sampling, &mut self.dice).ok_or_else(no_token);
        };
        let mut masked = logits.to_vec();
        follower.mask(&mut masked)?;
        let token = draw(&masked, &self.sampling, &mut self.dice).ok_or_else(no_token)?;
        follower.take(token)?;
        Ok(token)
    }
}

fn no_token() -> Error {
    garbled("no token is possible")
}

impl Engine {
    /// Tells the engine what bytes its tokens stand for, which constrained decoding needs.
    pub fn set_vocabulary(&mut self, vocabulary: &TokenBytes) -> Result<(), Error> {
        self.grammars = Some(Grammars::new(vocabulary, self.config.vocab)?);
        Ok(())
    }

    /// Samples a continuation of each request, all together.
    pub fn generate(&mut self, requests: &[GenerateRequest]) -> Vec<Result<Generated, Error>> {
        let mut sequences: Vec<Result<Sequence, Error>> = requests.iter().map(|it| self.admit(it)).collect();
        loop {
            let open = sequences.iter_mut().filter_map(|it| it.as_mut().ok()).filter(|it| !it.is_finished());
            let mut open: Vec<&mut Sequence> = open.collect();
            if open.is_empty() {
                break;
            }
            self.step(&mut open);
        }
        sequences.into_iter().map(|it| it.and_then(Sequence::into_generated)).collect()
    }

    /// Checks a request and makes it a sequence; nothing is computed yet.
    pub fn admit(&mut self, request: &GenerateRequest) -> Result<Sequence, Error> {
        check_sampling(&request.sampling)?;
        check_prompt(&request.prompt)?;
        self.check_tokens(&request.prompt, self.config.context - 1)?;
        check_top_k(request.top_k, Some(self.config.vocab))?;
        let constraint = request.sampling.constraint.as_ref();
        let follower = constraint.map(|constraint| match &self.grammars {
            Some(grammars) => grammars.follow(constraint),
            None => Err(Error::invalid(
                "a constraint needs the model's tokenizer",
                "name the tokenizer by --tokenizer",
            )),
        });
        Ok(Sequence {
            tokens: request.prompt.clone(),
            n_prompt: request.prompt.len(),
            reused: 0,
            cache: Cache::new(self.config.kv_shape()),
            sampling: request.sampling.clone(),
            stop_ids: request.stop_ids.clone(),
            top_k: request.top_k,
            dice: Dice::new(request.sampling.seed, &request.place),
            follower: follower.transpose()?,
            sampled: Vec::new(),
            outcome: (request.sampling.max_tokens == 0).then_some(Ok(Finish::Length)),
        })
    }

    /// Lengthens each sequence by one token. Prompts that were not read yet are read first, one after another, so that equal beginnings are read once.
    pub fn step(&mut self, sequences: &mut [&mut Sequence]) {
        for sequence in sequences.iter_mut().filter(|it| it.sampled.is_empty()) {
            self.read_prompt(sequence);
        }
        let logits = self.next_logits(sequences);
        for (sequence, logits) in sequences.iter_mut().zip(logits) {
            if let Err(error) = sequence.advance(self, &logits) {
                sequence.outcome = Some(Err(error));
            }
            if sequence.is_finished() {
                // What follows in a conversation begins with this, so it is worth remembering.
                self.tree.insert(&sequence.tokens, &sequence.cache);
            }
        }
    }

    /// Reads a prompt but for its last token, which is read with the other sequences'.
    fn read_prompt(&mut self, sequence: &mut Sequence) {
        let tokens = &sequence.tokens[..sequence.n_prompt - 1];
        let mut cache = self.remembered(tokens);
        sequence.reused = cache.len();
        self.read(&mut [Reading { tokens, cache: &mut cache, wanted_from: tokens.len() }]);
        self.tree.insert(tokens, &cache);
        sequence.cache = cache;
    }

    /// Reads the last token of each sequence; gives back the logits of the one to follow.
    fn next_logits<'a>(&mut self, sequences: &'a mut [&mut Sequence]) -> Vec<Vec<f32>> {
        let reading = |sequence: &'a mut &mut Sequence| {
            let Sequence { tokens, cache, .. } = &mut **sequence;
            Reading { tokens, cache, wanted_from: tokens.len() - 1 }
        };
        let hidden = self.read(&mut sequences.iter_mut().map(reading).collect::<Vec<_>>()).concat();
        self.with_machine(|machine| machine.logits(&hidden))
    }
}

fn check_sampling(sampling: &Sampling) -> Result<(), Error> {
    if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
        let what = format!("temperature {} is no temperature", sampling.temperature);
        return Err(Error::invalid(what, "use 0 or more"));
    }
    if !(0.0..=1.0).contains(&sampling.top_p) {
        let what = format!("top_p {} is no probability", sampling.top_p);
        return Err(Error::invalid(what, "use a number from 0 to 1"));
    }
    if sampling.top_k == Some(0) {
        return Err(Error::invalid("top_k 0 keeps no token", "use 1 or more, or leave it out"));
    }
    Ok(())
}
