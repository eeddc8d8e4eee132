//! Models wherever they run: servers of every kind, the embedded engine, and what makes them reliable.
//!
//! Owns the clients, one file per kind of server, and everything between them and the wire. The
//! trait they implement and its requests and answers are the core's. Deliberately absent: any
//! knowledge of episodes, lenses or credit.

pub(crate) mod anthropic;
mod body;
mod breaker;
pub(crate) mod budget;
mod echo;
pub(crate) mod embedded;
pub(crate) mod endpoint;
pub(crate) mod key;
pub(crate) mod kind;
pub(crate) mod kinds;
pub(crate) mod noise;
pub(crate) mod notice;
pub(crate) mod open;
pub(crate) mod openai;
pub(crate) mod opened;
pub(crate) mod outlook;
pub(crate) mod planned;
pub(crate) mod probe;
pub(crate) mod remote;
mod repo;
mod resting;
pub(crate) mod retry;
mod room;
pub(crate) mod route;
mod sampled;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod sglang;
mod tokenizers;
pub(crate) mod transport;
pub(crate) mod vllm;
pub(crate) mod weights;

pub use backsight_core::model::{
    ChatAnswer, ChatRequest, Constraint, Error, Finish, GenerateRequest, Generated, Limits, Model, Place,
    SampledToken, Sampling, Scored, ToldVersion, Usage, check_chosen, check_ids, check_length, check_prompt,
    check_top_k,
};

pub use self::anthropic::Anthropic;
pub use self::budget::{Allowance, Meter, ModelRole};
pub use self::kind::{Kind, Remote, ServerInfo, Wanted};
pub use self::kinds::{KINDS, named as kind_named};
pub use self::open::open;
pub use self::openai::OpenAi;
pub use self::opened::Opened;
pub use self::planned::{JobScores, score_planned};
pub use self::probe::PROBE_TEXT;
pub use self::sglang::Sglang;
pub use self::transport::{Settings, Transport};
pub use self::vllm::Vllm;
