//! What a swarm found, for people and as JSON.

use std::fmt;

use serde::Serialize;

use crate::site::Seen;

/// Smallest, middle, 99th percentile and largest of some times, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Of these, in any order; `None` of nothing.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        let at = |share: usize| values[(values.len() * share / 100).min(values.len() - 1)];
        Some(Self {
            least,
            median: at(50),
            p99: at(99),
            most,
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "median {:.1}, 99th percentile {:.1}, longest {:.1} ms",
            self.median, self.p99, self.most
        )
    }
}

/// What the hub's process used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct HubUsage {
    /// Processor time until the last site had begun, seconds.
    pub(crate) join_cpu_s: f64,
    /// Processor time by time after that; 1 is one core.
    pub(crate) cpu_share: f64,
    /// Resident memory at the end, and before the first site, megabytes.
    pub(crate) resident_mb: f64,
    pub(crate) resident_start_mb: f64,
}

/// Pings of all sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Pings {
    pub(crate) sent: u64,
    pub(crate) answered: usize,
    pub(crate) ms: Option<Spread>,
    /// Bytes of answers.
    pub(crate) answered_bytes: u64,
}

/// A host that misbehaved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Hostile {
    pub(crate) behaviour: String,
    /// How often.
    pub(crate) times: u64,
    /// For how long, which is also how long it was quiet before.
    pub(crate) seconds: f64,
    /// From the begin of a site that came meanwhile to its last path, milliseconds.
    pub(crate) late_join_ms: Option<f64>,
}

/// What a swarm found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) sites: u32,
    pub(crate) paths: u32,
    /// Sites whose tunnel came up, and paths that were up at the end.
    pub(crate) joined: usize,
    pub(crate) paths_up: u32,
    /// From the begin of a site to its first path, and to its last one, milliseconds.
    pub(crate) join_ms: Option<Spread>,
    pub(crate) whole_ms: Option<Spread>,
    /// Times that a tunnel went down.
    pub(crate) downs: u64,
    /// Before hostile hosts begin; all of it if there are none.
    pub(crate) pings: Pings,
    /// With them.
    pub(crate) pings_hostile: Option<Pings>,
    pub(crate) hostile: Option<Hostile>,
    pub(crate) hub: Option<HubUsage>,
}

impl Report {
    /// Of what all sites have seen, each with its paths that are up.
    pub(crate) fn new<'a>(
        sites: u32,
        paths: u32,
        seen: impl Iterator<Item = (&'a Seen, u32)>,
        hub: Option<HubUsage>,
    ) -> Self {
        let (mut join, mut whole) = (Vec::new(), Vec::new());
        let mut trips = [Vec::new(), Vec::new()];
        let mut pings = [Pings::default(); 2];
        let mut report = Self {
            sites,
            paths,
            joined: 0,
            paths_up: 0,
            join_ms: None,
            whole_ms: None,
            downs: 0,
            pings: Pings::default(),
            pings_hostile: None,
            hostile: None,
            hub,
        };
        for (one, up) in seen {
            join.extend(one.joined.map(|took| took.as_secs_f64() * 1e3));
            whole.extend(one.whole.map(|took| took.as_secs_f64() * 1e3));
            for ((all, pings), one) in trips.iter_mut().zip(&mut pings).zip(&one.phases) {
                all.extend(one.round_trips.iter().map(|&us| f64::from(us) / 1e3));
                pings.sent += one.sent;
                pings.answered_bytes += one.answered_bytes;
            }
            report.paths_up += up;
            report.downs += one.downs;
        }
        report.joined = join.len();
        report.join_ms = Spread::of(join);
        report.whole_ms = Spread::of(whole);
        for (pings, trips) in pings.iter_mut().zip(trips) {
            pings.answered = trips.len();
            pings.ms = Spread::of(trips);
        }
        report.pings = pings[0];
        report.pings_hostile = (pings[1].sent > 0).then_some(pings[1]);
        report
    }
}

impl fmt::Display for Pings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} answered", self.answered, self.sent)?;
        if let Some(took) = self.ms {
            write!(f, ", {took}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.sites * self.paths;
        writeln!(
            f,
            "sites     {} of {} connected, {} of {all} paths up at the end",
            self.joined, self.sites, self.paths_up
        )?;
        if let Some(took) = self.join_ms {
            writeln!(f, "join      first path: {took}")?;
        }
        if let Some(took) = self.whole_ms {
            writeln!(f, "          all paths:  {took}")?;
        }
        writeln!(f, "downs     {} times a tunnel went down", self.downs)?;
        writeln!(f, "pings     {}", self.pings)?;
        if let (Some(hostile), Some(pings)) = (&self.hostile, &self.pings_hostile) {
            let Hostile {
                behaviour,
                times,
                seconds,
                late_join_ms,
            } = hostile;
            writeln!(f, "hostile   {behaviour}: {times} times in {seconds} s")?;
            writeln!(f, "          pings: {pings}")?;
            match late_join_ms {
                Some(took) => writeln!(f, "          a site that came meanwhile: {took:.1} ms"),
                None => writeln!(f, "          a site that came meanwhile did not connect"),
            }?;
        }
        if let Some(hub) = self.hub {
            writeln!(
                f,
                "hub       {:.1} s of processor time to join, then {:.1} % of one core; {:.1} MB of memory, {:.1} before",
                hub.join_cpu_s,
                hub.cpu_share * 100.0,
                hub.resident_mb,
                hub.resident_start_mb
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_sorted_values() {
        let spread = Spread::of((0..1_000).rev().map(f64::from).collect()).expect("some");
        let expected = Spread {
            least: 0.0,
            median: 500.0,
            p99: 990.0,
            most: 999.0,
        };
        assert_eq!(spread, expected);
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
