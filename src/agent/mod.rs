//! The agent: what a student may do while it works on a task, and how its work is checked.
//!
//! Owns the loop in which a student works on a task, the sandbox an episode lives in, the tools it
//! calls, the verifier that runs a task's hidden tests, and the reward. `episode_loop` is the place to
//! begin reading. Models and their formats are left to `model` and `chat`.

pub(crate) mod episode_loop;
pub(crate) mod force;
pub(crate) mod options;
pub(crate) mod reward;
pub(crate) mod setting;
pub(crate) mod tools;
mod transcript;
mod turn;
pub(crate) mod verifier;

pub use self::episode_loop::run_episode;
pub use self::options::{ForcedCalls, LoopOptions};
pub use self::reward::{CustomReward, RewardRule};
pub use self::setting::{AgentSetting, EpisodePlace, OnStep, SoFar, Speech};
pub use self::tools::schema::schemas;
pub use self::tools::{ToolLimits, ToolResult, Toolbox};
pub use self::verifier::{Level, TestReport, Verifier, Worth};
