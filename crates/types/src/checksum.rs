//! The internet checksum (RFC 1071), as far as headers are changed or written here.

/// Follows the change of one 16-bit word in the checksum `field` (RFC 1624 §3, equation 3).
pub fn update(field: &mut [u8], old: u16, new: u16) {
    let before = u16::from_be_bytes([field[0], field[1]]);
    let sum = u32::from(!before) + u32::from(!old) + u32::from(new);
    field[..2].copy_from_slice(&(!fold(sum)).to_be_bytes());
}

/// Sum of `bytes` as 16-bit words, added to `sum`; an odd last byte is padded with zero. Sums of up
/// to 64 KiB do not overflow.
pub fn add(sum: u32, bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
    bytes
        .chunks(2)
        .map(|pair| u32::from(word(pair)))
        .sum::<u32>()
        + sum
}

/// The sum as 16 bits, not complemented.
pub fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Computes the checksum of TCP or UDP in a whole IPv4 packet, whose upper-layer header is at `offset`. Whether the
/// packet has one. What was in its place does not matter.
///
/// Source: RFC 9293 §3.1, RFC 768.
pub fn complete(packet: &mut [u8], protocol: u8, offset: usize) -> bool {
    let at = match protocol {
        6 => offset + 16,
        17 => offset + 6,
        _ => return false,
    };
    let (length, Some(field)) = (packet.len() - offset, packet.get_mut(at..at + 2)) else {
        return false;
    };
    field.fill(0);
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    let pseudo = u32::from(protocol) + u32::from(length);
    let sum = !fold(add(add(pseudo, &packet[12..20]), &packet[offset..]));
    // Zero would mean none for UDP, and equals all ones otherwise.
    packet[at..at + 2].copy_from_slice(&if sum == 0 { u16::MAX } else { sum }.to_be_bytes());
    true
}
