//! What a running gateway tells of itself, and what it can be asked: the JSON of its API.
//!
//! Whoever writes or reads that JSON uses these types: the session, the engine, the commands, the
//! testbed. A counter is declared once, in a table of `tunnel.rs` or `balance.rs`. The table makes
//! the field, its key in the JSON, its Prometheus metric and that metric's help text.
//!
//! Nothing here does I/O: sockets and HTTP belong to the gateway.

#![forbid(unsafe_code)]

mod answer;
mod balance;
mod fleet;
mod history;
mod metric;
pub mod prometheus;
mod quota;
mod request;
mod routes;
pub mod schema;
mod site;
mod status;
mod tunnel;
pub mod words;

pub use answer::{
    Changed, Done, Failed, KeyChange, Paths, Reloaded, SchedulerAbout, Schedulers, TunnelPaths,
    TunnelSchedulers,
};
pub use balance::{BalanceStatus, DirectStatus, RuleStatus, UplinkStatus, WayStatus};
pub use fleet::{EtcdStatus, FleetHub, FleetStatus};
pub use history::{Happened, History, UplinkHistory};
pub use metric::{Measured, Metric};
pub use quota::{Quota, QuotaStatus};
pub use request::{
    Direction, KeyRequest, LEAVING_SECONDS_MAX, Marks, PathRequest, PathUse, SchedulerRequest,
};
pub use routes::{Answer, Method, Route};
pub use site::SiteStatus;
pub use status::{
    KeyRotation, KillSwitchStatus, LEFT_OUT_MAX, LeftOut, OnwardStatus, PassedStatus, Status,
    WorkerStatus,
};
pub use tunnel::{PathStatus, TunnelStatus};
