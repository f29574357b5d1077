//! When the serialiser has sent a packet: at a fixed rate, without limit, or after a trace.
//!
//! There is no burst allowance: every packet takes its own time on the wire, so a lone probe
//! measures the true capacity (a token bucket would let it pass at once).

use std::sync::Arc;

use ropewalk_types::{Instant, Rate};

use crate::trace::{CapacityTrace, OPPORTUNITY_BYTES, Shape, WORK_PER_BYTE};

/// How much a direction can carry.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Capacity {
    /// Packets take no time.
    #[default]
    Unlimited,
    /// A constant rate; rate zero passes nothing.
    Fixed(Rate),
    /// A recorded capacity that starts when the direction does, or when it is set.
    Trace(Arc<CapacityTrace>),
}

/// Serialiser: turns a start and a length into the time at which the last bit leaves.
#[derive(Clone, Debug)]
pub(crate) struct Serialiser {
    capacity: Capacity,
    /// Where a trace begins.
    origin: Instant,
    /// First delivery opportunity not yet used, counted over all rounds of the trace.
    next_opportunity: u64,
    /// What the last used opportunity has left; usable at its own instant only.
    leftover: (Instant, u64),
}

impl Serialiser {
    pub(crate) fn new(capacity: Capacity, origin: Instant) -> Self {
        Self {
            capacity,
            origin,
            next_opportunity: 0,
            leftover: (Instant::ZERO, 0),
        }
    }

    /// When a packet of `bytes` has left if it starts at `start`; `FAR_FUTURE` if never.
    ///
    /// Starts must not go backwards. Consumes delivery opportunities of a trace.
    pub(crate) fn finish(&mut self, start: Instant, bytes: u64) -> Instant {
        match &self.capacity {
            Capacity::Unlimited => start,
            Capacity::Fixed(rate) => {
                if *rate == Rate::ZERO {
                    return Instant::FAR_FUTURE;
                }
                start + rate.time_for(bytes)
            }
            Capacity::Trace(trace) => {
                let trace = Arc::clone(trace);
                match &trace.shape {
                    Shape::Rates(rates) => self.finish_by_rates(&trace, rates, start, bytes),
                    Shape::Opportunities(times) => {
                        self.finish_by_opportunity(trace.period_ns, times, start, bytes)
                    }
                }
            }
        }
    }

    /// Bytes of a packet started at `start` that are on the wire at `now`, rounded down.
    pub(crate) fn sent_between(&self, start: Instant, now: Instant) -> u64 {
        let elapsed = now.since(start);
        match &self.capacity {
            Capacity::Unlimited => u64::MAX,
            Capacity::Fixed(rate) => rate.bytes_in(elapsed),
            Capacity::Trace(trace) => match &trace.shape {
                Shape::Rates(_) => {
                    let at = |t: Instant| self.work_until(trace, t);
                    u64::try_from((at(now) - at(start)) / WORK_PER_BYTE).unwrap_or(u64::MAX)
                }
                Shape::Opportunities(times) => {
                    let (from, to) = (self.offset(start), self.offset(now));
                    let count = opportunities_until(times, trace.period_ns, to)
                        - opportunities_until(times, trace.period_ns, from);
                    count.saturating_mul(OPPORTUNITY_BYTES)
                }
            },
        }
    }

    fn offset(&self, at: Instant) -> u64 {
        at.as_nanos().saturating_sub(self.origin.as_nanos())
    }

    /// Capacity of a rate trace from its origin to `at`, in bit-nanoseconds per second.
    fn work_until(&self, trace: &CapacityTrace, at: Instant) -> u128 {
        let Shape::Rates(rates) = &trace.shape else {
            return 0;
        };
        let offset = self.offset(at);
        let (rounds, phase) = (offset / trace.period_ns, offset % trace.period_ns);
        let ends = rates
            .iter()
            .skip(1)
            .map(|(from, _)| *from)
            .chain([trace.period_ns]);
        let within: u128 = rates
            .iter()
            .zip(ends)
            .take_while(|((from, _), _)| *from < phase)
            .map(|((from, rate), end)| {
                u128::from(rate.bits_per_sec()) * u128::from(end.min(phase) - from)
            })
            .sum();
        u128::from(rounds) * trace.period_work() + within
    }

    fn finish_by_rates(
        &self,
        trace: &CapacityTrace,
        rates: &[(u64, Rate)],
        start: Instant,
        bytes: u64,
    ) -> Instant {
        let mut work = u128::from(bytes) * WORK_PER_BYTE;
        let offset = self.offset(start);
        let mut round_start = offset - offset % trace.period_ns;
        let mut phase = offset % trace.period_ns;
        let mut index = rates.partition_point(|(from, _)| *from <= phase) - 1;
        // At most the rest of this round, and one round after the whole ones are skipped.
        loop {
            let (_, rate) = rates[index];
            let end = rates
                .get(index + 1)
                .map_or(trace.period_ns, |(from, _)| *from);
            let bits_per_sec = u128::from(rate.bits_per_sec());
            let available = bits_per_sec * u128::from(end - phase);
            if work <= available {
                let nanos = if work == 0 {
                    0
                } else {
                    work.div_ceil(bits_per_sec)
                };
                let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
                return self.at(round_start.saturating_add(phase).saturating_add(nanos));
            }
            work -= available;
            phase = end;
            index += 1;
            if index == rates.len() {
                let whole = (work - 1) / trace.period_work();
                work -= whole * trace.period_work();
                let rounds = u64::try_from(whole).unwrap_or(u64::MAX).saturating_add(1);
                round_start = round_start.saturating_add(rounds.saturating_mul(trace.period_ns));
                (phase, index) = (0, 0);
            }
        }
    }

    fn finish_by_opportunity(
        &mut self,
        period_ns: u64,
        times: &[u64],
        start: Instant,
        bytes: u64,
    ) -> Instant {
        let left = if self.leftover.0 == start {
            self.leftover.1
        } else {
            0
        };
        if bytes <= left {
            self.leftover.1 = left - bytes;
            return start;
        }
        // An opportunity at the very start of service can be used: count those before it.
        let offset = self.offset(start);
        let passed = if offset == 0 {
            0
        } else {
            opportunities_until(times, period_ns, offset - 1)
        };
        let first = passed.max(self.next_opportunity);
        let needed = (bytes - left).div_ceil(OPPORTUNITY_BYTES);
        let last = first + needed - 1;
        self.next_opportunity = last + 1;
        let count = times.len() as u64;
        let index = usize::try_from(last % count).unwrap_or(0);
        let end = self.at((last / count)
            .saturating_mul(period_ns)
            .saturating_add(times[index]));
        self.leftover = (end, needed * OPPORTUNITY_BYTES - (bytes - left));
        end
    }

    fn at(&self, offset: u64) -> Instant {
        Instant::from_nanos(self.origin.as_nanos().saturating_add(offset))
    }
}

/// Opportunities in `(0, offset]`, over all rounds.
fn opportunities_until(times: &[u64], period_ns: u64, offset: u64) -> u64 {
    let (rounds, phase) = (offset / period_ns, offset % period_ns);
    rounds * times.len() as u64 + times.partition_point(|at| *at <= phase) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> Serialiser {
        let trace = CapacityTrace::parse("test", text).expect("valid");
        Serialiser::new(Capacity::Trace(Arc::new(trace)), Instant::ZERO)
    }

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn fixed_rate_takes_length_over_rate() {
        let rate = Rate::from_bits_per_sec(8_000_000);
        let mut fixed = Serialiser::new(Capacity::Fixed(rate), Instant::ZERO);
        assert_eq!(fixed.finish(ms(5), 1_000), ms(6));
        assert_eq!(fixed.sent_between(ms(5), ms(6)), 1_000);
        let mut closed = Serialiser::new(Capacity::Fixed(Rate::ZERO), Instant::ZERO);
        assert_eq!(closed.finish(ms(5), 1), Instant::FAR_FUTURE);
    }

    #[test]
    fn a_packet_spans_the_seconds_of_a_rate_trace() {
        // 1,000 bytes in the first second, none in the second, 500 in the third.
        let mut s = trace("1,1000\n2,0\n3,500\n");
        assert_eq!(s.finish(ms(0), 500), ms(500));
        assert_eq!(s.finish(ms(500), 750), ms(2_500));
        assert_eq!(s.finish(ms(2_500), 251), ms(3_001));
        // Two whole rounds and 100 bytes.
        assert_eq!(s.finish(ms(3_000), 3_100), ms(9_100));
        assert_eq!(s.finish(ms(3_000), 3_000), ms(9_000));
        assert_eq!(s.sent_between(ms(500), ms(2_500)), 750);
        assert_eq!(s.sent_between(ms(0), ms(9_100)), 4_600);
    }

    #[test]
    fn opportunities_are_used_once_and_lost_when_unused() {
        let mut s = trace("10\n10\n20\n");
        assert_eq!(s.finish(ms(0), 1_504), ms(10));
        assert_eq!(
            s.finish(ms(10), 752),
            ms(10),
            "the second opportunity at 10 ms"
        );
        assert_eq!(s.finish(ms(10), 752), ms(10), "its leftover");
        assert_eq!(s.finish(ms(10), 1), ms(20));
        assert_eq!(
            s.finish(ms(25), 1_504),
            ms(30),
            "the one at 20 ms has passed"
        );
        assert_eq!(s.finish(ms(30), 9_000), ms(70), "six more opportunities");
        assert_eq!(s.sent_between(ms(30), ms(60)), 4 * 1_504);
    }
}
