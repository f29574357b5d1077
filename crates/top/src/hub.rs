//! A gateway with sites: the graph of all together, the table of sites, what happened.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ropewalk_api::SiteStatus;
use ropewalk_api::words::Weight;
use ropewalk_dashboard::view::View;

use crate::app::{App, Sort, weight};
use crate::draw::{Column, Table, first_shown, happened, heights, put, sign, stack, tone, wrapped};
use crate::{figures, graph};

const fn column(title: &'static str, width: u16, rank: u8, right: bool) -> Column {
    Column {
        title,
        width,
        rank,
        right,
    }
}

/// What a site shows; the state takes what the others leave.
const COLUMNS: [Column; 8] = [
    column("SITE", 12, 0, false),
    column("STATE", 20, 0, false),
    column("PATHS", 8, 1, true),
    column("TO IT", 11, 2, true),
    column("FROM IT", 11, 3, true),
    column("TOTAL", 8, 5, true),
    column("VERSION", 8, 4, true),
    column("ADDRESS", 15, 6, false),
];
const STATE: usize = 1;
/// Longest name that is shown whole where there is room, columns.
const NAME_MAX: usize = 24;
/// Lines for what there is to say of the selected site.
const DETAILS: u16 = 2;

/// The state of the whole in a few words.
pub fn title(view: &View) -> String {
    let up = view.sites.iter().filter(|site| site.up).count();
    let count = view.sites.len();
    let plural = if count == 1 { "site is" } else { "sites are" };
    format!(
        "{} of {} {plural} connected",
        figures::thousands(up),
        figures::thousands(count)
    )
}

/// Draws a gateway with sites.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let sites = app.sites();
    // One line says what is looked for, and how the rest is ordered.
    let [top, table, details, below] = stack(area, heights(area.height, sites.len() + 1, DETAILS));
    graph::draw(buffer, top, app);
    let all = app.view.as_ref().map_or(0, |view| view.sites.len());
    let order = if app.reversed { ", reversed" } else { "" };
    let found = if app.search.is_empty() {
        String::new()
    } else {
        format!(
            "{} of {} match \"{}\"; ",
            figures::thousands(sites.len()),
            figures::thousands(all),
            app.search
        )
    };
    let text = format!("{found}ordered by {}{order}", app.sort.words());
    put(buffer, table.x, table.y, table.width, &text, Style::new());
    let lower = Rect {
        y: table.y + 1,
        height: table.height.saturating_sub(1),
        ..table
    };
    if lower.height > 0 && all == 0 && app.view.is_some() {
        let text = "no sites: invite one with `ropewalk invite NAME`";
        put(buffer, lower.x, lower.y, lower.width, text, Style::new());
    } else if lower.height > 0 {
        rows(buffer, lower, app, &sites);
    }
    let selected = app.place(&app.names());
    if let Some(site) = sites.get(selected) {
        let addresses = if site.addresses.is_empty() {
            String::new()
        } else {
            format!(" ({})", site.addresses)
        };
        let text = format!("{}{addresses}: {}", site.name, state(site));
        wrapped(buffer, details, Line::raw(text));
    }
    happened(buffer, below, app);
}

fn rows(buffer: &mut Buffer, area: Rect, app: &App, sites: &[&SiteStatus]) {
    let names: Vec<_> = sites.iter().map(|site| site.name.as_str()).collect();
    let selected = app.place(&names);
    let height = usize::from(area.height.saturating_sub(1));
    let first = first_shown(selected, sites.len(), height);
    let shown = &sites[first..sites.len().min(first + height)];
    let mut columns = COLUMNS;
    if area.width >= 60 {
        let longest = shown.iter().map(|site| site.name.chars().count()).max();
        let width = longest.unwrap_or(0).clamp(6, NAME_MAX);
        columns[0].width = u16::try_from(width).unwrap_or(12);
    }
    let table = Table {
        columns: &columns,
        flexible: STATE,
        sorted: Some(match app.sort {
            Sort::Name => 0,
            Sort::State => 1,
            Sort::Paths => 2,
            Sort::Traffic => 3,
            Sort::Version => 6,
        }),
    };
    let marked = (!app.still).then(|| selected - first);
    let cells = shown.iter().map(|site| row(app, site));
    table.draw(buffer, area, app, cells, marked);
}

/// What is not well, in the words of the gateway.
fn state(site: &SiteStatus) -> String {
    let wrong = site.words.iter();
    let wrong: Vec<_> = wrong
        .map(|(uplink, said)| format!("{uplink}: {}", said.text))
        .collect();
    match (site.up, wrong.is_empty()) {
        (false, _) => "not connected".to_owned(),
        (true, true) => "well".to_owned(),
        (true, false) => wrong.join("; "),
    }
}

fn row(app: &App, site: &SiteStatus) -> Vec<(String, Style)> {
    let weight: Weight = weight(site);
    let rates = app.rates.get(&site.name);
    let plain = |text: String| (text, Style::new());
    let [up, all] = site.paths;
    vec![
        plain(site.name.clone()),
        (
            format!("{} {}", sign(app, weight), state(site)),
            tone(app, weight),
        ),
        plain(format!("{up} of {all}")),
        plain(figures::rate(rates.map(|(to, _)| *to))),
        plain(figures::rate(rates.map(|(_, from)| *from))),
        plain(figures::bytes(site.sent_bytes + site.received_bytes)),
        plain(if site.wire == 0 {
            "-".to_owned()
        } else {
            site.wire.to_string()
        }),
        plain(site.addresses.clone()),
    ]
}
