//! Formats dates like C's `strftime`.

use minijinja::ErrorKind;
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

/// Formats `time` in UTC with common `strftime` conversions; an error names an unsupported one.
pub(super) fn strftime(format: &str, time: SystemTime) -> Result<String, minijinja::Error> {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day, day_of_year) = civil_date(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let name = |names: &[&'static str], index: u64| -> &'static str {
        usize::try_from(index)
            .ok()
            .and_then(|i| names.get(i).copied())
            .unwrap_or("")
    };
    let month_name = name(&MONTHS, month - 1);
    let day_name = name(&DAYS, (days + 4) % 7);
    let short = |name: &'static str| name.get(..3).unwrap_or(name);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let conversion = match letters.next() {
            Some('-') => letters.next().map(|c| ("-", c)),
            other => other.map(|c| ("", c)),
        };
        out.push_str(&match conversion {
            Some(("", '%')) => "%".to_owned(),
            Some(("", 'Y')) => year.to_string(),
            Some(("", 'y')) => format!("{:02}", year % 100),
            Some(("", 'm')) => format!("{month:02}"),
            Some(("-", 'm')) => month.to_string(),
            Some(("", 'd')) => format!("{day:02}"),
            Some(("-", 'd')) => day.to_string(),
            Some(("", 'e')) => format!("{day:2}"),
            Some(("", 'j')) => format!("{day_of_year:03}"),
            Some(("", 'B')) => month_name.to_owned(),
            Some(("", 'b' | 'h')) => short(month_name).to_owned(),
            Some(("", 'A')) => day_name.to_owned(),
            Some(("", 'a')) => short(day_name).to_owned(),
            Some(("", 'H')) => format!("{hour:02}"),
            Some(("-", 'H')) => hour.to_string(),
            Some(("", 'I')) => format!("{hour12:02}"),
            Some(("-", 'I')) => hour12.to_string(),
            Some(("", 'M')) => format!("{minute:02}"),
            Some(("", 'S')) => format!("{second:02}"),
            Some(("", 'p')) => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some(("", 'F')) => format!("{year}-{month:02}-{day:02}"),
            Some(("", 'T')) => format!("{hour:02}:{minute:02}:{second:02}"),
            Some(("", 'Z')) => "UTC".to_owned(),
            Some(("", 'z')) => "+0000".to_owned(),
            other => {
                let text = other.map_or_else(String::new, |(flag, c)| format!("{flag}{c}"));
                let what = format!("strftime_now: conversion `%{text}` is not supported");
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, what));
            }
        });
    }
    Ok(out)
}

/// Year, month, day and day of the year (each from 1) of a day counted from 1970-01-01, in the
/// Gregorian calendar.
fn civil_date(days: u64) -> (u64, u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years are a whole number of days, so the loop below is short for any time.
    let mut year = 1970 + days / 146_097 * 400;
    let mut rest = days % 146_097;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let day_of_year = rest + 1;
    let february = if leap(year) { 29 } else { 28 };
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
            strftime(all, at(0)).unwrap(),
            "1970-01-01 00:00:00 01 Jan 1970 Thursday January Thu 001 1 12 AM %"
        );
        let leap = strftime(all, at(1_709_251_199)).unwrap();
        assert_eq!(
            leap,
            "2024-02-29 23:59:59 29 Feb 2024 Thursday February Thu 060 29 11 PM %"
        );
        assert_eq!(strftime("%F", at(4_102_444_800)).unwrap(), "2100-01-01");
        assert_eq!(strftime("%F %a", at(951_782_400)).unwrap(), "2000-02-29 Tue");
        assert_eq!(strftime("%F", at(1_735_603_200)).unwrap(), "2024-12-31");
        assert!(strftime("%", at(0)).is_err());
    }
}
