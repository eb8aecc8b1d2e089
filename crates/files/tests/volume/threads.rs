//! Several callers at once, with commits and flushes under way: nobody waits for ever, nothing is lost.

use crate::bed::{Bed, READ_WRITE, ROOT, USER};
use larder_device::{Entropy, Inline, SeededEntropy, Workers};
use larder_files::*;
use larder_format::ByteLen;
use larder_format::ledger::EventRecord;
use larder_pool::{Pool, ROOT_DATASET};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

const CALLERS: u64 = 4;
const STEPS: u64 = 2500;
const LEN: usize = 40_000;

/// Writes, cuts, renames and syncs in a directory of its own and in one that all share.
fn work(bed: &Bed, caller: u64, shared: NodeId) {
    let entropy = SeededEntropy::new(caller);
    let below = |n: u64| entropy.next_u64() % n;
    let dir = bed.dir(ROOT, &format!("caller-{caller}"));
    let node = bed.file(dir, "file");
    let mut content = vec![0u8; LEN];
    bed.resize(node, LEN as u64);
    for step in 0..STEPS {
        let at = below(LEN as u64 - 5000) as usize;
        let data = vec![step as u8; 1 + below(5000) as usize];
        bed.write(node, at as u64, &data);
        content[at..at + data.len()].copy_from_slice(&data);
        match below(12) {
            0 => bed.fsync(node),
            1 => {
                bed.resize(node, at as u64);
                bed.resize(node, LEN as u64);
                content[at..].fill(0);
            }
            2 => {
                let mode = Allocate::Zero { keep_size: true };
                bed.mount.fallocate(node, Handle(0), at as u64, 3000, mode).unwrap();
                content[at..at + 3000].fill(0);
            }
            3 | 4 => {
                let name = format!("name-{}", below(3));
                let temporary = bed.file(shared, &format!("temporary-{caller}"));
                bed.write(temporary, 0, name.as_bytes());
                let from = format!("temporary-{caller}");
                let flags = RenameFlags::default();
                bed.mount.rename(shared, from.as_bytes(), shared, name.as_bytes(), flags).unwrap();
            }
            5 => {
                let name = format!("name-{}", below(3));
                if let Ok(found) = bed.mount.lookup(shared, name.as_bytes())
                    && bed.mount.open(found.node, READ_WRITE).is_ok()
                {
                    // Replaced or not, an open file keeps its content.
                    drop(bed.mount.unlink(shared, name.as_bytes()));
                    assert_eq!(bed.read(found.node, 0, 4), b"name");
                    bed.mount.release(found.node, Handle(0)).unwrap();
                }
            }
            6 => assert_eq!(bed.names(shared)[0].0, "."),
            7 => drop(bed.mount.mkdir(shared, b"dir", 0o755, &USER)),
            8 => drop(bed.mount.rmdir(shared, b"dir")),
            9 => bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap(),
            _ => assert_eq!(bed.read(node, 100, 2000), content[100..2100]),
        }
    }
    assert_eq!(bed.content(node), content);
}

#[test]
fn callers_and_commits_do_not_wait_for_each_other_for_ever() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    bed.pool.set_pool_property("memory", "2097152").unwrap();
    let shared = bed.dir(ROOT, "shared");
    std::thread::scope(|scope| {
        let bed = &bed;
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| scope.spawn(move || work(bed, caller, shared))).collect();
        while !callers.iter().all(|caller| caller.is_finished()) {
            bed.pool.commit().unwrap();
            bed.mount.reap_step(10).unwrap();
            std::thread::yield_now();
        }
    });
    while bed.mount.reap_step(1000).unwrap() {}
    bed.pool.commit().unwrap();
    bed.check();
    assert_eq!(bed.pool.store().dirty().get(), 0);
}

/// Appends to a file whenever there is work, as much as may be dirty: faster than anybody stores.
#[derive(Default)]
struct Appending {
    to: OnceLock<(Arc<Pool>, Arc<Mount>, NodeId)>,
    /// Pieces to come, and the length of each.
    left: AtomicUsize,
    len: usize,
}

impl Appending {
    fn append(&self, pool: &Pool, mount: &Mount, node: NodeId) {
        while pool.store().dirty().get() + self.len as u64 <= pool.dirty_limit()
            && self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
        {
            let size = mount.getattr(node).unwrap().size;
            mount.write(node, Handle(0), size, &vec![(size % 251) as u8 + 1; self.len], false).unwrap();
        }
    }
}

impl Workers for Appending {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        self.to.get().into_iter().for_each(|(pool, mount, node)| self.append(pool, mount, *node));
        Inline.for_each(count, job);
    }
    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        Inline.later(job);
    }
}

#[test]
fn a_flush_does_not_follow_who_appends_as_fast_as_it_stores() {
    // Some of them end with a record, some reach over its end.
    let kinds = [("fixed", 4096), ("content", 4096), ("fixed", 30_001), ("content", 30_001)];
    for (chunking, piece) in kinds {
        let workers = Arc::new(Appending { len: piece, ..Appending::default() });
        let properties = [("recordsize", "4096"), ("chunking", chunking)];
        let devices = [ByteLen::new(64 << 20); 2];
        let bed = Bed::with_workers(Arc::clone(&workers) as _, "mirror", &devices, &properties);
        bed.pool.set_pool_property("memory", "2097152").unwrap();
        let most = bed.pool.dirty_limit() as usize / piece;
        let node = bed.file(ROOT, "file");
        let before = vec![7; (most - 1) * piece];
        let parts = before.chunks(piece).enumerate();
        parts.for_each(|(i, part)| bed.write(node, (i * piece) as u64, part));
        assert!(workers.to.set((Arc::clone(&bed.pool), Arc::clone(&bed.mount), node)).is_ok());
        workers.left.store(100 * most, Ordering::Relaxed);
        // Others are storing as well, and leave it little at a time.
        let others = bed.pool.store().dirty().room(bed.pool.dirty_limit(), 0);
        bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap();
        let came = 100 * most - workers.left.swap(0, Ordering::Relaxed);
        drop(others);
        assert!(
            came <= 2 * most,
            "{chunking}, {piece}: it was led on by {came} pieces, {most} of which may be dirty"
        );
        let stored = (most - 1 + came) * piece - bed.pool.store().dirty().get() as usize;
        assert!(stored >= before.len(), "{chunking}: what was dirty is stored");
        let content = bed.content(node);
        assert_eq!(content.len(), (most - 1 + came) * piece);
        assert_eq!(content[..before.len()], before);
        bed.pool.commit().unwrap();
        assert_eq!(bed.content(node), content);
        bed.check();
    }
}

#[test]
fn replacing_a_file_is_atomic_for_whoever_opens_it() {
    const TIMES: usize = 2000;
    let bed = Bed::new(&[]);
    let view = View::new(Arc::clone(&bed.mount), ROOT_DATASET);
    let done = AtomicUsize::new(0);
    let make = |name: &[u8]| {
        let made = view.create(ROOT, name, 0o644, READ_WRITE, &USER).unwrap();
        view.write(made.attr.node, made.handle, 0, b"whole", false).unwrap();
        view.release(made.attr.node, made.handle).unwrap();
        view.forget(made.attr.node, 1);
    };
    make(b"file");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..TIMES {
                make(b"temporary");
                view.rename(ROOT, b"temporary", ROOT, b"file", RenameFlags::default()).unwrap();
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        scope.spawn(|| {
            for _ in 0..TIMES {
                make(b"lock");
                let removed = view.unlink(ROOT, b"lock");
                assert!(matches!(removed, Ok(()) | Err(FsError::NotFound)), "{removed:?}");
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        while done.load(Ordering::Relaxed) < 2 {
            let node = view.lookup(ROOT, b"file").unwrap().node;
            std::thread::yield_now();
            view.getattr(node).unwrap();
            let handle = view.open(node, READ_WRITE).unwrap();
            assert_eq!(view.read(node, handle, 0, 10).unwrap().to_vec(), b"whole");
            view.release(node, handle).unwrap();
            view.forget(node, 1);
            let lock = view.create(ROOT, b"lock", 0o644, READ_WRITE, &USER).unwrap();
            view.release(lock.attr.node, lock.handle).unwrap();
            view.forget(lock.attr.node, 1);
            let _ = view.unlink(ROOT, b"lock");
        }
    });
    while bed.mount.reap_step(1000).unwrap() {}
    bed.pool.commit().unwrap();
    drop(view);
    bed.check();
    bed.check_tree();
}

#[test]
fn a_thread_less_that_serves_a_mount_is_an_event_of_the_pool() {
    let bed = Bed::new(&[]);
    bed.mount.serves_less("I/O error");
    let told =
        |(_, event): &(u64, EventRecord)| event.class == "mount_thread" && event.text.contains("I/O error");
    assert!(bed.pool.events(0).iter().any(told));
}
