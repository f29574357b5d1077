//! Recovered packets are packets that were sent. Any part of the packets and repair symbols of a
//! path may come, in any order, with those of another connection and with nonsense in between.

use super::super::{Encoder, WINDOW_PACKETS};
use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use ropewalk_types::Random;
use std::collections::BTreeMap;

/// What comes at the egress.
#[derive(Clone, Debug)]
enum Event {
    Datagram(u16, Option<Bytes>),
    Coded(Coded),
}

/// One connection of a path: what it sends, and its packets by number.
#[derive(Default)]
struct Connection {
    events: Vec<Event>,
    packets: BTreeMap<u16, Bytes>,
}

/// A connection that carries `datagrams` from number `first` on, every tenth of them no packet;
/// all packets of one length if `alike`.
fn connection(seed: u64, first: u16, datagrams: u16, redundancy: f64, alike: bool) -> Connection {
    let mut random = Random::new(seed);
    let mut encoder = Encoder::default();
    encoder.set_redundancy(redundancy);
    let mut sent = Connection::default();
    for n in 0..datagrams {
        let number = first.wrapping_add(n);
        let packet = random.chance(0.9).then(|| {
            let length = if alike { 90 } else { random.next_u64() % 150 };
            let packet = packet(&mut random, number, length);
            encoder.on_sent(Instant::from_millis(u64::from(n)), number, &packet, false);
            sent.packets.insert(number, packet.clone());
            packet
        });
        sent.events.push(Event::Datagram(number, packet));
        if random.chance(0.05) {
            encoder.on_pause();
        }
        sent.events.extend(encoder.poll().map(Event::Coded));
    }
    sent
}

fn packet(random: &mut Random, number: u16, length: u64) -> Bytes {
    let mut packet = vec![0x10, 0, 0];
    packet[1..].copy_from_slice(&number.to_be_bytes());
    packet.resize_with(DATA_HEADER + length as usize, || random.next_u64() as u8);
    packet.into()
}

/// What a network or a peer might make of a repair symbol.
fn damaged(coded: &Coded, random: &mut Random) -> Coded {
    let mut coded = coded.clone();
    let any = random.next_u64();
    match any % 7 {
        0 => coded.first = coded.first.wrapping_add((any >> 8) as u16 % 300),
        1 => coded.count = 1 + (any >> 8) as u8 % 255,
        2 => coded.seed = coded.seed.wrapping_add(1 + (any >> 8) as u8 % 63),
        3 => coded.symbol.truncate((any >> 8) as usize % 120),
        4 => coded.symbol.resize((any >> 8) as usize % 3_000, any as u8),
        5 => coded.combined.fill(any as u8),
        _ => {
            let at = (any >> 8) as usize % coded.symbol.len();
            coded.symbol[at] ^= 1 << ((any >> 40) % 8);
        }
    }
    coded
}

/// What comes of a connection: each event as often as its fate says, and as much later.
fn arriving(sent: &Connection, fates: &[(usize, usize)]) -> Vec<(usize, Event)> {
    let mut arriving = Vec::new();
    for (at, (event, fate)) in sent.events.iter().zip(fates.iter().cycle()).enumerate() {
        for copy in 0..fate.0 {
            arriving.push((at + fate.1 * (copy + 1), event.clone()));
        }
    }
    arriving
}

/// How often each comes, and how many events later.
fn any_fates() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let copies = prop_oneof![3 => Just(0usize), 12 => Just(1usize), 1 => 2usize..4];
    let later = prop_oneof![6 => Just(0usize), 2 => 1usize..10, 1 => 10usize..600];
    prop::collection::vec((copies, later), 100..200)
}

fn any_connection() -> impl Strategy<Value = (u64, u16, f64, Vec<(usize, usize)>)> {
    (any::<u64>(), 1u16..400, 0.02f64..0.3, any_fates())
}

/// Everything comes in the order given; what is recovered must be among the packets of that number.
fn check(events: Vec<(usize, Event)>, sent: &[Connection]) -> Result<usize, TestCaseError> {
    let mut decoder = Decoder::new(Instant::ZERO);
    let mut recovered = 0;
    for (at, event) in events {
        match event {
            Event::Datagram(number, packet) => decoder.on_datagram(number, packet.as_ref()),
            Event::Coded(coded) => decoder.on_coded(Instant::from_millis(at as u64), coded),
        }
        while let Some((number, packet)) = decoder.poll() {
            let known = |sent: &Connection| sent.packets.get(&number).is_some_and(|p| packet == *p);
            prop_assert!(sent.iter().any(known), "number {number}: {packet:x?}");
            recovered += 1;
        }
        prop_assert!(decoder.equations.len() <= EQUATIONS_MAX);
        let longest = decoder.equations.iter().map(|row| row.unknowns.len()).max();
        prop_assert!(longest.unwrap_or(1) <= ROW_MAX && longest != Some(0));
        prop_assert!((PATIENCE_MIN..=PATIENCE_MAX).contains(&decoder.patience()));
    }
    Ok(recovered)
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_recovered_is_what_was_sent_whatever_comes_and_when(
        (seed, datagrams, redundancy, fates) in any_connection(),
        first in any::<u16>(),
        alike in any::<bool>(),
    ) {
        let sent = connection(seed, first, datagrams, redundancy, alike);
        let mut events = arriving(&sent, &fates);
        events.sort_by_key(|event| event.0);
        check(events, &[sent])?;
    }

    #[test]
    fn packets_of_two_connections_never_make_a_third(
        a in any_connection(),
        b in any_connection(),
        first in any::<u16>(),
        later in 0usize..300,
        alike in any::<bool>(),
    ) {
        let sent = [a.clone(), b.clone()]
            .map(|(seed, datagrams, redundancy, _)| connection(seed, first, datagrams, redundancy, alike));
        let mut events = arriving(&sent[0], &a.3);
        let next = arriving(&sent[1], &b.3).into_iter();
        events.extend(next.map(|(at, event)| (at + later, event)));
        events.sort_by_key(|event| event.0);
        check(events, &sent)?;
    }

    #[test]
    fn damaged_combinations_and_nonsense_recover_nothing_wrong(
        (seed, datagrams, redundancy, fates) in any_connection(),
        damage in 0.0f64..1.0,
        first in any::<u16>(),
        alike in any::<bool>(),
    ) {
        let sent = connection(seed, first, datagrams, redundancy, alike);
        let mut random = Random::new(seed);
        let mut events = Vec::new();
        for (at, event) in arriving(&sent, &fates) {
            let hostile = match &event {
                Event::Coded(coded) if random.chance(damage) => damaged(coded, &mut random),
                Event::Datagram(..) if random.chance(damage / 20.0) => {
                    let any = random.next_u64();
                    let nonsense = packet(&mut random, any as u16, any % 200);
                    Coded {
                        first: first.wrapping_add((any >> 16) as u16 % 400),
                        count: 1 + (any >> 32) as u8 % 255,
                        seed: (any >> 40) as u8,
                        combined: any.to_be_bytes().repeat((any >> 56) as usize % 5),
                        symbol: nonsense[..(any >> 48) as usize % nonsense.len()].to_vec(),
                    }
                }
                Event::Datagram(..) | Event::Coded(_) => {
                    events.push((at, event));
                    continue;
                }
            };
            events.push((at, Event::Coded(hostile)));
        }
        events.sort_by_key(|event| event.0);
        check(events, &[sent])?;
    }
}

/// The properties above say nothing unless packets are recovered.
#[test]
fn most_of_what_is_lost_now_and_then_is_recovered() {
    let sent = connection(1, 65_500, 300, 0.2, false);
    let lost = sent.packets.len() / 12;
    let mut fates = vec![(1, 0); 12];
    fates[5] = (0, 0);
    let recovered = check(arriving(&sent, &fates), &[sent]).unwrap();
    assert!(recovered * 2 > lost, "{recovered} of {lost}");
    const { assert!(WINDOW_PACKETS < 300) };
}
