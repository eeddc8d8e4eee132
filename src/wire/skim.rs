//! Finds where a nested JSON value ends, 64 bytes at a time.
//!
//! Owns the inner loop of [`super::scan`]: which brackets of a block lie outside strings is computed
//! for all of its bytes at once, and only those are looked at one by one. What is checked on the way
//! is that brackets match, that strings close, and that no control character or non-ASCII byte
//! stands where JSON has none. Deliberately absent: values, which nobody here looks at.

/// Bytes looked at together, so that one bit for each makes one number.
const BLOCK: usize = 64;
/// Deeper nesting than any server writes; it bounds the stack of open brackets to the bits of one number.
const MAX_DEPTH: u32 = 128;

/// Where skimming stopped, counted from the start of the value, and why.
pub(super) type Stopped = (usize, &'static str);
pub(super) const CUT: &str = "the JSON ends in the middle";

/// The length of the list or object that `bytes` begin with.
pub(super) fn nested_len(bytes: &[u8]) -> Result<usize, Stopped> {
    let mut skim = Skim::default();
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut last = [b' '; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    for (index, block) in blocks.iter().chain([&last]).enumerate() {
        let start = index * BLOCK;
        if let Some(end) = skim.block(block).map_err(|(at, why)| (start + at, why))? {
            return Ok(start + end);
        }
    }
    Err((bytes.len(), CUT))
}

/// What is carried from one block to the next.
#[derive(Default)]
struct Skim {
    open: Brackets,
    /// All ones when the last block ended inside a string.
    in_string: u64,
    /// One when the last block ended with a backslash that escapes the next byte.
    escaped: u64,
}

impl Skim {
    /// Takes the next block; gives the place behind the closing bracket if it is in there.
    fn block(&mut self, block: &[u8; BLOCK]) -> Result<Option<usize>, Stopped> {
        let odd = is_odd(block);
        let mut quotes = bits(block, |byte| byte == b'"');
        if odd || self.escaped != 0 {
            quotes &= !self.escaped_bytes(bits(block, |byte| byte == b'\\'));
        }
        let in_string = prefix_xor(quotes) ^ self.in_string;
        // The highest bit, spread over all bits.
        self.in_string = (in_string.cast_signed() >> 63).cast_unsigned();
        // `{` and `[`, and `}` and `]`, differ in one bit only.
        let brackets = bits(block, |byte| (byte | 0x20 == b'{') | (byte | 0x20 == b'}'));
        let end = self.brackets(block, brackets & !in_string)?;
        match first_bad(block, odd, in_string) {
            Some(bad) if end.is_none_or(|end| bad.0 < end) => Err(bad),
            _ => Ok(end),
        }
    }

    /// The bytes that a backslash takes the meaning of.
    fn escaped_bytes(&mut self, backslashes: u64) -> u64 {
        let mut escaped = self.escaped;
        let mut left = backslashes & !escaped;
        self.escaped = 0;
        while left != 0 {
            let bit = left & left.wrapping_neg();
            self.escaped = bit >> 63;
            escaped |= bit << 1;
            left &= !(bit | (bit << 1));
        }
        escaped
    }

    fn brackets(&mut self, block: &[u8; BLOCK], mut brackets: u64) -> Result<Option<usize>, Stopped> {
        while brackets != 0 {
            let at = brackets.trailing_zeros() as usize;
            self.open.take(block[at]).map_err(|why| (at, why))?;
            if self.open.depth == 0 {
                return Ok(Some(at + 1));
            }
            brackets &= brackets - 1;
        }
        Ok(None)
    }
}

/// Whether a byte needs a closer look: an escape, a control character, or no ASCII.
fn is_odd(block: &[u8; BLOCK]) -> bool {
    block.iter().fold(false, |odd, &byte| odd | (byte == b'\\') | !(0x20..0x80).contains(&byte))
}

/// The first byte of an odd block that may not stand where it does.
fn first_bad(block: &[u8; BLOCK], odd: bool, in_string: u64) -> Option<Stopped> {
    if !odd {
        return None;
    }
    let controls = bits(block, |byte| byte < 0x20);
    let suspicious = controls | bits(block, |byte| byte >= 0x80) & !in_string;
    let is_space = |at: usize| matches!(block[at], b'\t' | b'\n' | b'\r') && in_string >> at & 1 == 0;
    if suspicious == 0 {
        return None;
    }
    let at = (0..BLOCK).find(|&at| suspicious >> at & 1 == 1 && !is_space(at))?;
    let inside = in_string >> at & 1 == 1;
    Some((at, if inside { "a control character in a string" } else { "a byte that JSON cannot contain" }))
}

/// One bit for each byte that `is`, the first byte in the lowest bit. Comparing all bytes first and
/// packing afterwards lets the compiler use vector instructions for the comparison; the product
/// moves the lowest bits of eight bytes next to each other into the highest byte.
fn bits(block: &[u8; BLOCK], is: impl Fn(u8) -> bool) -> u64 {
    let marks = block.map(|byte| u8::from(is(byte)));
    let (words, _) = marks.as_chunks::<8>();
    words
        .iter()
        .rev()
        .fold(0, |bits, &word| bits << 8 | u64::from_le_bytes(word).wrapping_mul(0x0102_0408_1020_4080) >> 56)
}

/// Each bit becomes the parity of itself and all lower bits: ones from an opening quote up to its closing one.
fn prefix_xor(bits: u64) -> u64 {
    [1, 2, 4, 8, 16, 32].into_iter().fold(bits, |bits, shift| bits ^ bits << shift)
}

/// The open brackets, innermost in the lowest bit: one for `{`, zero for `[`.
#[derive(Default)]
struct Brackets {
    kinds: u128,
    depth: u32,
}

impl Brackets {
    fn take(&mut self, byte: u8) -> Result<(), &'static str> {
        if matches!(byte, b'{' | b'[') { self.push(byte) } else { self.pop(byte) }
    }

    fn push(&mut self, byte: u8) -> Result<(), &'static str> {
        if self.depth == MAX_DEPTH {
            return Err("nested too deeply");
        }
        self.kinds = (self.kinds << 1) | u128::from(byte == b'{');
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self, byte: u8) -> Result<(), &'static str> {
        let fits = (self.kinds & 1 == 1) == (byte == b'}');
        self.kinds >>= 1;
        self.depth = self.depth.saturating_sub(1);
        if fits { Ok(()) } else { Err("a closing bracket that closes nothing") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_mark_bytes_in_order(block in proptest::array::uniform32(any::<[u8; 2]>()), limit in any::<u8>()) {
            let mut bytes = [0; BLOCK];
            bytes.copy_from_slice(block.as_flattened());
            let found = bits(&bytes, |byte| byte < limit);
            prop_assert!((0..BLOCK).all(|at| (found >> at & 1 == 1) == (bytes[at] < limit)));
        }

        #[test]
        fn escapes_are_followed_across_blocks(
            start in 0..130usize,
            n_backslashes in 0..8usize,
            tail in 0..70usize,
        ) {
            let mut text = format!("[\"{}{}\",[]]", "x".repeat(start), "\\".repeat(n_backslashes));
            let end = text.len();
            text.push_str(&" ".repeat(tail));
            let closed = n_backslashes % 2 == 0;
            let expected = if closed { Ok(end) } else { Err((text.len(), CUT)) };
            prop_assert_eq!(nested_len(text.as_bytes()), expected);
        }
    }
}
