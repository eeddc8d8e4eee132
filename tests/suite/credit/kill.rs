//! Killed over and over, by how much it has asked for and so however busy the machine is, against a server that fails now and then: nothing is lost, and no
//! answer that was stored is ever asked for again.
//!
//! What "paid twice" means: a request is sent although the ledger on the disk has its answer. An answer that was under
//! way or not yet committed when the process died is asked for again; there can be no more of those
//! than requests in flight at a kill, and they are counted too.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backsight::lens::{Lenses, OUTCOME_TEMPLATE, OutcomeLens, Placement, Wording};
use backsight::model::Limits;
use backsight::pipeline::{Framing, outline};
use backsight::pipeline::{ReadEpisode, Reader, Texts};
use backsight::plan::plan;
use backsight::score::ScoreJob;
use backsight::store::load_directory;
use backsight::store::{Key, ModelId};
use serde_json::Map;

use crate::credit::place::{KEEPS, Place, sglang};
use crate::support::stand_in::{Asked, Dialect, Fault, Setup, StandIn};
use crate::support::toy::mix;

const N_EPISODES: usize = 50;
const N_STEPS: usize = 3;
/// Requests in flight at most, each with no more prompts than an episode has steps.
const IN_FLIGHT: usize = 4;
/// So many runs are killed for certain, and no more than so many at all.
const N_SURE: u64 = 6;
const MOST_KILLS: u64 = 30;

fn place() -> Place {
    let place = Place::empty(KEEPS);
    for n in 0..N_EPISODES {
        place.write_talk(&format!("episode_{n:03}"), N_STEPS);
    }
    place
}

/// The ledger's key of every request of the run, by the ids that are sent.
fn keys(place: &Place) -> HashMap<Vec<u32>, Vec<u8>> {
    let texts = Texts::open(&place.path("model"), Arc::new(place.tokenizer()), None, &Map::new()).unwrap();
    let lens =
        OutcomeLens { template: Wording::parse(OUTCOME_TEMPLATE).unwrap(), placement: Placement::Last };
    let lenses = Lenses::default().and(Arc::new(lens), 0);
    let framing = Framing::default();
    let reader = Reader { texts: &texts, framing: &framing, limit: None };
    let mut keys = HashMap::new();
    for n in 0..N_EPISODES {
        let episode = load_directory(&place.path(&format!("episodes/episode_{n:03}"))).unwrap().episode;
        let ReadEpisode { steps, tree, .. } = reader
            .read(&episode, &outline(&episode, &framing, &lenses, &|text| texts.n_tokens(text)).unwrap());
        let job = |seen: &backsight::pipeline::Seen| {
            ScoreJob::new(Arc::from(tree.all(seen.tip)), vec![seen.action(0)], 0).unwrap()
        };
        let jobs: Vec<ScoreJob> =
            steps.iter().map(|step| job(step.as_ref().unwrap().view(0).unwrap().as_ref().unwrap())).collect();
        let plan = plan(&jobs, &Limits::CACHING);
        for ask in (0..plan.requests.len()).filter_map(|request| plan.ask(request)) {
            keys.insert(ask.tokens().to_vec(), Key::of_score(ModelId(1), &ask).bytes().to_vec());
        }
    }
    keys
}

/// What is stored in a ledger that nobody has open.
fn stored(ledger: &Path) -> HashSet<Vec<u8>> {
    let Ok(connection) = rusqlite::Connection::open(ledger) else { return HashSet::new() };
    let Ok(mut select) = connection.prepare("SELECT key FROM answers") else { return HashSet::new() };
    select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Slow by a few milliseconds, and one prompt in four fails the first time.
fn flaky(asked: &Asked) -> Option<Fault> {
    match (lot(&asked.ids), asked.times_before) {
        (0, 0) => Some(Fault::Reset),
        (1, 0) => Some(Fault::Status(503, "retry-after: 0\r\n".into(), "{}".into())),
        (2, 0) => Some(Fault::CutHonestly),
        (n, _) => Some(Fault::Slow(Duration::from_millis(2 + n))),
    }
}

fn lot(ids: &[u32]) -> u64 {
    ids.iter().fold(7, |hash, id| mix(hash ^ u64::from(*id))) % 12
}

/// Whether a request was answered as it should be: the fault of its first prompt is that of all of them.
fn is_answered(asked: &Asked) -> bool {
    asked.times_before > 0 || lot(&asked.prompts[0]) > 2
}

/// What the server knows: it also kills, so that no kill comes too early or too late.
struct Tally {
    keys: HashMap<Vec<u32>, Vec<u8>>,
    /// What was stored when the run that is going on began.
    stored: HashSet<Vec<u8>>,
    n_paid_twice: usize,
    /// The run that is going on, and how many more prompts it may send.
    victim: Option<(Arc<Mutex<Child>>, usize, Duration)>,
}

impl Tally {
    fn heed(&mut self, ids: &Vec<u32>) {
        let Some(key) = self.keys.get(ids) else { return };
        self.n_paid_twice += usize::from(self.stored.contains(key));
        match &mut self.victim {
            Some((_, n_left, _)) if *n_left > 1 => *n_left -= 1,
            Some(_) => drop(self.victim.take().map(|(child, _, pause)| kill(child, pause))),
            None => {}
        }
    }
}

/// SIGKILL, at once or after a while: no handler, no goodbye.
fn kill(child: Arc<Mutex<Child>>, pause: Duration) {
    if pause.is_zero() {
        return child.lock().unwrap().kill().unwrap();
    }
    std::thread::spawn(move || {
        std::thread::sleep(pause);
        child.lock().unwrap().kill().unwrap();
    });
}

async fn flaky_server(tally: Arc<Mutex<Tally>>) -> StandIn {
    let setup = Setup::new(Dialect::Sglang).faults(move |asked| {
        tally.lock().unwrap().heed(&asked.ids);
        if asked.ids.is_empty() { None } else { flaky(asked) }
    });
    StandIn::start(setup).await
}

/// How many prompts the next run may send, and how long it lives after that. The first few are sure to be
/// killed: together they may send fewer prompts than there are.
fn sentence(n_kills: u64) -> (usize, Duration) {
    match n_kills {
        0..N_SURE => (1 + (mix(n_kills) % 16) as usize, Duration::ZERO),
        N_SURE..MOST_KILLS => {
            (1 + (mix(n_kills) % 40) as usize, Duration::from_millis(mix(n_kills + 99) % 12))
        }
        _ => (usize::MAX, Duration::ZERO),
    }
}

/// Runs the program until it has sent its share or ended; gives its exit code, none if it was killed.
async fn lives(mut command: Command, n_kills: u64, tally: &Mutex<Tally>) -> Option<i32> {
    let child = Arc::new(Mutex::new(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()));
    let (n_prompts, pause) = sentence(n_kills);
    tally.lock().unwrap().victim = Some((Arc::clone(&child), n_prompts, pause));
    loop {
        let ended = child.lock().unwrap().try_wait().unwrap();
        if let Some(status) = ended {
            tally.lock().unwrap().victim = None;
            return status.code();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_a_loop_it_ends_as_if_undisturbed_and_pays_for_nothing_twice() {
    let (place, calm) = (place(), sglang().await);
    let last = ["--placement", "last"];
    place.credit(&calm, &last).await.expect(0);
    let expected = place.made();
    assert_eq!(expected.len(), 2 * N_EPISODES);

    let place = self::place();
    let keys = keys(&place);
    let n_requests = keys.len();
    assert_eq!(n_requests, place.asked(&calm).len(), "the test knows every request");
    let tally = Tally { keys, stored: HashSet::new(), n_paid_twice: 0, victim: None };
    let tally = Arc::new(Mutex::new(tally));
    let server = flaky_server(Arc::clone(&tally)).await;
    let url = server.url();
    let concurrency = IN_FLIGHT.to_string();
    let own =
        ["--input-dir", "episodes", "--url", &url, "--tokenizer", "model", "--concurrency", &concurrency];
    let (mut n_kills, mut n_stored) = (0_u64, Vec::new());
    let code = loop {
        let code = lives(place.command(&[&own[..], &last].concat()), n_kills, &tally).await;
        if code.is_some() {
            break code;
        }
        n_kills += 1;
        let stored = stored(&place.path("episodes/.backsight/ledger.sqlite"));
        n_stored.push(stored.len());
        tally.lock().unwrap().stored = stored;
    };
    assert_eq!(code, Some(0));
    assert_eq!(place.made(), expected, "to the last byte");
    assert!(n_kills >= N_SURE && n_stored.iter().any(|n| (1..n_requests).contains(n)), "{n_stored:?}");
    assert_eq!(tally.lock().unwrap().n_paid_twice, 0);
    let asked = place.asked(&server);
    let distinct: HashSet<&Vec<u32>> = asked.iter().map(|it| &it.ids).collect();
    assert_eq!(distinct.len(), n_requests);
    let n_answered = asked.iter().filter(|it| is_answered(it)).count();
    assert!(n_answered >= n_requests, "every prompt was answered");
    let n_again = n_answered - n_requests;
    assert!(n_again <= IN_FLIGHT * N_STEPS * n_kills as usize, "{n_again} for {n_kills} kills");
    println!(
        "{n_kills} kills, {n_requests} requests, {} prompts sent, stored after each kill {n_stored:?}, paid twice 0, in flight at a \
         kill and answered again {n_again}",
        asked.len()
    );
}
