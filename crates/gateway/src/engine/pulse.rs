//! Whether an engine thread still works: a count of the turns of its loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::OwnedFd;

/// What others see of the turns of an engine thread.
#[derive(Clone, Debug)]
pub struct Pulse {
    name: String,
    turns: Arc<AtomicU64>,
    wake: Arc<OwnedFd>,
}

impl Pulse {
    /// Of the thread `name` that counts its turns in `turns` and wakes at `wake`.
    pub(super) const fn new(name: String, turns: Arc<AtomicU64>, wake: Arc<OwnedFd>) -> Self {
        Self { name, turns, wake }
    }

    /// Name of the thread.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Turns that the thread has completed.
    #[must_use]
    pub fn turns(&self) -> u64 {
        // Nothing else is read by what this says.
        self.turns.load(Ordering::Relaxed)
    }

    /// Gives the thread a turn, also when it has nothing to do.
    pub fn wake(&self) {
        // The counter of an eventfd that nobody reads is full after 2⁶⁴ - 2.
        rustix::io::write(&*self.wake, &1_u64.to_ne_bytes()).ok();
    }

    /// Without a thread: the other value stands in for one.
    #[cfg(test)]
    pub(crate) fn detached(number: usize) -> (Self, Stand) {
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).expect("an eventfd");
        let (turns, wake) = (Arc::default(), Arc::new(wake));
        let pulse = Self::new(format!("engine-{number}"), turns, wake);
        (pulse.clone(), Stand(pulse))
    }
}

/// Stands in for a thread.
#[cfg(test)]
pub(crate) struct Stand(Pulse);

#[cfg(test)]
impl Stand {
    pub(crate) fn turn_if_woken(&self) {
        let mut counter = [0; 8];
        if rustix::io::read(&*self.0.wake, &mut counter).is_ok() {
            self.0.turns.fetch_add(1, Ordering::Relaxed);
        }
    }
}
