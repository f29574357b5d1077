//! A site: the graph, its uplinks with their state in words, what the scheduler does, what happened.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ropewalk_api::words::Weight;
use ropewalk_dashboard::view::{Uplink, View};

use crate::app::App;
use crate::draw::{Column, Table, first_shown, happened, heights, put, sign, stack, tone, wrapped};
use crate::{figures, graph};

const fn column(title: &'static str, width: u16, rank: u8) -> Column {
    Column {
        title,
        width,
        rank,
        right: rank > 0,
    }
}

/// What an uplink shows; the state takes what the others leave.
const COLUMNS: [Column; 8] = [
    column("", 1, 0),
    column("UPLINK", 8, 0),
    column("STATE", 24, 0),
    column("SENDS", 11, 2),
    column("RECEIVES", 11, 3),
    column("TRIP", 8, 1),
    column("LOSS", 6, 4),
    column("USED", 8, 5),
];
const STATE: usize = 2;
/// Longest name of an uplink that is shown whole, columns: Linux has 15.
const NAME_MAX: usize = 15;
/// Lines for what there is to say of the selected uplink and then of the tunnel, and in a terminal with room.
const DETAILS: u16 = 4;
const DETAILS_ROOM: u16 = 5;
/// Lines below the title from which there is room.
const ROOM: u16 = 26;

/// The state of the whole in a few words.
pub fn title(view: &View) -> String {
    let Some(tunnel) = &view.tunnel else {
        return "the gateway starts".to_owned();
    };
    let up = tunnel.uplinks.iter().filter(|u| u.state == "up").count();
    let state = if tunnel.up {
        "tunnel up"
    } else {
        "TUNNEL DOWN"
    };
    let count = tunnel.uplinks.len();
    let plural = if count == 1 {
        "uplink works"
    } else {
        "uplinks work"
    };
    format!("{state}, {up} of {count} {plural}")
}

/// Draws a site.
pub fn draw(buffer: &mut Buffer, area: Rect, app: &App) {
    let uplinks = app.uplinks();
    let about = if area.height >= ROOM {
        DETAILS_ROOM
    } else {
        DETAILS
    };
    let [top, table, details, below] = stack(area, heights(area.height, uplinks.len(), about));
    graph::draw(buffer, top, app);
    if uplinks.is_empty() {
        let text = "no uplinks";
        put(
            buffer,
            table.x,
            table.y,
            table.width,
            text,
            tone(app, Weight::Worse),
        );
    } else {
        rows(buffer, table, app);
    }
    self::details(buffer, details, app);
    happened(buffer, below, app);
}

fn rows(buffer: &mut Buffer, area: Rect, app: &App) {
    let uplinks = app.uplinks();
    let selected = app.place(&app.names());
    let height = usize::from(area.height.saturating_sub(1));
    let first = first_shown(selected, uplinks.len(), height);
    let longest = uplinks.iter().map(|u| name(u).chars().count()).max();
    let mut columns = COLUMNS;
    if area.width >= 60 {
        let width = longest.unwrap_or(0).clamp(6, NAME_MAX + 10);
        columns[1].width = u16::try_from(width).unwrap_or(8);
    }
    let table = Table {
        columns: &columns,
        flexible: STATE,
        sorted: None,
    };
    let shown = uplinks.iter().skip(first).map(|uplink| row(app, uplink));
    let marked = (!app.still).then(|| selected - first);
    table.draw(buffer, area, app, shown, marked);
}

fn name(uplink: &Uplink) -> String {
    let mut name: String = uplink.name.chars().take(NAME_MAX).collect();
    for (set, mark) in [(uplink.standby, " [s]"), (uplink.metered, " [m]")] {
        if set {
            name.push_str(mark);
        }
    }
    name
}

/// The words of the gateway; of one that knows none, the name of the state.
fn words(uplink: &Uplink) -> (Weight, String) {
    let all: Vec<_> = uplink.words.iter().map(|w| w.text.as_str()).collect();
    let weight = uplink.words.iter().map(|words| words.weight).max();
    match weight {
        Some(weight) => (weight, all.join("; ")),
        None if uplink.state == "up" => (Weight::Good, uplink.state.clone()),
        None => (Weight::Worse, uplink.state.clone()),
    }
}

fn row(app: &App, uplink: &Uplink) -> Vec<(String, Style)> {
    let (weight, text) = words(uplink);
    let points = app.view.as_ref().map(|view| &view.points);
    let newest = points.and_then(|p| p.uplinks.iter().find(|u| u.name == uplink.name));
    let rate = |list: Option<&Vec<Option<f32>>>| {
        figures::rate(list.and_then(|list| list.last().copied().flatten().map(f64::from)))
    };
    let carries = matches!(uplink.state.as_str(), "up" | "leaving");
    let known = |text: String| if carries { text } else { "-".to_owned() };
    let plain = |text: String| (text, Style::new());
    vec![
        graph::mark(app, &uplink.name),
        plain(name(uplink)),
        (format!("{} {text}", sign(app, weight)), tone(app, weight)),
        plain(rate(newest.map(|u| &u.sent))),
        plain(rate(newest.map(|u| &u.received))),
        plain(known(figures::millis(uplink.rtt_ms))),
        plain(known(figures::percent(uplink.loss))),
        plain(figures::bytes(uplink.sent_bytes + uplink.received_bytes)),
    ]
}

/// All that there is to say of the selected uplink, and below of the tunnel.
fn details(buffer: &mut Buffer, area: Rect, app: &App) {
    let Some(tunnel) = app.view.as_ref().and_then(|view| view.tunnel.as_ref()) else {
        return;
    };
    let about_tunnel = area.height.saturating_sub(2);
    let upper = Rect {
        height: area.height - about_tunnel,
        ..area
    };
    let names = app.names();
    if let Some(uplink) = app.uplinks().get(app.place(&names)) {
        wrapped(buffer, upper, Line::raw(about(uplink)));
    }
    let lower = Rect {
        y: upper.y + upper.height,
        height: about_tunnel,
        ..area
    };
    let scheduler = if tunnel.send == tunnel.receive {
        tunnel.send.to_owned()
    } else {
        format!("{} sending, {} receiving", tunnel.send, tunnel.receive)
    };
    let mut parts = vec![format!("scheduler {scheduler}")];
    if !tunnel.reason.is_empty() {
        parts[0] = format!("{}; sending: {}", parts[0], tunnel.reason);
    }
    if !tunnel.protection.is_empty() {
        parts.push(format!("protection {}", tunnel.protection));
    }
    if let Some(switch) = app.view.as_ref().and_then(|v| v.kill_switch.as_ref()) {
        parts.push(if switch.is_set {
            format!("kill switch on, {} packets refused", switch.refused)
        } else {
            "kill switch off: traffic may leave beside the tunnel".to_owned()
        });
    }
    wrapped(buffer, lower, Line::raw(parts.join("; ")));
}

fn about(uplink: &Uplink) -> String {
    let via = match uplink.via.as_str() {
        "quic" => "UDP (QUIC)",
        "tls" => "TCP (TLS)",
        _ => "no connection",
    };
    let mut text = format!("{}: {}; {via}", uplink.name, words(uplink).1);
    if !uplink.remote.is_empty() {
        text += &format!(" to {}", uplink.remote);
    }
    if uplink.state == "up" {
        text += &format!(
            "; {} round trip, {} lost",
            figures::millis(uplink.rtt_ms),
            figures::percent(uplink.loss)
        );
        let full = [
            (uplink.hub_full_mbit, "from"),
            (uplink.full_mbit, "towards"),
        ];
        for (rate, way) in full {
            if let Some(rate) = rate {
                text += &format!("; at most {rate:.1} Mbit/s {way} the hub");
            }
        }
    }
    for (set, mark) in [(uplink.standby, "standby"), (uplink.metered, "metered")] {
        if set {
            text += &format!("; marked {mark}");
        }
    }
    text
}
