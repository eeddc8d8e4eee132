//! A lens written into recorded tokens, which stay as they are everywhere else.
//!
//! Owns [`insert`]. What was sampled is never tokenised again: the place is found in the text of the
//! recorded tokens, and only the stretch between two special tokens around it, in which nothing was
//! sampled, is encoded anew. A place that is not certain is refused.

use std::ops::Range;

use super::error::TextError;
use super::incremental::{Change, change};
use super::tokenizer::Tokenizer;
use backsight_core::tokens::{TokenId, TokenSpan};
use backsight_core::tree::Replacement;

/// What is to be written where.
#[derive(Clone, Copy, Debug)]
pub struct Insertion<'a> {
    /// The context as the template renders it, without and with the lens, if it can.
    pub rendered: Option<(&'a str, &'a str)>,
    /// The text of the message the lens is written into.
    pub content: &'a str,
    /// What is written behind it.
    pub addition: &'a str,
}

/// Why recorded tokens stay as they are: neither the rendering nor the message's text is in them, or that is there twice.
const NOT_FOUND: &str = "the message the lens is written into is not found in the recorded tokens";

/// What writing something into a context does to its tokens, or why they cannot be changed; `sampled` are the actions
/// in it.
pub fn insert(
    tokenizer: &Tokenizer,
    context: &[TokenId],
    sampled: &[TokenSpan],
    insertion: &Insertion<'_>,
) -> Result<Replacement, String> {
    let text = Text::new(tokenizer, context).map_err(|why| why.to_string())?;
    let edit = text.find(insertion).ok_or(NOT_FOUND)?;
    text.replaced(tokenizer, sampled, &edit)
}

/// The same for the end of a context, where the end of a rendering has it; the stretch before the place must be as it
/// is rendered, so that no other place is meant.
pub fn insert_in_end(
    tokenizer: &Tokenizer,
    end: &[TokenId],
    sampled: &[TokenSpan],
    (plain, seen): (&str, &str),
) -> Result<Replacement, String> {
    let text = Text::new(tokenizer, end).map_err(|why| why.to_string())?;
    let change = change(plain, seen);
    let start = change.bytes.start;
    let edit = text.find_at_end(plain, change).ok_or(NOT_FOUND)?;
    let piece = text.piece_of(&edit.bytes).ok_or(NOT_FOUND)?;
    let before = &text.text[text.pieces[piece].start..edit.bytes.start];
    if !plain[..start].ends_with(before) {
        return Err(NOT_FOUND.to_owned());
    }
    text.replaced(tokenizer, sampled, &edit)
}

/// Tokens from one special token to the next, which are encoded independently of the others.
struct Piece {
    tokens: Range<usize>,
    /// Where its text begins.
    start: usize,
}

/// Tokens as text, in pieces.
struct Text {
    text: String,
    pieces: Vec<Piece>,
}

impl Text {
    fn new(tokenizer: &Tokenizer, ids: &[TokenId]) -> Result<Self, TextError> {
        let seams = (1..ids.len()).filter(|at| tokenizer.is_special(ids[*at]) && tokenizer.is_seam(ids[*at]));
        let mut borders: Vec<usize> = seams.collect();
        borders.insert(0, 0);
        borders.push(ids.len());
        let (mut text, mut pieces) = (String::new(), Vec::new());
        for pair in borders.windows(2) {
            pieces.push(Piece { tokens: pair[0]..pair[1], start: text.len() });
            text.push_str(&tokenizer.decode(&ids[pair[0]..pair[1]])?);
        }
        Ok(Self { text, pieces })
    }

    /// What an edit does to the tokens, of which `sampled` are actions.
    fn replaced(
        &self,
        tokenizer: &Tokenizer,
        sampled: &[TokenSpan],
        edit: &Change,
    ) -> Result<Replacement, String> {
        let piece = self.piece_of(&edit.bytes).ok_or(NOT_FOUND)?;
        let Piece { tokens, start, .. } = &self.pieces[piece];
        if sampled.iter().any(|span| span.start() < tokens.end && tokens.start < span.end()) {
            return Err("the lens would change tokens that were sampled".to_owned());
        }
        let whole = &self.text[*start..self.end_of(piece)];
        if whole.contains(char::REPLACEMENT_CHARACTER) {
            return Err("the recorded tokens around the lens are no text".to_owned());
        }
        let (head, tail) = (&whole[..edit.bytes.start - start], &whole[edit.bytes.end - start..]);
        let with = tokenizer.encode_ids(&format!("{head}{}{tail}", edit.with));
        let with = with.map_err(|why| why.to_string())?;
        Ok(Replacement { positions: tokens.clone(), with })
    }

    fn end_of(&self, piece: usize) -> usize {
        self.pieces.get(piece + 1).map_or(self.text.len(), |next| next.start)
    }

    /// The piece all of these bytes lie in; a place on a border belongs to the piece before it.
    fn piece_of(&self, bytes: &Range<usize>) -> Option<usize> {
        (0..self.pieces.len())
            .find(|idx| self.pieces[*idx].start <= bytes.start && bytes.end <= self.end_of(*idx))
    }

    /// Where the rendering has it, if the text begins or ends as the rendering does; else behind the message's text.
    fn find(&self, insertion: &Insertion<'_>) -> Option<Change> {
        insertion.rendered.and_then(|(plain, seen)| self.find_rendered(plain, seen)).or_else(|| {
            let at = self.text.find(insertion.content).filter(|_| !insertion.content.is_empty())?;
            let is_only = self.text.rfind(insertion.content) == Some(at);
            let end = at + insertion.content.len();
            is_only.then_some(Change { bytes: end..end, with: insertion.addition.to_owned() })
        })
    }

    fn find_rendered(&self, plain: &str, seen: &str) -> Option<Change> {
        let change = change(plain, seen);
        if self.text.starts_with(&plain[..change.bytes.end]) {
            return Some(change);
        }
        self.find_at_end(plain, change)
    }

    /// Where the text has the change if it ends as the rendering does.
    fn find_at_end(&self, plain: &str, Change { bytes, with }: Change) -> Option<Change> {
        let start = self.text.strip_suffix(&plain[bytes.start..])?.len();
        Some(Change { bytes: start..start + bytes.len(), with })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::path::Path;

    use super::*;

    const PLAIN: &str = "<|im_start|>user\nsort it<|im_end|>\n<|im_start|>assistant\n";
    const SEEN: &str = "<|im_start|>user\nsort it\n\nLENS<|im_end|>\n<|im_start|>assistant\n";

    fn tokenizer() -> Tokenizer {
        Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers/chatml"))
            .unwrap()
    }

    /// The context with what is inserted.
    fn inserted(
        tokenizer: &Tokenizer,
        context: &[TokenId],
        sampled: &[TokenSpan],
        insertion: &Insertion<'_>,
    ) -> Result<Vec<TokenId>, String> {
        let Replacement { positions, with } = insert(tokenizer, context, sampled, insertion)?;
        Ok([&context[..positions.start], &with, &context[positions.end..]].concat())
    }

    /// The text with the lens in it, or why there is none.
    fn check(recorded: &str, rendered: Option<(&str, &str)>, content: &str, expected: Result<&str, &str>) {
        let tokenizer = tokenizer();
        let context = tokenizer.encode(recorded).unwrap().ids;
        let insertion = Insertion { rendered, content, addition: "\n\nLENS" };
        let found = inserted(&tokenizer, &context, &[], &insertion);
        let found = found.map(|ids| tokenizer.decode(&ids).unwrap());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{recorded}");
    }

    #[test]
    fn the_place_is_where_the_template_has_it() {
        check(PLAIN, Some((PLAIN, SEEN)), "sort it", Ok(SEEN));
        let other_end = PLAIN.replace("assistant\n", "assistant\n<think>");
        check(&other_end, Some((PLAIN, SEEN)), "it", Ok(&SEEN.replace("assistant\n", "assistant\n<think>")));
        let system = "<|im_start|>system\nsort it<|im_end|>\n";
        let framed = format!("{system}{PLAIN}");
        check(&framed, Some((PLAIN, SEEN)), "sort it", Ok(&format!("{system}{SEEN}")));
    }

    #[test]
    fn without_a_rendering_the_text_must_be_there_once() {
        let not_found = "the message the lens is written into is not found in the recorded tokens";
        check(PLAIN, None, "sort it", Ok(SEEN));
        check(&format!("{PLAIN}{PLAIN}"), None, "sort it", Err(not_found));
        check(PLAIN, None, "sort that", Err(not_found));
        check(PLAIN, None, "", Err(not_found));
    }

    #[test]
    fn everything_outside_the_stretch_stays_as_it_was_sampled() {
        let tokenizer = tokenizer();
        let encode = |text: &str| tokenizer.encode(text).unwrap().ids;
        // Letter by letter, as no tokenizer would write it.
        let letters: Vec<TokenId> = "return".chars().flat_map(|c| encode(&c.to_string())).collect();
        assert_ne!(letters, encode("return"));
        let context =
            [encode(PLAIN), letters.clone(), encode("<|im_end|>\n<|im_start|>user\nmore<|im_end|>")].concat();
        let action = TokenSpan::at(encode(PLAIN).len(), letters.len());
        let insertion = |content| Insertion { rendered: None, content, addition: "\n\nLENS" };
        let first = inserted(&tokenizer, &context, &[action], &insertion("sort it")).unwrap();
        assert!(first.starts_with(&encode(SEEN)) && first.ends_with(&context[action.start()..]));
        let last = inserted(&tokenizer, &context, &[action], &insertion("more")).unwrap();
        assert!(last.starts_with(&context[..action.end()]));
        let own = inserted(&tokenizer, &context, &[action], &insertion("return")).unwrap_err();
        assert_eq!(own, "the lens would change tokens that were sampled");
    }
}
