//! The registry of datasets' properties, with those that came with snapshots.

use larder_pool::property::{self, Access, Kind, Property};

const BYTES: Kind = Kind::Bytes(0, u64::MAX);

const fn told(name: &'static str, kind: Kind, values: &'static str, about: &'static str) -> Property {
    Property {
        name,
        column: name,
        kind,
        default: None,
        inherited: false,
        access: Access::ReadOnly,
        values,
        about,
    }
}

/// A property of datasets for `written@SNAPSHOT`.
static WRITTEN_SINCE: Property =
    told("written@", BYTES, "<size>", "referenced space that was written since that snapshot");

/// Those that [`larder_pool::property`] does not have. `name` and `trash` are in no `all`.
#[rustfmt::skip]
static MORE: &[Property] = &[
    told("name", Kind::Text(255), "<name>", "its name, pool included"),
    told("written", BYTES, "<size>", "referenced space that was written since the snapshot before"),
    told("trash", BYTES, "<size>", "what its destroyed snapshots hold that can be brought back; counts in no other figure"),
    told("userrefs", Kind::Number(0, u64::MAX), "<count>", "holds on the snapshot"),
    told("clones", Kind::Text(4096), "<dataset>,...", "datasets that began as the snapshot"),
    told("receive_resume_token", Kind::Text(8192), "<string token>", "by which a stream that broke off goes on: larder fs send -t"),
    told("origin", Kind::Text(255), "<snapshot>", "the snapshot that it began as, and shares with what neither changed"),
    told("refcompressratio", Kind::Ratio, "<1.00x or more>", "what compression saves of referenced"),
    told("sendable", Kind::Word(&["yes", "no"]), "yes | no", "whether an increment can be sent from the bookmark"),
    told("objsetid", Kind::Number(0, u64::MAX), "<number>", "the number that names the dataset in its pool"),
    told("keystatus", Kind::Text(16), "available | unavailable", "not available in this version"),
    told("volsize", BYTES, "<size>", "of volumes, which there are not in this version"),
    told("defer_destroy", Kind::Word(&["on", "off"]), "on | off", "whether the snapshot goes with its last hold or clone"),
];

/// Those of snapshots, in the order in which `get all` shows them.
pub const OF_SNAPSHOTS: &[&str] = &[
    "type",
    "creation",
    "used",
    "referenced",
    "compressratio",
    "createtxg",
    "guid",
    "defer_destroy",
    "userrefs",
    "written",
    "logicalreferenced",
    "clones",
];

/// Those of bookmarks, likewise.
pub const OF_BOOKMARKS: &[&str] = &["type", "creation", "createtxg", "guid", "sendable"];

/// The names of those of datasets with files, in the order in which `get all` shows them.
pub fn of_filesystems() -> impl Iterator<Item = &'static str> {
    property::DATASET.iter().map(|known| known.name).chain(["origin", "receive_resume_token", "written"])
}

/// The dataset property of this name or column.
pub fn dataset(name: &str) -> Option<&'static Property> {
    if since(name).is_some() {
        return Some(&WRITTEN_SINCE);
    }
    property::dataset(name).or_else(|| MORE.iter().find(|property| property.name == name))
}

/// The snapshot of `written@SNAPSHOT`.
pub fn since(name: &str) -> Option<&str> {
    name.strip_prefix(WRITTEN_SINCE.name).filter(|snapshot| !snapshot.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_snapshots_have_is_known() {
        for name in OF_SNAPSHOTS {
            assert_eq!(dataset(name).expect(name).name, *name);
        }
        assert_eq!(dataset("written@a").unwrap().display("1024"), "1K");
        assert_eq!(since("written@a-b"), Some("a-b"));
        assert!(dataset("written@").is_none() && since("written").is_none());
        assert!(MORE.iter().all(|property| property::dataset(property.name).is_none()));
    }
}
