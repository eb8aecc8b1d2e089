//! Synced data is there after a power cut, whatever devices come and go beside it: attached, detached, replaced,
//! added as spares or as groups. It is also on the one device that stays, if that can be imported alone.

use crate::bed::{Bed, ROOT};
use crate::cuts::{committing, rest, task};
use crate::setting;
use larder_device::{Device, Entropy, SeededEntropy};
use larder_format::{ByteLen, DeviceIndex};
use larder_pool::create::rule_for;
use larder_pool::open::{Scan, assemble, scan};
use larder_pool::{GroupSpec, PoolError};
use larder_sim::{DeviceImage, SimClock, SimWorld, Survival, Trace};
use larder_sync::schedule::{self, Plan, Switching, Task};
use std::sync::Arc;

pub const SIZE: ByteLen = ByteLen::new(64 << 20);
pub const FILES: u64 = 2;
const VERSIONS: u64 = 12;
/// Changes of devices, each with the device that stays a member all the time.
const WAYS: [(&str, usize); 4] = [("attach", 0), ("replace", 1), ("spare", 0), ("group", 0)];

fn changing<'a>(bed: &'a Bed, way: &'a str) -> Task<'a> {
    task(way, move || {
        let device = |index| Arc::new(bed.sim.device(index)) as Arc<dyn Device>;
        let to_the_end = |step: &dyn Fn() -> Result<bool, PoolError>| {
            while step().unwrap() {
                rest(5);
            }
        };
        let upkeep = &bed.upkeep;
        match way {
            "attach" => {
                upkeep.reshape.attach(DeviceIndex::new(0), vec![device(2)]).unwrap();
                to_the_end(&|| upkeep.reshape.step(1 << 20));
                upkeep.reshape.detach(DeviceIndex::new(1)).unwrap();
                to_the_end(&|| upkeep.reshape.step(1 << 20));
            }
            "replace" => {
                upkeep.devices.replace(DeviceIndex::new(0), device(2)).unwrap();
                to_the_end(&|| upkeep.resilver.step(1 << 20));
            }
            "spare" => {
                let spare = upkeep.devices.add_spare(device(2)).unwrap();
                rest(60);
                upkeep.reshape.remove(spare).unwrap();
            }
            _ => {
                let devices = vec![device(2), device(3)];
                upkeep.reshape.add_group(GroupSpec::data(rule_for("mirror", 2).unwrap(), devices)).unwrap();
            }
        }
    })
}

/// A writer of one of the files, who syncs each version and marks it as promised.
pub fn writing(bed: &Bed, seed: u64, file: u64) -> Task<'_> {
    task("writer", move || {
        let entropy = SeededEntropy::new(seed ^ (file + 1) << 32);
        let node = bed.find(&format!("file{file}")).unwrap().node;
        for version in 1..=VERSIONS {
            bed.write(node, 0, &[version as u8; 5_000]);
            bed.fsync(node);
            bed.sim.mark(file << 32 | version);
            rest(entropy.next_u64() % 40);
        }
    })
}

/// Versions that were promised before a cut.
pub fn promised(trace: &Trace, cut: usize) -> [u64; FILES as usize] {
    let mut promised = [0; FILES as usize];
    for mark in trace.marks_before(cut) {
        promised[(mark >> 32) as usize] = mark & 0xffff_ffff;
    }
    promised
}

/// Puts the files into a new pool; its devices then, and so many blank ones.
pub fn images_of(made: Bed, blank: usize) -> Vec<DeviceImage> {
    for file in 0..FILES {
        made.write(made.file(ROOT, &format!("file{file}")), 0, &[0; 5_000]);
    }
    made.pool.commit().unwrap();
    let mut images = made.sim.images();
    images.resize_with(images.len() + blank, || DeviceImage::blank(SIZE));
    images
}

/// Whether a pool has what was promised.
pub fn has(bed: &Bed, promised: [u64; FILES as usize]) -> Result<(), String> {
    for (file, version) in promised.into_iter().enumerate() {
        let content = bed.content(bed.find(&format!("file{file}")).unwrap().node);
        if content != vec![content[0]; 5_000] || u64::from(content[0]) < version {
            return Err(format!("file {file} has {} and not {version}", content[0]));
        }
    }
    Ok(())
}

/// Whether these devices make a pool that nothing is known to lack.
fn is_a_pool(images: &[DeviceImage]) -> bool {
    let found =
        SimWorld::from_images(images.to_vec()).devices().into_iter().filter_map(|device| {
            match scan(&device) {
                Scan::Member(found) => Some(*found),
                _ => None,
            }
        });
    let plans = assemble(found.collect());
    plans.first().is_some_and(|plan| plan.complete && plan.refusal.is_none() && plan.only_reading.is_none())
}

#[test]
fn an_fsync_is_kept_beside_devices_that_come_and_go() {
    let made = Bed::with_layout("mirror", &[SIZE; 2], &[("recordsize", "16384")]);
    let images = images_of(made, 2);
    let (count, first) = (setting("LARDER_SCHEDULES", 60), setting("LARDER_SEED", 0));
    let (mut cuts, mut alone) = (0, 0);
    for seed in first..first + count {
        let entropy = SeededEntropy::new(seed);
        let (way, stays) = WAYS[(seed % WAYS.len() as u64) as usize];
        let clock = Arc::new(SimClock::new());
        let bed = Bed::import(SimWorld::from_images(images.clone()), Arc::clone(&clock), seed);
        let start = bed.sim.trace().len();
        let switching = Switching::Random { one_in: [2, 20, 200][(entropy.next_u64() % 3) as usize] };
        let mut tasks = vec![changing(&bed, way), committing(&bed, 4, 80)];
        tasks.extend((0..FILES).map(|file| writing(&bed, seed, file)));
        let outcome = schedule::run(&Plan { seed, switching, panic_at: None }, tasks);
        assert!(outcome.stuck.is_none() && outcome.failed.is_empty(), "seed {seed}, {way}: {outcome:?}");
        let trace = bed.sim.trace();
        drop(bed);
        let any = |_| start + (entropy.next_u64() % (trace.len() - start + 1) as u64) as usize;
        let mut at: Vec<usize> = (0..4).map(any).chain([trace.len()]).collect();
        at.sort_unstable();
        let mut sweep = trace.sweep();
        for cut in at {
            sweep.advance_to(cut);
            let left = sweep.images(Survival::DropAll);
            let promised = promised(&trace, cut);
            let one = vec![left[stays].clone()];
            let alone_too = is_a_pool(&one);
            alone += u64::from(alone_too);
            cuts += 1;
            for images in [Some(left), alone_too.then_some(one)].into_iter().flatten() {
                let devices = images.len();
                let world = SimWorld::from_images(images);
                let bed = Bed::import(world, Arc::clone(&clock), 5_000 + seed);
                let found = has(&bed, promised);
                assert!(
                    found.is_ok(),
                    "seed {seed}, {way}, cut {cut}, {devices} devices: {}",
                    found.unwrap_err()
                );
            }
        }
    }
    assert!(count < 8 || alone > cuts / 4, "{alone} of {cuts} cuts left a device that is a pool alone");
}

/// A device's resilver progress becomes durable by a commit; a commit on its way must not store it for a device that
/// begins anew meanwhile, or segments that could not be rebuilt are never tried again.
#[test]
fn a_resilver_that_begins_anew_beside_a_commit_goes_through_everything() {
    let made = Bed::with_layout("mirror", &[SIZE; 2], &[("compression", "off")]);
    let file = made.file(ROOT, "file");
    (0..24).for_each(|i| made.write(file, i << 18, &vec![i as u8; 1 << 18]));
    made.pool.commit().unwrap();
    let mut images = made.sim.images();
    images.push(DeviceImage::blank(SIZE));
    drop(made);
    let (count, first) = (setting("LARDER_SCHEDULES", 60), setting("LARDER_SEED", 0));
    for seed in first..first + count {
        let entropy = SeededEntropy::new(seed);
        let clock = Arc::new(SimClock::new());
        let bed = Bed::import(SimWorld::from_images(images.clone()), clock, seed);
        let new = bed.upkeep.devices.replace(DeviceIndex::new(0), Arc::new(bed.sim.device(2))).unwrap();
        while bed.pool.rebuilt().done(new).is_none() {
            assert!(bed.upkeep.resilver.step(4096).unwrap(), "it has several segments to go through");
        }
        let switching = Switching::Random { one_in: [2, 10][(seed % 2) as usize] };
        let rests = entropy.next_u64() % 400;
        let restarting = task("restart", || {
            rest(rests);
            bed.upkeep.resilver.restart().unwrap();
        });
        let outcome = schedule::run(
            &Plan { seed, switching, panic_at: None },
            vec![committing(&bed, 1, 1), restarting],
        );
        assert!(outcome.stuck.is_none() && outcome.failed.is_empty(), "seed {seed}: {outcome:?}");
        let cursor = bed.pool.store().members().find(new).unwrap().cursor();
        assert_eq!(cursor.get(), 0, "seed {seed}");
    }
}
