//! The `ropewalk` program as a library: a tunnel over several uplinks, its command line and its
//! service. `main` only calls [`cli::main`].
//!
//! [`engine`] moves packets on a thread of its own. Everything else is the control side. [`cli`]
//! reads the command line. [`key_file`], [`sites`] and [`token`] read and write files. [`service`]
//! runs a hub or a site around an engine. [`client`] talks to a running one.
//!
//! Parts that can stand alone have crates: configuration files (`config`), changes to this machine
//! (`host`), balancing without a hub (`balance`), `ropewalk demo` (`demo`), and the types of the
//! API (`api`).

pub mod cli;
pub mod client;
pub mod doctor;
mod endpoints;
pub mod engine;
pub mod enrolment;
pub mod exit;
#[cfg(feature = "fleet")]
pub mod fleet;
#[cfg(not(feature = "fleet"))]
#[path = "fleet/without.rs"]
pub mod fleet;
mod http_server;
pub mod hub_keys;
pub mod key_file;
mod logging;
mod panics;
pub mod service;
pub mod sites;

pub use ropewalk_config::token;
