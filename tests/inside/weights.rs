//! How small a change of the weights is noticed on a server that computes in single precision.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight::model::probe::PROBE_TEXT;
use backsight::store::{Fingerprint, Identity};
use backsight_engine::model::Embedded;
use serde_json::json;

use crate::inside::support::tiny::write_moved;

async fn measured(step: f32) -> Fingerprint {
    let dir = tempfile::tempdir().unwrap();
    write_moved(dir.path(), json!({}), step);
    let model = Embedded::load(dir.path(), None).unwrap();
    let probe = model.tokenizer().unwrap().encode(PROBE_TEXT).unwrap().ids;
    Fingerprint::measure(&model, Identity::default(), &probe).await.unwrap()
}

/// A step of an optimiser with the small rate of reinforcement learning moves each weight by a millionth.
#[tokio::test]
async fn one_small_step_of_an_optimiser_is_noticed() {
    let before = measured(0.0).await;
    assert!(before.agrees(&measured(0.0).await, 0.0), "the same weights are the same");
    let after = measured(1e-6).await;
    let by = before.mean_difference(&after).unwrap();
    assert!(!before.agrees(&after, 0.0), "it differs by {by:e}");
}
