//! How `quinn-proto` is configured, and why.
//!
//! Invariant: nothing here reads a clock. The time that tokens carry is the caller's `now`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use quinn_proto::{
    AckFrequencyConfig, ClientConfig, ConnectionId, ConnectionIdGenerator, IdleTimeout,
    MtuDiscoveryConfig, NoneTokenStore, RandomConnectionIdGenerator, ServerConfig, TimeSource,
    TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use ropewalk_crypto::{hkdf, hmac};

use super::{
    ConnectOptions, EndpointConfig,
    mark::{Marks, Slice, group_of},
    tuning::{
        ACK_DELAY, ACK_PACKETS, BLACK_HOLE_COOLDOWN, CONNECTION_ID_BYTES, INCOMING_BUFFER_BYTES,
        INCOMING_BYTES, INCOMING_MAX, INITIAL_RTT, MTU_STEP_MIN, PACKET_THRESHOLD,
        RECEIVE_BUFFER_BYTES, RESET_INTERVAL, RETRY_LIFETIME, SEND_BUFFER_BYTES, TIME_THRESHOLD,
    },
};
use crate::{
    CongestionControl, Identity, KeyCheck, PublicKey, TransportError,
    congestion::{Factory, PathState},
    credentials,
};

/// The caller's time as a time of day: only differences matter.
#[derive(Debug, Default)]
pub(super) struct Clock(AtomicU64);

impl Clock {
    pub(super) fn set(&self, now: ropewalk_types::Instant) {
        self.0.store(now.as_nanos(), Relaxed);
    }

    pub(super) fn get(&self) -> ropewalk_types::Instant {
        ropewalk_types::Instant::from_nanos(self.0.load(Relaxed))
    }
}

impl TimeSource for Clock {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// Connection identifiers whose first byte names the worker that gave them out.
struct Ids<G> {
    random: G,
    slice: Slice,
}

impl<G: ConnectionIdGenerator> ConnectionIdGenerator for Ids<G> {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = self.random.generate_cid();
        id[0] = self.slice.tag(id[0]);
        id
    }

    fn cid_len(&self) -> usize {
        self.random.cid_len()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        self.random.cid_lifetime()
    }
}

/// Connection identifiers that follow from a seed, for tests.
struct SeededIds(ropewalk_types::Random);

impl ConnectionIdGenerator for SeededIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.next_u64().to_le_bytes()[..CONNECTION_ID_BYTES])
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

fn check(config: &EndpointConfig) -> Result<(), TransportError> {
    let wrong = |text: &str| Err(TransportError::Config(text.to_owned()));
    if !(1..=64).contains(&config.gso_segments_max) {
        return wrong("gso_segments_max must be 1 to 64");
    }
    if !(1_200..=65_000).contains(&config.mtu_max) {
        return wrong("mtu_max must be 1200 to 65000 bytes");
    }
    if config.idle_timeout < Duration::from_secs(1)
        || config.idle_timeout > Duration::from_secs(3600)
    {
        return wrong("idle_timeout must be 1 second to 1 hour");
    }
    if config
        .keep_alive
        .is_some_and(|interval| interval < Duration::from_millis(100))
    {
        return wrong("keep_alive must be at least 100 ms");
    }
    Ok(())
}

/// The endpoint's part of the configuration.
pub(super) fn endpoint(
    config: &EndpointConfig,
) -> Result<quinn_proto::EndpointConfig, TransportError> {
    check(config)?;
    // Derived from the identity, so that a restarted hub can still tell its sites with a
    // stateless reset that it has lost their connections (RFC 9000 §10.3).
    let secret = hmac::Key::new(hmac::HMAC_SHA256, config.identity.seed());
    let reset = hmac::sign(&secret, b"ropewalk stateless reset");
    let slice = config.slice;
    let mut endpoint = quinn_proto::EndpointConfig::new(Arc::new(hmac::Key::new(
        hmac::HMAC_SHA256,
        reset.as_ref(),
    )));
    let seed = config.seed;
    endpoint.cid_generator(move || match seed {
        Some(seed) => Box::new(Ids {
            random: SeededIds(random(seed)),
            slice,
        }),
        None => Box::new(Ids {
            random: RandomConnectionIdGenerator::new(CONNECTION_ID_BYTES),
            slice,
        }),
    });
    endpoint
        .max_udp_payload_size(config.mtu_max)
        .map_err(|e| TransportError::Config(e.to_string()))?
        .min_reset_interval(RESET_INTERVAL)
        .grease_quic_bit(false)
        .rng_seed(config.seed);
    Ok(endpoint)
}

fn random(seed: [u8; 32]) -> ropewalk_types::Random {
    let mut word = [0; 8];
    word.copy_from_slice(&seed[..8]);
    ropewalk_types::Random::new(u64::from_le_bytes(word))
}

/// The accepting side's part; each connection gets its own transport parameters on top.
pub(super) fn server(
    config: &EndpointConfig,
    clock: Arc<Clock>,
) -> Result<Option<ServerConfig>, TransportError> {
    let Some(allowed) = config.allowed.clone() else {
        return Ok(None);
    };
    let crypto = server_crypto(&config.identity, allowed)?;
    let mut secret = config.seed.unwrap_or_default();
    if config.seed.is_none() {
        ropewalk_crypto::rand::fill(&mut secret).map_err(|_| TransportError::Random)?;
    }
    let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, b"ropewalk retry").extract(&secret);
    let mut server = ServerConfig::new(crypto, Arc::new(token_key));
    server
        .retry_token_lifetime(RETRY_LIFETIME)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BUFFER_BYTES)
        .incoming_buffer_size_total(INCOMING_BYTES)
        .time_source(clock);
    server.validation_token.sent(0);
    Ok(Some(server))
}

/// How the accepting side proves this identity.
pub(super) fn server_crypto(
    identity: &Identity,
    allowed: KeyCheck,
) -> Result<Arc<QuicServerConfig>, TransportError> {
    let tls = credentials::server_config(identity, allowed)?;
    let crypto = QuicServerConfig::try_from(tls).map_err(|e| TransportError::Tls(e.to_string()))?;
    Ok(Arc::new(crypto))
}

/// The connecting side's part.
pub(super) fn client(
    config: &EndpointConfig,
    peer_key: PublicKey,
    options: &ConnectOptions,
    transport: TransportConfig,
    attempt: u64,
) -> Result<ClientConfig, TransportError> {
    let tls = credentials::client_config(&config.identity, peer_key, options.also)?;
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| TransportError::Tls(e.to_string()))?;
    let mut client = ClientConfig::new(Arc::new(crypto));
    client
        .transport_config(Arc::new(transport))
        .token_store(Arc::new(NoneTokenStore));
    let marked_for = options.marked_for.unwrap_or(peer_key);
    let own = config.identity.public_key();
    let group = options.group.unwrap_or_else(|| group_of(&marked_for, &own));
    let first = first_id(config, &marked_for, group, attempt)?;
    client.initial_dst_cid_provider(Arc::new(move || first));
    Ok(client)
}

/// The first identifier of a connection to `hub`.
fn first_id(
    config: &EndpointConfig,
    hub: &PublicKey,
    group: u8,
    attempt: u64,
) -> Result<ConnectionId, TransportError> {
    let mut bytes = [0; 8];
    match config.seed {
        Some(seed) => {
            let word = random(seed).next_u64() ^ attempt;
            bytes = ropewalk_types::Random::new(word).next_u64().to_le_bytes();
        }
        None => ropewalk_crypto::rand::fill(&mut bytes).map_err(|_| TransportError::Random)?,
    }
    Ok(Marks::new(hub).first_id(group, bytes))
}

/// Transport parameters of one connection.
pub(super) fn transport(
    config: &EndpointConfig,
    congestion: CongestionControl,
    mtu_max: u16,
    assumed_rtt: Option<std::time::Duration>,
    state: Arc<PathState>,
) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery
        .upper_bound(mtu_max)
        .minimum_change(MTU_STEP_MIN)
        .black_hole_cooldown(BLACK_HOLE_COOLDOWN);
    let mut acknowledge = AckFrequencyConfig::default();
    acknowledge
        .ack_eliciting_threshold(ACK_PACKETS.into())
        .max_ack_delay(Some(ACK_DELAY))
        .reordering_threshold(VarInt::from_u32(0));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_idle_timeout(IdleTimeout::try_from(config.idle_timeout).ok())
        .keep_alive_interval(config.keep_alive)
        .initial_rtt(assumed_rtt.unwrap_or(INITIAL_RTT))
        .packet_threshold(PACKET_THRESHOLD)
        .time_threshold(TIME_THRESHOLD)
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(acknowledge))
        .allow_spin(false)
        .datagram_send_buffer_size(SEND_BUFFER_BYTES)
        .datagram_receive_buffer_size(Some(RECEIVE_BUFFER_BYTES))
        .enable_segmentation_offload(config.gso_segments_max > 1)
        .congestion_controller_factory(Arc::new(Factory {
            kind: congestion,
            state,
        }));
    transport
}
