//! Refuses plans whose bulk traffic nothing slows down: the simulator would work on an instant of
//! virtual time for very long.

use crate::run::SimError;
use ropewalk_netem::{LinkConfig, Side};
use ropewalk_plan::{Carrier, Plan, Traffic};
use ropewalk_types::Duration;

/// What is too fast for the simulator: a path that carries more than this, with a shorter round trip.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// More Gbit/s count as no rate.
    gbit: u32,
    /// Shortest round trip over paths without a rate.
    round_trip: Duration,
}

/// In each round trip a connection sends a window of 6 MiB, 4,300 packets; so in 2 ms that are 2
/// million packets for each second of the plan, which the simulator takes seconds for. 20 Gbit/s are
/// about as many. Faster: runs that seem to hang.
const DIRECT: Limit = Limit {
    gbit: 20,
    round_trip: Duration::from_millis(2),
};
/// A packet of a tunnel takes the simulator ten times as long: 10 us (measured on a 2.5 GHz Xeon).
const TUNNEL: Limit = Limit {
    gbit: 5,
    round_trip: Duration::from_millis(20),
};

/// Checks the ways of all traffic that sends as fast as it may. `links` are those of paths, then
/// shared ones.
///
/// # Errors
/// With the path or link that needs a rate or a delay.
pub fn check(plan: &Plan, links: &[LinkConfig]) -> Result<(), SimError> {
    for traffic in &plan.traffic {
        let pages = matches!(traffic, Traffic::Web { .. }).then_some(Side::Down);
        let side = traffic.bulk_side().or(pages);
        let limited = traffic
            .access()
            .is_some_and(|access| access.rate.is_some() || access.trace.is_some());
        if let Some(side) = side.filter(|_| !limited) {
            let tunnel = matches!(plan.carrier, Carrier::Tunnel(_) | Carrier::Relay(_));
            let inside = traffic.beside().is_none() || traffic.has_own_tunnel();
            let limit = if tunnel && inside { TUNNEL } else { DIRECT };
            check_way(plan, links, side, &hops(plan, traffic), limit)?;
        }
    }
    Ok(())
}

/// The links that the traffic may begin each hop on.
fn hops(plan: &Plan, traffic: &Traffic) -> Vec<Vec<usize>> {
    match traffic.beside().and_then(|name| plan.link_number(name)) {
        Some(link) => vec![vec![link]],
        None => {
            let before = traffic.enter() as usize - 1;
            plan.paths_by_hop().into_iter().skip(before).collect()
        }
    }
}

fn check_way(
    plan: &Plan,
    links: &[LinkConfig],
    side: Side,
    hops: &[Vec<usize>],
    limit: Limit,
) -> Result<(), SimError> {
    let rate = |link: usize| links[link].mean_capacity(side, Duration::ZERO, plan.duration);
    let carried = |link: usize| plan.carried(&[link], rate);
    let unlimited =
        |link: usize| carried(link).is_none_or(|rate| rate > f64::from(limit.gbit) * 1e9);
    let mut freest = Vec::new();
    for hop in hops {
        let free = hop.iter().copied().filter(|&link| unlimited(link));
        match free.min_by_key(|&link| round_trip(plan, links, link)) {
            Some(link) => freest.push(link),
            // This hop has a rate: the others need none.
            None => return Ok(()),
        }
    }
    let total = freest.iter().map(|&link| round_trip(plan, links, link));
    let total: Duration = total.fold(Duration::ZERO, |sum, part| sum + part);
    let Some(&first) = freest.first().filter(|_| total < limit.round_trip) else {
        return Ok(());
    };
    let (key, name) = match first.checked_sub(plan.path.len()) {
        None => (format!("path[{first}]"), &plan.path[first].name),
        Some(shared) => (format!("link[{shared}]"), &plan.link[shared].name),
    };
    let direction = match side {
        Side::Up => "up",
        Side::Down => "down",
    };
    let most = format!("{}Gbit", limit.gbit);
    let fast = match carried(first) {
        None => format!("no `rate` or `trace` {direction}"),
        Some(_) => format!("more than {most} {direction}"),
    };
    let problem = format!(
        "`{name}` has {fast}, and a round trip of less than {} ms: the simulator would hardly end; \
         give `{name}` a rate of at most {most}, or a `delay` of {} ms or more in each direction",
        limit.round_trip.as_millis(),
        limit.round_trip.as_millis() / 2,
    );
    Err(SimError::setting(&key, problem))
}

/// The shortest delay there and back that a link, and those that it goes on over, ever have.
fn round_trip(plan: &Plan, links: &[LinkConfig], link: usize) -> Duration {
    let way = std::iter::successors(Some(link), |next| plan.through(*next));
    let least = |link: usize| {
        let LinkConfig {
            up, down, changes, ..
        } = &links[link];
        let ups = changes.iter().filter_map(|change| change.up.delay);
        let downs = changes.iter().filter_map(|change| change.down.delay);
        ups.fold(up.delay, Duration::min) + downs.fold(down.delay, Duration::min)
    };
    way.fold(Duration::ZERO, |sum, link| sum + least(link))
}

#[cfg(test)]
mod tests {
    use crate::run;
    use ropewalk_plan::Plan;

    fn error(path: &str, rest: &str) -> Option<String> {
        let text =
            format!("name = \"x\"\nduration = \"50ms\"\n[[path]]\nname = \"a\"\n{path}\n{rest}");
        let plan = Plan::parse(&text).expect("a plan");
        run(&plan, 1).err().map(|error| error.to_string())
    }

    const TCP: &str = "[[traffic]]\nkind = \"tcp\"";
    const TUNNEL: &str = "[carrier]\nkind = \"tunnel\"\n[[traffic]]\nkind = \"tcp\"";

    #[test]
    fn bulk_traffic_that_nothing_slows_down_is_refused() {
        for (path, rest) in [
            ("", TCP),
            ("both = { delay = \"100us\" }", TCP),
            ("", TUNNEL),
            ("up = { rate = \"8Mbit\" }", TCP),
            ("", "[[traffic]]\nkind = \"web\"\npause = \"1ms\""),
            (
                "both = { rate = \"8Mbit\" }\nchange = [ { at = \"10ms\", both.rate = \"unlimited\" } ]",
                TCP,
            ),
        ] {
            let error = error(path, rest).expect("refused");
            assert!(error.starts_with("path[0]: `a` has no `rate`"), "{error}");
            assert!(error.contains("give `a` a rate of at most"), "{error}");
        }
    }

    #[test]
    fn a_rate_that_is_as_good_as_none_is_none() {
        let fast = "both = { rate = \"1000000Mbit\" }";
        let told = error(fast, TCP).expect("refused");
        assert!(
            told.starts_with("path[0]: `a` has more than 20Gbit down"),
            "{told}"
        );
        let far = "both = { rate = \"1000000Mbit\", delay = \"5ms\" }";
        assert_eq!(error(far, TCP), None);
        let told = error(far, TUNNEL).expect("refused");
        assert!(
            told.starts_with("path[0]: `a` has more than 5Gbit down"),
            "{told}"
        );
        assert!(told.contains("a `delay` of 10 ms or more"), "{told}");
    }

    #[test]
    fn a_rate_or_a_delay_or_quiet_traffic_is_enough() {
        let shared = "through = \"cell\"\n[[link]]\nname = \"cell\"\nboth = { rate = \"8Mbit\" }";
        let chain = "[[path]]\nname = \"b\"\nboth = { rate = \"8Mbit\" }\n[carrier]\n\
                     kind = \"chain\"\nhops = [\"a\", \"b\"]\n[[traffic]]\nkind = \"tcp\"";
        for (path, rest) in [
            ("both = { rate = \"8Mbit\" }", TCP),
            ("down = { rate = \"8Mbit\" }", TCP),
            ("both = { delay = \"1ms\" }", TCP),
            (shared, TCP),
            ("", chain),
            ("", "[[traffic]]\nkind = \"ping\""),
        ] {
            assert_eq!(error(path, rest), None, "{path}\n{rest}");
        }
    }

    #[test]
    fn pings_through_a_tunnel_without_delay_end() {
        let ping = "[carrier]\nkind = \"tunnel\"\n[[traffic]]\nkind = \"ping\"";
        assert_eq!(error("", ping), None);
    }
}
