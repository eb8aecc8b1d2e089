//! An engine that only remembers: for tests of what is above engines.

use crate::api::dedup::RebuildIndex;
use crate::api::diff::{Change, Diff, Kind, Line};
use crate::api::events::{Command, EventLists, Events, Histories, History, PoolHistory};
use crate::api::extents::{CloneFile, Cloned, Extents, FileExtents, FileVersions, Versions};
use crate::api::figures::{Cache, Caches, Iostat, PoolCache, Waits};
use crate::api::pass::{PassList, ShowPasses, StartPass, StopPass};
use crate::api::pool::{PoolStatus, State, Vdev};
use crate::api::repair::{
    Clear, Offline, Online, Parted, Rebalance, Rebalanced, Reguid, Reshape, Reshaped, Resilver, Scrub, Split,
    Told, Trim,
};
use crate::api::snapshots::{
    Bookmark, DestroyBookmark, DestroySnapshots, Held, Hold, Holds, MakeClone, Promote, Release,
    RenameSnapshot, Rollback, RolledBack, Snapshot, Space, Spaces, Tag, Taken, chosen, spans,
};
use crate::api::trace::{FolderLists, PoolFolders, ShowFolders, Trace};
use crate::api::trash::{EmptyTrash, Restored, Trash, TrashList, Undestroy};
use crate::api::{
    ApiError, Done, ErrorKind, Item, ItemKind, Items, Properties, PropertyValue, Result, Source, fs, name,
    policy, pool, stream,
};
use crate::engine::Engine;
use larder_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Datasets of all pools, by name, with their local properties; snapshots are among them, and older where their names
/// come first.
#[derive(Default)]
pub struct MemoryEngine {
    datasets: Mutex<BTreeMap<String, Properties>>,
    /// Holds: snapshots and tags.
    holds: Mutex<BTreeSet<(String, String)>>,
    /// Commands, with what they changed.
    commands: Mutex<Vec<(String, Command)>>,
}

impl MemoryEngine {
    fn known(&self, name: &str) -> Result<()> {
        match self.datasets.lock().contains_key(name) {
            true => Ok(()),
            false if name.contains(['/', '@']) => Err(ApiError::no_such_dataset(name)),
            false => Err(ApiError::no_such_pool(name)),
        }
    }

    fn asked(&self, names: &[String]) -> Result<Vec<String>> {
        names.iter().try_for_each(|name| self.known(name))?;
        Ok(if names.is_empty() { self.pools() } else { names.to_vec() })
    }

    /// The snapshots of a dataset, oldest first.
    fn snapshots(&self, dataset: &str) -> Vec<String> {
        let datasets = self.datasets.lock();
        let own = datasets.keys().filter_map(|name| name.strip_prefix(dataset)?.strip_prefix('@'));
        own.map(str::to_owned).collect()
    }

    fn unsupported<T>(what: &str) -> Result<T> {
        Err(ApiError::new(ErrorKind::Unsupported, format!("no {what} in memory")))
    }
}

impl Engine for MemoryEngine {
    fn pool_create(&self, request: pool::Create) -> Result<pool::Created> {
        if !request.dry_run && self.known(&request.name).is_ok() {
            let message = format!("cannot create '{}': pool already exists", request.name);
            return Err(ApiError::new(ErrorKind::Exists, message));
        }
        if !request.dry_run {
            self.datasets.lock().insert(request.name.clone(), request.fs_properties);
        }
        let mountpoint = Some(format!("/{}", request.name));
        let (name, groups) = (request.name, request.groups);
        let (spares, caches) = (request.spares, request.caches);
        let (size, usable, survives, notes) = (2 << 30, 1 << 30, 1, Vec::new());
        Ok(pool::Created { name, groups, spares, caches, size, usable, survives, mountpoint, notes })
    }

    fn pool_destroy(&self, request: pool::Destroy) -> Result<pool::PoolDestroyed> {
        self.pool_export(pool::Export { name: request.name, force: true, forget: false })?;
        Ok(pool::PoolDestroyed { kept: !request.now })
    }

    fn pool_status(&self, request: pool::Status) -> Result<pool::Statuses> {
        let status = |name: String| PoolStatus {
            root: Vdev {
                name,
                kind: "root".into(),
                guid: 1,
                index: None,
                path: None,
                state: State::Online,
                note: None,
                read_errors: 0,
                write_errors: 0,
                checksum_errors: 0,
                size: 2 << 30,
                allocated: 0,
                fragmentation: 0,
                io: pool::Io::default(),
                waits: Waits::default(),
                trim: None,
                children: vec![],
            },
            commit: 1,
            status: None,
            action: None,
            see: None,
            scans: vec![],
            spares: vec![],
            classes: vec![],
            log_survives: None,
            read_cache: None,
            freeing: 0,
            trash: 0,
            cleaned: 0,
            write_amplification: 100,
            trace: None,
            dedup: None,
            reshaping: 0,
            reshaping_stuck: None,
            rebalance: None,
            to_gain: 0,
            to_expand: Vec::new(),
            expand_gain: 0,
            pass: None,
            survives: 1,
            damaged: vec![],
            uptime_ns: 1,
        };
        let pools = self.asked(&request.names)?.into_iter().map(status).collect();
        Ok(pool::Statuses { pools, absent: Vec::new() })
    }

    fn pool_get(&self, request: pool::Get) -> Result<Items> {
        let property = |name: &String| PropertyValue::new(name, "1073741824", Source::None);
        let properties: Vec<_> = request.properties.iter().map(property).collect();
        let item = |name| Item { name, kind: ItemKind::Pool, properties: properties.clone() };
        Ok(Items { items: self.asked(&request.names)?.into_iter().map(item).collect() })
    }

    fn pool_set(&self, request: pool::Set) -> Result<Done> {
        self.known(&request.name)?;
        Ok(Done {})
    }

    fn pool_iostat(&self, request: Iostat) -> Result<pool::Statuses> {
        self.pool_status(pool::Status { names: request.names })
    }

    fn pool_cache(&self, request: Cache) -> Result<Caches> {
        let cache = |name| PoolCache { name, ..PoolCache::default() };
        Ok(Caches { pools: self.asked(&request.names)?.into_iter().map(cache).collect() })
    }

    fn pool_importable(&self, _: pool::Importable) -> Result<pool::ImportablePools> {
        Ok(pool::ImportablePools { pools: vec![] })
    }

    fn pool_import(&self, request: pool::Import) -> Result<pool::Imported> {
        let name = request.pool.unwrap_or_default();
        Err(ApiError::new(ErrorKind::NotFound, format!("cannot import '{name}': no such pool available")))
    }

    fn pool_export(&self, request: pool::Export) -> Result<pool::Exported> {
        self.known(&request.name)?;
        self.datasets.lock().retain(|dataset, _| name::pool_of(dataset) != request.name);
        Ok(pool::Exported::default())
    }

    fn pool_sync(&self, request: pool::Sync) -> Result<Done> {
        self.asked(&request.names).map(|_| Done {})
    }

    fn pool_wait(&self, _: pool::Wait) -> Result<Done> {
        panic!("a test wants to see what a bug in the engine does")
    }

    fn pool_trace(&self, request: Trace) -> Result<Done> {
        self.asked(&request.names).map(|_| Done {})
    }

    fn pool_folders(&self, request: ShowFolders) -> Result<FolderLists> {
        let pools = self.asked(&request.names)?.into_iter();
        Ok(FolderLists { pools: pools.map(|name| PoolFolders { name, found: None }).collect() })
    }

    fn pool_offline(&self, request: Offline) -> Result<Done> {
        self.known(&request.name).map(|()| Done {})
    }

    fn pool_online(&self, request: Online) -> Result<Told> {
        self.known(&request.name).map(|()| Told::default())
    }

    fn pool_clear(&self, request: Clear) -> Result<Done> {
        self.known(&request.name).map(|()| Done {})
    }

    fn pool_reshape(&self, _: Reshape) -> Result<Reshaped> {
        Self::unsupported("devices")
    }

    fn pool_scrub(&self, request: Scrub) -> Result<Done> {
        self.asked(&request.names).map(|_| Done {})
    }

    fn pool_trim(&self, request: Trim) -> Result<Done> {
        self.known(&request.name).map(|()| Done {})
    }

    fn pool_rebalance(&self, _: Rebalance) -> Result<Rebalanced> {
        Self::unsupported("devices")
    }

    fn pool_resilver(&self, request: Resilver) -> Result<Done> {
        self.asked(&request.names).map(|_| Done {})
    }

    fn pool_events(&self, request: Events) -> Result<EventLists> {
        self.asked(&request.names)?;
        Ok(EventLists::default())
    }
    fn pool_history(&self, request: History) -> Result<Histories> {
        let of = |name: &str| {
            let commands = self.commands.lock();
            let mine = commands.iter().filter(|(changed, _)| name::pool_of(changed) == name);
            mine.map(|(_, command)| command.clone()).collect()
        };
        let pools = self.asked(&request.names)?.into_iter();
        Ok(Histories { pools: pools.map(|name| PoolHistory { commands: of(&name), name }).collect() })
    }
    fn keep_command(&self, changed: &str, command: &Command) {
        self.commands.lock().push((changed.to_owned(), command.clone()));
    }
    fn pool_split(&self, request: Split) -> Result<Parted> {
        self.known(&request.name)?;
        Ok(Parted { devices: request.devices, survives: 0 })
    }
    fn pool_reguid(&self, request: Reguid) -> Result<Done> {
        self.known(&request.name).map(|_| Done {})
    }
    fn pool_rebuild_index(&self, request: RebuildIndex) -> Result<Done> {
        self.asked(&request.names).map(|_| Done {})
    }

    fn fs_create(&self, request: fs::Create) -> Result<fs::Created> {
        self.known(name::pool_of(&request.name))?;
        self.datasets.lock().insert(request.name.clone(), request.properties);
        Ok(fs::Created { created: vec![request.name] })
    }

    fn fs_destroy(&self, request: fs::Destroy) -> Result<fs::Destroyed> {
        self.known(&request.name)?;
        if !request.recursive && !self.snapshots(&request.name).is_empty() {
            return Err(ApiError::new(ErrorKind::Busy, "it has snapshots"));
        }
        let below = |name: &str| name.strip_prefix(&request.name).is_some_and(|rest| rest.starts_with('@'));
        self.datasets.lock().retain(|name, _| *name != request.name && !below(name));
        Ok(fs::Destroyed { destroyed: vec![request.name], reclaimed: 0, kept: vec![], until: None })
    }

    fn fs_rename(&self, request: fs::Rename) -> Result<Done> {
        self.known(&request.from)?;
        let mut datasets = self.datasets.lock();
        let properties = datasets.remove(&request.from).unwrap_or_default();
        datasets.insert(request.to, properties);
        Ok(Done {})
    }

    fn fs_snapshot(&self, request: Snapshot) -> Result<Taken> {
        for name in &request.names {
            self.known(name.split_once('@').map_or(name, |(dataset, _)| dataset))?;
            if self.known(name).is_ok() {
                let message = format!("cannot create snapshot '{name}': dataset already exists");
                return Err(ApiError::new(ErrorKind::Exists, message));
            }
        }
        let snapshots = request.names.iter().map(|name| (name.clone(), Properties::new()));
        self.datasets.lock().extend(snapshots);
        Ok(Taken { taken: request.names })
    }

    fn fs_destroy_snapshots(&self, request: DestroySnapshots) -> Result<fs::Destroyed> {
        let (dataset, spans) = spans(&request.name)?;
        self.known(dataset)?;
        let all = self.snapshots(dataset);
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let destroyed: Vec<_> =
            chosen(&spans, &all).into_iter().map(|name| format!("{dataset}@{name}")).collect();
        if !request.dry_run {
            self.datasets.lock().retain(|name, _| !destroyed.contains(name));
        }
        Ok(fs::Destroyed { destroyed, reclaimed: 0, kept: vec![], until: None })
    }

    fn fs_rollback(&self, request: Rollback) -> Result<RolledBack> {
        self.known(&request.name).map(|()| RolledBack { destroyed: vec![], kept: None })
    }

    fn fs_clone(&self, request: MakeClone) -> Result<fs::Created> {
        self.known(&request.snapshot)?;
        self.datasets.lock().insert(request.name.clone(), request.properties);
        Ok(fs::Created { created: vec![request.name] })
    }

    fn fs_promote(&self, request: Promote) -> Result<Done> {
        self.known(&request.name).map(|()| Done {})
    }

    fn fs_send(&self, request: stream::Send, emit: &mut stream::Emit<'_>) -> Result<()> {
        self.known(&request.snapshot)?;
        (0..100).all(|_| emit(stream::Part::Data(vec![7; 100_000]), &|| true));
        Ok(())
    }

    fn fs_receive(
        &self,
        request: stream::Receive,
        input: &mut dyn std::io::Read,
    ) -> Result<stream::Received> {
        self.known(&request.target)?;
        let bytes = std::io::copy(input, &mut std::io::sink()).unwrap_or(0);
        let name = request.target;
        let one =
            stream::ReceivedSnapshot { sender: name.clone(), name, incremental: false, bytes, millis: 0 };
        Ok(stream::Received { received: vec![one] })
    }

    fn fs_abort_receive(&self, request: stream::Abort) -> Result<Done> {
        self.known(&request.name).map(|()| Done {})
    }

    fn fs_bookmark(&self, request: Bookmark) -> Result<Done> {
        self.known(&request.from).map(|()| Done {})
    }

    fn fs_destroy_bookmark(&self, request: DestroyBookmark) -> Result<Done> {
        self.known(&request.name).map(|()| Done {})
    }

    fn fs_undestroy(&self, _: Undestroy) -> Result<Restored> {
        Self::unsupported("undestroy")
    }

    fn fs_trash(&self, _: Trash) -> Result<TrashList> {
        Ok(TrashList { items: vec![] })
    }

    fn fs_empty_trash(&self, _: EmptyTrash) -> Result<TrashList> {
        Ok(TrashList { items: vec![] })
    }

    fn fs_space(&self, _: Space) -> Result<Spaces> {
        Self::unsupported("space")
    }

    /// Many files are new; of a snapshot called `bad` not all can be told.
    fn fs_diff(&self, request: Diff, emit: &mut dyn FnMut(Line) -> bool) -> Result<()> {
        self.known(&request.from)?;
        emit(Line::Began(Some("/mnt".into())));
        for inode in 0..20_000 {
            let change = Change {
                kind: Kind::Added,
                file: 'F',
                inode,
                old: None,
                new: Some(format!("/{inode}").into_bytes().into()),
                links: 0,
                ctime: (0, 0),
                lost_names: vec![],
                new_names: vec![],
            };
            if !emit(Line::Change(change)) {
                return Ok(());
            }
        }
        if request.from.ends_with("@bad") { Self::unsupported("end") } else { Ok(()) }
    }

    fn fs_start_pass(&self, request: StartPass) -> Result<PassList> {
        request.names.iter().try_for_each(|name| self.known(name))?;
        Ok(PassList::default())
    }
    fn fs_stop_pass(&self, request: StopPass) -> Result<PassList> {
        self.asked(&request.names).map(|_| PassList::default())
    }
    fn fs_passes(&self, request: ShowPasses) -> Result<PassList> {
        self.asked(&request.names).map(|_| PassList::default())
    }

    fn fs_hold(&self, request: Hold) -> Result<Done> {
        request.names.iter().try_for_each(|name| self.known(name))?;
        let mut holds = self.holds.lock();
        holds.extend(request.names.into_iter().map(|name| (name, request.tag.clone())));
        Ok(Done {})
    }

    fn fs_release(&self, request: Release) -> Result<Done> {
        let mut holds = self.holds.lock();
        for name in request.names {
            if !holds.remove(&(name.clone(), request.tag.clone())) {
                let message =
                    format!("cannot release hold from snapshot '{name}': no such tag on this dataset");
                return Err(ApiError::new(ErrorKind::NotFound, message));
            }
        }
        Ok(Done {})
    }

    fn fs_holds(&self, request: Holds) -> Result<Held> {
        request.names.iter().try_for_each(|name| self.known(name))?;
        let holds = self.holds.lock();
        let asked = holds.iter().filter(|(name, _)| request.names.contains(name)).cloned();
        Ok(Held { holds: asked.map(|(name, tag)| Tag { name, tag, created: 0 }).collect() })
    }

    fn fs_rename_snapshot(&self, request: RenameSnapshot) -> Result<Done> {
        self.fs_rename(fs::Rename { from: request.from, to: request.to, parents: false })
    }

    fn fs_get(&self, request: fs::Get) -> Result<Items> {
        request.names.iter().try_for_each(|name| self.known(name))?;
        let datasets = self.datasets.lock();
        let chosen = datasets.iter().filter(|(name, _)| match name.split_once('@') {
            Some((dataset, _)) => request.selects_snapshots_of(dataset) || request.names_snapshot(name),
            None => request.selects(name),
        });
        let item = |(name, properties): (&String, &Properties)| Item {
            name: name.clone(),
            kind: if name.contains('@') { ItemKind::Snapshot } else { ItemKind::Filesystem },
            properties: (properties.iter())
                .map(|(name, value)| PropertyValue::new(name, value, Source::Local))
                .collect(),
        };
        Ok(Items { items: chosen.map(item).collect() })
    }

    fn fs_set(&self, request: fs::Set) -> Result<Done> {
        request.names.iter().try_for_each(|name| self.known(name))?;
        let mut datasets = self.datasets.lock();
        for name in request.names {
            datasets.entry(name).or_default().extend(request.properties.clone());
        }
        Ok(Done {})
    }

    fn fs_inherit(&self, request: fs::Inherit) -> Result<Done> {
        let mut datasets = self.datasets.lock();
        for name in request.names {
            datasets.entry(name).or_default().remove(&request.property);
        }
        Ok(Done {})
    }

    fn policy_show(&self, _: policy::Show) -> Result<policy::Policies> {
        Self::unsupported("policies")
    }

    fn policy_run(&self, _: policy::Run) -> Result<policy::Ran> {
        Self::unsupported("policies")
    }

    fn fs_mount(&self, _: fs::Mount) -> Result<fs::Mounted> {
        Self::unsupported("mounts")
    }

    fn fs_unmount(&self, _: fs::Unmount) -> Result<fs::Mounted> {
        Self::unsupported("mounts")
    }

    fn file_extents(&self, _: Extents) -> Result<FileExtents> {
        Self::unsupported("files")
    }

    fn file_versions(&self, _: Versions) -> Result<FileVersions> {
        Self::unsupported("files")
    }

    fn file_clone(&self, _: CloneFile) -> Result<Cloned> {
        Self::unsupported("files")
    }

    fn pools(&self) -> Vec<String> {
        self.datasets.lock().keys().filter(|name| !name.contains(['/', '@'])).cloned().collect()
    }

    fn export_all(&self, _: bool) -> Result<()> {
        self.datasets.lock().clear();
        Ok(())
    }
}
