//! The graph: what all uplinks carried, one above the other, and what was asked for.
//!
//! Each column of characters stands for an equal part of the range; its value is the mean of its points. The
//! height has eight steps for each line with colours, and one without. A mark stands where more was asked for
//! than the uplinks carried: above the filled part.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ropewalk_api::{History, UplinkHistory};

use crate::app::{App, Way};
use crate::draw::{cut, faint, put, put_right};
use crate::figures;

/// Distinct on dark and on light grounds; names stand beside them.
const COLOURS: [Color; 8] = [
    Color::Cyan,
    Color::Yellow,
    Color::Green,
    Color::Magenta,
    Color::Blue,
    Color::Red,
    Color::LightCyan,
    Color::LightYellow,
];
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// Smallest height of the graph, bit/s: keepalives of an idle tunnel are no mountains.
const SCALE_MIN: f64 = 10_000.0;
/// Columns for the scale at the left, and from which width there are any.
const SCALE_WIDTH: u16 = 12;
const SCALE_FROM: u16 = 50;

/// What stands for an uplink beside its name, and its style: the same as in the graph.
pub fn mark(app: &App, name: &str) -> (String, Style) {
    let uplinks = app.history.as_ref().map_or(&[][..], |h| &h.uplinks);
    let Some(index) = uplinks.iter().position(|uplink| uplink.name == name) else {
        return (" ".to_owned(), Style::new());
    };
    if app.look.colours && app.look.unicode {
        ("■".to_owned(), colour(index))
    } else if app.look.colours {
        (letter(index).to_string(), colour(index))
    } else {
        (letter(index).to_string(), Style::new())
    }
}

fn colour(index: usize) -> Style {
    Style::new().fg(COLOURS[index % COLOURS.len()])
}

fn letter(index: usize) -> char {
    char::from(b'a' + u8::try_from(index % 26).unwrap_or(0))
}

/// A column: the height of each uplink's top, and what was asked for, bit/s.
struct Column {
    tops: Vec<f64>,
    asked: Option<f64>,
}

/// Draws the graph, with its legend in the last line.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    if area.height < 2 || area.width < 2 {
        return;
    }
    let plot = Rect {
        x: area.x + scale_width(area.width),
        width: area.width - scale_width(area.width),
        height: area.height - 1,
        ..area
    };
    let foot = area.y + plot.height;
    let Some(history) = &app.history else {
        put(
            buffer,
            area.x,
            foot,
            area.width,
            "the past is not known yet",
            faint(app),
        );
        return;
    };
    let columns = columns(history, app.way, plot.width);
    let highest = columns.iter().flat_map(|column| {
        let top = column.tops.last().copied();
        top.into_iter().chain(column.asked)
    });
    let scale = round_up(highest.fold(SCALE_MIN, f64::max));
    for (x, column) in (plot.x..).zip(&columns) {
        draw_column(buffer, x, plot, column, scale, app);
    }
    if plot.x > area.x {
        let width = plot.x - area.x - 1;
        put_right(
            buffer,
            area.x,
            area.y,
            width,
            &figures::rate(Some(scale)),
            faint(app),
        );
        if plot.height >= 4 {
            let half = figures::rate(Some(scale / 2.0));
            put_right(
                buffer,
                area.x,
                area.y + plot.height / 2,
                width,
                &half,
                faint(app),
            );
        }
        put_right(
            buffer,
            area.x,
            area.y + plot.height - 1,
            width,
            "0",
            faint(app),
        );
    }
    put(
        buffer,
        area.x,
        foot,
        area.width,
        &cut(app, &legend(app, history, scale), area.width.into()),
        faint(app),
    );
}

fn scale_width(width: u16) -> u16 {
    if width >= SCALE_FROM { SCALE_WIDTH } else { 0 }
}

fn legend(app: &App, history: &History, scale: f64) -> String {
    let newest = |list: &[Option<f32>]| list.last().copied().flatten().map(f64::from);
    let all = history.uplinks.iter();
    let known = all.filter_map(|uplink| newest(points(uplink, app.way)));
    let sum = known.reduce(|sum, rate| sum + rate);
    let what = match app.way {
        Way::Sent => "sent",
        Way::Received => "received",
    };
    let mut text = format!("last {}, {what}: {}", app.range.words(), figures::rate(sum));
    if app.way == Way::Sent {
        let dash = if app.look.unicode { "─" } else { "-" };
        let asked = figures::rate(newest(&history.offered));
        text += &format!("; asked for ({dash}): {asked}");
    }
    text + &format!("; height {}", figures::rate(Some(scale)))
}

fn points(uplink: &UplinkHistory, way: Way) -> &[Option<f32>] {
    match way {
        Way::Sent => &uplink.sent,
        Way::Received => &uplink.received,
    }
}

/// The columns, oldest first.
fn columns(history: &History, way: Way, width: u16) -> Vec<Column> {
    let count = history.offered.len();
    let width = usize::from(width);
    let mean = |list: &[Option<f32>], at: usize| {
        let from = at * count / width.max(1);
        let to = ((at + 1) * count / width.max(1)).max(from + 1);
        let known = list.get(from..to.min(list.len()))?.iter().flatten();
        let (number, sum) = known.fold((0, 0.0), |(n, sum), v| (n + 1, sum + f64::from(*v)));
        (number > 0).then(|| sum / f64::from(number))
    };
    (0..width)
        .map(|at| {
            let mut top = 0.0;
            let tops = history.uplinks.iter().map(|uplink| {
                top += mean(points(uplink, way), at).unwrap_or(0.0).max(0.0);
                top
            });
            Column {
                tops: tops.collect(),
                asked: mean(&history.offered, at).filter(|_| way == Way::Sent),
            }
        })
        .collect()
}

/// The next number of the form 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let all = [1.0, 2.0, 5.0].map(|digit| digit * power);
    let fits = all.into_iter().find(|rounded| *rounded >= value);
    fits.unwrap_or(10.0 * power)
}

fn draw_column(buffer: &mut Buffer, x: u16, plot: Rect, column: &Column, scale: f64, app: &App) {
    let fine = app.look.colours && app.look.unicode;
    let steps = if fine { 8 } else { 1 };
    let height = usize::from(plot.height) * steps;
    let level = |value: f64| {
        let exact = value / scale * height as f64;
        (exact.round().max(0.0) as usize).min(height)
    };
    let tops: Vec<_> = column.tops.iter().map(|top| level(*top)).collect();
    let filled = tops.last().copied().unwrap_or(0);
    for row in 0..usize::from(plot.height) {
        let bottom = row * steps;
        let y = plot.y + plot.height - 1 - u16::try_from(row).unwrap_or(0);
        let Some(cell) = buffer.cell_mut((x, y)) else {
            continue;
        };
        let Some(lower) = tops.iter().position(|top| *top > bottom) else {
            continue;
        };
        if !fine {
            cell.set_char(letter(lower));
            if app.look.colours {
                cell.set_style(colour(lower));
            }
            continue;
        }
        let part = (tops[lower] - bottom).min(8);
        cell.set_symbol(EIGHTHS[part]).set_style(colour(lower));
        let upper = tops.iter().position(|top| *top > tops[lower]);
        if let Some(upper) = upper.filter(|_| part < 8) {
            cell.set_bg(COLOURS[upper % COLOURS.len()]);
        }
    }
    let Some(asked) = column.asked.map(level) else {
        return;
    };
    let row = asked.saturating_sub(1) / steps;
    if asked > 0 && row * steps >= filled {
        let y = plot.y + plot.height - 1 - u16::try_from(row).unwrap_or(0);
        if let Some(cell) = buffer.cell_mut((x, y)) {
            cell.set_symbol(if app.look.unicode { "─" } else { "-" });
            cell.set_style(Style::new().add_modifier(Modifier::BOLD));
        }
    }
}
