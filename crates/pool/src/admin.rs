//! Datasets and properties: making, naming, setting.

use crate::accounts::{Limits, is_limit, parse_limit};
use crate::assemble::default_settings;
use crate::create::{check_name, check_record_size};
use crate::dataset::{Dataset, ROOT_DATASET, settings_from};
use crate::own::{Here, OwnProperties};
use crate::pool::Pool;
use crate::property::{self, device_timeout};
use larder_format::items::MAX_DATASET;
use larder_format::node::{Key, MAX_VALUE};
use larder_format::property::{self as stored, PropertyRecord};
use larder_format::tables::{DatasetRecord, Table};
use larder_format::{BlockId, DatasetId};
use larder_store::read_cache::Secondary;
use larder_store::{PoolError, Refusal, Result, TableNodes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Dataset id of the pool's own properties.
const POOL: DatasetId = DatasetId::new(0);
/// Names of notes that the pool keeps for itself begin with this.
const OWN: &str = "larder:";

/// A property's value and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    /// The value, in its exact form.
    pub value: String,
    /// Where it comes from.
    pub source: PropertySource,
}

/// Where a property's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertySource {
    /// Set on the dataset.
    Local,
    /// Brought by a stream.
    Received,
    /// Not set anywhere.
    Default,
    /// Set on this ancestor, or brought to it by a stream.
    Inherited(DatasetId),
}

impl Pool {
    /// A dataset's full name: the pool's, then the parts down to it.
    pub fn full_name(&self, id: DatasetId) -> String {
        let mut parts = Vec::new();
        let mut at = self.dataset(id);
        if at.is_none()
            && let Some(name) = self.trashed_name(id)
        {
            return format!("{name} (in the trash)");
        }
        while let Some(dataset) = at {
            parts.push(dataset.last_name());
            let parent = dataset.parent();
            at = if parent == dataset.id() { None } else { self.dataset(parent) };
        }
        parts.reverse();
        parts.join("/")
    }

    /// The dataset of a full name.
    ///
    /// # Errors
    /// [`PoolError::NotFound`].
    pub fn dataset_by_name(&self, name: &str) -> Result<Arc<Dataset>> {
        let missing = || PoolError::NotFound(name.to_owned());
        let mut parts = name.split('/');
        let mut at = self.dataset(ROOT_DATASET).ok_or_else(missing)?;
        if parts.next() != Some(&at.last_name()) {
            return Err(missing());
        }
        for part in parts {
            at = self.child(at.id(), part).ok_or_else(missing)?;
        }
        Ok(at)
    }

    fn child(&self, parent: DatasetId, name: &str) -> Option<Arc<Dataset>> {
        self.children(parent).into_iter().find(|child| child.last_name() == name)
    }

    /// The datasets directly inside of `parent` that people are shown, by name.
    pub fn children(&self, parent: DatasetId) -> Vec<Arc<Dataset>> {
        let mut children: Vec<_> = self
            .datasets()
            .into_iter()
            .filter(|one| one.parent() == parent && one.id() != parent && !one.is_staging())
            .collect();
        children.sort_by_key(|child| child.last_name());
        children
    }

    /// Makes a dataset; durable with the next commit.
    ///
    /// # Errors
    /// When the name cannot be, is taken, or its parent does not exist; when a reservation is more than
    /// is free.
    pub fn create_dataset(&self, name: &str, properties: BTreeMap<String, String>) -> Result<Arc<Dataset>> {
        let _op = self.enter()?;
        self.add_dataset(name, properties, |new| new)
    }

    /// The same within an operation, or with the gate closed, of what `begin` makes of an empty one's record.
    pub(crate) fn add_dataset(
        &self,
        name: &str,
        properties: BTreeMap<String, String>,
        begin: impl FnOnce(DatasetRecord) -> DatasetRecord,
    ) -> Result<Arc<Dataset>> {
        let (parent, last) =
            name.rsplit_once('/').ok_or_else(|| PoolError::Invalid(format!("{name} names a pool")))?;
        check_name(last).map_err(PoolError::Invalid)?;
        let parent = self.dataset_by_name(parent)?;
        if self.child(parent.id(), last).is_some() {
            return Err(PoolError::Exists(name.to_owned()));
        }
        self.add_child(&parent, last, properties, begin)
    }

    /// The same below a parent that has no child of this name, which is not checked.
    pub(crate) fn add_child(
        &self,
        parent: &Dataset,
        last: &str,
        properties: BTreeMap<String, String>,
        begin: impl FnOnce(DatasetRecord) -> DatasetRecord,
    ) -> Result<Arc<Dataset>> {
        let mut datasets = self.datasets.write();
        let highest = datasets.keys().next_back().copied().unwrap_or(ROOT_DATASET);
        let record = begin(DatasetRecord {
            id: self.next_dataset(highest)?,
            parent: parent.id(),
            guid: self.shared.store.world.entropy.next_u64(),
            root: None,
            destroyed: false,
            protected_below: BlockId::new(0),
            referenced: 0,
            logical: 0,
            stored: 0,
            next_inode: 2,
            created: self.shared.store.world.clock.now(),
            birth: self.shared.store.open_commit().get(),
            held: 0,
            origin: None,
            inherited: 0,
            name_salt: crate::create::random(&*self.shared.store.world.entropy),
            name: last.to_owned(),
        });
        let id = record.id;
        let mut properties = properties;
        properties.retain(|name, value| !(is_limit(name) && value == "0"));
        self.open_account(parent, id, &properties)?;
        self.shared.accounts.post(id, record.own() as i64);
        for (property, value) in &properties {
            self.store_property(id, property, value).inspect_err(|_| self.shared.accounts.close(id))?;
        }
        let own = OwnProperties::of_new(properties);
        let dataset =
            Dataset::new(Arc::downgrade(&self.shared), record, own, default_settings(&self.shared.store));
        dataset.state.write().changed = true;
        let dataset = Arc::new(dataset);
        datasets.insert(id, Arc::clone(&dataset));
        drop(datasets);
        self.refresh_settings();
        Ok(dataset)
    }

    /// Takes a dataset that was just added away again, in the same operation.
    pub(crate) fn remove_added(&self, id: DatasetId) {
        let Some(dataset) = self.datasets.write().remove(&id) else { return };
        self.shared.accounts.close(id);
        let mut tables = self.tables.lock();
        for record in dataset.own_properties().records() {
            let key = Table::property_key(id, &record.name, record.source);
            // The leaf was just changed, and is in memory.
            if let Ok(before) = tables.remove(&TableNodes(&self.shared.store), &key) {
                self.note_row(&key, before.as_deref(), None);
            }
        }
    }

    /// A dataset id above all that were ever given: ids are never reused, so the highest is remembered
    /// as a property of the pool.
    fn next_dataset(&self, highest: DatasetId) -> Result<DatasetId> {
        const NAME: &str = "larder:last_dataset";
        let mut properties = self.properties.write();
        let last = properties.get(NAME).and_then(|value| value.parse().ok()).unwrap_or(0);
        let last = highest.get().max(last);
        if last >= MAX_DATASET {
            return Err(Refusal::NoDatasetNumbers(MAX_DATASET).into());
        }
        let next = DatasetId::new(last + 1);
        properties.insert(NAME.into(), next.get().to_string());
        drop(properties);
        self.store_property(POOL, NAME, &next.get().to_string())?;
        Ok(next)
    }

    /// Gives a dataset another full name.
    ///
    /// # Errors
    /// When the name cannot be or is taken, or would put the dataset inside of itself; when what it takes
    /// would pass a quota there.
    pub fn rename_dataset(&self, id: DatasetId, name: &str) -> Result<()> {
        let _op = self.enter()?;
        let dataset = self.dataset(id).ok_or_else(|| PoolError::NotFound(format!("dataset {id}")))?;
        let (parent, last) = name
            .rsplit_once('/')
            .ok_or_else(|| PoolError::Invalid("export and import rename a pool".into()))?;
        check_name(last).map_err(PoolError::Invalid)?;
        let parent = self.dataset_by_name(parent)?;
        let mut at = Arc::clone(&parent);
        while at.id() != ROOT_DATASET {
            if at.id() == id {
                return Err(PoolError::Invalid(format!("{name} is inside of the dataset itself")));
            }
            at = self.dataset(at.parent()).ok_or_else(|| PoolError::NotFound(name.to_owned()))?;
        }
        if id == ROOT_DATASET {
            return Err(PoolError::Invalid("export and import rename a pool".into()));
        }
        if self.child(parent.id(), last).is_some() {
            return Err(PoolError::Exists(name.to_owned()));
        }
        self.transfer(&dataset, parent.id())?;
        let mut state = dataset.state.write();
        state.record.parent = parent.id();
        last.clone_into(&mut state.record.name);
        state.changed = true;
        drop(state);
        self.refresh_settings();
        Ok(())
    }

    /// Sets a property, given in its exact form, on a dataset. A limit of 0 is none: it takes the
    /// property away.
    ///
    /// # Errors
    /// When a quota is less than what is used, or a reservation more than what is free.
    pub fn set_property(&self, id: DatasetId, name: &str, value: &str) -> Result<()> {
        if is_limit(name) && parse_limit(name, value)? == 0 {
            return self.inherit_property(id, name);
        }
        self.set_here(id, name, Here::Set(value.to_owned()))
    }

    /// Takes a dataset's own value of a property away; one that a stream brought stays, and has no effect.
    ///
    /// # Errors
    /// When there is no such dataset.
    pub fn inherit_property(&self, id: DatasetId, name: &str) -> Result<()> {
        let dataset = self.dataset(id).ok_or_else(|| PoolError::NotFound(format!("dataset {id}")))?;
        let own = dataset.own_properties();
        let is_over_something = own.received().contains_key(name) || own.here(name) == Here::Masked;
        self.set_here(id, name, if is_over_something { Here::Masked } else { Here::Nothing })
    }

    /// Does this about a property on a dataset.
    ///
    /// # Errors
    /// As [`Pool::set_property`].
    pub fn set_here(&self, id: DatasetId, name: &str, here: Here) -> Result<()> {
        let _op = self.enter()?;
        let dataset = self.dataset(id).ok_or_else(|| PoolError::NotFound(format!("dataset {id}")))?;
        self.change_own(&dataset, name, |own| own.set_here(name, here.clone()))?;
        self.refresh_settings();
        Ok(())
    }

    /// A stream brought these properties to a dataset, in their exact form: they are in place of all that streams
    /// brought before, and nothing that was set here is touched. Those that are `masked` have no effect, unless
    /// something was set here. All is in one commit. Gives those that cannot be here, which stay as they were.
    ///
    /// # Errors
    /// When there is no such dataset.
    pub fn receive_properties(
        &self,
        id: DatasetId,
        brought: &BTreeMap<String, String>,
        masked: &BTreeSet<String>,
    ) -> Result<Vec<(String, PoolError)>> {
        let _op = self.enter()?;
        let dataset = self.dataset(id).ok_or_else(|| PoolError::NotFound(format!("dataset {id}")))?;
        let before = dataset.own_properties();
        let gone = before.received().keys().filter(|name| !brought.contains_key(*name));
        let mut left: Vec<_> = gone.map(|name| (name, None)).collect();
        left.extend(brought.iter().map(|(name, value)| (name, Some(value))));
        let mut refused = Vec::new();
        // A limit may have to wait for another that it bounds.
        for _ in 0..2 {
            refused.clear();
            left.retain(|(name, value)| {
                let changed = self.change_own(&dataset, name, |own| {
                    if value.is_some() && masked.contains(*name) && own.here(name) == Here::Nothing {
                        own.set_here(name, Here::Masked);
                    }
                    own.set_received(name, value.cloned());
                });
                changed.map_err(|error| refused.push(((*name).clone(), error))).is_err()
            });
        }
        self.refresh_settings();
        Ok(refused)
    }

    /// Changes a dataset's own values of one property, within an operation.
    fn change_own(&self, dataset: &Dataset, name: &str, change: impl Fn(&mut OwnProperties)) -> Result<()> {
        let before = dataset.own.read().of_one(name);
        let mut after = before.clone();
        change(&mut after);
        let entries = before.entries(name).into_iter().zip(after.entries(name));
        let changed = entries
            .filter(|(before, after)| before != after)
            .map(|(_, (source, record))| (Table::property_key(dataset.id(), name, source), source, record));
        let changed: Vec<_> = changed.collect();
        if changed.is_empty() {
            return Ok(());
        }
        for (key, source, _) in &changed {
            self.check_not_alike(key, name, *source)?;
        }
        if name == "recordsize" {
            // Also what only has effect once nothing is set here.
            let mut values = [after.local(), after.received()].into_iter().filter_map(|all| all.get(name));
            values.try_for_each(|value| check_record_size(value, self.shared.store.max_record()))?;
        }
        // A quota that stays may be less than is used.
        if is_limit(name) && before.get(name) != after.get(name) {
            let limit = after.get(name).map_or(Ok(0), |(value, _)| parse_limit(name, value))?;
            self.set_limit(dataset.id(), dataset.settings().record_size, name, limit)?;
        }
        let changes = changed.into_iter().map(|(key, _, record)| (key, record.map(|record| record.encode())));
        let changes: Vec<_> = changes.collect();
        changes.iter().filter_map(|(_, record)| record.as_ref()).try_for_each(|it| check_length(name, it))?;
        self.change_tables(&changes)?;
        change(&mut dataset.own.write());
        dataset.state.write().changed = true;
        Ok(())
    }

    /// Refuses a property whose entry another one has: its name only hashes alike, and whoever sends a stream may have
    /// chosen it so.
    fn check_not_alike(&self, key: &Key, name: &str, source: stored::PropertySource) -> Result<()> {
        let found = self.tables.lock().get(&TableNodes(&self.shared.store), key)?;
        let Some(record) = found.map(|value| PropertyRecord::decode(&value)).transpose()? else {
            return Ok(());
        };
        let received = stored::PropertySource::Received;
        if record.name == name && (record.source == received) == (source == received) {
            return Ok(());
        }
        Err(PoolError::Exists(format!("a property whose name hashes as that of '{name}': '{}'", record.name)))
    }

    /// Opens the account of a dataset that is being made.
    fn open_account(&self, parent: &Dataset, id: DatasetId, local: &BTreeMap<String, String>) -> Result<()> {
        let record_size =
            settings_from(parent.settings(), local).record_size.min(self.shared.store.max_record());
        self.shared.accounts.open(id, Some(parent.id()), record_size);
        let mut limits = Limits::NAMES.into_iter().filter_map(|name| Some((name, local.get(name)?)));
        let set =
            |(name, value): (&str, &String)| self.set_limit(id, record_size, name, parse_limit(name, value)?);
        limits.try_for_each(set).inspect_err(|_| self.shared.accounts.close(id))
    }

    /// Sets a property of the pool, given in its exact form.
    pub fn set_pool_property(&self, name: &str, value: &str) -> Result<()> {
        let _op = self.enter()?;
        self.store_property(POOL, name, value)?;
        self.properties.write().insert(name.to_owned(), value.to_owned());
        if let Some(root) = self.dataset(ROOT_DATASET) {
            root.state.write().changed = true;
        }
        self.apply_pool_properties();
        Ok(())
    }

    /// A note that the application keeps with the pool, out of users' sight: a property whose name starts
    /// with `larder:`.
    pub fn note(&self, name: &str) -> Option<String> {
        self.properties.read().get(&format!("larder:{name}")).cloned()
    }

    /// Keeps a note of the pool's own, within an operation.
    pub fn keep_note(&self, name: &str, value: &str) -> Result<()> {
        let name = format!("larder:{name}");
        self.store_property(POOL, &name, value)?;
        self.properties.write().insert(name, value.to_owned());
        Ok(())
    }

    /// Keeps such a note; durable with the next commit.
    pub fn set_note(&self, name: &str, value: &str) -> Result<()> {
        self.set_pool_property(&format!("larder:{name}"), value)
    }

    /// The properties set on the pool.
    pub fn pool_properties(&self) -> BTreeMap<String, String> {
        let mut properties = self.properties.read().clone();
        properties.retain(|name, _| !name.starts_with(OWN));
        properties
    }

    fn store_property(&self, id: DatasetId, name: &str, value: &str) -> Result<()> {
        if name == "recordsize" {
            check_record_size(value, self.shared.store.max_record())?;
        }
        let record = PropertyRecord::local(name, value).encode();
        check_length(name, &record)?;
        let key = Table::property_key(id, name, stored::PropertySource::Local);
        let before = self.tables.lock().insert(&TableNodes(&self.shared.store), key, &record)?;
        if before.as_deref() != Some(&record[..]) {
            // Notes of the pool's own change with each step of what they are about.
            self.records.lock().note(key, !(id == POOL && name.starts_with(OWN)));
        }
        Ok(())
    }

    /// Effective value for a dataset, and its source; `None` if there is none. The default of
    /// `mountpoint` is computed above.
    pub fn effective(&self, id: DatasetId, name: &str) -> Option<Effective> {
        let known = property::dataset(name);
        let inherited = known.map_or_else(|| property::is_user(name), |known| known.inherited);
        let mut at = self.dataset(id)?;
        loop {
            if let Some((value, is_received)) = at.own.read().get(name) {
                let source = match is_received {
                    _ if at.id() != id => PropertySource::Inherited(at.id()),
                    true => PropertySource::Received,
                    false => PropertySource::Local,
                };
                return Some(Effective { value: value.to_owned(), source });
            }
            if !inherited || at.id() == ROOT_DATASET {
                break;
            }
            at = self.dataset(at.parent())?;
        }
        let value = known?.default?.to_owned();
        Some(Effective { value, source: PropertySource::Default })
    }

    /// Works out what the write path needs of every dataset's properties.
    pub(crate) fn refresh_settings(&self) {
        for dataset in self.datasets() {
            let names = [
                "compression",
                "checksum",
                "recordsize",
                "chunking",
                "readonly",
                "atime",
                "acltype",
                "xattr",
                "dedup",
                "snapdir",
                "copies",
            ];
            let values: BTreeMap<String, String> = names
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), self.effective(dataset.id(), name)?.value)))
                .collect();
            let mut settings = settings_from(default_settings(&self.shared.store), &values);
            settings.record_size = settings.record_size.min(self.shared.store.max_record());
            *dataset.settings.write() = settings;
            let secondary = self.effective(dataset.id(), "secondarycache").map(|secondary| secondary.value);
            let secondary = match secondary.as_deref() {
                Some("none") => Secondary::Nothing,
                Some("metadata") => Secondary::Metadata,
                _ => Secondary::All,
            };
            self.shared.store.read_cache.set_secondary(dataset.id(), secondary);
            let small = self.effective(dataset.id(), "special_small_blocks");
            let small = small.and_then(|small| small.value.parse().ok());
            self.shared.store.set_small(dataset.id(), small.unwrap_or(0));
        }
        let datasets = self.datasets();
        let is_there = |id| datasets.iter().any(|dataset| dataset.id() == id);
        self.shared.store.read_cache.forget_secondary(is_there);
        self.shared.store.forget_small(is_there);
        self.shared
            .accounts
            .resize_records(datasets.iter().map(|dataset| (dataset.id(), dataset.settings().record_size)));
        self.wake_or_lay_down();
    }

    /// Brings the pool's own properties into effect.
    pub(crate) fn apply_pool_properties(&self) {
        let number =
            |name: &str| self.properties.read().get(name).and_then(|value| value.parse::<u64>().ok());
        if let Some(memory) = number("memory") {
            self.shared.store.set_memory(memory);
            self.shared.duplicates.set_memory(memory);
        }
        if let Some(percent) = number("metadata_share") {
            self.shared.store.cache.set_metadata_percent(percent);
        }
        if let Some(share) = self.properties.read().get("cache_writes").and_then(|share| share.parse().ok()) {
            self.shared.store.read_cache.set_write_share(share);
        }
        self.apply_device_timeout();
    }

    /// Tells all members how long they may take.
    pub(crate) fn apply_device_timeout(&self) {
        let timeout = device_timeout(&self.properties.read()).unwrap_or(larder_device::TIMEOUT);
        self.shared.store.set_timeouts(timeout);
    }
}

/// Refuses a record that has no place in a node.
fn check_length(name: &str, record: &[u8]) -> Result<()> {
    match record.len() <= MAX_VALUE {
        true => Ok(()),
        false => Err(PoolError::Invalid(format!("the value of '{name}' is longer than {MAX_VALUE} bytes"))),
    }
}
