//! What only the inside of `parse` can show: its JSON and literals are Python's, and its work is linear.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::json::{Containers, Json, MAX_DEPTH, loads};
use super::literal::value_of;
use super::scan::WORK;
use super::*;

fn rows(table: &str) -> Vec<(String, Option<String>)> {
    let rows: Vec<[Option<String>; 2]> = serde_json::from_str(table).unwrap();
    assert!(rows.len() > 500, "only {} rows", rows.len());
    rows.into_iter().map(|[text, wanted]| (text.unwrap(), wanted)).collect()
}

#[test]
fn json_is_read_and_written_as_python_does() {
    for (text, wanted) in rows(include_str!("../../../../tests/fixtures/python/json_loads.json")) {
        assert_eq!(loads(&text).ok().map(|value| value.dumps()), wanted, "{text:?}");
    }
}

#[test]
fn bare_text_means_what_python_literals_mean() {
    for (text, wanted) in rows(include_str!("../../../../tests/fixtures/python/literals.json")) {
        let value = value_of(&text).unwrap_or_else(|| Json::Text(text.clone()));
        assert_eq!(value.dumps(), wanted.unwrap(), "{text:?}");
    }
}

#[test]
fn literals_that_would_lose_something_stay_text() {
    for text in ["5 # five", "# five\n5", "[1, # one\n2]", r"'\N{BULLET}'", "'a' \\\n'b'", "'''a\r\nb'''"] {
        assert_eq!(value_of(text), None);
    }
    let huge = format!("0x{}", "f".repeat(33));
    assert_eq!(value_of(&huge), None);
}

#[test]
fn broken_json_says_what_and_where() {
    let why = |text: &str| loads(text).unwrap_err().describe(text);
    let cases = [
        ("{bad}", "`{bad}` is no JSON: expected a key in double quotes at character 2"),
        ("é{", "`é{` is no JSON: expected a value at character 1"),
        (r#"{"é" 1}"#, r#"`{"é" 1}` is no JSON: expected `:` at character 6"#),
        (r#"{"a": 1"#, r#"`{"a": 1` is no JSON: the text ends too early at character 8"#),
        (r#"{"a": 1 "b"}"#, r#"`{"a": 1 "b"}` is no JSON: expected `,` or `}` at character 9"#),
        ("[1 2]", "`[1 2]` is no JSON: expected `,` or `]` at character 4"),
        ("\"a\nb\"", "`\"a b\"` is no JSON: unescaped control character at character 3"),
        (r#""\q""#, r#"`"\q"` is no JSON: a broken escape at character 3"#),
        (r#""\ud800.""#, r#"`"\ud800."` is no JSON: a broken escape at character 8"#),
        ("{} {}", "`{} {}` is no JSON: text after the value at character 4"),
    ];
    for (text, wanted) in cases {
        assert_eq!(why(text), wanted);
    }
    let deep = "[".repeat(1_000_000);
    assert_eq!(loads(&deep).unwrap_err().at, MAX_DEPTH);
}

#[test]
fn what_is_read_can_be_read_again_as_arguments() {
    let value = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
    let text = format!("<tool_call>f<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>");
    let parsed = Parser::Glm47.parse(&text, &[]);
    assert_eq!(parsed.calls[0].arguments, format!("{{\"a\": {value}}}"));
    assert!(matches!(parsed.calls[0].to_tool_call().arguments, Arguments::Object(_)));
}

/// Which brackets are tried, and what is read at each.
fn containers(text: &str) -> Vec<(usize, Option<String>)> {
    let found = Containers::new(text, &['[', '{']);
    found.map(|found| (found.start, found.value.ok().map(|value| value.dumps()))).collect()
}

#[test]
fn containers_are_read_wherever_they_stand() {
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(containers("a {} [1]"), [(2, some("{}")), (5, some("[1]"))]);
    assert_eq!(containers("{}{}"), [(0, some("{}")), (2, some("{}"))]);
    assert_eq!(
        containers(r#"{"a": [{}, {"b": 1}, x"#),
        [(0, None), (7, some("{}")), (11, some(r#"{"b": 1}"#))]
    );
    assert_eq!(containers(r#"{"[1]": x"#), [(0, None), (2, some("[1]"))]);
}

/// Units of hostile text: the formats' own markers, and what is hard on readers of JSON and literals.
const UNITS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>{</tool_call>",
    "<tool_call>f\n",
    "<longcat_tool_call>",
    "</longcat_tool_call>",
    "[TOOL_CALLS]",
    "[TOOL_CALLS][",
    "[TOOL_CALLS]f{",
    "[TOOL_CALLS]f[CALL_ID]",
    "[TOOL_CALLS]f{\"a\":\"",
    "<|python_tag|>",
    "<function=",
    "<function=f>",
    "<function=f></function>",
    "</function>",
    "<parameter=",
    "<parameter=a>",
    "<parameter=a>1",
    "</parameter>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n",
    "<｜tool▁call▁begin｜>f<｜tool▁call▁end｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "```json",
    "```",
    "`",
    "```   ",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_begin|>functions.f:0",
    "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
    "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{\"a\":\"",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<arg_key>",
    "<arg_key>a</arg_key>",
    "<arg_key>a</arg_key><arg_value>",
    "<arg_key>a</arg_key>   \\n",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "{",
    "}",
    "[",
    "]",
    "[[{",
    "{\"",
    "{\"a\":",
    "{\"a\":[",
    "{\"a\":{},",
    "{\"a\":1,\"b\":",
    "{\"name\":",
    "{\"name\":\"f\",\"arguments\":{",
    "{\"name\":\"f\",\"arguments\":{}}",
    "{\"name\":\"f\",\"arguments\":\"",
    "{\":{\":",
    "{\"{\":\":\",",
    "\"{\":[",
    "\\\"{",
    "{\\\"",
    "\"",
    "\\",
    "\\\"",
    "\"\\ud800\"",
    "\\ud83d\\ude00",
    "'",
    "'a'",
    "(",
    "('",
    "(1,",
    "{1:",
    "r'\\",
    "1",
    "1_",
    "-",
    "1,",
    "1e",
    "0x",
    ",",
    ":",
    ".",
    ">",
    "<",
    "\0",
    " ",
    "\n",
    "\u{3000}",
    "é",
    "x",
];

/// What puts the hostile text inside a call, and what closes the call after it.
const PLACES: &[[&str; 2]] = &[
    ["", ""],
    ["<tool_call>", "</tool_call>"],
    ["<longcat_tool_call>", "</longcat_tool_call>"],
    ["<tool_call>{\"name\":\"", "\"}</tool_call>"],
    ["<tool_call>{\"name\":\"f\",\"arguments\":", "}"],
    ["[TOOL_CALLS]", ""],
    ["[TOOL_CALLS] [", "]"],
    ["[TOOL_CALLS]f{", "}"],
    ["<|python_tag|>{\"name\":\"f\",\"arguments\":", "}"],
    ["<tool_call><function=", "></function></tool_call>"],
    ["<tool_call><function=f><parameter=a>", "</parameter></function></tool_call>"],
    ["<tool_call>f\n", "</tool_call>"],
    ["<tool_call>f\n<arg_key>", "</arg_key></tool_call>"],
    ["<tool_call>f\n<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"],
    ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
    ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
    ["<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>f```json", "```<｜tool▁call▁end｜>"],
    ["<|tool_calls_section_begin|><|tool_call_begin|>", "<|tool_call_end|>"],
    ["<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>", "<|tool_call_end|>"],
];

fn parsers() -> Vec<Parser> {
    let mut parsers = Parser::all_names().map(|name| Parser::from_name(name).unwrap()).to_vec();
    parsers.dedup();
    assert_eq!(parsers.len(), 10);
    parsers
}

/// How many bytes a parser looks at for each byte of the text.
fn work_per_byte(parser: Parser, text: &str) -> f64 {
    WORK.set(0);
    let parsed = parser.parse(text, &[]);
    assert!(!parsed.calls.is_empty() || parsed.content.as_deref() == Some(text));
    WORK.get() as f64 / text.len() as f64
}

fn filled([before, after]: [&str; 2], unit: &str, n_bytes: usize) -> String {
    format!("{before}{}{after}", unit.repeat(n_bytes / unit.len()))
}

/// Were anything searched again from every place it may open at, these texts would cost hundreds of
/// looks at each byte.
const MAX_WORK: f64 = 10.0;

/// The costliest of `texts` for any parser must stay below the limit.
fn check_work(texts: impl Iterator<Item = (String, String)>) {
    let mut most = (0.0, String::new());
    for (label, text) in texts {
        for parser in parsers() {
            let work = work_per_byte(parser, &text);
            if work > most.0 {
                most = (work, format!("{} on {label}", parser.name()));
            }
        }
    }
    assert!(most.0 < MAX_WORK, "{} looks per byte: {}", most.0, most.1);
    assert!(most.0 > 1.0, "nothing was counted");
}

#[test]
fn work_is_linear_whatever_is_written_in_a_call() {
    let in_places = |unit: &'static &str| {
        PLACES.iter().map(move |place| (format!("{place:?} with {unit:?}"), filled(*place, unit, 40_000)))
    };
    check_work(UNITS.iter().flat_map(in_places));
}

#[test]
fn work_is_linear_whatever_follows_what() {
    let followed = |first: &'static &str| {
        let text = |second: &&str| filled(["", ""], first, 4_000) + &filled(["", ""], second, 4_000);
        UNITS.iter().map(move |second| (format!("{first:?} then {second:?}"), text(second)))
    };
    check_work(UNITS.iter().flat_map(followed));
}

#[test]
fn megabytes_of_anything_are_read() {
    const N_BYTES: usize = 4 << 20;
    let units = [
        "<tool_call>",
        "{",
        "[",
        "{\"a\":",
        "{\"name\":\"f\",\"arguments\":{",
        "[TOOL_CALLS]f{",
        "('",
        "\0",
        "<｜",
        "<arg_key>",
    ];
    let alone = units.map(|unit| (unit.to_owned(), filled(["", ""], unit, N_BYTES)));
    let nested = format!("{}{}", "{\"a\":[".repeat(100), "1,".repeat(N_BYTES / 2));
    let call = format!("{{\"name\":\"f\",\"arguments\":{{\"a\":\"{}\"}}}}", "\\n".repeat(N_BYTES / 2));
    let tagged = format!("<tool_call>{call}</tool_call>");
    let named = [("nested".to_owned(), nested), ("call".to_owned(), call), ("tagged".to_owned(), tagged)];
    check_work(alone.into_iter().chain(named));
}
