//! Golden images: pools that earlier code wrote are opened, are whole, hold what they held, and can be written.
//!
//! `tests/golden/README.md` says what the images are, how missing ones are made, and how to ask whether the code still
//! writes the same bytes.

#[path = "../volume/bed.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod bed;
mod image;
mod manifest;
mod recipes;

use bed::{Bed, ROOT};
use larder_files::*;
use larder_format::checksum::plain64;
use larder_format::label::{FORMAT_VERSION, LABEL_LEN, label_areas};
use larder_pool::open::{Scan, scan};
use larder_sim::{DeviceImage, SimClock, SimWorld};
use larder_upkeep::Upkeep;
use larder_upkeep::{ScrubOutcome, ScrubSince};
use manifest::{attach_all, conditions, entries, others, root_of};
use recipes::RECIPES;
use std::sync::Arc;
use std::time::Duration;

/// Versions that are read; an image of another is refused by name.
const READ: [u32; 1] = [FORMAT_VERSION];

/// Prefix of the names that the tests make.
const NEW: &str = "golden test";

fn import(sim: &SimWorld, seed: u64) -> Bed {
    let clock = Arc::new(SimClock::new());
    clock.advance(Duration::from_secs(seed << 20));
    let bed = Bed::import(sim.clone(), clock, seed);
    attach_all(&bed);
    bed
}

fn export(bed: Bed) -> SimWorld {
    bed.pool.commit_export().unwrap();
    drop((bed.mount, bed.pool));
    bed.sim
}

/// Goes on with all that an import has to go on with, and commits.
fn settle(bed: &Bed) {
    while bed.upkeep.resilver.step(1 << 20).unwrap() {}
    while bed.mount.reap_step(1000).unwrap() {}
    while bed.pool.destroy_step(1000).unwrap() {}
    while bed.upkeep.damage.step(1000).unwrap() {}
    bed.pool.commit().unwrap();
    while bed.pool.free_step(1000).unwrap() {}
    bed.pool.commit().unwrap();
}

/// A whole scrub; how many ranges are lost. Where nothing is, nothing may have to be repaired either.
fn scrub(upkeep: &Upkeep) -> u64 {
    upkeep.scrub.start(ScrubSince::All).unwrap();
    while upkeep.scrub.step(u64::MAX).unwrap() {}
    let result = upkeep.scrub.result().unwrap();
    assert_eq!((result.outcome, result.repaired), (ScrubOutcome::Done, 0), "{result:?}");
    result.lost
}

/// The pool's own check finds nothing, but what is rotten.
fn check(bed: &Bed, lost: u64) {
    let mut problems = bed.upkeep.check().unwrap().problems;
    let rotten = |problem: &String| {
        ["does not match its checksum", "cannot be read"].iter().any(|of| problem.contains(of))
    };
    problems.retain(|problem| lost == 0 || !rotten(problem));
    assert!(problems.is_empty(), "{problems:#?}");
}

fn trace(upkeep: &Upkeep, lost: u64) {
    assert!(upkeep.gc.start().unwrap());
    while upkeep.gc.step(1000).unwrap() {}
    let found = upkeep.gc.findings().unwrap();
    assert!((found.missing, found.lost) == (0, 0) || lost > 0, "{found:?}");
    upkeep.pool().commit().unwrap();
}

/// Lines of the manifest, without the files that the tests write and the directories that they write to.
fn old(lines: &[String]) -> Vec<String> {
    lines.iter().filter(|line| !line.contains(NEW) && !line.contains(" / ")).cloned().collect()
}

/// Directories that can be written to, one a dataset.
fn writable(bed: &Bed) -> Vec<NodeId> {
    let others = others(&bed.pool).into_iter().filter(|dataset| !dataset.settings().readonly);
    [ROOT].into_iter().chain(others.map(|dataset| root_of(dataset.id()))).collect()
}

/// Something new in every dataset, and a copy of something old in two ways: by reference and byte by byte.
fn write(bed: &Bed, tops: &[NodeId]) -> Vec<(NodeId, Vec<u8>)> {
    let mut written = Vec::new();
    for &top in tops {
        let name = |what: &str| format!("{NEW} {what}");
        let mut put = |what: &str, content: Vec<u8>| {
            let node = bed.file(top, &name(what));
            bed.write(node, 0, &content);
            written.push((node, content));
        };
        put("fresh", (0..70_000_u32).flat_map(|at| at.wrapping_mul(at).to_le_bytes()).collect());
        let files = entries(bed, top).into_iter().map(|(_, node)| bed.mount.getattr(node).unwrap());
        let largest =
            files.filter(|attr| attr.kind == FileKind::Regular).max_by_key(|attr| attr.size).unwrap();
        let content = bed.content(largest.node);
        put("copy", content.clone());
        let node = bed.file(top, &name("clone"));
        bed.mount.copy_range((largest.node, 0), (node, 0), u64::MAX).unwrap();
        written.push((node, content));
    }
    written
}

/// All that an image is held to.
fn hold(devices: Vec<DeviceImage>, manifest: &str) {
    let wanted: Vec<String> = manifest.lines().map(str::to_owned).collect();
    let (wanted_conditions, wanted) =
        wanted.split_at(wanted.iter().position(|line| line.starts_with("pool ")).unwrap());
    let bed = import(&SimWorld::from_images(devices), 11);
    assert_eq!(conditions(&bed), wanted_conditions);
    let lost = wanted_conditions.iter().filter(|line| line.starts_with("damaged")).count() as u64;
    same(&manifest::tell(&bed), wanted);

    settle(&bed);
    assert_eq!(scrub(&bed.upkeep), lost);
    check(&bed, lost);
    let tops = writable(&bed);
    let written = write(&bed, &tops);
    let right = |bed: &Bed| {
        for (node, content) in &written {
            assert!(bed.content(*node) == *content, "{node:?} is not what was written");
        }
        same(&old(&manifest::tell(bed)), &old(wanted));
    };
    right(&bed);
    let bed = import(&export(bed), 12);
    right(&bed);
    trace(&bed.upkeep, lost);
    settle(&bed);
    assert_eq!(scrub(&bed.upkeep), lost);
    check(&bed, lost);
    right(&bed);

    // It can all go.
    while let Some(one) = bed.pool.trash().pop() {
        bed.pool.let_go(one.key).unwrap();
    }
    for dataset in bed.pool.datasets() {
        for snapshot in bed.pool.snapshots(dataset.id()) {
            for tag in bed.pool.snapshot_holds(&snapshot).unwrap().into_keys() {
                bed.pool.release_snapshots(&[(dataset.id(), snapshot.name.clone())], &tag).unwrap();
            }
            bed.pool.destroy_snapshot(dataset.id(), &snapshot.name).unwrap();
        }
    }
    tops.iter().for_each(|top| remove_all(&bed, *top));
    settle(&bed);
    trace(&bed.upkeep, lost);
    settle(&bed);
    let bed = import(&export(bed), 13);
    check(&bed, lost);
    assert!(tops.iter().all(|top| entries(&bed, *top).is_empty()));
}

fn remove_all(bed: &Bed, dir: NodeId) {
    for (name, node) in entries(bed, dir) {
        if bed.mount.getattr(node).unwrap().kind == FileKind::Directory {
            remove_all(bed, node);
            bed.mount.rmdir(dir, &name).unwrap();
        } else {
            bed.mount.unlink(dir, &name).unwrap();
        }
    }
}

fn same(found: &[String], wanted: &[String]) {
    for (found, wanted) in found.iter().zip(wanted) {
        assert_eq!(found, wanted, "found and wanted");
    }
    assert_eq!(found.len(), wanted.len(), "lines");
}

/// The devices as a build of another format version would have labelled them.
fn of_version(mut devices: Vec<DeviceImage>, version: u32) -> Vec<DeviceImage> {
    for device in &mut devices {
        for area in label_areas(device.size()) {
            let mut label = device.read(area, LABEL_LEN);
            label[8..12].copy_from_slice(&version.to_le_bytes());
            let end = LABEL_LEN - 8;
            let sum = plain64(&label[..end]);
            label[end..].copy_from_slice(&sum.to_le_bytes());
            device.write(area, &label);
        }
    }
    devices
}

fn assert_refused(devices: Vec<DeviceImage>, version: u32) {
    let sim = SimWorld::from_images(devices);
    for device in sim.devices() {
        let Scan::Unsupported(refused) = scan(&device) else { panic!("version {version} is not refused") };
        let told = [format!("format version {version}"), format!("reads version {FORMAT_VERSION}")];
        assert!(told.iter().all(|told| refused.why.contains(told)), "{}", refused.why);
    }
}

#[test]
fn every_golden_pool_is_whole_holds_what_it_held_and_can_be_written() {
    let names = image::names();
    for recipe in RECIPES {
        let name = format!("v{FORMAT_VERSION}-{}", recipe.name);
        assert!(names.contains(&name), "{name} is missing: see tests/golden/README.md");
    }
    for name in names {
        eprintln!("{name}");
        let (devices, manifest) = image::load(&name);
        if READ.contains(&image::version_of(&name)) {
            hold(devices, &manifest);
        } else {
            assert_refused(devices, image::version_of(&name));
        }
    }
}

#[test]
fn what_a_build_wrote_that_stamps_nothing_is_not_taken_to_tell_by_ids_what_was_there() {
    for (name, is_traced) in [("bookmarks", false), ("placed", true)] {
        let (devices, _) = image::load(&format!("v9-{name}"));
        let bed = import(&SimWorld::from_images(devices), 11);
        let marks = bed.pool.datasets().into_iter().flat_map(|dataset| bed.pool.bookmarks(dataset.id()));
        let traced: Vec<_> = marks.map(|mark| bed.pool.is_traced(&mark)).collect();
        assert!(!traced.is_empty() && traced.iter().all(|traced| *traced == is_traced), "{name}: {traced:?}");
        // From now on it tells, and for good.
        let new = |bed: &Bed, name: &str| {
            bed.pool.snapshot(larder_pool::ROOT_DATASET, name).unwrap();
            let source = larder_pool::BookmarkSource::Snapshot(name);
            bed.pool.make_bookmark(larder_pool::ROOT_DATASET, source, name).unwrap()
        };
        let mark = new(&bed, NEW);
        assert!(bed.pool.is_traced(&mark));
        assert!(import(&export(bed), 12).pool.is_traced(&mark));
    }
}

#[test]
fn a_pool_of_a_version_that_is_not_known_is_refused_by_name() {
    for name in image::names().iter().filter(|name| READ.contains(&image::version_of(name))) {
        let (devices, _) = image::load(name);
        for version in [0, 1, FORMAT_VERSION - 1, FORMAT_VERSION + 1, u32::MAX] {
            assert_refused(of_version(devices.clone(), version), version);
        }
    }
}

#[test]
#[ignore = "it makes the images that are missing"]
fn make() {
    let there = image::names();
    for recipe in RECIPES {
        let name = format!("v{FORMAT_VERSION}-{}", recipe.name);
        if there.contains(&name) {
            println!("{name} is there, and stays as it is");
            continue;
        }
        let made = recipe.make();
        let bed = import(&SimWorld::from_images(made.images.clone()), 10);
        let manifest = [conditions(&bed), made.holds].concat().join("\n") + "\n";
        drop(bed);
        hold(made.images.clone(), &manifest);
        println!("{name}: {} bytes", image::add(&name, &made.images, &manifest));
    }
}

#[test]
#[ignore = "what is written may change while the format stays"]
fn the_recipes_still_give_the_same_bytes() {
    let made =
        RECIPES.iter().map(|recipe| (format!("v{FORMAT_VERSION}-{}", recipe.name), recipe.make().images));
    let other: Vec<_> =
        made.filter(|(name, images)| image::load(name).0 != *images).map(|(name, _)| name).collect();
    assert!(other.is_empty(), "other bytes than in {other:?}");
}
