//! LiveCodeBench's private tests: base64 of zlib of a pickled text of JSON.
//!
//! A pickle is a program; unpickling one runs it. So only the few instructions of a pickled text are read
//! here, and anything else is refused.

use std::io::Read;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;

/// Bytes that packed tests may have when they are unpacked; a few packed ones can become very many.
const MAX_BYTES: u64 = 256 << 20;

/// The text that was packed, or why there is none.
pub fn unpack(packed: &str) -> Result<String, String> {
    let bytes = STANDARD.decode(packed.trim()).map_err(|error| format!("they are no base64: {error}"))?;
    let mut pickle = Vec::new();
    let mut decoder = ZlibDecoder::new(bytes.as_slice()).take(MAX_BYTES + 1);
    decoder.read_to_end(&mut pickle).map_err(|error| format!("they are no zlib data: {error}"))?;
    match pickle.len() as u64 > MAX_BYTES {
        true => Err(format!("they unpack to more than {} MiB", MAX_BYTES >> 20)),
        false => pickled_text(&pickle),
    }
}

/// The text in a pickle that holds one and nothing else.
pub fn pickled_text(mut pickle: &[u8]) -> Result<String, String> {
    let mut text = None;
    loop {
        let [code] = fixed(&mut pickle)?;
        match code {
            // PROTO, FRAME: which version, and how long a part is.
            0x80 => drop(fixed::<1>(&mut pickle)?),
            0x95 => drop(fixed::<8>(&mut pickle)?),
            // MEMOIZE, BINPUT, LONG_BINPUT: remembering the text, which nothing refers to.
            0x94 => {}
            b'q' => drop(fixed::<1>(&mut pickle)?),
            b'r' => drop(fixed::<4>(&mut pickle)?),
            // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8: a text.
            0x8c | b'X' | 0x8d if text.is_none() => text = Some(string(code, &mut pickle)?),
            // STOP
            b'.' if pickle.is_empty() => return text.ok_or_else(|| "their pickle holds nothing".to_owned()),
            _ => return Err(format!("their pickle holds more than a text (instruction {code:#04x})")),
        }
    }
}

fn string(code: u8, pickle: &mut &[u8]) -> Result<String, String> {
    let n_bytes = match code {
        0x8c => u64::from(fixed::<1>(pickle)?[0]),
        b'X' => u64::from(u32::from_le_bytes(fixed(pickle)?)),
        _ => u64::from_le_bytes(fixed(pickle)?),
    };
    let n_bytes = usize::try_from(n_bytes).map_err(|error| error.to_string())?;
    let bytes = pickle.split_off(..n_bytes).ok_or(CUT)?;
    String::from_utf8(bytes.to_owned()).map_err(|error| format!("their text is no UTF-8: {error}"))
}

const CUT: &str = "their pickle is cut off";

fn fixed<const N: usize>(pickle: &mut &[u8]) -> Result<[u8; N], String> {
    let bytes = pickle.split_off(..N).ok_or(CUT)?;
    <[u8; N]>::try_from(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pickled_texts_of_every_version_are_read() {
        // `pickle.dumps('[1]', protocol)` for 2, 3 and 4.
        for pickle in [
            b"\x80\x02X\x03\x00\x00\x00[1]q\x00.".as_slice(),
            b"\x80\x03X\x03\x00\x00\x00[1]q\x00.",
            b"\x80\x04\x95\x07\x00\x00\x00\x00\x00\x00\x00\x8c\x03[1]\x94.",
        ] {
            assert_eq!(pickled_text(pickle), Ok("[1]".to_owned()));
        }
        let packed = "eJxrYJnKzgABPczRhrFT9AAb7QNb";
        assert_eq!(unpack(packed), Ok("[1]".to_owned()));
    }

    #[test]
    fn what_would_run_something_is_refused() {
        // `os.system` called with a text, and the like.
        for pickle in [
            b"cos\nsystem\n(S'id'\ntR.".as_slice(),
            b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.",
            b"\x80\x04\x8c\x01a\x94.\x80",
            b"\x80\x04]\x94.",
            b"\x80\x04.",
            b"\x80\x04\x8c\xffab",
            b"",
        ] {
            assert!(pickled_text(pickle).is_err(), "{pickle:?}");
        }
        assert!(unpack("?").is_err_and(|why| why.starts_with("they are no base64")));
        assert!(unpack("aGVsbG8=").is_err_and(|why| why.starts_with("they are no zlib data")));
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes: Vec<u8>) {
            let _ = pickled_text(&bytes);
        }
    }
}
