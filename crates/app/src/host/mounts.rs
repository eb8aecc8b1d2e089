//! Which datasets can be reached where.
//!
//! A dataset whose mount point is its parent's with its own name behind, and whose parent is mounted, is
//! a *junction*: a folder in its parent's mount, so that one kernel mount serves a whole pool and
//! `copy_file_range` works across it. All others (the top dataset, datasets with a mount point of their
//! own, those below an unmounted parent) get a kernel mount of their own, which is a view of the same tree.
//!
//! Snapshots that somebody asked for have kernel mounts of their own beside these, for reading: they stand in nobody's
//! way, but that one below a dataset's mount goes with it.
//!
//! Whatever hangs on a dataset's mount goes with it: unmounting takes datasets below first, mounting goes
//! from the top down. Kernel caches are told about junctions that come and go.

use super::holders;
use crate::api::name::printable;
use crate::api::{ApiError, ErrorKind, Result};
use larder_app::fuse::{self, Invalidator, Life, MountHandle, MountOptions, NotUnmounted};
use larder_files::{FsError, Mount, NodeId, View, Volume};
use larder_format::items::ROOT_INODE;
use larder_format::tables::SnapshotRecord;
use larder_format::{BlockId, DatasetId};
use larder_pool::{Dataset, Pool};
use larder_sync::RwLock;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Tries to unmount, and the pause between them, while a process (an indexer, `df`) may just look in ...
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(30);
/// ... and while none is in it: the kernel tells of a close after close(2) has returned, on a busy machine long after.
const TRIES_UNHELD: u32 = 300;

/// Where a dataset's mount point says it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Here.
    Path(PathBuf),
    /// Nowhere.
    Nowhere,
    /// Wherever mount(8) puts it.
    Legacy,
}

/// The value of `mountpoint` that applies to a dataset, and from whom it comes: the dataset itself, one
/// above it, or (none) the default of the pool's top dataset.
pub fn mountpoint(pool: &Pool, dataset: &Dataset) -> (String, Option<DatasetId>) {
    let mut below = Vec::new();
    let mut at = Arc::clone(&pool.dataset(dataset.id()).expect("datasets that are listed exist"));
    loop {
        if let Some((value, _)) = at.own_properties().get("mountpoint") {
            let path = below.iter().rev().fold(value.to_owned(), |path, name: &String| match path.as_str() {
                "none" | "legacy" => path,
                "/" => format!("/{name}"),
                _ => format!("{path}/{name}"),
            });
            return (path, Some(at.id()));
        }
        let name = at.last_name();
        let parent = at.parent();
        below.push(name);
        match pool.dataset(parent).filter(|_| parent != at.id()) {
            Some(above) => at = above,
            None => break,
        }
    }
    below.reverse();
    (format!("/{}", below.join("/")), None)
}

/// Where a dataset is to be mounted.
pub fn target(pool: &Pool, dataset: &Dataset) -> Target {
    match mountpoint(pool, dataset).0.as_str() {
        "none" => Target::Nowhere,
        "legacy" => Target::Legacy,
        path => Target::Path(path.into()),
    }
}

/// Whether nothing of a dataset came yet but a part of its first snapshot.
fn is_coming(pool: &Pool, dataset: DatasetId) -> bool {
    pool.received(dataset).is_some_and(|record| record.made) && pool.newest_snapshot(dataset).is_none()
}

/// A dataset's `canmount`.
pub fn can_mount(pool: &Pool, dataset: &Dataset) -> String {
    pool.effective(dataset.id(), "canmount").map_or_else(|| "on".into(), |effective| effective.value)
}

/// The mounted datasets and snapshots, for readers: a change of mounts may wait for somebody, and readers do not wait
/// for it.
#[derive(Default)]
pub struct Table {
    datasets: RwLock<BTreeMap<DatasetId, Shown>>,
    snapshots: RwLock<BTreeMap<SnapshotId, (PathBuf, Life)>>,
}

/// A snapshot, whatever it is called: its dataset and its high id.
pub type SnapshotId = (DatasetId, BlockId);

/// The id of a snapshot.
pub fn id_of(record: &SnapshotRecord) -> SnapshotId {
    (record.dataset, record.high)
}

struct Shown {
    path: PathBuf,
    parent: DatasetId,
    own: Option<OwnMount>,
}

/// A mount of the kernel's.
struct OwnMount {
    device: String,
    invalidator: Invalidator,
    life: Life,
}

impl Table {
    /// Where a dataset is mounted.
    pub fn path(&self, id: DatasetId) -> Option<PathBuf> {
        let all = self.datasets.read();
        let mut at = all.get(&id)?;
        let path = at.path.clone();
        // umount(8) may have taken it away.
        loop {
            match &at.own {
                Some(own) => return own.life.is_alive().then_some(path),
                None => at = all.get(&at.parent)?,
            }
        }
    }

    /// The dataset whose own mount has this device (`major:minor`), and what tells its kernel of changes.
    pub fn on_device(&self, device: &str) -> Option<(DatasetId, Invalidator)> {
        let all = self.datasets.read();
        let mut own = all.iter().filter_map(|(&id, shown)| Some((id, shown.own.as_ref()?)));
        let found = own.find(|(_, own)| own.device == device && own.life.is_alive());
        found.map(|(id, own)| (id, own.invalidator.clone()))
    }

    /// Where a snapshot has a mount of its own.
    pub fn path_of_snapshot(&self, id: SnapshotId) -> Option<PathBuf> {
        let all = self.snapshots.read();
        all.get(&id).filter(|(_, life)| life.is_alive()).map(|(path, _)| path.clone())
    }
}

struct Mounted {
    path: PathBuf,
    /// The kernel's mount; none for a junction.
    own: Option<MountHandle>,
    parent: DatasetId,
    name: String,
}

/// A snapshot's mount.
struct SnapshotMount {
    id: SnapshotId,
    path: PathBuf,
    handle: MountHandle,
}

impl SnapshotMount {
    fn is_at(&self, path: &Path) -> bool {
        self.path == path || self.handle.mountpoint() == path
    }
}

/// The mounted datasets and snapshots of a pool.
pub struct Mounts {
    pool: Arc<Pool>,
    mount: Arc<Mount>,
    mounted: BTreeMap<DatasetId, Mounted>,
    snapshots: Vec<SnapshotMount>,
    table: Arc<Table>,
    /// All mount points are below this.
    altroot: Option<PathBuf>,
    /// The pool is being exported.
    closed: bool,
}

impl Mounts {
    /// Nothing is mounted yet. With `altroot`, everything will be below it.
    pub fn new(pool: Arc<Pool>, mount: Arc<Mount>, altroot: Option<PathBuf>) -> Self {
        let (mounted, snapshots, table) = (BTreeMap::new(), Vec::new(), Arc::default());
        Self { pool, mount, mounted, snapshots, table, altroot, closed: false }
    }

    /// The mounted datasets, for readers.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    fn put(&mut self, id: DatasetId, mounted: Mounted) {
        let own = mounted.own.as_ref().map(|handle| OwnMount {
            device: handle.device().to_owned(),
            invalidator: handle.invalidator(),
            life: handle.life(),
        });
        let shown = Shown { path: mounted.path.clone(), parent: mounted.parent, own };
        self.table.datasets.write().insert(id, shown);
        self.mounted.insert(id, mounted);
    }

    /// Where a dataset is mounted.
    pub fn path(&self, id: DatasetId) -> Option<&Path> {
        self.mounted.get(&id).filter(|mounted| self.is_alive(mounted)).map(|mounted| mounted.path.as_path())
    }

    /// The dataset mounted at `path`.
    pub fn at(&self, path: &Path) -> Option<DatasetId> {
        self.mounted.iter().find(|(_, mounted)| mounted.path == path).map(|(&id, _)| id)
    }

    /// Whether a mount still serves: umount(8) may have taken it away.
    fn is_alive(&self, mounted: &Mounted) -> bool {
        match &mounted.own {
            Some(handle) => handle.is_alive(),
            None => self.mounted.get(&mounted.parent).is_some_and(|parent| self.is_alive(parent)),
        }
    }

    /// Takes note of mounts that umount(8) has taken away.
    fn bury_dead(&mut self) {
        let dead: Vec<_> =
            self.mounted.iter().filter(|(_, m)| !self.is_alive(m)).map(|(&id, _)| id).collect();
        // Children have higher ids than their parents only until they are renamed: several rounds.
        for _ in 0..dead.len() {
            for id in &dead {
                if self.mounted.contains_key(id) && self.mount.detach(*id).is_ok() {
                    self.mounted.remove(id);
                    self.table.datasets.write().remove(id);
                }
            }
        }
        self.snapshots.retain(|mounted| mounted.handle.is_alive());
        self.table.snapshots.write().retain(|_, (_, life)| life.is_alive());
    }

    /// Mounts a dataset, whatever its `canmount` says.
    ///
    /// # Errors
    /// When it has no mount point or the kernel does not mount.
    pub fn mount(&mut self, dataset: &Arc<Dataset>) -> Result<()> {
        self.mount_where(dataset, None)
    }

    /// Mounts a dataset that leaves where to whoever mounts it. One whose mount point that is anyway may be mounted.
    ///
    /// # Errors
    /// As [`Mounts::mount`]; also when it has a mount point elsewhere.
    pub fn mount_at(&mut self, dataset: &Arc<Dataset>, at: &Path) -> Result<()> {
        self.bury_dead();
        if self.path(dataset.id()) == Some(at) {
            return Ok(());
        }
        self.mount_where(dataset, Some(at))
    }

    fn mount_where(&mut self, dataset: &Arc<Dataset>, at: Option<&Path>) -> Result<()> {
        self.bury_dead();
        let id = dataset.id();
        let name = self.pool.full_name(id);
        let doing = format!("cannot mount '{name}'");
        if self.closed {
            return Err(ApiError::new(ErrorKind::Busy, "the pool is being exported").within(doing));
        }
        let path = self.place(dataset, at, &name).map_err(|error| error.within(&doing))?;
        if let Some(there) = self.mounted.get(&id) {
            let message = format!("it is mounted already, at {}", there.path.display());
            return Err(ApiError::new(ErrorKind::Exists, message).within(doing));
        }
        let parent = dataset.parent();
        let last = dataset.last_name();
        let above = self.mounted.get(&parent).filter(|above| parent != id && above.path.join(&last) == path);
        let overlay = self.pool.effective(id, "overlay").is_some_and(|overlay| overlay.value == "on");
        let hint = |error: ApiError| match error.kind {
            ErrorKind::Exists => error
                .safe("everything: nothing was mounted over it")
                .hint(format!("move away what is there, or: larder fs set overlay=on {name}")),
            _ => error,
        };
        let own = if above.is_some() {
            if !overlay {
                hides_nothing(&path).map_err(|error| hint(error.within(&doing)))?;
            }
            self.attach(dataset, Some((parent, last.clone().into_bytes())))
                .map_err(|error| ApiError::from(error).within(&doing))?;
            None
        } else {
            let mounted = self.mount_apart(dataset, &path, &name, overlay);
            Some(mounted.map_err(|error| hint(error.within(&doing)))?)
        };
        let junction = own.is_none();
        self.put(id, Mounted { path, own, parent, name: last });
        if junction {
            self.announce(id);
        }
        Ok(())
    }

    /// The folder to mount a dataset at, as its mount point says, or whoever mounts it.
    fn place(&self, dataset: &Dataset, at: Option<&Path>, name: &str) -> Result<PathBuf> {
        let set = |value: &str| format!("larder fs set mountpoint={value} {name}");
        match (target(&self.pool, dataset), at) {
            (Target::Legacy, Some(at)) => Ok(at.to_owned()),
            (Target::Legacy, None) => {
                let error = ApiError::usage("its mountpoint is legacy: whoever mounts it says where");
                Err(error.hint(format!("mount -t larder {name} DIR; or {}", set("/PATH"))))
            }
            (Target::Nowhere, _) => Err(ApiError::usage("its mountpoint is none").hint(set("/PATH"))),
            (Target::Path(path), at) => {
                let path = below(self.altroot.as_deref(), path);
                match at {
                    Some(at) if at != path => {
                        let error = ApiError::usage(format!("its mountpoint is {}", path.display()));
                        Err(error.hint(format!("{}, or {}", set(&at.to_string_lossy()), set("legacy"))))
                    }
                    _ => Ok(path),
                }
            }
        }
    }

    /// Opens a dataset for the daemon itself: nobody sees it.
    ///
    /// # Errors
    /// When it is on its way out, or cannot be opened.
    pub fn attach_unseen(&self, dataset: &Arc<Dataset>) -> Result<Arc<Volume>> {
        self.attach(dataset, None)?;
        let missing = || ApiError::new(ErrorKind::Internal, "a dataset that was just opened is not open");
        self.mount.volume(dataset.id()).ok_or_else(missing)
    }

    /// Closes it; returns when it is gone.
    ///
    /// # Errors
    /// When something of it cannot be stored.
    pub fn detach_unseen(&self, id: DatasetId) -> Result<()> {
        self.mount.detach(id)?;
        self.pool.commit()?;
        self.wait_until_gone(id)
    }

    /// Attaches a dataset; one that has just been detached may still be on its way out.
    fn attach(&self, dataset: &Arc<Dataset>, parent: Option<(DatasetId, Vec<u8>)>) -> Result<(), FsError> {
        match self.mount.attach(Arc::clone(dataset), parent.clone()) {
            Err(FsError::Busy) => {
                self.pool.commit()?;
                self.mount.attach(Arc::clone(dataset), parent).map(drop)
            }
            attached => attached.map(drop),
        }
    }

    fn mount_apart(
        &self,
        dataset: &Arc<Dataset>,
        path: &Path,
        name: &str,
        overlay: bool,
    ) -> Result<MountHandle> {
        fuse::clear_stale(path).ok();
        self.attach(dataset, None)?;
        let root = rustix::process::geteuid().is_root();
        let options = MountOptions {
            root: self.altroot.clone(),
            overlay,
            make: true,
            read_only: self.pool.store().is_read_only(),
            allow_other: root,
            atime: dataset.settings().atime != larder_pool::Atime::Off,
            ..MountOptions::new(path, name)
        };
        let view = View::new(Arc::clone(&self.mount), dataset.id());
        let handle = fuse::mount(Arc::new(view), options).inspect_err(|_| {
            // It was attached a moment ago and nobody has seen it.
            let _ = self.mount.detach(dataset.id());
        })?;
        let at = printable(&path.to_string_lossy());
        info!("{name} is mounted at {at} (FUSE: {})", handle.transport());
        Ok(handle)
    }

    /// Unmounts a dataset and all that hangs on its mount; gives what it unmounted, the last at the end.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when somebody is in it; what hung on it is mounted again then.
    pub fn unmount(&mut self, id: DatasetId) -> Result<Vec<DatasetId>> {
        self.bury_dead();
        let Some(mounted) = self.mounted.get(&id) else { return Ok(Vec::new()) };
        // Deeper mounts go first, whichever dataset they belong to.
        let top = mounted.path.clone();
        let mut going: Vec<_> = self
            .mounted
            .iter()
            .filter(|(_, mounted)| mounted.path.starts_with(&top))
            .map(|(&id, mounted)| (mounted.path.clone(), id))
            .collect();
        going.sort();
        let snapshots = self.unmount_snapshots(|mounted| mounted.path.starts_with(&top))?;
        let mut gone = Vec::new();
        for (_, id) in going.into_iter().rev() {
            if let Err(error) = self.unmount_one(id) {
                self.mount_again(&gone);
                self.mount_snapshots_again(snapshots);
                return Err(error);
            }
            gone.push(id);
        }
        Ok(gone)
    }

    /// Unmounts several datasets, one after the other; gives all that was unmounted, the last at the end.
    ///
    /// # Errors
    /// As [`Mounts::unmount`]; then all is mounted that was.
    pub fn unmount_each(&mut self, ids: impl IntoIterator<Item = DatasetId>) -> Result<Vec<DatasetId>> {
        let mut gone = Vec::new();
        for id in ids {
            match self.unmount(id) {
                Ok(mut more) => gone.append(&mut more),
                Err(error) => {
                    self.mount_again(&gone);
                    return Err(error);
                }
            }
        }
        Ok(gone)
    }

    /// Mounts nothing more, until [`Mounts::open`].
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Mounts again, after all.
    pub fn open(&mut self) {
        self.closed = false;
    }

    /// Mounts what was unmounted and still exists, the last first.
    pub fn mount_again(&mut self, gone: &[DatasetId]) {
        for id in gone.iter().rev() {
            if let Some(dataset) = self.pool.dataset(*id) {
                // A dataset that cannot be mounted again shows as unmounted.
                let _ = self.mount(&dataset);
            }
        }
    }

    fn unmount_one(&mut self, id: DatasetId) -> Result<()> {
        let Some(mut mounted) = self.mounted.remove(&id) else { return Ok(()) };
        let outcome = match mounted.own.take() {
            Some(handle) => {
                let at = handle.mountpoint().to_owned();
                match release(handle, &mounted.path) {
                    Ok(()) => {
                        self.tidy(id, &at);
                        Ok(())
                    }
                    Err(refused) => {
                        mounted.own = Some(*refused.handle);
                        Err(refused.error.to_string())
                    }
                }
            }
            None => self.wait_until_closed(id, &mounted.path),
        };
        if let Err(error) = outcome {
            let path = mounted.path.clone();
            let name = self.pool.full_name(id);
            let device = mounted.own.as_ref().map(|handle| handle.device().to_owned());
            self.mounted.insert(id, mounted);
            return Err(busy(&name, &path, device.as_deref(), &error));
        }
        self.table.datasets.write().remove(&id);
        let junction = self.invalidator(mounted.parent);
        // Data that cannot be stored now stays in memory, and the next commit tries again and reports it.
        let _ = self.mount.detach(id);
        if let Some((invalidator, node)) = junction {
            // A kernel that does not know the name has nothing to forget.
            let _ = invalidator.entry(node, mounted.name.as_bytes());
        }
        Ok(())
    }

    /// The folder of a mount point that nobody chose for this dataset goes again: it is in the way of the one above.
    fn tidy(&self, id: DatasetId, at: &Path) {
        let chosen = |dataset: Arc<Dataset>| mountpoint(&self.pool, &dataset).1 == Some(id);
        if !self.pool.dataset(id).is_some_and(chosen) {
            // It stays if there is anything in it.
            let _ = fs::remove_dir(at);
        }
    }

    /// Ends all mounts whoever is in them, for a daemon that is to end. False when requests are still under way.
    pub fn abort_all(&mut self) -> bool {
        let mut ended = true;
        for (id, mounted) in std::mem::take(&mut self.mounted) {
            warn!("the mount at {} is ended, in use or not", printable(&mounted.path.to_string_lossy()));
            ended &= mounted.own.is_none_or(MountHandle::abort);
            let _ = self.mount.detach(id);
        }
        for mounted in std::mem::take(&mut self.snapshots) {
            warn!("the mount at {} is ended, in use or not", printable(&mounted.path.to_string_lossy()));
            ended &= mounted.handle.abort();
        }
        self.table.datasets.write().clear();
        self.table.snapshots.write().clear();
        ended
    }

    /// Whether nothing in a junction is open.
    fn wait_until_closed(&self, id: DatasetId, path: &Path) -> Result<(), String> {
        for turn in 1.. {
            match self.mount.open_count(id) {
                0 => break,
                count if is_held(path, None, turn) => {
                    return Err(format!("{count} files or folders in it are open"));
                }
                _ => super::pause(PAUSE),
            }
        }
        Ok(())
    }

    /// Waits until nobody has anything of an unmounted dataset in memory.
    ///
    /// # Errors
    /// Busy, when that takes long.
    pub fn wait_until_gone(&self, id: DatasetId) -> Result<()> {
        for _ in 0..TRIES_UNHELD {
            if self.mount.is_gone(id) {
                return Ok(());
            }
            super::pause(PAUSE);
        }
        let why = "something that was written to it is not stored yet, or a request is under way";
        Err(ApiError::new(ErrorKind::Busy, why)
            .safe(super::error::NOTHING_CHANGED)
            .hint("try again in a moment"))
    }

    /// Mounts a snapshot at a folder that is there and empty, for reading.
    ///
    /// # Errors
    /// When it is mounted already, or the kernel does not mount.
    pub fn mount_snapshot(&mut self, record: &SnapshotRecord, path: &Path) -> Result<()> {
        self.bury_dead();
        let name = format!("{}@{}", self.pool.full_name(record.dataset), record.name);
        let doing = format!("cannot mount '{name}'");
        if self.closed {
            return Err(ApiError::new(ErrorKind::Busy, "the pool is being exported").within(doing));
        }
        if let Some(path) = self.table.path_of_snapshot(id_of(record)) {
            let message = format!("it is mounted already, at {}", path.display());
            return Err(ApiError::new(ErrorKind::Exists, message).within(doing));
        }
        self.show_snapshot(record, path, &name).map_err(|error| error.within(doing))
    }

    fn show_snapshot(&mut self, record: &SnapshotRecord, path: &Path, name: &str) -> Result<()> {
        fuse::clear_stale(path).ok();
        let view = View::of_snapshot(Arc::clone(&self.mount), record.dataset, &record.name);
        let view = view.map_err(|error| match error {
            FsError::NotFound => {
                ApiError::new(ErrorKind::NotFound, "there is nothing in it, not even its top folder")
            }
            error => error.into(),
        })?;
        let options = MountOptions {
            read_only: true,
            allow_other: rustix::process::geteuid().is_root(),
            atime: false,
            ..MountOptions::new(path, name)
        };
        let handle = fuse::mount(Arc::new(view), options)?;
        info!("{name} is mounted at {} (FUSE: {})", printable(&path.to_string_lossy()), handle.transport());
        let (id, path) = (id_of(record), path.to_owned());
        self.table.snapshots.write().insert(id, (path.clone(), handle.life()));
        self.snapshots.push(SnapshotMount { id, path, handle });
        Ok(())
    }

    /// The snapshot mounted at `path`.
    pub fn snapshot_at(&self, path: &Path) -> Option<SnapshotId> {
        self.snapshots.iter().find(|mounted| mounted.is_at(path)).map(|mounted| mounted.id)
    }

    /// Takes the mount of a snapshot away; gives whether there was one.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when somebody is in it.
    pub fn unmount_snapshot(&mut self, id: SnapshotId) -> Result<bool> {
        self.bury_dead();
        Ok(!self.unmount_snapshots(|mounted| mounted.id == id)?.is_empty())
    }

    /// Takes the mounts of all snapshots of a dataset away; gives what it took.
    ///
    /// # Errors
    /// As [`Mounts::unmount_snapshot`]; then all is mounted that was.
    pub fn unmount_snapshots_of(&mut self, dataset: DatasetId) -> Result<Vec<(SnapshotId, PathBuf)>> {
        self.unmount_snapshots(|mounted| mounted.id.0 == dataset)
    }

    fn unmount_snapshots(
        &mut self,
        wanted: impl Fn(&SnapshotMount) -> bool,
    ) -> Result<Vec<(SnapshotId, PathBuf)>> {
        let (going, stay) = std::mem::take(&mut self.snapshots).into_iter().partition(wanted);
        self.snapshots = stay;
        let (mut going, mut gone): (Vec<_>, Vec<_>) = (going, Vec::new());
        while let Some(SnapshotMount { id, path, handle }) = going.pop() {
            if let Err(refused) = release(handle, &path) {
                let (handle, why) = (*refused.handle, refused.error.to_string());
                let error = busy(&self.name_of(id), &path, Some(handle.device()), &why);
                self.snapshots.push(SnapshotMount { id, path, handle });
                self.snapshots.append(&mut going);
                self.mount_snapshots_again(gone);
                return Err(error);
            }
            self.table.snapshots.write().remove(&id);
            gone.push((id, path));
        }
        Ok(gone)
    }

    /// Mounts snapshots again that still exist, where they were.
    pub fn mount_snapshots_again(&mut self, gone: Vec<(SnapshotId, PathBuf)>) {
        for (id, path) in gone {
            if let Some(record) = self.snapshot(id) {
                // One that cannot be mounted again shows as unmounted.
                let _ = self.mount_snapshot(&record, &path);
            }
        }
    }

    /// Tells the kernel that a name in `.zfs/snapshot` of a dataset is another's now, or is there, or gone.
    pub fn tell_of_snapshot(&self, dataset: DatasetId, name: &str) {
        if let Some((invalidator, _)) = self.invalidator(dataset) {
            // A kernel that does not know the name has nothing to forget.
            let _ = invalidator.entry(NodeId::of_snapshots(dataset), name.as_bytes());
        }
    }

    fn snapshot(&self, id: SnapshotId) -> Option<SnapshotRecord> {
        self.pool.snapshots(id.0).into_iter().find(|record| id_of(record) == id)
    }

    fn name_of(&self, id: SnapshotId) -> String {
        let name = self.snapshot(id).map_or_else(|| "?".to_owned(), |record| record.name);
        format!("{}@{name}", self.pool.full_name(id.0))
    }

    /// Has nobody look into a snapshot any more by `.zfs`.
    ///
    /// # Errors
    /// The reason in words: a mount of its own, or a file that is open, and who has it.
    pub fn let_go_of_snapshot(&mut self, record: &SnapshotRecord) -> Result<(), String> {
        self.bury_dead();
        if let Some(path) = self.table.path_of_snapshot(id_of(record)) {
            return Err(format!("it is mounted: larder fs unmount {}", path.display()));
        }
        let folder = self.path(record.dataset).map(|path| path.join(".zfs/snapshot").join(&record.name));
        for turn in 1.. {
            match self.mount.let_go_of_snapshot(record.dataset, record.high) {
                Ok(()) => break,
                Err(FsError::Busy) => {}
                Err(error) => return Err(error.to_string()),
            }
            let Some(folder) = &folder else { return Err("it is in use".to_owned()) };
            if is_held(folder, None, turn) {
                let holders = match holders::of(folder, None).as_slice() {
                    [] => String::new(),
                    holders => format!(" by {}", holders.join(", ")),
                };
                return Err(format!("it is in use{holders}: close what is open in {}", folder.display()));
            }
            super::pause(PAUSE);
        }
        Ok(())
    }

    /// Unmounts everything.
    ///
    /// # Errors
    /// As [`Mounts::unmount`]; then all is mounted that was.
    pub fn unmount_all(&mut self) -> Result<Vec<DatasetId>> {
        self.bury_dead();
        let mut order: Vec<_> =
            self.mounted.iter().map(|(&id, mounted)| (mounted.path.clone(), id)).collect();
        order.sort();
        let snapshots = self.unmount_snapshots(|_| true)?;
        let mut gone = Vec::new();
        for (_, id) in order.into_iter().rev() {
            if let Err(error) = self.unmount_one(id) {
                self.mount_again(&gone);
                self.mount_snapshots_again(snapshots);
                return Err(error);
            }
            gone.push(id);
        }
        Ok(gone)
    }

    /// Mounts all datasets that mount by themselves; gives the names of those it mounted, and what
    /// went wrong with others.
    pub fn mount_all(&mut self) -> (Vec<String>, Vec<ApiError>) {
        let pool = Arc::clone(&self.pool);
        let mut datasets: Vec<_> = pool
            .datasets()
            .into_iter()
            .filter(|one| !one.is_staging() && !is_coming(&pool, one.id()))
            .map(|dataset| (pool.full_name(dataset.id()), dataset))
            .collect();
        datasets.sort_by(|a, b| a.0.cmp(&b.0));
        let (mut names, mut failed) = (Vec::new(), Vec::new());
        for (name, dataset) in datasets {
            let wanted = can_mount(&pool, &dataset) == "on"
                && matches!(target(&pool, &dataset), Target::Path(_))
                && self.path(dataset.id()).is_none();
            if !wanted {
                continue;
            }
            match self.mount(&dataset) {
                Ok(()) => names.push(name),
                Err(error) => failed.push(error),
            }
        }
        (names, failed)
    }

    /// The invalidator for names in the root folder of `dataset`, and that folder.
    fn invalidator(&self, dataset: DatasetId) -> Option<(Invalidator, NodeId)> {
        let mut at = dataset;
        loop {
            let mounted = self.mounted.get(&at)?;
            if let Some(handle) = &mounted.own {
                let node = if at == dataset { NodeId::ROOT } else { NodeId::pack(dataset, ROOT_INODE) };
                return Some((handle.invalidator(), node));
            }
            at = mounted.parent;
        }
    }

    /// A junction has come: the kernel may remember that there was no such name.
    fn announce(&self, id: DatasetId) {
        let mounted = &self.mounted[&id];
        if let Some((invalidator, node)) = self.invalidator(mounted.parent) {
            let _ = invalidator.entry(node, mounted.name.as_bytes());
        }
    }
}

/// A mount point below another root.
pub fn below(root: Option<&Path>, path: PathBuf) -> PathBuf {
    match root {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(&path)),
        None => path,
    }
}

/// Refuses a place in the folder of the parent dataset where there is something already.
fn hides_nothing(path: &Path) -> Result<()> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if meta.is_dir() && is_empty() {
        return Ok(());
    }
    let what = if meta.is_dir() { "is not empty" } else { "is not a folder" };
    Err(ApiError::new(ErrorKind::Exists, format!("the mountpoint {} {what}", path.display())))
}

/// Whether what is busy at `path` after so many tries will stay so.
fn is_held(path: &Path, device: Option<&str>, turn: u32) -> bool {
    turn >= TRIES_UNHELD || (turn.is_multiple_of(TRIES) && !holders::of(path, device).is_empty())
}

/// Takes a kernel mount away, trying again for a moment when it is busy.
fn release(mut handle: MountHandle, path: &Path) -> Result<(), NotUnmounted> {
    for turn in 1.. {
        match handle.unmount() {
            Ok(()) => return Ok(()),
            Err(refused) if refused.for_good || is_held(path, Some(refused.handle.device()), turn) => {
                return Err(refused);
            }
            Err(refused) => handle = *refused.handle,
        }
        super::pause(PAUSE);
    }
    unreachable!("the last try returns")
}

fn busy(name: &str, path: &Path, device: Option<&str>, why: &str) -> ApiError {
    let holders = holders::of(path, device);
    let who = match holders.as_slice() {
        [] => why.to_owned(),
        _ => format!("in use by {}; {why}", holders.join(", ")),
    };
    ApiError::new(ErrorKind::Busy, format!("cannot unmount '{name}' at {}: {who}", path.display()))
        .safe("everything; it stays mounted")
        .hint("close what is open there and leave the folder, then try again")
}
