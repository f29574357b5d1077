//! What hubs and sites are configured with alike.
//!
//! Invariant: interface names fit the kernel's limit and paths are absolute.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use ropewalk_core::hold::Limits;
use ropewalk_core::protect::Classes;
use ropewalk_core::schedule::SchedulerKind;
use ropewalk_core::tunnel::{Order, SendOptions};
use ropewalk_transport::CongestionControl;

use super::class::Via;
use super::reader::Section;
use super::values::patterns::{INTERFACE, LOOPBACK_PORT, NAME, PATH};
use super::values::{not_an_address, parse_interface, parse_name, parse_path, parse_word};
use super::{KEYS_DIR, RUN_DIR, STATE_DIR};
use ropewalk_session::{MTU_MAX, MTU_MIN};

/// Largest log file that may be configured, MiB.
const LOG_MIB_MAX: u64 = 100_000;
/// Largest send buffer of a path that may be configured, packets.
const SEND_BUFFER_MAX: u64 = ropewalk_core::tunnel::SEND_BUFFER_MAX as u64;
/// Socket buffer when none is configured, bytes: 100 ms at 300 Mbit/s.
const SOCKET_BUFFER_DEFAULT: u64 = 4 << 20;

/// What both roles have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    /// `hub`, `site` or `relay`.
    pub role: &'static str,
    /// Name of this gateway.
    pub name: String,
    /// Private key file.
    pub key_file: PathBuf,
    /// Directory for state.
    pub state_dir: PathBuf,
    /// Unix socket of the API.
    pub socket: PathBuf,
    /// Group that may use the API, besides root.
    pub socket_group: Option<String>,
    /// Loopback address on which the API is offered too.
    pub api_listen: Option<SocketAddr>,
    /// TUN interface name.
    pub interface: String,
    /// The other TUN interface of the same gateway, if it is a relay whose two sides share the
    /// network of the hub.
    pub partner: Option<String>,
    /// Scheduler towards the peer.
    pub scheduler_send: SchedulerKind,
    /// Scheduler of the peer towards this gateway.
    pub scheduler_receive: SchedulerKind,
    /// What is protected against loss when sending, and how.
    pub classes: Arc<Classes>,
    /// The way of the flows of each class but the default one.
    pub vias: Vec<Via>,
    /// What is kept while no path is up.
    pub hold: Limits,
    /// What published systems do otherwise when sending.
    pub send: SendOptions,
    /// Congestion control of paths that name none.
    pub congestion: CongestionControl,
    /// Inner MTU, if fixed.
    pub mtu: Option<usize>,
    /// Whether offloads may be used.
    pub offload: bool,
    /// Size of socket buffers, bytes.
    pub socket_buffer_bytes: usize,
    /// Logging.
    pub log: LogConfig,
}

impl Common {
    /// The defaults of a role. The name of the key file is still without a directory.
    #[must_use]
    pub fn new(role: &'static str) -> Self {
        Self {
            role,
            name: role.to_owned(),
            key_file: format!("{role}.key").into(),
            state_dir: STATE_DIR.into(),
            socket: PathBuf::from(RUN_DIR).join(format!("{role}.sock")),
            socket_group: None,
            api_listen: None,
            interface: String::new(),
            partner: None,
            scheduler_send: SchedulerKind::default(),
            scheduler_receive: SchedulerKind::default(),
            classes: Arc::default(),
            vias: Vec::new(),
            hold: Limits::default(),
            send: SendOptions::default(),
            congestion: CongestionControl::default(),
            mtu: None,
            offload: true,
            socket_buffer_bytes: SOCKET_BUFFER_DEFAULT as usize,
            log: LogConfig::default(),
        }
    }

    /// Whether `interface` is this gateway's place in its network, and no other network.
    #[must_use]
    pub fn owns(&self, interface: &str) -> bool {
        self.interface == interface || self.partner.as_deref() == Some(interface)
    }
}

/// How to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Lines or JSON objects.
    pub format: LogFormat,
    /// Filter, as for `RUST_LOG`.
    pub level: String,
    /// File in addition to standard error.
    pub file: Option<PathBuf>,
    /// Size at which the file is started anew; the former one is kept once as `.1`.
    pub file_bytes_max: u64,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: "info".to_owned(),
            file: None,
            file_bytes_max: 10 << 20,
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

impl FromStr for LogFormat {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("unknown log format: use text or json"),
        }
    }
}

/// Defaults that differ between the roles.
#[derive(Clone, Copy, Debug)]
pub struct RoleDefaults {
    /// Role, also the default name and the stem of file names.
    pub role: &'static str,
    /// TUN interface name.
    pub interface: &'static str,
}

/// Where the key `name` of the gateway with this configuration is: in a directory of its own beside the
/// configuration, which the gateway may write. The configuration itself it may not. A key that an earlier version
/// left beside the configuration is used where it is.
#[must_use]
pub fn key_file(config: &Path, name: impl AsRef<Path>) -> PathBuf {
    let name = name.as_ref();
    let (own, earlier) = (
        config.with_file_name(KEYS_DIR).join(name),
        config.with_file_name(name),
    );
    if !own.exists() && earlier.exists() {
        earlier
    } else {
        own
    }
}

/// Reads what both roles have in common. `config` is the file's path, which says where the key is.
pub fn read(root: &mut Section<'_>, config: &Path, defaults: RoleDefaults) -> Common {
    let key_file = root
        .like(PATH)
        .text("key_file", "\"/etc/ropewalk/keys/site.key\"", parse_path);
    let common = read_without_tunnel(root, config, defaults.role);
    let common = Common {
        key_file: key_file.unwrap_or(common.key_file),
        interface: defaults.interface.to_owned(),
        ..common
    };
    let (common, default) = root.section("tunnel", |tunnel| {
        let default = super::class::read_default(tunnel);
        (read_tunnel(tunnel, common), default)
    });
    let (classes, vias) = super::class::read(root, default, defaults.role == "site");
    Common {
        classes,
        vias,
        hold: root.section("hold", super::hold::read),
        ..common
    }
}

/// Reads what every role has: name, state, API and log.
pub fn read_without_tunnel(root: &mut Section<'_>, config: &Path, role: &'static str) -> Common {
    let name = root.like(NAME).text("name", "name = \"boat\"", parse_name);
    let state_dir = root
        .like(PATH)
        .text("state_dir", "\"/var/lib/ropewalk\"", parse_path);
    let default = Common::new(role);
    let common = Common {
        name: name.unwrap_or(default.name),
        key_file: key_file(config, &default.key_file),
        state_dir: state_dir.unwrap_or(default.state_dir),
        ..Common::new(role)
    };
    let common = root.section("api", |api| read_api(api, common));
    let log = root.section("log", read_log);
    Common { log, ..common }
}

/// Reads how a tunnel works; what the section does not say is as in `common`.
pub(super) fn read_tunnel(tunnel: &mut Section<'_>, common: Common) -> Common {
    let example = "\"auto\" (`ropewalk scheduler` lists them)";
    let mut scheduler = |key| {
        let all = SchedulerKind::ALL.map(SchedulerKind::name);
        tunnel.choice(key, example, all, str::parse::<SchedulerKind>)
    };
    let (both, send) = (scheduler("scheduler"), scheduler("scheduler_send"));
    let receive = scheduler("scheduler_receive");
    let congestion = read_congestion(tunnel);
    let mtu = tunnel.integer("mtu", MTU_MIN as u64..=MTU_MAX as u64);
    let order = tunnel.choice("order", "\"off\"", ["on", "off"], str::parse::<Order>);
    let compress = tunnel.boolean("compress_headers");
    let accelerate = tunnel.boolean("accelerate");
    let send_buffer = tunnel.integer("send_buffer_packets", 1..=SEND_BUFFER_MAX);
    let buffer = tunnel.integer("socket_buffer_bytes", 65_536..=(1 << 30));
    Common {
        interface: tunnel
            .like(INTERFACE)
            .text("interface", "\"ropewalk0\"", parse_interface)
            .unwrap_or(common.interface),
        scheduler_send: send.or(both).unwrap_or(common.scheduler_send),
        scheduler_receive: receive.or(both).unwrap_or(common.scheduler_receive),
        congestion: congestion.unwrap_or(common.congestion),
        send: SendOptions {
            order: order.unwrap_or(common.send.order),
            buffer_packets: send_buffer
                .map(|packets| packets as usize)
                .or(common.send.buffer_packets),
            compress_headers: compress.unwrap_or(common.send.compress_headers),
            accelerate: accelerate.unwrap_or(common.send.accelerate),
            ..common.send
        },
        mtu: mtu.map(|bytes| bytes as usize).or(common.mtu),
        offload: tunnel.boolean("offload").unwrap_or(common.offload),
        socket_buffer_bytes: buffer.map_or(common.socket_buffer_bytes, |bytes| bytes as usize),
        ..common
    }
}

/// `congestion` of a tunnel or an uplink.
pub(super) fn read_congestion(section: &mut Section<'_>) -> Option<CongestionControl> {
    let all = CongestionControl::ALL.map(CongestionControl::name);
    section.choice("congestion", "\"bdp\"", all, str::parse)
}

fn read_api(api: &mut Section<'_>, common: Common) -> Common {
    let listen = api
        .like(LOOPBACK_PORT)
        .text("listen", "\"127.0.0.1:9490\"", |text| {
            let address: SocketAddr = text.parse().map_err(|_| not_an_address(text))?;
            if !address.ip().is_loopback() {
                return Err(format!(
                    "{address} is not a loopback address, and the API has no password"
                ));
            }
            Ok(address)
        });
    Common {
        socket: api
            .like(PATH)
            .text("socket", "\"/run/ropewalk/site.sock\"", parse_path)
            .unwrap_or(common.socket),
        socket_group: api.like(NAME).text("group", "\"netdev\"", parse_word),
        api_listen: listen,
        ..common
    }
}

fn read_log(log: &mut Section<'_>) -> LogConfig {
    let default = LogConfig::default();
    let size = log.integer("file_mib_max", 1..=LOG_MIB_MAX);
    LogConfig {
        format: log
            .choice("format", "\"text\"", ["text", "json"], str::parse)
            .unwrap_or(default.format),
        level: log
            .text("level", "\"info\"", |text| {
                text.parse::<tracing_subscriber::filter::Targets>()
                    .map(|_| text.to_owned())
                    .map_err(|error| format!("{text:?} is no log filter: {error}"))
            })
            .unwrap_or(default.level),
        file: log
            .like(PATH)
            .text("file", "\"/var/log/ropewalk/site.log\"", parse_path),
        file_bytes_max: size.map_or(default.file_bytes_max, |mib| mib << 20),
    }
}
