//! Damage: inputs made from valid encodings, each from a number alone, so that it can be made again.

/// Numbers from a seed: splitmix64 (S. Vigna).
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// Numbers that depend on nothing but `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 when that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.draw() % limit as u64) as usize }
    }
}

/// One damaged input made from `seeds`, which are valid encodings.
pub fn mutant(numbers: &mut Numbers, seeds: &[Vec<u8>]) -> Vec<u8> {
    if numbers.below(64) == 0 {
        let len = numbers.below(300);
        return (0..len).map(|_| numbers.draw() as u8).collect();
    }
    let mut bytes = seeds[numbers.below(seeds.len())].clone();
    for _ in 0..=numbers.below(4) {
        damage(numbers, seeds, &mut bytes);
    }
    bytes
}

fn damage(numbers: &mut Numbers, seeds: &[Vec<u8>], bytes: &mut Vec<u8>) {
    // Heads decide most; half of all damage goes there.
    let reach = if numbers.below(2) == 0 { bytes.len().min(64) } else { bytes.len() };
    let at = numbers.below(reach);
    match numbers.below(8) {
        0 | 1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << numbers.below(8);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = [0, 1, 0x7f, 0x80, 0xff, numbers.draw() as u8][numbers.below(6)];
            }
        }
        3 | 4 => {
            // A length, count or offset that lies.
            let width = [2, 4, 8][numbers.below(3)];
            let len = bytes.len() as u64;
            let near = [len, len + 1, len.wrapping_sub(1), 0, 1, u64::MAX, u64::MAX - 7, i64::MAX as u64];
            let value = near[numbers.below(near.len())].wrapping_add(numbers.below(3) as u64);
            if let Some(field) = bytes.get_mut(at..at + width) {
                field.copy_from_slice(&value.to_le_bytes()[..width]);
            }
        }
        5 => bytes.truncate(at),
        6 => {
            let other = &seeds[numbers.below(seeds.len())];
            let from = numbers.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let (from, len) = (numbers.below(bytes.len()), 1 + numbers.below(64));
            let piece = bytes[from..bytes.len().min(from + len)].to_vec();
            if numbers.below(2) == 0 {
                bytes.splice(at..at, piece);
            } else {
                bytes.extend_from_slice(&piece);
            }
        }
    }
}
