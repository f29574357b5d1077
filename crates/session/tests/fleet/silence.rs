//! A hub falls silent: what a site tries there, and how often it asks and claims its spare.

use ropewalk_netem::Side;
use ropewalk_testkit::packet::{Body, Packet};

use super::*;

/// A packet that has left the site.
struct Left {
    at: Instant,
    uplink: usize,
    /// Number of the hub that it was for.
    to: usize,
    packet: Packet,
}

/// How many the address of a hub is beyond that of the home.
fn number_of(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(ip) => usize::from(ip.octets()[3] - 1),
        IpAddr::V6(_) => panic!("hubs have IPv4"),
    }
}

/// Whether a packet is as long as a claim, or a `Hello` with one: longer than what QUIC sends of its own accord, and
/// shorter than its probes of the path's size.
fn is_word(packet: &Packet) -> bool {
    (140..600).contains(&packet.ip_bytes())
}

/// Lets a call go on until a claim comes from the hub `from`, `longest` at most. What has left the site meanwhile, and
/// whether a claim has come.
fn watch(world: &mut World, longest: Duration, from: Option<usize>) -> (Vec<Left>, bool) {
    let (mut left, end) = (Vec::new(), world.now() + longest);
    for step in 0_u64.. {
        if world.now() >= end {
            break;
        }
        if step % 20 == 0 {
            world.send_up(0, 1_000_000 + step, 1);
            world.send_down(0, 1_000_000 + step, 1);
        }
        world.run(ms(1));
        let (at, mut answered) = (world.now(), false);
        for tap in world.take_taps() {
            match tap.side {
                Side::Up if tap.leaves => left.push(Left {
                    at,
                    uplink: tap.uplink,
                    to: number_of(tap.packet.to.ip()),
                    packet: tap.packet,
                }),
                Side::Down if !tap.leaves => {
                    let by = number_of(tap.packet.from.ip());
                    answered |= from == Some(by) && is_word(&tap.packet);
                }
                Side::Up | Side::Down => {}
            }
        }
        if answered {
            return (left, true);
        }
    }
    (left, false)
}

fn watch_for(world: &mut World, duration: Duration) -> Vec<Left> {
    watch(world, duration, None).0
}

/// When the site noticed last that its tunnel was down.
fn noticed(world: &World) -> Instant {
    let events = world.site(0).events.iter().rev();
    let mut down = events.filter(|(_, event)| matches!(event, Event::TunnelDown { .. }));
    down.next().expect("the tunnel was down").0
}

/// Since when the tunnel of the site has been down.
fn silent_since(world: &World) -> Option<Instant> {
    world.tunnels(0)[0].and_then(|tunnel| tunnel.down_since())
}

/// When each connection to a hub was begun over an uplink, with QUIC or TCP.
fn begun(left: &[Left], hub: usize, uplink: usize) -> Vec<Instant> {
    let mut known = BTreeSet::new();
    let begins = |left: &&Left| {
        let source = match &left.packet.body {
            // A packet with a long header of the type Initial (RFC 9000 §17.2.2).
            Body::Udp(_, data) if data[0] & 0xb0 == 0x80 => {
                let at = 6 + usize::from(data[5]);
                data[at + 1..=at + usize::from(data[at])].to_vec()
            }
            Body::TcpOpen => Vec::new(),
            Body::Udp(..)
            | Body::TcpData(..)
            | Body::TcpAck(_)
            | Body::TcpClose
            | Body::Plain(_) => {
                return false;
            }
        };
        known.insert((left.packet.from, source))
    };
    let to = left
        .iter()
        .filter(|left| (left.to, left.uplink) == (hub, uplink));
    to.filter(begins).map(|left| left.at).collect()
}

/// When the site has said something about its hubs over the first uplink.
fn said(left: &[Left], hub: usize) -> Vec<Instant> {
    let of_hub = |left: &&Left| (left.to, left.uplink) == (hub, 0) && is_word(&left.packet);
    left.iter().filter(of_hub).map(|left| left.at).collect()
}

fn gaps(times: &[Instant]) -> Vec<u64> {
    let gaps = times.windows(2).map(|pair| pair[1].since(pair[0]));
    gaps.map(|gap| gap.as_millis() as u64).collect()
}

/// A site with a spare in a call, whose hubs are both out of reach from now on.
fn both_silent(seed: u64, delay: Duration) -> World {
    let mut world = with_spare(seed, delay);
    call(&mut world, 0, SECOND);
    world.keep_taps();
    world.set_cut(SPARE, true);
    world.set_cut(HOME, true);
    world
}

/// How long the spare may keep a site from trying connections to the hub that is silent, with this round trip.
fn patience(rtt: Duration) -> Duration {
    ms(1_500) + ms(100) + rtt
}

/// What the site looks after each tenth of a second, and what a round trip is longer for its acknowledgements.
const SLACK: Duration = Duration::from_millis(140);

#[test]
fn no_connection_to_a_silent_hub_is_tried_while_the_spare_may_answer() {
    let mut world = both_silent(1, ms(10));
    let left = watch_for(&mut world, 3 * SECOND);
    let since = silent_since(&world).expect("it is down");
    for uplink in 0..2 {
        let first = begun(&left, HOME, uplink)[0].since(since);
        let due = patience(ms(20));
        assert!((due..due + SLACK).contains(&first), "{first:?}");
    }
    // A site without a spare, and one whose spare is not connected, try at once.
    for spare in [false, true] {
        let mut world = World::new(&Spec {
            spare,
            ..Spec::default()
        });
        if spare {
            world.kill_spare();
        }
        world.run(2 * SECOND);
        call(&mut world, 0, SECOND);
        world.keep_taps();
        world.set_cut(HOME, true);
        let left = watch_for(&mut world, 2 * SECOND);
        let since = silent_since(&world).expect("it is down");
        for uplink in 0..2 {
            let first = begun(&left, HOME, uplink)[0].since(since);
            assert!(first < ms(700), "{first:?}");
        }
    }
}

#[test]
fn a_path_whose_uplink_has_changed_does_not_wait_for_the_spare() {
    let mut world = both_silent(3, ms(10));
    watch_for(&mut world, ms(900));
    let since = silent_since(&world).expect("it is down");
    let changed = world.now();
    world.readdress(0, 1, [100, 1, 2, 3].into());
    let left = watch_for(&mut world, 2 * SECOND);
    let first = begun(&left, HOME, 1)[0].since(changed);
    assert!(first < SLACK, "{first:?} after the change");
    let first = begun(&left, HOME, 0)[0].since(since);
    assert!(first >= patience(ms(20)), "{first:?}");
}

#[test]
fn an_answer_of_a_spare_that_takes_nobody_holds_a_site_up_for_three_seconds_at_most() {
    // The spare is back in time for the question after 0.6 s, or after 1.4 s.
    for (back, delay, longest) in [
        (ms(500), ms(10), None),
        (ms(1_200), ms(100), Some(3 * SECOND)),
    ] {
        let mut world = both_silent(4, delay);
        while silent_since(&world).is_none() {
            watch_for(&mut world, ms(1));
        }
        let since = silent_since(&world).expect("it is down");
        let until_back = (since + back).since(world.now());
        let first = watch_for(&mut world, until_back);
        assert_eq!(begun(&first, HOME, 0), []);
        world.set_cut(SPARE, false);
        let (more, answered) = watch(&mut world, SECOND, Some(SPARE));
        assert!(answered, "the spare answers");
        assert_eq!(begun(&more, HOME, 0), []);
        let answered = world.now();
        // It hears nothing of the claim.
        world.set_apart(0, SPARE, true);
        let left = watch_for(&mut world, 3 * SECOND);
        assert_eq!(moves(&world), [""; 0]);
        assert!(!said(&left, SPARE).is_empty(), "the spare is claimed");
        let due = answered + patience(2 * delay);
        let due = longest.map_or(due, |longest| due.min(since + longest));
        for uplink in 0..2 {
            let first = begun(&left, HOME, uplink)[0];
            assert!(
                (due..due + SLACK).contains(&first),
                "{:?} after the silence, {:?} after the answer",
                first.since(since),
                first.since(answered)
            );
        }
    }
}

#[test]
fn a_spare_is_asked_at_once_in_each_outage_and_then_less_and_less_often() {
    let mut world = both_silent(5, ms(10));
    let left = watch_for(&mut world, 3 * SECOND);
    let asked = said(&left, SPARE);
    assert!(asked[0].since(noticed(&world)) <= ms(1), "at once");
    assert_eq!(gaps(&asked), [200, 400, 800, 800]);

    // The hub is back, and silent again before the next question would be due.
    let mut world = both_silent(6, ms(10));
    watch_for(&mut world, ms(850));
    world.set_cut(HOME, false);
    watch_for(&mut world, ms(60));
    assert_eq!(silent_since(&world), None, "the hub is back");
    world.set_cut(HOME, true);
    let left = watch_for(&mut world, ms(1_500));
    let asked = said(&left, SPARE);
    assert!(asked[0].since(noticed(&world)) <= ms(1), "at once");
    assert_eq!(gaps(&asked)[..2], [200, 400]);
}

#[test]
fn a_spare_is_claimed_less_and_less_often_by_a_site_whose_hub_is_silent() {
    let mut world = with_spare(7, ms(10));
    call(&mut world, 0, SECOND);
    world.keep_taps();
    world.set_cut(HOME, true);
    let (_, answered) = watch(&mut world, SECOND, Some(SPARE));
    assert!(answered, "the spare answers");
    world.set_apart(0, SPARE, true);
    let claimed = said(&watch_for(&mut world, 2 * SECOND), SPARE);
    assert_eq!(gaps(&claimed), [150, 300, 600, 600]);
}

#[test]
fn a_spare_is_claimed_as_often_as_ever_by_a_site_whose_hub_is_drained() {
    let mut world = with_spare(8, ms(10));
    call(&mut world, 0, SECOND);
    world.keep_taps();
    world.drain_hub(HOME, true).expect("it runs");
    let (_, answered) = watch(&mut world, SECOND, Some(SPARE));
    assert!(answered, "the spare answers");
    world.set_apart(0, SPARE, true);
    let claimed = said(&watch_for(&mut world, ms(1_400)), SPARE);
    assert!(claimed.len() >= 8, "{claimed:?}");
    assert!(gaps(&claimed).iter().all(|gap| *gap == 150), "{claimed:?}");
}

/// A site that has moved to its spare because the home was killed, and when it had.
fn moved_on(seed: u64) -> (World, Instant) {
    let mut world = with_spare(seed, ms(10));
    call(&mut world, 0, SECOND);
    world.keep_taps();
    world.kill_hub();
    for _ in 0..100 {
        if moves(&world).is_empty() {
            watch(&mut world, ms(20), None);
        }
    }
    assert_eq!(moves(&world), ["spare"], "within 2 s");
    let now = world.now();
    (world, now)
}

#[test]
fn a_site_that_has_moved_tries_the_hub_that_was_silent_after_some_seconds() {
    for seed in 0..4 {
        let (mut world, moved) = moved_on(seed);
        let left = watch_for(&mut world, 8 * SECOND);
        for uplink in 0..2 {
            let first = begun(&left, HOME, uplink)[0].since(moved);
            // 5 s, a quarter more or less, and up to a second until the site looks.
            let expected = ms(3_700)..ms(7_300);
            assert!(
                expected.contains(&first),
                "seed {seed}, uplink {uplink}: {first:?}"
            );
        }
    }
}
