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
