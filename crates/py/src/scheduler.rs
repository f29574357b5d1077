//! A scheduler written in Python, and what it sees.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyList, PyString};
use ropewalk_core::path::PathView as View;
use ropewalk_core::schedule::{Decision, Head as CoreHead, PathSet, Policy};
use ropewalk_types::{Duration, Instant, PATHS_MAX, PathId, Rate};

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
    /// What the path could carry, Mbit/s: the larger of the rate lately delivered and the
    /// congestion window per smoothed round trip. A path without half of its window under
    /// way lately counts as much as the fastest.
    pub rate_mbit: f64,
    /// The rate lately delivered, Mbit/s: no more than was sent; 0 when unknown.
    pub delivered_mbit: f64,
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

/// What a scheduler did, for when the run is over.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

/// The first exception it raised, how often it was asked, and whether it ever sent anything.
#[derive(Default)]
struct Seen {
    error: Option<PyErr>,
    asked: u64,
    sent: bool,
}

impl Watch {
    /// Takes the exception out.
    pub fn error(&self) -> Option<PyErr> {
        self.0.lock().map_or(None, |mut seen| seen.error.take())
    }

    /// What the reader of a report should know.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let seen = self.0.lock().ok()?;
        (seen.asked > 0 && !seen.sent).then(|| {
            format!(
                "the scheduler was asked {} times and never answered a path with room: nothing was \
                 sent. Answer the `id` of a path whose `free` is at least `head.bytes`",
                seen.asked
            )
        })
    }

    fn see(&self, asked: u64, sent: bool, error: Option<PyErr>) {
        if let Ok(mut seen) = self.0.lock() {
            (seen.asked, seen.sent) = (asked, seen.sent || sent);
            if let Some(error) = error {
                seen.error.get_or_insert(error);
            }
        }
    }
}

/// Asks an object of Python's for every decision.
pub struct PythonScheduler {
    object: Py<PyAny>,
    watch: Watch,
    failed: bool,
    sent: bool,
    picks: u64,
    /// When each path was filled last, so that its rate says what it carries.
    filled_at: [Option<Instant>; PATHS_MAX],
}

impl PythonScheduler {
    /// Around `object`; the other part of the answer tells afterwards what it did.
    pub fn new(object: Py<PyAny>) -> (Self, Watch) {
        let watch = Watch::default();
        let scheduler = Self {
            object,
            watch: watch.clone(),
            failed: false,
            sent: false,
            picks: 0,
            filled_at: [None; PATHS_MAX],
        };
        (scheduler, watch)
    }

    /// The paths as the scheduler sees them.
    fn views(&mut self, now: Instant, paths: &[View]) -> Vec<PathView> {
        let mut views: Vec<_> = paths.iter().map(PathView::from).collect();
        let rates = views.iter().map(|view| view.rate_mbit);
        let fastest = rates.fold(0.0, f64::max);
        for (view, path) in views.iter_mut().zip(paths) {
            let Some(filled_at) = self.filled_at.get_mut(usize::from(path.id.0)) else {
                continue;
            };
            // By the window alone: `free` is also small while the pacer spreads a few packets. From
            // half a window under way on, the window follows what the path carries (RFC 7661, 4.1).
            if path.in_flight.saturating_mul(2) >= path.cwnd {
                *filled_at = Some(now);
            }
            if filled_at.is_none_or(|at| now.since(at) > FILLED_LATELY) {
                view.rate_mbit = fastest;
            }
        }
        views
    }

    fn ask(&mut self, now: Instant, head: &CoreHead, paths: &[View]) -> PyResult<Decision> {
        Python::attach(|py| {
            self.picks += 1;
            if self.picks.is_multiple_of(PICKS_BETWEEN_SIGNALS) {
                py.check_signals()?;
            }
            let views = PyList::new(py, self.views(now, paths))?;
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
        match self.ask(now, head, paths) {
            Ok(decision) => {
                self.sent |= matches!(decision, Decision::Send(_));
                decision
            }
            Err(error) => {
                // The run goes on without a packet to its end, which comes soon then.
                self.failed = true;
                self.watch.see(self.picks, self.sent, Some(error));
                Decision::WaitAll
            }
        }
    }

    fn reason(&self) -> String {
        "a scheduler in Python".into()
    }
}

impl Drop for PythonScheduler {
    fn drop(&mut self) {
        self.watch.see(self.picks, self.sent, None);
    }
}

/// How long the rate of a path that was filled is taken for what it carries: shorter tries idle
/// paths more often, longer misses that they got faster.
const FILLED_LATELY: Duration = Duration::from_secs(10);
/// Decisions between two looks at signals.
const PICKS_BETWEEN_SIGNALS: u64 = 10_000;

/// The paths of an answer: one, several, or none to wait.
fn chosen(answer: &Bound<'_, PyAny>, paths: &[View]) -> PyResult<Option<PathSet>> {
    if answer.is_none() {
        return Ok(None);
    }
    if answer.is_instance_of::<PyBool>() || answer.is_instance_of::<PyFloat>() {
        return Err(no_answer(answer, paths));
    }
    if let Ok(id) = answer.extract::<i64>() {
        return known(id, paths).map(|id| Some(PathSet::one(id)));
    }
    let is_text = answer.is_instance_of::<PyString>() || answer.is_instance_of::<PyBytes>();
    let Some(items) = answer.try_iter().ok().filter(|_| !is_text) else {
        return Err(no_answer(answer, paths));
    };
    let mut set = PathSet::EMPTY;
    for (count, item) in items.enumerate() {
        if count >= PATHS_MAX {
            let problem = format!("pick() answered more than {PATHS_MAX} paths");
            return Err(PyValueError::new_err(problem));
        }
        let item = item?;
        let id = item.extract::<i64>();
        let id = id.ok().filter(|_| !item.is_instance_of::<PyBool>());
        set = set.with(known(id.ok_or_else(|| no_answer(answer, paths))?, paths)?);
    }
    Ok(Some(set))
}

fn known(id: i64, paths: &[View]) -> PyResult<PathId> {
    let found = paths.iter().find(|path| i64::from(path.id.0) == id);
    let path = found.map(|path| path.id);
    path.ok_or_else(|| PyValueError::new_err(wanted(&format!("path {id}"), paths)))
}

/// The error for what is neither a path, nor several, nor `None`.
fn no_answer(answer: &Bound<'_, PyAny>, paths: &[View]) -> PyErr {
    let shown = answer
        .repr()
        .map_or_else(|_| "?".into(), |text| text.to_string());
    let kind = answer.get_type().name();
    let kind = kind.map_or_else(|_| "?".into(), |name| name.to_string());
    PyTypeError::new_err(wanted(&format!("{shown} ({kind})"), paths))
}

fn wanted(answer: &str, paths: &[View]) -> String {
    let shown: Vec<u8> = paths.iter().map(|path| path.id.0).collect();
    format!(
        "pick() answered {answer}; usable now: {shown:?}. Answer one of their ids, a list of them \
         to send copies, or None to wait"
    )
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
        let window = Rate::from_transfer(path.cwnd, path.srtt);
        Self {
            id: path.id.0,
            srtt: path.srtt.as_secs_f64(),
            min_rtt: path.min_rtt.as_secs_f64(),
            delay_more: path.owd_relative.as_secs_f64(),
            cwnd: path.cwnd,
            in_flight: path.in_flight,
            queued: path.queued,
            free: path.free,
            rate_mbit: path.rate.max(window).bits_per_sec() as f64 / 1e6,
            delivered_mbit: path.rate.bits_per_sec() as f64 / 1e6,
            loss: path.loss,
        }
    }
}

fn seconds(now: Instant) -> f64 {
    now.since(Instant::ZERO).as_secs_f64()
}
