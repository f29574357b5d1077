//! The rules of the kill switch, as nft(8) reads them.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use ropewalk_host::kill_switch::{Local, Plan, ruleset, state};
use ropewalk_host::portal;
use ropewalk_io::netns::Namespace;
use ropewalk_io::udp::{self, UdpConfig};
use ropewalk_io::{netlink, nft};

fn plan(tun: &str) -> Plan {
    Plan {
        tun: tun.to_owned(),
        hub: Vec::new(),
        tcp_port: None,
        names: false,
        beside: false,
        dns: Vec::new(),
        local: Vec::new(),
        inner: Vec::new(),
    }
}

/// Sends a datagram to port 53, bound to this interface.
fn query(device: Option<&str>) {
    let config = UdpConfig {
        bind: (Ipv4Addr::UNSPECIFIED, 0).into(),
        device: device.map(str::to_owned),
        mark: None,
        recv_buffer: 4_096,
        send_buffer: 4_096,
        group: None,
    };
    let socket = udp::UdpSocket::bind(&config).expect("a socket");
    let socket = socket.as_fd().try_clone_to_owned().expect("a descriptor");
    let to: SocketAddr = "198.51.100.7:53".parse().expect("an address");
    // What the rules refuse is an error.
    let _ = UdpSocket::from(socket).send_to(b"query", to);
}

fn local(interface: Option<&str>, network: &str) -> Local {
    Local {
        interface: interface.map(str::to_owned),
        network: network.parse().expect("a network"),
    }
}

#[test]
fn every_plan_makes_rules_that_nft_takes_twice() {
    let least = plan("rope-0");
    let most = Plan {
        hub: ["192.0.2.1:4443", "[2001:db8::1]:4443"]
            .map(|text| text.parse().expect("an address"))
            .to_vec(),
        tcp_port: Some(443),
        names: true,
        beside: true,
        dns: ["192.168.1.53", "10.0.0.1"]
            .map(|text| text.parse().expect("an address"))
            .to_vec(),
        local: vec![
            local(None, "192.168.0.0/16"),
            local(None, "192.168.0.0/24"),
            local(None, "fd00::/8"),
            local(Some("br-lan"), "10.1.0.0/16"),
            local(Some("br-lan"), "fd01::/64"),
            local(Some("odd name"), "10.2.0.0/16"),
        ],
        ..least.clone()
    };
    for plan in [least, most] {
        let script = ruleset(&plan);
        assert!(!script.contains("odd name"), "{script}");
        match nft::check_script(&format!("{script}{script}")) {
            Ok(()) => {}
            Err(nft::NftError::Refused(why)) if why.contains("not permitted") => {
                eprintln!("skipped: needs root");
            }
            Err(nft::NftError::Missing) => eprintln!("skipped: needs nft"),
            Err(error) => panic!("{error}\n{script}"),
        }
    }
}

#[test]
fn a_portal_is_open_over_its_uplink_alone() {
    const TUN: &str = "rope-0";
    let Ok(namespace) = Namespace::anonymous() else {
        eprintln!("skipped: needs root");
        return;
    };
    let tried = namespace.enter(|| {
        for line in [
            "link add u0 type veth peer name far-u0",
            "link add u1 type veth peer name far-u1",
            "link add rope-0 type veth peer name far-rope-0",
            "addr add 192.168.1.2/24 dev u0",
            "addr add 192.168.2.2/24 dev u1",
            "addr add 10.9.0.2/20 dev rope-0",
            "link set u0 up",
            "link set u1 up",
            "link set rope-0 up",
            "link set far-u0 up",
            "link set far-u1 up",
            "link set far-rope-0 up",
            "route add default dev rope-0",
            "route add default via 192.168.1.1 dev u0 metric 100",
            "route add default via 192.168.2.1 dev u1 metric 200",
        ] {
            let made = Command::new("ip").args(line.split(' ')).status();
            if !made.is_ok_and(|status| status.success()) {
                return Err(format!("`ip {line}` fails"));
            }
        }
        let script = ruleset(&plan(TUN));
        match nft::run_script(&script) {
            Ok(()) => {}
            Err(nft::NftError::Missing) => return Err("needs nft".to_owned()),
            Err(error) => panic!("{error}\n{script}"),
        }
        let interfaces = netlink::snapshot().expect("interfaces");
        let way = portal::choose(
            &interfaces,
            TUN,
            Some("u0"),
            &ropewalk_config::uplinks::UplinkRules::default(),
        )
        .expect("an uplink");
        portal::open(TUN, &way, Duration::from_secs(60), None).expect("a portal");
        let refused = |device: Option<&str>| {
            query(device);
            state(TUN).expect("an answer").expect("rules").refused
        };
        let counts = [None, Some("u0"), Some("u1"), Some("u0")].map(refused);
        portal::close(TUN).expect("closed");
        Ok((counts, refused(Some("u0"))))
    });
    match tried.expect("a namespace") {
        Ok((counts, closed)) => {
            assert_eq!(counts, [0, 0, 1, 1], "only u1 is refused");
            assert_eq!(closed, 2, "u0 is refused when the portal is closed");
        }
        Err(why) => eprintln!("skipped: {why}"),
    }
}

#[test]
fn the_local_networks_are_read_from_the_kernel() {
    let Ok(namespace) = Namespace::anonymous() else {
        eprintln!("skipped: needs root");
        return;
    };
    let networks = [
        local(None, "192.168.7.0/24"),
        local(Some("br-lan"), "10.1.0.0/16"),
        local(Some("br-lan"), "fd01::/64"),
    ];
    let plan = Plan {
        dns: ["10.1.0.53", "192.168.7.53"]
            .map(|text| text.parse().expect("an address"))
            .to_vec(),
        local: networks.to_vec(),
        ..plan("rope-0")
    };
    let set = || nft::run_script(&ruleset(&plan)).map(|()| state("rope-0"));
    match namespace.enter(set).expect("a namespace") {
        Ok(state) => assert_eq!(state.expect("an answer").expect("rules").local, networks),
        Err(nft::NftError::Missing) => eprintln!("skipped: needs nft"),
        Err(error) => panic!("{error}"),
    }
}
