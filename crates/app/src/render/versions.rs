//! The versions of a file, as people and scripts read them.

use super::table::{Column, Table};
use crate::api::extents::{FileVersions, Version};
use larder_pool::property::format_size;
use serde_json::{Map, Value, json};

/// A line for each version, oldest first.
pub fn text(file: &FileVersions, scripted: bool, exact: bool) -> String {
    let mut table = Table::new(vec![
        Column::left("MODIFIED"),
        Column::right("SIZE", 5),
        Column::right("SNAPSHOTS", 9),
        Column::left("FIRST"),
        Column::left("LAST"),
        Column::left("LIVE"),
    ]);
    for version in &file.versions {
        let modified = match exact {
            true => version.mtime.0.to_string(),
            false => super::date_to_second(version.mtime.0),
        };
        let size = |size: u64| if exact { size.to_string() } else { format_size(size) };
        let name = |name: Option<&String>| name.cloned().unwrap_or_else(|| "-".to_owned());
        table.row(vec![
            modified,
            version.size.map_or_else(|| "-".to_owned(), size),
            version.snapshots.len().to_string(),
            name(version.snapshots.first()),
            name(version.snapshots.last()),
            if version.live { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.render(scripted)
}

/// The same by its path.
pub fn json(path: &str, file: &FileVersions) -> Map<String, Value> {
    let one = |version: &Version| {
        json!({
            "inode": version.inode,
            "size": version.size,
            "mtime": version.mtime.0,
            "mtime_nsec": version.mtime.1,
            "snapshots": version.snapshots,
            "live": version.live,
        })
    };
    let versions: Vec<_> = file.versions.iter().map(one).collect();
    let unreadable = file.unreadable.iter();
    let unreadable: Vec<_> =
        unreadable.map(|(snapshot, error)| json!({ "snapshot": snapshot, "error": error.message })).collect();
    let file = json!({
        "dataset": file.dataset,
        "mountpoint": file.mountpoint,
        "path": file.path,
        "versions": versions,
        "unreadable": unreadable,
    });
    Map::from_iter([(path.to_owned(), file)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> FileVersions {
        let version = |size, snapshots: &[&str], live| Version {
            inode: 9,
            size,
            mtime: (1_800_000_000, 5),
            snapshots: snapshots.iter().map(|&name| name.to_owned()).collect(),
            live,
        };
        FileVersions {
            dataset: "tank/a".into(),
            mountpoint: Some("/tank/a".into()),
            path: "b/c".into(),
            versions: vec![version(Some(2048), &["x", "y", "z"], false), version(Some(3), &[], true)],
            unreadable: vec![],
        }
    }

    #[test]
    fn versions_are_lines_from_the_oldest_to_the_live_one() {
        assert_eq!(text(&file(), true, true), "1800000000\t2048\t3\tx\tz\tno\n1800000000\t3\t0\t-\t-\tyes\n");
        let shown = text(&file(), false, false);
        assert!(shown.starts_with("MODIFIED  "), "{shown}");
        assert!(shown.lines().nth(1).unwrap().ends_with("     2K          3  x      z     no"), "{shown}");
        let json = json("/tank/a/b/c", &file());
        assert_eq!(json["/tank/a/b/c"]["versions"][0]["snapshots"], json!(["x", "y", "z"]));
    }
}
