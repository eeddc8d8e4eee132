//! Whose answer it is: every attempt has an id, and servers that know how repeat it.
//!
//! Owns the ids and what is made of those that come back. Two prompts that end alike have answers of one shape, so an
//! answer that reached the wrong caller can be told by nothing else. An id is new in every attempt, because the server
//! may still be busy with the last one. An endpoint that never repeats an id (an old server, or a proxy that names
//! requests itself) is believed without; one that did repeat one is held to it. Where the ids stand in a request and an
//! answer is the business of `wire`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::wire::Signed;

/// What every id of ours begins with. An id that holds it and is not the one that was sent is another request's.
const MARK: &str = "backsight-";

/// Makes ids that nobody else makes.
#[derive(Debug)]
pub struct Ids {
    source: u64,
    n_made: AtomicU64,
}

impl Ids {
    /// A source of ids unlike any other.
    pub fn new() -> Self {
        Self { source: RandomState::new().build_hasher().finish(), n_made: AtomicU64::new(0) }
    }

    /// An id that was never given.
    pub fn next(&self) -> String {
        format!("{MARK}{:016x}-{:08}", self.source, self.n_made.fetch_add(1, Relaxed))
    }
}

/// Whether an endpoint repeats the ids it is sent.
#[derive(Debug, Default)]
pub struct Echo(Mutex<Option<bool>>);

impl Echo {
    /// Whether it did, once there was an answer to tell by.
    pub fn is_heard(&self) -> Option<bool> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One attempt: the id it was sent under, and the endpoint that answered.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// The id.
    pub id: &'a str,
    /// What is known of the endpoint.
    pub echo: &'a Echo,
}

/// The id of one prompt of a request that has several. All are equally long, so that none holds another.
pub fn of_prompt(id: &str, index: usize) -> String {
    format!("{id}-{index:06}")
}

impl Attempt<'_> {
    /// The answer, unless it says the id of another request.
    pub fn own<T>(&self, (told, answer): Signed<T>) -> Result<T, String> {
        self.check(self.id, told.as_deref()).map(|()| answer)
    }

    /// The same for one prompt of a request that has several.
    pub fn own_prompt<T>(&self, index: usize, (told, answer): Signed<T>) -> Result<T, String> {
        self.check(&of_prompt(self.id, index), told.as_deref()).map(|()| answer)
    }

    /// Servers and proxies may write more around an id.
    fn check(&self, sent: &str, told: Option<&str>) -> Result<(), String> {
        let is_repeated = told.is_some_and(|told| told.contains(sent));
        let is_anothers = told.is_some_and(|told| told.contains(MARK)) || self.echo.is_heard() == Some(true);
        if !is_repeated && is_anothers {
            let told = told.map_or_else(|| "none".to_owned(), |told| format!("`{told}`"));
            return Err(format!("it is the answer to another request: its id is {told}, not `{sent}`"));
        }
        let mut heard = self.echo.0.lock().unwrap_or_else(PoisonError::into_inner);
        *heard = (*heard).max(Some(is_repeated));
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unlike_each_other() {
        let (a, b) = (Ids::new(), Ids::new());
        let mut all: Vec<String> = (0..100).flat_map(|_| [a.next(), b.next()]).collect();
        let first = all.remove(0);
        all.extend((0..100).map(|index| of_prompt(&first, index)));
        for id in &all {
            assert_eq!(all.iter().filter(|it| it.contains(id.as_str())).count(), 1, "{id}");
        }
    }

    #[test]
    fn an_endpoint_that_repeats_ids_is_held_to_it() {
        let (ids, echo) = (Ids::new(), Echo::default());
        let (id, other) = (ids.next(), ids.next());
        let attempt = Attempt { id: &id, echo: &echo };
        let check = |told: Option<&str>| attempt.own((told.map(str::to_owned), ()));
        let check_prompt = |index, told: &str| attempt.own_prompt(index, (Some(told.to_owned()), ()));
        assert_eq!(echo.is_heard(), None);
        let why = check(Some(&other)).unwrap_err();
        assert_eq!(why, format!("it is the answer to another request: its id is `{other}`, not `{id}`"));
        assert_eq!(echo.is_heard(), None, "that was no answer");
        assert_eq!(check(Some("cmpl-1")), Ok(()));
        assert_eq!((check(None), echo.is_heard()), (Ok(()), Some(false)));
        assert_eq!(check(Some(&format!("cmpl-{id}-0"))), Ok(()));
        assert_eq!(echo.is_heard(), Some(true));
        for told in [None, Some("cmpl-1"), Some(other.as_str())] {
            assert!(check(told).is_err(), "{told:?}");
        }
        assert_eq!(check_prompt(3, &of_prompt(&id, 3)), Ok(()));
        assert!(check_prompt(3, &of_prompt(&id, 30)).is_err());
        assert!(check_prompt(0, &id).is_err());
    }
}
