//! What a stage of a run made, what it lost and why, what it cost: its section of `summary.json`.
//!
//! Owns the shape that all stages share; `docs/summary.schema.json` is its JSON Schema. What only one
//! stage tells stands behind the shared keys, under names of its own.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::versions::Checks;
use crate::model::budget::{ModelRole, Spent};

/// What `format` says.
const FORMAT: &str = "backsight.summary";
/// The version this writes.
const VERSION: u64 = 2;

/// What it would take to ask for each thing alone, with its whole context and without a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naive {
    /// Tokens that would be sent.
    pub tokens: u64,
    /// Requests.
    pub requests: u64,
}

/// What became of a stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The stage.
    pub stage: &'static str,
    /// How many of each thing there are now.
    pub made: BTreeMap<&'static str, u64>,
    /// How many of each thing were lost, by reason.
    pub lost: BTreeMap<&'static str, BTreeMap<String, u64>>,
    /// How many episodes were not come to the end of, because the run was stopped.
    pub left: u64,
    /// What stopped it.
    pub stopped_by: Option<String>,
    /// How long this process worked on it.
    pub seconds: f64,
    /// What this process has paid.
    pub spent: Spent,
    /// What this process would have paid without a plan, where there is one.
    pub naive: Option<Naive>,
    /// What each role has paid in this run directory, however many processes it took.
    pub paid: Vec<(ModelRole, Spent)>,
    /// What measuring the weights cost and showed, where they can change.
    pub weights: Option<Checks>,
    /// What should be known.
    pub notices: Vec<String>,
    /// What only this stage tells.
    pub more: Map<String, Value>,
}

impl Summary {
    /// How many of a thing were made.
    pub fn made(&self, what: &str) -> u64 {
        self.made.get(what).copied().unwrap_or(0)
    }

    /// How many of a thing were lost, for whatever reason.
    pub fn lost(&self, what: &str) -> u64 {
        self.lost.get(what).map_or(0, |reasons| reasons.values().sum())
    }

    /// A number that only this stage tells.
    pub fn number(&self, key: &str) -> u64 {
        self.more.get(key).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Counts one more thing that was lost.
    pub fn lose(&mut self, what: &'static str, why: &str) {
        *self.lost.entry(what).or_default().entry(why.to_owned()).or_default() += 1;
    }

    /// What it would have taken without a plan; what it took where there was none.
    pub fn naive(&self) -> Naive {
        self.naive.unwrap_or(Naive { tokens: self.spent.prompt_tokens, requests: self.spent.requests })
    }

    /// As the file has it.
    pub fn to_json(&self) -> Value {
        let (naive, spent) = (self.naive(), &self.spent);
        let paid: Map<String, Value> =
            self.paid.iter().map(|(role, spent)| (role.name().to_owned(), paid_json(spent))).collect();
        let mut json = json!({
            "format": FORMAT, "version": VERSION, "stage": self.stage, "backsight": env!("CARGO_PKG_VERSION"),
            "made": self.made, "lost": self.lost, "left": self.left, "stopped_by": self.stopped_by,
            "tokens": {"naive": naive.tokens, "sent": spent.prompt_tokens, "cached": spent.cached_tokens,
                       "computed": computed(spent), "sampled": spent.completion_tokens},
            "requests": spent.requests, "naive_requests": naive.requests, "seconds": self.seconds,
            "paid": paid, "weights": self.weights, "notices": self.notices,
        });
        if let Value::Object(keys) = &mut json {
            keys.extend(self.more.clone());
        }
        json
    }
}

/// What servers had to compute of what was sent.
pub fn computed(spent: &Spent) -> u64 {
    spent.prompt_tokens.saturating_sub(spent.cached_tokens)
}

fn paid_json(spent: &Spent) -> Value {
    let Spent { requests, prompt_tokens, cached_tokens, completion_tokens } = *spent;
    json!({"requests": requests, "sent": prompt_tokens, "cached": cached_tokens, "sampled": completion_tokens})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_paid_is_told_by_process_and_by_role() {
        let spent = |requests, prompt_tokens, cached_tokens, completion_tokens| Spent {
            requests,
            prompt_tokens,
            cached_tokens,
            completion_tokens,
        };
        let mut summary = Summary {
            stage: "run",
            made: [("episodes", 3)].into(),
            spent: spent(5, 150, 60, 10),
            paid: vec![(ModelRole::Student, spent(2, 100, 60, 9)), (ModelRole::Judge, spent(3, 50, 0, 1))],
            more: [("mean_reward".to_owned(), json!(0.5))].into_iter().collect(),
            ..Summary::default()
        };
        for why in ["timeout", "timeout", "server gone"] {
            summary.lose("episodes", why);
        }
        assert_eq!((summary.made("episodes"), summary.lost("episodes"), summary.lost("steps")), (3, 3, 0));
        let json = summary.to_json();
        let tokens = json!({"naive": 150, "sent": 150, "cached": 60, "computed": 90, "sampled": 10});
        assert_eq!(
            (&json["tokens"], &json["requests"], &json["mean_reward"]),
            (&tokens, &json!(5), &json!(0.5))
        );
        assert_eq!(json["lost"], json!({"episodes": {"timeout": 2, "server gone": 1}}));
        assert_eq!(json["paid"]["judge"], json!({"requests": 3, "sent": 50, "cached": 0, "sampled": 1}));
        let naive = Some(Naive { tokens: 400, requests: 9 });
        assert_eq!(Summary { naive, ..summary }.to_json()["tokens"]["naive"], 400);
    }
}
