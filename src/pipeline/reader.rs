//! What reading an episode needs: a model's tokenizer and template.
//!
//! Owns [`Texts`] and [`Reader`]; how it reads is in `read`.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::outline::Framing;
use backsight_chat::drops::drops;
use backsight_chat::error::TextError;
use backsight_chat::reread::Manner;
use backsight_chat::source::ChatTemplates;
use backsight_chat::template::{Now, Template};
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::episode::{Episode, ToolText};
use backsight_core::hash::sha256;

/// How a model's conversations become tokens.
pub struct Texts {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    plain: Template,
    with_tools: Template,
    vars: Map<String, Value>,
}

impl Texts {
    /// The templates of the model at `path`, or the one in the file `template`; `vars` win over the model's special tokens.
    pub fn open(
        path: &Path,
        tokenizer: Arc<Tokenizer>,
        template: Option<&Path>,
        vars: &Map<String, Value>,
    ) -> Result<Self, TextError> {
        let templates = ChatTemplates::open_with(path, template)?;
        let vars = templates.variables(vars);
        let (plain, with_tools) = (templates.select(false)?, templates.select(true)?);
        Ok(Self { tokenizer, plain, with_tools, vars })
    }

    /// The template for conversations with tools or without.
    pub fn template(&self, has_tools: bool) -> &Template {
        if has_tools { &self.with_tools } else { &self.plain }
    }

    /// What templates are given beside the conversation.
    pub fn vars(&self) -> &Map<String, Value> {
        &self.vars
    }

    /// How many tokens a text has.
    pub fn n_tokens(&self, text: &str) -> usize {
        self.tokenizer.encode(text).map_or(0, |it| it.ids.len())
    }

    /// SHA-256 of the templates' text.
    pub fn template_sha256(&self) -> String {
        let sources = [self.plain.source(), self.with_tools.source()];
        let distinct = if sources[0] == sources[1] { &sources[..1] } else { &sources };
        sha256(distinct.concat())
    }

    /// How tools are written as text, if the template leaves them or their calls out.
    pub fn needed_tool_text(&self, has_tools: bool) -> Option<ToolText> {
        let dropped = drops(self.template(has_tools), &self.vars, Some(Now::utc(0)));
        (dropped.tools || dropped.tool_calls).then_some(ToolText::Hermes)
    }

    /// What the template leaves out whatever the conversation, in words.
    pub fn ignored(&self, has_tools: bool) -> Vec<&'static str> {
        drops(self.template(has_tools), &self.vars, Some(Now::utc(0))).names()
    }
}

/// Reads episodes.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// How conversations become tokens.
    pub texts: &'a Texts,
    /// What conversations lack.
    pub framing: &'a Framing,
    /// The most tokens a sequence may have.
    pub limit: Option<usize>,
}

impl<'a> Reader<'a> {
    /// How an episode's conversations are rendered, with these tools.
    pub(super) fn manner<'m>(&self, episode: &'m Episode, tools: &'m [Value]) -> Manner<'m>
    where
        'a: 'm,
    {
        Manner {
            template: self.texts.template(!tools.is_empty()),
            vars: &self.texts.vars,
            tools,
            tool_text: self.framing.tool_text.or(episode.tool_text),
            now: episode.started_at.map(Now::utc).or(self.framing.now),
        }
    }
}
