//! What each key does: pure.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the keys are those of a library, and most do nothing"
)]

use std::path::PathBuf;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ropewalk_api::words::Weight;
use ropewalk_api::{Direction, PathRequest, PathUse, SchedulerRequest};
use ropewalk_dashboard::view::Uplink;

use crate::app::{App, Mode, Order, Step, Way};

/// How long an announced end is awaited, seconds: as long as with the button of the dashboard.
const LEAVING_S: u64 = 600;
/// Rows that the keys for pages go. More: quicker through many sites, harder to follow.
const PAGE: usize = 10;
/// Longest text that can be typed, characters.
const TYPED_MAX: usize = 200;

/// The keys and what they do, for all roles, a site, and a gateway with sites.
pub const ALL: [(&str, &str); 10] = [
    (
        "up, down, k, j",
        "select a row; Page Up, Page Down, Home, End, too",
    ),
    ("t", "graph: last minute, hour, day"),
    ("v", "graph: what is sent, what is received"),
    ("d", "doctor: check this machine and its gateway"),
    ("w", "write a report for support to a file"),
    ("?", "these keys"),
    ("Esc", "back"),
    ("q, Ctrl-C", "end; the gateway runs on"),
    ("Ctrl-L", "draw anew"),
    ("Ctrl-Z", "stop until `fg`"),
];
pub const OF_SITES: [(&str, &str); 5] = [
    (
        "u",
        "take the uplink out of use, or in again; asks before it takes it out",
    ),
    (
        "e",
        "announce that the uplink will end soon, or that it stays",
    ),
    ("m", "mark the uplink metered, or take the mark away"),
    ("s", "mark the uplink standby, or take the mark away"),
    ("c", "choose the scheduler"),
];
pub const OF_HUBS: [(&str, &str); 4] = [
    (
        "/",
        "find sites by name or address; Enter keeps, Esc shows all",
    ),
    ("o", "order: name, state, paths, traffic, version"),
    ("O", "the other way round"),
    ("x", "revoke the site: shut it out at once; asks first"),
];

/// Does what a key means now.
pub fn press(app: &mut App, key: KeyEvent) -> Step {
    if key.kind == KeyEventKind::Release {
        return Step::Stay;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c' | 'd') => Step::Quit,
            _ => Step::Stay,
        };
    }
    match std::mem::replace(&mut app.mode, Mode::Usual) {
        Mode::Usual => usual(app, key.code),
        Mode::Question(text, order) => question(app, key.code, text, order),
        Mode::Search => search(app, key.code),
        Mode::File(name) => file(app, key.code, name),
        Mode::Scheduler(at) => scheduler(app, key.code, at),
        Mode::Keys(from) => {
            if let Some(from) = scrolled(key.code, from) {
                app.mode = Mode::Keys(from);
            }
            Step::Stay
        }
        Mode::Text(title, text, from) => {
            if let Some(from) = scrolled(key.code, from) {
                let from = from.min(text.lines().count().saturating_sub(1));
                app.mode = Mode::Text(title, text, from);
            }
            Step::Stay
        }
    }
}

/// The line from which a text is shown then; `None` ends it.
fn scrolled(code: KeyCode, from: usize) -> Option<usize> {
    match code {
        KeyCode::Up | KeyCode::Char('k') => Some(from.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => Some(from + 1),
        KeyCode::PageUp => Some(from.saturating_sub(PAGE)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(from + PAGE),
        KeyCode::Home => Some(0),
        _ => None,
    }
}

fn question(app: &mut App, code: KeyCode, text: String, order: Order) -> Step {
    match code {
        KeyCode::Char('y' | 'Y') => give(app, order),
        KeyCode::Char('n' | 'N') | KeyCode::Esc | KeyCode::Enter => {
            app.said = Some((Weight::Good, "nothing was changed".to_owned()));
            Step::Stay
        }
        // Somebody who types on has not read the question.
        _ => {
            app.mode = Mode::Question(text, order);
            Step::Stay
        }
    }
}

/// Hands an order out, if the gateway is there for it.
fn give(app: &mut App, order: Order) -> Step {
    if app.gone.is_some() && !matches!(order, Order::Doctor | Order::Report(_)) {
        let text = "the gateway does not answer: nothing was changed".to_owned();
        app.said = Some((Weight::Bad, text));
        return Step::Stay;
    }
    app.said = Some((Weight::Good, "working on it".to_owned()));
    Step::Do(order)
}

fn typed(text: &mut String, code: KeyCode) {
    match code {
        KeyCode::Char(c) if text.chars().count() < TYPED_MAX => text.push(c),
        KeyCode::Backspace => {
            text.pop();
        }
        _ => {}
    }
}

fn search(app: &mut App, code: KeyCode) -> Step {
    match code {
        KeyCode::Enter => return Step::Stay,
        KeyCode::Esc => {
            app.search.clear();
            return Step::Stay;
        }
        KeyCode::Up => select(app, |at, _| at.saturating_sub(1)),
        KeyCode::Down => select(app, |at, _| at + 1),
        code => typed(&mut app.search, code),
    }
    app.mode = Mode::Search;
    Step::Stay
}

fn file(app: &mut App, code: KeyCode, mut name: String) -> Step {
    match code {
        KeyCode::Enter if !name.is_empty() => give(app, Order::Report(PathBuf::from(name))),
        KeyCode::Esc => Step::Stay,
        code => {
            typed(&mut name, code);
            app.mode = Mode::File(name);
            Step::Stay
        }
    }
}

fn scheduler(app: &mut App, code: KeyCode, at: usize) -> Step {
    let last = app.schedulers.len().saturating_sub(1);
    let at = match code {
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => (at + 1).min(last),
        KeyCode::Home => 0,
        KeyCode::End => last,
        KeyCode::Enter => return use_scheduler(app, at),
        _ => return Step::Stay,
    };
    app.mode = Mode::Scheduler(at);
    Step::Stay
}

fn use_scheduler(app: &mut App, at: usize) -> Step {
    let Some(kind) = app.schedulers.get(at).map(|about| about.name) else {
        return Step::Stay;
    };
    let request = SchedulerRequest {
        kind,
        direction: Direction::Both,
        site: None,
    };
    let done = format!("scheduler {kind} is in use, until the next start");
    change(app, "/v1/scheduler", &request, done)
}

fn change(
    app: &mut App,
    path: &'static str,
    request: &impl serde::Serialize,
    done: String,
) -> Step {
    match serde_json::to_value(request) {
        Ok(body) => give(app, Order::Change(path, body, done)),
        Err(_) => Step::Stay,
    }
}

fn select(app: &mut App, to: impl Fn(usize, usize) -> usize) {
    let names = app.names();
    let Some(last) = names.len().checked_sub(1) else {
        return;
    };
    let at = to(app.place(&names), last).min(last);
    app.selected = names[at].to_owned();
}

fn usual(app: &mut App, code: KeyCode) -> Step {
    match code {
        KeyCode::Char('q') => return Step::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => app.mode = Mode::Keys(0),
        KeyCode::Up | KeyCode::Char('k') => select(app, |at, _| at.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => select(app, |at, _| at + 1),
        KeyCode::PageUp => select(app, |at, _| at.saturating_sub(PAGE)),
        KeyCode::PageDown => select(app, |at, _| at + PAGE),
        KeyCode::Home => select(app, |_, _| 0),
        KeyCode::End => select(app, |_, last| last),
        KeyCode::Esc => {
            app.said = None;
            app.search.clear();
        }
        KeyCode::Char('t') => {
            app.range = app.range.next();
            app.history = None;
            return Step::Do(Order::Range(app.range));
        }
        KeyCode::Char('v') => {
            app.way = match app.way {
                Way::Sent => Way::Received,
                Way::Received => Way::Sent,
            };
        }
        KeyCode::Char('d') => return give(app, Order::Doctor),
        KeyCode::Char('w') => {
            app.mode = Mode::File(format!("ropewalk-report-{}.txt", app.now_ms / 1_000));
        }
        code if app.has_sites() => return of_hub(app, code),
        code => return of_site(app, code),
    }
    Step::Stay
}

fn of_hub(app: &mut App, code: KeyCode) -> Step {
    match code {
        KeyCode::Char('/') => {
            app.search.clear();
            app.mode = Mode::Search;
        }
        KeyCode::Char('o') => {
            app.sort = app.sort.next();
            app.reversed = false;
        }
        KeyCode::Char('O') => app.reversed = !app.reversed,
        KeyCode::Char('x') => {
            let names = app.names();
            let Some(name) = names.get(app.place(&names)) else {
                return Step::Stay;
            };
            let name = (*name).to_owned();
            let text =
                format!("Revoke {name}? It is disconnected at once, and needs a new invitation.");
            app.mode = Mode::Question(text, Order::Revoke(name));
        }
        _ => {}
    }
    Step::Stay
}

fn of_site(app: &mut App, code: KeyCode) -> Step {
    if code == KeyCode::Char('c') {
        let tunnel = app.view.as_ref().and_then(|view| view.tunnel.as_ref());
        let used = tunnel.map_or("", |tunnel| tunnel.send);
        let place = app.schedulers.iter().position(|s| s.name.name() == used);
        if !app.schedulers.is_empty() {
            app.mode = Mode::Scheduler(place.unwrap_or(0));
        }
        return Step::Stay;
    }
    let names = app.names();
    let Some(uplink) = app.uplinks().get(app.place(&names)).cloned() else {
        return Step::Stay;
    };
    let name = uplink.name.clone();
    let until = "until the next start";
    match code {
        KeyCode::Char('u') => take(app, uplink),
        KeyCode::Char('e') if uplink.state == "leaving" => {
            let request = PathRequest::new(name.clone(), PathUse::Returning);
            change(
                app,
                "/v1/paths",
                &request,
                format!("{name} is used like the others"),
            )
        }
        KeyCode::Char('e') => leave(app, &name),
        KeyCode::Char('m') => {
            let request = PathRequest {
                uplink: name.clone(),
                metered: Some(!uplink.metered),
                ..PathRequest::default()
            };
            let no = if uplink.metered { "no longer " } else { "" };
            change(
                app,
                "/v1/paths",
                &request,
                format!("{name} is {no}metered, {until}"),
            )
        }
        KeyCode::Char('s') => {
            let request = PathRequest {
                uplink: name.clone(),
                standby: Some(!uplink.standby),
                ..PathRequest::default()
            };
            let no = if uplink.standby { "no longer " } else { "" };
            change(
                app,
                "/v1/paths",
                &request,
                format!("{name} is {no}standby, {until}"),
            )
        }
        _ => Step::Stay,
    }
}

/// Whether no other uplink works.
fn is_last(app: &App, name: &str) -> bool {
    let mut others = app.uplinks().iter();
    others.all(|other| other.state != "up" || other.name == name)
}

/// Announces the end of an uplink. Where it is the last that works, `freeze` in the configuration stops senders:
/// that is asked for.
fn leave(app: &mut App, name: &str) -> Step {
    let longest = std::time::Duration::from_secs(LEAVING_S);
    let request = PathRequest::new(name.to_owned(), PathUse::Leaving(Some(longest)));
    let done = format!(
        "{name} is left: it carries traffic only while nothing else works, for 10 minutes at most"
    );
    if !is_last(app, name) {
        return change(app, "/v1/paths", &request, done);
    }
    let text = format!(
        "Announce the end of {name}? It is the last that works: senders may be stopped until another does."
    );
    if let Ok(body) = serde_json::to_value(&request) {
        app.mode = Mode::Question(text, Order::Change("/v1/paths", body, done));
    }
    Step::Stay
}

/// Takes an uplink in, or asks whether to take it out.
fn take(app: &mut App, uplink: Uplink) -> Step {
    let name = uplink.name;
    if uplink.state == "disabled" {
        let request = PathRequest::new(name.clone(), PathUse::Enabled);
        return change(app, "/v1/paths", &request, format!("{name} is used again"));
    }
    let text = if is_last(app, &name) {
        format!(
            "Take {name} out? It is the last that works: you lose this machine if you reach it \
             through the tunnel."
        )
    } else {
        format!("Take {name} out of use? Its traffic moves to the others.")
    };
    let request = PathRequest::new(name.clone(), PathUse::Disabled);
    let done = format!("{name} is out of use, until the next start");
    if let Ok(body) = serde_json::to_value(&request) {
        app.mode = Mode::Question(text, Order::Change("/v1/paths", body, done));
    }
    Step::Stay
}
