//! The requests that a gateway takes: what the server serves, and what `ropewalk schema openapi` lists.

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Whether the engine answers.
    Health,
    /// Prometheus text.
    Metrics,
    /// The whole state.
    Status,
    /// The schedulers there are, and those in use.
    Schedulers,
    /// Another scheduler.
    SetScheduler,
    /// The paths of every tunnel.
    Paths,
    /// The use or the marks of a path.
    SetPath,
    /// Points of the last minutes, hour or day.
    History,
    /// What happened lately.
    Happened,
    /// A hub's list of sites anew.
    ReloadSites,
    /// What SIGHUP reads.
    Reload,
    /// A change of the key.
    ChangeKey,
}

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Asks.
    Get,
    /// Changes.
    Post,
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// JSON of the type with this name.
    Json(&'static str),
    /// A list of it.
    List(&'static str),
    /// Text.
    Text,
}

impl Route {
    /// All requests.
    pub const ALL: [Self; 12] = [
        Self::Health,
        Self::Metrics,
        Self::Status,
        Self::Schedulers,
        Self::SetScheduler,
        Self::Paths,
        Self::SetPath,
        Self::History,
        Self::Happened,
        Self::ReloadSites,
        Self::Reload,
        Self::ChangeKey,
    ];

    /// Where the state of a gateway is without what a list of sites does not show.
    pub const STATUS_IN_SHORT: &str = "/v1/status?brief=true";

    /// The path of its address.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Health => "/healthz",
            Self::Metrics => "/metrics",
            Self::Status => "/v1/status",
            Self::Schedulers | Self::SetScheduler => "/v1/scheduler",
            Self::Paths | Self::SetPath => "/v1/paths",
            Self::History => "/v1/history",
            Self::Happened => "/v1/happened",
            Self::ReloadSites => "/v1/sites/reload",
            Self::Reload => "/v1/reload",
            Self::ChangeKey => "/v1/key",
        }
    }

    /// How it is made.
    #[must_use]
    pub const fn method(self) -> Method {
        match self {
            Self::Health
            | Self::Metrics
            | Self::Status
            | Self::Schedulers
            | Self::Paths
            | Self::History
            | Self::Happened => Method::Get,
            Self::SetScheduler
            | Self::SetPath
            | Self::ReloadSites
            | Self::Reload
            | Self::ChangeKey => Method::Post,
        }
    }

    /// What it does, in one line.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Health => "Tells that the gateway works",
            Self::Metrics => "Metrics as Prometheus text",
            Self::Status => "The whole state, or of a hub the sites in short",
            Self::Schedulers => "The schedulers there are, and those in use",
            Self::SetScheduler => "Chooses another scheduler until the next start",
            Self::Paths => "The paths of every tunnel",
            Self::SetPath => {
                "Takes an uplink into use or out of use, announces its end, or marks it; until the next start"
            }
            Self::History => "Points of the last 5 minutes, hour or day",
            Self::Happened => "What happened lately, in words, oldest first",
            Self::ReloadSites => "A hub reads its list of sites again",
            Self::Reload => "Reads again what SIGHUP reads",
            Self::ChangeKey => "Makes and announces the gateway's next key, or has a hub use it",
        }
    }

    /// Name of the type of its body, if it has one.
    #[must_use]
    pub const fn body(self) -> Option<&'static str> {
        match self {
            Self::SetScheduler => Some("SchedulerRequest"),
            Self::SetPath => Some("PathRequest"),
            Self::ChangeKey => Some("KeyRequest"),
            Self::Health
            | Self::Metrics
            | Self::Status
            | Self::Schedulers
            | Self::Paths
            | Self::History
            | Self::Happened
            | Self::ReloadSites
            | Self::Reload => None,
        }
    }

    /// What is answered with status 200.
    #[must_use]
    pub const fn answer(self) -> Answer {
        match self {
            Self::Health | Self::SetPath => Answer::Json("Done"),
            Self::Metrics => Answer::Text,
            Self::Status => Answer::Json("Status"),
            Self::Schedulers => Answer::Json("Schedulers"),
            Self::SetScheduler => Answer::Json("Changed"),
            Self::Paths => Answer::Json("Paths"),
            Self::History => Answer::Json("History"),
            Self::Happened => Answer::List("Happened"),
            Self::ReloadSites | Self::Reload => Answer::Json("Reloaded"),
            Self::ChangeKey => Answer::Json("KeyChange"),
        }
    }
}
