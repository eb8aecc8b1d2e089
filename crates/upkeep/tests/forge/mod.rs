//! Files that are full of what looks like blocks of other files.
#![allow(dead_code, reason = "each test binary uses its part")]

use crate::common::{create, import, plans};
use larder_device::SeededEntropy;
use larder_format::block::{self, BLOCK_OVERHEAD, BlockInfo, BlockKind, CodecKind, Stamp};
use larder_format::checksum::{ChecksumKind, Sums, payload_sum};
use larder_format::{BlockId, BlockPtr, ByteLen, CommitId, DatasetId, Incarnation};
use larder_pool::codec::Codec;
use larder_pool::{Dedup, NewRecord, Pool, ROOT_DATASET};
use larder_sim::SimWorld;

/// Layout words with numbers of devices.
pub const WORDS: [(&str, usize); 5] =
    [("single", 1), ("mirror", 2), ("raidz1", 3), ("raidz2", 6), ("raid14", 5)];

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(len)
}

pub fn store(pool: &Pool, files: Vec<Vec<u8>>) -> Vec<BlockPtr> {
    let op = pool.enter().unwrap();
    let record = |(inode, plain): (u64, Vec<u8>)| NewRecord {
        dataset: ROOT_DATASET,
        inode,
        offset: 0,
        plain: plain.into(),
        codec: Codec::Off,
        encoded: None,
        checksum: ChecksumKind::Fast,
        dedup: Dedup::Off,
        copies: 1,
        replaces: None,
    };
    let ptrs = pool.store_records(&op, (10..).zip(files).map(record).collect()).unwrap();
    drop(op);
    pool.commit().unwrap();
    ptrs
}

/// A block as the pool with these sums would write it.
pub fn forged(
    sums: &Sums,
    id: BlockId,
    (incarnation, birth): (Incarnation, CommitId),
    payload: &[u8],
) -> Vec<u8> {
    let info = BlockInfo {
        kind: BlockKind::Record,
        codec: CodecKind::Off,
        checksum: ChecksumKind::Fast,
        framed: false,
        level: 0,
        logical: payload.len() as u32,
        dataset: DatasetId::new(1),
        object: 10,
        offset: 0,
        key_kind: 0,
    };
    let mut out = vec![0; (BLOCK_OVERHEAD as usize + payload.len()).next_multiple_of(8)];
    let sum = payload_sum(ChecksumKind::Fast, sums, payload);
    block::encode(sums, &Stamp { id, incarnation, birth }, &info, sum, payload, &mut out);
    out
}

/// Victims are stored, then small files and large ones that are full of blocks with the victims' ids. Whoever reads the
/// small ones reads along what is near.
/// `seed` chooses the layout; an error says what another file's content was taken for.
pub fn attack(seed: u64) -> Result<usize, String> {
    let (word, count) = WORDS[seed as usize % WORDS.len()];
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = create(&sim, word);
    let victims: Vec<Vec<u8>> = (0..4).map(|i| noise(1000 + i, 64)).collect();
    let targets = store(&pool, victims.clone());
    let root = plans(sim.devices()).remove(0).root;
    let import_of = (root.incarnation, root.commit);
    // Worse than what a user can do: with the pool's own key.
    let fakes: Vec<u8> =
        targets.iter().flat_map(|ptr| forged(pool.store().sums(), ptr.id, import_of, &[b'F'; 64])).collect();
    let mut files = Vec::new();
    for i in 0..60 {
        files.push(noise(i, 600));
        if i % 4 == 3 {
            files.push(fakes.iter().copied().cycle().take(40 << 10).collect());
        }
    }
    let contents = files.clone();
    let ptrs = store(&pool, files);
    drop(pool);
    let pool = import(&sim, 2).unwrap();
    for (ptr, content) in ptrs.iter().zip(&contents).filter(|(_, content)| content.len() == 600) {
        assert_eq!(&pool.store().read(*ptr).unwrap()[..], content);
    }
    let read_along = pool.store().cache_stats().demand_data.hits;
    assert!(read_along > 20, "{word}: {read_along} of the small files were read along");
    for (ptr, content) in targets.iter().zip(&victims) {
        if pool.store().read(*ptr).unwrap()[..] != content[..] {
            return Err(format!("{word}: block {} reads as what another file holds", ptr.id));
        }
    }
    Ok(1)
}
