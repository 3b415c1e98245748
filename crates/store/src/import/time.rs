//! Timestamps as the peer writes them: RFC 3339 in UTC. A date crate would be a lot for one format.

/// Milliseconds since 1970, or nothing for any other text.
pub(super) fn millis(text: &str) -> Option<u64> {
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

/// Days since 1970 of a date in the Gregorian calendar, with March as the first month so that leap days come last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::millis;

    #[test]
    fn times_become_milliseconds() {
        assert_eq!(millis("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(millis("2026-11-15T23:00:33.215Z"), Some(1_794_783_633_215));
        assert_eq!(millis("2024-02-29T12:00:00Z"), Some(1_709_208_000_000));
        assert_eq!(millis("2000-03-01T00:00:00.5Z"), Some(951_868_800_500));
        for bad in ["", "2026-11-15", "2026-13-01T00:00:00Z", "2026-11-15T23:00:33", "x-y-zT0:0:0Z"] {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }
}
