//! A site translates what it sends to its ports of an address that sites share (RFC 7597).
//!
//! The kernel of the site keeps the translations, so the hub keeps nothing of a connection, and another hub that serves
//! the site lets the same packets through. The rules are in a table of their own, which is listed among the changes of
//! this machine and is removed when the site ends. So are the translations, unless the site starts again.
//!
//! Invariant: the rules are those of the block that the hub assigned last.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Context;
use ipnet::IpNet;
use ropewalk_host::Changes;
use ropewalk_io::nft::{self, SitePorts};
use ropewalk_io::{conntrack, counters};
use ropewalk_types::PortBlock;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::network::Tun;

/// How often the rules and the ports in use are looked after. Longer: less work, more time without rules where another
/// program has taken them away, in which connections are not translated.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Connections that find no port cause a line in the log once in this time. Longer: a shorter log.
const FULL_INTERVAL: Duration = Duration::from_mins(1);
/// Start of the name of the table; that of the TUN interface follows.
const TABLE_PREFIX: &str = "ropewalk_ports_";
/// Where packets go that are for many or for a link: they are never translated (RFC 5771, RFC 919).
const NEVER: [(Ipv4Addr, u8); 2] = [(Ipv4Addr::new(224, 0, 0, 0), 4), (Ipv4Addr::BROADCAST, 32)];

/// The rules of a site with a block of ports, if it has one.
pub(super) struct Ports {
    rules: Option<SitePorts>,
    /// Whether the kernel has the rules, as far as is known.
    is_set: bool,
    /// Whether it was told that they cannot be set.
    is_told: bool,
    tick: Interval,
    /// Connections that could not be opened, when that was last looked at; those that were not told; when it was told.
    failed: Option<u64>,
    untold: u64,
    told_at: Option<Instant>,
}

impl Ports {
    /// No block yet.
    pub(super) fn new() -> Self {
        let mut tick = interval(KEEP_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            rules: None,
            is_set: false,
            is_told: false,
            tick,
            failed: None,
            untold: 0,
            told_at: None,
        }
    }

    /// The hub has assigned this block, or none, beside these addresses of the site and of itself. Connections from
    /// another block of before end: the hub would drop their packets.
    pub(super) fn assign(
        &mut self,
        machine: &mut Changes,
        tun: &Tun,
        block: Option<PortBlock>,
        (addresses, hub): (&[IpNet], &[IpAddr]),
    ) {
        let wanted = block.map(|block| rules(tun, block, addresses, hub));
        if wanted == self.rules && self.is_set == wanted.is_some() {
            return;
        }
        let former = std::mem::replace(&mut self.rules, wanted);
        self.failed = counters::untracked();
        match (&self.rules, &former) {
            (Some(rules), _) => {
                let listed = machine.table(&rules.table);
                self.apply(listed);
            }
            (None, Some(former)) => {
                if let Err(error) = nft::remove(&former.table) {
                    tracing::error!(%error, "the address translation of a block of ports that is no longer this site's stays until the end");
                }
                self.is_set = false;
            }
            (None, None) => {}
        }
        // Afterwards: until then packets would make such entries anew.
        if let Some(former) = &former
            && self.rules.as_ref().map(|rules| rules.ports) != Some(former.ports)
        {
            forget(former.ports.0.into());
        }
    }

    /// The shared address that connections have left with, if there is one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.rules.as_ref().map(|rules| IpAddr::V4(rules.ports.0))
    }

    /// Sets the rules. Without them the site works on by its inner address, which the hub may translate.
    fn apply(&mut self, listed: anyhow::Result<()>) {
        let Some(rules) = &self.rules else { return };
        let set = listed.and_then(|()| {
            nft::apply_site(rules)
                .context("cannot translate to the ports of this site; install nftables")
        });
        self.is_set = set.is_ok();
        match set {
            Ok(()) => {
                let (address, first, last) = rules.ports;
                self.is_told = false;
                tracing::info!(%address, first, last, "this site shares an address: connections leave with these ports");
            }
            Err(error) if !self.is_told => {
                self.is_told = true;
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "this site sends from its inner address only, until that succeeds"
                );
            }
            Err(_) => {}
        }
    }

    /// When it is time to look after the rules; never without any.
    pub(super) async fn tick(&mut self) {
        if self.rules.is_none() {
            return std::future::pending().await;
        }
        self.tick.tick().await;
    }

    /// Makes good what other programs took away, and says when connections find no port.
    pub(super) fn keep(&mut self) {
        let Some(rules) = &self.rules else { return };
        let is_gone = matches!(nft::table_handle(&rules.table), Ok(None));
        // A table of before may be there, with the former ports.
        if is_gone || !self.is_set {
            if self.is_set {
                tracing::warn!(
                    "another program has removed the rules for the ports of this site, and the site sets them again"
                );
            }
            self.apply(Ok(()));
        }
        let failed = counters::untracked();
        self.tell(Instant::now(), failed);
    }

    fn tell(&mut self, now: Instant, failed: Option<u64>) {
        let before = std::mem::replace(&mut self.failed, failed);
        let more = failed
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before));
        self.untold += more.unwrap_or_default();
        let waits = |at: Instant| now.duration_since(at) < FULL_INTERVAL;
        if self.untold == 0 || self.told_at.is_some_and(waits) {
            return;
        }
        let (count, ports) = (self.untold, self.rules.as_ref().map(|rules| rules.ports));
        (self.untold, self.told_at) = (0, Some(now));
        if let Some((address, first, last)) = ports {
            tracing::warn!(
                count,
                %address,
                first,
                last,
                "connections could not be opened: all ports of this site are in use to one destination, or the \
                 kernel's table of connections clashed; if this repeats, ask for more ports at the hub"
            );
        }
    }
}

/// Ends the translations of connections that have left with this address. Call it when the rules are gone: until then packets
/// make them anew. Afterwards they would send packets from the address over an uplink.
pub(super) fn forget(address: IpAddr) {
    if let Err(error) = conntrack::forget(&[address], &[]) {
        tracing::debug!(%error, "connections from the former ports stay in the kernel's table");
    }
}

fn rules(tun: &Tun, block: PortBlock, addresses: &[IpNet], hub: &[IpAddr]) -> SitePorts {
    let nets = addresses.iter().map(IpNet::trunc);
    let nets = nets.chain(hub.iter().copied().map(IpNet::from));
    let ipv4 = |net: IpNet| match net {
        IpNet::V4(net) => Some((net.addr(), net.prefix_len())),
        IpNet::V6(_) => None,
    };
    SitePorts {
        table: tun.table_of(TABLE_PREFIX),
        tun: tun.name.clone(),
        ports: (block.address, block.first, block.last),
        inside: nets.filter_map(ipv4).chain(NEVER).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> PortBlock {
        "203.0.113.7:1024-2031".parse().unwrap()
    }

    fn tun() -> Tun {
        Tun {
            name: "rope-none0".to_owned(),
            ifindex: u32::MAX,
        }
    }

    #[test]
    fn inner_addresses_are_reached_untranslated_and_names_of_tables_differ() {
        let nets = ["10.9.3.2/20", "fd00::2/64"].map(|net| net.parse().unwrap());
        let hub = ["10.9.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());
        let rules = rules(&tun(), block(), &nets, &hub);
        let inside: Vec<_> = rules
            .inside
            .iter()
            .map(|(ip, len)| format!("{ip}/{len}"))
            .collect();
        let expected = [
            "10.9.0.0/20",
            "10.9.0.1/32",
            "224.0.0.0/4",
            "255.255.255.255/32",
        ];
        assert_eq!(inside, expected);
        assert_eq!(rules.table, "ropewalk_ports_rope_none0");
        assert_ne!(rules.table, tun().table());
    }

    #[tokio::test]
    async fn connections_that_find_no_port_are_told_once_a_minute_with_their_number() {
        let mut ports = Ports::new();
        ports.rules = Some(rules(&tun(), block(), &[], &[]));
        let start = Instant::now();
        let mut at = |second, failed| {
            ports.tell(start + Duration::from_secs(second), failed);
            (ports.untold, ports.told_at.map(|at| (at - start).as_secs()))
        };
        assert_eq!(
            at(0, Some(50)),
            (0, None),
            "what was before is nothing to tell"
        );
        assert_eq!(at(1, Some(50)), (0, None));
        assert_eq!(at(2, Some(53)), (0, Some(2)));
        assert_eq!(at(3, Some(60)), (7, Some(2)));
        assert_eq!(at(61, Some(61)), (8, Some(2)));
        assert_eq!(at(62, Some(61)), (0, Some(62)));
        assert_eq!(at(200, None), (0, Some(62)), "a kernel that does not say");
    }
}
