//! What a judge's answers say, one by one and together.

use crate::episode::{Message, Role};
use crate::named;
use crate::python::is_space;

/// A hint of so many characters or fewer is none.
pub const SHORTEST_HINT: usize = 10;

/// One answer of a judge, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// Whether it says that there is a useful hint; nothing where that cannot be read.
    pub hintable: Option<bool>,
    /// The hint, as it stands between its marks; empty where there is none.
    pub hint: String,
}

impl Vote {
    /// Reads an answer: the last decision and the last hint in it, its thinking left out.
    pub fn read(answer: &str) -> Self {
        let said = without_thinking(answer);
        let hintable = match boxed(said).last().as_deref() {
            Some("1") => Some(true),
            Some("-1") => Some(false),
            _ => None,
        };
        let hint = between(said, "[HINT_START]", "[HINT_END]").last().unwrap_or_default();
        Self { hintable, hint: hint.trim_matches(is_space).to_owned() }
    }

    /// Its hint, if it is for one and gives one that counts.
    fn candidate(&self) -> Option<&str> {
        let counts = self.hintable == Some(true) && n_chars(&self.hint) > SHORTEST_HINT;
        counts.then_some(self.hint.as_str())
    }
}

/// What a judge says of an action itself: 1, 0 or -1, in the last box.
pub fn read_evaluation(answer: &str) -> Option<i8> {
    match boxed(without_thinking(answer)).last().as_deref() {
        Some("1") => Some(1),
        Some("0") => Some(0),
        Some("-1") => Some(-1),
        _ => None,
    }
}

/// The worked exchange in an answer: what a user asks and an agent answers, the last of each; none where one is missing.
pub fn read_exchange(answer: &str) -> Option<[Message; 2]> {
    let said = without_thinking(answer);
    let part = |role, [opening, end]: [&str; 2]| {
        let text = between(said, opening, end).last()?.trim_matches(is_space);
        (!text.is_empty()).then(|| Message::text(role, text))
    };
    let user = part(Role::User, ["[USER_START]", "[USER_END]"])?;
    Some([user, part(Role::Assistant, ["[AGENT_START]", "[AGENT_END]"])?])
}

fn n_chars(text: &str) -> usize {
    text.chars().count()
}

/// What stands behind the thinking; nothing where that does not end.
fn without_thinking(answer: &str) -> &str {
    match answer.rsplit_once("</think>") {
        Some((_, said)) => said,
        None if answer.trim_start().starts_with("<think>") => "",
        None => answer,
    }
}

/// The numbers in boxes, without leading zeros.
fn boxed(text: &str) -> impl Iterator<Item = String> {
    let inside = text.match_indices("\\boxed{").map(|(at, mark)| &text[at + mark.len()..]);
    inside.filter_map(|rest| {
        let (inside, _) = rest.split_once('}')?;
        let (sign, digits) = inside.strip_prefix('-').map_or(("", inside), |digits| ("-", digits));
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let digits = digits.trim_start_matches('0');
        is_number.then(|| if digits.is_empty() { "0".to_owned() } else { format!("{sign}{digits}") })
    })
}

/// The texts between two marks.
fn between<'a>(text: &'a str, opening: &str, end: &str) -> impl Iterator<Item = &'a str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, opened) = rest.split_once(opening)?;
        let (inside, behind) = opened.split_once(end)?;
        rest = behind;
        Some(inside)
    })
}

/// How many votes make a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quorum {
    /// More than half of those that were asked for.
    Majority,
    /// The published rule: one with a hint that counts.
    Any,
}

named!(Quorum: Majority = "majority", Any = "any");

/// Which hint is taken of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The one with most characters, as published.
    Longest,
    /// The one with fewest.
    Shortest,
    /// The one that changes what the teacher says of the action most, beyond what irrelevant words change.
    Effective,
}

named!(Choice: Longest = "longest", Shortest = "shortest", Effective = "effective");

/// What the votes on one pair decide.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether there is a useful hint.
    pub hintable: bool,
    /// Of all votes asked for, the share that says so too; an unreadable vote agrees with nothing.
    pub agreement: f64,
    /// The hints that count, in the order of the votes, none twice; none where there is none to be taken.
    pub hints: Vec<String>,
}

impl Verdict {
    /// Of the votes that could be read, out of `n_asked`: those that failed count against a hint.
    pub fn of(votes: &[Vote], n_asked: usize, quorum: Quorum) -> Self {
        let n_saying = |it: bool| votes.iter().filter(|vote| vote.hintable == Some(it)).count();
        let mut hints: Vec<String> = Vec::new();
        for hint in votes.iter().filter_map(Vote::candidate) {
            if !hints.iter().any(|it| it == hint) {
                hints.push(hint.to_owned());
            }
        }
        let hintable = match quorum {
            Quorum::Majority => 2 * n_saying(true) > n_asked,
            Quorum::Any => !hints.is_empty(),
        };
        if !hintable {
            hints.clear();
        }
        let agreement = n_saying(hintable) as f64 / n_asked.max(1) as f64;
        Self { hintable, agreement, hints }
    }
}

/// The hint that is taken by its length, the first of those that are equally long.
pub fn by_length(hints: &[String], choice: Choice) -> Option<&str> {
    let hints = hints.iter().map(String::as_str);
    match choice {
        Choice::Shortest => hints.min_by_key(|hint| n_chars(hint)),
        // Of equals, the last is the maximum.
        Choice::Longest | Choice::Effective => hints.rev().max_by_key(|hint| n_chars(hint)),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::super::recorded;
    use super::*;

    fn number(hintable: Option<bool>) -> Value {
        hintable.map_or(Value::Null, |it| json!(if it { 1 } else { -1 }))
    }

    #[test]
    fn answers_are_read_as_recorded() {
        let cases = recorded("parse");
        assert_eq!(cases.len(), 13);
        for case in cases {
            let vote = Vote::read(case["in"].as_str().unwrap());
            assert_eq!(json!([number(vote.hintable), vote.hint]), case["out"], "{case}");
        }
    }

    #[test]
    fn thinking_decides_nothing() {
        assert_eq!(Vote::read("<think>\\boxed{1}[HINT_START]a[HINT_END]").hintable, None);
        assert_eq!(Vote::read("so \\boxed{1}</think>no \\boxed{-1}").hintable, Some(false));
        assert_eq!(Vote::read("<think>\\boxed{1}</think>").hintable, None);
        let values =
            ["\\boxed{0}", "\\boxed{-1}", "\\boxed{1}", "\\boxed{2}", "<think>\\boxed{1}", "-0 \\boxed{-0}"];
        assert_eq!(values.map(read_evaluation), [Some(0), Some(-1), Some(1), None, None, Some(0)]);
    }

    #[test]
    fn an_exchange_has_two_parts() {
        let read = |answer: &str| {
            let text = |it: &Message| it.content.as_ref().unwrap().text();
            read_exchange(answer).map(|both| both.each_ref().map(text))
        };
        let whole = "<think>[USER_START]x[USER_END]</think>[USER_START] a [USER_END] then [AGENT_START]b\nc[AGENT_END]";
        assert_eq!(read(whole), Some(["a".to_owned(), "b\nc".to_owned()]));
        for lacking in [
            "",
            "[USER_START]a[USER_END]",
            "[USER_START]a[USER_END][AGENT_START] [AGENT_END]",
            "[AGENT_START]b",
        ] {
            assert_eq!(read(lacking), None, "{lacking}");
        }
    }

    #[test]
    fn the_published_rule_takes_the_recorded_hints() {
        let cases = recorded("select");
        assert_eq!(cases.len(), 6);
        for case in cases {
            let vote = |it: &Value| Vote {
                hintable: it["score"].as_i64().map(|score| score == 1),
                hint: it["hint"].as_str().unwrap().trim().to_owned(),
            };
            let votes: Vec<Vote> = case["in"].as_array().unwrap().iter().map(vote).collect();
            let verdict = Verdict::of(&votes, votes.len(), Quorum::Any);
            let taken = by_length(&verdict.hints, Choice::Longest);
            assert_eq!(taken, case["out"]["hint"].as_str(), "{case}");
        }
    }

    #[test]
    fn a_majority_is_more_than_half_of_all_that_were_asked() {
        let yes = |hint: &str| Vote { hintable: Some(true), hint: hint.to_owned() };
        let no = Vote { hintable: Some(false), hint: String::new() };
        let decide = |votes: &[Vote], n| Verdict::of(votes, n, Quorum::Majority);
        let two = [yes("a hint that counts"), yes("short"), no.clone()];
        let verdict = decide(&two, 3);
        assert_eq!((verdict.hintable, verdict.hints.len()), (true, 1));
        assert_eq!(verdict.agreement, 2.0 / 3.0);
        let one_of_two = decide(&two[..1], 2);
        assert_eq!((one_of_two.hintable, one_of_two.hints.len(), one_of_two.agreement), (false, 0, 0.0));
        let unreadable = Vote::default();
        assert!(!decide(&[two[0].clone(), unreadable.clone(), unreadable], 3).hintable);
        assert_eq!(decide(&[no.clone(), no.clone(), two[0].clone()], 3).agreement, 2.0 / 3.0);
        assert!(!decide(&[], 3).hintable);
    }

    #[test]
    fn of_several_hints_one_is_taken_by_its_length() {
        let yes = |hint: &str| Vote { hintable: Some(true), hint: hint.to_owned() };
        let votes = [yes("eleven char"), yes("ELEVEN CHAR"), yes("a longer hint"), yes("A LONGER HINT")];
        let verdict = Verdict::of(&votes, 4, Quorum::Majority);
        let taken = [Choice::Longest, Choice::Shortest].map(|choice| by_length(&verdict.hints, choice));
        assert_eq!(taken, [Some("a longer hint"), Some("eleven char")]);
    }
}
