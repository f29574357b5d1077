//! What a swarm found, for people and as JSON.

mod text;

use ropewalk_types::Duration;
use serde::Serialize;

use crate::goodput::Goodput;
use crate::load::Profile;
use crate::roam::{Move, Moved};
use crate::seen::{Loaded, Seen, Start};

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
    /// Goodput of the sites with that host by that before.
    pub(crate) goodput_ratio: Option<f64>,
}

/// Moves of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Moves {
    pub(crate) how: Move,
    pub(crate) moves: usize,
    /// Moves after which a ping was answered.
    pub(crate) answered: usize,
    /// From a move until a ping that was sent after it was answered, milliseconds.
    pub(crate) answered_ms: Option<Spread>,
    /// Longest time without an answer around each move, milliseconds.
    pub(crate) gap_ms: Option<Spread>,
    /// Times a tunnel went down.
    pub(crate) downs: u32,
}

impl Moves {
    /// Of this kind, of all; `None` if there are none.
    fn of(how: Move, all: &[Moved]) -> Option<Self> {
        let moved = || all.iter().filter(|moved| moved.how == how);
        let answered: Vec<_> = moved().filter_map(|moved| moved.answered).collect();
        Some(Self {
            how,
            moves: moved().count(),
            answered: answered.len(),
            answered_ms: Spread::of(answered.into_iter().map(ms).collect()),
            gap_ms: Some(Spread::of(moved().map(|moved| ms(moved.gap)).collect())?),
            downs: moved().map(|moved| moved.downs).sum(),
        })
    }
}

/// Sites that vanished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Vanish {
    pub(crate) vanished: u64,
    /// Times that one was connected again.
    pub(crate) back: usize,
    /// From the new start to the first path, and to the last one, milliseconds.
    pub(crate) join_ms: Option<Spread>,
    pub(crate) whole_ms: Option<Spread>,
}

impl Vanish {
    /// Times that a site was not connected again.
    pub(crate) const fn not_back(&self) -> u64 {
        self.vanished.saturating_sub(self.back as u64)
    }
}

/// Sites that know more than one hub.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct HubMoves {
    /// Sites that moved to another hub, and how often all of them moved.
    pub(crate) sites: usize,
    pub(crate) moves: u64,
    /// Longest time without an answered ping of each site, milliseconds. A site that is silent at the end is among them.
    pub(crate) silence_ms: Option<Spread>,
}

impl HubMoves {
    fn of<'a>(seen: impl Iterator<Item = &'a Seen> + Clone) -> Self {
        let silences = seen.clone().filter_map(|one| one.silence).map(ms);
        Self {
            sites: seen.clone().filter(|one| one.hub_moves > 0).count(),
            moves: seen.clone().map(|one| one.hub_moves).sum(),
            silence_ms: Spread::of(silences.collect()),
        }
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) sites: u32,
    pub(crate) paths: u32,
    pub(crate) traffic: Profile,
    /// Whether the last site came late, without traffic.
    pub(crate) late: bool,
    /// Whether the sites know further hubs.
    pub(crate) spares: bool,
    /// For how long traffic counted, without hostile hosts and with them.
    pub(crate) counted: [Duration; 2],
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
    /// What the sites did besides, and what came back of it: the same times, without the first second.
    pub(crate) traffic: Option<String>,
    pub(crate) goodput: Option<Goodput>,
    pub(crate) goodput_hostile: Option<Goodput>,
    /// Moves by kind, and moves that could not be made.
    pub(crate) roam: Vec<Moves>,
    pub(crate) not_moved: u64,
    pub(crate) vanish: Option<Vanish>,
    /// Moves to other hubs, if the sites know any.
    pub(crate) hubs: Option<HubMoves>,
    pub(crate) hostile: Option<Hostile>,
    pub(crate) hub: Option<HubUsage>,
}

impl Report {
    /// Of what all sites have seen, each with its paths that are up.
    pub(crate) fn new<'a>(
        asked: &Asked,
        seen: impl Iterator<Item = (&'a Seen, u32)>,
        hub: Option<HubUsage>,
    ) -> Self {
        let seen: Vec<_> = seen.collect();
        let firsts = || seen.iter().filter_map(|(one, _)| one.starts.first());
        let again = || seen.iter().flat_map(|(one, _)| one.starts.iter().skip(1));
        let moved: Vec<_> = seen
            .iter()
            .flat_map(|(one, _)| &one.moved)
            .copied()
            .collect();
        let vanished = seen.iter().map(|(one, _)| one.vanished).sum();
        let [pings, with] =
            [0, 1].map(|phase| Pings::of(seen.iter().map(|(one, _)| &one.pings[phase])));
        let busy = seen
            .len()
            .min(asked.sites as usize - usize::from(asked.late));
        let [goodput, goodput_hostile] = [0, 1].map(|phase| {
            let loads: Vec<Loaded> = seen[..busy]
                .iter()
                .map(|(one, _)| one.load[phase])
                .collect();
            Goodput::of(&loads, asked.counted[phase]).filter(|_| asked.traffic != Profile::None)
        });
        Self {
            sites: asked.sites,
            paths: asked.paths,
            joined: firsts().filter(|start| start.joined.is_some()).count(),
            paths_up: seen.iter().map(|(_, up)| up).sum(),
            join_ms: times(firsts(), |start| start.joined),
            whole_ms: times(firsts(), |start| start.whole),
            downs: seen.iter().map(|(one, _)| one.downs).sum(),
            pings,
            pings_hostile: (with.sent > 0).then_some(with),
            traffic: (asked.traffic != Profile::None).then(|| asked.traffic.to_string()),
            goodput,
            goodput_hostile,
            roam: Move::ALL
                .into_iter()
                .filter_map(|how| Moves::of(how, &moved))
                .collect(),
            not_moved: seen.iter().map(|(one, _)| one.not_moved).sum(),
            vanish: (vanished > 0).then(|| Vanish {
                vanished,
                back: again().filter(|start| start.joined.is_some()).count(),
                join_ms: times(again(), |start| start.joined),
                whole_ms: times(again(), |start| start.whole),
            }),
            hubs: asked
                .spares
                .then(|| HubMoves::of(seen.iter().map(|(one, _)| *one))),
            hostile: None,
            hub,
        }
    }

    /// Goodput with hostile hosts by goodput before.
    pub(crate) fn goodput_ratio(&self) -> Option<f64> {
        let (before, with) = (self.goodput?.mbit, self.goodput_hostile?.mbit);
        (before > 0.0).then(|| with / before)
    }
}

impl Pings {
    /// Of all sites.
    fn of<'a>(seen: impl Iterator<Item = &'a crate::seen::Pings>) -> Self {
        let mut pings = Self::default();
        let mut trips = Vec::new();
        for one in seen {
            trips.extend(one.round_trips.iter().map(|&us| f64::from(us) / 1e3));
            pings.sent += one.sent;
            pings.answered_bytes += one.answered_bytes;
        }
        pings.answered = trips.len();
        pings.ms = Spread::of(trips);
        pings
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The spread of some time of each start that came so far.
fn times<'a>(
    starts: impl Iterator<Item = &'a Start>,
    time: impl Fn(&Start) -> Option<Duration>,
) -> Option<Spread> {
    Spread::of(starts.filter_map(time).map(ms).collect())
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
    fn seen(mbit: u64) -> Seen {
        let load = Loaded {
            sent: 10,
            answered: 9,
            answered_bytes: mbit * 125_000,
        };
        let start = Start {
            joined: Some(Duration::from_millis(2)),
            whole: Some(Duration::from_millis(3)),
        };
        Seen {
            starts: vec![start],
            load: [load; 2],
            ..Seen::default()
        }
    }

    fn report(seen: &[Seen], late: bool) -> Report {
        let asked = Asked {
            sites: seen.len() as u32,
            paths: 2,
            traffic: Profile::Bulk,
            late,
            spares: seen.iter().any(|one| one.hub_moves > 0),
            counted: [Duration::from_secs(1), Duration::from_secs(2)],
        };
        Report::new(&asked, seen.iter().map(|one| (one, 2)), None)
    }

    #[test]
    fn goodput_before_and_with_a_host_is_of_the_sites_that_were_there_before() {
        let report = report(&[seen(4), seen(4), seen(0)], true);
        let goodput = report.goodput.expect("traffic");
        assert!((goodput.mbit - 8.0).abs() < 1e-9 && (goodput.jain - 1.0).abs() < 1e-9);
        assert!((report.goodput_ratio().expect("both") - 0.5).abs() < 1e-9);
        assert!(report.to_string().contains("traffic   bulk: 8.00 Mbit/s"));
    }

    #[test]
    fn moves_to_other_hubs_are_counted_with_the_silence_of_every_site() {
        assert_eq!(report(&[seen(1)], false).hubs, None);
        let at = ropewalk_types::Instant::from_millis;
        let (mut moved, mut stayed) = (seen(1), seen(1));
        stayed.silence(None, at(900));
        assert_eq!(stayed.silence, None, "no ping was answered before");
        moved.hub_moves = 2;
        for (last, now) in [(100, 500), (500, 600)] {
            moved.silence(Some(at(last)), at(now));
        }
        stayed.silence(Some(at(100)), at(120));
        let report = report(&[moved, stayed], false);
        let hubs = report.hubs.expect("sites with spares");
        assert_eq!((hubs.sites, hubs.moves), (1, 2));
        let silence = hubs.silence_ms.expect("answered pings");
        assert_eq!((silence.least, silence.most), (20.0, 400.0));
        let text = report.to_string();
        assert!(text.contains("hubs      1 sites moved, 2 times"), "{text}");
    }

    #[test]
    fn absences_and_moves_are_told_apart_from_the_first_start() {
        let mut one = seen(1);
        one.vanished = 2;
        one.starts.push(one.starts[0]);
        one.starts.push(Start::default());
        let moved = |how, answered: Option<u64>| Moved {
            how,
            answered: answered.map(Duration::from_millis),
            gap: Duration::from_millis(50),
            downs: 1,
        };
        one.moved = vec![moved(Move::Nat, Some(7)), moved(Move::Nat, None)];
        let report = report(&[one], false);
        assert_eq!(report.joined, 1);
        let vanish = report.vanish.expect("two absences");
        assert_eq!((vanish.vanished, vanish.back, vanish.not_back()), (2, 1, 1));
        let [moves] = report.roam.as_slice() else {
            panic!("one kind of moves");
        };
        assert_eq!((moves.moves, moves.answered, moves.downs), (2, 1, 2));
        assert_eq!(moves.gap_ms.expect("gaps").most, 50.0);
        let text = report.to_string();
        assert!(text.contains("roam      nat: 2 moves"), "{text}");
        assert!(
            text.contains("vanish    2 times a site vanished, 1 times"),
            "{text}"
        );
    }
}
