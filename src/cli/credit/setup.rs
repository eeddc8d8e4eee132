//! From what was typed to what the pipeline needs: files read, a model opened, both checked before anything is paid.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::args::CreditArgs;
use crate::cli::block_on;
use crate::cli::call::{Call, read_text};
use crate::cli::chat::{time, tools, variables};
use crate::cli::failure::Failure;
use crate::cli::voice::Voice;
use crate::model::Opened;
use crate::model::open::tokenizer_path;
use crate::model::probe::require_scores;
use crate::pipeline::outline::Framing;
use crate::pipeline::reader::Texts;
use crate::pipeline::resume::VARS;
use crate::store::episodes::{SESSION, Source};
use crate::wire::hindsight::Provenance;
use crate::wire::hints::read as read_hints;
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::episode::ToolText;
use backsight_core::hash::sha256;
use backsight_core::lens::{
    self, Given, Ingredients, Lens, OUTCOME_TEMPLATE, OutcomeFacts, Placement, Wording,
};

/// What was typed about conversations and the lens, with the files it names.
pub(super) struct Shown {
    pub(super) framing: Framing,
    pub(super) lens: Arc<dyn Lens>,
    /// The hashes of all of it.
    pub(super) provenance: Provenance,
}

/// What recorded sessions lack and nobody supplied, if there are sessions.
pub(super) fn absences(args: &CreditArgs<'_>, sources: &[Source]) -> Option<String> {
    let is_session =
        |source: &Source| matches!(source, Source::Directory(path) if path.join(SESSION).exists());
    let lacks = match (args.has("system_prompt"), args.has("tools")) {
        (true, true) => return None,
        (false, false) => "neither was given (--system-prompt, --tools)",
        (false, true) => "no system prompt was given (--system-prompt)",
        (true, false) => "no tool schemas were given (--tools)",
    };
    sources.iter().any(is_session).then(|| {
        format!("session files hold neither system prompt nor tool schemas, and {lacks}: actions are re-read without")
    })
}

/// What was typed about conversations.
pub(in crate::cli) fn framing(call: &Call) -> Result<Framing, Failure> {
    Ok(Framing {
        system: read_system(call)?,
        tools: tools(call)?.unwrap_or_default(),
        vars: variables(call)?,
        tool_text: ToolText::from_name(&call.get::<String>("tool_text")?),
        tool_result_chars: call.get("reread_result_chars")?,
        now: time(call)?,
    })
}

impl Shown {
    /// Reads the files that were named.
    pub(super) fn read(args: &CreditArgs<'_>) -> Result<Self, Failure> {
        let call = args.call;
        let path: Option<PathBuf> = call.get("hindsight_template")?;
        let words = path.as_deref().map(read_text).transpose()?;
        let words = words.unwrap_or_else(|| OUTCOME_TEMPLATE.to_owned());
        let template = lens_template(&words, path.as_deref())?;
        let hints = call.file("hints")?;
        let lens = lens_of(args, template, hints.as_deref())?;
        let framing = framing(call)?;
        let Framing { system, tools, vars, tool_text, tool_result_chars, .. } = &framing;
        // Only what a placebo says depends on the seed.
        let seed = if lens.name() == "placebo" { call.get("seed")? } else { None::<u64> };
        let seed = seed.map(|it| it.to_string()).unwrap_or_default();
        let mut other = Map::new();
        other.extend(tool_text_entry(*tool_text));
        other.extend(call.get::<Option<String>>("now")?.map(|now| ("now".to_owned(), now.into())));
        other.extend((!vars.is_empty()).then(|| (VARS.to_owned(), sha256(sorted(vars)).into())));
        let provenance = Provenance {
            backsight: env!("CARGO_PKG_VERSION").to_owned(),
            system_sha256: system.as_deref().map(sha256),
            tools_sha256: (!tools.is_empty()).then(|| sha256(Value::Array(tools.clone()).to_string())),
            lens: Some(lens.name().to_owned()),
            lens_sha256: Some(sha256(format!("{}{}", hints.as_deref().unwrap_or(&words), seed))),
            placement: lens.placement().map(|it| it.name().to_owned()),
            tool_result_chars: *tool_result_chars,
            other,
            ..Provenance::default()
        };
        Ok(Self { framing, lens, provenance })
    }

    /// Where it was left open how tools are written, what the template needs.
    pub(super) fn settle(&mut self, args: &CreditArgs<'_>, texts: &Texts) {
        if args.call.config.shown("tool_text") == ["auto"] {
            self.framing.tool_text = texts.needed_tool_text(args.has("tools"));
            self.provenance.other.extend(tool_text_entry(self.framing.tool_text));
        }
    }
}

fn tool_text_entry(tool_text: Option<ToolText>) -> Option<(String, Value)> {
    tool_text.map(|it| ("tool_text".to_owned(), it.name().into()))
}

/// The lens that was named.
fn lens_of(args: &CreditArgs<'_>, template: Wording, hints: Option<&str>) -> Result<Arc<dyn Lens>, Failure> {
    let (name, path): (String, Option<PathBuf>) = (args.call.get("lens")?, args.call.get("hints")?);
    if (name == "hint" && path.is_none()) || (path.is_some() && !["hint", "placebo"].contains(&name.as_str()))
    {
        let help = "name both --lens hint (or placebo) and --hints FILE, or none of them";
        return Err(Failure::input("hints and the lens that tells them belong together", help));
    }
    let given = hints.map(read_hints).transpose().map_err(|fault| {
        let (path, line) = (path.as_deref().unwrap_or(Path::new("")).display(), fault.line.unwrap_or(0));
        Failure::input(format!("{path} line {line}: {}", fault.why), "mend the line")
    })?;
    let (given, seed) = (given.unwrap_or_default(), args.call.get("seed")?);
    let placement = args.call.placement()?;
    let in_words = |given: &Given| matches!(given, Given::Text(_));
    if placement == Some(Placement::Turns)
        && let Some(((episode, step), _)) = given.iter().filter(|it| in_words(it.1)).min_by_key(|it| it.0)
    {
        let what =
            format!("the hint for step {step} of {episode} is in words, which are no messages of their own");
        return Err(Failure::input(what, "give it as `messages`, or choose another --placement than turns"));
    }
    let of = Ingredients { placement, template, given, seed };
    lens::named(&name, of).ok_or_else(|| {
        let what = format!("the lens {name} cannot be written at the placement that was named");
        Failure::input(what, "leave out --placement, or choose another")
    })
}

/// Variables by name, so that the order in which they were typed does not matter.
fn sorted(vars: &Map<String, Value>) -> String {
    let by_name: BTreeMap<&String, &Value> = vars.iter().collect();
    format!("{by_name:?}")
}

/// A template that has rendered once: what it names and does not get is found before anything is paid.
fn lens_template(words: &str, path: Option<&Path>) -> Result<Wording, Failure> {
    let nothing = OutcomeFacts {
        reward: 0.0,
        progress: Default::default(),
        completed: 0,
        current_subtask: "planning".to_owned(),
        current_score: None,
    };
    let parsed = Wording::parse(words).and_then(|template| template.render(&nothing).map(|_| template));
    parsed.map_err(|error| {
        let name = path.map_or("the outcome template".to_owned(), |path| path.display().to_string());
        Failure::input(
            format!("{name}: {error}"),
            "mend the template; prompts/outcome.jinja shows what there is",
        )
    })
}

/// A file's system prompt; an empty one is a mistake, since none is given by leaving it out.
fn read_system(call: &Call) -> Result<Option<String>, Failure> {
    let Some(path) = call.get::<Option<PathBuf>>("system_prompt")? else { return Ok(None) };
    let text = read_text(&path)?;
    if text.trim().is_empty() {
        let what = format!("{}: there is no system prompt in the file", path.display());
        return Err(Failure::input(what, "write one, or leave out --system-prompt"));
    }
    Ok(Some(text))
}

/// Opens the model and refuses one that cannot score, that has no text, or whose tokenizer is another than ours.
pub(super) async fn open(
    args: &CreditArgs<'_>,
    shown: &Shown,
    voice: &Arc<Voice>,
) -> Result<(Opened, Texts, String), Failure> {
    let opened = args.server.open(&voice.notices, voice.teller()).await?;
    require_scores(&opened).await?;
    let (path, tokenizer) = known_tokenizer(&opened)?;
    // Needed until the end, so it is not worth taking apart word by word then.
    std::mem::forget(Arc::clone(&tokenizer));
    let (texts, tokenizer_sha256) = texts(args, &path, tokenizer, shown)?;
    Ok((opened, texts, tokenizer_sha256))
}

/// The tokenizer of an opened model, and where it is; a model of which none is known is refused.
pub(in crate::cli) fn known_tokenizer(opened: &Opened) -> Result<(PathBuf, Arc<Tokenizer>), Failure> {
    opened.tokenizer.clone().ok_or_else(|| {
        let help = "name the model's directory with --tokenizer, or the model as on the hub with --model";
        Failure::input("no tokenizer was named, and the server's own is not on this machine", help)
    })
}

/// The texts of the model at `path`, and its tokenizer's hash.
fn texts(
    args: &CreditArgs<'_>,
    path: &Path,
    tokenizer: Arc<Tokenizer>,
    shown: &Shown,
) -> Result<(Texts, String), Failure> {
    let template: Option<PathBuf> = args.call.get("template")?;
    let texts = Texts::open(path, tokenizer, template.as_deref(), &shown.framing.vars)?;
    Ok((texts, Tokenizer::sha256(path)?))
}

/// The tokenizer that was named, for those who ask no server, and its hash.
pub(super) fn named_texts(args: &CreditArgs<'_>, shown: &Shown) -> Result<Option<(Texts, String)>, Failure> {
    let Some(path) = args.text_path() else { return Ok(None) };
    let path = block_on(tokenizer_path(&path))??;
    let tokenizer = Arc::new(Tokenizer::open(&path)?);
    texts(args, &path, tokenizer, shown).map(Some)
}
