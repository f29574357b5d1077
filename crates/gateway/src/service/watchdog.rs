//! The watchdog of the service manager: a gateway that hangs is ended and started again.
//!
//! Each engine thread counts the turns of its loop. A message goes out only when every engine has completed
//! a turn since the last message. An idle engine sleeps until it has something to do, so each look wakes
//! it. Invariant: the thread of the control side sends the messages, so they stop when it hangs, too.
//!
//! Source: `sd_watchdog_enabled(3)`, `WatchdogSec=` in systemd.service(5).

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::notify;
use crate::engine::Pulse;

/// Looks in the time that the service manager grants. More: a hung engine is told from a busy one sooner,
/// more turns of idle engines. Two are too few: a message may need two looks.
const LOOKS: u32 = 4;
/// Looks without a turn after which the log says which engine hangs. More: fewer false alarms, and the
/// process may be ended before.
const LOOKS_TOLD: u32 = 2;

/// Watches the engines of a gateway.
#[derive(Debug)]
pub(super) struct Watchdog {
    engines: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    pulse: Pulse,
    /// Turns at the last message.
    seen: u64,
    /// Looks since then.
    looks: u32,
}

impl Watchdog {
    /// Watches these engines, and the thread that it runs on.
    pub(super) fn new(pulses: impl IntoIterator<Item = Pulse>) -> Self {
        let watched = |pulse| Watched {
            pulse,
            seen: 0,
            looks: 0,
        };
        Self {
            engines: pulses.into_iter().map(watched).collect(),
        }
    }

    /// Tells the service manager for ever; waits for ever where none wants to know.
    pub(super) async fn run(mut self) -> Infallible {
        let Some(limit) = sd_notify::watchdog_enabled() else {
            return std::future::pending().await;
        };
        let mut look = interval((limit / LOOKS).max(Duration::from_millis(1)));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if self.look() {
                notify::send(notify::Watchdog);
            }
        }
    }

    /// Whether all engines have completed a turn since this was last true. Gives each of them a turn.
    fn look(&mut self) -> bool {
        let mut all = true;
        for engine in &mut self.engines {
            if engine.pulse.turns() == engine.seen {
                all = false;
                engine.looks += 1;
                if engine.looks == LOOKS_TOLD {
                    tracing::error!(
                        engine = engine.pulse.name(),
                        "this thread hangs: the service manager ends the program if it goes on"
                    );
                }
            }
            engine.pulse.wake();
        }
        if all {
            for engine in &mut self.engines {
                engine.seen = engine.pulse.turns();
                engine.looks = 0;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_engine_that_hangs_keeps_the_message_back_and_idle_ones_do_not() {
        let (pulses, threads): (Vec<_>, Vec<_>) = (0..3).map(Pulse::detached).unzip();
        let mut watchdog = Watchdog::new(pulses);
        // What an idle engine does: nothing but a turn when it is woken.
        let idle = |hung: &[usize]| {
            for (index, thread) in threads.iter().enumerate() {
                if !hung.contains(&index) {
                    thread.turn_if_woken();
                }
            }
        };
        assert!(!watchdog.look(), "nobody has had a turn yet");
        for _ in 0..3 {
            idle(&[]);
            assert!(watchdog.look());
        }
        assert!(!watchdog.look(), "no turn since");
        for _ in 0..3 {
            idle(&[1]);
            assert!(!watchdog.look(), "the others do not stand in for it");
        }
        idle(&[]);
        assert!(watchdog.look(), "it goes on");
    }

    #[test]
    fn a_gateway_without_engines_depends_on_its_control_thread_only() {
        assert!(Watchdog::new([]).look());
    }
}
