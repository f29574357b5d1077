//! The state of a fleet on three members of the real etcd, on loopback addresses of a network namespace.
//!
//! Skipped, in words, where etcd or the right to make a namespace is missing.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_fleet::plan::Credential;
use ropewalk_fleet::record::{Invitation, Record, Rest};
use ropewalk_fleet::store::WRITES_WAIT_MAX;
use ropewalk_fleet::{
    Claim, EtcdState, Fleet, FleetKey, HubLease, Login, Options, Pools, Refusal, Request,
    Signature, Terms, Tls, Unqueued, WriteError, backup,
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
            read_only: false,
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
            rest: Rest::new(),
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
        rest: Rest::new(),
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

/// The identity of a site that signs claims.
fn site(number: u32) -> Identity {
    let mut seed = [2; 32];
    seed[..4].copy_from_slice(&number.to_le_bytes());
    Identity::from_seed(seed).unwrap()
}

fn claim(name: &str, site: &Identity, epoch: u64) -> Claim {
    let (own, hub) = (site.public_key(), key(77));
    let signed = ropewalk_wire::Claim::signed(own.as_bytes(), epoch, hub.as_bytes());
    Claim {
        site: name.to_owned(),
        key: own,
        epoch,
        hub,
        signature: Signature(site.sign(&signed)),
    }
}

fn enrol_as(by: u32, site: &Identity) -> Request {
    Request::Enrol {
        by: key(by),
        key: site.public_key(),
        proved: true,
        now: 10,
    }
}

fn lease(id: &str, hub: u32) -> HubLease {
    HubLease {
        id: id.to_owned(),
        key: key(hub),
        endpoints: Vec::new(),
        tcp_port: 443,
        region: String::new(),
        version: "1".to_owned(),
        certificate: None,
        sites: 1,
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
        hub.write(enrol_as(2, &site(2)), PATIENCE).unwrap();
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
        assert_eq!(hub.queue_claim(claim("second", &site(2), 4)), Ok(()));
        assert_eq!(
            hub.queue_claim(claim("second", &site(2), 3)),
            Err(Unqueued::Older)
        );
        let forged = Claim {
            epoch: 9,
            ..claim("second", &site(2), 5)
        };
        assert_eq!(hub.queue_claim(forged), Err(Unqueued::Forged));
        assert_eq!(hub.status().claims_waiting, 1);
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
fn a_cut_off_hub_says_how_old_its_copy_is_and_catches_up_after_a_compaction() {
    with_etcd(|etcd| {
        etcd.init();
        let (hub, cut) = (
            etcd.hub("copy"),
            Fleet::open(cut(etcd.options("cut")), Box::new(|_| {})).unwrap(),
        );
        hub.write(invite("first", 1), PATIENCE).unwrap();
        check(&cut, 1);
        let mut certified = lease("cut", 77);
        cut.set_lease(Some(certified.clone()));
        until("the hub has its lease", || {
            hub.read(|copy| copy.hub("cut").is_some())
        });
        certified.sites = 2;
        cut.set_lease(Some(certified));
        until("its record changes", || {
            hub.read(|copy| copy.hub("cut").is_some_and(|hub| hub.sites == 2))
        });
        cut_off(true);
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
        cut_off(false);
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
fn endpoints_that_say_nothing_keep_no_hub_from_the_one_that_answers() {
    with_etcd(|etcd| {
        etcd.init();
        let silent = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let named = silent
            .each_ref()
            .map(|one| format!("http://{}", one.local_addr().unwrap()));
        let mut options = etcd.options("silent");
        options.endpoints.splice(0..2, named);
        let begun = Instant::now();
        let hub = Fleet::open(options, Box::new(|_| {})).unwrap();
        until("the hub has a copy", || hub.status().revision > 0);
        let took = begun.elapsed();
        println!("a copy after {:.2} s", took.as_secs_f32());
        // One that waits for the first two in turn needs 4 s.
        assert!(took < Duration::from_secs(3), "{took:?}");
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

/// Another name than that of the copy.
fn refuses_other_fleets(etcd: &Etcd, pools: &Pools) {
    let copy = etcd.options("copy");
    // The copy is one of fleet `test`. An empty fleet with its key under a wrong name would cut its sites off, too.
    let other = Options {
        fleet: "other".to_owned(),
        ..etcd.options("none")
    };
    let wrong = Options {
        fleet: "other".to_owned(),
        ..etcd.options("copy")
    };
    let words = backup::init(&wrong, pools).unwrap_err().to_string();
    assert!(words.contains("correct the name"), "{words}");
    for force in [false, true] {
        let refused = backup::restore(&other, &copy.file, force).unwrap_err();
        let words = refused.to_string();
        assert!(
            words.contains("a backup of fleet test") && words.contains("is of fleet other"),
            "{words}"
        );
    }
}

/// A fleet with another key has this name.
fn refuses_another_key(etcd: &Etcd, pools: &Pools) {
    let stranger = Options {
        key: key(9),
        ..etcd.options("none")
    };
    let words = backup::init(&stranger, pools).unwrap_err().to_string();
    assert!(words.contains("copy [fleet] with its key"), "{words}");
}

#[test]
fn an_etcd_that_was_emptied_is_filled_from_the_copy_of_a_hub_and_no_new_fleet_takes_its_place() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        for number in 0..2 {
            hub.write(invite(&format!("s{number}"), number), PATIENCE)
                .unwrap();
        }
        // A hub that ran: it is no part of what is written back.
        let ran = Record::Hub(Box::new(lease("ran", 50))).encode();
        let ran = String::from_utf8(ran).unwrap();
        Etcd::ctl(&["put", "/ropewalk/test/hub/ran", &ran]).unwrap();
        until("the copy has the hub", || {
            hub.read(|copy| copy.hub("ran").is_some())
        });
        Etcd::ctl(&["del", "--prefix", "/ropewalk/test/"]).unwrap();
        let (options, pools) = (
            etcd.options("copy"),
            hub.read(|copy| copy.meta().unwrap().pools.clone()),
        );
        let file = options.file.display().to_string();
        let restore = format!("`ropewalk fleet restore {file}`");
        let mut why = String::new();
        until("the hub says that the fleet is gone", || {
            let EtcdState::Foreign { why: words, .. } = hub.status().etcd else {
                return false;
            };
            why = words;
            // The file is written every 2 s at most.
            std::fs::read_to_string(&options.file).is_ok_and(|text| text.contains("hub/ran"))
        });
        assert!(
            why.contains("has a copy with 2 sites") && why.contains(&restore),
            "{why}"
        );
        let new = etcd.directory.path().join("backup");
        for refused in [
            backup::init(&options, &pools).unwrap_err(),
            backup::backup(&options, &new).unwrap_err(),
        ] {
            let words = refused.to_string();
            assert!(
                words.contains("2 sites") && words.contains(&restore),
                "{words}"
            );
        }
        let without = etcd.options("none");
        let words = backup::backup(&without, &new).unwrap_err().to_string();
        assert!(words.contains("`ropewalk fleet init`"), "{words}");
        refuses_other_fleets(etcd, &pools);
        backup::restore(&options, &options.file, false).unwrap();
        until("the hub follows", || hub.status().etcd == EtcdState::There);
        assert!(hub.read(|copy| copy.sites().count() == 2 && copy.hub("ran").is_none()));
        refuses_another_key(etcd, &pools);
    });
}

#[test]
fn an_etcd_that_refuses_the_user_is_not_called_away() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        for arguments in [
            &["user", "add", "root:r00t"][..],
            &["user", "grant-role", "root", "root"],
            &["auth", "enable"],
        ] {
            Etcd::ctl(arguments).unwrap();
        }
        until("the hub says that etcd refuses", || {
            matches!(hub.status().etcd, EtcdState::Denied { .. })
        });
        let EtcdState::Denied { why, .. } = hub.status().etcd else {
            panic!("{:?}", hub.status().etcd);
        };
        assert!(why.contains("user name is empty"), "{why}");
        let error = hub.write(invite("boat", 1), PATIENCE).unwrap_err();
        assert!(
            matches!(error, WriteError::Denied { maybe: false, .. }),
            "{error}"
        );
        let pools = hub.read(|copy| copy.meta().unwrap().pools.clone());
        let words = backup::init(&etcd.options("none"), &pools).unwrap_err();
        let words = words.to_string();
        assert!(
            words.contains("etcd refuses the user") && !words.contains("majority"),
            "{words}"
        );
    });
}

/// Cuts the endpoints of [`cut`] off, or joins them again.
fn cut_off(off: bool) {
    let rules = if off {
        "add table ip cut; add chain ip cut out { type filter hook output priority 0; }; add rule ip cut out ip daddr \
         127.0.1.0/24 drop; add rule ip cut out ip saddr 127.0.1.0/24 drop"
    } else {
        "delete table ip cut"
    };
    run("nft", &[rules]);
}

/// Endpoints that can be cut off.
fn cut(options: Options) -> Options {
    let endpoints = (0..MEMBERS).map(|n| format!("http://127.0.1.1:2{n}79"));
    Options {
        endpoints: endpoints.collect(),
        ..options
    }
}

#[test]
fn an_etcd_that_was_set_back_under_the_same_name_and_revision_is_read_anew() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = Fleet::open(cut(etcd.options("cut")), Box::new(|_| {})).unwrap();
        until("the hub has a copy", || hub.status().revision > 0);
        hub.write(invite("kept", 1), PATIENCE).unwrap();
        let snapshot = etcd.directory.path().join("snapshot");
        let snapshot = snapshot.to_str().unwrap();
        let save = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", "http://127.0.0.1:2079", "snapshot", "save"])
            .arg(snapshot)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status();
        assert!(save.unwrap().success());
        hub.write(invite("lost", 2), PATIENCE).unwrap();
        check(&hub, 2);
        let (cluster, revision) = hub.read(|copy| (copy.cluster(), copy.revision()));
        cut_off(true);
        let members: Vec<_> = (0..MEMBERS)
            .map(|n| format!("m{n}=http://127.0.0.1:2{n}80"))
            .collect();
        (0..MEMBERS).for_each(|number| etcd.kill(number));
        for number in 0..MEMBERS {
            let directory = etcd.directory.path().join(format!("m{number}"));
            std::fs::remove_dir_all(&directory).unwrap();
            let restored = Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .args(["snapshot", "restore", snapshot, "--data-dir"])
                .arg(&directory)
                .args(["--name", &format!("m{number}")])
                .args(["--initial-cluster", &members.join(",")])
                .args([
                    "--initial-advertise-peer-urls",
                    &format!("http://127.0.0.1:2{number}80"),
                ])
                .stderr(Stdio::null())
                .stdout(Stdio::null())
                .status();
            assert!(restored.unwrap().success());
        }
        (0..MEMBERS).for_each(|number| etcd.begin(number, "existing"));
        // Another history, as long as the former one.
        let other = etcd.hub("other");
        other.write(invite("other", 3), PATIENCE).unwrap();
        let same = (other.read(|copy| copy.cluster()), other.status().revision);
        assert_eq!(same, (cluster, revision));
        cut_off(false);
        until("the hub has the state of now", || {
            hub.read(|copy| copy.site("other").is_some())
        });
        assert!(hub.read(|copy| copy.site("lost").is_none() && copy.site("kept").is_some()));
    });
}

#[test]
fn the_record_of_another_fleet_stops_copy_writes_claims_and_leases_until_it_is_gone() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        hub.write(invite("boat", 1), PATIENCE).unwrap();
        hub.write(enrol_as(1, &site(1)), PATIENCE).unwrap();
        until("the hub follows", || hub.status().etcd == EtcdState::There);
        let meta = "/ropewalk/test/meta";
        let own = Etcd::ctl(&["get", "--print-value-only", meta]).unwrap();
        let own = own.trim();
        let other = own.replace(&fleet_key().public_key().to_string(), &key(9).to_string());
        assert_ne!(own, other);
        let before = hub.read(Clone::clone);
        // Whoever writes another fleet here takes its sites away too.
        Etcd::ctl(&["put", meta, &other]).unwrap();
        Etcd::ctl(&["del", "/ropewalk/test/site/boat"]).unwrap();
        let is_foreign = |hub: &Fleet| matches!(hub.status().etcd, EtcdState::Foreign { .. });
        until("the hub says that the fleet is another one", || {
            is_foreign(&hub)
        });
        // One that begins says so at once, and not after the pause before the next look. The soonest of three counts, for
        // a busy machine may keep one of them waiting.
        let said = |number| {
            let begun = Instant::now();
            let options = etcd.options(&format!("new{number}"));
            let new = Fleet::open(options, Box::new(|_| {})).unwrap();
            until("a new hub says so too", || is_foreign(&new));
            begun.elapsed()
        };
        let soonest = (0..3).map(said).min().unwrap();
        assert!(soonest < Duration::from_secs(1), "after {soonest:?}");
        hub.queue_claim(claim("boat", &site(1), 3)).unwrap();
        hub.set_lease(Some(lease("a", 50)));
        assert_eq!(
            hub.write(invite("van", 2), PATIENCE),
            Err(WriteError::Refused(Refusal::OtherFleet(key(9))))
        );
        until("the hub says why it has no lease", || {
            let problem = hub.status().lease_problem;
            problem.is_some_and(|why| why.contains("another fleet"))
        });
        assert_eq!(Etcd::ctl(&["get", "/ropewalk/test/hub/a"]).unwrap(), "");
        let kept = hub.read(|copy| copy.entries() == before.entries());
        assert!(kept && hub.status().claims_waiting == 1);
        Etcd::ctl(&["put", meta, own]).unwrap();
        let value = before.entries()["site/boat"].value.clone();
        let value = String::from_utf8(value).unwrap();
        Etcd::ctl(&["put", "/ropewalk/test/site/boat", &value]).unwrap();
        until("the claim and the lease are written", || {
            let written = hub.read(|copy| copy.claims().count() == 1 && copy.hub("a").is_some());
            written && hub.status().claims_waiting == 0 && hub.status().lease_problem.is_none()
        });
    });
}

/// The bound of the client is 4 MB as it comes, and here 64 MiB: both are passed, while the hub does not read.
#[test]
fn records_and_bursts_that_are_too_large_for_one_answer_do_not_stop_the_copy() {
    with_etcd(|etcd| {
        etcd.init();
        let (go, may) = std::sync::mpsc::channel::<()>();
        let waits = std::sync::Mutex::new(may);
        let slow = move |_: &[ropewalk_fleet::Change]| {
            let may = waits.lock().unwrap();
            let _ = may.recv_timeout(Duration::from_secs(60));
        };
        let slow = Fleet::open(etcd.options("slow"), Box::new(slow)).unwrap();
        go.send(()).unwrap();
        until("the hub follows", || slow.status().etcd == EtcdState::There);
        // The hub now waits in the middle of what it is told.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let burst = |round: usize| {
            runtime.block_on(async {
                let endpoint = "http://127.0.0.1:2079";
                let mut client = etcd_client::Client::connect([endpoint], None)
                    .await
                    .unwrap();
                let value = vec![b'x'; 140_000];
                for number in 0..60 {
                    let put = |n: usize| {
                        let key = format!("/ropewalk/test/junk/{:04}", number * 10 + n);
                        etcd_client::TxnOp::put(key, value.clone(), None)
                    };
                    let puts: Vec<_> = (0..10).map(put).collect();
                    client
                        .txn(etcd_client::Txn::new().and_then(puts))
                        .await
                        .unwrap();
                }
                let last = format!("/ropewalk/test/last/{round}");
                client.put(last, "x", None).await.unwrap();
            });
        };
        burst(1);
        drop(go);
        until("the slow hub has all", || {
            slow.read(|copy| copy.entries().contains_key("last/1"))
        });
        // 84 MB in 600 records: more than a page of this size may have.
        let begun = Instant::now();
        let second = etcd.hub("second");
        println!("84 MB: copy in {:.1} s", begun.elapsed().as_secs_f32());
        second.read(|copy| assert!(copy.entries().contains_key("junk/0599")));
        assert_eq!(second.status().unreadable, 601);
    });
}

#[test]
fn writes_end_by_their_deadline_and_too_many_are_refused_at_once() {
    // Takes connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        fleet: "test".to_owned(),
        key: fleet_key().public_key(),
        endpoints: vec![format!("http://{}", silent.local_addr().unwrap())],
        tls: None,
        login: None,
        file: directory.path().join("copy"),
        read_only: false,
    };
    let hub = Fleet::open(options, Box::new(|_| {})).unwrap();
    let patience = Duration::from_millis(1500);
    let begun = Instant::now();
    let many = u32::try_from(WRITES_WAIT_MAX).unwrap() + 10;
    let answers: Vec<_> = (0..many)
        .map(|n| hub.begin(invite(&format!("s{n}"), n), patience))
        .collect();
    let answers: Vec<_> = answers
        .iter()
        .map(|answer| answer.recv_timeout(Duration::from_secs(20)).unwrap())
        .collect();
    let took = begun.elapsed();
    let busy = answers.iter().filter(|a| **a == Err(WriteError::Busy));
    assert_eq!(busy.count(), 10);
    let unmade =
        |answer: &&Result<_, _>| matches!(answer, Err(WriteError::Away { maybe: false, .. }));
    assert_eq!(answers.iter().filter(unmade).count(), WRITES_WAIT_MAX);
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(hub.status().writes, 0);
    // A hub that is closed with writes on their way answers them.
    let last = hub.begin(invite("last", 1), Duration::from_secs(30));
    drop(hub);
    assert!(matches!(last.recv(), Ok(Err(WriteError::Ended { .. }))));
}

#[test]
fn a_restore_that_breaks_off_says_that_the_fleet_is_closed_and_how_to_go_on() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        let mut state: std::collections::BTreeMap<_, _> = hub.read(|copy| {
            let entries = copy.entries().iter();
            let stored = entries.map(|(key, entry)| {
                let (value, revision) = (entry.value.clone(), entry.revision);
                (
                    key.clone(),
                    ropewalk_fleet::copy::Stored { value, revision },
                )
            });
            stored.collect()
        });
        // More than etcd takes.
        let large = ropewalk_fleet::copy::Stored {
            value: vec![b' '; 4 << 20],
            revision: 1,
        };
        state.insert("site/large".to_owned(), large);
        let mut copy = ropewalk_fleet::Copy::default();
        copy.fill(&fleet_key().public_key(), 1, 1, state).unwrap();
        let file = etcd.directory.path().join("backup");
        std::fs::write(&file, copy.to_text()).unwrap();
        let error = backup::restore(&etcd.options("command"), &file, true).unwrap_err();
        let words = format!("{error:#}");
        for part in ["may be closed to changes", "fleet restore --force"] {
            assert!(words.contains(part), "{words}");
        }
        let refused = hub.write(invite("boat", 1), Duration::from_secs(2));
        assert!(
            matches!(refused, Err(WriteError::Refused(Refusal::Restoring))),
            "{refused:?}"
        );
    });
}

#[test]
fn a_thread_that_has_panicked_is_counted_and_follows_again_with_all_that_was_not_told() {
    with_etcd(|etcd| {
        etcd.init();
        let (told, news) = std::sync::mpsc::channel();
        let first = std::sync::atomic::AtomicBool::new(true);
        let tell = move |changes: &[ropewalk_fleet::Change]| {
            assert!(
                !first.swap(false, std::sync::atomic::Ordering::Relaxed),
                "a fault"
            );
            let _ = told.send(changes.to_vec());
        };
        let hub = Fleet::open(etcd.options("copy"), Box::new(tell)).unwrap();
        until("the hub follows", || hub.status().etcd == EtcdState::There);
        assert_eq!(hub.status().panics, 1);
        let news = news.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(news.iter().any(|change| change.key == "meta"), "{news:?}");
        hub.set_lease(Some(lease("a", 50)));
        hub.write(invite("boat", 1), PATIENCE).unwrap();
        until("the lease is there", || {
            hub.read(|copy| copy.hub("a").is_some())
        });
        // The hub has another key, and has the same record.
        hub.set_lease(Some(lease("a", 51)));
        until("the record has the new key", || {
            hub.read(|copy| copy.hub("a").is_some_and(|hub| hub.key == key(51)))
        });
    });
}

#[test]
fn a_panic_on_the_thread_is_seen_by_its_owner() {
    with_etcd(|etcd| {
        etcd.init();
        let tell = |_: &[ropewalk_fleet::Change]| panic!("a fault");
        let hub = Fleet::open(etcd.options("copy"), Box::new(tell)).unwrap();
        until(
            "the hub says so",
            || matches!(hub.status().etcd, EtcdState::Ended { why, .. } if why.contains("a fault")),
        );
        let begun = Instant::now();
        let error = hub.write(invite("boat", 1), PATIENCE).unwrap_err();
        assert!(matches!(error, WriteError::Ended { .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn the_record_of_a_hub_comes_back_when_it_was_removed_and_goes_when_the_hub_ends() {
    with_etcd(|etcd| {
        etcd.init();
        let (hub, other) = (etcd.hub("copy"), etcd.hub("other"));
        let there = || other.read(|copy| copy.hub("a").is_some());
        hub.set_lease(Some(lease("a", 50)));
        until("the record is there", there);
        Etcd::ctl(&["del", "/ropewalk/test/hub/a"]).unwrap();
        until("the record is gone", || !there());
        until("the record is back", there);
        other.set_lease(Some(lease("a", 51)));
        until("another hub of that name says so", || {
            let problem = other.status().lease_problem;
            problem.is_some_and(|why| why.contains("another hub has the name a"))
        });
        other.set_lease(None);
        let begun = Instant::now();
        drop(hub);
        until("the record is gone", || !there());
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "not by its end alone"
        );
    });
}

#[test]
fn a_file_that_cannot_be_written_counts_and_is_written_later() {
    with_etcd(|etcd| {
        etcd.init();
        let file = etcd.directory.path().join("full");
        std::fs::create_dir_all(file.join("inside")).unwrap();
        let hub = etcd.hub("full");
        until("the hub says so", || {
            let status = hub.status();
            status.file_failures > 0 && status.file_problem.is_some()
        });
        std::fs::remove_dir_all(&file).unwrap();
        until("the file is written, though nothing changes", || {
            hub.status().file_problem.is_none() && file.is_file()
        });
        let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        // A file that was cut off is no panic, and read from etcd anew.
        drop(hub);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, &text[..text.len() / 2]).unwrap();
        let hub = etcd.hub("full");
        assert!(hub.read(|copy| copy.meta().is_some()));
    });
}

#[test]
fn a_fleet_whose_record_alone_is_missing_or_is_anothers_is_not_made_or_replaced() {
    with_etcd(|etcd| {
        etcd.init();
        let hub = etcd.hub("copy");
        hub.write(invite("boat", 1), PATIENCE).unwrap();
        let (options, file) = (
            etcd.options("command"),
            etcd.directory.path().join("backup"),
        );
        // More than etcd takes in a transaction: 40 records of 60 kB.
        for number in 0..40 {
            let value = format!("{{\"v\":1,\"since\":{}1}}", "0".repeat(60_000));
            Etcd::ctl(&["put", &format!("/ropewalk/test/drain/d{number}"), &value]).unwrap();
        }
        backup::backup(&options, &file).unwrap();
        let meta = "/ropewalk/test/meta";
        let own = Etcd::ctl(&["get", "--print-value-only", meta]).unwrap();
        Etcd::ctl(&["del", meta]).unwrap();
        let pools = hub.read(|copy| copy.meta().unwrap().pools.clone());
        let refused = backup::init(&options, &pools).unwrap_err().to_string();
        assert!(refused.contains("restore"), "{refused}");
        let other = own.trim();
        let other = other.replace(&fleet_key().public_key().to_string(), &key(9).to_string());
        Etcd::ctl(&["put", meta, &other]).unwrap();
        let refused = backup::restore(&options, &file, true).unwrap_err();
        assert!(refused.to_string().contains("another fleet"), "{refused}");
        Etcd::ctl(&["put", meta, "{\"v\":2}"]).unwrap();
        let refused = backup::restore(&options, &file, true).unwrap_err();
        assert!(refused.to_string().contains("newer version"), "{refused}");
        let there = Etcd::ctl(&["get", "--print-value-only", meta]).unwrap();
        assert_eq!(there.trim(), "{\"v\":2}", "it was not touched");
        Etcd::ctl(&["del", "--prefix", "/ropewalk/test/"]).unwrap();
        backup::restore(&options, &file, false).unwrap();
        until("the hub follows", || {
            hub.status().etcd == EtcdState::There && hub.status().age < Some(Duration::from_secs(2))
        });
        assert!(hub.read(|copy| copy.site("boat").is_some()));
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story in its order")]
fn certificates_and_users_are_asked_for_and_errors_name_endpoints_and_no_secrets() {
    if Command::new("openssl").arg("version").output().is_err() {
        println!("skipped: there is no openssl");
        return;
    }
    with_etcd(|etcd| {
        let directory = etcd.directory.path().to_owned();
        let made = Command::new("sh")
            .current_dir(&directory)
            .args(["-ec", CERTIFICATES])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(made.unwrap().success());
        let path = |name: &str| directory.join(name);
        let endpoint = "https://127.0.0.1:3379";
        let secure = Command::new("etcd")
            .args(["--name", "secure", "--data-dir"])
            .arg(path("secure"))
            .args(["--listen-client-urls", endpoint, "--advertise-client-urls"])
            .args([endpoint, "--listen-peer-urls", "http://127.0.0.1:3380"])
            .args(["--initial-advertise-peer-urls", "http://127.0.0.1:3380"])
            .args(["--initial-cluster", "secure=http://127.0.0.1:3380"])
            .args(["--client-cert-auth", "--trusted-ca-file"])
            .arg(path("ca.pem"))
            .arg("--cert-file")
            .arg(path("etcd.pem"))
            .arg("--key-file")
            .arg(path("etcd.key"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        etcd.members.push(Some(secure));
        let ctl = |arguments: &[&str]| {
            let status = Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", endpoint, "--cacert"])
                .arg(path("ca.pem"))
                .arg("--cert")
                .arg(path("hub.pem"))
                .arg("--key")
                .arg(path("hub.key"))
                .args(arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            status.unwrap().success()
        };
        until("etcd answers", || ctl(&["put", "elsewhere", "1"]));
        let prefix = "/ropewalk/test/";
        for arguments in [
            &["user", "add", "root:r00t"][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "hub"],
            &[
                "role",
                "grant-permission",
                "hub",
                "readwrite",
                "--prefix=true",
                prefix,
            ],
            &["user", "add", "hub:s3cret"],
            &["user", "grant-role", "hub", "hub"],
            &["user", "add", "nobody:s3cret"],
            &["auth", "enable"],
        ] {
            assert!(ctl(arguments), "{arguments:?}");
        }
        let options = |name: &str, user: &str, password: &str, authority: &str| Options {
            endpoints: vec![endpoint.to_owned()],
            tls: Some(Tls {
                authority: path(authority),
                own: Some((path("hub.pem"), path("hub.key"))),
            }),
            login: Some(Login {
                user: user.to_owned(),
                password: password.to_owned().into(),
            }),
            ..etcd.options(name)
        };
        let right = options("right", "hub", "s3cret", "ca.pem");
        assert!(!format!("{right:?}").contains("s3cret"));
        let pools = Pools {
            ipv4: Some("10.0.0.0/16".parse().unwrap()),
            ipv4_block: 32,
            ..Pools::default()
        };
        backup::init(&right, &pools).unwrap();
        let hub = Fleet::open(right, Box::new(|_| {})).unwrap();
        hub.write(invite("boat", 1), PATIENCE).unwrap();
        hub.set_lease(Some(lease("a", 50)));
        until("the lease and the copy are there", || {
            hub.read(|copy| copy.hub("a").is_some() && copy.site("boat").is_some())
        });
        let why = |hub: &Fleet| match hub.status().etcd {
            EtcdState::Away { why, .. } | EtcdState::Denied { why, .. } => why,
            EtcdState::There | EtcdState::Foreign { .. } | EtcdState::Ended { .. } => String::new(),
        };
        for (name, user, password, authority, said) in [
            ("w1", "hub", "wr0ng", "ca.pem", "authentication failed"),
            ("w2", "nobody", "s3cret", "ca.pem", "permission denied"),
            ("w3", "hub", "s3cret", "other.pem", "certificate"),
        ] {
            let hub = options(name, user, password, authority);
            let hub = Fleet::open(hub, Box::new(|_| {})).unwrap();
            let says = || why(&hub).to_lowercase().contains(said);
            until(&format!("{name} says {said}: {}", why(&hub)), says);
            let words = why(&hub);
            println!("{words}");
            assert!(
                words.contains(endpoint) && !words.contains(password),
                "{words}"
            );
            let begun = Instant::now();
            let error = hub
                .write(invite("van", 2), Duration::from_secs(5))
                .unwrap_err();
            let words = error.to_string();
            assert!(
                words.contains(endpoint) && !words.contains(password),
                "{words}"
            );
            let is_denied = matches!(hub.status().etcd, EtcdState::Denied { .. });
            assert_eq!(is_denied, name != "w3", "{words}");
            if name != "w3" {
                assert!(
                    matches!(error, WriteError::Denied { maybe: false, .. }),
                    "{words}"
                );
                assert!(begun.elapsed() < Duration::from_secs(4), "at once: {words}");
            }
        }
        // A key that others may read.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(path("hub.key"), open).unwrap();
        let hub = options("w4", "hub", "s3cret", "ca.pem");
        let hub = Fleet::open(hub, Box::new(|_| {})).unwrap();
        until("the hub says what to do", || {
            why(&hub).contains("chmod 600")
        });
    });
}

const CERTIFICATES: &str = "
umask 077
for ca in ca other; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=$ca -keyout $ca.key -out $ca.pem
done
echo 'subjectAltName=IP:127.0.0.1' > names
for name in etcd hub; do
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$name -keyout $name.key -out $name.csr
    openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out $name.pem
done
";

#[test]
fn a_command_leaves_the_file_of_the_copy_to_the_hub() {
    with_etcd(|etcd| {
        etcd.init();
        etcd.hub("copy")
            .write(invite("first", 1), PATIENCE)
            .unwrap();
        let options = Options {
            read_only: true,
            ..etcd.options("copy")
        };
        let file = options.file.clone();
        let command = Fleet::open(options, Box::new(|_| {})).unwrap();
        assert_eq!(command.read(|copy| copy.sites().count()), 1);
        // What the hub writes meanwhile.
        std::fs::write(&file, "newer").unwrap();
        command.write(invite("second", 2), PATIENCE).unwrap();
        drop(command);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "newer");
    });
}

#[test]
fn options_that_cannot_be_right_are_refused_in_words() {
    let options = |fleet: &str, endpoint: &str| Options {
        fleet: fleet.to_owned(),
        key: key(1),
        endpoints: vec![endpoint.to_owned()],
        tls: None,
        login: None,
        file: "/nonexistent".into(),
        read_only: false,
    };
    for (fleet, endpoint, said) in [
        ("a/b", "http://127.0.0.1:2379", "name"),
        ("a", "http://hub:s3cret@127.0.0.1:2379", "login"),
        ("a", "https://127.0.0.1:2379", "certificates"),
        ("a", "127.0.0.1:2379", "https://"),
    ] {
        let error = options(fleet, endpoint).check().unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains("s3cret"), "{error}");
    }
    assert!(options("a", "http://127.0.0.1:2379").check().is_ok());
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
        timed("enrolments, 64 at a time", &|n| enrol_as(n, &site(n)));
        size("joined");
        timed("claims, 64 at a time", &|n| {
            Request::Claim(claim(&format!("site-{n:05}"), &site(n), 1))
        });
        size("claimed");
        let begun = Instant::now();
        for n in 0..10_000 {
            let moved = claim(&format!("site-{n:05}"), &site(n), 2);
            hub.queue_claim(moved).unwrap();
        }
        until("the waiting claims are written", || {
            hub.status().claims_waiting == 0
        });
        println!(
            "claims that waited: {:.0} a second",
            10_000.0 / begun.elapsed().as_secs_f64()
        );
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
