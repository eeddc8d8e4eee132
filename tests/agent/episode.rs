//! Whole episodes with a scripted student: what is recorded, to the token, and what it is worth.

use backsight::agent::episode_loop::run_episode;
use backsight::episode::{Episode, Stop, TokenSource};

use crate::student::{call, place, saying, setting, task, tokenizer, write_solution};

fn shown(episode: &Episode) -> String {
    tokenizer().decode(&episode.sequences[0]).unwrap()
}

#[tokio::test]
async fn a_solved_task() {
    let run = call("terminal", r#"{"command": "python3 -c 'import solution; print(solution.add(1, 2))'"}"#);
    let texts = [&*write_solution(), &*run, "It works."];
    let episode = run_episode(&setting(saying(&texts)), &task(), place()).await;
    assert_eq!((episode.stop, episode.token_source), (Some(Stop::Answered), TokenSource::Exact));
    let outcome = episode.outcome.as_ref().unwrap();
    assert_eq!(outcome.reward, 1.0, "{outcome:?}");
    println!("{}", shown(&episode));
}
