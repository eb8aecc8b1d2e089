//! `larder fs`: the verbs.

use super::{
    Session, fs_bookmark, fs_clone, fs_create, fs_destroy, fs_diff, fs_hold, fs_list, fs_mount, fs_pass,
    fs_properties, fs_receive, fs_rename, fs_replicate, fs_rollback, fs_send, fs_snapshot, fs_space,
    fs_trash,
};
use crate::api::Result;
use clap::Subcommand;

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Makes a dataset
    Create(fs_create::Args),
    /// Destroys a dataset, or snapshots
    Destroy(fs_destroy::Args),
    /// Brings a destroyed dataset or snapshot back
    Undestroy(fs_trash::Args),
    /// Shows what was destroyed and can be brought back, or lets go of it
    Trash(fs_trash::TrashArgs),
    /// Takes snapshots: datasets as they are now, to be read in DIR/.zfs/snapshot/NAME
    #[command(visible_alias = "snap")]
    Snapshot(fs_snapshot::Args),
    /// Has a dataset hold again what a snapshot holds
    Rollback(fs_rollback::Args),
    /// Makes a dataset that begins as a snapshot, and shares with it what neither changed
    Clone(fs_clone::CloneArgs),
    /// Has a clone take over the snapshots that it was made of
    Promote(fs_clone::PromoteArgs),
    /// Makes a bookmark of a snapshot, to send from when the snapshot is gone
    Bookmark(fs_bookmark::Args),
    /// Tells which files and folders differ between a snapshot and a later one, or what there is now
    Diff(fs_diff::Args),
    /// Sends a snapshot, or what came since an earlier one, to standard output
    Send(fs_send::Args),
    /// Receives what was sent, from standard input
    #[command(visible_alias = "recv")]
    Receive(fs_receive::Args),
    /// Keeps a dataset like another: sends the snapshots that it lacks, here or by ssh
    Replicate(fs_replicate::Args),
    /// Tells how much space the snapshots of a dataset hold, alone and together
    Space(fs_space::Args),
    /// Places a hold on snapshots: while there is one, they cannot be destroyed
    #[command(after_help = "Example: larder fs hold -r offsite-backup tank@monday")]
    Hold(fs_hold::Change),
    /// Lets go of a hold; a snapshot that was to be destroyed (destroy -d) is, with the last one
    Release(fs_hold::Change),
    /// Shows the holds on snapshots
    Holds(fs_hold::Show),
    /// Renames a dataset within its pool, or a snapshot
    Rename(fs_rename::Args),
    /// Lists datasets and snapshots with their space and mount points
    #[command(after_help = "Example: larder fs list -r -o name,used,compressratio -S used tank
         larder fs list -t snapshot -o name,creation,used tank/home")]
    List(fs_list::Args),
    /// Shows properties of datasets and snapshots, and where their values come from
    #[command(after_help = "Example: larder fs get -r -s local all tank")]
    Get(fs_properties::Get),
    /// Sets properties of datasets, or user properties of snapshots
    #[command(after_help = "Example: larder fs set compression=zstd-6 recordsize=1M tank/media")]
    Set(fs_properties::Set),
    /// Takes a property's own value away, so that the parent's holds
    #[command(after_help = "Example: larder fs inherit -r compression tank/media")]
    Inherit(fs_properties::Inherit),
    /// Finds what is stored twice, in files and snapshots, and shares it
    Dedup(fs_pass::Args),
    /// The way back from deduplication: gives files blocks of their own
    Undedup(fs_pass::UndedupArgs),
    /// Stores what is there with another codec or checksum, snapshots included
    Rewrite(fs_pass::RewriteArgs),
    /// Mounts a dataset or a snapshot, or all datasets; without arguments, shows what is mounted
    Mount(fs_mount::MountArgs),
    /// Unmounts a dataset or a snapshot, or all
    #[command(visible_alias = "umount")]
    Unmount(fs_mount::UnmountArgs),
}

/// Runs a verb.
pub fn run(verb: Verb, session: &Session) -> Result<u8> {
    match verb {
        Verb::Create(args) => fs_create::run(args, session),
        Verb::Destroy(args) => fs_destroy::run(args, session),
        Verb::Undestroy(args) => fs_trash::undestroy(args, session),
        Verb::Trash(args) => fs_trash::trash(args, session),
        Verb::Snapshot(args) => fs_snapshot::run(args, session),
        Verb::Rollback(args) => fs_rollback::run(args, session),
        Verb::Clone(args) => fs_clone::clone(args, session),
        Verb::Promote(args) => fs_clone::promote(args, session),
        Verb::Bookmark(args) => fs_bookmark::run(args, session),
        Verb::Space(args) => fs_space::run(args, session),
        Verb::Diff(args) => fs_diff::run(args, session),
        Verb::Send(args) => fs_send::run(args, session),
        Verb::Receive(args) => fs_receive::run(args, session),
        Verb::Replicate(args) => fs_replicate::run(&args, session),
        Verb::Hold(args) => fs_hold::hold(args, session),
        Verb::Release(args) => fs_hold::release(args, session),
        Verb::Holds(args) => fs_hold::holds(args, session),
        Verb::Rename(args) => fs_rename::run(args, session),
        Verb::List(args) => fs_list::run(args, session),
        Verb::Get(args) => fs_properties::get(args, session),
        Verb::Set(args) => fs_properties::set(args, session),
        Verb::Inherit(args) => fs_properties::inherit(args, session),
        Verb::Dedup(args) => fs_pass::dedup(args, session),
        Verb::Undedup(args) => fs_pass::undedup(args, session),
        Verb::Rewrite(args) => fs_pass::rewrite(args, session),
        Verb::Mount(args) => fs_mount::mount(args, session),
        Verb::Unmount(args) => fs_mount::unmount(args, session),
    }
}
