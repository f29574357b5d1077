//! Throughput over time as rows of blocks, for a terminal or a log.

use std::fmt::Write as _;
use std::time::Duration;

use ropewalk_testbed::statistics::Sample;

/// One line of the chart.
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    /// Mbit/s per sampling interval.
    pub(super) samples: &'a [f64],
    /// SGR code (ECMA-48 §8.3.117).
    pub(super) colour: &'a str,
}

/// A function that colours text, or leaves it.
pub(super) fn painter(colour: bool) -> impl Fn(&str, &str) -> String {
    move |code, text| {
        if colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Every row three lines high on one scale, the cut marked above, the time below.
pub(super) fn draw(
    rows: &[Row<'_>],
    sample: Duration,
    cut: (Duration, Duration),
    colour: bool,
) -> String {
    let paint = painter(colour);
    let longest = rows.iter().map(|row| row.samples.len()).max().unwrap_or(0);
    let group = longest.div_ceil(COLUMNS).max(1);
    let width = longest.div_ceil(group);
    let column_seconds = sample.as_secs_f64() * group as f64;
    let column = |at: Duration| ((at.as_secs_f64() / column_seconds) as usize).min(width);
    let top = scale(rows);
    let mut text = format!("\nThroughput while uplink A is cut, 0 to {top:.0} Mbit/s\n");
    let (from, to) = (column(cut.0), column(cut.1));
    let label = format!("{:-^1$}", " A silent ", (to - from).max(1));
    let _ = writeln!(text, "{:NAME$}{:from$}{}", "", "", paint("31", &label));
    for row in rows {
        let values: Vec<f64> = row.samples.chunks(group).map(mean).collect();
        for line in (0..HEIGHT).rev() {
            let name = if line == 0 { row.name } else { "" };
            let blocks: String = values.iter().map(|v| block(v / top, line)).collect();
            let _ = writeln!(text, "{name:<NAME$}{}", paint(row.colour, &blocks));
        }
    }
    let end = format!("{:.0} s", column_seconds * width as f64);
    let _ = writeln!(text, "{:NAME$}0 s{end:>1$}", "", width.saturating_sub(3));
    text
}

/// The block of one column in a line: a row's share of the scale is spread over its lines.
fn block(share: f64, line: usize) -> char {
    let eighths = (share.clamp(0.0, 1.0) * (HEIGHT * 8) as f64).round() as usize;
    BLOCKS[eighths.saturating_sub(line * 8).min(8)]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Columns at most: an 80-column terminal less the names.
const COLUMNS: usize = 68;
/// Lines per row.
const HEIGHT: usize = 3;
/// Width of the names.
const NAME: usize = 10;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The largest sample but for rare peaks, so that one burst does not flatten a chart.
fn scale(rows: &[Row<'_>]) -> f64 {
    let all: Sample = rows
        .iter()
        .flat_map(|row| row.samples.iter().copied())
        .collect();
    all.percentile(0.99).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_grow_with_the_value_and_fill_the_lines_from_below() {
        let column = |share| -> String { (0..HEIGHT).map(|line| block(share, line)).collect() };
        assert_eq!(column(0.0), "   ");
        assert_eq!(column(0.5), "█▄ ");
        assert_eq!(column(2.0), "███");
    }

    #[test]
    fn the_cut_is_marked_above_its_columns_and_colours_are_optional() {
        let samples = vec![1.0; 60];
        let rows = [Row {
            name: "uplink A",
            samples: &samples,
            colour: "36",
        }];
        let sample = Duration::from_millis(500);
        let cut = (Duration::from_secs(10), Duration::from_secs(20));
        let plain = draw(&rows, sample, cut, false);
        let mark = plain
            .lines()
            .find(|line| line.contains("A silent"))
            .unwrap();
        assert_eq!(mark.find('-'), Some(NAME + 20));
        assert_eq!(mark.trim().len(), 20);
        assert!(!plain.contains('\x1b'));
        assert!(draw(&rows, sample, cut, true).contains("\x1b[36m"));
        assert!(
            plain
                .lines()
                .all(|line| line.chars().count() <= NAME + COLUMNS)
        );
    }
}
