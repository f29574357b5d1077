//! What happened in a run: a hash over all of it, and on demand a log of it.
//!
//! The log is a JSON text sequence (RFC 7464) in the manner of qlog: a header, then one event a
//! record with its time in milliseconds.

use ropewalk_netem::DropReason;
use std::fmt;
use std::io::Write;

/// Odd constant of the hash, from the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Stands in the hash where a drop has its reason, for packets lost on the way.
const LOST: u64 = 0x80;

/// Hash of every packet delivered or dropped, in order, with its time.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    log: Option<Log>,
}

struct Log {
    sink: Box<dyn Write + Send>,
    error: Option<std::io::Error>,
}

impl Trace {
    /// A trace that also writes what happens to `sink`.
    pub fn with_log(sink: Box<dyn Write + Send>, plan: &str, seed: u64) -> Self {
        let mut trace = Self {
            hash: 0,
            log: Some(Log { sink, error: None }),
        };
        let title = serde_json::Value::from(plan);
        trace.write(format_args!(
            "{{\"qlog_format\":\"JSON-SEQ\",\"title\":{title},\"seed\":{seed},\"time_unit\":\"ms\"}}"
        ));
        trace
    }

    /// Whether a log is kept.
    #[must_use]
    pub const fn logs(&self) -> bool {
        self.log.is_some()
    }

    /// A packet left a link.
    pub fn delivered(&mut self, now_ns: u64, path: usize, digest: u64) {
        self.mix(now_ns, path as u64, digest);
    }

    /// A link refused a packet.
    pub fn dropped(&mut self, now_ns: u64, path: usize, reason: DropReason, digest: u64) {
        self.mix(now_ns, (path as u64) << 8 | (1 + reason as u64), digest);
        if self.logs() {
            let data = format_args!("\"path\":{path},\"reason\":\"{reason:?}\"");
            self.event(now_ns, "packet_dropped", data);
        }
    }

    /// A link lost a packet on the way; noticed now.
    pub fn lost(&mut self, now_ns: u64, path: usize, digest: u64) {
        self.mix(now_ns, (path as u64) << 8 | LOST, digest);
        if self.logs() {
            let data = format_args!("\"path\":{path},\"reason\":\"Loss\"");
            self.event(now_ns, "packet_dropped", data);
        }
    }

    /// Writes one event; `data` are the members of its object.
    pub fn event(&mut self, now_ns: u64, name: &str, data: fmt::Arguments<'_>) {
        let time = now_ns as f64 / 1e6;
        self.write(format_args!(
            "{{\"time\":{time},\"name\":\"{name}\",\"data\":{{{data}}}}}"
        ));
    }

    /// The hash so far.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash ^ (self.hash >> 29)
    }

    /// Ends the log; what went wrong with it, if anything did.
    pub fn finish(&mut self) -> Option<std::io::Error> {
        let mut log = self.log.take()?;
        log.error.or_else(|| log.sink.flush().err())
    }

    fn mix(&mut self, now_ns: u64, what: u64, digest: u64) {
        let word = now_ns ^ what.rotate_left(56) ^ digest.wrapping_mul(MIX);
        self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(MIX);
    }

    /// After an error nothing more is written.
    fn write(&mut self, record: fmt::Arguments<'_>) {
        if let Some(log) = self.log.as_mut().filter(|log| log.error.is_none()) {
            log.error = writeln!(log.sink, "\u{1e}{record}").err();
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("hash", &self.hash).finish()
    }
}
