//! One call of the program: a command with the values of its keys, from flags and file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::keys::typed;
use super::talk::{Loudness, Talk};
use super::{block_on, program};
use crate::config::keys::OF_SERVERS;
use crate::config::{Config, File, Typed};
use crate::model::open::tokenizer_path;
use crate::store::episodes::run_dir_for;
use crate::wire::named::Choice;
use backsight_core::lens::{Placement, key_of};
use backsight_core::names::Named;

/// A command as it was called.
pub(super) struct Call {
    /// What to try after it.
    next: &'static str,
    /// The file that was named.
    file: Option<PathBuf>,
    /// The values of its keys.
    pub(super) config: Config,
}

impl Call {
    /// Puts together what was typed and what the file says.
    pub(super) fn resolve(command: &str, next: &'static str, matches: &ArgMatches) -> Result<Self, Failure> {
        let file = matches.try_get_one::<String>("config").ok().flatten().map(PathBuf::from);
        let text = file.as_deref().map(read_text).transpose()?;
        let name = file.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        let said = text.as_deref().map(|text| File { name: &name, text });
        let config = Config::resolve(command, said, &typed(command, matches))?;
        Ok(Self { next, file, config })
    }

    /// The command as if this was typed.
    pub(super) fn of(command: &str, next: &'static str, typed: &Typed) -> Result<Self, Failure> {
        Ok(Self { next, file: None, config: Config::resolve(command, None, typed)? })
    }

    /// With these values.
    pub(super) fn over(config: Config) -> Self {
        Self { next: "", file: None, config }
    }

    /// A stage of it.
    pub(super) fn stage(&self, stage: &str) -> Result<Self, Failure> {
        Ok(Self::over(self.config.of_stage(stage)?))
    }

    /// The value of one key.
    pub(super) fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        self.config.get(name).map_err(Failure::from)
    }

    /// One of the choices that a key has.
    pub(super) fn choice<T: Named>(&self, name: &str) -> Result<T, Failure> {
        self.get(name).map(|Choice(choice)| choice)
    }

    /// The directory or files with the episodes: what was named, else the run's own.
    pub(super) fn inputs(&self) -> Result<Vec<PathBuf>, Failure> {
        let episodes: Vec<PathBuf> = self.get("episodes")?;
        if !episodes.is_empty() {
            return Ok(episodes);
        }
        let directory = self.get::<Option<PathBuf>>("input_dir")?.or(self.get("run")?);
        Ok(vec![directory.unwrap_or_else(|| PathBuf::from("trajectories"))])
    }

    /// Where a lens is written, if that was said.
    pub(super) fn placement(&self) -> Result<Option<Placement>, Failure> {
        Ok(self.get::<Option<Choice<Placement>>>("placement")?.map(|Choice(placement)| placement))
    }

    /// The result that is meant, by its lens and placement.
    pub(super) fn result(&self) -> Result<String, Failure> {
        Ok(key_of(&self.get::<String>("lens")?, self.placement()?))
    }

    /// The run directory of recorded episodes.
    pub(super) fn run_dir(&self) -> Result<PathBuf, Failure> {
        let named: Option<PathBuf> = self.get("run")?;
        Ok(named.unwrap_or(run_dir_for(&self.inputs()?[0])))
    }

    /// The place of a tokenizer that is named by its directory or as on the hub.
    pub(super) fn tokenizer(&self) -> Result<Option<PathBuf>, Failure> {
        let named: Option<PathBuf> = self.get("tokenizer")?;
        named.map(|named| block_on(tokenizer_path(&named))?.map_err(Failure::from)).transpose()
    }

    /// The file that a key names, as text.
    pub(super) fn file(&self, name: &str) -> Result<Option<String>, Failure> {
        self.get::<Option<PathBuf>>(name)?.map(|path| read_text(&path)).transpose()
    }

    /// Whether results and talk are for machines.
    pub(super) fn is_json(&self) -> bool {
        self.config.is("json")
    }

    /// Who tells what goes on with so many of `unit`.
    pub(super) fn talk(&self, unit: &'static str) -> Talk {
        let loudness = match (self.config.is("quiet"), self.config.is("verbose")) {
            (true, _) => Loudness::Quiet,
            (false, true) => Loudness::Verbose,
            (false, false) => Loudness::Usual,
        };
        Talk::new(self.is_json(), loudness, unit)
    }

    /// The command to try next, to be typed as it is.
    pub(super) fn next(&self) -> Option<String> {
        // A file is named where it is first needed.
        let mut file = self.file.as_deref();
        let words = self.next.split(' ').flat_map(|word| match word {
            "{server}" => self.again(file.take(), &OF_SERVERS, &["--url", "http://localhost:8000"]),
            "{input}" => self.again(file.take(), &["input_dir", "episodes", "run"], &[]),
            word => vec![self.filled(word)],
        });
        let words: Vec<String> = words.collect();
        // What was only looked at is still to be done.
        let is_done = !self.next.is_empty() && !self.config.is("dry_run");
        is_done.then(|| program::command(words.iter().map(String::as_str)))
    }

    /// What was typed of these keys, and the file that may say the rest; else `otherwise`.
    fn again(&self, file: Option<&Path>, names: &[&str], otherwise: &[&str]) -> Vec<String> {
        let mut words: Vec<String> =
            file.iter().flat_map(|it| ["--config".into(), it.display().to_string()]).collect();
        // A name that several commands give a meaning of their own has several rows.
        let mut told = BTreeSet::new();
        for key in self.config.typed().filter(|key| names.contains(&key.name) && told.insert(key.name)) {
            let values = self.config.shown(key.name);
            words.extend(values.into_iter().flat_map(|value| [format!("--{}", key.flag), value]));
        }
        if words.is_empty() { otherwise.iter().map(|it| (*it).to_owned()).collect() } else { words }
    }

    /// A word with the value of the key it names.
    fn filled(&self, word: &str) -> String {
        let Some((before, rest)) = word.split_once('{') else { return word.to_owned() };
        let Some((name, after)) = rest.split_once('}') else { return word.to_owned() };
        let value = self.config.shown(name).pop().unwrap_or_else(|| name.to_uppercase());
        format!("{before}{value}{}", self.filled(after))
    }
}

/// A file's text, without the mark some editors put before it.
pub(super) fn read_text(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("{}: {error}", path.display()), "check the file"))?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}
