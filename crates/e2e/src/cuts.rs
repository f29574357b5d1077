//! What benchmarks that cut uplinks have in common: which cuts, how many, and in which order.

use std::time::Duration;

use anyhow::Result;
use ropewalk_testbed::Topology;
use ropewalk_testbed::topology::Cut;

use crate::bench::BenchArgs;

/// How long a test waits for an uplink that was given back.
pub const RETURN_LIMIT: Duration = Duration::from_secs(10);

/// Options of benchmarks that cut uplinks.
#[derive(Clone, Debug, clap::Args)]
pub struct CutArgs {
    /// Those of every benchmark.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// Cuts of each kind, from each place.
    #[arg(long)]
    cuts: Option<usize>,
    /// Only the cut whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

impl CutArgs {
    /// The kinds of cuts that are wanted.
    pub fn kinds(&self) -> impl Iterator<Item = Cut> {
        Cut::ALL
            .into_iter()
            .filter(|cut| cut.name().contains(&self.only))
    }

    /// How many cuts of each kind, where `usual` is for a whole run and `quick` for a short one.
    #[must_use]
    pub fn count(&self, usual: usize, quick: usize) -> usize {
        self.cuts
            .unwrap_or(if self.bench.quick { quick } else { usual })
    }
}

/// Cuts the uplinks in turn, `count` times: calls `before` with the uplink, cuts it, calls `during` with
/// it and what `before` returned, gives it back, and calls `after`. Returns what `during` did.
///
/// # Errors
/// Of the calls, and of the commands that cut.
pub fn in_turn<B, T>(
    topology: &Topology,
    cut: Cut,
    count: usize,
    mut before: impl FnMut(usize) -> Result<B>,
    mut during: impl FnMut(usize, B) -> Result<T>,
    mut after: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<T>> {
    let uplinks = topology.uplinks().len();
    let once = |index: usize| {
        let uplink = index % uplinks;
        let ready = before(uplink)?;
        topology.cut(uplink, cut)?;
        let found = during(uplink, ready)?;
        topology.restore(uplink, cut)?;
        after(uplink)?;
        Ok(found)
    };
    (0..count).map(once).collect()
}
