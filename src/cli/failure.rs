//! What a user is told when something cannot be done: the thing, the reason, the next action.

use std::fmt::Display;
use std::process::ExitCode;

use super::output;

/// A failed command.
#[derive(Debug)]
pub(super) struct Failure {
    message: String,
    help: Option<String>,
    code: u8,
}

impl Failure {
    /// Wrong usage, configuration or input; nothing was paid for.
    pub(super) fn input(message: impl Display, help: impl Display) -> Self {
        Self { message: message.to_string(), help: Some(help.to_string()), code: 2 }
    }

    /// Finished, but some of what was asked for is missing.
    pub(super) fn losses(message: impl Display, help: impl Display) -> Self {
        Self { code: 1, ..Self::input(message, help) }
    }

    /// Stopped early: a server gone, a disk full, a capability missing.
    pub(super) fn stopped(message: impl Display, help: impl Display) -> Self {
        Self { code: 3, ..Self::input(message, help) }
    }

    /// Prints `error:` and `help:` lines and gives the exit code.
    pub(super) fn report(&self) -> ExitCode {
        output::talk(&format!("error: {}", one_line(&self.message)));
        if let Some(help) = &self.help {
            output::talk(&format!("help: {}", one_line(help)));
        }
        ExitCode::from(self.code)
    }
}

/// Hostile text must not draw on the terminal or fake further lines.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
