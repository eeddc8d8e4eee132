//! One row of a dataset, and how it is written as a line of JSON.

use serde_json::{Number, Value, json};

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
        let mut json = json!({
            "messages": self.messages, "step_advantages": self.weights(), "step_message_indices": self.step_messages,
            "_episode_id": self.episode_id, "_reward": self.reward, "_grpo_advantage": self.reward_advantage,
            "_num_steps": self.step_weights.len(),
        });
        if let Some(tokens) = &self.tokens {
            json["token_ids"] = json!(tokens.ids);
            json["token_weights"] = json!(tokens.weights(&self.step_weights));
            json["step_spans"] = json!(tokens.spans);
        }
        json_dumps(&json, &JsonStyle::transformers())
    }
}
