//! What the tests of the driver share: settings of gateways, and sockets on loopback.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use ropewalk_driver::{SocketOptions, Sockets};
use ropewalk_session::{CommonSettings, Environment, Hub, HubSettings, Session, Slice, Uplink};
use ropewalk_transport::{CongestionControl, Identity};
use rustix::event::epoll;

/// A key pair of its own for each call.
pub fn identity() -> Identity {
    Identity::generate().expect("random numbers")
}

/// What both roles are given, with this key pair.
pub fn common(identity: Identity) -> CommonSettings {
    CommonSettings {
        identity,
        scheduler_send: Default::default(),
        scheduler_receive: Default::default(),
        classes: Arc::default(),
        hold: Default::default(),
        send: Default::default(),
        congestion: CongestionControl::default(),
        mtu: None,
    }
}

/// The environment of a gateway without workers.
pub fn environment() -> Environment {
    Environment {
        base: std::time::Instant::now(),
        segmentation: true,
        udp_payload_max: 1_472,
        session: 1,
        tunnels: 1,
        transport: None,
        slice: Slice::WHOLE,
    }
}

/// A hub without sites that listens at this UDP address.
pub fn hub(listen: SocketAddr) -> Session<Hub> {
    let settings = HubSettings {
        common: common(identity()),
        listen: vec![listen],
        tcp_listen: Vec::new(),
        addresses: Vec::new(),
        sites: Arc::default(),
        memory: 1 << 20,
        passes_on: false,
    };
    Session::hub(settings, &environment()).expect("a key")
}

/// No sockets yet; those to come have buffers of so many bytes.
pub fn sockets(buffer_bytes: usize) -> Sockets {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let options = SocketOptions {
        buffer_bytes,
        devices: false,
        mark: None,
        slice: Slice::WHOLE,
    };
    Sockets::new(epoll, options)
}

/// Name of the only uplink of a site.
pub const UPLINK: &str = "eth0";

/// An uplink on loopback.
pub fn uplink() -> Uplink {
    Uplink {
        name: UPLINK.into(),
        ifindex: 1,
        addresses: vec![Ipv4Addr::LOCALHOST.into()],
        mtu: 1_500,
        standby: false,
        metered: false,
        bottleneck: None,
        weight: None,
        protection_hourly: None,
        congestion: None,
    }
}

/// A UDP socket of the test.
pub fn loopback() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback")
}
