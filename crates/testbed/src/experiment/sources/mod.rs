//! The kinds of traffic of a plan. Each is prepared first (servers listen, programs are found),
//! then runs from the common beginning on a thread of its own, and reports what it saw.

mod call;
mod mptcp;
mod ping;
mod quic;
mod tcp;
mod web;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use ropewalk_plan::{Plan, Traffic, TrafficReport};

use super::{CannotRun, PlanFileError, Window};
use crate::programs::{self, Requirement};
use crate::traffic::Endpoints;

/// Where and when traffic happens.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    /// Between whom.
    pub(super) ends: Endpoints,
    /// For logs.
    pub(super) directory: PathBuf,
    /// What is counted.
    pub(super) window: Window,
    /// Whether TCP connections are MPTCP.
    pub(super) mptcp: bool,
    /// Seed of all that traffic draws by chance.
    pub(super) seed: u64,
}

/// Result of one kind of traffic.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) report: TrafficReport,
    /// What the reader should know.
    pub(super) notes: Vec<String>,
}

/// Prepared traffic.
pub(super) trait Source: Send {
    /// Sends from `begin` to the end of the plan, and reports.
    fn run(self: Box<Self>, begin: Instant) -> Result<Outcome>;
}

/// Checks that the kernel can make this traffic, and that the programs for it are there.
pub(super) fn require(plan: &Plan) -> Result<()> {
    check(plan)?;
    let needed: Vec<Requirement> = plan
        .traffic
        .iter()
        .filter_map(|traffic| match traffic {
            Traffic::Tcp { .. } => Some(programs::IPERF3),
            Traffic::Ping { .. } => Some(programs::PING),
            Traffic::Web { .. } => Some(programs::CURL),
            Traffic::Quic { .. } | Traffic::Call { .. } => None,
        })
        .collect();
    programs::require(&needed).map_err(|error| CannotRun(error.to_string()).into())
}

/// Checks for keys of the simulator, and that hosts need no two settings.
fn check(plan: &Plan) -> Result<(), PlanFileError> {
    let mut first = None;
    for (index, traffic) in plan.traffic.iter().enumerate() {
        let Traffic::Tcp {
            duplicates, ecn, ..
        } = traffic
        else {
            continue;
        };
        if duplicates.is_some() {
            let key = format!("traffic[{index}].duplicates");
            let problem = "is for the simulator: leave it out";
            return Err(PlanFileError::setting(&key, problem));
        }
        let at_site = plan.hops() == 1 && traffic.beside().is_none();
        if at_site && *first.get_or_insert(*ecn) != *ecn {
            let key = format!("traffic[{index}].ecn");
            let problem = "the site is one host: give all its TCP the same setting";
            return Err(PlanFileError::setting(&key, problem));
        }
    }
    Ok(())
}

/// Prepares the traffic of one section, which is number `index`.
pub(super) fn prepare(stage: &Stage, index: usize, traffic: &Traffic) -> Result<Box<dyn Source>> {
    Ok(match *traffic {
        Traffic::Tcp {
            flows,
            congestion,
            direction,
            start,
            segment,
            window,
            until,
            ecn,
            ..
        } => {
            if ecn {
                // Asks for it; others agree to it as they are (ip-sysctl(7)).
                stage.ends.client.sysctl("net/ipv4/tcp_ecn", "1")?;
            }
            let load = tcp::Load {
                flows,
                congestion,
                direction,
                start,
                segment,
                window,
                until: until.unwrap_or(stage.window.to),
            };
            if stage.mptcp || window.is_some() {
                Box::new(mptcp::Connections::prepare(stage, load))
            } else {
                Box::new(tcp::Iperf::prepare(stage, index, load)?)
            }
        }
        Traffic::Quic {
            flows,
            congestion,
            direction,
            start,
            packet_threshold,
        } => {
            let load = quic::Load {
                flows,
                congestion,
                direction,
                start,
                packet_threshold,
            };
            Box::new(quic::Bulk::prepare(stage, index, load)?)
        }
        Traffic::Ping { interval } => Box::new(ping::Pings::prepare(stage, index, interval)),
        Traffic::Call {
            interval,
            bytes,
            deadline,
        } => Box::new(call::Call::prepare(stage, interval, bytes, deadline)),
        Traffic::Web {
            users,
            objects,
            pause,
        } => Box::new(web::Pages::prepare(stage, index, users, objects, pause)?),
    })
}

/// Sleeps until a time of the plan.
fn sleep_until(begin: Instant, time: Duration) {
    std::thread::sleep((begin + time).saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_cannot_have_is_refused_with_key_and_index() {
        let plan = |second: &str| {
            let text = format!(
                "name = \"x\"\nduration = \"1s\"\n[[path]]\nname = \"a\"\n\
                 [[traffic]]\nkind = \"tcp\"\n[[traffic]]\nkind = \"tcp\"\n{second}"
            );
            Plan::parse(&text).expect("a plan")
        };
        assert!(check(&plan("")).is_ok());
        for (line, key) in [("duplicates = 3", "duplicates"), ("ecn = true", "ecn")] {
            let error = check(&plan(line)).expect_err(key).to_string();
            assert!(error.starts_with(&format!("traffic[1].{key}: ")), "{error}");
        }
        assert!(check(&plan("ecn = true\nbeside = \"a\"")).is_ok());
    }
}
