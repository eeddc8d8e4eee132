//! Makes up long agent episodes in the published format: `result.json` and `pi_session.jsonl`.
//!
//! Owns the shape that costs are measured on: planning, then subtasks, each action a thought, a sentence
//! and a tool call, each result the output of a command. The same seed gives the same bytes. The text is
//! made of code-like lines, so that real tokenizers cut it as they cut real episodes.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

/// How long an episode is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The same seed gives the same episode.
    pub seed: u64,
    /// Steps before the plan is accepted, the one that submits it included.
    pub planning_steps: usize,
    /// How many subtasks the plan has.
    pub subtasks: usize,
    /// Steps in each, the one that advances included.
    pub steps_per_subtask: usize,
    /// Requirements in the task.
    pub requirements: usize,
    /// Whether actions begin with a thought, which the published loader drops.
    pub thinking: bool,
    /// Lines of code in an action, on average.
    pub action_lines: usize,
    /// Lines of output in a result, on average.
    pub result_lines: usize,
}

impl Default for Shape {
    /// 101 steps; with the tokenizer of Qwen3 about 77k tokens, about 280 in an action.
    fn default() -> Self {
        Self {
            seed: 1,
            planning_steps: 6,
            subtasks: 5,
            steps_per_subtask: 19,
            requirements: 40,
            thinking: true,
            action_lines: 13,
            result_lines: 32,
        }
    }
}

impl Shape {
    /// 30 steps; with the tokenizer of SmolLM2 about 3,500 tokens, so that they fit a context of 4,096.
    pub const SMALL: Self = Self {
        seed: 1,
        planning_steps: 3,
        subtasks: 3,
        steps_per_subtask: 9,
        requirements: 4,
        thinking: false,
        action_lines: 1,
        result_lines: 1,
    };
}

/// The two files of an episode.
pub struct Files {
    /// `result.json`.
    pub result: String,
    /// `pi_session.jsonl`.
    pub session: String,
}

/// Writes an episode into a directory.
pub fn write(directory: &Path, shape: &Shape) -> io::Result<()> {
    let Files { result, session } = episode(shape);
    fs::create_dir_all(directory)?;
    fs::write(directory.join("result.json"), result)?;
    fs::write(directory.join("pi_session.jsonl"), session)
}

/// Makes up an episode.
pub fn episode(shape: &Shape) -> Files {
    let mut writer = Writer { random: Random(shape.seed), shape: *shape, lines: Vec::new(), parent: None };
    writer.line(json!({"type": "session", "version": 3, "id": "synthetic", "cwd": "/app/storage"}));
    writer.message(json!({"role": "user", "content": [{"type": "text", "text": prompt(shape)}]}));
    for _ in 1..shape.planning_steps {
        writer.read();
    }
    writer.plan();
    for subtask in 0..shape.subtasks {
        for step in 2..shape.steps_per_subtask {
            writer.work(step);
        }
        writer.call(
            "submit_subtask",
            json!({"subtask_id": id(subtask)}),
            &json!({"score": score(shape, subtask)}),
        );
        let next = (subtask + 1 < shape.subtasks).then(|| id(subtask + 1));
        let answer = json!({"frozen_score": score(shape, subtask), "next_subtask_id": next});
        writer.call("advance", json!({}), &answer);
    }
    Files { result: result(shape), session: writer.lines.join("\n") + "\n" }
}

fn id(subtask: usize) -> String {
    format!("S{}", subtask + 1)
}

/// Scores fall from subtask to subtask, as they do when work gets harder.
fn score(shape: &Shape, subtask: usize) -> f64 {
    let share = (shape.subtasks - subtask) as f64 / (shape.subtasks + 1) as f64;
    (share * 1000.0).round() / 1000.0
}

fn result(shape: &Shape) -> String {
    let scores: serde_json::Map<_, _> =
        (0..shape.subtasks).map(|it| (id(it), json!(score(shape, it)))).collect();
    let n_steps = shape.planning_steps + shape.subtasks * shape.steps_per_subtask;
    let result = json!({
        "episode_id": shape.seed, "worker_id": 0, "turns": 3, "elapsed_s": 2711.3, "phase": "DONE",
        "plan_score": 0.7416666666666667, "frozen_scores": scores, "episode_reward": 0.5358,
        "tool_call_count": n_steps, "plan": plan(shape), "done": true,
    });
    format!("{result:#}")
}

fn plan(shape: &Shape) -> Vec<Value> {
    let subtask = |it| {
        let (work, check) =
            (format!("make part {} of the storage engine work", it + 1), format!("test_{it} passes"));
        json!({"id": id(it), "description": work, "acceptance_criteria": check})
    };
    (0..shape.subtasks).map(subtask).collect()
}

fn prompt(shape: &Shape) -> String {
    let mut random = Random(shape.seed ^ 0x5eed);
    let requirements: String =
        (1..=shape.requirements).map(|idx| format!("{idx}. {}\n", random.sentence())).collect();
    format!(
        "# Storage engine\n\nYour workspace is `/app/storage`. Make the tests pass.\n\n{requirements}\n\
         Read the workspace, plan your approach, call submit_plan with your subtasks, then work through them."
    )
}

struct Writer {
    random: Random,
    shape: Shape,
    lines: Vec<String>,
    parent: Option<String>,
}

impl Writer {
    fn line(&mut self, value: Value) {
        self.lines.push(value.to_string());
    }

    fn message(&mut self, message: Value) {
        let id = format!("{:08x}", self.lines.len());
        self.line(json!({"type": "message", "id": id, "parentId": self.parent, "message": message}));
        self.parent = Some(id);
    }

    /// An action that calls a tool, and its result.
    fn step(&mut self, name: &str, arguments: Value, output: &str) {
        let call_id = format!("call_{}", self.lines.len());
        let thinking = json!({"type": "thinking", "thinking": self.random.sentence()});
        let text = json!({"type": "text", "text": self.random.sentence()});
        let call = json!({"type": "toolCall", "id": call_id, "name": name, "arguments": arguments});
        let content = if self.shape.thinking { json!([thinking, text, call]) } else { json!([text, call]) };
        self.message(json!({"role": "assistant", "content": content, "stopReason": "toolUse"}));
        let output = json!([{"type": "text", "text": output}]);
        self.message(json!({"role": "toolResult", "toolCallId": call_id, "toolName": name, "content": output, "isError": false}));
    }

    /// A planning tool reached through the proxy.
    fn call(&mut self, tool: &str, arguments: Value, answer: &Value) {
        let arguments = json!({"tool": format!("openenv_{tool}"), "args": arguments.to_string()});
        self.step("mcp", arguments, &answer.to_string());
    }

    fn plan(&mut self) {
        let answer = json!({"plan_score": 0.7416666666666667, "phase": "EXECUTING", "current_subtask": "S1"});
        self.call("submit_plan", json!({"subtasks": plan(&self.shape)}), &answer);
    }

    /// Looks at files, which is long; so the context grows early, as it does when an agent starts.
    fn read(&mut self) {
        let n_lines = self.random.about(self.shape.result_lines) / 4 + 2 * self.shape.result_lines;
        let script = self.random.code(self.shape.action_lines);
        let output = self.random.code(n_lines);
        self.step("bash", json!({"command": script}), &output);
    }

    /// Probes, writes or edits, by turns. Results stay below the length at which the published loader cuts them.
    fn work(&mut self, turn: usize) {
        let action = self.random.about(self.shape.action_lines);
        let n_lines = self.random.about(self.shape.result_lines);
        let path = format!("src/{}.zig", self.random.word());
        let (name, arguments, n_lines) = match turn % 3 {
            0 => {
                let script = self.random.code(action);
                let command = format!("cat > probe.sh <<'EOF'\n{script}EOF\nbash probe.sh {path}");
                ("bash", json!({"command": command}), n_lines * 3 / 2)
            }
            1 => ("write", json!({"path": path, "content": self.random.code(action * 3 / 2)}), n_lines / 2),
            _ => {
                let edit = json!({"path": path, "oldText": self.random.sentence(), "newText": self.random.code(action)});
                ("edit", edit, n_lines)
            }
        };
        let output = self.random.code(n_lines);
        self.step(name, arguments, &output);
    }
}

const WORDS: &[&str] = &[
    "page", "buffer", "cursor", "index", "commit", "offset", "reader", "writer", "segment", "snapshot",
    "record", "block", "handle", "cache", "lock", "frame", "journal", "header", "checksum", "socket",
    "parser", "token", "value", "length", "limit", "retry", "flush", "merge", "split", "cell", "tree",
    "leaf", "root", "branch", "queue", "worker",
];

/// A small generator of numbers (SplitMix64): the same everywhere, without a dependency.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Between half and one and a half of `n`.
    fn about(&mut self, n: usize) -> usize {
        n / 2 + self.below(n + 1)
    }

    fn word(&mut self) -> &'static str {
        WORDS[self.below(WORDS.len())]
    }

    fn sentence(&mut self) -> String {
        let [a, b, c, d] = [0; 4].map(|_| self.word());
        format!("The {a} has to keep its {b} until the {c} is done, so I look at the {d} first.")
    }

    fn code(&mut self, n_lines: usize) -> String {
        (0..n_lines).map(|_| self.code_line()).collect()
    }

    fn code_line(&mut self) -> String {
        let (form, number) = (self.below(4), self.below(4096));
        let [a, b, c, d] = [0; 4].map(|_| self.word());
        match form {
            0 => format!("    const {a}_{b} = try self.{c}({d}, {number});\n"),
            1 => format!("    if ({a}.{b} > {number}) return error.{c}_{d};\n"),
            2 => format!("    // the {a} of every {b} is written before its {c}\n"),
            _ => format!("    {a}.{b}[{number}] = {c}.{d};\n"),
        }
    }
}
