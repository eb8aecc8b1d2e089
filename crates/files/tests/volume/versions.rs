//! Versions of files over snapshots.

use crate::bed::*;
use crate::damage;
use larder_files::*;
use larder_pool::ROOT_DATASET;

fn snapshots(bed: &Bed, names: &[&str]) {
    names.iter().for_each(|name| drop(bed.pool.snapshot(ROOT_DATASET, name).unwrap()));
}

fn versions(bed: &Bed, folder: NodeId, path: &str) -> Result<FileVersions> {
    let names: Vec<_> = path.split('/').map(|name| name.as_bytes().to_vec()).collect();
    bed.mount.versions(folder, &names, false)
}

/// Each as `SIZE snapshots`, and `live`.
fn told(bed: &Bed, folder: NodeId, path: &str) -> Vec<String> {
    let line = |version: &FileVersion| {
        let live = if version.is_live { " live" } else { "" };
        format!("{} {}{live}", version.size, version.snapshots.join(","))
    };
    let found = versions(bed, folder, path).unwrap();
    assert!(found.unreadable.is_empty(), "{found:?}");
    found.versions.iter().map(line).collect()
}

fn attributes(bed: &Bed, node: NodeId, set: SetAttr) {
    bed.mount.setattr(node, &set, &USER).unwrap();
}

#[test]
fn versions_are_told_once_however_many_snapshots_have_them() {
    let bed = Bed::new(&[("recordsize", "4096"), ("atime", "on")]);
    snapshots(&bed, &["before"]);
    let dir = bed.dir(ROOT, "dir");
    let file = bed.file(dir, "file");
    bed.write(file, 0, &[1; 5000]);
    assert_eq!(told(&bed, dir, "file"), ["5000  live"]);
    snapshots(&bed, &["a", "b"]);
    bed.tick();
    // Neither others, nor a look at it, nor its attributes make another version.
    bed.file(dir, "other");
    bed.content(file);
    snapshots(&bed, &["c"]);
    attributes(&bed, file, SetAttr { perm: Some(0o600), ..SetAttr::default() });
    snapshots(&bed, &["d"]);
    assert_eq!(told(&bed, dir, "file"), ["5000 a,b,c,d live"]);
    bed.tick();
    bed.write(file, 0, b"other");
    assert_eq!(told(&bed, dir, "file"), ["5000 a,b,c,d", "5000  live"]);
    snapshots(&bed, &["e"]);
    bed.tick();
    // Saved as programs save.
    let new = bed.file(dir, "file~");
    bed.write(new, 0, b"short");
    bed.mount.rename(dir, b"file~", dir, b"file", RenameFlags::default()).unwrap();
    snapshots(&bed, &["f"]);
    bed.mount.unlink(dir, b"file").unwrap();
    snapshots(&bed, &["g"]);
    assert_eq!(told(&bed, dir, "file"), ["5000 a,b,c,d", "5000 e", "5 f"]);
    // Nor need its folder exist.
    bed.mount.unlink(dir, b"other").unwrap();
    bed.mount.rmdir(ROOT, b"dir").unwrap();
    assert_eq!(told(&bed, ROOT, "dir/file"), ["5000 a,b,c,d", "5000 e", "5 f"]);
    let again = bed.file(bed.dir(ROOT, "dir"), "file");
    bed.write(again, 0, b"!");
    assert_eq!(told(&bed, ROOT, "dir/file").last().unwrap(), "1  live");
    assert_eq!(told(&bed, ROOT, "dir/none"), [""; 0]);
    let bed = bed.reopen(3);
    assert_eq!(told(&bed, ROOT, "dir/file"), ["5000 a,b,c,d", "5000 e", "5 f", "1  live"]);
}

#[test]
fn content_that_changed_behind_its_time_is_another_version() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    let file = bed.file(ROOT, "file");
    bed.write(file, 0, &[1; 5000]);
    let mtime = bed.mount.getattr(file).unwrap().mtime;
    snapshots(&bed, &["a"]);
    bed.tick();
    bed.write(file, 0, &[2; 5000]);
    attributes(&bed, file, SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() });
    snapshots(&bed, &["b"]);
    assert_eq!(told(&bed, ROOT, "file"), ["5000 a", "5000 b live"]);
    // Also as long as it is in memory alone.
    bed.tick();
    bed.write(file, 0, &[3; 5000]);
    attributes(&bed, file, SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() });
    assert_eq!(told(&bed, ROOT, "file"), ["5000 a", "5000 b", "5000  live"]);
}

#[test]
fn folders_and_files_in_snapshots_have_no_versions() {
    let bed = Bed::new(&[]);
    let dir = bed.dir(ROOT, "dir");
    bed.file(dir, "file");
    snapshots(&bed, &["a"]);
    assert_eq!(versions(&bed, ROOT, "dir").unwrap_err(), FsError::IsDirectory);
    assert_eq!(versions(&bed, ROOT, ".zfs").unwrap_err(), FsError::IsDirectory);
    let old = bed.find(".zfs/snapshot/a/dir").unwrap().node;
    assert_eq!(versions(&bed, old, "file").unwrap_err(), FsError::Invalid);
    bed.mount.unlink(dir, b"file").unwrap();
    bed.mount.rmdir(ROOT, b"dir").unwrap();
    assert_eq!(versions(&bed, ROOT, "dir").unwrap_err(), FsError::IsDirectory);
}

#[test]
fn a_snapshot_in_which_the_way_is_lost_is_named() {
    let bed = damage::bed();
    let files = damage::many(&bed);
    snapshots(&bed, &["a"]);
    let bed = bed.reopen(2);
    let leaves = damage::nodes(&bed, 0);
    bed.tick();
    files.iter().for_each(|node| bed.write(*node, 0, b"afterwards"));
    snapshots(&bed, &["b"]);
    let bed = bed.reopen(3);
    let id = |i: usize| damage::id_of(&bed, files[i]).1.get();
    let lost = leaves.keys().copied().filter(|key| key.object > id(300)).nth(1).unwrap();
    damage::rot(&bed, &leaves[&lost]);
    let bed = bed.crash(4);
    let of_lost = (0..600).find(|i| damage::id_of(&bed, files[*i]).1.get() == lost.object + 1).unwrap();
    let found = versions(&bed, bed.find("many").unwrap().node, &format!("f{of_lost}")).unwrap();
    assert_eq!((found.versions.len(), found.versions[0].is_live), (1, true));
    assert_eq!(found.versions[0].snapshots, ["b"]);
    assert_eq!(found.unreadable.len(), 1);
    assert!(found.unreadable[0].0 == "a" && matches!(found.unreadable[0].1, FsError::Damaged(_)));
}

#[test]
fn damage_to_what_is_there_now_hides_no_version() {
    let bed = damage::bed();
    let files = damage::many(&bed);
    snapshots(&bed, &["a"]);
    let bed = bed.reopen(2);
    bed.tick();
    files.iter().for_each(|node| bed.write(*node, 0, b"afterwards"));
    let bed = bed.reopen(3);
    let id = |i: usize| damage::id_of(&bed, files[i]).1.get();
    let leaves = damage::nodes(&bed, 0);
    let lost = leaves.keys().copied().filter(|key| key.object > id(300)).nth(1).unwrap();
    damage::rot(&bed, &leaves[&lost]);
    let bed = bed.crash(4);
    let of_lost = (0..600).find(|i| damage::id_of(&bed, files[*i]).1.get() == lost.object + 1).unwrap();
    let found = versions(&bed, bed.find("many").unwrap().node, &format!("f{of_lost}")).unwrap();
    assert_eq!((found.versions.len(), found.unreadable.len()), (1, 0));
    assert!(!found.versions[0].is_live && found.versions[0].snapshots == ["a"]);
    assert!(matches!(found.live_unreadable, Some(FsError::Damaged(_))));
}

#[test]
fn snapshots_hold_together_what_each_holds_beyond_those_before_it() {
    let bed = Bed::new(&[("recordsize", "4096"), ("compression", "off")]);
    let file = bed.file(ROOT, "file");
    let names = ["a", "b", "c", "d", "e"];
    for (turn, name) in names.iter().enumerate() {
        bed.write(file, 0, &[turn as u8; 40_000]);
        bed.write(bed.file(ROOT, name), 0, &vec![1; 9000 * turn]);
        snapshots(&bed, &[name]);
        if turn > 1 {
            bed.mount.unlink(ROOT, names[turn - 2].as_bytes()).unwrap();
        }
    }
    bed.pool.commit().unwrap();
    let (mut sum, all) = (0, names.map(str::to_owned));
    for end in 0..all.len() {
        sum += bed.pool.space_beyond_older(ROOT_DATASET, &all[end]).unwrap();
        assert_eq!(sum, bed.pool.snapshot_space(ROOT_DATASET, &all[..=end]).unwrap(), "{end}");
    }
    assert!(sum > 3 * 40_000, "{sum}");
}
