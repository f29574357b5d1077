//! What ends a join, and what does not.

use std::net::SocketAddr;

use ropewalk_transport::{Identity, Slice};
use ropewalk_types::Instant;

use super::{Joining, Outcome};
use crate::links::{LinkEvent, RefusedKey};
use crate::session::{Session, sealed::Role as _};
use crate::settings::{Environment, JoinSettings};

/// A machine with two ways to the hub over UDP, both of which it tries.
fn joining() -> Session<Joining> {
    let identity = |number| Identity::from_seed([number; 32]).unwrap();
    let hub = |ip: [u8; 4]| SocketAddr::from((ip, 4_443));
    let settings = JoinSettings {
        invitation: identity(1),
        hub_key: identity(2).public_key(),
        identity: Some(identity(3)),
        hub_addresses: vec![hub([192, 0, 2, 1]), hub([198, 51, 100, 1])],
        tcp_port: 443,
        devices: vec![None],
    };
    let environment = Environment {
        base: std::time::Instant::now(),
        segmentation: false,
        udp_payload_max: 1_200,
        session: 1,
        tunnels: 1,
        transport: None,
        slice: Slice::WHOLE,
    };
    let mut session = Session::joining(settings, &environment).unwrap();
    session.handle_timeout(Instant::ZERO);
    session
}

/// The connection of a way ends for this reason.
fn ends(session: &mut Session<Joining>, way: usize, reason: &str, refused: Option<RefusedKey>) {
    let (links, role) = session.parts_mut();
    let link = role.ways[way].link().expect("it is being tried");
    let reason = reason.to_owned();
    let event = LinkEvent::Closed {
        reason,
        refused,
        group: None,
    };
    role.on_link(Instant::ZERO, links, link, event);
}

#[test]
fn an_unknown_invitation_ends_the_join_only_when_all_ways_say_so() {
    let mut session = joining();
    ends(&mut session, 0, "key refused", Some(RefusedKey::Own));
    assert_eq!(
        session.role().outcome(),
        None,
        "the other way may be better"
    );
    assert!(session.role().may_be_unknown());
    ends(&mut session, 1, "key refused", Some(RefusedKey::Own));
    assert_eq!(session.role().outcome(), Some(&Outcome::Unknown));
}

#[test]
fn another_key_ends_the_join_at_once_only_when_all_ways_have_it() {
    let mut session = joining();
    let other = Some(RefusedKey::OfPeer);
    ends(&mut session, 0, "key refused", other);
    assert_eq!(
        session.role().outcome(),
        None,
        "the hub may be on the other way"
    );
    assert!(session.role().may_have_other_key());
    ends(&mut session, 1, "key refused", other);
    assert_eq!(session.role().outcome(), Some(&Outcome::OtherKey));
}

#[test]
fn words_of_whoever_ends_a_connection_mean_nothing() {
    let mut session = joining();
    let words = "closed by the peer: the peer does not accept this key (not enrolled, or removed)";
    for way in 0..2 {
        ends(&mut session, way, words, None);
    }
    assert_eq!(session.role().outcome(), None);
    assert!(!session.role().may_be_unknown());
}
