//! CRC32C of bytes whose parts have been gone over already.

/// CRC32C of `a` and `b` together, by those of `a` and of `b` and by the length of `b`: the bytes of `b` need not be gone
/// over again for each `a` that they follow.
///
/// A CRC is linear, so it is `b`'s, and `a`'s as it is when as many zeros have followed it.
pub(super) fn joined(a: u32, b: u32, b_bytes: usize) -> u32 {
    let (mut behind, mut left) = (a, b_bytes);
    for zeros in &ZEROS {
        if left & 1 != 0 {
            behind = zeros.follow(behind);
        }
        left >>= 1;
        if left == 0 {
            break;
        }
    }
    assert_eq!(left, 0, "frames are far shorter than 2^{LENGTH_BITS} bytes");
    behind ^ b
}

/// What so many bytes of zeros make of a CRC, for each four bits of it.
struct Zeros([[u32; 16]; 8]);

/// By powers of two: 1, 2, 4 bytes and so on.
static ZEROS: [Zeros; LENGTH_BITS] = zeros();
/// Lengths are signed 32-bit numbers where Pulsar reads them.
const LENGTH_BITS: usize = 31;
/// Castagnoli's polynomial, the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A linear map on CRCs, by what it makes of each bit.
type Columns = [u32; 32];

impl Zeros {
    fn follow(&self, crc: u32) -> u32 {
        let Self(tables) = self;
        let part = |at: usize| tables[at][(crc >> (4 * at)) as usize & 15];
        (0..8).fold(0, |sum, at| sum ^ part(at))
    }
}

const fn zeros() -> [Zeros; LENGTH_BITS] {
    let mut zeros = [const { Zeros([[0; 16]; 8]) }; LENGTH_BITS];
    let (mut columns, mut power) = (one_zero(), 0);
    while power < LENGTH_BITS {
        zeros[power] = tabulated(&columns);
        columns = twice(&columns);
        power += 1;
    }
    zeros
}

/// What one byte of zeros makes of a CRC.
const fn one_zero() -> Columns {
    let (mut columns, mut bit) = ([0; 32], 0);
    while bit < 32 {
        let (mut crc, mut step) = (1 << bit, 0);
        while step < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ POLYNOMIAL };
            step += 1;
        }
        columns[bit] = crc;
        bit += 1;
    }
    columns
}

const fn twice(columns: &Columns) -> Columns {
    let (mut doubled, mut bit) = ([0; 32], 0);
    while bit < 32 {
        doubled[bit] = applied(columns, columns[bit]);
        bit += 1;
    }
    doubled
}

const fn tabulated(columns: &Columns) -> Zeros {
    let (mut tables, mut at) = ([[0; 16]; 8], 0);
    while at < 8 {
        let mut value = 0;
        while value < 16 {
            tables[at][value] = applied(columns, (value as u32) << (4 * at));
            value += 1;
        }
        at += 1;
    }
    Zeros(tables)
}

const fn applied(columns: &Columns, crc: u32) -> u32 {
    let (mut sum, mut bit) = (0, 0);
    while bit < 32 {
        if crc >> bit & 1 == 1 {
            sum ^= columns[bit];
        }
        bit += 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joined_checksum_is_that_of_the_bytes_together() {
        let mut random = fastrand::Rng::with_seed(1);
        let lengths = (0..70).chain([255, 256, 1_000, 1_024, 65_535, 65_536, 1_000_003]);
        for b_bytes in lengths {
            let mut bytes = vec![0; 40 + b_bytes];
            random.fill(&mut bytes);
            for cut in [0, 1, 40] {
                let (a, b) = bytes.split_at(cut);
                let together = joined(crc32c::crc32c(a), crc32c::crc32c(b), b.len());
                assert_eq!(together, crc32c::crc32c(&bytes), "{cut} and {} bytes", b.len());
            }
        }
    }
}
