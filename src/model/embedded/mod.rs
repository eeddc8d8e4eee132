//! The embedded model: exact log-probabilities computed in the process.

pub mod attention;
pub mod config;
pub mod constrain;
pub mod elementwise;
pub mod engine;
pub mod forward;
pub mod gemm;
pub mod generate;
pub mod head;
pub mod kv;
pub mod load;
pub mod model;
pub mod sample;
#[expect(unsafe_code, reason = "vector instructions; the module says why its use of them is sound")]
pub mod simd;
pub mod weights;
mod worker;
