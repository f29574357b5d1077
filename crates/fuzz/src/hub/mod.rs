//! Work for each byte that comes to a hub: from a site that has its key and means ill, over real connections of
//! QUIC, from the holder of an invitation, and from strangers. An input is a list of instructions as those of [`mod@crate::work`], of 12 bytes each.

mod bounds;
mod meter;

pub use bounds::Cost;
use meter::Meter;

use crate::input::Input;
use crate::work::Instruction;
use crate::work::datagrams;
use ropewalk_types::Duration;
use ropewalk_wire::{Control, Hello, Versions, emit_control};

/// Connections of the site, each of which may carry a path, and of the holder of an invitation.
pub const LINKS: usize = 4;
/// Most datagrams that the peers of an input send.
const DATAGRAMS_MAX: u64 = 2_000;
/// Between two datagrams that each have a turn of their own.
const INTERVAL: Duration = Duration::from_micros(20);
/// Most instructions that are done again together.
const AGAIN_MAX: usize = 4;
/// Kinds of instructions.
const KINDS: u8 = 21;

/// Takes the input for what peers do to a hub. Whatever that is, their bytes cost the hub no more than they may:
/// memory, steps of loops, and bytes of answers.
///
/// Only a program whose allocator is [`ropewalk_tally::Counting`] sees memory. Only builds with debug assertions
/// see steps.
///
/// # Panics
/// When the bytes cost more.
pub fn hub(data: &[u8]) {
    run(data);
}

/// [`hub`]; what it has cost.
///
/// # Panics
/// As [`hub`].
pub fn run(data: &[u8]) -> Cost {
    let mut input = Input::new(data);
    let mut world = World {
        meter: Meter::new(),
        sent: [0; LINKS],
    };
    let mut done: Vec<Instruction> = Vec::new();
    while !input.is_empty() && world.meter.cost().datagrams_in < DATAGRAMS_MAX {
        let next = Instruction::read(&mut input);
        if next.kind % KINDS == 12 {
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
    sent: [u16; LINKS],
}

impl World {
    /// Does what an instruction says for the first time, or once more.
    fn follow(&mut self, instruction: &Instruction, round: u32) {
        if self.meter.cost().datagrams_in >= DATAGRAMS_MAX {
            return;
        }
        let [a, ..] = instruction.numbers;
        match instruction.kind % KINDS {
            0 => self.meter.wait(Duration::from_micros(u64::from(a) * 16)),
            1 => self.meter.turn(),
            2 => {
                for n in 0..=instruction.count % 64 {
                    self.meter.enter(n, usize::from(a) % 1_400);
                }
            }
            kind => {
                let count = u32::from(instruction.count % 64) + 1;
                for n in round * count..(round + 1) * count {
                    self.send(kind, instruction, n);
                    if instruction.path >= 128 {
                        self.meter.turn();
                        self.meter.wait(INTERVAL);
                    }
                }
                if instruction.path < 128 {
                    self.meter.turn();
                }
            }
        }
        self.meter.check();
    }

    fn send(&mut self, kind: u8, instruction: &Instruction, n: u32) {
        let link = usize::from(instruction.path) % LINKS;
        match kind {
            13 => self.meter.say(link, control(&hello(instruction, n))),
            14 => self.meter.say(link, control(&message(instruction, n))),
            15 => {
                let mut datagram = self.datagram(3 + (n % 9) as u8, instruction, n);
                let at = usize::from(instruction.numbers[3]) % datagram.len();
                datagram[at] ^= n.to_le_bytes()[0] | 1;
                self.meter.say(link, datagram);
            }
            16 => self.meter.connect_anew(link),
            17 => self.meter.hear_stranger(u64::from(n), instruction.numbers),
            20 => {
                let key = [instruction.marks.wrapping_add(n.to_le_bytes()[0]); 32];
                let guest = usize::from(instruction.path) % LINKS;
                self.meter.ask(
                    guest,
                    instruction.numbers[0].is_multiple_of(8),
                    control(&Control::Enrol {
                        key,
                        proof: instruction.marks.is_multiple_of(4).then_some([7; 64]),
                    }),
                );
            }
            18 => self.meter.hear_again(n as usize, instruction.numbers),
            19 => self.meter.say(
                link,
                vec![instruction.marks; usize::from(instruction.numbers[0]) % 1_200],
            ),
            kind => {
                let datagram = self.datagram(kind, instruction, n);
                self.meter.say(link, datagram);
            }
        }
    }

    /// A datagram of a tunnel, with the next number of its path.
    fn datagram(&mut self, kind: u8, instruction: &Instruction, n: u32) -> Vec<u8> {
        let number = &mut self.sent[usize::from(instruction.path) % LINKS];
        let datagram = datagrams::make(kind, instruction, n, self.meter.now, *number);
        *number = number.wrapping_add(1 + datagrams::left_out(kind, instruction));
        datagram
    }
}

fn control(control: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    emit_control(control, &mut bytes);
    bytes
}

/// The hello of a path that starts anew, moves to another connection, or stays.
fn hello(instruction: &Instruction, n: u32) -> Control {
    let ([a, b, c, d], marks) = (instruction.numbers, instruction.marks);
    Control::Hello(Hello {
        versions: Versions::OURS,
        session: 1 + u64::from(n) * u64::from(a),
        path: (u32::from(b) + n * u32::from(c)).to_le_bytes()[0] % 16,
        generation: 1 + n * u32::from(d),
        standby: marks & 1 != 0,
        metered: marks & 2 != 0,
        bottleneck: None,
        scheduler: marks,
        weight: u16::from(marks),
        name: "x".repeat(usize::from(marks) % 65),
        claim: None,
    })
}

fn message(instruction: &Instruction, n: u32) -> Control {
    let kind = n.to_le_bytes()[0].wrapping_add(instruction.marks);
    match instruction.numbers[0] % 5 {
        0 => Control::Scheduler { kind },
        1 => Control::SchedulerIs { kind },
        2 => Control::Release {
            name: "x".repeat(usize::from(instruction.marks) % 33),
        },
        3 => Control::PathGone {
            path: kind % 16,
            generation: n,
        },
        _ => Control::Goodbye,
    }
}
