//! Common to engine tests: pools on simulated devices, and "files" that are one extent each.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod hooked;
pub mod recorded;

use larder_device::{Device, Inline, SeededEntropy};
use larder_format::checksum::ChecksumKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{ByteLen, HostId};
use larder_pool::cache::Record;
use larder_pool::codec::Codec;
use larder_pool::create::rule_for;
use larder_pool::open::{Importable, Scan, assemble, scan};
use larder_pool::{
    Dataset, GroupSpec, ImportOptions, Look, NewRecord, Pool, PoolError, PoolSpec, ROOT_DATASET, World,
};
use larder_sim::{SimClock, SimWorld};
use larder_upkeep::Upkeep;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

pub fn world(seed: u64) -> World {
    World {
        clock: Arc::new(SimClock::new()),
        entropy: Arc::new(SeededEntropy::new(seed)),
        workers: Arc::new(Inline),
        host: HostId::new(1),
        host_name: "sim".into(),
    }
}

/// A pool, and what keeps it well.
#[derive(Clone)]
pub struct Kept {
    pool: Arc<Pool>,
    pub upkeep: Arc<Upkeep>,
}

impl Kept {
    pub fn of(pool: Arc<Pool>) -> Self {
        Self { upkeep: Upkeep::new(&pool), pool }
    }

    pub fn create(world: World, spec: PoolSpec) -> Result<Self, PoolError> {
        Pool::create(world, spec).map(Self::of)
    }

    pub fn import(world: World, plan: Importable, options: &ImportOptions) -> Result<Self, PoolError> {
        Pool::import(world, plan, options).map(Self::of)
    }
}

impl Deref for Kept {
    type Target = Arc<Pool>;
    fn deref(&self) -> &Arc<Pool> {
        &self.pool
    }
}

pub fn create(sim: &SimWorld, word: &str) -> Kept {
    create_on(sim.devices(), word)
}

pub fn create_on(devices: Vec<Arc<dyn Device>>, word: &str) -> Kept {
    create_by(&Arc::new(SimClock::new()), devices, word)
}

/// A pool whose time is in the test's hands.
pub fn create_by(clock: &Arc<SimClock>, devices: Vec<Arc<dyn Device>>, word: &str) -> Kept {
    let rule = rule_for(word, devices.len()).unwrap();
    let groups = vec![GroupSpec::data(rule, devices)];
    let world = World { clock: Arc::clone(clock) as _, ..world(1) };
    Kept::create(world, PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap()
}

pub fn import(sim: &SimWorld, seed: u64) -> Result<Kept, PoolError> {
    import_from(sim.devices(), seed)
}

pub fn import_from(devices: Vec<Arc<dyn Device>>, seed: u64) -> Result<Kept, PoolError> {
    Kept::import(world(seed), plan(devices), &ImportOptions::default())
}

/// The one pool that can be imported from these devices.
pub fn plan(devices: Vec<Arc<dyn Device>>) -> Importable {
    let mut plans = plans(devices);
    assert_eq!(plans.len(), 1, "one pool is there");
    plans.remove(0)
}

/// The pools on these devices.
pub fn plans(devices: Vec<Arc<dyn Device>>) -> Vec<Importable> {
    let found = devices.into_iter().filter_map(|device| match scan(&device) {
        Scan::Member(found) => Some(*found),
        _ => None,
    });
    assemble(found.collect())
}

/// `count` files from number `from` on, of different lengths.
pub fn files(from: u64, count: u64, version: u64) -> Vec<(u64, u64, usize)> {
    (from..from + count).map(|i| (i, version, 1 + (i as usize * 9_176 + version as usize) % 90_000)).collect()
}

/// Asks for so many places of what is stored from now on.
pub fn ask_copies(pool: &Pool, copies: usize) {
    pool.set_property(ROOT_DATASET, "copies", &copies.to_string()).unwrap();
}

/// Puts `files` under their numbers into a pool and its model, and commits.
pub fn commit(pool: &Pool, model: &mut Model, files: &[(u64, u64, usize)]) {
    put(pool, &pool.dataset(ROOT_DATASET).unwrap(), files);
    model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
    pool.commit().unwrap();
}

/// Puts files and syncs them by the log.
pub fn sync(pool: &Pool, model: &mut Model, files: &[(u64, u64, usize)]) {
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    put(pool, &dataset, files);
    model.extend(files.iter().map(|&(inode, version, len)| (inode, (version, len))));
    let op = pool.enter().unwrap();
    let note = dataset.update(&op, |tree| {
        files.iter().for_each(|file| tree.log(logged(*file)));
        Ok::<_, PoolError>(())
    });
    note.unwrap();
    drop(op);
    pool.log_sync().unwrap();
}

pub fn assert_whole(pool: &Kept, case: &str) {
    let report = pool.upkeep.check().unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(report.problems.is_empty(), "{case}: {:#?}", report.problems);
    recorded::assert_told(pool, case);
}

/// Half-compressible bytes that say which file and version they are.
pub fn content(inode: u64, version: u64, len: usize) -> Vec<u8> {
    let mut state = inode * 1_000_003 + version;
    let mut bytes: Vec<u8> = (0..len)
        .map(|i| {
            if i % 3 != 0 {
                return 7;
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let stamp = version.to_le_bytes();
    let short = len.min(stamp.len());
    bytes[..short].copy_from_slice(&stamp[..short]);
    bytes
}

/// The version that some content says it is.
pub fn version_of(content: &[u8]) -> u64 {
    let mut stamp = [0; 8];
    let short = content.len().min(stamp.len());
    stamp[..short].copy_from_slice(&content[..short]);
    u64::from_le_bytes(stamp)
}

pub fn put(pool: &Pool, dataset: &Dataset, files: &[(u64, u64, usize)]) {
    try_put(pool, dataset, files).unwrap();
}

/// Some files are not compressed, so that large ones have frames.
fn codec_of(inode: u64) -> Codec {
    if inode.is_multiple_of(3) { Codec::Off } else { Codec::Lz4 }
}

/// A record, after a small part of it was read.
pub fn read_twice(pool: &Pool, extent: &Extent) -> Result<Record, PoolError> {
    let len = extent.logical / 5;
    let at = (extent.ptr.id.get() % 5) as u32 * len;
    let part = pool.store().part_of(extent, at..at + len)?;
    let whole = pool.store().read(extent.ptr)?;
    assert!(whole[at as usize..(at + len) as usize] == part[..], "block {} from {at}", extent.ptr.id);
    Ok(whole)
}

/// Parts of a record, of which some may be damaged: what is given is right.
pub fn assert_parts(pool: &Pool, extent: &Extent, wanted: &[u8]) {
    for at in (0..extent.logical).step_by(10_000) {
        let range = at..extent.logical.min(at + 3000);
        let right = &wanted[range.start as usize..range.end as usize];
        if let Ok(part) = pool.store().sound_part_of(extent, range) {
            assert!(part[..] == *right, "block {} from {at}", extent.ptr.id);
        }
    }
}

/// Puts files, as long as the pool takes them.
pub fn try_put(pool: &Pool, dataset: &Dataset, files: &[(u64, u64, usize)]) -> Result<(), PoolError> {
    let op = pool.enter()?;
    let record = |&(inode, version, len): &(u64, u64, usize)| NewRecord {
        dataset: dataset.id(),
        inode,
        offset: 0,
        plain: content(inode, version, len).into(),
        codec: codec_of(inode),
        encoded: None,
        checksum: ChecksumKind::Fast,
        dedup: dataset.settings().dedup,
        copies: dataset.settings().copies,
        replaces: None,
    };
    let ptrs = pool.store_records(&op, files.iter().map(record).collect())?;
    dataset.update(&op, |tree| {
        for (&(inode, _, len), ptr) in files.iter().zip(&ptrs) {
            let key = Key::new(inode, EXTENT, 0);
            if let Some(old) = tree.get(&key)? {
                let old = Extent::decode(&old)?;
                tree.drop_block(&old);
            }
            let (len, copies) = (len as u32, dataset.settings().copies);
            let extent = Extent { ptr: *ptr, len, block_offset: 0, logical: len, placed: 0, copies };
            tree.insert(key, &extent.encode())?;
            tree.link_block(&extent);
        }
        Ok::<_, PoolError>(())
    })
}

pub fn verify(pool: &Pool, model: &Model) {
    pool.store().drop_caches();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for (&inode, &(version, len)) in model {
        let value =
            dataset.view().unwrap().get(&Key::new(inode, EXTENT, 0)).unwrap().expect("the file is there");
        let extent = Extent::decode(&value).unwrap();
        let plain = read_twice(pool, &extent).unwrap_or_else(|error| panic!("file {inode}: {error}"));
        assert_eq!(&plain[..], content(inode, version, len), "file {inode}");
    }
}

/// Layout words with numbers of devices.
pub const LAYOUTS: [(&str, usize); 8] = [
    ("single", 1),
    ("mirror", 2),
    ("mirror", 3),
    ("raidz1", 3),
    ("raidz2", 6),
    ("raidz3", 7),
    ("raid10", 4),
    ("raid14", 5),
];

pub fn open(sim: &SimWorld, seed: u64) -> Kept {
    import(sim, seed).unwrap_or_else(|error| panic!("import: {error}"))
}

/// The pool whose time is in the test's hands.
pub fn open_by(clock: &Arc<SimClock>, sim: &SimWorld, seed: u64) -> Kept {
    let world = World { clock: Arc::clone(clock) as _, ..world(seed) };
    Kept::import(world, plan(sim.devices()), &ImportOptions::default())
        .unwrap_or_else(|error| panic!("import: {error}"))
}

/// Applies operations found in the log: each is inode, version, length.
pub fn replay(pool: &Pool) -> usize {
    let ops = pool.take_replay();
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for (_, op) in &ops {
        let number = |i: usize| u64::from_le_bytes(op[i * 8..i * 8 + 8].try_into().unwrap());
        put(pool, &dataset, &[(number(0), number(1), number(2) as usize)]);
    }
    pool.replayed();
    ops.len()
}

pub fn logged(file: (u64, u64, usize)) -> Vec<u8> {
    [file.0, file.1, file.2 as u64].iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Expected contents of each file: version and length.
pub type Model = BTreeMap<u64, (u64, usize)>;

/// Every layout, or two of them unless `LARDER_FULL` is set: for tests that move much data.
pub fn layouts() -> Vec<(&'static str, usize)> {
    let full = std::env::var_os("LARDER_FULL").is_some();
    LAYOUTS.into_iter().filter(|(word, _)| full || ["single", "raidz2"].contains(word)).collect()
}

/// Repetitions: `quick`, twice that where `LARDER_FULL` is set, and `full` where `LARDER_LARGE` is.
pub fn repeats(quick: u64, full: u64) -> u64 {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    match (is_set("LARDER_LARGE"), is_set("LARDER_FULL")) {
        (true, _) => full,
        (_, true) => full.min(2 * quick),
        _ => quick,
    }
}

/// Notes an operation of the root dataset and syncs it.
pub fn sync_op(pool: &Pool, operation: Vec<u8>) {
    let op = pool.enter().unwrap();
    let note = |tree: &mut larder_pool::Update<'_>| {
        tree.log(operation);
        Ok::<_, PoolError>(())
    };
    pool.dataset(ROOT_DATASET).unwrap().update(&op, note).unwrap();
    drop(op);
    pool.log_sync().unwrap();
}

/// Takes files away, as long as the pool lets it.
pub fn try_remove(pool: &Pool, dataset: &Dataset, inodes: &[u64]) -> Result<(), PoolError> {
    let op = pool.enter()?;
    dataset.update(&op, |tree| {
        for &inode in inodes {
            let key = Key::new(inode, EXTENT, 0);
            if let Some(old) = tree.get(&key)? {
                let old = Extent::decode(&old)?;
                tree.drop_block(&old);
                tree.remove(&key)?;
            }
        }
        Ok::<_, PoolError>(())
    })
}

/// The files of a pool; an error when one has not the content that its length and version say.
pub fn contents(pool: &Pool) -> Result<Model, String> {
    pool.store().drop_caches();
    let dataset = pool.dataset(ROOT_DATASET).ok_or("no root dataset")?;
    let mut extents = Vec::new();
    let view = dataset.view().map_err(|error| error.to_string())?;
    view.scan(&Key::MIN, &mut |key, value| {
        extents.push((key.object, Extent::decode(value)));
        ControlFlow::Continue(())
    })
    .map_err(|error| error.to_string())?;
    let mut found = Model::new();
    for (inode, extent) in extents {
        let extent = extent.map_err(|error| error.to_string())?;
        let plain = read_twice(pool, &extent).map_err(|error| format!("file {inode}: {error}"))?;
        let version = version_of(&plain);
        if plain[..] != content(inode, version, plain.len()) {
            return Err(format!("file {inode} is torn"));
        }
        found.insert(inode, (version, plain.len()));
    }
    Ok(found)
}

/// A device of tests of imports.
pub const SIZE: ByteLen = ByteLen::new(64 << 20);

/// A pool of some commits, closed without an export.
pub fn written(word: &str, count: usize) -> (SimWorld, Model) {
    let sim = SimWorld::new(&vec![SIZE; count]);
    let pool = create(&sim, word);
    let mut model = Model::new();
    for version in 1..4 {
        commit(&pool, &mut model, &[(10, version, 50_000), (10 + version, version, 3_000)]);
    }
    drop(pool);
    (sim, model)
}

pub fn refused(result: Result<Kept, PoolError>) -> String {
    result.err().expect("a refusal").to_string()
}

/// A plan that is refused in words that hold all of `words`, with nothing written.
pub fn assert_refused(sim: &SimWorld, words: &[&str]) {
    let before = sim.images();
    let text = refused(import(sim, 9));
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert!(sim.images() == before, "a refused import wrote");
}

/// Version and length of every file that a tree has.
pub fn versions(look: &impl Look, pool: &Pool) -> Model {
    let mut found = Vec::new();
    look.scan(&Key::MIN, &mut |key, value| {
        found.push((key.object, Extent::decode(value).unwrap()));
        ControlFlow::Continue(())
    })
    .unwrap();
    let of = |(inode, extent): (u64, Extent)| {
        let plain = pool.store().read(extent.ptr).unwrap();
        (inode, (version_of(&plain), plain.len()))
    };
    found.into_iter().map(of).collect()
}
