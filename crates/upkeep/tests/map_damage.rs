//! Pages of the block map that cannot be read: each costs its range of ids, and nothing else.

mod common;

use common::*;
use larder_format::run::PageRef;
use larder_format::{BlockPtr, ByteLen};
use larder_pool::Pool;
use larder_sim::{Fault, SimWorld};
use std::ops::Range;

/// First sector of a block on the only device.
fn sector_of(pool: &Pool, ptr: BlockPtr) -> Range<u64> {
    let segments = pool.store().segments();
    let segment = segments.iter().find(|segment| segment.id == ptr.place.segment).unwrap();
    let slot = segment.slots[usize::from(ptr.place.column)];
    let at = pool.store().members().get(slot.device).slot_offset(slot.index, ptr.place.offset).get();
    let at = at & !4095;
    at..at + 4096
}

/// First entry page of each run, newest first; the runs are so small that their descriptors name all their pages.
fn entry_pages(pool: &Pool) -> Vec<PageRef> {
    let map = pool.store().map.lock();
    map.descriptors()
        .map(|run| (run.height == 0).then(|| run.refs[0].clone()).expect("a small run"))
        .collect()
}

fn written() -> (SimWorld, Kept, Model) {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    for round in 0..3 {
        commit(&pool, &mut model, &files(10 + 10 * round, 5, 1));
    }
    (sim, pool, model)
}

#[test]
fn an_import_goes_on_without_a_page_of_the_newest_run() {
    let (sim, pool, model) = written();
    pool.commit_export().unwrap();
    let lost = sector_of(&pool, entry_pages(&pool)[0].ptr);
    drop(pool);
    sim.device(0).inject(Fault::FailReads(lost));
    verify(&open(&sim, 2), &model);
}

#[test]
fn commits_go_on_when_a_page_that_a_merge_needs_cannot_be_read() {
    let (sim, pool, mut model) = written();
    pool.commit_export().unwrap();
    let (page, lost) = (entry_pages(&pool)[1].clone(), sector_of(&pool, entry_pages(&pool)[1].ptr));
    drop(pool);
    sim.device(0).inject(Fault::FailReads(lost));
    let pool = open(&sim, 2);
    for round in 0..80 {
        commit(&pool, &mut model, &files(100 + 5 * round, 3, 1));
    }
    assert!(entry_pages(&pool).iter().any(|other| other.ptr == page.ptr), "its run stays");
    assert!(entry_pages(&pool).len() < 24, "the others are merged: {}", entry_pages(&pool).len());
    verify(&pool, &model);
    drop(pool);
    verify(&open(&sim, 3), &model);
}
