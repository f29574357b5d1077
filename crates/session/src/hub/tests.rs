//! A panic inside the QUIC library, as a hub sees it.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use ropewalk_transport::tls::TcpInfo;
use ropewalk_transport::{
    CongestionControl, Endpoint, EndpointConfig, Identity, KeyCheck, Slice, SocketId, Transmit,
};
use ropewalk_types::{Duration, Ecn, Instant};

use super::Hub;
use crate::io::{Sockets, StreamId};
use crate::links::Links;
use crate::session::Session;
use crate::settings::{CommonSettings, Environment, HubSettings};

const HUB: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// Datagrams that leave.
#[derive(Default)]
struct Out(Vec<BytesMut>);

impl Sockets for Out {
    fn send_udp(&mut self, _: &Transmit, contents: &[u8]) {
        self.0.push(contents.into());
    }

    fn write_stream(&mut self, _: StreamId, _: &[u8]) -> Result<usize, String> {
        Ok(0)
    }

    fn stream_info(&mut self, _: StreamId) -> Option<TcpInfo> {
        None
    }
}

fn identity(number: u8) -> Identity {
    Identity::from_seed([number; 32]).unwrap()
}

/// A hub that panics when the library asks it for its opinion of a key.
fn hub(base: std::time::Instant) -> Session<Hub> {
    let settings = HubSettings {
        common: CommonSettings {
            identity: identity(1),
            scheduler_send: Default::default(),
            scheduler_receive: Default::default(),
            classes: Arc::default(),
            hold: Default::default(),
            send: Default::default(),
            congestion: CongestionControl::default(),
            mtu: None,
        },
        listen: vec![HUB],
        tcp_listen: Vec::new(),
        addresses: Vec::new(),
        sites: Arc::default(),
        memory: 1 << 20,
    };
    let environment = Environment {
        base,
        segmentation: false,
        udp_payload_max: 1_472,
        session: 1,
        tunnels: 1,
        transport: Some([1; 32]),
        slice: Slice::WHOLE,
    };
    let panics: KeyCheck = Arc::new(|_| panic!("as the test wants"));
    let congestion = settings.common.congestion;
    let links = Links::new(identity(1), Some(panics), congestion, &environment).unwrap();
    Session::with(links, Hub::new(settings, &environment), None)
}

#[test]
fn a_panic_inside_the_quic_library_is_counted_in_the_status() {
    let base = std::time::Instant::now();
    let mut hub = hub(base);
    let mut site = Endpoint::new(EndpointConfig::new(identity(2), base)).unwrap();
    let mut now = Instant::from_millis(1_000);
    let key = identity(1).public_key();
    let mut counts = Vec::new();
    for _ in 0..2 {
        site.connect(now, HUB, key, CongestionControl::default())
            .unwrap();
        let mut buffer = Vec::new();
        for _ in 0..5 {
            now += Duration::from_millis(5);
            while let Some(id) = site.poll_dirty() {
                while let Some(transmit) = site.poll_transmit(now, id, &mut buffer) {
                    let data = BytesMut::from(&buffer[..transmit.size]);
                    hub.handle_udp(now, SocketId(0), HUB, None, Ecn::NotEct, data);
                }
            }
            hub.end_batch(now);
            let mut out = Out::default();
            hub.pump(now, &mut out);
            for data in out.0 {
                site.handle_udp(now, SocketId(0), HUB, None, Ecn::NotEct, data);
            }
        }
        counts.push(hub.status().drops["internal_errors"]);
    }
    assert_eq!(counts, [1, 2], "and the hub goes on");
}
