//! Whose an answer is: when it came in, counted in measurements of the weights, and what became of that.

use crate::model::key::ModelId;
use crate::model::route::Endpoints;

/// When an answer came in, from whom, and what the weights were taken for then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// So many measurements had been begun.
    pub after: u64,
    /// Who answered.
    pub by: Endpoints,
    /// The version that the last of them found there.
    pub model: ModelId,
}

/// Which weights an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The ones that were measured before it and after it.
    Known(ModelId),
    /// One of two: it came between two measurements that differ, or that cannot vouch for it.
    Between(ModelId, ModelId),
}

/// What is known of that so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// No measurement has come after it yet.
    Provisional(Stamp),
    /// It is known.
    Settled(Origin),
}

impl Whose {
    /// The version that the answer was sent to, as far as was known.
    pub fn model(self) -> ModelId {
        match self {
            Self::Provisional(stamp) => stamp.model,
            Self::Settled(Origin::Known(model) | Origin::Between(model, _)) => model,
        }
    }
}
