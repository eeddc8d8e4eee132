//! The one way our own conversations are rendered.
//!
//! Puts the pieces in order: the form of arguments, or the named rendering of tools that was chosen instead; the form
//! of text; the template itself; the search for what gets lost. Nothing is chosen silently, and
//! what was done is part of the answer.

use serde_json::Value;

use super::arguments::{Conversion, prepare_messages};
use super::drops::{Losses, Part, drops, losses, refuse_lost_calls, refuse_lost_text, tool_name};
use super::error::TextError;
use super::parts::settle;
use super::probe::calls;
use super::template::{RenderInput, Rendered, Template};
use super::tool_text;
use backsight_core::episode::ToolText;

/// A rendered conversation, and what was done to it on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendering {
    /// The text.
    pub rendered: Rendered,
    /// The messages as the template was given them.
    pub messages: Vec<Value>,
    /// Tool calls whose arguments were passed in another form.
    pub conversions: Vec<Conversion>,
    /// Those of the messages whose parts of text were joined.
    pub joined: Vec<usize>,
    /// What the template left out. Never a tool call, nor the text of a message that is nothing else.
    pub losses: Losses,
}

/// Renders a conversation with the template's own tool format, or with a named one.
///
/// Without a named one, a tool call that the template leaves out is an error; with or without, so is the
/// text of a message that is nothing else.
pub fn render_conversation(
    template: &Template,
    input: &RenderInput<'_>,
    tool_text: Option<ToolText>,
) -> Result<Rendering, TextError> {
    let given_tools = input.tools;
    let Given { messages, tools, conversions, joined } = given(template, input, tool_text)?;
    let input = RenderInput { messages: &messages, tools, ..*input };
    let rendered = template.render(&input)?;
    let mut losses = losses(template, &input)?;
    refuse_lost_calls(template, &messages, &losses)?;
    refuse_lost_text(template, &messages, &losses)?;
    if tool_text == Some(ToolText::Flatten) {
        losses.schemas = given_tools.unwrap_or_default().iter().map(tool_name).collect();
    }
    Ok(Rendering { rendered, messages, conversions, joined, losses })
}

/// A conversation as its template is given it, and what was done to it.
pub(super) struct Given<'a> {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Option<&'a [Value]>,
    conversions: Vec<Conversion>,
    joined: Vec<usize>,
}

/// Gives a conversation the form its template wants, with tools as the template or a named rendering writes them.
pub(super) fn given<'a>(
    template: &Template,
    input: &RenderInput<'a>,
    tool_text: Option<ToolText>,
) -> Result<Given<'a>, TextError> {
    let (messages, tools, conversions) = match tool_text {
        Some(choice) => (tool_text::apply(choice, template, input), None, Vec::new()),
        None => {
            let (messages, conversions) = prepare_messages(template, input)?;
            (messages, input.tools, conversions)
        }
    };
    let (messages, joined) = settle(template, &RenderInput { messages: &messages, tools, ..*input });
    Ok(Given { messages, tools, conversions, joined })
}

/// The named rendering a conversation needs because its template leaves out its tools, their calls, or what stands beside a call; `None` where the template serves.
pub fn needed_tool_text(template: &Template, input: &RenderInput<'_>) -> Option<ToolText> {
    let has_tools = input.tools.is_some_and(|tools| !tools.is_empty());
    let has_calls = input.messages.iter().any(|message| !calls(message).is_empty());
    let dropped = drops(template, input.vars, input.now);
    let loses_tools = (has_tools && dropped.tools) || (has_calls && dropped.tool_calls);
    (loses_tools || (has_calls && loses_text(template, input))).then_some(ToolText::Hermes)
}

/// Whether a message of this conversation is not shown with its text.
fn loses_text(template: &Template, input: &RenderInput<'_>) -> bool {
    let rendering = render_conversation(template, input, None);
    rendering.is_ok_and(|it| it.losses.parts.iter().any(|loss| loss.part == Part::Text))
}
