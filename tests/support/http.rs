//! A plain HTTP client, for asking servers without anything of ours between.

/// A client with nothing set up.
pub fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}
