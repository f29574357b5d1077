//! The state of a fleet on three members of the real etcd, on loopback addresses of a network namespace.
//!
//! Skipped, in words, where etcd or the right to make a namespace is missing.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_fleet::plan::Credential;
use ropewalk_fleet::record::Invitation;
use ropewalk_fleet::trust::HubEntry;
use ropewalk_fleet::{
    Claim, EtcdState, Fleet, FleetKey, HubLease, Options, Pools, Refusal, Request, Terms,
    WriteError, backup,
};
use ropewalk_io::netns::Namespace;
use ropewalk_transport::{Identity, PublicKey};

const PATIENCE: Duration = Duration::from_secs(30);
const MEMBERS: usize = 3;

fn key(number: u32) -> PublicKey {
    let mut bytes = [1; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    PublicKey::from_bytes(bytes)
}

fn fleet_key() -> FleetKey {
    FleetKey::new(Identity::from_seed([9; 32]).unwrap())
}

/// Members of etcd, killed with the value.
struct Etcd {
    directory: tempfile::TempDir,
    members: Vec<Option<Child>>,
}

/// Runs a test in a namespace of its own with three members of etcd.
fn with_etcd(test: impl FnOnce(&mut Etcd) + Send) {
    if Command::new("etcd")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        println!("skipped: there is no etcd (package etcd-server)");
        return;
    }
    let Ok(namespace) = Namespace::anonymous() else {
        println!("skipped: no right to make a network namespace");
        return;
    };
    let run = || {
        run("ip", &["link", "set", "lo", "up"]);
        let members = (0..MEMBERS).map(|_| None).collect();
        let mut etcd = Etcd {
            directory: tempfile::tempdir().unwrap(),
            members,
        };
        (0..MEMBERS).for_each(|number| etcd.begin(number, "new"));
        etcd.wait();
        test(&mut etcd);
    };
    namespace.enter(run).unwrap();
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}");
}

impl Etcd {
    fn begin(&mut self, number: usize, state: &str) {
        let (client, peer) = (
            format!("http://127.0.0.1:2{number}79"),
            format!("http://127.0.0.1:2{number}80"),
        );
        let cluster: Vec<_> = (0..MEMBERS)
            .map(|n| format!("m{n}=http://127.0.0.1:2{n}80"))
            .collect();
        let log =
            std::fs::File::create(self.directory.path().join(format!("log{number}"))).unwrap();
        let member = Command::new("etcd")
            .arg("--name")
            .arg(format!("m{number}"))
            .arg("--data-dir")
            .arg(self.directory.path().join(format!("m{number}")))
            .arg("--listen-client-urls")
            .arg(format!("{client},http://127.0.1.1:2{number}79"))
            .arg("--advertise-client-urls")
            .arg(&client)
            .arg("--listen-peer-urls")
            .arg(&peer)
            .arg("--initial-advertise-peer-urls")
            .arg(&peer)
            .arg("--initial-cluster")
            .arg(cluster.join(","))
            .arg("--initial-cluster-state")
            .arg(state)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.members[number] = Some(member);
    }

    fn kill(&mut self, number: usize) {
        let mut member = self.members[number].take().unwrap();
        member.kill().unwrap();
        member.wait().unwrap();
    }

    fn ctl(arguments: &[&str]) -> Option<String> {
        let endpoints = "http://127.0.0.1:2079,http://127.0.0.1:2179,http://127.0.0.1:2279";
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([
                "--dial-timeout=1s",
                "--command-timeout=2s",
                "--endpoints",
                endpoints,
            ])
            .args(arguments)
            .stderr(Stdio::null())
            .output()
            .unwrap();
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn wait(&self) {
        until("etcd answers", || {
            Self::ctl(&["put", "elsewhere", "1"]).is_some()
        });
    }

    fn leader(&self) -> usize {
        let status = Self::ctl(&["endpoint", "status"]).unwrap();
        status
            .lines()
            .position(|line| line.contains(", true, ") && !line.contains(", false, true"))
            .unwrap_or(0)
    }

    fn options(&self, name: &str) -> Options {
        Options {
            fleet: "test".to_owned(),
            key: fleet_key().public_key(),
            endpoints: (0..MEMBERS)
                .map(|n| format!("http://127.0.0.1:2{n}79"))
                .collect(),
            tls: None,
            login: None,
            file: self.directory.path().join(name),
        }
    }

    fn init(&self) {
        let pools = Pools {
            ipv4: Some("10.0.0.0/16".parse().unwrap()),
            ipv4_block: 32,
            ipv6: Some("fd00::/48".parse().unwrap()),
            ipv6_block: 64,
            shared: (1..200).map(|n| [192, 0, 2, n].into()).collect(),
            ports: 1008,
            reserved: 16,
        };
        backup::init(&self.options("init"), &pools).unwrap();
    }

    fn hub(&self, name: &str) -> Fleet {
        let fleet = Fleet::open(self.options(name), Box::new(|_| {})).unwrap();
        until("the hub has a copy", || fleet.status().revision > 0);
        fleet
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in self.members.iter_mut().flatten() {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "not within 60 s: {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn invite(name: &str, number: u32) -> Request {
    let invitation = Invitation {
        key: key(number),
        ends: u64::MAX,
        joined: None,
    };
    Request::Add {
        name: name.to_owned(),
        credential: Credential::Invitation(invitation),
        terms: Terms::default(),
    }
}

fn enrol(by: u32, number: u32) -> Request {
    Request::Enrol {
        by: key(by),
        key: key(number),
        proved: true,
        now: 10,
    }
}

/// All sites as one hub has them: nothing was given twice.
fn check(hub: &Fleet, count: usize) {
    until("the copy has all sites", || {
        hub.read(|copy| copy.sites().count()) == count
    });
    hub.read(|copy| {
        let mut seen = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for site in copy.sites() {
            assert!(seen.0.insert(site.ipv4.unwrap()), "{site:?}");
            assert!(seen.1.insert(site.ipv6.unwrap()), "{site:?}");
            assert!(seen.2.insert(site.ports.unwrap()), "{site:?}");
            assert!(
                site.keys()
                    .all(|key| copy.site_of(&key).unwrap().name == site.name)
            );
        }
        assert_eq!(copy.slots().count(), count);
    });
}

fn away(hub: &Fleet) -> bool {
    matches!(hub.status().etcd, EtcdState::Away { .. })
}

#[test]
fn hubs_that_invite_and_enrol_at_once_give_nothing_twice() {
    with_etcd(|etcd| {
        etcd.init();
        let begun = Instant::now();
        let won: usize = std::thread::scope(|scope| {
            let hubs: Vec<_> = (0..4_u32)
                .map(|number| {
                    let hub = etcd.hub(&format!("copy{number}"));
                    scope.spawn(move || {
                        let mut won = 0;
                        for site in 0..200 {
                            let id = number * 1000 + site;
                            hub.write(invite(&format!("s{id}"), id), PATIENCE).unwrap();
                            hub.write(enrol(id, 10_000 + id), PATIENCE).unwrap();
                            // All four want one name, and then to use one invitation.
                            let shared = 100_000 + site;
                            let _ = hub.write(invite(&format!("shared{site}"), shared), PATIENCE);
                            match hub.write(enrol(shared, 200_000 + id), PATIENCE) {
                                Ok(_) => won += 1,
                                Err(WriteError::Refused(Refusal::Used(_))) => {}
                                Err(other) => panic!("{other}"),
                            }
                        }
                        won
                    })
                })
                .collect();
            hubs.into_iter().map(|hub| hub.join().unwrap()).sum()
        });
        assert_eq!(won, 200, "each shared invitation was used once");
        println!(
            "4 hubs, 1,000 sites, {:.1} s",
            begun.elapsed().as_secs_f32()
        );
        check(&etcd.hub("last"), 1000);
    });
}

#[test]
fn a_killed_leader_costs_writes_a_pause_and_a_lost_majority_is_said() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        hub.write(invite("first", 1), PATIENCE).unwrap();
        let leader = etcd.leader();
        etcd.kill(leader);
        let begun = Instant::now();
        hub.write(invite("second", 2), PATIENCE).unwrap();
        println!(
            "leader killed: a write took {:.2} s",
            begun.elapsed().as_secs_f32()
        );
        check(&hub, 2);
        // Majority lost.
        let other = (leader + 1) % MEMBERS;
        etcd.kill(other);
        let error = hub
            .write(invite("third", 3), Duration::from_secs(3))
            .unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, WriteError::Away { .. }), "{words}");
        assert!(
            words.contains("etcd does not answer for") && words.contains("Known sites go on"),
            "{words}"
        );
        until("the hub says that etcd is away", || away(&hub));
        let before = hub.status().age.unwrap();
        std::thread::sleep(Duration::from_secs(3));
        assert!(
            hub.status().age.unwrap() >= before + Duration::from_secs(2),
            "the copy grows old"
        );
        assert_eq!(
            hub.read(|copy| copy.site_of(&key(2)).unwrap().name.clone()),
            "second"
        );
        let claim = Claim {
            site: "second".to_owned(),
            epoch: 4,
            statement: vec![1, 2],
        };
        assert!(hub.queue_claim(claim) && hub.status().claims_waiting == 1);
        let waits = hub.begin(invite("fourth", 4), PATIENCE);
        for number in [leader, other] {
            etcd.begin(number, "existing");
        }
        waits.recv().unwrap().unwrap();
        until("the claim is written", || hub.status().claims_waiting == 0);
        hub.write(invite("third", 3), PATIENCE).unwrap();
        check(&hub, 4);
        until("the hub sees etcd, and its copy is new", || {
            hub.status().etcd == EtcdState::There
                && hub.status().age.unwrap() <= Duration::from_secs(2)
        });
        assert_eq!(hub.read(|copy| copy.claims().next().unwrap().epoch), 4);
    });
}

#[test]
fn all_members_down_a_restarted_hub_serves_from_its_file_and_a_lost_member_comes_back_empty() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        for number in 0..20 {
            hub.write(invite(&format!("s{number}"), number), PATIENCE)
                .unwrap();
        }
        check(&hub, 20);
        (0..MEMBERS).for_each(|number| etcd.kill(number));
        drop(hub);
        let hub = Fleet::open(etcd.options("copy"), Box::new(|_| {})).unwrap();
        check(&hub, 20);
        assert!(away(&hub) && hub.status().age.is_some());
        (0..MEMBERS).for_each(|number| etcd.begin(number, "existing"));
        until("etcd is back", || hub.status().etcd == EtcdState::There);
        hub.write(invite("later", 100), PATIENCE).unwrap();
        check(&hub, 21);
        // A member loses its disk: it is taken out, and comes back empty.
        etcd.kill(1);
        std::fs::remove_dir_all(etcd.directory.path().join("m1")).unwrap();
        let list = Etcd::ctl(&["member", "list"]).unwrap();
        let id = list
            .lines()
            .find(|line| line.contains(", m1, "))
            .unwrap()
            .split(',')
            .next()
            .unwrap()
            .to_owned();
        until("the member is out", || {
            Etcd::ctl(&["member", "remove", &id]).is_some()
        });
        until("the member is in", || {
            Etcd::ctl(&["member", "add", "m1", "--peer-urls=http://127.0.0.1:2180"]).is_some()
        });
        etcd.begin(1, "existing");
        hub.write(invite("latest", 101), PATIENCE).unwrap();
        let only = Options {
            endpoints: vec!["http://127.0.0.1:2179".to_owned()],
            ..etcd.options("other")
        };
        let other = Fleet::open(only, Box::new(|_| {})).unwrap();
        check(&other, 22);
        check(&hub, 22);
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn a_cut_off_hub_says_how_old_its_copy_is_and_catches_up_after_a_compaction() {
    with_etcd(|etcd| {
        etcd.init();
        let endpoints = (0..MEMBERS)
            .map(|n| format!("http://127.0.1.1:2{n}79"))
            .collect();
        let options = Options {
            endpoints,
            ..etcd.options("cut")
        };
        let (hub, cut) = (
            etcd.hub("copy"),
            Fleet::open(options, Box::new(|_| {})).unwrap(),
        );
        hub.write(invite("first", 1), PATIENCE).unwrap();
        check(&cut, 1);
        let mut certified = HubLease {
            id: "cut".to_owned(),
            certificate: fleet_key().certify(HubEntry {
                id: "cut".to_owned(),
                key: key(77),
                addresses: Vec::new(),
                region: String::new(),
                until: 1,
            }),
            sites: 1,
            load_percent: 3,
        };
        cut.set_lease(Some(certified.clone()));
        until("the hub has its lease", || {
            hub.read(|copy| copy.hub("cut").is_some())
        });
        certified.sites = 2;
        cut.set_lease(Some(certified));
        until("its record changes", || {
            hub.read(|copy| copy.hub("cut").is_some_and(|hub| hub.sites == 2))
        });
        run(
            "nft",
            &[
                "add table ip cut; add chain ip cut out { type filter hook output priority 0; }; add rule ip cut out ip daddr 127.0.1.0/24 drop",
            ],
        );
        for number in 2..30 {
            hub.write(invite(&format!("s{number}"), number), PATIENCE)
                .unwrap();
        }
        hub.write(
            Request::Revoke {
                name: "first".to_owned(),
            },
            PATIENCE,
        )
        .unwrap();
        until("the hub says that etcd is away", || away(&cut));
        let revision = hub.status().revision.to_string();
        Etcd::ctl(&["compact", &revision]).unwrap();
        until("its lease has ended", || {
            hub.read(|copy| copy.hub("cut").is_none())
        });
        assert!(
            cut.status().age.unwrap() >= Duration::from_secs(5),
            "{:?}",
            cut.status()
        );
        assert!(
            cut.read(|copy| copy.site("first").is_some()),
            "the cut-off hub goes on with its copy"
        );
        run("nft", &["delete table ip cut"]);
        let begun = Instant::now();
        check(&cut, 28);
        println!(
            "28 sites in the copy {:.2} s after the end of the cut",
            begun.elapsed().as_secs_f32()
        );
        assert!(cut.read(|copy| copy.site("first").is_none()));
        until("the lease is back", || {
            hub.read(|copy| copy.hub("cut").is_some())
        });
        assert_eq!(
            cut.read(|copy| copy.sites().cloned().collect::<Vec<_>>()),
            hub.read(|copy| copy.sites().cloned().collect::<Vec<_>>())
        );
    });
}

#[test]
fn a_backup_comes_back_and_takes_no_newer_states_place_unasked() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        for number in 0..150 {
            hub.write(invite(&format!("s{number}"), number), PATIENCE)
                .unwrap();
        }
        let (options, file) = (
            etcd.options("command"),
            etcd.directory.path().join("backup"),
        );
        assert_eq!(backup::backup(&options, &file).unwrap(), 451);
        hub.write(
            Request::Revoke {
                name: "s0".to_owned(),
            },
            PATIENCE,
        )
        .unwrap();
        hub.write(invite("new", 1000), PATIENCE).unwrap();
        let refused = backup::restore(&options, &file, false)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("--force"), "{refused}");
        check(&hub, 150);
        // Somebody empties etcd: hubs keep what they have, and say so.
        Etcd::ctl(&["del", "--prefix", "/ropewalk/test/"]).unwrap();
        until("the hub says that the fleet is gone", || {
            matches!(hub.status().etcd, EtcdState::Foreign { .. })
        });
        check(&hub, 150);
        backup::restore(&options, &file, false).unwrap();
        until("the hub follows", || {
            hub.status().etcd == EtcdState::There && hub.read(|copy| copy.site("s0").is_some())
        });
        assert!(hub.read(|copy| copy.site("new").is_none()));
        check(&hub, 150);
        hub.write(invite("new", 1000), PATIENCE).unwrap();
        backup::restore(&options, &file, true).unwrap();
        check(&hub, 150);
    });
}

/// Figures for docs/decisions/fleet-state.md.
#[test]
#[ignore = "takes a minute; run it with --ignored --nocapture"]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn figures_of_ten_thousand_sites() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        let size = |what: &str| {
            let status = Etcd::ctl(&["endpoint", "status"]).unwrap();
            println!("{what}: {}", status.lines().next().unwrap());
        };
        size("empty");
        let timed = |what: &str, make: &dyn Fn(u32) -> Request| {
            let begun = Instant::now();
            for from in (0..10_000).step_by(64) {
                let answers: Vec<_> = (from..(from + 64).min(10_000))
                    .map(|n| hub.begin(make(n), PATIENCE))
                    .collect();
                answers.into_iter().for_each(|answer| {
                    answer.recv().unwrap().unwrap();
                });
            }
            println!(
                "{what}: {:.0} a second",
                10_000.0 / begun.elapsed().as_secs_f64()
            );
        };
        timed("invitations, 64 at a time", &|n| {
            invite(&format!("site-{n:05}"), n)
        });
        size("invited");
        timed("enrolments, 64 at a time", &|n| enrol(n, 1_000_000 + n));
        size("joined");
        timed("claims, 64 at a time", &|n| {
            Request::Claim(Claim {
                site: format!("site-{n:05}"),
                epoch: 1,
                statement: vec![7; 150],
            })
        });
        size("claimed");
        let begun = Instant::now();
        for n in 0..50 {
            hub.write(
                Request::Enable {
                    name: format!("site-{n:05}"),
                    enabled: true,
                },
                PATIENCE,
            )
            .unwrap();
        }
        println!(
            "one after the other: {:.1} ms each",
            begun.elapsed().as_secs_f64() * 20.0
        );
        until("the copy is complete", || {
            hub.read(|copy| copy.claims().count()) == 10_000
        });
        let bytes: usize = hub.read(|copy| {
            copy.entries()
                .iter()
                .map(|(key, entry)| key.len() + 15 + entry.value.len())
                .sum()
        });
        println!("keys and values: {} bytes a site", bytes / 10_000);
        let begun = Instant::now();
        let second = etcd.hub("second");
        println!("first full copy: {:.2} s", begun.elapsed().as_secs_f64());
        check(&second, 10_000);
        drop(second);
        println!(
            "file: {} bytes",
            Path::new(&etcd.options("second").file)
                .metadata()
                .unwrap()
                .len()
        );
        let begun = Instant::now();
        let third = Fleet::open(etcd.options("second"), Box::new(|_| {})).unwrap();
        println!("copy from its file: {:.2} s", begun.elapsed().as_secs_f64());
        drop(third);
        let revision = hub.status().revision.to_string();
        Etcd::ctl(&["compact", &revision]).unwrap();
        Etcd::ctl(&["defrag"]);
        size("compacted and defragmented");
    });
}
