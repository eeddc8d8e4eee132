//! Whether there is a point in asking on: one rule for everybody who asks a model many things.
//!
//! Owns [`Outlook`]. What no later call can escape (a budget used up, other weights, a disk that is full) ends it at
//! once. So do several calls in a row that found no working server, although each was tried with all its patience:
//! a connection that is refused or reset, an error and garbage count alike. An answer in between shows that the server
//! works, and so does a reasoned refusal. Whose last call fails so, without anybody's being answered while it was tried,
//! ended for want of a server, however few such calls there were; what is left open by that is asked for another time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Error;

/// So many calls in a row that found no working server mean that there is none.
const GONE_AFTER: u32 = 3;

/// How it looks; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Outlook(Arc<Mutex<Sight>>);

#[derive(Debug, Default)]
struct Sight {
    /// Failures since the last answer that another time might have passed.
    in_a_row: u32,
    /// The last of them, unless others were answered meanwhile or the server is there and only garbles.
    last: Option<Error>,
    n_answers: u64,
    stopped_by: Option<Error>,
}

impl Outlook {
    /// A call begins: how many were answered by now.
    pub fn begin(&self) -> u64 {
        self.lock().n_answers
    }

    /// Looks at what a call came to that began when so many had been answered.
    pub fn heed<T>(&self, begun: u64, answer: &Result<T, Error>) {
        let mut sight = self.lock();
        let Some(error) = answer.as_ref().err().filter(|error| error.leaves_open()) else {
            (sight.in_a_row, sight.last) = (0, None);
            sight.n_answers += 1;
            return;
        };
        if error.may_pass() {
            sight.in_a_row += 1;
            let is_alone = begun == sight.n_answers && !matches!(error, Error::Garbled { .. });
            sight.last = is_alone.then(|| error.clone());
        }
        if error.stops_the_run() || sight.in_a_row >= GONE_AFTER {
            sight.stopped_by.get_or_insert_with(|| error.clone());
        }
    }

    /// Gives up, for this reason.
    pub fn stop(&self, why: Error) {
        self.lock().stopped_by.get_or_insert(why);
    }

    /// Why nothing more should be asked; none while there is hope.
    pub fn stopped_by(&self) -> Option<Error> {
        self.lock().stopped_by.clone()
    }

    /// Whether nothing more should be asked.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped_by.is_some()
    }

    /// Why nothing more can be hoped for now that all is over: what stopped it, or the failure it ended with.
    pub fn ended_by(&self) -> Option<Error> {
        let sight = self.lock();
        sight.stopped_by.clone().or_else(|| sight.last.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Sight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone() -> Error {
        Error::Unreachable { server: "s".into(), why: "refused".into() }
    }

    fn busy() -> Error {
        Error::Unavailable { server: "s".into(), status: 503, message: "busy".into() }
    }

    fn garbled() -> Error {
        Error::Garbled { server: "s".into(), why: "HTML".into() }
    }

    fn budget() -> Error {
        Error::Budget { role: "student".into(), what: "tokens", limit: 9 }
    }

    fn refused() -> Error {
        Error::Refused { server: "s".into(), status: 400, message: "no".into() }
    }

    fn check(calls: &[Option<Error>], stopped_by: Option<Error>, ended_by: Option<Error>) {
        let outlook = Outlook::default();
        calls.iter().for_each(|call| outlook.heed(outlook.begin(), &call.clone().map_or(Ok(()), Err)));
        assert_eq!((outlook.stopped_by(), outlook.ended_by()), (stopped_by, ended_by), "{calls:?}");
    }

    #[test]
    fn it_stops_when_there_is_no_point_in_asking() {
        check(&[None, Some(refused()), Some(refused()), Some(refused())], None, None);
        check(&[Some(budget()), None], Some(budget()), Some(budget()));
        check(&[Some(gone()), Some(gone()), None, Some(gone())], None, Some(gone()));
        check(&[Some(gone()), Some(gone()), Some(gone()), None], Some(gone()), Some(gone()));
        check(&[Some(gone()), None], None, None);
    }

    #[test]
    fn a_call_that_fails_while_others_are_answered_is_its_own() {
        let outlook = Outlook::default();
        let (long, short) = (outlook.begin(), outlook.begin());
        outlook.heed(short, &Ok(()));
        outlook.heed::<()>(long, &Err(gone()));
        assert_eq!(outlook.ended_by(), None);
        outlook.heed::<()>(outlook.begin(), &Err(gone()));
        assert_eq!((outlook.stopped_by(), outlook.ended_by()), (None, Some(gone())));
    }

    #[test]
    fn all_ways_of_not_working_count_alike() {
        for error in [gone(), busy(), garbled()] {
            let some = Some(error.clone());
            check(&[some.clone(), some.clone(), some.clone()], some.clone(), some.clone());
            check(
                &[some.clone(), some.clone(), Some(refused()), some.clone(), some.clone(), None],
                None,
                None,
            );
        }
        check(&[Some(gone()), Some(busy()), Some(garbled())], Some(garbled()), Some(garbled()));
        check(&[Some(garbled())], None, None);
    }
}
