//! Flags made from the list of keys, and the configuration that follows from flags and file.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args as ClapArgs, Command, FromArgMatches};
use serde_json::{Value, json};

use super::failure::Failure;
use super::stdout;
use crate::config::keys::{KEYS, Key, Shape};
use crate::config::{Config, ConfigError, File, Typed};

/// A command whose flags are made from the keys.
pub(super) trait Keyed {
    /// Its name.
    const COMMAND: &'static str;
}

/// `collect`.
#[derive(Debug)]
pub(super) struct Collect;

impl Keyed for Collect {
    const COMMAND: &'static str = "collect";
}

/// `evaluate`.
#[derive(Debug)]
pub(super) struct Evaluate;

impl Keyed for Evaluate {
    const COMMAND: &'static str = "evaluate";
}

/// Every key of a command as a flag, and the file the others come from.
#[derive(Debug)]
pub(super) struct KeyArgs<C> {
    config: Option<PathBuf>,
    typed: Typed,
    command: PhantomData<C>,
}

impl<C: Keyed> KeyArgs<C> {
    /// The configuration.
    pub(super) fn resolve(&self) -> Result<Config, Failure> {
        let text = self.config.as_deref().map(read).transpose()?;
        let name = self.config.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        let file = text.as_deref().map(|text| File { name: &name, text });
        Config::resolve(C::COMMAND, file, &self.typed).map_err(config_failure)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("{}: {error}", path.display()), "check --config"))
}

/// What is wrong with a configuration is the user's to mend.
pub(super) fn config_failure(error: ConfigError) -> Failure {
    let help = error.help();
    Failure::input(error, help)
}

impl<C: Keyed> FromArgMatches for KeyArgs<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_typed = |key: &&Key| matches.value_source(key.name) == Some(ValueSource::CommandLine);
        let words = |key: &Key| matches.get_many::<String>(key.name).into_iter().flatten().cloned().collect();
        let typed = used::<C>().filter(is_typed).map(|key| (key.name, words(key))).collect();
        Ok(Self { config: matches.get_one("config").cloned(), typed, command: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<C: Keyed> ClapArgs for KeyArgs<C> {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("File with values for any of the keys below, TOML or Atropos-style YAML; flags win, paths are relative to it");
        command.arg(file).args(used::<C>().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn used<C: Keyed>() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| key.is_used_by(C::COMMAND))
}

/// The flags' names, which the parser wants to live as long as the program.
static FLAGS: LazyLock<BTreeMap<&str, String>> =
    LazyLock::new(|| KEYS.iter().map(|key| (key.name, key.flag())).collect());

fn flag(key: &'static Key) -> Arg {
    let default = key.default.map(|it| format!(" [default: {it}]")).unwrap_or_default();
    let choices = match key.shape {
        Shape::OneOf(names) => format!(" [{}]", names.join(", ")),
        _ => String::new(),
    };
    let arg = Arg::new(key.name)
        .long(FLAGS.get(key.name).map_or(key.name, String::as_str))
        .value_name(value_name(key.shape))
        .help(format!("{}{choices}{default}", key.about))
        .help_heading(key.section)
        .allow_negative_numbers(true);
    match key.shape {
        Shape::Words => arg.num_args(1..).action(ArgAction::Append),
        Shape::Truth => arg.num_args(0..=1).default_missing_value("true"),
        _ => arg,
    }
}

fn value_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Text => "TEXT",
        Shape::Path => "PATH",
        Shape::Program => "PROGRAM",
        Shape::Words => "TEXT",
        Shape::Whole(_) => "N",
        Shape::Number(..) => "X",
        Shape::Truth => "true|false",
        Shape::OneOf(_) => "NAME",
    }
}

#[derive(Debug, ClapArgs)]
pub(super) struct ConfigArgs {
    /// Print the keys as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// `config`: every key there is.
pub(super) fn list(args: &ConfigArgs) -> Result<(), Failure> {
    let text = if args.json {
        format!("{:#}\n", Value::Array(KEYS.iter().map(key_json).collect()))
    } else {
        KEYS.iter().map(key_text).collect()
    };
    stdout::data(text.as_bytes())
}

fn key_json(key: &Key) -> Value {
    json!({"key": key.name, "flag": format!("--{}", key.flag()), "default": key.default,
           "value": key.shape.wanted(), "about": key.about, "commands": key.commands})
}

fn key_text(key: &Key) -> String {
    let default = key.default.unwrap_or("-");
    format!(
        "{:<22} {:<16} {} ({}; {})\n",
        key.name,
        default,
        key.about,
        key.shape.wanted(),
        key.commands.join(", ")
    )
}
