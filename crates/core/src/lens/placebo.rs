//! The placebo lens says as much as another lens, in the same place, about nothing that matters: what it changes is what
//! any words there change.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Addition, Lens, NoAddition, Placement, Told};
use crate::episode::{Content, Message};
use crate::mix::{after, mix};

/// Sentences that help nobody.
const SENTENCES: &str = include_str!("../../../../prompts/placebo.txt");

/// Says as much as another lens.
#[derive(Clone, Debug)]
pub struct PlaceboLens {
    /// The lens it stands beside.
    pub like: Arc<dyn Lens>,
    /// Which sentences, in which order.
    pub seed: u64,
}

impl Lens for PlaceboLens {
    fn name(&self) -> &'static str {
        "placebo"
    }

    fn placement(&self) -> Option<Placement> {
        self.like.placement()
    }

    fn additions(&self, told: &Told<'_>) -> Result<Vec<Option<Addition>>, NoAddition> {
        let mut known = HashMap::new();
        let mut words = |text: &str| {
            // Steps that share a text share its placebo, and with it their passes.
            known.entry(text.to_owned()).or_insert_with(|| as_long_as(text, self.seed, told.n_tokens)).clone()
        };
        let mut addition = |like| match like {
            Addition::Nothing => Addition::Nothing,
            Addition::Text(placement, text) => Addition::Text(placement, words(&text)),
            Addition::Turns(messages) => {
                Addition::Turns(messages.iter().map(|it| saying(it, &mut words)).collect())
            }
        };
        let like = self.like.additions(told)?;
        Ok(like.into_iter().map(|like| like.map(&mut addition)).collect())
    }
}

/// A message of the same role that says other words.
fn saying(message: &Message, words: &mut impl FnMut(&str) -> String) -> Message {
    let text = message.content.as_ref().map(Content::text).unwrap_or_default();
    Message::text(message.role, words(&text))
}

/// Words with as many tokens as `text` has, as nearly as whole words allow.
fn as_long_as(text: &str, seed: u64, n_tokens: &dyn Fn(&str) -> usize) -> String {
    let n_wanted = n_tokens(text);
    let words: Vec<&str> = shuffled(seed).into_iter().flat_map(|it| it.split(' ')).collect();
    // A word is a token at least, so this many words are enough.
    let said = |n: usize| words.iter().copied().cycle().take(n).collect::<Vec<_>>().join(" ");
    let (mut enough, mut too_few) = (n_wanted, 0);
    while enough - too_few > 1 {
        let middle = usize::midpoint(enough, too_few);
        *(if n_tokens(&said(middle)) < n_wanted { &mut too_few } else { &mut enough }) = middle;
    }
    let off = |n: &usize| n_tokens(&said(*n)).abs_diff(n_wanted);
    said([too_few, enough].into_iter().min_by_key(off).unwrap_or(enough))
}

/// The sentences in an order that the seed decides.
fn shuffled(seed: u64) -> Vec<&'static str> {
    let mut sentences: Vec<(usize, &str)> = SENTENCES.lines().enumerate().collect();
    sentences.sort_by_key(|(idx, _)| mix(after(seed) ^ mix(after(*idx as u64))));
    sentences.into_iter().map(|(_, sentence)| sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five characters are a token, as if words were encoded apart.
    fn n_tokens(text: &str) -> usize {
        text.split_whitespace().map(|word| word.len().div_ceil(5)).sum()
    }

    #[test]
    fn a_placebo_is_as_long_as_what_it_stands_beside() {
        for n in [1, 2, 9, 10, 25, 120, 900] {
            let text = vec!["word"; n].join(" ");
            let said = as_long_as(&text, 7, &n_tokens);
            let off = n_tokens(&said).abs_diff(n);
            assert!(off * 10 <= n || off <= 1, "{n} tokens: {said}");
            assert_eq!(said, as_long_as(&text, 7, &n_tokens));
        }
        let text = "sixty ".repeat(60);
        assert_ne!(as_long_as(&text, 7, &n_tokens), as_long_as(&text, 8, &n_tokens));
    }
}
