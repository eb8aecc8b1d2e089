//! A pool is put together of its parts, once, whether it was made or imported.

use crate::attached::Attached;
use crate::commit_records::Records;
use crate::contents::Contents;
use crate::dataset::{Atime, Chunking, Dataset, ROOT_DATASET, Settings};
use crate::event_log::EventLog;
use crate::fence::Fence;
use crate::intent_log::IntentLog;
use crate::ledger::Damage;
use crate::pool::Pool;
use crate::receiving::{Received, Receiving};
use crate::shared::Shared;
use crate::snapshots::{Left, Snapshots};
use crate::trashed::TrashedDatasets;
use larder_format::checksum::ChecksumKind;
use larder_format::tables::{ReceivingRecord, SnapshotRecord};
use larder_format::trash::TrashKey;
use larder_format::{Corrupt, DatasetId, Reason, Timestamp};
use larder_sorted::tree::Tree;
use larder_store::codec::Codec;
use larder_store::{Dedup, PoolError, Result, Store};
use larder_sync::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// Parts of a pool.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) created: Timestamp,
    pub(crate) store: Arc<Store>,
    /// Where the store tells of events.
    pub(crate) events: Arc<EventLog>,
    pub(crate) damage: Damage,
    pub(crate) intent: IntentLog,
    pub(crate) tables: Tree,
    /// Contents of the tables; segments and runs are in the store.
    pub(crate) contents: Contents,
}

type Datasets = BTreeMap<DatasetId, Arc<Dataset>>;

impl Pool {
    /// A pool of its parts.
    ///
    /// # Errors
    /// [`PoolError::Corrupt`] when they do not belong together.
    pub(crate) fn assemble(parts: Parts) -> Result<Arc<Pool>> {
        let Parts { name, created, store, events, damage, intent, tables, contents } = parts;
        let Contents {
            datasets: records,
            parts,
            secret,
            snapshots,
            attached,
            bookmarks,
            trash,
            remains,
            receiving,
            freeing,
            records: of_commits,
            mut properties,
            ..
        } = contents;
        let settings = default_settings(&store);
        let shared = Arc::new(Shared::new(store, intent, damage));
        shared.duplicates.set_secret(secret);
        shared.duplicates.lay_down(parts);
        shared.freeing.open(freeing);
        let own = properties.remove(&DatasetId::new(0)).unwrap_or_default();
        let (mut datasets, mut destroyed) = (Datasets::new(), Datasets::new());
        for record in records {
            let (id, own) = (record.id, properties.remove(&record.id).unwrap_or_default());
            let of = if record.destroyed { &mut destroyed } else { &mut datasets };
            of.insert(id, Arc::new(Dataset::new(Arc::downgrade(&shared), record, own, settings)));
        }
        snapshots.iter().for_each(|record| shared.note_high(record.high));
        bookmarks.iter().for_each(|(_, record)| shared.note_high(record.high));
        check_parents(&datasets)?;
        let receiving = receiving_into(&datasets, receiving);
        let mut snapshots = snapshots_of(&datasets, snapshots)?;
        find_origins(&mut snapshots, &datasets)?;
        for (dataset, high, number, entry) in attached {
            snapshots.adopt((dataset, high), number, entry);
        }
        let parents: BTreeSet<_> = datasets.values().map(|dataset| dataset.parent()).collect();
        // One of nothing says nothing, nor does one of what cannot be without a name.
        let is_there = |key: &TrashKey| match key {
            TrashKey::Snapshot(high) => snapshots.hidden_of(*high).is_some(),
            TrashKey::Dataset(id) => {
                let dataset = datasets.get(id).filter(|_| !parents.contains(id));
                dataset.is_some_and(|dataset| *id != ROOT_DATASET && !dataset.is_staging())
            }
        };
        let trash: BTreeMap<_, _> = trash.into_iter().filter(|(key, _)| is_there(key)).collect();
        for (dataset, record) in bookmarks {
            // One of no dataset says nothing.
            if datasets.contains_key(&dataset) {
                snapshots.add_bookmark(dataset, record);
            }
        }
        for record in &remains {
            if let Some(head) = datasets.get(&record.dataset).or_else(|| destroyed.get(&record.dataset)) {
                let mut state = head.state.write();
                state.remains_below = state.remains_below.max(record.high);
            }
        }
        let mut trashed = TrashedDatasets::new();
        for (key, entry) in &trash {
            if let TrashKey::Dataset(id) = key
                && let Some(dataset) = datasets.remove(id)
            {
                // Its own may go before it.
                let mut state = dataset.state.write();
                state.changed |= state.record.parent != ROOT_DATASET;
                state.record.parent = ROOT_DATASET;
                drop(state);
                trashed.insert(*id, (dataset, entry.name.clone()));
            }
        }
        snapshots.trash = trash;
        snapshots.remains = remains.into_iter().map(|record| (record.high, Left::open(record))).collect();
        let pool = Arc::new(Pool {
            began: shared.store.world.clock.monotonic(),
            changes: Default::default(),
            rebuilt: Default::default(),
            resting: Default::default(),
            is_kept: Default::default(),
            trimming: Mutex::new(()),
            name: RwLock::new(name),
            created,
            gate: RwLock::new(()),
            commit_lock: Mutex::new(()),
            tables: Mutex::new(tables),
            datasets: RwLock::new(datasets),
            destroyed: Mutex::new(destroyed),
            trashed: Mutex::new(trashed),
            trash: Default::default(),
            properties: RwLock::new(own.local().clone()),
            front: RwLock::new(None),
            sealing: Default::default(),
            records: Mutex::new(Records::open(of_commits)),
            fence: Fence::new(&shared.store),
            log: events,
            cleaner: Default::default(),
            waker: OnceLock::new(),
            snapshots: Mutex::new(snapshots),
            measured: Default::default(),
            taking_moment: Mutex::new(()),
            receiving: Mutex::new(receiving),
            destroying: Mutex::new(()),
            shared,
        });
        pool.apply_pool_properties();
        pool.open_accounts();
        Ok(pool)
    }
}

/// Settings of datasets that say nothing else.
pub(crate) fn default_settings(store: &Store) -> Settings {
    Settings {
        copies: 1,
        codec: Codec::default(),
        checksum: ChecksumKind::Fast,
        record_size: (128 << 10).min(store.max_record()),
        chunking: Chunking::Fixed,
        readonly: false,
        atime: Atime::On,
        acl: true,
        xattr: true,
        dedup: Dedup::Off,
        snapdir: false,
    }
}

/// From every dataset, parents lead to the pool's root dataset.
fn check_parents(datasets: &Datasets) -> Result<()> {
    let bad = |reason| PoolError::from(Corrupt::new("dataset table", reason));
    if datasets.get(&ROOT_DATASET).is_none_or(|root| root.parent() != ROOT_DATASET) {
        return Err(bad(Reason::Short));
    }
    for dataset in datasets.values() {
        let mut at = dataset.parent();
        // More steps than there are datasets are a circle.
        for step in 0.. {
            if at == ROOT_DATASET {
                break;
            }
            if step > datasets.len() {
                return Err(bad(Reason::Order));
            }
            at = datasets.get(&at).ok_or_else(|| bad(Reason::Identity))?.parent();
        }
    }
    Ok(())
}

/// The origins of clones are there.
fn find_origins(snapshots: &mut Snapshots, datasets: &Datasets) -> Result<()> {
    let bad = |reason| Err(Corrupt::new("origin of a clone", reason).into());
    for (id, dataset) in datasets {
        let Some((of, high)) = dataset.state.read().record.origin else { continue };
        if !snapshots.taken.contains_key(&(of, high)) {
            return bad(Reason::Identity);
        }
        // Its own come later.
        if snapshots.of(*id).any(|one| one.record.high <= high) {
            return bad(Reason::Order);
        }
        snapshots.set_origin(*id, Some((of, high)));
    }
    for id in datasets.keys() {
        // More steps than there are datasets are a circle.
        let above = |id: &DatasetId| snapshots.origin_key(*id).map(|(of, _)| of);
        if std::iter::successors(Some(*id), above).nth(datasets.len()).is_some() {
            return bad(Reason::Order);
        }
    }
    Ok(())
}

/// Streams on their way in. An entry of a dataset that is not there says nothing: nothing is lost with it.
fn receiving_into(datasets: &Datasets, records: BTreeMap<DatasetId, ReceivingRecord>) -> Receiving {
    let is_staging = |id: &DatasetId| datasets.get(id).is_some_and(|dataset| dataset.is_staging());
    let there = records.into_iter().filter(|(id, _)| is_staging(id));
    there.map(|(id, record)| (id, Received { record, used: Arc::default() })).collect()
}

/// Snapshots as the tables hold them.
fn snapshots_of(datasets: &Datasets, records: Vec<SnapshotRecord>) -> Result<Snapshots> {
    let bad = |reason| PoolError::from(Corrupt::new("snapshot record", reason));
    let mut snapshots = Snapshots::default();
    let mut highs = BTreeSet::new();
    for record in records {
        if !highs.insert(record.high) {
            return Err(bad(Reason::Identity));
        }
        let head = datasets.get(&record.dataset).ok_or_else(|| bad(Reason::Identity))?;
        // With a lower one the head would free what the snapshot holds.
        if head.state.read().record.protected_below < record.high {
            return Err(bad(Reason::Order));
        }
        snapshots.insert(record, Attached::default());
    }
    Ok(snapshots)
}
