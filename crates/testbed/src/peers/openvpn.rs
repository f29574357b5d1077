//! OpenVPN between two points, over UDP or TCP: TLS with self-signed certificates, each end
//! knowing the other's fingerprint.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Ground, HUB_INNER, Joined, LIMIT, Peer, SITE_INNER, Tools, await_interface};
use crate::namespace::Namespace;
use crate::process::{Process, Program};
use crate::programs::{self, Requirement};
use crate::topology::HUB;

/// The peer.
#[derive(Debug)]
pub(super) struct OpenVpn {
    name: &'static str,
    /// Protocol of hub and site as `--proto` takes it.
    protocols: [&'static str; 2],
}

impl OpenVpn {
    pub(super) const UDP: Self = Self {
        name: "openvpn-udp",
        protocols: ["udp4", "udp4"],
    };
    pub(super) const TCP: Self = Self {
        name: "openvpn-tcp",
        protocols: ["tcp4-server", "tcp4-client"],
    };
}

impl Peer for OpenVpn {
    fn name(&self) -> &'static str {
        self.name
    }

    fn obstacle(&self, _tools: &Tools) -> Option<String> {
        let error = programs::require(&[OPENVPN, OPENSSL]).err()?;
        Some(error.to_string())
    }

    fn start(&self, ground: &Ground<'_>) -> Result<Joined> {
        let site = Certificate::make(ground.directory, "openvpn-site")?;
        let hub = Certificate::make(ground.directory, "openvpn-hub")?;
        let (site_inner, hub_inner) = (SITE_INNER.to_string(), HUB_INNER.to_string());
        let address = HUB.to_string();
        let [hub_protocol, site_protocol] = self.protocols;
        let listening = |namespace: &Namespace| {
            common(namespace, &hub, &site)
                .args(["--proto", hub_protocol, "--local", &address])
                .args(["--lport", PORT, "--tls-server", "--dh", "none"])
                .args(["--ifconfig", &hub_inner, &site_inner])
        };
        let calling = |namespace: &Namespace| {
            common(namespace, &site, &hub)
                .args(["--proto", site_protocol, "--remote", &address, PORT])
                .args(["--nobind", "--tls-client"])
                .args(["--ifconfig", &site_inner, &hub_inner])
        };
        let start = |program: Program, name: &str| -> Result<Process> {
            program.start(ground.directory, name)
        };
        let mut hub = start(listening(ground.hub), "openvpn-hub")?;
        await_interface(ground.hub, INTERFACE, &mut hub)?;
        let mut site = start(calling(ground.site), "openvpn-site")?;
        await_interface(ground.site, INTERFACE, &mut site)?;
        Ok(Joined {
            site,
            hub,
            interface: INTERFACE.into(),
        })
    }
}

/// What both ends say. The kernel's data channel is off: it may be there on one machine only.
fn common(namespace: &Namespace, own: &Certificate, other: &Certificate) -> Program {
    namespace
        .program("openvpn")
        .args(["--dev", INTERFACE, "--dev-type", "tun", "--disable-dco"])
        .args(["--connect-retry", "1", "1", "--verb", "3"])
        .args(["--data-ciphers", "AES-256-GCM", "--cert"])
        .arg(&own.certificate)
        .arg("--key")
        .arg(&own.key)
        .args(["--peer-fingerprint", &other.fingerprint])
}

/// A self-signed certificate.
pub(super) struct Certificate {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    fingerprint: String,
}

impl Certificate {
    pub(super) fn make(directory: &Path, name: &str) -> Result<Self> {
        let certificate = directory.join(format!("{name}.crt"));
        let key = directory.join(format!("{name}.key"));
        Program::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
            .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-subj", &format!("/CN={name}"), "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .success(LIMIT)?;
        let text = Program::new("openssl")
            .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
            .arg(&certificate)
            .success(LIMIT)?;
        let (_, fingerprint) = text
            .trim()
            .split_once('=')
            .context("openssl printed no fingerprint")?;
        Ok(Self {
            fingerprint: fingerprint.to_owned(),
            certificate,
            key,
        })
    }
}

const OPENVPN: Requirement = Requirement {
    program: "openvpn",
    package: "openvpn",
};
pub(super) const OPENSSL: Requirement = Requirement {
    program: "openssl",
    package: "openssl",
};
const INTERFACE: &str = "ovpn0";
const PORT: &str = "1194";
