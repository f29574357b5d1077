//! What the egress of one direction tells its ingress: arrivals per path and what reordering cost.

use crate::{Reader, WireError};
use ropewalk_types::PATHS_MAX;

/// One path as the egress saw it during the report's period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// Path identifier, the same at both ends.
    pub path: u8,
    /// The reporter gets no acknowledgements on this path in its own sending direction.
    pub suspect: bool,
    /// Datagrams that arrived.
    pub received: u32,
    /// Datagrams that the path's sequence numbers show as lost.
    pub lost: u32,
    /// Runs of consecutive losses.
    pub loss_runs: u32,
    /// Smallest receive time minus send time, microseconds, modulo 2^32; only differences
    /// between paths mean anything.
    pub delay_min_us: i32,
    /// Mean of the same.
    pub delay_mean_us: i32,
    /// Packets that came after the egress had given them up.
    pub late: u16,
}

/// Report of one period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Length of the period in milliseconds.
    pub period_ms: u16,
    /// Packets held for order.
    pub held: u16,
    /// Holds that ended by time instead of by the missing packet.
    pub hold_timeouts: u16,
    /// The paths, at most [`PATHS_MAX`].
    pub paths: Vec<PathReport>,
}

const SUSPECT: u8 = 0x80;

impl Report {
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.period_ms.to_be_bytes());
        out.extend_from_slice(&self.held.to_be_bytes());
        out.extend_from_slice(&self.hold_timeouts.to_be_bytes());
        for path in self.paths.iter().take(PATHS_MAX) {
            out.push(path.path | if path.suspect { SUSPECT } else { 0 });
            for count in [path.received, path.lost, path.loss_runs] {
                out.extend_from_slice(&count.to_be_bytes()[1..]);
            }
            out.extend_from_slice(&path.delay_min_us.to_be_bytes());
            out.extend_from_slice(&path.delay_mean_us.to_be_bytes());
            out.extend_from_slice(&path.late.to_be_bytes());
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader(bytes);
        let mut report = Self {
            period_ms: r.u16()?,
            held: r.u16()?,
            hold_timeouts: r.u16()?,
            paths: Vec::new(),
        };
        while !r.0.is_empty() {
            let first = r.u8()?;
            let path = first & !SUSPECT;
            if usize::from(path) >= PATHS_MAX || report.paths.len() == PATHS_MAX {
                return Err(WireError::Invalid);
            }
            let mut count = || -> Result<u32, WireError> {
                let [a, b, c] = r.array()?;
                Ok(u32::from_be_bytes([0, a, b, c]))
            };
            let (received, lost, loss_runs) = (count()?, count()?, count()?);
            report.paths.push(PathReport {
                path,
                suspect: first & SUSPECT != 0,
                received,
                lost,
                loss_runs,
                delay_min_us: r.u32()?.cast_signed(),
                delay_mean_us: r.u32()?.cast_signed(),
                late: r.u16()?,
            });
        }
        Ok(report)
    }
}
