//! A task that works on files of its own, and writes down what it did and what it was promised.

use crate::bed::{Bed, ROOT, USER};
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_sync::schedule;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Letters that all workers write, at the same offsets: duplicates of one another.
const SHARED_LETTERS: u64 = 3;

/// What a file holds: made of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    letter: u64,
    len: usize,
}

impl Content {
    const EMPTY: Self = Self { letter: 0, len: 0 };

    pub fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len.next_multiple_of(8)];
        for (i, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (self.letter * 1_000_003 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        }
        bytes.truncate(self.len);
        bytes
    }
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

/// What a worker did. Everything is entered before it is done, for it may be durable before the call returns.
#[derive(Default)]
pub struct Diary {
    /// The names after each change.
    names: Vec<Names>,
    /// What each file was written to hold, in order; empty first. With the number of changes of names by then.
    versions: Vec<Vec<(Content, usize)>>,
    /// Changes of names that took something away, by their number.
    removals: Vec<usize>,
    promises: Vec<Promise>,
    /// The pool failed it; the last change may be there or not.
    pub cut_short: bool,
}

/// What stands in a worker's folders.
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
        let removal = self.removals.iter().rev().find(|&&removal| removal <= number).copied();
        for (name, &file) in names {
            let promised = promised.get(&file).copied().unwrap_or(0);
            // What took something away is durable only with what was written before.
            let written = |(_, at): &(Content, usize)| removal.is_some_and(|removal| *at < removal);
            let ordered = self.versions[file].iter().rposition(written).unwrap_or(0);
            let least = promised.max(ordered);
            let versions: Vec<_> = self.versions[file].iter().map(|(content, _)| content.bytes()).collect();
            if !versions[least..].contains(&found[name]) {
                let which = versions.iter().position(|version| *version == found[name]);
                return Err(format!(
                    "{name} holds version {which:?} and must hold {least} of {} at least (promised {promised}, ordered {ordered})",
                    self.versions[file].len() - 1
                ));
            }
        }
        Ok(())
    }

    /// What it finds as long as nothing failed.
    pub fn last(&self) -> Found {
        let content = |file: &File| self.versions[*file].last().expect("the first is empty").0.bytes();
        self.names
            .last()
            .map(|names| names.iter().map(|(name, file)| (name.clone(), content(file))).collect())
            .unwrap_or_default()
    }
}

/// What there is of a worker's files.
pub fn found(bed: &Bed, worker: u64) -> Found {
    let mut found = Found::new();
    for folder in ["a", "b"] {
        let path = format!("worker-{worker}-{folder}");
        for (name, node, _) in bed.names(bed.find(&path).unwrap().node) {
            if !name.starts_with('.') {
                found.insert(format!("{folder}/{name}"), bed.content(node));
            }
        }
    }
    found
}

/// A worker at work.
pub struct Worker<'a> {
    pub bed: &'a Bed,
    pub number: u64,
    pub diary: &'a Mutex<Diary>,
    pub entropy: SeededEntropy,
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
    pub fn new(bed: &'a Bed, number: u64, diary: &'a Mutex<Diary>, seed: u64, len: usize) -> Self {
        let folder = |name| bed.find(&format!("worker-{number}-{name}")).unwrap().node;
        diary.lock().unwrap().names.push(Names::new());
        let entropy = SeededEntropy::new(seed * 64 + number);
        let folders = [folder("a"), folder("b")];
        let (nodes, names) = (Vec::new(), Names::new());
        Self { bed, number, diary, entropy, len, eager: false, folders, nodes, names, letters: 0 }
    }

    /// Folders of all workers, before any schedule.
    pub fn prepare(bed: &Bed, workers: u64) {
        for worker in 0..workers {
            bed.dir(ROOT, &format!("worker-{worker}-a"));
            bed.dir(ROOT, &format!("worker-{worker}-b"));
        }
    }

    fn below(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    /// Does so many things, or as many as the pool lets it.
    pub fn work(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            if let Err(error) = self.step() {
                self.diary.lock().unwrap().cut_short = true;
                return Err(error);
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let some = (!self.names.is_empty())
            .then(|| self.names.keys().nth(self.below(self.names.len() as u64) as usize).cloned())
            .flatten();
        let Some(name) = some else {
            let file = self.make(&self.fresh_name())?;
            return self.write(file);
        };
        let file = self.names[&name];
        let what = if self.eager && self.below(4) > 0 { 3 } else { self.below(12) };
        match what {
            0 | 1 => self.write(file),
            2 => self.fsync(file),
            3 | 4 => {
                self.write(file)?;
                self.fsync(file)
            }
            5 => {
                let file = self.make(&self.fresh_name())?;
                self.write(file)?;
                if self.below(2) == 0 { self.fsync(file) } else { Ok(()) }
            }
            6 => {
                let new = self.make("a/temporary")?;
                self.write(new)?;
                if self.below(3) == 0 {
                    self.fsync(new)?;
                }
                self.rename("a/temporary", &name)
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
            _ => {
                let node = self.nodes[file];
                let expected = self.last(file).bytes();
                let size = self.bed.mount.getattr(node)?.size;
                let found = self.bed.mount.read(node, Handle(0), 0, size as u32)?.to_vec();
                assert!(
                    found == expected,
                    "worker {}: {name} reads otherwise than it was written",
                    self.number
                );
                Ok(())
            }
        }
    }

    fn last(&self, file: File) -> Content {
        self.diary.lock().unwrap().versions[file].last().expect("the first is empty").0
    }

    fn fresh_name(&self) -> String {
        let folder = ["a", "b"][self.below(2) as usize];
        format!("{folder}/file-{}", self.nodes.len())
    }

    fn place(&self, name: &str) -> (NodeId, Vec<u8>) {
        let (folder, rest) = name.split_once('/').expect("names have folders");
        (self.folders[usize::from(folder == "b")], rest.as_bytes().to_vec())
    }

    /// Enters a change of names, which is about to be made.
    fn enter(&self, removes: bool) -> usize {
        let mut diary = self.diary.lock().unwrap();
        diary.names.push(self.names.clone());
        let number = diary.names.len() - 1;
        if removes {
            diary.removals.push(number);
        }
        number
    }

    fn make(&mut self, name: &str) -> Result<File> {
        let file = self.nodes.len();
        self.names.insert(name.into(), file);
        {
            let mut diary = self.diary.lock().unwrap();
            let by_then = diary.names.len() - 1;
            diary.versions.push(vec![(Content::EMPTY, by_then)]);
        }
        self.enter(false);
        let (folder, rest) = self.place(name);
        let made = self.bed.mount.mknod(folder, &rest, FileKind::Regular, 0o644, 0, &USER)?;
        self.nodes.push(made.node);
        Ok(file)
    }

    fn write(&mut self, file: File) -> Result<()> {
        self.letters += 1;
        let letter = match self.below(3) {
            0 => 1 + self.below(SHARED_LETTERS),
            _ => 1000 * (self.number + 1) + self.letters,
        };
        self.write_content(file, Content { letter, len: self.len })
    }

    fn write_content(&mut self, file: File, content: Content) -> Result<()> {
        if content == Content::EMPTY {
            return Ok(());
        }
        {
            let mut diary = self.diary.lock().unwrap();
            let by_then = diary.names.len() - 1;
            diary.versions[file].push((content, by_then));
        }
        self.bed.mount.write(self.nodes[file], Handle(0), 0, &content.bytes(), false)?;
        Ok(())
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
        let file = self.names.remove(from).expect("it was made");
        self.names.insert(to.into(), file);
        self.enter(true);
        let ((old, old_name), (new, new_name)) = (self.place(from), self.place(to));
        self.bed.mount.rename(old, &old_name, new, &new_name, RenameFlags::default())
    }

    fn unlink(&mut self, name: &str) -> Result<()> {
        self.names.remove(name);
        self.enter(true);
        let (folder, rest) = self.place(name);
        self.bed.mount.unlink(folder, &rest)
    }

    fn clone_of(&mut self, file: File) -> Result<()> {
        let content = self.last(file);
        let copy = self.make(&self.fresh_name())?;
        schedule::step();
        let mut done = 0;
        {
            let mut diary = self.diary.lock().unwrap();
            let by_then = diary.names.len() - 1;
            diary.versions[copy].push((content, by_then));
        }
        while done < content.len as u64 {
            let left = content.len as u64 - done;
            let copied = self.bed.mount.copy_file_range(
                (self.nodes[file], Handle(0), done),
                (self.nodes[copy], Handle(0), done),
                left,
            )?;
            assert!(copied > 0, "nothing is copied of {left} bytes");
            done += copied;
        }
        Ok(())
    }
}
