//! What is known of the gateway, and what the person at the terminal wants to see of it: pure.
//!
//! Invariant: an order that interrupts traffic comes only after a question was answered with `y`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::PathBuf;

use ratatui::crossterm::event::KeyEvent;
use ropewalk_api::words::Weight;
use ropewalk_api::{Happened, History, SchedulerAbout, SiteStatus};
use ropewalk_dashboard::view::{Uplink, View};
use serde_json::Value;

use crate::{Look, keys};

/// How far the graph reaches back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
    /// The last day.
    Day,
}

/// What the graph shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From this machine.
    Sent,
    /// To this machine.
    Received,
}

/// By what sites are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// By name.
    Name,
    /// What is not well first.
    State,
    /// By paths that work, fewest first.
    Paths,
    /// By traffic of the last seconds, most first.
    Traffic,
    /// By the version of the wire, oldest first.
    Version,
}

/// What is in the way of the usual picture.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// Nothing.
    Usual,
    /// A question that `y` answers.
    Question(String, Order),
    /// What is looked for is being typed.
    Search,
    /// The name of the file for a report is being typed.
    File(String),
    /// A scheduler is being chosen: its place in the list.
    Scheduler(usize),
    /// The list of keys; from this line.
    Keys(usize),
    /// A text with a title; from this line.
    Text(&'static str, String, usize),
}

/// Something to do outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Another range of the history is wanted.
    Range(Range),
    /// A request of the API: path and body; what to say when it is done.
    Change(&'static str, Value, String),
    /// Check everything.
    Doctor,
    /// Write the report for support to this new file.
    Report(PathBuf),
    /// Shut this site out.
    Revoke(String),
}

/// What a key came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing but another picture.
    Stay,
    /// Something to do.
    Do(Order),
    /// The end.
    Quit,
}

/// What comes from the gateway.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A look at this time, milliseconds since 1970.
    Looked(u64, Result<Box<View>, String>),
    /// Points of a range.
    History(Range, History),
    /// What happened, oldest first.
    Happened(Vec<Happened>),
    /// The schedulers there are.
    Schedulers(Vec<SchedulerAbout>),
    /// What an order came to.
    Said(Weight, String),
    /// A text to read.
    Text(&'static str, String),
}

/// All of it.
#[derive(Clone, Debug)]
pub struct App {
    pub look: Look,
    /// Without keys and their hints.
    pub still: bool,
    pub view: Option<View>,
    /// Why the gateway does not answer.
    pub gone: Option<String>,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// When the view came.
    pub seen_ms: u64,
    pub range: Range,
    pub way: Way,
    pub history: Option<History>,
    pub happened: Vec<Happened>,
    pub schedulers: Vec<SchedulerAbout>,
    /// The name of the uplink or site; it stays where it is in another order.
    pub selected: String,
    pub sort: Sort,
    pub reversed: bool,
    pub search: String,
    /// Inner bit/s to and from each site, since the last look.
    pub rates: BTreeMap<String, (f64, f64)>,
    pub mode: Mode,
    /// What the last order came to.
    pub said: Option<(Weight, String)>,
}

impl Range {
    /// The next one.
    pub const fn next(self) -> Self {
        match self {
            Self::Minute => Self::Hour,
            Self::Hour => Self::Day,
            Self::Day => Self::Minute,
        }
    }

    /// Its name in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// The request for it. A minute is the end of what the gateway has in its finest steps.
    pub const fn request(self) -> &'static str {
        match self {
            Self::Minute => "/v1/history?range=minutes&last=60",
            Self::Hour => "/v1/history?range=hour",
            Self::Day => "/v1/history?range=day",
        }
    }
}

impl std::str::FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Minute, Self::Hour, Self::Day];
        let found = all.into_iter().find(|range| range.words() == text);
        found.ok_or_else(|| "take minute, hour or day".to_owned())
    }
}

impl Sort {
    /// The next one.
    pub const fn next(self) -> Self {
        match self {
            Self::Name => Self::State,
            Self::State => Self::Paths,
            Self::Paths => Self::Traffic,
            Self::Traffic => Self::Version,
            Self::Version => Self::Name,
        }
    }

    /// Its name in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::State => "state",
            Self::Paths => "paths",
            Self::Traffic => "traffic",
            Self::Version => "version",
        }
    }
}

impl App {
    /// Nothing is known yet.
    pub fn new(look: Look, range: Range) -> Self {
        Self {
            look,
            still: false,
            view: None,
            gone: None,
            now_ms: 0,
            seen_ms: 0,
            range,
            way: Way::Sent,
            history: None,
            happened: Vec::new(),
            schedulers: Vec::new(),
            selected: String::new(),
            sort: Sort::Name,
            reversed: false,
            search: String::new(),
            rates: BTreeMap::new(),
            mode: Mode::Usual,
            said: None,
        }
    }

    /// Takes news.
    pub fn news(&mut self, news: News) {
        match news {
            News::Looked(now_ms, Ok(view)) => self.looked(now_ms, *view),
            News::Looked(now_ms, Err(why)) => {
                self.now_ms = now_ms;
                self.gone = Some(why);
            }
            News::History(range, history) => {
                if range == self.range {
                    self.history = Some(shortened(range, history));
                }
            }
            News::Happened(happened) => self.happened = happened,
            News::Schedulers(schedulers) => self.schedulers = schedulers,
            News::Said(weight, text) => self.said = Some((weight, text)),
            News::Text(title, text) => {
                self.said = None;
                // A question that is open comes first: a key for it must not scroll.
                if self.mode == Mode::Usual {
                    self.mode = Mode::Text(title, text, 0);
                } else {
                    self.said = Some((Weight::Worse, format!("{title}: ready, ask again")));
                }
            }
        }
    }

    fn looked(&mut self, now_ms: u64, view: View) {
        let seconds = now_ms.saturating_sub(self.seen_ms) as f64 / 1e3;
        let old = self.view.take().filter(|_| self.gone.is_none());
        if let Some(old) = old.filter(|_| seconds > 0.0) {
            let before: BTreeMap<_, _> = old.sites.iter().map(|s| (s.name.as_str(), s)).collect();
            let rate = |now: u64, then: u64| {
                let bytes = now.checked_sub(then)?;
                Some(8.0 * bytes as f64 / seconds)
            };
            let of = |site: &SiteStatus| {
                let then = before.get(site.name.as_str())?;
                let to = rate(site.sent_bytes, then.sent_bytes)?;
                let from = rate(site.received_bytes, then.received_bytes)?;
                Some((site.name.clone(), (to, from)))
            };
            self.rates = view.sites.iter().filter_map(of).collect();
        } else if self.gone.is_some() {
            self.rates.clear();
        }
        self.gone = None;
        self.now_ms = now_ms;
        self.seen_ms = now_ms;
        self.view = Some(view);
    }

    /// Seconds since something happened at `at_s`, seconds since 1970.
    pub fn ago_s(&self, at_s: u64) -> u64 {
        (self.now_ms / 1_000).saturating_sub(at_s)
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> Step {
        keys::press(self, key)
    }

    /// The uplinks of a site.
    pub fn uplinks(&self) -> &[Uplink] {
        let tunnel = self.view.as_ref().and_then(|view| view.tunnel.as_ref());
        tunnel.map_or(&[], |tunnel| &tunnel.uplinks)
    }

    /// Whether this is a gateway with sites.
    pub fn has_sites(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.role != "site")
    }

    /// The sites that match what is looked for, in the wanted order.
    pub fn sites(&self) -> Vec<&SiteStatus> {
        let wanted = self.search.to_lowercase();
        let fits = |site: &&SiteStatus| {
            wanted.is_empty()
                || site.name.to_lowercase().contains(&wanted)
                || site.addresses.contains(&wanted)
        };
        let all = self.view.as_ref().map_or(&[][..], |view| &view.sites);
        let mut sites: Vec<_> = all.iter().filter(fits).collect();
        sites.sort_by(|a, b| {
            let order = self.order(a, b).then_with(|| a.name.cmp(&b.name));
            if self.reversed {
                order.reverse()
            } else {
                order
            }
        });
        sites
    }

    fn order(&self, a: &SiteStatus, b: &SiteStatus) -> Ordering {
        match self.sort {
            Sort::Name => Ordering::Equal,
            Sort::State => weight(b).cmp(&weight(a)),
            Sort::Paths => a.paths.cmp(&b.paths),
            Sort::Traffic => self.traffic(b).total_cmp(&self.traffic(a)),
            Sort::Version => a.wire.cmp(&b.wire),
        }
    }

    /// Inner bit/s of a site, both directions.
    fn traffic(&self, site: &SiteStatus) -> f64 {
        self.rates
            .get(&site.name)
            .map_or(0.0, |(to, from)| to + from)
    }

    /// Names of the rows, in their order.
    pub fn names(&self) -> Vec<&str> {
        if self.has_sites() {
            self.sites().iter().map(|site| site.name.as_str()).collect()
        } else {
            self.uplinks().iter().map(|u| u.name.as_str()).collect()
        }
    }

    /// The row that is selected among these names; the first one if the wanted one is not there.
    pub fn place(&self, names: &[&str]) -> usize {
        let found = names.iter().position(|name| *name == self.selected);
        found.unwrap_or(0)
    }
}

/// How bad the state of a site is.
pub fn weight(site: &SiteStatus) -> Weight {
    if !site.up {
        Weight::Bad
    } else if site.words.is_empty() {
        Weight::Good
    } else {
        Weight::Worse
    }
}

/// Only the last minute, where that is wanted: a hub's points are seconds apart.
fn shortened(range: Range, mut history: History) -> History {
    if range != Range::Minute {
        return history;
    }
    let count = (60 / history.step_s.max(1)).max(2) as usize;
    let cut = |list: &mut Vec<Option<f32>>| {
        list.drain(..list.len().saturating_sub(count));
    };
    cut(&mut history.offered);
    cut(&mut history.up);
    for uplink in &mut history.uplinks {
        cut(&mut uplink.sent);
        cut(&mut uplink.received);
        cut(&mut uplink.rtt_ms);
        cut(&mut uplink.loss);
    }
    history
}
