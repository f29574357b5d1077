//! The frame: pure. What is known goes in, characters come out.
//!
//! Invariant: no size of a terminal and no text of others makes this panic, and control characters in texts of
//! others never reach the terminal: ratatui leaves them out.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget, Wrap};
use ropewalk_api::words::{Weight, Words};

use crate::app::{App, Mode};
use crate::{figures, hub, keys, site};

/// Most lines for words about the whole gateway.
const WORDS_MAX: usize = 4;

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, app: &App) {
    let area = frame.area();
    if area.width == 0 || area.height == 0 {
        return;
    }
    let buffer = frame.buffer_mut();
    let head = head(buffer, area, app);
    let foot = u16::from(!app.still && area.height > head);
    let body = Rect {
        y: area.y + head,
        height: area.height - head - foot,
        ..area
    };
    match &app.mode {
        Mode::Keys(from) => texts(buffer, body, "Keys", &keys_text(app), *from, app),
        Mode::Text(title, text, from) => {
            let lines = text.lines().map(|line| Line::raw(line.to_owned()));
            texts(buffer, body, title, &lines.collect::<Vec<_>>(), *from, app);
        }
        Mode::Scheduler(at) => schedulers(buffer, body, *at, app),
        Mode::Usual | Mode::Question(..) | Mode::Search | Mode::File(_) => {
            if app.has_sites() {
                hub::draw(buffer, body, app);
            } else {
                site::draw(buffer, body, app);
            }
        }
    }
    if foot > 0 {
        let line = Rect {
            y: area.y + area.height - 1,
            height: 1,
            ..area
        };
        self::foot(buffer, line, app);
    }
}

/// What is always there: which gateway, and what is to be said of it. Its height.
fn head(buffer: &mut Buffer, area: Rect, app: &App) -> u16 {
    let mut lines = Vec::new();
    if let Some(why) = &app.gone {
        let since = figures::age(app.now_ms.saturating_sub(app.seen_ms) / 1_000);
        let old = if app.view.is_some() {
            format!("; what is below is {since} old")
        } else {
            String::new()
        };
        let text = format!("trying again{old}: {why}");
        lines.push((text, tone(app, Weight::Bad)));
    }
    if let Some(view) = &app.view {
        for words in &view.words {
            lines.push((signed(app, words), tone(app, words.weight)));
        }
    }
    let title = cut(app, &title(app), area.width.into());
    put(buffer, area.x, area.y, area.width, &title, bold());
    let room = usize::from(area.height / 4).min(WORDS_MAX);
    let mut y = area.y + 1;
    for (text, style) in lines.iter().take(room.max(1)) {
        if y < area.y + area.height {
            let text = cut(app, text, area.width.into());
            put(buffer, area.x, y, area.width, &text, *style);
            y += 1;
        }
    }
    y - area.y
}

fn title(app: &App) -> String {
    let Some(view) = &app.view else {
        return "ropewalk: waiting for the gateway".to_owned();
    };
    let state = if app.gone.is_some() {
        "no answer".to_owned()
    } else if app.has_sites() {
        hub::title(view)
    } else {
        site::title(view)
    };
    let up = figures::age(view.uptime_s.max(0.0) as u64);
    format!(
        "{}: {state}  {} {}  running for {up}, version {}",
        view.role,
        view.interface,
        view.addresses.join(" "),
        view.version
    )
}

/// The last line: what is asked or typed, what came of the last order, or keys.
fn foot(buffer: &mut Buffer, area: Rect, app: &App) {
    let Rect { x, y, width, .. } = area;
    let cursor = if app.look.unicode { "▏" } else { "_" };
    match (&app.mode, &app.said) {
        (Mode::Question(text, _), _) => {
            // The answer that is asked for stays when the question is cut.
            let answers = " [y/n]";
            let room = usize::from(width).saturating_sub(answers.len());
            let shown = cut(app, text, room);
            let style = tone(app, Weight::Worse).add_modifier(Modifier::BOLD);
            put(buffer, x, y, width, &format!("{shown}{answers}"), style);
        }
        (Mode::Search, _) => {
            let text = format!("find: {}{cursor}", app.search);
            put(buffer, x, y, width, &tail(&text, width), bold());
        }
        (Mode::File(name), _) => {
            let text = format!("write a report to: {name}{cursor}");
            put(buffer, x, y, width, &tail(&text, width), bold());
        }
        (Mode::Keys(_) | Mode::Text(..), _) => {
            put(
                buffer,
                x,
                y,
                width,
                "up, down: scroll   Esc: back",
                faint(app),
            );
        }
        (Mode::Scheduler(_), _) => {
            put(buffer, x, y, width, "Enter: use it   Esc: back", faint(app));
        }
        (Mode::Usual, Some((weight, text))) => {
            let style = tone(app, *weight).add_modifier(Modifier::BOLD);
            put(buffer, x, y, width, &cut(app, text, width.into()), style);
        }
        (Mode::Usual, None) => put(buffer, x, y, width, &hints(app, width), faint(app)),
    }
}

/// As many keys as there is room for.
fn hints(app: &App, width: u16) -> String {
    let common = ["? keys", "q quit"];
    let more: &[&str] = if app.has_sites() {
        &[
            "/ find",
            "o order",
            "x revoke",
            "t time",
            "v direction",
            "d doctor",
            "w report",
        ]
    } else {
        &[
            "u use",
            "e ends soon",
            "m metered",
            "s standby",
            "c scheduler",
            "t time",
            "v direction",
            "d doctor",
            "w report",
        ]
    };
    let mut text = String::new();
    for hint in common.iter().chain(more) {
        let gap = if text.is_empty() { "" } else { "   " };
        if text.len() + gap.len() + hint.len() <= usize::from(width) {
            text = format!("{text}{gap}{hint}");
        }
    }
    text
}

fn keys_text(app: &App) -> Vec<Line<'static>> {
    let own: &[(&str, &str)] = if app.has_sites() {
        &keys::OF_HUBS
    } else {
        &keys::OF_SITES
    };
    let line = |(key, what): &(&'static str, &'static str)| {
        Line::from(vec![
            Span::styled(format!("{key:<18}"), bold()),
            Span::raw(*what),
        ])
    };
    own.iter().chain(&keys::ALL).map(line).collect()
}

/// A text under a title, from a line on, wrapped.
fn texts(buffer: &mut Buffer, area: Rect, title: &str, lines: &[Line<'_>], from: usize, app: &App) {
    if area.height == 0 {
        return;
    }
    put(
        buffer,
        area.x,
        area.y,
        area.width,
        title,
        tone(app, Weight::Good).patch(bold()),
    );
    let below = Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    };
    let shown: Vec<_> = lines.iter().skip(from).cloned().collect();
    let wrap = Wrap { trim: false };
    Paragraph::new(shown).wrap(wrap).render(below, buffer);
}

fn schedulers(buffer: &mut Buffer, area: Rect, at: usize, app: &App) {
    if area.height == 0 {
        return;
    }
    put(
        buffer,
        area.x,
        area.y,
        area.width,
        "Scheduler, for both directions",
        bold(),
    );
    let height = usize::from(area.height - 1);
    let first = first_shown(at, app.schedulers.len(), height);
    let shown = app.schedulers.iter().enumerate().skip(first).take(height);
    for (y, (index, about)) in (area.y + 1..).zip(shown) {
        let text = format!("{:<12} {}", about.name.name(), about.description);
        let text = cut(app, &text, area.width.into());
        put(buffer, area.x, y, area.width, &text, Style::new());
        if index == at {
            highlight(buffer, area, y);
        }
    }
}

/// A column of a table: its title, its width, how soon it is left out, on which side its texts begin.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    pub width: u16,
    /// 0 is never left out; the highest goes first.
    pub rank: u8,
    pub right: bool,
}

/// A table: columns, of which one takes what the others leave.
#[derive(Debug)]
pub struct Table<'a> {
    pub columns: &'a [Column],
    pub flexible: usize,
    /// The column by whose title rows are ordered.
    pub sorted: Option<usize>,
}

impl Table<'_> {
    /// The columns for which there is room: index, place, width.
    fn fit(&self, area: Rect) -> Vec<(usize, u16, u16)> {
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let width = |kept: &[usize]| {
            let all = kept.iter().map(|index| self.columns[*index].width + 1);
            all.sum::<u16>().saturating_sub(1)
        };
        while width(&kept) > area.width {
            let highest = kept.iter().max_by_key(|index| self.columns[**index].rank);
            let Some(highest) = highest.copied() else {
                break;
            };
            if self.columns[highest].rank == 0 {
                break;
            }
            kept.retain(|index| *index != highest);
        }
        let spare = area.width.saturating_sub(width(&kept));
        let mut x = area.x;
        let end = area.x + area.width;
        let place = |index: usize| {
            let extra = if index == self.flexible { spare } else { 0 };
            let width = (self.columns[index].width + extra).min(end.saturating_sub(x));
            let placed = (index, x, width);
            x += width + u16::from(x + width < end);
            placed
        };
        kept.into_iter().map(place).collect()
    }

    /// Draws the titles and the rows from `first` on; `selected` counts from the first row of all.
    pub fn draw<'r>(
        &self,
        buffer: &mut Buffer,
        area: Rect,
        app: &App,
        rows: impl Iterator<Item = Vec<(String, Style)>> + 'r,
        selected: Option<usize>,
    ) {
        let places = self.fit(area);
        for (index, x, width) in &places {
            let column = self.columns[*index];
            let mut title = column.title.to_owned();
            if self.sorted == Some(*index) {
                title.push('*');
            }
            self.cell(
                buffer,
                (*x, area.y, *width),
                column,
                &title,
                faint(app),
                app,
            );
        }
        for (at, row) in rows
            .take(usize::from(area.height.saturating_sub(1)))
            .enumerate()
        {
            let y = area.y + 1 + u16::try_from(at).unwrap_or(u16::MAX);
            for (index, x, width) in &places {
                let (text, style) = &row[*index];
                let column = self.columns[*index];
                self.cell(buffer, (*x, y, *width), column, text, *style, app);
            }
            if selected == Some(at) {
                highlight(buffer, area, y);
            }
        }
    }

    fn cell(
        &self,
        buffer: &mut Buffer,
        (x, y, width): (u16, u16, u16),
        column: Column,
        text: &str,
        style: Style,
        app: &App,
    ) {
        let text = cut(app, text, width.into());
        if column.right {
            put_right(buffer, x, y, width, &text, style);
        } else {
            put(buffer, x, y, width, &text, style);
        }
    }
}

/// Shows a row as the selected one.
fn highlight(buffer: &mut Buffer, area: Rect, y: u16) {
    let row = Rect {
        y,
        height: 1,
        ..area
    };
    let style = Style::new().add_modifier(Modifier::REVERSED);
    buffer.set_style(row.intersection(buffer.area), style);
}

/// The first of `count` rows that is shown where `height` fit and the selected one is to be among them.
pub fn first_shown(selected: usize, count: usize, height: usize) -> usize {
    selected
        .saturating_sub(height / 2)
        .min(count.saturating_sub(height))
}

/// Writes a text into a line, at most `width` columns of it.
pub fn put(buffer: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) {
    if buffer.area.contains((x, y).into()) {
        buffer.set_stringn(x, y, text, width.into(), style);
    }
}

/// The same at the right end.
pub fn put_right(buffer: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) {
    let pad = usize::from(width).saturating_sub(columns(text));
    let pad = u16::try_from(pad).unwrap_or(0);
    put(buffer, x + pad, y, width - pad, text, style);
}

/// How many columns a character takes; control characters take none, as they are left out.
fn wide(c: char) -> usize {
    if c.is_control() {
        return 0;
    }
    Span::raw(&*c.encode_utf8(&mut [0; 4])).width()
}

/// How many columns a text takes.
fn columns(text: &str) -> usize {
    text.chars().map(wide).sum()
}

/// As much of a text as fits, with a sign where something is missing.
pub fn cut(app: &App, text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let sign = if app.look.unicode { "…" } else { "~" };
    let mut left = width.saturating_sub(1);
    let mut out = String::new();
    for c in text.chars() {
        let Some(rest) = left.checked_sub(wide(c)) else {
            break;
        };
        left = rest;
        out.push(c);
    }
    out + if width > 0 { sign } else { "" }
}

/// The end of a text that is being typed.
fn tail(text: &str, width: u16) -> String {
    let all: Vec<char> = text.chars().collect();
    let mut left = usize::from(width);
    let mut from = all.len();
    while from > 0 {
        let Some(rest) = left.checked_sub(wide(all[from - 1])) else {
            break;
        };
        left = rest;
        from -= 1;
    }
    all[from..].iter().collect()
}

/// Words with a sign beside the colour.
pub fn signed(app: &App, words: &Words) -> String {
    format!("{} {}", sign(app, words.weight), words.text)
}

/// The sign of a weight.
pub fn sign(app: &App, weight: Weight) -> &'static str {
    match (weight, app.look.unicode) {
        (Weight::Good, true) => "✓",
        (Weight::Good, false) => "+",
        (Weight::Worse, _) => "!",
        (Weight::Bad, true) => "✗",
        (Weight::Bad, false) => "x",
    }
}

/// The style of a weight.
pub fn tone(app: &App, weight: Weight) -> Style {
    let colour = match weight {
        Weight::Good => Color::Green,
        Weight::Worse => Color::Yellow,
        Weight::Bad => Color::Red,
    };
    if app.look.colours {
        Style::new().fg(colour)
    } else {
        Style::new()
    }
}

/// Of what matters less.
pub fn faint(app: &App) -> Style {
    if app.look.colours {
        Style::new().add_modifier(Modifier::DIM)
    } else {
        Style::new()
    }
}

pub fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// What happened, newest first, under a title.
pub fn happened(buffer: &mut Buffer, area: Rect, app: &App) {
    if area.height < 2 {
        return;
    }
    put(buffer, area.x, area.y, area.width, "What happened", bold());
    let newest = app.happened.iter().rev();
    for (y, event) in (area.y + 1..area.y + area.height).zip(newest) {
        let ago = figures::age(app.ago_s(event.at_s));
        let text = format!("{ago:>7} ago  {}", event.what);
        let text = cut(app, &text, area.width.into());
        put(buffer, area.x, y, area.width, &text, Style::new());
    }
}

/// The heights of the parts below the title: graph, table, details, what happened.
pub fn heights(body: u16, rows: usize, details: u16) -> [u16; 4] {
    let graph = if body >= 12 {
        (body / 3).clamp(5, 14)
    } else {
        0
    };
    let details = match body {
        0..5 => 0,
        5..8 => 1,
        8..12 => details.min(2),
        _ => details,
    };
    let happened = if body >= 20 { 5 } else { 0 };
    let table = body - graph - details - happened;
    let wanted = u16::try_from(rows + 1).unwrap_or(u16::MAX).max(2);
    let table = table.min(wanted);
    [graph, table, details, body - graph - table - details]
}

/// The parts one below the other.
pub fn stack(area: Rect, heights: [u16; 4]) -> [Rect; 4] {
    let mut y = area.y;
    heights.map(|height| {
        let part = Rect { y, height, ..area };
        y += height;
        part
    })
}

/// A text in a few lines, wrapped.
pub fn wrapped(buffer: &mut Buffer, area: Rect, text: Line<'_>) {
    Paragraph::new(text)
        .wrap(Wrap { trim: true })
        .render(area, buffer);
}
