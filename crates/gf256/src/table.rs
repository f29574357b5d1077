//! Tables, made when the program is compiled.

const POLYNOMIAL: u16 = 0x11d;

const POWERS: ([u8; 510], [u8; 256]) = {
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

/// Powers of the generator 2, twice over.
pub const EXP: [u8; 510] = POWERS.0;

/// Their exponents; that of zero says nothing.
pub const LOG: [u8; 256] = POWERS.1;

/// Products of every pair.
pub static PRODUCTS: [[u8; 256]; 256] = {
    let mut products = [[0; 256]; 256];
    let mut a = 1;
    while a < 256 {
        let mut b = 1;
        while b < 256 {
            products[a][b] = EXP[LOG[a] as usize + LOG[b] as usize];
            b += 1;
        }
        a += 1;
    }
    products
};

/// Products of one factor with the values of the low and of the high half of a byte.
#[repr(align(32))]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code)
)]
pub struct Halves {
    pub low: [u8; 16],
    pub high: [u8; 16],
}

/// For every factor.
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    allow(dead_code)
)]
pub static HALVES: [Halves; 256] = {
    let mut halves = [const {
        Halves {
            low: [0; 16],
            high: [0; 16],
        }
    }; 256];
    let mut factor = 1;
    while factor < 256 {
        let mut half = 1;
        while half < 16 {
            halves[factor].low[half] = EXP[LOG[factor] as usize + LOG[half] as usize];
            halves[factor].high[half] = EXP[LOG[factor] as usize + LOG[half << 4] as usize];
            half += 1;
        }
        factor += 1;
    }
    halves
};
