//! The tools in a real sandbox: what they answer, and that no path leads out through any of them.

use backsight::agent::{ToolLimits, ToolResult, Toolbox};
use backsight::episode::Arguments;
use backsight::sandbox::{Limits, Sandbox, SandboxKind};
use serde_json::{Value, json};

use super::{shell, start, start_kind};

async fn call(sandbox: &Sandbox, name: &str, arguments: Value) -> (Value, ToolResult) {
    let arguments = Arguments::Object(arguments.as_object().unwrap().clone());
    let result = Toolbox::new(sandbox, ToolLimits::default()).call(name, &arguments).await;
    (serde_json::from_str(&result.content).unwrap(), result)
}

async fn check(sandbox: &Sandbox, name: &str, arguments: Value, expected: Value) {
    let (answer, _) = call(sandbox, name, arguments.clone()).await;
    assert_eq!(answer, expected, "{name} {arguments}");
}

#[tokio::test]
async fn commands_answer_with_output_and_status() {
    let sandbox = start(Limits::default()).await;
    check(
        &sandbox,
        "terminal",
        json!({"command": "echo hi; exit 3"}),
        json!({"output": "hi\n", "exit_code": 3, "error": null}),
    )
    .await;
    check(
        &sandbox,
        "terminal",
        json!({"command": "printf '\\033[31mred\\033[0m'"}),
        json!({"output": "red", "exit_code": 0, "error": null}),
    )
    .await;
    let late =
        json!({"output": "", "exit_code": 124, "error": "Command timed out after 1 seconds and was killed"});
    check(&sandbox, "terminal", json!({"command": "sleep 100", "timeout": 1}), late).await;
    check(
        &sandbox,
        "terminal",
        json!({"command": "mkdir -p a && pwd", "workdir": "."}),
        json!({"output": "/workspace\n", "exit_code": 0, "error": null}),
    )
    .await;
    check(
        &sandbox,
        "terminal",
        json!({"command": "pwd", "workdir": "a"}),
        json!({"output": "/workspace/a\n", "exit_code": 0, "error": null}),
    )
    .await;
    check(
        &sandbox,
        "terminal",
        json!({"command": "pwd", "workdir": "nowhere"}),
        json!({"error": "the directory /workspace/nowhere cannot be entered: No such file or directory (os error 2)"}),
    )
    .await;
    check(&sandbox, "terminal", json!({"command": "  "}), json!({"error": "command is empty"})).await;
    check(&sandbox, "terminal", json!({}), json!({"error": "command is missing"})).await;
    let killed = json!({"output": "", "exit_code": 137, "error": "Command was killed by signal 9"});
    check(&sandbox, "terminal", json!({"command": "kill -9 $$"}), killed).await;
}

#[tokio::test]
async fn long_output_is_cut_and_kept() {
    let sandbox = start(Limits::default()).await;
    let (answer, result) =
        call(&sandbox, "terminal", json!({"command": "echo first; seq 100000; echo last"})).await;
    let output = answer["output"].as_str().unwrap();
    assert!(
        output.starts_with("first\n1\n")
            && output.ends_with("100000\nlast\n")
            && output.contains("characters omitted")
    );
    assert!(output.chars().count() < 50_200);
    let full = result.full.unwrap();
    assert!(full.contains("\n50000\n") && full.len() > 500_000);
    let where_it_is =
        "characters omitted; all of it is in .tool-results/1.txt: read it with read_file, offset and limit]";
    assert!(output.contains(where_it_is), "{output}");
    let lines = json!({"content": "50000|49999\n50001|50000", "total_lines": 100_002, "truncated": true, "hint": "continue with offset 50002"});
    check(&sandbox, "read_file", json!({"path": ".tool-results/1.txt", "offset": 50_000, "limit": 2}), lines)
        .await;
    let (found, _) = call(&sandbox, "search_files", json!({"pattern": "^last$"})).await;
    assert_eq!(found["total_count"], 0, "what was saved is searched where it is asked for: {found}");
    let (found, _) =
        call(&sandbox, "search_files", json!({"pattern": "^last$", "path": ".tool-results"})).await;
    assert_eq!(found["matches"], ".tool-results/1.txt:100002:last");
}

#[tokio::test]
async fn an_output_that_cannot_be_saved_is_only_cut() {
    let sandbox = start(Limits { workspace: 1 << 20, ..Limits::default() }).await;
    let fill = "head -c 1000000 /dev/zero > full; seq 100000";
    let (answer, result) = call(&sandbox, "terminal", json!({"command": fill})).await;
    assert!(!result.is_error && answer["exit_code"] == 0);
    let output = answer["output"].as_str().unwrap();
    assert!(output.contains("characters omitted; it could not be saved in the workspace]"), "{output}");
    assert_eq!(shell(&sandbox, "ls .tool-results | wc -l").await.1, "0", "what was begun is removed");
    let none = ToolLimits { saved_bytes: 1000, ..ToolLimits::default() };
    let arguments = Arguments::Text(r#"{"command": "seq 100000"}"#.to_owned());
    let told = Toolbox::new(&sandbox, none).call("terminal", &arguments).await;
    assert!(
        told.content.contains("it is not saved: this task has saved its 0 MiB of results"),
        "{}",
        told.content
    );
    assert_eq!(told.reached, ["saved_results_mb"]);
}

/// Starts a command in the background; its session_id.
async fn background(sandbox: &Sandbox, command: &str) -> String {
    let (answer, _) = call(sandbox, "terminal", json!({"command": command, "background": true})).await;
    assert_eq!((&answer["status"], &answer["exit_code"]), (&json!("running"), &Value::Null), "{answer}");
    answer["session_id"].as_str().unwrap().to_owned()
}

async fn process(sandbox: &Sandbox, action: &str, id: &str, more: Value) -> Value {
    let mut arguments = json!({"action": action, "session_id": id});
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    call(sandbox, "process", arguments).await.0
}

#[tokio::test]
async fn background_commands_are_looked_after() {
    let sandbox = start(Limits::default()).await;
    let id = background(&sandbox, "echo up; sleep 500").await;
    while process(&sandbox, "poll", &id, json!({})).await["output_preview"] != "up\n" {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let (list, _) = call(&sandbox, "process", json!({"action": "list"})).await;
    assert_eq!(list["processes"][0]["status"], "running");
    assert_eq!(list["processes"][0]["command"], "echo up; sleep 500");
    let waited = process(&sandbox, "wait", &id, json!({"timeout": 1})).await;
    assert_eq!((&waited["status"], &waited["exit_code"]), (&json!("timeout"), &Value::Null), "{waited}");
    let killed = process(&sandbox, "kill", &id, json!({})).await;
    assert_eq!((&killed["status"], &killed["exit_code"]), (&json!("exited"), &json!(137)));
    check(
        &sandbox,
        "process",
        json!({"action": "poll", "session_id": 99}),
        json!({"error": "no background process has the session_id 99; list them"}),
    )
    .await;
    check(
        &sandbox,
        "process",
        json!({"action": "what"}),
        json!({"error": "action must be list, poll, log, wait, kill, write, submit or close, not \"what\""}),
    )
    .await;
    check(&sandbox, "process", json!({"action": "poll"}), json!({"error": "session_id is missing"})).await;
}

#[tokio::test]
async fn background_commands_are_written_to_and_waited_for() {
    let sandbox = start(Limits::default()).await;
    let id = background(&sandbox, "read line; echo \"got $line\"; cat; echo end; exit 4").await;
    let wrote = process(&sandbox, "write", &id, json!({"data": "hel"})).await;
    assert_eq!((&wrote["status"], &wrote["bytes_written"]), (&json!("ok"), &json!(3)));
    process(&sandbox, "submit", &id, json!({"data": "lo"})).await;
    process(&sandbox, "submit", &id, json!({"data": "more"})).await;
    assert_eq!(process(&sandbox, "close", &id, json!({})).await["status"], "ok");
    let ended = process(&sandbox, "wait", &id, json!({"timeout": 100})).await;
    assert_eq!((&ended["status"], &ended["exit_code"]), (&json!("exited"), &json!(4)), "{ended}");
    assert_eq!(ended["output_preview"], "got hello\nmore\nend\n");
    let late = process(&sandbox, "write", &id, json!({"data": "x"})).await;
    assert_eq!(late, json!({"error": "its standard input is closed, or it has ended"}));
    let missing = process(&sandbox, "write", &id, json!({})).await;
    assert_eq!(missing, json!({"error": "data is missing"}));
}

#[tokio::test]
async fn a_command_that_does_not_read_keeps_nobody_waiting() {
    let sandbox = start(Limits::default()).await;
    let id = background(&sandbox, "sleep 500").await;
    let wrote = process(&sandbox, "write", &id, json!({"data": "x".repeat(100_000)})).await;
    assert_eq!((&wrote["status"], &wrote["bytes_written"]), (&json!("partial"), &json!(65_536)), "{wrote}");
    assert_eq!(wrote["note"], "it does not read: the last 34464 bytes were not sent, send them later");
}

#[tokio::test]
async fn the_log_of_a_background_command_is_read_in_pages() {
    let sandbox = start(Limits::default()).await;
    let id = background(&sandbox, "seq 1000").await;
    process(&sandbox, "wait", &id, json!({"timeout": 100})).await;
    let last = process(&sandbox, "log", &id, json!({"limit": 2})).await;
    assert_eq!((&last["output"], &last["total_lines"]), (&json!("999\n1000"), &json!(1000)), "{last}");
    let page = process(&sandbox, "log", &id, json!({"offset": 10, "limit": 2})).await;
    assert_eq!((&page["output"], &page["showing"]), (&json!("11\n12"), &json!("2 lines")));
    let most = process(&sandbox, "log", &id, json!({})).await;
    assert!(most["output"].as_str().unwrap().starts_with("801\n") && most["status"] == "exited", "{most}");
}

#[tokio::test]
async fn files_are_written_read_and_changed() {
    let sandbox = start(Limits::default()).await;
    check(
        &sandbox,
        "write_file",
        json!({"path": "a/x.py", "content": "def f():\n    return 1\n"}),
        json!({"path": "a/x.py", "bytes_written": 22}),
    )
    .await;
    let content = json!({"content": "1|def f():\n2|    return 1", "total_lines": 2, "truncated": false});
    check(&sandbox, "read_file", json!({"path": "/workspace/a/x.py"}), content).await;
    let (patched, _) = call(
        &sandbox,
        "patch",
        json!({"path": "a/x.py", "old_string": "return 1", "new_string": "return 2"}),
    )
    .await;
    assert_eq!(
        patched["diff"],
        "--- a/a/x.py\n+++ b/a/x.py\n@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2\n"
    );
    let (fuzzy, _) = call(
        &sandbox,
        "patch",
        json!({"path": "a/x.py", "old_string": "def f():\n  return 2", "new_string": "def f():\n  return 3"}),
    )
    .await;
    assert!(fuzzy["success"] == true && fuzzy["note"].is_string(), "{fuzzy}");
    let diff = "--- a/a/x.py\n+++ b/a/x.py\n@@ -1,1 +1,1 @@\n-def f():\n+def g():\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n";
    let (applied, _) = call(&sandbox, "patch", json!({"mode": "patch", "patch": diff})).await;
    assert_eq!(applied["files_modified"], json!(["a/x.py"]));
    assert_eq!(applied["files_created"], json!(["new.txt"]));
    assert_eq!(shell(&sandbox, "cat a/x.py new.txt").await.1, "def g():\n  return 3\nnew");
}

#[tokio::test]
async fn a_patch_tells_whether_python_is_still_python() {
    let sandbox = start(Limits::default()).await;
    sandbox.workspace().write("a.py", b"x = 1\n").unwrap();
    let replace = async |path: &str, old: &str, new: &str| {
        let wish = json!({"path": path, "old_string": old, "new_string": new});
        call(&sandbox, "patch", wish).await.0["lint"].clone()
    };
    assert_eq!(replace("a.py", "1", "2").await, json!({"status": "ok"}));
    let broken = json!({"status": "error", "output": "SyntaxError: '(' was never closed (a.py, line 1)"});
    assert_eq!(replace("a.py", "2", "(2").await, broken);
    sandbox.workspace().write("b.txt", b"x\n").unwrap();
    assert_eq!(replace("b.txt", "x", "y").await, Value::Null);
    let patch = "*** Begin Patch\n*** Update File: a.py\n*** Move to: c.py\n-x = (2\n+x = 3\n*** Add File: d.py\n+y = \n*** Add File: e.txt\n+(\n*** End Patch\n";
    let (answer, _) = call(&sandbox, "patch", json!({"patch": patch})).await;
    let error = json!({"status": "error", "output": "SyntaxError: invalid syntax (d.py, line 1)"});
    assert_eq!(answer["lint"], json!({"c.py": {"status": "ok"}, "d.py": error}), "{answer}");
}

#[tokio::test]
async fn a_diff_that_does_not_fit_changes_nothing() {
    let sandbox = start(Limits::default()).await;
    sandbox.workspace().write("a", b"one\n").unwrap();
    sandbox.workspace().write("b", b"two\n").unwrap();
    let diff = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+1\n--- a/b\n+++ b/b\n@@ -1 +1 @@\n-three\n+3\n";
    let (answer, result) = call(&sandbox, "patch", json!({"patch": diff})).await;
    assert!(
        result.is_error && answer["error"].as_str().unwrap().starts_with("hunk 1 does not fit b"),
        "{answer}"
    );
    assert_eq!(shell(&sandbox, "cat a b").await.1, "one\ntwo");
}

#[tokio::test]
async fn a_patch_adds_changes_moves_and_deletes() {
    let sandbox = start(Limits::default()).await;
    for (path, text) in [("a.py", "one\ntwo\n"), ("b.py", "old\n"), ("c.py", "gone\n"), ("d.py", "kept\n")] {
        sandbox.workspace().write(path, text.as_bytes()).unwrap();
    }
    let patch = "*** Begin Patch\n*** Update File: a.py\n@@\n one\n-two\n+2\n*** Update File: b.py\n*** Move to: sub/b.py\n-old\n+new\n*** Delete File: c.py\n*** Move File: d.py -> e.py\n*** Add File: f.py\n+made\n*** Update File: ./f.py\n made\n+twice\n*** End Patch\n";
    let (answer, _) = call(&sandbox, "patch", json!({"mode": "patch", "patch": patch})).await;
    assert_eq!(answer["success"], true, "{answer}");
    assert_eq!(answer["files_created"], json!(["f.py"]));
    assert_eq!(answer["files_modified"], json!(["a.py", "b.py -> sub/b.py", "d.py -> e.py", "./f.py"]));
    assert_eq!(answer["files_deleted"], json!(["c.py"]));
    let (_, files) = shell(&sandbox, "grep -r . | sort").await;
    assert_eq!(files, "a.py:2\na.py:one\ne.py:kept\nf.py:made\nf.py:twice\nsub/b.py:new");
}

#[tokio::test]
async fn a_patch_that_does_not_fit_changes_nothing() {
    let sandbox = start(Limits::default()).await;
    sandbox.workspace().write("a", b"one\n").unwrap();
    let cases = [
        (
            "*** Add File: b\n+x\n*** Update File: a\n-two\n",
            "hunk 1 does not fit a: its old lines were not found",
        ),
        ("*** Delete File: a\n*** Update File: a\n-one\n+1\n", "no such file: a"),
        ("*** Add File: b\n+x\n*** Add File: a\n+x\n", "a exists already"),
        ("*** Move File: a -> a\n*** Move File: x -> y\n", "no such file: x"),
        ("*** Delete File: a\n*** Add File: ../b\n+x\n", "path is outside the workspace: ../b"),
    ];
    for (patch, expected) in cases {
        let (answer, _) = call(&sandbox, "patch", json!({"patch": patch})).await;
        assert!(answer["error"].as_str().unwrap().starts_with(expected), "{patch}: {answer}");
        assert_eq!(shell(&sandbox, "grep -r .").await.1, "a:one", "{patch}");
    }
}

/// What searches find among four small files.
async fn check_searches(searches: &[(Value, Value)]) {
    let sandbox = start(Limits::default()).await;
    for (path, text) in
        [("a.py", "x = 1\ny = 2\n"), ("sub/b.py", "y = 3\n"), ("c.txt", "y\n"), ("bin", "\0y")]
    {
        sandbox.workspace().write(path, text.as_bytes()).unwrap();
    }
    for (arguments, expected) in searches {
        check(&sandbox, "search_files", arguments.clone(), expected.clone()).await;
    }
}

#[tokio::test]
async fn files_are_searched_by_name_and_content() {
    let in_sub = json!({"matches": "sub/b.py:1:y = 3", "total_count": 1, "truncated": false});
    check_searches(&[
        (
            json!({"pattern": "*.py", "target": "files"}),
            json!({"files": ["a.py", "sub/b.py"], "total_count": 2, "truncated": false}),
        ),
        (
            json!({"pattern": "^y", "file_glob": "*.py"}),
            json!({"matches": "a.py:2:y = 2\nsub/b.py:1:y = 3", "total_count": 2, "truncated": false}),
        ),
        (json!({"pattern": "y", "path": "sub"}), in_sub.clone()),
        (json!({"pattern": "y", "path": "sub/b.py"}), in_sub),
        (json!({"pattern": "y", "path": "nowhere"}), json!({"error": "no such file: nowhere"})),
    ])
    .await;
}

#[tokio::test]
async fn what_is_found_is_shown_in_pages_and_in_three_ways() {
    check_searches(&[
        (
            json!({"pattern": "y", "limit": 1, "offset": 1}),
            json!({"matches": "c.txt:1:y", "total_count": 3, "truncated": true}),
        ),
        (
            json!({"pattern": "y", "context": 1, "file_glob": "a.py"}),
            json!({"matches": "a.py-1-x = 1\na.py:2:y = 2", "total_count": 1, "truncated": false}),
        ),
        (
            json!({"pattern": "y", "output_mode": "files_only", "limit": 2}),
            json!({"files": ["a.py", "c.txt"], "total_count": 3, "truncated": true}),
        ),
        (
            json!({"pattern": "[xy]", "output_mode": "count", "offset": 1}),
            json!({"counts": {"c.txt": 1, "sub/b.py": 1}, "total_count": 4, "truncated": false}),
        ),
        (
            json!({"pattern": "y", "output_mode": "all"}),
            json!({"error": "output_mode must be content, files_only or count, not \"all\""}),
        ),
    ])
    .await;
}

#[tokio::test]
async fn wrong_calls_are_answered() {
    let sandbox = start(Limits::default()).await;
    let toolbox = Toolbox::new(&sandbox, ToolLimits::default());
    let unknown = toolbox.call("browser", &Arguments::Text("{}".into())).await;
    assert!(
        unknown.is_error && unknown.content.contains("Unknown tool 'browser'. Available tools: ["),
        "{}",
        unknown.content
    );
    let bad = toolbox.call("terminal", &Arguments::Text("{'command': 'ls'}".into())).await;
    assert!(bad.is_error && bad.content.contains("Please retry with valid JSON."), "{}", bad.content);
    sandbox.stop().await;
    let dead = toolbox.call("terminal", &Arguments::Text("{\"command\": \"ls\"}".into())).await;
    assert!(dead.is_error && dead.content.contains("Tool execution failed"), "{}", dead.content);
}

/// Ways out of the workspace; made by `prepare`.
const ESCAPES: [&str; 9] = [
    "../outside.txt",
    "/etc/passwd",
    "/workspace/../etc/passwd",
    "sub/../../outside.txt",
    "link",
    "linked_dir/passwd",
    "chain",
    "/proc/self/environ",
    "magic/etc/passwd",
];

async fn prepare(sandbox: &Sandbox) {
    let made = "mkdir sub; ln -s /etc/passwd link; ln -s /etc linked_dir; ln -s sub/hop chain; ln -s ../../etc/passwd sub/hop; ln -s /proc/1/root magic; ln -s /nowhere/new dangling; mkfifo pipe; ln -s . loop; echo x > own";
    let (_, said) = shell(sandbox, made).await;
    assert_eq!(said, "");
}

/// Every file tool with a path that leads out: none may answer anything but an error.
#[tokio::test]
async fn no_file_tool_leads_out() {
    let sandbox = start(Limits::default()).await;
    prepare(&sandbox).await;
    for path in ESCAPES {
        let diff = format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-root\n+x\n");
        let new = format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n");
        let calls = [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "x"})),
            ("patch", json!({"path": path, "old_string": "root", "new_string": "x"})),
            ("patch", json!({"patch": diff})),
            ("patch", json!({"patch": new})),
            ("patch", json!({"patch": format!("*** Add File: {path}\n+x")})),
            ("patch", json!({"patch": format!("*** Update File: {path}\n+x")})),
            ("patch", json!({"patch": format!("*** Delete File: {path}")})),
            ("patch", json!({"patch": format!("*** Move File: {path} -> mine")})),
            ("patch", json!({"patch": format!("*** Move File: own -> {path}")})),
            ("search_files", json!({"pattern": "root", "path": path})),
            ("search_files", json!({"pattern": "*", "target": "files", "path": path})),
        ];
        for (tool, arguments) in calls {
            let (answer, result) = call(&sandbox, tool, arguments.clone()).await;
            let error =
                answer["error"].as_str().unwrap_or_else(|| panic!("{tool} {arguments} answered {answer}"));
            assert!(
                result.is_error
                    && (error.contains("outside the workspace") || error.contains("no such file")),
                "{tool} {arguments}: {error}"
            );
        }
    }
    for (tool, arguments) in
        [("write_file", json!({"path": "dangling", "content": "x"})), ("read_file", json!({"path": "pipe"}))]
    {
        assert!(call(&sandbox, tool, arguments).await.1.is_error);
    }
    let (found, _) = call(&sandbox, "search_files", json!({"pattern": "root:"})).await;
    assert_eq!(found["total_count"], 0, "links are not followed while searching: {found}");
}

/// Ways out where there is no sandbox around the files: containment of the tools is their own. They
/// lead to a file of ours, so that nothing is lost should one of them be open.
#[tokio::test]
async fn no_file_tool_leads_out_even_without_a_sandbox() {
    let outside = tempfile::tempdir().unwrap();
    let canary = outside.path().join("canary.txt");
    std::fs::write(&canary, "untouched").unwrap();
    let sandbox = start_kind(SandboxKind::None, Limits::default()).await;
    let (dir, file) = (outside.path().display(), canary.display());
    shell(&sandbox, &format!("ln -s {file} link; ln -s {dir} linked_dir; ln -s link chain; ln -s / root"))
        .await;
    assert_eq!(shell(&sandbox, "cat link").await.1, "untouched", "the control did not work");
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    let up = format!("../{name}/canary.txt");
    let through_root = format!("root{file}");
    for path in [
        "link",
        "linked_dir/canary.txt",
        "linked_dir/new.txt",
        "chain",
        &up,
        canary.to_str().unwrap(),
        &through_root,
    ] {
        let calls = [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "x"})),
            ("patch", json!({"path": path, "old_string": "untouched", "new_string": "x"})),
            ("search_files", json!({"pattern": "untouched", "path": path})),
        ];
        for (tool, arguments) in calls {
            let (answer, result) = call(&sandbox, tool, arguments).await;
            assert!(result.is_error, "{tool} {path} answered {answer}");
        }
    }
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "untouched");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}
