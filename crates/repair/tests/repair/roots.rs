//! Roots, tables, the block map and labels are lost; records and nodes are there.

use crate::bed::*;
use larder_files::{NodeId, Ops, View};
use larder_format::segment::SegmentRecord;
use larder_pool::ROOT_DATASET;
use larder_repair::LogReport;
use larder_sim::{DeviceImage, SimWorld};

const LAYOUTS: [(&str, usize); 6] =
    [("single", 1), ("mirror", 2), ("raidz1", 3), ("raidz2", 5), ("raid10", 4), ("raid14", 5)];

/// A pool that was exported: its devices, segments, bytes of a slot, and its files when a snapshot was taken and now.
struct Before {
    images: Vec<DeviceImage>,
    segments: Vec<SegmentRecord>,
    slot: u32,
    monday: Tree,
    now: Tree,
}

fn exported(word: &str, devices: usize) -> Before {
    let bed = Bed::new(word, devices, 96);
    let monday = bed.fill(NodeId::ROOT, 1, 4, 12);
    bed.pool.snapshot(ROOT_DATASET, "monday").unwrap();
    let folder = bed.mount.lookup(NodeId::ROOT, b"folder-1").unwrap().node;
    let mut now = monday.clone();
    bed.write(folder, "file 3", &[7; 300_000]);
    let rest = monday["folder-1/file 3"].get(300_000..).unwrap_or(&[]);
    now.insert("folder-1/file 3".into(), [&[7; 300_000][..], rest].concat());
    bed.mount.unlink(folder, b"file 4").unwrap();
    now.remove("folder-1/file 4");
    let slot = bed.pool.store().groups()[0].slot_size;
    let (images, segments) = bed.export();
    Before { images, segments, slot, monday, now }
}

/// Repairs, and holds that nothing was written to the pool's devices.
fn repaired_beside(images: Vec<DeviceImage>) -> larder_repair::Repaired {
    let sim = SimWorld::from_images(images.clone());
    let found = repaired(&sim.devices());
    assert!(sim.images() == images, "repair wrote to the pool's devices");
    found
}

#[test]
fn a_pool_without_roots_tables_and_map_has_all_of_its_files() {
    for (word, devices) in LAYOUTS {
        let Before { mut images, segments, slot, monday, now } = exported(word, devices);
        zero_roots(&mut images);
        for segment in segments.iter().filter(|segment| is_of_tables(segment)) {
            zero_segment(&mut images, segment, slot);
        }
        let found = repaired_beside(images);
        assert!(found.report.is_whole(), "{word}: {:#?}", found.report);
        let mount = mounted(&found.pool);
        assert!(read(&*mount, NodeId::ROOT) == now, "{word}: {:#?}", found.report);
        // Commit records have what the tables said.
        let snapshot = View::of_snapshot(mount, ROOT_DATASET, "monday").unwrap();
        assert!(read(&snapshot, NodeId::ROOT) == monday, "{word}");
    }
}

#[test]
fn a_pool_without_roots_has_its_snapshots_and_names() {
    for (word, devices) in LAYOUTS {
        let Before { mut images, monday, now, .. } = exported(word, devices);
        zero_roots(&mut images);
        let found = repaired_beside(images);
        assert!(found.report.is_whole(), "{word}: {:#?}", found.report);
        let mount = mounted(&found.pool);
        assert!(read(&*mount, NodeId::ROOT) == now, "{word}: {:#?}", found.report);
        let snapshot = View::of_snapshot(mount, ROOT_DATASET, "monday").unwrap();
        assert!(read(&snapshot, NodeId::ROOT) == monday, "{word}");
    }
}

#[test]
fn devices_without_labels_are_known_by_their_segments() {
    for (word, devices) in LAYOUTS.into_iter().filter(|(_, devices)| *devices > 1) {
        let Before { mut images, monday, now, .. } = exported(word, devices);
        images.iter_mut().skip(1).for_each(zero_labels);
        let found = repaired_beside(images);
        assert_eq!(found.report.remarks.len(), devices - 1, "{word}: {:?}", found.report.remarks);
        assert!(found.report.is_whole(), "{word}: {:#?}", found.report);
        let mount = mounted(&found.pool);
        assert!(read(&*mount, NodeId::ROOT) == now, "{word}");
        let snapshot = View::of_snapshot(mount, ROOT_DATASET, "monday").unwrap();
        assert!(read(&snapshot, NodeId::ROOT) == monday, "{word}");
    }
}

#[test]
fn what_the_layout_tolerates_may_be_missing_besides() {
    for (word, lost) in [("mirror", 1), ("raidz1", 1), ("raidz2", 2), ("raid10", 1), ("raid14", 2)] {
        let devices = LAYOUTS.iter().find(|(of, _)| *of == word).unwrap().1;
        let Before { mut images, now, .. } = exported(word, devices);
        zero_roots(&mut images);
        images.drain(..lost);
        let found = repaired_beside(images);
        assert!(read(&*mounted(&found.pool), NodeId::ROOT) == now, "{word}: {:#?}", found.report);
    }
}

#[test]
fn what_was_synced_after_the_last_commit_is_done_again_where_its_root_is_there() {
    for (word, devices) in LAYOUTS {
        for is_root_lost in [false, true] {
            let bed = Bed::new(word, devices, 96);
            let mut now = bed.fill(NodeId::ROOT, 3, 2, 6);
            let folder = bed.mount_folder("folder-1");
            let made = bed.mount.create(folder, b"synced", 0o644, READ_WRITE, &USER).unwrap();
            bed.mount.write(made.attr.node, made.handle, 0, b"promised", false).unwrap();
            bed.mount.fsync(made.attr.node, made.handle, false).unwrap();
            // The plug is pulled.
            let mut images = bed.sim.images();
            if is_root_lost {
                zero_roots(&mut images);
            } else {
                now.insert("folder-1/synced".into(), b"promised".to_vec());
            }
            let found = repaired_beside(images);
            let expected = if is_root_lost { LogReport::LeftOut } else { LogReport::Again(2) };
            assert_eq!(found.report.log, expected, "{word}");
            assert!(read(&*mounted(&found.pool), NodeId::ROOT) == now, "{word}, roots lost: {is_root_lost}");
        }
    }
}
