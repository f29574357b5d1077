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
    /// Delay that may be chance or an allowance, seconds.
    pub noise: f64,
    /// The sender had no more to send.
    pub app_limited: bool,
}

/// What company begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub now: Instant,
    /// Bytes.
    pub mtu: f64,
    /// Connections that the path stands for.
    pub flows: f64,
    /// Delivery rate, bytes per second.
    pub rate: f64,
    /// Mean time in flight, seconds.
    pub stay: f64,
    /// Time in flight without a queue, as far as known, seconds.
    pub bare: f64,
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
    /// Delivery rate of the last rounds, bytes per second.
    usual: f64,
    /// Tests are by what is in flight, not by the window: the senders inside may use less than the
    /// window. Such a test costs these senders some of their share. So there must be a reason: the
    /// rate has leapt as if others had left.
    thorough: bool,
    /// The next test is the first one, and decides alone.
    first: bool,
    /// Means of time in flight and of bytes in flight between tests.
    stay: f64,
    in_flight: f64,
    /// Shortest time in flight, mean of a round, seconds: seen at all, and since company began.
    bare: f64,
    shortest: f64,
    /// Packets lost since the last test.
    lost: f64,
    /// Tests in a row that end it.
    tests: u8,
    /// Tests in a row that found nobody else.
    alone: u8,
}

impl Start {
    /// Bytes in flight, by Little's law.
    pub(super) fn in_flight(&self) -> f64 {
        self.rate * self.stay
    }
}

impl Company {
    /// Delay has stayed although less is in flight. A test comes first: the path may have become
    /// slower. If that finds company, the window is `reached` bytes, what was in flight before the
    /// others came.
    pub(super) fn by_delay(start: &Start, reached: f64) -> Self {
        Self {
            test: Test::Low(0),
            first: true,
            thorough: true,
            ..Self::new(start, reached, TEST_ALONE)
        }
    }

    /// A queue overflows that we do not fill: the window gives way at once, from `window` bytes.
    pub(super) fn by_losses(start: &Start, window: f64) -> Self {
        Self::new(start, window * CUBIC_BETA, TEST_ALONE_LOSSES)
    }

    /// Another packet size, and the same window for all together.
    pub(super) fn set_mtu(&mut self, mtu: f64) {
        self.rescale(self.mtu / mtu);
        self.mtu = mtu;
    }

    fn new(start: &Start, window: f64, tests: u8) -> Self {
        let each = window / start.mtu / start.flows;
        Self {
            mtu: start.mtu,
            flows: start.flows,
            window,
            largest: each,
            friendly: each,
            epoch: start.now,
            begin: each,
            last: start.now,
            recovering: false,
            test: Test::Between(0),
            first: false,
            thorough: false,
            usual: start.rate,
            stay: start.stay,
            in_flight: start.in_flight(),
            bare: start.bare,
            shortest: start.stay,
            lost: 0.0,
            tests,
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
        let window = match self.test {
            Test::Between(_) => self.window,
            Test::Low(_) if self.thorough => self.window.min(self.in_flight) * TEST_GAIN,
            Test::Low(_) => self.window * TEST_GAIN,
        };
        window as u64
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
        self.alone >= self.tests
    }

    /// More or fewer connections, and the same window and curve for all together.
    fn set_flows(&mut self, flows: f64) {
        self.rescale(self.flows / flows);
        self.flows = flows;
    }

    /// Multiplies what is counted in packets of one connection.
    fn rescale(&mut self, factor: f64) {
        self.largest *= factor;
        self.friendly *= factor;
        self.begin *= factor;
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
        let left = self.window * (1.0 - (1.0 - CUBIC_BETA) * share);
        #[expect(clippy::cast_precision_loss, reason = "a bound")]
        let least = MIN_PACKETS as f64 * self.mtu;
        self.window = left.max(least);
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
        self.shortest = self.shortest.min(round.mean);
        self.lost += round.lost.max(0.0);
        let in_flight = round.rate * round.mean;
        self.test = match self.test {
            Test::Between(rounds) => {
                self.thorough |= round.rate > self.usual * LEFT_GROWTH;
                self.usual += (round.rate - self.usual) * LEFT_WEIGHT;
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
                self.judge(round, in_flight / self.in_flight);
                self.bare = self.bare.min(self.shortest);
                self.lost = 0.0;
                Test::Between(0)
            }
        };
    }

    /// What a test showed, with this share of the bytes in flight left. Without company the first one
    /// is enough.
    fn judge(&mut self, round: &CompanyRound, left: f64) {
        let first = core::mem::take(&mut self.first);
        // A sender that hardly sends cannot shorten a queue. For such a sender the shortest delay
        // since company began is the path's, which may have become longer.
        let idle = self.in_flight < IDLE_SHARE * self.window;
        let bare = if idle { self.shortest } else { self.bare };
        let quiet = self.lost < 0.5 && self.stay - bare < round.noise;
        let bit = left < 1.0 - TEST_LEAST;
        if (quiet && (bit || idle)) || (bit && self.share(round.mean, left) > ALONE_SHARE) {
            self.alone = if first { self.tests } else { self.alone + 1 };
        } else if bit {
            self.alone = 0;
            self.thorough = false;
            self.usual = self.usual.max(self.in_flight / self.stay);
        }
    }

    /// Our share of the queue. Alone, delay shrinks with what is in flight, down to that of an empty
    /// queue; a delay that was never so short tells nothing of an empty queue.
    fn share(&self, mean: f64, left: f64) -> f64 {
        let mut alone = self.stay * left;
        if self.bare < mean {
            alone = alone.max(self.bare);
        }
        (self.stay - mean) / (self.stay - alone).max(f64::MIN_POSITIVE)
    }
}
