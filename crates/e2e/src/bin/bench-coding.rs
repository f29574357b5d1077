//! What network coding costs a processor: multiply-add over GF(256) with vectors against the table of
//! products, in turn over the same packets.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::Table;
use ropewalk_gf256::{add_multiple, add_multiple_scalar, implementation};
use ropewalk_testbed::statistics::summarize;
use serde::Serialize;

/// Measure multiply-add over GF(256): one combination of 128 packets after the other.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
}

/// As many packets, of as many bytes, as one combination covers at most.
const PACKETS: usize = 128;
const PACKET_BYTES: usize = 1_436;

#[derive(Serialize)]
struct Measured {
    /// How slices are multiplied on this processor.
    implementation: &'static str,
    /// Medians, in 10^9 bytes of packets per second on one core.
    vector_gb_per_second: f64,
    table_gb_per_second: f64,
    /// Median of the ratios of neighbouring runs.
    ratio: f64,
    /// Time of one combination of all packets.
    combination_us: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let turns = if args.bench.quick { 15 } else { 101 };
    bench::main(&args.bench, || Ok(measure(turns)), table)
}

fn measure(turns: usize) -> Measured {
    let packets: Vec<Vec<u8>> = (0..PACKETS)
        .map(|n| {
            (0..PACKET_BYTES)
                .map(|at| (n * 31 + at * 7) as u8)
                .collect()
        })
        .collect();
    let (mut vector, mut table) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        vector.push(speed(&packets, 40, add_multiple));
        table.push(speed(&packets, 2, add_multiple_scalar));
    }
    let ratios = vector.iter().zip(&table).map(|(fast, slow)| fast / slow);
    let ratio = summarize(ratios).median;
    let vector = summarize(vector).median;
    Measured {
        implementation: implementation(),
        vector_gb_per_second: vector,
        table_gb_per_second: summarize(table).median,
        ratio,
        combination_us: bytes(1) / vector / 1e3,
    }
}

/// 10^9 bytes per second of so many combinations.
fn speed(packets: &[Vec<u8>], combinations: usize, add: fn(&mut [u8], u8, &[u8])) -> f64 {
    let mut sum = vec![0; PACKET_BYTES];
    let start = Instant::now();
    for _ in 0..combinations {
        for (factor, packet) in (2..).zip(packets) {
            add(black_box(&mut sum), black_box(factor), packet);
        }
    }
    let taken = start.elapsed().max(Duration::from_nanos(1));
    black_box(&sum);
    bytes(combinations) / taken.as_secs_f64() / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn bytes(combinations: usize) -> f64 {
    (combinations * PACKETS * PACKET_BYTES) as f64
}

fn table(measured: &Measured) -> Table {
    let mut table = Table::new(&["multiply-add", "GB/s", "one combination"]);
    table.row(&[
        measured.implementation.to_owned(),
        format!("{:.1}", measured.vector_gb_per_second),
        format!("{:.0} µs", measured.combination_us),
    ]);
    table.row(&[
        "table of products".to_owned(),
        format!(
            "{:.1} (median ratio {:.1})",
            measured.table_gb_per_second, measured.ratio
        ),
        format!("{:.0} µs", bytes(1) / measured.table_gb_per_second / 1e3),
    ]);
    table
}
