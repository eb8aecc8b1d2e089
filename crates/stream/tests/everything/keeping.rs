//! Upkeep beside all else; and the state that a pool settles in.

use super::side::{Change, Dice, Side};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::run::Marks;
use larder_format::{BlockId, BlockPtr, DatasetId};
use larder_pool::{Look, ROOT_DATASET};
use larder_sorted::map::Location;
use larder_store::{DatasetNodes, PoolError};
use larder_upkeep::gc::Outcome;
use larder_upkeep::{ScrubSince, Task};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Blocks with their footprints.
type Blocks = BTreeMap<BlockId, u64>;

/// Blocks of a tree as it is committed: its records, and its nodes.
fn blocks_of(side: &Side, view: &dyn Look) -> (Blocks, Blocks) {
    let (mut records, mut nodes) = (Blocks::new(), Blocks::new());
    // As it is charged: nodes once.
    let add = |all: &mut Blocks, ptr: BlockPtr, copies: u64| {
        all.insert(ptr.id, copies * u64::from(ptr.place.footprint()));
    };
    view.scan(&Key::MIN, &mut |key, value| {
        if key.kind == EXTENT {
            let extent = Extent::decode(value).unwrap();
            add(&mut records, extent.ptr, extent.copies.into());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let look = |ptr: BlockPtr| {
        add(&mut nodes, ptr, 1);
        true
    };
    let store = DatasetNodes(side.pool().store());
    view.parts().1.for_each_node(&store, look, |_, node| node.map(drop)).unwrap();
    (records, nodes)
}

fn sum(blocks: &Blocks) -> u64 {
    blocks.values().sum()
}

/// Blocks of a snapshot's tree.
fn of_snapshot(side: &Side, id: DatasetId, high: BlockId) -> Blocks {
    let view = side.pool().snapshot_view_of(id, high).unwrap();
    let (mut records, nodes) = blocks_of(side, &view);
    records.extend(nodes);
    records
}

fn of_head(side: &Side, id: DatasetId) -> Blocks {
    let dataset = side.pool().alive(id).unwrap();
    let (mut records, nodes) = blocks_of(side, &dataset.view().unwrap());
    records.extend(nodes);
    records
}

impl Side {
    /// One step of something that goes on beside traffic.
    pub fn keep(&mut self, dice: &Dice) -> &'static str {
        self.tick();
        let (pool, upkeep) = (std::sync::Arc::clone(self.pool()), std::sync::Arc::clone(self.upkeep()));
        match dice.below(28) {
            0..=2 => {
                self.commit();
                "commit"
            }
            3..=5 => {
                pool.destroy_step(1 + dice.below(40) as usize).unwrap();
                "destroy step"
            }
            6 => {
                self.mount().reap_step(1 + dice.below(20) as usize).unwrap();
                "reap step"
            }
            7..=8 => {
                pool.free_step(1 + dice.below(3) as usize).unwrap();
                "free step"
            }
            9..=10 => {
                let before = pool.cleaned_bytes();
                pool.clean_step(dice.one_in(2)).unwrap();
                if pool.cleaned_bytes() > before { "move" } else { "clean" }
            }
            11..=14 => self.collect(dice),
            15 => {
                let whole = dice.one_in(3);
                if upkeep.scrub.progress().is_none() {
                    upkeep.scrub.start(ScrubSince::All).unwrap();
                }
                while upkeep.scrub.step(1 << (16 + dice.below(6))).unwrap() && whole {}
                "scrub"
            }
            16 => {
                while upkeep.trim.step().unwrap().is_some() && dice.below(3) > 0 {}
                "trim"
            }
            17..=19 => {
                self.sync();
                "fsync"
            }
            20 => {
                pool.tick().unwrap();
                self.note_room();
                self.begin();
                if pool.trash_step().unwrap() {
                    assert!(self.is_short, "{}: the trash went though there is room", self.label);
                }
                "tick"
            }
            21 if dice.one_in(3) => {
                self.export();
                "export"
            }
            24..=26 => self.pass(dice),
            23 | 27 if self.has_copies && !self.is_short => self.rot(dice),
            22 => {
                self.mount().flush_stripes().unwrap_or_else(|error| panic!("flush: {error}"));
                "flush"
            }
            _ => {
                self.measure();
                "measure"
            }
        }
    }

    fn collect(&mut self, dice: &Dice) -> &'static str {
        let upkeep = std::sync::Arc::clone(self.upkeep());
        if upkeep.gc.progress().is_none() && upkeep.gc.start().unwrap() {
            // Its commit is one like any other.
            self.promise();
        }
        for _ in 0..dice.below(12) {
            match upkeep.gc.step(1 + dice.below(4) as usize) {
                Ok(_) => {}
                Err(PoolError::NoSpace) if self.is_short => return "collect without room",
                Err(error) => panic!("{}: collect: {error}", self.label),
            }
        }
        self.found_nothing_wrong();
        "collect"
    }

    /// Begins a pass over what some datasets have stored, or goes on with the one under way, which may take over what
    /// another lifetime began.
    fn pass(&mut self, dice: &Dice) -> &'static str {
        let (pool, upkeep) = (std::sync::Arc::clone(self.pool()), std::sync::Arc::clone(self.upkeep()));
        if upkeep.passes.is_active() && dice.one_in(8) {
            upkeep.passes.stop().unwrap();
            return "stop a pass";
        }
        if !upkeep.passes.is_active() {
            let named: Vec<_> = self.now.named().map(|(id, _)| id).collect();
            let mut of: Vec<_> = named.into_iter().filter(|_| dice.below(3) > 0).collect();
            of.push(self.some_named(dice));
            let tasks = [Task::Rewrite, Task::Undedup, Task::Records, Task::Dedup, Task::Dedup];
            let task = tasks[dice.below(5) as usize];
            if task == Task::Records {
                let size = ["4096", "16384", "131072"][dice.below(3) as usize];
                for id in &of {
                    match pool.set_property(*id, "recordsize", size) {
                        Err(PoolError::NoSpace) if self.is_short => return "no room for a pass",
                        set => set.unwrap(),
                    }
                }
            }
            if task == Task::Rewrite {
                let codec = ["off", "lz4", "zstd-1", "gzip-1"][dice.below(4) as usize];
                for id in &of {
                    match pool.set_property(*id, "compression", codec) {
                        Err(PoolError::NoSpace) if self.is_short => return "no room for a pass",
                        set => set.unwrap(),
                    }
                }
            }
            // It goes through trees as they are committed.
            if dice.below(4) > 0 {
                self.commit();
            }
            upkeep.passes.start(task, of, 0).unwrap();
        }
        // Its aliases are of blocks that others refer to as well.
        self.shares = true;
        let whole = dice.one_in(2);
        let mut steps = 0;
        while (whole || dice.below(4) > 0)
            && upkeep.passes.step(1 << (12 + dice.below(10))).unwrap().is_some()
        {
            steps += 1;
            assert!(steps < 100_000, "{}: a pass does not end", self.label);
        }
        self.note_room();
        let Some(last) = upkeep.passes.last() else { return "pass" };
        assert_eq!(last.tally.unread, 0, "{}: {last:?}", self.label);
        match (last.task, last.tally.changed) {
            (_, 0) => "pass",
            (Task::Dedup, _) => "make aliases",
            (Task::Rewrite, _) => "rewrite",
            (Task::Undedup, _) => "undo aliases",
            (Task::Records, _) => "recut",
        }
    }

    /// All that some place of a block had is wrong; another place serves, and it heals.
    fn rot(&mut self, dice: &Dice) -> &'static str {
        self.commit();
        let (pool, upkeep) = (std::sync::Arc::clone(self.pool()), std::sync::Arc::clone(self.upkeep()));
        let lives = |marks: Marks| !marks.contains(Marks::DEAD) || marks.contains(Marks::SHARED);
        let all = pool.blocks().unwrap().into_iter();
        let several = all.filter(|(_, entry)| entry.places().len() > 1 && lives(entry.marks));
        let Some((id, entry)) = dice.one(several) else { return "nothing to rot" };
        let at = dice.below(entry.places().len() as u64) as usize;
        let of = pool.store().whereabouts(id).unwrap().unwrap().copies;
        let each = of.len() / entry.places().len();
        for &(device, offset) in &of[at * each..(at + 1) * each] {
            self.sim.device(device.get().into()).flip_bits(
                offset,
                1 + dice.below(300) as usize,
                dice.below(1 << 40),
            );
        }
        pool.store().drop_caches();
        self.verify(true);
        // Reads come to some places only.
        while upkeep.scrub.progress().is_some() && upkeep.scrub.step(1 << 20).unwrap() {}
        upkeep.scrub.start(ScrubSince::All).unwrap();
        while upkeep.scrub.step(1 << 20).unwrap() {}
        assert_eq!(upkeep.scrub.result().unwrap().lost, 0, "{}", self.label);
        while upkeep.read_repair.step().unwrap() > 0 || upkeep.damage.step(64).unwrap() {}
        self.commit();
        assert_eq!(upkeep.damage.known(), [], "{}", self.label);
        let now = pool.blocks().unwrap().into_iter().find(|(of, entry)| *of == id && lives(entry.marks));
        for &place in now.iter().flat_map(|(_, entry)| entry.places()) {
            let read = pool.store().read_at(BlockPtr { id, place });
            read.unwrap_or_else(|error| panic!("{}: block {id} did not heal: {error}", self.label));
        }
        "rot"
    }

    fn found_nothing_wrong(&self) {
        let Some(found) = self.upkeep().gc.findings() else { return };
        assert_eq!((found.missing, found.lost), (0, 0), "{}: {found:?}", self.label);
        assert!(!found.is_bad(), "{}: {found:?}", self.label);
    }

    /// All that was deleted is freed. A cut after it leaves what it did before.
    pub fn settle(&mut self) {
        while self.upkeep().gc.progress().is_some() {
            self.upkeep().gc.step(64).unwrap();
        }
        for round in 0.. {
            assert!(round < 200, "{}: freeing does not end", self.label);
            while self.mount().reap_step(1000).unwrap() {}
            self.commit();
            while self.pool().destroy_step(1000).unwrap() {}
            self.commit();
            while self.pool().free_step(64).unwrap() {}
            self.commit();
            let pool = self.pool();
            if pool.remaining() == 0
                && !pool.freeing().has_queued()
                && pool.destroyed().is_empty()
                && !pool.is_freeing()
            {
                return;
            }
        }
    }

    fn trace(&mut self) -> u64 {
        assert!(self.upkeep().gc.start().unwrap());
        while self.upkeep().gc.step(64).unwrap() {}
        let found = self.upkeep().gc.findings().unwrap();
        assert_eq!(found.outcome, Outcome::Done);
        self.found_nothing_wrong();
        self.commit();
        while self.pool().free_step(64).unwrap() {}
        self.commit();
        found.unreachable.blocks
    }

    fn check(&self, when: &str) -> u64 {
        let report = self.upkeep().check().unwrap_or_else(|error| panic!("{} {when}: {error}", self.label));
        assert!(report.problems.is_empty(), "{} {when}: {:#?}", self.label, report.problems);
        report.unreachable
    }

    /// Nothing is left that nobody refers to, and figures are what trees say.
    pub fn assert_exact(&mut self) {
        self.settle();
        self.verify(true);
        let left = self.check("settled");
        assert!(self.shares || left == 0, "{}: {left} blocks are left to garbage collection", self.label);
        for _ in 0..2 {
            self.trace();
        }
        assert_eq!(self.check("after a trace"), 0, "{}: blocks that nobody refers to", self.label);
        self.verify(true);
        self.figures();
        let mut wanted = Blocks::new();
        for dataset in self.pool().trees() {
            let id = dataset.id();
            wanted.extend(of_head(self, id));
            let records = self.pool().snapshots(id).into_iter().chain(self.pool().hidden_snapshots(id));
            records.for_each(|one| wanted.extend(of_snapshot(self, id, one.high)));
        }
        let found = self.pool().blocks().unwrap();
        // The block that an alias stands for is needed as well.
        for (id, entry) in &found {
            if let (Location::Alias(to), true) = (&entry.location, wanted.contains_key(id)) {
                wanted.insert(*to, 0);
            }
        }
        let found: Vec<_> = found.into_iter().map(|(id, _)| id).collect();
        let leaked: Vec<_> = found.iter().filter(|id| !wanted.contains_key(id)).collect();
        let lost: Vec<_> = wanted.keys().filter(|id| found.binary_search(id).is_err()).collect();
        assert!(leaked.is_empty() && lost.is_empty(), "{}: leaked {leaked:?}, lost {lost:?}", self.label);
    }

    /// Asks for figures as people do, whatever is under way.
    fn measure(&mut self) {
        let pool = self.pool();
        for (id, set) in self.now.named() {
            let names: Vec<_> = set.named().map(|(_, one)| one.name.clone()).collect();
            let together = pool.snapshot_space(id, &names).unwrap();
            let each = names.iter().map(|name| pool.snapshot_space(id, std::slice::from_ref(name)).unwrap());
            let each: u64 = each.sum();
            assert!(each <= together, "{}: {each} of {together}", self.label);
            pool.written(id, None, None).unwrap();
            pool.trash_of(id).unwrap();
            let dataset = pool.dataset(id).unwrap();
            let space = pool.space_of(&dataset);
            let limit = ["quota", "refquota"].into_iter().filter_map(|name| set.limits.get(name)).min();
            if let Some(limit) = limit {
                assert!(space.available <= *limit, "{}: {space:?} of {limit}", self.label);
            }
        }
        for key in self.now.trash() {
            pool.space_of_trashed(key).unwrap_or(0);
        }
    }

    /// Figures of a settled pool: those that are exact are what the trees of the pool add up to.
    fn figures(&self) {
        let pool = self.pool();
        for (id, set) in self.now.named() {
            let dataset = pool.dataset(id).unwrap();
            let (records, _) = blocks_of(self, &dataset.view().unwrap());
            let usage = dataset.usage();
            let named = set.named().collect::<Vec<_>>();
            if !self.shares {
                assert_eq!(usage.referenced, sum(&records), "{}: refer of {}", self.label, set.name);
            }
            let children: u64 = self.children_used(id);
            let share = pool.share(id);
            let own = usage.own.max(set.limits.get("refreservation").copied().unwrap_or(0));
            assert_eq!(
                (share.used, share.dataset, share.children),
                (own + children, usage.own, children),
                "{}: used of {}",
                self.label,
                set.name
            );
            for (high, one) in &named {
                let record = pool.snapshot_named(id, &one.name).unwrap();
                let found = pool.space_of_snapshot(&record).unwrap();
                if !self.shares {
                    let wanted = sum(&self.alone(id, **high));
                    assert_eq!(found, wanted, "{}: used of {}@{}", self.label, set.name, one.name);
                    let referenced = {
                        let view = pool.snapshot_view_of(id, **high).unwrap();
                        sum(&blocks_of(self, &view).0)
                    };
                    assert_eq!(
                        record.referenced, referenced,
                        "{}: refer of {}@{}",
                        self.label, set.name, one.name
                    );
                }
            }
        }
    }

    /// Charges of the children of a dataset.
    fn children_used(&self, id: DatasetId) -> u64 {
        let all =
            self.pool().datasets().into_iter().filter(|one| one.parent() == id && one.id() != ROOT_DATASET);
        let charged = all.map(|child| {
            let limits = self.now.0.get(&child.id()).map(|set| set.limits.clone()).unwrap_or_default();
            let limit = |name: &str| limits.get(name).copied().unwrap_or(0);
            let own = child.usage().own.max(limit("refreservation"));
            (own + self.children_used(child.id())).max(limit("reservation"))
        });
        charged.sum()
    }

    /// Blocks that a snapshot alone has, and its clones, beside its neighbours.
    fn alone(&self, id: DatasetId, high: BlockId) -> Blocks {
        // Hidden ones that no clone needs are gone.
        let settled = self.now.settled();
        let set = settled.get(id);
        let mut all = of_snapshot(self, id, high);
        let before = set.snapshots.range(..high).next_back().map(|(high, _)| (id, *high));
        let after = set.snapshots.range(high.next()..).next().map(|(high, _)| *high);
        let before = before.or(set.origin).map(|(id, high)| of_snapshot(self, id, high));
        let after = after.map_or_else(|| of_head(self, id), |high| of_snapshot(self, id, high));
        all.retain(|id, _| {
            !after.contains_key(id) && before.as_ref().is_none_or(|before| !before.contains_key(id))
        });
        all
    }

    /// Nothing is left but the root dataset.
    pub fn assert_empty(&mut self) {
        self.destroy_all();
        self.begin();
        self.done_uncommitted(Change::Parts, "destroy all");
        self.assert_exact();
        let trees = self.pool().trees().into_iter().filter(|one| !one.is_staging()).count();
        assert_eq!((trees, self.pool().trash().len(), self.pool().remaining()), (1, 0, 0), "{}", self.label);
        assert!(self.pool().hidden_snapshots(ROOT_DATASET).is_empty(), "{}", self.label);
    }
}
