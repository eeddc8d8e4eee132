//! `chat render` and `chat parse`: what a model really sees, and what is read out of its answers.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::call::{Call, read_text};
use super::failure::Failure;
use super::now;
use super::output;
use super::stdout;
use backsight_chat::arguments::Conversion;
use backsight_chat::drops::{Loss, Part, drops, lost_answer};
use backsight_chat::error::TextError;
use backsight_chat::json::{self, BadJson};
use backsight_chat::messages;
use backsight_chat::near::Likeness;
use backsight_chat::parse::Parser;
use backsight_chat::render::{Rendering, needed_tool_text, render_conversation};
use backsight_chat::source::ChatTemplates;
use backsight_chat::spans::{self, Beyond, Border, Turn};
use backsight_chat::template::{Now, RenderInput, Template};
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::episode::{Role, ToolText};

pub(super) fn parse(call: &Call) -> Result<(), Failure> {
    let help = "choose one of those, or hermes when in doubt";
    let parser = Parser::from_name(&call.get::<String>("tool_call_parser")?)
        .map_err(|error| Failure::input(error, help))?;
    let tools = tools(call)?.unwrap_or_default();
    let parsed = parser.parse(&read_stdin()?, &tools);
    let calls = parsed
        .calls
        .iter()
        .map(|call| json!({"id": call.id, "name": call.name, "arguments": call.arguments}));
    let calls: Vec<Value> = calls.collect();
    stdout::json(&json!({"content": parsed.content, "tool_calls": calls, "malformed": parsed.malformed}))
}

pub(super) fn render(call: &Call) -> Result<(), Failure> {
    let model = call.tokenizer()?;
    let (job, generation) = (Job::read(call, model.as_deref())?, call.get("add_generation_prompt")?);
    let input = job.input(generation);
    let rendering = render_conversation(&job.template, &input, job.tool_text)?;
    job.tell(&rendering);
    let tokenizer = || tokenizer(model.as_deref());
    match call.get::<String>("format")?.as_str() {
        "text" => stdout::data(rendering.rendered.text.as_bytes()),
        "ids" => {
            let ids = tokenizer()?.encode(&rendering.rendered.text)?.ids;
            stdout::json(&json!(ids))
        }
        _ => stdout::json(&job.spans(&rendering, &tokenizer()?, generation)?),
    }
}

/// Everything a rendering needs, read and checked.
struct Job {
    template: Template,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    vars: Map<String, Value>,
    tool_text: Option<ToolText>,
    now: Option<Now>,
}

impl Job {
    fn read(call: &Call, model: Option<&Path>) -> Result<Self, Failure> {
        let (messages, own_tools) = read_conversation(&call.get::<PathBuf>("messages")?)?;
        let tools = tools(call)?.or(own_tools);
        let (template, mut vars) = read_template(model, call.get("template")?, tools.is_some())?;
        vars.extend(variables(call)?);
        let (tool_text, now) = (call.get::<String>("tool_text")?, time(call)?);
        let named = ToolText::from_name(&tool_text);
        let mut job = Self { template, messages, tools, vars, tool_text: named, now };
        if tool_text == "auto" {
            job.tool_text = needed_tool_text(&job.template, &job.input(false));
        }
        Ok(job)
    }

    fn input(&self, add_generation_prompt: bool) -> RenderInput<'_> {
        RenderInput {
            messages: &self.messages,
            tools: self.tools.as_deref(),
            add_generation_prompt,
            vars: &self.vars,
            now: self.now,
        }
    }

    /// Says on stderr what the template ignores in general, and what of this conversation was changed or lost.
    fn tell(&self, rendering: &Rendering) {
        let note = |text: String| output::talk(&format!("note: {text}"));
        let dropped = drops(&self.template, &self.vars, self.now).names().join(", ");
        if !dropped.is_empty() {
            note(format!("{} ignores {dropped}", self.template.origin()));
        }
        for Conversion { message_idx, call_idx, to } in &rendering.conversions {
            let form = to.name();
            note(format!("message {message_idx}: the arguments of call {call_idx} are passed as {form}"));
        }
        for message in &rendering.joined {
            note(format!("message {message}: its parts of text are passed as one string"));
        }
        for Loss { message_idx, part, .. } in &rendering.losses.parts {
            // What somebody said is never left out on purpose.
            let how = if *part == Part::Text { "warning" } else { "note" };
            let part = part.name();
            output::talk(&format!("{how}: message {message_idx}: {part} is not in the rendered text"));
        }
        let schemas = rendering.losses.schemas.join(", ");
        if !schemas.is_empty() {
            let what = "the schemas of these tools are not in the rendered text";
            output::talk(&format!("warning: {what}: {schemas}"));
        }
    }

    /// The spans of everything, as JSON.
    fn spans(
        &self,
        rendering: &Rendering,
        tokenizer: &Tokenizer,
        generation: bool,
    ) -> Result<Value, Failure> {
        // Every role was checked when it was read; the named rendering may have merged messages or added some.
        let role = |message: &Value| message["role"].as_str().and_then(Role::from_name);
        let roles: Vec<Role> = rendering.messages.iter().filter_map(role).collect();
        // A conversation with an action whose own words are not rendered is refused.
        let mut answers = (0..roles.len()).filter(|idx| roles[*idx] == Role::Assistant);
        let lost = |idx| lost_answer(&self.template, &rendering.messages, &rendering.losses, idx);
        answers.find_map(lost).map_or(Ok(()), Err)?;
        let tools = self.tools.as_deref().filter(|_| self.tool_text.is_none());
        let input = RenderInput { messages: &rendering.messages, tools, ..self.input(generation) };
        let growing = self.template.growing(&input)?;
        let (mut talk, likeness) = (&growing, Likeness::of(self.template.source(), &rendering.messages));
        let ids = tokenizer.encode(&rendering.rendered.text)?.ids;
        let (turns, sequences) = spans::turns_beside(&ids, &roles, &likeness, &mut talk, tokenizer)?;
        let borders = spans::borders(&roles, &ids, &likeness, &mut talk, tokenizer)?;
        let rows = roles.iter().zip(borders.windows(2)).enumerate();
        let rows: Vec<Value> =
            rows.map(|(idx, (role, place))| message_row(idx, *role, place, &turns, &sequences)).collect();
        let sequences: Vec<Value> =
            sequences.iter().map(|it| json!({"shared": it.shared, "ids": it.ids})).collect();
        let mut report = json!({
            "tokens": "rendered", "n_tokens": ids.len(), "ids": ids, "messages": rows, "sequences": sequences,
        });
        if generation && let Some(Some(last)) = borders.last() {
            report["generation_prompt"] = json!([last, ids.len()]);
        }
        Ok(report)
    }
}

/// One message: role, borders as far as they are known, and for an assistant's its action, in this rendering or as the student saw it.
fn message_row(
    idx: usize,
    role: Role,
    place: &[Option<usize>],
    turns: &[Turn],
    sequences: &[Beyond],
) -> Value {
    let mut row = json!({"role": role.name(), "start": place[0], "end": place[1]});
    let Ok(nth) = turns.binary_search_by_key(&idx, |turn| turn.message_idx) else { return row };
    let turn = &turns[nth];
    let action = json!([turn.span.start(), turn.span.end()]);
    if turn.span.end() <= sequences[turn.sequence].shared {
        row["action"] = action;
    } else {
        row["action"] = Value::Null;
        row["as_seen"] = json!({"sequence": turn.sequence, "action": action});
        row["reason"] = "this rendering shows the turn otherwise than the student saw it".into();
    }
    row["ended"] = turn.ended.into();
    if turn.border != Border::Prefix {
        row["border"] = turn.border.name().into();
    }
    row
}

/// A list of messages, or an object that holds one and perhaps tools.
fn read_conversation(path: &Path) -> Result<(Vec<Value>, Option<Vec<Value>>), Failure> {
    let mut json = read_json(path)?;
    let tools = match json.get_mut("tools").map(Value::take) {
        Some(Value::Array(tools)) => Some(tools),
        None | Some(Value::Null) => None,
        Some(other) => {
            let what = format!("tools must be a list, not {}", messages::kind(&other));
            return Err(Failure::input(named(path, what), "give a JSON list of tool schemas"));
        }
    };
    let json = json.get_mut("messages").map(Value::take).unwrap_or(json);
    let help = "give a JSON list of messages, each with `role` and `content`";
    messages::list_from_json(&json).map_err(|error| Failure::input(named(path, error), help))?;
    let Value::Array(raw) = json else { return Err(Failure::input(named(path, "not a list"), help)) };
    Ok((raw, tools))
}

/// The tools' schemas, where a file with them is named.
pub(super) fn tools(call: &Call) -> Result<Option<Vec<Value>>, Failure> {
    let help = "give a JSON list of tool schemas";
    let Some(path) = call.get::<Option<PathBuf>>("tools")? else { return Ok(None) };
    match read_json(&path)? {
        Value::Array(tools) => Ok(Some(tools)),
        _ => Err(Failure::input(named(&path, "not a list"), help)),
    }
}

/// The variables that templates are given.
pub(super) fn variables(call: &Call) -> Result<Map<String, Value>, Failure> {
    call.get::<Vec<String>>("var")?.iter().map(|var| parse_var(var)).collect()
}

/// The time that templates may print.
pub(super) fn time(call: &Call) -> Result<Option<Now>, Failure> {
    call.get::<Option<String>>("now")?.map(|text| now::parse(&text)).transpose()
}

/// The template that was asked for, and the special tokens it may print.
fn read_template(
    model: Option<&Path>,
    template: Option<PathBuf>,
    has_tools: bool,
) -> Result<(Template, Map<String, Value>), Failure> {
    let templates = match (model, template) {
        (Some(model), template) => ChatTemplates::open_with(model, template.as_deref()),
        (None, Some(file)) => ChatTemplates::from_file(&file),
        (None, None) => {
            let help = "give --tokenizer DIR, the model directory, or --template FILE";
            return Err(Failure::input("no template is named", help));
        }
    };
    let templates = templates?;
    Ok((templates.select(has_tools)?, templates.special_tokens().clone()))
}

fn tokenizer(model: Option<&Path>) -> Result<Tokenizer, Failure> {
    let help = "give --tokenizer DIR, the model directory with tokenizer.json";
    let dir = model.ok_or_else(|| Failure::input("ids and spans need a tokenizer", help))?;
    Tokenizer::open(dir).map_err(Failure::from)
}

fn parse_var(typed: &str) -> Result<(String, Value), Failure> {
    let (name, value) = typed.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        Failure::input(format!("--var {typed}: no `=`"), "write it like --var enable_thinking=false")
    })?;
    let value = match json::read(value) {
        Ok(value) => value,
        Err(BadJson::Syntax(_)) => Value::String(value.to_owned()),
        Err(error) => {
            return Err(Failure::input(format!("--var {name}: {error}"), "quote it, to give it as text"));
        }
    };
    Ok((name.to_owned(), value))
}

fn read_json(path: &Path) -> Result<Value, Failure> {
    let text = if path.as_os_str() == "-" { read_stdin()? } else { read_text(path)? };
    json::read(&text).map_err(|error| {
        let help = match error {
            BadJson::Syntax(_) => "check the file",
            BadJson::Inexact { .. } => "give the number as a string",
        };
        Failure::input(named(path, error), help)
    })
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    match std::io::stdin().read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::input(format!("stdin: {error}"), "pipe UTF-8 text in")),
    }
}

fn named(path: &Path, what: impl std::fmt::Display) -> String {
    format!("{}: {what}", path.display())
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        Self::input(&error, error.help())
    }
}
