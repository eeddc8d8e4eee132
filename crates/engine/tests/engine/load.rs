//! Models that cannot be loaded, and what is said about them. Nothing may be computed before it is said.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use backsight_engine::engine::Engine;
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// A copy of a tiny model to be damaged.
fn copy(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

/// Replaces bytes in a file by as many others.
fn replace(path: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(from.len()).position(|it| it == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path, by: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - by).unwrap();
}

/// Loading must fail with this message (paths left out) and a next action.
fn check(path: &Path, message: &str) {
    let error = Engine::load(path).unwrap_err();
    let told = error.to_string();
    let told = told.split_once(": ").map_or(told.as_str(), |(_, told)| told);
    assert_eq!(told, message);
    assert!(error.help().is_some_and(|help| !help.is_empty()));
}

#[test]
fn what_is_no_model_is_said() {
    let empty = tempfile::tempdir().unwrap();
    check(empty.path(), "No such file or directory (os error 2)");
    check(&empty.path().join("nothing.gguf"), "No such file or directory (os error 2)");
    check(&fixture("tiny-llama/config.json"), "it does not begin with `GGUF`");
    let dir = copy("tiny-qwen3");
    fs::write(dir.path().join("config.json"), "{").unwrap();
    check(dir.path(), "EOF while parsing an object at line 1 column 1");
}

#[test]
fn another_architecture_is_refused_by_name() {
    let dir = copy("tiny-qwen3");
    replace(&dir.path().join("config.json"), "Qwen3ForCausalLM", "Gwen3ForCausalLM");
    check(dir.path(), "the architecture Gwen3ForCausalLM is not supported");
    let dir = copy("tiny-llama");
    replace(&dir.path().join("model.gguf"), "llama", "lhama");
    check(&dir.path().join("model.gguf"), "the architecture lhama is not supported");
}

#[test]
fn a_missing_tensor_is_named() {
    let dir = copy("tiny-qwen3");
    replace(&dir.path().join("model.safetensors"), "layers.1.self_attn.k_proj", "layers.1.self_attn.k_pron");
    check(dir.path(), "the tensor model.layers.1.self_attn.k_proj.weight is missing");
    let dir = copy("tiny-llama");
    fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    check(dir.path(), "No such file or directory (os error 2)");
}

#[test]
fn a_tensor_of_another_shape_or_format_is_named() {
    let dir = copy("tiny-qwen3");
    replace(&dir.path().join("config.json"), "\"intermediate_size\": 96", "\"intermediate_size\": 80");
    check(
        dir.path(),
        "the tensor model.layers.0.mlp.gate_proj.weight has the shape [96, 64] instead of [80, 64]",
    );
    let dir = copy("tiny-qwen3");
    replace(&dir.path().join("config.json"), "\"vocab_size\": 160", "\"vocab_size\": 161");
    check(dir.path(), "the tensor model.embed_tokens.weight has the shape [160, 64] instead of [161, 64]");
    let dir = copy("tiny-qwen3");
    replace(&dir.path().join("model.safetensors"), "\"dtype\":\"BF16\"", "\"dtype\":\"INT8\"");
    let error = Engine::load(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("has the number format INT8, which cannot be read"), "{error}");
}

#[test]
fn a_cut_file_is_told_apart_from_a_whole_one() {
    for (model, file, by) in [("tiny-qwen3", "model.safetensors", 1), ("tiny-llama", "model.gguf", 100)] {
        let dir = copy(model);
        let path = dir.path().join(file);
        cut(&path, by);
        let open = if file.ends_with(".gguf") { path.clone() } else { dir.path().to_owned() };
        let error = Engine::load(&open).unwrap_err().to_string();
        assert!(error.contains("the file is cut: ") && error.contains(file), "{error}");
    }
    let dir = copy("tiny-llama");
    let path = dir.path().join("model.gguf");
    fs::write(&path, &fs::read(&path).unwrap()[..200]).unwrap();
    let error = Engine::load(&path).unwrap_err().to_string();
    assert!(error.contains("it ends in the middle of "), "{error}");
}

#[test]
fn an_index_cannot_lead_outside_its_directory() {
    let dir = copy("tiny-llama");
    let index = dir.path().join("model.safetensors.index.json");
    let json = fs::read_to_string(&index).unwrap().replace("model-00001", "../model-00001");
    fs::write(&index, json).unwrap();
    check(dir.path(), "../model-00001-of-00002.safetensors is no plain file name");
}

#[test]
fn more_weights_than_memory_are_refused_before_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    crate::tiny::write_enormous(dir.path());
    let error = Engine::load(dir.path()).unwrap_err().to_string();
    let told = error.strip_prefix("the model needs ").and_then(|it| it.split_once(" MiB of memory, "));
    let needed: u64 = told.unwrap_or_else(|| panic!("{error}")).0.parse().unwrap();
    assert!(needed >= 1 << 18, "the embedding alone is {} MiB in f32: {error}", 1 << 18);
}

#[test]
fn a_tokenizer_with_more_tokens_than_the_model_is_refused() {
    let engine = Engine::load(&fixture("tiny-qwen2")).unwrap();
    assert_eq!(engine.check_vocabulary(120), Ok(()));
    let error = engine.check_vocabulary(129).unwrap_err();
    assert_eq!(error.to_string(), "the tokenizer has 129 tokens, the model only 128");
}
