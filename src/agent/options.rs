//! What the agent's loop is allowed: turns, tokens, time, and how it samples.
//!
//! Owns [`LoopOptions`] and what must hold of them.
//! What a tool may take and say is in `tools`, what a sandbox may use in `sandbox`.

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
    /// Refuses tools that there are not, and patterns that are none.
    pub fn check(&self) -> Result<(), String> {
        if let Some(name) = self.tools.iter().find(|name| !NAMES.contains(&name.as_str())) {
            let must = "terminal, process, read_file, write_file, patch or search_files";
            return Err(bad_option("forced_tools", name, must));
        }
        match self.arguments.iter().find(|pattern| regex::Regex::new(pattern).is_err()) {
            Some(pattern) => {
                Err(bad_option("forced_arguments", pattern, "a regular expression for each turn"))
            }
            None => Ok(()),
        }
    }

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

impl LoopOptions {
    /// Refuses numbers with which no episode can be run, whoever set them.
    pub fn check(&self) -> Result<(), String> {
        let counts = [
            ("max_agent_turns", self.max_agent_turns),
            ("max_turn_tokens", self.max_turn_tokens),
            ("context_budget", self.context_budget.unwrap_or(1)),
            ("turn_output_chars", self.turn_output_chars),
            ("episode_output_chars", self.episode_output_chars),
            ("episode_seconds", self.episode_time.as_millis() as usize),
            ("verifier_seconds", self.verifier_time.as_millis() as usize),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, value)| *value == 0) {
            return Err(bad_option(name, "0", "more than 0"));
        }
        let temperature = self.agent_temperature;
        if temperature.is_finite() && temperature >= 0.0 {
            return Ok(());
        }
        Err(bad_option("agent_temperature", &temperature.to_string(), "a finite number, 0 or more"))
    }
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

/// What is wrong with an option that makes no sense, and what to do about it.
pub(super) fn bad_option(name: &str, value: &str, must: &str) -> String {
    format!("{name} is {value}, but must be {must}\nhelp: change --{}", name.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_prompt_names_tools_that_exist() {
        for name in ["write_file", "terminal"] {
            assert!(SYSTEM_PROMPT.contains(name) && NAMES.contains(&name));
        }
        assert!(SYSTEM_PROMPT.lines().all(|line| line == line.trim_end()));
    }

    #[test]
    fn numbers_that_no_episode_can_be_run_with_are_refused() {
        let check = |change: fn(&mut LoopOptions), expected: &str| {
            let mut options = LoopOptions::default();
            change(&mut options);
            let found = options.check().err().unwrap_or_default();
            assert_eq!(found.lines().next().unwrap_or_default(), expected);
        };
        check(|_| {}, "");
        check(|it| it.max_agent_turns = 0, "max_agent_turns is 0, but must be more than 0");
        check(|it| it.context_budget = Some(0), "context_budget is 0, but must be more than 0");
        check(|it| it.verifier_time = Duration::ZERO, "verifier_seconds is 0, but must be more than 0");
        let temperature =
            |it: f64| format!("agent_temperature is {it}, but must be a finite number, 0 or more");
        check(|it| it.agent_temperature = f64::NAN, &temperature(f64::NAN));
        check(|it| it.agent_temperature = -1.0, &temperature(-1.0));
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
    fn forced_calls_without_sense_are_refused() {
        let check = |tool: &str, pattern: &str, expected: Option<&str>| {
            let (tools, arguments) = (vec![tool.to_owned()], vec![pattern.to_owned()]);
            let forced = ForcedCalls { turns: 1, max_text: 9, tools, arguments };
            let found = forced.check().err();
            assert_eq!(found.as_deref().map(|it| it.lines().next().unwrap_or_default()), expected);
        };
        let tools = "forced_tools is web, but must be terminal, process, read_file, write_file, patch or search_files";
        check("web", "a+", Some(tools));
        check("patch", "a+", None);
        let arguments = "forced_arguments is (, but must be a regular expression for each turn";
        check("patch", "(", Some(arguments));
    }
}
