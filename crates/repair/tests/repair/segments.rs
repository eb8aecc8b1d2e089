//! Segments are lost at random, records and nodes alike: what is saved is what its blocks allow.

use crate::bed::{self, *};
use larder_device::{Entropy, SeededEntropy};
use larder_files::NodeId;
use larder_files::Ops;
use larder_format::SegmentId;
use larder_format::items::{ENTRY, EXTENT, Entry, Extent, INODE};
use larder_format::node::Node;
use larder_format::segment::{SegmentKind, SegmentRecord};
use larder_pool::{Pool, ROOT_DATASET};
use larder_sim::DeviceImage;
use larder_sorted::tree::Tree as Nodes;
use larder_store::{DatasetNodes, PoolError};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Segments that a file's content lies in, and those of the leaves that have its attributes, places and name.
#[derive(Default)]
struct Needs {
    content: HashSet<SegmentId>,
    leaves: HashSet<SegmentId>,
}

/// Needs of each file, by its path; folders are of one level.
fn needs(pool: &Arc<Pool>) -> BTreeMap<String, Needs> {
    let store = pool.store();
    let root = pool.snapshot(ROOT_DATASET, "now").unwrap().root.unwrap();
    let mut files: HashMap<u64, Needs> = HashMap::new();
    let mut names: HashMap<u64, (u64, String, SegmentId)> = HashMap::new();
    let tree = Nodes::open(root);
    let visited = tree.for_each_node(
        &DatasetNodes(store),
        |_| true,
        |ptr, node: Result<&Node, PoolError>| {
            let segment = store.place_of(ptr)?.segment;
            let Node::Leaf(leaf) = node? else { return Ok::<(), PoolError>(()) };
            for (key, value) in leaf.iter() {
                match key.kind {
                    EXTENT => {
                        let extent = Extent::decode(value)?;
                        let file = files.entry(key.object).or_default();
                        file.content.insert(store.place_of(extent.ptr)?.segment);
                        file.leaves.insert(segment);
                    }
                    INODE => drop(files.entry(key.object).or_default().leaves.insert(segment)),
                    ENTRY => {
                        let entry = Entry::decode(value)?;
                        let name = String::from_utf8(entry.name.to_vec()).unwrap();
                        names.insert(entry.inode.get(), (key.object, name, segment));
                    }
                    _ => {}
                }
            }
            Ok(())
        },
    );
    visited.unwrap();
    let mut all = BTreeMap::new();
    for (inode, (folder, name, segment)) in &names {
        let Some((_, above, of_folder)) = names.get(folder) else { continue };
        let mut needs = files.remove(inode).unwrap_or_default();
        needs.leaves.extend([*segment, *of_folder]);
        all.insert(format!("{above}/{name}"), needs);
    }
    all
}

/// Zeroes segments of records and nodes with a chance of `percent`, and compares.
fn lose(word: &str, count: usize, percent: u64, seed: u64) -> (usize, usize, usize, usize) {
    let bed = Bed::new(word, count, 128);
    let before = bed.fill(NodeId::ROOT, seed, 8, 60);
    let needs = needs(&bed.pool);
    let slot = bed.pool.store().groups()[0].slot_size;
    let (mut images, segments) = bed.export();
    let random = SeededEntropy::new(seed);
    let of = segments.iter().filter(|segment| !is_of_tables(segment));
    let lost: BTreeSet<SegmentId> =
        of.clone().filter(|_| random.next_u64() % 100 < percent).map(|segment| segment.id).collect();
    for segment in of.filter(|segment| lost.contains(&segment.id)) {
        zero_segment(&mut images, segment, slot);
    }
    let found = repaired(&bed::devices(images));
    let seen = read(&*mounted(&found.pool), NodeId::ROOT);
    let (mut expected, mut whole, mut nameless, mut all) = (0, 0, 0, 0);
    let contents: HashSet<&[u8]> = seen
        .iter()
        .filter(|(path, _)| path.starts_with("lost+found"))
        .map(|(_, content)| &content[..])
        .collect();
    for (path, content) in before.iter().filter(|(path, _)| !path.ends_with('/')) {
        all += 1;
        let of = &needs[path];
        let is_there = |segments: &HashSet<SegmentId>| segments.iter().all(|id| !lost.contains(id));
        let is_expected = is_there(&of.content) && is_there(&of.leaves);
        let is_whole = seen.get(path).is_some_and(|seen| seen == content);
        let is_nameless = !is_whole && !content.is_empty() && contents.contains(&content[..]);
        if is_expected {
            expected += 1;
            assert!(is_whole, "{word}, {percent} %, seed {seed}: {path} is not whole\n{:#?}", found.report);
        }
        // Content without its leaves is told by its blocks, but for its end's zeros.
        assert!(
            is_whole || seen.get(path).is_none_or(|seen| seen.len() != content.len() || content.is_empty()),
            "{word}, {percent} %, seed {seed}: {path} has other contents"
        );
        (whole, nameless) = (whole + usize::from(is_whole), nameless + usize::from(is_nameless));
    }
    (all, expected, whole, nameless)
}

#[test]
fn files_all_of_whose_blocks_are_there_are_whole() {
    for (word, devices) in [("single", 1), ("mirror", 2), ("raidz1", 3)] {
        for percent in [1, 5, 20, 50] {
            for seed in 0..3 {
                let (all, expected, whole, nameless) = lose(word, devices, percent, seed);
                eprintln!(
                    "{word} {percent} % seed {seed}: of {all} files {expected} expected, {whole} whole, {nameless} without a name"
                );
                assert!(whole >= expected);
            }
        }
    }
}

/// Damages random sectors of segments of nodes and records, in every copy: of the few of nodes as many as of others.
fn rot(images: &mut [DeviceImage], segments: &[SegmentRecord], random: &SeededEntropy, sectors: u64) {
    let is_of_nodes = |segment: &&SegmentRecord| segment.kind == SegmentKind::Node;
    let (nodes, records): (Vec<_>, Vec<_>) =
        segments.iter().filter(|segment| !is_of_tables(segment)).partition(is_of_nodes);
    for number in 0..sectors {
        let of = if number % 2 == 0 { &nodes } else { &records };
        let segment = of[(random.next_u64() % of.len() as u64) as usize];
        let sector = random.next_u64() % u64::from(segment.height.max(4096) / 4096);
        for slot in &segment.slots {
            zero_sector(images, *slot, 1 << 20, sector);
        }
    }
}

#[test]
fn what_comes_back_in_another_state_is_told() {
    let (mut older, mut whole, mut named, mut found_again) = (0, 0, 0, 0);
    for seed in 0..12 {
        let bed = Bed::new("single", 1, 128);
        bed.fill(NodeId::ROOT, seed, 6, 40);
        let random = SeededEntropy::new(seed);
        // States of files, one on top of the other: what is older is there, too.
        for _ in 0..6 {
            for _ in 0..10 {
                let (folder, file) = (random.next_u64() % 6, random.next_u64() % 40);
                let folder =
                    bed.mount.lookup(NodeId::ROOT, format!("folder-{folder}").as_bytes()).unwrap().node;
                let content = random.bytes((random.next_u64() % 60_000) as usize);
                bed.replace(folder, &format!("file {file}"), &content);
            }
            bed.pool.commit().unwrap();
        }
        let before = read(&*bed.mount, NodeId::ROOT);
        let (mut images, segments) = bed.export();
        if seed % 3 == 0 {
            zero_roots(&mut images);
        }
        rot(&mut images, &segments, &random, 60);
        let found = repaired(&devices(images));
        let mount = mounted(&found.pool);
        let seen = read(&*mount, NodeId::ROOT);
        let head = &found.report.trees.iter().find(|tree| tree.snapshot.is_none()).unwrap();
        for (path, content) in before.iter().filter(|(path, _)| !path.ends_with('/')) {
            let Some(seen) = seen.get(path) else { continue };
            named += 1;
            if seen == content {
                whole += 1;
                continue;
            }
            let (folder, name) = path.split_once('/').unwrap();
            let folder = mount.lookup(NodeId::ROOT, folder.as_bytes()).unwrap().node;
            let inode = mount.lookup(folder, name.as_bytes()).unwrap().node.unpack().1.get();
            let is_told = head.older.iter().any(|(low, high)| (*low..=*high).contains(&inode));
            assert!(
                is_told,
                "seed {seed}: {path}, inode {inode}, of {} bytes has {}, and nobody tells\n{:#?}",
                content.len(),
                seen.len(),
                found.report
            );
            older += 1;
        }
        found_again += seen.keys().filter(|path| path.starts_with("lost+found")).count();
    }
    eprintln!("{whole} of {named} as they were, {older} older and told, {found_again} in lost+found");
    assert!(older > 0 && found_again > 0, "the test shows nothing");
}
