//! Rules that must hold, or data is lost: each checked by itself, from outside, by the requests that reach the devices.

mod common;

use common::*;
use larder_device::{AlignedBuf, Completion, Device, Entropy, Outcome, Pending, Request, SeededEntropy};
use larder_format::block::{BlockKind, check_any};
use larder_format::checksum::Sums;
use larder_format::items::{EXTENT, Extent};
use larder_format::label::{LABEL_AREA, RING_OFFSET, RING_SLOT, label_areas};
use larder_format::node::Key;
use larder_format::root::{DeviceState, Root, ring_slot};
use larder_format::segment::{Layout, StripeHeader, check_descriptor, stripe_header_len};
use larder_format::{BlockId, ByteLen, CommitId, DeviceOffset, SegmentId};
use larder_pool::create::rule_for;
use larder_pool::{
    Dedup, GroupSpec, ImportOptions, Look, Lost, NewRecord, PoolError, PoolSpec, ROOT_DATASET,
};
use larder_sim::{Event, Fault, SimDevice, SimWorld, Survival, Trace};
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SIZE: ByteLen = ByteLen::new(64 << 20);

/// The highest segment id among descriptors written before event `end`.
fn highest_segment(sums: &Sums, trace: &Trace, end: usize) -> Option<SegmentId> {
    segments(sums, &trace.events()[..end]).max()
}

fn segments<'a>(sums: &'a Sums, events: &'a [Event]) -> impl Iterator<Item = SegmentId> + 'a {
    events.iter().filter_map(move |event| match event {
        Event::Write { data, .. } => check_descriptor(sums, data).ok().map(|(record, _)| record.id),
        _ => None,
    })
}

#[test]
fn ids_never_return_however_often_an_import_is_cut_short() {
    for seed in 0..60 {
        let entropy = SeededEntropy::new(seed);
        let (word, count) = LAYOUTS[seed as usize % LAYOUTS.len()];
        let mut sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let sums = &pool.store().sums().clone();
        let created = sim.trace().len();
        let mut pool = Some(pool);
        let (mut blocks, mut highest) = (BlockId::new(0), SegmentId::new(0));
        for generation in 0..8u64 {
            if let Some(pool) = pool.take() {
                let dataset = pool.dataset(ROOT_DATASET).unwrap();
                for version in 0..entropy.next_u64() % 4 {
                    put(&pool, &dataset, &[(10 + version, generation, 30_000)]);
                    // Ids below this one have been used by now.
                    sim.mark(pool.store().next_block().get());
                    if version % 2 == 1 {
                        pool.commit().unwrap();
                        sim.mark(pool.store().next_block().get());
                    }
                }
            }
            let trace = sim.trace();
            let from = if generation == 0 { created } else { 0 };
            let cut = from + (entropy.next_u64() % (trace.len() - from + 1) as u64) as usize;
            blocks = blocks.max(BlockId::new(trace.marks_before(cut).last().unwrap_or(0)));
            highest = highest.max(highest_segment(sums, &trace, cut).unwrap_or(highest));
            let survival = [Survival::DropAll, Survival::KeepAll, Survival::Random { seed }];
            sim = SimWorld::from_images(trace.crash_images(cut, survival[(seed + generation) as usize % 3]));
            let next = open(&sim, 1000 * seed + generation);
            assert!(next.store().next_block() >= blocks, "seed {seed}: block ids come back");
            next.commit().unwrap();
            let fresh = segments(sums, sim.trace().events()).min();
            assert!(fresh.is_none_or(|id| id > highest), "seed {seed}: segment {fresh:?} after {highest}");
            pool = Some(next);
        }
    }
}

/// Whether a write was made durable, and its flush's outcome taken, before event `end`.
fn flushed(trace: &Trace, device: usize, write: usize, end: usize) -> bool {
    let not_lost = |event: &&Event| !matches!(event, Event::FlushFailed { device: at } if *at == device);
    trace.events()[write..end].iter().take_while(not_lost).any(|event| match event {
        Event::Flush { device: at, before, in_flight } => {
            *at == device && write < *before && !in_flight.contains(&write)
        }
        _ => false,
    })
}

fn is_root(sums: &Sums, event: &Event) -> Option<(usize, CommitId)> {
    let Event::Write { device, offset, data } = event else { return None };
    let inside = (RING_OFFSET..LABEL_AREA).contains(&offset.get());
    let root = inside.then(|| Root::check(sums, data).ok()).flatten()?;
    Some((*device, root.commit))
}

fn is_log(sums: &Sums, event: &Event) -> Option<usize> {
    let Event::Write { device, data, .. } = event else { return None };
    let stripe = StripeHeader::check(sums, data).ok()?;
    let (header, _) = check_any(sums, data.get(stripe_header_len(stripe.sums.len()) as usize..)?).ok()?;
    (header.info.kind == BlockKind::Log).then_some(*device)
}

#[test]
fn root_and_log_are_durable_on_enough_devices_before_anything_is_acknowledged() {
    for (word, count) in LAYOUTS {
        let layout: Layout = rule_for(word, count).unwrap().layout;
        for lost in [0, layout.tolerance()] {
            let sim = SimWorld::new(&vec![SIZE; count]);
            let pool = create(&sim, word);
            let sums = &pool.store().sums().clone();
            let mut model = Model::new();
            let mut from = sim.trace().len();
            for step in 0..12u64 {
                if step == 2 {
                    (0..lost).for_each(|i| sim.device(i).inject(Fault::Gone));
                    // They are found out.
                    pool.commit().unwrap();
                    from = sim.trace().len();
                }
                let files = [(10 + step % 3, step, 20_000)];
                let by_log = step % 2 == 0;
                let before = pool.store().durable_commit();
                match by_log {
                    true => sync(&pool, &mut model, &files),
                    false => commit(&pool, &mut model, &files),
                }
                let trace = sim.trace();
                let end = trace.len();
                let gone = if step < 2 { 0 } else { lost };
                let durable = |pick: &dyn Fn(&Event) -> Option<usize>| {
                    let events = trace.events()[from..].iter().enumerate();
                    let written: Vec<_> =
                        events.filter_map(|(i, event)| Some((pick(event)?, from + i))).collect();
                    let mut devices: Vec<_> = written
                        .iter()
                        .filter(|(device, write)| flushed(&trace, *device, *write, end))
                        .map(|(device, _)| *device)
                        .collect();
                    devices.sort_unstable();
                    devices.dedup();
                    devices.len()
                };
                let case = format!("{word} of {count} without {gone}, step {step}");
                if by_log && pool.store().durable_commit() == before {
                    let copies = durable(&|event| is_log(sums, event));
                    assert!(copies + gone >= layout.quorum() && copies > 0, "{case}: log on {copies}");
                } else {
                    let at = pool.store().durable_commit();
                    let copies =
                        durable(&|event| is_root(sums, event).filter(|root| root.1 == at).map(|root| root.0));
                    assert_eq!(copies, count - gone, "{case}: root on {copies}");
                }
                from = end;
            }
        }
    }
}

#[test]
fn a_device_that_fails_is_out_and_the_next_root_says_through_which_commit_it_is_good() {
    for (word, count) in [("mirror", 2), ("raidz2", 5), ("raid14", 5)] {
        for fault in [Fault::FailWrites(0..u64::MAX), Fault::FailFlushes, Fault::Gone] {
            for spare in 0..12 {
                let sim = SimWorld::new(&vec![SIZE; count]);
                let pool = create(&sim, word);
                let mut model = Model::new();
                commit(&pool, &mut model, &[(10, 1, 50_000)]);
                // A commit looks at the heartbeat, and such a read puts nobody out of use: what follows is gone, too.
                let strikes = match fault {
                    Fault::Gone => 2,
                    // One place that refuses is no reason.
                    Fault::FailWrites(_) => u64::MAX,
                    _ => 1,
                };
                sim.device(1).inject_window(fault.clone(), spare, strikes);
                let member = pool.store().members().get(larder_format::DeviceIndex::new(1)).clone();
                let mut version = 2;
                while member.is_online() {
                    commit(&pool, &mut model, &[(10, version, 50_000)]);
                    version += 1;
                }
                let failed = pool.store().durable_commit();
                let writes = sim.device(1).counters().writes;
                commit(&pool, &mut model, &[(10, version, 50_000)]);
                let case = format!("{word}, {fault:?} after {spare}");
                assert_eq!(sim.device(1).counters().writes, writes, "{case}: it is written again");
                let plan = plan(sim.devices());
                let told = &plan.root.devices[1];
                assert_eq!(told.state, DeviceState::Behind, "{case}");
                // A device that failed only at the root had been flushed before.
                assert!(told.good_through <= failed, "{case}: good through {}", told.good_through);
                assert!(told.good_through.get() + 2 >= failed.get(), "{case}: {}", told.good_through);
            }
        }
    }
}

/// Overwrites the newest `count` roots of every device with zeros, both copies.
fn forget_roots(sim: &SimWorld, count: u64) -> SimWorld {
    let newest = plan(sim.devices()).root.commit.get();
    let mut images = sim.images();
    for image in &mut images {
        for area in label_areas(image.size()) {
            for commit in newest - count + 1..=newest {
                image.write(ring_slot(area, CommitId::new(commit)), &[0; RING_SLOT]);
            }
        }
    }
    SimWorld::from_images(images)
}

#[test]
fn what_two_commits_back_refers_to_is_not_overwritten_before_the_next_root_is_durable() {
    for (word, count) in [("single", 1), ("raidz1", 3)] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let created = sim.trace().len();
        let mut models = vec![Model::new(); 2];
        for version in 0..8u64 {
            // Enough to turn over a segment or more a commit: slots come back all the time.
            let files: Vec<_> =
                (0..10 * count as u64).map(|i| (10 + (i * 3 + version) % 48, version, 250_000)).collect();
            let mut model = models.last().unwrap().clone();
            commit(&pool, &mut model, &files);
            models.push(model);
            assert_eq!(pool.store().durable_commit().get() + 1, models.len() as u64);
        }
        drop(pool);
        let trace = sim.trace();
        let mut sweep = trace.sweep();
        for cut in (created..=trace.len()).step_by(7) {
            sweep.advance_to(cut);
            let survivals = [Survival::KeepAll, Survival::Random { seed: cut as u64 }];
            for survival in [survivals[cut % 2]] {
                let after = SimWorld::from_images(sweep.images(survival));
                let newest = plan(after.devices()).root.commit.get();
                for back in (1..=2).filter(|back| back + 1 < newest) {
                    let case = format!("{word}, cut {cut} ({survival:?}), {back} before commit {newest}");
                    let older = forget_roots(&after, back);
                    let pool = import(&older, 5).unwrap_or_else(|error| panic!("{case}: {error}"));
                    verify(&pool, &models[(newest - back) as usize]);
                    assert_whole(&pool, &case);
                }
            }
        }
    }
}

/// A device that holds back the next read, once told to, until it is let go; it is performed then.
struct Held {
    inner: SimDevice,
    armed: Mutex<bool>,
    read: Mutex<Option<(Request, Completion<Outcome>)>>,
}

impl Device for Held {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn size(&self) -> ByteLen {
        self.inner.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        let held = matches!(request, Request::Read { .. }) && std::mem::take(&mut *self.armed.lock());
        if !held {
            return self.inner.submit(request);
        }
        let (completion, pending) = Pending::new();
        *self.read.lock() = Some((request, completion));
        pending
    }
}

#[test]
fn a_slot_is_not_written_again_while_a_reader_is_in_it() {
    let sim = SimWorld::new(&[SIZE]);
    let device = Arc::new(Held { inner: sim.device(0), armed: Mutex::new(false), read: Mutex::new(None) });
    let pool = create_on(vec![Arc::clone(&device) as Arc<dyn Device>], "single");
    let mut model = Model::new();
    let all = |version| (0..40).map(|i| (10 + i, version, 120_000)).collect::<Vec<_>>();
    commit(&pool, &mut model, &all(1));
    // Its segment is closed by what follows it.
    commit(&pool, &mut model, &[(60, 1, 120_000), (61, 1, 120_000)]);
    let value = pool.dataset(ROOT_DATASET).unwrap().view().unwrap().get(&Key::new(10, EXTENT, 0)).unwrap();
    let ptr = Extent::decode(&value.unwrap()).unwrap().ptr;
    pool.store().drop_caches();
    *device.armed.lock() = true;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| pool.store().read(ptr));
        while device.read.lock().is_none() {
            std::thread::yield_now();
        }
        // Everything around the reader is replaced, and every slot that is free is used.
        for version in 2..12 {
            commit(&pool, &mut model, &all(version));
        }
        let (request, completion) = device.read.lock().take().unwrap();
        completion.complete(device.inner.submit(request).wait());
        let read = reader.join().unwrap();
        assert_eq!(&read.unwrap()[..], content(10, 1, 120_000));
    });
    // With the reader gone the slot comes back.
    (12..18).for_each(|version| commit(&pool, &mut model, &all(version)));
    assert_whole(&pool, "after the reader");
}

#[test]
fn nobody_waits_for_a_tree_while_what_may_be_lost_is_read() {
    let sim = SimWorld::new(&[SIZE]);
    let device = Arc::new(Held { inner: sim.device(0), armed: Mutex::new(false), read: Mutex::new(None) });
    let pool = create_on(vec![Arc::clone(&device) as Arc<dyn Device>], "single");
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 4, 1));
    let value = pool.dataset(ROOT_DATASET).unwrap().view().unwrap().get(&Key::new(10, EXTENT, 0)).unwrap();
    let place =
        pool.store().whereabouts(Extent::decode(&value.unwrap()).unwrap().ptr.id).unwrap().unwrap().place;
    let range = place.offset..place.offset + place.stored;
    pool.damage().note_lost(&[Lost { segment: place.segment, column: place.column, range }]);
    *device.armed.lock() = true;
    std::thread::scope(|scope| {
        let namer = scope.spawn(|| while pool.upkeep.damage.step(64).unwrap() {});
        while device.read.lock().is_none() {
            std::thread::yield_now();
        }
        // A disk may take seconds over a bad sector.
        let (done, committed) = std::sync::mpsc::channel();
        let (pool, model) = (&pool, &mut model);
        scope.spawn(move || {
            commit(pool, model, &[(50, 1, 5000)]);
            done.send(()).unwrap();
        });
        let committed = committed.recv_timeout(std::time::Duration::from_secs(20));
        let (request, completion) = device.read.lock().take().unwrap();
        completion.complete(device.inner.submit(request).wait());
        namer.join().unwrap();
        assert!(committed.is_ok(), "the file could not be written");
    });
    assert_eq!(pool.upkeep.damage.known(), []);
    verify(&pool, &model);
}

/// The place of commit `commit`'s root in area `area` is damaged.
fn damage_root(sim: &SimWorld, device: usize, area: usize, commit: CommitId) {
    let at = ring_slot(label_areas(SIZE)[area], commit);
    sim.device(device).flip_bits(at, 64, 7);
}

/// A pool of `commits` commits and its newest one.
fn with_commits(word: &str, count: usize, commits: u64) -> (SimWorld, Model, CommitId) {
    let sim = SimWorld::new(&vec![SIZE; count]);
    let pool = create(&sim, word);
    let mut model = Model::new();
    (0..commits).for_each(|version| commit(&pool, &mut model, &[(10, version, 30_000)]));
    let at = pool.store().durable_commit();
    drop(pool);
    (sim, model, at)
}

#[test]
fn a_damaged_root_is_served_by_its_second_copy_or_by_another_device() {
    for commits in [3, 14, 15, 16, 40] {
        let (sim, model, at) = with_commits("mirror", 2, commits);
        for area in 0..2 {
            let sim = SimWorld::from_images(sim.images());
            (0..2).for_each(|device| damage_root(&sim, device, area, at));
            let plan = plan(sim.devices());
            assert_eq!(plan.root.commit, at);
            verify(&Kept::import(world(3), plan, &ImportOptions::default()).unwrap(), &model);
        }
        let sim = SimWorld::from_images(sim.images());
        (0..2).for_each(|area| damage_root(&sim, 0, area, at));
        let plan = plan(sim.devices());
        assert_eq!(plan.root.commit, at);
        let pool = Kept::import(world(3), plan, &ImportOptions::default()).unwrap();
        verify(&pool, &model);
        assert!(pool.store().members().iter().all(|member| member.is_online()));
    }
}

#[test]
fn a_root_that_was_durable_and_is_lost_is_never_passed_over_in_silence() {
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz1", 3)] {
        for commits in [3, 14, 15, 16, 40] {
            let (sim, _, at) = with_commits(word, count, commits);
            for device in 0..count {
                (0..2).for_each(|area| damage_root(&sim, device, area, at));
            }
            let before = sim.images();
            let text = import(&sim, 3).err().expect("a refusal").to_string();
            assert!(text.contains(&format!("commit {at}")), "{text}");
            assert!(sim.images() == before);
            // A read-only import shows what is left.
            let options = ImportOptions { read_only: true, ..ImportOptions::default() };
            let pool = Kept::import(world(4), plan(sim.devices()), &options).unwrap();
            assert_eq!(pool.store().durable_commit().get() + 1, at.get());
            verify(&pool, &Model::from([(10, (commits - 2, 30_000))]));
            assert!(sim.images() == before);
        }
    }
}

#[test]
fn a_root_that_may_lie_where_nobody_can_read_is_told() {
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz1", 3)] {
        let (sim, _, at) = with_commits(word, count, 5);
        let place = |area: usize| ring_slot(label_areas(SIZE)[area], at).get();
        // The power was cut when the second copy was not flushed yet: it is what it was a round before.
        let before = with_commits(word, count, 4).0;
        let put_old = |device: usize, area: usize| {
            let offset = DeviceOffset::new(place(area));
            let old = before.device(device).image().read(offset, 4096);
            let write = Request::Write { offset, data: Arc::new(AlignedBuf::padded(&old)) };
            sim.device(device).submit(write).wait().unwrap();
        };
        (0..count).for_each(|device| put_old(device, 1));
        let unread = |devices: usize| {
            let sim = SimWorld::from_images(sim.images());
            for device in 0..devices {
                sim.device(device).inject(Fault::FailReads(place(0)..place(0) + 4096));
            }
            plan(sim.devices())
        };
        assert_eq!((unread(0).root.commit, unread(0).remarks), (at, vec![]), "{word}");
        let told = unread(count);
        assert_eq!((told.root.commit.next(), told.only_reading), (at, None), "{word}");
        let names: Vec<_> = (0..count).map(|device| format!("sim{device}")).collect();
        let text = format!("where {} would have the root of commit {at} cannot be read", names.join(", "));
        assert!(told.remarks.len() == 1 && told.remarks[0].starts_with(&text), "{word}: {:?}", told.remarks);
        // The others were out when it was complete: they have none of it.
        for device in 1..count {
            put_old(device, 0);
        }
        let told = unread(1);
        assert_eq!(told.root.commit.next(), at, "{word}");
        assert!(
            told.remarks.iter().any(|remark| remark.starts_with("where sim0 would")),
            "{word}: {:?}",
            told.remarks
        );
    }
}

#[test]
fn a_log_that_goes_on_from_a_lost_root_is_never_passed_over_in_silence() {
    let sim = SimWorld::new(&[SIZE; 2]);
    let pool = create(&sim, "mirror");
    let mut model = Model::new();
    (0..5).for_each(|version| commit(&pool, &mut model, &[(10, version, 30_000)]));
    sync(&pool, &mut model, &[(11, 9, 500)]);
    drop(pool);
    // The newest root is gone without a trace: an older image of the label areas, say.
    let sim = forget_roots(&sim, 1);
    let before = sim.images();
    let text = import(&sim, 3).err().expect("a refusal").to_string();
    assert!(text.contains("log goes on from commit"), "{text}");
    assert!(sim.images() == before);
    let options = ImportOptions { read_only: true, ..ImportOptions::default() };
    let pool = Kept::import(world(4), plan(sim.devices()), &options).unwrap();
    assert!(pool.take_replay().is_empty());
    assert_eq!(pool.log_left(), Some(text), "it is told");
    verify(&pool, &Model::from([(10, (3, 30_000))]));
}

#[test]
fn power_cuts_one_after_the_other_never_look_like_a_lost_root() {
    for (word, count) in [("single", 1), ("mirror", 2)] {
        for seed in 0..40 {
            let entropy = SeededEntropy::new(seed);
            let (sim, _, _) = with_commits(word, count, 3 + seed % 20);
            let mut sim = SimWorld::from_images(sim.images());
            for generation in 0..10 {
                let pool = import(&sim, seed * 100 + generation)
                    .unwrap_or_else(|error| panic!("{word}, seed {seed}, import {generation}: {error}"));
                let mut model = Model::new();
                (0..entropy.next_u64() % 5).for_each(|v| commit(&pool, &mut model, &[(10, v, 500)]));
                drop(pool);
                let trace = sim.trace();
                let cut = (entropy.next_u64() % (trace.len() as u64 + 1)) as usize;
                let survival = Survival::Random { seed: entropy.next_u64() };
                sim = SimWorld::from_images(trace.crash_images(cut, survival));
            }
        }
    }
}

#[test]
fn data_larger_than_the_room_of_the_log_turns_into_a_commit() {
    for (word, count) in LAYOUTS {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let before = pool.store().durable_commit();
        sync_op(&pool, vec![1; 900_000]);
        assert!(pool.store().durable_commit() > before, "{word}: neither logged nor committed");
        // Small ones go to the log until it is full, and into a commit then.
        let mut logged = 0;
        let before = pool.store().durable_commit();
        while pool.store().durable_commit() == before {
            sync_op(&pool, vec![1; 9_000]);
            logged += 1;
        }
        assert!(logged > 5, "{word}: the log takes {logged} records");
    }
}

#[test]
fn a_full_pool_with_a_full_log_imports_and_commits() {
    for (word, count) in [("single", 1), ("raidz1", 3), ("raid14", 5)] {
        let sim = SimWorld::new(&vec![SIZE; count]);
        let pool = create(&sim, word);
        let dataset = pool.dataset(ROOT_DATASET).unwrap();
        let entropy = SeededEntropy::new(5);
        let mut inode = 1000;
        'fill: loop {
            for _ in 0..64 {
                if pool.check_space(16 << 10, 16 << 10).is_err() {
                    break 'fill;
                }
                let plain = entropy.bytes(16 << 10);
                let op = pool.enter().unwrap();
                let record = NewRecord {
                    dataset: dataset.id(),
                    inode,
                    offset: 0,
                    plain: plain.into(),
                    codec: larder_pool::codec::Codec::Off,
                    encoded: None,
                    checksum: larder_format::checksum::ChecksumKind::Fast,
                    dedup: Dedup::Off,
                    copies: 1,
                    replaces: None,
                };
                // Single records pack worse than AVAIL reckons: they may meet the end before it says so.
                let ptr = match pool.store_records(&op, vec![record]) {
                    Ok(ptrs) => ptrs[0],
                    Err(PoolError::NoSpace) => break 'fill,
                    Err(error) => panic!("{word}: {error}"),
                };
                let filled = dataset.update(&op, |tree| {
                    let extent = Extent {
                        ptr,
                        len: 16 << 10,
                        block_offset: 0,
                        logical: 16 << 10,
                        placed: 0,
                        copies: 1,
                    };
                    tree.insert(Key::new(inode, EXTENT, 0), &extent.encode())?;
                    tree.link_block(&extent);
                    Ok::<_, PoolError>(())
                });
                filled.unwrap();
                inode += 1;
            }
            pool.commit().unwrap();
        }
        pool.commit().unwrap();
        // The log carries data that no commit has stored.
        let before = pool.store().durable_commit();
        let mut synced = 0;
        let mut cut = 0;
        loop {
            let file = (10 + synced, synced, 9_000);
            let mut op = logged(file);
            op.extend(content(file.0, file.1, file.2));
            sync_op(&pool, op);
            if pool.store().durable_commit() != before {
                break;
            }
            synced += 1;
            cut = sim.trace().len();
        }
        assert!(synced > 5);
        let trace = sim.trace();
        drop(pool);
        let sim = SimWorld::from_images(trace.crash_images(cut, Survival::DropAll));
        let pool = open(&sim, 7);
        assert_eq!(replay(&pool) as u64, synced, "{word}");
        pool.commit().unwrap_or_else(|error| panic!("{word}: {error}"));
        let model: Model = (0..synced).map(|i| (10 + i, (i, 9_000))).collect();
        pool.store().drop_caches();
        verify(&pool, &model);
        assert_whole(&pool, word);
    }
}

#[test]
fn nothing_that_is_written_touches_a_sector_with_a_committed_stripe_or_another_root() {
    for ashift in 12..=16u8 {
        for (word, count) in [("single", 1), ("raidz1", 3)] {
            let sim = SimWorld::new(&vec![SIZE; count]);
            let groups = vec![GroupSpec::data(rule_for(word, count).unwrap(), sim.devices())];
            let spec = PoolSpec { name: "tank".into(), groups, ashift };
            let pool = Kept::create(world(1), spec).unwrap();
            let (sums, from) = (pool.store().sums().clone(), sim.trace().len());
            let mut model = Model::new();
            for version in 1..40 {
                commit(&pool, &mut model, &files(10, 12, version));
                sync(&pool, &mut model, &files(30, 3, version));
            }
            drop(pool);
            let pool = open(&sim, 2);
            replay(&pool);
            verify(&pool, &model);
            pool.commit().unwrap();
            let case = format!("{word}, sectors of 2^{ashift} bytes");
            assert_whole(&pool, &case);
            // By kind of what is written: the sectors that it lies in.
            let mut sectors: BTreeMap<(usize, u64), BTreeSet<String>> = BTreeMap::new();
            for event in &sim.trace().events()[from..] {
                let Event::Write { device, offset, data } = event else { continue };
                let areas = label_areas(SIZE).map(|area| area.get()..area.get() + LABEL_AREA);
                let (at, len) = (offset.get(), data.len() as u64);
                let kind = if areas.iter().any(|area| area.contains(&at)) {
                    format!("label area at {at}")
                } else if StripeHeader::check(&sums, data).is_ok() {
                    assert!(
                        at.is_multiple_of(1 << ashift) && len.is_multiple_of(1 << ashift),
                        "{case}: {at}, {len}"
                    );
                    "stripe".to_owned()
                } else {
                    check_descriptor(&sums, data)
                        .unwrap_or_else(|error| panic!("{case}: {at}, {len}: {error}"));
                    "descriptor".to_owned()
                };
                for sector in at >> ashift..(at + len).div_ceil(1 << ashift) {
                    sectors.entry((*device, sector)).or_default().insert(kind.clone());
                }
            }
            let stripes = sectors.values().filter(|kinds| kinds.contains("stripe")).count();
            assert!(stripes > 20, "{case}: {stripes} sectors with stripes");
            for (sector, kinds) in sectors {
                assert_eq!(kinds.len(), 1, "{case}: {sector:?} has {kinds:?}");
            }
        }
    }
}
