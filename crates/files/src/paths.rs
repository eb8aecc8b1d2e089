//! Paths of many inodes of a snapshot at once.
//!
//! A tree has no way from an inode to its name but through the folder that it says holds it: each such folder is read
//! once for all that are wanted of it. For a folder that answer is exact. A file that lost the name by which it was
//! made does not know its others: for such files all folders are read, once for all of them.

use crate::volume::inode_key;
use larder_format::InodeId;
use larder_format::items::{self, ENTRY, Entry, ROOT_INODE};
use larder_format::node::Key;
use larder_pool::{Look, SnapshotView};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

/// A path below the root of a dataset, beginning with `/`; or the reason why nobody can tell it.
pub(crate) type Path = Result<Vec<u8>, String>;
/// A folder and a name in it.
pub(crate) type Place = (InodeId, Vec<u8>);

/// Folders that are remembered from one call to the next.
const REMEMBERED: usize = 1 << 16;
/// Folders inside each other before they are taken for damaged: more than a path that the kernel takes can have.
const DEEPEST: usize = 2048;

/// See the module's text.
pub(crate) struct Paths<'a> {
    view: &'a SnapshotView,
    /// Where folders are.
    folders: HashMap<InodeId, Result<Place, String>>,
}

impl<'a> Paths<'a> {
    pub fn new(view: &'a SnapshotView) -> Self {
        Self { view, folders: HashMap::new() }
    }

    /// Places of inodes that are there, each given with the folder that it says holds it; for [`Paths::path`]: together
    /// the paths could take any amount of memory.
    pub fn of(&mut self, wanted: &[(InodeId, InodeId)]) -> HashMap<InodeId, Result<Place, String>> {
        let places = self.places(wanted);
        let dirs = places.values().flatten().map(|(dir, _)| *dir).collect();
        self.learn(dirs);
        let root = wanted.iter().filter(|(id, _)| *id == ROOT_INODE);
        // Joined, it is `/`.
        let root = root.map(|(id, _)| (*id, Ok((ROOT_INODE, Vec::new()))));
        places.into_iter().chain(root).collect()
    }

    /// The path of a place that was found, or why not.
    pub fn path(&self, place: Option<Result<Place, String>>) -> Option<Path> {
        place.map(|place| place.and_then(|at| self.join(&at)))
    }

    /// Paths of names in folders.
    pub fn of_places(&mut self, places: &[Place]) -> Vec<Path> {
        self.learn(places.iter().map(|(dir, _)| *dir).collect());
        places.iter().map(|place| self.join(place)).collect()
    }

    /// A place of each inode but the root.
    fn places(&self, wanted: &[(InodeId, InodeId)]) -> HashMap<InodeId, Result<Place, String>> {
        let mut by_folder: BTreeMap<InodeId, BTreeSet<InodeId>> = BTreeMap::new();
        for (id, folder) in wanted.iter().filter(|(id, _)| *id != ROOT_INODE) {
            by_folder.entry(*folder).or_default().insert(*id);
        }
        let (mut found, mut elsewhere) = (HashMap::new(), BTreeSet::new());
        for (folder, mut ids) in by_folder {
            let lost = self.look_in(folder, &mut ids, &mut found);
            if lost {
                let why = format!("a part of folder {folder} cannot be read");
                found.extend(ids.iter().map(|id| (*id, Err(why.clone()))));
            } else {
                elsewhere.append(&mut ids);
            }
        }
        if !elsewhere.is_empty() {
            self.look_everywhere(elsewhere, &mut found);
        }
        found
    }

    /// Takes those out of `ids` that a folder names. True when some of it cannot be read.
    fn look_in(
        &self,
        folder: InodeId,
        ids: &mut BTreeSet<InodeId>,
        found: &mut HashMap<InodeId, Result<Place, String>>,
    ) -> bool {
        let key = |cookie| Key::new(folder.get(), ENTRY, cookie);
        self.view.scan_past(key(0)..=key(u64::MAX), &mut |_, value| note(folder, value, ids, found))
    }

    /// The same of all folders, for those that are in none by their own account.
    fn look_everywhere(
        &self,
        mut ids: BTreeSet<InodeId>,
        found: &mut HashMap<InodeId, Result<Place, String>>,
    ) {
        let lost = self.view.scan_past(Key::MIN..=Key::MAX, &mut |key, value| match key.kind {
            ENTRY => note(InodeId::new(key.object), value, &mut ids, found),
            _ => ControlFlow::Continue(()),
        });
        let why = if lost { "a part of the folders cannot be read" } else { "no folder names it" };
        found.extend(ids.into_iter().map(|id| (id, Err(why.to_owned()))));
    }

    /// Learns where folders are, and those above them.
    fn learn(&mut self, mut wanted: BTreeSet<InodeId>) {
        if self.folders.len() > REMEMBERED {
            self.folders.clear();
        }
        loop {
            wanted.retain(|id| *id != ROOT_INODE && !self.folders.contains_key(id));
            if wanted.is_empty() {
                return;
            }
            let mut asked = Vec::new();
            for id in std::mem::take(&mut wanted) {
                match self.parent(id) {
                    Ok(parent) => asked.push((id, parent)),
                    Err(why) => drop(self.folders.insert(id, Err(why))),
                }
            }
            let places = self.places(&asked);
            wanted.extend(places.values().flatten().map(|(dir, _)| *dir));
            self.folders.extend(places);
        }
    }

    fn parent(&self, folder: InodeId) -> Result<InodeId, String> {
        let why = |why: &dyn std::fmt::Display| format!("folder {folder} above it cannot be read: {why}");
        let value = self.view.get(&inode_key(folder)).map_err(|error| why(&error))?;
        let value = value.ok_or_else(|| why(&"it is missing"))?;
        Ok(items::Inode::decode(&value).map_err(|corrupt| why(&corrupt))?.parent)
    }

    fn join(&self, (dir, name): &Place) -> Path {
        let (mut at, mut parts) = (*dir, vec![name.as_slice()]);
        while at != ROOT_INODE {
            let place = self.folders.get(&at).ok_or_else(|| format!("folder {at} was not found"))?;
            let (above, name) = place.as_ref().map_err(Clone::clone)?;
            parts.push(name);
            if parts.len() > DEEPEST {
                return Err(format!("folder {dir} is in a circle"));
            }
            at = *above;
        }
        Ok(parts.iter().rev().flat_map(|part| [b"/", *part]).flatten().copied().collect())
    }
}

/// Notes the inode that an entry of a folder names, if it is wanted.
fn note(
    folder: InodeId,
    value: &[u8],
    ids: &mut BTreeSet<InodeId>,
    found: &mut HashMap<InodeId, Result<Place, String>>,
) -> ControlFlow<()> {
    if let Ok(entry) = Entry::decode(value)
        && ids.remove(&entry.inode)
    {
        found.insert(entry.inode, Ok((folder, entry.name.to_vec())));
    }
    if ids.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
