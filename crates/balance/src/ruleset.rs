//! The firewall table: chooses an uplink for each new flow and remembers it in the connection's
//! mark.
//!
//! A packet of a known flow meets two rules at most. The first lets answers from the uplinks pass,
//! which need no mark. By the second the connection's mark leads, through the map `restore`, to the
//! chain that marks the packet for the routing rules. Only the first packet of a flow goes on to
//! the rules of the configuration. Then it meets the sets that hold which client uses which uplink
//! for which site, and at last the table of places that `numgen` walks through. Address translation
//! is by `snat`, not `masquerade`. With `masquerade` the kernel forgets connections when the
//! interface goes down, and nobody could tell the clients.
//!
//! Invariant: [`frame`] and [`update`] may be carried out again at any time. They keep sets and
//! connections. The walk through the places begins anew with a new frame only. All is in one table
//! and one transaction.

use std::collections::BTreeSet;
use std::fmt::Write;

use ropewalk_core::balance::{SLOTS, UPLINKS_MAX};
use serde::{Deserialize, Serialize};

use super::kept::{self, Affinity};
use super::marks::{BALANCED, KEY_MASK, OWN, TABLE, key};
use super::members::{FAMILIES, Family, Member, WayId};
use super::split::Split;
use super::text::{Chain, port_list, set};
use ropewalk_config::balance::{Kept, Rule};

/// Most addresses of the names of a rule, per family; others do not follow the rule. More: memory
/// of the kernel.
const NAMES_MAX: usize = 4_096;
/// The chain that every packet from elsewhere comes to first; never without rules.
pub const ENTRANCE: &str = "arriving";
/// Tells both ends that a TCP connection is over.
const RESET: &str = "reject with tcp reset";
/// How long the address of a name counts in the firewall; it is looked up again long before.
/// Longer: names keep their addresses while this program is held up, stale addresses stay.
const NAMES_VALID: &str = "1h";

/// What the table is made from.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// All uplinks, those that are away included.
    pub members: &'a [Member],
    /// Ways whose flows are to end.
    pub refused: &'a BTreeSet<WayId>,
    /// Rules of the configuration.
    pub rules: &'a [Rule],
    /// Which uplink comes at each place, for all flows and then for each rule.
    pub groups: Vec<Group>,
    /// To which sites clients keep their uplinks.
    pub affinity: Affinity,
    /// The tunnel that only some flows go beside; without it every flow is spread.
    pub split: Option<&'a Split>,
}

/// A table of places per family; empty when the group has no uplink there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Numbers of uplinks by [`Family`].
    pub places: [Vec<u8>; 2],
}

/// Removes the table, whether or not there is one.
#[must_use]
pub fn remove() -> String {
    format!("table inet {TABLE} {{\n}}\ndelete table inet {TABLE}\n")
}

/// Everything but the elements that [`update`] sets: declares what is missing, and replaces all rules.
#[must_use]
pub fn frame(view: &View<'_>) -> String {
    let mut out = String::new();
    let chains = chains(view);
    let _ = writeln!(out, "table inet {TABLE} {{");
    // A map of a fixed size is a plain table, which every packet looks into.
    let _ = writeln!(
        out,
        "\tmap restore {{ type mark : verdict; size {}; }}",
        UPLINKS_MAX + 3
    );
    for (group, _) in view.groups.iter().enumerate() {
        for family in FAMILIES {
            let digit = family.digit();
            let _ = writeln!(
                out,
                "\tmap places{digit}_{group} {{ typeof numgen inc mod {SLOTS} : verdict; }}"
            );
        }
    }
    declare_sets(&mut out, view);
    for (name, hook, _) in &chains {
        let _ = writeln!(out, "\tchain {name} {{ {hook} }}");
    }
    out.push_str("}\n");
    for (name, _, _) in &chains {
        let _ = writeln!(out, "flush chain inet {TABLE} {name}");
    }
    let _ = writeln!(out, "table inet {TABLE} {{");
    for (name, _, rules) in &chains {
        let _ = writeln!(out, "\tchain {name} {{");
        for rule in rules {
            let _ = writeln!(out, "\t\t{rule}");
        }
        out.push_str("\t}\n");
    }
    out.push_str("}\n");
    out
}

/// What changes with weights and with the health of uplinks: only elements of maps and sets.
#[must_use]
pub fn update(view: &View<'_>) -> String {
    let mut out = format!("flush map inet {TABLE} restore\n");
    let restore = view.members.iter().map(|member| {
        let refused = FAMILIES.map(|family| view.refused.contains(&(member.number, family)));
        let target = match refused {
            [false, false] => format!("mark_{}", member.number),
            [true, false] => format!("lost4_{}", member.number),
            [false, true] => format!("lost6_{}", member.number),
            [true, true] => "lost".to_owned(),
        };
        format!("{:#x} : goto {target}", key(member.number))
    });
    let in_tunnel = view.split.map(|_| Split::restore());
    let restore = restore.chain(in_tunnel.into_iter().flatten());
    elements(&mut out, "restore", restore.collect());
    for (index, group) in view.groups.iter().enumerate() {
        for family in FAMILIES {
            let name = format!("places{}_{index}", family.digit());
            let _ = writeln!(out, "flush map inet {TABLE} {name}");
            let kept = kept(view, index);
            let pick = |(place, number): (usize, &u8)| {
                format!("{place} : goto {}", kept::entry(kept, family, *number))
            };
            let places = group.places[family as usize].iter().enumerate();
            elements(&mut out, &name, places.map(pick).collect());
        }
    }
    for member in view.members {
        for family in FAMILIES {
            // Clients of an uplink that gets no new flows are not to come back to it.
            let idle = |group: &Group| !group.places[family as usize].contains(&member.number);
            if view.groups.iter().all(idle) {
                kept::forget(&mut out, family, member.number);
            }
        }
    }
    if let Some(split) = view.split {
        split.update(&mut out);
    }
    out
}

fn elements(out: &mut String, map: &str, elements: Vec<String>) {
    if !elements.is_empty() {
        let list = elements.join(", ");
        let _ = writeln!(out, "add element inet {TABLE} {map} {{ {list} }}");
    }
}

/// Replaces the addresses of the names of a rule.
#[must_use]
pub fn names_update(rule: usize, addresses: &[std::net::IpAddr]) -> String {
    let mut out = String::new();
    for family in FAMILIES {
        let of_family = addresses.iter().filter(|ip| Family::of(**ip) == family);
        let list: Vec<String> = of_family.take(NAMES_MAX).map(ToString::to_string).collect();
        let name = names(family, rule);
        let _ = writeln!(out, "flush set inet {TABLE} {name}");
        elements(&mut out, &name, list);
    }
    out
}

fn declare_sets(out: &mut String, view: &View<'_>) {
    view.affinity.declare(out, view.members);
    for (index, rule) in view.rules.iter().enumerate() {
        if rule.domains.is_empty() {
            continue;
        }
        for family in FAMILIES {
            let (name, ip) = (names(family, index), family.nft());
            let _ = writeln!(
                out,
                "\tset {name} {{ typeof {ip} daddr; size {NAMES_MAX}; flags timeout; \
                 timeout {NAMES_VALID}; }}"
            );
        }
    }
}

fn chains(view: &View<'_>) -> Vec<Chain> {
    let mut lost = vec![
        // The refusals themselves, which belong to the same connection.
        "ct state related return".to_owned(),
        format!("meta l4proto tcp ct state established {RESET}"),
        // All else is about to be forgotten, and takes another uplink then: a handshake with its
        // next packet, which a refusal would end.
        "drop".to_owned(),
    ];
    if !view.members.is_empty() {
        // What still comes in, such as what a portal answers to a probe, does no harm.
        lost.insert(
            1,
            format!("iifname {{ {} }} return", names_of(view.members)),
        );
    }
    let refuse = vec![
        format!("meta l4proto tcp {RESET}"),
        "reject with icmpx admin-prohibited".to_owned(),
    ];
    let mut chains: Vec<Chain> = vec![
        ("lost".to_owned(), "", lost),
        ("refuse".to_owned(), "", refuse),
    ];
    for member in view.members {
        chains.extend(member_chains(member));
    }
    for (index, _) in view.groups.iter().enumerate() {
        chains.push(group_chain(view, index));
    }
    let mut choose = Vec::new();
    for (index, rule) in view.rules.iter().enumerate() {
        let conditions = conditions(rule, index);
        let to_group = |line: String| format!("{line} goto group_{}", index + 1);
        choose.extend(conditions.into_iter().map(to_group));
    }
    choose.push("goto group_0".to_owned());
    chains.push(("choose".to_owned(), "", choose));
    if let Some(split) = view.split {
        chains.extend(split.chains());
    }
    chains.extend(hooks(view));
    chains
}

fn member_chains(member: &Member) -> Vec<Chain> {
    let (number, value) = (member.number, key(member.number));
    let mark = |what: &str| format!("{what} set {what} and {:#x} or {value:#x}", !KEY_MASK);
    let mut out = vec![
        (format!("mark_{number}"), "", vec![mark("meta mark")]),
        (
            format!("use_{number}"),
            "",
            vec![mark("ct mark"), mark("meta mark")],
        ),
    ];
    let mut leave = vec![mark("ct mark")];
    for family in FAMILIES {
        let (ip, digit) = (family.nft(), family.digit());
        if let Some(way) = member.way(family) {
            leave.push(format!("snat {ip} to {}", way.address));
        }
        out.extend(kept::chains(family, number));
        let lost = vec![
            format!("meta nfproto ipv{digit} goto lost"),
            format!("goto mark_{number}"),
        ];
        out.push((format!("lost{digit}_{number}"), "", lost));
    }
    out.push((format!("claim_{number}"), "", vec![mark("ct mark")]));
    out.push((format!("leave_{number}"), "", leave));
    out
}

fn group_chain(view: &View<'_>, index: usize) -> Chain {
    let rule = index.checked_sub(1).and_then(|rule| view.rules.get(rule));
    let mut rules = Vec::new();
    if kept(view, index).is_some() {
        for family in FAMILIES {
            let some = view.members.iter().filter(|m| allowed(rule, m));
            rules.extend(some.map(|member| kept::known(family, member.number)));
        }
    }
    for family in FAMILIES {
        let digit = family.digit();
        rules.push(format!(
            "meta nfproto ipv{digit} numgen inc mod {SLOTS} vmap @places{digit}_{index}"
        ));
    }
    match rule {
        Some(rule) if rule.strict => rules.push("goto refuse".to_owned()),
        Some(_) => rules.push("goto group_0".to_owned()),
        None => {}
    }
    (format!("group_{index}"), "", rules)
}

/// To which sites clients of a group keep their uplinks.
fn kept(view: &View<'_>, group: usize) -> Option<Kept> {
    view.affinity
        .of(group.checked_sub(1).and_then(|rule| view.rules.get(rule)))
}

/// Whether flows of a rule may take an uplink; those of no rule may take any.
#[must_use]
pub fn allowed(rule: Option<&Rule>, member: &Member) -> bool {
    let matches = |rule: &Rule| rule.uplinks.iter().any(|p| p.matches(&member.name));
    rule.is_none_or(matches)
}

fn hooks(view: &View<'_>) -> Vec<Chain> {
    let with_name = |target: &str| {
        let all = view.members.iter();
        let list = all.map(|m| format!("\"{}\" : goto {target}_{}", m.name, m.number));
        list.collect::<Vec<_>>().join(", ")
    };
    // Where the main table leads flows that are to be spread.
    let (led_to, first) = match view.split {
        None => (names_of(view.members), "goto choose"),
        Some(split) => (format!("\"{}\"", split.tun), "goto classify"),
    };
    let restore = format!("ct mark and {KEY_MASK:#x} vmap @restore");
    let new = "ct state != new return".to_owned();
    let local = "fib daddr type != unicast return".to_owned();
    let link_local = "ip6 daddr fe80::/10 return".to_owned();
    let first = first.to_owned();
    // Most packets of a download: they go where the main table says, and need no mark.
    let answers = "ct direction reply ct status snat return".to_owned();
    let mut arriving = vec![answers, restore.clone(), new.clone()];
    let mut leaving = vec![
        restore,
        new,
        format!("meta mark and {:#x} != 0 return", BALANCED | OWN),
    ];
    let mut translate = Vec::new();
    if view.members.is_empty() && view.split.is_none() {
        arriving.push("return".to_owned());
        leaving.push("return".to_owned());
    } else {
        match view.split {
            None => arriving.push(format!("iifname vmap {{ {} }}", with_name("claim"))),
            Some(split) => arriving.push(split.claim()),
        }
        // What another route than a default one leads elsewhere stays as it is.
        arriving.push(format!("fib daddr oifname != {{ {led_to} }} return"));
        leaving.push(format!("oifname != {{ {led_to} }} return"));
    }
    if !view.members.is_empty() {
        translate.push(format!("oifname vmap {{ {} }}", with_name("leave")));
    }
    arriving.extend([local.clone(), link_local.clone(), first.clone()]);
    leaving.extend([local, link_local, first]);
    translate.extend(view.split.into_iter().flat_map(Split::translate));
    translate.push(format!(
        "ct mark and {BALANCED:#x} != 0 ct mark set ct mark and {:#x}",
        !KEY_MASK
    ));
    let mut chains = vec![
        (
            "untracked".to_owned(),
            "type filter hook output priority raw;",
            vec![format!("meta mark and {OWN:#x} != 0 notrack")],
        ),
        (
            ENTRANCE.to_owned(),
            "type filter hook prerouting priority mangle;",
            arriving,
        ),
        (
            "leaving".to_owned(),
            "type route hook output priority mangle;",
            leaving,
        ),
        (
            "translate".to_owned(),
            // Before others, who would use the address of whatever interface.
            "type nat hook postrouting priority srcnat - 10;",
            translate,
        ),
    ];
    chains.extend(query_chains(view.members));
    chains
}

/// Names of interfaces as elements of a set.
fn names_of(members: &[Member]) -> String {
    let names = members.iter().map(|member| format!("\"{}\"", member.name));
    names.collect::<Vec<_>>().join(", ")
}

fn query_chains(members: &[Member]) -> Vec<Chain> {
    let queries = queries(members);
    if queries.is_empty() {
        return Vec::new();
    }
    // nft(8) knows the name `dstnat` in one of the two hooks only.
    let hooks = [
        ("query", "type nat hook prerouting priority -110;"),
        ("query_own", "type nat hook output priority -110;"),
    ];
    let chain = |(name, hook): (&str, &'static str)| (name.to_owned(), hook, queries.clone());
    hooks.into_iter().map(chain).collect()
}

/// Queries of names go to the resolver of the uplink that they go out over.
fn queries(members: &[Member]) -> Vec<String> {
    let to = |member: &Member, ip: &std::net::IpAddr| {
        let family = Family::of(*ip);
        format!(
            "meta nfproto ipv{} ct mark and {KEY_MASK:#x} == {:#x} meta l4proto {{ tcp, udp }} \
             th dport 53 dnat {} to {ip}",
            family.digit(),
            key(member.number),
            family.nft(),
        )
    };
    let all = members.iter();
    all.flat_map(|member| member.dns.iter().map(move |ip| to(member, ip)))
        .collect()
}

/// The conditions of a rule, one line per alternative.
fn conditions(rule: &Rule, index: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for family in FAMILIES {
        let (ip, digit) = (family.nft(), family.digit());
        let nets = |nets: &[ipnet::IpNet]| {
            let of_family = nets.iter().filter(|net| Family::of(net.addr()) == family);
            set(of_family.map(ToString::to_string))
        };
        let mut line = format!("meta nfproto ipv{digit}");
        match nets(&rule.sources) {
            Some(list) => line += &format!(" {ip} saddr {list}"),
            None if !rule.sources.is_empty() => continue,
            None => {}
        }
        line += &shared_conditions(rule, ip);
        let mut ends = Vec::new();
        if let Some(list) = nets(&rule.destinations) {
            ends.push(format!(" {ip} daddr {list}"));
        }
        if !rule.domains.is_empty() {
            ends.push(format!(" {ip} daddr @{}", names(family, index)));
        }
        if rule.destinations.is_empty() && rule.domains.is_empty() {
            ends.push(String::new());
        }
        lines.extend(ends.into_iter().map(|end| format!("{line}{end}")));
    }
    lines
}

fn shared_conditions(rule: &Rule, ip: &str) -> String {
    let mut line = String::new();
    let ports = port_list(&rule.ports);
    let protocols = set(rule.protocols.iter().map(ToString::to_string));
    match (protocols, &ports) {
        (Some(list), _) => line += &format!(" meta l4proto {list}"),
        (None, Some(_)) => line += " meta l4proto { tcp, udp }",
        (None, None) => {}
    }
    if let Some(list) = ports {
        line += &format!(" th dport {list}");
    }
    if let Some(list) = set(rule.dscp.iter().map(ToString::to_string)) {
        line += &format!(" {ip} dscp {list}");
    }
    if let Some(list) = set(rule.users.iter().cloned()) {
        line += &format!(" meta skuid {list}");
    }
    if let Some(path) = &rule.cgroup {
        let level = path.split('/').count();
        line += &format!(" socket cgroupv2 level {level} \"{path}\"");
    }
    line
}

fn names(family: Family, rule: usize) -> String {
    format!("names{}_{}", family.digit(), rule + 1)
}

#[cfg(test)]
mod tests {
    use super::super::members::Way;
    use super::super::members::tests::config;
    use super::*;

    fn member(number: u8, name: &str) -> Member {
        Member {
            number,
            name: name.to_owned(),
            ifindex: u32::from(number),
            present: true,
            ways: [
                Some(Way {
                    address: "192.0.2.7".parse().unwrap(),
                    gateway: None,
                }),
                None,
            ],
            held: Vec::new(),
            weight: None,
            metered: false,
            standby: false,
            rank: 0,
            dns: vec!["192.0.2.53".parse().unwrap()],
        }
    }

    fn with_script(rules: &str, check: impl FnOnce(&str, &str)) {
        let config = config(rules);
        let members = [member(1, "a0"), member(2, "b0")];
        let group = Group {
            places: [vec![1, 2, 1], Vec::new()],
        };
        let view = View {
            members: &members,
            refused: &BTreeSet::from([(1, Family::V6), (2, Family::V4), (2, Family::V6)]),
            rules: &config.rules,
            groups: vec![group; 1 + config.rules.len()],
            affinity: Affinity {
                time: config.affinity,
                sites: config.kept,
            },
            split: None,
        };
        check(&frame(&view), &update(&view));
    }

    #[test]
    fn rules_become_one_line_per_family_and_alternative() {
        let rules = "[[rule]]\nname = \"r\"\nuplinks = [\"a*\"]\nports = [\"22\", \"80-90\"]\n\
            destination = [\"192.0.2.0/24\"]\ndomain = [\"example.org\"]\nuser = [\"bob\"]\n\
            dscp = [\"ef\"]\ncgroup = \"a/b\"\nstrict = true\n";
        with_script(rules, |script, _| {
            let shared = "meta l4proto { tcp, udp } th dport { 22, 80-90 }";
            let end = "meta skuid { bob } socket cgroupv2 level 2 \"a/b\"";
            for line in [
                format!(
                    "meta nfproto ipv4 {shared} ip dscp {{ 46 }} {end} ip daddr {{ 192.0.2.0/24 }} goto group_1"
                ),
                format!(
                    "meta nfproto ipv4 {shared} ip dscp {{ 46 }} {end} ip daddr @names4_1 goto group_1"
                ),
                format!(
                    "meta nfproto ipv6 {shared} ip6 dscp {{ 46 }} {end} ip6 daddr @names6_1 goto group_1"
                ),
            ] {
                assert!(script.contains(&line), "{line} is not in:\n{script}");
            }
            assert!(!script.contains("ip6 daddr { }"));
            let group = script.rsplit("chain group_1 {").next().unwrap();
            let group = group.split('}').next().unwrap();
            assert!(group.contains("@clients4_1") && !group.contains("@clients4_2"));
            assert!(script.contains("goto refuse"));
        });
    }

    #[test]
    fn dead_ways_lead_to_refusal_and_their_clients_are_forgotten() {
        with_script("", |_, update| {
            assert!(update.contains("0x11000000 : goto lost6_1, 0x12000000 : goto lost"));
            assert!(update.contains("{ 0 : goto open4_1, 1 : goto open4_2, 2 : goto open4_1 }"));
            assert!(update.contains("flush set inet ropewalk_balance clients6_1\n"));
            assert!(!update.contains("clients4_1\n"), "{update}");
        });
    }

    #[test]
    fn affinity_can_be_off_for_all_and_queries_follow_their_uplink() {
        with_script("[balance]\naffinity_minutes = 0\n", |script, update| {
            assert!(!script.contains("@clients4_1 goto") && !update.contains(" : goto open"));
            assert!(update.contains("0 : goto use_1, 1 : goto use_2"));
            assert!(script.contains(
                "== 0x12000000 meta l4proto { tcp, udp } th dport 53 dnat ip to 192.0.2.53"
            ));
        });
    }
}
