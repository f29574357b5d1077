//! Schedulers in messages between gateways.

use ropewalk_core::schedule::SchedulerKind;

/// In place of a scheduler's number: whatever the peer prefers.
const ANY: u8 = 0xff;

/// The scheduler's number in messages: its place in [`SchedulerKind::ALL`].
pub(crate) fn scheduler_number(kind: SchedulerKind) -> u8 {
    let place = SchedulerKind::ALL.iter().position(|&k| k == kind);
    place.and_then(|p| u8::try_from(p).ok()).unwrap_or(ANY)
}

/// The scheduler with this number, if there is one.
pub(crate) fn scheduler_from_number(number: u8) -> Option<SchedulerKind> {
    SchedulerKind::ALL.get(usize::from(number)).copied()
}
