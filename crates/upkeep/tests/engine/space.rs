//! Space: what AVAIL says can be written, slots come back, and a full pool stays whole.

use crate::common::*;
use larder_device::{Device, Entropy, FileDevice, OpenMode, SeededEntropy};
use larder_format::checksum::ChecksumKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_pool::codec::Codec;
use larder_pool::{Dedup, NewRecord, Pool, PoolError, ROOT_DATASET};
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
        let batch: Vec<_> = (0..(8 << 20) / record).map(|_| entropy.bytes(record)).collect();
        for batch in batch.chunks(
            ((pool.store().space(record as u32).available / record as u64) as usize).clamp(1, batch.len()),
        ) {
            if pool.check_space((batch.len() * record) as u64, record as u32).is_err() {
                pool.commit().unwrap();
                return written;
            }
            let op = pool.enter().unwrap();
            let new = |(i, plain): (usize, &Vec<u8>)| NewRecord {
                dataset: dataset.id(),
                inode: 9,
                offset: written + (i * record) as u64,
                plain: plain.clone().into(),
                codec: Codec::Off,
                encoded: None,
                checksum: ChecksumKind::Fast,
                dedup: Dedup::Off,
                copies: 1,
                replaces: None,
            };
            let ptrs = pool.store_records(&op, batch.iter().enumerate().map(new).collect()).unwrap();
            dataset
                .update(&op, |tree| {
                    for ptr in &ptrs {
                        let extent = Extent {
                            ptr: *ptr,
                            len: record as u32,
                            block_offset: 0,
                            logical: record as u32,
                            placed: 0,
                            copies: 1,
                        };
                        tree.insert(Key::new(9, EXTENT, written), &extent.encode())?;
                        tree.link_block(&extent);
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
            let said = pool.store().space(record as u32).available;
            let written = fill(&pool, record);
            let ratio = written as f64 / said as f64;
            println!("{word} of {count}, {record} B records: AVAIL {said}, written {written}, {ratio:.4}");
            assert!((0.98..=1.02).contains(&ratio), "{word}: AVAIL said {said}, {written} were written");
            let report = pool.upkeep.check().unwrap();
            assert!(report.problems.is_empty(), "{word}: {:#?}", report.problems);
        }
    }
}

#[test]
fn overwriting_a_half_full_pool_for_long_never_runs_out() {
    for (word, count, times) in [("single", 1, 5), ("raidz2", 6, 1)] {
        let sim = larder_sim::SimWorld::new(&vec![larder_format::ByteLen::new(80 << 20); count]);
        let pool = create(&sim, word);
        let dataset = pool.dataset(ROOT_DATASET).unwrap();
        let entropy = SeededEntropy::new(3);
        let next = |n: u64| entropy.next_u64() % n;
        // Contents compress to about a third, so count by what the pool says.
        let half = pool.store().space(128 << 10).available / 2;
        let mut model = Model::new();
        let mut inode = 10;
        while dataset.usage().referenced < half {
            let files: Vec<_> =
                (inode..inode + 16).map(|inode| (inode, 1, 1 + next(120_000) as usize)).collect();
            inode += 16;
            put(&pool, &dataset, &files);
            model.extend(files.iter().map(|file| (file.0, (file.1, file.2))));
        }
        pool.commit().unwrap();
        let live = dataset.usage().referenced;
        let mut written = 0;
        let mut version = 2;
        while written < times * live {
            version += 1;
            let mut files: Vec<_> =
                (0..16).map(|_| (10 + next(inode - 10), version, 1 + next(120_000) as usize)).collect();
            files.sort_unstable();
            files.dedup_by_key(|file| file.0);
            let bytes: u64 = files.iter().map(|file| file.2 as u64).sum();
            pool.check_space(bytes, 128 << 10).unwrap();
            put(&pool, &dataset, &files);
            written += bytes / 3;
            model.extend(files.iter().map(|file| (file.0, (file.1, file.2))));
            if version % 4 == 0 {
                pool.commit().unwrap();
            }
        }
        pool.commit().unwrap();
        println!("{word}: {live} live, {written} overwritten, {} moved by the cleaner", pool.cleaned_bytes());
        assert!(pool.cleaned_bytes() > 0);
        pool.store().drop_caches();
        verify(&pool, &model);
        let report = pool.upkeep.check().unwrap();
        assert!(report.problems.is_empty(), "{word}: {:#?}", report.problems);
        drop(pool);
        let pool = import(&sim, 9).unwrap();
        verify(&pool, &model);
        let report = pool.upkeep.check().unwrap();
        assert!(report.problems.is_empty(), "{word}: {:#?}", report.problems);
    }
}

#[test]
fn single_records_can_be_stored_until_avail_says_nothing() {
    let sim = larder_sim::SimWorld::new(&[larder_format::ByteLen::new(64 << 20); 3]);
    let pool = create(&sim, "raidz1");
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let entropy = SeededEntropy::new(4);
    let mut offset = 0;
    while pool.store().space(128 << 10).available >= 128 << 10 {
        let op = pool.enter().unwrap();
        let plain = entropy.bytes(128 << 10);
        let record = NewRecord {
            dataset: dataset.id(),
            inode: 9,
            offset,
            plain: plain.into(),
            codec: Codec::Off,
            encoded: None,
            checksum: ChecksumKind::Fast,
            dedup: Dedup::Off,
            copies: 1,
            replaces: None,
        };
        let ptr = pool.store_records(&op, vec![record]).unwrap()[0];
        let extent =
            Extent { ptr, len: 128 << 10, block_offset: 0, logical: 128 << 10, placed: 0, copies: 1 };
        dataset
            .update(&op, |tree| {
                tree.insert(Key::new(9, EXTENT, offset), &extent.encode())?;
                tree.link_block(&extent);
                Ok::<_, PoolError>(())
            })
            .unwrap();
        offset += 128 << 10;
    }
    pool.commit().unwrap();
    let report = pool.upkeep.check().unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}
