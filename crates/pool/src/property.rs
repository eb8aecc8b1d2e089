//! The one registry of properties: pools' and datasets'.
//!
//! A property's value has one exact form, the one that is stored, sent through the API and shown by
//! `-p`: bytes, seconds since 1970, per cent and guids as decimal numbers, ratios as `1.50`, words in
//! lower case. [`Property::parse`] is the only way from what a person typed to that form;
//! [`Property::display`] is the way to what a person reads. What takes effect where is told by each
//! property's `about`.

use larder_format::run::MAX_PLACES;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// Type of a property's values: how they are typed, checked and shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One of some words.
    Word(&'static [&'static str]),
    /// Bytes, from the first to the second number, a power of two.
    PowerOfTwo(u64, u64),
    /// Bytes, from the first number to the second.
    Bytes(u64, u64),
    /// Bytes that are not to be passed, or to be kept; 0 is `none`.
    Limit,
    /// A plain number, from the first to the second.
    Number(u64, u64),
    /// A plain number up to this, or `none`, which is not 0.
    Count(u64),
    /// Per cent, from the first to the second.
    Percent(u64, u64),
    /// A factor, with two decimals.
    Ratio,
    /// A part of a whole, or more than all of it, up to this; with two decimals.
    Share(u64),
    /// Seconds since 1970-01-01 UTC.
    Time,
    /// An absolute path, `none` or `legacy`.
    MountPoint,
    /// A part of the day ([`Window`]), or `none`.
    Window,
    /// A length of time, in seconds; 0 is `none`.
    Span,
    /// Any text of at most this many bytes.
    Text(usize),
}

/// A part of each day, in minutes after midnight; it may pass midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    from: u16,
    to: u16,
}

impl Window {
    /// Reads `22:00-06:00`; `none`, and what is none, is nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let minute = |text: &str| {
            let (hour, minute) = text.split_once(':')?;
            let two = |text: &str, below: u16| {
                let digits = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse::<u16>().ok().filter(|number| digits && *number < below)
            };
            Some(two(hour, 24)? * 60 + two(minute, 60).filter(|_| minute.len() == 2)?)
        };
        let (from, to) = text.split_once('-')?;
        let (from, to) = (minute(from)?, minute(to)?);
        (from != to).then_some(Self { from, to })
    }

    /// Whether a minute of the day lies in it.
    pub fn holds(self, minute: u16) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let clock = |minute: u16| (minute / 60, minute % 60);
        let ((a, b), (c, d)) = (clock(self.from), clock(self.to));
        write!(f, "{a:02}:{b:02}-{c:02}:{d:02}")
    }
}

/// When a property may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// At any time.
    Set,
    /// Only when the pool or dataset is made.
    SetOnce,
    /// Never: Larder tells it.
    ReadOnly,
}

/// One property of pools or of datasets.
#[derive(Debug, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// Its name as a column of `list`, in lower case; accepted wherever the name is.
    pub column: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// Its value where nothing is set; nothing where it must be computed (see `about`).
    pub default: Option<&'static str>,
    /// Whether datasets below take it over.
    pub inherited: bool,
    /// When it may be set.
    pub access: Access,
    /// Its values, for people.
    pub values: &'static str,
    /// Its meaning, and where it takes effect.
    pub about: &'static str,
}

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PropertyError {
    /// No such property.
    #[error("there is no property '{0}'")]
    Unknown(String),
    /// Larder tells this property; people do not.
    #[error("'{0}' is read-only")]
    ReadOnly(&'static str),
    /// The property is settled when the pool or dataset is made.
    #[error("'{0}' can only be set at creation")]
    AtCreation(&'static str),
    /// The value is none of the property's.
    #[error("'{name}' takes {values}; '{given}' is none of them")]
    Value {
        /// The property.
        name: &'static str,
        /// Accepted values.
        values: &'static str,
        /// The given value.
        given: String,
    },
    /// Somebody wants to live without checksums.
    #[error(
        "checksums cannot be turned off: without them rot could not be told from data; 'on' costs next to nothing"
    )]
    ChecksumOff,
    /// A user property's name or value is out of bounds.
    #[error("user property '{0}': {1}")]
    User(String, &'static str),
}

const SWITCH: Kind = Kind::Word(&["on", "off"]);
const FEATURE: Kind = Kind::Word(&["active"]);
const YES_NO: Kind = Kind::Word(&["yes", "no"]);
const ANY_BYTES: Kind = Kind::Bytes(0, u64::MAX);
/// The most that a quota or reservation can be: an exbibyte.
pub(crate) const LIMIT_MAX: u64 = 1 << 60;
const ANY_NUMBER: Kind = Kind::Number(0, u64::MAX);

#[rustfmt::skip]
const COMPRESSION: Kind = Kind::Word(&[
    "on", "off", "lz4",
    "gzip", "gzip-1", "gzip-2", "gzip-3", "gzip-4", "gzip-5", "gzip-6", "gzip-7", "gzip-8", "gzip-9",
    "zstd", "zstd-1", "zstd-2", "zstd-3", "zstd-4", "zstd-5", "zstd-6", "zstd-7", "zstd-8", "zstd-9", "zstd-10",
    "zstd-11", "zstd-12", "zstd-13", "zstd-14", "zstd-15", "zstd-16", "zstd-17", "zstd-18", "zstd-19",
]);

const fn settable(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    inherited: bool,
    values: &'static str,
    about: &'static str,
) -> Property {
    Property { name, column: name, kind, default, inherited, access: Access::Set, values, about }
}

impl Property {
    const fn column(mut self, column: &'static str) -> Self {
        self.column = column;
        self
    }
}

const fn read_only(
    name: &'static str,
    column: &'static str,
    kind: Kind,
    values: &'static str,
    about: &'static str,
) -> Property {
    Property { name, column, kind, default: None, inherited: false, access: Access::ReadOnly, values, about }
}

const SIZE: &str = "<size>";
const LIMIT: &str = "<size> | none";

/// Number of snapshots of one period that a dataset keeps.
const fn kept(name: &'static str, about: &'static str) -> Property {
    settable(name, Kind::Count(100_000), Some("none"), true, "0 to 100000 | none", about)
}

/// Datasets' properties, in the order in which `get all` shows them.
#[rustfmt::skip]
pub static DATASET: &[Property] = &[
    read_only("type", "type", Kind::Word(&["filesystem", "snapshot"]), "filesystem | snapshot", "what the dataset is"),
    read_only("creation", "creation", Kind::Time, "<date>", "when it was made"),
    read_only("used", "used", ANY_BYTES, SIZE, "space that the dataset and all below it take, after compression, and have reserved"),
    read_only("available", "avail", ANY_BYTES, SIZE, "space that can still be written here"),
    read_only("referenced", "refer", ANY_BYTES, SIZE, "space that its files take, after compression"),
    read_only("compressratio", "ratio", Kind::Ratio, "<1.00x or more>", "what compression saves: logicalused / used"),
    read_only("mounted", "mounted", YES_NO, "yes | no", "whether it can be reached through its mount point now"),
    settable("recordsize", Kind::PowerOfTwo(4 << 10, 1 << 20), Some("131072"), true, "4K to 1M, a power of two",
        "the size of the pieces that files are stored in; takes effect on what is written from now on").column("recsize"),
    settable("chunking", Kind::Word(&["fixed", "content"]), Some("fixed"), true, "fixed | content",
        "where files are cut into records: fixed, at multiples of recordsize; content, where their bytes say, of \
         recordsize on the average, so that deduplication finds what was shifted; takes effect on new files"),
    settable("mountpoint", Kind::MountPoint, None, true, "<path> | none | legacy",
        "where it is mounted; unless set, the parent's mount point and the dataset's own name, /POOL at the top"),
    settable("checksum", Kind::Word(&["on", "blake3", "sha256"]), Some("on"), true, "on | blake3 | sha256",
        "how stored blocks are verified; takes effect on what is written from now on"),
    settable("compression", COMPRESSION, Some("lz4"), true, "on | off | lz4 | gzip | gzip-1..9 | zstd | zstd-1..19",
        "how records are compressed (on = lz4, gzip = gzip-6, zstd = zstd-3); takes effect on what is written from now on").column("compress"),
    settable("copies", Kind::Number(1, MAX_PLACES as u64), Some("1"), true, "1 | 2 | 3",
        "how many times each record is stored, besides what mirrors and parity keep, as far from one another as the \
         pool's groups and devices let them be: what cannot be read at one place is read at another, and healed; \
         space and quotas count them all; takes effect on what is written from now on"),
    settable("dedup", Kind::Word(&["off", "on", "verify", "later"]), Some("off"), true, "off | on | verify | later",
        "whether a record that is in the pool already, in whatever dataset has it on, is shared instead of being \
         stored again; verify, only after comparing every byte; both take effect on what is written from now on; \
         later, by looking for it in quiet times, as larder fs dedup does, among all that is stored"),
    settable("snapdir", Kind::Word(&["hidden", "visible"]), Some("hidden"), true, "hidden | visible",
        "whether the root directory lists .zfs, in which snapshots are; it can be looked up either way"),
    settable("atime", Kind::Word(&["on", "off", "relatime"]), Some("on"), true, "on | off | relatime",
        "when reading a file moves its access time: on, at every read; relatime, only when it would pass the \
         last change or is a day old; off, never"),
    settable("acltype", Kind::Word(&["posix", "off"]), Some("posix"), true, "posix | off",
        "whether files have access control lists (posixacl = posix); off, those that are there have no effect and \
         stay; takes effect at once"),
    settable("xattr", Kind::Word(&["on", "off", "sa"]), Some("on"), true, "on | off | sa",
        "whether extended attributes can be set (sa = on: all are kept with the inode); off, those that are there \
         can still be read and removed; takes effect at once"),
    Property { name: "encryption", column: "encryption", kind: Kind::Word(&["off"]), default: Some("off"), inherited: false,
        access: Access::SetOnce, values: "off", about: "not available in this version; scripts ask" },
    settable("readonly", SWITCH, Some("off"), true, "on | off", "whether writing is refused; takes effect at once").column("rdonly"),
    settable("canmount", Kind::Word(&["on", "off", "noauto"]), Some("on"), false, "on | off | noauto",
        "whether it is mounted: on, by itself; noauto, only when asked by name; off, never"),
    settable("overlay", SWITCH, Some("off"), true, "on | off",
        "whether it is mounted over a folder that is not empty; off, that is refused"),
    settable("quota", Kind::Limit, Some("0"), false, LIMIT,
        "what it and all below it may take, reservations included; a write that would pass it fails (EDQUOT)"),
    settable("refquota", Kind::Limit, Some("0"), false, LIMIT, "what its own files may take, without what is below it"),
    settable("reservation", Kind::Limit, Some("0"), false, LIMIT,
        "what is kept for it and all below it; for everybody else it is used").column("reserv"),
    settable("refreservation", Kind::Limit, Some("0"), false, LIMIT,
        "what is kept for its own files, without what is below it").column("refreserv"),
    settable("secondarycache", Kind::Word(&["all", "metadata", "none"]), Some("all"), true, "all | metadata | none",
        "what of it cache devices get copies of; those that are there stay until others need the room"),
    settable("special_small_blocks", Kind::Bytes(0, 1 << 20), Some("0"), true, "0 to 1M",
        "records whose stored length is this at most go to the special and fast devices, while a quarter of these is free, \
         else to those of the data; 0, none do; takes effect on what is written from now on"),
    kept("snapshots_frequently", "how many of the snapshots that are taken by themselves every 15 minutes are kept; as snapshots_hourly"),
    kept("snapshots_hourly", "how many of the snapshots that are taken by themselves every hour (UTC) are kept: none, neither \
        are any taken, nor do those go that there are; 0, all of them go; takes effect within a minute"),
    kept("snapshots_daily", "how many of those of each day are kept; as snapshots_hourly"),
    kept("snapshots_weekly", "how many of those of each week, which begins on Monday, are kept; as snapshots_hourly"),
    kept("snapshots_monthly", "how many of those of each month are kept; as snapshots_hourly"),
    kept("snapshots_yearly", "how many of those of each year are kept; as snapshots_hourly"),
    settable("snapshots_format", Kind::Word(&["autosnap", "gmt"]), Some("autosnap"), true, "autosnap | gmt",
        "names of snapshots that are taken by themselves: autosnap_2026-11-23_17:59:01_daily, as sanoid's; or \
         GMT-2026.11.23-17.59.01, for Samba's shadow_copy2, one for all periods that begin together"),
    read_only("usedbysnapshots", "usedsnap", ANY_BYTES, SIZE, "of used: what only snapshots hold"),
    read_only("usedbydataset", "usedds", ANY_BYTES, SIZE, "of used: what its own files take"),
    read_only("usedbychildren", "usedchild", ANY_BYTES, SIZE, "of used: what is below it takes, or has reserved"),
    read_only("usedbyrefreservation", "usedrefreserv", ANY_BYTES, SIZE, "of used: what its refreservation keeps and nothing takes yet"),
    read_only("createtxg", "createtxg", ANY_NUMBER, "<number>", "the commit in which it was made"),
    read_only("guid", "guid", ANY_NUMBER, "<number>", "the number that names it for ever"),
    read_only("logicalused", "lused", ANY_BYTES, SIZE, "used, before compression"),
    read_only("logicalreferenced", "lrefer", ANY_BYTES, SIZE, "referenced, before compression"),
];

/// Pools' properties, in the order in which `get all` shows them.
#[rustfmt::skip]
pub static POOL: &[Property] = &[
    read_only("size", "size", ANY_BYTES, SIZE, "all devices together, parity and copies included"),
    read_only("capacity", "cap", Kind::Percent(0, 100), "<percent>", "how much of it is allocated"),
    read_only("altroot", "altroot", Kind::Text(4096), "<path>", "what all of its mount points are below, as import was told"),
    read_only("health", "health", Kind::Text(32), "ONLINE | DEGRADED | FAULTED | SUSPENDED | UNAVAIL", "the state of the pool"),
    read_only("guid", "guid", ANY_NUMBER, "<number>", "the number that names the pool for ever"),
    read_only("version", "version", ANY_NUMBER, "<number>", "the version of the format on its devices"),
    read_only("dedupratio", "dedup", Kind::Ratio, "<1.00x or more>", "what deduplication saves"),
    read_only("free", "free", ANY_BYTES, SIZE, "space not allocated"),
    read_only("freeing", "freeing", ANY_BYTES, SIZE, "what deleted files and destroyed datasets still hold, one copy of it; comes back by itself"),
    read_only("trashed", "trashed", ANY_BYTES, SIZE, "what destroyed datasets and snapshots hold that can be brought back; counts as available"),
    read_only("cleaned", "cleaned", ANY_BYTES, SIZE, "what the cleaner moved since import, to win space back"),
    read_only("leaked", "leaked", ANY_BYTES, SIZE, "always 0: a trace frees what had leaked"),
    read_only("writeamp", "wamp", Kind::Ratio, "<1.00x or more>", "bytes written for each byte stored since import, with what the cleaner moved"),
    read_only("allocated", "alloc", ANY_BYTES, SIZE, "space allocated, parity and copies included"),
    read_only("readonly", "rdonly", SWITCH, "on | off", "whether the pool was imported for reading only"),
    Property { name: "ashift", column: "ashift", kind: Kind::Number(12, 16), default: Some("12"), inherited: false,
        access: Access::SetOnce, values: "12 to 16",
        about: "log2 of the alignment of writes, 4 KiB to 64 KiB; what devices claim of 512-byte sectors is not believed" },
    settable("comment", Kind::Text(255), None, false, "<text of at most 255 bytes>", "a note for people"),
    settable("cachefile", Kind::Word(&["default", "none"]), Some("default"), false, "default | none",
        "whether the daemon imports the pool at its start, if it was imported when the daemon stopped; none, it does not. \
         There is one file for that, in the state folder: a path means default"),
    settable("memory", Kind::Bytes(64 << 20, 1 << 50), Some("536870912"), false, "64M or more",
        "the memory that the pool may take, cache included; takes effect at once"),
    settable("metadata_share", Kind::Percent(5, 95), Some("50"), false, "5 to 95 (percent)",
        "the share of the cache that data may not take from metadata; takes effect at once"),
    settable("cache_writes", Kind::Share(100), Some("0.30"), false, "0 to 100, with two decimals, or <percent>%",
        "how much of their size may be written to cache devices in a day, so that they last; what fills them for the \
         first time does not count; 0, nothing is written to them; takes effect at once").column("cachewrites"),
    settable("device_timeout", Kind::Number(1, 3600), Some("15"), false, "1 to 3600 (seconds)",
        "for how long a device may leave a write or flush unanswered before the pool goes on without it; a \
         device of the log a third of that, 5 at least; takes effect at once").column("devtimeout"),
    settable("trash", Kind::Span, Some("86400"), false, "<30m, 24h, 7d, ...> | none",
        "for how long what is destroyed can be brought back (larder fs undestroy), unless its space is needed before"),
    settable("trace", Kind::Word(&["off", "weekly", "monthly"]), Some("monthly"), false, "off | weekly | monthly",
        "how often everything is walked to find what is dead, leaked or missing; also done when much may be dead"),
    settable("scrub", Kind::Word(&["off", "weekly", "monthly"]), Some("monthly"), false, "off | weekly | monthly",
        "how often everything is verified and repaired by itself"),
    settable("scrub_window", Kind::Window, Some("none"), false, "<hh:mm-hh:mm> | none",
        "when scrubs by schedule run, by the host's clock; one that is not over waits for the next day"),
    settable("scan_rate", Kind::Limit, Some("0"), false, LIMIT,
        "the most that scrubs and resilvers go through in a second; takes effect at once"),
    settable("autotrim", SWITCH, Some("off"), false, "on | off",
        "whether devices are told of space as it gets free, so that an SSD or a sparse file can give it up; takes effect \
         at once"),
    settable("autoexpand", SWITCH, Some("off"), false, "on | off",
        "whether devices that have grown, or are larger than those whose places they took, are used whole by themselves"),
    settable("autorebalance", SWITCH, Some("off"), false, "on | off",
        "whether what is stored is spread over devices and groups that were added, in quiet times"),
    read_only("checkpoint", "ckpoint", ANY_BYTES, SIZE, "not available in this version"),
    read_only("expandsize", "expandsz", ANY_BYTES, SIZE, "space on the devices that the pool does not use yet"),
    read_only("fragmentation", "frag", Kind::Percent(0, 100), "<percent>", "free space that lies inside segments in use, to be won back by cleaning"),
    // Features of zpool-features(7) that scripts look for before they use what stands on them.
    read_only("feature@extensible_dataset", "feature@extensible_dataset", FEATURE, "active", "that fs receive -s keeps what came"),
];

/// The dataset property of this name or column.
pub fn dataset(name: &str) -> Option<&'static Property> {
    find(DATASET, name)
}

/// The pool property of this name or column.
pub fn pool(name: &str) -> Option<&'static Property> {
    find(POOL, name)
}

fn find(table: &'static [Property], name: &str) -> Option<&'static Property> {
    table.iter().find(|property| property.name == name || property.column == name)
}

/// Whether `name` is one that people may give to properties of their own: `org.example:backup`.
/// User properties are inherited; their values are text that Larder does not look into.
pub fn is_user(name: &str) -> bool {
    name.contains(':')
}

/// The longest name of a user property, bytes.
pub const MAX_USER_NAME: usize = 255;
/// The longest value of a user property, bytes.
pub const MAX_USER_VALUE: usize = 2048;

/// Checks a user property.
///
/// # Errors
/// [`PropertyError::User`] when the name holds other than `a-z 0-9 : . _ -` or something is too long.
pub fn check_user(name: &str, value: &str) -> Result<(), PropertyError> {
    let refuse = |why| Err(PropertyError::User(name.to_owned(), why));
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b":._-".contains(&byte);
    if !is_user(name) || name.starts_with('-') || !name.bytes().all(plain) {
        return refuse("a name is made of a-z 0-9 . _ - and a colon");
    }
    if name.len() > MAX_USER_NAME {
        return refuse("a name has at most 255 bytes");
    }
    if value.len() > MAX_USER_VALUE {
        return refuse("a value has at most 2048 bytes");
    }
    if value.chars().any(char::is_control) {
        return refuse("a value has no control characters");
    }
    Ok(())
}

/// Parses `name=value` for a dataset, user properties included: the full name and the exact value.
///
/// # Errors
/// As [`Property::parse`]; [`PropertyError::Unknown`] for names that are not in the table.
pub fn parse_dataset(name: &str, given: &str, creating: bool) -> Result<(String, String), PropertyError> {
    if is_user(name) {
        check_user(name, given)?;
        return Ok((name.to_owned(), given.to_owned()));
    }
    parse_known(dataset(name), name, given, creating)
}

/// Parses `name=value` for a pool: the full name and the exact value.
///
/// # Errors
/// As [`parse_dataset`].
pub fn parse_pool(name: &str, given: &str, creating: bool) -> Result<(String, String), PropertyError> {
    parse_known(pool(name), name, given, creating)
}

fn parse_known(
    property: Option<&'static Property>,
    name: &str,
    given: &str,
    creating: bool,
) -> Result<(String, String), PropertyError> {
    let property = property.ok_or_else(|| PropertyError::Unknown(name.to_owned()))?;
    match property.access {
        Access::ReadOnly => Err(PropertyError::ReadOnly(property.name)),
        Access::SetOnce if !creating => Err(PropertyError::AtCreation(property.name)),
        _ => Ok((property.name.to_owned(), property.parse(given)?)),
    }
}

impl Property {
    /// The exact form of what a person typed.
    ///
    /// # Errors
    /// [`PropertyError::Value`], or [`PropertyError::ChecksumOff`] where that was asked for.
    pub fn parse(&self, given: &str) -> Result<String, PropertyError> {
        if self.name == "checksum" && given == "off" {
            return Err(PropertyError::ChecksumOff);
        }
        // zfs knows these by two names.
        let given = match (self.name, given) {
            ("acltype", "posixacl") => "posix",
            ("acltype", "noacl") => "off",
            ("cachefile", path) if path.is_empty() || path.starts_with('/') => "default",
            _ => given,
        };
        let number = |range: std::ops::RangeInclusive<u64>, given: Option<u64>| {
            given.filter(|number| range.contains(number)).map(|number| number.to_string())
        };
        let exact = match self.kind {
            Kind::Word(words) => words.contains(&given).then(|| given.to_owned()),
            Kind::PowerOfTwo(least, most) => {
                number(least..=most, parse_size(given).filter(|size| size.is_power_of_two()))
            }
            Kind::Bytes(least, most) => number(least..=most, parse_size(given)),
            Kind::Limit if given == "none" => Some("0".to_owned()),
            Kind::Limit => number(0..=LIMIT_MAX, parse_size(given)),
            Kind::Number(least, most) => number(least..=most, given.parse().ok()),
            Kind::Count(_) if given == "none" => Some(given.to_owned()),
            Kind::Count(most) => number(0..=most, given.parse().ok()),
            Kind::Percent(least, most) => {
                number(least..=most, given.strip_suffix('%').unwrap_or(given).parse().ok())
            }
            Kind::Ratio | Kind::Time => None,
            Kind::Share(most) => parse_share(given, most),
            Kind::MountPoint => parse_mountpoint(given),
            Kind::Window if given == "none" => Some(given.to_owned()),
            Kind::Window => Window::parse(given).map(|window| window.to_string()),
            Kind::Span => parse_span(given).map(|seconds| seconds.to_string()),
            Kind::Text(most) => {
                (given.len() <= most && !given.chars().any(char::is_control)).then(|| given.to_owned())
            }
        };
        exact.ok_or_else(|| PropertyError::Value {
            name: self.name,
            values: self.values,
            given: given.to_owned(),
        })
    }

    /// Text for people; `-` stands for no value. Times stay seconds: showing them takes a time
    /// zone, which is not this crate's business.
    pub fn display(&self, exact: &str) -> String {
        let number = exact.parse::<u64>().ok();
        match (self.kind, number) {
            (Kind::Limit, Some(0)) => "none".to_owned(),
            (Kind::Bytes(..) | Kind::PowerOfTwo(..) | Kind::Limit, Some(number)) => format_size(number),
            (Kind::Span, Some(seconds)) => format_span(seconds),
            (Kind::Percent(..), Some(_)) => format!("{exact}%"),
            (Kind::Ratio, _) if exact != "-" => format!("{exact}x"),
            _ => exact.to_owned(),
        }
    }

    /// Whether values are numbers, which align to the right and are JSON numbers.
    pub fn is_number(&self) -> bool {
        !matches!(self.kind, Kind::Word(_) | Kind::MountPoint | Kind::Window | Kind::Text(_))
    }
}

/// `0.3`, `.5`, `2` or `30%` with two decimals.
fn parse_share(given: &str, most: u64) -> Option<String> {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let hundredths = match given.strip_suffix('%') {
        Some(percent) => percent.parse().ok().filter(|_| digits(percent))?,
        None => {
            let (whole, part) = given.split_once('.').unwrap_or((given, "0"));
            let is_number = digits(whole) && digits(part) && (1..=2).contains(&part.len());
            let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
            let part = format!("{part:0<2}").parse::<u64>().ok().filter(|_| is_number)?;
            whole.checked_mul(100)?.checked_add(part).filter(|_| !given.is_empty())?
        }
    };
    (hundredths <= most * 100).then(|| format!("{}.{:02}", hundredths / 100, hundredths % 100))
}

fn parse_mountpoint(given: &str) -> Option<String> {
    if matches!(given, "none" | "legacy") {
        return Some(given.to_owned());
    }
    let sound = given.starts_with('/')
        && given.len() < 4096
        && !given.chars().any(char::is_control)
        && !given.split('/').any(|part| part == "..");
    let trimmed = given.trim_end_matches('/');
    sound.then(|| if trimmed.is_empty() { "/".to_owned() } else { trimmed.to_owned() })
}

/// The longest span of a property: a hundred years.
const SPAN_MAX: u64 = 100 * 365 * 86_400;
/// Units of spans, in seconds, the longest first.
const SPANS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];

/// Seconds from `90`, `30m`, `24h`, `7d`; `none` is 0.
fn parse_span(given: &str) -> Option<u64> {
    if given == "none" {
        return Some(0);
    }
    let unit = SPANS.into_iter().find_map(|(seconds, unit)| Some((seconds, given.strip_suffix(unit)?)));
    let (seconds, number) = unit.unwrap_or((1, given));
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let all = number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(seconds)?;
    (all <= SPAN_MAX).then_some(all)
}

/// Seconds in the largest unit that gives a whole number; a day is 24 hours.
fn format_span(seconds: u64) -> String {
    if seconds == 0 {
        return "none".to_owned();
    }
    let fits =
        |(unit, _): &(u64, &str)| seconds.is_multiple_of(*unit) && (*unit < 86_400 || seconds >= 2 * unit);
    let (unit, name) = SPANS.into_iter().find(fits).unwrap_or((1, "s"));
    format!("{}{name}", seconds / unit)
}

const UNITS: &[u8] = b"BKMGTPE";

/// Bytes from `4096`, `128K`, `1.5T`, `512MiB`, `1g`: units are powers of 1024 whatever they are called.
pub fn parse_size(given: &str) -> Option<u64> {
    let split = given.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(given.len());
    let (digits, unit) = given.split_at(split);
    let unit = unit.to_ascii_uppercase();
    let power = match unit.as_bytes() {
        [] => 0,
        [letter] | [letter, b'B'] | [letter, b'I', b'B'] => UNITS.iter().position(|unit| unit == letter)?,
        _ => return None,
    };
    if unit.len() > 1 && power == 0 {
        return None;
    }
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() || fraction.len() > 12 || (power == 0 && !fraction.is_empty()) {
        return None;
    }
    let factor = 1u128 << (10 * power);
    let whole = whole.parse::<u64>().ok()?;
    let part = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let bytes = u128::from(whole) * factor + u128::from(part) * factor / 10u128.pow(fraction.len() as u32);
    u64::try_from(bytes).ok()
}

/// Bytes in binary units with three significant digits, as zfs prints them: `0B`, `96K`, `1.50T`.
pub fn format_size(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes}B") } else { format_count(bytes) }
}

/// A count in binary units with three significant digits: `0`, `980`, `1.21K`.
pub fn format_count(count: u64) -> String {
    let power = count.checked_ilog2().unwrap_or(0) / 10;
    if power == 0 {
        return count.to_string();
    }
    let unit = char::from(UNITS[power as usize]);
    let factor = 1u64 << (10 * power);
    if count.is_multiple_of(factor) {
        return format!("{}{unit}", count / factor);
    }
    let value = count as f64 / factor as f64;
    (0..=2)
        .rev()
        .map(|decimals| format!("{value:.decimals$}{unit}"))
        .find(|text| text.len() <= 5)
        .expect("at most 1024 and a unit: five characters")
}

/// The limit for a device's answers that a pool's own properties set.
pub(crate) fn device_timeout(properties: &BTreeMap<String, String>) -> Option<Duration> {
    properties.get("device_timeout").and_then(|value| value.parse().ok()).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (given, bytes) in [
            ("0", 0),
            ("131072", 131_072),
            ("128K", 128 << 10),
            ("128k", 128 << 10),
            ("1.5T", 3 << 39),
            ("512MiB", 512 << 20),
            ("2GB", 2 << 30),
            ("7B", 7),
            ("0.5K", 512),
        ] {
            assert_eq!(parse_size(given), Some(bytes), "{given}");
        }
        for given in ["", "K", "1.5", "-1", "1X", "1KK", "1.2.3K", "99999999999E", "1iB", ".5K", "1 K"] {
            assert_eq!(parse_size(given), None, "{given}");
        }
    }

    #[test]
    fn sizes_are_written_as_zfs_writes_them() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (96 << 10, "96K"),
            (3 << 39, "1.50T"),
            (512 << 20, "512M"),
            ((31 << 30) / 2, "15.5G"),
            (1_234_567, "1.18M"),
            (159_383_552, "152M"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(format_count(0), "0");
        assert_eq!(format_count(1240), "1.21K");
    }

    #[test]
    fn a_value_survives_showing_and_reading() {
        for shift in 12..=20 {
            let property = dataset("recordsize").unwrap();
            let exact = (1u64 << shift).to_string();
            assert_eq!(property.parse(&property.display(&exact)).unwrap(), exact);
        }
    }

    #[test]
    fn defaults_are_values_and_names_are_unique() {
        for table in [DATASET, POOL] {
            for (at, property) in table.iter().enumerate() {
                if let Some(default) = property.default {
                    assert_eq!(property.parse(default).as_deref(), Ok(default), "{}", property.name);
                }
                for other in &table[at + 1..] {
                    assert_ne!(property.name, other.name);
                    assert_ne!(property.column, other.column);
                    assert_ne!(property.column, other.name);
                }
            }
        }
    }

    #[test]
    fn values_out_of_bounds_are_refused() {
        for (name, value) in [
            ("recordsize", "3K"),
            ("recordsize", "2M"),
            ("recordsize", "2K"),
            ("compression", "gzip-10"),
            ("compression", "LZ4"),
            ("mountpoint", "relative"),
            ("mountpoint", "/a/../b"),
            ("mountpoint", "/srv\nlarder: all is well"),
            ("canmount", "yes"),
            ("used", "1"),
            ("quota", "all"),
            ("reservation", "2E"),
            ("snapshots_daily", "-1"),
            ("snapshots_daily", "100001"),
            ("snapshots_daily", "1K"),
            ("snapshots_format", "iso"),
            ("nonsense", "1"),
            ("Org:name", "x"),
        ] {
            assert!(parse_dataset(name, value, true).is_err(), "{name}={value}");
        }
        assert!(parse_pool("memory", "1K", false).is_err());
        assert_eq!(
            parse_pool("cachefile", "/etc/zfs/zpool.cache", true),
            Ok(("cachefile".into(), "default".into()))
        );
        assert!(parse_pool("cachefile", "cache", true).is_err());
        assert_eq!(parse_pool("ashift", "13", true), Ok(("ashift".into(), "13".into())));
        assert_eq!(parse_pool("ashift", "13", false), Err(PropertyError::AtCreation("ashift")));
        assert!(parse_pool("ashift", "9", true).is_err());
    }

    #[test]
    fn shares_are_numbers_or_per_cent() {
        for (given, exact) in [
            ("0", Some("0.00")),
            ("0.3", Some("0.30")),
            (".5", Some("0.50")),
            ("1.25", Some("1.25")),
            ("30%", Some("0.30")),
            ("100", Some("100.00")),
            ("100.01", None),
            ("", None),
            (".", None),
            ("1.", None),
            ("-1", None),
            ("+1", None),
            ("0.333", None),
            ("%", None),
            ("1e3", None),
        ] {
            let parsed = parse_pool("cache_writes", given, false).ok().map(|(_, exact)| exact);
            assert_eq!(parsed.as_deref(), exact, "{given}");
        }
    }

    #[test]
    fn windows_may_pass_midnight() {
        let window = |text| Window::parse(text).unwrap();
        assert_eq!(parse_pool("scrub_window", "9:05-17:30", false).unwrap().1, "09:05-17:30");
        let (day, night) = (window("09:00-17:00"), window("22:00-06:00"));
        for (hour, in_day, in_night) in
            [(0, false, true), (6, false, false), (9, true, false), (22, false, true)]
        {
            assert_eq!((day.holds(hour * 60), night.holds(hour * 60)), (in_day, in_night), "{hour}");
        }
        for text in
            ["", "9-17", "24:00-06:00", "22:60-06:00", "22:00-22:00", "22:0-6:00", "22:00", "-1:00-2:00"]
        {
            assert!(parse_pool("scrub_window", text, false).is_err(), "{text}");
        }
    }

    #[test]
    fn checksums_stay_on_and_the_refusal_says_why() {
        let refusal = parse_dataset("checksum", "off", false).unwrap_err();
        assert_eq!(refusal, PropertyError::ChecksumOff);
        assert!(refusal.to_string().contains("cannot be turned off"));
    }

    #[test]
    fn exact_forms_are_canonical() {
        let exact = |name, value| parse_dataset(name, value, false).unwrap().1;
        assert_eq!(exact("recordsize", "1M"), "1048576");
        assert_eq!(exact("mountpoint", "/srv/media//"), "/srv/media");
        assert_eq!(exact("mountpoint", "/"), "/");
        assert_eq!(exact("quota", "none"), "0");
        assert_eq!(exact("reservation", "1.5G"), "1610612736");
        assert_eq!(dataset("refquota").unwrap().display("0"), "none");
        assert_eq!(dataset("refquota").unwrap().display("10485760"), "10M");
        assert_eq!(exact("snapshots_hourly", "024"), "24");
        assert_eq!(exact("snapshots_hourly", "0"), "0", "which is not the same as none");
        assert_eq!(exact("snapshots_hourly", "none"), "none");
        assert_eq!(exact("acltype", "posixacl"), "posix");
        assert_eq!(exact("acltype", "noacl"), "off");
        assert_eq!(exact("org.example:keep", "two weeks"), "two weeks");
        assert_eq!(parse_pool("metadata_share", "40%", false).unwrap().1, "40");
    }
}
