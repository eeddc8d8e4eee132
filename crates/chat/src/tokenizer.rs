//! A model's own tokenizer, with the checks that keep wrong ids from ever leaving us.
//!
//! Owns encoding, decoding, the vocabulary's size and the tokens that end a turn. The work itself is
//! done by the `tokenizers` crate over `tokenizer.json`. Deliberately absent: added BOS or EOS tokens
//! when a rendered conversation is encoded, because a chat template writes its own.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use super::error::TextError;
use super::files::{bad_file, read, read_gguf, read_json, token_text};
use super::vocabulary::Vocabulary;
use backsight_core::hash::sha256;
use backsight_core::tokens::{TokenId, check_ids};

/// What helps where a file is missing or unreadable.
const MISSING: &str = "name a model directory that holds tokenizer.json, or that file itself";
/// What helps where a file is there but is not what it should be.
const BROKEN: &str = "download the file again, or export it with save_pretrained";

/// Ids of a text and the bytes each one stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<TokenId>,
    /// For each id its bytes in the text. Tokens that share a character have overlapping ranges.
    pub offsets: Vec<Range<usize>>,
}

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    added: HashMap<TokenId, AddedToken>,
    vocab_size: usize,
    end_ids: Vec<TokenId>,
}

impl Tokenizer {
    /// From a model directory, a `tokenizer.json` or a GGUF file.
    ///
    /// The files beside a `tokenizer.json` say which tokens end a turn and how large the model's vocabulary is.
    pub fn open(path: &Path) -> Result<Self, TextError> {
        if path.extension().is_some_and(|it| it == "gguf") && !path.is_dir() {
            return Self::from_gguf(path);
        }
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let dir = file.parent().unwrap_or(Path::new("."));
        let mut tokenizer =
            Self::from_json(&read_tokenizer(&file)?).map_err(|why| broken(bad_file(&file, why)))?;
        let beside = |name: &str| read_json(&dir.join(name)).map_err(broken);
        let (model, generation) = (beside("config.json")?, beside("generation_config.json")?);
        if let Some(vocab_size) = vocab_size(&model) {
            tokenizer.vocab_size = vocab_size;
        }
        let eos_tokens = [&generation, &model].map(|config| &config["eos_token_id"]);
        tokenizer.end_ids = tokenizer.ends(eos_tokens, &beside("tokenizer_config.json")?);
        Ok(tokenizer)
    }

    fn from_gguf(path: &Path) -> Result<Self, TextError> {
        let gguf = read_gguf(path).map_err(|why| TextError::new(why, MISSING))?;
        let tokenizer = Self::from_vocabulary(&Vocabulary::from_gguf(&gguf));
        tokenizer.map_err(|why| broken(bad_file(path, why)))
    }

    /// From what a GGUF file says about it.
    pub fn from_vocabulary(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let json = vocabulary.to_json();
        let help = "name a model directory with tokenizer.json by --tokenizer";
        let json = json.map_err(|why| TextError::new(why, help))?;
        let mut tokenizer = Self::from_json(json.to_string().as_bytes())?;
        tokenizer.end_ids = vocabulary.ends.clone();
        Ok(tokenizer)
    }

    /// The SHA-256 of the tokenizer at `path`: of its file, or of what a GGUF file says about it.
    pub fn sha256(path: &Path) -> Result<String, TextError> {
        if path.extension().is_some_and(|it| it == "gguf") {
            let json = Self::from_gguf(path)?.inner.to_string(false).map_err(failed)?;
            return Ok(sha256(json));
        }
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        Ok(sha256(read_tokenizer(&file)?))
    }

    /// From the bytes of a `tokenizer.json`, without knowledge of the model around it.
    pub fn from_json(json: &[u8]) -> Result<Self, TextError> {
        // Nearly all models are BPE. Said so beforehand, a file is read once instead of three times over.
        let bpe = serde_json::from_slice::<BpeTokenizer>(json).map(tokenizers::Tokenizer::from);
        let mut inner = bpe.or_else(|_| tokenizers::Tokenizer::from_bytes(json)).map_err(failed)?;
        // Some files ship with the limits of the training script; a conversation is never cut or padded here.
        inner.with_truncation(None).map_err(failed)?;
        inner.with_padding(None);
        let vocab_size = id_limit(&inner);
        let added = inner.get_added_tokens_decoder().into_iter().collect();
        Ok(Self { inner, added, vocab_size, end_ids: Vec::new() })
    }

    /// Every id that the model's files name as an end, each once: by a number, a list of numbers, or a spelling.
    fn ends(&self, eos_tokens: [&Value; 2], config: &Value) -> Vec<TokenId> {
        let ids = eos_tokens.into_iter().flat_map(|ids| match ids {
            Value::Array(ids) => ids.as_slice(),
            id => std::slice::from_ref(id),
        });
        let ids = ids.filter_map(|id| TokenId::try_from(id.as_u64()?).ok());
        let spelling = config.get("eos_token").and_then(token_text);
        let named = spelling.and_then(|spelling| self.id_of(spelling));
        let ids: BTreeSet<TokenId> = ids.chain(named).collect();
        ids.into_iter().collect()
    }

    /// Encodes text as it stands: special tokens written in it become their ids, none are added.
    pub fn encode(&self, text: &str) -> Result<Encoded, TextError> {
        self.encode_with(text, false)
    }

    /// The ids that [`encode`](Self::encode) gives, without the work of finding their bytes.
    pub fn encode_ids(&self, text: &str) -> Result<Vec<TokenId>, TextError> {
        Ok(self.inner.encode_fast(text, false).map_err(failed)?.get_ids().to_vec())
    }

    /// Encodes plain text as the model defines it, with the BOS or EOS its tokenizer adds.
    pub fn encode_plain(&self, text: &str) -> Result<Encoded, TextError> {
        self.encode_with(text, true)
    }

    fn encode_with(&self, text: &str, add_special_tokens: bool) -> Result<Encoded, TextError> {
        let encoding = self.inner.encode(text, add_special_tokens).map_err(failed)?;
        let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets })
    }

    /// The text of ids, special tokens included.
    pub fn decode(&self, ids: &[TokenId]) -> Result<String, TextError> {
        self.inner.decode(ids, false).map_err(failed)
    }

    /// The token as the vocabulary spells it.
    pub fn spelling(&self, id: TokenId) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token spelled exactly so.
    pub fn id_of(&self, spelling: &str) -> Option<TokenId> {
        self.inner.token_to_id(spelling)
    }

    /// Ids must be below this: the rows of the model's embedding where its configuration is known, else one more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Refuses ids the model does not have.
    pub fn check_ids(&self, ids: &[TokenId]) -> Result<(), String> {
        check_ids(ids, self.vocab_size)
    }

    /// The tokens that end a turn.
    pub fn end_ids(&self) -> &[TokenId] {
        &self.end_ids
    }

    /// Whether `id` is a special token such as `<|im_start|>`, not one that stands for text.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.added.get(&id).is_some_and(|token| token.special)
    }

    /// How an added token is written.
    pub(super) fn added_text(&self, id: TokenId) -> Option<&str> {
        self.added.get(&id).map(|token| token.content.as_str())
    }

    /// In what another tokenizer gives other tokens for our ids, if in anything: what each id stands for, which of them are
    /// special, and how a text is cut.
    pub fn differs_from(&self, other: &Self, text: &str) -> Option<String> {
        let bytes = [self.token_bytes(), other.token_bytes()];
        let of = |it: usize, tokenizer: &Self, id: TokenId| match bytes[it]
            .get(id as usize)
            .and_then(Option::as_ref)
        {
            Some(bytes) => Some(format!("{:?}", String::from_utf8_lossy(bytes))),
            // Special tokens stand for no text; they are told apart by how they are written.
            None => tokenizer.spelling(id),
        };
        for id in (0..bytes[0].len()).filter_map(|id| TokenId::try_from(id).ok()) {
            let (own, theirs) = (of(0, self, id), of(1, other, id));
            let raw = |it: usize| bytes[it].get(id as usize).and_then(Option::as_ref);
            if raw(0) != raw(1) || own != theirs || self.is_special(id) != other.is_special(id) {
                let [own, theirs] = [own, theirs].map(|it| it.unwrap_or_else(|| "nothing".to_owned()));
                return Some(format!("id {id} is {own} here and {theirs} there"));
            }
        }
        let ids = |it: &Self| it.encode_ids(text).ok();
        (ids(self) != ids(other)).then(|| "they cut the same text into other tokens".to_owned())
    }

    /// The bytes each token stands for, by id; `None` for ids that stand for no text: special tokens and gaps.
    pub fn token_bytes(&self) -> Vec<Option<Vec<u8>>> {
        let vocabulary = self.inner.get_vocab(true);
        let highest = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        let mut bytes = vec![None; highest];
        let letters = is_byte_level(&self.inner).then(byte_letters);
        for (token, id) in vocabulary {
            bytes[id as usize] = match self.added.get(&id) {
                // Byte-fallback tokens are sometimes listed as special, and stand for text all the same.
                Some(added) if added.special => fallback_byte(&token).map(|byte| vec![byte]),
                Some(added) => Some(added.content.clone().into_bytes()),
                None => Some(spelled_bytes(&token, letters.as_ref())),
            };
        }
        bytes
    }

    /// Whether text can be cut before every occurrence of `id` without changing any id on either side.
    ///
    /// The tokenizer takes such a token out of the raw text before anything else happens, so what stands
    /// left and right of it is encoded apart. That holds when it takes no white space from its neighbours,
    /// is found in the text as written, and no other added token can take its place.
    pub(super) fn is_seam(&self, id: TokenId) -> bool {
        let Some(token) = self.added.get(&id) else { return false };
        let plain = !token.lstrip && !token.rstrip && !token.single_word && !token.content.is_empty();
        let as_written = !token.normalized || self.inner.get_normalizer().is_none();
        plain && as_written && !self.added.values().any(|other| reaches_into(&other.content, &token.content))
    }
}

/// What a `tokenizer.json` with a BPE model holds.
type BpeTokenizer =
    TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// One more than the highest id. Where there are no gaps that is the number of tokens, and no list has to be made.
fn id_limit(tokenizer: &tokenizers::Tokenizer) -> usize {
    let n_tokens = tokenizer.get_vocab_size(true);
    let has_token = |id: usize| TokenId::try_from(id).is_ok_and(|id| tokenizer.id_to_token(id).is_some());
    if (0..n_tokens).all(has_token) {
        return n_tokens;
    }
    let highest = tokenizer.get_vocab(true).into_values().max();
    highest.map_or(0, |id| id as usize + 1)
}

/// Whether a vocabulary spells every byte by a printable character of its own, as GPT-2 does; others write text as it
/// is, but for `▁` as space and `<0xNN>` as a byte.
fn is_byte_level(tokenizer: &tokenizers::Tokenizer) -> bool {
    let decoder = tokenizer.get_decoder().and_then(|it| serde_json::to_string(it).ok());
    decoder.is_some_and(|it| it.contains("\"type\":\"ByteLevel\""))
}

/// The bytes of a token, whose vocabulary spells them by `letters` if there are any.
fn spelled_bytes(token: &str, letters: Option<&HashMap<char, u8>>) -> Vec<u8> {
    match letters {
        Some(letters) => {
            let bytes: Option<_> = token.chars().map(|c| letters.get(&c).copied()).collect();
            bytes.unwrap_or_else(|| token.as_bytes().to_vec())
        }
        None => fallback_byte(token).map_or_else(|| token.replace('▁', " ").into_bytes(), |byte| vec![byte]),
    }
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for the letters from U+0100 on, in order.
fn byte_letters() -> HashMap<char, u8> {
    let stands_for_itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let own = (0..=u8::MAX).filter(stands_for_itself).map(|byte| (char::from(byte), byte));
    let others = (0..=u8::MAX).filter(|byte| !stands_for_itself(byte));
    own.chain(('\u{100}'..).zip(others)).collect()
}

/// The byte of a token spelled `<0xNN>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Whether `other` can take an occurrence of `token` away: by beginning before it and ending inside or behind it, or by being longer.
fn reaches_into(other: &str, token: &str) -> bool {
    let mut tails = other.char_indices().skip(1).map(|(start, _)| &other[start..]);
    let longer = other != token && other.starts_with(token);
    longer || tails.any(|tail| token.starts_with(tail) || tail.starts_with(token))
}

/// How many rows the embedding of a model has, as its `config.json` says.
fn vocab_size(model: &Value) -> Option<usize> {
    let nested = model.get("text_config").and_then(|it| it.get("vocab_size"));
    usize::try_from(model.get("vocab_size").or(nested)?.as_u64()?).ok()
}

fn read_tokenizer(file: &Path) -> Result<Vec<u8>, TextError> {
    read(file).map_err(|why| TextError::new(why, MISSING))
}

fn broken(file: TextError) -> TextError {
    TextError::new(file, BROKEN)
}

/// A text or ids that the tokenizer refused.
fn failed(error: tokenizers::Error) -> TextError {
    let what = format!("the tokenizer failed: {error}");
    TextError::new(what, "check that the tokenizer belongs to the model")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    /// The bytes of a text's tokens, put together, are what the tokenizer itself decodes.
    fn check(name: &str, text: &str) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers").join(name);
        let tokenizer = Tokenizer::open(&dir).unwrap();
        let bytes = tokenizer.token_bytes();
        let ids = tokenizer.encode(text).unwrap().ids;
        let joined: Vec<u8> = ids.iter().flat_map(|&id| bytes[id as usize].clone().unwrap()).collect();
        assert_eq!(String::from_utf8(joined).unwrap(), tokenizer.decode(&ids).unwrap(), "{name}: {text:?}");
    }

    #[test]
    fn the_bytes_of_tokens_are_what_they_decode_to() {
        let texts = [
            "fn main() {}\n\tlet x = 1234;",
            "naïve café 東京 🤖",
            "a\u{ad}b\u{7f}\u{a0}c\0",
            "  two  ",
            "<0x41>",
        ];
        for name in ["chatml", "header", "metaspace"] {
            texts.iter().for_each(|text| check(name, text));
        }
    }

    #[test]
    fn special_tokens_stand_for_no_text() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers/chatml");
        let tokenizer = Tokenizer::open(&dir).unwrap();
        let bytes = tokenizer.token_bytes();
        assert_eq!(bytes.len(), tokenizer.vocab_size());
        assert_eq!(bytes[tokenizer.id_of("<|im_end|>").unwrap() as usize], None);
        assert_eq!(bytes.iter().filter(|it| it.is_none()).count(), 7);
    }
}
