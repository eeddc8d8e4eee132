//! The number formats of ggml, which GGUF files are made of: blocks of small integers with a common scale.
//!
//! Owns their layout and their exact values in f32, as ggml itself defines them (a product, then a sum,
//! each rounded once). The surprise: within a block the low halves of all bytes come first, then the high
//! halves. Deliberately absent: arithmetic on quantised numbers.

/// A number format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 32-bit floats cut to 16 bits.
    BF16,
    /// 4 bits, symmetric.
    Q4_0,
    /// 4 bits with a minimum.
    Q4_1,
    /// 5 bits, symmetric.
    Q5_0,
    /// 5 bits with a minimum.
    Q5_1,
    /// 8 bits, symmetric.
    Q8_0,
    /// 4 bits, scales and minima themselves quantised.
    Q4K,
    /// 5 bits, scales and minima themselves quantised.
    Q5K,
    /// 6 bits, scales themselves quantised.
    Q6K,
}

/// Each format with its number in GGUF files, the numbers in a block, and its bytes.
const FORMATS: [(Format, u32, (usize, usize)); 11] = [
    (Format::F32, 0, (1, 4)),
    (Format::F16, 1, (1, 2)),
    (Format::Q4_0, 2, (32, 18)),
    (Format::Q4_1, 3, (32, 20)),
    (Format::Q5_0, 6, (32, 22)),
    (Format::Q5_1, 7, (32, 24)),
    (Format::Q8_0, 8, (32, 34)),
    (Format::Q4K, 12, (256, 144)),
    (Format::Q5K, 13, (256, 176)),
    (Format::Q6K, 14, (256, 210)),
    (Format::BF16, 30, (1, 2)),
];

impl Format {
    /// The format with this number in GGUF files; `None` when it is not one we read.
    pub fn from_gguf(kind: u32) -> Option<Self> {
        FORMATS.iter().find(|it| it.1 == kind).map(|it| it.0)
    }

    /// The format that safetensors files call so; `None` when it is not one we read.
    pub fn from_safetensors(dtype: &str) -> Option<Self> {
        [Self::F32, Self::F16, Self::BF16].into_iter().find(|it| format!("{it:?}") == dtype)
    }

    /// Numbers in a block, and its bytes.
    fn block(self) -> (usize, usize) {
        FORMATS.iter().find(|it| it.0 == self).map_or((1, 1), |it| it.2)
    }

    /// The bytes of `n` numbers; `None` when they do not fill whole blocks.
    pub fn bytes(self, n: usize) -> Option<usize> {
        let (numbers, bytes) = self.block();
        if n.is_multiple_of(numbers) { (n / numbers).checked_mul(bytes) } else { None }
    }

    /// The numbers that `bytes` stand for. A block that is cut off gives nothing.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let (numbers, size) = self.block();
        let mut out = vec![0.0; bytes.len() / size * numbers];
        for (out, block) in out.chunks_exact_mut(numbers).zip(bytes.chunks_exact(size)) {
            self.decode_block(block, out);
        }
        out
    }

    fn decode_block(self, block: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            Self::F16 => out[0] = f16(block, 0),
            Self::BF16 => out[0] = half::bf16::from_le_bytes([block[0], block[1]]).to_f32(),
            Self::Q4_0 => {
                let scale = f16(block, 0);
                nibbles(&block[2..], out, |q, _| f32::from(q as i8 - 8) * scale);
            }
            Self::Q4_1 => {
                let (scale, minimum) = (f16(block, 0), f16(block, 2));
                nibbles(&block[4..], out, |q, _| f32::from(q) * scale + minimum);
            }
            Self::Q5_0 => {
                let (scale, high) = (f16(block, 0), fifth_bits(&block[2..]));
                nibbles(&block[6..], out, |q, i| f32::from((q | high(i)) as i8 - 16) * scale);
            }
            Self::Q5_1 => {
                let (scale, minimum, high) = (f16(block, 0), f16(block, 2), fifth_bits(&block[4..]));
                nibbles(&block[8..], out, |q, i| f32::from(q | high(i)) * scale + minimum);
            }
            Self::Q8_0 => {
                let scale = f16(block, 0);
                out.iter_mut().zip(&block[2..]).for_each(|(out, &q)| *out = f32::from(q as i8) * scale);
            }
            Self::Q4K => four_or_five_bits(block, &block[16..], |_, _| 0, out),
            Self::Q5K => {
                let high = |group: usize, i: usize| (block[16 + i] >> group & 1) << 4;
                four_or_five_bits(block, &block[48..], high, out);
            }
            Self::Q6K => six_bits(block, out),
        }
    }
}

/// The exact value of the 16-bit float at byte `at`.
fn f16(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Sixteen bytes: the low halves are numbers 0 to 15, the high halves 16 to 31.
fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    for (i, &byte) in bytes.iter().take(16).enumerate() {
        out[i] = value(byte & 15, i);
        out[i + 16] = value(byte >> 4, i + 16);
    }
}

/// The fifth bits of 32 numbers, one in each bit of a 32-bit number.
fn fifth_bits(bytes: &[u8]) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    move |i| ((bits >> i & 1) as u8) << 4
}

/// The six-bit scale and minimum of group `j` of eight, packed into twelve bytes.
fn scale_and_minimum(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let high = |i: usize| packed[i] >> 6 << 4;
        (packed[j + 4] & 15 | high(j - 4), packed[j + 4] >> 4 | high(j))
    };
    (scale.into(), minimum.into())
}

/// Eight groups of 32 numbers; two groups share 32 bytes, the first in the low halves.
fn four_or_five_bits(block: &[u8], low: &[u8], high: impl Fn(usize, usize) -> u8, out: &mut [f32]) {
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], group);
        let (scale, minimum) = (f16(block, 0) * scale, f16(block, 2) * minimum);
        for (i, out) in out.iter_mut().enumerate() {
            let q = low[group / 2 * 32 + i] >> (group % 2 * 4) & 15 | high(group, i);
            *out = scale * f32::from(q) - minimum;
        }
    }
}

/// Two halves of 128 numbers, each four groups of 32: four low bits in `ql`, two high bits in `qh`, a scale for every 16.
fn six_bits(block: &[u8], out: &mut [f32]) {
    let scale = f16(block, 208);
    for (half, out) in out.chunks_exact_mut(128).enumerate() {
        let (ql, qh, scales) = (&block[half * 64..], &block[128 + half * 32..], &block[192 + half * 8..]);
        for (i, out) in out.iter_mut().enumerate() {
            let (group, i) = (i / 32, i % 32);
            let low = ql[group % 2 * 32 + i] >> (group / 2 * 4) & 15;
            let high = qh[i] >> (group * 2) & 3;
            let q = (low | high << 4) as i8 - 32;
            *out = scale * f32::from(scales[group * 2 + i / 16] as i8) * f32::from(q);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Blocks of every format with the values that ggml's own Python package gives them.
    const BLOCKS: &str = include_str!("../../../tests/fixtures/ggml/blocks.json");

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2);
        digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    }

    #[test]
    fn every_format_decodes_to_the_very_bits_of_ggml() {
        let cases: Vec<Value> = serde_json::from_str(BLOCKS).unwrap();
        assert_eq!(cases.len(), 11);
        for case in cases {
            let format = Format::from_gguf(case["kind"].as_u64().unwrap() as u32).unwrap();
            let bytes = hex(case["bytes"].as_str().unwrap());
            let expected: Vec<u32> = hex(case["values"].as_str().unwrap())
                .as_chunks()
                .0
                .iter()
                .map(|it| u32::from_le_bytes(*it))
                .collect();
            let values = format.decode(&bytes);
            assert_eq!(format.bytes(values.len()), Some(bytes.len()), "{format:?}");
            assert_eq!(values.iter().map(|it| it.to_bits()).collect::<Vec<_>>(), expected, "{format:?}");
        }
    }

    #[test]
    fn sixteen_bit_floats_are_exact() {
        let check = |bits: u16, value: f32| {
            assert_eq!(f16(&bits.to_le_bytes(), 0).to_bits(), value.to_bits(), "{bits:#x}");
        };
        check(0x0000, 0.0);
        check(0x8000, -0.0);
        check(0x3c00, 1.0);
        check(0xc500, -5.0);
        check(0x7bff, 65504.0);
        check(0x0001, 2f32.powi(-24));
        check(0x83ff, -1023.0 * 2f32.powi(-24));
        check(0x7c00, f32::INFINITY);
        assert!(f16(&0x7e00u16.to_le_bytes(), 0).is_nan());
    }
}
