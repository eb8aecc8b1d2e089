//! Requests and replies of `larder pool`.

use super::dedup::DedupStatus;
use super::figures::Waits;
use super::trace::TraceStatus;
use super::{ApiError, Properties, Result, fs, name, repair};
use larder_format::label::{GroupRule, MIN_DEVICE};
use larder_format::segment::MAX_COLUMNS;
use larder_pool::property;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a group keeps its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// One device, no redundancy.
    Single,
    /// Copies on every device.
    Mirror,
    /// One parity column.
    Raidz1,
    /// Two parity columns.
    Raidz2,
    /// Three parity columns.
    Raidz3,
    /// A stripe of two-way mirrors.
    Raid10,
    /// Mirrored columns and one parity column over them.
    Raid14,
}

impl Word {
    /// The word as people type it; `raidz` is `raidz1`.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "mirror" => Self::Mirror,
            "raidz" | "raidz1" => Self::Raidz1,
            "raidz2" => Self::Raidz2,
            "raidz3" => Self::Raidz3,
            "raid10" => Self::Raid10,
            "raid14" => Self::Raid14,
            _ => return None,
        })
    }

    /// The least number of devices.
    pub fn least(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Mirror | Self::Raidz1 => 2,
            Self::Raidz2 => 3,
            Self::Raidz3 | Self::Raid10 => 4,
            Self::Raid14 => 5,
        }
    }

    /// The rule of a group of `devices` devices, when that many make one.
    pub fn rule(self, devices: usize) -> Option<GroupRule> {
        larder_pool::create::rule_for(&self.to_string(), devices).ok()
    }

    /// The most devices that make a group: what the format allows of columns, and of data under parity.
    fn most(self) -> usize {
        (self.least()..=MAX_COLUMNS).rev().find(|&count| self.rule(count).is_some()).unwrap_or(self.least())
    }

    /// How many devices it takes, for people.
    fn takes(self) -> String {
        let parity = match self {
            Self::Raid10 => "an even number of devices, ",
            Self::Raid14 => "an odd number of devices (mirrored pairs and one for parity), ",
            _ => "",
        };
        let size = property::format_size(MIN_DEVICE);
        let plural = if self.least() == 1 { "device" } else { "devices" };
        format!("{parity}at least {} {plural} of {size} or more each", self.least())
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Mirror => "mirror",
            Self::Raidz1 => "raidz1",
            Self::Raidz2 => "raidz2",
            Self::Raidz3 => "raidz3",
            Self::Raid10 => "raid10",
            Self::Raid14 => "raid14",
        })
    }
}

/// A group that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// How it keeps its data.
    pub word: Word,
    /// Absolute paths of its devices: block devices or files.
    pub devices: Vec<String>,
}

/// Makes a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Its name.
    pub name: String,
    /// Its groups.
    pub groups: Vec<Group>,
    /// Absolute paths of its spares.
    pub spares: Vec<String>,
    /// Its own properties: `ashift`, `memory`, `comment`, …
    pub properties: Properties,
    /// The properties of its top dataset; `mountpoint` is made when missing.
    pub fs_properties: Properties,
    /// An absolute path that all of its mount points are below, until it is exported.
    #[serde(default)]
    pub altroot: Option<String>,
    /// Only tell. Devices are looked at, nothing is written.
    pub dry_run: bool,
}

/// What a new pool is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// Its name.
    pub name: String,
    /// Its groups.
    pub groups: Vec<Group>,
    /// Its spares.
    pub spares: Vec<String>,
    /// Bytes of all devices together.
    pub size: u64,
    /// Bytes that files can take, before compression.
    pub usable: u64,
    /// How many losses are survived whichever devices they hit.
    pub survives: u32,
    /// Where its top dataset is mounted, if it is.
    pub mountpoint: Option<String>,
}

/// Destroys a pool: its data is gone, its devices are free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destroy {
    /// Its name.
    pub name: String,
}

/// Reads the whole state of pools; what `status`, `list -v` and `check` show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which pools; empty for all.
    pub names: Vec<String>,
}

/// Pools in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statuses {
    /// One for each.
    pub pools: Vec<PoolStatus>,
}

/// The state of a pool, group or device; the words of zpool(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// All is well.
    Online,
    /// Redundancy is reduced; everything can be read and written.
    Degraded,
    /// Too much is wrong to go on.
    Faulted,
    /// Taken out by a person.
    Offline,
    /// It was there and is gone.
    Removed,
    /// It cannot be opened.
    Unavail,
    /// Writes fail: the pool waits for its devices.
    Suspended,
    /// A spare that waits.
    Avail,
    /// A spare that stands in for another device.
    InUse,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Online => "ONLINE",
            Self::Degraded => "DEGRADED",
            Self::Faulted => "FAULTED",
            Self::Offline => "OFFLINE",
            Self::Removed => "REMOVED",
            Self::Unavail => "UNAVAIL",
            Self::Suspended => "SUSPENDED",
            Self::Avail => "AVAIL",
            Self::InUse => "INUSE",
        })
    }
}

/// The whole state of a pool: text, JSON, metrics and the dashboard are views of this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its state, space, errors and traffic all together; `path` is nothing, children are the groups.
    pub root: Vdev,
    /// The newest durable commit.
    pub commit: u64,
    /// What is wrong, in a sentence.
    pub status: Option<String>,
    /// What to do about it: a command to paste.
    pub action: Option<String>,
    /// Where to read on.
    pub see: Option<String>,
    /// Scrubs and resilvers that are under way; else the newest of each, the newest first.
    pub scans: Vec<Scan>,
    /// Devices that stand in for those that are lost.
    pub spares: Vec<Vdev>,
    /// Bytes that deleted files and destroyed datasets still hold.
    pub freeing: u64,
    /// Bytes that the cleaner moved since import.
    pub cleaned: u64,
    /// Bytes written for each byte stored since import, percent.
    pub write_amplification: u64,
    /// The newest trace, when there was one.
    pub trace: Option<TraceStatus>,
    /// The dedup index, when there is one.
    pub dedup: Option<DedupStatus>,
    /// Bytes, one copy of them, that still have to move since groups changed their shape.
    pub reshaping: u64,
    /// How many more losses are survived whichever devices they hit.
    pub survives: u32,
    /// Files (or `dataset:inode`) with data that could not be healed.
    pub damaged: Vec<String>,
    /// Nanoseconds that the pool had been imported when this was read, by a clock that never goes back.
    pub uptime_ns: u64,
}

/// A pool's root, a group or a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vdev {
    /// `tank`, `raidz2-0`, or a device's path.
    pub name: String,
    /// `root`, `mirror`, `raidz2`, `disk`, `file`.
    pub kind: String,
    /// Names it for ever; 0 for groups.
    pub guid: u64,
    /// A device's number in the pool.
    pub index: Option<u32>,
    /// The device's path, or where it was last seen.
    pub path: Option<String>,
    /// Its state.
    pub state: State,
    /// What else there is to say: `was /dev/sdb`, `resilvering`.
    pub note: Option<String>,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Blocks that were not what had been written.
    pub checksum_errors: u64,
    /// Bytes it can hold, parity and copies included.
    pub size: u64,
    /// Bytes of these that are taken.
    pub allocated: u64,
    /// Per cent of the free space that lies in segments in use.
    pub fragmentation: u8,
    /// What has been read and written since import.
    pub io: Io,
    /// How long requests took since import; told only when [`super::figures::Iostat`] asks.
    pub waits: Waits,
    /// How its last trim stands; nothing of groups, spares and what is not in use.
    pub trim: Option<Trim>,
    /// What it is made of.
    pub children: Vec<Vdev>,
}

/// How the trim of a device stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrimState {
    /// Nobody asked for it, or it was cancelled.
    Untrimmed,
    /// It goes on.
    Active,
    /// It waits until it is started again.
    Suspended,
    /// It went through all that was free.
    Complete,
    /// The device does not support it.
    Unsupported,
}

/// The last trim of a device that somebody asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trim {
    /// How it stands.
    pub state: TrimState,
    /// When it began; of one that is complete, when it ended. Seconds since 1970.
    pub time: Option<i64>,
    /// Bytes trimmed.
    pub trimmed: u64,
    /// Bytes to be trimmed, estimated.
    pub total: u64,
}

/// Counters since import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// What a scan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanKind {
    /// Verifies everything.
    Scrub,
    /// Rebuilds what a device has missed.
    Resilver,
}

/// A scrub or resilver, running or done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// What it is for.
    pub kind: ScanKind,
    /// Seconds since 1970.
    pub started: i64,
    /// Seconds since 1970; nothing while it runs.
    pub finished: Option<i64>,
    /// Since when it has been standing still because somebody wants it to.
    pub paused: Option<i64>,
    /// It was stopped before its end.
    pub canceled: bool,
    /// Bytes to look at.
    pub total: u64,
    /// Bytes looked at.
    pub examined: u64,
    /// Bytes healed or rebuilt.
    pub repaired: u64,
    /// Blocks that could not be healed.
    pub errors: u64,
    /// Bytes a second over the last stretch; nothing while that cannot be told.
    pub rate: Option<u64>,
    /// Seconds that are left, where the rate tells.
    pub left: Option<u64>,
    /// What it waits for, when it does not move: a resilver, its window.
    pub waits_for: Option<String>,
}

/// Reads properties of pools; what `list` and `get` show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    /// Which pools; empty for all.
    pub names: Vec<String>,
    /// Full names of properties; empty for all.
    pub properties: Vec<String>,
}

/// Sets properties of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set {
    /// The pool.
    pub name: String,
    /// To what.
    pub properties: Properties,
}

/// Looks for pools that can be imported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Importable {
    /// Absolute paths of folders and devices to look at; empty for all block devices and where pools were last seen.
    pub search: Vec<String>,
}

/// Pools that are on devices and not imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportablePools {
    /// One for each; a pool that cannot be imported as it is tells so in `status` and `action`.
    pub pools: Vec<PoolStatus>,
}

/// Imports pools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// Absolute paths of folders and devices to look at; empty as in [`Importable`].
    pub search: Vec<String>,
    /// A name or guid; nothing for all pools that are found.
    pub pool: Option<String>,
    /// A new name for it.
    pub new_name: Option<String>,
    /// Leave its datasets unmounted.
    pub no_mount: bool,
    /// Write nothing at all.
    pub readonly: bool,
    /// A device that waits to replace one that is missing takes its place: what could not be read of that one is lost.
    #[serde(default)]
    pub accept_loss: bool,
    /// Take it from another host that has not exported it and gives no sign of life.
    #[serde(default)]
    pub take_over: bool,
    /// An absolute path that all of its mount points are below, for this import.
    #[serde(default)]
    pub altroot: Option<String>,
    /// Properties to set: `memory`, `comment`, …
    pub properties: Properties,
}

/// What importing came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Names of the pools that are imported now.
    pub names: Vec<String>,
    /// What people should know: devices that are missing, datasets that could not be mounted.
    pub notes: Vec<String>,
    /// What went wrong with other pools.
    pub failed: Vec<ApiError>,
}

/// Exports a pool: unmounts, commits, lets go of the devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Also when it is suspended, and drops what was not committed.
    #[serde(default)]
    pub force: bool,
}

/// Returns when a commit holds all that was written before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// Which pools; empty for all.
    pub names: Vec<String>,
}

/// What [`Wait`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// Freed space can be written again.
    Free,
    /// No scrub is running.
    Scrub,
    /// No resilver is running, and nothing has to move since groups changed their shape.
    Resilver,
    /// No trace is under way.
    Trace,
    /// No device is being trimmed.
    Trim,
}

/// Returns when activities are over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The pool.
    pub name: String,
    /// For what; empty for everything.
    pub activities: Vec<Activity>,
}

fn exact(given: Properties, creating: bool) -> Result<Properties> {
    given.iter().map(|(name, value)| Ok(property::parse_pool(name, value, creating)?)).collect()
}

impl Create {
    /// The request with exact properties, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        name::check_pool(&self.name)?;
        if self.groups.is_empty() {
            return Err(ApiError::usage(format!("cannot create '{}': no devices given", self.name)));
        }
        repair::check_new(&self.groups, self.spares.iter())?;
        Ok(Self {
            properties: exact(self.properties, true)?,
            fs_properties: fs::exact_at_creation(self.fs_properties)?,
            ..self
        })
    }
}

impl Group {
    /// Checks that the number of devices makes such a group.
    ///
    /// # Errors
    /// Usage, telling what the word takes.
    pub fn check(&self) -> Result<()> {
        if self.word.rule(self.devices.len()).is_some() {
            return Ok(());
        }
        let (word, count) = (self.word, self.devices.len());
        if count > word.most() {
            let most = word.most();
            return Err(ApiError::usage(format!("{word} takes at most {most} devices; {count} were given")));
        }
        let given = if count == 1 { "1 was given".to_owned() } else { format!("{count} were given") };
        Err(ApiError::usage(format!("{word} needs {}; {given}", word.takes())))
    }
}

impl Set {
    /// The request with exact properties.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        Ok(Self { properties: exact(self.properties, false)?, ..self })
    }
}

impl Import {
    /// The request with exact properties, when its parts make sense.
    ///
    /// # Errors
    /// Usage, with the reason.
    pub fn checked(self) -> Result<Self> {
        if let Some(name) = &self.new_name {
            name::check_pool(name)?;
            if self.pool.is_none() {
                return Err(ApiError::usage("a new name needs the name or guid of one pool"));
            }
        }
        Ok(Self { properties: exact(self.properties, false)?, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(word: Word, count: usize) -> Group {
        Group { word, devices: (0..count).map(|at| format!("/disk/{at}")).collect() }
    }

    #[test]
    fn a_word_tells_the_least_number_and_size_of_its_devices() {
        let told = |word, count| group(word, count).check().unwrap_err().message;
        assert_eq!(
            told(Word::Raidz2, 2),
            "raidz2 needs at least 3 devices of 64M or more each; 2 were given"
        );
        assert_eq!(told(Word::Mirror, 1), "mirror needs at least 2 devices of 64M or more each; 1 was given");
        assert_eq!(
            told(Word::Raid10, 5),
            "raid10 needs an even number of devices, at least 4 devices of 64M or more each; 5 were given"
        );
        assert_eq!(
            told(Word::Raid14, 4),
            "raid14 needs an odd number of devices (mirrored pairs and one for parity), at least 5 devices of 64M \
             or more each; 4 were given"
        );
        assert_eq!(told(Word::Mirror, 65), "mirror takes at most 64 devices; 65 were given");
        assert_eq!(told(Word::Raidz2, 64), "raidz2 takes at most 63 devices; 64 were given");
    }

    #[test]
    fn one_formula_gives_every_layout() {
        for (word, devices, layout) in [
            (Word::Single, 1, (1, 1, 0)),
            (Word::Mirror, 3, (1, 3, 0)),
            (Word::Raidz1, 2, (1, 1, 1)),
            (Word::Raidz3, 8, (5, 1, 3)),
            (Word::Raid10, 6, (3, 2, 0)),
            (Word::Raid14, 5, (2, 2, 1)),
        ] {
            let rule = word.rule(devices).unwrap();
            assert_eq!((rule.layout.k(), rule.layout.r(), rule.layout.m()), layout, "{word}");
            assert_eq!(rule.name(), word.to_string());
        }
    }
}
