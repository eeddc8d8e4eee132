//! The `backsight` binary; everything it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    backsight::cli::run(std::env::args_os())
}
