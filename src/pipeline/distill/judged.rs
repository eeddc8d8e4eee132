//! From votes to hints, and from hints to what the teacher says, as soon as each is there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::own::Own;
use super::taught::{Hints, Taught, Through};
use super::{Options, Work, lock};
use crate::judge::Judge;
use crate::model::outlook::Outlook;
use crate::model::{Error, Model};
use crate::pipeline::watch::Watched;
use crate::store::Ledgered;
use backsight_chat::messages::to_json;
use backsight_core::credit::distill::{Gaps, rows};
use backsight_core::episode::Message;
use backsight_core::hint::{Choice, Leak, Leaks, Pair, Quorum, Verdict, Vote, by_length, pairs};
use backsight_core::lens::{Given, Placement};
use backsight_core::score::SpanScore;

/// How hints are found and told.
#[derive(Clone, Debug)]
pub struct Judging {
    /// How many votes make a verdict.
    pub quorum: Quorum,
    /// Which hint is taken.
    pub choice: Choice,
    /// A hint sharing so many words in a row with the next state is dropped.
    pub leak_words: usize,
    /// Hidden tests, by task, where they are known.
    pub tests: HashMap<String, String>,
    /// Whether a second question is asked about each action itself.
    pub evaluates: bool,
    /// Where a hint is written.
    pub placement: Placement,
    /// Whether actions are read under irrelevant words too.
    pub placebo: bool,
    /// An exchange that is shown in place of every hint.
    pub exchange: Option<Given>,
}

impl Judging {
    /// Whether the judge is asked for an exchange that shows each hint.
    pub(super) fn asks_exchanges(&self) -> bool {
        self.placement == Placement::Turns && self.exchange.is_none()
    }
}

/// A model in the judge's place, which is not asked any more once there is no point in it.
pub(super) fn watched(model: &Arc<Ledgered>, outlook: &Outlook) -> Arc<dyn Model> {
    Watched::sharing(Arc::clone(model) as Arc<dyn Model>, outlook.clone())
}

/// What the votes on one pair came to.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub(super) step: usize,
    votes: Vec<Result<Vote, Error>>,
    pub(super) verdict: Verdict,
    /// The hints of the verdict that give nothing away.
    hints: Vec<String>,
    leaks: Vec<Leak>,
    evaluation: Option<Result<Option<i8>, Error>>,
    /// Those hints that are tried, each with what the teacher is given to read for it.
    tried: Vec<(String, Given)>,
    /// Why there is no exchange for others; nothing where it cannot be read.
    no_exchange: Vec<Option<Error>>,
}

impl Judged {
    /// The hints that are to be tried: the one that its length says, or all of them where the most effective is wanted.
    fn to_try(&self, choice: Choice) -> Vec<String> {
        match choice {
            Choice::Effective => self.hints.clone(),
            _ => by_length(&self.hints, choice).map(str::to_owned).into_iter().collect(),
        }
    }

    /// The votes and the verdict as a line of a file.
    fn line(&self, episode: &str, taken: Option<&(String, Given)>) -> Value {
        let (hint, given) = taken.map(|(hint, given)| (hint, given)).unzip();
        let exchange = given.and_then(|given| match given {
            Given::Exchange(messages) => Some(messages.iter().map(to_json).collect::<Vec<_>>()),
            Given::Text(_) => None,
        });
        let vote = |vote: &Result<Vote, Error>| match vote {
            Ok(vote) => json!({"hintable": vote.hintable, "hint": vote.hint}),
            Err(error) => json!({"error": error.to_string()}),
        };
        let evaluation = self.evaluation.as_ref().map(|it| it.as_ref().ok().copied().flatten());
        json!({
            "episode": episode, "step": self.step, "hintable": self.verdict.hintable,
            "agreement": self.verdict.agreement, "hint": hint, "hints": self.hints,
            "exchange": exchange, "evaluation": evaluation,
            "leaks": self.leaks.iter().map(|it| it.name()).collect::<Vec<_>>(),
            "votes": self.votes.iter().map(vote).collect::<Vec<_>>(),
        })
    }

    /// What was lost, and why. An unreadable vote is one that was answered; it is no loss of ours.
    pub(super) fn losses(&self) -> impl Iterator<Item = (&'static str, String)> {
        let (step, evaluation) = (self.step, self.evaluation.iter().filter_map(|it| it.as_ref().err()));
        let votes = self.votes.iter().filter_map(|it| it.as_ref().err()).map(|why| ("vote failed", why));
        let exchanges = self.no_exchange.iter().flatten().map(|why| ("exchange failed", why));
        let all = votes.chain(evaluation.map(|why| ("vote on the action failed", why))).chain(exchanges);
        all.map(move |(reason, why)| (reason, format!("step {step}: {why}")))
    }
}

/// All verdicts of an episode, and what the teacher says.
pub(super) struct Verdicts {
    pub(super) judged: Vec<Judged>,
    /// By set of hints: the first of each step, the second, and so on.
    pub(super) taught: Vec<Vec<Taught>>,
}

impl Verdicts {
    /// What the teacher says of each step, a list for each of the hints that were tried.
    fn tried(&self) -> BTreeMap<usize, Vec<Vec<&Taught>>> {
        let mut of_step: BTreeMap<usize, Vec<Vec<&Taught>>> = BTreeMap::new();
        for set in &self.taught {
            let mut here: BTreeMap<usize, Vec<&Taught>> = BTreeMap::new();
            set.iter().for_each(|it| here.entry(it.step).or_default().push(it));
            here.into_iter().for_each(|(step, it)| of_step.entry(step).or_default().push(it));
        }
        of_step
    }

    /// What is said of the hint that is taken for each step: the only one there is, or the most effective. What could
    /// not be compared is among it as a loss.
    pub(super) fn taught_rows(&self, own: &Own, options: &Options) -> Vec<Taught> {
        let keeps_placebo = options.judging.as_ref().is_none_or(|it| it.placebo);
        let of_step = |(step, tried): (usize, Vec<Vec<&Taught>>)| {
            let best = most_effective(&tried, own, step);
            let is_kept = move |(at, it): &(usize, &Taught)| *at == best || it.score.is_err();
            let all =
                tried.into_iter().enumerate().flat_map(|(at, set)| set.into_iter().map(move |it| (at, it)));
            all.filter(is_kept).map(|(_, it)| it.clone()).collect::<Vec<_>>()
        };
        let is_kept = |it: &Taught| keeps_placebo || !it.lens.starts_with("placebo");
        self.tried().into_iter().flat_map(of_step).filter(is_kept).collect()
    }

    /// The votes and verdicts as lines of a file, each with the hint that was taken.
    pub(super) fn lines(&self, episode: &str, own: &Own, options: &Options) -> Vec<Value> {
        let tried = self.tried();
        let choice = options.judging.as_ref().map_or(Choice::Longest, |it| it.choice);
        let line = |judged: &Judged| {
            let compared = tried.get(&judged.step).filter(|_| choice == Choice::Effective);
            let taken = compared.map_or(0, |tried| most_effective(tried, own, judged.step));
            judged.line(episode, judged.tried.get(taken))
        };
        self.judged.iter().map(line).collect()
    }

    /// Numbers that tell of votes and hints.
    pub(super) fn counts(&self) -> Value {
        let votes = || self.judged.iter().flat_map(|it| &it.votes);
        let saying = |hintable| votes().flatten().filter(|it| it.hintable == hintable).count();
        let leaks = |which| self.judged.iter().flat_map(|it| &it.leaks).filter(|it| **it == which).count();
        let agreement: f64 = self.judged.iter().map(|it| it.verdict.agreement).sum();
        json!({
            "votes": votes().count(), "failed": votes().filter(|it| it.is_err()).count(),
            "for": saying(Some(true)), "against": saying(Some(false)), "unreadable": saying(None),
            "hintable": self.judged.iter().filter(|it| it.verdict.hintable).count(),
            "hints": self.judged.iter().filter(|it| !it.hints.is_empty()).count(), "agreement": agreement,
            "exchanges_unreadable": self.judged.iter().flat_map(|it| &it.no_exchange).filter(|it| it.is_none()).count(),
            "leaks_next_state": leaks(Leak::NextState), "leaks_tests": leaks(Leak::Tests),
        })
    }
}

/// Which of the hints that were tried changes most; the first of those that change equally much.
fn most_effective(tried: &[Vec<&Taught>], own: &Own, step: usize) -> usize {
    let effects = tried.iter().map(|set| effect(set, own, step)).enumerate();
    let best = effects.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(at, _)| at)
}

/// How much a hint changes, beyond what irrelevant words change.
fn effect(set: &[&Taught], own: &Own, step: usize) -> f64 {
    let size = |score: &SpanScore| {
        let ids = vec![0; score.scores().len()];
        let rows = rows(&ids, &own.logprobs[step], score);
        Gaps::of(rows.into_iter().map(|row| row?.gap)).mean_size()
    };
    let of = |is_placebo: bool| {
        let taught = set.iter().find(|it| it.lens.starts_with("placebo") == is_placebo)?;
        taught.score.as_ref().ok().and_then(size)
    };
    let has_placebo = set.iter().any(|it| it.lens.starts_with("placebo"));
    let beyond = |size: f64| Some(size - if has_placebo { of(true)? } else { 0.0 });
    of(false).and_then(beyond).unwrap_or(f64::NEG_INFINITY)
}

impl Work<'_> {
    /// Judges the pairs of these steps at once, and has the teacher read under each hint as soon as there is one.
    pub(super) async fn judged(
        &self,
        judging: &Judging,
        judge: &Judge,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Option<Verdicts> {
        let options = &self.shared.options;
        let mut pairs = pairs(&self.episode, options.pairs, options.max_chars);
        pairs.retain(|pair| is_wanted(pair.step));
        let leaks = self.leaks(judging);
        let waiting: Mutex<Vec<(usize, Vec<Given>)>> = Mutex::default();
        let reading = tokio::sync::Mutex::default();
        let done = super::join_all(pairs.iter().map(|pair| async {
            let mut judged = self.judge(judge, judging, &leaks, pair).await?;
            self.choose(judge, judging, &leaks, pair, &mut judged).await?;
            let given: Vec<Given> = judged.tried.iter().map(|it| it.1.clone()).collect();
            lock(&waiting).extend((!given.is_empty()).then_some((judged.step, given)));
            Some((judged, self.taught_so_far(judging, &waiting, &reading).await?))
        }));
        let (mut judged, mut taught) = (Vec::new(), Vec::new());
        for done in done.await {
            let (of_pair, sets) = done?;
            judged.push(of_pair);
            taught.extend(sets);
        }
        Some(Verdicts { judged, taught })
    }

    /// Asks for the votes on a step alone.
    pub(super) async fn judge_ahead(&self, judging: &Judging, judge: &Judge, step: usize) {
        let leaks = self.leaks(judging);
        for pair in pairs(&self.episode, self.shared.options.pairs, self.shared.options.max_chars) {
            if pair.step == step {
                drop(self.judge(judge, judging, &leaks, &pair).await);
            }
        }
    }

    fn leaks(&self, judging: &Judging) -> Leaks {
        let tests = judging.tests.get(&self.episode.task.id);
        Leaks::new(judging.leak_words, tests.map(String::as_str))
    }

    async fn judge(&self, judge: &Judge, judging: &Judging, leaks: &Leaks, pair: &Pair) -> Option<Judged> {
        let evaluation = async {
            match judging.evaluates {
                true => Some(judge.evaluate(&self.episode, pair).await),
                false => None,
            }
        };
        let (votes, evaluation) = tokio::join!(judge.votes(&self.episode, pair), evaluation);
        let is_open = |error: &Error| error.leaves_open();
        let is_cut = votes.iter().any(|vote| vote.as_ref().is_err_and(is_open))
            || evaluation.as_ref().is_some_and(|it| it.as_ref().is_err_and(is_open));
        if self.shared.brake.is_stopped() && is_cut {
            return None;
        }
        let read: Vec<Vote> = votes.iter().flatten().cloned().collect();
        let verdict = Verdict::of(&read, judge.manner.votes, judging.quorum);
        let next = self.whole_next_state(pair);
        let (mut hints, mut found) = (Vec::new(), Vec::new());
        for hint in &verdict.hints {
            match leaks.find(hint, &next) {
                Some(leak) => found.push(leak),
                None => hints.push(hint.clone()),
            }
        }
        let (tried, no_exchange) = Default::default();
        Some(Judged { step: pair.step, votes, verdict, hints, leaks: found, evaluation, tried, no_exchange })
    }

    /// What a pair's next state says, uncut.
    fn whole_next_state(&self, pair: &Pair) -> String {
        let messages = &self.episode.messages[self.episode.steps()[pair.step].next_state.clone()];
        let texts = messages.iter().filter_map(|message| Some(message.content.as_ref()?.text()));
        texts.chain(pair.next.iter().map(|said| said.text.clone())).collect::<Vec<_>>().join("\n")
    }

    /// Chooses the hints that are tried and what the teacher is given for each: its words, the exchange that takes the
    /// place of all, or one that the judge is asked for. Nothing where the run was stopped before that was there.
    async fn choose(
        &self,
        judge: &Judge,
        judging: &Judging,
        leaks: &Leaks,
        pair: &Pair,
        judged: &mut Judged,
    ) -> Option<()> {
        let hints = judged.to_try(judging.choice);
        match &judging.exchange {
            Some(exchange) => judged.tried.extend(hints.into_iter().take(1).map(|it| (it, exchange.clone()))),
            None if judging.asks_exchanges() => return self.show(judge, leaks, pair, hints, judged).await,
            None => judged.tried.extend(hints.into_iter().map(|hint| (hint.clone(), Given::Text(hint)))),
        }
        Some(())
    }

    /// Has the judge write an exchange that shows each hint, and keeps those that give nothing away.
    async fn show(
        &self,
        judge: &Judge,
        leaks: &Leaks,
        pair: &Pair,
        hints: Vec<String>,
        judged: &mut Judged,
    ) -> Option<()> {
        let next = self.whole_next_state(pair);
        let leak = |it: &Message| leaks.find(&it.content.as_ref()?.text(), &next);
        let asked = hints.iter().map(|hint| judge.exchange(&self.episode, pair, hint));
        for (answer, hint) in super::join_all(asked).await.into_iter().zip(&hints) {
            match answer {
                Ok(Some(messages)) => match messages.iter().find_map(leak) {
                    Some(leak) => judged.leaks.push(leak),
                    None => judged.tried.push((hint.clone(), Given::Exchange(messages))),
                },
                Err(error) if self.shared.brake.is_stopped() && error.leaves_open() => return None,
                unusable => judged.no_exchange.push(unusable.err()),
            }
        }
        Some(())
    }

    /// Has the teacher read under all hints that wait for it, unless they are being read already: what comes up while
    /// an episode is read goes together into the next plan.
    async fn taught_so_far(
        &self,
        judging: &Judging,
        waiting: &Mutex<Vec<(usize, Vec<Given>)>>,
        reading: &tokio::sync::Mutex<()>,
    ) -> Option<Vec<Vec<Taught>>> {
        let turn = reading.lock().await;
        let batch = std::mem::take(&mut *lock(waiting));
        // Hints that are compared need irrelevant words beside them; the others only where that was asked for.
        let mut sets: BTreeMap<(bool, usize), Hints> = BTreeMap::new();
        for (step, hints) in batch {
            let is_compared = hints.len() > 1;
            for (nth, hint) in hints.into_iter().enumerate() {
                sets.entry((is_compared, nth)).or_default().insert(step, hint);
            }
        }
        let read = super::join_all(sets.into_iter().map(|((is_compared, _), hints)| async move {
            self.under(&Through::Hint(judging.placement, judging.placebo || is_compared), hints).await
        }));
        let read = read.await;
        drop(turn);
        let taught = super::join_all(read.into_iter().map(|under| self.taught(under))).await;
        taught.into_iter().collect()
    }
}
