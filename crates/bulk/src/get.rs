//! The asking end.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, TokioRuntime};
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::args::GetArgs;
use crate::pin;
use crate::request::Request;
use crate::serve::{receive, send};
use crate::steps::{STEP, Steps, unix_now};

/// All connections.
#[derive(Debug, Serialize)]
struct Report {
    up: bool,
    /// Bytes received here over the time asked for; 0 when this end sends.
    goodput_mbit: f64,
    /// Seconds since 1970 when the first step begins.
    begin_unix: f64,
    step_ms: u128,
    flows: Vec<Flow>,
}

/// One connection.
#[derive(Debug, Serialize)]
struct Flow {
    flow: u32,
    bytes: u64,
    /// Bytes received in each step.
    received: Vec<u64>,
    /// What this end sent, and what of it was lost.
    sent_packets: u64,
    lost_packets: u64,
    /// Why the connection broke, if it did.
    broken: Option<String>,
}

/// Transfers and prints what came of it.
pub(crate) async fn run(args: &GetArgs) -> Result<()> {
    let mut client = ClientConfig::new(Arc::new(pin::client(args.pin)?));
    client.transport_config(Arc::new(args.sender.transport()?));
    let (begin, begin_unix) = (Instant::now(), unix_now());
    let mut running = JoinSet::new();
    for flow in 0..args.flows {
        let endpoint = endpoint(args, client.clone())?;
        let (server, time) = (args.server, args.seconds);
        let request = Request {
            flow,
            up: args.up,
            bytes: args.bytes,
        };
        running.spawn(transfer(endpoint, server, request, begin, time));
    }
    let mut flows = Vec::new();
    while let Some(flow) = running.join_next().await {
        flows.push(flow.context("a transfer panicked")?);
    }
    flows.sort_by_key(|flow| flow.flow);
    let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
    let time = begin.elapsed().min(args.seconds).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "bytes of a run are below 2^53")]
    let goodput_mbit = bytes as f64 * 8.0 / 1e6 / time;
    let report = Report {
        up: args.up,
        goodput_mbit,
        begin_unix,
        step_ms: STEP.as_millis(),
        flows,
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

fn print(report: &Report) {
    for flow in &report.flows {
        let end = flow.broken.as_deref().unwrap_or("ended well");
        println!(
            "flow {}: {} bytes received, {} packets sent, {} lost, {end}",
            flow.flow, flow.bytes, flow.sent_packets, flow.lost_packets
        );
    }
    println!("received {:.3} Mbit/s", report.goodput_mbit);
}

/// An endpoint with a port of its own.
fn endpoint(args: &GetArgs, client: ClientConfig) -> Result<Endpoint> {
    let domain = Domain::for_address(args.server);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if let Some(device) = &args.device {
        let bound = socket.bind_device(Some(device.as_bytes()));
        bound.with_context(|| format!("cannot bind to interface {device}"))?;
    }
    let any: SocketAddr = if args.server.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    socket.bind(&any.into())?;
    let socket = UdpSocket::from(socket);
    let runtime = Arc::new(TokioRuntime);
    let mut endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
    endpoint.set_default_client_config(client);
    Ok(endpoint)
}

/// One connection from handshake to farewell.
async fn transfer(
    endpoint: Endpoint,
    server: SocketAddr,
    request: Request,
    begin: Instant,
    time: Duration,
) -> Flow {
    let mut steps = Steps::new(begin);
    let connecting = async {
        let connecting = endpoint.connect(server, pin::SERVER_NAME);
        Ok::<_, anyhow::Error>(connecting?.await?)
    };
    let left = time.saturating_sub(begin.elapsed());
    let (connection, mut broken) = match timeout(left, connecting).await {
        Ok(Ok(connection)) => (Some(connection), None),
        Ok(Err(error)) => (None, Some(format!("connecting: {error:#}"))),
        Err(_) => (None, Some("not connected within the time".to_owned())),
    };
    let mut sent = (0, 0);
    if let Some(connection) = connection {
        let left = time.saturating_sub(begin.elapsed());
        let moving = exchange(&connection, request, &mut steps);
        broken = match timeout(left, moving).await {
            Err(_) | Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
        };
        if broken.is_none()
            && let Some(reason) = connection.close_reason()
            && !is_farewell(&reason)
        {
            broken = Some(reason.to_string());
        }
        connection.close(0u32.into(), b"enough");
        let stats = connection.stats().path;
        sent = (stats.sent_packets, stats.lost_packets);
        let _ = timeout(FAREWELL_LIMIT, endpoint.wait_idle()).await;
    }
    Flow {
        flow: request.flow,
        bytes: steps.sum(),
        received: steps.bytes().to_vec(),
        sent_packets: sent.0,
        lost_packets: sent.1,
        broken,
    }
}

/// Asks, then receives or sends to the end.
async fn exchange(connection: &Connection, request: Request, steps: &mut Steps) -> Result<()> {
    let (mut sending, receiving) = connection.open_bi().await?;
    sending.write_all(&request.encode()).await?;
    if request.up {
        send(sending, request.bytes).await;
        // The server closes when it has everything.
        connection.closed().await;
    } else {
        sending.finish()?;
        receive(receiving, steps).await;
    }
    Ok(())
}

/// Whether the other end closed because all was done.
fn is_farewell(reason: &ConnectionError) -> bool {
    match reason {
        ConnectionError::ApplicationClosed(close) => close.error_code == 0u32.into(),
        ConnectionError::LocallyClosed => true,
        ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::Reset
        | ConnectionError::TimedOut
        | ConnectionError::CidsExhausted => false,
    }
}

/// How long the farewell may take; the result does not depend on it.
const FAREWELL_LIMIT: Duration = Duration::from_millis(300);
