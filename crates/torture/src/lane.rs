//! One who works in a dataset of his own, step by step, beside a model of what it must hold.

use crate::command::{Larder, Said};
use crate::content::{Edit, Fill};
use crate::failure::{Failure, Outcome};
use crate::model::{Change, FileId, Frozen, Model, Node, equal};
use crate::plan::Step;
use crate::sight::{is_full, look, read};
use crate::tally::Tally;
use larder_device::{Clock, SystemClock};
use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate, setxattr};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Snapshots that are kept.
const SNAPSHOTS: usize = 3;
/// Steps that take longer are told in the log.
const SLOW: Duration = Duration::from_secs(2);
/// Files do not grow beyond that.
const LONGEST: usize = 4_000_000;

/// Why a step was not taken to its end.
enum Halt {
    /// There is no room; nothing was done.
    Full,
    /// The daemon was killed; it may have been done or not.
    Dying,
    /// That must not be.
    Failed(Failure),
}

type Done<T = ()> = Result<T, Halt>;

struct Snapshot {
    name: String,
    frozen: Frozen,
    /// False where the daemon was killed while it came or went.
    sure: bool,
}

/// See the module's text.
pub struct Lane {
    dataset: String,
    top: PathBuf,
    model: Model,
    snapshots: Vec<Snapshot>,
    /// Snapshots that the dataset which is sent to may be: one, but after a kill.
    copy: Vec<(String, Frozen)>,
    /// It may not be there at all.
    copy_unsure: bool,
    serial: u32,
    clock: SystemClock,
    /// Counts of its steps.
    pub tally: Tally,
}

impl Lane {
    /// In the dataset `name` of `pool`, which is mounted at `mount`.
    pub fn new(pool: &str, name: &str, mount: &Path) -> Self {
        Self {
            dataset: format!("{pool}/{name}"),
            top: mount.join(name),
            model: Model::default(),
            snapshots: Vec::new(),
            copy: Vec::new(),
            copy_unsure: false,
            serial: 0,
            clock: SystemClock::new(),
            tally: Tally::default(),
        }
    }

    /// Its dataset.
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    /// Where that is mounted.
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// The dataset as it must be.
    pub fn frozen(&self) -> Frozen {
        self.model.freeze()
    }

    /// Its snapshots, and what they must hold.
    pub fn snapshots(&self) -> impl Iterator<Item = (&str, &Frozen)> {
        self.snapshots.iter().map(|snapshot| (snapshot.name.as_str(), &snapshot.frozen))
    }

    /// All is durable.
    pub fn settle(&mut self) {
        self.model.settle();
    }

    /// Takes the steps, until the daemon dies or somebody says that it is enough; `taken` counts.
    ///
    /// # Errors
    /// When something is not as it must be.
    pub fn run(&mut self, larder: &Larder, steps: &[Step], taken: &AtomicU64) -> Outcome<()> {
        for step in steps {
            if larder.is_stopped() || larder.is_dying() {
                return Ok(());
            }
            let text = format!("{step:?}");
            let kind = text.split([' ', '(']).next().unwrap_or_default().to_lowercase();
            let began = self.clock.monotonic();
            let done = self.take(larder, step);
            let took = self.clock.monotonic() - began;
            if took > SLOW {
                larder.note(&format!("{}: {text} took {:.1} s", self.dataset, took.as_secs_f64()));
            }
            taken.fetch_add(1, Ordering::Relaxed);
            match done {
                Ok(()) => self.tally.operation(&kind),
                Err(Halt::Full) => self.tally.operation("no room"),
                Err(Halt::Dying) => return Ok(()),
                Err(Halt::Failed(failure)) => {
                    larder.stop();
                    return Err(failure.when(format!("{}: {text}", self.dataset)));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, larder: &Larder, step: &Step) -> Done {
        match *step {
            Step::Write { file, at, len, fill } => self.write(larder, &path(file), at, len, fill),
            Step::Replace { file, len, fill } => self.replace(larder, &path(file), len, fill),
            Step::Cut { file, len } => self.with(file, |lane, id, at| {
                let done = lane.ask(larder, open(at).and_then(|file| file.set_len(len.into())), at)?;
                lane.model.edit(id, Edit::Cut(len as usize));
                alive(done)
            }),
            Step::Punch { file, at: from, len } => self.with(file, |lane, id, at| {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let done = open(at).and_then(|file| Ok(fallocate(&file, flags, from.into(), len.into())?));
                let done = lane.ask(larder, done, at)?;
                lane.model.edit(id, Edit::Punch(from as usize, len as usize));
                alive(done)
            }),
            Step::Sync { file } => self.with(file, |lane, id, at| {
                let done = lane.ask(larder, open(at).and_then(|file| file.sync_all()), at)?;
                alive(done)?;
                lane.model.sync(id);
                Ok(())
            }),
            Step::Remove { file } => match self.model.file(&path(file)) {
                Some(_) => self.remove(larder, &path(file)),
                None => Ok(()),
            },
            Step::Rename { from, to } => self.rename(larder, from, to),
            Step::Link { from, to } => self.link(larder, from, to),
            Step::Symlink { file } => self.symlink(larder, file),
            Step::Copy { from, to } => self.copy(larder, from, to),
            Step::Mode { file, mode } => self.with(file, |lane, id, at| {
                let done = fs::set_permissions(at, Permissions::from_mode(mode.into()));
                let done = lane.ask(larder, done, at)?;
                lane.model.change(Change::Mode(id, mode.into()));
                alive(done)
            }),
            Step::Attribute { file, name, value } => self.with(file, |lane, id, at| {
                let (name, value) = (format!("user.a{name}"), value.to_string().into_bytes());
                let done = setxattr(at, name.as_str(), &value, XattrFlags::empty()).map_err(io::Error::from);
                let done = lane.ask(larder, done, at)?;
                lane.model.change(Change::Attribute(id, name, value));
                alive(done)
            }),
            Step::Read { file } => self.with(file, |lane, id, at| {
                let Some(found) = lane.ask(larder, read(at), at)? else { return Err(Halt::Dying) };
                lane.tally.compared += found.len() as u64;
                equal(lane.model.bytes(id), Some(&found))
                    .map_err(|why| failed(format!("{}: {why}", at.display())))
            }),
            Step::MoveFolder { from, to } => self.move_folder(larder, from, to),
            Step::RemoveFolder { folder } => {
                let top = format!("e{folder}");
                let below = format!("{top}/");
                let all = self.model.tree().nodes.keys();
                let all: Vec<String> =
                    all.filter(|path| **path == top || path.starts_with(&below)).cloned().collect();
                all.iter().rev().try_for_each(|path| self.remove(larder, path))
            }
            Step::Snapshot => self.snapshot(larder),
            Step::Rollback { nth } => self.rollback(larder, nth),
            Step::Clone { nth } => self.clone_one(larder, nth),
            Step::Send => self.send(larder),
            Step::Property(property) => {
                let dataset = self.dataset.clone();
                self.say(larder, &["fs", "set", property, &dataset]).map(drop)
            }
        }
    }

    /// The result of a system call: nothing where the daemon was killed meanwhile.
    fn ask<T>(&self, larder: &Larder, result: io::Result<T>, at: &Path) -> Done<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(_) if larder.is_dying() => Ok(None),
            Err(error) if is_full(&error) => Err(Halt::Full),
            Err(error) => Err(failed(format!("{}: {error}", at.display()))),
        }
    }

    /// The words of a command; nothing where the daemon was killed meanwhile.
    fn say(&self, larder: &Larder, words: &[&str]) -> Done<Option<Said>> {
        heard(larder, larder.run(words), words)
    }

    /// Does something with a file, if there is one of that number.
    fn with(&mut self, file: u8, does: impl FnOnce(&mut Self, FileId, &Path) -> Done) -> Done {
        let path = path(file);
        let Some(id) = self.model.file(&path) else { return Ok(()) };
        let at = self.top.join(path);
        does(self, id, &at)
    }

    /// Makes the folder of a path, if it is not there.
    fn folder_of(&mut self, larder: &Larder, path: &str) -> Done {
        let folder = path.split('/').next().unwrap_or_default();
        if self.model.tree().nodes.contains_key(folder) {
            return Ok(());
        }
        let at = self.top.join(folder);
        let done = self.ask(larder, fs::create_dir(&at), &at)?;
        self.model.change(Change::Put(folder.to_owned(), Node::Folder));
        alive(done)
    }

    /// Opens a file for writing; it is made if it is not there.
    fn open(&mut self, larder: &Larder, path: &str) -> Done<(FileId, File)> {
        self.folder_of(larder, path)?;
        let at = self.top.join(path);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(&at);
        let opened = self.ask(larder, opened, &at)?;
        let id = self.model.file(path).unwrap_or_else(|| self.model.create(path));
        opened.map(|file| (id, file)).ok_or(Halt::Dying)
    }

    fn put(&mut self, larder: &Larder, id: FileId, file: &File, at: usize, mut bytes: Vec<u8>) -> Done {
        let done = self.ask(larder, file.write_at(&bytes, at as u64), &self.top)?;
        if let Some(written) = done {
            self.tally.written += written as u64;
            bytes.truncate(written);
        }
        if !bytes.is_empty() {
            self.model.edit(id, Edit::Write(at, Arc::new(bytes)));
        }
        alive(done.map(drop))
    }

    fn write(&mut self, larder: &Larder, path: &str, at: Option<u32>, len: u32, fill: Fill) -> Done {
        let (id, file) = self.open(larder, path)?;
        let end = self.model.bytes(id).len();
        let at = at.map_or(end, |at| at as usize);
        if at + len as usize > LONGEST {
            return Ok(());
        }
        self.put(larder, id, &file, at, fill.bytes(len as usize))
    }

    fn replace(&mut self, larder: &Larder, path: &str, len: u32, fill: Fill) -> Done {
        let beside = format!("{path}.new");
        if self.model.file(&beside).is_some() {
            self.remove(larder, &beside)?;
        }
        let (id, file) = self.open(larder, &beside)?;
        self.put(larder, id, &file, 0, fill.bytes(len as usize))?;
        let at = self.top.join(&beside);
        let done = self.ask(larder, file.sync_all(), &at)?;
        alive(done)?;
        self.model.sync(id);
        let done = self.ask(larder, fs::rename(&at, self.top.join(path)), &at)?;
        self.model.change(Change::Rename(beside, path.to_owned()));
        alive(done)
    }

    fn remove(&mut self, larder: &Larder, path: &str) -> Done {
        let at = self.top.join(path);
        let is_folder = self.model.tree().nodes.get(path) == Some(&Node::Folder);
        let done = if is_folder { fs::remove_dir(&at) } else { fs::remove_file(&at) };
        let done = self.ask(larder, done, &at)?;
        self.model.change(Change::Remove(path.to_owned()));
        alive(done)
    }

    fn rename(&mut self, larder: &Larder, from: u8, to: u8) -> Done {
        let (from, to) = (path(from), path(to));
        let Some(id) = self.model.file(&from) else { return Ok(()) };
        if self.model.file(&to) == Some(id) {
            return Ok(());
        }
        self.folder_of(larder, &to)?;
        let at = self.top.join(&from);
        let done = self.ask(larder, fs::rename(&at, self.top.join(&to)), &at)?;
        self.model.change(Change::Rename(from, to));
        alive(done)
    }

    fn link(&mut self, larder: &Larder, from: u8, to: u8) -> Done {
        let (from, to) = (path(from), path(to));
        let Some(id) = self.model.file(&from) else { return Ok(()) };
        if self.model.tree().nodes.contains_key(&to) {
            return Ok(());
        }
        self.folder_of(larder, &to)?;
        let at = self.top.join(&to);
        let done = self.ask(larder, fs::hard_link(self.top.join(&from), &at), &at)?;
        self.model.change(Change::Put(to, Node::File(id)));
        alive(done)
    }

    fn symlink(&mut self, larder: &Larder, file: u8) -> Done {
        let path = format!("d{}/s{file}", file % 3);
        if self.model.tree().nodes.contains_key(&path) {
            return self.remove(larder, &path);
        }
        self.folder_of(larder, &path)?;
        let (at, target) = (self.top.join(&path), format!("f{file}"));
        let done = self.ask(larder, symlink(&target, &at), &at)?;
        self.model.change(Change::Put(path, Node::Link(target)));
        alive(done)
    }

    fn copy(&mut self, larder: &Larder, from: u8, to: u8) -> Done {
        let (from, to) = (path(from), path(to));
        let Some(source) = self.model.file(&from) else { return Ok(()) };
        if self.model.file(&to) == Some(source) {
            return Ok(());
        }
        let (id, target) = self.open(larder, &to)?;
        let at = self.top.join(&from);
        let done = self.ask(larder, target.set_len(0), &at)?;
        self.model.edit(id, Edit::Cut(0));
        alive(done)?;
        let Some(file) = self.ask(larder, File::open(&at), &at)? else { return Err(Halt::Dying) };
        let bytes = Arc::clone(self.model.bytes(source));
        let mut copied = 0;
        while copied < bytes.len() {
            let (mut here, mut there) = (copied as u64, copied as u64);
            let left = bytes.len() - copied;
            let done = copy_file_range(&file, Some(&mut here), &target, Some(&mut there), left);
            let done = self.ask(larder, done.map_err(io::Error::from), &at)?;
            let count = done.unwrap_or(left);
            if count == 0 {
                return Err(failed(format!("{} ended at {copied} for copy_file_range", at.display())));
            }
            self.model.edit(id, Edit::Write(copied, Arc::new(bytes[copied..copied + count].to_vec())));
            alive(done.map(drop))?;
            copied += count;
        }
        Ok(())
    }

    fn move_folder(&mut self, larder: &Larder, from: u8, to: u8) -> Done {
        let (from, to) = (format!("d{from}"), format!("e{to}"));
        let nodes = &self.model.tree().nodes;
        if !nodes.contains_key(&from) || nodes.contains_key(&to) {
            return Ok(());
        }
        let at = self.top.join(&from);
        let done = self.ask(larder, fs::rename(&at, self.top.join(&to)), &at)?;
        self.model.change(Change::Rename(from, to));
        alive(done)
    }

    fn snapshot(&mut self, larder: &Larder) -> Done {
        if self.snapshots.len() >= SNAPSHOTS {
            let name = format!("{}@{}", self.dataset, self.snapshots[0].name);
            self.snapshots[0].sure = false;
            let done = self.say(larder, &["fs", "destroy", "--now", &name]);
            if let Err(Halt::Full) = done {
                self.snapshots[0].sure = true;
            }
            alive(done?)?;
            self.snapshots.remove(0);
        }
        self.serial += 1;
        let name = format!("s{}", self.serial);
        let full = format!("{}@{name}", self.dataset);
        let done = self.say(larder, &["fs", "snapshot", &full])?;
        let sure = done.is_some();
        self.snapshots.push(Snapshot { name, frozen: self.model.freeze(), sure });
        alive(done)?;
        // A snapshot is a commit.
        self.model.settle();
        Ok(())
    }

    fn some_snapshot(&self, nth: u8) -> Option<usize> {
        (!self.snapshots.is_empty()).then(|| usize::from(nth) % self.snapshots.len())
    }

    fn rollback(&mut self, larder: &Larder, nth: u8) -> Done {
        let Some(nth) = self.some_snapshot(nth) else { return Ok(()) };
        let full = format!("{}@{}", self.dataset, self.snapshots[nth].name);
        let done = self.say(larder, &["fs", "rollback", "-r", &full])?;
        self.snapshots[nth + 1..].iter_mut().for_each(|newer| newer.sure = false);
        let Self { model, snapshots, .. } = self;
        model.reset(&snapshots[nth].frozen);
        alive(done)?;
        self.snapshots.truncate(nth + 1);
        self.model.settle();
        Ok(())
    }

    /// Name of a dataset beside it.
    fn beside(&self, what: &str) -> (String, PathBuf) {
        let with = |name: &str| name.replace("lane", what);
        let name = self.top.file_name().unwrap_or_default().to_string_lossy();
        (with(&self.dataset), self.top.with_file_name(with(&name)))
    }

    fn clone_one(&mut self, larder: &Larder, nth: u8) -> Done {
        let Some(nth) = self.some_snapshot(nth) else { return Ok(()) };
        let (clone, top) = self.beside("clone");
        let full = format!("{}@{}", self.dataset, self.snapshots[nth].name);
        let done = self.say(larder, &["fs", "clone", &full, &clone])?;
        alive(done)?;
        compare(larder, &top, &self.snapshots[nth].frozen, &mut self.tally)?;
        let at = top.join("own");
        let done = self.ask(larder, fs::write(&at, &self.dataset), &at);
        // It goes also where there was no room for more.
        if !matches!(done, Err(Halt::Full)) {
            alive(done?)?;
        }
        let done = self.say(larder, &["fs", "destroy", "--now", &clone])?;
        alive(done.map(drop))
    }

    fn send(&mut self, larder: &Larder) -> Done {
        let Some(newest) = self.snapshots.last() else { return Ok(()) };
        let (name, frozen) = (newest.name.clone(), newest.frozen.clone());
        let (copy, top) = self.beside("copy");
        let full = format!("{}@{name}", self.dataset);
        if self.copy.last().is_some_and(|(base, _)| *base == name) {
            return Ok(());
        }
        let base = self.copy.last().map(|(base, _)| base.clone());
        let base = base.filter(|base| self.snapshots.iter().any(|snapshot| snapshot.name == *base));
        if base.is_none() && !self.copy.is_empty() {
            self.copy_unsure = true;
            let done = self.say(larder, &["fs", "destroy", "-r", "--now", &copy])?;
            alive(done)?;
            self.copy.clear();
        }
        let since = base.as_ref().map(|base| format!("@{base}"));
        let mut words = vec!["fs", "send"];
        words.extend(since.iter().flat_map(|since| ["-i", since.as_str()]));
        words.push(&full);
        self.copy_unsure |= self.copy.is_empty();
        let said = larder.pipe(&words, &["fs", "receive", &copy]);
        self.copy.push((name, frozen));
        match said {
            _ if larder.is_dying() => return Err(Halt::Dying),
            Err(failure) => return Err(Halt::Failed(failure)),
            Ok(both) if both.iter().all(|said| said.ok) => {}
            Ok(both) => {
                self.copy.pop();
                self.copy_unsure &= !self.copy.is_empty();
                if both.iter().any(Said::lacks_room) {
                    return Err(Halt::Full);
                }
                return Err(failed(format!("sending {full} to {copy}: {} {}", both[0].err, both[1].err)));
            }
        }
        self.copy_unsure = false;
        self.copy.drain(..self.copy.len() - 1);
        compare(larder, &top, &self.copy[0].1, &mut self.tally)?;
        if let Some(base) = base {
            let done = self.say(larder, &["fs", "destroy", "--now", &format!("{copy}@{base}")])?;
            alive(done)?;
        }
        Ok(())
    }

    /// All is as it must be; `crashed` says that what was not durable may be older.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn verify(&mut self, larder: &Larder, crashed: bool) -> Outcome<()> {
        let dataset = self.dataset.clone();
        self.verify_all(larder, crashed).map_err(|failure| failure.when(dataset))
    }

    fn verify_all(&mut self, larder: &Larder, crashed: bool) -> Outcome<()> {
        let listed =
            larder.must(&["fs", "list", "-H", "-o", "name", "-t", "snapshot", "-d", "1", &self.dataset])?;
        let listed: Vec<&str> = listed.lines().filter_map(|line| Some(line.split_once('@')?.1)).collect();
        if let Some(missing) =
            self.snapshots.iter().find(|snapshot| snapshot.sure && !listed.contains(&snapshot.name.as_str()))
        {
            return Err(Failure::new(format!("the snapshot {} is not there", missing.name)));
        }
        self.snapshots.retain(|snapshot| listed.contains(&snapshot.name.as_str()));
        if let Some(name) =
            listed.iter().find(|name| !self.snapshots.iter().any(|known| known.name == **name))
        {
            return Err(Failure::new(format!("the snapshot {name} is there and must not be")));
        }
        self.snapshots.iter_mut().for_each(|snapshot| snapshot.sure = true);
        let found = all_of(&self.top)?;
        self.tally.compared += found.bytes;
        let same = if crashed { self.model.recover(&found.sight) } else { self.model.compare(&found.sight) };
        same.map_err(Failure::new)?;
        for snapshot in &self.snapshots {
            let found = all_of(&self.top.join(".zfs/snapshot").join(&snapshot.name))?;
            self.tally.compared += found.bytes;
            snapshot
                .frozen
                .compare(&found.sight)
                .map_err(|why| Failure::new(why).when(format!("snapshot {}", snapshot.name)))?;
        }
        self.verify_beside(larder)
    }

    /// The dataset that is sent to is what it must be; a clone that was left goes.
    fn verify_beside(&mut self, larder: &Larder) -> Outcome<()> {
        let (copy, top) = self.beside("copy");
        let is_there = larder.run(&["fs", "list", "-H", "-o", "name", &copy])?.ok;
        if !is_there && !self.copy_unsure && !self.copy.is_empty() {
            return Err(Failure::new(format!("{copy} is not there")));
        }
        if is_there {
            // Where its first stream broke off, nothing of it may be there, nor is it mounted then.
            let found =
                if self.copy_unsure && !top.exists() { crate::sight::Look::default() } else { all_of(&top)? };
            self.tally.compared += found.bytes;
            let whys: Vec<String> =
                self.copy.iter().filter_map(|(_, frozen)| frozen.compare(&found.sight).err()).collect();
            let is_empty = self.copy_unsure && found.sight.is_empty();
            if whys.len() == self.copy.len() && !is_empty {
                return Err(Failure::new(format!("{copy}: {}", whys.join("; "))));
            }
            if self.copy_unsure || self.copy.len() > 1 {
                larder.must(&["fs", "destroy", "-r", "--now", &copy])?;
                self.copy.clear();
            }
        } else {
            self.copy.clear();
        }
        self.copy_unsure = false;
        let (clone, _) = self.beside("clone");
        if larder.run(&["fs", "list", "-H", "-o", "name", &clone])?.ok {
            larder.must(&["fs", "destroy", "-r", "--now", &clone])?;
        }
        Ok(())
    }
}

/// Where the file of a number is.
fn path(file: u8) -> String {
    format!("d{}/f{file}", file % 3)
}

fn failed(what: String) -> Halt {
    Halt::Failed(Failure::new(what))
}

fn alive<T>(done: Option<T>) -> Done {
    done.map(drop).ok_or(Halt::Dying)
}

fn open(at: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(at)
}

fn heard(larder: &Larder, said: Outcome<Said>, words: &[&str]) -> Done<Option<Said>> {
    match said {
        Ok(said) if said.ok => Ok(Some(said)),
        _ if larder.is_dying() => Ok(None),
        Ok(said) if said.lacks_room() => Err(Halt::Full),
        Ok(said) => Err(failed(format!("larder {}: {}", words.join(" "), said.err.trim()))),
        Err(failure) => Err(Halt::Failed(failure)),
    }
}

/// All below a folder, every bit of which can be read.
fn all_of(top: &Path) -> Outcome<crate::sight::Look> {
    let found = look(top).map_err(|(at, error)| Failure::new(format!("{}: {error}", at.display())))?;
    match found.failed.first() {
        None => Ok(found),
        Some(path) => Err(Failure::new(format!("{}/{path} gives an I/O error", top.display()))),
    }
}

fn compare(larder: &Larder, top: &Path, frozen: &Frozen, tally: &mut Tally) -> Done {
    let found = match all_of(top) {
        Ok(found) => found,
        Err(_) if larder.is_dying() => return Err(Halt::Dying),
        Err(failure) => return Err(Halt::Failed(failure)),
    };
    tally.compared += found.bytes;
    match frozen.compare(&found.sight) {
        Err(_) if larder.is_dying() => Err(Halt::Dying),
        Err(why) => Err(failed(format!("{}: {why}", top.display()))),
        Ok(()) => Ok(()),
    }
}
