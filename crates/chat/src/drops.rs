//! What a template leaves out without a word.
//!
//! A template that ignores what it is given is as bad as one that fails: the model would see an
//! empty action. Found out by rendering marked conversations and looking for the marks. A template
//! that refuses something does not drop it. Writing tools as text instead is left to `tool_text`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::error::TextError;
use super::probe::{calls, function, mark, marked, marked_tools, marks, role, texts, thought_and_prose};
use super::template::{Now, RenderInput, Template};
use crate::messages::REASONING_FIELDS;
use backsight_core::named;

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
    /// What the assistant says beside a tool call.
    pub prose: bool,
    /// What users and assistants say at all.
    pub text: bool,
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
            (self.prose, "text beside tool calls"),
            (self.text, "text"),
        ];
        all.into_iter().filter(|(is_dropped, _)| *is_dropped).map(|(_, name)| name).collect()
    }
}

/// A part of a message that can get lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The text of a system message.
    System,
    /// What a user or an assistant says.
    Text,
    /// The reasoning of an assistant message.
    Reasoning,
    /// The name of a tool call.
    CallName,
    /// The arguments of a tool call.
    CallArguments,
    /// The text of a tool message.
    ToolResult,
}

named!(
    Part: System = "the system message", Text = "the text", Reasoning = "the reasoning",
    CallName = "the name of the tool call", CallArguments = "the arguments of the tool call",
    ToolResult = "the tool's result"
);

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
    // What is lost, or nothing if the template refuses.
    let losses = |messages: &[Value], tools: Option<&[Value]>| {
        losses(template, &RenderInput { messages, tools, add_generation_prompt: false, vars, now }).ok()
    };
    let says = |role: &str| json!({"role": role, "content": "Hello."});
    let thinks = json!({"role": "assistant", "content": "Yes.", "reasoning_content": "I see."});
    let talk = losses(&[says("user"), says("assistant")], None);
    let framed = losses(&[says("system"), says("user")], None);
    let thought = losses(&[says("user"), thinks], None);
    let told = losses(&[says("user")], Some(&[schema()]));
    let exchange = losses_of_exchange(losses, &[json!(""), Value::Null, json!("I look.")], |it| {
        !it.calls() && !it.has(2, Part::ToolResult)
    });
    // Asked of what shows the call; a template that shows no call is asked about its text all the same.
    let beside = losses_of_exchange(losses, &[json!("I look.")], |it| !it.has(1, Part::CallName));
    let is = |losses: &Option<Losses>, lost: fn(&Losses) -> bool| losses.as_ref().is_some_and(lost);
    Drops {
        tools: is(&told, |it| !it.schemas.is_empty()),
        tool_calls: is(&exchange, Losses::calls),
        tool_results: is(&exchange, |it| it.has(2, Part::ToolResult)),
        reasoning: is(&thought, |it| it.has(1, Part::Reasoning)),
        system: is(&framed, |it| it.has(0, Part::System)),
        prose: is(&beside, |it| it.has(1, Part::Text)),
        text: is(&talk, |it| it.has(0, Part::Text) || it.has(1, Part::Text)),
    }
}

/// What is lost of a question, a tool call beside one of these contents, and its result: in the first form of which
/// the template shows enough, else in the first that it takes.
fn losses_of_exchange(
    losses: impl Fn(&[Value], Option<&[Value]>) -> Option<Losses>,
    contents: &[Value],
    is_enough: impl Fn(&Losses) -> bool,
) -> Option<Losses> {
    let object = json!({"key": "value"});
    let text = Value::String(object.to_string());
    let forms = contents.iter().flat_map(|content| [&object, &text].map(|form| (content, form)));
    let mut first = None;
    for (content, arguments) in forms {
        for tools in [Some([schema()].as_slice()), None] {
            let Some(losses) = losses(&exchange(content, arguments), tools) else { continue };
            if is_enough(&losses) {
                return Some(losses);
            }
            first.get_or_insert(losses);
        }
    }
    first
}

fn schema() -> Value {
    let parameters = json!({"type": "object", "properties": {}, "required": []});
    json!({"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": parameters}})
}

fn exchange(content: &Value, arguments: &Value) -> [Value; 3] {
    // Nine letters and digits, because some templates insist on that.
    let id = "probe0001";
    let call = json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
    [
        json!({"role": "user", "content": "Hello."}),
        json!({"role": "assistant", "content": content, "tool_calls": [call]}),
        json!({"role": "tool", "name": "look", "tool_call_id": id, "content": "It is there."}),
    ]
}

/// What of a conversation is not in the rendered text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Parts of messages.
    pub parts: Vec<Loss>,
    /// The tools whose schemas are lost, by name.
    pub schemas: Vec<String>,
}

impl Losses {
    /// Whether that part of a message is lost.
    fn has(&self, message_idx: usize, part: Part) -> bool {
        self.parts.iter().any(|loss| (loss.message_idx, loss.part) == (message_idx, part))
    }

    /// Whether a tool call is lost, even in part.
    fn calls(&self) -> bool {
        self.parts.iter().any(|loss| loss.call_idx.is_some())
    }
}

/// Finds out what of a conversation does not reach the rendered text.
pub fn losses(template: &Template, input: &RenderInput<'_>) -> Result<Losses, TextError> {
    let marked: Vec<Value> = input.messages.iter().enumerate().map(|(idx, it)| marked(idx, it)).collect();
    let tools = input.tools.map(marked_tools);
    let text = template.render(&RenderInput { messages: &marked, tools: tools.as_deref(), ..*input })?.text;
    let shown = marks(&text);
    let messages = input.messages.iter().enumerate();
    let parts = messages.flat_map(|(idx, message)| message_losses(&shown, idx, message)).collect();
    let tools = input.tools.unwrap_or_default().iter().enumerate();
    let lost = tools.filter(|(tool_idx, _)| !shown.contains_key(mark("tool", 0, *tool_idx).as_str()));
    Ok(Losses { parts, schemas: lost.map(|(_, tool)| tool_name(tool)).collect() })
}

/// The name a schema gives its tool.
pub(super) fn tool_name(schema: &Value) -> String {
    function(schema).get("name").and_then(Value::as_str).unwrap_or("?").to_owned()
}

fn message_losses(shown: &HashMap<&str, Vec<usize>>, message_idx: usize, message: &Value) -> Vec<Loss> {
    let is_lost = |what: &str, nth: usize| !shown.contains_key(mark(what, message_idx, nth).as_str());
    let mut lost = Vec::new();
    let mut note = |call_idx, part| lost.push(Loss { message_idx, call_idx, part });
    let (what, part) = match role(message) {
        "system" | "developer" => ("system", Part::System),
        "tool" => ("result", Part::ToolResult),
        _ => ("text", Part::Text),
    };
    let (words, thoughts) = said(message);
    if words.into_iter().any(|nth| is_lost(what, nth)) {
        note(None, part);
    }
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let has_reasoning = REASONING_FIELDS.iter().any(|field| message.get(field).is_some_and(is_text));
    let is_forgotten = thoughts.into_iter().any(|nth| is_lost("thought", nth));
    if is_forgotten || (has_reasoning && is_lost("reasoning", 0)) {
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

/// Which of a message's texts say something, and which hold thinking.
fn said(message: &Value) -> (Vec<usize>, Vec<usize>) {
    let (mut words, mut thoughts) = (Vec::new(), Vec::new());
    for (nth, text) in texts(message).into_iter().enumerate() {
        let (thought, prose) =
            if role(message) == "assistant" { thought_and_prose(text) } else { (None, text) };
        words.extend((!prose.trim().is_empty()).then_some(nth));
        let thought = thought.map(|thought| thought.trim().trim_start_matches("<think>"));
        thoughts.extend(thought.is_some_and(|thought| !thought.is_empty()).then_some(nth));
    }
    (words, thoughts)
}

/// Refuses a conversation that would be another one: a question or an answer is lost altogether.
///
/// What an assistant says beside a call is another matter: the call is still there, and some models are
/// trained to see no more of their own past. Only who needs the action whole refuses that too ([`lost_answer`]).
pub fn refuse_lost_text(template: &Template, messages: &[Value], losses: &Losses) -> Result<(), TextError> {
    let texts = losses.parts.iter().filter(|loss| loss.part == Part::Text);
    match texts.map(|loss| loss.message_idx).find(|idx| calls(&messages[*idx]).is_empty()) {
        Some(message_idx) => Err(dropped_text(template, message_idx, &messages[message_idx])),
        None => Ok(()),
    }
}

/// The error of an action whose own words are not in the rendered text; its tokens would not be those that were sampled.
pub fn lost_answer(
    template: &Template,
    messages: &[Value],
    losses: &Losses,
    message_idx: usize,
) -> Option<TextError> {
    losses.has(message_idx, Part::Text).then(|| dropped_text(template, message_idx, &messages[message_idx]))
}

fn dropped_text(template: &Template, message_idx: usize, message: &Value) -> TextError {
    let whose = if role(message) == "assistant" { "an assistant's" } else { "a user's" };
    let (beside, help) = match calls(message) {
        [] => ("", "give each message's content as one string, or another template with --template FILE"),
        _ => (
            " beside a tool call",
            "write calls as text behind it with --tool-text hermes or --tool-text flatten",
        ),
    };
    let origin = template.origin();
    let what =
        format!("{origin}: the template leaves out the text of message {message_idx}, {whose}{beside}");
    TextError::new(what, help)
}

/// Refuses a conversation of which a tool call is lost, even in part.
pub fn refuse_lost_calls(template: &Template, messages: &[Value], losses: &Losses) -> Result<(), TextError> {
    let losses = &losses.parts;
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
    let (origin, message_idx) = (template.origin(), first.message_idx);
    Err(TextError::new(
        format!("{origin}: the template leaves out {what} of the call of {tool:?} in message {message_idx}"),
        "choose how tool calls are written with --tool-text hermes or --tool-text flatten",
    ))
}
