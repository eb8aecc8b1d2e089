//! Rows of the tables that are intact, and that no build would have written.

use crate::{Class, Event, ROOT_DATASET, bed};
use larder_format::ByteLen;
use larder_format::node::Key;
use larder_format::tables::Table;
use larder_sim::SimWorld;

/// The import of a pool whose tables have another row.
fn import_with(
    row: impl FnOnce(&crate::Pool) -> (Key, Vec<u8>),
) -> Result<std::sync::Arc<crate::Pool>, String> {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    pool.snapshot(ROOT_DATASET, "monday").unwrap();
    let (key, value) = row(&pool);
    pool.change_tables(&[(key, Some(value))]).unwrap();
    pool.commit().unwrap();
    drop(pool);
    bed::import(sim.devices()).map_err(|error| error.to_string())
}

#[test]
fn a_row_under_a_key_that_is_not_its_own_is_refused_by_name() {
    let refused = |what: &str, row: fn(&crate::Pool) -> (Key, Vec<u8>)| {
        let told = import_with(row).err().unwrap_or_else(|| panic!("{what} is taken"));
        assert!(told.contains(what), "{told}");
    };
    refused("dataset record", |pool| {
        let record = pool.dataset(ROOT_DATASET).unwrap().state.read().record.encode();
        (Table::Datasets.key(9), record)
    });
    refused("snapshot record", |pool| {
        let record = pool.snapshot_named(ROOT_DATASET, "monday").unwrap();
        (Table::snapshot_key(ROOT_DATASET, record.high.next()), record.encode())
    });
    refused("key of a table", |_| (Key { kind: 7, ..Table::Events.key(3) }, b"an event".to_vec()));
}

#[test]
fn an_event_with_a_number_behind_all_others_stops_nobody_from_telling_more() {
    let pool = import_with(|_| (Table::Events.key(u64::MAX), b"no event".to_vec())).unwrap();
    for _ in 0..3 {
        pool.store().event(Event::new(Class::PoolImport));
        pool.commit().unwrap();
    }
    assert!(pool.events(0).iter().any(|(_, event)| event.class == "pool_import"));
}
