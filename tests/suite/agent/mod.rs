//! The agent's sandbox, tools and verifier, run for real.
//!
//! Nothing here is skipped when the machine lacks something: a sandbox that cannot be made, or
//! that contains less than it should, fails the tests.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod episode;
mod layouts;
mod redteam;
mod sandbox;
mod stdio;
mod tool_limits;
mod tools;
mod verifier;

use std::path::PathBuf;

use backsight::sandbox::{Command, Exit, Limits, Sandbox, SandboxConfig, SandboxKind, Sandboxes};

/// The program that answers to the sandbox's hidden argument.
fn init() -> Option<PathBuf> {
    Some(PathBuf::from(env!("CARGO_BIN_EXE_backsight")))
}

fn sandboxes(kind: SandboxKind, limits: Limits) -> Sandboxes {
    Sandboxes::new(SandboxConfig { kind, init: init(), limits, ..SandboxConfig::default() })
}

async fn start(limits: Limits) -> Sandbox {
    start_kind(SandboxKind::Namespaces, limits).await
}

async fn start_kind(kind: SandboxKind, limits: Limits) -> Sandbox {
    sandboxes(kind, limits).start().await.unwrap_or_else(|error| panic!("{error}"))
}

/// What a command says and how it ends.
async fn shell(sandbox: &Sandbox, line: &str) -> (Exit, String) {
    let output = sandbox.run(Command::shell(line)).await.unwrap_or_else(|error| panic!("{error}"));
    (output.exit, output.capture.text().trim().to_owned())
}

/// What a Python program says.
async fn python(sandbox: &Sandbox, program: &str) -> String {
    let output = sandbox.run(Command::argv(["python3", "-c", program])).await.unwrap();
    output.capture.text().trim().to_owned()
}
