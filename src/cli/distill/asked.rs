//! What was asked of `backsight distill`, with the files it names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::call::Call;
use crate::cli::credit::setup;
use crate::cli::failure::Failure;
use crate::judge;
use crate::pipeline::distill::Judging;
use crate::pipeline::outline::Framing;
use crate::pipeline::reader::Texts;
use backsight_chat::messages::list_from_json;
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::hash::sha256;
use backsight_core::lens::{Given, Placement, key_of};

/// What was typed, with the files it names.
pub(in crate::cli) struct Asked {
    pub(super) framing: Framing,
    pub(super) judging: Option<Judging>,
    pub(super) manner: judge::Manner,
    /// The lens whose rows ship; none where nothing is distilled.
    pub(in crate::cli) lens: Option<String>,
}

impl Asked {
    pub(in crate::cli) fn read(call: &Call) -> Result<Self, Failure> {
        let name: String = call.get("lens")?;
        let placement: Placement = call.choice("hint_placement")?;
        let exchange = exchange(call)?;
        let is_hint = match name.as_str() {
            "hint" => true,
            "plain" => false,
            other => {
                let what =
                    format!("actions are distilled under hints or as they are, not through the lens {other}");
                return Err(Failure::input(what, "choose --lens hint or --lens plain"));
            }
        };
        if placement != Placement::Turns && exchange.is_some() {
            let what = "a worked exchange has a placement of its own";
            return Err(Failure::input(what, "name --hint-placement turns beside --hint-exchange-file"));
        }
        let judging = Judging {
            quorum: call.choice("verdict")?,
            choice: call.choice("hint_choice")?,
            leak_words: call.get("hint_leak_words")?,
            tests: HashMap::new(),
            evaluates: call.get("judge_evaluates")?,
            placement,
            placebo: call.get("placebo")?,
            exchange,
        };
        let manner = judge::Manner {
            votes: call.get("prm_votes")?,
            answer_tokens: call.get("judge_answer_tokens")?,
            temperature: call.get("judge_temperature")?,
            structured: call.get("judge_structured")?,
            max_chars: call.get("hint_max_next_state_chars")?,
        };
        if call.get("at_student_topk")? && call.get::<usize>("student_topk")? == 0 {
            let what = "the student keeps no candidates that a teacher could be asked about";
            return Err(Failure::input(what, "choose a --student-topk of 1 or more"));
        }
        let is_on: bool = call.get("opd_enabled")?;
        let key = key_of(&name, is_hint.then_some(placement));
        Ok(Self {
            framing: setup::framing(call)?,
            judging: is_hint.then_some(judging),
            manner,
            lens: is_on.then_some(key),
        })
    }

    /// What decides how an episode comes out, by name, as far as it is typed.
    pub(super) fn settings(&self, call: &Call) -> Value {
        let shown = |key: &&str| ((*key).to_owned(), json!(call.config.shown(key)));
        let mut all: serde_json::Map<String, Value> = SETTINGS.iter().map(shown).collect();
        let exchange = self.judging.as_ref().and_then(|it| it.exchange.as_ref());
        // With how tools are written as it came out, and with the contents of files.
        all.insert("framing".to_owned(), json!(sha256(format!("{:?}", self.framing))));
        all.insert("exchange".to_owned(), json!(exchange.map(|it| sha256(format!("{it:?}")))));
        Value::Object(all)
    }

    /// How the student's conversations become tokens; where it was left open how tools are written, the template says.
    pub(super) fn texts(
        &mut self,
        call: &Call,
        path: &Path,
        tokenizer: Arc<Tokenizer>,
    ) -> Result<Texts, Failure> {
        let template: Option<PathBuf> = call.get("template")?;
        let texts = Texts::open(path, tokenizer, template.as_deref(), &self.framing.vars)?;
        if call.config.shown("tool_text") == ["auto"] {
            self.framing.tool_text = texts.needed_tool_text(!self.framing.tools.is_empty());
        }
        Ok(texts)
    }
}

/// The keys that decide what is distilled from an episode.
#[rustfmt::skip]
const SETTINGS: [&str; 21] = [
    "lens", "pairs", "prm_votes", "verdict", "hint_choice", "hint_placement", "hint_leak_words",
    "hint_max_next_state_chars", "judge_answer_tokens", "judge_temperature", "judge_structured", "judge_evaluates",
    "placebo", "student_topk", "distill_topk", "at_student_topk", "audit", "audit_max_mean_diff", "seed", "max_context", "opd_enabled",
];

fn exchange(call: &Call) -> Result<Option<Given>, Failure> {
    let Some(text) = call.file("hint_exchange_file")? else { return Ok(None) };
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::input(
            format!("--hint-exchange-file: {why}"),
            "give a JSON list of messages with role and content",
        )
    };
    let json: Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    match list_from_json(&json) {
        Ok(messages) if !messages.is_empty() => Ok(Some(Given::Exchange(messages))),
        Ok(_) => Err(wrong(&"there is no message in it")),
        Err(error) => Err(wrong(&error)),
    }
}
