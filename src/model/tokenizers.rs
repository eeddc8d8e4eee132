//! Where a model's tokenizer is: what was named, else beside the model the server names, else what the model's own name tells.
//!
//! Owns the search. That a tokenizer is the server's too is found out in `probe`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Error;
use super::kind::ServerInfo;
use crate::hf::{HubError, HuggingFace, hub_name};
use backsight_chat::tokenizer::Tokenizer;

/// A tokenizer, and where it is.
pub type TokenizerAt = (PathBuf, Arc<Tokenizer>);

/// What is known of a tokenizer before its server was asked.
pub struct Sought {
    /// The one that was named.
    pub named: Option<TokenizerAt>,
    /// The model's name, where that may tell.
    pub model: Option<String>,
    /// Whether nothing can be done without it.
    pub is_needed: bool,
}

impl Sought {
    /// Looks for it in all places. A hub that does not give it is an error only where it is needed.
    pub async fn find(self, info: &ServerInfo) -> Result<Option<TokenizerAt>, Error> {
        if let Some(found) = self.named.or_else(|| beside(info)) {
            return Ok(Some(found));
        }
        let Some(model) = self.model else { return Ok(None) };
        match of_model(&model).await {
            Err(error) if self.is_needed => Err(error),
            found => Ok(found.ok().flatten()),
        }
    }
}

/// The tokenizer at a path.
pub fn load(path: &Path) -> Result<TokenizerAt, Error> {
    let tokenizer = Tokenizer::open(path).map_err(|error| Error::invalid(&error, error.help()))?;
    Ok((path.to_owned(), Arc::new(tokenizer)))
}

/// The tokenizer in the directory the server names, if that is on this machine.
fn beside(info: &ServerInfo) -> Option<TokenizerAt> {
    let path = info.tokenizer_path.as_deref().or(info.model_path.as_deref()).map(PathBuf::from)?;
    load(&path).ok()
}

/// The tokenizer of a model that is called like its directory or as on the hub; none where its name is neither.
async fn of_model(name: &str) -> Result<Option<TokenizerAt>, Error> {
    let Some(repo) = hub_name(Path::new(name)) else { return Ok(load(Path::new(name)).ok()) };
    let failed = |error: HubError| {
        let what = format!(
            "no tokenizer was named, the server's own is not on this machine, and that of `{repo}` cannot be had: {error}"
        );
        let help = format!("name a directory with tokenizer.json with --tokenizer; or else {}", error.help());
        Error::invalid(what, help)
    };
    let hub = HuggingFace::from_env(|name| std::env::var(name).ok()).map_err(failed)?;
    load(&hub.tokenizer(repo).await.map_err(failed)?).map(Some)
}
