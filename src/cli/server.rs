//! The flags that name a model, and opening what they name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::failure::Failure;
use super::output;
use crate::hf::{HuggingFace, hub_name};
use crate::model::Error;
use crate::model::endpoint::masked;
use crate::model::notice::Notices;
use crate::model::open::{open, open_embedded};
use crate::model::opened::Opened;
use crate::model::remote::{Kind, OpenOptions};
use crate::model::secret::Secret;
use crate::model::transport::{Auth, Notice, Settings, Transport, Watch};
use crate::store::{NewWeights, WeightRules};

/// What every command that asks a server takes.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct ServerArgs {
    /// What the server is
    #[arg(long, value_enum, default_value_t = KindName::Auto)]
    pub(super) kind: KindName,
    /// The model to ask, as the server names it, or any name if it has only one whose tokenizer agrees; for --kind embedded a name from `model list` or a path
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// The model's tokenizer: a directory with tokenizer.json, or a name on the hub like Qwen/Qwen3-4B; else the directory the server names, if it is readable here; else what --model names, where texts are read
    #[arg(long, value_name = "DIR_OR_NAME")]
    pub(super) tokenizer: Option<PathBuf>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "VAR")]
    pub(super) api_key_env: Option<String>,
    /// File that holds the API key
    #[arg(long, value_name = "FILE", conflicts_with = "api_key_env")]
    pub(super) api_key_file: Option<PathBuf>,
    /// At most this many requests at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) concurrency: Option<u64>,
    /// Seconds one request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout: u64,
    /// Seconds every server may be gone before work on them ends
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) patience: u64,
    /// Measure the server's weights again after so many answers
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) weights_check_answers: u64,
    /// Measure them again after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) weights_check_seconds: u64,
    /// What to do when the server has new weights
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = NewWeightsName::Stop)]
    pub(super) new_weights: NewWeightsName,
    /// The key itself, for the one command that takes it as a flag.
    #[arg(skip)]
    pub(super) api_key: Option<Secret>,
    /// Whether the command reads texts, and so needs the model's tokenizer.
    #[arg(skip)]
    pub(super) needs_text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum NewWeightsName {
    /// End the run; what the old ones gave is kept
    Stop,
    /// Go on with them; every result says which weights gave it
    Continue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum KindName {
    /// Find out
    Auto,
    /// vLLM
    Vllm,
    /// SGLang
    Sglang,
    /// Anything that speaks OpenAI's chat route
    Openai,
    /// Anthropic's Messages API
    Anthropic,
    /// A model inside this process; needs no server
    Embedded,
}

impl KindName {
    fn kind(self) -> Option<Kind> {
        match self {
            Self::Auto => None,
            Self::Vllm => Some(Kind::Vllm),
            Self::Sglang => Some(Kind::Sglang),
            Self::Openai => Some(Kind::OpenAi),
            Self::Anthropic => Some(Kind::Anthropic),
            Self::Embedded => Some(Kind::Embedded),
        }
    }
}

impl ServerArgs {
    /// A way to the servers at `urls`; `tell` is told of retries and of endpoints that come and go.
    pub(super) fn transport(&self, urls: &[String], tell: Tell) -> Result<Transport, Failure> {
        let mut settings = Settings { auth: self.auth()?, watch: Some(watch(tell)), ..Settings::default() };
        if self.kind == KindName::Anthropic {
            settings.headers.push(("anthropic-version", "2023-06-01".to_owned()));
        }
        settings.timeout = Duration::from_secs(self.timeout);
        settings.pool.patience = Duration::from_secs(self.patience);
        if let Some(concurrency) = self.concurrency {
            settings.pool.concurrency = usize::try_from(concurrency).unwrap_or(usize::MAX);
        }
        Transport::open(urls, settings).map_err(model_failure)
    }

    /// When weights are measured again, and what a change means.
    pub(super) fn weight_rules(&self) -> WeightRules {
        WeightRules {
            answers: self.weights_check_answers,
            time: Duration::from_secs(self.weights_check_seconds),
            new_weights: match self.new_weights {
                NewWeightsName::Stop => NewWeights::Stop,
                NewWeightsName::Continue => NewWeights::Continue,
            },
        }
    }

    fn auth(&self) -> Result<Option<Auth>, Failure> {
        let secret = match (&self.api_key_env, &self.api_key_file, &self.api_key) {
            (Some(name), _, _) => Secret::from_env(name).map_err(model_failure)?,
            (None, Some(path), _) => Secret::from_file(path).map_err(model_failure)?,
            (None, None, Some(key)) => key.clone(),
            (None, None, None) => return Ok(None),
        };
        Ok(Some(match self.kind {
            KindName::Anthropic => Auth::Header("x-api-key", secret),
            _ => Auth::Bearer(secret),
        }))
    }

    /// Checks that there are servers to ask, or that none are needed.
    pub(super) fn check(&self, urls: &[String]) -> Result<(), Failure> {
        match (self.kind, urls) {
            (KindName::Embedded, [url, ..]) => Err(Failure::input(
                format!("{} was named, but --kind embedded asks no server", masked(url)),
                "leave out the address, or name another --kind",
            )),
            (KindName::Embedded, []) => Ok(()),
            (_, []) => Err(Failure::input(
                "no server was named",
                "give its address, as in --url http://HOST:PORT (bare for `probe`), or use --kind embedded",
            )),
            _ => Ok(()),
        }
    }

    /// Opens the servers at `urls`, or the embedded model if that was chosen.
    pub(super) async fn open_any(
        &self,
        urls: &[String],
        notices: &Notices,
        tell: Tell,
    ) -> Result<Opened, Failure> {
        self.check(urls)?;
        if self.kind == KindName::Embedded {
            return self.open_embedded();
        }
        self.open(self.transport(urls, tell)?, notices).await
    }

    /// Loads the model that was named, else the default that was pulled.
    pub(super) fn open_embedded(&self) -> Result<Opened, Failure> {
        let (name, path) = super::model::find(self.model.as_deref())?;
        open_embedded(&name, &path, self.tokenizer.as_deref()).map_err(model_failure)
    }

    /// Asks the server what it is.
    pub(super) async fn open(&self, transport: Transport, notices: &Notices) -> Result<Opened, Failure> {
        let options = OpenOptions {
            model: self.model.clone(),
            vocab_size: None,
            needs_text: self.needs_text,
            notices: notices.clone(),
        };
        let tokenizer = match &self.tokenizer {
            Some(named) => Some(tokenizer_path(named).await?),
            None => None,
        };
        open(transport, self.kind.kind(), tokenizer.as_deref(), options).await.map_err(model_failure)
    }
}

/// Is told what a person should know while a command goes on.
pub(super) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Tells by a line, or by an event for machines.
pub(super) fn teller(as_json: bool) -> Tell {
    Arc::new(move |text| output::tell(as_json, "note", text))
}

/// Tells what happens between us and servers. The same failure is told the first time, and then only when it has
/// come up ten times as often.
fn watch(tell: Tell) -> Watch {
    let seen: Mutex<BTreeMap<String, u32>> = Mutex::default();
    Arc::new(move |notice| {
        let Notice::Retry { error, .. } = &notice else { return tell(&notice_text(&notice)) };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let n_times = seen.entry(error.to_string()).or_default();
        *n_times = n_times.saturating_add(1);
        let n_times = *n_times;
        drop(seen);
        match n_times {
            1 => tell(&notice_text(&notice)),
            n if 10u32.pow(n.ilog10()) == n => tell(&format!("{error}; {n} times by now, trying again")),
            _ => {}
        }
    })
}

/// Where a tokenizer is that was named by its directory, or by its model's name on the hub.
pub(super) async fn tokenizer_path(named: &Path) -> Result<PathBuf, Failure> {
    let Some(repo) = hub_name(named) else { return Ok(named.to_owned()) };
    let hub = HuggingFace::from_env(|name| std::env::var(name).ok());
    let found = match &hub {
        Ok(hub) => hub.tokenizer(repo).await,
        Err(_) => return Ok(named.to_owned()),
    };
    found.map_err(|error| {
        let help = format!("name a directory with tokenizer.json; or else {}", error.help());
        let what = format!("`{repo}` is no directory here, and its tokenizer cannot be had: {error}");
        if error.is_unreachable() { Failure::stopped(what, help) } else { Failure::input(what, help) }
    })
}

/// What happened between us and a server, for people.
fn notice_text(notice: &Notice) -> String {
    match notice {
        Notice::Retry { wait, error, .. } if wait.is_zero() => format!("{error}; trying another server"),
        Notice::Retry { wait, error, .. } => format!("{error}; trying again in {:.1} s", wait.as_secs_f64()),
        Notice::Down { server } => format!("{server} keeps failing and is left alone for a while"),
        Notice::Back { server } => format!("{server} answers again"),
    }
}

/// What the user must mend ends with 2, a server that is gone or cannot do it with 3.
pub(super) fn model_failure(error: Error) -> Failure {
    let help = error.help().unwrap_or("look at the server's log").to_owned();
    match error {
        Error::Invalid { .. } => Failure::input(error, help),
        _ if error.is_denied() => Failure::input(error, help),
        _ => Failure::stopped(error, help),
    }
}
