//! Bytes that each uplink with a quota has carried this month.
//!
//! The month begins on the day of the quota, at midnight UTC. A clock that stands before 2025 is wrong: nothing
//! begins anew then. A clock that is set back keeps what was counted.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_api::words::CLOCK_MIN_S;
use ropewalk_api::{Quota, QuotaStatus, Status};
use serde::{Deserialize, Serialize};
use time::{Date, Month, OffsetDateTime, Time};

use crate::UPLINKS_MAX;
use crate::events::Events;

/// Parts of a quota whose use is an event, percent.
const TOLD: [u64; 3] = [50, 80, 100];

/// How far a clock may be set back until it counts as wrong before, seconds: two months. More: a clock that stood far
/// ahead keeps a quota from beginning anew for longer. Less: a quota begins anew when a clock is set back and forth.
const SET_BACK_S: u64 = 62 * 86_400;

/// What was counted of an uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub uplink: String,
    /// Begin of the month, seconds since 1970; 0 while the clock was never right.
    since_s: u64,
    /// Day on which the month began; 0 is unknown.
    #[serde(default)]
    day: u8,
    bytes: u64,
    /// Counter of the path at the last sample.
    #[serde(skip)]
    counter: Option<u64>,
}

/// All uplinks with a quota.
#[derive(Debug, Default)]
pub struct Usage {
    used: Vec<Used>,
    now: BTreeMap<String, QuotaStatus>,
}

impl Usage {
    pub fn sample(
        &mut self,
        now_s: u64,
        status: &Status,
        quota: impl Fn(&str) -> Option<Quota> + Copy,
        events: &mut Events,
    ) {
        self.now.clear();
        for path in status.paths() {
            let counter = path.tx_bytes + path.rx_bytes;
            let Some(quota) = quota(&path.uplink) else {
                self.used.retain(|used| used.uplink != path.uplink);
                continue;
            };
            let Some(used) = self.entry(&path.uplink, status) else {
                continue;
            };
            let before = used.bytes;
            used.begin(now_s, quota);
            let begun_anew = used.bytes < before;
            let last = used.counter.replace(counter);
            // A counter that fell began anew. The first one that is seen may have been counted by an earlier run.
            let new = last.map_or(0, |last| counter.checked_sub(last).unwrap_or(counter));
            let was = used.bytes;
            used.bytes = used.bytes.saturating_add(new);
            let left = used.status(now_s, quota);
            let part = |bytes: u64| {
                let percent = u128::from(bytes) * 100 / u128::from(quota.bytes.max(1));
                TOLD.into_iter().rfind(|told| u128::from(*told) <= percent)
            };
            if part(used.bytes) > part(was)
                && let Some(percent) = part(used.bytes)
            {
                events.push(
                    now_s,
                    None,
                    format!("{}: {percent} % of its quota is used", path.uplink),
                );
            } else if begun_anew {
                events.push(
                    now_s,
                    None,
                    format!("{}: its quota begins anew", path.uplink),
                );
            }
            self.now.insert(path.uplink.clone(), left);
        }
        self.recall(now_s, quota);
    }

    /// Adds the uplinks that are not there at the moment: a modem that comes back has no quota anew.
    pub fn recall(&mut self, now_s: u64, quota: impl Fn(&str) -> Option<Quota>) {
        for used in &mut self.used {
            if self.now.contains_key(&used.uplink) {
                continue;
            }
            if let Some(quota) = quota(&used.uplink) {
                used.begin(now_s, quota);
                self.now
                    .insert(used.uplink.clone(), used.status(now_s, quota));
            }
        }
    }

    /// The count of an uplink. One that is not in use gives its place up.
    fn entry(&mut self, uplink: &str, status: &Status) -> Option<&mut Used> {
        if let Some(index) = self.used.iter().position(|used| used.uplink == uplink) {
            return self.used.get_mut(index);
        }
        if self.used.len() >= UPLINKS_MAX {
            let unused = |used: &Used| status.paths().all(|path| path.uplink != used.uplink);
            let index = self.used.iter().position(unused)?;
            self.used.remove(index);
        }
        self.used.push(Used {
            uplink: uplink.to_owned(),
            ..Used::default()
        });
        self.used.last_mut()
    }

    /// The quota of an uplink, as at the last sample.
    pub fn of(&self, uplink: &str) -> Option<QuotaStatus> {
        self.now.get(uplink).copied()
    }

    /// The uplinks with nothing left.
    pub fn used_up(&self) -> BTreeSet<String> {
        let used_up = self.now.iter().filter(|(_, left)| left.is_used_up());
        used_up.map(|(uplink, _)| uplink.clone()).collect()
    }

    pub fn save(&self) -> Vec<Used> {
        self.used.clone()
    }

    pub fn restore(&mut self, used: Vec<Used>) {
        self.used = used;
    }
}

impl Used {
    /// Begins anew when a new month of the quota has begun.
    fn begin(&mut self, now_s: u64, quota: Quota) {
        if now_s < CLOCK_MIN_S {
            return;
        }
        let since_s = begin_of_month(now_s, quota.day);
        if self.day != quota.day {
            // The same month has another begin.
            (self.day, self.since_s) = (quota.day, since_s);
            return;
        }
        // A clock that was set back by days is awaited. One that was set back further had been wrong.
        if since_s < self.since_s && self.since_s - since_s <= SET_BACK_S {
            return;
        }
        // What was counted before the clock was right belongs to this month.
        if self.since_s != 0 && since_s > self.since_s {
            self.bytes = 0;
        }
        self.since_s = since_s;
    }

    fn status(&self, now_s: u64, quota: Quota) -> QuotaStatus {
        QuotaStatus {
            bytes: quota.bytes,
            used: self.bytes,
            ends_in_s: self.ends_s(quota).saturating_sub(now_s),
        }
    }

    /// When the next month begins, seconds since 1970.
    fn ends_s(&self, quota: Quota) -> u64 {
        // A month has 31 days at most, and its last day is never one on which another begins.
        const LONGER_S: u64 = 31 * 86_400;
        begin_of_month(self.since_s + LONGER_S, quota.day)
    }
}

/// Begin of the month that begins on this day of each month, seconds since 1970.
fn begin_of_month(now_s: u64, day: u8) -> u64 {
    let begin = || {
        let now = OffsetDateTime::from_unix_timestamp(i64::try_from(now_s).ok()?).ok()?;
        let (year, month) = if now.day() >= day {
            (now.year(), now.month())
        } else if now.month() == Month::January {
            (now.year() - 1, Month::December)
        } else {
            (now.year(), now.month().previous())
        };
        let date = Date::from_calendar_date(year, month, day).ok()?;
        u64::try_from(date.with_time(Time::MIDNIGHT).assume_utc().unix_timestamp()).ok()
    };
    begin().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_api::{PathStatus, TunnelStatus};

    /// 2026-11-27 12:00 UTC, and the begins of the months around it.
    const NOW: u64 = 1_795_780_800;
    const NOVEMBER: u64 = 1_793_491_200;
    const DECEMBER: u64 = 1_796_083_200;
    const JANUARY: u64 = 1_798_761_600;
    const DAY: u64 = 86_400;

    fn status(bytes: u64) -> Status {
        let path = PathStatus {
            uplink: "wwan0".to_owned(),
            tx_bytes: bytes / 2,
            rx_bytes: bytes - bytes / 2,
            ..PathStatus::default()
        };
        let tunnel = TunnelStatus {
            paths: vec![path],
            ..TunnelStatus::default()
        };
        Status {
            role: "site".to_owned(),
            tunnels: vec![tunnel],
            ..Status::default()
        }
    }

    fn quota(uplink: &str) -> Option<Quota> {
        let quota = Quota {
            bytes: 1_000,
            day: 1,
        };
        (uplink == "wwan0").then_some(quota)
    }

    #[test]
    fn months_begin_on_their_day() {
        for (now, day, begin) in [
            (NOW, 1, NOVEMBER),
            (NOW, 27, NOVEMBER + 26 * DAY),
            (NOW, 28, NOVEMBER - 4 * DAY),
            (JANUARY, 1, JANUARY),
            (JANUARY, 2, DECEMBER + DAY),
            (JANUARY - 1, 1, DECEMBER),
        ] {
            assert_eq!(begin_of_month(now, day), begin, "{now} {day}");
        }
    }

    #[test]
    fn what_is_counted_is_what_came_since_and_begins_anew_each_month() {
        let (mut usage, mut events) = (Usage::default(), Events::default());
        let mut sample = |usage: &mut Usage, now, bytes| {
            usage.sample(now, &status(bytes), quota, &mut events);
            usage.of("wwan0").unwrap()
        };
        // The counter may be that of an earlier run.
        assert_eq!(sample(&mut usage, NOW, 5_000).used, 0);
        assert_eq!(sample(&mut usage, NOW + 1, 5_600).used, 600);
        // It fell: the path connected again.
        assert_eq!(sample(&mut usage, NOW + 2, 100).used, 700);
        let left = sample(&mut usage, NOW + 3, 400);
        assert_eq!((left.used, left.ends_in_s), (1_000, DECEMBER - NOW - 3));
        assert!(left.is_used_up());
        assert_eq!(usage.used_up(), BTreeSet::from(["wwan0".to_owned()]));
        // A clock set back, and one that lost its time, keep what was counted.
        assert_eq!(sample(&mut usage, NOVEMBER - DAY, 400).used, 1_000);
        assert_eq!(sample(&mut usage, 5, 400).used, 1_000);
        assert_eq!(sample(&mut usage, NOW, 400).used, 1_000);
        assert_eq!(sample(&mut usage, DECEMBER, 410).used, 10);
        assert!(usage.used_up().is_empty());
        let told: Vec<_> = events.all().into_iter().map(|event| event.what).collect();
        let quota = |what: &str| format!("wwan0: {what}");
        assert_eq!(
            told,
            [
                quota("50 % of its quota is used"),
                quota("100 % of its quota is used"),
                quota("its quota begins anew"),
            ]
        );
    }

    #[test]
    fn an_uplink_that_is_gone_and_another_day_of_the_quota_keep_the_count() {
        let (mut usage, mut events) = (Usage::default(), Events::default());
        for bytes in [0, 1_200] {
            usage.sample(NOW, &status(bytes), quota, &mut events);
        }
        let gone = Status::default();
        usage.sample(NOW + 1, &gone, quota, &mut events);
        assert_eq!(usage.used_up().len(), 1, "its modem is away");
        // A gateway that starts knows so before it has seen the uplink.
        let mut next = Usage::default();
        next.restore(usage.save());
        next.recall(NOW + 2, quota);
        assert_eq!(next.used_up().len(), 1);
        let of_day = |day| move |uplink: &str| quota(uplink).map(|quota| Quota { day, ..quota });
        next.sample(NOW + 3, &status(1_200), of_day(20), &mut events);
        assert_eq!(next.of("wwan0").unwrap().used, 1_200);
        next.sample(DECEMBER + 19 * DAY, &status(1_200), of_day(20), &mut events);
        assert_eq!(next.of("wwan0").unwrap().used, 0);
        next.recall(NOW + 4, |_| None);
    }

    #[test]
    fn an_uplink_without_a_quota_is_not_counted_and_many_names_take_no_room() {
        let (mut usage, mut events) = (Usage::default(), Events::default());
        usage.sample(NOW, &status(5_000), |_| None, &mut events);
        assert!(usage.of("wwan0").is_none() && usage.save().is_empty());
        for number in 0..100 {
            let mut status = status(number);
            status.tunnels[0].paths[0].uplink = format!("wwan{number}");
            let all = |_: &str| quota("wwan0");
            usage.sample(NOW, &status, all, &mut events);
        }
        assert_eq!(usage.save().len(), UPLINKS_MAX);
    }
}
