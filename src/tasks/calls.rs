//! Tests that call one function with given arguments, as a script of assertions.
//!
//! Suites keep such tests as data. The script reads them with Python's own JSON, so that numbers of any size
//! stay what they are, and has one assertion for each. As the suites do it takes a tuple for a list; and a
//! number that should be a float may differ by one part in a million.

/// What is called: a function of the module, or a method of an object of its class `Solution`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What the solution must define for it.
    pub defined: String,
    /// How it is called.
    called: String,
}

impl Target {
    /// The target of that name in code that shows how it is to be called.
    pub fn new(name: &str, code: &str) -> Result<Self, String> {
        let is_method = code.contains("class Solution");
        let called = if is_method { format!("Solution().{name}") } else { name.to_owned() };
        let defined = if is_method { "Solution" } else { name }.to_owned();
        let none = || format!("{name:?} is no name of a function");
        is_identifier(name).then_some(Self { defined, called }).ok_or_else(none)
    }
}

/// How the data of the tests is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// `{"inputs": [[argument, …], …], "outputs": [result, …]}`; a result may stand in a list of its own.
    Lists,
    /// `[[arguments, result], …]` as texts, with one argument in JSON on each line.
    Lines,
}

/// The script that makes `n_calls` calls, as `tests` says in JSON.
pub fn script(target: &Target, layout: Arrangement, tests: &str, n_calls: usize) -> String {
    let Target { defined, called } = target;
    // JSON writes a string as Python does.
    let tests = serde_json::Value::from(tests).to_string();
    let access = match layout {
        Arrangement::Lists => LISTS,
        Arrangement::Lines => LINES,
    };
    let assertions: String = (0..n_calls).map(|n| format!("assert answer({n}) == expected({n})\n")).collect();
    format!(
        "import json\nimport math\n\nfrom solution import {defined}\n\nTESTS = json.loads({tests})\n\n{access}{COMPARING}\n\
         def answer(n):\n    value = plain({called}(*arguments(n)))\n    \
         return expected(n) if any(near(value, it) for it in accepted(n)) else Unlike(value)\n\n\n{assertions}"
    )
}

const LISTS: &str = r#"
def arguments(n):
    return TESTS["inputs"][n]


def expected(n):
    return TESTS["outputs"][n]


def accepted(n):
    value = expected(n)
    return [value, *value] if isinstance(value, list) and len(value) == 1 else [value]

"#;

const LINES: &str = r#"
def arguments(n):
    return [json.loads(line) for line in TESTS[n][0].strip("\n").split("\n")]


def expected(n):
    return json.loads(TESTS[n][1])


def accepted(n):
    return [expected(n)]

"#;

/// Only plain data is taken for what was expected; anything else is unlike it, whatever it says of itself.
const COMPARING: &str = r#"
class Unlike:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return repr(self.value)


def plain(value):
    return [plain(it) for it in value] if isinstance(value, (list, tuple)) else value


def near(value, wanted):
    if type(value) is list and type(wanted) is list:
        return len(value) == len(wanted) and all(map(near, value, wanted))
    if type(value) is dict and type(wanted) is dict:
        are_texts = all(type(it) is str for it in value)
        return are_texts and value.keys() == wanted.keys() and all(near(value[it], wanted[it]) for it in wanted)
    if type(wanted) is float and type(value) in (int, float):
        return math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-6)
    return type(value) in (int, float, bool, str, type(None)) and value == wanted

"#;

/// Whether a word can be a name in Python.
pub fn is_identifier(word: &str) -> bool {
    let starts_well = word.starts_with(|c: char| c.is_alphabetic() || c == '_');
    starts_well && word.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_code_shows_what_is_called() {
        let target = |name: &str, code: &str| Target::new(name, code).map(|it| (it.defined, it.called));
        let (function, method) = (("f".into(), "f".into()), ("Solution".into(), "Solution().f".into()));
        assert_eq!(target("f", "def f(x):"), Ok(function));
        assert_eq!(target("f", "class Solution:\n    def f(self, x):"), Ok(method));
        assert!(target("f(); import os", "").is_err_and(|why| why.ends_with("is no name of a function")));
    }

    #[test]
    fn data_stays_data() {
        let tests = r#"{"inputs": [["'''\"\\n"]], "outputs": [12345678901234567890123]}"#;
        let script = script(&Target::new("f", "").unwrap(), Arrangement::Lists, tests, 1);
        assert!(script.contains("from solution import f\n"), "{script}");
        assert!(script.contains(r#"json.loads("{\"inputs\": [[\"'''\\\"\\\\n\"]]"#), "{script}");
        assert!(script.ends_with("assert answer(0) == expected(0)\n"), "{script}");
    }
}
