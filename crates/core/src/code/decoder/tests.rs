use super::super::{Encoder, redundancy};
use super::*;
use crate::estimate::Gilbert;
use ropewalk_types::{Random, steps};

fn packet(random: &mut Random, number: u16) -> Bytes {
    let length = 20 + (random.next_u64() % 1_400) as usize;
    let mut bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
    bytes[0] = 0x12;
    bytes[1..3].copy_from_slice(&number.to_be_bytes());
    bytes.into()
}

/// Packets lost at random with `loss`; how many, and how many of them were recovered intact.
fn run(seed: u64, packets: u16, loss: f64, redundancy: f64) -> (u32, u32) {
    let mut random = Random::new(seed);
    let mut encoder = Encoder::default();
    encoder.set_redundancy(redundancy);
    let mut decoder = Decoder::new(Instant::ZERO);
    let mut sent = Vec::new();
    let (mut lost, mut recovered) = (0, 0);
    for n in 0..packets {
        let (number, now) = (
            n.wrapping_add(65_000),
            Instant::from_nanos(u64::from(n) * 100_000),
        );
        let empty = n % 50 == 0;
        let packet = packet(&mut random, number);
        if !empty {
            encoder.on_sent(now, number, &packet, false);
        }
        let arrives = !random.chance(loss);
        if arrives {
            decoder.on_datagram(number, (!empty).then_some(&packet));
        } else {
            lost += u32::from(!empty);
        }
        sent.push(packet);
        if let Some(coded) = encoder.poll()
            && !random.chance(loss)
        {
            decoder.on_coded(now, coded);
        }
        while let Some((number, packet)) = decoder.poll() {
            assert_eq!(packet, sent[usize::from(number.wrapping_sub(65_000))]);
            recovered += 1;
        }
    }
    (lost, recovered)
}

#[test]
fn nearly_all_losses_are_recovered_and_every_one_is_what_was_sent() {
    for (loss, least) in [(0.005, 0.98), (0.02, 0.98), (0.05, 0.98), (0.10, 0.97)] {
        let gilbert = Gilbert {
            p: loss,
            r: 1.0 - loss,
        };
        let (lost, recovered) = run(3, 20_000, loss, redundancy(gilbert, 40.0));
        let share = f64::from(recovered) / f64::from(lost);
        assert!(
            share > least && share <= 1.0,
            "{loss}: {recovered} of {lost}"
        );
    }
}

#[test]
fn without_loss_nothing_is_recovered() {
    assert_eq!(run(4, 2_000, 0.0, 0.1), (0, 0));
}

#[test]
fn too_much_loss_recovers_little_but_nothing_wrong() {
    let (lost, recovered) = run(5, 3_000, 0.6, 0.25);
    assert!(recovered < lost / 2);
}

#[test]
fn nonsense_is_never_passed_on() {
    let mut random = Random::new(9);
    let mut decoder = Decoder::new(Instant::ZERO);
    for n in 0..2_000_u16 {
        let number = random.next_u64() as u16 % 300;
        let packet = packet(&mut random, number);
        decoder.on_datagram(number, Some(&packet));
        let length = (random.next_u64() % 64) as usize;
        let coded = Coded {
            first: random.next_u64() as u16 % 300,
            count: 1 + (random.next_u64() % 255) as u8,
            seed: n as u8,
            combined: random.next_u64().to_be_bytes().repeat(4),
            symbol: (0..length).map(|_| random.next_u64() as u8).collect(),
        };
        decoder.on_coded(Instant::from_millis(u64::from(n)), coded);
        while let Some((_, packet)) = decoder.poll() {
            // A random sum may happen to end where it says: what it says is checked by whoever parses it.
            assert!(packet.len() >= 10);
        }
    }
    assert!(decoder.equations.len() <= EQUATIONS_MAX);
}

#[test]
fn a_pause_covers_what_came_last_within_the_budget() {
    let mut encoder = Encoder::default();
    encoder.set_redundancy(0.05);
    let mut covered = 0;
    for n in 0..100_u16 {
        let now = Instant::from_millis(u64::from(n) * 20);
        encoder.on_sent(now, n, &packet(&mut Random::new(1), n), false);
        encoder.on_pause();
        covered += u32::from(encoder.poll().is_some());
    }
    assert!((5..=9).contains(&covered), "{covered} of 100 at 5 %");
}

#[test]
fn a_burst_gets_its_share_of_combinations_along_its_length() {
    let packet = packet(&mut Random::new(2), 0);
    for (redundancy, expected) in [(0.2, 60), (0.3, 90), (0.07, 21)] {
        let mut encoder = Encoder::default();
        encoder.set_redundancy(redundancy);
        let mut due = Vec::new();
        for burst in 0..3 {
            for number in burst * 100..(burst + 1) * 100 {
                encoder.on_sent(Instant::ZERO, number, &packet, false);
            }
            due.extend(std::iter::from_fn(|| encoder.poll()));
        }
        assert!(
            due.len().abs_diff(expected) <= 1,
            "{} at {redundancy}",
            due.len()
        );
        for number in 0..280 {
            let covering = due
                .iter()
                .filter(|coded| coded.numbers().any(|n| n == number));
            assert!(covering.count() >= 2, "{number} at {redundancy}");
        }
    }
}

#[test]
fn closed_it_makes_none_and_makes_up_for_nothing() {
    let packet = packet(&mut Random::new(2), 0);
    let mut encoder = Encoder::default();
    encoder.set_redundancy(0.25);
    encoder.set_closed(true);
    for number in 0..100 {
        encoder.on_sent(Instant::ZERO, number, &packet, false);
    }
    assert_eq!(encoder.poll(), None);
    encoder.set_closed(false);
    for number in 100..104 {
        encoder.on_sent(Instant::ZERO, number, &packet, false);
    }
    assert_eq!(std::iter::from_fn(|| encoder.poll()).count(), 2);
    // Packets that are to have repair symbols get them all the same.
    encoder.set_closed(true);
    for number in 104..108 {
        encoder.on_sent(Instant::ZERO, number, &packet, true);
    }
    assert_eq!(std::iter::from_fn(|| encoder.poll()).count(), 1);
}

#[test]
fn what_was_never_solved_does_not_meet_the_same_numbers_again() {
    let mut random = Random::new(3);
    let mut encoder = Encoder::default();
    encoder.set_redundancy(0.25);
    let mut decoder = Decoder::new(Instant::ZERO);
    for number in 0..4 {
        encoder.on_sent(Instant::ZERO, number, &packet(&mut random, number), false);
    }
    // None of four arrived: one equation with four unknowns.
    decoder.on_coded(Instant::ZERO, encoder.poll().unwrap());
    assert_eq!(decoder.equations.len(), 1);
    for n in 4..=u32::from(u16::MAX) + 4 {
        let number = n as u16;
        decoder.on_datagram(number, Some(&packet(&mut random, number)));
        assert_eq!(decoder.poll(), None);
    }
    assert!(decoder.equations.is_empty());
}

#[test]
fn a_combination_of_the_connection_before_and_packets_of_the_next_give_nothing() {
    let mut random = Random::new(4);
    let mut packets = || -> Vec<Bytes> {
        let alike = |number: u16| packet(&mut random, number).slice(..20);
        (0..4).map(alike).collect()
    };
    let (before, next) = (packets(), packets());
    let mut encoder = Encoder::default();
    encoder.set_redundancy(0.25);
    for (number, packet) in (0..).zip(&before) {
        encoder.on_sent(Instant::ZERO, number, packet, false);
    }
    let mut decoder = Decoder::new(Instant::ZERO);
    decoder.on_coded(Instant::ZERO, encoder.poll().unwrap());
    for number in [0, 1, 3] {
        decoder.on_datagram(number, Some(&next[usize::from(number)]));
    }
    // Its length is right: all are of one.
    assert_eq!(decoder.poll(), None);
    decoder.on_datagram(2, Some(&next[2]));
    assert_eq!((decoder.poll(), decoder.kept()), (None, (0, 0)));
}

#[test]
fn a_symbol_that_is_shorter_than_a_packet_in_it_is_dropped_before_any_work() {
    let mut decoder = Decoder::new(Instant::ZERO);
    let packet: Bytes = vec![7; 1_400].into();
    for number in 0..255 {
        decoder.on_datagram(number, Some(&packet));
    }
    let mut coded = Coded {
        first: 0,
        count: 255,
        seed: 1,
        combined: vec![0xff; 32],
        symbol: vec![1; 8],
    };
    let before = steps();
    decoder.on_coded(Instant::ZERO, coded.clone());
    assert_eq!(steps() - before, 0);
    // One that is long enough takes all the packets in it.
    coded.symbol = vec![1; symbol::bytes(&packet)];
    decoder.on_coded(Instant::ZERO, coded);
    assert!(!cfg!(debug_assertions) || steps() - before > 255 * 1_400 / 32);
}

#[test]
fn a_symbol_costs_little_however_dense_the_equations_are() {
    let mut decoder = Decoder::new(Instant::ZERO);
    let mut random = Random::new(1);
    let mut most = 0;
    for n in 0..2_000 {
        let mut combined = vec![0; 19];
        for _ in 0..UNKNOWNS_MAX {
            let place = random.next_u64() % 150;
            combined[(place / 8) as usize] |= 1 << (place % 8);
        }
        let coded = Coded {
            first: 0,
            count: 150,
            seed: n as u8,
            combined,
            symbol: vec![1; 8],
        };
        let before = steps();
        decoder.on_coded(Instant::ZERO, coded);
        most = most.max(steps() - before);
    }
    // An equation goes through 24 others, and 32 through it, with 2 * 128 unknowns each.
    assert!(most <= 56 * 260, "{most} steps");
}
