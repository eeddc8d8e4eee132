//! The tools as a model is told about them: OpenAI function tools with JSON schemas, and arguments read by them.

use serde_json::{Map, Value};

/// What models are told, word for word.
const SCHEMAS: &str = include_str!("../../../prompts/tools.json");

/// The schemas of all tools, in the order models see them, for a sandbox without a network.
pub fn schemas() -> Vec<Value> {
    schemas_with(false)
}

/// The schemas of all tools; with a network nothing is said about there being none.
pub fn schemas_with(network: bool) -> Vec<Value> {
    // That it can be read is a test's to say.
    let mut schemas: Vec<Value> = serde_json::from_str(SCHEMAS).unwrap_or_default();
    let terminal = schemas.first_mut().and_then(|it| it.pointer_mut("/function/description"));
    if let Some(Value::String(about)) = terminal.filter(|_| !network) {
        about.push_str(" There is no network.");
    }
    schemas
}

/// Arguments of a call, read with the messages a student can act on.
pub struct Arguments<'a>(pub &'a Map<String, Value>);

impl Arguments<'_> {
    /// A text that must be there.
    pub fn text(&self, name: &str) -> Result<&str, String> {
        self.optional_text(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    /// A text that may be absent.
    pub fn optional_text(&self, name: &str) -> Result<Option<&str>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("{name} must be a string")),
        }
    }

    /// A whole number that may be absent; a text with one counts, because models write those.
    pub fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let number = match self.0.get(name) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Number(number)) => number.as_u64().or_else(|| whole(number.as_f64()?)),
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(_) => None,
        };
        number.map(Some).ok_or_else(|| format!("{name} must be a whole number"))
    }

    /// A switch, off when absent.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
            Some(_) => Err(format!("{name} must be true or false")),
        }
    }
}

fn whole(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && (0.0..=9e15).contains(&number);
    is_whole.then_some(number as u64)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_required_argument_is_described() {
        assert_eq!(schemas().len(), 6);
        for schema in schemas() {
            let parameters = &schema["function"]["parameters"];
            for name in parameters["required"].as_array().unwrap() {
                assert!(parameters["properties"][name.as_str().unwrap()].is_object(), "{schema}");
            }
            assert!(!schema["function"]["description"].as_str().unwrap().contains("  "), "{schema}");
        }
    }

    #[test]
    fn nothing_is_said_about_a_network_that_is_there() {
        let says = |network| schemas_with(network)[0].to_string().contains("no network");
        assert_eq!([says(false), says(true)], [true, false]);
        assert_eq!(schemas(), schemas_with(false));
    }

    #[test]
    fn arguments_are_read_as_models_write_them() {
        let json = json!({ "n": 3, "f": 3.0, "s": "3", "bad": 3.5, "neg": -1, "t": "True", "b": false, "null": null });
        let arguments = Arguments(json.as_object().unwrap());
        let numbers = ["n", "f", "s", "bad", "neg", "none", "null"].map(|name| arguments.number(name).ok());
        assert_eq!(
            numbers,
            [Some(Some(3)), Some(Some(3)), Some(Some(3)), None, None, Some(None), Some(None)]
        );
        assert_eq!(
            [arguments.flag("t"), arguments.flag("b"), arguments.flag("none")],
            [Ok(true), Ok(false), Ok(false)]
        );
        assert_eq!(arguments.flag("n"), Err("n must be true or false".to_owned()));
        assert_eq!(arguments.text("n"), Err("n must be a string".to_owned()));
        assert_eq!(arguments.text("none"), Err("none is missing".to_owned()));
    }
}
