//! Histories that must pass do pass, and each that must fail does.

use super::*;

fn operation(
    change: Change,
    site: &str,
    (begin_ms, end_ms): (u64, u64),
    outcome: Outcome,
    blocks: &[&str],
) -> Event {
    Event::Operation(Operation {
        hub: "a".into(),
        change,
        site: site.into(),
        begin_ms,
        end_ms,
        outcome,
        blocks: blocks.iter().map(|&block| block.into()).collect(),
    })
}

fn invite(site: &str, at: (u64, u64), outcome: Outcome, blocks: &[&str]) -> Event {
    operation(Change::Invite, site, at, outcome, blocks)
}

fn revoke(site: &str, at: (u64, u64), outcome: Outcome) -> Event {
    operation(Change::Revoke, site, at, outcome, &[])
}

fn entries(sites: &[(&str, &str)]) -> Vec<Entry> {
    let entry = |(site, block): &(&str, &str)| Entry {
        site: (*site).into(),
        blocks: vec![(*block).into()],
    };
    sites.iter().map(entry).collect()
}

fn sight(hub: &str, at_ms: u64, sees_etcd: bool, sites: &[(&str, &str)]) -> Event {
    Event::Sight(Sight {
        hub: hub.into(),
        at_ms,
        sees_etcd,
        served: entries(sites),
    })
}

fn list(last: bool, sites: &[(&str, &str)]) -> Event {
    Event::List(List {
        hub: "b".into(),
        at_ms: 90_000,
        last,
        sites: entries(sites),
    })
}

const ONE: &str = "10.86.0.17";
const TWO: &str = "10.86.0.18";
const DONE: Outcome = Outcome::Done;

/// One violation, and these words in it.
fn assert_broken(events: &[Event], words: &str) {
    let broken = check(events);
    assert!(
        broken.len() == 1 && broken[0].contains(words),
        "{broken:#?}\nwithout {words}"
    );
}

fn assert_sound(events: &[Event]) {
    assert_eq!(check(events), Vec::<String>::new());
}

#[test]
fn a_run_in_which_addresses_change_hands_after_revocations_is_sound() {
    let mut events = vec![
        invite("boat", (0, 10), DONE, &[ONE]),
        invite("farm", (5, 30), DONE, &[TWO]),
        invite("boat", (20, 30), Outcome::Refused, &[]),
        revoke("boat", (1_000, 1_020), DONE),
        // At the same time: the revocation came first.
        invite("van", (1_005, 1_015), DONE, &[ONE]),
        list(true, &[("farm", TWO), ("van", ONE)]),
    ];
    for at in (0..20).map(|step| step * 500) {
        let boat = [("boat", ONE), ("farm", TWO)];
        let van = [("van", ONE), ("farm", TWO)];
        events.push(sight("a", at, true, if at < 2_000 { &boat } else { &van }));
    }
    assert_sound(&events);
    assert_eq!(
        longest_after_revocation(&events),
        None,
        "seen for 5 s only later"
    );
}

#[test]
fn an_address_or_a_port_that_two_sites_have_in_a_list_is_found() {
    for (one, other, meets) in [
        (ONE, ONE, true),
        (ONE, "10.86.0.17/20", true),
        (ONE, TWO, false),
        ("fd86:1::11", "fd86:1:0::11", true),
        ("fd86:1::11", "fd86:1::12", false),
        ("203.0.113.7:1024-2031", "203.0.113.7:2031-3000", true),
        ("203.0.113.7:1024-2031", "203.0.113.7:2032-3039", false),
        ("203.0.113.7:1024-2031", "203.0.113.8:1024-2031", false),
        ("203.0.113.7", "203.0.113.7:1024-2031", true),
    ] {
        let events = [list(false, &[("boat", one), ("farm", other)])];
        assert_eq!(check(&events).len(), usize::from(meets), "{one} {other}");
    }
}

#[test]
fn an_address_that_two_answers_give_is_found_unless_the_first_may_be_gone() {
    let first = invite("boat", (0, 10), DONE, &[ONE]);
    let second = invite("farm", (100, 110), DONE, &[ONE]);
    assert_broken(
        &[first.clone(), second.clone()],
        "given to boat at 10 ms and to farm at 110 ms",
    );
    let late = revoke("boat", (200, 210), DONE);
    assert_broken(&[first.clone(), second.clone(), late], "given to boat");
    let refused = revoke("boat", (50, 60), Outcome::Refused);
    assert_broken(&[first.clone(), second.clone(), refused], "given to boat");
    for outcome in [DONE, Outcome::Absent, Outcome::Unknown] {
        assert_sound(&[
            first.clone(),
            second.clone(),
            revoke("boat", (50, 160), outcome),
        ]);
    }
    // One of unknown outcome may be carried out later than its command ended, and not for ever.
    let again = |at| invite("boat", (at, at + 10), DONE, &[ONE]);
    let farm = |at| invite("farm", (at, at + 10), DONE, &[ONE]);
    for (outcome, at, sound) in [
        (Outcome::Unknown, 1_000, true),
        (Outcome::Unknown, 70_000, false),
        (Outcome::Absent, 1_000, false),
        (DONE, 1_000, false),
    ] {
        let events = [revoke("boat", (1, 2), outcome), again(at), farm(at + 100)];
        assert_eq!(check(&events).is_empty(), sound, "{outcome:?} {at}");
    }
}

#[test]
fn an_address_that_two_hubs_serve_for_two_sites_is_found() {
    let events = |at| {
        [
            sight("a", 1_000, true, &[("boat", ONE)]),
            sight("b", at, false, &[("farm", ONE)]),
        ]
    };
    assert_broken(&events(1_400), "10.86.0.17 is served for boat and for farm");
    assert_sound(&events(9_000));
    assert_sound(&[
        sight("a", 1_000, true, &[("boat", ONE)]),
        sight("b", 1_400, true, &[("boat", ONE)]),
    ]);
    assert_broken(
        &[sight("a", 1_000, true, &[("boat", ONE), ("farm", ONE)])],
        "served for boat and for farm",
    );
}

/// A hub that is looked at twice a second, and serves the boat until `until_ms`.
fn looks(until_ms: u64, sees_etcd: impl Fn(u64) -> bool) -> Vec<Event> {
    let times = (0..60).map(|step| step * 500);
    let boat = [("boat", ONE)];
    let served = |at| if at <= until_ms { &boat[..] } else { &[] };
    times
        .map(|at| sight("b", at, sees_etcd(at), served(at)))
        .collect()
}

#[test]
fn a_revoked_site_that_is_served_for_long_is_found() {
    let start = || {
        vec![
            invite("boat", (0, 10), DONE, &[ONE]),
            revoke("boat", (10_000, 10_100), DONE),
        ]
    };
    let with = |until_ms, sees: &dyn Fn(u64) -> bool| {
        let mut events = start();
        events.extend(looks(until_ms, sees));
        events
    };
    assert_broken(
        &with(15_500, &|_| true),
        "serves boat at 15500 ms, 5400 ms after",
    );
    assert_sound(&with(15_000, &|_| true));
    assert_eq!(
        longest_after_revocation(&with(12_000, &|_| true)),
        Some(1_900)
    );
    // A hub that does not see etcd may serve on, and for 5 s after it does.
    assert_sound(&with(20_000, &|at| at < 9_000));
    assert_sound(&with(18_000, &|at| at != 13_000));
    assert_broken(&with(20_000, &|at| at != 14_500), "serves boat at 20000 ms");
    // Who was invited again is served.
    for outcome in [DONE, Outcome::Unknown] {
        let mut events = with(20_000, &|_| true);
        events.push(invite("boat", (13_000, 13_050), outcome, &[]));
        assert_sound(&events);
    }
    let mut events = with(20_000, &|_| true);
    events.push(invite("boat", (13_000, 13_050), Outcome::Refused, &[]));
    assert_broken(&events, "serves boat");
    let mut events = with(20_000, &|_| true);
    events.push(invite("boat", (17_000, 17_050), DONE, &[]));
    assert_broken(&events, "serves boat at 15500 ms");
    // A revocation that was not confirmed binds nobody.
    let mut events = looks(20_000, |_| true);
    events.push(revoke("boat", (10_000, 10_100), Outcome::Unknown));
    assert_sound(&events);
}

#[test]
fn a_hub_that_nobody_has_looked_at_for_a_while_is_not_judged_by_what_it_said_before() {
    let mut events = looks(20_000, |_| true);
    events.push(revoke("boat", (10_000, 10_100), DONE));
    events.retain(|event| match event {
        Event::Sight(sight) => !(11_000..15_000).contains(&sight.at_ms),
        Event::Operation(_) | Event::List(_) | Event::Fault { .. } => true,
    });
    assert_broken(&events, "serves boat at 20000 ms");
}

#[test]
fn what_was_confirmed_and_is_not_there_at_the_end_is_found() {
    let invited = invite("boat", (0, 10), DONE, &[ONE]);
    assert_broken(&[invited.clone(), list(true, &[])], "lacks it");
    assert_broken(
        &[invited.clone(), list(true, &[("boat", TWO)])],
        "has another address",
    );
    assert_sound(&[invited.clone(), list(false, &[])]);
    assert_sound(&[
        invite("boat", (0, 10), Outcome::Unknown, &[]),
        list(true, &[]),
    ]);
    let revoked = revoke("boat", (100, 110), DONE);
    let stays = list(true, &[("boat", ONE)]);
    assert_broken(
        &[invited.clone(), revoked.clone(), stays.clone()],
        "was revoked",
    );
    assert_sound(&[invited.clone(), revoked.clone(), list(true, &[])]);
    assert_sound(&[
        invited,
        revoke("boat", (100, 110), Outcome::Unknown),
        stays.clone(),
    ]);
    // Together: either may have been last.
    let again = invite("boat", (105, 120), DONE, &[ONE]);
    assert_sound(&[revoked, again, stays]);
}

#[test]
fn a_history_reads_back() {
    let events = [
        invite("boat", (0, 10), DONE, &[ONE]),
        sight("a", 1, true, &[("boat", ONE)]),
        list(true, &[]),
        Event::Fault {
            at_ms: 7,
            what: "hub a is killed".into(),
        },
    ];
    for event in events {
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
