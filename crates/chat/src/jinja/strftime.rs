//! `strftime_now`: a given point in time, written as C's `strftime` does in the C locale.
//!
//! The clock is never read here.

/// The time a template is told it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    unix_seconds: i64,
    offset_seconds: i32,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

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

    /// The time as `format` asks for it. Time zone directives give nothing, because Python's
    /// `datetime.now()` has none.
    pub fn strftime(self, format: &str) -> String {
        let moment = Moment::new(self);
        let mut out = String::new();
        let mut rest = format;
        while let Some((before, after)) = rest.split_once('%') {
            out.push_str(before);
            let directive = after.trim_start_matches(['-', '_', '0', '^', '#']);
            let flags = &after[..after.len() - directive.len()];
            let Some(kind) = directive.chars().next() else {
                out.push('%');
                out.push_str(flags);
                rest = "";
                break;
            };
            match moment.field(kind) {
                Some(field) => field.write(&mut out, flags),
                None => out.extend(["%", flags, kind.encode_utf8(&mut [0; 4])]),
            }
            rest = &directive[kind.len_utf8()..];
        }
        out.push_str(rest);
        out
    }
}

/// One piece of a date, not yet padded.
enum Field {
    Text(String),
    Number { value: i64, width: usize, fill: char },
}

impl Field {
    fn write(self, out: &mut String, flags: &str) {
        let text = match self {
            Self::Text(text) => text,
            Self::Number { value, .. } if flags.contains('-') => value.to_string(),
            Self::Number { value, width, fill } => {
                let fill = if flags.contains('_') { ' ' } else { fill };
                let is_zero_filled = fill == '0' || flags.contains('0');
                if is_zero_filled { format!("{value:0>width$}") } else { format!("{value:>width$}") }
            }
        };
        out.push_str(&if flags.contains('^') { text.to_uppercase() } else { text });
    }
}

/// A point in time, taken apart.
struct Moment {
    unix_seconds: i64,
    year: i64,
    month: i64,
    day: i64,
    weekday: i64,
    year_day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    fn new(now: Now) -> Self {
        let local = now.unix_seconds.saturating_add(i64::from(now.offset_seconds));
        let (days, seconds) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        Self {
            unix_seconds: now.unix_seconds,
            year,
            month,
            day,
            weekday: (days + 4).rem_euclid(7),
            year_day: days - days_before(year) + 1,
            hour: seconds / 3600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    fn field(&self, kind: char) -> Option<Field> {
        self.date_field(kind).or_else(|| self.time_field(kind)).or_else(|| self.compound(kind))
    }

    fn date_field(&self, kind: char) -> Option<Field> {
        let (iso_year, iso_week) = self.iso_week();
        Some(match kind {
            'a' => Field::Text(self.weekday_name()[..3].to_owned()),
            'A' => Field::Text(self.weekday_name().to_owned()),
            'b' | 'h' => Field::Text(self.month_name()[..3].to_owned()),
            'B' => Field::Text(self.month_name().to_owned()),
            'C' => padded(self.year.div_euclid(100), 2),
            'd' => padded(self.day, 2),
            'e' => spaced(self.day, 2),
            'G' => padded(iso_year, 1),
            'g' => padded(iso_year.rem_euclid(100), 2),
            'j' => padded(self.year_day, 3),
            'm' => padded(self.month, 2),
            'u' => padded((self.weekday + 6) % 7 + 1, 1),
            'U' => padded((self.year_day + 6 - self.weekday) / 7, 2),
            'V' => padded(iso_week, 2),
            'w' => padded(self.weekday, 1),
            'W' => padded((self.year_day + 6 - (self.weekday + 6) % 7) / 7, 2),
            'y' => padded(self.year.rem_euclid(100), 2),
            'Y' => padded(self.year, 1),
            _ => return None,
        })
    }

    fn time_field(&self, kind: char) -> Option<Field> {
        let hour12 = (self.hour + 11) % 12 + 1;
        Some(match kind {
            'H' => padded(self.hour, 2),
            'I' => padded(hour12, 2),
            'k' => spaced(self.hour, 2),
            'l' => spaced(hour12, 2),
            'M' => padded(self.minute, 2),
            'S' => padded(self.second, 2),
            'f' => padded(0, 6),
            's' => padded(self.unix_seconds, 1),
            'p' => Field::Text(if self.hour < 12 { "AM" } else { "PM" }.to_owned()),
            'P' => Field::Text(if self.hour < 12 { "am" } else { "pm" }.to_owned()),
            'z' | 'Z' => Field::Text(String::new()),
            'n' => Field::Text("\n".to_owned()),
            't' => Field::Text("\t".to_owned()),
            '%' => Field::Text("%".to_owned()),
            _ => return None,
        })
    }

    /// Directives that stand for others.
    fn compound(&self, kind: char) -> Option<Field> {
        let parts = match kind {
            'c' => "a b e H:M:S Y",
            'D' | 'x' => "m/d/y",
            'F' => "Y-m-d",
            'R' => "H:M",
            'r' => "I:M:S p",
            'T' | 'X' => "H:M:S",
            _ => return None,
        };
        Some(Field::Text(self.spell(parts)))
    }

    /// Replaces each letter by the field it names.
    fn spell(&self, letters: &str) -> String {
        let mut out = String::new();
        for letter in letters.chars() {
            match self.date_field(letter).or_else(|| self.time_field(letter)) {
                Some(field) if letter.is_alphabetic() => field.write(&mut out, ""),
                _ => out.push(letter),
            }
        }
        out
    }

    fn weekday_name(&self) -> &'static str {
        DAYS.get(self.weekday as usize).copied().unwrap_or(DAYS[0])
    }

    fn month_name(&self) -> &'static str {
        MONTHS.get(self.month as usize - 1).copied().unwrap_or(MONTHS[0])
    }

    /// The year and week that ISO 8601 counts the day to: weeks belong to the year of their Thursday.
    fn iso_week(&self) -> (i64, i64) {
        let monday_based = (self.weekday + 6) % 7;
        let thursday = self.year_day + 3 - monday_based;
        let n_days = days_before(self.year + 1) - days_before(self.year);
        let (year, year_day) = if thursday < 1 {
            (self.year - 1, thursday + days_before(self.year) - days_before(self.year - 1))
        } else if thursday > n_days {
            (self.year + 1, thursday - n_days)
        } else {
            (self.year, thursday)
        };
        (year, (year_day + 6) / 7)
    }
}

fn padded(value: i64, width: usize) -> Field {
    Field::Number { value, width, fill: '0' }
}

fn spaced(value: i64, width: usize) -> Field {
    Field::Number { value, width, fill: ' ' }
}

/// Days from 1970-01-01 to the first of January.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    let leap_days = |year: i64| year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    (year - 1970) * 365 + leap_days(past) - leap_days(1969)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Year, month and day of a day counted from 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    // The Gregorian calendar repeats every 146,097 days (400 years).
    let mut year = 1970 + days.div_euclid(146_097) * 400 + days.rem_euclid(146_097) / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let mut day = days - days_before(year);
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for n_days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < n_days {
            break;
        }
        day -= n_days;
        month += 1;
    }
    (year, month, day + 1)
}
