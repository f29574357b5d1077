//! Probes what idle uplinks carry, which watching cannot tell: one series of echoes at a time, on one
//! uplink after the other, so that none disturbs another.
//!
//! Invariant: an uplink that is busy, was seen full lately, or has a set weight costs nothing. One that
//! costs by the byte gets [`METERED_FIRST`] series at first and then one every [`METERED_INTERVAL`].

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ropewalk_core::balance::rounds::FIRST_PAUSE;
use ropewalk_core::balance::{Pace, Rounds, train, vps};
use ropewalk_io::icmp::{Echo, Echoed, TOKEN_BYTES};
use ropewalk_types::{Instant, Rate};
use tokio::sync::mpsc;

use super::gauge::Reading;
use super::health::Health;
use super::marks::{self, OWN};
use super::members::{FAMILIES, Family, Line, Member};
use ropewalk_config::balance::{CapacityProbe, ProbeConfig};

/// How often an uplink is probed that has been: 7 MB a day in each direction, if it is always idle.
/// Longer: fewer bytes, later to follow a line that changes.
const INTERVAL: Duration = Duration::from_secs(300);
/// How often an uplink is probed where bytes cost: less than 0.2 MB a day in each direction.
/// Longer: less money, later to follow.
const METERED_INTERVAL: Duration = Duration::from_secs(6 * 3_600);
/// Series that make a first estimate where bytes cost: the fewest that make one. More: surer, more
/// money.
const METERED_FIRST: u32 = train::TRAINS_MIN as u32;
/// How long answers may take: those of a train over 0.2 Mbit/s. Longer: slower uplinks are
/// measured, each series takes longer where answers are lost.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Pause between the packets of different sizes, so that none waits for another. Longer: slower
/// uplinks are measured, longer series.
const SIZES_GAP: Duration = Duration::from_millis(5);
/// Series of the first estimate by sizes: the fewest that make one, for each has enough packets for
/// itself. More: surer, later, more bytes.
const VPS_FIRST: u32 = train::TRAINS_MIN as u32;

/// What is known of the uplinks.
#[derive(Debug)]
pub struct Survey {
    method: Option<CapacityProbe>,
    targets: Vec<IpAddr>,
    uplinks: BTreeMap<u8, Surveyed>,
    /// Number of the uplink whose series is under way.
    running: Option<u8>,
    done: (mpsc::Sender<Done>, mpsc::Receiver<Done>),
}

#[derive(Debug)]
struct Surveyed {
    line: Line,
    rounds: Rounds,
}

/// The end of a series.
#[derive(Debug)]
pub struct Done {
    number: u8,
    line: Line,
    rate: Option<Rate>,
}

impl Survey {
    /// Nothing is known.
    #[must_use]
    pub fn new(config: &ProbeConfig) -> Self {
        Self {
            method: config.capacity,
            targets: config.targets.clone(),
            uplinks: BTreeMap::new(),
            running: None,
            done: mpsc::channel(1),
        }
    }

    /// What probing found on an uplink.
    #[must_use]
    pub fn estimate(&self, number: u8) -> Option<Rate> {
        self.uplinks.get(&number)?.rounds.estimate()
    }

    /// The next series that has ended.
    pub async fn next(&mut self) -> Option<Done> {
        self.done.1.recv().await
    }

    /// Takes it, unless the uplink is another line by now.
    pub fn take(&mut self, now: Instant, done: &Done) {
        self.running = None;
        let uplink = self.uplinks.get_mut(&done.number);
        if let (Some(uplink), Some(method)) = (uplink, self.method)
            && uplink.line == done.line
        {
            let pace = pace(uplink.line.is_metered(), method);
            uplink.rounds.end(now, done.rate, pace);
        }
    }

    /// Begins a series where one is due, unless one is under way. `readings` are in the order of
    /// `members`.
    pub fn begin(
        &mut self,
        now: Instant,
        members: &[Member],
        readings: &[Reading],
        health: &Health,
    ) {
        let Some(method) = self.method else { return };
        self.follow(now, members);
        if self.running.is_some() {
            return;
        }
        let due = members.iter().zip(readings).filter(|(member, reading)| {
            let uplink = self.uplinks.get(&member.number);
            uplink.is_some_and(|uplink| uplink.rounds.due() <= now)
                && member.weight.is_none()
                && reading.worth_probing
        });
        let due = due.filter_map(|(member, _)| Some((member, self.way(member, health)?)));
        let next =
            due.min_by_key(|(member, _)| self.uplinks.get(&member.number).map(|u| u.rounds.due()));
        let Some((member, family)) = next else { return };
        let Some(uplink) = self.uplinks.get_mut(&member.number) else {
            return;
        };
        let begun = uplink
            .rounds
            .begin(now, pace(uplink.line.is_metered(), method));
        let line = uplink.line.clone();
        let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
        let targets: Vec<IpAddr> = self.targets.iter().filter(of_family).copied().collect();
        // Some answer with less than they were asked, or not as often.
        let turn = usize::try_from(begun).unwrap_or(0);
        let Some(&target) = targets.get(turn % targets.len().max(1)) else {
            return;
        };
        self.running = Some(member.number);
        let (name, number, sender) = (member.name.clone(), member.number, self.done.0.clone());
        tokio::task::spawn_blocking(move || {
            let rate = series(&name, number, target, method);
            tracing::debug!(uplink = name, %target, ?method, ?rate, "capacity was probed");
            let rate = rate.ok().flatten();
            // Nobody waits for it when the program ends.
            let _ = sender.blocking_send(Done { number, line, rate });
        });
    }

    /// Keeps what is known of lines that are the same, also while they are away, and nothing else.
    fn follow(&mut self, now: Instant, members: &[Member]) {
        self.uplinks.retain(|number, uplink| {
            let member = members.iter().find(|member| member.number == *number);
            member.is_some_and(|member| Line::of(member) == uplink.line)
        });
        for member in members.iter().filter(|member| member.present) {
            let line = Line::of(member);
            self.uplinks
                .entry(member.number)
                .or_insert_with(|| Surveyed {
                    line,
                    rounds: Rounds::new(now),
                });
        }
    }

    /// The family in which an uplink is probed.
    fn way(&self, member: &Member, health: &Health) -> Option<Family> {
        let asked = |family: &Family| self.targets.iter().any(|ip| Family::of(*ip) == *family);
        let works = |family: &Family| health.is_usable((member.number, *family));
        FAMILIES.into_iter().filter(asked).find(works)
    }
}

/// How often an uplink is probed.
const fn pace(metered: bool, method: CapacityProbe) -> Pace {
    Pace {
        first: match method {
            _ if metered => METERED_FIRST,
            CapacityProbe::Train => train::FIRST as u32,
            CapacityProbe::Vps => VPS_FIRST,
        },
        first_pause: FIRST_PAUSE,
        interval: if metered { METERED_INTERVAL } else { INTERVAL },
    }
}

/// One series over an uplink.
fn series(
    interface: &str,
    number: u8,
    target: IpAddr,
    method: CapacityProbe,
) -> io::Result<Option<Rate>> {
    let mut token = [0; TOKEN_BYTES];
    ropewalk_crypto::rand::fill(&mut token).map_err(|_| io::Error::other("no random numbers"))?;
    let mark = marks::key(number) | OWN;
    let echo = Echo::open(interface, target.is_ipv6(), mark, token)?;
    match method {
        CapacityProbe::Train => {
            let sizes = [train::PACKET_BYTES; train::PACKETS];
            let echoed = echo.series(target, &sizes, Duration::ZERO, PATIENCE)?;
            let arrivals: Vec<Duration> = echoed.iter().map(|echo| echo.arrived).collect();
            Ok(train::rate(&arrivals, sizes.len()))
        }
        CapacityProbe::Vps => {
            let sizes = vps::SIZES.repeat(vps::REPEATS);
            let echoed = echo.series(target, &sizes, SIZES_GAP, PATIENCE)?;
            let round_trip = |echo: &Echoed| {
                let time = echo.arrived.saturating_sub(echo.sent);
                (sizes[echo.index], time)
            };
            let round_trips: Vec<_> = echoed.iter().map(round_trip).collect();
            Ok(vps::rate(&round_trips))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::members::tests::config;
    use super::*;

    #[test]
    fn a_modem_that_dials_again_costs_nothing_anew_and_another_line_is_probed() {
        let survey = |metered| {
            let mut member = Member {
                number: 1,
                name: "wwan0".to_owned(),
                ifindex: 7,
                present: true,
                ways: [None, None],
                held: Vec::new(),
                weight: None,
                metered,
                standby: false,
                rank: 0,
                dns: Vec::new(),
            };
            let mut survey = Survey::new(&config("").probe);
            survey.follow(Instant::ZERO, std::slice::from_ref(&member));
            for _ in 0..train::FIRST {
                let rate = Some(Rate::from_bits_per_sec(9));
                let line = Line::of(&member);
                survey.take(
                    Instant::ZERO,
                    &Done {
                        number: 1,
                        line,
                        rate,
                    },
                );
            }
            member.present = false;
            survey.follow(Instant::ZERO, std::slice::from_ref(&member));
            let away = survey.estimate(1).is_some();
            (member.present, member.ifindex) = (true, 8);
            survey.follow(Instant::ZERO, std::slice::from_ref(&member));
            (away, survey.estimate(1).is_some())
        };
        assert_eq!(survey(true), (true, true));
        assert_eq!(survey(false), (true, false));
    }

    #[test]
    fn metered_uplinks_are_probed_a_few_times_a_day() {
        let day = |metered, method| {
            let (mut rounds, mut series) = (Rounds::default(), 0_u32);
            let pace = pace(metered, method);
            while rounds.due() < Instant::from_millis(86_400_000) {
                let now = rounds.due();
                series = rounds.begin(now, pace);
                rounds.end(now, Some(Rate::from_bits_per_sec(1)), pace);
            }
            series
        };
        assert!(day(false, CapacityProbe::Train) > 250);
        for (method, bytes) in [
            (CapacityProbe::Train, train::PACKETS * train::PACKET_BYTES),
            (
                CapacityProbe::Vps,
                vps::REPEATS * vps::SIZES.iter().sum::<usize>(),
            ),
        ] {
            let series = usize::try_from(day(true, method)).unwrap();
            assert!(series * bytes < 600_000, "{series} of {bytes} bytes");
        }
    }
}
