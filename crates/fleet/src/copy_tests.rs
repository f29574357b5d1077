use super::*;
use crate::record::{Pools, Rest};
use proptest::prelude::*;

fn fleet() -> PublicKey {
    PublicKey::from_bytes([7; 32])
}

fn meta(fleet: PublicKey) -> Vec<u8> {
    Record::Meta(Meta {
        fleet,
        pools: Pools {
            ipv4: Some("10.9.0.0/24".parse().unwrap()),
            ipv4_block: 32,
            ..Pools::default()
        },
        restoring: false,
        made: None,
        replaces: None,
        rest: Rest::new(),
    })
    .encode()
}

const fn stored(value: Vec<u8>, revision: i64) -> Stored {
    Stored { value, revision }
}

/// What the copy has, as etcd has it.
fn held(copy: &Copy) -> BTreeMap<String, Stored> {
    let entries = copy.entries().iter();
    let entries = entries.map(|(key, entry)| {
        let same = stored(entry.value.clone(), entry.revision);
        (key.clone(), same)
    });
    entries.collect()
}

/// Etcd: everything that was written, and the state at each revision.
fn history(writes: &[(u8, Option<u8>)]) -> (Vec<Event>, Vec<BTreeMap<String, Stored>>) {
    let mut state = BTreeMap::from([(META.to_owned(), stored(meta(fleet()), 1))]);
    let (mut events, mut states) = (Vec::new(), vec![BTreeMap::new(), state.clone()]);
    for (&(name, value), revision) in writes.iter().zip(2..) {
        let key = format!("drain/{name}");
        match value {
            Some(since) => {
                let value = Record::Drain(
                    name.to_string(),
                    Drain {
                        since: since.into(),
                    },
                )
                .encode();
                state.insert(key.clone(), stored(value.clone(), revision));
                events.push(Event::Put {
                    key,
                    value,
                    revision,
                });
            }
            None => {
                state.remove(&key);
                events.push(Event::Delete { key, revision });
            }
        }
        states.push(state.clone());
    }
    (events, states)
}

proptest! {
    #[test]
    fn any_order_of_fillings_and_events_gives_the_state_of_etcd(
        writes in prop::collection::vec((0_u8..6, prop::option::of(0_u8..9)), 1..40),
        steps in prop::collection::vec((any::<bool>(), 0_usize..40, 0_usize..12), 1..40),
    ) {
        let (events, states) = history(&writes);
        let mut copy = Copy::default();
        copy.fill(&fleet(), 1, 1, states[1].clone()).unwrap();
        for (fill, at, more) in steps {
            // A watch begins at the copy's revision or before: what was there comes again.
            let has = usize::try_from(copy.revision()).unwrap() - 1;
            if fill {
                let revision = 1 + (at % states.len()).max(1).min(states.len() - 1) - 1;
                copy.fill(&fleet(), 1, i64::try_from(revision).unwrap(), states[revision].clone()).unwrap();
            } else {
                let from = has.saturating_sub(at % 5);
                let to = (has + more).min(events.len());
                copy.apply(&fleet(), events[from..to].to_vec()).unwrap();
            }
            let revision = usize::try_from(copy.revision()).unwrap();
            prop_assert_eq!(&held(&copy), &states[revision]);
            prop_assert_eq!(copy.bytes, held(&copy).iter().map(|(k, s)| k.len() + s.value.len()).sum::<usize>());
            prop_assert_eq!(&Copy::from_text(&copy.to_text()).unwrap(), &copy);
        }
    }
}

#[test]
fn a_copy_stays_when_the_fleet_is_gone_from_etcd_or_is_another_one() {
    let (events, states) = history(&[(1, Some(1)), (2, Some(2))]);
    let mut copy = Copy::default();
    copy.fill(&fleet(), 1, 1, states[1].clone()).unwrap();
    assert_eq!(copy.apply(&fleet(), events).unwrap().len(), 2);
    let before = copy.clone();
    assert_eq!(
        copy.fill(&fleet(), 1, 9, BTreeMap::new()),
        Err(Foreign::Missing)
    );
    let other = PublicKey::from_bytes([8; 32]);
    let foreign = BTreeMap::from([(META.to_owned(), stored(meta(other), 1))]);
    assert_eq!(
        copy.fill(&fleet(), 1, 9, foreign),
        Err(Foreign::Other(other))
    );
    let gone = ["drain/1", META].map(|key| Event::Delete {
        key: key.to_owned(),
        revision: 9,
    });
    assert_eq!(copy.apply(&fleet(), gone.to_vec()), Err(Foreign::Missing));
    assert_eq!(copy, before);
}

/// `ropewalk fleet init` after somebody has emptied etcd.
#[test]
fn a_fleet_that_was_made_anew_takes_no_sites_from_a_copy_and_a_backup_in_its_place_is_followed() {
    let record = |made, replaces| {
        let Ok(Record::Meta(meta)) = Record::decode(META, &meta(fleet())) else {
            panic!()
        };
        let meta = Meta {
            made,
            replaces,
            ..meta
        };
        stored(Record::Meta(meta).encode(), 9)
    };
    let site = Record::decode(
        "site/boat",
        b"{\"v\":1,\"slot\":0,\"ipv4\":\"10.9.0.0/32\",\"enabled\":true}",
    );
    let boat = ("site/boat".to_owned(), stored(site.unwrap().encode(), 1));
    let state = |meta| BTreeMap::from([(META.to_owned(), meta)]);
    let with_boat = |meta| {
        let mut state = state(meta);
        state.extend([boat.clone()]);
        state
    };
    let mut copy = Copy::default();
    let former = with_boat(record(Some(1), None));
    copy.fill(&fleet(), 1, 1, former.clone()).unwrap();
    let anew = record(Some(2), None);
    assert_eq!(
        copy.fill(&fleet(), 1, 9, state(anew.clone())),
        Err(Foreign::Remade(1))
    );
    let put = Event::Put {
        key: META.to_owned(),
        value: anew.value.clone(),
        revision: 9,
    };
    assert_eq!(copy.apply(&fleet(), vec![put]), Err(Foreign::Remade(1)));
    assert!(copy.site("boat").is_some());
    // Another hub followed the new one, and takes the backup of the former one that is written in its place.
    let mut other = Copy::default();
    other.fill(&fleet(), 1, 9, with_boat(anew)).unwrap();
    let restored = with_boat(record(Some(1), Some(2)));
    for copy in [&mut copy, &mut other] {
        copy.fill(&fleet(), 1, 20, restored.clone()).unwrap();
    }
    // Fleets and backups of earlier programs have no such number.
    copy.fill(&fleet(), 1, 21, with_boat(record(None, None)))
        .unwrap();
    let numbered = state(record(Some(3), None));
    assert_eq!(
        copy.fill(&fleet(), 1, 22, numbered),
        Err(Foreign::Remade(1))
    );
    // Nothing is lost where there is no site.
    let mut empty = Copy::default();
    empty
        .fill(&fleet(), 1, 1, state(record(Some(1), None)))
        .unwrap();
    empty
        .fill(&fleet(), 1, 9, state(record(Some(2), None)))
        .unwrap();
}

/// The events before that of `meta` may be of whoever has written it.
#[test]
fn events_that_bring_another_fleet_or_no_readable_one_change_nothing() {
    let (events, states) = history(&[(1, Some(1))]);
    let mut copy = Copy::default();
    copy.fill(&fleet(), 1, 1, states[1].clone()).unwrap();
    copy.apply(&fleet(), events).unwrap();
    let before = copy.clone();
    let other = PublicKey::from_bytes([8; 32]);
    let Ok(Record::Meta(closed)) = Record::decode(META, &meta(fleet())) else {
        panic!()
    };
    let closed = Record::Meta(Meta {
        restoring: true,
        ..closed
    });
    for (value, foreign) in [
        (meta(other), Foreign::Other(other)),
        (closed.encode(), Foreign::Restoring),
        (
            b"{\"v\":9}".to_vec(),
            Foreign::Unreadable(Unreadable::Newer(9)),
        ),
    ] {
        let delete = Event::Delete {
            key: "drain/1".to_owned(),
            revision: 8,
        };
        let put = Event::Put {
            key: META.to_owned(),
            value,
            revision: 9,
        };
        assert_eq!(copy.apply(&fleet(), vec![delete, put]), Err(foreign));
        assert_eq!(copy, before);
    }
    // One that the copy has already is no news.
    let old = Event::Delete {
        key: META.to_owned(),
        revision: 1,
    };
    assert_eq!(copy.apply(&fleet(), vec![old]), Ok(Vec::new()));
}

#[test]
fn a_claim_by_a_key_that_the_site_does_not_have_is_not_believed() {
    let sign = |seed: u8, epoch: u64| {
        let identity = ropewalk_transport::Identity::from_seed([seed; 32]).unwrap();
        let (key, hub) = (identity.public_key(), PublicKey::from_bytes([4; 32]));
        let signed = ropewalk_wire::Claim::signed(key.as_bytes(), epoch, hub.as_bytes());
        Claim {
            site: "boat".to_owned(),
            key,
            epoch,
            hub,
            signature: crate::record::Signature(identity.sign(&signed)),
        }
    };
    let site = format!(
        "{{\"v\":1,\"key\":\"{}\",\"slot\":0,\"enabled\":true}}",
        sign(1, 1).key
    );
    let mut state = BTreeMap::from([
        (META.to_owned(), stored(meta(fleet()), 1)),
        ("site/boat".to_owned(), stored(site.into_bytes(), 1)),
    ]);
    let mut copy = Copy::default();
    for (seed, believed) in [(1, 1), (2, 0)] {
        let claim = Record::Claim(sign(seed, 7));
        state.insert(claim.key(), stored(claim.encode(), 2));
        copy.fill(&fleet(), 1, 2, state.clone()).unwrap();
        assert_eq!(copy.claims().count(), believed);
        assert_eq!(copy.unreadable().count(), 0);
    }
}

#[test]
fn a_file_with_one_other_byte_or_a_part_of_one_is_refused() {
    let (_, states) = history(&[(1, Some(1))]);
    let mut copy = Copy::default();
    copy.fill(&fleet(), 1, 2, states[2].clone()).unwrap();
    let text = copy.to_text();
    assert!(text.is_ascii());
    for at in 0..text.len() {
        assert!(Copy::from_text(&text[..at]).is_err(), "{at}");
    }
    let other = text.replace("since\\\":1", "since\\\":2");
    assert_ne!(other, text);
    assert!(Copy::from_text(&other).unwrap_err().contains("digest"));
}

#[test]
fn a_clock_that_was_set_back_makes_no_old_copy_new() {
    let mut copy = Copy::default();
    copy.was_complete(5_000);
    copy.was_complete(1_000);
    assert_eq!(copy.complete_at(), 1_000);
}

fn put(key: &str, value: &str, revision: i64) -> Event {
    Event::Put {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        revision,
    }
}

/// Other hubs were updated first, and write sites in a way that this program cannot read.
#[test]
fn a_site_that_a_newer_program_has_written_again_stays_as_it_was_known() {
    let key = |number| PublicKey::from_bytes([number; 32]);
    let boat = format!(
        "{{\"v\":1,\"key\":\"{}\",\"next_key\":\"{}\",\"slot\":0,\"enabled\":true}}",
        key(1),
        key(2)
    );
    let owner = "{\"v\":1,\"site\":\"boat\"}";
    let newer = "{\"v\":2,\"keys\":[]}";
    let keys = [1, 2].map(|number| owner_key(&key(number)));
    let mut copy = Copy::default();
    let state = BTreeMap::from([(META.to_owned(), stored(meta(fleet()), 1))]);
    copy.fill(&fleet(), 1, 1, state).unwrap();
    let known = vec![
        put("site/boat", &boat, 2),
        put(&keys[0], owner, 2),
        put(&keys[1], owner, 2),
        put("slot/00000000", owner, 2),
    ];
    copy.apply(&fleet(), known).unwrap();
    let before = copy.site("boat").cloned().unwrap();
    // This one was never known: it is no site here, and its slot is taken all the same.
    let events = vec![
        put("site/boat", newer, 3),
        put("site/van", newer, 3),
        put("slot/00000000", newer, 3),
        put("slot/00000001", newer, 3),
    ];
    copy.apply(&fleet(), events).unwrap();
    let read = Copy::from_text(&copy.to_text()).unwrap();
    assert_eq!(read, copy);
    let mut filled = read;
    filled.fill(&fleet(), 1, 3, held(&copy)).unwrap();
    assert_eq!(filled, copy);
    assert_eq!(copy.sites().collect::<Vec<_>>(), [&before]);
    assert_eq!(copy.site_of(&key(1)), Some(&before));
    assert_eq!(copy.used_slots(), &[0, 1].into());
    assert_eq!(copy.unreadable().count(), 4);
    // The site has connected with its next key at a newer hub: the former one opens nothing any more.
    let delete = |key: &str, revision| Event::Delete {
        key: key.to_owned(),
        revision,
    };
    copy.apply(&fleet(), vec![delete(&keys[0], 4)]).unwrap();
    let site = copy.site("boat").unwrap();
    assert_eq!((site.key, site.next_key), (Some(key(2)), None));
    copy.apply(&fleet(), vec![put("site/boat", &boat, 5)])
        .unwrap();
    assert!(!copy.former.contains_key("site/boat"));
    copy.apply(
        &fleet(),
        vec![put("site/boat", newer, 6), delete("site/boat", 7)],
    )
    .unwrap();
    assert_eq!(copy.sites().count(), 0, "a revoked site is gone");
    assert!(!copy.former.contains_key("site/boat"));
}

#[test]
fn a_copy_knows_the_name_of_its_fleet_and_says_how_to_write_its_sites_back() {
    let mut copy = Copy::default();
    let file = Path::new("/var/lib/ropewalk/fleet.json");
    assert_eq!(copy.instead("north", file), None, "without a state");
    let state = BTreeMap::from([(META.to_owned(), stored(meta(fleet()), 1))]);
    copy.fill(&fleet(), 1, 1, state.clone()).unwrap();
    assert_eq!(copy.instead("north", file), None, "without sites");
    let mut state = state;
    let site = "{\"v\":1,\"slot\":0,\"enabled\":true}";
    state.insert("site/boat".to_owned(), stored(site.into(), 2));
    copy.fill(&fleet(), 1, 2, state.clone()).unwrap();
    // A file of an older program has no name, and may be this fleet's.
    let old = Copy::from_text(&copy.to_text()).unwrap();
    assert_eq!(old.name(), None);
    copy.is_of("north");
    for copy in [&old, &Copy::from_text(&copy.to_text()).unwrap()] {
        let words = copy.instead("north", file).unwrap();
        assert!(
            words.contains("a copy with 1 site: write it back with `ropewalk fleet restore /var"),
            "{words}"
        );
    }
    state.remove("site/boat");
    copy.fill(&fleet(), 1, 3, state).unwrap();
    assert_eq!(copy.name(), Some("north"), "a filling keeps it");
    let words = copy.instead("nord", file).unwrap();
    assert!(words.contains("one of fleet north"), "{words}");
}
