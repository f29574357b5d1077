//! `ropewalk hub`: runs a hub, and prepares one on first use.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Context;
use clap::Args;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ropewalk_types::Random;

use super::{Global, output};
use crate::service::restarts;
use crate::{key_file, logging, service};
use ropewalk_config::WrongUsage;
use ropewalk_config::hub::{TCP_PORT, UDP_PORT, any_address};
use ropewalk_config::template::{self, HubTemplate};
use ropewalk_config::values::HostPort;
use ropewalk_config::{self as config, HubConfig};
use ropewalk_host::files;

const EXAMPLES: &str = "Examples:
  ropewalk hub --init --public hub.example.org:4443
                                     write key and configuration, start nothing
  ropewalk hub                       run; on first use, write both with defaults first
  ropewalk hub --config ./hub.toml   somewhere else; --init first
  systemctl enable --now ropewalk-hub
                                     always, with the Debian package

Open UDP port 4443 and TCP port 443 in the firewall of your provider, then run
`ropewalk invite NAME` for each site. Stop with Ctrl-C; forwarding, firewall table and
interface are removed again. SIGHUP reads the sites again. SIGUSR2 stops it for a restart: the
firewall table stays until the next start, and connections go on.";

/// Run a hub: the end with the good connection
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Hub {
    /// Write key and configuration if missing, and stop there
    #[arg(long)]
    init: bool,
    /// Where sites reach this hub, for a new configuration; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    public: Vec<HostPort>,
}

impl Hub {
    /// Runs until stopped by a signal, or only prepares.
    ///
    /// # Errors
    /// The configuration is wrong, or the hub cannot start.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let path = global
            .config
            .as_deref()
            .unwrap_or_else(|| Path::new(config::HUB_CONFIG));
        if !self.init && global.config.is_some() && !path.exists() {
            // A slip of the pen must not make another hub.
            let path = path.display();
            return Err(WrongUsage(format!(
                "the configuration {path} is missing; write it with `ropewalk hub --init --config {path}`"
            ))
            .into());
        }
        if !self.init {
            is_no_site(path, Path::new(config::SITE_CONFIG))?;
        }
        if !self.init && !restarts::wait("hub", path)? {
            return Ok(());
        }
        let config = self.prepare(path)?;
        if self.init {
            let option = global.config_option();
            output::note(&format!(
                "next: open UDP 4443 and TCP 443 (or the ports in the configuration), then `ropewalk hub{option}` and `ropewalk invite NAME{option}`"
            ));
            return Ok(());
        }
        logging::start(global.verbose, global.log_format, &config.common.log)?;
        service::run_hub(path, config)
    }

    fn prepare(&self, path: &Path) -> anyhow::Result<HubConfig> {
        if !path.exists() {
            let text = template::hub(&new_hub(&self.public)?);
            files::create_parent(path)?;
            files::write_atomically(path, text.as_bytes(), files::CONFIGURATION, false)
                .with_context(|| format!("cannot write {}", path.display()))?;
            output::note(&format!("wrote {}", path.display()));
        } else if !self.public.is_empty() {
            output::note(&format!(
                "{} exists: --public has no effect; change `public` in [listen] there",
                path.display()
            ));
        } else if self.init {
            output::note(&format!("{} exists and is kept", path.display()));
        }
        let config = config::load_hub(path).context("the configuration is not usable")?;
        let (identity, new) = key_file::load_or_create(&config.common.key_file)?;
        if new {
            let file = config.common.key_file.display();
            output::note(&format!(
                "wrote {file}; public key {}",
                identity.public_key()
            ));
        }
        Ok(config)
    }
}

/// A machine that is a site becomes a hub only when somebody says so.
fn is_no_site(hub: &Path, site: &Path) -> Result<(), WrongUsage> {
    if hub.exists() || !site.exists() {
        return Ok(());
    }
    Err(WrongUsage(format!(
        "this machine is a site ({}) and no hub; run `ropewalk up` for the site, or `ropewalk hub --init` to make a hub \
         of this machine as well",
        site.display()
    )))
}

/// A configuration that fits this machine.
fn new_hub(public: &[HostPort]) -> anyhow::Result<HubTemplate> {
    let (listen, tcp_listen) = listen(public);
    let [pool_v4, pool_v6] = random_pools()?;
    Ok(HubTemplate {
        listen,
        tcp_listen,
        public: public.to_vec(),
        pool_v4,
        pool_v6,
    })
}

/// Addresses for UDP and TCP that suit this machine and where it is said to be reached.
pub(super) fn listen(public: &[HostPort]) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    let port = public.first().map_or(UDP_PORT, |endpoint| endpoint.port);
    // A web server may sit on 443: then TLS takes the number of the UDP port.
    let free = std::net::TcpListener::bind(any_address(TCP_PORT).as_slice()).is_ok();
    if !free {
        output::note(&format!(
            "TCP port {TCP_PORT} is taken or not permitted: TLS will use {port}, which fewer \
             networks let through"
        ));
    }
    let tcp_port = if free { TCP_PORT } else { port };
    (any_address(port), any_address(tcp_port))
}

/// An IPv4 and an IPv6 pool that overlap with nothing this machine has.
pub(super) fn random_pools() -> anyhow::Result<[IpNet; 2]> {
    let mut seed = [0; 8];
    ropewalk_crypto::rand::fill(&mut seed)
        .ok()
        .context("the system gave no random numbers")?;
    let mut random = Random::new(u64::from_le_bytes(seed));
    Ok([
        free_pool(&mut random, &service::network::local_networks()),
        unique_local_pool(&mut random),
    ])
}

/// Tries for a pool that overlaps nothing; the last one is taken as it is.
const POOL_TRIES: usize = 64;
/// Bits of the IPv4 pool's prefix: 4,093 sites.
const POOL_V4_PREFIX: u8 = 20;

/// A random network of 10.0.0.0/8 outside the parts that routers and clouds prefer, overlapping
/// nothing this machine has.
fn free_pool(random: &mut Random, taken: &[IpNet]) -> IpNet {
    let mut pool = IpNet::V4(Ipv4Net::default());
    for _ in 0..POOL_TRIES {
        let second = 64 + (random.next_u64() % 190) as u8;
        let third = (random.next_u64() % 16) as u8 * 16;
        let ip = IpAddr::from([10, second, third, 0]);
        pool = IpNet::new(ip, POOL_V4_PREFIX).unwrap_or(pool);
        if !taken
            .iter()
            .any(|net| service::network::overlap(net, &pool))
        {
            break;
        }
    }
    pool
}

/// A unique local network with a random global identifier (RFC 4193 §3.2).
fn unique_local_pool(random: &mut Random) -> IpNet {
    let bits = random.next_u64() & ((1 << 40) - 1);
    let address = (0xfd_u128 << 120) | (u128::from(bits) << 80);
    Ipv6Net::new(address.into(), 64).map_or(IpNet::V6(Ipv6Net::default()), IpNet::V6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_becomes_a_hub_only_when_somebody_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let [hub, site] = ["hub.toml", "site.toml"].map(|name| directory.path().join(name));
        assert!(is_no_site(&hub, &site).is_ok(), "neither is there");
        std::fs::write(&site, "").unwrap();
        let refused = is_no_site(&hub, &site).unwrap_err().to_string();
        assert!(refused.contains("ropewalk hub --init"), "{refused}");
        std::fs::write(&hub, "").unwrap();
        assert!(is_no_site(&hub, &site).is_ok(), "it is both");
    }

    #[test]
    fn new_pools_are_private_and_overlap_nothing() {
        let taken: Vec<IpNet> = vec!["10.64.0.0/10".parse().unwrap()];
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let pool = free_pool(&mut random, &taken);
            assert!(!service::network::overlap(&pool, &taken[0]), "{pool}");
            assert!(pool.to_string().starts_with("10."));
            let text = unique_local_pool(&mut random).to_string();
            assert!(text.starts_with("fd") && text.ends_with("::/64"), "{text}");
        }
    }
}
