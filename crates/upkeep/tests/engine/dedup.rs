//! Duplicates are shared, found again after imports, and deduplication costs nothing where nobody asked for it.

use crate::common;
use crate::common::Kept;
use crate::common::{assert_whole, content, create, open};
use larder_format::checksum::ChecksumKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{ByteLen, DeviceOffset};
use larder_pool::ledger::HEAD;
use larder_pool::{Look, NewRecord, Pool, PoolError, ROOT_DATASET};
use larder_sim::SimWorld;

const LEN: usize = 20_000;

fn pool_with(dedup: &str) -> (SimWorld, Kept) {
    let sim = SimWorld::new(&[ByteLen::new(128 << 20)]);
    let pool = create(&sim, "single");
    pool.set_property(ROOT_DATASET, "dedup", dedup).unwrap();
    (sim, pool)
}

/// Stores files of these contents under inodes from `inode` on, as their dataset's properties have it.
fn put(pool: &Pool, name: &str, inode: u64, contents: impl Iterator<Item = u64>) {
    let dataset = pool.dataset_by_name(name).unwrap();
    let op = pool.enter().unwrap();
    let settings = dataset.settings();
    let record = |(i, content_of): (u64, u64)| NewRecord {
        dataset: dataset.id(),
        inode: inode + i,
        offset: 0,
        plain: content(content_of, 1, LEN).into(),
        codec: settings.codec,
        encoded: None,
        checksum: ChecksumKind::Fast,
        dedup: settings.dedup,
        copies: 1,
        replaces: None,
    };
    let records: Vec<_> = (0..).zip(contents).map(record).collect();
    let ptrs = pool.store_records(&op, records).unwrap();
    let update = |tree: &mut larder_pool::Update<'_>| {
        for (inode, &ptr) in (inode..).zip(&ptrs) {
            let key = Key::new(inode, EXTENT, 0);
            if let Some(old) = tree.get(&key)? {
                let old = Extent::decode(&old)?;
                tree.drop_block(&old);
            }
            let extent =
                Extent { ptr, len: LEN as u32, block_offset: 0, logical: LEN as u32, placed: 0, copies: 1 };
            tree.insert(key, &extent.encode())?;
            tree.link_block(&extent);
        }
        Ok::<_, PoolError>(())
    };
    dataset.update(&op, update).unwrap();
}

fn remove(pool: &Pool, inodes: std::ops::Range<u64>) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let op = pool.enter().unwrap();
    let update = |tree: &mut larder_pool::Update<'_>| {
        for inode in inodes {
            let key = Key::new(inode, EXTENT, 0);
            let old = Extent::decode(&tree.get(&key)?.expect("a file"))?;
            tree.remove(&key)?;
            tree.drop_block(&old);
        }
        Ok::<_, PoolError>(())
    };
    dataset.update(&op, update).unwrap();
}

fn blocks(pool: &Kept) -> usize {
    pool.commit().unwrap();
    let printed = pool.blocks().unwrap().into_iter().filter(|(_, entry)| entry.print.is_some()).count();
    assert_whole(pool, "after a commit");
    printed
}

fn import_again(sim: &SimWorld, pool: Kept, seed: u64) -> Kept {
    pool.commit_export().unwrap();
    drop(pool);
    let pool = open(sim, seed);
    // Blocks that the index lacks are taken up beside commits.
    while pool.dedup_figures().catching_up {
        pool.tick().unwrap();
    }
    pool
}

#[test]
fn a_second_copy_stores_nothing_whatever_its_dataset_codec_or_time() {
    for word in ["on", "verify"] {
        let (sim, pool) = pool_with(word);
        put(&pool, "tank", 10, 0..100);
        assert_eq!(blocks(&pool), 100);
        let stored = pool.writes().stored;
        // In the same import, in another dataset; twice in one batch.
        pool.create_dataset("tank/d", [("compression".to_owned(), "zstd".to_owned())].into()).unwrap();
        put(&pool, "tank/d", 10, (0..100).chain(0..100));
        assert_eq!((pool.writes().stored, blocks(&pool)), (stored, 100));
        // After an import, which knows nothing but what is on disk.
        let pool = import_again(&sim, pool, 2);
        put(&pool, "tank", 1000, 0..100);
        assert_eq!((pool.writes().stored, blocks(&pool)), (0, 100), "{:?}", pool.dedup_figures());
        let figures = pool.dedup_figures();
        assert_eq!((figures.looked_up, figures.hits, figures.misses), (100, 100, 0), "{figures:?}");
        assert!(
            figures.saved_bytes > 0 && figures.locality_hits >= 99,
            "one read finds them all: {figures:?}"
        );
        // It outlives the first copy, and each reference can go alone.
        remove(&pool, 10..110);
        assert_eq!(blocks(&pool), 100);
        common::assert_whole(&pool, "without the first copy");
    }
}

#[test]
fn records_without_dedup_are_neither_found_nor_find() {
    let (_sim, pool) = pool_with("off");
    put(&pool, "tank", 10, 0..50);
    pool.create_dataset("tank/d", [("dedup".to_owned(), "on".to_owned())].into()).unwrap();
    put(&pool, "tank/d", 10, 0..50);
    assert_eq!(blocks(&pool), 50, "what was stored without a fingerprint is not found");
    let stored = pool.writes().stored;
    put(&pool, "tank", 1000, 0..50);
    assert!(pool.writes().stored > stored, "nor does it look");
    assert_eq!(pool.dedup_figures().looked_up, 50);
}

#[test]
fn with_dedup_off_everywhere_there_is_no_index() {
    let (sim, pool) = pool_with("off");
    put(&pool, "tank", 10, 0..50);
    pool.commit().unwrap();
    let nothing = larder_pool::DedupFigures { sampling: 1, ..Default::default() };
    assert_eq!(pool.dedup_figures(), nothing);
    let pool = import_again(&sim, pool, 2);
    assert_eq!(pool.dedup_figures(), nothing);
    // On, and off again: it sleeps, and finds what it knew when it wakes.
    pool.set_property(ROOT_DATASET, "dedup", "on").unwrap();
    put(&pool, "tank", 100, 100..150);
    assert!(pool.dedup_figures().memory_bytes > 0);
    pool.set_property(ROOT_DATASET, "dedup", "off").unwrap();
    assert_eq!(pool.dedup_figures().memory_bytes, 0);
    let pool = import_again(&sim, pool, 3);
    assert_eq!(pool.dedup_figures().memory_bytes, 0);
    pool.set_property(ROOT_DATASET, "dedup", "on").unwrap();
    while pool.dedup_figures().catching_up {
        pool.tick().unwrap();
    }
    put(&pool, "tank", 200, 100..150);
    assert_eq!(pool.dedup_figures().hits, 50);
}

#[test]
fn what_died_is_not_found_and_what_is_dying_comes_back() {
    let (_sim, pool) = pool_with("on");
    put(&pool, "tank", 10, 0..20);
    assert_eq!(blocks(&pool), 20);
    remove(&pool, 10..30);
    // Not committed yet: they are shared from now on.
    put(&pool, "tank", 50, 0..10);
    pool.commit().unwrap();
    while pool.free_step(64).unwrap() {}
    pool.commit().unwrap();
    pool.upkeep.gc.start().unwrap();
    while pool.upkeep.gc.step(64).unwrap() {}
    while pool.free_step(64).unwrap() {}
    assert_eq!(blocks(&pool), 10);
    put(&pool, "tank", 80, 0..20);
    assert_eq!(blocks(&pool), 20);
    let figures = pool.dedup_figures();
    assert_eq!((figures.looked_up, figures.hits), (50, 20), "{figures:?}");
}

#[test]
fn an_index_that_leads_to_nothing_costs_no_data() {
    let (sim, pool) = pool_with("on");
    let record = |n: u64| content(n, 1, LEN);
    let prints: Vec<_> = (0..20).map(|n| pool.fingerprint(&record(n))).collect();
    pool.index_absent(&prints).unwrap();
    put(&pool, "tank", 10, 0..20);
    let figures = pool.dedup_figures();
    assert_eq!((figures.hits, figures.stale), (0, 20), "{figures:?}");
    pool.commit().unwrap();
    let pool = import_again(&sim, pool, 2);
    assert_eq!(blocks(&pool), 20);
    put(&pool, "tank", 40, 0..20);
    assert_eq!(blocks(&pool), 20);
}

#[test]
fn verify_stores_anew_what_cannot_be_compared() {
    let (sim, pool) = pool_with("verify");
    pool.set_property(ROOT_DATASET, "compression", "off").unwrap();
    put(&pool, "tank", 10, 0..3);
    pool.commit().unwrap();
    drop(pool);
    let image = sim.device(0).image();
    let (size, needle) = (128 << 20, &content(1, 1, LEN)[..64]);
    let bytes = image.read(DeviceOffset::new(0), size);
    let at = bytes.windows(64).position(|window| window == needle).expect("it was stored as it is");
    sim.device(0).flip_bits(DeviceOffset::new(at as u64), 64, 7);
    let pool = open(&sim, 2);
    pool.commit().unwrap();
    put(&pool, "tank", 20, 0..3);
    let figures = pool.dedup_figures();
    assert_eq!((figures.hits, figures.refuted), (2, 1), "{figures:?}");
}

#[test]
fn rebuilding_takes_up_what_was_stored_before_dedup_was_on() {
    let (sim, pool) = pool_with("off");
    put(&pool, "tank", 10, 0..60);
    pool.commit().unwrap();
    assert!(matches!(pool.rebuild_index(), Err(PoolError::Invalid(_))));
    pool.set_property(ROOT_DATASET, "dedup", "on").unwrap();
    put(&pool, "tank", 100, 60..90);
    pool.rebuild_index().unwrap();
    while pool.rebuild_step(7).unwrap() {}
    assert_eq!(pool.rebuild_progress(), None);
    assert_eq!(blocks(&pool), 90);
    let pool = import_again(&sim, pool, 2);
    put(&pool, "tank", 500, 0..90);
    assert_eq!(blocks(&pool), 90, "{:?}", pool.dedup_figures());
}

#[test]
fn what_is_known_to_be_lost_is_stored_anew_when_it_is_written_again() {
    let (sim, pool) = pool_with("on");
    put(&pool, "tank", 10, 0..4);
    pool.commit().unwrap();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let extent = |inode| {
        let value = dataset.view().unwrap().get(&Key::new(inode, EXTENT, 0)).unwrap();
        Extent::decode(&value.expect("a file")).unwrap()
    };
    let lost = extent(12).ptr;
    let segment =
        pool.store().segments().into_iter().find(|segment| segment.id == lost.place.segment).unwrap();
    let slot = segment.slots[usize::from(lost.place.column)];
    let at = pool.store().members().get(slot.device).slot_offset(slot.index, lost.place.offset).get();
    sim.device(0).inject(larder_sim::Fault::FailReads(at..at + 4096));
    pool.store().drop_caches();
    assert!(pool.store().read(lost).is_err());
    // As whoever read it tells.
    pool.damage().note_unreadable((dataset.id(), HEAD), 12, 0, LEN as u64, lost.id);
    // From a backup, over the old one.
    put(&pool, "tank", 12, 2..3);
    put(&pool, "tank", 20, 0..2);
    pool.commit().unwrap();
    pool.store().drop_caches();
    assert_eq!(&pool.store().read(extent(12).ptr).unwrap()[..], content(2, 1, LEN));
    assert_eq!(extent(20).ptr.id, extent(10).ptr.id, "what is not lost is found as ever");
    assert_eq!(pool.upkeep.damage.known(), []);
}
