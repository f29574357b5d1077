//! The watchdog of the service manager: a gateway that hangs is ended and started again.
//!
//! Each engine thread counts the turns of its loop. A message goes out only when every engine has completed
//! a turn since the last message. An idle engine sleeps until it has something to do, so each look wakes
//! it. Invariant: the thread of the control side sends the messages, so they stop when it hangs, too.
//!
//! The thread that lets sites in may wait for a disk or for `nft`, and packets pass meanwhile. So the log alone tells when
//! this thread hangs: a new start would cut all tunnels, and would wait for the same disk.
//!
//! Source: `sd_watchdog_enabled(3)`, `WatchdogSec=` in systemd.service(5).

use std::convert::Infallible;
use std::time::Duration;

use rustix::process::Pid;
use tokio::time::{MissedTickBehavior, interval};

use super::admission::inbox::{Inbox, Progress};
use super::notify;
use crate::engine::Pulse;

/// Looks in the time that the service manager grants. More: a hung engine is told from a busy one sooner,
/// more turns of idle engines. Two are too few: a message may need two looks.
const LOOKS: u32 = 4;
/// Looks without a turn after which the log says which engine hangs. More: fewer false alarms, and the
/// process may be ended before.
const LOOKS_TOLD: u32 = 2;
/// How long the thread that lets sites in may be at one thing before the log says so. The lock of the sites file is
/// waited for 10 s, and `nft` 20 s at most. Longer: fewer lines about slow disks, later ones about broken ones.
const ADMISSION_TOLD: Duration = Duration::from_mins(1);

/// Watches the threads of a gateway.
#[derive(Debug)]
pub(super) struct Watchdog {
    engines: Vec<Watched>,
    admission: Option<Admission>,
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
            admission: None,
        }
    }

    /// Watches the thread that lets sites in as well.
    pub(super) fn with_admission(self, inbox: Inbox) -> Self {
        let admission = Admission::new(inbox);
        Self {
            admission: Some(admission),
            ..self
        }
    }

    /// Tells the service manager for ever; waits for ever where none wants to know.
    pub(super) async fn run(mut self) -> Infallible {
        let Some(limit) = sd_notify::watchdog_enabled() else {
            return std::future::pending().await;
        };
        let time = (limit / LOOKS).max(Duration::from_millis(1));
        let mut look = interval(time);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if let Some(admission) = &mut self.admission {
                admission.look(time);
            }
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

/// Watches the thread that lets sites in.
#[derive(Debug)]
struct Admission {
    inbox: Inbox,
    /// What the thread had begun when it was last seen to go on.
    begun: u64,
    /// Time since then.
    quiet: Duration,
}

impl Admission {
    const fn new(inbox: Inbox) -> Self {
        Self {
            inbox,
            begun: 0,
            quiet: Duration::ZERO,
        }
    }

    /// Looks `time` after the last look, tells what hangs, and gives the thread something to do.
    fn look(&mut self, time: Duration) {
        let progress = self.inbox.progress();
        self.inbox.keep_rules();
        match self.take(progress, time) {
            Some(true) => {
                let at = progress.present.map(|work| work.to_string());
                let waits_for_disk = progress.thread.is_some_and(waits_in_kernel);
                tracing::error!(
                    at,
                    waits_for_disk,
                    "the thread that lets sites in has not gone on for {} s: no site joins, nothing is reloaded, and nobody \
                     looks after the firewall rules; look at the disk of the sites file, and start the hub again if it is sound",
                    self.quiet.as_secs()
                );
            }
            Some(false) => tracing::info!("the thread that lets sites in goes on"),
            None => {}
        }
    }

    /// Whether there is something to tell: that it hangs, or that it goes on again.
    fn take(&mut self, progress: Progress, time: Duration) -> Option<bool> {
        let told = self.quiet >= ADMISSION_TOLD;
        if progress.begun != self.begun {
            (self.begun, self.quiet) = (progress.begun, Duration::ZERO);
            return told.then_some(false);
        }
        self.quiet += time;
        (!told && self.quiet >= ADMISSION_TOLD).then_some(true)
    }
}

/// Whether a thread of this program waits in the kernel and takes no signal, as one that waits for a disk does. Not
/// even the end of the program ends such a wait.
///
/// Source: proc_pid_stat(5).
fn waits_in_kernel(thread: Pid) -> bool {
    let file = format!("/proc/self/task/{thread}/stat");
    std::fs::read_to_string(file).is_ok_and(|stat| is_uninterruptible(&stat))
}

/// By the line of a thread in `/proc`. Its name comes first, in parentheses, and may hold any character.
fn is_uninterruptible(stat: &str) -> bool {
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| state.starts_with("D "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::admission::inbox::{AdmissionThread, Work};

    const LOOK: Duration = Duration::from_millis(7_500);

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

    /// Looks in this time.
    fn looks(time: Duration) -> u128 {
        time.as_nanos() / LOOK.as_nanos()
    }

    #[test]
    fn a_thread_that_lets_sites_in_may_be_slow_and_one_that_hangs_is_told_once() {
        let (begun, begins) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let thread = AdmissionThread::start(Inbox::default(), move |work| {
            begun.send(work).unwrap();
            wait.recv().unwrap();
            Ok(String::new())
        });
        let thread = thread.unwrap();
        let inbox = thread.inbox.clone();
        let mut watched = Admission::new(inbox.clone());
        inbox.keep_rules();
        assert_eq!(begins.recv().unwrap(), Work::KeepRules);
        let mut take = |time| watched.take(inbox.progress(), time);
        assert_eq!(take(LOOK), None, "it has begun something");
        for look in 1..looks(ADMISSION_TOLD) {
            assert_eq!(take(LOOK), None, "after {look} looks");
        }
        assert_eq!(take(LOOK), Some(true), "a minute at one thing");
        assert_eq!(take(LOOK), None, "it was told");
        inbox.keep_rules();
        go_on.send(()).unwrap();
        assert_eq!(begins.recv().unwrap(), Work::KeepRules);
        assert_eq!(take(LOOK), Some(false), "it goes on");
        assert_eq!(take(LOOK), None);
        go_on.send(()).unwrap();
    }

    #[test]
    fn the_state_of_a_thread_comes_after_its_name_whatever_the_name_is() {
        assert!(is_uninterruptible("7 (admission) D 1 7 7 0"));
        assert!(is_uninterruptible("7 (a) S b) D 1 7 7 0"));
        for stat in ["7 (admission) S 1 7 7 0", "7 (a) D b) R 1", "", "7 (D "] {
            assert!(!is_uninterruptible(stat), "{stat}");
        }
        let thread = rustix::thread::gettid();
        let file = format!("/proc/self/task/{thread}/stat");
        let own = std::fs::read_to_string(file).unwrap();
        assert!(own.contains(") R "), "{own}");
        assert!(!waits_in_kernel(thread));
    }
}
