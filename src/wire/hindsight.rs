//! `hindsight_scores.json`, the published hindsight scorer's output, and its sidecar `hindsight_tokens.json`, our own.
//!
//! Owns both files' shapes. The scores are a superset of the published keys in the published order;
//! published readers look only at `steps[].q_h_smoothed` and `q_h`. The surprises: a step that failed
//! carries `mean_logprob` 0.0 in published files, but no such key in ours; integers stay integers
//! (`reward`, scores, an id); text is ASCII, indented by two, without a last line break; keys we do not
//! know are kept. What follows from the measured values may be missing; what was measured, the reward and
//! the messages it belongs to may not. The sidecar keeps token ids and every token's logprob, so that credit
//! can be computed again without a server.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use serde_with::skip_serializing_none;

use super::fault::Fault;
use super::named;
use backsight_core::credit::hcapo::{Params, Ratio, Smoothing};
use backsight_core::plan::Figures;
use backsight_core::python::{JsonStyle, json_dumps};
use backsight_core::tokens::{Logprob, TokenId};

/// The scores of one episode.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HindsightScores {
    /// As the episode's own files write it; null where the file does not say.
    #[serde(default)]
    pub episode_id: Value,
    /// The episode's reward.
    pub reward: Number,
    /// The subtasks' scores.
    #[serde(default)]
    pub frozen_scores: Map<String, Value>,
    /// Whether any step was rewarded by its subtask.
    pub dense_rewards_used: Option<bool>,
    /// How many steps follow.
    pub num_steps: Option<usize>,
    /// How many distinct subtasks or phases they belong to.
    pub num_subtasks_covered: Option<usize>,
    /// The least and the largest reward of a step.
    pub subtask_reward_range: Option<[Number; 2]>,
    /// One per assistant message.
    pub steps: Vec<ScoredStep>,
    /// Mean π_hind of the scored steps.
    pub pi_hind_mean: Option<Number>,
    /// What credit was computed with.
    #[serde(default)]
    pub hyperparams: Hyperparams,
    /// Whether a step has no credit. Published files do not say.
    pub partial: Option<bool>,
    /// Where the numbers come from. Published files do not say.
    pub provenance: Option<Provenance>,
    /// Keys of other programs.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One step.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScoredStep {
    /// Mean logprob of the scored tokens under the lens.
    pub mean_logprob: Option<f64>,
    /// How many tokens that is.
    pub action_token_count: Option<usize>,
    /// How many the action has.
    pub total_action_tokens: Option<usize>,
    /// How many at its beginning were not scored.
    pub skipped_action_tokens: Option<usize>,
    /// The index at which a server would be asked to begin for this step alone.
    pub logprob_start_len: Option<usize>,
    /// Why it has no credit.
    pub error: Option<String>,
    /// From 0.
    pub step_index: usize,
    /// Its message.
    pub message_index: usize,
    /// Its subtask, or null.
    #[serialize_always]
    pub subtask_id: Option<String>,
    /// What its subtask, or the plan, was found worth.
    pub subtask_reward: Option<Number>,
    /// `planning` or `executing`.
    pub phase: Option<String>,
    /// π_hind.
    pub pi_hind: Option<f64>,
    /// ρ.
    pub rho: Option<f64>,
    /// Q_H.
    pub q_h: Option<f64>,
    /// Q_H after smoothing.
    pub q_h_smoothed: Option<f64>,
    /// Mean logprob of the same tokens without the lens.
    pub plain_mean_logprob: Option<f64>,
    /// The messages `[first, end)` that were left out for want of context.
    pub dropped_messages: Option<[usize; 2]>,
    /// How many tokens those have.
    pub dropped_tokens: Option<usize>,
    /// Keys of other programs.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ScoredStep {
    /// What it is grouped by: its subtask, or its phase.
    pub fn group(&self) -> &str {
        let subtask = self.subtask_id.as_deref().filter(|id| !id.is_empty());
        subtask.or(self.phase.as_deref()).unwrap_or("planning")
    }

    /// Its Q_H for training, smoothed or not; none where it failed.
    pub fn credit(&self, smoothed: bool) -> Option<f64> {
        let wanted = self.q_h_smoothed.filter(|_| smoothed);
        wanted.or(self.q_h).filter(|_| !self.has_failed())
    }

    /// Whether it was asked for in vain. A published file writes numbers for such a step all the same.
    pub fn has_failed(&self) -> bool {
        self.error.is_some() || self.other.contains_key("skipped")
    }

    /// Whether it has credit, or what credit follows from.
    pub fn is_scored(&self) -> bool {
        !self.has_failed() && (self.credit(true).is_some() || self.mean_logprob.is_some())
    }
}

/// What credit was computed with. A value that a file does not tell is the published one.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hyperparams {
    /// T_temp.
    pub t_temp: f64,
    /// Discount per step.
    pub gamma: f64,
    /// Least ρ.
    pub c_min: f64,
    /// Largest ρ.
    pub c_max: f64,
    /// Weight of a step's own Q_H.
    pub alpha: f64,
    /// Whether Q_H was smoothed.
    pub smooth: bool,
    /// Whether steps are rewarded by their subtasks.
    pub dense_rewards: bool,
    /// The last so many tokens of an action were scored; 0 or less is all of them. Unlike the others it tells of the
    /// measurement, so it has no published value.
    pub max_logprob_tokens: Option<i64>,
    /// How it was smoothed. Published files always mean `recursive`.
    #[serde(with = "named::option")]
    pub smoothing: Option<Smoothing>,
    /// Whether only with steps of the same subtask.
    pub smooth_within_subtasks: Option<bool>,
    /// What ρ compares with. Published files always mean `mean`.
    #[serde(with = "named::option")]
    pub ratio: Option<Ratio>,
}

impl Default for Hyperparams {
    fn default() -> Self {
        let mut published = Self::new(&Params::PUBLISHED, 0);
        published.max_logprob_tokens = None;
        (published.smoothing, published.smooth_within_subtasks, published.ratio) = (None, None, None);
        published
    }
}

impl Hyperparams {
    /// As files have them.
    pub fn new(params: &Params, max_logprob_tokens: usize) -> Self {
        let Params { t_temp, gamma, c_min, c_max, alpha, .. } = *params;
        Self {
            t_temp,
            gamma,
            c_min,
            c_max,
            alpha,
            smooth: params.smoothing != Smoothing::None,
            dense_rewards: params.dense_rewards,
            max_logprob_tokens: Some(i64::try_from(max_logprob_tokens).unwrap_or(i64::MAX)),
            smoothing: Some(params.smoothing),
            smooth_within_subtasks: Some(params.within_subtasks),
            ratio: Some(params.ratio),
        }
    }

    /// As credit is computed with.
    pub fn params(&self) -> Params {
        let unsaid = if self.smooth { Smoothing::Recursive } else { Smoothing::None };
        Params {
            t_temp: self.t_temp,
            gamma: self.gamma,
            c_min: self.c_min,
            c_max: self.c_max,
            alpha: self.alpha,
            smoothing: self.smoothing.filter(|_| self.smooth).unwrap_or(unsaid),
            within_subtasks: self.smooth_within_subtasks.unwrap_or(false),
            dense_rewards: self.dense_rewards,
            ratio: self.ratio.unwrap_or(Ratio::Mean),
        }
    }

    /// How many tokens at an action's end are scored; 0 is all of them, as far as is told.
    pub fn scored_tail(&self) -> usize {
        self.max_logprob_tokens.and_then(|it| usize::try_from(it).ok()).unwrap_or(0)
    }
}

/// Where an episode's numbers come from.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// The version of this program.
    pub backsight: String,
    /// The model's name.
    pub model: Option<String>,
    /// What served it, with its version where it says.
    pub server: Option<String>,
    /// Its weights, as they were measured before and after.
    pub version: Option<String>,
    /// SHA-256 of the tokenizer.
    pub tokenizer_sha256: Option<String>,
    /// SHA-256 of the chat template.
    pub template_sha256: Option<String>,
    /// SHA-256 of the supplied system prompt; absent when none was.
    pub system_sha256: Option<String>,
    /// SHA-256 of the supplied tool schemas; absent when none were.
    pub tools_sha256: Option<String>,
    /// The lens.
    pub lens: Option<String>,
    /// SHA-256 of the lens's template.
    pub lens_sha256: Option<String>,
    /// Where the lens was written.
    pub placement: Option<String>,
    /// `exact` or `rendered`.
    pub tokens: Option<String>,
    /// SHA-256 of the sidecar with the tokens.
    pub sidecar_sha256: Option<String>,
    /// How many characters of a tool's result were kept; absent when all were.
    pub tool_result_chars: Option<usize>,
    /// What the plan cost.
    pub plan: Option<PlanFigures>,
    /// What else is worth knowing.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What a plan cost, in tokens and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFigures {
    /// Each step sent alone, without a cache.
    pub naive_tokens: u64,
    /// Sent.
    pub sent_tokens: u64,
    /// Expected in the server's cache.
    pub cached_tokens: u64,
    /// Expected to be computed.
    pub computed_tokens: u64,
    /// Requests.
    pub requests: u64,
}

impl From<Figures> for PlanFigures {
    fn from(figures: Figures) -> Self {
        Self {
            naive_tokens: figures.naive_tokens,
            sent_tokens: figures.sent_tokens,
            cached_tokens: figures.cached_tokens,
            computed_tokens: figures.computed_tokens(),
            requests: figures.requests,
        }
    }
}

impl HindsightScores {
    /// Reads a file, published or our own.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        serde_json::from_str(text).map_err(|error| Fault::json(&error))
    }

    /// The file's text, as Python's `json.dumps(indent=2)` writes it.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        Ok(json_dumps(&serde_json::to_value(self)?, &JsonStyle::default().indented("  ")))
    }

    /// Whether every step has credit.
    pub fn is_complete(&self) -> bool {
        self.steps.iter().all(|step| step.credit(true).is_some())
    }

    /// How many steps are scored.
    pub fn n_scored(&self) -> usize {
        self.steps.iter().filter(|step| step.is_scored()).count()
    }
}

/// What the sidecar's `format` says.
pub const TOKENS_FORMAT: &str = "backsight.hindsight_tokens";
/// And its `version`.
pub const TOKENS_VERSION: u64 = 2;

/// The sidecar: the tokens that were scored and what came back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HindsightTokens {
    /// [`TOKENS_FORMAT`].
    pub format: String,
    /// [`TOKENS_VERSION`].
    pub version: u64,
    /// As in the scores.
    pub episode_id: Value,
    /// `exact` or `rendered`.
    pub tokens: String,
    /// What the lenses are called, whose scores the steps have in this order.
    pub lenses: Vec<String>,
    /// The conversation without a lens, one sequence while history only grows; each without what it shares.
    pub sequences: Vec<Vec<TokenId>>,
    /// How many tokens each sequence begins with of the one before it; none where it is not said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<usize>,
    /// One per step.
    pub steps: Vec<StepTokens>,
}

/// Logprobs as numbers; one that is no logprob counts as absent.
mod numbers {
    use serde::{Deserialize, Deserializer, Serializer};

    use backsight_core::tokens::Logprob;

    type Logprobs = Vec<Option<Vec<Option<Logprob>>>>;

    pub fn serialize<S: Serializer>(views: &Logprobs, to: S) -> Result<S::Ok, S::Error> {
        let numbers = |view: &Vec<Option<Logprob>>| view.iter().map(|it| it.map(Logprob::get)).collect();
        to.collect_seq(views.iter().map(|view| view.as_ref().map(numbers) as Option<Vec<Option<f64>>>))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Logprobs, D::Error> {
        let views: Vec<Option<Vec<Option<f64>>>> = Vec::deserialize(from)?;
        let known = |number: Option<f64>| number.and_then(|it| Logprob::new(it).ok());
        Ok(views.into_iter().map(|view| Some(view?.into_iter().map(known).collect())).collect())
    }
}

/// One step's tokens.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTokens {
    /// From 0.
    pub step_index: usize,
    /// Which sequence the action is in; absent when its tokens are not known.
    pub sequence: Option<usize>,
    /// Where in it, `[start, end)`.
    pub span: Option<[usize; 2]>,
    /// The logprobs of the action's last tokens through each lens, null where there is none; null as a whole where the
    /// action was not scored through it.
    #[serde(with = "numbers")]
    pub logprobs: Vec<Option<Vec<Option<Logprob>>>>,
}

impl StepTokens {
    /// The logprobs through a lens.
    pub fn through(&self, lens: Option<usize>) -> Option<&Vec<Option<Logprob>>> {
        self.logprobs.get(lens?)?.as_ref()
    }
}

impl HindsightTokens {
    /// Reads a sidecar and checks that its spans lie inside its sequences.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let tokens: Self = serde_json::from_str(text).map_err(|error| Fault::json(&error))?;
        if tokens.format != TOKENS_FORMAT || tokens.version != TOKENS_VERSION {
            let (format, version) = (&tokens.format, tokens.version);
            return Err(Fault::new(format_args!("`{format}` version {version} is not known")));
        }
        let mut lengths = Vec::with_capacity(tokens.sequences.len());
        for (shared, own) in tokens.sequences() {
            if shared > lengths.last().copied().unwrap_or(0) {
                return Err(Fault::new("a sequence shares more than the one before it has"));
            }
            lengths.push(shared + own.len());
        }
        match tokens.steps.iter().find(|step| !tokens.holds(&lengths, step)) {
            Some(step) => {
                let idx = step.step_index;
                Err(Fault::new(format_args!(
                    "the span of step {idx} does not fit its sequence or its logprobs"
                )))
            }
            None => Ok(tokens),
        }
    }

    /// Which of the lenses has this name.
    pub fn lens(&self, key: &str) -> Option<usize> {
        self.lenses.iter().position(|it| it == key)
    }

    /// Each sequence: how many tokens it begins with of the one before it, and those that follow.
    pub fn sequences(&self) -> impl Iterator<Item = (usize, &[TokenId])> {
        let shared = self.shared.iter().copied().chain(std::iter::repeat(0));
        self.sequences.iter().zip(shared).map(|(own, shared)| (shared, own.as_slice()))
    }

    /// The sequences written out.
    pub fn whole_sequences(&self) -> Vec<Vec<TokenId>> {
        let mut whole: Vec<Vec<TokenId>> = Vec::with_capacity(self.sequences.len());
        for (shared, own) in self.sequences() {
            let before = whole.last().and_then(|before| before.get(..shared)).unwrap_or_default();
            whole.push([before, own].concat());
        }
        whole
    }

    fn holds(&self, lengths: &[usize], step: &StepTokens) -> bool {
        let n_scored = step.logprobs.iter().flatten().map(Vec::len).max();
        match (step.sequence.and_then(|idx| lengths.get(idx)), step.span) {
            (Some(length), Some([start, end])) => {
                start <= end && end <= *length && n_scored.unwrap_or(0) <= end - start
            }
            (None, None) => n_scored.is_none(),
            _ => false,
        }
    }

    /// The file's text, on one line.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}
