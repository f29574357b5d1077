//! The datagrams of an instruction.

use super::Instruction;
use ropewalk_types::{Instant, Random};
use ropewalk_wire::{
    CodedHeader, DATA_HEADER, DataHeader, DeadlineNack, FRAGMENT_HEADER, FragmentHeader,
    HeaderNotice, Headers, NackRun, Part, PathReport, Report, Stamp, Timestamp, emit_deadline_nack,
    emit_header_notices, emit_headers, emit_nack, emit_probe, emit_report,
};

/// Flow buckets.
const FLOWS: u16 = 4_096;
/// Bytes of headers of IPv4 and TCP.
const HEADERS: usize = 40;

/// Numbers of the path that are left out after each datagram.
pub fn left_out(kind: u8, instruction: &Instruction) -> u16 {
    match kind {
        3 | 9 => instruction.numbers[1] % 1_100,
        _ => 0,
    }
}

/// The datagram `n` of an instruction of this kind, with its number on the path.
pub fn make(kind: u8, instruction: &Instruction, n: u32, now: Instant, path_seq: u16) -> Vec<u8> {
    let stamp = Stamp {
        path_seq,
        sent_at: Timestamp::from_instant(now),
    };
    #[expect(clippy::cast_possible_truncation, reason = "numbers are modulo 65,536")]
    let n = n as u16;
    let mut out = Vec::new();
    match kind {
        3 => packet(instruction, n, stamp, &mut out),
        4 => piece(instruction, n, stamp, &mut out),
        5 => repair_symbol(instruction, n, stamp, &mut out),
        6 => nack(instruction, n, stamp, &mut out),
        7 => deadline_nack(instruction, n, stamp, &mut out),
        8 => report(instruction, n, stamp, &mut out),
        9 => emit_probe(stamp, None, &mut out),
        10 => headers(instruction, n, stamp, &mut out),
        _ => notices(instruction, n, stamp, &mut out),
    }
    out
}

/// The header of a packet: flows and numbers go on in equal steps.
fn header(instruction: &Instruction, n: u16, stamp: Stamp) -> DataHeader {
    let ([a, _, c, d], marks) = (instruction.numbers, instruction.marks);
    DataHeader {
        stamp,
        ordered: marks & 1 == 0,
        prompt: marks & 2 != 0,
        compressed: marks & 4 != 0,
        copy: marks & 8 != 0,
        flow: a.wrapping_add(n.wrapping_mul(u16::from(marks >> 4))) % FLOWS,
        flow_seq: d.wrapping_add(n.wrapping_mul(c)),
        ..DataHeader::default()
    }
}

fn packet(instruction: &Instruction, n: u16, stamp: Stamp, out: &mut Vec<u8>) {
    let mut front = [0; DATA_HEADER];
    header(instruction, n, stamp).emit(&mut front);
    out.extend_from_slice(&front);
    let length = 1 + usize::from(instruction.numbers[1] / 1_100) * 20;
    out.resize(DATA_HEADER + length, 0x45);
}

fn piece(instruction: &Instruction, n: u16, stamp: Stamp, out: &mut Vec<u8>) {
    let [a, b, c, d] = instruction.numbers;
    let length = 1 + b % 256;
    let total = c.max(length);
    let fragment = FragmentHeader {
        offset: n.wrapping_mul(a) % (total - length + 1),
        total,
    };
    let header = DataHeader {
        flow: b / 256,
        flow_seq: d.wrapping_add(n.wrapping_mul(u16::from(instruction.marks >> 4))),
        ..header(instruction, n, stamp)
    };
    let mut front = [0; FRAGMENT_HEADER];
    header.emit_fragment(&fragment, &mut front);
    out.extend_from_slice(&front);
    out.resize(FRAGMENT_HEADER + usize::from(length), 0x45);
}

fn repair_symbol(instruction: &Instruction, n: u16, stamp: Stamp, out: &mut Vec<u8>) {
    let [a, b, c, d] = instruction.numbers;
    let count = b.to_be_bytes()[1].max(1);
    let parts = [Part::Whole, Part::Whole, Part::Front, Part::Rest];
    let header = CodedHeader {
        stamp,
        path: instruction.path % super::meter::PATHS,
        first: d.wrapping_add(n.wrapping_mul(a)),
        count,
        seed: n.to_be_bytes()[1],
        part: parts[usize::from(instruction.marks) % parts.len()],
    };
    header.emit(out);
    let mut random = Random::new(u64::from(c) << 16 | u64::from(n));
    let mut bitmap = vec![0_u8; usize::from(count).div_ceil(8)];
    // As many as the decoder takes of unknown packets, or any.
    for _ in 0..instruction.marks >> 2 {
        let place = random.next_u64() % u64::from(count);
        bitmap[(place / 8) as usize] |= 1 << (place % 8);
    }
    out.extend_from_slice(&bitmap);
    out.resize(out.len() + 1 + usize::from(b >> 8), 7);
}

fn nack(instruction: &Instruction, n: u16, stamp: Stamp, out: &mut Vec<u8>) {
    let [a, b, _, d] = instruction.numbers;
    let runs = 0..1 + b % 64;
    let runs: Vec<NackRun> = runs
        .map(|run| NackRun {
            path: (run % u16::from(super::meter::PATHS)).to_be_bytes()[1],
            first: d.wrapping_add((n.wrapping_mul(64).wrapping_add(run)).wrapping_mul(a)),
            count: u8::MAX,
        })
        .collect();
    emit_nack(stamp, &runs, out);
}

fn deadline_nack(instruction: &Instruction, n: u16, stamp: Stamp, out: &mut Vec<u8>) {
    let [a, b, c, d] = instruction.numbers;
    let packets = 0..1 + b % 64;
    let packets: Vec<DeadlineNack> = packets
        .map(|packet| DeadlineNack {
            flow: a.wrapping_add(n).wrapping_add(packet.wrapping_mul(c)) % FLOWS,
            flow_seq: d.wrapping_add(packet),
        })
        .collect();
    emit_deadline_nack(stamp, &packets, out);
}

fn report(instruction: &Instruction, n: u16, stamp: Stamp, out: &mut Vec<u8>) {
    let [a, b, c, d] = instruction.numbers;
    let paths = 0..super::meter::PATHS;
    let report = Report {
        period_ms: a,
        held: b,
        hold_timeouts: c,
        paths: paths
            .map(|path| PathReport {
                path,
                suspect: (u16::from(path) + n) % 3 == d % 3,
                received: u32::from(a),
                lost: u32::from(b),
                loss_runs: u32::from(c),
                delay_min_us: i32::from(c),
                delay_mean_us: i32::from(d),
                late: d,
            })
            .collect(),
    };
    emit_report(stamp, &report, out);
}

/// Headers that can be a reference.
fn headers(instruction: &Instruction, n: u16, stamp: Stamp, out: &mut Vec<u8>) {
    let [a, b, c, d] = instruction.numbers;
    let mut ip = [0; HEADERS];
    (ip[0], ip[3], ip[8], ip[9], ip[32]) = (0x45, HEADERS as u8, 64, 6, 0x50);
    ip[24..26].copy_from_slice(&n.to_be_bytes());
    let headers = Headers {
        flow: a.wrapping_add(n.wrapping_mul(c)) % FLOWS,
        flow_seq: d,
        id: (b.wrapping_add(n) % 64).to_be_bytes()[1],
        rtp_step: None,
    };
    emit_headers(stamp, &headers, &ip, out);
}

fn notices(instruction: &Instruction, n: u16, stamp: Stamp, out: &mut Vec<u8>) {
    let [a, b, c, _] = instruction.numbers;
    let notices: Vec<HeaderNotice> = (0..8)
        .map(|notice| HeaderNotice {
            flow: a.wrapping_add(n).wrapping_add(u16::wrapping_mul(notice, c)) % FLOWS,
            id: b.to_be_bytes()[1] % 64,
            known: instruction.marks & 1 != 0,
        })
        .collect();
    emit_header_notices(stamp, &notices, out);
}
