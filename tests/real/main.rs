//! Everything that is compared with real servers.

#[path = "../support/student.rs"]
mod student;
#[path = "../support/mod.rs"]
mod support;

mod agent;
mod distill;
mod servers;

/// Says how much was really compared with a server; `.ci/run` adds these lines up and fails when nothing was.
#[expect(clippy::print_stderr, reason = "tests may talk")]
fn compared(n: usize, what: &str) {
    // Made before it is printed: in pieces, the output of another test could come between them.
    let line = format!("compared: {n} {what}");
    eprintln!("{line}");
}
