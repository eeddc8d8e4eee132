//! A directory with tasks and a model's text files, a scripted server, and the program run in between.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use backsight::chat::tokenizer::Tokenizer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::student::{TOOLS, tokenizer};
use crate::support::stand_in::{Dialect, Setup, StandIn};

/// Three small tasks that the script below can solve.
pub const TASKS: &str = "\
{\"id\": \"add\", \"task\": \"Write add(a, b).\", \"tests\": \"from solution import add\\nassert add(1, 2) == 3\\nassert add(-1, 1) == 0\"}
{\"id\": \"twice\", \"task\": \"Write twice(a).\", \"tests\": \"from solution import twice\\nassert twice(4) == 8\"}
{\"id\": \"less/one\", \"task\": \"Write less_one(a).\", \"tests\": \"from solution import less_one\\nassert less_one(4) == 3\"}
";

/// What the scripted student says in a turn; at the first it may be wrong, depending on the seed.
pub fn script(prompt: &str, turn: usize, seed: u64) -> String {
    let solved = match prompt {
        _ if prompt.contains("add(a, b)") => "def add(a, b):\\n    return a + b\\n",
        _ if prompt.contains("twice(a)") => "def twice(a):\\n    return 2 * a\\n",
        _ => "def less_one(a):\\n    return a - 1\\n",
    };
    match turn {
        0 => {
            let content = if seed.is_multiple_of(3) { "def nothing():\\n    pass\\n" } else { solved };
            let call = format!(
                "{{\"name\": \"write_file\", \"arguments\": {{\"path\": \"solution.py\", \"content\": \"{content}\"}}}}"
            );
            format!("I write it ({}).\n<tool_call>\n{call}\n</tool_call>", seed % 1000)
        }
        1 => "<tool_call>\n{\"name\": \"terminal\", \"arguments\": {\"command\": \"python3 solution.py && cat solution.py\"}}\n</tool_call>".to_owned(),
        _ => format!("It is done ({}).", seed % 1000),
    }
}

/// The ids the scripted student samples; nothing for prompts that are no conversation.
pub fn says(tokenizer: &Tokenizer, ids: &[u32], seed: u64) -> Option<Vec<u32>> {
    let prompt = tokenizer.decode(ids).unwrap();
    let turn = prompt.matches("<|im_start|>assistant\n").count().checked_sub(1)?;
    let text = script(&prompt, turn, seed);
    Some([tokenizer.encode(&text).unwrap().ids, tokenizer.end_ids().to_vec()].concat())
}

/// A set-up that follows the script.
pub fn scripted(dialect: Dialect) -> Setup {
    let tokenizer = tokenizer();
    let mut setup = Setup::new(dialect).says(move |ids, seed| says(&tokenizer, ids, seed));
    setup.context_length = 32_768;
    setup
}

/// A server with a runtime of its own; it is gone when dropped.
pub struct Server {
    pub stand_in: StandIn,
    runtime: Option<Runtime>,
}

impl Server {
    pub fn start(setup: Setup) -> Self {
        Self::start_at("127.0.0.1:0", setup)
    }

    pub fn start_at(address: &str, setup: Setup) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let stand_in = runtime.block_on(StandIn::start_at(address, setup));
        Self { stand_in, runtime: Some(runtime) }
    }

    pub fn url(&self) -> String {
        self.stand_in.url()
    }

    /// The continuations that were asked for, as prompt and seed; probes left out.
    pub fn draws(&self) -> Vec<(Vec<u32>, u64)> {
        let tokenizer = tokenizer();
        let body = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap_or(Value::Null);
        let asked = self.stand_in.asked().into_iter();
        let draws = asked.filter(|it| says(&tokenizer, &it.ids, 0).is_some());
        draws.map(|it| (it.ids.clone(), body(&it.body)["seed"].as_u64().unwrap())).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

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

fn ran(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The traditional user without rights.
const NOBODY: u32 = 65534;

pub struct Place {
    dir: TempDir,
}

impl Place {
    /// A directory with the three tasks and a model that writes calls as Hermes does.
    pub fn new() -> Self {
        let place = Self { dir: TempDir::new().unwrap() };
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml");
        fs::create_dir(place.path("model")).unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(fixtures.join(file), place.path("model").join(file)).unwrap();
        }
        place.write("model/chat_template.jinja", TOOLS);
        place.write("tasks.jsonl", TASKS);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    /// What became of `collect` in its usual directory.
    pub fn summary(&self) -> Value {
        self.json("runs/collect/summary.json")["collect"].clone()
    }

    pub fn lines(&self, name: &str) -> Vec<Value> {
        self.read(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command.current_dir(self.dir.path()).args(arguments).env("HF_HUB_OFFLINE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(&[], arguments)
    }

    /// Runs the program to its end, with these variables.
    pub fn run_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        command.envs(variables.iter().copied());
        ran(command)
    }

    /// Runs the program to its end as a user without rights, to whom the directory is given; as ourselves where
    /// that is what we are.
    pub fn run_as_nobody(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            let give = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            give(self.dir.path());
            command.uid(NOBODY).gid(NOBODY).env("HOME", self.dir.path());
        }
        ran(command)
    }

    /// Runs the program to its end in a directory below.
    pub fn run_in(&self, dir: &str, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        command.current_dir(self.path(dir));
        ran(command)
    }

    /// Runs the program to its end behind another one.
    pub fn run_behind(&self, prefix: &[&str], arguments: &[&str]) -> Ran {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg(env!("CARGO_BIN_EXE_backsight")).args(arguments);
        command.current_dir(self.dir.path());
        ran(command)
    }

    /// Starts the program and leaves it running, unheard.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// The arguments that every run against a scripted server has, and `more`.
    pub fn arguments<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let all =
            ["collect", "--url", url, "--kind", "vllm", "--tokenizer", "model", "--tasks", "tasks.jsonl"];
        let all = [&all[..], &["--eval-size", "0", "--eval-split-ratio", "0", "--now", "1700000000"], more];
        all.concat()
    }

    /// Runs `collect` against a server.
    pub fn collect(&self, server: &Server, more: &[&str]) -> Ran {
        self.run(&Self::arguments(&server.url(), more))
    }

    /// Every episode of a run by its file's name, without what no two runs have in common.
    pub fn episodes(&self, run: &str) -> BTreeMap<String, Value> {
        let files = fs::read_dir(self.path(run).join("episodes")).unwrap().map(|it| it.unwrap().path());
        let read = |path: PathBuf| {
            let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            if let Some(verification) = json.get_mut("verification") {
                verification["seconds"] = json!(0);
            }
            (path.file_name().unwrap().to_string_lossy().into_owned(), json)
        };
        // What a killed process had begun to write is nobody's episode.
        files.filter(|path| path.extension().is_some_and(|it| it == "json")).map(read).collect()
    }
}
