//! Quantities as people write them: `16Mbit`, `25ms`, `64KiB`, `5%`.
//!
//! Every parser names what it could not read and shows a right example; formatting and parsing
//! are inverse to each other for values that the format can express exactly.

use ropewalk_types::{Duration, Rate};

/// A quantity that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {kind}; write {example}")]
pub struct UnitError {
    text: String,
    kind: &'static str,
    example: &'static str,
}

/// Reads a rate in bits per second: `800kbit`, `16Mbit`, `1.5Gbit`, `12000bit`, or `unlimited`
/// (`None`).
///
/// # Errors
/// When there is no number, no unit, or the unit is unknown.
pub fn parse_rate(text: &str) -> Result<Option<Rate>, UnitError> {
    if text.trim() == "unlimited" {
        return Ok(None);
    }
    let scale = |unit: &str| match unit {
        "bit" | "bps" => Some(1.0),
        "kbit" | "Kbit" | "kbps" => Some(1e3),
        "Mbit" | "mbit" | "Mbps" => Some(1e6),
        "Gbit" | "gbit" | "Gbps" => Some(1e9),
        _ => None,
    };
    quantity(text, scale, RATE_BITS_MAX)
        .map(|bits| Some(Rate::from_bits_per_sec(bits)))
        .ok_or_else(|| {
            error(
                text,
                "a rate",
                "for example `16Mbit`, `800kbit` or `unlimited`",
            )
        })
}

/// Writes a rate as [`parse_rate`] reads it.
#[must_use]
pub fn format_rate(rate: Option<Rate>) -> String {
    let Some(rate) = rate else {
        return "unlimited".into();
    };
    let bits = rate.bits_per_sec();
    let units = [
        (1_000_000_000, "Gbit"),
        (1_000_000, "Mbit"),
        (1_000, "kbit"),
    ];
    scaled(bits, &units, "bit")
}

/// Reads a duration: `250us`, `25ms`, `1.5s`, `10ns`, `2min`, or `0`.
///
/// # Errors
/// When there is no number, no unit, or the unit is unknown.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let scale = |unit: &str| match unit {
        "ns" => Some(1.0),
        "us" | "µs" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        "min" => Some(60e9),
        _ => None,
    };
    quantity(text, scale, DURATION_NS_MAX)
        .map(Duration::from_nanos)
        .ok_or_else(|| error(text, "a duration", "for example `25ms`, `300us` or `1.5s`"))
}

/// Writes a duration as [`parse_duration`] reads it.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    scaled(
        nanos,
        &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")],
        "ns",
    )
}

/// Reads a size in bytes: `1500`, `1500B`, `64KiB`, `64kB`, `2MiB`, or `unlimited` (`None`).
///
/// # Errors
/// When there is no number or the unit is unknown.
pub fn parse_bytes(text: &str) -> Result<Option<u64>, UnitError> {
    if text.trim() == "unlimited" {
        return Ok(None);
    }
    let scale = |unit: &str| match unit {
        "" | "B" => Some(1.0),
        "kB" | "KB" => Some(1e3),
        "KiB" => Some(1024.0),
        "MB" => Some(1e6),
        "MiB" => Some(1_048_576.0),
        "GB" => Some(1e9),
        "GiB" => Some(1_073_741_824.0),
        _ => None,
    };
    quantity(text, scale, BYTES_MAX).map(Some).ok_or_else(|| {
        error(
            text,
            "a size",
            "for example `64KiB`, `1500B` or `unlimited`",
        )
    })
}

/// Writes a size as [`parse_bytes`] reads it.
#[must_use]
pub fn format_bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(
        || "unlimited".into(),
        |bytes| {
            scaled(
                bytes,
                &[(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")],
                "B",
            )
        },
    )
}

/// Reads a probability: `5%`, `0.5%`, or a number from 0 to 1 such as `0.05`.
///
/// # Errors
/// When it is no number, or outside 0 to 100 %; `1` without a sign is refused above 1 only.
pub fn parse_probability(text: &str) -> Result<f64, UnitError> {
    let trimmed = text.trim();
    let (number, scale) = trimmed
        .strip_suffix('%')
        .map_or((trimmed, 1.0), |number| (number.trim_end(), 0.01));
    number
        .parse::<f64>()
        .ok()
        .map(|value| value * scale)
        .filter(|p| (0.0..=1.0).contains(p))
        .ok_or_else(|| error(text, "a probability", "`0%` to `100%`, for example `2.5%`"))
}

/// Reads a switch: `on`, `off`, `true`, `false`.
///
/// # Errors
/// When it is anything else.
pub fn parse_switch(text: &str) -> Result<bool, UnitError> {
    match text.trim() {
        "on" | "true" | "yes" => Ok(true),
        "off" | "false" | "no" => Ok(false),
        _ => Err(error(text, "a switch", "`on` or `off`")),
    }
}

/// Reads a whole number.
///
/// # Errors
/// When it is no whole number or too large.
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    let parsed = text.trim().parse::<u64>().ok().filter(|n| *n <= BYTES_MAX);
    parsed.ok_or_else(|| error(text, "a count", "a whole number such as `100`"))
}

/// A finite, non-negative number with a unit, rounded to whole base units, at most `max`.
fn quantity(text: &str, scale: impl Fn(&str) -> Option<f64>, max: u64) -> Option<u64> {
    let text = text.trim();
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let value = number.parse::<f64>().ok()? * scale(unit.trim_start())?;
    #[expect(
        clippy::cast_precision_loss,
        reason = "the bounds are powers of ten below 2^53"
    )]
    let in_range = value.is_finite() && value >= 0.0 && value <= max as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "range checked on this line"
    )]
    in_range.then(|| value.round() as u64)
}

fn scaled(value: u64, units: &[(u64, &str)], base: &str) -> String {
    let fitting = units
        .iter()
        .find(|(scale, _)| value >= *scale && value.is_multiple_of(*scale));
    fitting.map_or_else(
        || format!("{value}{base}"),
        |(scale, unit)| format!("{}{unit}", value / scale),
    )
}

fn error(text: &str, kind: &'static str, example: &'static str) -> UnitError {
    UnitError {
        text: text.into(),
        kind,
        example,
    }
}

/// 1 Tbit/s: far above any link, low enough that products with nanoseconds fit 128 bits.
const RATE_BITS_MAX: u64 = 1_000_000_000_000;
/// About 11.5 days.
const DURATION_NS_MAX: u64 = 1_000_000_000_000_000;
/// 1 TB.
const BYTES_MAX: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_spellings_are_read() {
        let mbit = |n| Ok(Some(Rate::from_bits_per_sec(n)));
        assert_eq!(parse_rate("16Mbit"), mbit(16_000_000));
        assert_eq!(parse_rate("1.5 Gbit"), mbit(1_500_000_000));
        assert_eq!(parse_rate("unlimited"), Ok(None));
        assert_eq!(parse_duration("25ms"), Ok(Duration::from_millis(25)));
        assert_eq!(parse_duration("0.3ms"), Ok(Duration::from_micros(300)));
        assert_eq!(parse_bytes("64KiB"), Ok(Some(65_536)));
        assert_eq!(parse_bytes("1500"), Ok(Some(1_500)));
        assert_eq!(parse_probability("5%"), Ok(0.05));
        assert_eq!(parse_probability("0.25"), Ok(0.25));
    }

    #[test]
    fn wrong_quantities_name_themselves_and_an_example() {
        for text in [
            "16",
            "fast",
            "-3Mbit",
            "16MB",
            "",
            "1e400Mbit",
            "9999999Gbit",
        ] {
            let message = parse_rate(text).expect_err(text).to_string();
            assert!(message.contains(&format!("`{text}`")) && message.contains("16Mbit"));
        }
        assert!(parse_duration("25").is_err());
        assert!(parse_duration("1h").is_err());
        assert!(parse_probability("101%").is_err());
        assert!(parse_probability("5").is_err());
        assert!(parse_probability("NaN").is_err());
        assert!(parse_switch("maybe").is_err());
        assert!(parse_count("1.5").is_err());
    }

    #[test]
    fn formatted_quantities_read_back() {
        for bits in [0, 1, 999, 1_000, 16_000_000, 1_234_567, 40_000_000_000] {
            let rate = Some(Rate::from_bits_per_sec(bits));
            assert_eq!(parse_rate(&format_rate(rate)), Ok(rate));
        }
        for nanos in [0, 1, 1_500, 25_000_000, 60_000_000_000] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        for bytes in [None, Some(0), Some(1_500), Some(65_536)] {
            assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }
    }
}
