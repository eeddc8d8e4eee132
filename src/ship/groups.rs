//! Atropos groups of distilled episodes, row `p` about token `p`.
//!
//! Owns what ships and what is left out, and counts the latter. Atropos cannot leave a number out, so a token without the
//! student's logprob is not trained, nor, where credit ships, one of a step without any; and a row that is narrower than
//! the others is none.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::compact::{ActionRows, Distilled};
use crate::wire::atropos::{ScoredDataGroup, masked};
use backsight_chat::messages;
use backsight_core::credit::distill::Row;
use backsight_core::episode::{Episode, TokenSource};
use backsight_core::tokens::Logprob;

/// What ships.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The lens whose rows are the targets; none for groups without any.
    pub lens: Option<String>,
    /// Candidates in each row.
    pub k: usize,
    /// Whether they are the student's own.
    pub at_student: bool,
    /// Whether conversations are in the group.
    pub include_messages: bool,
    /// Whether episodes whose tokens were made from text may ship.
    pub allow_rendered: bool,
    /// How many episodes a group should have.
    pub group_size: Option<usize>,
}

/// An episode on its way into a group.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The episode.
    pub episode: &'a Episode,
    /// What is distilled from it.
    pub distilled: &'a Distilled,
    /// Whether its tokens are the sampled ones.
    pub source: TokenSource,
    /// Whether its rows are not to be trusted.
    pub quarantined: bool,
    /// Where credit ships, the advantages of its steps; a step without credit is not among them.
    pub advantages: Option<&'a BTreeMap<usize, f64>>,
}

/// What became of a group's episodes and tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shipped {
    /// Episodes in the group.
    pub episodes: u64,
    /// Trained tokens.
    pub trained: u64,
    /// Rows with targets.
    pub rows: u64,
    /// Rows with fewer candidates than the others, which are empty.
    pub narrow: u64,
    /// Sampled tokens that are masked because their logprob is not known.
    pub masked: u64,
    /// Sampled tokens that are masked because their step has no credit.
    pub uncredited: u64,
    /// Episodes that are left out, and why.
    pub left_out: Vec<(String, &'static str)>,
}

/// Which of its task's groups an episode is in, by the number of the attempt that its name ends in, so that one that
/// cannot be read moves no other; the first where groups have no known size.
pub fn group_of(episode: &str, size: Option<usize>) -> usize {
    let attempt = episode.rsplit_once('-').and_then(|(_, number)| number.parse::<usize>().ok());
    size.zip(attempt).map_or(0, |(size, attempt)| attempt / size.max(1))
}

/// The group of these episodes; none if none of them can ship.
pub fn group(members: &[Member<'_>], options: &GroupOptions) -> (Option<ScoredDataGroup>, Shipped) {
    let (mut group, mut shipped) = (ScoredDataGroup::default(), Shipped::default());
    let (mut ids, mut logprobs, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    let (mut advantages, mut teachers) = (Vec::new(), Vec::new());
    for member in members {
        let (item, reward) = match item(member, options) {
            Ok(item) => item,
            Err(why) => {
                shipped.left_out.push((member.episode.id.clone(), why));
                continue;
            }
        };
        shipped.episodes += 1;
        shipped.trained += item.student.iter().flatten().count() as u64;
        shipped.masked += item.n_masked;
        shipped.uncredited += item.n_uncredited;
        let rows = item.rows(options.k, &mut shipped);
        let (own_ids, own_logprobs): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let has_rows = own_ids.iter().any(|row: &Vec<u32>| !row.is_empty());
        teachers.push(if has_rows { teacher(&member.distilled.about) } else { json!({}) });
        advantages.extend(item.advantages);
        ids.push(own_ids);
        logprobs.push(own_logprobs);
        let (masks, inference) = masked(item.tokens, &item.student);
        group.tokens.push(item.tokens.to_vec());
        group.masks.push(masks);
        group.scores.push(reward);
        group.inference_logprobs.push(inference);
        messages.push(Value::Array(member.episode.messages.iter().map(messages::to_json).collect()));
    }
    if shipped.episodes == 0 {
        return (None, shipped);
    }
    let has_rows = shipped.rows > 0;
    group.messages = options.include_messages.then_some(messages);
    group.generation_params = temperature(members).map(|it| json!({"temperature": it}));
    group.advantages = (!advantages.is_empty()).then_some(advantages);
    group.overrides = has_rows.then_some(teachers);
    group.group_overrides = overrides(&shipped, options, has_rows);
    group.distill_token_ids = has_rows.then_some(ids);
    group.distill_logprobs = has_rows.then_some(logprobs);
    group.task = members.first().map(|it| it.episode.task.id.clone());
    (Some(group), shipped)
}

/// Which weights gave a sequence's rows, where that is known, and whether they move with the student's.
fn teacher(about: &Value) -> Value {
    json!({"teacher_version": about["teacher_version"], "teacher": about["teacher"]})
}

/// The temperature that all of a group were sampled with.
fn temperature(members: &[Member<'_>]) -> Option<f64> {
    let mut all = members.iter().map(|it| it.episode.temperature);
    let first = all.next()??;
    all.all(|it| it == Some(first)).then_some(first)
}

fn overrides(shipped: &Shipped, options: &GroupOptions, has_rows: bool) -> Option<Value> {
    let is_short = options.group_size.is_some_and(|wanted| wanted as u64 != shipped.episodes);
    let mut overrides = serde_json::Map::new();
    overrides.extend(is_short.then(|| ("group_size".to_owned(), json!(shipped.episodes))));
    overrides.extend(has_rows.then(|| ("teacher_top_k".to_owned(), json!(options.k))));
    let are_students = has_rows && options.at_student;
    overrides.extend(are_students.then(|| ("teacher_candidates".to_owned(), json!("student"))));
    (!overrides.is_empty()).then_some(Value::Object(overrides))
}

/// One sequence of a group.
struct Item<'a> {
    tokens: &'a [u32],
    /// The student's logprobs where a token is trained.
    student: Vec<Option<Logprob>>,
    n_masked: u64,
    /// Where credit ships, what each token is worth.
    advantages: Option<Vec<f64>>,
    n_uncredited: u64,
    actions: Vec<&'a ActionRows>,
}

/// What ships of an episode: its last sequence, which holds its whole history as a rule, and its reward.
fn item<'a>(member: &Member<'a>, options: &GroupOptions) -> Result<(Item<'a>, f64), &'static str> {
    if member.source == TokenSource::Rendered && !options.allow_rendered {
        return Err("its tokens are not the sampled ones (--allow-rendered)");
    }
    let all = &member.distilled.sequences;
    let (last, sequence) = all.iter().enumerate().next_back().ok_or("it has no tokens")?;
    let trained = |(sampled, logprob): (&bool, &Option<Logprob>)| logprob.filter(|_| *sampled);
    let mut student: Vec<_> = sequence.sampled.iter().zip(&sequence.student).map(trained).collect();
    if student.iter().all(Option::is_none) {
        return Err("no token of it has a logprob of the student");
    }
    let n_sampled = sequence.sampled.iter().filter(|it| **it).count();
    let lens = options.lens.as_ref().filter(|_| !member.quarantined);
    let actions = lens.and_then(|lens| member.distilled.rows.get(lens));
    let actions = actions.into_iter().flatten().filter(|it| it.sequence == last).collect();
    let n_known = student.iter().flatten().count();
    let weigh = |of_steps| credited(member.distilled, last, of_steps, &mut student);
    let advantages = member.advantages.map(weigh);
    let n_trained = student.iter().flatten().count();
    if n_trained == 0 {
        return Err("no step of it that could be trained has credit");
    }
    let outcome = member.episode.outcome.as_ref().map_err(|_| "no reward")?;
    let item = Item {
        tokens: &sequence.tokens,
        student,
        n_masked: (n_sampled - n_known) as u64,
        advantages,
        n_uncredited: (n_known - n_trained) as u64,
        actions,
    };
    Ok((item, outcome.reward))
}

/// Leaves of a sequence's trained tokens those whose step has credit. Gives each token's advantage: its step's on all of an
/// action, nothing elsewhere.
fn credited(
    distilled: &Distilled,
    sequence: usize,
    of_steps: &BTreeMap<usize, f64>,
    student: &mut [Option<Logprob>],
) -> Vec<f64> {
    let mut advantages = vec![0.0; student.len()];
    let mut is_credited = vec![false; student.len()];
    for action in distilled.actions.iter().filter(|it| it.sequence == sequence) {
        let Some(advantage) = of_steps.get(&action.step) else { continue };
        let place = action.first..action.first + action.len;
        advantages[place.clone()].fill(*advantage);
        is_credited[place].fill(true);
    }
    student.iter_mut().zip(is_credited).for_each(|(it, is_credited)| *it = it.filter(|_| is_credited));
    advantages
}

impl Item<'_> {
    /// A row of candidates and one of logprobs for each token, both empty where nothing is said of it.
    fn rows(&self, k: usize, shipped: &mut Shipped) -> Vec<(Vec<u32>, Vec<f32>)> {
        let mut rows = vec![(Vec::new(), Vec::new()); self.tokens.len()];
        let all = self.actions.iter().flat_map(|action| (action.first..).zip(&action.rows));
        for (position, row) in all.filter_map(|(position, row)| Some((position, row.as_ref()?))) {
            match Row::of_width(row, k) {
                None => shipped.narrow += 1,
                Some(entries) => {
                    shipped.rows += 1;
                    rows[position] = entries.into_iter().map(|(id, it)| (id, it.get() as f32)).unzip();
                }
            }
        }
        rows
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::ship::compact::{ActionPlace, Sequence};
    use backsight_core::episode::{Message, Outcome, Role, Task};
    use backsight_core::tokens::TopK;

    fn logprob(value: f64) -> Logprob {
        Logprob::new(value).unwrap()
    }

    fn episode(id: &str) -> Episode {
        let task = Task { id: "t".into(), prompt: "p".into(), difficulty: None };
        let mut episode = Episode::new(id, task, vec![Message::text(Role::User, "p")]);
        episode.outcome = Ok(Outcome { reward: 0.5, components: Vec::new() });
        episode.temperature = Some(1.0);
        episode
    }

    fn row(id: u32, entries: &[(u32, f64)]) -> Option<Row> {
        let top = TopK::new(entries.iter().map(|(id, value)| (*id, logprob(*value))).collect());
        Some(Row { id, teacher: top.get(id).unwrap(), gap: None, top })
    }

    /// Four tokens, of which two and three were sampled, and the logprob of three is not known.
    fn distilled() -> Distilled {
        let rows = vec![row(7, &[(9, -0.5), (8, -1.0), (7, -4.0)]), row(3, &[(3, -0.25)])];
        let actions = vec![ActionRows { sequence: 0, step: 0, first: 2, rows }];
        Distilled {
            sequences: vec![Sequence {
                tokens: vec![1, 2, 7, 3],
                sampled: vec![false, false, true, true],
                student: vec![None, None, Some(logprob(-1.5)), None],
            }],
            episodes: vec![0],
            actions: vec![ActionPlace { sequence: 0, step: 0, first: 2, len: 2 }],
            rows: [("hint".to_owned(), actions)].into(),
            about: json!({"teacher_version": "0a", "teacher": "frozen"}),
        }
    }

    fn options() -> GroupOptions {
        GroupOptions {
            lens: Some("hint".to_owned()),
            k: 2,
            at_student: false,
            include_messages: true,
            allow_rendered: false,
            group_size: Some(2),
        }
    }

    #[test]
    fn row_p_is_about_token_p_and_nothing_is_made_up() {
        let (episode, distilled) = (episode("a"), distilled());
        let member = Member {
            episode: &episode,
            distilled: &distilled,
            source: TokenSource::Exact,
            quarantined: false,
            advantages: None,
        };
        let (made, shipped) = group(&[member], &options());
        let expected = json!({
            "tokens": [[1, 2, 7, 3]], "masks": [[-100, -100, 7, -100]], "scores": [0.5],
            "advantages": null, "ref_logprobs": null, "inference_logprobs": [[1.0, 1.0, -1.5, 1.0]],
            "messages": [[{"role": "user", "content": "p"}]], "generation_params": {"temperature": 1.0},
            "overrides": [{"teacher_version": "0a", "teacher": "frozen"}], "group_overrides": {"group_size": 1, "teacher_top_k": 2}, "images": null,
            "distill_token_ids": [[[], [], [9, 7], []]], "distill_logprobs": [[[], [], [-0.5, -4.0], []]],
            "task": "t",
        });
        assert_eq!(serde_json::to_value(made.unwrap()).unwrap(), expected);
        let wanted = Shipped { episodes: 1, trained: 1, rows: 1, narrow: 1, masked: 1, ..Shipped::default() };
        assert_eq!(shipped, wanted);
    }

    #[test]
    fn attempts_are_grouped_by_their_numbers() {
        let of = |id: &str, size| group_of(id, size);
        assert_eq!(
            [of("a-b-0", Some(4)), of("a-3", Some(4)), of("a-4", Some(4)), of("a-11", Some(4))],
            [0, 0, 1, 2]
        );
        assert_eq!([of("a-9", None), of("a", Some(4)), of("file:3", Some(4))], [0, 0, 0]);
    }

    #[test]
    fn what_cannot_be_trusted_does_not_ship() {
        let (episode, distilled) = (episode("a"), distilled());
        let exact = Member {
            episode: &episode,
            distilled: &distilled,
            source: TokenSource::Exact,
            quarantined: false,
            advantages: None,
        };
        let (made, _) = group(&[Member { quarantined: true, ..exact }], &options());
        let made = made.unwrap();
        assert_eq!((made.masks[0][2], made.distill_token_ids), (7, None));
        let rendered = Member { source: TokenSource::Rendered, ..exact };
        let (made, shipped) = group(&[rendered], &options());
        assert_eq!((made, shipped.left_out.len()), (None, 1));
        let mut silent = distilled.clone();
        silent.sequences[0].student = vec![None; 4];
        let (made, shipped) = group(&[Member { distilled: &silent, ..exact }], &options());
        assert_eq!(made, None);
        assert_eq!(shipped.left_out, [("a".to_owned(), "no token of it has a logprob of the student")]);
    }
    /// Two actions of two tokens each, all of whose logprobs are known but the last.
    fn credited() -> Distilled {
        let known = |value| Some(logprob(value));
        let place = |step, first| ActionPlace { sequence: 0, step, first, len: 2 };
        Distilled {
            sequences: vec![Sequence {
                tokens: vec![1, 7, 8, 2, 5, 6],
                sampled: vec![false, true, true, false, true, true],
                student: vec![None, known(-0.5), known(-1.0), None, known(-2.0), None],
            }],
            episodes: vec![0],
            actions: vec![place(0, 1), place(1, 4)],
            ..distilled()
        }
    }

    #[test]
    fn a_steps_credit_is_on_all_of_its_action_and_a_step_without_is_not_trained() {
        let (episode, distilled) = (episode("a"), Distilled { rows: BTreeMap::new(), ..credited() });
        let made = |advantages: &BTreeMap<usize, f64>| {
            let (source, quarantined) = (TokenSource::Exact, false);
            let advantages = Some(advantages);
            let member = Member { episode: &episode, distilled: &distilled, source, quarantined, advantages };
            group(&[member], &options())
        };
        let (both, shipped) = made(&[(0, -0.25), (1, 1.5)].into());
        let both = both.unwrap();
        assert_eq!(both.advantages, Some(vec![vec![0.0, -0.25, -0.25, 0.0, 1.5, 1.5]]));
        assert_eq!(both.masks, [[-100, 7, 8, -100, 5, -100]]);
        assert_eq!((shipped.trained, shipped.masked, shipped.uncredited), (3, 1, 0));
        assert_eq!(both.overrides, None, "there are no rows");
        let (one, shipped) = made(&[(1, 0.0)].into());
        let one = one.unwrap();
        assert_eq!(one.masks, [[-100, -100, -100, -100, 5, -100]]);
        assert_eq!(one.inference_logprobs, [[1.0, 1.0, 1.0, 1.0, -2.0, 1.0]]);
        assert_eq!(one.advantages, Some(vec![vec![0.0; 6]]));
        assert_eq!((shipped.trained, shipped.masked, shipped.uncredited), (1, 1, 2));
        let (none, shipped) = made(&BTreeMap::new());
        assert_eq!(none, None);
        assert_eq!(shipped.left_out, [("a".to_owned(), "no step of it that could be trained has credit")]);
        assert_eq!((shipped.masked, shipped.uncredited), (0, 0), "nothing of it ships");
    }

    #[test]
    fn a_sequence_says_whose_its_rows_are_if_it_has_any() {
        let (episode, distilled, silent) = (episode("a"), distilled(), credited());
        let of = |distilled| Member {
            episode: &episode,
            distilled,
            source: TokenSource::Exact,
            quarantined: false,
            advantages: None,
        };
        let silent = Distilled { rows: BTreeMap::new(), ..silent };
        let (made, _) = group(&[of(&distilled), of(&silent)], &options());
        let expected = vec![json!({"teacher_version": "0a", "teacher": "frozen"}), json!({})];
        assert_eq!(made.unwrap().overrides, Some(expected));
    }
}
