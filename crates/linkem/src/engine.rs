//! The loop that carries frames: read what has come, write what is due, sleep until the next.
//!
//! The model computes every time from when a frame was read, so a late wake-up delays single
//! frames by its own lateness but never lowers the rate. Buffers are recycled: no allocation per
//! frame once the link is warm.

use anyhow::Result;
use ropewalk_io::clock::Clock;
use ropewalk_netem::{Link, LinkConfig, Side};
use ropewalk_types::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use crate::end::{End, ip_len};
use crate::frame::Frame;

/// Both ends, the model between them and the clock.
#[derive(Debug)]
pub(crate) struct Engine {
    ends: [End; 2],
    link: Link<Frame>,
    /// The links before each [`Self::restart`] and their clocks, while something is inside.
    before: Vec<(Link<Frame>, Clock)>,
    /// What [`Self::restart`] begins with.
    config: LinkConfig,
    clock: Clock,
    spare: Vec<Vec<u8>>,
    scratch: Box<[u8]>,
    wake_ups: u64,
    last_wake: Instant,
    /// Frames read or written since the last wake-up.
    carried: u32,
    /// Whether the next frames are expected within [`WAKE_INTERVAL`].
    busy: bool,
    /// Whether the last sleep was a pause that no frame could end.
    paused: bool,
}

/// Frames read from one end before the other gets its turn. More: less work per frame, later frames
/// of the other end.
const READ_BATCH: usize = 64;
/// Buffers kept for reuse; more are given back to the allocator. More: fewer allocations on fast
/// long links, memory.
const SPARE_MAX: usize = 16_384;
/// Room for the largest frame: MTU 65,521, Ethernet header and VLAN tag.
const FRAME_BYTES_MAX: usize = 65_536;
/// Shortest time from one wake-up to the next. On a busy link it makes one wake-up serve several
/// frames, as interrupt coalescing of network cards does. A frame after a pause is not affected.
/// Longer: less processor time, frames leave later. Measured in
/// `docs/decisions/linkem-tap-one-thread.md`.
const WAKE_INTERVAL: Duration = Duration::from_micros(50);
/// Frames per pause from which on pausing is worth it. More: fewer pauses on slow links. Measured
/// in `docs/decisions/linkem-tap-one-thread.md`: pauses on slow links about doubled the cost.
const GATHERED_MIN: u32 = 2;
/// Longest sleep, so that an overflow of times cannot make the program hang.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);

impl Engine {
    /// Time zero of the link is now. With `wait`, timed changes are left out until
    /// [`Self::restart`].
    pub(crate) fn new(a: End, b: End, config: LinkConfig, wait: bool) -> Self {
        let mut first = config.clone();
        if wait {
            first.changes.clear();
        }
        Self {
            ends: [a, b],
            link: Link::new(first),
            before: Vec::new(),
            config,
            clock: Clock::new(),
            spare: Vec::new(),
            scratch: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            wake_ups: 0,
            last_wake: Instant::ZERO,
            carried: 0,
            busy: false,
            paused: false,
        }
    }

    /// Begins anew: time, traces, timed changes, randomness and counters. What is inside still arrives
    /// when it would have: a loss would end the slow start of a connection that is set up first. What
    /// comes later does not wait for what is queued now, and may overtake it.
    pub(crate) fn restart(&mut self) {
        let link = std::mem::replace(&mut self.link, Link::new(self.config.clone()));
        let clock = std::mem::replace(&mut self.clock, Clock::new());
        self.before.push((link, clock));
        self.last_wake = Instant::ZERO;
        self.wake_ups = 0;
        (self.busy, self.paused) = (false, false);
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn link_mut(&mut self) -> &mut Link<Frame> {
        &mut self.link
    }

    pub(crate) fn link(&self) -> &Link<Frame> {
        &self.link
    }

    pub(crate) fn ends(&self) -> &[End; 2] {
        &self.ends
    }

    pub(crate) const fn wake_ups(&self) -> u64 {
        self.wake_ups
    }

    /// Carries frames until `other` becomes readable or `deadline` passes; whether `other` did.
    pub(crate) fn carry(&mut self, other: BorrowedFd<'_>, deadline: Instant) -> Result<bool> {
        loop {
            let now = self.clock.now();
            self.deliver(now)?;
            let mut more = false;
            for side in Side::ALL {
                more |= self.take_in(side)?;
            }
            if more {
                continue;
            }
            let now = self.clock.now();
            if now >= deadline {
                return Ok(false);
            }
            let until = self
                .link
                .poll_timeout()
                .into_iter()
                .chain(self.before_timeout(now))
                .fold(deadline, Instant::min);
            if until <= now {
                continue;
            }
            if self.sleep(other, now, until)? {
                return Ok(true);
            }
        }
    }

    /// Writes every frame that has arrived by `now`.
    fn deliver(&mut self, now: Instant) -> Result<()> {
        for (mut link, clock) in std::mem::take(&mut self.before) {
            let then = clock.now();
            for side in Side::ALL {
                while let Some(frame) = link.poll(then, side) {
                    self.write(side, frame)?;
                }
            }
            if link.next_arrival().is_some() {
                self.before.push((link, clock));
            }
        }
        for side in Side::ALL {
            while let Some(frame) = self.link.poll(now, side) {
                self.write(side, frame)?;
            }
            while let Some(frame) = self.link.poll_lost(side) {
                self.recycle(frame);
            }
        }
        Ok(())
    }

    /// When [`Self::deliver`] may next have something of the links before.
    fn before_timeout(&self, now: Instant) -> Option<Instant> {
        let left = |(link, clock): &(Link<Frame>, Clock)| {
            link.next_arrival().map(|at| at.since(clock.now()))
        };
        self.before
            .iter()
            .filter_map(left)
            .min()
            .map(|left| now + left)
    }

    fn write(&mut self, side: Side, frame: Frame) -> Result<()> {
        let to = match side {
            Side::Up => 1,
            Side::Down => 0,
        };
        self.ends[to].write(&frame.0)?;
        self.carried += 1;
        self.recycle(frame);
        Ok(())
    }

    /// Reads a batch of frames into the model; whether there may be more.
    fn take_in(&mut self, side: Side) -> Result<bool> {
        let from = match side {
            Side::Up => 0,
            Side::Down => 1,
        };
        for _ in 0..READ_BATCH {
            let Some(length) = self.ends[from].read(&mut self.scratch)? else {
                return Ok(false);
            };
            self.carried += 1;
            let now = self.clock.now();
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.clear();
            frame.extend_from_slice(&self.scratch[..length]);
            if let Err(refused) = self.link.enqueue(now, side, ip_len(length), Frame(frame)) {
                self.recycle(refused.item);
            }
        }
        Ok(true)
    }

    fn recycle(&mut self, Frame(frame): Frame) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
    }

    /// Sleeps until a frame has come, `other` is readable, or `until`; whether `other` is.
    fn sleep(&mut self, other: BorrowedFd<'_>, now: Instant, until: Instant) -> Result<bool> {
        self.wake_ups += 1;
        let carried = std::mem::take(&mut self.carried);
        let pause = (self.last_wake + WAKE_INTERVAL).since(now);
        let paused = self.busy && !pause.is_zero();
        let readable = if paused {
            // Interrupted or not, the loop looks at the clock next.
            let _ = rustix::thread::nanosleep(&Timespec::try_from(pause)?);
            false
        } else {
            self.wait(other, until.since(now).min(SLEEP_MAX))?
        };
        let woken = self.clock.now();
        // A pause pays only while it gathers frames that would each have woken this program.
        self.busy = if self.paused {
            carried >= GATHERED_MIN
        } else {
            woken.since(self.last_wake) < WAKE_INTERVAL
        };
        self.paused = paused;
        self.last_wake = woken;
        Ok(readable)
    }

    fn wait(&self, other: BorrowedFd<'_>, time: Duration) -> Result<bool> {
        let [a, b] = &self.ends;
        let mut fds = [
            PollFd::new(&a.tap, PollFlags::IN),
            PollFd::new(&b.tap, PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
        ];
        let time = Timespec::try_from(time)?;
        match poll(&mut fds, Some(&time)) {
            Ok(_) => Ok(!fds[2].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}
