//! The seam between people and pools: one method a verb, and the one table that gives each its route.
//!
//! Everything above (command line, socket, dashboard) speaks to an [`Engine`]; [`crate::host`] is the
//! real one. Methods block; the daemon calls them from threads that may.

use crate::api::dedup::RebuildIndex;
use crate::api::diff::{Diff, Line};
use crate::api::events::{Command, EventLists, Events, Histories, History};
use crate::api::extents::{CloneFile, Cloned, Extents, FileExtents, FileVersions, Versions};
use crate::api::figures::{Cache, Caches, Iostat};
use crate::api::name::pool_of;
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
use crate::api::{Done, Items, Result, fs, policy, pool, stream};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// All imported pools and what can be done with them. Requests arrive checked, with property values
/// in their exact form; what only the pool can know (does it exist, is it free) is the engine's to check.
pub trait Engine: Send + Sync {
    /// Makes a pool, imports it and mounts its top dataset. With `dry_run` only looks and tells.
    fn pool_create(&self, request: pool::Create) -> Result<pool::Created>;
    /// Destroys an imported pool: exports it, and its devices are free.
    fn pool_destroy(&self, request: pool::Destroy) -> Result<pool::PoolDestroyed>;
    /// The state of pools. An unknown name is an error.
    fn pool_status(&self, request: pool::Status) -> Result<pool::Statuses>;
    /// The state of pools with how long requests took.
    fn pool_iostat(&self, request: Iostat) -> Result<pool::Statuses>;
    /// Counters and sizes of the caches of pools.
    fn pool_cache(&self, request: Cache) -> Result<Caches>;
    /// Properties of pools.
    fn pool_get(&self, request: pool::Get) -> Result<Items>;
    /// Sets properties; `memory` and `metadata_share` take effect before this returns.
    fn pool_set(&self, request: pool::Set) -> Result<Done>;
    /// Looks for pools on devices.
    fn pool_importable(&self, request: pool::Importable) -> Result<pool::ImportablePools>;
    /// Imports one pool, or all; mounts their datasets unless told not to.
    fn pool_import(&self, request: pool::Import) -> Result<pool::Imported>;
    /// Unmounts, commits, lets go of the devices.
    fn pool_export(&self, request: pool::Export) -> Result<pool::Exported>;
    /// Returns when a commit holds all that was written before.
    fn pool_sync(&self, request: pool::Sync) -> Result<Done>;
    /// Returns when activities are over, or the pool is exported.
    fn pool_wait(&self, request: pool::Wait) -> Result<Done>;
    /// Starts or stops traces.
    fn pool_trace(&self, request: Trace) -> Result<Done>;
    /// Findings of the last traces by folder.
    fn pool_folders(&self, request: ShowFolders) -> Result<FolderLists>;
    /// Takes devices out of use.
    fn pool_offline(&self, request: Offline) -> Result<Done>;
    /// Brings devices back into use.
    fn pool_online(&self, request: Online) -> Result<Told>;
    /// Sets error counts to zero.
    fn pool_clear(&self, request: Clear) -> Result<Done>;
    /// Changes which devices a pool is made of. With `dry_run` only looks and tells.
    fn pool_reshape(&self, request: Reshape) -> Result<Reshaped>;
    /// Starts, pauses or stops scrubs.
    fn pool_scrub(&self, request: Scrub) -> Result<Done>;
    /// Starts, suspends or cancels trims.
    fn pool_trim(&self, request: Trim) -> Result<Done>;
    /// Starts or stops a rebalance, or tells what one would do.
    fn pool_rebalance(&self, request: Rebalance) -> Result<Rebalanced>;
    /// Makes a pool of its own of half of the mirrors. With `dry_run` only looks and tells.
    fn pool_split(&self, request: Split) -> Result<Parted>;
    /// Gives a pool another GUID.
    fn pool_reguid(&self, request: Reguid) -> Result<Done>;
    /// Starts resilvers from the beginning.
    fn pool_resilver(&self, request: Resilver) -> Result<Done>;
    /// Events of pools.
    fn pool_events(&self, request: Events) -> Result<EventLists>;
    /// Which commands changed pools.
    fn pool_history(&self, request: History) -> Result<Histories>;
    /// Keeps a command that changed a pool, or a dataset of it; nothing where there is no such pool.
    fn keep_command(&self, changed: &str, command: &Command);
    /// Makes the dedup index of pools anew.
    fn pool_rebuild_index(&self, request: RebuildIndex) -> Result<Done>;
    /// Makes a dataset and mounts it.
    fn fs_create(&self, request: fs::Create) -> Result<fs::Created>;
    /// Destroys datasets.
    fn fs_destroy(&self, request: fs::Destroy) -> Result<fs::Destroyed>;
    /// Renames a dataset, and with it all below.
    fn fs_rename(&self, request: fs::Rename) -> Result<Done>;
    /// Takes snapshots; all of them or none.
    fn fs_snapshot(&self, request: Snapshot) -> Result<Taken>;
    /// Destroys snapshots; all of them or none.
    fn fs_destroy_snapshots(&self, request: DestroySnapshots) -> Result<fs::Destroyed>;
    /// Has a dataset hold again what a snapshot holds.
    fn fs_rollback(&self, request: Rollback) -> Result<RolledBack>;
    /// Makes a dataset that begins as a snapshot, and mounts it.
    fn fs_clone(&self, request: MakeClone) -> Result<fs::Created>;
    /// Has a clone take over the snapshots up to its origin.
    fn fs_promote(&self, request: Promote) -> Result<Done>;
    /// Makes a bookmark.
    fn fs_bookmark(&self, request: Bookmark) -> Result<Done>;
    /// Destroys a bookmark.
    fn fs_destroy_bookmark(&self, request: DestroyBookmark) -> Result<Done>;
    /// Brings destroyed datasets and snapshots back.
    fn fs_undestroy(&self, request: Undestroy) -> Result<Restored>;
    /// The trash.
    fn fs_trash(&self, request: Trash) -> Result<TrashList>;
    /// Lets go of what is in the trash.
    fn fs_empty_trash(&self, request: EmptyTrash) -> Result<TrashList>;
    /// Renames snapshots; all of them or none.
    fn fs_rename_snapshot(&self, request: RenameSnapshot) -> Result<Done>;
    /// Space that snapshots hold.
    fn fs_space(&self, request: Space) -> Result<Spaces>;
    /// Sends snapshots, part by part, until `emit` gives false.
    fn fs_send(&self, request: stream::Send, emit: &mut stream::Emit<'_>) -> Result<()>;
    /// Receives a stream.
    fn fs_receive(&self, request: stream::Receive, input: &mut dyn std::io::Read)
    -> Result<stream::Received>;
    /// Drops what came of a stream that broke off.
    fn fs_abort_receive(&self, request: stream::Abort) -> Result<Done>;
    /// Tells what differs between snapshots, line by line, until `emit` gives false.
    fn fs_diff(&self, request: Diff, emit: &mut dyn FnMut(Line) -> bool) -> Result<()>;
    /// Begins a pass over what datasets have stored, or estimates what it would come to.
    fn fs_start_pass(&self, request: StartPass) -> Result<PassList>;
    /// Ends the passes of pools.
    fn fs_stop_pass(&self, request: StopPass) -> Result<PassList>;
    /// The passes of pools.
    fn fs_passes(&self, request: ShowPasses) -> Result<PassList>;
    /// Places a hold on snapshots; on all of them or none.
    fn fs_hold(&self, request: Hold) -> Result<Done>;
    /// Lets go of a hold on snapshots; of all of them or none.
    fn fs_release(&self, request: Release) -> Result<Done>;
    /// Which holds snapshots have.
    fn fs_holds(&self, request: Holds) -> Result<Held>;
    /// Properties of datasets and snapshots, each after its parent; see [`fs::Get::selects`].
    fn fs_get(&self, request: fs::Get) -> Result<Items>;
    /// Sets properties; all of them or none.
    fn fs_set(&self, request: fs::Set) -> Result<Done>;
    /// Takes local values away.
    fn fs_inherit(&self, request: fs::Inherit) -> Result<Done>;
    /// Policies of snapshots.
    fn policy_show(&self, request: policy::Show) -> Result<policy::Policies>;
    /// Takes snapshots that are due by their policy, and destroys those that are too many.
    fn policy_run(&self, request: policy::Run) -> Result<policy::Ran>;
    /// Mounts.
    fn fs_mount(&self, request: fs::Mount) -> Result<fs::Mounted>;
    /// Unmounts.
    fn fs_unmount(&self, request: fs::Unmount) -> Result<fs::Mounted>;
    /// A part of a file's extents.
    fn file_extents(&self, request: Extents) -> Result<FileExtents>;
    /// The versions of a file over the snapshots of its dataset.
    fn file_versions(&self, request: Versions) -> Result<FileVersions>;
    /// Copies a part of a file over another by reference.
    fn file_clone(&self, request: CloneFile) -> Result<Cloned>;
    /// The names of the imported pools.
    fn pools(&self) -> Vec<String>;
    /// Imports the pools that were imported when the daemon before this one ended; says what it does. Devices that some
    /// need and that are not there yet are waited for that long. What is not imported is told by `pool_status`.
    fn import_again(&self, _patience: Duration, _tell: &(dyn Fn(&str) + Sync)) {}
    /// Exports all pools, as far as that goes; the first failure is told, the others are tried all the same. With
    /// `force`, mounts are ended though somebody is in them, and suspended pools go as they are.
    fn export_all(&self, force: bool) -> Result<()>;
}

/// A request that an engine answers.
pub trait Verb: Serialize + DeserializeOwned + Send + 'static {
    /// Where it is posted to.
    const ROUTE: &'static str;
    /// Its reply.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// The request in its exact form, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    fn checked(self) -> Result<Self> {
        Ok(self)
    }
    /// The pools and datasets that it changes, which belongs into their history.
    fn changes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether it is kept before it is done, since nobody can afterwards.
    const ENDS: bool = false;
    /// Whether pools come into being by it.
    const MAKES: bool = false;
    /// Has the engine do it.
    ///
    /// # Errors
    /// The engine's.
    fn run(self, engine: &dyn Engine) -> Result<Self::Reply>;
}

/// Has the engine do what was asked, and keeps it in the history of the pools that it changed.
///
/// # Errors
/// The engine's; then nothing is kept.
pub fn run<V: Verb>(request: V, engine: &dyn Engine, command: &Command) -> Result<V::Reply> {
    let mut changed: Vec<String> = request.changes();
    changed.sort_by_key(|name| pool_of(name).to_owned());
    changed.dedup_by_key(|name| pool_of(name).to_owned());
    let keep = |changed: &[String]| changed.iter().for_each(|name| engine.keep_command(name, command));
    if V::ENDS {
        keep(&changed);
        return request.run(engine);
    }
    let before = if V::MAKES { engine.pools() } else { Vec::new() };
    let reply = request.run(engine)?;
    if V::MAKES {
        changed.extend(engine.pools().into_iter().filter(|name| !before.contains(name)));
    }
    keep(&changed);
    Ok(reply)
}

/// Is shown every verb; the daemon's router is one.
pub trait Visitor {
    /// Takes note of one.
    fn verb<V: Verb>(&mut self);
}

/// Names in a request.
trait Names {
    fn names(&self) -> Vec<String>;
}

impl Names for String {
    fn names(&self) -> Vec<String> {
        vec![self.clone()]
    }
}

impl Names for Vec<String> {
    fn names(&self) -> Vec<String> {
        self.clone()
    }
}

/// `changes(field)` names the field of the request that tells what it changes, `unless(field)` that it is only a
/// rehearsal; `makes` and `ends` are for pools that are not there before, or after.
macro_rules! verbs {
    ($($request:path, $method:ident, $route:literal
        $(changes($changed:ident $(unless $rehearsal:ident)?))? $(makes $makes:literal)? $(ends $ends:literal)?
        => $reply:ty $(, $checked:ident)?;)*) => {
        $(impl Verb for $request {
            const ROUTE: &'static str = $route;
            $(const MAKES: bool = $makes;)?
            $(const ENDS: bool = $ends;)?
            type Reply = $reply;
            $(fn changes(&self) -> Vec<String> {
                $(if self.$rehearsal { return Vec::new(); })?
                self.$changed.names()
            })?
            $(fn checked(self) -> Result<Self> { self.$checked() })?
            fn run(self, engine: &dyn Engine) -> Result<$reply> { engine.$method(self) }
        })*

        /// Shows every verb to `visitor`.
        pub fn visit(visitor: &mut impl Visitor) {
            $(visitor.verb::<$request>();)*
        }
    };
}

verbs! {
    pool::Create, pool_create, "/v1/pool/create" makes true => pool::Created, checked;
    pool::Destroy, pool_destroy, "/v1/pool/destroy" => pool::PoolDestroyed;
    pool::Status, pool_status, "/v1/pool/status" => pool::Statuses;
    Iostat, pool_iostat, "/v1/pool/iostat" => pool::Statuses;
    Cache, pool_cache, "/v1/pool/cache" => Caches;
    pool::Get, pool_get, "/v1/pool/get" => Items;
    pool::Set, pool_set, "/v1/pool/set" changes(name) => Done, checked;
    pool::Importable, pool_importable, "/v1/pool/importable" => pool::ImportablePools;
    pool::Import, pool_import, "/v1/pool/import" makes true => pool::Imported, checked;
    pool::Export, pool_export, "/v1/pool/export" changes(name) ends true => pool::Exported;
    pool::Sync, pool_sync, "/v1/pool/sync" => Done;
    pool::Wait, pool_wait, "/v1/pool/wait" => Done;
    Trace, pool_trace, "/v1/pool/trace" changes(names) => Done;
    ShowFolders, pool_folders, "/v1/pool/folders" => FolderLists;
    Events, pool_events, "/v1/pool/events" => EventLists;
    History, pool_history, "/v1/pool/history" => Histories;
    Offline, pool_offline, "/v1/pool/offline" changes(name) => Done;
    Online, pool_online, "/v1/pool/online" changes(name) => Told;
    Clear, pool_clear, "/v1/pool/clear" changes(name) => Done;
    Reshape, pool_reshape, "/v1/pool/reshape" changes(name unless dry_run) => Reshaped, checked;
    Scrub, pool_scrub, "/v1/pool/scrub" changes(names) => Done;
    Trim, pool_trim, "/v1/pool/trim" changes(name) => Done;
    Rebalance, pool_rebalance, "/v1/pool/rebalance" changes(name unless dry_run) => Rebalanced;
    Split, pool_split, "/v1/pool/split" changes(name unless dry_run) => Parted;
    Reguid, pool_reguid, "/v1/pool/reguid" changes(name) => Done;
    Resilver, pool_resilver, "/v1/pool/resilver" changes(names) => Done;
    RebuildIndex, pool_rebuild_index, "/v1/pool/rebuild-index" changes(names) => Done;
    fs::Create, fs_create, "/v1/fs/create" changes(name unless dry_run) => fs::Created, checked;
    fs::Destroy, fs_destroy, "/v1/fs/destroy" changes(name unless dry_run) => fs::Destroyed;
    fs::Rename, fs_rename, "/v1/fs/rename" changes(from) => Done, checked;
    Snapshot, fs_snapshot, "/v1/fs/snapshot" changes(names) => Taken, checked;
    DestroySnapshots, fs_destroy_snapshots, "/v1/fs/destroy-snapshots" changes(name unless dry_run)
        => fs::Destroyed, checked;
    Bookmark, fs_bookmark, "/v1/fs/bookmark" changes(name) => Done, checked;
    DestroyBookmark, fs_destroy_bookmark, "/v1/fs/destroy-bookmark" changes(name) => Done, checked;
    Undestroy, fs_undestroy, "/v1/fs/undestroy" changes(name) => Restored, checked;
    Trash, fs_trash, "/v1/fs/trash" => TrashList;
    EmptyTrash, fs_empty_trash, "/v1/fs/empty-trash" changes(name) => TrashList;
    MakeClone, fs_clone, "/v1/fs/clone" changes(name) => fs::Created, checked;
    Promote, fs_promote, "/v1/fs/promote" changes(name) => Done;
    Rollback, fs_rollback, "/v1/fs/rollback" changes(name) => RolledBack, checked;
    RenameSnapshot, fs_rename_snapshot, "/v1/fs/rename-snapshot" changes(from) => Done, checked;
    Hold, fs_hold, "/v1/fs/hold" changes(names) => Done, checked;
    Release, fs_release, "/v1/fs/release" changes(names) => Done, checked;
    Holds, fs_holds, "/v1/fs/holds" => Held, checked;
    stream::Abort, fs_abort_receive, "/v1/fs/abort-receive" changes(name) => Done;
    StartPass, fs_start_pass, "/v1/fs/start-pass" changes(names unless dry_run) => PassList, checked;
    StopPass, fs_stop_pass, "/v1/fs/stop-pass" changes(names) => PassList;
    ShowPasses, fs_passes, "/v1/fs/passes" => PassList;
    Space, fs_space, "/v1/fs/space" => Spaces, checked;
    fs::Get, fs_get, "/v1/fs/get" => Items;
    fs::Set, fs_set, "/v1/fs/set" changes(names) => Done, checked;
    fs::Inherit, fs_inherit, "/v1/fs/inherit" changes(names) => Done, checked;
    policy::Show, policy_show, "/v1/policy/show" => policy::Policies, checked;
    policy::Run, policy_run, "/v1/policy/run" changes(names unless dry_run) => policy::Ran, checked;
    fs::Mount, fs_mount, "/v1/fs/mount" => fs::Mounted;
    fs::Unmount, fs_unmount, "/v1/fs/unmount" => fs::Mounted;
    Extents, file_extents, "/v1/file/extents" => FileExtents;
    Versions, file_versions, "/v1/file/versions" => FileVersions;
    CloneFile, file_clone, "/v1/file/clone" => Cloned;
}
