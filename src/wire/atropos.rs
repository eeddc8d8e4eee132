//! Groups of scored sequences as Atropos 0.4.0 has them: `ScoredDataGroup`, one JSON object a line.
//!
//! Owns its writing, and its reading as episodes with exact tokens. The surprises: `scores` are rewards;
//! masks carry the token id where a token is trained and -100 elsewhere; `inference_logprobs` are 1.0
//! at masked positions; list fields may be null, left out or empty; `messages` are left out unless
//! asked for, and without them there is nothing a lens could be put into.

use serde::Serialize;
use serde_json::{Map, Value};

use super::fault::{Fault, required, text, wrong};
use super::openai_episodes::task_of;
use backsight_chat::messages::list_from_json;
use backsight_core::episode::{ActionTokens, Episode, Outcome, TokenSource, steps_of};
use backsight_core::subtasks::submitted_plan;
use backsight_core::tokens::{Logprob, TokenId, TokenSpan};

/// The mask of a token that is not trained.
pub const MASKED: i64 = -100;

/// The logprob at a masked position, as Atropos defines it.
const NO_LOGPROB: f32 = 1.0;

/// A group as it is written, row `p` of every list about token `p`. Keys that have nothing to say are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScoredDataGroup {
    /// The ids, by sequence.
    pub tokens: Vec<Vec<TokenId>>,
    /// The id where a token is trained, [`MASKED`] elsewhere.
    pub masks: Vec<Vec<i64>>,
    /// The rewards.
    pub scores: Vec<f64>,
    /// Credit by token.
    pub advantages: Option<Vec<Vec<f64>>>,
    /// Logprobs of a reference model; none of ours.
    pub ref_logprobs: Option<Vec<Vec<f64>>>,
    /// The student's logprobs, 1.0 at masked positions.
    pub inference_logprobs: Vec<Vec<f32>>,
    /// The conversations.
    pub messages: Option<Vec<Value>>,
    /// How the tokens were drawn.
    pub generation_params: Option<Value>,
    /// What holds for one sequence.
    pub overrides: Option<Vec<Value>>,
    /// What holds for the group.
    pub group_overrides: Option<Value>,
    /// Nothing: there are no images.
    pub images: Option<Value>,
    /// The teacher's candidates, most likely first; an empty row says nothing of its token.
    pub distill_token_ids: Option<Vec<Vec<Vec<TokenId>>>>,
    /// Their logprobs.
    pub distill_logprobs: Option<Vec<Vec<Vec<f32>>>>,
    /// What was asked, by which our own loader knows the group again; Atropos reads past it.
    pub task: Option<String>,
}

/// Masks and logprobs of a sequence whose trained tokens are those with a logprob.
pub fn masked(tokens: &[TokenId], trained: &[Option<Logprob>]) -> (Vec<i64>, Vec<f32>) {
    let of = |(id, logprob): (&TokenId, &Option<Logprob>)| match logprob {
        Some(logprob) => (i64::from(*id), logprob.get() as f32),
        None => (MASKED, NO_LOGPROB),
    };
    tokens.iter().zip(trained).map(of).unzip()
}

/// Whether a line looks like a group.
pub fn recognises(json: &Map<String, Value>) -> bool {
    json.contains_key("tokens") && json.contains_key("masks") && json.contains_key("scores")
}

/// The episodes of the group on one line, each on its own: a bad sequence fails alone.
pub fn read(json: &Map<String, Value>, group_id: &str) -> Result<Vec<Result<Episode, Fault>>, Fault> {
    let task = text(json, "task")?.or(text(json, "task_id")?);
    let [tokens, masks, scores] =
        ["tokens", "masks", "scores"].map(|key| required(json, key, "a list", Value::as_array));
    let (tokens, masks, scores) = (tokens?, masks?, scores?);
    let n = tokens.len();
    if masks.len() != n || scores.len() != n {
        let (masks, scores) = (masks.len(), scores.len());
        return Err(Fault::new(format_args!("there are {n} token lists, {masks} masks and {scores} scores")));
    }
    let episode = |idx| episode(json, idx, format!("{group_id}/{idx}"), task.clone());
    Ok((0..n).map(episode).collect())
}

/// The items of one sequence's list under `key`, each of which must be `expected`.
fn row_of<T>(
    key: &str,
    idx: usize,
    row: &Value,
    expected: &str,
    item: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<T>, Fault> {
    let Value::Array(items) = row else { return Err(wrong(&format!("{key}[{idx}]"), "a list", row)) };
    let read = |(at, it): (usize, &Value)| {
        item(it).ok_or_else(|| wrong(&format!("{key}[{idx}][{at}]"), expected, it))
    };
    items.iter().enumerate().map(read).collect()
}

/// One sequence of a group, as far as an episode is made of it.
fn episode(
    json: &Map<String, Value>,
    idx: usize,
    id: String,
    task: Option<String>,
) -> Result<Episode, Fault> {
    let given = |key: &str| json.get(key).and_then(|all| all.get(idx)).filter(|it| !it.is_null());
    // At masked positions the logprob is 1.0, which is none.
    let logprob = |it: &Value| Some(it.as_f64().and_then(|it| Logprob::new(it).ok()));
    let logprobs = given("inference_logprobs")
        .map(|row| row_of("inference_logprobs", idx, row, "a number or null", logprob))
        .transpose()?
        .unwrap_or_default();
    let token = |it: &Value| it.as_u64().and_then(|id| TokenId::try_from(id).ok());
    let tokens = row_of("tokens", idx, &json["tokens"][idx], "a token id", token)?;
    let masks = row_of("masks", idx, &json["masks"][idx], "a token id or -100", Value::as_i64)?;
    let score = &json["scores"][idx];
    let reward = score.as_f64().ok_or_else(|| wrong(&format!("scores[{idx}]"), "a number", score))?;
    let none = "there are no messages, so no outcome can be shown; export the groups with messages";
    let messages = list_from_json(given("messages").ok_or_else(|| Fault::new(none))?).map_err(Fault::new)?;
    let mut episode = Episode::new(id, task_of(task, &messages), messages);
    episode.outcome = Ok(Outcome { reward, components: Vec::new() });
    episode.progress.plan = submitted_plan(&episode.messages, &[]);
    let mut steps = steps_of(&episode.messages);
    if let Some(spans) = action_spans(tokens.len(), &masks, steps.len())? {
        episode.sequences = vec![tokens];
        episode.token_source = TokenSource::Exact;
        for (step, span) in steps.iter_mut().rev().zip(spans.into_iter().rev()) {
            let logprobs = logprobs.get(span.range()).unwrap_or(&[]).to_vec();
            step.tokens = Some(ActionTokens { sequence: 0, span, logprobs, top: Vec::new() });
        }
    }
    episode.set_steps(steps).map_err(Fault::new)?;
    Ok(episode)
}

/// The trained stretches, when it is clear which steps they are: one for each, or one for the last.
fn action_spans(n_tokens: usize, masks: &[i64], n_steps: usize) -> Result<Option<Vec<TokenSpan>>, Fault> {
    if n_tokens != masks.len() {
        return Err(Fault::new(format_args!("there are {n_tokens} tokens and {} masks", masks.len())));
    }
    let mut spans: Vec<TokenSpan> = Vec::new();
    for at in (0..masks.len()).filter(|at| masks[*at] != MASKED) {
        match spans.last_mut() {
            Some(last) if last.end() == at => *last = TokenSpan::at(last.start(), last.len() + 1),
            _ => spans.push(TokenSpan::at(at, 1)),
        }
    }
    let clear = spans.len() == n_steps || (spans.len() == 1 && n_steps > 0);
    Ok(clear.then_some(spans))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use serde_json::json;

    fn group() -> Value {
        let talk = json!([
            {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
            {"role": "tool", "content": "t"}, {"role": "assistant", "content": "b"},
        ]);
        json!({
            "tokens": [[5, 6, 7, 8, 9], [5, 6, 7, 8]],
            "masks": [[-100, 6, -100, 8, 9], [-100, -100, 7, 8]],
            "scores": [1.0, 0.0],
            "inference_logprobs": [[1.0, -0.5, 1.0, -0.25, 1.0], [1.0, 1.0, -1.0, -2.0]],
            "messages": [talk, talk], "advantages": null, "images": [],
        })
    }

    fn read_value(value: &Value) -> Vec<Result<Episode, Fault>> {
        read(value.as_object().unwrap(), "g:1").unwrap()
    }

    #[test]
    fn each_sequence_is_an_episode_with_exact_tokens() {
        let found = read_value(&group());
        let spans = |episode: &Episode| -> Vec<Option<String>> {
            episode.steps().iter().map(|step| step.tokens.as_ref().map(|it| it.span.to_string())).collect()
        };
        let first = found[0].as_ref().unwrap();
        assert_eq!(spans(first), [Some("[1, 2)".to_owned()), Some("[3, 5)".to_owned())]);
        let last = first.steps()[1].tokens.as_ref().unwrap();
        assert_eq!(last.logprobs, [Logprob::new(-0.25).ok(), None], "1.0 is no logprob");
        assert_eq!((first.id.as_str(), first.token_source), ("g:1/0", TokenSource::Exact));
        assert_eq!(spans(found[1].as_ref().unwrap()), [None, Some("[2, 4)".to_owned())]);
    }

    #[test]
    fn a_bad_sequence_fails_alone() {
        let mut short = group();
        short["masks"][0] = json!([-100]);
        let found = read_value(&short);
        assert_eq!(found[0].as_ref().unwrap_err().to_string(), "there are 5 tokens and 1 masks");
        assert!(found[1].is_ok());
        let check = |at: &str, value: Value, expected: &str| {
            let mut group = group();
            *group.pointer_mut(at).unwrap() = value;
            let found = read_value(&group);
            assert_eq!(found[1].as_ref().unwrap_err().to_string(), expected);
            assert!(found[0].is_ok(), "{at}");
        };
        check("/scores/1", Value::Null, "`scores[1]` must be a number, not null");
        check("/tokens/1", Value::Null, "`tokens[1]` must be a list, not null");
        check("/tokens/1/2", json!(-1), "`tokens[1][2]` must be a token id, not a number");
        check("/masks/1/3", Value::Null, "`masks[1][3]` must be a token id or -100, not null");
        check("/inference_logprobs/1", json!(1), "`inference_logprobs[1]` must be a list, not a number");
        check(
            "/messages/1",
            Value::Null,
            "there are no messages, so no outcome can be shown; export the groups with messages",
        );
        let whole = read(json!({"tokens": [], "masks": null, "scores": []}).as_object().unwrap(), "g:1");
        assert_eq!(whole.unwrap_err().to_string(), "`masks` must be a list, not null");
        let mut silent = group();
        silent["messages"] = Value::Null;
        assert!(
            read_value(&silent)[1].as_ref().unwrap_err().to_string().starts_with("there are no messages")
        );
    }
}
