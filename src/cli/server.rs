//! Opening the model that a call names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::call::tokenizer_path;
use super::failure::Failure;
use super::keys::config_failure;
use super::output;
use crate::config::Config;
use crate::config::parts::ModelPart;
use crate::model::Error;
use crate::model::budget::{Allowance, ModelRole};
use crate::model::endpoint::masked;
use crate::model::notice::Notices;
use crate::model::open::{open, open_embedded};
use crate::model::opened::Opened;
use crate::model::remote::{Kind, OpenOptions};
use crate::model::secret::Secret;
use crate::model::transport::{Auth, Notice, Settings, Transport, Watch};
use crate::store::WeightRules;

/// The model a call asks.
#[derive(Clone)]
pub(super) struct ServerArgs {
    /// What the keys say of it.
    pub(super) part: ModelPart,
    /// The key itself, for the one command that takes it as a flag.
    pub(super) api_key: Option<Secret>,
    /// Whether the command reads texts, and so needs the model's tokenizer.
    pub(super) needs_text: bool,
}

impl ServerArgs {
    /// As the configuration has it.
    pub(super) fn read(config: &Config) -> Result<Self, Failure> {
        let part = config.read_of(ModelRole::Student).map_err(config_failure)?;
        Ok(Self { part, api_key: None, needs_text: false })
    }

    /// What was named; none is to be found out.
    pub(super) fn kind(&self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == self.part.kind)
    }

    /// Whether the model runs in this process.
    pub(super) fn is_here(&self) -> bool {
        self.kind() == Some(Kind::Embedded)
    }

    /// What it may cost.
    pub(super) fn allowance(&self) -> Allowance {
        Allowance { max_requests: self.part.max_requests, max_tokens: self.part.max_tokens }
    }

    /// A way to the servers; `tell` is told of retries and of endpoints that come and go.
    pub(super) fn transport(&self, tell: Tell) -> Result<Transport, Failure> {
        let mut settings = Settings { auth: self.auth()?, watch: Some(watch(tell)), ..Settings::default() };
        if self.kind() == Some(Kind::Anthropic) {
            settings.headers.push(("anthropic-version", "2023-06-01".to_owned()));
        }
        settings.timeout = Duration::from_secs(self.part.timeout);
        settings.pool.patience = Duration::from_secs(self.part.patience);
        settings.pool.concurrency = self.part.concurrency.unwrap_or(settings.pool.concurrency);
        Transport::open(&self.part.url, settings).map_err(model_failure)
    }

    /// When weights are measured again, and what a change means.
    pub(super) fn weight_rules(&self) -> WeightRules {
        WeightRules {
            answers: self.part.weights_check_answers,
            time: Duration::from_secs(self.part.weights_check_seconds),
            new_weights: self.part.new_weights,
        }
    }

    fn auth(&self) -> Result<Option<Auth>, Failure> {
        let secret = match (&self.part.api_key_env, &self.part.api_key_file, &self.api_key) {
            (Some(name), _, _) => Secret::from_env(name).map_err(model_failure)?,
            (None, Some(path), _) => Secret::from_file(path).map_err(model_failure)?,
            (None, None, Some(key)) => key.clone(),
            (None, None, None) => return Ok(None),
        };
        Ok(Some(match self.kind() {
            Some(Kind::Anthropic) => Auth::Header("x-api-key", secret),
            _ => Auth::Bearer(secret),
        }))
    }

    /// Checks that there are servers to ask, or that none are needed.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match (self.is_here(), self.part.url.as_slice()) {
            (true, [url, ..]) => Err(Failure::input(
                format!("{} was named, but --kind embedded asks no server", masked(url)),
                "leave out the address, or name another --kind",
            )),
            (false, []) => Err(Failure::input(
                "no server was named",
                "give its address, as in --url http://HOST:PORT (bare for `probe`), or use --kind embedded",
            )),
            _ => Ok(()),
        }
    }

    /// Opens the servers, or the embedded model if that was chosen.
    pub(super) async fn open_any(&self, notices: &Notices, tell: Tell) -> Result<Opened, Failure> {
        self.check()?;
        if self.is_here() {
            return self.open_embedded();
        }
        self.open(self.transport(tell)?, notices).await
    }

    /// Loads the model that was named, else the default that was pulled.
    pub(super) fn open_embedded(&self) -> Result<Opened, Failure> {
        let (name, path) = super::model::find(self.part.model.as_deref())?;
        open_embedded(&name, &path, self.part.tokenizer.as_deref()).map_err(model_failure)
    }

    /// Asks the server what it is.
    pub(super) async fn open(&self, transport: Transport, notices: &Notices) -> Result<Opened, Failure> {
        let options = OpenOptions {
            model: self.part.model.clone(),
            vocab_size: None,
            needs_text: self.needs_text,
            notices: notices.clone(),
        };
        let tokenizer = match &self.part.tokenizer {
            Some(named) => Some(tokenizer_path(named).await?),
            None => None,
        };
        open(transport, self.kind(), tokenizer.as_deref(), options).await.map_err(model_failure)
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
