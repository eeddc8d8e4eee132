//! The tokens of an episode's actions: recorded ids when there are any, otherwise the rendering.
//!
//! Owns [`episode_tokens`], the one way from an episode to token sequences. What was sampled is never
//! tokenised again; what is rendered says so. A template that prints the date is told the episode's start.

use serde_json::{Map, Value};

use super::reread::{Manner, Shown};
use super::spans::SpanError;
use super::template::{Now, Template, TemplateError};
use super::tokenizer::Tokenizer;
use crate::episode::{ActionTokens, Episode, TokenSource};
use crate::tokens::TokenId;

/// Token sequences and, for each step, where its action is in them.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeTokens {
    /// The sequences.
    pub sequences: Vec<Vec<TokenId>>,
    /// One per step.
    pub actions: Vec<ActionTokens>,
    /// Whether the ids are the sampled ones.
    pub source: TokenSource,
}

/// The tokens of every step; `vars` are what the template is given beside the conversation.
pub fn episode_tokens(
    episode: &Episode,
    template: &Template,
    vars: &Map<String, Value>,
    tokenizer: &Tokenizer,
) -> Result<EpisodeTokens, SpanError<TemplateError>> {
    match recorded(episode) {
        Some(recorded) => Ok(recorded),
        None => rendered(episode, template, vars, tokenizer),
    }
}

/// What was recorded, if every step has its tokens.
fn recorded(episode: &Episode) -> Option<EpisodeTokens> {
    let actions: Option<Vec<ActionTokens>> = episode.steps().iter().map(|step| step.tokens.clone()).collect();
    let actions = actions.filter(|actions| !actions.is_empty())?;
    Some(EpisodeTokens { sequences: episode.sequences.clone(), actions, source: episode.token_source })
}

fn rendered(
    episode: &Episode,
    template: &Template,
    vars: &Map<String, Value>,
    tokenizer: &Tokenizer,
) -> Result<EpisodeTokens, SpanError<TemplateError>> {
    let now = episode.started_at.map(Now::utc);
    let manner = Manner { template, vars, tools: &episode.tools, tool_text: episode.tool_text, now };
    let refused = |why| SpanError::Template { n_messages: episode.messages.len(), why };
    let shown = Shown::new(manner, &episode.messages).map_err(refused)?;
    let wanted: Vec<_> = episode.steps().iter().map(|step| (step.message_idx, None)).collect();
    let found = shown.reread(&wanted, tokenizer);
    let turns = found.turns.into_iter().map(|turn| turn.map(|(turn, _)| turn.action_tokens()));
    let actions = turns.collect::<Result<_, _>>()?;
    Ok(EpisodeTokens { sequences: found.sequences, actions, source: TokenSource::Rendered })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::episode::{Message, Role, Task, steps_of};
    use crate::tokens::TokenSpan;

    const TEMPLATE: &str = "{{ strftime_now('%Y') }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn episode() -> Episode {
        let task = Task { id: "t".into(), prompt: "hi".into(), difficulty: None };
        let messages =
            [(Role::User, "hi"), (Role::Assistant, "yes"), (Role::User, "so?"), (Role::Assistant, "no")];
        let mut episode =
            Episode::new("e", task, messages.map(|(role, text)| Message::text(role, text)).into());
        episode.started_at = Some(0);
        episode.set_steps(steps_of(&episode.messages)).unwrap();
        episode
    }

    fn tokens(episode: &Episode) -> (EpisodeTokens, Tokenizer) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml");
        let tokenizer = Tokenizer::open(&dir).unwrap();
        let template = Template::compile(TEMPLATE, "t").unwrap();
        (episode_tokens(episode, &template, &Map::new(), &tokenizer).unwrap(), tokenizer)
    }

    #[test]
    fn text_is_rendered_at_the_time_of_the_episode_and_says_so() {
        let (found, tokenizer) = tokens(&episode());
        assert_eq!(found.source, TokenSource::Rendered);
        let shown =
            |action: &ActionTokens| tokenizer.decode(&found.sequences[0][action.span.range()]).unwrap();
        assert_eq!(found.actions.iter().map(shown).collect::<Vec<_>>(), ["yes<|im_end|>", "no<|im_end|>"]);
        assert!(tokenizer.decode(&found.sequences[0]).unwrap().starts_with("1970"));
    }

    #[test]
    fn recorded_ids_are_kept_as_they_are() {
        let mut exact = episode();
        // Not what the tokenizer would make of the text, as sampled ids often are not.
        exact.sequences = vec![vec![1, 2, 3, 4, 5, 6]];
        exact.token_source = TokenSource::Exact;
        let mut steps = steps_of(&exact.messages);
        for (step, span) in steps.iter_mut().zip([TokenSpan::at(1, 2), TokenSpan::at(4, 2)]) {
            step.tokens = Some(ActionTokens { sequence: 0, span, logprobs: vec![], top: vec![] });
        }
        exact.set_steps(steps).unwrap();
        let (found, _) = tokens(&exact);
        assert_eq!((found.source, &found.sequences), (TokenSource::Exact, &exact.sequences));
        assert_eq!(found.actions[1].span, TokenSpan::at(4, 2));
    }
}
