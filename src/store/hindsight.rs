//! The score files beside an episode: reading, writing, and computing credit again from what they hold.
//!
//! Owns [`recompute`] and [`assemble`], which share the way from logprobs to means to credit: what was just measured goes
//! it exactly as what was recorded does later, when a hyper-parameter changes. That needs `hindsight_scores.json` and, for
//! a change of which tokens count, its sidecar; never a server.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Number};

use super::atomic;
use super::episodes::{BadFile, Loaded, list, name};
use super::layout::EPISODES;
use crate::wire::fault::Fault;
use crate::wire::hindsight::{
    HindsightScores, HindsightTokens, Hyperparams, Provenance, ScoredStep, StepTokens, TOKENS_FORMAT,
    TOKENS_VERSION,
};
use backsight_core::credit::hcapo::{Credit, Params, Ratio, StepScore, credit, mean_logprob};
use backsight_core::episode::TokenSource;
use backsight_core::hash::sha256;
use backsight_core::lens::Window;
use backsight_core::subtasks::PlanPlace;
use backsight_core::tokens::{Logprob, TokenId, TokenSpan};

/// The lens, with its placement, whose files have the published names.
pub const PUBLISHED_LENS: &str = "outcome-first";

/// The file with the scores through a lens, which is named with its placement.
pub fn scores_file(lens: &str) -> String {
    format!("hindsight_scores{}.json", suffix(lens))
}

/// The file with their tokens.
pub fn tokens_file(lens: &str) -> String {
    format!("hindsight_tokens{}.json", suffix(lens))
}

/// The file of a run with the advantages that follow from the scores through a lens.
pub fn credit_file(lens: &str) -> String {
    format!("credit{}.jsonl", suffix(lens))
}

fn suffix(lens: &str) -> String {
    result_of(lens).map(|it| format!(".{it}")).unwrap_or_default()
}

/// What results through a lens are called, if they are not the published ones.
pub fn result_of(lens: &str) -> Option<&str> {
    Some(lens).filter(|it| *it != PUBLISHED_LENS)
}

/// What credit is computed with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The hyper-parameters.
    pub params: Params,
    /// The last so many tokens of an action count; 0 is all of them.
    pub max_logprob_tokens: usize,
}

impl Settings {
    /// What a file was made with.
    pub fn recorded(hyperparams: &Hyperparams) -> Self {
        Self { params: hyperparams.params(), max_logprob_tokens: hyperparams.scored_tail() }
    }
}

/// Where an episode's files are: in its own directory, or below the run directory where it is one of many in a file.
pub fn directory_of(loaded: &Loaded, run_dir: &Path) -> PathBuf {
    if loaded.line.is_none() && loaded.path.is_dir() {
        return loaded.path.clone();
    }
    run_dir.join(EPISODES).join(file_name(&loaded.episode.id))
}

/// The directories with scores through a lens below an input directory and in a run directory, in natural order of their
/// names.
pub fn find(input: &Path, run_dir: &Path, lens: &str) -> Result<Vec<PathBuf>, BadFile> {
    let has_scores = |directory: &PathBuf| directory.join(scores_file(lens)).is_file();
    if has_scores(&input.to_owned()) {
        return Ok(vec![input.to_owned()]);
    }
    let own = run_dir.join(EPISODES);
    let beside = if input.is_file() { Vec::new() } else { list(input)? };
    let below = if own.is_dir() { list(&own)? } else { Vec::new() };
    let beside = beside.into_iter().filter(|it| name(it).starts_with("episode_"));
    Ok(beside.chain(below).filter(has_scores).collect())
}

/// An id as a file's name: other characters than letters, digits and `-_` are written as `%` and their bytes.
pub fn file_name(id: &str) -> String {
    const LONGEST: usize = 200;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let name: String = id
        .bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    match name.len() {
        0 => "%".to_owned(),
        1..=LONGEST => name,
        // What a name loses in length it gets back as a hash, so that no two episodes meet.
        _ => format!("{}%{}", &name[..LONGEST - 65], sha256(id)),
    }
}

/// Both files of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Hindsight {
    /// The scores.
    pub scores: HindsightScores,
    /// The tokens, where they were kept.
    pub tokens: Option<HindsightTokens>,
}

/// How many steps an episode's file has scores for; none where there is no file that can be read.
pub fn n_scored(directory: &Path, lens: &str) -> usize {
    let scores = read_file(&directory.join(scores_file(lens)), HindsightScores::parse);
    scores.ok().flatten().map_or(0, |scores| scores.n_scored())
}

/// Reads the files of a lens in an episode's directory; `None` when it has none. Tokens count only if the scores were made of
/// them: whoever was killed between the two files leaves new tokens beside old scores.
pub fn read(directory: &Path, lens: &str) -> Result<Option<Hindsight>, BadFile> {
    let scores = read_file(&directory.join(scores_file(lens)), HindsightScores::parse)?;
    let Some(scores) = scores else { return Ok(None) };
    let named = scores.provenance.as_ref().and_then(|it| it.sidecar_sha256.as_deref());
    let own = |text: &str| {
        let is_own = named == Some(sha256(text).as_str());
        is_own.then(|| HindsightTokens::parse(text)).transpose()
    };
    let tokens = read_file(&directory.join(tokens_file(lens)), own)?.flatten();
    Ok(Some(Hindsight { scores, tokens }))
}

fn read_file<T>(path: &Path, parse: impl Fn(&str) -> Result<T, Fault>) -> Result<Option<T>, BadFile> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).map(Some).map_err(|fault| BadFile::fault(path, fault)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(BadFile::new(path, error)),
    }
}

/// Writes the files, each atomically, the sidecar first: scores are complete only with what they rest on, and say what
/// that is.
pub fn write(directory: &Path, lens: &str, hindsight: &Hindsight) -> Result<(), BadFile> {
    let failed = |error: io::Error| BadFile::new(directory, error);
    let (scores_name, tokens_name) = (scores_file(lens), tokens_file(lens));
    std::fs::create_dir_all(directory).map_err(failed)?;
    atomic::sweep(directory, |name| name == scores_name || name == tokens_name).map_err(failed)?;
    let mut scores = hindsight.scores.clone();
    if let Some(tokens) = &hindsight.tokens {
        let text = tokens.to_text().map_err(|error| failed(error.into()))?;
        scores.provenance.get_or_insert_default().sidecar_sha256 = Some(sha256(&text));
        write_file(&directory.join(tokens_name), &text)?;
    }
    let text = scores.to_text().map_err(|error| failed(error.into()))?;
    write_file(&directory.join(scores_name), &text)
}

fn write_file(path: &Path, text: &str) -> Result<(), BadFile> {
    atomic::write(path, text.as_bytes()).map_err(|error| BadFile::new(path, error))
}

/// What scoring gave for one step.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredStep {
    /// Which sequence the action is in, and where; none when its tokens are not known.
    pub place: Option<(usize, TokenSpan)>,
    /// How many tokens stood before the action, what the first lens adds included.
    pub n_context: usize,
    /// The logprobs of the action's last tokens through each lens, or why there are none; nothing where a lens does not
    /// apply.
    pub views: Vec<Option<Result<Vec<Option<Logprob>>, String>>>,
    /// What was left out of the context.
    pub window: Window,
}

impl MeasuredStep {
    /// A step that could not be read.
    pub fn lost(why: String) -> Self {
        Self { place: None, n_context: 0, views: vec![Some(Err(why))], window: Window::default() }
    }
}

/// What scoring gave for one episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What the lenses are called; hindsight's is the first.
    pub lenses: Vec<String>,
    /// The conversation's tokens without a lens: how many of the sequence before each begins with, and what follows.
    pub sequences: Vec<(usize, Vec<TokenId>)>,
    /// Whether those are the sampled ones.
    pub token_source: TokenSource,
    /// One per step.
    pub steps: Vec<MeasuredStep>,
    /// Where the numbers come from.
    pub provenance: Provenance,
}

/// Makes the files of a newly scored episode, whose steps stand at `places`, or says why there is no credit to compute.
pub fn assemble(
    loaded: &Loaded,
    places: &[PlanPlace],
    measured: Measured,
    settings: &Settings,
) -> Result<Hindsight, String> {
    let Measured { lenses, sequences, token_source, steps, provenance } = measured;
    let reference = reference_among(&lenses);
    let all = loaded.episode.steps().iter().zip(places).zip(steps).enumerate();
    let steps = all.map(|(idx, ((step, place), measured))| {
        let scored = scored_step(idx, step.message_idx, place, &measured, &lenses);
        let tokens = step_tokens(idx, measured);
        Ok((with_means(scored, &tokens, reference, settings)?, tokens))
    });
    let (steps, step_tokens): (Vec<_>, Vec<_>) =
        steps.collect::<Result<Vec<_>, String>>()?.into_iter().unzip();
    let scores = HindsightScores {
        episode_id: loaded.file_id.clone(),
        reward: loaded.file_reward.clone().ok_or("the episode has no reward")?,
        frozen_scores: loaded.file_scores.clone(),
        dense_rewards_used: None,
        num_steps: None,
        num_subtasks_covered: None,
        subtask_reward_range: None,
        steps,
        pi_hind_mean: None,
        hyperparams: Hyperparams::new(&settings.params, settings.max_logprob_tokens),
        partial: None,
        provenance: Some(provenance),
        other: Map::new(),
    };
    let (mut shared, sequences): (Vec<usize>, Vec<_>) = sequences.into_iter().unzip();
    if shared.iter().all(|n| *n == 0) {
        shared.clear();
    }
    let tokens = HindsightTokens {
        format: TOKENS_FORMAT.to_owned(),
        version: TOKENS_VERSION,
        episode_id: loaded.file_id.clone(),
        tokens: token_source.name().to_owned(),
        steps: step_tokens,
        lenses,
        sequences,
        shared,
    };
    Ok(Hindsight { scores: with_credit(scores, &settings.params), tokens: Some(tokens) })
}

fn scored_step(
    step_index: usize,
    message_index: usize,
    place: &PlanPlace,
    measured: &MeasuredStep,
    lenses: &[String],
) -> ScoredStep {
    let Window { dropped, n_dropped_tokens } = &measured.window;
    let hindsight = measured.views.first().and_then(Option::as_ref);
    ScoredStep {
        // A server is asked from the token before the first scored one on.
        logprob_start_len: hindsight.is_some_and(Result::is_ok).then(|| measured.n_context.saturating_sub(1)),
        skipped_action_tokens: Some(0),
        error: no_score(measured, lenses),
        step_index,
        message_index,
        subtask_id: place.subtask.clone(),
        subtask_reward: place.reward.and_then(Number::from_f64),
        phase: Some(place.phase.name().to_owned()),
        dropped_messages: (!dropped.is_empty()).then_some([dropped.start, dropped.end]),
        dropped_tokens: (!dropped.is_empty()).then_some(*n_dropped_tokens),
        ..ScoredStep::default()
    }
}

fn step_tokens(step_index: usize, MeasuredStep { place, views, .. }: MeasuredStep) -> StepTokens {
    StepTokens {
        step_index,
        sequence: place.map(|(sequence, _)| sequence),
        span: place.map(|(_, span)| [span.start(), span.end()]),
        logprobs: views.into_iter().map(|view| view?.ok()).collect(),
    }
}

/// Why a step lacks a score: hindsight's, or else another, which matters only where credit needs it.
fn no_score(measured: &MeasuredStep, lenses: &[String]) -> Option<String> {
    let mut views = measured.views.iter().zip(lenses);
    match views.next().and_then(|(view, _)| view.as_ref()) {
        Some(Err(why)) => Some(why.clone()),
        Some(Ok(_)) => views.find_map(|(view, lens)| {
            let why = view.as_ref()?.as_ref().err()?;
            Some(format!("the action has no score under the {lens} lens: {why}"))
        }),
        None => Some("the lens has nothing to say about this step".to_owned()),
    }
}

/// The same with credit for every step that was scored: as the file has it, or computed as the file was made.
pub fn credited(found: Hindsight) -> Result<Hindsight, String> {
    let lacks_credit = |step: &ScoredStep| !step.has_failed() && step.credit(true).is_none();
    if !found.scores.steps.iter().any(lacks_credit) {
        return Ok(found);
    }
    let scores = recompute(&found, &Settings::recorded(&found.scores.hyperparams))?;
    Ok(Hindsight { scores, ..found })
}

/// Computes all credit of an episode from its recorded values, or says why they do not give any; what was measured is
/// kept.
pub fn recompute(old: &Hindsight, settings: &Settings) -> Result<HindsightScores, String> {
    let Hindsight { scores: old, tokens } = old;
    let by_step: BTreeMap<usize, &StepTokens> =
        tokens.iter().flat_map(|tokens| &tokens.steps).map(|step| (step.step_index, step)).collect();
    let mut hyperparams = Hyperparams::new(&settings.params, settings.max_logprob_tokens);
    if by_step.is_empty() {
        // The means stay what they are, over tokens that only the file can tell.
        hyperparams.max_logprob_tokens = old.hyperparams.max_logprob_tokens;
        if settings.max_logprob_tokens != old.hyperparams.scored_tail() {
            return Err(no_tokens(old.hyperparams.max_logprob_tokens));
        }
    }
    let is_ours = old.partial.is_some();
    let reference = tokens.as_ref().and_then(|tokens| reference_among(&tokens.lenses));
    let again = |step: &ScoredStep| {
        let tokens = by_step.get(&step.step_index);
        let is_scored = step.mean_logprob.is_some() || tokens.is_some_and(|it| it.through(Some(0)).is_some());
        if !step.has_failed() && !is_scored {
            return Err(not_measured(step.step_index));
        }
        // A published file writes a number for a step that failed; ours never does.
        let mean_logprob = step.mean_logprob.filter(|_| is_ours || !step.has_failed());
        let step = ScoredStep { mean_logprob, ..step.clone() };
        tokens.map_or(Ok(step.clone()), |tokens| with_means(step, tokens, reference, settings))
    };
    let steps: Vec<ScoredStep> = old.steps.iter().map(again).collect::<Result<_, _>>()?;
    let lacks_plain = steps.iter().all(|step| step.plain_mean_logprob.is_none());
    if settings.params.ratio == Ratio::Lift && !steps.is_empty() && lacks_plain {
        return Err(NO_PLAIN.to_owned());
    }
    Ok(with_credit(HindsightScores { steps, hyperparams, ..old.clone() }, &settings.params))
}

const NO_PLAIN: &str = "no step has a score under the plain lens, which lift needs; \
                        help: score again with --ratio lift, without --recompute";

fn no_tokens(recorded: Option<i64>) -> String {
    let recorded = recorded.map_or_else(|| "what it was".to_owned(), |it| it.to_string());
    format!(
        "the tokens' logprobs are not recorded, so max_logprob_tokens must stay {recorded}; help: score again without --recompute"
    )
}

fn not_measured(step_index: usize) -> String {
    format!(
        "step {step_index} has no `mean_logprob` and no `error`, and no logprobs are recorded for it; help: score it again with backsight credit"
    )
}

/// Where what hindsight's probability is compared with stands among lenses.
fn reference_among(lenses: &[String]) -> Option<usize> {
    let reference = Ratio::Lift.reference()?.key();
    lenses.iter().position(|it| *it == reference)
}

/// A step with the means over those of its logprobs that count, hindsight's the first of them.
fn with_means(
    mut step: ScoredStep,
    tokens: &StepTokens,
    reference: Option<usize>,
    settings: &Settings,
) -> Result<ScoredStep, String> {
    let Some([start, end]) = tokens.span else { return Ok(step) };
    let total = end - start;
    let wanted =
        if settings.max_logprob_tokens == 0 { total } else { total.min(settings.max_logprob_tokens) };
    // The mean over the last of them; none when they were not scored or one has no logprob.
    let tail = |lens| -> Result<Option<f64>, String> {
        let Some(logprobs) = tokens.through(lens) else { return Ok(None) };
        let (scored, step_index) = (logprobs.len(), step.step_index);
        let unused = scored.checked_sub(wanted).ok_or_else(|| {
            format!(
                "step {step_index}: {wanted} of its tokens are asked for and the last {scored} were scored; help: score again without --recompute"
            )
        })?;
        Ok(mean_logprob(logprobs[unused..].iter().copied()))
    };
    (step.mean_logprob, step.plain_mean_logprob) = (tail(Some(0))?, tail(reference)?);
    let skipped = total - wanted;
    let skipped_before = step.skipped_action_tokens.unwrap_or(0);
    step.logprob_start_len =
        step.logprob_start_len.map(|start| start.saturating_sub(skipped_before) + skipped);
    step.action_token_count = Some(wanted);
    step.total_action_tokens = Some(total);
    step.skipped_action_tokens = Some(skipped);
    if tokens.through(Some(0)).is_some() && step.mean_logprob.is_none() {
        step.error = Some("a token of the action has no logprob".to_owned());
    }
    Ok(step)
}

/// Fills in everything that follows from the measured values; a step whose values do not give any says why.
fn with_credit(mut scores: HindsightScores, params: &Params) -> HindsightScores {
    let input: Vec<StepScore<'_>> = scores.steps.iter().map(step_score).collect();
    let reward = scores.reward.as_f64().unwrap_or(f64::NAN);
    let Credit { steps, pi_mean, dense_rewards_used } = credit(&input, reward, params);
    for (step, credit) in scores.steps.iter_mut().zip(steps) {
        let error = step.error.take().filter(|error| !error.is_empty());
        step.error = credit.err().map(|why| error.unwrap_or_else(|| why.to_string()));
        let credit = credit.ok();
        step.pi_hind = credit.map(|it| it.pi_hind);
        step.rho = credit.map(|it| it.rho);
        step.q_h = credit.map(|it| it.q_h);
        step.q_h_smoothed = credit.map(|it| it.q_h_smoothed);
    }
    let nothing = (scores.steps.is_empty()).then(|| Number::from(0));
    scores.pi_hind_mean = pi_mean.and_then(Number::from_f64).or(nothing);
    scores.dense_rewards_used = Some(dense_rewards_used);
    scores.num_steps = Some(scores.steps.len());
    scores.num_subtasks_covered = Some(groups_covered(&scores.steps));
    scores.subtask_reward_range = Some(reward_range(&scores.steps));
    scores.partial = Some(scores.steps.iter().any(|step| step.error.is_some()));
    scores
}

fn step_score(step: &ScoredStep) -> StepScore<'_> {
    let reward = step.subtask_reward.as_ref().and_then(Number::as_f64);
    StepScore { lens: step.mean_logprob, plain: step.plain_mean_logprob, group: step.group(), reward }
}

fn groups_covered(steps: &[ScoredStep]) -> usize {
    let group = |step: &ScoredStep| {
        let subtask = step.subtask_id.clone().filter(|id| !id.is_empty());
        subtask.or_else(|| step.phase.clone()).unwrap_or_else(|| "?".to_owned())
    };
    steps.iter().map(group).collect::<BTreeSet<_>>().len()
}

/// The least and the largest reward, as they are written; zeros where no step has one.
fn reward_range(steps: &[ScoredStep]) -> [Number; 2] {
    let rewards = || steps.iter().filter_map(|step| step.subtask_reward.as_ref());
    let by_value = |a: &&Number, b: &&Number| a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0));
    let zero = || Number::from(0);
    [rewards().min_by(by_value), rewards().max_by(by_value)].map(|it| it.cloned().unwrap_or_else(zero))
}
