//! The serving end.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use quinn::{Connection, Endpoint, Incoming, RecvStream, SendStream, ServerConfig};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::args::ServeArgs;
use crate::pin;
use crate::request::Request;
use crate::steps::{STEP, Steps, unix_now};

/// One connection that has ended.
#[derive(Debug, Serialize)]
struct Line {
    flow: u32,
    up: bool,
    sent_packets: u64,
    lost_packets: u64,
    congestion_events: u64,
    /// Smoothed round-trip time at the end, milliseconds.
    rtt_ms: f64,
    /// Seconds since 1970 when the first step begins.
    begin_unix: f64,
    step_ms: u128,
    /// Upload: bytes received in each step.
    received: Vec<u64>,
}

/// Serves until a signal comes; then ends the connections and prints their lines.
pub(crate) async fn run(args: &ServeArgs) -> Result<()> {
    let (tls, fingerprint) = pin::server()?;
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(Arc::new(args.sender.transport()?));
    let endpoint = Endpoint::server(config, args.listen)
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    println!("listening on {} pin {fingerprint}", endpoint.local_addr()?);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { break };
                if running.len() < CONNECTIONS_MAX {
                    running.spawn(serve(incoming));
                } else {
                    incoming.refuse();
                }
            }
            Some(_) = running.join_next() => {}
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
    }
    endpoint.close(0u32.into(), b"end");
    while running.join_next().await.is_some() {}
    Ok(())
}

/// Serves one connection and prints its line.
async fn serve(incoming: Incoming) {
    let remote = incoming.remote_address();
    let result = async {
        let connection = incoming.await?;
        let (sending, mut receiving) = connection.accept_bi().await?;
        let mut text = [0; Request::LENGTH];
        receiving.read_exact(&mut text).await?;
        let request = Request::decode(text)?;
        let begin_unix = unix_now();
        let mut steps = Steps::new(Instant::now());
        if request.up {
            receive(receiving, &mut steps).await;
            // Whoever sent a number of bytes waits until all have arrived.
            connection.close(0u32.into(), b"received");
        } else {
            send(sending, request.bytes).await;
            connection.closed().await;
        }
        print(&connection, request, begin_unix, &steps)
    };
    if let Err(error) = result.await {
        eprintln!("{remote}: {error:#}");
    }
}

fn print(connection: &Connection, request: Request, begin_unix: f64, steps: &Steps) -> Result<()> {
    let stats = connection.stats().path;
    let line = Line {
        flow: request.flow,
        up: request.up,
        sent_packets: stats.sent_packets,
        lost_packets: stats.lost_packets,
        congestion_events: stats.congestion_events,
        rtt_ms: stats.rtt.as_secs_f64() * 1e3,
        begin_unix,
        step_ms: STEP.as_millis(),
        received: steps.bytes().to_vec(),
    };
    println!("{}", serde_json::to_string(&line)?);
    Ok(())
}

/// Sends until all is sent or the connection ends.
pub(crate) async fn send(mut stream: SendStream, bytes: Option<u64>) {
    let block = [0x5a; BLOCK_BYTES];
    let mut left = bytes.unwrap_or(u64::MAX);
    while left > 0 {
        let piece = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_BYTES);
        // Whoever has enough closes the connection: that is the usual end.
        let Ok(sent) = stream.write(&block[..piece]).await else {
            return;
        };
        left -= sent as u64;
    }
    let _ = stream.finish();
}

/// Receives until the stream or the connection ends.
pub(crate) async fn receive(mut stream: RecvStream, steps: &mut Steps) {
    while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
        steps.add(chunk.bytes.len() as u64);
    }
}

/// Connections served at a time.
const CONNECTIONS_MAX: usize = 2_000;
const BLOCK_BYTES: usize = 64 << 10;
