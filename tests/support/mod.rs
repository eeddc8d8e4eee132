//! What several tests share: models made of arithmetic, servers that answer with them, a plain client, a checker of schemas.
#![allow(dead_code, reason = "each test uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

pub mod http;
pub mod hub_stand_in;
pub mod lenses;
pub mod machine;
pub mod plain;
pub mod plans;
pub mod schema;
pub mod scripted;
pub mod stand_in;
pub mod stub;
pub mod tiny;
pub mod toy;
