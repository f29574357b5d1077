//! What the peer's bytes may cost a tunnel: attacks by hand, and random inputs.
//!
//! `UPDATE_CORPUS=1 cargo test -p ropewalk-fuzz --test work` writes the attacks to the fuzzer's corpus.

use ropewalk_fuzz::work::{Cost, Instruction, run};
use ropewalk_types::Random;

#[global_allocator]
static ALLOCATOR: ropewalk_tally::Counting = ropewalk_tally::Counting;

/// Random inputs, and their instructions.
const RANDOM_INPUTS: u64 = 12;
const RANDOM_INSTRUCTIONS: usize = 24;
/// A turn for each datagram.
const ALONE: u8 = 128;

/// An attack: each line is kind, count, path, marks, and four numbers.
type Attack = (&'static str, &'static [(u8, u8, u8, u8, [u16; 4])]);

const ATTACKS: &[Attack] = &[
    (
        "pieces of packets that say they are long",
        &[
            (4, 63, ALONE, 0x10, [0, 0, u16::MAX, 0]),
            (12, 40, 0, 0, [0; 4]),
        ],
    ),
    (
        "small pieces of a long packet, the last ones first",
        &[
            (4, 63, ALONE, 0, [65_000, 0, u16::MAX, 0]),
            (12, 40, 0, 0, [0; 4]),
        ],
    ),
    (
        "gaps in the numbers of a path",
        &[(9, 63, ALONE, 0, [0, 1_023, 0, 0]), (12, 40, 0, 0, [0; 4])],
    ),
    (
        "every other number of a path",
        &[(9, 63, ALONE, 0, [0, 1, 0, 0]), (12, 40, 0, 0, [0; 4])],
    ),
    (
        "gaps in the numbers of flows",
        &[
            (3, 31, ALONE, 0x10, [0, 0, 0, 0]),
            (3, 31, ALONE, 0x10, [0, 0, 0, 4_095]),
            (12, 60, 0, 1, [0; 4]),
        ],
    ),
    (
        "flows that hold packets while paths miss numbers",
        &[
            (3, 63, 0, 0x10, [0, 1, 0, 0]),
            (3, 63, 1, 0x10, [0, 1, 0, 5]),
            (12, 12, 0, 1, [0; 4]),
            (9, 31, ALONE, 0, [0, 1, 0, 0]),
            (9, 31, ALONE | 1, 0, [0, 1, 0, 0]),
            (12, 40, 0, 1, [0; 4]),
        ],
    ),
    (
        "a packet far ahead in front of which gaps close",
        &[
            (3, 0, 0, 0, [1, 0, 2, 0]),
            (3, 0, ALONE, 0, [1, 0, 2, 4_000]),
            (3, 0, ALONE, 0, [1, 0, 2, 2]),
            (3, 0, ALONE, 0, [1, 0, 2, 1]),
            (12, 255, 0, 2, [0; 4]),
        ],
    ),
    (
        "dense repair symbols of packets that never come",
        &[(5, 63, ALONE, 96, [0, 150, 7, 0]), (12, 40, 0, 0, [0; 4])],
    ),
    (
        "repair symbols that go on",
        &[(5, 63, ALONE, 96, [3, 255, 7, 0]), (12, 40, 0, 0, [0; 4])],
    ),
    (
        "short repair symbols of long packets",
        &[
            (5, 0, 1, 4, [0, 2, 0, 60_000]),
            (3, 63, 1, 0, [1, 64_900, 1, 0]),
            (12, 3, 0, 0, [0; 4]),
            (5, 63, ALONE | 1, 252, [0, 255, 7, 0]),
            (12, 20, 0, 0, [0; 4]),
        ],
    ),
    (
        "announced headers",
        &[(10, 63, ALONE, 0, [0, 0, 1, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "compressed packets that nobody can read",
        &[(3, 63, ALONE, 0x14, [0, 0, 1, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "a packet for each flow",
        &[(3, 63, ALONE, 0x10, [0, 0, 0, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "questions for everything",
        &[
            (2, 63, 0, 0, [1_400, 0, 0, 0]),
            (1, 0, 0, 0, [0; 4]),
            (6, 7, ALONE, 0, [255, 63, 0, 0]),
            (12, 60, 0, 2, [0; 4]),
        ],
    ),
    (
        "questions for packets with a deadline",
        &[
            (2, 63, 0, 0, [100, 0, 0, 0]),
            (1, 0, 0, 0, [0; 4]),
            (7, 7, ALONE, 0, [0, 63, 1, 0]),
            (12, 60, 0, 2, [0; 4]),
        ],
    ),
    (
        "reports of paths that fall silent in turn",
        &[
            (2, 15, 0, 0, [1_400, 0, 0, 0]),
            (8, 7, ALONE, 0, [100, 50, 5, 1]),
            (12, 60, 0, 1, [0; 4]),
        ],
    ),
    (
        "small packets with a rhythm",
        &[
            (3, 3, ALONE, 0x12, [0, 1, 1, 0]),
            (0, 0, 0, 0, [1_250, 0, 0, 0]),
            (12, 200, 0, 1, [0; 4]),
        ],
    ),
];

fn bytes(attack: &Attack) -> Vec<u8> {
    let lines = attack.1.iter();
    let lines = lines.flat_map(|&(kind, count, path, marks, numbers)| {
        let line = Instruction {
            kind,
            count,
            path,
            marks,
            numbers,
        };
        line.bytes()
    });
    core::iter::once(0).chain(lines).collect()
}

/// What a datagram of the peer cost.
fn show(name: &str, cost: &Cost) {
    let per = |what: u64| what as f64 / cost.bytes_in as f64;
    println!(
        "{name}: {} datagrams; for each byte {:.2} bytes of answers, {:.1} allocated, {:.1} steps; {:.2} allocations for each datagram; {} bytes retained",
        cost.datagrams_in,
        per(cost.answers_out),
        per(cost.allocated),
        per(cost.steps),
        cost.allocations as f64 / cost.datagrams_in as f64,
        cost.retained,
    );
}

#[test]
fn attacks_cost_what_their_bytes_may_cost() {
    let mut whole = Cost::default();
    for attack in ATTACKS {
        println!("{}", attack.0); // shown only when the next line fails
        let input = bytes(attack);
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/work/");
            let name = attack.0.replace(", ", "-").replace(' ', "-");
            std::fs::write(corpus.to_owned() + &name, &input).expect("a file");
        }
        let cost = run(&input);
        show(attack.0, &cost);
        assert!(cost.datagrams_in > 100, "{cost:?}");
        whole.allocations += cost.allocations;
        whole.steps += cost.steps;
    }
    // The meters work.
    assert!(whole.allocations > 1_000);
    assert!(!cfg!(debug_assertions) || whole.steps > 1_000);
}

#[test]
fn random_inputs_cost_what_their_bytes_may_cost() {
    for seed in 0..RANDOM_INPUTS {
        println!("seed {seed}"); // shown only when the next lines fail
        let mut random = Random::new(seed);
        let mut input = vec![seed.to_le_bytes()[0]];
        for _ in 0..RANDOM_INSTRUCTIONS {
            let words = [random.next_u64(), random.next_u64()];
            let bytes = words.map(u64::to_le_bytes).concat();
            input.extend_from_slice(&bytes[..ropewalk_fuzz::work::INSTRUCTION]);
        }
        run(&input);
    }
}
