//! Pools with copies whose power is cut, and whose device of copies is not what it was.

use crate::common::*;
use larder_device::{Device, Entropy, SeededEntropy};
use larder_format::node::Key;
use larder_format::{ByteLen, DeviceOffset};
use larder_pool::{ImportOptions, ROOT_DATASET, World};
use larder_sim::{DeviceImage, SimWorld, Survival};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub const SIZE: ByteLen = ByteLen::new(64 << 20);

/// A pool on device 0 with copies on device 1.
pub fn cached(sim: &SimWorld) -> Kept {
    let pool = create_on(vec![Arc::new(sim.device(0)) as Arc<dyn Device>], "single");
    pool.upkeep.devices.add_cache(Arc::new(sim.device(1))).unwrap();
    fill(&pool);
    pool
}

/// Copies all that waits for it.
pub fn fill(pool: &Kept) {
    while pool.store().fill_read_cache() {}
}

/// Fates of the device with copies.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Gone,
    Blank,
    HourOld,
    AsItWas,
    Rotten,
    /// Somebody else imported the pool with it meanwhile.
    Elsewhere,
    /// The same, and gave out the same ids.
    Apart,
}

/// A life of a pool with copies, a cut, and an import with the device of copies in some state, or without it.
pub fn run(seed: u64) -> Result<usize, String> {
    use Fate::*;
    let fate = [Gone, Blank, HourOld, AsItWas, Rotten, Elsewhere, Apart][seed as usize % 7];
    let case = format!("seed {seed}, {fate:?}");
    let told = |error: &dyn std::fmt::Display| format!("{case}: {error}");
    let rng = SeededEntropy::new(seed);
    let sim = SimWorld::new(&[SIZE, SIZE]);
    let pool = cached(&sim);
    let (mut model, mut promised) = (Model::new(), Vec::new());
    let mut hour_old = sim.device(1).image();
    for round in 0..4 {
        commit(&pool, &mut model, &files(10 + rng.next_u64() % 40, 30, 1 + 2 * round));
        promised.push((sim.trace().len(), model.clone()));
        if round < 3 || rng.next_u64().is_multiple_of(2) {
            read_some(&pool, &rng, &model).map_err(|error| told(&error))?;
        }
        sync(&pool, &mut model, &files(20, 10, 2 + 2 * round));
        promised.push((sim.trace().len(), model.clone()));
        if round == 1 {
            hour_old = sim.device(1).image();
        }
    }
    drop(pool);
    let trace = sim.trace();
    // The last promise before the cut.
    let at = 1 + rng.next_u64() as usize % (promised.len() - 1);
    let cut = promised[at].0 + rng.next_u64() as usize % 3;
    let images = trace.crash_images(cut.min(trace.len()), Survival::Random { seed });
    let least = &promised[at].1;
    let own = images[1].clone();
    let copies = match fate {
        Gone => None,
        Blank => Some(DeviceImage::blank(SIZE)),
        HourOld => Some(hour_old),
        AsItWas => Some(own),
        Rotten => Some(rotten(own, &rng)),
        Elsewhere => Some(lived(&images, 0, seed)),
        Apart => Some(lived(&images, 1, seed)),
    };
    let mut image = images[0].clone();
    if let Apart = fate {
        // The pool lives on without it, with other content under the same ids.
        let sim = SimWorld::from_images(vec![image]);
        let world = World { entropy: Arc::new(Given::of(2, seed)), ..world(seed) };
        let pool = Kept::import(world, plan(sim.devices()), &ImportOptions::default())
            .map_err(|error| told(&error))?;
        replay(&pool);
        pool.commit().map_err(|error| told(&error))?;
        commit(&pool, &mut Model::new(), &files(500, 100, 78));
        drop(pool);
        image = sim.device(0).image();
    }
    let sim = SimWorld::from_images(std::iter::once(image).chain(copies).collect());
    let pool = import(&sim, 100 + seed).map_err(|error| told(&error))?;
    replay(&pool);
    pool.commit().map_err(|error| told(&error))?;
    fill(&pool);
    for _ in 0..2 {
        let mut found = contents(&pool).map_err(|error| told(&error))?;
        if let Apart = fate {
            let others: Vec<_> = found.range(500..).map(|(_, (version, _))| *version).collect();
            if others.len() != 100 || others.iter().any(|version| *version != 78) {
                return Err(told(&"what was written last is not there"));
            }
            found.retain(|inode, _| *inode < 500);
        }
        let lost = |(inode, (version, _)): &(&u64, &(u64, usize))| {
            found.get(inode).is_none_or(|now| now.0 < *version)
        };
        if let Some(lost) = least.iter().find(lost) {
            return Err(told(&format!("{lost:?} is lost")));
        }
        fill(&pool);
    }
    let problems = pool.upkeep.check().map_err(|error| told(&error))?.problems;
    problems.first().map_or(Ok(1), |problem| Err(told(problem)))
}

/// Of two records with the same bytes one rots where it lies, and there are copies of both: the other one stays.
pub fn counted(seed: u64) -> Result<usize, String> {
    let sim = SimWorld::new(&[SIZE, SIZE]);
    let pool = cached(&sim);
    let mut model = Model::new();
    commit(&pool, &mut model, &files(10, 12, seed));
    let twin = pool.create_dataset("tank/twin", Default::default()).unwrap();
    put(&pool, &twin, &files(10, 12, seed));
    pool.commit().unwrap();
    let records = |dataset| {
        let tree = pool.trees_of(dataset)[0];
        pool.tree_records(dataset, tree, Key::MIN).unwrap().records
    };
    let both = [records(ROOT_DATASET), records(twin.id())];
    for _ in 0..4 {
        pool.store().drop_caches();
        both.iter().flatten().for_each(|ptr| drop(pool.store().read(*ptr).unwrap()));
        fill(&pool);
    }
    for ptr in &both[0] {
        let lies = pool.store().whereabouts(ptr.id).unwrap().unwrap();
        sim.device(0).flip_bits(lies.copies[0].1, 64, 7 + seed);
    }
    pool.store().drop_caches();
    pool.use_index(true);
    let [first, second] = both;
    let shared = pool.share_records(first).unwrap().changed + pool.share_records(second).unwrap().changed;
    pool.use_index(false);
    if shared > 0 { Err(format!("seed {seed}: {shared} records gave up their places")) } else { Ok(1) }
}

/// Reads all, or some parts, and has copies made; or has them made of less than was read.
fn read_some(pool: &Kept, rng: &SeededEntropy, model: &Model) -> Result<(), String> {
    if contents(pool)? != *model {
        return Err("other content".into());
    }
    for _ in 0..rng.next_u64() % 4 {
        pool.store().fill_read_cache();
    }
    Ok(())
}

/// Rot all over it, but in the labels.
fn rotten(mut image: DeviceImage, rng: &SeededEntropy) -> DeviceImage {
    for mib in 1..62_u64 {
        let at = (mib << 20) + rng.next_u64() % (1 << 20) / 4096 * 4096;
        image.flip_bits(DeviceOffset::new(at), 64 << 10, rng.next_u64());
    }
    image
}

/// The device with copies after somebody imported all of the pool, and wrote other things.
fn lived(images: &[DeviceImage], who: u64, seed: u64) -> DeviceImage {
    let sim = SimWorld::from_images(images.to_vec());
    let entropy: Arc<dyn Entropy> =
        if who == 0 { Arc::new(SeededEntropy::new(900 + seed)) } else { Arc::new(Given::of(who, seed)) };
    let world = World { entropy, ..world(seed) };
    let pool = Kept::import(world, plan(sim.devices()), &ImportOptions::default()).unwrap();
    replay(&pool);
    pool.commit().unwrap();
    fill(&pool);
    commit(&pool, &mut Model::new(), &files(500, 100, 77));
    for _ in 0..3 {
        contents(&pool).unwrap();
        fill(&pool);
    }
    pool.commit_export().unwrap();
    sim.device(1).image()
}

/// Randomness of one of several imports that give out the same ids.
struct Given {
    first: [u64; 3],
    given: AtomicUsize,
    rest: SeededEntropy,
}

impl Given {
    fn of(who: u64, seed: u64) -> Self {
        Self { first: [7000 + who, 5, 5], given: AtomicUsize::new(0), rest: SeededEntropy::new(seed) }
    }
}

impl Entropy for Given {
    fn next_u64(&self) -> u64 {
        let at = self.given.fetch_add(1, Ordering::Relaxed);
        self.first.get(at).copied().unwrap_or_else(|| self.rest.next_u64())
    }
}
