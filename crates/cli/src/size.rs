//! Sizes as people write them, and as people read them.

/// Suffixes and what they multiply by. A bare letter is a power of 1024, as in other tools for disks.
const SUFFIXES: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// A size in bytes: a whole number and perhaps a suffix in either case. K and KiB are 1024, kB is 1000, and so on.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.trim().to_ascii_lowercase();
    let unit = SUFFIXES.iter().find(|(name, _)| *name == suffix).map(|(_, unit)| *unit);
    match (number.parse::<u64>(), unit) {
        (Ok(number), Some(unit)) => number
            .checked_mul(unit)
            .ok_or_else(|| format!("{text} is more bytes than can be counted in 64 bits")),
        // Digits that do not parse are too many of them.
        (Err(_), Some(_)) if !number.is_empty() => {
            Err(format!("{text} is more bytes than can be counted in 64 bits"))
        }
        _ => Err("a size is a whole number of bytes, or one with K, M, G or T, such as 256M".to_owned()),
    }
}

/// `bytes` in the largest unit that leaves at least 1, with two digits after the point.
pub fn show_size(bytes: u64) -> String {
    let (name, unit) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..1_048_576 => ("KiB", 1u64 << 10),
        1_048_576..1_073_741_824 => ("MiB", 1 << 20),
        1_073_741_824..1_099_511_627_776 => ("GiB", 1 << 30),
        _ => ("TiB", 1 << 40),
    };
    if bytes.is_multiple_of(unit) {
        format!("{} {name}", bytes / unit)
    } else {
        format!("{:.2} {name}", bytes as f64 / unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: sizes mean what they say. Method: one of each form.
    #[test]
    fn sizes_parse() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("1GiB", 1 << 30),
            ("1 gib", 1 << 30),
            ("3T", 3 << 40),
            ("5K", 5120),
            ("10kB", 10_000),
            ("10MB", 10_000_000),
            ("7b", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    // Goal: what is no size is refused. Method: one of each mistake.
    #[test]
    fn mistakes_are_refused() {
        for text in
            ["", "plenty", "M", "-1", "1.5G", "64X", "64MM", "0x10", "18446744073709551616", "99999999T"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    // Goal: sizes can be read. Method: around each unit.
    #[test]
    fn sizes_are_shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (64 << 20, "64 MiB"),
            ((1 << 30) + (1 << 29), "1.50 GiB"),
            (5 << 40, "5 TiB"),
        ] {
            assert_eq!(show_size(bytes), text);
        }
    }
}
