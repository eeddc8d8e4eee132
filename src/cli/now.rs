//! Reading `--now`: seconds since 1970, or a date and time such as `2026-01-31T12:00:00Z`.

use chrono::DateTime;

use super::failure::Failure;
use backsight_chat::template::Now;

/// The time that was typed.
pub(super) fn parse(text: &str) -> Result<Now, Failure> {
    let seconds = text.parse().ok().map(Now::utc);
    seconds.or_else(|| date_time(text)).ok_or_else(|| {
        Failure::input(
            format!("--now {text}: not a time"),
            "write it like 2026-01-31T12:00:00Z, or as seconds since 1970",
        )
    })
}

/// RFC 3339, with `T` or a space in the middle.
fn date_time(text: &str) -> Option<Now> {
    let time = DateTime::parse_from_rfc3339(text).ok()?;
    Some(Now::utc(time.timestamp()).at_offset(time.offset().local_minus_utc()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let shown = |text: &str| parse(text).unwrap().strftime("%Y-%m-%d %H:%M:%S").unwrap();
        assert_eq!(shown("0"), "1970-01-01 00:00:00");
        assert_eq!(shown("2026-01-31T12:00:00Z"), "2026-01-31 12:00:00");
        assert_eq!(shown("2024-02-29 23:59:59+05:30"), "2024-02-29 23:59:59");
        assert_eq!(parse("2026-01-31T12:00:00+02:00").unwrap().at_offset(0), parse("1769853600").unwrap());
    }

    #[test]
    fn other_texts_are_not() {
        for text in
            ["", "today", "2026-02-29T00:00:00Z", "2026-01-31", "2026-01-31T25:00:00Z", "2026-01-31T12:00:00"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
