//! What a template leaves out without a word.
//!
//! A template that ignores what it is given is as bad as one that fails: the model would see an
//! empty action. Found out by rendering marked conversations and looking for the marks. A template
//! that refuses something does not drop it. Writing tools as text instead is left to `tool_text`.

use std::fmt;

use serde_json::{Map, Value, json};

use super::probe::{REASONING, calls, function, mark, marked, marked_arguments};
use super::template::{Now, RenderInput, Template, TemplateError};

/// What a template ignores whatever the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The tools' schemas.
    pub tools: bool,
    /// The name or the arguments of tool calls.
    pub tool_calls: bool,
    /// The content of tool messages.
    pub tool_results: bool,
    /// The reasoning of the last assistant message. (Many templates forget older reasoning on purpose.)
    pub reasoning: bool,
    /// The system message.
    pub system: bool,
}

impl Drops {
    /// What is dropped, in words.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.tools, "tool schemas"),
            (self.tool_calls, "tool calls"),
            (self.tool_results, "tool results"),
            (self.reasoning, "reasoning"),
            (self.system, "the system message"),
        ];
        all.into_iter().filter(|(is_dropped, _)| *is_dropped).map(|(_, name)| name).collect()
    }
}

/// A part of a message that can get lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The text of a system message.
    System,
    /// The reasoning of an assistant message.
    Reasoning,
    /// The name of a tool call.
    CallName,
    /// The arguments of a tool call.
    CallArguments,
    /// The text of a tool message.
    ToolResult,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "the system message",
            Self::Reasoning => "the reasoning",
            Self::CallName => "the name of the tool call",
            Self::CallArguments => "the arguments of the tool call",
            Self::ToolResult => "the tool's result",
        })
    }
}

/// Something of a conversation that is not in the rendered text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The message it belongs to.
    pub message_idx: usize,
    /// The tool call it belongs to, if it belongs to one.
    pub call_idx: Option<usize>,
    /// What is lost.
    pub part: Part,
}

/// Finds out what a template ignores, with conversations made for the purpose.
pub fn drops(template: &Template, vars: &Map<String, Value>, now: Option<Now>) -> Drops {
    let probe = Probe { template, vars, now };
    let exchange = probe.exchange();
    let lacks = |marks: &[String]| {
        exchange.as_ref().is_some_and(|text| !marks.iter().all(|mark| text.contains(mark.as_str())))
    };
    Drops {
        tools: probe.drops_tools(),
        tool_calls: lacks(&[mark("name", 1, 0), mark("key", 1, 0), mark("value", 1, 0)]),
        tool_results: lacks(&[mark("result", 2, 0)]),
        reasoning: probe.drops_reasoning(),
        system: probe.drops_system(),
    }
}

struct Probe<'a> {
    template: &'a Template,
    vars: &'a Map<String, Value>,
    now: Option<Now>,
}

impl Probe<'_> {
    /// The text, or nothing if the template refuses.
    fn render(&self, messages: &[Value], tools: Option<&[Value]>) -> Option<String> {
        let Self { template, vars, now } = *self;
        let input = RenderInput { messages, tools, add_generation_prompt: false, vars, now };
        template.render(&input).ok().map(|rendered| rendered.text)
    }

    fn user() -> Value {
        json!({"role": "user", "content": "Hello."})
    }

    fn drops_tools(&self) -> bool {
        let name = mark("tool", 0, 0);
        let text = self.render(&[Self::user()], Some(&[schema(&name)]));
        text.is_some_and(|text| !text.contains(&name))
    }

    fn drops_system(&self) -> bool {
        let system = mark("system", 0, 0);
        let text = self.render(&[json!({"role": "system", "content": system}), Self::user()], None);
        text.is_some_and(|text| !text.contains(&system))
    }

    fn drops_reasoning(&self) -> bool {
        let reasoning = mark("reasoning", 1, 0);
        let answer = json!({"role": "assistant", "content": "Yes.", "reasoning_content": reasoning});
        let text = self.render(&[Self::user(), answer], None);
        text.is_some_and(|text| !text.contains(&reasoning))
    }

    /// A user's question, a tool call and its result, in the first form the template takes.
    fn exchange(&self) -> Option<String> {
        let tools = [schema(&mark("name", 1, 0))];
        let object = marked_arguments(1, 0);
        let text = Value::String(object.to_string());
        let contents = [json!(""), Value::Null, json!("I look.")];
        let forms =
            contents.iter().flat_map(|content| [&object, &text].map(|arguments| (content, arguments)));
        let conversations = forms.map(|(content, arguments)| exchange(content, arguments));
        let mut refused_or_bad = None;
        for conversation in conversations {
            for tools in [Some(tools.as_slice()), None] {
                let Some(text) = self.render(&conversation, tools) else { continue };
                let shown = [mark("name", 1, 0), mark("value", 1, 0), mark("result", 2, 0)];
                if shown.iter().all(|mark| text.contains(mark.as_str())) {
                    return Some(text);
                }
                refused_or_bad.get_or_insert(text);
            }
        }
        refused_or_bad
    }
}

fn schema(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {}, "required": []});
    json!({"type": "function", "function": {"name": name, "description": "Looks.", "parameters": parameters}})
}

fn exchange(content: &Value, arguments: &Value) -> [Value; 3] {
    let name = mark("name", 1, 0);
    // Nine letters and digits, because some templates insist on that.
    let id = "probe0001";
    let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    [
        Probe::user(),
        json!({"role": "assistant", "content": content, "tool_calls": [call]}),
        json!({"role": "tool", "name": name, "tool_call_id": id, "content": mark("result", 2, 0)}),
    ]
}

/// Finds out what of a conversation does not reach the rendered text.
pub fn losses(template: &Template, input: &RenderInput<'_>) -> Result<Vec<Loss>, TemplateError> {
    let marked: Vec<Value> = input.messages.iter().enumerate().map(|(idx, it)| marked(idx, it)).collect();
    let text = template.render(&RenderInput { messages: &marked, ..*input })?.text;
    let messages = input.messages.iter().enumerate();
    Ok(messages.flat_map(|(idx, message)| message_losses(&text, idx, message)).collect())
}

fn message_losses(text: &str, message_idx: usize, message: &Value) -> Vec<Loss> {
    let is_lost = |what: &str, call_idx: usize| !text.contains(&mark(what, message_idx, call_idx));
    let mut lost = Vec::new();
    let mut note = |call_idx, part| lost.push(Loss { message_idx, call_idx, part });
    let has_content = message.get("content").is_some_and(|it| !it.is_null() && *it != json!(""));
    match message.get("role").and_then(Value::as_str) {
        Some("system" | "developer") if has_content && is_lost("system", 0) => note(None, Part::System),
        Some("tool") if has_content && is_lost("result", 0) => note(None, Part::ToolResult),
        _ => {}
    }
    let has_reasoning = REASONING.iter().any(|field| message.get(field).is_some_and(Value::is_string));
    if has_reasoning && is_lost("reasoning", 0) {
        note(None, Part::Reasoning);
    }
    for (call_idx, call) in calls(message).iter().enumerate() {
        if is_lost("name", call_idx) {
            note(Some(call_idx), Part::CallName);
        }
        let has_arguments = function(call).get("arguments").is_some_and(|it| !it.is_null());
        if has_arguments && (is_lost("key", call_idx) || is_lost("value", call_idx)) {
            note(Some(call_idx), Part::CallArguments);
        }
    }
    lost
}

/// Refuses a conversation of which a tool call is lost, even in part.
pub fn refuse_lost_calls(
    template: &Template,
    messages: &[Value],
    losses: &[Loss],
) -> Result<(), TemplateError> {
    let Some(first) = losses.iter().find(|loss| loss.call_idx.is_some()) else { return Ok(()) };
    let of_same_call =
        |loss: &&Loss| (loss.message_idx, loss.call_idx) == (first.message_idx, first.call_idx);
    let what = match (first.part, losses.iter().filter(of_same_call).count()) {
        (_, 2..) => "the name and the arguments",
        (Part::CallName, _) => "the name",
        _ => "the arguments",
    };
    let call = messages.get(first.message_idx).and_then(|message| calls(message).get(first.call_idx?));
    let tool = call.and_then(|call| function(call).get("name")?.as_str()).unwrap_or_default();
    Err(TemplateError::DroppedToolCall {
        origin: template.origin().to_owned(),
        message_idx: first.message_idx,
        tool: tool.to_owned(),
        what,
    })
}
