//! What a running gateway answers, beside its whole state.

use ropewalk_types::SchedulerKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::PathStatus;

/// Answer of `GET /healthz` and of requests that only can succeed or fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {
    /// True: a failure is another answer, [`Failed`].
    pub ok: bool,
}

/// Answer to a request that is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failed {
    /// Why, and what to do.
    pub error: String,
}

impl Failed {
    /// Why a gateway refuses a request that it does not know. Other requests can also be refused with status 404:
    /// they name what is not there.
    pub const NO_SUCH_PAGE: &str = "there is no such page";
}

/// Answer to `POST /v1/scheduler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// Number of tunnels changed.
    pub changed: usize,
}

/// Answer to `POST /v1/key`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyChange {
    /// The public key that the gateway will have, or has now.
    pub key: String,
    /// Sites of a hub whose invitations ended with its former key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uninvited: Vec<String>,
}

/// Answer to `POST /v1/reload` and `POST /v1/sites/reload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reloaded {
    /// What was read again.
    pub reloaded: String,
}

/// Answer to `GET /v1/scheduler`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Schedulers {
    /// All that there are.
    pub available: Vec<SchedulerAbout>,
    /// Those in use, one entry per tunnel.
    pub tunnels: Vec<TunnelSchedulers>,
}

/// A scheduler that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerAbout {
    /// One line about the rule of the scheduler.
    pub description: String,
    /// Name.
    #[schemars(schema_with = "crate::schema::scheduler")]
    pub name: SchedulerKind,
}

/// The schedulers of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TunnelSchedulers {
    /// Name of the peer.
    pub peer: String,
    /// Why the sending scheduler does what it does, if it says.
    pub reason: String,
    /// Used by the peer towards this machine.
    #[schemars(schema_with = "crate::schema::scheduler")]
    pub receive: SchedulerKind,
    /// Used by this machine.
    #[schemars(schema_with = "crate::schema::scheduler")]
    pub send: SchedulerKind,
}

/// Answer to `GET /v1/paths`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Paths {
    /// One entry per tunnel.
    pub tunnels: Vec<TunnelPaths>,
}

/// The paths of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TunnelPaths {
    /// The paths.
    pub paths: Vec<PathStatus>,
    /// Name of the peer.
    pub peer: String,
}

impl Schedulers {
    /// All schedulers, and those of the tunnels in `status`.
    #[must_use]
    pub fn of(status: &crate::Status) -> Self {
        let available = SchedulerKind::ALL.map(|kind| SchedulerAbout {
            description: kind.describe().to_owned(),
            name: kind,
        });
        let tunnels = status.tunnels.iter().map(|tunnel| TunnelSchedulers {
            peer: tunnel.peer.clone(),
            reason: tunnel.reason.clone(),
            receive: tunnel.scheduler_receive,
            send: tunnel.scheduler_send,
        });
        Self {
            available: available.into(),
            tunnels: tunnels.collect(),
        }
    }
}

impl Paths {
    /// The paths in `status`.
    #[must_use]
    pub fn of(status: crate::Status) -> Self {
        let tunnels = status.tunnels.into_iter().map(|tunnel| TunnelPaths {
            paths: tunnel.paths,
            peer: tunnel.peer,
        });
        Self {
            tunnels: tunnels.collect(),
        }
    }
}
