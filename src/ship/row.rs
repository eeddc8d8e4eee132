//! One row of a dataset, and how it is written as a line of JSON.

use serde_json::{Map, Number, Value, json};

use backsight_core::python::{JsonStyle, json_dumps};
use backsight_core::tokens::TokenId;

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The conversation.
    pub messages: Vec<Value>,
    /// Each step's weight, to six decimals; none for a step without credit.
    pub step_weights: Vec<Option<f64>>,
    /// Each step's message.
    pub step_messages: Vec<usize>,
    /// The episode's id.
    pub episode_id: Value,
    /// Its reward.
    pub reward: Number,
    /// Its reward against the other episodes, to six decimals.
    pub reward_advantage: f64,
    /// Its tokens, where they are known.
    pub tokens: Option<TokenRow>,
}

/// The conversation's tokens and where the steps are in them.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRow {
    /// The ids of each sequence.
    pub ids: Vec<Vec<TokenId>>,
    /// For each step its sequence, start and end; nothing where its tokens are not known.
    pub spans: Vec<Option<[usize; 3]>>,
}

impl TokenRow {
    /// A weight for each id: its step's, zero for everything that is no action.
    pub fn weights(&self, step_weights: &[Option<f64>]) -> Vec<Vec<f64>> {
        let mut weights: Vec<Vec<f64>> = self.ids.iter().map(|ids| vec![0.0; ids.len()]).collect();
        for (span, weight) in self.spans.iter().zip(step_weights) {
            let (Some([sequence, start, end]), Some(weight)) = (*span, weight) else { continue };
            let own = weights.get_mut(sequence).and_then(|all| all.get_mut(start..end));
            own.into_iter().for_each(|own| own.fill(*weight));
        }
        weights
    }
}

impl Row {
    /// Each step's weight as trainers multiply with it: nothing where there is no credit.
    pub fn weights(&self) -> Vec<f64> {
        self.step_weights.iter().map(|weight| weight.unwrap_or(0.0)).collect()
    }

    /// The row as one line of JSON, as Python writes it.
    pub fn to_line(&self) -> String {
        json_dumps(&Value::Object(self.to_json()), &JsonStyle::transformers())
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut json = Map::new();
        let mut put = |key: &str, value: Value| json.insert(key.to_owned(), value);
        put("messages", self.messages.clone().into());
        put("step_advantages", self.weights().into());
        put("step_message_indices", self.step_messages.clone().into());
        put("_episode_id", self.episode_id.clone());
        put("_reward", self.reward.clone().into());
        put("_grpo_advantage", self.reward_advantage.into());
        put("_num_steps", self.step_weights.len().into());
        if let Some(tokens) = &self.tokens {
            put("token_ids", json!(tokens.ids));
            put("token_weights", json!(tokens.weights(&self.step_weights)));
            put("step_spans", json!(tokens.spans));
        }
        json
    }
}
