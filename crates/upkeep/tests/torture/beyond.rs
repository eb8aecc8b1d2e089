//! Beyond tolerance: what cannot be had is refused and named, exactly; everything else is served, and nothing wrong
//! ever is.

use crate::bed::{Bed, Change, Coverage, apply, bytes_of, extent};
use crate::common::Kept;
use crate::common::{assert_parts, plans};
use crate::flips::{Pattern, flip};
use crate::seeds::{full, on_two_threads, setting};
use crate::shape::Shape;
use crate::structures::{Piece, Structure, structures};
use larder_format::segment::SegmentRecord;
use larder_format::{DeviceOffset, Place};
use larder_pool::member::MemberState;
use larder_pool::{ImportOptions, Pool, PoolError, parity};
use larder_sim::DeviceImage;
use larder_store::Refusal;
use larder_upkeep::ScrubSince;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// Bits flip in columns of stripes that hold records, as many as chance has it.
fn ruin_stripes(bed: &Bed, pieces: &[Piece], images: &mut [DeviceImage]) {
    let mut stripes: BTreeMap<_, Vec<&Piece>> = BTreeMap::new();
    for piece in pieces {
        if let Some(part) = piece.stripe {
            stripes.entry((part.segment, part.offset)).or_default().push(piece);
        }
    }
    let records = [Structure::Data, Structure::Parity, Structure::Small];
    for parts in stripes.values().filter(|parts| parts.iter().any(|piece| records.contains(&piece.what))) {
        if bed.next(3) == 0 {
            continue;
        }
        let (many, pattern) =
            (1 + bed.next(4), [Pattern::One, Pattern::Burst, Pattern::OneIn(256)][bed.next(3) as usize]);
        let headers = bed.next(4) == 0;
        for piece in parts.iter().filter(|piece| headers || piece.what != Structure::StripeHeader) {
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
        let member = pool.store().members().get(slot.device);
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
    ruin_stripes(&bed, &structures(&pool, &bed.sim), &mut after);
    for (device, image) in after.iter().enumerate() {
        bed.sim.device(device).swap_media(image.clone());
    }
    let is_whole = |device: usize, at: DeviceOffset, len: usize| {
        let fits = at.get() + len as u64 <= before[device].size().get();
        fits && before[device].read(at, len)[..] == after[device].read(at, len)[..]
    };
    let segments: BTreeMap<_, _> =
        pool.store().segments().into_iter().map(|segment| (segment.id, segment)).collect();
    let unreadable = || {
        pool.store().drop_caches();
        let mut hit = BTreeSet::new();
        for (&inode, &(version, len)) in bed.model() {
            let extent = extent(&pool, inode).unwrap();
            let (ptr, wanted) = (extent.ptr, bytes_of(inode, version, len));
            assert_parts(&pool, &extent, &wanted);
            match pool.store().read(ptr) {
                Ok(found) => assert!(found[..] == wanted, "file {inode} is another"),
                Err(PoolError::Unreadable { .. }) => {
                    let place = pool.store().whereabouts(ptr.id).unwrap().expect("the map knows it").place;
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
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    while pool.upkeep.damage.step(64).unwrap() {}
    // A scrub looks at whole stripes, and may give back what a read of one block cannot.
    let hit = unreadable();
    assert!(hit.is_subset(&at_first), "the scrub lost {hit:?} of {at_first:?}");
    let named: BTreeSet<u64> = pool.upkeep.damage.known().iter().map(|damage| damage.inode).collect();
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
    assert_eq!(pool.upkeep.damage.known(), [], "what was written anew is not damaged");
    bed.verify();
    drop(pool);
    bed.export();
    bed.import().unwrap();
    bed.verify();
    assert_eq!(bed.pool().store().suspended(), None);
}

/// Files that cannot be read; the others are what they must be.
fn unreadable(bed: &Bed) -> BTreeSet<u64> {
    let pool = bed.pool();
    pool.store().drop_caches();
    let lost = |(&inode, &(version, len)): (&u64, &(u64, usize))| match pool
        .store()
        .read(extent(&pool, inode).unwrap().ptr)
    {
        Ok(found) => {
            assert!(found[..] == bytes_of(inode, version, len), "file {inode} is another");
            None
        }
        Err(PoolError::Unreadable { .. }) => Some(inode),
        Err(error) => panic!("file {inode}: {error}"),
    };
    bed.model().iter().filter_map(lost).collect()
}

/// Sectors of what files hold, on a device that others cannot stand in for: each in some stripe, as many as chance has
/// it.
fn bad_sectors(bed: &Bed, device: usize) -> Vec<u64> {
    let pieces = structures(&bed.pool(), &bed.sim);
    let records = [Structure::Data, Structure::Parity, Structure::Small];
    let mine: Vec<_> =
        pieces.iter().filter(|piece| piece.device == device && records.contains(&piece.what)).collect();
    let sector = |piece: &&Piece| (piece.at.get() + bed.next(piece.len.max(1) as u64)) / 4096 * 4096;
    let some: BTreeSet<u64> = (0..1 + bed.next(6))
        .filter_map(|_| mine.get(bed.next(mine.len().max(1) as u64) as usize))
        .map(sector)
        .collect();
    some.into_iter().collect()
}

/// The last good disk of a group has sectors that cannot be read, and is replaced: all but what lies in them comes
/// along, over power cuts, and once the loss is accepted just that is named.
fn replace_the_last(seed: u64, coverage: &mut Coverage) {
    let mut bed = worked(seed, coverage);
    let pool = bed.pool();
    let old = bed.some_place(|_| true).expect("a pool has devices");
    // Nobody is left who could give what it does not.
    for seat in bed.places(|seat| seat != old) {
        let out = |other| other == seat || !pool.store().members().get(other).is_online();
        if bed.survives(out) {
            pool.upkeep.devices.offline(seat, false).unwrap();
        }
    }
    let device = usize::from(old.get());
    let bad = bad_sectors(&bed, device);
    let spoil = |bed: &Bed| {
        bad.iter().for_each(|&at| bed.sim.device(device).inject(larder_sim::Fault::FailReads(at..at + 4096)));
    };
    spoil(&bed);
    let blocks = |bed: &Bed, files: &BTreeSet<u64>| -> BTreeSet<_> {
        files.iter().map(|&inode| extent(&bed.pool(), inode).unwrap().ptr.id).collect()
    };
    let before = blocks(&bed, &unreadable(&bed));
    pool.upkeep.devices.replace(old, Arc::new(bed.sim.add_device(bed.shape.device_size()))).unwrap();
    drop(pool);
    let mut since = bed.sim.trace().len();
    let mut cuts = bed.next(3);
    let new = loop {
        let pool = bed.pool();
        let more = pool.upkeep.resilver.step([30_000, 300_000, 3_000_000][bed.next(3) as usize]).unwrap();
        let new = pool.store().members().stand_in(old);
        if bed.next(4) == 0 && cuts > 0 && new.is_some() {
            cuts -= 1;
            drop((pool, new));
            // Readable over the cut: blocks on bad sectors may not be needed when it is over.
            bed.sim.device(device).clear_faults();
            bed.cut(since);
            since = bed.sim.trace().len();
            spoil(&bed);
            bed.count("power cut");
            continue;
        }
        if !more {
            break new;
        }
        if bed.next(4) == 0 {
            bed.put();
        }
    };
    bed.commit();
    let pool = bed.pool();
    match new {
        None => bed.count("nothing was lost"),
        Some(new) => {
            assert_eq!(new.state(), MemberState::Waiting);
            assert!(!matches!(pool.upkeep.devices.accept_loss(new.index), Ok(())), "it stands for another");
            pool.upkeep.devices.accept_loss(old).unwrap();
            bed.count("loss accepted");
        }
    }
    assert!(pool.store().members().stand_in(old).is_none());
    // Files overwritten meanwhile are well; a duplicate of a lost block is not, also where no file had that before.
    let hit = unreadable(&bed);
    let is_bad = |inode: &u64| {
        let place = extent(&pool, *inode).unwrap().ptr.place;
        let segments = pool.store().segments();
        let slot =
            segments.iter().find(|of| of.id == place.segment).unwrap().slots[usize::from(place.column)];
        let start = pool.store().members().get(slot.device).slot_offset(slot.index, place.offset).get();
        bad.iter().any(|&at| start < at + 4096 && at < start + u64::from(place.stored))
    };
    let others: BTreeSet<u64> = hit.iter().copied().filter(|inode| !is_bad(inode)).collect();
    assert!(blocks(&bed, &others).is_subset(&before), "{hit:?} cannot be read, {before:?} could not before");
    while pool.upkeep.damage.step(64).unwrap() {}
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    while pool.upkeep.damage.step(64).unwrap() {}
    let named: BTreeSet<u64> = pool.upkeep.damage.known().iter().map(|damage| damage.inode).collect();
    assert_eq!((&named, &unreadable(&bed)), (&hit, &hit), "named are others than those that are hit");
    bed.count(if hit.is_empty() { "no file is hit" } else { "files are hit" });
    bed.change(Vec::new(), hit.into_iter().collect());
    bed.commit();
    assert_eq!(pool.upkeep.damage.known(), []);
    bed.verify();
    drop(pool);
    bed.export();
    bed.import().unwrap();
    bed.verify();
    std::mem::take(&mut bed.coverage)
        .into_iter()
        .for_each(|(what, times)| *coverage.entry(what).or_default() += times);
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
        if matches!(plan.only_reading, Some(Refusal::RootDamaged { .. })) {
            // It is as it was before the last commit, and that is told.
            return *coverage.entry("older state told of".into()).or_default() += 1;
        }
        match Kept::import(crate::common::world(seed), plan, &options) {
            Ok(pool) => pool,
            Err(_) => return *coverage.entry("import refused".into()).or_default() += 1,
        }
    };
    pool.store().drop_caches();
    let served = |model: &BTreeMap<u64, (u64, usize)>| {
        let mut served = 0;
        for (&inode, &(version, len)) in model {
            let Ok(extent) = extent(&pool, inode) else { continue };
            let wanted = bytes_of(inode, version, len);
            if extent.logical as usize == len {
                assert_parts(&pool, &extent, &wanted);
            }
            if let Ok(found) = pool.store().read(extent.ptr) {
                assert!(found[..] == wanted, "file {inode} is another");
                served += 1;
            }
        }
        served
    };
    let count = served(&model);
    *coverage.entry(format!("served of {kind:?} or all")).or_default() += count;
    // Whatever is asked of it, it answers.
    for _ in 0..8 {
        drop(match bed.next(10) {
            0 => pool.commit().map(drop),
            1 => pool.log_sync(),
            2 => pool
                .upkeep
                .scrub
                .start(ScrubSince::All)
                .and_then(|()| pool.upkeep.scrub.step(1 << 20))
                .map(drop),
            3 => pool.clean_step(true).map(drop),
            4 => pool.upkeep.gc.start().and_then(|_| pool.upkeep.gc.step(9)).map(drop),
            5 => pool.free_step(4).map(drop),
            6 => pool.upkeep.read_repair.step().map(drop),
            7 => pool.upkeep.check().map(drop),
            8 => {
                let all: Vec<_> = pool.store().members().iter().map(|member| member.index).collect();
                pool.upkeep.trim.start(&all, 0).and_then(|()| pool.upkeep.trim.step()).map(drop)
            }
            _ => {
                let change = Change { state: 1, puts: vec![(2000 + bed.next(4), 1, 9_000)], removes: vec![] };
                apply(&pool, &change, true)
            }
        });
    }
    while matches!(pool.upkeep.scrub.step(u64::MAX), Ok(true)) {}
    while matches!(pool.upkeep.damage.step(64), Ok(true)) {}
    pool.store().drop_caches();
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
            format!("LARDER_SEED={seed} LARDER_TORTURE=1 cargo test -p larder-upkeep --test torture {name}")
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

#[test]
fn beyond_tolerance_the_last_good_disk_is_replaced_but_for_what_it_does_not_give() {
    many("beyond_tolerance_the_last_good_disk", 30, replace_the_last);
}
