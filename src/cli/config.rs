//! `config`: the list of keys, for people and machines.

use serde_json::{Value, json};

use super::call::Call;
use super::failure::Failure;
use super::stdout;
use crate::config::keys::{self, ALIASES, Effect, Key};
use crate::config::yaml::SAME;

/// Every key there is.
pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let keys = keys::all().iter().filter(|key| key.effect != Effect::Call);
    let text = if call.is_json() {
        format!("{:#}\n", Value::Array(keys.map(key_json).collect()))
    } else {
        keys.map(key_text).collect()
    };
    stdout::data(text.as_bytes())
}

fn key_json(key: &Key) -> Value {
    let has = |command: &str| key.commands.contains(&command);
    let flags = ALIASES.iter().filter(|(command, _, name, _)| *name == key.name && has(command));
    let flags: Vec<String> = flags.map(|(_, flag, ..)| format!("--{flag}")).collect();
    let yaml = SAME.iter().filter(|(_, ours)| *ours == key.name).map(|(theirs, _)| *theirs);
    json!({
        "key": key.name, "flag": format!("--{}", key.flag), "default": key.default, "value": key.accepts.wanted(),
        "about": key.about, "effect": key.effect.name(), "commands": key.commands, "published_flags": flags,
        "published_yaml": yaml.collect::<Vec<_>>(),
    })
}

fn key_text(key: &Key) -> String {
    let default = key.default.unwrap_or("-");
    let (about, wanted, effect) = (key.about, key.accepts.wanted(), key.effect.name());
    format!("{:<22} {default:<16} {about} ({wanted}; {effect}; {})\n", key.name, key.commands.join(", "))
}
