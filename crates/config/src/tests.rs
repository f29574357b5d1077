//! Broken files are refused with file, line, key and remedy; sound ones are read as written.

use std::path::Path;

use ropewalk_core::hold::Freeze;
use ropewalk_core::protect::Protection;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_transport::{CongestionControl, PublicKey};

use super::class::Via;
use super::template::{HubTemplate, RelayTemplate, SiteTemplate};
use super::token::Place;
use super::uplinks::Pattern;
use super::values::HostPort;
use super::{Config, cases, template};
use cases::{hub, relay, site};

const KEY: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
const HUB: &str = "[pool]\nipv4 = \"10.9.0.0/16\"\n";

fn site_text(rest: &str) -> String {
    format!("[hub]\nkey = \"{KEY}\"\nendpoints = [\"h.example:4443\"]\n{rest}")
}

fn hub_error(text: &str) -> String {
    hub::parse(Path::new("hub.toml"), text)
        .expect_err(text)
        .to_string()
}

fn site_error(text: &str) -> String {
    site::parse(Path::new("site.toml"), text)
        .expect_err(text)
        .to_string()
}

/// Text after [`HUB`] (two lines), then what the message must contain.
const BROKEN_HUBS: &[(&str, &[&str])] = &[
    (
        "[listen]\nupd = []",
        &["hub.toml:4: listen.upd: unknown key", "did you mean udp?"],
    ),
    (
        "colour = 1",
        &[
            "hub.toml:3: pool.colour: unknown key",
            "known keys here: ipv4, ipv6, ports, shared",
        ],
    ),
    (
        "ipv5 = \"x\"",
        &["hub.toml:3: pool.ipv5: unknown key", "did you mean ipv"],
    ),
    (
        "shared = [\"10.9.3.1\"]",
        &[
            "hub.toml:3: pool.shared: 10.9.3.1 is in 10.9.0.0/16",
            "write it like [\"203.0.113.7\"]",
        ],
    ),
    (
        "shared = [\"2001:db8::7\"]",
        &["hub.toml:3: pool.shared:", "not an IPv4 address"],
    ),
    (
        "shared = [\"224.0.0.1\"]",
        &["hub.toml:3: pool.shared:", "sites cannot send from"],
    ),
    (
        "shared = []",
        &["hub.toml:3: pool.shared:", "no address to share"],
    ),
    (
        "shared = [\"203.0.113.7\", \"203.0.113.7\"]",
        &["hub.toml:3: pool.shared:", "listed twice"],
    ),
    (
        "shared = [\"203.0.113.7\"]\nports = 63",
        &["hub.toml:4: pool.ports: 63 is out of range", "64 to 64512"],
    ),
    (
        "shared = [\"203.0.113.7\"]\nports = 64513",
        &[
            "hub.toml:4: pool.ports: 64513 is out of range",
            "64 to 64512",
        ],
    ),
    (
        "ports = 1008",
        &["hub.toml:3: pool.ports:", "add shared = "],
    ),
    (
        "shared = [\"203.0.113.7\"]\n[network]\nforward = false",
        &["hub.toml:5: network.forward:", "remove shared from [pool]"],
    ),
    (
        "[listen]\nudp = 4443",
        &["hub.toml:4: listen.udp: expected a list", "write it like"],
    ),
    (
        "[listen]\nudp = []",
        &["hub.toml:4: listen.udp:", "needs an address to listen on"],
    ),
    (
        "[listen]\nudp = [\n\"1.2.3.4:1\",\n\"nonsense\"]",
        &["hub.toml:6: listen.udp:", "nonsense"],
    ),
    (
        "[listen]\ntcp = [\"1.2.3.4:0\"]",
        &["hub.toml:4: listen.tcp:", "port 0"],
    ),
    (
        "[listen]\nudp = [\"[::]:1\", \"[::]:1\"]",
        &["hub.toml:4: listen.udp:", "listed twice"],
    ),
    (
        "[listen]\npublic = [\"example.org\"]",
        &["hub.toml:4: listen.public:", "host with a port"],
    ),
    (
        "[network]\nforward = \"yes\"",
        &["hub.toml:4: network.forward:", "without quotes"],
    ),
    (
        "[network]\nforward = false\nmasquerade = true",
        &["hub.toml:5: network.masquerade:", "forward = true"],
    ),
    (
        "[network]\nroutes_table = 4443\n[hold]\nfreeze = \"custody\"",
        &[
            "hub.toml:4: network.routes_table:",
            "must not acknowledge",
            "in [hold]",
        ],
    ),
    (
        "[network]\nforward = false\n[egress]\nallow = [\"10.1.0.0/16\"]",
        &["hub.toml:6: egress.allow:", "forward = true"],
    ),
    (
        "[tunnel]\nmtu = 500",
        &[
            "hub.toml:4: tunnel.mtu: 500 is out of range",
            "1280 to 9000",
        ],
    ),
    (
        "[tunnel]\nmtu = -1",
        &["hub.toml:4: tunnel.mtu:", "1280 to 9000"],
    ),
    (
        "[tunnel]\nscheduler = \"blast\"",
        &["hub.toml:4: tunnel.scheduler:", "did you mean blest"],
    ),
    (
        "[tunnel]\ncongestion = \"vegas\"",
        &[
            "hub.toml:4: tunnel.congestion:",
            "there are newreno, cubic, bbr, bdp",
        ],
    ),
    (
        "[tunnel]\ninterface = \"much-too-long-a-name\"",
        &["hub.toml:4: tunnel.interface:", "15"],
    ),
    (
        "[tunnel]\ninterface = \"a/b\"",
        &["hub.toml:4: tunnel.interface:", "cannot be the name"],
    ),
    (
        "[api]\nlisten = \"0.0.0.0:80\"",
        &["hub.toml:4: api.listen:", "not a loopback address"],
    ),
    (
        "[api]\nsocket = \"ropewalk.sock\"",
        &["hub.toml:4: api.socket:", "not an absolute path"],
    ),
    (
        "[log]\nformat = \"xml\"",
        &["hub.toml:4: log.format:", "text or json"],
    ),
    (
        "[log]\nlevel = \"a=b=c\"",
        &["hub.toml:4: log.level:", "no log filter"],
    ),
    ("tunnel = 3", &["hub.toml:3: pool.tunnel: unknown key"]),
    (
        "[pool]",
        &["hub.toml:3:", "this section already, in line 1"],
    ),
    ("x = = 3", &["hub.toml:3:", "no TOML"]),
];

#[test]
fn broken_hub_files_are_refused_with_line_key_and_remedy() {
    for (text, parts) in BROKEN_HUBS {
        let message = hub_error(&format!("{HUB}{text}"));
        for part in *parts {
            assert!(
                message.contains(part),
                "{text}\ngave: {message}\nwithout: {part}"
            );
        }
        assert!(message.contains("; "), "no remedy: {message}");
    }
}

#[test]
fn unusable_pools_are_refused() {
    for (pool, part) in [
        (
            "ipv4 = \"10.9.1.0/16\"",
            "bits beyond its prefix, the network is 10.9.0.0/16",
        ),
        ("ipv4 = \"fd00::/64\"", "not an IPv4 network"),
        ("ipv6 = \"10.0.0.0/8\"", "not an IPv6 network"),
        ("ipv4 = \"10.0.0.0/31\"", "8 to 30 bits"),
        ("ipv4 = \"0.0.0.0/8\"", "cannot be given"),
        ("ipv4 = \"127.0.0.0/8\"", "cannot be given"),
        ("ipv4 = \"ten\"", "not a network"),
        ("", "no address pool"),
        (
            "ipv6 = \"fd00::/64\"\nshared = [\"203.0.113.7\"]",
            "without an inner IPv4 address",
        ),
    ] {
        let message = hub_error(&format!("[pool]\n{pool}\n"));
        assert!(message.contains(part), "{pool} gave: {message}");
    }
}

#[test]
fn broken_site_files_are_refused_with_line_key_and_remedy() {
    for (text, parts) in [
        ("", ["site.toml:1: hub.key: missing", "ropewalk join"]),
        (
            "[hub]\nkey = \"short\"",
            ["site.toml:2: hub.key:", "44 characters"],
        ),
        (
            "[hub]\nkey = \"short\"",
            ["site.toml:1: hub.endpoints: missing", "ropewalk join"],
        ),
        (
            &site_text("tcp_port = 0"),
            ["site.toml:4: hub.tcp_port:", "1 to 65535"],
        ),
        (
            &site_text("[network]\nroutes = [\"10.0.0.1/8\"]"),
            ["site.toml:5:", "10.0.0.0/8"],
        ),
        (
            &site_text("[[uplink]]\nmetered = true"),
            ["uplink[1].match: missing", "write match"],
        ),
        (
            &site_text("[[uplink]]\nmatch = \"a\"\n[[uplink]]\nmatch = \"b\"\nwieght = 2"),
            ["site.toml:8: uplink[2].wieght:", "did you mean weight?"],
        ),
        (
            &site_text("[uplink]\nmatch = \"a\""),
            ["uplink: expected a list", "[[uplink]]"],
        ),
        (
            &site_text("[[uplink]]\nmatch = \"a\"\nweight = 0"),
            ["weight", "1 to 1000"],
        ),
    ] {
        let message = site_error(text);
        for part in parts {
            assert!(
                message.contains(part),
                "{text}\ngave: {message}\nwithout: {part}"
            );
        }
    }
}

#[test]
fn all_problems_of_a_file_are_told_at_once_in_order() {
    let message = hub_error(&format!(
        "{HUB}[tunnel]\nmtu = 1\nofload = true\n[log]\nlevel = 5\n"
    ));
    let lines: Vec<_> = message.lines().collect();
    assert_eq!(lines.len(), 3, "{message}");
    assert!(lines[0].starts_with("hub.toml:4:"), "{message}");
    assert!(lines[1].contains("did you mean offload?"), "{message}");
    assert!(lines[2].starts_with("hub.toml:7: log.level:"), "{message}");
}

#[test]
fn sound_site_file_is_read_as_written() {
    let text = format!(
        "name = \"boat\"\nkey_file = \"/k\"\n{}",
        site_text(
            "tcp_fallback = false\n[network]\nroutes = []\n[tunnel]\nscheduler = \"htmt\"\n\
             scheduler_receive = \"ecf\"\n[[uplink]]\nmatch = \"wwan*\"\nmetered = true\nbottleneck = 2\n\
             congestion = \"bbr\"\nweight = 5\n"
        )
    );
    let config = site::parse(Path::new("/etc/x/site.toml"), &text).unwrap();
    assert_eq!(config.common.name, "boat");
    assert_eq!(config.common.key_file, Path::new("/k"));
    assert_eq!(config.hub_key.to_string(), KEY);
    assert_eq!(config.endpoints[0].to_string(), "h.example:4443");
    assert!(!config.tcp_fallback);
    assert!(config.routes.is_empty());
    assert_eq!(config.common.scheduler_send, SchedulerKind::Htmt);
    assert_eq!(config.common.scheduler_receive, SchedulerKind::Ecf);
    let mark = &config.uplinks.marks[0];
    assert!(mark.metered == Some(true) && !mark.standby && mark.pattern.matches("wwan0"));
    assert_eq!(
        (mark.weight, mark.congestion, mark.bottleneck),
        (Some(5), Some(CongestionControl::Bbr), Some(2))
    );
}

#[test]
fn a_quota_is_a_number_of_gigabytes_and_a_day() {
    let marked = |text: &str| {
        let text = site_text(&format!("[[uplink]]\nmatch = \"wwan*\"\n{text}"));
        site::parse(Path::new("/etc/x/site.toml"), &text)
    };
    let quota = |text: &str| marked(text).unwrap().uplinks.quota("wwan0");
    let of = |bytes, day| Some(ropewalk_api::Quota { bytes, day });
    assert_eq!(quota(""), None);
    assert_eq!(quota("quota_gb = 10\n"), of(10_000_000_000, 1));
    assert_eq!(quota("quota_gb = 0.5\n"), of(500_000_000, 1));
    assert_eq!(quota("quota_gb = 0.001\n"), of(1_000_000, 1));
    assert_eq!(
        quota("quota_gb = 999_999.999\n"),
        of(999_999_999_000_000, 1)
    );
    assert_eq!(
        quota("quota_gb = 1\nquota_day = 28\n"),
        of(1_000_000_000, 28)
    );
    for (wrong, says) in [
        ("quota_gb = 0\n", "from 0.001 to 1000000"),
        ("quota_gb = -0.5\n", "from 0.001 to 1000000"),
        ("quota_gb = 0.0005\n", "from 0.001 to 1000000"),
        ("quota_gb = 1000000.001\n", "is out of range"),
        ("quota_gb = inf\n", "is out of range"),
        ("quota_gb = \"10\"\n", "a number"),
        ("quota_gb = 1\nquota_day = 29\n", "from 1 to 28"),
        ("quota_day = 3\n", "write quota_gb = 10"),
    ] {
        let problems = marked(wrong).unwrap_err().to_string();
        assert!(problems.contains(says), "{problems}");
    }
}

#[test]
fn classes_say_what_is_protected_and_wrong_ones_are_named() {
    let text = site_text(
        "[tunnel]\nprotect = \"code\"\nredundancy_percent = 20\n[[class]]\nname = \"voice\"\ndscp = [\"ef\", \"af41\", \"12\"]\n\
         packet_bytes_max = 400\nprotect = \"duplicate\"\ncopies = 3\nloss_permille_above = 5\n\
         [[class]]\nname = \"names\"\nprotocol = [\"udp\"]\nports = [\"53\", \"16384-32767\"]\nprotect = \"none\"\n\
         [[uplink]]\nmatch = \"wwan*\"\nmetered = true\nprotect_mib_per_hour = 3\n",
    );
    let config = site::parse(Path::new("/etc/x/site.toml"), &text).unwrap();
    let classes: Vec<_> = config.common.classes.iter().collect();
    assert_eq!(classes[0].protection, Protection::Code);
    assert_eq!(config.common.classes.redundancy, Some(0.2));
    let too_much = site_text("[tunnel]\nredundancy_percent = 51\n");
    let problems = site::parse(Path::new("/etc/x/site.toml"), &too_much).unwrap_err();
    assert!(problems.to_string().contains("from 1 to 50"), "{problems}");
    let voice = classes[1];
    assert_eq!(
        (voice.name.as_str(), voice.protection),
        ("voice", Protection::Duplicate)
    );
    assert_eq!(voice.rule.dscp, [46, 34, 12]);
    assert_eq!((voice.rule.packet_bytes_max, voice.copies), (400, 3));
    assert!((voice.loss_above - 0.005).abs() < 1e-9);
    assert_eq!(classes[2].rule.ports, [53..=53, 16_384..=32_767]);
    assert_eq!(classes[2].rule.protocols, [17]);
    assert_eq!(config.uplinks.marks[0].protection_hourly, Some(3 << 20));

    for (wrong, names) in [
        ("name = \"a\"\nprotect = \"copies\"", "copies"),
        ("name = \"a\"", "protect"),
        ("protect = \"none\"", "name"),
        (
            "name = \"a\"\nprotect = \"none\"\ndscp = [\"af51\"]",
            "af51",
        ),
        ("name = \"a\"\nprotect = \"none\"\ndscp = [\"64\"]", "64"),
        ("name = \"a\"\nprotect = \"none\"\nports = [\"9-5\"]", "9-5"),
        (
            "name = \"a\"\nprotect = \"none\"\nprotocol = [\"upd\"]",
            "upd",
        ),
        ("name = \"a\"\nprotect = \"none\"\ncopies = 1", "copies"),
    ] {
        let text = site_text(&format!("[[class]]\n{wrong}\n"));
        let problems = site::parse(Path::new("/etc/x/site.toml"), &text).unwrap_err();
        assert!(problems.to_string().contains(names), "{wrong}: {problems}");
    }
}

#[test]
fn what_is_held_is_read_as_written_and_wrong_bounds_are_named() {
    let parse = |text: &str| site::parse(Path::new("/etc/x/site.toml"), &site_text(text));
    let hold = parse("").unwrap().common.hold;
    assert_eq!((hold.bytes_max, hold.flow_bytes_max), (19 << 20, 8 << 20));
    let text =
        "[hold]\nmib_max = 64\nflow_mib_max = 32\ntcp_seconds_max = 120\nother_seconds_max = 5\n";
    let hold = parse(text).unwrap().common.hold;
    assert_eq!((hold.bytes_max, hold.flow_bytes_max), (64 << 20, 32 << 20));
    assert_eq!(hold.freeze, Freeze::Off);
    let planned = parse("[hold]\nfreeze = \"planned\"\n").unwrap();
    assert_eq!(planned.common.hold.freeze, Freeze::Planned);
    let seconds = [hold.tcp_age_max, hold.other_age_max].map(|age| age.as_secs());
    assert_eq!(seconds, [120, 5]);
    let little = parse("[hold]\nmib_max = 2\n").unwrap().common.hold;
    assert_eq!(
        little.flow_bytes_max,
        2 << 20,
        "one flow gets no more than all"
    );
    for (wrong, names) in [
        ("mib_max = 1025", "hold.mib_max"),
        ("flow_mib_max = 20", "one flow would be allowed more"),
        ("other_seconds_max = -1", "hold.other_seconds_max"),
        ("udp_seconds_max = 3", "unknown key"),
        ("freeze = \"always\"", "hold.freeze"),
    ] {
        let problems = parse(&format!("[hold]\n{wrong}\n")).unwrap_err();
        assert!(problems.to_string().contains(names), "{wrong}: {problems}");
    }
}

fn relay_text(routed: bool) -> String {
    template::relay(&RelayTemplate {
        site: SiteTemplate {
            name: "harbour".to_owned(),
            hub_key: KEY.parse().unwrap(),
            endpoints: vec!["[2001:db8::1]:4443".parse().unwrap()],
            tcp_port: 443,
            spares: Vec::new(),
        },
        listen: vec!["0.0.0.0:4443".parse().unwrap()],
        tcp_listen: vec![],
        public: vec![],
        pools: ["10.9.0.192/26", "fd00:1::/96"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        routed,
    })
}

#[test]
fn a_relay_has_two_sides_with_keys_and_interfaces_of_their_own() {
    let path = Path::new("/etc/ropewalk/relay.toml");
    let config = relay::parse(path, &relay_text(true)).unwrap();
    let (hub, site) = (&config.hub, &config.site);
    assert_eq!(hub.common.interface, "ropehub0");
    assert_eq!(site.common.interface, "ropewalk0");
    assert!(hub.common.owns("ropewalk0") && site.common.owns("ropehub0"));
    assert_eq!(
        hub.common.key_file,
        Path::new("/etc/ropewalk/keys/relay.key")
    );
    assert_eq!(
        site.common.key_file,
        Path::new("/etc/ropewalk/keys/relay-hub.key")
    );
    let sites = Path::new("/var/lib/ropewalk/relay-sites.toml");
    assert_eq!(hub.sites_file, sites);
    assert!(site.routes.is_empty() && !hub.masquerade && hub.forward && hub.is_relay());
    assert_eq!(hub.onward.as_deref(), Some("ropewalk0"));
    let excluded: Vec<_> = site
        .uplinks
        .exclude
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(excluded, ["ropehub0"]);
    let translated = relay::parse(path, &relay_text(false)).unwrap();
    let (hub, site) = (&translated.hub, &translated.site);
    assert!(hub.masquerade && hub.onward.as_deref() == Some("ropewalk0"));
    // Networks of its own that overlap with the hub's are no part of it.
    assert!(!hub.common.owns("ropewalk0") && !site.common.owns("ropehub0"));
    assert!(hub.common.owns("ropehub0") && site.common.owns("ropewalk0"));
}

#[test]
fn the_tunnel_to_the_hub_is_as_the_others_unless_told() {
    let text = relay_text(true)
        .replace("[onward]", "[onward]\nprotect = \"code\"\nredundancy_percent = 30\nmtu = 1300")
        .replace("\n[tunnel]", "\n[[class]]\nname = \"a\"\nprotect = \"duplicate\"\nports = [\"53\"]\n[tunnel]\ncongestion = \"cubic\"\nprotect = \"none\"");
    let config = relay::parse(Path::new("relay.toml"), &text).unwrap();
    let (sites, hub) = (&config.hub.common, &config.site.common);
    assert_eq!(hub.congestion, sites.congestion);
    assert_eq!(
        (sites.classes.redundancy, hub.classes.redundancy),
        (None, Some(0.3))
    );
    assert_eq!((sites.mtu, hub.mtu), (None, Some(1_300)));
    let protections = |common: &super::common::Common| {
        let all = common
            .classes
            .iter()
            .map(|class| class.protection.to_string());
        all.collect::<Vec<_>>()
    };
    assert_eq!(protections(sites), ["none", "duplicate"]);
    assert_eq!(protections(hub), ["code", "duplicate"]);
}

#[test]
fn ways_are_read_by_class_and_nothing_goes_beside_the_tunnel_unasked() {
    let path = Path::new("site.toml");
    let plain = site::parse(path, &site_text("[direct]\nmode = \"failover\"\n")).unwrap();
    assert_eq!(plain.direct, None);
    let class = |name: &str, more: &str| format!("[[class]]\nname = \"{name}\"\n{more}\n");
    let text = class("voice", "dscp = [\"ef\"]\nprotect = \"duplicate\"")
        + &class("video", "ports = [\"443\"]\nvia = \"direct\"")
        + "[direct]\nvia = \"auto\"\naffinity_minutes = 0\n[probe]\ntargets = []\n";
    let config = site::parse(path, &site_text(&text)).unwrap();
    let direct = config.direct.unwrap();
    let classes = direct.classes.iter();
    let classes: Vec<_> = classes.map(|c| (c.name.as_str(), c.via)).collect();
    assert_eq!(classes, [("voice", Via::Tunnel), ("video", Via::Direct)]);
    assert_eq!(direct.others, Via::Auto);
    assert!(direct.spread.affinity.is_zero() && !direct.spread.forward);
    assert_eq!(direct.spread.common.interface, "ropewalk0");
}

#[test]
fn a_way_that_is_not_the_same_for_all_packets_of_a_flow_is_refused() {
    let sized = "[[class]]\nname = \"small\"\nprotect = \"none\"\npacket_bytes_max = 200\n";
    let direct = "[[class]]\nname = \"d\"\nvia = \"direct\"\n";
    for (text, key, remedy) in [
        (
            format!("{direct}packet_bytes_max = 9\n"),
            "class[1].packet_bytes_max",
            "remove it",
        ),
        (
            format!("{sized}{direct}"),
            "class[2].via",
            "put this class before \"small\"",
        ),
        (
            format!("{sized}[direct]\nvia = \"auto\"\n"),
            "direct.via",
            "remove packet_bytes_max",
        ),
        (
            "[[class]]\nname = \"a\"\nvia = \"both\"\nprotect = \"none\"\n".to_owned(),
            "class[1].via",
            "\"tunnel\", \"direct\" or \"auto\"",
        ),
        (
            "[[class]]\nname = \"a\"\nvia = \"auto\"\n".to_owned(),
            "class[1].protect",
            "missing",
        ),
        (
            "[[class]]\nname = \"a\"\nprotocol = [\"icmp\"]\nports = [\"53\"]\nprotect = \"none\"\n"
                .to_owned(),
            "class[1].ports",
            "name one that has ports",
        ),
    ] {
        let found = site::parse(Path::new("s.toml"), &site_text(&text)).unwrap_err();
        let found = found.to_string();
        assert!(found.contains(key) && found.contains(remedy), "{text}: {found}");
    }
    site::parse(Path::new("s.toml"), &site_text(&format!("{direct}{sized}"))).unwrap();
    let (hub_text, _) = templates();
    let wrong = hub_text + direct;
    let found = hub::parse(Path::new("h.toml"), &wrong)
        .unwrap_err()
        .to_string();
    assert!(found.contains("only a site"), "{found}");
}

#[test]
fn what_a_relay_cannot_do_is_refused_with_its_line() {
    let text = relay_text(true);
    for (from, to, part) in [
        (
            "[onward]",
            "[onward]\ninterface = \"ropehub0\"",
            "onward.interface",
        ),
        ("[network]", "[network]\nforward = false", "network.forward"),
        ("[network]", "[network]\nroutes = []", "network.routes"),
        ("[hub]", "[hub]\nkye = \"x\"", "did you mean key?"),
        ("ipv4 = ", "ipv4 = 3 #", "pool.ipv4"),
    ] {
        let wrong = text.replacen(from, to, 1);
        assert_ne!(wrong, text, "{from}");
        let problems = relay::parse(Path::new("r.toml"), &wrong).unwrap_err();
        assert!(problems.to_string().contains(part), "{to}: {problems}");
    }
}

#[test]
fn the_contents_tell_the_role() {
    let directory = tempfile::tempdir().unwrap();
    let (hub_text, site_text) = templates();
    let path = directory.path().join("x.toml");
    for (text, expected) in [
        (hub_text, "hub"),
        (site_text, "site"),
        (relay_text(true), "relay"),
        (template::balance(), "balance"),
    ] {
        std::fs::write(&path, text).unwrap();
        let role = match Config::load(&path).unwrap() {
            Config::Hub(_) => "hub",
            Config::Site(_) => "site",
            Config::Relay(_) => "relay",
            Config::Balance(_) => "balance",
        };
        assert_eq!(role, expected);
        let invites = super::load_inviting(&path).is_ok();
        assert_eq!(invites, expected != "site" && expected != "balance");
    }
}

#[test]
fn a_file_of_another_role_is_called_that_and_its_keys_are_not_listed() {
    let directory = tempfile::tempdir().unwrap();
    let (hub_text, site_text) = templates();
    let path = directory.path().join("x.toml");
    let error = |text: &str, load: fn(&Path) -> Option<anyhow::Error>| {
        std::fs::write(&path, text).unwrap();
        load(&path).unwrap().to_string()
    };
    let hub = error(&site_text, |path| super::load_hub(path).err());
    assert!(
        hub.contains("for another command: run `ropewalk up --config"),
        "{hub}"
    );
    let site = error(&template::balance(), |path| super::load_site(path).err());
    assert!(site.contains("run `ropewalk balance"), "{site}");
    let relay = error(&hub_text, |path| super::load_relay(path).err());
    assert!(relay.contains("run `ropewalk hub"), "{relay}");
    let wrong = format!("{hub_text}[nonsense]\n");
    let hub = error(&wrong, |path| super::load_hub(path).err());
    assert!(hub.contains("unknown key"), "{hub}");
}

#[test]
fn shared_addresses_are_read_with_the_ports_of_a_site() {
    let read = |pool: &str| {
        let text = format!("{HUB}{pool}");
        cases::hub::parse(Path::new("hub.toml"), &text).unwrap()
    };
    let shared = read("shared = [\"203.0.113.7\", \"198.51.100.3\"]").shared;
    let shared = shared.unwrap();
    assert_eq!(shared.addresses[1].to_string(), "198.51.100.3");
    assert_eq!(shared.ports, 1_008);
    let shared = read("shared = [\"203.0.113.7\"]\nports = 64512").shared;
    assert_eq!(shared.unwrap().ports, 64_512, "an address for each site");
    assert_eq!(read("").shared, None);
}

#[test]
fn what_several_sites_share_is_passed_on_where_hubs_announce_their_sites() {
    let passed = |pool: &str, network: &str| {
        let text = format!("{HUB}shared = [\"203.0.113.7\"]\n{pool}[network]\n{network}");
        let hub = cases::hub::parse(Path::new("hub.toml"), &text).unwrap();
        assert_eq!(hub.passes_on(), !hub.passed().is_empty());
        hub.passed().to_vec()
    };
    let table = "routes_table = 4443";
    assert_eq!(passed("", table), [std::net::Ipv4Addr::new(203, 0, 113, 7)]);
    assert!(passed("ports = 64512\n", table).is_empty(), "one for each");
    assert!(passed("", "").is_empty(), "no other hub");
}

fn templates() -> (String, String) {
    let hub = template::hub(&HubTemplate {
        listen: vec!["0.0.0.0:4443".parse().unwrap()],
        tcp_listen: vec![],
        public: vec![],
        pool_v4: "10.9.0.0/20".parse().unwrap(),
        pool_v6: "fd00:1::/64".parse().unwrap(),
    });
    let site = template::site(&SiteTemplate {
        name: "boat".to_owned(),
        hub_key: KEY.parse().unwrap(),
        endpoints: vec!["[2001:db8::1]:4443".parse().unwrap()],
        tcp_port: 443,
        spares: Vec::new(),
    });
    (hub, site)
}

#[test]
fn templates_are_accepted_and_hold_the_defaults() {
    let (hub_text, site_text) = templates();
    let path = Path::new("/etc/ropewalk/x.toml");
    let hub_config = hub::parse(path, &hub_text).unwrap();
    assert_eq!(hub_config.tcp_port(), 443);
    let own: Vec<_> = hub_config
        .own_addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(own, ["10.9.0.1/20", "fd00:1::1/64"]);
    assert_eq!(site::parse(path, &site_text).unwrap().routes.len(), 2);
}

#[test]
fn every_commented_key_of_the_templates_is_a_key() {
    let (hub_text, site_text) = templates();
    let is_commented_key = |line: &&str| line.starts_with("# ") && line.contains(" = ");
    let relay_text = relay_text(true);
    for (text, least) in [(&hub_text, 14), (&site_text, 18), (&relay_text, 22)] {
        assert!(
            text.lines().filter(is_commented_key).count() >= least,
            "{text}"
        );
    }
    let uncomment = |text: &str| {
        let lines = text.lines().map(|line| {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let key = bare.split(" = ").next().unwrap_or_default();
            let is_key = bare.contains(" = ") && !key.contains(' ');
            if is_key || bare.starts_with("[[") {
                bare
            } else {
                line
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let path = Path::new("/etc/ropewalk/x.toml");
    hub::parse(path, &uncomment(&hub_text)).unwrap();
    let site = site::parse(path, &uncomment(&site_text)).unwrap();
    assert_eq!(site.direct.unwrap().classes[0].via, Via::Direct);
    relay::parse(path, &uncomment(&relay_text)).unwrap();
    let counted = relay_text.clone() + "\n[[uplink]]\nmatch = \"wwan*\"\nquota_gb = 3\n";
    let problems = relay::parse(path, &counted).unwrap_err().to_string();
    assert!(problems.contains("take quota_gb out"), "{problems}");
    let text = uncomment(&template::balance());
    let balance = cases::balance::parse(path, &text).unwrap();
    assert_eq!((balance.rules.len(), balance.uplinks.marks.len()), (1, 1));
    assert!(balance.rules[0].cgroup.is_some(), "{text}");
}

#[test]
fn commented_keys_of_the_templates_are_defaults_unless_called_examples() {
    let uncomment = |text: &str| {
        let mut example = false;
        let lines = text.lines().map(|line| {
            // An entry of a list is an example as a whole, up to the next empty line.
            example = line.starts_with("# [[") || (example && !line.is_empty());
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let key = bare.split(" = ").next().unwrap_or_default();
            let is_key = bare.contains(" = ") && !key.contains(' ');
            if is_key && !example && !bare.contains("# example") {
                bare
            } else {
                line
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let (hub_text, site_text) = templates();
    for (text, role) in [
        (hub_text, "hub"),
        (site_text, "site"),
        (relay_text(true), "relay"),
        (template::balance(), "balance"),
    ] {
        let path = Path::new("/etc/ropewalk").join(format!("{role}.toml"));
        let all = uncomment(&text);
        assert!(all.lines().count() == text.lines().count() && all != text);
        let (plain, all) = (Config::parse(&path, &text), Config::parse(&path, &all));
        assert_eq!(plain.unwrap(), all.unwrap(), "{role}");
    }
    assert!(!template::balance().contains("tunnel"));
}

#[test]
fn the_kill_switch_is_off_unless_asked_for_and_a_joined_site_asks_for_it() {
    let path = Path::new("site.toml");
    let parse = |network: &str| {
        let hub = format!("[hub]\nkey = \"{KEY}\"\nendpoints = [\"h:1\"]\n");
        site::parse(path, &format!("{hub}[network]\n{network}"))
    };
    let old = parse("").unwrap();
    assert!(!old.kill_switch && old.local.is_none() && old.dns.is_empty());
    assert!(site::parse(path, &templates().1).unwrap().kill_switch);
    let all = "kill_switch = true\nlocal = [\"192.168.0.0/16\"]\ndns = [\"192.168.1.53\", \"2001:db8::53\"]";
    let config = parse(all).unwrap();
    assert!(config.kill_switch && config.local.unwrap().len() == 1 && config.dns.len() == 2);
    for (network, key) in [
        (
            "kill_switch = true\nroutes = [\"10.0.0.0/8\"]",
            "network.kill_switch",
        ),
        (
            "kill_switch = true\nroutes = [\"0.0.0.0/0\"]",
            "network.kill_switch",
        ),
        (
            "routes = [\"10.0.0.0/8\"]\ndns = [\"192.0.2.53\"]",
            "network.dns",
        ),
        ("dns = [\"resolver\"]", "network.dns"),
        ("local = [\"192.168.1.1/16\"]", "network.local"),
    ] {
        let problems = parse(network).unwrap_err().to_string();
        assert!(problems.contains(key), "{network}: {problems}");
    }
    parse("routes = [\"10.0.0.0/8\"]\ndns = [\"10.0.0.53\"]").unwrap();
}

#[test]
fn patterns_match_whole_names() {
    for (pattern, name, expected) in [
        ("eth0", "eth0", true),
        ("eth0", "eth01", false),
        ("eth*", "eth", true),
        ("*", "", true),
        ("*0", "wlan0", true),
        ("w*n?", "wwan7", true),
        ("w*n?", "wwan", false),
        ("a*b*c", "aXbYbZc", true),
        ("**", "x", true),
        ("?", "", false),
    ] {
        let parsed: Pattern = pattern.parse().unwrap();
        assert_eq!(parsed.matches(name), expected, "{pattern} against {name}");
    }
}

#[test]
fn host_and_port_survive_writing_and_reading() {
    for text in ["1.2.3.4:5", "[2001:db8::1]:443", "hub.example.org:4443"] {
        assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "host",
        "host:",
        "host:0",
        "host:70000",
        "::1:5",
        "[x]:1",
        "a b:1",
        "a..b:1",
    ] {
        assert!(text.parse::<HostPort>().is_err(), "{text}");
    }
}

#[test]
fn a_name_that_stands_twice_is_named_with_its_first_place() {
    let twice = site_error(&site_text(
        "[direct]\nvia = \"auto\"\n[log]\n[direct]  # again\n",
    ));
    assert!(
        twice.contains("site.toml:7: direct: the file has this section already, in line 4"),
        "{twice}"
    );
    assert!(twice.contains("below [direct] in line 4"), "{twice}");
    let twice = site_error(&site_text("[log]\nlevel = \"info\"\nlevel = \"warn\"\n"));
    assert!(
        twice.contains("site.toml:6: level: this section has the key already; remove one"),
        "{twice}"
    );
}

#[test]
fn one_mistake_is_reported_once_with_a_remedy_that_costs_nothing() {
    let missing = site_error(&site_text("[[class]]\nname = \"a\"\n"));
    assert!(
        missing.contains("write protect = \"adaptive\""),
        "{missing}"
    );
    let sideways = site_error(&site_text("[[class]]\nname = \"a\"\nvia = \"sideways\"\n"));
    assert!(
        sideways.contains("class[1].via") && !sideways.contains("protect"),
        "{sideways}"
    );
    let rule = "[balance]\n[[rule]]\nname = \"x\"\nuplinks = [\"a\"]\nports = [\"http\"]\n";
    let rule = cases::balance::parse(Path::new("balance.toml"), rule).unwrap_err();
    assert_eq!(rule.0.len(), 1, "{rule}");
    assert_eq!(rule.0[0].key, "rule[1].ports");
}

#[test]
fn what_is_no_text_of_a_sound_size_is_refused_without_reading_on() {
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("binary.toml");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    // A device that never ends claims a length of 0 bytes.
    for (path, problem) in [
        (Path::new("/dev/zero"), "has more than 1048576 bytes"),
        (binary.as_path(), "not UTF-8"),
        (directory.path(), "directory"),
    ] {
        let error = Config::load(path).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn a_site_has_two_spares_at_most_and_each_hub_once() {
    let key = |byte| PublicKey::from_bytes([byte; 32]);
    let place = |byte: u8| Place {
        key: key(byte),
        tcp_port: 443,
        region: 0,
        endpoints: vec![format!("192.0.2.{byte}:4443").parse().unwrap()],
    };
    let parse = |spares: &[u8]| {
        let text = template::site(&SiteTemplate {
            name: "boat".to_owned(),
            hub_key: key(1),
            endpoints: vec!["192.0.2.1:4443".parse().unwrap()],
            tcp_port: 443,
            spares: spares.iter().map(|byte| place(*byte)).collect(),
        });
        site::parse(Path::new("site.toml"), &text)
    };
    let keys = |spares| {
        let config = parse(spares).unwrap();
        config.spares.into_iter().map(|spare| spare.key).collect()
    };
    let none: Vec<PublicKey> = keys(&[]);
    assert!(none.is_empty());
    assert_eq!(keys(&[2, 3]), [key(2), key(3)], "in this order");
    assert_eq!(keys(&[2, 3, 4]), [key(2), key(3)], "no more are written");
    for twice in [&[1][..], &[2, 2], &[2, 1]] {
        let problems = parse(twice).unwrap_err().to_string();
        assert!(
            problems.contains("key: another hub of this site has this key"),
            "{problems}"
        );
    }
    let spare = |byte| {
        let key = key(byte);
        format!("[[spare]]\nkey = \"{key}\"\nendpoints = [\"h:1\"]\n")
    };
    let three: String = [2, 3, 4].map(spare).concat();
    let problems = site::parse(Path::new("site.toml"), &site_text(&three)).unwrap_err();
    assert!(problems.to_string().contains("more than 2 entries"));
}
