//! Encoding a text that grows, at the cost of what is new.
//!
//! Owns [`Incremental`]: the ids of one text after another, each the same as encoding it whole, while
//! only what lies behind the last safe cut in the common prefix is encoded again; of a text that differs
//! in one place, only what lies between the cuts around that place. A cut is safe before a special token
//! that the tokenizer takes out of the raw text first; where a text has none, it is encoded whole.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::error::TextError;
use super::tokenizer::{Encoded, Tokenizer};
use backsight_core::tokens::TokenId;
use backsight_core::tree::Replacement;

/// The ids of a text that changes mostly by growing.
pub struct Incremental<'t> {
    tokenizer: &'t Tokenizer,
    text: String,
    ids: Vec<TokenId>,
    cuts: Vec<Cut>,
    seams: HashMap<TokenId, bool>,
    /// The last pieces that were put into other texts: steps with the same lens in the same message share one.
    pieces: VecDeque<(String, Vec<TokenId>)>,
    encoded_bytes: u64,
}

/// Pieces that are kept: as many lenses as a step is likely to have.
const MAX_PIECES: usize = 8;

/// A place where text and ids can be parted: before a special token of the text.
#[derive(Clone, Copy, Default)]
struct Cut {
    /// Where the special token begins in the text.
    byte: usize,
    /// Where it ends; the cut holds only while all of it stands in the text.
    end: usize,
    /// Its index among the ids.
    token: usize,
}

impl<'t> Incremental<'t> {
    /// Starts from the empty text.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self {
            tokenizer,
            text: String::new(),
            ids: Vec::new(),
            cuts: Vec::new(),
            seams: HashMap::new(),
            pieces: VecDeque::new(),
            encoded_bytes: 0,
        }
    }

    /// The ids of `text`, equal to encoding it whole.
    pub fn encode(&mut self, text: &str) -> Result<&[TokenId], TextError> {
        let common = common_prefix(&self.text, text);
        self.change(common, &text[common..])?;
        Ok(&self.ids)
    }

    /// Puts `tail` behind the first `keep` bytes of the text, and says how many of the ids stay as they are.
    pub fn change(&mut self, keep: usize, tail: &str) -> Result<usize, TextError> {
        while self.cuts.last().is_some_and(|cut| cut.end > keep) {
            self.cuts.pop();
        }
        let from = self.cuts.last().copied().unwrap_or_default();
        let piece = [&self.text[from.byte..keep], tail].concat();
        let fresh = self.tokenizer.encode(&piece)?;
        self.encoded_bytes += piece.len() as u64;
        self.take(&piece, from, &fresh);
        Ok(from.token)
    }

    /// The text that was encoded last.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its ids.
    pub fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// What the ids of the text would be with other words at `bytes`: where they differ, and what stands there.
    pub fn edited(&mut self, bytes: &Range<usize>, with: &str) -> Result<Replacement, TextError> {
        let n_before = self.cuts.partition_point(|cut| cut.end <= bytes.start);
        let from = n_before.checked_sub(1).map(|idx| self.cuts[idx]).unwrap_or_default();
        let to = self.cuts.get(self.cuts.partition_point(|cut| cut.byte < bytes.end));
        let (end, tail) = to.map_or((self.text.len(), self.ids.len()), |cut| (cut.byte, cut.token));
        let piece = [&self.text[from.byte..bytes.start], with, &self.text[bytes.end..end]].concat();
        let known = self.piece(&piece)?;
        Ok(Replacement { positions: from.token..tail, with: self.pieces[known].1.clone() })
    }

    /// Where the ids of a piece are kept.
    fn piece(&mut self, piece: &str) -> Result<usize, TextError> {
        if let Some(known) = self.pieces.iter().position(|(text, _)| text == piece) {
            return Ok(known);
        }
        let ids = self.tokenizer.encode_ids(piece)?;
        self.encoded_bytes += piece.len() as u64;
        self.pieces.truncate(MAX_PIECES - 1);
        self.pieces.push_front((piece.to_owned(), ids));
        Ok(0)
    }

    /// How many bytes went through the tokenizer so far: the work that was really done.
    pub fn encoded_bytes(&self) -> u64 {
        self.encoded_bytes
    }

    fn take(&mut self, piece: &str, from: Cut, fresh: &Encoded) {
        self.text.truncate(from.byte);
        self.text.push_str(piece);
        self.ids.truncate(from.token);
        self.ids.extend_from_slice(&fresh.ids);
        self.cuts.pop();
        for (idx, (&id, offset)) in fresh.ids.iter().zip(&fresh.offsets).enumerate() {
            if self.is_seam(id, &piece[offset.clone()]) {
                let (byte, end) = (from.byte + offset.start, from.byte + offset.end);
                self.cuts.push(Cut { byte, end, token: from.token + idx });
            }
        }
    }

    /// Whether `id`, which stands for `written`, parts the text. Byte-fallback tokens stand for other text than their own.
    fn is_seam(&mut self, id: TokenId, written: &str) -> bool {
        let tokenizer = self.tokenizer;
        let seam = self.seams.entry(id).or_insert_with(|| tokenizer.is_seam(id));
        *seam && tokenizer.added_text(id) == Some(written)
    }
}

/// The length in bytes of what two texts begin with, on a character's border in both.
pub(super) fn common_prefix(a: &str, b: &str) -> usize {
    const BLOCK: usize = 4096;
    let (a_bytes, b_bytes) = (a.as_bytes(), b.as_bytes());
    let shorter = a_bytes.len().min(b_bytes.len());
    let mut len = 0;
    while len + BLOCK <= shorter && a_bytes[len..len + BLOCK] == b_bytes[len..len + BLOCK] {
        len += BLOCK;
    }
    len += a_bytes[len..shorter].iter().zip(&b_bytes[len..shorter]).take_while(|(x, y)| x == y).count();
    while !(a.is_char_boundary(len) && b.is_char_boundary(len)) {
        len -= 1;
    }
    len
}

/// The length in bytes of what two texts end with, on a character's border in both.
pub(super) fn common_suffix(a: &str, b: &str) -> usize {
    let same = a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count();
    let is_border = |len: &usize| a.is_char_boundary(a.len() - len) && b.is_char_boundary(b.len() - len);
    (0..=same).rev().find(is_border).unwrap_or(0)
}

/// Other words in one place of a text.
#[derive(Clone, PartialEq)]
pub(super) struct Change {
    pub(super) bytes: Range<usize>,
    pub(super) with: String,
}

/// What makes another text of `plain`.
pub(super) fn change(plain: &str, seen: &str) -> Change {
    let start = common_prefix(plain, seen);
    let rest = common_suffix(&plain[start..], &seen[start..]);
    Change { bytes: start..plain.len() - rest, with: seen[start..seen.len() - rest].to_owned() }
}
