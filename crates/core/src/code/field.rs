//! Arithmetic in GF(256), the field of RFC 8681 §3.7.1: x^8 + x^4 + x^3 + x^2 + 1.

const POLYNOMIAL: u16 = 0x11d;

/// Powers of the generator, twice over, and logarithms.
const TABLES: ([u8; 510], [u8; 256]) = {
    let (mut exp, mut log) = ([0; 510], [0; 256]);
    let (mut power, mut n) = (1_u16, 0_u8);
    while n < 255 {
        exp[n as usize] = power.to_le_bytes()[0];
        exp[n as usize + 255] = power.to_le_bytes()[0];
        log[power as usize] = n;
        power <<= 1;
        if power >= 256 {
            power ^= POLYNOMIAL;
        }
        n += 1;
    }
    (exp, log)
};

/// Products of every pair.
static PRODUCTS: [[u8; 256]; 256] = {
    let mut products = [[0; 256]; 256];
    let mut a = 1;
    while a < 256 {
        let mut b = 1;
        while b < 256 {
            products[a][b] = TABLES.0[TABLES.1[a] as usize + TABLES.1[b] as usize];
            b += 1;
        }
        a += 1;
    }
    products
};

/// Product of two elements.
pub fn multiply(a: u8, b: u8) -> u8 {
    PRODUCTS[usize::from(a)][usize::from(b)]
}

/// The element whose product with `a` is one; zero for zero.
pub fn inverse(a: u8) -> u8 {
    if a == 0 {
        return 0;
    }
    TABLES.0[255 - usize::from(TABLES.1[usize::from(a)])]
}

/// Adds `factor` times `from` to the front of `to`, which must be at least as long.
pub fn add_multiple(to: &mut [u8], factor: u8, from: &[u8]) {
    debug_assert!(to.len() >= from.len(), "{} < {}", to.len(), from.len());
    let products = &PRODUCTS[usize::from(factor)];
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= products[usize::from(*from)];
    }
}

/// Multiplies in place.
pub fn scale(bytes: &mut [u8], factor: u8) {
    let products = &PRODUCTS[usize::from(factor)];
    for byte in bytes {
        *byte = products[usize::from(*byte)];
    }
}

/// The coefficient of packet `number` in the combination with `seed`: never zero.
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
    fn every_element_but_zero_has_an_inverse_and_products_distribute() {
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1, "{a}");
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply(b, a));
                assert_eq!(multiply(a, b ^ 0x53), multiply(a, b) ^ multiply(a, 0x53));
            }
        }
        // 2^8 is what the polynomial leaves.
        assert_eq!(multiply(0x80, 2), 0x1d);
    }

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
