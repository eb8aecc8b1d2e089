//! The columns of a missing device are written to a blank one, from as few others as can give them.

use super::*;
use crate::bed;
use larder_format::checksum::ChecksumKind;
use larder_format::label::Label;
use larder_format::segment::SegmentState;
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::ROOT_DATASET;
use larder_pool::create::rule_for;
use larder_sim::SimWorld;
use larder_store::NewRecord;
use larder_store::member::MemberState;

const LAYOUTS: [(&str, usize); 7] =
    [("mirror", 2), ("mirror", 3), ("raidz1", 3), ("raidz2", 6), ("raidz3", 7), ("raid10", 4), ("raid14", 5)];
const SIZE: ByteLen = ByteLen::new(64 << 20);

/// Stores and commits records that nothing refers to; that is all the same here.
fn store(pool: &Pool, first: u64, sizes: impl Iterator<Item = usize>) {
    let op = pool.enter().unwrap();
    let record = |(i, len): (usize, usize)| NewRecord {
        dataset: ROOT_DATASET,
        inode: first + i as u64,
        offset: 0,
        plain: (0..len).map(|at| ((at * (i + 3)) >> 3) as u8).collect::<Vec<_>>().into(),
        codec: larder_store::codec::Codec::Off,
        encoded: None,
        checksum: ChecksumKind::Fast,
        dedup: larder_pool::Dedup::Off,
        copies: 1,
        replaces: None,
    };
    pool.store_records(&op, sizes.enumerate().map(record).collect()).unwrap();
    drop(op);
    pool.set_note("turn", &first.to_string()).unwrap();
    pool.commit().unwrap();
}

/// A blank device that is to get what member `of` has.
fn blank(pool: &Pool, sim: &SimWorld, of: DeviceIndex) -> (usize, Arc<Member>) {
    let device = sim.add_device(SIZE);
    let label = Label { index: DeviceIndex::new(60), ..pool.store().members.get(of).label().unwrap() };
    let number = device.index();
    let (state, clock) = (MemberState::Rebuilding, &pool.store().world.clock);
    (number, Arc::new(Member::labelled(Arc::new(device), label, state, Some(of), clock)))
}

/// Gives `blank` what member `of` has of the commits between, in small steps; the tally of all segments.
fn rebuild(pool: &Pool, of: DeviceIndex, blank: &Arc<Member>, after: CommitId, through: CommitId) -> Tally {
    let mut all = Tally::default();
    for record in pool.store().segments() {
        let Some(column) = record.slots.iter().position(|slot| slot.device == of) else { continue };
        let missing = Missing { columns: vec![(column, Arc::clone(blank))], after, through };
        let segment = pool.store().readable.get(record.id).unwrap();
        let mut reconstruction = Reconstruction::new(segment, record.height, Targets::Missing(missing));
        while !reconstruction.step(pool, 100_000).unwrap() {}
        all.written += reconstruction.tally().written;
        all.wrong += reconstruction.tally().wrong;
        all.refused += reconstruction.tally().refused;
        all.lost.extend(reconstruction.tally().lost.clone());
    }
    all
}

fn assert_same(pool: &Pool, sim: &SimWorld, old: DeviceIndex, new: usize, case: &str) {
    let images = sim.images();
    let member = pool.store().members.get(old);
    for record in pool.store().segments().iter().filter(|record| record.state != SegmentState::Freed) {
        for slot in record.slots.iter().filter(|slot| slot.device == old) {
            let at = member.slot_offset(slot.index, 0);
            // The log's height is not kept.
            let log = record.kind == SegmentKind::Log;
            let len = if log { 64 << 10 } else { record.height as usize };
            let of = |device: usize| images[device].read(at, len);
            assert!(of(old.get().into())[..] == of(new)[..], "{case}: segment {} differs", record.id);
        }
    }
}

#[test]
fn a_blank_device_gets_byte_for_byte_what_the_lost_one_held() {
    for (word, count) in LAYOUTS {
        for lost in 0..count {
            let case = format!("{word} of {count}, device {lost}");
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = bed::pool(sim.devices(), word);
            store(&pool, 10, (1..30).map(|i| i * 9_000));
            store(&pool, 50, (1..4).map(|i| i * 300));
            let of = DeviceIndex::new(lost as u16);
            let lost = pool.store().members.get(of);
            lost.fault();
            let (number, target) = blank(&pool, &sim, of);
            let layout = rule_for(word, count).unwrap().layout;
            sim.devices().iter().enumerate().for_each(|(i, _)| sim.device(i).reset_counters());
            let tally = rebuild(&pool, of, &target, CommitId::new(0), pool.store().durable_commit());
            assert_eq!((tally.wrong, tally.refused, tally.lost.len()), (0, 0, 0), "{case}");
            assert_same(&pool, &sim, of, number, &case);
            let read: u64 = (0..count).map(|i| sim.device(i).counters().bytes_read).sum();
            // With a replica, a byte read for each that is written, and the log's chunks; else as many as have parity.
            let most = if layout.r() > 1 { 2 } else { layout.k() as u64 + 1 };
            assert!(read <= most * tally.written + (8 << 20), "{case}: {read} of {}", tally.written);
        }
    }
}

#[test]
fn a_healthy_device_that_is_replaced_is_copied() {
    let sim = SimWorld::new(&[SIZE; 6]);
    let pool = bed::pool(sim.devices(), "raidz2");
    store(&pool, 10, (1..30).map(|i| i * 9_000));
    let of = DeviceIndex::new(2);
    let (number, target) = blank(&pool, &sim, of);
    (0..6).for_each(|i| sim.device(i).reset_counters());
    rebuild(&pool, of, &target, CommitId::new(0), pool.store().durable_commit());
    assert_same(&pool, &sim, of, number, "copied");
    let data_read = |i: usize| sim.device(i).counters().bytes_read;
    assert!((0..6).all(|i| i == 2 || data_read(i) < data_read(2)));
}

#[test]
fn a_device_that_missed_commits_gets_their_stripes_alone() {
    for (word, count) in LAYOUTS {
        let case = format!("{word} of {count}");
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = bed::pool(sim.devices(), word);
        let of = DeviceIndex::new(1);
        let (number, target) = blank(&pool, &sim, of);
        store(&pool, 10, (1..20).map(|i| i * 9_000));
        let middle = pool.store().durable_commit();
        let first = rebuild(&pool, of, &target, CommitId::new(0), middle);
        store(&pool, 40, (1..12).map(|i| i * 7_000));
        pool.store().members.get(of).fault();
        let second = rebuild(&pool, of, &target, middle, pool.store().durable_commit());
        assert!(second.written > 0 && second.written < first.written, "{case}: {second:?} {first:?}");
        assert_same(&pool, &sim, of, number, &case);
        let nothing =
            rebuild(&pool, of, &target, pool.store().durable_commit(), pool.store().durable_commit());
        assert_eq!(nothing.written, 0, "{case}");
    }
}

#[test]
fn a_source_that_is_rotten_is_read_around() {
    let two_lost = |(word, count): &(&str, usize)| rule_for(word, *count).unwrap().layout.tolerance() > 1;
    for (word, count) in LAYOUTS.into_iter().filter(two_lost) {
        let mut wrong = 0;
        for rotten in (0..count).filter(|&i| i != 1) {
            let case = format!("{word} of {count}, {rotten} rotten");
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = bed::pool(sim.devices(), word);
            store(&pool, 10, (1..30).map(|i| i * 9_000));
            let of = DeviceIndex::new(1);
            let member = pool.store().members.get(DeviceIndex::new(rotten as u16));
            for record in pool.store().segments().iter().filter(|record| record.kind != SegmentKind::Log) {
                for slot in record.slots.iter().filter(|slot| slot.device == member.index) {
                    for page in 1..record.height / 4096 {
                        let at = member.slot_offset(slot.index, page * 4096);
                        sim.device(rotten).flip_bits(at, 4096, page.into());
                    }
                }
            }
            pool.store().members.get(of).fault();
            let (number, target) = blank(&pool, &sim, of);
            let tally = rebuild(&pool, of, &target, CommitId::new(0), pool.store().durable_commit());
            assert!(tally.lost.is_empty(), "{case}: {tally:?}");
            assert_same(&pool, &sim, of, number, &case);
            wrong += tally.wrong;
        }
        assert!(wrong > 0, "{word} of {count}");
    }
}
