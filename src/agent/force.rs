//! A regular expression for one well-formed call, for students too small to write one by themselves.
//!
//! Pure. Owns [`call_pattern`]: the call in the student's own format, its name one of the tools, its
//! arguments those the tool requires, as Python's `json.dumps` would write them, or what another pattern says.
//! Optional arguments are left out: what is forced is the form, and a student that can choose needs no force.

use regex::escape;
use serde_json::Value;

use backsight_chat::parse::Parser;

/// A pattern that matches one call, or nothing if the format has no simple one. `arguments` is a pattern for what
/// stands between the braces of the arguments.
pub fn call_pattern(
    parser: Parser,
    tools: &[Value],
    max_text: usize,
    arguments: Option<&str>,
) -> Option<String> {
    let (before, key, after) = match parser {
        Parser::Hermes => ("<tool_call>\\n", "arguments", "\\n</tool_call>"),
        Parser::Longcat => ("<longcat_tool_call>\\n", "arguments", "\\n</longcat_tool_call>"),
        Parser::LlamaJson => ("", "parameters", ""),
        _ => return None,
    };
    let calls: Option<Vec<String>> =
        tools.iter().map(|tool| tool_pattern(tool, key, max_text, arguments)).collect();
    let calls = calls.filter(|calls| !calls.is_empty())?;
    Some(format!("{before}({}){after}", calls.join("|")))
}

fn tool_pattern(tool: &Value, key: &str, max_text: usize, arguments: Option<&str>) -> Option<String> {
    let function = tool.get("function")?;
    let name = function.get("name")?.as_str()?;
    let fields = match arguments {
        Some(pattern) => format!("({pattern})"),
        None => required_pattern(function.get("parameters")?, max_text)?,
    };
    Some(format!("\\{{\"name\": \"{}\", \"{key}\": \\{{{fields}\\}}\\}}", escape(name)))
}

/// The arguments that must be there.
fn required_pattern(parameters: &Value, max_text: usize) -> Option<String> {
    let required = parameters.get("required").and_then(Value::as_array);
    let fields: Option<Vec<String>> = required
        .into_iter()
        .flatten()
        .map(|name| {
            let name = name.as_str()?;
            let value = value_pattern(parameters.get("properties")?.get(name)?, max_text)?;
            Some(format!("\"{}\": {value}", escape(name)))
        })
        .collect();
    Some(fields?.join(", "))
}

fn value_pattern(schema: &Value, max_text: usize) -> Option<String> {
    if let Some(choices) = schema.get("enum").and_then(Value::as_array) {
        let choices = choices.iter().map(|it| Some(format!("\"{}\"", escape(it.as_str()?))));
        return Some(format!("({})", choices.collect::<Option<Vec<_>>>()?.join("|")));
    }
    match schema.get("type")?.as_str()? {
        // Letters, digits and what shell and Python lines are made of; a line break is written as JSON writes it.
        "string" => {
            Some(format!("\"([a-zA-Z0-9 _.,:;=+*/()<>'#!?%&|$~@^{{}}\\[\\]-]|\\\\n){{1,{max_text}}}\""))
        }
        "integer" => Some("(0|[1-9][0-9]{0,5})".to_owned()),
        "boolean" => Some("(true|false)".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::agent::tools::schema::schemas;

    fn check(parser: Parser, text: &str, expected: bool) {
        let pattern = call_pattern(parser, &schemas(), 40, None).unwrap();
        let is_match = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap().is_match(text);
        assert_eq!(is_match, expected, "{text}");
        if expected {
            let parsed = parser.parse(text, &[]);
            assert_eq!((parsed.calls.len(), parsed.malformed.len()), (1, 0), "{text}");
            serde_json::from_str::<Value>(&parsed.calls[0].arguments).unwrap();
        }
    }

    #[test]
    fn arguments_may_have_a_pattern_of_their_own() {
        let command = r#""command": "(ls|pwd)""#;
        let pattern = call_pattern(Parser::LlamaJson, &schemas()[..1], 40, Some(command)).unwrap();
        let regex = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
        assert!(regex.is_match(r#"{"name": "terminal", "parameters": {"command": "pwd"}}"#), "{pattern}");
        assert!(!regex.is_match(r#"{"name": "terminal", "parameters": {"command": "rm"}}"#), "{pattern}");
    }

    #[test]
    fn what_matches_is_a_call() {
        let call = |body: &str| format!("<tool_call>\n{body}\n</tool_call>");
        let list = r#"{"name": "process", "arguments": {"action": "list"}}"#;
        check(Parser::Hermes, &call(list), true);
        check(Parser::Hermes, &call(r#"{"name": "terminal", "arguments": {"command": "ls -l | wc"}}"#), true);
        let write =
            r#"{"name": "write_file", "arguments": {"path": "a.py", "content": "x = 1\nprint(x)\n"}}"#;
        check(Parser::Hermes, &call(write), true);
        check(Parser::Hermes, &call(r#"{"name": "patch", "arguments": {}}"#), true);
        check(Parser::Hermes, list, false);
        check(Parser::Hermes, &call(r#"{"name": "web", "arguments": {"command": "ls"}}"#), false);
        check(Parser::Hermes, &call(r#"{"name": "terminal", "arguments": {"command": "a"b"}}"#), false);
        check(Parser::Hermes, &call(r#"{"name": "terminal", "arguments": {}}"#), false);
        check(Parser::LlamaJson, r#"{"name": "process", "parameters": {"action": "list"}}"#, true);
        assert_eq!(call_pattern(Parser::KimiK2, &schemas(), 40, None), None);
        assert_eq!(call_pattern(Parser::Hermes, &[], 40, None), None);
    }
}
