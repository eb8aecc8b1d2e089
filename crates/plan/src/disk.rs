//! Disks, as far as is known.

use serde::Serialize;

/// Kind of a disk, by what it takes to read somewhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// With an arm.
    Hdd,
    /// Without.
    Ssd,
}

/// Measured speeds of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// Bytes a second that are read one after the other where it begins.
    pub stream_first: f64,
    /// The same where it ends.
    pub stream_last: f64,
    /// Reads a second of 4 KiB at random, one at a time.
    pub reads_4k: f64,
    /// Reads a second of 128 KiB at random, one at a time.
    pub reads_128k: f64,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disk {
    /// Name to paste: a path, or a place for one.
    pub name: String,
    /// Short name for people.
    pub short: String,
    /// Bytes.
    pub size: u64,
    /// Its kind.
    pub kind: Kind,
    /// Whether it is on the other side of NVMe.
    pub nvme: bool,
    /// Model, where known.
    pub model: Option<String>,
    /// Serial number, where known.
    pub serial: Option<String>,
    /// Bytes of a sector, as the disk is addressed, and as it writes; 0 where unknown.
    pub sectors: (u32, u32),
    /// Connected by USB.
    pub usb: bool,
    /// Writes its tracks over one another: the kernel knows, or the model does.
    pub shingled: Option<String>,
    /// Hours under power.
    pub hours: Option<u64>,
    /// Bytes written in its life.
    pub written: Option<u64>,
    /// Per cent of the writes that it is made for.
    pub wear: Option<u64>,
    /// Whether it says of itself that it is sound.
    pub healthy: Option<bool>,
    /// Contents that somebody may want: no pool is made over them.
    pub taken: Option<String>,
    /// Nobody could look at what is on it.
    pub hidden: bool,
    /// Measured speeds.
    pub measured: Option<Measured>,
    /// Price.
    pub price: Option<f64>,
}

impl Disk {
    /// A disk of which only the size is known.
    pub fn of_size(name: impl Into<String>, size: u64) -> Self {
        let name = name.into();
        Self {
            short: name.clone(),
            name,
            size,
            kind: Kind::Hdd,
            nvme: false,
            model: None,
            serial: None,
            sectors: (0, 0),
            usb: false,
            shingled: None,
            hours: None,
            written: None,
            wear: None,
            healthy: None,
            taken: None,
            hidden: false,
            measured: None,
            price: None,
        }
    }
}

/// Models of disks that are known to write shingled tracks without saying so to the kernel, by the start of the model
/// behind the maker's name, and who says so.
const SHINGLED: &[(&[&str], &str)] = &[
    (
        &["WD20EFAX", "WD30EFAX", "WD40EFAX", "WD60EFAX"],
        "WD Red of 2 to 6 TB with EFAX in its name, as Western Digital said in April 2020",
    ),
    (
        &["DT02ABA4", "DT02ABA6", "MQ04AB"],
        "Toshiba DT02 of 4 and 6 TB and MQ04, as Toshiba said in April 2020",
    ),
    (
        &["ST2000LM015", "ST1000LM049"],
        "Seagate Barracuda of 2.5 inches, which takes TRIM as shingled disks do",
    ),
];

/// The source that says that disks of a model are shingled, if there is one.
pub fn known_shingled(model: &str) -> Option<&'static str> {
    let words: Vec<String> = model.split([' ', '_', '-']).map(str::to_ascii_uppercase).collect();
    let is = |start: &&str| words.iter().any(|word| word.starts_with(*start));
    SHINGLED.iter().find(|(starts, _)| starts.iter().any(is)).map(|(_, who)| *who)
}
