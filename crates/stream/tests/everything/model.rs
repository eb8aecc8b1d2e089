//! The reference: datasets, snapshots, trash, clones and bookmarks of a pool as plain maps, and what each operation
//! makes of them.
//!
//! It has ids from the engine, and nothing else: which snapshot came when is told by its high id.

use super::tree::{Node, ROOT, Tree};
use larder_format::trash::TrashKey;
use larder_format::{BlockId, DatasetId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A snapshot's dataset and high id.
pub type At = (DatasetId, BlockId);

/// Whether people are shown a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Named,
    Trash,
    /// Destroyed, and there for its clones.
    Hidden,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq)]
pub struct Taken {
    pub name: String,
    pub shown: Shown,
    pub guid: u64,
    pub holds: BTreeSet<String>,
    pub by_policy: bool,
    pub tree: Arc<Tree>,
}

/// A dataset.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Set {
    /// Its full name, or the one it had.
    pub name: String,
    pub is_trash: bool,
    pub head: Arc<Tree>,
    /// By high id.
    pub snapshots: BTreeMap<BlockId, Taken>,
    /// High id and GUID, by name.
    pub bookmarks: BTreeMap<String, (BlockId, u64)>,
    pub origin: Option<At>,
    /// Quotas and reservations.
    pub limits: BTreeMap<String, u64>,
}

impl Set {
    pub fn named(&self) -> impl DoubleEndedIterator<Item = (&BlockId, &Taken)> {
        self.snapshots.iter().filter(|(_, one)| one.shown == Shown::Named)
    }

    pub fn find(&self, name: &str) -> Option<BlockId> {
        self.named().find(|(_, one)| one.name == name).map(|(high, _)| *high)
    }

    pub fn newest(&self) -> Option<BlockId> {
        self.named().next_back().map(|(high, _)| *high)
    }

    fn above(&self, high: BlockId) -> impl Iterator<Item = (&BlockId, &Taken)> {
        self.snapshots.range(high.next()..)
    }

    fn has_marks_above(&self, high: BlockId) -> bool {
        self.bookmarks.values().any(|(mark, _)| *mark > high)
    }

    /// The root directory comes with the first mount.
    pub fn mounted(&mut self) {
        if self.head.is_empty() {
            self.head = Arc::new(Tree::from([(ROOT, Arc::new(Node::root()))]));
        }
    }
}

/// A pool.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct State(pub BTreeMap<DatasetId, Arc<Set>>);

/// Reasons to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Busy,
    Exists,
    NotFound,
    Invalid,
}

impl State {
    pub fn get(&self, id: DatasetId) -> &Set {
        &self.0[&id]
    }

    pub fn set(&mut self, id: DatasetId) -> &mut Set {
        Arc::make_mut(self.0.get_mut(&id).expect("a dataset of the model"))
    }

    pub fn add(&mut self, id: DatasetId, set: Set) {
        self.0.insert(id, Arc::new(set));
    }

    /// Those with a name.
    pub fn named(&self) -> impl Iterator<Item = (DatasetId, &Set)> {
        self.0.iter().filter(|(_, set)| !set.is_trash).map(|(id, set)| (*id, &**set))
    }

    pub fn by_name(&self, name: &str) -> Option<DatasetId> {
        self.named().find(|(_, set)| set.name == name).map(|(id, _)| id)
    }

    pub fn children(&self, id: DatasetId) -> Vec<DatasetId> {
        let prefix = format!("{}/", self.get(id).name);
        self.named().filter(|(_, set)| set.name.starts_with(&prefix)).map(|(id, _)| id).collect()
    }

    pub fn clones(&self, at: At) -> impl Iterator<Item = DatasetId> {
        self.0.iter().filter(move |(_, set)| set.origin == Some(at)).map(|(id, _)| *id)
    }

    fn is_cloned(&self, at: At) -> bool {
        self.clones(at).next().is_some()
    }

    pub fn trash(&self) -> Vec<TrashKey> {
        let sets = self.0.iter().filter(|(_, set)| set.is_trash).map(|(id, _)| TrashKey::Dataset(*id));
        let highs = self.0.values().flat_map(|set| {
            let trash = set.snapshots.iter().filter(|(_, one)| one.shown == Shown::Trash);
            trash.map(|(high, _)| TrashKey::Snapshot(*high))
        });
        sets.chain(highs).collect()
    }

    /// The snapshot of a high id, whoever has it.
    pub fn snapshot(&self, high: BlockId) -> Option<(DatasetId, &Taken)> {
        self.0.iter().find_map(|(id, set)| Some((*id, set.snapshots.get(&high)?)))
    }

    /// Hidden snapshots go when no clone needs them, nobody knows when; their properties tell nobody anything.
    /// A root directory with nothing in it comes with the first mount, and need not stay.
    pub fn settled(&self) -> Self {
        let mut settled = self.clone();
        let needed: BTreeSet<At> = self.0.values().filter_map(|set| set.origin).collect();
        for (id, set) in &mut settled.0 {
            let stays = |(high, one): (&BlockId, &Taken)| {
                one.shown != Shown::Hidden || needed.contains(&(*id, *high))
            };
            if set.head.len() == 1 && set.head.get(&ROOT).is_some_and(|node| **node == Node::root()) {
                Arc::make_mut(set).head = Arc::default();
            }
            let is_plain = |one: &Taken| one.shown != Shown::Hidden || !one.by_policy;
            if !set.snapshots.iter().all(|one| stays(one) && is_plain(one.1)) {
                let all = &mut Arc::make_mut(set).snapshots;
                all.retain(|high, one| stays((high, one)));
                all.values_mut().for_each(|one| one.by_policy &= one.shown != Shown::Hidden);
            }
        }
        settled
    }

    /// A snapshot goes, or loses its name where it has clones.
    fn drop_snapshot(&mut self, id: DatasetId, high: BlockId) {
        let is_cloned = self.is_cloned((id, high));
        let set = self.set(id);
        match set.snapshots.get_mut(&high).filter(|_| is_cloned) {
            Some(one) => {
                (one.shown, one.by_policy) = (Shown::Hidden, false);
                one.holds.clear();
            }
            None => drop(set.snapshots.remove(&high)),
        }
    }

    pub fn destroy_snapshots(&mut self, id: DatasetId, highs: &[BlockId]) -> Result<(), Refused> {
        if highs.iter().any(|high| !self.get(id).snapshots[high].holds.is_empty()) {
            return Err(Refused::Busy);
        }
        highs.iter().for_each(|high| self.drop_snapshot(id, *high));
        Ok(())
    }

    pub fn trash_snapshots(&mut self, id: DatasetId, highs: &[BlockId]) -> Result<(), Refused> {
        if highs.iter().any(|high| !self.get(id).snapshots[high].holds.is_empty()) {
            return Err(Refused::Busy);
        }
        let set = self.set(id);
        for high in highs {
            set.snapshots.get_mut(high).expect("a snapshot").shown = Shown::Trash;
        }
        Ok(())
    }

    pub fn restore_snapshot(&mut self, high: BlockId, name: &str) -> Result<(), Refused> {
        let (id, _) = self.snapshot(high).ok_or(Refused::NotFound)?;
        if self.get(id).is_trash {
            return Err(Refused::Invalid);
        }
        if self.get(id).find(name).is_some() {
            return Err(Refused::Exists);
        }
        let one = self.set(id).snapshots.get_mut(&high).expect("a snapshot");
        (one.name, one.shown) = (name.to_owned(), Shown::Named);
        Ok(())
    }

    /// Nothing that is named may hang on it.
    fn check_destroyable(&self, id: DatasetId) -> Result<(), Refused> {
        let is_root = !self.get(id).name.contains('/');
        let is_busy = is_root || !self.get(id).is_trash && !self.children(id).is_empty();
        if is_busy { Err(Refused::Busy) } else { Ok(()) }
    }

    pub fn trash_dataset(&mut self, id: DatasetId) -> Result<(), Refused> {
        self.check_destroyable(id)?;
        if self.get(id).snapshots.values().any(|one| !one.holds.is_empty()) {
            return Err(Refused::Busy);
        }
        self.set(id).is_trash = true;
        Ok(())
    }

    pub fn restore_dataset(&mut self, id: DatasetId, name: &str) -> Result<(), Refused> {
        let (parent, _) = name.rsplit_once('/').ok_or(Refused::Invalid)?;
        self.by_name(parent).ok_or(Refused::NotFound)?;
        if self.by_name(name).is_some() {
            return Err(Refused::Exists);
        }
        let set = self.set(id);
        (set.name, set.is_trash) = (name.to_owned(), false);
        Ok(())
    }

    /// A dataset goes for good, with its snapshots: what clones need of these goes on in the clone of the newest.
    pub fn destroy_dataset(&mut self, id: DatasetId) -> Result<(), Refused> {
        self.check_destroyable(id)?;
        if self.get(id).snapshots.values().any(|one| !one.holds.is_empty()) {
            return Err(Refused::Busy);
        }
        let all: Vec<_> = self.get(id).snapshots.keys().copied().collect();
        all.into_iter().for_each(|high| self.drop_snapshot(id, high));
        let cloned = self.get(id).snapshots.keys().copied().rfind(|high| self.is_cloned((id, *high)));
        if let Some(high) = cloned {
            let clones: Vec<_> = self.clones((id, high)).collect();
            let named = clones.iter().find(|clone| !self.get(**clone).is_trash);
            self.take_over(*named.unwrap_or(&clones[0]));
        }
        self.0.remove(&id);
        Ok(())
    }

    pub fn let_go(&mut self, key: TrashKey) {
        match key {
            TrashKey::Snapshot(high) => {
                if let Some((id, _)) = self.snapshot(high) {
                    self.drop_snapshot(id, high);
                }
            }
            TrashKey::Dataset(id) => self.destroy_dataset(id).expect("nothing hangs on what is in the trash"),
        }
    }

    /// A clone gets the snapshots up to its origin, and their dataset becomes its clone.
    fn take_over(&mut self, clone: DatasetId) {
        let Some((from, origin)) = self.get(clone).origin else { return };
        let above = self.get(from).origin;
        self.move_snapshots(from, clone, |high| high <= origin);
        self.set(clone).origin = above;
        self.set(from).origin = Some((clone, origin));
    }

    fn move_snapshots(&mut self, from: DatasetId, to: DatasetId, is_moved: impl Fn(BlockId) -> bool) {
        let all = std::mem::take(&mut self.set(from).snapshots);
        let (moved, stays): (BTreeMap<_, _>, _) = all.into_iter().partition(|(high, _)| is_moved(*high));
        self.set(from).snapshots = stays;
        for at in self.0.values().map(|set| set.origin).collect::<BTreeSet<_>>().into_iter().flatten() {
            if at.0 == from && moved.contains_key(&at.1) {
                let clones: Vec<_> = self.clones(at).collect();
                clones.into_iter().for_each(|clone| self.set(clone).origin = Some((to, at.1)));
            }
        }
        self.set(to).snapshots.extend(moved);
    }

    pub fn promote(&mut self, clone: DatasetId) -> Result<(), Refused> {
        let (from, origin) = self.get(clone).origin.ok_or(Refused::Invalid)?;
        let has = |(_, one): (&BlockId, &Taken)| self.get(clone).find(&one.name).is_some();
        if self.get(from).named().filter(|(high, _)| **high <= origin).any(has) {
            return Err(Refused::Exists);
        }
        self.take_over(clone);
        Ok(())
    }

    /// Snapshots in the trash above another one go, and clones in the trash of all that are there.
    pub fn let_go_above(&mut self, id: DatasetId, high: BlockId) {
        let of = self.get(id).above(high).map(|(high, _)| *high).collect::<Vec<_>>();
        let clones: Vec<_> =
            of.iter().flat_map(|high| self.clones((id, *high)).collect::<Vec<_>>()).collect();
        for clone in clones {
            if self.0.contains_key(&clone) && self.get(clone).is_trash {
                self.let_go(TrashKey::Dataset(clone));
            }
        }
        for high in of {
            if self.get(id).snapshots.get(&high).is_some_and(|one| one.shown == Shown::Trash) {
                self.drop_snapshot(id, high);
            }
        }
    }

    /// Whether something is in the trash above a snapshot, or hangs on what is there.
    pub fn has_trash_above(&self, id: DatasetId, high: BlockId) -> bool {
        let mut above = self.get(id).above(high);
        above.any(|(high, one)| one.shown == Shown::Trash || self.is_cloned((id, *high)))
    }

    /// Whether a clone with a name begins above a snapshot.
    fn is_origin_above(&self, id: DatasetId, high: BlockId) -> bool {
        let mut above = self.get(id).above(high);
        above.any(|(high, _)| self.clones((id, *high)).any(|clone| !self.get(clone).is_trash))
    }

    pub fn rollback(&mut self, id: DatasetId, high: BlockId, drops: bool) -> Result<(), Refused> {
        let set = self.get(id);
        let newer: Vec<_> = set.named().filter(|(other, _)| **other > high).map(|(_, one)| one).collect();
        if !drops && (!newer.is_empty() || set.has_marks_above(high)) {
            return Err(Refused::Busy);
        }
        if newer.iter().any(|one| !one.holds.is_empty()) || self.is_origin_above(id, high) {
            return Err(Refused::Busy);
        }
        self.let_go_above(id, high);
        self.cut_above(id, high);
        Ok(())
    }

    fn cut_above(&mut self, id: DatasetId, high: BlockId) {
        let set = self.set(id);
        set.head = Arc::clone(&set.snapshots[&high].tree);
        drop(set.snapshots.split_off(&high.next()));
        set.bookmarks.retain(|_, (mark, _)| *mark <= high);
    }

    pub fn branch(&mut self, id: DatasetId, high: BlockId, branch: DatasetId, name: &str) {
        let set = self.get(id);
        let bookmarks = set.bookmarks.clone().into_iter().filter(|(_, (mark, _))| *mark > high).collect();
        let (head, name) = (Arc::clone(&set.head), name.to_owned());
        self.add(branch, Set { name, head, bookmarks, ..Set::default() });
        self.move_snapshots(id, branch, |other| other > high);
        self.set(branch).origin = Some((id, high));
        self.cut_above(id, high);
    }

    /// A snapshot arrived that builds upon `base`, or upon nothing, whatever came after that.
    pub fn receive(&mut self, id: DatasetId, base: Option<BlockId>, high: BlockId, taken: Taken) {
        let floor = base.or(self.get(id).origin.map(|(_, high)| high)).unwrap_or(BlockId::new(0));
        self.let_go_above(id, floor);
        let set = self.set(id);
        set.bookmarks.retain(|_, (mark, _)| *mark <= floor);
        set.head = Arc::clone(&taken.tree);
        set.snapshots.insert(high, taken);
    }

    /// The first thing that is not as it is wanted.
    pub fn difference(&self, wanted: &Self) -> Option<String> {
        let ids: BTreeSet<_> = self.0.keys().chain(wanted.0.keys()).collect();
        ids.into_iter().find_map(|id| match (self.0.get(id), wanted.0.get(id)) {
            (Some(found), Some(wanted)) if found == wanted => None,
            (Some(found), Some(wanted)) => {
                Some(format!("dataset {id} {}: {}", wanted.name, differs(found, wanted)))
            }
            (Some(found), None) => Some(format!("dataset {id} {} is there", found.name)),
            (None, wanted) => {
                Some(format!("dataset {id} {} is not there", wanted.map_or("", |set| &set.name)))
            }
        })
    }
}

fn differs(found: &Set, wanted: &Set) -> String {
    let of = |set: &Set| {
        let of = |(high, one): (&BlockId, &Taken)| {
            format!("{high}:{}:{:?}:{:?}:{}", one.name, one.shown, one.holds, one.by_policy)
        };
        let snapshots: Vec<_> = set.snapshots.iter().map(of).collect();
        format!(
            "{} {} {snapshots:?} {:?} {:?} {:?}",
            set.name, set.is_trash, set.bookmarks, set.origin, set.limits
        )
    };
    if of(found) != of(wanted) {
        return format!("{}\n is not {}", of(found), of(wanted));
    }
    let trees = |set: &Set| {
        let all = set.snapshots.values().map(|one| (one.name.clone(), Arc::clone(&one.tree)));
        std::iter::once(("head".to_owned(), Arc::clone(&set.head))).chain(all).collect::<Vec<_>>()
    };
    let pairs = trees(found).into_iter().zip(trees(wanted));
    let mut told = pairs.filter_map(|((name, found), (_, wanted))| {
        Some(format!("{name}: {}", super::tree::difference(&found, &wanted)?))
    });
    told.next().unwrap_or_else(|| "another GUID".into())
}
