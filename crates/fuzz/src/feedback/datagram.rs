//! Datagrams that parse, with any content: random bytes seldom get that far.

use crate::input::Input;
use bytes::Bytes;
use ropewalk_types::{Duration, Instant};
use ropewalk_wire::{
    CodedHeader, DATA_HEADER, DataHeader, DeadlineNack, FRAGMENT_HEADER, FragmentHeader, NackRun,
    Part, PathReport, Report, Stamp, Timestamp, emit_deadline_nack, emit_nack, emit_report,
};

/// A stamp of the peer, whose clock is anywhere around this one.
fn stamp(now: Instant, input: &mut Input<'_>) -> Stamp {
    let ahead = Duration::from_millis(u64::from(input.u8()));
    let behind = Duration::from_millis(u64::from(input.u16()));
    Stamp {
        path_seq: input.u16(),
        sent_at: Timestamp::from_instant(now + ahead - behind),
    }
}

/// Packets of one flow, or pieces of packets, whose numbers go on in equal steps.
pub fn packets(now: Instant, input: &mut Input<'_>) -> Vec<Bytes> {
    let (count, marks) = (1 + input.u8() % 64, input.u8());
    let mut header = DataHeader {
        stamp: stamp(now, input),
        checksum_partial: marks & 1 != 0,
        ordered: marks & 2 != 0,
        copy: marks & 4 != 0,
        prompt: marks & 16 != 0,
        compressed: marks & 128 != 0,
        flow: input.u16() % 4_096,
        class: marks >> 4,
        flow_seq: input.u16(),
    };
    let (path_step, flow_step) = (u16::from(input.u8()), u16::from(input.u8()));
    let (length, pieces) = (usize::from(input.u8()), marks & 8 != 0);
    let mut fragment = FragmentHeader {
        offset: input.u16(),
        total: input.u16(),
    };
    let mut packets = Vec::new();
    for _ in 0..count {
        let mut packet = if pieces {
            let mut front = [0; FRAGMENT_HEADER];
            header.emit_fragment(&fragment, &mut front);
            fragment.offset = fragment.offset.wrapping_add(length as u16);
            front.to_vec()
        } else {
            let mut front = [0; DATA_HEADER];
            header.emit(&mut front);
            front.to_vec()
        };
        packet.resize(packet.len() + length, 0x45);
        packets.push(packet.into());
        header.stamp.path_seq = header.stamp.path_seq.wrapping_add(path_step);
        header.flow_seq = header.flow_seq.wrapping_add(flow_step);
    }
    packets
}

/// A small packet of a flow whose packets the egress asks for.
pub fn beat(now: Instant, flow: u16, number: u16) -> Vec<u8> {
    let header = DataHeader {
        stamp: Stamp {
            path_seq: number,
            sent_at: Timestamp::from_instant(now),
        },
        prompt: true,
        flow,
        flow_seq: number,
        ..DataHeader::default()
    };
    let mut packet = [0; DATA_HEADER];
    header.emit(&mut packet);
    packet.into()
}

/// A report on any paths.
pub fn report(now: Instant, input: &mut Input<'_>) -> Vec<u8> {
    let stamp = stamp(now, input);
    let paths = input.u8() % 8;
    let count = |input: &mut Input<'_>| u32::from(input.u16()) << (input.u8() % 9);
    let report = Report {
        period_ms: input.u16(),
        held: input.u16(),
        hold_timeouts: input.u16(),
        paths: (0..paths)
            .map(|_| {
                let path = input.u8();
                PathReport {
                    path: path % 16,
                    suspect: path >= 128,
                    received: count(input),
                    lost: count(input),
                    loss_runs: count(input),
                    delay_min_us: input.u32().cast_signed(),
                    delay_mean_us: input.u32().cast_signed(),
                    late: input.u16(),
                }
            })
            .collect(),
    };
    let mut out = Vec::new();
    emit_report(stamp, &report, &mut out);
    out
}

/// A NACK for any numbers.
pub fn nack(now: Instant, input: &mut Input<'_>) -> Vec<u8> {
    let stamp = stamp(now, input);
    let runs: Vec<NackRun> = (0..input.u8() % 64)
        .map(|_| NackRun {
            path: input.u8() % 16,
            first: input.u16(),
            count: input.u8().max(1),
        })
        .collect();
    let mut out = Vec::new();
    emit_nack(stamp, &runs, &mut out);
    out
}

/// A NACK for any packets of flows.
pub fn deadline_nack(now: Instant, input: &mut Input<'_>) -> Vec<u8> {
    let stamp = stamp(now, input);
    let packets: Vec<DeadlineNack> = (0..input.u8() % 65)
        .map(|_| DeadlineNack {
            flow: input.u16() % 4_096,
            flow_seq: input.u16(),
        })
        .collect();
    let mut out = Vec::new();
    emit_deadline_nack(stamp, &packets, &mut out);
    out
}

/// A repair symbol of any numbers.
pub fn repair_symbol(now: Instant, input: &mut Input<'_>) -> Vec<u8> {
    let parts = [Part::Whole, Part::Front, Part::Rest];
    let header = CodedHeader {
        stamp: stamp(now, input),
        path: input.u8() % 16,
        first: input.u16(),
        count: input.u8().max(1),
        seed: input.u8(),
        part: parts[usize::from(input.u8()) % parts.len()],
    };
    let length = 1 + usize::from(input.u8());
    let mut out = Vec::new();
    header.emit(&mut out);
    out.extend_from_slice(input.bytes(length));
    out.resize(DATA_HEADER + length, 0);
    out
}
