use super::*;
use proptest::prelude::*;
use ropewalk_types::PortBlock;

fn header() -> DataHeader {
    DataHeader {
        stamp: Stamp {
            path_seq: 0xfffe,
            sent_at: Timestamp(0x00ab_cdef),
        },
        checksum_partial: true,
        ordered: true,
        copy: false,
        prompt: false,
        compressed: false,
        flow: 0x0abc,
        class: 5,
        flow_seq: 77,
    }
}

#[test]
fn data_round_trip() {
    let mut bytes = [0; DATA_HEADER];
    header().emit(&mut bytes);
    assert_eq!(
        Datagram::parse(&bytes),
        Ok(Datagram::Data {
            header: header(),
            at: DATA_HEADER
        })
    );
}

#[test]
fn headers_and_what_is_known_of_them_round_trip() {
    for rtp_step in [None, Some(160)] {
        let headers = Headers {
            flow: 0x0abc,
            flow_seq: 7,
            id: 9,
            rtp_step,
        };
        let mut bytes = Vec::new();
        emit_headers(header().stamp, &headers, b"inner", &mut bytes);
        let stamp = header().stamp;
        let at = bytes.len() - 5;
        assert_eq!(
            Datagram::parse(&bytes),
            Ok(Datagram::Headers { stamp, headers, at })
        );
        for cut in 0..at {
            assert!(Datagram::parse(&bytes[..cut]).is_err(), "{cut}");
        }
    }
    let notices: Vec<HeaderNotice> = (0..64)
        .map(|n| HeaderNotice {
            flow: 4_095 - n,
            id: 3,
            known: n % 3 == 0,
        })
        .collect();
    let mut bytes = Vec::new();
    emit_header_notices(header().stamp, &notices, &mut bytes);
    let Ok(Datagram::HeaderNotices { at, .. }) = Datagram::parse(&bytes) else {
        panic!("notices are read");
    };
    assert_eq!(header_notices(&bytes[at..]).collect::<Vec<_>>(), notices);
    bytes.push(0);
    assert_eq!(Datagram::parse(&bytes), Err(WireError::Invalid));
}

#[test]
fn fragment_round_trip_and_bounds() {
    let fragment = FragmentHeader {
        offset: 10,
        total: 14,
    };
    let mut bytes = [0; FRAGMENT_HEADER];
    header().emit_fragment(&fragment, &mut bytes);
    let mut whole = bytes.to_vec();
    assert_eq!(
        Datagram::parse(&whole),
        Err(WireError::Invalid),
        "empty piece"
    );
    whole.extend_from_slice(&[1, 2, 3, 4]);
    assert!(
        matches!(Datagram::parse(&whole), Ok(Datagram::Fragment { fragment: f, at: FRAGMENT_HEADER, .. }) if f == fragment)
    );
    whole.push(5);
    assert_eq!(
        Datagram::parse(&whole),
        Err(WireError::Invalid),
        "past the end"
    );
}

#[test]
fn control_messages_are_told_from_all_other_datagrams_by_their_first_byte() {
    let mut control = Vec::new();
    emit_control(&Control::Goodbye, &mut control);
    let mut data = [0; DATA_HEADER];
    header().emit(&mut data);
    assert!(is_control(&control));
    assert!(!is_control(&data) && !is_control(&[]));
}

#[test]
fn missing_round_trip_and_bounds() {
    let run = |path, first, count| NackRun { path, first, count };
    let runs = [run(0, 65_535, 1), run(15, 7, 255)];
    let mut bytes = Vec::new();
    emit_nack(header().stamp, &runs, &mut bytes);
    let Ok(Datagram::Nack { stamp, at }) = Datagram::parse(&bytes) else {
        panic!("not a nack");
    };
    assert_eq!(stamp, header().stamp);
    assert!(nack_runs(&bytes[at..]).eq(runs));
    for bad in [run(16, 0, 1), run(0, 0, 0)] {
        let mut bytes = Vec::new();
        emit_nack(Stamp::default(), &[bad], &mut bytes);
        assert_eq!(Datagram::parse(&bytes), Err(WireError::Invalid), "{bad:?}");
    }
    bytes.pop();
    assert_eq!(
        Datagram::parse(&bytes),
        Err(WireError::Invalid),
        "half a run"
    );
    let mut long = Vec::new();
    emit_nack(Stamp::default(), &[run(0, 0, 1); 70], &mut long);
    assert_eq!(long.len(), 6 + 64 * 4);
}

#[test]
fn a_packet_sent_again_has_a_new_stamp_and_may_be_a_copy() {
    let mut bytes = [0; DATA_HEADER];
    let header = header();
    header.emit(&mut bytes);
    let stamp = Stamp {
        path_seq: 9,
        sent_at: Timestamp(5),
    };
    restamp(&mut bytes, stamp, true).unwrap();
    let again = DataHeader {
        stamp,
        copy: true,
        ..header
    };
    assert_eq!(
        Datagram::parse(&bytes),
        Ok(Datagram::Data {
            header: again,
            at: DATA_HEADER
        })
    );
    let mut probe = Vec::new();
    emit_probe(stamp, None, &mut probe);
    assert_eq!(restamp(&mut probe, stamp, false), Err(WireError::Invalid));
}

#[test]
fn report_and_probe_round_trip() {
    let report = Report {
        period_ms: 100,
        held: 3,
        hold_timeouts: 1,
        paths: vec![
            PathReport {
                path: 0,
                received: 70_000,
                delay_min_us: -5,
                ..Default::default()
            },
            PathReport {
                path: 15,
                suspect: true,
                lost: 2,
                loss_runs: 1,
                late: 9,
                ..Default::default()
            },
        ],
    };
    let stamp = Stamp {
        path_seq: 1,
        sent_at: Timestamp(2),
    };
    let mut bytes = Vec::new();
    emit_report(stamp, &report, &mut bytes);
    assert_eq!(
        Datagram::parse(&bytes),
        Ok(Datagram::Report { stamp, report })
    );

    bytes.clear();
    for newest in [None, Some(0), Some(0xfffe)] {
        bytes.clear();
        emit_probe(stamp, newest, &mut bytes);
        let probe = Datagram::Probe { stamp, newest };
        assert_eq!(Datagram::parse(&bytes), Ok(probe));
    }
}

#[test]
fn messages_between_gateways_round_trip() {
    let mut bytes = Vec::new();
    let messages = [
        Control::Hello(Hello {
            versions: Versions::OURS,
            session: 1,
            path: 3,
            generation: 4,
            standby: true,
            metered: false,
            bottleneck: Some(15),
            scheduler: 0xff,
            weight: 10,
            name: "wlan0 ü".into(),
            claim: Some(Claim {
                epoch: 3,
                hub: [9; 32],
                signature: [6; 64],
            }),
        }),
        Control::Welcome(Welcome {
            versions: Versions::OURS,
            session: 1,
            hub_session: 2,
            path: 3,
            generation: 4,
            scheduler: 12,
            addresses: vec![
                ("10.7.0.2".parse().expect("ip"), 32),
                ("fd00::2".parse().expect("ip"), 128),
            ],
            hub_addresses: vec!["10.7.0.1".parse().expect("ip")],
            block: PortBlock::new([203, 0, 113, 7].into(), 2_048, 4_095),
        }),
        Control::PathGone {
            path: 1,
            generation: 2,
        },
        Control::Scheduler { kind: 1 },
        Control::SchedulerIs { kind: 2 },
        Control::Goodbye,
        Control::Release {
            name: "0.1.0".into(),
        },
        Control::Enrol {
            key: [7; 32],
            proof: None,
        },
        Control::Enrol {
            key: [7; 32],
            proof: Some([8; 64]),
        },
        Control::HubKey { key: [7; 32] },
        claim(false),
        claim(true),
        path_sends(),
        Control::Enrolled {
            refused: String::new(),
        },
        Control::Enrolled {
            refused: "used already".into(),
        },
    ];
    for message in messages {
        bytes.clear();
        emit_control(&message, &mut bytes);
        assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Control(message)));
    }
}

fn path_sends() -> Control {
    Control::PathSends(PathSends {
        full_kbit: 16_000,
        mtu: 1_472,
        lost: u16::MAX,
    })
}

fn claim(drained: bool) -> Control {
    let claim = Claim {
        epoch: u64::MAX,
        hub: [1; 32],
        signature: [2; 64],
    };
    Control::Claim { claim, drained }
}

#[test]
fn a_claim_of_a_hub_that_sites_shall_not_leave_is_the_message_of_before() {
    let mut bytes = Vec::new();
    emit_control(&claim(false), &mut bytes);
    assert_eq!(bytes.len(), 2 + 8 + 32 + 64);
    // Marks of later versions.
    bytes.push(0xfe);
    assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Control(claim(false))));
}

/// A Hello and a Welcome as programs that speak version 4 only send them, recorded.
const HELLO_4: &str = "50 01 04 0102030405060708 03 00000004 3d ff 000a 05 776c616e30";
const WELCOME_4: &str = "50 02 04 0102030405060708 1112131415161718 03 00000004 0c \
    02 04 14 0a681002 06 40 fddc26d102c400000000000000000002 01 04 00 0a681001";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| core::str::from_utf8(pair).expect("ASCII"));
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).expect("hex"))
        .collect()
}

fn hello(oldest: u8, newest: u8) -> Control {
    Control::Hello(Hello {
        versions: Versions::new(oldest, newest).expect("a range"),
        session: 0x0102_0304_0506_0708,
        path: 3,
        generation: 4,
        standby: true,
        metered: false,
        bottleneck: Some(15),
        scheduler: 0xff,
        weight: 10,
        name: "wlan0".into(),
        claim: None,
    })
}

fn welcome(oldest: u8, newest: u8) -> Control {
    Control::Welcome(Welcome {
        versions: Versions::new(oldest, newest).expect("a range"),
        session: 0x0102_0304_0506_0708,
        hub_session: 0x1112_1314_1516_1718,
        path: 3,
        generation: 4,
        scheduler: 12,
        addresses: vec![
            ("10.104.16.2".parse().expect("ip"), 20),
            ("fddc:26d1:2c4::2".parse().expect("ip"), 64),
        ],
        hub_addresses: vec!["10.104.16.1".parse().expect("ip")],
        block: None,
    })
}

fn emitted(message: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    emit_control(message, &mut bytes);
    bytes
}

/// These bytes are in the hands of users: they never change.
#[test]
fn hello_and_welcome_of_version_4_are_read_and_written_as_recorded() {
    for (recorded, message) in [(HELLO_4, hello(4, 4)), (WELCOME_4, welcome(4, 4))] {
        let recorded = bytes(recorded);
        assert_eq!(emitted(&message), recorded);
        assert_eq!(Datagram::parse(&recorded), Ok(Datagram::Control(message)));
    }
}

/// A program that speaks version 4 only reads the oldest version, and nothing behind the last field that
/// it knows.
#[test]
fn a_range_stands_where_programs_without_ranges_do_not_look() {
    for (recorded, message) in [(HELLO_4, hello(4, 5)), (WELCOME_4, welcome(4, 5))] {
        let mut expected = bytes(recorded);
        expected.push(5);
        assert_eq!(emitted(&message), expected);
    }
    for message in [hello(5, 5), welcome(5, 5), hello(3, 4), welcome(4, 200)] {
        let read = Datagram::parse(&emitted(&message));
        assert_eq!(read, Ok(Datagram::Control(message)));
    }
    let mut empty = bytes(HELLO_4);
    empty.push(3);
    assert_eq!(Datagram::parse(&empty), Err(WireError::Invalid));
}

/// What later versions append, and the bits of the marks that nobody uses yet, change nothing.
#[test]
fn what_is_not_known_of_a_message_is_ignored() {
    for message in [
        hello(4, 5),
        welcome(4, 5),
        Control::Goodbye,
        Control::Release {
            name: "9.0.0".into(),
        },
        Control::Enrol {
            key: [7; 32],
            proof: None,
        },
        Control::Enrol {
            key: [7; 32],
            proof: Some([8; 64]),
        },
        Control::Enrolled {
            refused: "used already".into(),
        },
    ] {
        let mut longer = emitted(&message);
        longer.extend_from_slice(b"appended");
        let read = Datagram::parse(&longer);
        assert_eq!(read, Ok(Datagram::Control(message)));
    }
    let mut marked = emitted(&hello(4, 5));
    // Behind kind, message, version, session, path and generation.
    marked[16] |= 0xc0;
    let read = Datagram::parse(&marked);
    assert_eq!(read, Ok(Datagram::Control(hello(4, 5))));
}

#[test]
fn timestamps_wrap() {
    let before = Timestamp(0x00ff_fff0);
    assert_eq!(Timestamp(0x10).distance(before), 0x20);
    assert_eq!(before.distance(Timestamp(0x10)), -0x20);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Datagram::parse(&bytes);
    }

    #[test]
    fn whatever_parses_as_data_is_emitted_the_same(mut bytes in proptest::collection::vec(any::<u8>(), 10..40)) {
        bytes[0] = 0x10 | (bytes[0] & 7);
        let Ok(Datagram::Data { header, at }) = Datagram::parse(&bytes) else {
            return Err(TestCaseError::fail("a full header must parse"));
        };
        let mut again = [0; DATA_HEADER];
        header.emit(&mut again);
        prop_assert_eq!(&bytes[..at], &again[..]);
    }
}
