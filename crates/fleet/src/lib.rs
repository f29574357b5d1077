//! The state of a fleet of hubs, on etcd: sites, invitations, leases of hubs, drain marks and claims.
//!
//! [`record`] has the schema, [`plan`] what each write checks and changes, [`copy`] the copy that each hub keeps,
//! [`trust`] the keys. They decide without input and output. [`store`] does the input and output: a thread follows
//! etcd, and writes. [`backup`] saves the state to a file and back.
//!
//! Invariant: a hub reads from its copy only, so etcd may be away. What a hub writes is one transaction of etcd, which
//! changes nothing unless everything that it was planned from still holds.
//! Source: docs/decisions/fleet-state.md.

#![forbid(unsafe_code)]

pub mod backup;
pub mod copy;
pub mod plan;
pub mod record;
pub mod store;
pub mod trust;

pub use copy::{Change, Copy};
pub use plan::{Done, Refusal, Request, Terms};
pub use record::{
    Claim, Drain, HubLease, Invitation, Joined, Meta, Pools, Record, Signature, Site,
};
pub use store::{EtcdState, Fleet, Login, Options, Status, Tls, Unqueued, WriteError};
pub use trust::{FleetKey, HubCertificate, HubEntry, HubList};
