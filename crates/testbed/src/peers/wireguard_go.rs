//! WireGuard in user space: `wireguard-go`, set up by `wg`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Ground, HUB_INNER, Joined, LIMIT, Peer, SITE_INNER, Tools, UP_LIMIT};
use crate::cleanup::WIREGUARD_DIR;
use crate::namespace::Namespace;
use crate::process::{Process, Program};
use crate::programs;
use crate::topology::HUB;

/// The peer.
#[derive(Debug)]
pub(super) struct WireguardGo;

impl Peer for WireguardGo {
    fn name(&self) -> &'static str {
        "wireguard-go"
    }

    fn obstacle(&self, tools: &Tools) -> Option<String> {
        if program(tools).is_none() {
            return Some(
                "no wireguard-go in PATH; name it with --wireguard-go or ROPEWALK_WIREGUARD_GO"
                    .into(),
            );
        }
        let error = programs::require(&[programs::WG]).err()?;
        Some(error.to_string())
    }

    fn start(&self, ground: &Ground<'_>) -> Result<Joined> {
        // Control sockets have one directory for all namespaces: clean-up knows whose they are.
        let number = std::process::id();
        let (site_name, hub_name) = (format!("rw-w-{number}-s"), format!("rw-w-{number}-h"));
        let path = program(ground.tools).context("wireguard-go is gone")?;
        let start = |namespace: &Namespace, name: &str| {
            let program = namespace.program(&path).args(["-f", name]);
            program.start(ground.directory, name)
        };
        let mut site = start(ground.site, &site_name)?;
        let mut hub = start(ground.hub, &hub_name)?;
        await_socket(&site_name, &mut site)?;
        await_socket(&hub_name, &mut hub)?;
        let site_key = KeyPair::make(&ground.directory.join("site.wg"))?;
        let hub_key = KeyPair::make(&ground.directory.join("hub.wg"))?;
        let endpoint = format!("{HUB}:{PORT}");
        let address = format!("addr add {SITE_INNER}/24");
        let set = Settings {
            own: &site_key,
            peer: &hub_key,
            allowed: "0.0.0.0/0",
            endpoint: Some(&endpoint),
        };
        set.apply(ground.site, &site_name, &address)?;
        let allowed = format!("{SITE_INNER}/32");
        let address = format!("addr add {HUB_INNER}/24");
        let set = Settings {
            own: &hub_key,
            peer: &site_key,
            allowed: &allowed,
            endpoint: None,
        };
        set.apply(ground.hub, &hub_name, &address)?;
        Ok(Joined {
            site,
            hub,
            interface: site_name,
        })
    }
}

fn program(tools: &Tools) -> Option<PathBuf> {
    super::program(tools.wireguard_go.as_ref(), "wireguard-go")
}

struct KeyPair {
    private: PathBuf,
    public: String,
}

impl KeyPair {
    fn make(file: &Path) -> Result<Self> {
        let private = Program::new("wg").arg("genkey").success(LIMIT)?;
        let public = Program::new("wg").arg("pubkey").input(private.clone());
        let public = public.success(LIMIT)?.trim().to_owned();
        std::fs::write(file, private)?;
        Ok(Self {
            private: file.to_owned(),
            public,
        })
    }
}

/// One end's settings.
struct Settings<'a> {
    own: &'a KeyPair,
    peer: &'a KeyPair,
    allowed: &'a str,
    endpoint: Option<&'a str>,
}

impl Settings<'_> {
    fn apply(&self, namespace: &Namespace, interface: &str, address: &str) -> Result<()> {
        let mut set = namespace
            .program("wg")
            .args(["set", interface, "listen-port", PORT, "private-key"])
            .arg(&self.own.private)
            .args(["peer", &self.peer.public, "allowed-ips", self.allowed]);
        if let Some(endpoint) = self.endpoint {
            set = set.args(["endpoint", endpoint]);
        }
        set.success(LIMIT)?;
        namespace.ip(&format!(
            "{address} dev {interface}\nlink set {interface} up mtu {MTU}\n"
        ))
    }
}

fn await_socket(name: &str, process: &mut Process) -> Result<()> {
    let path = Path::new(WIREGUARD_DIR).join(format!("{name}.sock"));
    let end = Instant::now() + UP_LIMIT;
    while !path.exists() {
        if !process.is_running() || Instant::now() > end {
            bail!(
                "wireguard-go made no {}:\n{}",
                path.display(),
                process.log_tail()
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

const PORT: &str = "51820";
/// What `wg-quick` would set over a path of 1,500 bytes.
const MTU: u32 = 1_420;
