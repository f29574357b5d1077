//! The simulator and the rules of balancing for Python: the native module `ropewalk._native` of the
//! package `ropewalk`.
//!
//! Plans come in as TOML and reports go out as JSON, so that this module has no types of its own
//! but those a scheduler in Python sees. Other Python threads go on while the simulator runs.

#![forbid(unsafe_code)]

mod balance;
mod scheduler;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use ropewalk_core::balance::affinity;
use ropewalk_core::schedule::Policy;
use ropewalk_plan::{Plan, Report};
use ropewalk_sim::sweep::Job;
use ropewalk_sim::{LogFile, Options, SimError};

use crate::scheduler::{Head, PathView, PythonScheduler, Watch};

/// Version of the simulator.
#[pyfunction]
const fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The seed of a plan.
#[pyfunction]
fn plan_seed(plan: &str) -> PyResult<u64> {
    parse(plan).map(|plan| plan.seed)
}

/// Runs a plan with each seed on `threads` threads (0: one for each core); a JSON array of reports.
#[pyfunction]
fn run_json(
    py: Python<'_>,
    plan: &str,
    seeds: Vec<u64>,
    threads: usize,
    folder: Option<PathBuf>,
    histograms: bool,
) -> PyResult<String> {
    let plan = parse(plan)?;
    let job = |seed| Job {
        plan: plan.clone(),
        seed,
        folder: folder.clone(),
        histograms,
    };
    let jobs: Vec<Job> = seeds.into_iter().map(job).collect();
    let threads = NonZeroUsize::new(threads);
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut reports = Vec::with_capacity(jobs.len());
    // A few runs at a time, so that Ctrl-C is heard between them.
    for part in jobs.chunks(threads.unwrap_or(cores).get() * RUNS_BETWEEN_SIGNALS) {
        let done = py.detach(|| ropewalk_sim::sweep(part, threads, |_| ()));
        for report in done {
            reports.push(report.map_err(wrong_plan)?);
        }
        py.check_signals()?;
    }
    to_json(&reports)
}

/// Runs a plan once and writes events and packets; `scheduler()` makes a scheduler, if given.
#[pyfunction]
fn run_recorded(
    py: Python<'_>,
    plan: &str,
    seed: u64,
    scheduler: Option<&Bound<'_, PyAny>>,
    outputs: Outputs,
    folder: Option<PathBuf>,
    histograms: bool,
) -> PyResult<String> {
    let plan = parse(plan)?;
    let made = scheduler.map(|scheduler| scheduler.call0()).transpose()?;
    let made = made.map(|object| PythonScheduler::new(object.unbind()));
    let (policy, watch) = made.unzip();
    let (events, pcap) = outputs;
    let events = events.map(|file| Box::new(LogFile::new(file)) as Box<dyn Write + Send>);
    let options = Options {
        policy: policy.map(|policy| Box::new(policy) as Box<dyn Policy>),
        events,
        pcap,
        folder,
        histograms,
        ..Options::default()
    };
    let report = py.detach(|| ropewalk_sim::run_with(&plan, seed, options));
    if let Some(error) = watch.as_ref().and_then(Watch::error) {
        return Err(error);
    }
    let mut report = report.map_err(wrong_plan)?;
    report.notes.extend(watch.and_then(|watch| watch.note()));
    to_json(&[report])
}

/// File of events and directory of packets.
type Outputs = (Option<PathBuf>, Option<PathBuf>);

/// Runs a plan with each seed, one after the other, `scheduler()` making a scheduler for each.
#[pyfunction]
fn run_scheduler(
    py: Python<'_>,
    plan: &str,
    seeds: Vec<u64>,
    scheduler: &Bound<'_, PyAny>,
    folder: Option<PathBuf>,
    histograms: bool,
) -> PyResult<String> {
    let plan = parse(plan)?;
    let mut reports = Vec::with_capacity(seeds.len());
    for seed in seeds {
        let (policy, watch) = PythonScheduler::new(scheduler.call0()?.unbind());
        let options = Options {
            policy: Some(Box::new(policy)),
            folder: folder.clone(),
            histograms,
            ..Options::default()
        };
        let report = py.detach(|| ropewalk_sim::run_with(&plan, seed, options));
        if let Some(error) = watch.error() {
            return Err(error);
        }
        let mut report = report.map_err(wrong_plan)?;
        report.notes.extend(watch.note());
        reports.push(report);
    }
    to_json(&reports)
}

/// Runs per thread between two looks at signals.
const RUNS_BETWEEN_SIGNALS: usize = 2;

fn parse(plan: &str) -> PyResult<Plan> {
    Plan::parse(plan).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn wrong_plan(error: SimError) -> PyErr {
    if let SimError::Output(problem) = error {
        PyOSError::new_err(problem)
    } else {
        PyValueError::new_err(error.to_string())
    }
}

fn to_json(reports: &[Report]) -> PyResult<String> {
    serde_json::to_string(reports).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The module `ropewalk._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Head>()?;
    module.add_class::<PathView>()?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add_function(wrap_pyfunction!(plan_seed, module)?)?;
    module.add_function(wrap_pyfunction!(run_json, module)?)?;
    module.add_function(wrap_pyfunction!(run_scheduler, module)?)?;
    module.add_function(wrap_pyfunction!(run_recorded, module)?)?;
    module.add_class::<balance::Watch>()?;
    module.add_class::<balance::Capacity>()?;
    module.add_class::<balance::Rounds>()?;
    module.add("PLACES", ropewalk_core::balance::SLOTS)?;
    module.add("PAUSE_S", affinity::PAUSE.as_secs_f64())?;
    module.add("WEB_PORTS", affinity::WEB_PORTS)?;
    module.add("ROUNDS", ropewalk_core::balance::train::FIRST)?;
    module.add_function(wrap_pyfunction!(balance::assumed, module)?)?;
    module.add_function(wrap_pyfunction!(balance::train_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(balance::train_rate, module)?)?;
    module.add_function(wrap_pyfunction!(balance::several_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(balance::several_sizes_rate, module)?)?;
    module.add_function(wrap_pyfunction!(balance::shares, module)?)?;
    module.add_function(wrap_pyfunction!(balance::places, module)?)?;
    module.add_function(wrap_pyfunction!(balance::apportion, module)?)
}
