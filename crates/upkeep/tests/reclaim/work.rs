//! Seeded workloads in which space dies in every way there is, and what must hold after them and after a power cut.

use crate::check::{heal, stamped, traced, trees, verify, whole};
use crate::common::Kept;
use crate::common::{LAYOUTS, create, import};
use crate::model::{Blocks, Files, Piece, State, Tree};
use larder_device::{Entropy, SeededEntropy};
use larder_format::checksum::ChecksumKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::run::Marks;
use larder_format::{BlockId, ByteLen};
use larder_pool::codec::Codec;
use larder_pool::{Dataset, Dedup, Look, NewRecord, PoolError, Tally, Update};
use larder_sim::{SimWorld, Survival};
use larder_upkeep::ScrubSince;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Inodes of a dataset.
const INODES: u64 = 6;

/// The key of the number of the state that a pool is in.
pub const STAMP: Key = Key::new(1, 60, 0);

/// Number of times that each step ran.
pub type Coverage = BTreeMap<&'static str, u64>;

/// A pool at work, and all that is known of it.
struct Bed {
    sim: SimWorld,
    pool: Option<Kept>,
    entropy: SeededEntropy,
    blocks: Blocks,
    state: State,
    /// Every state that it went through; one becomes durable as a whole.
    states: Vec<State>,
    imports: u64,
    /// Extents that were stored to fill it; 0 when there is room.
    ballast: u64,
    /// Whether a step may store.
    room: bool,
    /// Records that were shared instead of being stored.
    hits: u64,
    /// Datasets may ask for several places of their blocks.
    has_copies: bool,
    /// Blocks of which a place was spoiled: none is twice, so that a cut never leaves one without any.
    rotten: BTreeSet<BlockId>,
}

/// Letters that come again and again; others are those of one block.
const ALPHABET: u64 = 7;
/// Lengths of blocks with such a letter, bytes.
const LENGTHS: [u32; 3] = [90, 20_000, 110_000];

/// The bytes that a block of this letter repeats.
fn word(letter: u64) -> [u8; 8] {
    (letter + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

fn content(letter: u64, len: u32) -> Vec<u8> {
    let mut bytes = word(letter).repeat(len.div_ceil(8) as usize);
    bytes.truncate(len as usize);
    bytes
}

/// Whether `bytes` are a block's content.
pub fn is_content(letter: u64, bytes: &[u8]) -> bool {
    let first = bytes.len().min(8);
    bytes[..first] == word(letter)[..first] && bytes[first..] == bytes[..bytes.len() - first]
}

impl Bed {
    fn next(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    fn pool(&self) -> &Kept {
        self.pool.as_ref().expect("the pool is imported")
    }

    /// One of some names.
    fn pick<'a>(&self, all: impl IntoIterator<Item = &'a String>) -> Option<String> {
        let all: Vec<_> = all.into_iter().collect();
        (!all.is_empty()).then(|| all[self.next(all.len() as u64) as usize].clone())
    }

    fn some_dataset(&self) -> (String, Arc<Dataset>) {
        let name = self.pick(self.state.trees.keys()).expect("the root dataset is always there");
        let dataset = self.pool().dataset_by_name(&name).unwrap();
        (name, dataset)
    }

    /// The state that this step ends with is durable.
    fn promise(&self) {
        self.sim.mark(self.states.len() as u64);
    }

    /// An extent somewhere in a head or a snapshot.
    fn some_piece(&self) -> Option<Piece> {
        let trees = self.state.trees.values();
        let files: Vec<&Files> = trees
            .flat_map(|tree| std::iter::once(&tree.head).chain(tree.snapshots.iter().map(|s| &s.2)))
            .filter(|files| !files.is_empty())
            .collect();
        let files = files.get(self.next(files.len().max(1) as u64) as usize)?;
        files.values().nth(self.next(files.len() as u64) as usize).copied()
    }

    fn change(&self, dataset: &Dataset, change: impl FnOnce(&mut Update<'_>) -> Result<(), PoolError>) {
        let op = self.pool().enter().unwrap();
        dataset.update(&op, change).unwrap();
    }

    /// Writes into the root dataset's tree which state comes next: whatever a cut leaves is known by that. It is
    /// in one commit with all that the step does, since no step commits before it has changed anything.
    fn stamp(&self) {
        let root = self.pool().dataset_by_name("tank").unwrap();
        let next = (self.states.len() as u64).to_le_bytes();
        self.change(&root, |tree| tree.insert(STAMP, &next));
    }

    fn step(&mut self) -> &'static str {
        match self.next(if self.has_copies { 75 } else { 63 }) {
            0..=11 => self.put(),
            12..=14 => self.remove(),
            15..=17 => self.share(),
            18..=19 => self.punch(),
            20..=22 => self.snapshot(),
            23..=24 => self.destroy_snapshot(),
            25 => self.roll_back(),
            26 => self.create_dataset(),
            27 => self.destroy_dataset(),
            28..=32 => {
                self.pool().commit().unwrap();
                self.promise();
                "commit"
            }
            33..=34 | 46 => self.clean(),
            35..=37 => {
                self.pool().free_step(1).unwrap();
                "free_step"
            }
            38 => self.export(),
            39..=40 => {
                // Its commit is one like any other.
                if self.pool().upkeep.gc.start().unwrap() {
                    self.promise();
                }
                if self.ballast == 0 && self.next(2) == 0 {
                    while self.pool().upkeep.gc.step(8).unwrap() {}
                    self.found_nothing_wrong();
                    return "whole trace";
                }
                "trace"
            }
            41..=44 => {
                let effort = 1 + self.next(3) as usize;
                match self.pool().upkeep.gc.step(effort) {
                    Ok(_) => self.found_nothing_wrong(),
                    // It may need some for its pages.
                    Err(PoolError::NoSpace) if self.ballast > 0 => return "trace without room",
                    Err(error) => panic!("{error}"),
                }
                "trace step"
            }
            48 => self.switch_dedup(),
            49 => self.rebuild(),
            50..=51 => {
                self.pool().tick().unwrap();
                "tick"
            }
            52..=55 => self.trim(),
            56..=59 => self.make_aliases(),
            60..=62 => self.rewrite(),
            63..=66 => self.switch_copies(),
            67..=69 => self.rot(),
            70..=74 => self.heal_step(),
            _ => self.put_many(),
        }
    }

    /// A step of `autotrim`, or of a trim that is asked for.
    fn trim(&mut self) -> &'static str {
        let pool = self.pool();
        if !pool.upkeep.trim.is_active() && self.next(6) == 0 {
            let members: Vec<_> = pool.store().members().iter().map(|member| member.index).collect();
            pool.upkeep.trim.start(&members, 0).unwrap();
        }
        if pool.upkeep.trim.step().unwrap().is_some() { "trim" } else { "nothing to trim" }
    }

    fn switch_dedup(&mut self) -> &'static str {
        let (_, dataset) = self.some_dataset();
        let word = ["off", "on", "verify"][self.next(3) as usize];
        self.pool().set_property(dataset.id(), "dedup", word).unwrap();
        "switch dedup"
    }

    fn switch_copies(&mut self) -> &'static str {
        let (_, dataset) = self.some_dataset();
        let word = ["1", "2", "3"][self.next(3) as usize];
        self.pool().set_property(dataset.id(), "copies", word).unwrap();
        "switch copies"
    }

    /// Spoils a place of some blocks that have others, which are durable.
    fn rot(&mut self) -> &'static str {
        // It would not heal.
        if self.ballast > 0 {
            return "nothing";
        }
        let pool = Arc::clone(self.pool());
        pool.commit().unwrap();
        self.promise();
        let blocks = pool.blocks().unwrap();
        let several = blocks.iter().filter(|(id, entry)| {
            entry.places().len() > 1 && !entry.marks.contains(Marks::DEAD) && !self.rotten.contains(id)
        });
        let several: Vec<_> = several.map(|(id, entry)| (*id, entry.places().to_vec())).collect();
        if several.is_empty() {
            return "nothing";
        }
        for _ in 0..1 + self.next(6) {
            let (id, places) = &several[self.next(several.len() as u64) as usize];
            if !self.rotten.insert(*id) {
                continue;
            }
            let place = places[self.next(places.len() as u64) as usize];
            let segment = pool.store().readable.get(place.segment).expect("it is in the table");
            for replica in 0..segment.layout.r() {
                let slot = segment.slots[segment.layout.replica(place.column.into(), replica)].get();
                let member = pool.store().members().iter().find(|member| member.index == slot.device);
                let offset = member.expect("a device of the pool").slot_offset(slot.index, place.offset);
                let seed = self.entropy.next_u64();
                self.sim.device(slot.device.get().into()).flip_bits(
                    offset,
                    place.stored.min(64) as usize,
                    seed,
                );
            }
        }
        self.state.is_rotten = true;
        pool.store().drop_caches();
        "rot"
    }

    /// Goes on with what heals, or begins to.
    fn heal_step(&mut self) -> &'static str {
        let upkeep = &self.pool().upkeep;
        match self.next(4) {
            0 => drop(upkeep.scrub.start(ScrubSince::All)),
            1 => _ = upkeep.read_repair.step().unwrap(),
            2 => _ = upkeep.damage.step(8).unwrap(),
            _ => _ = upkeep.scrub.step(4 << 20).unwrap(),
        }
        "heal"
    }

    /// Begins to make the index anew, or goes on with it.
    fn rebuild(&mut self) -> &'static str {
        if self.pool().rebuild_progress().is_none() && self.pool().rebuild_index().is_err() {
            return "nothing";
        }
        self.state.twice = true;
        self.pool().rebuild_step(3).unwrap();
        "rebuild index"
    }

    /// Looks for duplicates among what a dataset has stored, and in its snapshots.
    fn make_aliases(&mut self) -> &'static str {
        let (_, dataset) = self.some_dataset();
        let pool = Arc::clone(self.pool());
        // Heads are looked at as they are committed.
        if self.next(2) == 0 {
            pool.commit().unwrap();
            self.promise();
        }
        pool.use_index(self.next(8) > 0);
        self.state.twice = true;
        let mut shared = 0;
        for tree in pool.trees_of(dataset.id()) {
            let mut from = Some(Key::MIN);
            while let Some(key) = from {
                let found = pool.tree_records(dataset.id(), tree, key).unwrap();
                from = found.next;
                shared += pool.share_records(found.records).unwrap().changed;
            }
        }
        if shared > 0 { "make aliases" } else { "no duplicates" }
    }

    /// Stores what a dataset has with another codec or checksum.
    fn rewrite(&mut self) -> &'static str {
        let (_, dataset) = self.some_dataset();
        let pool = Arc::clone(self.pool());
        let codec = ["off", "lz4", "zstd-1"][self.next(3) as usize];
        let checksum = ["on", "on", "sha256"][self.next(3) as usize];
        pool.set_property(dataset.id(), "compression", codec).unwrap();
        pool.set_property(dataset.id(), "checksum", checksum).unwrap();
        let mut changed = 0;
        for tree in pool.trees_of(dataset.id()) {
            let mut from = Some(Key::MIN);
            while let Some(key) = from {
                let found = pool.tree_records(dataset.id(), tree, key).unwrap();
                from = found.next;
                let (mut tally, mut of_nodes) = (Tally::default(), Tally::default());
                let nodes = pool.rewrite_nodes(dataset.id(), found.nodes, &mut of_nodes);
                match nodes.and_then(|()| pool.rewrite_records(dataset.id(), found.records, &mut tally)) {
                    Ok(()) => {
                        assert_eq!(tally.unread, 0, "each block has a place that is sound");
                        changed += tally.changed;
                    }
                    Err(PoolError::NoSpace) if self.ballast > 0 => return "no room to rewrite",
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if changed > 0 { "rewrite" } else { "nothing to rewrite" }
    }

    /// A trace that ended has nothing to complain of.
    fn found_nothing_wrong(&self) {
        if let Some(found) = self.pool().upkeep.gc.findings() {
            assert!(!found.is_bad(), "{found:?}");
        }
    }

    /// Looks for room for what a step may store. It may commit.
    fn make_room(&mut self) {
        self.room = match self.pool().check_space(if self.has_copies { 6 << 20 } else { 2 << 20 }, 240 << 10)
        {
            Ok(()) => true,
            Err(PoolError::NoSpace) => false,
            Err(error) => panic!("{error}"),
        };
    }

    /// Fills the pool but for a little.
    fn fill(&mut self) {
        const LEN: u32 = 240 << 10;
        while self.pool().store().space(LEN).available > 4 << 20 {
            let files = [0, 1, 2, 3].map(|i| ((1000 + self.ballast + i, 0), LEN));
            self.make_room();
            if !self.store("tank", &files) {
                break;
            }
            self.ballast += 4;
            if self.ballast.is_multiple_of(32) {
                self.pool().commit().unwrap();
            }
        }
        self.pool().commit().unwrap();
    }

    /// Stores blocks of these lengths and names them, if there is room.
    fn store(&mut self, name: &str, files: &[((u64, u64), u32)]) -> bool {
        if !self.room {
            return false;
        }
        let dataset = self.pool().dataset_by_name(name).unwrap();
        let pool = Arc::clone(self.pool());
        let op = pool.enter().unwrap();
        let (first, dedup) = (self.blocks.all.len(), dataset.settings().dedup);
        let copies = dataset.settings().copies;
        let mut files = files.to_vec();
        let mut letters = Vec::new();
        for (i, (_, len)) in files.iter_mut().enumerate() {
            if self.next(if dedup == Dedup::Off { 3 } else { 2 }) == 0 && *len < 240 << 10 {
                letters.push(self.next(ALPHABET));
                *len = LENGTHS[letters[i] as usize % LENGTHS.len()];
            } else {
                // After a cut, what went with it must not come again.
                letters.push(ALPHABET + self.next(1 << 40) * 1000 + (first + i) as u64);
            }
        }
        let files = files.as_slice();
        let unborn = pool.store().next_block();
        let record = |(i, &((inode, offset), len)): (usize, &((u64, u64), u32))| NewRecord {
            dataset: dataset.id(),
            inode,
            offset,
            plain: content(letters[i], len).into(),
            codec: if (first + i).is_multiple_of(4) { Codec::Lz4 } else { Codec::Off },
            encoded: None,
            checksum: ChecksumKind::Fast,
            dedup,
            copies,
            replaces: None,
        };
        let ptrs = pool.store_records(&op, files.iter().enumerate().map(record).collect()).unwrap();
        let update = |tree: &mut Update<'_>| {
            for ((&(key, len), &ptr), &letter) in files.iter().zip(&ptrs).zip(&letters) {
                drop_at(tree, key)?;
                let places = pool.store().places_of(ptr.id)?.len();
                let is_hit = self.blocks.by_id.contains_key(&ptr.id);
                assert!(places >= copies.into() && (is_hit || places == copies.into()), "block {}", ptr.id);
                let version = match self.blocks.by_id.get(&ptr.id).copied() {
                    Some(replica) => {
                        assert_ne!(dedup, Dedup::Off, "block {} was not to be shared", ptr.id);
                        let (letter_of, len_of) = (self.blocks.letters[replica], self.blocks.all[replica].1);
                        assert_eq!((letter_of, len_of), (letter, len), "block {} is another", ptr.id);
                        self.state.shared.insert(replica);
                        self.hits += 1;
                        replica
                    }
                    None => {
                        assert!(ptr.id >= unborn, "block {} was never stored", ptr.id);
                        let same = |other: usize| {
                            self.blocks.letters[other] == letter && self.blocks.all[other].1 == len
                        };
                        let twins: Vec<_> = (0..self.blocks.all.len()).filter(|&other| same(other)).collect();
                        self.state.twice |= dedup != Dedup::Off && !twins.is_empty();
                        if dedup != Dedup::Off && copies > 1 {
                            // One may have been found, and had too few places: its mark is for nothing, also if it
                            // had been dropped and waited to be freed.
                            let live = self.state.live();
                            self.state.left.extend(twins.iter().filter(|twin| !live.contains(twin)));
                            self.state.shared.extend(twins);
                        }
                        self.blocks.add(ptr, len, letter)
                    }
                };
                let piece = Piece { version, from: 0, len, copies };
                tree.insert(at(key), &extent(&self.blocks, piece).encode())?;
                // A hit may name the place that it was rewritten to.
                tree.link_block(&extent(&self.blocks, piece));
                self.state.born = self.blocks.all.len();
                self.state.drop_piece(name, key);
                self.state.trees.get_mut(name).expect("a dataset").head.insert(key, piece);
            }
            Ok::<_, PoolError>(())
        };
        dataset.update(&op, update).unwrap();
        true
    }

    fn put(&mut self) -> &'static str {
        let (name, _) = self.some_dataset();
        let len = match self.next(8) {
            0 => 200 << 10,
            1..=3 => 1 + self.next(200),
            _ => 1 + self.next(100 << 10),
        };
        let inode =
            if self.next(2) < self.ballast { 1000 + self.next(self.ballast) } else { 2 + self.next(INODES) };
        if self.store(&name, &[((inode, 0), len as u32)]) { "put" } else { "put without room" }
    }

    /// Enough to fill a stripe, and segments.
    fn put_many(&mut self) -> &'static str {
        let (name, _) = self.some_dataset();
        let count = 3 + self.next(4);
        let files: Vec<_> =
            (0..count).map(|i| ((20 + i, 0), (150 << 10) + self.next(100 << 10) as u32)).collect();
        if self.store(&name, &files) { "put many" } else { "put without room" }
    }

    fn some_key(&self, name: &str) -> Option<((u64, u64), Piece)> {
        let head = &self.state.trees[name].head;
        let at = self.next(head.len().max(1) as u64) as usize;
        head.iter().nth(at).map(|(key, piece)| (*key, *piece))
    }

    fn remove(&mut self) -> &'static str {
        let (name, dataset) = self.some_dataset();
        let Some((key, _)) = self.some_key(&name) else { return "nothing" };
        self.change(&dataset, |tree| drop_at(tree, key));
        self.state.drop_piece(&name, key);
        "drop"
    }

    fn share(&mut self) -> &'static str {
        let (name, dataset) = self.some_dataset();
        let Some(piece) = self.some_piece() else { return "nothing" };
        let key = (2 + self.next(INODES), 1 << 20);
        self.change(&dataset, |tree| {
            drop_at(tree, key)?;
            tree.insert(at(key), &extent(&self.blocks, piece).encode())?;
            tree.share_block(&extent(&self.blocks, piece));
            Ok(())
        });
        // The old extent may have been of the same block.
        self.state.shared.insert(piece.version);
        self.state.drop_piece(&name, key);
        self.state.trees.get_mut(&name).expect("a dataset").head.insert(key, piece);
        "share"
    }

    fn punch(&mut self) -> &'static str {
        let (name, dataset) = self.some_dataset();
        let Some((key, piece)) = self.some_key(&name) else { return "nothing" };
        let (left, right) = (piece.len / 3, piece.len / 3 * 2);
        let behind = (key.0, key.1 + u64::from(right));
        if left == 0 || self.state.trees[&name].head.contains_key(&behind) {
            return "nothing";
        }
        let before = Piece { len: left, ..piece };
        let after = Piece { from: piece.from + right, len: piece.len - right, ..piece };
        self.change(&dataset, |tree| {
            tree.insert(at(key), &extent(&self.blocks, before).encode())?;
            tree.insert(at(behind), &extent(&self.blocks, after).encode())?;
            tree.share_block(&extent(&self.blocks, piece));
            Ok(())
        });
        self.state.shared.insert(piece.version);
        let head = &mut self.state.trees.get_mut(&name).expect("a dataset").head;
        head.insert(key, before);
        head.insert(behind, after);
        "punch"
    }

    /// A step or two of emptying segments, whether space is short or not.
    fn clean(&mut self) -> &'static str {
        if self.next(8) == 0 {
            // More than there ever is: everything that might free some is tried before it gives up.
            let refused = self.pool().check_space(1 << 40, 128 << 10);
            assert!(matches!(refused, Err(PoolError::NoSpace)), "{refused:?}");
            return "ask for too much";
        }
        let before = self.pool().cleaned_bytes();
        for _ in 0..=self.next(2) {
            self.pool().clean_step(self.next(2) == 0).unwrap();
        }
        if self.pool().cleaned_bytes() > before { "move" } else { "clean" }
    }

    fn snapshot(&mut self) -> &'static str {
        let (name, dataset) = self.some_dataset();
        let snapshot = format!("s{}", self.next(5));
        let taken = self.pool().snapshot(dataset.id(), &snapshot);
        let tree = self.state.trees.get_mut(&name).expect("a dataset");
        if tree.snapshots.iter().any(|(other, ..)| *other == snapshot) {
            assert!(matches!(taken, Err(PoolError::Exists(_))), "{taken:?}");
            return "nothing";
        }
        tree.snapshots.push((snapshot, taken.unwrap().high, tree.head.clone()));
        self.promise();
        "snapshot"
    }

    fn destroy_snapshot(&mut self) -> &'static str {
        let (name, dataset) = self.some_dataset();
        let names: Vec<String> = self.state.trees[&name].snapshots.iter().map(|s| s.0.clone()).collect();
        let Some(snapshot) = self.pick(&names) else { return "nothing" };
        if self.next(3) == 0 {
            let view = self.pool().snapshot_view(dataset.id(), &snapshot).unwrap();
            let refused = self.pool().destroy_snapshot(dataset.id(), &snapshot);
            assert!(matches!(refused, Err(PoolError::Busy(_))), "{refused:?}");
            drop(view);
        }
        self.pool().destroy_snapshot(dataset.id(), &snapshot).unwrap();
        let tree = self.state.trees.get_mut(&name).expect("a dataset");
        let mut gone = tree.snapshots.extract_if(.., |(other, ..)| *other == snapshot);
        let versions: Vec<_> = gone.by_ref().flat_map(|gone| gone.2.into_values()).collect();
        drop(gone);
        self.state.leave(versions.into_iter().map(|piece| piece.version));
        "destroy snapshot"
    }

    /// A head goes back to a snapshot. Not that of the root dataset, which has the number of the state.
    fn roll_back(&mut self) -> &'static str {
        let (name, dataset) = self.some_dataset();
        let tree = &self.state.trees[&name];
        let count = tree.snapshots.len();
        if count == 0 || name == "tank" {
            return "nothing";
        }
        // The newest, or one before.
        let at = count - 1 - self.next(2.min(count as u64)) as usize;
        let (snapshot, _, files) = tree.snapshots[at].clone();
        if at + 1 < count {
            let refused = self.pool().rollback(dataset.id(), &snapshot, false);
            assert!(matches!(refused, Err(PoolError::Busy(_))), "{refused:?}");
        }
        self.pool().rollback(dataset.id(), &snapshot, true).unwrap();
        let tree = self.state.trees.get_mut(&name).expect("a dataset");
        let newer = tree.snapshots.split_off(at + 1);
        let before = std::mem::replace(&mut tree.head, files);
        let gone = newer.into_iter().map(|one| one.2).chain([before]);
        let gone: Vec<_> = gone.flat_map(|files| files.into_values().map(|piece| piece.version)).collect();
        self.state.leave(gone);
        self.state.is_rolled_back = true;
        self.promise();
        "roll back"
    }

    fn create_dataset(&mut self) -> &'static str {
        let name = format!("tank/d{}", self.next(3));
        if self.state.trees.contains_key(&name) {
            return "nothing";
        }
        self.pool().create_dataset(&name, Default::default()).unwrap();
        self.state.trees.insert(name, Tree::default());
        "create dataset"
    }

    fn destroy_dataset(&mut self) -> &'static str {
        let (name, dataset) = self.some_dataset();
        let destroyed = self.pool().destroy_dataset(dataset.id());
        if name == "tank" || !self.state.trees[&name].snapshots.is_empty() {
            assert!(matches!(destroyed, Err(PoolError::Busy(_))), "{destroyed:?}");
            return "nothing";
        }
        destroyed.unwrap();
        let keys: Vec<_> = self.state.trees[&name].head.keys().copied().collect();
        for key in keys {
            self.state.drop_piece(&name, key);
        }
        self.state.trees.remove(&name);
        "destroy dataset"
    }

    fn export(&mut self) -> &'static str {
        self.pool().commit_export().unwrap();
        self.promise();
        self.pool = None;
        self.imports += 1;
        self.pool = Some(import(&self.sim, 100 + self.imports).unwrap());
        "export and import"
    }

    /// States are numbered from 0 again, beginning with this one.
    fn restart(&self) {
        let root = self.pool().dataset_by_name("tank").unwrap();
        self.change(&root, |tree| tree.insert(STAMP, &0u64.to_le_bytes()));
        self.pool().commit().unwrap();
        self.sim.mark(0);
    }

    /// After a commit everything is as it must be; after a trace still.
    fn finish(&self) -> Result<(), String> {
        self.pool().commit().unwrap();
        heal(self.pool(), &self.rotten)?;
        verify(self.pool(), &self.state, &self.blocks)?;
        traced(self.pool(), self.state.clone(), &self.blocks)
    }

    fn run(&mut self, steps: usize, coverage: &mut Coverage) {
        for _ in 0..steps {
            // Commits and cuts find the trees of destroyed datasets at every stage.
            let entries = 1 + self.next(3) as usize;
            if self.next(3) == 0 {
                self.pool().destroy_step(entries).unwrap();
            }
            if self.ballast > 0 {
                self.make_room();
            }
            self.stamp();
            self.state.is_rolled_back = false;
            let step = self.step();
            *coverage.entry(step).or_default() += 1;
            self.states.push(self.state.clone());
        }
        let figures = self.pool().dedup_figures();
        let counts = [
            ("hits", self.hits),
            ("stale", figures.stale),
            ("runs of the index", figures.runs),
            ("sampled", u64::from(figures.sampling > 1)),
        ];
        for (what, times) in counts {
            *coverage.entry(what).or_default() += times;
        }
    }
}

fn at(key: (u64, u64)) -> Key {
    Key::new(key.0, EXTENT, key.1)
}

fn extent(blocks: &Blocks, piece: Piece) -> Extent {
    let (ptr, logical) = blocks.all[piece.version];
    Extent { ptr, len: piece.len, block_offset: piece.from, logical, placed: 0, copies: piece.copies }
}

/// Takes the extent at `key` away, if there is one.
fn drop_at(tree: &mut Update<'_>, key: (u64, u64)) -> Result<(), PoolError> {
    if let Some(old) = tree.get(&at(key))? {
        let old = Extent::decode(&old)?;
        tree.remove(&at(key))?;
        tree.drop_block(&old);
    }
    Ok(())
}

/// Cuts the power in what a bed went through from event `start` on, `cuts` times, and after each lets life go on for
/// some steps: what a cut left behind must not come up later. There, the power is cut again, `again` times.
fn cut(bed: Bed, start: usize, cuts: usize, steps: usize, again: usize) -> Result<(), String> {
    let Bed { sim, pool, entropy, blocks, states, ballast, has_copies, rotten, .. } = bed;
    drop(pool);
    let trace = sim.trace();
    let some = |n: usize| (entropy.next_u64() % n as u64) as usize;
    let mut at: Vec<usize> = (0..cuts).map(|_| start + some(trace.len() + 1 - start)).collect();
    at.sort_unstable();
    let mut sweep = trace.sweep();
    for cut_at in at {
        sweep.advance_to(cut_at);
        let promised = trace.marks_before(cut_at).last().unwrap_or(0) as usize;
        let survival = match entropy.next_u64() % 3 {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: entropy.next_u64() },
        };
        let failed = |why: String| format!("cut {cut_at} ({survival:?}): {why}");
        let sim = SimWorld::from_images(sweep.images(survival));
        let pool = import(&sim, entropy.next_u64()).map_err(|error| failed(format!("import: {error}")))?;
        let found = stamped(&pool).map_err(failed)?;
        if found < promised {
            return Err(failed(format!("state {promised} was promised, {found} is there")));
        }
        let is_before = states[found].is_rolled_back
            && found > promised
            && trees(&pool, &blocks).map_err(failed)? == states[found - 1].trees;
        let state = states[found - usize::from(is_before)].clone();
        heal(&pool, &rotten).map_err(failed)?;
        whole(&pool, &state).and_then(|_| verify(&pool, &state, &blocks)).map_err(failed)?;
        let mut after = Bed {
            sim,
            pool: Some(pool),
            entropy: SeededEntropy::new(entropy.next_u64()),
            blocks: blocks.until(state.born),
            states: vec![state.clone()],
            state,
            imports: entropy.next_u64() % (1 << 32),
            ballast,
            room: true,
            hits: 0,
            has_copies,
            rotten: rotten.clone(),
        };
        after.restart();
        let start = after.sim.trace().len();
        after.run(steps, &mut Coverage::new());
        let whole = after.finish();
        let whole = whole.and_then(|()| if again > 0 { cut(after, start, again, steps, 0) } else { Ok(()) });
        whole.map_err(|why| failed(format!("after it: {why}")))?;
    }
    Ok(())
}

/// One seed: `steps` of a workload, `cuts` power cuts in it, and after each some more of both.
pub fn run(seed: u64, steps: usize, cuts: usize, coverage: &mut Coverage) -> Result<(), String> {
    let (word, count) = LAYOUTS[seed as usize % LAYOUTS.len()];
    let failed = |why: String| format!("{word} of {count}, seed {seed}, {steps} steps: {why}");
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = create(&sim, word);
    let entropy = SeededEntropy::new(seed ^ 0x5eed);
    // With little memory the queue does not fit and is swept for.
    let memory = [2 << 20, 64 << 10, 4 << 10][entropy.next_u64() as usize % 3];
    pool.set_pool_property("memory", &memory.to_string()).unwrap();
    let mut state = State::default();
    state.trees.insert("tank".into(), Tree::default());
    let autotrim = ["on", "on", "off"][entropy.next_u64() as usize % 3];
    pool.set_pool_property("autotrim", autotrim).unwrap();
    // Datasets inherit it until it is switched for one.
    let dedup = ["off", "off", "on", "verify"][entropy.next_u64() as usize % 4];
    pool.set_property(larder_pool::ROOT_DATASET, "dedup", dedup).unwrap();
    let has_copies = seed / LAYOUTS.len() as u64 % 3 == 1;
    if has_copies {
        let copies = 1 + entropy.next_u64() % 3;
        pool.set_property(larder_pool::ROOT_DATASET, "copies", &copies.to_string()).unwrap();
    }
    pool.commit().unwrap();
    let mut start = sim.trace().len();
    let mut bed = Bed {
        sim,
        pool: Some(pool),
        entropy,
        blocks: Blocks::default(),
        states: vec![state.clone()],
        state,
        imports: 0,
        ballast: 0,
        room: true,
        hits: 0,
        has_copies,
        rotten: BTreeSet::new(),
    };
    // Few, for these take their time.
    if seed % 97 == 7 {
        bed.fill();
        bed.states = vec![bed.state.clone()];
        start = bed.sim.trace().len();
    }
    bed.run(steps, coverage);
    bed.finish().map_err(failed)?;
    cut(bed, start, cuts, steps / 4, usize::from(seed.is_multiple_of(4))).map_err(failed)
}
