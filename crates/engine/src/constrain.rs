//! Constrained decoding: at every step only tokens that keep the text in the wanted shape.
//!
//! Owns the border to llguidance, which follows a JSON schema or a regular expression token by token.
//! What bytes a token stands for is given from outside ([`TokenBytes`]). Deliberately absent: drawing.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use backsight_core::model::{Constraint, Error};
use backsight_core::tokens::TokenId;

/// What bytes each token stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenBytes {
    /// By id; `None` for control tokens, which are no text.
    pub tokens: Vec<Option<Vec<u8>>>,
    /// The token that ends a text.
    pub end: TokenId,
}

/// Makes the followers of shapes for one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    end: TokenId,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a model with `vocab` tokens; ids without bytes are never allowed.
    pub fn new(vocabulary: &TokenBytes, vocab: usize) -> Result<Self, Error> {
        if vocabulary.tokens.len() > vocab || vocabulary.end as usize >= vocab {
            let what =
                format!("the tokenizer's {} tokens do not fit the model's {vocab}", vocabulary.tokens.len());
            return Err(Error::invalid(what, "use the tokenizer that came with the model"));
        }
        let words: Vec<Vec<u8>> = (0..vocab).map(|id| word(vocabulary, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, vocabulary.end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new(&env, InferenceCapabilities::default(), &[]).map_err(unusable)?;
        factory.quiet();
        Ok(Self { factory, end: vocabulary.end })
    }

    /// Begins to follow a shape.
    pub fn follow(&self, constraint: &Constraint) -> Result<Follower, Error> {
        let grammar = match constraint {
            Constraint::JsonSchema(schema) => TopLevelGrammar::from_json_schema(spaced(schema)),
            Constraint::Regex(regex) => TopLevelGrammar::from_regex(regex),
        };
        let matcher = Matcher::new(Ok(self.factory.create_parser(grammar).map_err(unusable)?));
        match matcher.get_error() {
            Some(why) => Err(unusable(why)),
            None => Ok(Follower { matcher, end: self.end }),
        }
    }
}

/// The marker keeps control tokens apart from the same letters in a text.
fn word(vocabulary: &TokenBytes, id: usize) -> Vec<u8> {
    match vocabulary.tokens.get(id) {
        Some(Some(bytes)) => bytes.clone(),
        _ => [&[TokTrie::SPECIAL_TOKEN_MARKER][..], format!("<{id}>").as_bytes()].concat(),
    }
}

/// The schema with the spaces that Python's `json.dumps` writes, and no others: a small model left free would fill its answer with them.
fn spaced(schema: &Value) -> Value {
    let spaces = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    match schema.clone() {
        Value::Object(mut schema) => {
            schema.entry("x-guidance").or_insert(spaces);
            Value::Object(schema)
        }
        other => other,
    }
}

fn unusable(why: impl std::fmt::Display) -> Error {
    let what = format!("the constraint cannot be followed: {why}");
    Error::invalid(what, "simplify the JSON schema or regular expression")
}

/// Follows one text through a shape.
pub struct Follower {
    matcher: Matcher,
    end: TokenId,
}

impl Follower {
    /// Sets the logits of all tokens that would break the shape to negative infinity.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(unusable)?;
        for (id, logit) in logits.iter_mut().enumerate() {
            if !allowed.is_allowed(id as TokenId) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Takes note of a token that was drawn.
    pub fn take(&mut self, token: TokenId) -> Result<(), Error> {
        if token == self.end && self.matcher.is_stopped() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(unusable)
    }

    /// Whether the text is complete and nothing can follow, or it was ended.
    pub fn is_done(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// The token that ends a text.
    pub fn end(&self) -> TokenId {
        self.end
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    /// One token per byte, a few words, and the end.
    fn vocabulary() -> TokenBytes {
        let words = ["true", "{\"", "\": ", "name", "<|end|>"].map(|it| Some(it.as_bytes().to_vec()));
        let mut tokens: Vec<_> = (0..=255u8).map(|byte| Some(vec![byte])).chain(words).collect();
        tokens.push(None);
        TokenBytes { end: 261, tokens }
    }

    fn grammars() -> Grammars {
        Grammars::new(&vocabulary(), 270).unwrap()
    }

    /// The tokens allowed after `text` was written byte by byte.
    fn allowed(constraint: &Constraint, text: &str) -> Vec<TokenId> {
        let mut follower = grammars().follow(constraint).unwrap();
        text.bytes().for_each(|byte| follower.take(byte.into()).unwrap());
        let mut logits = [0.0f32; 270];
        follower.mask(&mut logits).unwrap();
        (0..270).filter(|&id| logits[id as usize] == 0.0).collect()
    }

    fn check(constraint: &Constraint, text: &str, expected: &[&str]) {
        let spell = |&id: &TokenId| match &vocabulary().tokens[id as usize] {
            Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            None => "END".to_owned(),
        };
        assert_eq!(
            allowed(constraint, text).iter().map(spell).collect::<Vec<_>>(),
            expected,
            "after {text:?}"
        );
    }

    #[test]
    fn a_regular_expression_is_followed_as_a_whole() {
        let regex = Constraint::Regex("(yes|no)[0-9]?".to_owned());
        check(&regex, "", &["n", "y"]);
        check(&regex, "ye", &["s"]);
        check(&regex, "no", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "END"]);
        check(&regex, "no7", &["END"]);
    }

    #[test]
    fn a_schema_is_followed_with_fixed_spaces() {
        let schema = json!({"type": "object", "properties": {"name": {"enum": ["a", true]}}, "required": ["name"], "additionalProperties": false});
        let schema = Constraint::JsonSchema(schema);
        check(&schema, "", &["{", "{\""]);
        check(&schema, "{\"", &["n", "name"]);
        check(&schema, "{\"name\"", &[":"]);
        check(&schema, "{\"name\": ", &["\"", "t", "true"]);
        check(&schema, "{\"name\": true}", &["END"]);
    }

    #[test]
    fn control_tokens_are_no_text() {
        let regex = Constraint::Regex("<\\|end\\|>".to_owned());
        check(&regex, "", &["<", "<|end|>"]);
        let mut tokens = vocabulary();
        tokens.tokens[260] = None;
        let mut follower = Grammars::new(&tokens, 262).unwrap().follow(&regex).unwrap();
        let mut logits = [0.0f32; 262];
        follower.mask(&mut logits).unwrap();
        assert_eq!(logits[260], f32::NEG_INFINITY);
    }

    #[test]
    fn a_finished_text_can_only_end() {
        let mut follower = grammars().follow(&Constraint::Regex("a".to_owned())).unwrap();
        assert!(!follower.is_done());
        follower.take(u32::from(b'a')).unwrap();
        follower.take(follower.end()).unwrap();
        assert!(follower.is_done());
    }

    #[test]
    fn what_cannot_be_followed_is_said() {
        let error = grammars().follow(&Constraint::Regex("(".to_owned())).err().unwrap();
        assert!(error.to_string().starts_with("the constraint cannot be followed"), "{error}");
        let schema = json!({"type": "object", "properties": {"a": {"type": "mystery"}}});
        assert!(grammars().follow(&Constraint::JsonSchema(schema)).is_err());
        assert!(Grammars::new(&vocabulary(), 100).is_err());
    }
}
