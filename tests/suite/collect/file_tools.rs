//! A signal while a file tool works for a student, outside its sandbox: it ends at once, nothing is left, and the same
//! command goes on.

use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::collect::place::{Place, Server};
use crate::signals::send;
use crate::student::{call, tokenizer};
use crate::support::machine::{bytes_read, descendants, is_alive, processor_ticks, supervisors};
use crate::support::stand_in::{Dialect, Setup};

const MIB: u64 = 1 << 20;
const TASK: &str = r#"{"id": "add", "task": "Write add(a, b).", "tests": "from solution import add\nassert add(1, 2) == 3"}"#;

/// A student that makes files, has a tool work on them, and answers.
fn student(make: &str, tool: String) -> Setup {
    let command = format!("(setsid sleep 4000 &); python3 -c '{make}'");
    let arguments = serde_json::json!({"command": command}).to_string();
    let (tokenizer, make) = (tokenizer(), call("terminal", &arguments));
    let mut setup = Setup::new(Dialect::Vllm).says(move |ids, _| {
        let prompt = tokenizer.decode(ids).unwrap();
        let turn = prompt.matches("<|im_start|>assistant\n").count().checked_sub(1)?;
        let text = [make.as_str(), &tool].get(turn).copied().unwrap_or("Done.");
        Some([tokenizer.encode(text).unwrap().ids, tokenizer.end_ids().to_vec()].concat())
    });
    setup.context_length = 32_768;
    setup
}

fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a process is dead, and leaves what the kernel knows of it.
fn wait_for_death(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
}

/// Ends a run in the middle of its second turn's call, which reads 16 MiB at least. Then lets it come to its end.
fn check(make: &str, tool: String) {
    let (place, server) = (Place::new(), Server::start(student(make, tool)));
    place.write("tasks.jsonl", TASK);
    let url = server.url();
    // So much work that a signal comes in the middle of it on any machine.
    let arguments = Place::arguments(&url, &["--group-size", "1", "--tool-work-mb", "1024"]);
    let mut child = place.start(&arguments);
    wait_until(|| !server.draws().is_empty());
    let (family, n_read) = (descendants(child.id()), bytes_read(child.id()));
    assert!(family.len() >= 3, "launcher, supervisor and the sandbox's first process: {family:?}");
    wait_until(|| bytes_read(child.id()) > n_read + 15 * MIB);
    let before = processor_ticks(child.id());
    send("TERM", &child);
    wait_for_death(&child);
    let n_ticks = processor_ticks(child.id()) - before;
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(server.draws().len(), 2, "the tool had answered before");
    wait_until(|| !family.iter().any(|pid| is_alive(*pid)));
    wait_until(|| !supervisors().iter().any(|pid| family.contains(pid)));
    let summary = place.summary();
    assert_eq!((&summary["left"], &summary["made"]["episodes"]), (&1.into(), &0.into()), "{summary}");
    assert_eq!(std::fs::read_dir(place.path("runs/collect/episodes")).unwrap().count(), 0);
    let whole = go_on(&place, &arguments);
    assert_eq!(server.draws().len(), 3, "nothing is paid twice");
    assert!(n_ticks < whole / 4, "{n_ticks} hundredths of a second after the signal, {whole} for all of it");
}

/// Lets the same command come to its end; the processor time it takes.
fn go_on(place: &Place, arguments: &[&str]) -> u64 {
    let mut child = place.start(arguments);
    wait_for_death(&child);
    let n_ticks = processor_ticks(child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let episodes = place.episodes("runs/collect");
    let limits = &episodes.values().next().unwrap()["limits_reached"];
    assert_eq!(limits, &serde_json::json!(["tool_work_mb"]), "the work would have gone on");
    n_ticks
}

#[test]
fn a_signal_ends_a_search_of_many_files() {
    let make = "import os\nopen(\"f\", \"w\").write((\"a\" * 79 + \"\\n\") * 13000)\nos.mkdir(\"d\")\nfor i in range(3000): os.link(\"f\", f\"d/{i}\")";
    check(make, call("search_files", r#"{"pattern": "a$", "limit": 1}"#));
}

/// Each hunk is looked for in all of the file, to see that it is in one place only.
#[test]
fn a_signal_ends_a_patch_of_a_large_file() {
    let make = "head = \"\".join(f\"a{i}\\n\" for i in range(70))\nopen(\"f\", \"w\").write(head + (\"x\" * 79 + \"\\n\") * 209000)";
    let hunks: String = (0..70).map(|i| format!("@@\\n-a{i}\\n+b{i}\\n")).collect();
    let patch = format!("{{\"patch\": \"*** Begin Patch\\n*** Update File: f\\n{hunks}*** End Patch\"}}");
    check(make, call("patch", &patch));
}
