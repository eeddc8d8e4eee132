//! Which failures are worth another try, and how long to wait before it.
//!
//! Owns the classification of failures, what is told of them, the jittered backoff and the reading of `Retry-After`. All
//! of it is pure: the clock and the source of randomness are given. Sending is `transport`'s business.
//!
//! | what happened | tried again | narrows the room | counts against the endpoint |
//! |---|---|---|---|
//! | time-out, 408, 429, 503, 504, 529 | yes | yes | yes |
//! | no connection, reset | yes | no | yes |
//! | 204, 425, every other 5xx | yes | no | yes |
//! | cut, too long, not JSON, not what was asked for | yes, [`Policy::garbled_attempts`] | no | yes |
//! | 3xx, every other 4xx | no | no | no |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::Error;
use backsight_core::mix::{after, mix, share};

/// What a failure says about the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symptom {
    /// Too much was asked of it at once.
    Pressed,
    /// It does not answer, or breaks while answering.
    Broken,
    /// It answered, but not usably; what was asked has probably been paid.
    Garbled,
    /// It works and does not want this request.
    Refused,
}

/// One attempt that gave no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Miss {
    /// What it says about the endpoint.
    pub symptom: Symptom,
    /// What the caller is told if this was the last attempt.
    pub error: Error,
    /// How long the server asked us to wait.
    pub retry_after: Option<Duration>,
}

impl Miss {
    /// A failure after which the server asked for no time.
    pub fn new(symptom: Symptom, error: Error) -> Self {
        Self { symptom, error, retry_after: None }
    }
}

/// Something worth telling while a call is still under way.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// An attempt failed and the next one follows after `wait`.
    Retry {
        /// How many attempts this call has made.
        attempts: u32,
        /// How long until the next one.
        wait: Duration,
        /// What went wrong.
        error: Error,
    },
    /// An endpoint failed several times in a row and is left alone for a while.
    Down {
        /// Which one.
        server: String,
    },
    /// An endpoint that was left alone answers again.
    Back {
        /// Which one.
        server: String,
    },
}

/// What an HTTP status means, `None` when it carries an answer.
pub fn judge_status(status: u16) -> Option<Symptom> {
    match status {
        408 | 429 | 503 | 504 | 529 => Some(Symptom::Pressed),
        204 | 425 | 500..=599 => Some(Symptom::Broken),
        200..=299 => None,
        _ => Some(Symptom::Refused),
    }
}

/// How often and how patiently to try.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Rounds in all; a round asks each endpoint that is up once.
    pub attempts: u32,
    /// Requests in all whose answer was unusable; each of them has probably been paid.
    pub garbled_attempts: u32,
    /// The wait before the second round; every further one is twice as long.
    pub first_wait: Duration,
    /// No wait is longer, except one a server asked for.
    pub longest_wait: Duration,
    /// A `Retry-After` beyond this is not waited for: the call fails and says so.
    pub longest_retry_after: Duration,
    /// Whether only a server that answers that it is busy is asked again.
    pub only_when_busy: bool,
    /// Whether a server that gave no answer in time is asked again.
    pub after_silence: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts: 8,
            garbled_attempts: 4,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(60),
            longest_retry_after: Duration::from_secs(900),
            only_when_busy: false,
            after_silence: true,
        }
    }
}

impl Policy {
    /// For a person who waits: gives up after a second or two.
    pub fn brief() -> Self {
        Self {
            attempts: 3,
            garbled_attempts: 2,
            first_wait: Duration::from_millis(200),
            longest_wait: Duration::from_secs(1),
            longest_retry_after: Duration::from_secs(5),
            only_when_busy: false,
            after_silence: false,
        }
    }

    /// Whether a failure is worth another try after `garbled` unusable answers.
    pub fn tries_again(&self, miss: &Miss, garbled: u32) -> bool {
        let is_busy = miss.symptom == Symptom::Pressed && matches!(miss.error, Error::Unavailable { .. });
        let is_silent = miss.symptom == Symptom::Pressed && matches!(miss.error, Error::Unreachable { .. });
        let is_worth_it = (is_busy || !self.only_when_busy) && (self.after_silence || !is_silent);
        miss.symptom != Symptom::Refused && garbled < self.garbled_attempts && is_worth_it
    }

    /// The wait after `round` failed rounds (from 1), or `None` when it is time to give up.
    ///
    /// Without `Retry-After` the wait lies between half and all of the doubled backoff, so that
    /// callers who failed together do not return together; with it, up to a tenth is added.
    pub fn wait(&self, round: u32, retry_after: Option<Duration>, jitter: &Jitter) -> Option<Duration> {
        if round >= self.attempts || retry_after.is_some_and(|asked| asked > self.longest_retry_after) {
            return None;
        }
        let doubled = self.first_wait.saturating_mul(1u32.checked_shl(round - 1).unwrap_or(u32::MAX));
        let backoff = doubled.min(self.longest_wait).mul_f64(0.5 + 0.5 * jitter.next());
        let asked = retry_after.map(|asked| asked.mul_f64(1.0 + 0.1 * jitter.next()));
        Some(asked.unwrap_or(backoff).max(backoff))
    }
}

/// A seedable source of numbers in `[0, 1)`, shared by many tasks.
#[derive(Debug)]
pub struct Jitter(AtomicU64);

impl Jitter {
    /// The stream that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next number.
    pub fn next(&self) -> f64 {
        let state = after(self.0.fetch_add(after(0), Ordering::Relaxed));
        share(mix(state))
    }
}

/// What a `Retry-After` header asks for: seconds, or a date to wait for. Anything else is ignored.
pub fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_status_has_its_meaning() {
        let table = [
            (Some(Symptom::Pressed), &[408, 429, 503, 504, 529][..]),
            (Some(Symptom::Broken), &[204, 425, 500, 501, 502, 507, 599]),
            (Some(Symptom::Refused), &[301, 307, 400, 401, 403, 404, 409, 413, 422, 600]),
            (None, &[200, 201, 202]),
        ];
        for (expected, statuses) in table {
            for &status in statuses {
                assert_eq!(judge_status(status), expected, "{status}");
            }
        }
    }

    #[test]
    fn what_can_be_cut_into_pieces_is_tried_again_only_when_the_server_is_busy() {
        let busy = Error::Unavailable { server: "s".into(), status: 429, message: String::new() };
        let silent = Error::Unreachable { server: "s".into(), why: "no answer".into() };
        let garbled = Error::Garbled { server: "s".into(), why: "cut".into() };
        let table = [
            (Symptom::Pressed, busy.clone(), true, true),
            (Symptom::Pressed, silent.clone(), true, false),
            (Symptom::Broken, busy.clone(), true, false),
            (Symptom::Broken, silent, true, false),
            (Symptom::Garbled, garbled, true, false),
            (Symptom::Refused, busy, false, false),
        ];
        let whole = Policy { only_when_busy: true, ..Policy::default() };
        for (symptom, error, patient, in_pieces) in table {
            let miss = Miss { symptom, error, retry_after: None };
            let tried = (Policy::default().tries_again(&miss, 1), whole.tries_again(&miss, 1));
            assert_eq!(tried, (patient, in_pieces), "{miss:?}");
            assert!(!Policy::default().tries_again(&miss, 4), "unusable too often");
            let is_silent = matches!((symptom, &miss.error), (Symptom::Pressed, Error::Unreachable { .. }));
            assert_eq!(Policy::brief().tries_again(&miss, 1), patient && !is_silent, "{miss:?}");
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 30);
        let check = |value, seconds: Option<f64>| {
            assert_eq!(retry_after(value, now), seconds.map(Duration::from_secs_f64), "{value}");
        };
        check("7", Some(7.0));
        check(" 0.25 ", Some(0.25));
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(30.0));
        check("Sun, 06 Nov 1994 08:49:00 GMT", Some(0.0));
        for nonsense in ["", "-3", "soon", "NaN", "inf", "Sun, 06 Nov 1994", "Sun, 41 Nov 1994 08:49:37 GMT"]
        {
            check(nonsense, None);
        }
    }

    #[test]
    fn waits_double_up_to_the_longest_and_end() {
        let policy = Policy { attempts: 6, longest_wait: Duration::from_secs(3), ..Policy::default() };
        let jitter = Jitter::new(7);
        let waits: Vec<f64> =
            (1..6).map(|round| policy.wait(round, None, &jitter).unwrap().as_secs_f64()).collect();
        for (wait, full) in waits.iter().zip([0.5, 1.0, 2.0, 3.0, 3.0]) {
            assert!((full / 2.0..=full).contains(wait), "{waits:?}");
        }
        assert_eq!(policy.wait(6, None, &jitter), None);
    }

    #[test]
    fn a_server_that_asks_for_too_long_is_given_up() {
        let policy = Policy::default();
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(policy.wait(1, hour, &Jitter::new(1)), None);
    }

    proptest! {
        #[test]
        fn retry_after_is_never_undercut(seconds in 0u64..900, round in 1u32..8, seed: u64) {
            let asked = Duration::from_secs(seconds);
            let wait = Policy::default().wait(round, Some(asked), &Jitter::new(seed)).unwrap();
            prop_assert!(wait >= asked);
            prop_assert!(wait <= asked.mul_f64(1.1).max(Policy::default().longest_wait));
        }

        #[test]
        fn jitter_repeats_for_its_seed_and_stays_in_range(seed: u64) {
            let draw = |jitter: Jitter| (0..10).map(|_| jitter.next()).collect::<Vec<_>>();
            let numbers = draw(Jitter::new(seed));
            prop_assert!(numbers.iter().all(|x| (0.0..1.0).contains(x)));
            prop_assert_eq!(numbers, draw(Jitter::new(seed)));
        }

        #[test]
        fn any_header_is_survived(value in ".{0,40}") {
            let _ = retry_after(&value, SystemTime::UNIX_EPOCH);
        }
    }
}
