//! The library as a stranger uses it: an episode of their own, a model, a lens, and what each step was worth.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use backsight::chat::tokenizer::Tokenizer;
use backsight::credit::hcapo::{Params, StepScore, credit, mean_logprob};
use backsight::engine::model::Embedded;
use backsight::episode::{Episode, Message, Outcome, Role, Task, steps_of};
use backsight::lens::{Lenses, OUTCOME_TEMPLATE, OutcomeLens, Placement, Wording};
use backsight::model::{Error, JobScores, Model, score_planned};
use backsight::pipeline::{Framing, Reader, Texts, outline};
use backsight::score::ScoreJob;
use serde_json::{Map, json};

use crate::support::tiny::write_model;

fn episode() -> Episode {
    let said = [
        (Role::User, "Count to three."),
        (Role::Assistant, "one two"),
        (Role::User, "Go on."),
        (Role::Assistant, "three"),
    ];
    let messages = said.map(|(role, text)| Message::text(role, text)).to_vec();
    let task = Task { id: "count".into(), prompt: "Count to three.".into(), difficulty: None };
    let mut episode = Episode::new("mine", task, messages);
    episode.outcome = Ok(Outcome { reward: 1.0, components: Vec::new() });
    let steps = steps_of(&episode.messages);
    episode.set_steps(steps).unwrap();
    episode
}

/// One job for each action: its tokens behind a context that knows how the episode ended.
fn jobs(model_dir: &Path, episode: &Episode) -> Vec<ScoreJob> {
    let tokenizer = Arc::new(Tokenizer::open(model_dir).unwrap());
    let texts = Texts::open(model_dir, tokenizer, None, &Map::new()).unwrap();
    let framing = Framing::default();
    let template = Wording::parse(OUTCOME_TEMPLATE).unwrap();
    let lens = OutcomeLens { template, placement: Placement::First };
    let lenses = Lenses::default().and(Arc::new(lens), 0);
    let reader = Reader { texts: &texts, framing: &framing, limit: None };
    let read =
        reader.read(episode, &outline(episode, &framing, &lenses, &|text| texts.n_tokens(text)).unwrap());
    let seen = read.steps.iter().map(|step| step.as_ref().unwrap().view(0).unwrap().as_ref().unwrap());
    let tokens = |tip| Arc::from(read.tree.all(tip));
    seen.map(|seen| ScoreJob::new(tokens(seen.tip), vec![seen.action(0)], 0).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_of_ones_own_gets_its_credit() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path(), json!({}));
    let model: Arc<dyn Model> = Arc::new(Embedded::load(dir.path(), None).unwrap());
    let episode = episode();
    let jobs = jobs(dir.path(), &episode);

    let mut means = vec![None; jobs.len()];
    let mut settle = |idx: usize, scores: Result<JobScores, Error>| {
        means[idx] = mean_logprob(scores.unwrap().spans[0].logprobs());
        ControlFlow::Continue(())
    };
    assert_eq!(score_planned(&model, &jobs, &mut settle).await.stopped_by, None);
    for (job, mean) in jobs.iter().zip(&means) {
        let alone = model.score(job).await.unwrap();
        assert_eq!(mean_logprob(alone.spans[0].logprobs()), *mean, "a plan changes no number");
    }

    let score = |lens: &Option<f64>| StepScore { lens: *lens, plain: None, group: "all", reward: None };
    let steps: Vec<_> = means.iter().map(score).collect();
    let found = credit(&steps, 1.0, &Params::default());
    assert_eq!(found.steps.len(), 2);
    assert!(found.steps.iter().all(|step| step.is_ok_and(|it| it.q_h > 0.0)), "{found:?}");
}
