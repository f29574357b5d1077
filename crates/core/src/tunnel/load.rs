//! How much each flow sends: what it needs of order and protection follows from that.

use super::tuning::{HEAVY_BYTES, LOAD_WINDOW_NANOS, OPENING_BYTES, SPARSE_BYTES};
use ropewalk_types::Instant;

/// How much a flow sends, in windows of [`LOAD_WINDOW_NANOS`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowLoad {
    window: u32,
    bytes: u32,
    /// Bytes of the window before, if that one followed.
    before: u32,
}

impl FlowLoad {
    /// Counts a packet.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "windows wrap after 68 years"
    )]
    pub fn count(&mut self, now: Instant, bytes: u64) {
        let window = (now.as_nanos() / LOAD_WINDOW_NANOS) as u32;
        if window != self.window {
            let follows = window == self.window.wrapping_add(1);
            self.before = if follows { self.bytes } else { 0 };
            (self.window, self.bytes) = (window, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes as u32);
    }

    /// Whether nothing of what was counted matters any more.
    pub const fn is_over(&self, now: Instant) -> bool {
        now.as_nanos() / LOAD_WINDOW_NANOS > self.window as u64 + 1
    }

    /// Whether the flow sends so much that a packet out of order costs it more than waiting for order.
    pub const fn is_heavy(&self) -> bool {
        self.before >= HEAVY_BYTES || self.bytes >= HEAVY_BYTES
    }

    /// Whether these are the first packets after a while: a query, a handshake, a request.
    pub const fn is_opening(&self) -> bool {
        self.before == 0 && self.bytes <= OPENING_BYTES
    }

    /// Whether it sends so little that every packet may count.
    pub const fn is_thin(&self) -> bool {
        self.before < SPARSE_BYTES && self.bytes < SPARSE_BYTES
    }
}
