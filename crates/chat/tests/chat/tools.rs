//! What templates do with tools: what they drop, which form of arguments and of text they want, and the
//! named renderings that stand in for them.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight_chat::arguments::{ArgumentForm, Conversion, prepare_messages};
use backsight_chat::drops::{Drops, Loss, Losses, Part, drops, losses, lost_answer};
use backsight_chat::render::render_conversation;
use backsight_chat::template::{RenderInput, Template};
use backsight_chat::tool_text;
use backsight_core::episode::ToolText;
use serde_json::{Map, Value, json};

/// Role and content only, as SmolLM2's template has it.
const ROLE_AND_CONTENT: &str =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}";
/// Shows everything it is given.
const EVERYTHING: &str = "{{ tools|tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}\
    {{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";
/// Wants arguments as text: an object cannot be added to a string.
const TEXT_ARGUMENTS: &str = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}\
    {{ '[' + c.function.name + ']' + c.function.arguments }}{% endfor %}{% endfor %}";
/// Wants arguments as an object: text has no items.
const OBJECT_ARGUMENTS: &str = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}\
    {% for k, v in c.function.arguments|items %}<{{ k }}>{{ v }}{% endfor %}{% endfor %}{% endfor %}";
/// Takes both forms.
const EITHER_ARGUMENTS: &str = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}\
    {{ c.function.arguments if c.function.arguments is string else c.function.arguments|tojson }}{% endfor %}{% endfor %}";
/// Knows three roles, and says so.
const NO_TOOL_ROLE: &str = "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}\
    {{ raise_exception('unknown role ' + m.role) }}{% endif %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
/// Passes over tool messages without a word.
const SILENT_TOOL_ROLE: &str =
    "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}\n{% endif %}{% endfor %}";
/// Shows the first call only.
const FIRST_CALL: &str = "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function|tojson }}\
    {% endif %}{% endfor %}";
/// Shows a call or a text, never both, as the templates of Llama 3 do.
const CALL_OR_TEXT: &str = "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}\
    {{ c.function|tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
/// Passes over text that is no string.
const STRINGS_ONLY: &str = "{% for m in messages %}{{ m.content if m.content is string }}{% endfor %}";
/// Keeps reasoning after the last question only.
const FORGETS_REASONING: &str = "{% for m in messages %}{{ m.content }}{% if loop.last %}{{ m.reasoning_content }}{% endif %}{% endfor %}";

fn template(source: &str) -> Template {
    Template::compile(source, "t.jinja").unwrap()
}

fn call(name: &str, arguments: Value) -> Value {
    json!({"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn conversation(arguments: &Value) -> Vec<Value> {
    vec![
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "Find it."}),
        json!({"role": "assistant", "content": "I look.", "tool_calls": [call("search", arguments.clone()), call("stop", json!({}))]}),
        json!({"role": "tool", "name": "search", "tool_call_id": "c1", "content": "found\n"}),
        json!({"role": "tool", "tool_call_id": "c2", "content": ""}),
        json!({"role": "assistant", "content": "Done."}),
    ]
}

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "search", "description": "é", "parameters": {"type": "object"}}}),
    ]
}

fn with_input<T>(messages: &[Value], tools: Option<&[Value]>, then: impl FnOnce(&RenderInput<'_>) -> T) -> T {
    then(&RenderInput { messages, tools, add_generation_prompt: false, vars: &Map::new(), now: None })
}

#[test]
fn what_a_template_ignores_is_found_out() {
    let all = Drops {
        tools: true,
        tool_calls: true,
        tool_results: true,
        reasoning: true,
        system: true,
        prose: true,
        text: true,
    };
    let none = Drops::default();
    let cases = [
        (ROLE_AND_CONTENT, Drops { tools: true, tool_calls: true, reasoning: true, ..none }),
        (EVERYTHING, none),
        (TEXT_ARGUMENTS, Drops { tools: true, reasoning: true, ..none }),
        (OBJECT_ARGUMENTS, Drops { tools: true, reasoning: true, ..none }),
        // A template that refuses tool messages does not drop them.
        (NO_TOOL_ROLE, Drops { tools: true, reasoning: true, ..none }),
        (
            SILENT_TOOL_ROLE,
            Drops { tools: true, tool_calls: true, tool_results: true, reasoning: true, ..none },
        ),
        (CALL_OR_TEXT, Drops { tools: true, reasoning: true, prose: true, ..none }),
        // Text in parts is joined for it.
        (STRINGS_ONLY, Drops { tools: true, tool_calls: true, reasoning: true, ..none }),
        ("{{ messages|length }}", all),
        ("{{ raise_exception('never') }}", none),
    ];
    for (source, expected) in cases {
        assert_eq!(drops(&template(source), &Map::new(), None), expected, "{source}");
    }
    assert_eq!(Drops { tools: true, system: true, ..none }.names(), ["tool schemas", "the system message"]);
}

#[test]
fn what_a_conversation_loses_is_found_out() {
    let loss = |message_idx, call_idx, part| Loss { message_idx, call_idx, part };
    let messages = conversation(&json!({"q": 1}));
    let both =
        |call_idx| [loss(2, Some(call_idx), Part::CallName), loss(2, Some(call_idx), Part::CallArguments)];
    let cases = [
        (EVERYTHING, vec![]),
        (CALL_OR_TEXT, vec![loss(2, None, Part::Text)]),
        (ROLE_AND_CONTENT, [both(0), both(1)].concat()),
        (FIRST_CALL, both(1).to_vec()),
        (SILENT_TOOL_ROLE, [&[both(0), both(1)].concat()[..], &[loss(3, None, Part::ToolResult)]].concat()),
    ];
    for (source, expected) in cases {
        let found = with_input(&messages, None, |input| losses(&template(source), input).unwrap());
        assert_eq!(found, Losses { parts: expected, schemas: vec![] }, "{source}");
    }
}

/// The parts of one message that a template loses.
fn lost(source: &str, message: Value) -> Vec<Part> {
    let messages = [json!({"role": "user", "content": "Why?"}), message];
    let found = with_input(&messages, None, |input| losses(&template(source), input).unwrap());
    found.parts.into_iter().map(|loss| loss.part).collect()
}

#[test]
fn what_somebody_says_is_looked_for_in_all_its_parts() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let assistant = |content: &str| json!({"role": "assistant", "content": content});
    const FIRST_PART: &str =
        "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}";
    const FORGETS_THOUGHT: &str = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}";
    const STARTS_AND_ENDS: &str = "{% for m in messages %}{% if not (m.content.startswith('<r>') and m.content.endswith('</r>')) %}{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(lost(FIRST_PART, json!({"role": "user", "content": parts})), [Part::Text]);
    assert_eq!(lost(ROLE_AND_CONTENT, json!({"role": "user", "content": parts})), []);
    assert_eq!(lost(FORGETS_THOUGHT, assistant("<think>\nsince\n</think>\n\nyes")), [Part::Reasoning]);
    assert_eq!(lost(FORGETS_THOUGHT, assistant("<think>\n\n</think>\n\nyes")), []);
    assert_eq!(lost(FORGETS_THOUGHT, assistant("<think>since</think>")), [Part::Reasoning]);
    assert_eq!(lost(STARTS_AND_ENDS, assistant("<r>x</r>")), [Part::Text]);
    assert_eq!(lost(STARTS_AND_ENDS, assistant("<r>x</r>.")), []);
    const USER_ONLY: &str = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
    assert_eq!(lost(USER_ONLY, assistant(" \n")), []);
    assert_eq!(lost(USER_ONLY, assistant("yes")), [Part::Text]);
}

#[test]
fn a_question_or_answer_that_is_lost_is_an_error_and_prose_beside_a_call_is_one_for_its_action() {
    let render = |source: &str, messages: &[Value], choice| {
        with_input(messages, None, |input| render_conversation(&template(source), input, choice))
    };
    let messages = conversation(&json!({"q": 1}));
    let error = render("{{ messages|length }}", &messages[..2], None).unwrap_err();
    assert_eq!(error.to_string(), "t.jinja: the template leaves out the text of message 1, a user's");
    let rendering = render(CALL_OR_TEXT, &messages, None).unwrap();
    let lost = |idx| lost_answer(&template(CALL_OR_TEXT), &rendering.messages, &rendering.losses, idx);
    let error = lost(2).unwrap();
    assert_eq!(
        error.to_string(),
        "t.jinja: the template leaves out the text of message 2, an assistant's beside a tool call"
    );
    assert!(error.help().contains("--tool-text hermes"), "{}", error.help());
    assert_eq!(lost(5), None);
    let rendering = render(CALL_OR_TEXT, &messages, Some(ToolText::Hermes)).unwrap();
    assert_eq!(rendering.losses, Losses::default());
}

#[test]
fn schemas_that_are_lost_are_named() {
    let (messages, tools) = (conversation(&json!({"q": 1})), tools());
    let lost = |source: &str, messages: &[Value], choice| {
        let rendering = with_input(messages, Some(&tools), |input| {
            render_conversation(&template(source), input, choice).unwrap()
        });
        rendering.losses.schemas
    };
    assert_eq!(lost(EVERYTHING, &messages, None), [""; 0]);
    assert_eq!(lost(ROLE_AND_CONTENT, &messages[..2], None), ["search"]);
    assert_eq!(lost(EVERYTHING, &messages, Some(ToolText::Flatten)), ["search"]);
    assert_eq!(lost(ROLE_AND_CONTENT, &messages, Some(ToolText::Hermes)), [""; 0]);
}

#[test]
fn an_integer_of_any_size_is_shown_as_it_is_or_refused() {
    let large = "{\"n\": 123456789012345678901234567890, \"z\": -0}";
    let messages = [json!({"role": "assistant", "content": "", "tool_calls": [call("f", json!(large))]})];
    let render = |source: &str, choice| {
        let rendering =
            with_input(&messages, None, |input| render_conversation(&template(source), input, choice));
        rendering.map(|rendering| rendering.rendered.text).map_err(|error| error.to_string())
    };
    let refused = "message 0: the arguments of call 0 hold the integer 123456789012345678901234567890, \
                   which is too large to be passed on exactly";
    assert_eq!(render(OBJECT_ARGUMENTS, None).unwrap_err(), refused);
    assert_eq!(render(TEXT_ARGUMENTS, None).unwrap(), format!("[f]{large}"));
    let hermes = render(ROLE_AND_CONTENT, Some(ToolText::Hermes)).unwrap();
    assert!(hermes.contains("\"arguments\": {\"n\": 123456789012345678901234567890, \"z\": 0}}"), "{hermes}");
    let zero = [json!({"role": "assistant", "content": "", "tool_calls": [call("f", json!("{\"z\": -0}"))]})];
    let text = with_input(&zero, None, |input| {
        render_conversation(&template(OBJECT_ARGUMENTS), input, None).unwrap().rendered.text
    });
    assert_eq!(text, "f<z>0");
}

#[test]
fn reasoning_that_is_forgotten_is_reported_and_no_error() {
    let answer = |text: &str| json!({"role": "assistant", "content": text, "reasoning_content": "since"});
    let messages = [json!({"role": "user", "content": "Why?"}), answer("A"), answer("B")];
    let rendering = with_input(&messages, None, |input| {
        render_conversation(&template(FORGETS_REASONING), input, None).unwrap()
    });
    assert_eq!(rendering.losses.parts, [Loss { message_idx: 1, call_idx: None, part: Part::Reasoning }]);
    assert_eq!(rendering.rendered.text, "Why?ABsince");
}

#[test]
fn a_dropped_call_is_an_error_that_names_the_way_out() {
    let messages = conversation(&json!({"q": 1}));
    let error =
        with_input(&messages, None, |input| render_conversation(&template(ROLE_AND_CONTENT), input, None))
            .unwrap_err();
    assert_eq!(
        error.to_string(),
        "t.jinja: the template leaves out the name and the arguments of the call of \"search\" in message 2"
    );
    assert!(error.help().contains("--tool-text hermes"), "{}", error.help());
    let error = with_input(&messages, None, |input| render_conversation(&template(FIRST_CALL), input, None))
        .unwrap_err();
    assert!(error.to_string().ends_with("of the call of \"stop\" in message 2"), "{error}");
}

#[test]
fn arguments_get_the_form_a_template_wants() {
    let object = json!({"q": "é", "n": 1.0});
    let text = json!("{\"q\": \"é\", \"n\": 1.0}");
    let no_json = json!("not json");
    let converted = |to| vec![Conversion { message_idx: 0, call_idx: 0, to }];
    let cases = [
        (TEXT_ARGUMENTS, &object, &text, converted(ArgumentForm::Text)),
        (TEXT_ARGUMENTS, &text, &text, vec![]),
        (OBJECT_ARGUMENTS, &text, &object, converted(ArgumentForm::Object)),
        (OBJECT_ARGUMENTS, &object, &object, vec![]),
        // Text through `tojson` would be quoted twice.
        (EVERYTHING, &text, &object, converted(ArgumentForm::Object)),
        (EITHER_ARGUMENTS, &text, &text, vec![]),
        (EITHER_ARGUMENTS, &object, &object, vec![]),
        // What is no JSON object cannot become one, and neither form helps a template that ignores both.
        (OBJECT_ARGUMENTS, &no_json, &no_json, vec![]),
        (ROLE_AND_CONTENT, &text, &text, vec![]),
    ];
    for (source, given, expected, conversions) in cases {
        let messages =
            [json!({"role": "assistant", "content": "", "tool_calls": [call("search", given.clone())]})];
        let (prepared, converted) =
            with_input(&messages, None, |input| prepare_messages(&template(source), input).unwrap());
        assert_eq!(prepared[0]["tool_calls"][0]["function"]["arguments"], *expected, "{source} {given}");
        assert_eq!(converted, conversions, "{source} {given}");
    }
}

/// Text in two parts.
fn in_parts(a: &str, b: &str) -> Value {
    json!([{"type": "text", "text": a}, {"type": "text", "text": b}])
}

#[test]
fn text_in_parts_is_joined_unless_the_template_shows_the_parts() {
    const LOOPS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}\
        {% else %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endif %}{% endfor %}";
    const ADDS: &str = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}";
    const DUMPS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content|tojson }}{% endfor %}";
    const FIRST: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content[0].text }}{% endfor %}";
    const STRINGS: &str =
        "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string }}{% endfor %}";
    const PRINTS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    // Shows the parts of users and fails on those of others.
    const USERS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' and m.content is not string %}\
        {% for p in m.content %}{{ p.text }}|{% endfor %}{% else %}{{ '' + m.content }}{% endif %}{% endfor %}";
    let messages = [
        json!({"role": "system", "content": in_parts("be ", "brief")}),
        json!({"role": "user", "content": in_parts("a", "b")}),
        json!({"role": "assistant", "content": "c"}),
        json!({"role": "user", "content": [{"text": "d"}]}),
        json!({"role": "assistant", "content": in_parts("e", "f")}),
    ];
    let plain = "<system>be brief<user>ab<assistant>c<user>d<assistant>ef";
    let cases = [
        (LOOPS, "<system>be |brief|<user>a|b|<assistant>c<user>d|<assistant>e|f|", &[][..]),
        (USERS, "<system>be brief<user>a|b|<assistant>c<user>d|<assistant>ef", &[0, 4]),
        (ADDS, plain, &[0, 1, 3, 4]),
        (DUMPS, plain, &[0, 1, 3, 4]),
        (STRINGS, plain, &[0, 1, 3, 4]),
        (PRINTS, plain, &[0, 1, 3, 4]),
        // One part is shown whole, two are not.
        (FIRST, plain, &[0, 1, 4]),
    ];
    for (source, expected, joined) in cases {
        for choice in [None, Some(ToolText::Hermes), Some(ToolText::Flatten)] {
            let rendering = with_input(&messages, None, |input| {
                render_conversation(&template(source), input, choice).unwrap()
            });
            assert_eq!(
                (rendering.rendered.text.as_str(), &rendering.joined[..]),
                (expected, joined),
                "{source}"
            );
            assert_eq!(rendering.losses, Losses::default(), "{source}");
        }
    }
}

#[test]
fn text_in_parts_keeps_no_arguments_from_their_form() {
    let text = json!("{\"q\": 1}");
    let source = OBJECT_ARGUMENTS.replace("{{ m.content }}", "{{ '' + m.content }}");
    let messages = [
        json!({"role": "user", "content": in_parts("a", "b")}),
        json!({"role": "assistant", "content": in_parts("c", "d"), "tool_calls": [call("search", text)]}),
    ];
    let rendering =
        with_input(&messages, None, |input| render_conversation(&template(&source), input, None).unwrap());
    assert_eq!(rendering.rendered.text, "abcdsearch<q>1");
    assert_eq!((rendering.conversions.len(), rendering.joined), (1, vec![0, 1]));
}

#[test]
fn parts_that_are_no_text_are_left_to_the_template() {
    let image = json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "b"}]);
    let messages = [json!({"role": "user", "content": image})];
    let source =
        "{% for m in messages %}{% for p in m.content %}{{ p.text or '[image]' }}{% endfor %}{% endfor %}";
    let rendering =
        with_input(&messages, None, |input| render_conversation(&template(source), input, None).unwrap());
    assert_eq!((rendering.rendered.text.as_str(), &rendering.joined[..]), ("a[image]", &[][..]));
}

#[test]
fn hermes_writes_tools_as_text() {
    let messages = conversation(&json!({"q": "é <b>"}));
    let tools = tools();
    let text = |source: &str, messages: &[Value], tools: Option<&[Value]>| {
        let choice = Some(ToolText::Hermes);
        with_input(messages, tools, |input| {
            render_conversation(&template(source), input, choice).unwrap().rendered.text
        })
    };
    let rendered = text(ROLE_AND_CONTENT, &messages, Some(&tools));
    let system = rendered.split("</system>").next().unwrap();
    assert!(system.starts_with("<system>Be brief.\n\n# Tools\n"), "{system}");
    let schema = "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"search\", \"description\": \"é\", \
                  \"parameters\": {\"type\": \"object\"}}}\n</tools>";
    assert!(system.contains(schema), "{system}");
    let rest = rendered.split_once("</system>").unwrap().1;
    let calls = "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"q\": \"é <b>\"}}\n</tool_call>\n\
                 <tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
    let expected = format!(
        "<user>Find it.</user><assistant>I look.\n{calls}</assistant><tool>found\n</tool><tool></tool><assistant>Done.</assistant>"
    );
    assert_eq!(rest, expected);
    let responses = "<user><tool_response>\nfound\n\n</tool_response>\n<tool_response>\n\n</tool_response>\n";
    for source in [NO_TOOL_ROLE, SILENT_TOOL_ROLE] {
        let rendered = text(source, &messages, None);
        assert!(rendered.contains(responses), "{rendered}");
        assert!(rendered.starts_with("<system>Be brief.\n<user>"), "{rendered}");
    }
    let rendered = text(ROLE_AND_CONTENT, &messages[1..2], Some(&tools));
    assert!(rendered.starts_with("<system># Tools\n"), "{rendered}");
}

#[test]
fn hermes_takes_arguments_as_they_are() {
    let cases = [
        (json!("{\"a\": 1}"), "{\"a\": 1}"),
        (json!("no json"), "\"no json\""),
        (json!("[1]"), "\"[1]\""),
        (json!({"a": 2.0}), "{\"a\": 2.0}"),
        (Value::Null, "{}"),
    ];
    for (arguments, expected) in cases {
        let messages = [json!({"role": "assistant", "content": null, "tool_calls": [call("f", arguments)]})];
        let written = with_input(&messages, None, |input| {
            tool_text::apply(ToolText::Hermes, &template(ROLE_AND_CONTENT), input)
        });
        let expected = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {expected}}}\n</tool_call>");
        assert_eq!(written, [json!({"role": "assistant", "content": expected})]);
    }
}

#[test]
fn flatten_is_the_published_scorers_form() {
    let assistant =
        |content: Value, calls: Value| json!({"role": "assistant", "content": content, "tool_calls": calls});
    let cases = [
        (
            json!({"role": "tool", "name": "bash", "content": "out"}),
            json!({"role": "user", "content": "[Tool Result: bash]\nout"}),
        ),
        (json!({"role": "tool"}), json!({"role": "user", "content": "[Tool Result: tool]\n"})),
        (
            json!({"role": "tool", "content": null}),
            json!({"role": "user", "content": "[Tool Result: tool]\nNone"}),
        ),
        (
            json!({"role": "tool", "name": "bash", "content": in_parts("o", "ut")}),
            json!({"role": "user", "content": "[Tool Result: bash]\nout"}),
        ),
        (json!({"role": "user", "content": "x"}), json!({"role": "user", "content": "x"})),
        (
            assistant(json!("text"), json!([call("f", json!("{\"a\": 1}")), call("g", json!({"b": "é"}))])),
            json!({"role": "assistant", "content": "text\n[Tool Call: f]\n{\"a\": 1}\n[Tool Call: g]\n{\"b\": \"é\"}"}),
        ),
        (
            assistant(json!(""), json!([call("f", json!({"arguments": "{\"x\": 2}"}))])),
            json!({"role": "assistant", "content": "[Tool Call: f]\n{\"x\": 2}"}),
        ),
        (
            assistant(
                Value::Null,
                json!([call("f", json!({"arguments": null})), {"function": {}}, call("g", json!(5))]),
            ),
            json!({"role": "assistant", "content": "[Tool Call: f]\n{\"arguments\": null}\n[Tool Call: ?]\n{}\n[Tool Call: g]\n5"}),
        ),
        (
            assistant(
                Value::Null,
                json!([call("f", json!({"arguments": ""})), call("g", json!([1])), call("h", json!(""))]),
            ),
            json!({"role": "assistant", "content": "[Tool Call: f]\n\n[Tool Call: g]\n[1]\n[Tool Call: h]\n"}),
        ),
        (assistant(json!("kept"), json!([])), assistant(json!("kept"), json!([]))),
    ];
    for (message, expected) in cases {
        let messages = [message];
        let flat = with_input(&messages, None, |input| {
            tool_text::apply(ToolText::Flatten, &template(ROLE_AND_CONTENT), input)
        });
        assert_eq!(flat, [expected]);
    }
}
