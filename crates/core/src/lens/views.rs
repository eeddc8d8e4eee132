//! Several lenses at once: what each step is seen through.
//!
//! Everything between a lens and what is computed from its scores carries views by the index of their lens, and names none.

use std::sync::Arc;

use super::{Addition, Lens, NoAddition, Told};

/// A lens, and how many of the likeliest tokens are asked for through it at each position.
#[derive(Clone, Debug)]
pub struct Through {
    /// The lens.
    pub lens: Arc<dyn Lens>,
    /// How many; 0 is the sampled token's logprob alone.
    pub top_k: usize,
}

/// The lenses that steps are seen through.
#[derive(Clone, Debug, Default)]
pub struct Lenses(Vec<Through>);

/// One step's action as seen through one lens.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Which lens.
    pub lens: usize,
    /// What it adds here.
    pub addition: Addition,
}

impl Lenses {
    /// These and another one, unless it is there already.
    #[must_use]
    pub fn and(mut self, lens: Arc<dyn Lens>, top_k: usize) -> Self {
        match self.0.iter_mut().find(|it| it.lens.key() == lens.key()) {
            Some(known) => known.top_k = known.top_k.max(top_k),
            None => self.0.push(Through { lens, top_k }),
        }
        self
    }

    /// In order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Through> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What results through them are named after: the first.
    pub fn result(&self) -> String {
        self.0.first().map(|through| through.lens.key()).unwrap_or_default()
    }

    /// What they are called in files.
    pub fn keys(&self) -> Vec<String> {
        self.0.iter().map(|it| it.lens.key()).collect()
    }

    /// The views of each step of an episode, those of a step in the order of the lenses.
    pub fn views(&self, told: &Told<'_>) -> Result<Vec<Vec<View>>, NoAddition> {
        let mut views = vec![Vec::new(); told.places.len()];
        for (lens, through) in self.0.iter().enumerate() {
            let additions = through.lens.additions(told)?.into_iter();
            for (of_step, addition) in views.iter_mut().zip(additions) {
                of_step.extend(addition.map(|addition| View { lens, addition }));
            }
        }
        Ok(views)
    }
}
