//! Flags made from the list of keys, and what was typed of them.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};

use super::failure::Failure;
use crate::config::keys::{self, ALIASES, Accepts, Alias, Effect, Key};
use crate::config::{ConfigError, Typed};

/// The id of what is typed without a flag.
const BARE: &str = "bare";

/// What is wrong with a configuration is the user's to mend.
impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::input(&error, &error.help)
    }
}

/// Everything that can be typed behind a command, what is typed most first.
pub(super) fn flags(command: &str) -> Vec<Arg> {
    let about = "File with values for any of the keys, TOML or Atropos-style YAML; flags win, paths are relative to it";
    let file = Arg::new("config").long("config").value_name("FILE").help(about);
    let has_file = keys::of(command).any(|key| key.effect != Effect::Call);
    let bare = bare_key(command).and_then(|name| keys::of(command).find(|key| key.name == name));
    let bare = bare.map(|key| {
        let name: &'static str = key.flag.to_uppercase().leak();
        Arg::new(BARE).value_name(name).conflicts_with(key.name).help(key.about)
    });
    let (usual, others): (Vec<&Key>, Vec<&Key>) = keys::of(command).partition(|key| key.section.is_empty());
    let [usual, others] = [usual, others].map(|keys| keys.into_iter().map(|key| flag(command, key)));
    let switches = aliases(command).filter_map(switch);
    bare.into_iter().chain(usual).chain(has_file.then_some(file)).chain(others).chain(switches).collect()
}

/// What was typed, by key.
pub(super) fn typed(command: &str, matches: &ArgMatches) -> Typed {
    let is_typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    // A switch has no words, and says that it is so.
    let words = |id: &str| match matches.try_get_many::<String>(id) {
        Ok(words) => words.into_iter().flatten().cloned().collect(),
        Err(_) => vec!["true".to_owned()],
    };
    let flags = keys::of(command).filter(|key| is_typed(key.name)).map(|key| (key.name, words(key.name)));
    let switched = aliases(command).filter_map(|(_, flag, key, value)| Some((flag, key, (*value)?)));
    let switched = switched.filter(|(flag, ..)| is_typed(flag));
    let switched = switched.map(|(_, key, value)| (*key, vec![value.to_owned()]));
    let bare = bare_key(command).filter(|_| is_typed(BARE)).map(|key| (key, words(BARE)));
    flags.chain(switched).chain(bare).collect()
}

/// The key that can be typed without its flag.
fn bare_key(command: &str) -> Option<&'static str> {
    keys::BARE.iter().find(|(of, _)| *of == command).map(|(_, key)| *key)
}

fn aliases(command: &str) -> impl Iterator<Item = &'static Alias> {
    ALIASES.iter().filter(move |(of, ..)| *of == command)
}

fn flag(command: &str, key: &'static Key) -> Arg {
    let default = key.default.map(|it| format!(" [default: {it}]")).unwrap_or_default();
    let choices = match &key.accepts {
        Accepts::OneOf(names) => format!(" [{}]", names.join(", ")),
        _ => String::new(),
    };
    let others = aliases(command).filter(|(.., name, value)| *name == key.name && value.is_none());
    let arg = Arg::new(key.name)
        .long(key.flag)
        .visible_aliases(others.map(|(_, flag, ..)| *flag))
        .value_name(value_name(&key.accepts))
        .help(format!("{}{choices}{default}", key.about))
        .help_heading(Some(key.section).filter(|it| !it.is_empty()))
        .allow_negative_numbers(!matches!(key.accepts, Accepts::Switch));
    match (&key.accepts, key.name) {
        (Accepts::Switch, "quiet" | "verbose") => {
            arg.action(ArgAction::SetTrue).short(key.name.chars().next())
        }
        (Accepts::Switch, _) => arg.action(ArgAction::SetTrue),
        (Accepts::Words, _) => arg.num_args(1..).action(ArgAction::Append),
        (Accepts::Truth, _) => arg.num_args(0..=1).default_missing_value("true"),
        _ => arg,
    }
}

/// Another name that says a value too.
fn switch((command, flag, name, value): &'static Alias) -> Option<Arg> {
    let key = keys::of(command).find(|key| key.name == *name)?;
    let arg = Arg::new(*flag).long(*flag).action(ArgAction::SetTrue).conflicts_with(key.name);
    Some(arg.help(format!("The same as --{} {}", key.flag, (*value)?)).help_heading(key.section))
}

fn value_name(accepts: &Accepts) -> &'static str {
    match accepts {
        Accepts::Text | Accepts::Words => "TEXT",
        Accepts::Path => "PATH",
        Accepts::Program => "PROGRAM",
        Accepts::Whole(_) => "N",
        Accepts::Number(..) | Accepts::Positive => "X",
        Accepts::Truth | Accepts::Switch => "true|false",
        Accepts::OneOf(_) => "NAME",
    }
}
