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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stdio {
    /// The cases, in the order they are run.
    pub cases: Vec<Case>,
    /// Others behind them, packed as they were published: all of a dataset unpacked would fill a machine.
    pub packed: Option<String>,
    /// How long one case may take, as the dataset says it.
    pub time: Option<Duration>,
}

impl Stdio {
    /// All cases, or why they cannot be unpacked.
    pub fn all(&self) -> Result<Cow<'_, [Case]>, String> {
        let Some(packed) = &self.packed else { return Ok(Cow::Borrowed(&self.cases)) };
        let rest = serde_json::from_str(&unpack(packed)?).map_err(|error| error.to_string())?;
        Ok(Cow::Owned([self.cases.as_slice(), &Case::list(&rest)?].concat()))
    }
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

impl Check {
    /// What a student is shown of cases that are published, if there are any.
    pub fn examples(cases: Vec<Case>) -> Option<Self> {
        (!cases.is_empty()).then_some(Self::Stdio(Stdio { cases, ..Stdio::default() }))
    }

    /// Everything in it as texts, in a fixed order, for a sum over it.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            Self::Script(code) => vec!["script", code],
            Self::Stdio(Stdio { cases, packed, .. }) => {
                let cases = cases.iter().flat_map(|case| [case.input.as_str(), &case.output]);
                std::iter::once("stdio").chain(cases).chain(packed.as_deref()).collect()
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
