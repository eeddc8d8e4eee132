//! How much processor time a sandbox has used: all its processes together, the dead included.
//!
//! Read by a process of ours that the sandbox's programs cannot reach.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::family;

/// What the kernel counts processor time in for users, on every machine that we know the system calls of.
const TICKS_PER_SECOND: u64 = 100;

/// What tells the time used.
#[derive(Debug)]
pub enum Meter {
    /// A control group's file, which misses nothing.
    Group(File),
    /// The sum over our descendants. A child that its parent does not collect is forgotten when it ends, so a
    /// program can hide some of its time; it cannot add to another's.
    Family,
}

impl Meter {
    /// The time used so far.
    pub fn read(&self) -> Duration {
        let counted = match self {
            Self::Group(file) => read_group(file),
            Self::Family => None,
        };
        // One who ends between two looks may be seen twice, in itself and in its parent, but not in both of
        // two countings: it is gone then.
        counted.unwrap_or_else(|| count_family().min(count_family()))
    }
}

fn count_family() -> Duration {
    let n_ticks: u64 = family::members().iter().map(|it| it.ticks).sum();
    Duration::from_millis(n_ticks.saturating_mul(1000 / TICKS_PER_SECOND))
}

fn read_group(file: &File) -> Option<Duration> {
    let mut bytes = [0; 256];
    let n_bytes = file.read_at(&mut bytes, 0).ok()?;
    parse_group(str::from_utf8(bytes.get(..n_bytes)?).ok()?)
}

/// Version 1 gives nanoseconds, version 2 a table whose first line is in microseconds.
fn parse_group(text: &str) -> Option<Duration> {
    match text.lines().next()?.split_once(' ') {
        Some(("usage_usec", number)) => number.parse().ok().map(Duration::from_micros),
        Some(_) => None,
        None => text.trim().parse().ok().map(Duration::from_nanos),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let cases = [
            ("2500000000\n", Some(2500)),
            ("usage_usec 1500000\nuser_usec 1000000\n", Some(1500)),
            ("user_usec 1\n", None),
            ("", None),
        ];
        for (text, millis) in cases {
            assert_eq!(parse_group(text), millis.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn what_we_use_ourselves_counts() {
        let before = Meter::Family.read();
        while Meter::Family.read() < before + Duration::from_millis(50) {
            std::hint::black_box(family::members());
        }
    }
}
