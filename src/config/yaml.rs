//! Configuration files in YAML, in the style of Atropos environments.
//!
//! Owns what the sections of such a file mean in our keys: `env` holds settings, `openai` (or
//! `server_configs`) one server or several. Our own keys may stand in `env` or at the top. Settings that
//! concern a trainer alone are left out and named; a name that nobody knows is an error, as in TOML.

use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use super::{ConfigError, File};

/// Names in `env` that mean one of our keys, in the words published files use.
pub const SAME: [(&str, &str); 7] = [
    // There it bounds each answer of the model; nothing bounds the whole conversation.
    ("max_token_length", "max_turn_tokens"),
    ("total_steps", "groups"),
    ("max_num_workers", "concurrency"),
    ("default_result_size_chars", "tool_result_chars"),
    ("turn_budget_chars", "turn_output_chars"),
    ("terminal_lifetime", "sandbox_wall_seconds"),
    // There it is the text itself.
    ("system_prompt", "instructions"),
];

/// Names that concern training, logging or another way of running tools.
const LEFT_OUT: &str = "
    batch_size custom_thinking_prompt data_dir_to_save_evals data_path_to_save_groups disabled_toolsets
    distribution enabled_toolsets eval_handling eval_limit_ratio extra_body health_check inference_weight
    max_batches_offpolicy max_eval_workers max_num_workers_per_node max_reasoning_tokens
    min_batch_allocation min_items_sent_before_logging n_kwarg_is_ignored num_max_requests_at_once
    num_requests_for_eval num_rollouts_per_group_for_logging num_rollouts_to_keep preview_size_chars
    reasoning_effort rolling_buffer_length rollout_server_url slurm steps_per_eval teacher_enabled
    teacher_top_k testing thinking_mode tool_pool_size tool_result_overrides use_wandb wandb_name weight
    worker_timeout";

/// What stands for a key where a local server wants none.
const NO_KEYS: [&str; 5] = ["", "x", "none", "EMPTY", "dummy"];

/// What a file says so far.
#[derive(Default)]
struct Said {
    table: Table,
    left_out: Vec<String>,
}

/// The values in our keys, and the names that mean nothing to us.
pub(super) fn read(file: File<'_>) -> Result<(Table, Vec<String>), ConfigError> {
    let mut said = Said::default();
    for (name, value) in parse(file)? {
        match (name.as_str(), value) {
            ("env", Json::Object(settings)) => {
                settings.into_iter().try_for_each(|(name, value)| said.setting(file, &name, value))?;
            }
            ("openai" | "server_configs", Json::Object(server)) => said.servers(file, vec![server])?,
            ("openai" | "server_configs", Json::Array(servers)) => {
                // What is no section says nothing of a server.
                let servers = servers.into_iter().filter_map(|it| serde_json::from_value(it).ok());
                said.servers(file, servers.collect())?;
            }
            ("env" | "openai" | "server_configs", Json::Null) => {}
            ("env" | "openai" | "server_configs", value) => {
                return Err(wrong(file, &name, &value, "a section with names and values"));
            }
            (name, value) => said.setting(file, name, value)?,
        }
    }
    Ok((said.table, said.left_out))
}

fn parse(file: File<'_>) -> Result<Map<String, Json>, ConfigError> {
    let unreadable =
        |line, why: &str| ConfigError::unreadable(file, line, why.lines().next().unwrap_or_default());
    let document = serde_saphyr::from_str::<Json>(file.text).map_err(|error| {
        let line = error.location().and_then(|it| usize::try_from(it.line()).ok());
        unreadable(line, &error.without_snippet().to_string())
    })?;
    match document {
        Json::Object(sections) => Ok(sections),
        Json::Null => Ok(Map::new()),
        _ => Err(unreadable(None, "the file holds no names and values")),
    }
}

impl Said {
    /// One setting of the environment.
    fn setting(&mut self, file: File<'_>, name: &str, value: Json) -> Result<(), ConfigError> {
        match (name, &value) {
            (_, Json::Null) => {}
            ("tokenizer_name", _) => self.tokenizer(&value),
            ("terminal_backend", _) => self.backend(file, &value)?,
            _ if LEFT_OUT.split_whitespace().any(|it| it == name) => self.left_out.push(name.to_owned()),
            _ => {
                let same = SAME.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
                // There a negative number means that there is no limit.
                if same.is_none() || value.as_i64().is_none_or(|it| it >= 0) {
                    let value =
                        to_toml(&value).ok_or_else(|| wrong(file, name, &value, "a value or a list"))?;
                    self.table.insert(same.unwrap_or(name).to_owned(), value);
                }
            }
        }
        Ok(())
    }

    /// Commands on the bare machine are what our own sandbox stands in for. Where the file also names a sandbox in our
    /// words, those count.
    fn backend(&mut self, file: File<'_>, backend: &Json) -> Result<(), ConfigError> {
        let sandbox = match backend.as_str() {
            Some("local") => "namespaces",
            Some("docker") => "docker",
            _ => {
                let what = format!("commands cannot be run by the terminal_backend {backend}");
                let help = "write `local` for our own sandbox on this machine, or `docker`";
                return Err(ConfigError::new(format!("{}: {what}", file.name), help));
            }
        };
        self.table.entry("sandbox").or_insert_with(|| Value::String(sandbox.to_owned()));
        Ok(())
    }

    /// A directory is ours to read; a hub's name is left to the server, which names its own directory.
    fn tokenizer(&mut self, name: &Json) {
        match name.as_str() {
            Some(path) if path.starts_with(['/', '.']) => {
                self.table.insert("tokenizer".to_owned(), Value::String(path.to_owned()));
            }
            _ => self.left_out.push("tokenizer_name".to_owned()),
        }
    }

    fn servers(&mut self, file: File<'_>, servers: Vec<Map<String, Json>>) -> Result<(), ConfigError> {
        let mut urls = Vec::new();
        for server in servers {
            for (name, value) in server {
                match (name.as_str(), value) {
                    (_, Json::Null) => {}
                    ("base_url", Json::String(url)) => urls.push(Value::String(url)),
                    ("model_name", Json::String(model)) if model == "default" => {}
                    ("model_name", value) => self.common(file, "model", &value)?,
                    ("server_type", value) => self.common(file, "kind", &value)?,
                    ("timeout", value) => self.common(file, "timeout", &value)?,
                    ("tokenizer_name", value) => self.tokenizer(&value),
                    ("api_key", Json::String(key)) if NO_KEYS.contains(&key.as_str()) => {}
                    // Keys do not belong into files that are shared.
                    ("api_key", _) => {
                        let what = format!("{}: an API key stands in the file itself", file.name);
                        let help =
                            "name where it is with api_key_env or api_key_file, and take it out of the file";
                        return Err(ConfigError::new(what, help));
                    }
                    (name, value) => self.setting(file, name, value)?,
                }
            }
        }
        if !urls.is_empty() {
            self.table.insert("url".to_owned(), Value::Array(urls));
        }
        Ok(())
    }

    /// What all servers must have in common.
    fn common(&mut self, file: File<'_>, key: &str, value: &Json) -> Result<(), ConfigError> {
        let value = to_toml(value).ok_or_else(|| wrong(file, key, value, "one value"))?;
        // Whole seconds are written as a number with a point there.
        let value = match value {
            Value::Float(number) if number.fract() == 0.0 => Value::Integer(number as i64),
            other => other,
        };
        match self.table.insert(key.to_owned(), value.clone()) {
            Some(before) if before != value => Err(ConfigError::new(
                format!("{}: its servers differ in {key} ({before} and {value})", file.name),
                "name servers of one model in one file",
            )),
            _ => Ok(()),
        }
    }
}

fn wrong(file: File<'_>, name: &str, value: &Json, wanted: &str) -> ConfigError {
    ConfigError::wrong(&format!("{name} in {}", file.name), value, wanted)
}

/// One value, or a list of them.
fn to_toml(value: &Json) -> Option<Value> {
    Value::try_from(value).ok().filter(|it| !it.is_table())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::config::{Config, Typed};

    fn file(text: &str) -> File<'_> {
        File { name: "c.yaml", text }
    }

    fn check(text: &str, expected: &str, left_out: &[&str]) {
        let (table, left) = read(file(text)).unwrap();
        assert_eq!(
            (table, left),
            (expected.parse().unwrap(), left_out.iter().map(|it| (*it).to_owned()).collect())
        );
    }

    #[test]
    fn sections_are_read_into_our_keys() {
        check("", "", &[]);
        check(
            "group_size: 8\ntasks: [a.jsonl, flatten]\n",
            "group_size = 8\ntasks = ['a.jsonl', 'flatten']",
            &[],
        );
        let environment = "env:\n  group_size: 2\n  max_token_length: 4096\n  total_steps: -1\n  use_wandb: true\n  \
                           tokenizer_name: Qwen/Qwen3-4B\n  dataset_name: null\n  system_prompt: |\n    Be good.\n    Be kind.\n  \
                           terminal_backend: docker\n";
        let ours = "group_size = 2\nmax_turn_tokens = 4096\ninstructions = \"Be good.\\nBe kind.\\n\"\nsandbox = 'docker'";
        check(environment, ours, &["use_wandb", "tokenizer_name"]);
        let one = "openai:\n  base_url: http://a:1/v1\n  model_name: m\n  server_type: vllm\n  api_key: x\n  timeout: 60.0\nslurm: false\n";
        check(one, "url = ['http://a:1/v1']\nmodel = 'm'\nkind = 'vllm'\ntimeout = 60", &["slurm"]);
        let two = "server_configs:\n  - base_url: http://a:1\n    model_name: m\n    num_requests_for_eval: 4\n  - {base_url: http://b:1, model_name: m}\n";
        check(two, "url = ['http://a:1', 'http://b:1']\nmodel = 'm'", &["num_requests_for_eval"]);
    }

    #[test]
    fn a_backend_is_a_sandbox_of_ours() {
        check("env: {terminal_backend: local}\n", "sandbox = 'namespaces'", &[]);
        check("env: {terminal_backend: docker}\n", "sandbox = 'docker'", &[]);
        for both in
            ["{terminal_backend: local, sandbox: docker}", "{sandbox: docker, terminal_backend: local}"]
        {
            check(&format!("env: {both}\n"), "sandbox = 'docker'", &[]);
        }
        for (backend, shown) in [("modal", "\"modal\""), ("3", "3")] {
            let text = format!("env: {{terminal_backend: {backend}}}\n");
            let error = read(file(&text)).unwrap_err();
            let expected = format!("c.yaml: commands cannot be run by the terminal_backend {shown}");
            assert_eq!(error.to_string(), expected);
            assert!(error.help.contains("`local`") && error.help.contains("`docker`"));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let said = |text: &str| {
            let error = Config::resolve("collect", Some(file(text)), &Typed::new()).unwrap_err();
            format!("{error}; {}", error.help)
        };
        let unknown = said("env:\n  gruop_size: 2\n");
        assert!(
            unknown.starts_with("c.yaml: there is no key `gruop_size`; did you mean `group_size`?"),
            "{unknown}"
        );
        let value = said("env: {group_size: none}\n");
        assert!(
            value.starts_with("group_size in c.yaml is \"none\", which is not a whole number"),
            "{value}"
        );
        assert!(said("env: 3\n").starts_with("env in c.yaml is 3, which is not a section"));
        assert!(
            said("openai: {api_key: sk-123}\n")
                .starts_with("c.yaml: an API key stands in the file itself; name where")
        );
        let differ = said("openai: [{model_name: a}, {model_name: b}]\n");
        assert!(differ.starts_with("c.yaml: its servers differ in model (\"a\" and \"b\")"), "{differ}");
        let broken = said("env:\n  group_size: [2\n");
        assert!(broken.starts_with("c.yaml line "), "{broken}");
        assert!(said("- a\n- b\n").starts_with("c.yaml: the file holds no names and values"));
    }

    #[test]
    fn nothing_that_is_left_out_is_a_key_of_ours() {
        for name in LEFT_OUT.split_whitespace() {
            assert!(crate::config::keys::find(name).is_none(), "{name}");
        }
        for (_, ours) in SAME {
            assert!(crate::config::keys::find(ours).is_some(), "{ours}");
        }
    }
}
