//! What can go wrong with a model, sorted by what helps: trying again, changing the request, or giving up.
//!
//! Owns [`Error`]. A message never contains an API key: requests are described by their route, never
//! by their headers.

use std::fmt::Display;

/// Why a call gave no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// No connection, a reset, a time-out: the server may come back.
    #[error("{server} cannot be reached: {why}")]
    Unreachable {
        /// Which server.
        server: String,
        /// What the connection said.
        why: String,
    },
    /// The server is there but overloaded, starting or broken (408, 425, 429, 5xx).
    #[error("{server} is not able to answer now: HTTP {status}: {message}")]
    Unavailable {
        /// Which server.
        server: String,
        /// The HTTP status.
        status: u16,
        /// What it said, shortened.
        message: String,
    },
    /// The server refused this very request; asking again cannot help.
    #[error("{server} refused the request: HTTP {status}: {message}")]
    Refused {
        /// Which server.
        server: String,
        /// The HTTP status.
        status: u16,
        /// What it said, shortened.
        message: String,
    },
    /// The answer is cut, not JSON, or not what was asked for.
    #[error("{server} answered with something unusable: {why}")]
    Garbled {
        /// Which server.
        server: String,
        /// What is wrong with it.
        why: String,
    },
    /// The request cannot be made: too long, an id outside the vocabulary, an unknown model.
    #[error("{what}")]
    Invalid {
        /// What is wrong, naming the thing.
        what: String,
        /// What to do about it.
        help: String,
    },
    /// The model cannot do this at all.
    #[error("{server} cannot {what}")]
    Unsupported {
        /// Which server.
        server: String,
        /// What was asked of it.
        what: String,
        /// What to do instead.
        help: String,
    },
    /// A limit the user set on requests or tokens is used up.
    #[error("the limit of {limit} {what} for the {role} is reached")]
    Budget {
        /// `student`, `teacher` or `judge`.
        role: String,
        /// `requests` or `tokens`.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The server came back as another model: no answer of it belongs to this run.
    #[error("{server} is another model than before: {why}")]
    Changed {
        /// Which server.
        server: String,
        /// How that shows.
        why: String,
    },
    /// Our own disk failed while keeping an answer; nothing is claimed to be stored.
    #[error("the ledger cannot be used: {why}")]
    Ledger {
        /// What the store said.
        why: String,
        /// What to do about it.
        help: String,
    },
}

impl Error {
    /// An error of the request itself, and what to do about it.
    pub fn invalid(what: impl Display, help: impl Into<String>) -> Self {
        Self::Invalid { what: what.to_string(), help: help.into() }
    }

    /// Something that a model cannot do at all, and what to do instead.
    pub fn unsupported(server: impl Into<String>, what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Unsupported { server: server.into(), what: what.into(), help: help.into() }
    }

    /// An answer that is none, and why.
    pub fn garbled(server: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Garbled { server: server.into(), why: why.into() }
    }

    /// Whether it leaves the request open: nobody has said that it cannot be answered.
    pub fn leaves_open(&self) -> bool {
        self.may_pass() || self.stops_the_run()
    }

    /// Whether the same request may succeed later.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unavailable { .. } | Self::Garbled { .. })
    }

    /// Whether the server wants another key, or one at all.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Refused { status: 401 | 403, .. })
    }

    /// What the user can do about it, where there is something to do.
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Invalid { help, .. } | Self::Unsupported { help, .. } | Self::Ledger { help, .. } => {
                Some(help)
            }
            Self::Budget { .. } => Some("raise the limit; the same command continues where this one stopped"),
            Self::Unreachable { .. } | Self::Unavailable { .. } => Some(
                "see that the server runs and the address is right; the same command continues where this one stopped",
            ),
            Self::Changed { .. } => Some(
                "answers from before are kept; serve the old model and the same command continues, \
                 or give the same command now and it begins anew with this one",
            ),
            Self::Refused { .. } if self.is_denied() => Some(
                "check the API key: --api-key-env names the variable that holds it, --api-key-file the file",
            ),
            Self::Garbled { .. } => {
                Some("see that the address is that of a model's server, and look at its log")
            }
            Self::Refused { .. } => None,
        }
    }

    /// Whether nothing more can be asked of this model in this run.
    pub fn stops_the_run(&self) -> bool {
        matches!(
            self,
            Self::Unsupported { .. } | Self::Budget { .. } | Self::Changed { .. } | Self::Ledger { .. }
        )
    }
}
