//! The stand-in keeps the rules that were measured on real servers, so that costs counted on it mean something.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight::model::transport::{Method, Outgoing, Settings, Transport};
use serde_json::{Value, json};

use crate::inside::support::stand_in::{Dialect, Setup, StandIn};
use crate::inside::support::toy::{Toy, Work};

async fn ask(server: &StandIn, path: &str, body: &Value) -> Value {
    let transport = Transport::open(&[server.url()], Settings::default()).unwrap();
    let write = |_: &str| Ok(body.to_string().into_bytes());
    let call = Outgoing {
        method: Method::POST,
        path,
        body: Some(&write),
        tokens: 1,
        sticky: 0,
        max_answer: 1 << 22,
        timeout: None,
    };
    let decode = |answer: &backsight::model::transport::Answer<'_>| {
        serde_json::from_slice(answer.body).map_err(|why| why.to_string())
    };
    transport.call(&call, &decode).await.unwrap()
}

fn ids() -> Vec<u32> {
    (0..300).map(|at| 50 + 37 * at).collect()
}

#[test]
fn ranks_and_ids_are_each_others_inverse() {
    for context in (Toy { weights: 3 }).contexts(&ids()).into_iter().take(50) {
        for rank in [1, 2, 20, 1_000, 49_157] {
            assert_eq!(context.rank(context.id_at(rank)), rank);
        }
        let top = context.top(30);
        assert!(top.windows(2).all(|pair| pair[0].1 > pair[1].1), "{top:?}");
    }
}

#[tokio::test]
async fn sglang_reuses_up_to_the_first_logprob_asked_for() {
    let server = StandIn::start(Setup::new(Dialect::Sglang)).await;
    let score = |start: i64| {
        json!({"input_ids": ids(), "sampling_params": {"max_new_tokens": 0}, "return_logprob": true,
               "logprob_start_len": start, "top_logprobs_num": 2})
    };
    let plain = json!({"input_ids": ids(), "sampling_params": {"max_new_tokens": 0}});
    let mut cached = Vec::new();
    for body in [plain.clone(), plain, score(0), score(250), score(-1)] {
        let answer = ask(&server, "/generate", &body).await;
        cached.push(answer["meta_info"]["cached_tokens"].as_u64().unwrap());
        let rows = answer["meta_info"]["input_token_logprobs"].as_array().unwrap().len();
        let start = body["logprob_start_len"].as_i64().filter(|&start| start >= 0).unwrap_or(300);
        assert_eq!(rows as i64, 300 - start);
    }
    assert_eq!(cached, [0, 299, 0, 250, 299]);
    let work = Work { requests: 5, sent: 1_500, cached: 848, computed: 652, sampled: 0 };
    assert_eq!(server.work(), work);
}

#[tokio::test]
async fn vllm_computes_everything_to_score() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let plain = json!({"model": "toy", "prompt": ids(), "max_tokens": 1});
    let score = json!({"model": "toy", "prompt": ids(), "max_tokens": 1, "prompt_logprobs": 0});
    let mut cached = Vec::new();
    for body in [&plain, &plain, &score, &score, &plain] {
        let answer = ask(&server, "/v1/completions", body).await;
        cached.push(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
    }
    assert_eq!(cached, [0, 288, 0, 0, 288]);
}
