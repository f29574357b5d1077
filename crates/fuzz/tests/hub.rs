//! What bytes may cost a hub: attacks by hand of a site and of strangers, and random inputs.
//!
//! `UPDATE_CORPUS=1 cargo test -p ropewalk-fuzz --test hub` writes the attacks to the fuzzer's corpus.

use ropewalk_fuzz::hub::{Cost, run};
use ropewalk_fuzz::work::{INSTRUCTION, Instruction};
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
        "hellos",
        &[(13, 63, 0, 64, [0, 0, 0, 1]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "hellos that start anew",
        &[(13, 63, ALONE, 64, [1, 0, 0, 1]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "hellos that start anew as fast as they may",
        &[
            (13, 0, 0, 64, [1, 0, 0, 1]),
            (0, 0, 0, 0, [62_500, 0, 0, 0]),
            (12, 100, 0, 1, [0; 4]),
        ],
    ),
    (
        "hellos that move paths between connections",
        &[
            (13, 3, ALONE, 0, [0, 0, 0, 1]),
            (13, 3, ALONE | 1, 0, [0, 0, 0, 1]),
            (0, 0, 0, 0, [6_250, 0, 0, 0]),
            (12, 250, 0, 2, [0; 4]),
        ],
    ),
    (
        "schedulers",
        &[(14, 63, 0, 0, [0, 0, 0, 0]), (12, 250, 0, 0, [0; 4])],
    ),
    (
        "releases",
        &[(14, 63, 0, 32, [2, 0, 0, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "goodbyes and hellos",
        &[
            (14, 0, ALONE, 0, [4, 0, 0, 0]),
            (13, 0, ALONE, 0, [0, 0, 0, 1]),
            (16, 0, 0, 0, [0; 4]),
            (12, 80, 0, 2, [0; 4]),
        ],
    ),
    (
        "connections",
        &[(16, 3, 0, 0, [0; 4]), (12, 250, 0, 0, [0; 4])],
    ),
    (
        "connections with a path",
        &[
            (16, 0, 0, 0, [0; 4]),
            (13, 0, ALONE, 64, [0, 0, 0, 1]),
            (0, 0, 0, 0, [6_250, 0, 0, 0]),
            (12, 250, 0, 2, [0; 4]),
        ],
    ),
    (
        "strangers",
        &[(17, 63, ALONE, 0, [0, 0, 0, 1]), (12, 10, 0, 0, [0; 4])],
    ),
    (
        "strangers at once",
        &[(17, 63, 0, 0, [0, 0, 0, 1]), (12, 10, 0, 0, [0; 4])],
    ),
    (
        "mutilated strangers",
        &[(17, 63, ALONE, 0, [1, 255, 7, 1]), (12, 10, 0, 0, [0; 4])],
    ),
    (
        "datagrams that come again",
        &[
            (9, 63, ALONE, 0, [0, 0, 0, 0]),
            (18, 63, ALONE, 0, [0, 0, 0, 7]),
            (12, 50, 0, 0, [0; 4]),
        ],
    ),
    (
        "datagrams with errors",
        &[
            (9, 63, ALONE, 0, [0, 0, 0, 0]),
            (18, 63, ALONE, 0, [0, 20, 1, 0]),
            (12, 50, 0, 0, [0; 4]),
        ],
    ),
    (
        "packets",
        &[(3, 63, 0, 0, [1, 1_200, 1, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "packets of many flows",
        &[(3, 63, ALONE, 0x10, [0, 0, 0, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "mutilated datagrams",
        &[(15, 63, 0, 0x10, [0, 3, 1, 9]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "garbage in order",
        &[(19, 63, 0, 255, [1, 0, 0, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "repair symbols",
        &[(5, 63, 0, 96, [0, 150, 7, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "probes with gaps",
        &[(9, 63, 0, 0, [0, 1, 0, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "questions of an invited one",
        &[(20, 63, ALONE, 1, [1, 0, 0, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "connections of an invited one",
        &[(20, 63, ALONE, 1, [0, 0, 0, 0]), (12, 60, 0, 0, [0; 4])],
    ),
    (
        "questions for everything",
        &[
            (2, 63, 0, 0, [1_300, 0, 0, 0]),
            (1, 0, 0, 0, [0; 4]),
            (6, 7, ALONE, 0, [255, 63, 0, 0]),
            (12, 60, 0, 2, [0; 4]),
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
    lines.collect()
}

/// What a byte cost.
fn show(name: &str, cost: &Cost) {
    let per = |what: u64| what as f64 / cost.bytes_in as f64;
    println!(
        "{name}: {} datagrams; for each byte {:.2} bytes of answers, {:.1} allocated, {:.1} steps; {:.2} allocations for each datagram; {} bytes retained",
        cost.datagrams_in,
        per(cost.bytes_out),
        per(cost.allocated),
        per(cost.steps),
        cost.allocations as f64 / cost.datagrams_in as f64,
        cost.retained,
    );
}

fn update(name: &str, input: &[u8]) {
    if std::env::var_os("UPDATE_CORPUS").is_some() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/hub/");
        std::fs::write(corpus.to_owned() + name, input).expect("a file");
    }
}

#[test]
fn attacks_cost_a_hub_what_their_bytes_may_cost() {
    let mut whole = Cost::default();
    for attack in ATTACKS {
        println!("{}", attack.0); // shown only when the next line fails
        let input = bytes(attack);
        update(&attack.0.replace(' ', "-"), &input);
        let cost = run(&input);
        show(attack.0, &cost);
        assert!(cost.datagrams_in > 50, "{cost:?}");
        whole.allocations += cost.allocations;
        whole.steps += cost.steps;
    }
    // The meters work.
    assert!(whole.allocations > 1_000);
    assert!(!cfg!(debug_assertions) || whole.steps > 1_000);
}

#[test]
fn random_inputs_cost_a_hub_what_their_bytes_may_cost() {
    for seed in 0..RANDOM_INPUTS {
        println!("seed {seed}"); // shown only when the next lines fail
        let mut random = Random::new(seed);
        let mut input = Vec::new();
        for _ in 0..RANDOM_INSTRUCTIONS {
            let words = [random.next_u64(), random.next_u64()];
            let bytes = words.map(u64::to_le_bytes).concat();
            input.extend_from_slice(&bytes[..INSTRUCTION]);
        }
        show(&format!("seed {seed}"), &run(&input));
    }
}
