//! What a template leaves out without a word.
//!
//! A template that ignores what it is given is as bad as one that fails: the model would see an
//! empty action. Found out by rendering marked conversations and looking for the marks. A template
//! that refuses something does not drop it. Writing tools as text instead is left to `tool_text`.

use std::collections::HashMap;
use std::fmt;

use serde_json::{Map, Value, json};

use super::probe::{
    calls, function, mark, marked, marked_arguments, marked_tools, marks, role, texts, thought_and_prose,
};
use super::template::{Now, RenderInput, Template, TemplateError};
use crate::messages::REASONING_FIELDS;

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

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "the system message",
            Self::Text => "the text",
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
    let calls = ["name", "key", "value"].map(|what| mark(what, 1, 0));
    Drops {
        tools: probe.drops_tools(),
        tool_calls: lacks(exchange.as_ref(), &calls.each_ref()),
        tool_results: lacks(exchange.as_ref(), &[&mark("result", 2, 0)]),
        reasoning: probe.drops_reasoning(),
        system: probe.drops_system(),
        prose: probe.drops_prose(),
        text: probe.drops_text(),
    }
}

fn lacks(text: Option<&String>, marks: &[&String]) -> bool {
    text.is_some_and(|text| !marks.iter().all(|mark| text.contains(mark.as_str())))
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

    /// Whether a template that takes the conversation leaves one of the marks in it out.
    fn drops(&self, messages: &[Value], tools: Option<&[Value]>, marks: &[&String]) -> bool {
        lacks(self.render(messages, tools).as_ref(), marks)
    }

    fn drops_tools(&self) -> bool {
        let name = mark("tool", 0, 0);
        self.drops(&[Self::user()], Some(&[schema(&name)]), &[&name])
    }

    fn drops_system(&self) -> bool {
        let system = mark("system", 0, 0);
        self.drops(&[json!({"role": "system", "content": system}), Self::user()], None, &[&system])
    }

    fn drops_reasoning(&self) -> bool {
        let reasoning = mark("reasoning", 1, 0);
        let answer = json!({"role": "assistant", "content": "Yes.", "reasoning_content": reasoning});
        self.drops(&[Self::user(), answer], None, &[&reasoning])
    }

    fn drops_text(&self) -> bool {
        let [question, answer] = [0, 1].map(|idx| mark("text", idx, 0));
        let messages =
            [json!({"role": "user", "content": question}), json!({"role": "assistant", "content": answer})];
        self.drops(&messages, None, &[&question, &answer])
    }

    /// Looks at what shows the call; a template that shows no call is asked about its text all the same.
    fn drops_prose(&self) -> bool {
        let (words, name) = (mark("text", 1, 0), mark("name", 1, 0));
        let object = marked_arguments(1, 0);
        let forms = [object.clone(), Value::String(object.to_string())];
        let tools = [schema(&name)];
        let texts = forms.iter().flat_map(|arguments| {
            let messages = exchange(&json!(words), arguments);
            [Some(tools.as_slice()), None].map(|tools| self.render(&messages, tools))
        });
        let texts: Vec<String> = texts.flatten().collect();
        let shown = texts.iter().find(|text| text.contains(&name)).or(texts.first());
        shown.is_some_and(|text| !text.contains(&words))
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

/// What of a conversation is not in the rendered text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Parts of messages.
    pub parts: Vec<Loss>,
    /// The tools whose schemas are lost, by name.
    pub schemas: Vec<String>,
}

/// Finds out what of a conversation does not reach the rendered text.
pub fn losses(template: &Template, input: &RenderInput<'_>) -> Result<Losses, TemplateError> {
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
pub fn refuse_lost_text(
    template: &Template,
    messages: &[Value],
    losses: &Losses,
) -> Result<(), TemplateError> {
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
) -> Option<TemplateError> {
    let lost = losses.parts.iter().any(|loss| loss.part == Part::Text && loss.message_idx == message_idx);
    lost.then(|| dropped_text(template, message_idx, &messages[message_idx]))
}

fn dropped_text(template: &Template, message_idx: usize, message: &Value) -> TemplateError {
    let origin = template.origin().to_owned();
    let beside_call = !calls(message).is_empty();
    let whose = if role(message) == "assistant" { "an assistant's" } else { "a user's" };
    TemplateError::DroppedText { origin, message_idx, whose, beside_call }
}

/// Refuses a conversation of which a tool call is lost, even in part.
pub fn refuse_lost_calls(
    template: &Template,
    messages: &[Value],
    losses: &Losses,
) -> Result<(), TemplateError> {
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
    Err(TemplateError::DroppedToolCall {
        origin: template.origin().to_owned(),
        message_idx: first.message_idx,
        tool: tool.to_owned(),
        what,
    })
}
