//! Coefficients: a hash, so that a header of ten bytes says which.

/// The coefficient of packet `number` in the repair symbol with `seed`: never zero.
pub fn coefficient(seed: u8, number: u16) -> u8 {
    let mixed = (u32::from(number) + 1)
        .wrapping_mul(0x9e37_79b1)
        .wrapping_add((u32::from(seed) + 1).wrapping_mul(0x85eb_ca6b));
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d);
    1 + ((mixed ^ (mixed >> 12)) % 255).to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_spread_and_never_zero() {
        let mut seen = [0; 256];
        for number in 0..u16::MAX {
            seen[usize::from(coefficient(7, number))] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(
            seen[1..].iter().all(|&n| (150..400).contains(&n)),
            "{seen:?}"
        );
    }
}
