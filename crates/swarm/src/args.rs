//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use ipnet::Ipv4Net;
use ropewalk_transport::PublicKey;

use crate::hostile::Behaviour;
use crate::load::Profile;
use crate::tuning::{PACKET_MAX, PACKET_MIN, PATHS, RATE, SITES, WINDOW, WINDOW_USUAL};

/// Loads a hub with thousands of sites from one process.
///
/// First `sites` writes the list of sites for the hub, then `run` connects them:
///
///   ropewalk-swarm sites --secret swarm.key --count 1000 > /var/lib/ropewalk/sites.toml
///   ropewalk-swarm run --secret swarm.key --count 1000 --hub 192.0.2.1:4443 --hub-key KEY
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, verbatim_doc_comment)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Prints the sites as the list that a hub reads, and makes the secret if there is none.
    Sites(Sites),
    /// Connects the sites, keeps them busy for a time, and reports how the hub served them.
    Run(Box<Run>),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Common {
    /// File with the secret from which the keys of all sites follow.
    #[arg(long, value_name = "FILE", default_value = "swarm.key")]
    pub(crate) secret: PathBuf,
    /// Number of sites.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(SITES))]
    pub(crate) count: u32,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Sites {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Network of the sites' inner addresses: that of the hub's `[pool] ipv4`. The hub has the first address.
    #[arg(long, value_name = "NETWORK", default_value = "10.104.0.0/16")]
    pub(crate) pool: Ipv4Net,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The hub.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) hub: SocketAddr,
    /// The hub's public key, as `ropewalk key show` prints it.
    #[arg(long, value_name = "KEY")]
    pub(crate) hub_key: PublicKey,
    /// Another hub of the same sites, to which a site moves when its hub does not answer any more. May be given
    /// several times: the sites take the spares in turn, one each.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "spare_key")]
    pub(crate) spare: Vec<SocketAddr>,
    /// The public key of each spare, in the same order.
    #[arg(long, value_name = "KEY", requires = "spare")]
    pub(crate) spare_key: Vec<PublicKey>,
    /// Paths of each site, each with a UDP socket of its own.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(PATHS))]
    pub(crate) paths: u32,
    /// Sites begin to connect evenly over this time, seconds. 0: all at once.
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) join_over: Duration,
    /// How long the swarm goes on after the last site has begun, seconds.
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Pings of each site in a second, once it is connected. 0: none.
    #[arg(long, value_name = "RATE", default_value_t = 0.1, value_parser = rate)]
    pub(crate) pings: f64,
    /// Bytes of a ping, with its IP header.
    #[arg(long, value_name = "B", default_value_t = 84, value_parser = clap::value_parser!(u16).range(PACKET_MIN..=PACKET_MAX))]
    pub(crate) bytes: u16,
    /// What each site does besides its pings. The packets are pings too, so the hub needs no other program,
    /// and every byte crosses the tunnel in both directions. The report has the goodput: what was
    /// answered, of all sites and per site, from 1 s after the last site has begun.
    #[arg(long, value_name = "PROFILE", default_value_t)]
    pub(crate) traffic: Profile,
    /// Most that each site sends with `--traffic bulk`, Mbit/s. Unless given the sites saturate the hub or this
    /// program, whichever is slower: then compare only runs on the same machine.
    #[arg(long, value_name = "MBIT/S", value_parser = mbit)]
    pub(crate) rate: Option<f64>,
    /// Packets without an answer that each site has at most with `--traffic bulk` or `web`. Fewer: shorter
    /// queues where the sites saturate the hub, and slower over long round trips.
    #[arg(long, value_name = "PACKETS", default_value_t = WINDOW_USUAL, value_parser = clap::value_parser!(u16).range(WINDOW))]
    pub(crate) window: u16,
    /// On average every so many seconds each site moves one of its paths to another UDP port. One of three
    /// ways by chance: `nat`, only the hub can notice; `address`, the site is told that its
    /// address has changed; `uplink`, the interface goes and another one comes. The report has
    /// the longest time without an answer around a move, so ping often: `--pings 20`.
    #[arg(long, value_name = "S", value_parser = average)]
    pub(crate) roam: Option<Duration>,
    /// On average after so many seconds each site vanishes without a goodbye, and starts anew 1 to 4 s later.
    /// Nobody vanishes in the last 6 s of `--seconds`, so that all can come back.
    #[arg(long, value_name = "S", value_parser = average)]
    pub(crate) vanish: Option<Duration>,
    /// Beside the sites, a host that misbehaves: from the middle of the time on, and the last site begins
    /// 2 s after it. The report then has the time before and the time with it. Behaviours of a site
    /// use the key after those of the sites: let the hub know one site more.
    #[arg(long, value_name = "BEHAVIOUR")]
    pub(crate) hostile: Option<Behaviour>,
    /// How often it misbehaves, times in a second.
    #[arg(long, value_name = "RATE", value_parser = rate, requires = "hostile")]
    pub(crate) hostile_rate: Option<f64>,
    /// Sockets of the host, each with a port of its own: its connections take them in turn.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), default_value_t = 1, requires = "hostile")]
    pub(crate) hostile_sockets: u32,
    /// Process of the hub on this machine, for its processor time and memory.
    #[arg(long, value_name = "PID")]
    pub(crate) hub_pid: Option<u32>,
    /// Seed of all choices but keys and numbers of starts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Prints the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress on standard error.
    #[arg(long)]
    pub(crate) quiet: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if !(0.0..=86_400.0).contains(&value) {
        return Err("must be 0 to 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(value))
}

fn average(text: &str) -> Result<Duration, String> {
    let value = seconds(text)?;
    if value < Duration::from_secs(1) {
        return Err("must be 1 to 86400 seconds".into());
    }
    Ok(value)
}

fn mbit(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number of Mbit/s")?;
    if !RATE.contains(&value) {
        return Err(format!("must be {} to {} Mbit/s", RATE.start(), RATE.end()));
    }
    Ok(value)
}

fn rate(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number")?;
    if !(0.0..=100_000.0).contains(&value) {
        return Err("must be 0 to 100000 per second".into());
    }
    Ok(value)
}
