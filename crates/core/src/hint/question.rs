//! What a judge is asked: the words of the questions, and how an action and its next state are shown.

use minijinja::Environment;
use minijinja::value::Serde;
use serde_json::{Value, json};

use super::pairs::{Pair, cut_middle};
use crate::episode::{Arguments, Content, Episode, Message, ToolCall};

/// How an action and its next state are shown.
const SHOWN: &str = include_str!("../../../../prompts/judge.jinja");
/// What a judge of hints is told.
const HINT: &str = include_str!("../../../../prompts/judge_hint.txt");
/// What a judge of actions is told.
const EVALUATION: &str = include_str!("../../../../prompts/judge_evaluation.txt");

/// What a judge is told who shows a hint at work.
const EXCHANGE: &str = include_str!("../../../../prompts/judge_exchange.txt");

/// What votes look like where they are forced into form.
const VOTE_FORM: &str = r"\\boxed\{(-1\}|1\}\n\[HINT_START\][A-Za-z0-9 ,.;:'()/_-]{11,300}\[HINT_END\])";
/// What evaluations look like there.
const EVALUATION_FORM: &str = r"\\boxed\{(1|0|-1)\}";

/// What exchanges look like there.
const EXCHANGE_FORM: &str = r"\[USER_START\][A-Za-z0-9 ,.;:'()/_-]{11,300}\[USER_END\]\n\[AGENT_START\][A-Za-z0-9 ,.;:'()/_-]{11,300}\[AGENT_END\]";

/// What a judge is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    /// Whether there is a useful hint.
    Hint,
    /// What the action itself was worth.
    Evaluation,
    /// A worked exchange that shows this hint.
    Exchange(&'a str),
}

impl Question<'_> {
    /// What a judge is told.
    pub fn words(self) -> &'static str {
        match self {
            Self::Hint => HINT,
            Self::Evaluation => EVALUATION,
            Self::Exchange(_) => EXCHANGE,
        }
    }

    /// What answers look like where they are forced into form: a regular expression.
    pub fn form(self) -> &'static str {
        match self {
            Self::Hint => VOTE_FORM,
            Self::Evaluation => EVALUATION_FORM,
            Self::Exchange(_) => EXCHANGE_FORM,
        }
    }

    /// What is asked about an episode: draws of different questions are different draws.
    pub fn about(self, episode: &str) -> String {
        match self {
            Self::Hint => episode.to_owned(),
            Self::Evaluation => format!("evaluation of {episode}"),
            Self::Exchange(_) => format!("exchange for {episode}"),
        }
    }

    /// What is asked about a pair: task, action and next state, each part of at most so many characters.
    pub fn shown(self, episode: &Episode, pair: &Pair, max_chars: usize) -> String {
        let action = &episode.messages[episode.steps()[pair.step].message_idx];
        let calls: Vec<Value> = action.tool_calls.iter().map(|call| shown_call(call, max_chars)).collect();
        let next = pair.next.iter().map(|it| json!({"role": it.role, "name": it.name, "text": it.text}));
        let hint = if let Self::Exchange(hint) = self { Some(hint) } else { None };
        let facts = json!({
            "task": episode.task.prompt, "text": cut_middle(text_of(action).trim(), max_chars),
            "calls": calls, "next": next.collect::<Vec<Value>>(), "hint": hint,
        });
        // The words are ours and rendered by the tests, so there is nothing to go wrong.
        let shown = Environment::new().render_str(SHOWN, Serde(&facts));
        shown.unwrap_or_else(|error| error.to_string())
    }
}

fn text_of(message: &Message) -> String {
    message.content.as_ref().map(Content::text).unwrap_or_default()
}

fn shown_call(call: &ToolCall, max_chars: usize) -> Value {
    let arguments = match &call.arguments {
        Arguments::Text(text) => cut_middle(text, max_chars),
        Arguments::Object(object) => {
            let line = |(name, value): (&String, &Value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{name}: {}", cut_middle(&value, max_chars))
            };
            object.iter().map(line).collect::<Vec<_>>().join("\n")
        }
    };
    json!({"name": call.name, "arguments": arguments})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::{Role, Task, Verification, steps_of};
    use crate::hint::{Pairs, pairs};
    use expect_test::expect;

    fn episode() -> Episode {
        let task = Task { id: "t".into(), prompt: "Write f in solution.py.".into(), difficulty: None };
        let mut call = Message::text(Role::Assistant, "I look first. \\boxed{1}");
        let arguments =
            json!({"command": "ls {{ task }}", "timeout": 5}).as_object().cloned().unwrap_or_default();
        let arguments = Arguments::Object(arguments);
        call.tool_calls.push(ToolCall { id: None, name: "terminal".into(), arguments });
        let mut result = Message::text(Role::Tool, "{\"exit_code\": 2}");
        result.name = Some("terminal".into());
        let messages =
            vec![Message::text(Role::User, "go"), call, result, Message::text(Role::Assistant, "Done.")];
        let mut episode = Episode::new("e", task, messages);
        episode.verification = Some(Verification { n_failed: 1, ..Verification::default() });
        let steps = steps_of(&episode.messages);
        assert_eq!(episode.set_steps(steps), Ok(()));
        episode
    }

    #[test]
    fn task_action_and_next_state_are_shown() {
        let episode = episode();
        let found = pairs(&episode, Pairs::Actions, 4000);
        let texts: Vec<String> =
            found.iter().map(|pair| Question::Hint.shown(&episode, pair, 4000)).collect();
        expect![[r#"
            ## Task
            Write f in solution.py.

            ## Action
            I look first. \boxed{1}
            [call of terminal]
            command: ls {{ task }}
            timeout: 5

            ## Next state
            [tool terminal]
            {"exit_code": 2}

            Now give your decision in the required form.
            ----
            ## Task
            Write f in solution.py.

            ## Action
            Done.

            ## Next state
            [tests]
            Hidden tests were run: 0 assertions held, 1 did not.

            Now give your decision in the required form."#]]
        .assert_eq(&texts.join("\n----\n"));
        let exchange = Question::Exchange("Look first.").shown(&episode, &found[1], 4000);
        assert!(exchange.starts_with(
            texts[1].strip_suffix("Now give your decision in the required form.").unwrap_or("?")
        ));
        assert!(
            exchange.ends_with("## Hint\nLook first.\n\nNow write the exchange in the required form."),
            "{exchange}"
        );
    }
}
