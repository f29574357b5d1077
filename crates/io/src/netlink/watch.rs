//! Follows the interfaces: the kernel's events only say that something changed, the state itself
//! is read anew. So lost events (`ENOBUFS`) cost nothing but one more reading, and the callback
//! never sees a state that was put together wrongly.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netlink_packet_core::NetlinkPayload;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::warn;

use super::socket::route_messages;
use super::view::matters;
use super::{Interface, NetlinkError, Result, snapshot};

/// What [`Watch`] calls with the present state of all interfaces.
pub type WatchCallback = Box<dyn FnMut(Vec<Interface>) + Send>;

/// Events within this time are answered by one reading: plugging in one interface makes a dozen.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// When the state could not be read it is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// Room for events while the callback runs.
const EVENT_BUFFER_BYTES: usize = 1 << 20;

/// Multicast groups: links, and addresses and routes of both families (`RTNLGRP_*`).
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];

/// Follows the interfaces of one network namespace until dropped.
///
/// Dropping waits until a running callback has returned, so that none runs afterwards.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Calls `callback` on a thread of its own: at once with the present state, and within 20 ms
    /// after every change of links, addresses and default routes. It is not called when nothing it
    /// can see changed. Interfaces are those of the namespace of the calling thread.
    ///
    /// # Errors
    /// The netlink socket or the thread could not be created.
    pub fn start(callback: WatchCallback) -> Result<Self> {
        let fail = |source| NetlinkError::Io {
            step: "watching interfaces",
            source,
        };
        let events = subscribe().map_err(fail)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|e| fail(e.into()))?);
        let watcher = Watcher {
            events,
            stop: Arc::clone(&stop),
            callback,
            last: None,
        };
        let thread = std::thread::Builder::new()
            .name("netlink-watch".into())
            .spawn(move || watcher.run())
            .map_err(fail)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Fails only when the counter is full, which also wakes the thread.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A callback that drops its own watch cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                warn!("the callback of the interface watch panicked");
            }
        }
    }
}

fn subscribe() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    for group in GROUPS {
        socket.add_membership(group)?;
    }
    socket.set_non_blocking(true)?;
    socket2::SockRef::from(&socket).set_recv_buffer_size(EVENT_BUFFER_BYTES)?;
    Ok(socket)
}

struct Watcher {
    events: Socket,
    stop: Arc<OwnedFd>,
    callback: WatchCallback,
    /// What the callback was told last.
    last: Option<Vec<Interface>>,
}

impl Watcher {
    fn run(mut self) {
        // When to read the state anew, if something may have changed.
        let mut due = Some(Instant::now());
        loop {
            let now = Instant::now();
            if due.is_some_and(|at| at <= now) {
                due = self.report().then(|| Instant::now() + RETRY);
            }
            match self.wait(due) {
                Wake::Stop => return,
                Wake::Event => {
                    if self.drain() {
                        let soon = Instant::now() + DEBOUNCE;
                        due = Some(due.map_or(soon, |at| at.min(soon)));
                    }
                }
                Wake::Timeout => {}
            }
        }
    }

    fn wait(&self, due: Option<Instant>) -> Wake {
        let limit = due.map(|at| {
            let left = at.saturating_duration_since(Instant::now()).min(RETRY);
            Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut ready = [
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.events.as_fd(), PollFlags::IN),
        ];
        match poll(&mut ready, limit.as_ref()) {
            Ok(_) if !ready[0].revents().is_empty() => Wake::Stop,
            Ok(_) if !ready[1].revents().is_empty() => Wake::Event,
            _ => Wake::Timeout,
        }
    }

    /// Reads all events; whether any of them, or their loss, calls for a new reading.
    fn drain(&self) -> bool {
        let mut changed = false;
        for _ in 0..EVENTS_MAX {
            match self.events.recv_from_full() {
                Ok((bytes, _)) => {
                    changed |= route_messages(&bytes).any(|message| {
                        // What is not understood calls for a look.
                        !matches!(&message.payload,
                            NetlinkPayload::InnerMessage(inner) if !matters(inner))
                    });
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(_) => break,
            }
        }
        changed
    }

    /// Tells the callback what changed; true when the state could not be read.
    fn report(&mut self) -> bool {
        match snapshot() {
            Ok(interfaces) => {
                if self.last.as_ref() != Some(&interfaces) {
                    self.last = Some(interfaces.clone());
                    (self.callback)(interfaces);
                }
                false
            }
            Err(error) => {
                warn!(%error, "interfaces could not be read; trying again");
                true
            }
        }
    }
}

/// Events read before the stop signal is looked at again.
const EVENTS_MAX: usize = 4096;

enum Wake {
    Stop,
    Event,
    Timeout,
}
