//! Settings that are names or have bounds of the programs: checked with the plan, so that all runners
//! refuse the same before anything is made.

use std::fmt::Display;
use std::str::FromStr;

use ropewalk_core::balance::Mode;
use ropewalk_core::hold::Freeze;
use ropewalk_core::protect::Protection;
use ropewalk_core::tunnel::Order;
use ropewalk_types::{CongestionControl, SchedulerKind};

use crate::{BalancePlan, PlanError, TunnelPlan, fail};

/// Longest affinity that `ropewalk balance` takes, minutes.
const AFFINITY_MAX: u32 = 24 * 60;
/// Choices of sites that `ropewalk balance` has.
const SITES: [&str; 2] = ["opened", "all"];

/// Checks the names of a tunnel's settings, which are in `section`.
pub(crate) fn check_tunnel(plan: &TunnelPlan, section: &str) -> Result<(), PlanError> {
    known::<SchedulerKind>(section, "scheduler", plan.scheduler.as_deref())?;
    known::<CongestionControl>(section, "congestion", plan.congestion.as_deref())?;
    known::<Protection>(section, "protect_up", plan.protect_up.as_deref())?;
    known::<Protection>(section, "protect_down", plan.protect_down.as_deref())?;
    known::<Freeze>(section, "freeze", plan.freeze.as_deref())?;
    known::<Order>(section, "order", plan.order.as_deref())
}

/// Checks the settings of `ropewalk balance`.
pub(crate) fn check_balance(plan: &BalancePlan) -> Result<(), PlanError> {
    if let Some(mode) = &plan.mode
        && let Err(error) = mode.parse::<Mode>()
    {
        let modes = Mode::ALL.map(|(_, name)| name).join(", ");
        return fail("carrier.mode", format!("{error}; there are {modes}"));
    }
    if plan.affinity_minutes.is_some_and(|m| m > AFFINITY_MAX) {
        let problem = format!("use 0 to {AFFINITY_MAX} minutes");
        return fail("carrier.affinity_minutes", problem);
    }
    match &plan.affinity_sites {
        Some(sites) if !SITES.contains(&sites.as_str()) => {
            let problem = format!("unknown sites {sites:?}; there are {}", SITES.join(", "));
            fail("carrier.affinity_sites", problem)
        }
        _ => Ok(()),
    }
}

fn known<T: FromStr<Err: Display>>(
    section: &str,
    key: &str,
    name: Option<&str>,
) -> Result<(), PlanError> {
    match name.map(str::parse::<T>) {
        Some(Err(error)) => fail(&format!("{section}.{key}"), error.to_string()),
        Some(Ok(_)) | None => Ok(()),
    }
}
