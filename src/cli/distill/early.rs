//! Distilling while episodes are still run, beside the stage that runs them.

use super::{Asked, Servers, Setup, hidden};
use crate::agent::OnStep;
use crate::cli::call::Call;
use crate::cli::failure::Failure;
use crate::cli::server::ServerArgs;
use crate::cli::voice::Voice;
use crate::config::Config;
use crate::model::Opened;
use crate::pipeline::batch::OnEpisode;
use crate::pipeline::distill;
use crate::pipeline::paid::Paid;
use crate::tasks::CodingTask;
use std::sync::Arc;

/// What distils the episodes of a student that is still at work.
pub(in crate::cli) struct Early {
    work: distill::Early,
    /// Whether all episodes of a group are waited for, because it may not pass.
    waits: bool,
    paid: [Paid; 3],
}

impl Early {
    /// Everybody whom `config` names, asked on the run of a student that works on these tasks. What cannot be distilled
    /// is refused here, before any episode is paid for.
    pub(in crate::cli) async fn open(
        config: &Config,
        student: &Opened,
        tasks: &[Arc<CodingTask>],
        voice: &Arc<Voice>,
    ) -> Result<Self, Failure> {
        let call = &Call::over(config.clone());
        let mut asked = Asked::read(call)?;
        if let Some(judging) = &mut asked.judging {
            judging.tests = hidden(tasks.iter().map(|it| &**it)).collect();
        }
        let server = ServerArgs::read(config)?;
        let servers = Servers::open(call, student.clone(), voice).await?;
        let Setup { paid, roles, options, .. } = Setup::open(call, asked, &server, servers, voice).await?;
        let waits = call.get("ensure_scores_are_not_same")?;
        Ok(Self { work: distill::Early::new(roles, options, Arc::clone(&voice.run)), waits, paid })
    }

    pub(in crate::cli) fn on_step(&self) -> Option<OnStep> {
        (!self.waits).then(|| self.work.on_step())
    }

    pub(in crate::cli) fn on_episode(&self) -> Option<OnEpisode> {
        (!self.waits).then(|| self.work.on_episode())
    }

    /// What it pays, for each role.
    pub(in crate::cli) fn paid(&self) -> impl Iterator<Item = &Paid> {
        self.paid.iter()
    }

    /// Waits for the answers that are still to come, or gives them up.
    pub(in crate::cli) async fn finish(&self, is_stopped: bool) {
        self.work.finish(is_stopped).await;
    }
}
