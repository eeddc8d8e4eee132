//! The `backsight` binary; everything it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = backsight::sandbox::become_launcher_if_asked() {
        return code;
    }
    backsight::cli::run(std::env::args_os())
}
