//! The flags that name a model, and opening what they name.

use std::collections::BTreeMap;
use std::iter;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args as ClapArgs;
use clap::builder::{PossibleValue, PossibleValuesParser};

use super::failure::Failure;
use super::output;
use crate::config::parts::ModelPart;
use crate::model::kinds::{AUTO, KINDS, named};
use crate::model::notice::Notices;
use crate::model::open::open;
use crate::model::secret::Secret;
use crate::model::transport::{Notice, Watch};
use crate::model::{Error, Kind, Opened, Wanted};
use crate::store::{NewWeights, WeightRules};

/// What every command that asks a server takes.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct ServerArgs {
    /// What the server is
    #[arg(long, value_parser = kinds(), default_value = AUTO)]
    pub(super) kind: String,
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
    #[arg(long, value_parser = new_weights(), value_name = "WHAT", default_value = "stop")]
    pub(super) new_weights: String,
    /// The key itself, for the one command that takes it as a flag.
    #[arg(skip)]
    pub(super) api_key: Option<Secret>,
    /// Whether the command reads texts, and so needs the model's tokenizer.
    #[arg(skip)]
    pub(super) needs_text: bool,
}

/// The kinds of the table, and finding out.
fn kinds() -> PossibleValuesParser {
    let found_out = PossibleValue::new(AUTO).help("Find out");
    let all = KINDS.into_iter().map(|kind| PossibleValue::new(kind.name).help(kind.about));
    PossibleValuesParser::new(iter::once(found_out).chain(all))
}

fn new_weights() -> PossibleValuesParser {
    PossibleValuesParser::new([
        PossibleValue::new("stop").help("End the run; what the old ones gave is kept"),
        PossibleValue::new("continue").help("Go on with them; every result says which weights gave it"),
    ])
}

/// When weights are measured again, and what a change means.
pub(super) fn weight_rules(answers: u64, seconds: u64, new_weights: &str) -> WeightRules {
    let new_weights = if new_weights == "continue" { NewWeights::Continue } else { NewWeights::Stop };
    WeightRules { answers, time: Duration::from_secs(seconds), new_weights }
}

impl ServerArgs {
    /// The kind that was named; none if it is to be found out.
    pub(super) fn kind(&self) -> Option<&'static Kind> {
        named(&self.kind)
    }

    /// Whether the model runs in this process.
    pub(super) fn is_here(&self) -> bool {
        self.kind().is_some_and(Kind::is_here)
    }

    /// When weights are measured again, and what a change means.
    pub(super) fn weight_rules(&self) -> WeightRules {
        weight_rules(self.weights_check_answers, self.weights_check_seconds, &self.new_weights)
    }

    /// Checks that there are servers to ask, or that none are needed.
    pub(super) fn check(&self, urls: &[String]) -> Result<(), Failure> {
        let wanted = Wanted { urls: urls.to_vec(), kind: self.kind(), ..Wanted::default() };
        wanted.check().map_err(model_failure)
    }

    /// The model at `urls`, or the embedded one if that was chosen; `tell` is told of retries and of endpoints that come
    /// and go.
    pub(super) fn wanted(&self, urls: &[String], notices: &Notices, tell: Tell) -> Result<Wanted, Failure> {
        let part = ModelPart {
            url: urls.to_vec(),
            kind: self.kind.clone(),
            model: self.model.clone(),
            tokenizer: self.tokenizer.clone(),
            api_key_env: self.api_key_env.clone(),
            api_key_file: self.api_key_file.clone(),
            timeout: self.timeout,
            patience: self.patience,
        };
        let mut wanted = part.wanted().map_err(model_failure)?;
        if let Some(concurrency) = self.concurrency {
            wanted.settings.pool.concurrency = usize::try_from(concurrency).unwrap_or(usize::MAX);
        }
        wanted.settings.watch = Some(watch(tell));
        wanted.key = wanted.key.or_else(|| self.api_key.clone());
        Ok(Wanted { needs_text: self.needs_text, notices: notices.clone(), ..wanted })
    }

    /// Opens it.
    pub(super) async fn open(
        &self,
        urls: &[String],
        notices: &Notices,
        tell: Tell,
    ) -> Result<Opened, Failure> {
        open(&self.wanted(urls, notices, tell)?).await.map_err(model_failure)
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
pub(super) fn watch(tell: Tell) -> Watch {
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
