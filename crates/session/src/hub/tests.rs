//! A panic inside the QUIC library, as a hub sees it; and holders of invitations who ask too often.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ropewalk_transport::tls::TcpInfo;
use ropewalk_transport::{
    CongestionControl, ConnectionId, Endpoint, EndpointConfig, Identity, KeyCheck, Proof,
    PublicKey, Slice, SocketId, Transmit,
};
use ropewalk_types::{Duration, Ecn, Instant};
use ropewalk_wire::{Control, Datagram, emit_control};

use super::Hub;
use super::tuning::{INVITATION_ENROLS, LINKS_PER_KEY, REFUSALS};
use crate::command::Command;
use crate::io::{Sockets, StreamId};
use crate::links::Links;
use crate::session::sealed::Role as _;
use crate::session::{Event, Session};
use crate::settings::{CommonSettings, Environment, HubSettings, SiteDirectory, SiteEntry};

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

fn settings(sites: Arc<SiteDirectory>) -> HubSettings {
    HubSettings {
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
        sites,
        memory: 1 << 20,
        passes_on: false,
    }
}

fn environment(base: std::time::Instant) -> Environment {
    Environment {
        base,
        segmentation: false,
        udp_payload_max: 1_472,
        session: 1,
        tunnels: 1,
        transport: Some([1; 32]),
        slice: Slice::WHOLE,
    }
}

/// A hub that panics when the library asks it for its opinion of a key.
fn hub(base: std::time::Instant) -> Session<Hub> {
    let (settings, environment) = (settings(Arc::default()), environment(base));
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

/// An entry of the list of sites.
fn site(number: u32) -> SiteEntry {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    SiteEntry {
        name: number.to_string(),
        key: PublicKey::from_bytes(bytes),
        addresses: Vec::new(),
        networks: Vec::new(),
        block: None,
        enabled: true,
        weight: 1,
        rate: None,
    }
}

#[test]
fn rates_of_sites_that_are_not_connected_slow_nothing() {
    let directory = Arc::new(SiteDirectory::default());
    let environment = environment(std::time::Instant::now());
    let mut hub = Session::hub(settings(Arc::clone(&directory)), &environment).unwrap();
    let rated = |number| SiteEntry {
        rate: Some(1_000_000),
        ..site(number)
    };
    directory.replace((0..10).map(rated).collect());
    let sites = hub.handle_command(Instant::from_millis(5), Command::ReloadSites);
    assert_eq!(sites, Ok(10));
    assert!(!hub.role().is_paced(), "no datagram has to be looked up");
}

/// A hub with invitations, and somebody who holds one of them.
struct Scene {
    now: Instant,
    base: std::time::Instant,
    hub: Session<Hub>,
    /// Whether who asked had proved the key, for each question of the hub.
    proved: Vec<bool>,
}

struct Holder {
    endpoint: Endpoint,
    address: SocketAddr,
    connections: Vec<ConnectionId>,
    /// What the hub has answered: reasons of refusals.
    answers: Vec<String>,
}

fn key(number: u8) -> PublicKey {
    identity(number).public_key()
}

impl Scene {
    /// The keys of invitations are `keys`.
    fn new(keys: &[u8]) -> Self {
        let base = std::time::Instant::now();
        let directory = Arc::new(SiteDirectory::default());
        directory.set_invitations(keys.iter().map(|number| key(*number)));
        let hub = Session::hub(settings(directory), &environment(base)).unwrap();
        let now = Instant::from_millis(1_000);
        Self {
            now,
            base,
            hub,
            proved: Vec::new(),
        }
    }

    fn holder(&mut self, number: u8, connections: usize) -> Holder {
        let config = EndpointConfig::new(identity(number), self.base);
        let mut endpoint = Endpoint::new(config).unwrap();
        let connect = |_| {
            let congestion = CongestionControl::default();
            endpoint.connect(self.now, HUB, key(1), congestion).unwrap()
        };
        let connections = (0..connections).map(connect).collect();
        let mut holder = Holder {
            endpoint,
            address: SocketAddr::from(([192, 0, 2, number], 1_000)),
            connections,
            answers: Vec::new(),
        };
        for _ in 0..8 {
            self.exchange(&mut holder);
        }
        holder
    }

    /// Both sides send what they have; what the hub asks of its control side.
    fn exchange(&mut self, holder: &mut Holder) -> Vec<PublicKey> {
        self.now += Duration::from_millis(1);
        let (now, mut buffer) = (self.now, Vec::new());
        while let Some(id) = holder.endpoint.poll_dirty() {
            while let Some(transmit) = holder.endpoint.poll_transmit(now, id, &mut buffer) {
                let data = BytesMut::from(&buffer[..transmit.size]);
                let from = holder.address;
                self.hub
                    .handle_udp(now, SocketId(0), from, None, Ecn::NotEct, data);
            }
        }
        self.hub.handle_timeout(now);
        self.hub.end_batch(now);
        let mut out = Out::default();
        self.hub.pump(now, &mut out);
        for data in out.0 {
            let socket = SocketId(0);
            let id = holder
                .endpoint
                .handle_udp(now, socket, HUB, None, Ecn::NotEct, data);
            while let Some(got) = id.and_then(|id| holder.endpoint.receive(id)) {
                if let Ok(Datagram::Control(Control::Enrolled { refused })) = Datagram::parse(&got)
                {
                    holder.answers.push(refused);
                }
            }
        }
        while holder.endpoint.poll_event().is_some() {}
        let events = std::iter::from_fn(|| self.hub.poll_event());
        let asked = |event| {
            if let Event::Enrol {
                invitation, proved, ..
            } = event
            {
                self.proved.push(proved);
                Some(invitation)
            } else {
                None
            }
        };
        events.filter_map(asked).collect()
    }

    /// A holder asks over all connections.
    fn ask(&mut self, holder: &mut Holder) -> Vec<PublicKey> {
        self.ask_with(holder, None)
    }

    fn ask_with(&mut self, holder: &mut Holder, proof: Option<Proof>) -> Vec<PublicKey> {
        let mut bytes = Vec::new();
        let key = *key(9).as_bytes();
        emit_control(&Control::Enrol { key, proof }, &mut bytes);
        for &id in &holder.connections {
            holder.endpoint.send(id, Bytes::from(bytes.clone())).ok();
        }
        self.exchange(holder)
    }

    fn refuse(&mut self, invitation: u8) -> usize {
        let command = Command::Enrolled {
            invitation: key(invitation),
            key: key(9),
            refused: Some("used".to_owned()),
            owner: Some("site van".to_owned()),
        };
        self.hub.handle_command(self.now, command).unwrap()
    }
}

#[test]
fn the_holder_of_one_invitation_leaves_the_control_side_to_others() {
    let mut scene = Scene::new(&[2, 3]);
    let mut greedy = scene.holder(2, LINKS_PER_KEY);
    let mut asked = 0;
    // For 4 s, 25 times a second over all connections, and the hub answers at once.
    for _ in 0..100 {
        asked += scene.ask(&mut greedy).len();
        scene.refuse(2);
        scene.now += Duration::from_millis(38);
    }
    let bound = INVITATION_ENROLS as usize + 4;
    assert!((4..=bound).contains(&asked), "{asked} questions in 4 s");
    assert!(!greedy.answers.is_empty());
    let mut honest = scene.holder(3, 1);
    assert_eq!(scene.ask(&mut honest), [key(3)]);
    // Two refusals are told, one each; nobody else is.
    assert_eq!(scene.refuse(3), 1);
    let left_out = scene.hub.status().drops["log_lines"];
    assert_eq!(
        left_out,
        100 - u64::from(REFUSALS),
        "a refusal fills the log"
    );
}

#[test]
fn a_wrong_proof_is_no_question_and_older_sites_need_none() {
    let mut scene = Scene::new(&[2]);
    let mut holder = scene.holder(2, 1);
    // With the private half of another key, and for another connection.
    for wrong in [identity(8).prove(&key(2)), identity(9).prove(&key(3))] {
        assert_eq!(scene.ask_with(&mut holder, Some(wrong)), []);
    }
    let right = identity(9).prove(&key(2));
    assert_eq!(scene.ask_with(&mut holder, Some(right)), [key(2)]);
    scene.refuse(2);
    assert_eq!(scene.ask(&mut holder), [key(2)]);
    assert_eq!(scene.proved, [true, false]);
}

#[test]
fn a_question_that_is_lost_is_put_again_on_the_same_connection() {
    let mut scene = Scene::new(&[2]);
    let mut holder = scene.holder(2, 1);
    assert_eq!(scene.ask(&mut holder), [key(2)]);
    scene.now += Duration::from_millis(500);
    assert_eq!(scene.ask(&mut holder), [], "the first one is under way");
    scene.now += Duration::from_millis(600);
    assert_eq!(scene.ask(&mut holder), [key(2)]);
    assert_eq!(scene.refuse(2), 1);
    scene.exchange(&mut holder);
    assert_eq!(holder.answers, ["used"]);
}

#[test]
fn a_connection_that_waits_has_its_turn_beside_strangers_and_one_that_floods() {
    let mut scene = Scene::new(&[2, 3]);
    let mut honest = scene.holder(3, 1);
    let mut greedy = scene.holder(2, 1);
    greedy
        .endpoint
        .send(greedy.connections[0], Bytes::from_static(&[0xff; 100]))
        .ok();
    let now = scene.now;
    let mut buffer = Vec::new();
    let id = greedy.endpoint.poll_dirty().unwrap();
    let sent = greedy.endpoint.poll_transmit(now, id, &mut buffer).unwrap();
    let stranger = [0x40; 100];
    scene.hub.handle_backlog(1.0);
    let floods = [
        (SocketAddr::from(([192, 0, 2, 9], 1)), &stranger[..]),
        (greedy.address, &buffer[..sent.size]),
    ];
    for _ in 0..2_000 {
        for (from, data) in floods {
            let data = BytesMut::from(data);
            scene
                .hub
                .handle_udp(now, SocketId(0), from, None, Ecn::NotEct, data);
        }
    }
    assert_eq!(scene.ask(&mut honest), [key(3)], "in the first turn");
    assert!(scene.hub.is_behind(), "the strangers wait");
}
