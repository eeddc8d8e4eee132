//! What an episode is given: the student and how it is spoken to, its tools' place and limits, its reward.

use std::sync::Arc;

use super::options::{LoopOptions, bad_option};
use super::reward::RewardRule;
use super::tools::ToolLimits;
use super::transcript::Transcript;
use crate::model::Model;
use backsight_chat::format::ChatFormat;
use backsight_chat::parse::Parser;
use backsight_core::episode::Episode;
use backsight_sandbox::Sandboxes;

/// How a student is spoken to.
#[derive(Clone)]
pub enum Speech {
    /// In its own tokens: what it saw and sampled is recorded to the id.
    Exact(Arc<ChatFormat>),
    /// Over a chat route, where ids are not to be had; calls that the server leaves in the text are read by the parser.
    Chat(Option<Parser>),
}

/// Everything episodes of one student have in common.
#[derive(Clone)]
pub struct AgentSetting {
    /// The student, already counted and recorded.
    pub student: Arc<dyn Model>,
    /// How it is spoken to.
    pub speech: Speech,
    /// Where its tools run.
    pub sandboxes: Arc<Sandboxes>,
    /// What its tools may take and say.
    pub tool_limits: ToolLimits,
    /// How its work is rewarded.
    pub reward: RewardRule,
    /// What the loop is allowed.
    pub options: LoopOptions,
    /// Who is told of every step that has ended.
    pub on_step: Option<OnStep>,
}

/// Is told of an episode that goes on, and the number of its step that has ended.
pub type OnStep = Arc<dyn Fn(&SoFar<'_>, usize) + Send + Sync>;

/// An episode that goes on.
pub struct SoFar<'a>(pub(super) &'a Transcript);

impl SoFar<'_> {
    /// Its name.
    pub fn id(&self) -> &str {
        &self.0.episode.id
    }

    /// A copy of what there is of it.
    pub fn episode(&self) -> Episode {
        self.0.so_far()
    }
}

impl AgentSetting {
    /// The setting, if its parts make sense together.
    pub fn checked(self) -> Result<Self, String> {
        self.options.check()?;
        let Some(forced) = &self.options.forced_calls else { return Ok(self) };
        forced.check()?;
        match self.speech {
            Speech::Exact(_) => Ok(self),
            Speech::Chat(_) => {
                let must = "absent for a server that takes no token ids";
                Err(bad_option("forced_calls", &forced.turns.to_string(), must))
            }
        }
    }
}

/// Which episode this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpisodePlace {
    /// Which attempt at the task, from 0. With the task's id it names every draw.
    pub episode: usize,
    /// Seconds since 1970; templates that print the date are given this.
    pub started_at: i64,
}
