//! Reading `--now`: seconds since 1970, or a date and time such as `2026-01-31T12:00:00Z`.

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

/// `YYYY-MM-DD`, `T` or a space, `HH:MM:SS`, then `Z` or an offset such as `+02:00`.
fn date_time(text: &str) -> Option<Now> {
    let (date, time) = text.split_once(['T', ' '])?;
    let [year, month, day] = numbers(date, '-')?;
    let (time, offset) = split_offset(time)?;
    let [hour, minute, second] = numbers(time, ':')?;
    let valid = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let local = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(Now::utc(local - i64::from(offset)).at_offset(offset))
}

fn split_offset(time: &str) -> Option<(&str, i32)> {
    if let Some(time) = time.strip_suffix('Z') {
        return Some((time, 0));
    }
    let at = time.rfind(['+', '-'])?;
    let [hours, minutes] = numbers(&time[at + 1..], ':')?;
    let seconds = i32::try_from(hours * 3_600 + minutes * 60).ok()?;
    Some((&time[..at], if time[at..].starts_with('-') { -seconds } else { seconds }))
}

/// Exactly `N` whole numbers with `separator` between them.
fn numbers<const N: usize>(text: &str, separator: char) -> Option<[i64; N]> {
    let number =
        |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok()).flatten();
    let parts: Option<Vec<i64>> = text.split(separator).map(number).collect();
    parts?.try_into().ok()
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days in the proleptic Gregorian calendar; a year is counted from March, so that the leap day is its last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + from_march - 719_468
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
