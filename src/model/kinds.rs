//! The table of server kinds, and finding out which of them a server is.
//!
//! Owns the list, in the order in which servers are tried: the most telling signs first. A row stands in the file of its
//! client. Everything that differs between kinds is in the rows.

use super::kind::Kind;
use super::transport::Transport;
use super::{Error, anthropic, embedded, openai, remote, sglang, vllm};

/// Every kind of server.
pub const KINDS: [&Kind; 5] =
    [&sglang::SGLANG, &vllm::VLLM, &openai::OPENAI, &anthropic::ANTHROPIC, &embedded::EMBEDDED];

/// The word for a kind that is to be found out.
pub const AUTO: &str = "auto";

/// What may be said of a kind.
pub const NAMES: [&str; KINDS.len() + 1] = {
    let mut names = [AUTO; KINDS.len() + 1];
    let mut idx = 0;
    while idx < KINDS.len() {
        names[idx + 1] = KINDS[idx].name;
        idx += 1;
    }
    names
};

/// The kind of that name; none if it is to be found out.
pub fn named(name: &str) -> Option<&'static Kind> {
    KINDS.into_iter().find(|kind| kind.name == name)
}

/// The names of the kinds of which something holds, as a person would list them.
pub fn names_of(holds: impl Fn(&Kind) -> bool) -> String {
    let names: Vec<&str> = KINDS.into_iter().filter(|kind| holds(kind)).map(|kind| kind.name).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Finds out what a server is, by its signs. One that is not well, or wants another key, is no unknown one.
pub async fn recognise(transport: &Transport) -> Result<&'static Kind, Error> {
    let mut last = None;
    for (kind, (path, is_own)) in
        KINDS.into_iter().flat_map(|kind| kind.signs.iter().map(move |sign| (kind, *sign)))
    {
        match remote::ask(transport, path, is_own).await {
            Ok(()) => return Ok(kind),
            Err(error @ (Error::Unreachable { .. } | Error::Unavailable { .. })) => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if !error.may_pass() && !error.is_denied() => Err(Error::invalid(
            format!("what {} is cannot be found out: {error}", transport.server()),
            format!("say it with --kind {}", names_of(|kind| !kind.is_here())),
        )),
        other => Err(other.unwrap_or_else(super::endpoint::no_endpoint)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::secret::Secret;
    use crate::model::transport::Settings;

    #[test]
    fn every_row_is_whole() {
        let names: BTreeSet<&str> = NAMES.into_iter().collect();
        assert_eq!(names.len(), KINDS.len() + 1, "two rows have one name");
        for kind in KINDS {
            assert!(!kind.name.is_empty() && !kind.about.is_empty(), "{kind:?}");
            assert_eq!(named(kind.name), Some(kind));
            assert!(kind.limits.token_ids || !kind.tokenizes, "{kind:?} tells ids and takes none");
            let auth = Some((kind.auth)(Secret::new("key")));
            let settings = Settings { auth, headers: kind.headers.to_vec(), ..Settings::default() };
            assert!(Transport::open(&["http://localhost:1"], settings).is_ok(), "{kind:?}");
        }
        assert_eq!(named(AUTO), None);
    }

    #[test]
    fn kinds_are_listed_as_people_list_them() {
        assert_eq!(names_of(|kind| kind.limits.scores), "sglang, vllm or embedded");
        assert_eq!((names_of(Kind::is_here), names_of(|_| false)), ("embedded".to_owned(), String::new()));
    }
}
