//! From distilled episodes to groups, and to the numbers that tell what they are worth.
//!
//! One pass over the episodes, after all of them: groups are written in the order in which they are complete, and everything
//! told of them is computed from the files, so what an earlier run made counts as what this one did.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::lost::What;
use super::{Current, STUDENT, file_of, teaches};
use crate::metrics;
use crate::pipeline::weighed::Advantages;
use crate::ship::compact::{Distilled, join, read};
use crate::ship::groups::{GroupOptions, Member, group, group_of};
use crate::store::atomic::Pending;
use crate::store::episodes::{Source, load};
use crate::store::run::RunDir;
use crate::store::summary::Summary;
use backsight_core::credit::distill::{Gaps, correlation, shared_with};
use backsight_core::episode::{Episode, TokenSource};

/// The groups, as Atropos takes them.
const GROUPS: &str = "groups.jsonl";
/// The same in fewer bytes, with what Atropos has no field for.
const COMPACT: &str = "groups.safetensors";

/// How groups are made.
pub struct Shipping {
    /// What ships of an episode.
    pub options: GroupOptions,
    /// Whether a group of equal rewards is for distillation alone.
    pub ensure_scores_are_not_same: bool,
    /// Where credit ships, what steps are worth.
    pub advantages: Option<Advantages>,
}

/// What all groups came to.
#[derive(Default)]
struct Totals {
    groups: u64,
    episodes: u64,
    trained: u64,
    shipped_rows: u64,
    narrow: u64,
    masked: u64,
    uncredited: u64,
    distil_only: u64,
    quarantined: u64,
    /// Hints and scored turns of each episode.
    of_episodes: Vec<(u64, u64)>,
    counts: BTreeMap<String, f64>,
    lost: BTreeMap<What, BTreeMap<String, u64>>,
    left_out: BTreeMap<&'static str, u64>,
    rows: u64,
    actions: u64,
    gaps: BTreeMap<String, Gaps>,
    shared: (f64, f64),
    gap_and_reward: Vec<(f64, f64)>,
}

/// Makes the groups of all episodes that are distilled as is asked for now, and fills in what a summary says of them.
pub fn ship(
    sources: Vec<Source>,
    run: &RunDir,
    shipping: &Shipping,
    current: Current<'_>,
    summary: &mut Summary,
) -> io::Result<()> {
    let mut out = Pending::create(&run.dir().join(GROUPS))?;
    let (mut pending, mut totals): (BTreeMap<(String, usize), Vec<Episode>>, Totals) = Default::default();
    let (mut paths, mut names) = (Vec::new(), Vec::new());
    let mut write = |members: Vec<Episode>, totals: &mut Totals| -> io::Result<()> {
        let mut whole = Vec::new();
        for episode in members {
            match read(&file_of(run.dir(), &episode.id)) {
                Ok(distilled) if current.is_of(&distilled.about) => whole.push((episode, distilled)),
                Ok(_) => totals.leave_out("it was distilled otherwise, and is not distilled again yet"),
                // What is not distilled is lost or left where it was tried.
                Err(_) => {}
            }
        }
        let (line, left_out) = line(&whole, shipping, totals);
        for (episode, distilled) in &whole {
            paths.push(file_of(run.dir(), &episode.id));
            let nth = line.as_ref().filter(|_| !left_out.contains(&episode.id)).map(|_| totals.groups - 1);
            let about = &distilled.about;
            names.push(json!({"episode": episode.id, "task": episode.task.id, "group": nth,
                              "reward": about["reward"], "tokens": about["tokens"], "teacher": about["teacher"],
                              "teacher_version": about["teacher_version"], "quarantined": about["quarantined"]}));
        }
        line.map_or(Ok(()), |line| writeln!(out, "{line}"))
    };
    for loaded in load(sources).flatten() {
        let size = shipping.options.group_size;
        let key = (loaded.episode.task.id.clone(), group_of(&loaded.episode.id, size));
        let of_group = pending.entry(key.clone()).or_default();
        of_group.push(loaded.episode);
        if Some(of_group.len()) == size {
            write(pending.remove(&key).unwrap_or_default(), &mut totals)?;
        }
    }
    pending.into_iter().try_for_each(|(_, members)| write(members, &mut totals))?;
    out.commit()?;
    compact(run, &paths, &names, shipping)?;
    totals.tell(shipping.options.at_student, summary);
    Ok(())
}

fn compact(run: &RunDir, paths: &[PathBuf], names: &[Value], shipping: &Shipping) -> io::Result<()> {
    let mut out = Pending::create(&run.dir().join(COMPACT))?;
    let about = json!({"episodes": names, "lens": shipping.options.lens, "k": shipping.options.k,
                       "candidates": if shipping.options.at_student { "student" } else { "teacher" }});
    join(paths, &about, &mut out)?;
    out.commit()
}

/// The advantages of an episode that nobody has scored.
const NOTHING: &BTreeMap<usize, f64> = &BTreeMap::new();

fn member<'a>((episode, distilled): &'a (Episode, Distilled), shipping: &'a Shipping) -> Member<'a> {
    let source = distilled.about["tokens"].as_str().and_then(TokenSource::from_name);
    let quarantined = !distilled.about["quarantined"].is_null();
    let advantages = shipping.advantages.as_ref().map(|all| all.of(&episode.id).unwrap_or(NOTHING));
    Member { episode, distilled, source: source.unwrap_or(TokenSource::Rendered), quarantined, advantages }
}

/// A group as a line, if any of it can ship, and the episodes that are left out of it.
fn line(
    whole: &[(Episode, Distilled)],
    shipping: &Shipping,
    totals: &mut Totals,
) -> (Option<String>, Vec<String>) {
    let members: Vec<Member<'_>> = whole.iter().map(|it| member(it, shipping)).collect();
    totals.look_at(whole);
    let (group, shipped) = group(&members, &shipping.options);
    shipped.left_out.iter().for_each(|(_, why)| totals.leave_out(why));
    let left_out = shipped.left_out.iter().map(|(id, _)| id.clone()).collect();
    let Some(mut group) = group else { return (None, left_out) };
    let is_same = group.scores.windows(2).all(|pair| pair[0] == pair[1]);
    if shipping.ensure_scores_are_not_same && is_same {
        // Groups that all failed are where hints matter.
        if group.distill_token_ids.is_none() {
            group.scores.iter().for_each(|_| totals.leave_out("equal rewards and nothing to distil"));
            return (None, left_out);
        }
        for own in group.overrides.iter_mut().flatten() {
            own["set_advantage_to_zero"] = json!(true);
        }
        totals.distil_only += 1;
    }
    totals.episodes += shipped.episodes;
    totals.trained += shipped.trained;
    totals.shipped_rows += shipped.rows;
    totals.narrow += shipped.narrow;
    totals.masked += shipped.masked;
    totals.uncredited += shipped.uncredited;
    totals.groups += 1;
    (serde_json::to_string(&group).ok(), left_out)
}

impl Totals {
    /// Counts an episode that is in no group.
    fn leave_out(&mut self, why: &'static str) {
        *self.left_out.entry(why).or_default() += 1;
    }

    /// Counts what a group's episodes hold, whether or not it ships.
    fn look_at(&mut self, whole: &[(Episode, Distilled)]) {
        let mut of_group = Vec::new();
        for (episode, distilled) in whole {
            let about = &distilled.about;
            self.quarantined += u64::from(!about["quarantined"].is_null());
            for what in [What::Votes, What::Readings] {
                add(self.lost.entry(what).or_default(), &about["lost"][what.name()]);
            }
            for (name, n) in about["counts"].as_object().into_iter().flatten() {
                *self.counts.entry(name.clone()).or_default() += n.as_f64().unwrap_or(0.0);
            }
            *self.counts.entry("pairs".to_owned()).or_default() += about["pairs"].as_f64().unwrap_or(0.0);
            let read = distilled.rows.iter().filter(|(lens, _)| teaches(lens));
            let turns: BTreeSet<usize> = read.flat_map(|(_, rows)| rows).map(|it| it.step).collect();
            self.of_episodes.push((about["counts"]["hints"].as_u64().unwrap_or(0), turns.len() as u64));
            let mut own = Gaps::default();
            for (lens, actions) in &distilled.rows {
                for action in actions.iter().filter(|_| lens != STUDENT) {
                    let gaps = Gaps::of(gaps(&action.rows));
                    *self.gaps.entry(kind(lens)).or_default() += gaps;
                    if teaches(lens) {
                        own += gaps;
                        self.actions += 1;
                        self.rows += action.rows.iter().flatten().count() as u64;
                    }
                }
            }
            self.share(distilled);
            let reward = episode.outcome.as_ref().ok().map(|it| it.reward);
            of_group.extend(own.mean().zip(reward));
        }
        // Within a group: what one task's episodes have in common tells nothing.
        let n = of_group.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| of_group.iter().map(of).sum::<f64>() / n;
        let (gap, reward) = (mean(|it| it.0), mean(|it| it.1));
        self.gap_and_reward.extend(of_group.iter().map(|it| (it.0 - gap, it.1 - reward)));
    }

    /// What of each hint's effect irrelevant words have too.
    fn share(&mut self, distilled: &Distilled) {
        let of = |which: &str| distilled.rows.iter().find(|(lens, _)| kind(lens) == which).map(|it| it.1);
        for hint in of("hint").into_iter().flatten() {
            let placebo = of("placebo").into_iter().flatten().find(|it| it.step == hint.step);
            let Some(placebo) = placebo else { continue };
            let all = |rows| gaps(rows).collect::<Vec<_>>();
            let (shared, whole) = shared_with(&all(&hint.rows), &all(&placebo.rows));
            self.shared = (self.shared.0 + shared, self.shared.1 + whole);
        }
    }

    fn tell(&self, at_student: bool, summary: &mut Summary) {
        let count = |name: &str| self.counts.get(name).copied().unwrap_or(0.0);
        let made = [
            ("groups", self.groups),
            ("shipped_episodes", self.episodes),
            ("hints", count("hints") as u64),
            ("scored_steps", self.actions),
            ("scored_tokens", self.rows),
            ("shipped_tokens", self.shipped_rows),
            ("trained_tokens", self.trained),
        ];
        summary.made.extend(made);
        for (what, reasons) in &self.lost {
            let all = summary.lost.entry(what.name()).or_default();
            reasons.iter().for_each(|(why, n)| *all.entry(why.clone()).or_default() += n);
        }
        let narrow = match at_student {
            true => "the teacher's candidates lack some of the student's",
            false => "narrow rows",
        };
        let tokens = [
            (narrow, self.narrow),
            ("no logprob of the student", self.masked),
            ("no credit for their step", self.uncredited),
        ];
        let tokens = tokens.into_iter().filter(|(_, n)| *n > 0).map(|(why, n)| (why.to_owned(), n));
        summary.lost.entry("tokens").or_default().extend(tokens);
        let left_out = self.left_out.iter().map(|(why, n)| ((*why).to_owned(), *n));
        summary.lost.entry("shipped").or_default().extend(left_out);
        summary.lost.retain(|_, reasons| !reasons.is_empty());
        summary.more.extend(self.figures());
        summary.more.extend(metrics::opd(&self.of_episodes));
    }

    fn figures(&self) -> Map<String, Value> {
        let count = |name: &str| self.counts.get(name).copied().unwrap_or(0.0);
        let n = |name: &str| json!(count(name) as u64);
        let per = |part: f64, whole: f64| (whole > 0.0).then_some(part / whole);
        let of_lens = |gaps: &Gaps| {
            json!({"tokens": gaps.n, "mean": gaps.mean(), "spread": gaps.spread(), "mean_size": gaps.mean_size(),
                   "share_above_1": gaps.share_large(), "share_opening": gaps.share_opening()})
        };
        let gaps: Map<String, Value> =
            self.gaps.iter().map(|(lens, gaps)| (lens.clone(), of_lens(gaps))).collect();
        let votes = json!({"asked": n("votes"), "for": n("for"), "against": n("against"),
                           "unreadable": n("unreadable"), "failed": n("failed"),
                           "agreement": per(count("agreement"), count("pairs"))});
        let leaks = json!({"next_state": n("leaks_next_state"), "tests": n("leaks_tests")});
        let told = json!({
            "pairs": n("pairs"), "votes": votes, "hintable": n("hintable"), "leaks": leaks,
            "exchanges_unreadable": n("exchanges_unreadable"), "gap": gaps,
            "placebo_share": per(self.shared.0, self.shared.1), "gap_and_reward": correlation(&self.gap_and_reward),
            "quarantined": self.quarantined, "distil_only_groups": self.distil_only,
        });
        told.as_object().cloned().unwrap_or_default()
    }
}

fn gaps(rows: &[Option<backsight_core::credit::distill::Row>]) -> impl Iterator<Item = Option<f64>> {
    rows.iter().map(|row| row.as_ref()?.gap)
}

/// A lens's name without its placement.
fn kind(lens: &str) -> String {
    lens.split('-').next().unwrap_or(lens).to_owned()
}

fn add(all: &mut BTreeMap<String, u64>, more: &Value) {
    for (why, n) in more.as_object().into_iter().flatten() {
        *all.entry(why.clone()).or_default() += n.as_u64().unwrap_or(0);
    }
}
