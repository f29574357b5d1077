//! Capacity traces: how much a recorded link could carry at which time.
//!
//! Two formats. *Rates*: lines `second,bytes per second`; each holds until the next, the last as
//! long as the one before it, and a lone line a second. *Opportunities* (Winstein et al., NSDI 2013, as
//! played by Mahimahi): each line is a time in milliseconds at which [`OPPORTUNITY_BYTES`] can
//! be delivered. Both repeat for ever. Invariant: a trace has a positive period and capacity.

use ropewalk_types::{Duration, Rate};

/// Bytes that one delivery opportunity carries.
pub const OPPORTUNITY_BYTES: u64 = 1_504;
/// Longest trace read, in lines.
pub const LINES_MAX: usize = 4_000_000;
/// Largest trace file that is worth reading, bytes: 64 of them for each line.
pub const TRACE_BYTES_MAX: u64 = 64 * LINES_MAX as u64;

/// A recorded capacity that repeats for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityTrace {
    pub(crate) shape: Shape,
    /// Nanoseconds after which the trace starts again; positive.
    pub(crate) period_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Rate from each offset to the next (the last one to the period), offsets ascending from 0.
    Rates(Vec<(u64, Rate)>),
    /// Offsets in nanoseconds in `(0, period]`, ascending.
    Opportunities(Vec<u64>),
}

/// A trace that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {problem}")]
pub struct TraceError {
    /// The name given to [`CapacityTrace::parse`].
    pub file: String,
    /// Line number from 1; the last line for errors of the whole file.
    pub line: usize,
    /// What is wrong and how to put it right.
    pub problem: String,
}

/// The bytes of a trace file as text.
///
/// # Errors
/// With the line that has something else in it than UTF-8.
pub fn trace_text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let before = &error.as_bytes()[..good];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        format!("line {line}: no UTF-8 text; traces are lines of numbers")
    })
}

impl CapacityTrace {
    /// The same recording, begun at this place instead of its first one.
    #[must_use]
    pub fn starting_at(self, start: Duration) -> Self {
        let period_ns = self.period_ns;
        let nanos = start.as_nanos() % u128::from(period_ns);
        let start_ns = u64::try_from(nanos).unwrap_or(0);
        if start_ns == 0 {
            return self;
        }
        let shape = match self.shape {
            Shape::Rates(steps) => {
                // The step under way comes first, and what of it is before the place comes last.
                let under_way = steps.partition_point(|(at, _)| *at <= start_ns) - 1;
                let (before, after) = steps.split_at(under_way);
                let later = after
                    .iter()
                    .map(|&(at, rate)| (at.saturating_sub(start_ns), rate));
                let mut turned: Vec<_> = later.collect();
                let cut = after.first().filter(|(at, _)| *at < start_ns);
                let earlier = before.iter().chain(cut);
                turned.extend(earlier.map(|&(at, rate)| (at + period_ns - start_ns, rate)));
                Shape::Rates(turned)
            }
            Shape::Opportunities(times) => {
                let passed = times.partition_point(|at| *at <= start_ns);
                let (before, after) = times.split_at(passed);
                let later = after.iter().map(|at| at - start_ns);
                let earlier = before.iter().map(|at| at + period_ns - start_ns);
                Shape::Opportunities(later.chain(earlier).collect())
            }
        };
        Self { shape, period_ns }
    }

    /// Reads a trace in either format: lines with a comma are rates, others opportunities.
    ///
    /// `file` only names the text in errors. Blank lines and lines starting with `#` are skipped.
    ///
    /// # Errors
    /// On the first line that cannot be read, an empty trace, times that go backwards, and a
    /// trace without any capacity.
    pub fn parse(file: &str, text: &str) -> Result<Self, TraceError> {
        let lines = || {
            let numbered = text
                .lines()
                .enumerate()
                .map(|(at, line)| (at + 1, line.trim()));
            numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        };
        let fail = |line, problem: String| TraceError {
            file: file.into(),
            line,
            problem,
        };
        let Some((_, first)) = lines().next() else {
            return Err(fail(
                1,
                "the trace is empty; give it `second,bytes_per_second` lines or \
                 one time in milliseconds a line"
                    .into(),
            ));
        };
        if let Some((line, _)) = lines().nth(LINES_MAX) {
            return Err(fail(
                line,
                format!("more than {LINES_MAX} lines; shorten the trace"),
            ));
        }
        let parsed = if first.contains(',') {
            parse_rates(lines())
        } else {
            parse_opportunities(lines())
        };
        parsed.map_err(|(line, problem)| fail(line, problem))
    }

    /// Time after which the trace starts again.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    /// Capacity in bytes of one period.
    #[must_use]
    pub fn period_bytes(&self) -> u64 {
        match &self.shape {
            Shape::Rates(_) => {
                u64::try_from(self.period_work() / WORK_PER_BYTE).unwrap_or(u64::MAX)
            }
            Shape::Opportunities(times) => times.len() as u64 * OPPORTUNITY_BYTES,
        }
    }

    /// Mean rate over one period.
    #[must_use]
    pub fn mean_rate(&self) -> Rate {
        Rate::from_transfer(self.period_bytes(), self.period())
    }

    /// Capacity of one period in bit-nanoseconds per second (zero for opportunities).
    pub(crate) fn period_work(&self) -> u128 {
        let Shape::Rates(rates) = &self.shape else {
            return 0;
        };
        let ends = rates
            .iter()
            .skip(1)
            .map(|(at, _)| *at)
            .chain([self.period_ns]);
        rates
            .iter()
            .zip(ends)
            .map(|((at, rate), end)| u128::from(rate.bits_per_sec()) * u128::from(end - at))
            .sum()
    }
}

/// Bit-nanoseconds per second in one byte.
pub(crate) const WORK_PER_BYTE: u128 = 8_000_000_000;

type LineResult<T> = Result<T, (usize, String)>;

fn parse_rates<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> LineResult<CapacityTrace> {
    let mut rates: Vec<(u64, Rate)> = Vec::new();
    let (mut first_second, mut before, mut line) = (0.0, f64::NEG_INFINITY, 0);
    let mut some = false;
    for (at, content) in lines {
        line = at;
        let (second, bytes) = parse_rate_line(at, content)?;
        some |= bytes > 0.0;
        if rates.is_empty() {
            first_second = second;
        } else if second <= before {
            let problem = format!("second {second} follows {before}; sort the lines by time");
            return Err((at, problem));
        }
        before = second;
        rates.push((seconds_to_nanos(second - first_second), rate_of(bytes)));
    }
    // The last line lasts as long as the one before it; a lone line lasts a second.
    let last = rates.last().map_or(0, |(at, _)| *at);
    let step = rates
        .iter()
        .rev()
        .nth(1)
        .map_or(1_000_000_000, |(at, _)| last - at);
    let trace = CapacityTrace {
        shape: Shape::Rates(rates),
        period_ns: last + step,
    };
    if trace.period_bytes() == 0 {
        let problem = if some {
            "the trace carries less than a byte before it repeats; give it more, or more time"
        } else {
            "the trace never has any capacity; use `blackhole` for that"
        };
        return Err((line, problem.into()));
    }
    Ok(trace)
}

fn parse_rate_line(line: usize, content: &str) -> LineResult<(f64, f64)> {
    let wrong = || {
        let problem = if content.starts_with(|first: char| first.is_alphabetic() || first == '"') {
            "numbers expected, such as `12,1250000`; a line of titles is not read".into()
        } else {
            format!("`{content}` is not `second,bytes_per_second`, such as `12,1250000`")
        };
        (line, problem)
    };
    let (second, bytes) = content.split_once(',').ok_or_else(wrong)?;
    let second: f64 = second.trim().parse().map_err(|_| wrong())?;
    let bytes: f64 = bytes.trim().parse().map_err(|_| wrong())?;
    if !(0.0..=SECONDS_MAX).contains(&second) || !(0.0..=BYTES_PER_SECOND_MAX).contains(&bytes) {
        return Err(wrong());
    }
    Ok((second, bytes))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "callers pass 0..=BYTES_PER_SECOND_MAX"
)]
fn rate_of(bytes_per_second: f64) -> Rate {
    Rate::from_bits_per_sec((bytes_per_second * 8.0).round() as u64)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "callers pass 0..=SECONDS_MAX"
)]
fn seconds_to_nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

fn parse_opportunities<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> LineResult<CapacityTrace> {
    let mut times: Vec<u64> = Vec::new();
    let mut line = 0;
    for (at, content) in lines {
        line = at;
        let millis = content
            .parse::<u64>()
            .ok()
            .filter(|ms| *ms <= MILLIS_MAX)
            .ok_or_else(|| {
                (
                    at,
                    format!("`{content}` is not a time in whole milliseconds, such as `1250`"),
                )
            })?;
        let nanos = millis * 1_000_000;
        if times.last().is_some_and(|before| *before > nanos) {
            return Err((at, format!("{millis} ms goes back in time; sort the lines")));
        }
        times.push(nanos);
    }
    let period_ns = times.last().copied().unwrap_or(0);
    if period_ns == 0 {
        let problem = "the last time is the period of the trace and must be above 0 ms";
        return Err((line, problem.into()));
    }
    // The time of the last line is also time zero of the next round, so opportunities at zero
    // belong to the end of the round before.
    let at_zero = times.iter().take_while(|at| **at == 0).count();
    times.drain(..at_zero);
    times.extend(std::iter::repeat_n(period_ns, at_zero));
    Ok(CapacityTrace {
        shape: Shape::Opportunities(times),
        period_ns,
    })
}

const SECONDS_MAX: f64 = 1e6;
const BYTES_PER_SECOND_MAX: f64 = 1e11;
const MILLIS_MAX: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_begun_later_is_the_same_turned() {
        let rates = CapacityTrace::parse("r", "1,100\n2,200\n3,300\n").unwrap();
        let Shape::Rates(steps) = rates
            .clone()
            .starting_at(Duration::from_millis(4_500))
            .shape
        else {
            panic!("rates")
        };
        let seen: Vec<_> = steps
            .iter()
            .map(|(at, rate)| (at / 1_000_000, rate.bits_per_sec() / 8))
            .collect();
        assert_eq!(seen, [(0, 200), (500, 300), (1_500, 100), (2_500, 200)]);
        assert_eq!(rates.clone().starting_at(Duration::from_secs(6)), rates);
        let chances = CapacityTrace::parse("o", "2\n5\n9\n").unwrap();
        let Shape::Opportunities(times) = chances.starting_at(Duration::from_millis(5)).shape
        else {
            panic!("opportunities")
        };
        let seen: Vec<_> = times.iter().map(|at| at / 1_000_000).collect();
        assert_eq!(seen, [4, 6, 9]);
    }

    #[test]
    fn rates_hold_from_their_line_to_the_next_and_repeat() {
        let trace = CapacityTrace::parse("t.csv", "1,1000\r\n2,0\r\n3,500\r\n").expect("valid");
        assert_eq!(trace.period(), Duration::from_secs(3));
        assert_eq!(trace.period_bytes(), 1_500);
        assert_eq!(trace.mean_rate(), Rate::from_bits_per_sec(4_000));
        for (text, seconds) in [("1,1000\n", 1), ("1,1000\n3,1000\n8,0\n", 12)] {
            let trace = CapacityTrace::parse("t.csv", text).expect("valid");
            assert_eq!(trace.period(), Duration::from_secs(seconds));
        }
    }

    #[test]
    fn opportunities_carry_1504_bytes_each() {
        let trace = CapacityTrace::parse("t.down", "0\n5\n5\n10\n").expect("valid");
        assert_eq!(trace.period(), Duration::from_millis(10));
        assert_eq!(trace.period_bytes(), 4 * 1_504);
        let ms = 1_000_000;
        assert_eq!(
            trace.shape,
            Shape::Opportunities(vec![5 * ms, 5 * ms, 10 * ms, 10 * ms])
        );
    }

    #[test]
    fn what_is_no_text_names_its_line() {
        assert_eq!(trace_text(b"1,2\n".to_vec()).unwrap(), "1,2\n");
        let error = trace_text(b"1,2\n2,\xff\n".to_vec()).unwrap_err();
        assert!(error.starts_with("line 2: "), "{error}");
    }

    #[test]
    fn bad_traces_name_file_line_and_remedy() {
        let cases = [
            ("", 1, "empty"),
            ("1,100\n2,fast\n", 2, "second,bytes_per_second"),
            ("1,100\n\n1,100\n", 3, "sort"),
            ("1,100\n2\n", 2, "second,bytes_per_second"),
            ("1,-5\n", 1, "second,bytes_per_second"),
            ("1,inf\n", 1, "second,bytes_per_second"),
            ("second,rate\n1,5\n", 1, "a line of titles is not read"),
            ("1,0\n2,0\n", 2, "blackhole"),
            ("1,0.4\n", 1, "less than a byte"),
            ("0,500000\n1e-10,500000\n", 2, "less than a byte"),
            ("1\n2,5\n", 2, "milliseconds"),
            ("7\n3\n", 2, "sort"),
            ("0\n0\n", 2, "above 0 ms"),
        ];
        for (text, line, part) in cases {
            let error = CapacityTrace::parse("x.csv", text).expect_err(text);
            assert_eq!(error.line, line, "{text:?}");
            let message = error.to_string();
            assert!(
                message.starts_with(&format!("x.csv, line {line}: ")),
                "{message}"
            );
            assert!(message.contains(part), "{message}");
        }
    }
}
