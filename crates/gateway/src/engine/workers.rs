//! What the workers of one hub hand to each other.
//!
//! Each worker has its own sockets, sites and queue of the TUN interface, and a mailbox for what came in
//! at the wrong worker: inner packets of flows that the kernel has not seen yet, and accepted TCP
//! connections. Invariants: a mailbox holds a bounded number of packets, and nobody waits for a full
//! one: its packets are dropped and counted. What came from a mailbox is not handed on again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

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
    /// Inner MTU that each of them wants, bytes.
    mtus: Arc<[AtomicUsize]>,
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
        let mtus: Arc<[AtomicUsize]> = wake.iter().map(|_| AtomicUsize::new(0)).collect();
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

    /// Counts a packet that came from another worker and belongs to a third.
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

    /// Says which inner MTU this worker wants, bytes. The answer is what suits all.
    pub(super) fn agree_on_mtu(&self, mtu: usize) -> usize {
        self.mtus[self.slice.index()].store(mtu, Relaxed);
        let wanted = self.mtus.iter().map(|mtu| mtu.load(Relaxed));
        wanted.max().unwrap_or(mtu)
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
