//! What the workers of one hub hand to each other.
//!
//! Each worker has its own sockets, sites and queue of the TUN interface, and a mailbox for what came in
//! at the wrong worker: accepted TCP connections, and inner packets of flows of which the kernel does not
//! know the queue (`docs/decisions/hub.md` says when). Invariants: a mailbox holds a bounded number of packets, and nobody waits for a full
//! one: its packets are dropped and counted. What came from a mailbox is not handed on again.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use ropewalk_driver::MovedStream;
use ropewalk_session::{Elsewhere, Slice};
use rustix::fd::OwnedFd;

/// Inner packets that may wait in a mailbox. More: fewer drops when a worker is busy, later packets,
/// memory. Not measured.
const PACKETS_MAX: usize = 1_024;

/// What one worker gets from the others.
#[derive(Debug)]
struct Mailbox {
    packets: Receiver<(BytesMut, bool)>,
    streams: Receiver<MovedStream>,
}

/// Where another worker gets it.
#[derive(Clone, Debug)]
struct Address {
    packets: SyncSender<(BytesMut, bool)>,
    streams: Sender<MovedStream>,
    wake: Arc<OwnedFd>,
}

/// What a worker knows of itself and the others.
#[derive(Debug)]
pub(super) struct Colleagues {
    slice: Slice,
    mailbox: Mailbox,
    /// By index; also its own.
    all: Arc<[Address]>,
    /// Inner MTU that each of them wants, bytes; rarely locked.
    mtus: Arc<Mutex<Vec<usize>>>,
    /// Whom to wake at the end of a batch.
    to_wake: Vec<bool>,
    handed_over: u64,
    dropped: u64,
}

impl Colleagues {
    /// All workers of a hub, which wake at these descriptors.
    pub(super) fn new(wake: &[Arc<OwnedFd>]) -> anyhow::Result<Vec<Self>> {
        let count = u8::try_from(wake.len())?;
        let (addresses, mailboxes): (Vec<_>, Vec<_>) = wake.iter().map(post).unzip();
        let all: Arc<[Address]> = addresses.into();
        let mtus = Arc::new(Mutex::new(vec![0; wake.len()]));
        let workers = mailboxes.into_iter().zip(0..).map(|(mailbox, index)| {
            let slice =
                Slice::new(index, count).ok_or_else(|| anyhow::anyhow!("{count} workers"))?;
            Ok(Self {
                slice,
                mailbox,
                all: Arc::clone(&all),
                mtus: Arc::clone(&mtus),
                to_wake: vec![false; wake.len()],
                handed_over: 0,
                dropped: 0,
            })
        });
        workers.collect()
    }

    /// Which sites this worker serves.
    pub(super) const fn slice(&self) -> Slice {
        self.slice
    }

    /// Packets handed to others, and packets lost on that way.
    pub(super) const fn counters(&self) -> (u64, u64) {
        (self.handed_over, self.dropped)
    }

    /// Hands an inner packet to the worker that serves its site.
    pub(super) fn hand_over(&mut self, packet: Elsewhere) {
        let Elsewhere {
            worker,
            data,
            checksum_partial,
        } = packet;
        let sent = self
            .all
            .get(worker)
            .map(|to| to.packets.try_send((data, checksum_partial)));
        if matches!(sent, Some(Ok(()))) {
            self.handed_over += 1;
            self.to_wake[worker] = true;
        } else {
            self.dropped += 1;
        }
    }

    /// Counts a packet that came from another worker and belongs to a third: the list of sites has just
    /// changed.
    pub(super) const fn count_astray(&mut self) {
        self.dropped += 1;
    }

    /// Hands a TCP connection to the worker that serves its site.
    pub(super) fn move_stream(&mut self, stream: MovedStream) {
        let worker = stream.worker;
        if let Some(to) = self.all.get(worker)
            && to.streams.send(stream).is_ok()
        {
            self.to_wake[worker] = true;
        }
    }

    /// Wakes those that were handed something.
    pub(super) fn wake(&mut self) {
        for (to, wanted) in self.all.iter().zip(&mut self.to_wake) {
            if std::mem::take(wanted) {
                // The counter of an eventfd that nobody reads is full after 2⁶⁴ - 2.
                rustix::io::write(&*to.wake, &1_u64.to_ne_bytes()).ok();
            }
        }
    }

    /// The next inner packet from another worker, and whether its checksum is missing.
    pub(super) fn next_packet(&self) -> Option<(BytesMut, bool)> {
        self.mailbox.packets.try_recv().ok()
    }

    /// The next TCP connection from another worker.
    pub(super) fn next_stream(&self) -> Option<MovedStream> {
        self.mailbox.streams.try_recv().ok()
    }

    /// Says which inner MTU this worker wants, bytes, and sets the MTU that suits all. Nobody else sets
    /// another one meanwhile.
    pub(super) fn agree_on_mtu<T>(&self, mtu: usize, set: impl FnOnce(usize) -> T) -> T {
        let mut mtus = self.mtus.lock().unwrap_or_else(PoisonError::into_inner);
        mtus[self.slice.index()] = mtu;
        set(mtus.iter().copied().max().unwrap_or(mtu))
    }
}

fn post(wake: &Arc<OwnedFd>) -> (Address, Mailbox) {
    let (packets, packets_in) = sync_channel(PACKETS_MAX);
    let (streams, streams_in) = channel();
    let address = Address {
        packets,
        streams,
        wake: Arc::clone(wake),
    };
    let mailbox = Mailbox {
        packets: packets_in,
        streams: streams_in,
    };
    (address, mailbox)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn packet(worker: usize) -> Elsewhere {
        Elsewhere {
            worker,
            data: BytesMut::from(&b"packet"[..]),
            checksum_partial: true,
        }
    }

    fn three() -> Vec<Colleagues> {
        let wake = (0..3).map(|_| Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        Colleagues::new(&wake.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_full_mailbox_drops_and_nobody_waits() {
        let mut workers = three();
        for _ in 0..PACKETS_MAX + 5 {
            workers[0].hand_over(packet(2));
        }
        workers[0].hand_over(packet(3));
        assert_eq!(workers[0].counters(), (PACKETS_MAX as u64, 6));
        let got = std::iter::from_fn(|| workers[2].next_packet());
        assert!(
            got.inspect(|(data, partial)| assert!(*partial && &data[..] == b"packet"))
                .count()
                == PACKETS_MAX
        );
        assert!(workers[1].next_packet().is_none());
        workers[0].hand_over(packet(2));
        assert!(workers[2].next_packet().is_some());
    }

    #[test]
    fn only_those_who_were_handed_something_wake_and_once() {
        let mut workers = three();
        workers[0].hand_over(packet(2));
        workers[0].hand_over(packet(2));
        workers[0].wake();
        workers[0].wake();
        let woken: Vec<u64> = (0..3)
            .map(|index| {
                let mut counter = [0; 8];
                let read = rustix::io::read(&*workers[0].all[index].wake, &mut counter);
                read.map_or(0, |_| u64::from_ne_bytes(counter))
            })
            .collect();
        assert_eq!(woken, [0, 0, 1]);
    }

    #[test]
    fn the_largest_mtu_that_anybody_wants_now_is_set() {
        let workers = three();
        let wants = [
            (0, 1_400, 1_400),
            (1, 8_000, 8_000),
            (2, 1_500, 8_000),
            (1, 1_450, 1_500),
        ];
        for (worker, wanted, all) in wants {
            assert_eq!(workers[worker].agree_on_mtu(wanted, |mtu| mtu), all);
        }
    }
}
