//! The watchdog of the service manager: a gateway that hangs is ended and started again.
//!
//! Each engine thread counts the turns of its loop. A message goes out only when every engine has completed
//! a turn since the last message. An idle engine sleeps until it has something to do, so each look wakes
//! it. Invariant: the thread of the control side sends the messages, so they stop when it hangs, too.
//!
//! The thread that lets sites in may wait for a disk or for `nft`, and packets pass meanwhile. So this thread has minutes.
//! What it waits for in the kernel does not count: a new start does not mend a disk, and the hub that runs serves its
//! sites without one.
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
/// How long that thread may be at one thing, besides waiting for a disk, before the program is ended. Longer: surer
/// that no slow machine costs all sites their connections; no site joins for longer when the thread hangs for ever.
const ADMISSION_MAX: Duration = Duration::from_mins(5);

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
            // Both have to look.
            let admission = self.admission.as_mut().is_none_or(|it| it.look(time));
            if self.look() && admission {
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
    /// The part of this time in which it did not wait in the kernel.
    awake: Duration,
}

impl Admission {
    const fn new(inbox: Inbox) -> Self {
        Self {
            inbox,
            begun: 0,
            quiet: Duration::ZERO,
            awake: Duration::ZERO,
        }
    }

    /// Whether the thread may go on as it does, `time` after the last look. Gives it something to do.
    fn look(&mut self, time: Duration) -> bool {
        let progress = self.inbox.progress();
        self.inbox.keep_rules();
        let waits = progress.thread.is_some_and(waits_in_kernel);
        self.take(progress, time, waits)
    }

    /// `waits`: whether the thread waits in the kernel, as for a disk.
    fn take(&mut self, progress: Progress, time: Duration, waits: bool) -> bool {
        let told = self.quiet >= ADMISSION_TOLD;
        if progress.begun != self.begun {
            if told {
                tracing::info!("the thread that lets sites in goes on");
            }
            self.begun = progress.begun;
            (self.quiet, self.awake) = (Duration::ZERO, Duration::ZERO);
            return true;
        }
        self.quiet += time;
        if !waits {
            self.awake += time;
        }
        if !told && self.quiet >= ADMISSION_TOLD {
            let at = progress.present.map(|work| work.to_string());
            tracing::error!(
                at,
                waits_for_disk = waits,
                "the thread that lets sites in has not gone on for {} s: no site joins, nothing is reloaded, and nobody \
                 looks after the firewall rules; look at the disk of the sites file",
                self.quiet.as_secs()
            );
        }
        let hangs = self.awake >= ADMISSION_MAX;
        if hangs && self.awake - time < ADMISSION_MAX {
            tracing::error!(
                "the thread that lets sites in hangs: the service manager ends the program"
            );
        }
        !hangs
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
    fn a_thread_that_lets_sites_in_may_be_slow_and_one_that_hangs_is_seen() {
        let (begun, begins) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let thread = AdmissionThread::start(move |work| {
            begun.send(work).unwrap();
            wait.recv().unwrap();
            Ok(String::new())
        });
        let thread = thread.unwrap();
        let mut watched = Admission::new(thread.inbox.clone());
        // One look finds it idle, and gives it something to do.
        for _ in 0..2 {
            watched.look(LOOK);
            assert_eq!(begins.recv().unwrap(), Work::KeepRules);
            assert!(watched.look(LOOK), "it has begun something");
            for look in 1..looks(ADMISSION_MAX) {
                assert!(watched.look(LOOK), "after {look} looks");
            }
            assert!(!watched.look(LOOK), "for ever at one thing");
            assert!(!watched.look(LOOK));
            go_on.send(()).unwrap();
            assert_eq!(begins.recv().unwrap(), Work::KeepRules);
            assert!(watched.look(LOOK), "it goes on");
            go_on.send(()).unwrap();
            while watched.inbox.progress().present.is_some() {
                if begins.try_recv().is_ok() {
                    go_on.send(()).unwrap();
                }
            }
        }
    }

    #[test]
    fn time_that_a_disk_takes_ends_no_hub() {
        let mut watched = Admission::new(Inbox::default());
        let slow = Progress {
            begun: 1,
            present: Some(Work::Reload),
            thread: None,
        };
        let mut look = |progress, waits| watched.take(progress, LOOK, waits);
        assert!(look(slow, false));
        // 50 minutes at one thing, of which a twelfth is its own.
        for number in 0..400 {
            assert!(look(slow, number % 12 != 0), "{number}");
        }
        let own = looks(ADMISSION_MAX) - 400_u128.div_ceil(12);
        for _ in 1..own {
            assert!(look(slow, false));
        }
        assert!(look(slow, true));
        assert!(!look(slow, false));
        let next = Progress { begun: 2, ..slow };
        assert!(look(next, false));
        assert!(look(next, false), "it begins anew");
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
