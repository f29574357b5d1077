//! The table of sent packets in our copy of the QUIC library, beside an ordered tree. The copy is outside the
//! workspace, so its own tests would not run.

use std::collections::BTreeMap;

use ropewalk_types::Random;

/// What the table holds here: the number of the packet.
mod spaces {
    pub(super) type SentPacket = u64;
}

#[path = "../../../third-party/quinn-proto/src/connection/sent_packets.rs"]
mod sent_packets;

use sent_packets::SentPackets;

#[test]
fn the_table_has_what_a_tree_has() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let (mut table, mut tree) = (SentPackets::default(), BTreeMap::new());
        let mut next = random.next_u64() % 1_000;
        for _ in 0..4_000 {
            let any = |random: &mut Random| {
                let first = tree.keys().next().copied().unwrap_or(next);
                (first + random.next_u64() % (next - first + 3)).saturating_sub(1)
            };
            // Long times of sending and of acknowledgement by turns.
            let sends = random.chance(if (next / 700).is_multiple_of(2) {
                0.9
            } else {
                0.2
            });
            if sends {
                next += 1 + u64::from(random.chance(0.02));
                table.insert(next, next);
                tree.insert(next, next);
                continue;
            }
            let number = any(&mut random);
            if random.chance(0.8) {
                assert_eq!(table.remove(number), tree.remove(&number), "{number}");
            } else {
                assert_eq!(table.get(number), tree.get(&number), "{number}");
            }
            let range = number..number + random.next_u64() % 40;
            let ours: Vec<u64> = table
                .range(range.clone())
                .map(|(number, _)| number)
                .collect();
            let theirs: Vec<u64> = tree.range(range).map(|(number, _)| *number).collect();
            assert_eq!(ours, theirs);
        }
        assert!(table.values().eq(tree.values()));
        assert!(
            table
                .values_mut()
                .map(|one| *one)
                .eq(tree.values().copied())
        );
        assert!(
            table
                .range(0..u64::MAX)
                .map(|one| one.0)
                .eq(tree.keys().copied())
        );
        assert!(table.into_values().eq(tree.into_values()));
    }
}

#[test]
fn a_packet_that_nobody_acknowledges_keeps_no_places_behind_it() {
    let mut table = SentPackets::default();
    table.insert(0, 0);
    for number in 1..100_000 {
        table.insert(number, number);
        if number > 1_000 {
            assert_eq!(table.remove(number - 1_000), Some(number - 1_000));
            let first = table.range(1..u64::MAX).next().map(|one| one.0);
            assert_eq!(first, Some(number - 999));
        }
    }
    // A place of the queue has a number and a packet; in the tree there would be 1,000 packets, too.
    assert!(format!("{table:?}").matches("None").count() <= 64 + 1_000);
}
