//! The MTU of the interface with the inner packets.

use crate::settings::{MTU_DEFAULT, MTU_MAX};

/// Follows the paths upwards. Hosts never meet a smaller MTU than that of an ordinary network: the tunnel
/// takes packets that do not fit apart, and TCP is told of segments that fit.
#[derive(Debug)]
pub(crate) struct InnerMtu {
    /// Configured: nothing is followed then.
    fixed: bool,
    /// The value now, bytes.
    current: usize,
    /// Smallest value, bytes.
    floor: usize,
}

impl InnerMtu {
    /// With the configured value, if there is one.
    pub fn new(fixed: Option<usize>) -> Self {
        Self {
            fixed: fixed.is_some(),
            current: fixed.unwrap_or(MTU_DEFAULT),
            floor: MTU_DEFAULT,
        }
    }

    /// The value now, bytes.
    pub const fn current(&self) -> usize {
        self.current
    }

    /// Packets from elsewhere may have this size, bytes.
    pub fn set_floor(&mut self, bytes: usize) {
        self.floor = bytes.max(MTU_DEFAULT);
    }

    /// Takes in what the paths take whole, bytes; the interface's new MTU if that changes it.
    pub fn follow(&mut self, paths: Option<usize>) -> Option<usize> {
        if self.fixed {
            return None;
        }
        let mtu = paths?.max(self.floor).min(MTU_MAX);
        (mtu != self.current).then(|| {
            self.current = mtu;
            mtu
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_is_1500_and_larger_only_where_paths_take_more() {
        let mut mtu = InnerMtu::new(None);
        assert_eq!((mtu.current(), mtu.follow(None)), (1_500, None));
        assert_eq!(mtu.follow(Some(600)), None);
        assert_eq!(mtu.follow(Some(8_900)), Some(8_900));
        assert_eq!(mtu.follow(Some(60_000)), Some(9_000));
        assert_eq!(mtu.follow(Some(1_426)), Some(1_500));
        mtu.set_floor(8_000);
        assert_eq!(mtu.follow(Some(1_426)), Some(8_000));
        mtu.set_floor(1_280);
        assert_eq!(mtu.follow(Some(1_426)), Some(1_500));
    }

    #[test]
    fn a_configured_mtu_stays() {
        let mut mtu = InnerMtu::new(Some(1_400));
        assert_eq!((mtu.follow(Some(8_000)), mtu.current()), (None, 1_400));
    }
}
