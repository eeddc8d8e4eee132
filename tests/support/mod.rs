//! What several tests share: a model made of arithmetic, servers that answer with it, a plain client, a checker of schemas.
#![allow(dead_code, reason = "each test uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

pub mod plain;
pub mod schema;
pub mod stand_in;
pub mod toy;
