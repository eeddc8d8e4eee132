//! How a step's context is re-seen: what an outcome lens says, where it is written, and what gives way when
//! the context is too small.
//!
//! Owns the outcome's text from a template (ours in minijinja, or the published scorer's Python format),
//! its placement in the messages before an action, and windows over conversations that are too long:
//! whole messages are left out, the lens never. Deliberately absent: tokens; lengths are given.

use std::ops::Range;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, context};

use crate::credit::subtasks::{Place, subtask_ids};
use crate::episode::{Content, Message, Progress, Role};
use crate::python::float_repr;

/// Our own text.
pub const OUTCOME_TEMPLATE: &str = include_str!("../../../prompts/outcome.jinja");

/// Where a lens writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Into the first user message, so that all steps under one outcome text share one sequence.
    First,
    /// Into the last message before the action, so that all steps share the conversation up to there.
    Last,
}

impl Placement {
    /// The name in files and flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Last => "last",
        }
    }
}

/// What an outcome lens can tell about the episode and the step.
#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeFacts {
    /// The episode's reward.
    pub reward: f64,
    /// How far its plan came.
    pub progress: Progress,
    /// How many subtasks the student itself brought to an end.
    pub completed: usize,
    /// The step's subtask, or its phase where it has none.
    pub current_subtask: String,
    /// What that was found worth.
    pub current_score: Option<f64>,
}

impl OutcomeFacts {
    /// The facts for a step at `place`.
    pub fn new(reward: f64, progress: &Progress, completed: usize, place: &Place) -> Self {
        let current_subtask = place.subtask.clone().unwrap_or_else(|| place.phase.name().to_owned());
        Self { reward, progress: progress.clone(), completed, current_subtask, current_score: place.reward }
    }
}

/// Why a template gives no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// There is nothing in it.
    #[error("the template is empty")]
    Empty,
    /// It is no minijinja template, or fails on what it is given.
    #[error("{0}")]
    Jinja(String),
    /// A minijinja name there is not.
    #[error("unknown name `{name}`; the names are {}", JINJA_NAMES.join(", "))]
    UnknownName {
        /// The name as written.
        name: String,
    },
    /// Fields of both languages.
    #[error(
        "`{{{field}}}` is a field of the Python format, in a minijinja template; write `{{{{ {field} }}}}`, or all fields with single braces"
    )]
    Mixed {
        /// The Python field.
        field: String,
    },
    /// A Python field of a name there is not.
    #[error("unknown field `{{{name}}}`; the fields are {}", PYTHON_FIELDS.join(", "))]
    UnknownField {
        /// The name as written.
        name: String,
    },
    /// A Python format other than `.Nf`, or that on a text.
    #[error("field `{{{field}}}` has a format that is not supported; numbers take `.4f` and the like")]
    BadFormat {
        /// The field as written.
        field: String,
    },
    /// A brace without its partner.
    #[error("a single `{brace}` at byte {at}; write `{brace}{brace}` for the character itself")]
    LoneBrace {
        /// Which brace.
        brace: char,
        /// Where.
        at: usize,
    },
}

/// The fields of the published Python format.
const PYTHON_FIELDS: [&str; 8] = [
    "reward",
    "phase",
    "plan_score",
    "scores_summary",
    "scored_count",
    "plan_count",
    "current_subtask",
    "current_subtask_score",
];

/// The names a minijinja template is given.
const JINJA_NAMES: [&str; 8] = [
    "reward",
    "phase",
    "plan_score",
    "subtasks",
    "n_subtasks",
    "n_completed",
    "current_subtask",
    "current_score",
];

/// A template for the outcome's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// A minijinja template.
    Jinja(String),
    /// The published scorer's Python format, in pieces.
    Python(Vec<Piece>),
}

/// A piece of a Python format string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text as it is.
    Text(String),
    /// A field, with the number of decimals its format asks for.
    Field(&'static str, Option<usize>),
}

impl Template {
    /// Reads a template; a file with single-brace fields is Python format.
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        if text.trim().is_empty() {
            return Err(BadTemplate::Empty);
        }
        if is_python(text)? {
            return python_pieces(text).map(Self::Python);
        }
        environment(text)?;
        Ok(Self::Jinja(text.to_owned()))
    }

    /// The text for a step.
    pub fn render(&self, facts: &OutcomeFacts) -> Result<String, BadTemplate> {
        match self {
            Self::Jinja(text) => render_jinja(text, facts),
            Self::Python(pieces) => pieces.iter().map(|piece| render_piece(piece, facts)).collect(),
        }
    }
}

/// Whether a text is Python format: it has a single-brace field, and nothing of the other language.
///
/// Doubled braces stand for themselves in the one language and hold a name in the other, so that a text
/// with both kinds of fields has no certain meaning.
fn is_python(text: &str) -> Result<bool, BadTemplate> {
    let fields = single_fields(text);
    let known = fields.iter().find(|name| PYTHON_FIELDS.contains(name));
    match known {
        Some(field) if is_jinja(text) => Err(BadTemplate::Mixed { field: (*field).to_owned() }),
        Some(_) => Ok(true),
        // A mistyped field must not be sent as it stands.
        None => Ok(!fields.is_empty() && !["{{", "{%", "{#"].iter().any(|it| text.contains(it))),
    }
}

/// The names in single braces, with or without a format behind them.
fn single_fields(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let tail = &rest[at..];
        rest = tail.strip_prefix("{{").or_else(|| tail.strip_prefix("}}")).unwrap_or(&tail[1..]);
        let is_single = tail.starts_with('{') && !tail.starts_with("{{");
        if let Some((field, after)) = rest.split_once('}').filter(|_| is_single) {
            let name = field.split(':').next().unwrap_or(field);
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if !name.is_empty() && name.chars().all(is_name) {
                names.push(name);
                rest = after;
            }
        }
    }
    names
}

/// Whether there are statements or comments of minijinja, or a name of it in doubled braces.
fn is_jinja(text: &str) -> bool {
    let names_one = |inside: &str| {
        let inside = inside.trim_start_matches('-').trim_start();
        let word = inside.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or("");
        JINJA_NAMES.contains(&word) || PYTHON_FIELDS.contains(&word)
    };
    text.contains("{%") || text.contains("{#") || text.split("{{").skip(1).any(names_one)
}

fn environment(text: &str) -> Result<Environment<'_>, BadTemplate> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("fixed", |number: f64, decimals: usize| format!("{number:.decimals$}"));
    environment.add_template("outcome", text).map_err(jinja_error)?;
    Ok(environment)
}

/// What is wrong, on one line.
fn jinja_error(error: minijinja::Error) -> BadTemplate {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    BadTemplate::Jinja(match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    })
}

/// Why a template fails on what it is given: most often a name that is mistyped.
fn render_error(error: minijinja::Error, template: &minijinja::Template<'_, '_>) -> BadTemplate {
    if error.kind() != ErrorKind::UndefinedError {
        return jinja_error(error);
    }
    let mut unknown: Vec<String> = template.undeclared_variables(false).into_iter().collect();
    unknown.retain(|name| !JINJA_NAMES.contains(&name.as_str()));
    match unknown.into_iter().min() {
        Some(name) => BadTemplate::UnknownName { name },
        None => jinja_error(error),
    }
}

fn render_jinja(text: &str, facts: &OutcomeFacts) -> Result<String, BadTemplate> {
    let Progress { phase, plan_score, subtask_scores, .. } = &facts.progress;
    let subtasks = subtask_scores.iter().map(|(id, score)| context! { id, score });
    let variables = context! {
        reward => facts.reward,
        phase,
        plan_score,
        subtasks => subtasks.collect::<Vec<Value>>(),
        n_subtasks => subtask_ids(&facts.progress).len(),
        n_completed => facts.completed,
        current_subtask => &facts.current_subtask,
        current_score => facts.current_score,
    };
    let environment = environment(text)?;
    let template = environment.get_template("outcome").map_err(jinja_error)?;
    template.render(variables).map_err(|error| render_error(error, &template))
}

/// Splits a Python format string; doubled braces stand for themselves.
fn python_pieces(text: &str) -> Result<Vec<Piece>, BadTemplate> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, tail) = rest.split_at(at);
        literal.push_str(before);
        let position = text.len() - tail.len();
        if let Some(after) = tail.strip_prefix("{{").or_else(|| tail.strip_prefix("}}")) {
            literal.push_str(&tail[..1]);
            rest = after;
        } else if let Some((field, after)) = tail.strip_prefix('{').and_then(|tail| tail.split_once('}')) {
            pieces.push(Piece::Text(std::mem::take(&mut literal)));
            pieces.push(python_field(field)?);
            rest = after;
        } else {
            let brace = if tail.starts_with('{') { '{' } else { '}' };
            return Err(BadTemplate::LoneBrace { brace, at: position });
        }
    }
    literal.push_str(rest);
    pieces.push(Piece::Text(literal));
    Ok(pieces)
}

fn python_field(field: &str) -> Result<Piece, BadTemplate> {
    let (name, format) = field.split_once(':').unwrap_or((field, ""));
    let known = PYTHON_FIELDS.into_iter().find(|known| *known == name);
    let name = known.ok_or_else(|| BadTemplate::UnknownField { name: name.to_owned() })?;
    if format.is_empty() {
        return Ok(Piece::Field(name, None));
    }
    let decimals =
        format.strip_prefix('.').and_then(|it| it.strip_suffix('f')).and_then(|it| it.parse().ok());
    let is_number = !matches!(name, "phase" | "scores_summary" | "current_subtask" | "current_subtask_score");
    match decimals.filter(|decimals| is_number && *decimals <= 30) {
        Some(decimals) => Ok(Piece::Field(name, Some(decimals))),
        None => Err(BadTemplate::BadFormat { field: field.to_owned() }),
    }
}

fn render_piece(piece: &Piece, facts: &OutcomeFacts) -> Result<String, BadTemplate> {
    match piece {
        Piece::Text(text) => Ok(text.clone()),
        Piece::Field(name, Some(decimals)) => Ok(format!("{:.decimals$}", python_number(name, facts))),
        Piece::Field(name, None) => Ok(python_text(name, facts)),
    }
}

fn python_number(name: &str, facts: &OutcomeFacts) -> f64 {
    match name {
        "reward" => facts.reward,
        "plan_score" => facts.progress.plan_score.unwrap_or(0.0),
        "scored_count" => facts.progress.subtask_scores.len() as f64,
        _ => n_planned(facts) as f64,
    }
}

/// A field as Python's `str` writes it, with the published defaults for what is absent.
fn python_text(name: &str, facts: &OutcomeFacts) -> String {
    let Progress { phase, plan_score, subtask_scores, .. } = &facts.progress;
    match name {
        "reward" => float_repr(facts.reward),
        "phase" => phase.clone().unwrap_or_else(|| "?".to_owned()),
        "plan_score" => plan_score.map_or_else(|| "0".to_owned(), float_repr),
        "scores_summary" if subtask_scores.is_empty() => "none".to_owned(),
        "scores_summary" => {
            let scores = subtask_scores.iter().map(|(id, score)| format!("{id}={score:.3}"));
            scores.collect::<Vec<_>>().join(", ")
        }
        "scored_count" => subtask_scores.len().to_string(),
        "plan_count" => n_planned(facts).to_string(),
        "current_subtask" => facts.current_subtask.clone(),
        _ => match facts.current_score.filter(|score| *score >= 0.0) {
            Some(score) => format!("{score:.3}"),
            None => "n/a".to_owned(),
        },
    }
}

fn n_planned(facts: &OutcomeFacts) -> usize {
    subtask_ids(&facts.progress).len().max(1)
}

/// The message a lens is written into, among those before the action; `None` when nothing stands there.
///
/// A supplied system prompt stays as it is, so that it is shared by all lenses; another action is never touched.
pub fn target(before: &[Message], placement: Placement) -> Option<usize> {
    let not_an_action = |message: &Message| message.role != Role::Assistant;
    match placement {
        Placement::First => {
            let user = before.iter().position(|message| message.role == Role::User);
            user.or_else(|| before.iter().position(not_an_action))
        }
        Placement::Last => before.iter().rposition(not_an_action),
    }
}

/// Writes the lens behind a message's text, after an empty line.
pub fn write(message: &mut Message, text: &str) {
    let addition = format!("\n\n{text}");
    match &mut message.content {
        None => message.content = Some(Content::Text(text.to_owned())),
        Some(Content::Text(content)) => content.push_str(&addition),
        Some(Content::Parts(parts)) => parts.push(addition),
    }
}

/// How much room there is, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What the context holds.
    pub limit: usize,
    /// What the lens takes, and whatever else is added to the messages.
    pub reserved: usize,
}

/// Which messages a step is re-read without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The messages that are left out; empty when everything fits.
    pub dropped: Range<usize>,
    /// How many tokens those have.
    pub n_dropped_tokens: usize,
}

/// A step that does not fit, however much is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the first messages, the lens and the action need {needed} tokens and the context holds {limit}")]
pub struct TooLong {
    /// Tokens needed at least.
    pub needed: usize,
    /// Tokens there are.
    pub limit: usize,
}

/// Chooses for each action (in order) what is left out so that it fits.
///
/// Everything up to the first user message stays. What goes is a run of whole steps behind it, never a
/// call without its result. When the run has to grow, half the room is freed at once, so that many steps
/// share one beginning and a server's cache helps.
pub fn windows(
    messages: &[Message],
    lengths: &[usize],
    actions: &[usize],
    room: Room,
) -> Vec<Result<Window, TooLong>> {
    let n_head = target(messages, Placement::First).map_or(0, |idx| idx + 1);
    let conversation = Lengths { messages, lengths, n_head, reserved: room.reserved };
    let mut begin = n_head;
    let window = |&action: &usize| {
        if conversation.needed(begin, action) > room.limit {
            begin = conversation.next_begin(begin, action, room.limit)?;
        }
        let dropped = if begin > n_head { n_head..begin } else { 0..0 };
        Ok(Window { n_dropped_tokens: lengths[dropped.clone()].iter().sum(), dropped })
    };
    actions.iter().map(window).collect()
}

struct Lengths<'m> {
    messages: &'m [Message],
    lengths: &'m [usize],
    n_head: usize,
    reserved: usize,
}

impl Lengths<'_> {
    /// The tokens of a step whose context is the head and what follows from `begin` on.
    fn needed(&self, begin: usize, action: usize) -> usize {
        let head: usize = self.lengths[..self.n_head.min(action)].iter().sum();
        let tail: usize = self.lengths[begin.min(action)..=action].iter().sum();
        head + tail + self.reserved
    }

    /// The first place to begin from that leaves half of the room free, or the last place if none does.
    fn next_begin(&self, begin: usize, action: usize, limit: usize) -> Result<usize, TooLong> {
        let least = self.needed(action, action);
        if least > limit {
            return Err(TooLong { needed: least, limit });
        }
        let comfortable = least + (limit - least) / 2;
        let mut borders = (begin..action).filter(|idx| self.messages[*idx].role != Role::Tool);
        Ok(borders.find(|idx| self.needed(*idx, action) <= comfortable).unwrap_or(action))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn talk(roles: &[Role]) -> Vec<Message> {
        roles.iter().enumerate().map(|(idx, role)| Message::text(*role, idx.to_string())).collect()
    }

    /// A prompt, then steps of a call and its result.
    fn steps(n: usize) -> (Vec<Message>, Vec<usize>) {
        let pair = [Role::Assistant, Role::Tool];
        let roles: Vec<_> =
            [Role::System, Role::User].into_iter().chain(pair.into_iter().cycle().take(2 * n)).collect();
        (talk(&roles), (0..n).map(|step| 2 + 2 * step).collect())
    }

    #[test]
    fn a_lens_never_touches_an_action() {
        use Role::{Assistant, System, Tool, User};
        let at = |roles: &[Role], placement| target(&talk(roles), placement);
        assert_eq!(at(&[System, User, Assistant, Tool], Placement::First), Some(1));
        assert_eq!(at(&[System, User, Assistant, Tool], Placement::Last), Some(3));
        assert_eq!(at(&[User, Assistant], Placement::Last), Some(0));
        assert_eq!(at(&[System, Assistant, Tool], Placement::First), Some(0));
        assert_eq!((at(&[Assistant], Placement::First), at(&[], Placement::Last)), (None, None));
    }

    #[test]
    fn the_lens_stands_behind_the_text() {
        let mut parts = Message::text(Role::User, "");
        parts.content = Some(Content::Parts(vec!["a".into(), "b".into()]));
        let mut seen = [parts, Message::text(Role::User, "c")];
        let written = target(&seen, Placement::First).unwrap();
        write(&mut seen[written], "LENS");
        assert_eq!(seen[0].content.as_ref().unwrap().text(), "ab\n\nLENS");
        assert_eq!(seen[1].content.as_ref().unwrap().text(), "c");
    }

    #[test]
    fn windows_move_in_big_steps_and_keep_the_head() {
        let (messages, actions) = steps(6);
        let lengths = vec![10; messages.len()];
        let found = windows(&messages, &lengths, &actions, Room { limit: 75, reserved: 5 });
        let dropped: Vec<_> = found.iter().map(|it| it.as_ref().unwrap().dropped.clone()).collect();
        assert_eq!(dropped, [0..0, 0..0, 0..0, 2..6, 2..6, 2..10]);
        assert_eq!(found[5].as_ref().unwrap().n_dropped_tokens, 80);
        let small = windows(&messages, &lengths, &actions[..1], Room { limit: 34, reserved: 5 });
        let message = "the first messages, the lens and the action need 35 tokens and the context holds 34";
        assert_eq!(small[0].as_ref().unwrap_err().to_string(), message);
    }

    #[test]
    fn python_formats_are_told_from_jinja() {
        let python = |text: &str| matches!(Template::parse(text), Ok(Template::Python(_)));
        assert!(python("R {reward:.4f} {{kept}}") && python("{phase}"));
        assert!(
            !python("R {{ reward }}") && !python("plain") && !python("{% if reward %}{reward}{% endif %}")
        );
        let wrong = |text: &str| Template::parse(text).unwrap_err().to_string();
        assert!(
            wrong("{reward} {nobody}").starts_with("unknown field `{nobody}`; the fields are reward, phase")
        );
        assert!(wrong("{phase:.2f}").starts_with("field `{phase:.2f}` has a format"));
        assert_eq!(wrong("{phase} }"), "a single `}` at byte 8; write `}}` for the character itself");
    }

    proptest! {
        #[test]
        fn a_window_fits_and_leaves_no_result_without_its_call(
            lengths in prop::collection::vec(1_usize..40, 14), limit in 20_usize..300, reserved in 0_usize..20,
        ) {
            let (messages, actions) = steps(6);
            for (found, action) in windows(&messages, &lengths, &actions, Room { limit, reserved }).iter().zip(&actions) {
                let total: usize = lengths[..=*action].iter().sum();
                match found {
                    Ok(Window { dropped, n_dropped_tokens }) => {
                        prop_assert!(total - n_dropped_tokens + reserved <= limit);
                        prop_assert!(dropped.is_empty() || (dropped.start == 2 && messages[dropped.end].role == Role::Assistant));
                    }
                    Err(_) => prop_assert!(lengths[0] + lengths[1] + lengths[*action] + reserved > limit),
                }
            }
        }
    }
}
