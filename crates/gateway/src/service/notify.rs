//! Tells systemd how the service is. Outside systemd nothing happens.

use std::time::Duration;

pub use sd_notify::NotifyState::{Ready, Stopping, Watchdog};

/// Sends `state` to the service manager if there is one.
pub fn send(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager was not told");
    }
}

/// The start goes on, and takes up to `time` from now: the service manager does not end it before.
pub fn extend_start(time: Duration) {
    let usec = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    send(sd_notify::NotifyState::ExtendTimeoutUsec(usec));
}
