//! The embedded model: exact log-probabilities computed in the process.

pub mod attention;
pub mod gemm;
pub mod kv;
#[expect(unsafe_code, reason = "vector instructions; the module says why its use of them is sound")]
pub mod simd;
