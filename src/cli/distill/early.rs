//! Judging while episodes are still run: as soon as an action has its next state, its votes are asked for, and the ledger
//! has them when they are wanted.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::asked::Asked;
use super::{STAGE, role};
use crate::agent::OnStep;
use crate::cli::call::Call;
use crate::cli::failure::Failure;
use crate::cli::server::ServerArgs;
use crate::cli::voice::Voice;
use crate::config::Config;
use crate::judge::Judge;
use crate::model::budget::ModelRole;
use crate::model::{ChatRequest, Model, Opened};
use crate::pipeline::distill::watched;
use crate::pipeline::paid::Paid;
use backsight_core::episode::{Episode, steps_of};
use backsight_core::hint::{Pairs, Question, pairs};

/// A judge beside a student.
pub(in crate::cli) struct Early {
    judge: Arc<Judge>,
    pairs: Pairs,
    under_way: Arc<Mutex<JoinSet<()>>>,
    /// What it pays.
    pub(in crate::cli) paid: Paid,
}

impl Early {
    /// The judge that `config` names, asked on the run of a student; none where no one is judged.
    pub(in crate::cli) async fn open(
        config: &Config,
        student: &Opened,
        voice: &Arc<Voice>,
    ) -> Result<Option<Self>, Failure> {
        let call = &Call::over(config.clone());
        let asked = Asked::read(call)?;
        if asked.judging.is_none() || asked.lens.is_none() {
            return Ok(None);
        }
        let own = role(call, ModelRole::Judge, false, voice).await?;
        let server = ServerArgs::read(config)?;
        let terms = server.terms(ModelRole::Judge, STAGE, call.get("seed")?);
        let paid = Paid::open(own.as_ref().unwrap_or(student), &voice.run, terms).await?;
        let model: Arc<dyn Model> = watched(&paid.model, &Default::default());
        let judge = Arc::new(Judge { model, manner: asked.manner });
        Ok(Some(Self { judge, pairs: call.choice("pairs")?, under_way: Arc::default(), paid }))
    }

    /// What is done at each step's end: the step before it is judged, since now it is known not to be the last, which
    /// hidden tests answer.
    pub(in crate::cli) fn on_step(&self) -> OnStep {
        let (judge, which, under_way) = (Arc::clone(&self.judge), self.pairs, Arc::clone(&self.under_way));
        let runtime = Handle::current();
        Arc::new(move |episode, step| {
            let requests = step.checked_sub(1).and_then(|before| requests(&judge, episode, before, which));
            let Some(requests) = requests else { return };
            let judge = Arc::clone(&judge);
            let mut under_way = under_way.lock().unwrap_or_else(PoisonError::into_inner);
            while under_way.try_join_next().is_some() {}
            // What fails here is asked for again, and told, when the verdict is made.
            under_way.spawn_on(async move { drop(judge.model.chat_many(&requests).await) }, &runtime);
        })
    }

    /// Waits for the answers that are still to come, or gives them up.
    pub(in crate::cli) async fn finish(&self, is_stopped: bool) {
        let mut under_way =
            std::mem::take(&mut *self.under_way.lock().unwrap_or_else(PoisonError::into_inner));
        if is_stopped {
            under_way.abort_all();
        }
        while under_way.join_next().await.is_some() {}
    }
}

/// What is asked about a step of an episode that goes on.
fn requests(judge: &Judge, episode: &Episode, step: usize, which: Pairs) -> Option<Vec<ChatRequest>> {
    let mut so_far = Episode::new(episode.id.clone(), episode.task.clone(), episode.messages.clone());
    so_far.set_steps(steps_of(&episode.messages)).ok()?;
    let pair = pairs(&so_far, which, judge.manner.max_chars).into_iter().find(|pair| pair.step == step)?;
    Some(judge.requests(Question::Hint, &so_far, &pair))
}
