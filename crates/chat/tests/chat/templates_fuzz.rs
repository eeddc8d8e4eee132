//! Templates and conversations made to break things: no panic, no hang, the same answer twice.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use backsight_chat::drops::{drops, losses};
use backsight_chat::error::TextError;
use backsight_chat::render::render_conversation;
use backsight_chat::template::{Now, RenderInput, Rendered, Template};
use backsight_core::episode::ToolText;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// The sources of our own templates.
static SOURCES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/templates");
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let templates = paths.iter().filter(|path| path.extension().is_some_and(|it| it == "jinja"));
    templates.map(|path| fs::read_to_string(path).unwrap()).collect()
});
/// Those that can be read.
static TEMPLATES: LazyLock<Vec<Template>> =
    LazyLock::new(|| SOURCES.iter().filter_map(|source| Template::compile(source, "own").ok()).collect());

/// Pieces that templates are made of.
const PIECES: &[&str] = &[
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "{{-",
    "-}}",
    "{%+",
    "+%}",
    " ",
    "\n",
    "\r\n",
    "\t",
    "x",
    "messages",
    "loop",
    "ns",
    "caller",
    "self",
    "super",
    "none",
    "true",
    "1",
    "0",
    "-1",
    "1.5e3",
    "0x",
    "1_0",
    "99999999999999999999999999999999999999999",
    "'a'",
    "\"b\"",
    "'",
    "\\",
    "'\\x4'",
    "'\\ud800'",
    "'ü'",
    "ü",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    ".",
    "|",
    "~",
    "+",
    "-",
    "*",
    "**",
    "/",
    "//",
    "%",
    "==",
    "!=",
    "<",
    ">=",
    "=",
    "in",
    "not",
    "and",
    "or",
    "is",
    "if",
    "else",
    "for x in ",
    "endfor",
    "elif",
    "endif",
    "set ",
    "set x = ",
    "set ns.y = ",
    "endset",
    "macro m(a, b=1)",
    "endmacro",
    "call m(1)",
    "call(z) m()",
    "endcall",
    "filter upper",
    "endfilter",
    "with a = 1",
    "endwith",
    "generation",
    "endgeneration",
    "raw",
    "endraw",
    "block b",
    "endblock",
    "break",
    "continue",
    "recursive",
    "loop(x)",
    "include 'a'",
    "print x",
    "do x",
    "autoescape true",
    "namespace(a=1)",
    "range(3)",
    "tojson",
    "map('upper')",
    "__add",
    "__call",
    "__class__",
    ".items()",
    ".append(1)",
    "[::-1]",
    "[1:2:0]",
    "[5:1:-1]",
    ".format('{}')",
    "raise_exception('r')",
    "strftime_now('%Y')",
    "cycler()",
    "joiner()",
    "loop.cycle()",
    "loop.changed()",
    "{% for x in messages %}",
    "{% endfor %}",
    "{% if x %}",
    "{% else %}",
    "{% endif %}",
    "{{ x }}",
    "{{ messages }}",
    "{{ x.y.z }}",
    "{{ '%s' % x }}",
];

/// Keys that templates look for.
const KEYS: &[&str] = &[
    "role",
    "content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "items",
    "get",
    "id",
    "thinking",
    "text",
    "type",
];
const ROLES: &[&str] = &["system", "user", "assistant", "tool", "developer", "nobody"];

fn render(template: &Template, messages: &[Value]) -> Result<Rendered, TextError> {
    let tools = [
        json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"items": 1}}}}}),
    ];
    let (vars, now) = (Map::new(), Some(Now::utc(1_700_000_000)));
    let input = RenderInput { messages, tools: Some(&tools), add_generation_prompt: true, vars: &vars, now };
    let first = template.render(&input);
    assert_eq!(first, template.render(&input), "two renderings differ");
    if let Err(error) = &first {
        assert!(!error.to_string().contains("template engine failed"), "the engine panicked");
    }
    first
}

/// Strings that look like parts of templates, prompts and JSON.
fn text() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(PIECES).prop_map(str::to_owned);
    let special = prop::sample::select(
        &["</think>", "<think>", "<|im_end|>", "\u{0}", "🤖", "\u{202e}", "%s%d", "{0}", ""][..],
    );
    prop_oneof![odd, special.prop_map(str::to_owned), ".{0,12}", "\\PC{0,8}"]
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![prop::sample::select(KEYS).prop_map(str::to_owned), text()]
}

/// Messages that may be almost right.
fn message() -> impl Strategy<Value = Value> {
    let fields = prop::collection::vec((key(), json_value()), 0..4);
    let call = (json_value(), json_value());
    (prop::sample::select(ROLES), json_value(), fields, prop::option::of(call)).prop_map(
        |(role, content, fields, call)| {
            let mut message = json!({"role": role, "content": content});
            for (key, value) in fields {
                message[key] = value;
            }
            if let Some((name, arguments)) = call {
                message["tool_calls"] =
                    json!([{"id": "c", "function": {"name": name, "arguments": arguments}}]);
            }
            message
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn any_conversation_is_rendered_or_refused(messages in prop::collection::vec(message(), 0..5)) {
        for template in TEMPLATES.iter() {
            let _ = render(template, &messages);
        }
    }

    #[test]
    fn any_conversation_goes_through_the_tool_renderings(messages in prop::collection::vec(message(), 0..4)) {
        let vars = Map::new();
        let input = RenderInput { messages: &messages, tools: None, add_generation_prompt: false, vars: &vars, now: Some(Now::utc(0)) };
        for template in TEMPLATES.iter() {
            let _ = losses(template, &input);
            for choice in [None, Some(ToolText::Hermes), Some(ToolText::Flatten)] {
                let _ = render_conversation(template, &input, choice);
            }
        }
    }

    #[test]
    fn any_source_is_compiled_or_refused(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..24)) {
        if let Ok(template) = Template::compile(&pieces.concat(), "pieces") {
            let _ = render(&template, &[json!({"role": "user", "content": "x"})]);
        }
    }

    #[test]
    fn any_text_is_compiled_or_refused(source in "\\PC{0,40}") {
        let _ = Template::compile(&source, "text");
        let _ = Template::compile(&format!("{{{{ {source} }}}}{{% {source} %}}"), "text");
    }

    #[test]
    fn a_damaged_template_is_compiled_or_refused(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        n_removed in 0usize..12,
        piece in prop::sample::select(PIECES),
    ) {
        let source: Vec<char> = which.get(&SOURCES).chars().collect();
        let at = at.index(source.len() + 1);
        let after = source.iter().skip(at + n_removed);
        let damaged: String = source.iter().take(at).copied().chain(piece.chars()).chain(after.copied()).collect();
        if let Ok(template) = Template::compile(&damaged, "damaged") {
            let _ = render(&template, &[json!({"role": "user", "content": "x"}), json!({"role": "assistant", "content": "y"})]);
            let _ = drops(&template, &Map::new(), None);
        }
    }

    #[test]
    fn any_time_can_be_written(seconds in any::<i64>(), offset in any::<i32>(), format in "[%a-zA-Z0-9_^# -]{0,12}") {
        let _ = Now::utc(seconds).at_offset(offset).strftime(&format);
    }
}

/// A template that would run for ever, fill the memory or exhaust the stack.
#[test]
fn hostile_templates_come_to_an_end() {
    let many = |piece: &str, n: usize| piece.repeat(n);
    let cases = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(99999) %}{% for b in range(99999) %}some text that is printed very often{% endfor %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s={}) %}{% for i in range(99999) %}{% set ns.s = {'a': ns.s} %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s=namespace()) %}{% for i in range(99999) %}{% set ns.s = namespace(s=ns.s) %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s='') %}{% for i in range(99999) %}{% set ns.s = ns.s.upper %}{% endfor %}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".to_owned(),
        "{% for x in [[]] recursive %}{{ loop([[x]]) }}{% endfor %}".to_owned(),
        "{{ 'x' * 99999999999 }}".to_owned(),
        "{{ [0] * 99999999999 }}".to_owned(),
        "{{ 'x'.center(99999999999) }}{{ '%99999999999d' % 1 }}".to_owned(),
        "{{ '{:99999999999}'.format(1) }}".to_owned(),
        "{{ ('a' * 9999999).replace('', 'b' * 9999999) }}".to_owned(),
        "{{ range(99999)|join('x' * 9999999) }}".to_owned(),
        "{{ [1]|tojson(indent=99999999999) }}".to_owned(),
        "{{ ('a\n' * 99999)|indent(99999999) }}".to_owned(),
        "{% set a %}{% for i in range(99999) %}{% for j in range(99999) %}0123456789{% endfor %}{% endfor %}{% endset %}".to_owned(),
        format!("{{{{ {}1{} }}}}", many("(", 9999), many(")", 9999)),
        format!("{{{{ 1{} }}}}", many(" + 1", 99999)),
        format!("{{{{ 1{} }}}}", many("|string", 99999)),
        format!("{{{{ x{} }}}}", many(".x", 99999)),
        format!("{{{{ x{} }}}}", many("[0]", 99999)),
        format!("{{{{ {} 1 }}}}", many("not ", 99999)),
        format!("{{{{ {}1 }}}}", many("-", 99999)),
        format!("{{{{ 1{} }}}}", many(" if 1 else 1", 99999)),
        format!("{{{{ 1{} }}}}", many(" and 1", 99999)),
        format!("{{{{ {}{} }}}}", many("[", 9999), many("]", 9999)),
        format!("{{% for {}x in y %}}{{% endfor %}}", many("(", 99999)),
        format!("{}{}", many("{% if 1 %}", 9999), many("{% endif %}", 9999)),
        format!("{{% if 1 %}}{}{{% endif %}}", many("{% elif 1 %}", 99999)),
        format!("{{% set x = [] %}}{}{{{{ x }}}}", many("{% set x = [x] %}", 9999)),
        format!("{}{}", many("{% for x in [1] %}", 9999), many("{% endfor %}", 9999)),
        format!("{{{{ f({}) }}}}", many("1,", 99999)),
        format!("{{{{ [{}]|length }}}}", many("1,", 99999)),
    ];
    let limit = Duration::from_secs(60);
    for source in cases {
        let start = Instant::now();
        let result = Template::compile(&source, "hostile").and_then(|template| {
            let vars = Map::new();
            template.render(&RenderInput {
                messages: &[],
                tools: None,
                add_generation_prompt: false,
                vars: &vars,
                now: None,
            })
        });
        let shown: String = source.chars().take(120).collect();
        assert!(result.is_err(), "{shown} was rendered");
        assert!(start.elapsed() < limit, "{shown} took {:?}", start.elapsed());
    }
}

#[test]
fn long_but_honest_templates_are_rendered() {
    let sum = format!("{{{{ 'x'{} }}}}", " + 'y'".repeat(1_000));
    let elifs = format!("{{% if 0 %}}{}{{% else %}}e{{% endif %}}", "{% elif 0 %}a".repeat(250));
    let nested = format!("{}x{}", "{% if 1 %}".repeat(60), "{% endif %}".repeat(60));
    let brackets = format!("{{{{ {}1{} }}}}", "(".repeat(30), ")".repeat(30));
    for source in [sum, elifs, nested, brackets, "{% for i in range(99999) %}{{ i }} {% endfor %}".to_owned()]
    {
        let template = Template::compile(&source, "long").unwrap();
        assert!(!render(&template, &[]).unwrap().text.is_empty());
    }
}
