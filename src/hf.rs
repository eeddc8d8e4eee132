//! Files of the Hugging Face hub, kept in its own cache layout so that other tools find them too.
//!
//! Owns [`Hub`]: which files a repository has, and one of them at a time, resumed where a broken transfer left
//! off, checked by size and, where the hub names a SHA-256, by hash. `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and
//! `HF_HUB_OFFLINE` mean what they mean to the Python client. Which files make a model or a dataset is
//! decided elsewhere.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use reqwest::header::{HeaderMap, LOCATION, RANGE};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;
use sha2::{Digest, Sha256};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// A transfer that breaks off this often without end is given up; the next pull resumes it.
const ATTEMPTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// One file of one model repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoFile {
    /// `owner/name`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Path inside the repository.
    pub path: String,
}

impl RepoFile {
    /// A file as it is now.
    pub fn new(repo: &str, path: &str) -> Self {
        Self { repo: repo.to_owned(), revision: "main".to_owned(), path: path.to_owned() }
    }
}

impl fmt::Display for RepoFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}@{}", self.path, self.repo, self.revision)
    }
}

/// Why a file was not had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// `HF_HUB_OFFLINE` is set and the file is not in the cache.
    #[error("{file} is not in the cache, and HF_HUB_OFFLINE is set")]
    Offline {
        /// Which file.
        file: String,
    },
    /// No connection, or one that kept breaking.
    #[error("{endpoint} cannot be reached: {why}")]
    Unreachable {
        /// The hub.
        endpoint: String,
        /// What the connection said.
        why: String,
    },
    /// The hub wants another token, or one at all.
    #[error("{endpoint} refuses {file}: HTTP {status}, {}", if *.with_token { "with the token given" } else { "without a token" })]
    Denied {
        /// The hub.
        endpoint: String,
        /// Which file.
        file: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// No such repository, revision or file.
    #[error("{endpoint} has no {file}")]
    NotFound {
        /// The hub.
        endpoint: String,
        /// Which file.
        file: String,
    },
    /// An answer that is not the hub's.
    #[error("{endpoint} answered strangely for {file}: {why}")]
    Strange {
        /// The hub.
        endpoint: String,
        /// Which file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// What arrived is not what the hub promised; it was thrown away.
    #[error("{file} arrived damaged: {why}")]
    Damaged {
        /// Which file.
        file: String,
        /// What differs.
        why: String,
    },
    /// The cache cannot be used.
    #[error("{}: {why}", path.display())]
    Disk {
        /// Which path.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
}

impl HubError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Offline { .. } => "unset HF_HUB_OFFLINE, or name a local directory",
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
        matches!(self, Self::Offline { .. } | Self::Unreachable { .. })
    }

    /// Whether it is this machine's fault, so that no other source would help.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Disk { .. })
    }
}

/// Told how many bytes of how many have arrived.
pub type Progress<'p> = dyn Fn(u64, Option<u64>) + Send + Sync + 'p;

/// The hub and the local cache of its files.
pub struct Hub {
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

impl Hub {
    /// As the environment sets it; `env` looks a variable up.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| default_home(&set));
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
    pub fn cached(&self, file: &RepoFile) -> Option<PathBuf> {
        let path = self.snapshot(file).join(&file.path);
        path.exists().then_some(path)
    }

    /// The directory with the files of a revision that some pull brought.
    pub fn snapshot(&self, file: &RepoFile) -> PathBuf {
        let dir = self.repo_dir(file);
        let commit =
            fs::read_to_string(dir.join("refs").join(&file.revision)).unwrap_or(file.revision.clone());
        dir.join("snapshots").join(commit.trim())
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

    /// The files that a repository has on the hub.
    pub async fn files(&self, repo: &str) -> Result<Vec<String>, HubError> {
        let list = RepoFile::new(repo, "the list of files");
        if self.offline {
            return Err(HubError::Offline { file: list.to_string() });
        }
        let url = format!("{}/api/models/{repo}/revision/{}", self.endpoint, list.revision);
        let answer = self.ask(&list, Method::GET, &url).await.map_err(|error| match error {
            HubError::NotFound { endpoint, .. } => {
                HubError::NotFound { endpoint, file: format!("model {repo}") }
            }
            other => other,
        })?;
        let bytes = answer.bytes().await.map_err(|error| self.unreachable(&error))?;
        let told: Value =
            serde_json::from_slice(&bytes).map_err(|error| self.strange(&list, &error.to_string()))?;
        let files = told["siblings"].as_array().ok_or_else(|| self.strange(&list, "it has no `siblings`"))?;
        Ok(files.iter().filter_map(|file| Some(file["rfilename"].as_str()?.to_owned())).collect())
    }

    /// The file, from the cache or from the hub. A file in the cache is not asked for again.
    pub async fn fetch(&self, file: &RepoFile, progress: &Progress<'_>) -> Result<PathBuf, HubError> {
        if !is_inside(&file.path) || !is_inside(&file.revision) || !is_inside(&file.repo) {
            return Err(self.strange(file, "the path leaves the repository"));
        }
        if let Some(path) = self.cached(file) {
            return Ok(path);
        }
        if self.offline {
            return Err(HubError::Offline { file: file.to_string() });
        }
        let meta = self.meta(file).await?;
        let blob = self.repo_dir(file).join("blobs").join(&meta.etag);
        if !blob.exists() {
            self.download(file, &meta, &blob, progress).await?;
        }
        self.place(file, &meta)
    }

    /// The directory with a model's tokenizer and chat template, from the cache or from the hub.
    ///
    /// What a model may lack is fetched first: where `tokenizer.json` is in the cache, so is the rest.
    pub async fn tokenizer(&self, repo: &str) -> Result<PathBuf, HubError> {
        let main = RepoFile::new(repo, "tokenizer.json");
        if self.cached(&main).is_none() {
            for path in ["tokenizer_config.json", "chat_template.jinja"] {
                match self.fetch(&RepoFile::new(repo, path), &|_, _| {}).await {
                    Ok(_) | Err(HubError::NotFound { .. } | HubError::Offline { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let path = self.fetch(&main, &|_, _| {}).await?;
        Ok(path.parent().unwrap_or(&path).to_owned())
    }

    fn url(&self, file: &RepoFile) -> String {
        format!("{}/{}/resolve/{}/{}", self.endpoint, file.repo, file.revision, file.path)
    }

    fn repo_dir(&self, file: &RepoFile) -> PathBuf {
        self.cache.join(format!("models--{}", file.repo.replace('/', "--")))
    }

    /// Asks for commit, etag and size.
    async fn meta(&self, file: &RepoFile) -> Result<Meta, HubError> {
        let answer = self.ask(file, Method::HEAD, &self.url(file)).await?;
        self.read_meta(file, answer.headers())
    }

    /// Asks the hub; redirects inside of it (renamed repositories) are followed, those to its storage are not.
    async fn ask(&self, file: &RepoFile, method: Method, url: &str) -> Result<Response, HubError> {
        let mut url = self.parse(file, url)?;
        for _ in 0..ATTEMPTS {
            let answer = self.send(file, self.request(method.clone(), url.clone())).await?;
            match self.next_in_hub(&url, &answer) {
                Some(next) => url = next,
                None => return Ok(answer),
            }
        }
        Err(self.strange(file, "too many redirects"))
    }

    fn next_in_hub(&self, url: &Url, answer: &Response) -> Option<Url> {
        let next = url.join(answer.headers().get(LOCATION)?.to_str().ok()?).ok()?;
        (answer.status().is_redirection() && next.origin() == url.origin()).then_some(next)
    }

    fn read_meta(&self, file: &RepoFile, headers: &HeaderMap) -> Result<Meta, HubError> {
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
        file: &RepoFile,
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
            match self.continue_download(file, meta, &mut out, progress).await {
                Ok(()) => {
                    check(file, meta, &mut out, &partial)?;
                    return fs::rename(&partial, blob).map_err(|error| disk(blob, &error));
                }
                Err(error @ HubError::Unreachable { .. }) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| self.strange(file, "nothing arrived")))
    }

    async fn continue_download(
        &self,
        file: &RepoFile,
        meta: &Meta,
        out: &mut File,
        progress: &Progress<'_>,
    ) -> Result<(), HubError> {
        let path = self.repo_dir(file);
        let mut have = out.seek(std::io::SeekFrom::End(0)).map_err(|error| disk(&path, &error))?;
        if meta.size == Some(have) {
            return Ok(());
        }
        let mut answer = self.open_from(file, have).await?;
        if answer.status() != StatusCode::PARTIAL_CONTENT && have > 0 {
            out.set_len(0).and_then(|()| out.rewind()).map_err(|error| disk(&path, &error))?;
            have = 0;
        }
        while let Some(chunk) = answer.chunk().await.map_err(|error| self.unreachable(&error))? {
            out.write_all(&chunk).map_err(|error| disk(&path, &error))?;
            have += chunk.len() as u64;
            progress(have, meta.size);
        }
        out.sync_all().map_err(|error| disk(&path, &error))
    }

    /// Opens the content from byte `have` on, following the redirect to the storage without taking the token there.
    async fn open_from(&self, file: &RepoFile, have: u64) -> Result<Response, HubError> {
        let origin = self.parse(file, &self.endpoint)?.origin();
        let mut url = self.parse(file, &self.url(file))?;
        for _ in 0..2 * ATTEMPTS {
            let mut request = if url.origin() == origin {
                self.request(Method::GET, url.clone())
            } else {
                self.client.get(url.clone())
            };
            if have > 0 {
                request = request.header(RANGE, format!("bytes={have}-"));
            }
            let answer = self.send(file, request).await?;
            let next = answer.headers().get(LOCATION).and_then(|it| it.to_str().ok());
            match next.filter(|_| answer.status().is_redirection()).and_then(|next| url.join(next).ok()) {
                Some(next) => url = next,
                None => return Ok(answer),
            }
        }
        Err(self.strange(file, "too many redirects"))
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.client.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn send(&self, file: &RepoFile, request: RequestBuilder) -> Result<Response, HubError> {
        let answer = request.send().await.map_err(|error| self.unreachable(&error))?;
        let (endpoint, name) = (self.endpoint.clone(), file.to_string());
        match answer.status().as_u16() {
            200..=399 => Ok(answer),
            status @ (401 | 403) => {
                Err(HubError::Denied { endpoint, file: name, status, with_token: self.token.is_some() })
            }
            404 => Err(HubError::NotFound { endpoint, file: name }),
            status @ (408 | 429 | 500..) => {
                Err(HubError::Unreachable { endpoint, why: format!("HTTP {status}") })
            }
            status => Err(HubError::Strange { endpoint, file: name, why: format!("HTTP {status}") }),
        }
    }

    /// Names the blob as its file in the snapshot, and the snapshot as the revision.
    fn place(&self, file: &RepoFile, meta: &Meta) -> Result<PathBuf, HubError> {
        let dir = self.repo_dir(file);
        let path = dir.join("snapshots").join(&meta.commit).join(&file.path);
        create_parent(&path)?;
        let up = "../".repeat(file.path.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{}", meta.etag));
        if !path.exists() {
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(target, &path).map_err(|error| disk(&path, &error))?;
        }
        let reference = dir.join("refs").join(&file.revision);
        create_parent(&reference)?;
        fs::write(&reference, &meta.commit).map_err(|error| disk(&reference, &error))?;
        Ok(path)
    }

    fn parse(&self, file: &RepoFile, url: &str) -> Result<Url, HubError> {
        Url::parse(url).map_err(|error| self.strange(file, &format!("{url}: {error}")))
    }

    fn strange(&self, file: &RepoFile, why: &str) -> HubError {
        HubError::Strange { endpoint: self.endpoint.clone(), file: file.to_string(), why: why.to_owned() }
    }

    fn unreachable(&self, error: &reqwest::Error) -> HubError {
        HubError::Unreachable { endpoint: self.endpoint.clone(), why: innermost(error) }
    }
}

/// Size and, where the etag is one, SHA-256. A file that fails is emptied, so that the next pull starts over.
fn check(file: &RepoFile, meta: &Meta, out: &mut File, path: &Path) -> Result<(), HubError> {
    let size = out.metadata().map_err(|error| disk(path, &error))?.len();
    let mut why =
        meta.size.filter(|&promised| promised != size).map(|promised| format!("{size} bytes of {promised}"));
    if why.is_none() && is_sha256(&meta.etag) {
        out.rewind().map_err(|error| disk(path, &error))?;
        let found = sha256(out).map_err(|error| disk(path, &error))?;
        why = (found != meta.etag).then(|| format!("SHA-256 is {found}, not {}", meta.etag));
    }
    match why {
        None => Ok(()),
        Some(why) => {
            out.set_len(0).map_err(|error| disk(path, &error))?;
            Err(HubError::Damaged { file: file.to_string(), why })
        }
    }
}

/// The repository that a path which does not exist here could mean: `owner/name`.
pub fn hub_name(path: &Path) -> Option<&str> {
    path.to_str().filter(|name| is_repo(name) && !path.exists())
}

/// Whether a text is `owner/name`.
pub fn is_repo(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_part = |part: &str| {
        !part.is_empty()
            && part.chars().all(is_plain)
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    name.split_once('/').is_some_and(|(owner, model)| is_part(owner) && is_part(model))
}

/// The SHA-256 of everything that can be read, in hexadecimal.
pub fn sha256(reader: &mut impl Read) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
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

fn default_home(set: &impl Fn(&str) -> Option<String>) -> PathBuf {
    let home = || PathBuf::from(set("HOME").unwrap_or_else(|| ".".to_owned())).join(".cache");
    set("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("huggingface")
}

fn create_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|error| disk(parent, &error))
}

/// Two processes that pull the same file must not write into each other's.
fn open_locked(path: &Path) -> Result<File, HubError> {
    let file = File::options().read(true).append(true).create(true).open(path);
    let file = file.map_err(|error| disk(path, &error))?;
    file.lock().map_err(|error| disk(path, &error))?;
    Ok(file)
}

fn disk(path: &Path, error: &std::io::Error) -> HubError {
    HubError::Disk { path: path.to_owned(), why: error.to_string() }
}

/// The innermost cause says what happened; the outer ones only repeat the address.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
