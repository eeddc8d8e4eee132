//! Whether an endpoint is worth asking: a circuit breaker.
//!
//! Owns the three states. Closed: ask. Open: it failed several times in a row; leave it alone for a
//! while. Trial: one request finds out whether it is back. Pure; the clock is given.

use std::time::Duration;

use tokio::time::Instant;

/// When a circuit opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerRules {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open at first; each failed trial doubles it.
    pub cooldown: Duration,
    /// It is never longer.
    pub longest_cooldown: Duration,
}

impl Default for BreakerRules {
    fn default() -> Self {
        let (cooldown, longest_cooldown) = (Duration::from_secs(1), Duration::from_secs(30));
        Self { failures: 5, cooldown, longest_cooldown }
    }
}

/// What a caller who wants to send a request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Send it.
    Yes,
    /// Send it, as the one request that finds out.
    Trial,
    /// Do not. Ask again at that time, or, without one, when the trial under way has ended.
    No(Option<Instant>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Circuit {
    Closed,
    Open { until: Instant },
    Trial,
}

/// The health of one endpoint.
#[derive(Clone, Debug)]
pub struct Breaker {
    rules: BreakerRules,
    state: Circuit,
    in_a_row: u32,
    times_opened: u32,
    failing_since: Option<Instant>,
    /// Until when the server asked us to wait.
    asked_until: Option<Instant>,
}

impl Breaker {
    /// A closed circuit.
    pub fn new(rules: BreakerRules) -> Self {
        let (in_a_row, times_opened) = (0, 0);
        Self { rules, state: Circuit::Closed, in_a_row, times_opened, failing_since: None, asked_until: None }
    }

    /// Whether a request may be sent now; asking changes nothing.
    pub fn admission(&self, now: Instant) -> Admission {
        match self.state {
            Circuit::Closed => Admission::Yes,
            Circuit::Open { until } if now >= until => Admission::Trial,
            Circuit::Open { until } => Admission::No(Some(until)),
            Circuit::Trial => Admission::No(None),
        }
    }

    /// The trial begins.
    pub fn begin_trial(&mut self) {
        self.state = Circuit::Trial;
    }

    /// The endpoint answered; even an answer from before the circuit opened proves it alive.
    /// Says whether the circuit closed by this.
    pub fn succeed(&mut self) -> bool {
        let reopened = self.state != Circuit::Closed;
        *self = Self::new(self.rules);
        reopened
    }

    /// The endpoint failed; says whether the circuit opened by this. `at_least` is how long the server asked us to wait.
    ///
    /// What requests from before the opening report late is already known and changes nothing.
    pub fn fail(&mut self, was_trial: bool, at_least: Option<Duration>, now: Instant) -> bool {
        self.failing_since.get_or_insert(now);
        self.asked_until = self.asked_until.max(at_least.map(|wait| now + wait));
        self.in_a_row = self.in_a_row.saturating_add(1);
        let opens = match self.state {
            Circuit::Closed => self.in_a_row >= self.rules.failures,
            Circuit::Trial => was_trial,
            Circuit::Open { .. } => false,
        };
        if opens {
            self.open(now);
        }
        opens
    }

    fn open(&mut self, now: Instant) {
        let doubled =
            self.rules.cooldown.saturating_mul(1u32.checked_shl(self.times_opened).unwrap_or(u32::MAX));
        let until = now + doubled.min(self.rules.longest_cooldown);
        self.times_opened = self.times_opened.saturating_add(1);
        // What the server asked for is never cut short.
        self.state = Circuit::Open { until: self.asked_until.map_or(until, |asked| asked.max(until)) };
    }

    /// The trial was given up without a result; the next caller may try.
    pub fn abandon_trial(&mut self, now: Instant) {
        if self.state == Circuit::Trial {
            self.state = Circuit::Open { until: now };
        }
    }

    /// From when on its failing counts as being gone: from the first failure, or from the end of the time it asked for.
    pub fn gone_since(&self) -> Option<Instant> {
        self.failing_since.max(self.asked_until)
    }

    /// Whether a request is finding out right now.
    pub fn is_on_trial(&self) -> bool {
        self.state == Circuit::Trial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: BreakerRules = BreakerRules {
        failures: 3,
        cooldown: Duration::from_secs(1),
        longest_cooldown: Duration::from_secs(4),
    };

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(RULES);
        let opened: Vec<bool> = (0..3).map(|_| breaker.fail(false, None, now)).collect();
        assert_eq!(opened, [false, false, true]);
        breaker
    }

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn failures_in_a_row_open_it_and_an_answer_between_does_not() {
        let now = Instant::now();
        let mut breaker = Breaker::new(RULES);
        for _ in 0..10 {
            breaker.fail(false, None, now);
            breaker.fail(false, None, now);
            assert!(!breaker.succeed());
        }
        assert_eq!(breaker.admission(now), Admission::Yes);
        assert_eq!(opened(now).admission(now), Admission::No(Some(now + second(1))));
    }

    #[test]
    fn one_trial_at_a_time_finds_out() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + second(1);
        assert_eq!(breaker.admission(later), Admission::Trial);
        breaker.begin_trial();
        assert_eq!(breaker.admission(later), Admission::No(None));
        assert!(!breaker.fail(false, None, later), "a late report is not the trial's result");
        assert!(breaker.succeed());
        assert_eq!(breaker.admission(later), Admission::Yes);
        assert_eq!(breaker.gone_since(), None);
    }

    #[test]
    fn each_failed_trial_doubles_the_cooldown() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        for cooldown in [1, 2, 4, 4] {
            assert_eq!(breaker.admission(now), Admission::No(Some(now + second(cooldown))));
            now += second(cooldown);
            breaker.begin_trial();
            assert!(breaker.fail(true, None, now));
        }
    }

    #[test]
    fn a_server_that_asks_for_time_gets_it() {
        let now = Instant::now();
        let mut breaker = opened(now);
        breaker.begin_trial();
        breaker.fail(true, Some(second(3)), now);
        assert_eq!(breaker.admission(now), Admission::No(Some(now + second(3))));
        breaker.begin_trial();
        breaker.fail(true, Some(second(100)), now);
        assert_eq!(breaker.admission(now), Admission::No(Some(now + second(100))), "however long");
        assert_eq!(breaker.gone_since(), Some(now + second(100)), "patience begins after it");
    }

    #[test]
    fn an_abandoned_trial_lets_the_next_one_try() {
        let now = Instant::now();
        let mut breaker = opened(now);
        breaker.begin_trial();
        breaker.abandon_trial(now);
        assert_eq!(breaker.admission(now), Admission::Trial);
    }
}
