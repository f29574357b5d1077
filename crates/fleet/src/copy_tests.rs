use super::*;
use crate::record::Pools;
use proptest::prelude::*;

fn fleet() -> PublicKey {
    PublicKey::from_bytes([7; 32])
}

fn meta(fleet: PublicKey) -> Vec<u8> {
    Record::Meta(Meta {
        fleet,
        pools: Pools::default(),
        restoring: false,
    })
    .encode()
}

/// Etcd: everything that was written, and the state at each revision.
fn history(writes: &[(u8, Option<u8>)]) -> (Vec<Event>, Vec<BTreeMap<String, Entry>>) {
    let mut state = BTreeMap::from([(META.to_owned(), Entry::new(META, meta(fleet()), 1))]);
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
                state.insert(key.clone(), Entry::new(&key, value.clone(), revision));
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
                copy.apply(events[from..to].to_vec()).unwrap();
            }
            let revision = usize::try_from(copy.revision()).unwrap();
            prop_assert_eq!(copy.entries(), &states[revision]);
            prop_assert_eq!(&Copy::from_text(&copy.to_text()).unwrap(), &copy);
        }
    }
}

#[test]
fn a_copy_stays_when_the_fleet_is_gone_from_etcd_or_is_another_one() {
    let (events, states) = history(&[(1, Some(1)), (2, Some(2))]);
    let mut copy = Copy::default();
    copy.fill(&fleet(), 1, 1, states[1].clone()).unwrap();
    assert_eq!(copy.apply(events).unwrap().len(), 2);
    let before = copy.clone();
    assert_eq!(
        copy.fill(&fleet(), 1, 9, BTreeMap::new()),
        Err(Foreign::Missing)
    );
    let other = PublicKey::from_bytes([8; 32]);
    let foreign = BTreeMap::from([(META.to_owned(), Entry::new(META, meta(other), 1))]);
    assert_eq!(
        copy.fill(&fleet(), 1, 9, foreign),
        Err(Foreign::Other(other))
    );
    let gone = ["drain/1", META].map(|key| Event::Delete {
        key: key.to_owned(),
        revision: 9,
    });
    assert_eq!(copy.apply(gone.to_vec()), Err(Foreign::Missing));
    assert_eq!(copy, before);
}
