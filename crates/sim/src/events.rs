//! What happened in a run: a hash over all of it, and on demand a log of it.
//!
//! The log is JSON lines. The first line is the header: `schema`, `version`, plan, seed, and the
//! names of the paths. Every other line is an event with `time` in seconds since the start of the
//! plan and `event`. `docs/simulator.md` has the members of each. A reader ignores events and
//! members that it does not know; a change that such a reader would misread gets the next version.

use crate::capture::Capture;
use crate::carrier::observer::direction;
use crate::packet::{Body, Packet};
use ropewalk_netem::{DropReason, Side};
use ropewalk_plan::Plan;
use std::fmt;
use std::io::Write;

/// Name of the schema in the header of a log.
pub const SCHEMA: &str = "ropewalk-sim-events";
/// Version of the schema.
pub const VERSION: u32 = 1;
/// Odd constant of the hash, from the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Stands in the hash where a drop has its reason, for packets lost on the way.
const LOST: u64 = 0x80;

/// Hash of every packet delivered or dropped, in order, with its time.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    log: Option<Log>,
    /// Files of packets, if they are wanted.
    pub(crate) capture: Option<Box<Capture>>,
}

struct Log {
    sink: Box<dyn Write + Send>,
    error: Option<std::io::Error>,
}

/// What is on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item<'a> {
    /// A host's packet.
    Host(&'a Packet),
    /// A gateway's: its number on the link in its direction, then its length, 32 bits each.
    Outer(u64),
    /// A datagram of a session of TCP/NC: its digest and its length.
    Session(u64, usize),
}

/// A link by number of its path, and a direction.
type Place = (usize, Side);

impl Item<'_> {
    fn digest(self) -> u64 {
        match self {
            Self::Host(packet) => packet.digest(),
            Self::Outer(digest) | Self::Session(digest, _) => digest,
        }
    }

    /// Members of a JSON object.
    fn content(self) -> String {
        match self {
            Self::Host(packet) => format!(
                "\"flow\":{},\"bytes\":{},{}",
                packet.flow,
                packet.bytes,
                packet.body.content()
            ),
            Self::Outer(digest) => {
                let (number, bytes) = (digest >> 32, digest & u64::from(u32::MAX));
                format!("\"number\":{number},\"bytes\":{bytes}")
            }
            Self::Session(_, bytes) => format!("\"bytes\":{bytes}"),
        }
    }
}

impl Trace {
    /// A trace that also writes what happens to `sink`.
    ///
    /// # Errors
    /// When the header cannot be written.
    pub fn with_log(
        sink: Box<dyn Write + Send>,
        plan: &Plan,
        seed: u64,
    ) -> Result<Self, std::io::Error> {
        let mut trace = Self {
            hash: 0,
            log: Some(Log { sink, error: None }),
            capture: None,
        };
        let title = serde_json::Value::from(plan.name.as_str());
        let paths: serde_json::Value = plan.path.iter().map(|path| path.name.as_str()).collect();
        trace.write(format_args!(
            "{{\"schema\":\"{SCHEMA}\",\"version\":{VERSION},\"plan\":{title},\"seed\":{seed},\
             \"paths\":{paths}}}"
        ));
        match trace.log.as_mut().and_then(|log| log.error.take()) {
            Some(error) => Err(error),
            None => Ok(trace),
        }
    }

    /// Whether a log is kept.
    #[must_use]
    pub const fn logs(&self) -> bool {
        self.log.is_some()
    }

    /// Whether anybody wants to know of packets of hosts.
    #[must_use]
    pub const fn notes(&self) -> bool {
        self.log.is_some() || self.capture.is_some()
    }

    /// A packet left a link.
    pub(crate) fn delivered(&mut self, now_ns: u64, (path, side): Place, item: Item<'_>) {
        self.mix(now_ns, path as u64, item.digest());
        if self.logs() {
            self.link(now_ns, "link_delivered", (path, side), item, "");
        }
    }

    /// A link refused a packet.
    pub(crate) fn dropped(
        &mut self,
        now_ns: u64,
        (path, side): Place,
        reason: DropReason,
        item: Item<'_>,
    ) {
        let what = (path as u64) << 8 | (1 + reason as u64);
        self.mix(now_ns, what, item.digest());
        if self.logs() {
            let reason = format!("{reason:?}").to_lowercase();
            self.link(now_ns, "link_dropped", (path, side), item, &reason);
        }
    }

    /// A link lost a packet on the way; noticed now.
    pub(crate) fn lost(&mut self, now_ns: u64, (path, side): Place, item: Item<'_>) {
        self.mix(now_ns, (path as u64) << 8 | LOST, item.digest());
        if self.logs() {
            self.link(now_ns, "link_dropped", (path, side), item, "loss");
        }
    }

    fn link(&mut self, now_ns: u64, name: &str, (path, side): Place, item: Item<'_>, reason: &str) {
        let (direction, content) = (direction(side), item.content());
        let reason = match reason {
            "" => String::new(),
            reason => format!(",\"reason\":\"{reason}\""),
        };
        let data = format_args!("\"path\":{path},\"direction\":\"{direction}\",{content}{reason}");
        self.event(now_ns, name, data);
    }

    /// A packet leaves its host, or is at the other one.
    pub(crate) fn host(&mut self, now_ns: u64, leaves: bool, side: Side, packet: &Packet) {
        let name = if leaves { "host_sent" } else { "host_received" };
        let (direction, content) = (direction(side), Item::Host(packet).content());
        let mut delay = String::new();
        if let Body::Data { sent_ns, .. } = packet.body
            && !leaves
        {
            let ms = now_ns.saturating_sub(sent_ns) as f64 / 1e6;
            delay = format!(",\"delay_ms\":{ms}");
        }
        let data = format_args!("\"direction\":\"{direction}\",{content}{delay}");
        self.event(now_ns, name, data);
    }

    /// Writes one event; `data` are the members of its object.
    pub(crate) fn event(&mut self, now_ns: u64, name: &str, data: fmt::Arguments<'_>) {
        let (seconds, nanos) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000);
        self.write(format_args!(
            "{{\"time\":{seconds}.{nanos:09},\"event\":\"{name}\",{data}}}"
        ));
    }

    /// The hash so far.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash ^ (self.hash >> 29)
    }

    /// Ends log and files.
    ///
    /// # Errors
    /// What went wrong with them.
    pub fn finish(&mut self) -> Result<(), String> {
        let mut problems = self
            .capture
            .take()
            .map_or_else(Vec::new, |mut c| c.finish());
        if let Some(mut log) = self.log.take() {
            let error = log.error.or_else(|| log.sink.flush().err());
            let told = |error| format!("the log of events is incomplete: {error}");
            problems.extend(error.map(told));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems.join("; "))
        }
    }

    fn mix(&mut self, now_ns: u64, what: u64, digest: u64) {
        let word = now_ns ^ what.rotate_left(56) ^ digest.wrapping_mul(MIX);
        self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(MIX);
    }

    /// After an error nothing more is written.
    fn write(&mut self, record: fmt::Arguments<'_>) {
        if let Some(log) = self.log.as_mut().filter(|log| log.error.is_none()) {
            log.error = writeln!(log.sink, "{record}").err();
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("hash", &self.hash).finish()
    }
}
