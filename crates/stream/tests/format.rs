//! Holds `STREAM.md` against the code.

use larder_stream::wire;
use std::collections::BTreeMap;

const TEXT: &str = include_str!("../STREAM.md");

/// Rows of the tables with these first two columns.
fn rows(first: &str, second: &str) -> Vec<(String, String)> {
    let cells = |line: &str| -> Vec<String> {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    let (mut rows, mut inside) = (Vec::new(), false);
    for line in TEXT.lines() {
        if !line.starts_with('|') {
            inside = false;
            continue;
        }
        let cells = cells(line);
        if cells[0] == first && cells[1] == second {
            inside = true;
        } else if inside && !cells[0].starts_with("--") {
            rows.push((cells[0].clone(), cells[1].clone()));
        }
    }
    rows
}

#[test]
fn constants_are_as_the_page_says() {
    let coded: BTreeMap<&str, u64> = BTreeMap::from([
        ("STREAM_VERSION", wire::STREAM_VERSION.into()),
        ("FRAME_HEAD", wire::FRAME_HEAD as u64),
        ("FRAME_SUM", wire::FRAME_SUM as u64),
        ("FRAME_MAX", wire::FRAME_MAX.into()),
        ("ITEMS_MAX", wire::ITEMS_MAX.into()),
        ("PLAIN_MAX", wire::PLAIN_MAX),
        ("TEXT_MAX", wire::TEXT_MAX as u64),
        ("LIST_MAX", wire::LIST_MAX.into()),
        ("STREAM_REPLICATES", wire::STREAM_REPLICATES.into()),
        ("STREAM_CLEARS", wire::STREAM_CLEARS.into()),
        ("BEGIN_RESUMED", wire::BEGIN_RESUMED.into()),
        ("BEGIN_CLONE", wire::BEGIN_CLONE.into()),
    ]);
    let told = rows("constant", "value");
    let told: BTreeMap<&str, u64> =
        told.iter().map(|(name, value)| (name.as_str(), value.parse().unwrap())).collect();
    assert_eq!(told, coded);
    let source = include_str!("../src/wire.rs");
    let mut constants = source.lines().filter_map(|line| line.strip_prefix("pub const "));
    let known = |line: &str| {
        let name = line.split(':').next().unwrap();
        coded.contains_key(name) || matches!(name, "STREAM_MAGIC" | "ITEM_KINDS")
    };
    assert!(constants.all(known), "a constant without a row");
    assert!(TEXT.contains(std::str::from_utf8(&wire::STREAM_MAGIC).unwrap()));
}

#[test]
fn frames_and_items_have_their_rows_in_the_order_of_their_numbers() {
    use wire::FrameKind::*;
    let kinds = [Start, Dataset, Begin, Chunk, End, Close];
    let coded: Vec<_> = kinds.iter().map(|kind| (format!("{}", *kind as u8), format!("{kind:?}"))).collect();
    let told = rows("number", "name");
    assert_eq!(told[..coded.len()], coded);
    let items: Vec<_> =
        told[coded.len()..].iter().map(|(number, name)| (number.as_str(), name.as_str())).collect();
    assert_eq!(items, wire::ITEM_KINDS);
}
