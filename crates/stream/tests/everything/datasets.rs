//! Datasets, snapshots, trash, clones and bookmarks: each operation beside the same in the model, with the refusals
//! that the model foretells.

use super::model::{Refused, Set, Shown, Taken};
use super::side::{Change, Dice, PERIOD, Side};
use larder_format::trash::TrashKey;
use larder_format::{BlockId, DatasetId, Timestamp};
use larder_pool::{BookmarkSource, PoolError, ROOT_DATASET};
use std::collections::BTreeMap;
use std::sync::Arc;

const UNTIL: Timestamp = Timestamp { secs: 4_000_000_000, nanos: 0 };
/// Datasets with a name, at most.
const DATASETS: usize = 7;
/// Names of snapshots: few, so that some are taken.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Whether a refusal is the one that was foretold.
fn is_like(error: &PoolError, refused: Refused) -> bool {
    match refused {
        Refused::Busy => matches!(error, PoolError::Busy(_)),
        Refused::Exists => matches!(error, PoolError::Exists(_)),
        Refused::NotFound => matches!(error, PoolError::NotFound(_)),
        Refused::Invalid => matches!(error, PoolError::Invalid(_)),
    }
}

impl Side {
    /// An operation in one, which the model makes as well, and foretells: whether it was done.
    fn both<T>(
        &mut self,
        told: &str,
        change: Change,
        real: impl FnOnce(&Self) -> Result<T, PoolError>,
        model: impl FnOnce(&mut super::model::State) -> Result<(), Refused>,
    ) -> Option<T> {
        let mut now = self.now.clone();
        let foretold = model(&mut now);
        self.begin();
        match (real(self), foretold) {
            (Ok(done), Ok(())) => {
                self.now = now;
                self.done_uncommitted(change, told);
                Some(done)
            }
            (Err(error), Err(refused)) if is_like(&error, refused) => None,
            (Err(PoolError::Busy(_)), _) if self.is_receiving => None,
            (Err(error), _) if self.is_for_want(&error) => None,
            (Ok(_), Err(refused)) => panic!("{}: {told} was done, and not {refused:?}", self.label),
            (Err(error), foretold) => panic!("{}: {told}: {error}, and not {foretold:?}", self.label),
        }
    }

    /// Whether a refusal may be one for want of space, or for a limit that somebody set.
    fn is_for_want(&self, error: &PoolError) -> bool {
        let has_limits = self.now.0.values().any(|set| !set.limits.is_empty());
        let is_limit = matches!(error, PoolError::Invalid(text) if text.contains("quota") || text.contains("reservation"));
        Self::is_want(error) && (self.is_short || has_limits) || is_limit && has_limits
    }

    /// One change of datasets or snapshots.
    pub fn administer(&mut self, dice: &Dice) -> &'static str {
        self.tick();
        let id = self.some_named(dice);
        let what = match dice.below(44) {
            0..=2 => self.create(dice),
            3..=9 => self.snapshot(dice, id),
            10..=13 => self.destroy_snapshots(dice, id),
            14..=15 => self.restore_snapshot(dice),
            16..=17 => self.end_dataset(dice, id),
            18..=19 => self.restore_dataset(dice),
            20 => self.let_go(dice),
            21..=23 => self.make_clone(dice),
            24..=26 => self.promote(dice),
            27..=28 => self.roll_back(dice),
            29..=30 => self.branch(dice),
            31..=32 => self.hold(dice),
            33..=35 => self.bookmark(dice, id),
            36 => self.rename_snapshot(dice),
            37 => self.rename_dataset(dice, id),
            38..=39 => self.limit(dice, id),
            40 => self.tune(dice, id),
            _ => self.policy(dice),
        };
        if dice.below(3) > 0 {
            self.commit();
        }
        what
    }

    fn new_dataset_name(&mut self, dice: &Dice) -> Option<String> {
        if self.now.named().count() >= DATASETS {
            return None;
        }
        let parents: Vec<_> = self.now.named().map(|(_, set)| set.name.clone()).collect();
        let parent = dice.one(parents.into_iter().filter(|name| name.matches('/').count() < 2))?;
        Some(self.name(&format!("{parent}/d")))
    }

    fn properties(&self, dice: &Dice) -> BTreeMap<String, String> {
        let all = [
            ("recordsize", ["4096", "16384", "131072"][dice.below(3) as usize]),
            ("compression", ["off", "lz4", "zstd-3"][dice.below(3) as usize]),
            ("chunking", ["fixed", "fixed", "content"][dice.below(3) as usize]),
            ("dedup", ["off", "on", "verify"][dice.below(3) as usize]),
            ("copies", if self.has_copies { ["1", "2", "2", "3"][dice.below(4) as usize] } else { "1" }),
        ];
        let some = all
            .into_iter()
            .filter(|(name, _)| dice.one_in(2) && (self.shares || !["dedup", "chunking"].contains(name)));
        some.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn create(&mut self, dice: &Dice) -> &'static str {
        let Some(name) = self.new_dataset_name(dice) else { return "nothing" };
        let properties = self.properties(dice);
        self.begin();
        match self.pool().create_dataset(&name, properties) {
            Ok(made) => {
                let id = made.id();
                drop(made);
                self.now.add(id, Set { name, ..Set::default() });
                self.done_uncommitted(Change::Whole, format!("create {id}"));
                self.attach(id);
                "create"
            }
            Err(error) if Self::is_want(&error) => "refused",
            Err(error) => panic!("create: {error}"),
        }
    }

    /// Takes one, or one of each dataset at the same moment.
    fn snapshot(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let name = NAMES[dice.below(NAMES.len() as u64) as usize];
        let all: Vec<DatasetId> = match dice.one_in(5) {
            true => self.now.named().map(|(id, _)| id).collect(),
            false => vec![id],
        };
        self.take(&all, name, BTreeMap::new())
    }

    fn take(&mut self, of: &[DatasetId], name: &str, properties: BTreeMap<String, String>) -> &'static str {
        let is_taken = of.iter().any(|id| self.now.get(*id).find(name).is_some());
        let by_policy = properties.contains_key(PERIOD);
        self.begin();
        let wanted = of.iter().map(|id| (*id, name.to_owned())).collect();
        match self.pool().snapshot_all(wanted, properties) {
            Ok(records) => {
                assert!(!is_taken, "{name} is there twice");
                for record in records {
                    let set = self.now.set(record.dataset);
                    let taken = Taken {
                        name: name.to_owned(),
                        shown: Shown::Named,
                        guid: record.guid,
                        holds: Default::default(),
                        by_policy,
                        tree: Arc::clone(&set.head),
                    };
                    set.snapshots.insert(record.high, taken);
                }
                self.done(Change::Whole, format!("snapshot {name} of {of:?}"));
                self.promise();
                "snapshot"
            }
            Err(PoolError::Exists(_)) if is_taken => "refused",
            Err(error) => panic!("{}: snapshot: {error}", self.label),
        }
    }

    fn some_snapshots(&self, dice: &Dice, id: DatasetId) -> Vec<(BlockId, String)> {
        let odds = 1 + dice.below(3);
        let all = self.now.get(id).named().map(|(high, one)| (*high, one.name.clone()));
        all.filter(|_| dice.one_in(odds)).collect()
    }

    fn destroy_snapshots(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let going = self.some_snapshots(dice, id);
        if going.is_empty() {
            return "nothing";
        }
        let names: Vec<_> = going.iter().map(|(_, name)| (id, name.clone())).collect();
        let highs: Vec<_> = going.iter().map(|(high, _)| *high).collect();
        self.let_go_of(id, &highs);
        let told = format!("destroy {names:?}");
        if dice.one_in(2) {
            let real = |side: &Self| side.pool().destroy_snapshots(&names);
            self.both(&told, Change::Whole, real, |now| now.destroy_snapshots(id, &highs));
            return "destroy snapshots";
        }
        let real = |side: &Self| side.pool().trash_snapshots(&names, UNTIL);
        self.both(&told, Change::Whole, real, |now| now.trash_snapshots(id, &highs));
        "trash snapshots"
    }

    fn some_trash(&self, dice: &Dice, is_wanted: fn(&TrashKey) -> bool) -> Option<TrashKey> {
        dice.one(self.now.trash().into_iter().filter(is_wanted))
    }

    fn restore_snapshot(&mut self, dice: &Dice) -> &'static str {
        let of_snapshots = |key: &TrashKey| matches!(key, TrashKey::Snapshot(_));
        let Some(TrashKey::Snapshot(high)) = self.some_trash(dice, of_snapshots) else { return "nothing" };
        let other = dice.one_in(2).then(|| self.name("back"));
        let name = match &other {
            Some(other) => other.clone(),
            None => self.now.snapshot(high).expect("it is in the trash").1.name.clone(),
        };
        let real = |side: &Self| side.pool().restore_snapshot(high, other.as_deref());
        self.both("restore snapshot", Change::Whole, real, |now| now.restore_snapshot(high, &name));
        "restore snapshot"
    }

    /// Destroys a dataset, or puts it into the trash.
    fn end_dataset(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let (away, set) = (dice.below(3) > 0, self.now.get(id));
        let highs: Vec<_> = set.named().map(|(high, _)| *high).collect();
        let names: Vec<_> = set.named().map(|(_, one)| (id, one.name.clone())).collect();
        if id != ROOT_DATASET {
            self.detach(id);
        } else {
            self.let_go_of(id, &highs);
        }
        let told = format!("{} {id} {}", if away { "trash" } else { "destroy" }, self.now.get(id).name);
        let is_done = if away {
            let real = |side: &Self| side.pool().trash_dataset(id, UNTIL);
            self.both(&told, Change::Whole, real, |now| now.trash_dataset(id)).is_some()
        } else {
            let is_held = self.now.get(id).snapshots.values().any(|one| !one.holds.is_empty());
            if is_held || !self.now.children(id).is_empty() || id == ROOT_DATASET {
                let refused = self.pool().destroy_dataset(id);
                assert!(matches!(refused, Err(PoolError::Busy(_))), "{refused:?}");
                false
            } else {
                let real = |side: &Self| side.pool().destroy_snapshots(&names);
                self.both(&told, Change::Whole, real, |now| now.destroy_snapshots(id, &highs));
                let real = |side: &Self| side.pool().destroy_dataset(id);
                self.both(&told, Change::Parts, real, |now| now.destroy_dataset(id)).is_some()
            }
        };
        if !is_done && id != ROOT_DATASET {
            self.attach(id);
        }
        if away { "trash dataset" } else { "destroy dataset" }
    }

    fn restore_dataset(&mut self, dice: &Dice) -> &'static str {
        let of_datasets = |key: &TrashKey| matches!(key, TrashKey::Dataset(_));
        let Some(TrashKey::Dataset(id)) = self.some_trash(dice, of_datasets) else { return "nothing" };
        let name = if dice.one_in(2) { self.name("tank/back") } else { self.now.get(id).name.clone() };
        let real = |side: &Self| side.pool().restore_dataset(id, &name).map(drop);
        if self.both("restore dataset", Change::Whole, real, |now| now.restore_dataset(id, &name)).is_some() {
            self.attach(id);
        }
        "restore dataset"
    }

    fn let_go(&mut self, dice: &Dice) -> &'static str {
        let Some(key) = self.some_trash(dice, |_| true) else { return "nothing" };
        let real = |side: &Self| side.pool().let_go(key);
        self.both(&format!("let go of {key:?}"), Change::Parts, real, |now| {
            now.let_go(key);
            Ok(())
        });
        "let go"
    }

    fn make_clone(&mut self, dice: &Dice) -> &'static str {
        let Some((id, high)) = self.some_snapshot(dice) else { return "nothing" };
        let Some(name) = self.new_dataset_name(dice) else { return "nothing" };
        let taken = self.now.get(id).snapshots[&high].clone();
        let properties = self.properties(dice);
        self.begin();
        match self.pool().clone_snapshot(id, &taken.name, &name, properties) {
            Ok(made) => {
                let (head, origin, id) = (taken.tree, Some((id, high)), made.id());
                self.now.add(id, Set { name, head, origin, ..Set::default() });
                self.done_uncommitted(Change::Whole, format!("clone {id}"));
                drop(made);
                self.attach(id);
                "clone"
            }
            Err(error) if Self::is_want(&error) => "refused",
            Err(error) => panic!("clone: {error}"),
        }
    }

    fn promote(&mut self, dice: &Dice) -> &'static str {
        let clones = self.now.named().filter(|(_, set)| set.origin.is_some()).map(|(id, _)| id);
        let Some(id) = dice.one(clones) else { return "nothing" };
        let (from, origin) = self.now.get(id).origin.expect("a clone");
        let moved = self.now.get(from).snapshots.keys().copied().filter(|high| *high <= origin);
        self.let_go_of(from, &moved.collect::<Vec<_>>());
        let real = |side: &Self| side.pool().promote(id);
        if self.both(&format!("promote {id}"), Change::Whole, real, |now| now.promote(id)).is_some() {
            self.promise();
        }
        "promote"
    }

    fn roll_back(&mut self, dice: &Dice) -> &'static str {
        let Some((id, high)) = self.some_snapshot(dice) else { return "nothing" };
        let name = self.now.get(id).snapshots[&high].name.clone();
        let drops = dice.below(3) > 0;
        self.detach(id);
        let change = if self.now.has_trash_above(id, high) { Change::Parts } else { Change::Whole };
        let real = |side: &Self| side.pool().rollback(id, &name, drops);
        let told = format!("roll {id} back to {name}");
        if self.both(&told, change, real, |now| now.rollback(id, high, drops)).is_some() {
            self.promise();
        }
        self.attach(id);
        "roll back"
    }

    fn branch(&mut self, dice: &Dice) -> &'static str {
        let Some((id, high)) = self.some_snapshot(dice) else { return "nothing" };
        if self.now.named().count() >= DATASETS {
            return "nothing";
        }
        let snapshot = self.now.get(id).snapshots[&high].name.clone();
        let name = self.name(&format!(
            "{}.b",
            self.now.get(id).name.replacen("tank", "tank/t", usize::from(id == ROOT_DATASET))
        ));
        self.detach(id);
        self.begin();
        match self.pool().branch(id, &snapshot, &name, &BTreeMap::new()) {
            Ok(()) => {
                let branch = self.pool().dataset_by_name(&name).expect("it was made").id();
                self.now.branch(id, high, branch, &name);
                self.done(Change::Whole, format!("branch {branch} of {id} at {snapshot}"));
                self.promise();
                self.attach(branch);
            }
            Err(error) if Self::is_want(&error) => {}
            Err(PoolError::Busy(_)) if self.is_receiving => {}
            Err(error) => panic!("branch: {error}"),
        }
        self.attach(id);
        "branch"
    }

    fn hold(&mut self, dice: &Dice) -> &'static str {
        let Some((id, high)) = self.some_snapshot(dice) else { return "nothing" };
        let taken = &self.now.get(id).snapshots[&high];
        let of = [(id, taken.name.clone())];
        let tag = format!("t{}", dice.below(2));
        let has = taken.holds.contains(&tag);
        let releases = has && dice.below(4) > 0 || dice.one_in(8);
        let real = |side: &Self| match releases {
            true => side.pool().release_snapshots(&of, &tag),
            false => side.pool().hold_snapshots(&of, &tag),
        };
        self.both("hold", Change::Whole, real, |now| {
            let holds = &mut now.set(id).snapshots.get_mut(&high).expect("a snapshot").holds;
            match (releases, has) {
                (true, true) => drop(holds.remove(&tag)),
                (true, false) => return Err(Refused::NotFound),
                (false, true) => return Err(Refused::Exists),
                (false, false) => drop(holds.insert(tag.clone())),
            }
            Ok(())
        });
        "hold"
    }

    fn bookmark(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let set = self.now.get(id).clone();
        let old = dice.one(set.bookmarks.clone());
        if let Some((name, _)) = old.clone().filter(|_| dice.one_in(4)) {
            let real = |side: &Self| side.pool().destroy_bookmark(id, &name);
            self.both("destroy bookmark", Change::Whole, real, |now| {
                now.set(id).bookmarks.remove(&name);
                Ok(())
            });
            return "bookmark";
        }
        let new = format!("m{}", dice.below(5));
        let of = dice.one(set.named().map(|(high, one)| (*high, one.guid, one.name.clone())));
        let (from, mark) = match (of, old.filter(|_| dice.one_in(4))) {
            (_, Some((name, mark))) => ((true, name), mark),
            (Some((high, guid, name)), None) => ((false, name), (high, guid)),
            (None, None) => return "nothing",
        };
        let real = |side: &Self| {
            let source =
                if from.0 { BookmarkSource::Bookmark(&from.1) } else { BookmarkSource::Snapshot(&from.1) };
            side.pool().make_bookmark(id, source, &new)
        };
        self.both("bookmark", Change::Whole, real, |now| {
            let all = &mut now.set(id).bookmarks;
            if all.contains_key(&new) {
                return Err(Refused::Exists);
            }
            all.insert(new.clone(), mark);
            Ok(())
        });
        "bookmark"
    }

    /// Leaves a bookmark of a snapshot that is gone again.
    pub fn leave_mark(&mut self, id: DatasetId) {
        let name = self.name("mark");
        self.take(&[id], &name, BTreeMap::new());
        let Some(high) = self.now.get(id).find(&name) else { return };
        let guid = self.now.get(id).snapshots[&high].guid;
        let real = |side: &Self| side.pool().make_bookmark(id, BookmarkSource::Snapshot(&name), &name);
        self.both("bookmark", Change::Whole, real, |now| {
            now.set(id).bookmarks.insert(name.clone(), (high, guid));
            Ok(())
        });
        let real = |side: &Self| side.pool().destroy_snapshots(&[(id, name.clone())]);
        self.both("destroy", Change::Whole, real, |now| now.destroy_snapshots(id, &[high]));
    }

    fn rename_snapshot(&mut self, dice: &Dice) -> &'static str {
        let Some((id, high)) = self.some_snapshot(dice) else { return "nothing" };
        let old = self.now.get(id).snapshots[&high].name.clone();
        let new = NAMES[dice.below(NAMES.len() as u64) as usize].to_owned();
        let real = |side: &Self| side.pool().rename_snapshots(&[(id, old.clone(), new.clone())]);
        self.both("rename snapshot", Change::Whole, real, |now| {
            if now.get(id).find(&new).is_some() {
                return Err(Refused::Exists);
            }
            now.set(id).snapshots.get_mut(&high).expect("a snapshot").name.clone_from(&new);
            Ok(())
        });
        "rename"
    }

    fn rename_dataset(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let old = self.now.get(id).name.clone();
        let inside = format!("{old}/");
        let others = self.now.named().filter(|(_, set)| set.name != old && !set.name.starts_with(&inside));
        let parents: Vec<_> = others.map(|(_, set)| set.name.clone()).collect();
        let Some(parent) = dice.one(parents) else { return "nothing" };
        if id == ROOT_DATASET || parent.matches('/').count() > 1 {
            return "nothing";
        }
        let new = self.name(&format!("{parent}/m"));
        let real = |side: &Self| side.pool().rename_dataset(id, &new);
        self.both("rename dataset", Change::Whole, real, |now| {
            let all = now.children(id).into_iter().chain([id]).collect::<Vec<_>>();
            for one in all {
                let set = now.set(one);
                set.name = format!("{new}{}", &set.name[old.len()..]);
            }
            Ok(())
        });
        "rename"
    }

    fn limit(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        let name = larder_pool::Limits::NAMES[dice.below(4) as usize];
        let value = match dice.below(3) {
            0 => 0,
            1 => 1 << 20 | dice.below(1 << 20),
            _ => 100_000 + dice.below(600_000),
        };
        if id == ROOT_DATASET && name.ends_with("reservation") {
            return "nothing";
        }
        self.begin();
        match self.pool().set_property(id, name, &value.to_string()) {
            Ok(()) => {
                let limits = &mut self.now.set(id).limits;
                match value {
                    0 => drop(limits.remove(name)),
                    value => drop(limits.insert(name.to_owned(), value)),
                }
                self.done_uncommitted(Change::Whole, format!("{name}={value} of {id}"));
                "limit"
            }
            Err(error) if Self::is_want(&error) || matches!(error, PoolError::Invalid(_)) => "refused",
            Err(error) => panic!("{name}={value}: {error}"),
        }
    }

    fn tune(&mut self, dice: &Dice, id: DatasetId) -> &'static str {
        for (name, value) in self.properties(dice) {
            self.pool().set_property(id, &name, &value).unwrap();
        }
        self.begin();
        self.done_uncommitted(Change::Whole, "tune");
        "tune"
    }

    /// As the daemon does it: one of each dataset, and of each those go that are beyond the newest two.
    fn policy(&mut self, dice: &Dice) -> &'static str {
        let all: Vec<_> = self.now.named().map(|(id, _)| id).filter(|_| dice.below(3) > 0).collect();
        if all.is_empty() {
            return "nothing";
        }
        let name = self.name("auto");
        self.take(&all, &name, BTreeMap::from([(PERIOD.to_owned(), "hourly".to_owned())]));
        for id in all {
            let marked = self.pool().marked_snapshots(id, PERIOD);
            let of_model = self.now.get(id).named().filter(|(_, one)| one.by_policy);
            assert_eq!(
                marked.iter().map(|one| one.record.high).collect::<Vec<_>>(),
                of_model.map(|(high, _)| *high).collect::<Vec<_>>()
            );
            for one in marked.iter().rev().skip(2).filter(|one| one.held_by.is_none()) {
                let (high, name) = (one.record.high, one.record.name.clone());
                self.let_go_of(id, &[high]);
                let real = |side: &Self| side.pool().destroy_snapshots(&[(id, name)]);
                self.both("prune", Change::Whole, real, |now| now.destroy_snapshots(id, &[high]));
            }
        }
        "policy"
    }

    /// Destroys all there is, but for the root dataset.
    pub fn destroy_all(&mut self) {
        for key in self.now.trash() {
            if self.now.trash().contains(&key) {
                self.pool().let_go(key).unwrap_or_else(|error| panic!("let go of {key:?}: {error}"));
                self.now.let_go(key);
            }
        }
        let mut all: Vec<_> = self.now.named().map(|(id, set)| (set.name.clone(), id)).collect();
        all.sort();
        for (_, id) in all.into_iter().rev() {
            let named = self.now.get(id).named();
            let of: Vec<_> = named.map(|(high, one)| (*high, one.name.clone(), one.holds.clone())).collect();
            for (high, name, holds) in of {
                let at = [(id, name)];
                for tag in holds {
                    self.pool().release_snapshots(&at, &tag).unwrap();
                    self.now.set(id).snapshots.get_mut(&high).expect("a snapshot").holds.remove(&tag);
                }
                self.let_go_of(id, &[high]);
                self.pool().destroy_snapshots(&at).unwrap();
                self.now.destroy_snapshots(id, &[high]).expect("nothing holds it");
            }
            if id == ROOT_DATASET {
                self.pool().abort_receive(id).unwrap();
                continue;
            }
            self.detach(id);
            self.pool().destroy_dataset(id).unwrap();
            self.now.destroy_dataset(id).expect("nothing hangs on it");
        }
    }
}
