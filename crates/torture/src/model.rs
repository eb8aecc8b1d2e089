//! A dataset as it must be: names, kinds, links, attributes and contents, and which of it is durable.
//!
//! Names and attributes become durable in their order: after a crash there is the state behind some first part of the
//! changes, and that part has all that was durable. Contents are told apart from that ([`Content`]).

use crate::content::{Content, Edit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of a file in the model, whatever its names.
pub type FileId = u32;

/// The object of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A folder.
    Folder,
    /// A file, which may have several names.
    File(FileId),
    /// A symbolic link, with its target.
    Link(String),
}

/// Attributes of a file that were set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits; none if they were never set.
    pub mode: Option<u32>,
    /// Extended ones, of users.
    pub extended: BTreeMap<String, Vec<u8>>,
}

/// Names and attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// By path below the top.
    pub nodes: BTreeMap<String, Node>,
    /// By file; none where none were set.
    pub attributes: BTreeMap<FileId, Attributes>,
}

/// A change of names or attributes.
#[derive(Debug, Clone)]
pub enum Change {
    /// A name comes.
    Put(String, Node),
    /// A name goes.
    Remove(String),
    /// Another name, in place of what had it; with all below.
    Rename(String, String),
    /// Permission bits.
    Mode(FileId, u32),
    /// An extended attribute.
    Attribute(FileId, String, Vec<u8>),
    /// All is what a snapshot had.
    Reset(Tree),
}

impl Tree {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(path, node) => drop(self.nodes.insert(path.clone(), node.clone())),
            Change::Remove(path) => drop(self.nodes.remove(path)),
            Change::Rename(from, to) => {
                let below = format!("{from}/");
                let moved: Vec<String> = self
                    .nodes
                    .keys()
                    .filter(|path| *path == from || path.starts_with(&below))
                    .cloned()
                    .collect();
                for path in moved {
                    let node = self.nodes.remove(&path).expect("it was found there");
                    self.nodes.insert(format!("{to}{}", &path[from.len()..]), node);
                }
            }
            Change::Mode(id, mode) => self.attributes.entry(*id).or_default().mode = Some(*mode),
            Change::Attribute(id, name, value) => {
                let attributes = self.attributes.entry(*id).or_default();
                attributes.extended.insert(name.clone(), value.clone());
            }
            Change::Reset(tree) => *self = tree.clone(),
        }
    }
}

/// An object that is found under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A folder.
    Folder,
    /// A file.
    File {
        /// Its inode.
        inode: u64,
        /// Permission bits.
        mode: u32,
        /// Extended attributes.
        extended: BTreeMap<String, Vec<u8>>,
        /// Its content; none where that could not be read.
        bytes: Option<Arc<Vec<u8>>>,
    },
    /// A symbolic link.
    Link(String),
}

/// All that is found, by path.
pub type Sight = BTreeMap<String, Seen>;

/// A state that stays: of a snapshot.
#[derive(Debug, Clone, Default)]
pub struct Frozen {
    tree: Tree,
    contents: BTreeMap<FileId, Arc<Vec<u8>>>,
}

impl Frozen {
    /// Whether exactly this is there.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn compare(&self, sight: &Sight) -> Result<(), String> {
        differs(&self.tree, sight)?;
        for (path, node) in &self.tree.nodes {
            if let (Node::File(id), Some(Seen::File { bytes, .. })) = (node, sight.get(path)) {
                equal(&self.contents[id], bytes.as_deref()).map_err(|why| format!("{path}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Content of a file; none where there is none of that name.
    pub fn file(&self, path: &str) -> Option<&Arc<Vec<u8>>> {
        match self.tree.nodes.get(path)? {
            Node::File(id) => self.contents.get(id),
            _ => None,
        }
    }

    /// Whether there is such a name.
    pub fn has(&self, path: &str) -> bool {
        self.tree.nodes.contains_key(path)
    }

    /// The paths of all files, and which of them are one file.
    pub fn files(&self) -> impl Iterator<Item = (&str, FileId)> {
        self.tree.nodes.iter().filter_map(|(path, node)| match node {
            Node::File(id) => Some((path.as_str(), *id)),
            _ => None,
        })
    }
}

/// Whether the bytes are these.
///
/// # Errors
/// Where they are not.
pub fn equal(must: &[u8], found: Option<&Vec<u8>>) -> Result<(), String> {
    let Some(found) = found else { return Err("it cannot be read".to_owned()) };
    if must == &found[..] {
        return Ok(());
    }
    let at = must.iter().zip(found).position(|(a, b)| a != b).unwrap_or(must.len().min(found.len()));
    Err(format!("it differs at byte {at}: {} bytes must be there, {} are", must.len(), found.len()))
}

/// Whether names, kinds, links and attributes are these.
fn differs(tree: &Tree, sight: &Sight) -> Result<(), String> {
    if let Some(path) = tree.nodes.keys().find(|path| !sight.contains_key(*path)) {
        return Err(format!("{path} is not there"));
    }
    if let Some(path) = sight.keys().find(|path| !tree.nodes.contains_key(*path)) {
        return Err(format!("{path} is there and must not be"));
    }
    let (mut inodes, mut ids) = (BTreeMap::new(), BTreeMap::new());
    for ((path, node), seen) in tree.nodes.iter().zip(sight.values()) {
        match (node, seen) {
            (Node::Folder, Seen::Folder) => {}
            (Node::Link(to), Seen::Link(found)) if to == found => {}
            (Node::File(id), Seen::File { inode, mode, extended, .. }) => {
                if *inodes.entry(*id).or_insert(*inode) != *inode || *ids.entry(*inode).or_insert(*id) != *id
                {
                    return Err(format!("{path} is not one file with its other names, or with too many"));
                }
                let wanted = tree.attributes.get(id).cloned().unwrap_or_default();
                if wanted.mode.is_some_and(|wanted| wanted != *mode) {
                    return Err(format!("{path} has the mode {mode:o}"));
                }
                if wanted.extended != *extended {
                    return Err(format!("{path} has other extended attributes"));
                }
            }
            _ => return Err(format!("{path} is of another kind, or leads elsewhere")),
        }
    }
    Ok(())
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Model {
    base: Tree,
    changes: Vec<Change>,
    sure: usize,
    now: Tree,
    contents: BTreeMap<FileId, Content>,
    /// The change that a file was in last, counted from one.
    touched: BTreeMap<FileId, usize>,
    next: FileId,
}

impl Model {
    /// Names and attributes as they are.
    pub fn tree(&self) -> &Tree {
        &self.now
    }

    /// The file of that name.
    pub fn file(&self, path: &str) -> Option<FileId> {
        match self.now.nodes.get(path)? {
            Node::File(id) => Some(*id),
            _ => None,
        }
    }

    /// Content of a file.
    pub fn bytes(&self, id: FileId) -> &Arc<Vec<u8>> {
        self.contents[&id].now()
    }

    /// Changes names or attributes.
    pub fn change(&mut self, change: Change) {
        let id = match &change {
            Change::Put(_, Node::File(id)) | Change::Mode(id, _) | Change::Attribute(id, ..) => Some(*id),
            Change::Rename(from, _) => self.file(from),
            _ => None,
        };
        self.now.apply(&change);
        self.changes.push(change);
        if let Some(id) = id {
            self.touched.insert(id, self.changes.len());
        }
    }

    /// A new file, empty, of that name.
    pub fn create(&mut self, path: &str) -> FileId {
        self.next += 1;
        self.contents.insert(self.next, Content::default());
        self.change(Change::Put(path.to_owned(), Node::File(self.next)));
        self.next
    }

    /// Changes a file's content.
    pub fn edit(&mut self, id: FileId, edit: Edit) {
        self.contents.get_mut(&id).expect("files have a content").edit(edit);
    }

    /// A file was synced: content, name and attributes are durable.
    pub fn sync(&mut self, id: FileId) {
        self.contents.get_mut(&id).expect("files have a content").settle();
        self.sure = self.sure.max(self.touched.get(&id).copied().unwrap_or(0));
    }

    /// All is durable.
    pub fn settle(&mut self) {
        self.base = self.now.clone();
        self.changes.clear();
        self.touched.clear();
        self.sure = 0;
        let named: BTreeSet<FileId> = files(&self.now).collect();
        self.contents.retain(|id, _| named.contains(id));
        self.contents.values_mut().for_each(Content::settle);
        self.now.attributes.retain(|id, _| named.contains(id));
        self.base.attributes.retain(|id, _| named.contains(id));
    }

    /// As it is now, to stay so.
    pub fn freeze(&self) -> Frozen {
        let mut tree = self.now.clone();
        let named: BTreeSet<FileId> = files(&tree).collect();
        tree.attributes.retain(|id, _| named.contains(id));
        Frozen { contents: named.iter().map(|&id| (id, Arc::clone(self.bytes(id)))).collect(), tree }
    }

    /// All is what a snapshot had; as files of their own, since they are those of then.
    pub fn reset(&mut self, frozen: &Frozen) {
        let mut ids = BTreeMap::new();
        for (&old, bytes) in &frozen.contents {
            self.next += 1;
            ids.insert(old, self.next);
            self.contents.insert(self.next, Content::durable(Arc::clone(bytes)));
        }
        let mut tree = Tree::default();
        for (path, node) in &frozen.tree.nodes {
            let node = if let Node::File(id) = node { Node::File(ids[id]) } else { node.clone() };
            tree.nodes.insert(path.clone(), node);
        }
        let attributes = frozen.tree.attributes.iter();
        tree.attributes = attributes.map(|(id, attributes)| (ids[id], attributes.clone())).collect();
        self.change(Change::Reset(tree));
    }

    /// Whether exactly what must be is there; what is found may be durable or not.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn compare(&self, sight: &Sight) -> Result<(), String> {
        self.freeze().compare(sight)
    }

    /// After a crash: takes up what is found, if it may be there.
    ///
    /// # Errors
    /// The reason, where it may not.
    pub fn recover(&mut self, sight: &Sight) -> Result<(), String> {
        let mut trees = vec![self.base.clone()];
        for change in &self.changes {
            let mut next = trees.last().expect("there is one").clone();
            next.apply(change);
            trees.push(next);
        }
        // Of several that look the same the newest is told of; contents decide.
        let (mut why, mut near) = (String::new(), false);
        for tree in trees[self.sure..].iter().rev() {
            match differs(tree, sight) {
                Err(_) if near => {}
                Err(reason) if why.is_empty() => why = reason,
                Err(_) => {}
                Ok(()) => match self.may_hold(tree, sight) {
                    Err(reason) => {
                        (why, near) = (if near { why } else { reason }, true);
                    }
                    Ok(()) => {
                        self.now = tree.clone();
                        self.take_contents(sight);
                        self.settle();
                        return Ok(());
                    }
                },
            }
        }
        let states = self.changes.len() - self.sure + 1;
        Err(if near { why } else { format!("{why}; nor is it any of {states} states that names may be in") })
    }

    fn may_hold(&self, tree: &Tree, sight: &Sight) -> Result<(), String> {
        for (path, node) in &tree.nodes {
            let (Node::File(id), Some(Seen::File { bytes, .. })) = (node, sight.get(path)) else { continue };
            let bytes = bytes.as_ref().ok_or_else(|| format!("{path}: it cannot be read"))?;
            self.contents[id].allows(bytes).map_err(|why| format!("{path}: {why}"))?;
        }
        Ok(())
    }

    fn take_contents(&mut self, sight: &Sight) {
        for (path, node) in &self.now.nodes {
            if let (Node::File(id), Some(Seen::File { bytes: Some(bytes), .. })) = (node, sight.get(path)) {
                self.contents.insert(*id, Content::durable(Arc::clone(bytes)));
            }
        }
    }
}

fn files(tree: &Tree) -> impl Iterator<Item = FileId> {
    tree.nodes.values().filter_map(|node| match node {
        Node::File(id) => Some(*id),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(model: &Model) -> Sight {
        let see = |node: &Node| match node {
            Node::Folder => Seen::Folder,
            Node::Link(to) => Seen::Link(to.clone()),
            Node::File(id) => {
                let attributes = model.now.attributes.get(id).cloned().unwrap_or_default();
                Seen::File {
                    inode: 1000 + u64::from(*id),
                    mode: attributes.mode.unwrap_or(0o644),
                    extended: attributes.extended,
                    bytes: Some(Arc::clone(model.bytes(*id))),
                }
            }
        };
        model.now.nodes.iter().map(|(path, node)| (path.clone(), see(node))).collect()
    }

    fn write(model: &mut Model, path: &str, text: &str) -> FileId {
        let id = model.file(path).unwrap_or_else(|| model.create(path));
        model.edit(id, Edit::Write(0, Arc::new(text.as_bytes().to_vec())));
        id
    }

    #[test]
    fn a_crash_leaves_some_first_part_of_the_changes() {
        let mut model = Model::default();
        model.change(Change::Put("d".into(), Node::Folder));
        write(&mut model, "d/a", "one");
        let earlier = seen(&model);
        model.change(Change::Rename("d".into(), "e".into()));
        model.change(Change::Put("l".into(), Node::Link("e/a".into())));
        assert_eq!(model.compare(&seen(&model)), Ok(()));
        assert!(model.compare(&earlier).is_err());
        assert_eq!(model.clone().recover(&earlier), Ok(()));
        assert_eq!(model.clone().recover(&Sight::new()), Ok(()));
        // The link, and the folder not renamed, was never.
        let mut wrong = earlier.clone();
        wrong.insert("l".into(), Seen::Link("e/a".into()));
        assert!(model.recover(&wrong).unwrap_err().contains("states that names may be in"));
    }

    #[test]
    fn what_was_synced_stays() {
        let mut model = Model::default();
        let id = write(&mut model, "a", "one");
        let early = seen(&model);
        model.sync(id);
        let other = write(&mut model, "b", "two");
        model.change(Change::Mode(other, 0o600));
        assert!(model.clone().recover(&Sight::new()).unwrap_err().contains("is not there"));
        let mut after = model.clone();
        assert_eq!(after.recover(&early), Ok(()));
        assert!(after.file("b").is_none() && after.contents.len() == 1);
        let mut empty = early.clone();
        let Some(Seen::File { bytes, .. }) = empty.get_mut("a") else { panic!() };
        *bytes = Some(Arc::new(Vec::new()));
        assert!(model.clone().recover(&empty).unwrap_err().starts_with("a: it has 0 bytes"));
        model.sync(other);
        assert!(model.recover(&early).is_err());
    }

    #[test]
    fn replaced_by_rename_a_file_is_the_old_or_the_new_one() {
        let mut model = Model::default();
        let id = write(&mut model, "a", "old");
        model.sync(id);
        let id = write(&mut model, "t", "new one");
        model.sync(id);
        let before = seen(&model);
        model.change(Change::Rename("t".into(), "a".into()));
        let after = seen(&model);
        assert_eq!((model.clone().recover(&before), model.clone().recover(&after)), (Ok(()), Ok(())));
        let mut mixed = after.clone();
        let Some(Seen::File { bytes, .. }) = mixed.get_mut("a") else { panic!() };
        *bytes = Some(Arc::new(b"old".to_vec()));
        assert!(model.recover(&mixed).is_err());
    }

    #[test]
    fn names_of_one_file_are_one_file() {
        let mut model = Model::default();
        let id = write(&mut model, "a", "one");
        model.change(Change::Put("b".into(), Node::File(id)));
        let mut apart = seen(&model);
        let Some(Seen::File { inode, .. }) = apart.get_mut("b") else { panic!() };
        *inode += 1;
        assert!(model.compare(&apart).unwrap_err().contains("not one file"));
    }

    #[test]
    fn a_rollback_has_the_contents_of_then() {
        let mut model = Model::default();
        let id = write(&mut model, "a", "one");
        model.change(Change::Attribute(id, "user.n".into(), b"v".to_vec()));
        let frozen = model.freeze();
        let then = seen(&model);
        model.settle();
        model.edit(id, Edit::Cut(0));
        let now = seen(&model);
        model.reset(&frozen);
        let mut back = seen(&model);
        assert_eq!(model.clone().recover(&now), Ok(()), "not done yet");
        assert_eq!(frozen.compare(&then), Ok(()));
        assert_eq!(model.recover(&back), Ok(()));
        back.remove("a");
        assert!(frozen.compare(&back).unwrap_err().contains("a is not there"));
    }
}
