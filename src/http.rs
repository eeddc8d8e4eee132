//! HTTP clients: the one place that says whose cryptography they use, and what their failures mean.

/// A client to be set up. Its TLS is rustls over `ring`, which builds in seconds and needs no CMake.
pub fn client() -> reqwest::ClientBuilder {
    // Whoever installed one first, a program around this library for example, has chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
}

/// What a failed connection said: the innermost cause, without the address (which may hold credentials). The causes
/// around it only say that something could not be sent.
pub fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
