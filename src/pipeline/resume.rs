//! What an earlier run left beside an episode, and what of it can be used.
//!
//! Owns the comparison of settings, by key, and of tokens. A complete file is left alone; of a partial one
//! every score is used that was measured in the same way on the same tokens. Numbers that were measured
//! differently are never mixed.

use std::sync::Arc;

use super::Loss;
use super::outline::Framing;
use super::read::{ReadEpisode, ReadStep};
use crate::store::hindsight::{Hindsight, Settings};
use crate::wire::hindsight::{HindsightScores, HindsightTokens, Provenance, ScoredStep, StepTokens};
use backsight_core::credit::hcapo::{Params, Ratio};
use backsight_core::episode::{Episode, Role};
use backsight_core::lens::Lenses;
use backsight_core::tokens::{Logprob, TokenId};
use backsight_core::tree::Tip;

/// What a file is asked to be made with.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The hyper-parameters.
    pub settings: Settings,
    /// Model, tokenizer, lens and the rest.
    pub provenance: Provenance,
}

impl Asked {
    /// The same for one episode: hashes of what was supplied stand in its file only where they were used. Recorded ids
    /// take nothing up, and what an episode has of its own stays.
    #[must_use]
    pub fn for_episode(&self, episode: &Episode, framing: &Framing) -> Self {
        let (mut asked, is_rendered) = (self.clone(), !episode.is_exact());
        let frames = |role| matches!(role, Role::System | Role::Developer);
        let has_system = episode.messages.first().is_some_and(|it| frames(it.role));
        let provenance = &mut asked.provenance;
        provenance.system_sha256 = provenance.system_sha256.take().filter(|_| is_rendered && !has_system);
        let takes_tools = is_rendered && !framing.tools.is_empty() && episode.tools.is_empty();
        provenance.tools_sha256 = provenance.tools_sha256.take().filter(|_| takes_tools);
        provenance.tool_result_chars = provenance.tool_result_chars.filter(|_| is_rendered);
        if !is_rendered {
            provenance.other.remove(VARS);
        }
        asked
    }

    /// The same, with what only a server or a tokenizer tells taken to be as in a file.
    #[must_use]
    pub fn assuming(&self, old: &HindsightScores) -> Self {
        let (mut asked, old) = (self.clone(), old.provenance.clone().unwrap_or_default());
        let provenance = &mut asked.provenance;
        provenance.model = provenance.model.take().or(old.model);
        provenance.version = provenance.version.take().or(old.version);
        provenance.tokenizer_sha256 = provenance.tokenizer_sha256.take().or(old.tokenizer_sha256);
        provenance.template_sha256 = provenance.template_sha256.take().or(old.template_sha256);
        asked
    }
}

/// The key of the variables' hash.
pub const VARS: &str = "vars_sha256";

/// The keys in which a file differs from what is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Differences {
    /// Credit can be computed again with them.
    pub computed: Vec<&'static str>,
    /// The model would have to be asked again.
    pub measured: Vec<&'static str>,
}

impl Differences {
    /// Whether what is asked follows from a file, but is not what it says.
    pub fn are_computed(&self) -> bool {
        self.measured.is_empty() && !self.computed.is_empty()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.computed.is_empty() && self.measured.is_empty()
    }

    /// All keys.
    pub fn names(&self) -> String {
        [self.computed.as_slice(), &self.measured].concat().join(", ")
    }
}

/// Whether every step has credit, and every score through the lenses that are asked for. What was measured otherwise is
/// whole as it is; so is a file that does not say what was measured.
pub fn is_complete(old: &Hindsight, asked: &Asked, lenses: &Lenses) -> bool {
    let Some(tokens) = usable(old, asked) else { return old.scores.is_complete() };
    let places: Vec<Option<usize>> = lenses.keys().iter().map(|key| tokens.lens(key)).collect();
    let has_all = |step: &StepTokens| places.iter().all(|place| step.through(*place).is_some());
    old.scores.is_complete() && tokens.steps.iter().all(has_all)
}

/// The keys in which scores differ from what is asked. Published files do not say how they were measured.
pub fn differences(scores: &HindsightScores, asked: &Asked) -> Differences {
    let recorded = Settings::recorded(&scores.hyperparams);
    let mut computed = differing_params(&recorded.params, &asked.settings.params);
    let mut measured =
        scores.provenance.as_ref().map(|it| differing_measures(it, &asked.provenance)).unwrap_or_default();
    if recorded.params.ratio != asked.settings.params.ratio {
        let has_plain = scores.steps.iter().all(|step| step.plain_mean_logprob.is_some());
        let is_there = asked.settings.params.ratio == Ratio::Mean || has_plain;
        (if is_there { &mut computed } else { &mut measured }).push("ratio");
    }
    let (old, new) = (recorded.max_logprob_tokens, asked.settings.max_logprob_tokens);
    if old != new {
        let is_there = scores.provenance.is_some() && (old == 0 || (new != 0 && new < old));
        (if is_there { &mut computed } else { &mut measured }).push("max_logprob_tokens");
    }
    Differences { computed, measured }
}

fn differing_params(old: &Params, new: &Params) -> Vec<&'static str> {
    let pairs = [
        ("t_temp", old.t_temp == new.t_temp),
        ("gamma", old.gamma == new.gamma),
        ("c_min", old.c_min == new.c_min),
        ("c_max", old.c_max == new.c_max),
        ("alpha", old.alpha == new.alpha),
        ("smoothing", old.smoothing == new.smoothing),
        ("smooth_within_subtasks", old.within_subtasks == new.within_subtasks),
        ("dense_rewards", old.dense_rewards == new.dense_rewards),
    ];
    differing(pairs)
}

fn differing_measures(old: &Provenance, new: &Provenance) -> Vec<&'static str> {
    let other = |key: &str| old.other.get(key) == new.other.get(key);
    let pairs = [
        ("model", old.model == new.model),
        ("version", old.version == new.version),
        ("tokenizer", old.tokenizer_sha256 == new.tokenizer_sha256),
        ("template", old.template_sha256 == new.template_sha256),
        ("system", old.system_sha256 == new.system_sha256),
        ("tools", old.tools_sha256 == new.tools_sha256),
        ("lens", old.lens == new.lens),
        ("hindsight_template", old.lens_sha256 == new.lens_sha256),
        ("placement", old.placement == new.placement),
        ("tool_result_chars", old.tool_result_chars == new.tool_result_chars),
        ("tool_text", other("tool_text")),
        ("var", other(VARS)),
        ("now", other("now")),
    ];
    differing(pairs)
}

/// The keys that are not the same.
fn differing<const N: usize>(keys: [(&'static str, bool); N]) -> Vec<&'static str> {
    keys.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect()
}

/// The scores of a step that an earlier run measured, by lens.
pub type OldScores = Vec<Option<Vec<Option<Logprob>>>>;

/// None for any step.
pub fn no_scores(episode: &ReadEpisode, lenses: &Lenses) -> Vec<OldScores> {
    vec![vec![None; lenses.len()]; episode.steps.len()]
}

/// What can be used of an earlier file: for each step the scores of the very tokens it has now, measured as is asked.
pub fn reusable(
    old: &Hindsight,
    episode: &mut ReadEpisode,
    asked: &Asked,
    lenses: &Lenses,
) -> Vec<OldScores> {
    let Some(tokens) = usable(old, asked) else { return no_scores(episode, lenses) };
    let places: Vec<Option<usize>> = lenses.keys().iter().map(|key| tokens.lens(key)).collect();
    let n_tokens = asked.settings.max_logprob_tokens;
    let tree = Arc::make_mut(&mut episode.tree);
    let grown = |before: &mut Tip, (shared, own): (usize, &[TokenId])| {
        *before = tree.grow(tree.cut(*before, shared), own);
        Some(*before)
    };
    let sequences: Vec<Tip> = tokens.sequences().scan(Tip::EMPTY, grown).collect();
    let of_step = |(idx, step): (usize, &Result<ReadStep, Loss>)| {
        let step = step.as_ref().ok()?;
        let scored = at_step(&old.scores.steps, idx, |it| it.step_index)?;
        let tokens_of = at_step(&tokens.steps, idx, |it| it.step_index)?;
        let (sequence, [_, end]) = (*sequences.get(tokens_of.sequence?)?, tokens_of.span?);
        let now = tree.cut(episode.sequences[step.place.0], step.place.1.end());
        let is_same = tree.are_equal(tree.cut(sequence, end), now) && same_window(scored, step);
        let n_action = step.place.1.len();
        let n_wanted = if n_tokens == 0 { n_action } else { n_tokens.min(n_action) };
        let whole = |place: &Option<usize>| whole(tokens_of.through(*place)?, n_wanted);
        is_same.then(|| places.iter().map(whole).collect())
    };
    let nothing = || vec![None; lenses.len()];
    episode.steps.iter().enumerate().map(|it| of_step(it).unwrap_or_else(nothing)).collect()
}

/// What a list has of a step: at its own place as a rule.
fn at_step<T>(all: &[T], step: usize, step_of: impl Fn(&T) -> usize) -> Option<&T> {
    let is_own = |it: &&T| step_of(it) == step;
    all.get(step).filter(is_own).or_else(|| all.iter().find(is_own))
}

/// The tokens of a file whose scores were measured as is asked.
fn usable<'h>(old: &'h Hindsight, asked: &Asked) -> Option<&'h HindsightTokens> {
    let differing = differing_measures(old.scores.provenance.as_ref()?, &asked.provenance);
    old.tokens.as_ref().filter(|_| differing.is_empty())
}

/// Whether a file has a step's score through a lens, as far as can be told without tokens.
pub fn recorded(old: &Hindsight, asked: &Asked, step: usize, lens: &str) -> bool {
    let found = |tokens: &HindsightTokens| {
        at_step(&tokens.steps, step, |it| it.step_index)?.through(tokens.lens(lens)).map(drop)
    };
    usable(old, asked).and_then(found).is_some()
}

fn same_window(old: &ScoredStep, new: &ReadStep) -> bool {
    let dropped = &new.window.dropped;
    old.dropped_messages == (!dropped.is_empty()).then_some([dropped.start, dropped.end])
}

/// Old scores that are whole as far as they are wanted: one missing logprob is reason to ask again.
fn whole(logprobs: &[Option<Logprob>], n_wanted: usize) -> Option<Vec<Option<Logprob>>> {
    let wanted = logprobs.len().checked_sub(n_wanted).map(|unused| &logprobs[unused..]);
    wanted.is_some_and(|wanted| wanted.iter().all(Option::is_some)).then(|| logprobs.to_vec())
}
