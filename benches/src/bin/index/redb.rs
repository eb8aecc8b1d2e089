//! redb used as the index: a B-tree of fingerprint → id. Its file is in the page cache as well, which flatters its
//! reads.

use crate::row::{Figures, print};
use larder_benches::{process, timing};
use larder_device::{Entropy, SeededEntropy};
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use std::path::Path;
use std::time::Duration;

const TABLE: TableDefinition<[u8; 16], u64> = TableDefinition::new("prints");
const BATCH: u64 = 64;
/// Entries of a transaction: a commit every few seconds.
const COMMIT: u64 = 8192;
const LONG: Duration = Duration::from_secs(5);

/// Measures `count` fingerprints with a cache of `memory` bytes.
pub fn measure(dir: &Path, count: u64, memory: u64) -> Figures {
    let path = dir.join("index-redb");
    let before = process::resident_memory();
    let db = Database::builder().set_cache_size(memory as usize).create(&path).expect("a new database");
    let insert = |range: std::ops::Range<u64>| {
        let mut write = db.begin_write().expect("a transaction");
        write.set_durability(Durability::None).expect("before the first change");
        {
            let mut table = write.open_table(TABLE).expect("the table");
            for n in range {
                table.insert(print(n).bytes(), n).expect("room");
            }
        }
        write.commit().expect("room");
    };
    let ((), grown) = timing(|| {
        for from in (0..count).step_by(COMMIT as usize) {
            insert(from..(from + COMMIT).min(count));
        }
        let write = db.begin_write().expect("a transaction");
        write.commit().expect("room");
    });
    let disk = std::fs::metadata(&path).expect("its file").len() as f64 / count as f64;
    let resident = process::resident_memory().saturating_sub(before) as f64 / count as f64;
    let look_up = |numbers: &[u64]| {
        let read = db.begin_read().expect("a transaction");
        let table = read.open_table(TABLE).expect("the table");
        let found = |n: &&u64| table.get(print(**n).bytes()).expect("an answer").is_some();
        numbers.iter().filter(found).count()
    };
    let rate = |batch: &mut dyn FnMut()| {
        let (mut done, mut time) = (0, Duration::ZERO);
        while done < 2_000_000 && time < LONG {
            let ((), took) = timing(&mut *batch);
            time += took;
            done += BATCH;
        }
        done as f64 / time.as_secs_f64()
    };
    let rng = SeededEntropy::new(1);
    let mut fresh = 1 << 40;
    let misses = rate(&mut || {
        let numbers: Vec<u64> = (fresh..fresh + BATCH).collect();
        fresh += BATCH;
        assert_eq!(look_up(&numbers), 0);
    });
    let hits_random = rate(&mut || {
        let numbers: Vec<u64> = (0..BATCH).map(|_| rng.next_u64() % count).collect();
        assert_eq!(look_up(&numbers), BATCH as usize);
    });
    let mut next = 0;
    let hits_in_order = rate(&mut || {
        let numbers: Vec<u64> = (next..next + BATCH).map(|n| n % count).collect();
        next += BATCH;
        assert_eq!(look_up(&numbers), BATCH as usize);
    });
    let mut next = count;
    let look_up_and_insert = rate(&mut || {
        let numbers: Vec<u64> = (next..next + BATCH).collect();
        look_up(&numbers);
        insert(next..next + BATCH);
        next += BATCH;
    });
    drop(db);
    let _ = std::fs::remove_file(&path);
    Figures {
        who: "redb".into(),
        count,
        memory,
        sampling: 1,
        runs: 1,
        inserts: count as f64 / grown.as_secs_f64(),
        misses,
        miss_reads: 0.0,
        miss_waits: 0.0,
        hits_random,
        hits_in_order: Some(hits_in_order),
        look_up_and_insert,
        disk,
        disk_with_map: None,
        file: None,
        ram: memory as f64 / count as f64,
        resident,
        written: 0.0,
        to_first: None,
    }
}
