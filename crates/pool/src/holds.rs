//! Holds, which keep snapshots from being destroyed, and properties of snapshots.
//!
//! Each is an entry of its own in the tables, beside the snapshot's record, and goes with it. A held snapshot that is
//! to go is *deferred*; when its last hold is gone [`Pool::deferred`] has it, to be destroyed by whoever has the names.

use crate::attached::{Change, free_number};
use crate::pool::Pool;
use crate::snapshots::Snapshot;
use larder_format::node::Key;
use larder_format::property::PropertyRecord;
use larder_format::tables::{ATTACHED_MAX, HoldRecord, SnapshotRecord, Table, is_tag};
use larder_format::{DatasetId, Timestamp};
use larder_store::{PoolError, Result, TableNodes};
use larder_sync::patient;
use std::collections::{BTreeMap, BTreeSet};

/// A snapshot that has a certain property of its own.
#[derive(Debug, Clone)]
pub struct MarkedSnapshot {
    /// Its record.
    pub record: SnapshotRecord,
    /// The property's value.
    pub value: String,
    /// A hold on it.
    pub held_by: Option<String>,
}

/// Holds and properties of snapshots.
/// A dataset is created, destroyed, rolled back or received into: rows of the tables change along with its record, under
/// its lock. They are brought into memory before; nobody else of that dataset is about, and what the cache lost again is
/// read.
pub(crate) const TABLES: &str = "rows of the tables that change along with a dataset's record";

impl Pool {
    /// Changes entries of the tables: all of them, or none. Within an operation, or a commit.
    pub(crate) fn change_tables(&self, changes: &[Change]) -> Result<()> {
        patient(TABLES, || self.change_tables_now(changes))
    }

    /// Brings leaves of the tables into memory that are to be changed with a dataset's lock held.
    pub(crate) fn bring_rows(&self, keys: impl IntoIterator<Item = Key>) {
        let nodes = TableNodes(&self.shared.store);
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_unstable();
        let leaves = self.tables.lock().leaves_of(&nodes, keys, true);
        nodes.bring(&leaves.unwrap_or_default());
    }

    fn change_tables_now(&self, changes: &[Change]) -> Result<()> {
        let nodes = TableNodes(&self.shared.store);
        let mut tables = self.tables.lock();
        let mut change = |key: &Key, value: Option<&[u8]>| match value {
            Some(value) => tables.insert(&nodes, *key, value),
            None => tables.remove(&nodes, key),
        };
        let mut before = Vec::new();
        let mut all = changes.iter().map(|(key, value)| Ok((key, change(key, value.as_deref())?)));
        let Err(error) = all.try_for_each(|one: Result<_>| one.map(|one| before.push(one))) else {
            for ((key, before), (_, now)) in before.iter().zip(changes) {
                self.note_row(key, before.as_deref(), now.as_deref());
            }
            return Ok(());
        };
        let back = before.iter().rev().try_for_each(|(key, value)| change(key, value.as_deref()).map(drop));
        drop(tables);
        // Nearly always the leaves are in memory; where one became empty, its place is sought anew.
        if back.is_err() {
            let why = "snapshots were changed halfway; the last commit is intact";
            drop(self.shared.store.suspend(why.into()));
        }
        Err(error)
    }

    /// Places a hold on snapshots: all of them, or none. Durable with the next commit.
    ///
    /// # Errors
    /// When the tag cannot be, a snapshot does not exist, or has such a hold ([`PoolError::Exists`] with its name).
    pub fn hold_snapshots(&self, of: &[(DatasetId, String)], tag: &str) -> Result<()> {
        if !is_tag(tag) {
            return Err(PoolError::Invalid(format!("a hold cannot be called '{}'", tag.escape_default())));
        }
        let of: BTreeSet<_> = of.iter().collect();
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let created = self.shared.store.world.clock.now();
        let (mut placed, mut changes, mut taken) = (Vec::new(), Vec::new(), None);
        for (dataset, name) in of {
            let snapshots = self.snapshots.lock();
            let Snapshot { record, attached, .. } = snapshots.named(*dataset, name)?;
            if attached.holds.contains_key(tag) {
                taken = Some((*dataset, name));
                break;
            }
            let number = free_number(&attached.holds);
            if number >= ATTACHED_MAX {
                return Err(PoolError::Invalid("a snapshot cannot have more holds".into()));
            }
            let value = HoldRecord { created, tag: tag.to_owned() }.encode();
            changes.push((Table::Holds.attached_key(*dataset, record.high, number), Some(value)));
            placed.push(((*dataset, record.high), number));
        }
        if let Some((dataset, name)) = taken {
            return Err(PoolError::Exists(format!("{}@{name}", self.full_name(dataset))));
        }
        self.change_tables(&changes)?;
        let mut snapshots = self.snapshots.lock();
        for (key, number) in placed {
            snapshots.attached(key).holds.insert(tag.to_owned(), (number, created));
        }
        Ok(())
    }

    /// Takes a hold off snapshots: all of them, or none. Durable with the next commit.
    ///
    /// # Errors
    /// When a snapshot does not exist, or has no such hold: [`PoolError::NotFound`].
    pub fn release_snapshots(&self, of: &[(DatasetId, String)], tag: &str) -> Result<()> {
        let of: BTreeSet<_> = of.iter().collect();
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let (mut released, mut changes) = (Vec::new(), Vec::new());
        for (dataset, name) in of {
            let snapshots = self.snapshots.lock();
            let Snapshot { record, attached, .. } = snapshots.named(*dataset, name)?;
            let Some((number, _)) = attached.holds.get(tag) else {
                return Err(PoolError::NotFound(format!("hold {tag} on {name}")));
            };
            changes.push((Table::Holds.attached_key(*dataset, record.high, *number), None));
            released.push((*dataset, record.high));
        }
        self.change_tables(&changes)?;
        let mut snapshots = self.snapshots.lock();
        for key in released {
            snapshots.attached(key).holds.remove(tag);
        }
        Ok(())
    }

    /// Holds on a snapshot: tags, and when they were placed.
    ///
    /// # Errors
    /// When there is no such snapshot.
    pub fn snapshot_holds(&self, of: &SnapshotRecord) -> Result<BTreeMap<String, Timestamp>> {
        let snapshots = self.snapshots.lock();
        let holds = &snapshots.still(of)?.attached.holds;
        Ok(holds.iter().map(|(tag, (_, created))| (tag.clone(), *created)).collect())
    }

    /// Snapshots are to be destroyed with their last hold, or are not any more: all of them, or none. Durable with the
    /// next commit.
    ///
    /// # Errors
    /// When one does not exist.
    pub fn set_deferred(&self, of: &[(DatasetId, String)], deferred: bool) -> Result<()> {
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let (mut keys, mut changes) = (Vec::new(), Vec::new());
        for (dataset, name) in of {
            let record = self.snapshots.lock().named(*dataset, name)?.record.clone();
            let key = Table::snapshot_key(record.dataset, record.high);
            keys.push((record.dataset, record.high));
            changes.push((key, Some(SnapshotRecord { deferred, ..record }.encode())));
        }
        self.change_tables(&changes)?;
        let mut snapshots = self.snapshots.lock();
        keys.into_iter().for_each(|key| snapshots.set_deferred(key, deferred));
        Ok(())
    }

    /// Deferred snapshots that nothing holds any more.
    pub fn deferred(&self) -> Vec<SnapshotRecord> {
        let snapshots = self.snapshots.lock();
        let all = snapshots.deferred.iter().filter_map(|key| snapshots.taken.get(key));
        all.filter(|one| one.attached.holds.is_empty()).map(|one| one.record.clone()).collect()
    }

    /// Properties of a snapshot's own.
    ///
    /// # Errors
    /// When there is no such snapshot.
    pub fn snapshot_properties(&self, of: &SnapshotRecord) -> Result<BTreeMap<String, String>> {
        let snapshots = self.snapshots.lock();
        let all = &snapshots.still(of)?.attached.properties;
        Ok(all.iter().map(|(name, (_, value))| (name.clone(), value.clone())).collect())
    }

    /// The snapshots of a dataset that have this property of their own, oldest first.
    pub fn marked_snapshots(&self, dataset: DatasetId, property: &str) -> Vec<MarkedSnapshot> {
        let snapshots = self.snapshots.lock();
        let marked = |Snapshot { record, attached, .. }: &Snapshot| {
            let (_, value) = attached.properties.get(property).filter(|_| !record.hidden)?;
            let held_by = attached.holds.keys().next().cloned();
            Some(MarkedSnapshot { record: record.clone(), value: value.clone(), held_by })
        };
        snapshots.of(dataset).filter_map(marked).collect()
    }

    /// Sets a property of a snapshot, or without a value takes its own away. Durable with the next commit.
    ///
    /// # Errors
    /// When there is no such snapshot.
    pub fn set_snapshot_property(
        &self,
        of: &SnapshotRecord,
        property: &str,
        value: Option<&str>,
    ) -> Result<()> {
        let _op = self.enter()?;
        let _one_at_a_time = self.destroying.lock();
        let number = {
            let snapshots = self.snapshots.lock();
            let properties = &snapshots.still(of)?.attached.properties;
            match properties.get(property) {
                Some((number, _)) => *number,
                None if value.is_none() => return Ok(()),
                None => free_number(properties),
            }
        };
        if number >= ATTACHED_MAX {
            return Err(PoolError::Invalid("a snapshot cannot have more properties".into()));
        }
        let entry = |value: &str| PropertyRecord::local(property, value).encode();
        let key = Table::SnapshotProperties.attached_key(of.dataset, of.high, number);
        self.change_tables(&[(key, value.map(entry))])?;
        let mut snapshots = self.snapshots.lock();
        let properties = &mut snapshots.attached((of.dataset, of.high)).properties;
        match value {
            Some(value) => drop(properties.insert(property.to_owned(), (number, value.to_owned()))),
            None => drop(properties.remove(property)),
        }
        Ok(())
    }
}
