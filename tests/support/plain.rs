//! Owns `open`, the one place where tests get a client for a stand-in's address without asking it anything.

use std::sync::Arc;

use backsight::model::Sglang;
use backsight::model::Vllm;
use backsight::model::{Limits, Model};
use backsight::model::{Remote, ServerInfo, kind_named};
use backsight::model::{Settings, Transport};

use super::stand_in::Dialect;
use super::toy::VOCAB;

/// A model behind the stand-ins at `urls`.
pub fn open(dialect: Dialect, urls: &[String], settings: Settings) -> Arc<dyn Model> {
    let transport = Transport::open(urls, settings).unwrap();
    let is_sglang = dialect == Dialect::Sglang;
    let limits = Limits {
        vocab_size: Some(VOCAB as usize),
        token_ids: true,
        scores: true,
        start_index: is_sglang,
        cached_scores: is_sglang,
        batches: is_sglang,
        ..Limits::default()
    };
    let info = ServerInfo {
        kind: kind_named(if is_sglang { "sglang" } else { "vllm" }).unwrap(),
        version: None,
        model: "toy".into(),
        models: vec![],
        model_path: None,
        tokenizer_path: None,
        weight_version: None,
    };
    let remote = Remote { transport, info, limits, notices: Default::default() };
    match dialect {
        Dialect::Vllm => Arc::new(Vllm::new(remote)),
        Dialect::Sglang => Arc::new(Sglang::new(remote)),
    }
}
