//! Hints from outside, for `--lens hint`: our own format, a JSON object a line.
//!
//! `{"episode_id": "a", "step_idx": 0, "hint": "…"}`, or `messages` in place of `hint`: an exchange as in OpenAI's chat
//! API. A step that is named twice is a fault: which of the two is meant, nobody can tell.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::fault::Fault;
use backsight_chat::messages;
use backsight_core::lens::Given;

/// One line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    episode_id: String,
    step_idx: usize,
    hint: Option<String>,
    messages: Option<Vec<Value>>,
}

/// Reads the text of a file; empty lines are passed over.
pub fn read(text: &str) -> Result<HashMap<(String, usize), Given>, Fault> {
    let mut given = HashMap::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (idx, line) in lines {
        let row: Row = serde_json::from_str(line).map_err(|error| Fault::at(idx + 1, error))?;
        let place = (row.episode_id.clone(), row.step_idx);
        if given.insert(place, words(row).map_err(|why| Fault::at(idx + 1, why))?).is_some() {
            return Err(Fault::at(idx + 1, "the step has a hint already"));
        }
    }
    Ok(given)
}

fn words(row: Row) -> Result<Given, String> {
    match (row.hint, row.messages) {
        (Some(hint), None) if !hint.trim().is_empty() => Ok(Given::Text(hint)),
        (None, Some(exchange)) if !exchange.is_empty() => {
            let read = exchange.iter().map(|it| messages::from_json(it).map_err(|error| error.to_string()));
            read.collect::<Result<_, _>>().map(Given::Exchange)
        }
        _ => Err("a step has a `hint` that says something, or `messages`".to_owned()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_faults_say_where() {
        let text = "{\"episode_id\": \"a\", \"step_idx\": 2, \"hint\": \"look first\"}\n\n\
                    {\"episode_id\": \"a\", \"step_idx\": 3, \"messages\": [{\"role\": \"user\", \"content\": \"?\"}]}\n";
        let given = read(text).unwrap();
        assert_eq!(given[&("a".to_owned(), 2)], Given::Text("look first".to_owned()));
        assert!(matches!(&given[&("a".to_owned(), 3)], Given::Exchange(messages) if messages.len() == 1));
        let wrong = |line: &str| read(&format!("{text}{line}")).unwrap_err().to_string();
        assert_eq!(wrong(text), "line 4: the step has a hint already");
        assert!(wrong("{\"episode_id\": \"b\", \"step_idx\": 0}").starts_with("line 4: a step has a `hint`"));
        assert!(wrong("{").starts_with("line 4: "));
    }
}
