//! The MTU of the interface with the inner packets: it follows what the paths take.

use ropewalk_types::Instant;

use crate::settings::{MTU_MAX, MTU_MIN};
use crate::tuning::MTU_PATIENCE;

/// Follows the paths. Hosts remember a smaller MTU for minutes. So they are not told of a value
/// that a path has only just found or takes for a moment. Meanwhile the tunnel splits packets.
#[derive(Debug)]
pub(crate) struct InnerMtu {
    /// Configured, bytes: nothing is followed then.
    fixed: bool,
    current: usize,
    /// Since when the paths take less than that.
    short_since: Option<Instant>,
    /// Smallest value, bytes, even where the paths take less.
    floor: usize,
}

impl InnerMtu {
    /// With the configured value, if there is one.
    pub fn new(fixed: Option<usize>) -> Self {
        Self {
            fixed: fixed.is_some(),
            current: fixed.unwrap_or(MTU_MIN),
            short_since: None,
            floor: 0,
        }
    }

    /// The value now, bytes.
    pub const fn current(&self) -> usize {
        self.current
    }

    /// Packets from elsewhere may have this size, bytes: the interface takes them, and the tunnel splits them.
    pub const fn set_floor(&mut self, bytes: usize) {
        self.floor = bytes;
    }

    /// Takes in what the paths take whole, bytes; the interface's new MTU if that changes it.
    pub fn follow(&mut self, now: Instant, paths: Option<usize>) -> Option<usize> {
        if self.fixed {
            return None;
        }
        let mtu = paths?.max(self.floor).clamp(MTU_MIN, MTU_MAX);
        if mtu >= self.current {
            self.short_since = None;
        } else if now.since(*self.short_since.get_or_insert(now)) < MTU_PATIENCE {
            return None;
        }
        (mtu != self.current).then(|| {
            self.current = mtu;
            mtu
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_types::Duration;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_larger_mtu_counts_at_once_and_a_smaller_one_after_twenty_seconds() {
        let mut mtu = InnerMtu::new(None);
        assert_eq!(mtu.follow(at(0), Some(1_435)), Some(1_435));
        assert_eq!(mtu.follow(at(1), Some(1_300)), None);
        assert_eq!(mtu.follow(at(15), Some(1_435)), None);
        assert_eq!(
            mtu.follow(at(16), Some(1_300)),
            None,
            "the wait begins anew"
        );
        assert_eq!(mtu.follow(at(35), Some(1_300)), None);
        assert_eq!(mtu.follow(at(36), Some(1_300)), Some(1_300));
        assert_eq!(mtu.current(), 1_300);
    }

    #[test]
    fn the_floor_and_the_limits_of_the_interface_hold() {
        let mut mtu = InnerMtu::new(None);
        assert_eq!(mtu.follow(at(0), Some(600)), None, "1,280 bytes at least");
        mtu.set_floor(1_500);
        assert_eq!(mtu.follow(at(0), Some(1_400)), Some(1_500));
        assert_eq!(mtu.follow(at(0), Some(60_000)), Some(9_000));
        assert_eq!(mtu.follow(at(0), None), None, "no path says anything");
    }

    #[test]
    fn a_configured_mtu_stays() {
        let mut mtu = InnerMtu::new(Some(1_400));
        assert_eq!(mtu.follow(at(0), Some(8_000)), None);
        assert_eq!(mtu.current(), 1_400);
    }
}
