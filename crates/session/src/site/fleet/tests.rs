//! What a site signs, and what it follows.

use super::super::tuning::TOLD;
use super::*;
use crate::settings::{CommonSettings, Environment, HubAddresses, SiteHub, SiteSettings};
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_transport::{CongestionControl, Identity, Slice};
use ropewalk_wire::Claim;
use std::sync::Arc;

fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32]).expect("every seed is a key")
}

/// A site whose hubs have the keys of seeds 1 and on.
fn site(hubs: u8) -> (Site, Links) {
    let environment = Environment {
        base: std::time::Instant::now(),
        segmentation: false,
        udp_payload_max: 1_472,
        session: 1,
        tunnels: 1,
        transport: Some([1; 32]),
        slice: Slice::WHOLE,
    };
    let common = CommonSettings {
        identity: identity(7),
        scheduler_send: SchedulerKind::default(),
        scheduler_receive: SchedulerKind::default(),
        classes: Arc::default(),
        hold: Default::default(),
        send: Default::default(),
        congestion: CongestionControl::default(),
        mtu: None,
    };
    let links = Links::new(identity(7), None, common.congestion, &environment);
    let hubs = (1..=hubs).map(|seed| SiteHub {
        name: format!("hub{seed}"),
        key: identity(seed).public_key(),
        addresses: Arc::new(HubAddresses::new(&[])),
        tcp_port: 443,
    });
    let settings = SiteSettings {
        common,
        hubs: hubs.collect(),
        udp_blocked_fallback: false,
        ipv6: false,
    };
    (
        Site::new(settings, &environment),
        links.expect("a valid key"),
    )
}

fn claim(signer: &Identity, epoch: u64, hub: u8) -> Claim {
    Statement::sign(signer, epoch, &identity(hub).public_key()).claim()
}

fn epoch(site: &Site) -> Option<u64> {
    site.fleet.claim.map(|word| word.epoch)
}

#[test]
fn nothing_but_its_own_signature_raises_the_epoch_of_a_site() {
    for (hubs, first) in [(1, None), (2, Some(1))] {
        let (mut site, mut links) = site(hubs);
        let now = Instant::ZERO;
        for forged in [
            claim(&identity(8), u64::MAX, 2),
            claim(&identity(8), 1, 2),
            Claim {
                epoch: u64::MAX,
                ..claim(&identity(7), 2, 2)
            },
        ] {
            site.on_told(now, &mut links, &forged);
            assert_eq!(epoch(&site), first, "{hubs} hubs");
        }
        assert_eq!(site.fleet.forged, 3);
        // A hub that this site does not know, of before its start.
        site.on_told(now, &mut links, &claim(&identity(7), 5, 9));
        assert_eq!(epoch(&site), Some(6), "{hubs} hubs");
        for _ in 0..100 {
            site.on_told(now, &mut links, &claim(&identity(8), 99, 2));
        }
        let (forged, unchecked) = (site.fleet.forged, site.fleet.unchecked);
        assert_eq!(forged + unchecked, 103);
        assert_eq!(forged, 3 + u64::from(TOLD) - 4, "the others cost nothing");
    }
}

#[test]
fn a_site_signs_a_newer_claim_than_one_of_its_former_key() {
    let (mut site, mut links) = site(2);
    let (now, next) = (Instant::ZERO, identity(10));
    site.on_key_step(now, &mut links, crate::KeyStep::Next(next.clone()));
    site.on_key_answer(now, &mut links, String::new());
    assert_eq!(*links.identity(), next);
    for confirmed in [false, true] {
        if confirmed {
            site.on_key_works(now, &mut links, next.public_key());
        }
        let told = claim(&identity(7), 10 * (1 + u64::from(confirmed)), 2);
        site.on_told(now, &mut links, &told);
        assert_eq!(epoch(&site), Some(told.epoch + 1));
        assert_eq!(
            site.serving, 0,
            "what a former key has said is not followed"
        );
    }
    // What its present key has said is.
    site.on_told(now, &mut links, &claim(&next, 30, 2));
    assert_eq!((epoch(&site), site.serving), (Some(30), 1));
}

#[test]
fn a_claim_is_signed_once_and_anew_when_it_says_something_else() {
    let (mut site, mut links) = site(2);
    let word = |epoch, hub| Word {
        epoch,
        hub: identity(hub).public_key(),
    };
    let own = identity(7).public_key();
    let first = Statement::of(own, &site.sign_as(&links, Some(own), word(1, 1)));
    assert!(first.is_genuine());
    // Whoever signs again does not come to this signature.
    let kept = Statement {
        signature: [5; 64],
        ..first
    };
    site.fleet.said.set(Some(kept));
    for key in [Some(own), None] {
        assert_eq!(site.sign_as(&links, key, word(1, 1)), kept.claim());
    }
    for other in [word(2, 1), word(1, 2)] {
        site.fleet.said.set(Some(kept));
        let said = site.sign_as(&links, Some(own), other);
        assert!(Statement::of(own, &said).is_genuine(), "{other:?}");
    }
    // The site tries another key beside.
    let next = identity(10);
    site.on_key_step(
        Instant::ZERO,
        &mut links,
        crate::KeyStep::Next(next.clone()),
    );
    site.on_key_answer(Instant::ZERO, &mut links, String::new());
    for key in [next.public_key(), own] {
        // Of the other one.
        let signer = if key == own { next.public_key() } else { own };
        site.fleet.said.set(Some(Statement {
            site: signer,
            ..kept
        }));
        let said = site.sign_as(&links, Some(key), word(1, 1));
        assert!(Statement::of(key, &said).is_genuine(), "{key}");
    }
}

#[test]
fn at_the_last_epoch_a_site_stays_where_it_is() {
    let (mut site, mut links) = site(2);
    let now = Instant::ZERO;
    site.on_told(now, &mut links, &claim(&identity(7), u64::MAX, 9));
    assert_eq!(epoch(&site), Some(1));
    assert_eq!(site.fleet.exhausted, 1);
    site.on_told(now, &mut links, &claim(&identity(7), u64::MAX - 1, 9));
    assert_eq!((epoch(&site), site.serving), (Some(u64::MAX), 0));
    site.on_told(now, &mut links, &claim(&identity(7), u64::MAX, 9));
    assert_eq!(site.fleet.exhausted, 2);
    assert_eq!((epoch(&site), site.serving), (Some(u64::MAX), 0));
}
