//! Affinity: which client keeps its uplink to which site, as sets and chains of the firewall table.
//!
//! A set per uplink holds pairs of client and site. Where only sites count that a client opens, a web
//! site comes into the set by the first connection after a pause: a person has opened a page. The
//! connections that follow at once fetch what the page is put together from, and are spread, unless
//! they go to a site in the set. Traffic that is not of the web has no such pattern, and is kept.
//!
//! Source: own measurement of page load times by kept sites (docs/decisions/balance.md).

use std::fmt::Write;
use std::time::Duration;

use ropewalk_core::balance::affinity::{PAUSE, WEB_PORTS};

use super::marks::TABLE;
use super::members::{FAMILIES, Family, Member};
use super::text::Chain;
use ropewalk_config::balance::{Kept, Rule};

/// Most pairs of client and site that are remembered per uplink and family; flows beyond that go
/// without affinity. More: more clients keep their uplink, memory of the kernel.
const PAIRS_MAX: usize = 65_536;
/// Most clients that are remembered as opening a page, per family. More: memory of the kernel.
const CLIENTS_MAX: usize = 65_536;

/// Which sites are kept, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Affinity {
    /// After a client's last new connection; zero for not at all.
    pub time: Duration,
    /// Sites, where no rule says something else.
    pub sites: Kept,
}

impl Affinity {
    /// To which sites the flows of a rule, or of none, keep their uplinks; `None` is to none.
    #[must_use]
    pub fn of(&self, rule: Option<&Rule>) -> Option<Kept> {
        if self.time.is_zero() {
            return None;
        }
        match rule.and_then(|rule| rule.affinity) {
            Some(false) => None,
            Some(true) => Some(Kept::All),
            None => Some(self.sites),
        }
    }

    /// The sets, empty.
    pub fn declare(&self, out: &mut String, members: &[Member]) {
        let timeout = self.time.as_secs().max(1);
        for family in FAMILIES {
            let ip = family.nft();
            for member in members {
                let _ = writeln!(
                    out,
                    "\tset {} {{ typeof {ip} saddr . {ip} daddr; size {PAIRS_MAX}; \
                     flags dynamic,timeout; timeout {timeout}s; }}",
                    pairs(family, member.number)
                );
            }
            let _ = writeln!(
                out,
                "\tset {} {{ typeof {ip} saddr; size {CLIENTS_MAX}; \
                 flags dynamic,timeout; timeout {}s; }}",
                opening(family),
                PAUSE.as_secs()
            );
        }
    }
}

/// The chain that gives a flow the uplink which its turn says.
#[must_use]
pub fn entry(kept: Option<Kept>, family: Family, number: u8) -> String {
    match kept {
        None => format!("use_{number}"),
        Some(Kept::Opened) => format!("open{}_{number}", family.digit()),
        Some(Kept::All) => keep(family, number),
    }
}

/// Gives flows to kept sites their uplink.
#[must_use]
pub fn known(family: Family, number: u8) -> String {
    let (site, pairs) = (site(family), pairs(family, number));
    format!("{site} @{pairs} goto {}", keep(family, number))
}

/// The chains of an uplink that [`entry`] and [`known`] lead to.
#[must_use]
pub fn chains(family: Family, number: u8) -> [Chain; 2] {
    let (ip, opening) = (family.nft(), opening(family));
    let [http, https] = WEB_PORTS;
    let web = format!("meta l4proto {{ tcp, udp }} th dport {{ {http}, {https} }}");
    let noted = format!("update @{opening} {{ {ip} saddr }}");
    let taken = format!("goto use_{number}");
    let keeping = vec![
        format!("{web} {noted}"),
        format!("update @{} {{ {} }}", pairs(family, number), site(family)),
        taken.clone(),
    ];
    let opened = vec![
        format!("{web} {ip} saddr @{opening} {noted} {taken}"),
        format!("goto {}", keep(family, number)),
    ];
    let open = entry(Some(Kept::Opened), family, number);
    [(keep(family, number), "", keeping), (open, "", opened)]
}

/// Lets the clients of these uplinks choose anew for every site.
#[must_use]
pub fn let_go(numbers: &[u8]) -> String {
    let mut out = String::new();
    for number in numbers {
        for family in FAMILIES {
            forget(&mut out, family, *number);
        }
    }
    out
}

/// Forgets whom an uplink's set names.
pub fn forget(out: &mut String, family: Family, number: u8) {
    let _ = writeln!(out, "flush set inet {TABLE} {}", pairs(family, number));
}

/// Client and site: servers of one site are seldom farther apart than a /24, or a /48.
const fn site(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip saddr . ip daddr and 255.255.255.0",
        Family::V6 => "ip6 saddr . ip6 daddr and ffff:ffff:ffff::",
    }
}

fn keep(family: Family, number: u8) -> String {
    format!("keep{}_{number}", family.digit())
}

fn pairs(family: Family, number: u8) -> String {
    format!("clients{}_{number}", family.digit())
}

fn opening(family: Family) -> String {
    format!("opening{}", family.digit())
}
