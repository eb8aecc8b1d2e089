//! Pins of a collection under way, and changes reported to it: the pool's side of garbage collection.
//!
//! A commit that is asked to pins the roots of all trees. From then until the collection is over, blocks that are
//! freed, and blocks that get another reference, are reported to it; and nodes that it may still read are held. All of
//! that lies here until the collection takes it over, at its next step. The lock is innermost of all.

use larder_format::commit_record::CommitRecordEntry;
use larder_format::{BlockId, BlockPtr, CommitId, DatasetId, SegmentId, Timestamp};
use larder_sync::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most entries that may be noted between two steps; when it is more, the collection gives up.
const INBOX_LIMIT: usize = 4 << 20;

/// Progress of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// When it began.
    pub started: Timestamp,
    /// Whether the trees are walked, or already the block map.
    pub phase: Phase,
    /// Blocks looked at: once in the trees, once in the map.
    pub examined: u64,
    /// Blocks to be looked at, estimated; never less than `examined`.
    pub total: u64,
}

/// See [`Progress::phase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Trees are walked.
    Mark,
    /// The block map is.
    Sweep,
}

/// A tree to be walked.
#[derive(Debug, Clone)]
pub struct PinnedTree {
    /// Its number among the trees that are walked.
    pub number: u32,
    /// The dataset whose tree or snapshot it is.
    pub lineage: DatasetId,
    /// The dataset that its lineage began in: that of a clone is its origin's.
    pub family: DatasetId,
    /// The high id of the snapshot that its dataset began as, 0 without one.
    pub inherited_below: BlockId,
    /// The number of that dataset among those of the collection.
    pub origin: u32,
    /// For people: the dataset's name, or the snapshot's.
    pub name: Arc<str>,
    /// It is the dataset's tree, and not a snapshot's.
    pub is_head: bool,
    /// Its root.
    pub root: BlockPtr,
    /// Footprints of what its extents name, bytes, as its record has it.
    pub referenced: u64,
    /// Of a clone's head, bytes of `referenced` that are blocks up to `inherited_below`.
    pub inherited: Option<u64>,
    /// The tree before it in its lineage, and the highest id that one may hold.
    pub predecessor: Option<(BlockPtr, BlockId)>,
    /// The highest id that a snapshot before it protects, 0 without one.
    pub protected_below: BlockId,
}

impl PinnedTree {
    /// Whether the predecessor cannot have it.
    pub fn is_fresh(&self, id: BlockId) -> bool {
        self.predecessor.is_none_or(|(_, high)| id > high)
    }

    /// Whether a reference that it has and its predecessor does not was made to a block that was there before that one
    /// was taken. When it is dropped, the snapshot seems to hold the block, and does not.
    pub fn is_late(&self, id: BlockId) -> bool {
        id <= self.protected_below
    }
}

/// State that a commit pins for a collection.
pub struct Pinned {
    /// The commit that pins it.
    pub commit: CommitId,
    /// When that was.
    pub started: Timestamp,
    /// The trees.
    pub members: Vec<PinnedTree>,
    /// The datasets, by [`PinnedTree::origin`]; the last number may stand for more than one.
    pub origins: Vec<DatasetId>,
    /// The highest block id in use.
    pub horizon: BlockId,
    /// Ids below were judged before a crash or an export.
    pub from: BlockId,
    /// Bytes that were left to a collection.
    pub left: u64,
    /// Those that are not any more when this one ends: what was left when it first began.
    pub left_before: u64,
    /// Bytes that were dropped under the protection of a snapshot. Snapshots hold them, or nobody does: an older block
    /// may have been referred to anew.
    pub held: u64,
    /// Trees that are none of these may refer to blocks: of what remains of snapshots.
    pub has_remains: bool,
    /// Blocks that are counted as live.
    pub blocks: u64,
    /// Commit records, which no tree refers to.
    pub records: Vec<CommitRecordEntry>,
}

/// See the module's text.
#[derive(Default)]
pub struct Pins {
    inbox: Mutex<Inbox>,
    /// The horizon of the collection under way, and as long as nodes must be held; 0 without.
    horizon: AtomicU64,
    holds: AtomicU64,
}

/// Notes from outside, and state that it may see.
#[derive(Default)]
struct Inbox {
    /// The next commit is to pin its roots.
    wanted: bool,
    pinned: Option<Pinned>,
    freed: Vec<BlockId>,
    touched: HashSet<BlockId>,
    /// Some block was, be it above the horizon.
    any_touched: bool,
    /// More was told than is kept.
    overrun: bool,
    segments: Vec<SegmentId>,
    progress: Option<Progress>,
}

impl Pins {
    /// Has the next commit pin its roots; false when a collection is under way, or about to be.
    pub fn want(&self) -> bool {
        let mut inbox = self.inbox.lock();
        let is_free = inbox.progress.is_none() && !inbox.wanted;
        inbox.wanted |= is_free;
        is_free
    }

    /// The next commit need not pin its roots.
    pub fn unwant(&self) {
        self.inbox.lock().wanted = false;
    }

    /// Takes what a commit has pinned.
    pub fn take_pinned(&self) -> Option<Pinned> {
        self.inbox.lock().pinned.take()
    }

    /// Progress of the collection under way, if there is one.
    pub fn progress(&self) -> Option<Progress> {
        self.inbox.lock().progress
    }

    /// A step is over; the collection has pages in `segments`. Nodes need not be held any more when it has walked all.
    pub fn stepped(&self, segments: impl Iterator<Item = SegmentId>, progress: Progress, has_walked: bool) {
        let mut inbox = self.inbox.lock();
        inbox.segments.clear();
        inbox.segments.extend(segments);
        inbox.progress = Some(progress);
        if has_walked {
            self.holds.store(0, Ordering::Release);
        }
    }

    /// Has `hear` take over what was freed and what was touched since it last did; false when more was told than is
    /// kept.
    pub fn hear(&self, hear: impl FnOnce(&mut Vec<BlockId>, &mut HashSet<BlockId>)) -> bool {
        let inbox = &mut *self.inbox.lock();
        if !inbox.overrun {
            hear(&mut inbox.freed, &mut inbox.touched);
        }
        !inbox.overrun
    }

    /// Which of these ids were not touched a moment ago.
    pub fn untouched<T: Copy>(&self, ids: &[(BlockId, T)]) -> Vec<(BlockId, T)> {
        let inbox = self.inbox.lock();
        ids.iter().filter(|(id, _)| !inbox.touched.contains(id)).copied().collect()
    }

    /// Whether any block was touched, be it above the horizon.
    pub fn any_touched(&self) -> bool {
        self.inbox.lock().any_touched
    }

    /// The collection is over.
    pub fn clear(&self) {
        self.horizon.store(0, Ordering::Release);
        self.holds.store(0, Ordering::Release);
        *self.inbox.lock() = Inbox::default();
    }

    /// Whether a dropped node must not be freed yet, because the collection may have to read it.
    pub fn holds(&self, id: BlockId) -> bool {
        id.get() <= self.holds.load(Ordering::Acquire)
    }

    /// A block is freed, under the commit lock.
    pub(crate) fn freed(&self, id: BlockId) {
        self.tell(id, |inbox| inbox.freed.push(id));
    }

    /// A block that was there before is about to get another reference.
    pub(crate) fn touched(&self, id: BlockId) {
        let horizon = self.horizon.load(Ordering::Acquire);
        if horizon == 0 {
            return;
        }
        self.inbox.lock().any_touched = true;
        self.tell(id, |inbox| {
            inbox.touched.insert(id);
        });
    }

    fn tell(&self, id: BlockId, note: impl FnOnce(&mut Inbox)) {
        if id.get() <= self.horizon.load(Ordering::Acquire) {
            let mut inbox = self.inbox.lock();
            if inbox.freed.len().max(inbox.touched.len()) < INBOX_LIMIT {
                note(&mut inbox);
            } else {
                inbox.overrun = true;
            }
        }
    }

    /// Segments with pages that nothing but the collection under way names.
    pub(crate) fn segments(&self) -> Vec<SegmentId> {
        self.inbox.lock().segments.clone()
    }

    /// Whether a commit is to pin its roots; the next one need not any more.
    pub(crate) fn take_wanted(&self) -> bool {
        std::mem::take(&mut self.inbox.lock().wanted)
    }

    /// A commit has pinned this, with the gate closed.
    pub(crate) fn keep(&self, pinned: Pinned) {
        self.horizon.store(pinned.horizon.get(), Ordering::Release);
        self.holds.store(pinned.horizon.get(), Ordering::Release);
        let (started, total) = (pinned.started, 2 * pinned.blocks.max(1));
        let mut inbox = self.inbox.lock();
        inbox.progress = Some(Progress { started, phase: Phase::Mark, examined: 0, total });
        inbox.pinned = Some(pinned);
    }
}
