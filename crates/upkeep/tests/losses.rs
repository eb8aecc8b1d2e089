//! Promises of each layout about dying and rotten devices, checked pattern by pattern. Lost ones are enumerated in
//! `torture`.

mod common;

use common::*;
use larder_device::{AlignedBuf, Device};
use larder_format::checksum::{PoolKey, Sums};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::segment::{
    DESCRIPTOR_LEN, Layout, SegmentKind, SegmentRecord, SegmentState, Slot, StripeHeader, stripe_header_len,
};
use larder_format::{
    BlockId, BlockPtr, ByteLen, CommitId, DeviceIndex, DeviceOffset, GroupIndex, Incarnation, Place,
    PoolGuid, SegmentId, SlotIndex,
};
use larder_pool::create::rule_for;
use larder_pool::segments::SegmentEntry;
use larder_pool::{Look, Pool, PoolError, ROOT_DATASET, parity, stripe};
use larder_sim::{DeviceImage, Fault, SimWorld, Survival};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Every layout word in several widths.
const WIDTHS: [(&str, std::ops::RangeInclusive<usize>, usize); 7] = [
    ("single", 1..=1, 1),
    ("mirror", 2..=4, 1),
    ("raidz1", 3..=6, 1),
    ("raidz2", 4..=8, 2),
    ("raidz3", 5..=9, 2),
    ("raid10", 4..=6, 2),
    ("raid14", 5..=9, 2),
];

fn widths() -> impl Iterator<Item = (&'static str, usize)> {
    WIDTHS.into_iter().flat_map(|(word, counts, step)| counts.step_by(step).map(move |count| (word, count)))
}

/// All ways to lose one to `most` of `count` devices.
fn patterns(count: usize, most: usize) -> Vec<Vec<usize>> {
    let chosen = |bits: u32| (0..count).filter(|i| bits >> i & 1 == 1).collect::<Vec<_>>();
    (1..1u32 << count).filter(|bits| bits.count_ones() as usize <= most).map(chosen).collect()
}

fn survives(layout: Layout, lost: &[usize]) -> bool {
    layout.survives(|column| lost.contains(&column))
}

/// A pool that was committed and closed: its devices' bytes and what must be in them.
fn written(word: &str, count: usize) -> (Vec<DeviceImage>, Model) {
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = create(&sim, word);
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut model = Model::new();
    for version in 1..3 {
        let files: Vec<_> = (0..12).map(|i| (10 + i, version, 1 + (i as usize * 9_176) % 90_000)).collect();
        put(&pool, &dataset, &files);
        model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
        pool.commit().unwrap();
    }
    drop(pool);
    (sim.images(), model)
}

fn without(sim: &SimWorld, lost: &[usize]) -> Vec<Arc<dyn Device>> {
    let devices = sim.devices().into_iter().enumerate();
    devices.filter(|(i, _)| !lost.contains(i)).map(|(_, device)| device).collect()
}

/// Bits flip in every page that may hold blocks.
fn rot(sim: &SimWorld, device: usize) {
    for page in 256..2048u64 {
        sim.device(device).flip_bits(DeviceOffset::new(page * 4096), 4096, page);
    }
}

#[test]
fn rot_on_one_more_device_is_survived_wherever_its_loss_would_be() {
    for (word, count) in widths() {
        let layout = rule_for(word, count).unwrap().layout;
        let (images, model) = written(word, count);
        let mut losses = patterns(count, 2.min(count));
        losses.push(Vec::new());
        for lost in losses {
            // One of the devices left, another one for each loss.
            let turn = lost.iter().sum::<usize>() + count;
            let Some(rotten) = (0..count).map(|i| (turn + i) % count).find(|i| !lost.contains(i)) else {
                continue;
            };
            let total: Vec<usize> = lost.iter().copied().chain([rotten]).collect();
            if !survives(layout, &total) {
                continue;
            }
            let case = format!("{word} of {count} without {lost:?}, {rotten} rots");
            let sim = SimWorld::from_images(images.clone());
            rot(&sim, rotten);
            let pool = import_from(without(&sim, &lost), 3).unwrap_or_else(|error| panic!("{case}: {error}"));
            let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| verify(&pool, &model)));
            assert!(read.is_ok(), "{case}");
        }
    }
}

fn pointers(pool: &Pool, model: &Model) -> Vec<BlockPtr> {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let view = dataset.view().unwrap();
    let pointer = |inode: &u64| {
        let value = view.get(&Key::new(*inode, EXTENT, 0)).unwrap().unwrap();
        Extent::decode(&value).unwrap().ptr
    };
    model.keys().map(pointer).collect()
}

#[test]
fn a_random_read_asks_exactly_one_device() {
    for (word, count) in widths() {
        let (images, model) = written(word, count);
        let sim = SimWorld::from_images(images);
        let pool = open(&sim, 3);
        let mut asked = vec![0; count];
        for ptr in pointers(&pool, &model) {
            pool.store().drop_caches();
            (0..count).for_each(|i| sim.device(i).reset_counters());
            pool.store().read(ptr).unwrap();
            let reads: Vec<_> = (0..count).map(|i| sim.device(i).counters().reads).collect();
            assert_eq!(reads.iter().sum::<u64>(), 1, "{word} of {count}: {reads:?}");
            asked.iter_mut().zip(reads).for_each(|(sum, reads)| *sum += reads);
        }
        let busy = asked.iter().filter(|&&reads| reads > 0).count();
        assert!(busy >= count.min(2), "{word} of {count}: reads go to {asked:?}");
    }
}

/// Puts, syncs and commits until the end or the first refusal; tells the states that were promised and
/// the last one tried.
fn work(
    pool: &Pool,
    model: &mut Model,
    steps: u64,
    mut before: impl FnMut(u64),
) -> (Model, Option<PoolError>) {
    let mut promised = model.clone();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for step in 0..steps {
        before(step);
        let files: Vec<_> = (0..1 + step % 5)
            .map(|i| (10 + (step + i) % 17, 100 + step, 1 + (step as usize * 7_001) % 50_000))
            .collect();
        let stored = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| put(pool, &dataset, &files)));
        if stored.is_err() {
            return (promised, pool.store().suspended().map(PoolError::Suspended));
        }
        let op = match pool.enter() {
            Ok(op) => op,
            Err(error) => return (promised, Some(error)),
        };
        let note = dataset.update(&op, |tree| {
            files.iter().for_each(|file| tree.log(logged(*file)));
            Ok::<_, PoolError>(())
        });
        note.unwrap();
        drop(op);
        model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
        let promise = if step % 3 == 2 { pool.commit().map(drop) } else { pool.log_sync() };
        match promise {
            Ok(()) => promised = model.clone(),
            Err(error) => return (promised, Some(error)),
        }
    }
    (promised, None)
}

fn faults() -> [Fault; 4] {
    let everywhere = 0..u64::MAX;
    [Fault::Gone, Fault::FailWrites(everywhere.clone()), Fault::FailFlushes, Fault::FailReads(everywhere)]
}

/// Asserts that after replay each file is in one of the states that it went through since the promise.
fn assert_promised(pool: &Pool, promised: &Model, case: &str) {
    replay(pool);
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for (&inode, &(version, _)) in promised {
        let value = dataset.view().unwrap().get(&Key::new(inode, EXTENT, 0)).unwrap();
        let extent =
            Extent::decode(&value.unwrap_or_else(|| panic!("{case}: file {inode} is lost"))).unwrap();
        let plain = read_twice(pool, &extent).unwrap_or_else(|error| panic!("{case}: {error}"));
        let found = version_of(&plain);
        assert!(
            plain.len() < 8 || found >= version,
            "{case}: file {inode} is at {found}, promised {version}"
        );
    }
}

#[test]
fn devices_that_die_within_tolerance_lose_nothing_and_are_told() {
    let mut told = 0;
    for (word, count) in
        [("mirror", 2), ("raidz1", 4), ("raidz2", 5), ("raidz3", 6), ("raid10", 4), ("raid14", 5)]
    {
        let layout = rule_for(word, count).unwrap().layout;
        for fault in faults() {
            let case = format!("{word} of {count}, {fault:?}");
            let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
            let pool = create(&sim, word);
            let mut model = Model::new();
            let dying: Vec<usize> = (0..layout.tolerance()).map(|i| (i * 2 + 1) % count).collect();
            let (promised, refused) = work(&pool, &mut model, 24, |step| {
                if let Some(i) = dying.get(step as usize / 7).filter(|_| step % 7 == 4) {
                    sim.device(*i).inject(fault.clone());
                }
            });
            assert!(refused.is_none(), "{case}: {refused:?}");
            pool.commit().unwrap();
            pool.store().drop_caches();
            verify(&pool, &model);
            let reads_only = matches!(fault, Fault::FailReads(_));
            let mut read_errors = 0;
            for &device in &dying {
                let member = pool.store().members().get(DeviceIndex::new(device as u16));
                let errors = member.counters.write_errors.load(Ordering::Relaxed);
                read_errors += member.counters.read_errors.load(Ordering::Relaxed);
                assert_eq!(
                    (member.is_online(), errors == 0),
                    (reads_only, reads_only),
                    "{case}: device {device}"
                );
            }
            assert!(read_errors == 0 || reads_only, "{case}");
            told += read_errors;
            drop(pool);
            let trace = sim.trace();
            let after = SimWorld::from_images(trace.crash_images(trace.len(), Survival::DropAll));
            for lost in [&dying[..], &[]] {
                let after = SimWorld::from_images(after.images());
                let pool =
                    import_from(without(&after, lost), 5).unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_promised(&pool, &promised, &case);
                pool.commit().unwrap();
                assert_whole(&pool, &case);
            }
        }
    }
    assert!(told > 0, "failed reads are counted");
}

#[test]
fn the_cleaner_moves_what_lives_past_rot_on_one_device() {
    for (word, count) in [("mirror", 2), ("raidz1", 4), ("raidz2", 5), ("raid14", 5)] {
        let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
        let pool = create(&sim, word);
        let dataset = pool.dataset(ROOT_DATASET).unwrap();
        let mut model = Model::new();
        for version in 1..4 {
            // Later versions replace every other file: segments are left half alive.
            let files: Vec<_> = (0..200)
                .filter(|i| version == 1 || i % (version + 1) == 0)
                .map(|i| (10 + i, version, 1 + (i as usize * 9_176) % 90_000))
                .collect();
            put(&pool, &dataset, &files);
            model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
            pool.commit().unwrap();
        }
        rot(&sim, 0);
        pool.store().drop_caches();
        while pool.clean_step(true).unwrap().is_some() {
            pool.commit().unwrap();
        }
        assert_eq!(pool.store().suspended(), None, "{word}");
        assert!(pool.cleaned_bytes() > 0, "{word}");
        pool.store().drop_caches();
        verify(&pool, &model);
    }
}

/// Has the cleaner and read-repair do all that they can.
fn clean_all(pool: &Kept) {
    let mut steps = 0;
    while pool.clean_step(true).unwrap().is_some() || pool.upkeep.read_repair.step().unwrap() > 0 {
        steps += 1;
        assert!(steps < 200, "it chooses the same segment again and again");
    }
}

/// A file's content, on a pool of one device: its place, and where on the device that begins.
fn place_of(pool: &Pool, inode: u64) -> (Place, u64) {
    let value = pool.dataset(ROOT_DATASET).unwrap().view().unwrap().get(&Key::new(inode, EXTENT, 0));
    let place = Extent::decode(&value.unwrap().unwrap()).unwrap().ptr.place;
    let segments = pool.store().segments();
    let slot = segments.iter().find(|of| of.id == place.segment).unwrap().slots[0];
    (place, pool.store().members().get(slot.device).slot_offset(slot.index, place.offset).get())
}

fn live_blocks(pool: &Pool, id: SegmentId) -> u32 {
    pool.store().segments().iter().find(|of| of.id == id).map_or(0, |of| of.live_blocks)
}

/// Files among `inodes` with bytes in a range of the device.
fn files_in(pool: &Pool, inodes: Range<u64>, range: &Range<u64>) -> Vec<u64> {
    let is_in = |inode: &u64| {
        let (place, at) = place_of(pool, *inode);
        at < range.end && range.start < at + u64::from(place.stored)
    };
    inodes.filter(is_in).collect()
}

#[test]
fn the_cleaner_moves_what_lives_beside_a_block_that_nobody_can_read() {
    for in_payload in [false, true] {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let (pool, mut model) = (create(&sim, "single"), Model::new());
        commit(&pool, &mut model, &files(10, 9, 1));
        let (lost, at) = place_of(&pool, 13);
        let at = at + if in_payload { u64::from(lost.stored) / 2 } else { 0 };
        sim.device(0).flip_bits(DeviceOffset::new(at), 8, 1);
        // The segment is worth cleaning.
        commit(&pool, &mut model, &files(10, 2, 2));
        pool.store().core.lock().close_streams(GroupIndex::new(0));
        pool.store().drop_caches();
        clean_all(&pool);
        assert_eq!(live_blocks(&pool, lost.segment), 1, "the others are moved");
        pool.commit().unwrap();
        model.remove(&13).expect("it was there");
        verify(&pool, &model);
    }
}

#[test]
fn the_cleaner_moves_what_lives_beside_a_sector_that_nobody_can_read() {
    for in_payload in [false, true] {
        let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
        let (pool, mut model) = (create(&sim, "single"), Model::new());
        commit(&pool, &mut model, &files(10, 30, 1));
        let (place, at) = place_of(&pool, 15);
        let at = (at + if in_payload { u64::from(place.stored) / 2 } else { 0 }) & !4095;
        let stuck = files_in(&pool, 10..30, &(at..at + 4096));
        assert!((1..4).contains(&stuck.len()) && stuck.contains(&15), "{stuck:?}");
        // The segment is worth cleaning.
        commit(&pool, &mut model, &files(30, 10, 2));
        pool.store().core.lock().close_streams(GroupIndex::new(0));
        sim.device(0).inject(Fault::FailReads(at..at + 4096));
        pool.store().drop_caches();
        clean_all(&pool);
        assert_eq!(live_blocks(&pool, place.segment), stuck.len() as u32, "the others are moved");
        pool.commit().unwrap();
        let mut readable = model.clone();
        readable.retain(|inode, _| !stuck.contains(inode));
        verify(&pool, &readable);
        drop(pool);
        sim.device(0).clear_faults();
        let pool = open(&sim, 2);
        clean_all(&pool);
        assert_eq!(live_blocks(&pool, place.segment), 0, "nothing was given up");
        verify(&pool, &model);
        assert_whole(&pool, "after all");
    }
}

#[test]
fn the_cleaner_moves_what_lives_beside_a_bad_sector_and_a_device_that_is_out() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20); 3]);
    let (pool, mut model) = (create(&sim, "raidz1"), Model::new());
    commit(&pool, &mut model, &files(10, 40, 1));
    let (place, _) = place_of(&pool, 20);
    let segments = pool.store().segments();
    let slots = &segments.iter().find(|of| of.id == place.segment).unwrap().slots;
    let sector = place.offset & !4095..(place.offset & !4095) + 4096;
    let is_beside = |inode: &u64| {
        let (other, _) = place_of(&pool, *inode);
        other.segment == place.segment
            && other.offset < sector.end
            && sector.start < other.offset + other.stored
    };
    // With their columns in the same segment, those of both devices.
    let stuck: Vec<u64> = (10..30).filter(is_beside).collect();
    assert!((2..6).contains(&stuck.len()), "{stuck:?}");
    commit(&pool, &mut model, &files(30, 20, 2));
    pool.store().core.lock().close_streams(GroupIndex::new(0));
    let (bad, out) = (slots[usize::from(place.column)], slots[1 - usize::from(place.column)]);
    let at = pool.store().members().get(bad.device).slot_offset(bad.index, sector.start).get();
    sim.device(bad.device.get().into()).inject(Fault::FailReads(at..at + 4096));
    sim.device(out.device.get().into()).inject(Fault::Gone);
    pool.store().drop_caches();
    clean_all(&pool);
    let left = live_blocks(&pool, place.segment);
    assert!((1..=stuck.len() as u32).contains(&left), "{left} are left of {stuck:?}");
    pool.commit().unwrap();
    model.retain(|inode, _| !stuck.contains(inode));
    verify(&pool, &model);
}

#[test]
fn a_step_of_cleaning_meets_few_sectors_that_cannot_be_read() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    commit(&pool, &mut model, &files(10, 28, 1));
    let (place, at) = place_of(&pool, 15);
    let bad = at & !4095..(at & !4095) + (400 << 10);
    // Perhaps not all of it is tried sector by sector.
    let near = files_in(&pool, 10..30, &(bad.start - (64 << 10)..bad.end + (64 << 10)));
    assert!(near.len() < 18, "{} files are near", near.len());
    commit(&pool, &mut model, &files(30, 8, 2));
    pool.store().core.lock().close_streams(GroupIndex::new(0));
    sim.device(0).inject(Fault::FailReads(bad));
    pool.store().drop_caches();
    let errors = || {
        let members = pool.store().members();
        members.get(DeviceIndex::new(0)).counters.read_errors.load(Ordering::Relaxed)
    };
    let (mut before, mut met) = (errors(), 0);
    while pool.clean_step(true).unwrap().is_some() {
        let now = errors();
        assert!(now - before <= 8, "{} reads failed in one step", now - before);
        (before, met) = (now, met + now - before);
        assert!(met < 100, "all sectors are tried");
    }
    assert!(met > 4, "it goes on in the next step");
    let left = live_blocks(&pool, place.segment);
    assert!((1..=near.len() as u32).contains(&left), "{left} of {} that are near", near.len());
}

#[test]
fn devices_that_die_beyond_tolerance_suspend_the_pool_and_what_was_promised_stays() {
    for (word, count) in [
        ("single", 1),
        ("mirror", 2),
        ("raidz1", 4),
        ("raidz2", 5),
        ("raidz3", 6),
        ("raid10", 4),
        ("raid14", 5),
    ] {
        for fault in &faults()[..3] {
            let case = format!("{word} of {count}, {fault:?}");
            let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
            let pool = create(&sim, word);
            let mut model = Model::new();
            // Each dies for a while: they are there again after the power cut.
            let (promised, refused) = work(&pool, &mut model, 60, |step| {
                if step >= 9 && step % 5 == 4 {
                    let device = (step as usize / 5 * 3) % count;
                    sim.device(device).inject(fault.clone());
                    if count % 3 == 0 {
                        sim.device((step as usize / 5) % count).inject(fault.clone());
                    }
                }
            });
            assert!(matches!(refused, Some(PoolError::Suspended(_))), "{case}: {refused:?}");
            assert!(pool.commit().is_err() && pool.log_sync().is_err() && pool.enter().is_err(), "{case}");
            drop(pool);
            let trace = sim.trace();
            let after = SimWorld::from_images(trace.crash_images(trace.len(), Survival::DropAll));
            let pool = import(&after, 5).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_promised(&pool, &promised, &case);
        }
    }
}

fn segment_of(layout: Layout) -> SegmentEntry {
    let slot = |i| Slot { device: DeviceIndex::new(i), index: SlotIndex::new(0) };
    SegmentEntry::from_record(&SegmentRecord {
        id: SegmentId::new(5),
        kind: SegmentKind::Data,
        state: SegmentState::Open,
        group: GroupIndex::new(0),
        layout,
        height: DESCRIPTOR_LEN,
        live_blocks: 0,
        live_bytes: 0,
        birth: CommitId::new(1),
        freed: CommitId::new(0),
        incarnation: Incarnation::new(1),
        placed: 0,
        closed_at: BlockId::new(0),
        class: 0,
        copy: 0,
        unnamed: false,
        filled: CommitId::new(0),
        verified: 0,
        slots: (0..layout.columns() as u16).map(slot).collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever columns are lost of a stripe that its layout survives: every block is found where its place
    /// says, in the columns left or rebuilt from them, and every column matches the sum of its header.
    #[test]
    fn a_stripe_gives_its_blocks_back_after_any_loss_that_its_layout_survives(
        k in 1u8..10, r in 1u8..3, m in 0u8..4,
        sizes in proptest::collection::vec(1usize..40_000, 1..40),
        ashift in 12u32..15,
        offset in 1u32..100,
        lost in any::<u32>(),
    ) {
        let layout = Layout::new(k, r, m).unwrap();
        let sums_of = Sums::new(PoolGuid::new(77), PoolKey::new([5; 32]));
        let segment = segment_of(layout).segment;
        let blocks: Vec<Vec<u8>> = sizes.iter().map(|&size| content(size as u64, 1, size)).collect();
        let footprints: Vec<u32> = blocks.iter().map(|block| stripe::footprint(block.len())).collect();
        let room = 1 << 20;
        let plan = stripe::plan(layout, 1 << ashift, room, 1 << 20, &footprints, stripe::anywhere).unwrap();
        prop_assert!(plan.height <= room && plan.height.is_multiple_of(1 << ashift));
        let offset = offset << ashift;
        let whole = blocks.iter().map(|block| stripe::Encoded::Whole(block.clone().into())).collect::<Vec<_>>();
        let columns =
            stripe::build(&sums_of, &segment, offset, (CommitId::new(3), Incarnation::new(1)), &plan, &whole);
        let header = stripe_header_len(layout.columns()) as usize;
        let sums: Vec<u128> = columns
            .iter()
            .enumerate()
            .map(|(i, column)| {
                let stripe = StripeHeader::check(&sums_of, column).unwrap();
                assert_eq!((stripe.column as usize, stripe.offset, stripe.height as usize), (i, offset, column.len()));
                stripe.sums[i]
            })
            .collect();
        for (column, sum) in columns.iter().zip(sums) {
            prop_assert_eq!(larder_format::checksum::fast128(&sums_of, &column[header..]), sum);
        }
        let lost = |column: usize| lost >> (column % 32) & 1 == 1;
        prop_assume!(layout.survives(lost));
        let present = |column: usize| (!lost(column)).then(|| &columns[column][header..]);
        let data = (0..layout.k()).map(|i| (0..layout.r()).find_map(|j| present(layout.replica(i, j))));
        let given: Vec<Option<&[u8]>> =
            data.chain((0..layout.m()).map(|p| present(layout.parity(p)))).collect();
        for (i, block) in blocks.iter().take(plan.spots.len()).enumerate() {
            let place = stripe::place(&segment, offset, &plan, i, block.len());
            let column = usize::from(place.column);
            let within = (place.offset - offset) as usize - header;
            let rebuilt = match given[column] {
                Some(bytes) => bytes.to_vec(),
                None => {
                    let mut out = AlignedBuf::zeroed(columns[0].len());
                    let out = &mut out[header..];
                    parity::reconstruct(layout.k(), layout.m(), &given, &[column], &mut [&mut *out]).unwrap();
                    out.to_vec()
                }
            };
            prop_assert_eq!(&rebuilt[within..within + block.len()], &block[..]);
        }
    }
}
