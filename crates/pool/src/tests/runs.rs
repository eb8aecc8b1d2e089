use crate::Pool;
use larder_sync::Mutex;
use std::sync::Arc;

use crate::bed;
use larder_device::{Device, Outcome, Pending, Request};
use larder_format::run::Places;
use larder_format::{BlockId, ByteLen, GroupIndex, Place, SegmentId};
use larder_sim::SimWorld;
use larder_sorted::map::{Location, LookUp, Update};
use larder_store::RunIo;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts reads of the block map's pages, and those for which it was held.
struct Watched {
    device: Arc<dyn Device>,
    pool: Mutex<Weak<Pool>>,
    reads: AtomicU64,
    held: AtomicU64,
}

impl Device for Watched {
    fn name(&self) -> String {
        self.device.name()
    }
    fn size(&self) -> ByteLen {
        self.device.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        if let (Request::Read { .. }, Some(pool)) = (&request, self.pool.lock().upgrade()) {
            self.reads.fetch_add(1, Relaxed);
            // A commit that has closed the gate holds nobody back but readers, and reads little.
            let held = pool.shared.store.map.is_locked() && !pool.gate.is_locked_exclusive();
            self.held.fetch_add(u64::from(held), Relaxed);
        }
        self.device.submit(request)
    }
}

/// A pool whose map has eight runs that are too large to be merged at once, and none of their pages in memory.
fn pool_with_runs() -> (Arc<Pool>, Arc<Watched>) {
    let sim = SimWorld::new(&[ByteLen::new(96 << 20)]);
    let (reads, held) = (AtomicU64::new(0), AtomicU64::new(0));
    let watched = Arc::new(Watched { device: sim.devices().remove(0), pool: Mutex::default(), reads, held });
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&watched) as _];
    let pool = bed::pool(devices, "single");
    pool.shared.store.map.lock().set_resident_limit(0);
    for run in 0..8 {
        for n in 0..12_000 {
            let id = pool.shared.store.core.lock().take_ids(1);
            pool.shared.store.map.lock().apply(Update::Put { id, places: place_of(id.get() + run + n) });
        }
        pool.commit().unwrap();
    }
    *watched.pool.lock() = Arc::downgrade(&pool);
    (pool, watched)
}

fn place_of(n: u64) -> Places {
    let segment = SegmentId::new((1 << 40) + n % 7);
    Places::new(&[Place { segment, column: 0, offset: 4096 + (n % 1000) as u32 * 8, stored: 100 }]).unwrap()
}

#[test]
fn the_map_is_not_held_while_large_runs_are_merged() {
    let (pool, watched) = pool_with_runs();
    while pool.shared.store.map.lock().descriptors().count() > 2 {
        let id = pool.shared.store.core.lock().take_ids(1);
        pool.shared.store.map.lock().apply(Update::Put { id, places: place_of(id.get()) });
        pool.commit().unwrap();
    }
    assert!(watched.reads.load(Relaxed) >= 8, "{:?} pages were read", watched.reads);
    assert_eq!(watched.held.load(Relaxed), 0);
    let first = pool.blocks().unwrap();
    assert!(first.len() >= 96_000);
}

#[test]
fn changes_of_the_map_ask_for_a_commit_before_they_take_more_than_their_share() {
    let (pool, _) = pool_with_runs();
    pool.set_pool_property("memory", "4000000").unwrap();
    let share = 200_000;
    while !pool.is_map_large() {
        let id = pool.shared.store.core.lock().take_ids(1);
        pool.shared.store.map.lock().apply(Update::Put { id, places: place_of(id.get()) });
        assert!(pool.shared.store.map.lock().memtable_bytes() <= share + 1000);
    }
    assert!(pool.shared.store.map.lock().memtable_bytes() > share);
    pool.commit().unwrap();
    assert!(!pool.is_map_large());
}

#[test]
fn runs_give_up_segments_that_are_mostly_dead() {
    let (pool, _) = pool_with_runs();
    let thin =
        || pool.shared.store.core.lock().entries.values().filter(|entry| entry.thin().is_some()).count();
    let blocks = pool.blocks().unwrap();
    // Large and small runs lie in the same segments; the small ones are soon merged.
    for round in 0..160 {
        for n in 0..60 {
            let id = pool.shared.store.core.lock().take_ids(1);
            pool.shared.store.map.lock().apply(Update::Put { id, places: place_of(id.get() * 37 + n) });
        }
        pool.commit().unwrap();
        if round % 20 == 0 {
            pool.shared.store.core.lock().close_streams(GroupIndex::new(0));
        }
    }
    let before = thin();
    for _ in 0..12 {
        pool.evacuate_thin();
        pool.commit().unwrap();
    }
    assert!(before > 2 && thin() < 2, "{before} were thin, {} are", thin());
    let after = pool.blocks().unwrap();
    assert!(blocks.iter().all(|block| after.binary_search_by_key(&block.0, |of| of.0).is_ok()));
}

#[test]
fn a_look_up_outlives_the_runs_that_it_began_with() {
    let (pool, _) = pool_with_runs();
    let id = BlockId::new(pool.shared.store.next_block().get() - 50_000);
    let location = |look_up: &LookUp, io: &RunIo<'_>| look_up.location(io);
    let before = pool.shared.store.look_up(id, location).unwrap();
    assert!(matches!(before, Some(Location::Places(_))));
    let begun = pool.shared.store.map.lock().look_up(id);
    let at_first = RunIo::new(&pool.shared.store);
    for _ in 0..12 {
        pool.shared.store.core.lock().close_streams(GroupIndex::new(0));
        pool.shared.store.map.lock().evacuate(|_| true);
        pool.commit().unwrap();
    }
    pool.shared.store.drop_caches();
    assert!(begun.location(&at_first).is_err(), "the runs that it knows are gone");
    assert_eq!(pool.shared.store.finish_look_up(begun, id, location).unwrap(), before);
}
