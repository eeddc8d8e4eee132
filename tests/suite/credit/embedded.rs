//! The embedded model, and the same model served: three ways to the same credit.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use backsight::credit::hcapo::mean_logprob;
use backsight::engine::engine::Engine;
use backsight::lens::{OUTCOME_TEMPLATE, Placement};
use backsight::score::ScoreJob;
use backsight::tokens::TokenSpan;
use serde_json::{Value, json};

use crate::credit::numbers::alone;
use crate::credit::place::{KEEPS, Place};
use crate::support::tiny::write_model;

/// A server in a process of its own, ended with the test.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start(place: &Place, personality: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command.current_dir(place.path(".")).args([
            "model",
            "serve",
            "--model",
            "model",
            "--port",
            "0",
            "--as",
            personality,
        ]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split_whitespace().find(|word| word.starts_with("http")).unwrap().to_owned();
        Self { child, url }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn place() -> Place {
    let place = Place::empty(KEEPS);
    write_model(&place.path("model"), json!({"max_position_embeddings": 2048}));
    place.write("model/chat_template.jinja", KEEPS);
    for n in 1..4 {
        place.write_talk(&format!("episode_{n}"), 2 + 2 * n);
    }
    place
}

fn means(place: &Place, key: &str) -> Vec<f64> {
    let of = |n: usize| place.scores(&format!("episode_{n}"))["steps"].as_array().unwrap().clone();
    let number = |step: &Value| step[key].as_f64().unwrap_or_else(|| panic!("{step}"));
    (1..4).flat_map(|n| of(n).iter().map(number).collect::<Vec<_>>()).collect()
}

/// Each step scored alone, by an engine that has seen nothing else.
fn expected(place: &Place, placement: Option<Placement>) -> Vec<f64> {
    let steps = (1..4).flat_map(|n| alone(place, &format!("episode_{n}"), placement, OUTCOME_TEMPLATE));
    let mean = |step: crate::credit::numbers::Alone| {
        let span = TokenSpan::at(step.context.len(), step.action.len());
        let job = ScoreJob::new(Arc::from(step.tokens()), vec![span], 0).unwrap();
        let scored = Engine::load(&place.path("model")).unwrap().score(&job).unwrap();
        mean_logprob(scored.spans[0].logprobs()).unwrap()
    };
    steps.map(mean).collect()
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_credit_is_that_of_each_step_alone_to_the_last_bit() {
    for placement in [Placement::First, Placement::Last] {
        let place = place();
        let arguments = [
            "--input-dir",
            "episodes",
            "--kind",
            "embedded",
            "--model",
            "model",
            "--ratio",
            "lift",
            "--placement",
            placement.name(),
        ];
        place.run(&arguments).await.expect(0);
        assert_eq!(means(&place, "mean_logprob"), expected(&place, Some(placement)));
        assert_eq!(means(&place, "plain_mean_logprob"), expected(&place, None));
        let cached = place.summary()["tokens"]["cached"].as_u64().unwrap();
        assert!(placement == Placement::First || cached > 0, "branches find their trunk");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_model_served_gives_the_same_credit() {
    let place = place();
    let expected = expected(&place, Some(Placement::First));
    for personality in ["sglang", "vllm"] {
        let served = Served::start(&place, personality);
        let arguments =
            ["--input-dir", "episodes", "--url", &served.url, "--tokenizer", "model", "--overwrite"];
        place.run(&arguments).await.expect(0);
        let difference = largest_difference(&means(&place, "mean_logprob"), &expected);
        assert!(difference <= 1e-5, "{personality}: {difference}");
        assert_eq!(place.summary()["made"]["episodes"], 3);
    }
}
