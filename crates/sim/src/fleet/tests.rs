use super::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn three_hundred_sites_of_three_hubs_survive_one_of_them() {
    let settings = Settings {
        seed: 1,
        sites: 300,
        hubs: 3,
        uplinks: 1,
        calls: 30,
        join: Duration::from_secs(3),
        away: Duration::from_secs(20),
    };
    let report = play(&settings, |_| {});
    assert_eq!(report.links, 600, "a home and a spare for each site");
    let dead = report.homes[0];
    assert!((70..130).contains(&dead), "{:?}", report.homes);
    assert_eq!(report.served_before, report.homes);
    assert_eq!((report.never, report.others_moved), (0, 0));
    assert_eq!(report.again_with_call.count + report.again_idle.count, dead);
    assert_eq!(
        report.claims_takeover.count, dead,
        "one claim for each move"
    );
    assert!(report.again_with_call.last < Duration::from_secs(1));
    assert!(report.again_idle.last < Duration::from_secs(4));
    assert!(
        report.gaps.last < Duration::from_secs(1),
        "{:?}",
        report.gaps
    );
    assert!(
        report.gaps_others.last < ms(120),
        "{:?}",
        report.gaps_others
    );
    // Half of the load goes to each of the others, and nobody needs a handshake for that.
    assert_eq!(report.served_after[0], 0);
    let more = report.served_after[1] - report.homes[1];
    assert!(
        (dead / 4..dead * 3 / 4).contains(&more),
        "{:?}",
        report.served_after
    );
    assert_eq!(
        report
            .handshakes_away
            .iter()
            .map(|h| h.count)
            .sum::<usize>(),
        0
    );
    // All of its sites wait at the hub again, and some more that have it as their spare.
    let expected = report.homes[0] + report.spares[0];
    let back = report.handshakes_back[0].count;
    assert!(
        (expected..2 * expected).contains(&back),
        "{back}, {expected}"
    );
    assert_eq!(report.claims_join.count, 300, "one claim for each site");
}

#[test]
fn the_same_settings_give_the_same_report() {
    let settings = Settings {
        seed: 3,
        sites: 20,
        hubs: 3,
        uplinks: 2,
        calls: 4,
        join: Duration::from_secs(1),
        away: Duration::from_secs(15),
    };
    assert_eq!(play(&settings, |_| {}), play(&settings, |_| {}));
}

#[test]
fn work_waits_for_the_work_before_it() {
    let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
    let queue = serve(&[at(10), at(10), at(11), at(30)], ms(4));
    assert_eq!(queue.wait_max, ms(7));
    assert_eq!(queue.busy_max, ms(12));
    assert_eq!(queue.time, ms(24));
    assert_eq!(serve(&[], ms(4)).time, ms(0));
}

#[test]
fn percentiles_and_peaks_are_those_of_all_values() {
    let spread = Spread::of((1..=200).rev().map(ms).collect());
    assert_eq!(
        [spread.median, spread.p90, spread.p99],
        [ms(100), ms(180), ms(198)]
    );
    assert_eq!((spread.count, spread.last), (200, ms(200)));
    assert_eq!(Spread::of(Vec::new()).last, ms(0));
    let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
    let amount = Amount::of([0, 50, 99, 100, 999, 1_000, 5_000].map(at).to_vec());
    assert_eq!(
        (amount.count, amount.peak_second, amount.peak_tenth),
        (7, 5, 3)
    );
}
