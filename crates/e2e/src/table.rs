//! Tables of results: text for people, one JSON object for programs.

use serde::Serialize;

/// A table with a title row; every cell is text already.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Titles of the columns.
    pub columns: Vec<String>,
    /// Cells, as many per row as there are columns.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        Self {
            columns: columns.iter().map(|&c| c.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    /// The table in Markdown, columns aligned.
    #[must_use]
    pub fn markdown(&self) -> String {
        let lines = || std::iter::once(&self.columns).chain(&self.rows);
        let width = |column: usize| {
            let cells = lines().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for (index, line) in lines().enumerate() {
            let cells = line.iter().zip(&widths);
            let cells: Vec<String> = cells
                .map(|(cell, &width)| format!("{cell:width$}"))
                .collect();
            text += &format!("| {} |\n", cells.join(" | "));
            if index == 0 {
                let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
                text += &format!("|-{}-|\n", rule.join("-|-"));
            }
        }
        text
    }
}

/// `median (smallest–largest)` of a sample.
#[must_use]
pub fn range(values: &[f64], digits: usize) -> String {
    let summary = ropewalk_testbed::statistics::summarize(values.iter().copied());
    if summary.count < 2 {
        return format!("{:.digits$}", summary.median);
    }
    format!(
        "{:.digits$} ({:.digits$}–{:.digits$})",
        summary.median, summary.min, summary.max
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["a", "long title"]);
        table.row(&["wide cell".into(), "1".into()]);
        let text = table.markdown();
        let lines: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(lines, vec![lines[0]; 3]);
        assert_eq!(range(&[3.0, 1.0, 2.0], 1), "2.0 (1.0–3.0)");
        assert_eq!(range(&[3.0], 0), "3");
    }
}
