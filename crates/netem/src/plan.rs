//! A link as people write it: a TOML file with human units, checked before anything runs.
//!
//! ```toml
//! seed = 7
//! [both]                      # settings of both directions
//! delay = "25ms"
//! queue = "64KiB"
//! [up]                        # from end A to end B; overrides `both` key by key
//! rate = "8Mbit"
//! [down]
//! rate = "16Mbit"
//! loss = "1%"
//! [[change]]                  # new settings from a time on
//! at = "5s"
//! both.blackhole = true
//! ```
//!
//! Unknown keys are refused. Every error names the key and says what to write instead.

use std::sync::Arc;

use ropewalk_aqm::tuning;
use ropewalk_types::{Duration, Random, Rate};
use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::direction::{Change, DirectionConfig};
use crate::link::{LinkConfig, TimedChange};
use crate::loss::{GilbertElliott, LossModel};
use crate::queue::Aqm;
use crate::trace::CapacityTrace;
use crate::units;

/// A link plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPlan {
    /// All randomness follows from it; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Settings of both directions.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub both: DirectionPlan,
    /// Settings from end A to end B; override `both`.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub up: DirectionPlan,
    /// Settings from end B to end A; override `both`.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub down: DirectionPlan,
    /// New settings at given times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<ChangePlan>,
}

/// New settings from a time on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangePlan {
    /// Time since the start of the link.
    #[serde(with = "required_duration")]
    pub at: Duration,
    /// Settings of both directions.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub both: DirectionPlan,
    /// Settings from end A to end B; override `both`.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub up: DirectionPlan,
    /// Settings from end B to end A; override `both`.
    #[serde(default, skip_serializing_if = "DirectionPlan::is_empty")]
    pub down: DirectionPlan,
}

/// Settings of one direction; keys that are absent keep their value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DirectionPlan {
    /// Capacity, such as `16Mbit`; replaces a trace. `Some(None)` is `unlimited`.
    #[serde(with = "rate_text", skip_serializing_if = "Option::is_none")]
    pub rate: Option<Option<Rate>>,
    /// Capacity trace file; replaces a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// With `trace`: where in the recording the link begins, such as `30s`. `seed` draws the place
    /// from the seed, the same for both directions. The beginning unless given; a recording repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_start: Option<String>,
    /// Propagation delay, such as `25ms`.
    #[serde(with = "duration_text", skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// Standard deviation of the delay, such as `3ms`.
    #[serde(with = "duration_text", skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Duration>,
    /// Whether jitter may reorder packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<bool>,
    /// Mean loss, such as `5%`; replaces the loss model.
    #[serde(with = "probability_text", skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// With `loss`: mean number of consecutive losses (Gilbert model).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_burst: Option<f64>,
    /// Gilbert-Elliott model by its parameters; replaces the loss model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gilbert: Option<GilbertPlan>,
    /// Queue limit in bytes, such as `64KiB`. `Some(None)` is `unlimited`.
    #[serde(with = "bytes_text", skip_serializing_if = "Option::is_none")]
    pub queue: Option<Option<u64>>,
    /// Queue limit in packets; 1,000 unless `queue` or this is given. `Some(None)` is `unlimited`.
    #[serde(with = "count_text", skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<Option<u64>>,
    /// Larger packets are dropped silently. `Some(None)` is `unlimited`.
    #[serde(with = "bytes_text", skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Option<u64>>,
    /// Whether everything vanishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blackhole: Option<bool>,
    /// How the queue is managed: `none`, `codel`, `fq-codel` or `pie`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aqm: Option<Aqm>,
    /// Whether the management marks packets that can be marked, instead of dropping them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecn: Option<bool>,
    /// Standing delay that the management aims at, such as `5ms`; that of its RFC unless given.
    #[serde(with = "duration_text", skip_serializing_if = "Option::is_none")]
    pub aqm_target: Option<Duration>,
    /// Interval of CoDel, such as `100ms`; that of its RFC unless given.
    #[serde(with = "duration_text", skip_serializing_if = "Option::is_none")]
    pub aqm_interval: Option<Duration>,
    /// Packets that waited for longer are marked if they can be, such as `1ms`.
    #[serde(with = "duration_text", skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Duration>,
}

/// Parameters of the Gilbert-Elliott model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertPlan {
    /// Probability of going from the good to the bad state, per packet.
    #[serde(with = "required_probability")]
    pub p: f64,
    /// Probability of going from the bad to the good state, per packet.
    #[serde(with = "required_probability")]
    pub r: f64,
    /// Loss in the good state; `0%` unless given.
    #[serde(default, with = "required_probability")]
    pub loss_good: f64,
    /// Loss in the bad state; `100%` unless given.
    #[serde(default = "certain", with = "required_probability")]
    pub loss_bad: f64,
}

const fn certain() -> f64 {
    1.0
}

/// A plan that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, an unknown key, or a value that cannot be read.
    #[error("{0}")]
    Syntax(String),
    /// Keys that do not fit together, or a trace that cannot be used.
    #[error("{key}: {problem}")]
    Setting {
        /// The key, such as `up.loss_burst`.
        key: String,
        /// What is wrong and what to do.
        problem: String,
    },
}

impl LinkPlan {
    /// Reads a plan from TOML.
    ///
    /// # Errors
    /// On text that is not TOML, unknown keys and unreadable values, with line and key.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        toml::from_str(text).map_err(|error| PlanError::Syntax(error.to_string().trim().into()))
    }

    /// Writes the plan as TOML, readable by [`Self::parse`].
    ///
    /// # Errors
    /// When a number cannot be written as TOML (a seed above `i64::MAX`).
    pub fn to_toml(&self) -> Result<String, PlanError> {
        toml::to_string(self).map_err(|error| PlanError::Syntax(error.to_string()))
    }

    /// Checks the plan and makes it ready to run; `load` reads the text of a trace file.
    ///
    /// # Errors
    /// On settings that do not fit together and on traces that cannot be read.
    pub fn resolve(
        &self,
        mut load: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<LinkConfig, PlanError> {
        let seed = self.seed.unwrap_or(SEED_DEFAULT);
        let both = self.both.seeded(seed).resolve("both", &mut load)?;
        let direction = |change: &Change| DirectionConfig::default().with(&both).with(change);
        let up = direction(&self.up.seeded(seed).resolve("up", &mut load)?);
        let down = direction(&self.down.seeded(seed).resolve("down", &mut load)?);
        up.check("up")?;
        down.check("down")?;
        let mut settings = [up.clone(), down.clone()];
        let mut changes = Vec::with_capacity(self.change.len());
        for (index, plan) in self.change.iter().enumerate() {
            let mut part = |name: &str, direction: &DirectionPlan| {
                let section = format!("change[{index}].{name}");
                direction.seeded(seed).resolve(&section, &mut load)
            };
            let both = part("both", &plan.both)?;
            let (up, down) = (part("up", &plan.up)?, part("down", &plan.down)?);
            let overlay = |change| both.clone().overlaid_by(change);
            changes.push(TimedChange {
                at: plan.at,
                up: overlay(up),
                down: overlay(down),
            });
        }
        changes.sort_by_key(|change| change.at);
        for change in &changes {
            let [up, down] = settings;
            settings = [up.with(&change.up), down.with(&change.down)];
            for (side, settings) in ["up", "down"].into_iter().zip(&settings) {
                let at = units::format_duration(change.at);
                settings.check(&format!("change at {at}, {side}"))?;
            }
        }
        Ok(LinkConfig {
            seed,
            up,
            down,
            changes,
        })
    }
}

impl DirectionPlan {
    /// Whether no key is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The same with a place in the recording instead of [`FROM_SEED`].
    fn seeded(&self, seed: u64) -> Self {
        let mut plan = self.clone();
        if plan.trace_start.as_deref() == Some(FROM_SEED) {
            let place = Random::new(seed ^ TRACE_SEED).next_u64() % TRACE_PLACES_MS;
            plan.trace_start = Some(format!("{place}ms"));
        }
        plan
    }

    /// Sets one key from text, as it would be written in a plan (without quotes).
    ///
    /// # Errors
    /// On an unknown key or an unreadable value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), PlanError> {
        let fail = |problem: String| PlanError::Setting {
            key: key.into(),
            problem,
        };
        let unit = |error: units::UnitError| fail(error.to_string());
        match key {
            "rate" => self.rate = Some(units::parse_rate(value).map_err(unit)?),
            "trace" => self.trace = Some(value.into()),
            "delay" => self.delay = Some(units::parse_duration(value).map_err(unit)?),
            "jitter" => self.jitter = Some(units::parse_duration(value).map_err(unit)?),
            "reorder" => self.reorder = Some(units::parse_switch(value).map_err(unit)?),
            "loss" => self.loss = Some(units::parse_probability(value).map_err(unit)?),
            "loss_burst" => {
                let packets = value.parse().map_err(|_| {
                    fail(format!("`{value}` is not a number of packets such as `4`"))
                })?;
                self.loss_burst = Some(packets);
            }
            "queue" => self.queue = Some(units::parse_bytes(value).map_err(unit)?),
            "queue_packets" => {
                self.queue_packets = Some(parse_count(value).map_err(unit)?);
            }
            "mtu" => self.mtu = Some(units::parse_bytes(value).map_err(unit)?),
            "blackhole" => self.blackhole = Some(units::parse_switch(value).map_err(unit)?),
            "aqm" => self.aqm = Some(parse_aqm(value).map_err(fail)?),
            "ecn" => self.ecn = Some(units::parse_switch(value).map_err(unit)?),
            "aqm_target" => self.aqm_target = Some(units::parse_duration(value).map_err(unit)?),
            "aqm_interval" => {
                self.aqm_interval = Some(units::parse_duration(value).map_err(unit)?);
            }
            "ce_threshold" => {
                self.ce_threshold = Some(units::parse_duration(value).map_err(unit)?);
            }
            _ => return Err(fail(format!("unknown key; use one of {SETTABLE_KEYS}"))),
        }
        Ok(())
    }

    /// Checks the settings and makes them a change; `section` names them in errors.
    ///
    /// # Errors
    /// On settings that do not fit together and on traces that cannot be read.
    pub fn resolve(
        &self,
        section: &str,
        load: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Change, PlanError> {
        // A byte limit replaces the default packet limit: a plan means the one it names.
        let queue_packets_max = match (self.queue_packets, self.queue) {
            (Some(packets), _) => Some(packets),
            (None, Some(_)) => Some(None),
            (None, None) => None,
        };
        Ok(Change {
            capacity: self.capacity(section, load)?,
            delay: self.delay,
            jitter: self.jitter,
            reorder: self.reorder,
            loss: self.loss_model(section)?,
            queue_bytes_max: self.queue,
            queue_packets_max,
            mtu: self.mtu,
            blackhole: self.blackhole,
            aqm: self.aqm,
            ecn: self.ecn,
            aqm_target: self.aqm_target.map(Some),
            aqm_interval: self.aqm_interval.map(Some),
            ce_threshold: self.ce_threshold.map(Some),
        })
    }

    fn capacity(
        &self,
        section: &str,
        load: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Option<Capacity>, PlanError> {
        let fail = |problem| {
            Err(PlanError::Setting {
                key: format!("{section}.trace"),
                problem,
            })
        };
        if self.trace.is_none() && self.trace_start.is_some() {
            return Err(PlanError::Setting {
                key: format!("{section}.trace_start"),
                problem: "needs `trace` beside it".into(),
            });
        }
        match (&self.trace, self.rate) {
            (Some(_), Some(_)) => fail("give either `rate` or `trace`, not both".into()),
            (None, None) => Ok(None),
            (None, Some(None)) => Ok(Some(Capacity::Unlimited)),
            (None, Some(Some(rate))) => Ok(Some(Capacity::Fixed(rate))),
            (Some(file), None) => match load(file) {
                Err(problem) => fail(problem),
                Ok(text) => match CapacityTrace::parse(file, &text) {
                    Ok(trace) => {
                        let trace = trace.starting_at(self.trace_start(section)?);
                        Ok(Some(Capacity::Trace(Arc::new(trace))))
                    }
                    Err(error) => fail(error.to_string()),
                },
            },
        }
    }

    fn trace_start(&self, section: &str) -> Result<Duration, PlanError> {
        let parse = |text: &String| {
            units::parse_duration(text).map_err(|error| PlanError::Setting {
                key: format!("{section}.trace_start"),
                problem: format!("{error}; or `{FROM_SEED}`, in a plan"),
            })
        };
        let start = self.trace_start.as_ref().map(parse).transpose()?;
        Ok(start.unwrap_or_default())
    }

    fn loss_model(&self, section: &str) -> Result<Option<LossModel>, PlanError> {
        let fail = |key: &str, problem: &str| {
            Err(PlanError::Setting {
                key: format!("{section}.{key}"),
                problem: problem.into(),
            })
        };
        let unusable = |burst: f64| !burst.is_finite() || burst < 1.0;
        if self.loss_burst.is_some_and(unusable) {
            return fail("loss_burst", "use at least 1 packet");
        }
        match (self.loss, self.loss_burst, self.gilbert) {
            (None, None, None) => Ok(None),
            (Some(0.0), _, None) => Ok(Some(LossModel::None)),
            (Some(loss), None, None) => Ok(Some(LossModel::Bernoulli(loss))),
            (Some(loss), Some(burst), None) => match GilbertElliott::from_mean(loss, burst) {
                Some(chain) => Ok(Some(LossModel::GilbertElliott(chain))),
                None => fail(
                    "loss_burst",
                    "no such loss process; use a loss below 100%, and longer bursts for a high loss",
                ),
            },
            (None, Some(_), None) => fail("loss_burst", "needs `loss` beside it"),
            (None, None, Some(plan)) => Ok(Some(LossModel::GilbertElliott(GilbertElliott {
                good_to_bad: plan.p,
                bad_to_good: plan.r,
                loss_good: plan.loss_good,
                loss_bad: plan.loss_bad,
            }))),
            (_, _, Some(_)) => fail("gilbert", "give either `gilbert` or `loss`, not both"),
        }
    }
}

impl DirectionConfig {
    /// Checks that the settings of queue management fit together; `section` names them in errors.
    ///
    /// # Errors
    /// With the first key that does nothing or cannot be used.
    pub fn check(&self, section: &str) -> Result<(), PlanError> {
        let fail = |key: &str, problem: &str| {
            Err(PlanError::Setting {
                key: format!("{section}.{key}"),
                problem: problem.into(),
            })
        };
        let codel = matches!(self.aqm, Aqm::CoDel | Aqm::FqCoDel);
        if self.ecn && self.aqm == Aqm::None {
            return fail(
                "ecn",
                "marks nothing by itself; give `aqm` or use `ce_threshold`",
            );
        }
        if self.aqm_target.is_some() && self.aqm == Aqm::None {
            return fail("aqm_target", "needs `aqm` beside it");
        }
        if self.aqm_interval.is_some() && !codel {
            return fail(
                "aqm_interval",
                "is for `aqm` = \"codel\" and \"fq-codel\" only",
            );
        }
        let target = self.aqm_target.unwrap_or(self.aqm.target());
        if target.is_zero() && self.aqm != Aqm::None {
            return fail("aqm_target", "use more than 0, such as \"5ms\"");
        }
        let interval = self.aqm_interval.unwrap_or(tuning::CODEL_INTERVAL);
        if codel && target >= interval {
            let problem = "the target must be shorter than `aqm_interval` (100ms unless given)";
            return fail("aqm_target", problem);
        }
        Ok(())
    }
}

impl Change {
    /// This change, with the settings that `other` gives instead.
    #[must_use]
    pub fn overlaid_by(self, other: Self) -> Self {
        Self {
            capacity: other.capacity.or(self.capacity),
            delay: other.delay.or(self.delay),
            jitter: other.jitter.or(self.jitter),
            reorder: other.reorder.or(self.reorder),
            loss: other.loss.or(self.loss),
            queue_bytes_max: other.queue_bytes_max.or(self.queue_bytes_max),
            queue_packets_max: other.queue_packets_max.or(self.queue_packets_max),
            mtu: other.mtu.or(self.mtu),
            blackhole: other.blackhole.or(self.blackhole),
            aqm: other.aqm.or(self.aqm),
            ecn: other.ecn.or(self.ecn),
            aqm_target: other.aqm_target.or(self.aqm_target),
            aqm_interval: other.aqm_interval.or(self.aqm_interval),
            ce_threshold: other.ce_threshold.or(self.ce_threshold),
        }
    }
}

/// Lets the seed say where in a recording a link begins.
const FROM_SEED: &str = "seed";
/// Places that the seed chooses from, milliseconds: far more than a recording has.
const TRACE_PLACES_MS: u64 = 80_000_000;
/// Keeps that choice apart from the link's other randomness.
const TRACE_SEED: u64 = 0x7472_6163_6573;
/// Seed of a plan that gives none.
const SEED_DEFAULT: u64 = 1;
const SETTABLE_KEYS: &str = "rate, trace, delay, jitter, reorder, loss, loss_burst, queue, \
     queue_packets, mtu, blackhole, aqm, ecn, aqm_target, aqm_interval, ce_threshold";

fn parse_aqm(text: &str) -> Result<Aqm, String> {
    let found = Aqm::ALL.into_iter().find(|(name, _)| *name == text.trim());
    found.map(|(_, aqm)| aqm).ok_or_else(|| {
        let names = Aqm::ALL.map(|(name, _)| name).join(", ");
        format!("`{text}` manages no queue; write one of {names}")
    })
}

fn parse_count(text: &str) -> Result<Option<u64>, units::UnitError> {
    if text.trim() == "unlimited" {
        Ok(None)
    } else {
        units::parse_count(text).map(Some)
    }
}

/// A serde module for an optional value written as text (or as a plain number where `$number`
/// says what a number means).
macro_rules! text_module {
    ($name:ident, $value:ty, $parse:expr, $format:expr) => {
        mod $name {
            use super::*;

            pub(super) fn serialize<S: serde::Serializer>(
                value: &Option<$value>,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                let format: fn($value) -> String = $format;
                match value {
                    Some(value) => serializer.serialize_str(&format(*value)),
                    None => serializer.serialize_none(),
                }
            }

            pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Option<$value>, D::Error> {
                let text = text_or_number(deserializer)?;
                let parse: fn(&str) -> Result<$value, units::UnitError> = $parse;
                parse(&text).map(Some).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_module!(
    rate_text,
    Option<Rate>,
    units::parse_rate,
    units::format_rate
);
text_module!(
    duration_text,
    Duration,
    units::parse_duration,
    units::format_duration
);
text_module!(
    bytes_text,
    Option<u64>,
    units::parse_bytes,
    units::format_bytes
);
text_module!(count_text, Option<u64>, parse_count, |count| {
    count.map_or_else(|| "unlimited".into(), |count| count.to_string())
});
text_module!(probability_text, f64, units::parse_probability, |p| p
    .to_string());

/// As the optional modules, for keys that must be there.
macro_rules! required_module {
    ($name:ident, $value:ty, $inner:ident) => {
        mod $name {
            use super::*;

            pub(super) fn serialize<S: serde::Serializer>(
                value: &$value,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                $inner::serialize(&Some(*value), serializer)
            }

            pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$value, D::Error> {
                $inner::deserialize(deserializer).map(Option::unwrap_or_default)
            }
        }
    };
}

required_module!(required_duration, Duration, duration_text);
required_module!(required_probability, f64, probability_text);

/// Text, or a bare number as if it were quoted: units stay required where they are.
fn text_or_number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a quantity in quotes, such as \"16Mbit\" or \"25ms\""
    )]
    enum TextOrNumber {
        Text(String),
        Whole(u64),
        Real(f64),
    }
    Ok(match TextOrNumber::deserialize(deserializer)? {
        TextOrNumber::Text(text) => text,
        TextOrNumber::Whole(number) => number.to_string(),
        TextOrNumber::Real(number) => number.to_string(),
    })
}

#[cfg(test)]
mod tests;
