use super::*;
use proptest::prelude::*;

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
            version: VERSION,
            session: 1,
            path: 3,
            generation: 4,
            standby: true,
            metered: false,
            bottleneck: Some(15),
            scheduler: 0xff,
            weight: 10,
            name: "wlan0 ü".into(),
        }),
        Control::Welcome(Welcome {
            version: VERSION,
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
        Control::Enrol { key: [7; 32] },
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
