//! How a step's context is re-seen.
