//! The thread that lets sites in, and what waits for it.
//!
//! Files, `nft` and the lock of the sites file may be slow, and a list of 10,000 sites is. So one thread of its own
//! does all of that. Whoever asks the engine for its state does not wait for this thread.
//!
//! Invariants: what waits is bounded and there once. All who asked for a reload before it began get the same answer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use ropewalk_transport::PublicKey;
use rustix::process::Pid;
use rustix::thread::gettid;
use tokio::sync::oneshot;

use crate::service::STOP_TIMEOUT;

/// Enrolments that may wait; a site whose question found no room asks again after a second. More: more sites join in
/// one go, each waits longer.
const ENROLMENTS_MAX: usize = 64;
/// Sites that have connected with their next key and wait until that is written down. More: memory. A site that found
/// no room keeps both keys until its next connection.
const CONFIRMED_MAX: usize = 1_024;
/// Those who may wait for the answer to a reload. More: memory.
const ASKERS_MAX: usize = 64;

/// What the thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::service) enum Work {
    /// Reads the sites file again.
    Reload,
    /// Takes over what has changed in the copy of the fleet's state.
    Follow,
    /// Looks whether the firewall rules are still there.
    KeepRules,
    /// A site has connected with its next key.
    Confirm(PublicKey),
    /// Gives the holder of an invitation a key, or a site its next key.
    Enrol {
        invitation: PublicKey,
        key: PublicKey,
        proved: bool,
    },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reload => "a reload",
            Self::Follow => "a change of the fleet",
            Self::KeepRules => "a look at the firewall rules and the inner addresses",
            Self::Confirm(_) => "the next key of a site",
            Self::Enrol { .. } => "a site that joins",
        })
    }
}

type Answer = Result<String, String>;

#[derive(Debug, Default)]
struct Waiting {
    askers: Vec<oneshot::Sender<Answer>>,
    follow: bool,
    keep_rules: bool,
    confirmed: VecDeque<PublicKey>,
    enrolments: VecDeque<Work>,
    /// What has its turn first among the four above.
    turn: usize,
    /// What is worked on. The answer to a repeated question comes.
    present: Option<Work>,
    /// How much has been begun so far.
    begun: u64,
    /// Number of the thread, once it runs.
    thread: Option<Pid>,
    closed: bool,
}

impl Waiting {
    /// What is next. What is asked for by users comes first, and all else in turn: a fleet whose state changes all the
    /// time keeps neither sites from joining nor the rules from being looked at.
    fn take(&mut self) -> Option<(Work, Vec<oneshot::Sender<Answer>>)> {
        if !self.askers.is_empty() {
            return Some((Work::Reload, std::mem::take(&mut self.askers)));
        }
        let mut turns = (self.turn..KINDS).chain(0..self.turn);
        let (kind, work) = turns.find_map(|kind| Some((kind, self.take_of(kind)?)))?;
        self.turn = (kind + 1) % KINDS;
        Some((work, Vec::new()))
    }

    /// The next work of a kind.
    fn take_of(&mut self, kind: usize) -> Option<Work> {
        match kind {
            0 => std::mem::take(&mut self.follow).then_some(Work::Follow),
            1 => std::mem::take(&mut self.keep_rules).then_some(Work::KeepRules),
            2 => self.confirmed.pop_front().map(Work::Confirm),
            _ => self.enrolments.pop_front(),
        }
    }
}

/// Kinds of work that take turns.
const KINDS: usize = 4;

/// What the thread does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::service) struct Progress {
    /// How much it has begun so far. Grows while the thread goes on, and somebody has the rules looked at.
    pub(in crate::service) begun: u64,
    /// What it has not ended yet.
    pub(in crate::service) present: Option<Work>,
    /// Number of the thread, once it runs.
    pub(in crate::service) thread: Option<Pid>,
}

/// Takes work for the thread. Never waits for it.
#[derive(Clone, Debug, Default)]
pub(in crate::service) struct Inbox(Arc<(Mutex<Waiting>, Condvar)>);

impl Inbox {
    /// Reads the sites file again. How many sites there are, in words.
    ///
    /// # Errors
    /// What [`Admission::reload`](super::Admission::reload) says, too many wait for the answer, or the hub is stopping.
    pub(in crate::service) fn reload(
        &self,
    ) -> impl Future<Output = anyhow::Result<String>> + Send + use<> {
        let (asker, answer) = oneshot::channel();
        let mut waiting = self.lock();
        let room = waiting.askers.len() < ASKERS_MAX;
        if room && !waiting.closed {
            waiting.askers.push(asker);
            self.0.1.notify_one();
        }
        drop(waiting);
        async move {
            anyhow::ensure!(
                room,
                "{ASKERS_MAX} others wait for a reload; try again later"
            );
            let answer = answer.await;
            let answer =
                answer.context("the hub is stopping, or the reload failed: see its log")?;
            answer.map_err(anyhow::Error::msg)
        }
    }

    /// The copy of the fleet's state has changed.
    pub(in crate::service) fn follow(&self) {
        self.lock().follow = true;
        self.0.1.notify_one();
    }

    /// Looks whether the firewall rules are still there.
    pub(in crate::service) fn keep_rules(&self) {
        self.lock().keep_rules = true;
        self.0.1.notify_one();
    }

    /// A site has connected with its next key.
    pub(in crate::service) fn confirm(&self, key: PublicKey) {
        let mut waiting = self.lock();
        if waiting.confirmed.len() < CONFIRMED_MAX && !waiting.confirmed.contains(&key) {
            waiting.confirmed.push_back(key);
            self.0.1.notify_one();
        }
    }

    /// The holder of an invitation, or a site, says its key. Nothing happens while a question of the same invitation
    /// waits, or this very one is worked on.
    pub(in crate::service) fn enrol(&self, invitation: PublicKey, key: PublicKey, proved: bool) {
        let work = Work::Enrol {
            invitation,
            key,
            proved,
        };
        let same =
            |other: &Work| matches!(other, Work::Enrol { invitation: of, .. } if *of == invitation);
        let mut waiting = self.lock();
        let is_there = waiting.present == Some(work) || waiting.enrolments.iter().any(same);
        if waiting.enrolments.len() < ENROLMENTS_MAX && !is_there {
            waiting.enrolments.push_back(work);
            self.0.1.notify_one();
        }
    }

    /// Whether the thread goes on.
    pub(in crate::service) fn progress(&self) -> Progress {
        let waiting = self.lock();
        Progress {
            begun: waiting.begun,
            present: waiting.present,
            thread: waiting.thread,
        }
    }

    /// Waits for work. `None` at the end.
    fn next(&self) -> Option<(Work, Vec<oneshot::Sender<Answer>>)> {
        let mut waiting = self.lock();
        waiting.present = None;
        loop {
            if waiting.closed {
                return None;
            }
            if let Some((work, askers)) = waiting.take() {
                waiting.present = Some(work);
                waiting.begun += 1;
                return Some((work, askers));
            }
            let woken = self.0.1.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.askers.clear();
        self.0.1.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that lets sites in. When dropped, it ends after what it is doing.
#[derive(Debug)]
pub(in crate::service) struct AdmissionThread {
    pub(in crate::service) inbox: Inbox,
    /// Says nothing, and ends with the thread.
    ended: oneshot::Receiver<Infallible>,
}

impl AdmissionThread {
    /// Starts the thread, which does each work that comes to `inbox` with `work`: what became of it, in words, for those who asked.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub(in crate::service) fn start(
        inbox: Inbox,
        mut work: impl FnMut(Work) -> anyhow::Result<String> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let own = inbox.clone();
        let (ends, ended) = oneshot::channel::<Infallible>();
        std::thread::Builder::new()
            .name("admission".into())
            .spawn(move || {
                // Dropped when the thread ends.
                let _ends = ends;
                own.lock().thread = Some(gettid());
                while let Some((what, askers)) = own.next() {
                    // One question must not keep all later ones from being answered. The panic is in the log.
                    let done = catch_unwind(AssertUnwindSafe(|| work(what)));
                    let done =
                        done.unwrap_or_else(|_| Err(anyhow::anyhow!("a panic: see the log")));
                    let answer = done.map_err(|error| format!("{error:#}"));
                    for asker in askers {
                        // Who asked may have gone.
                        asker.send(answer.clone()).ok();
                    }
                }
            })
            .context("cannot start the thread that lets sites in")?;
        Ok(Self { inbox, ended })
    }

    /// Ends the thread, and waits until it has changed this machine for the last time.
    pub(in crate::service) async fn stop(mut self) {
        self.inbox.close();
        if tokio::time::timeout(STOP_TIMEOUT, &mut self.ended)
            .await
            .is_err()
        {
            tracing::warn!("the thread that lets sites in did not stop in time and is abandoned");
        }
    }
}

impl Drop for AdmissionThread {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use ropewalk_transport::Identity;

    fn key(number: u8) -> PublicKey {
        Identity::from_seed([number; 32]).unwrap().public_key()
    }

    fn enrol(number: u8, other: u8) -> Work {
        Work::Enrol {
            invitation: key(number),
            key: key(other),
            proved: true,
        }
    }

    /// A thread that says what it begins, and goes on when it is told how that ends.
    fn thread() -> (
        AdmissionThread,
        Receiver<Work>,
        Sender<anyhow::Result<String>>,
    ) {
        let (begun, begins) = channel();
        let (ends, end) = channel::<anyhow::Result<String>>();
        let thread = AdmissionThread::start(Inbox::default(), move |work| {
            begun.send(work).unwrap();
            end.recv().unwrap()
        });
        (thread.unwrap(), begins, ends)
    }

    fn done() -> anyhow::Result<String> {
        Ok(String::new())
    }

    #[test]
    fn what_waits_is_there_once_and_bounded_and_nobody_waits_for_room() {
        let (thread, begins, ends) = thread();
        let inbox = &thread.inbox;
        inbox.enrol(key(1), key(2), true);
        assert_eq!(begins.recv().unwrap(), enrol(1, 2));
        for _ in 0..1_000 {
            // As a site that asks each second, while one enrolment takes long.
            inbox.enrol(key(1), key(2), true);
            inbox.enrol(key(3), key(4), true);
            inbox.confirm(key(5));
            inbox.keep_rules();
            inbox.follow();
        }
        // With another key it is another question.
        inbox.enrol(key(1), key(6), true);
        for number in 7..200 {
            inbox.enrol(key(number), key(number), true);
        }
        ends.send(done()).unwrap();
        let mut order = Vec::new();
        while let Ok(work) = begins.recv_timeout(Duration::from_millis(200)) {
            order.push(work);
            ends.send(done()).unwrap();
        }
        let first = [
            Work::Follow,
            Work::KeepRules,
            Work::Confirm(key(5)),
            enrol(3, 4),
            enrol(1, 6),
        ];
        assert_eq!(order[..5], first);
        assert_eq!(order.len(), 3 + ENROLMENTS_MAX);
        // It is asked again after the answer.
        inbox.enrol(key(1), key(2), true);
        assert_eq!(begins.recv().unwrap(), enrol(1, 2));
        ends.send(done()).unwrap();
    }

    #[test]
    fn a_fleet_that_changes_all_the_time_starves_nobody() {
        let (thread, begins, ends) = thread();
        let inbox = &thread.inbox;
        inbox.follow();
        assert_eq!(begins.recv().unwrap(), Work::Follow);
        for number in 1..4 {
            inbox.enrol(key(number), key(number), true);
        }
        let mut order = Vec::new();
        for _ in 0..6 {
            // Both come again while the last work goes on.
            inbox.follow();
            inbox.keep_rules();
            ends.send(done()).unwrap();
            order.push(begins.recv().unwrap());
        }
        let expected = [
            Work::KeepRules,
            enrol(1, 1),
            Work::Follow,
            Work::KeepRules,
            enrol(2, 2),
            Work::Follow,
        ];
        assert_eq!(order, expected);
        thread.inbox.close();
        ends.send(done()).unwrap();
    }

    #[test]
    fn all_who_ask_before_a_reload_begins_get_its_answer_and_who_asks_later_the_next() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let (thread, begins, ends) = thread();
        thread.inbox.enrol(key(1), key(2), true);
        begins.recv().unwrap();
        let early: Vec<_> = (0..ASKERS_MAX).map(|_| thread.inbox.reload()).collect();
        let refused = runtime.block_on(thread.inbox.reload()).unwrap_err();
        assert!(refused.to_string().contains("try again later"), "{refused}");
        ends.send(done()).unwrap();
        assert_eq!(begins.recv().unwrap(), Work::Reload, "before other work");
        let late = thread.inbox.reload();
        ends.send(Err(anyhow::anyhow!("line 3").context("broken")))
            .unwrap();
        for answer in early {
            let error = runtime.block_on(answer).unwrap_err();
            assert_eq!(error.to_string(), "broken: line 3");
        }
        assert_eq!(begins.recv().unwrap(), Work::Reload);
        ends.send(Ok("2 sites".to_owned())).unwrap();
        assert_eq!(runtime.block_on(late).unwrap(), "2 sites");
    }

    #[test]
    fn a_panic_costs_one_answer_and_a_stop_those_that_are_not_begun() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().unwrap();
        let thread = AdmissionThread::start(Inbox::default(), |work| match work {
            Work::Confirm(_) => panic!("as the test wants"),
            Work::Reload | Work::Follow | Work::KeepRules | Work::Enrol { .. } => done(),
        });
        let thread = thread.unwrap();
        thread.inbox.confirm(key(1));
        runtime.block_on(thread.inbox.reload()).unwrap();
        let inbox = thread.inbox.clone();
        runtime.block_on(thread.stop());
        let stopped = runtime.block_on(inbox.reload()).unwrap_err();
        assert!(stopped.to_string().contains("is stopping"), "{stopped}");
    }
}
