//! Dates and times of day in UTC, as people and other programs write them. The Gregorian calendar stands here and nowhere else; no time
//! zone and no clock is known.

use std::fmt;

const DAY: u64 = 86_400_000;

/// A time in UTC, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UtcTime {
    pub year: u64,
    pub month: u64,
    pub day: u64,
    /// Since midnight.
    seconds: u64,
}

impl UtcTime {
    /// From milliseconds since 1970.
    pub fn of(ms: u64) -> Self {
        // Days since the first of March of the year 0, so that leap days come last.
        let days = ms / DAY + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Self { year: year + era * 400 + u64::from(month <= 2), month, day, seconds: ms % DAY / 1000 }
    }

    /// `2026-11-15`
    pub fn date(&self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// `2026-11-15 23:00:33 UTC`
impl fmt::Display for UtcTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds;
        write!(out, "{} {:02}:{:02}:{:02} UTC", self.date(), seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

/// Milliseconds since 1970 of a time as RFC 3339 writes it, in UTC; nothing for any other text.
pub fn utc_millis(text: &str) -> Option<u64> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers::<3>(date, '-')?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers::<3>(clock, ':')?;
    let digits: String = fraction.chars().chain("000".chars()).take(3).collect();
    let sensible = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !sensible || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some((((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) * 1000 + digits.parse::<u64>().ok()?)
}

fn numbers<const N: usize>(text: &str, separator: char) -> Option<[u64; N]> {
    let parts: Vec<u64> = text.split(separator).map(|part| part.parse().ok()).collect::<Option<_>>()?;
    parts.try_into().ok()
}

/// Days since 1970 of a date.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (ms, date) in [
            (0, "1970-01-01"),
            (951_782_400_000, "2000-02-29"),
            (1_763_247_600_000, "2025-11-15"),
            (1_767_225_599_999, "2025-12-31"),
            (1_767_225_600_000, "2026-01-01"),
        ] {
            assert_eq!(UtcTime::of(ms).date(), date);
        }
        assert_eq!(UtcTime::of(1_794_783_633_215).to_string(), "2026-11-15 23:00:33 UTC");
    }

    #[test]
    fn each_day_of_eight_centuries_is_the_one_after_the_last() {
        for day in 0..292_194 {
            let time = UtcTime::of(day * DAY);
            assert_eq!(days(time.year, time.month, time.day), day, "{time}");
        }
    }

    #[test]
    fn times_become_milliseconds() {
        assert_eq!(utc_millis("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(utc_millis("2026-11-15T23:00:33.215Z"), Some(1_794_783_633_215));
        assert_eq!(utc_millis("2024-02-29T12:00:00Z"), Some(1_709_208_000_000));
        assert_eq!(utc_millis("2000-03-01T00:00:00.5Z"), Some(951_868_800_500));
        for bad in ["", "2026-11-15", "2026-13-01T00:00:00Z", "2026-11-15T23:00:33", "x-y-zT0:0:0Z"] {
            assert_eq!(utc_millis(bad), None, "{bad}");
        }
    }
}
