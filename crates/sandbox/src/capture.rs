//! Keeps the beginning and the end of a stream of any length in bounded memory.
//!
//! Pure. A program may print a gigabyte; what matters is usually how it began and how it ended.

use std::collections::VecDeque;

/// The kept parts of what was written so far.
#[derive(Clone, Debug)]
pub struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    max_head: usize,
    max_tail: usize,
    n_bytes: u64,
}

impl Capture {
    /// Keeps up to `cap` bytes: two fifths from the beginning, the rest from the end.
    pub fn new(cap: usize) -> Self {
        let max_head = cap / 5 * 2;
        Self { head: Vec::new(), tail: VecDeque::new(), max_head, max_tail: cap - max_head, n_bytes: 0 }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.n_bytes += bytes.len() as u64;
        let room = self.max_head - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend(head);
        let rest = &rest[rest.len().saturating_sub(self.max_tail)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.max_tail);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// How many bytes were written.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// How many of them were not kept.
    pub fn n_omitted(&self) -> u64 {
        self.n_bytes - (self.head.len() + self.tail.len()) as u64
    }

    /// What was kept, with a line that says how much is missing in between.
    pub fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        match self.n_omitted() {
            0 => String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned(),
            n_omitted => {
                let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
                format!("{head}\n... [{n_omitted} bytes omitted] ...\n{tail}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(cap: usize, chunks: &[&str], expected: &str) {
        let mut capture = Capture::new(cap);
        chunks.iter().for_each(|chunk| capture.push(chunk.as_bytes()));
        assert_eq!(capture.text(), expected);
    }

    #[test]
    fn both_ends_are_kept() {
        check(10, &[], "");
        check(10, &["0123456789"], "0123456789");
        check(10, &["01234", "56789a"], "0123\n... [1 bytes omitted] ...\n56789a");
        check(10, &["0123456789", "abcdefghij", "k"], "0123\n... [11 bytes omitted] ...\nfghijk");
        check(10, &["ééééé"], "ééééé");
        check(0, &["abc"], "\n... [3 bytes omitted] ...\n");
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_nothing_is_invented(cap in 0usize..64, chunks: Vec<Vec<u8>>) {
            let mut capture = Capture::new(cap);
            chunks.iter().for_each(|chunk| capture.push(chunk));
            let all = chunks.concat();
            prop_assert_eq!(capture.n_bytes(), all.len() as u64);
            prop_assert!(capture.head.len() + capture.tail.len() <= cap);
            prop_assert!(all.starts_with(&capture.head));
            let tail: Vec<u8> = capture.tail.iter().copied().collect();
            prop_assert!(all.ends_with(&tail));
            prop_assert!(capture.n_omitted() == 0 || capture.head.len() + capture.tail.len() == cap);
        }
    }
}
