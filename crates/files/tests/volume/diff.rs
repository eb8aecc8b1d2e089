//! Differences between snapshots against what can be seen in both: what is told leads from the one to the other, and
//! nothing else is told.

use crate::bed::*;
use crate::damage;
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_format::InodeId;
use larder_format::items::ROOT_INODE;
use larder_pool::ROOT_DATASET;
use std::collections::{BTreeMap, BTreeSet};

/// Whatever can be seen of an object but for its names and its last access.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    attr: Attr,
    content: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    entries: BTreeMap<String, InodeId>,
}

/// A tree: its objects, and which of them has a path.
#[derive(Debug, Default)]
struct Listing {
    objects: BTreeMap<InodeId, Seen>,
    paths: BTreeMap<String, InodeId>,
}

fn inode(node: NodeId) -> InodeId {
    if node == NodeId::ROOT { ROOT_INODE } else { node.unpack().1 }
}

fn list(ops: &dyn Ops, dir: NodeId, at: &str, into: &mut Listing) {
    let handle = ops.opendir(dir).unwrap();
    let mut found = Vec::new();
    let mut emit = |entry: DirEntry<'_>| {
        found.push((String::from_utf8_lossy(entry.name).into_owned(), entry.node));
        true
    };
    ops.readdir(dir, handle, 0, true, &mut emit).unwrap();
    ops.releasedir(dir, handle).unwrap();
    found.retain(|(name, _)| name != "." && name != "..");
    let entries = found.iter().map(|(name, node)| (name.clone(), inode(*node))).collect();
    note(ops, dir, entries, into);
    for (name, node) in found {
        let path = format!("{at}/{name}");
        into.paths.insert(path.clone(), inode(node));
        match ops.getattr(node).unwrap().kind {
            FileKind::Directory => list(ops, node, &path, into),
            _ => note(ops, node, BTreeMap::new(), into),
        }
    }
}

fn note(ops: &dyn Ops, node: NodeId, entries: BTreeMap<String, InodeId>, into: &mut Listing) {
    let attr = ops.getattr(node).unwrap();
    let content = match attr.kind {
        FileKind::Regular => {
            let flags = OpenFlags { write: false, ..READ_WRITE };
            let handle = ops.open(node, flags).unwrap();
            let content = ops.read(node, handle, 0, u32::MAX).unwrap().to_vec();
            ops.release(node, handle).unwrap();
            content
        }
        FileKind::Symlink => ops.readlink(node).unwrap(),
        _ => Vec::new(),
    };
    let names = ops.listxattr(node).unwrap();
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let xattrs = names.map(|name| (name.to_vec(), ops.getxattr(node, name).unwrap())).collect();
    let attr = Attr { node: NodeId::ROOT, generation: 0, atime: attr.mtime, ..attr };
    into.objects.insert(inode(node), Seen { attr, content, xattrs, entries });
}

fn listing(bed: &Bed, snapshot: &str) -> Listing {
    let view = View::of_snapshot(bed.mount.clone(), ROOT_DATASET, snapshot).unwrap();
    let mut listing = Listing::default();
    list(&view, NodeId::ROOT, "", &mut listing);
    listing.paths.insert("/".into(), ROOT_INODE);
    listing
}

fn diff(bed: &Bed, old: &str, new: &str) -> Vec<FileDiff> {
    let view = |name| bed.pool.snapshot_view(ROOT_DATASET, name).unwrap();
    let (old, new) = (view(old), view(new));
    let (mut diff, mut told) = (Diff::new(&old, &new), Vec::new());
    let mut emit = |item| match item {
        DiffItem::Change(change) => told.push(change),
        unknown => panic!("{unknown:?}"),
    };
    while diff.step(&mut emit).unwrap() {}
    told
}

fn text(path: &[u8]) -> String {
    String::from_utf8(path.to_vec()).unwrap()
}

/// Where a path of the old tree is after folders were renamed.
fn translate(path: &str, folders: &BTreeMap<String, String>) -> String {
    if let Some(new) = folders.get(path) {
        return new.clone();
    }
    match path.rsplit_once('/') {
        Some((above, name)) if !above.is_empty() => format!("{}/{name}", translate(above, folders)),
        _ => path.to_owned(),
    }
}

/// All that is told leads from the old paths to the new ones, and objects are told of exactly when they differ.
fn check(old: &Listing, new: &Listing, told: &[FileDiff]) {
    let (mut gone, mut come, mut folders) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut seen = BTreeSet::new();
    for change in told {
        assert!(seen.insert(change.inode), "told twice: {change:?}");
        gone.extend(change.lost_names.iter().map(|name| text(name)));
        come.extend(change.new_names.iter().map(|name| (text(name), change.inode)));
        let (was, is) = (change.old.as_deref().map(text), change.new.as_deref().map(text));
        let has_kind = match change.kind {
            DiffKind::Added => was.is_none() && is.is_some(),
            DiffKind::Removed => was.is_some() && is.is_none(),
            DiffKind::Renamed => was.is_some() && is.is_some() && was != is,
            DiffKind::Modified => change.links != 0 || (was.is_some() && was == is),
        };
        assert!(has_kind, "{change:?}");
        let linked = change.links != 0 || !change.lost_names.is_empty() || !change.new_names.is_empty();
        match (change.file, was, is) {
            (FileKind::Directory, Some(was), Some(is)) if was != is => drop(folders.insert(was, is)),
            _ if linked => {}
            (_, was, is) if was != is => {
                gone.extend(was);
                come.extend(is.map(|is| (is, change.inode)));
            }
            _ => {}
        }
    }
    let kept = old.paths.iter().filter(|(path, _)| !gone.contains(*path));
    let mut applied: BTreeMap<_, _> = kept.map(|(path, id)| (translate(path, &folders), *id)).collect();
    applied.extend(come);
    assert_eq!(applied, new.paths, "{told:#?}");
    let all: BTreeSet<_> = old.objects.keys().chain(new.objects.keys()).collect();
    for id in all {
        let differs = old.objects.get(id) != new.objects.get(id);
        assert_eq!(
            differs,
            seen.contains(id),
            "inode {id}: {:?} {:?}",
            old.objects.get(id),
            new.objects.get(id)
        );
    }
}

/// Random operations on a few names in a few folders.
struct Player {
    random: SeededEntropy,
    /// Folders, by their numbers; the first is the root.
    folders: Vec<NodeId>,
}

impl Player {
    fn below(&self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    fn folder(&self) -> NodeId {
        self.folders[self.below(self.folders.len() as u64) as usize]
    }

    fn name(&self) -> Vec<u8> {
        format!("n {}", self.below(9)).into_bytes()
    }

    /// One operation; those that are refused change nothing.
    fn play(&mut self, bed: &Bed) {
        let (mount, dir, name) = (&bed.mount, self.folder(), self.name());
        let found = mount.lookup(dir, &name).ok();
        match self.below(14) {
            0 | 1 => drop(mount.mknod(dir, &name, FileKind::Regular, 0o644, 0, &USER)),
            2 => {
                if let Ok(made) = mount.mkdir(dir, &name, 0o755, &USER) {
                    self.folders.push(made.node);
                }
            }
            3 => drop(mount.symlink(dir, &name, b"somewhere", &USER)),
            4 | 5 => {
                if let Some(file) = found.filter(|found| found.kind == FileKind::Regular) {
                    let (at, len) = (self.below(30_000), self.below(9000));
                    bed.write(file.node, at, &vec![self.below(256) as u8; len as usize]);
                }
            }
            6 => {
                if let Some(file) = found.filter(|found| found.kind == FileKind::Regular) {
                    bed.resize(file.node, self.below(20_000));
                }
            }
            7 => {
                if let Some(file) = found.filter(|found| found.kind != FileKind::Directory) {
                    drop(mount.link(file.node, self.folder(), &self.name()));
                }
            }
            8 => drop(mount.unlink(dir, &name)),
            9 => {
                if mount.rmdir(dir, &name).is_ok() {
                    let gone = found.unwrap().node;
                    self.folders.retain(|folder| *folder != gone);
                }
            }
            10 | 11 => {
                let (to, new) = (self.folder(), self.name());
                let replaced = mount.lookup(to, &new).ok();
                let flags = RenameFlags { exchange: self.below(4) == 0, ..RenameFlags::default() };
                if mount.rename(dir, &name, to, &new, flags).is_ok() && !flags.exchange {
                    let gone =
                        replaced.map(|replaced| replaced.node).filter(|node| mount.getattr(*node).is_err());
                    self.folders.retain(|folder| Some(*folder) != gone);
                }
            }
            12 => {
                if let Some(found) = found {
                    let perm = Some(0o600 + self.below(64) as u32);
                    drop(mount.setattr(found.node, &SetAttr { perm, ..SetAttr::default() }, &USER));
                }
            }
            _ => {
                if let Some(found) = found.filter(|found| found.kind != FileKind::Symlink) {
                    let value = vec![7; self.below(6000) as usize];
                    drop(mount.setxattr(found.node, b"user.x", &value, XattrMode::Set));
                }
            }
        }
    }
}

#[test]
fn a_diff_leads_from_one_snapshot_to_the_other() {
    for seed in 0..12 {
        let bed = Bed::new(&[("recordsize", "4096"), ("atime", "on")]);
        let mut player = Player { random: SeededEntropy::new(seed), folders: vec![ROOT] };
        for round in 0..6 {
            for _ in 0..[120, 3, 40, 0, 200, 12][round] {
                bed.tick();
                player.play(&bed);
            }
            bed.pool.snapshot(ROOT_DATASET, &format!("s{round}")).unwrap();
        }
        let listings: Vec<_> = (0..6).map(|round| listing(&bed, &format!("s{round}"))).collect();
        for (old, new) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (1, 4)] {
            let told = diff(&bed, &format!("s{old}"), &format!("s{new}"));
            check(&listings[old], &listings[new], &told);
        }
    }
}

fn lines(told: &[FileDiff]) -> Vec<String> {
    let path = |path: &Option<Vec<u8>>| path.as_deref().map_or("-".to_owned(), text);
    let line = |change: &FileDiff| {
        let kind = format!("{:?}", change.kind);
        format!("{} {} {} {:+}", &kind[..3], path(&change.old), path(&change.new), change.links)
    };
    let mut lines: Vec<_> = told.iter().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn reading_is_no_change_and_a_folder_is_renamed_without_all_that_is_in_it() {
    let bed = Bed::new(&[("recordsize", "4096"), ("atime", "on")]);
    let dir = bed.dir(ROOT, "dir");
    let below = bed.dir(dir, "below");
    for name in ["read", "written", "replaced"] {
        bed.write(bed.file(below, name), 0, b"before");
    }
    let linked = bed.file(dir, "linked");
    bed.pool.snapshot(ROOT_DATASET, "a").unwrap();
    bed.tick();
    bed.content(bed.find("dir/below/read").unwrap().node);
    bed.names(below);
    bed.pool.snapshot(ROOT_DATASET, "b").unwrap();
    assert_eq!(lines(&diff(&bed, "a", "b")), [""; 0]);
    bed.tick();
    bed.mount.rename(ROOT, b"dir", ROOT, b"moved", RenameFlags::default()).unwrap();
    bed.write(bed.find("moved/below/written").unwrap().node, 0, b"after");
    bed.mount.unlink(below, b"replaced").unwrap();
    bed.file(below, "replaced");
    bed.mount.link(linked, ROOT, b"twin").unwrap();
    bed.pool.snapshot(ROOT_DATASET, "c").unwrap();
    assert_eq!(
        lines(&diff(&bed, "b", "c")),
        [
            "Add - /moved/below/replaced +0",
            "Mod / / +0",
            "Mod /dir/linked /moved/linked +1",
            "Rem /dir/below/replaced - +0",
            "Ren /dir /moved +0",
            "Ren /dir/below /moved/below +0",
            "Ren /dir/below/written /moved/below/written +0",
        ]
    );
}

#[test]
fn a_file_that_lost_the_name_it_was_made_by_is_found_by_another() {
    let bed = Bed::new(&[]);
    let (a, b) = (bed.dir(ROOT, "a"), bed.dir(ROOT, "b"));
    let file = bed.file(a, "first");
    bed.mount.link(file, b, b"second").unwrap();
    bed.mount.unlink(a, b"first").unwrap();
    bed.pool.snapshot(ROOT_DATASET, "a").unwrap();
    bed.tick();
    bed.write(file, 0, b"more");
    bed.pool.snapshot(ROOT_DATASET, "b").unwrap();
    assert_eq!(lines(&diff(&bed, "a", "b")), ["Mod /b/second /b/second +0"]);
}

#[test]
fn a_file_without_a_name_is_not_there() {
    let bed = Bed::new(&[]);
    let file = bed.file(ROOT, "open");
    bed.pool.snapshot(ROOT_DATASET, "a").unwrap();
    bed.tick();
    let handle = bed.mount.open(file, READ_WRITE).unwrap();
    bed.mount.unlink(ROOT, b"open").unwrap();
    bed.pool.snapshot(ROOT_DATASET, "b").unwrap();
    assert_eq!(lines(&diff(&bed, "a", "b")), ["Mod / / +0", "Rem /open - +0"]);
    bed.mount.release(file, handle).unwrap();
    bed.pool.snapshot(ROOT_DATASET, "c").unwrap();
    assert_eq!(lines(&diff(&bed, "b", "c")), [""; 0]);
}

#[test]
fn a_snapshot_of_a_moment_is_shown_to_nobody_and_goes() {
    let bed = Bed::new(&[]);
    bed.pool.snapshot(ROOT_DATASET, "a").unwrap();
    bed.tick();
    bed.file(ROOT, "new");
    let (old, now) =
        (bed.pool.snapshot_view(ROOT_DATASET, "a").unwrap(), bed.pool.momentary(ROOT_DATASET).unwrap());
    bed.file(ROOT, "later");
    let (mut diff, mut told) = (Diff::new(&old, now.view()), Vec::new());
    while diff.step(&mut |item| told.push(item)).unwrap() {}
    assert_eq!(told.len(), 2, "the folder and the file: {told:?}");
    let snapshots =
        bed.mount.lookup(bed.mount.lookup(ROOT, b".zfs").unwrap().node, b"snapshot").unwrap().node;
    let names: Vec<_> = bed.names(snapshots).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, [".", "..", "a"]);
    let hidden = now.view().record().name.clone();
    assert!(larder_pool::is_momentary(&hidden));
    assert_eq!(bed.mount.lookup(snapshots, hidden.as_bytes()).unwrap_err(), FsError::NotFound);
    assert_eq!((bed.pool.snapshots(ROOT_DATASET).len(), bed.pool.moments()), (1, 1));
    assert_eq!(bed.pool.newest_snapshot(ROOT_DATASET).unwrap().name, "a");
    let error = bed.pool.rollback(ROOT_DATASET, "a", false).unwrap_err();
    assert!(error.to_string().contains("somebody compares"), "{error}");
    assert!(!bed.pool.destroy_step(1).unwrap(), "somebody looks into it");
    drop(now);
    assert_eq!((bed.pool.snapshots(ROOT_DATASET).len(), bed.pool.moments()), (1, 0));
    // A crash leaves it.
    let left = bed.pool.momentary(ROOT_DATASET).unwrap();
    bed.pool.commit().unwrap();
    std::mem::forget(left);
    let bed = bed.crash(7);
    assert_eq!((bed.pool.snapshots(ROOT_DATASET).len(), bed.pool.moments()), (1, 1));
    while bed.pool.destroy_step(64).unwrap() {}
    assert_eq!(bed.pool.moments(), 0);
}

/// All that a comparison tells, and the error that it ends with.
fn attempt(bed: &Bed) -> (Vec<DiffItem>, Result<()>) {
    let view = |name| bed.pool.snapshot_view(ROOT_DATASET, name).unwrap();
    let (old, new) = (view("a"), view("b"));
    let (mut diff, mut told) = (Diff::new(&old, &new), Vec::new());
    let outcome = loop {
        match diff.step(&mut |item| told.push(item)) {
            Ok(true) => {}
            ended => break ended.map(drop),
        }
    };
    (told, outcome)
}

#[test]
fn a_lost_leaf_ends_a_diff_with_an_error_and_not_in_silence() {
    let bed = damage::bed();
    let files = damage::many(&bed);
    bed.mount.link(files[0], ROOT, b"twin").unwrap();
    bed.pool.snapshot(ROOT_DATASET, "a").unwrap();
    let bed = bed.reopen(2);
    let leaves = damage::nodes(&bed, 0);
    bed.tick();
    files.iter().for_each(|node| bed.write(*node, 0, b"after"));
    bed.pool.snapshot(ROOT_DATASET, "b").unwrap();
    let bed = bed.reopen(3);
    let lost = leaves.keys().copied().filter(|key| key.object > inode(files[300]).get()).nth(1).unwrap();
    damage::rot(&bed, &leaves[&lost]);
    let bed = bed.crash(4);
    let (told, outcome) = attempt(&bed);
    assert!(matches!(&outcome, Err(FsError::Damaged(why)) if why.contains("behind inode")), "{outcome:?}");
    let count = told.iter().filter(|item| matches!(item, DiffItem::Change(_))).count();
    assert!((1..600).contains(&count), "{count}");
    // Its names may be anywhere.
    let others = told
        .iter()
        .filter(|item| matches!(item, DiffItem::Unknown { inode: id, .. } if *id == inode(files[0])));
    assert_eq!((others.count(), told.len() - count), (1, 1));
}

#[test]
fn a_change_whose_name_is_lost_is_told_without_it() {
    let bed = damage::bed();
    let dir = bed.dir(ROOT, "names");
    let name = |i: u32| format!("a name that is rather long, so that there are several leaves {i}");
    let files: Vec<_> = (0..1500).map(|i| bed.file(dir, &name(i))).collect();
    bed.pool.snapshot(ROOT_DATASET, "a").unwrap();
    let bed = bed.reopen(2);
    let leaves = damage::nodes(&bed, 0);
    bed.tick();
    files.iter().for_each(|node| bed.write(*node, 0, b"more"));
    bed.pool.snapshot(ROOT_DATASET, "b").unwrap();
    let bed = bed.reopen(3);
    let id = inode(dir).get();
    let of_dir = leaves.iter().filter(|(key, _)| (key.object, key.kind) == (id, larder_format::items::ENTRY));
    damage::rot(&bed, of_dir.map(|(_, copies)| copies).nth(1).unwrap());
    let bed = bed.crash(4);
    let (told, outcome) = attempt(&bed);
    outcome.unwrap();
    assert_eq!(told.len(), 1500);
    let lost =
        |item: &&DiffItem| matches!(item, DiffItem::Unknown { why, .. } if why.contains("a part of folder"));
    let count = told.iter().filter(lost).count();
    assert!((1..1000).contains(&count), "{count}");
}
