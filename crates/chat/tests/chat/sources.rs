//! Where templates and special tokens come from.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;

use backsight_chat::error::TextError;
use backsight_chat::source::ChatTemplates;
use serde_json::{Map, Value, json};

/// Names and contents.
type Files<'a> = &'a [(&'a str, &'a str)];

/// A model's directory with these files.
fn directory(files: Files<'_>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

#[test]
fn the_right_template_is_selected() {
    let one = r#"{"chat_template": "config"}"#;
    let several =
        r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}"#;
    let rag =
        r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}]}"#;
    // Files, then what is rendered without and with tools.
    let cases: &[(Files, [&str; 2])] = &[
        (&[("tokenizer_config.json", one)], ["config", "config"]),
        (&[("tokenizer_config.json", several)], ["D", "T"]),
        (&[("tokenizer_config.json", rag)], ["D", "D"]),
        (&[("tokenizer_config.json", one), ("chat_template.jinja", "file")], ["file", "file"]),
        (
            &[("chat_template.jinja", "file"), ("additional_chat_templates/tool_use.jinja", "extra")],
            ["file", "extra"],
        ),
        (&[("chat_template.jinja", "file"), ("additional_chat_templates/notes.txt", "no")], ["file", "file"]),
        // Files win over all of the configuration's templates, not over one name each.
        (&[("tokenizer_config.json", several), ("chat_template.jinja", "file")], ["file", "file"]),
        (&[("chat_template.json", r#"{"chat_template": "processor"}"#)], ["processor", "processor"]),
    ];
    for (files, expected) in cases {
        let dir = directory(files);
        let templates = ChatTemplates::from_dir(dir.path()).unwrap();
        let selected =
            [false, true].map(|has_tools| templates.select(has_tools).unwrap().source().to_owned());
        assert_eq!(selected, *expected, "{files:?}");
    }
}

#[test]
fn special_tokens_are_strings_whatever_they_were() {
    let config = r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null,
        "image_token": "<image>", "extra_special_tokens": {"boi_token": "<boi>"}, "add_bos_token": true,
        "chat_template": ""}"#;
    let map =
        r#"{"unk_token": {"content": "<unk>"}, "eos_token": "<end>", "additional_special_tokens": ["<x>"]}"#;
    let expected = json!({"bos_token": "<s>", "eos_token": "<end>", "image_token": "<image>", "boi_token": "<boi>", "unk_token": "<unk>"});
    let dir = directory(&[("tokenizer_config.json", config), ("special_tokens_map.json", map)]);
    let templates = ChatTemplates::from_dir(dir.path()).unwrap();
    assert_eq!(Value::Object(templates.special_tokens().clone()), expected);
    let own = json!({"eos_token": "mine", "x": 1});
    let variables = templates.variables(own.as_object().unwrap());
    assert_eq!(
        (&variables["eos_token"], &variables["bos_token"], &variables["x"]),
        (&json!("mine"), &json!("<s>"), &json!(1))
    );

    // A configuration that lists its added tokens is complete without the map.
    let config = r#"{"eos_token": "</s>", "added_tokens_decoder": {}, "chat_template": ""}"#;
    let dir = directory(&[("tokenizer_config.json", config), ("special_tokens_map.json", map)]);
    let templates = ChatTemplates::from_dir(dir.path()).unwrap();
    assert_eq!(Value::Object(templates.special_tokens().clone()), json!({"eos_token": "</s>"}));
}

/// The bytes of a GGUF file with text entries, a vocabulary and token ids.
fn gguf(texts: &[(&str, &str)], vocabulary: &[&str], ids: &[(&str, u32)]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for (key, text) in texts {
        entries.push([string(key), 8u32.to_le_bytes().to_vec(), string(text)].concat());
    }
    let tokens: Vec<u8> = vocabulary.iter().flat_map(|token| string(token)).collect();
    let n_tokens = (vocabulary.len() as u64).to_le_bytes();
    let array = [&9u32.to_le_bytes()[..], &8u32.to_le_bytes(), &n_tokens, &tokens].concat();
    entries.push([string("tokenizer.ggml.tokens"), array].concat());
    for (key, id) in ids {
        entries.push([string(key), 4u32.to_le_bytes().to_vec(), id.to_le_bytes().to_vec()].concat());
    }
    let n_entries = (entries.len() as u64).to_le_bytes();
    [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &n_entries, &entries.concat()].concat()
}

#[test]
fn gguf_files_bring_templates_and_tokens() {
    let texts = [
        ("tokenizer.chat_template", "D"),
        ("tokenizer.chat_template.tool_use", "T"),
        ("tokenizer.chat_templates", "x"),
    ];
    let ids = [
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.padding_token_id", 2),
        ("tokenizer.ggml.eos_token_id", 99),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, gguf(&texts, &["a", "<s>", "<pad>"], &ids)).unwrap();
    let templates = ChatTemplates::from_gguf(&path).unwrap();
    assert_eq!(templates.names().collect::<Vec<_>>(), ["default", "tool_use"]);
    assert_eq!(templates.select(true).unwrap().source(), "T");
    // An id outside the vocabulary names no token.
    assert_eq!(
        Value::Object(templates.special_tokens().clone()),
        json!({"bos_token": "<s>", "pad_token": "<pad>"})
    );
    fs::write(&path, gguf(&[], &[], &[])).unwrap();
    let error = ChatTemplates::from_gguf(&path).unwrap_err().to_string();
    assert!(
        error.ends_with("no chat template found; looked for tokenizer.chat_template in its metadata"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_is_said_with_the_file() {
    let check = |result: Result<ChatTemplates, TextError>, expected: &str| {
        let error = result.and_then(|it| it.select(false).map(drop)).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!error.help().is_empty());
    };
    let dir = directory(&[("tokenizer_config.json", "{}")]);
    check(ChatTemplates::from_dir(dir.path()), "no chat template found; looked for chat_template.jinja");
    let dir = directory(&[("tokenizer_config.json", "{nonsense")]);
    check(
        ChatTemplates::from_dir(dir.path()),
        "tokenizer_config.json: not JSON: key must be a string at line 1",
    );
    let named = r#"{"chat_template": [{"name": "rag", "template": "R"}]}"#;
    let dir = directory(&[("tokenizer_config.json", named)]);
    check(ChatTemplates::from_dir(dir.path()), "there is no chat template named \"default\"; there are rag");
    let dir = directory(&[("chat_template.jinja", "line one\n{% if %}")]);
    check(
        ChatTemplates::from_dir(dir.path()),
        "chat_template.jinja: line 2: expected an expression, found `%}`",
    );
    check(
        ChatTemplates::from_dir(Path::new("/nowhere/at/all")),
        "/nowhere/at/all: there is no such directory",
    );
    check(ChatTemplates::from_file(Path::new("/nowhere.jinja")), "/nowhere.jinja: No such file");
    check(ChatTemplates::from_gguf(Path::new("/nowhere.gguf")), "/nowhere.gguf: No such file");
    let dir = directory(&[("model.gguf", "GGML?")]);
    check(ChatTemplates::from_gguf(&dir.path().join("model.gguf")), "it does not begin with `GGUF`");
}

#[test]
fn a_file_of_its_own_is_a_template() {
    let dir = directory(&[("own.jinja", "{{ bos_token }}!")]);
    let templates = ChatTemplates::from_file(&dir.path().join("own.jinja")).unwrap();
    assert_eq!(templates.select(true).unwrap().source(), "{{ bos_token }}!");
    assert_eq!(*templates.special_tokens(), Map::new());
}
