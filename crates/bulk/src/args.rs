//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::pin::Fingerprint;
use crate::settings::SenderSettings;

/// Bulk transfer over QUIC, to measure what real QUIC makes of a network.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sends to and receives from whoever asks, until SIGINT or SIGTERM.
    ///
    /// The first line of output says the address and the fingerprint of the certificate made for
    /// this run; then one line of JSON for each connection that ended.
    Serve(ServeArgs),
    /// Opens connections, transfers for a time, and reports what arrived.
    Get(GetArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ServeArgs {
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) sender: SenderSettings,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct GetArgs {
    /// The server.
    #[arg(value_name = "ADDRESS:PORT")]
    pub(crate) server: SocketAddr,
    /// Fingerprint of the server's certificate, as `serve` printed it.
    #[arg(long, value_name = "SHA-256")]
    pub(crate) pin: Fingerprint,
    /// Connections, each with a UDP port of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) flows: u32,
    /// How long to transfer, seconds.
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// End each connection after this many bytes.
    #[arg(long, value_name = "B")]
    pub(crate) bytes: Option<u64>,
    /// Send instead of receiving; the settings of the sender then count here, not at the server.
    #[arg(long)]
    pub(crate) up: bool,
    /// Send through this interface (SO_BINDTODEVICE, needs a privilege).
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) device: Option<String>,
    /// One JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) sender: SenderSettings,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|s| (0.1..=86_400.0).contains(s))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "use 0.1 to 86400 seconds".into())
}
