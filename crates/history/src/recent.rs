//! The recent past of each path: how long it has been in its state, what it carried, how often it failed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_api::words::{
    LOAD_BITS, LOSS_NOTABLE, Lately, TunnelLately, full_mbit, is_bloated, is_refused, is_slow,
    is_stranger, small_packets,
};
use ropewalk_api::{BalanceStatus, PathStatus, Status, TunnelStatus};

use crate::events::Events;
use crate::spell::{Least, Most, Spell};

/// Most paths that are followed, those of a hub's sites included. More: memory, 500 bytes each.
const PATHS_MAX: usize = 8_192;
/// Time over which failures are counted, milliseconds.
const FAILURES_MS: u64 = 600_000;
/// Uplinks that fail within this time, until none is left, lost the hub: no failure of theirs, milliseconds. Longer:
/// uplinks that really fail one after the other are not blamed.
const TOGETHER_MS: u64 = 5_000;
/// Most failures that are remembered of a path. More: memory.
const FAILURES_MAX: usize = 16;
/// Weight of a new sample in rates, `0..=1`. Larger: newer, and less steady.
const NEW: f64 = 0.4;
/// Time for which a trouble has to be absent before it counts as over, milliseconds. Longer: words change less often, and
/// later.
const OVER_MS: u64 = 5_000;
/// How long a refused connection counts, milliseconds: attempts over QUIC that only time out come between. Longer: told for
/// longer after the hub listens again, if no path is up.
const REFUSED_MS: u64 = 60_000;
/// A clock that differs by so much from what it should show was set, milliseconds.
const CLOCK_SET_MS: u64 = 60_000;

/// All paths, by peer and uplink.
#[derive(Debug, Default)]
pub struct Recent {
    paths: BTreeMap<(String, String), Track>,
    tunnels: BTreeMap<String, bool>,
    /// State of each uplink of `ropewalk balance`.
    balanced: BTreeMap<String, String>,
    last_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct Track {
    state: String,
    transport: String,
    transport_ms: u64,
    since_ms: u64,
    seen_ms: u64,
    lossy: Spell,
    bloated: Spell,
    /// Round trip before the queue and with it, milliseconds.
    bloated_ms: [f64; 2],
    loaded_ms: u64,
    small: Spell,
    slow: Spell,
    least: Least,
    /// What it carried when it was full, Mbit/s: received and sent.
    most: [Most; 2],
    bytes: u64,
    bits: f64,
    share: f64,
    failed_ms: VecDeque<u64>,
    /// When it was last seen without an answer.
    failing_ms: u64,
    stranger_ms: Option<u64>,
    refused_ms: Option<u64>,
}

impl Recent {
    pub fn sample(&mut self, now_ms: u64, status: &Status, events: &mut Events) {
        let is_site = status.role == "site";
        self.note_clock(now_ms, events);
        // Only what has gone is forgotten, and only for want of room.
        if self.tunnels.len() >= PATHS_MAX {
            let names: BTreeSet<&str> = status.tunnels.iter().map(|t| t.peer.as_str()).collect();
            self.tunnels.retain(|name, _| names.contains(name.as_str()));
        }
        for tunnel in &status.tunnels {
            self.note_tunnel(now_ms, tunnel, is_site, events);
            for path in &tunnel.paths {
                let key = (tunnel.peer.clone(), path.uplink.clone());
                if self.paths.len() >= PATHS_MAX && !self.paths.contains_key(&key) {
                    continue;
                }
                let known = self.paths.contains_key(&key);
                let track = self.paths.entry(key).or_default();
                let told = track.follow(now_ms, path, known);
                if let Some(what) = told.filter(|_| is_site) {
                    let what = format!("{}: {what}", path.uplink);
                    events.push(now_ms / 1_000, None, what);
                }
            }
            self.share(tunnel);
            self.follow_slow(now_ms, tunnel);
            self.excuse(now_ms, tunnel);
        }
        self.paths.retain(|(_, uplink), track| {
            let gone = track.seen_ms != now_ms;
            if gone && is_site {
                events.push(now_ms / 1_000, None, format!("{uplink}: gone"));
            }
            !gone
        });
        if let Some(balance) = &status.balance {
            self.note_balanced(now_ms, balance, events);
        }
        self.last_ms = Some(now_ms);
    }

    fn note_balanced(&mut self, now_ms: u64, balance: &BalanceStatus, events: &mut Events) {
        let at_s = now_ms / 1_000;
        let new: BTreeMap<String, String> = balance
            .uplinks
            .iter()
            .map(|uplink| (uplink.uplink.clone(), uplink.state().to_owned()))
            .collect();
        for (name, state) in &new {
            if self.balanced.get(name) != Some(state) {
                events.push(at_s, None, format!("{name}: {state}"));
            }
        }
        for name in self.balanced.keys().filter(|name| !new.contains_key(*name)) {
            events.push(at_s, None, format!("{name}: gone"));
        }
        self.balanced = new;
    }

    fn note_clock(&mut self, now_ms: u64, events: &mut Events) {
        let Some(last) = self.last_ms else { return };
        if now_ms + CLOCK_SET_MS < last || now_ms > last + CLOCK_SET_MS {
            let what = "the clock was set, or the machine slept: times before and after do not fit";
            events.push(now_ms / 1_000, None, what.to_owned());
            self.paths.clear();
        }
    }

    fn note_tunnel(
        &mut self,
        now_ms: u64,
        tunnel: &TunnelStatus,
        is_site: bool,
        events: &mut Events,
    ) {
        let was = self.tunnels.get(&tunnel.peer).copied();
        if was == Some(tunnel.up) || (was.is_none() && self.tunnels.len() >= PATHS_MAX) {
            return;
        }
        self.tunnels.insert(tunnel.peer.clone(), tunnel.up);
        let state = if tunnel.up { "up" } else { "down" };
        // Sites that are not there when a hub starts are no news.
        if was.is_some() || tunnel.up {
            let (site, what) = if is_site {
                (None, format!("the tunnel is {state}"))
            } else {
                let site = tunnel.peer.as_str();
                (Some(site), format!("site {site}: {state}"))
            };
            events.push(now_ms / 1_000, site, what);
        }
    }

    /// Where no uplink of several is left, the hub is away, or the way to it that they share.
    fn excuse(&mut self, now_ms: u64, tunnel: &TunnelStatus) {
        let in_use = tunnel.paths.iter().filter(|path| path.state != "disabled");
        if in_use.count() < 2 || tunnel.paths.iter().any(PathStatus::is_up) {
            return;
        }
        for path in &tunnel.paths {
            let key = (tunnel.peer.clone(), path.uplink.clone());
            if let Some(track) = self.paths.get_mut(&key) {
                track.failed_ms.retain(|at| at + TOGETHER_MS < now_ms);
            }
        }
    }

    fn share(&mut self, tunnel: &TunnelStatus) {
        let key = |path: &PathStatus| (tunnel.peer.clone(), path.uplink.clone());
        let bits = |path| self.paths.get(&key(path)).map_or(0.0, |track| track.bits);
        let all: f64 = tunnel.paths.iter().map(bits).sum();
        for path in &tunnel.paths {
            if let Some(track) = self.paths.get_mut(&key(path)) {
                track.share = if all > 0.0 { track.bits / all } else { 0.0 };
            }
        }
    }

    /// Which paths are slow, and since when.
    fn follow_slow(&mut self, now_ms: u64, tunnel: &TunnelStatus) {
        for path in tunnel.paths.iter().filter(|path| path.is_up()) {
            let key = (tunnel.peer.clone(), path.uplink.clone());
            if let Some(track) = self.paths.get_mut(&key) {
                let slow = is_slow(tunnel, path, &track.most_mbit(now_ms));
                track.slow.follow(now_ms, slow, OVER_MS);
                for (most, full) in track.most.iter_mut().zip(full_mbit(path)) {
                    most.follow(now_ms, full);
                }
            }
        }
    }

    /// The past of a whole tunnel.
    pub fn tunnel_lately(&self, now_ms: u64, peer: &str) -> TunnelLately {
        let own = self.paths.range((peer.to_owned(), String::new())..);
        let own = own.take_while(|((of, _), _)| of == peer);
        let own = own.map(|(_, track)| track);
        let up = own.clone().filter(|track| track.state == "up");
        let least = up.filter_map(|track| track.least.get(now_ms));
        let mut refused = own.filter_map(|track| track.refused_ms);
        TunnelLately {
            nearest_ms: least.reduce(f64::min).unwrap_or_default(),
            is_refused: refused.any(|at| now_ms < at + REFUSED_MS),
        }
    }

    /// The newest round trip of a path that carries little, if it is known.
    pub fn newest_ms(&self, peer: &str, path: &PathStatus) -> Option<f64> {
        let track = self.paths.get(&(peer.to_owned(), path.uplink.clone()))?;
        let is_old = path.transport == "quic" && track.bits < LOAD_BITS;
        (is_old && path.rtt_min_ms > 0.0).then(|| path.rtt_ms.min(path.rtt_min_ms))
    }

    pub fn lately(&self, now_ms: u64, peer: &str, path: &PathStatus) -> Lately {
        let Some(track) = self.paths.get(&(peer.to_owned(), path.uplink.clone())) else {
            return Lately::default();
        };
        let ago = |ms: u64| now_ms.saturating_sub(ms) as f64 / 1e3;
        // A status may be newer than the last sample.
        let same = track.state == path.state;
        Lately {
            state_s: if same { ago(track.since_ms) } else { 0.0 },
            transport_s: if same && track.transport == path.transport {
                ago(track.transport_ms)
            } else {
                0.0
            },
            lossy_s: track.lossy.since().map_or(0.0, ago),
            rtt_least_ms: track.bloated_ms[0],
            bloated_ms: track.bloated_ms[1],
            loaded_s: ago(track.loaded_ms),
            bloated_s: track.bloated.since().map_or(0.0, ago),
            small_s: track.small.since().map_or(0.0, ago),
            bits: track.bits,
            share: track.share,
            failures: track.failed_ms.len() as u64,
            failed_s: ago(track.failing_ms),
            slow_s: track.slow.since().map_or(0.0, ago),
            most_mbit: track.most_mbit(now_ms),
            tunnel: TunnelLately::default(),
            stranger_s: track.stranger_ms.map(ago),
        }
    }
}

impl Track {
    fn most_mbit(&self, now_ms: u64) -> [f64; 2] {
        [&self.most[0], &self.most[1]].map(|most| most.get(now_ms).unwrap_or_default())
    }

    /// Takes the path's status; says what changed.
    fn follow(&mut self, now_ms: u64, path: &PathStatus, known: bool) -> Option<String> {
        let mut told = None;
        // Attempts of a path that is down come and go.
        let state = match path.state.as_str() {
            "connecting" => "down",
            state => state,
        };
        let was = match self.state.as_str() {
            "connecting" => "down",
            state => state,
        };
        if !known || was != state {
            self.since_ms = now_ms;
            if !known || was == "down" {
                self.least = Least::default();
                (self.bloated, self.small, self.slow) = Default::default();
                self.most = Default::default();
            }
            told = Some(match (state, path.transport.as_str()) {
                ("up", "tls") => "up over TLS".to_owned(),
                ("suspect", _) => "no answer".to_owned(),
                (state, _) => state.to_owned(),
            });
        } else if state == "up" && self.transport != path.transport {
            told = Some(format!("{} in place of {}", path.transport, self.transport));
        }
        if !known || was != state || self.transport != path.transport {
            self.transport_ms = now_ms;
        }
        path.transport.clone_into(&mut self.transport);
        let bytes = path.tx_bytes + path.rx_bytes;
        if known && now_ms > self.seen_ms {
            let seconds = (now_ms - self.seen_ms) as f64 / 1e3;
            let new = 8.0 * bytes.checked_sub(self.bytes).unwrap_or(bytes) as f64 / seconds;
            self.bits += NEW * (new - self.bits);
            // A silence that is over before the next look harms nobody. Whatever else happens until the path is up again
            // belongs to the same failure.
            if self.state == "up" && matches!(state, "suspect" | "down") {
                self.failed_ms.push_back(now_ms);
            }
        }
        if matches!(state, "suspect" | "down") {
            self.failing_ms = now_ms;
        }
        path.state.clone_into(&mut self.state);
        self.bytes = bytes;
        while self.failed_ms.len() > FAILURES_MAX
            || self
                .failed_ms
                .front()
                .is_some_and(|at| at + FAILURES_MS < now_ms)
        {
            self.failed_ms.pop_front();
        }
        self.follow_troubles(now_ms, path);
        self.seen_ms = now_ms;
        told
    }

    /// Which troubles the path has, since when, and how bad.
    fn follow_troubles(&mut self, now_ms: u64, path: &PathStatus) {
        let is_up = path.state == "up";
        let lossy = path.worse_loss() >= LOSS_NOTABLE;
        self.lossy.follow(now_ms, lossy, OVER_MS);
        if is_up {
            self.least.follow(now_ms, path.rtt_min_ms);
        }
        let least = self.least.get(now_ms).filter(|_| is_up);
        let bloated = least.is_some_and(|least| is_bloated(path, least));
        let begins = self.bloated.since().is_none();
        self.bloated.follow(now_ms, bloated, OVER_MS);
        if let Some(least) = least.filter(|_| bloated) {
            let before = if begins { least } else { self.bloated_ms[0] };
            self.bloated_ms = [before, path.rtt_ms];
            if self.bits >= LOAD_BITS {
                self.loaded_ms = now_ms;
            }
        }
        let small = is_up && small_packets(path).is_some();
        self.small.follow(now_ms, small, 0);
        if is_up {
            (self.stranger_ms, self.refused_ms) = (None, None);
        } else if path.last_error.as_deref().is_some_and(is_stranger) {
            self.stranger_ms = Some(now_ms);
        } else if path.last_error.as_deref().is_some_and(is_refused) {
            self.refused_ms = Some(now_ms);
        }
    }
}
