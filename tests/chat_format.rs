//! What stands between two actions, found without rendering them: prompts grow to exactly what the template makes of the whole.
//!
//! Our own templates always; the templates of real tokenizers below `BACKSIGHT_TOKENIZERS`; a collection of
//! published templates below `BACKSIGHT_CASES`. `BACKSIGHT_REQUIRE_REAL=1` makes the absence of real tokenizers a failure.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and say what they checked"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use backsight::chat::format::{ChatFormat, FormatError};
use backsight::chat::parse::Parser;
use backsight::chat::render::{needed_tool_text, render_conversation};
use backsight::chat::source::ChatTemplates;
use backsight::chat::template::{Now, RenderInput, Template};
use backsight::chat::tokenizer::Tokenizer;
use backsight::episode::{Message, Role, ToolText};
use backsight::tokens::TokenId;
use backsight::wire::messages::{ArgumentForm, list_from_json, to_json_with};
use serde_json::{Map, Value, json};

const NOW: i64 = 1_777_000_000;

/// Tokens with which published templates end an assistant's turn.
const ENDS: [&str; 17] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "</s>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|observation|>",
    "<|user|>",
    "<｜end▁of▁sentence｜>",
    "<|end_of_text|>",
    "<|call|>",
    "<|END_OF_TURN_TOKEN|>",
    "[e~[",
    "<seed:eos>",
    "<|assistant_end|>",
    "<SPECIAL_12>",
];

fn tools() -> Vec<Value> {
    let parameters = json!({"type": "object", "properties": {"command": {"type": "string", "description": "The line."}}, "required": ["command"]});
    let function = json!({"name": "terminal", "description": "Runs a line.", "parameters": parameters});
    vec![json!({"type": "function", "function": function})]
}

/// A call, its answer, two calls at once, their answers.
fn conversation() -> Vec<Message> {
    let call = |id: &str, command: &str| {
        let arguments = json!({"command": command}).to_string();
        json!({"id": id, "type": "function", "function": {"name": "terminal", "arguments": arguments}})
    };
    let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "name": "terminal", "content": text});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many files are there?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call("c00000000", "ls | wc -l")]},
        result("c00000000", "{\"output\":\"3\\n\",\"exit_code\":0}"),
        {"role": "assistant", "content": "", "tool_calls": [call("c00010000", "ls -la"), call("c00010001", "pwd")]},
        result("c00010000", "a <|im_start|> b\n\n  c zqresult4x0qz"),
        result("c00010001", ""),
        {"role": "assistant", "content": "It is \u{2018}fine\u{2019}.", "tool_calls": [call("c00020000", "true")]},
        result("c00020000", "done"),
    ]);
    list_from_json(&messages).unwrap()
}

/// A format and what a whole conversation is in it.
struct Case {
    format: ChatFormat,
    template: Template,
    vars: Map<String, Value>,
    tokenizer: Arc<Tokenizer>,
    tool_text: Option<ToolText>,
}

impl Case {
    fn new(source: &str, origin: &str, vars: Map<String, Value>, tokenizer: Arc<Tokenizer>) -> Self {
        let template = || Template::compile(source, origin).unwrap();
        let messages: Vec<Value> = conversation().iter().map(|it| to_json_with(it, ArgumentForm::Object)).collect();
        let tools = tools();
        let input = RenderInput {
            messages: &messages,
            tools: Some(&tools),
            add_generation_prompt: true,
            vars: &vars,
            now: Some(Now::utc(NOW)),
        };
        let tool_text = needed_tool_text(&template(), &input);
        let format = ChatFormat::new(template(), vars.clone(), Arc::clone(&tokenizer), Parser::Hermes, tool_text);
        Self { format, template: template(), vars, tokenizer, tool_text }
    }

    /// The ids of the first `n` messages and the generation prompt, made from the whole text.
    fn whole(&self, n: usize) -> Result<Vec<TokenId>, String> {
        let messages: Vec<Value> =
            conversation()[..n].iter().map(|it| to_json_with(it, ArgumentForm::Object)).collect();
        let tools = tools();
        let input = RenderInput {
            messages: &messages,
            tools: Some(&tools),
            add_generation_prompt: true,
            vars: &self.vars,
            now: Some(Now::utc(NOW)),
        };
        let rendering = render_conversation(&self.template, &input, self.tool_text).map_err(|it| it.to_string())?;
        Ok(self.tokenizer.encode(&rendering.rendered.text).unwrap().ids)
    }

    /// Grows a prompt action by action; says how it compares with the whole.
    fn grown(&self) -> Grown {
        match self.try_grown() {
            Ok(Some((0, ends))) => Grown::Exact { ends },
            Ok(Some((n_times, ends))) => Grown::Rewritten { n_times, ends },
            Ok(None) => Grown::Refused(self.whole(conversation().len()).err()),
            Err(error) => Grown::Error(error.to_string()),
        }
    }

    /// In how many places the template changed what stands before an action; nothing if it refuses the conversation.
    fn try_grown(&self) -> Result<Option<(usize, bool)>, FormatError> {
        let (messages, tools, now) = (conversation(), tools(), Now::utc(NOW));
        let actions: Vec<usize> = (0..messages.len()).filter(|&it| messages[it].role == Role::Assistant).collect();
        if self.whole(messages.len()).is_err() {
            return Ok(None);
        }
        let mut ids = self.format.opening(&messages[..actions[0]], &tools, now)?.ids;
        let (mut n_rewritten, mut ends) = (0, true);
        for (idx, &action) in actions.iter().enumerate() {
            let end = actions.get(idx + 1).copied().unwrap_or(messages.len());
            let whole = self.whole(end).unwrap();
            n_rewritten += usize::from(!whole.starts_with(&ids));
            // The student samples what the template shows of it, up to and with its end.
            let between = self.format.between(&messages[..end], action, &tools, now)?;
            let (sampled, tail) = whole.split_at(whole.len() - between.ids.len());
            let decoded = |ids: &[TokenId]| self.tokenizer.decode(ids).unwrap();
            if tail != between.ids || (between.end.is_some() && between.end.as_ref() != sampled.last()) {
                println!("{:?} {:?}", decoded(tail), decoded(&between.ids));
            }
            ends &= between.end.is_some();
            ids = whole;
        }
        Ok(Some((n_rewritten, ends)))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Grown {
    /// Every prompt is what the template makes of the whole conversation.
    Exact { ends: bool },
    /// What stands between actions is what the template makes of the whole, but in some places it changed what came before.
    Rewritten { n_times: usize, ends: bool },
    /// The template refuses the conversation.
    Refused(Option<String>),
    /// It cannot be told.
    Error(String),
}

#[test]
fn real_templates_with_their_tokenizers() {
    let dirs: Vec<PathBuf> = match std::env::var_os("BACKSIGHT_TOKENIZERS") {
        Some(root) => std::fs::read_dir(root).unwrap().map(|it| it.unwrap().path()).collect(),
        None => Vec::new(),
    };
    assert!(dirs.len() >= 4 || std::env::var_os("BACKSIGHT_REQUIRE_REAL").is_none(), "tests/get-tokenizers");
    for dir in dirs {
        let templates = ChatTemplates::open(&dir).unwrap();
        let source = templates.select(true).unwrap().source().to_owned();
        let vars = templates.special_tokens().clone();
        let case = Case::new(&source, "real", vars, Arc::new(Tokenizer::open(&dir).unwrap()));
        println!("{}: {:?} {:?}", dir.display(), case.grown(), case.tool_text);
    }
}

/// The small tokenizer with the special tokens of published templates.
fn with_ends(dir: &Path) -> Arc<Tokenizer> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(base).unwrap()).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    let known: Vec<String> = added.iter().map(|it| it["content"].as_str().unwrap().to_owned()).collect();
    let first = added.iter().map(|it| it["id"].as_u64().unwrap() + 1).max().unwrap();
    for (id, content) in (first..).zip(ENDS.iter().filter(|end| !known.iter().any(|it| it == *end))) {
        added.push(json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}));
    }
    std::fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
    let tokenizer = Tokenizer::open(dir).unwrap();
    let ids: Vec<TokenId> = ENDS.iter().map(|end| tokenizer.id_of(end).unwrap()).collect();
    std::fs::write(dir.join("generation_config.json"), json!({"eos_token_id": ids}).to_string()).unwrap();
    Arc::new(Tokenizer::open(dir).unwrap())
}

#[test]
fn published_templates() {
    let Some(root) = std::env::var_os("BACKSIGHT_CASES") else { return };
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = with_ends(dir.path());
    let mut paths: Vec<PathBuf> = std::fs::read_dir(Path::new(&root).join("chat_templates/templates"))
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    paths.sort();
    for path in paths {
        let source = std::fs::read_to_string(&path).unwrap();
        let vars = json!({"bos_token": "<s>", "eos_token": "</s>"}).as_object().unwrap().clone();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let case = Case::new(&source, &name, vars, Arc::clone(&tokenizer));
        println!("{name:60} {:?} {:?}", case.grown(), case.tool_text);
    }
}
