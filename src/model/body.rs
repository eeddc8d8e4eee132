//! The bytes of an answer: read up to a bound, and described when they are of no use.
//!
//! Owns the bounded reading of bodies and the short, escaped excerpts that error messages show.
//! What the bytes mean is the decoder's business.

use crate::wire::error;
pub use crate::wire::error::shorten;

/// Bytes of an error's body that are looked at.
pub const ERROR_BODY: usize = 64 * 1024;
/// Memory is set aside for at most this much on a server's word alone.
const TRUSTED_LENGTH: usize = 1 << 20;

/// The whole body, or why it cannot be had: it is longer than `max` bytes, or the connection broke.
pub async fn read(mut response: reqwest::Response, max: usize) -> Result<Vec<u8>, String> {
    let told = response.content_length().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let too_long = || format!("the answer is longer than {max} bytes");
    if told.is_some_and(|n| n > max) {
        return Err(too_long());
    }
    let mut body = Vec::with_capacity(told.unwrap_or(0).min(TRUSTED_LENGTH));
    loop {
        let chunk = response.chunk().await;
        let cut =
            |why| format!("the answer was cut after {} bytes: {}", body.len(), crate::http::reason(why));
        let Some(chunk) = chunk.map_err(cut)? else { return Ok(body) };
        if chunk.len() > max - body.len() {
            return Err(too_long());
        }
        body.extend_from_slice(&chunk);
    }
}

/// The beginning of a body, as much as there is up to `max` bytes; an error page is only quoted, never used.
pub async fn read_beginning(mut response: reqwest::Response, max: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk[..chunk.len().min(max - body.len())]);
        if body.len() == max {
            break;
        }
    }
    body
}

/// Why `body` is unusable, with what it looks like. `scrub` removes what must not be repeated.
pub fn describe(reason: &str, body: &[u8], scrub: &dyn Fn(&str) -> String) -> String {
    let reason = shorten(&scrub(reason));
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    match (first, body.iter().position(|&byte| byte == 0)) {
        (None, _) => format!("{reason}; the body is empty"),
        (_, Some(at)) => format!("{reason}; byte {at} of {} is NUL: {}", body.len(), excerpt(body, scrub)),
        (Some(b'<'), _) => format!("{reason}; it looks like HTML: {}", excerpt(body, scrub)),
        _ => format!("{reason}; the {} bytes begin with {}", body.len(), excerpt(body, scrub)),
    }
}

/// What an error's body says. Scrubbed before it is cut, because half a key is still half a key.
pub fn message(body: &[u8], scrub: &dyn Fn(&str) -> String) -> String {
    shorten(&scrub(&error::server_message(body)))
}

fn excerpt(body: &[u8], scrub: &dyn Fn(&str) -> String) -> String {
    shorten(&scrub(&error::quoted(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_bodies_are_described() {
        let check =
            |body: &[u8], expected: &str| assert_eq!(describe("not JSON", body, &str::to_owned), expected);
        check(b"", "not JSON; the body is empty");
        check(b" <html>\n<b>", "not JSON; it looks like HTML: \" <html>\\n<b>\"");
        check(b"{\"a\": \x00}", "not JSON; byte 6 of 8 is NUL: \"{\"a\": \\u{0}}\"");
        check(b"{\"a\": [1", "not JSON; the 8 bytes begin with \"{\"a\": [1\"");
        check(b"\xff\x1b[31m", "not JSON; the 6 bytes begin with \"\u{fffd}\\u{1b}[31m\"");
    }

    #[test]
    fn excerpts_are_short() {
        let long = describe("not JSON", &[b'x'; 1_000_000], &str::to_owned);
        assert!(long.len() < error::SHOWN + 50 && long.ends_with("…\""), "{long}");
    }

    #[test]
    fn a_key_is_masked_even_where_the_excerpt_ends() {
        let body = format!("{}sk-secret-key", "x".repeat(error::SHOWN - 6));
        let scrub = |text: &str| text.replace("sk-secret-key", "***");
        for text in [describe("bad", body.as_bytes(), &scrub), message(body.as_bytes(), &scrub)] {
            assert!(text.contains("***") && !text.contains("sk-"), "{text}");
        }
    }
}
