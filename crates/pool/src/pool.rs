//! The pool: what is imported, and the gate that keeps operations whole.
//!
//! Everything that changes the pool is done under an [`Op`], which holds the gate shared; a commit
//! takes the gate exclusively for as long as it needs to turn what changed into blocks, so that each
//! operation is in one commit, whole. Device writes, flushes and the root follow with the gate open.

use crate::cleaner::Cleaner;
use crate::commit_records::Records;
use crate::dataset::Dataset;
use crate::fence::{Fence, FenceCheck};
use crate::freeing::Freeing;
use crate::ledger::Damage;
use crate::op::{Gate, Op};
use crate::pins::Pins;
use crate::rebuilt::Rebuilt;
use crate::receiving::Receiving;
use crate::resting::{AllResting, Resting};
use crate::sealing::Sealing;
use crate::shared::Shared;
use crate::snapshots::{Measured, Snapshots};
use crate::tally::{Renewal, Renewed};
use crate::trashed::{TrashWatch, TrashedDatasets};
use larder_format::{CommitId, DatasetId, Incarnation, Timestamp};
use larder_mutants::{Mutant, mutated};
use larder_sorted::tree::Tree;
use larder_store::{Class, Event, PoolError, Result, Store, Watch, Watermark};
use larder_sync::{Mutex, MutexGuard, ReentrantMutex, RwLock, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The layer above, asked at commits.
pub trait FrontEnd: Send + Sync {
    /// Stores all dirty data written before the call. Traffic goes on meanwhile.
    fn flush(&self) -> Result<()>;
    /// Stores dirty data that is in the intent log and not yet stored. Nothing else can enter meanwhile.
    fn flush_logged(&self, op: &Op<'_>) -> Result<()>;
    /// Notes all dirty data for the log; false when it is too much for it.
    fn note_dirty(&self) -> Result<bool>;
    /// A commit is durable.
    fn committed(&self, commit: CommitId);
    /// Bytes of what has no name any more and is still to be removed.
    fn freeing_bytes(&self) -> u64;
    /// Goes on with removing that: at most `max` records. True while there is more to do.
    fn reap_step(&self, max: usize) -> Result<bool>;
    /// Gives live files other blocks with the same bytes: see [`Pool::renew`].
    fn renew(&self, renewal: &Renewal) -> Result<Renewed>;
}

/// Called when so much is dirty that it should be stored; see [`Pool::on_dirty`].
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// A change to make at the next boundary between two commits.
type Change = Box<dyn FnOnce(&Pool, CommitId) + Send>;

/// Changes of members: one at a time, whoever asks for it.
#[derive(Default)]
pub(crate) struct Changes {
    /// Held from the look at who is a member to the commit that changes it; outermost of all locks.
    pub(crate) turn: ReentrantMutex<()>,
    /// Changes that wait for a boundary.
    pub(crate) waiting: Mutex<Vec<Change>>,
}

/// Held by the one that keeps a pool well.
pub struct OnlyUpkeep(Arc<AtomicBool>);

impl Drop for OnlyUpkeep {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// An imported pool.
pub struct Pool {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: RwLock<String>,
    pub(crate) created: Timestamp,
    /// When it was made or imported, by the clock that never goes back.
    pub(crate) began: Duration,
    /// Changes of members that wait for the next commit.
    pub(crate) changes: Changes,
    /// Progress of devices being rebuilt.
    pub(crate) rebuilt: Rebuilt,
    pub(crate) resting: AllResting,
    /// Somebody keeps it well.
    pub(crate) is_kept: Arc<AtomicBool>,
    /// Held while free slots are told to devices.
    pub(crate) trimming: Mutex<()>,
    pub(crate) gate: RwLock<()>,
    pub(crate) commit_lock: Mutex<()>,
    pub(crate) tables: Mutex<Tree>,
    pub(crate) datasets: RwLock<BTreeMap<DatasetId, Arc<Dataset>>>,
    /// Datasets without a name, whose trees are being taken down; see [`crate::destroy`].
    pub(crate) destroyed: Mutex<BTreeMap<DatasetId, Arc<Dataset>>>,
    /// Datasets in the trash; see [`crate::trash`].
    pub(crate) trashed: Mutex<TrashedDatasets>,
    pub(crate) trash: TrashWatch,
    pub(crate) properties: RwLock<BTreeMap<String, String>>,
    pub(crate) front: RwLock<Option<Weak<dyn FrontEnd>>>,
    pub(crate) sealing: Sealing,
    pub(crate) records: Mutex<Records>,
    pub(crate) fence: Fence,
    /// Log of events.
    pub(crate) log: Arc<crate::event_log::EventLog>,
    pub(crate) cleaner: Cleaner,
    pub(crate) waker: OnceLock<Waker>,
    pub(crate) snapshots: Mutex<Snapshots>,
    /// Measures of committed trees.
    pub(crate) measured: Mutex<Measured>,
    /// Streams on their way in. Never held while another lock is taken.
    pub(crate) receiving: Mutex<Receiving>,
    /// Held while a snapshot of a moment is taken, until somebody looks into it.
    pub(crate) taking_moment: Mutex<()>,
    /// Held while snapshots are out of the list that may come back to it, within an operation: whoever goes by the list
    /// to free or to give names waits.
    pub(crate) destroying: Mutex<()>,
}

/// The turn to commit, or to do what no commit may come between.
pub struct CommitTurn<'a> {
    _watch: Watch<'a>,
    _lock: MutexGuard<'a, ()>,
}

impl Pool {
    /// Store of its blocks.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }
    /// Known damage.
    pub fn damage(&self) -> &Damage {
        &self.shared.damage
    }
    /// Freeing of blocks that were dropped.
    pub fn freeing(&self) -> &Freeing {
        &self.shared.freeing
    }
    /// Progress of devices being rebuilt.
    pub fn rebuilt(&self) -> &Rebuilt {
        &self.rebuilt
    }
    /// Pins of a collection, and changes reported to it.
    pub fn pins(&self) -> &Pins {
        &self.shared.pins
    }
    /// Has `resting` let go of segments that have been freed, whenever somebody could use their slots.
    pub fn add_resting(&self, resting: Weak<dyn Resting>) {
        self.resting.add(resting);
    }
    /// No free slots are being told to devices, nor will be, until this is dropped.
    pub fn trim_turn(&self) -> MutexGuard<'_, ()> {
        self.trimming.lock()
    }
    /// Enters a modifying operation.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`] or [`PoolError::Suspended`].
    pub fn enter(&self) -> Result<Op<'_>> {
        self.fence.look_after_a_pause()?;
        let guard = (!mutated(Mutant::GateOpen)).then(|| self.gate.read());
        // The pool may have been suspended before the gate was passed.
        self.shared.store.check_writable()?;
        Ok(Op::new(&self.shared, self.watermark(), "an operation", Gate::Shared { _guard: guard }))
    }

    /// Down to where operations may take space: to the last slot while what the log held is done again.
    pub fn watermark(&self) -> Watermark {
        if self.shared.intent.redoes() { Watermark::Promised } else { Watermark::Store }
    }

    /// The right to keep it well, unless somebody has it.
    pub fn only_upkeep(&self) -> Option<OnlyUpkeep> {
        let is_free = !self.is_kept.swap(true, Ordering::AcqRel);
        is_free.then(|| OnlyUpkeep(Arc::clone(&self.is_kept)))
    }

    /// Nobody enters until this is dropped.
    pub fn keep_out(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }

    /// When it was made or imported, by the clock that never goes back.
    pub fn began(&self) -> Duration {
        self.began
    }

    /// Waits for the turn to commit.
    pub fn commit_turn(&self) -> CommitTurn<'_> {
        let lock = self.commit_lock.lock();
        CommitTurn { _watch: self.shared.store.watch("a commit, or what holds commits back,"), _lock: lock }
    }

    pub(crate) fn exclusive<'a>(&'a self, guard: &'a RwLockWriteGuard<'a, ()>) -> Result<Op<'a>> {
        self.shared.store.check_writable()?;
        // It is for what the log holds, which was promised.
        let gate = Gate::Exclusive { _guard: guard };
        Ok(Op::new(&self.shared, Watermark::Promised, "a commit", gate))
    }
    /// This import.
    pub fn incarnation(&self) -> Incarnation {
        self.fence.incarnation()
    }
    /// Shows other hosts that the pool is in use here.
    ///
    /// # Errors
    /// When another import has it: then this one is suspended, and nothing is written.
    pub fn beat(&self) -> Result<()> {
        self.fence.beat()
    }
    /// Suspends the pool when another import has it.
    pub fn still_ours(&self, look: FenceCheck) -> Result<()> {
        self.fence.still_ours(look)
    }
    /// The pool's name.
    pub fn name(&self) -> String {
        self.name.read().clone()
    }
    /// When it was made.
    pub fn created(&self) -> Timestamp {
        self.created
    }
    /// A dataset.
    pub fn dataset(&self, id: DatasetId) -> Option<Arc<Dataset>> {
        self.datasets.read().get(&id).cloned()
    }
    /// All datasets that have a name, in the order of their ids.
    pub fn datasets(&self) -> Vec<Arc<Dataset>> {
        self.datasets.read().values().cloned().collect()
    }
    /// The most dirty bytes that the budget allows.
    pub fn dirty_limit(&self) -> u64 {
        self.shared.store.cache.dirty_limit()
    }
    /// From so many dirty bytes on they should be stored, though none of them needs to be yet.
    pub fn stream_from(&self) -> u64 {
        self.shared.store.dirty_allowed() / 4
    }
    /// Counts more dirty bytes, and rings when that makes them enough to be stored.
    pub fn add_dirty(&self, bytes: u64) {
        let (before, enough) = (self.shared.store.dirty.add(bytes), self.stream_from());
        if before < enough
            && before + bytes >= enough
            && let Some(waker) = self.waker.get()
        {
            waker();
        }
    }
    /// Has `waker` called when dirty bytes come to [`Pool::stream_from`]. Only the first one counts.
    pub fn on_dirty(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }
    /// Has the layer above store all its dirty data; nothing of it is durable before the next commit.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn flush_front(&self) -> Result<()> {
        let front = self.front_end();
        front.map_or(Ok(()), |front| front.flush())
    }
    /// Whether a commit has anything to write.
    pub fn is_dirty(&self) -> bool {
        self.is_changed() || self.log.is_dirty() || self.shared.damage.has_news()
    }
    /// Whether somebody changed anything since the last commit was sealed.
    pub(crate) fn is_changed(&self) -> bool {
        self.shared.store.dirty.get() > 0
            || self.shared.intent.notes.lock().bytes() > 0
            || self.shared.freeing.has_dropped()
            || self.trees().iter().any(|dataset| {
                let state = dataset.state.read();
                state.changed || state.tree.is_dirty()
            })
    }
    /// Whether the changes of the block map that wait for a commit take more memory than merges may: a commit should
    /// come.
    pub fn is_map_large(&self) -> bool {
        self.shared.store.map.lock().memtable_bytes() > self.shared.store.cache.gc_limit()
    }
    /// The layer above.
    pub(crate) fn front_end(&self) -> Option<Arc<dyn FrontEnd>> {
        self.front.read().as_ref().and_then(Weak::upgrade)
    }
    /// Registers the layer above.
    pub fn set_front_end(&self, front: Weak<dyn FrontEnd>) {
        *self.front.write() = Some(front);
    }
    /// Refuses when `bytes` more of dirty data might not find room; wins dead space back before it does.
    /// Must not be called while an [`Op`] is held.
    ///
    /// # Errors
    /// [`PoolError::NoSpace`].
    pub fn check_space(&self, bytes: u64, record_size: u32) -> Result<()> {
        let found = self.find_space(bytes, record_size).and_then(|()| self.make_space(bytes, record_size));
        found.inspect_err(|error| {
            if matches!(error, PoolError::NoSpace) {
                self.shared.store.event(Event::new(Class::PoolFull));
            }
        })
    }

    /// Refuses when AVAIL is less than `bytes`, and nothing that was accepted or deleted brings it, nor the trash.
    pub(crate) fn find_space(&self, bytes: u64, record_size: u32) -> Result<()> {
        loop {
            if self.shared.store.space(record_size).available >= bytes {
                return Ok(());
            }
            self.shared.store.check_writable()?;
            match self.reclaim_space(bytes, record_size) {
                Err(PoolError::NoSpace) if self.let_go_for(bytes, record_size)? => {}
                found => return found,
            }
        }
    }

    /// Whether commits would make dropped space writable again: the free queue goes on with each, and a slot
    /// comes back two commits after the last block in it died.
    pub fn is_freeing(&self) -> bool {
        self.shared.freeing.has_dropped()
            || self.shared.freeing.has_queued()
            || self.has_remains()
            || self.shared.store.core.lock().waiting_to_be_free()
    }
}
