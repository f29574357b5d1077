//! Waiting for descriptors until a time.
//!
//! Invariant: a wait without an event takes at least its timeout, and less than a millisecond longer on an
//! idle machine, on every kernel: timers of the data path are that fine.
//!
//! Sources: epoll_wait(2). `epoll_pwait2` came with Linux 5.11, and is the one that counts nanoseconds.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

/// The kernel has said that it lacks `epoll_pwait2`: no wait asks it again.
static LACKS_NANOSECONDS: AtomicBool = AtomicBool::new(false);

/// Replaces the contents of `events` with what is ready, at most as many as there is capacity for. Waits
/// for the first one, no longer than `timeout` where there is one. A signal ends the wait without an event.
///
/// # Errors
/// The kernel refuses: `epoll` is none, or `events` has no capacity.
pub fn wait(
    epoll: impl AsFd,
    events: &mut Vec<epoll::Event>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    events.clear();
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    if !LACKS_NANOSECONDS.load(Ordering::Relaxed) {
        let spare = rustix::buffer::spare_capacity(events);
        match epoll::wait(&epoll, spare, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => return Ok(()),
            // A filter of system calls that is older than the call answers that it is not permitted.
            Err(Errno::NOSYS | Errno::PERM) => LACKS_NANOSECONDS.store(true, Ordering::Relaxed),
            Err(error) => return Err(error.into()),
        }
    }
    match wait_in_two_steps(&epoll, events, timeout.as_ref()) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        result => result,
    }
}

/// Any kernel's `ppoll` counts nanoseconds too, but does not say which descriptors are ready.
fn wait_in_two_steps(
    epoll: impl AsFd,
    events: &mut Vec<epoll::Event>,
    timeout: Option<&Timespec>,
) -> io::Result<()> {
    poll(&mut [PollFd::new(&epoll, PollFlags::IN)], timeout)?;
    crate::sys::ready_now(epoll.as_fd(), events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    use rustix::event::{EventfdFlags, eventfd};

    /// An `epoll` with one descriptor, whose events have the number 7.
    fn watched() -> (OwnedFd, OwnedFd) {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let one = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let data = epoll::EventData::new_u64(7);
        epoll::add(&all, &one, data, epoll::EventFlags::IN).expect("watched");
        (all, one)
    }

    fn waits() {
        let (all, one) = watched();
        let mut events = Vec::with_capacity(4);
        // Not a whole number of milliseconds, nor less than one.
        let timeout = Duration::from_micros(20_300);
        let begin = Instant::now();
        wait(&all, &mut events, Some(timeout)).expect("a wait");
        assert!(begin.elapsed() >= timeout && events.is_empty());
        // Other work may hold many up, not all.
        let took = |_| {
            let begin = Instant::now();
            wait(
                &all,
                &mut Vec::with_capacity(4),
                Some(Duration::from_micros(50)),
            )
            .expect("a wait");
            begin.elapsed()
        };
        let is_short = |took: &Duration| *took < Duration::from_micros(900);
        assert!(
            (0..500).map(took).any(|took| is_short(&took)),
            "none of 500 waits for 50 µs"
        );

        rustix::io::write(&one, &1_u64.to_ne_bytes()).expect("a number");
        for timeout in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
            wait(&all, &mut events, timeout).expect("a wait");
            let data: Vec<u64> = events.iter().map(|event| { event.data }.u64()).collect();
            assert_eq!(data, [7], "{timeout:?}");
        }
        assert!(wait(&one, &mut events, None).is_err(), "no epoll");
    }

    #[test]
    fn a_wait_ends_with_an_event_or_after_its_timeout() {
        waits();
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn a_kernel_before_5_11_waits_as_finely() {
        // A filter is for one thread: it plays the old kernel.
        let old = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).expect("a kernel with seccomp");
            let filter = crate::calls::lacking(libc::SYS_epoll_pwait2).expect("a filter");
            crate::sys::add_filter(&filter).expect("a kernel with seccomp");
            waits();
            assert!(LACKS_NANOSECONDS.load(Ordering::Relaxed));
        });
        old.join().expect("as on any kernel");
    }
}
