//! What strange or hostile ends of accelerated connections say, and that nothing promised is lost by
//! it, nobody waits for ever, and nobody is reset without need.

use super::*;

/// The receiver's answer to the opening, as it comes again when the host's answer was lost.
fn syn_ack(world: &World) -> Vec<u8> {
    let bare = Bare {
        seq: PEER_START,
        ack: HOST_START.wrapping_add(1),
        window: WINDOW as u16,
        flags: SYN,
        timestamps: None,
    };
    world.peer.packet(bare, &[])
}

/// The receiver acknowledges what is before `at`, and offers this window, unscaled.
fn acknowledgement(world: &World, at: usize, window: u16) -> Vec<u8> {
    let bare = Bare {
        seq: world.replied[1],
        ack: World::host_seq(at),
        window,
        flags: 0,
        timestamps: Some((1, 1)),
    };
    world.peer.packet(bare, &[])
}

/// The receiver misses what is before `from`, and has what is before `to`.
fn misses(world: &World, at: usize, from: usize, to: usize) -> Vec<u8> {
    let plain = acknowledgement(world, at, (WINDOW >> SHIFT) as u16);
    selective(&plain, World::host_seq(from), World::host_seq(to))
}

/// 65 s in which whatever is sent again is lost, and answered with a shut window.
fn shut(world: &mut World) {
    for _ in 0..1_300 {
        world.step(Event::Wait(50));
        if !world.data.is_empty() {
            world.data.clear();
            let answer = acknowledgement(world, 0, 0);
            if let Some(told) = world.leave(answer) {
                world.host_gets(&told);
            }
        }
    }
}

/// 65 s in which all arrives.
fn deliver(world: &mut World) {
    for _ in 0..1_300 {
        world.step(Event::Wait(50));
        world.step(Event::Deliver(0));
        world.step(Event::DeliverAck(0));
    }
}

#[test]
fn an_answer_to_the_opening_may_come_again_or_alone() {
    for opened in [true, false] {
        let mut world = World::with(Limits::default(), true, false);
        if !opened {
            world.freezer = Freezer::new(Limits::default(), true);
        }
        let again = syn_ack(&world);
        world.leave(again);
        world.finish();
        assert_eq!((world.got.len(), world.una), (STREAM, STREAM));
        assert_eq!(world.freezer.accelerated(), u64::from(opened));
    }
}

#[test]
fn a_receiver_may_drop_what_it_had_selected() {
    for mut world in [accelerated(8), under_way(Freeze::ProxyAck, 4)] {
        let (got, sent) = (world.got.len(), world.sent);
        let selected = misses(&world, got, got + SEGMENT, sent);
        world.leave(selected);
        world.step(Event::Down);
        world.data.clear();
        world.acks.clear();
        world.step(Event::Back);
        deliver(&mut world);
        assert_eq!((world.reset, world.got.len()), (false, world.sent));
    }
}

#[test]
fn a_packet_is_selected_only_as_a_whole() {
    let mut world = accelerated(0);
    for (at, sent) in [(0, 100), (50, 150)] {
        let packet = world.segment(at, 100);
        world.sent = sent;
        world.enter(packet);
    }
    world.data.clear();
    let selected = misses(&world, 0, 50, 150);
    world.leave(selected);
    world.early.insert(50, (50..150).map(byte).collect());
    deliver(&mut world);
    assert_eq!((world.reset, world.got.len()), (false, 150));
}

#[test]
fn nobody_acknowledges_what_was_never_sent() {
    let mut world = accelerated(8);
    let promised = world.una as u64;
    let forged = acknowledgement(&world, 1_000_000, 10);
    world.leave(forged);
    assert!(world.freezer.proxy_ack_bytes() >= promised);
}

#[test]
fn a_receiver_with_a_shut_window_is_waited_for() {
    let mut world = accelerated(8);
    shut(&mut world);
    assert!(!world.reset);
    // A probe of one byte beyond the window is the receiver's to answer.
    let mut world = accelerated(16);
    world.finish();
    let end = world.sent;
    let closed = acknowledgement(&world, end, 0);
    world.leave(closed);
    let probe = world.segment(end, 1);
    let info = PacketInfo::parse(&probe).expect("a packet");
    let taken = world
        .freezer
        .on_ingress(world.now, (&probe, 0), &info, false, false);
    // What was offered before is still allowed, so the byte is kept or goes, but is not swallowed.
    assert_ne!(taken, Taken::Answered);
}

#[test]
fn a_host_that_did_not_hear_is_told_again() {
    let mut world = accelerated(0);
    let packet = world.segment(0, SEGMENT);
    world.sent = SEGMENT;
    let info = PacketInfo::parse(&packet).expect("a packet");
    for expected in [Taken::Kept, Taken::Answered, Taken::Answered] {
        let taken = world
            .freezer
            .on_ingress(world.now, (&packet, 0), &info, false, false);
        assert_eq!(taken, expected);
        world.freezer.settle(world.now, ROOM, |_| 0);
        // The acknowledgement is lost on the way to the host.
        assert!(world.freezer.poll().is_some(), "{expected:?}");
        world.now += Duration::from_millis(200);
    }
}

#[test]
fn no_window_of_zero_is_told_while_nothing_is_promised() {
    let mut world = accelerated(1);
    world.step(Event::Deliver(0));
    world.step(Event::DeliverAck(0));
    world.freezer.settle(world.now, 0, |_| 0);
    let answer = acknowledgement(&world, SEGMENT, (WINDOW >> SHIFT) as u16);
    let told = world.leave(answer).expect("nothing is promised");
    assert!(Segment::parse(&told).is_some_and(|segment| segment.window > 0));
}

#[test]
fn connections_whose_segments_are_signed_or_of_several_paths_are_left_alone() {
    for kind in [19, 29, 30] {
        let mut world = World::with(Limits::default(), true, false);
        world.freezer = Freezer::new(Limits::default(), true);
        let bare = Bare {
            seq: HOST_START,
            ack: 0,
            window: WINDOW as u16,
            flags: SYN,
            timestamps: None,
        };
        let mut syn = world.host.packet(bare, &[kind, 4, 0, 0]);
        syn[32] += 0x10;
        world.enter(syn);
        let answer = syn_ack(&world);
        world.leave(answer);
        world.data.clear();
        world.finish();
        assert_eq!((world.got.len(), world.una), (STREAM, STREAM));
        assert_eq!(world.freezer.accelerated(), 0, "option {kind}");
    }
}

#[test]
fn a_host_that_opens_anew_hears_the_old_receiver() {
    let mut world = accelerated(8);
    let bare = Bare {
        seq: 12_345,
        ack: 0,
        window: WINDOW as u16,
        flags: SYN,
        timestamps: None,
    };
    let syn = world.host.packet(bare, &[]);
    world.enter(syn);
    // The receiver still has the old connection (RFC 5961 §4).
    let challenge = acknowledgement(&world, 0, (WINDOW >> SHIFT) as u16);
    let heard = world.leave(challenge.clone()).expect("it is told");
    let ack = |ip: &[u8]| Segment::parse(ip).map(|segment| segment.ack);
    assert_eq!(ack(&heard), ack(&challenge));
}

#[test]
fn a_lost_packet_of_a_burst_comes_again_before_the_timer() {
    let mut world = accelerated(8);
    world.data.clear();
    world.step(Event::Wait(200));
    // One round trip is known.
    let first = acknowledgement(&world, SEGMENT, (WINDOW >> SHIFT) as u16);
    world.leave(first);
    let sent = world.sent;
    let selected = misses(&world, SEGMENT, 2 * SEGMENT, sent);
    world.leave(selected);
    world.data.clear();
    let mut waited = 0;
    while world.data.is_empty() {
        world.step(Event::Wait(5));
        waited += 5;
        assert!(waited < 100, "a quarter of the round trip");
    }
    assert_eq!(world.data.len(), 1);
}

#[test]
fn a_connection_goes_on_after_its_numbers_have_gone_half_way_round() {
    let mut world = accelerated(0);
    let window = (WINDOW >> SHIFT) as u16;
    // 2.2 GB in steps that look like one segment each.
    let step = 1_usize << 28;
    for nth in 0..9 {
        let at = nth * step;
        let said = world.replied[2];
        let bare = |seq| Bare {
            seq,
            ack: said,
            window: HOST_WINDOW,
            flags: 0,
            timestamps: Some((1, 1)),
        };
        let packet = world.host.packet(bare(World::host_seq(at)), &[1; SEGMENT]);
        let info = PacketInfo::parse(&packet).expect("a packet");
        let taken = world
            .freezer
            .on_ingress(world.now, (&packet, 0), &info, false, false);
        assert_eq!(taken, Taken::Kept, "{at}");
        world.freezer.settle(world.now, ROOM, |_| 0);
        let told = world.freezer.poll().expect("an acknowledgement").data;
        let told = Segment::parse(&told).expect("a segment");
        assert_eq!(told.ack, World::host_seq(at + SEGMENT), "{at}");
        let answer = acknowledgement(&world, at + SEGMENT, window);
        world.leave(answer);
        // What lies between was sent and acknowledged the same way.
        let last = world
            .host
            .packet(bare(World::host_seq(at + step - 1)), &[1]);
        let info = PacketInfo::parse(&last).expect("a packet");
        world
            .freezer
            .on_ingress(world.now, (&last, 0), &info, false, false);
        let answer = acknowledgement(&world, at + step, window);
        world.leave(answer);
    }
}
