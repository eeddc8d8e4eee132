//! Which tool-call format a template writes, found out by letting it write a call.
//!
//! Owns [`find_parser`]. No model's name and no word of the template is looked at: a call with known
//! name and arguments is rendered, and the format is the one whose parser reads that call back.

use serde_json::{Map, Value, json};

use super::incremental::{common_prefix, common_suffix};
use super::parse::{NAMES, Parser};
use super::render::render_conversation;
use super::template::{Now, RenderInput, Template};

const NAME: &str = "look_up";

/// The format in which a template writes calls; none if it writes none, or one we cannot read.
pub fn find_parser(template: &Template, vars: &Map<String, Value>) -> Option<Parser> {
    let call = json!({"id": "call00001", "type": "function",
                      "function": {"name": NAME, "arguments": {"word": "backsight"}}});
    let messages = [
        json!({"role": "user", "content": "What does it mean?"}),
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
    ];
    let asked = render(template, vars, &messages[..1], true)?;
    let whole = render(template, vars, &messages, false)?;
    let said = [messages[0].clone(), json!({"role": "assistant", "content": "It does not say."})];
    let plain = render(template, vars, &said, false)?;
    // What stands before the call may show how calls are written, and must not be taken for one; what ends every
    // message is no part of it.
    let start = common_prefix(&asked, &whole);
    let end = whole.len() - common_suffix(&plain, &whole);
    let written = whole.get(start..end)?;
    NAMES.into_iter().map(|(_, parser)| parser).find(|parser| reads_back(*parser, written))
}

fn render(
    template: &Template,
    vars: &Map<String, Value>,
    messages: &[Value],
    add_generation_prompt: bool,
) -> Option<String> {
    let parameters =
        json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
    let function = json!({"name": NAME, "description": "Looks up a word.", "parameters": parameters});
    let tools = [json!({"type": "function", "function": function})];
    let now = Some(Now::utc(0));
    let input = RenderInput { messages, tools: Some(&tools), add_generation_prompt, vars, now };
    render_conversation(template, &input, None).ok().map(|it| it.rendered.text)
}

fn reads_back(parser: Parser, written: &str) -> bool {
    let parsed = parser.parse(written, &[]);
    let [call] = parsed.calls.as_slice() else { return false };
    let arguments: Option<Value> = serde_json::from_str(&call.arguments).ok();
    call.name == NAME && arguments == Some(json!({"word": "backsight"}))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn check(call: &str, expected: Option<Parser>) {
        let source = format!(
            "{{% for m in messages %}}<s>{{{{ m.role }}}}: {{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}{{% set f = c.function %}}{call}{{% endfor %}}</s>{{% endfor %}}{{% if add_generation_prompt %}}<s>assistant: {{% endif %}}"
        );
        let template = Template::compile(&source, "t.jinja").unwrap();
        assert_eq!(find_parser(&template, &Map::new()), expected, "{call}");
    }

    #[test]
    fn formats_are_told_by_what_is_written() {
        let json = "{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}";
        check(&format!("<tool_call>\n{json}\n</tool_call>"), Some(Parser::Hermes));
        check(&format!("<longcat_tool_call>{json}</longcat_tool_call>"), Some(Parser::Longcat));
        check(&format!("[TOOL_CALLS] [{json}]"), Some(Parser::Mistral));
        check("[TOOL_CALLS]{{ f.name }}{{ f.arguments | tojson }}", Some(Parser::Mistral));
        check(json, Some(Parser::LlamaJson));
        let pairs =
            "{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}";
        check(
            &format!("<tool_call>\n<function={{{{ f.name }}}}>\n{pairs}</function>\n</tool_call>"),
            Some(Parser::Qwen3Coder),
        );
        let pairs = "{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}";
        check(&format!("<tool_call>{{{{ f.name }}}}\n{pairs}</tool_call>"), Some(Parser::Glm45));
    }

    #[test]
    fn a_template_without_calls_has_no_format() {
        check("", None);
        check("calls {{ f.name }}", None);
    }
}
