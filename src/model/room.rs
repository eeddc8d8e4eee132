//! How many tokens an endpoint is given at once: a room that widens while it copes and narrows under pressure.
//!
//! Owns the arithmetic (additive increase, multiplicative decrease, as in TCP). Pure; who waits for
//! room, and in which order, is `endpoint`'s business.

use tokio::time::Instant;

/// Where a room starts and where it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoomRules {
    /// Tokens in flight at first.
    pub start: u64,
    /// Never more than this.
    pub cap: u64,
}

impl Default for RoomRules {
    fn default() -> Self {
        Self { start: 1 << 18, cap: 1 << 22 }
    }
}

/// The tokens an endpoint is working on, and how many it may be given.
#[derive(Clone, Debug)]
pub struct Room {
    rules: RoomRules,
    size: f64,
    in_flight: u64,
    last_cut: Option<Instant>,
}

impl Room {
    /// An idle room at its start size.
    pub fn new(rules: RoomRules) -> Self {
        Self { rules, size: rules.start.clamp(1, rules.cap.max(1)) as f64, in_flight: 0, last_cut: None }
    }

    /// Whether a request of this cost may start. An idle endpoint takes one of any size, so nothing waits for ever.
    pub fn fits(&self, tokens: u64) -> bool {
        self.in_flight == 0 || self.in_flight.saturating_add(tokens) as f64 <= self.size
    }

    /// A request starts.
    pub fn take(&mut self, tokens: u64) {
        self.in_flight = self.in_flight.saturating_add(tokens);
    }

    /// A request has ended, however it did.
    pub fn free(&mut self, tokens: u64) {
        self.in_flight = self.in_flight.saturating_sub(tokens);
    }

    /// An answer arrived. The room widens only while it is in use: by the answer's own tokens until
    /// the first pressure (doubling each round), by one such request per round afterwards.
    pub fn widen(&mut self, tokens: u64) {
        if (self.in_flight as f64) < self.size / 2.0 {
            return;
        }
        let share = if self.last_cut.is_some() { (tokens as f64 / self.size).min(1.0) } else { 1.0 };
        self.size = (self.size + tokens as f64 * share).min(self.rules.cap as f64);
    }

    /// The endpoint was pressed too hard by a request begun at `begun`: half of what it had in flight is
    /// allowed from now on. Requests begun before the last cut report the same pressure and do not cut again.
    pub fn cut(&mut self, begun: Instant, now: Instant) {
        if self.last_cut.is_none_or(|last| begun > last) {
            self.size = (self.size.min(self.in_flight as f64) / 2.0).max(1.0);
            self.last_cut = Some(now);
        }
    }

    #[cfg(test)]
    fn size(&self) -> u64 {
        self.size as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn room(start: u64) -> Room {
        Room::new(RoomRules { start, cap: 10_000 })
    }

    #[test]
    fn an_idle_endpoint_takes_a_request_of_any_size() {
        let mut room = room(10);
        assert!(room.fits(5_000));
        room.take(5_000);
        assert!(!room.fits(1));
        room.free(5_000);
        assert!(room.fits(5_000));
    }

    #[test]
    fn it_doubles_until_pressure_and_then_creeps() {
        let mut room = room(1_000);
        room.take(1_000);
        for _ in 0..10 {
            room.widen(100);
        }
        assert_eq!(room.size(), 2_000);
        let now = Instant::now();
        room.cut(now, now);
        assert_eq!(room.size(), 500);
        for _ in 0..5 {
            room.widen(100);
        }
        assert!((580..=600).contains(&room.size()), "{}", room.size());
    }

    #[test]
    fn one_burst_of_refusals_cuts_once() {
        let mut room = room(1_000);
        let begun = Instant::now();
        room.take(800);
        for ms in 1..20 {
            room.cut(begun, begun + Duration::from_millis(ms));
        }
        assert_eq!(room.size(), 400);
        room.cut(begun + Duration::from_millis(30), begun + Duration::from_millis(40));
        assert_eq!(room.size(), 200);
    }

    #[test]
    fn an_unused_window_does_not_widen() {
        let mut room = room(1_000);
        room.take(100);
        room.widen(100);
        assert_eq!(room.size(), 1_000);
    }

    proptest! {
        #[test]
        fn the_size_stays_between_one_and_the_cap(moves in prop::collection::vec((0u8..4, 0u64..3_000), 0..200)) {
            let mut room = room(500);
            let mut now = Instant::now();
            for (what, tokens) in moves {
                now += Duration::from_millis(1);
                match what {
                    0 => room.take(tokens),
                    1 => room.free(tokens),
                    2 => room.widen(tokens),
                    _ => room.cut(now, now),
                }
                prop_assert!((1..=10_000).contains(&room.size()));
            }
        }
    }
}
