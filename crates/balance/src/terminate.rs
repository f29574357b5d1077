//! Ends what hangs on a dead uplink, so that programs notice at once and try again elsewhere.
//!
//! A TCP connection cannot move: its far end knows it by the address of the dead uplink. A socket
//! of this machine is ended by the kernel. A client behind this machine may only be waiting for
//! data, so that the firewall has nothing to refuse. It gets a segment that it must answer, and the
//! answer is refused with a reset that it believes. All flows but open TCP connections are
//! forgotten: their next packets choose a new uplink. QUIC survives that (RFC 9000 §9), and so do
//! unanswered handshakes.
//!
//! Invariant: only connections with the mark of the dead uplink and its addresses in the dead family
//! are touched.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ropewalk_io::conntrack::{self, Connection};
use ropewalk_io::{challenge, sock_diag};

use super::marks::{self, BALANCED, KEY_MASK, OWN, TUNNEL_AUTO};
use super::members::Member;

/// Most connections ended at a time; others end by the refusal of what they send. More: more of
/// those that only wait for data end at once, more work and memory.
const CONNECTIONS_MAX: usize = 50_000;

/// A way out that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadWay {
    /// Number of the uplink.
    pub number: u8,
    /// Addresses that lead nowhere, of the family in which it is dead.
    pub addresses: Vec<IpAddr>,
    /// Whether only the addresses are gone: then the firewall refuses nothing, but what clients still
    /// send goes out with another address, and the far end refuses it.
    pub readdressed: bool,
}

impl DeadWay {
    /// Where one of its addresses stands: behind translation of what was opened from this side, or
    /// where those outside opened to.
    fn carries(&self, connection: &Connection) -> bool {
        addresses(connection)
            .iter()
            .any(|ip| self.addresses.contains(ip))
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terminated {
    /// Sockets of this machine that were ended.
    pub own: usize,
    /// Connections of clients that were made to speak.
    pub clients: usize,
    /// Flows that were forgotten.
    pub forgotten: usize,
}

/// Ends or forgets everything on `way`. To be repeated after a moment, for what was lost on the way
/// to clients, and to be followed by [`forget`].
///
/// # Errors
/// The table of connections cannot be read.
pub fn terminate(way: &DeadWay) -> io::Result<Terminated> {
    let mut done = Terminated::default();
    for connection in connections(way)? {
        if !connection.tcp_open {
            done.forgotten += usize::from(forget_one(&connection));
        } else if end_own(&connection) {
            done.own += 1;
        } else {
            // The far end is to see the other address in what it makes the client say.
            let ready = !way.readdressed || forget_one(&connection);
            done.clients += usize::from(ready && make_speak(&connection, &way.addresses));
        }
    }
    Ok(done)
}

/// Forgets everything that is left on `way`. What still comes of it counts as new, and the far end
/// refuses it.
///
/// # Errors
/// The table of connections cannot be read.
pub fn forget(way: &DeadWay) -> io::Result<usize> {
    let left = connections(way)?;
    Ok(left
        .iter()
        .filter(|connection| forget_one(connection))
        .count())
}

/// Forgets connections of an earlier run whose mark means another uplink now, which has other
/// addresses.
///
/// # Errors
/// The table of connections cannot be read.
pub fn forget_stale(members: &[Member]) -> io::Result<usize> {
    let mut stale = Vec::new();
    conntrack::for_each(BALANCED, BALANCED, |connection| {
        let number = marks::number(connection.mark);
        let member = members.iter().find(|m| Some(m.number) == number);
        let held = |m: &Member| addresses(&connection).iter().any(|ip| m.held.contains(ip));
        if !member.is_some_and(held) && stale.len() < CONNECTIONS_MAX {
            stale.push(connection);
        }
    })?;
    Ok(stale
        .iter()
        .filter(|connection| forget_one(connection))
        .count())
}

/// Forgets the flows with two ways that are in the tunnel of a site. Open TCP connections stay:
/// they could not move, and they live on when the hub is back.
///
/// # Errors
/// The table of connections cannot be read.
pub fn leave_tunnel() -> io::Result<usize> {
    let mut found = Vec::new();
    conntrack::for_each(TUNNEL_AUTO, KEY_MASK, |connection| {
        if !connection.tcp_open && found.len() < CONNECTIONS_MAX {
            found.push(connection);
        }
    })?;
    let forgotten = found.iter().filter(|connection| forget_one(connection));
    Ok(forgotten.count())
}

fn connections(way: &DeadWay) -> io::Result<Vec<Connection>> {
    let mut found = Vec::new();
    conntrack::for_each(marks::key(way.number), KEY_MASK, |connection| {
        // One that came up at another address of the uplink since lives.
        if way.carries(&connection) && found.len() < CONNECTIONS_MAX {
            found.push(connection);
        }
    })?;
    Ok(found)
}

fn addresses(connection: &Connection) -> [IpAddr; 2] {
    [
        connection.reply_destination.ip(),
        connection.destination.ip(),
    ]
}

fn forget_one(connection: &Connection) -> bool {
    let result = conntrack::delete(connection);
    if let Err(error) = &result {
        tracing::debug!(%error, "a connection could not be forgotten");
    }
    result.is_ok()
}

/// Ends the socket of this machine that the connection belongs to, opened from here or to here.
fn end_own(connection: &Connection) -> bool {
    let here = connection.reply_source;
    let ends = [
        (connection.source, connection.destination),
        (here, connection.source),
    ];
    ends.into_iter().any(|(local, remote)| {
        sock_diag::destroy_tcp(local, remote).unwrap_or_else(|error| {
            tracing::debug!(%error, "a socket could not be ended");
            false
        })
    })
}

fn make_speak(connection: &Connection, translated: &[IpAddr]) -> bool {
    let (client, server) = ends(connection, translated);
    let result = challenge::tcp(server, client, OWN);
    if let Err(error) = &result {
        tracing::debug!(%error, %client, "a client could not be told");
    }
    result.is_ok()
}

/// The client behind this machine and the far end, as the client knows it.
fn ends(connection: &Connection, translated: &[IpAddr]) -> (SocketAddr, SocketAddr) {
    if translated.contains(&connection.reply_destination.ip()) {
        (connection.source, connection.destination)
    } else {
        // Opened from outside to something behind this machine.
        (connection.reply_source, connection.source)
    }
}
