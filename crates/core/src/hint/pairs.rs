//! An action with its next state: what the world answered to it.

use std::collections::BTreeMap;

use crate::episode::{Content, Episode, Message, Role, Step, Verification};
use crate::named;

/// Which actions are paired, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// Every action, with everything that answered it; the last one with what the tests found.
    Actions,
    /// The published rule: actions with prose, with the tools' results behind them and one user message at most.
    Prose,
}

named!(Pairs: Actions = "actions", Prose = "prose");

/// One part of a next state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Who says it: a message's role, or `tests`.
    pub role: &'static str,
    /// The tool's name, where it is known.
    pub name: Option<String>,
    /// What is said, cut to what a judge is shown.
    pub text: String,
}

/// An action and what it led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The step whose action it is.
    pub step: usize,
    /// What the world answered, in order; never blank altogether.
    pub next: Vec<Said>,
}

impl Pair {
    /// The next state in one text, as published.
    pub fn text(&self) -> String {
        self.next.iter().map(|said| said.text.as_str()).collect::<Vec<_>>().join("\n---\n")
    }
}

/// The pairs of an episode, in order; of each message, at most `max_chars` characters are shown.
pub fn pairs(episode: &Episode, which: Pairs, max_chars: usize) -> Vec<Pair> {
    let of_step = |(idx, step): (usize, &Step)| {
        let next = match which {
            Pairs::Actions => everything(episode, idx, step, max_chars),
            Pairs::Prose => prose(&episode.messages, step, max_chars),
        };
        let is_blank = next.iter().all(|said| said.text.trim().is_empty());
        (!is_blank).then_some(Pair { step: idx, next })
    };
    episode.steps().iter().enumerate().filter_map(of_step).collect()
}

fn everything(episode: &Episode, idx: usize, step: &Step, max_chars: usize) -> Vec<Said> {
    let answers = episode.messages[step.next_state.clone()].iter();
    let answers = answers.filter(|message| matches!(message.role, Role::Tool | Role::User));
    let said = answers.filter_map(|message| said(message, |text| cut_middle(text, max_chars)));
    let is_last = idx + 1 == episode.steps().len();
    let tests = episode.verification.as_ref().filter(|_| is_last).map(|found| Said {
        role: "tests",
        name: None,
        text: verdict_of_tests(found),
    });
    said.chain(tests).collect()
}

fn prose(messages: &[Message], step: &Step, max_chars: usize) -> Vec<Said> {
    if text_of(&messages[step.message_idx]).is_empty() {
        return Vec::new();
    }
    let answers = &messages[step.next_state.clone()];
    let n_results = answers.iter().take_while(|message| message.role == Role::Tool).count();
    let has_reply = answers.get(n_results).is_some_and(|message| message.role == Role::User);
    let taken = &answers[..n_results + usize::from(has_reply)];
    taken.iter().filter_map(|message| said(message, |text| cut_end(text, max_chars))).collect()
}

fn said(message: &Message, cut: impl Fn(&str) -> String) -> Option<Said> {
    let text = text_of(message);
    let said = || Said { role: message.role.name(), name: message.name.clone(), text: cut(&text) };
    (!text.is_empty()).then(said)
}

fn text_of(message: &Message) -> String {
    message.content.as_ref().map(Content::text).unwrap_or_default()
}

/// What a judge may know of hidden tests: how many assertions held, and what kinds of errors the others met. Their
/// text is for nobody.
pub fn verdict_of_tests(found: &Verification) -> String {
    let (passed, failed) = (found.n_passed, found.n_failed);
    let mut lines = vec![format!("Hidden tests were run: {passed} assertions held, {failed} did not.")];
    if let Some(error) = &found.error {
        let why = kind_of(error).map_or_else(String::new, |kind| format!(": {kind}"));
        lines.push(format!("They did not come to their end{why}."));
    }
    let mut kinds = BTreeMap::<&str, usize>::new();
    for kind in found.assertions.iter().filter(|it| !it.passed).filter_map(|it| kind_of(&it.detail)) {
        *kinds.entry(kind).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{kind} ({n})")).collect();
    if !kinds.is_empty() {
        lines.push(format!("Errors in assertions that did not hold: {}.", kinds.join(", ")));
    }
    lines.join("\n")
}

/// The name of the exception that a text begins with.
fn kind_of(text: &str) -> Option<&str> {
    let name = text.split([':', ' ', '(', '\n']).next()?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
    let is_error =
        ["Error", "Exception", "Exit", "Interrupt", "Iteration"].iter().any(|it| name.ends_with(it));
    (is_name && is_error && name.len() <= 60).then_some(name)
}

/// The first `max_chars` characters, and a mark where there were more: as published.
fn cut_end(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}\n...[truncated]", &text[..end]),
    }
}

/// The first and the last of `max_chars` characters, with a mark between them that says how many are left out.
pub fn cut_middle(text: &str, max_chars: usize) -> String {
    let n_chars = text.chars().count();
    if n_chars <= max_chars {
        return text.to_owned();
    }
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let head = max_chars.div_ceil(2);
    let (head_end, tail_start) = (at(head), at(n_chars - (max_chars - head)));
    let left_out = n_chars - max_chars;
    format!("{}\n...[{left_out} characters left out]...\n{}", &text[..head_end], &text[tail_start..])
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::Value;

    use super::super::recorded;
    use super::*;
    use crate::episode::{Arguments, Assertion, Task, ToolCall, steps_of};

    fn message(value: &Value) -> Message {
        let role = Role::from_name(value["role"].as_str().unwrap()).unwrap();
        let mut message = Message::text(role, value["content"].as_str().unwrap());
        if value.get("tool_calls").is_some() {
            let arguments = Arguments::Text(String::new());
            message.tool_calls.push(ToolCall { id: None, name: "f".into(), arguments });
        }
        message
    }

    fn episode(messages: Vec<Message>) -> Episode {
        let task = Task { id: "t".into(), prompt: "p".into(), difficulty: None };
        let mut episode = Episode::new("e", task, messages);
        episode.set_steps(steps_of(&episode.messages)).unwrap();
        episode
    }

    #[test]
    fn the_published_rule_gives_the_recorded_pairs() {
        let cases = recorded("turn_pairs");
        assert_eq!(cases.len(), 5);
        for case in cases {
            let episode = episode(case["messages"].as_array().unwrap().iter().map(message).collect());
            let found = pairs(&episode, Pairs::Prose, case["max_chars"].as_u64().unwrap() as usize);
            let told = |pair: &Pair| {
                let idx = episode.steps()[pair.step].message_idx;
                serde_json::json!({
                    "context_messages": idx,
                    "assistant_text": text_of(&episode.messages[idx]),
                    "next_state_text": pair.text(),
                    "next_state_role": pair.next[0].role,
                })
            };
            assert_eq!(Value::Array(found.iter().map(told).collect()), case["out"], "{case}");
        }
    }

    #[test]
    fn every_action_is_paired_with_all_that_answered_it() {
        let mut call = Message::text(Role::Assistant, "");
        call.tool_calls.push(ToolCall { id: None, name: "f".into(), arguments: Arguments::Text("{".into()) });
        let messages = vec![
            Message::text(Role::User, "task"),
            call,
            Message::text(Role::Tool, "one"),
            Message::text(Role::Tool, "0123456789"),
            Message::text(Role::User, "no"),
            Message::text(Role::Assistant, "done"),
        ];
        let mut episode = episode(messages);
        let texts = |episode: &Episode| {
            let text = |pair: &Pair| (pair.step, pair.text());
            pairs(episode, Pairs::Actions, 5).iter().map(text).collect::<Vec<_>>()
        };
        let first = (0, "one\n---\n012\n...[5 characters left out]...\n89\n---\nno".to_owned());
        assert_eq!(texts(&episode), vec![first.clone()]);
        episode.verification = Some(Verification { n_passed: 2, ..Verification::default() });
        let last = "Hidden tests were run: 2 assertions held, 0 did not.".to_owned();
        assert_eq!(texts(&episode), [first, (1, last)]);
    }

    #[test]
    fn of_hidden_tests_only_counts_and_kinds_are_told() {
        let failed = |detail: &str| Assertion {
            line: 3,
            text: "assert secret(7) == 'xyzzy'".into(),
            passed: false,
            detail: detail.into(),
        };
        let assertions =
            ["TypeError: secret", "'a' != 'xyzzy'", "TypeError", "xyzzy Error", "KeyError('xyzzy')"];
        let found = Verification {
            n_passed: 1,
            n_failed: 5,
            error: Some("ZeroDivisionError: xyzzy".into()),
            assertions: assertions.map(failed).into(),
            ..Verification::default()
        };
        let told = "Hidden tests were run: 1 assertions held, 5 did not.\n\
            They did not come to their end: ZeroDivisionError.\n\
            Errors in assertions that did not hold: KeyError (1), TypeError (2).";
        assert_eq!(verdict_of_tests(&found), told);
    }

    #[test]
    fn a_cut_keeps_both_ends() {
        assert_eq!(cut_middle("äöü", 3), "äöü");
        assert_eq!(cut_middle("äöüß", 3), "äö\n...[1 characters left out]...\nß");
        assert_eq!(cut_middle("abc", 0), "\n...[3 characters left out]...\n");
    }
}
