//! What happened, as data.
//!
//! Owns [`Event`] and its two forms: a JSON object for files and machines, a line for people. Keeping
//! events is `store`'s business, showing them that of the command line.

use std::sync::Arc;

use serde_json::{Value, json};

/// Who is told of events.
pub type Tell = Arc<dyn Fn(&Event) + Send + Sync>;

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A process began to work on the run.
    Began {
        /// The stage.
        stage: &'static str,
        /// The model, and what it is behind.
        model: String,
        /// What is made, in the singular.
        unit: &'static str,
        /// How many of them are asked for.
        asked: usize,
        /// Of those, already there.
        found: usize,
    },
    /// An episode came to its end.
    Episode {
        /// Its id.
        id: String,
        /// How many of those asked for have ended, this one included.
        nth: usize,
        /// Of how many.
        asked: usize,
        /// Its reward, or why it has none.
        reward: Result<f64, String>,
        /// Whether the hidden tests passed.
        solved: bool,
        /// Why it ended.
        stop: Option<&'static str>,
        /// How many steps it has.
        steps: usize,
        /// How long it took.
        seconds: f64,
    },
    /// A step of an episode has ended.
    Step {
        /// The episode.
        id: String,
        /// Its number.
        step: usize,
    },
    /// An episode failed, and is run again.
    Retry {
        /// Its id.
        id: String,
        /// Why it failed.
        why: String,
        /// Which time this will be.
        nth: u32,
        /// Of how many.
        of: u32,
    },
    /// It is known which tasks can be used.
    Tasks {
        /// Rows and built-in tasks there are.
        rows: usize,
        /// Those that can be used, as far as they were looked at.
        usable: usize,
        /// Those that were tried with their own solutions.
        tried: usize,
        /// The others, by reason.
        refused: Vec<Refused>,
    },
    /// The student was asked once.
    Turn {
        /// The episode.
        id: String,
        /// Which of its turns, from 0.
        turn: usize,
        /// Tokens sent and sampled, or why there was no answer.
        tokens: Result<(u64, u64), String>,
        /// How long it took.
        seconds: f64,
    },
    /// An episode is about to be read.
    Reading {
        /// The episode.
        id: String,
        /// Its steps.
        steps: usize,
    },
    /// An episode is about to be asked for.
    Begun {
        /// The episode.
        id: String,
        /// Scores to ask for.
        scores: u64,
        /// Tokens they are expected to make the model compute.
        tokens: u64,
    },
    /// A score is there, or will never be. Only for those who look on.
    Settled {
        /// The episode.
        id: String,
        /// Its share of the tokens.
        tokens: u64,
    },
    /// Nothing more will be done for an episode that was to be scored.
    Scored {
        /// The episode.
        id: String,
        /// What became of it, in words.
        text: String,
        /// The same by name.
        keys: Value,
    },
    /// How far the work is.
    Progress {
        /// What is made, in the singular.
        unit: &'static str,
        /// How many of them have ended.
        done: u64,
        /// Of how many.
        of: u64,
        /// What else there is to tell; may be empty.
        text: String,
    },
    /// Something that cannot be used, and why.
    Lost(String),
    /// Something a person should know that is no failure.
    Note(String),
    /// Something a person must know before trusting what is made; its last line may say `help:`.
    Warning(String),
    /// The run was stopped before all was done.
    Stopped(String),
    /// A process ended its work on the run.
    Ended {
        /// Episodes there are.
        made: u64,
        /// Episodes that failed.
        lost: u64,
        /// Episodes not come to.
        left: u64,
        /// How long it took.
        seconds: f64,
    },
}

/// Tasks that are refused for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The reason.
    pub why: String,
    /// How many.
    pub n: usize,
    /// Where the first is found.
    pub first: String,
}

impl Event {
    /// As an object: when, what, and the rest by name.
    pub fn to_json(&self, time: f64) -> Value {
        let (name, keys) = match self {
            Self::Began { stage, model, asked, found, .. } => {
                ("began", json!({"stage": stage, "model": model, "asked": asked, "found": found}))
            }
            Self::Episode { id, nth, asked, reward, solved, stop, steps, seconds } => (
                "episode",
                json!({"id": id, "nth": nth, "asked": asked, "reward": reward.as_ref().ok(),
                       "error": reward.as_ref().err(), "solved": solved, "stop": stop, "steps": steps,
                       "seconds": rounded(*seconds)}),
            ),
            Self::Step { id, step } => ("step", json!({"id": id, "step": step})),
            Self::Retry { id, why, nth, of } => {
                ("retry", json!({"id": id, "why": why, "nth": nth, "of": of}))
            }
            Self::Tasks { rows, usable, tried, refused } => {
                let row = |it: &Refused| json!({"why": it.why, "n": it.n, "first": it.first});
                let refused: Vec<Value> = refused.iter().map(row).collect();
                ("tasks", json!({"rows": rows, "usable": usable, "tried": tried, "refused": refused}))
            }
            Self::Turn { id, turn, tokens, seconds } => (
                "turn",
                json!({"id": id, "turn": turn, "sent": tokens.as_ref().ok().map(|it| it.0),
                       "sampled": tokens.as_ref().ok().map(|it| it.1), "error": tokens.as_ref().err(),
                       "seconds": rounded(*seconds)}),
            ),
            Self::Reading { id, steps } => ("reading", json!({"episode": id, "steps": steps})),
            Self::Begun { id, scores, tokens } => {
                ("begun", json!({"episode": id, "scores": scores, "tokens": tokens}))
            }
            Self::Settled { id, tokens } => ("settled", json!({"episode": id, "tokens": tokens})),
            Self::Scored { keys, .. } => ("episode", keys.clone()),
            Self::Progress { done, of, text, .. } => {
                ("progress", json!({"done": done, "of": of, "text": text}))
            }
            Self::Lost(text) => ("lost", json!({"text": text})),
            Self::Note(text) => ("note", json!({"text": text})),
            Self::Warning(text) => match text.split_once("\nhelp: ") {
                Some((text, help)) => ("warning", json!({"text": text, "help": help})),
                None => ("warning", json!({"text": text})),
            },
            Self::Stopped(why) => ("stopped", json!({"why": why})),
            Self::Ended { made, lost, left, seconds } => {
                ("ended", json!({"made": made, "lost": lost, "left": left, "seconds": rounded(*seconds)}))
            }
        };
        let mut event = json!({"time": rounded(time), "event": name});
        if let (Value::Object(event), Value::Object(keys)) = (&mut event, keys) {
            event.extend(keys);
        }
        event
    }

    /// As a line for people.
    pub fn line(&self) -> String {
        match self {
            Self::Began { stage, model, unit, asked, found } => {
                let found = match found {
                    0 => String::new(),
                    1 => ", 1 of them is there already".to_owned(),
                    n => format!(", {n} of them are there already"),
                };
                format!("{stage}: {} with {model}{found}", counted(*asked as u64, unit))
            }
            Self::Episode { id, nth, asked, reward: Err(why), .. } => {
                format!("{nth} of {asked}  {id}  LOST: {}", why.lines().next().unwrap_or_default())
            }
            Self::Episode { id, nth, asked, reward: Ok(reward), solved, stop, steps, seconds } => {
                let solved = if *solved { "solved" } else { "not solved" };
                let stop = stop.unwrap_or("ended").replace('_', " ");
                let steps = counted(*steps as u64, "step");
                format!(
                    "{nth} of {asked}  {id}  reward {reward:.3}, {solved}, {steps} ({stop}), {seconds:.1} s"
                )
            }
            Self::Step { id, step } => format!("{id}  step {step} has ended"),
            Self::Retry { id, why, nth, of } => format!("{id}  run again ({nth} of {of}): {why}"),
            Self::Tasks { rows, usable, tried, refused } => {
                let n_refused: usize = refused.iter().map(|it| it.n).sum();
                let tried = if_any(*tried as u64, |n| {
                    format!("; {} tried with their own solutions", counted(n, "task"))
                });
                let line = |it: &Refused| format!("\n  {} refused: {} (first: {})", it.n, it.why, it.first);
                let rest: String = refused.iter().map(line).collect();
                format!("tasks: {usable} of {rows} usable, {n_refused} refused{tried}{rest}")
            }
            Self::Turn { id, turn, tokens: Ok((sent, sampled)), seconds } => {
                format!("{id}  turn {turn}: {sent} tokens sent, {sampled} sampled, {seconds:.2} s")
            }
            Self::Turn { id, turn, tokens: Err(why), seconds } => {
                format!("{id}  turn {turn}: {}, {seconds:.2} s", why.lines().next().unwrap_or_default())
            }
            Self::Reading { id, steps } => format!("{id}: reading {}", counted(*steps as u64, "step")),
            Self::Begun { id, scores, .. } => format!("{id}: {} to come", counted(*scores, "score")),
            Self::Settled { id, .. } => format!("{id}: a score is settled"),
            Self::Scored { id, text, .. } => format!("{id}: {text}"),
            Self::Progress { unit, done, of, text } if text.is_empty() => {
                format!("{done} of {} so far", counted(*of, unit))
            }
            Self::Progress { unit, done, of, text } => format!("{done} of {}, {text}", counted(*of, unit)),
            Self::Lost(text) => format!("lost: {text}"),
            Self::Note(text) => format!("note: {text}"),
            Self::Warning(text) => format!("warning: {text}"),
            Self::Stopped(why) => format!("stopped: {why}"),
            Self::Ended { made, lost, left, seconds } => {
                format!("{} made, {lost} lost, {left} left, {seconds:.1} s", counted(*made, "episode"))
            }
        }
    }
}

/// So many of something: `1 step`, `2 steps`.
pub fn counted(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// What is said of so many; nothing of none.
pub fn if_any(n: u64, said: impl FnOnce(u64) -> String) -> String {
    if n > 0 { said(n) } else { String::new() }
}

/// Milliseconds are enough.
pub fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_a_time_a_name_and_their_own_keys() {
        let lost = Event::Episode {
            id: "flatten-1".to_owned(),
            nth: 2,
            asked: 8,
            reward: Err("server gone\nhelp: start it".to_owned()),
            solved: false,
            stop: Some("failed"),
            steps: 3,
            seconds: 1.23456,
        };
        let json = lost.to_json(17.0004);
        assert_eq!(json["time"], json!(17.0));
        assert_eq!(
            (&json["event"], &json["reward"], &json["seconds"]),
            (&json!("episode"), &Value::Null, &json!(1.235))
        );
        assert_eq!(lost.line(), "2 of 8  flatten-1  LOST: server gone");
        let warning = Event::Warning("no walls\nhelp: build some".to_owned()).to_json(1.0);
        assert_eq!(
            warning,
            json!({"time": 1.0, "event": "warning", "text": "no walls", "help": "build some"})
        );
    }

    #[test]
    fn one_is_no_plural() {
        let began = |asked, found| {
            Event::Began { stage: "collect", model: "m".to_owned(), unit: "episode", asked, found }.line()
        };
        assert_eq!(began(1, 0), "collect: 1 episode with m");
        assert_eq!(began(2, 1), "collect: 2 episodes with m, 1 of them is there already");
        let ended = Event::Ended { made: 1, lost: 0, left: 0, seconds: 1.0 };
        assert_eq!(ended.line(), "1 episode made, 0 lost, 0 left, 1.0 s");
    }
}
