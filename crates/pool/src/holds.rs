//! Holds, which keep snapshots from being destroyed, and properties of snapshots.
//!
//! Each is an entry of its own in the tables, beside the snapshot's record, and goes with it. A held snapshot that is
//! to go is *deferred*: [`Pool::destroy_deferred`] destroys it when its last hold is gone and nobody looks into it.

use crate::attached::{Attached, Placed, free_number};
use crate::pool::Pool;
use crate::snapshots::{Snapshot, gone};
use larder_format::node::Key;
use larder_format::tables::{ATTACHED_MAX, HoldRecord, PropertyRecord, SnapshotRecord, Table, is_tag};
use larder_format::{DatasetId, Timestamp};
use larder_store::{PoolError, Result, TableNodes};
use std::collections::BTreeMap;

/// Holds and properties of snapshots.
impl Pool {
    /// Enters what is attached to a snapshot in the tables: all of it, or nothing.
    pub(crate) fn attach_all(&self, record: &SnapshotRecord, attached: &Attached) -> Result<()> {
        let nodes = TableNodes(&self.shared.store);
        let mut tables = self.tables.lock();
        let mut put = Vec::new();
        for (key, value) in attached.entries(record) {
            if let Err(error) = tables.insert(&nodes, key, &value) {
                // The leaves were just changed, and are in memory.
                put.iter().for_each(|key| drop(tables.remove(&nodes, key)));
                return Err(error);
            }
            put.push(key);
        }
        Ok(())
    }

    /// Takes that out again: all of it, or nothing.
    pub(crate) fn detach_all(&self, record: &SnapshotRecord, attached: &Attached) -> Result<()> {
        let nodes = TableNodes(&self.shared.store);
        let mut tables = self.tables.lock();
        let mut removed = Vec::new();
        for (key, value) in attached.entries(record) {
            if let Err(error) = tables.remove(&nodes, &key) {
                // As above.
                removed
                    .iter()
                    .for_each(|(key, value): &(Key, Vec<u8>)| drop(tables.insert(&nodes, *key, value)));
                return Err(error);
            }
            removed.push((key, value));
        }
        Ok(())
    }

    /// Places a hold on snapshots: all of them, or none. Durable with the next commit.
    ///
    /// # Errors
    /// When the tag cannot be, a snapshot does not exist, or has such a hold ([`PoolError::Exists`] with its name).
    pub fn hold_snapshots(&self, of: &[(DatasetId, String)], tag: &str) -> Result<()> {
        if !is_tag(tag) {
            return Err(PoolError::Invalid(format!("a hold cannot be called '{}'", tag.escape_default())));
        }
        let _op = self.enter()?;
        let mut snapshots = self.snapshots.lock();
        let mut taken = None;
        for (dataset, name) in of {
            if snapshots.named(*dataset, name)?.attached.holds.contains_key(tag) {
                taken = Some((*dataset, name));
            }
        }
        if let Some((dataset, name)) = taken {
            drop(snapshots);
            return Err(PoolError::Exists(format!("{}@{name}", self.full_name(dataset))));
        }
        let created = self.shared.store.world.clock.now();
        let nodes = TableNodes(&self.shared.store);
        let mut tables = self.tables.lock();
        let mut placed: Vec<(&(DatasetId, String), Key)> = Vec::new();
        for one in of {
            let Snapshot { record, attached, .. } = snapshots.change(one.0, &one.1)?;
            let number = free_number(&attached.holds);
            let key = Table::Holds.attached_key(record.dataset, record.high, number);
            let value = HoldRecord { created, tag: tag.to_owned() }.encode();
            let put = match number < ATTACHED_MAX {
                true => tables.insert(&nodes, key, &value).map(drop),
                false => Err(PoolError::Invalid("a snapshot cannot have more holds".into())),
            };
            if let Err(error) = put {
                for (one, key) in placed {
                    // The leaves were just changed, and are in memory.
                    drop(tables.remove(&nodes, &key));
                    snapshots.change(one.0, &one.1)?.attached.holds.remove(tag);
                }
                return Err(error);
            }
            attached.holds.insert(tag.to_owned(), (number, created));
            placed.push((one, key));
        }
        Ok(())
    }

    /// Takes a hold off snapshots: all of them, or none. Durable with the next commit. What was deferred is destroyed
    /// by [`Pool::destroy_deferred`].
    ///
    /// # Errors
    /// When a snapshot does not exist, or has no such hold: [`PoolError::NotFound`].
    pub fn release_snapshots(&self, of: &[(DatasetId, String)], tag: &str) -> Result<()> {
        let _op = self.enter()?;
        let mut snapshots = self.snapshots.lock();
        for (dataset, name) in of {
            if !snapshots.named(*dataset, name)?.attached.holds.contains_key(tag) {
                return Err(PoolError::NotFound(format!("hold {tag} on {name}")));
            }
        }
        let nodes = TableNodes(&self.shared.store);
        let mut tables = self.tables.lock();
        let mut released: Vec<(&(DatasetId, String), Key, Placed)> = Vec::new();
        for one in of {
            let Snapshot { record, attached, .. } = snapshots.change(one.0, &one.1)?;
            let Some(hold) = attached.holds.get(tag).copied() else { continue };
            let key = Table::Holds.attached_key(record.dataset, record.high, hold.0);
            if let Err(error) = tables.remove(&nodes, &key) {
                for (one, key, hold) in released {
                    let value = HoldRecord { created: hold.1, tag: tag.to_owned() }.encode();
                    // As above.
                    drop(tables.insert(&nodes, key, &value));
                    snapshots.change(one.0, &one.1)?.attached.holds.insert(tag.to_owned(), hold);
                }
                return Err(error);
            }
            attached.holds.remove(tag);
            released.push((one, key, hold));
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

    /// Snapshots are destroyed with their last hold. Durable with the next commit.
    ///
    /// # Errors
    /// When one does not exist.
    pub fn defer_destroy(&self, of: &[(DatasetId, String)]) -> Result<()> {
        let _op = self.enter()?;
        let mut snapshots = self.snapshots.lock();
        of.iter().try_for_each(|(dataset, name)| snapshots.named(*dataset, name).map(drop))?;
        let mut tables = self.tables.lock();
        for (dataset, name) in of {
            let Snapshot { record, .. } = snapshots.change(*dataset, name)?;
            let deferred = SnapshotRecord { deferred: true, ..record.clone() };
            let (dataset, high) = (record.dataset, record.high);
            let key = Table::snapshot_key(dataset, high);
            tables.insert(&TableNodes(&self.shared.store), key, &deferred.encode())?;
            *record = deferred;
            snapshots.deferred.insert((dataset, high));
        }
        Ok(())
    }

    /// Deferred snapshots that nothing holds any more.
    pub fn deferred(&self) -> Vec<SnapshotRecord> {
        let snapshots = self.snapshots.lock();
        let all = snapshots.deferred.iter().filter_map(|key| snapshots.taken.get(key));
        all.filter(|one| one.attached.holds.is_empty()).map(|one| one.record.clone()).collect()
    }

    /// Destroys those that nobody looks into; whether there was one. Others are left for another time.
    ///
    /// # Errors
    /// As [`Pool::destroy_snapshots`], but for [`PoolError::Busy`].
    pub fn destroy_deferred(&self) -> Result<bool> {
        let mut any = false;
        for record in self.deferred() {
            match self.destroy_snapshot(record.dataset, &record.name) {
                Ok(()) => any = true,
                Err(PoolError::Busy(_) | PoolError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(any)
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
        let mut snapshots = self.snapshots.lock();
        let Some(Snapshot { record, attached, .. }) = snapshots.taken.get_mut(&(of.dataset, of.high)) else {
            return Err(gone(of));
        };
        let properties = &mut attached.properties;
        let number = properties.get(property).map(|(number, _)| *number);
        let number = number.unwrap_or_else(|| free_number(properties));
        let key = Table::SnapshotProperties.attached_key(record.dataset, record.high, number);
        let nodes = TableNodes(&self.shared.store);
        let mut tables = self.tables.lock();
        match value {
            Some(_) if number >= ATTACHED_MAX => {
                return Err(PoolError::Invalid("a snapshot cannot have more properties".into()));
            }
            Some(value) => {
                let entry = PropertyRecord { name: property.to_owned(), value: value.to_owned() };
                tables.insert(&nodes, key, &entry.encode())?;
                properties.insert(property.to_owned(), (number, value.to_owned()));
            }
            None if properties.contains_key(property) => {
                tables.remove(&nodes, &key)?;
                properties.remove(property);
            }
            None => {}
        }
        Ok(())
    }
}
