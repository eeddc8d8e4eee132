//! API keys: where they come from, and that they are never shown.
//!
//! Owns [`Secret`], whose every textual form is `***`, and the scrubbing of texts in which a server
//! echoes a key back. Which header carries a key is the business of `transport`.

use std::fmt;
use std::path::Path;

use super::Error;

/// What stands where a key was.
const MASK: &str = "***";
/// Keys shorter than this are placeholders; masking them would blot out ordinary letters.
const SHORTEST: usize = 4;

/// A text that must not be shown; only [`Secret::expose`] gives it away.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    /// Where it was found.
    origin: Option<String>,
}

impl Secret {
    /// Keeps `text`, without the white space around it that files end with.
    pub fn new(text: &str) -> Self {
        Self { text: text.trim().to_owned(), origin: None }
    }

    /// The same, found in the variable, the file or the flag of that name.
    pub fn found_in(self, origin: impl Into<String>) -> Self {
        Self { origin: Some(origin.into()), ..self }
    }

    /// Where it was found, as far as that is known.
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// The value of the environment variable `name`.
    pub fn from_env(name: &str) -> Result<Self, Error> {
        match std::env::var(name) {
            Ok(text) if !text.trim().is_empty() => Ok(Self::new(&text).found_in(name)),
            _ => Err(Error::invalid(
                format!("the environment variable {name} holds no API key"),
                format!("export {name}, or name another variable with --api-key-env"),
            )),
        }
    }

    /// The content of the file at `path`.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let shown = path.display();
        match std::fs::read_to_string(path) {
            Ok(text) if !text.trim().is_empty() => Ok(Self::new(&text).found_in(shown.to_string())),
            Ok(_) => Err(Error::invalid(format!("{shown} is empty"), "write the API key into it")),
            Err(why) => Err(Error::invalid(
                format!("the API key cannot be read from {shown}: {why}"),
                "give a readable file that holds the key and nothing else",
            )),
        }
    }

    /// The key in the variable or in the file that was named, if either was.
    pub fn find(name: Option<&str>, path: Option<&Path>) -> Result<Option<Self>, Error> {
        match (name, path) {
            (Some(name), Some(path)) => Err(Error::invalid(
                format!("the API key is said to be in {name} and in {}", path.display()),
                "give --api-key-env or --api-key-file, not both",
            )),
            (Some(name), None) => Self::from_env(name).map(Some),
            (None, Some(path)) => Self::from_file(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The text itself, for the header that carries it.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// `text` with every occurrence of this secret masked.
    pub fn scrub(&self, text: &str) -> String {
        if self.text.len() < SHORTEST { text.to_owned() } else { text.replace(&self.text, MASK) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn no_textual_form_shows_the_key() {
        let key = Secret::new("sk-abcdef\n");
        assert_eq!(format!("{key} {key:?} {:?}", Some(&key)), "*** *** Some(***)");
        assert_eq!(key.expose(), "sk-abcdef");
    }

    #[test]
    fn an_echoed_key_is_masked() {
        let key = Secret::new("sk-abcdef");
        assert_eq!(key.scrub("bad key sk-abcdef (sk-abcdef)"), "bad key *** (***)");
        assert_eq!(Secret::new("x").scrub("extra"), "extra");
    }

    #[test]
    fn a_missing_key_names_where_it_was_looked_for() {
        let name = "BACKSIGHT_TEST_KEY_THAT_IS_NOT_SET";
        let error = Secret::from_env(name).unwrap_err();
        assert_eq!(error.to_string(), format!("the environment variable {name} holds no API key"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert!(Secret::from_file(&path).unwrap_err().to_string().contains("cannot be read"));
        std::fs::write(&path, "sk-from-file\n").unwrap();
        let key = Secret::from_file(&path).unwrap();
        assert_eq!((key.expose(), key.origin()), ("sk-from-file", path.to_str()));
    }
}
