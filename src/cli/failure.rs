//! What a user is told when something cannot be done: the thing, the reason, the next action.

use std::fmt::Display;
use std::process::ExitCode;

use super::output::{self, one_line};

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

    /// Ended by a signal of this number.
    pub(super) fn signal(number: u8) -> Self {
        let help = "what was finished is kept; the same command continues";
        Self { code: 128u8.saturating_add(number), ..Self::input("interrupted", help) }
    }

    /// From a text whose last line may say `help:`.
    pub(super) fn from_text(text: &impl Display, is_usage: bool) -> Self {
        let text = text.to_string();
        let (message, help) = text.split_once("\nhelp: ").unwrap_or((&text, ""));
        let help = Some(help.to_owned()).filter(|it| !it.is_empty());
        Self { message: message.to_owned(), help, code: if is_usage { 2 } else { 3 } }
    }

    /// Whether the user, or what was left of an earlier run, has to be mended.
    pub(super) fn is_usage(&self) -> bool {
        self.code == 2
    }

    /// Whether a signal ended the command: what is left of it is not gone on with.
    pub(super) fn is_signal(&self) -> bool {
        self.code > 128
    }

    /// Prints `error:` and `help:` lines, or an event, and gives the exit code.
    pub(super) fn report(&self, as_json: bool) -> ExitCode {
        if as_json {
            let event = serde_json::json!({
                "time": crate::pipeline::batch::now(), "event": "error", "message": self.message,
                "help": self.help, "code": self.code,
            });
            output::talk(&event.to_string());
            return ExitCode::from(self.code);
        }
        output::talk(&format!("error: {}", one_line(&self.message)));
        if let Some(help) = &self.help {
            output::talk(&format!("help: {}", one_line(help)));
        }
        ExitCode::from(self.code)
    }
}
