//! Messages between gateways: joining a connection to a tunnel, and what changes while it lives.
//!
//! They may be lost, repeated or overtaken; each is idempotent and its sender repeats it until
//! answered.
//!
//! Invariant: what stands behind the known fields of a message is ignored. So a later version may
//! append fields, and every version reads every `Hello` and `Welcome`.

use crate::{Reader, Versions, WireError};
use ropewalk_types::{PATHS_MAX, PortBlock};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest name of a path, in bytes.
pub const NAME_MAX: usize = 64;
/// Longest name of a release, in bytes.
pub const RELEASE_MAX: usize = 32;
/// Longest reason of a refused enrolment, in bytes.
pub const REASON_MAX: usize = 200;
/// Most addresses in a [`Welcome`].
pub const ADDRESSES_MAX: usize = 8;

/// Site to hub, first on every connection: what this connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the site speaks.
    pub versions: Versions,
    /// Random per start of the site: a new one resets the tunnel at the hub.
    pub session: u64,
    /// Path identifier, chosen by the site.
    pub path: u8,
    /// Counts the connections of this path, so that a late one never replaces a newer one.
    pub generation: u32,
    /// Standby mark.
    pub standby: bool,
    /// Metered mark.
    pub metered: bool,
    /// Number of the bottleneck that the path shares with others, 1 to 15.
    pub bottleneck: Option<u8>,
    /// Scheduler the hub shall use towards the site; `0xff` leaves it to the hub.
    pub scheduler: u8,
    /// Weight under weighted round robin; 0 follows the measured rate.
    pub weight: u16,
    /// Uplink name, for people.
    pub name: String,
    /// That the hub at the other end serves the site, from a site that knows several hubs.
    pub claim: Option<Claim>,
}

/// A site's word on which hub serves it. Of two, the one with the higher epoch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Rises with every move of the site.
    pub epoch: u64,
    /// Ed25519 public key of the hub that serves the site.
    pub hub: [u8; 32],
    /// The site's Ed25519 signature over [`Claim::signed`].
    pub signature: [u8; 64],
}

/// Hub to site, the answer to every [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// What the hub speaks.
    pub versions: Versions,
    /// The session answered.
    pub session: u64,
    /// Random per start of the hub.
    pub hub_session: u64,
    /// The path answered.
    pub path: u8,
    /// The generation answered.
    pub generation: u32,
    /// Scheduler in use from hub to site.
    pub scheduler: u8,
    /// Inner addresses of the site with prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Inner addresses of the hub.
    pub hub_addresses: Vec<IpAddr>,
    /// Ports of a shared IPv4 address from which the site may send. Hubs before version 5 name none.
    pub block: Option<PortBlock>,
}

/// How a path fares for who sends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSends {
    /// What the path carries when it is full, kbit/s; 0 if it was not since the last message.
    pub full_kbit: u32,
    /// Largest UDP payload, bytes; 0 over TCP.
    pub mtu: u16,
    /// Share of datagrams lost lately, in 1/65,535.
    pub lost: u16,
}

/// A message between gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Joins a connection to a tunnel.
    Hello(Hello),
    /// Answers it.
    Welcome(Welcome),
    /// The path is gone at the sender: use it no more.
    PathGone {
        /// The path.
        path: u8,
        /// The newest connection of it that is gone.
        generation: u32,
    },
    /// Asks the peer to use this scheduler when sending; answered by itself.
    Scheduler {
        /// Its number.
        kind: u8,
    },
    /// The peer confirms the scheduler it uses when sending.
    SchedulerIs {
        /// Its number.
        kind: u8,
    },
    /// The sender stops for good.
    Goodbye,
    /// The release that the sender runs, for people: the site's after each [`Welcome`] until the hub has
    /// answered by its own.
    Release {
        /// Such as `0.1.0`; at most 32 bytes.
        name: String,
    },
    /// Site to hub on a connection with the key of an invitation: the invited site has this key from
    /// now on. On a connection of a site: the site will have this key.
    Enrol {
        /// Ed25519 public key of the site.
        key: [u8; 32],
        /// That the site holds this key, for the key of the connection. Older sites send none.
        proof: Option<[u8; 64]>,
    },
    /// Hub to site, the answer to every [`Control::Enrol`].
    Enrolled {
        /// Why not, for people, at most [`REASON_MAX`] bytes; empty when the hub has recorded the key.
        refused: String,
    },
    /// Hub to site: the hub will have this key, and the site is to accept it beside the present one. The site
    /// answers by the same message once it has written the key down.
    HubKey {
        /// Ed25519 public key of the hub.
        key: [u8; 32],
    },
    /// Site to hub on a connection that waits: which hub serves the site. The hub answers with the same message
    /// and the newest claim that it knows, and with that one to a [`Hello`] whose claim is older.
    Claim {
        /// The claim.
        claim: Claim,
        /// From a hub: sites shall leave it. Earlier versions do not say that.
        drained: bool,
    },
    /// For people: how the sender fares on the path of this connection. Sent now and then while the path carries
    /// traffic. Programs before 2026-11-29 neither send nor know it.
    PathSends(PathSends),
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const PATH_GONE: u8 = 3;
const SCHEDULER: u8 = 4;
const SCHEDULER_IS: u8 = 5;
const GOODBYE: u8 = 6;
const RELEASE: u8 = 7;
const ENROL: u8 = 8;
const ENROLLED: u8 = 9;
const HUB_KEY: u8 = 10;
const CLAIM: u8 = 11;
const PATH_SENDS: u8 = 12;

/// Tells claims from other signatures of a site's key: those of TLS begin with spaces (RFC 8446 §4.4.3).
const CLAIMED: &[u8] = b"ropewalk claim of a serving hub";

/// A mark behind a claim, which is absent without marks.
const DRAINED: u8 = 1;

const STANDBY: u8 = 1;
const METERED: u8 = 2;
/// Where the number of the bottleneck begins, 0 for none, and its bits.
const BOTTLENECK: (u8, u8) = (2, 0x0f);

impl Control {
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => hello.emit(out),
            Self::Welcome(welcome) => welcome.emit(out),
            Self::PathGone { path, generation } => {
                out.extend_from_slice(&[PATH_GONE, *path]);
                out.extend_from_slice(&generation.to_be_bytes());
            }
            Self::Scheduler { kind } => out.extend_from_slice(&[SCHEDULER, *kind]),
            Self::SchedulerIs { kind } => out.extend_from_slice(&[SCHEDULER_IS, *kind]),
            Self::Goodbye => out.push(GOODBYE),
            Self::Release { name } => {
                out.push(RELEASE);
                emit_text(name, RELEASE_MAX, out);
            }
            Self::Enrol { key, proof } => {
                out.push(ENROL);
                out.extend_from_slice(key);
                out.extend_from_slice(proof.as_ref().map_or(&[], |proof| proof));
            }
            Self::Enrolled { refused } => {
                out.push(ENROLLED);
                emit_text(refused, REASON_MAX, out);
            }
            Self::HubKey { key } => {
                out.push(HUB_KEY);
                out.extend_from_slice(key);
            }
            Self::PathSends(sends) => sends.emit(out),
            Self::Claim { claim, drained } => {
                out.push(CLAIM);
                claim.emit(out);
                if *drained {
                    out.push(DRAINED);
                }
            }
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader(bytes);
        Ok(match r.u8()? {
            HELLO => Self::Hello(Hello::parse(&mut r)?),
            WELCOME => Self::Welcome(Welcome::parse(&mut r)?),
            PATH_GONE => Self::PathGone {
                path: path(&mut r)?,
                generation: r.u32()?,
            },
            SCHEDULER => Self::Scheduler { kind: r.u8()? },
            SCHEDULER_IS => Self::SchedulerIs { kind: r.u8()? },
            GOODBYE => Self::Goodbye,
            RELEASE => Self::Release {
                name: parse_text(&mut r, RELEASE_MAX)?,
            },
            ENROL => Self::Enrol {
                key: r.array()?,
                proof: r.array().ok(),
            },
            ENROLLED => Self::Enrolled {
                refused: parse_text(&mut r, REASON_MAX)?,
            },
            HUB_KEY => Self::HubKey { key: r.array()? },
            CLAIM => Self::Claim {
                claim: Claim::parse(&mut r)?,
                drained: r.u8().is_ok_and(|marks| marks & DRAINED > 0),
            },
            PATH_SENDS => Self::PathSends(PathSends::parse(&mut r)?),
            _ => return Err(WireError::UnknownKind),
        })
    }
}

impl PathSends {
    fn emit(&self, out: &mut Vec<u8>) {
        out.push(PATH_SENDS);
        out.extend_from_slice(&self.full_kbit.to_be_bytes());
        out.extend_from_slice(&self.mtu.to_be_bytes());
        out.extend_from_slice(&self.lost.to_be_bytes());
    }

    fn parse(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            full_kbit: r.u32()?,
            mtu: r.u16()?,
            lost: r.u16()?,
        })
    }
}

impl Claim {
    /// What the site `site` signs when it says that `hub` serves it in this epoch: a fixed text, the two keys,
    /// and the epoch between them.
    #[must_use]
    pub fn signed(site: &[u8; 32], epoch: u64, hub: &[u8; 32]) -> Vec<u8> {
        [CLAIMED, site, &epoch.to_be_bytes(), hub].concat()
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.hub);
        out.extend_from_slice(&self.signature);
    }

    fn parse(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            epoch: u64::from_be_bytes(r.array()?),
            hub: r.array()?,
            signature: r.array()?,
        })
    }
}

impl Hello {
    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[HELLO, self.versions.oldest()]);
        out.extend_from_slice(&self.session.to_be_bytes());
        out.push(self.path);
        out.extend_from_slice(&self.generation.to_be_bytes());
        let (shift, bits) = BOTTLENECK;
        let bottleneck = self.bottleneck.unwrap_or(0) & bits;
        let marks = (u8::from(self.standby) * STANDBY) | (u8::from(self.metered) * METERED);
        out.push(marks | bottleneck << shift);
        out.push(self.scheduler);
        out.extend_from_slice(&self.weight.to_be_bytes());
        emit_text(&self.name, NAME_MAX, out);
        emit_newest(self.versions, out);
        // Whoever states no range has nothing behind the name.
        if let Some(claim) = self.claim.as_ref().filter(|_| self.versions.has_ranges()) {
            claim.emit(out);
        }
    }

    fn parse(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let oldest = r.u8()?;
        let session = u64::from_be_bytes(r.array()?);
        let path = path(r)?;
        let generation = r.u32()?;
        let marks = r.u8()?;
        let (scheduler, weight) = (r.u8()?, r.u16()?);
        let name = parse_text(r, NAME_MAX)?;
        let versions = parse_newest(r, oldest)?;
        Ok(Self {
            versions,
            claim: Claim::parse(r).ok().filter(|_| versions.has_ranges()),
            session,
            path,
            generation,
            standby: marks & STANDBY != 0,
            metered: marks & METERED != 0,
            bottleneck: Some(marks >> BOTTLENECK.0 & BOTTLENECK.1).filter(|number| *number > 0),
            scheduler,
            weight,
            name,
        })
    }
}

impl Welcome {
    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[WELCOME, self.versions.oldest()]);
        out.extend_from_slice(&self.session.to_be_bytes());
        out.extend_from_slice(&self.hub_session.to_be_bytes());
        out.push(self.path);
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.push(self.scheduler);
        emit_addresses(self.addresses.iter().copied(), out);
        emit_addresses(self.hub_addresses.iter().map(|&ip| (ip, 0)), out);
        emit_newest(self.versions, out);
        if self.versions.has_ranges() {
            emit_block(self.block, out);
        }
    }

    fn parse(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let oldest = r.u8()?;
        let session = u64::from_be_bytes(r.array()?);
        let hub_session = u64::from_be_bytes(r.array()?);
        let path = path(r)?;
        let (generation, scheduler) = (r.u32()?, r.u8()?);
        let addresses = parse_addresses(r)?;
        let hub_addresses = parse_addresses(r)?;
        let versions = parse_newest(r, oldest)?;
        Ok(Self {
            versions,
            session,
            hub_session,
            path,
            generation,
            scheduler,
            addresses,
            hub_addresses: hub_addresses.into_iter().map(|(ip, _)| ip).collect(),
            block: parse_block(r).filter(|_| versions.has_ranges()),
        })
    }
}

/// The newest version, behind the fields that ends have that speak one version only.
fn emit_newest(versions: Versions, out: &mut Vec<u8>) {
    if versions.has_ranges() || versions.oldest() < versions.newest() {
        out.push(versions.newest());
    }
}

/// Nothing stands for no block. A field behind this one would need a block of zeros there.
fn emit_block(block: Option<PortBlock>, out: &mut Vec<u8>) {
    if let Some(block) = block {
        out.extend_from_slice(&block.address.octets());
        out.extend_from_slice(&block.first.to_be_bytes());
        out.extend_from_slice(&block.last.to_be_bytes());
    }
}

fn parse_block(r: &mut Reader<'_>) -> Option<PortBlock> {
    let address = r.array::<4>().ok()?;
    let [first, last] = [r.array().ok()?, r.array().ok()?].map(u16::from_be_bytes);
    PortBlock::new(address.into(), first, last)
}

fn parse_newest(r: &mut Reader<'_>, oldest: u8) -> Result<Versions, WireError> {
    let newest = r.u8().unwrap_or(oldest);
    Versions::new(oldest, newest).ok_or(WireError::Invalid)
}

/// A text and its length in one byte; what is beyond `longest` bytes is cut off.
fn emit_text(text: &str, longest: usize, out: &mut Vec<u8>) {
    let text = &text.as_bytes()[..text.floor_char_boundary(longest)];
    out.push(u8::try_from(text.len()).unwrap_or(0));
    out.extend_from_slice(text);
}

/// A text for people: at most `longest` bytes, without control characters.
fn parse_text(r: &mut Reader<'_>, longest: usize) -> Result<String, WireError> {
    let length = usize::from(r.u8()?);
    if length > longest {
        return Err(WireError::Invalid);
    }
    let text = core::str::from_utf8(r.bytes(length)?).map_err(|_| WireError::Invalid)?;
    if text.chars().any(char::is_control) {
        return Err(WireError::Invalid);
    }
    Ok(text.to_owned())
}

fn path(r: &mut Reader<'_>) -> Result<u8, WireError> {
    let path = r.u8()?;
    if usize::from(path) < PATHS_MAX {
        Ok(path)
    } else {
        Err(WireError::Invalid)
    }
}

fn emit_addresses(addresses: impl ExactSizeIterator<Item = (IpAddr, u8)>, out: &mut Vec<u8>) {
    let count = addresses.len().min(ADDRESSES_MAX);
    out.push(u8::try_from(count).unwrap_or(0));
    for (ip, prefix) in addresses.take(ADDRESSES_MAX) {
        match ip {
            IpAddr::V4(v4) => {
                out.extend_from_slice(&[4, prefix]);
                out.extend_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                out.extend_from_slice(&[6, prefix]);
                out.extend_from_slice(&v6.octets());
            }
        }
    }
}

fn parse_addresses(r: &mut Reader<'_>) -> Result<Vec<(IpAddr, u8)>, WireError> {
    let count = usize::from(r.u8()?);
    if count > ADDRESSES_MAX {
        return Err(WireError::Invalid);
    }
    let mut addresses = Vec::with_capacity(count);
    for _ in 0..count {
        let (family, prefix) = (r.u8()?, r.u8()?);
        let (ip, longest) = match family {
            4 => (IpAddr::V4(Ipv4Addr::from(r.array::<4>()?)), 32),
            6 => (IpAddr::V6(Ipv6Addr::from(r.array::<16>()?)), 128),
            _ => return Err(WireError::Invalid),
        };
        if prefix > longest {
            return Err(WireError::Invalid);
        }
        addresses.push((ip, prefix));
    }
    Ok(addresses)
}
