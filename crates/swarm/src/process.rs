//! What the hub's process uses, from `/proc` (proc(5)).

use std::fs;

use anyhow::Context;

/// Processor time and memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Processor time so far, seconds.
    pub(crate) cpu_s: f64,
    /// Resident memory now, bytes.
    pub(crate) resident: u64,
}

/// Usage of a process.
///
/// # Errors
/// There is no such process.
pub(crate) fn usage(pid: u32) -> anyhow::Result<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("there is no process {pid}"))?;
    let ticks = rustix::param::clock_ticks_per_second();
    let pages = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    parse(&stat, &pages, ticks, rustix::param::page_size())
        .with_context(|| format!("cannot read the usage of process {pid}"))
}

/// Usage of a process that was there before. A hub may start again meanwhile, in another process: that is worth a
/// line, and not the rest of the report.
pub(crate) fn still(pid: u32) -> Option<Usage> {
    let told = |error: &anyhow::Error| {
        eprintln!(
            "ropewalk-swarm: {error:#}, so the report does not have what the hub needed: has the hub started again?"
        );
    };
    usage(pid).inspect_err(told).ok()
}

#[expect(clippy::cast_precision_loss, reason = "a report")]
fn parse(stat: &str, statm: &str, ticks: u64, page: usize) -> Option<Usage> {
    // The name may contain anything, and ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let time = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let used = time(11)? + time(12)?;
    let resident: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(Usage {
        cpu_s: used as f64 / ticks as f64,
        resident: resident * page as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_any_name_is_read() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 7 8";
        let usage = parse(stat, "100 25 3", 100, 4_096);
        let expected = Usage {
            cpu_s: 2.0,
            resident: 102_400,
        };
        assert_eq!(usage, Some(expected));
        assert!(parse("", "", 100, 4_096).is_none());
    }

    #[test]
    fn a_process_that_is_gone_is_no_error() {
        let mut child = std::process::Command::new("true").spawn().expect("starts");
        child.wait().expect("ends");
        assert!(still(child.id()).is_none());
        assert!(still(std::process::id()).is_some());
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(usage(std::process::id()).expect("exists").resident > 100_000);
    }
}
