//! Enrols a machine at a hub over the network: drives a `Session<Joining>` until the hub answers.
//!
//! Invariant: the caller has the site's key on disk before. So an answer that is lost, or a program
//! that ends in between, only costs another run.

mod choice;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::slice;
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_driver::{Event, Owner, SocketOptions, Sockets};
use ropewalk_host::kill_switch::TUNNEL_MARK;
use ropewalk_io::netlink;
use ropewalk_session::{Environment, JoinSettings, Joining, Outcome, Session, Slice};
use ropewalk_transport::Identity;
use ropewalk_types::Instant;
use rustix::event::epoll;

use crate::engine::random_u64;
use crate::exit::NotRunning;
use crate::service::resolve::{name_servers, resolve_each, together};
use crate::token::{Place, Secret, Token};

/// How long the hub may take to answer. Longer: surer on bad links, later words where the hub is down.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for each of several hubs. Longer: surer on bad links, a hub that is gone keeps the site waiting for longer.
const PATIENCE_OF_EACH: Duration = Duration::from_secs(10);
/// How long a hub of a fleet may take to answer before the hubs are compared. Longer: surer on bad links, a hub that is
/// gone keeps the site waiting for longer.
const LOOK: Duration = Duration::from_secs(2);
/// Interfaces that are tried beside the routing table's choice. More: more ways, more attempts at once.
const DEVICES_MAX: usize = 4;
/// Send and receive buffer of each socket, bytes: a handshake needs little.
const BUFFER_BYTES: usize = 1 << 16;
/// Largest UDP payload: what every path takes, bytes (RFC 9000 §14).
const UDP_PAYLOAD: u16 = 1_200;
/// Events taken from the kernel at once.
const EVENTS: usize = 64;
/// The only session here.
const SESSION: Owner = Owner(0);

/// A hub of a token, and how soon it answered.
#[derive(Clone, Debug)]
pub struct Found {
    /// The hub.
    pub place: Place,
    /// Time until a connection was there. `None`: nobody has looked, or there was no answer.
    pub after: Option<Duration>,
}

/// The hubs of a token, best first, by how soon they answer whoever has this key. A single hub is not asked.
pub fn compare(token: &Token, key: &Identity) -> Vec<Found> {
    let places = token.places();
    let unseen = |place| Found { place, after: None };
    if places.len() == 1 {
        return places.into_iter().map(unseen).collect();
    }
    // All at once: a hub that is gone costs its time only once.
    let found: Vec<_> = std::thread::scope(|scope| {
        let look = |place: Place| (place.clone(), scope.spawn(move || look(place, key)));
        let looks: Vec<_> = places.into_iter().map(look).collect();
        looks
            .into_iter()
            .map(|(place, look)| look.join().unwrap_or_else(|_| unseen(place)))
            .collect()
    });
    let seen = |found: &Found| choice::Seen {
        after: found.after,
        region: found.place.region,
    };
    let order = choice::order(&found.iter().map(seen).collect::<Vec<_>>());
    order
        .into_iter()
        .map(|number| found[number].clone())
        .collect()
}

/// How soon a hub answers.
fn look(place: Place, key: &Identity) -> Found {
    let settings = addresses(&place, LOOK).map(|hub_addresses| JoinSettings {
        invitation: key.clone(),
        hub_key: place.key,
        identity: None,
        hub_addresses,
        tcp_port: place.tcp_port,
        devices: devices(),
    });
    let begin = std::time::Instant::now();
    let is_there = settings.and_then(|settings| ask(settings, LOOK)).is_ok();
    Found {
        place,
        after: is_there.then(|| begin.elapsed()),
    }
}

/// Says at the hub that the invited site has this key, or at one of the hubs of a fleet: the first one that lets it in.
/// The hubs of the token: the one that has let the site in first, then those that have not been asked, best first.
///
/// # Errors
/// A hub refuses, in its words, or none lets the site in in time.
pub fn enrol(token: &Token, secret: &Secret, identity: &Identity) -> anyhow::Result<Vec<Found>> {
    let invitation = secret.identity(token.inviting_key())?;
    let mut places = compare(token, &invitation);
    let patience = if places.len() > 1 {
        PATIENCE_OF_EACH
    } else {
        PATIENCE
    };
    let mut problems = Vec::new();
    for number in 0..places.len() {
        let place = &places[number].place;
        let settings = addresses(place, patience).map(|hub_addresses| JoinSettings {
            invitation: invitation.clone(),
            hub_key: place.key,
            identity: Some(identity.clone()),
            hub_addresses,
            tcp_port: place.tcp_port,
            devices: devices(),
        });
        let error = match settings.and_then(|settings| ask(settings, patience)) {
            Ok(()) => {
                places.rotate_left(number);
                return Ok(places);
            }
            Err(error) => error,
        };
        // What a hub says of the invitation is what every hub of the fleet would say.
        if places.len() == 1
            || error
                .downcast_ref::<Refused>()
                .is_some_and(|why| why.is_final)
        {
            return Err(error);
        }
        problems.push((places[number].place.endpoints[0].to_string(), error));
    }
    Err(of_fleet(&problems))
}

/// Why no hub of a fleet has let the site in.
fn of_fleet(problems: &[(String, anyhow::Error)]) -> anyhow::Error {
    let refused = problems.iter().all(|(_, error)| error.is::<Refused>());
    let words: BTreeSet<String> = problems
        .iter()
        .map(|(_, error)| format!("{error:#}"))
        .collect();
    let text = if let (true, 1, Some(word)) = (refused, words.len(), words.first()) {
        format!("every hub that the token names refuses this machine: {word}")
    } else {
        let each = problems
            .iter()
            .map(|(hub, error)| format!("{hub}: {error:#}"));
        format!(
            "no hub of the fleet has let this machine in; while the hubs miss their common state (etcd) nobody can join, so \
             try again later ({})",
            each.collect::<Vec<_>>().join("; ")
        )
    };
    if refused {
        Refused {
            text,
            is_final: true,
        }
        .into()
    } else {
        NotRunning(text).into()
    }
}

/// Asks one hub, for so long at most.
fn ask(settings: JoinSettings, patience: Duration) -> anyhow::Result<()> {
    let base = std::time::Instant::now();
    let mut session = Session::joining(
        settings,
        &Environment {
            base,
            segmentation: false,
            udp_payload_max: UDP_PAYLOAD,
            session: random_u64()?.max(1),
            tunnels: random_u64()?,
            transport: None,
            slice: Slice::WHOLE,
        },
    )?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut sockets = Sockets::new(
        epoll,
        SocketOptions {
            buffer_bytes: BUFFER_BYTES,
            devices: true,
            // The kill switch of a former site on this machine lets the exchange through.
            mark: rustix::process::geteuid().is_root().then_some(TUNNEL_MARK),
            slice: Slice::WHOLE,
        },
    );
    let outcome = drive(base, patience, &mut session, &mut sockets)?;
    let now = Instant::ZERO + base.elapsed();
    session.shutdown(now, &mut sockets.of(SESSION));
    match outcome {
        Some(Outcome::Enrolled | Outcome::Found) => Ok(()),
        Some(Outcome::Refused(reason)) => bail!(Refused {
            text: format!("the hub refuses: {reason}"),
            is_final: true,
        }),
        Some(Outcome::Unknown) => bail!(refused(
            "the hub does not know this invitation: it was revoked, or a later one has taken its \
             place; ask for a new one"
                .to_owned()
        )),
        // Who can end connections on one way could say so in the hub's place.
        None if session.role().may_be_unknown() => bail!(refused(format!(
            "somebody says that the hub does not know this invitation, and no way to the hub says \
             otherwise within {} s: it may be revoked; ask for a new one, or try again elsewhere",
            patience.as_secs()
        ))),
        Some(Outcome::OtherKey) => bail!(refused(OTHER_KEY.to_owned())),
        None if session.role().may_have_other_key() => bail!(refused(format!(
            "on some way {OTHER_KEY}; on no other way did the hub answer within {} s",
            patience.as_secs()
        ))),
        None => Err(NotRunning(no_answer(session.role().problems(), patience)).into()),
    }
}

/// What to do where somebody with another key answers at the hub's addresses.
const OTHER_KEY: &str = "the hub has another key than this token: ask for a new token";

/// Why no hub answered, from what went wrong last on each way; ways with the same problem stand together.
fn no_answer(problems: &BTreeMap<String, String>, patience: Duration) -> String {
    let mut ways: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (way, why) in problems {
        ways.entry(why).or_default().push(way);
    }
    let listed: Vec<_> = ways
        .iter()
        .map(|(why, ways)| format!("{}: {why}", ways.join(", ")))
        .collect();
    // Sockets of UDP do not say it: their datagrams are lost.
    let mut over_tcp = problems
        .iter()
        .filter(|(way, _)| way.contains("(TCP)"))
        .peekable();
    let is_routeless =
        |(_, why): (&String, &String)| why.to_lowercase().contains("network is unreachable");
    let remedy = if over_tcp.peek().is_some() && over_tcp.all(is_routeless) {
        "this machine has no route to the hub: connect it to a network with a default route (`ip route`)"
    } else {
        "check that the hub runs and that its UDP and TCP ports are open"
    };
    format!(
        "no answer from the hub within {} s ({}); {remedy}, then run the same command again",
        patience.as_secs(),
        listed.join("; ")
    )
}

/// The hub has refused: a repetition changes nothing until its operator does something.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    text: String,
    /// Whether another hub of the same fleet would say the same. One whose copy of the state is behind does not know an
    /// invitation yet.
    is_final: bool,
}

const fn refused(text: String) -> Refused {
    Refused {
        text,
        is_final: false,
    }
}

/// Takes turns until there is an outcome or no patience left.
fn drive(
    base: std::time::Instant,
    patience: Duration,
    session: &mut Session<Joining>,
    sockets: &mut Sockets,
) -> anyhow::Result<Option<Outcome>> {
    let end = Instant::ZERO + patience;
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        let now = Instant::ZERO + base.elapsed();
        sockets.of(SESSION).end_input(now, session);
        session.end_batch(now);
        sockets.of(SESSION).serve(now, session);
        session.pump(now, &mut sockets.of(SESSION));
        sockets.of(SESSION).serve(now, session);
        if let Some(outcome) = session.role().outcome() {
            return Ok(Some(outcome.clone()));
        }
        if now >= end {
            return Ok(None);
        }
        let wait = session.poll_timeout().unwrap_or(end).min(end).since(now);
        ropewalk_io::events::wait(sockets.epoll(), &mut events, Some(wait))
            .context("waiting for the hub failed")?;
        let now = Instant::ZERO + base.elapsed();
        for event in &events {
            let data = event.data;
            let ready = Event::decode(data.u64()).ready;
            sockets.of(SESSION).read(now, ready, session);
        }
    }
}

/// Where a hub is, as far as that is found within `patience`.
fn addresses(place: &Place, patience: Duration) -> anyhow::Result<Vec<SocketAddr>> {
    let servers = if rustix::process::geteuid().is_root() {
        name_servers()
    } else {
        Vec::new()
    };
    let endpoints = place.endpoints.iter();
    let look_ups = endpoints.cloned().map(|endpoint| {
        let servers = servers.clone();
        async move { resolve_each(slice::from_ref(&endpoint), &servers).await }
    });
    let (mut places, mut failures) = (Vec::new(), Vec::new());
    for (endpoint, found) in place.endpoints.iter().zip(within(patience, look_ups)?) {
        let late = || {
            let seconds = patience.as_secs();
            vec![Err(format!(
                "{}: no answer within {seconds} s",
                endpoint.host
            ))]
        };
        for found in found.unwrap_or_else(late) {
            match found {
                Ok(found) => places.push(found),
                Err(why) => failures.push(why),
            }
        }
    }
    let addresses = together(&places);
    if addresses.is_empty() {
        bail!(
            "the hub's address is not found ({}); check the network and run the same command again",
            failures.join("; ")
        );
    }
    Ok(addresses)
}

/// What look-ups of names give, side by side, for so long at most. Each name and each name server has a bound of its own,
/// and there may be many.
fn within<T: 'static>(
    patience: Duration,
    look_ups: impl Iterator<Item = impl Future<Output = T> + 'static>,
) -> anyhow::Result<Vec<Option<T>>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let found = tokio::task::LocalSet::new().block_on(&runtime, async {
        let end = tokio::time::Instant::now() + patience;
        let tasks: Vec<_> = look_ups.map(tokio::task::spawn_local).collect();
        let mut found = Vec::new();
        for task in tasks {
            let result = tokio::time::timeout_at(end, task).await;
            found.push(result.ok().and_then(Result::ok));
        }
        found
    });
    // The machine's resolver goes on on a thread, for which nobody waits.
    runtime.shutdown_background();
    Ok(found)
}

/// What the routing table says, and each interface with a default route where there are several.
fn devices() -> Vec<Option<String>> {
    let interfaces = netlink::snapshot().unwrap_or_default();
    let usable = interfaces
        .into_iter()
        .filter(|i| i.up && !i.loopback && (i.default_route_v4 || i.default_route_v6));
    let names: Vec<_> = usable.map(|i| Some(i.name)).take(DEVICES_MAX).collect();
    let several = names.into_iter();
    let several = if several.len() > 1 {
        several
    } else {
        Vec::new().into_iter()
    };
    std::iter::once(None).chain(several).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(problems: &[(&str, &str)]) -> String {
        let owned = problems
            .iter()
            .map(|(way, why)| ((*way).to_owned(), (*why).to_owned()));
        no_answer(&owned.collect(), PATIENCE)
    }

    #[test]
    fn look_ups_of_names_end_with_the_patience_for_their_hub_and_addresses_need_none() {
        let begun = std::time::Instant::now();
        // The machine's resolver waits on a thread for a name server that does not answer.
        let (end, silent) = std::sync::mpsc::channel::<()>();
        let look_up = |name: Option<std::sync::mpsc::Receiver<()>>| async move {
            let wait = |silent: std::sync::mpsc::Receiver<()>| {
                tokio::task::spawn_blocking(move || silent.recv().is_ok())
            };
            match name.map(wait) {
                Some(waits) => waits.await.is_ok(),
                None => true,
            }
        };
        let look_ups = [Some(silent), None].into_iter().map(look_up);
        let found = within(Duration::from_millis(50), look_ups).unwrap();
        assert_eq!(found, [None, Some(true)]);
        assert!(begun.elapsed() < Duration::from_secs(5));
        drop(end);
    }

    #[test]
    fn hubs_of_a_fleet_that_agree_are_quoted_once_and_etcd_is_named_only_where_they_do_not() {
        let refused = |text: &str| -> anyhow::Error {
            Refused {
                text: text.to_owned(),
                is_final: false,
            }
            .into()
        };
        let of = |errors: Vec<anyhow::Error>| {
            let hubs = ["a", "b", "c"].into_iter().map(str::to_owned);
            format!("{:#}", of_fleet(&hubs.zip(errors).collect::<Vec<_>>()))
        };
        let text = of(vec![
            refused("revoked"),
            refused("revoked"),
            refused("revoked"),
        ]);
        assert_eq!(
            text,
            "every hub that the token names refuses this machine: revoked"
        );
        let text = of(vec![
            refused("revoked"),
            refused("unknown"),
            refused("revoked"),
        ]);
        assert!(
            text.contains("etcd") && text.contains("b: unknown"),
            "{text}"
        );
        let silent = || anyhow::anyhow!("no answer");
        let text = of(vec![silent(), silent(), silent()]);
        assert!(
            text.contains("etcd") && text.contains("c: no answer"),
            "{text}"
        );
    }

    #[test]
    fn a_machine_without_a_route_is_told_so_and_no_problem_is_said_twice() {
        let lost = "Network is unreachable (os error 101)";
        let text = said(&[
            ("192.0.2.1:443 (TCP)", lost),
            ("192.0.2.1:4443 (UDP)", "no answer"),
            ("[2001:db8::1]:443 (TCP)", lost),
        ]);
        assert!(
            text.contains("this machine has no route to the hub"),
            "{text}"
        );
        assert_eq!(text.matches(lost).count(), 1, "{text}");
        let text = said(&[
            ("192.0.2.1:443 (TCP)", "no answer"),
            ("192.0.2.1:4443 (UDP)", "no answer"),
            ("[2001:db8::1]:443 (TCP)", lost),
        ]);
        assert!(text.contains("check that the hub runs"), "{text}");
        assert!(
            text.contains("192.0.2.1:443 (TCP), 192.0.2.1:4443 (UDP): no answer"),
            "{text}"
        );
    }
}
