//! The recorded outcome texts, byte for byte, and our own.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight::credit::subtasks::read_plan;
use backsight::episode::Progress;
use backsight::lens::{OUTCOME_TEMPLATE, OutcomeFacts, Template};
use expect_test::expect;
use serde_json::Value;

fn facts(case: &Value) -> OutcomeFacts {
    let episode = &case["episode"];
    let scores = episode["frozen_scores"].as_object().unwrap();
    OutcomeFacts {
        reward: episode["reward"].as_f64().unwrap(),
        progress: Progress {
            phase: episode["phase"].as_str().map(str::to_owned),
            plan_score: episode["plan_score"].as_f64(),
            plan: episode["plan"].as_array().map(|plan| read_plan(plan).unwrap()),
            subtask_scores: scores.iter().map(|(id, score)| (id.clone(), score.as_f64().unwrap())).collect(),
            ..Progress::default()
        },
        completed: 1,
        current_subtask: case["current_subtask"].as_str().unwrap().to_owned(),
        current_score: case["current_subtask_score"].as_f64(),
    }
}

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("fixtures/hcapo/hindsight_text_cases.json")).unwrap()
}

#[test]
fn the_published_template_gives_the_recorded_texts() {
    let template = Template::parse(include_str!("fixtures/hcapo/hindsight_template.txt")).unwrap();
    assert!(matches!(template, Template::Python(_)));
    assert_eq!(cases().len(), 4);
    for case in cases() {
        assert_eq!(template.render(&facts(&case)).unwrap(), case["expected"].as_str().unwrap());
    }
}

#[test]
fn our_own_template() {
    let template = Template::parse(OUTCOME_TEMPLATE).unwrap();
    let texts: Vec<_> = cases().iter().map(|case| template.render(&facts(case)).unwrap()).collect();
    expect![[r#"
        [Hindsight, unseen by whoever acted]
        Final reward 0.539, phase DONE, plan 0.817.
        Subtasks: S1 0.450, S2 0.200 (1 of 2 finished).
        The action to judge belongs to S1, rated 0.450."#]]
    .assert_eq(&texts[0]);
    let mut bare = facts(&cases()[1]);
    bare.current_score = None;
    expect![[r#"
        [Hindsight, unseen by whoever acted]
        Final reward 1.000."#]]
    .assert_eq(&template.render(&bare).unwrap());
}
