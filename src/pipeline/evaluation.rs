//! What an evaluation came to, in the published layout: `metrics.json` and `samples.jsonl`.
//!
//! Pure. Owns both files' shape. An attempt that failed has no numbers: its line says why, and it is in
//! no mean, where the published environment counts it as wrong.

use serde_json::{Map, Value, json};

use super::slots::Slot;
use crate::event::rounded;
use crate::metrics::{self, Digest};

/// The name the published environment gives to its evaluation.
const NAME: &str = "atropos|agentic-opd_eval|0";
/// How much of a prompt a sample shows.
const PROMPT_CHARS: usize = 200;

/// Seconds that processes have worked on an evaluation, by what they wrote down: each from its beginning to its
/// last word. One that found everything there already did not work on it.
pub fn seconds_worked(events: &[Value]) -> f64 {
    let time = |event: &Value| event["time"].as_f64().unwrap_or_default();
    let worked = |process: &[Value]| {
        let (first, last) = (process.first()?, process.last()?);
        let has_worked = first["event"] == "began" && first["found"] != first["asked"];
        let told = last["seconds"].as_f64().filter(|_| last["event"] == "ended");
        has_worked.then(|| told.unwrap_or(time(last) - time(first)))
    };
    rounded(events.chunk_by(|_, next| next["event"] != "began").filter_map(worked).sum())
}

/// The metrics by their published names.
pub fn metrics(slots: &[Slot], digests: &[Option<Digest>]) -> Map<String, Value> {
    let attempts: Vec<_> = slots.iter().zip(digests).collect();
    let tasks = attempts.chunk_by(|(a, _), (b, _)| a.group == b.group);
    let tasks: Vec<Vec<&Digest>> =
        tasks.map(|of| of.iter().filter_map(|it| it.1.as_ref()).collect()).collect();
    metrics::eval(&tasks)
}

/// `metrics.json`; `generation` are the parameters with which the model was asked for so many seconds.
pub fn metrics_file(model: &str, generation: &Value, seconds: f64, metrics: &Map<String, Value>) -> Value {
    json!({
        "config_general": {
            "model_name": model,
            "total_evaluation_time_seconds": seconds.to_string(),
            "generation_parameters": generation,
        },
        "results": {NAME: metrics, "all": metrics},
    })
}

/// `samples.jsonl`.
pub fn samples_file(slots: &[Slot], digests: &[Option<Digest>]) -> String {
    let rows = slots.iter().zip(digests).filter_map(|(slot, digest)| Some((slot, digest.as_ref()?)));
    rows.map(|(slot, digest)| format!("{}\n", sample(slot, digest))).collect()
}

/// As published, the prompt is what the task asks, without the words around it.
fn sample(slot: &Slot, digest: &Digest) -> Value {
    let prompt: String = slot.task.asked.chars().take(PROMPT_CHARS).collect();
    let reward = digest.outcome.as_ref().ok().map(|it| it.reward);
    let mut sample = json!({
        "prompt": prompt, "response": digest.response, "correctness": digest.correctness(), "reward": reward,
        "turns": digest.steps, "id": digest.id, "task": digest.task, "stop": digest.stop,
    });
    if let Err(why) = &digest.outcome {
        sample["error"] = json!(why);
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use crate::pipeline::slots::groups;
    use crate::pipeline::slots::tests::task;
    use backsight_core::episode::Outcome;

    fn digest(id: &str, correctness: Option<f64>) -> Option<Digest> {
        let numbers =
            |it: f64| Outcome { reward: it * 0.7, components: vec![("correctness".to_owned(), it)] };
        Some(Digest {
            id: id.to_owned(),
            task: "t".to_owned(),
            outcome: correctness.map(numbers).ok_or_else(|| "gone".to_owned()),
            stop: Some("answered"),
            steps: 3,
            response: "Done.".to_owned(),
            is_exact: true,
            versions: BTreeSet::new(),
        })
    }

    #[test]
    fn the_time_of_all_processes_counts_and_that_of_looking_does_not() {
        let began =
            |time: f64, found: u64| json!({"time": time, "event": "began", "asked": 3, "found": found});
        let episode = |time: f64| json!({"time": time, "event": "episode", "seconds": 99.0});
        let ended = |time: f64, seconds: f64| json!({"time": time, "event": "ended", "seconds": seconds});
        assert_eq!(seconds_worked(&[]), 0.0);
        // The first was killed, the second finished, the third found nothing to do.
        let killed = [json!({"event": "note"}), began(10.0, 0), episode(12.5)];
        let finished = [began(100.0, 1), episode(101.0), episode(102.0), ended(103.0, 3.25)];
        let nothing = [began(200.0, 3), ended(201.0, 1.0)];
        assert_eq!(seconds_worked(&[&killed[..], &finished, &nothing].concat()), 5.75);
    }

    #[test]
    fn the_files_have_the_published_keys() {
        let slots = groups(&[task("a"), task("b")], 2, 2);
        let digests = [
            digest("a-0", Some(1.0)),
            digest("a-1", Some(0.2)),
            digest("b-0", Some(0.2)),
            digest("b-1", None),
        ];
        let found = metrics(&slots, &digests);
        assert_eq!((&found["eval/n_items"], &found["eval/n_attempts"]), (&json!(2), &json!(3)));
        assert_eq!(found["eval/pass@1"], json!(0.25));
        let file = metrics_file("m", &json!({"max_new_tokens": 2048}), 1.5, &found);
        assert_eq!(file["config_general"]["total_evaluation_time_seconds"], json!("1.5"));
        assert_eq!(file["results"]["all"], file["results"]["atropos|agentic-opd_eval|0"]);
        let samples = samples_file(&slots, &digests);
        let rows: Vec<Value> = samples.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[0]["prompt"].as_str().map(str::len), Some(200));
        assert_eq!((&rows[3]["correctness"], &rows[3]["error"]), (&Value::Null, &json!("gone")));
    }
}
