//! The downloads over time as SVG: each uplink alone as a line, the tunnel as an area behind them.

use std::fmt::Write as _;

use super::{Outcome, page};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
/// Room for axes and names.
const LEFT: f64 = 56.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 36.0;
/// Colours of lines (Okabe and Ito, which people with colour blindness can tell apart); the first is the tunnel's.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999",
];

/// Draws; the tunnel is the last of `outcomes`.
pub(super) fn draw(outcomes: &[Outcome]) -> String {
    let seconds = outcomes
        .iter()
        .map(|one| one.series().len())
        .max()
        .unwrap_or(1)
        .max(2);
    let most = outcomes
        .iter()
        .flat_map(Outcome::series)
        .copied()
        .fold(1.0, f64::max);
    let step = step(most);
    let top = (most / step).ceil() * step;
    let x = |second: usize| LEFT + (WIDTH - LEFT - RIGHT) * second as f64 / (seconds - 1) as f64;
    let y = |mbit: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - mbit / top);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Download over each uplink alone and through Ropewalk, Mbit/s</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    svg += &axes(top, step, seconds, y);
    // The tunnel first, so that the lines lie above its area.
    for (place, one) in outcomes.iter().rev().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let points: Vec<String> = one
            .series()
            .iter()
            .enumerate()
            .map(|(second, mbit)| format!("{:.1},{:.1}", x(second), y(*mbit)))
            .collect();
        let line = points.join(" ");
        if place == 0 {
            let (from, to) = (x(0), x(one.series().len().max(1) - 1));
            let floor = y(0.0);
            let _ = writeln!(
                svg,
                "<polygon points=\"{from:.1},{floor:.1} {line} {to:.1},{floor:.1}\" fill=\"{colour}\" fill-opacity=\"0.2\"/>"
            );
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{} {:.1}</text>",
            if place == 0 { 2.5 } else { 1.5 },
            WIDTH - RIGHT + 10.0,
            TOP + 12.0 + 18.0 * place as f64,
            escaped(&one.name),
            one.goodput()
        );
    }
    svg + "</svg>\n"
}

/// Grid lines with their rates, and the time below.
fn axes(top: f64, step: f64, seconds: usize, y: impl Fn(f64) -> f64) -> String {
    let mut svg = String::new();
    let mut mbit = 0.0;
    while mbit <= top + step / 2.0 {
        let at = y(mbit);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{mbit:.0}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
        mbit += step;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"14\">Mbit/s</text>\
         <text x=\"{LEFT}\" y=\"{:.1}\">0 s</text>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} s</text>",
        HEIGHT - 14.0,
        WIDTH - RIGHT,
        HEIGHT - 14.0,
        seconds - 1
    );
    svg
}

/// A round distance of grid lines that makes four to ten of them.
fn step(most: f64) -> f64 {
    let magnitude = 10_f64.powf((most / 4.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = steps
        .into_iter()
        .find(|step| most / (step * magnitude) <= 8.0);
    fits.unwrap_or(10.0) * magnitude
}

/// The text of a name; longer ones are cut.
fn escaped(name: &str) -> String {
    let cut: String = name.chars().take(16).collect();
    page::escaped(&cut)
}
