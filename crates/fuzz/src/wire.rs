//! Datagrams: all bytes parse or are refused. A datagram that parses is emitted as it came. A
//! datagram that is emitted parses as it was.

use crate::input::Input;
use ropewalk_types::{PATHS_MAX, PacketInfo, PortBlock, WRAP_BYTES, unwrap, wrapping};
use ropewalk_wire::{
    Control, DATA_HEADER, DEADLINE_NACKS_MAX, Datagram, DeadlineNack, FRAGMENT_HEADER,
    HEADER_NOTICES_MAX, HeaderNotice, Hello, NACK_RUNS_MAX, NackRun, PathReport, Report, Stamp,
    Timestamp, Versions, Welcome, deadline_nacks, emit_control, emit_deadline_nack,
    emit_header_notices, emit_headers, emit_nack, emit_probe, emit_report, header_notices,
    nack_runs, restamp,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of kind and stamp.
const STAMP: usize = 6;
/// Longest name that a message carries, and most addresses.
const NAME_MAX: usize = 64;
const ADDRESSES_MAX: usize = 8;
/// Flow buckets.
const FLOWS: u16 = 4_096;

/// Parses the input as one datagram, emits what was parsed, and sends a copy of it again. Then
/// builds messages from the same bytes and parses those.
///
/// # Panics
/// When a datagram or message is not what it was.
pub fn wire(data: &[u8]) {
    if let Ok(datagram) = Datagram::parse(data) {
        again(data, &datagram);
    }
    sent_again(data);
    unwrapped(data);
    let mut input = Input::new(data);
    control(&hello(&mut input));
    control(&welcome(&mut input));
    control(&small(&mut input));
    report(&mut input);
    nack(&mut input);
    deadline_nack(&mut input);
}

/// Takes the input for a packet that another hub has wrapped, and for one that is to be wrapped.
fn unwrapped(data: &[u8]) {
    const SITE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
    let Some(info) = PacketInfo::parse(data) else {
        return;
    };
    let mut packet = data.to_vec();
    if let Some(inner) = unwrap(&mut packet, &info) {
        assert_eq!(inner.length + WRAP_BYTES, info.length);
        assert_eq!(inner.flow.destination, info.flow.source);
        assert_eq!(PacketInfo::parse(&packet[WRAP_BYTES..]), Some(inner));
    }
    let Some(header) = wrapping(data, &info, SITE) else {
        return;
    };
    let mut wrapped = [&header[..], &data[..info.length]].concat();
    let Some(outer) = PacketInfo::parse(&wrapped) else {
        panic!("what a hub wraps is a packet")
    };
    if info.flow.source != info.flow.destination {
        assert_eq!(unwrap(&mut wrapped, &outer), Some(info));
        assert_eq!(wrapped[WRAP_BYTES..], data[..info.length]);
    }
}

/// Emits what was parsed: all that was read of the datagram is there again.
fn again(data: &[u8], datagram: &Datagram) {
    let mut out = Vec::new();
    match datagram {
        Datagram::Data { header, at } => {
            let mut front = [0; DATA_HEADER];
            header.emit(&mut front);
            assert_eq!((&data[..*at], *at), (&front[..], DATA_HEADER));
        }
        Datagram::Fragment {
            header,
            fragment,
            at,
        } => {
            let mut front = [0; FRAGMENT_HEADER];
            header.emit_fragment(fragment, &mut front);
            assert_eq!((&data[..*at], *at), (&front[..], FRAGMENT_HEADER));
            let end = usize::from(fragment.offset) + data[*at..].len();
            assert!(data.len() > *at && end <= usize::from(fragment.total));
        }
        Datagram::Coded { header, at } => {
            header.emit(&mut out);
            assert_eq!((&data[..*at], *at), (&out[..], DATA_HEADER));
            assert!(data.len() > *at && header.count > 0);
        }
        // The low bits of the first byte mean nothing in the others.
        Datagram::Report { stamp, report } => {
            emit_report(*stamp, report, &mut out);
            assert_eq!(data[1..], out[1..]);
        }
        Datagram::Probe { stamp, newest } => {
            emit_probe(*stamp, *newest, &mut out);
            assert_eq!(data[1..out.len()], out[1..]);
        }
        Datagram::Nack { stamp, at } => {
            let runs: Vec<NackRun> = nack_runs(&data[*at..]).collect();
            emit_nack(*stamp, &runs, &mut out);
            assert_eq!(data[1..], out[1..]);
            assert!(runs.iter().all(|run| run.count > 0));
            assert!(runs.iter().all(|run| usize::from(run.path) < PATHS_MAX));
        }
        Datagram::DeadlineNack { stamp, at } => {
            let packets: Vec<DeadlineNack> = deadline_nacks(&data[*at..]).collect();
            emit_deadline_nack(*stamp, &packets, &mut out);
            assert_eq!(data[1..], out[1..]);
            assert!(packets.len() <= DEADLINE_NACKS_MAX);
            assert!(packets.iter().all(|packet| packet.flow < FLOWS));
        }
        Datagram::Headers { stamp, headers, at } => {
            emit_headers(*stamp, headers, &data[*at..], &mut out);
            assert_eq!(data[1..], out[1..]);
            assert!(headers.flow < FLOWS);
        }
        Datagram::HeaderNotices { stamp, at } => {
            let notices: Vec<HeaderNotice> = header_notices(&data[*at..]).collect();
            emit_header_notices(*stamp, &notices, &mut out);
            assert_eq!(data[1..], out[1..]);
            assert!(notices.len() <= HEADER_NOTICES_MAX);
            assert!(notices.iter().all(|notice| notice.flow < FLOWS));
        }
        Datagram::Control(message) => control(message),
    }
}

/// A datagram that can be sent again is the same afterwards but for number, time and mark.
fn sent_again(data: &[u8]) {
    let stamp = Stamp {
        path_seq: 0x1234,
        sent_at: Timestamp::default(),
    };
    let mut copy = data.to_vec();
    if restamp(&mut copy, stamp, true).is_err() {
        assert_eq!(copy, data);
        return;
    }
    assert_eq!(copy.len(), data.len());
    assert_eq!(copy[STAMP..], data[STAMP..]);
    let (before, after) = (Datagram::parse(data), Datagram::parse(&copy));
    assert_eq!(before.is_ok(), after.is_ok());
    if let Ok(after) = after {
        assert_eq!(after.stamp(), Some(stamp));
    }
}

/// What is emitted parses as it was.
fn control(message: &Control) {
    let mut out = Vec::new();
    emit_control(message, &mut out);
    assert_eq!(
        Datagram::parse(&out),
        Ok(Datagram::Control(message.clone()))
    );
}

fn path(input: &mut Input<'_>) -> u8 {
    input.u8() % PATHS_MAX as u8
}

fn versions(input: &mut Input<'_>) -> Versions {
    let (one, other) = (input.u8(), input.u8());
    let range = Versions::new(one.min(other), one.max(other));
    range.unwrap_or(Versions::OURS)
}

fn hello(input: &mut Input<'_>) -> Control {
    let name = input.u8();
    let mut hello = Hello {
        versions: versions(input),
        session: input.u64(),
        path: path(input),
        generation: input.u32(),
        standby: input.flag(),
        metered: input.flag(),
        bottleneck: Some(input.u8() & 0x0f).filter(|number| *number > 0),
        scheduler: input.u8(),
        weight: input.u16(),
        name: String::new(),
        claim: None,
    };
    let name = String::from_utf8_lossy(input.bytes(usize::from(name)));
    let printable = name.chars().filter(|c| !c.is_control());
    for letter in printable {
        if hello.name.len() + letter.len_utf8() > NAME_MAX {
            break;
        }
        hello.name.push(letter);
    }
    Control::Hello(hello)
}

fn welcome(input: &mut Input<'_>) -> Control {
    let counts = input.u16();
    let [addresses, hub_addresses] = counts
        .to_be_bytes()
        .map(|count| usize::from(count) % (ADDRESSES_MAX + 1));
    let versions = versions(input);
    Control::Welcome(Welcome {
        versions,
        session: input.u64(),
        hub_session: input.u64(),
        path: path(input),
        generation: input.u32(),
        scheduler: input.u8(),
        addresses: (0..addresses).map(|_| address(input)).collect(),
        hub_addresses: (0..hub_addresses).map(|_| address(input).0).collect(),
        // An end without ranges of versions has no field behind them.
        block: PortBlock::new(input.u32().into(), input.u16(), input.u16())
            .filter(|_| versions.has_ranges()),
    })
}

/// An address with prefix length.
fn address(input: &mut Input<'_>) -> (IpAddr, u8) {
    let low = input.u32();
    if input.flag() {
        let ip = Ipv6Addr::from((u128::from(input.u64()) << 64) | u128::from(low));
        (IpAddr::V6(ip), input.u8() % 129)
    } else {
        (IpAddr::V4(Ipv4Addr::from(low)), input.u8() % 33)
    }
}

fn small(input: &mut Input<'_>) -> Control {
    let kind = input.u8();
    match kind % 4 {
        0 => Control::PathGone {
            path: path(input),
            generation: input.u32(),
        },
        1 => Control::Scheduler { kind },
        2 => Control::SchedulerIs { kind },
        _ => Control::Goodbye,
    }
}

fn stamp(input: &mut Input<'_>) -> Stamp {
    let time = ropewalk_types::Instant::from_nanos(input.u64());
    Stamp {
        path_seq: input.u16(),
        sent_at: Timestamp::from_instant(time),
    }
}

fn report(input: &mut Input<'_>) {
    let stamp = stamp(input);
    let paths = usize::from(input.u8()) % (PATHS_MAX + 1);
    let count = |input: &mut Input<'_>| input.u32() >> 8;
    let report = Report {
        period_ms: input.u16(),
        held: input.u16(),
        hold_timeouts: input.u16(),
        paths: (0..paths)
            .map(|_| PathReport {
                path: path(input),
                suspect: input.flag(),
                received: count(input),
                lost: count(input),
                loss_runs: count(input),
                delay_min_us: input.u32().cast_signed(),
                delay_mean_us: input.u32().cast_signed(),
                late: input.u16(),
            })
            .collect(),
    };
    let mut out = Vec::new();
    emit_report(stamp, &report, &mut out);
    assert_eq!(
        Datagram::parse(&out),
        Ok(Datagram::Report { stamp, report })
    );
}

fn nack(input: &mut Input<'_>) {
    let stamp = stamp(input);
    let count = usize::from(input.u8()) % (NACK_RUNS_MAX + 1);
    let runs: Vec<NackRun> = (0..count)
        .map(|_| NackRun {
            path: path(input),
            first: input.u16(),
            count: input.u8().max(1),
        })
        .collect();
    let mut out = Vec::new();
    emit_nack(stamp, &runs, &mut out);
    assert_eq!(
        Datagram::parse(&out),
        Ok(Datagram::Nack { stamp, at: STAMP })
    );
    assert!(nack_runs(&out[STAMP..]).eq(runs));
}

fn deadline_nack(input: &mut Input<'_>) {
    let stamp = stamp(input);
    let count = usize::from(input.u8()) % (DEADLINE_NACKS_MAX + 1);
    let packets: Vec<DeadlineNack> = (0..count)
        .map(|_| DeadlineNack {
            flow: input.u16() % FLOWS,
            flow_seq: input.u16(),
        })
        .collect();
    let mut out = Vec::new();
    emit_deadline_nack(stamp, &packets, &mut out);
    assert_eq!(
        Datagram::parse(&out),
        Ok(Datagram::DeadlineNack { stamp, at: STAMP })
    );
    assert!(deadline_nacks(&out[STAMP..]).eq(packets));
}
