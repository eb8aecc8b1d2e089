//! Checksums, keyed with a secret of the pool: bytes of another pool never pass, and neither does what a user writes.
//!
//! XXH3 is no function that withstands somebody who sees its sums; nobody does who cannot read the devices, and with
//! them the key in the labels. What it has to withstand is a guess.

use crate::field::Field;
use crate::{Corrupt, Fingerprint, PoolGuid, Reason};
use std::fmt;

/// Bytes kept of a payload's checksum; shorter sums are padded with zeros.
pub const SUM_LEN: usize = 32;

/// Checksum algorithm of a block's payload. There is no off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum ChecksumKind {
    /// XXH3, 128 bits: fast, against accidents.
    #[default]
    Fast = 1,
    /// Keyed BLAKE3, 256 bits.
    Blake3 = 2,
    /// SHA-256 over 32 secret bytes and the payload.
    Sha256 = 3,
}

impl ChecksumKind {
    /// The kind that a stored number names.
    pub fn from_byte(byte: u8) -> Result<Self, Corrupt> {
        match byte {
            1 => Ok(Self::Fast),
            2 => Ok(Self::Blake3),
            3 => Ok(Self::Sha256),
            _ => Err(Corrupt::new("checksum kind", Reason::Kind)),
        }
    }
}

/// Bytes of a [`PoolKey`].
pub const KEY_LEN: usize = 32;
/// Bytes of the secret that XXH3 is keyed with.
const SECRET_LEN: usize = 192;

/// The secret of a pool that its sums are keyed with: random, made with the pool, in all of its labels and commit
/// records, and nowhere else. Whoever knows it can write a file whose content passes for a block; so it is never shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolKey([u8; KEY_LEN]);

impl PoolKey {
    /// The key that these random bytes are.
    pub const fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for PoolKey {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey(..)")
    }
}

impl Field for PoolKey {
    const SIZE: usize = KEY_LEN;
    fn store(&self, out: &mut [u8]) {
        self.0.store(out);
    }
    fn load(from: &[u8]) -> Self {
        Self(<[u8; KEY_LEN]>::load(from))
    }
}

/// Keys of a pool's checksums.
#[derive(Clone)]
pub struct Sums {
    pool: PoolGuid,
    key: PoolKey,
    /// For XXH3.
    secret: [u8; SECRET_LEN],
    /// For BLAKE3 and SHA-256.
    prefix: [u8; 32],
}

impl fmt::Debug for Sums {
    /// Without what must stay secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sums({})", self.pool)
    }
}

impl Sums {
    /// Those of a pool with this key.
    pub fn new(pool: PoolGuid, key: PoolKey) -> Self {
        let mut derived = blake3::Hasher::new_keyed(&key.0).update(&pool.get().to_le_bytes()).finalize_xof();
        let (mut secret, mut prefix) = ([0; SECRET_LEN], [0; 32]);
        derived.fill(&mut secret);
        derived.fill(&mut prefix);
        Self { pool, key, secret, prefix }
    }

    /// The pool.
    pub fn pool(&self) -> PoolGuid {
        self.pool
    }

    /// Its key, for another label.
    pub fn key(&self) -> PoolKey {
        self.key
    }
}

/// The secret is as long as XXH3 wants it.
const LONG_ENOUGH: &str = "the secret has more than 136 bytes";

/// XXH3-64 of `bytes`, keyed: for headers.
pub fn fast64(sums: &Sums, bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_secret(&sums.secret, bytes).expect(LONG_ENOUGH)
}

/// XXH3-128 of `bytes`, keyed: for stripe columns and, as `checksum=on`, for payloads.
pub fn fast128(sums: &Sums, bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot_with_secret(&sums.secret, bytes).expect(LONG_ENOUGH)
}

/// XXH3-64 of `bytes` without a key: for what must be readable before the pool is known. It proves nothing but that
/// the bytes were not damaged.
pub fn plain64(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// XXH3 sums so many bytes, and fewer, in another way, of which its streams leave the secret out.
const MID_SIZE: usize = 240;

/// [`fast128`] of bytes that come piece by piece, more than 240 of them in all.
#[derive(Clone)]
pub struct Fast128 {
    hasher: twox_hash::xxhash3_128::Hasher,
    len: usize,
}

impl Fast128 {
    /// The sum of no bytes yet.
    pub fn new(sums: &Sums) -> Self {
        let hasher = twox_hash::xxhash3_128::Hasher::with_seed_and_secret(0, sums.secret);
        Self { hasher: hasher.expect(LONG_ENOUGH), len: 0 }
    }

    /// More bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
        self.len += bytes.len();
    }

    /// The sum of all of them.
    ///
    /// # Panics
    /// When they are too few.
    pub fn finish(&self) -> u128 {
        assert!(self.len > MID_SIZE, "{} bytes are summed in one piece", self.len);
        self.hasher.finish_128()
    }
}

/// The checksum of a block's stored payload.
pub fn payload_sum(kind: ChecksumKind, sums: &Sums, payload: &[u8]) -> [u8; SUM_LEN] {
    let mut sum = [0; SUM_LEN];
    match kind {
        ChecksumKind::Fast => sum[..16].copy_from_slice(&fast128(sums, payload).to_le_bytes()),
        ChecksumKind::Blake3 => sum = *blake3::keyed_hash(&sums.prefix, payload).as_bytes(),
        ChecksumKind::Sha256 => {
            use sha2::Digest;
            let mut hasher = sha2::Sha256::new();
            hasher.update(sums.prefix);
            hasher.update(payload);
            sum.copy_from_slice(&hasher.finalize());
        }
    }
    sum
}

/// Sums `bytes` with the eight bytes at `hole` taken as zero: for structures that hold their own sum.
pub(crate) fn fast64_with_hole(sums: &Sums, bytes: &[u8], hole: usize) -> u64 {
    let mut whole = bytes.to_vec();
    whole[hole..hole + 8].fill(0);
    fast64(sums, &whole)
}

/// The fingerprint of a record's plain bytes: the first 128 bits of their BLAKE3, keyed with the pool's secret.
pub fn fingerprint(secret: &[u8; 32], plain: &[u8]) -> Fingerprint {
    let hash = blake3::keyed_hash(secret, plain);
    Fingerprint::load(hash.as_bytes())
}
