//! Whether Python files that were patched can still be read as Python, as the published tool tells.
//!
//! Said by the sandbox's own interpreter, inside, because the text is the student's. Nothing is said where it cannot be
//! asked.

use std::time::Duration;

use serde_json::{Map, Value, json};

use backsight_sandbox::{Command, Exit, Sandbox};

/// Files that are looked at after one patch.
const MAX_FILES: usize = 10;
const TIME: Duration = Duration::from_secs(10);
const OUTPUT_BYTES: usize = 2000;

const CHECK: &str = "
import sys
try:
    compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')
except (SyntaxError, ValueError) as error:
    print(f'{type(error).__name__}: {error}')
    sys.exit(3)
";

/// Adds to a patch's answer what there is to say about the files it made or changed: for a file that was named alone, or
/// by file.
pub(super) async fn tell(sandbox: &Sandbox, answer: &mut Value) {
    let is_alone = answer.get("files_created").is_none();
    let mut found = Map::new();
    for path in changed(answer).into_iter().filter(|it| it.ends_with(".py")).take(MAX_FILES) {
        if let Some(verdict) = look(sandbox, &path).await {
            found.insert(path, verdict);
        }
    }
    let verdict = if is_alone { found.into_values().next() } else { Some(Value::Object(found)) };
    if let Some(verdict) = verdict.filter(|it| *it != json!({})) {
        answer["lint"] = verdict;
    }
}

/// The files a patch made or changed, where it left them.
fn changed(answer: &Value) -> Vec<String> {
    let lists = ["files_created", "files_modified"].map(|key| answer[key].as_array());
    let names = lists.into_iter().flatten().flatten().filter_map(Value::as_str);
    names.map(|name| name.rsplit(" -> ").next().unwrap_or(name).to_owned()).collect()
}

async fn look(sandbox: &Sandbox, path: &str) -> Option<Value> {
    let mut command = Command::argv(["python3", "-I", "-c", CHECK, path]);
    (command.timeout, command.output_cap) = (TIME, OUTPUT_BYTES);
    let output = sandbox.run(command).await.ok()?;
    match output.exit {
        Exit::Code(0) => Some(json!({ "status": "ok" })),
        Exit::Code(3) => Some(json!({ "status": "error", "output": output.capture.text().trim() })),
        _ => None,
    }
}
