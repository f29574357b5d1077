//! Packets come out as they went in, in order, whatever the link loses. The rules keep what they promise.

use super::*;
use crate::adapt::Gilbert;
use crate::wire::{Ack, Combination, LENGTH_BYTES};
use proptest::prelude::*;
use ropewalk_types::{Duration, Random};

/// A link of both ends: every datagram takes this long.
const ONE_WAY: Duration = Duration::from_millis(10);

struct Pair {
    ends: [Endpoint; 2],
    /// When it arrives, at which end, and what.
    flying: VecDeque<(Instant, usize, Vec<u8>)>,
    now: Instant,
    random: Random,
    loss: f64,
    received: Vec<Vec<u8>>,
    trace: u64,
}

impl Pair {
    fn new(redundancy: Redundancy, loss: f64, seed: u64) -> Self {
        Self {
            ends: [Endpoint::new(redundancy), Endpoint::new(redundancy)],
            flying: VecDeque::new(),
            now: Instant::ZERO,
            random: Random::new(seed),
            loss,
            received: Vec::new(),
            trace: 0,
        }
    }

    fn drain(&mut self) {
        for end in 0..2 {
            while let Some(datagram) = self.ends[end].poll_transmit() {
                let lost = end == 0 && self.random.chance(self.loss);
                if !lost {
                    self.flying
                        .push_back((self.now + ONE_WAY, 1 - end, datagram));
                }
            }
        }
        while let Some(packet) = self.ends[1].poll_packet() {
            self.trace = self.trace.rotate_left(5) ^ self.now.as_nanos() ^ packet.len() as u64;
            self.received.push(packet);
        }
    }

    /// Offers everything as the send buffer lets it, and runs until nothing happens any more.
    fn carry(&mut self, packets: &[Vec<u8>]) {
        let mut rest = packets.iter().peekable();
        for _ in 0..STEPS_MAX {
            while self.ends[0].buffered() < SEND_BUFFER_PACKETS {
                let Some(packet) = rest.next() else { break };
                assert!(self.ends[0].offer(self.now, packet));
            }
            self.drain();
            let arrival = self.flying.front().map(|flying| flying.0);
            let timers = self.ends.iter().filter_map(Endpoint::poll_timeout);
            let Some(next) = timers.chain(arrival).min() else {
                return;
            };
            self.now = self.now.max(next);
            while self
                .flying
                .front()
                .is_some_and(|flying| flying.0 <= self.now)
            {
                let (_, end, datagram) = self.flying.pop_front().unwrap();
                self.ends[end].handle(self.now, &datagram).unwrap();
            }
            for end in &mut self.ends {
                end.handle_timeout(self.now);
            }
        }
        panic!("the session does not end: {:?}", self.ends[0].stats());
    }
}

const STEPS_MAX: usize = 200_000;

fn packets(count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    let packet = |n: usize| {
        let length = 20 + usize::try_from(random.next_u64() % 1_100).unwrap();
        let mut bytes = vec![0; length];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        bytes[length - 1] = random.next_u64().to_be_bytes()[0];
        bytes
    };
    (0..count).map(packet).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_comes_out_is_what_went_in(
        seed in any::<u64>(),
        count in 1_usize..300,
        loss in 0.0_f64..0.4,
        fixed in any::<Option<(u8, u8)>>(),
    ) {
        let redundancy = fixed.map_or(Redundancy::Adaptive, |(n, k)| Redundancy::Fixed {
            n: 1 + n % 40,
            k: k % 8,
        });
        let sent = packets(count, seed);
        let mut pair = Pair::new(redundancy, loss, seed);
        pair.carry(&sent);
        prop_assert_eq!(&pair.received, &sent);
        prop_assert_eq!(pair.ends[0].buffered(), 0);
    }

    #[test]
    fn any_k_combinations_may_be_lost(
        seed in any::<u64>(),
        n in 1_u8..40,
        k in 0_u8..12,
    ) {
        let sent = packets(n.into(), seed);
        let mut encoder = Encoder::default();
        for packet in &sent {
            encoder.push(packet, n, k);
        }
        let mut all: Vec<Combination> = std::iter::from_fn(|| encoder.poll()).collect();
        prop_assert_eq!(all.len(), usize::from(n) + usize::from(k));
        let mut random = Random::new(seed);
        for _ in 0..k {
            let at = random.next_u64() % all.len() as u64;
            all.remove(usize::try_from(at).unwrap());
        }
        let mut decoder = Decoder::default();
        for (new, combination) in (1..).zip(all) {
            // About one of 255 combinations depends on the others by chance.
            prop_assume!(decoder.on_combination(combination));
            prop_assert!(decoder.unseen() <= new);
        }
        prop_assert_eq!(decoder.unseen(), u32::from(n));
        let received: Vec<_> = std::iter::from_fn(|| decoder.poll()).collect();
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn datagrams_read_back_and_changed_ones_do_no_harm(
        datagram in datagram(),
        changes in proptest::collection::vec((0_usize..100, any::<u8>()), 0..4),
        length in 0_usize..100,
    ) {
        let mut bytes = datagram.write();
        prop_assert_eq!(Datagram::read(&bytes), Ok(datagram));
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.truncate(length.max(1));
        let mut end = Endpoint::new(Redundancy::Adaptive);
        let handled = end.handle(Instant::ZERO, &bytes).is_ok();
        prop_assert_eq!(handled, Datagram::read(&bytes).is_ok());
    }
}

/// Any datagram that an endpoint may write.
fn datagram() -> impl Strategy<Value = Datagram> {
    let symbol = proptest::collection::vec(any::<u8>(), LENGTH_BYTES + 1..80);
    let combination = (any::<(u32, u32, u16)>(), 1_u8.., symbol);
    let combination = combination.prop_map(|((transmission, base, seed), count, symbol)| {
        Datagram::Combination(Combination {
            transmission,
            base,
            count,
            seed,
            symbol,
        })
    });
    let ack = any::<(u32, u32, bool)>().prop_map(|(next, transmission, innovative)| {
        Datagram::Ack(Ack {
            next,
            transmission,
            innovative,
        })
    });
    prop_oneof![combination, ack]
}

#[test]
fn windows_that_overlap_are_refused_and_keep_no_memory() {
    let mut decoder = Decoder::default();
    let taken = (0..12_000).filter(|&base| {
        decoder.on_combination(Combination {
            transmission: base,
            base,
            count: 255,
            seed: 1,
            symbol: vec![7; 1_000],
        })
    });
    assert_eq!(taken.count(), 1, "all others begin within the first");
    assert_eq!(decoder.unseen(), 1);
}

#[test]
fn a_recoverable_loss_is_seen_at_once_and_decoded_at_the_end_of_the_window() {
    let sent = packets(4, 1);
    let mut encoder = Encoder::default();
    for packet in &sent {
        encoder.push(packet, 4, 2);
    }
    let all: Vec<Combination> = std::iter::from_fn(|| encoder.poll()).collect();
    let mut decoder = Decoder::default();
    // The paper's figure 2: two of six are lost, here the first and the fourth.
    let mut unseen = Vec::new();
    for at in [1, 2, 4] {
        assert!(decoder.on_combination(all[at].clone()));
        unseen.push(decoder.unseen());
        assert_eq!(decoder.poll(), None);
    }
    assert!(decoder.on_combination(all[5].clone()));
    assert_eq!(unseen, [1, 2, 3]);
    assert_eq!(decoder.unseen(), 4);
    assert_eq!(
        std::iter::from_fn(|| decoder.poll()).collect::<Vec<_>>(),
        sent
    );
}

#[test]
fn a_loss_that_combinations_recover_does_not_lower_the_window() {
    let mut pair = Pair::new(Redundancy::Fixed { n: 10, k: 8 }, 0.1, 7);
    pair.carry(&packets(2_000, 7));
    let stats = pair.ends[0].stats();
    assert_eq!((stats.retransmissions, stats.timeouts), (0, 0));
    assert_eq!(pair.ends[0].tcp.cwnd(), WINDOW_MAX);
}

#[test]
fn a_loss_beyond_the_redundancy_halves_the_window_and_one_repair_mends_the_coding_window() {
    let mut pair = Pair::new(Redundancy::Fixed { n: 10, k: 0 }, 0.0, 7);
    let sent = packets(600, 7);
    pair.carry(&sent[..400]);
    pair.loss = 1.0;
    for packet in &sent[400..403] {
        assert!(pair.ends[0].offer(pair.now, packet));
    }
    pair.drain();
    pair.loss = 0.0;
    pair.carry(&sent[403..]);
    let stats = pair.ends[0].stats();
    assert_eq!((stats.retransmissions, stats.timeouts), (3, 0));
    assert_eq!(pair.received, sent);
}

#[test]
fn redundancy_follows_loss_and_bursts_up_to_the_paper_s_greatest() {
    let k = |loss| Gilbert::independent(loss).redundancy(WINDOW_PACKETS);
    assert_eq!(
        [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.5].map(k),
        [0, 2, 3, 6, 8, 10, 10]
    );
    let bursts = Gilbert {
        loss: 0.05,
        again: 0.75,
    };
    assert!(bursts.redundancy(WINDOW_PACKETS) > k(0.05));
}

#[test]
fn the_chance_of_few_losses_is_that_of_the_binomial_distribution_without_bursts() {
    let binomial = |losses: i32, of: i32, p: f64| -> f64 {
        let choose =
            |n: i32, m: i32| (0..m).fold(1.0, |c, i| c * f64::from(n - i) / f64::from(i + 1));
        (0..=losses)
            .map(|m| choose(of, m) * p.powi(m) * (1.0 - p).powi(of - m))
            .sum()
    };
    for (losses, of, p) in [(0, 20, 0.02), (3, 23, 0.05), (10, 30, 0.2)] {
        let found = Gilbert::independent(p).at_most(losses as usize, of as usize);
        assert!(
            (found - binomial(losses, of, p)).abs() < 1e-9,
            "{losses} of {of}"
        );
    }
}

#[test]
fn the_same_run_twice_is_the_same() {
    let run = || {
        let mut pair = Pair::new(Redundancy::Adaptive, 0.2, 3);
        pair.carry(&packets(1_500, 3));
        (pair.trace, pair.now.as_nanos(), pair.ends[0].stats())
    };
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    // A change of a rule changes this.
    assert_eq!(
        first,
        (
            10_565_720_923_150_920_219,
            5_020_000_000,
            Stats {
                accepted: 1_500,
                combinations: 2_251,
                retransmissions: 22,
                timeouts: 3,
                ..Stats::default()
            }
        )
    );
}
