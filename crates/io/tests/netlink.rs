//! Netlink, nftables and sysctl in network namespaces of their own.

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::{Receiver, channel};

use common::{Namespace, PATIENCE, privileged};
use ropewalk_io::netlink::{self, Interface, NetlinkError, RouteSpec, RuleSpec, Watch};
use ropewalk_io::nft::{self, Egress, HubNat, SitePorts, Translation};
use ropewalk_io::sysctl;
use ropewalk_io::tun::{Tun, TunConfig};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn find<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a Interface> {
    interfaces.iter().find(|i| i.name == name)
}

/// The first state in which `wanted` holds.
fn until(
    states: &Receiver<Vec<Interface>>,
    what: &str,
    wanted: impl Fn(&[Interface]) -> bool,
) -> Vec<Interface> {
    let mut last = Vec::new();
    while let Ok(state) = states.recv_timeout(PATIENCE) {
        if wanted(&state) {
            return state;
        }
        last = state;
    }
    panic!("never saw {what}; last {last:#?}");
}

#[test]
fn snapshot_shows_kinds_addresses_and_default_routes() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let tun = namespace
        .enter(|| {
            Tun::open(&TunConfig {
                name: "rope0".into(),
                mtu: 1400,
                offload: true,
            })
        })
        .expect("opens");
    namespace.run("ip link add v0 type veth peer name v1");
    namespace.run("ip addr add 10.97.0.1/24 dev v0");
    namespace.run("ip -6 addr add fd97::1/64 dev v0");
    namespace.run("ip link set v0 up");
    namespace.run("ip link set v1 up");
    namespace.run("ip route add default via 10.97.0.254 dev v0 table 77");
    namespace.run("ip -6 route add default dev v1 metric 5");
    let state = namespace.enter(netlink::snapshot).expect("readable");
    let lo = find(&state, "lo").expect("loopback");
    assert!(lo.loopback && lo.up && lo.kind.is_none());
    let rope = find(&state, "rope0").expect("the TUN interface");
    assert_eq!(
        (rope.kind.as_deref(), rope.mtu, rope.up),
        (Some("tun"), 1400, false)
    );
    assert_eq!(rope.index, tun.ifindex());
    let v0 = find(&state, "v0").expect("veth");
    assert_eq!(v0.kind.as_deref(), Some("veth"));
    assert!(v0.up && v0.carrier && v0.default_route_v4 && !v0.default_route_v6);
    assert!(
        v0.addresses
            .iter()
            .any(|a| (a.ip, a.prefix) == (ip("10.97.0.1"), 24))
    );
    let stable = v0
        .addresses
        .iter()
        .find(|a| a.ip == ip("fd97::1"))
        .expect("IPv6 address");
    assert!(!stable.temporary && !stable.deprecated);
    let v1 = find(&state, "v1").expect("veth");
    assert!(v1.default_route_v6 && !v1.default_route_v4);
}

#[test]
fn watch_sees_an_interface_come_change_and_go() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let (tell, states) = channel();
    let watch = namespace
        .enter(move || Watch::start(Box::new(move |state| drop(tell.send(state)))))
        .expect("watching");
    until(&states, "the first state", |s| find(s, "lo").is_some());
    namespace.run("ip link add v0 type veth peer name v1");
    let added = until(&states, "v0", |s| find(s, "v0").is_some());
    let index = find(&added, "v0").expect("there").index;
    namespace.run("ip link set v0 name usb0");
    let renamed = until(&states, "the new name", |s| find(s, "usb0").is_some());
    assert_eq!(find(&renamed, "usb0").expect("there").index, index);
    assert!(find(&renamed, "v0").is_none());
    namespace.run("ip addr add 10.96.0.1/24 dev usb0");
    let has_address = |s: &[Interface]| {
        find(s, "usb0").is_some_and(|i| i.addresses.iter().any(|a| a.ip == ip("10.96.0.1")))
    };
    until(&states, "the address", has_address);
    namespace.run("ip link set usb0 up");
    until(&states, "up without carrier", |s| {
        find(s, "usb0").is_some_and(|i| i.up && !i.carrier)
    });
    namespace.run("ip link set v1 up");
    until(&states, "carrier", |s| {
        find(s, "usb0").is_some_and(|i| i.carrier)
    });
    namespace.run("ip route add default via 10.96.0.254");
    until(&states, "the route", |s| {
        find(s, "usb0").is_some_and(|i| i.default_route_v4)
    });
    namespace.run("ip route del default");
    until(&states, "no route", |s| {
        find(s, "usb0").is_some_and(|i| !i.default_route_v4)
    });
    namespace.run("ip addr del 10.96.0.1/24 dev usb0");
    until(&states, "no address", |s| !has_address(s));
    namespace.run("ip link del usb0");
    until(&states, "its end", |s| find(s, "usb0").is_none());
    drop(watch);
    assert!(
        states.iter().count() < 100,
        "the callback goes with the watch"
    );
}

#[test]
fn watch_survives_more_events_than_its_buffer_holds() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    namespace.run("ip link add v0 type veth peer name v1");
    let (tell, states) = channel();
    let mut slow = true;
    let watch = namespace.enter(move || {
        Watch::start(Box::new(move |state| {
            if std::mem::take(&mut slow) {
                std::thread::sleep(std::time::Duration::from_millis(700));
            }
            drop(tell.send(state));
        }))
    });
    let _watch = watch.expect("watching");
    let batch: String = (0..6000)
        .map(|i| format!("link set v0 mtu {}\n", 1000 + i % 400))
        .chain(["link set v0 mtu 1234\n".to_owned()])
        .collect();
    let file = std::env::temp_dir().join(format!("ropewalk-io-batch-{}", std::process::id()));
    std::fs::write(&file, batch).expect("written");
    namespace.run(&format!("ip -batch {}", file.display()));
    std::fs::remove_file(&file).expect("removed");
    until(&states, "the last state", |s| {
        find(s, "v0").is_some_and(|i| i.mtu == 1234)
    });
}

fn index_of(name: &str) -> u32 {
    find(&netlink::snapshot().expect("readable"), name)
        .expect("the interface")
        .index
}

#[test]
fn leased_addresses_are_told_from_permanent_ones() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    namespace.run("ip link add v0 type veth peer name v1");
    for address in [
        "addr add 10.97.0.1/24",
        "addr add 10.98.0.1/8 valid_lft 120 preferred_lft 60",
        "-6 addr add fd97::1/64",
        "-6 addr add fd98::1/64 valid_lft 120 preferred_lft 60",
    ] {
        namespace.run(&format!("ip {address} dev v0"));
    }
    let state = namespace.enter(netlink::snapshot).expect("readable");
    let v0 = find(&state, "v0").expect("veth");
    let permanent = v0.addresses.iter().filter(|address| address.permanent);
    let permanent: Vec<_> = permanent.map(|address| address.ip).collect();
    assert_eq!(permanent, [ip("10.97.0.1"), ip("fd97::1")]);
    assert_eq!(v0.addresses.len(), 4);
}

/// A namespace with a veth pair v0, v1 that is up.
fn with_veth() -> Namespace {
    let namespace = Namespace::new();
    namespace.run("ip link add v0 type veth peer name v1");
    namespace.enter(|| {
        for name in ["v0", "v1", "v0"] {
            netlink::set_up(index_of(name)).expect("up");
        }
    });
    namespace
}

#[test]
fn addresses_and_routes_can_be_set_twice_and_removed_twice() {
    if !privileged() {
        return;
    }
    let namespace = with_veth();
    let specs = |ifindex, gateways: bool| {
        [
            ("0.0.0.0", 0, Some("10.95.9.9")), // the gateway is on no network of ours
            ("10.1.2.3", 16, None),
            ("::", 0, Some("fd95::9")),
            ("fd00::", 8, None),
        ]
        .map(|(destination, prefix, gateway)| RouteSpec {
            destination: ip(destination),
            prefix,
            ifindex,
            gateway: gateway.filter(|_| gateways).map(ip),
            table: Some(5001),
            metric: gateways.then_some(7),
            mtu: None,
        })
    };
    namespace.enter(move || {
        let v0 = index_of("v0");
        for _ in 0..2 {
            netlink::set_mtu(v0, 1300).expect("MTU");
            netlink::add_address(v0, ip("10.95.0.1"), 32).expect("IPv4 address");
            netlink::add_address(v0, ip("fd95::1"), 64).expect("IPv6 address");
            specs(v0, true)
                .iter()
                .for_each(|r| netlink::add_route(r).expect("route"));
        }
        let state = netlink::snapshot().expect("readable");
        let v0 = find(&state, "v0").expect("veth");
        assert!(v0.default_route_v4 && v0.default_route_v6 && v0.mtu == 1300);
    });
    let count = |command: &str| namespace.run(command).lines().count();
    assert_eq!(count("ip -4 route show table 5001"), 2);
    assert_eq!(count("ip -6 route show table 5001"), 2);
    namespace.enter(move || {
        let v0 = index_of("v0");
        // Gateway and metric need not be known to remove a route.
        for _ in 0..2 {
            specs(v0, false)
                .iter()
                .for_each(|r| netlink::delete_route(r).expect("removed"));
            netlink::delete_address(v0, ip("10.95.0.1"), 32).expect("IPv4 removed");
            netlink::delete_address(v0, ip("fd95::1"), 64).expect("IPv6 removed");
        }
        let state = netlink::snapshot().expect("readable");
        let v0 = find(&state, "v0").expect("veth");
        assert!(!v0.default_route_v4 && !v0.default_route_v6);
        let gone = |text| v0.addresses.iter().all(|address| address.ip != ip(text));
        assert!(gone("10.95.0.1") && gone("fd95::1"), "{:?}", v0.addresses);
    });
}

#[test]
fn rules_can_be_set_twice_and_removed_twice() {
    if !privileged() {
        return;
    }
    let namespace = with_veth();
    let rules = |ipv6| {
        let marked = RuleSpec {
            ipv6,
            priority: 999,
            fwmark: Some(0x70),
            fwmask: Some(0xff),
            source: None,
            suppress_prefix: None,
            suppress_group: Some(7),
            table: 5001,
        };
        let network = (ip(if ipv6 { "fd95::1" } else { "10.95.0.1" }), 16);
        let from = RuleSpec {
            priority: 998,
            fwmark: None,
            source: Some(network),
            suppress_group: None,
            ..marked.clone()
        };
        [marked, from]
    };
    for ipv6 in [false, true] {
        namespace.enter(move || {
            for is_new in [true, false] {
                for rule in rules(ipv6) {
                    assert_eq!(netlink::add_rule(&rule).expect("rule"), is_new);
                }
            }
        });
    }
    let shown = [namespace.run("ip rule"), namespace.run("ip -6 rule")];
    for (shown, network) in shown.iter().zip(["10.95.0.0/16", "fd95::/16"]) {
        assert!(
            shown.contains("999:\tfrom all fwmark 0x70/0xff lookup 5001 suppress_ifgroup 7"),
            "{shown}"
        );
        assert!(
            shown.contains(&format!("998:\tfrom {network} lookup 5001")),
            "{shown}"
        );
        assert_eq!(shown.matches("5001").count(), 2, "{shown}");
    }
    for ipv6 in [false, true] {
        namespace.enter(move || {
            for rule in rules(ipv6).iter().chain(&rules(ipv6)) {
                netlink::delete_rule(rule).expect("removed");
            }
        });
    }
    assert!(!namespace.run("ip rule").contains("5001"));
    assert!(!namespace.run("ip -6 rule").contains("5001"));
}

#[test]
fn a_missing_interface_is_named_as_such() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    namespace.enter(|| {
        assert!(matches!(
            netlink::set_up(4_000_000),
            Err(NetlinkError::NoInterface(_))
        ));
        let result = netlink::add_address(4_000_000, ip("10.0.0.1"), 24);
        assert!(
            matches!(result, Err(NetlinkError::NoInterface(_))),
            "{result:?}"
        );
    });
}

#[test]
fn hub_rules_come_as_one_table_and_leave_nothing() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let hub = |translation, onward: Option<&str>| HubNat {
        table: "ropewalk-test".into(),
        tun: "rope0".into(),
        pool_v4: Some(("10.200.0.0".parse().expect("address"), 16)),
        pool_v6: Some(("fd20::".parse().expect("address"), 48)),
        translation,
        egress: None,
        passed: Vec::new(),
        onward: onward.map(str::to_owned),
    };
    let own = ["10.9.0.2", "fd09::2"].map(|own| own.parse().expect("address"));
    for (translation, onward, translations) in [
        (Translation::Masquerade, None, ["masquerade\n"; 2]),
        (Translation::None, Some("rope1"), ["", ""]),
        (
            Translation::To(own.to_vec()),
            Some("rope1"),
            ["snat ip to 10.9.0.2\n", "snat ip6 to fd09::2\n"],
        ),
        (
            Translation::To(own[..1].to_vec()),
            None,
            ["snat ip to 10.9.0.2\n", ""],
        ),
        (Translation::Masquerade, None, ["masquerade\n"; 2]),
    ] {
        let nat = hub(translation, onward);
        namespace
            .enter(move || nft::apply_hub(&nat))
            .expect("applied");
        let rules = namespace.run("nft list ruleset");
        assert_hub_rules(&rules, onward.is_some(), translations);
    }
    for _ in 0..2 {
        namespace
            .enter(|| nft::remove("ropewalk-test"))
            .expect("removed");
    }
    assert_eq!(namespace.run("nft list ruleset").trim(), "");
}

#[test]
fn rules_of_a_site_with_ports_of_a_shared_address_come_as_one_table() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let rules = |last| SitePorts {
        table: "ropewalk-ports".into(),
        tun: "rope0".into(),
        ports: (Ipv4Addr::new(203, 0, 113, 7), 1_024, last),
        // The address of the hub lies in the network of the sites.
        inside: vec![([10, 200, 0, 0].into(), 16), ([10, 200, 0, 1].into(), 32)],
    };
    for last in [2_031, 5_119] {
        namespace
            .enter(move || nft::apply_site(&rules(last)))
            .expect("applied");
        let listed = namespace.run("nft list ruleset");
        let inside = [
            "oifname != \"rope0\" accept",
            "ip daddr 10.200.0.0/16 accept",
            "ip daddr 10.200.0.1 accept",
        ];
        let lost = "ip protocol { icmp, tcp, udp } ct state invalid counter packets 0 bytes 0 drop";
        let to = format!("snat ip to 203.0.113.7:1024-{last}");
        let (tcp, icmp) = (
            format!("ip protocol {{ tcp, udp }} {to}"),
            format!("ip protocol icmp {to}"),
        );
        let unknown = "iifname \"rope0\" ip daddr 203.0.113.7 counter packets 0 bytes 0 drop";
        let expected = [
            ("lost", [&inside[..], &[lost]].concat()),
            (
                "translate",
                [&inside[..], &[tcp.as_str(), icmp.as_str()]].concat(),
            ),
            ("forward", vec![unknown]),
        ];
        for (chain, rules) in expected {
            assert_eq!(chain_of(&listed, chain), rules, "{listed}");
        }
        assert!(
            listed.contains("hook postrouting priority srcnat - 1;"),
            "{listed}"
        );
    }
    namespace
        .enter(|| nft::remove("ropewalk-ports"))
        .expect("removed");
    assert_eq!(namespace.run("nft list ruleset").trim(), "");
}

/// Rules of each kind.
fn with_egress() -> HubNat {
    let net = |text: &str, prefix| (ip(text), prefix);
    HubNat {
        table: "ropewalk-test".into(),
        tun: "rope0".into(),
        pool_v4: Some(("10.200.0.0".parse().expect("address"), 16)),
        pool_v6: None,
        translation: Translation::None,
        egress: Some(Egress {
            own: vec![ip("10.200.0.1")],
            udp_ports: vec![(None, 4_443)],
            tcp_ports: vec![(Some(ip("192.0.2.7")), 443)],
            closed: vec![net("10.0.0.0", 8), net("fe80::", 10)],
            allowed: vec![net("10.1.0.0", 16)],
            exceptions: vec![(
                vec![net("10.200.0.2", 32), net("fd20::2", 128)],
                vec![net("10.200.0.3", 32)],
            )],
            exception_ports: vec![((Ipv4Addr::new(203, 0, 113, 7), 1_024, 2_031), 0)],
        }),
        passed: vec![[203, 0, 113, 7].into(), [203, 0, 113, 8].into()],
        onward: None,
    }
}

/// The rules of a chain.
fn chain_of<'a>(rules: &'a str, chain: &str) -> Vec<&'a str> {
    let start = rules.find(&format!("chain {chain} {{")).expect(chain);
    let body = rules[start..].lines().skip(1).map(str::trim);
    body.take_while(|line| *line != "}")
        .filter(|line| !line.starts_with("type "))
        .collect()
}

/// Rules that find the chain of a site, and those of all sites.
fn of_sites() -> Vec<String> {
    [
        "ip protocol { tcp, udp } ip saddr . th sport vmap { 203.0.113.7 . 1024-2031 : goto site0 }"
            ,
        "ip protocol icmp icmp type { echo-reply, echo-request } ip saddr . icmp id vmap { 203.0.113.7 . 1024-2031 : goto site0 }"
            ,
        "ip saddr vmap { 10.200.0.2 : goto site0 }",
        "ip6 saddr vmap { fd20::2 : goto site0 }",
        "ip daddr 10.1.0.0/16 accept",
        "goto closed",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[test]
fn egress_rules_begin_with_open_connections_and_end_with_what_is_closed() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let nat = with_egress();
    namespace
        .enter(move || nft::apply_hub(&nat))
        .expect("applied");
    // The name of the protocol is that of /etc/protocols, where there is one.
    let rules = namespace.run("nft list ruleset");
    let rules = rules.replace("ip protocol ipencap", "ip protocol 4");
    let from_site = "iifname \"rope0\"";
    let wrapped = "ip protocol 4 ip saddr { 203.0.113.7, 203.0.113.8 } ip daddr 10.200.0.0/16";
    let expected = [
        (
            "routes",
            vec![
                format!("{from_site} rt type 0 drop"),
                format!("{from_site} ip option lsrr exists drop"),
                format!("{from_site} ip option ssrr exists drop"),
            ],
        ),
        (
            "closed",
            vec![
                "ip daddr 10.0.0.0/8 reject with icmpx admin-prohibited".to_owned(),
                "ip6 daddr fe80::/10 reject with icmpx admin-prohibited".to_owned(),
            ],
        ),
        ("egress", of_sites()),
        (
            "site0",
            vec![
                "ip daddr 10.200.0.3 accept".to_owned(),
                "goto closed".to_owned(),
            ],
        ),
        (
            "input",
            vec![
                format!("{from_site} ct state established,related accept"),
                format!("{from_site} ip daddr 10.200.0.1 accept"),
                format!("{from_site} udp dport 4443 accept"),
                format!("{from_site} ip daddr 192.0.2.7 tcp dport 443 accept"),
                format!("{from_site} jump egress"),
                format!("{from_site} reject with icmpx admin-prohibited"),
            ],
        ),
        (
            "forward",
            vec![
                format!("{from_site} oifname != \"rope0\" {wrapped} accept"),
                format!("{from_site} ct state established,related accept"),
                format!("{from_site} jump egress"),
                format!("{from_site} ip saddr 10.200.0.0/16 accept"),
                "oifname \"rope0\" ip daddr 10.200.0.0/16 accept".to_owned(),
            ],
        ),
    ];
    for (chain, expected) in expected {
        assert_eq!(chain_of(&rules, chain), expected, "{chain} in\n{rules}");
    }
    namespace
        .enter(|| nft::remove("ropewalk-test"))
        .expect("removed");
    assert_eq!(namespace.run("nft list ruleset").trim(), "");
}

/// Checks the rules of a hub: `translations` are the statements for the two pools.
fn assert_hub_rules(rules: &str, onward: bool, translations: [&str; 2]) {
    assert_eq!(rules.matches("table").count(), 1, "{rules}");
    assert_eq!(
        rules.matches("maxseg size set rt mtu").count(),
        2,
        "{rules}"
    );
    assert_eq!(rules.matches("accept\n").count(), 4, "{rules}");
    for refused in [
        r#"iifname "rope0" oifname != "rope0" oifname != "rope1" drop"#,
        r#"oifname "rope0" iifname != "rope0" iifname != "rope1" drop"#,
        r#"iifname "rope1" oifname != "rope0" drop"#,
        r#"oifname "rope1" iifname != "rope0" drop"#,
    ] {
        assert_eq!(rules.contains(refused), onward, "{rules}");
    }
    // An `accept` before them would end the chain.
    let first_accept = rules.find("accept\n").expect("pools are accepted");
    let last_drop = rules.rfind("drop\n").unwrap_or_default();
    assert!(last_drop < first_accept, "{rules}");
    for (pool, statement) in ["ip saddr 10.200.0.0/16 ", "ip6 saddr fd20::/48 "]
        .into_iter()
        .zip(translations)
    {
        let left = format!("oifname != \"rope0\" {pool}");
        let rule = format!("{left}{statement}");
        let expected = usize::from(!statement.is_empty());
        assert_eq!(rules.matches(&left).count(), expected, "{rules}");
        assert_eq!(rules.matches(&rule).count(), expected, "{rules}");
    }
}

#[test]
fn settings_are_changed_and_put_back() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new();
    let key = "net.ipv4.ip_forward";
    namespace.enter(move || {
        sysctl::write(key, "0").expect("written");
        let changed = sysctl::set(key, "1").expect("set");
        assert_eq!(
            (
                sysctl::read(key).expect("read").as_str(),
                changed.former.as_deref()
            ),
            ("1", Some("0"))
        );
        let again = sysctl::set(key, "1").expect("set");
        assert_eq!(again.former, None);
        again.restore().expect("nothing to do");
        assert_eq!(sysctl::read(key).expect("read"), "1");
        changed.restore().expect("restored");
        assert_eq!(sysctl::read(key).expect("read"), "0");
    });
}
