//! The Hugging Face hub, whose files are kept in its own cache layout so that other tools find them too.
//!
//! Owns [`HuggingFace`]: which files a repository of models or datasets has, and one of them at a time, resumed where a
//! broken transfer left off, checked by size and, where the hub names a SHA-256, by hash. `HF_ENDPOINT`, `HF_TOKEN`,
//! `HF_HOME` and `HF_HUB_OFFLINE` mean what they mean to the Python client. Which files make a model or a dataset is
//! decided elsewhere.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use reqwest::header::{HeaderMap, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;
use sha2::{Digest, Sha256};

use backsight_core::hash::hex;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// A transfer that breaks off this often without end is given up; the next pull resumes it.
const ATTEMPTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Nobody waits longer than this for a hub that asks for patience.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A repository as it is at a revision: a branch, a tag or a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo {
    /// `models` or `datasets`, as the hub's API and its cache call them.
    kind: &'static str,
    name: String,
    revision: String,
}

impl Repo {
    /// A model as it is now.
    pub fn model(name: &str) -> Self {
        Self { kind: "models", name: name.to_owned(), revision: "main".to_owned() }
    }

    /// The Parquet files that the hub makes of a dataset; they are a branch of their own.
    pub fn dataset(name: &str) -> Self {
        Self { kind: "datasets", name: name.to_owned(), revision: "refs/convert/parquet".to_owned() }
    }

    /// The same at another revision.
    pub fn at(self, revision: &str) -> Self {
        Self { revision: revision.to_owned(), ..self }
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.revision)
    }
}

/// Why a file was not had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// `HF_HUB_OFFLINE` is set.
    #[error("{0} is not in the cache, and HF_HUB_OFFLINE is set")]
    Offline(String),
    /// No connection, or one that kept breaking.
    #[error("{endpoint} cannot be reached: {why}")]
    Unreachable { endpoint: String, why: String },
    /// The hub wants another token, or one at all.
    #[error("{endpoint} refuses {file}: HTTP {status}, {}", if *.with_token { "with the token given" } else { "without a token" })]
    Denied { endpoint: String, file: String, status: u16, with_token: bool },
    /// No such repository, revision or file.
    #[error("{endpoint} has no {file}")]
    NotFound { endpoint: String, file: String },
    /// An answer that is not the hub's.
    #[error("{endpoint} answered strangely for {file}: {why}")]
    Strange { endpoint: String, file: String, why: String },
    /// What arrived is not what the hub promised; it was thrown away.
    #[error("{file} arrived damaged: {why}")]
    Damaged { file: String, why: String },
    /// The cache cannot be used.
    #[error("{}: {why}", path.display())]
    Disk { path: PathBuf, why: String },
}

impl HubError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Offline(_) => "unset HF_HUB_OFFLINE, or name a local directory",
            Self::Unreachable { .. } => "check the network or HF_ENDPOINT; the same command resumes",
            Self::Denied { .. } => {
                "check the spelling; accept the repository's terms on the hub if it has any, and set HF_TOKEN"
            }
            Self::NotFound { .. } => "check the spelling; private repositories need HF_TOKEN",
            Self::Strange { .. } => "check HF_ENDPOINT",
            Self::Damaged { .. } => "run the same command again",
            Self::Disk { .. } => "free some space or set HF_HOME to another place",
        }
    }

    /// Whether the hub itself could not be used.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Offline(_) | Self::Unreachable { .. })
    }

    /// Whether another name or a setting would mend it, and another try would not.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Offline(_) | Self::Denied { .. } | Self::NotFound { .. })
    }
}

/// Told how many bytes of how many have arrived.
pub type Progress<'p> = dyn Fn(u64, Option<u64>) + Send + Sync + 'p;

/// The hub and the local cache of its files.
pub struct HuggingFace {
    client: Client,
    endpoint: String,
    token: Option<String>,
    cache: PathBuf,
    offline: bool,
}

/// What the hub says about a file before sending it.
struct Meta {
    commit: String,
    etag: String,
    size: Option<u64>,
}

/// The files of a repository, and the commit that has them.
pub struct Listing {
    pub commit: String,
    pub files: Vec<String>,
}

impl HuggingFace {
    /// As the environment sets it; `env` looks a variable up.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| cache_home(set).join("huggingface"));
        let from_file = || fs::read_to_string(home.join("token")).ok().map(|token| token.trim().to_owned());
        let token = set("HF_TOKEN").or_else(from_file).filter(|token| !token.is_empty());
        let offline =
            set("HF_HUB_OFFLINE").is_some_and(|it| ["1", "true", "yes", "on"].contains(&&*it.to_lowercase()));
        let client = crate::http::client()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| HubError::Unreachable { endpoint: endpoint.clone(), why: error.to_string() })?;
        Ok(Self { client, endpoint, token, cache: home.join("hub"), offline })
    }

    /// The file in the cache, if some pull brought it.
    pub fn cached(&self, repo: &Repo, path: &str) -> Option<PathBuf> {
        Some(self.snapshot(repo).join(path)).filter(|path| path.exists())
    }

    /// The directory with the files of a revision that some pull brought.
    pub fn snapshot(&self, repo: &Repo) -> PathBuf {
        let dir = self.repo_dir(repo);
        let commit = fs::read_to_string(dir.join("refs").join(&repo.revision));
        dir.join("snapshots").join(commit.as_deref().unwrap_or(&repo.revision).trim())
    }

    /// The model repositories of which something is in the cache, by name.
    pub fn cached_repos(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.cache).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        // No name on the hub holds two dashes side by side.
        let mut repos: Vec<String> =
            names.filter_map(|name| Some(name.strip_prefix("models--")?.replacen("--", "/", 1))).collect();
        repos.sort();
        repos
    }

    /// The files that a repository has on the hub; without the hub those it had when it was asked last.
    pub async fn files(&self, repo: &Repo) -> Result<Listing, HubError> {
        let copy = self.repo_dir(repo).join("listed").join(format!("{}.json", repo.revision));
        let what = format!("the list of files of {repo}");
        let told = match self.offline {
            true => fs::read(&copy).map_err(|_| HubError::Offline(what.clone()))?,
            false => {
                let revision = repo.revision.replace('/', "%2F");
                let url = format!("{}/api/{}/{}/revision/{revision}", self.endpoint, repo.kind, repo.name);
                let asked = self.ask(&what, Method::GET, &url, 0).await;
                let answer = asked.map_err(|error| match error {
                    HubError::NotFound { endpoint, .. } => {
                        let file = format!("{} {}", repo.kind.trim_end_matches('s'), repo.name);
                        HubError::NotFound { endpoint, file }
                    }
                    other => other,
                })?;
                answer.bytes().await.map_err(|error| self.unreachable(error))?.into()
            }
        };
        let json: Value =
            serde_json::from_slice(&told).map_err(|error| self.strange(&what, &error.to_string()))?;
        let files = json["siblings"].as_array().ok_or_else(|| self.strange(&what, "it has no `siblings`"))?;
        let files = files.iter().filter_map(|file| Some(file["rfilename"].as_str()?.to_owned())).collect();
        if !self.offline {
            write_whole(&copy, &told)?;
        }
        Ok(Listing { commit: json["sha"].as_str().unwrap_or(&repo.revision).to_owned(), files })
    }

    /// The file, from the cache or from the hub. A file in the cache is not asked for again.
    pub async fn fetch(&self, repo: &Repo, path: &str, progress: &Progress<'_>) -> Result<PathBuf, HubError> {
        let file = format!("{path} of {repo}");
        if ![path, &repo.revision, &repo.name].into_iter().all(is_inside) {
            return Err(self.strange(&file, "the path leaves the repository"));
        }
        if let Some(path) = self.cached(repo, path) {
            return Ok(path);
        }
        if self.offline {
            return Err(HubError::Offline(file));
        }
        let url = self.url(repo, path);
        let meta = self.read_meta(&file, self.ask(&file, Method::HEAD, &url, 0).await?.headers())?;
        let blob = self.repo_dir(repo).join("blobs").join(&meta.etag);
        if !blob.exists() {
            self.download(&file, &url, &meta, &blob, progress).await?;
        }
        self.place(repo, path, &meta)
    }

    /// The directory with a model's tokenizer and chat template, from the cache or from the hub.
    ///
    /// What a model may lack is fetched first: where `tokenizer.json` is in the cache, so is the rest.
    pub async fn tokenizer(&self, name: &str) -> Result<PathBuf, HubError> {
        let (repo, main) = (Repo::model(name), "tokenizer.json");
        if self.cached(&repo, main).is_none() {
            for path in ["tokenizer_config.json", "chat_template.jinja"] {
                match self.fetch(&repo, path, &|_, _| {}).await {
                    Ok(_) | Err(HubError::NotFound { .. } | HubError::Offline(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let path = self.fetch(&repo, main, &|_, _| {}).await?;
        Ok(path.parent().unwrap_or(&path).to_owned())
    }

    fn url(&self, repo: &Repo, path: &str) -> String {
        let kind = if repo.kind == "models" { "" } else { "/datasets" };
        format!("{}{kind}/{}/resolve/{}/{path}", self.endpoint, repo.name, repo.revision)
    }

    fn repo_dir(&self, repo: &Repo) -> PathBuf {
        self.cache.join(format!("{}--{}", repo.kind, repo.name.replace('/', "--")))
    }

    /// Asks the hub, from byte `from` of a file on. Redirects are followed, by a HEAD only inside of the hub: its storage
    /// knows no commit. The token goes to the hub alone.
    async fn ask(&self, file: &str, method: Method, url: &str, from: u64) -> Result<Response, HubError> {
        let parse =
            |url: &str| Url::parse(url).map_err(|error| self.strange(file, &format!("{url}: {error}")));
        let (hub, mut url) = (parse(&self.endpoint)?.origin(), parse(url)?);
        for _ in 0..2 * ATTEMPTS {
            let mut request = self.client.request(method.clone(), url.clone());
            if let Some(token) = self.token.as_ref().filter(|_| url.origin() == hub) {
                request = request.bearer_auth(token);
            }
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            let answer = self.send(file, request).await?;
            match redirect(&url, &answer).filter(|next| method != Method::HEAD || next.origin() == hub) {
                Some(next) => url = next,
                None => return Ok(answer),
            }
        }
        Err(self.strange(file, "too many redirects"))
    }

    fn read_meta(&self, file: &str, headers: &HeaderMap) -> Result<Meta, HubError> {
        let get = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let commit = get("x-repo-commit").filter(|commit| is_inside(commit));
        let etag =
            get("x-linked-etag").or(get("etag")).map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        let (Some(commit), Some(etag)) = (commit, etag.filter(|etag| is_inside(etag) && !etag.contains('/')))
        else {
            return Err(self.strange(file, "it names no commit or etag"));
        };
        let size = get("x-linked-size").or(get("content-length")).and_then(|size| size.parse().ok());
        Ok(Meta { commit: commit.to_owned(), etag: etag.to_owned(), size })
    }

    /// Brings the blob, resuming what is there, and checks it before it gets its name.
    async fn download(
        &self,
        file: &str,
        url: &str,
        meta: &Meta,
        blob: &Path,
        progress: &Progress<'_>,
    ) -> Result<(), HubError> {
        let partial = blob.with_extension("incomplete");
        create_parent(&partial)?;
        let mut out = open_locked(&partial)?;
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            tokio::time::sleep(Duration::from_millis(200 * attempt as u64)).await;
            let continued = async {
                let mut have = out.seek(std::io::SeekFrom::End(0)).map_err(disk(&self.cache))?;
                if meta.size == Some(have) {
                    return Ok(());
                }
                let mut answer = self.ask(file, Method::GET, url, have).await?;
                if answer.status() != StatusCode::PARTIAL_CONTENT && have > 0 {
                    out.set_len(0).and_then(|()| out.rewind()).map_err(disk(&self.cache))?;
                    have = 0;
                }
                while let Some(chunk) = answer.chunk().await.map_err(|error| self.unreachable(error))? {
                    out.write_all(&chunk).map_err(disk(&self.cache))?;
                    have += chunk.len() as u64;
                    progress(have, meta.size);
                }
                out.sync_all().map_err(disk(&self.cache))
            };
            match continued.await {
                Ok(()) => {
                    check(file, meta, &mut out, &partial)?;
                    return fs::rename(&partial, blob).map_err(disk(blob));
                }
                Err(error @ HubError::Unreachable { .. }) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| self.strange(file, "nothing arrived")))
    }

    /// Sends until there is an answer that another try would not change.
    async fn send(&self, file: &str, request: RequestBuilder) -> Result<Response, HubError> {
        let mut pause = Duration::from_millis(250);
        for _ in 2..ATTEMPTS {
            let Some(again) = request.try_clone() else { break };
            match again.send().await {
                Ok(answer) if is_passing(answer.status().as_u16()) => {
                    pause = asked_pause(&answer).unwrap_or(pause);
                }
                Err(error) if !error.is_connect() => {}
                last => return self.judge(file, last),
            }
            tokio::time::sleep(pause.min(MAX_PAUSE)).await;
            pause *= 2;
        }
        self.judge(file, request.send().await)
    }

    fn judge(&self, file: &str, answer: reqwest::Result<Response>) -> Result<Response, HubError> {
        let answer = answer.map_err(|error| self.unreachable(error))?;
        let (endpoint, file) = (self.endpoint.clone(), file.to_owned());
        match answer.status().as_u16() {
            200..=399 => Ok(answer),
            status @ (401 | 403) => {
                Err(HubError::Denied { endpoint, file, status, with_token: self.token.is_some() })
            }
            404 => Err(HubError::NotFound { endpoint, file }),
            status if is_passing(status) => {
                Err(HubError::Unreachable { endpoint, why: format!("HTTP {status}") })
            }
            status => Err(HubError::Strange { endpoint, file, why: format!("HTTP {status}") }),
        }
    }

    /// Names the blob as its file in the snapshot, and the snapshot as the revision.
    fn place(&self, repo: &Repo, file: &str, meta: &Meta) -> Result<PathBuf, HubError> {
        let dir = self.repo_dir(repo);
        let path = dir.join("snapshots").join(&meta.commit).join(file);
        create_parent(&path)?;
        let up = "../".repeat(file.split('/').count() + 1);
        if !path.exists() {
            let _ = fs::remove_file(&path);
            let blob = format!("{up}blobs/{}", meta.etag);
            std::os::unix::fs::symlink(blob, &path).map_err(disk(&path))?;
        }
        if meta.commit != repo.revision {
            write_whole(&dir.join("refs").join(&repo.revision), meta.commit.as_bytes())?;
        }
        Ok(path)
    }

    fn strange(&self, file: &str, why: &str) -> HubError {
        HubError::Strange { endpoint: self.endpoint.clone(), file: file.to_owned(), why: why.to_owned() }
    }

    fn unreachable(&self, error: reqwest::Error) -> HubError {
        HubError::Unreachable { endpoint: self.endpoint.clone(), why: crate::http::reason(error) }
    }
}

/// Size and, where the etag is one, SHA-256. A file that fails is emptied, so that the next pull starts over.
fn check(file: &str, meta: &Meta, out: &mut File, path: &Path) -> Result<(), HubError> {
    let size = out.metadata().map_err(disk(path))?.len();
    let mut why =
        meta.size.filter(|&promised| promised != size).map(|promised| format!("{size} bytes of {promised}"));
    if why.is_none() && is_sha256(&meta.etag) {
        out.rewind().map_err(disk(path))?;
        let found = sha256(out).map_err(disk(path))?;
        why = (found != meta.etag).then(|| format!("SHA-256 is {found}, not {}", meta.etag));
    }
    match why {
        None => Ok(()),
        Some(why) => {
            out.set_len(0).map_err(disk(path))?;
            Err(HubError::Damaged { file: file.to_owned(), why })
        }
    }
}

/// The repository that a path which does not exist here could mean: `owner/name`.
pub fn hub_name(path: &Path) -> Option<&str> {
    path.to_str().filter(|name| is_repo(name) && !path.exists())
}

/// Whether a text is `owner/name`.
pub fn is_repo(name: &str) -> bool {
    name.split_once('/').is_some_and(|(owner, model)| is_part(owner) && is_part(model))
}

/// Whether a text can be part of a name, and so of an address and of a path.
pub fn is_part(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_plain)
}

/// The SHA-256 of everything that can be read, in hexadecimal.
pub fn sha256(reader: &mut impl Read) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a relative path stays below where it is put.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Where programs keep what can be had again, as the environment says it.
pub fn cache_home(env: impl Fn(&str) -> Option<String>) -> PathBuf {
    let home = || PathBuf::from(env("HOME").unwrap_or_else(|| ".".to_owned())).join(".cache");
    env("XDG_CACHE_HOME").filter(|it| !it.is_empty()).map_or_else(home, PathBuf::from)
}

fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

/// How long the hub asks us to wait.
fn asked_pause(answer: &Response) -> Option<Duration> {
    answer.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

fn redirect(url: &Url, answer: &Response) -> Option<Url> {
    let next = url.join(answer.headers().get(LOCATION)?.to_str().ok()?).ok()?;
    answer.status().is_redirection().then_some(next)
}

/// Writes a small file whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    create_parent(path)?;
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    let written = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    written.map_err(disk(path))
}

fn create_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(disk(parent))
}

/// Two processes that pull the same file must not write into each other's.
fn open_locked(path: &Path) -> Result<File, HubError> {
    let file = File::options().read(true).append(true).create(true).open(path).map_err(disk(path))?;
    file.lock().map_err(disk(path))?;
    Ok(file)
}

fn disk(path: &Path) -> impl Fn(std::io::Error) -> HubError {
    move |error| HubError::Disk { path: path.to_owned(), why: error.to_string() }
}
