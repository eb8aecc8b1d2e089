//! Advice: what compression, deduplication and record sizes would gain, before anything is stored.
//!
//! [`advise`] looks at files on any file system. [`scan`] says what is read, [`sample`] how memory stays bounded,
//! [`unseen`] what follows from a part of it, [`report`] what is told, [`verdict`] what to do. Records are cut and
//! compressed by Larder's own code, and what counts as saved is what a pool would save. No printing, and neither
//! clocks nor threads but those that are handed in.

mod estimate;
mod figures;
mod gain;
mod jobs;
mod kind;
mod prints;
mod read;
mod report;
mod sample;
mod scan;
mod unseen;
mod verdict;
mod walk;

pub use estimate::{Estimate, KNOWN};
pub use figures::{CodecReport, DedupReport, FolderReport, Report, Verdict, percent, size};
pub use gain::{CODECS, stored};
pub use kind::Kind;
pub use prints::{SCHEMES, Scheme};
pub use sample::{ENTRY_BYTES, Sample, Seen};
pub use scan::table_memory;

use larder_device::{Clock, Workers};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// The least bytes of memory that it works in.
pub const LEAST_MEMORY: usize = 64 << 20;

/// That which to look at, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Files and folders.
    pub paths: Vec<PathBuf>,
    /// Read everything.
    pub exact: bool,
    /// Bytes of memory for what is remembered; [`LEAST_MEMORY`] at least.
    pub memory: usize,
    /// Go into other file systems that are mounted below.
    pub cross: bool,
    /// Steps down to which folders are told apart.
    pub depth: u32,
    /// That which is no larger is read whole, bytes.
    pub whole_below: u64,
    /// The largest part that is read of what is large; see [`Options::whole_below`].
    pub rate: f64,
    /// Length of a cell, bytes, a power of two from 4 KiB to 1 MiB; 0 to choose by size.
    pub cell: u64,
    /// Records that are compressed.
    pub draws: u64,
    /// Which sample is taken.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            exact: false,
            memory: 256 << 20,
            cross: false,
            depth: 3,
            whole_below: 5 << 30,
            rate: 0.05,
            cell: 0,
            draws: 1000,
            seed: 1,
        }
    }
}

/// Is told how far it is, and says when to stop; from several threads.
pub trait Watch: Sync {
    /// So many more files and bytes were counted.
    fn counted(&self, files: u64, bytes: u64);
    /// The count is over; about so many bytes will be read, a part of all if `sampled`.
    fn planned(&self, bytes: u64, sampled: bool);
    /// So many more bytes were read.
    fn read(&self, bytes: u64);
    /// Whether to end with what is known.
    fn stopped(&self) -> bool;
}

/// Nobody watches.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn counted(&self, _: u64, _: u64) {}
    fn planned(&self, _: u64, _: bool) {}
    fn read(&self, _: u64) {}
    fn stopped(&self) -> bool {
        false
    }
}

/// No advice.
#[derive(Debug, Error)]
pub enum AdviseError {
    /// A path that was named cannot be looked at.
    #[error("cannot look at '{}': {error}", path.display())]
    Path {
        /// As it was named.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// Looks at files and says what would be gained. What cannot be read below the paths is told in the report.
///
/// # Errors
/// When one of the paths cannot be looked at.
pub fn advise(
    options: &Options,
    clock: &dyn Clock,
    workers: &dyn Workers,
    watch: &dyn Watch,
) -> Result<Report, AdviseError> {
    let began = clock.monotonic();
    let mut roots = Vec::new();
    for path in &options.paths {
        let root = path.canonicalize().map_err(|error| AdviseError::Path { path: path.clone(), error })?;
        roots.push(root);
    }
    roots.sort();
    // That which lies inside another is looked at with that one.
    let mut outer: Vec<PathBuf> = Vec::new();
    for root in roots {
        if !outer.iter().any(|above| root.starts_with(above)) {
            outer.push(root);
        }
    }
    let options = Options { memory: options.memory.max(LEAST_MEMORY), ..options.clone() };
    let scan = scan::scan(&outer, &options, clock, workers, watch);
    let seconds = (clock.monotonic() - began).as_secs_f64();
    let exact = options.exact || scan.p >= 1.0;
    Ok(report::report(scan, outer, exact, options.depth, seconds))
}
