//! What a student can make us do outside its sandbox is bounded: time, memory, and what is recorded.

use std::time::Duration;

use backsight::agent::{ToolLimits, ToolResult, Toolbox, run_episode};
use backsight::episode::{Arguments, Role, Stop};
use backsight::sandbox::{Limits, Sandbox};
use serde_json::{Value, json};

use super::{shell, start};
use crate::student::{call, place, saying, setting, task};

const MIB: u64 = 1 << 20;

async fn within(sandbox: &Sandbox, work_bytes: u64, name: &str, arguments: Value) -> ToolResult {
    // Work is what counts here, not how long a busy machine takes over it.
    let terminal_timeout = Duration::from_secs(3600);
    let limits = ToolLimits { work_bytes, terminal_timeout, ..ToolLimits::default() };
    let arguments = Arguments::Object(arguments.as_object().unwrap().clone());
    Toolbox::new(sandbox, limits).call(name, &arguments).await
}

/// A text that is nowhere in a file whose every line begins like it: each line is looked at once for each way of
/// comparing. This took time in proportion to the file times the text.
#[tokio::test]
async fn a_patch_goes_through_a_large_file_a_few_times() {
    let sandbox = start(Limits::default()).await;
    shell(&sandbox, "yes x | head -c 400000 > large.txt").await;
    let old = "x\n".repeat(1000) + "y";
    let wish = json!({"path": "large.txt", "old_string": old, "new_string": "z"});
    // Read once; compared once exactly, in four other ways, and once for the nearest line.
    let enough = within(&sandbox, 7 * 400_000 + 1000, "patch", wish.clone()).await;
    assert!(enough.content.contains("old_string was not found (the nearest line is"), "{}", enough.content);
    let too_little = within(&sandbox, 2 * MIB, "patch", wish).await;
    let told = "this would go through more than 2 MiB of text; ask for less, or use the terminal";
    assert_eq!(too_little.content, json!({"error": told}).to_string());
    assert!(too_little.is_error && too_little.reached == ["tool_work_mb"]);
}

/// Links cost their maker nothing, but us a file each.
#[tokio::test]
async fn a_search_of_many_links_ends_with_what_it_found() {
    let sandbox = start(Limits::default()).await;
    let make = "import os\nopen('f', 'w').write(('a' * 79 + '\\n') * 13000)\nos.mkdir('d')\nfor i in range(15000): os.link('f', f'd/{i:05}')";
    shell(&sandbox, &format!("python3 -c \"{make}\"")).await;
    let found = within(&sandbox, 20 * MIB, "search_files", json!({"pattern": "a$", "limit": 1})).await;
    let answer: Value = serde_json::from_str(&found.content).unwrap();
    let note = answer["note"].as_str().unwrap();
    assert!(note.starts_with("only ") && note.contains(" of 15001 files were searched: "), "{note}");
    assert!(answer["matches"].as_str().unwrap().starts_with("f:1:aaa") && answer["truncated"] == true);
    assert!(!found.is_error && found.reached == ["tool_work_mb"]);
}

/// Text of control characters becomes six times as long in a record.
#[tokio::test]
async fn large_outputs_make_no_large_record() {
    let loud = call("terminal", r#"{"command": "head -c 1200000 /dev/zero | tr '\\0' '\\001'"}"#);
    let turn = vec![loud; 16].join("\n");
    let mut setting = setting(saying(&[&turn, &turn, "Done."]));
    setting.options.max_turn_tokens = 100_000;
    setting.options.turn_output_chars = 4000;
    setting.options.episode_output_chars = 12_000;
    setting.tool_limits.saved_bytes = 2_000_000;
    let episode = run_episode(&setting, &task(), place()).await;
    assert_eq!((episode.stop, episode.steps().len()), (Some(Stop::Answered), 3), "{:?}", episode.outcome);
    assert_eq!(episode.limits_reached, ["episode_output_chars", "saved_results_mb"]);
    let n_whole: usize = episode.whole_results.iter().map(|(_, text)| text.chars().count()).sum();
    assert!((5000..6100).contains(&n_whole), "{n_whole}");
    let results = episode.messages.iter().filter(|it| it.role == Role::Tool);
    let results: Vec<String> = results.filter_map(|it| Some(it.content.as_ref()?.text())).collect();
    assert!(results[0].contains("all of it is in .tool-results/1.txt"), "{}", results[0]);
    assert!(
        results[1].contains("it is not saved: this task has saved its 1 MiB of results"),
        "{}",
        results[1]
    );
    assert!(results[31].ends_with("[this task may show no more output of tools; finish with what you know]"));
    let n_shown: usize = results.iter().map(|it| it.chars().count()).sum();
    assert!(n_shown < 6000 + 32 * 300, "{n_shown}");
}

#[tokio::test]
async fn background_output_is_held_in_bounded_memory() {
    let sandbox = start(Limits::default()).await;
    let tools = Toolbox::new(&sandbox, ToolLimits { memory: MIB as usize, ..ToolLimits::default() });
    let ask = async |name: &str, arguments: Value| {
        let arguments = Arguments::Object(arguments.as_object().unwrap().clone());
        let result = tools.call(name, &arguments).await;
        (serde_json::from_str::<Value>(&result.content).unwrap(), result.reached)
    };
    for _ in 0..50 {
        let (started, _) = ask("terminal", json!({"command": "seq 100000", "background": true})).await;
        let ended = json!({"action": "wait", "session_id": started["session_id"], "timeout": 100});
        assert_eq!(ask("process", ended).await.0["status"], "exited");
    }
    let (list, _) = ask("process", json!({"action": "list"})).await;
    let processes = list["processes"].as_array().unwrap();
    assert_eq!((processes.len(), &processes[0]["session_id"]), (48, &json!("3")), "{list}");
    let n_held = |id: u64| sandbox.poll_background(id).unwrap().capture.text().len();
    assert!((16_000..17_000).contains(&n_held(5)), "{}", n_held(5));
    let mut last = (Value::Null, Vec::new());
    for _ in 0..49 {
        last = ask("terminal", json!({"command": "sleep 1000", "background": true})).await;
    }
    assert_eq!(last.0, json!({"error": "48 background processes are running; kill one first"}));
    assert_eq!(last.1, ["tool_memory_mb"]);
}
