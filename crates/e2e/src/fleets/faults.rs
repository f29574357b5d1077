//! Trial: etcd has trouble, and no site notices.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ropewalk_testbed::gateway::Gateway;
use serde::Serialize;

use super::call::{Traffic, ms};
use super::etcd::MEMBERS;
use super::{Fleet, FleetSpec, NAMES, Row, want};

/// What becomes of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing: how the call is otherwise.
    None,
    /// The leader is killed, and comes back.
    LeaderKilled,
    /// Two members are killed, and come back.
    MajorityLost,
    /// All members are killed, and come back.
    AllDown,
    /// One member loses its data, is taken out, and comes back empty.
    DataLost,
    /// Every `fsync` of every member takes [`SLOW`] longer.
    SlowDisk,
}

/// Every trouble, in the order in which they are tried.
pub const ALL: [Trouble; 6] = [
    Trouble::None,
    Trouble::LeaderKilled,
    Trouble::MajorityLost,
    Trouble::AllDown,
    Trouble::DataLost,
    Trouble::SlowDisk,
];

/// How long the troubles last.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// All members are down.
    pub all_down: Duration,
    /// Other troubles.
    pub other: Duration,
}

impl Lengths {
    /// To see that everything works.
    pub const SHORT: Self = Self {
        all_down: Duration::from_secs(5),
        other: Duration::from_secs(2),
    };
    /// As long as etcd takes to be started again by hand, and more.
    pub const LONG: Self = Self {
        all_down: Duration::from_secs(60),
        other: Duration::from_secs(15),
    };
}

/// Figures of a trouble.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// From the first kill until etcd was whole, seconds.
    pub seconds: f64,
    /// Longest silence of the call meanwhile and for 3 s after, milliseconds.
    pub gap_ms: f64,
    /// How long an invitation took that came in the middle, seconds.
    pub invitation_s: f64,
    /// Whether it was made.
    pub invited: bool,
    /// What hub and commands said meanwhile, if the invitation was not made.
    pub said: Vec<String>,
    /// Slow calls of the members.
    pub slow_calls: usize,
}

/// Added to each `fsync` of a slow disk. More: etcd loses its leader, because a member answers no heartbeat meanwhile.
pub const SLOW: Duration = Duration::from_millis(200);
/// Most that the call may be silent, milliseconds: less than any move takes, and more than a busy machine causes.
pub const GAP_MS: f64 = 250.0;
/// How long after the trouble the call is listened to.
const AFTER: Duration = Duration::from_secs(3);
/// How long a hub takes to notice that etcd is away.
const NOTICED: Duration = Duration::from_secs(4);

impl Trouble {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "no trouble",
            Self::LeaderKilled => "leader killed",
            Self::MajorityLost => "majority killed",
            Self::AllDown => "all members killed",
            Self::DataLost => "a member's data lost",
            Self::SlowDisk => "slow disks",
        }
    }

    /// Whether etcd takes no writes meanwhile.
    const fn is_away(self) -> bool {
        matches!(self, Self::MajorityLost | Self::AllDown)
    }
}

/// Tries these troubles one after the other, amid one call and downloads.
///
/// # Errors
/// A part does not start, or etcd does not come back. Bounds that do not hold are no error.
pub fn run(troubles: &[Trouble], lengths: Lengths) -> Result<Vec<Row<Figures>>> {
    let mut fleet = Fleet::new(&FleetSpec::new("etcd"))?;
    let site = fleet.site(0)?;
    let before: Vec<String> = (0..3).map(|number| format!("before-{number}")).collect();
    for name in &before {
        fleet.hubs[1].invite(name)?;
    }
    let mut invited = before;
    let serving = fleet.serving(&site)?;
    let traffic = Traffic::start(&fleet.endpoints())?;
    std::thread::sleep(AFTER);
    let mut times = Vec::new();
    let mut rows = Vec::new();
    for trouble in troubles {
        eprintln!("{}", trouble.words());
        let from = traffic.now();
        let name = format!("during-{}", rows.len());
        let mut row = one(&mut fleet, *trouble, lengths, &name)?;
        std::thread::sleep(AFTER);
        times.push((from, traffic.now()));
        if row.figures.invited {
            invited.push(name);
        }
        let now = fleet.serving(&site)?;
        want(&mut row.broken, now == serving, || {
            format!(
                "the site moved from hub {} to hub {}",
                NAMES[serving], NAMES[now]
            )
        });
        all_there(&fleet, &site, &invited, &mut row.broken)?;
        rows.push(row);
    }
    let heard = traffic.finish()?;
    for (row, time) in rows.iter_mut().zip(&times) {
        let gap = ms(heard.gap(*time));
        row.figures.gap_ms = gap;
        want(&mut row.slow, gap <= GAP_MS, || {
            format!("the call was silent for {gap:.0} ms, more than {GAP_MS} ms")
        });
    }
    if let Some(row) = rows.last_mut() {
        want(&mut row.broken, heard.broken.is_empty(), || {
            format!("connections broke: {:?}", heard.broken)
        });
    }
    Ok(rows)
}

/// Every hub lists all sites.
fn all_there(
    fleet: &Fleet,
    site: &Gateway,
    invited: &[String],
    broken: &mut Vec<String>,
) -> Result<()> {
    for (hub, name) in fleet.hubs.iter().zip(NAMES) {
        let list = hub.run(&["invite", "--list"])?.success()?;
        for wanted in invited.iter().map(String::as_str).chain(["site"]) {
            want(broken, list.contains(wanted), || {
                format!("hub {name} does not list {wanted}")
            });
        }
    }
    ensure!(site.status()?.paths_up() > 0, "the site has no path");
    Ok(())
}

fn begin(fleet: &mut Fleet, trouble: Trouble) -> Result<()> {
    let leader = fleet.etcd.leader()?;
    match trouble {
        Trouble::None => {}
        Trouble::LeaderKilled => fleet.etcd.kill(leader),
        Trouble::MajorityLost => {
            fleet.etcd.kill(leader);
            fleet.etcd.kill((leader + 1) % MEMBERS);
        }
        Trouble::AllDown => (0..MEMBERS).for_each(|member| fleet.etcd.kill(member)),
        Trouble::DataLost => fleet.etcd.lose_data((leader + 1) % MEMBERS)?,
        Trouble::SlowDisk => fleet.etcd.slow_disks(SLOW)?,
    }
    Ok(())
}

fn one(fleet: &mut Fleet, trouble: Trouble, lengths: Lengths, name: &str) -> Result<Row<Figures>> {
    let begun = Instant::now();
    begin(fleet, trouble)?;
    let mut broken = Vec::new();
    if trouble.is_away() {
        std::thread::sleep(NOTICED);
    }
    let asked = Instant::now();
    let finished = fleet.hubs[0].run(&["invite", name])?;
    let invitation_s = asked.elapsed().as_secs_f64();
    let invited = finished.status.success();
    let mut said = Vec::new();
    if trouble.is_away() {
        said.push(finished.stderr.trim().to_owned());
        let shown = fleet.hubs[0].run(&["fleet", "status"])?.success()?;
        said.push(shown.lines().next().unwrap_or_default().to_owned());
        want(&mut broken, !invited, || {
            "an invitation was made without etcd".to_owned()
        });
        for (text, part) in [
            (&said[0], "for the running hub etcd is away since 20"),
            (&said[0], "Known sites go on"),
            (&said[1], "etcd is away since 20"),
        ] {
            want(&mut broken, text.contains(part), || {
                format!("{text:?} does not say {part:?}")
            });
        }
    } else {
        want(&mut broken, invited, || {
            format!("no invitation: {}", finished.stderr.trim())
        });
    }
    let lasts = match trouble {
        Trouble::AllDown => lengths.all_down,
        Trouble::None
        | Trouble::LeaderKilled
        | Trouble::MajorityLost
        | Trouble::DataLost
        | Trouble::SlowDisk => lengths.other,
    };
    std::thread::sleep(lasts.saturating_sub(begun.elapsed()));
    let slow_calls = fleet.etcd.quick_disks();
    if trouble == Trouble::SlowDisk {
        want(&mut broken, slow_calls > 0, || {
            "no call was slow".to_owned()
        });
    }
    fleet.etcd.restore()?;
    fleet.await_all()?;
    Ok(Row {
        trial: trouble.words().to_owned(),
        figures: Figures {
            seconds: begun.elapsed().as_secs_f64(),
            gap_ms: 0.0,
            invitation_s,
            invited,
            said,
            slow_calls,
        },
        broken,
        slow: Vec::new(),
    })
}
