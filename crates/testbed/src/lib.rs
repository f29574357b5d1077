//! Network namespaces, links and traffic for the demo, the tests and the benchmarks.
//!
//! A [`Topology`] is a site with several uplinks, a hub they all reach, and a server behind the
//! hub. Everything made here is removed when its handle goes, on Ctrl-C, and by
//! [`remove_leftovers`] when the maker was killed. Traffic flows only between namespaces made
//! here and is always bounded in time. Needs root and the programs named in [`programs`].

pub mod balanced;
pub mod branch;
pub mod experiment;
pub mod gateway;
pub mod mptcp;
pub mod peers;
pub mod programs;
pub mod row;
pub mod statistics;
pub mod topology;
pub mod traffic;
pub mod turns;

mod cleanup;
mod link;
mod namespace;
mod nodes;
pub mod process;
mod processor;
mod serial;
mod tcp_nc;

pub use balanced::Balanced;
pub use branch::Branch;
pub use cleanup::{remove_leftovers, wait_if_interrupted};
pub use link::{Capacity, Link, LinkCounters, LinkSpec, Shape};
pub use namespace::{Namespace, veth};
pub use nodes::NodeSpec;
pub use process::{Finished, Process, Program, STOP_LIMIT, cpu_seconds, softirq_cpu_seconds};
pub use processor::ProcessorTime;
pub use row::{HostSpec, Row, RowSpec};
pub use serial::{Serial, serial, shared};
pub use topology::{Topology, TopologySpec};
