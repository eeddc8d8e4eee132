//! Where chat templates come from: a model's directory, a GGUF file, or a file of their own.
//!
//! Owns the order in which places are looked at, the choice between several named templates and the
//! special tokens that templates are given as variables, all as transformers 5.22.2 has it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::TextError;
use super::files::{bad_file, read_gguf, read_json, read_text, token_text};
use super::gguf::Gguf;
use super::template::Template;

/// The name of the template used when nothing else is asked for.
const DEFAULT: &str = "default";
/// The name of the template used when there are tools.
const TOOL_USE: &str = "tool_use";
/// The special tokens every tokenizer may have, and what GGUF calls their ids; one is misspelt in the format itself.
const SPECIAL_TOKENS: [(&str, &str); 7] = [
    ("bos_token", "bos_token_id"),
    ("eos_token", "eos_token_id"),
    ("unk_token", "unknown_token_id"),
    ("sep_token", "seperator_token_id"),
    ("pad_token", "padding_token_id"),
    ("cls_token", "cls_token_id"),
    ("mask_token", "mask_token_id"),
];

/// A template that has not been read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedTemplate {
    name: String,
    source: String,
    origin: String,
}

/// The chat templates of a model and the special tokens they are given.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatTemplates {
    path: PathBuf,
    templates: Vec<NamedTemplate>,
    special_tokens: Map<String, Value>,
}

impl ChatTemplates {
    /// Those of the model `path` names: by its directory, a JSON file in there, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, TextError> {
        match model_dir(path)? {
            Some(dir) => Self::from_dir(dir),
            None => Self::from_gguf(path),
        }
    }

    /// The template in the file `template`, if one is given, with the special tokens of the model at `path`; else that model's own templates.
    pub fn open_with(path: &Path, template: Option<&Path>) -> Result<Self, TextError> {
        match template {
            Some(file) => Ok(Self { special_tokens: special_tokens(path)?, ..Self::from_file(file)? }),
            None => Self::open(path),
        }
    }

    /// The templates of a model's directory. Files of their own win over `tokenizer_config.json`.
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        if !dir.is_dir() {
            return Err(bad_file(dir, "there is no such directory"));
        }
        let config = read_json(&dir.join("tokenizer_config.json"))?;
        let special_tokens = config_tokens(dir, &config)?;
        let mut templates = template_files(dir)?;
        if templates.is_empty() {
            templates = config_templates(&config, &dir.join("tokenizer_config.json"));
        }
        if templates.is_empty() {
            let path = dir.join("chat_template.json");
            templates = config_templates(&read_json(&path)?, &path);
        }
        let looked_for =
            "chat_template.jinja, additional_chat_templates/, tokenizer_config.json and chat_template.json";
        Self { path: dir.to_owned(), templates, special_tokens }.checked(looked_for)
    }

    /// The templates in a GGUF file's metadata.
    pub fn from_gguf(path: &Path) -> Result<Self, TextError> {
        let gguf = read_gguf(path)?;
        let templates = gguf_templates(&gguf, path);
        let special_tokens = gguf_special_tokens(&gguf);
        Self { path: path.to_owned(), templates, special_tokens }
            .checked("tokenizer.chat_template in its metadata")
    }

    /// A single template in a file of its own; it knows no special tokens.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let templates = vec![named(DEFAULT, &read_text(path)?, path)];
        Ok(Self { path: path.to_owned(), templates, special_tokens: Map::new() })
    }

    fn checked(self, looked_for: &'static str) -> Result<Self, TextError> {
        if self.templates.is_empty() {
            let what = format!("{}: no chat template found; looked for {looked_for}", self.path.display());
            return Err(TextError::new(what, "give a template with --template FILE"));
        }
        Ok(self)
    }

    /// The template for a conversation: `tool_use` if there are tools and such a template, else the default.
    pub fn select(&self, has_tools: bool) -> Result<Template, TextError> {
        let has_tool_use = self.templates.iter().any(|it| it.name == TOOL_USE);
        self.named(if has_tools && has_tool_use { TOOL_USE } else { DEFAULT })
    }

    /// The template of that name.
    pub fn named(&self, name: &str) -> Result<Template, TextError> {
        if let Some(found) = self.templates.iter().find(|it| it.name == name) {
            return Template::compile(&found.source, &found.origin);
        }
        let (path, names) = (self.path.display(), self.names().collect::<Vec<_>>().join(", "));
        let what = format!("{path}: there is no chat template named {name:?}; there are {names}");
        Err(TextError::new(what, "save the one you want to a file and give it with --template FILE"))
    }

    /// The names of the templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.iter().map(|it| it.name.as_str())
    }

    /// The special tokens by the name templates know them under (`bos_token`, …).
    pub fn special_tokens(&self) -> &Map<String, Value> {
        &self.special_tokens
    }

    /// The variables a template is given: the special tokens, and what the user sets, which wins.
    pub fn variables(&self, vars: &Map<String, Value>) -> Map<String, Value> {
        let mut all = self.special_tokens.clone();
        all.extend(vars.iter().map(|(name, value)| (name.clone(), value.clone())));
        all
    }
}

/// The special tokens of the model `path` names, which need no template beside them.
fn special_tokens(path: &Path) -> Result<Map<String, Value>, TextError> {
    match model_dir(path)? {
        Some(dir) => config_tokens(dir, &read_json(&dir.join("tokenizer_config.json"))?),
        None => Ok(gguf_special_tokens(&read_gguf(path)?)),
    }
}

/// The directory that a path to a model leads to; none for a GGUF file.
fn model_dir(path: &Path) -> Result<Option<&Path>, TextError> {
    let is = |extension: &str| path.extension().is_some_and(|it| it == extension);
    if path.is_dir() {
        return Ok(Some(path));
    }
    if !path.exists() {
        return Err(bad_file(path, "there is no such file or directory"));
    }
    if is("gguf") {
        return Ok(None);
    }
    let dir = path.parent().map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
    dir.filter(|_| is("json")).map(Some).ok_or_else(|| {
        let what = "neither a model directory, nor its tokenizer.json, nor a GGUF file";
        let help = "name the model's directory with --tokenizer, and a template with --template FILE";
        TextError::new(bad_file(path, what), help)
    })
}

fn named(name: &str, source: &str, path: &Path) -> NamedTemplate {
    NamedTemplate { name: name.to_owned(), source: source.to_owned(), origin: path.display().to_string() }
}

/// `chat_template.jinja` is the default; files in `additional_chat_templates` are named after themselves.
fn template_files(dir: &Path) -> Result<Vec<NamedTemplate>, TextError> {
    let mut templates = Vec::new();
    let path = dir.join("chat_template.jinja");
    if path.exists() {
        templates.push(named(DEFAULT, &read_text(&path)?, &path));
    }
    let Ok(entries) = fs::read_dir(dir.join("additional_chat_templates")) else { return Ok(templates) };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|it| it == "jinja")) {
        let name = path.file_stem().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
        templates.push(named(&name, &read_text(&path)?, &path));
    }
    Ok(templates)
}

/// The entry `chat_template`: one string, or several named ones as a list or an object.
fn config_templates(config: &Value, path: &Path) -> Vec<NamedTemplate> {
    let in_list = |it: &Value| Some(named(it.get("name")?.as_str()?, it.get("template")?.as_str()?, path));
    match config.get("chat_template") {
        Some(Value::String(source)) => vec![named(DEFAULT, source, path)],
        Some(Value::Array(entries)) => entries.iter().filter_map(in_list).collect(),
        Some(Value::Object(entries)) => {
            entries.iter().filter_map(|(name, source)| Some(named(name, source.as_str()?, path))).collect()
        }
        _ => Vec::new(),
    }
}

/// The tokens of `tokenizer_config.json`. `special_tokens_map.json` counts only in directories that
/// do not list their added tokens in the former.
fn config_tokens(dir: &Path, config: &Value) -> Result<Map<String, Value>, TextError> {
    let mut tokens = Map::new();
    collect_tokens(&mut tokens, config);
    if config.get("added_tokens_decoder").is_none() {
        collect_tokens(&mut tokens, &read_json(&dir.join("special_tokens_map.json"))?);
    }
    Ok(tokens)
}

/// Standard tokens, tokens of the model's own (`image_token`, …) and those under `extra_special_tokens`.
fn collect_tokens(tokens: &mut Map<String, Value>, config: &Value) {
    let entries = config.as_object().into_iter().flatten();
    let own = entries.filter(|(name, _)| name.ends_with("_token"));
    let extra = config.get("extra_special_tokens").and_then(Value::as_object).into_iter().flatten();
    for (name, token) in own.chain(extra) {
        if let Some(text) = token_text(token) {
            tokens.insert(name.clone(), Value::String(text.to_owned()));
        }
    }
}

/// `tokenizer.chat_template` is the default, `tokenizer.chat_template.NAME` are the others.
fn gguf_templates(gguf: &Gguf, path: &Path) -> Vec<NamedTemplate> {
    let entries = gguf.metadata.iter().filter_map(|(key, value)| {
        let rest = key.strip_prefix("tokenizer.chat_template")?;
        let name = if rest.is_empty() { DEFAULT } else { rest.strip_prefix('.')? };
        Some(named(name, value.as_str()?, path))
    });
    let mut templates: Vec<NamedTemplate> = entries.collect();
    templates.sort_by(|a, b| a.name.cmp(&b.name));
    templates
}

fn gguf_special_tokens(gguf: &Gguf) -> Map<String, Value> {
    let vocabulary = gguf.metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array);
    let tokens = SPECIAL_TOKENS.iter().filter_map(|(name, key)| {
        let id = gguf.metadata.get(&format!("tokenizer.ggml.{key}"))?.as_u64()?;
        let token = vocabulary?.get(usize::try_from(id).ok()?)?;
        token.is_string().then(|| ((*name).to_owned(), token.clone()))
    });
    tokens.collect()
}
