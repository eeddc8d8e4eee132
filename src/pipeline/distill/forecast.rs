//! What distilling an episode would ask and cost at most, without asking anybody.
//!
//! Nobody knows beforehand which pairs are hintable, so every pair is taken to get a hint of some length.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::file_of;
use super::judged::Judging;
use crate::judge;
use crate::pipeline::ask::Jobs;
use crate::pipeline::outline::{Framing, outline};
use crate::pipeline::{Loss, Reader, Texts};
use crate::ship::compact;
use backsight_core::credit::distill::{Audit, knows_likeliest};
use backsight_core::episode::{Episode, Message, Role};
use backsight_core::hint::{Choice, Pair, Pairs, Question, pairs};
use backsight_core::lens::{Given, HintLens, Lens, Lenses, PlaceboLens, PlainLens};
use backsight_core::model::Limits;
use backsight_core::plan::Figures;

/// A hint as long as hints are.
const A_HINT: &str = "Before you go on, look at what the tool answered and check the name of the file, because it is \
                      easily mistaken for another one that stands beside it in the same directory.";

/// What would be done for an episode, at most.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    /// The episode.
    pub id: String,
    /// Whether it is there already, as it is asked for.
    pub is_made: bool,
    /// The candidates that what is there was made with, where they are fewer than are asked for.
    pub fewer: Option<u64>,
    /// Its steps.
    pub steps: usize,
    /// Pairs to be judged.
    pub pairs: usize,
    /// Votes on them, and what else the judge is asked about them.
    pub votes: usize,
    /// Tokens of the questions, each once; about, without the judge's tokenizer.
    pub judge_tokens: u64,
    /// What the teacher is asked.
    pub teacher: Figures,
    /// What the student is asked about its own tokens.
    pub student: Figures,
}

/// Everything that is the same for all episodes.
pub struct Forecaster<'a> {
    /// What conversations lack.
    pub framing: Framing,
    /// Which actions are paired with what.
    pub pairs: Pairs,
    /// How hints are found; none where every action is re-read as it is.
    pub judging: Option<Judging>,
    /// How the judge is asked.
    pub manner: judge::Manner,
    /// Whether a teacher is asked at all.
    pub distils: bool,
    /// Candidates at each position.
    pub k: usize,
    /// Where they are the student's own: how many.
    pub student_k: Option<usize>,
    /// Which actions the student reads again.
    pub audit: Audit,
    /// What decides how an episode comes out, as far as it is known without a server.
    pub settings: Value,
    /// The models of teacher and judge, where they have a name of their own.
    pub roles: [Option<String>; 2],
    /// The most tokens a sequence may have.
    pub limit: Option<usize>,
    /// The tokenizer and template.
    pub texts: Texts,
    /// What the server does with requests.
    pub limits: Limits,
    /// Where what is made is kept.
    pub run_dir: &'a Path,
}

/// Who reads actions, and how.
#[derive(Clone, Copy)]
enum Reading<'a> {
    /// The student, as they are.
    Student,
    /// The teacher, as they are.
    Plain,
    /// The teacher, under hints and perhaps as many words about nothing.
    Under(&'a Judging, bool),
}

impl Forecaster<'_> {
    /// What would be done for one.
    pub fn forecast(&self, episode: &Episode) -> Result<Forecast, Loss> {
        let steps = episode.steps().len();
        let forecast = Forecast { id: episode.id.clone(), steps, ..Forecast::default() };
        let about = compact::about(&file_of(self.run_dir, &episode.id)).unwrap_or_default();
        if about["settings"] == self.settings && about["lost"] == json!({}) && self.are_roles_of(&about) {
            return Ok(Forecast { is_made: true, ..forecast });
        }
        let fewer = about["wanted_k"].as_u64().filter(|k| *k < self.k as u64);
        let all: Vec<usize> = (0..steps).collect();
        let student = self.figures(episode, &self.read_by_student(episode), Reading::Student)?;
        let forecast = Forecast { fewer, student, ..forecast };
        let Some(judging) = self.judging.as_ref().filter(|_| self.distils) else {
            let teacher =
                if self.distils { self.figures(episode, &all, Reading::Plain)? } else { Figures::default() };
            return Ok(Forecast { teacher, ..forecast });
        };
        let pairs = pairs(episode, self.pairs, self.manner.max_chars);
        let hinted: Vec<usize> = pairs.iter().map(|pair| pair.step).collect();
        let is_compared = judging.choice == Choice::Effective && self.manner.votes > 1;
        let with_placebo = judging.placebo || is_compared;
        let set = self.figures(episode, &hinted, Reading::Under(judging, with_placebo))?;
        let mut teacher = set;
        let n_hints = if is_compared { self.manner.votes } else { 1 };
        (1..n_hints).for_each(|_| teacher += set);
        let judge_tokens = self.judge_tokens(episode, judging, &pairs, n_hints);
        let exchanges = if judging.asks_exchanges() { n_hints } else { 0 };
        let votes = pairs.len() * (self.manner.votes + usize::from(judging.evaluates) + exchanges);
        Ok(Forecast { pairs: pairs.len(), votes, judge_tokens, teacher, ..forecast })
    }

    /// Whether what is there was made by the models that are named.
    fn are_roles_of(&self, about: &Value) -> bool {
        let then = about["found"]["roles"].as_array().into_iter().flatten().skip(1);
        self.roles.iter().zip(then).all(|(now, then)| now.as_ref().is_none_or(|now| then == now.as_str()))
    }

    /// Tokens of everything the judge is asked about these pairs, what it is asked several times once; about, without its
    /// tokenizer.
    fn judge_tokens(&self, episode: &Episode, judging: &Judging, pairs: &[Pair], n_hints: usize) -> u64 {
        let one = |question: Question<'_>, pair: &Pair| {
            let shown = question.shown(episode, pair, self.manner.max_chars);
            (self.texts.n_tokens(question.words()) + self.texts.n_tokens(&shown)) as u64
        };
        let of_pair = |pair: &Pair| {
            let evaluation = if judging.evaluates { one(Question::Evaluation, pair) } else { 0 };
            let exchange = if judging.asks_exchanges() { one(Question::Exchange(A_HINT), pair) } else { 0 };
            one(Question::Hint, pair) + evaluation + exchange * n_hints as u64
        };
        pairs.iter().map(of_pair).sum()
    }

    /// The steps whose own logprobs are not all known, and as many as are looked at again.
    fn read_by_student(&self, episode: &Episode) -> Vec<usize> {
        let is_whole = |step: &usize| {
            let tokens = episode.steps()[*step].tokens.as_ref();
            tokens.is_some_and(|it| {
                let ids = episode.sequences.get(it.sequence).and_then(|ids| ids.get(it.span.range()));
                let is_known = |k| knows_likeliest(ids.unwrap_or_default(), &it.top, k);
                self.student_k.is_none_or(is_known)
                    && !it.logprobs.is_empty()
                    && it.logprobs.iter().all(Option::is_some)
            })
        };
        let (whole, mut wanted): (Vec<usize>, Vec<usize>) = (0..episode.steps().len()).partition(is_whole);
        let n_audited = match self.audit {
            Audit::Off => 0,
            Audit::Sample => 1,
            Audit::All => whole.len(),
        };
        // Which one is drawn is not known to matter here.
        wanted.extend(whole.into_iter().rev().take(n_audited));
        wanted
    }

    /// What reading these steps takes.
    fn figures(&self, episode: &Episode, steps: &[usize], reading: Reading<'_>) -> Result<Figures, Loss> {
        let lenses = match reading {
            Reading::Student | Reading::Plain => Lenses::default().and(Arc::new(PlainLens), self.k),
            Reading::Under(judging, with_placebo) => {
                let hint = |step: &usize| {
                    let said = format!("{A_HINT} ({step})");
                    let text = || match judging.asks_exchanges() {
                        true => Given::Exchange(
                            [Role::User, Role::Assistant].map(|role| Message::text(role, &said)).into(),
                        ),
                        false => Given::Text(said.clone()),
                    };
                    ((episode.id.clone(), *step), judging.exchange.clone().unwrap_or_else(text))
                };
                let given: HashMap<_, _> = steps.iter().map(hint).collect();
                let hint = Arc::new(HintLens { given, placement: judging.placement });
                let lenses = Lenses::default().and(Arc::clone(&hint) as Arc<dyn Lens>, self.k);
                match with_placebo {
                    true => lenses.and(Arc::new(PlaceboLens { like: hint, seed: 0 }), self.k),
                    false => lenses,
                }
            }
        };
        let n_tokens = |text: &str| self.texts.n_tokens(text);
        let outline = outline(episode, &self.framing, &lenses, &n_tokens)?;
        let reader = Reader { texts: &self.texts, framing: &self.framing, limit: self.limit };
        let read = reader.read(episode, &outline);
        let jobs = Jobs::new(&read, &lenses, 0);
        // Which candidates they are does not matter here.
        let jobs = match reading {
            Reading::Plain | Reading::Under(..) if self.student_k.is_some() => {
                jobs.choosing(|_, n| vec![Arc::from([0]); n])
            }
            _ => jobs,
        };
        Ok(jobs.plan(&read, |step, _| steps.contains(&step), &self.limits).figures())
    }
}
