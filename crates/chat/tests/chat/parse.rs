//! Tool-call parsers against recorded results of the published rules, and by properties.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight_chat::parse::{Parsed, ParsedCall, Parser};
use backsight_core::episode::Arguments;
use backsight_core::python::{JsonStyle, json_dumps};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Number, Value, json};

/// The vectors published with the reference.
const VECTORS: &str = include_str!("../../../../tests/fixtures/opd/tool_call_parsers.json");
/// More of them: generated text, and what the published rules give for it under CPython.
const MORE_VECTORS: &str = include_str!("../../../../tests/fixtures/opd/tool_call_parsers_more.json");

fn check(parser: &str, vector: &Value) {
    let input = vector["in"].as_str().unwrap();
    let Parsed { content, calls, .. } = Parser::from_name(parser).unwrap().parse(input, &[]);
    assert_eq!(content.as_deref(), vector["content"].as_str(), "{parser}: content of {input:?}");
    let wanted = vector["tool_calls"].as_array().cloned().unwrap_or_default();
    assert_eq!(calls.len(), wanted.len(), "{parser}: calls of {input:?}");
    for (call, wanted) in calls.iter().zip(&wanted) {
        assert_eq!(call.name, wanted["name"], "{parser}: name in {input:?}");
        let is_bare = ["qwen3_coder", "glm45", "glm47"].contains(&parser);
        let arguments = if is_bare { as_published(&call.arguments) } else { call.arguments.clone() };
        assert_eq!(arguments, wanted["arguments"], "{parser}: arguments in {input:?}");
        assert!(
            wanted["id"].is_null() || call.id.as_deref() == wanted["id"].as_str(),
            "{parser}: id in {input:?}"
        );
    }
}

/// Arguments as the published rules give them, which take the white space off every argument that stays text.
fn as_published(arguments: &str) -> String {
    let (mut published, mut rest, mut depth) = (String::new(), arguments, 0);
    while let Some(c) = rest.chars().next() {
        let n_bytes = if c == '"' { string_len(rest) } else { c.len_utf8() };
        let (piece, after) = rest.split_at(n_bytes);
        depth += i32::from("{[".contains(c)) - i32::from("}]".contains(c));
        match serde_json::from_str::<String>(piece) {
            Ok(text) if depth == 1 => published.push_str(&dump(&text.trim_matches(is_space).into())),
            _ => published.push_str(piece),
        }
        rest = after;
    }
    published
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The bytes of the string with which a piece of JSON begins.
fn string_len(json: &str) -> usize {
    let mut strings = serde_json::Deserializer::from_str(json).into_iter::<String>();
    strings.next().unwrap().unwrap();
    strings.byte_offset()
}

fn check_all(table: &str, n_vectors: usize) {
    let table: Map<String, Value> = serde_json::from_str(table).unwrap();
    let vectors = table
        .iter()
        .flat_map(|(parser, vectors)| vectors.as_array().unwrap().iter().map(move |vector| (parser, vector)));
    let n_checked = vectors.inspect(|(parser, vector)| check(parser, vector)).count();
    assert_eq!(n_checked, n_vectors);
}

#[test]
fn published_vectors() {
    check_all(VECTORS, 36);
}

#[test]
fn generated_vectors() {
    check_all(MORE_VECTORS, 240);
}

#[test]
fn parsers_have_names() {
    for name in Parser::all_names() {
        let parser = Parser::from_name(name).unwrap();
        assert_eq!(Parser::from_name(parser.name()), Ok(parser));
    }
    let aliases = [("qwen", "hermes"), ("llama4_json", "llama3_json"), ("deepseek_v31", "deepseek_v3_1")];
    for (alias, name) in aliases {
        assert_eq!(Parser::from_name(alias).unwrap().name(), name);
    }
    assert_eq!(
        Parser::from_name("Hermes").unwrap_err().to_string(),
        "no tool-call parser is called `Hermes`; known are hermes, qwen, longcat, mistral, qwen3_coder, \
         kimi_k2, deepseek_v3, deepseek_v3_1, deepseek_v31, glm45, glm47, llama3_json, llama4_json"
    );
}

#[test]
fn calls_become_part_of_a_message() {
    let call = |arguments: &str| ParsedCall {
        id: Some("a:0".into()),
        name: "f".into(),
        arguments: arguments.into(),
    };
    let object = call(r#"{"b": 1.0, "a": null}"#).to_tool_call();
    let Arguments::Object(fields) = object.arguments else { unreachable!("{object:?}") };
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!((object.id.as_deref(), object.name.as_str()), (Some("a:0"), "f"));
    for text in ["{bad", "\"{}\"", "[1]", "null", "", "{\"a\": NaN}"] {
        assert_eq!(call(text).to_tool_call().arguments, Arguments::Text(text.to_owned()));
    }
}

/// A text, the calls in it as `name arguments`, and what is said about the rest.
type Case = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

fn check_cases(cases: &[Case]) {
    for (parser, text, wanted, why) in cases {
        let parsed = Parser::from_name(parser).unwrap().parse(text, &[]);
        let calls: Vec<_> =
            parsed.calls.iter().map(|call| format!("{} {}", call.name, call.arguments)).collect();
        assert_eq!(&calls, wanted, "{parser}: {text}");
        assert_eq!(&parsed.malformed, why, "{parser}: {text}");
    }
}

const MALFORMED: &[Case] = &[
    ("hermes", "just {text}", &[], &[]),
    ("hermes", "<tool_call></tool_call>", &[], &["`<tool_call>` has nothing in it"]),
    (
        "hermes",
        r#"<tool_call>{"name":"f"}</tool_call><tool_call>{"name":"g", "arguments": {"a": 'b'}}</tool_call>"#,
        &[],
        &[r#"`{"name":"g", "arguments": {"a": 'b'}}` is no JSON: expected a value at character 33"#],
    ),
    (
        "hermes",
        r#"<tool_call>{"name":"f"}</tool_call><tool_call>{"x":1}</tool_call><tool_call>[]</tool_call>"#,
        &["f {}"],
        &[r#"`{"x":1}` has no `name`"#, "`[]` is no JSON object"],
    ),
    ("hermes", r#"<tool_call>{"name":""}"#, &[], &[r#"`{"name":""}` has a `name` that is no name"#]),
    (
        "longcat",
        r#"<longcat_tool_call>{"name":["f"]}</longcat_tool_call>"#,
        &[],
        &[r#"`{"name":["f"]}` has a `name` that is no name"#],
    ),
    ("mistral", "[TOOL_CALLS]", &[], &["`` after `[TOOL_CALLS]` has no arguments"]),
    ("mistral", "[TOOL_CALLS]f[TOOL_CALLS]g{}", &["g {}"], &["`f` after `[TOOL_CALLS]` has no arguments"]),
    ("mistral", "[TOOL_CALLS]f{}[TOOL_CALLS]{}", &["f {}"], &["`{}` after `[TOOL_CALLS]` has no name"]),
    ("mistral", "[TOOL_CALLS][1, {", &[], &["`[1, {` is no JSON: the text ends too early at character 6"]),
    (
        "mistral",
        r#"[TOOL_CALLS][{"name":"f","arguments":7}, {"name":"g"}]"#,
        &[],
        &["`7` as `arguments` is neither an object nor text"],
    ),
    (
        "mistral",
        r#"[TOOL_CALLS][{"name":"f"}, {"name":"g", oops}]"#,
        &["f {}"],
        &[r#"`{"name":"g", oops}]` is no JSON: expected a key in double quotes at character 14"#],
    ),
    (
        "llama3_json",
        r#"{x} {"name": "f", "parameters": {"a": 1}"#,
        &[],
        &[r#"`{"name": "f", "parameters": {"a": 1}` is no JSON: the text ends too early at character 37"#],
    ),
    (
        "llama3_json",
        r#"{"name": "f", "parameters": {"name": oops}} {"name": "g", "parameters": {}}"#,
        &["g {}"],
        &[r#"`{"name": "f", "parameters": {"name": oop…` is no JSON: expected a value at character 38"#],
    ),
    ("qwen3_coder", "<function=f", &[], &["`<function=` is not followed by a name and `>`"]),
    ("qwen3_coder", "<function=><parameter=a>1", &[], &["`<function=` is not followed by a name and `>`"]),
    (
        "qwen3_coder",
        "<function=f><parameter=a</parameter><parameter=b>1</function>",
        &[r#"f {"b": 1}"#],
        &["parameter `a` of `f` has no `>`"],
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f",
        &[],
        &["`f` has no separator after its first part"],
    ),
    (
        "deepseek_v3_1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{",
        &[],
        &["`f<｜tool▁sep｜>{` is not closed"],
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>\
             <|tool_call_begin|>f:0<|tool_call_end|><|tool_call_begin|>f:1<|tool_call_argument_begin|>{}",
        &[],
        &[
            "`f<|tool_call_argument_begin|>{}<|tool_ca…` has no id of the form `functions.name:0`",
            "`f:0<|tool_call_end|>` has no arguments",
            "`f:1<|tool_call_argument_begin|>{}` is not closed",
        ],
    ),
    ("glm45", "<tool_call>f</tool_call>", &[], &["`f` has no line break after the name"]),
    ("glm47", "<tool_call>f", &[], &["`<tool_call>` is not closed before `f`"]),
    ("glm47", "<tool_call> </tool_call>", &[], &["`` does not open with a name"]),
    (
        "glm47",
        "<tool_call>f<arg_key>a</arg_key><arg_key>b</arg_key><arg_value>1</arg_value>\
             <arg_key>c</arg_key><arg_value>2</tool_call>",
        &[r#"f {"b": 1}"#],
        &["argument `a` of `f` has no value", "argument `c` of `f` is not closed"],
    ),
];

#[test]
fn what_could_not_be_read_is_named() {
    check_cases(MALFORMED);
}

/// Places where the published rules lose or garble a call that can be read.
const LOST: &[Case] = &[
    ("llama3_json", r#"{"name":"f","arguments":{}}{"name":"g","arguments":{}}"#, &["f {}", "g {}"], &[]),
    ("mistral", r#"[TOOL_CALLS] [{"name":"f","arguments":{}}]</s>"#, &["f {}"], &[]),
    ("mistral", r#"[TOOL_CALLS]f[ARGS]{"a":1}"#, &[r#"f {"a": 1}"#], &[]),
    ("mistral", r#"[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}"#, &["f {}"], &[]),
    ("qwen3_coder", "<function=f><parameter=a>...</parameter></function>", &[r#"f {"a": "..."}"#], &[]),
    (
        "glm45",
        "<tool_call>f\n<arg_key>a</arg_key><arg_value>{1, 2}</arg_value></tool_call>",
        &[r#"f {"a": "{1, 2}"}"#],
        &[],
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f<｜tool▁call▁end｜>\
             <｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>",
        &["g {}"],
        &["`function<｜tool▁sep｜>f<｜tool▁call▁end｜><｜…` has no block of JSON"],
    ),
    (
        "deepseek_v3_1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁call▁end｜>\
             <｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        &["g {}"],
        &["`f<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜…` has no separator after its first part"],
    ),
];

#[test]
fn calls_that_the_published_rules_lose() {
    check_cases(LOST);
    let with_id = Parser::Mistral.parse("[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", &[]);
    assert_eq!(with_id.calls[0].id.as_deref(), Some("abcdefghi"));
    let prose = Parser::LlamaJson.parse(r#" use {x}: {"name":"f","arguments":{}}"#, &[]);
    assert_eq!(prose.content.as_deref(), Some("use {x}:"));
    for text in [" {\"name\":\"f\",\"arguments\":{}}", "\n<|python_tag|>{\"name\":\"f\",\"arguments\":{}}"] {
        assert_eq!(Parser::LlamaJson.parse(text, &[]).content, None);
    }
}

/// Arguments in the formats that carry bare text, as their models write them.
fn bare(parser: Parser, name: &str, key: &str, text: &str) -> String {
    match parser {
        Parser::Qwen3Coder => {
            format!("<function={name}>\n<parameter={key}>\n{text}\n</parameter>\n</function>")
        }
        _ => format!(
            "<tool_call>{name}\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
        ),
    }
}

fn check_bare(tools: &[Value], name: &str, key: &str, text: &str, expected: &Value) {
    for parser in [Parser::Qwen3Coder, Parser::Glm45, Parser::Glm47] {
        let parsed = parser.parse(&bare(parser, name, key, text), tools);
        let arguments: Value = serde_json::from_str(&parsed.calls[0].arguments).unwrap();
        assert_eq!(&arguments[key], expected, "{}: {text:?}", parser.name());
    }
}

#[test]
fn bare_text_keeps_its_white_space() {
    for text in ["    if x:\n        return 1\n", "\tx  ", "\n\nx\n", " ", "\u{a0}x", "a\r\n"] {
        check_bare(&[], "patch", "old", text, &json!(text));
    }
    check_bare(&[], "patch", "count", " 3\n", &json!(3));
    let unwrapped = Parser::Qwen3Coder.parse("<function=f><parameter=a>  x\n</parameter></function>", &[]);
    assert_eq!(unwrapped.calls[0].arguments, r#"{"a": "  x"}"#);
}

#[test]
fn where_the_schema_wants_a_string_the_text_is_the_value() {
    let properties = json!({
        "content": {"type": "string"},
        "count": {"type": "integer"},
        "kind": {"enum": ["1", "2"]},
        "label": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["string", "null"]},
        "whatever": {"description": "anything"},
    });
    let function = json!({"name": "write", "parameters": {"type": "object", "properties": properties}});
    let wrapped = json!({"type": "function", "function": function});
    for tools in [[wrapped], [function]] {
        let check =
            |key: &str, text: &str, expected: Value| check_bare(&tools, "write", key, text, &expected);
        for text in ["1.10", "{\"b\": 1.50}", "null", "None", "\"quoted\"", "007", " true ", ""] {
            check("content", text, json!(text));
        }
        check("count", "3", json!(3));
        check("count", "three", json!("three"));
        check("kind", "1", json!("1"));
        check("label", "null", Value::Null);
        check("label", "1.10", json!("1.10"));
        check("either", "null", Value::Null);
        check("whatever", "1.10", json!(1.1));
        check("unheard_of", "1.10", json!(1.1));
        check_bare(&tools, "read", "content", "1.10", &json!(1.1));
    }
}

/// A marker in a string of JSON is no marker.
#[test]
fn markers_inside_strings_are_text() {
    let marked = [
        (
            "longcat",
            "<longcat_tool_call>{\"name\": \"f\", \"arguments\": ARGS}</longcat_tool_call>",
            "</longcat_tool_call>",
        ),
        ("mistral", "[TOOL_CALLS]fARGS", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": ARGS}]", "[TOOL_CALLS]"),
        ("llama3_json", "{\"name\": \"f\", \"parameters\": ARGS}", "<|python_tag|>"),
        (
            "deepseek_v3_1",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>ARGS<｜tool▁call▁end｜>",
            "<｜tool▁call▁end｜>",
        ),
        (
            "deepseek_v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\nARGS\n```<｜tool▁call▁end｜>",
            "```<｜tool▁call▁end｜>",
        ),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>ARGS<|tool_call_end|>",
            "<|tool_call_end|><|tool_call_begin|>",
        ),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": ARGS}</tool_call>", "<|im_end|><tool_call>"),
    ];
    for (name, form, marker) in marked {
        let arguments = dump(&json!({"a": format!("x{marker}y\"")}));
        let one = form.replace("ARGS", &arguments);
        let parsed = Parser::from_name(name).unwrap().parse(&one, &[]);
        assert_eq!(parsed.malformed, Vec::<String>::new(), "{name}: {one}");
        let found: Vec<_> = parsed.calls.iter().map(|call| (call.name.as_str(), &call.arguments)).collect();
        assert_eq!(found, [("f", &arguments)], "{name}: {one}");
    }
}

/// Where the JSON is broken a marker ends it, so that the next call is not swallowed.
#[test]
fn a_marker_ends_what_is_no_json() {
    let text = "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{\"a<|tool_call_end|>\
                <|tool_call_begin|>g:1<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let calls = Parser::KimiK2.parse(text, &[]).calls;
    let found: Vec<_> = calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!(found, [("f", "{\"a"), ("g", "{}")]);
    let parsed = Parser::Mistral.parse("[TOOL_CALLS]f{\"a[TOOL_CALLS]g{}", &[]);
    let found: Vec<_> =
        parsed.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!(found, [("f", "{\"a"), ("g", "{}")]);
}

fn parser() -> impl Strategy<Value = Parser> {
    select(Parser::all_names().to_vec()).prop_map(|name| Parser::from_name(name).unwrap())
}

/// What the formats are made of, whole and in pieces.
const FRAGMENTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<longcat_tool_call>",
    "</longcat_tool_call>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "<|python_tag|>",
    "<function=f>",
    "<function=",
    "</function>",
    "<parameter=a>",
    "<parameter=",
    "</parameter>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "```json",
    "```",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.f:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    r#"{"name": "f", "arguments": {"a": 1}}"#,
    r#"{"name": "f", "parameters": "x"}"#,
    r#"{"name": ""}"#,
    r#""name":"#,
    r#""arguments":"#,
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    "'",
    "(",
    ")",
    ":",
    ",",
    "-1.5e3",
    "0x1f",
    "True",
    "null",
    r"\ud800",
    r"\u00e9",
    "é",
    "\u{3000}",
    "\0",
    "\n",
    " ",
    ">",
    "f",
];

fn fragments() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![8 => select(FRAGMENTS).prop_map(str::to_owned), 1 => any::<String>()];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

/// What holds for every text.
fn check_sanity(parser: Parser, text: &str) -> Result<(), TestCaseError> {
    let Parsed { content, calls, malformed } = parser.parse(text, &[]);
    prop_assert!(calls.iter().all(|call| !call.name.is_empty()));
    prop_assert!(malformed.iter().all(|why| !why.is_empty() && why.len() < 400 && !why.contains('\n')));
    match content {
        Some(content) if calls.is_empty() => prop_assert_eq!(content, text),
        Some(content) => prop_assert!(!content.is_empty() && text.trim_start().contains(&content)),
        None => prop_assert!(!calls.is_empty()),
    }
    Ok(())
}

/// Any JSON value without integers beyond 64 bits.
fn json() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        any::<i64>().prop_map(Number::from),
        any::<u64>().prop_map(Number::from),
        any::<f64>().prop_filter_map("finite", Number::from_f64),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number.prop_map(Value::Number),
        text().prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 24, 4, |value| {
        prop_oneof![
            prop::collection::vec(value.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((text(), value), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    let few = prop::collection::vec(select(FRAGMENTS), 0..4).prop_map(|fragments| fragments.concat());
    prop_oneof![any::<String>(), few, "[a-z ]{0,12}"]
}

type Fields = Vec<(String, Value)>;

fn call() -> impl Strategy<Value = (String, Fields)> {
    let field = ("[a-zA-Z_][a-zA-Z0-9_-]{0,8}", json());
    ("[a-zA-Z_][a-zA-Z0-9_-]{0,12}", prop::collection::vec(field, 0..4))
}

fn dump(value: &Value) -> String {
    json_dumps(value, &JsonStyle::transformers())
}

/// What ends a piece of a call wherever it stands, so that no argument can contain it: bare text has no strings, and
/// Hermes is held to the published rules.
fn enders(parser: Parser) -> &'static [&'static str] {
    match parser {
        Parser::Hermes => &["</tool_call>"],
        Parser::Qwen3Coder => &["</tool_call>", "</function>", "</parameter>", "<parameter="],
        Parser::Glm45 | Parser::Glm47 => &["</tool_call>", "</arg_value>"],
        _ => &[],
    }
}

/// The calls as a model that follows the format writes them; none when the format cannot carry the text.
fn render(parser: Parser, calls: &[(String, Fields)]) -> Option<String> {
    let one = |(idx, (name, fields)): (usize, &(String, Fields))| {
        let arguments = dump(&Value::Object(fields.iter().cloned().collect()));
        match parser {
            Parser::Hermes => {
                format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>\n")
            }
            Parser::Longcat => format!(
                "<longcat_tool_call>{{\"name\":\"{name}\",\"arguments\":{arguments}}}</longcat_tool_call>"
            ),
            Parser::Mistral => format!("[TOOL_CALLS]{name}{arguments}"),
            Parser::LlamaJson => format!("{{\"name\": \"{name}\", \"parameters\": {arguments}}}; "),
            Parser::DeepseekV3 => format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
            ),
            Parser::DeepseekV31 => {
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
            }
            Parser::KimiK2 => format!(
                "<|tool_call_begin|>functions.{name}:{idx}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
            ),
            Parser::Qwen3Coder => {
                let parameter = |(key, value): &(String, Value)| {
                    format!("<parameter={key}>\n{}\n</parameter>\n", dump(value))
                };
                let parameters: String = fields.iter().map(parameter).collect();
                format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
            }
            Parser::Glm45 | Parser::Glm47 => {
                let pair = |(key, value): &(String, Value)| {
                    format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", dump(value))
                };
                let pairs: String = fields.iter().map(pair).collect();
                format!("<tool_call>{name}\n{pairs}</tool_call>")
            }
        }
    };
    let inside = dump(&calls.iter().flat_map(|(_, fields)| fields).map(|(_, value)| value.clone()).collect());
    let section = match parser {
        Parser::DeepseekV3 | Parser::DeepseekV31 => "<｜tool▁calls▁begin｜>",
        Parser::KimiK2 => "<|tool_calls_section_begin|>",
        _ => "",
    };
    let is_clear = !enders(parser).iter().any(|marker| inside.contains(marker));
    is_clear.then(|| section.to_owned() + &calls.iter().enumerate().map(one).collect::<String>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_global_rejects: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read(parser in parser(), text in any::<String>()) {
        check_sanity(parser, &text)?;
    }

    #[test]
    fn text_like_the_formats_is_read(parser in parser(), text in fragments()) {
        check_sanity(parser, &text)?;
    }

    #[test]
    fn what_is_written_is_read_back(
        parser in parser(),
        before in "[a-z .]{0,12}",
        calls in prop::collection::vec(call(), 1..4),
    ) {
        let rendered = render(parser, &calls);
        prop_assume!(rendered.is_some());
        let parsed = parser.parse(&(before.clone() + &rendered.unwrap()), &[]);
        let content = Some(before.trim().to_owned()).filter(|content| !content.is_empty());
        prop_assert_eq!(parsed.content, content);
        prop_assert_eq!(parsed.malformed, Vec::<String>::new());
        prop_assert_eq!(parsed.calls.len(), calls.len());
        for (call, (name, fields)) in parsed.calls.iter().zip(calls) {
            let fields: Map<String, Value> = fields.into_iter().collect();
            prop_assert_eq!(&call.arguments, &dump(&Value::Object(fields.clone())));
            let call = call.to_tool_call();
            prop_assert_eq!(call.name, name);
            prop_assert_eq!(call.arguments, Arguments::Object(fields));
        }
    }
}
