//! Commit records held against the tables that they tell of.

use larder_format::commit_record::{CommitRecord, Row, together};
use larder_format::node::Key;
use larder_format::property::PropertyRecord;
use larder_format::tables::{DatasetRecord, Table};
use larder_pool::Pool;
use std::collections::BTreeMap;

/// The newest commit record, and the rows that all of them tell of.
pub fn told(pool: &Pool) -> Option<(CommitRecord, BTreeMap<Key, Vec<u8>>)> {
    let read = |entry| (pool.read_commit_record(entry), entry.ptr.id);
    let records: Vec<_> = pool.commit_records();
    let records = records.iter().map(read).map(|(record, id)| (id, record.unwrap()));
    together(records.collect())
}

/// Rows of the tables as they are now.
pub fn rows(pool: &Pool) -> BTreeMap<Key, Vec<u8>> {
    let (rows, _) = pool.recorded_rows().unwrap();
    rows.into_iter().map(|Row { key, value }| (key, value.expect("it is there"))).collect()
}

/// A dataset without what a commit changes that only writes to it.
fn without_figures(value: &[u8]) -> DatasetRecord {
    let record = DatasetRecord::decode(value).unwrap();
    let (root, inherited) = (None, 0);
    DatasetRecord { root, referenced: 0, logical: 0, stored: 0, next_inode: 2, held: 0, inherited, ..record }
}

/// Whether a row need not be told before something else is.
fn is_told(key: &Key, told: Option<&[u8]>, now: &[u8]) -> bool {
    match (Table::of(key).unwrap(), told) {
        ((Table::Datasets, _), Some(told)) => without_figures(told) == without_figures(now),
        ((Table::Properties, 0), _) => PropertyRecord::decode(now).unwrap().name.starts_with("larder:"),
        _ => false,
    }
}

/// Commit records say what the tables say, but for figures, notes of the pool's own, and what is noted for the next.
pub fn assert_told(pool: &Pool, case: &str) {
    let (_, noted) = pool.recorded_rows().unwrap();
    let Some((_, mut told)) = told(pool) else { return };
    let rows = rows(pool);
    for (key, now) in &rows {
        let told = told.remove(key);
        let is_told = told.as_ref() == Some(now) || is_told(key, told.as_deref(), now);
        assert!(is_told || noted.contains(key), "{case}: {key:?} is told as {told:?}, and is {now:?}");
    }
    told.retain(|key, _| !noted.contains(key));
    assert!(told.is_empty(), "{case}: told, and gone: {told:?}");
}
