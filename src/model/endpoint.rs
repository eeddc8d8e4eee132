//! The endpoints behind one model: their addresses, and who may send what to which of them now.
//!
//! Owns [`Endpoint`] (an address read from what the user typed) and [`Pool`], which hands out
//! [`Lease`]s: sticky by prefix, so that a server's cache is used; bounded by tokens in flight per
//! endpoint and by requests in flight over all; away from endpoints whose circuit is open. First
//! come, first served at each endpoint. What is sent under a lease is `transport`'s business.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use percent_encoding::percent_decode_str;
use reqwest::Url;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Error;
pub use super::breaker::BreakerRules;
use super::breaker::{Admission, Breaker};
use super::echo::Echo;
use super::retry::{Miss, Notice, Symptom};
use super::room::Room;
pub use super::room::RoomRules;
use super::secret::Secret;
use backsight_core::mix::mix;

/// The address of a server. Clones share what is learnt of it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    base: String,
    pub(super) login: Option<(String, Secret)>,
    pub(super) echo: Arc<Echo>,
}

impl Endpoint {
    /// Reads an address, with or without `/v1` or a trailing slash.
    pub fn parse(typed: &str) -> Result<Self, Error> {
        let url = Url::parse(typed.trim()).map_err(|why| bad_url(typed, &why.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad_url(typed, "it begins with neither http:// nor https://"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad_url(typed, "it has a query or a fragment"));
        }
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/');
        let login = (!url.username().is_empty() || url.password().is_some())
            .then(|| (decoded(url.username()), Secret::new(&decoded(url.password().unwrap_or_default()))));
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let host = url.host_str().unwrap_or_default();
        Ok(Self { base: format!("{}://{host}{port}{path}", url.scheme()), login, echo: Arc::default() })
    }

    /// The address without credentials, as messages show it.
    pub fn name(&self) -> &str {
        &self.base
    }

    /// Where `path` (`/v1/models`) is on this server.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}

/// A user name or password as it was before it was written into an address.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn bad_url(typed: &str, why: &str) -> Error {
    let what = format!("{} is no server address: {why}", masked(typed));
    Error::invalid(what, "write it like http://localhost:8000")
}

/// What was typed as an address, to be shown: what may be a password or a key in it is masked.
pub fn masked(typed: &str) -> String {
    let is_scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
    let scheme = typed.split_once("://").map(|(scheme, _)| scheme).filter(|it| is_scheme(it));
    let (scheme, rest) = typed.split_at(scheme.map_or(0, |it| it.len() + 3));
    let begin = rest.rfind('@').map_or(0, |at| at + 1);
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let login = if begin > 0 { "***@" } else { "" };
    let query = if end < rest.len() { "?***" } else { "" };
    match rest.get(begin..end) {
        Some(host) => format!("{scheme}{login}{host}{query}"),
        // Which of the two holds the other cannot be told.
        None => format!("{scheme}***"),
    }
}

/// How the endpoints of one model are shared.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolRules {
    /// Requests in flight over all endpoints.
    pub concurrency: usize,
    /// Tokens in flight per endpoint.
    pub room: RoomRules,
    /// When an endpoint is left alone.
    pub breaker: BreakerRules,
    /// After every endpoint has failed for this long, calls fail instead of waiting for one to return.
    pub patience: Duration,
}

impl Default for PoolRules {
    fn default() -> Self {
        Self {
            concurrency: 64,
            room: RoomRules::default(),
            breaker: BreakerRules::default(),
            patience: Duration::from_secs(300),
        }
    }
}

/// The endpoints of one model.
#[derive(Debug)]
pub struct Pool {
    pub(super) endpoints: Vec<Endpoint>,
    rules: PoolRules,
    state: Mutex<Occupancy>,
    changed: Notify,
}

#[derive(Debug)]
struct Occupancy {
    requests: usize,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    room: Room,
    breaker: Breaker,
    queue: VecDeque<Waiter>,
    in_flight: usize,
    last_error: Option<Error>,
}

#[derive(Debug)]
struct Waiter {
    tokens: u64,
    grant: oneshot::Sender<Lease>,
}

/// What a caller does next.
enum Next {
    Go(Lease),
    Queue(oneshot::Receiver<Lease>),
    Wait(Option<Instant>),
}

impl Pool {
    /// Endpoints that are all up and idle.
    pub fn new(endpoints: Vec<Endpoint>, rules: PoolRules) -> Arc<Self> {
        let member = |_: &Endpoint| Member {
            room: Room::new(rules.room),
            breaker: Breaker::new(rules.breaker),
            queue: VecDeque::new(),
            in_flight: 0,
            last_error: None,
        };
        let members = endpoints.iter().map(member).collect();
        let state = Mutex::new(Occupancy { requests: 0, members });
        Arc::new(Self { endpoints, rules, state, changed: Notify::new() })
    }

    /// Waits until a request of `tokens` may be sent, and says where. Endpoints in `tried` come last.
    ///
    /// Fails when every endpoint has been down for longer than the patience allows.
    pub async fn lease(self: &Arc<Self>, sticky: u64, tokens: u64, tried: &[usize]) -> Result<Lease, Error> {
        let order = self.order(sticky, tried);
        loop {
            // Registered before looking, so that a change in between is not missed.
            let changed = self.changed.notified();
            match self.next(&order, tokens)? {
                Next::Go(lease) => return Ok(lease),
                Next::Queue(granted) => {
                    // A dropped grant means that the endpoint went down: look again.
                    if let Ok(lease) = granted.await {
                        return Ok(lease);
                    }
                }
                Next::Wait(None) => changed.await,
                Next::Wait(Some(until)) => {
                    let _ = tokio::time::timeout_at(until, changed).await;
                }
            }
        }
    }

    /// Whether an endpoint outside `tried` would be asked without waiting for it to come back.
    pub fn has_other(&self, tried: &[usize]) -> bool {
        let (state, now) = (self.lock(), Instant::now());
        let up = |member: &Member| !matches!(member.breaker.admission(now), Admission::No(_));
        state.members.iter().enumerate().any(|(idx, member)| !tried.contains(&idx) && up(member))
    }

    /// The endpoint that requests with this sticky value prefer.
    pub fn home(&self, sticky: u64) -> usize {
        self.order(sticky, &[]).first().copied().unwrap_or_default()
    }

    /// The endpoints by preference. Each prefix ranks them by a hash of itself and the address
    /// (rendezvous hashing), so losing one endpoint moves only that endpoint's prefixes.
    fn order(&self, sticky: u64, tried: &[usize]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.endpoints.len()).collect();
        let weight = |idx: usize| mix(sticky ^ hashed(self.endpoints[idx].name()));
        order.sort_by_key(|&idx| (tried.contains(&idx), std::cmp::Reverse(weight(idx))));
        order
    }

    fn next(self: &Arc<Self>, order: &[usize], tokens: u64) -> Result<Next, Error> {
        let now = Instant::now();
        let mut state = self.lock();
        for &idx in order {
            match state.members[idx].breaker.admission(now) {
                Admission::Yes => return Ok(self.join(&mut state, idx, tokens)),
                Admission::Trial => {
                    state.members[idx].breaker.begin_trial();
                    return Ok(Next::Go(self.grant(&mut state, idx, tokens, true)));
                }
                Admission::No(_) => {}
            }
        }
        state.until_one_returns(order, now, self.rules.patience)
    }

    /// Starts at once if there is room and nobody waits, else queues.
    fn join(self: &Arc<Self>, state: &mut Occupancy, idx: usize, tokens: u64) -> Next {
        let member = &state.members[idx];
        let free = state.requests < self.rules.concurrency.max(1);
        if free && member.queue.is_empty() && member.room.fits(tokens) {
            return Next::Go(self.grant(state, idx, tokens, false));
        }
        let (grant, granted) = oneshot::channel();
        state.members[idx].queue.push_back(Waiter { tokens, grant });
        Next::Queue(granted)
    }

    fn grant(self: &Arc<Self>, state: &mut Occupancy, idx: usize, tokens: u64, trial: bool) -> Lease {
        state.requests += 1;
        state.members[idx].in_flight += 1;
        state.members[idx].room.take(tokens);
        Lease {
            pool: Arc::clone(self),
            idx,
            tokens,
            trial,
            begun: Instant::now(),
            held: true,
            reported: false,
        }
    }

    /// Lets waiters in while there is room, first where least is in flight, so that every endpoint works. Those who
    /// have gone away meanwhile are returned, to be dropped after the lock is released, because dropping a lease takes
    /// the lock.
    fn admit(self: &Arc<Self>, state: &mut Occupancy) -> Vec<Lease> {
        let mut gone = Vec::new();
        while state.requests < self.rules.concurrency.max(1) {
            let Some(idx) = state.idlest_with_waiter() else { break };
            let Some(waiter) = state.members[idx].queue.pop_front() else { break };
            let lease = self.grant(state, idx, waiter.tokens, false);
            gone.extend(waiter.grant.send(lease).err());
        }
        gone
    }

    fn lock(&self) -> MutexGuard<'_, Occupancy> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Occupancy {
    /// Of the endpoints that have room for their first waiter, the one with least in flight.
    fn idlest_with_waiter(&self) -> Option<usize> {
        let has_room =
            |member: &Member| member.queue.front().is_some_and(|waiter| member.room.fits(waiter.tokens));
        let all = self.members.iter().enumerate().filter(|(_, member)| has_room(member));
        all.min_by_key(|(_, member)| member.in_flight).map(|(idx, _)| idx)
    }

    /// When to look again, given that every circuit is open; fails once all have been down for `patience`, unless one
    /// is just being tried.
    fn until_one_returns(&self, order: &[usize], now: Instant, patience: Duration) -> Result<Next, Error> {
        let last_hope = self.members.iter().filter_map(|it| it.breaker.gone_since()).max();
        let is_tried = self.members.iter().any(|it| it.breaker.is_on_trial());
        let give_up = last_hope.filter(|_| !is_tried).map(|since| since + patience);
        if give_up.is_some_and(|at| at <= now) {
            let first = order.first().and_then(|&idx| self.members[idx].last_error.clone());
            return Err(first.unwrap_or_else(no_endpoint));
        }
        let trials = self.members.iter().filter_map(|it| match it.breaker.admission(now) {
            Admission::No(until) => until,
            Admission::Yes | Admission::Trial => Some(now),
        });
        Ok(Next::Wait(trials.chain(give_up).min()))
    }
}

/// What is said when there is nowhere to send anything.
pub fn no_endpoint() -> Error {
    Error::invalid(
        "no server was named",
        "give its address, as in --url http://HOST:PORT (bare for `probe`), or use --kind embedded",
    )
}

/// A hash that is the same throughout a run.
pub fn hashed(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Leave to send one request to one endpoint; given back when dropped.
#[derive(Debug)]
pub struct Lease {
    pool: Arc<Pool>,
    pub(super) idx: usize,
    tokens: u64,
    trial: bool,
    begun: Instant,
    held: bool,
    reported: bool,
}

impl Lease {
    fn server(&self) -> String {
        self.pool.endpoints[self.idx].name().to_owned()
    }

    /// The whole answer is here: the endpoint has room again, although the answer is still to be judged.
    pub fn answered(&mut self) {
        self.change(|state, lease| state.members[lease.idx].room.widen(lease.tokens));
    }

    /// Tells the pool how the request failed, or that the endpoint answered; says whether its health turned by it. A
    /// server is given the time it asks for, unless that is longer than anybody waits.
    pub fn report(mut self, miss: Option<&Miss>, longest_wait: Duration) -> Option<Notice> {
        self.reported = true;
        let mut turn = None;
        self.change(|state, lease| {
            let (member, now) = (&mut state.members[lease.idx], Instant::now());
            let Some(Miss { symptom, error, retry_after }) = miss else {
                turn = member.breaker.succeed().then(|| Notice::Back { server: lease.server() });
                return;
            };
            member.last_error = Some(error.clone());
            let retry_after = retry_after.filter(|asked| *asked <= longest_wait);
            if *symptom == Symptom::Pressed {
                member.room.cut(lease.begun, now);
            }
            if member.breaker.fail(lease.trial, retry_after, now) {
                // Dropped grants send the waiters to look for another endpoint.
                member.queue.clear();
                turn = Some(Notice::Down { server: lease.server() });
            }
        });
        if turn.is_some() {
            self.pool.changed.notify_waiters();
        }
        turn
    }

    /// Changes the state and gives up what is held of the endpoint's room.
    fn change(&mut self, change: impl FnOnce(&mut Occupancy, &Self)) {
        let pool = Arc::clone(&self.pool);
        let mut state = pool.lock();
        change(&mut state, self);
        if std::mem::take(&mut self.held) {
            state.requests -= 1;
            state.members[self.idx].in_flight -= 1;
            state.members[self.idx].room.free(self.tokens);
        }
        let gone = pool.admit(&mut state);
        drop(state);
        drop(gone);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.held && self.reported {
            return;
        }
        let abandoned = self.trial && !self.reported;
        self.change(|state, lease| {
            if abandoned {
                state.members[lease.idx].breaker.abandon_trial(Instant::now());
            }
        });
        if abandoned {
            self.pool.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::time::{sleep, timeout};

    fn pool(n: usize, concurrency: usize, start: u64) -> Arc<Pool> {
        let endpoints =
            (0..n).map(|idx| Endpoint::parse(&format!("http://host{idx}:8000")).unwrap()).collect();
        let room = RoomRules { start, cap: 100_000 };
        Pool::new(endpoints, PoolRules { concurrency, room, ..PoolRules::default() })
    }

    const LONGEST: Duration = Duration::from_secs(900);

    fn broken() -> Miss {
        let error = Error::Unreachable { server: "s".into(), why: "connection refused".into() };
        Miss::new(Symptom::Broken, error)
    }

    fn pressed(retry_after: Option<Duration>) -> Miss {
        Miss { symptom: Symptom::Pressed, retry_after, ..broken() }
    }

    async fn fail(pool: &Arc<Pool>, sticky: u64, times: usize) -> Vec<usize> {
        let mut asked = Vec::new();
        for _ in 0..times {
            let lease = pool.lease(sticky, 1, &[]).await.unwrap();
            asked.push(lease.idx);
            lease.report(Some(&broken()), LONGEST);
        }
        asked
    }

    /// Whether a lease is to be had without time passing.
    async fn at_once(pool: &Arc<Pool>, tokens: u64) -> Option<Lease> {
        timeout(Duration::from_millis(1), pool.lease(0, tokens, &[])).await.ok().map(Result::unwrap)
    }

    #[test]
    fn addresses_are_read_with_or_without_v1_and_slash() {
        for typed in [
            "http://h:80/",
            "http://h/v1",
            "http://h/v1/",
            " http://h ",
            "http://h//",
            "http://u:p%40ss@h/v1",
        ] {
            assert_eq!(Endpoint::parse(typed).unwrap().url("/v1/models"), "http://h/v1/models", "{typed}");
        }
        let nested = Endpoint::parse("https://h:8443/api/v1").unwrap();
        assert_eq!(nested.url("/generate"), "https://h:8443/api/generate");
        let (user, password) = Endpoint::parse("http://u:p%40+s@h").unwrap().login.unwrap();
        assert_eq!((user.as_str(), password.expose()), ("u", "p@+s"));
    }

    #[test]
    fn what_is_no_address_is_refused_without_showing_a_password() {
        let refused = |typed| Endpoint::parse(typed).unwrap_err().to_string();
        assert!(refused("localhost:8000").contains("neither http:// nor https://"));
        assert!(refused("").contains("no server address"));
        assert!(!refused("ftp://me:hunter2@host").contains("hunter2"));
        assert!(refused("http://h/?key=1").contains("query"));
    }

    #[test]
    fn secrets_in_an_address_are_masked() {
        let check = |typed: &str, expected: &str| assert_eq!(masked(typed), expected);
        check("http://h:1/v1", "http://h:1/v1");
        check("http://me:hunter2@h:1/v1", "http://***@h:1/v1");
        check("http://h/v1?api_key=sk-1", "http://h/v1?***");
        check("http://h/v1#sk-1", "http://h/v1?***");
        check("http://me:hunt@er2@h?k=1", "http://***@h?***");
        check("http://h?key=a@b", "http://***");
        check("http://me:h?unter2@h", "http://***");
        check("me:hunter2@h://x", "***@h://x");
        check("localhost:8000", "localhost:8000");
        for typed in
            ["http://h:99999?key=sk-1", "ftp://h?key=sk-1", "http://h/?key=sk-1", "http://me:sk-1@h?x"]
        {
            let refused = Endpoint::parse(typed).unwrap_err().to_string();
            assert!(!refused.contains("sk-1"), "{refused}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_in_flight_are_bounded_and_served_in_order() {
        let pool = pool(1, 64, 100);
        let first = at_once(&pool, 60).await.unwrap();
        let second = at_once(&pool, 40).await.unwrap();
        let big = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.lease(0, 90, &[]).await.map(drop) }
        });
        sleep(Duration::from_millis(1)).await;
        drop(second);
        assert!(at_once(&pool, 1).await.is_none(), "a small request does not overtake the waiting one");
        drop(first);
        big.await.unwrap().unwrap();
        assert!(at_once(&pool, 100).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_flight_are_bounded_over_all_endpoints() {
        let pool = pool(3, 2, 100);
        let _one = pool.lease(1, 1, &[]).await.unwrap();
        let two = pool.lease(2, 1, &[]).await.unwrap();
        assert!(at_once(&pool, 1).await.is_none());
        drop(two);
        assert!(at_once(&pool, 1).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_leaves_no_hole() {
        let pool = pool(1, 1, 100);
        let held = pool.lease(0, 1, &[]).await.unwrap();
        for _ in 0..10 {
            assert!(at_once(&pool, 1).await.is_none());
        }
        drop(held);
        assert!(at_once(&pool, 1).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_makes_room_before_it_is_judged() {
        let pool = pool(1, 1, 100);
        let mut lease = pool.lease(0, 1, &[]).await.unwrap();
        lease.answered();
        let next = at_once(&pool, 1).await.unwrap();
        assert_eq!(lease.report(None, LONGEST), None);
        drop(next);
        assert_eq!(pool.lock().requests, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_fails_is_left_for_another_and_tried_again() {
        let pool = pool(2, 8, 100);
        let home = pool.order(7, &[])[0];
        let asked = fail(&pool, 7, 5).await;
        assert_eq!(asked, [home; 5]);
        let other = pool.lease(7, 1, &[]).await.unwrap();
        assert_ne!(other.idx, home);
        other.report(None, LONGEST);
        sleep(Duration::from_secs(1)).await;
        let trial = pool.lease(7, 1, &[]).await.unwrap();
        assert_eq!(trial.idx, home);
        assert_ne!(pool.lease(7, 1, &[]).await.unwrap().idx, home, "one trial at a time");
        let server = trial.server();
        assert_eq!(trial.report(None, LONGEST), Some(Notice::Back { server }));
        assert_eq!(pool.lease(7, 1, &[]).await.unwrap().idx, home);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_queue_at_an_endpoint_that_goes_down_go_elsewhere() {
        let pool = pool(2, 64, 10);
        let home = pool.order(7, &[])[0];
        let mut held = vec![pool.lease(7, 2, &[]).await.unwrap()];
        for _ in 0..4 {
            held.push(pool.lease(7, 2, &[]).await.unwrap());
        }
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.lease(7, 10, &[]).await.map(|lease| lease.idx) }
        });
        sleep(Duration::from_millis(1)).await;
        assert!(!waiting.is_finished());
        for lease in held {
            lease.report(Some(&broken()), LONGEST);
        }
        assert_ne!(waiting.await.unwrap().unwrap(), home);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_dead_server_ends_with_its_error() {
        let pool = pool(1, 8, 100);
        let begun = Instant::now();
        let error = loop {
            match pool.lease(0, 1, &[]).await {
                Ok(lease) => {
                    lease.report(Some(&broken()), LONGEST);
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error, broken().error);
        let waited = begun.elapsed().as_secs();
        assert!((270..=330).contains(&waited), "{waited} s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_asks_for_more_time_than_our_patience_gets_it() {
        let pool = pool(1, 64, 100);
        let asked = Duration::from_secs(700);
        for _ in 0..5 {
            let lease = pool.lease(0, 1, &[]).await.unwrap();
            lease.report(Some(&pressed(Some(asked))), LONGEST);
        }
        let begun = Instant::now();
        let trial = pool.lease(0, 1, &[]).await.unwrap();
        assert!(begun.elapsed() >= asked, "{:?}", begun.elapsed());
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.lease(0, 1, &[]).await.map(drop) }
        });
        // Nobody gives up while somebody finds out, however long that takes.
        sleep(Duration::from_secs(900)).await;
        assert!(!waiting.is_finished());
        trial.report(None, LONGEST);
        waiting.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn every_endpoint_works_while_requests_wait() {
        let pool = pool(2, 4, 1000);
        let granted = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..80)
            .map(|n| {
                let (pool, granted) = (Arc::clone(&pool), Arc::clone(&granted));
                tokio::spawn(async move {
                    let lease = pool.lease(mix(n), 1, &[]).await.unwrap();
                    granted.lock().unwrap().push(lease.idx);
                    sleep(Duration::from_millis(10)).await;
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let granted = granted.lock().unwrap();
        let n_first = granted[..40].iter().filter(|idx| **idx == 0).count();
        assert!((15..=25).contains(&n_first), "{granted:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_that_is_dropped_is_given_to_the_next() {
        let pool = pool(1, 8, 100);
        fail(&pool, 0, 5).await;
        sleep(Duration::from_secs(1)).await;
        let trial = pool.lease(0, 1, &[]).await.unwrap();
        assert!(at_once(&pool, 1).await.is_none());
        drop(trial);
        assert!(at_once(&pool, 1).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn pressure_narrows_what_is_sent() {
        let pool = pool(1, 64, 100);
        let leases = [pool.lease(0, 50, &[]).await.unwrap(), pool.lease(0, 50, &[]).await.unwrap()];
        for lease in leases {
            lease.report(Some(&pressed(None)), LONGEST);
        }
        let _one = at_once(&pool, 50).await.unwrap();
        assert!(at_once(&pool, 1).await.is_none());
    }

    proptest! {
        #[test]
        fn losing_an_endpoint_moves_only_its_own_prefixes(sticky: u64, lost in 0usize..4) {
            let pool = pool(4, 1, 1);
            let home = pool.order(sticky, &[])[0];
            let with_loss = pool.order(sticky, &[lost])[0];
            prop_assert!(home == lost || home == with_loss);
            prop_assert!(with_loss != lost);
        }
    }

    #[test]
    fn prefixes_spread_over_the_endpoints() {
        let pool = pool(4, 1, 1);
        let mut counts = [0usize; 4];
        for sticky in 0..4_000u64 {
            counts[pool.order(mix(sticky), &[])[0]] += 1;
        }
        assert!(counts.iter().all(|n| (800..=1_200).contains(n)), "{counts:?}");
    }
}
