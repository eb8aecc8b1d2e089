//! Replies into what people and scripts read: tables in zpool's and zfs's form, status, JSON. Text only;
//! nothing here asks the daemon or prints.

pub mod absent;
pub mod advise;
pub mod advise_page;
pub mod cachestat;
pub mod dedup;
pub mod dedupe;
pub mod diff;
pub mod events;
pub mod extents;
pub mod folders;
pub mod iostat;
pub mod items;
pub mod json;
pub mod page;
pub mod plan;
pub mod plan_page;
pub mod policy;
pub mod repair;
pub mod scan;
pub mod shape;
pub mod status;
pub mod table;
pub mod versions;

use crate::api::properties;
use larder_pool::property::{self, Kind, Property};

/// Whose properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registry {
    /// Pools'.
    Pool,
    /// Datasets'.
    Dataset,
}

impl Registry {
    /// The property of this name or column; nothing for user properties.
    pub fn find(self, name: &str) -> Option<&'static Property> {
        match self {
            Self::Pool => property::pool(name),
            Self::Dataset => properties::dataset(name),
        }
    }

    /// The full name of a property, user properties included, when there can be one.
    pub fn full_name(self, name: &str) -> Option<String> {
        let user = self == Self::Dataset && property::is_user(name);
        let as_it_is = user || (self == Self::Dataset && properties::since(name).is_some());
        if as_it_is { Some(name.to_owned()) } else { self.find(name).map(|known| known.name.to_owned()) }
    }

    /// A value as people read it.
    fn display(self, name: &str, exact: &str) -> String {
        match self.find(name) {
            Some(Property { kind: Kind::Time, .. }) => exact.parse().map_or(exact.to_owned(), date_to_minute),
            Some(known) => known.display(exact),
            None => exact.to_owned(),
        }
    }
}

fn date(seconds: i64, format: &str) -> String {
    match jiff::Timestamp::from_second(seconds) {
        Ok(time) => time.to_zoned(jiff::tz::TimeZone::system()).strftime(format).to_string(),
        Err(_) => seconds.to_string(),
    }
}

/// `Sat Nov 21  0:32 2026`, as zfs shows `creation`; in the time zone of who asks.
pub fn date_to_minute(seconds: i64) -> String {
    date(seconds, "%a %b %e %k:%M %Y")
}

/// `Sat Nov 21 00:32:48 2026`, as zpool shows scans.
pub fn date_to_second(seconds: i64) -> String {
    date(seconds, "%a %b %e %H:%M:%S %Y")
}

/// A device's path as people know it: without `/dev/` and folders of links below it. Other folders in
/// `/dev` hold files, which keep their paths.
fn short_path(path: &str) -> &str {
    let Some(below) = path.strip_prefix("/dev/") else { return path };
    match below.rsplit_once('/') {
        None => below,
        Some((folder, name)) if folder.starts_with("disk/by-") || folder == "mapper" => name,
        Some(_) => path,
    }
}
