//! The report of a run.

use crate::hashfile::Fixed;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Reasons why what could have been shared was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The file changed since it was read, or while the kernel compared.
    Changed,
    /// It was in use in a way that does not allow it.
    Busy,
    /// The kernel does not let this user do it.
    Denied,
    /// It is in a read-only snapshot, or on a read-only mount.
    ReadOnly,
    /// There was no space for the metadata.
    NoSpace,
    /// The file system refuses these two files.
    Refused,
    /// The device failed.
    Failed,
}

impl Reason {
    /// By what the kernel said.
    pub fn of(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::STALE | Errno::LOOP | Errno::NOTDIR => Self::Changed,
            Errno::TXTBSY | Errno::BUSY | Errno::AGAIN => Self::Busy,
            Errno::PERM | Errno::ACCESS => Self::Denied,
            Errno::ROFS => Self::ReadOnly,
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            Errno::INVAL | Errno::OPNOTSUPP | Errno::XDEV => Self::Refused,
            _ => Self::Failed,
        }
    }

    /// A word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Busy => "busy",
            Self::Denied => "denied",
            Self::ReadOnly => "read_only",
            Self::NoSpace => "no_space",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// An amount of files or bytes, and a file that it is so with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Case {
    /// The amount.
    pub amount: u64,
    /// The first.
    pub first: Vec<u8>,
}

impl Case {
    pub(crate) fn add(&mut self, amount: u64, path: &[u8]) {
        if self.first.is_empty() {
            path.clone_into(&mut self.first);
        }
        self.amount += amount;
    }
}

/// The report of a run on one file system. Lengths in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that were found, and their length.
    pub files: u64,
    /// Length of those files.
    pub bytes: u64,
    /// Files that were read, since they are new or have changed.
    pub read_files: u64,
    /// Bytes that were read.
    pub read: u64,
    /// More names of files that had been found.
    pub links: u64,
    /// Files that are forgotten, since they are gone.
    pub forgotten: u64,
    /// Mounts that were not entered.
    pub mounts: u64,
    /// Read-only snapshots that were not entered.
    pub snapshots: u64,
    /// Files where nobody can write, whose blocks are left as they are.
    pub read_only: Case,
    /// Length of holes, and of what is reserved and not written.
    pub holes: u64,
    /// Files whose blocks are left as they are, by reason.
    pub fixed: BTreeMap<Fixed, Case>,
    /// Files and folders that could not be read, and the first of them with the reason.
    pub unreadable: u64,
    /// The first of those.
    pub first_unreadable: Option<(Vec<u8>, Errno)>,
    /// Files that changed while they were read: the next run reads them.
    pub restless: u64,
    /// Bytes that are there more than once, or zeros, by their hashes.
    pub found: u64,
    /// Bytes that are there more than once in short pieces only, and were let be.
    pub short: u64,
    /// Of what was found, what was shared already.
    pub already: u64,
    /// Of that, what is (or would be) shared.
    pub shared: u64,
    /// Of that, zeros that became (or would become) holes.
    pub zeros: u64,
    /// Files of which something was (or would be) shared.
    pub shared_files: u64,
    /// Of that, what was not shared, by reason.
    pub unshared: BTreeMap<Reason, Case>,
    /// Free space of the file system before, after sync.
    pub free_before: u64,
    /// And after.
    pub free_after: u64,
    /// The hash file.
    pub hash_file: PathBuf,
    /// Its bytes.
    pub hash_file_bytes: u64,
    /// Blocks in it: of those files that were found.
    pub blocks: u64,
    /// Whether it was stopped before the end.
    pub is_stopped: bool,
}

impl Report {
    /// Whether all could be read and shared that was to be, but for what changed meanwhile.
    pub fn is_whole(&self) -> bool {
        self.unreadable == 0 && self.unshared.keys().all(|reason| *reason == Reason::Changed)
    }

    /// Adds what another part of the run shared.
    pub(crate) fn add_shared(&mut self, other: &Self) {
        self.found += other.found;
        self.already += other.already;
        self.holes += other.holes;
        self.shared += other.shared;
        self.zeros += other.zeros;
        self.shared_files += other.shared_files;
        for (reason, case) in &other.unshared {
            self.unshared.entry(*reason).or_default().add(case.amount, &case.first);
        }
    }
}
