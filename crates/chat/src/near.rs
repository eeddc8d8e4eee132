//! Which messages can be left out where only the end of a conversation is looked at.
//!
//! A template is a program over all messages, but what it writes for one depends on few others. Owns the
//! guess which those are ([`Likeness`]): the head up to the first action, everything since the last message of the
//! same kind as one that is new, and two rounds more, which must come out unchanged (`Near`). Where they do
//! not, more is kept; who uses a guess checks it against whole renderings.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use serde_json::Value;

use super::incremental::{common_prefix, common_suffix};
use super::probe::{role, texts};
use backsight_core::episode::Role;

/// Rounds that are kept although nothing in them should change.
const STEADY_ROUNDS: usize = 2;

/// What of a conversation's messages tells which of them a template treats alike. The default leaves nothing out.
#[derive(Clone, Debug, Default)]
pub struct Likeness {
    /// The assistant messages, in order.
    actions: Vec<usize>,
    /// For each message, the last one before it of the same kind; the first message where there is none.
    alike: Vec<usize>,
    /// How long each message's text is.
    n_bytes: Vec<usize>,
}

impl Likeness {
    /// Of messages as a template is given them.
    pub fn of(template: &str, messages: &[Value]) -> Self {
        let tags = tags(template);
        let mut last: HashMap<String, usize> = HashMap::new();
        let kinds = messages.iter().map(|message| kind(message, &tags)).enumerate();
        let alike = kinds.map(|(idx, kind)| last.insert(kind, idx).unwrap_or(0)).collect();
        let is_action = |idx: &usize| role(&messages[*idx]) == Role::Assistant.name();
        let n_bytes = messages.iter().map(|message| texts(message).iter().map(|it| it.len()).sum());
        Self { actions: (0..messages.len()).filter(is_action).collect(), alike, n_bytes: n_bytes.collect() }
    }

    /// How many actions stand before a message.
    pub(super) fn round(&self, message_idx: usize) -> usize {
        self.actions.partition_point(|action| *action < message_idx)
    }

    /// What to leave out where messages `changed` are new or stand otherwise than before, and how many bytes of what
    /// follows must come out unchanged; nothing where all are needed. Each `wider` keeps four times as much.
    pub(super) fn without(&self, changed: Range<usize>, wider: u32) -> Option<(Range<usize>, usize)> {
        let needed = self.alike.get(changed.clone())?.iter().min()?;
        let n_kept = (changed.end - needed).checked_mul(4_usize.checked_pow(wider)?)?;
        let needed = self.round(changed.end.checked_sub(n_kept)? + 1).checked_sub(1)?;
        let from = needed.checked_sub(STEADY_ROUNDS).filter(|from| *from > 0)?;
        let steady = self.actions[from]..self.actions[needed];
        Some((self.actions[0]..steady.start, self.n_bytes[steady].iter().sum()))
    }
}

/// Words in angle brackets that a template names: it may treat messages that have them otherwise.
fn tags(template: &str) -> BTreeSet<&str> {
    let ends = template.match_indices('>').filter_map(|(end, _)| {
        let start = template[..end].rfind('<')?;
        let tag = &template[start..=end];
        tag.bytes().all(|byte| byte.is_ascii_graphic()).then_some(tag)
    });
    ends.collect()
}

/// What templates treat alike: who speaks, in which fields, and with which tags where.
fn kind(message: &Value, tags: &BTreeSet<&str>) -> String {
    let is_empty =
        |value: &Value| value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty);
    let fields = message.as_object().into_iter().flatten().filter(|(_, value)| !is_empty(value));
    let mut kind = fields.fold(role(message).to_owned(), |kind, (name, _)| kind + " " + name);
    for text in texts(message).into_iter().map(str::trim) {
        for tag in tags.iter().filter(|tag| text.contains(**tag)) {
            kind += &format!(" {tag}{}{}", text.starts_with(tag), text.ends_with(tag));
        }
    }
    kind
}

/// What came of something before, for the last few of them: sure once it came twice.
#[derive(Debug)]
pub struct Repeats<K, V>(Vec<(K, V, bool)>);

/// As many are remembered: those that steps one after another are likely to share.
const MAX_REPEATS: usize = 16;

impl<K, V> Default for Repeats<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: PartialEq, V: PartialEq> Repeats<K, V> {
    /// What is sure to come.
    pub fn sure(&self, key: &K) -> Option<&V> {
        self.0.iter().find(|(known, _, is_sure)| known == key && *is_sure).map(|(_, value, _)| value)
    }

    /// Remembers what came this time; says whether it agrees with what was sure.
    pub fn agrees(&mut self, key: K, value: V) -> bool {
        let before = self.0.iter().position(|(known, ..)| *known == key).map(|at| self.0.remove(at));
        let (is_same, was_sure) = before.map_or((false, false), |(_, old, sure)| (old == value, sure));
        self.0.truncate(MAX_REPEATS - 1);
        self.0.insert(0, (key, value, is_same));
        is_same || !was_sure
    }

    /// Forgets what does not hold any more.
    pub fn retain(&mut self, holds: impl Fn(&V) -> bool) {
        self.0.retain(|(_, value, _)| holds(value));
    }
}

/// A short rendering of what was rendered last, and how it lies in the whole one.
pub(super) struct Near {
    /// What is left out of it.
    pub(super) without: Range<usize>,
    /// The short rendering.
    pub(super) last: String,
    /// The whole begins with so many bytes of it.
    pub(super) front: usize,
    /// The whole ends with it from this byte on.
    pub(super) back: usize,
    /// By how much the whole is longer.
    pub(super) longer_by: usize,
    /// So many bytes behind `back` must stay as they are.
    pub(super) steady: usize,
}

impl Near {
    /// None if the whole is not the short one with more in the middle.
    pub(super) fn new(whole: &str, last: String, (without, steady): (Range<usize>, usize)) -> Option<Self> {
        let (front, back) = (common_prefix(whole, &last), last.len() - common_suffix(whole, &last));
        let longer_by = whole.len().checked_sub(last.len()).filter(|_| back <= front)?;
        Some(Self { without, last, front, back, longer_by, steady })
    }

    /// Whether a text differs from the short rendering only where the whole differs in the same way.
    pub(super) fn holds(&self, text: &str) -> bool {
        common_prefix(&self.last, text) > self.back + self.steady
    }
}
