//! A panic in a change of a pool, in a daemon that goes on: the pool is suspended before anybody sees what was left
//! half done, `status`, `check` and `events` tell of it, and the next import is of what was before.

use super::*;
use crate::api::events::Events;
use crate::api::pool::{Export, State, Status, Sync};
use crate::render::status::{Health, check_line, health};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The change panics, and the pool knows.
fn dies_in(live: &Live, change: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(change)).expect_err("it panics");
    assert!(live.pool.store().suspended().is_some(), "nobody was told");
}

#[test]
fn a_panic_suspends_the_pool_and_status_check_and_events_say_so() {
    let bed = Bed::new();
    let live = bed.tank(&["tank/a", "tank/b"]);
    bed.host.pool_create(bed.request("other")).unwrap();
    live.pool.commit().unwrap();
    let before = (names(&live), local(&live, "tank/a"));

    // Half of a change of two datasets is done, and some of a tree.
    dies_in(&live, || {
        let _entered = live.pool.enter().unwrap();
        let a = live.pool.dataset_by_name("tank/a").unwrap().id();
        live.pool.rename_dataset(a, "tank/half").unwrap();
        panic!("planted");
    });

    let status = bed.host.pool_status(Status { names: vec!["tank".into()] }).unwrap().pools.remove(0);
    assert_eq!(status.root.state, State::Suspended);
    let told = status.status.clone().unwrap_or_default();
    assert!(told.contains("a bug of Larder"), "{told}");
    assert_eq!(health(&status), Health::Faulted, "what `check` ends with");
    let line = check_line(&status);
    assert!(line.contains("tank: faulted") && line.contains("a bug of Larder"), "{line}");
    let events = bed.host.pool_events(Events { names: vec!["tank".into()], ..Events::default() }).unwrap();
    let is_told = events.pools[0]
        .events
        .iter()
        .any(|event| event.class == "pool_suspend" && event.text.contains("a bug of Larder"));
    assert!(is_told, "{:?}", events.pools[0].events);

    // Nothing is taken or promised any more, and no other pool is touched.
    bed.host.pool_sync(Sync { names: vec!["tank".into()] }).unwrap_err();
    bed.host.fs_create(dataset("tank/late")).unwrap_err();
    bed.host.pool_sync(Sync { names: vec!["other".into()] }).unwrap();
    bed.host.pool_export(Export { name: "tank".into(), force: false, forget: false }).unwrap_err();
    drop(live);
    bed.host.pool_export(Export { name: "tank".into(), force: true, forget: false }).unwrap();
    bed.host.pool_import(import("tank", vec![bed.path("tank")])).unwrap();
    let live = bed.host.pool("tank").unwrap();
    assert_eq!((names(&live), local(&live, "tank/a")), before);
}
