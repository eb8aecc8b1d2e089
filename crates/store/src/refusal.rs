//! Refusals because of the state of a pool and its devices: nothing was changed.
//!
//! The texts state the facts. Advice is added by the user interface, by variant.

use larder_format::{CommitId, DeviceGuid, PoolGuid, Timestamp};
use thiserror::Error;

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Of two pools that say to be the same, one was made to look so.
    #[error(
        "devices of two pools say that they are pool {0}: one of the two was made to look like the other"
    )]
    TwoPools(PoolGuid),
    /// A device that another import wrote.
    #[error(
        "{device} was written apart from the other devices since commit {since}: their histories do not contain each \
         other"
    )]
    WrittenApart {
        /// The device's name.
        device: String,
        /// The first commit that the others do not have.
        since: CommitId,
    },
    /// A device is there twice.
    #[error("{one} and {other} are copies of one device (guid {guid})")]
    Copies {
        /// The name of one.
        one: String,
        /// The name of the other.
        other: String,
        /// Whose copies they are.
        guid: DeviceGuid,
    },
    /// The newest root is damaged on every device, so the pool can only be read as the one before left it.
    #[error(
        "both copies of the root of commit {} are damaged on every device: what was written after commit {before} would \
         be lost",
        before.next()
    )]
    RootDamaged {
        /// The commit whose root is intact.
        before: CommitId,
    },
    /// The pool has features of a newer build, which may only be read by this one.
    #[error("the pool uses features (bits {0:#x}) of a newer build, with which this one may only read it")]
    OnlyReading(u64),
    /// A device of the pool that this build cannot use.
    #[error("{device} is of this pool, and {why}: it may have been written by a newer build")]
    NewerDevice {
        /// The device's name.
        device: String,
        /// Why it cannot be used.
        why: String,
    },
    /// The pool has something of a newer build that this one cannot even read.
    #[error("the pool has {0}, of which this version of Larder knows nothing")]
    Newer(String),
    /// Too few devices are there.
    #[error("{lost} of {all} devices of {pool} are missing or too old, more than its layout survives")]
    TooFewDevices {
        /// Devices that cannot be used.
        lost: usize,
        /// All devices of the pool.
        all: usize,
        /// The pool's name.
        pool: String,
    },
    /// No number is left for anything new.
    #[error("{0} has given out all ids that there are")]
    OutOfIds(String),
    /// Data written before a group had its present shape is on devices that are missing. The text names them.
    #[error("{0}")]
    OutOfReach(String),
    /// As [`Refusal::OutOfReach`], and the pool's metadata is among it.
    #[error("{0}. What says where the rest lies is among it")]
    MapOutOfReach(String),
    /// The log is newer than the newest root that can be read.
    #[error(
        "the intent log goes on from commit {log}, but the newest root that is intact is that of commit {root}: what was \
         committed in between would be lost"
    )]
    LogAhead {
        /// The commit that the log goes on from.
        log: CommitId,
        /// That of the root.
        root: CommitId,
    },
    /// No copy of a place where the log may go on can be read: whether a record is there is not known.
    #[error(
        "{devices} cannot be read where the intent log may go on: what was synced after the last commit may be there, \
         and would be lost"
    )]
    LogUnread {
        /// Names of the devices that have it.
        devices: String,
        /// When the last commit was made.
        since: Timestamp,
        /// They are the log's own: nothing else is on them.
        is_alone: bool,
    },
    /// The pool was exported: others may have it by now.
    #[error("the pool was exported")]
    Exported,
    /// A suspended pool cannot go on.
    #[error(
        "the pool is suspended, and what was written since its last commit cannot be completed any more: {0}. What was \
         committed or synced before is not lost"
    )]
    CannotComplete(String),
    /// A root cannot tell of so many.
    #[error("{count} devices are too many: a pool has at most {most}")]
    TooManyDevices {
        /// Number of devices that the pool would have.
        count: usize,
        /// Limit of that number.
        most: usize,
    },
    /// No number is left for a device.
    #[error("this pool has had 65,534 devices, and numbers for no more")]
    NoDeviceNumbers,
    /// No number is left for a group.
    #[error("this pool has had as many groups as it has numbers for")]
    NoGroupNumbers,
    /// No number is left for a dataset.
    #[error(
        "{0} datasets have been made in this pool, destroyed ones included, and there are no numbers for more"
    )]
    NoDatasetNumbers(u64),
    /// Too little would be left for all that is stored.
    #[error(
        "what is stored takes {} MiB of data, and without it there would be room for {} MiB",
        needed.div_ceil(1 << 20), has >> 20
    )]
    NoRoomFor {
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that there would be.
        has: u64,
    },
    /// A layout would not survive what is out of use already.
    #[error("a {layout} does not survive that these are out of use: {out}")]
    TooManyOut {
        /// The layout.
        layout: String,
        /// Names of the devices.
        out: String,
    },
    /// The last group that has records.
    #[error("{0} is the only group that files can lie on")]
    LastGroup(String),
    /// A change of the group's shape is under way.
    #[error("the group is on its way out of the pool")]
    GroupLeaves,
    /// A spare holds nothing that could be taken out of use.
    #[error("{0} is a spare")]
    Spare(String),
    /// Only this device has what it holds.
    #[error("{0} cannot be taken out of use: its group has no copy of what it holds")]
    Needed(String),
    /// A device that did not answer may still carry out what it was told.
    #[error("{0} hung, and may still do what it was told: it comes back when it can be opened anew")]
    Hung(String),
    /// A device that was taken back into use did not take what it was told.
    #[error("{device} failed again: {why}")]
    FailedAgain {
        /// The device's name.
        device: String,
        /// Its error.
        why: String,
    },
    /// Another device than the one that is missing.
    #[error("{found} is not {wanted}")]
    OtherDevice {
        /// The one that was offered.
        found: String,
        /// The one that is missing.
        wanted: String,
    },
    /// A device that comes back has been part of another import.
    #[error(
        "{device} was written apart from the pool since commit {since}: it can only be part of it as a new device"
    )]
    Branched {
        /// The device's name.
        device: String,
        /// The first commit that the pool does not have.
        since: CommitId,
    },
    /// A device that comes back is smaller than it was.
    #[error("{device} was cut short: it had {had} bytes and has {has}")]
    CutShort {
        /// The device's name.
        device: String,
        /// Bytes that it had.
        had: u64,
        /// Bytes that it has.
        has: u64,
    },
    /// A device that comes back has fewer slots than the pool has on it.
    #[error("{device} {text}")]
    LacksSlots {
        /// The device's name.
        device: String,
        /// Number of slots that it has room for, and that the pool expects.
        text: String,
    },
    /// The device is not there.
    #[error("{0} is not there")]
    NotThere(String),
    /// A device that stands for another, or a spare: nobody can take its place.
    #[error("{0}: it has no place of its own yet that another could take")]
    NoPlace(String),
    /// A device that is out of use, or still gets what it lacks.
    #[error("{0} is not in use, or does not have everything yet")]
    NotWhole(String),
    /// A pool has a group that is no mirror, or the log's.
    #[error("{0}: only a pool of mirrors alone can be split")]
    NoMirror(String),
    /// Data is not on all devices that it should be on.
    #[error("what is stored is still being copied or moved")]
    NotCopied,
    /// The pool was suspended after a change was made and before it was durable.
    #[error("the pool was suspended in the middle of it, which is completed when the pool goes on")]
    Halfway,
    /// A device on its way out.
    #[error("{0} is on its way out: nothing needs its place any more")]
    Leaving(String),
    /// A device that another replaces.
    #[error("{old} is being replaced by {new} already")]
    BeingReplaced {
        /// The device.
        old: String,
        /// The one that takes its place.
        new: String,
    },
    /// The device is too small.
    #[error("{device} is too small: it has {has} bytes and {needed} are needed")]
    TooSmall {
        /// The device's name.
        device: String,
        /// Bytes that it has.
        has: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// There is no loss to accept.
    #[error("no device waits to take the place of {0}")]
    NobodyWaits(String),
    /// The group loses a device.
    #[error("a device is on its way out of this group")]
    GroupShrinks,
    /// A device cannot be detached. The text says why.
    #[error("{device} {why}")]
    CannotDetach {
        /// The device's name.
        device: String,
        /// Why.
        why: String,
    },
    /// The last copy of a part of a group.
    #[error("{0} holds a part of its group that only it has")]
    LastCopy(String),
    /// It is no spare.
    #[error("{0} is not a spare: it holds data")]
    HoldsData(String),
}
