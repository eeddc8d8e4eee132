//! What was asked of `backsight credit`: its keys, what the environment fills in, and the hyper-parameters that are left.

use std::path::PathBuf;

use serde::Deserialize as _;
use toml::{Table, Value};

use crate::cli::call::Call;
use crate::cli::failure::Failure;
use crate::cli::server::ServerArgs;
use crate::config::keys::{Effect, Key};
use crate::config::not_both;
use crate::model::secret::Secret;
use crate::store::hindsight::Settings;
use crate::wire::hindsight::Hyperparams;
use backsight_core::credit::hcapo::{Params, Smoothing};

/// Everything there is to know.
pub(in crate::cli) struct CreditArgs<'a> {
    pub(super) call: &'a Call,
    pub(super) server: ServerArgs,
    pub(super) inputs: Vec<PathBuf>,
    pub(super) run_dir: PathBuf,
    /// Whether actions are re-read as the student saw them too, even if credit does not need it.
    pub(in crate::cli) with_plain: bool,
}

impl<'a> CreditArgs<'a> {
    /// What was typed, and what the environment says where nothing was. `env` gives a variable's value.
    pub(in crate::cli) fn read(
        call: &'a Call,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        // What only a new measurement could heed; a lens and its place say also which result is meant.
        let is_idle = |key: &&Key| match key.name {
            "lens" | "placement" => false,
            "api_key" => true,
            _ => !matches!(key.effect, Effect::Recomputed | Effect::Call),
        };
        if let Some(key) = call.config.typed().find(is_idle).filter(|_| call.config.is("recompute")) {
            return Err(not_both(key.name, "recompute").into());
        }
        let mut args = Self {
            call,
            server: ServerArgs { needs_text: true, ..ServerArgs::read(&call.config)? },
            inputs: call.inputs()?,
            run_dir: call.run_dir()?,
            with_plain: false,
        };
        args.fill_in(call.get("api_key")?, |name| env(name).filter(|value| !value.trim().is_empty()));
        Ok(args)
    }

    /// Takes from the environment what the published script takes from there.
    fn fill_in(&mut self, api_key: Option<String>, env: impl Fn(&str) -> Option<String>) {
        const KEY: &str = "FSWE_AGENT_API_KEY";
        if self.server.is_here() {
            return;
        }
        let model = &mut self.server.part;
        if model.url.is_empty() {
            model.url.extend(env("FSWE_AGENT_API_URL"));
        }
        model.model = model.model.take().or_else(|| env("FSWE_AGENT_MODEL"));
        let typed = api_key.map(|key| Secret::new(&key).found_in("--api-key"));
        let key = typed.or_else(|| env(KEY).map(|key| Secret::new(&key).found_in(KEY)));
        // The published script's word for no key.
        self.server.api_key = key.filter(|key| !matches!(key.expose(), "" | "unused"));
    }

    /// Hyper-parameters of a new scoring.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let new = Settings { params: Params::PUBLISHED, max_logprob_tokens: 0 };
        self.over(&new).map_err(|why| Failure::input(why, "give --c-min a smaller number than --c-max"))
    }

    /// What was given over `base`, if it goes together.
    pub(super) fn over(&self, base: &Settings) -> Result<Settings, String> {
        let given = self.call.config.given();
        let base = Hyperparams::new(&base.params, base.max_logprob_tokens);
        let mut all = Table::try_from(base).map_err(|error| error.to_string())?;
        all.extend(given.clone());
        // Published files say apart from its name whether there is any.
        let smoothing = all.get("smoothing").and_then(Value::as_str);
        all.insert("smooth".to_owned(), (smoothing != Some(Smoothing::None.name())).into());
        let all = Hyperparams::deserialize(Value::Table(all)).map_err(|error| error.to_string())?;
        let is_given = ["c_min", "c_max"].iter().any(|it| given.contains_key(*it));
        match !is_given || all.c_min <= all.c_max {
            true => Ok(Settings::recorded(&all)),
            false => {
                let Hyperparams { c_min, c_max, .. } = all;
                Err(format!("the least ratio --c-min {c_min} is above the largest --c-max {c_max}"))
            }
        }
    }

    /// Refuses to score without a model.
    pub(super) fn check_server(&self) -> Result<(), Failure> {
        if self.server.part.url.is_empty() && !self.server.is_here() {
            let help = "give its address with --url http://HOST:PORT or in FSWE_AGENT_API_URL, or use --kind embedded";
            return Err(Failure::input("no server was named", help));
        }
        self.server.check()
    }

    /// Where the tokenizer is, if anything that was typed says so; a model's name on the hub is left to those who ask it.
    pub(super) fn text_path(&self) -> Option<PathBuf> {
        let model = self.server.part.model.as_deref().map(PathBuf::from);
        let has_text = |path: &PathBuf| {
            path.join("tokenizer.json").is_file() || path.extension().is_some_and(|it| it == "gguf")
        };
        self.server.part.tokenizer.clone().or_else(|| model.filter(has_text))
    }

    /// The most tokens of a sequence: what was typed, and what leaves room for one more in the model's context.
    pub(super) fn limit(&self, context_length: Option<usize>) -> Result<Option<usize>, Failure> {
        let (typed, own) =
            (self.call.get("max_context")?, context_length.map(|length| length.saturating_sub(1)));
        Ok([typed, own].into_iter().flatten().min())
    }

    /// Whether the file that a key names is given.
    pub(super) fn has(&self, name: &str) -> bool {
        !self.call.config.shown(name).is_empty()
    }
}
