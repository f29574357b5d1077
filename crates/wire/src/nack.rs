//! What an egress asks for: runs of numbers that a path lost.

use crate::WireError;
use ropewalk_types::PATHS_MAX;

/// Most runs in one NACK.
pub const NACK_RUNS_MAX: usize = 64;
const RUN_BYTES: usize = 4;

/// Consecutive numbers of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NackRun {
    /// The path that lost them.
    pub path: u8,
    /// The first.
    pub first: u16,
    /// How many, at least 1.
    pub count: u8,
}

pub(crate) fn emit(runs: &[NackRun], out: &mut Vec<u8>) {
    for run in runs.iter().take(NACK_RUNS_MAX) {
        out.extend_from_slice(&[run.path, run.count]);
        out.extend_from_slice(&run.first.to_be_bytes());
    }
}

pub(crate) fn check(bytes: &[u8]) -> Result<(), WireError> {
    let whole = bytes.len().is_multiple_of(RUN_BYTES);
    if !whole || bytes.len() > NACK_RUNS_MAX * RUN_BYTES {
        return Err(WireError::Invalid);
    }
    let fits = |run: NackRun| usize::from(run.path) < PATHS_MAX && run.count > 0;
    if parse(bytes).all(fits) {
        Ok(())
    } else {
        Err(WireError::Invalid)
    }
}

pub(crate) fn parse(bytes: &[u8]) -> impl Iterator<Item = NackRun> {
    bytes.chunks_exact(RUN_BYTES).map(|run| NackRun {
        path: run[0],
        count: run[1],
        first: u16::from_be_bytes([run[2], run[3]]),
    })
}
