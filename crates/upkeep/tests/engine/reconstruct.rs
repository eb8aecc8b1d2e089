//! Rot is found and reconstructed in place: every kind of structure, on every layout, byte for byte.

use crate::common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::items::{EXTENT, Extent};
use larder_format::label::{HEARTBEAT_OFFSET, Heartbeat, RING_OFFSET, RING_SLOT, RING_SLOTS, label_areas};
use larder_format::node::Key;
use larder_format::root::Root;
use larder_format::segment::{DESCRIPTOR_LEN, SegmentKind, SegmentRecord, SegmentState, StripeHeader};
use larder_format::{ByteLen, DeviceOffset};
use larder_pool::{Look, Lost, Pool, PoolError, ROOT_DATASET};
use larder_sim::{DeviceImage, Fault, SimWorld, Survival};
use larder_upkeep::{ScrubOutcome, ScrubResult, ScrubSince};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that one step of a scrub may go through here: every scrub takes many.
const STEP: u64 = 256 << 10;

fn sim(count: usize) -> SimWorld {
    SimWorld::new(&vec![ByteLen::new(64 << 20); count])
}

/// A pool with segments of every kind, as the last commit left them, some files overwritten, and operations in its log.
fn written(sim: &SimWorld, word: &str) -> (Kept, Model, Vec<SegmentRecord>) {
    let pool = create(sim, word);
    let mut model = Model::new();
    for version in 1..4 {
        let files = |range: std::ops::Range<u64>, size: usize| {
            range.map(|i| (i, version, 1 + (i as usize * 9_176) % size)).collect::<Vec<_>>()
        };
        commit(&pool, &mut model, &files(10..40, 250_000));
        commit(&pool, &mut model, &files(40..44, 900));
    }
    let records = pool.store().segments();
    sync(&pool, &mut model, &[(50, 1, 700), (51, 1, 40_000)]);
    sync(&pool, &mut model, &[(52, 1, 9_000)]);
    (pool, model, records)
}

fn scrub(pool: &Kept) -> ScrubResult {
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(STEP).unwrap() {}
    let result = pool.upkeep.scrub.result().expect("it has ended");
    assert_eq!((result.outcome, pool.upkeep.scrub.progress()), (ScrubOutcome::Done, None));
    result
}

/// Where on its device the slot of a column starts.
fn slot_start(pool: &Pool, record: &SegmentRecord, column: usize) -> (usize, DeviceOffset) {
    let slot = record.slots[column];
    let member = pool.store().members().get(slot.device);
    (slot.device.get() as usize, member.slot_offset(slot.index, 0))
}

/// Segments that are alive, with the bytes of every column.
type Columns = Vec<(SegmentRecord, Vec<Vec<u8>>)>;

fn columns(pool: &Pool, images: &[DeviceImage], records: &[SegmentRecord]) -> Columns {
    let column = |record: &SegmentRecord, column: usize| {
        let (device, start) = slot_start(pool, record, column);
        // The log's height is not kept.
        let len = if record.kind == SegmentKind::Log { 256 << 10 } else { record.height as usize };
        images[device].read(start, len).to_vec()
    };
    let alive = records.iter().filter(|record| record.state != SegmentState::Freed);
    let all = |record: &SegmentRecord| (0..record.slots.len()).map(|i| column(record, i)).collect();
    alive.map(|record| (record.clone(), all(record))).collect()
}

fn assert_same(before: &Columns, after: &Columns, case: &str) {
    assert_eq!(before.len(), after.len(), "{case}");
    for ((record, old), (_, new)) in before.iter().zip(after) {
        for (column, (old, new)) in old.iter().zip(new).enumerate() {
            let differs = old.iter().zip(new).position(|(old, new)| old != new);
            let what = format!("segment {} ({:?}) column {column}", record.id, record.kind);
            assert_eq!(differs, None, "{case}: {what} differs");
        }
    }
}

/// Bits flip in each page of a range, by seed.
fn rot(sim: &SimWorld, device: usize, start: DeviceOffset, len: usize, seed: u64) {
    for page in 0..len.div_ceil(4096) {
        let at = start + ByteLen::new(page as u64 * 4096);
        sim.device(device).flip_bits(at, (len - page * 4096).min(4096), seed + page as u64);
    }
}

/// Rots columns of each living segment, as many as its layout survives; what, by kind.
fn rot_within_tolerance(
    pool: &Pool,
    sim: &SimWorld,
    records: &[SegmentRecord],
    seed: u64,
) -> BTreeSet<SegmentKind> {
    let rng = SeededEntropy::new(seed);
    let mut kinds = BTreeSet::new();
    for record in records.iter().filter(|record| record.state != SegmentState::Freed) {
        let columns = record.slots.len();
        let first = rng.next_u64() as usize % columns;
        for turn in 0..record.layout.tolerance() {
            let (device, start) = slot_start(pool, record, (first + turn) % columns);
            let height = record.height.max(DESCRIPTOR_LEN) as usize;
            match rng.next_u64() % 3 {
                // All of it, descriptor and headers too.
                0 => rot(sim, device, start, height, rng.next_u64()),
                // A bit somewhere.
                1 => sim.device(device).flip_bits(start, height, rng.next_u64()),
                _ => {
                    let page = ByteLen::new(rng.next_u64() % (height as u64 / 4096) * 4096);
                    rot(sim, device, start + page, 64, rng.next_u64());
                }
            }
            kinds.insert(record.kind);
        }
        // The first stripe of the log, where there is one.
        let (device, start) = slot_start(pool, record, first);
        let stripe = start + ByteLen::new(DESCRIPTOR_LEN.into());
        let is_stripe = |bytes: &[u8]| {
            StripeHeader::check(pool.store().sums(), bytes).is_ok_and(|stripe| stripe.segment == record.id)
        };
        if record.kind == SegmentKind::Log && is_stripe(&sim.device(device).image().read(stripe, 4096)) {
            rot(sim, device, stripe, 100, rng.next_u64());
        }
    }
    kinds
}

fn checksum_errors(pool: &Pool) -> u64 {
    pool.store().members().iter().map(|member| member.counters.checksum_errors.load(Ordering::Relaxed)).sum()
}

#[test]
fn a_scrub_restores_every_structure_of_every_layout_byte_for_byte() {
    for (word, count) in LAYOUTS.into_iter().filter(|(word, _)| *word != "single") {
        for seed in 0..2 {
            let case = format!("{word} of {count}, seed {seed}");
            let sim = sim(count);
            let (pool, model, records) = written(&sim, word);
            let before = columns(&pool, &sim.images(), &records);
            let kinds = rot_within_tolerance(&pool, &sim, &records, 1000 * seed + count as u64);
            assert_eq!(kinds.len(), if word == "mirror" { 5 } else { 6 }, "{case}: {kinds:?}");
            assert_eq!(checksum_errors(&pool), 0);
            let result = scrub(&pool);
            assert!(result.repaired > 0 && result.lost == 0, "{case}: {result:?}");
            assert!(pool.upkeep.read_repair.lost().is_empty());
            let errors = checksum_errors(&pool);
            assert!(errors > 0);
            assert_same(&before, &columns(&pool, &sim.images(), &records), &case);
            let again = scrub(&pool);
            assert_eq!((again.repaired, again.lost, checksum_errors(&pool)), (0, 0, errors), "{case}");
            pool.store().drop_caches();
            verify(&pool, &model);
            assert_whole(&pool, &case);
        }
    }
}

/// Rots the headers of every second stripe of records and nodes, in every column; how many.
fn behead(sim: &SimWorld, pool: &Pool, records: &[SegmentRecord]) -> usize {
    let mut beheaded = 0;
    let mapped = [SegmentKind::Data, SegmentKind::Small, SegmentKind::Node];
    for record in records.iter().filter(|of| of.state != SegmentState::Freed && mapped.contains(&of.kind)) {
        let (mut offset, mut second) = (DESCRIPTOR_LEN, true);
        while offset < record.height {
            let (device, start) = slot_start(pool, record, 0);
            let at = start + ByteLen::new(offset.into());
            let stripe =
                StripeHeader::check(pool.store().sums(), &sim.device(device).image().read(at, 4096)).unwrap();
            for column in (0..record.slots.len()).filter(|_| second) {
                let (device, start) = slot_start(pool, record, column);
                rot(sim, device, start + ByteLen::new(offset.into()), 50, 1);
            }
            beheaded += usize::from(second);
            second = !second;
            offset += stripe.height;
        }
    }
    beheaded
}

#[test]
fn stripes_without_any_header_are_rebuilt_from_the_blocks_in_them() {
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz2", 6), ("raid14", 5)] {
        let sim = sim(count);
        let (pool, model, records) = written(&sim, word);
        let beheaded = behead(&sim, &pool, &records);
        assert!(beheaded > 2, "{word}: {beheaded}");
        let result = scrub(&pool);
        assert!(
            result.repaired > 0 && result.lost == 0,
            "{word}: {result:?} {:?}",
            pool.upkeep.read_repair.lost()
        );
        // The last stripe of what is written to may have had to wait for the commit that ended the first.
        assert_eq!(scrub(&pool).lost, 0, "{word}");
        let again = scrub(&pool);
        assert_eq!((again.repaired, again.lost), (0, 0), "{word}");
        pool.store().drop_caches();
        verify(&pool, &model);
        assert_whole(&pool, word);
        pool.commit_export().unwrap();
        drop(pool);
        let pool = open(&sim, 9);
        verify(&pool, &model);
        assert_whole(&pool, word);
    }
}

#[test]
fn a_stripe_without_header_that_lacks_a_block_is_told_as_lost() {
    let sim = sim(1);
    let (pool, model, records) = written(&sim, "single");
    assert!(behead(&sim, &pool, &records) > 0);
    // As a lost write would leave them: zeros from the middle on.
    for record in records.iter().filter(|of| of.kind == SegmentKind::Data) {
        let (device, start) = slot_start(&pool, record, 0);
        let mut image = sim.device(device).image();
        let half = u64::from(record.height / 2 / 4096 * 4096);
        let rest = (u64::from(record.height) - half) as usize;
        image.write(start + ByteLen::new(half), &vec![0; rest]);
        sim.device(device).swap_media(image);
    }
    let result = scrub(&pool);
    assert!(result.lost > 0, "{result:?}");
    pool.store().drop_caches();
    let lost = model.iter().filter(|(inode, _)| {
        let value = pool.dataset(ROOT_DATASET).unwrap().view().unwrap().get(&Key::new(**inode, EXTENT, 0));
        pool.store().read(Extent::decode(&value.unwrap().unwrap()).unwrap().ptr).is_err()
    });
    assert!(lost.count() > 0, "some files lay there");
}

#[test]
fn labels_and_roots_come_back_on_every_device_in_both_areas() {
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz2", 6), ("raid14", 5)] {
        let case = format!("{word} of {count}");
        let sim = sim(count);
        let (pool, ..) = written(&sim, word);
        for _ in 0..12 {
            pool.set_note("turn", &sim.images().len().to_string()).unwrap();
            pool.commit().unwrap();
        }
        let areas = label_areas(ByteLen::new(64 << 20));
        let root_len = |device: usize, area: usize, place: u64| {
            let at = areas[area] + ByteLen::new(RING_OFFSET + place * RING_SLOT as u64);
            let bytes = sim.device(device).image().read(at, RING_SLOT);
            (
                at,
                Root::check(pool.store().sums(), &bytes)
                    .map(|root| root.encode(pool.store().sums()).unwrap().len())
                    .unwrap_or(0),
            )
        };
        let newest = pool.store().durable_commit().get() % RING_SLOTS;
        let before = sim.images();
        let mut roots = Vec::new();
        for device in 0..count {
            for (area, &start) in areas.iter().enumerate() {
                if area == 0 {
                    rot(&sim, device, start + ByteLen::new(HEARTBEAT_OFFSET), 64, 9);
                }
                // One label of each device, so that it is known; the other's area had its turn before.
                if area == device % 2 {
                    rot(&sim, device, start, 4096, 7);
                }
                for place in 0..RING_SLOTS {
                    let (at, len) = root_len(device, area, place);
                    roots.push((device, place, at, len));
                    // One copy of each root is left, on some device.
                    if (device, area) != (place as usize % count, 1) && len > 0 {
                        rot(&sim, device, at, len, 11 + place);
                    }
                }
            }
        }
        let result = scrub(&pool);
        assert!(result.repaired > 0 && result.lost == 0, "{case}: {result:?}");
        let after = sim.images();
        for device in 0..count {
            for area in areas {
                assert_eq!(after[device].read(area, 4096)[..], before[device].read(area, 4096)[..], "{case}");
            }
        }
        for image in &after {
            let at = areas[0] + ByteLen::new(HEARTBEAT_OFFSET);
            Heartbeat::check(&image.read(at, 4096)).unwrap_or_else(|error| panic!("{case}: {error}"));
        }
        // The scrub's own commit went to the place behind the newest.
        for (device, place, at, len) in roots.into_iter().filter(|root| root.1 != (newest + 1) % RING_SLOTS) {
            assert_eq!(
                after[device].read(at, len)[..],
                before[device].read(at, len)[..],
                "{case} root {place}"
            );
        }
        assert_eq!(scrub(&pool).repaired, 0);
        drop(pool);
        open(&sim, 3);
    }
}

#[test]
fn roots_without_any_copy_left_do_not_keep_the_pool_from_being_imported() {
    let sim = sim(2);
    let (pool, model, _) = written(&sim, "mirror");
    for device in 0..2 {
        for area in label_areas(ByteLen::new(64 << 20)) {
            rot(&sim, device, area + ByteLen::new(RING_OFFSET), RING_SLOTS as usize * RING_SLOT, 5);
        }
    }
    assert!(scrub(&pool).repaired > 0);
    assert_eq!(scrub(&pool).repaired, 0);
    drop(pool);
    let pool = open(&sim, 9);
    replay(&pool);
    verify(&pool, &model);
}

/// The extent of a file.
fn extent(pool: &Pool, inode: u64) -> Extent {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let value = dataset.view().unwrap().get(&Key::new(inode, EXTENT, 0)).unwrap();
    Extent::decode(&value.expect("the file is there")).unwrap()
}

#[test]
fn beyond_tolerance_what_is_lost_is_told_to_the_block_and_the_rest_is_reconstructed() {
    for (word, count) in LAYOUTS {
        let case = format!("{word} of {count}");
        let sim = sim(count);
        let (pool, mut model, _) = written(&sim, word);
        pool.commit().unwrap();
        let place = extent(&pool, 30).ptr.place;
        let record = pool.store().segments().into_iter().find(|record| record.id == place.segment).unwrap();
        let layout = record.layout;
        // Every copy of the block, and the parity of that height: nothing gives it back.
        let mut hit: Vec<usize> = (0..layout.r()).map(|j| layout.replica(place.column.into(), j)).collect();
        hit.extend((0..layout.m()).map(|p| layout.parity(p)));
        for &column in &hit {
            let (device, start) = slot_start(&pool, &record, column);
            let at = start + ByteLen::new(u64::from(place.offset) + 200);
            // Different bits: equal ones in parity would pass for an error of another column.
            rot(&sim, device, at, 50, 3 + column as u64);
        }
        let result = scrub(&pool);
        let lost = pool.upkeep.read_repair.lost();
        assert!(!lost.is_empty(), "{case}");
        let one = Lost {
            segment: place.segment,
            column: place.column,
            range: place.offset..place.offset + place.footprint(),
        };
        let covers = |lost: &Lost| {
            (lost.segment, lost.column) == (one.segment, one.column)
                && lost.range.start <= place.offset
                && one.range.end <= lost.range.end
        };
        assert!(covers(&lost[0]) && lost.len() == 1 && result.lost == 1, "{case}: {lost:?}, not {one:?}");
        pool.store().drop_caches();
        let error = pool.store().read(extent(&pool, 30).ptr).expect_err("it is lost");
        assert!(matches!(error, PoolError::Unreadable { .. }), "{case}: {error}");
        model.remove(&30);
        verify(&pool, &model);
        for inode in model.keys() {
            let other = extent(&pool, *inode).ptr.place;
            let touches = (other.segment, other.column) == (one.segment, one.column)
                && lost[0].range.start < other.offset + other.stored
                && other.offset < lost[0].range.end;
            assert!(!touches, "{case}: file {inode} is not lost");
        }
    }
}

#[test]
fn columns_that_are_wrong_in_different_places_are_put_together_by_blocks() {
    for (word, count) in LAYOUTS.into_iter().filter(|(word, _)| *word != "single") {
        let case = format!("{word} of {count}");
        let sim = sim(count);
        let (pool, model, _) = written(&sim, word);
        pool.commit().unwrap();
        let records = pool.store().segments();
        let before = columns(&pool, &sim.images(), &records);
        let mut rotten = 0;
        for record in records.iter().filter(|record| record.kind == SegmentKind::Data) {
            let layout = record.layout;
            let within: Vec<_> = (10..40).map(|inode| extent(&pool, inode).ptr.place).collect();
            let within: Vec<_> = within.into_iter().filter(|place| place.segment == record.id).collect();
            // All data columns have a bad block; no two at one height, and in each only one replica of it.
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (turn, place) in within.iter().enumerate() {
                let (from, to) = (place.offset, place.offset + place.stored);
                if taken.iter().any(|&(start, end)| from < end && start < to) {
                    continue;
                }
                taken.push((from, to));
                let column = layout.replica(place.column.into(), turn % layout.r());
                let (device, start) = slot_start(&pool, record, column);
                rot(&sim, device, start + ByteLen::new(u64::from(from) + 100), 20, turn as u64);
                rotten += 1;
            }
        }
        assert!(rotten > 3, "{case}: {rotten}");
        let result = scrub(&pool);
        assert_eq!(result.lost, 0, "{case}: {:?}", pool.upkeep.read_repair.lost());
        assert_same(&before, &columns(&pool, &sim.images(), &records), &case);
        verify(&pool, &model);
    }
}

#[test]
fn a_read_repairs_what_it_met_and_full_tolerance_is_back() {
    for (word, count) in LAYOUTS.into_iter().filter(|(word, _)| *word != "single") {
        let case = format!("{word} of {count}");
        let sim = sim(count);
        let (pool, mut model, _) = written(&sim, word);
        pool.commit().unwrap();
        let records = pool.store().segments();
        let before = columns(&pool, &sim.images(), &records);
        let tolerance = larder_pool::create::rule_for(word, count).unwrap().layout.tolerance();
        // All that one device holds of data and nodes is rotten.
        let place = extent(&pool, 30).ptr.place;
        let record = records.iter().find(|record| record.id == place.segment).unwrap();
        let victim = record.slots[record.layout.replica(place.column.into(), 0)].device.get() as usize;
        for record in records.iter().filter(|record| record.state != SegmentState::Freed) {
            let Some(column) = record.slots.iter().position(|slot| slot.device.get() as usize == victim)
            else {
                continue;
            };
            let (device, start) = slot_start(&pool, record, column);
            let stripes = start + ByteLen::new(DESCRIPTOR_LEN.into());
            rot(&sim, device, stripes, (record.height - DESCRIPTOR_LEN) as usize, 77);
        }
        // Each block is read on one device: so often that all their turns come.
        for _ in 0..2 {
            pool.store().drop_caches();
            verify(&pool, &model);
            while pool.upkeep.read_repair.step().unwrap() > 0 {}
        }
        assert!(!pool.upkeep.read_repair.is_waiting(), "{case}");
        let met = checksum_errors(&pool);
        assert!(met > 0, "{case}");
        // Columns that reads never touch are left to the scrub.
        scrub(&pool);
        assert_same(&before, &columns(&pool, &sim.images(), &records), &case);
        drop(pool);
        for lost in 0..count {
            let gone: Vec<usize> = (0..tolerance).map(|turn| (lost + turn) % count).collect();
            let left = sim.devices().into_iter().enumerate().filter(|(i, _)| !gone.contains(i));
            let sim = SimWorld::from_images(left.map(|(i, _)| sim.device(i).image()).collect::<Vec<_>>());
            let pool = import_from(sim.devices(), 40 + lost as u64).unwrap_or_else(|e| panic!("{case}: {e}"));
            if replay(&pool) > 0 {
                pool.commit().unwrap();
            }
            verify(&pool, &model);
        }
        model.clear();
    }
}

#[test]
fn a_read_counts_an_error_once_and_its_repair_does_not_count_it_again() {
    let sim = sim(4);
    let (pool, ..) = written(&sim, "raidz1");
    pool.commit().unwrap();
    let ptr = extent(&pool, 30).ptr;
    let record = pool.store().segments().into_iter().find(|record| record.id == ptr.place.segment).unwrap();
    let (device, start) = slot_start(&pool, &record, ptr.place.column.into());
    let before = sim.device(device).image();
    rot(&sim, device, start + ByteLen::new(u64::from(ptr.place.offset)), 3000, 3);
    pool.store().drop_caches();
    pool.store().read(ptr).unwrap();
    assert_eq!(checksum_errors(&pool), 1);
    assert_eq!((pool.upkeep.read_repair.step().unwrap(), pool.upkeep.read_repair.step().unwrap()), (1, 0));
    assert_eq!(checksum_errors(&pool), 1);
    assert!(sim.device(device).image() == before);
}

#[test]
fn sectors_that_cannot_be_read_are_written_anew() {
    let sim = sim(3);
    let (pool, model, _) = written(&sim, "mirror");
    pool.commit().unwrap();
    let place = extent(&pool, 30).ptr.place;
    let record = pool.store().segments().into_iter().find(|record| record.id == place.segment).unwrap();
    let (device, start) = slot_start(&pool, &record, 2);
    let at = start.get() + u64::from(place.offset);
    // The sector is readable again when it was written; this fault does not know, so it is told.
    sim.device(device).inject_window(Fault::FailReads(at..at + 4096), 0, 2);
    let result = scrub(&pool);
    assert!(result.repaired > 0 && result.lost == 0, "{result:?}");
    let member = pool.store().members().get(larder_format::DeviceIndex::new(device as u16));
    assert!(member.is_online() && member.counters.read_errors.load(Ordering::Relaxed) > 0);
    verify(&pool, &model);
    assert_eq!(scrub(&pool).repaired, 0);
}

#[test]
fn what_a_slot_refuses_of_what_was_reconstructed_goes_to_another_and_the_device_stays() {
    let sim = sim(3);
    let (pool, model, _) = written(&sim, "mirror");
    pool.commit().unwrap();
    let place = extent(&pool, 30).ptr.place;
    let record = pool.store().segments().into_iter().find(|record| record.id == place.segment).unwrap();
    let (device, start) = slot_start(&pool, &record, 1);
    let at = start.get() + u64::from(place.offset);
    rot(&sim, device, DeviceOffset::new(at), 3000, 3);
    sim.device(device).inject(Fault::FailWrites(start.get()..start.get() + (1 << 20)));
    let result = scrub(&pool);
    assert!(result.repaired > 0 && result.lost == 0, "{result:?}");
    assert!(pool.store().members().get(larder_format::DeviceIndex::new(device as u16)).is_online());
    assert_eq!(pool.store().bad_slots().len(), 1);
    pool.store().drop_caches();
    verify(&pool, &model);
    assert_eq!(scrub(&pool).repaired, 0);
}

#[test]
fn writes_that_got_lost_are_found_although_what_they_left_is_intact() {
    for (word, count) in [("mirror", 2), ("raidz2", 6), ("raid14", 5)] {
        let case = format!("{word} of {count}");
        let sim = sim(count);
        let (pool, mut model, _) = written(&sim, word);
        pool.commit().unwrap();
        sim.device(1).inject(Fault::LoseWrites(1 << 20..63 << 20));
        let files: Vec<_> = (10..30).map(|i| (i, 9, 50_000 + i as usize)).collect();
        commit(&pool, &mut model, &files);
        sim.device(1).clear_faults();
        let result = scrub(&pool);
        assert!(result.repaired > 0 && result.lost == 0, "{case}: {result:?}");
        assert_eq!(scrub(&pool).repaired, 0, "{case}");
        pool.store().drop_caches();
        verify(&pool, &model);
        assert_whole(&pool, &case);
    }
}

#[test]
fn a_scrub_goes_on_where_it_was_after_an_export_and_after_a_crash() {
    let sim = sim(3);
    let (pool, model, _) = written(&sim, "raidz1");
    pool.commit().unwrap();
    let records = pool.store().segments();
    rot_within_tolerance(&pool, &sim, &records, 5);
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    let busy = pool.upkeep.scrub.start(ScrubSince::All);
    assert!(matches!(busy, Err(PoolError::Busy(_))));
    for _ in 0..4 {
        assert!(pool.upkeep.scrub.step(1).unwrap());
    }
    pool.upkeep.scrub.pause().unwrap();
    let paused = pool.upkeep.scrub.progress().unwrap();
    assert!(paused.paused && paused.examined > 0 && paused.examined < paused.total, "{paused:?}");
    assert!(!pool.upkeep.scrub.step(STEP).unwrap());
    pool.commit_export().unwrap();
    drop(pool);

    let pool = open(&sim, 4);
    let found = pool.upkeep.scrub.progress().unwrap();
    assert!(found.paused && found.started == paused.started && found.repaired == paused.repaired);
    assert!(found.examined <= paused.examined && found.examined + (4 << 20) > paused.examined);
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    for _ in 0..2 {
        assert!(pool.upkeep.scrub.step(1).unwrap());
    }
    pool.commit().unwrap();
    let after = pool.upkeep.scrub.progress().unwrap();
    drop(pool);
    // A crash: nothing said goodbye.
    let pool = open(&sim, 5);
    let found = pool.upkeep.scrub.progress().unwrap();
    assert!(!found.paused && found.started == after.started, "{found:?}");
    while pool.upkeep.scrub.step(STEP).unwrap() {}
    let result = pool.upkeep.scrub.result().unwrap();
    assert_eq!((result.outcome, result.lost, result.started), (ScrubOutcome::Done, 0, after.started));
    assert_eq!(scrub(&pool).repaired, 0);
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    pool.upkeep.scrub.stop().unwrap();
    assert!(pool.upkeep.scrub.stop().is_err() && pool.upkeep.scrub.pause().is_err());
    drop(pool);
    let pool = open(&sim, 6);
    let outcomes: Vec<_> = pool.upkeep.scrub.results().iter().map(|result| result.outcome).collect();
    assert_eq!(outcomes, [ScrubOutcome::Done, ScrubOutcome::Done, ScrubOutcome::Stopped]);
    replay(&pool);
    verify(&pool, &model);
}

#[test]
fn a_scrub_since_a_time_passes_over_what_was_proven_later() {
    let sim = sim(3);
    let (pool, mut model, _) = written(&sim, "mirror");
    pool.commit().unwrap();
    let whole = scrub(&pool);
    let proven = whole.started.secs;
    let closed = |pool: &Pool| {
        let records = pool.store().segments().into_iter();
        records.filter(|record| record.state == SegmentState::Closed).collect::<Vec<_>>()
    };
    assert!(closed(&pool).iter().all(|record| record.verified == proven as u64));
    commit(&pool, &mut model, &[(90, 1, 200_000)]);
    pool.upkeep.scrub.start(ScrubSince::Before(proven)).unwrap();
    while pool.upkeep.scrub.step(STEP).unwrap() {}
    let rest = pool.upkeep.scrub.result().unwrap();
    assert!(rest.examined < whole.examined, "{rest:?} {whole:?}");
    drop(pool);
    let pool = open(&sim, 3);
    assert!(closed(&pool).iter().all(|record| record.verified >= proven as u64));
}

#[test]
fn what_was_proven_while_the_clock_was_ahead_is_gone_through_when_it_is_right() {
    let sim = sim(3);
    let (pool, _, _) = written(&sim, "mirror");
    pool.commit_export().unwrap();
    drop(pool);
    let clock = Arc::new(larder_sim::SimClock::new());
    let world = larder_pool::World { clock: Arc::clone(&clock) as Arc<dyn larder_device::Clock>, ..world(3) };
    let pool = Kept::import(world, plan(sim.devices()), &larder_pool::ImportOptions::default()).unwrap();
    let (right, ahead) = (1_800_000_000, 4_200_000_000);
    let set = |secs| clock.set_wall(larder_format::Timestamp { secs, nanos: 0 });
    let since = |secs| {
        pool.upkeep.scrub.start(ScrubSince::Before(secs)).unwrap();
        while pool.upkeep.scrub.step(STEP).unwrap() {}
        pool.upkeep.scrub.result().unwrap().examined
    };
    set(ahead);
    let whole = scrub(&pool).examined;
    set(right);
    let again = since(right - 86_400);
    assert!(again >= whole, "{again} of {whole} bytes");
    // Segments proven at the right time are passed over.
    let rest = since(right - 86_400);
    assert!(rest < whole / 2, "{rest} of {whole} bytes");
    // Set back, nothing is passed over either.
    set(86_400);
    assert!(since(3_600) >= whole);
    set(right);
    assert!(since(right - 86_400) >= whole);
}

#[test]
fn power_cuts_while_rot_is_repaired_leave_what_can_be_repaired() {
    for (word, count) in [("mirror", 2), ("raidz1", 3), ("raid14", 5)] {
        let sim = sim(count);
        let (pool, model, _) = written(&sim, word);
        pool.commit_export().unwrap();
        let records = pool.store().segments();
        rot_within_tolerance(&pool, &sim, &records, 21);
        drop(pool);
        let start = sim.images();
        let sim = SimWorld::from_images(start);
        let pool = open(&sim, 3);
        scrub(&pool);
        drop(pool);
        let trace = sim.trace();
        let events = trace.len();
        for (turn, cut) in (0..=events).step_by(events / 25 + 1).enumerate() {
            let case = format!("{word} of {count}, cut {cut}");
            let survival = Survival::Random { seed: turn as u64 };
            let sim = SimWorld::from_images(trace.crash_images(cut, survival));
            let pool = import(&sim, 60 + turn as u64).unwrap_or_else(|error| panic!("{case}: {error}"));
            if pool.upkeep.scrub.progress().is_none() {
                pool.upkeep.scrub.start(ScrubSince::All).unwrap();
            }
            while pool.upkeep.scrub.step(1 << 30).unwrap() {}
            let result = scrub(&pool);
            assert_eq!((result.repaired, result.lost), (0, 0), "{case}");
            verify(&pool, &model);
            assert_whole(&pool, &case);
        }
    }
}

#[test]
fn scrubs_beside_writes_and_cleaning_find_no_fault_that_is_not_there() {
    for (word, count) in LAYOUTS {
        for seed in 0..2u64 {
            let case = format!("{word} of {count}, seed {seed}");
            let rng = SeededEntropy::new(seed * 31 + count as u64);
            let sim = sim(count);
            let pool = create(&sim, word);
            let mut model = Model::new();
            let dataset = pool.dataset(ROOT_DATASET).unwrap();
            pool.upkeep.scrub.start(ScrubSince::All).unwrap();
            for turn in 0..120 {
                match rng.next_u64() % 8 {
                    0 | 1 => {
                        let first = 10 + rng.next_u64() % 20;
                        let len = || 1 + rng.next_u64() as usize % 200_000;
                        let files: Vec<_> = (first..first + 4).map(|inode| (inode, turn, len())).collect();
                        put(&pool, &dataset, &files);
                        model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
                    }
                    2 => drop(pool.commit().unwrap()),
                    3 => sync(&pool, &mut model, &[(30 + rng.next_u64() % 5, turn, 3000)]),
                    4 => drop(pool.clean_step(true).unwrap()),
                    _ => {
                        if !pool.upkeep.scrub.step(200 << 10).unwrap() {
                            pool.upkeep.scrub.start(ScrubSince::All).unwrap();
                        }
                    }
                }
            }
            while pool.upkeep.scrub.step(STEP).unwrap() {}
            assert!(!pool.upkeep.scrub.results().is_empty());
            let clean = |result: &ScrubResult| (result.repaired, result.lost) == (0, 0);
            assert!(
                pool.upkeep.scrub.results().iter().all(clean),
                "{case}: {:?}",
                pool.upkeep.scrub.results()
            );
            assert_eq!(checksum_errors(&pool), 0, "{case}");
            pool.commit().unwrap();
            verify(&pool, &model);
            assert_whole(&pool, &case);
        }
    }
}

#[test]
fn a_scrub_that_waits_keeps_no_slots() {
    let sim = sim(1);
    let pool = create(&sim, "single");
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let mut model = Model::new();
    let of = |version: u64| (10..40).map(|i| (i, version, 200_000)).collect::<Vec<_>>();
    commit(&pool, &mut model, &of(1));
    for version in 2..12 {
        // It stands in the middle of a segment, and has begun to read the next; both die.
        for _ in 0..version {
            if pool.upkeep.scrub.progress().is_none() {
                pool.upkeep.scrub.start(ScrubSince::All).unwrap();
            }
            pool.upkeep.scrub.step(64 << 10).unwrap();
        }
        commit(&pool, &mut model, &of(version));
        for _ in 0..8 {
            pool.free_step(1000).unwrap();
            pool.commit().unwrap();
        }
        assert!(!pool.is_freeing(), "commits would bring nothing: {version}");
    }
    let mut inode = 100;
    let before = pool.store().durable_commit().get();
    while pool.check_space(1 << 20, 128 << 10).is_ok() {
        let file = (inode, 1, 1 << 18);
        if try_put(&pool, &dataset, &[file]).is_ok() {
            model.insert(inode, (1, 1 << 18));
        }
        inode += 1;
        if pool.upkeep.scrub.progress().is_some() {
            pool.upkeep.scrub.step(4 << 10).unwrap();
        }
        assert!(pool.store().durable_commit().get() < before + 500, "it commits for ever");
    }
    while pool.upkeep.scrub.step(STEP).unwrap() {}
    assert!(pool.upkeep.scrub.results().iter().all(|result| (result.repaired, result.lost) == (0, 0)));
    verify(&pool, &model);
    assert_whole(&pool, "at the end");
}
