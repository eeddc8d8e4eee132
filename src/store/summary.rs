//! `summary.json`: what a run made, what it lost and why, what it cost.
//!
//! Owns the shape that all commands with a run directory share; `docs/summary.schema.json` is its JSON
//! Schema. What only one command tells stands behind the shared keys, under names of its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::model::budget::{ModelRole, Spent};

/// What `format` says.
pub const FORMAT: &str = "backsight.summary";
/// The version this writes.
pub const VERSION: u64 = 1;

/// Tokens of all requests of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// What would have been sent with one request for each thing that was asked, each with its whole context.
    pub naive: u64,
    /// What was sent.
    pub sent: u64,
    /// Of those, found in a server's cache, as far as servers told.
    pub cached: u64,
    /// What was sampled.
    pub sampled: u64,
}

impl Tokens {
    /// What servers had to compute of what was sent.
    pub fn computed(&self) -> u64 {
        self.sent.saturating_sub(self.cached)
    }
}

/// What became of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The command.
    pub command: String,
    /// How many episodes (or what else the command makes) there are.
    pub made: u64,
    /// How many were lost, by reason.
    pub lost: BTreeMap<String, u64>,
    /// How many were not come to, because the run was stopped.
    pub left: u64,
    /// What stopped it.
    pub stopped_by: Option<String>,
    /// How long the last process worked on it.
    pub seconds: f64,
    /// What each role has paid in this run directory, however many processes it took.
    pub paid: Vec<(ModelRole, Spent)>,
    /// What it would have cost without a plan, where there is one; what was sent otherwise.
    pub naive_tokens: Option<u64>,
    /// What only this command tells.
    pub more: Map<String, Value>,
}

impl Summary {
    /// How many were lost in all.
    pub fn n_lost(&self) -> u64 {
        self.lost.values().sum()
    }

    /// Tokens of all roles together.
    pub fn tokens(&self) -> Tokens {
        let add = |mut sum: Tokens, (_, spent): &(ModelRole, Spent)| {
            sum.sent += spent.prompt_tokens;
            sum.cached += spent.cached_tokens;
            sum.sampled += spent.completion_tokens;
            sum
        };
        let sum = self.paid.iter().fold(Tokens::default(), add);
        Tokens { naive: self.naive_tokens.unwrap_or(sum.sent), ..sum }
    }

    /// As the file has it.
    pub fn to_json(&self) -> Value {
        let tokens = self.tokens();
        let requests: u64 = self.paid.iter().map(|(_, spent)| spent.requests).sum();
        let paid: Map<String, Value> =
            self.paid.iter().map(|(role, spent)| (role.name().to_owned(), paid_json(spent))).collect();
        let mut json = json!({
            "format": FORMAT, "version": VERSION, "command": self.command,
            "made": self.made, "lost": self.lost, "left": self.left, "stopped_by": self.stopped_by,
            "tokens": {"naive": tokens.naive, "sent": tokens.sent, "cached": tokens.cached,
                       "computed": tokens.computed(), "sampled": tokens.sampled},
            "requests": requests, "seconds": self.seconds, "paid": paid,
        });
        if let Value::Object(keys) = &mut json {
            keys.extend(self.more.clone());
        }
        json
    }
}

fn paid_json(spent: &Spent) -> Value {
    let Spent { requests, prompt_tokens, cached_tokens, completion_tokens } = *spent;
    json!({"requests": requests, "sent": prompt_tokens, "cached": cached_tokens, "sampled": completion_tokens})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_told_apart_and_together() {
        let spent = |requests, prompt_tokens, cached_tokens, completion_tokens| Spent {
            requests,
            prompt_tokens,
            cached_tokens,
            completion_tokens,
        };
        let summary = Summary {
            command: "run".to_owned(),
            made: 3,
            lost: [("timeout".to_owned(), 2), ("server gone".to_owned(), 1)].into(),
            seconds: 1.5,
            paid: vec![(ModelRole::Student, spent(2, 100, 60, 9)), (ModelRole::Judge, spent(3, 50, 0, 1))],
            more: [("mean_reward".to_owned(), json!(0.5))].into_iter().collect(),
            ..Summary::default()
        };
        assert_eq!(summary.n_lost(), 3);
        let json = summary.to_json();
        let tokens = json!({"naive": 150, "sent": 150, "cached": 60, "computed": 90, "sampled": 10});
        assert_eq!(
            (&json["tokens"], &json["requests"], &json["mean_reward"]),
            (&tokens, &json!(5), &json!(0.5))
        );
        assert_eq!(json["paid"]["judge"], json!({"requests": 3, "sent": 50, "cached": 0, "sampled": 1}));
        assert_eq!(Summary { naive_tokens: Some(400), ..summary }.tokens().naive, 400);
    }
}
