//! Snapshots beside commits.

use crate::dataset::Look;
use crate::op::Op;
use crate::pool::{FrontEnd, Pool};
use crate::{ROOT_DATASET, Renewal, Renewed, bed};
use larder_format::node::Key;
use larder_format::{ByteLen, CommitId};
use larder_sim::SimWorld;
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
