//! The outcome lens tells what became of the episode, and of the subtask the step belongs to.

use super::{Addition, Lens, NoAddition, OutcomeFacts, Placement, Told, Wording};

/// Our own text.
pub const OUTCOME_TEMPLATE: &str = include_str!("../../../../prompts/outcome.jinja");

/// Tells the outcome.
#[derive(Clone, Debug)]
pub struct OutcomeLens {
    /// What it says.
    pub template: Wording,
    /// Where it is written.
    pub placement: Placement,
}

impl Lens for OutcomeLens {
    fn name(&self) -> &'static str {
        "outcome"
    }

    fn placement(&self) -> Option<Placement> {
        Some(self.placement)
    }

    fn additions(&self, told: &Told<'_>) -> Result<Vec<Option<Addition>>, NoAddition> {
        let outcome = told.episode.outcome.as_ref().map_err(|why| NoAddition::NoReward(why.to_string()))?;
        let facts_at =
            |place| OutcomeFacts::new(outcome.reward, &told.episode.progress, told.completed, place);
        let facts: Vec<OutcomeFacts> = told.places.iter().map(facts_at).collect();
        let texts = self.template.render_all(facts.iter())?;
        Ok(texts.into_iter().map(|text| Some(Addition::Text(self.placement, text))).collect())
    }
}
