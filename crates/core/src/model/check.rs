//! What is refused before it is asked, because a model cannot answer it or falls over it.
//!
//! Owns the checks that every model makes alike.

use super::{Error, Limits};
use crate::score::ScoreJob;
use crate::tokens::{self, TokenId};

/// Refuses ids the model does not have.
pub fn check_ids(ids: &[TokenId], vocab_size: Option<usize>) -> Result<(), Error> {
    let Some(vocab_size) = vocab_size else { return Ok(()) };
    tokens::check_ids(ids, vocab_size)
        .map_err(|what| Error::invalid(what, "use the tokenizer of the model that is asked"))
}

/// Refuses a prompt that leaves no room for one more token, which every server wants.
pub fn check_length(n_tokens: usize, context_length: Option<usize>) -> Result<(), Error> {
    let Some(context_length) = context_length.filter(|&length| n_tokens >= length) else { return Ok(()) };
    let what = format!("{n_tokens} tokens do not fit a context of {context_length} with room for one more");
    Err(Error::invalid(what, "shorten the sequence, or start the server with a longer context"))
}

/// Refuses a prompt without tokens.
pub fn check_prompt(prompt: &[TokenId]) -> Result<(), Error> {
    match prompt.is_empty() {
        true => Err(Error::invalid("the prompt has no tokens", "give at least one")),
        false => Ok(()),
    }
}

/// Refuses more candidates than there are tokens: servers fall over it.
pub fn check_top_k(top_k: usize, vocab_size: Option<usize>) -> Result<(), Error> {
    let Some(size) = vocab_size.filter(|&size| top_k > size) else { return Ok(()) };
    let what = format!("{top_k} candidates per position are more than the vocabulary's {size} tokens");
    Err(Error::invalid(what, "ask for a smaller top_k"))
}

/// Refuses chosen candidates where a model gives only its likeliest: fewer than were asked for is another answer.
pub fn check_chosen(job: &ScoreJob, limits: &Limits) -> Result<(), Error> {
    if job.chosen().is_empty() || limits.chosen {
        return check_ids(&job.all_chosen(), limits.vocab_size);
    }
    let what = "the model gives its likeliest candidates alone, none that are chosen";
    Err(Error::invalid(what, "ask for its likeliest, of which some may be among those"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn ids_and_lengths_are_checked() {
        let what = |result: Result<(), Error>| result.unwrap_err().to_string();
        assert_eq!(check_ids(&[1, 2], Some(3)), Ok(()));
        assert_eq!(check_ids(&[9], None), Ok(()));
        assert_eq!(what(check_ids(&[1, 3], Some(3))), "token 3 at position 1 is outside the vocabulary of 3");
        assert_eq!(check_length(9, Some(10)), Ok(()));
        assert_eq!(
            what(check_length(10, Some(10))),
            "10 tokens do not fit a context of 10 with room for one more"
        );
        assert_eq!(what(check_prompt(&[])), "the prompt has no tokens");
    }
}
