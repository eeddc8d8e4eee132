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

/// Looks in all places for the tokenizer of a server's model, whose name is given where that may tell. A hub that does not
/// give it is an error only where nothing can be done without it.
pub async fn find(
    model: Option<&str>,
    info: &ServerInfo,
    is_needed: bool,
) -> Result<Option<TokenizerAt>, Error> {
    let Some(model) = model else { return Ok(beside(info)) };
    match beside(info) {
        Some(found) => Ok(Some(found)),
        None => of_model(model).await.or_else(|error| if is_needed { Err(error) } else { Ok(None) }),
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
