//! Configuration: what was typed in a file and in flags, checked key by key, and what follows from it.
//!
//! Owns [`Config`], the values of every key a command uses: flags win over the file, the file over the
//! defaults of [`keys`]. Pure: reading files and printing are left to the command line. What one
//! part of a command needs is read from here into a structure of its own (see [`parts`]).

pub mod keys;
pub mod parts;
mod paths;
pub mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use toml::{Table, Value};

use self::keys::{Accepts, EITHER, Effect, Key};
use crate::model::budget::ModelRole;
use crate::model::kinds;
use backsight_core::lens::{self, Placement, key_of};

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct ConfigError {
    /// What is wrong.
    what: String,
    /// What the user can do about it.
    pub help: String,
}

impl ConfigError {
    fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: help.into() }
    }

    /// The file is no TOML, or no YAML.
    fn unreadable(file: File<'_>, line: Option<usize>, why: &str) -> Self {
        let line = line.map(|line| format!(" line {line}")).unwrap_or_default();
        let help = "write one `key = value` a line, or YAML into a file that ends in .yaml";
        Self::new(format!("{}{line}: {why}", file.name), help)
    }

    /// No command has such a key.
    fn unknown(file: File<'_>, name: &str) -> Self {
        let all = "`backsight config` lists every key";
        let nearest = keys::nearest(name).map(|key| format!("did you mean `{key}`? {all}"));
        Self::new(format!("{}: there is no key `{name}`", file.name), nearest.unwrap_or(all.to_owned()))
    }

    /// A value that a flag, or a key of a file, cannot have.
    fn wrong(place: &str, value: &dyn Display, wanted: &str) -> Self {
        Self::new(format!("{place} is {value}, which is not {wanted}"), MEANINGS)
    }
}

/// Where it is said what keys mean.
const MEANINGS: &str = "`backsight config` says what each key means";

/// A configuration file as text, under the name errors call it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File<'a> {
    /// Its path.
    pub name: &'a str,
    /// Its content.
    pub text: &'a str,
}

/// The table below a stage's own for what was not asked for but found out.
pub const FOUND: &str = "found";

/// Flags as typed: the key's name, and every value that was given for it.
pub type Typed = BTreeMap<&'static str, Vec<String>>;

/// The values of every key a command uses, valid each for itself. A key without a value is absent.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    values: Table,
    /// The keys that were typed or stand in the file, and of those the typed ones.
    given: BTreeSet<&'static str>,
    typed: BTreeSet<&'static str>,
    left_out: Vec<String>,
}

/// A key whose value is another than it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// What it was; absent where it had no value.
    pub before: Option<String>,
    /// What it is; absent where it has no value.
    pub now: Option<String>,
}

impl Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        write!(f, "{} (was {}, now {})", self.key, shown(&self.before), shown(&self.now))
    }
}

impl Config {
    /// Puts defaults, file and flags together for `command`.
    pub fn resolve(command: &str, file: Option<File<'_>>, typed: &Typed) -> Result<Self, ConfigError> {
        let (from_file, left_out) =
            file.map(|file| read_file(file, command, typed)).transpose()?.unwrap_or_default();
        let (mut values, mut given) = (Table::new(), BTreeSet::new());
        for key in keys::of(command) {
            let said = match typed.get(key.name) {
                Some(words) => Some(key.parse(words)?),
                None => from_file.get(key.name).filter(|_| key.effect != Effect::Call).cloned(),
            };
            given.extend(said.is_some().then_some(key.name));
            let default = || key.default.map(|text| key.parse(&[text.to_owned()]));
            if let Some(value) = said.map(Ok).or_else(default).transpose()? {
                values.insert(key.name.to_owned(), value);
            }
        }
        let config = Self { values, given, typed: typed.keys().copied().collect(), left_out };
        config.check_either().map(|()| config)
    }

    /// The same for a stage of the command: its keys, those that the command has none for at their defaults.
    pub fn of_stage(&self, stage: &str) -> Result<Self, ConfigError> {
        let mut values = Table::new();
        for key in keys::of(stage) {
            let default = || key.default.map(|text| key.parse(&[text.to_owned()]));
            let own = self.values.get(key.name).cloned().map(Ok);
            if let Some(value) = own.or_else(default).transpose()? {
                values.insert(key.name.to_owned(), value);
            }
        }
        Ok(Self { values, ..self.clone() })
    }

    /// Refuses what was said in two ways.
    fn check_either(&self) -> Result<(), ConfigError> {
        let is_given = |(one, other): &&(&str, &str)| self.given.contains(one) && self.given.contains(other);
        EITHER.iter().find(is_given).map_or(Ok(()), |(one, other)| Err(not_both(one, other)))
    }

    /// The keys that were typed.
    pub fn typed(&self) -> impl Iterator<Item = &'static Key> {
        keys::all().iter().filter(|key| self.typed.contains(key.name))
    }

    /// What was typed or stands in the file, without defaults.
    pub fn given(&self) -> Table {
        let is_given = |(name, _): &(&String, &Value)| self.given.contains(name.as_str());
        self.values.iter().filter(is_given).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// The words of a key's value as they may be shown.
    pub fn shown(&self, name: &str) -> Vec<String> {
        let words = match self.values.get(name).map(without_logins) {
            Some(Value::Array(words)) => words,
            other => other.into_iter().collect(),
        };
        words.iter().map(|word| word.as_str().map_or_else(|| word.to_string(), str::to_owned)).collect()
    }

    /// Whether a switch was given.
    pub fn is(&self, name: &str) -> bool {
        self.values.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// What stands in the file and means nothing to us: settings of a trainer, in files that are shared with one.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The part of the configuration that `T` names.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        read(self.values.clone())
    }

    /// The same of a role: what is not said of it is as the student has it, unless it has a server of its own.
    pub fn read_of<T: DeserializeOwned>(&self, role: ModelRole) -> Result<T, ConfigError> {
        let prefix = format!("{}_", role.name());
        let own =
            |(name, value): (&String, &Value)| Some((name.strip_prefix(&prefix)?.to_owned(), value.clone()));
        let own: Table = self.values.iter().filter_map(own).collect();
        // What is true of one server is not true of another, and its key is nobody else's to see.
        let is_elsewhere = own.contains_key("url") || own.contains_key("kind");
        let is_shared = |name: &str| !(is_elsewhere && keys::OF_SERVER.contains(&name));
        let shared = self.values.clone().into_iter().filter(|(name, _)| is_shared(name));
        let kind = ("kind".to_owned(), Value::String(kinds::AUTO.to_owned()));
        read(std::iter::once(kind).chain(shared).chain(own).collect())
    }

    /// The value of one key; an [`Option`] of one that may have none.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, ConfigError> {
        let is_list = |key: &Key| key.name == name && matches!(key.accepts, Accepts::Words);
        let value = match self.values.get(name) {
            None if keys::all().iter().any(is_list) => Ok(Json::Array(Vec::new())),
            value => serde_json::to_value(value),
        };
        let flag = name.replace('_', "-");
        value.and_then(serde_json::from_value).map_err(|error| match self.values.get(name) {
            Some(value) => ConfigError::wrong(&format!("--{flag}"), value, &error.to_string()),
            None => ConfigError::new(format!("--{flag} is not given"), "give it; --help has examples"),
        })
    }

    /// Sets a key to what was found out to be its value.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    /// Sets a key as if it had been said.
    pub fn say(&mut self, key: &'static str, value: impl Into<Value>) {
        self.given.insert(key);
        self.set(key, value);
    }

    /// Leaves a key without a value, as if it had no default.
    pub fn leave_out(&mut self, key: &str) {
        self.values.remove(key);
    }

    /// As a file has it: every key with a value that outlives this call, by name, without secrets.
    pub fn to_table(&self) -> Table {
        let kept = self.values.iter().filter(|(name, _)| keys::find(name).is_some());
        kept.map(|(name, value)| (name.clone(), without_logins(value))).collect()
    }

    /// The keys in which a run made with the configuration in `before` would come out otherwise.
    pub fn differences(&self, before: &Table) -> Vec<Difference> {
        let effect = |name: &str| keys::find(name).map(|key| key.effect);
        let decides = |name: &&String| !matches!(effect(name), Some(Effect::Manner | Effect::Recomputed));
        let after = self.to_table();
        let names: BTreeSet<&String> = after.keys().chain(before.keys()).filter(decides).collect();
        let has_grown = |name: &str| {
            let may_grow = effect(name) == Some(Effect::Extent);
            let number = |table: &Table| table.get(name).and_then(Value::as_integer);
            may_grow && number(before).is_none_or(|before| number(&after).is_some_and(|now| now >= before))
        };
        let of = |name: &str| {
            let (before, now) =
                (before.get(name).map(Value::to_string), after.get(name).map(Value::to_string));
            (before != now).then(|| Difference { key: name.to_owned(), before, now })
        };
        names.into_iter().filter(|name| !has_grown(name)).filter_map(|name| of(name)).collect()
    }
}

/// The known keys of a file, checked; keys of other commands are checked too, so that a file can serve several.
/// Beside them what means nothing to us. In a file with a table for each stage, as run directories have it, the table of
/// this one counts.
fn read_file(file: File<'_>, stage: &str, typed: &Typed) -> Result<(Table, Vec<String>), ConfigError> {
    let is_yaml = Path::new(file.name).extension().is_some_and(|it| it == "yaml" || it == "yml");
    let (table, left_out) = if is_yaml { yaml::read(file)? } else { (parse_toml(file)?, Vec::new()) };
    let (sections, mut table): (Table, Table) = table.into_iter().partition(|(_, it)| it.is_table());
    let of = |section: &str| section.split('.').next().unwrap_or(section).to_owned();
    if let Some(name) = sections.keys().find(|name| !keys::STAGES.contains(&of(name).as_str())) {
        return Err(ConfigError::unknown(file, name));
    }
    let said = |key: &str| {
        let typed = typed.get(key).and_then(|words| words.last()).map(String::as_str);
        typed.or_else(|| table.get(key)?.as_str())
    };
    let own = own_section(file, &sections, stage, &said)?.and_then(Value::as_table).cloned();
    table.extend(own.into_iter().flatten().filter(|(name, _)| name != FOUND));
    let mut checked = Table::new();
    for (name, value) in table {
        let key = keys::find(&name).ok_or_else(|| ConfigError::unknown(file, &name))?;
        checked.insert(name, key.check(value, &format!("{} in {}", key.name, file.name))?);
    }
    let base = Path::new(file.name).parent().unwrap_or(Path::new(""));
    Ok((paths::replaced(checked, |path| base.join(path)), left_out))
}

/// The table of a stage. Where the stage has several results, that of the lens counts that is said: typed, or in the file
/// above its tables.
fn own_section<'t, 's>(
    file: File<'_>,
    sections: &'t Table,
    stage: &str,
    said: &dyn Fn(&str) -> Option<&'s str>,
) -> Result<Option<&'t Value>, ConfigError> {
    let placement = said("placement").and_then(Placement::from_name);
    let result = key_of(said("lens").unwrap_or(lens::NAMES[0]), placement);
    let own = sections.get(&format!("{stage}.{result}")).or_else(|| sections.get(stage));
    let others: Vec<&str> = sections.keys().filter_map(|it| it.strip_prefix(&format!("{stage}."))).collect();
    match (own, others.is_empty()) {
        (None, false) => Err(ConfigError::new(
            format!("{}: its {stage} is of {}", file.name, others.join(", ")),
            "name the one that is meant with --lens and --placement",
        )),
        (own, _) => Ok(own),
    }
}

/// Reads TOML; what is wrong with it is named by its line.
fn parse_toml(file: File<'_>) -> Result<Table, ConfigError> {
    file.text.parse::<Table>().map_err(|error| {
        let before = |end: usize| file.text.bytes().take(end).filter(|byte| *byte == b'\n').count();
        let line = error.span().map(|span| before(span.start) + 1);
        ConfigError::unreadable(file, line, error.message())
    })
}

fn read<T: DeserializeOwned>(values: Table) -> Result<T, ConfigError> {
    T::deserialize(Value::Table(values)).map_err(|error| ConfigError::new(error.message(), MEANINGS))
}

/// Two keys that say the same thing, or of which one makes no sense beside the other.
pub fn not_both(one: &str, other: &str) -> ConfigError {
    let [one, other] = [one, other].map(|it| format!("--{}", it.replace('_', "-")));
    let what = format!("{one} cannot be used with {other}");
    ConfigError::new(what, format!("give {one} or {other}, not both"))
}

/// Addresses may carry a user and a password, which are nobody else's business.
fn without_logins(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_login(text)),
        Value::Array(items) => Value::Array(items.iter().map(without_logins).collect()),
        other => other.clone(),
    }
}

fn without_login(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => text.to_owned(),
    }
}

impl Key {
    /// The value that was typed.
    fn parse(&self, words: &[String]) -> Result<Value, ConfigError> {
        let value = self.accepts.read_words(words);
        self.check(value.unwrap_or_else(|| Value::String(words.join(" "))), &format!("--{}", self.flag))
    }

    /// The value, if the key accepts it.
    fn check(&self, value: Value, place: &str) -> Result<Value, ConfigError> {
        self.accepts.fit(value).map_err(|value| ConfigError::wrong(place, &value, &self.accepts.wanted()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn typed(pairs: &[(&'static str, &[&str])]) -> Typed {
        pairs.iter().map(|(key, words)| (*key, words.iter().map(|it| (*it).to_owned()).collect())).collect()
    }

    fn resolve(file: &str, flags: &[(&'static str, &[&str])]) -> Result<Config, String> {
        let file = File { name: "c.toml", text: file };
        Config::resolve("collect", Some(file), &typed(flags)).map_err(|error| error.to_string())
    }

    fn value(file: &str, flags: &[(&'static str, &[&str])], key: &str) -> Result<Option<String>, String> {
        resolve(file, flags).map(|config| config.values.get(key).map(Value::to_string))
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        assert_eq!(value("", &[], "group_size"), Ok(Some("4".into())));
        assert_eq!(value("group_size = 8", &[], "group_size"), Ok(Some("8".into())));
        assert_eq!(value("group_size = 8", &[("group_size", &["2"])], "group_size"), Ok(Some("2".into())));
        assert_eq!(value("", &[], "model"), Ok(None));
        assert_eq!(value("agent_temperature = 1", &[], "agent_temperature"), Ok(Some("1.0".into())));
        assert_eq!(value("tasks = 'fizzbuzz'", &[], "tasks"), Ok(Some("[\"fizzbuzz\"]".into())));
        assert_eq!(value("", &[("tasks", &["a", "b"])], "tasks"), Ok(Some("[\"a\", \"b\"]".into())));
    }

    #[test]
    fn a_file_may_hold_keys_of_other_commands() {
        assert_eq!(value("eval_temperature = 0.5", &[], "eval_temperature"), Ok(None));
    }

    #[test]
    fn of_several_stages_the_own_table_counts() {
        let file = "seed = 1\ngroup_size = 2\n[collect]\ngroup_size = 8\n[collect.found]\nserver = \"s\"\n\
                    [credit]\nlens = \"hint\"\n";
        assert_eq!(value(file, &[], "group_size"), Ok(Some("8".into())));
        assert_eq!(value(file, &[], "seed"), Ok(Some("1".into())));
    }

    #[test]
    fn of_several_results_that_of_the_lens_counts() {
        let hint = "[\"credit.hint-last_user\"]\nlens = \"hint\"\ngamma = 0.5\n";
        let gamma = |text: &str, flags: &[(&'static str, &[&str])]| {
            let config = Config::resolve("credit", Some(File { name: "c.toml", text }), &typed(flags));
            config.map(|it| it.shown("gamma")).map_err(|error| error.to_string())
        };
        let both = format!("[credit]\ngamma = 0.25\n{hint}");
        assert_eq!(gamma(&both, &[]), Ok(vec!["0.25".to_owned()]));
        assert_eq!(gamma(&both, &[("lens", &["hint"])]), Ok(vec!["0.5".to_owned()]));
        assert_eq!(gamma(&both, &[("placement", &["last"])]), Ok(vec!["0.25".to_owned()]));
        assert_eq!(gamma(&format!("lens = \"hint\"\n{both}"), &[]), Ok(vec!["0.5".to_owned()]));
        assert_eq!(gamma(hint, &[]), Err("c.toml: its credit is of hint-last_user".to_owned()));
    }

    #[test]
    fn mistakes_are_named() {
        let check = |file: &str, flags: &[(&'static str, &[&str])], expected: &str| {
            assert_eq!(resolve(file, flags).unwrap_err(), expected);
        };
        check("seed = 1\ngroups = = 2", &[], "c.toml line 2: extra `=`, expected nothing");
        check("group_sice = 2", &[], "c.toml: there is no key `group_sice`");
        check("[collect.fund]\nseed = 2", &[], "c.toml: there is no key `fund`");
        check("[colect]\nseed = 2", &[], "c.toml: there is no key `colect`");
        check("group_size = 0", &[], "group_size in c.toml is 0, which is not a whole number from 1 up");
        check(
            "",
            &[("group_size", &["four"])],
            "--group-size is \"four\", which is not a whole number from 1 up",
        );
        check(
            "",
            &[("agent_temperature", &["-1"])],
            "--agent-temperature is -1.0, which is not a number from 0 to 10",
        );
        for key in ["max_agent_turns", "max_turn_tokens", "context_budget", "episode_seconds", "forced_text"]
        {
            let expected = format!("--{} is 0, which is not a whole number from 1 up", key.replace('_', "-"));
            check("", &[(key, &["0"])], &expected);
        }
        let nan = "agent_temperature in c.toml is nan, which is not a number from 0 to 10";
        check("agent_temperature = nan", &[], nan);
        check("show_tests = 'maybe'", &[], "show_tests in c.toml is \"maybe\", which is not true or false");
        check(
            "",
            &[("kind", &["tgi"])],
            "--kind is \"tgi\", which is not one of auto, sglang, vllm, openai, anthropic, embedded",
        );
    }

    #[test]
    fn paths_in_a_file_are_relative_to_it() {
        let text = "tasks = ['builtin', 'flatten', 'a.jsonl', '/b.jsonl']\ntokenizer = 'm'\nmodel = 'm'\n\
                    sandbox_python = 'python3'\ndocker_program = './d'\nsystem_prompt = '../s.txt'";
        let resolved = |name: &str, flags: &[(&'static str, &[&str])]| {
            Config::resolve("collect", Some(File { name, text }), &typed(flags)).unwrap()
        };
        let there = resolved("conf/c.toml", &[]);
        let get = |config: &Config, key: &str| config.values.get(key).map(Value::to_string).unwrap();
        assert_eq!(get(&there, "tasks"), "[\"builtin\", \"flatten\", \"conf/a.jsonl\", \"/b.jsonl\"]");
        let expected = [
            ("tokenizer", "\"conf/m\""),
            ("model", "\"m\""),
            ("sandbox_python", "\"python3\""),
            ("docker_program", "\"conf/./d\""),
            ("system_prompt", "\"conf/../s.txt\""),
        ];
        for (key, value) in expected {
            assert_eq!(get(&there, key), value, "{key}");
        }
        assert_eq!(get(&resolved("c.toml", &[]), "tokenizer"), "\"m\"");
        assert_eq!(get(&resolved("conf/c.toml", &[("tokenizer", &["t"])]), "tokenizer"), "\"t\"");
    }

    #[test]
    fn a_name_of_the_hub_is_no_path() {
        let file = File { name: "conf/c.toml", text: "tokenizer = 'Qwen/Qwen3-4B'" };
        let config = Config::resolve("credit", Some(file), &Typed::new()).unwrap();
        assert_eq!(config.shown("tokenizer"), ["Qwen/Qwen3-4B"]);
        let there = File { name: "./c.toml", text: "tokenizer = 'src/config'" };
        let config = Config::resolve("credit", Some(there), &Typed::new()).unwrap();
        assert_eq!(config.shown("tokenizer"), ["./src/config"]);
    }

    #[test]
    fn what_is_not_said_of_a_role_is_the_students() {
        let mut config = resolve("", &[("url", &["http://s"]), ("model", &["big"])]).unwrap();
        config.set("judge_model", "small");
        config.set("judge_timeout", 7);
        let of = |role| config.read_of::<parts::ModelPart>(role).unwrap();
        let (student, judge) = (of(ModelRole::Student), of(ModelRole::Judge));
        assert_eq!((student.model.as_deref(), student.timeout), (Some("big"), 600));
        assert_eq!((judge.model.as_deref(), judge.timeout), (Some("small"), 7));
        assert_eq!((judge.url, judge.kind), (student.url, student.kind));
    }

    #[test]
    fn one_call_leaves_nothing_behind() {
        let config = resolve("", &[("run", &["runs/x"]), ("json", &["true"])]).unwrap();
        assert!(config.is("json") && !config.to_table().contains_key("run"), "{}", config.to_table());
        assert_eq!(value("run = 'x'", &[], "run"), Err("c.toml: there is no key `run`".into()));
        assert_eq!(config.get::<String>("run"), Ok("runs/x".into()));
        assert_eq!(config.get::<Vec<String>>("url"), Ok(Vec::new()));
        assert!(config.get::<String>("model").unwrap_err().to_string().contains("--model is not given"));
    }

    #[test]
    fn only_keys_that_decide_the_result_tell_runs_apart() {
        let before = resolve("", &[("url", &["http://a"])]).unwrap().to_table();
        let now = resolve(
            "",
            &[("url", &["http://b"]), ("seed", &["7"]), ("model", &["m"]), ("max_tokens", &["9"])],
        );
        let differences: Vec<String> =
            now.unwrap().differences(&before).iter().map(Difference::to_string).collect();
        assert_eq!(differences, ["model (was not set, now \"m\")", "seed (was 0, now 7)"]);
    }

    #[test]
    fn what_there_is_to_be_of_a_run_may_grow() {
        let with = |groups: &str| resolve("", &[("groups", &[groups])]).unwrap();
        let differences = |before: &Config, now: &Config| {
            let before = before.to_table();
            now.differences(&before).iter().map(Difference::to_string).collect::<Vec<_>>()
        };
        assert_eq!(differences(&with("3"), &with("5")), Vec::<String>::new());
        assert_eq!(differences(&with("5"), &with("3")), ["groups (was 5, now 3)"]);
        assert_eq!(differences(&with("5"), &resolve("", &[]).unwrap()), ["groups (was 5, now not set)"]);
    }

    #[test]
    fn what_is_written_can_be_read_and_keeps_no_secret() {
        let flags: &[(&'static str, &[&str])] =
            &[("url", &["http://me:secret@host:8000/v1"]), ("tasks", &["my tasks.jsonl"])];
        let config = resolve("", flags).unwrap();
        let text = config.to_table().to_string();
        assert!(text.contains("\"http://host:8000/v1\"") && !text.contains("secret"), "{text}");
        let again = Config::resolve("collect", Some(File { name: "f", text: &text }), &Typed::new()).unwrap();
        assert_eq!(again.differences(&text.parse().unwrap()), []);
        assert_eq!(again.to_table().to_string(), text);
    }
}
