//! Properties that streams bring, beside those that are set here.

use crate::property::parse_dataset;
use crate::{Here, OwnProperties, Pool, PropertySource, ROOT_DATASET, bed};
use larder_format::ByteLen;
use larder_format::property as stored;
use larder_format::tables::Table;
use larder_sim::{SimWorld, Survival};
use std::collections::{BTreeMap, BTreeSet};

fn values(given: &[(&str, &str)]) -> BTreeMap<String, String> {
    given.iter().map(|(name, value)| parse_dataset(name, value, false).unwrap()).collect()
}

/// Brings these; gives the names of what was refused.
fn bring(pool: &Pool, given: &[(&str, &str)], masked: &[&str]) -> Vec<String> {
    let masked: BTreeSet<_> = masked.iter().map(|&name| name.to_owned()).collect();
    let refused = pool.receive_properties(ROOT_DATASET, &values(given), &masked).unwrap();
    refused.into_iter().map(|(name, _)| name).collect()
}

fn own(pool: &Pool) -> OwnProperties {
    pool.dataset(ROOT_DATASET).unwrap().own_properties()
}

fn effective(pool: &Pool, name: &str) -> Option<(String, PropertySource)> {
    pool.effective(ROOT_DATASET, name).map(|found| (found.value, found.source))
}

fn some(value: &str, source: PropertySource) -> Option<(String, PropertySource)> {
    Some((value.to_owned(), source))
}

#[test]
fn a_stream_replaces_what_streams_brought_and_touches_nothing_that_was_set_here() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    pool.set_property(ROOT_DATASET, "atime", "off").unwrap();
    let first =
        [("atime", "relatime"), ("compression", "zstd"), ("org.example:a", "1"), ("snapdir", "visible")];
    assert_eq!(bring(&pool, &first, &["snapdir", "atime"]), [""; 0]);
    assert_eq!(effective(&pool, "atime"), some("off", PropertySource::Local));
    assert_eq!(effective(&pool, "compression"), some("zstd", PropertySource::Received));
    assert_eq!(effective(&pool, "snapdir"), some("hidden", PropertySource::Default));
    assert_eq!(own(&pool).here("atime"), Here::Set("off".into()), "a mask is over nothing that was set");

    pool.inherit_property(ROOT_DATASET, "compression").unwrap();
    pool.inherit_property(ROOT_DATASET, "acltype").unwrap();
    assert_eq!(effective(&pool, "compression"), some("lz4", PropertySource::Default));
    assert_eq!(own(&pool).here("acltype"), Here::Nothing, "there is nothing to mask");
    pool.set_here(ROOT_DATASET, "snapdir", Here::Nothing).unwrap();
    assert_eq!(effective(&pool, "snapdir"), some("visible", PropertySource::Received));

    assert_eq!(bring(&pool, &[("compression", "gzip"), ("snapdir", "hidden")], &[]), [""; 0]);
    assert_eq!(own(&pool).received().keys().collect::<Vec<_>>(), ["compression", "snapdir"]);
    assert_eq!(effective(&pool, "org.example:a"), None);
    assert_eq!(effective(&pool, "compression"), some("lz4", PropertySource::Default), "still masked");

    let before = own(&pool);
    pool.commit_export().unwrap();
    drop(pool);
    let pool = bed::import(sim.devices()).unwrap();
    assert_eq!(own(&pool), before);
    pool.set_here(ROOT_DATASET, "compression", Here::Nothing).unwrap();
    assert_eq!(effective(&pool, "compression"), some("gzip", PropertySource::Received));
    let settings = pool.dataset(ROOT_DATASET).unwrap().settings();
    assert_eq!(settings.codec, crate::codec::Codec::Gzip(6));
}

#[test]
fn limits_that_were_received_bind_and_those_that_cannot_be_are_refused_alone() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    let id = pool.create_dataset("tank/a", BTreeMap::new()).unwrap().id();
    let bring = |given: &[(&str, &str)]| -> Vec<String> {
        let refused = pool.receive_properties(id, &values(given), &BTreeSet::new()).unwrap();
        refused.into_iter().map(|(name, _)| name).collect()
    };
    let children = |pool: &Pool| pool.share(ROOT_DATASET).children;
    assert_eq!(bring(&[("quota", "32M"), ("reservation", "8M")]), [""; 0]);
    assert_eq!(children(&pool), 8 << 20);
    // Either way round, one has to wait for the other.
    assert_eq!(bring(&[("quota", "4M"), ("reservation", "2M")]), [""; 0]);
    assert_eq!(bring(&[("quota", "32M"), ("reservation", "8M")]), [""; 0]);
    assert_eq!(bring(&[("atime", "off"), ("reservation", "100G")]), ["reservation"]);
    let own = pool.dataset(id).unwrap().own_properties();
    assert_eq!(own.received()["reservation"], (8 << 20).to_string(), "it stays as it was");
    assert_eq!((own.get("atime"), own.get("quota")), (Some(("off", true)), None));
    pool.set_property(id, "reservation", "0").unwrap();
    assert_eq!(children(&pool), pool.share(id).used);
    assert_eq!(pool.effective(id, "reservation").unwrap().source, PropertySource::Default);
    pool.set_here(id, "reservation", Here::Nothing).unwrap();
    pool.commit_export().unwrap();
    drop(pool);
    let pool = bed::import(sim.devices()).unwrap();
    assert_eq!(children(&pool), 8 << 20);
}

#[test]
fn whenever_the_power_fails_all_that_a_stream_brought_is_there_or_nothing_of_it() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    pool.set_property(ROOT_DATASET, "snapdir", "visible").unwrap();
    bring(&pool, &[("atime", "off"), ("org.example:a", "1"), ("xattr", "off")], &["xattr"]);
    pool.commit().unwrap();
    let (before, from) = (own(&pool), sim.trace().len());
    bring(&pool, &[("compression", "zstd"), ("org.example:a", "2"), ("snapdir", "hidden")], &["compression"]);
    pool.commit().unwrap();
    let after = own(&pool);
    drop(pool);
    let trace = sim.trace();
    let (mut sweep, mut met) = (trace.sweep(), [0; 2]);
    for cut in from..=trace.len() {
        sweep.advance_to(cut);
        for survival in [Survival::KeepAll, Survival::DropAll, Survival::Random { seed: 7 }] {
            let cut_off = SimWorld::from_images(sweep.images(survival));
            let found = own(&bed::import(cut_off.devices()).unwrap());
            assert!(found == before || found == after, "cut {cut}, {survival:?}: {found:?}");
            met[usize::from(found == after)] += 1;
        }
    }
    assert!(met.iter().all(|&times| times > 0), "{met:?}");
}

#[test]
fn a_dataset_that_goes_takes_what_it_received_with_it() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    let id = pool.create_dataset("tank/a", values(&[("atime", "off")])).unwrap().id();
    pool.receive_properties(id, &values(&[("atime", "on"), ("xattr", "off")]), &["xattr".to_owned()].into())
        .unwrap();
    pool.commit().unwrap();
    pool.destroy_dataset(id).unwrap();
    pool.commit_export().unwrap();
    drop(pool);
    let pool = bed::import(sim.devices()).unwrap();
    let left = crate::contents::Contents::read(&pool.tables.lock(), &pool.shared.store).unwrap();
    assert!(!left.properties.contains_key(&id), "{:?}", left.properties);
}

#[test]
fn a_property_takes_no_entry_of_another_whose_name_hashes_alike() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    bring(&pool, &[("org.example:a", "1")], &[]);
    // The entry of one is where that of the other would be.
    let key = |name| Table::property_key(ROOT_DATASET, name, stored::PropertySource::Received);
    let record = |name: &str| {
        let (name, value) = (name.to_owned(), "theirs".to_owned());
        stored::PropertyRecord { name, value, source: stored::PropertySource::Received }.encode()
    };
    pool.change_tables(&[(key("org.example:b"), Some(record("org.example:other")))]).unwrap();
    assert_eq!(bring(&pool, &[("org.example:a", "2"), ("org.example:b", "mine")], &[]), ["org.example:b"]);
    assert_eq!(own(&pool).received().get("org.example:b"), None);
    assert_eq!(effective(&pool, "org.example:a"), some("2", PropertySource::Received));
    pool.commit().unwrap();
    let left = crate::contents::Contents::read(&pool.tables.lock(), &pool.shared.store).unwrap();
    assert_eq!(left.properties[&ROOT_DATASET].received()["org.example:other"], "theirs");
}

#[test]
fn a_quota_that_stays_is_not_weighed_again_and_a_value_without_room_in_a_node_is_refused_alone() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = bed::pool(sim.devices(), "single");
    let id = pool.create_dataset("tank/a", BTreeMap::new()).unwrap().id();
    let long = "x".repeat(larder_format::node::MAX_VALUE);
    let brought = |quota: &str, long: &str| -> BTreeMap<_, _> {
        let given = [("quota", quota), ("refquota", "1M"), ("org.example:long", long), ("atime", "off")];
        given.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    };
    let refused = pool.receive_properties(id, &brought("33554432", &long), &BTreeSet::new()).unwrap();
    let names: Vec<_> = refused.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["org.example:long", "refquota"], "1M is no exact form");
    // Somebody uses more than it may by now.
    pool.shared.accounts.post(id, 40 << 20);
    let again = brought("33554432", "short").into_iter().filter(|(name, _)| name != "refquota").collect();
    assert!(pool.receive_properties(id, &again, &BTreeSet::new()).unwrap().is_empty());
    let less = brought("16777216", "short").into_iter().filter(|(name, _)| name != "refquota").collect();
    assert_eq!(pool.receive_properties(id, &less, &BTreeSet::new()).unwrap()[0].0, "quota");
    pool.shared.accounts.post(id, -(40 << 20));
    let own = pool.dataset(id).unwrap().own_properties();
    assert_eq!((&*own.received()["quota"], &*own.received()["org.example:long"]), ("33554432", "short"));
}
