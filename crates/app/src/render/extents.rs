//! The extents of files, as people and scripts read them.

use super::table::{Column, Table};
use crate::api::extents::{Extent, FileExtents};
use larder_pool::property::format_size;
use serde_json::{Map, Value, json};

/// A file's extents, and a line that sums them up.
pub fn text(path: &str, file: &FileExtents, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { format_size(bytes) };
    let mut table = Table::new(vec![
        Column::right("ext", 4),
        Column::right("offset", 8),
        Column::right("length", 6),
        Column::right("block", 8),
        Column::right("segment", 7),
        Column::left("device"),
        Column::right("physical", 8),
        Column::right("stored", 6),
        Column::left("flags"),
    ]);
    for (number, extent) in file.extents.iter().enumerate() {
        let copy = extent.copies.first();
        table.row(vec![
            number.to_string(),
            // Offsets are there to be compared.
            extent.offset.to_string(),
            size(extent.length.into()),
            extent.block.to_string(),
            extent.segment.to_string(),
            copy.map_or("-", |copy| super::short_path(&copy.device)).to_owned(),
            copy.map_or_else(|| "-".to_owned(), |copy| copy.offset.to_string()),
            size(extent.stored.into()),
            flags(file, extent).join(","),
        ]);
    }
    let sums = Sums::of(file);
    let head = format!(
        "{path}: {} in {}, records of {}\n",
        size(file.size),
        file.dataset,
        size(file.record_size.into())
    );
    let extents = match sums.extents {
        1 => "1 extent".to_owned(),
        count => format!("{count} extents"),
    };
    let foot = format!(
        "{path}: {extents} found, {} of data; {} shared, {}\n",
        size(sums.bytes),
        sums.shared,
        size(sums.shared_bytes)
    );
    let rows = if file.extents.is_empty() { String::new() } else { table.render(false) };
    head + &rows + &foot
}

/// Files by their paths.
pub fn json(files: &[(String, FileExtents)]) -> Map<String, Value> {
    let one = |file: &FileExtents| {
        let extents: Vec<Value> = (file.extents.iter())
            .map(|extent| {
                json!({
                    "offset": extent.offset,
                    "length": extent.length,
                    "block": extent.block,
                    "block_offset": extent.block_offset,
                    "segment": extent.segment,
                    "stored": extent.stored,
                    "copies": extent.copies,
                    "flags": flags(file, extent),
                })
            })
            .collect();
        let sums = Sums::of(file);
        json!({
            "dataset": file.dataset,
            "size": file.size,
            "record_size": file.record_size,
            "extents": extents,
            "data": sums.bytes,
            "shared_extents": sums.shared,
            "shared": sums.shared_bytes,
        })
    };
    files.iter().map(|(path, file)| (path.clone(), one(file))).collect()
}

/// In words like those of filefrag.
fn flags(file: &FileExtents, extent: &Extent) -> Vec<&'static str> {
    let known = [
        (extent.shared, "shared"),
        (extent.compressed, "compressed"),
        (extent.length < extent.logical, "partial"),
        (extent.offset + u64::from(extent.length) >= file.size, "eof"),
    ];
    known.into_iter().filter_map(|(is, word)| is.then_some(word)).collect()
}

struct Sums {
    extents: usize,
    bytes: u64,
    shared: usize,
    shared_bytes: u64,
}

impl Sums {
    fn of(file: &FileExtents) -> Self {
        let bytes = |extents: &mut dyn Iterator<Item = &Extent>| extents.map(|e| u64::from(e.length)).sum();
        let shared = || file.extents.iter().filter(|extent| extent.shared);
        Self {
            extents: file.extents.len(),
            bytes: bytes(&mut file.extents.iter()),
            shared: shared().count(),
            shared_bytes: bytes(&mut shared()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::extents::Copy;

    fn file() -> FileExtents {
        let extent = |offset, shared| Extent {
            offset,
            length: if shared { 131_072 } else { 100 },
            block: 77,
            block_offset: 0,
            logical: 131_072,
            stored: 4096,
            segment: 5,
            copies: vec![Copy { device: "/dev/disk/by-id/a".into(), offset: 1 << 20 }],
            shared,
            compressed: shared,
        };
        let extents = vec![extent(0, true), extent(262_144, false)];
        FileExtents { dataset: "tank/a".into(), size: 262_244, record_size: 131_072, extents, next: None }
    }

    #[test]
    fn extents_read_like_those_of_filefrag() {
        assert_eq!(
            text("f", &file(), false),
            "f: 256K in tank/a, records of 128K\n \
             ext    offset  length     block  segment  device  physical  stored  flags\n   \
             0         0    128K        77        5  a        1048576      4K  shared,compressed\n   \
             1    262144    100B        77        5  a        1048576      4K  partial,eof\n\
             f: 2 extents found, 128K of data; 1 shared, 128K\n"
        );
        let json = json(&[("f".into(), file())]);
        assert_eq!(json["f"]["extents"][1]["flags"], json!(["partial", "eof"]));
        assert_eq!(json["f"]["shared"], 131_072);
    }
}
