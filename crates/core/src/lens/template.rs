//! The outcome's text from a template: ours in minijinja, or the published scorer's Python format.

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, context};

use crate::episode::Progress;
use crate::python::float_repr;
use crate::subtasks::{PlanPlace, subtask_ids};

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
    pub fn new(reward: f64, progress: &Progress, completed: usize, place: &PlanPlace) -> Self {
        let current_subtask = place.subtask.clone().unwrap_or_else(|| place.phase.name().to_owned());
        Self { reward, progress: progress.clone(), completed, current_subtask, current_score: place.reward }
    }
}

/// Why a template gives no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTemplate(String);

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
pub enum Wording {
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

impl Wording {
    /// Reads a template; a file with single-brace fields is Python format.
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        if text.trim().is_empty() {
            return Err(BadTemplate("the template is empty".to_owned()));
        }
        if is_python(text)? {
            return python_pieces(text).map(Self::Python);
        }
        environment(text)?;
        Ok(Self::Jinja(text.to_owned()))
    }

    /// The text for a step.
    pub fn render(&self, facts: &OutcomeFacts) -> Result<String, BadTemplate> {
        self.render_all(std::iter::once(facts)).map(|texts| texts.concat())
    }

    /// The texts for several steps.
    pub fn render_all<'f>(
        &self,
        facts: impl Iterator<Item = &'f OutcomeFacts>,
    ) -> Result<Vec<String>, BadTemplate> {
        match self {
            Self::Jinja(text) => {
                let environment = environment(text)?;
                let template = environment.get_template("outcome").map_err(jinja_error)?;
                facts.map(|facts| render_jinja(&template, facts)).collect()
            }
            Self::Python(pieces) => Ok(facts
                .map(|facts| pieces.iter().map(|piece| render_piece(piece, facts)).collect())
                .collect()),
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
        Some(field) if is_jinja(text) => Err(BadTemplate(format!(
            "`{{{field}}}` is a field of the Python format, in a minijinja template; write `{{{{ {field} }}}}`, or all fields with single braces"
        ))),
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
    BadTemplate(match error.line() {
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
        Some(name) => BadTemplate(format!("unknown name `{name}`; the names are {}", JINJA_NAMES.join(", "))),
        None => jinja_error(error),
    }
}

fn render_jinja(template: &minijinja::Template<'_, '_>, facts: &OutcomeFacts) -> Result<String, BadTemplate> {
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
    template.render(variables).map_err(|error| render_error(error, template))
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
            let why = format!(
                "a single `{brace}` at byte {position}; write `{brace}{brace}` for the character itself"
            );
            return Err(BadTemplate(why));
        }
    }
    literal.push_str(rest);
    pieces.push(Piece::Text(literal));
    Ok(pieces)
}

fn python_field(field: &str) -> Result<Piece, BadTemplate> {
    let (name, format) = field.split_once(':').unwrap_or((field, ""));
    let known = PYTHON_FIELDS.into_iter().find(|known| *known == name);
    let name = known.ok_or_else(|| {
        BadTemplate(format!("unknown field `{{{name}}}`; the fields are {}", PYTHON_FIELDS.join(", ")))
    })?;
    if format.is_empty() {
        return Ok(Piece::Field(name, None));
    }
    let decimals =
        format.strip_prefix('.').and_then(|it| it.strip_suffix('f')).and_then(|it| it.parse().ok());
    let is_number = !matches!(name, "phase" | "scores_summary" | "current_subtask" | "current_subtask_score");
    match decimals.filter(|decimals| is_number && *decimals <= 30) {
        Some(decimals) => Ok(Piece::Field(name, Some(decimals))),
        None => Err(BadTemplate(format!(
            "field `{{{field}}}` has a format that is not supported; numbers take `.4f` and the like"
        ))),
    }
}

fn render_piece(piece: &Piece, facts: &OutcomeFacts) -> String {
    match piece {
        Piece::Text(text) => text.clone(),
        Piece::Field(name, decimals) => python_text(name, *decimals, facts),
    }
}

/// A field as Python's `str` or its `format` writes it, with the published defaults for what is absent.
fn python_text(name: &str, decimals: Option<usize>, facts: &OutcomeFacts) -> String {
    let float = |value: f64| decimals.map_or_else(|| float_repr(value), |n| format!("{value:.n$}"));
    let count = |value: usize| decimals.map_or_else(|| value.to_string(), |_| float(value as f64));
    let Progress { phase, plan_score, subtask_scores, .. } = &facts.progress;
    match name {
        "reward" => float(facts.reward),
        "phase" => phase.clone().unwrap_or_else(|| "?".to_owned()),
        "plan_score" => plan_score.map_or_else(|| count(0), float),
        "scores_summary" if subtask_scores.is_empty() => "none".to_owned(),
        "scores_summary" => {
            let scores = subtask_scores.iter().map(|(id, score)| format!("{id}={score:.3}"));
            scores.collect::<Vec<_>>().join(", ")
        }
        "scored_count" => count(subtask_scores.len()),
        "plan_count" => count(subtask_ids(&facts.progress).len().max(1)),
        "current_subtask" => facts.current_subtask.clone(),
        _ => match facts.current_score.filter(|score| *score >= 0.0) {
            Some(score) => format!("{score:.3}"),
            None => "n/a".to_owned(),
        },
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn python_formats_are_told_from_jinja() {
        let python = |text: &str| matches!(Wording::parse(text), Ok(Wording::Python(_)));
        assert!(python("R {reward:.4f} {{kept}}") && python("{phase}"));
        assert!(
            !python("R {{ reward }}") && !python("plain") && !python("{% if reward %}{reward}{% endif %}")
        );
        let wrong = |text: &str| Wording::parse(text).unwrap_err().to_string();
        assert!(
            wrong("{reward} {nobody}").starts_with("unknown field `{nobody}`; the fields are reward, phase")
        );
        assert!(wrong("{phase:.2f}").starts_with("field `{phase:.2f}` has a format"));
        assert_eq!(wrong("{phase} }"), "a single `}` at byte 8; write `}}` for the character itself");
    }
}
