//! Datasets from a stand-in of the hub: found, fetched, kept, and refused with the reason.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

use backsight::hf::HuggingFace;
use backsight::tasks::dataset::DatasetOptions;
use backsight::tasks::hub::parquet_files;
use backsight::tasks::parquet::read_parquet;

use crate::inside::support::hub_stand_in::{Served, StandIn, plain, stand_in};

const LIST: &[u8] = br#"{"sha": "c0ffee", "siblings": [{"rfilename": "default/train/0000.parquet"},
    {"rfilename": "default/train/0001.parquet"}, {"rfilename": "default/test/0000.parquet"}]}"#;

/// A hub with one public dataset of two files, one that needs a token, one that stumbles twice, and nonsense.
fn hub() -> StandIn {
    let file = |name: &str| {
        std::fs::read(format!("{}/tests/fixtures/datasets/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let mut served =
        vec![("/api/datasets/org/broken/revision/refs%2Fconvert%2Fparquet".to_owned(), plain(b"<html>"))];
    for (name, token, busy) in [("tasks", None, 0), ("secret", Some("good"), 0), ("flaky", None, 2)] {
        let list = Served { token, busy, ..plain(LIST) };
        served.push((format!("/api/datasets/org/{name}/revision/refs%2Fconvert%2Fparquet"), list));
        let train = format!("/datasets/org/{name}/resolve/c0ffee/default/train");
        let first = Served { in_storage: true, token, ..plain(&file("tasks.snappy.parquet")) };
        served.push((format!("{train}/0000.parquet"), first));
        served
            .push((format!("{train}/0001.parquet"), Served { token, ..plain(&file("tasks.zstd.parquet")) }));
    }
    let served: Vec<(&str, Served)> = served.iter().map(|(path, it)| (path.as_str(), it.clone())).collect();
    stand_in(&served)
}

/// How many tasks a split holds.
async fn fetch(
    url: &str,
    home: &Path,
    more: &[(&str, &str)],
    name: &str,
    split: &str,
) -> Result<usize, String> {
    let own = [("HF_ENDPOINT", url), ("HF_HOME", home.to_str().unwrap())];
    let find = |name: &str| own.iter().chain(more).find(|it| it.0 == name).map(|it| it.1.to_owned());
    let hub = HuggingFace::from_env(find).unwrap();
    let files = parquet_files(&hub, name, split).await.map_err(|error| error.to_string())?;
    Ok(read_parquet(&files, name, &DatasetOptions::default()).map_err(|error| error.to_string())?.tasks.len())
}

fn n_asked(hub: &StandIn, words: &str) -> usize {
    hub.seen.lock().unwrap().iter().filter(|it| it.contains(words)).count()
}

const OFFLINE: &[(&str, &str)] = &[("HF_HUB_OFFLINE", "1")];

#[tokio::test]
async fn a_dataset_is_fetched_once_and_kept() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    for _ in 0..2 {
        assert_eq!(fetch(&hub.url, home.path(), &[], "org/tasks", "train").await, Ok(4));
    }
    assert_eq!(n_asked(&hub, "GET /datasets/"), 3, "two files, one of them by way of the storage");
    assert_eq!(n_asked(&hub, "GET /api/"), 2, "whether there is a newer commit is asked each time");
    let gone = "http://127.0.0.1:1";
    assert_eq!(fetch(gone, home.path(), OFFLINE, "org/tasks", "train").await, Ok(4), "copies need no hub");
    let kept = home.path().join("hub/datasets--org--tasks/snapshots/c0ffee/default/train/0001.parquet");
    std::fs::remove_file(&kept).unwrap();
    let partial = fetch(gone, home.path(), OFFLINE, "org/tasks", "train").await.unwrap_err();
    assert!(
        partial.starts_with("default/train/0001.parquet of org/tasks@c0ffee is not in the cache"),
        "{partial}"
    );
}

#[tokio::test]
async fn a_token_opens_what_is_closed() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let refused = fetch(&hub.url, home.path(), &[], "org/secret", "train").await.unwrap_err();
    assert!(refused.contains("org/secret") && refused.contains("HF_TOKEN"), "{refused}");
    let token = &[("HF_TOKEN", "good")];
    assert_eq!(fetch(&hub.url, home.path(), token, "org/secret", "train").await, Ok(4));
    assert!(n_asked(&hub, "bearer good") > 0);
    let seen = hub.seen.lock().unwrap();
    assert!(!seen.iter().any(|it| it.starts_with("storage") && it.contains("bearer")), "{seen:?}");
}

#[tokio::test]
async fn a_hub_that_stumbles_is_asked_again() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    assert_eq!(fetch(&hub.url, home.path(), &[], "org/flaky", "train").await, Ok(4));
    assert_eq!(n_asked(&hub, "/api/datasets/org/flaky/"), 3);
}

#[tokio::test]
async fn what_cannot_be_had_is_said() {
    let (hub, home) = (hub(), tempfile::tempdir().unwrap());
    let say =
        async |name: &str, split: &str| fetch(&hub.url, home.path(), &[], name, split).await.unwrap_err();
    let missing = say("org/nothing", "train").await;
    assert!(missing.starts_with("the hub has no Parquet files for dataset org/nothing\nhelp: "), "{missing}");
    let split = say("org/tasks", "validation").await;
    assert!(
        split.starts_with(
            "dataset org/tasks has no split \"validation\"; it has default/train, default/test\nhelp: "
        ),
        "{split}"
    );
    assert!(say("org/broken", "train").await.contains("answered strangely"));
    let offline = fetch(&hub.url, home.path(), OFFLINE, "org/other", "train").await.unwrap_err();
    assert!(offline.contains("org/other") && offline.contains("HF_HUB_OFFLINE is set"), "{offline}");
    let gone = fetch("http://127.0.0.1:1", home.path(), &[], "org/x", "train").await.unwrap_err();
    assert!(gone.contains("cannot be reached") && gone.contains("HF_ENDPOINT"), "{gone}");
}
