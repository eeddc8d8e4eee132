//! Data: what was asked for, on stdout.

use std::io::{self, Write};

use serde_json::Value;

use super::failure::Failure;

/// Writes a value on a line.
pub(super) fn json(value: &Value) -> Result<(), Failure> {
    data(format!("{value}\n").as_bytes())
}

/// Writes data. A reader that has gone away (`| head`) is no failure.
pub(super) fn data(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::input(format!("stdout cannot be written: {error}"), "check the disk or the pipe"))
        }
        _ => Ok(()),
    }
}
