//! The tools as a model is told about them: OpenAI function tools with JSON schemas.

use serde_json::{Map, Value, json};

/// The schemas of all tools, in the order models see them, for a sandbox without a network.
pub fn schemas() -> Vec<Value> {
    schemas_with(false)
}

/// The schemas of all tools; with a network nothing is said about there being none.
pub fn schemas_with(network: bool) -> Vec<Value> {
    vec![terminal(network), process(), read_file(), write_file(), patch(), search_files()]
}

fn tool(name: &str, description: &str, properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": { "type": "object", "properties": properties, "required": required },
        },
    })
}

const TERMINAL: &str = "Run a shell command in the workspace. Every command starts a new shell there; files and \
                        background processes persist. Returns the combined output and the exit code. Of a long output \
                        the middle is left out and all of it is saved in a file that read_file can read.";

fn terminal(network: bool) -> Value {
    let about = if network { TERMINAL.to_owned() } else { format!("{TERMINAL} There is no network.") };
    tool(
        "terminal",
        &about,
        json!({
            "command": { "type": "string", "description": "The command line." },
            "timeout": { "type": "integer", "minimum": 1, "description": "Seconds after which the command is killed." },
            "background": { "type": "boolean", "description": "Leave it running and return its session_id; see the process tool." },
            "workdir": { "type": "string", "description": "Directory to start in; the workspace if absent." },
        }),
        &["command"],
    )
}

fn process() -> Value {
    tool(
        "process",
        "Look after processes started in the background with the terminal tool.",
        json!({
            "action": {
                "type": "string",
                "enum": ["list", "poll", "log", "wait", "kill", "write", "submit", "close"],
                "description": "list all; poll one for its state and the end of its output; log: lines of its output; \
                                wait for its end; kill it; write data to its standard input; submit: the same with a \
                                line end; close its standard input.",
            },
            "session_id": { "type": "string", "description": "The process, for every action but list." },
            "data": { "type": "string", "description": "For write and submit: the text." },
            "timeout": { "type": "integer", "minimum": 1, "description": "For wait: seconds to wait at most." },
            "offset": { "type": "integer", "minimum": 0, "description": "For log: lines to skip; without it the last lines are shown." },
            "limit": { "type": "integer", "minimum": 1, "maximum": 2000, "default": 200, "description": "For log: how many lines." },
        }),
        &["action"],
    )
}

fn read_file() -> Value {
    tool(
        "read_file",
        "Read a text file of the workspace. Lines are numbered: `LINE|TEXT`.",
        json!({
            "path": { "type": "string", "description": "Path of the file, relative to the workspace." },
            "offset": { "type": "integer", "minimum": 1, "default": 1, "description": "First line to read." },
            "limit": { "type": "integer", "minimum": 1, "maximum": 2000, "default": 500, "description": "How many lines." },
        }),
        &["path"],
    )
}

fn write_file() -> Value {
    tool(
        "write_file",
        "Write a whole file of the workspace, replacing what was there. Directories are made as needed.",
        json!({
            "path": { "type": "string", "description": "Path of the file, relative to the workspace." },
            "content": { "type": "string", "description": "The complete new content." },
        }),
        &["path", "content"],
    )
}

const PATCH: &str = "For patch: the patch, or a unified diff.\n*** Begin Patch\n*** Update File: path\n@@ a line above \
                     the change\n context line\n-old line\n+new line\n*** Add File: path\n+line\n*** Delete File: \
                     path\n*** Move File: path -> new path\n*** End Patch";

fn patch() -> Value {
    tool(
        "patch",
        "Change files. Either replace one piece of text in a file by another (small differences in white space are \
         forgiven), or apply a patch that changes, adds, deletes or moves files. Returns the change as a diff.",
        json!({
            "mode": { "type": "string", "enum": ["replace", "patch"], "default": "replace" },
            "path": { "type": "string", "description": "For replace: path of the file." },
            "old_string": { "type": "string", "description": "For replace: the text to find; must be in one place only." },
            "new_string": { "type": "string", "description": "For replace: the text to put there." },
            "replace_all": { "type": "boolean", "default": false, "description": "For replace: replace every place." },
            "patch": { "type": "string", "description": PATCH },
        }),
        &[],
    )
}

fn search_files() -> Value {
    tool(
        "search_files",
        "Search the workspace: lines that match a regular expression, or files whose name matches a pattern.",
        json!({
            "pattern": { "type": "string", "description": "A regular expression (content) or a pattern such as *.py (files)." },
            "target": { "type": "string", "enum": ["content", "files"], "default": "content" },
            "path": { "type": "string", "default": ".", "description": "Directory or file to search." },
            "file_glob": { "type": "string", "description": "Search only files whose name matches, such as *.py." },
            "limit": { "type": "integer", "minimum": 1, "default": 50, "description": "How many results." },
            "offset": { "type": "integer", "minimum": 0, "default": 0, "description": "How many results to skip." },
            "output_mode": {
                "type": "string",
                "enum": ["content", "files_only", "count"],
                "default": "content",
                "description": "For content: lines that match, only the files they are in, or how many are in each.",
            },
            "context": { "type": "integer", "minimum": 0, "default": 0, "description": "Lines to show around each match." },
        }),
        &["pattern"],
    )
}

/// Arguments of a call, read with the messages a student can act on.
pub struct Arguments<'a>(pub &'a Map<String, Value>);

impl Arguments<'_> {
    /// A text that must be there.
    pub fn text(&self, name: &str) -> Result<&str, String> {
        self.optional_text(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    /// A text that may be absent.
    pub fn optional_text(&self, name: &str) -> Result<Option<&str>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("{name} must be a string")),
        }
    }

    /// A whole number that may be absent; a text with one counts, because models write those.
    pub fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let number = match self.0.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Number(number)) => number.as_u64().or_else(|| whole(number.as_f64()?)),
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(_) => None,
        };
        number.map(Some).ok_or_else(|| format!("{name} must be a whole number"))
    }

    /// A switch, off when absent.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(_) => Err(format!("{name} must be true or false")),
        }
    }
}

fn whole(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && (0.0..=9e15).contains(&number);
    is_whole.then_some(number as u64)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn every_required_argument_is_described() {
        for schema in schemas() {
            let parameters = &schema["function"]["parameters"];
            for name in parameters["required"].as_array().unwrap() {
                assert!(parameters["properties"][name.as_str().unwrap()].is_object(), "{schema}");
            }
            assert!(!schema["function"]["description"].as_str().unwrap().contains("  "), "{schema}");
        }
    }

    #[test]
    fn nothing_is_said_about_a_network_that_is_there() {
        let says = |network| schemas_with(network)[0].to_string().contains("no network");
        assert_eq!([says(false), says(true)], [true, false]);
        assert_eq!(schemas(), schemas_with(false));
    }

    #[test]
    fn arguments_are_read_as_models_write_them() {
        let json = json!({ "n": 3, "f": 3.0, "s": "3", "bad": 3.5, "neg": -1, "t": "True", "b": false, "null": null });
        let arguments = Arguments(json.as_object().unwrap());
        let numbers = ["n", "f", "s", "bad", "neg", "none", "null"].map(|name| arguments.number(name).ok());
        assert_eq!(
            numbers,
            [Some(Some(3)), Some(Some(3)), Some(Some(3)), None, None, Some(None), Some(None)]
        );
        assert_eq!(
            [arguments.flag("t"), arguments.flag("b"), arguments.flag("none")],
            [Ok(true), Ok(false), Ok(false)]
        );
        assert_eq!(arguments.flag("n"), Err("n must be true or false".to_owned()));
        assert_eq!(arguments.text("n"), Err("n must be a string".to_owned()));
        assert_eq!(arguments.text("none"), Err("none is missing".to_owned()));
    }
}
