//! `ropewalk top`: what a running gateway does, in a terminal.
//!
//! The gateway is asked over its API only, once a second. What is shown is the view of the dashboard, with
//! the words of the gateway. What is changed is changed with the same requests and commands.
//!
//! | file | holds |
//! |---|---|
//! | `app.rs` | what is known and what was pressed: pure, news and keys in, orders out |
//! | `keys.rs` | what each key does |
//! | `draw.rs`, `site.rs`, `hub.rs`, `graph.rs` | the frame, made of that: pure |
//! | `worker.rs` | the thread that asks the gateway and carries orders out |
//! | `terminal.rs` | the terminal: its modes, its keys, signals |
//!
//! Invariant: when the program ends by a key, a panic, SIGHUP, SIGINT or SIGTERM, the terminal is as it was. A terminal
//! that takes no output keeps its other screen.

#![forbid(unsafe_code)]

mod app;
mod draw;
mod figures;
mod graph;
mod hub;
mod keys;
mod site;
mod terminal;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::Arc;

use ropewalk_dashboard::Command;
use serde_json::Value;

pub use app::Range;
pub use terminal::{once, run};

/// Asks the gateway: the path, and what is sent, if a change is wanted. May block for seconds.
pub type Ask = Arc<dyn Fn(&str, Option<&Value>) -> Result<Value, String> + Send + Sync>;

/// The gateway that is shown.
#[derive(Clone)]
pub struct Gateway {
    /// Its API.
    pub ask: Ask,
    /// The commands.
    pub command: Command,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gateway")
    }
}

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Colours. Without them letters tell uplinks apart.
    pub colours: bool,
    /// More than ASCII.
    pub unicode: bool,
}
