//! The score files beside an episode: reading, writing, and computing credit again from what they hold.
//!
//! Owns [`recompute`] and [`assemble`], which share one way to credit: a first scoring fills in what was
//! measured, and credit follows from it exactly as it does later when a hyper-parameter changes. That needs
//! `hindsight_scores.json` and, for a change of which tokens count, its sidecar; never a server.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Number};

use super::atomic;
use super::episodes::{Loaded, natural};
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

/// Why files could not be read, written or recomputed.
#[derive(Debug, thiserror::Error)]
pub enum HindsightError {
    /// The disk said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The file does not hold what it should.
    #[error("{}{}: {}", path.display(), fault.line.map(|line| format!(" line {line}")).unwrap_or_default(), fault.why)]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: Fault,
    },
    /// The recorded values do not say what is asked.
    #[error(transparent)]
    Recompute(#[from] CannotRecompute),
}

/// Why credit cannot be computed from what was recorded. The files are left as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotRecompute {
    /// More tokens are asked for than were scored.
    #[error(
        "step {step_index}: {wanted} of its tokens are asked for and the last {scored} were scored; help: score again without --recompute"
    )]
    NotScored {
        /// Which step.
        step_index: usize,
        /// How many are asked for.
        wanted: usize,
        /// How many there are.
        scored: usize,
    },
    /// Another choice of tokens needs every token's logprob.
    #[error(
        "the tokens' logprobs are not recorded, so max_logprob_tokens must stay {}; help: score again without --recompute",
        recorded.map_or_else(|| "what it was".to_owned(), |it| it.to_string())
    )]
    NoTokens {
        /// What the file was made with, where it says so.
        recorded: Option<i64>,
    },
    /// A step says neither what was measured nor why nothing was.
    #[error(
        "step {step_index} has no `mean_logprob` and no `error`, and no logprobs are recorded for it; help: score it again with backsight credit"
    )]
    NotMeasured {
        /// Which step.
        step_index: usize,
    },
    /// Nothing says what the episode was worth.
    #[error("the episode has no reward")]
    NoReward,
    /// No step was ever scored under the plain lens.
    #[error(
        "no step has a score under the plain lens, which lift needs; help: score again with --ratio lift, without --recompute"
    )]
    NoPlain,
}

/// Where an episode's files are: in its own directory, or below the run directory where it is one of many in a file.
pub fn directory_of(loaded: &Loaded, run_dir: &Path) -> PathBuf {
    if loaded.line.is_none() && loaded.path.is_dir() {
        return loaded.path.clone();
    }
    run_dir.join("episodes").join(file_name(&loaded.episode.id))
}

/// The directories with scores through a lens below an input directory and in a run directory, in natural order of their
/// names.
pub fn find(input: &Path, run_dir: &Path, lens: &str) -> io::Result<Vec<PathBuf>> {
    let has_scores = |directory: &PathBuf| directory.join(scores_file(lens)).is_file();
    if has_scores(&input.to_owned()) {
        return Ok(vec![input.to_owned()]);
    }
    let mut found = Vec::new();
    let beside = (!input.is_file()).then_some((input.to_owned(), "episode_"));
    for (parent, prefix) in beside.into_iter().chain([(run_dir.join("episodes"), "")]) {
        let entries = match std::fs::read_dir(&parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && parent != input => continue,
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<io::Result<Vec<String>>>()?;
        names.sort_by(|a, b| natural(a, b));
        let directories = names.iter().filter(|name| name.starts_with(prefix)).map(|name| parent.join(name));
        found.extend(directories.filter(has_scores));
    }
    Ok(found)
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
pub fn read(directory: &Path, lens: &str) -> Result<Option<Hindsight>, HindsightError> {
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

fn read_file<T>(path: &Path, parse: impl Fn(&str) -> Result<T, Fault>) -> Result<Option<T>, HindsightError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(HindsightError::Io { path: path.to_owned(), source }),
    };
    match parse(&text) {
        Ok(value) => Ok(Some(value)),
        Err(fault) => Err(HindsightError::Content { path: path.to_owned(), fault }),
    }
}

/// Writes the files, each atomically, the sidecar first: scores are complete only with what they rest on, and say what
/// that is.
pub fn write(directory: &Path, lens: &str, hindsight: &Hindsight) -> Result<(), HindsightError> {
    let failed = |source| HindsightError::Io { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let (scores_name, tokens_name) = (scores_file(lens), tokens_file(lens));
    atomic::sweep(directory, |name| [&scores_name, &tokens_name].iter().any(|it| *it == name))
        .map_err(failed)?;
    let mut scores = hindsight.scores.clone();
    if let Some(tokens) = &hindsight.tokens {
        let text = tokens.to_text().map_err(|error| failed(error.into()))?;
        scores.provenance.get_or_insert_default().sidecar_sha256 = Some(sha256(&text));
        write_file(directory.join(tokens_name), &text)?;
    }
    let text = scores.to_text().map_err(|error| failed(error.into()))?;
    write_file(directory.join(scores_name), &text)
}

fn write_file(path: PathBuf, text: &str) -> Result<(), HindsightError> {
    atomic::write(&path, text.as_bytes()).map_err(|source| HindsightError::Io { path, source })
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

/// Makes the files of a newly scored episode, whose steps stand at `places`.
pub fn assemble(
    loaded: &Loaded,
    places: &[PlanPlace],
    measured: Measured,
    settings: &Settings,
) -> Result<Hindsight, CannotRecompute> {
    let all = loaded.episode.steps().iter().zip(places).zip(&measured.steps).enumerate();
    let lenses = &measured.lenses;
    let steps = all
        .map(|(idx, ((step, place), measured))| scored_step(idx, step.message_idx, place, measured, lenses));
    let scores = HindsightScores {
        episode_id: loaded.file_id.clone(),
        reward: loaded.file_reward.clone().ok_or(CannotRecompute::NoReward)?,
        frozen_scores: loaded.file_scores.clone(),
        dense_rewards_used: None,
        num_steps: None,
        num_subtasks_covered: None,
        subtask_reward_range: None,
        steps: steps.collect(),
        pi_hind_mean: None,
        hyperparams: Hyperparams::new(&settings.params, settings.max_logprob_tokens),
        partial: Some(true),
        provenance: Some(measured.provenance.clone()),
        other: Map::new(),
    };
    let tokens = Some(step_tokens(loaded, measured));
    let mut hindsight = Hindsight { scores, tokens };
    hindsight.scores = with_settings(&hindsight, settings)?;
    Ok(hindsight)
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

fn step_tokens(loaded: &Loaded, measured: Measured) -> HindsightTokens {
    let numbers = |logprobs: &Vec<Option<Logprob>>| logprobs.iter().map(|it| it.map(Logprob::get)).collect();
    let step = |(step_index, step): (usize, &MeasuredStep)| StepTokens {
        step_index,
        sequence: step.place.map(|(sequence, _)| sequence),
        span: step.place.map(|(_, span)| [span.start(), span.end()]),
        logprobs: step.views.iter().map(|view| view.as_ref()?.as_ref().ok().map(numbers)).collect(),
    };
    let source = measured.token_source.name();
    let (mut shared, sequences): (Vec<usize>, Vec<_>) = measured.sequences.into_iter().unzip();
    if shared.iter().all(|n| *n == 0) {
        shared.clear();
    }
    HindsightTokens {
        format: TOKENS_FORMAT.to_owned(),
        version: TOKENS_VERSION,
        episode_id: loaded.file_id.clone(),
        tokens: source.to_owned(),
        steps: measured.steps.iter().enumerate().map(step).collect(),
        lenses: measured.lenses,
        sequences,
        shared,
    }
}

/// The same with credit for every step that was scored: as the file has it, or computed as the file was made.
pub fn credited(found: Hindsight) -> Result<Hindsight, CannotRecompute> {
    let lacks_credit = |step: &ScoredStep| !step.has_failed() && step.credit(true).is_none();
    if !found.scores.steps.iter().any(lacks_credit) {
        return Ok(found);
    }
    let scores = recompute(&found, &Settings::recorded(&found.scores.hyperparams))?;
    Ok(Hindsight { scores, ..found })
}

/// Computes all credit of an episode from its recorded values; what was measured is kept.
pub fn recompute(old: &Hindsight, settings: &Settings) -> Result<HindsightScores, CannotRecompute> {
    if let Some(step) = old.scores.steps.iter().find(|step| !is_measured(step, old.tokens.as_ref())) {
        return Err(CannotRecompute::NotMeasured { step_index: step.step_index });
    }
    let new = with_settings(old, settings)?;
    let lacks_plain = new.steps.iter().all(|step| step.plain_mean_logprob.is_none());
    if settings.params.ratio == Ratio::Lift && !new.steps.is_empty() && lacks_plain {
        return Err(CannotRecompute::NoPlain);
    }
    Ok(new)
}

/// Whether a step says what was measured, or why nothing was.
fn is_measured(step: &ScoredStep, tokens: Option<&HindsightTokens>) -> bool {
    let recorded = || tokens.iter().flat_map(|it| &it.steps).find(|it| it.step_index == step.step_index);
    step.has_failed()
        || step.mean_logprob.is_some()
        || recorded().is_some_and(|it| it.through(Some(0)).is_some())
}

/// The scores with credit by these settings; a step whose values do not give any says why.
fn with_settings(old: &Hindsight, settings: &Settings) -> Result<HindsightScores, CannotRecompute> {
    let by_step: BTreeMap<usize, &StepTokens> =
        old.tokens.iter().flat_map(|tokens| &tokens.steps).map(|step| (step.step_index, step)).collect();
    if by_step.is_empty() && settings.max_logprob_tokens != old.scores.hyperparams.scored_tail() {
        return Err(CannotRecompute::NoTokens { recorded: old.scores.hyperparams.max_logprob_tokens });
    }
    let ours = old.scores.partial.is_some();
    let reference = reference_of(old);
    let measured = old.scores.steps.iter().map(|step| {
        let logprobs = by_step.get(&step.step_index).map(|tokens| Logprobs { tokens, reference });
        measure(step, logprobs, ours, settings)
    });
    let steps: Vec<ScoredStep> = measured.collect::<Result<_, _>>()?;
    let mut hyperparams = Hyperparams::new(&settings.params, settings.max_logprob_tokens);
    if by_step.is_empty() {
        // The means stay what they are, over tokens that only the file can tell.
        hyperparams.max_logprob_tokens = old.scores.hyperparams.max_logprob_tokens;
    }
    Ok(with_credit(HindsightScores { steps, hyperparams, ..old.scores.clone() }, &settings.params))
}

/// Where what hindsight's probability is compared with stands among the lenses of a file.
fn reference_of(hindsight: &Hindsight) -> Option<usize> {
    hindsight.tokens.as_ref()?.lens(&Ratio::Lift.reference()?.key())
}

/// A step's logprobs, hindsight's the first of them.
#[derive(Clone, Copy)]
struct Logprobs<'a> {
    tokens: &'a StepTokens,
    reference: Option<usize>,
}

/// A step with the means over the tokens that count, and nothing computed from them yet.
fn measure(
    old: &ScoredStep,
    logprobs: Option<Logprobs<'_>>,
    ours: bool,
    settings: &Settings,
) -> Result<ScoredStep, CannotRecompute> {
    let mut step = ScoredStep { pi_hind: None, rho: None, q_h: None, q_h_smoothed: None, ..old.clone() };
    // A published file writes a number for a step that failed; ours never does.
    step.mean_logprob = step.mean_logprob.filter(|_| ours || !old.has_failed());
    let Some((it, [start, end])) = logprobs.and_then(|it| Some((it, it.tokens.span?))) else {
        return Ok(step);
    };
    let total = end - start;
    let wanted =
        if settings.max_logprob_tokens == 0 { total } else { total.min(settings.max_logprob_tokens) };
    let tail = |lens| tail_mean(it.tokens.through(lens), wanted, old.step_index);
    step.mean_logprob = tail(Some(0))?;
    step.plain_mean_logprob = tail(it.reference)?;
    let skipped = total - wanted;
    let first_start = old
        .logprob_start_len
        .zip(old.skipped_action_tokens)
        .map(|(start, skipped)| start - skipped.min(start));
    step.logprob_start_len = first_start.map(|start| start + skipped);
    step.action_token_count = Some(wanted);
    step.total_action_tokens = Some(total);
    step.skipped_action_tokens = Some(skipped);
    if it.tokens.through(Some(0)).is_some() && step.mean_logprob.is_none() {
        step.error = Some("a token of the action has no logprob".to_owned());
    }
    Ok(step)
}

/// The mean over the last `wanted` tokens; none when they were not scored or one has no logprob.
fn tail_mean(
    logprobs: Option<&Vec<Option<f64>>>,
    wanted: usize,
    step_index: usize,
) -> Result<Option<f64>, CannotRecompute> {
    let Some(logprobs) = logprobs else { return Ok(None) };
    let Some(unused) = logprobs.len().checked_sub(wanted) else {
        return Err(CannotRecompute::NotScored { step_index, wanted, scored: logprobs.len() });
    };
    Ok(mean_logprob(logprobs[unused..].iter().map(|it| it.and_then(|it| Logprob::new(it).ok()))))
}

/// Fills in everything that follows from the measured values.
fn with_credit(mut scores: HindsightScores, params: &Params) -> HindsightScores {
    let input: Vec<StepScore<'_>> = scores.steps.iter().map(step_score).collect();
    let reward = scores.reward.as_f64().unwrap_or(f64::NAN);
    let Credit { steps, pi_mean, dense_rewards_used } = credit(&input, reward, params);
    for (step, credit) in scores.steps.iter_mut().zip(steps) {
        match credit {
            Ok(credit) => {
                step.error = None;
                step.pi_hind = Some(credit.pi_hind);
                step.rho = Some(credit.rho);
                step.q_h = Some(credit.q_h);
                step.q_h_smoothed = Some(credit.q_h_smoothed);
            }
            Err(why) => {
                let error = step.error.take().filter(|error| !error.is_empty());
                step.error = error.or_else(|| Some(why.to_string()));
            }
        }
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
