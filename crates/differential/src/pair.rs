//! Both sides, and what is compared after each step.

use crate::known::{CACHED_READS, KNOWN, NOATIME, PIPES, SAME_VALUE};
use crate::look::{self, Look, Seen, Time, Tree, readable};
use crate::op::{At, Bytes, Op, Step};
use crate::side::{Outcome, Side};
use crate::sys::{self, Aligned, Answer};
use libc::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Steps between two comparisons of everything.
const WHOLE: usize = 400;

/// Exports and imports the pool, as far as it is to be done.
pub type Remount<'a> = &'a dyn Fn();

/// A folder on a mount and one on a disk.
pub struct Pair<'a> {
    mount: Side,
    disk: Side,
    roots: [PathBuf; 2],
    remount: Remount<'a>,
    /// Last look at each inode, by its number (and birth, as numbers return on a disk).
    seen: [BTreeMap<(u64, Option<Time>), Look>; 2],
    /// Inodes on the mount that were mapped: when that reads or writes them, and so moves their times, even over
    /// some that were set meanwhile, is the kernel's choice.
    mapped: BTreeSet<u64>,
    /// Inodes on the mount whose access times are no longer compared.
    read_apart: BTreeSet<u64>,
    /// Known differences that were met, with counts.
    pub met: BTreeMap<&'static str, usize>,
    done: usize,
    /// Steps that were refused on neither side.
    pub succeeded: usize,
}

/// A file that an operation touches.
enum Touched<'a> {
    Slot(usize),
    /// Where a path leads, a last link followed.
    Target(&'a At),
    Path(&'a At),
    Parent(&'a At),
}

impl<'a> Pair<'a> {
    /// Makes the folder `name` on both sides.
    pub fn new(mount: &Path, disk: &Path, name: &str, remount: Remount<'a>) -> Self {
        // A folder in a folder: what is above is looked at, too.
        let roots = [mount, disk].map(|side| {
            std::fs::create_dir(side.join(name)).expect("a fresh folder");
            side.join(name).join("top")
        });
        let [mount, disk] = roots.clone().map(Side::new);
        let (seen, mapped, read_apart, met) = Default::default();
        Self { mount, disk, roots, remount, seen, mapped, read_apart, met, done: 0, succeeded: 0 }
    }

    /// Removes both folders.
    pub fn remove(mut self) {
        self.mount.end();
        self.disk.end();
        for root in self.roots {
            let folder = root.parent().expect("it was made in one");
            std::fs::remove_dir_all(folder)
                .unwrap_or_else(|error| panic!("removing {}: {error}", folder.display()));
        }
    }

    fn met(&mut self, name: &'static str) {
        *self.met.entry(name).or_default() += 1;
    }

    /// Does a step on both sides.
    ///
    /// # Errors
    /// The difference, in words.
    pub fn step(&mut self, step: &Step) -> Result<(), String> {
        self.done += 1;
        if matches!(step.op, Op::Remount) {
            return self.remount();
        }
        let on_mount = self.mount.perform(step);
        for known in KNOWN {
            if let Some(errno) = known.alone.and_then(|is| is(&step.op))
                && on_mount.answer == Err(errno)
            {
                self.met(known.name);
                return Ok(());
            }
        }
        let on_disk = self.disk.perform(step);
        self.succeeded += usize::from(on_mount.answer.is_ok() && on_disk.answer.is_ok());
        if let Some(slot) = self.sought_directory(&step.op) {
            // Places in a directory are each file system's own.
            self.rewind(slot);
        } else if let Op::Seek { slot, offset, whence: whence @ (SEEK_DATA | SEEK_HOLE) } = step.op {
            self.check_seek(slot, offset, whence, on_mount.answer, on_disk.answer)?;
        } else if on_mount != on_disk {
            let known = KNOWN.iter().find(|known| known.both.is_some_and(|is| is(step, &on_mount, &on_disk)));
            match known {
                Some(known) => self.met(known.name),
                None => return Err(differ("answer", &show(&on_mount), &show(&on_disk))),
            }
        }
        if let Op::Map { map, .. } | Op::MapWrite { map, .. } = step.op
            && let Some(look) = self.mount.mapped(map)
        {
            self.mapped.insert(look.ino);
        }
        for touched in touched(&step.op) {
            self.compare_looks(&step.op, &touched)?;
        }
        for (slot, offset, len) in self.written(&step.op, on_disk.answer) {
            self.compare_content(slot, offset, len)?;
        }
        for touched in touched(&step.op) {
            // Reading moved access times.
            let [on_mount, on_disk] = self.looks(&touched);
            self.remember(on_mount.ok(), on_disk.ok());
        }
        if self.done.is_multiple_of(WHOLE) { self.compare_trees() } else { Ok(()) }
    }

    fn sought_directory(&self, op: &Op) -> Option<usize> {
        let Op::Seek { slot, .. } = *op else { return None };
        self.disk.look_open(slot).is_ok_and(|look| look.kind() == S_IFDIR).then_some(slot)
    }

    /// Puts both descriptors of a slot to their beginning.
    fn rewind(&self, slot: usize) {
        for fd in [&self.mount, &self.disk].into_iter().flat_map(|side| side.slot(slot)) {
            sys::lseek(fd, 0, SEEK_SET).ok();
        }
    }

    fn looks(&self, touched: &Touched<'_>) -> [Result<Look, i32>; 2] {
        [&self.mount, &self.disk].map(|side| match touched {
            Touched::Slot(slot) => side.look_open(*slot),
            Touched::Target(at) => side.look(at, 0),
            Touched::Path(at) => side.look(at, AT_SYMLINK_NOFOLLOW),
            Touched::Parent(at) => {
                let parent =
                    at.path.iter().rposition(|&byte| byte == b'/').map_or(&b"."[..], |end| &at.path[..end]);
                side.look(&At { slot: at.slot, path: Bytes(parent.to_vec()) }, AT_SYMLINK_NOFOLLOW)
            }
        })
    }

    fn remember(&mut self, mount: Option<Look>, disk: Option<Look>) {
        for (seen, look) in self.seen.iter_mut().zip([mount, disk]) {
            if let Some(look) = look {
                seen.insert((look.ino, look.btime), look);
            }
        }
    }

    fn compare_looks(&mut self, op: &Op, touched: &Touched<'_>) -> Result<(), String> {
        let (mount, disk) = match self.looks(touched) {
            [Ok(mount), Ok(disk)] => (mount, disk),
            [mount, disk] => {
                let [mount, disk] = [mount, disk].map(|look| look.map(|look| look.plain()));
                return if mount == disk {
                    Ok(())
                } else {
                    Err(differ("attributes", &format!("{mount:?}"), &format!("{disk:?}")))
                };
            }
        };
        if mount.plain() != disk.plain() {
            return Err(differ("attributes", &mount.plain(), &disk.plain()));
        }
        let before = |side: usize, look: &Look| self.seen[side].get(&(look.ino, look.btime)).copied();
        if let (Some(mount_before), Some(disk_before)) = (before(0, &mount), before(1, &disk)) {
            let fd = if let Touched::Slot(slot) = *touched { self.disk.slot(slot).ok() } else { None };
            let noatime =
                fd.is_some_and(|fd| sys::get_flags(fd).is_ok_and(|flags| flags as i32 & O_NOATIME != 0));
            self.compare_times(op, noatime, [mount_before, mount], [disk_before, disk])?;
        }
        self.remember(Some(mount), Some(disk));
        Ok(())
    }

    /// Which times moved, and whether those that were set are what they were set to.
    fn compare_times(
        &mut self,
        op: &Op,
        noatime: bool,
        mount: [Look; 2],
        disk: [Look; 2],
    ) -> Result<(), String> {
        let moved = |times: fn(&Look) -> Time| {
            (times(&mount[0]) != times(&mount[1]), times(&disk[0]) != times(&disk[1]))
        };
        let wrong = |what: &str, time: fn(&Look) -> Time| {
            let [m, d] = [mount, disk].map(|looks| looks.map(|look| time(&look)));
            Err(differ(what, &format!("{m:?}"), &format!("{d:?}")))
        };
        if ![S_IFREG, S_IFDIR, S_IFLNK, S_IFLNK].contains(&mount[1].kind()) {
            if mount[1].mtime != disk[1].mtime {
                self.met(PIPES);
            }
        } else if !self.mapped.contains(&mount[1].ino) {
            let ctimes = moved(|look| look.ctime);
            if ctimes == (true, false) && matches!(op, Op::SetXattr { .. } | Op::SetXattrOpen { .. }) {
                self.met(SAME_VALUE);
            } else if ctimes.0 != ctimes.1 {
                return wrong("ctime moves", |look| look.ctime);
            }
            if moved(|look| look.mtime).0 != moved(|look| look.mtime).1 {
                return wrong("mtime moves", |look| look.mtime);
            }
            if (set(mount[1].mtime) || set(disk[1].mtime)) && mount[1].mtime != disk[1].mtime {
                return wrong("mtime as set", |look| look.mtime);
            }
        }
        match moved(|look| look.atime) {
            (false, true) => self.met(CACHED_READS),
            // A read later than the disk's, which had the pages in its cache, is none's fault.
            _ if self.mapped.contains(&mount[1].ino) || self.read_apart.contains(&mount[1].ino) => {}
            _ if !set(disk[1].atime) => {}
            (true, false) if noatime => {
                self.met(NOATIME);
                self.read_apart.insert(mount[1].ino);
            }
            _ if mount[1].atime != disk[1].atime => return wrong("atime as set", |look| look.atime),
            _ => {}
        }
        Ok(())
    }

    /// Ranges of the slots' contents that a step may have changed: slot, offset, length.
    fn written(&self, op: &Op, answer: Answer) -> Vec<(usize, i64, usize)> {
        let Ok(got) = answer else { return Vec::new() };
        let at = |slot, whence| self.disk.slot(slot).and_then(|fd| sys::lseek(fd, 0, whence)).unwrap_or(0);
        let size = |slot: usize| self.disk.look_open(slot).map_or(0, |look| look.size as i64);
        match *op {
            Op::Write { slot, offset, len, .. } => {
                let offset = offset.unwrap_or_else(|| at(slot, SEEK_CUR) - got);
                vec![(slot, offset, len), (slot, size(slot) - got, len)]
            }
            Op::TruncateOpen { slot, len } => vec![(slot, len, 8192)],
            Op::Allocate { slot, offset, len, .. } => vec![(slot, offset, len as usize)],
            Op::CopyRange { to, to_at, len, .. } => {
                vec![(to, to_at.unwrap_or_else(|| at(to, SEEK_CUR) - got), len), (to, size(to) - got, len)]
            }
            Op::SendFile { to, len, .. } => vec![(to, at(to, SEEK_CUR) - got, len)],
            Op::Splice { to, to_at, .. } => vec![(to, to_at, got as usize)],
            _ => Vec::new(),
        }
    }

    /// Compares a stretch of what a slot has open, every other time around the kernel's cache of the mount.
    fn compare_content(&self, slot: usize, offset: i64, len: usize) -> Result<(), String> {
        let looks = self.disk.look_open(slot);
        if looks.map(|look| look.kind()) != Ok(S_IFREG) {
            return Ok(());
        }
        let direct = if self.done.is_multiple_of(2) { O_DIRECT } else { 0 };
        let start = (offset - 4096).max(0) & !4095;
        let read = |side: &Side, flags: i32| {
            let fd = side.again(slot, flags)? as i32;
            let mut buffer = Aligned::new((len + 12_288) & !4095);
            let answer = sys::read(fd, &mut buffer, Some(start), 1, 4096);
            sys::close(fd)?;
            answer.map(|got| buffer.get()[..got as usize].to_vec())
        };
        let (mount, disk) = (read(&self.mount, direct), read(&self.disk, 0));
        if mount == disk {
            return Ok(());
        }
        let (Ok(mount), Ok(disk)) = (&mount, &disk) else {
            let words = [&mount, &disk].map(|read| format!("{:?}", read.as_ref().map(Vec::len)));
            return Err(differ("reading it", &words[0], &words[1]));
        };
        let at = mount.iter().zip(disk).position(|(a, b)| a != b).unwrap_or(mount.len().min(disk.len()));
        let show = |bytes: &Vec<u8>| {
            format!(
                "{} bytes from {start}, at {}: {:?}",
                bytes.len(),
                start + at as i64,
                bytes.get(at..).map(|b| &b[..b.len().min(8)])
            )
        };
        Err(differ("content", &show(mount), &show(disk)))
    }

    /// Holes may differ; but what one side calls a hole must be zeros on the other.
    fn check_seek(
        &self,
        slot: usize,
        offset: i64,
        whence: i32,
        mount: Answer,
        disk: Answer,
    ) -> Result<(), String> {
        let wrong = || Err(differ("what seek finds", &format!("{mount:?}"), &format!("{disk:?}")));
        if mount.is_err() && mount == disk {
            return Ok(());
        }
        let look = self.disk.look_open(slot).map_err(|errno| format!("no look: {errno}"))?;
        if look.kind() != S_IFREG {
            return if mount == disk { Ok(()) } else { wrong() };
        }
        let size = look.size as i64;
        let zeros = |from: i64, to: i64| self.zeros(slot, from, to);
        let fine = match (whence, mount) {
            (SEEK_DATA, Ok(data)) => data >= offset && data < size && zeros(offset, data),
            (SEEK_DATA, Err(ENXIO)) if disk.is_ok() => zeros(offset, size),
            (SEEK_HOLE, Ok(first)) if disk.is_ok() => {
                let fd = self.mount.slot(slot).map_err(|errno| format!("{errno}"))?;
                let hole_is_one = |hole: i64| {
                    let next = sys::lseek(fd, hole, SEEK_DATA).unwrap_or(size);
                    hole >= offset && hole <= size && (hole == size || next > hole) && zeros(hole, next)
                };
                // A commit between the two calls stores the record whole, zeros as well: then it is asked again.
                let again = || sys::lseek(fd, offset, SEEK_HOLE).is_ok_and(hole_is_one);
                hole_is_one(first) || (0..3).any(|_| again())
            }
            _ => false,
        };
        if !fine {
            return wrong();
        }
        // Where they are differs now.
        self.rewind(slot);
        Ok(())
    }

    /// Whether a range is zero on the disk.
    fn zeros(&self, slot: usize, from: i64, to: i64) -> bool {
        let Ok(fd) = self.disk.again(slot, 0) else { return false };
        let fd = fd as i32;
        let (mut at, mut zero) = (from, true);
        let mut buffer = vec![0; 1 << 16];
        while zero && at < to {
            let Ok(data) = sys::lseek(fd, at, SEEK_DATA) else { break };
            if data >= to {
                break;
            }
            let len = ((to - data) as usize).min(buffer.len());
            let Ok(got @ 1..) = sys::pread(fd, &mut buffer[..len], data) else { break };
            zero = buffer[..got as usize].iter().all(|&byte| byte == 0);
            at = data + got;
        }
        sys::close(fd).ok();
        zero
    }

    fn trees(&self, contents: bool) -> [Tree; 2] {
        let root = |root: &PathBuf| root.to_str().expect("a path of ours").as_bytes().to_vec();
        [
            look::tree(self.mount.top(), &root(&self.roots[0]), contents),
            look::tree(self.disk.top(), &root(&self.roots[1]), contents),
        ]
    }

    /// Compares everything below the two folders.
    pub fn compare_trees(&mut self) -> Result<(), String> {
        let [mount, disk] = self.trees(true);
        for path in mount.keys().chain(disk.keys()) {
            let [m, d] = [&mount, &disk].map(|tree| tree.get(path).map(|seen| &seen.plain));
            if m != d {
                let [a, b] = [&self.mount, &self.disk].map(|side| side.top());
                let wheres = look::first_difference([a, b], path).unwrap_or_default();
                let what = format!("tree\n    path: {}{wheres}", readable(path));
                return Err(differ(&what, &format!("{m:?}"), &format!("{d:?}")));
            }
        }
        // Reading moved access times.
        let [mount, disk] = self.trees(false);
        for (seen, tree) in self.seen.iter_mut().zip([mount, disk]) {
            seen.extend(tree.into_values().map(|Seen { look, .. }| ((look.ino, look.btime), look)));
        }
        Ok(())
    }

    /// Everything is as it was after the pool was exported and imported, times and numbers included.
    fn remount(&mut self) -> Result<(), String> {
        self.mount.close();
        self.disk.close();
        self.mount.open_top();
        self.disk.open_top();
        self.compare_trees()?;
        let [before, _] = self.trees(false);
        self.mount.close();
        (self.remount)();
        self.mount.open_top();
        let [after, _] = self.trees(false);
        for path in before.keys().chain(after.keys()) {
            let show = |tree: &Tree| {
                tree.get(path).map(|Seen { look, plain }| {
                    // Looking itself reads folders, and links by one name before it comes to the next.
                    let read = look.kind() == S_IFDIR || look.kind() == S_IFLNK && look.nlink > 1;
                    (if read { Look { atime: (0, 0), ..*look } } else { *look }, plain.clone())
                })
            };
            let (before, after) = (show(&before), show(&after));
            if before != after {
                let what = format!("{} after a remount", readable(path));
                return Err(differ(&what, &format!("{after:?}"), &format!("{before:?} (before)")));
            }
        }
        self.compare_trees()
    }
}

/// Whether a time is one that somebody set: the generator sets none near now.
fn set(time: Time) -> bool {
    time.0 < 1_500_000_000 || time.0 > 4_000_000_000
}

fn touched(op: &Op) -> Vec<Touched<'_>> {
    use Touched::{Parent, Path, Slot, Target};
    match op {
        Op::Open { slot, at, .. } | Op::Tmpfile { slot, at, .. } => {
            vec![Slot(*slot), Target(at), Path(at), Parent(at)]
        }
        Op::Truncate { at, .. } | Op::Chmod { at, .. } | Op::Chown { at, .. } => vec![Target(at), Path(at)],
        Op::LinkOpen { slot, to } => vec![Slot(*slot), Path(to), Parent(to)],
        Op::ProcessLock { slot, .. }
        | Op::SetFlags { slot, .. }
        | Op::Write { slot, .. }
        | Op::Read { slot, .. }
        | Op::Seek { slot, .. }
        | Op::TruncateOpen { slot, .. }
        | Op::Allocate { slot, .. }
        | Op::Sync { slot, .. }
        | Op::Forget { slot }
        | Op::ChmodOpen { slot, .. }
        | Op::UtimesOpen { slot, .. }
        | Op::SetXattrOpen { slot, .. }
        | Op::Flock { slot, .. }
        | Op::FileLock { slot, .. }
        | Op::Ioctl { slot, .. }
        | Op::StatFs { slot } => vec![Slot(*slot)],
        Op::Mkdir { at, .. }
        | Op::Rmdir { at }
        | Op::Mknod { at, .. }
        | Op::BindSocket { at }
        | Op::Symlink { at, .. }
        | Op::Unlink { at } => vec![Path(at), Parent(at)],
        Op::Link { from, to, .. } | Op::Rename { from, to, .. } => {
            vec![Path(from), Parent(from), Path(to), Parent(to)]
        }
        Op::Readlink { at, .. }
        | Op::Utimes { at, .. }
        | Op::Access { at, .. }
        | Op::Stat { at, .. }
        | Op::SetXattr { at, .. }
        | Op::GetXattr { at, .. }
        | Op::ListXattr { at, .. }
        | Op::RemoveXattr { at, .. }
        | Op::List { at, .. }
        | Op::SeekDir { at, .. }
        | Op::Churn { at, .. } => vec![Path(at)],
        Op::CopyRange { from, to, .. } | Op::SendFile { from, to, .. } | Op::Splice { from, to, .. } => {
            vec![Slot(*from), Slot(*to)]
        }
        Op::Close { .. }
        | Op::Dup { .. }
        | Op::Map { .. }
        | Op::Unmap { .. }
        | Op::MapRead { .. }
        | Op::MapWrite { .. }
        | Op::Msync { .. }
        | Op::Deep { .. }
        | Op::Remount => Vec::new(),
    }
}

fn differ(what: &str, mount: &str, disk: &str) -> String {
    format!("{what}\n    mount: {mount}\n    disk:  {disk}")
}

fn show(outcome: &Outcome) -> String {
    let Outcome { answer, shown } = outcome;
    let answer = match answer {
        Ok(value) => format!("{value}"),
        Err(errno) => std::io::Error::from_raw_os_error(*errno).to_string(),
    };
    let start = shown[..shown.len().min(300)].escape_ascii();
    format!("{answer}, {} bytes shown: {start}", shown.len())
}
