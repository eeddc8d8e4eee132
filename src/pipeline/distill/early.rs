//! Distilling while episodes are still run: what can be asked is asked as soon as it can be, and the ledger has it when
//! the episode is distilled.
//!
//! Owns when that is. Nothing is written here, and nothing told: what fails is asked for again, and told, by the
//! distilling that follows.

use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::taught::Through;
use super::{Options, Roles, Shared, Work, lock};
use crate::agent::OnStep;
use crate::pipeline::batch::OnEpisode;
use crate::store::run::RunDir;
use backsight_core::episode::Episode;
use backsight_core::lens::Given;

/// More pieces of work than this wait for nobody: the distilling that follows does them.
const AT_ONCE: usize = 256;

/// Works on the episodes of a run while it goes on.
pub struct Early {
    shared: Arc<Shared>,
    under_way: Arc<Mutex<JoinSet<()>>>,
    runtime: Handle,
}

impl Early {
    /// Like the distilling that follows, on the same run; must be made where tasks can be begun.
    pub fn new(roles: Roles, options: Options, run: Arc<RunDir>) -> Self {
        let shared = Arc::new(Shared::new(roles, options, run, Arc::new(|_| {})));
        Self { shared, under_way: Arc::default(), runtime: Handle::current() }
    }

    /// What is done at each step's end: the step before it is distilled, since now it is known not to be the last, which
    /// hidden tests answer.
    pub fn on_step(&self) -> OnStep {
        let begin = self.beginning();
        Arc::new(move |so_far, step| {
            let Some(before) = step.checked_sub(1) else { return };
            begin(so_far.episode(), Some(before));
        })
    }

    /// What is done at an episode's end: what is left of it is distilled.
    pub fn on_episode(&self) -> OnEpisode {
        let begin = self.beginning();
        Arc::new(move |episode| begin(episode.clone(), None))
    }

    fn beginning(&self) -> impl Fn(Episode, Option<usize>) + Send + Sync + use<> {
        let (shared, runtime) = (Arc::clone(&self.shared), self.runtime.clone());
        let under_way = Arc::clone(&self.under_way);
        move |episode, step| {
            let mut under_way = lock(&under_way);
            while under_way.try_join_next().is_some() {}
            if under_way.len() < AT_ONCE && !shared.brake.is_stopped() {
                let shared = Arc::clone(&shared);
                under_way.spawn_on(async move { shared.ahead(episode, step).await }, &runtime);
            }
        }
    }

    /// Waits for the answers that are still to come, or gives them up.
    pub async fn finish(&self, is_stopped: bool) {
        let mut under_way = std::mem::take(&mut *lock(&self.under_way));
        if is_stopped {
            under_way.abort_all();
        }
        while under_way.join_next().await.is_some() {}
    }
}

impl Shared {
    /// Asks all that is to be asked of an episode, or of one step of an episode that goes on.
    async fn ahead(self: &Arc<Self>, episode: Episode, step: Option<usize>) {
        let _room = self.flight.room_for(self.n_bytes(&episode)).await;
        let Ok(work) = Work::new(self, &Arc::new(episode)).await else { return };
        match step {
            Some(step) => work.ahead(step).await,
            None => drop(tokio::join!(work.own(), work.verdicts())),
        }
    }
}

impl Work<'_> {
    async fn ahead(&self, step: usize) {
        // What the student is to be asked for the whole episode is asked at its end.
        let is_readable = !self.shared.options.at_student || self.recorded_top(step).is_some();
        match (&self.shared.options.judging, &self.judge) {
            (Some(judging), Some(judge)) if !is_readable => self.judge_ahead(judging, judge, step).await,
            (Some(judging), Some(judge)) => drop(self.judged(judging, judge, |it| it == step).await),
            _ if !self.shared.options.distils || !is_readable => {}
            _ => {
                let as_it_is = [(step, Given::Text(String::new()))].into();
                drop(self.taught(self.under(&Through::Plain, as_it_is).await).await);
            }
        }
    }
}
