//! Nothing leaves a site beside its tunnel while the kill switch is on, and much does while it is off.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ropewalk_e2e::leaks::{self, LeakLab, Leaks};
use ropewalk_e2e::ready;
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::topology::{HUB, HUB_V6, SERVER, SERVER_V6};
use ropewalk_testbed::{Balanced, Finished, Namespace, balanced};

const ON: &str = "kill_switch = true";

/// What a command said, on both streams.
fn said(finished: &Finished) -> String {
    format!("{}{}", finished.stdout, finished.stderr)
}

#[test]
fn with_the_kill_switch_nothing_but_the_tunnel_leaves_in_any_situation() {
    if !ready() {
        return;
    }
    let cases = leaks::matrix(true).unwrap();
    println!("{}", leaks::table(&cases).markdown());
    for case in &cases {
        assert_eq!(case.leaks, Leaks::default(), "{}", case.situation);
    }
    assert_eq!(cases.len(), 14);
}

#[test]
fn without_the_kill_switch_the_same_situations_leak() {
    if !ready() {
        return;
    }
    let cases = leaks::matrix(false).unwrap();
    println!("{}", leaks::table(&cases).markdown());
    for case in &cases {
        assert!(case.leaks.all() > 0, "{}", case.situation);
    }
    let of = |situation: &str| {
        let case = cases.iter().find(|case| case.situation == situation);
        case.unwrap().leaks
    };
    for situation in ["no answer of the hub yet", "killed (kill -9)", "stopped"] {
        let leaks = of(situation);
        let all = [leaks.tcp4, leaks.udp4, leaks.icmp, leaks.ipv6, leaks.dns];
        assert!(all.iter().all(|count| *count > 0), "{situation}: {leaks:?}");
    }
    assert!(of("routes of DHCP option 121").udp4 > of("tunnel up").udp4);
    assert!(of("routes of router advertisements").ipv6 > of("tunnel up").ipv6);
    assert!(of("a hub without IPv6").ipv6 > of("tunnel up").ipv6);
}

#[test]
fn the_kill_switch_stays_whatever_else_happens_and_says_what_it_does() {
    if !ready() {
        return;
    }
    let mut lab = LeakLab::new("killsay", ON).unwrap();
    let local = |lab: &LeakLab| {
        let (hosts, router) = (lab.behind.client(), "10.77.0.1");
        let ping = hosts.program("ping").args(["-c", "1", "-W", "2", router]);
        ping.run(Duration::from_secs(5)).unwrap().status.success()
    };
    lab.connect().unwrap();
    let settled = |status: &ropewalk_api::Status| {
        let switch = status.kill_switch.as_ref();
        switch.is_some_and(|switch| switch.is_set && !switch.local.is_empty())
    };
    let patience = Duration::from_secs(20);
    let status = lab
        .site
        .wait_for("local network", patience, settled)
        .unwrap();
    assert!(local(&lab), "the network behind the site is reached");
    let switch = status.kill_switch.unwrap();
    assert_eq!(switch.families, ["ipv4", "ipv6"]);
    assert!(
        switch.local.iter().all(|net| net.ends_with(" on lan0")),
        "{switch:?}"
    );
    assert!(
        lab.provoke().unwrap().all() == 0,
        "the local network is no way out"
    );
    let text = said(&lab.site.run(&["status"]).unwrap());
    assert!(text.contains("kill switch on: "), "{text}");
    assert!(!text.contains("kill switch on: 0 packets"), "{text}");

    // Another firewall that is loaded anew takes all tables away.
    lab.topology().site().nft("flush ruleset\n").unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lab.provoke().unwrap(), Leaks::default());
    // So does a program that sets up the network anew with routes.
    let (site, tun) = (lab.topology().site(), &status.interface);
    let route = ["route", "show", "0.0.0.0/1", "dev", tun];
    let routed = || site.program("ip").args(route).success(patience).unwrap();
    assert!(!routed().is_empty());
    site.ip(&format!("route del 0.0.0.0/1 dev {tun}\n"))
        .unwrap();
    assert!(routed().is_empty());
    std::thread::sleep(Duration::from_secs(2));
    assert!(!routed().is_empty(), "the route is back");

    lab.site.kill();
    let finished = lab.site.run(&["status"]).unwrap();
    assert_eq!(finished.status.code(), Some(3));
    let text = said(&finished);
    assert!(text.contains("`ropewalk down` lifts it"), "{text}");
    let text = said(&lab.site.run(&["doctor"]).unwrap());
    assert!(text.contains("kill switch: on"), "{text}");
    let text = said(&lab.site.run(&["doctor", "--repair"]).unwrap());
    assert_eq!(
        lab.provoke().unwrap(),
        Leaks::default(),
        "after repair: {text}"
    );
}

#[test]
fn down_and_the_configuration_lift_the_kill_switch() {
    if !ready() {
        return;
    }
    let mut lab = LeakLab::new("killdown", ON).unwrap();
    lab.connect().unwrap();
    let text = said(&lab.site.run(&["down"]).unwrap());
    assert!(
        text.contains("the site is stopped") && text.contains("is lifted"),
        "{text}"
    );
    assert!(!lab.site.is_running());
    assert!(
        lab.provoke().unwrap().tcp4 > 0,
        "nothing is refused any more"
    );
    let text = said(&lab.site.run(&["kill-switch", "restore"]).unwrap());
    assert!(text.contains("nothing to restore"), "{text}");
    let text = said(&lab.site.run(&["kill-switch"]).unwrap());
    assert!(text.contains("kill switch off"), "{text}");

    lab.connect().unwrap();
    lab.site.kill();
    assert_eq!(lab.provoke().unwrap(), Leaks::default());
    let config = std::fs::read_to_string(lab.site.config()).unwrap();
    std::fs::write(lab.site.config(), config.replace(ON, "kill_switch = false")).unwrap();
    lab.connect().unwrap();
    let text = said(&lab.site.run(&["status"]).unwrap());
    assert!(text.contains("kill switch off"), "{text}");
    lab.site.kill();
    assert!(
        lab.provoke().unwrap().tcp4 > 0,
        "the configuration lifts it, too"
    );
}

#[test]
fn a_site_whose_rules_cannot_be_set_does_not_start() {
    if !ready() {
        return;
    }
    let mut lab = LeakLab::new("killnft", ON).unwrap();
    lab.hub.start().unwrap();
    // No program of that name in the first place that is looked at, and one that refuses.
    let directory = lab.site.directory().join("bin");
    std::fs::create_dir_all(&directory).unwrap();
    let nft = directory.join("nft");
    std::fs::write(&nft, "#!/bin/sh\necho 'no such family' >&2\nexit 1\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&nft, mode).unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", directory.display());
    lab.reset().unwrap();
    let program = lab.site.program(&["up"]).unwrap().env("PATH", path);
    let finished = program.run(Duration::from_secs(10)).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    for part in [
        "kill switch cannot be set",
        "no such family",
        "kill_switch = false",
    ] {
        assert!(
            finished.stderr.contains(part),
            "{part}: {}",
            finished.stderr
        );
    }
    assert_eq!(lab.counted().unwrap(), Leaks::default());
}

#[test]
fn a_site_is_not_started_over_an_ssh_connection_that_the_start_would_cut() {
    if !ready() {
        return;
    }
    let mut lab = LeakLab::new("killssh", ON).unwrap();
    lab.hub.start().unwrap();
    let near = lab.topology().uplinks()[0].gateways[0];
    for (client, remedy) in [(near, "set local = "), (SERVER.into(), "through its hub")] {
        let program = lab.site.program(&["up"]).unwrap();
        let program = program.env("SSH_CONNECTION", format!("{client} 4000 192.0.2.9 22"));
        let finished = program.run(Duration::from_secs(10)).unwrap();
        assert_eq!(finished.status.code(), Some(2), "{}", said(&finished));
        let text = said(&finished);
        assert!(text.contains(remedy) && text.contains("--yes"), "{text}");
        assert!(lab.provoke().unwrap().tcp4 > 0, "nothing was set");
    }
    let program = lab.site.program(&["up", "--yes"]).unwrap();
    let program = program.env("SSH_CONNECTION", format!("{near} 4000 192.0.2.9 22"));
    let process = program.start(lab.site.directory(), "site").unwrap();
    lab.site.wait_paths(2, Duration::from_secs(20)).unwrap();
    assert_eq!(lab.provoke().unwrap(), Leaks::default());
    // Now it is set, and whoever is here still is not cut off by a start.
    drop(process);
    let program = lab.site.program(&["up"]).unwrap();
    let program = program.env("SSH_CONNECTION", format!("{near} 4000 192.0.2.9 22"));
    let _process = program.start(lab.site.directory(), "site").unwrap();
    lab.site.wait_paths(2, Duration::from_secs(20)).unwrap();
}

#[test]
fn a_portal_opens_pages_of_this_machine_for_a_time_and_the_kernel_ends_it() {
    if !ready() {
        return;
    }
    const TIME: Duration = Duration::from_secs(6);
    let mut lab = LeakLab::new("portal", ON).unwrap();
    lab.connect().unwrap();
    let site = lab.topology().site().clone();
    balanced::listen(lab.topology(), 80).unwrap();
    let text = said(&lab.site.run(&["portal", "6s"]).unwrap());
    let begin = Instant::now();
    assert!(text.contains("over up0"), "{text}");
    let leaks = lab.provoke().unwrap();
    assert!(leaks.tcp4 > 0 && leaks.dns > 0, "{leaks:?}");
    assert_eq!(
        (leaks.udp4, leaks.icmp, leaks.hub, leaks.other),
        (0, 0, 0, 0)
    );
    // The page comes over the uplink, from the address of the uplink.
    let page = SocketAddr::new(IpAddr::from(SERVER), 80);
    let ways = Balanced::count_at(&site, page, 1).unwrap();
    let up0 = lab.topology().uplinks()[0].addresses;
    assert!(ways.keys().all(|from| up0.contains(from)), "{ways:?}");
    let status = lab.site.status().unwrap();
    assert!(status.kill_switch.unwrap().portal_s.is_some());
    // Hosts behind the site have no part in it.
    lab.reset().unwrap();
    for server in [IpAddr::from(SERVER), IpAddr::from(SERVER_V6)] {
        let reach = lab
            .behind
            .client()
            .program("ping")
            .args(["-c", "1", "-W", "1"]);
        let _ = reach.arg(server.to_string()).run(Duration::from_secs(5));
        let connect = || {
            let to = SocketAddr::new(server, 80);
            std::net::TcpStream::connect_timeout(&to, Duration::from_millis(300)).is_ok()
        };
        let _ = lab.behind.client().enter(connect).unwrap();
    }
    assert_eq!(lab.counted().unwrap(), Leaks::default(), "forwarded");
    lab.site.kill();
    assert!(begin.elapsed() < TIME, "too slow to see the portal open");
    assert!(lab.provoke().unwrap().tcp4 > 0, "the time is not over");
    std::thread::sleep(TIME.saturating_sub(begin.elapsed()) + Duration::from_secs(1));
    assert_eq!(lab.provoke().unwrap(), Leaks::default(), "the time is over");
    lab.site.run(&["portal", "5m"]).unwrap().success().unwrap();
    lab.site.run(&["portal", "off"]).unwrap().success().unwrap();
    assert_eq!(lab.provoke().unwrap(), Leaks::default(), "ended early");
}

#[test]
fn classes_that_go_direct_pass_the_kill_switch_and_nothing_else_does() {
    if !ready() {
        return;
    }
    const DIRECT: u16 = 8_080;
    let spec = GatewaySpec {
        network: ON.to_owned(),
        more: format!(
            "[[class]]\nname = \"direct\"\nprotocol = [\"tcp\"]\nports = [\"{DIRECT}\"]\n\
             via = \"direct\"\n[probe]\ntargets = [\"{SERVER}\", \"{SERVER_V6}\"]\n"
        ),
        ..GatewaySpec::default()
    };
    let mut lab = LeakLab::with("killvia", &spec).unwrap();
    balanced::listen(lab.topology(), DIRECT).unwrap();
    lab.connect().unwrap();
    let server = SocketAddr::new(IpAddr::from(SERVER), DIRECT);
    let end = Instant::now() + Duration::from_secs(10);
    let uplinks = lab.topology().uplinks();
    loop {
        let ways = Balanced::count_at(lab.topology().site(), server, 1).unwrap();
        let direct = |from: &IpAddr| uplinks.iter().any(|u| u.addresses.contains(from));
        if ways.keys().all(direct) {
            break;
        }
        assert!(Instant::now() < end, "nothing goes direct: {ways:?}");
    }
    // The probes of the uplinks are pings.
    let leaks = lab.provoke().unwrap();
    let of_classes_in_the_tunnel = (leaks.tcp4, leaks.udp4, leaks.dns, leaks.hub, leaks.other);
    assert_eq!(of_classes_in_the_tunnel, (0, 0, 0, 0, 0), "{leaks:?}");
}

/// The file with the name servers that programs of a namespace read; removed with this.
struct ResolvConf(PathBuf);

impl ResolvConf {
    fn new(namespace: &Namespace, text: &str) -> Self {
        let directory = PathBuf::from("/etc/netns").join(namespace.name());
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("resolv.conf"), text).unwrap();
        Self(directory)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.0.join("resolv.conf")).unwrap()
    }
}

impl Drop for ResolvConf {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        // Fails where others have theirs.
        let _ = std::fs::remove_dir("/etc/netns");
    }
}

/// Answers every query for an IPv4 address with the hub's, until told to stop.
fn answer_queries(hub: &Namespace, at: IpAddr, stop: Arc<AtomicBool>) {
    let socket = hub
        .enter(|| UdpSocket::bind(SocketAddr::new(at, 53)))
        .unwrap()
        .unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let mut query = [0; 512];
            let Ok((length, from)) = socket.recv_from(&mut query) else {
                continue;
            };
            // The question ends with type and class; nothing may stand behind it.
            let question = &query[12..length];
            let end = question.iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_ipv4 = question[end - 4..end] == [0, 1, 0, 1];
            let mut answer = query[..2].to_vec();
            answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_ipv4), 0, 0, 0, 0]);
            answer.extend(&question[..end]);
            if is_ipv4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(HUB.octets());
            }
            let _ = socket.send_to(&answer, from);
        }
    });
}

/// Looks for the hub at this place only.
fn set_endpoint(lab: &LeakLab, endpoint: &str) {
    let config = std::fs::read_to_string(lab.site.config()).unwrap();
    let line = format!("endpoints = [\"{endpoint}\"]");
    let lines = config.lines().map(|old| {
        if old.starts_with("endpoints") {
            line.as_str()
        } else {
            old
        }
    });
    let config = lines.collect::<Vec<_>>().join("\n");
    assert!(config.contains(&line), "{config}");
    std::fs::write(lab.site.config(), config).unwrap();
}

#[test]
fn a_hub_is_reached_over_ipv6_with_neighbours_that_nobody_knows_yet() {
    if !ready() {
        return;
    }
    let mut lab = LeakLab::new("killsix", ON).unwrap();
    set_endpoint(&lab, &format!("[{HUB_V6}]:4443"));
    // The rules first, then interfaces whose neighbours are unknown.
    lab.connect().unwrap();
    lab.site.kill();
    let forget = lab.topology().site().program("ip");
    let forget = forget.args(["-6", "neigh", "flush", "all"]);
    forget.success(Duration::from_secs(5)).unwrap();
    lab.connect().unwrap();
    assert_eq!(lab.provoke().unwrap(), Leaks::default());
}

#[test]
fn a_hub_with_a_name_is_found_past_the_kill_switch_and_name_servers_come_back() {
    if !ready() {
        return;
    }
    let network = format!("{ON}\ndns = [\"{SERVER}\"]");
    let mut lab = LeakLab::new("killname", &network).unwrap();
    let resolver = lab.topology().uplinks()[0].gateways[0];
    let former = format!("nameserver {resolver}\n");
    let file = ResolvConf::new(lab.topology().site(), &former);
    let stop = Arc::new(AtomicBool::new(false));
    answer_queries(lab.topology().hub(), resolver, Arc::clone(&stop));
    set_endpoint(&lab, "hub.test:4443");

    lab.reset().unwrap();
    lab.connect().unwrap();
    let leaks = lab.counted().unwrap();
    assert!(leaks.dns > 0, "the name of the hub is asked for");
    assert_eq!(leaks.all(), leaks.dns, "{leaks:?}");
    let ours = format!("nameserver {SERVER}\n");
    let end = Instant::now() + Duration::from_secs(5);
    while !file.text().contains(&ours) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(file.text().contains(&ours), "{}", file.text());
    assert_eq!(lab.provoke().unwrap(), Leaks::default());

    lab.site.kill();
    assert!(
        file.text().contains(&ours),
        "the tunnel's servers stay: {}",
        file.text()
    );
    assert_eq!(lab.provoke().unwrap(), Leaks::default());
    lab.site
        .run(&["doctor", "--repair"])
        .unwrap()
        .success()
        .unwrap();
    assert_eq!(file.text(), former);

    // Without a resolver the hub is looked for where it was.
    stop.store(true, Ordering::Relaxed);
    lab.connect().unwrap();
    lab.site.stop();
    assert_eq!(file.text(), former);
    assert_eq!(lab.provoke().unwrap(), Leaks::default());
}
