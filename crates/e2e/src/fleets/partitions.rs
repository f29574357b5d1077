//! Trial: a hub is cut off from others, and no address is at two places for long.
//!
//! Every route to the site that a hub tells routers is noted with the time of the kernel. And through each hub
//! the server sends the site packets of that hub's own: what the site gets says which hubs deliver.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};
use ropewalk_testbed::Process;
use ropewalk_testbed::gateway::Gateway;
use serde::Serialize;

use super::call::{Traffic, ms};
use super::{Cut, Fleet, FleetSpec, NAMES, Row, TABLE, want};

/// Every cut that is tried.
pub const ALL: [Cut; 6] = [
    Cut::Sites,
    Cut::FromSites,
    Cut::ToSites,
    Cut::Etcd,
    Cut::SitesAndEtcd,
    Cut::All,
];

/// Figures of a cut.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Whether the site moved to another hub.
    pub moved: bool,
    /// Longest silence of the call, milliseconds.
    pub gap_ms: f64,
    /// From the cut until the server's route led to the other hub, milliseconds.
    pub rerouted_ms: Option<f64>,
    /// Packets that each hub delivered to the site, by number.
    pub delivered: Vec<usize>,
    /// Longest time in which two hubs delivered packets to the site, milliseconds.
    pub both_deliver_ms: f64,
    /// Longest time in which two hubs announced the site's address, milliseconds.
    pub both_announce_ms: f64,
    /// How much of that was after the end of the cut, milliseconds.
    pub both_announce_after_ms: f64,
}

/// Most that two hubs may deliver or announce, milliseconds. A hub that reaches neither site nor etcd cannot hear that
/// it is not asked any more: then this counts from the end of the cut on.
pub const TWO_PLACES_MS: f64 = 2_000.0;
/// How long a hub is cut off.
const LASTS: Duration = Duration::from_secs(6);
/// How long the site has to connect to its spare at the start.
const START: Duration = Duration::from_secs(3);
/// How long things settle after a cut: a site tries a spare every 5 s.
const SETTLE: Duration = Duration::from_secs(8);
/// Time between two packets through a hub.
const INTERVAL: Duration = Duration::from_millis(10);
/// A hub delivers from one packet to the next if they are no further apart than this.
const APART: Duration = Duration::from_millis(200);
const PORT: u16 = 7_009;

/// Tries these cuts one after the other.
///
/// # Errors
/// A part does not start. Bounds that do not hold are no error.
pub fn run(cuts: &[Cut]) -> Result<Vec<Row<Figures>>> {
    let fleet = Fleet::new(&FleetSpec::new("parts"))?;
    let site = fleet.site(0)?;
    let address = site.status()?.address(false);
    let address = address.context("the site has no inner address")?;
    for hub in 0..NAMES.len() {
        lead_through(&fleet, hub)?;
    }
    std::thread::sleep(START);
    cuts.iter()
        .map(|cut| one(&fleet, &site, address, *cut))
        .collect()
}

fn one(fleet: &Fleet, site: &Gateway, address: IpAddr, cut: Cut) -> Result<Row<Figures>> {
    let serving = fleet.serving(site)?;
    eprintln!("hub {} is {}", NAMES[serving], cut.words());
    let seen = Announced::begin(fleet)?;
    let through = Through::begin(fleet, address)?;
    let traffic = Traffic::start(&fleet.endpoints())?;
    std::thread::sleep(Duration::from_secs(2));
    let from = traffic.now();
    let begin_s = now_s();
    fleet.cut(serving, cut)?;
    std::thread::sleep(LASTS);
    let end_s = now_s();
    fleet.mend(serving)?;
    let moved = fleet.serving(site)? != serving;
    std::thread::sleep(SETTLE);
    let to = traffic.now();
    let over_s = now_s();
    let heard = traffic.finish()?;
    let delivered = through.end()?;
    let changes = seen.end(&address.to_string());
    let after = |from: f64, to: f64| 1e3 * (to - from.max(end_s)).max(0.0);
    let two = at_two_hubs(&changes.hubs, over_s);
    let figures = Figures {
        moved,
        gap_ms: ms(heard.gap((from, to))),
        rerouted_ms: changes
            .rerouted(begin_s, serving)
            .map(|at_s| 1e3 * (at_s - begin_s)),
        delivered: (0..NAMES.len())
            .map(|hub| delivered.iter().filter(|(by, _)| *by == hub).count())
            .collect(),
        both_deliver_ms: ms(together(&delivered)),
        both_announce_ms: longest(two.iter().map(|(from, to)| 1e3 * (to - from))),
        both_announce_after_ms: longest(two.iter().map(|(from, to)| after(*from, *to))),
    };
    let (mut broken, slow) = judge(cut, &figures);
    want(&mut broken, heard.broken.is_empty(), || {
        format!("connections broke: {:?}", heard.broken)
    });
    Ok(Row {
        trial: format!("hub {}", cut.words()),
        figures,
        broken,
        slow,
    })
}

fn judge(cut: Cut, figures: &Figures) -> (Vec<String>, Vec<String>) {
    let (mut broken, mut slow) = (Vec::new(), Vec::new());
    let should = cut != Cut::Etcd;
    want(&mut broken, figures.moved == should, || {
        let did = if figures.moved {
            "moved"
        } else {
            "did not move"
        };
        format!("the site {did}")
    });
    // Otherwise the packets would prove nothing.
    let delivering = figures.delivered.iter().filter(|count| **count > 0).count();
    want(&mut broken, delivering == 1 + usize::from(should), || {
        format!("the hubs delivered {:?} packets", figures.delivered)
    });
    let deliver = figures.both_deliver_ms;
    want(&mut slow, deliver <= TWO_PLACES_MS, || {
        format!("two hubs delivered for {deliver:.0} ms, more than {TWO_PLACES_MS} ms")
    });
    let hears = !matches!(cut, Cut::SitesAndEtcd | Cut::All);
    let announce = if hears {
        figures.both_announce_ms
    } else {
        figures.both_announce_after_ms
    };
    want(&mut slow, announce <= TWO_PLACES_MS, || {
        format!("two hubs announced the address for {announce:.0} ms, more than {TWO_PLACES_MS} ms")
    });
    (broken, slow)
}

fn longest(times: impl Iterator<Item = f64>) -> f64 {
    times.fold(0.0, f64::max)
}

/// Seconds since 1970.
fn now_s() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// An address of the server from which packets go through one hub.
fn source(hub: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100, 21 + u8::try_from(hub).unwrap_or_default())
}

fn lead_through(fleet: &Fleet, hub: usize) -> Result<()> {
    let (from, at) = (source(hub), super::place(hub));
    let table = 101 + hub;
    fleet.server().ip(&format!(
        "addr add {from}/32 dev lo\nrule add from {from} lookup {table}\nroute add default via {} table {table}\n",
        at.lan
    ))?;
    let back = at.server;
    fleet
        .space(hub)
        .ip(&format!("route add {from} via {back}\n"))
}

/// Packets through every hub, and when the site got them.
struct Through {
    stop: Arc<AtomicBool>,
    senders: Vec<JoinHandle<Result<()>>>,
    receiver: JoinHandle<Result<Vec<(usize, Instant)>>>,
}

impl Through {
    fn begin(fleet: &Fleet, address: IpAddr) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let site = fleet.ground.topology.site();
        let flag = stop.clone();
        let receiver = site.spawn("through", move || receive(address, &flag))?;
        let target = SocketAddr::new(address, PORT);
        let sender = |hub: usize| {
            let flag = stop.clone();
            fleet
                .server()
                .spawn("through", move || send(hub, target, &flag))
        };
        let senders = (0..NAMES.len()).map(sender).collect::<Result<_>>()?;
        Ok(Self {
            stop,
            senders,
            receiver,
        })
    }

    fn end(self) -> Result<Vec<(usize, Instant)>> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a thread panicked");
        for sender in self.senders {
            sender.join().map_err(panicked)??;
        }
        self.receiver.join().map_err(panicked)?
    }
}

fn send(hub: usize, target: SocketAddr, stop: &AtomicBool) -> Result<()> {
    let socket = UdpSocket::bind((source(hub), 0))?;
    while !stop.load(Ordering::Relaxed) {
        // What a hub says that serves nobody (ICMP) is an error of the next packet.
        let _ = socket.send_to(&[u8::try_from(hub)?], target);
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

fn receive(address: IpAddr, stop: &AtomicBool) -> Result<Vec<(usize, Instant)>> {
    let socket = UdpSocket::bind((address, PORT))?;
    socket.set_read_timeout(Some(INTERVAL))?;
    let mut seen = Vec::new();
    let mut buffer = [0; 16];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((1, _)) = socket.recv_from(&mut buffer) {
            seen.push((usize::from(buffer[0]), Instant::now()));
        }
    }
    Ok(seen)
}

/// Longest time in which packets came through two hubs, each no further apart than [`APART`].
fn together(delivered: &[(usize, Instant)]) -> Duration {
    let mut longest = Duration::ZERO;
    // Of each hub: when its present time of delivery began, and its last packet.
    let mut times: Vec<Option<(Instant, Instant)>> = vec![None; NAMES.len()];
    for (hub, at) in delivered {
        let going_on = times[*hub].filter(|(_, last)| *at - *last <= APART);
        let began = going_on.map_or(*at, |(began, _)| began);
        times[*hub] = Some((began, *at));
        for (other, time) in times.iter().enumerate() {
            if let Some((other_began, other_last)) = time
                && other != *hub
                && *at - *other_last <= APART
            {
                let from = began.max(*other_began);
                longest = longest.max(at.min(other_last).saturating_duration_since(from));
            }
        }
    }
    longest
}

/// Changes of routes at the hubs and at the server, as the kernel tells them.
struct Announced {
    hubs: Vec<(Vec<String>, Process)>,
    server: Process,
}

/// Changes that concern an address.
struct Changes {
    /// When, seconds since 1970, at which hub, the metric, and whether there is such a route now.
    hubs: Vec<(f64, usize, u32, bool)>,
    /// When the server had a new route, and by which interface.
    server: Vec<(f64, String)>,
}

impl Announced {
    fn begin(fleet: &Fleet) -> Result<Self> {
        let number = std::fs::read_dir(fleet.directory())?.count();
        let monitor = |within: &ropewalk_testbed::Namespace, name: String| {
            let program = within.program("ip").args(["-4", "-ts", "monitor", "route"]);
            // Times are local otherwise.
            program.env("TZ", "UTC").start(fleet.directory(), &name)
        };
        let hub = |hub: usize| -> Result<_> {
            let process = monitor(fleet.space(hub), format!("routes-{}-{number}", NAMES[hub]))?;
            let there = fleet.space(hub).program("ip");
            let there = there.args(["-4", "route", "show", "table", TABLE]);
            let there = there.run(super::LIMIT)?.stdout;
            Ok((there.lines().map(str::to_owned).collect(), process))
        };
        let begun = Self {
            hubs: (0..NAMES.len()).map(hub).collect::<Result<_>>()?,
            server: monitor(fleet.server(), format!("routes-server-{number}"))?,
        };
        std::thread::sleep(Duration::from_millis(200));
        Ok(begun)
    }

    fn end(mut self, address: &str) -> Changes {
        let mut hubs = Vec::new();
        for (hub, (there, process)) in self.hubs.iter_mut().enumerate() {
            process.kill();
            let before = there.iter().filter(|line| is_of(line, address));
            hubs.extend(before.map(|line| (0.0, hub, metric(line), true)));
            for (at_s, deleted, line) in process.output().lines().filter_map(change) {
                if is_of(line, address) && line.contains(&format!("table {TABLE}")) {
                    hubs.push((at_s, hub, metric(line), !deleted));
                }
            }
        }
        hubs.sort_by(|one, other| one.0.total_cmp(&other.0));
        self.server.kill();
        let text = self.server.output();
        let server = text.lines().filter_map(change);
        let server = server.filter(|(_, deleted, line)| !deleted && is_of(line, address));
        let server =
            server.filter_map(|(at_s, _, line)| Some((at_s, word(line, "dev")?.to_owned())));
        Changes {
            hubs,
            server: server.collect(),
        }
    }
}

impl Changes {
    /// When the server first had a route by another hub than this one.
    fn rerouted(&self, since_s: f64, from: usize) -> Option<f64> {
        let own = super::place(from).interface;
        let mut later = self.server.iter();
        let found = later.find(|(at_s, interface)| *at_s >= since_s && *interface != own);
        found.map(|(at_s, _)| *at_s)
    }
}

/// A line of `ip -ts monitor`: when, whether something is gone, and the rest.
fn change(line: &str) -> Option<(f64, bool, &str)> {
    let (time, rest) = line.strip_prefix('[')?.split_once("] ")?;
    let (date, clock) = time.split_once('T')?;
    let number = |text: &str| text.parse::<f64>().ok();
    let mut clock = clock.split(':').map(number);
    let (hours, minutes, seconds) = (clock.next()??, clock.next()??, clock.next()??);
    let at_s = days(date)? * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds;
    let gone = rest.strip_prefix("Deleted ");
    Some((at_s, gone.is_some(), gone.unwrap_or(rest)))
}

/// Days from 1970 to a date such as `2026-11-28` (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn days(date: &str) -> Option<f64> {
    let mut parts = date.split('-').map(|part| part.parse::<i32>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let year = year - i32::from(month <= 2);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(f64::from(
        365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468,
    ))
}

fn is_of(line: &str, address: &str) -> bool {
    line.split_whitespace().next() == Some(address)
}

/// The word after this one.
fn word<'a>(line: &'a str, before: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace().skip_while(|word| *word != before);
    words.nth(1)
}

fn metric(line: &str) -> u32 {
    let metric = word(line, "metric").and_then(|metric| metric.parse().ok());
    metric.unwrap_or_default()
}

/// Times in which two hubs or more announced the address, until `end_s`.
fn at_two_hubs(changes: &[(f64, usize, u32, bool)], end_s: f64) -> Vec<(f64, f64)> {
    let mut there: Vec<Vec<u32>> = vec![Vec::new(); NAMES.len()];
    let mut since = None;
    let mut found = Vec::new();
    for (at_s, hub, metric, is_there) in changes {
        there[*hub].retain(|known| known != metric);
        if *is_there {
            there[*hub].push(*metric);
        }
        let two = there.iter().filter(|routes| !routes.is_empty()).count() > 1;
        if two {
            since.get_or_insert(*at_s);
        } else if let Some(from) = since.take() {
            found.push((from, *at_s));
        }
    }
    found.extend(since.map(|from| (from, end_s)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_monitor_is_read() {
        let line = "[1970-01-02T01:00:02.250000] Deleted 10.86.0.16 dev rw0 table 4443 proto static metric 15999999 ";
        let (at_s, gone, rest) = change(line).unwrap();
        assert_eq!((at_s, gone), (86_400.0 + 3_602.25, true));
        assert!(is_of(rest, "10.86.0.16") && !is_of(rest, "10.86.0.1"));
        assert_eq!((metric(rest), word(rest, "dev")), (15_999_999, Some("rw0")));
        assert_eq!(days("2026-11-28"), Some(20_785.0));
        assert_eq!(days("2024-02-29"), Some(19_782.0));
        assert!(change("10.0.0.0/8 dev lo").is_none());
    }

    #[test]
    fn times_with_routes_at_two_hubs_are_found() {
        let changes = [
            (0.0, 0, 9, true),
            (1.0, 1, 8, true),
            // The hub that serves has a newer statement.
            (1.5, 1, 7, true),
            (1.6, 1, 8, false),
            (2.0, 0, 9, false),
            (5.0, 2, 6, true),
        ];
        assert_eq!(at_two_hubs(&changes, 9.0), [(1.0, 2.0), (5.0, 9.0)]);
        assert!(at_two_hubs(&changes[..1], 9.0).is_empty());
    }

    #[test]
    fn hubs_that_deliver_one_after_the_other_do_not_deliver_together() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let of = |hub, from: u64, to: u64| (from..=to).step_by(10).map(move |ms| (hub, at(ms)));
        let mut after: Vec<_> = of(0, 0, 1_000).chain(of(1, 1_010, 2_000)).collect();
        assert_eq!(together(&after), Duration::ZERO);
        after.extend(of(0, 1_500, 1_900));
        after.sort_by_key(|(_, at)| *at);
        let both = together(&after);
        assert!(
            both >= Duration::from_millis(390) && both <= Duration::from_millis(400),
            "{both:?}"
        );
    }
}
