//! `strftime_now`: a given point in time, written as C's `strftime` does in the C locale.
//!
//! The clock is never read here. `chrono` does the writing; a directive that it writes otherwise than Python
//! does (time zones, fractions of a second) is refused.

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Datelike};

/// The directives that Python and `chrono` write alike.
const DIRECTIVES: &str = "aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%";

/// The time a template is told it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    unix_seconds: i64,
    offset_seconds: i32,
}

impl Now {
    /// Seconds since 1970, shown in UTC.
    pub fn utc(unix_seconds: i64) -> Self {
        Self { unix_seconds, offset_seconds: 0 }
    }

    /// Seconds since 1970.
    pub fn unix_seconds(self) -> i64 {
        self.unix_seconds
    }

    /// The same time, shown that many seconds east of UTC.
    pub fn at_offset(self, offset_seconds: i32) -> Self {
        Self { offset_seconds, ..self }
    }

    /// The time as `format` asks for it, or what of that is not supported.
    pub fn strftime(self, format: &str) -> Result<String, String> {
        let local = self.unix_seconds.saturating_add(i64::from(self.offset_seconds));
        let shown = DateTime::from_timestamp(local, 0).map(|it| it.naive_utc());
        let shown = shown.filter(|it| (1000..=9999).contains(&it.year()));
        let shown = shown.ok_or("a year before 1000 or after 9999 is not supported")?;
        let items: Vec<Item<'_>> = StrftimeItems::new(format).collect();
        match unsupported(format) {
            Some(directive) => Err(format!("`{directive}` in `strftime_now` is not supported")),
            None if items.contains(&Item::Error) => {
                Err(format!("`strftime_now({format:?})` is not supported"))
            }
            None => Ok(shown.format_with_items(items.into_iter()).to_string()),
        }
    }
}

/// The first directive of `format` that is not one of ours; `-` before one takes its padding away.
fn unsupported(format: &str) -> Option<String> {
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        let directive = after.strip_prefix('-').unwrap_or(after);
        let kind = directive.chars().next();
        let Some(kind) = kind.filter(|kind| DIRECTIVES.contains(*kind)) else {
            let n_flags = after.len() - directive.len();
            return Some(format!("%{}", after.chars().take(n_flags + 1).collect::<String>()));
        };
        rest = &directive[kind.len_utf8()..];
    }
    None
}
