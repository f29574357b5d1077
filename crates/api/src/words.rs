//! The state of an uplink and of a gateway in words: the same in `ropewalk status` and in the dashboard.
//!
//! Pure: equal status and equal past give equal words. Names of sites never occur in them, and names
//! of interfaces only where one is left out or is part of a command.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BalanceStatus, PathStatus, QuotaStatus, Status, TunnelStatus, UplinkStatus};

/// Loss from which an uplink is called lossy, `0..=1`. Lower: more is told, chance losses are told, too.
pub const LOSS_NOTABLE: f64 = 0.02;
/// How long loss has to be notable until it is told, seconds. Queues that overflow when a load begins lose for less.
/// Longer: later told.
const LOSSY_S: f64 = 5.0;
/// Round trips above the smallest from which a queue is called bloated, milliseconds and as a factor. Lower:
/// sooner told, jitter of a mobile network is told, too.
const BLOAT_MS: f64 = 150.0;
const BLOAT_FACTOR: f64 = 4.0;
/// Traffic from which a rise of the round trip counts as "under load", bit/s.
pub const LOAD_BITS: f64 = 200_000.0;
/// Smallest round trip from which the hub is called far, milliseconds. Satellites in high orbits have 550.
const FAR_MS: f64 = 180.0;
/// How long a queue has to stand until it is told, seconds. The smallest round trip follows a longer way within 10 s, so
/// that a far hub is no queue. Nor is a round trip that stays high for so long without load. Longer: later told.
const BLOAT_S: f64 = 12.0;
/// Part of the best uplink's rate below which an uplink is called slow. Higher: uplinks that add something are told, too.
const SLOW_PART: f64 = 0.05;
/// Part of what an uplink carried within the last minutes below which the uplink is called slower than before. Higher:
/// sooner told, and radio networks that come and go are told, too.
const FELL_PART: f64 = 0.2;
/// How long an uplink has to be slow until that is told, seconds. While the way to the hub gets longer a path looks full
/// for up to 10 s. Longer: later told.
const SLOW_S: f64 = 10.0;
/// By which the smallest round trip of all uplinks has to exceed that of the last minutes for the way to the hub to have
/// got longer. Lower: told of smaller changes.
const LONGER_FACTOR: f64 = 2.0;
/// How long no spare hub has answered until that is told, seconds. A site tries a silent spare every 5 s, and a hub
/// that starts again needs a few seconds. Longer: later told.
const NO_SPARE_S: f64 = 60.0;
/// What the tunnel has to carry for shares to say something, bit/s: more than probes. Higher: little traffic is idle.
const CARRIES_BITS: f64 = 20_000.0;
/// How long a path goes over TLS until that is called blocked UDP, seconds. A hub that starts again is often reached
/// over TLS first, and 2 to 4 s later over UDP. Longer: later told.
const UDP_BLOCKED_S: f64 = 10.0;
/// Failures in ten minutes from which an uplink is said to come and go. Lower: sooner told, single failures are told, too.
const FLAPS: u64 = 3;
/// How long after the end of the last failure that is said, seconds. Longer: told for longer after the trouble.
const FLAPPING_S: f64 = 180.0;
/// Outer packet size (IP and UDP headers included) below which packets are called small, bytes.
/// Path MTU discovery begins at 1,228 and passes both numbers within seconds on a usual network. On a path with a round
/// trip of 0.9 s it took more than 10 s to pass 1,400 (seen once). Some mobile networks carry less than 1,400: that is told, and is no trouble down to
/// the second number, the least of IPv6.
const SMALL_PACKETS: usize = 1_400;
const VERY_SMALL_PACKETS: usize = 1_281;
/// How long packets have to be small until that is told, seconds. Discovery needs a few round trips, and on a path that
/// loses packets it starts again now and then. Longer: later told.
const DISCOVERY_S: f64 = 10.0;
/// Seconds for which an answer of a stranger counts.
const STRANGER_S: f64 = 60.0;
/// Part of a quota from which its end is near, `0..=1`. Lower: sooner told.
const QUOTA_NEARLY: f64 = 0.9;
/// Signal that is called weak, `0..=1`. Higher: sooner told, signals that suffice are called weak, too.
const SIGNAL_WEAK: f64 = 0.2;
/// First second of 2025: a clock before is wrong.
pub const CLOCK_MIN_S: u64 = 1_735_689_600;
/// How long a site that starts looks for its uplinks, seconds.
const SEARCH_S: f64 = 3.0;
/// Share of an uplink in the traffic from which the share is told.
const SHARE_MIN: f64 = 0.005;

/// What the words are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum About {
    /// All is well.
    #[default]
    Fine,
    /// Packets are lost.
    Lossy,
    /// Much slower than the best, or than before.
    Slow,
    /// A long queue somewhere on the way.
    Bloated,
    /// UDP does not pass.
    UdpBlocked,
    /// Somebody else answers in place of the hub.
    LoginPage,
    /// Hub and site do not have the keys of each other.
    Key,
    /// Large packets do not pass.
    SmallPackets,
    /// Data used over a metered uplink.
    Metered,
    /// Technology and signal of its radio.
    Radio,
    /// It fails again and again.
    Flapping,
    /// A long way to the hub.
    Far,
    /// No answer.
    Silent,
    /// It was announced to end.
    Leaving,
    /// It is kept for when nothing else works.
    Standby,
    /// Somebody took it out of use.
    Disabled,
    /// The clock of this machine.
    Clock,
    /// Nothing works.
    Down,
    /// There is no uplink.
    NoUplink,
    /// The hub that is to take over does not answer.
    Spare,
    /// The API is not where it is to be.
    Api,
    /// What this version does not know.
    #[serde(other)]
    Other,
}

/// How much it matters.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// All is well, or as somebody wanted it.
    #[default]
    Good,
    /// It works, but worse than it could.
    Worse,
    /// It does not work.
    Bad,
}

/// One thing that is to be said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Words {
    /// What it is about.
    pub about: About,
    /// How much it matters.
    pub weight: Weight,
    /// The words.
    pub text: String,
}

/// The recent past of a path, which its status does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lately {
    /// Seconds for which the path has been in its state.
    pub state_s: f64,
    /// Seconds for which the path has been up over its transport.
    pub transport_s: f64,
    /// Seconds for which loss has been notable.
    pub lossy_s: f64,
    /// Smallest round trip of the minutes before a queue stood on the path, milliseconds.
    pub rtt_least_ms: f64,
    /// Seconds for which a queue has stood on the path.
    pub bloated_s: f64,
    /// The newest round trip with that queue, milliseconds.
    pub bloated_ms: f64,
    /// Seconds since the path carried a load with that queue.
    pub loaded_s: f64,
    /// Seconds for which only small packets have passed.
    pub small_s: f64,
    /// Outer bit/s of the last seconds, both directions.
    pub bits: f64,
    /// Share of this path in what all paths of the tunnel carried in the last seconds, `0..=1`.
    pub share: f64,
    /// Failures in the last ten minutes.
    pub failures: u64,
    /// Seconds since the last one was over; 0 while it lasts.
    pub failed_s: f64,
    /// Seconds for which the path has been much slower than the best one, or than before.
    pub slow_s: f64,
    /// Most that the path carried when it was full within the last minutes, Mbit/s: received and sent; 0 for unknown.
    pub most_mbit: [f64; 2],
    /// Of the whole tunnel.
    pub tunnel: TunnelLately,
    /// Seconds since somebody who is not the hub answered at the hub's address.
    pub stranger_s: Option<f64>,
}

/// The recent past of a site's tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TunnelLately {
    /// Smallest round trip of the paths that are up within the last minutes, milliseconds; 0 for unknown.
    pub nearest_ms: f64,
    /// Whether a TCP connection over a path that is not up was refused within the last minute.
    pub is_refused: bool,
}

/// How a protocol fails at somebody who is no hub, such as the page of a network that wants a log-in: bytes that are
/// no TLS, a certificate in place of a raw key (RFC 7250), or nothing that fits to what a hub speaks.
const STRANGERS: [&str; 7] = [
    "received corrupt message",
    "peer is incompatible: ",
    "invalid peer certificate: ",
    "received fatal alert: HandshakeFailure",
    "received fatal alert: NoApplicationProtocol",
    "received fatal alert: ProtocolVersion",
    "received fatal alert: UnrecognisedName",
];

/// Whether the last error of a connection says that nothing listens on TCP at the hub's address, or a firewall says so.
#[must_use]
pub fn is_refused(error: &str) -> bool {
    error.contains("Connection refused")
}

/// Whether the last error of a connection says that somebody who is no hub answered in place of the hub.
#[must_use]
pub fn is_stranger(error: &str) -> bool {
    // `CloseReason::Transport` in the transport.
    let protocol = error.strip_prefix("protocol error: ");
    protocol.is_some_and(|why| STRANGERS.iter().any(|part| why.starts_with(part)))
}

/// What a site does where the last error of its connection says that a key was refused.
#[must_use]
pub fn key_remedy(error: &str) -> Option<&'static str> {
    // `CloseReason::KeyUnknown` and `CloseReason::KeyRejected` in the transport. The words of a peer never begin so.
    let why = error.strip_prefix("key refused: ")?;
    Some(if why.contains("does not accept this key") {
        "run `ropewalk invite NAME --replace` on the hub, or without --replace where it does not list this site any \
         more; then `ropewalk join --force` with the new token here; until then `ropewalk down` lifts the kill switch"
    } else {
        "compare the key in [hub] of site.toml with `ropewalk key` on the hub, over a channel that you trust; if the \
         hub has a new key, write that key into [hub] and start the site again, or run `ropewalk join --force` with \
         a new token"
    })
}

/// What is to be said of a path, what matters most first; never empty.
#[must_use]
pub fn of_path(tunnel: &TunnelStatus, path: &PathStatus, lately: &Lately) -> Vec<Words> {
    let mut said = match path.state.as_str() {
        "disabled" => vec![good(About::Disabled, "out of use: somebody took it out")],
        "leaving" => vec![good(
            About::Leaving,
            "its end is announced: it carries traffic only while nothing else works",
        )],
        "up" => working(tunnel, path, lately),
        // The last error is one of an attempt beside the connection that is silent, and may be old.
        "suspect" if !has_stranger(lately) => vec![silent(lately)],
        _ => vec![not_connected(path, lately)],
    };
    if lately.failures >= FLAPS && lately.failed_s < FLAPPING_S {
        let text = format!("it failed {} times in 10 minutes", lately.failures);
        said.push(worse(About::Flapping, text));
    }
    if let Some(largest) = largest_packet(path, lately).filter(|size| *size >= VERY_SMALL_PACKETS) {
        said.push(good(About::SmallPackets, too_large(largest)));
    }
    if let Some(text) = radio(path) {
        said.push(good(About::Radio, text));
    }
    if let Some(quota) = &path.quota {
        said.push(of_quota(quota, path.standby));
    } else if path.metered {
        let used = bytes(path.tx_bytes + path.rx_bytes);
        let says = if path.said_metered == Some(true) {
            ", as NetworkManager says"
        } else {
            ""
        };
        let text = format!("metered{says}: {used} used by this connection");
        said.push(good(About::Metered, text));
    }
    // Stable: of equal weight what was said first stays first.
    said.sort_by_key(|words| std::cmp::Reverse(words.weight));
    if said.iter().all(|words| words.weight == Weight::Good) {
        said.sort_by_key(|words| words.about == About::Metered);
    }
    said
}

/// The radio of an uplink, such as `LTE, signal 62 %`.
#[must_use]
pub fn radio(path: &PathStatus) -> Option<String> {
    let technology = path.technology.as_deref()?;
    Some(match path.signal {
        Some(signal) if signal < SIGNAL_WEAK => {
            format!("{technology}, weak signal: {:.0} %", signal * 100.0)
        }
        Some(signal) => format!("{technology}, signal {:.0} %", signal * 100.0),
        None => technology.to_owned(),
    })
}

/// What is to be said of an uplink over which flows are spread.
#[must_use]
pub fn of_balanced(uplink: &UplinkStatus) -> Words {
    let why = &uplink.reason;
    match uplink.state() {
        "captive" => bad(
            About::LoginPage,
            "a login page answers in place of the internet: log in there",
        ),
        "up" | "unproven" if uplink.is_used() => {
            let percent = |share: f64| format!("{:.0} %", share * 100.0);
            let (v4, v6) = (percent(uplink.share_ipv4), percent(uplink.share_ipv6));
            let share = match (uplink.state_ipv4.as_str(), uplink.state_ipv6.as_str()) {
                (_, "none") => v4,
                ("none", _) => v6,
                _ if v4 == v6 => v4,
                _ => format!("{v4} (IPv4) and {v6} (IPv6)"),
            };
            good(
                About::Fine,
                format!("works; takes {share} of new flows: {why}"),
            )
        }
        "up" | "unproven" if uplink.standby => good(About::Standby, format!("works; {why}")),
        "up" | "unproven" => good(About::Fine, format!("works; takes no new flows: {why}")),
        _ => bad(About::Silent, why.clone()),
    }
}

/// What is to be said of `ropewalk balance` as a whole. Empty when all is well.
fn of_balance(balance: &BalanceStatus) -> Option<Words> {
    let text = if balance.uplinks.is_empty() {
        "there is no uplink: no interface has an address and a default route"
    } else if balance.none_answers() {
        "no uplink answers probes: all are tried all the same"
    } else {
        return None;
    };
    Some(bad(About::Down, text))
}

fn of_quota(quota: &QuotaStatus, standby: bool) -> Words {
    let (used, all) = (bytes(quota.used), bytes(quota.bytes));
    let left = seconds(quota.ends_in_s as f64);
    if quota.is_used_up() {
        let kept = if standby {
            "; kept for when nothing else works"
        } else {
            ""
        };
        let text = format!("its quota is used up: {used} of {all}{kept}; begins anew in {left}");
        return worse(About::Metered, text);
    }
    let text = format!("{used} of {all} used; begins anew in {left}");
    if quota.used as f64 >= quota.bytes as f64 * QUOTA_NEARLY {
        return worse(About::Metered, text);
    }
    good(About::Metered, text)
}

fn not_connected(path: &PathStatus, lately: &Lately) -> Words {
    let time = time(lately.state_s);
    if let Some(error) = path.last_error.as_deref()
        && let Some(remedy) = key_remedy(error)
    {
        let text = format!("not connected{time}: {error}; trying again. Remedy: {remedy}");
        return bad(About::Key, text);
    }
    if has_stranger(lately) {
        return bad(
            About::LoginPage,
            format!(
                "somebody else answers in place of the hub, as behind a login page: log in there with \
                 `ropewalk portal 5m --uplink {}`",
                path.uplink
            ),
        );
    }
    let text = match path.last_error.as_deref() {
        Some(error) if !error.starts_with("timed out") => {
            format!("not connected{time}: {error}; trying again")
        }
        _ => return silent(lately),
    };
    bad(About::Silent, text)
}

fn has_stranger(lately: &Lately) -> bool {
    lately.stranger_s.is_some_and(|s| s < STRANGER_S)
}

fn silent(lately: &Lately) -> Words {
    let text = format!("no answer{}: trying again", time(lately.state_s));
    bad(About::Silent, text)
}

/// What is to be said of a path that is up.
fn working(tunnel: &TunnelStatus, path: &PathStatus, lately: &Lately) -> Vec<Words> {
    let mut said = Vec::new();
    let over_tls = path.transport == "tls";
    if over_tls && lately.transport_s >= UDP_BLOCKED_S {
        said.push(worse(
            About::UdpBlocked,
            "UDP is blocked here: TLS carries it",
        ));
    }
    let loss = path.worse_loss();
    if loss >= LOSS_NOTABLE && lately.lossy_s >= LOSSY_S {
        let percent = loss * 100.0;
        let is_repaired = if loss > path.loss {
            tunnel.recovered + tunnel.repairs_asked + tunnel.rescues_asked > 0
        } else {
            tunnel.protection_bytes > 0
        };
        let not = if is_repaired { "" } else { "not " };
        let text = format!(
            "lost {percent:.0} % for {}: {not}repaired",
            seconds(lately.lossy_s)
        );
        said.push(worse(About::Lossy, text));
    }
    if let Some((least, most)) = rose(tunnel, path, lately) {
        let why = if lately.loaded_s < BLOAT_S {
            "under load: a bloated queue"
        } else {
            "without load of ours: others fill the queue, the signal is weak, or the way got longer"
        };
        let text = format!("round trip rose from {least:.0} to {most:.0} ms {why}");
        said.push(worse(About::Bloated, text));
    }
    if let Some(largest) = largest_packet(path, lately).filter(|size| *size < VERY_SMALL_PACKETS) {
        said.push(worse(About::SmallPackets, too_large(largest)));
    }
    if lately.slow_s >= SLOW_S && !is_way_longer(tunnel, lately.tunnel.nearest_ms) {
        let text =
            much_slower(tunnel, path).or_else(|| slower_than_before(path, &lately.most_mbit));
        said.extend(text.map(|text| worse(About::Slow, text)));
    }
    if let Some(first) = said.first_mut() {
        if let Some(share) = share(lately) {
            first.text.push_str(&format!("; {share}"));
        }
        return said;
    }
    let other_up = |other: &PathStatus| other.is_up() && !other.standby;
    if path.standby && tunnel.paths.iter().any(other_up) {
        let text = "works; kept for when nothing else works";
        return vec![good(About::Standby, text)];
    }
    let works = if over_tls {
        "works over TLS for now, and tries UDP"
    } else {
        "works"
    };
    let share = share(lately).unwrap_or_else(|| "idle".to_owned());
    vec![good(About::Fine, format!("{works}; {share}"))]
}

fn too_large(largest: usize) -> String {
    format!(
        "packets above {} bytes do not pass: full packets other than those of TCP go in pieces",
        thousands(largest)
    )
}

fn share(lately: &Lately) -> Option<String> {
    (lately.share >= SHARE_MIN && lately.bits >= CARRIES_BITS * lately.share)
        .then(|| format!("carries {:.0} %", lately.share * 100.0))
}

/// The largest outer packet of a path in the worse direction, bytes, where that is small.
#[must_use]
pub fn small_packets(path: &PathStatus) -> Option<usize> {
    let v6 = path.remote.is_some_and(|remote| remote.is_ipv6());
    let of_peer = path.peer_mtu.filter(|mtu| *mtu > 0);
    let mtu = of_peer.map_or(path.mtu, |mtu| mtu.min(path.mtu));
    let largest = mtu + if v6 { 48 } else { 28 };
    (path.transport == "quic" && mtu > 0 && largest < SMALL_PACKETS).then_some(largest)
}

/// The same where it is to be told.
fn largest_packet(path: &PathStatus, lately: &Lately) -> Option<usize> {
    small_packets(path).filter(|_| lately.small_s >= DISCOVERY_S)
}

/// Whether the round trip of a path exceeds the `least` by so much that a queue stands on the path, both milliseconds.
#[must_use]
pub fn is_bloated(path: &PathStatus, least: f64) -> bool {
    path.rtt_ms - least > BLOAT_MS && path.rtt_ms > BLOAT_FACTOR * least
}

/// The round trip without the queue that has stood on the path for a while, and with the queue, both milliseconds.
fn rose(tunnel: &TunnelStatus, path: &PathStatus, lately: &Lately) -> Option<(f64, f64)> {
    // A packet that met no queue within the last 10 s ends it. The smoothed round trip of an idle path is old.
    let is_gone = path.rtt_min_ms - lately.rtt_least_ms < BLOAT_MS / 3.0;
    if lately.bloated_s < BLOAT_S || is_gone {
        return None;
    }
    let (up, nearest) = nearest(tunnel);
    // Where the way got longer over all uplinks, and packets arrive evenly, the hub is far. A queue has waves.
    let is_even = path.rtt_ms - path.rtt_min_ms < BLOAT_MS;
    if up > 1 && nearest >= FAR_MS && is_even {
        return None;
    }
    Some((lately.rtt_least_ms, lately.bloated_ms))
}

/// How many paths are up, and their smallest round trip, milliseconds; infinite without any.
fn nearest(tunnel: &TunnelStatus) -> (usize, f64) {
    let up = || tunnel.paths.iter().filter(|path| path.is_up());
    let nearest = up().map(|path| path.rtt_min_ms);
    (up().count(), nearest.fold(f64::INFINITY, f64::min))
}

/// The two figures of [`full_mbit`] as verbs.
const DIRECTIONS: [&str; 2] = ["receives", "sends"];

/// What a path carried when it was full: received and sent, Mbit/s.
#[must_use]
pub fn full_mbit(path: &PathStatus) -> [Option<f64>; 2] {
    [path.peer_full_mbit, path.full_mbit]
}

/// Whether a path is much slower than the best one, or than it was with `most_mbit`.
#[must_use]
pub fn is_slow(tunnel: &TunnelStatus, path: &PathStatus, most_mbit: &[f64; 2]) -> bool {
    much_slower(tunnel, path).is_some() || slower_than_before(path, most_mbit).is_some()
}

/// That the path carries only a small part of what the best one carries, in either direction. Only the rates of paths
/// that were full are compared: those of others are what there was to send.
fn much_slower(tunnel: &TunnelStatus, path: &PathStatus) -> Option<String> {
    let mut each = DIRECTIONS.into_iter().zip(full_mbit(path)).enumerate();
    each.find_map(|(at, (direction, full))| {
        let up = tunnel.paths.iter().filter(|other| other.is_up());
        let best = up.filter_map(|other| full_mbit(other)[at]);
        let best = best.fold(0.0, f64::max);
        let own = full.filter(|own| *own < best * SLOW_PART)?;
        let places = usize::from(best < 10.0);
        Some(format!(
            "slow: {direction} at most {own:.1} Mbit/s, the best uplink {best:.places$}"
        ))
    })
}

/// That the path carries only a small part of what it carried before, in either direction.
fn slower_than_before(path: &PathStatus, most_mbit: &[f64; 2]) -> Option<String> {
    let each = DIRECTIONS.into_iter().zip(full_mbit(path));
    let mut each = each.zip(most_mbit);
    each.find_map(|((direction, full), most)| {
        let own = full.filter(|own| *own < most * FELL_PART)?;
        let places = usize::from(*most < 10.0);
        Some(format!(
            "slower than before: {direction} at most {own:.1} Mbit/s, {most:.places$} within the last minutes"
        ))
    })
}

/// Whether the way to the hub is long, and was not within the last minutes.
fn is_way_longer(tunnel: &TunnelStatus, nearest_ms: f64) -> bool {
    let (_, nearest) = nearest(tunnel);
    nearest.is_finite()
        && nearest >= FAR_MS
        && nearest_ms > 0.0
        && nearest > nearest_ms * LONGER_FACTOR
}

/// Which interfaces of a site are left out and why, and what makes uplinks of them.
#[must_use]
pub fn left_out(status: &Status) -> Option<String> {
    if status.left_out.is_empty() {
        return None;
    }
    let told: Vec<_> = status.left_out.iter().map(ToString::to_string).collect();
    let used = status.paths().map(|path| path.uplink.as_str());
    let out = status.left_out.iter().map(|one| one.name.as_str());
    let all: Vec<_> = used.chain(out).map(|name| format!("{name:?}")).collect();
    Some(format!(
        "left out: {}; if they are uplinks, name all uplinks under [uplinks] of the configuration, such as \
         include = [{}], also those that are unplugged now. Then run `ropewalk reload`",
        told.join(", "),
        all.join(", ")
    ))
}

/// What is to be said of a whole gateway at `now_s`, seconds since 1970. `lately` is of the tunnel of a site. Empty when
/// all is well.
#[must_use]
pub fn of_gateway(status: &Status, now_s: u64, lately: TunnelLately) -> Vec<Words> {
    let mut said = Vec::new();
    if now_s < CLOCK_MIN_S {
        let text = "the clock of this machine is wrong: it stands before 2025; set it, or start a time service";
        said.push(bad(About::Clock, text));
    }
    if status.role != "site" {
        said.extend(status.balance.as_ref().and_then(of_balance));
        return said;
    }
    if status.paths().next().is_none() && status.uptime_s >= SEARCH_S {
        let why = left_out(status).unwrap_or_else(|| {
            "no interface that [uplinks] of the configuration allows has a carrier, an address and a way to the hub".to_owned()
        });
        said.push(bad(About::NoUplink, format!("there is no uplink; {why}")));
    }
    for tunnel in &status.tunnels {
        if let Some(down) = tunnel.down_s {
            let held = if tunnel.hold_bytes > 0 {
                format!("; {} held until one does", bytes(tunnel.hold_bytes))
            } else {
                String::new()
            };
            let refused = if lately.is_refused {
                "; TCP is refused at the hub's address: check that `ropewalk hub` runs there; a firewall may refuse, too"
            } else {
                ""
            };
            let text = format!(
                "no uplink reaches the hub for {}{held}{refused}",
                seconds(down)
            );
            said.push(bad(About::Down, text));
        }
        if let Some(unready) = tunnel.no_spare_s.filter(|s| tunnel.up && *s >= NO_SPARE_S) {
            let text = format!(
                "no spare hub has answered for {}: nothing takes over if the hub ends; check that the spare runs, speaks a version that this site speaks, and knows this site; also its key and address in [[spare]], and that UDP reaches it",
                seconds(unready)
            );
            said.push(worse(About::Spare, text));
        }
        let (_, nearest) = nearest(tunnel);
        if nearest.is_finite() && nearest >= FAR_MS {
            let text = if is_way_longer(tunnel, lately.nearest_ms) {
                format!(
                    "the hub is far now: {nearest:.0} ms there and back at best, {:.0} within the last minutes",
                    lately.nearest_ms
                )
            } else {
                format!(
                    "the hub is far: {nearest:.0} ms there and back at best; a hub near you answers sooner"
                )
            };
            said.push(worse(About::Far, text));
        }
    }
    said
}

fn words(about: About, weight: Weight, text: impl Into<String>) -> Words {
    Words {
        about,
        weight,
        text: text.into(),
    }
}

fn good(about: About, text: impl Into<String>) -> Words {
    words(about, Weight::Good, text)
}

fn worse(about: About, text: impl Into<String>) -> Words {
    words(about, Weight::Worse, text)
}

fn bad(about: About, text: impl Into<String>) -> Words {
    words(about, Weight::Bad, text)
}

/// How long, where a second has passed.
fn time(passed: f64) -> String {
    if passed < 0.5 {
        return String::new();
    }
    format!(" for {}", seconds(passed))
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

/// Bytes in the largest unit that leaves a digit before the point.
fn bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1_000.0 && unit + 1 < units.len() {
        value /= 1_000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$} {}", units[unit])
}

fn thousands(number: usize) -> String {
    if number < 1_000 {
        return number.to_string();
    }
    format!("{},{:03}", number / 1_000, number % 1_000)
}

#[cfg(test)]
mod tests;
