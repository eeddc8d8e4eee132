//! The ledger against servers and against sudden death: what was stored is never paid again.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use backsight::episode::{Message, Role};
use backsight::model::budget::{Allowance, Budgeted, Meter, ModelRole};
use backsight::model::transport::Settings;
use backsight::model::{ChatRequest, Error, GenerateRequest, Model, Place, Sampling};
use backsight::score::ScoreJob;
use backsight::store::ledger::Recognition;
use backsight::store::{
    Fingerprint, Identity, Ledger, Ledgered, LockError, RunLock, RunPlace, Versions, WeightRules,
};
use backsight::tokens::{Logprob, TokenSpan};

use crate::inside::support::plain;
use crate::inside::support::stand_in::{Dialect, Fault, Setup, StandIn};
use crate::inside::support::toy::{Toy, mix};

const PROBE: [u32; 6] = [11, 12, 13, 14, 15, 16];

fn job(n: u32) -> ScoreJob {
    ScoreJob::new(vec![9, n, 8, 7, n, 6].into(), vec![TokenSpan::at(2, 4)], 2).unwrap()
}

/// The numbers `job(n)` must come to, as bits.
fn right(n: u32) -> Vec<u64> {
    let logprobs = Toy { weights: 1 }.logprobs(job(n).tokens());
    logprobs[2..].iter().map(|it| it.unwrap().to_bits()).collect()
}

async fn score(model: &dyn Model, n: u32) -> Result<Vec<u64>, Error> {
    let scored = model.score(&job(n)).await?;
    Ok(scored.spans[0].logprobs().map(|it| it.map(Logprob::get).unwrap().to_bits()).collect())
}

/// Takes the directory's lock. A process that another test is just starting holds a copy of it until it becomes itself.
async fn lock(dir: &Path) -> RunLock {
    for _ in 0..200 {
        if let Ok(lock) = RunLock::acquire(dir) {
            return lock;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    RunLock::acquire(dir).unwrap()
}

/// A model behind `url` whose answers are kept in `dir`.
async fn open(dir: &Path, url: &str, allowance: Allowance) -> (Ledgered, Arc<Meter>, Recognition) {
    let lock = lock(dir).await;
    let ledger = Ledger::open(Arc::new(lock)).unwrap();
    let client = plain::open(Dialect::Vllm, &[url.to_owned()], Settings::default());
    let identity = Identity { kind: "vllm".into(), model: "toy".into(), ..Identity::default() };
    let fingerprint = Fingerprint::measure(&*client, identity, &PROBE).await.unwrap();
    let (id, recognition) = ledger.identify(&fingerprint, 0.0).await.unwrap();
    let meter = Meter::new(ModelRole::Teacher, allowance);
    let budgeted = Arc::new(Budgeted::new(client, Arc::clone(&meter)));
    let (role, place) = (ModelRole::Teacher, RunPlace { stage: "run", seed: 3 });
    let known = (vec![id], HashMap::new());
    let versions = Versions::new(Arc::clone(&ledger), role, WeightRules::default(), None, vec![], known);
    (Ledgered::new(ledger, budgeted, versions, role, place), meter, recognition)
}

fn sampling() -> Sampling {
    Sampling { temperature: 1.0, top_p: 1.0, top_k: None, seed: None, max_tokens: 6, constraint: None }
}

fn place(episode: usize, vote: usize) -> Place {
    Place { task: "t".into(), episode, step: 0, vote }
}

/// Requests to `route`, the probe left out.
fn n_asked(server: &StandIn, route: &str) -> usize {
    server.asked().iter().filter(|asked| asked.route == route && asked.ids != PROBE).count()
}

#[tokio::test]
async fn votes_and_episodes_are_draws_of_their_own() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let dir = tempfile::tempdir().unwrap();
    let (model, _, _) = open(dir.path(), &server.url(), Allowance::default()).await;
    let mut votes = HashSet::new();
    for vote in [0, 1, 2, 2, 1, 0] {
        let messages = vec![Message::text(Role::User, "was it good?")];
        let request = ChatRequest { messages, tools: vec![], sampling: sampling(), place: place(0, vote) };
        votes.insert(model.chat(&request).await.unwrap().message.content.unwrap().text());
    }
    assert_eq!((n_asked(&server, "/v1/chat/completions"), votes.len()), (3, 3));
    let mut episodes = HashSet::new();
    for episode in [0, 1, 2, 3, 3, 2, 1, 0] {
        let place = place(episode, 0);
        let request =
            GenerateRequest { prompt: vec![1, 2], sampling: sampling(), stop_ids: vec![], top_k: 0, place };
        let ids: Vec<u32> = model.generate(&request).await.unwrap().tokens.iter().map(|it| it.id).collect();
        episodes.insert(ids);
    }
    assert_eq!((n_asked(&server, "/v1/completions"), episodes.len()), (4, 4));
}

#[tokio::test]
async fn other_weights_at_the_same_address_answer_for_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let first = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let (address, url) = (first.address.to_string(), first.url());
    let before = {
        let (model, _, recognition) = open(dir.path(), &url, Allowance::default()).await;
        assert_eq!(recognition, Recognition::New);
        score(&model, 1).await.unwrap()
    };
    drop(first);
    let setup = Setup { toy: Toy { weights: 2 }, ..Setup::new(Dialect::Vllm) };
    let second = StandIn::start_at(&address, setup).await;
    let (model, _, recognition) = open(dir.path(), &url, Allowance::default()).await;
    assert!(matches!(recognition, Recognition::Changed(Some(by)) if by > 0.05), "{recognition:?}");
    assert_ne!(score(&model, 1).await.unwrap(), before);
    assert_eq!(n_asked(&second, "/v1/completions"), 1);
}

/// The client believes that there is no limit until it is told.
#[tokio::test]
async fn what_a_server_cut_short_is_not_kept_as_more() {
    let dir = tempfile::tempdir().unwrap();
    let with = |top_k| ScoreJob::new(job(1).tokens().clone(), job(1).spans().to_vec(), top_k).unwrap();
    // The given token comes on top of the candidates.
    let widths = |scored: &backsight::model::Scored| -> usize {
        scored.spans[0].scores().iter().map(|it| it.top.entries().len() - 1).min().unwrap()
    };
    let narrow = StandIn::start(Setup { max_logprobs: 4, ..Setup::new(Dialect::Vllm) }).await;
    {
        let (model, _, _) = open(dir.path(), &narrow.url(), Allowance::default()).await;
        let (jobs, eight) = ([with(10)], with(8));
        let (many, few) = tokio::join!(model.score_many(&jobs), model.score(&eight));
        assert_eq!((widths(many[0].as_ref().unwrap()), widths(&few.unwrap())), (4, 4));
    }
    // A job may learn from the other's refusal, and even take its answer; neither is refused twice.
    assert!((2..=4).contains(&n_asked(&narrow, "/v1/completions")));
    let wide = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let (model, _, recognition) = open(dir.path(), &wide.url(), Allowance::default()).await;
    assert_eq!(recognition, Recognition::Known);
    assert_eq!(widths(&model.score(&with(4)).await.unwrap()), 4);
    assert_eq!(n_asked(&wide, "/v1/completions"), 0, "that many are kept");
    assert_eq!(widths(&model.score(&with(10)).await.unwrap()), 10);
    assert_eq!(n_asked(&wide, "/v1/completions"), 1, "more are asked for");
}

#[tokio::test]
async fn a_budget_stops_cleanly_and_the_next_run_continues() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let dir = tempfile::tempdir().unwrap();
    let allowance = Allowance { max_requests: Some(4), max_tokens: None };
    let mut n_done = Vec::new();
    loop {
        let (model, meter, _) = open(dir.path(), &server.url(), allowance).await;
        let mut done = 0;
        for n in 0..10 {
            match score(&model, n).await {
                Ok(numbers) => {
                    assert_eq!(numbers, right(n));
                    done += 1;
                }
                Err(error) => {
                    assert_eq!(error.to_string(), "the limit of 4 requests for the teacher is reached");
                    break;
                }
            }
        }
        n_done.push((done, meter.spent().requests));
        if done == 10 {
            break;
        }
    }
    assert_eq!(n_done, [(4, 4), (8, 4), (10, 2)]);
    assert_eq!(n_asked(&server, "/v1/completions"), 10);
}

#[tokio::test]
async fn a_ledger_holds_no_key() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let dir = tempfile::tempdir().unwrap();
    let key = "sk-live-0123456789";
    let url = server.url().replace("http://", &format!("http://me:{key}@"));
    let (model, _, _) = open(dir.path(), &url, Allowance::default()).await;
    score(&model, 1).await.unwrap();
    assert!(server.asked()[0].head.contains("authorization: Basic "));
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(key.len()).any(|window| window == key.as_bytes()));
    }
}

const N_JOBS: u32 = 200;
const DIR: &str = "BACKSIGHT_TEST_DIR";
const URL: &str = "BACKSIGHT_TEST_URL";

/// Not a test of its own: the process that the others start, and kill.
#[tokio::test]
#[ignore = "is started by other tests as a process of its own"]
async fn child() {
    let (Ok(dir), Ok(url)) = (std::env::var(DIR), std::env::var(URL)) else { return };
    let (model, _, _) = open(Path::new(&dir), &url, Allowance::default()).await;
    let model = Arc::new(model);
    let used = std::fs::OpenOptions::new().create(true).append(true).open(Path::new(&dir).join("used"));
    let used = Arc::new(used.unwrap());
    let tasks = (0..4).map(|worker| {
        let (model, used) = (Arc::clone(&model), Arc::clone(&used));
        tokio::spawn(async move {
            for n in (worker..N_JOBS).step_by(4) {
                let numbers = score(&*model, n).await.unwrap();
                // One write call: after a kill the line is there or it is not.
                (&*used).write_all(format!("{n} {numbers:?}\n").as_bytes()).unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

fn start_child(dir: &Path, url: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "inside::ledger::child", "--ignored", "--test-threads=1"])
        .env(DIR, dir)
        .env(URL, url);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The jobs whose results the child has used, each with every result it had.
fn used(dir: &Path) -> HashMap<u32, HashSet<String>> {
    let mut used: HashMap<u32, HashSet<String>> = HashMap::new();
    for line in std::fs::read_to_string(dir.join("used")).unwrap_or_default().lines() {
        let (n, numbers) = line.split_once(' ').unwrap();
        used.entry(n.parse().unwrap()).or_default().insert(numbers.to_owned());
    }
    used
}

/// Asks a dead child's ledger which jobs it has stored, with a model that must not be asked.
async fn stored(dir: &Path, url: &str, server: &StandIn) -> HashSet<u32> {
    let nothing = Allowance { max_requests: Some(0), max_tokens: None };
    let (model, _, _) = open(dir, url, nothing).await;
    // What the dead child had sent may still be on its way.
    let mut before = n_asked(server, "/v1/completions");
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = n_asked(server, "/v1/completions");
        if now == before {
            break;
        }
        before = now;
    }
    let mut stored = HashSet::new();
    for n in 0..N_JOBS {
        match score(&model, n).await {
            Ok(numbers) => {
                assert_eq!(numbers, right(n), "job {n}");
                stored.insert(n);
            }
            Err(Error::Budget { .. }) => {}
            Err(error) => panic!("the ledger is damaged: {error}"),
        }
    }
    assert_eq!(n_asked(server, "/v1/completions"), before);
    stored
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_it_loses_nothing_it_used_and_pays_nothing_twice() {
    let slow = |_: &_| Some(Fault::Slow(Duration::from_millis(4)));
    let server = StandIn::start(Setup::new(Dialect::Vllm).faults(slow)).await;
    let (url, dir) = (server.url(), tempfile::tempdir().unwrap());
    let dir = dir.path();
    let mut n_kills = 0;
    let mut safe: HashSet<u32> = HashSet::new();
    for round in 0.. {
        let n_before = server.asked().len();
        let mut child = start_child(dir, &url);
        // Later and later, so that a busy machine gets there too.
        let moment = Duration::from_millis(20 + mix(round) % 60 + 2 * round);
        let exit = tokio::task::spawn_blocking(move || {
            std::thread::sleep(moment);
            let finished = child.try_wait().unwrap();
            // SIGKILL: no handler runs, no buffer is flushed.
            child.kill().unwrap();
            finished.or(child.wait().ok().filter(|status| status.success()))
        });
        let exit = exit.await.unwrap();
        // What was stored before this life must not have been asked for in it.
        for asked in server.asked()[n_before..].iter().filter(|asked| asked.ids != PROBE) {
            assert!(!safe.contains(&asked.ids[1]), "job {} was stored and is paid again", asked.ids[1]);
        }
        let now = stored(dir, &url, &server).await;
        assert!(safe.is_subset(&now), "something stored was lost");
        for (n, results) in used(dir) {
            assert!(now.contains(&n), "job {n} was used but not stored");
            assert_eq!(results, HashSet::from([format!("{:?}", right(n))]), "job {n}");
        }
        safe = now;
        match exit {
            Some(status) => {
                assert!(status.success());
                break;
            }
            None => n_kills += 1,
        }
    }
    let mut times: HashMap<u32, usize> = HashMap::new();
    for asked in server.asked().iter().filter(|asked| asked.ids != PROBE) {
        *times.entry(asked.ids[1]).or_default() += 1;
    }
    let n_paid_again = times.values().map(|n| n - 1).sum::<usize>();
    assert_eq!((safe.len(), used(dir).len()), (N_JOBS as usize, N_JOBS as usize));
    assert!(n_kills >= 3, "only {n_kills} kills: the test is too easy");
    // Each of the four workers has at most one call in the air when it is killed.
    assert!(n_paid_again <= 4 * n_kills, "{n_paid_again} calls were paid again over {n_kills} kills");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_is_refused_until_the_first_is_dead() {
    let server = StandIn::start(Setup::new(Dialect::Vllm).faults(|_| Some(Fault::Hang))).await;
    let dir = tempfile::tempdir().unwrap();
    let mut child = start_child(dir.path(), &server.url());
    let pid = child.id();
    let refused = tokio::task::spawn_blocking({
        let dir = dir.path().to_owned();
        move || loop {
            std::thread::sleep(Duration::from_millis(10));
            match RunLock::acquire(&dir) {
                Err(error @ LockError::InUse { .. }) if error.to_string().contains("process") => {
                    let text = error.to_string();
                    if !text.ends_with("another process") {
                        return text;
                    }
                }
                Ok(_) | Err(_) => {}
            }
        }
    });
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await.unwrap().unwrap();
    assert!(refused.ends_with(&format!("is in use by process {pid}")), "{refused}");
    child.kill().unwrap();
    child.wait().unwrap();
    RunLock::acquire(dir.path()).unwrap();
}
