//! The decoder of one path: packets and repair symbols of it come in any order, with nonsense in
//! between.

use crate::input::Input;
use bytes::Bytes;
use ropewalk_core::code::{Coded, Decoder, EQUATIONS_MAX, Encoder, ROW_MAX};
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::DATA_HEADER;
use std::collections::HashSet;

/// Longest packet: longer ones show nothing more.
const PACKET_MAX: usize = 200;
/// Repair symbols kept for being repeated, late or damaged.
const CODED_MAX: usize = 64;

/// Takes the input for what an ingress sends and a network makes of it, operation by operation. As
/// long as nothing was invented, what is recovered was sent. The decoder keeps within its bounds
/// on every input.
///
/// # Panics
/// When it does not.
pub fn decoder(data: &[u8]) {
    let mut input = Input::new(data);
    let mut path = Path::new(input.u16());
    while !input.is_empty() {
        path.step(&mut input);
        path.check();
    }
}

struct Path {
    now: Instant,
    encoder: Encoder,
    decoder: Decoder,
    next: u16,
    /// Every packet that was sent, with its number in it.
    sent: HashSet<Vec<u8>>,
    late: Vec<(u16, Bytes)>,
    coded: Vec<Coded>,
    /// Something came that nobody had sent.
    hostile: bool,
}

impl Path {
    fn new(first: u16) -> Self {
        let mut encoder = Encoder::default();
        encoder.set_redundancy(0.2);
        Self {
            now: Instant::ZERO,
            encoder,
            decoder: Decoder::new(Instant::ZERO),
            next: first,
            sent: HashSet::new(),
            late: Vec::new(),
            coded: Vec::new(),
            hostile: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % 13 {
            0..=2 => self.send(input),
            3 => {
                self.decoder.on_datagram(self.next, None);
                self.next = self.next.wrapping_add(1);
            }
            4 => {
                if let Some((number, packet)) = pick(input, &self.late) {
                    self.decoder.on_datagram(number, Some(&packet));
                }
            }
            5 => {
                if let Some(coded) = pick(input, &self.coded) {
                    self.decoder.on_coded(self.now, coded);
                }
            }
            6 => {
                self.encoder.on_pause();
                self.combine(input.flag());
            }
            7 => self.invent(input),
            8 => self.damage(input),
            9 => self.connect(input),
            10 => self
                .encoder
                .on_repair(self.next.wrapping_sub(u16::from(input.u8())), 1),
            11 => self.now += Duration::from_micros(u64::from(input.u16()) * 10),
            _ => self.encoder.set_redundancy(f64::from(input.u8()) / 400.0),
        }
    }

    /// The next packet; it arrives now, or perhaps later.
    fn send(&mut self, input: &mut Input<'_>) {
        let (fate, length) = (input.u8(), usize::from(input.u8()) % PACKET_MAX);
        let mut packet = vec![0x10, 0, 0];
        packet[1..].copy_from_slice(&self.next.to_be_bytes());
        packet.extend_from_slice(&self.now.as_nanos().to_be_bytes());
        packet.extend_from_slice(input.bytes(4));
        packet.resize(DATA_HEADER + length, fate);
        self.sent.insert(packet.clone());
        let packet = Bytes::from(packet);
        self.encoder
            .on_sent(self.now, self.next, &packet, fate % 16 == 15);
        if fate % 4 == 0 {
            self.late.push((self.next, packet));
        } else {
            self.decoder.on_datagram(self.next, Some(&packet));
        }
        self.next = self.next.wrapping_add(1);
        self.combine(fate % 8 < 6);
    }

    /// A repair symbol, if one is due.
    fn combine(&mut self, arrives: bool) {
        let Some(coded) = self.encoder.poll() else {
            return;
        };
        if arrives {
            self.decoder.on_coded(self.now, coded.clone());
        }
        if self.coded.len() < CODED_MAX {
            self.coded.push(coded);
        }
    }

    /// A repair symbol or packet that nobody sent.
    fn invent(&mut self, input: &mut Input<'_>) {
        self.hostile = true;
        let number = self
            .next
            .wrapping_add(u16::from(input.u8()))
            .wrapping_sub(128);
        let length = usize::from(input.u8());
        if input.flag() {
            let packet = Bytes::copy_from_slice(input.bytes(length));
            self.decoder.on_datagram(number, Some(&packet));
        } else {
            let bitmap = usize::from(input.u8() % 40);
            let coded = Coded {
                first: number,
                count: input.u8().max(1),
                seed: input.u8(),
                combined: input.bytes(bitmap).to_vec(),
                symbol: input.bytes(length).to_vec(),
            };
            self.decoder.on_coded(self.now, coded);
        }
    }

    fn damage(&mut self, input: &mut Input<'_>) {
        let Some(mut coded) = pick(input, &self.coded) else {
            return;
        };
        self.hostile = true;
        let (kind, by) = (input.u8(), input.u8());
        match kind % 5 {
            0 => coded.first = coded.first.wrapping_add(u16::from(by)),
            1 => coded.count = by.max(1),
            2 => coded.seed ^= by,
            3 => coded.combined.fill(by),
            _ => coded.symbol.truncate(usize::from(by)),
        }
        self.decoder.on_coded(self.now, coded);
    }

    /// Begins another connection. Numbers start anew, and the egress may not know yet.
    fn connect(&mut self, input: &mut Input<'_>) {
        let redundancy = self.encoder.redundancy();
        self.encoder = Encoder::default();
        self.encoder.set_redundancy(redundancy);
        self.next = input.u16();
        if input.flag() {
            self.decoder = Decoder::new(self.now);
        }
    }

    fn check(&mut self) {
        while let Some((number, packet)) = self.decoder.poll() {
            assert!(packet.len() >= DATA_HEADER);
            assert_eq!(packet[1..3], number.to_be_bytes());
            assert!(self.hostile || self.sent.contains(&packet), "{packet:x?}");
        }
        let (equations, unknowns) = self.decoder.kept();
        assert!(equations <= EQUATIONS_MAX);
        assert!((2 * equations..=ROW_MAX * equations).contains(&unknowns));
        assert!(self.decoder.patience() <= Duration::from_millis(25));
    }
}

fn pick<T: Clone>(input: &mut Input<'_>, from: &[T]) -> Option<T> {
    let at = usize::from(input.u8());
    from.get(at % from.len().max(1)).cloned()
}
