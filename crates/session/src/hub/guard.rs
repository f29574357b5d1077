//! Keeps a panic in the work for one site from ending the hub for all others.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does the work for one site; `None` when it panicked. The caller then gives up everything that the
/// work may have left half done: the tunnel and the connections of that site.
#[inline]
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
