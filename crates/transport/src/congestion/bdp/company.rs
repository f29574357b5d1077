//! The window while others keep up a queue at the bottleneck.
//!
//! Whoever avoids queues starves beside those who fill them. In company the window is therefore
//! that of as many CUBIC connections as the tunnel has flows with data waiting (RFC 9438; MulTCP,
//! Crowcroft and Oechslin 1998, for the number). What tells company from a queue of our own: when
//! the window shrinks, the delay shrinks by our share of the queue only. Alone, our share is all.

use std::time::Instant;

use super::tuning::*;

/// What a round showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompanyRound {
    pub now: Instant,
    /// Mean time in flight, seconds.
    pub mean: f64,
    /// Smallest round-trip time, seconds.
    pub rtt_min: f64,
    /// Delivery rate, bytes per second.
    pub rate: f64,
    /// Packets lost beyond what the path loses by itself.
    pub lost: f64,
    /// The sender had no more to send.
    pub app_limited: bool,
}

/// Where a test of our share of the queue stands.
#[derive(Clone, Copy, Debug)]
enum Test {
    /// Rounds since the last test.
    Between(u8),
    /// The window is low since so many rounds.
    Low(u8),
}

/// State of a path in company.
#[derive(Clone, Debug)]
pub(super) struct Company {
    mtu: f64,
    /// Connections that this path stands for.
    flows: f64,
    /// Bytes.
    window: f64,
    /// Of one connection, packets: the window before the last cut, and the Reno-friendly window.
    largest: f64,
    friendly: f64,
    /// Begin of CUBIC's curve, and the window then, packets of one connection.
    epoch: Instant,
    begin: f64,
    last: Instant,
    /// Losses of this round were sent before the last cut.
    recovering: bool,
    test: Test,
    /// Means of time in flight and of bytes in flight between tests.
    stay: f64,
    in_flight: f64,
    /// Tests in a row that found nobody else.
    alone: u8,
}

impl Company {
    pub(super) fn new(now: Instant, mtu: u64, window: u64, flows: f64, stay: f64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "estimates")]
        let (mtu, window) = (mtu as f64, window as f64);
        let each = window / mtu / flows;
        Self {
            mtu,
            flows,
            window,
            largest: each,
            friendly: each,
            epoch: now,
            begin: each,
            last: now,
            recovering: false,
            test: Test::Between(0),
            stay,
            in_flight: 0.0,
            alone: 0,
        }
    }

    /// Mean time in flight between tests, seconds.
    pub(super) const fn stay(&self) -> f64 {
        self.stay
    }

    /// Bytes that may be in flight.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive"
    )]
    pub(super) fn window(&self) -> u64 {
        let gain = match self.test {
            Test::Between(_) => 1.0,
            Test::Low(_) => TEST_GAIN,
        };
        (self.window * gain) as u64
    }

    /// Takes a round in; answers whether the others have gone.
    pub(super) fn end_round(&mut self, round: &CompanyRound, flows: f64) -> bool {
        self.set_flows(flows);
        if round.lost >= 0.5 && !self.recovering {
            self.cut(round.now, round.lost);
            self.recovering = true;
        } else {
            self.recovering = false;
            self.grow(round);
        }
        self.last = round.now;
        self.test(round);
        self.alone >= TEST_ALONE
    }

    /// More or fewer connections, and the same window and curve for all together.
    fn set_flows(&mut self, flows: f64) {
        let factor = self.flows / flows;
        self.largest *= factor;
        self.friendly *= factor;
        self.begin *= factor;
        self.flows = flows;
    }

    /// As many of the connections as packets are lost cut their windows to [`CUBIC_BETA`].
    fn cut(&mut self, now: Instant, lost: f64) {
        let share = lost.min(self.flows) / self.flows;
        let each = self.window / self.mtu / self.flows;
        // RFC 9438 §4.7: who gives way to newcomers aims lower.
        self.largest = if each < self.largest {
            each * (1.0 + CUBIC_BETA) / 2.0
        } else {
            each
        };
        self.window *= 1.0 - (1.0 - CUBIC_BETA) * share;
        let each = self.window / self.mtu / self.flows;
        self.friendly = each;
        (self.begin, self.epoch) = (each, now);
    }

    fn grow(&mut self, round: &CompanyRound) {
        // Flows inside go down to CUBIC's share after a loss of theirs: they still want all.
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let window = self.window() as f64;
        if round.app_limited && round.rate * round.mean < CUBIC_BETA * window {
            // Time in which nothing was asked for does not count.
            self.epoch += round.now.saturating_duration_since(self.last);
            return;
        }
        let seconds = round
            .now
            .saturating_duration_since(self.epoch)
            .as_secs_f64()
            + round.mean;
        let k = ((self.largest - self.begin).max(0.0) / CUBIC_C).cbrt();
        let cubic = CUBIC_C * (seconds - k).powi(3) + self.largest.max(self.begin);
        let trips = round.now.saturating_duration_since(self.last).as_secs_f64() / round.mean;
        let gain = if self.friendly < self.largest {
            3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA)
        } else {
            1.0
        };
        self.friendly += gain * trips;
        let each = self.window / self.mtu / self.flows;
        let wanted = cubic.min(each * CUBIC_GROWTH).max(self.friendly).max(each);
        #[expect(clippy::cast_precision_loss, reason = "a bound")]
        let most = WINDOW_MAX as f64;
        self.window = (wanted * self.flows * self.mtu).min(most);
    }

    fn test(&mut self, round: &CompanyRound) {
        let in_flight = round.rate * round.mean;
        self.test = match self.test {
            Test::Between(rounds) => {
                if rounds == 0 {
                    (self.stay, self.in_flight) = (round.mean, in_flight);
                } else {
                    self.stay += (round.mean - self.stay) / 2.0;
                    self.in_flight += (in_flight - self.in_flight) / 2.0;
                }
                if rounds >= TEST_ROUNDS {
                    Test::Low(0)
                } else {
                    Test::Between(rounds + 1)
                }
            }
            Test::Low(0) => Test::Low(1),
            Test::Low(_) => {
                let fewer = 1.0 - in_flight / self.in_flight;
                let shorter = 1.0 - round.mean / self.stay;
                if fewer > TEST_LEAST {
                    let share = (shorter / fewer).clamp(0.0, 1.5);
                    self.alone = if share > ALONE_SHARE {
                        self.alone + 1
                    } else {
                        0
                    };
                }
                Test::Between(0)
            }
        };
    }
}
