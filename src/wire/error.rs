//! What servers say when they refuse: one sentence out of half a dozen shapes.
//!
//! Produced by vLLM, llama.cpp and OpenAI (`{"error": {"message"}}`), SGLang's own routes (the same
//! without a type) and its OpenAI routes (`{"object": "error", "message"}`), Anthropic
//! (`{"type": "error", "error": {"message"}}`), FastAPI (`{"detail"}`), and proxies, which answer
//! with HTML. Owns the reading of all of them. Deliberately absent: what a refusal means, which the
//! HTTP status decides.

use serde_json::Value;

/// No server's message is longer than this in our errors.
const MAX_CHARS: usize = 300;
/// A body larger than this is no error message, so it is not parsed.
const MAX_BODY: usize = 1 << 20;

/// The message in an error body, on one line and shortened; the beginning of the body if it has none.
pub fn server_message(body: &[u8]) -> String {
    let json: Option<Value> = (body.len() <= MAX_BODY).then(|| serde_json::from_slice(body).ok()).flatten();
    let text = match json.as_ref().and_then(message) {
        Some(message) => message,
        None => String::from_utf8_lossy(&body[..body.len().min(4 * MAX_CHARS)]).into_owned(),
    };
    let text = one_line(&text);
    if text.is_empty() { "an empty answer".to_owned() } else { text }
}

fn message(json: &Value) -> Option<String> {
    let places = [json.pointer("/error/message"), json.get("message"), json.get("detail"), json.get("error")];
    let found = places.into_iter().flatten().find(|it| !it.is_null())?;
    Some(found.as_str().map_or_else(|| found.to_string(), str::to_owned))
}

fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: &str) {
        assert_eq!(server_message(body.as_bytes()), expected);
    }

    #[test]
    fn the_message_is_found_in_every_shape() {
        check(r#"{"error": {"message": "too long", "type": "BadRequestError"}}"#, "too long");
        check(r#"{"object": "error", "message": "too long", "code": 400}"#, "too long");
        check(
            r#"{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}"#,
            "Overloaded",
        );
        check(r#"{"detail": "Not Found"}"#, "Not Found");
        check(r#"{"detail": [{"loc": ["body"], "msg": "bad"}]}"#, r#"[{"loc":["body"],"msg":"bad"}]"#);
        check(r#"{"error": "no"}"#, "no");
        check("<html>\n <h1>502 Bad\tGateway</h1>", "<html> <h1>502 Bad Gateway</h1>");
        check("a\0b", "a b");
        check("", "an empty answer");
        check(r#"{"id": 1}"#, r#"{"id": 1}"#);
    }

    #[test]
    fn a_long_message_is_shortened() {
        let text = server_message("é".repeat(5000).as_bytes());
        assert_eq!((text.chars().count(), text.ends_with('…')), (MAX_CHARS + 1, true));
    }
}
