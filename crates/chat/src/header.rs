//! Where an action begins in a rendering that does not begin with its prompt.
//!
//! Templates that rewrite the context, or whose generation prompt says more than a rendered turn repeats, do
//! not show their border by a common beginning. It is found by letting the messages around it say words that
//! occur nowhere else: what stands between two such words is what the template itself writes there. Owns
//! those words and nothing about tokens, but that a special token is never parted.

use super::error::TextError;
use super::incremental::common_prefix;
use super::talk::{Portion, Render};
use super::tokenizer::Tokenizer;

/// What the message before an action says.
const BEFORE: &str = "zqbefore0qz";
/// What the action says. It begins with another letter, so that nothing else begins with it by chance.
const ACTION: &str = "qzaction0zq";

/// Where the action at `message_idx` begins in `full`, the rendering that ends with it.
///
/// It begins where what the template writes between the message before and the turn's own words parts from
/// what it writes between that message and the end of a prompt.
pub(super) fn end(
    message_idx: usize,
    full: &str,
    render: &mut Render<'_>,
    tokenizer: &Tokenizer,
) -> Result<Option<usize>, TextError> {
    let Some(same) = own(message_idx, full, render) else { return Ok(None) };
    let Some((in_turn, in_prompt)) = gaps(message_idx, render) else { return Ok(Some(same)) };
    let Some(before) =
        with_words(message_idx, render).and_then(|text| Some(text.find(ACTION)? - in_turn.len()))
    else {
        return Ok(None);
    };
    let Some(same) = same.checked_sub(before) else { return Ok(None) };
    let parted = common_prefix(&in_turn, &in_prompt).min(same);
    Ok(Some(before + not_inside_special(&in_turn, parted, tokenizer)?))
}

/// Where the turn's own words begin in `full`, whatever the template writes before them.
pub(super) fn own(message_idx: usize, full: &str, render: &mut Render<'_>) -> Option<usize> {
    let text = with_words(message_idx, render)?;
    let header = &text[..text.find(ACTION)?];
    Some(common_prefix(header, full))
}

/// Whether the last of the first `n_messages` is shown where it stands.
pub(super) fn shows(n_messages: usize, render: &mut Render<'_>) -> bool {
    let said = [(n_messages - 1, BEFORE)];
    let text = render(Portion { said: &said, ..Portion::messages(n_messages) });
    text.is_ok_and(|text| text.contains(BEFORE))
}

fn with_words(message_idx: usize, render: &mut Render<'_>) -> Option<String> {
    render(Portion { said: &[(message_idx, ACTION)], ..Portion::messages(message_idx + 1) }).ok()
}

/// What the template writes behind the message before the action: in front of the turn's own words, and to the end of a prompt.
fn gaps(message_idx: usize, render: &mut Render<'_>) -> Option<(String, String)> {
    let said = [(message_idx.checked_sub(1)?, BEFORE), (message_idx, ACTION)];
    let turn = render(Portion { said: &said, ..Portion::messages(message_idx + 1) }).ok()?;
    let prompt = render(Portion { said: &said[..1], ..Portion::prompt(message_idx) }).ok()?;
    let behind = |text: &str| Some(text.split_once(BEFORE)?.1.to_owned());
    let in_turn = behind(&turn)?;
    Some((in_turn[..in_turn.find(ACTION)?].to_owned(), behind(&prompt)?))
}

/// The place itself, or the start of the special token it lies in.
fn not_inside_special(text: &str, at: usize, tokenizer: &Tokenizer) -> Result<usize, TextError> {
    let encoded = tokenizer.encode(text)?;
    let mut tokens = encoded.ids.iter().zip(encoded.offsets);
    let around = tokens.find(|(id, bytes)| tokenizer.is_special(**id) && bytes.start < at && at < bytes.end);
    Ok(around.map_or(at, |(_, bytes)| bytes.start))
}
