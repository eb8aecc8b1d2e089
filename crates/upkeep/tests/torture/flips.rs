//! Bits flip in every structure, by the million, never more than the layout can do without; each round is scrubbed and
//! every byte must be what it was.

use crate::bed::Bed;
use crate::seeds::{full, on_two_threads, setting};
use crate::shape::Shape;
use crate::structures::{Piece, Structure, structures};
use larder_device::{Entropy, SeededEntropy};
use larder_format::label::Heartbeat;
use larder_format::root::ring_slot;
use larder_format::{CommitId, DeviceOffset};
use larder_pool::ROOT_DATASET;
use larder_sim::DeviceImage;
use larder_upkeep::ScrubSince;
use std::collections::BTreeMap;

const SHAPES: [Shape; 8] = [
    Shape { word: "mirror", width: 2, groups: 1 },
    Shape { word: "mirror", width: 4, groups: 1 },
    Shape { word: "raidz1", width: 4, groups: 1 },
    Shape { word: "raidz2", width: 6, groups: 1 },
    Shape { word: "raidz3", width: 8, groups: 1 },
    Shape { word: "raid10", width: 6, groups: 1 },
    Shape { word: "raid14", width: 7, groups: 1 },
    Shape { word: "raidz1", width: 3, groups: 2 },
];

/// Bits flipped, and things that they flipped in, by structure.
type Flips = BTreeMap<Structure, (u64, u64)>;

/// Choice of bits of a piece.
#[derive(Debug, Clone, Copy)]
pub enum Pattern {
    /// A single one.
    One,
    /// One in so many, all over it.
    OneIn(u64),
    /// All of some sectors.
    Burst,
}

/// A pool with something of everything.
fn filled(shape: Shape, seed: u64) -> Bed {
    let mut bed = Bed::new(shape, seed);
    bed.pool().set_property(ROOT_DATASET, "dedup", "on").unwrap();
    for round in 0..6 {
        let version = bed.states.len() as u64;
        let k = shape.layout().k() as u64;
        let stripes = (100..100 + 6 * k).map(|inode| (inode, version, 60_000 + bed.next(60_000) as usize));
        let small = (10..30)
            .filter(|i| (i + round) % 3 == 0)
            .map(|inode| (inode, version, 1 + bed.next(9_000) as usize));
        let puts = stripes.chain(small).chain((1000..1006).map(|inode| (inode, version, 20_000))).collect();
        bed.change(puts, Vec::new());
        bed.commit();
    }
    for _ in 0..3 {
        bed.put();
        bed.sync();
    }
    bed
}

/// One round on a pool that is in order.
fn round(bed: &Bed, next: &impl Fn(u64) -> u64, flips: &mut Flips) {
    let pool = bed.pool();
    let durable = pool.store().durable_commit();
    let pieces = structures(&pool, &bed.sim);
    let before: Vec<DeviceImage> = bed.sim.images();
    let mut after = before.clone();
    let shape = bed.shape;
    // Some devices, whatever is on them; or of each stripe other columns.
    let devices: Vec<bool> = choose(shape.devices(), next, |lost| shape.survives(|device| lost[device]));
    let scattered = next(2) == 0;
    let mut of_stripes: BTreeMap<_, Vec<bool>> = BTreeMap::new();
    let pattern = match next(4) {
        0 => Pattern::One,
        1 => Pattern::Burst,
        _ => Pattern::OneIn([30, 64, 256, 4096][next(4) as usize]),
    };
    for piece in &pieces {
        let hit = match piece.stripe {
            Some(part) if scattered => {
                let layout = part.layout;
                of_stripes.entry((part.segment, part.offset)).or_insert_with(|| {
                    choose(layout.columns(), next, |lost| layout.survives(|column| lost[column]))
                })[part.column]
            }
            // Written anew from memory, wherever they are.
            None if scattered && [Structure::Label, Structure::Descriptor].contains(&piece.what) => {
                next(2) == 0
            }
            _ => devices[piece.device],
        };
        if hit {
            let flipped = flip(&mut after[piece.device], piece, pattern, next);
            let count = flips.entry(piece.what).or_default();
            *count = (count.0 + flipped, count.1 + 1);
        }
    }
    for (device, image) in after.into_iter().enumerate() {
        bed.sim.device(device).swap_media(image);
    }
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    let result = pool.upkeep.scrub.result().unwrap();
    assert_eq!(result.lost, 0, "{shape}, {pattern:?}: {:?}", pool.upkeep.read_repair.lost());
    pool.beat().unwrap();
    let healed = bed.sim.images();
    let fresh: Vec<DeviceOffset> = (durable.get() + 1..=pool.store().durable_commit().get())
        .flat_map(|commit| {
            let members = pool.store().members().iter();
            let areas = members.flat_map(|member| member.label_areas());
            areas.map(move |area| ring_slot(area, CommitId::new(commit)))
        })
        .collect();
    let newer = |at: DeviceOffset| fresh.contains(&at);
    for piece in pieces {
        let read = |images: &[DeviceImage]| images[piece.device].read(piece.at, piece.len);
        let is = read(&healed);
        match piece.what {
            // They tell of the moment.
            Structure::Heartbeat => drop(Heartbeat::check(&is).unwrap()),
            // The commit with the scrub's result has taken its place.
            Structure::Root if newer(piece.at) => {}
            _ => assert!(is[..] == read(&before)[..], "{shape}, {pattern:?}: {piece:?} was not healed"),
        }
    }
}

/// Some of `count`, by chance as many as `survives` allows.
fn choose(count: usize, next: &impl Fn(u64) -> u64, survives: impl Fn(&[bool]) -> bool) -> Vec<bool> {
    let mut lost = vec![false; count];
    let (first, wanted) = (next(count as u64) as usize, next(4));
    for i in (0..count).map(|i| (first + i * (1 + wanted as usize % 2)) % count) {
        if wanted > 0 && next(4) == 0 {
            continue;
        }
        lost[i] = true;
        lost[i] = survives(&lost);
    }
    lost
}

/// Flips bits of a piece; returns how many.
pub fn flip(image: &mut DeviceImage, piece: &Piece, pattern: Pattern, next: &impl Fn(u64) -> u64) -> u64 {
    let mut bytes = image.read(piece.at, piece.len);
    let bits = piece.len as u64 * 8;
    let mut flipped = 0;
    match pattern {
        Pattern::One => {
            let bit = next(bits);
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
            flipped = 1;
        }
        Pattern::OneIn(many) => {
            let mut bit = next(many.min(bits));
            while bit < bits {
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
                flipped += 1;
                bit += 1 + next(2 * many - 1);
            }
        }
        Pattern::Burst => {
            let from = next(piece.len as u64) as usize;
            for byte in bytes[from..].iter_mut().take(512) {
                *byte = !*byte;
                flipped += 8;
            }
        }
    }
    image.write(piece.at, &bytes);
    flipped
}

#[test]
fn flipped_bits_of_every_structure_are_repaired_to_the_last_byte() {
    let wanted = setting("LARDER_FLIPS", if full() { 10_000_000 } else { 1_000_000 });
    let rounds = setting("LARDER_ROUNDS", 12);
    let (first, one) = (setting("LARDER_SEED", 0), setting("LARDER_TORTURE", 0) == 1);
    let mut all = Flips::new();
    let mut seed = first;
    let sum = |flips: &Flips| flips.values().map(|(bits, _)| bits).sum::<u64>();
    while sum(&all) < wanted {
        let batch = if one { 1 } else { SHAPES.len() };
        let some = on_two_threads(
            batch,
            |i, flips: &mut Flips| {
                let seed = seed + i as u64;
                let entropy = SeededEntropy::new(seed);
                let bed = filled(SHAPES[seed as usize % SHAPES.len()], seed);
                for _ in 0..rounds {
                    round(&bed, &|n| entropy.next_u64() % n, flips);
                }
                bed.verify();
            },
            merge,
            |i| {
                let seed = seed + i as u64;
                format!(
                    "LARDER_SEED={seed} LARDER_TORTURE=1 cargo test -p larder-upkeep --test torture flipped"
                )
            },
        );
        merge(&mut all, some);
        seed += batch as u64;
        if one {
            break;
        }
    }
    println!("{} bits flipped and healed, seeds {first} to {}:", sum(&all), seed - 1);
    for (what, (bits, things)) in all {
        println!("  {what:?}: {bits} bits in {things}");
    }
}

fn merge(all: &mut Flips, some: Flips) {
    for (what, (bits, things)) in some {
        let count = all.entry(what).or_default();
        *count = (count.0 + bits, count.1 + things);
    }
}
