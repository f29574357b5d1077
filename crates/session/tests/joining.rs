//! A machine that becomes a site, and the hub that lets it, in virtual time.

use ropewalk_session::{Command, Event, Outcome};
use ropewalk_testkit::{Spec, World};
use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// Round trip of a link of the world.
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// The key that the machine has made.
fn identity() -> Identity {
    Identity::from_seed([7; 32]).expect("every seed is a key")
}

fn key() -> PublicKey {
    identity().public_key()
}

/// A world in which the only site is no site yet, and begins to join.
fn invited(udp_blocked: bool) -> World {
    begun(udp_blocked, Some(identity()))
}

/// The same, with this key or none.
fn begun(udp_blocked: bool, key: Option<Identity>) -> World {
    let mut world = World::new(&Spec::default());
    for uplink in 0..2 {
        world.block_udp(0, uplink, udp_blocked);
    }
    world.kill_site(0);
    world.only_invite(0);
    world.start_joining(0, key);
    world
}

fn asked(world: &World) -> bool {
    let events = &world.hub().events;
    events.iter().any(|(_, event)| {
        matches!(event, Event::Enrol { invitation, key: asked, proved: true }
            if *invitation == world.identity(0).public_key() && *asked == key())
    })
}

/// The hub answers; what the machine makes of it, and how long that takes.
fn answered(world: &mut World, refused: Option<&str>) -> (Outcome, Duration) {
    let answer = Command::Enrolled {
        invitation: world.identity(0).public_key(),
        key: key(),
        refused: refused.map(str::to_owned),
        owner: None,
    };
    let now = world.now();
    let told = world.hub_mut().session.handle_command(now, answer);
    assert_eq!(told, Ok(1), "one connection asks");
    world.touch_hub();
    let outcome = |world: &World| {
        let joining = world.joining(0)?;
        joining.session.role().outcome().cloned()
    };
    let took = world.run_until(SECOND, |w| outcome(w).is_some());
    (outcome(world).expect("it came to that"), took)
}

#[test]
fn a_machine_joins_over_quic_within_a_few_round_trips() {
    let mut world = invited(false);
    let took = world.run_until(SECOND, asked);
    assert!(took < ROUND_TRIP * 4, "the question took {took:?}");
    let (outcome, took) = answered(&mut world, None);
    assert_eq!(outcome, Outcome::Enrolled);
    assert!(took <= ROUND_TRIP, "the answer took {took:?}");
    let transports = world.joining(0).expect("it runs").tcp_connections();
    assert_eq!(transports, 0, "nothing over TCP");
}

#[test]
fn where_udp_is_blocked_a_machine_joins_over_tls() {
    let mut world = invited(true);
    let took = world.run_until(4 * SECOND, asked);
    let patience = 2 * SECOND;
    assert!(
        (patience..patience + ROUND_TRIP * 6).contains(&took),
        "the question took {took:?}"
    );
    let (outcome, took) = answered(&mut world, None);
    assert_eq!(outcome, Outcome::Enrolled);
    assert!(took <= ROUND_TRIP, "the answer took {took:?}");
}

#[test]
fn a_machine_without_a_key_finds_the_hub_and_asks_nothing() {
    for (udp_blocked, most) in [(false, ROUND_TRIP * 3), (true, 3 * SECOND)] {
        let mut world = begun(udp_blocked, None);
        let found = |world: &World| {
            let joining = world.joining(0);
            joining.is_some_and(|joining| joining.session.role().outcome() == Some(&Outcome::Found))
        };
        let took = world.run_until(4 * SECOND, found);
        assert!(took <= most, "it took {took:?}");
        world.run(SECOND);
        let asks = |(_, event): &(_, Event)| matches!(event, Event::Enrol { .. });
        assert!(!world.hub().events.iter().any(asks));
    }
}

#[test]
fn a_refusal_comes_over_tls_in_the_words_of_the_hub() {
    let mut world = invited(true);
    world.run_until(4 * SECOND, asked);
    let (outcome, _) = answered(&mut world, Some("too late"));
    assert_eq!(outcome, Outcome::Refused("too late".into()));
}
