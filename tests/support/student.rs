//! A student that says what a test wants it to say, in tokens of a small tokenizer, and its setting.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "not every test uses all of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::scripted::Scripted;
use backsight::agent::LoopOptions;
use backsight::agent::RewardRule;
use backsight::agent::ToolLimits;
use backsight::agent::{AgentSetting, EpisodePlace, Speech};
use backsight::chat::format::ChatFormat;
use backsight::chat::parse::Parser;
use backsight::chat::template::Template;
use backsight::chat::tokenizer::Tokenizer;
use backsight::episode::{Task, ToolText};
use backsight::sandbox::{SandboxConfig, Sandboxes};
use backsight::tasks::{Check, CodingTask};
use serde_json::Map;

/// A template that ignores tools, as SmolLM2's does.
pub const PLAIN: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A template that shows tools, calls and results, keeps thinking of the last turns and forgets older thinking.
pub const TOOLS: &str = r#"{%- if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}
    {{- '<tools>' }}{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content and loop.index0 + 3 > messages | length %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{ '\n' }}{% endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' }}
        {%- endfor %}{{ '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- elif message.role == 'user' or not tools %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"#;

pub fn tokenizer() -> Arc<Tokenizer> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml");
    Arc::new(Tokenizer::open(&dir).unwrap())
}

pub fn format(template: &str, tool_text: Option<ToolText>) -> Arc<ChatFormat> {
    let template = Template::compile(template, "student.jinja").unwrap();
    Arc::new(ChatFormat::new(template, Map::new(), tokenizer(), Parser::Hermes, tool_text))
}

/// A student that says one text after another, each with its end token; the end is left out of texts that end with `…`.
pub fn saying(texts: &[&str]) -> Scripted {
    let tokenizer = tokenizer();
    let end = tokenizer.end_ids()[0];
    let ids = move |text: &&str| match text.strip_suffix('…') {
        Some(cut) => tokenizer.encode(cut).unwrap().ids,
        None => [tokenizer.encode(text).unwrap().ids, vec![end]].concat(),
    };
    let turns: Vec<_> = texts.iter().map(ids).collect();
    Scripted::new(720).on_generate(move |request| turns.get(request.place.step).cloned())
}

pub fn sandboxes() -> Arc<Sandboxes> {
    let init = Some(PathBuf::from(env!("CARGO_BIN_EXE_backsight")));
    Arc::new(Sandboxes::new(SandboxConfig { init, ..SandboxConfig::default() }))
}

pub fn setting(student: Scripted) -> AgentSetting {
    AgentSetting {
        student: Arc::new(student),
        speech: Speech::Exact(format(TOOLS, None)),
        sandboxes: sandboxes(),
        tool_limits: ToolLimits::default(),
        reward: RewardRule::default(),
        options: LoopOptions { system_prompt: Some("Be good.".to_owned()), ..LoopOptions::default() },
        on_step: None,
    }
}

pub fn task() -> CodingTask {
    let prompt = "Write add(a, b) to solution.py.".to_owned();
    let task = Task { id: "add".to_owned(), prompt, difficulty: None };
    let test_code = "from solution import add\nassert add(1, 2) == 3\nassert add(-1, 1) == 0\n".to_owned();
    let check = Some(Check::Script(test_code));
    CodingTask { asked: task.prompt.clone(), task, check, tests_shown: false, references: Vec::new() }
}

pub fn place() -> EpisodePlace {
    EpisodePlace { episode: 0, started_at: 1_777_000_000 }
}

/// A call as a student writes it.
pub fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// The call that writes the right solution.
pub fn write_solution() -> String {
    call("write_file", r#"{"path": "solution.py", "content": "def add(a, b):\n    return a + b\n"}"#)
}
