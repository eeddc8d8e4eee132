//! Datasets of the Hugging Face hub: finds the Parquet files of a repository's split and keeps copies.
//!
//! Honours `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE` as other programs do. Copies are
//! kept with their entity tags, so that what did not change is not fetched again; a file appears only
//! when it is whole. Reading the files is left to `parquet`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, ETAG, IF_NONE_MATCH, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use tokio::io::AsyncWriteExt;

const N_TRIES: u32 = 4;
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Where the hub is and what we know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// Its address, without a slash at the end.
    pub endpoint: String,
    /// What opens private datasets.
    pub token: Option<String>,
    /// Where copies are kept.
    pub cache: PathBuf,
    /// Whether only copies may be used.
    pub is_offline: bool,
}

impl HubSettings {
    /// From environment variables, looked up by `variable`.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let caches = variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&variable("HOME")?).join(".cache")));
        let home = variable("HF_HOME").map(PathBuf::from);
        let home = home.unwrap_or_else(|| caches.unwrap_or_else(std::env::temp_dir).join("huggingface"));
        let token_file = || fs::read_to_string(home.join("token")).ok().map(|it| it.trim().to_owned());
        let offline = variable("HF_HUB_OFFLINE").unwrap_or_default().to_lowercase();
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: variable("HF_TOKEN").or_else(token_file).filter(|it| !it.is_empty()),
            cache: home.join("backsight").join("datasets"),
            is_offline: ["1", "on", "yes", "true"].contains(&offline.as_str()),
        }
    }

    /// From this process's environment.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }
}

/// A dataset of the hub: `owner/name`, or `owner/name:config` for one of its configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    repo: String,
    config: Option<String>,
}

impl HubName {
    /// Reads a name; none when it is no name the hub would take.
    pub fn parse(text: &str) -> Option<Self> {
        let (repo, config) = text.split_once(':').map_or((text, None), |(repo, config)| (repo, Some(config)));
        let parts: Vec<&str> = repo.split('/').collect();
        let is_fine = parts.len() <= 2 && parts.iter().copied().chain(config).all(is_word);
        is_fine.then(|| Self { repo: repo.to_owned(), config: config.map(str::to_owned) })
    }
}

/// Whether a text can be part of an address and of a path.
fn is_word(text: &str) -> bool {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    is_plain && !text.is_empty() && !text.starts_with('.')
}

/// Why a dataset cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No such name.
    #[error("{0:?} is no name of a dataset\nhelp: write --dataset-name owner/name, or owner/name:config")]
    BadName(String),
    /// The hub does not let us.
    #[error(
        "the hub refuses dataset {0}: it is private, gated or does not exist\nhelp: check the name, accept the dataset's terms, and set HF_TOKEN"
    )]
    Refused(String),
    /// There is no such dataset, or it has no Parquet files.
    #[error(
        "the hub has no Parquet files for dataset {0}\nhelp: check --dataset-name; datasets that need code to load have none"
    )]
    Missing(String),
    /// There is no such split.
    #[error(
        "dataset {name} has no split {split:?}; it has {available}\nhelp: choose one with --dataset-split, a configuration with owner/name:config"
    )]
    NoSplit {
        /// The dataset.
        name: String,
        /// What was asked for.
        split: String,
        /// What there is, as `config/split`.
        available: String,
    },
    /// The hub does not answer.
    #[error(
        "the hub at {endpoint} does not answer: {reason}\nhelp: check the network and HF_ENDPOINT, or use a copy with HF_HUB_OFFLINE=1"
    )]
    Unreachable {
        /// Its address.
        endpoint: String,
        /// What happened.
        reason: String,
    },
    /// Only copies may be used, and there is none.
    #[error(
        "dataset {name} is not in the cache {cache}, and HF_HUB_OFFLINE is set\nhelp: unset it once to fetch the dataset"
    )]
    Offline {
        /// The dataset.
        name: String,
        /// Where copies would be.
        cache: PathBuf,
    },
    /// Copies cannot be written.
    #[error("the hub's cache {path} cannot be used: {error}\nhelp: check the disk, or set HF_HOME")]
    Cache {
        /// Which file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// A client of the hub.
#[derive(Debug)]
pub struct Hub {
    settings: HubSettings,
    client: Client,
}

impl Hub {
    /// A client with these settings.
    pub fn new(settings: HubSettings) -> Self {
        Self { settings, client: crate::http::client().build().unwrap_or_default() }
    }

    /// The Parquet files of one split of a dataset, as local copies in order.
    pub async fn parquet_files(&self, name: &HubName, split: &str) -> Result<Vec<PathBuf>, HubError> {
        let directory = self.settings.cache.join(name.repo.replace('/', "--"));
        let index_path = directory.join("parquet.json");
        let index_url = format!("{}/api/datasets/{}/parquet", self.settings.endpoint, name.repo);
        self.fetch(name, &index_url, &index_path).await?;
        let text = fs::read_to_string(&index_path).map_err(|error| cache_error(&index_path, error))?;
        let index: Value = serde_json::from_str(&text).map_err(|error| self.unreachable(&error))?;
        let (config, n_files) = choose(&index, name, split)?;
        let mut files = Vec::new();
        for number in 0..n_files {
            let path = directory.join(&config).join(split).join(format!("{number}.parquet"));
            let url = format!("{index_url}/{config}/{split}/{number}.parquet");
            self.fetch(name, &url, &path).await?;
            files.push(path);
        }
        Ok(files)
    }

    /// Makes the copy at `path` what the hub has at `url`.
    async fn fetch(&self, name: &HubName, url: &str, path: &Path) -> Result<(), HubError> {
        if self.settings.is_offline {
            let offline =
                || HubError::Offline { name: name.repo.clone(), cache: self.settings.cache.clone() };
            return path.exists().then_some(()).ok_or_else(offline);
        }
        let response = self.get(url, known_tag(path)).await?;
        match response.status() {
            StatusCode::NOT_MODIFIED => Ok(()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(HubError::Refused(name.repo.clone())),
            StatusCode::NOT_FOUND => Err(HubError::Missing(name.repo.clone())),
            status if status.is_success() => self.keep(response, path).await,
            status => Err(self.unreachable(&format!("status {status} for {url}"))),
        }
    }

    /// Asks until there is an answer that another try would not change.
    async fn get(&self, url: &str, tag: Option<String>) -> Result<Response, HubError> {
        let mut pause = Duration::from_millis(250);
        for n_left in (0..N_TRIES).rev() {
            let mut request = self.client.get(url);
            if let Some(token) = &self.settings.token {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(tag) = &tag {
                request = request.header(IF_NONE_MATCH, tag);
            }
            match request.send().await {
                Ok(response) if n_left > 0 && is_passing(response.status()) => {
                    pause = asked_pause(&response).unwrap_or(pause)
                }
                Ok(response) => return Ok(response),
                Err(error) if n_left == 0 => return Err(self.unreachable(&reason(&error))),
                Err(_) => {}
            }
            tokio::time::sleep(pause.min(MAX_PAUSE)).await;
            pause *= 2;
        }
        Err(self.unreachable(&"too many tries"))
    }

    /// Writes an answer to its place, whole or not at all.
    async fn keep(&self, mut response: Response, path: &Path) -> Result<(), HubError> {
        let failed = |error| cache_error(path, error);
        let partial = path.with_extension(format!("partial-{}", std::process::id()));
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let tag = response.headers().get(ETAG).and_then(|it| it.to_str().ok()).map(str::to_owned);
        let mut file = tokio::fs::File::create(&partial).await.map_err(failed)?;
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&reason(&error)))? {
            file.write_all(&chunk).await.map_err(failed)?;
        }
        file.sync_all().await.map_err(failed)?;
        // The tag goes first and comes last: a file without one is only fetched again.
        let _ = fs::remove_file(tag_path(path));
        fs::rename(&partial, path).map_err(failed)?;
        tag.map_or(Ok(()), |tag| fs::write(tag_path(path), tag)).map_err(failed)
    }

    fn unreachable(&self, reason: &dyn std::fmt::Display) -> HubError {
        HubError::Unreachable { endpoint: self.settings.endpoint.clone(), reason: reason.to_string() }
    }
}

fn is_passing(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// How long the hub asks us to wait.
fn asked_pause(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// An error with what caused it; the outermost alone says little.
fn reason(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn tag_path(path: &Path) -> PathBuf {
    path.with_extension("etag")
}

/// The tag of a copy that exists.
fn known_tag(path: &Path) -> Option<String> {
    path.exists().then(|| fs::read_to_string(tag_path(path)).ok()).flatten()
}

fn cache_error(path: &Path, error: io::Error) -> HubError {
    HubError::Cache { path: path.to_owned(), error }
}

/// The configuration to read and how many files its split has.
fn choose(index: &Value, name: &HubName, split: &str) -> Result<(String, usize), HubError> {
    let configs = index.as_object().ok_or_else(|| HubError::Missing(name.repo.clone()))?;
    let has_split =
        |config: &&String| configs[*config].get(split).is_some() && is_word(config) && is_word(split);
    let config = match &name.config {
        Some(config) => configs.keys().find(|it| *it == config).filter(has_split),
        None => configs
            .keys()
            .find(|it| *it == "default")
            .filter(has_split)
            .or_else(|| configs.keys().find(has_split)),
    };
    let found = config.map(|config| (config.clone(), configs[config][split].as_array().map_or(0, Vec::len)));
    found.ok_or_else(|| {
        let splits = |(config, splits): (&String, &Value)| {
            let splits = splits.as_object().into_iter().flat_map(|it| it.keys());
            splits.map(|split| format!("{config}/{split}")).collect::<Vec<_>>()
        };
        let available = configs.iter().flat_map(splits).collect::<Vec<_>>().join(", ");
        HubError::NoSplit { name: name.repo.clone(), split: split.to_owned(), available }
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> HubSettings {
        let find = |name: &str| variables.iter().find(|it| it.0 == name).map(|it| it.1.to_owned());
        HubSettings::from_variables(find)
    }

    #[test]
    fn the_environment_is_honoured() {
        let default = settings(&[("HOME", "/home/ann")]);
        assert_eq!(default.endpoint, "https://huggingface.co");
        assert_eq!(default.cache, Path::new("/home/ann/.cache/huggingface/backsight/datasets"));
        assert_eq!((default.token, default.is_offline), (None, false));
        let all = [
            ("HF_ENDPOINT", "http://mirror/"),
            ("HF_TOKEN", "t"),
            ("HF_HOME", "/data/hf"),
            ("HF_HUB_OFFLINE", "1"),
        ];
        let expected = HubSettings {
            endpoint: "http://mirror".into(),
            token: Some("t".into()),
            cache: "/data/hf/backsight/datasets".into(),
            is_offline: true,
        };
        assert_eq!(settings(&all), expected);
    }

    #[test]
    fn the_token_of_a_login_is_found() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("token"), "secret\n").unwrap();
        assert_eq!(settings(&[("HF_HOME", home.path().to_str().unwrap())]).token.as_deref(), Some("secret"));
    }

    #[test]
    fn names_cannot_lead_elsewhere() {
        let parse = |text| HubName::parse(text).map(|it| (it.repo, it.config));
        assert_eq!(parse("owner/name"), Some(("owner/name".into(), None)));
        assert_eq!(parse("name:main"), Some(("name".into(), Some("main".into()))));
        for bad in ["", "a/b/c", "../x", "a/..", "a b", "a/b:", "a/b:../c", "a?b", "/a"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    fn check(name: &str, split: &str, expected: Result<(&str, usize), &str>) {
        let index = json!({ "hard": { "train": ["u"] }, "default": { "train": ["u", "v"], "test": ["w"] }, "..": { "evil": ["x"] } });
        let chosen = choose(&index, &HubName::parse(name).unwrap(), split);
        let chosen = chosen.map_err(|error| error.to_string().lines().next().unwrap().to_owned());
        assert_eq!(chosen.as_ref().map(|it| (it.0.as_str(), it.1)).map_err(String::as_str), expected);
    }

    #[test]
    fn the_split_is_looked_for_in_the_right_configuration() {
        check("o/n", "train", Ok(("default", 2)));
        check("o/n:hard", "train", Ok(("hard", 1)));
        let available = "it has hard/train, default/train, default/test, ../evil";
        check("o/n:hard", "test", Err(&format!("dataset o/n has no split \"test\"; {available}")));
        check("o/n", "evil", Err(&format!("dataset o/n has no split \"evil\"; {available}")));
    }
}
