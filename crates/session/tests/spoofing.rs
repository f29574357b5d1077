//! What a site may say of where its packets come from: every claim, in every form in which packets come out of a
//! tunnel. A hub lets a packet through only if its source is an address or a network of the site that sent it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::BytesMut;
use ropewalk_core::hold::{Freeze, Limits};
use ropewalk_core::protect::Protection;
use ropewalk_netem::{Change, LossModel, Selector, Side};
use ropewalk_testkit::{HUB_INNER, Neighbour, Spec, World};
use ropewalk_types::Duration;
use ropewalk_wire::HEADROOM;

const SECOND: Duration = Duration::from_secs(1);
const TCP: u8 = 6;
const OTHER: u8 = 253;
/// Packets of each claim, and as many of the site's own between them.
const PACKETS: u32 = 40;

/// The site that lies, and the one it would pass itself off as; the first site has the network of a relay.
const LIAR: usize = 2;
const LIAR_V4: Ipv4Addr = Ipv4Addr::new(10, 253, 9, 1);
const LIAR_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x91);
const VICTIM_V4: Ipv4Addr = Ipv4Addr::new(10, 253, 9, 2);
const VICTIM_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x92);
const TARGET_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

/// Whom the site claims to be.
const CLAIMS: [(&str, IpAddr); 12] = [
    ("another site, IPv4", IpAddr::V4(VICTIM_V4)),
    ("another site, IPv6", IpAddr::V6(VICTIM_V6)),
    ("the hub, IPv4", IpAddr::V4(HUB_INNER)),
    ("the hub, IPv6", IpAddr::V6(TARGET_V6)),
    (
        "a host behind a relay",
        IpAddr::V4(Ipv4Addr::new(10, 254, 3, 4)),
    ),
    ("the relay itself", IpAddr::V4(Ipv4Addr::new(10, 253, 0, 2))),
    (
        "a host of the internet, IPv4",
        IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7)),
    ),
    (
        "a host of the internet, IPv6",
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7)),
    ),
    ("nobody, IPv4", IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
    ("nobody, IPv6", IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    ("the machine itself", IpAddr::V4(Ipv4Addr::LOCALHOST)),
    (
        "the own address, as IPv6",
        IpAddr::V6(LIAR_V4.to_ipv6_mapped()),
    ),
];

/// How packets come out of the tunnel at the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As they are.
    Whole,
    /// Fragments of IP, of which the first has ports and the others have none.
    IpFragments,
    /// Longer than a datagram: the tunnel cuts them, and puts them together again.
    Halves,
    /// Lost, and recovered from repair symbols.
    Recovered,
    /// Lost, and sent again.
    Repaired,
    /// Held by the site while it has no path.
    Held,
    /// TCP, for which both gateways take custody while the site has no path.
    Custody,
    /// Over TLS, as UDP is blocked.
    Tls,
}

const FORMS: [Form; 8] = [
    Form::Whole,
    Form::IpFragments,
    Form::Halves,
    Form::Recovered,
    Form::Repaired,
    Form::Held,
    Form::Custody,
    Form::Tls,
];

fn world(form: Form) -> World {
    let protection = match form {
        Form::Recovered => Some([Protection::Code; 2]),
        Form::Repaired => Some([Protection::Duplicate; 2]),
        Form::Whole | Form::IpFragments | Form::Halves | Form::Held | Form::Custody | Form::Tls => {
            None
        }
    };
    let mut hold = Limits::default();
    if form == Form::Custody {
        hold.freeze = Freeze::ProxyAck;
    }
    let site = |v4: Ipv4Addr, v6: Ipv6Addr| Neighbour {
        addresses: vec![v4.into(), v6.into()],
        uplinks: 1,
    };
    let mut world = World::new(&Spec {
        sites: 1,
        uplinks: 1,
        hosts: true,
        protection,
        hold,
        neighbours: vec![site(VICTIM_V4, VICTIM_V6), site(LIAR_V4, LIAR_V6)],
        ..Spec::default()
    });
    if form == Form::Tls {
        world.block_udp(LIAR, 0, true);
    }
    world.run_until(20 * SECOND, |w| w.transports_up(LIAR).len() == 1);
    let transport = if form == Form::Tls { "tls" } else { "quic" };
    assert_eq!(world.transports_up(LIAR), [transport]);
    world
}

/// A packet from `source` with a number, and the same of a fragment of IP if `offset` is not 0.
fn packet(
    source: IpAddr,
    protocol: u8,
    number: u32,
    bytes: usize,
    fragment: Option<u16>,
) -> BytesMut {
    let mut data = BytesMut::zeroed(HEADROOM + bytes);
    let ip = &mut data[HEADROOM..];
    let length = u16::try_from(bytes).expect("a packet");
    let mut upper = match source {
        IpAddr::V4(source) => {
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&length.to_be_bytes());
            ip[4..6].copy_from_slice(&number.to_be_bytes()[2..]);
            if let Some(word) = fragment {
                ip[6..8].copy_from_slice(&word.to_be_bytes());
            }
            (ip[8], ip[9]) = (64, protocol);
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&HUB_INNER.octets());
            20
        }
        IpAddr::V6(source) => {
            ip[0] = 0x60;
            ip[4..6].copy_from_slice(&(length - 40).to_be_bytes());
            (ip[6], ip[7]) = (protocol, 64);
            ip[8..24].copy_from_slice(&source.octets());
            ip[24..40].copy_from_slice(&TARGET_V6.octets());
            40
        }
    };
    if let (IpAddr::V6(_), Some(word)) = (source, fragment) {
        // The fragment header: the next one, the place, whether more follow, a number.
        (ip[6], ip[40]) = (44, protocol);
        let place = (word & 0x1fff) << 3 | word >> 13 & 1;
        ip[42..44].copy_from_slice(&place.to_be_bytes());
        ip[44..48].copy_from_slice(&number.to_be_bytes());
        upper += 8;
    }
    if protocol == TCP {
        ip[upper..upper + 4].copy_from_slice(&[0x9c, 0x40, 0x13, 0x89]);
        ip[upper + 4..upper + 8].copy_from_slice(&(number * 1_000).to_be_bytes());
        (ip[upper + 12], ip[upper + 13]) = (5 << 4, 0x18);
        ip[upper + 14..upper + 16].fill(0x7f);
    }
    data
}

/// The site sends packets of `source`, and as many of its own beside them.
fn send(world: &mut World, form: Form, source: IpAddr) {
    let own: IpAddr = if source.is_ipv4() {
        LIAR_V4.into()
    } else {
        LIAR_V6.into()
    };
    let protocol = if form == Form::Custody { TCP } else { OTHER };
    let bytes = if form == Form::Halves { 1_800 } else { 400 };
    for number in 0..PACKETS {
        for who in [source, own] {
            // More follow, and the last one that lies behind them.
            let parts: &[Option<u16>] = if form == Form::IpFragments {
                &[Some(0x2000), Some(40)]
            } else {
                &[None]
            };
            for part in parts {
                let data = packet(who, protocol, number, bytes, *part);
                let now = world.now();
                world.offer(now, LIAR, Side::Up, data);
            }
        }
        world.settle_touched();
        world.run(Duration::from_millis(4));
    }
}

/// What the hub has let through after the first `before` packets: of the site's own addresses, and of others.
fn through(world: &World, before: usize) -> (usize, usize) {
    let delivered = &world.hub().delivered[before..];
    let own = [IpAddr::V4(LIAR_V4), IpAddr::V6(LIAR_V6)];
    let count = delivered.iter().filter(|d| own.contains(&d.1)).count();
    (count, delivered.len() - count)
}

fn spoofed(world: &World) -> u64 {
    world.hub().session.status().drops["spoofed_source"]
}

/// One row of the matrix.
fn row(form: Form) {
    let mut world = world(form);
    for (claim, source) in CLAIMS {
        let before = spoofed(&world);
        let delivered = world.hub().delivered.len();
        let dead = matches!(form, Form::Held | Form::Custody);
        if matches!(form, Form::Recovered | Form::Repaired) {
            let change = Change {
                loss: Some(LossModel::Bernoulli(0.1)),
                ..Change::default()
            };
            world.change_link(LIAR, 0, Selector::Both, &change);
        }
        if dead {
            world.set_dead(LIAR, 0, Selector::Both, true);
            world.run(3 * SECOND);
        }
        send(&mut world, form, source);
        if dead {
            world.run(SECOND);
            world.set_dead(LIAR, 0, Selector::Both, false);
        }
        world.run(4 * SECOND);
        let (own, others) = through(&world, delivered);
        let refused = spoofed(&world) - before;
        println!("{form:?}: {claim}: {own} of its own, {others} of others, {refused} refused");
        assert_eq!(others, 0, "{form:?}: {claim}");
        assert!(
            own >= PACKETS as usize / 2,
            "{form:?}: {claim}: {own} of its own"
        );
        assert!(
            refused >= u64::from(PACKETS) / 2,
            "{form:?}: {claim}: {refused} refused"
        );
    }
    let tunnels = world.hub().session.status().tunnels;
    let recovered: u64 = tunnels.iter().map(|tunnel| tunnel.recovered).sum();
    if form == Form::Recovered {
        assert!(recovered > 0, "nothing was recovered");
    }
}

#[test]
fn a_site_speaks_for_nobody_else_in_any_form() {
    for form in FORMS {
        row(form);
    }
}

/// An ICMP error of the site about a packet from the hub to `to`.
fn error_about(to: IpAddr) -> BytesMut {
    const ICMP: u8 = 1;
    const ICMPV6: u8 = 58;
    let mut quoted = packet(to, TCP, 0, 80, None);
    let (from, protocol, header, kind, at) = match to {
        IpAddr::V4(_) => (IpAddr::V4(LIAR_V4), ICMP, 20, 3, 12..20),
        IpAddr::V6(_) => (IpAddr::V6(LIAR_V6), ICMPV6, 40, 1, 8..40),
    };
    // The packet went the other way.
    let half = at.len() / 2;
    let quoted = &mut quoted[HEADROOM..];
    quoted[at].rotate_left(half);
    let mut error = packet(from, protocol, 0, header + 8 + quoted.len(), None);
    error[HEADROOM + header] = kind;
    error[HEADROOM + header + 8..].copy_from_slice(quoted);
    error
}

#[test]
fn a_site_tells_of_errors_of_its_own_packets_only() {
    let mut world = world(Form::Whole);
    for (own, victim) in [
        (IpAddr::V4(LIAR_V4), IpAddr::V4(VICTIM_V4)),
        (IpAddr::V6(LIAR_V6), IpAddr::V6(VICTIM_V6)),
    ] {
        for (to, passes) in [(own, true), (victim, false)] {
            let (before, delivered) = (spoofed(&world), world.hub().delivered.len());
            let now = world.now();
            world.offer(now, LIAR, Side::Up, error_about(to));
            world.settle_touched();
            world.run(Duration::from_millis(200));
            let got = world.hub().delivered.len() - delivered;
            assert_eq!(got == 1, passes, "about a packet to {to}");
            assert_eq!(spoofed(&world) - before, u64::from(!passes), "{to}");
        }
    }
}
