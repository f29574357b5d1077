use super::*;
use crate::record::{Pools, Rest};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn key(number: u8) -> PublicKey {
    PublicKey::from_bytes([number; 32])
}

/// Etcd in memory: it takes transactions whose expectations hold.
struct Etcd(Copy, i64);

impl Etcd {
    fn new() -> Self {
        let ipv4 = Some("10.9.0.0/24".parse().unwrap());
        let shared = vec!["192.0.2.1".parse().unwrap()];
        let pools = Pools {
            ipv4,
            ipv4_block: 32,
            ipv6_block: 128,
            shared,
            ports: 4096,
            ..Pools::default()
        };
        let meta = Meta {
            fleet: key(255),
            pools,
            restoring: false,
            made: None,
            replaces: None,
            rest: Rest::new(),
        };
        let stored = crate::copy::Stored {
            value: Record::Meta(meta).encode(),
            revision: 1,
        };
        let mut copy = Copy::default();
        copy.fill(&key(255), 1, 1, BTreeMap::from([(META.to_owned(), stored)]))
            .unwrap();
        Self(copy, 1)
    }

    fn plan(
        &self,
        request: &Request,
        stale: &Copy,
        taken: &[u32],
        attempt: u32,
    ) -> Result<Transaction, Refusal> {
        let mut fresh = BTreeMap::new();
        loop {
            let view = View {
                fleet: &key(255),
                copy: stale,
                from_copy: false,
                fresh: &fresh,
                taken: &taken.iter().copied().collect(),
                attempt,
                draw: 5,
            };
            match request.plan(&view) {
                Ok(transaction) => return Ok(transaction),
                Err(Unplanned::Refused(refusal)) => return Err(refusal),
                Err(Unplanned::Read(key)) => {
                    let entry = self.0.entries().get(&key).cloned();
                    fresh.insert(key, entry);
                }
            }
        }
    }

    fn commit(&mut self, transaction: &Transaction) -> bool {
        let holds = transaction.expect.iter().all(|(key, expect)| match expect {
            Expect::Absent => !self.0.entries().contains_key(key),
            Expect::Is(value) => self.0.entries().get(key).is_some_and(|e| e.value == *value),
        });
        if holds {
            self.1 += 1;
            let revision = self.1;
            let events = transaction.writes.iter().map(|write| match write {
                Write::Put(record) => crate::copy::Event::Put {
                    key: record.key(),
                    value: record.encode(),
                    revision,
                },
                Write::Delete(key) => crate::copy::Event::Delete {
                    key: key.clone(),
                    revision,
                },
            });
            self.0.apply(&key(255), events.collect()).unwrap();
        }
        holds
    }

    fn write(&mut self, request: &Request) -> Result<Done, Refusal> {
        let transaction = self.plan(request, &self.0, &[], 0)?;
        assert!(self.commit(&transaction));
        Ok(transaction.done)
    }
}

impl Etcd {
    /// Somebody writes beside the commands.
    fn put(&mut self, key_of_record: &str, value: &[u8]) {
        self.1 += 1;
        let put = crate::copy::Event::Put {
            key: key_of_record.to_owned(),
            value: value.to_vec(),
            revision: self.1,
        };
        self.0.apply(&key(255), vec![put]).unwrap();
    }

    fn is_in_place(&self, name: &str) -> bool {
        self.0.is_in_place(self.0.site(name).unwrap())
    }
}

fn revoke(name: &str) -> Request {
    Request::Revoke {
        name: name.to_owned(),
    }
}

/// A site with another site's slot, and perhaps its key: `evil` beside `boat` with key 1.
fn beside_the_boat(number: u8) -> Etcd {
    let mut etcd = Etcd::new();
    etcd.write(&add("boat", 1)).unwrap();
    let evil = Site {
        name: "evil".to_owned(),
        key: Some(key(number)),
        ..etcd.0.site("boat").unwrap().clone()
    };
    etcd.put("site/evil", &Record::Site(Box::new(evil)).encode());
    etcd
}

#[test]
fn to_revoke_a_site_that_has_what_is_another_s_leaves_that_other_one_all_it_has() {
    for number in [9, 1] {
        let mut etcd = beside_the_boat(number);
        assert!(etcd.is_in_place("boat") && !etcd.is_in_place("evil"));
        etcd.write(&revoke("evil")).unwrap();
        assert_eq!(etcd.0.site("evil"), None);
        assert!(etcd.is_in_place("boat"), "key {number}");
        assert_eq!(etcd.0.site_of(&key(1)).unwrap().name, "boat");
        assert!(etcd.0.freed_slots().is_empty());
    }
    // A slot of its own, and the key of the boat.
    let mut etcd = Etcd::new();
    etcd.write(&add("boat", 1)).unwrap();
    etcd.write(&add("evil", 9)).unwrap();
    let evil = Site {
        key: Some(key(1)),
        ..etcd.0.site("evil").unwrap().clone()
    };
    etcd.put("site/evil", &Record::Site(Box::new(evil)).encode());
    assert!(etcd.is_in_place("boat") && !etcd.is_in_place("evil"));
    let replace = Request::Add {
        name: "evil".to_owned(),
        credential: Credential::Key(key(8)),
        terms: Terms {
            replace: true,
            ..Terms::default()
        },
    };
    etcd.write(&replace).unwrap();
    assert_eq!(etcd.0.site_of(&key(1)).unwrap().name, "boat");
    assert!(etcd.is_in_place("boat") && etcd.is_in_place("evil"));
}

#[test]
fn of_two_sites_of_a_slot_that_says_nothing_none_is_in_place() {
    let mut etcd = beside_the_boat(9);
    etcd.put("slot/00000000", b"{\"v\":2}");
    // What the slot has said before counts.
    assert!(etcd.is_in_place("boat") && !etcd.is_in_place("evil"));
    let stored = etcd.0.entries().iter().map(|(key, entry)| {
        let (value, revision) = (entry.value.clone(), entry.revision);
        (key.clone(), crate::copy::Stored { value, revision })
    });
    let mut copy = Copy::default();
    copy.fill(&key(255), 1, etcd.1, stored.collect()).unwrap();
    for name in ["boat", "evil"] {
        assert!(!copy.is_in_place(copy.site(name).unwrap()), "{name}");
    }
    // A site alone keeps the slot that a newer program has written.
    let delete = crate::copy::Event::Delete {
        key: "site/evil".to_owned(),
        revision: etcd.1 + 1,
    };
    copy.apply(&key(255), vec![delete]).unwrap();
    assert!(copy.is_in_place(copy.site("boat").unwrap()));
}

#[test]
fn a_claim_of_a_key_that_the_site_has_no_more_stands_in_nobody_s_way() {
    let [former, new] =
        [4, 5].map(|seed| ropewalk_transport::Identity::from_seed([seed; 32]).unwrap());
    let van = |identity: &ropewalk_transport::Identity, replace| Request::Add {
        name: "van".to_owned(),
        credential: Credential::Key(identity.public_key()),
        terms: Terms {
            replace,
            ..Terms::default()
        },
    };
    let mut etcd = Etcd::new();
    etcd.write(&van(&former, false)).unwrap();
    etcd.write(&Request::Claim(signed(&former, u64::MAX)))
        .unwrap();
    let stale = etcd.0.entries()["claim/van"].value.clone();
    etcd.write(&van(&new, true)).unwrap();
    assert_eq!(etcd.0.claims().count(), 0);
    // An earlier version left it there.
    etcd.put("claim/van", &stale);
    etcd.write(&Request::Claim(signed(&new, 1))).unwrap();
    let claims: Vec<_> = etcd.0.claims().map(|claim| claim.epoch).collect();
    assert_eq!(claims, [1]);
    let older = etcd.write(&Request::Claim(signed(&new, 0)));
    assert!(matches!(older, Err(Refusal::Older { .. })), "{older:?}");
}

fn add(name: &str, number: u8) -> Request {
    Request::Add {
        name: name.to_owned(),
        credential: Credential::Key(key(number)),
        terms: Terms::default(),
    }
}

fn invited(name: &str, number: u8) -> Request {
    let invitation = Invitation {
        key: key(number),
        ends: 100,
        joined: None,
        rest: Rest::new(),
    };
    Request::Add {
        name: name.to_owned(),
        credential: Credential::Invitation(invitation),
        terms: Terms::default(),
    }
}

fn enrol(by: u8, number: u8, proved: bool, now: u64) -> Request {
    Request::Enrol {
        by: key(by),
        key: key(number),
        proved,
        now,
    }
}

#[test]
fn an_invitation_is_used_once_and_again_only_by_the_same_key() {
    let mut etcd = Etcd::new();
    etcd.write(&invited("boat", 100)).unwrap();
    // Two hubs plan at once: etcd takes one.
    let [first, second] = [1, 2].map(|number| {
        etcd.plan(&enrol(100, number, true, 10), &etcd.0, &[], 0)
            .unwrap()
    });
    assert!(etcd.commit(&first) && !etcd.commit(&second));
    assert_eq!(
        etcd.write(&enrol(100, 2, true, 10)),
        Err(Refusal::Used(Joined {
            at: 10,
            key: key(1),
            rest: Rest::new(),
        }))
    );
    let Done::Site(again) = etcd.write(&enrol(100, 1, true, 200)).unwrap() else {
        panic!()
    };
    assert_eq!(again.key, Some(key(1)));
    etcd.write(&invited("van", 101)).unwrap();
    assert_eq!(
        etcd.write(&enrol(101, 3, true, 100)),
        Err(Refusal::Ended(100))
    );
    assert_eq!(
        etcd.write(&enrol(101, 1, true, 10)),
        Err(Refusal::KeyTaken("site boat".to_owned()))
    );
}

#[test]
fn who_proves_a_key_gets_it_from_a_site_that_only_asked_for_it() {
    let mut etcd = Etcd::new();
    etcd.write(&add("van", 3)).unwrap();
    etcd.write(&invited("boat", 100)).unwrap();
    etcd.write(&enrol(3, 9, false, 10)).unwrap();
    assert!(etcd.write(&enrol(100, 9, false, 10)).is_err());
    etcd.write(&enrol(100, 9, true, 10)).unwrap();
    assert_eq!(etcd.0.site_of(&key(9)).unwrap().name, "boat");
    assert_eq!(etcd.0.site("van").unwrap().next_key, None);
}

fn signed(site: &ropewalk_transport::Identity, epoch: u64) -> Claim {
    let (own, hub) = (site.public_key(), key(77));
    let signed = ropewalk_wire::Claim::signed(own.as_bytes(), epoch, hub.as_bytes());
    Claim {
        site: "van".to_owned(),
        key: own,
        epoch,
        hub,
        signature: crate::record::Signature(site.sign(&signed)),
    }
}

#[test]
fn a_state_of_another_fleet_is_not_written_to() {
    let etcd = Etcd::new();
    let taken = BTreeSet::new();
    let view = View {
        fleet: &key(254),
        copy: &etcd.0,
        from_copy: true,
        fresh: &BTreeMap::new(),
        taken: &taken,
        attempt: 0,
        draw: 0,
    };
    assert_eq!(
        add("van", 3).plan(&view),
        Err(Refusal::OtherFleet(key(255)).into())
    );
}

/// A hub that cannot reach etcd serves a revoked site on, with its addresses.
#[test]
fn the_slot_of_a_revoked_site_is_the_last_to_be_given_again() {
    let mut etcd = Etcd::new();
    let add = |name: &str, number| add(name, number);
    let slot = |done: Done| match done {
        Done::Site(site) => site.slot,
        Done::Nothing => panic!(),
    };
    for (name, number) in [("a", 1), ("b", 2)] {
        etcd.write(&add(name, number)).unwrap();
    }
    for name in ["b", "a"] {
        etcd.write(&revoke(name)).unwrap();
    }
    // 15 blocks of ports: 13 have had no site, then slot 1 has been free for longest.
    let slots: Vec<u32> = (0..15)
        .map(|n| slot(etcd.write(&add(&format!("s{n}"), 10 + n)).unwrap()))
        .collect();
    assert_eq!(slots, (2..15).chain([1, 0]).collect::<Vec<_>>());
    assert_eq!(etcd.write(&add("more", 99)), Err(Refusal::Full(15)));
    // Two hubs want the same freed slot.
    etcd.write(&revoke("s3")).unwrap();
    let [first, second] = [("c", 60), ("d", 61)]
        .map(|(name, number)| etcd.plan(&add(name, number), &etcd.0, &[], 0).unwrap());
    assert!(etcd.commit(&first) && !etcd.commit(&second));
}

/// A hub whose copy is a second old meets slots that were given and freed within that second.
#[test]
fn a_slot_that_was_freed_since_the_copy_is_not_given_again() {
    let mut etcd = Etcd::new();
    let names: Vec<_> = (1_u8..)
        .map(|number| (number, format!("s{number}")))
        .take(15)
        .collect();
    for (number, name) in &names {
        etcd.write(&add(name, *number)).unwrap();
    }
    etcd.write(&revoke("s1")).unwrap();
    let old = etcd.0.clone();
    let planned = |etcd: &Etcd, copy: &Copy| etcd.plan(&add("new", 100), copy, &[], 0).unwrap();
    // Of the name that had the slot before, and of another one.
    for name in ["s1", "other"] {
        let mut etcd = Etcd(etcd.0.clone(), etcd.1);
        etcd.write(&add(name, 90)).unwrap();
        etcd.write(&revoke(name)).unwrap();
        let by_old_copy = planned(&etcd, &old);
        assert!(!etcd.commit(&by_old_copy), "{name}");
        let transaction = planned(&etcd, &etcd.0);
        assert!(etcd.commit(&transaction));
    }
}

/// Etcd was set back: the same revisions wrote other values.
#[test]
fn a_transaction_depends_on_values_and_not_on_revisions() {
    let mut etcd = Etcd::new();
    etcd.write(&add("van", 3)).unwrap();
    let mut other = Etcd::new();
    other.write(&add("van", 4)).unwrap();
    let request = Request::Enable {
        name: "van".to_owned(),
        enabled: false,
    };
    let planned = etcd.plan(&request, &etcd.0, &[], 0).unwrap();
    assert!(!other.commit(&planned));
}

#[test]
fn a_changed_key_ends_the_former_one_and_a_revoked_site_leaves_nothing() {
    let mut etcd = Etcd::new();
    etcd.write(&add("van", 3)).unwrap();
    let own = ropewalk_transport::Identity::from_seed([4; 32]).unwrap();
    let next = own.public_key();
    let change = Request::Enrol {
        by: key(3),
        key: next,
        proved: true,
        now: 10,
    };
    etcd.write(&change).unwrap();
    etcd.write(&Request::Confirm { next }).unwrap();
    assert!(etcd.0.site_of(&key(3)).is_none() && etcd.0.site_of(&next).is_some());
    let claim = |epoch| Request::Claim(signed(&own, epoch));
    etcd.write(&claim(2)).unwrap();
    etcd.write(&claim(2)).unwrap();
    // The epoch is not what the site has signed, and the key is not the site's.
    let other = ropewalk_transport::Identity::from_seed([5; 32]).unwrap();
    let later = Claim {
        epoch: 9,
        ..signed(&own, 3)
    };
    for forged in [later, signed(&other, 3)] {
        assert_eq!(
            etcd.write(&Request::Claim(forged)),
            Err(Refusal::Forged("van".to_owned()))
        );
    }
    assert_eq!(
        etcd.write(&claim(1)),
        Err(Refusal::Older {
            site: "van".to_owned(),
            epoch: 2
        })
    );
    // A next key that the site has not used goes with it.
    etcd.write(&Request::Enrol {
        by: next,
        key: key(6),
        proved: true,
        now: 20,
    })
    .unwrap();
    assert!(etcd.0.site_of(&key(6)).is_some());
    etcd.write(&Request::Revoke {
        name: "van".to_owned(),
    })
    .unwrap();
    let keys: Vec<_> = etcd.0.entries().keys().collect();
    assert_eq!(keys, [META, "slot/00000000"]);
    assert_eq!(etcd.0.slots().count(), 0);
}

proptest! {
    /// Hubs plan from old copies, in any order, and etcd takes what it takes.
    #[test]
    fn no_block_key_or_name_is_given_twice(steps in prop::collection::vec((0_u8..20, 0_u8..20, any::<bool>(), 0_u32..3), 1..60)) {
        let mut etcd = Etcd::new();
        let stale = etcd.0.clone();
        let mut waiting: Vec<Transaction> = Vec::new();
        for (name, number, late, attempt) in steps {
            let request = if number < 15 { add(&format!("s{name}"), number) } else { Request::Revoke { name: format!("s{name}") } };
            let old = if late { &stale } else { &etcd.0 };
            if let Ok(transaction) = etcd.plan(&request, old, &[], attempt) {
                waiting.push(transaction);
            }
            if !late {
                while let Some(transaction) = waiting.pop() {
                    etcd.commit(&transaction);
                }
            }
        }
        for site in etcd.0.sites() {
            prop_assert_eq!(&etcd.0.site_of(&site.key.unwrap()).unwrap().name, &site.name);
        }
        let (sites, slots) = (etcd.0.sites().count(), etcd.0.slots().count());
        let ports: BTreeSet<_> = etcd.0.sites().map(|site| site.ports).collect();
        let addresses: BTreeSet<_> = etcd.0.sites().map(|site| site.ipv4).collect();
        prop_assert!(sites == slots && sites == ports.len() && sites == addresses.len());
    }
}

/// A hub of a newer version has written the site.
#[test]
fn fields_of_a_newer_program_stay_when_a_record_is_written_again() {
    let mut etcd = Etcd::new();
    etcd.write(&invited("boat", 100)).unwrap();
    let text = |etcd: &Etcd, key: &str| {
        let entry = &etcd.0.entries()[key];
        String::from_utf8(entry.value.clone()).unwrap()
    };
    let newer = text(&etcd, "site/boat")
        .replacen("\"v\":1", "\"v\":1,\"colour\":{\"deep\":[1,2]}", 1)
        .replacen("\"ends\":100", "\"ends\":100,\"by\":\"me\"", 1);
    etcd.1 += 1;
    let put = crate::copy::Event::Put {
        key: "site/boat".to_owned(),
        value: newer.into_bytes(),
        revision: etcd.1,
    };
    etcd.0.apply(&key(255), vec![put]).unwrap();
    etcd.write(&enrol(100, 1, true, 10)).unwrap();
    assert_eq!(etcd.0.site("boat").unwrap().key, Some(key(1)));
    let after = text(&etcd, "site/boat");
    for part in ["\"colour\":{\"deep\":[1,2]}", "\"by\":\"me\""] {
        assert!(after.contains(part), "{after}");
    }
}

#[test]
fn a_claim_is_written_beside_a_site_that_a_newer_program_has_written() {
    let own = ropewalk_transport::Identity::from_seed([4; 32]).unwrap();
    let mut etcd = Etcd::new();
    let credential = Credential::Key(own.public_key());
    let van = Request::Add {
        name: "van".to_owned(),
        credential,
        terms: Terms::default(),
    };
    etcd.write(&van).unwrap();
    etcd.1 += 1;
    let put = crate::copy::Event::Put {
        key: "site/van".to_owned(),
        value: b"{\"v\":2}".to_vec(),
        revision: etcd.1,
    };
    etcd.0.apply(&key(255), vec![put]).unwrap();
    etcd.write(&Request::Claim(signed(&own, 2))).unwrap();
    assert_eq!(etcd.0.claims().count(), 1);
    let disable = Request::Enable {
        name: "van".to_owned(),
        enabled: false,
    };
    assert!(matches!(etcd.write(&disable), Err(Refusal::Unreadable(..))));
}
