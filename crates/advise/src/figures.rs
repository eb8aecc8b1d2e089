//! Figures that are told: of the whole, and of the folders that matter.

use crate::estimate::Estimate;
use crate::kind::Kind;
use serde::{Deserialize, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// As text, whatever bytes are in it: JSON has no others.
fn lossy<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

fn all_lossy<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

fn failures_lossy<S: Serializer>(failures: &[(PathBuf, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(failures.iter().map(|(path, reason)| (path.to_string_lossy(), reason)))
}

/// All that is known.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Paths that were looked at.
    #[serde(serialize_with = "all_lossy")]
    pub paths: Vec<PathBuf>,
    /// Whether everything was to be read.
    pub exact: bool,
    /// Whether the scan came to its end.
    pub complete: bool,
    /// Whether all files were counted; if not, there may be more of everything.
    pub counted: bool,
    /// Bytes read.
    pub read: u64,
    /// Bytes of data there are, without holes.
    pub data: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Number of files and folders that could not be read.
    pub unreadable: u64,
    /// The first of them, with the reason.
    #[serde(serialize_with = "failures_lossy")]
    pub failures: Vec<(PathBuf, String)>,
    /// Further names of files that were counted already.
    pub hard_links: u64,
    /// Sockets, devices and the like.
    pub special: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Other file systems that were left out.
    pub mounts: u64,
    /// Names of files that may have been counted before, for want of memory.
    pub unsure_links: u64,
    /// Whether some folders are not told apart for want of memory.
    pub merged: bool,
    /// The whole first, then folders by the walk.
    pub folders: Vec<FolderReport>,
}

/// Figures of a folder with all below it.
#[derive(Debug, Clone, Serialize)]
pub struct FolderReport {
    /// Its path; empty for several paths together.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Steps below the first.
    pub depth: u32,
    /// Files.
    pub files: u64,
    /// Lengths of files, bytes.
    pub size: u64,
    /// Bytes that are no holes.
    pub data: u64,
    /// Part of those that the scan came to, read or passed by in a sample: less than 1 when it was interrupted.
    pub seen: f64,
    /// Most of it is of this kind.
    pub kind: Kind,
    /// Gain by codec, of records of 128 KiB.
    pub codecs: Vec<CodecReport>,
    /// Part that is in whole copies of files, which clones or hard links would save.
    pub whole_copies: Estimate,
    /// Gain of deduplication by length of records.
    pub dedup: Vec<DedupReport>,
    /// In words, and what to do.
    pub verdict: Verdict,
}

/// That which a codec gains.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CodecReport {
    /// Its name, as the property `compression` has it.
    pub codec: String,
    /// Part of the bytes that it saves.
    pub gain: Estimate,
    /// The same with records of 16 KiB.
    pub gain_16k: Estimate,
    /// The same with records of 4 KiB.
    pub gain_4k: Estimate,
    /// Processor seconds a GiB.
    pub seconds_per_gib: f64,
}

/// That which deduplication gains.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DedupReport {
    /// `recordsize`, bytes.
    pub record: u32,
    /// `chunking`: whether content says where records end.
    pub by_content: bool,
    /// Part of the bytes that it saves. A wide range says little.
    pub gain: Estimate,
    /// Of that, beyond what whole copies are.
    pub beyond: Estimate,
    /// Distinct records.
    pub records: u64,
    /// Bytes of memory that Larder's index would take.
    pub index_memory: u64,
    /// Bytes on disk.
    pub index_disk: u64,
    /// Bytes of memory that a dedup table of ZFS would take.
    pub zfs_memory: u64,
}

impl CodecReport {
    /// The gain with records of a length, bytes; between those that were tried, in proportion to its logarithm.
    pub fn at(&self, record: u32) -> Estimate {
        let order = f64::from(record.max(1)).log2();
        match order {
            _ if order < 14.0 => self.gain_4k.mixed(self.gain_16k, (order - 12.0) / 2.0),
            _ => self.gain_16k.mixed(self.gain, (order - 14.0) / 3.0),
        }
    }
}

impl DedupReport {
    /// The gain beyond whole copies, where its range says something.
    pub fn known(&self) -> Option<Estimate> {
        Some(self.beyond).filter(Estimate::is_known)
    }

    /// Length of records as people name it.
    pub fn name(&self) -> String {
        let size = size(self.record);
        if self.by_content { format!("{size} by content") } else { size }
    }
}

/// A verdict.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verdict {
    /// In words.
    pub text: String,
    /// The codec that pays, where one does.
    pub compression: Option<String>,
    /// Whether deduplication pays; nothing when that is not known.
    pub dedup: Option<bool>,
    /// Properties, as `NAME=VALUE`.
    pub settings: Vec<String>,
    /// Lines to paste.
    pub commands: Vec<String>,
    /// Part of the bytes that following it saves.
    pub saves: f64,
}

/// A record's length as properties have it.
pub fn size(record: u32) -> String {
    if record >= 1 << 20 { format!("{}M", record >> 20) } else { format!("{}K", record >> 10) }
}

/// A part as per cent.
pub fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}
