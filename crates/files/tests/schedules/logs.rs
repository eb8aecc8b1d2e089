//! Synced data is there after a power cut, whatever becomes of the log's own devices beside it: added, removed, lost,
//! hung, back again. Without them a pool may ask to be imported, and then has what its last commit had.

use crate::bed::Bed;
use crate::cuts::{committing, rest, task};
use crate::members::{FILES, SIZE, has, images_of, promised, writing};
use crate::{in_task, setting};
use larder_device::{Device, Entropy, Inline, SeededEntropy};
use larder_format::root::GroupRole;
use larder_format::{ByteLen, DeviceIndex, GroupIndex};
use larder_mutants::Mutant;
use larder_pool::create::rule_for;
use larder_pool::open::{Scan, scan};
use larder_pool::{GroupSpec, ImportOptions, PoolError, Refusal};
use larder_sim::{DeviceImage, Fault, SimClock, SimWorld, Survival};
use larder_sync::schedule::{self, Plan, Switching, Task};
use std::sync::Arc;

const LOG: GroupIndex = GroupIndex::new(1);
/// Its first device, behind two of data.
const LOG_DEVICE: usize = 2;
/// Fates of it.
const WAYS: [&str; 8] = ["gone", "no writes", "no flushes", "hung", "back", "remove", "add", "offline"];

fn changing<'a>(bed: &'a Bed, way: &'a str, rests: u64) -> Task<'a> {
    task(way, move || {
        let (upkeep, device) = (&bed.upkeep, bed.sim.device(LOG_DEVICE));
        let index = DeviceIndex::new(LOG_DEVICE as u16);
        let online = || {
            let again: Arc<dyn Device> = Arc::new(bed.sim.device(LOG_DEVICE));
            let Scan::Member(found) = scan(&again) else { panic!("its label is not found") };
            upkeep.devices.online(index, Some(*found)).unwrap();
            while upkeep.resilver.step(1 << 20).unwrap() {
                rest(3);
            }
        };
        rest(rests);
        match way {
            "gone" => device.inject(Fault::Gone),
            "no writes" => device.inject(Fault::FailWrites(0..u64::MAX)),
            "no flushes" => device.inject(Fault::FailFlushes),
            "hung" => device.inject(Fault::Hang),
            "back" => {
                device.inject(Fault::Gone);
                rest(rests);
                device.clear_faults();
                // Unless nobody noticed.
                if !bed.pool.store().members().get(index).is_online() {
                    online();
                }
            }
            "remove" => upkeep.reshape.remove_group(LOG).unwrap(),
            "add" => {
                let devices = vec![Arc::new(bed.sim.device(LOG_DEVICE + 2)) as Arc<dyn Device>];
                let rule = rule_for("single", 1).unwrap();
                upkeep.reshape.add_group(GroupSpec { rule, role: GroupRole::Log, devices }).unwrap();
            }
            _ => {
                upkeep.devices.offline(index, false).unwrap();
                rest(rests);
                online();
            }
        }
    })
}

/// Whether a pool has at least these versions, and all is well with it.
fn is_well(bed: &Bed, least: [u64; FILES as usize]) -> Result<(), String> {
    has(bed, least)?;
    let problems = bed.upkeep.check().map_err(|error| error.to_string())?.problems;
    problems.into_iter().next().map_or(Ok(()), Err)
}

/// Imports of a pool without devices of the log.
#[derive(Default)]
struct Imports {
    unasked: u64,
    asked: u64,
}

/// A pool of two mirrored devices, and so many of the log, with room for one more group.
fn made(logs: usize) -> Vec<DeviceImage> {
    let word = if logs == 1 { "single" } else { "mirror" };
    let groups: [(GroupRole, &str, &[ByteLen]); 2] =
        [(GroupRole::Data, "mirror", &[SIZE; 2]), (GroupRole::Log, word, &[SIZE; 2][..logs])];
    let made = Bed::with_groups(Arc::new(Inline), &groups, &[("recordsize", "16384")]);
    images_of(made, 3 - logs)
}

#[test]
fn an_fsync_is_kept_whatever_becomes_of_the_logs_devices() {
    let mut imports = Imports::default();
    let (count, first) = (setting("LARDER_SCHEDULES", 80), setting("LARDER_SEED", 0));
    let images = [made(1), made(2)];
    for seed in first..first + count {
        let logs = 1 + (seed % 2) as usize;
        run(seed, images[logs - 1].clone(), logs, None, &mut imports).unwrap_or_else(|why| panic!("{why}"));
    }
    let Imports { unasked, asked } = imports;
    println!("without the log's devices: {unasked} imports, {asked} that asked first");
    assert!(count < 40 || unasked > 10 && asked > 10, "{unasked} unasked, {asked} asked");
}

/// The test of this test.
#[cfg(feature = "mutants")]
#[test]
fn mutants_of_a_lost_log_are_found() {
    let mutant = Mutant::LogLossIgnored;
    let images = made(1);
    let found = (0..200).step_by(2).find_map(|seed| {
        let outcome = run(seed, images.clone(), 1, Some(mutant), &mut Imports::default());
        outcome.err().map(|why| (seed, why))
    });
    println!("{mutant:?}: {}", found.expect("it is found").1);
}

fn run(
    seed: u64,
    images: Vec<DeviceImage>,
    logs: usize,
    mutant: Option<Mutant>,
    imports: &mut Imports,
) -> Result<(), String> {
    let entropy = SeededEntropy::new(seed);
    let way = WAYS[(seed / 2 % WAYS.len() as u64) as usize];
    let clock = Arc::new(SimClock::new());
    let bed = Bed::import(SimWorld::from_images(images), Arc::clone(&clock), seed);
    let start = bed.sim.trace().len();
    let switching = Switching::Random { one_in: [2, 20, 200][(entropy.next_u64() % 3) as usize] };
    let mut tasks = vec![changing(&bed, way, entropy.next_u64() % 400), committing(&bed, 4, 80)];
    tasks.extend((0..FILES).map(|file| writing(&bed, seed, file)));
    let tasks = tasks.into_iter().map(|(name, body)| (name, in_task(mutant, body))).collect();
    let outcome = schedule::run(&Plan { seed, switching, panic_at: None }, tasks);
    assert!(outcome.stuck.is_none() && outcome.failed.is_empty(), "seed {seed}, {way}: {outcome:?}");
    assert!(bed.pool.store().suspended().is_none(), "seed {seed}, {way}");
    let trace = bed.sim.trace();
    drop(bed);
    let any = |_| start + (entropy.next_u64() % (trace.len() - start + 1) as u64) as usize;
    let mut at: Vec<usize> = (0..4).map(any).chain([trace.len()]).collect();
    at.sort_unstable();
    let mut sweep = trace.sweep();
    for cut in at {
        sweep.advance_to(cut);
        let survival = match entropy.next_u64() % 3 {
            0 => Survival::KeepAll,
            1 => Survival::Random { seed: seed ^ cut as u64 },
            _ => Survival::DropAll,
        };
        let left = sweep.images(survival);
        let case = format!("seed {seed}, {way}, {logs} of the log, cut {cut} ({survival:?})");
        let promised = promised(&trace, cut);
        let import = |images: &[DeviceImage], options: &ImportOptions| {
            Bed::try_import(SimWorld::from_images(images.to_vec()), Arc::clone(&clock), 5_000 + seed, options)
        };
        let whole = import(&left, &ImportOptions::default()).map_err(|error| format!("{case}: {error}"))?;
        is_well(&whole, promised).map_err(|why| format!("{case}: {why}"))?;
        drop(whole);
        // Its devices are lost with the power.
        let bare = &left[..LOG_DEVICE];
        match import(bare, &ImportOptions::default()) {
            Ok(bed) => {
                imports.unasked += 1;
                is_well(&bed, promised).map_err(|why| format!("{case}, without the log: {why}"))?;
            }
            Err(PoolError::Refused(Refusal::LogUnread { .. })) => {
                imports.asked += 1;
                let options = ImportOptions { without_log: true, ..ImportOptions::default() };
                let bed = import(bare, &options).map_err(|error| format!("{case}: {error}"))?;
                is_well(&bed, [0; FILES as usize]).map_err(|why| format!("{case}, given up: {why}"))?;
            }
            Err(error) => return Err(format!("{case}, without the log: {error}")),
        }
    }
    Ok(())
}
