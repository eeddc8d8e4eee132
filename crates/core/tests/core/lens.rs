//! The recorded outcome texts, byte for byte, and our own.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight_core::episode::Progress;
use backsight_core::lens::{OUTCOME_TEMPLATE, OutcomeFacts, Wording};
use backsight_core::subtasks::read_plan;
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
    serde_json::from_str(include_str!("../../../../tests/fixtures/hcapo/hindsight_text_cases.json")).unwrap()
}

#[test]
fn the_published_template_gives_the_recorded_texts() {
    let template =
        Wording::parse(include_str!("../../../../tests/fixtures/hcapo/hindsight_template.txt")).unwrap();
    assert!(matches!(template, Wording::Python(_)));
    assert_eq!(cases().len(), 4);
    for case in cases() {
        assert_eq!(template.render(&facts(&case)).unwrap(), case["expected"].as_str().unwrap());
    }
}

#[test]
fn our_own_template() {
    let template = Wording::parse(OUTCOME_TEMPLATE).unwrap();
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

/// What a template makes of the first recorded case, or why it makes nothing.
fn check(template: &str, expected: &str) {
    let found = Wording::parse(template).and_then(|it| it.render(&facts(&cases()[0])));
    let found = found.unwrap_or_else(|error| format!("error: {error}"));
    assert_eq!(found.split("; the ").next().unwrap(), expected, "{template:?}");
}

#[test]
fn the_language_is_told_by_single_braces() {
    check("{{reward}} in {{ phase }}", "0.5391 in DONE");
    check("{{reward|fixed(2)}}", "0.54");
    check("{%if reward%}yes{%endif%}", "yes");
    check("{reward:.2f} in {phase}", "0.54 in DONE");
    check("{{\"reward\": {reward:.1f}}}", "{\"reward\": 0.5}");
    check("{{{reward:.1f}}}", "{0.5}");
    check("no field at all, {\"json\": 1}", "no field at all, {\"json\": 1}");
    check("\u{feff}{{ phase }}", "DONE");
}

#[test]
fn templates_that_would_say_something_else_are_refused() {
    let mixed = |field: &str| {
        format!(
            "error: `{{{field}}}` is a field of the Python format, in a minijinja template; write `{{{{ {field} }}}}`, or all fields with single braces"
        )
    };
    let check_mixed = |template: &str, field: &str| {
        assert_eq!(Wording::parse(template).unwrap_err().to_string(), mixed(field)[7..], "{template}");
    };
    check_mixed("{reward:.4f} and {{ phase }}", "reward");
    check_mixed("{{reward}} and {phase}", "phase");
    check_mixed("{% if reward %}{plan_score}{% endif %}", "plan_score");
    check_mixed("{# note #}{reward}", "reward");
    check("{rewrad:.4f}", "error: unknown field `{rewrad}`");
    check("{{ rewrad }}", "error: unknown name `rewrad`");
    check(
        "one\n{{ reward + phase }}",
        "error: line 2: tried to use + operator on unsupported types number and string",
    );
    check("{{ reward", "error: line 1: unexpected end of input, expected end of variable block");
    check("{{ phase | nofilter }}", "error: line 1: filter nofilter is unknown");
    check("", "error: the template is empty");
    check(" \n", "error: the template is empty");
}
