//! What balancing costs where packets are forwarded: throughput, processor time and new connections
//! through `ropewalk balance`, beside plain masquerading in alternating rounds of the same run.
//!
//! Both machines are there all the time; each has the same uplinks, of which the plain one uses the first.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use ropewalk_e2e::Ground;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::{Table, range};
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::iperf::{self, IperfSpec};
use ropewalk_testbed::traffic::{Direction, Endpoints};
use ropewalk_testbed::{
    Balanced, LinkSpec, TopologySpec, cpu_seconds, programs, remove_leftovers, serial,
    softirq_cpu_seconds,
};
use serde::Serialize;

/// Measure the cost of balancing against plain masquerading.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// Rounds; in each, every system runs once in every setting.
    #[arg(long)]
    rounds: Option<usize>,
    /// Whole seconds of each TCP run.
    #[arg(long)]
    seconds: Option<u32>,
    /// Connections that are opened one after the other in each round.
    #[arg(long, default_value_t = 500)]
    connections: usize,
}

/// A forwarding machine with its client and server.
struct Forwarder {
    name: &'static str,
    ground: Ground,
    balanced: Balanced,
    /// The program, if it is not only the kernel.
    pid: Option<u32>,
}

/// One system in one setting, over all rounds.
#[derive(Debug, Default, Serialize)]
struct Row {
    system: &'static str,
    /// Whether a packet on its way is a whole segment of up to 64 KiB, or one packet as on a wire.
    segments: bool,
    download_mbit: Vec<f64>,
    upload_mbit: Vec<f64>,
    /// CPU seconds of both iperf3, the kernel's packet threads and the program per gigabyte. Most of the
    /// forwarding is done in the time of the senders.
    s_per_gb: Vec<f64>,
    /// Microseconds per connection that is opened.
    open_us: Vec<f64>,
}

const PLAIN: &str = "masquerade, one uplink";
const BALANCED: &str = "balance, two uplinks";

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    programs::require(&[
        programs::IP,
        programs::NFT,
        programs::ETHTOOL,
        programs::IPERF3,
    ])?;
    let serial = Arc::new(serial()?);
    remove_leftovers();
    let both = [PLAIN, BALANCED].map(|name| forwarder(&serial, name));
    let both = both.into_iter().collect::<Result<Vec<_>>>()?;
    let rounds = args.rounds.unwrap_or(if args.bench.quick { 1 } else { 7 });
    let seconds = args.seconds.unwrap_or(if args.bench.quick { 1 } else { 3 });
    let mut rows = Vec::new();
    for segments in [true, false] {
        let mut some: Vec<Row> = both
            .iter()
            .map(|forwarder| Row {
                system: forwarder.name,
                segments,
                ..Row::default()
            })
            .collect();
        both.iter()
            .try_for_each(|forwarder| set_offloads(forwarder, segments))?;
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..both.len()).collect();
            // Whoever comes second finds warmer caches.
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                run(args, &both[index], seconds, &mut some[index])?;
            }
            eprintln!("round {round}, segments {segments}");
        }
        rows.append(&mut some);
    }
    Ok(rows)
}

fn forwarder(serial: &Arc<ropewalk_testbed::Serial>, name: &'static str) -> Result<Forwarder> {
    let links = vec![LinkSpec::unshaped(true); 2];
    let ground = Ground::beside(Arc::clone(serial), &TopologySpec::new("balcost", links))?;
    let mut balanced = Balanced::new(&ground.topology)?;
    let mut pid = None;
    if name == BALANCED {
        balanced.configure("[balance]\naffinity_minutes = 10\n")?;
        balanced.start(2)?;
        pid = Some(balanced.process().pid());
    } else {
        let site = ground.topology.site();
        site.sysctl("net/ipv4/ip_forward", "1")?;
        site.nft(
            "table inet plain {\nchain nat {\ntype nat hook postrouting priority srcnat;\n\
             oifname \"up0\" masquerade\n}\n}\n",
        )?;
    }
    Ok(Forwarder {
        name,
        ground,
        balanced,
        pid,
    })
}

/// Without segmentation at the ends every packet is forwarded by itself, as from a wire.
fn set_offloads(forwarder: &Forwarder, on: bool) -> Result<()> {
    let topology = &forwarder.ground.topology;
    for (namespace, interface) in [
        (forwarder.balanced.client(), "eth0"),
        (topology.server(), "wan"),
    ] {
        for feature in ["tso", "gso"] {
            namespace.set_offload(interface, feature, on)?;
        }
    }
    Ok(())
}

fn run(args: &Args, forwarder: &Forwarder, seconds: u32, row: &mut Row) -> Result<()> {
    let client = forwarder.balanced.client();
    let ends = Endpoints {
        client: client.clone(),
        server: forwarder.ground.topology.server().clone(),
        server_address: SERVER.into(),
        device: None,
    };
    let processor = || softirq_cpu_seconds() + forwarder.pid.map_or(0.0, cpu_seconds);
    let (mut bytes, mut spent) = (0, 0.0);
    for direction in [Direction::Download, Direction::Upload] {
        let before = processor();
        let spec = IperfSpec {
            direction,
            ..IperfSpec::tcp(1, seconds)
        };
        let report = iperf::run(&ends, &spec)?;
        spent += processor() - before + report.cpu_seconds;
        bytes += report.bytes;
        match direction {
            Direction::Download => row.download_mbit.push(report.goodput_mbit),
            Direction::Upload => row.upload_mbit.push(report.goodput_mbit),
        }
    }
    row.s_per_gb
        .push(spent / (bytes as f64 / 1e9).max(f64::MIN_POSITIVE));
    let begin = Instant::now();
    Balanced::count(client, SERVER.into(), args.connections)?;
    let micros = begin.elapsed().as_secs_f64() * 1e6;
    row.open_us.push(micros / args.connections.max(1) as f64);
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "system",
        "packets",
        "download Mbit/s",
        "upload Mbit/s",
        "CPU s/GB",
        "µs per connection",
    ]);
    for row in rows {
        table.row(&[
            row.system.to_owned(),
            (if row.segments { "segments" } else { "single" }).to_owned(),
            range(&row.download_mbit, 0),
            range(&row.upload_mbit, 0),
            range(&row.s_per_gb, 3),
            range(&row.open_us, 0),
        ]);
    }
    table
}
