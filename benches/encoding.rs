//! Rendering and encoding every step prompt of a long conversation: incrementally against each prompt whole.
//!
//! `cargo bench --bench encoding -- [--tokenizer DIR] [--python PYTHON]`. A 101-turn, about 75k-token conversation is
//! rendered and encoded both ways in alternating rounds, medians are compared; then the same text is encoded once by us
//! and once by Python's `tokenizers`, if the given Python has it.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use backsight::chat::near::Likeness;
use backsight::chat::spans;
use backsight::chat::template::{RenderInput, Template};
use backsight::chat::tokenizer::Tokenizer;
use backsight::episode::Role;
use backsight::tokens::TokenId;
use backsight::tree::TokenTree;
use serde_json::{Map, Value, json};

const N_TURNS: usize = 101;
const ROUNDS: usize = 3;
/// ChatML as most models write it, tool calls included.
const TEMPLATE: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

fn main() {
    let tokenizer_dir = option("--tokenizer").map_or_else(own_tokenizer, PathBuf::from);
    let tokenizer = Tokenizer::open(&tokenizer_dir).unwrap();
    let template = Template::compile(TEMPLATE, "chatml").unwrap();
    let messages = conversation(&tokenizer);
    let (mut ours, mut whole) = (Vec::new(), Vec::new());
    let mut work = (0, 0);
    for _ in 0..ROUNDS {
        let start = cpu_time();
        let prompts = incremental(&template, &tokenizer, &messages);
        ours.push((cpu_time() - start).as_secs_f64());
        let start = cpu_time();
        let encoded_whole = each_whole(&template, &tokenizer, &messages, &prompts);
        whole.push((cpu_time() - start).as_secs_f64());
        work = (prompts.encoded_bytes, encoded_whole);
    }
    let (ours, whole) = (median(ours), median(whole));
    println!("tokenizer            {}", tokenizer_dir.display());
    println!("step prompts         {N_TURNS}");
    println!(
        "bytes encoded        {} incrementally, {} whole: {:.1}x less",
        work.0,
        work.1,
        work.1 as f64 / work.0 as f64
    );
    assert!(work.1 >= 20 * work.0, "every step prompt must cost a twentieth of encoding each whole");
    println!("CPU seconds          {ours:.3} incrementally, {whole:.3} whole: {:.1}x less", whole / ours);
    throughput(&tokenizer_dir, &tokenizer, &render(&template, &messages, messages.len(), false));
}

/// All step prompts with the message each is for, and how many bytes were encoded to have them.
struct Prompts {
    ids: Vec<(usize, Vec<TokenId>)>,
    encoded_bytes: u64,
}

/// All step prompts, each id of which is equal to encoding its prompt whole (checked by the other side).
fn incremental(template: &Template, tokenizer: &Tokenizer, messages: &[Value]) -> Prompts {
    let is_action = |idx: &usize| messages[*idx]["role"] == Role::Assistant.name();
    let wanted: Vec<_> = (0..messages.len()).filter(is_action).map(|idx| (idx, Vec::new())).collect();
    let vars = Map::new();
    let input = RenderInput { messages, tools: None, add_generation_prompt: false, vars: &vars, now: None };
    let growing = template.growing(&input).unwrap();
    let (likeness, mut tree) = (Likeness::of(template.source(), messages), TokenTree::default());
    let found = spans::reread(&wanted, &likeness, &mut &growing, tokenizer, &mut tree);
    let turns = found.turns.into_iter().map(|turn| turn.unwrap().0);
    let ids = turns.map(|turn| (turn.message_idx, tree.tokens(turn.tip, 0..turn.span.start()))).collect();
    Prompts { ids, encoded_bytes: found.encoded_bytes }
}

/// Renders and encodes each step's prompt from its first byte; says how many bytes that were.
fn each_whole(template: &Template, tokenizer: &Tokenizer, messages: &[Value], prompts: &Prompts) -> u64 {
    let mut bytes = 0;
    for (message_idx, own) in &prompts.ids {
        let prompt = render(template, messages, *message_idx, true);
        assert_eq!(tokenizer.encode(&prompt).unwrap().ids, *own, "the ids differ");
        bytes += prompt.len() as u64;
    }
    bytes
}

fn render(template: &Template, messages: &[Value], n: usize, add_generation_prompt: bool) -> String {
    let vars = Map::new();
    let input =
        RenderInput { messages: &messages[..n], tools: None, add_generation_prompt, vars: &vars, now: None };
    template.render(&input).unwrap().text
}

/// A task, then actions with calls and results of varied length, until there are about 75,000 tokens.
fn conversation(tokenizer: &Tokenizer) -> Vec<Value> {
    let words = source_words();
    let mut random = 7u64;
    let mut text = |n_words: usize| -> String {
        let mut pick = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            words[(random >> 33) as usize % words.len()].as_str()
        };
        (0..n_words).map(|_| pick()).collect::<Vec<_>>().join(" ")
    };
    // Tokens per word differ between tokenizers; one sample tells how many words make the size.
    let sample = text(2000);
    let per_word = tokenizer.encode(&sample).unwrap().ids.len() as f64 / 2000.0;
    let words_for = |tokens: f64| (tokens / per_word) as usize;
    let mut messages = vec![json!({"role": "user", "content": text(words_for(1500.0))})];
    for n in 0..N_TURNS {
        let call = json!({"id": format!("c{n}"), "type": "function", "function": {"name": "terminal", "arguments": {"command": text(words_for(240.0))}}});
        messages.push(json!({"role": "assistant", "content": text(words_for(30.0)), "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "content": text(words_for(430.0))}));
    }
    messages
}

/// Words of our own source: code and prose, as agents read them.
fn source_words() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = [
        "crates/core/src/tokens.rs",
        "crates/core/src/episode.rs",
        "crates/chat/src/spans.rs",
        "ARCHITECTURE.md",
    ];
    let text: String = files.iter().map(|file| std::fs::read_to_string(root.join(file)).unwrap()).collect();
    text.split(' ').map(str::to_owned).collect()
}

fn throughput(dir: &Path, tokenizer: &Tokenizer, text: &str) {
    let python = option("--python").unwrap_or_else(|| "python3".to_owned());
    let file = std::env::temp_dir().join(format!("backsight-bench-{}.txt", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let script = "import sys, time\nfrom tokenizers import Tokenizer\nt = Tokenizer.from_file(sys.argv[1]); s = open(sys.argv[2], encoding='utf8', newline='').read()\nfor _ in range(4):\n    a = time.process_time(); n = len(t.encode(s, add_special_tokens=False).ids); b = time.process_time(); print(b - a, n)";
    let (mut ours, mut n_ours) = (Vec::new(), 0);
    for _ in 0..4 {
        let start = cpu_time();
        n_ours = tokenizer.encode(text).unwrap().ids.len();
        ours.push((cpu_time() - start).as_secs_f64());
    }
    let output =
        Command::new(&python).arg("-c").arg(script).arg(dir.join("tokenizer.json")).arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    let mb = text.len() as f64 / 1e6;
    println!("conversation         {n_ours} tokens, {mb:.2} MB");
    let output = output.ok().filter(|output| output.status.success());
    let Some(output) = output else {
        return println!(
            "encode               {:.2} MB/s; {python} has no `tokenizers` to compare with",
            mb / median(ours)
        );
    };
    let lines = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<f64>> =
        lines.lines().map(|line| line.split(' ').map(|it| it.parse().unwrap()).collect()).collect();
    assert_eq!(rows[0][1] as usize, n_ours, "Python counts other tokens");
    let (ours, theirs) = (median(ours), median(rows.iter().map(|row| row[0]).collect()));
    println!(
        "encode               {:.2} MB/s, Python tokenizers {:.2} MB/s: {:.2}x",
        mb / ours,
        mb / theirs,
        theirs / ours
    );
}

fn own_tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml")
}

fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|it| it != name).nth(1)
}

/// CPU time of this process: a busy machine does not distort it.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
