//! Generates the two capacity traces that the demo carries.
//!
//! A walk of 60 s away from an access point and back.
//!
//! Wi-Fi is a raised cosine from 42 Mbit/s near the access point to 3 Mbit/s at the far end, with
//! 10 % multiplicative noise. Behind a wall (seconds 26 and 27) it has 0.3 Mbit/s.
//!
//! LTE is 20 Mbit/s with a slow sine of 5 Mbit/s (period 17 s) and an autoregressive fade
//! (coefficient 0.7, innovations of 2 Mbit/s). Handovers take it to 1 Mbit/s in seconds 13 and 44.
//!
//! Each trace has one value a second, from a seeded generator of its own. The two are never bad in
//! the same second, as the shapes show and the test checks.

use ropewalk_types::Random;

const SECONDS: u32 = 60;
const SEED: u64 = 20_261_121;
const WALL: std::ops::RangeInclusive<u32> = 26..=27;
const HANDOVERS: [u32; 2] = [13, 44];

fn wifi() -> Vec<u64> {
    let mut random = Random::new(SEED);
    let rate = |second: u32| {
        let phase = f64::from(second) / f64::from(SECONDS) * std::f64::consts::TAU;
        let mean = 3.0 + 39.0 * f64::midpoint(1.0, phase.cos());
        let noisy = mean * (1.0 + 0.1 * random.normal());
        if WALL.contains(&second) {
            0.3
        } else {
            noisy.clamp(1.0, 50.0)
        }
    };
    (1..=SECONDS).map(rate).map(bytes_per_second).collect()
}

fn lte() -> Vec<u64> {
    let mut random = Random::new(SEED + 1);
    let mut fade = 0.0;
    let rate = |second: u32| {
        fade = 0.7 * fade + 2.0 * random.normal();
        let slow = 5.0 * (f64::from(second) / 17.0 * std::f64::consts::TAU).sin();
        if HANDOVERS.contains(&second) {
            1.0
        } else {
            (20.0 + slow + fade).clamp(6.0, 32.0)
        }
    };
    (1..=SECONDS).map(rate).map(bytes_per_second).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "1..=50 Mbit/s"
)]
fn bytes_per_second(mbit: f64) -> u64 {
    (mbit * 1e6 / 8.0) as u64
}

fn csv(values: &[u64]) -> String {
    let lines = (1..)
        .zip(values)
        .map(|(second, bytes): (u32, _)| format!("{second},{bytes}\n"));
    lines.collect()
}

/// Set this variable to write the files anew after a change of the formulas.
const WRITE: &str = "ROPEWALK_WRITE_TRACES";

#[test]
fn the_files_are_what_the_formulas_give() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (file, values) in [("wifi.csv", wifi()), ("lte.csv", lte())] {
        let path = here.join(file);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, csv(&values)).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            csv(&values),
            "{file}"
        );
    }
}

#[test]
fn the_uplinks_are_never_bad_in_the_same_second() {
    for (second, (wifi, lte)) in (1..).zip(wifi().into_iter().zip(lte())) {
        assert!(
            wifi + lte >= bytes_per_second(10.0),
            "second {second}: {wifi} + {lte}"
        );
    }
}
