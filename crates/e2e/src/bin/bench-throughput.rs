//! Throughput and processor time over two bare veth links, beside wireguard-go over one of them
//! in alternating rounds of the same run, with and without UDP segmentation offload.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use ropewalk_e2e::Ground;
use ropewalk_e2e::bench::{self, BenchArgs};
use ropewalk_e2e::table::{Table, range};
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::peers::{self, Tools};
use ropewalk_testbed::topology::HUB;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::Endpoints;
use ropewalk_testbed::traffic::iperf::{self, IperfReport, IperfSpec, Load};
use ropewalk_testbed::{
    LinkSpec, Topology, TopologySpec, cpu_seconds, programs, softirq_cpu_seconds,
};
use serde::Serialize;

/// Measure throughput and CPU seconds per gigabyte without any limit of the links.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    bench: BenchArgs,
    /// The wireguard-go program to compare with; needs `wg` too.
    #[arg(long, value_name = "PATH")]
    wireguard_go: Option<PathBuf>,
    /// Rounds; in each, every system runs once.
    #[arg(long)]
    rounds: Option<usize>,
    /// Whole seconds of each TCP run.
    #[arg(long)]
    seconds: Option<u32>,
    /// Leave the search for the highest UDP packet rate out.
    #[arg(long)]
    no_udp: bool,
    /// Only the systems whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Only with UDP segmentation offload on the veth links, or only without.
    #[arg(long, value_name = "on|off")]
    segmentation: Option<Segmentation>,
    /// Besides, the tunnel with `protect = "code"` and so many combinations per hundred packets
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u16).range(1..=50))]
    coded: Option<u16>,
    /// Besides, the tunnel while both ends lose so many packets of a thousand
    #[arg(long, value_name = "PER MILLE", value_parser = clap::value_parser!(u16).range(1..=300))]
    lost: Option<u16>,
    /// Lines for the `[tunnel]` section of both gateways.
    #[arg(long, default_value = "")]
    tunnel: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Segmentation {
    On,
    Off,
}

/// What carries the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Bare,
    Ropewalk,
    Coded,
    Losing,
    WireguardGo,
}

impl System {
    const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare veth, one link",
            Self::Ropewalk => "ropewalk, two paths",
            Self::Coded => "ropewalk, two paths, coded",
            Self::Losing => "ropewalk, two paths that lose",
            Self::WireguardGo => "wireguard-go, one path",
        }
    }
}

/// One system in one setting, over all rounds.
#[derive(Debug, Default, Serialize)]
struct Row {
    system: &'static str,
    udp_segmentation: bool,
    one_stream_mbit: Vec<f64>,
    /// CPU seconds of tunnel, iperf3 and the kernel's packet threads per gigabyte.
    one_stream_own_s_per_gb: Vec<f64>,
    /// CPU seconds of the tunnel programs alone per gigabyte.
    one_stream_tunnel_s_per_gb: Vec<f64>,
    four_streams_mbit: Vec<f64>,
    four_streams_own_s_per_gb: Vec<f64>,
    /// What copies, combinations and repairs added, of the bytes of packets.
    protection: Vec<f64>,
    /// Highest rate of 1,200-byte UDP packets received with less than 1 % loss.
    udp_packets_per_second: Option<f64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    bench::main(&args.bench, || measure(&args), |rows| table(rows))
}

fn measure(args: &Args) -> Result<Vec<Row>> {
    programs::require(&[programs::IP, programs::ETHTOOL, programs::IPERF3])?;
    let rounds = args.rounds.unwrap_or(if args.bench.quick { 1 } else { 3 });
    let seconds = args.seconds.unwrap_or(if args.bench.quick { 2 } else { 5 });
    let mut systems = vec![System::Bare, System::Ropewalk];
    if args.coded.is_some() {
        systems.push(System::Coded);
    }
    if args.lost.is_some() {
        programs::require(&[programs::NFT])?;
        systems.push(System::Losing);
    }
    if args.wireguard_go.is_some() {
        programs::require(&[programs::WG])?;
        systems.push(System::WireguardGo);
    }
    systems.retain(|system| system.name().contains(&args.only));
    let mut rows = Vec::new();
    for udp_segmentation in [true, false] {
        let this = if udp_segmentation {
            Segmentation::On
        } else {
            Segmentation::Off
        };
        if args.segmentation.is_some_and(|only| only != this) {
            continue;
        }
        let mut some: Vec<Row> = systems
            .iter()
            .map(|system| Row {
                system: system.name(),
                udp_segmentation,
                ..Row::default()
            })
            .collect();
        for round in 0..rounds {
            for (system, row) in systems.iter().zip(&mut some) {
                let last = round + 1 == rounds;
                run(args, *system, seconds, last && !args.no_udp, row)
                    .with_context(|| format!("{} failed", system.name()))?;
                eprintln!(
                    "round {round}, segmentation {udp_segmentation}, {}: {:?} and {:?} Mbit/s",
                    row.system,
                    row.one_stream_mbit.last().map(|mbit| mbit.round()),
                    row.four_streams_mbit.last().map(|mbit| mbit.round()),
                );
            }
        }
        rows.append(&mut some);
    }
    Ok(rows)
}

/// One system in a fresh topology: one stream, four streams, and UDP if wanted.
fn run(args: &Args, system: System, seconds: u32, udp: bool, row: &mut Row) -> Result<()> {
    let links = vec![LinkSpec::unshaped(row.udp_segmentation); 2];
    let ground = Ground::new(&TopologySpec::new("fast", links))?;
    match system {
        System::Bare => {
            let ends = ends(&ground.topology, HUB.into());
            measure_all(&ends, &[], seconds, udp, row)
        }
        System::Ropewalk | System::Coded | System::Losing => {
            let mut tunnel = args.tunnel.clone();
            if system == System::Coded {
                let percent = args.coded.unwrap_or_default();
                tunnel += &format!("\nprotect = \"code\"\nredundancy_percent = {percent}\n");
            }
            if system == System::Losing {
                let lost = args.lost.unwrap_or_default();
                for end in [ground.topology.site(), ground.topology.hub()] {
                    end.nft(&losing(lost))?;
                }
            }
            let spec = GatewaySpec {
                tunnel,
                ..GatewaySpec::default()
            };
            let lab = ground.connect(&spec, &spec)?;
            let pids: Vec<u32> = [&lab.site, &lab.hub]
                .iter()
                .filter_map(|g| Some(g.process()?.pid()))
                .collect();
            let address = lab
                .hub
                .status()?
                .address(false)
                .context("the hub has an address")?;
            measure_all(&ends(&lab.topology, address), &pids, seconds, udp, row)?;
            let (mut data, mut protection) = (0, 0);
            for status in [lab.site.status()?, lab.hub.status()?] {
                for tunnel in &status.tunnels {
                    data += tunnel.data_bytes;
                    protection += tunnel.protection_bytes;
                }
            }
            row.protection.push(protection as f64 / data.max(1) as f64);
            Ok(())
        }
        System::WireguardGo => {
            let tools = Tools {
                wireguard_go: args.wireguard_go.clone(),
                ..Tools::default()
            };
            let peer = peers::find("wireguard-go").context("the testbed knows it")?;
            let joined = peers::join(peer, &ground.topology, &tools)?;
            let pids = [joined.site.pid(), joined.hub.pid()];
            let ends = ends(&ground.topology, peers::HUB_INNER.into());
            measure_all(&ends, &pids, seconds, udp, row)
        }
    }
}

/// Rules that lose so many datagrams of a thousand that arrive from the other gateway.
fn losing(per_mille: u16) -> String {
    let lose = |side: &str| format!("udp {side} 4443 numgen random mod 1000 < {per_mille} drop");
    format!(
        "table inet bench_loss {{\n chain arriving {{\n type filter hook prerouting priority -400;\n \
         {}\n {}\n }}\n}}\n",
        lose("dport"),
        lose("sport"),
    )
}

/// From the site to the hub itself: no further hop disturbs.
fn ends(topology: &Topology, server_address: IpAddr) -> Endpoints {
    let (client, server) = (topology.site().clone(), topology.hub().clone());
    Endpoints {
        client,
        server,
        server_address,
        device: None,
    }
}

fn measure_all(
    ends: &Endpoints,
    pids: &[u32],
    seconds: u32,
    udp: bool,
    row: &mut Row,
) -> Result<()> {
    let one = costed(ends, pids, &IperfSpec::tcp(1, seconds))?;
    row.one_stream_mbit.push(one.mbit);
    row.one_stream_own_s_per_gb.push(one.own_s_per_gb);
    row.one_stream_tunnel_s_per_gb.push(one.tunnel_s_per_gb);
    let four = costed(ends, pids, &IperfSpec::tcp(4, seconds))?;
    row.four_streams_mbit.push(four.mbit);
    row.four_streams_own_s_per_gb.push(four.own_s_per_gb);
    if udp {
        row.udp_packets_per_second = Some(highest_packet_rate(ends)?);
    }
    Ok(())
}

struct Costed {
    mbit: f64,
    own_s_per_gb: f64,
    tunnel_s_per_gb: f64,
}

/// A run with the processor time it took.
fn costed(ends: &Endpoints, pids: &[u32], spec: &IperfSpec) -> Result<Costed> {
    let tunnel = || pids.iter().map(|&pid| cpu_seconds(pid)).sum::<f64>();
    let before = (tunnel(), softirq_cpu_seconds());
    let report: IperfReport = iperf::run(ends, spec)?;
    let tunnel = tunnel() - before.0;
    let softirq = softirq_cpu_seconds() - before.1;
    let gigabytes = (report.bytes as f64 / 1e9).max(f64::MIN_POSITIVE);
    Ok(Costed {
        mbit: report.goodput_mbit,
        own_s_per_gb: (tunnel + softirq + report.cpu_seconds) / gigabytes,
        tunnel_s_per_gb: tunnel / gigabytes,
    })
}

/// Raises the offered rate in steps of a quarter until more than 1 % is lost twice in a row, and then from the
/// best rate in steps of a twentieth.
fn highest_packet_rate(ends: &Endpoints) -> Result<f64> {
    let (mut offered, mut best, mut step) = (20_000.0, 0.0, 1.25);
    let mut refused = 0;
    while offered < 2_000_000.0 {
        let rate_mbit = offered * UDP_BYTES as f64 * 8.0 / 1e6;
        let load = Load::Udp {
            rate_mbit,
            size: UDP_BYTES,
        };
        let spec = IperfSpec {
            load,
            direction: Direction::Upload,
            seconds: 2,
        };
        let report = iperf::run(ends, &spec)?;
        if report.loss < 0.01 && report.packets_per_second > best {
            best = report.packets_per_second;
            refused = 0;
            offered *= step;
            continue;
        }
        refused += 1;
        if refused == 2 {
            if step < 1.1 {
                break;
            }
            (refused, step) = (0, 1.05);
            offered = best * step;
        }
    }
    Ok(best)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "system",
        "veth USO",
        "1 stream Mbit/s",
        "own s/GB",
        "tunnel s/GB",
        "4 streams Mbit/s",
        "own s/GB",
        "protection",
        "UDP 1200 B packets/s, < 1 % loss",
    ]);
    for row in rows {
        table.row(&[
            row.system.to_owned(),
            (if row.udp_segmentation { "on" } else { "off" }).to_owned(),
            range(&row.one_stream_mbit, 0),
            range(&row.one_stream_own_s_per_gb, 2),
            range(&row.one_stream_tunnel_s_per_gb, 2),
            range(&row.four_streams_mbit, 0),
            range(&row.four_streams_own_s_per_gb, 2),
            range(&row.protection, 3),
            row.udp_packets_per_second
                .map_or_else(|| "-".into(), |pps| format!("{pps:.0}")),
        ]);
    }
    table
}

/// UDP payload of the packet-rate test.
const UDP_BYTES: usize = 1_200;
