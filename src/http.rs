//! HTTP clients: the one place that says whose cryptography they use.

/// A client to be set up. Its TLS is rustls over `ring`, which builds in seconds and needs no CMake.
pub fn client() -> reqwest::ClientBuilder {
    // Whoever installed one first, a program around this library for example, has chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
}
