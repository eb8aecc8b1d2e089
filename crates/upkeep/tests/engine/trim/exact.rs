//! A trim discards what is free, all of it, and nothing else: every request is held against the segments there are.

use crate::common;
use crate::common::Kept;
use crate::common::hooked::hooked;
use larder_device::{Entropy, Request, SeededEntropy};
use larder_format::segment::Slot;
use larder_format::{ByteLen, SlotIndex};
use larder_pool::Pool;
use larder_sim::SimWorld;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Offsets and lengths of discards.
pub type Log = Arc<Mutex<Vec<(u64, u64)>>>;

/// A pool on devices of which is noted what they are asked to discard.
pub fn watched(sim: &SimWorld, word: &str) -> (Kept, Vec<Log>) {
    let device = |inner| {
        let ((device, hook), log) = (hooked(inner), Log::default());
        let noted = Arc::clone(&log);
        hook.set(move |request| {
            if let Request::Discard { offset, len } = request {
                noted.lock().unwrap().push((offset.get(), len.get()));
            }
        });
        (device, log)
    };
    let (devices, logs) = sim.devices().into_iter().map(device).unzip();
    (common::create_on(devices, word), logs)
}

/// The slots of what was discarded since the last call, which are whole ones.
pub fn discarded(pool: &Pool, logs: &[Log]) -> Vec<Slot> {
    let mut slots = Vec::new();
    for (member, log) in pool.store().members().iter().zip(logs) {
        let (start, size) = (member.slot_offset(SlotIndex::new(0), 0).get(), u64::from(member.slot_size));
        for (offset, len) in std::mem::take(&mut *log.lock().unwrap()) {
            let from = offset.checked_sub(start).expect("labels are not discarded");
            assert!(from.is_multiple_of(size) && len.is_multiple_of(size), "{len} bytes at {offset}");
            let all = from / size..(from + len) / size;
            assert!(all.end <= u64::from(member.slot_count()), "{len} bytes at {offset}");
            slots.extend(all.map(|slot| Slot { device: member.index, index: SlotIndex::new(slot as u32) }));
        }
    }
    slots
}

/// The slots of all segments, of those as well that wait until they are free.
pub fn used(pool: &Pool) -> BTreeSet<Slot> {
    pool.store().segments().into_iter().flat_map(|record| record.slots).collect()
}

/// Files come and go with `autotrim` on.
pub fn run(seed: u64) -> Result<usize, String> {
    let (word, count) = common::LAYOUTS[seed as usize % common::LAYOUTS.len()];
    let sim = SimWorld::new(&vec![ByteLen::new(64 << 20); count]);
    let (pool, logs) = watched(&sim, word);
    pool.set_pool_property("autotrim", "on").unwrap();
    let rng = SeededEntropy::new(seed);
    let below = |n: u64| rng.next_u64() % n;
    let (mut model, mut trimmed, mut freed) = (common::Model::new(), 0, BTreeSet::new());
    for version in 0..40 {
        common::commit(&pool, &mut model, &common::files(10 + below(20), 1 + below(30), version));
        let before = used(&pool);
        if below(3) == 0 {
            pool.commit().unwrap();
        }
        freed.retain(|slot| !before.contains(slot));
        freed.extend(before.difference(&used(&pool)).copied());
        // Slots given back by the commits of other steps are met there.
        let all = below(2) == 0;
        while pool.upkeep.trim.step().unwrap().is_some() {
            let used = used(&pool);
            for slot in discarded(&pool, &logs) {
                if used.contains(&slot) {
                    return Err(format!("seed {seed}, {word}: {slot:?} is discarded and not free"));
                }
                freed.remove(&slot);
                trimmed += 1;
            }
            if !all {
                break;
            }
        }
        if all && let Some(slot) = freed.first() {
            return Err(format!("seed {seed}, {word}: {slot:?} was freed and is not discarded"));
        }
    }
    pool.store().drop_caches();
    common::verify(&pool, &model);
    let problems = pool.upkeep.check().unwrap().problems;
    problems.first().map_or(Ok(trimmed), |problem| Err(format!("seed {seed}, {word}: {problem}")))
}
