//! A process of its own that keeps the rights of a gateway, and does what the gateway asks for.
//!
//! [`split`] forks while the program has one thread and has read nothing from the network. The child is
//! the helper: it keeps all rights, has no part in moving packets, and ends with its parent. The parent
//! gives its rights up ([`crate::confine`]) and sends orders. An order is a value of a closed
//! vocabulary: `Order` of this crate, or the typed order of a [`Service`] of another crate. Orders
//! hold no path, no program and no text for nft(8).
//!
//! Without a helper, as in tests and in commands that end at once, everything is done in the process
//! itself.
//!
//! Invariant: an order that the configuration cannot lead to is refused ([`Scope`]).
//!
//! Why, and what is left: `docs/decisions/privileges.md`.

mod orders;
mod wire;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::WaitOptions;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use orders::Order;
pub use orders::{Scope, is_routing_table, is_setting, is_table};
use wire::WireError;

use crate::sys;

/// Why the helper did not do what it was asked for, in words for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// What went wrong.
    pub text: String,
    /// Number of the kernel's error, if it was one.
    pub os: Option<i32>,
}

impl Refusal {
    /// A refusal in words.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            os: None,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self {
            text: error.to_string(),
            os: error.raw_os_error(),
        }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal.os {
            Some(number) => Self::from_raw_os_error(number),
            None => Self::other(refusal.text),
        }
    }
}

type Act = Box<dyn Fn(Value) -> Result<Value, Refusal> + Send + Sync>;

/// Orders of one kind, and what the helper does about them.
pub struct Service {
    name: &'static str,
    act: Act,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Service({})", self.name)
    }
}

impl Service {
    /// Carries out orders of type `Q` that [`delegate`] sends under `name`. `act` checks the order: it
    /// may come from a process that was taken over.
    pub fn new<Q: DeserializeOwned, A: Serialize, E: Display>(
        name: &'static str,
        act: impl Fn(Q) -> Result<A, E> + Send + Sync + 'static,
    ) -> Self {
        let act = move |question| {
            let question = serde_json::from_value(question).map_err(not_understood)?;
            let answer = act(question).map_err(|error| Refusal::new(format!("{error:#}")))?;
            serde_json::to_value(answer).map_err(not_understood)
        };
        Self {
            name,
            act: Box::new(act),
        }
    }
}

/// The ways to the helper. Several, so that what moves packets does not wait for nft(8), and the
/// firewall does not wait for programs that hang.
#[derive(Clone, Copy, Debug)]
pub enum Lane {
    /// Orders of the control side, which may take a while.
    Slow,
    /// Orders that the kernel carries out at once.
    Quick,
    /// Orders that wait for services of others, which may hang: other orders do not wait for these. The caller
    /// should not be the thread of the control side.
    Patient,
}

#[derive(Debug)]
struct Client {
    lanes: [Mutex<UnixStream>; 3],
    /// Its other end is open as long as the helper lives.
    life: PipeReader,
}

static CLIENT: OnceLock<Client> = OnceLock::new();

/// Whether this process has a helper.
#[must_use]
pub fn is_here() -> bool {
    CLIENT.get().is_some()
}

/// Makes the helper. It returns in the parent only; the helper ends with the parent.
///
/// # Errors
/// This process has other threads or a helper already, or the kernel refuses.
pub fn split(scope: Scope, services: Vec<Service>) -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 || is_here() {
        return Err(io::Error::other(format!(
            "the helper has to come first, but there are {threads} threads or a helper"
        )));
    }
    let (slow, slow_end) = UnixStream::pair()?;
    let (quick, quick_end) = UnixStream::pair()?;
    let (patient, patient_end) = UnixStream::pair()?;
    let (life, held) = io::pipe()?;
    if sys::fork()? {
        drop((slow, quick, patient, life));
        serve(scope, services, [slow_end, quick_end, patient_end]);
        drop(held);
        // Nothing of the parent's is to be undone here.
        sys::exit_now();
    }
    let lanes = [slow, quick, patient].map(Mutex::new);
    // It was looked at above, and there is one thread.
    let _ = CLIENT.set(Client { lanes, life });
    Ok(())
}

/// What can be read from, and is at its end, as soon as the helper has ended; `None` without a helper.
pub fn life() -> Option<BorrowedFd<'static>> {
    CLIENT.get().map(|client| client.life.as_fd())
}

/// Whether this process had a helper, which has ended.
#[must_use]
pub fn has_ended() -> bool {
    let Some(life) = life() else { return false };
    let mut waited = [PollFd::from_borrowed_fd(life, PollFlags::IN)];
    // Nobody writes: there is something when there is the end.
    poll(&mut waited, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// How the helper ended, which [`has_ended`]: "was killed by signal 9".
#[must_use]
pub fn how_it_ended() -> String {
    match rustix::process::wait(WaitOptions::empty()) {
        Ok(Some((_, status))) => match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => format!("was killed by signal {signal}"),
            (None, Some(code)) => format!("ended with code {code}"),
            (None, None) => "ended".to_owned(),
        },
        Ok(None) | Err(_) => "ended".to_owned(),
    }
}

/// Has the helper carry an order out by its service `name`, on this lane; without a helper `here` does it.
///
/// # Errors
/// What `here` says, or the helper's refusal.
pub fn delegate<Q: Serialize, A: DeserializeOwned, E: From<Refusal>>(
    lane: Lane,
    name: &str,
    question: &Q,
    here: impl FnOnce(&Q) -> Result<A, E>,
) -> Result<A, E> {
    let Some(client) = CLIENT.get() else {
        return here(question);
    };
    let (answer, _) = client.ask(lane, name, question, None)?;
    Ok(answer)
}

/// Has the helper carry an order of this crate out; without a helper `here` does it.
pub(crate) fn order<A: DeserializeOwned, E: From<Refusal>>(
    order: impl FnOnce() -> Order,
    here: impl FnOnce() -> Result<A, E>,
) -> Result<A, E> {
    let Some(client) = CLIENT.get() else {
        return here();
    };
    let (answer, _) = client.ask(Lane::Slow, ORDERS, &order(), None)?;
    Ok(answer)
}

/// As [`order`], with a descriptor there and one back; `None` without a helper. The kernel has done it at
/// once.
pub(crate) fn quick_order<A: DeserializeOwned>(
    order: &Order,
    descriptor: Option<BorrowedFd<'_>>,
) -> Option<Result<(A, Option<OwnedFd>), Refusal>> {
    let client = CLIENT.get()?;
    Some(client.ask(Lane::Quick, ORDERS, order, descriptor))
}

/// The service of this crate's own orders.
const ORDERS: &str = "order";

impl Client {
    fn ask<A: DeserializeOwned>(
        &self,
        lane: Lane,
        name: &str,
        question: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(A, Option<OwnedFd>), Refusal> {
        let question = serde_json::to_vec(&(name, question)).map_err(not_understood)?;
        let lane = match lane {
            Lane::Slow => &self.lanes[0],
            Lane::Quick => &self.lanes[1],
            Lane::Patient => &self.lanes[2],
        };
        // Nothing in here panics while it holds the lock.
        let stream = lane.lock().unwrap_or_else(PoisonError::into_inner);
        wire::send(&stream, &question, descriptor).map_err(undelivered)?;
        let received = wire::receive(&stream).map_err(undelivered)?;
        let (answer, descriptor) = received
            .ok_or_else(|| undelivered(WireError::Gone(io::ErrorKind::UnexpectedEof.into())))?;
        let answer: Result<Value, Refusal> =
            serde_json::from_slice(&answer).map_err(not_understood)?;
        let answer = serde_json::from_value(answer?).map_err(not_understood)?;
        Ok((answer, descriptor))
    }
}

fn undelivered(error: WireError) -> Refusal {
    Refusal::new(match error {
        WireError::Gone(error) => {
            format!("the process with the rights (the helper) is gone: {error}")
        }
        WireError::TooLong(_) => format!("the helper cannot be asked: {error}"),
    })
}

/// The helper's whole life.
fn serve(scope: Scope, services: Vec<Service>, [slow, quick, patient]: [UnixStream; 3]) {
    sys::ignore_stop_signals();
    let _ = rustix::thread::set_name(c"ropewalk-helper");
    // One that works in part only is worse than none, after which the gateway starts anew.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::abort();
    }));
    let services: BTreeMap<_, _> = services.into_iter().map(|s| (s.name, s.act)).collect();
    let desk = Arc::new(Desk { scope, services });
    let spawned = [quick, patient].map(|lane| {
        let desk = Arc::clone(&desk);
        std::thread::Builder::new().spawn(move || desk.work(&lane))
    });
    if spawned.iter().all(Result::is_ok) {
        desk.work(&slow);
    }
}

struct Desk {
    scope: Scope,
    services: BTreeMap<&'static str, Act>,
}

impl Desk {
    /// Takes orders until the parent has gone.
    fn work(&self, stream: &UnixStream) {
        while let Ok(Some((question, descriptor))) = wire::receive(stream) {
            let (answer, descriptor) = match self.answer(&question, descriptor) {
                Ok((answer, descriptor)) => (Ok(answer), descriptor),
                Err(refusal) => (Err(refusal), None),
            };
            let sent = reply(stream, &answer, descriptor.as_ref().map(AsFd::as_fd));
            let sent = match sent {
                Err(WireError::TooLong(_)) => {
                    let refusal = Refusal::new("the answer of the helper is too long");
                    reply(stream, &Err(refusal), None)
                }
                other => other,
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn answer(
        &self,
        question: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<(Value, Option<OwnedFd>), Refusal> {
        let (name, question): (String, Value) =
            serde_json::from_slice(question).map_err(not_understood)?;
        if name == ORDERS {
            let order: Order = serde_json::from_value(question).map_err(not_understood)?;
            return order.carry_out(&self.scope, descriptor);
        }
        let act = self.services.get(name.as_str());
        let act = act.ok_or_else(|| Refusal::new("the helper does not know such an order"))?;
        act(question).map(|answer| (answer, None))
    }
}

fn reply(
    stream: &UnixStream,
    answer: &Result<Value, Refusal>,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), WireError> {
    let answer = serde_json::to_vec(answer).map_err(|error| WireError::Gone(error.into()))?;
    wire::send(stream, &answer, descriptor)
}

fn not_understood(error: serde_json::Error) -> Refusal {
    Refusal::new(format!("the helper and the gateway disagree: {error}"))
}
