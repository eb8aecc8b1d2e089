//! All that is done with a pool, on an image that may be hostile: each part ends with a value or an error.

use crate::forge::Dice;
use crate::survey::{plans, world};
use larder_device::Device;
use larder_files::*;
use larder_format::items::ROOT_INODE;
use larder_format::{ByteLen, CommitId, DatasetId, Timestamp};
use larder_pool::create::rule_for;
use larder_pool::{BookmarkSource, GroupSpec, ImportOptions, Pool, PoolSpec, ROOT_DATASET, ReceiveAs};
use larder_repair::{Options, repair};
use larder_sim::{DeviceImage, SimWorld};
use larder_stream::wire::{Begin, Decoder, Encoder, Frame, Start};
use larder_stream::{Base, Receive, Send};
use larder_upkeep::{ScrubSince, Task, Upkeep};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

const USER: Caller = Caller { uid: 1000, gid: 100, pid: 1, umask: 0 };
const READ_WRITE: OpenFlags = OpenFlags::READ_WRITE;
/// Steps of one kind of work until it counts as endless: pools here have some hundred blocks.
const STEPS: usize = 5000;
/// Objects of a tree that are looked at, and bytes of a file that are read.
const OBJECTS: usize = 400;
const BYTES: u64 = 2 << 20;

/// Runs a part of a case: its name, and its work. Whether the case goes on.
pub type RunPart<'a> = &'a mut dyn FnMut(&str, &mut dyn FnMut() -> Result<(), String>) -> bool;

/// Work that runs, and what becomes of it; the driver puts limits around each part.
pub struct Life<'a> {
    pub dice: &'a Dice,
    /// Runs a part, which has a name.
    pub part: RunPart<'a>,
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Does a step until it is done.
fn steps<E: Display>(mut step: impl FnMut() -> Result<bool, E>) -> Result<(), String> {
    for _ in 0..STEPS {
        match step() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(text(error)),
        }
    }
    panic!("work without an end");
}

impl Life<'_> {
    fn part(&mut self, name: &str, mut run: impl FnMut() -> Result<(), String>) -> bool {
        (self.part)(name, &mut run)
    }

    /// The whole life of a pool on these devices. A panic ends it.
    pub fn live(&mut self, images: &[DeviceImage]) -> bool {
        let options = ImportOptions {
            host_is_gone: true,
            accept_loss: self.dice.one_in(3),
            without_log: self.dice.one_in(3),
            ..ImportOptions::default()
        };
        let reading = ImportOptions { read_only: true, ..options.clone() };
        self.pool(images, &reading, "reading")
            && self.pool(images, &options, "writing")
            && self.repair(images)
    }

    fn pool(&mut self, images: &[DeviceImage], options: &ImportOptions, how: &str) -> bool {
        let sim = SimWorld::from_images(images.to_vec());
        let mut pools = Vec::new();
        let goes_on = self.part(&format!("import for {how}"), || {
            let all = plans(&sim).into_iter().map(|plan| Pool::import(world(7), plan, options));
            let mut failed = Ok(());
            for pool in all {
                pool.map_or_else(|error| failed = Err(text(error)), |pool| pools.push(pool));
            }
            failed
        });
        if !goes_on {
            return false;
        }
        for pool in pools {
            let upkeep = Upkeep::new(&pool);
            let mut mount = None;
            let mounted = self.part(&format!("mount for {how}"), || {
                mount = Some(Mount::new(Arc::clone(&pool), (0, 0)).map_err(text)?);
                Ok(())
            });
            if !mounted {
                return false;
            }
            let Some(mount) = mount else { continue };
            let mut one = One { pool, upkeep, mount, dice: self.dice };
            if !one.be_read(self) {
                return false;
            }
            if !options.read_only && !one.be_written(self) {
                return false;
            }
            let mut one = Some(one);
            if !self.part("close", || {
                drop(one.take());
                Ok(())
            }) {
                return false;
            }
        }
        if options.read_only || self.dice.one_in(2) {
            return true;
        }
        // It left a pool, or one that is refused.
        let sim = SimWorld::from_images(sim.images());
        self.part("import what was written", || {
            for plan in plans(&sim) {
                let pool = Pool::import(world(9), plan, options).map_err(text)?;
                Upkeep::new(&pool).check().map_err(text)?;
            }
            Ok(())
        })
    }

    fn repair(&mut self, images: &[DeviceImage]) -> bool {
        let commit = self.dice.one_in(6).then(|| CommitId::new(1 + self.dice.below(24) as u64));
        let devices: Vec<Arc<dyn Device>> = SimWorld::from_images(images.to_vec()).devices();
        let log = self.dice.one_in(2);
        let mut found = None;
        let goes_on = self.part("repair", || {
            let scratch = |size| Ok(SimWorld::new(&[size]).devices().remove(0));
            let options = Options { pool: None, commit, log, cut: log, scratch: &scratch, shown: &|_| {} };
            found = Some(repair(world(3), &devices, &options).map_err(text)?);
            Ok(())
        });
        let Some(found) = found.filter(|_| goes_on) else { return goes_on };
        self.part("read what was repaired", || {
            let mount = Mount::new(Arc::clone(&found.pool), (0, 0)).map_err(text)?;
            attach(&found.pool, &mount);
            walk(&mount, &found.pool)
        })
    }
}

fn attach(pool: &Pool, mount: &Mount) {
    for dataset in pool.datasets() {
        // The rest is reached all the same.
        let _ = mount.attach(dataset, None);
    }
}

/// Looks at everything below the roots of all datasets.
fn walk(mount: &Mount, pool: &Pool) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let tops = pool.datasets().into_iter().map(|dataset| NodeId::pack(dataset.id(), ROOT_INODE));
    let mut open: Vec<NodeId> = [NodeId::ROOT].into_iter().chain(tops).collect();
    while let Some(node) = open.pop() {
        if !seen.insert(node) || seen.len() > OBJECTS {
            continue;
        }
        look(mount, node);
        let mut names = 0;
        let mut cookie = 0;
        loop {
            let before = names;
            let _ = mount.readdir(node, Handle(0), cookie, true, &mut |entry| {
                if names == before + 100 {
                    return false;
                }
                names += 1;
                assert!(entry.next_cookie > cookie, "a directory goes back");
                let odd = entry.name.is_empty() || entry.name.contains(&b'/') || entry.name.contains(&0);
                assert!(!odd, "a name that is none is shown: {:?}", entry.name.escape_ascii().to_string());
                cookie = entry.next_cookie;
                if ![&b"."[..], b".."].contains(&entry.name) || names > 2 {
                    open.push(entry.node);
                }
                true
            });
            if names == before || names > 4 * OBJECTS {
                break;
            }
        }
    }
    Ok(())
}

fn look(mount: &Mount, node: NodeId) {
    let Ok(attr) = mount.getattr(node) else { return };
    if let Ok(names) = mount.listxattr(node) {
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let _ = mount.getxattr(node, name);
        }
    }
    let _ = mount.statfs(node);
    match attr.kind {
        FileKind::Symlink => drop(mount.readlink(node)),
        FileKind::Regular => {
            let Ok(handle) = mount.open(node, OpenFlags { write: false, ..READ_WRITE }) else { return };
            for at in (0..attr.size.min(BYTES)).step_by(1 << 17) {
                let _ = mount.read(node, handle, at, 1 << 17);
            }
            let _ = mount.read(node, handle, attr.size.saturating_sub(9000), 10_000);
            let mut at = 0;
            for _ in 0..40 {
                let Ok(data) = mount.lseek(node, handle, at, Seek::Data) else { break };
                let Ok(hole) = mount.lseek(node, handle, data, Seek::Hole) else { break };
                assert!(data >= at && hole > data, "a search goes back");
                at = hole;
            }
            let _ = mount.release(node, handle);
        }
        _ => {}
    }
}

/// A pool that came up.
struct One<'a> {
    pool: Arc<Pool>,
    upkeep: Arc<Upkeep>,
    mount: Arc<Mount>,
    dice: &'a Dice,
}

impl One<'_> {
    fn be_read(&mut self, life: &mut Life<'_>) -> bool {
        let (pool, mount) = (&self.pool, &self.mount);
        life.part("list", || {
            attach(pool, mount);
            list(pool);
            mount.damaged(&self.upkeep.damage.known());
            Ok(())
        }) && life.part("walk", || walk(mount, pool))
            && life.part("snapshots", || {
                for dataset in pool.datasets() {
                    for snapshot in pool.snapshots(dataset.id()) {
                        let of = View::of_snapshot(Arc::clone(mount), dataset.id(), &snapshot.name);
                        let Ok(view) = of else { continue };
                        let mut names = Vec::new();
                        let _ = view.readdir(NodeId::ROOT, Handle(0), 0, false, &mut |entry| {
                            names.push(entry.name.to_vec());
                            names.len() < 50
                        });
                        names.iter().for_each(|name| drop(view.lookup(NodeId::ROOT, name)));
                    }
                }
                Ok(())
            })
            && life.part("send", || send_all(pool, self.dice))
            && life.part("check", || self.upkeep.check().map(drop).map_err(text))
    }

    fn be_written(&mut self, life: &mut Life<'_>) -> bool {
        let mut order = [0, 1, 2, 3, 4, 5, 6, 7, 8];
        for at in 0..order.len() {
            let other = self.dice.below(9);
            order.swap(at, other);
        }
        let goes_on = order.into_iter().all(|what| match what {
            0 => life.part("write", || self.write()),
            1 => life.part("change", || self.change()),
            2 => life.part("datasets", || self.datasets()),
            3 => life.part("scrub", || {
                self.upkeep.scrub.start(ScrubSince::All).map_err(text)?;
                steps(|| self.upkeep.scrub.step(4 << 20))
            }),
            4 => life.part("collect", || {
                self.upkeep.gc.start().map_err(text)?;
                steps(|| self.upkeep.gc.step(1000))
            }),
            5 => life.part("free", || self.free()),
            6 => life.part("clean", || self.clean()),
            7 => life.part("passes", || self.pass()),
            _ => life.part("mend", || {
                let resilver = steps(|| self.upkeep.resilver.step(4 << 20));
                let damage = steps(|| self.upkeep.damage.step(1000));
                let repair = self.upkeep.read_repair.step().map(drop).map_err(text);
                let reshape = steps(|| self.upkeep.reshape.step(4 << 20));
                let trim = steps(|| self.upkeep.trim.step().map(|step| step.is_some()));
                resilver.and(damage).and(repair).and(reshape).and(trim)
            }),
        });
        goes_on
            && life.part("commit", || {
                self.pool.commit().map_err(text)?;
                self.pool.commit().map(drop).map_err(text)
            })
            && life.part("check again", || self.upkeep.check().map(drop).map_err(text))
            && life.part("remove everything", || self.remove_all())
            && life.part("free again", || self.free())
            && life.part("export", || self.pool.commit_export().map(drop).map_err(text))
    }

    fn tops(&self) -> Vec<NodeId> {
        self.pool.datasets().into_iter().map(|dataset| NodeId::pack(dataset.id(), ROOT_INODE)).collect()
    }

    fn entries(&self, dir: NodeId) -> Vec<(Vec<u8>, NodeId, FileKind)> {
        let mut found = Vec::new();
        let _ = self.mount.readdir(dir, Handle(0), 0, false, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                found.push((entry.name.to_vec(), entry.node, entry.kind));
            }
            found.len() < OBJECTS
        });
        found
    }

    fn write(&self) -> Result<(), String> {
        let bytes: Vec<u8> = (0..150_000_u32).flat_map(|at| at.wrapping_mul(at).to_le_bytes()).collect();
        let mut failed = Ok(());
        for top in self.tops() {
            let written = (|| {
                let made = self.mount.create(top, b"hostile new", 0o644, READ_WRITE, &USER)?;
                self.mount.write(made.attr.node, made.handle, 0, &bytes[..120_000], false)?;
                self.mount.write(made.attr.node, made.handle, 1 << 20, &bytes[..5000], false)?;
                self.mount.fsync(made.attr.node, made.handle, false)?;
                self.mount.release(made.attr.node, made.handle)?;
                self.mount.mkdir(top, b"hostile folder", 0o755, &USER)?;
                self.mount.symlink(top, b"hostile link", b"somewhere", &USER)?;
                self.mount.setxattr(made.attr.node, b"user.hostile", &bytes[..9000], XattrMode::Set)
            })();
            if let Err(error) = written {
                failed = Err(text(error));
            }
        }
        self.pool.commit().map_err(text)?;
        failed
    }

    /// Changes what is there: over, into and through it.
    fn change(&self) -> Result<(), String> {
        for top in self.tops() {
            let mut all = self.entries(top);
            for (_, node, kind) in all.clone() {
                if kind == FileKind::Directory {
                    all.extend(self.entries(node));
                }
            }
            for (at, (name, node, kind)) in all.iter().take(30).enumerate() {
                let _ = self.mount.getattr(*node);
                if *kind == FileKind::Regular {
                    let _ = match at % 6 {
                        0 => self.mount.write(*node, Handle(0), 3000, &[7; 9000], false).map(drop),
                        1 => {
                            let set = SetAttr { size: Some(5000), ..SetAttr::default() };
                            self.mount.setattr(*node, &set, &USER).map(drop)
                        }
                        2 => self.mount.fallocate(*node, Handle(0), 1000, 50_000, Allocate::Punch),
                        3 => self.mount.setxattr(*node, b"user.more", &[1; 3000], XattrMode::Set),
                        4 => {
                            let size = self.mount.getattr(*node).map_or(0, |attr| attr.size);
                            self.mount.write(*node, Handle(0), size, b"appended", false).map(drop)
                        }
                        _ => self.mount.fsync(*node, Handle(0), false),
                    };
                }
                let _ = match at % 5 {
                    0 => self.mount.rename(top, name, top, b"hostile moved", RenameFlags::default()),
                    1 => self.mount.link(*node, top, format!("hostile {at}").as_bytes()).map(drop),
                    2 => self.mount.unlink(top, name),
                    3 => self.mount.rmdir(top, name),
                    _ => self.mount.copy_range((*node, 0), (all[0].1, 0), u64::MAX).map(drop),
                };
            }
        }
        steps(|| self.mount.reap_step(100))?;
        self.pool.commit().map(drop).map_err(text)
    }

    fn datasets(&self) -> Result<(), String> {
        let pool = &self.pool;
        let _ = pool.create_dataset("tank/hostile", BTreeMap::new());
        for (at, dataset) in pool.datasets().into_iter().enumerate() {
            let id = dataset.id();
            let _ = pool.snapshot(id, "hostile");
            let _ = pool.make_bookmark(id, BookmarkSource::Snapshot("hostile"), "hostile");
            let _ = pool.hold_snapshots(&[(id, "hostile".into())], "hostile");
            let _ = pool.clone_snapshot(id, "hostile", &format!("tank/hostile{at}"), BTreeMap::new());
            let _ = pool.release_snapshots(&[(id, "hostile".into())], "hostile");
            let _ = pool.set_property(id, "recordsize", "16384");
            let _ = pool.rename_dataset(id, &format!("tank/renamed{at}"));
            for snapshot in pool.snapshots(id) {
                let _ = pool.space_of_snapshot(&snapshot);
                if let Ok(diff) = pool.snapshot_view(id, &snapshot.name).map(drop) {
                    let () = diff;
                }
                let _ = match self.dice.below(4) {
                    0 => pool.destroy_snapshot(id, &snapshot.name),
                    1 => pool.trash_snapshots(&[(id, snapshot.name.clone())], Timestamp::default()),
                    2 if self.mount.detach(id).is_ok() => {
                        let rolled = pool.rollback(id, &snapshot.name, true);
                        let _ = self.mount.attach(Arc::clone(&dataset), None);
                        rolled
                    }
                    _ => Ok(()),
                };
            }
            if id != ROOT_DATASET && self.dice.one_in(3) {
                let _ = self.mount.detach(id);
                let _ = match self.dice.below(3) {
                    0 => pool.promote(id),
                    1 => pool.trash_dataset(id, Timestamp::default()),
                    _ => pool.destroy_dataset(id),
                };
            }
        }
        for one in pool.trash() {
            let _ = pool.space_of_trashed(one.key);
            let _ = pool.let_go(one.key);
        }
        pool.commit().map(drop).map_err(text)
    }

    fn free(&self) -> Result<(), String> {
        let pool = &self.pool;
        let trash = steps(|| pool.trash_step());
        let destroyed = steps(|| pool.destroy_step(1000));
        pool.commit().map_err(text)?;
        let freed = steps(|| pool.free_step(1000));
        pool.commit().map_err(text)?;
        trash.and(destroyed).and(freed)
    }

    fn clean(&self) -> Result<(), String> {
        let pool = &self.pool;
        pool.tick().map_err(text)?;
        let mut left = 20;
        steps(|| {
            left -= 1;
            Ok::<_, larder_pool::PoolError>(left > 0 && pool.clean_step(left % 2 == 0)?.is_some())
        })?;
        // Refused where nobody wants an index.
        if pool.rebuild_index().is_ok() {
            steps(|| pool.rebuild_step(1000))?;
        }
        pool.commit().map(drop).map_err(text)
    }

    fn pass(&self) -> Result<(), String> {
        let passes = &self.upkeep.passes;
        let all: Vec<DatasetId> = self.pool.datasets().iter().map(|dataset| dataset.id()).collect();
        let task = [Task::Dedup, Task::Rewrite, Task::Undedup, Task::Records][self.dice.below(4)];
        passes.start(task, all, 0).map_err(text)?;
        steps(|| passes.step(4 << 20).map(|step| step.is_some() && passes.is_active()))
    }

    fn remove_all(&self) -> Result<(), String> {
        for top in self.tops() {
            let mut open = vec![(top, 0)];
            let mut dirs = Vec::new();
            let mut left = OBJECTS;
            while let Some((dir, depth)) = open.pop() {
                for (name, node, kind) in self.entries(dir) {
                    left = left.saturating_sub(1);
                    if left == 0 {
                        break;
                    }
                    if kind == FileKind::Directory && depth < 20 {
                        dirs.push((dir, name));
                        open.push((node, depth + 1));
                    } else {
                        let _ = self.mount.unlink(dir, &name);
                    }
                }
            }
            dirs.iter().rev().for_each(|(dir, name)| drop(self.mount.rmdir(*dir, name)));
        }
        steps(|| self.mount.reap_step(100))
    }
}

/// Shows all lists.
fn list(pool: &Pool) {
    for dataset in pool.trees() {
        let id = dataset.id();
        pool.full_name(id);
        pool.tree_name(&dataset);
        pool.children(id);
        pool.space_of(&dataset);
        pool.origin(id);
        pool.bookmarks(id);
        pool.received(id);
        for name in ["recordsize", "mountpoint", "quota", "compression", "copies"] {
            pool.effective(id, name);
        }
        let _ = pool.space_of_snapshots(id);
        for snapshot in pool.snapshots(id).into_iter().chain(pool.hidden_snapshots(id)) {
            let _ = (pool.snapshot_holds(&snapshot), pool.snapshot_properties(&snapshot));
            let _ = (pool.space_of_snapshot(&snapshot), pool.clones(&snapshot));
        }
    }
    pool.trash();
    pool.deferred();
    pool.pool_properties();
    pool.events(0);
    pool.dedup_figures();
    pool.writes();
    pool.freeing_bytes();
}

/// Sends all snapshots, whole and as increments; some are received by another pool.
fn send_all(pool: &Arc<Pool>, dice: &Dice) -> Result<(), String> {
    for dataset in pool.datasets() {
        let mut before = None;
        for snapshot in pool.snapshots(dataset.id()) {
            let Ok(view) = pool.snapshot_view(dataset.id(), &snapshot.name) else { continue };
            for from in [None, before.as_ref()] {
                let Some((bytes, begin)) = stream(pool, from, &view) else { continue };
                if from.is_none() && dice.one_in(2) {
                    receive(&bytes, &begin);
                }
            }
            for mark in pool.bookmarks(dataset.id()) {
                if pool.came_of(dataset.id(), &mark, &snapshot) {
                    let mut send = Send::new(pool, Base::Bookmark(&mark), &view, None);
                    let _ = steps(|| send.chunk().map(|chunk| chunk.is_some()));
                }
            }
            before = Some(view);
        }
    }
    Ok(())
}

fn stream(
    pool: &Pool,
    from: Option<&larder_pool::SnapshotView>,
    view: &larder_pool::SnapshotView,
) -> Option<(Vec<u8>, Begin)> {
    let mut send = Send::new(pool, Base::from(from), view, None);
    let mut encoder = Encoder::default();
    let mut bytes = encoder.frame(&Frame::Start(Start { flags: 0, name: "tank".into() }));
    let begin = send.begin("tank@one").ok()?;
    bytes.extend(encoder.frame(&Frame::Begin(begin.clone())));
    let mut left = STEPS;
    while let Some(items) = send.chunk().ok()? {
        items.chunks(60).for_each(|part| bytes.extend(encoder.frame(&Frame::Chunk(part.to_vec()))));
        left = left.checked_sub(1).expect("a stream without an end");
    }
    bytes.extend(encoder.frame(&Frame::End(send.sent().end)));
    bytes.extend(encoder.frame(&Frame::Close));
    Some((bytes, begin))
}

/// Streams of the snapshots on these devices, with what they say at their beginning.
pub fn streams(images: &[DeviceImage]) -> Vec<(Vec<u8>, Begin)> {
    let sim = SimWorld::from_images(images.to_vec());
    let options = ImportOptions { read_only: true, ..ImportOptions::default() };
    let pool = Pool::import(world(7), plans(&sim).remove(0), &options).unwrap();
    let mut all = Vec::new();
    for dataset in pool.datasets() {
        for snapshot in pool.snapshots(dataset.id()) {
            let view = pool.snapshot_view(dataset.id(), &snapshot.name).unwrap();
            all.extend(stream(&pool, None, &view));
        }
    }
    all
}

/// Another pool takes a stream, or refuses it: whether it does.
pub fn receive(bytes: &[u8], begin: &Begin) -> bool {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let groups = vec![GroupSpec::data(rule_for("single", 1).unwrap(), sim.devices())];
    let spec = PoolSpec { name: "other".into(), groups, ashift: 12 };
    let pool = Pool::create(world(5), spec).unwrap();
    let made = pool.create_dataset("other/in", BTreeMap::new()).unwrap().id();
    pool.commit().unwrap();
    let record = Receive::record(begin, "one", None, 1, true, true);
    let Ok(incoming) = pool.receive(made, record, begin.salt) else { return false };
    let Ok(mut receive) = Receive::new(&pool, incoming, begin) else { return false };
    let mut decoder = Decoder::new(bytes);
    if decoder.frame().is_err() || decoder.frame().is_err() || receive.run(&mut decoder).is_err() {
        return false;
    }
    if receive.into_incoming().finish(ReceiveAs::Next).is_err() {
        return false;
    }
    // A stream that was believed left a pool without a flaw.
    let upkeep = Upkeep::new(&pool);
    let problems = upkeep.check().unwrap().problems;
    assert!(problems.is_empty(), "a stream that was believed left {problems:#?}");
    true
}
