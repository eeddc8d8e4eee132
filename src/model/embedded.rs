//! The model in this process, as a row of the table of kinds. It is `backsight_engine`'s; no server is asked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Error;
use super::kind::{Kind, ServerInfo};
use super::opened::Opened;
use super::weights::{KNOWN, Weights, WeightsError};
use crate::wire::openai::Listed;
use backsight_engine::engine::LIMITS;
use backsight_engine::model::Embedded;

/// A model that runs here.
pub static EMBEDDED: Kind = Kind {
    name: "embedded",
    about: "A model inside this process; needs no server",
    limits: LIMITS,
    ..Kind::PLAIN
};

/// The name and place of a model: by name, by path, or the default that is here.
pub fn find(weights: &Weights, name: Option<&str>) -> Result<(String, PathBuf), WeightsError> {
    match name {
        Some(name) => Ok((name.to_owned(), weights.path(name)?)),
        None => {
            let found = weights.default_path().map(|(name, path)| (name.to_owned(), path));
            found.ok_or_else(|| WeightsError::NotPulled { name: KNOWN[0].name.to_owned() })
        }
    }
}

/// Loads the model at `path` into this process; `name` is what it is called in reports and ledgers.
pub fn load(name: &str, path: &Path, tokenizer: Option<&Path>) -> Result<Opened, Error> {
    let model = Embedded::load(path, tokenizer)?;
    let text_path = tokenizer.unwrap_or(path);
    let tokenizer = model.tokenizer().ok().map(|it| (text_path.to_owned(), Arc::clone(it)));
    let root = Some(path.display().to_string());
    let listed = Listed { id: name.to_owned(), root, ..Listed::default() };
    let info = ServerInfo {
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        tokenizer_path: tokenizer.as_ref().map(|(path, _)| path.display().to_string()),
        ..ServerInfo::listed(&EMBEDDED, &listed.clone(), vec![listed])
    };
    Ok(Opened { model: Arc::new(model), info, tokenizer, transport: None })
}
