//! The real engine: pools on devices, datasets on mounts.
//!
//! `devices` finds devices, `create` and `import` bring pools in and let them go, `labels` takes away what they leave,
//! `remembered` keeps what the next daemon is to know, and `boot` imports what was imported when the last one ended,
//! `live` is an imported pool with its threads, `mounts` says which dataset is reached where, `status` tells how pools
//! are, `collection` when they are traced, `repair` holds the verbs about devices and scans, `roster` knows devices by
//! what people call them, `maintenance` is what a pool does about devices by itself, `policies` what it does about
//! snapshots, `advice` what people could do, `figures` what people watch, `chronicle` what pools remember, `pools` and
//! `datasets` hold the verbs about properties and names, `files` those about single files, `diff` tells what changed,
//! `streams` sends and receives, `error` is the one place where errors of the layers below become what people read.
//!
//! No lock is held over several pools, so that one which hangs, or waits for somebody who is in its mounts, holds up
//! nobody else's; names of pools on their way in are in `coming`. Verbs that only look take neither a pool's `admin`
//! nor its `mounts`: status is told while an import or export is under way.

mod advice;
mod boot;
mod chronicle;
mod collection;
mod create;
mod datasets;
mod devices;
mod diff;
mod error;
mod figures;
mod files;
mod holders;
mod import;
mod labels;
mod live;
mod maintenance;
mod mounts;
mod passes;
mod policies;
mod pools;
mod remembered;
mod repair;
mod roster;
mod status;
mod streams;
#[cfg(test)]
mod tests;
mod world;

pub use create::free_device;
pub use devices::{by_id, identity};
pub use labels::clear_label;
pub use streams::send_of;
pub use world::system as system_world;

use crate::api::dedup::RebuildIndex;
use crate::api::diff::{Diff, Line};
use crate::api::events::{Command, EventLists, Events, Histories, History};
use crate::api::extents::{CloneFile, Cloned, Extents, FileExtents, FileVersions, Versions};
use crate::api::figures::{Cache, Caches, Iostat};
use crate::api::pass::{PassList, ShowPasses, StartPass, StopPass};
use crate::api::repair::{
    Clear, Offline, Online, Parted, Rebalance, Rebalanced, Reguid, Reshape, Reshaped, Resilver, Scrub, Split,
    Told, Trim,
};
use crate::api::snapshots::{
    Bookmark, DestroyBookmark, DestroySnapshots, Held, Hold, Holds, MakeClone, Promote, Release,
    RenameSnapshot, Rollback, RolledBack, Snapshot, Space, Spaces, Taken,
};
use crate::api::trace::{FolderLists, ShowFolders, Trace};
use crate::api::trash::{EmptyTrash, Restored, Trash, TrashList, Undestroy};
use crate::api::{ApiError, Done, ErrorKind, Items, Result, fs, name, policy, pool, stream};
use crate::engine::Engine;
use larder_format::PoolGuid;
use larder_pool::World;
use larder_sync::{Mutex, RwLock};
use live::Live;
use remembered::Remembered;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The engine of a daemon that keeps what is to outlive it in the folder `state`, if there is one; it has nothing
/// imported yet.
///
/// # Errors
/// When threads cannot be made.
pub fn start(state: Option<&Path>) -> Result<Arc<dyn Engine>> {
    larder_pool::note_panics();
    Ok(Arc::new(Host::new(state)?))
}

/// Time that pools on their way in are given before the daemon ends.
const ARRIVAL: Duration = Duration::from_secs(60);
/// Interval of looks for them.
const LOOK: Duration = Duration::from_millis(20);

/// See the module's text.
struct Host {
    world: World,
    coming: Mutex<Arrivals>,
    live: RwLock<BTreeMap<String, Arc<Live>>>,
    remembered: Mutex<Remembered>,
    /// Why pools that were imported when the last daemon ended are not, as far as that was tried.
    left: Mutex<BTreeMap<PoolGuid, ApiError>>,
}

/// Pools on their way in.
#[derive(Default)]
struct Arrivals {
    names: BTreeSet<String>,
    /// Stops of the daemon that are under way or have succeeded: nobody comes in any more.
    closed: u32,
}

impl Host {
    fn new(state: Option<&Path>) -> Result<Self> {
        let world = world::system().map_err(|error| internal("start worker threads", &error))?;
        Ok(Self {
            world,
            coming: Mutex::default(),
            live: RwLock::default(),
            remembered: Mutex::new(Remembered::load(state)),
            left: Mutex::default(),
        })
    }

    /// An imported pool.
    fn pool(&self, name: &str) -> Result<Arc<Live>> {
        let found = self.live.read().get(name).cloned();
        found.ok_or_else(|| self.not_imported(name))
    }

    /// The imported pools of these names, all when none is given.
    fn pools_named(&self, names: &[String]) -> Result<Vec<Arc<Live>>> {
        if names.is_empty() {
            return Ok(self.live.read().values().cloned().collect());
        }
        names.iter().map(|name| self.pool(name)).collect()
    }

    /// The imported pool that a dataset is in, and the dataset.
    fn dataset(&self, full: &str) -> Result<(Arc<Live>, Arc<larder_pool::Dataset>)> {
        let missing = || ApiError::no_such_dataset(full);
        let live = self.pool(name::pool_of(full)).map_err(|error| ApiError {
            hint: error.hint,
            safe: error.safe,
            ..missing()
        })?;
        let dataset = live.pool.dataset_by_name(full).map_err(|_| missing())?;
        Ok((live, dataset))
    }
}

impl Engine for Host {
    fn pool_create(&self, request: pool::Create) -> Result<pool::Created> {
        self.create(request)
    }
    fn pool_destroy(&self, request: pool::Destroy) -> Result<pool::PoolDestroyed> {
        self.destroy(&request)
    }
    fn pool_status(&self, request: pool::Status) -> Result<pool::Statuses> {
        let live = self.pools_named(&request.names)?;
        let pools = live.iter().map(|live| self.status(live)).collect();
        let absent = if request.names.is_empty() { self.absent() } else { Vec::new() };
        Ok(pool::Statuses { pools, absent })
    }
    fn pool_iostat(&self, request: Iostat) -> Result<pool::Statuses> {
        let live = self.pools_named(&request.names)?;
        let status = |live: &Arc<Live>| {
            let mut status = self.status(live);
            let members = live.pool.store().members();
            figures::add_waits(&mut status.root, members);
            let others = status.classes.iter_mut().flat_map(|class| &mut class.vdevs);
            others.for_each(|vdev| figures::add_waits(vdev, members));
            let vital = status.classes.iter().filter(|class| class.is_vital()).flat_map(|class| &class.vdevs);
            status.root.waits = vital.fold(status.root.waits, |sum, vdev| sum.plus(&vdev.waits));
            status
        };
        Ok(pool::Statuses { pools: live.iter().map(status).collect(), absent: Vec::new() })
    }
    fn pool_cache(&self, request: Cache) -> Result<Caches> {
        let live = self.pools_named(&request.names)?;
        Ok(Caches { pools: live.iter().map(|live| figures::cache(live)).collect() })
    }
    fn pool_get(&self, request: pool::Get) -> Result<Items> {
        let live = self.pools_named(&request.names)?;
        Ok(Items { items: live.iter().map(|live| pools::item(live, &request.properties)).collect() })
    }
    fn pool_set(&self, request: pool::Set) -> Result<Done> {
        let live = self.pool(&request.name)?;
        pools::set(&live, &request.properties).map_err(|error| {
            error.within(format!("cannot set properties of '{}'", request.name)).of_pool(&request.name)
        })?;
        if request.properties.contains_key("cachefile") {
            self.expect(&live);
        }
        Ok(Done {})
    }
    fn pool_importable(&self, request: pool::Importable) -> Result<pool::ImportablePools> {
        self.importable(&request)
    }
    fn pool_import(&self, request: pool::Import) -> Result<pool::Imported> {
        self.import(request)
    }
    fn pool_export(&self, request: pool::Export) -> Result<pool::Exported> {
        if request.forget {
            return self.forget(&request.name);
        }
        let force = request.force;
        let guid = self.pool(&request.name)?.pool.store().identity();
        let exported = self.export(&request.name, import::Force { mounts: force, suspended: force })?;
        self.remembered.lock().expect(guid, None);
        Ok(exported)
    }
    fn pool_sync(&self, request: pool::Sync) -> Result<Done> {
        for live in self.pools_named(&request.names)? {
            if !live.pool.store().is_read_only() {
                let name = live.pool.name();
                live.pool.commit().map_err(|error| {
                    ApiError::from(error).within(format!("cannot sync '{name}'")).of_pool(&name)
                })?;
            }
        }
        Ok(Done {})
    }
    fn pool_wait(&self, request: pool::Wait) -> Result<Done> {
        let live = self.pool(&request.name)?;
        let wanted = |activity| request.activities.is_empty() || request.activities.contains(&activity);
        if wanted(pool::Activity::Resilver) {
            live.wait_for_resilver();
        }
        if wanted(pool::Activity::Scrub) {
            live.wait_for_scrub();
        }
        if wanted(pool::Activity::Free) && !live.pool.store().is_read_only() {
            live.wait_for_free_space().map_err(|error| error.of_pool(&request.name))?;
        }
        if wanted(pool::Activity::Trace) {
            live.wait_for_trace();
        }
        if wanted(pool::Activity::Trim) {
            live.wait_for_trim();
        }
        if wanted(pool::Activity::Rebalance) {
            live.wait_for_rebalance();
        }
        Ok(Done {})
    }
    fn pool_trace(&self, request: Trace) -> Result<Done> {
        for live in self.pools_named(&request.names)? {
            let name = live.pool.name();
            live.trace(&request)
                .map_err(|error| error.within(format!("cannot trace '{name}'")).of_pool(&name))?;
        }
        Ok(Done {})
    }
    fn pool_folders(&self, request: ShowFolders) -> Result<FolderLists> {
        let live = self.pools_named(&request.names)?;
        Ok(FolderLists { pools: live.iter().map(|live| collection::folders(live)).collect() })
    }
    fn pool_offline(&self, request: Offline) -> Result<Done> {
        self.offline(&request)
    }
    fn pool_online(&self, request: Online) -> Result<Told> {
        self.online(&request)
    }
    fn pool_clear(&self, request: Clear) -> Result<Done> {
        self.clear(&request)
    }
    fn pool_reshape(&self, request: Reshape) -> Result<Reshaped> {
        self.reshape(&request)
    }
    fn pool_scrub(&self, request: Scrub) -> Result<Done> {
        self.scrub(&request)
    }
    fn pool_rebalance(&self, request: Rebalance) -> Result<Rebalanced> {
        self.rebalance(&request)
    }
    fn pool_trim(&self, request: Trim) -> Result<Done> {
        self.trim(&request)
    }
    fn pool_resilver(&self, request: Resilver) -> Result<Done> {
        self.resilver(&request)
    }
    fn pool_events(&self, request: Events) -> Result<EventLists> {
        self.events(&request)
    }
    fn pool_history(&self, request: History) -> Result<Histories> {
        self.history(&request)
    }
    fn keep_command(&self, changed: &str, command: &Command) {
        Host::keep_command(self, changed, command);
    }
    fn pool_split(&self, request: Split) -> Result<Parted> {
        self.split(&request)
    }
    fn pool_reguid(&self, request: Reguid) -> Result<Done> {
        self.reguid(&request)
    }
    fn pool_rebuild_index(&self, request: RebuildIndex) -> Result<Done> {
        for live in self.pools_named(&request.names)? {
            let name = live.pool.name();
            live.pool.rebuild_index().map_err(|error| {
                ApiError::from(error).within(format!("cannot rebuild the index of '{name}'")).of_pool(&name)
            })?;
        }
        Ok(Done {})
    }
    fn fs_create(&self, request: fs::Create) -> Result<fs::Created> {
        datasets::create(self, &request)
    }
    fn fs_destroy(&self, request: fs::Destroy) -> Result<fs::Destroyed> {
        datasets::destroy(self, &request)
    }
    fn fs_rename(&self, request: fs::Rename) -> Result<Done> {
        datasets::rename(self, &request)
    }
    fn fs_snapshot(&self, request: Snapshot) -> Result<Taken> {
        datasets::snapshot(self, &request)
    }
    fn fs_destroy_snapshots(&self, request: DestroySnapshots) -> Result<fs::Destroyed> {
        datasets::destroy_snapshots(self, &request)
    }
    fn fs_rollback(&self, request: Rollback) -> Result<RolledBack> {
        datasets::rollback(self, &request)
    }
    fn fs_clone(&self, request: MakeClone) -> Result<fs::Created> {
        datasets::clone_snapshot(self, &request)
    }
    fn fs_send(&self, request: stream::Send, emit: &mut stream::Emit<'_>) -> Result<()> {
        streams::send(self, &request, emit)
    }
    fn fs_receive(&self, request: stream::Receive, input: &mut dyn Read) -> Result<stream::Received> {
        streams::receive(self, &request, input)
    }
    fn fs_abort_receive(&self, request: stream::Abort) -> Result<Done> {
        streams::abort(self, &request)
    }
    fn fs_promote(&self, request: Promote) -> Result<Done> {
        datasets::promote(self, &request)
    }
    fn fs_space(&self, request: Space) -> Result<Spaces> {
        datasets::space(self, &request)
    }
    fn fs_diff(&self, request: Diff, emit: &mut dyn FnMut(Line) -> bool) -> Result<()> {
        self.diff(&request, emit)
    }
    fn fs_bookmark(&self, request: Bookmark) -> Result<Done> {
        datasets::bookmark(self, &request)
    }
    fn fs_destroy_bookmark(&self, request: DestroyBookmark) -> Result<Done> {
        datasets::destroy_bookmark(self, &request)
    }
    fn fs_undestroy(&self, request: Undestroy) -> Result<Restored> {
        datasets::undestroy(self, &request)
    }
    fn fs_trash(&self, request: Trash) -> Result<TrashList> {
        datasets::trash(self, &request)
    }
    fn fs_empty_trash(&self, request: EmptyTrash) -> Result<TrashList> {
        datasets::empty_trash(self, &request)
    }
    fn fs_start_pass(&self, request: StartPass) -> Result<PassList> {
        self.start_pass(&request)
    }
    fn fs_stop_pass(&self, request: StopPass) -> Result<PassList> {
        self.stop_pass(&request)
    }
    fn fs_passes(&self, request: ShowPasses) -> Result<PassList> {
        self.passes(&request)
    }
    fn fs_hold(&self, request: Hold) -> Result<Done> {
        datasets::hold(self, &request)
    }
    fn fs_release(&self, request: Release) -> Result<Done> {
        datasets::release(self, &request)
    }
    fn fs_holds(&self, request: Holds) -> Result<Held> {
        datasets::holds(self, &request)
    }
    fn fs_rename_snapshot(&self, request: RenameSnapshot) -> Result<Done> {
        datasets::rename_snapshot(self, &request)
    }
    fn fs_get(&self, request: fs::Get) -> Result<Items> {
        datasets::get(self, &request)
    }
    fn fs_set(&self, request: fs::Set) -> Result<Done> {
        datasets::set(self, &request)
    }
    fn fs_inherit(&self, request: fs::Inherit) -> Result<Done> {
        datasets::inherit(self, &request)
    }
    fn policy_show(&self, request: policy::Show) -> Result<policy::Policies> {
        datasets::show_policies(self, &request)
    }
    fn policy_run(&self, request: policy::Run) -> Result<policy::Ran> {
        datasets::run_policies(self, &request)
    }
    fn fs_mount(&self, request: fs::Mount) -> Result<fs::Mounted> {
        datasets::mount(self, &request)
    }
    fn fs_unmount(&self, request: fs::Unmount) -> Result<fs::Mounted> {
        datasets::unmount(self, request.target.as_deref())
    }
    fn file_extents(&self, request: Extents) -> Result<FileExtents> {
        self.extents(&request)
    }
    fn file_versions(&self, request: Versions) -> Result<FileVersions> {
        self.versions(&request)
    }
    fn file_clone(&self, request: CloneFile) -> Result<Cloned> {
        self.clone_file(&request)
    }
    fn pools(&self) -> Vec<String> {
        self.live.read().keys().cloned().collect()
    }
    fn import_again(&self, patience: Duration, tell: &(dyn Fn(&str) + Sync)) {
        Host::import_again(self, patience, tell);
    }
    fn export_all(&self, force: bool) -> Result<()> {
        self.export_every(force, ARRIVAL)
    }
}

/// A name that a pool is about to have.
struct Coming<'a> {
    host: &'a Host,
    name: String,
}

impl Host {
    /// Keeps others from bringing in a pool of this name at the same time.
    fn coming(&self, name: &str) -> Result<Coming<'_>> {
        let mut coming = self.coming.lock();
        if coming.closed > 0 {
            return Err(ApiError::new(ErrorKind::Busy, "the daemon is stopping")
                .safe("everything: nothing was written")
                .hint("try again when it has ended; the command starts another"));
        }
        if self.live.read().contains_key(name) {
            return Err(ApiError::new(ErrorKind::Exists, "a pool of this name is imported"));
        }
        if !coming.names.insert(name.to_owned()) {
            return Err(ApiError::new(ErrorKind::Busy, "a pool of this name is being imported")
                .hint("try again in a moment"));
        }
        Ok(Coming { host: self, name: name.to_owned() })
    }

    /// Exports all pools, those too that are on their way in, for which it waits so long; no other comes in. When that
    /// fails, they may again, unless it is forced, as at the end of the daemon.
    fn export_every(&self, force: bool, wait: Duration) -> Result<()> {
        self.coming.lock().closed += 1;
        let outcome = self.export_as_they_come(force, wait);
        if outcome.is_err() && !force {
            self.coming.lock().closed -= 1;
        }
        outcome
    }

    fn export_as_they_come(&self, force: bool, wait: Duration) -> Result<()> {
        let clock = Arc::clone(&self.world.clock);
        let end = clock.monotonic() + wait;
        let (mut tried, mut outcome) = (BTreeSet::new(), Ok(()));
        loop {
            let (mut here, coming) = self.here_and_coming();
            here.retain(|name| tried.insert(name.clone()));
            outcome =
                outcome.and(self.export_these(&here, import::Force { mounts: force, suspended: force }));
            let Some(name) = coming.first().filter(|_| force || outcome.is_ok()) else { return outcome };
            if clock.monotonic() >= end {
                let late = ApiError::new(ErrorKind::Busy, format!("'{name}' is still being imported"))
                    .safe("everything: the daemon goes on")
                    .hint("try again when that is done");
                return outcome.and(Err(late));
            }
            pause(LOOK);
        }
    }

    /// The names of the pools that are here, and of those that are on their way in, which are not exported before that
    /// is over. Once nobody comes in any more, only the second become fewer.
    fn here_and_coming(&self) -> (Vec<String>, Vec<String>) {
        let coming = self.coming.lock();
        let here = self.live.read().keys().filter(|&name| !coming.names.contains(name)).cloned().collect();
        (here, coming.names.iter().cloned().collect())
    }

    /// Exports these pools as far as that goes, beside each other: one that hangs holds up no other.
    fn export_these(&self, names: &[String], force: import::Force) -> Result<()> {
        let export = |name| match self.export(name, force)?.unmarked.filter(|_| !force.suspended) {
            Some(error) => Err(error),
            None => Ok(()),
        };
        std::thread::scope(|scope| {
            let exports: Vec<_> = names.iter().map(|name| scope.spawn(|| export(name))).collect();
            let ended = |export: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                export.join().unwrap_or_else(|_| {
                    Err(ApiError::new(ErrorKind::Internal, "the daemon met a bug while exporting"))
                })
            };
            exports.into_iter().map(ended).fold(Ok(()), Result::and)
        })
    }

    /// Whether a pool is still imported; for whoever has waited for its `admin`.
    fn still_here(&self, live: &Arc<Live>) -> Result<()> {
        let name = live.pool.name();
        match self.live.read().get(&name) {
            Some(now) if Arc::ptr_eq(now, live) => Ok(()),
            _ => Err(ApiError::no_such_pool(&name)),
        }
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.host.coming.lock().names.remove(&self.name);
    }
}

/// An operating system's failure.
fn internal(doing: &str, error: &std::io::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("cannot {doing}: {error}"))
}

/// Waits a little.
#[expect(clippy::disallowed_methods, reason = "the daemon's threads, waiting for the kernel or another host")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
