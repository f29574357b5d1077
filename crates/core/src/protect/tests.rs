use super::*;

/// An IPv4 packet with ports and DSCP.
fn packet(protocol: u8, ports: (u16, u16), dscp: u8, length: u16) -> (PacketInfo, usize) {
    let mut ip = vec![0; usize::from(length)];
    ip[0] = 0x45;
    ip[1] = dscp << 2;
    ip[2..4].copy_from_slice(&length.to_be_bytes());
    ip[9] = protocol;
    ip[20..22].copy_from_slice(&ports.0.to_be_bytes());
    ip[22..24].copy_from_slice(&ports.1.to_be_bytes());
    (PacketInfo::parse(&ip).unwrap(), ip.len())
}

fn class(name: &str, rule: Rule) -> Class {
    Class {
        name: name.into(),
        rule,
        protection: Protection::Duplicate,
        ..Class::default()
    }
}

#[test]
fn the_first_class_that_matches_in_all_respects_counts() {
    let voice = Rule {
        dscp: vec![46],
        packet_bytes_max: 300,
        ..Rule::default()
    };
    let names = Rule {
        protocols: vec![17],
        ports: vec![53..=53, 3_478..=3_481],
        ..Rule::default()
    };
    let classes = Classes::new(
        Class::default(),
        [class("voice", voice), class("names", names)],
    );
    let of =
        |(info, bytes): (PacketInfo, usize)| classes.get(classes.of(&info, bytes)).name.clone();
    assert_eq!(of(packet(17, (40_000, 53), 46, 200)), "voice");
    assert_eq!(of(packet(17, (40_000, 53), 46, 301)), "names");
    assert_eq!(of(packet(17, (3_480, 9), 0, 80)), "names");
    assert_eq!(of(packet(6, (40_000, 53), 0, 80)), "default");
    assert_eq!(of(packet(17, (40_000, 54), 0, 80)), "default");
}

#[test]
fn the_identifier_of_an_echo_request_is_no_port() {
    let rule = Rule {
        ports: vec![0..=53],
        ..Rule::default()
    };
    let mut echo = vec![0; 28];
    (echo[0], echo[3], echo[9]) = (0x45, 28, 1);
    (echo[20], echo[25]) = (8, 53);
    let echo = PacketInfo::parse(&echo).unwrap();
    assert_eq!(echo.flow.ports, [53, 0]);
    assert!(!rule.matches(&echo, 28));
    let (query, bytes) = packet(17, (40_000, 53), 0, 84);
    assert!(rule.matches(&query, bytes));
}

#[test]
fn either_address_may_lie_in_a_network_of_its_family() {
    let rule = |nets: &[(&str, u8)]| Rule {
        addresses: nets
            .iter()
            .map(|(address, prefix)| Network {
                address: address.parse().unwrap(),
                prefix: *prefix,
            })
            .collect(),
        ..Rule::default()
    };
    let mut v4 = vec![0; 28];
    v4[0] = 0x45;
    v4[3] = 28;
    v4[9] = 17;
    v4[12..20].copy_from_slice(&[10, 0, 0, 1, 192, 0, 2, 7]);
    let mut v6 = vec![0; 48];
    v6[0] = 0x60;
    v6[5] = 8;
    v6[6] = 17;
    v6[8..12].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    v6[24] = 0xfd;
    for (packet, nets, expected) in [
        (&v4, &[("192.0.2.0", 24)][..], true),
        (&v4, &[("192.0.2.8", 29), ("10.0.0.1", 32)], true),
        (&v4, &[("192.0.2.8", 29), ("10.0.0.0", 32)], false),
        (&v4, &[("0.0.0.0", 0)], true),
        (&v4, &[("::", 0)], false),
        (&v6, &[("::", 0)], true),
        (&v6, &[("0.0.0.0", 0)], false),
        (&v6, &[("2001:db8::", 128)], true),
        (&v6, &[("fc00::", 7)], true),
        (&v6, &[("fe00::", 7)], false),
    ] {
        let info = PacketInfo::parse(packet).unwrap();
        assert_eq!(
            rule(nets).matches(&info, packet.len()),
            expected,
            "{nets:?}"
        );
    }
}

#[test]
fn there_are_no_more_classes_than_numbers() {
    let rules = (0..40).map(|n| class(&n.to_string(), Rule::default()));
    let classes = Classes::new(Class::default(), rules);
    assert_eq!(classes.iter().count(), CLASSES_MAX);
    assert_eq!(classes.get(200).name, "default");
}

#[test]
fn protections_are_named() {
    for protection in Protection::ALL {
        assert_eq!(protection.name().parse(), Ok(protection));
    }
    let error = "copies".parse::<Protection>().unwrap_err().to_string();
    assert!(
        error.contains("copies") && error.contains("duplicate"),
        "{error}"
    );
}
