//! Opening the model that a call names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::failure::Failure;
use crate::config::Config;
use crate::config::parts::ModelPart;
use crate::event::{Event, Tell};
use crate::model::budget::{Allowance, ModelRole};
use crate::model::kinds::named;
use crate::model::notice::Notices;
use crate::model::open::open;
use crate::model::secret::Secret;
use crate::model::transport::{Notice, Watch};
use crate::model::{Error, Kind, Opened, Wanted};
use crate::pipeline::paid::Terms;
use crate::store::{RunPlace, WeightRules};

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
        Self::of(config, ModelRole::Student)
    }

    /// As the configuration has it for a role.
    pub(super) fn of(config: &Config, role: ModelRole) -> Result<Self, Failure> {
        Ok(Self { part: config.read_of(role)?, api_key: None, needs_text: false })
    }

    /// The kind that was named; none if it is to be found out.
    pub(super) fn kind(&self) -> Option<&'static Kind> {
        named(&self.part.kind)
    }

    /// Whether the model runs in this process.
    pub(super) fn is_here(&self) -> bool {
        self.kind().is_some_and(Kind::is_here)
    }

    /// On which terms a stage asks it.
    pub(super) fn terms(&self, role: ModelRole, stage: &'static str, seed: u64) -> Terms {
        let ModelPart { max_requests, max_tokens, weights_check_answers, weights_check_seconds, .. } =
            self.part;
        Terms {
            role,
            allowance: Allowance { max_requests, max_tokens },
            place: RunPlace { stage, seed },
            rules: WeightRules {
                answers: weights_check_answers,
                time: Duration::from_secs(weights_check_seconds),
                new_weights: self.part.new_weights,
            },
        }
    }

    /// Checks that there are servers to ask, or that none are needed.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let wanted = Wanted { urls: self.part.url.clone(), kind: self.kind(), ..Wanted::default() };
        wanted.check().map_err(Failure::from)
    }

    /// The model that the keys name; `tell` is told of retries and of endpoints that come and go.
    pub(super) fn wanted(&self, notices: &Notices, tell: Tell) -> Result<Wanted, Failure> {
        let mut wanted = self.part.clone().wanted()?;
        wanted.settings.watch = Some(watch(tell));
        wanted.key = wanted.key.or_else(|| self.api_key.clone());
        Ok(Wanted { needs_text: self.needs_text, notices: notices.clone(), ..wanted })
    }

    /// Opens it.
    pub(super) async fn open(&self, notices: &Notices, tell: Tell) -> Result<Opened, Failure> {
        open(&self.wanted(notices, tell)?).await.map_err(Failure::from)
    }
}

/// Tells what happens between us and servers. The same failure is told the first time, and then only when it has
/// come up ten times as often.
fn watch(tell: Tell) -> Watch {
    let seen: Mutex<BTreeMap<String, u32>> = Mutex::default();
    Arc::new(move |notice| {
        let text = match &notice {
            Notice::Retry { wait, error, .. } => {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                let n_times = seen.entry(error.to_string()).or_default();
                *n_times = n_times.saturating_add(1);
                match *n_times {
                    1 if wait.is_zero() => format!("{error}; trying another server"),
                    1 => format!("{error}; trying again in {:.1} s", wait.as_secs_f64()),
                    n if 10u32.pow(n.ilog10()) == n => format!("{error}; {n} times by now, trying again"),
                    _ => return,
                }
            }
            Notice::Down { server } => format!("{server} keeps failing and is left alone for a while"),
            Notice::Back { server } => format!("{server} answers again"),
        };
        tell(&Event::Note(text));
    })
}

/// What the user must mend ends with 2, a server that is gone or cannot do it with 3.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let help = error.help().unwrap_or("look at the server's log");
        let is_usage = matches!(error, Error::Invalid { .. }) || error.is_denied();
        if is_usage { Self::input(&error, help) } else { Self::stopped(&error, help) }
    }
}
