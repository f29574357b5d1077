//! When flows that may go beside a tunnel do so because its far end is not reached.
//!
//! Flows fall back only while the far end is silent and uplinks work. In an outage of every uplink
//! the tunnel holds the packets, because they have nowhere else to go. Both states must last before
//! they count, so that a tunnel that comes and goes does not scatter flows.
//!
//! Invariant: flows never fall back while the tunnel is up, nor while no uplink is usable.

use core::time::Duration;

use ropewalk_types::Instant;

/// How long the far end must be silent while an uplink works. Less time is enough to find that an
/// uplink is dead, and for a tunnel to come back over an uplink that returns. Longer: fewer flows
/// are scattered, later service without the hub. Measured as a whole in `docs/decisions/via.md`.
pub const FALL_BACK_AFTER: Duration = Duration::from_secs(2);
/// How long the tunnel must be up until new flows take it again. Longer: fewer changes by a hub
/// that comes and goes, later return. Measured as a whole in `docs/decisions/via.md`.
pub const RETURN_AFTER: Duration = Duration::from_secs(1);

/// Decides for one tunnel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fallback {
    fallen_back: bool,
    /// Since when the reason to change over has lasted.
    since: Option<Instant>,
}

impl Fallback {
    /// Whether new flows go beside the tunnel.
    #[must_use]
    pub const fn is_fallen_back(&self) -> bool {
        self.fallen_back
    }

    /// Takes what is so now; true when new flows change over.
    pub fn handle(&mut self, now: Instant, tunnel_up: bool, uplink_usable: bool) -> bool {
        let (reason, lasting) = if self.fallen_back {
            (tunnel_up, RETURN_AFTER)
        } else {
            (!tunnel_up && uplink_usable, FALL_BACK_AFTER)
        };
        if !reason {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        if now.since(since) < lasting {
            return false;
        }
        self.fallen_back = !self.fallen_back;
        self.since = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(50);

    /// Seconds after which flows change over, if they do within ten.
    fn changes_after(
        fallback: &mut Fallback,
        start: Instant,
        state: impl Fn(u32) -> (bool, bool),
    ) -> Option<f64> {
        let mut steps = 0..200_u32;
        let found = steps.find(|&step| {
            let (tunnel_up, uplink_usable) = state(step);
            fallback.handle(start + STEP * step, tunnel_up, uplink_usable)
        });
        found.map(|step| (STEP * step).as_secs_f64())
    }

    #[test]
    fn a_silent_hub_is_left_after_two_seconds_and_taken_again_after_one() {
        let mut fallback = Fallback::default();
        let start = Instant::from_nanos(0);
        assert_eq!(changes_after(&mut fallback, start, |_| (true, true)), None);
        let away = changes_after(&mut fallback, start, |_| (false, true));
        assert_eq!(away, Some(2.0));
        assert!(fallback.is_fallen_back());
        let start = Instant::from_nanos(60_000_000_000);
        let back = changes_after(&mut fallback, start, |_| (true, true));
        assert_eq!((back, fallback.is_fallen_back()), (Some(1.0), false));
    }

    #[test]
    fn an_outage_of_every_uplink_is_no_reason_and_its_time_does_not_count() {
        let mut fallback = Fallback::default();
        let start = Instant::from_nanos(0);
        assert_eq!(
            changes_after(&mut fallback, start, |_| (false, false)),
            None
        );
        // The uplinks are back at 5 s, the tunnel a second later.
        let outage = |step| (step >= 120, step >= 100);
        assert_eq!(changes_after(&mut fallback, start, outage), None);
    }

    #[test]
    fn a_hub_that_comes_and_goes_changes_nothing() {
        for fallen_back in [false, true] {
            let mut fallback = Fallback {
                fallen_back,
                since: None,
            };
            let start = Instant::from_nanos(0);
            let flaps = |step| (step % 16 < 8, true);
            assert_eq!(changes_after(&mut fallback, start, flaps), None);
        }
    }
}
