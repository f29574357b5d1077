//! Which ways out are usable: presence, answers to probes, captive portals.

use std::collections::BTreeMap;

use ropewalk_core::balance::liveness::SILENCE_MAX;
use ropewalk_core::balance::{Liveness, State};
use ropewalk_types::Instant;

use super::members::{FAMILIES, Family, Member, WayId};
use super::probe::Prober;

/// What is known of every way.
#[derive(Debug, Default)]
pub struct Health {
    ways: BTreeMap<WayId, Known>,
    /// Whether a probe was ever answered.
    answered: bool,
}

#[derive(Debug)]
struct Known {
    liveness: Liveness,
    captive: bool,
    present: bool,
    /// Whether anybody is asked; if not, presence is all there is.
    asked: bool,
    deaths: u64,
}

impl Known {
    const fn is_usable(&self) -> bool {
        self.present && !self.captive && (!self.asked || self.liveness.is_usable())
    }
}

impl Health {
    /// Watches exactly the ways of these uplinks; one that comes back begins anew.
    pub fn follow(&mut self, now: Instant, members: &[Member], prober: &Prober) {
        for known in self.ways.values_mut() {
            known.asked = false;
        }
        let mut wanted = BTreeMap::new();
        for member in members {
            for family in FAMILIES.into_iter().filter(|f| member.way(*f).is_some()) {
                wanted.insert((member.number, family), member.present);
            }
        }
        self.ways.retain(|id, _| wanted.contains_key(id));
        for (id, present) in wanted {
            let known = self.ways.entry(id).or_insert_with(|| Known {
                liveness: Liveness::new(now, SILENCE_MAX),
                captive: false,
                present: false,
                asked: false,
                deaths: 0,
            });
            if present && !known.present {
                known.liveness = Liveness::new(now, SILENCE_MAX);
                known.captive = false;
            }
            known.deaths += u64::from(known.present && !present);
            known.present = present;
            known.asked = prober.asks(id.1);
        }
    }

    /// Usable or not, by member and family.
    #[must_use]
    pub fn usable(&self, members: &[Member]) -> Vec<[bool; 2]> {
        let of = |member: &Member| FAMILIES.map(|family| self.is_usable((member.number, family)));
        members.iter().map(of).collect()
    }

    /// Whether new flows may take this way.
    #[must_use]
    pub fn is_usable(&self, way: WayId) -> bool {
        self.ways.get(&way).is_some_and(Known::is_usable)
    }

    /// Whether probes tell nothing: an uplink is there, and no target has ever answered, as where
    /// echo requests are blocked.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        !self.answered && self.ways.values().any(|known| known.present)
    }

    /// A probe was answered.
    pub fn answer(&mut self, now: Instant, way: WayId) {
        if let Some(known) = self.ways.get_mut(&way) {
            known.liveness.handle_answer(now);
            self.answered = true;
        }
    }

    /// Clearly more arrived on an uplink than chatter.
    pub fn traffic(&mut self, now: Instant, number: u8) {
        for ((found, _), known) in &mut self.ways {
            if *found == number {
                known.liveness.handle_traffic(now);
            }
        }
    }

    /// A captive portal was found, or is gone.
    pub fn portal(&mut self, way: WayId, captive: bool) {
        if let Some(known) = self.ways.get_mut(&way) {
            known.deaths += u64::from(captive && !known.captive);
            known.captive = captive;
        }
    }

    /// Looks at the time.
    pub fn timeout(&mut self, now: Instant) {
        for known in self.ways.values_mut() {
            let died = known.liveness.handle_timeout(now);
            known.deaths += u64::from(died && known.present && known.asked);
        }
    }

    /// In a word, and how often it has died.
    #[must_use]
    pub fn state(&self, member: &Member, family: Family) -> (&'static str, u64) {
        let Some(known) = self.ways.get(&(member.number, family)) else {
            return ("none", 0);
        };
        let word = match known.liveness.state() {
            _ if !known.present => "absent",
            _ if known.captive => "captive",
            _ if !known.asked => "up",
            State::Unproven => "unproven",
            State::Alive => "up",
            State::Dead { .. } => "dead",
        };
        (word, known.deaths)
    }
}
