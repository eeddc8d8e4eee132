//! A directory with a model's text files and recorded episodes, and the program run in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use backsight::chat::source::ChatTemplates;
use backsight::chat::tokenizer::Tokenizer;
use backsight::model::PROBE_TEXT;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::stand_in::{Asked, Dialect, Setup, StandIn};
use crate::support::tiny::fixture;

/// Thinking, text, calls and results, all of them kept.
pub const KEEPS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// The same, but earlier thinking is forgotten.
pub const FORGETS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// An empty thinking block, on the last turn only.
pub const LAST_ONLY: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>{% endif %}";

/// What a run of the program gave.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Fails with everything that was said unless the exit code is this.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

pub struct Place {
    dir: TempDir,
}

impl Place {
    /// The recorded episodes of the published scorer, and a model that renders with `template`.
    pub fn recorded(template: &str) -> Self {
        let place = Self::empty(template);
        for name in ["episode_001", "episode_002", "episode_003"] {
            for file in ["result.json", "pi_session.jsonl"] {
                let from = fixture("hcapo/episodes").join(name).join(file);
                place.write(&format!("episodes/{name}/{file}"), &fs::read_to_string(from).unwrap());
            }
        }
        place
    }

    pub fn empty(template: &str) -> Self {
        let place = Self { dir: TempDir::new().unwrap() };
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            let from = fixture("tokenizers/chatml").join(file);
            place.write(&format!("model/{file}"), &fs::read_to_string(from).unwrap());
        }
        place.write("model/chat_template.jinja", template);
        fs::create_dir_all(place.path("episodes")).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// A small episode: an instruction, then `n_steps` of talk, with a reward of its own.
    pub fn write_talk(&self, name: &str, n_steps: usize) {
        let mut lines = vec![json!({"type": "session", "version": 1, "id": name})];
        let text = |text: String| json!([{"type": "text", "text": text}]);
        let mut say = |role: &str, words: String| {
            lines.push(json!({"type": "message", "message": {"role": role, "content": text(words)}}))
        };
        say("user", format!("Please count for {name}."));
        for step in 0..n_steps {
            say("assistant", format!("{step} is what {name} says, after {}.", step * 7919 % 101));
            say("user", format!("Go on from {step}."));
        }
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        self.write(&format!("episodes/{name}/pi_session.jsonl"), &(lines.join("\n") + "\n"));
        let result = json!({"episode_id": name, "episode_reward": 0.5, "phase": "DONE"});
        self.write(&format!("episodes/{name}/result.json"), &result.to_string());
    }

    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::open(&self.path("model")).unwrap()
    }

    pub fn templates(&self) -> ChatTemplates {
        ChatTemplates::open(&self.path("model")).unwrap()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command.current_dir(self.dir.path()).arg("credit").args(arguments);
        for name in ["FSWE_AGENT_API_URL", "FSWE_AGENT_MODEL", "FSWE_AGENT_API_KEY"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `credit` with exactly these arguments.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        finish(self.command(arguments)).await
    }

    /// Runs `credit` on the episodes against a server.
    pub async fn credit(&self, server: &StandIn, more: &[&str]) -> Ran {
        let url = server.url();
        let own = ["--input-dir", "episodes", "--url", &url, "--tokenizer", "model"];
        self.run(&[&own[..], more].concat()).await
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap()
    }

    /// An episode's scores through the only lens it was scored through.
    pub fn scores(&self, episode: &str) -> Value {
        self.only(episode, "hindsight_scores")
    }

    fn only(&self, episode: &str, prefix: &str) -> Value {
        let entries = fs::read_dir(self.path(&format!("episodes/{episode}"))).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().to_string_lossy().into_owned());
        let names: Vec<String> = names.filter(|it| it.starts_with(prefix)).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        self.json(&format!("episodes/{episode}/{}", names[0]))
    }

    /// What became of the last result that was asked for.
    pub fn summary(&self) -> Value {
        let sections = self.json("episodes/.backsight/summary.json");
        sections.as_object().unwrap().values().next_back().unwrap().clone()
    }

    /// The scores and tokens of all episodes, by file.
    pub fn made(&self) -> Vec<(PathBuf, String)> {
        let mut files = Vec::new();
        collect(&self.path("episodes"), &mut |path| {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("hindsight_")) {
                let name = path.strip_prefix(self.dir.path()).unwrap().to_owned();
                files.push((name, fs::read_to_string(path).unwrap()));
            }
        });
        files.sort();
        files
    }

    /// The prompts a server was asked to score, without those that recognise the model; one of several sent together
    /// is one of its own.
    pub fn asked(&self, server: &StandIn) -> Vec<Asked> {
        let probe = self.tokenizer().encode(PROBE_TEXT).unwrap().ids;
        let is_score = |it: &Asked| it.route == "/generate" || it.route == "/v1/completions";
        let each = |it: Asked| {
            let prompts = it.prompts.clone();
            prompts.into_iter().map(move |ids| Asked { ids, ..it.clone() })
        };
        let scores = server.asked().into_iter().filter(is_score).flat_map(each);
        // A single id is sent to find out how many candidates a vLLM server gives.
        scores.filter(|it| it.ids != probe && it.ids.len() > 1).collect()
    }
}

pub async fn finish(mut command: Command) -> Ran {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Every file below a directory.
pub fn collect(dir: &Path, f: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { collect(&path, f) } else { f(&path) }
    }
}

pub async fn sglang() -> StandIn {
    StandIn::start(Setup::new(Dialect::Sglang)).await
}

pub async fn vllm() -> StandIn {
    StandIn::start(Setup::new(Dialect::Vllm)).await
}
