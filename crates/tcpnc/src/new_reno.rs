//! TCP NewReno without selective acknowledgements: RFC 5681, RFC 6582, RFC 6298. Sequence numbers
//! count segments.
//!
//! The layer of network coding uses it for the tunnel's session, and simulated hosts without TCP
//! options use it as it is. It decides when a segment may leave and when a loss is to be repaired;
//! what exactly is sent is the caller's.

use crate::tuning::{DUPLICATES, INITIAL_WINDOW, RTO_INITIAL, RTO_MAX, RTO_MIN};
use ropewalk_types::{Duration, Instant};

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// From three duplicates until everything sent before is acknowledged.
    FastRecovery,
    /// The same after a timeout.
    Timeout,
}

/// What to do after an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is missing.
    Fine,
    /// The oldest unacknowledged segment is lost: send it again.
    Retransmit,
    /// Losses are being repaired.
    Recovering,
}

/// The sending side of one session.
#[derive(Clone, Debug)]
pub struct NewReno {
    una: u32,
    next: u32,
    /// One past the highest segment ever sent.
    sent: u32,
    recover: u32,
    state: State,
    duplicates: u32,
    /// Segments; the fraction grows in congestion avoidance.
    cwnd: f64,
    ssthresh: f64,
    window_max: u32,
    go_back: bool,
    smoothed: Option<(Duration, Duration)>,
    timed: Option<(u32, Instant)>,
    timer: Option<Instant>,
    backoff: u32,
    timeouts: u64,
}

impl NewReno {
    /// A session whose peer's window is `window_max` segments. With `go_back` everything is sent
    /// again after a timeout, as a sender without any knowledge of its receiver must.
    #[must_use]
    pub fn new(window_max: u32, go_back: bool) -> Self {
        Self {
            una: 0,
            next: 0,
            sent: 0,
            recover: 0,
            state: State::Open,
            duplicates: 0,
            cwnd: f64::from(INITIAL_WINDOW),
            ssthresh: f64::INFINITY,
            window_max,
            go_back,
            smoothed: None,
            timed: None,
            timer: None,
            backoff: 0,
            timeouts: 0,
        }
    }

    /// The oldest segment that is not acknowledged.
    #[must_use]
    pub const fn una(&self) -> u32 {
        self.una
    }

    /// Whether losses are being repaired.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.state != State::Open
    }

    /// Congestion window, whole segments.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "1 to 2^20"
    )]
    pub const fn cwnd(&self) -> u32 {
        self.cwnd as u32
    }

    /// How often the timer ran out.
    #[must_use]
    pub const fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// When [`Self::on_timer`] is wanted.
    #[must_use]
    pub const fn due(&self) -> Option<Instant> {
        self.timer
    }

    /// The next segment to send of `available` ones, if the window lets it; whether it was sent
    /// before.
    pub fn poll(&mut self, now: Instant, available: u32) -> Option<(u32, bool)> {
        let window = self.cwnd().min(self.window_max);
        if self.next >= available || self.next - self.una >= window {
            return None;
        }
        let number = self.next;
        let again = number < self.sent;
        self.next += 1;
        self.sent = self.sent.max(self.next);
        if !again && self.timed.is_none() {
            self.timed = Some((number, now));
        }
        if self.timer.is_none() {
            self.timer = Some(now + self.timeout());
        }
        Some((number, again))
    }

    /// Everything before `next` has arrived; `duplicate` if it says that something later arrived.
    pub fn on_ack(&mut self, now: Instant, next: u32, duplicate: bool) -> Verdict {
        if next > self.sent || next < self.una {
            return Verdict::Fine;
        }
        if next > self.una {
            return self.advance(now, next);
        }
        if !duplicate || self.sent == self.una {
            return self.unchanged();
        }
        self.duplicates += 1;
        match self.state {
            State::FastRecovery => self.cwnd += 1.0,
            // RFC 6582 §3.2 step 1: not again for what was sent before the last loss.
            State::Open if self.duplicates == DUPLICATES && self.una >= self.recover => {
                self.halve();
                self.cwnd = self.ssthresh + f64::from(DUPLICATES);
                self.state = State::FastRecovery;
                self.recover = self.sent;
                self.timed = None;
                return Verdict::Retransmit;
            }
            State::Open | State::Timeout => {}
        }
        self.unchanged()
    }

    fn advance(&mut self, now: Instant, next: u32) -> Verdict {
        let acked = next - self.una;
        self.una = next;
        self.next = self.next.max(next);
        self.duplicates = 0;
        self.backoff = 0;
        if let Some((number, at)) = self.timed
            && next > number
        {
            self.timed = None;
            self.sample(now.since(at));
        }
        self.timer = (self.sent > self.una).then(|| now + self.timeout());
        let done = next >= self.recover;
        match self.state {
            State::FastRecovery if done => {
                self.cwnd = self.ssthresh;
                self.state = State::Open;
                Verdict::Fine
            }
            State::FastRecovery => {
                // RFC 6582 §3.2 step 5: deflate by what was acknowledged, add one segment.
                self.cwnd = (self.cwnd - f64::from(acked) + 1.0).max(1.0);
                Verdict::Retransmit
            }
            State::Timeout if done => {
                self.grow();
                self.state = State::Open;
                Verdict::Fine
            }
            State::Timeout => {
                self.grow();
                // With go-back the window itself sends what follows.
                if self.go_back {
                    Verdict::Recovering
                } else {
                    Verdict::Retransmit
                }
            }
            State::Open => {
                self.grow();
                Verdict::Fine
            }
        }
    }

    fn unchanged(&self) -> Verdict {
        if self.is_recovering() {
            Verdict::Recovering
        } else {
            Verdict::Fine
        }
    }

    /// The timer may have run out; then the oldest segment is to be sent again, by
    /// [`Self::poll`] with go-back, else by the caller.
    pub fn on_timer(&mut self, now: Instant) -> bool {
        if self.timer.is_none_or(|at| at > now) {
            return false;
        }
        self.timer = None;
        if self.sent == self.una {
            return false;
        }
        self.timeouts += 1;
        self.halve();
        self.cwnd = 1.0;
        self.state = State::Timeout;
        self.recover = self.sent;
        self.duplicates = 0;
        self.timed = None;
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        if self.go_back {
            self.next = self.una;
        }
        self.timer = Some(now + self.timeout());
        true
    }

    fn halve(&mut self) {
        self.ssthresh = (f64::from(self.sent - self.una) / 2.0).max(2.0);
    }

    /// RFC 5681 §3.1.
    fn grow(&mut self) {
        self.cwnd += if self.cwnd < self.ssthresh {
            1.0
        } else {
            1.0 / self.cwnd
        };
        // What the peer's window does not let out proves nothing (RFC 7661 §1).
        self.cwnd = self.cwnd.min(f64::from(self.window_max));
    }

    fn sample(&mut self, rtt: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (rtt, rtt / 2),
            Some((smoothed, variation)) => {
                let deviation = smoothed.abs_diff(rtt);
                ((smoothed * 7 + rtt) / 8, (variation * 3 + deviation) / 4)
            }
        });
    }

    fn timeout(&self) -> Duration {
        let base = self.smoothed.map_or(RTO_INITIAL, |(smoothed, variation)| {
            (smoothed + variation * 4).max(RTO_MIN)
        });
        (base * (1 << self.backoff)).min(RTO_MAX)
    }
}

/// Doublings of the timeout: 64 s are more than its most.
const BACKOFF_MAX: u32 = 6;
