//! What makes two calls the same call, and the seed that belongs to a place.
//!
//! Owns [`Key`]. A score is determined by its content: the model, the tokens up to the last one that
//! is scored, the spans and K; what it found at a position is determined by the model and the tokens up to there. A
//! sample is determined by its content and its place, because each place is a separate draw although prompts may be
//! equal. Pure.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{ChatRequest, Constraint, GenerateRequest, Place, Sampling};
use backsight_chat::messages::{ArgumentForm, to_json_with};
use backsight_core::score::ScoreJob;
use backsight_core::tokens::TokenId;

/// Stands for one call; equal exactly for calls that must not be paid twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

/// Which model, in the numbering of one ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub i64);

impl Key {
    /// The key of a score.
    pub fn of_score(model: ModelId, job: &ScoreJob) -> Self {
        let mut text = Text::new("score", model);
        // What comes after the last scored token cannot change a score.
        text.ids(&job.tokens()[..job.end_needed()]);
        text.number(job.spans().len());
        for span in job.spans() {
            text.number(span.start());
            text.number(span.end());
        }
        text.candidates(job);
        text.finish()
    }

    /// The keys of what a job finds behind the first so many tokens, for each of `ends`, which ascend. Those of the
    /// likeliest candidates are the same for any number of them.
    pub fn of_prefixes(model: ModelId, job: &ScoreJob, ends: impl IntoIterator<Item = usize>) -> Vec<Self> {
        let chooses = !job.chosen().is_empty();
        let mut text = Text::new(if chooses { "prefix of chosen" } else { "prefix" }, model);
        if chooses {
            text.candidates(job);
        }
        let mut at = 0;
        let of = |end| {
            text.bare_ids(&job.tokens()[at..end]);
            at = end;
            Self(text.0.clone().finalize().into())
        };
        ends.into_iter().map(of).collect()
    }

    /// The key of a draw by token ids in a stage.
    pub fn of_generate(model: ModelId, stage: &str, request: &GenerateRequest) -> Self {
        let mut text = Text::new("generate", model);
        text.place(stage, &request.place);
        text.sampling(&request.sampling);
        text.ids(&request.prompt);
        text.ids(&request.stop_ids);
        text.number(request.top_k);
        text.finish()
    }

    /// The key of an answer in a conversation in a stage.
    pub fn of_chat(model: ModelId, stage: &str, request: &ChatRequest) -> Self {
        let mut text = Text::new("chat", model);
        text.place(stage, &request.place);
        text.sampling(&request.sampling);
        text.json(&request.messages.iter().map(|it| to_json_with(it, ArgumentForm::Object)).collect());
        text.json(&json!(request.tools));
        text.finish()
    }

    /// As the ledger's file stores it.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The seed of the draw at `place` in a run with `--seed run_seed`.
///
/// It is the first 53 bits of a SHA-256 over both, so it survives every JSON implementation, differs
/// between places, and is the same on every machine and in every version.
pub fn seed_for(run_seed: u64, place: &Place) -> u64 {
    let mut text = Text(Sha256::new());
    text.bytes(b"backsight seed 1");
    text.0.update(run_seed.to_le_bytes());
    text.place("", place);
    let Key([a, b, c, d, e, f, g, h, ..]) = text.finish();
    u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 11
}

/// What is hashed. Every part is preceded by its length or has a fixed one, so no two calls run together.
struct Text(Sha256);

impl Text {
    fn new(kind: &str, model: ModelId) -> Self {
        let mut text = Self(Sha256::new());
        text.bytes(kind.as_bytes());
        text.0.update(model.0.to_le_bytes());
        text
    }

    fn finish(self) -> Key {
        Key(self.0.finalize().into())
    }

    fn number(&mut self, number: usize) {
        self.0.update((number as u64).to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.update(bytes);
    }

    fn ids(&mut self, ids: &[TokenId]) {
        self.number(ids.len());
        self.bare_ids(ids);
    }

    fn bare_ids(&mut self, ids: &[TokenId]) {
        // Hashing in pieces of a page keeps the copy small and the hash function busy.
        for piece in ids.chunks(1024) {
            let bytes: Vec<u8> = piece.iter().flat_map(|id| id.to_le_bytes()).collect();
            self.0.update(bytes);
        }
    }

    fn candidates(&mut self, job: &ScoreJob) {
        self.number(job.top_k());
        job.chosen().iter().for_each(|it| self.ids(it));
    }

    fn json(&mut self, value: &Value) {
        self.bytes(value.to_string().as_bytes());
    }

    fn place(&mut self, stage: &str, place: &Place) {
        self.bytes(stage.as_bytes());
        self.bytes(place.task.as_bytes());
        [place.episode, place.step, place.vote].into_iter().for_each(|number| self.number(number));
    }

    fn sampling(&mut self, sampling: &Sampling) {
        let Sampling { temperature, top_p, top_k, seed, max_tokens, constraint } = sampling;
        let shape = constraint.as_ref().map(|constraint| match constraint {
            Constraint::JsonSchema(schema) => json!({"schema": schema}),
            Constraint::Regex(regex) => json!({"regex": regex}),
        });
        self.json(&json!([temperature, top_p, top_k, seed, max_tokens, shape]));
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::episode::{Content, Message, Role};
    use backsight_core::tokens::TokenSpan;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn place(task: &str, episode: usize, step: usize, vote: usize) -> Place {
        Place { task: task.to_owned(), episode, step, vote }
    }

    fn sampling() -> Sampling {
        Sampling { temperature: 1.0, top_p: 1.0, top_k: None, seed: None, max_tokens: 9, constraint: None }
    }

    fn generate() -> GenerateRequest {
        let place = place("t", 0, 0, 0);
        GenerateRequest { prompt: vec![1, 2], sampling: sampling(), stop_ids: vec![3], top_k: 0, place }
    }

    fn chat() -> ChatRequest {
        let messages = vec![Message::text(Role::User, "hello")];
        ChatRequest { messages, tools: vec![], sampling: sampling(), place: place("t", 0, 0, 0) }
    }

    fn job(tokens: &[TokenId], spans: &[(usize, usize)], top_k: usize) -> ScoreJob {
        let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
        ScoreJob::new(tokens.into(), spans, top_k).unwrap()
    }

    /// All of these calls are different calls.
    fn check_distinct(keys: impl IntoIterator<Item = Key>) {
        let keys: Vec<Key> = keys.into_iter().collect();
        assert_eq!(
            keys.iter().collect::<HashSet<_>>().len(),
            keys.len(),
            "two of {} keys are equal",
            keys.len()
        );
    }

    #[test]
    fn scores_differ_by_model_tokens_spans_and_k() {
        let tokens = [1, 2, 3, 4];
        let jobs = [
            job(&tokens, &[(1, 3)], 0),
            job(&tokens, &[(1, 3)], 5),
            job(&tokens, &[(1, 4)], 0),
            job(&tokens, &[(1, 2), (2, 3)], 0),
            job(&[1, 9, 3, 4], &[(1, 3)], 0),
            job(&[1, 2, 3, 4, 5], &[(1, 5)], 0),
        ];
        let models = [ModelId(1), ModelId(2)];
        check_distinct(
            models.iter().flat_map(|&model| jobs.iter().map(move |job| Key::of_score(model, job))),
        );
    }

    #[test]
    fn tokens_behind_the_last_span_do_not_matter() {
        let key = |tokens: &[TokenId]| Key::of_score(ModelId(1), &job(tokens, &[(1, 3)], 2));
        assert_eq!(key(&[1, 2, 3]), key(&[1, 2, 3, 4, 5]));
    }

    #[test]
    fn prefixes_differ_by_model_and_tokens() {
        let asked = |tokens: &[TokenId]| job(tokens, &[(1, 3)], 2);
        let of = |model, tokens: &[TokenId]| Key::of_prefixes(ModelId(model), &asked(tokens), [0, 2, 3]);
        let choosing = |ids: &[TokenId]| {
            let lists = vec![ids.into(), ids.into()];
            Key::of_prefixes(ModelId(1), &asked(&[1, 2, 3]).choosing(lists).unwrap(), [0, 2, 3])
        };
        let ends = of(1, &[1, 2, 3, 4]);
        let others =
            [of(2, &[1, 2, 3, 4]), of(1, &[2, 2, 3])[1..].to_vec(), choosing(&[5]), choosing(&[5, 6])];
        check_distinct(ends.iter().chain(others.iter().flatten()).copied());

        assert_eq!(ends, of(1, &[1, 2, 3, 9]), "what comes behind them does not matter");
    }

    #[test]
    fn samples_differ_by_content_and_by_place() {
        let changes: [fn(&mut GenerateRequest); 12] = [
            |_| {},
            |it| it.prompt.push(7),
            |it| it.stop_ids.clear(),
            |it| it.top_k = 1,
            |it| it.sampling.temperature = 0.5,
            |it| it.sampling.top_k = Some(0),
            |it| it.sampling.seed = Some(0),
            |it| it.sampling.constraint = Some(Constraint::Regex(String::new())),
            |it| it.place.task = "u".into(),
            |it| it.place.episode = 1,
            |it| it.place.step = 1,
            |it| it.place.vote = 1,
        ];
        let requests = changes.map(|change| {
            let mut request = generate();
            change(&mut request);
            request
        });
        let runs = ["a", "b"];
        let keys =
            runs.iter().flat_map(|run| requests.iter().map(|it| Key::of_generate(ModelId(1), run, it)));
        check_distinct(keys);
    }

    #[test]
    fn conversations_differ_in_every_part() {
        let changes: [fn(&mut ChatRequest); 8] = [
            |_| {},
            |it| it.messages[0].content = Some(Content::Parts(vec!["hello".into()])),
            |it| it.messages[0].content = Some(Content::Parts(vec!["he".into(), "llo".into()])),
            |it| it.messages[0].content = None,
            |it| it.messages[0].reasoning = Some("hello".into()),
            |it| it.messages[0].name = Some("hello".into()),
            |it| it.tools.push(Value::Null),
            |it| it.place.vote = 2,
        ];
        check_distinct(changes.map(|change| {
            let mut request = chat();
            change(&mut request);
            Key::of_chat(ModelId(1), "run", &request)
        }));
    }

    #[test]
    fn seeds_are_fixed_for_ever() {
        assert_eq!(seed_for(0, &place("t", 0, 0, 0)), SEED_OF_T);
        assert_ne!(seed_for(1, &place("t", 0, 0, 0)), SEED_OF_T);
    }

    /// Computed with another implementation of SHA-256.
    const SEED_OF_T: u64 = 1_601_784_065_350_615;

    proptest! {
        #[test]
        fn each_place_has_its_own_seed(run: u64, a in 0usize..50, b in 0usize..50, c in 0usize..3) {
            let seed = seed_for(run, &place("t", a, b, c));
            prop_assert!(seed < 1 << 53);
            prop_assert_ne!(seed, seed_for(run, &place("t", a + 1, b, c)));
            prop_assert_ne!(seed, seed_for(run, &place("t", a, b + 1, c)));
            prop_assert_ne!(seed, seed_for(run, &place("t", a, b, c + 1)));
            prop_assert_ne!(seed, seed_for(run, &place("u", a, b, c)));
        }
    }
}
