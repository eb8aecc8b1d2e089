//! Records that are lost become holes: then the pool that is put together can be sent whole.

use crate::bed::*;
use larder_device::{Entropy, SeededEntropy};
use larder_files::{Mount, NodeId, OpenFlags, Ops};
use larder_pool::{Pool, ROOT_DATASET};
use larder_stream::{Send, StreamError};
use std::sync::Arc;

const PIECE: u32 = 4096;

/// Pieces of all files, none where they cannot be read.
fn pieces(mount: &Mount, node: NodeId, path: &str, all: &mut Vec<(String, Option<Vec<u8>>)>) {
    let mut entries = Vec::new();
    let handle = mount.opendir(node).unwrap();
    let list = &mut |entry: larder_files::DirEntry<'_>| {
        entries.push((entry.node, String::from_utf8(entry.name.to_vec()).unwrap()));
        true
    };
    mount.readdir(node, handle, 0, false, list).unwrap();
    for (node, name) in entries.into_iter().filter(|(_, name)| name != "." && name != "..") {
        let (attr, path) = (mount.getattr(node).unwrap(), format!("{path}/{name}"));
        if attr.kind == larder_files::FileKind::Directory {
            pieces(mount, node, &path, all);
            continue;
        }
        let handle = mount.open(node, OpenFlags { write: false, ..READ_WRITE }).unwrap();
        for at in (0..attr.size).step_by(PIECE as usize) {
            let read = mount.read(node, handle, at, PIECE);
            let whole = (attr.size - at).min(PIECE.into()) as usize;
            let read = read.ok().map(|data| data.to_vec()).filter(|data| data.len() == whole);
            all.push((format!("{path} at {at}"), read));
        }
    }
}

/// Sends all snapshots of the pool's own dataset, each upon the one before it; records that were sent.
fn send_all(pool: &Arc<Pool>) -> Result<u64, StreamError> {
    pool.snapshot(ROOT_DATASET, "now")?;
    let (mut before, mut records) = (None, 0);
    for record in pool.snapshots(ROOT_DATASET) {
        let view = pool.snapshot_view_of(ROOT_DATASET, record.high).unwrap();
        let mut send = Send::new(pool, before.as_ref(), &view, None);
        while send.chunk()?.is_some() {}
        records += send.sent().end.records;
        before = Some(view);
    }
    Ok(records)
}

#[test]
fn what_is_lost_becomes_holes_and_then_all_can_be_sent() {
    let (mut lost, mut refused) = (0, 0);
    for (word, devices) in [("single", 1), ("raidz1", 3)] {
        for seed in 0..4 {
            let bed = Bed::new(word, devices, 128);
            bed.fill(NodeId::ROOT, seed, 4, 40);
            bed.pool.snapshot(ROOT_DATASET, "before").unwrap();
            let random = SeededEntropy::new(seed);
            for number in 0..8 {
                let folder = bed.mount_folder(&format!("folder-{}", random.next_u64() % 4));
                bed.replace(folder, &format!("file {number}"), &random.bytes(90_000));
            }
            let slot = bed.pool.store().groups()[0].slot_size;
            let (mut images, segments) = bed.export();
            for segment in segments.iter().filter(|segment| !is_of_tables(segment)) {
                if random.next_u64().is_multiple_of(4) {
                    zero_segment(&mut images, segment, slot);
                }
            }
            let as_it_is = repaired_and(&devices_of(&images), false);
            let cut = repaired_and(&devices_of(&images), true);
            let files = |report: &larder_repair::Report| -> Vec<_> {
                report.trees.iter().map(|tree| (tree.snapshot.clone(), tree.files.clone())).collect()
            };
            assert!(files(&as_it_is.report) == files(&cut.report), "{word}, seed {seed}: told differently");
            let [mut was, mut is] = [Vec::new(), Vec::new()];
            pieces(&mounted(&as_it_is.pool), NodeId::ROOT, "", &mut was);
            pieces(&mounted(&cut.pool), NodeId::ROOT, "", &mut is);
            assert_eq!(was.len(), is.len(), "{word}, seed {seed}");
            for ((name, was), (other, is)) in was.iter().zip(&is) {
                assert_eq!(name, other, "{word}, seed {seed}");
                let is = is.as_ref().unwrap_or_else(|| panic!("{word}, seed {seed}: {name} is not readable"));
                match was {
                    Some(was) => assert!(was == is, "{word}, seed {seed}: {name} has another content"),
                    None => {
                        lost += 1;
                        let is_hole = is.iter().all(|byte| *byte == 0);
                        assert!(is_hole, "{word}, seed {seed}: {name} is no hole");
                    }
                }
            }
            // Each hole is told, and told is nothing else.
            let mount = mounted(&cut.pool);
            let head = cut.report.trees.iter().find(|tree| tree.snapshot.is_none()).unwrap();
            let told: u64 = head.files.told.iter().map(|file| pieces_of(&mount, file)).sum();
            let holes = was.iter().filter(|(_, was)| was.is_none()).count() as u64;
            assert_eq!(told, holes, "{word}, seed {seed}");
            assert!(send_all(&cut.pool).unwrap() > 0, "{word}, seed {seed}");
            refused += u64::from(send_all(&as_it_is.pool).is_err());
        }
    }
    assert!(lost > 100 && refused > 2, "the test shows nothing: {lost} pieces lost, {refused} not sent");
}

/// Pieces that the lost ranges of a file meet, if it has a name.
fn pieces_of(mount: &Mount, file: &larder_repair::Partial) -> u64 {
    let volume = mount.volume(ROOT_DATASET).unwrap();
    let has_name = volume.path_of(larder_format::InodeId::new(file.inode)).is_ok_and(|path| path.is_some());
    let pieces = |range: &std::ops::Range<u64>| {
        (range.end.min(file.size)).div_ceil(PIECE.into()) - range.start / u64::from(PIECE)
    };
    if has_name { file.ranges.iter().map(pieces).sum() } else { 0 }
}

fn devices_of(images: &[larder_sim::DeviceImage]) -> Vec<Arc<dyn larder_device::Device>> {
    devices(images.to_vec())
}
