//! What happened, as data.
//!
//! Owns [`Event`] and its two forms: a JSON object for files and machines, a line for people. Keeping
//! events is `store`'s business, showing them that of the command line.

use serde_json::{Map, Value, json};

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A process began to work on the run.
    Began {
        /// The command.
        command: String,
        /// The model, and what it is behind.
        model: String,
        /// Episodes asked for.
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
    /// Something a person should know that is no failure.
    Note(String),
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

impl Event {
    /// As an object: when, what, and the rest by name.
    pub fn to_json(&self, time: f64) -> Value {
        let (name, keys) = match self {
            Self::Began { command, model, asked, found } => {
                ("began", json!({"command": command, "model": model, "asked": asked, "found": found}))
            }
            Self::Episode { id, nth, asked, reward, solved, stop, steps, seconds } => (
                "episode",
                json!({"id": id, "nth": nth, "asked": asked, "reward": reward.as_ref().ok(),
                       "error": reward.as_ref().err(), "solved": solved, "stop": stop, "steps": steps,
                       "seconds": rounded(*seconds)}),
            ),
            Self::Note(text) => ("note", json!({"text": text})),
            Self::Stopped(why) => ("stopped", json!({"why": why})),
            Self::Ended { made, lost, left, seconds } => {
                ("ended", json!({"made": made, "lost": lost, "left": left, "seconds": rounded(*seconds)}))
            }
        };
        let mut object: Map<String, Value> =
            [("time".to_owned(), json!(rounded(time))), ("event".to_owned(), json!(name))]
                .into_iter()
                .collect();
        object.extend(keys.as_object().cloned().unwrap_or_default());
        Value::Object(object)
    }

    /// As a line for people.
    pub fn line(&self) -> String {
        match self {
            Self::Began { command, model, asked, found: 0 } => {
                format!("{command}: {asked} episodes with {model}")
            }
            Self::Began { command, model, asked, found } => {
                format!("{command}: {asked} episodes with {model}, {found} of them are there already")
            }
            Self::Episode { id, nth, asked, reward: Err(why), .. } => {
                format!("{nth} of {asked}  {id}  LOST: {}", why.lines().next().unwrap_or_default())
            }
            Self::Episode { id, nth, asked, reward: Ok(reward), solved, stop, steps, seconds } => {
                let solved = if *solved { "solved" } else { "not solved" };
                let stop = stop.unwrap_or("ended").replace('_', " ");
                format!(
                    "{nth} of {asked}  {id}  reward {reward:.3}, {solved}, {steps} steps ({stop}), {seconds:.1} s"
                )
            }
            Self::Note(text) => format!("note: {text}"),
            Self::Stopped(why) => format!("stopped: {why}"),
            Self::Ended { made, lost, left, seconds } => {
                format!("{made} episodes made, {lost} lost, {left} left, {seconds:.1} s")
            }
        }
    }
}

/// Milliseconds are enough.
fn rounded(seconds: f64) -> f64 {
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
    }
}
