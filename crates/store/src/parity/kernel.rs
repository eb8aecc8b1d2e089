//! The two loops that touch every byte, for each machine.
//!
//! A [`Lane`] is a register's worth of bytes that can be doubled and multiplied in the field. The loops
//! are written once over a lane and compiled once per instruction set; what is left of a column after
//! the last whole lane is done in words of 8 bytes, which every machine can. Wide lanes need no
//! alignment.

use super::{MAX_PARITY, STEP, multiply};

/// Which instructions to use. Values come from [`Kernel::available`] and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// 64-bit words; runs everywhere.
    Words,
    /// 256-bit registers; doubling by compare and shift, products by two table look-ups.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit registers; products, doubling included, are one affine instruction.
    #[cfg(target_arch = "x86_64")]
    Gfni,
}

impl Kernel {
    /// The fastest one that this machine can run.
    pub fn best() -> Self {
        Self::available().last().expect("words run everywhere")
    }

    /// Those that this machine can run, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let all = [
            Some(Self::Words),
            is_x86_feature_detected!("avx2").then_some(Self::Avx2),
            (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni")).then_some(Self::Gfni),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let all = [Some(Self::Words)];
        all.into_iter().flatten()
    }

    /// Sets `parity` to P, Q and R of `data`, as many as there are columns in it.
    pub fn parity(self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        match parity {
            [p] => self.parity_of([p], data),
            [p, q] => self.parity_of([p, q], data),
            [p, q, r] => self.parity_of([p, q, r], data),
            _ => panic!("1 to {MAX_PARITY} parity columns, not {}", parity.len()),
        }
    }

    fn parity_of<const M: usize>(self, mut parity: [&mut [u8]; M], data: &[&[u8]]) {
        let len = data.first().expect("at least one data column").len();
        assert!(len.is_multiple_of(STEP), "columns are multiples of {STEP} bytes");
        assert!(data.iter().all(|column| column.len() == len), "columns differ in length");
        assert!(parity.iter().all(|column| column.len() == len), "columns differ in length");
        let done = match self {
            Self::Words => 0,
            // SAFETY: `self` is one of `available`; all columns are `len` bytes long.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::parity_avx2(data, &mut parity, len) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => unsafe { x86::parity_gfni(data, &mut parity, len) },
        };
        // SAFETY: words need no special instructions; all columns are `len` bytes long, a multiple of 8.
        unsafe {
            let done = parity_loop::<u64, M, 8>(data, &mut parity, done, len);
            parity_loop::<u64, M, 1>(data, &mut parity, done, len);
        }
    }

    /// Adds `factor · source` to `sum`.
    pub fn add_product(self, factor: &Factor, source: &[u8], sum: &mut [u8]) {
        assert_eq!(source.len(), sum.len(), "columns differ in length");
        assert!(sum.len().is_multiple_of(STEP), "columns are multiples of {STEP} bytes");
        let done = match self {
            // Products are slow in words, and most factors are 1: the compiler makes the best of this.
            Self::Words if factor.powers[0] == 1 => {
                return sum.iter_mut().zip(source).for_each(|(sum, byte)| *sum ^= byte);
            }
            Self::Words => 0,
            // SAFETY: `self` is one of `available`; both are of one length.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { x86::add_product_avx2(factor, source, sum) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => unsafe { x86::add_product_gfni(factor, source, sum) },
        };
        // SAFETY: words need no special instructions; both are of one length, a multiple of 8.
        unsafe { product_loop::<u64>(factor, source, sum, done) };
    }
}

/// A constant to multiply by, in the forms that the lanes want it.
#[derive(Debug, Clone, Copy)]
pub struct Factor {
    /// Its products with 2^0 to 2^7.
    powers: [u8; 8],
    /// Multiplication as a matrix over GF(2), in the bit order of `GF2P8AFFINEQB`: byte 7 - i holds the
    /// bits of the source that make up bit i of the product.
    matrix: u64,
    /// Its products with 0 to 15.
    low: [u8; 16],
    /// Its products with 0, 16, … 240.
    high: [u8; 16],
}

impl Factor {
    /// The neutral factor.
    pub const ONE: Self = Self::new(1);

    /// `value`, prepared.
    pub const fn new(value: u8) -> Self {
        let mut factor = Self { powers: [0; 8], matrix: 0, low: [0; 16], high: [0; 16] };
        let mut source = 0;
        while source < 8 {
            let product = multiply(value, 1 << source);
            factor.powers[source] = product;
            let mut bit = 0;
            while bit < 8 {
                factor.matrix |= ((product >> bit & 1) as u64) << (8 * (7 - bit) + source);
                bit += 1;
            }
            source += 1;
        }
        let mut nibble = 0;
        while nibble < 16 {
            factor.low[nibble] = multiply(value, nibble as u8);
            factor.high[nibble] = multiply(value, (nibble as u8) << 4);
            nibble += 1;
        }
        factor
    }
}

/// Some bytes in a register.
///
/// # Safety
/// Methods may only run on a machine that has the lane's instructions. `load` and `store` touch
/// `size_of::<Self>()` bytes at the pointer, which must be valid for that; it need not be aligned.
trait Lane: Copy {
    /// A [`Factor`] in registers.
    type Factor: Copy;

    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn double(self) -> Self;
    unsafe fn factor(factor: &Factor) -> Self::Factor;
    unsafe fn times(self, factor: Self::Factor) -> Self;

    /// Four times the lane.
    #[inline(always)]
    unsafe fn quadruple(self) -> Self {
        // SAFETY: the caller's promise is that of `double`.
        unsafe { self.double().double() }
    }
}

/// Horner's rule over bytes `start` to `end` of all columns, `N` lanes at a time; returns where it had
/// to stop.
///
/// # Safety
/// The machine has the lane's instructions, and no column is shorter than `end`.
#[inline(always)]
unsafe fn parity_loop<L: Lane, const M: usize, const N: usize>(
    data: &[&[u8]],
    parity: &mut [&mut [u8]; M],
    start: usize,
    end: usize,
) -> usize {
    let width = size_of::<L>();
    let (first, rest) = data.split_first().expect("at least one data column");
    let mut at = start;
    while at + N * width <= end {
        // SAFETY: at + N * width <= end, which no column is shorter than.
        unsafe {
            // No closures: they would not be compiled for the lane's instructions.
            let mut sums = [[L::load(first.as_ptr().add(at)); M]; N];
            for (lane, sums) in sums.iter_mut().enumerate().skip(1) {
                *sums = [L::load(first.as_ptr().add(at + lane * width)); M];
            }
            for column in rest {
                for (lane, sums) in sums.iter_mut().enumerate() {
                    let byte = L::load(column.as_ptr().add(at + lane * width));
                    sums[0] = sums[0].xor(byte);
                    if M > 1 {
                        sums[1] = sums[1].double().xor(byte);
                    }
                    if M > 2 {
                        sums[2] = sums[2].quadruple().xor(byte);
                    }
                }
            }
            for (lane, sums) in sums.into_iter().enumerate() {
                for (column, sum) in parity.iter_mut().zip(sums) {
                    sum.store(column.as_mut_ptr().add(at + lane * width));
                }
            }
        }
        at += N * width;
    }
    at
}

/// Adds `factor · source` to `sum` from byte `start` on, and returns where it had to stop.
///
/// # Safety
/// The machine has the lane's instructions, and `sum` is as long as `source`.
#[inline(always)]
unsafe fn product_loop<L: Lane>(factor: &Factor, source: &[u8], sum: &mut [u8], start: usize) -> usize {
    let width = size_of::<L>();
    let mut at = start;
    // SAFETY: at + width <= source.len() == sum.len().
    unsafe {
        let factor = L::factor(factor);
        while at + width <= source.len() {
            let product = L::load(source.as_ptr().add(at)).times(factor);
            let to = sum.as_mut_ptr().add(at);
            L::load(to).xor(product).store(to);
            at += width;
        }
    }
    at
}

impl Lane for u64 {
    type Factor = [u8; 8];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<u64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u64>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        let carries = self & 0x8080_8080_8080_8080;
        // 0x80 of a byte that overflows becomes 0x7f, then 0x1d.
        let reduce = (carries - (carries >> 7)) & 0x1d1d_1d1d_1d1d_1d1d;
        ((self << 1) & 0xfefe_fefe_fefe_fefe) ^ reduce
    }

    #[inline(always)]
    unsafe fn factor(factor: &Factor) -> [u8; 8] {
        factor.powers
    }

    #[inline(always)]
    unsafe fn times(self, powers: [u8; 8]) -> Self {
        let product = |bit: usize| {
            let bits = (self >> bit) & 0x0101_0101_0101_0101;
            // All ones in the bytes that have the bit.
            let mask = (bits << 8).wrapping_sub(bits);
            mask & (u64::from(powers[bit]) * 0x0101_0101_0101_0101)
        };
        (0..8).fold(0, |sum, bit| sum ^ product(bit))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Factor, Lane, parity_loop, product_loop};
    use std::arch::x86_64::*;

    /// # Safety
    /// The machine has AVX2, and all columns are `len` bytes long.
    #[target_feature(enable = "avx2")]
    pub unsafe fn parity_avx2<const M: usize>(
        data: &[&[u8]],
        parity: &mut [&mut [u8]; M],
        len: usize,
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let at = parity_loop::<__m256i, M, 2>(data, parity, 0, len);
            parity_loop::<__m256i, M, 1>(data, parity, at, len)
        }
    }

    /// # Safety
    /// The machine has AVX-512F and GFNI, and all columns are `len` bytes long.
    #[target_feature(enable = "avx512f,gfni")]
    pub unsafe fn parity_gfni<const M: usize>(
        data: &[&[u8]],
        parity: &mut [&mut [u8]; M],
        len: usize,
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let at = parity_loop::<__m512i, M, 4>(data, parity, 0, len);
            parity_loop::<__m512i, M, 1>(data, parity, at, len)
        }
    }

    /// # Safety
    /// The machine has AVX2, and `sum` is as long as `source`.
    #[target_feature(enable = "avx2")]
    pub unsafe fn add_product_avx2(factor: &Factor, source: &[u8], sum: &mut [u8]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { product_loop::<__m256i>(factor, source, sum, 0) }
    }

    /// # Safety
    /// The machine has AVX-512F and GFNI, and `sum` is as long as `source`.
    #[target_feature(enable = "avx512f,gfni")]
    pub unsafe fn add_product_gfni(factor: &Factor, source: &[u8], sum: &mut [u8]) -> usize {
        // SAFETY: the caller's promise.
        unsafe { product_loop::<__m512i>(factor, source, sum, 0) }
    }

    impl Lane for __m256i {
        type Factor = (__m256i, __m256i);

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_si256(to.cast(), self) }
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm256_xor_si256(self, other) }
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let overflows = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self);
                let reduce = _mm256_and_si256(overflows, _mm256_set1_epi8(0x1d));
                _mm256_xor_si256(_mm256_add_epi8(self, self), reduce)
            }
        }

        #[inline(always)]
        unsafe fn factor(factor: &Factor) -> Self::Factor {
            // SAFETY: the caller's promise; the tables are 16 bytes long.
            unsafe {
                let table =
                    |bytes: &[u8; 16]| _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()));
                (table(&factor.low), table(&factor.high))
            }
        }

        #[inline(always)]
        unsafe fn times(self, (low, high): Self::Factor) -> Self {
            // SAFETY: the caller's promise.
            unsafe {
                let nibble = _mm256_set1_epi8(0x0f);
                let low = _mm256_shuffle_epi8(low, _mm256_and_si256(self, nibble));
                let shifted = _mm256_srli_epi64::<4>(self);
                _mm256_xor_si256(low, _mm256_shuffle_epi8(high, _mm256_and_si256(shifted, nibble)))
            }
        }
    }

    impl Lane for __m512i {
        type Factor = __m512i;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_si512(to.cast(), self) }
        }

        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_xor_si512(self, other) }
        }

        #[inline(always)]
        unsafe fn double(self) -> Self {
            const TWO: Factor = Factor::new(2);
            // SAFETY: the caller's promise.
            unsafe { self.times(Self::factor(&TWO)) }
        }

        #[inline(always)]
        unsafe fn quadruple(self) -> Self {
            const FOUR: Factor = Factor::new(4);
            // SAFETY: the caller's promise.
            unsafe { self.times(Self::factor(&FOUR)) }
        }

        #[inline(always)]
        unsafe fn factor(factor: &Factor) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_set1_epi64(factor.matrix as i64) }
        }

        #[inline(always)]
        unsafe fn times(self, matrix: Self) -> Self {
            // SAFETY: the caller's promise.
            unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(self, matrix) }
        }
    }
}
