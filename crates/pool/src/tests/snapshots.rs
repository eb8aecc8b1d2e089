//! Snapshots beside commits.

use crate::bookmarks::BookmarkSource;
use crate::dataset::{Look, Update};
use crate::op::Op;
use crate::pool::{FrontEnd, Pool};
use crate::{ROOT_DATASET, Renewal, Renewed, bed};
use larder_format::checksum::plain64;
use larder_format::node::Key;
use larder_format::{ByteLen, CommitId};
use larder_sim::{Fault, SimWorld};
use larder_store::Result;
use larder_sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::yield_now;

const KEY: Key = Key::new(10, 5, 0);

fn write(pool: &Pool, value: &[u8]) {
    let op = pool.enter().unwrap();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    dataset.update(&op, |tree| tree.insert(KEY, value)).unwrap();
}

/// Has one dirty value. When a commit has closed the gate, somebody writes, and asks for a snapshot.
struct Front {
    pool: Weak<Pool>,
    dirty: Mutex<Option<Vec<u8>>>,
    has_begun: AtomicBool,
    has_written: AtomicBool,
}

impl FrontEnd for Front {
    fn flush(&self) -> Result<()> {
        let dirty = self.dirty.lock().take();
        if let Some(value) = dirty {
            write(&self.pool.upgrade().unwrap(), &value);
        }
        Ok(())
    }

    fn flush_logged(&self, _op: &Op<'_>) -> Result<()> {
        if self.has_begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        *self.dirty.lock() = Some(b"second".to_vec());
        let pool = self.pool.upgrade().unwrap();
        self.has_written.store(true, Ordering::Release);
        while pool.snapshots.lock().to_come().next().is_none() {
            yield_now();
        }
        Ok(())
    }

    fn note_dirty(&self) -> Result<bool> {
        Ok(true)
    }

    fn committed(&self, _commit: CommitId) {}

    fn freeing_bytes(&self) -> u64 {
        0
    }

    fn reap_step(&self, _max: usize) -> Result<bool> {
        Ok(false)
    }

    fn renew(&self, _renewal: &Renewal) -> Result<Renewed> {
        Ok(Renewed::default())
    }
}

#[test]
fn a_snapshot_has_what_was_dirty_when_it_was_asked_for_though_a_commit_is_under_way() {
    let pool = bed::pool(SimWorld::new(&[ByteLen::new(64 << 20)]).devices(), "single");
    write(&pool, b"first");
    let front = Arc::new(Front {
        pool: Arc::downgrade(&pool),
        dirty: Mutex::default(),
        has_begun: AtomicBool::new(false),
        has_written: AtomicBool::new(false),
    });
    pool.set_front_end(Arc::downgrade(&front) as Weak<dyn FrontEnd>);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !front.has_written.load(Ordering::Acquire) {
                yield_now();
            }
            pool.snapshot(ROOT_DATASET, "s").unwrap();
        });
        pool.commit().unwrap();
    });
    let view = pool.snapshot_view(ROOT_DATASET, "s").unwrap();
    assert_eq!(view.get(&KEY).unwrap().as_deref(), Some(&b"second"[..]));
}

#[test]
fn what_goes_back_past_a_destroyed_snapshot_that_somebody_looks_into_is_refused_by_name() {
    let pool = bed::pool(SimWorld::new(&[ByteLen::new(64 << 20)]).devices(), "single");
    let id = pool.create_dataset("tank/a", Default::default()).unwrap().id();
    for name in ["old", "new"] {
        write(&pool, name.as_bytes());
        pool.snapshot(id, name).unwrap();
    }
    let high = pool.snapshot_named(id, "new").unwrap().high;
    let clone = pool.clone_snapshot(id, "new", "tank/b", Default::default()).unwrap().id();
    pool.destroy_snapshot(id, "new").unwrap();
    let view = pool.snapshot_view_of(id, high).unwrap();
    pool.destroy_dataset(clone).unwrap();
    let refusal = pool.rollback(id, "old", true).unwrap_err().to_string();
    assert!(refusal.contains("snapshot tank/a@new, which was destroyed, is in use"), "{refusal}");
    pool.destroy_snapshot(id, "old").unwrap();
    let refusal = pool.destroy_dataset(id).unwrap_err().to_string();
    assert!(refusal.contains("snapshot tank/a@new, which was destroyed, is in use"), "{refusal}");
    drop(view);
    pool.destroy_dataset(id).unwrap();
}

#[test]
fn bookmarks_that_cannot_be_sent_from_any_more_are_an_event() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    let key = |number: u64| Key::new(number, 5, 0);
    let change = |change: &mut dyn FnMut(&mut Update<'_>) -> Result<bool>| {
        let op = pool.enter().unwrap();
        pool.dataset(ROOT_DATASET).unwrap().update(&op, change)
    };
    let entries = 10..4_000;
    for number in entries.clone() {
        // Small leaves would be read many at once.
        let word = |at: u64| plain64(&[number, at].map(u64::to_le_bytes).concat()).to_le_bytes();
        let value: Vec<u8> = (0..25).flat_map(word).collect();
        change(&mut |tree| tree.insert(key(number), &value).map(|_| true)).unwrap();
    }
    pool.snapshot(ROOT_DATASET, "s").unwrap();
    let mark = pool.make_bookmark(ROOT_DATASET, BookmarkSource::Snapshot("s"), "m").unwrap();
    pool.commit().unwrap();
    pool.store().drop_caches();
    // One leaf is in memory, and no other can be read.
    let middle = 2_000;
    change(&mut |tree| tree.insert(key(middle), b"new").map(|_| true)).unwrap();
    sim.device(0).inject(Fault::FailReads(0..64 << 20));
    assert!(pool.is_traced(&mark));
    let told =
        || pool.events(0).iter().any(|(_, event)| event.text.contains("none of them can be sent from"));
    assert!(!told());
    let gone = |number: &u64| change(&mut |tree| tree.remove(&key(*number)).map(|_| true)).is_ok();
    let (up, down) =
        ((middle..entries.end).take_while(gone).count(), (0..middle).rev().take_while(gone).count());
    assert!(up > 1 && down > 1 && up + down < 1_000, "{up}, {down}: the rest of the leaf");
    assert!(!pool.is_traced(&mark), "its neighbour was not read");
    assert!(told());
    sim.device(0).clear_faults();
}
