//! Beyond tolerance: what cannot be had is refused and named, exactly; everything else is served, and nothing wrong ever is.

use crate::bed::{Bed, Change, Coverage, apply, bytes_of, extent};
use crate::common::plans;
use crate::flips::{Pattern, flip};
use crate::seeds::{full, on_two_threads, setting};
use crate::shape::Shape;
use crate::structures::{Piece, Structure, structures};
use larder_format::segment::SegmentRecord;
use larder_format::{DeviceOffset, Place};
use larder_pool::scrub::ScrubSince;
use larder_pool::{ImportOptions, Pool, PoolError, parity};
use larder_sim::DeviceImage;
use std::collections::{BTreeMap, BTreeSet};

const SHAPES: [Shape; 9] = [
    Shape { word: "single", width: 1, groups: 1 },
    Shape { word: "mirror", width: 2, groups: 1 },
    Shape { word: "mirror", width: 3, groups: 1 },
    Shape { word: "raidz1", width: 4, groups: 1 },
    Shape { word: "raidz2", width: 6, groups: 1 },
    Shape { word: "raidz3", width: 7, groups: 1 },
    Shape { word: "raid10", width: 4, groups: 1 },
    Shape { word: "raid14", width: 7, groups: 1 },
    Shape { word: "raidz1", width: 3, groups: 2 },
];

/// A pool at rest, after some work.
fn worked(seed: u64, coverage: &mut Coverage) -> Bed {
    let mut bed = Bed::new(SHAPES[seed as usize % SHAPES.len()], seed);
    for _ in 0..10 + bed.next(20) {
        match bed.next(5) {
            0 => bed.remove(),
            1 | 2 => bed.commit(),
            _ => bed.put(),
        }
    }
    bed.commit();
    *coverage.entry(bed.shape.to_string()).or_default() += 1;
    bed
}

/// Bits flip in columns of rows that hold records, as many as chance has it.
fn ruin_rows(bed: &Bed, pieces: &[Piece], images: &mut [DeviceImage]) {
    let mut rows: BTreeMap<_, Vec<&Piece>> = BTreeMap::new();
    for piece in pieces {
        if let Some(part) = piece.row {
            rows.entry((part.segment, part.offset)).or_default().push(piece);
        }
    }
    let records = [Structure::Data, Structure::Parity, Structure::Small];
    for parts in rows.values().filter(|parts| parts.iter().any(|piece| records.contains(&piece.what))) {
        if bed.next(3) == 0 {
            continue;
        }
        let (many, pattern) =
            (1 + bed.next(4), [Pattern::One, Pattern::Burst, Pattern::OneIn(256)][bed.next(3) as usize]);
        let headers = bed.next(4) == 0;
        for piece in parts.iter().filter(|piece| headers || piece.what != Structure::RowHeader) {
            if bed.next(many) == 0 {
                flip(&mut images[piece.device], piece, pattern, &|n| bed.next(n));
            }
        }
    }
}

/// Whether a block must be readable: some replica of it is whole, or enough whole columns beside it are left.
fn must_be_readable(
    pool: &Pool,
    segment: &SegmentRecord,
    place: Place,
    is_whole: impl Fn(usize, DeviceOffset, usize) -> bool,
) -> bool {
    let layout = segment.layout;
    let whole = |column: usize, len: u32| {
        let slot = segment.slots[column];
        let member = pool.members().get(slot.device);
        is_whole(slot.device.get().into(), member.slot_offset(slot.index, place.offset), len as usize)
    };
    let has = |i: usize, len: u32| (0..layout.r()).any(|j| whole(layout.replica(i, j), len));
    if has(place.column.into(), place.stored) {
        return true;
    }
    let wide = place.stored.next_multiple_of(parity::STEP as u32);
    let lacking = 1 + (0..layout.k()).filter(|&i| i != usize::from(place.column) && !has(i, wide)).count();
    lacking <= (0..layout.m()).filter(|&p| whole(layout.parity(p), wide)).count()
}

/// Rot in what files hold: those that are hit are named, the others are served.
fn ruin_files(seed: u64, coverage: &mut Coverage) {
    let mut bed = worked(seed, coverage);
    let pool = bed.pool();
    let before = bed.sim.images();
    let mut after = before.clone();
    ruin_rows(&bed, &structures(&pool, &bed.sim), &mut after);
    for (device, image) in after.iter().enumerate() {
        bed.sim.device(device).swap_media(image.clone());
    }
    let is_whole = |device: usize, at: DeviceOffset, len: usize| {
        let fits = at.get() + len as u64 <= before[device].size().get();
        fits && before[device].read(at, len)[..] == after[device].read(at, len)[..]
    };
    let segments: BTreeMap<_, _> = pool.segments().into_iter().map(|segment| (segment.id, segment)).collect();
    let unreadable = || {
        pool.drop_caches();
        let mut hit = BTreeSet::new();
        for (&inode, &(version, len)) in bed.model() {
            let ptr = extent(&pool, inode).unwrap().ptr;
            match pool.read(ptr) {
                Ok(found) => assert!(found[..] == bytes_of(inode, version, len), "file {inode} is another"),
                Err(PoolError::Unreadable { .. }) => {
                    let place = pool.whereabouts(ptr.id).unwrap().expect("the map knows it").place;
                    let must = must_be_readable(&pool, &segments[&place.segment], place, is_whole);
                    assert!(!must, "file {inode} could be read");
                    hit.insert(inode);
                }
                Err(error) => panic!("file {inode}: {error}"),
            }
        }
        hit
    };
    let at_first = unreadable();
    pool.scrub_start(ScrubSince::All).unwrap();
    while pool.scrub_step(u64::MAX).unwrap() {}
    while pool.name_lost_step(64).unwrap() {}
    // A scrub looks at whole rows, and may give back what a read of one block cannot.
    let hit = unreadable();
    assert!(hit.is_subset(&at_first), "the scrub lost {hit:?} of {at_first:?}");
    let named: BTreeSet<u64> = pool.damage().iter().map(|damage| damage.inode).collect();
    assert_eq!(named, hit, "named are others than those that are hit");
    let mut count = |what: &str, times: usize| *coverage.entry(what.into()).or_default() += times as u64;
    count("files lost", hit.len());
    count("files that only the scrub gave back", at_first.len() - hit.len());
    count("files served", bed.model().len() - hit.len());
    // Everything goes on, and what is written anew is damaged no more.
    let version = bed.states.len() as u64;
    let (again, gone): (Vec<u64>, Vec<u64>) = hit.iter().partition(|inode| **inode % 2 == 0);
    bed.change(again.iter().map(|&inode| (inode, version, 7_000)).collect(), gone);
    bed.commit();
    assert_eq!(pool.damage(), [], "what was written anew is not damaged");
    bed.verify();
    drop(pool);
    bed.export();
    bed.import().unwrap();
    bed.verify();
    assert_eq!(bed.pool().suspended(), None);
}

/// Rot in everything: what is served is right.
fn ruin_all(seed: u64, coverage: &mut Coverage) {
    let mut bed = worked(seed, coverage);
    let alive = bed.next(2) == 0;
    let pool = bed.pool();
    let pieces = structures(&pool, &bed.sim);
    let mut images = bed.sim.images();
    let (many, one_kind) = (1 + bed.next(30), bed.next(2) == 0);
    let kind = Structure::ALL[bed.next(Structure::ALL.len() as u64) as usize];
    for piece in pieces.iter().filter(|piece| !one_kind || piece.what == kind) {
        if bed.next(many) == 0 {
            flip(&mut images[piece.device], piece, Pattern::OneIn(512), &|n| bed.next(n));
        }
    }
    for (device, image) in images.into_iter().enumerate() {
        bed.sim.device(device).swap_media(image);
    }
    let model = bed.model().clone();
    let pool = if alive {
        pool
    } else {
        drop(pool);
        bed.pool = None;
        let Some(plan) = plans(bed.sim.devices()).pop() else { return };
        let options = ImportOptions { read_only: bed.next(2) == 0, ..ImportOptions::default() };
        match Pool::import(crate::common::world(seed), plan, &options) {
            Ok(pool) => pool,
            Err(_) => return *coverage.entry("import refused".into()).or_default() += 1,
        }
    };
    pool.drop_caches();
    let served = |model: &BTreeMap<u64, (u64, usize)>| {
        let mut served = 0;
        for (&inode, &(version, len)) in model {
            let Ok(extent) = extent(&pool, inode) else { continue };
            if let Ok(found) = pool.read(extent.ptr) {
                assert!(found[..] == bytes_of(inode, version, len), "file {inode} is another");
                served += 1;
            }
        }
        served
    };
    let count = served(&model);
    *coverage.entry(format!("served of {kind:?} or all")).or_default() += count;
    // Whatever is asked of it, it answers.
    for _ in 0..8 {
        drop(match bed.next(9) {
            0 => pool.commit().map(drop),
            1 => pool.log_sync(),
            2 => pool.scrub_start(ScrubSince::All).and_then(|()| pool.scrub_step(1 << 20)).map(drop),
            3 => pool.clean_step(true).map(drop),
            4 => pool.trace_start().and_then(|_| pool.trace_step(9)).map(drop),
            5 => pool.free_step(4).map(drop),
            6 => pool.heal_step().map(drop),
            7 => pool.check().map(drop),
            _ => {
                let change = Change { state: 1, puts: vec![(2000 + bed.next(4), 1, 9_000)], removes: vec![] };
                apply(&pool, &change, true)
            }
        });
    }
    while matches!(pool.scrub_step(u64::MAX), Ok(true)) {}
    while matches!(pool.name_lost_step(64), Ok(true)) {}
    pool.drop_caches();
    assert!(served(&model) >= count, "repair made it worse");
}

fn many(name: &str, share: u64, run: fn(u64, &mut Coverage)) {
    let (first, count) =
        (setting("LARDER_SEED", 0), setting("LARDER_TORTURE", if full() { 5 * share } else { share }));
    let coverage = on_two_threads(
        count as usize,
        |i, coverage| run(first + i as u64, coverage),
        |all: &mut Coverage, mine| {
            mine.into_iter().for_each(|(what, times)| *all.entry(what).or_default() += times);
        },
        |i| {
            let seed = first + i as u64;
            format!("LARDER_SEED={seed} LARDER_TORTURE=1 cargo test -p larder-pool --test torture {name}")
        },
    );
    println!("{name}: {count} seeds from {first}: {coverage:?}");
}

#[test]
fn beyond_tolerance_exactly_the_files_that_are_hit_are_named_and_the_rest_is_served() {
    many("beyond_tolerance_exactly", 30, ruin_files);
}

#[test]
fn beyond_tolerance_nothing_wrong_is_served_and_nothing_panics() {
    many("beyond_tolerance_nothing_wrong", 30, ruin_all);
}
