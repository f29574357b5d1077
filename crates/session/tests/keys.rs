//! A site and a hub that change their keys while packets flow, in virtual time.

use ropewalk_api::TunnelStatus;
use ropewalk_netem::{Change, Selector};
use ropewalk_session::{Command, Event, KeyEvent, KeyStep, OTHER_WORKER};
use ropewalk_testkit::{Spec, World};
use ropewalk_transport::{Identity, PublicKey};
use ropewalk_types::Duration;

const SECOND: Duration = Duration::from_secs(1);
const UPLINKS: usize = 2;

/// Time between two packets, and between two looks of the control sides.
const STEP: Duration = Duration::from_millis(10);

fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32]).expect("every seed is a key")
}

/// What both control sides have on disk.
struct Scene {
    world: World,
    /// Events of the hub and of the site that were taken.
    taken: [usize; 2],
    /// The next key of the site, until its control side has made it the only one.
    site_next: Option<Identity>,
    /// What the site has written down of the hub's next key.
    hub_next: Option<PublicKey>,
    /// Whether the site writes down what its hub says.
    writes: bool,
    /// Why the hub takes no next key.
    refuses: Option<&'static str>,
    /// Whether the site proved its next key, for each question.
    proved: Vec<bool>,
    /// Steps after which the hub looks at a list that has changed.
    reload_steps: u64,
    /// When it looks, in packets sent.
    reload: Option<u64>,
    sent: u64,
}

impl Scene {
    fn new() -> Self {
        let mut world = World::new(&Spec::default());
        world.run_until(SECOND, |w| w.transports_up(0).len() == UPLINKS);
        Self {
            world,
            taken: [0; 2],
            site_next: None,
            hub_next: None,
            writes: true,
            refuses: None,
            proved: Vec::new(),
            reload_steps: 0,
            reload: None,
            sent: 0,
        }
    }

    fn tell_hub(&mut self, command: Command) {
        let now = self.world.now();
        let told = self.world.hub_mut().session.handle_command(now, command);
        told.expect("the hub takes it");
        self.world.touch_hub();
    }

    fn tell_site(&mut self, step: KeyStep) {
        let (now, command) = (self.world.now(), Command::Key(step));
        let told = self.world.site_mut(0).session.handle_command(now, command);
        told.expect("the site takes it");
        self.world.touch_site(0);
    }

    fn rotate_site(&mut self, next: &Identity) {
        self.site_next = Some(next.clone());
        self.tell_site(KeyStep::Next(next.clone()));
    }

    /// The control side of the hub: a list of one site.
    fn serve_hub(&mut self) {
        let events = &self.world.hub().events[self.taken[0]..];
        let events: Vec<Event> = events.iter().map(|(_, event)| event.clone()).collect();
        self.taken[0] += events.len();
        for event in events {
            let directory = self.world.directory();
            match event {
                Event::Enrol {
                    invitation,
                    key,
                    proved,
                } => {
                    self.proved.push(proved);
                    if self.refuses.is_none() {
                        let now = directory.find(&invitation).expect("a site asks").key;
                        directory.set_next_keys((key != now).then_some((key, now)));
                    }
                    let refused = self.refuses.map(str::to_owned);
                    self.tell_hub(Command::Enrolled {
                        invitation,
                        key,
                        refused,
                        owner: None,
                    });
                }
                Event::Key(KeyEvent::Used(key)) => {
                    if let Some(entry) = directory.find(&key).filter(|entry| entry.key != key) {
                        let mut entry = (*entry).clone();
                        entry.key = key;
                        let entries = vec![entry];
                        directory.shut_out(&entries);
                        directory.replace(entries);
                        directory.set_next_keys([]);
                        self.reload = Some(self.sent + self.reload_steps);
                    }
                }
                Event::Assigned { .. }
                | Event::TunnelUp { .. }
                | Event::TunnelDown { .. }
                | Event::MtuChanged(_)
                | Event::Served { .. }
                | Event::Withdrawn { .. }
                | Event::Moved { .. }
                | Event::Key(_) => {}
            }
        }
        if self.reload.take_if(|due| *due <= self.sent).is_some() {
            self.tell_hub(Command::ReloadSites);
        }
    }

    /// The control side of the site.
    fn serve_site(&mut self) {
        let events = &self.world.site(0).events[self.taken[1]..];
        let events: Vec<Event> = events.iter().map(|(_, event)| event.clone()).collect();
        self.taken[1] += events.len();
        for event in events {
            match event {
                Event::Key(KeyEvent::Confirmed(key)) => {
                    let next = self.site_next.take().expect("a next key");
                    assert_eq!(next.public_key(), key);
                    self.world.set_identity(0, next);
                }
                Event::Key(KeyEvent::Refused { .. }) => self.site_next = None,
                Event::Key(KeyEvent::HubNext(key)) if self.writes => {
                    self.hub_next = Some(key);
                    self.tell_site(KeyStep::OfHub {
                        next: Some(key),
                        former: None,
                    });
                }
                Event::Assigned { .. }
                | Event::TunnelUp { .. }
                | Event::TunnelDown { .. }
                | Event::MtuChanged(_)
                | Event::Served { .. }
                | Event::Withdrawn { .. }
                | Event::Moved { .. }
                | Event::Enrol { .. }
                | Event::Key(_) => {}
            }
        }
    }

    /// A packet each way, and what the control sides do.
    fn step(&mut self) {
        self.world.send_up(0, self.sent, 1);
        self.world.send_down(0, self.sent, 1);
        self.sent += 1;
        self.world.run(STEP);
        self.serve_hub();
        self.serve_site();
    }

    fn steps(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.step();
        }
    }

    /// Packets that did not arrive, up and down, and that took longer than 100 ms beyond their turn.
    fn missing(&self) -> [Vec<u64>; 2] {
        let up: Vec<u64> = self.world.hub().delivered.iter().map(|d| d.2).collect();
        let down = self.world.site(0).delivered.iter().map(|d| d.2);
        let down: Vec<u64> = down.collect();
        // The last ones are under way.
        let sent = 0..self.sent - 10;
        [up, down].map(|got| {
            sent.clone()
                .filter(|number| !got.contains(number))
                .collect()
        })
    }

    fn listed(&self) -> Vec<PublicKey> {
        let sites = self.world.directory().all();
        sites.iter().map(|site| site.key).collect()
    }

    fn transports(&self) -> Vec<String> {
        self.world.transports_up(0)
    }
}

#[test]
fn a_site_changes_its_key_and_no_packet_is_lost() {
    let mut scene = Scene::new();
    let (old, new) = (scene.world.identity(0).public_key(), identity(77));
    scene.steps(SECOND);
    scene.rotate_site(&new);
    let state = scene.world.site(0).session.status().rotation;
    assert_eq!(state.map(|r| r.state), Some("asking".to_owned()));
    scene.steps(2 * SECOND);
    assert_eq!(scene.listed(), [new.public_key()]);
    assert_eq!(scene.site_next, None, "the site has written it down");
    assert!(!scene.proved.is_empty() && scene.proved.iter().all(|proved| *proved));
    let status = scene.world.site(0).session.status();
    assert_eq!(status.public_key, new.public_key().to_string());
    assert_eq!(status.rotation, None);
    assert_eq!(scene.world.directory().find(&old), None);
    // What is left of the old key ends.
    scene.steps(40 * SECOND);
    assert_eq!(scene.missing(), [[0; 0], [0; 0]], "packets were lost");
    assert_eq!(scene.transports(), ["quic", "quic"]);
    let tunnels = scene.world.hub().session.status().tunnels;
    assert_eq!(tunnels.len(), 1);
    assert_eq!(tunnels[0].peer_key, new.public_key().to_string());
    let downs = |event: &&Event| matches!(event, Event::TunnelDown { .. });
    let mut events = scene.world.site(0).events.iter().map(|(_, event)| event);
    assert_eq!(events.find(downs), None);
    let links = scene.world.hub().session.links();
    assert_eq!(links, UPLINKS, "one connection for each path");
}

/// The thread that lets sites in changes the list at once, and the hub looks at the list later. A path that comes with
/// the next key in between belongs to a site that the hub does not know by this key yet.
#[test]
fn a_site_that_says_its_next_key_before_the_hub_looks_at_the_list_is_there_once() {
    let mut twice = 0;
    for reload_steps in [0, 10, 20, 40] {
        let mut scene = Scene::new();
        scene.reload_steps = reload_steps;
        // The other path comes after the news of the first.
        let far = Change {
            delay: Some(Duration::from_millis(40)),
            ..Change::default()
        };
        scene.world.change_link(0, 1, Selector::Both, &far);
        scene.steps(SECOND);
        let new = identity(77);
        scene.rotate_site(&new);
        let mut most = 0;
        for _ in 0..500 {
            scene.step();
            let tunnels = scene.world.hub().session.status().tunnels;
            let known = |tunnel: &&TunnelStatus| !tunnel.paths.is_empty();
            most = most.max(tunnels.iter().filter(known).count());
        }
        twice += usize::from(most > 1);
        assert_eq!(scene.listed(), [new.public_key()]);
        let tunnels = scene.world.hub().session.status().tunnels;
        let keys: Vec<_> = tunnels.iter().map(|tunnel| &tunnel.peer_key).collect();
        assert_eq!(
            keys,
            [&new.public_key().to_string()],
            "{reload_steps} steps"
        );
        assert_eq!(tunnels[0].paths.len(), UPLINKS, "{reload_steps} steps");
        assert_eq!(scene.transports(), ["quic", "quic"], "{reload_steps} steps");
        // Packets reach the site where it is.
        let lost = |scene: &Scene| scene.missing().map(|numbers| numbers.len());
        let before = lost(&scene);
        assert!(before.iter().sum::<usize>() < 5, "{before:?}");
        scene.steps(40 * SECOND);
        assert_eq!(lost(&scene), before, "{reload_steps} steps");
        assert_eq!(scene.world.hub().session.links(), UPLINKS);
    }
    assert!(twice > 0, "no path came in between");
}

#[test]
fn a_site_changes_its_key_where_udp_is_blocked() {
    let mut scene = Scene::new();
    for uplink in 0..UPLINKS {
        scene.world.block_udp(0, uplink, true);
    }
    let world = &mut scene.world;
    world.run_until(20 * SECOND, |w| w.transports_up(0) == ["tls", "tls"]);
    let new = identity(77);
    scene.rotate_site(&new);
    scene.sent = 0;
    scene.steps(15 * SECOND);
    assert_eq!(scene.listed(), [new.public_key()]);
    scene.steps(40 * SECOND);
    assert_eq!(scene.transports(), ["tls", "tls"]);
    assert_eq!(scene.missing(), [[0; 0], [0; 0]], "packets were lost");
}

#[test]
fn whenever_a_site_loses_power_one_of_its_keys_lets_it_in() {
    let mut confirmed = 0;
    for cut in 0..40 {
        let mut scene = Scene::new();
        let new = identity(77);
        scene.rotate_site(&new);
        scene.steps(STEP * cut);
        // What the site has not written down by now it does not know.
        scene.world.kill_site(0);
        confirmed += usize::from(scene.site_next.is_none());
        scene.world.start_site(0);
        scene.taken[1] = 0;
        if let Some(next) = scene.site_next.clone() {
            scene.rotate_site(&next);
        }
        scene.steps(4 * SECOND);
        assert_eq!(scene.transports().len(), UPLINKS, "cut after {cut} steps");
        assert_eq!(scene.listed(), [new.public_key()], "cut after {cut} steps");
        assert_eq!(scene.site_next, None, "cut after {cut} steps");
    }
    assert!((5..35).contains(&confirmed), "{confirmed} cuts came late");
}

#[test]
fn a_site_whose_hub_refuses_its_next_key_goes_on_with_the_old_one() {
    let mut scene = Scene::new();
    let old = scene.world.identity(0).public_key();
    scene.refuses = Some("not today");
    scene.rotate_site(&identity(77));
    scene.steps(2 * SECOND);
    let status = scene.world.site(0).session.status();
    assert_eq!(status.public_key, old.to_string());
    let rotation = status.rotation.expect("a word about it");
    assert_eq!(rotation.state, "refused");
    assert_eq!(rotation.reason.as_deref(), Some("not today"));
    assert_eq!(scene.listed(), [old]);
    assert_eq!(scene.missing(), [[0; 0], [0; 0]]);
    // A program that asks again is not refused for ever.
    scene.refuses = None;
    scene.rotate_site(&identity(78));
    scene.steps(2 * SECOND);
    assert_eq!(scene.listed(), [identity(78).public_key()]);
}

#[test]
fn a_site_says_why_its_next_keys_are_not_taken_while_it_tries_others_and_when_it_gives_up() {
    let mut scene = Scene::new();
    let rotation = |scene: &Scene| scene.world.site(0).session.status().rotation;
    scene.refuses = Some(OTHER_WORKER);
    for seed in [77, 78] {
        scene.rotate_site(&identity(seed));
        scene.steps(2 * SECOND);
    }
    scene.rotate_site(&identity(79));
    let asking = rotation(&scene).expect("a change");
    assert_eq!(asking.state, "asking");
    let reason = asking.reason.expect("why it takes so long");
    assert!(reason.starts_with("2 keys"), "{reason}");
    scene.steps(2 * SECOND);
    let (key, reason) = (identity(79).public_key(), "restart the hub".to_owned());
    scene.tell_site(KeyStep::GiveUp { key, reason });
    let refused = rotation(&scene).expect("a word about it");
    assert_eq!(refused.state, "refused");
    assert_eq!(refused.next_key, key.to_string());
    assert_eq!(refused.reason.as_deref(), Some("restart the hub"));
    // The next attempt begins anew.
    scene.refuses = None;
    scene.rotate_site(&identity(80));
    assert_eq!(rotation(&scene).expect("a change").reason, None);
    scene.steps(2 * SECOND);
    assert_eq!(scene.listed(), [identity(80).public_key()]);
    assert_eq!(rotation(&scene), None);
}

/// Lets the paths be made anew, one after the other.
fn reconnect(scene: &mut Scene) {
    for uplink in 0..UPLINKS {
        scene.world.set_present(0, uplink, false);
        scene.steps(SECOND);
        scene.world.set_present(0, uplink, true);
        scene.steps(2 * SECOND);
    }
}

#[test]
fn a_hub_changes_its_key_and_sites_that_know_follow() {
    let mut scene = Scene::new();
    let (old, new) = (scene.world.hub_identity().public_key(), identity(88));
    scene.tell_hub(Command::Key(KeyStep::Next(new.clone())));
    let known = |scene: &Scene| {
        let status = scene.world.hub().session.status();
        (status.rotation.is_some(), status.tunnels[0].knows_next_key)
    };
    assert_eq!(known(&scene), (true, Some(false)));
    scene.steps(SECOND);
    assert_eq!(known(&scene), (true, Some(true)));
    scene.tell_hub(Command::Key(KeyStep::Switch));
    assert_eq!(known(&scene), (false, None));
    scene.steps(SECOND);
    // Connections live on. New ones are made with the new key, and the old one is not accepted any more.
    let is = Event::Key(KeyEvent::HubIs(new.public_key(), old));
    let says = |scene: &Scene| scene.world.site(0).events.iter().any(|(_, e)| *e == is);
    assert!(!says(&scene));
    assert_eq!(scene.missing(), [[0; 0], [0; 0]]);
    reconnect(&mut scene);
    assert!(says(&scene));
    assert_eq!(scene.transports(), ["quic", "quic"]);
    let tunnels = scene.world.site(0).session.status().tunnels;
    assert_eq!(tunnels[0].peer_key, new.public_key().to_string());
}

#[test]
fn a_site_that_does_not_know_the_next_key_of_its_hub_is_told_again_and_else_says_why() {
    let mut scene = Scene::new();
    scene.writes = false;
    scene.tell_hub(Command::Key(KeyStep::Next(identity(88))));
    scene.steps(30 * SECOND);
    let asked = |scene: &Scene| {
        let next = Event::Key(KeyEvent::HubNext(identity(88).public_key()));
        let events = scene.world.site(0).events.iter();
        events.filter(|(_, event)| *event == next).count()
    };
    assert!((3..20).contains(&asked(&scene)), "{}", asked(&scene));
    scene.tell_hub(Command::Key(KeyStep::Switch));
    for uplink in 0..UPLINKS {
        scene.world.set_present(0, uplink, false);
    }
    scene.world.run(SECOND);
    for uplink in 0..UPLINKS {
        scene.world.set_present(0, uplink, true);
    }
    scene.world.run(3 * SECOND);
    assert!(scene.transports().is_empty());
    let error = scene.world.paths(0)[0].last_error.clone();
    let error = error.expect("a reason");
    assert!(error.contains("whether its key was replaced"), "{error}");
    scene.world.set_dead(0, 0, Selector::Both, false);
}

#[test]
fn a_site_that_changes_its_key_again_and_again_is_refused_after_a_few_times() {
    let mut scene = Scene::new();
    let refused = |scene: &Scene| {
        let rotation = scene.world.site(0).session.status().rotation;
        rotation.and_then(|rotation| rotation.reason)
    };
    let mut taken = 0;
    for seed in 70..80 {
        let next = identity(seed);
        scene.rotate_site(&next);
        scene.steps(4 * SECOND);
        taken += usize::from(scene.listed() == [next.public_key()]);
    }
    assert_eq!(taken, 4);
    let reason = refused(&scene).expect("a word about it");
    assert!(reason.contains("several times in a row"), "{reason}");
    assert_eq!(scene.missing(), [[0; 0], [0; 0]]);
    // Not for ever.
    scene.steps(90 * SECOND);
    scene.rotate_site(&identity(80));
    scene.steps(2 * SECOND);
    assert_eq!(scene.listed(), [identity(80).public_key()]);
    assert_eq!(refused(&scene), None);
}
