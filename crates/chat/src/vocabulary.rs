//! A tokenizer made from the vocabulary that a GGUF file carries.
//!
//! Owns the translation of llama.cpp's description (a model name, a pre-tokenizer's name, tokens, merges)
//! into the `tokenizer.json` it was made from. The pre-tokenizer matters: leaving out the one that splits
//! digits, as other conversions do for SmolLM2, changes the ids of most texts with numbers. A name that
//! is not known is an error, never a guess. Reading the file itself is the business of `wire`.

use serde_json::{Map, Value, json};

use crate::gguf::Gguf;
use backsight_core::tokens::TokenId;

/// What a GGUF file says about its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: the kind of tokenizer.
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is split before merging.
    pub pre: String,
    /// `tokenizer.ggml.tokens`: every token by id, as the vocabulary spells it.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 3 control, 4 user-defined, …
    pub types: Vec<i64>,
    /// `tokenizer.ggml.merges`: pairs in order of priority, each `left right`.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`, put before plain text when `add_bos` says so.
    pub bos: Option<TokenId>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: bool,
    /// `tokenizer.ggml.eos_token_id` and other tokens that end a turn.
    pub ends: Vec<TokenId>,
}

/// How a family of models splits text before merging.
#[derive(Clone, Copy)]
enum Split {
    /// GPT-2's own expression, which the byte-level step brings along.
    Gpt2,
    /// Every digit by itself, then GPT-2's expression.
    Digits,
    /// A given expression.
    Regex(&'static str),
}

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// llama.cpp's names of pre-tokenizers: the split, whether text is put into NFC first, whether whole words skip merging.
const PRE_TOKENIZERS: [(&str, Split, bool, bool); 5] = [
    ("gpt-2", Split::Gpt2, false, false),
    ("smollm", Split::Digits, false, false),
    ("qwen2", Split::Regex(QWEN2), true, false),
    ("llama-bpe", Split::Regex(LLAMA3), false, true),
    ("llama3", Split::Regex(LLAMA3), false, true),
];

impl Vocabulary {
    /// As a GGUF file's metadata tells it; a list that is missing is empty, and refused when the tokenizer is built.
    pub fn from_gguf(gguf: &Gguf) -> Self {
        let get = |key: &str| gguf.metadata.get(&format!("tokenizer.ggml.{key}"));
        let text = |key: &str| get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = |key: &str| get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let texts =
            |key: &str| list(key).iter().map(|it| it.as_str().unwrap_or_default().to_owned()).collect();
        let id = |key: &str| get(key)?.as_u64().and_then(|id| TokenId::try_from(id).ok());
        let types = list("token_type").iter().map(|it| it.as_i64().unwrap_or_default()).collect();
        Self {
            model: text("model"),
            pre: text("pre"),
            tokens: texts("tokens"),
            types,
            merges: texts("merges"),
            bos: id("bos_token_id"),
            add_bos: get("add_bos_token").and_then(Value::as_bool).unwrap_or(false),
            ends: ["eos_token_id", "eot_token_id", "eom_token_id"].iter().filter_map(|key| id(key)).collect(),
        }
    }

    /// As a `tokenizer.json` says it.
    pub(super) fn to_json(&self) -> Result<Value, String> {
        let Self { model, pre, .. } = self;
        if model != "gpt2" {
            return Err(format!(
                "the GGUF file's tokenizer is `{model}`, only byte-level BPE (`gpt2`) can be built from a GGUF file"
            ));
        }
        let unknown = || {
            let known = PRE_TOKENIZERS.map(|it| it.0).join(", ");
            format!("the GGUF file's pre-tokenizer `{pre}` is unknown; known are {known}")
        };
        let found = PRE_TOKENIZERS.into_iter().find(|it| it.0 == *pre);
        let (_, split, nfc, ignore_merges) = found.ok_or_else(unknown)?;
        let ids: Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": self.added_tokens()?,
            "normalizer": if nfc { json!({"type": "NFC"}) } else { Value::Null },
            "pre_tokenizer": pre_tokenizer(split),
            "post_processor": self.post_processor(),
            "decoder": byte_level(true),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": ignore_merges, "vocab": ids, "merges": self.pairs()?,
            },
        }))
    }

    /// Control tokens are special; user-defined ones are taken out of the text too, but stand for it.
    fn added_tokens(&self) -> Result<Vec<Value>, String> {
        let (tokens, types) = (self.tokens.len(), self.types.len());
        if tokens != types {
            return Err(format!("the GGUF file has {tokens} tokens but {types} token types"));
        }
        let added = self.tokens.iter().zip(&self.types).enumerate();
        let added = added.filter(|(_, (_, kind))| matches!(kind, 3 | 4)).map(|(id, (content, kind))| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == 3,
            })
        });
        Ok(added.collect())
    }

    fn pairs(&self) -> Result<Vec<Value>, String> {
        let pair = |(index, merge): (usize, &String)| match merge.split_once(' ') {
            Some((left, right)) => Ok(json!([left, right])),
            None => Err(format!("merge {index} of the GGUF file is no pair of tokens")),
        };
        self.merges.iter().enumerate().map(pair).collect()
    }

    fn post_processor(&self) -> Value {
        let bos = self.bos.filter(|_| self.add_bos);
        let Some((id, token)) = bos.and_then(|id| Some((id, self.tokens.get(id as usize)?))) else {
            return Value::Null;
        };
        let first = json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        json!({
            "type": "TemplateProcessing",
            "single": [first, text("A")],
            "pair": [first, text("A"), text("B")],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
        })
    }
}

fn pre_tokenizer(split: Split) -> Value {
    let steps = match split {
        Split::Gpt2 => vec![byte_level(true)],
        Split::Digits => vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true)],
        Split::Regex(regex) => {
            let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
            vec![split, byte_level(false)]
        }
    };
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;

    fn small(pre: &str) -> Vocabulary {
        let tokens = ["<|end|>", "a", "b", "1", "2", "ab", "12", "<x>"].map(str::to_owned);
        Vocabulary {
            model: "gpt2".into(),
            pre: pre.into(),
            types: vec![3, 1, 1, 1, 1, 1, 1, 4],
            tokens: tokens.into(),
            merges: vec!["a b".into(), "1 2".into()],
            bos: Some(0),
            add_bos: true,
            ends: vec![0],
        }
    }

    #[test]
    fn the_pre_tokenizer_decides_about_digits() {
        let ids =
            |pre| Tokenizer::from_vocabulary(&small(pre)).unwrap().encode("ab12<x><|end|>").unwrap().ids;
        assert_eq!(ids("gpt-2"), [5, 6, 7, 0]);
        assert_eq!(ids("smollm"), [5, 3, 4, 7, 0]);
    }

    #[test]
    fn bos_and_ends_are_as_the_file_says() {
        let tokenizer = Tokenizer::from_vocabulary(&small("gpt-2")).unwrap();
        assert_eq!(tokenizer.encode_plain("a").unwrap().ids, [0, 1]);
        assert_eq!(tokenizer.end_ids(), [0]);
        assert!(tokenizer.is_special(0) && !tokenizer.is_special(7));
    }

    #[test]
    fn what_is_unknown_is_refused() {
        let refuse =
            |vocabulary: Vocabulary| Tokenizer::from_vocabulary(&vocabulary).err().unwrap().to_string();
        assert!(
            refuse(small("elvish"))
                .starts_with("the GGUF file's pre-tokenizer `elvish` is unknown; known are gpt-2")
        );
        assert!(refuse(Vocabulary { model: "llama".into(), ..small("gpt-2") }).contains("`llama`"));
        assert!(
            refuse(Vocabulary { types: vec![1], ..small("gpt-2") }).contains("8 tokens but 1 token types")
        );
        assert!(refuse(Vocabulary { merges: vec!["ab".into()], ..small("gpt-2") }).contains("merge 0"));
    }
}
