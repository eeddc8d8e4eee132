//! Incremental encoding gives the ids of encoding everything at once, on our own tokenizers and on real ones.
//!
//! The real ones (Qwen3, Llama 3.2, SmolLM2, …) are directories below `BACKSIGHT_TOKENIZERS`; `tests/get-tokenizers`
//! fetches them. `BACKSIGHT_REQUIRE_REAL=1` makes their absence a failure.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and say what they checked"
)]

use std::ops::Range;
use std::path::{Path, PathBuf};

use backsight_chat::error::TextError;
use backsight_chat::incremental::Incremental;
use backsight_chat::near::Likeness;
use backsight_chat::spans::{self, Wanted};
use backsight_chat::talk::{Portion, Render, Talk};
use backsight_chat::tokenizer::Tokenizer;
use backsight_chat::vocabulary::Vocabulary;
use backsight_core::tokens::check_ids;
use backsight_core::tree::{Replacement, TokenTree};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

/// Pieces that conversations are made of, chosen to meet at awkward places.
const PIECES: &[&str] = &[
    "<|im_start|>",
    "<|im_end|>",
    "<|im_",
    "<|im_start|",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[INST][INST]x",
    "<mask>",
    "<think>",
    "</think>",
    "<tool_call>",
    "user",
    "assistant\n",
    "\n",
    "\n\n",
    "\n\n\n",
    " ",
    "  ",
    "\t",
    ".",
    "hello",
    " world",
    "e\u{301}",
    "\u{301}",
    "ﬁ",
    "한",
    "東京",
    "🤖",
    "\u{200d}",
    "12",
    "345",
    "def f(x):\n    return x\n",
    "{\"a\": 1}",
    "don't",
    "'",
    "\u{2028}",
    "\0",
    "\r\n",
];

fn own() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers");
    ["chatml", "header", "metaspace"].map(|name| root.join(name)).into()
}

#[test]
fn a_tokenizer_is_what_its_library_makes_of_the_file() {
    let text = PIECES.concat();
    for dir in own().into_iter().chain(real()) {
        let ours = Tokenizer::open(&dir).unwrap();
        let library = tokenizers::Tokenizer::from_file(dir.join("tokenizer.json")).unwrap();
        let ids = library.encode(text.as_str(), false).unwrap().get_ids().to_vec();
        assert_eq!(ours.encode(&text).unwrap().ids, ids, "{}", dir.display());
        assert_eq!(ours.decode(&ids).unwrap(), library.decode(&ids, false).unwrap(), "{}", dir.display());
        if !dir.join("config.json").exists() {
            let highest = library.get_vocab(true).into_values().max().unwrap();
            assert_eq!(ours.vocab_size(), highest as usize + 1, "{}", dir.display());
        }
    }
}

/// Directories with a `tokenizer.json` below `BACKSIGHT_TOKENIZERS`.
fn real() -> Vec<PathBuf> {
    let Some(root) = std::env::var_os("BACKSIGHT_TOKENIZERS") else { return Vec::new() };
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|dir| dir.join("tokenizer.json").exists()).collect()
}

/// Growing, shrinking and rewriting texts: each is kept up to a point and continued.
fn histories() -> impl Strategy<Value = Vec<(Option<prop::sample::Index>, String)>> {
    let text = prop::collection::vec(
        prop_oneof![8 => prop::sample::select(PIECES).prop_map(str::to_owned), 1 => any::<String>()],
        0..12,
    );
    let keep = prop::option::weighted(0.25, any::<prop::sample::Index>());
    prop::collection::vec((keep, text.prop_map(|pieces| pieces.concat())), 1..8)
}

fn check_histories(dir: &Path, cases: u32) {
    let tokenizer = Tokenizer::open(dir).unwrap();
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&histories(), |history| {
        let mut incremental = Incremental::new(&tokenizer);
        let mut text = String::new();
        for (keep, more) in history {
            let kept = keep.map_or(text.len(), |keep| keep.index(text.len() + 1));
            text.truncate((0..=kept).rev().find(|&at| text.is_char_boundary(at)).unwrap());
            text.push_str(&more);
            let whole = tokenizer.encode(&text).unwrap().ids;
            prop_assert_eq!(incremental.encode(&text).unwrap(), &whole, "{:?}", text);
            let (at, added) = (keep.map_or(0, |keep| keep.index(text.len() + 1)), more.repeat(2));
            let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap();
            let edited = format!("{}{added}{}", &text[..at], &text[at..]);
            let whole = tokenizer.encode(&edited).unwrap().ids;
            let Replacement { positions, with } = incremental.edited(&(at..at), &added).unwrap();
            let ids = incremental.ids();
            let found = [&ids[..positions.start], &with, &ids[positions.end..]].concat();
            prop_assert_eq!(found, whole, "{:?}", edited);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|why| panic!("{}: {why}", dir.display()));
}

#[test]
fn growing_texts_encode_as_if_whole() {
    for dir in own() {
        check_histories(&dir, 400);
    }
}

#[test]
fn growing_texts_encode_as_if_whole_on_real_tokenizers() {
    let dirs = real();
    println!("real tokenizers checked: {}", dirs.len());
    let required = std::env::var_os("BACKSIGHT_REQUIRE_REAL").is_some();
    assert!(
        !required || dirs.len() >= 3,
        "BACKSIGHT_REQUIRE_REAL is set, but BACKSIGHT_TOKENIZERS names {}",
        dirs.len()
    );
    for dir in dirs {
        check_histories(&dir, 300);
    }
}

#[test]
fn the_cost_is_that_of_the_new_text() {
    let tokenizer = Tokenizer::open(&own()[0]).unwrap();
    let mut incremental = Incremental::new(&tokenizer);
    let turn = "<|im_start|>user\nsome words to encode<|im_end|>\n";
    let mut text = String::new();
    for _ in 0..100 {
        text.push_str(turn);
        incremental.encode(&text).unwrap();
    }
    let last_turns = 3 * text.len() as u64;
    assert!(
        incremental.encoded_bytes() < last_turns,
        "{} bytes for {}",
        incremental.encoded_bytes(),
        text.len()
    );
}

/// A conversation that is always rendered whole.
struct Whole<'a, 'r>(&'a mut Render<'r>);

impl Talk for Whole<'_, '_> {
    fn render(&mut self, portion: Portion<'_>, _: &Range<usize>) -> Result<String, TextError> {
        (self.0)(portion)
    }
}

/// Every step prompt of a conversation of 101 turns costs at most a twentieth of encoding each prompt whole.
fn check_steps(dir: &Path) {
    let tokenizer = Tokenizer::open(dir).unwrap();
    let words = |n: usize| "some words, 12 numbers and e\u{301} to encode ".repeat(n);
    let turn = |idx: usize| {
        let (who, n) =
            if idx.is_multiple_of(2) { ("user", 12 + idx % 7) } else { ("assistant", 7 + idx % 5) };
        format!("<|im_start|>{who}\n{}<|im_end|>\n", words(n))
    };
    let turns: Vec<String> = (0..202).map(turn).collect();
    let mut render = |portion: Portion<'_>| -> Result<String, TextError> {
        let tail = if portion.generation_prompt { "<|im_start|>assistant\n" } else { "" };
        Ok(turns[..portion.n_messages].concat() + tail)
    };
    let actions = (0..202).filter(|idx| idx % 2 == 1);
    let wanted: Vec<Wanted<'_>> = actions.map(|idx| (idx, Vec::new())).collect();
    let mut tree = TokenTree::default();
    let found = spans::reread(&wanted, &Likeness::default(), &mut Whole(&mut render), &tokenizer, &mut tree);
    let prompts = wanted.iter().map(|(idx, _)| render(Portion::prompt(*idx)).unwrap());
    let whole: u64 = prompts.map(|prompt| prompt.len() as u64).sum();
    assert_eq!(found.turns.len(), 101);
    let ratio = whole as f64 / found.encoded_bytes as f64;
    println!("{}: {ratio:.1}x less to encode", dir.display());
    assert!(ratio >= 20.0, "{}: only {ratio:.1}x less to encode", dir.display());
    let (last, _) = found.turns.last().unwrap().as_ref().unwrap();
    let prompt = tokenizer.encode(&render(Portion::prompt(last.message_idx)).unwrap()).unwrap().ids;
    assert_eq!(tree.tokens(found.sequences[last.sequence], 0..last.span.start()), prompt);
}

#[test]
fn all_step_prompts_cost_a_twentieth_of_each_prompt_whole() {
    check_steps(&own()[0]);
    // The other tokenizers have no such special tokens to cut at.
    let chatml = |dir: &PathBuf| Tokenizer::open(dir).unwrap().id_of("<|im_start|>").is_some();
    real().into_iter().filter(chatml).for_each(|dir| check_steps(&dir));
}

#[test]
fn bos_is_added_to_plain_text_only() {
    let tokenizer = Tokenizer::open(&own()[1]).unwrap();
    let bos = tokenizer.id_of("<|begin_of_text|>").unwrap();
    assert_eq!(tokenizer.encode_plain("hi").unwrap().ids[0], bos);
    assert_ne!(tokenizer.encode("hi").unwrap().ids[0], bos);
    assert_eq!(tokenizer.encode("<|begin_of_text|>hi").unwrap().ids[0], bos);
}

#[test]
fn ids_beyond_the_vocabulary_are_refused() {
    let tokenizer = Tokenizer::open(&own()[0]).unwrap();
    let size = tokenizer.vocab_size();
    assert!(tokenizer.check_ids(&[0, size as u32 - 1]).is_ok());
    let wrong = tokenizer.check_ids(&[0, size as u32]).unwrap_err();
    assert_eq!(wrong.to_string(), format!("token {size} at position 1 is outside the vocabulary of {size}"));
    assert!(check_ids(&[7], 7).is_err());
}

#[test]
fn the_end_of_a_turn_is_what_the_files_say() {
    let tokenizer = Tokenizer::open(&own()[0]).unwrap();
    assert_eq!(tokenizer.end_ids(), [tokenizer.id_of("<|im_end|>").unwrap()]);
}

#[test]
fn text_survives_the_round_trip() {
    let tokenizer = Tokenizer::open(&own()[0]).unwrap();
    let text = "<|im_start|>user\nnaïve 東京 🤖 12<|im_end|>\n";
    let encoded = tokenizer.encode(text).unwrap();
    assert_eq!(tokenizer.decode(&encoded.ids).unwrap(), text);
    assert_eq!(encoded.offsets[0], 0.."<|im_start|>".len());
}

#[test]
fn missing_and_broken_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Tokenizer::open(dir.path()).err().unwrap();
    assert!(missing.to_string().contains("tokenizer.json: No such file"), "{missing}");
    std::fs::write(dir.path().join("tokenizer.json"), "{\"version\": 3").unwrap();
    let broken = Tokenizer::open(dir.path()).err().unwrap();
    assert!(broken.to_string().contains("tokenizer.json: the tokenizer failed: invalid type"), "{broken}");
}

/// Qwen3's vocabulary told the way a GGUF file tells it gives Qwen3's own ids again; likewise Llama 3.2 and SmolLM2.
#[test]
fn a_vocabulary_from_gguf_encodes_like_the_original() {
    for (name, pre) in [("qwen3", "qwen2"), ("llama3_2", "llama-bpe"), ("smollm2", "smollm")] {
        let Some(dir) = real().into_iter().find(|dir| dir.ends_with(name)) else { continue };
        let original = Tokenizer::open(&dir).unwrap();
        let rebuilt = Tokenizer::from_vocabulary(&as_gguf_tells_it(&dir, pre)).unwrap();
        let mut runner =
            TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
        let outcome = runner.run(&histories(), |history| {
            let text: String = history.into_iter().map(|(_, more)| more).collect();
            prop_assert_eq!(rebuilt.encode(&text).unwrap(), original.encode(&text).unwrap(), "{:?}", text);
            Ok(())
        });
        outcome.unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

fn as_gguf_tells_it(dir: &Path, pre: &str) -> Vocabulary {
    let json: Value = serde_json::from_slice(&std::fs::read(dir.join("tokenizer.json")).unwrap()).unwrap();
    let mut entries: Vec<(u64, String, i64)> = Vec::new();
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        entries.push((id.as_u64().unwrap(), token.clone(), 1));
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let kind = if token["special"].as_bool().unwrap() { 3 } else { 4 };
        entries.retain(|entry| Some(entry.0) != token["id"].as_u64());
        entries.push((token["id"].as_u64().unwrap(), token["content"].as_str().unwrap().to_owned(), kind));
    }
    entries.sort();
    let merge = |pair: &Value| match pair {
        Value::String(pair) => pair.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    Vocabulary {
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        tokens: entries.iter().map(|entry| entry.1.clone()).collect(),
        types: entries.iter().map(|entry| entry.2).collect(),
        merges: json["model"]["merges"].as_array().unwrap().iter().map(merge).collect(),
        ..Vocabulary::default()
    }
}

/// The GGUF file's own vocabulary gives the ids of the directory that was converted from it.
#[test]
fn smollm2_from_its_gguf_encodes_like_its_directory() {
    let file = std::env::var_os("BACKSIGHT_SMOLLM2_GGUF");
    let required = std::env::var_os("BACKSIGHT_REQUIRE_REAL").is_some();
    assert!(
        !required || file.is_some(),
        "BACKSIGHT_REQUIRE_REAL is set, but BACKSIGHT_SMOLLM2_GGUF names no file"
    );
    let directory = real().into_iter().find(|dir| dir.ends_with("smollm2"));
    let (Some(file), Some(directory)) = (file, directory) else { return println!("no GGUF file to check") };
    let (gguf, directory) =
        (Tokenizer::open(Path::new(&file)).unwrap(), Tokenizer::open(&directory).unwrap());
    assert_eq!((gguf.end_ids(), gguf.vocab_size()), (directory.end_ids(), directory.vocab_size()));
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let same = |history: Vec<(Option<prop::sample::Index>, String)>| {
        let text: String = history.into_iter().map(|(_, more)| more).collect();
        prop_assert_eq!(gguf.encode(&text).unwrap().ids, directory.encode(&text).unwrap().ids, "{:?}", text);
        Ok(())
    };
    runner.run(&histories(), same).unwrap();
}
