//! Hashes as they are written: SHA-256, in hexadecimal.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The SHA-256 of a text or of bytes.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(bytes))
}

/// Two lower-case digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
