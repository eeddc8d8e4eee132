//! The program as a user runs it, the library as a stranger uses it, and rules about the source.

#[path = "../support/program.rs"]
mod program;
#[path = "../support/student.rs"]
mod student;
#[path = "../support/mod.rs"]
mod support;

mod agent;
mod cli;
mod collect;
mod credit;
mod credit_shipping;
mod dataset_cli;
mod distill;
mod embedded_cli;
mod keys;
mod model_cli;
mod probe;
mod quickstart;
mod runs;
mod score;
mod scripted;
mod serve;
mod signals;
mod stranger;
mod tidy;
mod weights;
