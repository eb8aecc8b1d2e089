//! Snapshots that are shown: their numbers and their open volumes.
//!
//! A snapshot that is looked up gets a number from the top of the dataset ids downwards, which stands for it in the
//! numbers of nodes, so that they differ from those of the live files. It keeps the number until the pool is exported:
//! whoever has the number of a node, as clients of NFS do, has the volume opened again. So volumes that nobody has in
//! use go when there are too many. Look-ups in them are not counted: nothing in a snapshot is ever removed.
//!
//! A snapshot that is let go is about to be destroyed: only its name leads to it from then on.
//!
//! The lock is taken before those of a volume, which is opened outside of it.

use crate::error::{FsError, Result};
use crate::volume::Volume;
use larder_format::items::MAX_DATASET;
use larder_format::{BlockId, DatasetId};
use larder_pool::{Dataset, Pool, PoolError};
use larder_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Volumes that are kept open for who comes next.
const OPEN_AT_MOST: usize = 64;

/// A snapshot's dataset and high id.
type Owner = (DatasetId, BlockId);

/// The snapshots that a mount shows.
#[derive(Default)]
pub(crate) struct Snapshots(Mutex<Table>);

#[derive(Default)]
struct Table {
    numbers: BTreeMap<Owner, DatasetId>,
    /// By number.
    known: BTreeMap<DatasetId, Known>,
    open: BTreeMap<DatasetId, Arc<Volume>>,
    uses: u64,
}

struct Known {
    owner: Owner,
    /// Somebody may have it though it is not among the open ones any more.
    volume: Weak<Volume>,
    last_used: u64,
    is_let_go: bool,
}

impl Table {
    /// Gives a snapshot that was found by its name a number; `last` is the last dataset id in use.
    fn number(&mut self, owner: Owner, last: u64) -> Result<DatasetId> {
        if let Some(number) = self.numbers.get(&owner) {
            if let Some(known) = self.known.get_mut(number) {
                known.is_let_go = false;
            }
            return Ok(*number);
        }
        let number = MAX_DATASET - self.known.len() as u64;
        if number <= last {
            return Err(FsError::NoSpace);
        }
        let number = DatasetId::new(number);
        self.numbers.insert(owner, number);
        self.known.insert(number, Known { owner, volume: Weak::new(), last_used: 0, is_let_go: false });
        Ok(number)
    }

    /// The volume of a number if it is open, else whose it is.
    fn volume(&mut self, number: DatasetId) -> Result<std::result::Result<Arc<Volume>, Owner>> {
        let known = self.known.get_mut(&number).filter(|known| !known.is_let_go).ok_or(FsError::Stale)?;
        self.uses += 1;
        known.last_used = self.uses;
        let owner = known.owner;
        Ok(known.volume.upgrade().inspect(|volume| self.keep(number, volume)).ok_or(owner))
    }

    /// Closes a volume that nobody else has.
    fn close(&mut self, number: DatasetId) {
        self.open.remove(&number);
        if let Some(known) = self.known.get_mut(&number) {
            // Else it would take its memory still.
            known.volume = Weak::new();
        }
    }

    /// Keeps a volume open, and others no longer.
    fn keep(&mut self, number: DatasetId, volume: &Arc<Volume>) {
        self.open.entry(number).or_insert_with(|| Arc::clone(volume));
        while self.open.len() > OPEN_AT_MOST {
            // Nobody is in a volume that only this table has: its locks are free.
            let is_idle = |volume: &Arc<Volume>| Arc::strong_count(volume) == 1 && volume.open_count() == 0;
            let last_used = |number| self.known.get(number).map(|known| known.last_used);
            let mut by_use: Vec<_> = self.open.iter().collect();
            by_use.sort_by_key(|(number, _)| last_used(*number));
            let idle = by_use.into_iter().find(|(_, volume)| is_idle(volume)).map(|(number, _)| *number);
            let Some(idle) = idle else { return };
            self.close(idle);
        }
    }
}

/// The last dataset id that the pool has given.
fn last_dataset(pool: &Pool) -> u64 {
    let noted = pool.note("last_dataset").and_then(|note| note.parse().ok());
    noted.unwrap_or_else(|| pool.datasets().iter().map(|dataset| dataset.id().get()).max().unwrap_or(0))
}

impl Snapshots {
    /// Opens the snapshot of a name.
    ///
    /// # Errors
    /// [`FsError::NotFound`] when there is none; [`FsError::NoSpace`] when numbers have run out.
    pub fn named(&self, pool: &Arc<Pool>, dataset: DatasetId, name: &str) -> Result<Arc<Volume>> {
        let snapshot = pool.snapshot_dataset(dataset, name)?;
        let last = last_dataset(pool);
        let (number, open) = {
            let mut table = self.0.lock();
            let number = table.number(snapshot.owner(), last)?;
            (number, table.volume(number)?)
        };
        open.or_else(|_| self.open(pool, number, snapshot))
    }

    /// The snapshot of a number, opened again if it has to be.
    ///
    /// # Errors
    /// [`FsError::Stale`] when it is gone or was let go.
    pub fn numbered(&self, pool: &Arc<Pool>, number: DatasetId) -> Result<Arc<Volume>> {
        let open = self.0.lock().volume(number)?;
        let owner = match open {
            Ok(volume) => return Ok(volume),
            Err(owner) => owner,
        };
        let (dataset, high) = owner;
        let before = BlockId::new(high.get().saturating_sub(1));
        let record = pool.snapshots_after(dataset, before, 1).pop().ok_or(FsError::Stale)?;
        match pool.snapshot_dataset(dataset, &record.name) {
            Ok(snapshot) if snapshot.owner() == owner => self.open(pool, number, snapshot),
            Ok(_) | Err(PoolError::NotFound(_)) => Err(FsError::Stale),
            Err(error) => Err(error.into()),
        }
    }

    fn open(&self, pool: &Arc<Pool>, number: DatasetId, snapshot: Arc<Dataset>) -> Result<Arc<Volume>> {
        let volume = Volume::open_as(number, Arc::clone(pool), snapshot, (0, 0))?;
        let mut table = self.0.lock();
        if let Ok(first) = table.volume(number)? {
            return Ok(first);
        }
        if let Some(known) = table.known.get_mut(&number) {
            known.volume = Arc::downgrade(&volume);
        }
        table.keep(number, &volume);
        Ok(volume)
    }

    /// The number of a snapshot that has one.
    pub fn number_of(&self, dataset: DatasetId, high: BlockId) -> Option<DatasetId> {
        self.0.lock().numbers.get(&(dataset, high)).copied()
    }

    /// The dataset whose snapshot has this number.
    pub fn dataset_of(&self, number: DatasetId) -> Option<DatasetId> {
        self.0.lock().known.get(&number).map(|known| known.owner.0)
    }

    /// Open files and directories in the snapshots of a dataset.
    pub fn open_count(&self, dataset: DatasetId) -> usize {
        let all: Vec<_> = self.0.lock().open.values().filter(|open| open.id() == dataset).cloned().collect();
        all.iter().map(|volume| volume.open_count()).sum()
    }

    /// Closes a snapshot that nobody has in use, and leaves its nodes stale.
    ///
    /// # Errors
    /// [`FsError::Busy`] when somebody has.
    pub fn let_go(&self, dataset: DatasetId, high: BlockId) -> Result<()> {
        let mut table = self.0.lock();
        let Some(number) = table.numbers.get(&(dataset, high)).copied() else { return Ok(()) };
        let kept = usize::from(table.open.contains_key(&number));
        let Some(known) = table.known.get_mut(&number) else { return Ok(()) };
        if let Some(volume) = known.volume.upgrade()
            && (Arc::strong_count(&volume) > kept + 1 || volume.open_count() > 0)
        {
            return Err(FsError::Busy);
        }
        known.is_let_go = true;
        table.close(number);
        Ok(())
    }

    /// The dataset is not shown any more.
    pub fn close_all(&self, dataset: DatasetId) {
        self.0.lock().open.retain(|_, volume| volume.id() != dataset);
    }
}
