//! What waits in front of the serialiser, and what keeps it short.
//!
//! One queue in order of arrival, or one for each flow (`fair`). A full queue drops the newcomer;
//! with a queue for each flow the flow with most bytes pays. The rules of `ropewalk-aqm` judge
//! packets beside that: CoDel as they leave, PIE as they arrive. Invariant: `bytes` and `packets`
//! are those of everything that waits.

mod fair;

use std::collections::VecDeque;

use ropewalk_aqm::{CoDel, Pie, Verdict, tuning};
use ropewalk_types::{Duration, Ecn, Instant, Random};
use serde::{Deserialize, Serialize};

use crate::direction::{DirectionConfig, DropReason, Refused};
use fair::Fair;

/// What a link has to know of a packet beside its length.
pub trait Carried {
    /// A hash of the packet's flow: equal for the packets of one flow.
    fn flow(&self) -> u64 {
        0
    }

    /// The packet's ECN field.
    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }

    /// Sets the ECN field to "congestion experienced".
    fn mark_ce(&mut self) {}
}

/// Packets that are only counted.
impl Carried for () {}

/// How a queue is managed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aqm {
    /// Not at all: a full queue drops what comes.
    #[default]
    None,
    /// CoDel over one queue (RFC 8289).
    #[serde(rename = "codel")]
    CoDel,
    /// A queue and CoDel for each flow (RFC 8290).
    #[serde(rename = "fq-codel")]
    FqCoDel,
    /// PIE over one queue (RFC 8033).
    Pie,
}

impl Aqm {
    /// Every kind by its name in plans.
    pub const ALL: [(&str, Self); 4] = [
        ("none", Self::None),
        ("codel", Self::CoDel),
        ("fq-codel", Self::FqCoDel),
        ("pie", Self::Pie),
    ];

    /// The standing delay aimed at unless a plan says otherwise; zero without management.
    #[must_use]
    pub const fn target(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::CoDel | Self::FqCoDel => tuning::CODEL_TARGET,
            Self::Pie => tuning::PIE_TARGET,
        }
    }
}

/// A packet that waits.
#[derive(Debug)]
struct Waiting<T> {
    bytes: u64,
    arrived: Instant,
    item: T,
}

#[derive(Debug)]
enum Rule<T> {
    DropTail,
    CoDel(CoDel),
    Pie(Box<Pie>),
    Fair(Box<Fair<T>>),
}

/// A packet that left the queue.
pub(crate) struct Left<T> {
    pub(crate) bytes: u64,
    pub(crate) item: T,
    pub(crate) fate: Fate,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Sent,
    Marked,
    Dropped,
}

/// The queue of one direction.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    rule: Rule<T>,
    /// In order of arrival; empty with a queue for each flow.
    waiting: VecDeque<Waiting<T>>,
    bytes: u64,
    packets: u64,
    random: Random,
}

impl<T: Carried> Queue<T> {
    pub(crate) fn new(aqm: Aqm, random: Random) -> Self {
        let mut queue = Self {
            rule: Rule::DropTail,
            waiting: VecDeque::new(),
            bytes: 0,
            packets: 0,
            random,
        };
        queue.manage(aqm);
        queue
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) const fn packets(&self) -> u64 {
        self.packets
    }

    /// Goes over to another rule, which knows nothing yet; what waits keeps its order and age.
    pub(crate) fn manage(&mut self, aqm: Aqm) {
        let old = match aqm {
            Aqm::None => std::mem::replace(&mut self.rule, Rule::DropTail),
            Aqm::CoDel => std::mem::replace(&mut self.rule, Rule::CoDel(CoDel::default())),
            Aqm::Pie => std::mem::replace(&mut self.rule, Rule::Pie(Box::default())),
            Aqm::FqCoDel => std::mem::replace(&mut self.rule, Rule::Fair(Box::default())),
        };
        if let Rule::Fair(fair) = old {
            self.waiting = fair.into_arrivals();
        }
        if let Rule::Fair(fair) = &mut self.rule {
            self.waiting.drain(..).for_each(|packet| fair.push(packet));
        }
    }

    /// Takes in a packet that finds the serialiser busy; whether it was marked.
    ///
    /// With a queue for each flow it never refuses: call [`Self::overflow`] afterwards.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        bytes: u64,
        mut item: T,
        config: &DirectionConfig,
    ) -> Result<bool, Refused<T>> {
        let mut marked = false;
        match &mut self.rule {
            Rule::DropTail | Rule::CoDel(_) | Rule::Pie(_)
                if is_over(self.packets + 1, self.bytes + bytes, config) =>
            {
                let reason = DropReason::Queue;
                return Err(Refused { reason, item });
            }
            Rule::DropTail | Rule::CoDel(_) => {}
            Rule::Pie(pie) => {
                let target = config.aqm_target.unwrap_or(tuning::PIE_TARGET);
                let verdict = pie.judge(now, target, self.bytes, self.random.unit());
                marked = verdict == Verdict::Congested && config.ecn && mark(&mut item);
                if verdict != Verdict::Pass && !marked {
                    let reason = DropReason::Aqm;
                    return Err(Refused { reason, item });
                }
            }
            Rule::Fair(_) => {}
        }
        let packet = Waiting {
            bytes,
            arrived: now,
            item,
        };
        self.bytes += bytes;
        self.packets += 1;
        match &mut self.rule {
            Rule::Fair(fair) => fair.push(packet),
            Rule::DropTail | Rule::CoDel(_) | Rule::Pie(_) => self.waiting.push_back(packet),
        }
        Ok(marked)
    }

    /// A packet that has to go because the queues of all flows hold too much together.
    pub(crate) fn overflow(&mut self, config: &DirectionConfig) -> Option<T> {
        let Rule::Fair(fair) = &mut self.rule else {
            return None;
        };
        if !is_over(self.packets, self.bytes, config) {
            return None;
        }
        let victim = fair.drop_from_fattest()?;
        self.bytes -= victim.bytes;
        self.packets -= 1;
        Some(victim.item)
    }

    /// The next packet at `now`, when the serialiser becomes free. After one that was dropped, ask
    /// again.
    pub(crate) fn pop(&mut self, now: Instant, config: &DirectionConfig) -> Option<Left<T>> {
        let (packet, verdict) = match &mut self.rule {
            Rule::Fair(fair) => fair.pop(now, codel_parameters(config), config.ecn)?,
            Rule::DropTail => (self.waiting.pop_front()?, Verdict::Pass),
            Rule::CoDel(codel) => {
                let packet = self.waiting.pop_front()?;
                let left = self.bytes - packet.bytes;
                let sojourn = now.since(packet.arrived);
                let verdict = codel.judge(now, sojourn, codel_parameters(config), left);
                (packet, verdict)
            }
            Rule::Pie(pie) => {
                let packet = self.waiting.pop_front()?;
                let left = self.bytes - packet.bytes;
                let target = config.aqm_target.unwrap_or(tuning::PIE_TARGET);
                pie.on_departure(now, target, now.since(packet.arrived), left);
                (packet, Verdict::Pass)
            }
        };
        self.bytes -= packet.bytes;
        self.packets -= 1;
        Some(decide(now, packet, verdict, config))
    }
}

/// Marks or drops a packet that leaves.
fn decide<T: Carried>(
    now: Instant,
    packet: Waiting<T>,
    verdict: Verdict,
    config: &DirectionConfig,
) -> Left<T> {
    let Waiting {
        bytes,
        arrived,
        mut item,
    } = packet;
    let late = config
        .ce_threshold
        .is_some_and(|threshold| now.since(arrived) > threshold);
    let fate = match verdict {
        Verdict::Pass if late && mark(&mut item) => Fate::Marked,
        Verdict::Pass => Fate::Sent,
        Verdict::Congested if config.ecn && mark(&mut item) => Fate::Marked,
        Verdict::Congested | Verdict::Drop => Fate::Dropped,
    };
    Left { bytes, item, fate }
}

/// Whether so much is more than may wait.
fn is_over(packets: u64, bytes: u64, config: &DirectionConfig) -> bool {
    config.queue_packets_max.is_some_and(|max| packets > max)
        || config.queue_bytes_max.is_some_and(|max| bytes > max)
}

fn codel_parameters(config: &DirectionConfig) -> (Duration, Duration) {
    (
        config.aqm_target.unwrap_or(tuning::CODEL_TARGET),
        config.aqm_interval.unwrap_or(tuning::CODEL_INTERVAL),
    )
}

/// Marks a packet if it can be marked; one that is marked already counts.
fn mark<T: Carried>(item: &mut T) -> bool {
    match item.ecn() {
        Ecn::NotEct => false,
        Ecn::Ect0 | Ecn::Ect1 => {
            item.mark_ce();
            true
        }
        Ecn::Ce => true,
    }
}

#[cfg(test)]
mod tests;
