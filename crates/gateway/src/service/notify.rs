//! Tells systemd how the service is. Outside systemd nothing happens.

pub use sd_notify::NotifyState::{Ready, Stopping};

/// Sends `state` to the service manager if there is one.
pub fn send(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager was not told");
    }
}
