//! The rules of balancing for Python: liveness, capacity, probing and shares of `ropewalk_core::balance`.
//!
//! Values do not change: what happens to one makes the next. Times are seconds of a clock that never
//! goes back, rates bits per second.

use core::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ropewalk_core::balance::rounds::FIRST_PAUSE;
use ropewalk_core::balance::{self as rules, Answer, Candidate, Expected, Mode, Pace, Sample};
use ropewalk_core::balance::{capacity, smooth, train, vps};
use ropewalk_types::{Instant, Rate};

/// One way out as its probes show it.
#[pyclass(frozen)]
#[derive(Clone)]
pub struct Watch(rules::Watch);

#[pymethods]
impl Watch {
    #[new]
    fn new(interval_s: f64, silence_s: f64) -> Self {
        Self(rules::Watch::new(duration(interval_s), duration(silence_s)))
    }

    fn is_due(&self, now: f64) -> bool {
        self.0.is_due(instant(now))
    }

    fn sent(&self, now: f64) -> (Self, u16) {
        let mut next = self.clone();
        let number = next.0.send(instant(now));
        (next, number)
    }

    fn answered(&self, number: u16, now: f64) -> (Self, Option<f64>) {
        let mut next = self.clone();
        let rtt = match next.0.handle_answer(instant(now), number) {
            Answer::RoundTrip(rtt) => Some(rtt.as_secs_f64()),
            Answer::Late | Answer::Unknown => None,
        };
        (next, rtt)
    }

    fn heard(&self, now: f64) -> Self {
        let mut next = self.clone();
        next.0.handle_sign(instant(now));
        next
    }

    fn passed(&self, now: f64) -> Self {
        let mut next = self.clone();
        next.0.handle_timeout(instant(now));
        next
    }

    #[getter]
    fn usable(&self) -> bool {
        self.0.is_usable()
    }

    #[getter]
    fn known(&self) -> bool {
        self.0.is_known()
    }

    #[getter]
    fn rtt_s(&self) -> Option<f64> {
        self.0.echoes().rtt().map(|rtt| rtt.as_secs_f64())
    }

    #[getter]
    fn loss(&self) -> Option<f64> {
        self.0.echoes().loss()
    }
}

/// What an uplink carries.
#[pyclass(frozen)]
#[derive(Clone)]
pub struct Capacity(capacity::Capacity);

#[pymethods]
impl Capacity {
    #[new]
    fn new() -> Self {
        Self(capacity::Capacity::default())
    }

    fn sampled(&self, now: f64, bytes: u64, seconds: f64, mut round_trips_s: Vec<f64>) -> Self {
        let mut next = self.clone();
        round_trips_s.sort_unstable_by(f64::total_cmp);
        let quantile = |place: usize| round_trips_s.get(place).copied().map(duration);
        let sample = Sample {
            bytes,
            time: duration(seconds),
            rtt: quantile(round_trips_s.len() / 2),
            low_rtt: quantile(round_trips_s.len() / 4),
        };
        next.0.handle_sample(instant(now), sample);
        next
    }

    fn estimated(&self, bps: Option<f64>) -> Self {
        let mut next = self.clone();
        next.0.set_estimate(bps.map(rate));
        next
    }

    #[getter]
    const fn is_full(&self) -> bool {
        self.0.is_known()
    }

    #[getter]
    const fn is_worth_probing(&self) -> bool {
        self.0.is_worth_probing()
    }

    #[getter]
    fn carried_bps(&self) -> f64 {
        bps(self.0.rate())
    }

    #[getter]
    fn present_bps(&self) -> f64 {
        bps(self.0.load())
    }
}

/// What each uplink is taken to carry.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "taken from Python")]
pub fn assumed(capacities: Vec<PyRef<'_, Capacity>>) -> Vec<f64> {
    let all: Vec<capacity::Capacity> = capacities.iter().map(|one| one.0).collect();
    capacity::assumed(&all).into_iter().map(bps).collect()
}

/// The rounds of probing of one uplink.
#[pyclass(frozen)]
#[derive(Clone)]
pub struct Rounds(rules::Rounds);

#[pymethods]
impl Rounds {
    #[new]
    fn new(now: f64) -> Self {
        Self(rules::Rounds::new(instant(now)))
    }

    fn is_due(&self, now: f64) -> bool {
        self.0.due() <= instant(now)
    }

    fn begun(&self, now: f64, interval_s: f64) -> Self {
        let mut next = self.clone();
        next.0.begin(instant(now), pace(interval_s));
        next
    }

    fn ended(&self, now: f64, found_bps: Option<f64>, interval_s: f64) -> Self {
        let mut next = self.clone();
        let found = found_bps.map(rate);
        next.0.end(instant(now), found, pace(interval_s));
        next
    }

    #[getter]
    fn rates_bps(&self) -> Vec<f64> {
        self.0.rates().map(bps).collect()
    }

    #[getter]
    fn guess_bps(&self) -> Option<f64> {
        self.0.guess().map(bps)
    }

    #[getter]
    fn estimate_bps(&self) -> Option<f64> {
        self.0.estimate().map(bps)
    }
}

const fn pace(interval_s: f64) -> Pace {
    Pace {
        first: train::FIRST as u32,
        first_pause: FIRST_PAUSE,
        interval: duration(interval_s),
    }
}

/// Bytes of each packet of the next train over a link of which so much is known.
#[pyfunction]
#[pyo3(signature = (known_bps))]
pub fn train_sizes(known_bps: Option<f64>) -> Vec<usize> {
    vec![train::PACKET_BYTES; train::packets(known_bps.map(rate))]
}

/// The rate of a train of `sent` packets whose answers arrived at these times.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "taken from Python")]
pub fn train_rate(arrivals_s: Vec<f64>, sent: usize) -> Option<f64> {
    let first = arrivals_s.iter().copied().fold(f64::INFINITY, f64::min);
    let times: Vec<Duration> = arrivals_s.iter().map(|at| duration(at - first)).collect();
    train::rate(&times, sent).map(bps)
}

/// Bytes of each packet of a round of several sizes.
#[pyfunction]
pub fn several_sizes() -> Vec<usize> {
    vps::SIZES.repeat(vps::REPEATS)
}

/// The rate from sizes and round trips.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "taken from Python")]
pub fn several_sizes_rate(round_trips: Vec<(usize, f64)>) -> Option<f64> {
    let round_trips: Vec<(usize, Duration)> = round_trips
        .iter()
        .map(|&(bytes, seconds)| (bytes, duration(seconds)))
        .collect();
    vps::rate(&round_trips).map(bps)
}

/// The shares of uplinks in the next flows, from what each carries and carried last.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "taken from Python")]
pub fn shares(
    mode: &str,
    uplinks: Vec<(f64, f64)>,
    flows: usize,
    flow_bytes: u64,
) -> PyResult<Vec<u64>> {
    let mode: Mode = mode
        .parse()
        .map_err(|error: rules::UnknownMode| PyValueError::new_err(error.to_string()))?;
    let candidate = |(rank, &(capacity, load)): (u32, &(f64, f64))| Candidate {
        usable: true,
        weight: None,
        capacity: rate(capacity),
        load: rate(load),
        metered: false,
        standby: false,
        rank,
    };
    let candidates: Vec<Candidate> = (0..).zip(&uplinks).map(candidate).collect();
    let expected = Expected {
        flows,
        size_bytes: flow_bytes,
    };
    Ok(rules::shares(mode, &candidates, expected))
}

/// Which uplink comes at each of `count` places, evenly mixed; empty without any share.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "taken from Python")]
pub fn places(shares: Vec<u64>, count: usize) -> Vec<usize> {
    smooth::sequence(&shares, count)
}

/// How many of `count` places each uplink has.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "taken from Python")]
pub fn apportion(shares: Vec<u64>, count: usize) -> Vec<i64> {
    smooth::apportion(&shares, count)
}

/// Negative times and those that are no numbers count as zero.
fn instant(seconds: f64) -> Instant {
    Instant::ZERO + duration(seconds)
}

/// Negative times and those that are no numbers count as zero, endless ones as very long.
const fn duration(seconds: f64) -> Duration {
    // The cast saturates, and takes what is no number for zero.
    Duration::from_nanos((seconds * 1e9) as u64)
}

/// The cast saturates, and takes what is no number for zero.
const fn rate(bits_per_second: f64) -> Rate {
    Rate::from_bits_per_sec(bits_per_second as u64)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "rates are far below 2^53 bits per second"
)]
const fn bps(rate: Rate) -> f64 {
    rate.bits_per_sec() as f64
}
