//! Text for people: tables, colours, sizes.
//!
//! Invariant: without a terminal the output has no escape sequences.

use std::io::{self, IsTerminal, Write};

/// Colours of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Works.
    Green,
    /// Take notice.
    Yellow,
    /// Broken.
    Red,
    /// Less important.
    Dim,
    /// Important.
    Bold,
}

/// Whether nobody refused colours (no-color.org).
#[must_use]
pub fn colours_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Decorates text, or does not.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    colours: bool,
}

impl Style {
    /// Colours if standard output is a terminal and `NO_COLOR` (no-color.org) is not set.
    #[must_use]
    pub fn of_stdout() -> Self {
        Self {
            colours: colours_wanted() && io::stdout().is_terminal(),
        }
    }

    /// No colours.
    #[cfg(test)]
    #[must_use]
    pub const fn plain() -> Self {
        Self { colours: false }
    }

    /// `text` in a colour.
    #[must_use]
    pub fn paint(self, colour: Colour, text: &str) -> String {
        if !self.colours {
            return text.to_owned();
        }
        let code = match colour {
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
            Colour::Dim => 2,
            Colour::Bold => 1,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A table with aligned columns. Cells are padded before they are painted.
#[derive(Debug)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<(String, Option<Colour>)>>,
}

impl Table {
    /// A table with these column titles.
    #[must_use]
    pub fn new(header: &[&'static str]) -> Self {
        Self {
            header: header.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; each cell with its colour.
    pub fn row(&mut self, cells: Vec<(String, Option<Colour>)>) {
        let cells = cells.into_iter();
        let shown = cells.map(|(text, colour)| (printable(&text), colour));
        self.rows.push(shown.collect());
    }

    /// The table as text, each line indented by `indent`.
    #[must_use]
    pub fn render(&self, style: Style, indent: &str) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widest = cells
                .map(|(text, _)| text.chars().count())
                .max()
                .unwrap_or(0);
            widest.max(self.header[column].len())
        };
        let widths: Vec<_> = (0..self.header.len()).map(width).collect();
        let mut out = String::new();
        let header = self
            .header
            .iter()
            .map(|title| ((*title).to_owned(), Some(Colour::Dim)));
        let header: Vec<_> = header.collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = indent.to_owned();
            for (column, (text, colour)) in row.iter().enumerate() {
                let last = column + 1 == row.len();
                let pad = widths[column].saturating_sub(text.chars().count());
                let pad = " ".repeat(if last { 0 } else { pad + 2 });
                match colour {
                    Some(colour) => line.push_str(&style.paint(*colour, text)),
                    None => line.push_str(text),
                }
                line.push_str(&pad);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// A text of others for a terminal. Control characters are spelt out: they could move the cursor, or turn the direction of
/// writing.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\'' | '"' | '\\' => shown.push(letter),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// Writes to standard output.
///
/// # Errors
/// The reader has gone.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a line for people to standard error.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Bytes with a unit that people use.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1_000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1_000.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 999.95 {
            break;
        }
        value /= 1_000.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Seconds as people say them.
#[must_use]
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_without_trailing_spaces() {
        let mut table = Table::new(&["PATH", "STATE"]);
        table.row(vec![
            ("wlan0".into(), None),
            ("up".into(), Some(Colour::Green)),
        ]);
        table.row(vec![("e".into(), None), ("down".into(), Some(Colour::Red))]);
        let text = table.render(Style::plain(), "  ");
        assert_eq!(text, "  PATH   STATE\n  wlan0  up\n  e      down\n");
    }

    #[test]
    fn sizes_and_times_are_rounded_for_people() {
        for (count, text) in [(999, "999 B"), (1_000, "1.0 kB"), (999_960, "1.0 MB")] {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(bytes(u64::MAX), "18446744.1 TB");
        for (seconds, text) in [(59.9, "59 s"), (61.0, "1 min 1 s"), (90_000.0, "1 d 1 h")] {
            assert_eq!(duration(seconds), text);
        }
    }
}
