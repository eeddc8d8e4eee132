//! What the agent's loop is allowed: turns, tokens, time, and how it samples. Validated once.
//!
//! Owns [`LoopOptions`] and its checks. What a tool may take and say is in `tools`, what a sandbox may
//! use in `sandbox`.

use std::time::Duration;

use super::tools::NAMES;

/// What the student is told about its work.
pub const SYSTEM_PROMPT: &str = include_str!("../../prompts/agent_system.txt");

/// How calls are forced out of a student that would not write well-formed ones by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedCalls {
    /// In how many turns, from the first on; later ones are free.
    pub turns: usize,
    /// How many characters a text among the arguments may have.
    pub max_text: usize,
    /// Which tool is called, turn by turn and again from the first; any where there is none.
    pub tools: Vec<String>,
    /// Regular expressions for the arguments, in the same way; what the tool's schema says where there is none.
    pub arguments: Vec<String>,
}

impl ForcedCalls {
    /// The one tool that may be called in a turn; none where any may.
    pub fn tool(&self, turn: usize) -> Option<&str> {
        self.tools.iter().cycle().nth(turn).map(String::as_str)
    }

    /// What the arguments of a turn's call must look like; none where its schema says it.
    pub fn arguments(&self, turn: usize) -> Option<&str> {
        self.arguments.iter().cycle().nth(turn).map(String::as_str)
    }
}

/// What the loop is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopOptions {
    /// How often the student may speak.
    pub max_agent_turns: usize,
    /// The temperature it is sampled with.
    pub agent_temperature: f64,
    /// How many alternatives are kept at each sampled token.
    pub student_topk: usize,
    /// How many tokens one turn may have.
    pub max_turn_tokens: usize,
    /// How many tokens the whole sequence may have; the model's own limit where absent or larger.
    pub context_budget: Option<usize>,
    /// How many characters the answers to one turn may have together.
    pub turn_output_chars: usize,
    /// How many characters of tool results an episode records: half of them are shown to the student, half are the
    /// whole texts of results that were cut.
    pub episode_output_chars: usize,
    /// How long an episode may take, without its verification.
    pub episode_time: Duration,
    /// How long the hidden tests may take.
    pub verifier_time: Duration,
    /// Whether calls are forced through structured output. Logprobs under it are not the student's own and stay absent.
    pub forced_calls: Option<ForcedCalls>,
    /// What the student is told first; nothing where absent.
    pub system_prompt: Option<String>,
    /// Determines every draw, together with its place.
    pub seed: u64,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self {
            max_agent_turns: 15,
            agent_temperature: 1.0,
            student_topk: 5,
            max_turn_tokens: 2048,
            context_budget: None,
            turn_output_chars: 200_000,
            episode_output_chars: 6_000_000,
            episode_time: Duration::from_secs(1800),
            verifier_time: Duration::from_secs(60),
            forced_calls: None,
            system_prompt: Some(SYSTEM_PROMPT.trim_end().to_owned()),
            seed: 0,
        }
    }
}

/// An option that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, but must be {must}\nhelp: change --{}", name.replace('_', "-"))]
pub struct BadOption {
    /// Which one.
    pub name: &'static str,
    /// What it is.
    pub value: String,
    /// What it must be.
    pub must: &'static str,
}

impl LoopOptions {
    /// The options, if they make sense.
    pub fn checked(self) -> Result<Self, BadOption> {
        let temperature = self.agent_temperature;
        let is_temperature = temperature.is_finite() && temperature >= 0.0;
        let count = |name, value: usize| (value > 0, name, value.to_string(), "1 or more");
        let time = |name, value: Duration| (!value.is_zero(), name, "0".to_owned(), "more than 0");
        let forced = self.forced_calls.as_ref();
        let rules = [
            (is_temperature, "agent_temperature", temperature.to_string(), "a finite number, 0 or more"),
            count("max_agent_turns", self.max_agent_turns),
            count("max_turn_tokens", self.max_turn_tokens),
            count("context_budget", self.context_budget.unwrap_or(1)),
            count("turn_output_chars", self.turn_output_chars),
            count("episode_output_chars", self.episode_output_chars),
            count("forced_calls", forced.map_or(1, |it| it.turns)),
            count("forced_text", forced.map_or(1, |it| it.max_text)),
            time("episode_seconds", self.episode_time),
            time("verifier_seconds", self.verifier_time),
        ];
        let tools = forced.into_iter().flat_map(|it| &it.tools).map(|name| {
            let must = "terminal, process, read_file, write_file, patch or search_files";
            (NAMES.contains(&name.as_str()), "forced_tools", name.clone(), must)
        });
        let patterns = forced.into_iter().flat_map(|it| &it.arguments).map(|pattern| {
            let must = "a regular expression for each turn";
            (regex::Regex::new(pattern).is_ok(), "forced_arguments", pattern.clone(), must)
        });
        match rules.into_iter().chain(tools).chain(patterns).find(|(holds, ..)| !holds) {
            Some((_, name, value, must)) => Err(BadOption { name, value, must }),
            None => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl Fn(&mut LoopOptions), expected: Option<&str>) {
        let mut options = LoopOptions::default();
        change(&mut options);
        let found = options.checked().err().map(|error| error.to_string());
        assert_eq!(found.as_deref().map(|it| it.lines().next().unwrap_or_default()), expected);
    }

    #[test]
    fn the_system_prompt_names_tools_that_exist() {
        for name in ["write_file", "terminal"] {
            assert!(SYSTEM_PROMPT.contains(name) && NAMES.contains(&name));
        }
        assert!(SYSTEM_PROMPT.lines().all(|line| line == line.trim_end()));
    }

    #[test]
    fn forced_tools_come_again_from_the_first() {
        let forced = |tools: &[&str]| ForcedCalls {
            turns: 9,
            max_text: 9,
            tools: tools.iter().map(ToString::to_string).collect(),
            arguments: Vec::new(),
        };
        let forced = |tools: &[&str], turn| forced(tools).tool(turn).map(str::to_owned);
        assert_eq!(forced(&[], 3), None);
        assert_eq!(forced(&["write_file", "terminal"], 1).as_deref(), Some("terminal"));
        assert_eq!(forced(&["write_file", "terminal"], 2).as_deref(), Some("write_file"));
    }

    #[test]
    fn options_without_sense_are_refused() {
        check(|_| {}, None);
        check(|it| it.agent_temperature = 0.0, None);
        let temperature = "agent_temperature is NaN, but must be a finite number, 0 or more";
        check(|it| it.agent_temperature = f64::NAN, Some(temperature));
        check(|it| it.max_agent_turns = 0, Some("max_agent_turns is 0, but must be 1 or more"));
        check(|it| it.context_budget = Some(0), Some("context_budget is 0, but must be 1 or more"));
        check(|it| it.episode_time = Duration::ZERO, Some("episode_seconds is 0, but must be more than 0"));
        let forced = |max_text: usize, tool: &str| {
            Some(ForcedCalls { turns: 1, max_text, tools: vec![tool.to_owned()], arguments: Vec::new() })
        };
        let text = "forced_text is 0, but must be 1 or more";
        check(|it| it.forced_calls = forced(0, "terminal"), Some(text));
        let tools = "forced_tools is web, but must be terminal, process, read_file, write_file, patch or search_files";
        check(|it| it.forced_calls = forced(9, "web"), Some(tools));
        check(|it| it.forced_calls = forced(9, "patch"), None);
        let pattern = |pattern: &str| {
            forced(9, "patch").map(|it| ForcedCalls { arguments: vec![pattern.to_owned()], ..it })
        };
        check(|it| it.forced_calls = pattern("a+"), None);
        let arguments = "forced_arguments is (, but must be a regular expression for each turn";
        check(|it| it.forced_calls = pattern("("), Some(arguments));
    }
}
