//! Servers that stay healthy and change: weights replaced in the middle of a run, and numbers that are not there.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use backsight::lens::{OUTCOME_TEMPLATE, Placement};

use crate::credit::numbers::{Alone, alone};
use crate::credit::place::{KEEPS, Place as Episodes};
use crate::score::{DIALECTS, FIRST_ID, Place, expected_of, job};
use crate::support::stand_in::{Asked, Dialect, Fault, Setup, StandIn};
use crate::support::toy::Toy;

const OLD: Toy = Toy { weights: 1 };
const NEW: Toy = Toy { weights: 2 };

/// Jobs that share nothing, so that each is a request of its own.
fn jobs(n: u32, length: u32) -> Vec<Value> {
    let tokens = |id: u32| -> Vec<u32> {
        (0..length).map(|at| FIRST_ID + (at * at + id * 7 + id / 100 * at) % 100).collect()
    };
    (0..n).map(|id| job(id, &tokens(id), &[[5, length as usize]])).collect()
}

/// A server whose weights are others after so many prompts.
fn swapping(dialect: Dialect, after: u64, names_weights: bool) -> Setup {
    let new_weights = vec![(after, NEW.weights)];
    Setup { new_weights, names_weights, ..Setup::new(dialect) }
}

/// How many rows are right under these weights; a row with a number of any others fails.
fn count_right(rows: &[Value], jobs: &[Value], allowed: &[Toy]) -> BTreeMap<u64, usize> {
    let mut right = BTreeMap::new();
    for (row, job) in rows.iter().zip(jobs) {
        if row.get("error").is_some() {
            assert_eq!(row["spans"], json!([]), "{row}");
            continue;
        }
        let toy = allowed.iter().find(|toy| expected_of(job, **toy)["spans"] == row["spans"]);
        *right.entry(toy.unwrap_or_else(|| panic!("wrong numbers: {row}")).weights).or_default() += 1;
    }
    right
}

/// By the version that rows name, the weights that their numbers are of.
fn named_rows<'a>(rows: &'a [Value], jobs: &[Value]) -> BTreeMap<&'a str, BTreeSet<u64>> {
    let mut names: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for (row, job) in rows.iter().zip(jobs) {
        let is_of = |toy: &Toy| expected_of(job, *toy)["spans"] == row["spans"];
        let toy = [OLD, NEW].into_iter().find(is_of).unwrap();
        names.entry(row["version"].as_str().unwrap()).or_default().insert(toy.weights);
    }
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn new_weights_behind_a_healthy_server_end_the_run_and_give_no_number() {
    for (dialect, names_weights, more) in [
        (Dialect::Vllm, false, &[][..]),
        (Dialect::Vllm, false, &["--weights-check-answers", "20"]),
        (Dialect::Sglang, false, &["--weights-check-answers", "20"]),
        (Dialect::Sglang, true, &[]),
    ] {
        let server = StandIn::start(swapping(dialect, 80, names_weights)).await;
        let jobs = jobs(200, 12);
        let place = Place::new(&jobs);
        let ran = place.score_at(&server, more).await;
        assert_eq!(ran.code, 3, "{dialect:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(" is another model than before: "), "{}", ran.stderr);
        let right = count_right(&place.rows(), &jobs, &[OLD]);
        assert!(right.get(&OLD.weights).copied().unwrap_or(0) < 80, "{right:?}");
        // The same command begins anew with what is there now.
        let again = place.score_at(&server, more).await;
        assert_eq!(again.code, 0, "{}", again.stderr);
        assert_eq!(count_right(&place.rows(), &jobs, &[NEW]), [(NEW.weights, 200)].into());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_with_new_weights_where_that_is_wanted() {
    for (dialect, names_weights) in
        [(Dialect::Vllm, false), (Dialect::Sglang, false), (Dialect::Sglang, true)]
    {
        let server = StandIn::start(swapping(dialect, 120, names_weights)).await;
        let jobs = jobs(200, 12);
        let place = Place::new(&jobs);
        let more =
            ["--new-weights", "continue", "--weights-check-answers", "20", "--json", "--concurrency", "4"];
        let ran = place.score_at(&server, &more).await;
        assert_eq!(ran.code, 0, "{dialect:?}: {}", ran.stderr);
        let rows = place.rows();
        let right = count_right(&rows, &jobs, &[OLD, NEW]);
        assert_eq!(right.values().sum::<usize>(), 200, "{right:?}");
        // Each row names the weights it is of.
        let names = named_rows(&rows, &jobs);
        assert!(names.values().all(|it| it.len() == 1), "{names:?}");
        // A name may come before its weights, as on real servers: then there are two.
        let changes = ran.summary()["weights"]["changes"].as_u64();
        assert!(changes == Some(1) || names_weights && changes == Some(2), "{}", ran.summary());
    }
}

/// What changes while noise is being measured is no noise: later changes are seen as well as ever.
#[tokio::test(flavor = "multi_thread")]
async fn weights_that_are_replaced_while_they_are_first_measured_hide_no_later_change() {
    let newer = Toy { weights: 3 };
    // Two prompts find out what the server can do, the next ones are the first measurements.
    for after in 2..9 {
        let new_weights = vec![(after, NEW.weights), (100, newer.weights)];
        let server = StandIn::start(Setup { new_weights, ..Setup::new(Dialect::Vllm) }).await;
        let jobs = jobs(200, 12);
        let place = Place::new(&jobs);
        let ran = place.score_at(&server, &["--weights-check-answers", "20"]).await;
        assert_eq!(ran.code, 3, "{after}: {}", ran.stderr);
        count_right(&place.rows(), &jobs, &[NEW]);
        let again = place.score_at(&server, &[]).await;
        assert_eq!(again.code, 0, "{after}: {}", again.stderr);
        assert_eq!(count_right(&place.rows(), &jobs, &[newer]), [(newer.weights, 200)].into());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_weights_that_come_back_are_told_from_those_in_between() {
    for dialect in DIALECTS {
        // Long enough to be measured and confirmed, also on a busy machine.
        let new_weights = vec![(90, NEW.weights), (350, OLD.weights)];
        let server = StandIn::start(Setup { new_weights, names_weights: false, ..Setup::new(dialect) }).await;
        // Half of each job is the beginning of another, so that many are put together from two answers.
        let mut jobs = jobs(200, 24);
        let branch = |(id, job): (u32, &Value)| {
            let mut branch = job.clone();
            (branch["id"], branch["tokens"][20], branch["spans"]) =
                (json!(200 + id), json!(FIRST_ID + 101), json!([[5, 12], [18, 24]]));
            branch
        };
        let branches: Vec<Value> = (0..).zip(&jobs).map(branch).collect();
        jobs.extend(branches);
        let place = Place::new(&jobs);
        let more = ["--new-weights", "continue", "--weights-check-answers", "10", "--concurrency", "4"];
        let ran = place.score_at(&server, &more).await;
        assert_eq!(ran.code, 0, "{dialect:?}: {}", ran.stderr);
        assert_eq!(count_right(&place.rows(), &jobs, &[OLD, NEW]).values().sum::<usize>(), 400);
    }
}

/// An answer that lacks one number has others, and those are of some weights too.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_beside_one_that_is_absent_are_vouched_for_too() {
    let lacking = |asked: &Asked| (asked.ids.first() == Some(&(FIRST_ID + 50))).then_some(Fault::Null);
    let server = StandIn::start(swapping(Dialect::Vllm, 60, false).faults(lacking)).await;
    let mut jobs = jobs(100, 12);
    // Asked for last, when the weights are others and nobody has noticed yet.
    jobs.push(job(100, &[vec![FIRST_ID + 50], vec![FIRST_ID; 11]].concat(), &[[5, 12]]));
    let place = Place::new(&jobs);
    let ran = place.score_at(&server, &["--concurrency", "1"]).await;
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert_eq!(place.rows()[100]["spans"], json!([]), "{}", place.rows()[100]);
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_is_no_change_and_says_how_much_can_be_seen() {
    for dialect in DIALECTS {
        let setup = Setup { noise: 0.01, names_weights: false, ..Setup::new(dialect) };
        let server = StandIn::start(setup).await;
        let place = Place::new(&jobs(300, 12));
        let ran = place.score_at(&server, &["--weights-check-answers", "10", "--json"]).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let weights = ran.summary()["weights"].clone();
        assert_eq!(weights["changes"], 0);
        let smallest = weights["smallest_change"].as_f64().unwrap();
        assert!((0.005..0.06).contains(&smallest), "{weights}");
    }
}

/// Of a run of 1,000 jobs, measuring takes less than two requests in a hundred.
#[tokio::test(flavor = "multi_thread")]
async fn measuring_costs_little() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let place = Place::new(&jobs(1000, 60));
    let ran = place.score_at(&server, &["--json"]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let (summary, weights) = (ran.summary(), ran.summary()["weights"].clone());
    assert!(weights["requests"].as_u64().unwrap() * 50 <= summary["requests"].as_u64().unwrap(), "{summary}");
}

/// The server's answers to one job lack a number until it is mended.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_number_is_asked_for_again_and_never_reused() {
    for dialect in DIALECTS {
        for fault in [Fault::Null, Fault::NotANumber] {
            let (is_broken, n_asked) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicUsize::new(0)));
            let (broken, asked) = (Arc::clone(&is_broken), Arc::clone(&n_asked));
            let setup = Setup::new(dialect).faults(move |it| {
                let is_hit = it.ids.len() == 9;
                asked.fetch_add(usize::from(is_hit), Ordering::SeqCst);
                (is_hit && broken.load(Ordering::SeqCst) == 1).then(|| fault.clone())
            });
            let server = StandIn::start(setup).await;
            let mut jobs = jobs(20, 12);
            jobs.push(job(20, &[FIRST_ID; 9], &[[4, 9]]));
            jobs.push(job(21, &[FIRST_ID, FIRST_ID + 1], &[[0, 1]]));
            let place = Place::new(&jobs);
            let ran = place.score_at(&server, &["--json"]).await;
            assert_eq!(ran.code, 1, "{}", ran.stderr);
            assert_eq!(ran.summary()["lost"], json!({"jobs": {"numbers are absent": 1}}));
            assert_eq!((&ran.summary()["scored"], n_asked.load(Ordering::SeqCst)), (&json!(21), 3));
            assert_eq!(place.rows()[20]["spans"][0]["logprobs"][4], Value::Null);
            is_broken.store(0, Ordering::SeqCst);
            let again = place.score_at(&server, &["--json"]).await;
            assert_eq!(again.code, 0, "{}", again.stderr);
            assert_eq!((&again.summary()["requests"], n_asked.load(Ordering::SeqCst)), (&json!(1), 4));
            assert_eq!(place.rows()[20]["spans"], expected_of(&jobs[20], OLD)["spans"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credit_writes_nothing_that_new_weights_may_have_given() {
    for (dialect, names_weights) in
        [(Dialect::Vllm, false), (Dialect::Sglang, false), (Dialect::Sglang, true)]
    {
        let place = Episodes::empty(KEEPS);
        let names: Vec<String> = (0..30).map(|n| format!("episode_{n:03}")).collect();
        names.iter().for_each(|name| place.write_talk(name, 4));
        let server = StandIn::start(swapping(dialect, 25, names_weights)).await;
        let more = ["--weights-check-answers", "5", "--placement", "last"];
        place.credit(&server, &more).await.expect(3);
        let n_old = count_credited(&place, &names, OLD);
        assert!(n_old < 30);
        place.credit(&server, &more).await.expect(0);
        let n_new = names.iter().filter(|name| is_of(&place, name, NEW)).count();
        assert_eq!(
            (n_old, n_new),
            (names.iter().filter(|name| is_of(&place, name, OLD)).count(), 30 - n_old)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credit_goes_on_with_new_weights_and_every_episode_is_of_one_version() {
    for (dialect, names_weights) in
        [(Dialect::Vllm, false), (Dialect::Sglang, false), (Dialect::Sglang, true)]
    {
        let place = Episodes::empty(KEEPS);
        let names: Vec<String> = (0..30).map(|n| format!("episode_{n:03}")).collect();
        names.iter().for_each(|name| place.write_talk(name, 4));
        let server = StandIn::start(swapping(dialect, 60, names_weights)).await;
        let more = ["--weights-check-answers", "5", "--placement", "last", "--new-weights", "continue"];
        place.credit(&server, &more).await.expect(0);
        let mut versions: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for name in &names {
            let toy = [OLD, NEW].into_iter().find(|toy| is_of(&place, name, *toy));
            let toy = toy.unwrap_or_else(|| panic!("{name} has numbers of several weights"));
            let version = place.scores(name)["provenance"]["version"].as_str().unwrap().to_owned();
            versions.entry(version).or_default().insert(toy.weights);
        }
        // On a busy machine none may have been whole before the change.
        assert!(versions.values().all(|it| it.len() == 1), "{dialect:?}: {versions:?}");
        assert!(versions.values().any(|it| it.contains(&NEW.weights)), "{dialect:?}: {versions:?}");
        // A name may come before its weights, as on real servers: then there are two.
        let changes = place.summary()["weights"]["changes"].as_u64();
        assert!(changes == Some(1) || names_weights && changes == Some(2), "{changes:?}");
    }
}

/// Two replicas that are synced one after the other: the second has the old weights for long after the first has new
/// ones, so that whoever takes them for one model gives rows wrong names.
async fn replicas(dialect: Dialect) -> [StandIn; 2] {
    let synced = async |after| StandIn::start(swapping(dialect, after, false)).await;
    [synced(30).await, synced(150).await]
}

const ROLLING: [&str; 4] = ["--new-weights", "continue", "--weights-check-answers", "5"];

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_are_synced_one_after_the_other_have_versions_of_their_own() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let [first, second] = replicas(dialect).await;
        let other = second.url();
        let jobs = jobs(300, 12);
        let place = Place::new(&jobs);
        let more = [&ROLLING[..], &["--concurrency", "4", "--json", "--url", &other]].concat();
        let ran = place.score_at(&first, &more).await;
        assert_eq!(ran.code, 0, "{dialect:?}: {}", ran.stderr);
        let rows = place.rows();
        assert_eq!(count_right(&rows, &jobs, &[OLD, NEW]).values().sum::<usize>(), 300);
        let versions = named_rows(&rows, &jobs);
        assert!(versions.values().all(|it| it.len() == 1), "{dialect:?}: {versions:?}");
        assert_eq!(ran.summary()["weights"]["changes"], 2, "{}", ran.summary());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credit_over_replicas_gives_every_episode_numbers_of_one_version() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let place = Episodes::empty(KEEPS);
        let names: Vec<String> = (0..60).map(|n| format!("episode_{n:03}")).collect();
        names.iter().for_each(|name| place.write_talk(name, 4));
        let [first, second] = replicas(dialect).await;
        let other = second.url();
        let more = [&ROLLING[..], &["--placement", "last", "--url", &other]].concat();
        place.credit(&first, &more).await.expect(0);
        let mut versions: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for name in &names {
            let toy = [OLD, NEW].into_iter().find(|toy| is_of(&place, name, *toy));
            let toy = toy.unwrap_or_else(|| panic!("{name} has numbers of several weights"));
            let version = place.scores(name)["provenance"]["version"].as_str().unwrap().to_owned();
            versions.entry(version).or_default().insert(toy.weights);
        }
        assert!(versions.values().all(|it| it.len() == 1), "{dialect:?}: {versions:?}");
        assert!(first.asked().len() > 40 && second.asked().len() > 40);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_is_gone_is_told_before_anything_is_paid() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let words = "ledger.sqlite is missing or empty: what was paid for them is paid again";
    let place = Place::new(&jobs(3, 12));
    let first = place.score_at(&server, &[]).await;
    assert!(first.code == 0 && !first.stderr.contains(words), "{}", first.stderr);
    fs::remove_file(place.path("out.jsonl.backsight/ledger.sqlite")).unwrap();
    let again = place.score_at(&server, &[]).await;
    assert!(again.code == 0 && again.stderr.contains(words), "{}", again.stderr);
    let episodes = Episodes::empty(KEEPS);
    episodes.write_talk("episode_000", 2);
    assert!(!episodes.credit(&server, &[]).await.expect(0).stderr.contains(words));
    fs::write(episodes.path("episodes/.backsight/ledger.sqlite"), "").unwrap();
    assert!(episodes.credit(&server, &[]).await.expect(0).stderr.contains(words));
}

/// How many episodes have credit, all of whose numbers are those of `toy`.
fn count_credited(place: &Episodes, names: &[String], toy: Toy) -> usize {
    let is_made = |name: &&String| {
        let of =
            |suffix: &str| place.path(&format!("episodes/{name}/hindsight_scores{suffix}.json")).exists();
        of("") || of(".outcome-last")
    };
    let made: Vec<&String> = names.iter().filter(is_made).collect();
    made.iter().for_each(|name| assert!(is_of(place, name, toy), "{name} has numbers of other weights"));
    made.len()
}

fn is_of(place: &Episodes, name: &str, toy: Toy) -> bool {
    let steps = alone(place, name, Some(Placement::Last), OUTCOME_TEMPLATE);
    let scored = place.scores(name)["steps"].clone();
    let is_right = |(idx, step): (usize, &Alone)| {
        (scored[idx]["mean_logprob"].as_f64().unwrap() - step.mean(toy)).abs() < 1e-12
    };
    steps.len() == scored.as_array().unwrap().len() && steps.iter().enumerate().all(is_right)
}
