//! `ropewalk portal`: lets a captive portal be passed beside the tunnel, for minutes.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use super::down::Place;
use super::kill_switch::leaves;
use super::{Global, output};
use crate::service::{self, resolve};
use ropewalk_config as config;
use ropewalk_host::changes::{Change, left_over};
use ropewalk_host::kill_switch::{self, State};
use ropewalk_host::portal;
use ropewalk_io::netlink;

const EXAMPLES: &str = "Examples:
  ropewalk portal 5m                   log in to a hotel's network, then use the tunnel
  ropewalk portal 90s --uplink wlan0   over this uplink, if not that with the best default route
  ropewalk portal off                  end it now

Meanwhile programs of this machine may use HTTP, HTTPS and DNS beside the tunnel, all of them: close
what should not. Hosts behind this machine may not. The kernel ends it when the time is over, whatever
has become of this program and of the site.";

/// Longest time. Longer: slower portals; more that leaves beside the tunnel when forgotten.
const TIME_MAX: Duration = Duration::from_secs(3_600);

/// Open HTTP, HTTPS and DNS beside the tunnel for some minutes, to log in to a network
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PortalArgs {
    /// How long: 90s, 5m, at most 60m; `off` ends it
    #[arg(value_name = "TIME", value_parser = parse_time)]
    time: Duration,
    /// The uplink to use
    #[arg(long, value_name = "INTERFACE")]
    uplink: Option<String>,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    if text == "off" {
        return Ok(Duration::ZERO);
    }
    let (number, unit) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        _ => return Err("write 90s, 5m, or off".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{number:?} is no whole number"))?;
    let time = Duration::from_secs(number.saturating_mul(unit));
    if time.is_zero() || time > TIME_MAX {
        return Err("take from 1s to 60m".to_owned());
    }
    Ok(time)
}

impl PortalArgs {
    /// Opens or ends it.
    ///
    /// # Errors
    /// No kill switch is set, no uplink has a default route, or not permitted.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        if !service::has_net_admin() {
            bail!("only root may let traffic past the kill switch; run it as root (sudo)");
        }
        let place = Place::of_site(global, "portal")?;
        if self.time.is_zero() {
            portal::close(&place.tun)?;
            let state = kill_switch::state(&place.tun)?;
            output::note(&closed(state.as_ref()));
            return Ok(());
        }
        let interfaces = netlink::snapshot().context("cannot read the interfaces")?;
        let rules = site_config(global).map(|site| site.uplinks);
        let way = portal::choose(
            &interfaces,
            &place.tun,
            self.uplink.as_deref(),
            &rules.unwrap_or_default(),
        );
        let way = way.with_context(|| match &self.uplink {
            Some(name) => format!("{name} has no default route; see `ip route`"),
            None => "no uplink has a default route: connect one, or name one with --uplink; see `ip route`"
                .to_owned(),
        })?;
        let resolver = resolver(global, &place).or_else(|| way.router());
        portal::open(&place.tun, &way, self.time, resolver)?;
        output::note(&format!(
            "portal open for {}: HTTP, HTTPS and DNS of this machine leave over {} beside the tunnel\n\
             next: open any page that begins with http:// in a browser, and log in; `ropewalk portal off` \
             ends it",
            output::duration(self.time.as_secs_f64()),
            way.uplink,
        ));
        Ok(())
    }
}

fn closed(state: Option<&State>) -> String {
    match state {
        Some(state) => format!("the portal is closed: {}", leaves(&state.local)),
        None => {
            "the portal is closed, and the kill switch is off: traffic may leave beside the tunnel"
                .to_owned()
        }
    }
}

/// The configuration of the site, if it can be read.
fn site_config(global: &Global) -> Option<ropewalk_config::SiteConfig> {
    let path = global.config.as_deref();
    config::load_site(path.unwrap_or_else(|| Path::new(config::SITE_CONFIG))).ok()
}

/// The name server that the network gave, also where this site has put others in its place.
fn resolver(global: &Global, place: &Place) -> Option<IpAddr> {
    let own = site_config(global).map(|site| site.dns).unwrap_or_default();
    let changes = left_over(&service::changes_path(&place.state_dir, "site"));
    let former = changes.unwrap_or_default().into_iter().find_map(|change| {
        if let Change::Resolver { former, .. } = change {
            Some(resolve::listed(&former))
        } else {
            None
        }
    });
    let servers = former.unwrap_or_else(resolve::name_servers);
    let mut servers = servers
        .into_iter()
        .filter(|ip| !ip.is_loopback() && !own.contains(ip));
    servers.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_portal_without_a_kill_switch_does_not_say_that_only_the_tunnel_leaves() {
        assert!(closed(Some(&State::default())).contains("only the tunnel leaves"));
        assert!(!closed(None).contains("only the tunnel"));
        assert!(closed(None).contains("the kill switch is off"));
    }

    #[test]
    fn times_have_a_unit_and_a_bound() {
        let seconds = |text: &str| parse_time(text).map(|time| time.as_secs());
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("5m"), Ok(300));
        assert_eq!(seconds("60m"), Ok(3_600));
        assert_eq!(seconds("off"), Ok(0));
        for text in [
            "",
            "5",
            "m",
            "61m",
            "0s",
            "-1m",
            "5h",
            "99999999999999999999m",
            "5µ",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
