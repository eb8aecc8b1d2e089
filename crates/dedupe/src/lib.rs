//! Duplicates on XFS and btrfs, shared in place: what `larder dedupe` does on file systems that are not Larder's.
//!
//! A run [`walk`]s, reads what is new or has changed ([`scan`], [`wanted`], [`items`]), keeps hashes of it in a file
//! ([`hashfile`]), finds which ranges are the same ([`plan`], [`sort`]), and has the kernel compare and share them
//! ([`apply`], FIDEDUPERANGE). Everything that is not a call of the kernel is decided upon hashes, and may be out of
//! date or wrong: the kernel shares only what is the same while it looks. So no file ever changes, whatever
//! else happens to it, and a run that is killed anywhere leaves nothing but less work for the next.
//!
//! Memory: [`Settings::memory`] for sorting and the database's cache, a buffer a thread, and some 14 bytes a file.

mod apply;
mod error;
mod hashfile;
mod items;
mod kernel;
mod plan;
mod report;
mod run;
mod scan;
mod sort;
mod walk;
mod wanted;

pub use error::DedupeError;
pub use hashfile::Fixed;
pub use items::Cutting;
pub use report::{Case, Reason, Report};
pub use run::{Place, dedupe, place};

use std::path::PathBuf;

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Share what is found; else only tell.
    pub applies: bool,
    /// Way of cutting.
    pub cutting: Cutting,
    /// Shorter runs of blocks are let be, bytes; but for those up to the end of a file.
    pub least: u64,
    /// Go into mounts below, where they are of the same file system.
    pub crosses_mounts: bool,
    /// Look at what earlier runs have settled, too.
    pub again: bool,
    /// Bytes for sorting and caching.
    pub memory: u64,
    /// Where hashes are kept: with none, in this folder, under the file system's UUID.
    pub hash_file: Option<PathBuf>,
    /// That folder.
    pub cache: PathBuf,
}

/// Parts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Files are found.
    Find,
    /// They are read.
    Read,
    /// Duplicates are being found.
    Plan,
    /// Blocks are compared and shared.
    Share,
}

/// The observer of a run. Called by several threads.
pub trait Watch: Sync {
    /// So many more bytes are done with in that phase, and so many more are to be done.
    fn progress(&self, phase: Phase, done: u64, more: u64);
    /// Whether to stop soon: what is begun is ended, and noted.
    fn is_stopped(&self) -> bool;
}
