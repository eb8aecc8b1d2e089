//! Events, passed to a sink that keeps them: the store has no tables of its own.

use larder_format::{DatasetId, DeviceGuid};
use std::fmt;

/// Sink of events. Cheap; it may be called from anywhere, with any lock held.
pub trait EventSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: Event);
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The pool was made.
    PoolCreate,
    /// The pool was imported.
    PoolImport,
    /// The pool is being exported.
    PoolExport,
    /// Writes were refused because there is no room.
    PoolFull,
    /// The pool stopped writing.
    PoolSuspend,
    /// It goes on writing.
    PoolResume,
    /// A thread that served a mount has ended.
    MountThread,
    /// Requests of a device failed.
    Io,
    /// A device gave bytes that are not what was written to it.
    Checksum,
    /// Something could neither be read nor rebuilt.
    Data,
    /// Wrong data on a device was rewritten.
    Healed,
    /// A device takes much longer than others.
    Delay,
    /// A slot is not used any more, since its device refused a write to it.
    SlotRetired,
    /// A device's state changed.
    StateChange,
    /// A device came to the store.
    DeviceAdd,
    /// A device left the store.
    DeviceRemove,
    /// A device took the place of another.
    DeviceReplace,
    /// A device is larger than it was, and all of it is used.
    DeviceExpand,
    /// A spare stepped in.
    SpareUsed,
    /// A scrub began.
    ScrubStart,
    /// A scrub ended.
    ScrubFinish,
    /// A resilver began.
    ResilverStart,
    /// A resilver ended.
    ResilverFinish,
    /// A trim of a device began, or goes on.
    TrimStart,
    /// It ended.
    TrimFinish,
    /// Duplicates among what is stored are looked for.
    DedupStart,
    /// They are not any more.
    DedupFinish,
    /// Records are stored anew as their dataset's properties say.
    RewriteStart,
    /// They are not any more.
    RewriteFinish,
    /// Live files begin to get blocks of their own.
    UndedupStart,
    /// That ended.
    UndedupFinish,
    /// Live files begin to be cut into records as their dataset's properties say.
    RecordsStart,
    /// That ended.
    RecordsFinish,
    /// A collection began.
    TraceStart,
    /// A collection ended.
    TraceFinish,
    /// Snapshots could not be taken or destroyed by their policy.
    SnapshotPolicy,
}

impl Class {
    /// Whether repetitions are counted instead of told.
    pub fn is_counted(self) -> bool {
        matches!(self, Self::PoolFull | Self::Io | Self::Checksum | Self::Data | Self::Healed | Self::Delay)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PoolCreate => "pool_create",
            Self::PoolImport => "pool_import",
            Self::PoolExport => "pool_export",
            Self::PoolFull => "pool_full",
            Self::PoolSuspend => "pool_suspend",
            Self::PoolResume => "pool_resume",
            Self::MountThread => "mount_thread",
            Self::Io => "io",
            Self::Checksum => "checksum",
            Self::Data => "data",
            Self::Healed => "healed",
            Self::Delay => "delay",
            Self::SlotRetired => "slot_retired",
            Self::StateChange => "statechange",
            Self::DeviceAdd => "device_add",
            Self::DeviceRemove => "device_remove",
            Self::DeviceReplace => "device_replace",
            Self::DeviceExpand => "device_expand",
            Self::SpareUsed => "spare_used",
            Self::ScrubStart => "scrub_start",
            Self::ScrubFinish => "scrub_finish",
            Self::ResilverStart => "resilver_start",
            Self::ResilverFinish => "resilver_finish",
            Self::TrimStart => "trim_start",
            Self::TrimFinish => "trim_finish",
            Self::DedupStart => "dedup_start",
            Self::DedupFinish => "dedup_finish",
            Self::RewriteStart => "rewrite_start",
            Self::RewriteFinish => "rewrite_finish",
            Self::UndedupStart => "undedup_start",
            Self::UndedupFinish => "undedup_finish",
            Self::RecordsStart => "records_start",
            Self::RecordsFinish => "records_finish",
            Self::TraceStart => "trace_start",
            Self::TraceFinish => "trace_finish",
            Self::SnapshotPolicy => "snapshot_policy",
        })
    }
}

/// Something to be told; see [`crate::Store::event`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub class: Class,
    /// The device, and its name for people.
    pub device: Option<(DeviceGuid, String)>,
    /// The file, by dataset and inode.
    pub file: Option<(DatasetId, u64)>,
    /// Further text.
    pub text: String,
    /// Number of times.
    pub count: u64,
}

impl Event {
    /// An event about the store.
    pub fn new(class: Class) -> Self {
        Self { class, device: None, file: None, text: String::new(), count: 1 }
    }
    /// About this device, known by this name.
    #[must_use]
    pub fn device(self, guid: DeviceGuid, name: String) -> Self {
        Self { device: Some((guid, name)), ..self }
    }
    /// About a file.
    #[must_use]
    pub fn file(self, dataset: DatasetId, inode: u64) -> Self {
        Self { file: Some((dataset, inode)), ..self }
    }
    /// With something more to say.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        Self { text: text.into(), ..self }
    }
    /// Sets the number of times.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self { count, ..self }
    }
}
