//! Which requests give the scores that are asked for.
