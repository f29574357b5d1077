//! A token makes one machine the site that the hub has invited, once.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ropewalk_e2e::{Ground, ready};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::process::{Finished, Program};
use ropewalk_testbed::{LinkSpec, TopologySpec, programs};

const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time of a join that has to give up by itself.
const COMMAND: Duration = Duration::from_secs(60);
/// Where the secret is in a token: after version, mark and the hub's key.
const SECRET: std::ops::Range<usize> = 34..50;

/// A running hub, and machines that may join.
struct Scene {
    hub: Gateway,
    ground: Ground,
}

impl Scene {
    fn new(purpose: &str, link: LinkSpec, hub: &GatewaySpec) -> Self {
        let ground = Ground::new(&TopologySpec::new(purpose, vec![link])).unwrap();
        let topology = &ground.topology;
        let mut hub = Gateway::hub(topology.hub(), topology.directory(), hub).unwrap();
        hub.start().unwrap();
        Self { hub, ground }
    }

    fn plain(purpose: &str) -> Self {
        Self::new(purpose, LinkSpec::unshaped(true), &GatewaySpec::default())
    }

    fn directory(&self) -> &Path {
        self.ground.topology.directory()
    }

    /// The configuration of a machine that joins.
    fn config(&self, machine: &str) -> PathBuf {
        let directory = self.directory().join(machine);
        std::fs::create_dir_all(&directory).unwrap();
        directory.join("site.toml")
    }

    fn ropewalk(&self, machine: &str, arguments: &[&str]) -> Program {
        let site = self.ground.topology.site();
        let program = site.program(programs::own("ropewalk").unwrap());
        let config = self.config(machine);
        program.args(arguments).arg("--config").arg(config)
    }

    /// Joins with the token on standard input.
    fn join(&self, machine: &str, token: &str) -> Finished {
        let program = self.ropewalk(machine, &["join"]).input(token);
        program.run(COMMAND).unwrap()
    }

    /// What `invite --list` says of a site.
    fn listed(&self, site: &str) -> String {
        let list = self.hub.run(&["invite", "--list"]).unwrap();
        let list = list.success().unwrap();
        let line = list.lines().find(|line| line.starts_with(site));
        line.unwrap_or_else(|| panic!("no {site} in\n{list}"))
            .to_owned()
    }

    fn sites(&self) -> PathBuf {
        self.hub.directory().join("state/sites.toml")
    }
}

/// What a join that must not succeed says.
fn refused(finished: &Finished) -> &str {
    assert!(!finished.status.success(), "it joined: {}", finished.stderr);
    &finished.stderr
}

fn joined(finished: &Finished) {
    assert!(finished.status.success(), "{}", finished.stderr);
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The secret of a token in the forms in which it could be written down.
fn secrets(token: &str) -> Vec<String> {
    let body = token.split_once('.').unwrap().1;
    let bytes = URL_SAFE_NO_PAD.decode(body).unwrap();
    let secret = &bytes[SECRET];
    let hex = secret.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    let base64 = STANDARD.encode(secret).trim_end_matches('=').to_owned();
    let url = URL_SAFE_NO_PAD.encode(secret);
    vec![body.to_owned(), hex, base64, url, format!("{secret:?}")]
}

#[test]
fn a_token_from_standard_input_or_a_file_makes_one_machine_a_site() {
    if !ready() {
        return;
    }
    let scene = Scene::plain("enrol");
    let token = scene.hub.invite("boat").unwrap();
    assert!(scene.listed("boat").contains("open until"));
    let first = scene.join("boat", &token);
    joined(&first);
    let key = scene.config("boat").with_file_name("keys/site.key");
    assert_eq!(mode(&key), 0o600);
    assert_eq!(mode(&scene.sites()), 0o600);
    let line = scene.listed("boat");
    assert!(line.contains("used 20"), "{line}");
    // Nobody else, and not the same machine with another key.
    let second = scene.join("thief", &token);
    assert!(
        refused(&second).contains("was used on 20"),
        "{}",
        second.stderr
    );
    assert!(!scene.config("thief").exists());
    // By a file, which is as secret and is not overwritten.
    let file = scene.directory().join("van.token");
    let path = file.to_str().unwrap();
    let invite = ["invite", "van", "--output", path, "--qr"];
    let invited = scene.hub.run(&invite).unwrap();
    assert!(
        invited.stderr.contains('█'),
        "no QR code: {}",
        invited.stderr
    );
    assert_eq!(
        invited.success().unwrap(),
        "",
        "the token is in the file only"
    );
    assert_eq!(mode(&file), 0o600);
    let again = scene
        .hub
        .run(&["invite", "ship", "--output", path])
        .unwrap();
    assert!(refused(&again).contains("is not overwritten"));
    joined(&scene.ropewalk("van", &["join", path]).run(COMMAND).unwrap());
    // On the command line with a warning.
    let car = scene.hub.invite("car").unwrap();
    let by_word = scene.ropewalk("car", &["join", &car]).run(COMMAND).unwrap();
    joined(&by_word);
    assert!(by_word.stderr.contains("warning"), "{}", by_word.stderr);
    let log = scene.hub.process().unwrap().log();
    let file = std::fs::read_to_string(&file).unwrap();
    let written = std::fs::read_to_string(scene.sites()).unwrap();
    for token in [token.as_str(), file.trim(), car.as_str()] {
        for secret in secrets(token) {
            for text in [
                &log,
                &written,
                &first.stderr,
                &second.stderr,
                &by_word.stderr,
            ] {
                assert!(!text.contains(&secret), "{secret} is in\n{text}");
            }
        }
    }
    assert!(log.contains("site has joined"), "{log}");
    assert!(
        log.contains("an invitation or a next key was refused"),
        "{log}"
    );
}

#[test]
fn who_comes_late_or_after_a_revocation_is_told_so() {
    if !ready() {
        return;
    }
    let scene = Scene::plain("late");
    let short = scene.hub.run(&["invite", "boat", "--valid", "1s"]).unwrap();
    let short = short.success().unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    let late = scene.join("boat", &short);
    assert!(
        refused(&late).contains("invitation ended on 20"),
        "{}",
        late.stderr
    );
    assert!(scene.listed("boat").contains("ended 20"));
    let revoked = scene.hub.invite("van").unwrap();
    let revoke = ["invite", "--revoke", "van"];
    scene.hub.run(&revoke).unwrap().success().unwrap();
    let begin = Instant::now();
    let words = scene.join("van", &revoked);
    assert!(
        refused(&words).contains("does not know this invitation"),
        "{}",
        words.stderr
    );
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "it went on trying"
    );
    let replaced = scene.hub.run(&["invite", "boat", "--replace"]).unwrap();
    joined(&scene.join("boat", &replaced.success().unwrap()));
    // The new key waits, and nothing else: a hub that refuses may have recorded the key before.
    let left = std::fs::read_dir(scene.config("van").with_file_name("keys")).unwrap();
    let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let name = left[0].to_string_lossy();
    assert!(name.starts_with("site.key.joining-"), "{name}");
}

#[test]
fn of_machines_that_join_at_once_exactly_one_wins() {
    if !ready() {
        return;
    }
    for workers in [1, 2] {
        let hub = GatewaySpec {
            root: format!("workers = {workers}"),
            ..GatewaySpec::default()
        };
        let scene = Scene::new("race", LinkSpec::unshaped(true), &hub);
        for round in 0..3 {
            let token = scene.hub.invite(&format!("site{round}")).unwrap();
            let names: Vec<_> = (0..6).map(|number| format!("m{round}-{number}")).collect();
            let results: Vec<Finished> = std::thread::scope(|scope| {
                let (scene, token) = (&scene, &token);
                let join = |name: &String| {
                    let name = name.clone();
                    scope.spawn(move || scene.join(&name, token))
                };
                let running: Vec<_> = names.iter().map(join).collect();
                running.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let won = results.iter().filter(|one| one.status.success()).count();
            assert_eq!(won, 1, "{results:#?}");
            let told = results
                .iter()
                .filter(|one| one.stderr.contains("was used on"));
            assert_eq!(told.count(), 5, "{results:#?}");
        }
    }
}

#[test]
fn a_join_that_is_killed_after_the_hub_has_recorded_it_goes_on_with_its_key() {
    if !ready() {
        return;
    }
    // The answer is a quarter of a second on its way.
    let link = LinkSpec::steady(20.0, Duration::from_millis(250));
    let scene = Scene::new("killed", link, &GatewaySpec::default());
    let token = scene.hub.invite("boat").unwrap();
    let file = scene.directory().join("boat.token");
    std::fs::write(&file, &token).unwrap();
    let program = scene.ropewalk("boat", &["join", file.to_str().unwrap()]);
    let mut running = program.start(scene.directory(), "join").unwrap();
    let end = Instant::now() + PATIENCE;
    let recorded = || {
        std::fs::read_to_string(scene.sites())
            .unwrap()
            .contains("joined_key")
    };
    while !recorded() {
        assert!(Instant::now() < end, "{}", running.log());
        std::thread::sleep(Duration::from_millis(2));
    }
    running.kill();
    let config = scene.config("boat");
    assert!(!config.exists(), "it was done before it was killed");
    let thief = scene.join("thief", &token);
    assert!(refused(&thief).contains("was used on"), "{}", thief.stderr);
    let again = scene.join("boat", &token);
    joined(&again);
    assert!(again.stderr.contains("interrupted"), "{}", again.stderr);
    let shown = scene
        .ropewalk("boat", &["key", "show"])
        .run(COMMAND)
        .unwrap();
    let key = shown.success().unwrap();
    assert!(scene.listed("boat").contains(key.trim()));
    let files = std::fs::read_dir(config.parent().unwrap()).unwrap();
    assert_eq!(files.count(), 2, "configuration and key, nothing else");
    // Done is done.
    assert!(refused(&scene.join("boat", &token)).contains("is a site already"));
}

#[test]
fn a_lossy_link_only_takes_longer() {
    if !ready() {
        return;
    }
    let link = LinkSpec::steady(20.0, Duration::from_millis(20)).with_loss(0.3);
    let scene = Scene::new("lossy", link, &GatewaySpec::default());
    for number in 0..4 {
        let token = scene.hub.invite(&format!("site{number}")).unwrap();
        joined(&scene.join(&format!("m{number}"), &token));
    }
}

#[test]
fn where_udp_is_blocked_a_site_joins_over_tls() {
    if !ready() {
        return;
    }
    for workers in [1, 2] {
        let hub = GatewaySpec {
            root: format!("workers = {workers}"),
            ..GatewaySpec::default()
        };
        let scene = Scene::new("enroltls", LinkSpec::unshaped(true), &hub);
        scene.ground.topology.block_udp(true).unwrap();
        // Keys fall to both workers by chance.
        for number in 0..4 {
            let token = scene.hub.invite(&format!("site{number}")).unwrap();
            joined(&scene.join(&format!("m{number}"), &token));
            assert!(refused(&scene.join("thief", &token)).contains("was used on"));
        }
    }
}

#[test]
fn a_hub_that_does_not_run_is_named_and_the_token_stays_good() {
    if !ready() {
        return;
    }
    let mut scene = Scene::plain("nohub");
    let token = scene.hub.invite("boat").unwrap();
    scene.hub.stop();
    let alone = scene.join("boat", &token);
    assert!(
        refused(&alone).contains("no answer from the hub"),
        "{}",
        alone.stderr
    );
    scene.hub.start().unwrap();
    joined(&scene.join("boat", &token));
    // A token without a secret needs no hub, and a key that the site has made.
    let made = scene
        .ropewalk("van", &["key", "generate"])
        .run(COMMAND)
        .unwrap();
    let key = made.success().unwrap();
    let invite = ["invite", "van", "--public-key", key.trim()];
    let token = scene.hub.run(&invite).unwrap().success().unwrap();
    scene.hub.stop();
    joined(&scene.join("van", &token));
}

#[test]
fn garbage_is_refused_by_name() {
    if !ready() {
        return;
    }
    let scene = Scene::plain("garbage");
    let token = scene.hub.invite("boat").unwrap();
    for index in (0..token.len()).step_by(5) {
        let mut changed = token.clone().into_bytes();
        changed[index] = if changed[index] == b'x' { b'y' } else { b'x' };
        let changed = String::from_utf8(changed).unwrap();
        let finished = scene.join("boat", &changed);
        assert!(refused(&finished).contains("token"), "{}", finished.stderr);
        assert_eq!(
            finished.status.code(),
            Some(2),
            "{index}: {}",
            finished.stderr
        );
    }
    let former = scene.join("boat", "ropewalk1.AQFdbW9RGUlQpQknmUKQ1");
    let words = refused(&former);
    assert!(
        words.contains("older version") && words.contains("ropewalk invite NAME"),
        "{words}"
    );
    assert!(
        !scene
            .config("boat")
            .with_file_name("keys/site.key")
            .exists()
    );
    joined(&scene.join("boat", &token));
}
