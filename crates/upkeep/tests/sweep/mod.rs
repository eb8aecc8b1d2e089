//! Power is cut after every event of a seeded workload; what was promised must be there.

use crate::common::*;
use larder_device::{Entropy, SeededEntropy};
use larder_format::{BlockId, ByteLen, DeviceOffset};
use larder_pool::{Pool, PoolError, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};

/// Datasets below the root, with their compression.
type Datasets = std::collections::BTreeMap<String, String>;
/// Contents of a pool.
type State = (Model, Datasets);

/// Puts, commits and syncs by seed, now and then a change of datasets with a commit of its own. Notes each state that
/// the files go through, and after each promise marks the trace with the number of the state promised.
fn workload(pool: &Kept, sim: &SimWorld, states: &mut Vec<State>, seed: u64, steps: usize) {
    let entropy = SeededEntropy::new(seed);
    let next = |n: u64| entropy.next_u64() % n;
    let dataset = pool.dataset(ROOT_DATASET).unwrap();
    for _ in 0..steps {
        let (mut model, mut datasets) = states.last().unwrap().clone();
        // Commits find trees of destroyed datasets at every stage.
        pool.destroy_step(1 + next(3) as usize).unwrap();
        pool.upkeep.trim.step().unwrap();
        if next(6) == 0 {
            change_datasets(pool, &mut datasets, &next);
            states.push((model, datasets));
            pool.commit().unwrap();
            sim.mark(states.len() as u64 - 1);
            continue;
        }
        // One small file, or enough of them to fill a stripe.
        let version = states.len() as u64;
        let files: Vec<(u64, u64, usize)> = match next(4) {
            0 => (20..30).map(|inode| (inode, version, 1 + next(120_000) as usize)).collect(),
            _ => vec![(2 + next(5), version, 1 + next(120_000) as usize)],
        };
        put(pool, &dataset, &files);
        let op = pool.enter().unwrap();
        dataset
            .update(&op, |tree| {
                files.iter().for_each(|file| tree.log(logged(*file)));
                Ok::<_, PoolError>(())
            })
            .unwrap();
        drop(op);
        model.extend(files.iter().map(|file| (file.0, (file.1, file.2))));
        states.push((model, datasets));
        match next(6) {
            0 => drop(pool.commit().unwrap()),
            1 | 2 => pool.log_sync().unwrap(),
            _ => continue,
        }
        sim.mark(states.len() as u64 - 1);
    }
}

/// Makes, renames or destroys a dataset, or sets or inherits a property; some have a file of their own.
fn change_datasets(pool: &Pool, datasets: &mut Datasets, next: &impl Fn(u64) -> u64) {
    let name = format!("tank/d{}", next(3));
    let Ok(dataset) = pool.dataset_by_name(&name) else {
        let dataset = pool.create_dataset(&name, Default::default()).unwrap();
        if next(2) == 0 {
            put(pool, &dataset, &[(7, 1, 50_000), (8, 1, 200)]);
        }
        datasets.insert(name, "lz4".into());
        return;
    };
    match next(4) {
        0 => {
            pool.destroy_dataset(dataset.id()).unwrap();
            datasets.remove(&name);
        }
        1 => {
            let new = format!("tank/r{}", next(3));
            if pool.rename_dataset(dataset.id(), &new).is_ok() {
                let value = datasets.remove(&name).unwrap();
                datasets.insert(new, value);
            }
        }
        2 => {
            pool.set_property(dataset.id(), "compression", "zstd-3").unwrap();
            datasets.insert(name, "zstd-3".into());
        }
        _ => {
            pool.inherit_property(dataset.id(), "compression").unwrap();
            datasets.insert(name, "lz4".into());
        }
    }
}

/// The datasets of a pool below its root, with their compression.
fn datasets(pool: &Pool) -> Datasets {
    let all = pool.datasets().into_iter().filter(|dataset| dataset.id() != ROOT_DATASET);
    all.map(|dataset| {
        let value = pool.effective(dataset.id(), "compression").map_or(String::new(), |found| found.value);
        (pool.full_name(dataset.id()), value)
    })
    .collect()
}

fn whole(pool: &Kept) -> Result<(), String> {
    match pool.upkeep.check() {
        Ok(report) if report.problems.is_empty() => Ok(()),
        Ok(report) => Err(report.problems.join("; ")),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks after any cut: import, whole check, replay, every promise, whole check again, and a device that rots within
/// what the layout survives.
fn after_cut(
    after: &SimWorld,
    states: &[State],
    promised: usize,
    highest: BlockId,
    seed: u64,
) -> Result<(), String> {
    let pool = import(after, seed).map_err(|error| format!("import: {error}"))?;
    if pool.store().next_block() < highest {
        return Err(format!("ids come back: {} after {highest}", pool.store().next_block()));
    }
    whole(&pool).map_err(|problem| format!("after import: {problem}"))?;
    replay(&pool);
    while pool.destroy_step(3).map_err(|error| format!("destroy: {error}"))? {}
    pool.commit().map_err(|error| format!("commit: {error}"))?;
    if !pool.destroyed().is_empty() {
        return Err("a destroyed dataset is left".into());
    }
    if let Some(device) =
        (0..after.devices().len()).nth(seed as usize % 7).filter(|_| after.devices().len() > 1)
    {
        // Rot in the slots of one device: every layout of several devices here survives it.
        let rot = DeviceOffset::new(1 << 20);
        after.device(device).flip_bits(rot, 8 << 20, seed);
        pool.store().drop_caches();
    } else {
        whole(&pool).map_err(|problem| format!("after replay: {problem}"))?;
    }
    let found = contents(&pool)?;
    let found = (found, datasets(&pool));
    if !states[promised..].contains(&found) {
        return Err(format!("what state {promised} promised is lost"));
    }
    Ok(())
}

/// Runs a workload of `steps` on a pool of `word` and cuts after every `stride`-th event, with the
/// unflushed writes dropped and with some of them torn, kept and reordered; returns the number of cuts.
pub fn run(word: &str, count: usize, seed: u64, steps: usize, stride: usize) -> Result<usize, String> {
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let pool = create(&sim, word);
    pool.set_pool_property("autotrim", if seed.is_multiple_of(3) { "off" } else { "on" }).unwrap();
    let created = sim.trace().len();
    let mut states = vec![State::default()];
    workload(&pool, &sim, &mut states, seed, steps);
    let highest = pool.store().next_block();
    drop(pool);
    let trace = sim.trace();
    let mut sweep = trace.sweep();
    let mut cuts = 0;
    for cut in (created + seed as usize % stride..=trace.len()).step_by(stride) {
        sweep.advance_to(cut);
        let promised = trace.marks_before(cut).last().unwrap_or(0) as usize;
        for survival in [Survival::DropAll, Survival::Random { seed: seed ^ cut as u64 }] {
            cuts += 1;
            // Ids up to the highest may have been used only when everything had happened.
            let used = if cut == trace.len() { highest } else { BlockId::new(0) };
            let after = SimWorld::from_images(sweep.images(survival));
            after_cut(&after, &states, promised, used, cut as u64).map_err(|failure| {
                format!("{word} of {count}, seed {seed}, {steps} steps, cut {cut} ({survival:?}): {failure}")
            })?;
        }
    }
    Ok(cuts)
}
