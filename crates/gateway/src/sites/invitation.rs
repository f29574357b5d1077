//! Invitations: who may become which site, until when, and who has.
//!
//! Invariants: an invitation is used once. The same key may come again, as its first answer may have
//! been lost. Only the hub's clock counts. The file holds the public half of the invitation's key,
//! from which nobody finds the secret.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use ropewalk_transport::PublicKey;
use serde::{Serialize, Serializer};

use super::{Site, Sites};

/// A second of the calendar, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(SystemTime);

impl Time {
    /// Now, by the clock of this machine.
    #[must_use]
    pub fn now() -> Self {
        Self(SystemTime::now())
    }

    /// So many seconds after the beginning of 1970; the last second of the calendar if that is beyond it.
    #[must_use]
    pub fn from_unix(seconds: u64) -> Self {
        // Year 9999, the last that is written with four digits.
        let seconds = seconds.min(253_402_300_799);
        Self(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// Seconds since the beginning of 1970.
    #[must_use]
    pub fn unix(self) -> u64 {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    }

    /// So much later; `None` beyond what the calendar holds.
    #[must_use]
    pub fn after(self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = humantime::format_rfc3339_seconds(self.0).to_string();
        write!(f, "{} UTC", text.trim_end_matches('Z').replace('T', " "))
    }
}

impl FromStr for Time {
    type Err = humantime::TimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_rfc3339(text).map(Self)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_seconds(self.0))
    }
}

/// An invitation as the file has it, in the entry of its site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Invitation {
    /// Public half of the key that follows from the secret.
    #[serde(rename = "invitation")]
    pub key: PublicKey,
    /// End of the invitation.
    #[serde(rename = "invitation_ends")]
    pub ends: Time,
    /// Who has used it.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub joined: Option<Joined>,
}

/// The use of an invitation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Joined {
    /// When.
    #[serde(rename = "joined")]
    pub at: Time,
    /// By this key.
    #[serde(rename = "joined_key")]
    pub key: PublicKey,
}

impl Invitation {
    /// An open one.
    #[must_use]
    pub const fn new(key: PublicKey, ends: Time) -> Self {
        Self {
            key,
            ends,
            joined: None,
        }
    }

    /// Its state in words.
    #[must_use]
    pub fn state(&self, now: Time) -> String {
        match &self.joined {
            Some(Joined { at, key }) => format!("used {at} by {}", fingerprint(key)),
            None if now >= self.ends => format!("ended {}", self.ends),
            None => format!("open until {}", self.ends),
        }
    }
}

/// The first characters of a key: enough to tell keys of sites apart.
#[must_use]
pub fn fingerprint(key: &PublicKey) -> String {
    key.to_string().chars().take(8).collect()
}

/// How a site proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// By the key that it has made.
    Key(PublicKey),
    /// By an invitation, and then by the key that it says.
    Invitation(Invitation),
}

impl From<PublicKey> for Credential {
    fn from(key: PublicKey) -> Self {
        Self::Key(key)
    }
}

/// Why an enrolment is refused, in words for the site.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Revoked a moment ago.
    #[error("the hub has revoked this invitation: ask for a new one")]
    Revoked,
    /// The site is disabled.
    #[error("site {0} is disabled at the hub: ask its operator")]
    Disabled(String),
    /// By another key.
    #[error("this invitation was used on {at} by key {}: ask for a new one (`ropewalk invite NAME --replace`), and join \
         with --force if this machine was that site", fingerprint(.key))]
    Used {
        /// When.
        at: Time,
        /// By which.
        key: PublicKey,
    },
    /// Too late.
    #[error("this invitation ended on {0}: ask for a new one")]
    Ended(Time),
    /// The key is that of another site, of an invitation, or the hub's. Whose is for the log of the hub: whoever
    /// asks could try keys out.
    #[error("the hub does not take this key: every site needs a new one of its own")]
    KeyTaken(String),
    /// The hub has trouble of its own. The words do not say which: they are for its operator. The invitation stays open.
    #[error(
        "the hub cannot let this site in now: its operator sees why in the log of the hub; run the same command on this \
         machine again then"
    )]
    NotNow,
}

impl Refusal {
    /// Whose the key is already, if that is why.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        match self {
            Self::KeyTaken(owner) => Some(owner),
            Self::Revoked
            | Self::Disabled(_)
            | Self::Used { .. }
            | Self::Ended(_)
            | Self::NotNow => None,
        }
    }
}

/// What an enrolment has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enrolled {
    /// The invited site has the key now.
    Joined,
    /// The site will have the key.
    Next,
    /// Nothing: the same question came before.
    Again,
}

impl Sites {
    /// The keys that sites will have, each with the key that the site has now.
    pub fn next_keys(&self) -> impl Iterator<Item = (PublicKey, PublicKey)> {
        let pair = |site: &Site| site.next_key.zip(site.key);
        self.sites.iter().filter_map(pair)
    }

    /// Ends the present key of the site that will have this one; `None` if no site will.
    pub fn confirm(&mut self, next: &PublicKey) -> Option<&Site> {
        let mut sites = self.sites.iter_mut();
        let site = sites.find(|site| site.next_key == Some(*next))?;
        site.key = site.next_key.take();
        Some(site)
    }

    /// Gives the invited site this key, or notes that a site that has a key will have this one. The entry of the
    /// site, and what is new. Whoever has `proved` to hold the key gets it, though another site has asked for it as its
    /// next one: that site has not connected with it, and may have read it somewhere.
    ///
    /// # Errors
    /// Why not.
    pub fn enrol(
        &mut self,
        hub: &PublicKey,
        by: &PublicKey,
        key: PublicKey,
        proved: bool,
        now: Time,
    ) -> Result<(&Site, Enrolled), Refusal> {
        let has_key = |site: &Site| [site.key, site.next_key].contains(&Some(*by));
        let of_invitation =
            |site: &Site| has_key(site) || site.invitation.as_ref().map(|own| own.key) == Some(*by);
        let index = self.sites.iter().position(of_invitation);
        let index = index.ok_or(Refusal::Revoked)?;
        let others = self.sites.iter().filter(|site| !of_invitation(site));
        let owner = others
            .into_iter()
            .find(|site| site.key == Some(key) || (site.next_key == Some(key) && !proved));
        let owner = owner.map(|site| format!("site {}", site.name));
        let owner = owner.or_else(|| (key == *hub).then(|| "the hub".to_owned()));
        // Whoever has a token has the key of its invitation.
        let of_token = self.invitations().any(|other| other == key);
        let owner = owner.or_else(|| of_token.then(|| "an invitation".to_owned()));
        let site = &mut self.sites[index];
        if !site.enabled {
            return Err(Refusal::Disabled(site.name.clone()));
        }
        if has_key(site) {
            if [site.key, site.next_key].contains(&Some(key)) {
                return Ok((&self.sites[index], Enrolled::Again));
            }
            if let Some(owner) = owner {
                return Err(Refusal::KeyTaken(owner));
            }
            self.take_next_key(key);
            self.sites[index].next_key = Some(key);
            return Ok((&self.sites[index], Enrolled::Next));
        }
        let Some(own) = &mut site.invitation else {
            return Err(Refusal::Revoked);
        };
        if let Some(Joined { at, key: by }) = own.joined {
            if by == key && site.key == Some(key) {
                return Ok((&self.sites[index], Enrolled::Again));
            }
            return Err(Refusal::Used { at, key: by });
        }
        if now >= own.ends {
            return Err(Refusal::Ended(own.ends));
        }
        if let Some(owner) = owner {
            return Err(Refusal::KeyTaken(owner));
        }
        own.joined = Some(Joined { at: now, key });
        site.key = Some(key);
        self.take_next_key(key);
        Ok((&self.sites[index], Enrolled::Joined))
    }

    /// Ends the invitations that nobody has used; the names of their sites.
    pub fn end_invitations(&mut self, now: Time) -> Vec<String> {
        let mut ended = Vec::new();
        for site in &mut self.sites {
            let open = |own: &&mut Invitation| own.joined.is_none() && now < own.ends;
            if let Some(own) = site.invitation.as_mut().filter(open) {
                own.ends = now;
                ended.push(site.name.clone());
            }
        }
        ended
    }

    /// Nobody is to have this key next.
    fn take_next_key(&mut self, key: PublicKey) {
        for site in &mut self.sites {
            site.next_key = site.next_key.filter(|next| *next != key);
        }
    }

    /// The keys of all invitations: open, used and ended.
    pub fn invitations(&self) -> impl Iterator<Item = PublicKey> {
        let invitations = self
            .sites
            .iter()
            .filter_map(|site| site.invitation.as_ref());
        invitations.map(|invitation| invitation.key)
    }
}
