//! The report for people.

use std::fmt;

use super::{Hostile, Moves, Pings, Report, Spread};

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "median {:.1}, 99th percentile {:.1}, longest {:.1} ms",
            self.median, self.p99, self.most
        )
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
        if let (Some(traffic), Some(goodput)) = (&self.traffic, &self.goodput) {
            writeln!(f, "traffic   {traffic}: {goodput}")?;
        }
        self.write_changes(f)?;
        if let Some(hostile) = &self.hostile {
            self.write_hostile(f, hostile)?;
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

impl Report {
    /// Sites that moved or vanished.
    fn write_changes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, moves) in self.roam.iter().enumerate() {
            let Moves {
                how,
                moves,
                answered,
                answered_ms,
                gap_ms,
                downs,
            } = moves;
            let head = if at == 0 { "roam" } else { "" };
            write!(f, "{head:10}{}: {moves} moves, {downs} downs", how.name())?;
            if let Some(took) = answered_ms {
                write!(f, "; {answered} answered again: {took}")?;
            }
            if let Some(gap) = gap_ms {
                write!(f, "; gap: {gap}")?;
            }
            writeln!(f)?;
        }
        if self.not_moved > 0 {
            let head = if self.roam.is_empty() { "roam" } else { "" };
            writeln!(f, "{head:10}{} moves could not be made", self.not_moved)?;
        }
        if let Some(hubs) = &self.hubs {
            write!(
                f,
                "hubs      {} sites moved, {} times",
                hubs.sites, hubs.moves
            )?;
            if let Some(silence) = hubs.silence_ms {
                write!(f, "; longest time without an answer: {silence}")?;
            }
            writeln!(f)?;
        }
        if let Some(vanish) = &self.vanish {
            writeln!(
                f,
                "vanish    {} times a site vanished, {} times one was connected again",
                vanish.vanished, vanish.back
            )?;
            if let Some(took) = vanish.join_ms {
                writeln!(f, "          first path: {took}")?;
            }
            if let Some(took) = vanish.whole_ms {
                writeln!(f, "          all paths:  {took}")?;
            }
        }
        Ok(())
    }

    /// A host that misbehaved, and what the sites saw meanwhile.
    fn write_hostile(&self, f: &mut fmt::Formatter<'_>, hostile: &Hostile) -> fmt::Result {
        let Hostile {
            behaviour,
            times,
            seconds,
            late_join_ms,
            goodput_ratio,
        } = hostile;
        writeln!(f, "hostile   {behaviour}: {times} times in {seconds} s")?;
        if let Some(pings) = &self.pings_hostile {
            writeln!(f, "          pings: {pings}")?;
        }
        if let Some(goodput) = &self.goodput_hostile {
            writeln!(f, "          traffic: {goodput}")?;
        }
        if let Some(ratio) = goodput_ratio {
            writeln!(f, "          goodput by that before: {ratio:.3}")?;
        }
        match late_join_ms {
            Some(took) => writeln!(f, "          a site that came meanwhile: {took:.1} ms"),
            None => writeln!(f, "          a site that came meanwhile did not connect"),
        }
    }
}
