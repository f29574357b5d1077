//! One way out as its probes show it: whether it is alive, its round trip and its loss.

use core::time::Duration;

use ropewalk_types::Instant;

use super::echoes::{Answer, Echoes};
use super::liveness::{Liveness, State};

/// Probes that must have left without an answer before a way is dead, for ways that are probed
/// seldom. More: fewer false alarms, later to notice.
const SILENT_PROBES: u32 = 5;

/// Watches one way out.
#[derive(Clone, Debug)]
pub struct Watch {
    interval: Duration,
    silence: Duration,
    /// When the last probe left.
    sent: Option<Instant>,
    /// `None` before the first probe.
    liveness: Option<Liveness>,
    echoes: Echoes,
}

impl Watch {
    /// Watches a way that is probed every `interval`, and dead after `silence` and five probes without
    /// an answer.
    #[must_use]
    pub fn new(interval: Duration, silence: Duration) -> Self {
        Self {
            interval,
            sent: None,
            silence: silence.max(interval * SILENT_PROBES),
            liveness: None,
            echoes: Echoes::default(),
        }
    }

    /// Whether the next probe is due.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.sent
            .is_none_or(|sent| now.since(sent) >= self.interval)
    }

    /// A probe leaves; its number.
    pub fn send(&mut self, now: Instant) -> u16 {
        let silence = self.silence;
        self.sent = Some(now);
        self.liveness
            .get_or_insert_with(|| Liveness::new(now, silence));
        self.echoes.send(now)
    }

    /// An answer to a probe has come.
    pub fn handle_answer(&mut self, now: Instant, number: u16) -> Answer {
        let answer = self.echoes.handle_answer(now, number);
        if answer != Answer::Unknown {
            self.handle_sign(now);
        }
        answer
    }

    /// The far end has answered something else that was asked.
    pub fn handle_sign(&mut self, now: Instant) {
        if let Some(liveness) = &mut self.liveness {
            liveness.handle_answer(now);
        }
    }

    /// Looks at the time; as often as [`Liveness::handle_timeout`] asks for.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.echoes.handle_timeout(now);
        if let Some(liveness) = &mut self.liveness {
            liveness.handle_timeout(now);
        }
    }

    /// Whether new flows may use the way; true before anything is known.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.liveness.as_ref().is_none_or(Liveness::is_usable)
    }

    /// Whether the way has answered, or had the time to.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let state = self.liveness.as_ref().map(Liveness::state);
        state.is_some_and(|state| state != State::Unproven)
    }

    /// Round trips and losses.
    #[must_use]
    pub const fn echoes(&self) -> &Echoes {
        &self.echoes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes every `interval` for `seconds`, looks every 50 ms; answers after 20 ms where `answers` says
    /// so. Seconds after which the way was dead and usable again.
    fn turns(interval_ms: u64, seconds: u64, answers: impl Fn(u64) -> bool) -> Vec<(f64, bool)> {
        let mut watch = Watch::new(Duration::from_millis(interval_ms), Duration::from_secs(1));
        let (mut usable, mut turns) = (true, Vec::new());
        for millis in (0..seconds * 1_000).step_by(10) {
            let now = Instant::from_millis(millis);
            assert_eq!(watch.is_due(now), millis.is_multiple_of(interval_ms));
            if watch.is_due(now) {
                watch.send(now);
            }
            if millis % interval_ms == 20 && answers(millis) {
                let answer = watch.handle_answer(now, (millis / interval_ms + 1) as u16);
                assert_eq!(answer, Answer::RoundTrip(Duration::from_millis(20)));
            }
            if millis.is_multiple_of(50) {
                watch.handle_timeout(now);
            }
            if watch.is_usable() != usable {
                usable = !usable;
                turns.push((millis as f64 / 1e3, usable));
            }
        }
        turns
    }

    #[test]
    fn a_way_is_dead_after_its_silence_and_comes_back_with_answers_in_a_row() {
        let gap = turns(100, 9, |millis| !(2_000..6_000).contains(&millis));
        assert_eq!(gap, [(2.95, false), (6.22, true)]);
    }

    #[test]
    fn a_way_that_is_probed_seldom_has_five_probes_before_it_is_dead() {
        let gap = turns(500, 9, |millis| millis < 2_000);
        assert_eq!(gap, [(4.05, false)]);
    }

    #[test]
    fn a_way_without_any_answer_is_used_until_it_is_known_to_be_dead() {
        let watch = Watch::new(Duration::from_millis(100), Duration::from_secs(1));
        assert!(watch.is_usable() && !watch.is_known());
        assert_eq!(turns(100, 3, |_| false), [(1.05, false)]);
    }
}
