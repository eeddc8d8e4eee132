//! Choices as our own files write them: by name, through serde's `with`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use backsight_core::names::Named;

/// Writes the name.
pub fn serialize<T: Named, S: Serializer>(choice: &T, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(choice.name())
}

/// Reads a name that there is.
pub fn deserialize<'de, T: Named, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let name = String::deserialize(from)?;
    let unknown = || format!("unknown name `{name}`, known are {}", T::NAMES.join(", "));
    T::from_name(&name).ok_or_else(|| D::Error::custom(unknown()))
}

/// A choice that is read by name.
#[derive(Deserialize)]
#[serde(bound = "T: Named", transparent)]
pub struct Choice<T: Named>(#[serde(deserialize_with = "deserialize")] pub T);

/// The same for what may be left out.
pub mod option {
    use super::*;

    /// Writes the name, if there is one.
    pub fn serialize<T: Named, S: Serializer>(choice: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match choice {
            Some(choice) => super::serialize(choice, to),
            None => to.serialize_none(),
        }
    }

    /// Reads a name that there is; a key that is left out needs `default` beside this.
    pub fn deserialize<'de, T: Named, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        super::deserialize(from).map(Some)
    }
}
