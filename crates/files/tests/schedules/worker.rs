//! A task that works on files of its own, and writes down what it did and what it was promised.

use crate::bed::{Bed, ROOT, USER};
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_pool::ROOT_DATASET;
use larder_sync::schedule;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Letters that all workers write, at the same offsets: duplicates of one another.
const SHARED_LETTERS: u64 = 3;

/// Content of a file.
type Content = Arc<Vec<u8>>;

/// Content made of a letter.
pub fn content(letter: u64, len: usize) -> Content {
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for (i, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (letter * 1_000_003 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    }
    bytes.truncate(len);
    Arc::new(bytes)
}

/// A file by its number, in the order in which its worker made them.
type File = usize;
/// The worker's names, `folder/name`, and the files that they lead to.
type Names = BTreeMap<String, File>;

/// Something that a worker was told to be durable.
struct Promise {
    /// All that was done before this many changes of names.
    names: usize,
    /// Of these files at least these versions.
    versions: Vec<(File, usize)>,
}

/// Content of a file since some moment.
struct Version {
    content: Content,
    /// The place of that moment in the order of all that was entered.
    at: u64,
}

/// A change that took something away.
#[derive(Clone, Copy)]
enum Removal {
    /// A change of names, by its number.
    Names(usize),
    /// A file was cut, or a hole made in it: what came of it.
    Content(File, usize),
}

/// Changes by a worker. Each is entered before it is made, for it may be durable before the call returns.
#[derive(Default)]
pub struct Diary {
    /// The names after each change.
    names: Vec<Names>,
    /// Versions of each file, in order; the first is empty.
    versions: Vec<Vec<Version>>,
    /// Number of entries so far.
    entered: u64,
    /// Removals, each with its place in the order of all entries.
    removals: Vec<(Removal, u64)>,
    promises: Vec<Promise>,
    /// The pool failed it; the last change may be there or not.
    pub cut_short: bool,
    /// The pool is so full that it may commit what fits: what was removed is not in order with what was written, and
    /// of a write there may be a part.
    pub full: bool,
}

/// Whether each byte of `found` is of one of these versions.
fn is_mixed(found: &[u8], versions: &[Version]) -> bool {
    let held = |version: &Version, at| version.content.get(at).copied().unwrap_or(0);
    found.iter().enumerate().all(|(at, byte)| versions.iter().any(|version| held(version, at) == *byte))
}

/// Content of the files in a worker's folders, by name.
pub type Found = BTreeMap<String, Vec<u8>>;

impl Diary {
    /// Whether `found` is a state that this worker may find after those of its promises were kept.
    pub fn allows(&self, found: &Found, kept: impl Iterator<Item = usize>) -> Result<(), String> {
        let (mut least, mut versions) = (0, BTreeMap::new());
        for promise in kept.map(|promise| &self.promises[promise]) {
            least = least.max(promise.names);
            for &(file, version) in &promise.versions {
                let known = versions.entry(file).or_insert(0);
                *known = version.max(*known);
            }
        }
        let mut refused = Vec::new();
        for (number, names) in self.names.iter().enumerate().skip(least) {
            match self.allows_state(names, number, &versions, found) {
                Ok(()) => return Ok(()),
                Err(why) => refused.push(format!("after change {number}: {why}")),
            }
        }
        let names: Vec<_> = found.iter().map(|(name, bytes)| format!("{name} ({})", bytes.len())).collect();
        Err(format!(
            "found {}; at least change {least} of {}; {}",
            names.join(", "),
            self.names.len() - 1,
            refused.join("; ")
        ))
    }

    fn allows_state(
        &self,
        names: &Names,
        number: usize,
        promised: &BTreeMap<File, usize>,
        found: &Found,
    ) -> Result<(), String> {
        if !names.keys().eq(found.keys()) {
            return Err(format!("names {:?}", names.keys().collect::<Vec<_>>()));
        }
        // Of each file that is there, the oldest version that it may be.
        let mut oldest = BTreeMap::new();
        for (name, &file) in names {
            let least = promised.get(&file).copied().unwrap_or(0);
            let versions = &self.versions[file];
            let is = |version: &Version| *version.content == found[name];
            let some = versions[least..].iter().position(is);
            let part = || (self.full && is_mixed(&found[name], &versions[least..])).then_some(0);
            let Some(which) = some.or_else(part) else {
                let which = versions.iter().position(is);
                let last = versions.len() - 1;
                return Err(format!("{name} holds version {which:?} of {last}, and {least} was promised"));
            };
            oldest.insert(file, least + which);
        }
        // A removal is durable only with the data written before it.
        let is_durable = |removal: Removal| match removal {
            Removal::Names(change) => change <= number,
            Removal::Content(file, version) => oldest.get(&file).is_some_and(|&oldest| oldest >= version),
        };
        let durable = self.removals.iter().filter(|(removal, _)| !self.full && is_durable(*removal));
        let by_then = durable.map(|(_, at)| *at).max().unwrap_or(0);
        for (name, &file) in names {
            let versions = &self.versions[file];
            let least = versions.iter().rposition(|version| version.at < by_then).unwrap_or(0);
            let whole = versions[least..].iter().any(|version| *version.content == found[name]);
            if !whole && !self.full {
                return Err(format!(
                    "{name} holds version {}, and {least} came before a removal",
                    oldest[&file]
                ));
            }
        }
        Ok(())
    }

    /// The state to be found as long as nothing failed.
    pub fn last(&self) -> Found {
        let content = |file: &File| self.versions[*file].last().expect("the first is empty").content.to_vec();
        self.names
            .last()
            .map(|names| names.iter().map(|(name, file)| (name.clone(), content(file))).collect())
            .unwrap_or_default()
    }

    fn enter_names(&mut self, names: Names, removes: bool) {
        self.entered += 1;
        self.names.push(names);
        if removes {
            self.removals.push((Removal::Names(self.names.len() - 1), self.entered));
        }
    }

    fn enter_content(&mut self, file: File, content: Content, removes: bool) {
        self.entered += 1;
        self.versions[file].push(Version { content, at: self.entered });
        if removes {
            self.removals.push((Removal::Content(file, self.versions[file].len() - 1), self.entered));
        }
    }
}

/// Reads a worker's files from the pool.
pub fn found(bed: &Bed, worker: u64) -> Found {
    let mut found = Found::new();
    for folder in ["a", "b"] {
        // A dataset may have been destroyed.
        let Ok(at) = bed.find(&format!("worker-{worker}-{folder}")) else { continue };
        for (name, node, _) in bed.names(at.node) {
            if !name.starts_with('.') {
                found.insert(format!("{folder}/{name}"), bed.content(node));
            }
        }
    }
    found
}

/// Where the workers are at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct World {
    /// Place in the list of layouts.
    pub layout: usize,
    /// Records of 128 KiB, and files of more than one.
    pub large: bool,
    /// Files are cut by content.
    pub by_content: bool,
    /// One folder of each worker is a dataset, which it destroys in the end.
    pub datasets: bool,
    /// The pool is aged and nearly full.
    pub full: bool,
    /// Most writes are synced, in much memory and with little upkeep: the log is full before anything else takes a
    /// commit, and again and again an fsync comes while the commit that another one became is written.
    pub fills_log: bool,
}

impl World {
    fn dataset(worker: u64) -> String {
        format!("tank/b{worker}")
    }

    /// Makes the workers' folders, before any schedule.
    pub fn prepare(self, bed: &Bed, workers: u64) {
        for worker in 0..workers {
            bed.dir(ROOT, &format!("worker-{worker}-a"));
            if self.datasets {
                bed.pool.create_dataset(&Self::dataset(worker), Default::default()).unwrap();
            } else {
                bed.dir(ROOT, &format!("worker-{worker}-b"));
            }
        }
    }

    /// Shows the datasets that are there and not shown.
    pub fn attach(self, bed: &Bed, workers: u64) {
        (0..workers).filter(|_| self.datasets).for_each(|worker| self.attach_one(bed, worker).unwrap());
    }

    /// Fails when something still goes on in the dataset, or the pool takes nothing more.
    fn attach_one(self, bed: &Bed, worker: u64) -> Result<()> {
        let dataset = bed.pool.dataset_by_name(&Self::dataset(worker));
        if let Ok(dataset) = dataset
            && bed.mount.volume(dataset.id()).is_none()
        {
            let place = (ROOT_DATASET, format!("worker-{worker}-b").into_bytes());
            bed.mount.attach(dataset, Some(place))?;
            // Else its first inode would take this commit.
            bed.pool.commit()?;
        }
        Ok(())
    }
}

/// A worker at work.
pub struct Worker<'a> {
    pub bed: &'a Bed,
    pub number: u64,
    pub diary: &'a Mutex<Diary>,
    pub entropy: SeededEntropy,
    pub world: World,
    /// Length of its files, bytes.
    pub len: usize,
    /// It syncs most of what it writes, which fills the log.
    pub eager: bool,
    pub folders: [NodeId; 2],
    nodes: Vec<NodeId>,
    names: Names,
    letters: u64,
}

impl<'a> Worker<'a> {
    pub fn new(bed: &'a Bed, number: u64, diary: &'a Mutex<Diary>, seed: u64, world: World) -> Self {
        let folder = |name| bed.find(&format!("worker-{number}-{name}")).unwrap().node;
        diary.lock().unwrap().names.push(Names::new());
        diary.lock().unwrap().full = world.full;
        let entropy = SeededEntropy::new(seed * 64 + number);
        let folders = [folder("a"), folder("b")];
        let (nodes, names) = (Vec::new(), Names::new());
        // A write goes into one record of the log, of a quarter of a slot at most, or takes a commit.
        let len = match world {
            World { fills_log: true, .. } => 180_000,
            World { large: true, .. } => 300_000,
            _ => 9_000,
        };
        Self { bed, number, diary, entropy, world, len, eager: false, folders, nodes, names, letters: 0 }
    }

    fn below(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    /// Does so many things, or as many as the pool lets it.
    pub fn work(&mut self, steps: u64) -> Result<()> {
        for step in 0..=steps {
            let done = match step == steps {
                false => self.step(),
                true if self.world.datasets && self.below(2) == 0 => self.destroy(),
                true => Ok(()),
            };
            match done {
                // Nothing was done then.
                Err(FsError::NoSpace) if self.world.full => {}
                Err(error) => {
                    self.diary.lock().unwrap().cut_short = true;
                    return Err(error);
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let some = self.any_name();
        let Some(name) = some else {
            let file = self.make(&self.fresh_name("file"))?;
            return self.write(file);
        };
        let file = self.names[&name];
        let what = if self.eager && self.below(4) > 0 { 3 } else { self.below(15) };
        match what {
            0 | 1 => self.write(file),
            2 => self.fsync(file),
            3 | 4 => {
                self.write(file)?;
                self.fsync(file)
            }
            5 => {
                let file = self.make(&self.fresh_name("file"))?;
                self.write(file)?;
                if self.below(2) == 0 { self.fsync(file) } else { Ok(()) }
            }
            6 => {
                let folder = name.split_once('/').expect("names have folders").0;
                let temporary = format!("{folder}/temporary-{}", self.nodes.len());
                let new = self.make(&temporary)?;
                self.write(new)?;
                if self.below(3) == 0 {
                    self.fsync(new)?;
                }
                self.rename(&temporary, &name)
            }
            7 => {
                let (folder, rest) = name.split_once('/').expect("names have folders");
                let to = format!("{}/{rest}", if folder == "a" { "b" } else { "a" });
                if self.names.contains_key(&to) {
                    return self.unlink(&name);
                }
                let copy = self.make(&to)?;
                let content = self.last(file);
                self.write_content(copy, content)?;
                self.unlink(&name)
            }
            8 => self.clone_of(file),
            9 => self.unlink(&name),
            10 => self.sync(),
            // In what order with the last write it is found would not be known.
            11 | 12 if self.world.full => self.fsync(file),
            11 => {
                let len = self.below(self.last(file).len() as u64 + 1);
                self.cut(file, len as usize)
            }
            12 => self.punch(file),
            13 => match self.any_name() {
                Some(other) if other != name && other[..1] == name[..1] => self.rename(&other, &name),
                _ => self.fsync(file),
            },
            _ => {
                let node = self.nodes[file];
                let expected = self.last(file);
                let size = self.bed.mount.getattr(node)?.size;
                let found = self.bed.mount.read(node, Handle(0), 0, size as u32)?.to_vec();
                assert!(
                    found == *expected,
                    "worker {}: {name} reads otherwise than it was written",
                    self.number
                );
                Ok(())
            }
        }
    }

    fn any_name(&self) -> Option<String> {
        let count = self.names.len() as u64;
        let nth = (count > 0).then(|| self.below(count))?;
        self.names.keys().nth(nth as usize).cloned()
    }

    fn last(&self, file: File) -> Content {
        Arc::clone(&self.diary.lock().unwrap().versions[file].last().expect("the first is empty").content)
    }

    fn fresh_name(&self, kind: &str) -> String {
        let folder = ["a", "b"][self.below(2) as usize];
        format!("{folder}/{kind}-{}", self.nodes.len())
    }

    fn place(&self, name: &str) -> (NodeId, Vec<u8>) {
        let (folder, rest) = name.split_once('/').expect("names have folders");
        (self.folders[usize::from(folder == "b")], rest.as_bytes().to_vec())
    }

    /// Enters a change of names and makes it; what the pool refuses was not.
    fn change_names<T>(
        &mut self,
        names: Names,
        removes: bool,
        change: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        self.diary.lock().unwrap().enter_names(names.clone(), removes);
        let changed = change(self);
        if matches!(changed, Err(FsError::NoSpace | FsError::Busy)) {
            let mut diary = self.diary.lock().unwrap();
            diary.names.pop();
            if removes {
                diary.removals.pop();
            }
        } else {
            self.names = names;
        }
        changed
    }

    /// The same for what a file holds.
    fn change_content<T>(
        &self,
        file: File,
        content: Content,
        removes: bool,
        change: impl FnOnce(NodeId) -> Result<T>,
    ) -> Result<T> {
        self.diary.lock().unwrap().enter_content(file, content, removes);
        let changed = change(self.nodes[file]);
        if matches!(changed, Err(FsError::NoSpace)) {
            let mut diary = self.diary.lock().unwrap();
            diary.versions[file].pop();
            if removes {
                diary.removals.pop();
            }
        }
        changed
    }

    fn make(&mut self, name: &str) -> Result<File> {
        let file = self.nodes.len();
        let mut names = self.names.clone();
        names.insert(name.into(), file);
        self.diary.lock().unwrap().versions.push(Vec::new());
        self.diary.lock().unwrap().enter_content(file, Content::default(), false);
        let (folder, rest) = self.place(name);
        let made = self.change_names(names, false, |worker| {
            worker.bed.mount.mknod(folder, &rest, FileKind::Regular, 0o644, 0, &USER)
        });
        match made {
            Ok(made) => {
                self.nodes.push(made.node);
                Ok(file)
            }
            Err(error) => {
                self.diary.lock().unwrap().versions.pop();
                Err(error)
            }
        }
    }

    fn write(&mut self, file: File) -> Result<()> {
        self.letters += 1;
        let letter = match self.below(3) {
            0 => 1 + self.below(SHARED_LETTERS),
            _ => 1000 * (self.number + 1) + self.letters,
        };
        self.write_content(file, content(letter, self.len))
    }

    fn write_content(&mut self, file: File, content: Content) -> Result<()> {
        if content.is_empty() {
            return Ok(());
        }
        // The bytes behind stay.
        let mut whole = content.to_vec();
        whole.extend_from_slice(self.last(file).get(content.len()..).unwrap_or_default());
        let write = |node| self.bed.mount.write(node, Handle(0), 0, &content, false);
        self.change_content(file, Arc::new(whole), false, write).map(drop)
    }

    fn cut(&mut self, file: File, len: usize) -> Result<()> {
        let left = Arc::new(self.last(file)[..len].to_vec());
        let change = SetAttr { size: Some(len as u64), ..SetAttr::default() };
        self.change_content(file, left, true, |node| self.bed.mount.setattr(node, &change, &USER)).map(drop)
    }

    fn punch(&mut self, file: File) -> Result<()> {
        let mut left = self.last(file).to_vec();
        let start = self.below(left.len() as u64 + 1) as usize;
        let end = start + self.below((left.len() - start) as u64 + 1) as usize;
        if start == end {
            return Ok(());
        }
        left[start..end].fill(0);
        let (at, len) = (start as u64, (end - start) as u64);
        let punch = |node| self.bed.mount.fallocate(node, Handle(0), at, len, Allocate::Punch);
        self.change_content(file, Arc::new(left), true, punch)
    }

    /// Destroys the dataset that one of its folders is.
    fn destroy(&mut self) -> Result<()> {
        let mut names = self.names.clone();
        names.retain(|name, _| name.starts_with('a'));
        let dataset = self.bed.pool.dataset_by_name(&World::dataset(self.number))?.id();
        self.bed.mount.detach(dataset)?;
        let destroy = |worker: &Self| Ok(worker.bed.pool.destroy_dataset(dataset)?);
        match self.change_names(names, true, destroy) {
            // It has a snapshot.
            Err(FsError::Busy) => {
                match self.world.attach_one(self.bed, self.number) {
                    // It is shown again when all is over.
                    Err(FsError::Busy) => Ok(()),
                    attached => attached,
                }
            }
            done => done,
        }
    }

    fn promised(&self, names: usize, versions: Vec<(File, usize)>) {
        let promise = {
            let mut diary = self.diary.lock().unwrap();
            diary.promises.push(Promise { names, versions });
            diary.promises.len() as u64 - 1
        };
        self.bed.sim.mark((self.number << 32) | promise);
    }

    fn fsync(&mut self, file: File) -> Result<()> {
        let (names, version) = {
            let diary = self.diary.lock().unwrap();
            (diary.names.len() - 1, diary.versions[file].len() - 1)
        };
        self.bed.mount.fsync(self.nodes[file], Handle(0), self.below(2) == 0)?;
        self.promised(names, vec![(file, version)]);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let (names, versions) = {
            let diary = self.diary.lock().unwrap();
            let newest = diary.versions.iter().enumerate().map(|(file, versions)| (file, versions.len() - 1));
            (diary.names.len() - 1, newest.collect())
        };
        self.bed.mount.sync()?;
        self.promised(names, versions);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let mut names = self.names.clone();
        let file = names.remove(from).expect("it was made");
        names.insert(to.into(), file);
        let ((old, old_name), (new, new_name)) = (self.place(from), self.place(to));
        self.change_names(names, true, |worker| {
            worker.bed.mount.rename(old, &old_name, new, &new_name, RenameFlags::default())
        })
    }

    fn unlink(&mut self, name: &str) -> Result<()> {
        let mut names = self.names.clone();
        names.remove(name);
        let (folder, rest) = self.place(name);
        self.change_names(names, true, |worker| worker.bed.mount.unlink(folder, &rest))
    }

    fn clone_of(&mut self, file: File) -> Result<()> {
        let content = self.last(file);
        let copy = self.make(&self.fresh_name("file"))?;
        schedule::step();
        let copying = |node| {
            let mut done = 0;
            while done < content.len() as u64 {
                let (from, to) = ((self.nodes[file], Handle(0), done), (node, Handle(0), done));
                let copied = self.bed.mount.copy_file_range(from, to, content.len() as u64 - done);
                // The bytes copied are there; the rest is not.
                let copied = match copied {
                    Err(FsError::NoSpace) if done > 0 => break,
                    copied => copied?,
                };
                assert!(copied > 0, "nothing is copied at {done} of {}", content.len());
                done += copied;
            }
            Ok(done as usize)
        };
        let done = self.change_content(copy, Arc::clone(&content), false, copying)?;
        if done < content.len() {
            let mut diary = self.diary.lock().unwrap();
            diary.versions[copy].pop();
            diary.enter_content(copy, Arc::new(content[..done].to_vec()), false);
        }
        Ok(())
    }
}
