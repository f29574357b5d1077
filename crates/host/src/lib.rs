//! This machine, as gateways see and change it: which interfaces are uplinks, what was changed and
//! how that is undone, files that survive a crash.
//!
//! Invariant: every change that outlives the process is recorded in [`Changes`] first.

#![forbid(unsafe_code)]

pub mod changes;
pub mod files;
pub mod kill_switch;
pub mod memory;
pub mod portal;
pub mod resolver;
pub mod settings;
pub mod uplinks;

pub use changes::{Change, Changes, Policy};
