//! Files: episodes as they are found on disk, and writing that survives a crash.
//!
//! Owns paths and reading and writing; what the bytes mean is the business of `wire`.

pub mod atomic;
pub mod episodes;
pub mod hindsight;
