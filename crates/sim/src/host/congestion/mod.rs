//! Congestion control of hosts, as Linux has it: one file per algorithm, a closed set.

mod bbr;
mod cubic;
mod new_reno;

use bbr::Bbr;
use cubic::Cubic;
use new_reno::NewReno;
use ropewalk_plan::Congestion;
use ropewalk_types::Random;

/// Segments of the first window (RFC 6928).
pub const INITIAL_WINDOW: u32 = 10;
/// Smallest window after a loss, segments.
pub const MIN_WINDOW: u32 = 2;

/// The window and its threshold, in segments.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Congestion window.
    pub cwnd: u32,
    /// Slow start ends here.
    pub ssthresh: u32,
    /// Acknowledged segments not yet turned into growth.
    pub credit: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            cwnd: INITIAL_WINDOW,
            ssthresh: u32::MAX,
            credit: 0,
        }
    }
}

impl Window {
    /// Whether the window still doubles each round trip.
    #[must_use]
    pub const fn slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows up to the threshold; what is left of `acked`.
    fn grow_slow_start(&mut self, acked: u32) -> u32 {
        let cwnd = (self.cwnd.saturating_add(acked)).min(self.ssthresh);
        let left = acked.saturating_sub(cwnd - self.cwnd);
        self.cwnd = cwnd;
        left
    }

    /// One segment more per `per` acknowledged ones (RFC 5681 §3.1).
    fn grow_one_per(&mut self, per: u32, acked: u32) {
        let per = per.max(1);
        if self.credit >= per {
            self.credit = 0;
            self.cwnd += 1;
        }
        self.credit += acked;
        if self.credit >= per {
            self.cwnd += self.credit / per;
            self.credit %= per;
        }
    }
}

/// What one acknowledgement showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// Time of the acknowledgement.
    pub now_ns: u64,
    /// Segments newly acknowledged, selectively or not.
    pub acked: u32,
    /// Segments newly found lost.
    pub lost: u32,
    /// Round-trip time of the newest segment sent once.
    pub rtt_ns: Option<u64>,
    /// Segments delivered before the sampled one was sent, and how long delivery took since;
    /// `None` if the interval says nothing.
    pub rate: Option<RateSample>,
    /// Segments delivered in all.
    pub delivered: u64,
    /// Segments in the network after it, and before.
    pub in_flight: u32,
    /// Before it.
    pub prior_in_flight: u32,
    /// Whether the window was what limited sending.
    pub window_limited: bool,
    /// Whether lost segments are being repaired.
    pub recovering: bool,
}

/// A delivery rate sample (draft-cheng-iccrg-delivery-rate-estimation §3).
#[derive(Clone, Copy, Debug)]
pub struct RateSample {
    /// Segments delivered when the sampled one was sent.
    pub prior_delivered: u64,
    /// Segments delivered since.
    pub delivered: u64,
    /// In this time.
    pub interval_ns: u64,
    /// Whether the sender had nothing to send then.
    pub app_limited: bool,
}

/// One of the algorithms.
#[derive(Clone, Debug)]
pub enum Controller {
    /// RFC 5681.
    NewReno(NewReno),
    /// RFC 9438.
    Cubic(Cubic),
    /// BBR version 1.
    Bbr(Box<Bbr>),
}

impl Controller {
    /// A controller at the start of a connection.
    #[must_use]
    pub fn new(kind: Congestion, random: Random) -> Self {
        match kind {
            Congestion::NewReno => Self::NewReno(NewReno),
            Congestion::Cubic => Self::Cubic(Cubic::default()),
            Congestion::Bbr => Self::Bbr(Box::new(Bbr::new(random))),
        }
    }

    /// Grows the window after an acknowledgement in a state without losses to repair.
    pub fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        match self {
            Self::NewReno(algorithm) => algorithm.on_ack(window, sample),
            Self::Cubic(algorithm) => algorithm.on_ack(window, sample),
            Self::Bbr(_) => {}
        }
    }

    /// Every acknowledgement in whatever state; true if the algorithm has set the window itself.
    pub fn on_every_ack(&mut self, window: &mut Window, sample: &AckSample) -> bool {
        match self {
            Self::NewReno(_) => false,
            Self::Cubic(algorithm) => {
                algorithm.on_rtt(window, sample);
                false
            }
            Self::Bbr(algorithm) => {
                algorithm.on_ack(window, sample);
                true
            }
        }
    }

    /// The threshold after a loss.
    pub fn on_loss(&mut self, window: &Window) -> u32 {
        match self {
            Self::NewReno(_) => (window.cwnd / 2).max(MIN_WINDOW),
            Self::Cubic(algorithm) => algorithm.on_loss(window),
            Self::Bbr(algorithm) => {
                algorithm.save_window(window);
                window.ssthresh
            }
        }
    }

    /// A retransmission timeout, after the threshold was set.
    pub fn on_timeout(&mut self) {
        if let Self::Cubic(algorithm) = self {
            algorithm.on_timeout();
        }
    }

    /// The last reduction was for nothing.
    pub fn on_undo(&mut self, window: &mut Window) {
        if let Self::Bbr(algorithm) = self {
            algorithm.on_undo(window);
        }
    }

    /// Sending begins after a pause of the application.
    pub fn on_restart(&mut self, idle_ns: u64) {
        match self {
            Self::NewReno(_) => {}
            Self::Cubic(algorithm) => algorithm.on_restart(idle_ns),
            Self::Bbr(algorithm) => algorithm.on_restart(),
        }
    }

    /// Whether the algorithm sets the window itself, also while losses are repaired.
    #[must_use]
    pub const fn is_model_based(&self) -> bool {
        matches!(self, Self::Bbr(_))
    }

    /// Segments per second at which to send; `None` sends as the window allows.
    #[must_use]
    pub fn pacing_per_sec(&self) -> Option<f64> {
        match self {
            Self::NewReno(_) | Self::Cubic(_) => None,
            Self::Bbr(algorithm) => Some(algorithm.pacing_per_sec()),
        }
    }
}
