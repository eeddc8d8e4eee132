//! The program under test.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "not every test uses all of it")]

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program in `dir`.
pub fn backsight(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_backsight")).current_dir(dir).args(arguments).output().unwrap()
}
