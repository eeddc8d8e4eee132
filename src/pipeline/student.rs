//! How a student is spoken to, and that its server can do what is needed of it.
//!
//! Owns the choice between exact tokens and a chat route, the choice of template and tool-call format,
//! and the refusal of servers whose answers could not be trusted. Opening a model is `model`'s business.

use std::fs;
use std::sync::Arc;

use crate::agent::Speech;
use crate::agent::tools::schema;
use crate::config::parts::SpeechPart;
use crate::model::Error;
use crate::model::Opened;
use crate::model::kinds::names_of;
use crate::model::notice::Notices;
use crate::model::probe::{Findings, lacks_vocab};
use backsight_chat::detect::find_parser;
use backsight_chat::format::ChatFormat;
use backsight_chat::parse::Parser;
use backsight_chat::render::needed_tool_text;
use backsight_chat::source::ChatTemplates;
use backsight_chat::template::{Now, RenderInput, Template};
use backsight_core::episode::ToolText;

/// Checks what was found out about a server; what a person should know goes to `notices`.
pub fn check_server(opened: &Opened, findings: &Findings, notices: &Notices) -> Result<(), Error> {
    let server = &opened.info.model;
    let notes = || findings.notes.first().map(|note| format!(": {note}")).unwrap_or_default();
    if lacks_vocab(opened) {
        return Err(no_tokenizer(opened));
    }
    if !findings.limits.token_ids {
        let what = "takes no token ids, so episodes are recorded as rendered text";
        notices.add(format!("{server} behind {} {what}", opened.info.kind.name));
        // A server that cannot be talked to at all shows it in the notes.
        return match (findings.deterministic, findings.notes.is_empty()) {
            (None, false) => Err(unsupported(server, format!("be talked to{}", notes()))),
            _ => Ok(()),
        };
    }
    if findings.ids_in != Some(true) || findings.ids_out != Some(true) {
        return Err(unsupported(server, format!("sample from token ids{}", notes())));
    }
    if findings.tokenizer_agrees == Some(false) {
        return Err(Error::invalid(
            format!("the tokenizer here gives other ids than the server's for {server}"),
            "name the model's own with --tokenizer DIR",
        ));
    }
    if findings.self_test_ok() == Some(false) {
        notices.add(format!(
            "{server} gives other logprobs for a token as sample than as prompt; see `backsight probe`"
        ));
    }
    Ok(())
}

/// How the student is spoken to.
pub fn speech(opened: &Opened, part: &SpeechPart) -> Result<Speech, Error> {
    let parser = part.tool_call_parser.as_deref().map(Parser::from_name).transpose();
    let parser = parser
        .map_err(|error| Error::invalid(error.to_string(), "choose one of those with --tool-call-parser"))?;
    if !opened.model.limits().token_ids {
        return Ok(Speech::Chat(parser));
    }
    let (path, tokenizer) = opened.tokenizer.as_ref().ok_or_else(|| no_tokenizer(opened))?;
    let source = |error: backsight_chat::error::TextError| Error::invalid(error.to_string(), error.help());
    let templates = ChatTemplates::open_with(path, part.template.as_deref()).map_err(source)?;
    let (template, vars) = (templates.select(true).map_err(source)?, templates.special_tokens().clone());
    let tool_text = choose_tool_text(&template, &vars, part)?;
    let found = match tool_text {
        Some(_) => Some(Parser::Hermes),
        None => find_parser(&template, &vars),
    };
    let parser = parser.or(found).ok_or_else(|| unknown_format(&template))?;
    Ok(Speech::Exact(Arc::new(ChatFormat::new(template, vars, Arc::clone(tokenizer), parser, tool_text))))
}

fn choose_tool_text(
    template: &Template,
    vars: &serde_json::Map<String, serde_json::Value>,
    part: &SpeechPart,
) -> Result<Option<ToolText>, Error> {
    let chosen = ToolText::from_name(&part.tool_text);
    if chosen == Some(ToolText::Flatten) {
        let what = "calls in the rendering `flatten` cannot be read back, so no student can make them";
        return Err(Error::invalid(what.to_owned(), "choose --tool-text hermes or auto"));
    }
    if chosen.is_some() || part.tool_text == "none" {
        return Ok(chosen);
    }
    let tools = schema::schemas();
    let messages = [serde_json::json!({"role": "user", "content": "."})];
    let now = Some(Now::utc(0));
    let input =
        RenderInput { messages: &messages, tools: Some(&tools), add_generation_prompt: true, vars, now };
    Ok(needed_tool_text(template, &input))
}

fn unknown_format(template: &Template) -> Error {
    let what = format!("{} writes tool calls in a format that is not known", template.origin());
    Error::invalid(what, "name one with --tool-call-parser, or write tools as text with --tool-text hermes")
}

/// Other instructions for the agent, where they or a file with them are given.
pub fn instructions(part: &SpeechPart) -> Result<Option<String>, Error> {
    let path = match (&part.system_prompt, &part.instructions) {
        (Some(path), _) => path,
        (None, text) => return Ok(text.as_deref().map(|it| it.trim_end().to_owned())),
    };
    let unreadable = |error| Error::invalid(format!("{}: {error}", path.display()), "check --system-prompt");
    let text = fs::read_to_string(path).map_err(unreadable)?;
    match text.trim_start_matches('\u{feff}').trim_end() {
        "" => Err(Error::invalid(
            format!("{}: there are no instructions in the file", path.display()),
            "write some, or leave out --system-prompt",
        )),
        text => Ok(Some(text.to_owned())),
    }
}

fn no_tokenizer(opened: &Opened) -> Error {
    let what = format!("the tokenizer of {} is not on this machine", opened.info.model);
    Error::invalid(what, "name a directory with its tokenizer.json and chat template with --tokenizer")
}

fn unsupported(server: &str, what: String) -> Error {
    let help = format!("look at it with `backsight probe`; use --kind {}", names_of(|_| true));
    Error::unsupported(server, what, help)
}
