//! Pulling from the Hugging Face hub, against a local stand-in: redirects, ranges, 401, 404, broken transfers, offline.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

use backsight::hf::{HubError, HuggingFace, Repo};

use crate::inside::support::hub_stand_in::{Served, plain, stand_in};

fn hub(url: &str, home: &Path, more: &[(&str, &str)]) -> HuggingFace {
    let env = |name: &str| {
        let home = home.to_str().unwrap();
        let own = [("HF_ENDPOINT", url), ("HF_HOME", home), ("HOME", home)];
        own.iter().chain(more).find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    HuggingFace::from_env(env).unwrap()
}

fn repo() -> Repo {
    Repo::model("o/m")
}

async fn fetch(hub: &HuggingFace, path: &str) -> Result<Vec<u8>, HubError> {
    Ok(std::fs::read(hub.fetch(&repo(), path, &|_, _| ()).await?).unwrap())
}

#[tokio::test]
async fn a_file_arrives_once_and_is_found_again_offline() {
    let server = stand_in(&[("/o/m/resolve/main/a/config.json", plain(b"{}"))]);
    let home = tempfile::tempdir().unwrap();
    let online = hub(&server.url, home.path(), &[]);
    assert_eq!(fetch(&online, "a/config.json").await.unwrap(), b"{}");
    assert_eq!(fetch(&online, "a/config.json").await.unwrap(), b"{}");
    assert_eq!(server.seen.lock().unwrap().len(), 2, "one HEAD and one GET");
    let offline = hub("http://127.0.0.1:9", home.path(), &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(fetch(&offline, "a/config.json").await.unwrap(), b"{}");
    let error = fetch(&offline, "b").await.unwrap_err();
    assert_eq!(error.to_string(), "b of o/m@main is not in the cache, and HF_HUB_OFFLINE is set");
    assert!(error.is_unreachable());
}

#[tokio::test]
async fn a_repository_tells_its_files() {
    let list = br#"{"id": "o/m", "siblings": [{"rfilename": "config.json"}, {"rfilename": "a/b.gguf"}]}"#;
    let server = stand_in(&[
        ("/api/models/o/m/revision/main", Served { token: Some("sesame"), ..plain(list) }),
        ("/api/models/o/html/revision/main", plain(b"<html>")),
    ]);
    let home = tempfile::tempdir().unwrap();
    let online = hub(&server.url, home.path(), &[("HF_TOKEN", "sesame")]);
    assert_eq!(online.files(&repo()).await.unwrap().files, ["config.json", "a/b.gguf"]);
    let missing = online.files(&Repo::model("o/none")).await.err().unwrap();
    assert_eq!(missing.to_string(), format!("{} has no model o/none", server.url));
    let strange = online.files(&Repo::model("o/html")).await.err().unwrap().to_string();
    assert!(strange.contains("answered strangely for the list of files of o/html@main"), "{strange}");
    let offline = hub(&server.url, home.path(), &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(
        offline.files(&repo()).await.unwrap().files,
        ["config.json", "a/b.gguf"],
        "as it was told last"
    );
    assert!(offline.files(&Repo::model("o/none")).await.err().unwrap().is_unreachable());
}

#[tokio::test]
async fn a_redirect_to_the_storage_takes_no_token_along() {
    let served = Served { in_storage: true, token: Some("sesame"), ..plain(b"weights") };
    let server = stand_in(&[("/o/m/resolve/main/w", served)]);
    let home = tempfile::tempdir().unwrap();
    let hub = hub(&server.url, home.path(), &[("HF_TOKEN", "sesame")]);
    assert_eq!(fetch(&hub, "w").await.unwrap(), b"weights");
    let seen = server.seen.lock().unwrap();
    let storage: Vec<_> = seen.iter().filter(|line| line.starts_with("storage")).collect();
    assert_eq!(storage, ["storage GET /o/m/resolve/main/w HTTP/1.1 - -"]);
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_stopped() {
    let body: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let server = stand_in(&[("/o/m/resolve/main/w", Served { breaks: 2, ..plain(&body) })]);
    let home = tempfile::tempdir().unwrap();
    assert_eq!(fetch(&hub(&server.url, home.path(), &[]), "w").await.unwrap(), body);
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().any(|line| line.contains("bytes=200000-")), "{seen:?}");
    assert!(seen.iter().any(|line| line.contains("bytes=300000-")), "{seen:?}");
}

#[tokio::test]
async fn damaged_files_are_thrown_away() {
    let served = Served { etag: Some("0".repeat(64)), ..plain(b"weights") };
    let server = stand_in(&[("/o/m/resolve/main/w", served)]);
    let home = tempfile::tempdir().unwrap();
    let hub = hub(&server.url, home.path(), &[]);
    let error = fetch(&hub, "w").await.unwrap_err();
    assert!(error.to_string().starts_with("w of o/m@main arrived damaged: SHA-256 is"), "{error}");
    assert!(hub.cached(&repo(), "w").is_none());
}

#[tokio::test]
async fn refusals_say_what_is_missing() {
    let served = Served { token: Some("sesame"), ..plain(b"secret") };
    let server = stand_in(&[("/o/m/resolve/main/w", served)]);
    let home = tempfile::tempdir().unwrap();
    let denied = fetch(&hub(&server.url, home.path(), &[]), "w").await.unwrap_err();
    let expected = format!("{} refuses w of o/m@main: HTTP 401, without a token", server.url);
    assert_eq!(denied.to_string(), expected);
    let wrong = fetch(&hub(&server.url, home.path(), &[("HF_TOKEN", "guess")]), "w").await.unwrap_err();
    assert!(wrong.to_string().ends_with("with the token given") && !wrong.to_string().contains("guess"));
    let missing = fetch(&hub(&server.url, home.path(), &[]), "nothing").await.unwrap_err();
    assert_eq!(missing.to_string(), format!("{} has no nothing of o/m@main", server.url));
    let escape = fetch(&hub(&server.url, home.path(), &[]), "../../x").await.unwrap_err();
    assert!(escape.to_string().contains("leaves the repository"));
    let gone = fetch(&hub("http://127.0.0.1:9", home.path(), &[]), "w").await.unwrap_err();
    assert!(gone.is_unreachable(), "{gone}");
}

#[tokio::test]
async fn the_token_of_a_login_is_found() {
    let served = Served { token: Some("sesame"), ..plain(b"secret") };
    let server = stand_in(&[("/o/m/resolve/main/w", served)]);
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("token"), "sesame\n").unwrap();
    assert_eq!(fetch(&hub(&server.url, home.path(), &[]), "w").await.unwrap(), b"secret");
}
