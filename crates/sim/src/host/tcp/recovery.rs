//! Finding losses, reducing the window in proportion, and taking back what was wrong.
//!
//! Sources: RFC 8985 (RACK), RFC 6937 (proportional rate reduction), RFC 3522 and RFC 3708
//! (undoing by timestamps and by duplicate reports), in the form Linux has them.

use super::scoreboard::{RETRANSMITTED, SACKED, Segment};
use super::sender::{Batch, LossDetection, Sender};
use crate::host::MS;
use crate::host::rtt::Rtt;
use crate::packet::Ack;

/// Acknowledged segments beyond a gap that end the wait for it while no reordering was ever seen.
const DUPLICATES: u32 = 3;
/// Recoveries without duplicates after which the reordering window shrinks again (Linux).
const PERSIST_RECOVERIES: u32 = 16;
/// Most quarters of a round trip the reordering window grows to.
const STEPS_MAX: u64 = 255;

/// What the sender does about losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing: there are none.
    #[default]
    Open,
    /// Nothing is lost: the window comes down after a mark (RFC 3168 §6.1.2, Linux `TCP_CA_CWR`).
    Marked,
    /// Repairs them while the window comes down.
    Recovery,
    /// Starts anew after a timeout.
    Loss,
}

/// State of loss detection and repair.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    pub state: State,
    /// The state ends when this segment is reached.
    end: u32,
    /// Send time and number of the newest transmission known to have arrived, and its round trip.
    rack_sent_ns: u64,
    rack_transmission: u64,
    rack_rtt_ns: u64,
    reordered: bool,
    steps: u64,
    persist: u32,
    /// A duplicate was reported since this transmission.
    duplicate_seen: bool,
    /// Proportional rate reduction: window before, segments delivered and sent since.
    prior_cwnd: u32,
    delivered: u32,
    pub sent: u32,
    /// To take the reduction back: window and threshold before it, where it began, and
    /// retransmissions not yet known to have been needless.
    undo: Option<Undo>,
}

#[derive(Clone, Copy, Debug)]
struct Undo {
    cwnd: u32,
    ssthresh: u32,
    from: u32,
    retransmissions: u32,
    any: bool,
    /// Clock in ms of the first retransmission.
    first_ms: u32,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            state: State::Open,
            end: 0,
            rack_sent_ns: 0,
            rack_transmission: 0,
            rack_rtt_ns: 0,
            reordered: false,
            steps: 1,
            persist: 0,
            duplicate_seen: false,
            prior_cwnd: 0,
            delivered: 0,
            sent: 0,
            undo: None,
        }
    }
}

impl Recovery {
    /// Whether losses are being repaired.
    pub fn repairing(&self) -> bool {
        matches!(self.state, State::Recovery | State::Loss)
    }

    /// Whether the window comes down in proportion to what arrives.
    pub fn reducing(&self) -> bool {
        matches!(self.state, State::Marked | State::Recovery)
    }

    /// A segment sent once that arrives below one that arrived before was overtaken.
    pub fn note_order(&mut self, number: u32, prior_highest: u32, segment: &Segment) {
        self.reordered |= number + 1 < prior_highest && !segment.has(RETRANSMITTED);
    }

    /// RFC 8985 §6.2 step 2.
    pub fn advance_rack(&mut self, now_ns: u64, segment: &Segment, rtt: &Rtt) {
        let rtt_ns = now_ns - segment.sent_ns;
        if segment.has(RETRANSMITTED) && rtt_ns < rtt.min_ns {
            return;
        }
        if segment.transmission > self.rack_transmission {
            self.rack_transmission = segment.transmission;
            self.rack_sent_ns = segment.sent_ns;
            self.rack_rtt_ns = rtt_ns;
        }
    }

    pub fn on_retransmit(&mut self, now_ns: u64) {
        if let Some(undo) = &mut self.undo {
            if !undo.any {
                undo.first_ms = clock_ms(now_ns);
            }
            undo.any = true;
            undo.retransmissions += 1;
        }
    }

    /// Linux `tcp_may_undo`: every retransmission was a duplicate, or the segment that moved the
    /// acknowledgement was sent before the first of them.
    fn may_undo(&self, ack: &Ack, advanced: bool) -> bool {
        self.undo.is_some_and(|undo| {
            let older = advanced && ack.echo != 0 && ack.echo < undo.first_ms;
            undo.any && (undo.retransmissions == 0 || older)
        })
    }
}

/// The sender's clock in timestamps, never zero.
pub(super) fn clock_ms(now_ns: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "runs last an hour at most")]
    let ms = (now_ns / MS) as u32;
    ms + 1
}

impl Sender {
    /// The clock a segment sent now carries.
    #[must_use]
    pub fn clock(now_ns: u64) -> u32 {
        clock_ms(now_ns)
    }

    /// RFC 8985 §6.2 step 4, with Linux's conditions.
    fn reorder_window_ns(&self) -> u64 {
        let recovery = &self.recovery;
        if !recovery.reordered && (recovery.repairing() || self.board.sacked >= DUPLICATES) {
            return 0;
        }
        (self.rtt.min_ns / 4 * recovery.steps).min(self.rtt.smoothed_ns)
    }

    /// Marks what must be lost by now.
    pub(super) fn find_losses(&mut self, now_ns: u64, batch: &mut Batch) {
        match self.detection {
            LossDetection::Rack => {
                let patience_ns = self.recovery.rack_rtt_ns + self.reorder_window_ns();
                while let Some((number, segment)) = self.board.oldest_out() {
                    let overtaken = segment.transmission < self.recovery.rack_transmission;
                    if !overtaken || now_ns - segment.sent_ns < patience_ns {
                        break;
                    }
                    batch.lost += u32::from(self.board.lose(number));
                }
            }
            LossDetection::Duplicates(threshold) => {
                let mut beyond = 0;
                for number in (self.board.una..self.board.highest_sacked).rev() {
                    let Some(segment) = self.board.get(number) else {
                        continue;
                    };
                    if segment.has(SACKED) {
                        beyond += 1;
                    } else if beyond >= threshold && !segment.has(RETRANSMITTED) {
                        batch.lost += u32::from(self.board.lose(number));
                    }
                }
            }
        }
    }

    /// How long until an overtaken segment counts as lost; `None` when none was overtaken.
    pub(super) fn reorder_wait(&mut self, now_ns: u64) -> Option<u64> {
        if self.detection != LossDetection::Rack {
            return None;
        }
        let (_, oldest) = self.board.oldest_out()?;
        if oldest.transmission >= self.recovery.rack_transmission {
            return None;
        }
        let patience_ns = self.recovery.rack_rtt_ns + self.reorder_window_ns();
        // The newest that can have been overtaken was sent just before the reference.
        Some((self.recovery.rack_sent_ns + patience_ns).saturating_sub(now_ns))
    }

    /// A segment arrived twice (RFC 2883): the window was too short, and a repair needless.
    pub(super) fn on_duplicate(&mut self, ack: &Ack) {
        let Some(&(start, _)) = ack.blocks().first() else {
            return;
        };
        self.stats.spurious += 1;
        let recovery = &mut self.recovery;
        if let Some(undo) = &mut recovery.undo
            && start >= undo.from
        {
            undo.retransmissions = undo.retransmissions.saturating_sub(1);
        }
        recovery.reordered = true;
        // RFC 8985 §6.2 step 4: once per round trip.
        if !recovery.duplicate_seen {
            recovery.duplicate_seen = true;
            recovery.steps = (recovery.steps + 1).min(STEPS_MAX);
            recovery.persist = PERSIST_RECOVERIES;
        }
    }

    pub(super) fn change_state(
        &mut self,
        _now_ns: u64,
        ack: &Ack,
        batch: &mut Batch,
        prior_in_flight: u32,
    ) {
        if batch.advanced {
            self.recovery.duplicate_seen &= self.recovery.repairing();
        }
        match self.recovery.state {
            State::Open => {}
            // The answer has to reach the receiver, so something beyond the end has to be
            // acknowledged.
            State::Marked => {
                if self.board.una > self.recovery.end {
                    self.leave();
                }
            }
            State::Recovery | State::Loss => {
                let over = self.board.una >= self.recovery.end;
                if self.recovery.may_undo(ack, batch.advanced) {
                    self.undo();
                    if over || self.recovery.state == State::Loss {
                        self.recovery.state = State::Open;
                    }
                    batch.lost = 0;
                } else if over {
                    self.leave();
                }
            }
        }
        if batch.lost > 0 && !self.recovery.repairing() {
            self.enter_recovery(prior_in_flight);
        }
    }

    pub(super) fn enter_recovery(&mut self, _prior_in_flight: u32) {
        match self.recovery.state {
            State::Recovery | State::Loss => return,
            // The window comes down already.
            State::Marked => {
                self.recovery.state = State::Recovery;
                self.recovery.end = self.board.next;
            }
            State::Open => {
                self.remember();
                self.begin_reduction(State::Recovery);
            }
        }
        let recovery = &mut self.recovery;
        if recovery.persist > 0 {
            recovery.persist -= 1;
        } else {
            recovery.steps = 1;
        }
    }

    /// Answers a mark once per window; whether it did.
    pub(super) fn answer_mark(&mut self) -> bool {
        let answers = self.recovery.state == State::Open;
        if answers {
            self.recovery.undo = None;
            self.begin_reduction(State::Marked);
        }
        answers
    }

    fn begin_reduction(&mut self, state: State) {
        self.window.ssthresh = self.controller.on_loss(&self.window);
        self.recovery.state = state;
        self.recovery.end = self.board.next;
        self.recovery.prior_cwnd = self.window.cwnd;
        (self.recovery.delivered, self.recovery.sent) = (0, 0);
        self.window.credit = 0;
    }

    fn remember(&mut self) {
        self.recovery.undo = Some(Undo {
            cwnd: self.window.cwnd,
            ssthresh: self.window.ssthresh,
            from: self.board.una,
            retransmissions: 0,
            any: false,
            first_ms: 0,
        });
    }

    /// RFC 6937 §3, with Linux's slow-start part that waits for progress without new losses.
    pub(super) fn reduce(&mut self, batch: &Batch) {
        if self.controller.is_model_based() {
            return;
        }
        let ssthresh = self.window.ssthresh;
        let in_flight = self.board.in_flight;
        let recovery = &mut self.recovery;
        recovery.delivered += batch.acked;
        let mut count = if in_flight > ssthresh {
            let share = u64::from(ssthresh) * u64::from(recovery.delivered);
            let allowed = share.div_ceil(u64::from(recovery.prior_cwnd.max(1)));
            u32::try_from(allowed)
                .unwrap_or(u32::MAX)
                .saturating_sub(recovery.sent)
        } else {
            let mut count = recovery
                .delivered
                .saturating_sub(recovery.sent)
                .max(batch.acked);
            if batch.advanced && batch.lost == 0 {
                count += 1;
            }
            count.min(ssthresh - in_flight)
        };
        // The first retransmission leaves at once.
        if recovery.sent == 0 {
            count = count.max(1);
        }
        self.window.cwnd = (in_flight + count).max(1);
    }

    fn leave(&mut self) {
        if self.recovery.reducing() && !self.controller.is_model_based() {
            self.window.cwnd = self.window.ssthresh;
        }
        self.recovery.state = State::Open;
        self.recovery.undo = None;
    }

    /// The losses were none: window and threshold are as before.
    fn undo(&mut self) {
        let Some(undo) = self.recovery.undo.take() else {
            return;
        };
        self.window.cwnd = self.window.cwnd.max(undo.cwnd);
        self.window.ssthresh = self.window.ssthresh.max(undo.ssthresh);
        self.controller.on_undo(&mut self.window);
        self.board.forgive();
        self.board.reorder();
        if self.recovery.state == State::Recovery {
            // Nothing is left to repair; growth goes on.
            self.recovery.state = State::Open;
        }
    }

    /// A retransmission timeout: everything out there is lost (RFC 5681 §3.1, RFC 6298 §5).
    pub(super) fn time_out(&mut self) {
        // Linux `tcp_enter_loss`: a recovery that times out has reduced already.
        if self.recovery.state == State::Open {
            self.remember();
            self.window.ssthresh = self.controller.on_loss(&self.window);
        }
        self.controller.on_timeout();
        self.board.lose_all();
        self.recovery.state = State::Loss;
        self.recovery.end = self.board.next;
        self.window.cwnd = 1;
        self.window.credit = 0;
    }
}
