//! What SGLang and vLLM tell of an answer beside its numbers: whose it is, what it cost, which weights computed it.
//!
//! Produced by SGLang 0.5.23 in every `meta_info`, and by vLLM 0.32.0 on its token route. Two keys: `weight_versions`
//! is a list of `{version, start, end}`, half-open and counted from the first sampled token, with one empty span where
//! nothing was sampled; `weight_version` is one name for all of it. The surprises: the single name is that of the last
//! tokens, or of whatever weights the server has when it answers, so the list is believed first; and a change while a
//! prompt is being read is told by neither. Deliberately absent: what a change of weights means.

use serde::Deserialize;

use super::openai;
use super::scan::Scanner;
use super::strict::{self, Name};
use backsight_core::model::{ToldVersion, Usage};
use backsight_core::tokens::TokenSpan;

/// What is told, as it is found.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// The id of the request.
    pub(super) id: Option<String>,
    /// What the server counted: SGLang beside the id, vLLM under `usage`.
    pub(super) counted: Usage,
    /// Which weights.
    pub(super) versions: Versions,
}

impl Aside {
    /// Takes the value of `key` if it tells something, else steps over it.
    pub(super) fn field(&mut self, key: &[u8], scanner: &mut Scanner<'_>) -> Result<(), String> {
        match key {
            b"weight_version" | b"weight_versions" => self.version(key, scanner)?,
            // A server may write what it does not tell as null.
            _ if scanner.null()? => {}
            b"id" => self.id = Name::read(scanner)?,
            b"usage" => self.counted = openai::usage(scanner.raw()?)?,
            b"prompt_tokens" => self.counted.prompt_tokens = scanner.count()?,
            b"completion_tokens" => self.counted.completion_tokens = scanner.count()?,
            b"cached_tokens" => self.counted.cached_tokens = Some(scanner.count()?),
            _ => scanner.skip()?,
        }
        Ok(())
    }

    /// The same of a part of an answer, whose own id and costs, if it has any, are not those of the answer.
    pub(super) fn version(&mut self, key: &[u8], scanner: &mut Scanner<'_>) -> Result<(), String> {
        match key {
            b"weight_version" => self.versions.one = strict::read(scanner.raw()?)?,
            b"weight_versions" => self.versions.runs = strict::read(scanner.raw()?)?,
            _ => scanner.skip()?,
        }
        Ok(())
    }
}

/// One entry of `weight_versions`.
#[derive(Clone, Debug, Deserialize)]
struct Run {
    version: Name,
    start: usize,
    end: usize,
}

/// What an answer tells of its weights.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Versions {
    #[serde(rename = "weight_version")]
    one: Option<Name>,
    #[serde(rename = "weight_versions")]
    runs: Option<Vec<Run>>,
}

impl Versions {
    /// What is told here, and where it is not, what `other` tells.
    pub(super) fn or(self, other: Self) -> Self {
        Self { one: self.one.or(other.one), runs: self.runs.or(other.runs) }
    }

    /// The weights that read a prompt. They are those of the whole answer, so there can be but one name.
    pub(super) fn of_prompt(self) -> Result<Option<String>, String> {
        let mut names: Vec<String> = self.runs.into_iter().flatten().map(|run| run.version.into()).collect();
        names.dedup();
        match names.len() {
            0 => Ok(self.one.map(String::from)),
            1 => Ok(names.pop()),
            _ => Err(format!("the prompt was read under several weights: {}", names.join(", "))),
        }
    }

    /// The weights of `n` sampled tokens, in order. What is told of tokens that are not there is left out.
    pub(super) fn of_sampled(self, n: usize) -> Result<Vec<ToldVersion>, String> {
        let all = |name: Name| Run { version: name, start: 0, end: n };
        let runs = self.runs.filter(|runs| !runs.is_empty());
        let runs = runs.unwrap_or_else(|| self.one.map(all).into_iter().collect());
        let ends = std::iter::once(0).chain(runs.iter().map(|run| run.end));
        if runs.iter().zip(ends).any(|(run, last)| run.start < last || run.end < run.start) {
            return Err("the runs of weight_versions overlap or go backwards".to_owned());
        }
        let told = runs.into_iter().map(|run| {
            let (start, end) = (run.start.min(n), run.end.min(n));
            ToldVersion { version: run.version.into(), span: TokenSpan::at(start, end - start) }
        });
        Ok(told.filter(|told| !told.span.is_empty()).collect())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn versions(json: &Value) -> Versions {
        let text = json.to_string();
        let mut told = Aside::default();
        Scanner::new(text.as_bytes()).object(|scanner, key| told.field(key, scanner)).unwrap();
        told.versions
    }

    /// What `n` sampled tokens were computed by, and what read the prompt.
    fn check(json: Value, n: usize, sampled: &str, prompt: &str) {
        let told = versions(&json).of_sampled(n).map(|all| {
            let one = |it: &ToldVersion| format!("{} {}", it.version, it.span);
            all.iter().map(one).collect::<Vec<_>>().join("; ")
        });
        assert_eq!(told.unwrap_or_else(|why| why), sampled, "{json}");
        let told = versions(&json).of_prompt().map(|it| it.unwrap_or_default());
        assert_eq!(told.unwrap_or_else(|why| why), prompt, "{json}");
    }

    fn run(version: &str, start: usize, end: usize) -> Value {
        json!({"version": version, "start": start, "end": end})
    }

    #[test]
    fn runs_come_before_the_one_name() {
        check(json!({}), 3, "", "");
        check(json!({"weight_version": null, "weight_versions": null}), 3, "", "");
        check(json!({"weight_version": "a"}), 3, "a [0, 3)", "a");
        check(json!({"weight_version": 7, "other": 1}), 3, "7 [0, 3)", "7");
        check(json!({"weight_version": "b", "weight_versions": [run("a", 0, 3)]}), 3, "a [0, 3)", "a");
        check(json!({"weight_version": "b", "weight_versions": [run("a", 0, 0)]}), 0, "", "a");
        check(json!({"weight_version": "b", "weight_versions": []}), 1, "b [0, 1)", "b");
    }

    #[test]
    fn a_change_in_the_middle_is_kept() {
        let several = "the prompt was read under several weights: a, b";
        let both = json!({"weight_versions": [run("a", 0, 2), run("b", 2, 5)]});
        check(both.clone(), 5, "a [0, 2); b [2, 5)", several);
        check(both, 3, "a [0, 2); b [2, 3)", several);
        check(json!({"weight_versions": [run("a", 1, 2)]}), 5, "a [1, 2)", "a");
    }

    #[test]
    fn runs_that_contradict_each_other_are_refused() {
        let wrong = "the runs of weight_versions overlap or go backwards";
        let several = "the prompt was read under several weights: a, b";
        check(json!({"weight_versions": [run("a", 0, 3), run("b", 2, 5)]}), 5, wrong, several);
        check(json!({"weight_versions": [run("a", 3, 2)]}), 5, wrong, "a");
    }
}
