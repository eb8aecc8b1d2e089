//! Snapshots sent from one simulated pool and received in another: each arrives whole or not at all, with what it
//! shares, whatever the stream suffers and wherever the power fails.

#[allow(dead_code)]
#[path = "../../files/tests/volume/bed.rs"]
mod bed;
#[path = "streams/bookmarks.rs"]
mod bookmarks;

use bed::*;
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_format::items::{EXTENT, Extent, INODE, Inode};
use larder_format::node::Key;
use larder_format::tables::ReceivingRecord;
use larder_format::{ByteLen, DatasetId, Timestamp};
use larder_pool::{Look, Pool, PoolError, ROOT_DATASET, ReceiveAs};
use larder_sim::{SimWorld, Survival};
use larder_stream::wire::{Begin, Decoder, Encoder, Frame, Item, STREAM_CLEARS, Start};
use larder_stream::{Base, Receive, Send, StreamError};
use larder_upkeep::Task;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of the last frame.
const CLOSE: usize = larder_stream::wire::FRAME_HEAD + larder_stream::wire::FRAME_SUM;
const SIZE: ByteLen = ByteLen::new(128 << 20);

fn seeds(few: u64, full: u64) -> u64 {
    if std::env::var_os("LARDER_FULL").is_some() { full } else { few }
}

/// The same for what takes long: a tenth of `all` in full, and all of it with `LARDER_LARGE`.
fn long_seeds(few: u64, all: u64) -> u64 {
    if std::env::var_os("LARDER_LARGE").is_some() { all } else { seeds(few, few.max(all / 10)) }
}

/// A snapshot as anybody sees it: all entries of its tree, with contents in the place of blocks.
type Seen = BTreeMap<Key, Vec<u8>>;

fn see(pool: &Pool, dataset: DatasetId, snapshot: &str) -> Seen {
    let view = pool.snapshot_view(dataset, snapshot).unwrap();
    let mut all = Seen::new();
    view.scan(&Key::MIN, &mut |key, value| {
        let shown = match key.kind {
            EXTENT => {
                let extent = Extent::decode(value).unwrap();
                let plain = pool.store().read(extent.ptr).unwrap();
                plain[extent.block_offset as usize..(extent.block_offset + extent.len) as usize].to_vec()
            }
            INODE => Inode { stored: 0, ..Inode::decode(value).unwrap() }.encode().to_vec(),
            _ => value.to_vec(),
        };
        all.insert(*key, shown);
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

/// Extents of a snapshot, and blocks that they name.
fn blocks(pool: &Pool, dataset: DatasetId, snapshot: &str) -> (usize, usize) {
    let (mut extents, mut ids) = (0, BTreeSet::new());
    let view = pool.snapshot_view(dataset, snapshot).unwrap();
    view.scan(&Key::MIN, &mut |key, value| {
        if key.kind == EXTENT {
            extents += 1;
            ids.insert(Extent::decode(value).unwrap().ptr.id);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    (extents, ids.len())
}

fn id(pool: &Pool, name: &str) -> DatasetId {
    pool.dataset_by_name(name).unwrap().id()
}

/// The stream of a snapshot, frame by frame.
fn frames(pool: &Pool, dataset: &str, from: Option<&str>, to: &str, position: Option<Key>) -> Vec<Frame> {
    let of = id(pool, dataset);
    let old = from.map(|from| pool.snapshot_view(of, from).unwrap());
    frames_upon(pool, dataset, old.as_ref().into(), to, position)
}

fn frames_upon(pool: &Pool, dataset: &str, base: Base<'_>, to: &str, position: Option<Key>) -> Vec<Frame> {
    let new = pool.snapshot_view(id(pool, dataset), to).unwrap();
    let mut send = Send::new(pool, base, &new, position);
    let flags = if matches!(base, Base::Bookmark(_)) { STREAM_CLEARS } else { 0 };
    let mut all = vec![Frame::Start(Start { flags, name: dataset.into() })];
    all.push(Frame::Begin(send.begin(&format!("{dataset}@{to}")).unwrap()));
    while let Some(items) = send.chunk().unwrap() {
        // Small ones, so that there is much to break off at.
        all.extend(items.chunks(100).map(|part| Frame::Chunk(part.to_vec())));
    }
    all.push(Frame::End(send.sent().end));
    all.push(Frame::Close);
    all
}

fn encode(frames: &[Frame]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    frames.iter().flat_map(|frame| encoder.frame(frame)).collect()
}

/// Receives one stream; the dataset is made if it is not there.
fn receive(pool: &Arc<Pool>, dataset: &str, bytes: &[u8], with: ReceiveAs) -> Result<(), StreamError> {
    let mut stream = Decoder::new(bytes);
    let Frame::Start(_) = stream.frame()? else { return Err(stream.refuse(larder_stream::Wrong::Order)) };
    let Frame::Begin(begin) = stream.frame()? else { return Err(stream.refuse(larder_stream::Wrong::Order)) };
    let found = pool.dataset_by_name(dataset);
    let made = found.is_err();
    let target = found.or_else(|_| pool.create_dataset(dataset, BTreeMap::new()))?.id();
    let goes_on = pool.received(target).is_some_and(|record| record.to == begin.to) && begin.flags != 0;
    let incoming = if goes_on {
        pool.resume_receive(target)?
    } else {
        pool.receive(target, record_of(pool, target, &begin, made)?, begin.salt)?
    };
    let mut receive = Receive::new(pool, incoming, &begin)?;
    receive.run(&mut stream)?;
    receive.into_incoming().finish(with)?;
    let Frame::Close = stream.frame()? else { return Err(stream.refuse(larder_stream::Wrong::Order)) };
    Ok(())
}

fn record_of(
    pool: &Pool,
    target: DatasetId,
    begin: &Begin,
    made: bool,
) -> Result<ReceivingRecord, PoolError> {
    let base = pool.snapshots(target).into_iter().find(|one| begin.from != 0 && one.guid == begin.from);
    if begin.from != 0 && base.is_none() {
        return Err(PoolError::NotFound("the base".into()));
    }
    let name = begin.name.rsplit_once('@').map_or("", |(_, name)| name);
    Ok(Receive::record(begin, name, base.map(|base| base.high), 99, true, made))
}

fn settle(bed: &Bed) {
    for _ in 0..5_000 {
        bed.pool.commit().unwrap();
        let more = bed.pool.destroy_step(1000).unwrap();
        if !more && !bed.pool.is_freeing() {
            bed.pool.commit().unwrap();
            return;
        }
    }
    panic!("freeing does not end");
}

/// Everything is freed that nobody has, and the check finds nothing.
fn check(bed: &Bed) {
    settle(bed);
    bed.check();
}

/// Writes, makes, moves, links, shares and removes files.
struct Work {
    entropy: SeededEntropy,
    names: u64,
}

/// Cuts files anew, as far as so many steps get.
fn recut(bed: &Bed, size: u64, by_content: bool, steps: u64) {
    let chunking = if by_content { "content" } else { "fixed" };
    bed.pool.set_property(ROOT_DATASET, "recordsize", &size.to_string()).unwrap();
    bed.pool.set_property(ROOT_DATASET, "chunking", chunking).unwrap();
    bed.upkeep.passes.start(Task::Records, vec![ROOT_DATASET], 0).unwrap();
    for _ in 0..steps {
        bed.upkeep.passes.step(1).unwrap();
    }
    drop(bed.upkeep.passes.stop());
}

impl Work {
    fn new(seed: u64) -> Self {
        Self { entropy: SeededEntropy::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(3)), names: 0 }
    }

    fn next(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn bytes(&self, len: usize) -> Vec<u8> {
        let (seed, plain) = (self.entropy.next_u64(), self.next(2) == 0);
        let one = |i: usize| match plain {
            true => (seed >> (i % 7)) as u8,
            false => (seed.rotate_left(i as u32) >> (i / 64 % 8)) as u8 ^ i as u8,
        };
        (0..len).map(one).collect()
    }

    fn all(&self, bed: &Bed, kind: FileKind) -> Vec<(NodeId, String, NodeId)> {
        let (mut all, mut dirs) = (Vec::new(), vec![ROOT]);
        while let Some(dir) = dirs.pop() {
            for (name, node, is) in bed.names(dir) {
                if name == "." || name == ".." {
                    continue;
                }
                if is == FileKind::Directory {
                    dirs.push(node);
                }
                if is == kind {
                    all.push((dir, name, node));
                }
            }
        }
        all
    }

    fn step(&mut self, bed: &Bed) {
        bed.tick();
        let files = self.all(bed, FileKind::Regular);
        let dirs = self.all(bed, FileKind::Directory);
        let dir = if dirs.is_empty() { ROOT } else { dirs[self.next(dirs.len() as u64) as usize].2 };
        let file = (!files.is_empty()).then(|| files[self.next(files.len() as u64) as usize].clone());
        self.names += 1;
        let name = format!("n{}", self.names);
        let nobody = Handle(0);
        match (self.next(15), file) {
            (0..=2, _) | (_, None) => {
                let node = bed.file(dir, &name);
                let len = self.next(60_000) as usize;
                bed.write(node, 0, &self.bytes(len + 1));
            }
            (3..=5, Some((.., node))) => {
                let len = self.next(20_000) as usize;
                bed.write(node, self.next(100_000), &self.bytes(len + 1));
            }
            (6, Some((.., node))) => bed.resize(node, self.next(80_000)),
            (7, _) => drop(bed.dir(dir, &name)),
            // To the end, or not.
            (14, _) => recut(bed, 4096 << self.next(3), self.next(3) == 0, self.next(40)),
            (8, Some((parent, name, _))) => bed.mount.unlink(parent, name.as_bytes()).unwrap(),
            (9, Some((parent, old, _))) => {
                bed.mount
                    .rename(parent, old.as_bytes(), dir, name.as_bytes(), RenameFlags::default())
                    .unwrap();
            }
            (10, Some((.., node))) => drop(bed.mount.link(node, dir, name.as_bytes()).unwrap()),
            (11, Some((.., node))) => {
                let value = self.bytes(self.next(9000) as usize);
                bed.mount.setxattr(node, b"user.x", &value, XattrMode::Set).unwrap();
            }
            (12, Some((.., node))) => {
                let target = bed.file(dir, &name);
                bed.pool.commit().unwrap();
                let size = bed.mount.getattr(node).unwrap().size;
                bed.mount.copy_range((node, 0), (target, 0), size).unwrap();
            }
            (_, Some(_)) if self.next(4) == 0 => {
                bed.mount.symlink(dir, name.as_bytes(), b"a/target", &USER).unwrap();
            }
            (_, Some((.., node))) => {
                let (at, len) = (self.next(50_000), 1 + self.next(20_000));
                bed.mount.fallocate(node, nobody, at, len, Allocate::Zero { keep_size: false }).unwrap();
            }
        }
    }
}

/// A pool whose own dataset is sent.
fn source(properties: &[(&str, &str)]) -> Bed {
    Bed::with_layout("mirror", &[SIZE; 2], properties)
}

fn target() -> Bed {
    Bed::with_layout("single", &[SIZE], &[])
}

fn sent(from: &Bed, old: Option<&str>, new: &str) -> Vec<u8> {
    encode(&frames(&from.pool, "tank", old, new, None))
}

fn take(bed: &Bed, name: &str) {
    bed.pool.snapshot(id(&bed.pool, "tank"), name).unwrap();
}

const KINDS: [&[(&str, &str)]; 3] = [
    &[("recordsize", "4096")],
    &[("recordsize", "16384"), ("chunking", "content")],
    &[("recordsize", "8192"), ("dedup", "on"), ("compression", "off")],
];

#[test]
fn a_replica_stays_equal_through_increments_that_break_off_and_go_on() {
    for seed in 0..long_seeds(12, 240) {
        eprintln!("seed {seed}");
        let (a, b) = (source(KINDS[seed as usize % 3]), target());
        let mut work = Work::new(seed);
        let mut before: Option<String> = None;
        let mut expected: Vec<(String, Seen)> = Vec::new();
        let there = |b: &Bed| id(&b.pool, "tank/r");
        for round in 0..6 {
            (0..work.next(60)).for_each(|_| work.step(&a));
            let name = format!("s{round}");
            take(&a, &name);
            let whole = encode(&frames(&a.pool, "tank", before.as_deref(), &name, None));
            for _ in 0..work.next(3) {
                // Behind its end the snapshot is there, whatever becomes of the rest.
                let cut = work.next((whole.len() - CLOSE) as u64) as usize;
                receive(&b.pool, "tank/r", &whole[..cut], ReceiveAs::Next).unwrap_err();
            }
            let was = a.pool.snapshot_named(id(&a.pool, "tank"), &name).unwrap();
            let found = b.pool.dataset_by_name("tank/r").ok().and_then(|one| b.pool.received(one.id()));
            let rest = match found.filter(|found| found.to == was.guid) {
                Some(found) => encode(&frames(&a.pool, "tank", before.as_deref(), &name, found.position)),
                None => whole,
            };
            for (name, seen) in &expected {
                assert!(see(&b.pool, there(&b), name) == *seen, "{name}");
            }
            receive(&b.pool, "tank/r", &rest, ReceiveAs::Next).unwrap();
            expected.push((name.clone(), see(&a.pool, id(&a.pool, "tank"), &name)));
            assert!(see(&b.pool, there(&b), &name) == expected[round].1, "{name} differs");
            let of = b.pool.snapshot_named(there(&b), &name).unwrap();
            assert_eq!((of.guid, of.created, of.logical), (was.guid, was.created, was.logical));
            // Sharing is kept.
            let shared = blocks(&a.pool, id(&a.pool, "tank"), &name);
            assert_eq!(blocks(&b.pool, there(&b), &name), shared, "sharing");
            before = Some(name);
            if work.next(3) == 0 {
                check(&b);
            }
        }
        for (name, seen) in &expected {
            assert!(see(&b.pool, there(&b), name) == *seen, "{name} changed later");
        }
        // Some go again: what is left stays.
        for (name, _) in expected.iter().filter(|_| work.next(2) == 0) {
            b.pool.destroy_snapshot(there(&b), name).unwrap();
        }
        check(&b);
        for record in b.pool.snapshots(there(&b)) {
            let (_, seen) = expected.iter().find(|(name, _)| *name == record.name).unwrap();
            assert!(see(&b.pool, there(&b), &record.name) == *seen);
        }
    }
}

#[test]
fn a_power_cut_leaves_a_snapshot_whole_or_not_there_and_the_rest_may_come() {
    for seed in 0..long_seeds(8, 160) {
        eprintln!("seed {seed}");
        let (a, b) = (source(KINDS[seed as usize % 3]), target());
        let mut work = Work::new(seed + 1000);
        (0..40).for_each(|_| work.step(&a));
        take(&a, "one");
        receive(&b.pool, "tank/r", &encode(&frames(&a.pool, "tank", None, "one", None)), ReceiveAs::Next)
            .unwrap();
        (0..40).for_each(|_| work.step(&a));
        take(&a, "two");
        let seen = ["one", "two"].map(|name| see(&a.pool, id(&a.pool, "tank"), name));
        let since = b.sim.trace().len();
        let stream = encode(&frames(&a.pool, "tank", Some("one"), "two", None));
        let cut = work.next(stream.len() as u64) as usize;
        let _ = receive(&b.pool, "tank/r", &stream[..cut], ReceiveAs::Next);
        b.pool.commit().unwrap();
        let so_far = b.pool.received(id(&b.pool, "tank/r")).and_then(|found| found.position);
        let rest = encode(&frames(&a.pool, "tank", Some("one"), "two", so_far));
        let whole = receive(&b.pool, "tank/r", &rest, ReceiveAs::Next);
        whole.unwrap();
        let trace = b.sim.trace();
        for _ in 0..6 {
            let at = since + work.next((trace.len() - since) as u64 + 1) as usize;
            let survival = Survival::Random { seed: work.entropy.next_u64() };
            let world = SimWorld::from_images(trace.crash_images(at, survival));
            let c = Bed::import(world, Arc::clone(&b.clock), seed + 7);
            let there = id(&c.pool, "tank/r");
            assert!(see(&c.pool, there, "one") == seen[0]);
            let two = c.pool.snapshot_named(there, "two").is_ok();
            if two {
                assert!(see(&c.pool, there, "two") == seen[1]);
            } else {
                let so_far = c.pool.received(there).and_then(|found| found.position);
                let rest = encode(&frames(&a.pool, "tank", Some("one"), "two", so_far));
                receive(&c.pool, "tank/r", &rest, ReceiveAs::Next).unwrap();
                assert!(see(&c.pool, there, "two") == seen[1], "resumed after a cut");
            }
            check(&c);
        }
    }
}

/// A pool that has a snapshot and a stream of the next one.
fn half_way(seed: u64) -> (Bed, Bed, Vec<Frame>, [Seen; 2]) {
    let (a, b) = (source(KINDS[seed as usize % 3]), target());
    let mut work = Work::new(seed);
    (0..25).for_each(|_| work.step(&a));
    take(&a, "one");
    receive(&b.pool, "tank/r", &encode(&frames(&a.pool, "tank", None, "one", None)), ReceiveAs::Next)
        .unwrap();
    (0..25).for_each(|_| work.step(&a));
    take(&a, "two");
    let seen = ["one", "two"].map(|name| see(&a.pool, id(&a.pool, "tank"), name));
    let stream = frames(&a.pool, "tank", Some("one"), "two", None);
    (a, b, stream, seen)
}

#[test]
fn damaged_streams_are_refused_and_nothing_of_them_is_seen() {
    let (_a, b, stream, seen) = half_way(5);
    let there = id(&b.pool, "tank/r");
    let whole = encode(&stream);
    let work = Work::new(77);
    for _ in 0..seeds(1_000, 10_000) {
        let mut bad = whole.clone();
        match work.next(4) {
            0 => bad.truncate(work.next(whole.len() as u64) as usize),
            1 => {
                let at = work.next(whole.len() as u64) as usize;
                bad[at] ^= 1 << work.next(8);
            }
            2 => {
                let (at, len) = (work.next(whole.len() as u64) as usize, 1 + work.next(300) as usize);
                bad.drain(at..(at + len).min(whole.len()));
            }
            _ => {
                let at = work.next(whole.len() as u64) as usize;
                let more = work.bytes(1 + work.next(300) as usize);
                bad.splice(at..at, more);
            }
        }
        // Damage behind the end of the snapshot is no matter of the snapshot's.
        let end = whole.len() - CLOSE;
        if bad.get(..end) == whole.get(..end) {
            continue;
        }
        receive(&b.pool, "tank/r", &bad, ReceiveAs::Next).unwrap_err();
        assert!(b.pool.snapshot_named(there, "two").is_err());
    }
    assert!(see(&b.pool, there, "one") == seen[0]);
    receive(&b.pool, "tank/r", &whole, ReceiveAs::Next).unwrap();
    assert!(see(&b.pool, there, "two") == seen[1]);
    check(&b);
}

/// Changes something of a frame, whose sum will be right.
fn mutate(work: &Work, frames: &mut Vec<Frame>) {
    let at = work.next(frames.len() as u64) as usize;
    match work.next(6) {
        0 => drop(frames.remove(at)),
        1 => {
            let other = work.next(frames.len() as u64) as usize;
            frames.swap(at, other);
        }
        _ => {
            let mut bytes = Encoder::default().frame(&frames[at]);
            let payload = bytes.len() - 16;
            if payload == 0 {
                return;
            }
            for _ in 0..1 + work.next(3) {
                let at = 8 + work.next(payload as u64) as usize;
                bytes[at] = match work.next(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => bytes[at].wrapping_add(1),
                    _ => work.next(256) as u8,
                };
            }
            // A frame that says what cannot be is refused before it gets here: see the decoder's own tests.
            let start = Start { flags: STREAM_CLEARS, name: String::new() };
            let start = Encoder::default().frame(&Frame::Start(start));
            let mut whole = start.clone();
            let sum = u64::from_le_bytes(start[start.len() - 8..].try_into().unwrap());
            bytes.truncate(8 + payload);
            let sum = larder_stream::wire::sum_after(sum, &bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
            whole.extend_from_slice(&bytes);
            let mut decoder = Decoder::new(&whole[..]);
            drop(decoder.frame());
            if let Ok(frame) = decoder.frame() {
                frames[at] = frame;
            }
        }
    }
}

#[test]
fn streams_with_right_sums_that_say_what_cannot_be_do_no_harm() {
    let (_a, b, stream, seen) = half_way(3);
    no_harm(&b, &stream, &seen, long_seeds(1_000, 50_000));
}

fn no_harm(b: &Bed, stream: &[Frame], seen: &[Seen; 2], rounds: u64) {
    let there = id(&b.pool, "tank/r");
    let work = Work::new(78);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..rounds {
        let mut bad = stream.to_vec();
        (0..1 + work.next(2)).for_each(|_| mutate(&work, &mut bad));
        if bad == stream {
            continue;
        }
        match receive(&b.pool, "tank/r", &encode(&bad), ReceiveAs::Next) {
            Err(_) => refused += 1,
            Ok(()) => taken += 1,
        }
        // It was another content, or time, or name: a stream as good as any. All of it can be used.
        let newer = b.pool.snapshots(there).into_iter().filter(|one| one.name != "one");
        for record in newer.collect::<Vec<_>>() {
            see(&b.pool, there, &record.name);
            b.pool.rollback(there, "one", true).unwrap();
        }
        if round % 200 == 0 {
            check(b);
            // Blocks that were shared are left to it.
            assert!(b.upkeep.gc.start().unwrap());
            while b.upkeep.gc.step(64).unwrap() {}
        }
    }
    eprintln!("{refused} refused, {taken} taken");
    assert!(see(&b.pool, there, "one") == seen[0]);
    receive(&b.pool, "tank/r", &encode(stream), ReceiveAs::Next).unwrap();
    assert!(see(&b.pool, there, "two") == seen[1]);
    check(b);
}

fn half_base(seed: u64) -> (Bed, Bed, DatasetId) {
    let (_a, b, stream, _seen) = half_way(seed);
    let there = id(&b.pool, "tank/r");
    let whole = encode(&stream);
    receive(&b.pool, "tank/r", &whole[..whole.len() - 60], ReceiveAs::Next).unwrap_err();
    (_a, b, there)
}

fn reimport(b: &Bed) {
    b.pool.commit().unwrap();
    let trace = b.sim.trace();
    let world = SimWorld::from_images(trace.crash_images(trace.len(), Survival::Random { seed: 1 }));
    drop(Bed::import(world, Arc::clone(&b.clock), 9));
}

#[test]
fn a_pool_with_half_of_a_stream_is_imported() {
    let (_a, b, _there) = half_base(3);
    reimport(&b);
}

#[test]
fn half_of_a_stream_is_no_clone_and_goes_with_its_dataset() {
    let (_a, b, there) = half_base(3);
    let one = b.pool.snapshot_named(there, "one").unwrap();
    let clones = b.pool.clones(&one);
    assert!(clones.is_empty());
    b.pool.destroy_snapshot(there, "one").unwrap();
    let staging = b.pool.datasets().into_iter().find(|one| one.is_staging()).unwrap();
    assert!(matches!(b.pool.destroy_dataset(staging.id()), Err(PoolError::Busy(_))));
    drop(staging);
    b.pool.destroy_dataset(there).unwrap();
    reimport(&b);
}

#[test]
fn files_that_are_cut_anew_arrive_before_between_and_afterwards() {
    for (from, to) in [(4096, 16384), (16384, 4096)] {
        let (a, b) = (source(&[("recordsize", &from.to_string()), ("compression", "off")]), target());
        let (large, sparse, short) = (a.file(ROOT, "large"), a.file(ROOT, "sparse"), a.file(ROOT, "short"));
        a.write(large, 0, &SeededEntropy::new(1).bytes(200_000));
        // Some extents of these stay, and are cut right as they are.
        [0, 100_000, 200_000].into_iter().for_each(|at| a.write(sparse, at / 16384 * 16384, &[7; 4000]));
        a.write(short, 0, b"some bytes");
        let mut before: Option<String> = None;
        let mut sent = |bytes: Option<u64>| {
            let name = before.as_deref().map_or("s".to_owned(), |name| format!("{name}x"));
            bytes.into_iter().for_each(|bytes| recut(&a, to, false, bytes));
            take(&a, &name);
            let stream = encode(&frames(&a.pool, "tank", before.as_deref(), &name, None));
            receive(&b.pool, "tank/r", &stream, ReceiveAs::Next).unwrap();
            let there = id(&b.pool, "tank/r");
            assert!(see(&b.pool, there, &name) == see(&a.pool, id(&a.pool, "tank"), &name));
            let is_between = |node: NodeId| {
                let value = b.pool.snapshot_view(there, &name).unwrap();
                let value = value.get(&Key::new(node.unpack().1.get(), INODE, 0)).unwrap().unwrap();
                Inode::decode(&value).unwrap().by_content()
            };
            before = Some(name.clone());
            let between = is_between(large);
            check(&b);
            between
        };
        assert_eq!([None, Some(3), Some(2), Some(1000)].map(&mut sent), [false, true, true, false]);
    }
}

#[test]
fn a_stream_that_says_another_cut_than_extents_have_which_stay_is_refused() {
    let (a, b) = (source(&[("recordsize", "4096"), ("compression", "off")]), target());
    let node = a.file(ROOT, "file");
    a.write(node, 0, &SeededEntropy::new(1).bytes(100_000));
    take(&a, "one");
    receive(&b.pool, "tank/r", &encode(&frames(&a.pool, "tank", None, "one", None)), ReceiveAs::Next)
        .unwrap();
    a.tick();
    a.write(node, 98_304, b"the last one changes");
    take(&a, "two");
    let honest = frames(&a.pool, "tank", Some("one"), "two", None);
    let said = |record_size: u32| {
        let mut frames = honest.clone();
        for frame in &mut frames {
            let Frame::Chunk(items) = frame else { continue };
            for item in items {
                if let Item::Put(key, value) = item
                    && (key.object, key.kind) == (node.unpack().1.get(), INODE)
                {
                    let inode = Inode { record_size, ..Inode::decode(value).unwrap() };
                    *value = inode.encode().to_vec().into();
                }
            }
        }
        receive(&b.pool, "tank/r", &encode(&frames), ReceiveAs::Next)
    };
    assert!(said(16_384).is_err());
    assert!(said(512).is_err());
    assert!(b.pool.snapshot_named(id(&b.pool, "tank/r"), "two").is_err());
    said(4096).unwrap();
}

#[test]
fn a_file_that_was_cut_to_nothing_and_still_has_records_arrives() {
    let (a, b) = (source(&[("recordsize", "4096")]), target());
    let node = a.file(ROOT, "big");
    for at in 0..1500u64 {
        a.write(node, at * 4096, &[(at % 251) as u8 + 1; 4096]);
    }
    a.pool.commit().unwrap();
    a.resize(node, 0);
    take(&a, "one");
    let stream = encode(&frames(&a.pool, "tank", None, "one", None));
    receive(&b.pool, "tank/r", &stream, ReceiveAs::Next).unwrap();
    a.write(node, 0, &[9; 9000]);
    a.pool.commit().unwrap();
    take(&a, "two");
    let stream = sent(&a, Some("one"), "two");
    receive(&b.pool, "tank/r", &stream, ReceiveAs::Next).unwrap();
    assert!(see(&a.pool, id(&a.pool, "tank"), "two") == see(&b.pool, id(&b.pool, "tank/r"), "two"));
}

const UNTIL: Timestamp = Timestamp { secs: 4_000_000_000, nanos: 0 };

#[test]
fn snapshots_in_the_trash_are_not_in_the_way_of_a_stream() {
    for with in [ReceiveAs::Next, ReceiveAs::Replacement] {
        let (_a, b, stream, seen) = half_way(3);
        let there = id(&b.pool, "tank/r");
        b.pool.snapshot(there, "between").unwrap();
        b.pool.trash_snapshots(&[(there, "between".into())], UNTIL).unwrap();
        b.pool.commit().unwrap();
        receive(&b.pool, "tank/r", &encode(&stream), with).unwrap();
        assert!(see(&b.pool, there, "two") == seen[1]);
        assert_eq!(b.pool.trash(), [], "it follows on what is not its base");
        check(&b);
        reimport(&b);
    }
}

#[test]
fn what_became_a_clone_meanwhile_takes_no_whole_stream() {
    let (a, b) = (source(KINDS[0]), target());
    let mut work = Work::new(3);
    (0..60).for_each(|_| work.step(&a));
    take(&a, "one");
    let whole = encode(&frames(&a.pool, "tank", None, "one", None));
    receive(&b.pool, "tank/r", &whole[..whole.len() - 60], ReceiveAs::Next).unwrap_err();
    let there = id(&b.pool, "tank/r");
    b.pool.snapshot(there, "local").unwrap();
    let clone = b.pool.clone_snapshot(there, "local", "tank/clone", BTreeMap::new()).unwrap().id();
    b.pool.promote(clone).unwrap();
    for with in [ReceiveAs::Next, ReceiveAs::Replacement] {
        let position = b.pool.received(there).and_then(|found| found.position);
        let rest = encode(&frames(&a.pool, "tank", None, "one", position));
        let refused = receive(&b.pool, "tank/r", &rest, with).unwrap_err();
        assert!(refused.to_string().contains("tank/r is a clone"), "{refused}");
    }
    b.pool.abort_receive(there).unwrap();
    check(&b);
}

#[test]
fn a_base_that_goes_into_the_trash_meanwhile_comes_back() {
    let (b, there, stream, seen) = {
        let (_a, b, stream, seen) = half_way(3);
        let there = id(&b.pool, "tank/r");
        let whole = encode(&stream);
        receive(&b.pool, "tank/r", &whole[..whole.len() - 60], ReceiveAs::Next).unwrap_err();
        (b, there, stream, seen)
    };
    let high = b.pool.snapshot_named(there, "one").unwrap().high;
    b.pool.trash_snapshots(&[(there, "one".into())], UNTIL).unwrap();
    b.pool.commit().unwrap();
    b.pool.abort_receive(there).unwrap();
    settle(&b);
    b.pool.restore_snapshot(high, None).unwrap();
    assert!(see(&b.pool, there, "one") == seen[0]);
    receive(&b.pool, "tank/r", &encode(&stream), ReceiveAs::Next).unwrap();
    assert!(see(&b.pool, there, "two") == seen[1]);
    check(&b);
}

#[test]
fn a_dataset_that_half_of_a_stream_came_for_goes_into_the_trash_without_it() {
    let (b, there, seen) = {
        let (_a, b, stream, seen) = half_way(3);
        let there = id(&b.pool, "tank/r");
        let whole = encode(&stream);
        receive(&b.pool, "tank/r", &whole[..whole.len() - 60], ReceiveAs::Next).unwrap_err();
        (b, there, seen)
    };
    b.pool.trash_dataset(there, UNTIL).unwrap();
    b.pool.commit().unwrap();
    assert!(b.pool.datasets().iter().all(|one| !one.is_staging()));
    check(&b);
    reimport(&b);
    b.pool.restore_dataset(there, "tank/back").unwrap();
    assert!(see(&b.pool, there, "one") == seen[0]);
    check(&b);
}

#[test]
fn a_dataset_that_was_made_for_a_stream_goes_with_it() {
    let (a, b) = (source(KINDS[0]), target());
    let node = a.file(ROOT, "x");
    a.write(node, 0, &[7; 50_000]);
    take(&a, "one");
    let stream = encode(&frames(&a.pool, "tank", None, "one", None));
    let mut decoder = Decoder::new(&stream[..]);
    decoder.frame().unwrap();
    let Frame::Begin(begin) = decoder.frame().unwrap() else { panic!() };
    let since = b.sim.trace().len();
    let t = b.pool.create_dataset("tank/r", BTreeMap::new()).unwrap().id();
    let record = Receive::record(&begin, "one", None, 1, false, true);
    let incoming = b.pool.receive(t, record, begin.salt).unwrap();
    b.pool.commit().unwrap();
    let trace = b.sim.trace();
    drop(incoming);
    while b.pool.destroy_step(1000).unwrap() {}
    assert!(b.pool.dataset_by_name("tank/r").is_err(), "made, nothing in it, and it stays");
    // So it does whenever the power fails meanwhile.
    for at in since..=trace.len() {
        let world = SimWorld::from_images(trace.crash_images(at, Survival::Random { seed: at as u64 }));
        let c = Bed::import(world, Arc::clone(&b.clock), 3);
        while c.pool.destroy_step(1000).unwrap() {}
        assert!(c.pool.dataset_by_name("tank/r").is_err(), "cut {at}: it stays");
    }
}

#[test]
fn a_snapshot_that_comes_between_takes_no_name_twice() {
    (0..seeds(8, 40)).for_each(|_| same_name());
}

fn same_name() {
    let (_a, b, stream, _seen) = half_way(3);
    let there = id(&b.pool, "tank/r");
    let whole = encode(&stream);
    let mut decoder = Decoder::new(&whole[..]);
    decoder.frame().unwrap();
    let Frame::Begin(begin) = decoder.frame().unwrap() else { panic!() };
    let incoming =
        b.pool.receive(there, record_of(&b.pool, there, &begin, false).unwrap(), begin.salt).unwrap();
    let mut receive = Receive::new(&b.pool, incoming, &begin).unwrap();
    receive.run(&mut decoder).unwrap();
    let incoming = receive.into_incoming();
    let pool = Arc::clone(&b.pool);
    let before = b.pool.store().durable_commit();
    let (x, y) = std::thread::scope(|scope| {
        let x = scope.spawn(|| {
            // Somewhere within the commits that it takes.
            while pool.store().durable_commit() == before {
                std::hint::spin_loop();
            }
            pool.snapshot(there, "two").map(drop)
        });
        let y = scope.spawn(|| incoming.finish(ReceiveAs::Next).map(drop));
        (x.join().unwrap(), y.join().unwrap())
    });
    assert!(x.is_err() || y.is_err(), "both got the name");
    let names: Vec<_> = b.pool.snapshots(there).into_iter().map(|one| one.name).collect();
    assert!(names.iter().filter(|one| *one == "two").count() == 1);
}

#[test]
fn names_that_cannot_be_read_back_are_refused() {
    let (_a, b, stream, _seen) = half_way(3);
    for name in [
        "tank@a\u{1}".to_owned(),
        format!("{}@x", "a".repeat(4000)),
        "tank@a/b".to_owned(),
        "tank@".to_owned(),
    ] {
        let mut bad = stream.clone();
        let Frame::Begin(begin) = &mut bad[1] else { panic!("no snapshot") };
        begin.name = name;
        receive(&b.pool, "tank/r", &encode(&bad), ReceiveAs::Next).unwrap_err();
    }
    reimport(&b);
    receive(&b.pool, "tank/r", &encode(&stream), ReceiveAs::Next).unwrap();
}

#[test]
fn a_stream_that_a_clone_is_in_the_way_of_leaves_the_trash_as_it_was() {
    for with in [ReceiveAs::Next, ReceiveAs::Replacement] {
        let (_a, b, stream, _seen) = half_way(3);
        let there = id(&b.pool, "tank/r");
        b.pool.snapshot(there, "between").unwrap();
        b.pool.clone_snapshot(there, "between", "tank/clone", BTreeMap::new()).unwrap();
        b.pool.trash_snapshots(&[(there, "between".into())], UNTIL).unwrap();
        b.pool.commit().unwrap();
        let refused = receive(&b.pool, "tank/r", &encode(&stream), with).unwrap_err();
        assert!(refused.to_string().contains("is the origin of tank/clone"), "{refused}");
        let [trashed] = &b.pool.trash()[..] else { panic!("{:?}", b.pool.trash()) };
        let larder_format::trash::TrashKey::Snapshot(high) = trashed.key else { panic!("{trashed:?}") };
        b.pool.restore_snapshot(high, None).unwrap();
        check(&b);
    }
}

#[test]
fn half_of_a_stream_is_dropped_with_the_dataset_that_has_its_base() {
    let (a, b) = (source(KINDS[0]), target());
    let [file, filler, copy] = ["file", "filler", "copy"].map(|name| a.file(ROOT, name));
    for (name, byte) in [("zero", 1), ("one", 2)] {
        a.write(file, 0, &[byte; 4096]);
        take(&a, name);
    }
    for (before, name) in [(None, "zero"), (Some("zero"), "one")] {
        receive(&b.pool, "tank/r", &sent(&a, before, name), ReceiveAs::Next).unwrap();
    }
    // The copy is told as the content that the file had in the base; before it comes more than a chunk.
    a.write(filler, 0, &Work::new(1).bytes(700_000));
    a.pool.commit().unwrap();
    a.mount.copy_range((file, 0), (copy, 0), 4096).unwrap();
    take(&a, "two");
    let all = frames(&a.pool, "tank", Some("one"), "two", None);
    receive(&b.pool, "tank/r", &encode(&all[..3]), ReceiveAs::Next).unwrap_err();
    let there = id(&b.pool, "tank/r");
    let position = b.pool.received(there).unwrap().position;
    assert!(position.is_some());
    // Its base goes on in a branch, and is destroyed with that.
    b.pool.branch(there, "zero", "tank/branch", &BTreeMap::new()).unwrap();
    let branch = id(&b.pool, "tank/branch");
    b.pool.destroy_snapshots(&[(branch, "one".into())]).unwrap();
    b.pool.destroy_dataset(branch).unwrap();
    settle(&b);
    let rest = encode(&frames(&a.pool, "tank", Some("one"), "two", position));
    if receive(&b.pool, "tank/r", &rest, ReceiveAs::Next).is_ok() {
        let seen = |bed: &Bed, of| see(&bed.pool, of, "two");
        assert!(seen(&b, there) == seen(&a, ROOT_DATASET), "it was taken to build upon another snapshot");
    }
    assert!(b.pool.received(there).is_none(), "it can go on upon nothing");
    check(&b);
    reimport(&b);
}
