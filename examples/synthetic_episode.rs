//! Writes made-up episodes to measure with: `cargo run --example synthetic_episode -- DIR [N_EPISODES] [SUBTASKS] [STEPS_PER_SUBTASK]`.
//!
//! `--small` anywhere makes short ones: 30 steps that fit a context of 4,096 tokens.
#![expect(clippy::print_stdout, reason = "an example talks on stdout")]

#[path = "../benches/support/synthetic.rs"]
mod synthetic;

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let (flags, arguments): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|it| it == "--small");
    let mut arguments = arguments.into_iter();
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "trajectories".to_owned()));
    let mut number = |default: usize| arguments.next().and_then(|it| it.parse().ok()).unwrap_or(default);
    let shape = if flags.is_empty() { synthetic::Shape::default() } else { synthetic::Shape::SMALL };
    let n_episodes = number(1);
    let (subtasks, steps_per_subtask) = (number(shape.subtasks), number(shape.steps_per_subtask));
    for idx in 1..=n_episodes {
        let shape = synthetic::Shape { seed: idx as u64, subtasks, steps_per_subtask, ..shape };
        let path = directory.join(format!("episode_{idx:03}"));
        synthetic::write(&path, &shape)?;
        println!("{}", path.display());
    }
    Ok(())
}
