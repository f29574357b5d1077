//! An allocator that counts what its thread asks for, for tests and fuzzers. A test program installs it:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: ropewalk_tally::Counting = ropewalk_tally::Counting;
//!
//! let before = ropewalk_tally::tally();
//! let numbers = vec![0_u8; 100];
//! let after = ropewalk_tally::tally();
//! assert_eq!(after.allocations - before.allocations, 1);
//! assert_eq!(after.bytes - before.bytes, 100);
//! drop(numbers);
//! assert_eq!(ropewalk_tally::tally().live, before.live);
//! ```
//!
//! Invariant: each thread has counts of its own, so that tests can run beside each other. Memory that one
//! thread takes and another gives back makes `live` wrong in both.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What a thread has asked the allocator for since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests for memory. A request to make memory larger or smaller is one, too.
    pub allocations: u64,
    /// Bytes of these requests. A request for a larger or smaller piece counts with its whole new size, because
    /// the allocator may have to copy it.
    pub bytes: u64,
    /// Bytes asked for and not given back.
    pub live: i64,
}

thread_local! {
    static TALLY: Cell<Tally> = const {
        Cell::new(Tally { allocations: 0, bytes: 0, live: 0 })
    };
}

/// What this thread has asked for so far. All zero while [`Counting`] is not the allocator of the program.
#[must_use]
pub fn tally() -> Tally {
    TALLY.get()
}

/// The system's allocator, which counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

#[expect(
    clippy::cast_possible_wrap,
    reason = "a layout has at most isize::MAX bytes"
)]
fn count(asked: Option<usize>, given_back: usize) {
    // A thread that ends may free memory when its counts are gone already.
    let _ = TALLY.try_with(|tally| {
        let mut now = tally.get();
        if let Some(bytes) = asked {
            now.allocations += 1;
            now.bytes += bytes as u64;
            now.live += bytes as i64;
        }
        now.live -= given_back as i64;
        tally.set(now);
    });
}

// SAFETY: every call goes to the system's allocator as it came. Counting allocates nothing: the cell is made
// when the program is compiled, and needs no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(Some(layout.size()), 0);
        // SAFETY: the caller keeps the rules of `alloc`, which are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(Some(layout.size()), 0);
        // SAFETY: the caller keeps the rules of `alloc_zeroed`, which are those of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(Some(new_size), layout.size());
        // SAFETY: `ptr` came from `System` with this layout, and the caller keeps the other rules.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(None, layout.size());
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}
