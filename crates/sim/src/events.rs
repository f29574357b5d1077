//! What happened in a run: a hash over all of it.

use ropewalk_netem::DropReason;

/// Odd constant of the hash, from the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hash of every packet delivered or dropped, in order, with its time.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
}

impl Trace {
    /// A packet left a link.
    pub fn delivered(&mut self, now_ns: u64, path: usize, digest: u64) {
        self.mix(now_ns, path as u64, digest);
    }

    /// A link refused a packet.
    pub fn dropped(&mut self, now_ns: u64, path: usize, reason: DropReason, digest: u64) {
        self.mix(now_ns, (path as u64) << 8 | (1 + reason as u64), digest);
    }

    /// A link lost a packet on the way; noticed now.
    pub fn lost(&mut self, now_ns: u64, path: usize, digest: u64) {
        self.mix(now_ns, (path as u64) << 8 | 0x80, digest);
    }

    /// The hash so far.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash ^ (self.hash >> 29)
    }

    fn mix(&mut self, now_ns: u64, what: u64, digest: u64) {
        let word = now_ns ^ what.rotate_left(56) ^ digest.wrapping_mul(MIX);
        self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(MIX);
    }
}
