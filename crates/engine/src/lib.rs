//! The embedded model: exact log-probabilities and sampling in the process, without a server.
//!
//! Read it from the outside in: `engine` and `generate` are the jobs it can do, `worker` and `model`
//! put them behind the trait everybody uses; `forward` and `head` are the computation, in terms of
//! `gemm`, `attention` and `elementwise`, which are written on the sixteen lanes of `simd`; `load`,
//! `config` and `weights` bring a model into memory; `kv` is what it remembers. All arithmetic is f32,
//! and a number never depends on threads, batching or what was reused. Deliberately absent: GPUs, and
//! arithmetic on quantised weights, which would be another model's numbers.

mod attention;
mod config;
pub mod constrain;
mod elementwise;
pub mod engine;
mod forward;
mod gemm;
pub mod generate;
mod ggml;
mod head;
mod hf_config;
mod kv;
mod load;
pub mod model;
mod safetensors;
mod sample;
#[expect(unsafe_code, reason = "vector instructions; the module says why its use of them is sound")]
pub mod simd;
mod weights;
mod worker;

pub use config::{ConfigError, check_config};
pub use load::weight_files;
