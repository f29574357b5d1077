//! What is combined: a datagram as it was sent, with its length in the place of its number, which
//! whoever decodes it knows.

use ropewalk_gf256::add_multiple;
use ropewalk_wire::DATA_HEADER;

/// Where a datagram carries its number on the path.
const NUMBER: core::ops::Range<usize> = 1..3;

/// Adds `factor` times the symbol of `datagram` to `to`.
pub fn add(to: &mut Vec<u8>, factor: u8, datagram: &[u8]) {
    if to.len() < datagram.len() {
        to.resize(datagram.len(), 0);
    }
    let length = u16::try_from(datagram.len()).unwrap_or(0).to_be_bytes();
    add_multiple(to, factor, &datagram[..NUMBER.start]);
    add_multiple(&mut to[NUMBER], factor, &length);
    add_multiple(&mut to[NUMBER.end..], factor, &datagram[NUMBER.end..]);
}

/// The datagram of a symbol; `None` when it is none: some packet was not what it seemed.
pub fn datagram(mut symbol: Vec<u8>, number: u16) -> Option<Vec<u8>> {
    let length = symbol.get(NUMBER)?;
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    if length < DATA_HEADER || symbol.get(length..)?.iter().any(|&byte| byte != 0) {
        return None;
    }
    symbol.truncate(length);
    symbol[NUMBER].copy_from_slice(&number.to_be_bytes());
    Some(symbol)
}
