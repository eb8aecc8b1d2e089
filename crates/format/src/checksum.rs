//! Checksums. All are seeded or keyed with the pool's GUID, so that bytes of another pool never pass.

use crate::field::Field;
use crate::{Corrupt, Fingerprint, PoolGuid, Reason};

/// Bytes kept of a payload's checksum; shorter sums are padded with zeros.
pub const SUM_LEN: usize = 32;

/// How a block's payload is summed. There is no off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum ChecksumKind {
    /// XXH3, 128 bits: fast, against accidents.
    #[default]
    Fast = 1,
    /// Keyed BLAKE3, 256 bits.
    Blake3 = 2,
    /// SHA-256 over the pool's GUID and the payload.
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

/// XXH3-64 of `bytes`, seeded: for headers.
pub fn fast64(pool: PoolGuid, bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(pool.get(), bytes)
}

/// XXH3-128 of `bytes`, seeded: for row columns and, as `checksum=on`, for payloads.
pub fn fast128(pool: PoolGuid, bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot_with_seed(pool.get(), bytes)
}

/// [`fast128`] of bytes that come piece by piece.
#[derive(Clone)]
pub struct Fast128(twox_hash::xxhash3_128::Hasher);

impl Fast128 {
    /// The sum of no bytes.
    pub fn new(pool: PoolGuid) -> Self {
        Self(twox_hash::xxhash3_128::Hasher::with_seed(pool.get()))
    }

    /// More bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The sum of all of them.
    pub fn finish(&self) -> u128 {
        self.0.finish_128()
    }
}

/// The checksum of a block's stored payload.
pub fn payload_sum(kind: ChecksumKind, pool: PoolGuid, payload: &[u8]) -> [u8; SUM_LEN] {
    let mut sum = [0; SUM_LEN];
    match kind {
        ChecksumKind::Fast => sum[..16].copy_from_slice(&fast128(pool, payload).to_le_bytes()),
        ChecksumKind::Blake3 => {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&pool.get().to_le_bytes());
            sum = *blake3::keyed_hash(&key, payload).as_bytes();
        }
        ChecksumKind::Sha256 => {
            use sha2::Digest;
            let mut hasher = sha2::Sha256::new();
            hasher.update(pool.get().to_le_bytes());
            hasher.update(payload);
            sum.copy_from_slice(&hasher.finalize());
        }
    }
    sum
}

/// Sums `bytes` with the eight bytes at `hole` taken as zero: for structures that hold their own sum.
pub(crate) fn fast64_with_hole(pool: PoolGuid, bytes: &[u8], hole: usize) -> u64 {
    let mut hasher = twox_hash::XxHash3_64::with_seed(pool.get());
    use std::hash::Hasher;
    hasher.write(&bytes[..hole]);
    hasher.write(&[0; 8]);
    hasher.write(&bytes[hole + 8..]);
    hasher.finish()
}

/// The fingerprint of a record's plain bytes: the first 128 bits of their BLAKE3, keyed with the pool's secret.
pub fn fingerprint(secret: &[u8; 32], plain: &[u8]) -> Fingerprint {
    let hash = blake3::keyed_hash(secret, plain);
    Fingerprint::load(hash.as_bytes())
}
