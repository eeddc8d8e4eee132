//! From what was typed to what the pipeline needs: files read, a model opened, both checked before anything is paid.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::args::{CreditArgs, LensArgs};
use crate::cli::block_on;
use crate::cli::chat::{parse_var, source_failure, tokenizer_failure, tool_text_of};
use crate::cli::failure::Failure;
use crate::cli::now;
use crate::cli::server::{ServerArgs, model_failure, teller};
use crate::model::Opened;
use crate::model::notice::Notices;
use crate::model::open::tokenizer_path;
use crate::model::probe::require_scores;
use crate::pipeline::outline::Framing;
use crate::pipeline::reader::{Texts, hash};
use crate::pipeline::resume::VARS;
use crate::store::episodes::{SESSION, Source};
use crate::wire::hindsight::Provenance;
use crate::wire::hints::read as read_hints;
use backsight_chat::tokenizer::Tokenizer;
use backsight_chat::tool_text;
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
pub(super) fn absences(args: &CreditArgs, sources: &[Source]) -> Option<String> {
    let is_session =
        |source: &Source| matches!(source, Source::Directory(path) if path.join(SESSION).exists());
    let lacks = match (args.lens.system.is_some(), args.lens.tools.is_some()) {
        (true, true) => return None,
        (false, false) => "neither was given (--system, --tools)",
        (false, true) => "no system prompt was given (--system)",
        (true, false) => "no tool schemas were given (--tools)",
    };
    sources.iter().any(is_session).then(|| {
        format!("session files hold neither system prompt nor tool schemas, and {lacks}: actions are re-read without")
    })
}

impl Shown {
    /// Reads the files that were named.
    pub(super) fn read(args: &CreditArgs) -> Result<Self, Failure> {
        let typed = &args.lens;
        let words = typed.hindsight_template.as_deref().map(read_text).transpose()?;
        let words = words.unwrap_or_else(|| OUTCOME_TEMPLATE.to_owned());
        let template = lens_template(&words, typed.hindsight_template.as_deref())?;
        let hints = typed.hints.as_deref().map(read_text).transpose()?;
        let lens = lens_of(args, template, hints.as_deref())?;
        let system = typed.system.as_deref().map(read_system).transpose()?;
        let tools = typed.tools.as_deref().map(read_tools).transpose()?;
        let vars = typed.vars.iter().map(|var| parse_var(var)).collect::<Result<Map<_, _>, _>>()?;
        let tool_text = typed.tool_text.map(tool_text_of);
        let now = typed.now.as_deref().map(now::parse).transpose()?;
        let mut other = Map::new();
        other.extend(tool_text.map(|it| ("tool_text".to_owned(), tool_text::name(it).into())));
        other.extend(typed.now.as_ref().map(|now| ("now".to_owned(), now.as_str().into())));
        other.extend((!vars.is_empty()).then(|| (VARS.to_owned(), hash(&sorted(&vars)).into())));
        let provenance = Provenance {
            backsight: env!("CARGO_PKG_VERSION").to_owned(),
            system_sha256: system.as_deref().map(hash),
            tools_sha256: tools.as_ref().map(|tools| hash(&Value::Array(tools.clone()).to_string())),
            lens: Some(lens.name().to_owned()),
            lens_sha256: Some(hash(&format!("{}{}", hints.as_deref().unwrap_or(&words), seed_of(typed)))),
            placement: lens.placement().map(|it| it.name().to_owned()),
            tool_result_chars: typed.tool_result_chars,
            other,
            ..Provenance::default()
        };
        let tool_result_chars = typed.tool_result_chars;
        let framing =
            Framing { system, tools: tools.unwrap_or_default(), vars, tool_text, tool_result_chars, now };
        Ok(Self { framing, lens, provenance })
    }
}

/// The seed, where it decides what is said.
fn seed_of(typed: &LensArgs) -> String {
    if typed.lens == "placebo" { typed.seed.to_string() } else { String::new() }
}

/// The lens that was named.
fn lens_of(args: &CreditArgs, template: Wording, hints: Option<&str>) -> Result<Arc<dyn Lens>, Failure> {
    let LensArgs { lens: name, placement, hints: path, seed, .. } = &args.lens;
    if (name == "hint" && path.is_none()) || (path.is_some() && !["hint", "placebo"].contains(&name.as_str()))
    {
        let help = "name both --lens hint (or placebo) and --hints FILE, or none of them";
        return Err(Failure::input("hints and the lens that tells them belong together", help));
    }
    let given = hints.map(read_hints).transpose().map_err(|fault| {
        let (path, line) = (path.as_deref().unwrap_or(Path::new("")).display(), fault.line.unwrap_or(0));
        Failure::input(format!("{path} line {line}: {}", fault.why), "mend the line")
    })?;
    let given = given.unwrap_or_default();
    let in_words = |given: &Given| matches!(given, Given::Text(_));
    if *placement == Some(Placement::Turns)
        && let Some(((episode, step), _)) = given.iter().filter(|it| in_words(it.1)).min_by_key(|it| it.0)
    {
        let what =
            format!("the hint for step {step} of {episode} is in words, which are no messages of their own");
        return Err(Failure::input(what, "give it as `messages`, or choose another --placement than turns"));
    }
    let of = Ingredients { placement: *placement, template, given, seed: *seed };
    lens::named(name, of).ok_or_else(|| {
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

/// A file's text, without the mark some editors put before it.
fn read_text(path: &Path) -> Result<String, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("{}: {error}", path.display()), "check the file"))?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}

/// A file's system prompt; an empty one is a mistake, since none is given by leaving it out.
fn read_system(path: &Path) -> Result<String, Failure> {
    let text = read_text(path)?;
    if text.trim().is_empty() {
        let what = format!("{}: there is no system prompt in the file", path.display());
        return Err(Failure::input(what, "write one, or leave out --system"));
    }
    Ok(text)
}

fn read_tools(path: &Path) -> Result<Vec<Value>, Failure> {
    let help = "give a JSON list of tool schemas";
    let wrong = |why: String| Failure::input(format!("{}: {why}", path.display()), help);
    match serde_json::from_str(&read_text(path)?).map_err(|error| wrong(format!("not JSON: {error}")))? {
        Value::Array(tools) => Ok(tools),
        _ => Err(wrong("not a list".to_owned())),
    }
}

/// An opened model with its tokenizer and template.
pub(super) struct Ready {
    pub(super) opened: Opened,
    pub(super) texts: Texts,
    pub(super) tokenizer_sha256: String,
}

/// Opens the model and refuses one that cannot score, that has no text, or whose tokenizer is another than ours.
pub(super) async fn open(args: &CreditArgs, shown: &Shown, notices: &Notices) -> Result<Ready, Failure> {
    let server = ServerArgs { needs_text: true, ..args.server.clone() };
    let opened = server.open(&args.url, notices, teller(args.json)).await?;
    require_scores(&opened).await.map_err(model_failure)?;
    let Some((path, tokenizer)) = opened.tokenizer.clone() else {
        let help = "name the model's directory with --tokenizer, or the model as on the hub with --model";
        return Err(Failure::input(
            "no tokenizer was named, and the server's own is not on this machine",
            help,
        ));
    };
    // Needed until the end, so it is not worth taking apart word by word then.
    std::mem::forget(Arc::clone(&tokenizer));
    let texts = texts(args, &path, tokenizer, shown)?;
    let tokenizer_sha256 = Tokenizer::sha256(&path).map_err(tokenizer_failure)?;
    Ok(Ready { opened, texts, tokenizer_sha256 })
}

/// The texts of the model at `path`.
pub(super) fn texts(
    args: &CreditArgs,
    path: &Path,
    tokenizer: Arc<Tokenizer>,
    shown: &Shown,
) -> Result<Texts, Failure> {
    let template = args.lens.template.as_deref();
    Texts::open(path, tokenizer, template, &shown.framing.vars).map_err(source_failure)
}

/// The tokenizer that was named, for those who ask no server, and its hash.
pub(super) fn named_texts(args: &CreditArgs, shown: &Shown) -> Result<Option<(Texts, String)>, Failure> {
    let Some(path) = args.text_path() else { return Ok(None) };
    let path = block_on(tokenizer_path(&path))?.map_err(model_failure)?;
    let tokenizer = Tokenizer::open(&path).map_err(tokenizer_failure)?;
    let sha256 = Tokenizer::sha256(&path).map_err(tokenizer_failure)?;
    Ok(Some((texts(args, &path, Arc::new(tokenizer), shown)?, sha256)))
}

/// What the server is, in a word or two.
pub(super) fn server_name(opened: &Opened) -> String {
    let version = opened.info.version.as_deref().map(|it| format!(" {it}")).unwrap_or_default();
    format!("{}{version}", opened.info.kind.name)
}
