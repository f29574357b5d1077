//! The traffic of a site besides its pings: what leaves when.
//!
//! The packets are pings of another identifier. The hub's kernel answers them with the same bytes, so
//! every byte that comes back has crossed the tunnel in both directions.

use std::fmt;

use clap::ValueEnum;
use ropewalk_types::{Duration, Instant, Random};

use crate::chance;
use crate::tuning::{
    CATCH_UP, FULL_BYTES, PACE, VOICE_BYTES, VOICE_INTERVAL, WEB_PACKETS, WEB_PAUSE, WINDOW_USUAL,
};
use crate::window::Window;

/// What the sites do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Nothing but pings.
    #[default]
    None,
    /// As much as the tunnel takes: packets of 1,400 bytes, in a window as that of TCP.
    Bulk,
    /// A call: 50 packets of 60 bytes in a second.
    Voice,
    /// Pages: 100 kB at a time, then a pause of 3 s on average.
    Web,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.to_possible_value()
                .as_ref()
                .map_or("", |v| v.get_name()),
        )
    }
}

/// The time between two packets of [`FULL_BYTES`] at a rate in Mbit/s.
pub(crate) fn interval(mbit: f64) -> Duration {
    Duration::from_secs_f64(f64::from(FULL_BYTES) * 8.0 / (mbit * 1e6))
}

/// What is asked of the sites.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) profile: Profile,
    /// Least time between two packets of bulk.
    pub(crate) interval: Option<Duration>,
    /// Packets without an answer that each site has at most.
    pub(crate) window: u16,
}

impl Traffic {
    /// None at all.
    pub(crate) const NONE: Self = Self {
        profile: Profile::None,
        interval: None,
        window: WINDOW_USUAL,
    };
}

/// The traffic of one site.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    profile: Profile,
    /// Between two packets; none where only the window decides.
    interval: Option<Duration>,
    window: Window,
    random: Random,
    number: u16,
    /// When the next packet may leave, while the tunnel is there.
    next: Option<Instant>,
    /// Packets of the page that are still to leave.
    left: u32,
}

impl Load {
    /// Traffic that has not begun.
    pub(crate) fn new(kind: Traffic, random: Random) -> Self {
        let Traffic {
            profile,
            interval,
            window,
        } = kind;
        let interval = match profile {
            Profile::Voice => Some(VOICE_INTERVAL),
            Profile::None | Profile::Bulk | Profile::Web => interval,
        };
        Self {
            profile,
            interval,
            window: Window::new(f64::from(window)),
            random,
            number: 0,
            next: None,
            left: WEB_PACKETS,
        }
    }

    /// The tunnel is there. Sites do not begin in step.
    pub(crate) fn start(&mut self, now: Instant) {
        self.window.reset();
        self.left = WEB_PACKETS;
        let chance = self.random.unit();
        self.next = match self.profile {
            Profile::None => None,
            Profile::Bulk | Profile::Voice => {
                Some(now + self.interval.unwrap_or(Duration::ZERO).mul_f64(chance))
            }
            Profile::Web => Some(now + WEB_PAUSE.mul_f64(chance)),
        };
    }

    /// The site is gone.
    pub(crate) const fn stop(&mut self) {
        self.next = None;
    }

    /// Bytes of a packet, with its IP header.
    pub(crate) const fn bytes(&self) -> u16 {
        match self.profile {
            Profile::Voice => VOICE_BYTES,
            Profile::None | Profile::Bulk | Profile::Web => FULL_BYTES,
        }
    }

    /// The number of a packet that leaves now, if one may.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u16> {
        let due = self.next?;
        if due > now || !self.may_leave() {
            return None;
        }
        if self.profile == Profile::Web && self.left == WEB_PACKETS {
            self.window.rest();
        }
        self.number = self.number.wrapping_add(1);
        if self.has_window() {
            self.window.on_sent(now, self.number);
        }
        self.next = Some(match self.interval {
            // A process that lags makes up for a little of it.
            Some(interval) => (due + interval).max(now - CATCH_UP),
            None => due,
        });
        if self.profile == Profile::Web {
            self.left -= 1;
            if self.left == 0 {
                self.left = WEB_PACKETS;
                self.next = Some(now + chance::around(WEB_PAUSE, &mut self.random));
            }
        }
        Some(self.number)
    }

    /// An answer came; false if it is a copy of one.
    pub(crate) fn on_answer(&mut self, number: u16) -> bool {
        !self.has_window() || self.window.on_answer(number)
    }

    /// Timers.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.window.on_timeout(now);
    }

    /// When a packet may leave or [`Self::on_timeout`] is wanted, if no answer comes before.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let next = self.next?;
        let packet = self.may_leave().then(|| match self.interval {
            Some(_) => next.max(now + PACE),
            None => next.max(now),
        });
        packet.into_iter().chain(self.window.poll_timeout()).min()
    }

    const fn has_window(&self) -> bool {
        matches!(self.profile, Profile::Bulk | Profile::Web)
    }

    fn may_leave(&self) -> bool {
        !self.has_window() || self.window.is_open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::WINDOW_FIRST;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// Packets that leave in this many milliseconds, each answered at once or not at all.
    fn packets(load: &mut Load, ms: u64, answered: bool) -> u64 {
        let mut sent = 0;
        for now in (0..ms).map(at) {
            load.on_timeout(now);
            while let Some(number) = load.take(now) {
                sent += 1;
                if answered {
                    load.on_answer(number);
                }
                if sent == 100_000 {
                    return sent;
                }
            }
        }
        sent
    }

    fn traffic(profile: Profile, interval: Option<Duration>) -> Traffic {
        Traffic {
            profile,
            interval,
            ..Traffic::NONE
        }
    }

    fn load(profile: Profile, interval: Option<Duration>) -> Load {
        let mut load = Load::new(traffic(profile, interval), Random::new(3));
        load.start(at(0));
        load
    }

    #[test]
    fn bulk_is_as_much_as_is_answered() {
        assert_eq!(packets(&mut load(Profile::Bulk, None), 10, true), 100_000);
        let silent = packets(&mut load(Profile::Bulk, None), 10, false);
        assert_eq!(silent, WINDOW_FIRST as u64);
    }

    #[test]
    fn a_rate_bounds_bulk() {
        let per_ms = Some(interval(11.2));
        assert_eq!(per_ms, Some(Duration::from_millis(1)));
        let sent = packets(&mut load(Profile::Bulk, per_ms), 1_000, true);
        assert!((998..=1_000).contains(&sent), "{sent}");
        let mut late = load(Profile::Bulk, per_ms);
        let mut burst = 0;
        while let Some(number) = late.take(at(5_000)) {
            late.on_answer(number);
            burst += 1;
        }
        assert!(burst <= 2 + CATCH_UP.as_millis(), "{burst}");
    }

    #[test]
    fn a_call_goes_on_whatever_is_answered() {
        let sent = packets(&mut load(Profile::Voice, None), 2_000, false);
        assert!((99..=101).contains(&sent), "{sent}");
        assert_eq!(load(Profile::Voice, None).bytes(), 60);
    }

    #[test]
    fn pages_are_whole_and_far_apart() {
        let sent = packets(&mut load(Profile::Web, None), 60_000, true);
        assert_eq!(sent % u64::from(WEB_PACKETS), 0);
        let mut page = load(Profile::Web, None);
        let begins = page.poll_timeout(at(0)).expect("a page");
        let first = std::iter::from_fn(|| page.take(begins)).count();
        assert_eq!(first, WINDOW_FIRST as usize, "a page waits for answers");
        let pages = sent / u64::from(WEB_PACKETS);
        assert!((8..=40).contains(&pages), "{pages} pages in 60 s");
    }

    #[test]
    fn nothing_leaves_without_a_tunnel() {
        let mut load = Load::new(traffic(Profile::Bulk, None), Random::new(1));
        assert_eq!((load.take(at(1)), load.poll_timeout(at(1))), (None, None));
        load.start(at(1));
        assert!(load.take(at(1)).is_some());
        load.stop();
        assert_eq!((load.take(at(2)), load.poll_timeout(at(2))), (None, None));
        let mut none = Load::new(Traffic::NONE, Random::new(1));
        none.start(at(1));
        assert_eq!(none.take(at(9)), None);
    }
}
