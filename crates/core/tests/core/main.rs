//! The crate as others use it.

mod hcapo;
mod lens;
mod plan;
#[path = "../../../../tests/support/plans.rs"]
mod plans;
mod python;
