//! A ring of points at equal distances, each the mean of the samples that fell into its time.

use std::collections::VecDeque;

use ropewalk_api::{History as Answer, UplinkHistory};

/// One uplink at one time. What is not known is not a number.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub sent: f32,
    pub received: f32,
    pub rtt_ms: f32,
    pub loss: f32,
}

impl Rate {
    pub const NONE: Self = Self {
        sent: f32::NAN,
        received: f32::NAN,
        rtt_ms: f32::NAN,
        loss: f32::NAN,
    };

    fn parts(&mut self) -> [&mut f32; 4] {
        [
            &mut self.sent,
            &mut self.received,
            &mut self.rtt_ms,
            &mut self.loss,
        ]
    }
}

/// Everything at one time.
#[derive(Clone, Debug)]
pub struct Point {
    pub offered: f32,
    pub up: f32,
    pub rates: Vec<Rate>,
}

impl Point {
    fn unknown() -> Self {
        Self {
            offered: f32::NAN,
            up: f32::NAN,
            rates: Vec::new(),
        }
    }

    /// Takes one more sample into the mean of `count`.
    fn add(&mut self, mut sample: Self, count: u32) {
        let mix = |mean: &mut f32, new: f32| {
            *mean = match (mean.is_nan(), new.is_nan()) {
                (true, _) => new,
                (false, true) => *mean,
                (false, false) => *mean + (new - *mean) / count as f32,
            }
        };
        mix(&mut self.offered, sample.offered);
        mix(&mut self.up, sample.up);
        let wanted = self.rates.len().max(sample.rates.len());
        self.rates.resize(wanted, Rate::NONE);
        for (mean, new) in self.rates.iter_mut().zip(&mut sample.rates) {
            for (mean, new) in mean.parts().into_iter().zip(new.parts()) {
                mix(mean, *new);
            }
        }
    }
}

/// Points of a range.
#[derive(Debug)]
pub struct Ring {
    step_s: u32,
    length: usize,
    /// Number of the newest point: its time divided by the step.
    newest: u64,
    /// Samples in the newest point.
    count: u32,
    points: VecDeque<Point>,
}

impl Ring {
    pub fn new(step_s: u32, length: usize) -> Self {
        Self {
            step_s: step_s.max(1),
            length,
            newest: 0,
            count: 0,
            points: VecDeque::new(),
        }
    }

    pub const fn step_s(&self) -> u32 {
        self.step_s
    }

    /// Takes a sample that covers the time since `since_s`. Steps of the loop: the length of the ring at most.
    pub fn push(&mut self, since_s: u64, now_s: u64, sample: &Point) {
        let slot = now_s / u64::from(self.step_s);
        if slot < self.newest {
            // The clock was set back: the slot of now begins again, too.
            let future =
                usize::try_from(self.newest - slot).map_or(usize::MAX, |n| n.saturating_add(1));
            self.points
                .truncate(self.points.len().saturating_sub(future));
            self.newest = slot.saturating_sub(1);
            self.count = 0;
        }
        if slot == self.newest && self.count > 0 {
            self.count += 1;
            if let Some(point) = self.points.back_mut() {
                point.add(sample.clone(), self.count);
            }
            return;
        }
        if slot > self.newest && !self.points.is_empty() {
            // A late sample is the mean of all its time. So it fills the steps that it covers.
            let covered = since_s / u64::from(self.step_s);
            let first = (self.newest + 1).max(slot.saturating_sub(self.length as u64));
            for missing in first..slot {
                self.append(if missing > covered {
                    sample.clone()
                } else {
                    Point::unknown()
                });
            }
        }
        self.newest = slot;
        self.count = 1;
        self.append(sample.clone());
    }

    fn append(&mut self, point: Point) {
        if self.points.len() >= self.length {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Removes what is known of the uplink with this place.
    pub fn forget(&mut self, index: usize) {
        for point in &mut self.points {
            if let Some(rate) = point.rates.get_mut(index) {
                *rate = Rate::NONE;
            }
        }
    }

    /// The newest `last` points, with the names of their uplinks.
    pub fn answer(&self, names: &[String], last: usize) -> Answer {
        let skipped = self.points.len().saturating_sub(last);
        let points = || self.points.iter().skip(skipped);
        let of = |index: usize, part: fn(&Rate) -> f32| {
            points()
                .map(|point| point.rates.get(index).and_then(|rate| known(part(rate))))
                .collect()
        };
        let uplink = |(index, name): (usize, &String)| UplinkHistory {
            name: name.clone(),
            sent: of(index, |rate| rate.sent),
            received: of(index, |rate| rate.received),
            rtt_ms: of(index, |rate| rate.rtt_ms),
            loss: of(index, |rate| rate.loss),
        };
        Answer {
            step_s: self.step_s,
            end_s: self.newest * u64::from(self.step_s),
            offered: points().map(|point| known(point.offered)).collect(),
            up: points().map(|point| known(point.up)).collect(),
            uplinks: names.iter().enumerate().map(uplink).collect(),
        }
    }

    /// Takes the points of an earlier run, whose uplinks have these places. Others are left out.
    pub fn restore(&mut self, answer: &Answer, places: &[usize]) {
        if answer.step_s != self.step_s {
            return;
        }
        let length = answer.offered.len().min(self.length);
        let skipped = answer.offered.len() - length;
        let at = |list: &[Option<f32>], index: usize| {
            let value = list.get(index).copied().flatten();
            value.filter(|value| value.is_finite()).unwrap_or(f32::NAN)
        };
        self.points.clear();
        for index in skipped..skipped + length {
            let mut rates = Vec::new();
            for (uplink, place) in answer.uplinks.iter().zip(places) {
                if rates.len() <= *place {
                    rates.resize(place + 1, Rate::NONE);
                }
                rates[*place] = Rate {
                    sent: at(&uplink.sent, index),
                    received: at(&uplink.received, index),
                    rtt_ms: at(&uplink.rtt_ms, index),
                    loss: at(&uplink.loss, index),
                };
            }
            self.points.push_back(Point {
                offered: at(&answer.offered, index),
                up: at(&answer.up, index),
                rates,
            });
        }
        self.newest = answer.end_s / u64::from(self.step_s);
        self.count = u32::from(length > 0);
    }
}

/// Rounded to what a picture can show; nothing where nothing is known.
fn known(value: f32) -> Option<f32> {
    if !value.is_finite() {
        return None;
    }
    let digits = if value.abs() >= 1_000.0 { 1.0 } else { 1e4 };
    Some((value * digits).round() / digits)
}
