//! Rules about the source itself, checked by `cargo test` so that they hold without anybody remembering them.
#![expect(clippy::unwrap_used, reason = "a test that cannot read the source should panic")]

use std::fs;
use std::path::{Path, PathBuf};

/// Modules that compute and never touch the world.
const PURE: &[&str] = &["episode", "tokens", "hint", "lens", "score", "plan", "credit"];
/// Words a pure module may not use: IO, clocks, unseeded randomness, and the modules above it.
const IMPURE: &[&str] = &[
    "tokio",
    "reqwest",
    "rusqlite",
    "fs",
    "net",
    "process",
    "Instant",
    "SystemTime",
    "thread_rng",
    "wire",
    "chat",
    "model",
    "agent",
    "judge",
    "store",
    "ship",
    "hub",
    "report",
    "pipeline",
    "quickstart",
    "cli",
];
/// The layers, lowest first. A module may use those before it and the pure ones; `&` joins modules of one layer.
const LAYERS: &[&[&str]] = &[
    &["wire", "hf"],
    &["chat"],
    &["model"],
    &["tasks"],
    &["agent", "judge", "ship", "store", "hub", "report", "metrics", "event", "config"],
    &["pipeline", "quickstart"],
    &["cli"],
];
const MAX_LINES: usize = 800;

#[test]
fn every_file_opens_with_a_module_doc() {
    check(|_, text| (!text.starts_with("//!")).then(|| "first line is not `//!`".to_owned()));
}

#[test]
fn no_file_outgrows_its_module() {
    check(|_, text| {
        let n_lines = code(text).lines().count();
        (n_lines > MAX_LINES).then(|| format!("{n_lines} lines, limit {MAX_LINES}"))
    });
}

#[test]
fn pure_modules_stay_pure() {
    check(|path, text| {
        let module = module(path)?;
        PURE.contains(&module.as_str()).then_some(())?;
        let found = words(text).into_iter().find(|word| IMPURE.contains(&word.as_str()))?;
        Some(format!("pure module names `{found}`"))
    });
}

#[test]
fn layers_only_look_down() {
    check(|path, text| {
        let own = layer(&module(path)?)?;
        let used = used_modules(text);
        let above = used.iter().find(|used| layer(used).is_some_and(|it| it > own))?;
        Some(format!("uses `{above}`, a layer above its own"))
    });
}

#[test]
fn only_chat_turns_text_into_tokens() {
    only("tokenizers", &["chat"]);
    only("minijinja", &["chat", "lens", "judge"]);
}

#[test]
fn only_borders_derive_serde() {
    check(|path, text| {
        let code = code(text);
        let derives = code.lines().find(|line| {
            line.trim_start().starts_with("#[derive")
                && (line.contains("Serialize") || line.contains("Deserialize"))
        })?;
        let border = ["wire", "store", "config"].contains(&module(path)?.as_str());
        (!border).then(|| format!("derives serde outside the borders: {}", derives.trim()))
    });
}

/// `word` may be named in these modules only.
fn only(word: &str, allowed: &[&str]) {
    check(|path, text| {
        let module = module(path)?;
        let named = words(text).iter().any(|it| it == word);
        (named && !allowed.contains(&module.as_str())).then(|| format!("names `{word}`"))
    });
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The modules a file names as `crate::module` or in `crate::{module, …}`.
fn used_modules(text: &str) -> Vec<String> {
    let code = code(text);
    let tails = code.split("crate::").skip(1);
    tails.flat_map(|tail| tail.strip_prefix('{').map_or_else(|| vec![first_word(tail)], listed)).collect()
}

fn first_word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The first word of each item of a list that was opened by a brace.
fn listed(list: &str) -> Vec<String> {
    let (mut depth, mut words) = (0, vec![first_word(list)]);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => words.push(first_word(&list[at + 1..])),
            _ => {}
        }
    }
    words
}

#[test]
fn modules_are_found_in_every_form_of_import() {
    let code =
        "use crate::wire::{a, b};\nuse crate::{chat::{x, y}, model,\n    cli};\nlet z = crate::hub::z;";
    let mut used = used_modules(code);
    used.retain(|word| !word.is_empty());
    assert_eq!(used, ["wire", "chat", "model", "cli", "hub"]);
}

/// The top-level module a file belongs to; none for `lib.rs` and `main.rs`.
fn module(path: &Path) -> Option<String> {
    let first = path.strip_prefix(src()).ok()?.iter().next()?.to_str()?.trim_end_matches(".rs");
    (!["lib", "main"].contains(&first)).then(|| first.to_owned())
}

/// The file without comments and without its unit tests.
fn code(text: &str) -> String {
    let body = text.split("#[cfg(test)]").next().unwrap_or(text);
    let lines = body.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn words(text: &str) -> Vec<String> {
    let code = code(text);
    code.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect()
}

fn check(rule: impl Fn(&Path, &str) -> Option<String>) {
    let mut broken = Vec::new();
    let mut n_files = 0;
    visit(&src(), &mut |path| {
        n_files += 1;
        let text = fs::read_to_string(path).unwrap();
        broken.extend(rule(path, &text).map(|why| format!("{}: {why}", path.display())));
    });
    assert!(n_files > 5, "only {n_files} files were looked at");
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

fn visit(dir: &Path, f: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, f);
        } else if path.extension().is_some_and(|it| it == "rs") {
            f(&path);
        }
    }
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}
