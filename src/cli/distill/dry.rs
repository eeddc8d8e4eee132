//! `distill --dry-run`: what would be asked at most, and what it would cost, without asking anybody.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::asked::Asked;
use crate::cli::block_on;
use crate::cli::call::Call;
use crate::cli::failure::Failure;
use crate::cli::output::one_line;
use crate::cli::server::ServerArgs;
use crate::cli::{stdout, voice};
use crate::event::Event;
use crate::model::open::tokenizer_path;
use crate::pipeline::distill::{Forecast, Forecaster};
use crate::store::episodes::{Source, load};
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::model::Limits;
use backsight_core::plan::Figures;

pub(super) fn run(
    call: &Call,
    asked: Asked,
    server: &ServerArgs,
    sources: Vec<Source>,
    run_dir: &Path,
) -> Result<(), Failure> {
    let talk = call.talk("episode");
    let forecaster = forecaster(call, asked, server, run_dir)?;
    let (mut all, mut losses) = (Vec::new(), Vec::new());
    for loaded in load(sources) {
        match loaded {
            Err(error) => losses.push(error.to_string()),
            Ok(loaded) => match forecaster.forecast(&loaded.episode) {
                Ok(forecast) => all.push(forecast),
                Err(loss) => losses.push(format!("{}: {loss}", loaded.episode.id)),
            },
        }
    }
    match call.is_json() {
        true => {
            stdout::json(&json!({"episodes": all.iter().map(as_json).collect::<Vec<_>>(), "lost": losses}))?
        }
        false => stdout::data(table(&all).as_bytes())?,
    }
    let n_lost = losses.len() as u64;
    losses.into_iter().for_each(|why| talk.tell(&Event::Lost(why)));
    voice::verdict(None, n_lost, format!("{n_lost} episodes cannot be distilled"), "mend their files")
}

/// What is asked for, as far as it is known without a server.
fn forecaster<'a>(
    call: &Call,
    mut asked: Asked,
    server: &ServerArgs,
    run_dir: &'a Path,
) -> Result<Forecaster<'a>, Failure> {
    let path = server.part.tokenizer.clone().or_else(|| server.part.model.as_deref().map(Into::into));
    let Some(path) = path else {
        let help = "name the model's tokenizer with --tokenizer; nothing else is needed for a dry run";
        return Err(Failure::input(
            "what distilling costs is counted in tokens, and no tokenizer was named",
            help,
        ));
    };
    let path = block_on(tokenizer_path(&path))??;
    let texts = asked.texts(call, &path, Arc::new(Tokenizer::open(&path)?))?;
    let kind = server.kind().filter(|kind| kind.limits.scores);
    Ok(Forecaster {
        settings: asked.settings(call),
        distils: asked.lens.is_some(),
        framing: asked.framing,
        pairs: call.choice("pairs")?,
        judging: asked.judging,
        manner: asked.manner,
        k: call.get("distill_topk")?,
        student_k: match call.get("at_student_topk")? {
            true => Some(call.get("student_topk")?),
            false => None,
        },
        roles: [call.get("teacher_model")?, call.get("judge_model")?],
        audit: call.choice("audit")?,
        limit: call.get("max_context")?,
        texts,
        limits: kind.map_or(Limits::CACHING, |kind| kind.limits.clone()),
        run_dir,
    })
}

fn table(all: &[Forecast]) -> String {
    let mut text = String::new();
    let (mut votes, mut judge_tokens, mut pairs) = (0, 0, 0);
    let (mut teacher, mut student) = (Figures::default(), Figures::default());
    for it in all {
        votes += it.votes;
        pairs += it.pairs;
        judge_tokens += it.judge_tokens;
        teacher += it.teacher;
        student += it.student;
        let state = match (it.is_made, it.fewer) {
            (true, _) => "there already, would be left alone".to_owned(),
            (false, Some(k)) => format!("there with {k} candidates, would be asked for again"),
            (false, None) => format!("{} pairs, {} votes", it.pairs, it.votes),
        };
        text.push_str(&format!("{}: {} steps; {state}\n", one_line(&it.id), it.steps));
    }
    let n = all.iter().filter(|it| !it.is_made).count();
    let cost = |figures: &Figures| {
        let Figures { requests, naive_requests, naive_tokens, .. } = figures;
        format!(
            "at most {requests} requests, {} tokens computed (each action alone: {naive_requests}, {naive_tokens})",
            figures.computed_tokens()
        )
    };
    text.push_str(&format!(
        "judge      {votes} votes on {pairs} pairs, about {judge_tokens} tokens of questions\n"
    ));
    text.push_str(&format!("teacher    {}\n", cost(&teacher)));
    text.push_str(&format!("student    {}\n", cost(&student)));
    text.push_str(&format!("dry run: {n} of {} episodes to be distilled; nothing was asked\n", all.len()));
    text
}

fn as_json(it: &Forecast) -> Value {
    let figures = |it: &Figures| {
        json!({"requests": it.requests, "naive_requests": it.naive_requests, "sent": it.sent_tokens,
               "computed": it.computed_tokens(), "naive": it.naive_tokens})
    };
    json!({
        "episode": it.id, "made": it.is_made, "fewer_candidates": it.fewer, "steps": it.steps, "pairs": it.pairs,
        "votes": it.votes, "judge_tokens": it.judge_tokens, "teacher": figures(&it.teacher),
        "student": figures(&it.student),
    })
}
