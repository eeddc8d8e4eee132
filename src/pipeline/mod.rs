//! Composition: episodes and a lens in, scored steps and their credit out.
//!
//! Read [`credit`] first. An episode is outlined and read (`outline`, `read`: which sequences hold its
//! actions), asked for (`ask`: a plan's requests, each after the one it builds upon), and what came back
//! is put together with what an earlier run left (`resume`). Deliberately absent: printing, and where
//! the settings come from.

mod ask;
pub mod credit;
mod exact;
mod loss;
pub mod outline;
pub mod paid;
pub mod read;
mod rendered;
pub mod resume;
mod shorten;

pub use self::ask::EMBEDDED;
pub use self::loss::{Loss, Reason};
