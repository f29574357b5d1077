//! Work for each byte of the peer: a tunnel must not do much for little input. An input is a list of
//! instructions of 12 bytes each, most of which make many datagrams, so that short inputs make long attacks.

mod bounds;
pub(crate) mod datagrams;
mod meter;

pub use bounds::Cost;
pub use meter::Meter;

use crate::input::Input;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_types::{Duration, PathId};

/// Bytes of an instruction.
pub const INSTRUCTION: usize = 12;
/// Most datagrams of an input: what more of them show takes long.
const DATAGRAMS_MAX: u64 = 4_000;
/// Between two datagrams that each have a turn of their own: 50,000 in a second.
const INTERVAL: Duration = Duration::from_micros(20);
/// Most instructions that are done again together.
const AGAIN_MAX: usize = 4;

/// An instruction. What its numbers mean depends on its kind.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// What to do.
    pub kind: u8,
    /// How many datagrams or packets, less one.
    pub count: u8,
    /// Over which path; the highest bit gives each datagram a turn of its own.
    pub path: u8,
    /// Bits that say more.
    pub marks: u8,
    /// Numbers that say more.
    pub numbers: [u16; 4],
}

impl Instruction {
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        Self {
            kind: input.u8(),
            count: input.u8(),
            path: input.u8(),
            marks: input.u8(),
            numbers: core::array::from_fn(|_| input.u16()),
        }
    }

    /// The bytes of the instruction.
    #[must_use]
    pub fn bytes(&self) -> [u8; INSTRUCTION] {
        let mut bytes = [0; INSTRUCTION];
        bytes[..4].copy_from_slice(&[self.kind, self.count, self.path, self.marks]);
        for (place, number) in bytes[4..].chunks_exact_mut(2).zip(self.numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }
}

/// Takes the input for what a peer does to a tunnel. Whatever that is, its bytes cost the tunnel no more
/// than they may: memory, steps of loops, and bytes of answers.
///
/// Only a program whose allocator is [`ropewalk_tally::Counting`] sees memory. Only builds with debug assertions
/// see steps.
///
/// # Panics
/// When the bytes cost more.
pub fn work(data: &[u8]) {
    run(data);
}

/// [`work`]; what it has cost.
///
/// # Panics
/// As [`work`].
pub fn run(data: &[u8]) -> Cost {
    let mut input = Input::new(data);
    let kinds = SchedulerKind::ALL;
    let kind = kinds[usize::from(input.u8()) % kinds.len()];
    let mut world = World {
        meter: Meter::new(kind),
        sent: [0; meter::PATHS as usize],
    };
    let mut done: Vec<Instruction> = Vec::new();
    while !input.is_empty() && world.meter.cost().datagrams_in < DATAGRAMS_MAX {
        let next = Instruction::read(&mut input);
        if next.kind % 13 == 12 {
            let last = 1 + usize::from(next.marks) % AGAIN_MAX;
            let again = done[done.len().saturating_sub(last)..].to_vec();
            for round in 1..=u32::from(next.count) {
                for instruction in &again {
                    world.follow(instruction, round);
                }
            }
        } else {
            world.follow(&next, 0);
            done.push(next);
        }
    }
    for _ in 0..3 {
        world.meter.turn();
        world.meter.wait(Duration::from_secs(2));
    }
    world.meter.turn();
    world.meter.check();
    world.meter.cost()
}

struct World {
    meter: Meter,
    /// The number of the next datagram of each path.
    sent: [u16; meter::PATHS as usize],
}

impl World {
    /// Does what an instruction says for the first time, or once more.
    fn follow(&mut self, instruction: &Instruction, round: u32) {
        if self.meter.cost().datagrams_in >= DATAGRAMS_MAX {
            return;
        }
        let [a, ..] = instruction.numbers;
        match instruction.kind % 13 {
            0 => self.meter.wait(Duration::from_micros(u64::from(a) * 16)),
            1 => self.meter.turn(),
            2 => {
                for n in 0..=instruction.count % 64 {
                    self.meter.enter(n, usize::from(a) % 1_500);
                }
            }
            kind => {
                let count = u32::from(instruction.count % 64) + 1;
                for n in round * count..(round + 1) * count {
                    self.send(kind, instruction, n);
                }
            }
        }
        self.meter.check();
    }

    fn send(&mut self, kind: u8, instruction: &Instruction, n: u32) {
        let path = instruction.path % meter::PATHS;
        let number = &mut self.sent[usize::from(path)];
        let datagram = datagrams::make(kind, instruction, n, self.meter.now, *number);
        *number = number.wrapping_add(1 + datagrams::left_out(kind, instruction));
        self.meter.hear(PathId(path), datagram);
        if instruction.path >= 128 {
            self.meter.turn();
            self.meter.wait(INTERVAL);
        }
    }
}
