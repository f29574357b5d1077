//! `via` of a service class, and `[direct]`: which flows of a site go beside the tunnel, and how they
//! are spread over the uplinks.
//!
//! Invariant: whether a flow goes beside the tunnel depends on nothing that differs between its
//! packets.

use ropewalk_core::protect::{Classes, Rule};

use super::balance::{self, BalanceConfig};
use super::class::{VIA_EXAMPLE, Via};
use super::common::Common;
use super::reader::Section;
use super::uplinks::UplinkRules;

/// What a site sends beside its tunnel.
#[derive(Clone, Debug, PartialEq)]
pub struct Direct {
    /// How it is spread over the uplinks.
    pub spread: BalanceConfig,
    /// The classes in the order in which they are tried.
    pub classes: Vec<ClassWay>,
    /// The way of flows that belong to no class.
    pub others: Via,
}

/// The way of the flows of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassWay {
    /// Name of the class.
    pub name: String,
    /// Which flows belong to it, by their first packets.
    pub rule: Rule,
    /// Their way.
    pub via: Via,
}

/// Reads `[direct]`, `[probe]` and `[[rule]]` of a site; `None` when everything goes through the
/// tunnel.
pub(super) fn read(
    root: &mut Section<'_>,
    common: &Common,
    uplinks: &UplinkRules,
) -> Option<Direct> {
    let (spread, others) = root.section("direct", |section| {
        let spread = balance::read_sharing(section, common.clone(), false);
        (spread, read_others(section, &common.classes))
    });
    let spread = BalanceConfig {
        uplinks: uplinks.clone(),
        ..balance::read_surroundings(root, spread)
    };
    // The first class is the default one.
    let classes = common.classes.iter().skip(1).zip(&common.vias);
    let classes: Vec<ClassWay> = classes
        .map(|(class, via)| ClassWay {
            name: class.name.clone(),
            rule: class.rule.clone(),
            via: *via,
        })
        .collect();
    let beside = |via: Via| via != Via::Tunnel;
    let any = beside(others) || classes.iter().any(|class| beside(class.via));
    any.then_some(Direct {
        spread,
        classes,
        others,
    })
}

fn read_others(section: &mut Section<'_>, classes: &Classes) -> Via {
    let names = Via::ALL.map(Via::name);
    let via = section.choice("via", VIA_EXAMPLE, names, str::parse);
    let via: Via = via.unwrap_or_default();
    let sized = classes.iter().find(|class| class.rule.packet_bytes_max > 0);
    if let Some(class) = sized.filter(|_| via != Via::Tunnel) {
        section.reject(
            "via",
            &format!(
                "class {:?} goes by packet_bytes_max, but a way is chosen once for all packets of a \
                 flow",
                class.name
            ),
            "remove packet_bytes_max there, or let the rest go via = \"tunnel\"",
        );
    }
    via
}
