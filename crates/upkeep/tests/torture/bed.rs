//! A pool at work on devices in trouble, and all that is known of both.
//!
//! Every change of the files is one operation, with the number of the state that it leads to in the tree and in the
//! log: what a power cut leaves tells which state it is, and must be exactly that.
//!
//! *Harm* is kept per place: from the moment at which something may be wrong with what its device holds or answers,
//! until everything was resilvered and scrubbed. Harm is done only to places whose loss the pool would survive
//! together with all that are harmed already, by the rules of its groups and by the layout of every segment that
//! there is at that moment; then nothing may be lost, whatever happens in detail. Places come and go as groups change
//! their shape.

use crate::common::Kept;
use crate::common::{Model, assert_whole, content, plan, read_twice, world};
use crate::seeds::setting;
use crate::shape::Shape;
use larder_device::{Device, Entropy, SeededEntropy};
use larder_format::checksum::ChecksumKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::segment::SegmentState;
use larder_format::{DeviceIndex, GroupIndex};
use larder_pool::codec::Codec;
use larder_pool::{Dedup, ImportOptions, Look, NewRecord, Pool, PoolError, ROOT_DATASET, Update};
use larder_sim::{DeviceImage, SimDevice, SimWorld, Survival};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The key of the number of the state that the files are in.
const STAMP: Key = Key::new(1, 60, 0);
/// Inodes from here on hold what others hold as well.
const TWINS: u64 = 1000;

/// Number of times that each step ran.
pub type Coverage = BTreeMap<String, u64>;

/// One operation: files that come, with version and length, and files that go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    pub state: u64,
    pub puts: Vec<(u64, u64, usize)>,
    pub removes: Vec<u64>,
}

impl Change {
    fn encode(&self) -> Vec<u8> {
        let puts = self.puts.iter().flat_map(|put| [put.0, put.1, put.2 as u64]);
        let head = [self.state, self.puts.len() as u64];
        head.into_iter().chain(puts).chain(self.removes.iter().copied()).flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Self {
        let words: Vec<u64> =
            bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let (puts, removes) = words[2..].split_at(3 * words[1] as usize);
        let puts = puts.chunks(3).map(|put| (put[0], put[1], put[2] as usize)).collect();
        Self { state: words[0], puts, removes: removes.to_vec() }
    }
}

/// Contents of a file of some version.
pub fn bytes_of(inode: u64, version: u64, len: usize) -> Vec<u8> {
    if inode < TWINS { content(inode, version, len) } else { content(TWINS, version % 3, len) }
}

/// A place in the pool, and the device that stands in it.
#[derive(Default)]
pub struct Seat {
    /// The device's number in the simulation.
    pub device: usize,
    /// Something may be wrong with what it holds or answers.
    pub harmed: bool,
    /// Its contents at earlier times.
    pub past: Vec<DeviceImage>,
}

/// A pool, its devices, and what it must hold.
pub struct Bed {
    pub shape: Shape,
    pub sim: SimWorld,
    pub seats: BTreeMap<DeviceIndex, Seat>,
    /// Places whose devices were detached; a power cut may bring them back.
    pub left: BTreeMap<DeviceIndex, Seat>,
    /// Devices that no host finds.
    pub away: BTreeSet<usize>,
    pub pool: Option<Kept>,
    pub entropy: SeededEntropy,
    /// Every state that the files went through since the last power cut.
    pub states: Vec<Model>,
    imports: u64,
    pub coverage: Coverage,
    aloud: bool,
}

impl Bed {
    pub fn new(shape: Shape, seed: u64) -> Self {
        let sim = shape.world();
        let pool = shape.create(&sim);
        let seat = |device| (DeviceIndex::new(device as u16), Seat { device, ..Seat::default() });
        let entropy = SeededEntropy::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(77));
        if seed % 5 == 4 {
            pool.set_property(ROOT_DATASET, "dedup", "on").unwrap();
        }
        pool.set_pool_property("autotrim", if seed.is_multiple_of(3) { "off" } else { "on" }).unwrap();
        let seats = (0..shape.devices()).map(seat).collect();
        let states = vec![Model::new()];
        let pool = Some(pool);
        let mut bed = Self {
            shape,
            sim,
            seats,
            left: BTreeMap::new(),
            away: BTreeSet::new(),
            pool,
            entropy,
            states,
            imports: 0,
            coverage: Coverage::new(),
            aloud: setting("LARDER_TORTURE", 0) == 1,
        };
        bed.commit();
        bed
    }

    pub fn next(&self, n: u64) -> u64 {
        self.entropy.next_u64() % n
    }

    pub fn pool(&self) -> Kept {
        self.pool.clone().expect("the pool is imported")
    }

    pub fn model(&self) -> &Model {
        self.states.last().expect("there is always a state")
    }

    pub fn sim_of(&self, seat: DeviceIndex) -> SimDevice {
        self.sim.device(self.seats[&seat].device)
    }

    pub fn harmed(&self, seat: DeviceIndex) -> bool {
        self.seats.get(&seat).is_some_and(|seat| seat.harmed)
    }

    /// The place is harmed from now on.
    pub fn note_harm(&mut self, seat: DeviceIndex) {
        self.seats.get_mut(&seat).expect("there is such a place").harmed = true;
    }

    /// The places where `wanted` holds.
    pub fn places(&self, wanted: impl Fn(DeviceIndex) -> bool) -> Vec<DeviceIndex> {
        self.seats.keys().copied().filter(|&seat| wanted(seat)).collect()
    }

    /// One of the places where `wanted` holds.
    pub fn some_place(&self, wanted: impl Fn(DeviceIndex) -> bool) -> Option<DeviceIndex> {
        let places = self.places(wanted);
        (!places.is_empty()).then(|| places[self.next(places.len() as u64) as usize])
    }

    /// The places of a group that are columns of its rule.
    pub fn columns(&self, group: GroupIndex) -> Vec<DeviceIndex> {
        self.pool().store().members().of_group(group).map(|member| member.index).collect()
    }

    /// Whether nothing is lost when these places are: by the rules, and by the segments as they are.
    pub fn survives(&self, lost: impl Fn(DeviceIndex) -> bool) -> bool {
        let pool = self.pool();
        let groups = pool.store().groups().into_iter().all(|group| {
            let columns = self.columns(group.index);
            group.rule.layout.survives(|column| lost(columns[column]))
        });
        // A device that was sent away when it was gone is but a number in older segments, and holds nothing of them.
        let away: BTreeSet<_> = pool
            .store()
            .members()
            .iter()
            .filter(|member| member.is_leaving() && !member.is_written())
            .map(|member| member.index)
            .collect();
        let lost = |device: DeviceIndex| lost(device) || away.contains(&device);
        let segments = pool.store().segments();
        let mut in_use = segments.iter().filter(|segment| segment.state != SegmentState::Freed);
        groups && in_use.all(|segment| segment.layout.survives(|column| lost(segment.slots[column].device)))
    }

    /// Notes that something happened; a seed that runs alone tells its story.
    pub fn count(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.aloud {
            let harmed: Vec<_> =
                self.places(|seat| self.harmed(seat)).into_iter().map(|seat| seat.get()).collect();
            let members = self.pool.iter().flat_map(|pool| pool.store().members().iter());
            let out: Vec<_> = members
                .filter(|member| !member.is_online() || member.is_leaving())
                .map(|member| (member.index.get(), member.state(), member.is_leaving()))
                .collect();
            println!(
                "event {}: state {}: {what}; of {} harmed {harmed:?}, not in use or to leave {out:?}",
                self.sim.trace().len(),
                self.states.len() - 1,
                self.seats.len()
            );
        }
        *self.coverage.entry(what).or_default() += 1;
    }

    /// Whether `seat` may be harmed too.
    pub fn may_harm(&self, seat: DeviceIndex) -> bool {
        self.survives(|other| other == seat || self.harmed(other))
    }

    /// The state that the files are in is durable.
    pub fn promise(&self) {
        self.sim.mark(self.states.len() as u64 - 1);
    }

    pub fn change(&mut self, puts: Vec<(u64, u64, usize)>, removes: Vec<u64>) {
        let change = Change { state: self.states.len() as u64, puts, removes };
        let pool = self.pool();
        apply(&pool, &change, true).unwrap();
        let mut model = self.model().clone();
        model.extend(change.puts.iter().map(|put| (put.0, (put.1, put.2))));
        change.removes.iter().for_each(|inode| _ = model.remove(inode));
        self.states.push(model);
        self.count("change");
    }

    pub fn put(&mut self) {
        let version = self.states.len() as u64;
        let puts = match self.next(5) {
            // Enough to fill stripes.
            0 => (20..20 + 2 * self.shape.layout().k() as u64 + self.next(8))
                .map(|inode| (inode, version, 1 + self.next(90_000) as usize))
                .collect(),
            1 => (TWINS..TWINS + 4).map(|inode| (inode, version + inode, 30_000)).collect(),
            2 => (2..8).map(|inode| (inode, version, 1 + self.next(3_000) as usize)).collect(),
            _ => vec![(8 + self.next(8), version, 1 + self.next(120_000) as usize)],
        };
        self.change(puts, Vec::new());
    }

    pub fn remove(&mut self) {
        let all: Vec<u64> = self.model().keys().copied().collect();
        let removes = all.into_iter().filter(|_| self.next(5) == 0).collect();
        self.change(Vec::new(), removes);
    }

    pub fn commit(&mut self) {
        self.pool().commit().unwrap();
        self.promise();
        self.count("commit");
    }

    pub fn sync(&mut self) {
        self.pool().log_sync().unwrap();
        self.promise();
        self.count("log sync");
    }

    /// Every file is what it must be, read from the devices.
    pub fn verify(&self) {
        let pool = self.pool();
        pool.store().drop_caches();
        verify(&pool, self.model());
    }

    /// The devices that are there, as a host finds them; also those that were replaced.
    fn found(&self) -> Vec<Arc<dyn Device>> {
        let devices = self.sim.devices().into_iter().enumerate();
        devices.filter(|(device, _)| !self.away.contains(device)).map(|(_, device)| device).collect()
    }

    /// Imports what is there.
    pub fn import(&mut self) -> Result<(), PoolError> {
        self.imports += 1;
        let seed = self.next(1 << 40) + self.imports;
        self.pool = Some(Kept::import(world(seed), plan(self.found()), &ImportOptions::default())?);
        self.settle_in();
        Ok(())
    }

    pub fn export(&mut self) {
        self.pool().commit_export().unwrap();
        self.promise();
        self.pool = None;
    }

    /// The power fails at some event since `since`, and comes back.
    pub fn cut(&mut self, since: usize) {
        self.pool = None;
        let trace = self.sim.trace();
        let at = since + self.next((trace.len() - since) as u64 + 1) as usize;
        let survival = match self.next(3) {
            0 => Survival::DropAll,
            1 => Survival::KeepAll,
            _ => Survival::Random { seed: self.next(1 << 40) },
        };
        let promised = trace.marks_before(at).last().unwrap_or(0);
        self.sim = SimWorld::from_images(trace.crash_images(at, survival));
        self.import().unwrap_or_else(|error| panic!("import after a power cut: {error}"));
        let pool = self.pool();
        let mut found = stamp(&pool);
        for (_, operation) in pool.take_replay() {
            let change = Change::decode(&operation);
            apply(&pool, &change, false).unwrap();
            found = change.state;
        }
        pool.replayed();
        assert!(found >= promised, "state {promised} was promised, {found} is there");
        self.states = vec![self.states[found as usize].clone()];
        self.verify();
        // Numbers begin anew.
        apply(&pool, &Change::default(), false).unwrap();
        self.commit();
    }

    /// The contents of the devices are whole.
    pub fn assert_whole(&self, when: &str) {
        assert_whole(&self.pool(), when);
    }
}

/// Every file of a pool is what it must be.
pub fn verify(pool: &Pool, model: &Model) {
    for (&inode, &(version, len)) in model {
        let extent = extent(pool, inode).unwrap_or_else(|error| panic!("file {inode}: {error}"));
        let read = read_twice(pool, &extent).unwrap_or_else(|error| panic!("file {inode}: {error}"));
        assert!(read[..] == bytes_of(inode, version, len), "file {inode} is not version {version}");
    }
}

fn stamp(pool: &Pool) -> u64 {
    let value = pool.dataset(ROOT_DATASET).unwrap().view().unwrap().get(&STAMP).unwrap();
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

/// The extent of a file in the tree.
pub fn extent(pool: &Pool, inode: u64) -> Result<Extent, PoolError> {
    let value = pool.dataset(ROOT_DATASET).unwrap().view()?.get(&Key::new(inode, EXTENT, 0))?;
    Ok(Extent::decode(&value.ok_or(PoolError::NotFound(format!("file {inode}")))?)?)
}

/// Makes a change, as one operation.
pub fn apply(pool: &Pool, change: &Change, log: bool) -> Result<(), PoolError> {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    let op = pool.enter()?;
    let dedup = dataset.settings().dedup;
    let record = |&(inode, version, len): &(u64, u64, usize)| NewRecord {
        dataset: dataset.id(),
        inode,
        offset: 0,
        plain: bytes_of(inode, version, len).into(),
        codec: if version % 3 == 0 { Codec::Off } else { Codec::Lz4 },
        encoded: None,
        checksum: ChecksumKind::Fast,
        dedup: if inode >= TWINS { dedup } else { Dedup::Off },
        copies: dataset.settings().copies,
        replaces: None,
    };
    let ptrs = pool.store_records(&op, change.puts.iter().map(record).collect())?;
    dataset.update(&op, |tree| {
        for (&(inode, _, len), ptr) in change.puts.iter().zip(&ptrs) {
            drop_file(tree, inode)?;
            let (len, copies) = (len as u32, dataset.settings().copies);
            let extent = Extent { ptr: *ptr, len, block_offset: 0, logical: len, placed: 0, copies };
            tree.insert(Key::new(inode, EXTENT, 0), &extent.encode())?;
            tree.link_block(&extent);
        }
        for &inode in &change.removes {
            drop_file(tree, inode)?;
        }
        tree.insert(STAMP, &change.state.to_le_bytes())?;
        if log {
            tree.log(change.encode());
        }
        Ok::<_, PoolError>(())
    })
}

fn drop_file(tree: &mut Update<'_>, inode: u64) -> Result<(), PoolError> {
    let key = Key::new(inode, EXTENT, 0);
    if let Some(old) = tree.get(&key)? {
        let old = Extent::decode(&old)?;
        tree.drop_block(&old);
        tree.remove(&key)?;
    }
    Ok(())
}
