//! What a running gateway can be asked.

use std::time::Duration;

use ropewalk_types::SchedulerKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest time for which the end of a path can be announced, seconds.
pub const LEAVING_SECONDS_MAX: u32 = 3_600;

/// Which way packets go, seen from this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From this machine to its peer.
    Send,
    /// From the peer to this machine.
    Receive,
    /// Both ways.
    #[default]
    Both,
}

/// What is wanted of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// It may be used.
    Enabled,
    /// It is out of use.
    Disabled,
    /// It will end soon: it is used only while there is nothing else, until it has gone and come
    /// back, for this long at most.
    Leaving(Option<Duration>),
    /// It will not end after all, or is back.
    Returning,
    /// Signs say that it will end, and count for so long, or that it will not. What the user said holds beside.
    Foretold(Option<Duration>),
}

/// Body of `POST /v1/scheduler`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulerRequest {
    /// The new scheduler.
    #[schemars(schema_with = "crate::schema::scheduler")]
    pub kind: SchedulerKind,
    /// Direction to change.
    #[serde(default)]
    pub direction: Direction,
    /// Name of a site on a hub; `None` means every tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
}

/// Body of `POST /v1/paths`: `enabled`, or `leaving` with `seconds` if wanted, or marks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathRequest {
    /// Uplink name.
    pub uplink: String,
    /// Whether the path may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether the path will end soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<bool>,
    /// How long an announced end is awaited at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// Whether it is used only while no other works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<bool>,
    /// Whether it costs money by the byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metered: Option<bool>,
}

/// Marks of an uplink that somebody set by hand; what is `None` is as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Used only while no other works.
    pub standby: Option<bool>,
    /// Costs money by the byte.
    pub metered: Option<bool>,
}

/// Body of `POST /v1/key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// Whether a hub is to have its next key now. Otherwise that key is made and announced.
    #[serde(default)]
    pub switch: bool,
    /// With `switch`: also though some sites have not said that they know the next key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl Direction {
    /// The name in requests and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Both => "both",
        }
    }
}

impl PathRequest {
    /// Asks for `wanted` of the path over `uplink`. Signs of an end become an announcement.
    #[must_use]
    pub fn new(uplink: String, wanted: PathUse) -> Self {
        let (enabled, leaving, longest) = match wanted {
            PathUse::Enabled => (Some(true), None, None),
            PathUse::Disabled => (Some(false), None, None),
            PathUse::Leaving(longest) => (None, Some(true), longest),
            PathUse::Foretold(Some(longest)) => (None, Some(true), Some(longest)),
            PathUse::Returning | PathUse::Foretold(None) => (None, Some(false), None),
        };
        let seconds = longest.map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
        Self {
            uplink,
            enabled,
            leaving,
            seconds,
            standby: None,
            metered: None,
        }
    }

    /// The marks that are asked for, if that is what is asked for.
    #[must_use]
    pub fn marks(&self) -> Option<Marks> {
        let marks = Marks {
            standby: self.standby,
            metered: self.metered,
        };
        let alone = self.enabled.is_none() && self.leaving.is_none() && self.seconds.is_none();
        (alone && marks != Marks::default()).then_some(marks)
    }

    /// What is asked for.
    ///
    /// # Errors
    /// The request contradicts itself, asks for nothing, or its time is out of range.
    pub fn wanted(&self) -> Result<PathUse, &'static str> {
        let longest = self.seconds.map(|s| Duration::from_secs(s.into()));
        if self
            .seconds
            .is_some_and(|s| s == 0 || s > LEAVING_SECONDS_MAX)
        {
            return Err("\"seconds\" must be 1 to 3600");
        }
        if self.standby.is_some() || self.metered.is_some() {
            return Err("\"standby\" and \"metered\" go with nothing else");
        }
        match (self.enabled, self.leaving, longest) {
            (Some(true), None, None) => Ok(PathUse::Enabled),
            (Some(false), None, None) => Ok(PathUse::Disabled),
            (None, Some(true), longest) => Ok(PathUse::Leaving(longest)),
            (None, Some(false), None) => Ok(PathUse::Returning),
            (_, _, Some(_)) => Err("\"seconds\" goes with \"leaving\": true only"),
            (None, None, None) | (Some(_), Some(_), None) => {
                Err("say one of \"enabled\": true or false and \"leaving\": true or false")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_as_what_was_asked() {
        for wanted in [
            PathUse::Enabled,
            PathUse::Disabled,
            PathUse::Leaving(None),
            PathUse::Leaving(Some(Duration::from_secs(60))),
            PathUse::Returning,
        ] {
            let request = PathRequest::new("up0".to_owned(), wanted);
            let text = serde_json::to_string(&request).unwrap();
            let read: PathRequest = serde_json::from_str(&text).unwrap();
            assert_eq!(read.wanted(), Ok(wanted), "{text}");
        }
    }
}
