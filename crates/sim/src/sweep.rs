//! Many runs on all cores.

use crate::run::{Options, SimError, run_with};
use ropewalk_plan::{Plan, Report};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One run to be made.
#[derive(Clone, Debug)]
pub struct Job {
    /// What to run.
    pub plan: Plan,
    /// With this seed.
    pub seed: u64,
    /// Folder that names of trace files start from.
    pub folder: Option<PathBuf>,
    /// Whether the report has the delays of each bulk flow as a histogram.
    pub histograms: bool,
}

/// Runs all jobs on up to `threads` threads (all cores if `None`); the results are in the order
/// of the jobs, whatever the number of threads. `done` is called after each run with the number
/// of runs finished so far.
pub fn sweep(
    jobs: &[Job],
    threads: Option<NonZeroUsize>,
    done: impl Fn(usize) + Sync,
) -> Vec<Result<Report, SimError>> {
    let available = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = threads.unwrap_or(available).get().min(jobs.len().max(1));
    let next = AtomicUsize::new(0);
    let finished = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<Report, SimError>>>> = Mutex::new(vec![None; jobs.len()]);
    let work = || {
        while let Some((index, job)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(index).map(|job| (index, job))
        } {
            let options = Options {
                folder: job.folder.clone(),
                histograms: job.histograms,
                ..Options::default()
            };
            let result = run_with(&job.plan, job.seed, options);
            if let Ok(mut results) = results.lock() {
                results[index] = Some(result);
            }
            done(finished.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let results = results
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    results.into_iter().flatten().collect()
}
