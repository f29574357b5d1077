//! Numbers as people read them: short, with a unit.

fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1_000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 99.95);
    format!("{value:.digits$} {}", units[unit])
}

/// Bytes, 10 characters at most.
pub fn bytes(count: u64) -> String {
    scaled(count as f64, &["B", "kB", "MB", "GB", "TB"])
}

/// Bits per second, 11 characters at most; a dash if unknown.
pub fn rate(bits: Option<f64>) -> String {
    let units = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"];
    bits.map_or_else(|| "-".to_owned(), |bits| scaled(bits, &units))
}

/// Milliseconds.
pub fn millis(ms: f64) -> String {
    let digits = usize::from(ms < 9.95);
    format!("{ms:.digits$} ms")
}

/// A part of one as percent.
pub fn percent(part: f64) -> String {
    let digits = usize::from(part < 0.0995);
    format!("{:.digits$} %", part * 100.0)
}

/// Seconds in the largest unit that leaves a digit.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A number with commas between thousands.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.0 kB");
        assert_eq!(bytes(999_999_999), "1.0 GB");
        assert_eq!(rate(Some(99_960_000.0)), "100 Mbit/s");
        assert_eq!(rate(None), "-");
        assert_eq!(millis(9.94), "9.9 ms");
        assert_eq!(millis(40.2), "40 ms");
        assert_eq!(percent(0.004), "0.4 %");
        assert_eq!(percent(0.25), "25 %");
        assert_eq!(age(119), "119 s");
        assert_eq!(age(7_199), "119 min");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(123), "123");
    }
}
