//! Traffic that measures: bulk TCP and MPTCP, `iperf3`, `ping`, and a UDP probe stream.
//!
//! The project's own senders and receivers are threads whose sockets live in the namespaces; both
//! ends share one clock, so one-way delays are exact. Every run is bounded in time.

pub mod bulk;
pub mod iperf;
pub mod ping;
pub mod probe;
pub mod web;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::namespace::Namespace;

/// The two ends of a measurement: the client opens, the server listens.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Where connections come from.
    pub client: Namespace,
    /// Where they go.
    pub server: Namespace,
    /// Address of the server as the client reaches it.
    pub server_address: IpAddr,
    /// Interface the client's sockets are bound to (SO_BINDTODEVICE); `None` leaves it to routing.
    pub device: Option<String>,
}

/// Which way the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the server to the client.
    Download,
    /// From the client to the server.
    Upload,
}

impl Endpoints {
    /// These ends with the client bound to an interface.
    #[must_use]
    pub fn through(&self, device: &str) -> Self {
        Self {
            device: Some(device.to_owned()),
            ..self.clone()
        }
    }

    /// A client socket in the client's namespace, bound to the device if one is set.
    fn client_socket(&self, kind: Type, protocol: Option<Protocol>) -> Result<Socket> {
        let domain = Domain::for_address(SocketAddr::new(self.server_address, 0));
        let socket = self
            .client
            .enter(|| Socket::new(domain, kind, protocol))??;
        if let Some(device) = &self.device {
            let bound = socket.bind_device(Some(device.as_bytes()));
            bound.with_context(|| format!("cannot bind to interface {device}"))?;
        }
        Ok(socket)
    }

    /// A server socket in the server's namespace on a free port of the server's address.
    fn server_socket(
        &self,
        kind: Type,
        protocol: Option<Protocol>,
    ) -> Result<(Socket, SocketAddr)> {
        let address = SocketAddr::new(self.server_address, 0);
        let socket = self
            .server
            .enter(|| Socket::new(Domain::for_address(address), kind, protocol))??;
        let bound = socket.bind(&SockAddr::from(address));
        bound.with_context(|| format!("cannot bind to {address} in {}", self.server.name()))?;
        let bound = socket
            .local_addr()?
            .as_socket()
            .context("a bound socket has an address")?;
        Ok((socket, bound))
    }
}
