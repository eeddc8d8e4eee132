//! Foreign formats: one file per producer, each headed by who produces it, which version, and the surprise.
//!
//! Owns the bytes that other programs write and read, and their conversion to domain values by
//! hand. Deliberately absent: sockets, retries and every decision about what to ask; those are the
//! business of `model`.

pub mod atropos;
pub mod fault;
pub mod hindsight;
pub mod messages;
pub mod openai_episodes;
pub mod pi_result;
pub mod pi_session;
pub mod published;
pub mod record;
