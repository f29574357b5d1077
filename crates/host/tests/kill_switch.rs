//! The rules of the kill switch, as nft(8) reads them.

use ropewalk_host::kill_switch::{Local, Plan, ruleset};
use ropewalk_io::nft;

fn local(interface: Option<&str>, network: &str) -> Local {
    Local {
        interface: interface.map(str::to_owned),
        network: network.parse().expect("a network"),
    }
}

#[test]
fn every_plan_makes_rules_that_nft_takes_twice() {
    let least = Plan {
        tun: "rope-0".to_owned(),
        hub: Vec::new(),
        tcp_port: None,
        names: false,
        beside: false,
        dns: Vec::new(),
        local: Vec::new(),
    };
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
