//! Numbers and names of this role that other programs on the machine could use too: bits of packet
//! marks, routing tables, places among the routing rules, and the firewall table.

/// Bits 24 to 28 of packet and connection marks say whether a flow is balanced, and its uplink.
pub const KEY_MASK: u32 = 0x1f00_0000;
/// The bit among them that every balanced flow has.
pub const BALANCED: u32 = 0x1000_0000;
/// Bit 29 is on packets of this program: probes, and what makes clients speak. They are not tracked.
pub const OWN: u32 = 0x2000_0000;
/// On connections that may go through the tunnel of a site only, under [`KEY_MASK`]: no uplink's.
pub const TUNNEL_ONLY: u32 = 0x0100_0000;
/// Mark of connections that a class with two ways has sent into the tunnel.
pub const TUNNEL_AUTO: u32 = 0x0200_0000;
/// On connections that came out of the tunnel, under [`KEY_MASK`]: what answers goes back into it.
pub const FROM_TUNNEL: u32 = 0x0300_0000;
/// Group of the tunnel's interface (ip-link(8)): routes into it do not count for balanced flows.
/// `0x5242` is "RB".
pub const TUNNEL_GROUP: u32 = 0x5242;
/// Firewall table (family `inet`).
pub const TABLE: &str = "ropewalk_balance";
/// Place of the rule that lets every route but the default ones count for balanced flows too.
pub const PRIORITY_MAIN: u32 = 5_200;
/// Place of the rules that lead to the table of an uplink.
pub const PRIORITY_UPLINK: u32 = 5_201;
/// Routing table of an uplink, less its number: `0x5242` is "RB".
const ROUTES: u32 = 0x5242_0000;

/// The mark of flows over the uplink with this number, `1..=15`.
#[must_use]
pub const fn key(number: u8) -> u32 {
    BALANCED | (number as u32) << 24
}

/// The number of the uplink in a mark; `None` when the flow is not balanced.
#[must_use]
pub fn number(mark: u32) -> Option<u8> {
    let number = u8::try_from((mark & KEY_MASK & !BALANCED) >> 24).ok()?;
    (mark & BALANCED != 0).then_some(number)
}

/// The routing table of an uplink.
#[must_use]
pub const fn routes(number: u8) -> u32 {
    ROUTES + number as u32
}

/// Whether a routing table is of this role.
#[must_use]
pub const fn is_own_table(table: u32) -> bool {
    table & !0xf == ROUTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_out_of_marks_whatever_the_other_bits_are() {
        for uplink in 1..=15 {
            assert_eq!(number(key(uplink) | 0xe0ab_cdef), Some(uplink));
            assert_eq!(key(uplink) & !KEY_MASK, 0);
            assert!(is_own_table(routes(uplink)));
        }
        assert_eq!(number(!BALANCED), None);
        assert!(!is_own_table(254));
        assert_eq!(OWN & KEY_MASK, 0);
        for tunnel in [TUNNEL_ONLY, TUNNEL_AUTO, FROM_TUNNEL] {
            assert_eq!((tunnel & !KEY_MASK, number(tunnel)), (0, None));
        }
    }
}
