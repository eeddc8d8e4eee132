//! What a model may be called: as its server calls it, or by a name that tells whose tokenizer it has.

use backsight::model::PROBE_TEXT;
use serde_json::json;

use crate::credit::place::{KEEPS, Place, finish};
use crate::support::hub_stand_in::{plain, stand_in};
use crate::support::stand_in::{Asked, Dialect, Fault, Setup, StandIn};
use crate::support::tiny::fixture;

/// A server that tells how it tokenizes; by the model's own tokenizer or by another.
fn telling(place: &Place, dialect: Dialect, agrees: bool) -> Setup {
    let ids = place.tokenizer().encode(PROBE_TEXT).unwrap().ids;
    Setup { tokenizes: Some(if agrees { ids } else { vec![1, 2, 3] }), ..Setup::new(dialect) }
}

/// What is taken for what.
fn taken(server: &StandIn, wanted: &str) -> String {
    format!("note: {} has no model `{wanted}`; its only one, `toy`, is taken for it", server.url())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_model_may_be_asked_for_by_its_directory() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let place = Place::recorded(KEEPS);
        let server = StandIn::start(telling(&place, dialect, true)).await;
        let url = server.url();
        let ran = place.run(&["--input-dir", "episodes", "--url", &url, "--model", "model"]).await.expect(0);
        assert!(ran.stderr.contains(&taken(&server, "model")), "{}", ran.stderr);
        assert_eq!(place.scores("episode_001")["provenance"]["model"], "toy");
        assert!(place.summary()["notices"].to_string().contains("is taken for it"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_on_the_hub_stands_for_its_tokenizer() {
    let place = Place::recorded(KEEPS);
    let files = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
    let served = files
        .map(|it| (format!("/o/m/resolve/main/{it}"), plain(place.text(&format!("model/{it}")).as_bytes())));
    let served: Vec<_> = served.iter().map(|(path, file)| (path.as_str(), file.clone())).collect();
    let hub = stand_in(&served);
    let server = StandIn::start(telling(&place, Dialect::Sglang, true)).await;
    let url = server.url();
    let run = async |offline: &str, home: &str| {
        let mut command = place.command(&["--input-dir", "episodes", "--url", &url, "--model", "o/m"]);
        command.env("HF_ENDPOINT", &hub.url).env("HF_HOME", place.path(home)).env("HF_HUB_OFFLINE", offline);
        finish(command).await
    };
    let ran = run("1", "empty").await.expect(2);
    let words =
        "no tokenizer was named, the server's own is not on this machine, and that of `o/m` cannot be had: ";
    assert!(ran.stderr.contains(words) && ran.stderr.contains("HF_HUB_OFFLINE is set"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("help: name a directory with tokenizer.json with --tokenizer"),
        "{}",
        ran.stderr
    );
    assert!(place.asked(&server).is_empty());
    let ran = run("0", "home").await.expect(0);
    assert!(ran.stderr.contains(&taken(&server, "o/m")), "{}", ran.stderr);
    let n_asked = hub.seen.lock().unwrap().len();
    // What was named or stands in the cache is not asked for again.
    run("0", "home").await.expect(0);
    let own = ["--input-dir", "episodes", "--url", &url, "--model", "o/m", "--tokenizer", "model"];
    let mut command = place.command(&own);
    command.env("HF_ENDPOINT", &hub.url).env("HF_HOME", place.path("empty"));
    finish(command).await.expect(0);
    assert_eq!(hub.seen.lock().unwrap().len(), n_asked);
}

/// The stand-in says that its model is in the directory `toy`, which is where the program runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_must_agree_itself_although_the_servers_own_is_here() {
    let place = Place::recorded(KEEPS);
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        place.write(&format!("toy/{file}"), &place.text(&format!("model/{file}")));
    }
    let other = fixture("tokenizers/metaspace/tokenizer.json");
    place.write("other/tokenizer.json", &std::fs::read_to_string(other).unwrap());
    let server = StandIn::start(telling(&place, Dialect::Sglang, true)).await;
    let url = server.url();
    let named = ["--input-dir", "episodes", "--url", &url, "--model"];
    let ran = place.run(&[&named[..], &["other"]].concat()).await.expect(2);
    assert!(ran.stderr.contains("has no model `other`; it lists `toy`\n"), "{}", ran.stderr);
    let ran = place.run(&[&named[..], &["elsewhere"]].concat()).await.expect(0);
    assert!(ran.stderr.contains(&taken(&server, "elsewhere")), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_name_needs_one_model_whose_tokenizer_agrees() {
    let place = Place::recorded(KEEPS);
    let two = |asked: &Asked| {
        let models = json!({"data": [{"id": "toy"}, {"id": "toy-2"}]}).to_string();
        (asked.route == "/v1/models").then_some(Fault::Status(200, String::new(), models))
    };
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let servers = [
            (telling(&place, dialect, false), "it lists `toy`\n"),
            (Setup::new(dialect), "it lists `toy`\n"),
            (telling(&place, dialect, true).faults(two), "it lists `toy`, `toy-2`\n"),
        ];
        for (setup, listed) in servers {
            let server = StandIn::start(setup).await;
            let ran = place.credit(&server, &["--model", "other"]).await.expect(2);
            let words =
                format!("error: {} has no model `other`; {listed}help: name one with --model", server.url());
            assert!(ran.stderr.contains(&words), "{}", ran.stderr);
            assert!(place.asked(&server).is_empty() && place.made().is_empty());
        }
    }
}
