//! Formats dates like C's `strftime`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// The output of a conversion.
enum Part {
    Text(String),
    /// A number, its width, and the padding character.
    Number(u64, usize, char),
    /// A format made of other conversions.
    Format(&'static str),
}

/// Formats `time` in UTC like Python's `strftime` on Linux, without a time zone. Unknown
/// conversions are copied.
pub(super) fn strftime(format: &str, time: SystemTime) -> String {
    let now = Moment::of(time);
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let name = after.trim_start_matches(['-', '_', '0', '^']);
        let flags = after.strip_suffix(name).unwrap_or_default();
        let mut letters = name.chars();
        let Some(part) = letters.next().and_then(|c| now.part(c)) else {
            out.push('%');
            rest = after;
            continue;
        };
        rest = letters.as_str();
        let text = match (part, flags.trim_matches('^').chars().last()) {
            (Part::Text(text), _) => text,
            (Part::Format(format), _) => strftime(format, time),
            (Part::Number(n, _, _), Some('-')) => n.to_string(),
            (Part::Number(n, width, _), Some('_')) => format!("{n:width$}"),
            (Part::Number(n, width, fill), flag) if flag == Some('0') || fill == '0' => {
                format!("{n:0width$}")
            }
            (Part::Number(n, width, _), _) => format!("{n:width$}"),
        };
        out.push_str(&match flags.contains('^') {
            true => text.to_uppercase(),
            false => text,
        });
    }
    out + rest
}

/// A date and a time.
struct Moment {
    since: Duration,
    year: u64,
    month: u64,
    day: u64,
    day_of_year: u64,
    /// Days since Sunday.
    weekday: u64,
    hour: u64,
}

impl Moment {
    fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let days = since.as_secs() / 86_400;
        let (year, month, day, day_of_year) = civil_date(days);
        Self {
            since,
            year,
            month,
            day,
            day_of_year,
            weekday: (days + 4) % 7,
            hour: since.as_secs() / 3600 % 24,
        }
    }

    fn part(&self, conversion: char) -> Option<Part> {
        let seconds = self.since.as_secs();
        let hour12 = (self.hour + 11) % 12 + 1;
        let (half, small) = if self.hour < 12 {
            ("AM", "am")
        } else {
            ("PM", "pm")
        };
        let two = |n: u64| Part::Number(n, 2, '0');
        let name = |names: &[&str], index: u64, length: usize| {
            let name = usize::try_from(index).ok().and_then(|i| names.get(i));
            Part::Text(name.unwrap_or(&"").chars().take(length).collect())
        };
        Some(match conversion {
            'a' => name(&DAYS, self.weekday, 3),
            'A' => name(&DAYS, self.weekday, 9),
            'b' | 'h' => name(&MONTHS, self.month - 1, 3),
            'B' => name(&MONTHS, self.month - 1, 9),
            'c' => Part::Format("%a %b %e %H:%M:%S %Y"),
            'C' => two(self.year / 100),
            'd' => two(self.day),
            'D' | 'x' => Part::Format("%m/%d/%y"),
            'e' => Part::Number(self.day, 2, ' '),
            'f' => Part::Text(format!("{:06}", self.since.subsec_micros())),
            'F' => Part::Format("%Y-%m-%d"),
            'g' => two(self.iso_week().0 % 100),
            'G' => Part::Number(self.iso_week().0, 1, '0'),
            'H' => two(self.hour),
            'I' => two(hour12),
            'j' => Part::Number(self.day_of_year, 3, '0'),
            'k' => Part::Number(self.hour, 2, ' '),
            'l' => Part::Number(hour12, 2, ' '),
            'm' => two(self.month),
            'M' => two(seconds / 60 % 60),
            'n' => Part::Text("\n".to_owned()),
            'p' => Part::Text(half.to_owned()),
            'P' => Part::Text(small.to_owned()),
            'r' => Part::Format("%I:%M:%S %p"),
            'R' => Part::Format("%H:%M"),
            's' => Part::Number(seconds, 1, '0'),
            'S' => two(seconds % 60),
            't' => Part::Text("\t".to_owned()),
            'T' | 'X' => Part::Format("%H:%M:%S"),
            'u' => Part::Number((self.weekday + 6) % 7 + 1, 1, '0'),
            'U' => two((self.day_of_year + 6 - self.weekday) / 7),
            'V' => two(self.iso_week().1),
            'w' => Part::Number(self.weekday, 1, '0'),
            'W' => two((self.day_of_year + 6 - (self.weekday + 6) % 7) / 7),
            'y' => two(self.year % 100),
            'Y' => Part::Number(self.year, 1, '0'),
            'z' | 'Z' => Part::Text(String::new()),
            '%' => Part::Text("%".to_owned()),
            _ => return None,
        })
    }

    /// Year and week according to ISO 8601: the first week contains the first Thursday.
    fn iso_week(&self) -> (u64, u64) {
        let from_monday = (self.weekday + 6) % 7;
        // This week's Thursday as a day of this year. It may lie in another year.
        let thursday = (self.day_of_year + 3)
            .checked_sub(from_monday)
            .filter(|day| *day > 0);
        let length = |year| 365 + u64::from(is_leap(year));
        match thursday {
            None => {
                let last = self.year - 1;
                (
                    last,
                    (self.day_of_year + 3 + length(last) - from_monday).div_ceil(7),
                )
            }
            Some(day) if day > length(self.year) => (self.year + 1, 1),
            Some(day) => (self.year, day.div_ceil(7)),
        }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Year, month, day and day of the year (each from 1) of a day counted from 1970-01-01, in the
/// Gregorian calendar.
fn civil_date(days: u64) -> (u64, u64, u64, u64) {
    // 400 years are a whole number of days, so the loop below is short for any time.
    let mut year = 1970 + days / 146_097 * 400;
    let mut rest = days % 146_097;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let day_of_year = rest + 1;
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let all = "%Y-%m-%d %H:%M:%S %d %b %Y %A %B %a %j %-d %I %p %%";
        assert_eq!(
            strftime(all, at(0)),
            "1970-01-01 00:00:00 01 Jan 1970 Thursday January Thu 001 1 12 AM %"
        );
        let leap = strftime(all, at(1_709_251_199));
        assert_eq!(
            leap,
            "2024-02-29 23:59:59 29 Feb 2024 Thursday February Thu 060 29 11 PM %"
        );
        assert_eq!(strftime("%F", at(4_102_444_800)), "2100-01-01");
        assert_eq!(strftime("%F %a", at(951_782_400)), "2000-02-29 Tue");
        assert_eq!(strftime("%F", at(1_735_603_200)), "2024-12-31");
        // 2026-03-01, a Sunday.
        let more = "%c|%D|%e|%f|%G-%V|%k|%l|%n|%P|%r|%R|%s|%T|%u|%U|%w|%W|%C|%g|%x|%X|%z%Z|%^a|%_d|%0e|%-I";
        assert_eq!(
            strftime(more, at(1_772_352_009)),
            "Sun Mar  1 08:00:09 2026|03/01/26| 1|000000|2026-09| 8| 8|\n|am|08:00:09 AM|08:00|1772352009|\
             08:00:09|7|09|0|08|20|26|03/01/26|08:00:09||SUN| 1|01|8"
        );
        // 2027-01-01 and 2024-12-30.
        assert_eq!(strftime("%G-%V %U %W", at(1_798_761_600)), "2026-53 00 00");
        assert_eq!(strftime("%G-%V %U %W", at(1_735_516_800)), "2025-01 52 53");
        assert_eq!(strftime("%Q %é %", at(0)), "%Q %é %");
    }
}
