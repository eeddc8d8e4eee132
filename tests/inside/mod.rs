//! Tests of what only the library itself can reach; compiled into its unit tests.
//!
//! They name it `backsight`, as the tests from outside do.

mod bad_servers;
mod clients;
mod dataset;
mod hindsight;
mod hub;
mod hub_downloads;
mod ledger;
mod load;
mod plan_cost;
mod planned;
mod reward;
mod schema;
mod stand_in;
mod subtasks;
#[path = "../support/mod.rs"]
mod support;
mod weights;
mod whose;
mod wire_recorded;
