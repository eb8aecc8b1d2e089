//! All that must hold of a pool, whatever was done to it.

use crate::common::{Kept, read_twice};
use crate::model::{Blocks, Files, Piece, State, Tree, Trees};
use crate::work::{STAMP, is_content};
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::run::Marks;
use larder_format::{BlockId, BlockPtr};
use larder_pool::{Look, Pool, PoolError};
use larder_sorted::map::Location;
use larder_upkeep::ScrubSince;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// The extents of a tree, each of whose blocks can be read and is what the model stored.
fn files(pool: &Pool, look: &dyn Look, blocks: &Blocks) -> Result<Files, String> {
    let mut extents: Vec<(Key, Vec<u8>)> = Vec::new();
    look.scan(&Key::MIN, &mut |key, value| {
        if key.kind == EXTENT {
            extents.push((*key, value.to_vec()));
        }
        ControlFlow::Continue(())
    })
    .map_err(|error| error.to_string())?;
    let mut files = Files::new();
    for (key, value) in extents {
        let extent = Extent::decode(&value).map_err(|corrupt| corrupt.to_string())?;
        let id = extent.ptr.id;
        let Some(&version) = blocks.by_id.get(&id) else {
            return Err(format!("block {id} was never stored"));
        };
        let plain = read_twice(pool, &extent).map_err(|error| format!("block {id}: {error}"))?;
        if plain.len() != extent.logical as usize || !is_content(blocks.letters[version], &plain) {
            return Err(format!("block {id} holds something else"));
        }
        let Extent { len, copies, block_offset: from, .. } = extent;
        files.insert((key.object, key.offset), Piece { version, from, len, copies });
    }
    Ok(files)
}

/// All that a pool holds.
pub fn trees(pool: &Pool, blocks: &Blocks) -> Result<Trees, String> {
    let mut trees = Trees::new();
    for dataset in pool.datasets() {
        let head = files(pool, &dataset.view().map_err(|error| error.to_string())?, blocks)?;
        let mut snapshots = Vec::new();
        for snapshot in pool.snapshots(dataset.id()) {
            let view = pool.snapshot_view(dataset.id(), &snapshot.name).map_err(|error| error.to_string())?;
            snapshots.push((snapshot.name, snapshot.high, files(pool, &view, blocks)?));
        }
        trees.insert(pool.full_name(dataset.id()), Tree { head, snapshots });
    }
    Ok(trees)
}

/// Each block can be read, and after a scrub at all its places.
pub fn heal(pool: &Kept, rotten: &BTreeSet<BlockId>) -> Result<(), String> {
    if rotten.is_empty() {
        return Ok(());
    }
    let failed = |error: PoolError| format!("heal: {error}");
    let upkeep = &pool.upkeep;
    for turn in 0..3 {
        // One may be under way.
        while upkeep.scrub.step(64 << 20).map_err(failed)? {}
        upkeep.scrub.start(ScrubSince::All).map_err(failed)?;
        while upkeep.scrub.step(64 << 20).map_err(failed)? {}
        loop {
            let repaired = upkeep.read_repair.step().map_err(failed)?;
            if !upkeep.damage.step(64).map_err(failed)? && repaired == 0 {
                break;
            }
        }
        for _ in 0..4 {
            pool.commit().map_err(failed)?;
        }
        let found = upkeep.scrub.result().ok_or("the scrub has no result")?;
        if found.lost > 0 || turn == 2 && found.repaired > 0 {
            return Err(format!("scrub {turn}: {found:?}"));
        }
    }
    let known = upkeep.damage.known();
    if !known.is_empty() {
        return Err(format!("damaged: {known:?}"));
    }
    let is_live = |marks: Marks| !marks.contains(Marks::DEAD) || marks.contains(Marks::SHARED);
    let blocks = pool.blocks().map_err(failed)?;
    for (id, entry) in blocks.into_iter().filter(|(_, entry)| is_live(entry.marks)) {
        for &place in entry.places() {
            pool.store()
                .read_at(BlockPtr { id, place })
                .map_err(|error| format!("{id} is not healed: {error}"))?;
        }
    }
    Ok(())
}

pub fn whole(pool: &Kept, state: &State) -> Result<u64, String> {
    match pool.upkeep.check() {
        Ok(report) if report.unindexed > 0 && !state.twice && pool.dedup_figures().dropped == 0 => {
            Err(format!("the index lacks {} blocks: {:?}", report.unindexed, pool.dedup_figures()))
        }
        Ok(mut report) => {
            // All blocks are read besides, at all their places.
            report
                .problems
                .retain(|what| !(state.is_rotten && what.ends_with("does not match its checksum")));
            if report.problems.is_empty() {
                return Ok(report.unreachable);
            }
            Err(format!("check: {}", report.problems.join("; ")))
        }
        Err(error) => Err(format!("check: {error}")),
    }
}

/// Destroyed datasets are taken down, the free queue is worked off, and what that changes is committed.
fn drain(pool: &Pool) -> Result<(), String> {
    // Remains of a snapshot wait for the commit that destroyed it.
    for _ in 0..=2 {
        while pool.destroy_step(5).map_err(|error| format!("destroy step: {error}"))? {}
        pool.commit().map_err(|error| format!("commit: {error}"))?;
    }
    if pool.remaining() > 0 {
        return Err("remains of a snapshot are left".into());
    }
    if !pool.destroyed().is_empty() {
        return Err("a destroyed dataset is left".into());
    }
    for _ in 0..10_000 {
        if !pool.free_step(2).map_err(|error| format!("free step: {error}"))? {
            return pool.commit().map(drop).map_err(|error| format!("commit: {error}"));
        }
    }
    Err("the free queue has no end".into())
}

/// The map knows every live block, and beyond them nothing but what was left to the trace; the segments' counts
/// are the sums of those, and slots are all accounted for.
fn accounted(
    pool: &Pool,
    state: &State,
    blocks: &Blocks,
    unreachable: u64,
    is_traced: bool,
) -> Result<(), String> {
    let (mut known, mut aliases) = (BTreeMap::new(), BTreeMap::new());
    let mut bytes = 0;
    for (id, entry) in pool.blocks().map_err(|error| error.to_string())? {
        let Some(&version) = blocks.by_id.get(&id).filter(|&&version| version < state.born) else {
            continue;
        };
        known.insert(version, entry.marks);
        match entry.location {
            // It may have been rewritten.
            Location::Places(places) => {
                bytes += places.iter().map(|place| u64::from(place.footprint())).sum::<u64>();
            }
            Location::Alias(to) => drop(aliases.insert(version, to)),
        }
        if entry.marks.contains(Marks::DEAD) {
            return Err(format!("block {id} is still marked as dead"));
        }
    }
    let mut live = state.live();
    for (alias, to) in aliases.iter().filter(|(alias, _)| state.live().contains(alias)) {
        let target =
            blocks.by_id.get(to).ok_or_else(|| format!("{alias} is an alias of {to}: never stored"))?;
        live.insert(*target);
    }
    if let Some(&lost) = live.iter().find(|version| !known.contains_key(version)) {
        return Err(format!("block {} is live, but was freed", blocks.all[lost].0.id));
    }
    let dead: Vec<_> = known.iter().filter(|(version, _)| !live.contains(version)).collect();
    // Whether a block is needed that had an alias, a trace finds.
    let is_left =
        |version, marks: Marks| state.left.contains(version) || !is_traced && marks.contains(Marks::ALIASED);
    if let Some(&(&leak, marks)) = dead.iter().find(|(version, marks)| !is_left(version, **marks)) {
        let id = blocks.all[leak].0.id;
        return Err(format!("block {id} was not shared, and is not freed: {marks:?}"));
    }
    let nodes = unreachable - dead.len() as u64;
    if nodes > 0 {
        return Err(format!("{nodes} nodes are not freed"));
    }
    let mut data_bytes = 0;
    for account in pool.store().accounts() {
        if account.free + account.data + account.metadata + account.waiting != account.slots {
            return Err(format!("slots do not add up: {account:?}"));
        }
        data_bytes += account.data_bytes;
    }
    if data_bytes != bytes {
        return Err(format!("segments count {data_bytes} bytes of records, the map has {bytes}"));
    }
    Ok(())
}

/// After a trace with nobody beside it, the map knows what is live and nothing else.
pub fn traced(pool: &Kept, mut state: State, blocks: &Blocks) -> Result<(), String> {
    let failed = |error: PoolError| format!("trace: {error}");
    // One that is under way began with what was there then.
    pool.upkeep.gc.stop().map_err(failed)?;
    pool.upkeep.gc.start().map_err(failed)?;
    while pool.upkeep.gc.step(4).map_err(failed)? {}
    let found = pool.upkeep.gc.findings().ok_or("a trace left no findings")?;
    if found.is_bad() {
        return Err(format!("the trace found {found:?}"));
    }
    drain(pool)?;
    let unreachable = whole(pool, &state)?;
    state.traced();
    if unreachable > 0 || pool.freeing().left_bytes() > 0 {
        let left = pool.freeing().left_bytes();
        return Err(format!(
            "after a trace {unreachable} blocks are unreachable, {left} bytes left to the next"
        ));
    }
    accounted(pool, &state, blocks, unreachable, true).map_err(|why| format!("after a trace: {why}"))
}

/// A pool that holds `state`: whole, with every content, and with nothing else once the queue is empty.
pub fn verify(pool: &Kept, state: &State, blocks: &Blocks) -> Result<(), String> {
    let found = trees(pool, blocks)?;
    if found != state.trees {
        return Err(format!("it holds {found:?} instead of {:?}", state.trees));
    }
    drain(pool)?;
    let unreachable = whole(pool, state)?;
    accounted(pool, state, blocks, unreachable, false)
}

/// The state that a pool is in, by its stamp.
pub fn stamped(pool: &Pool) -> Result<usize, String> {
    let root = pool.dataset_by_name("tank").map_err(|error| error.to_string())?;
    let stamp = root.view().and_then(|view| view.get(&STAMP)).map_err(|error| error.to_string())?;
    Ok(stamp.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes"))) as usize)
}
