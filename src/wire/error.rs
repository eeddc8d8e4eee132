//! What servers say when they refuse: one sentence out of half a dozen shapes.
//!
//! Produced by vLLM, llama.cpp and OpenAI (`{"error": {"message"}}`), SGLang's own routes (the same
//! without a type) and its OpenAI routes (`{"object": "error", "message"}`), Anthropic
//! (`{"type": "error", "error": {"message"}}`), FastAPI (`{"detail"}`), and proxies, which answer
//! with HTML. Owns the reading of all of them, and what is fit to be shown of a foreign text.
//! Deliberately absent: what a refusal means, which the HTTP status decides, and keys, which are
//! masked by those who know them.

use serde_json::Value;

/// Characters of a foreign text that a message repeats.
pub const SHOWN: usize = 300;
/// A body larger than this is no error message, so it is not parsed.
const MAX_BODY: usize = 1 << 20;
/// Bytes of a body from which an excerpt is made.
const QUOTABLE: usize = 8 << 10;

/// What an error's body says: its message, if it has one of the shapes servers use, else the body's beginning in
/// quotes. Uncut, because a key in it must be found before it is cut.
pub fn server_message(body: &[u8]) -> String {
    match message(body) {
        Some(message) => message,
        None if body.is_empty() => "(no further explanation)".to_owned(),
        None => quoted(body),
    }
}

/// The message in an error's body.
fn message(body: &[u8]) -> Option<String> {
    let json: Value = (body.len() <= MAX_BODY).then(|| serde_json::from_slice(body).ok()).flatten()?;
    let places = ["/error/message", "/message", "/error", "/detail/0/msg", "/detail"];
    let text = places.iter().find_map(|place| json.pointer(place)?.as_str());
    text.filter(|text| !text.trim().is_empty()).map(str::to_owned)
}

/// The beginning of `body` in quotes.
pub fn quoted(body: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(&body[..body.len().min(QUOTABLE)]))
}

/// At most [`SHOWN`] characters of `text`, printable and on one line; quotes that enclose it stay closed.
pub fn shorten(text: &str) -> String {
    let (inner, quote) = match text.strip_prefix('"').and_then(|it| it.strip_suffix('"')) {
        Some(inner) => (inner, "\""),
        None => (text, ""),
    };
    let printable = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let short: String = inner.chars().take(SHOWN).map(printable).collect();
    let more = if inner.chars().nth(SHOWN).is_some() { "…" } else { "" };
    format!("{quote}{short}{more}{quote}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: &str) {
        assert_eq!(shorten(&server_message(body.as_bytes())), expected);
    }

    #[test]
    fn the_message_is_found_in_every_shape() {
        check(r#"{"error": {"message": "too long", "type": "BadRequestError"}}"#, "too long");
        check(r#"{"object": "error", "message": "no such model", "code": 404}"#, "no such model");
        check(
            r#"{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}"#,
            "Overloaded",
        );
        check(r#"{"detail": "Not Found"}"#, "Not Found");
        check(r#"{"detail": [{"loc": ["body"], "msg": "field required"}]}"#, "field required");
        check(r#"{"error": "overloaded"}"#, "overloaded");
        check(r#"{"error": {"message": "two\nlines"}}"#, "two\\nlines");
    }

    #[test]
    fn what_has_no_message_is_quoted() {
        check("", "(no further explanation)");
        check("Bad Gateway", "\"Bad Gateway\"");
        check("<html>\n<h1>502</h1>", "\"<html>\\n<h1>502</h1>\"");
        check("a\0b\u{1b}[31m", "\"a\\u{0}b\\u{1b}[31m\"");
        check(r#"{"id": 1}"#, r#""{"id": 1}""#);
        check(r#"{"error": {"message": ""}}"#, r#""{"error": {"message": ""}}""#);
    }

    #[test]
    fn a_long_text_is_shortened() {
        let text = shorten(&server_message("é".repeat(5000).as_bytes()));
        assert_eq!((text.chars().count(), text.ends_with("…\"")), (SHOWN + 3, true));
        let text = shorten(&server_message(format!("{{\"error\": \"{}\"}}", "x".repeat(5000)).as_bytes()));
        assert_eq!((text.chars().count(), text.ends_with('…')), (SHOWN + 1, true));
    }
}
