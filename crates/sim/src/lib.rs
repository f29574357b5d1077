//! A deterministic simulator: plans in, reports out, the real tunnel core in virtual time.
//!
//! Hosts with TCP, QUIC, pings and calls talk over emulated links, directly or through a tunnel
//! made of two `ropewalk_core::tunnel::Tunnel`s. A plan and a seed give the same run on every
//! machine: clocks are read only to say how long the run took. What is modelled and what is not:
//! `docs/simulator.md`.

#![forbid(unsafe_code)]
#![allow(
    clippy::cast_precision_loss,
    reason = "times of an hour at most and counts of packets are exact in a double"
)]

mod bounds;
mod capture;
mod carrier;
pub mod chaos;
mod engine;
pub mod events;
pub mod fleet;
mod headers;
mod host;
mod outputs;
mod packet;
pub mod run;
pub mod sweep;
mod traffic;
mod world;

pub use outputs::LogFile;
pub use run::{Options, SimError, run, run_with};
pub use sweep::sweep;
