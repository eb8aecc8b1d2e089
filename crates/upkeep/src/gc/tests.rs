//! Tests of the collection's parts. The whole of it is tested from outside, in `tests/gc.rs`.

use super::spill::{Counted, Merged, PAGE, PUSHED_BYTES, Spill, Tag};
use super::*;
use crate::{ScrubSince, Upkeep, bed};
use larder_device::{Entropy, SeededEntropy};
use larder_format::items::EXTENT;
use larder_format::segment::Slot;
use larder_format::{ByteLen, DeviceIndex, GroupIndex, Place};
use larder_pool::ROOT_DATASET;
use larder_sim::SimWorld;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// Pages in memory that counts its bytes.
#[derive(Default)]
struct Pages {
    pages: MemoryPages,
    bytes: u64,
    largest: usize,
}

impl PageReader for Pages {
    type Error = PoolError;
    fn read_page(&self, ptr: BlockPtr) -> Result<Arc<[u8]>> {
        self.pages.read_page(ptr)
    }
    fn refused(&self, ptr: BlockPtr, why: Corrupt) -> PoolError {
        self.pages.refused(ptr, why)
    }
}

impl PageWriter for Pages {
    fn write_page(&mut self, payload: &[u8]) -> Result<BlockPtr> {
        self.bytes += payload.len() as u64;
        self.largest = self.largest.max(payload.len());
        self.pages.write_page(payload)
    }
}

/// Pushes as the collection does; the most memory in use.
fn fill(spill: &mut Spill, pages: &mut Pages, ids: impl Iterator<Item = (u64, u32)>) -> usize {
    let mut most = 0;
    for (id, logical) in ids {
        if spill.is_full(1) {
            spill.spill(pages).unwrap();
            most = most.max(spill.memory_bytes());
            while spill.join_step(pages, 3).unwrap() {
                most = most.max(spill.memory_bytes());
            }
        }
        spill.push(BlockId::new(id), Tag::new(logical, logical >> 12));
    }
    most.max(spill.memory_bytes())
}

fn all(mut merged: Merged, pages: &Pages) -> Vec<Counted> {
    std::iter::from_fn(|| merged.next(pages).unwrap()).collect()
}

#[test]
fn ids_come_back_ascending_and_counted_however_they_were_spilled() {
    let entropy = SeededEntropy::new(1);
    for (ids, range) in [(0, 1), (100, 50), (50_000, 20_000), (200_000, u64::MAX / 8)] {
        let mut spill = Spill::new(0);
        let mut pages = Pages::default();
        let mut model: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        let pushed: Vec<u64> = (0..ids).map(|_| entropy.next_u64() % range).collect();
        for &id in &pushed {
            model.entry(id).or_insert((0, (id % 3) as u32 * 4096)).0 += 1;
        }
        fill(&mut spill, &mut pages, pushed.into_iter().map(|id| (id, (id % 3) as u32 * 4096)));
        while spill.join_all_step(&mut pages, 2).unwrap() {}
        let found = all(spill.read(&pages).unwrap(), &pages);
        let expected = model.into_iter().map(|(id, (count, logical))| {
            let tag = Tag::new(logical, logical >> 12);
            Counted { id, tag, count }
        });
        assert!(expected.eq(found), "{ids} ids below {range}");
        assert!(pages.largest <= PAGE);
    }
}

#[test]
fn a_set_that_is_being_read_is_added_to_and_read_on() {
    let entropy = SeededEntropy::new(3);
    let mut spill = Spill::new(0);
    let mut pages = Pages::default();
    let mut model = BTreeSet::<u64>::new();
    let mut add = |spill: &mut Spill, pages: &mut Pages, count: usize, from: u64| {
        let ids: Vec<u64> = (0..count).map(|_| from + entropy.next_u64() % (60_000 - from)).collect();
        model.extend(&ids);
        fill(spill, pages, ids.into_iter().map(|id| (id, 0)));
        while spill.join_all_step(pages, 2).unwrap() {}
        model.clone()
    };
    let mut all = add(&mut spill, &mut pages, 9000, 0);
    let mut merged = spill.read(&pages).unwrap();
    for id in 0..60_000 {
        assert_eq!(merged.contains(id, &pages).unwrap(), all.contains(&id), "{id}");
        if id % 5000 == 4999 && id < 59_999 {
            spill.take_back(merged);
            all = add(&mut spill, &mut pages, [10, 1000, 9000][id as usize / 5000 % 3], id + 1);
            merged = spill.read(&pages).unwrap();
        }
    }
}

#[test]
fn membership_is_told_in_ascending_order() {
    let mut spill = Spill::new(0);
    let mut pages = Pages::default();
    fill(&mut spill, &mut pages, (0..9001).map(|i| (i * 7 % 9001 * 2, 0)));
    while spill.join_all_step(&mut pages, 9).unwrap() {}
    let mut merged = spill.read(&pages).unwrap();
    for id in (0..18_000).step_by(3) {
        assert_eq!(merged.contains(id, &pages).unwrap(), id % 2 == 0, "{id}");
    }
}

#[test]
fn pages_that_are_cut_short_are_refused() {
    let mut pages = Pages::default();
    let mut spill = Spill::new(0);
    fill(&mut spill, &mut pages, (0..5000).map(|id| (id * 1000, 0)));
    for page in &mut pages.pages.0 {
        *page = page[..page.len() - 1].into();
    }
    while spill.join_all_step(&mut pages, 9).unwrap_or(false) {}
    let mut merged = spill.read(&pages).unwrap();
    let failed = (0..5000).find_map(|_| merged.next(&pages).err());
    assert!(matches!(failed, Some(PoolError::Corrupt(_))), "{failed:?}");
}

#[test]
fn spilling_is_bounded_and_small() {
    let full = std::env::var_os("LARDER_LARGE").is_some();
    let (ids, memory) = if full { (100_000_000, 12 << 20) } else { (2_000_000, 1 << 20) };
    let entropy = SeededEntropy::new(2);
    for (name, distance, expected) in
        [("dense", 1, 1.01), ("1 in 100", 100, 2.02), ("1 in 10,000", 10_000, 3.03)]
    {
        let mut spill = Spill::new(memory);
        let mut pages = Pages::default();
        // The walk meets ids in the order of places: about in order, over a wide window.
        let window = 1 << 16;
        let near = (0..ids as u64).map(|i| {
            let at = (i / window * window + i % window * 40_503 % window).min(ids as u64 - 1);
            (1 + at * distance + entropy.next_u64() % distance, 128 << 10)
        });
        let most = fill(&mut spill, &mut pages, near);
        let (first, runs) = (pages.bytes, spill.pages_written());
        // Addresses of pages come on top.
        let refs = 2 * runs as usize * size_of::<BlockPtr>();
        while spill.join_all_step(&mut pages, 64).unwrap() {
            assert!(spill.memory_bytes() <= memory + refs, "{} B of memory", spill.memory_bytes());
        }
        println!(
            "{ids} ids, {name}: {} B an id in the buffer, {:.2} B an id in pages, {:.2} with merges; {most} B of memory for {memory} and the addresses of {runs} pages",
            PUSHED_BYTES,
            spill.bytes_of(&pages.pages) as f64 / ids as f64,
            pages.bytes as f64 / ids as f64,
        );
        assert!(first as f64 / ids as f64 <= expected * 2.0);
        assert!(spill.bytes_of(&pages.pages) as f64 / ids as f64 <= expected + 0.2, "{name}");
        assert!(most <= memory + refs, "{most} B of memory for {memory} and {refs}");
        let mut merged = spill.read(&pages).unwrap();
        let mut last = 0;
        while let Some(next) = merged.next(&pages).unwrap() {
            assert!(next.id > last || last == 0);
            last = next.id;
        }
    }
}

/// A pool whose root dataset has `count` extents, of blocks that are not there: the walk does not read them.
fn pool_of(count: u64) -> Arc<Pool> {
    let sim = SimWorld::new(&[ByteLen::new(96 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    name_blocks(&pool, 0..count);
    pool.commit().unwrap();
    pool
}

/// Names a block under each of these inodes.
fn name_blocks(pool: &Pool, inodes: std::ops::Range<u64>) {
    let op = pool.enter().unwrap();
    let named = pool.dataset(ROOT_DATASET).unwrap().update(&op, |tree| {
        for inode in inodes {
            let ptr = BlockPtr { id: pool.store().core.lock().take_ids(1), place: NOWHERE };
            let extent = Extent { ptr, len: 100, block_offset: 0, logical: 4096, placed: 0, copies: 1 };
            tree.insert(Key::new(inode, EXTENT, 0), &extent.encode())?;
        }
        Ok::<_, PoolError>(())
    });
    named.unwrap();
}

#[test]
fn steady_second_references_keep_no_sweep_from_freeing() {
    let pool = pool_of(6000);
    let all = pool.store().core.lock().next_block.get();
    let touched = pool.store().core.lock().take_ids(100_000);
    // Dead blocks come last in the order of ids, and one of them is needed again during the sweep.
    let dead: Vec<BlockId> = (0..20).map(|_| pool.store().core.lock().take_ids(1)).collect();
    for id in (1..all).map(BlockId::new).chain(dead.iter().copied()) {
        let places = larder_format::run::Places::new(&[NOWHERE]).unwrap();
        pool.store().map.lock().apply(larder_sorted::map::Update::Put { id, places });
    }
    let upkeep = Upkeep::new(&pool);
    pool.freeing().note_shared(dead[0]);
    pool.commit().unwrap();
    assert!(upkeep.gc.start().unwrap());
    let mut touches = (0..10).map(|i| touched.get() + i * 10_000);
    while upkeep.gc.step(8).unwrap() {
        // Long before the sweep comes to what is dead.
        if upkeep.gc.progress().is_some_and(|of| of.phase == Phase::Sweep)
            && let Some(from) = touches.next()
        {
            (from..from + 10_000).map(BlockId::new).for_each(|id| pool.freeing().note_shared(id));
            pool.freeing().note_shared(dead[1]);
        }
    }
    assert_eq!(touches.next(), None);
    let found = upkeep.gc.findings().unwrap();
    assert_eq!((found.outcome, found.unshared), (Outcome::Done, 0));
    while pool.free_step(64).unwrap() {}
    let mut left: Vec<_> = pool.blocks().unwrap().into_iter().map(|(id, _)| id).collect();
    left.retain(|id| dead.contains(id));
    assert_eq!(left, [dead[1]], "what nothing refers to is gone");
}

#[test]
fn a_missing_block_is_one_whoever_refers_to_it() {
    let pool = pool_of(1);
    pool.create_dataset("tank/other", BTreeMap::new()).unwrap();
    let ptr = BlockPtr { id: pool.store().core.lock().take_ids(1), place: NOWHERE };
    for dataset in pool.datasets() {
        let op = pool.enter().unwrap();
        let named = dataset.update(&op, |tree| {
            let extent = Extent { ptr, len: 100, block_offset: 0, logical: 4096, placed: 0, copies: 1 };
            tree.insert(Key::new(7, EXTENT, 0), &extent.encode())
        });
        named.unwrap();
    }
    pool.commit().unwrap();
    let upkeep = Upkeep::new(&pool);
    assert!(upkeep.gc.start().unwrap());
    while upkeep.gc.step(8).unwrap() {}
    let found = upkeep.gc.findings().unwrap();
    assert_eq!(
        (found.missing, found.missing_sample.contains(&ptr.id.get())),
        (2, true),
        "that of both, and one more"
    );
}

const NOWHERE: Place = Place { segment: SegmentId::new(1 << 40), column: 0, offset: 4096, stored: 100 };

/// Notes what a walk shows.
#[derive(Default)]
struct Seen {
    nodes: Vec<BlockId>,
    fresh: usize,
    extents: Vec<(u32, u64, Met)>,
}

impl Visitor for Seen {
    fn node(&mut self, _: &PinnedTree, ptr: BlockPtr, fresh: bool) -> Result<()> {
        self.nodes.push(ptr.id);
        self.fresh += usize::from(fresh);
        Ok(())
    }
    fn extent(&mut self, member: &PinnedTree, key: &Key, _: &Extent, met: Met) -> Result<()> {
        self.extents.push((member.number, key.object, met));
        Ok(())
    }
    fn lost(&mut self, member: &PinnedTree, what: String) {
        panic!("{}: {what}", member.name);
    }
}

fn walked(pool: &Pool, memory: usize, deep: bool) -> (Seen, usize) {
    pool.store().drop_caches();
    let mut walk = TreeWalk::new(
        pool.pin(&pool.keep_out(), pool.store().durable_commit()).members,
        BlockId::new(0),
        memory,
        deep,
    );
    let mut seen = Seen::default();
    while walk.step(pool, &mut seen).unwrap() > 0 {}
    (seen, walk.most_bytes())
}

#[test]
fn the_walk_reads_each_node_once_in_bounded_memory() {
    let pool = pool_of(150_000);
    for memory in [0, 256 << 10, 8 << 20] {
        let (seen, most) = walked(&pool, memory, false);
        let distinct: BTreeSet<_> = seen.nodes.iter().collect();
        assert_eq!(distinct.len(), seen.nodes.len());
        assert!(seen.nodes.len() > 500, "{} nodes", seen.nodes.len());
        let extents: BTreeSet<_> = seen.extents.iter().map(|(_, inode, _)| *inode).collect();
        assert_eq!((extents.len(), seen.extents.len()), (150_000, 150_000));
        // The least is one node a level, with all its children.
        let least = 3 * larder_format::node::MAX_CHILDREN * 130;
        println!("{memory} B for the walk: at most {most} B waited, {} nodes", seen.nodes.len());
        assert!(most <= memory.max(least), "{most} B of {memory}");
    }
}

#[test]
fn only_what_the_predecessor_lacks_is_walked_and_what_is_carried_on_is_no_reference() {
    let pool = pool_of(20_000);
    pool.snapshot(ROOT_DATASET, "a").unwrap();
    let (before, _) = walked(&pool, 1 << 20, false);
    // One leaf is written anew, with its path to the root: most of it is carried on.
    name_blocks(&pool, 700..701);
    pool.commit().unwrap();
    let (after, _) = walked(&pool, 1 << 20, false);
    assert_eq!(after.nodes.len(), before.nodes.len() + 2, "a leaf, the root, no more");
    let of_head: Vec<_> = after.extents.iter().filter(|(member, ..)| *member == 1).collect();
    let new: Vec<_> = of_head.iter().filter(|(.., met)| *met == Met::Reference).collect();
    assert!(of_head.len() > 50, "the leaf's other entries");
    assert_eq!(new, [&&(1, 700, Met::Reference)]);
    // A deep walk enters everything, and says what is fresh.
    let (deep, _) = walked(&pool, 1 << 20, true);
    assert_eq!(deep.fresh, after.nodes.len());
    assert_eq!(deep.extents.len(), 40_000);
    assert_eq!(deep.extents.iter().filter(|(.., met)| *met == Met::Reference).count(), 20_001);
}

#[test]
fn a_step_that_finds_no_room_leaves_no_segment_without_its_descriptors() {
    let pool = pool_of(100);
    pool.set_pool_property("memory", "400000").unwrap();
    let upkeep = Upkeep::new(&pool);
    assert!(upkeep.gc.start().unwrap());
    let mut taken = Vec::new();
    {
        let mut slot = upkeep.gc.collection.lock();
        upkeep.gc.take_pinned(&mut slot);
        let freed = &mut slot.as_mut().unwrap().sets.freed;
        // More than a page of them: the first opens a segment, and too few are free for the next one.
        (0..60_000).for_each(|i| freed.push(BlockId::new(i << 20), Tag::default()));
        let mut core = pool.store().core.lock();
        let group = GroupIndex::new(0);
        core.close_streams(group);
        let space = core.groups.change(group).unwrap();
        while space.free_segments() > FREE_SEGMENTS_LEAST {
            let device = DeviceIndex::new(0);
            taken.push(Slot { device, index: space.take_any(device).unwrap() });
        }
    }
    let failed = upkeep.gc.step(64);
    assert!(matches!(failed, Err(PoolError::NoSpace)), "{failed:?}");
    for slot in taken {
        pool.store().core.lock().groups.change(GroupIndex::new(0)).unwrap().give_back(slot);
    }
    for id in (1..50).map(BlockId::new) {
        let places = larder_format::run::Places::new(&[NOWHERE]).unwrap();
        pool.store().map.lock().apply(larder_sorted::map::Update::Put { id, places });
        pool.commit().unwrap();
    }
    upkeep.scrub.start(ScrubSince::All).unwrap();
    while upkeep.scrub.step(u64::MAX).unwrap() {}
    let members = pool.store().members();
    let errors = members.iter().map(|member| member.counters.checksum_errors.load(Ordering::Relaxed));
    assert_eq!(errors.sum::<u64>(), 0);
}
