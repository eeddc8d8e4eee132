//! What every step was worth: from scores and rewards to credit, advantages and weights.
//!
//! Owns the methods' mathematics, one file each. Pure: a method gets plain data and gives plain
//! data, never panics and never yields NaN. Deliberately absent: where scores come from and where
//! credit is written.

pub mod advantage;
pub mod distill;
pub mod hcapo;
pub mod sum;
