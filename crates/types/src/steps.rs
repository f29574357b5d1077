//! Counts steps of loops whose length the peer can influence, in builds with debug assertions. Tests and
//! fuzzers bound the steps by the bytes that the peer has sent. Other builds count nothing and pay nothing.

#[cfg(debug_assertions)]
use std::cell::Cell;

#[cfg(debug_assertions)]
thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// So many steps are done: items looked at, or bytes worked through.
#[inline(always)]
pub fn count_steps(steps: usize) {
    #[cfg(debug_assertions)]
    STEPS.set(STEPS.get() + steps as u64);
    #[cfg(not(debug_assertions))]
    let _ = steps;
}

/// Steps of this thread so far; always 0 without debug assertions.
#[must_use]
pub fn steps() -> u64 {
    #[cfg(debug_assertions)]
    return STEPS.get();
    #[cfg(not(debug_assertions))]
    return 0;
}
