//! Space: what AVAIL says can be written, slots come back, and a full pool stays whole.

mod common;

use common::*;
use larder_device::{Device, Entropy, FileDevice, OpenMode, SeededEntropy};
use larder_format::checksum::ChecksumKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_pool::codec::Codec;
use larder_pool::{NewRecord, Pool, PoolError, ROOT_DATASET};
use std::sync::Arc;

/// Sparse files as devices; gone with the folder.
fn files(folder: &tempfile::TempDir, count: usize, size: u64) -> Vec<Arc<dyn Device>> {
    let open = |i: usize| {
        let path = folder.path().join(format!("d{i}"));
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        Arc::new(FileDevice::open(&path, OpenMode::Exclusive).unwrap()) as Arc<dyn Device>
    };
    (0..count).map(open).collect()
}

/// Writes one incompressible record after the other until there is no space; returns the bytes.
fn fill(pool: &Pool, record: usize) -> u64 {
    let entropy = SeededEntropy::new(5);
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut written = 0;
    loop {
        let batch: Vec<Vec<u8>> = (0..(8 << 20) / record)
            .map(|_| (0..record / 8).flat_map(|_| entropy.next_u64().to_le_bytes()).collect())
            .collect();
        for batch in batch
            .chunks(((pool.space(record as u32).available / record as u64) as usize).clamp(1, batch.len()))
        {
            if pool.check_space((batch.len() * record) as u64, record as u32).is_err() {
                pool.commit().unwrap();
                return written;
            }
            let op = pool.enter().unwrap();
            let new = |(i, plain): (usize, &Vec<u8>)| NewRecord {
                dataset: dataset.id(),
                inode: 9,
                offset: written + (i * record) as u64,
                plain: plain.clone(),
                codec: Codec::Off,
                checksum: ChecksumKind::Fast,
            };
            let ptrs = pool.store(&op, batch.iter().enumerate().map(new).collect()).unwrap();
            dataset
                .update(&op, |tree| {
                    for ptr in &ptrs {
                        let extent =
                            Extent { ptr: *ptr, len: record as u32, block_offset: 0, logical: record as u32 };
                        tree.insert(Key::new(9, EXTENT, written), &extent.encode())?;
                        tree.link_block(*ptr, record as u64);
                        written += record as u64;
                    }
                    Ok::<_, PoolError>(())
                })
                .unwrap();
            drop(op);
            if written % (64 << 20) < (8 << 20) {
                pool.commit().unwrap();
            }
        }
    }
}

#[test]
fn the_sum_written_is_what_avail_said_in_every_layout() {
    for (word, count) in layouts() {
        for (record, size) in [(128 << 10, 256 << 20), (16 << 10, 96 << 20)] {
            let folder = tempfile::tempdir().unwrap();
            let pool = create_on(files(&folder, count, size), word);
            let said = pool.space(record as u32).available;
            let written = fill(&pool, record);
            let ratio = written as f64 / said as f64;
            println!("{word} of {count}, {record} B records: AVAIL {said}, written {written}, {ratio:.4}");
            assert!((0.98..=1.02).contains(&ratio), "{word}: AVAIL said {said}, {written} were written");
            let report = pool.check().unwrap();
            assert!(report.problems.is_empty(), "{word}: {:#?}", report.problems);
        }
    }
}
