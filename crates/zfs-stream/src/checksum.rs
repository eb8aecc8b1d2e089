//! Fletcher-4, as streams carry it: four sums over 32-bit words (OpenZFS, `zfs_fletcher.c`).

use crate::bytes::Order;

/// Running sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fletcher4(pub [u64; 4]);

impl Fletcher4 {
    /// Takes bytes along; a tail of fewer than four is left out.
    pub fn update(&mut self, bytes: &[u8], order: Order) {
        let [mut a, mut b, mut c, mut d] = self.0;
        let mut add = |word: u32| {
            a = a.wrapping_add(u64::from(word));
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        };
        let (words, _) = bytes.as_chunks::<4>();
        match order {
            Order::Little => words.iter().for_each(|word| add(u32::from_le_bytes(*word))),
            Order::Big => words.iter().for_each(|word| add(u32::from_be_bytes(*word))),
        }
        self.0 = [a, b, c, d];
    }
}
