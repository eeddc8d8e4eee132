//! The plain lens adds nothing: its numbers are the student's own, or a teacher's who knows no more.

use super::{Addition, Lens, NoAddition, Placement, Told};

/// Adds nothing.
#[derive(Clone, Copy, Debug)]
pub struct PlainLens;

impl Lens for PlainLens {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn placement(&self) -> Option<Placement> {
        None
    }

    fn additions(&self, told: &Told<'_>) -> Result<Vec<Option<Addition>>, NoAddition> {
        Ok(vec![Some(Addition::Nothing); told.places.len()])
    }
}
