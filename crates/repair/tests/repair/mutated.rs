//! Images that were changed in any way: repair ends with a pool or an error, and what it shows as it was is as it was.
//!
//! `LARDER_IMAGES` is their number, 200 unless set; `LARDER_SEED` the first seed.

use crate::bed::*;
use larder_device::{Entropy, SeededEntropy};
use larder_files::NodeId;
use larder_format::DeviceOffset;
use larder_pool::ROOT_DATASET;
use larder_repair::{Options, repair};
use larder_sim::{DeviceImage, SimWorld};

const MIB: u64 = 1 << 20;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Changes an image: bits, bytes, sectors and slots, zeroed, filled at random, copied over others, or cut off.
fn mutate(image: DeviceImage, random: &SeededEntropy) -> DeviceImage {
    let mut image = image;
    let size = image.size().get();
    let pick = |below: u64| random.next_u64() % below;
    for _ in 0..1 + pick(12) {
        // Where something is: labels, the first slots, or anywhere.
        let near = match pick(4) {
            0 => pick(MIB),
            1 => size - 2 * MIB + pick(2 * MIB - 4096),
            _ => MIB + pick(24 * MIB),
        };
        let sector = near.min(size - (256 << 10)) / 4096 * 4096;
        match pick(7) {
            0 => image.flip_bits(DeviceOffset::new(sector), 4096, random.next_u64()),
            1 => image.write(DeviceOffset::new(sector), &vec![0; 4096 << pick(6)]),
            2 => image.write(DeviceOffset::new(sector), &random.bytes(4096 << pick(4))),
            3 => {
                let from = image.read(DeviceOffset::new(MIB + pick(24) * MIB), MIB as usize);
                image.write(DeviceOffset::new(MIB + pick(24) * MIB), &from);
            }
            4 => {
                let from = image.read(DeviceOffset::new(MIB + pick(6 << 10) * 4096), 4096);
                image.write(DeviceOffset::new(sector), &from);
            }
            5 => {
                let mut bytes = image.read(DeviceOffset::new(sector), 4096);
                bytes[pick(4096) as usize] ^= 1 << pick(8);
                image.write(DeviceOffset::new(sector), &bytes);
            }
            _ => image.write(DeviceOffset::new(MIB + pick(24) * MIB), &vec![0; MIB as usize]),
        }
    }
    if pick(20) == 0 {
        return image.resized(larder_format::ByteLen::new(size / 2 / MIB * MIB));
    }
    image
}

#[test]
fn changed_images_panic_nothing_and_show_nothing_else_in_silence() {
    let (mut pools, mut whole, mut refused) = (0, 0, 0);
    let first = number("LARDER_SEED", 1);
    for (word, count) in [("single", 1), ("mirror", 2), ("raidz1", 3)] {
        let bed = Bed::new(word, count, 64);
        bed.fill(NodeId::ROOT, 5, 3, 12);
        bed.pool.snapshot(ROOT_DATASET, "before").unwrap();
        let child = bed.pool.create_dataset("tank/child", Default::default()).unwrap();
        bed.mount.attach(child, Some((ROOT_DATASET, b"child".to_vec()))).unwrap();
        let folder = bed.mount_folder("child");
        bed.fill(folder, 6, 2, 6);
        let before = read(&*bed.mount, NodeId::ROOT);
        let (images, _) = bed.export();
        for seed in first..first + number("LARDER_IMAGES", 200) / 3 {
            let random = SeededEntropy::new(seed);
            let mutated: Vec<_> = images.iter().map(|image| mutate(image.clone(), &random)).collect();
            let scratch = |size| Ok(SimWorld::new(&[size]).devices().remove(0));
            let options = Options {
                pool: None,
                commit: None,
                log: true,
                cut: false,
                scratch: &scratch,
                shown: &|_| {},
            };
            let Ok(found) = repair(world(seed), &devices(mutated), &options) else {
                refused += 1;
                continue;
            };
            pools += 1;
            let is_whole = found.report.is_whole() && found.report.newer.is_none();
            let Ok(mount) = try_mounted(&found.pool) else { continue };
            let seen = read(&*mount, NodeId::ROOT);
            if is_whole && found.report.root.is_some() {
                whole += 1;
                assert!(seen == before, "{word}, seed {seed}: not as it was\n{:#?}", found.report);
            }
        }
    }
    eprintln!("{pools} pools put together, {whole} of them whole, {refused} refused");
    assert!(pools > 0 && whole > 0, "the test shows nothing");
}
