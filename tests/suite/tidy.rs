//! Rules about the source itself, checked by `cargo test` so that they hold without anybody remembering them.
#![expect(clippy::unwrap_used, reason = "a test that cannot read the source should panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const MAX_LINES: usize = 800;
/// The crate that computes and never touches the world.
const PURE: &str = "backsight-core";
/// Words it may not use: IO, clocks, unseeded randomness.
const IMPURE: &[&str] =
    &["tokio", "reqwest", "rusqlite", "fs", "net", "process", "Instant", "SystemTime", "thread_rng"];
/// Where serde is derived: foreign formats in the crate that owns them, our own files, and what our own processes say
/// to each other.
const BORDERS: &[(&str, &[&str])] = &[
    ("backsight", &["wire", "store", "config"]),
    ("backsight-engine", &["hf_config", "safetensors"]),
    ("backsight-sandbox", &["protocol", "config"]),
];
/// Modules whose files are defined by one another, as Python's values, operators and methods are.
const ENTWINED: &[(&str, &str)] = &[("backsight-chat", "jinja")];

/// Who may name a kind of server: the table, who speaks or plays a protocol, and who types a command. Everybody else asks
/// the table what differs.
const NAMES_KINDS: &[&str] = &[
    "model",
    "model::kinds",
    "model::serve",
    "wire",
    "cli::command",
    "cli::serve",
    "cli::live",
    "cli::taught",
    "cli::quickstart",
    // A section of Atropos' files is called like one.
    "config::yaml",
];

#[test]
fn every_file_opens_with_a_module_doc() {
    check(|_, file| (!file.text.starts_with("//!")).then(|| "first line is not `//!`".to_owned()));
}

#[test]
fn no_file_outgrows_its_module() {
    check(|_, file| {
        let n_lines = code(&file.text).lines().count();
        (n_lines > MAX_LINES).then(|| format!("{n_lines} lines, limit {MAX_LINES}"))
    });
}

#[test]
fn the_core_stays_pure() {
    check(|krate, file| {
        (krate.name == PURE).then_some(())?;
        let code = code(&file.text);
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        let found = words.find(|word| IMPURE.contains(word))?;
        Some(format!("the pure crate names `{found}`"))
    });
}

#[test]
fn only_borders_derive_serde() {
    check(|krate, file| {
        let code = code(&file.text);
        let derives = code.lines().find(|line| {
            line.trim_start().starts_with("#[derive")
                && (line.contains("Serialize") || line.contains("Deserialize"))
        })?;
        let borders = BORDERS.iter().filter(|it| it.0 == krate.name).flat_map(|it| it.1);
        let is_border = borders.into_iter().any(|border| file.path.first().is_some_and(|top| top == border));
        (!is_border).then(|| format!("derives serde outside the borders: {}", derives.trim()))
    });
}

/// Templates and tokenizers are reached through `chat` alone; a lens is a template of its own.
#[test]
fn only_chat_turns_text_into_tokens() {
    let users = |dependency: &str| {
        let names = crates().into_iter().filter(|it| it.dependencies.iter().any(|name| name == dependency));
        names.map(|it| it.name).collect::<Vec<_>>()
    };
    assert_eq!(users("tokenizers"), ["backsight-chat"]);
    assert_eq!(users("minijinja"), ["backsight-chat", "backsight-core"]);
}

#[test]
fn only_the_table_and_the_clients_name_a_kind_of_server() {
    let names = backsight::model::KINDS.map(|kind| kind.name);
    check(|krate, file| {
        let (path, code) = (file.path.join("::"), code(&file.text));
        let is_below = |top: &&&str| **top != "model" && path.starts_with(&format!("{top}::"));
        let is_client = names.iter().any(|name| path == format!("model::{name}"));
        let may_name =
            is_client || NAMES_KINDS.contains(&&*path) || NAMES_KINDS.iter().any(|it| is_below(&it));
        (krate.name == "backsight" && !may_name).then_some(())?;
        let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        let types: Vec<&str> = words.filter(|it| it.starts_with(char::is_uppercase)).collect();
        let is_named = |name: &&&str| {
            code.contains(&format!("\"{name}\"")) || types.iter().any(|word| word.to_lowercase() == **name)
        };
        let found = names.iter().find(is_named)?;
        Some(format!("names the server kind `{found}`; ask its row in `model::kinds` what differs"))
    });
}

/// A client that was made elsewhere would have no cryptography.
#[test]
fn only_http_makes_http_clients() {
    check(|_, file| {
        let makes =
            ["Client::new(", "Client::builder("].into_iter().find(|it| code(&file.text).contains(it))?;
        (file.path != ["http"]).then(|| format!("calls `{makes}…)`"))
    });
}

#[test]
fn the_module_graph_is_the_one_in_the_architecture() {
    let drawn: String = crates().iter().map(drawing).collect();
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(text.contains(&format!("```text\n{drawn}```")), "ARCHITECTURE.md should show\n\n{drawn}");
}

#[test]
fn no_modules_use_each_other() {
    let mut rings = Vec::new();
    for krate in crates() {
        for (parent, graph) in sibling_graphs(&krate) {
            let entwined = ENTWINED.contains(&(&krate.name, &parent.join("::")));
            let ring = ring(&graph).filter(|_| !entwined);
            rings.extend(ring.map(|ring| format!("{} {}: {ring:?}", krate.name, parent.join("::"))));
        }
    }
    assert!(rings.is_empty(), "modules that use each other in a ring:\n{}", rings.join("\n"));
}

#[test]
fn rules_name_only_what_exists() {
    let all = crates();
    let has = |name: &str, top: &str| {
        let found = all.iter().find(|it| it.name == name);
        found.is_some_and(|it| it.files.iter().any(|file| file.path.first().is_some_and(|it| it == top)))
    };
    let borders = BORDERS.iter().flat_map(|(name, tops)| tops.iter().map(move |top| (*name, *top)));
    let named = borders.chain(ENTWINED.iter().copied());
    let missing: Vec<_> = named.filter(|(name, top)| !has(name, top)).collect();
    assert!(missing.is_empty() && all.iter().any(|it| it.name == PURE), "{missing:?}");
}

/// Plain `cargo test` is about every crate, and every crate has tests that it runs.
#[test]
fn every_crate_is_tested() {
    let metadata = metadata();
    let ids =
        |key: &str| metadata[key].as_array().unwrap().iter().map(Value::to_string).collect::<BTreeSet<_>>();
    assert_eq!(ids("workspace_default_members"), ids("workspace_members"));
    for krate in crates() {
        assert!(krate.is_tested, "{} says `test = false`", krate.name);
        let mut texts: Vec<String> = krate.files.iter().map(|file| file.text.clone()).collect();
        visit(&krate.dir.join("tests"), &mut |path| texts.push(fs::read_to_string(path).unwrap()));
        let n_tests: usize = texts.iter().map(|text| text.matches("test]\n").count()).sum();
        assert!(n_tests >= 20, "{} has {n_tests} tests", krate.name);
    }
}

/// One package of the workspace.
struct Crate {
    name: String,
    dir: PathBuf,
    dependencies: Vec<String>,
    is_tested: bool,
    files: Vec<File>,
}

struct File {
    place: PathBuf,
    /// The module it is, from the crate's root.
    path: Vec<String>,
    text: String,
}

type Graph = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn metadata() -> Value {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = Command::new(env!("CARGO")).current_dir(root()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn crates() -> Vec<Crate> {
    let metadata = metadata();
    let mut all: Vec<Crate> = metadata["packages"].as_array().unwrap().iter().map(package).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn package(json: &Value) -> Crate {
    let text = |json: &Value| json.as_str().unwrap().to_owned();
    let dir = Path::new(json["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned();
    let normal = json["dependencies"].as_array().unwrap().iter().filter(|it| it["kind"].is_null());
    let dependencies = normal.map(|it| text(&it["name"])).collect();
    let mut libraries = json["targets"].as_array().unwrap().iter().filter(|it| it["kind"][0] == "lib");
    let is_tested = libraries.all(|it| it["test"] == true);
    let (src, mut files) = (dir.join("src"), Vec::new());
    visit(&src, &mut |place| {
        let text = fs::read_to_string(place).unwrap();
        files.push(File { place: place.to_owned(), path: module(place.strip_prefix(&src).unwrap()), text });
    });
    assert!(files.len() > 5, "only {} files were looked at", files.len());
    Crate { name: text(&json["name"]), dir, dependencies, is_tested, files }
}

/// The module a file is; none for the crate's root.
fn module(place: &Path) -> Vec<String> {
    let name = |part: &std::ffi::OsStr| part.to_str().unwrap().trim_end_matches(".rs").to_owned();
    let mut path: Vec<String> = place.iter().map(name).collect();
    path.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    path
}

/// A crate's modules with those they use, one a line.
fn drawing(krate: &Crate) -> String {
    let graph = sibling_graphs(krate).remove(&Vec::new()).unwrap();
    let line = |(module, used): (&String, &BTreeSet<String>)| {
        let used: Vec<_> = used.iter().map(String::as_str).collect();
        if used.is_empty() { format!("  {module}\n") } else { format!("  {module} → {}\n", used.join(" ")) }
    };
    format!("{}\n{}", krate.name, graph.iter().map(line).collect::<String>())
}

/// For the crate's root and each module with several files: which of the modules in it uses which other.
fn sibling_graphs(krate: &Crate) -> BTreeMap<Vec<String>, Graph> {
    let modules: BTreeSet<&[String]> = krate.files.iter().map(|file| file.path.as_slice()).collect();
    let mut graphs: BTreeMap<Vec<String>, Graph> = BTreeMap::new();
    for file in krate.files.iter().filter(|file| !file.path.is_empty()) {
        for depth in 0..file.path.len() {
            let graph = graphs.entry(file.path[..depth].to_vec()).or_default();
            graph.entry(file.path[depth].clone()).or_default();
        }
        for used in used_paths(file) {
            let shared = used.iter().zip(&file.path).take_while(|(a, b)| a == b).count();
            let (Some(own), Some(other)) = (file.path.get(shared), used.get(shared)) else { continue };
            if modules.contains(&used[..=shared]) {
                let graph = graphs.entry(file.path[..shared].to_vec()).or_default();
                graph.entry(own.clone()).or_default().insert(other.clone());
            }
        }
    }
    graphs
}

/// Every path a file names from the crate's root or from a module above it.
fn used_paths(file: &File) -> Vec<Vec<String>> {
    let code = code(&file.text);
    let mut paths: Vec<_> = code.split("crate::").skip(1).flat_map(|tail| named(&[], tail)).collect();
    let mut rest = code.as_str();
    while let Some(at) = rest.find("super::") {
        let mut base = file.path.as_slice();
        rest = &rest[at..];
        while let Some(tail) = rest.strip_prefix("super::") {
            base = base.split_last().map_or(base, |(_, above)| above);
            rest = tail;
        }
        paths.extend(named(base, rest));
    }
    paths
}

/// The paths that begin a text: one, or all in the braces it opens.
fn named(base: &[String], text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(list) = text.strip_prefix('{') {
        return listed(list).into_iter().flat_map(|item| named(base, item)).collect();
    }
    let word = first_word(text);
    if word.is_empty() {
        return vec![base.to_vec()];
    }
    let path = [base, std::slice::from_ref(&word)].concat();
    match text[word.len()..].strip_prefix("::") {
        Some(rest) => named(&path, rest),
        None => vec![path],
    }
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The items of a list that was opened by a brace.
fn listed(list: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut items) = (0, 0, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(&list[begin..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    items
}

/// Some modules that use each other in a ring, if any do: what remains when those that use nothing are taken away.
fn ring(graph: &Graph) -> Option<Vec<String>> {
    let mut left = graph.clone();
    loop {
        let free: Vec<String> =
            left.iter().filter(|(_, used)| used.is_empty()).map(|it| it.0.clone()).collect();
        if free.is_empty() {
            return Some(left.into_keys().collect()).filter(|ring: &Vec<_>| !ring.is_empty());
        }
        free.iter().for_each(|module| drop(left.remove(module)));
        left.values_mut().for_each(|used| used.retain(|it| !free.contains(it)));
    }
}

#[test]
fn modules_are_found_in_every_form_of_import() {
    let file = |path: &[&str], text: &str| File {
        place: PathBuf::new(),
        path: path.iter().map(ToString::to_string).collect(),
        text: text.to_owned(),
    };
    let used = |path: &[&str], text: &str| {
        let paths = used_paths(&file(path, text));
        paths.into_iter().map(|path| path.join("::")).filter(|it| !it.is_empty()).collect::<Vec<_>>()
    };
    let code =
        "use crate::wire::{a, b};\nuse crate::{chat::{x, y}, model,\n    cli};\nlet z = crate::hub::z;";
    assert_eq!(used(&["m"], code), ["wire::a", "wire::b", "chat::x", "chat::y", "model", "cli", "hub::z"]);
    assert_eq!(used(&["m"], "use super::a::B;"), ["a::B"]);
    assert_eq!(used(&["m", "n"], "use super::a;\nuse super::super::b::{C, D};"), ["m::a", "b::C", "b::D"]);
}

#[test]
fn rings_are_seen() {
    let graph = |edges: &[(&str, &[&str])]| -> Graph {
        let set = |used: &[&str]| used.iter().map(ToString::to_string).collect();
        edges.iter().map(|(module, used)| ((*module).to_owned(), set(used))).collect()
    };
    assert_eq!(ring(&graph(&[("a", &["b"]), ("b", &["c"]), ("c", &[])])), None);
    assert_eq!(ring(&graph(&[("a", &["b"]), ("b", &["a"]), ("c", &[])])).unwrap(), ["a", "b"]);
}

/// The file without comments and without its unit tests.
fn code(text: &str) -> String {
    let body = text.split("#[cfg(test)]").next().unwrap_or(text);
    let lines = body.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn check(rule: impl Fn(&Crate, &File) -> Option<String>) {
    let mut broken = Vec::new();
    for krate in crates() {
        let found = krate.files.iter().filter_map(|file| {
            let why = rule(&krate, file)?;
            Some(format!("{}: {why}", file.place.display()))
        });
        broken.extend(found);
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

fn visit(dir: &Path, f: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, f);
        } else if path.extension().is_some_and(|it| it == "rs") {
            f(&path);
        }
    }
}
