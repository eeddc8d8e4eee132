//! How a solution is judged: by a script of assertions, or by what a program prints.
//!
//! Plain data. Running a check is left to the agent's verifier.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::packed::unpack;
use super::row::text_of;
use backsight_core::hash::hex;

/// How a task's solution is judged. Only this copy decides, whatever the student was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// A Python script of assertions that imports the solution.
    Script(String),
    /// The solution is a program: what it prints for given inputs.
    Stdio(Stdio),
}

/// Inputs of a program, with what it should print for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stdio {
    /// The cases, in the order they are run; never empty.
    pub cases: Cases,
    /// How long one case may take, as the dataset says it.
    pub time: Option<Duration>,
}

/// Cases as they are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cases {
    /// As they are.
    Plain(Vec<Case>),
    /// Some as they are, and behind them others that stay packed, for all of a dataset unpacked would fill a machine.
    Packed {
        /// Those before.
        first: Vec<Case>,
        /// The others, as they were published.
        rest: String,
    },
}

/// One input of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// What it reads.
    pub input: String,
    /// What it should print.
    pub output: String,
}

impl Case {
    /// Cases as a list of `{"input", "output"}`.
    pub fn list(list: &Value) -> Result<Vec<Self>, String> {
        let case = |it: &Value| Some(Self { input: text_of(&it["input"])?, output: text_of(&it["output"])? });
        let cases = list.as_array().and_then(|list| list.iter().map(case).collect());
        cases.ok_or_else(|| "its tests are no list of `input` and `output`".to_owned())
    }

    /// Cases as a list of inputs and a list of outputs.
    pub fn pairs(inputs: &[Value], outputs: &[Value]) -> Result<Vec<Self>, String> {
        same_length(inputs, outputs)?;
        let case = |(input, output)| Some(Self { input: text_of(input)?, output: text_of(output)? });
        let cases: Option<Vec<Self>> = inputs.iter().zip(outputs).map(case).collect();
        cases.ok_or_else(|| "its tests have inputs or outputs that are no text".to_owned())
    }
}

/// Refuses inputs of which some have no output, and the other way round.
pub fn same_length(inputs: &[Value], outputs: &[Value]) -> Result<(), String> {
    match (inputs.len(), outputs.len()) {
        (a, b) if a == b => Ok(()),
        (a, b) => Err(format!("its tests have {a} inputs and {b} outputs")),
    }
}

impl Cases {
    /// All of them, or why they cannot be unpacked.
    pub fn all(&self) -> Result<Cow<'_, [Case]>, String> {
        match self {
            Self::Plain(cases) => Ok(Cow::Borrowed(cases)),
            Self::Packed { first, rest } => {
                let rest = serde_json::from_str(&unpack(rest)?).map_err(|error| error.to_string())?;
                Ok(Cow::Owned([first.as_slice(), &Case::list(&rest)?].concat()))
            }
        }
    }
}

impl Check {
    /// Everything in it as texts, in a fixed order, for a sum over it.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            Self::Script(code) => vec!["script", code],
            Self::Stdio(stdio) => {
                let (first, rest) = match &stdio.cases {
                    Cases::Plain(cases) => (cases, None),
                    Cases::Packed { first, rest } => (first, Some(rest.as_str())),
                };
                let first = first.iter().flat_map(|case| [case.input.as_str(), &case.output]);
                std::iter::once("stdio").chain(first).chain(rest).collect()
            }
        }
    }
}

/// A sum over texts in their order.
pub fn sum_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut sum = Sha256::new();
    for text in texts {
        sum.update((text.len() as u64).to_le_bytes());
        sum.update(text.as_bytes());
    }
    hex(&sum.finalize())
}
