//! A scheduler written in Python, and what it sees.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ropewalk_core::path::PathView as View;
use ropewalk_core::schedule::{Decision, Head as CoreHead, PathSet, Policy};
use ropewalk_types::{Instant, PATHS_MAX, PathId};

/// The packet to place: the first of one flow's queue.
#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct Head {
    /// Flow bucket, 0 to 4,095.
    pub flow: u16,
    /// Bytes of the packet.
    pub bytes: u64,
    /// Bytes waiting in this flow, the packet included.
    pub flow_backlog: u64,
    /// Bytes waiting in all flows, the packet included.
    pub backlog: u64,
}

/// One path as the scheduler sees it; only usable ones are shown.
#[pyclass(frozen, get_all)]
#[derive(Clone)]
pub struct PathView {
    /// Its place in the plan's list of paths in use.
    pub id: u8,
    /// Smoothed round-trip time, seconds.
    pub srtt: f64,
    /// Smallest round-trip time lately, seconds.
    pub min_rtt: f64,
    /// One-way delay more than that of the fastest path, seconds.
    pub delay_more: f64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Bytes under way.
    pub in_flight: u64,
    /// Bytes given to the path and not sent yet.
    pub queued: u64,
    /// Bytes the path takes now.
    pub free: u64,
    /// Measured rate, Mbit/s; 0 when unknown.
    pub rate_mbit: f64,
    /// Share of packets lost lately, 0 to 1.
    pub loss: f64,
}

#[pymethods]
impl PathView {
    fn __repr__(&self) -> String {
        format!(
            "<path {}: srtt {:.1} ms, free {} bytes, {:.1} Mbit/s>",
            self.id,
            self.srtt * 1e3,
            self.free,
            self.rate_mbit
        )
    }
}

/// The first exception a scheduler raised.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    /// Takes it out.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().map_or(None, |mut error| error.take())
    }

    fn set(&self, error: PyErr) {
        if let Ok(mut slot) = self.0.lock() {
            slot.get_or_insert(error);
        }
    }
}

/// Asks an object of Python's for every decision.
pub struct PythonScheduler {
    object: Py<PyAny>,
    failure: Failure,
    failed: bool,
    picks: u32,
}

impl PythonScheduler {
    /// Around `object`; the other part of the answer tells afterwards whether it raised.
    pub fn new(object: Py<PyAny>) -> (Self, Failure) {
        let failure = Failure::default();
        let scheduler = Self {
            object,
            failure: failure.clone(),
            failed: false,
            picks: 0,
        };
        (scheduler, failure)
    }

    fn ask(&mut self, now: Instant, head: &CoreHead, paths: &[View]) -> PyResult<Decision> {
        Python::attach(|py| {
            self.picks = self.picks.wrapping_add(1);
            if self.picks.is_multiple_of(PICKS_BETWEEN_SIGNALS) {
                py.check_signals()?;
            }
            let views = PyList::new(py, paths.iter().map(PathView::from))?;
            let arguments = (seconds(now), Head::from(head), views);
            let answer = self.object.bind(py).call_method1("pick", arguments)?;
            let Some(set) = chosen(&answer, paths)? else {
                return Ok(Decision::WaitFlow(None));
            };
            // Late binding: what has no room now is asked about again when it has.
            let full = |path: &View| set.contains(path.id) && path.free < head.bytes;
            if set.is_empty() || paths.iter().any(full) {
                return Ok(Decision::WaitFlow(None));
            }
            Ok(Decision::Send(set))
        })
    }
}

impl Policy for PythonScheduler {
    fn pick(&mut self, now: Instant, head: &CoreHead, paths: &[View]) -> Decision {
        if self.failed {
            return Decision::WaitAll;
        }
        self.ask(now, head, paths).unwrap_or_else(|error| {
            // The run goes on without a packet to its end, which comes soon then.
            self.failed = true;
            self.failure.set(error);
            Decision::WaitAll
        })
    }

    fn reason(&self) -> String {
        "a scheduler in Python".into()
    }
}

/// Decisions between two looks at signals.
const PICKS_BETWEEN_SIGNALS: u32 = 10_000;

/// The paths of an answer: one, several, or none to wait.
fn chosen(answer: &Bound<'_, PyAny>, paths: &[View]) -> PyResult<Option<PathSet>> {
    if answer.is_none() {
        return Ok(None);
    }
    if let Ok(id) = answer.extract::<u64>() {
        return known(id, paths).map(|id| Some(PathSet::one(id)));
    }
    let mut set = PathSet::EMPTY;
    for (count, item) in answer.try_iter()?.enumerate() {
        if count >= PATHS_MAX {
            let problem = format!("pick() answered more than {PATHS_MAX} paths");
            return Err(PyValueError::new_err(problem));
        }
        set = set.with(known(item?.extract()?, paths)?);
    }
    Ok(Some(set))
}

fn known(id: u64, paths: &[View]) -> PyResult<PathId> {
    let found = paths.iter().find(|path| u64::from(path.id.0) == id);
    found.map(|path| path.id).ok_or_else(|| {
        let shown: Vec<u8> = paths.iter().map(|path| path.id.0).collect();
        PyValueError::new_err(format!(
            "pick() answered path {id}; usable now: {shown:?}. Answer one of their ids, a list of \
             them, or None to wait"
        ))
    })
}

impl From<&CoreHead> for Head {
    fn from(head: &CoreHead) -> Self {
        Self {
            flow: head.flow,
            bytes: head.bytes,
            flow_backlog: head.flow_backlog,
            backlog: head.backlog,
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "rates are far below 2^53 bits per second"
)]
impl From<&View> for PathView {
    fn from(path: &View) -> Self {
        Self {
            id: path.id.0,
            srtt: path.srtt.as_secs_f64(),
            min_rtt: path.min_rtt.as_secs_f64(),
            delay_more: path.owd_relative.as_secs_f64(),
            cwnd: path.cwnd,
            in_flight: path.in_flight,
            queued: path.queued,
            free: path.free,
            rate_mbit: path.rate.bits_per_sec() as f64 / 1e6,
            loss: path.loss,
        }
    }
}

fn seconds(now: Instant) -> f64 {
    now.since(Instant::ZERO).as_secs_f64()
}
