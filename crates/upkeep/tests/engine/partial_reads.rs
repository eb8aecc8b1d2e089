//! Parts of large records, read and proven without the rest.

use crate::common::*;
use larder_device::SeededEntropy;
use larder_format::block::{BLOCK_OVERHEAD, FRAME, frame_sums_len};
use larder_format::checksum::ChecksumKind;
use larder_format::items::Extent;
use larder_format::label::Features;
use larder_format::{BlockPtr, ByteLen, DeviceIndex, DeviceOffset};
use larder_pool::codec::Codec;
use larder_pool::stripe::FRAMED_FROM;
use larder_pool::{Dedup, NewRecord, Pool, PoolError, ROOT_DATASET};
use larder_sim::{DeviceImage, SimDevice, SimWorld};
use larder_upkeep::ScrubSince;
use std::ops::Range;
use std::sync::atomic::Ordering;

const SIZE: ByteLen = ByteLen::new(64 << 20);
const RECORD: u32 = 128 << 10;

fn noise(seed: u64, len: u32) -> Vec<u8> {
    SeededEntropy::new(seed).bytes(len as usize)
}

fn store(pool: &Pool, contents: &[Vec<u8>], codec: Codec, checksum: ChecksumKind) -> Vec<Extent> {
    let op = pool.enter().unwrap();
    let record = |(inode, plain): (u64, &Vec<u8>)| NewRecord {
        dataset: ROOT_DATASET,
        inode,
        offset: 0,
        plain: plain.clone().into(),
        codec,
        encoded: None,
        checksum,
        dedup: Dedup::Off,
        copies: 1,
        replaces: None,
    };
    let ptrs = pool.store_records(&op, (10..).zip(contents).map(record).collect()).unwrap();
    drop(op);
    pool.commit().unwrap();
    pool.store().drop_caches();
    let extent = |(ptr, plain): (BlockPtr, &Vec<u8>)| {
        let len = plain.len() as u32;
        Extent { ptr, len, block_offset: 0, logical: len, placed: 0, copies: 1 }
    };
    ptrs.into_iter().zip(contents).map(extent).collect()
}

/// Records of noise in a new pool.
fn stored(word: &str, devices: usize, count: u64) -> (SimWorld, Kept, Vec<Vec<u8>>, Vec<Extent>) {
    let sim = SimWorld::new(&vec![SIZE; devices]);
    let pool = create(&sim, word);
    let contents: Vec<_> = (0..count).map(|seed| noise(seed, RECORD)).collect();
    let extents = store(&pool, &contents, Codec::Lz4, ChecksumKind::Fast);
    (sim, pool, contents, extents)
}

/// Bytes read from all devices by `what`, and what it gave.
fn bytes_of<T>(pool: &Pool, what: impl FnOnce() -> T) -> (u64, T) {
    let read = || -> u64 {
        pool.store().members().iter().map(|member| member.counters.read_bytes.load(Ordering::Relaxed)).sum()
    };
    let before = read();
    let given = what();
    (read() - before, given)
}

fn errors(pool: &Pool) -> u64 {
    pool.store().members().iter().map(|member| member.counters.checksum_errors.load(Ordering::Relaxed)).sum()
}

/// Where the byte at `at` of a record's content lies: each device that has it, with the offset there.
fn lies_at(pool: &Pool, extent: &Extent, at: u32) -> Vec<(usize, u64)> {
    let before = u64::from(BLOCK_OVERHEAD + frame_sums_len(extent.logical) + at);
    let copies = pool.store().whereabouts(extent.ptr.id).unwrap().unwrap().copies;
    copies.into_iter().map(|(device, offset)| (device.get().into(), offset.get() + before)).collect()
}

fn rot(device: &SimDevice, at: u64) {
    let mut image = device.image();
    let byte = bytes_at(&image, at, 1)[0];
    image.write(DeviceOffset::new(at), &[byte ^ 4]);
    device.swap_media(image);
}

fn bytes_at(image: &DeviceImage, at: u64, len: u64) -> Vec<u8> {
    image.read(DeviceOffset::new(at), len as usize).to_vec()
}

fn part(pool: &Pool, extent: &Extent, range: Range<u32>) -> Result<Vec<u8>, PoolError> {
    pool.store().part_of(extent, range).map(|part| part.to_vec())
}

#[test]
fn a_part_is_what_was_written_and_costs_little_in_every_layout() {
    let within = |range: &Range<u32>| range.start as usize..range.end as usize;
    for (word, devices) in LAYOUTS {
        let (_sim, pool, contents, extents) = stored(word, devices, 40);
        for (i, (content, extent)) in contents.iter().zip(&extents).enumerate() {
            let i = i as u32;
            let len = [1, 512, FRAME, 3 * FRAME + 77, RECORD / 4][i as usize % 5];
            let at = [0, 5000 * i % (RECORD - len), RECORD - len][i as usize % 3];
            let range = at..at + len;
            let (bytes, given) = bytes_of(&pool, || part(&pool, extent, range.clone()).unwrap());
            assert!(given == content[within(&range)], "{word}: {range:?}");
            let most = u64::from(len + (16 << 10) + 5 * FRAME);
            assert!(bytes <= most, "{word}: {range:?} took {bytes} bytes");
        }
    }
}

#[test]
fn a_second_part_brings_the_whole_record_into_the_cache() {
    let (_sim, pool, contents, extents) = stored("single", 1, 3);
    let take = |at: u32| bytes_of(&pool, || part(&pool, &extents[1], at..at + 100).unwrap());
    let (first, second, third) = (take(70_000), take(100), take(100_000));
    assert!(first.0 < 20 << 10 && second.0 >= RECORD.into() && third.0 == 0);
    assert!(second.1 == contents[1][100..200] && third.1 == contents[1][100_000..100_100]);
}

#[test]
fn what_is_beyond_a_record_is_refused() {
    let (_sim, pool, _, extents) = stored("single", 1, 1);
    for logical in [RECORD, RECORD + 8, 2 * RECORD] {
        let extent = Extent { logical, ..extents[0] };
        assert!(part(&pool, &extent, RECORD - 50..RECORD + 1).is_err(), "{logical}");
        assert!(pool.store().sound_part_of(&extent, RECORD - 50..RECORD + 1).is_err());
    }
}

#[test]
fn rot_in_one_frame_is_no_harm_to_the_others() {
    let (sim, pool, contents, extents) = stored("single", 1, 2);
    let extent = &extents[0];
    let (device, at) = lies_at(&pool, extent, 9 * FRAME + 5)[0];
    rot(&sim.device(device), at);
    for frame in (0..RECORD / FRAME).rev() {
        let range = frame * FRAME..(frame + 1) * FRAME;
        let sound = pool.store().sound_part_of(extent, range.clone());
        let wanted = &contents[0][range.start as usize..range.end as usize];
        assert!(sound.is_ok_and(|sound| sound == wanted) == (frame != 9), "frame {frame}");
    }
    let (bytes, sound) = bytes_of(&pool, || part(&pool, extent, 80_000..80_100).unwrap());
    assert!(sound == contents[0][80_000..80_100] && bytes < 20 << 10);
    assert_eq!(errors(&pool), 0, "nobody looked");
    assert!(part(&pool, extent, 9 * FRAME..9 * FRAME + 1).is_err());
    assert!(matches!(pool.store().read(extent.ptr), Err(PoolError::Unreadable { .. })));
    assert!(errors(&pool) > 0);
    assert!(pool.store().read(extents[1].ptr).unwrap() == contents[1]);
}

#[test]
fn a_scrub_finds_the_rot_that_reads_of_other_frames_pass_by() {
    let (sim, pool, contents, extents) = stored("mirror", 2, 1);
    // A second part brings all of the record, from the device whose turn it is by its id.
    let other = 1 - extents[0].ptr.id.get() as usize % 2;
    for (device, at) in lies_at(&pool, &extents[0], 9 * FRAME) {
        if device == other {
            rot(&sim.device(device), at);
        }
    }
    for _ in 0..4 {
        assert!(part(&pool, &extents[0], 80_000..80_100).unwrap() == contents[0][80_000..80_100]);
        pool.store().drop_caches();
    }
    pool.upkeep.scrub.start(ScrubSince::All).unwrap();
    while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
    assert_eq!(errors(&pool), 1);
    let images = [0, 1].map(|device| sim.device(device).image());
    let [one, two] = images.each_ref().map(|image| {
        let (_, at) = lies_at(&pool, &extents[0], 9 * FRAME)[0];
        bytes_at(image, at, FRAME.into())
    });
    assert!(one == two && one == contents[0][9 * FRAME as usize..][..FRAME as usize], "it is repaired");
}

#[test]
fn a_rotten_frame_comes_from_elsewhere_and_is_repaired() {
    for (word, devices) in LAYOUTS.into_iter().filter(|(word, _)| *word != "single") {
        let (sim, pool, contents, extents) = stored(word, devices, 12);
        let all: Vec<_> = extents.iter().flat_map(|extent| lies_at(&pool, extent, 20 * FRAME)).collect();
        let before: Vec<_> = (0..devices).map(|device| sim.device(device).image()).collect();
        // Of each copy that a read may ask first; one device at a time is what all layouts survive.
        for device in 0..devices {
            all.iter().filter(|(of, _)| *of == device).for_each(|(_, at)| rot(&sim.device(device), *at));
            for (content, extent) in contents.iter().zip(&extents) {
                pool.store().drop_caches();
                let given = part(&pool, extent, 20 * FRAME..20 * FRAME + 9).unwrap();
                assert!(given == content[20 * FRAME as usize..][..9], "{word}");
            }
            while pool.upkeep.read_repair.step().unwrap() > 0 {}
            pool.upkeep.scrub.start(ScrubSince::All).unwrap();
            while pool.upkeep.scrub.step(u64::MAX).unwrap() {}
            for (device, before) in before.iter().enumerate() {
                for &(_, at) in all.iter().filter(|(of, _)| *of == device) {
                    let now = sim.device(device).image();
                    assert_eq!(bytes_at(&now, at, 64), bytes_at(before, at, 64), "{word}");
                }
            }
        }
    }
}

/// Whatever lies where a record should be, a part of it is right or not given.
#[test]
fn nothing_else_passes_for_a_part() {
    let (sim, pool, contents, extents) = stored("single", 1, 3);
    let home = lies_at(&pool, &extents[0], 0)[0].1;
    let other = lies_at(&pool, &extents[1], 0)[0].1;
    let head = u64::from(BLOCK_OVERHEAD + frame_sums_len(RECORD));
    let sound = sim.device(0).image();
    let frame = u64::from(FRAME);
    let mut forgeries = Vec::new();
    let mut forge = |name: &'static str, at: u64, bytes: Vec<u8>| forgeries.push((name, at, bytes));
    let image = |at: u64, len: u64| bytes_at(&sound, at, len);
    forge("another block", home - head, image(other - head, head + u64::from(RECORD)));
    forge("another's header", home - head, image(other - head, BLOCK_OVERHEAD.into()));
    forge("another's sums", home - head + 144, image(other - head + 144, head - 144));
    forge("another's frame", home + 20 * frame, image(other + 20 * frame, frame));
    forge("another frame", home + 20 * frame, image(home + 21 * frame, frame));
    forge("zeros", home - head, vec![0; (head + u64::from(RECORD)) as usize]);
    forge("no sums", home - head + 144, vec![0; (head - 144) as usize]);
    forge("two sums in each other's place", home - head + 144 + 20 * 8, {
        let sums = image(home - head + 144 + 20 * 8, 16);
        [&sums[8..], &sums[..8]].concat()
    });
    for at in [0, 32, 36, 40, 97, 136] {
        let byte = image(home - head + at, 1)[0] ^ 1;
        forge("a header with a bit that is wrong", home - head + at, vec![byte]);
    }
    let range = 20 * FRAME + 10..20 * FRAME + 1000;
    for (name, at, bytes) in forgeries {
        let mut image = sound.clone();
        image.write(DeviceOffset::new(at), &bytes);
        sim.device(0).swap_media(image);
        assert!(pool.store().sound_part_of(&extents[0], range.clone()).is_err(), "{name}");
        assert!(part(&pool, &extents[0], range.clone()).is_err(), "{name}");
        pool.store().drop_caches();
    }
    sim.device(0).swap_media(sound);
    assert!(
        part(&pool, &extents[0], range.clone()).unwrap()
            == contents[0][range.start as usize..range.end as usize]
    );
}

#[test]
fn records_have_frames_when_they_are_large_and_stored_as_they_are_under_the_fast_checksum() {
    let sim = SimWorld::new(&[SIZE]);
    let pool = create(&sim, "single");
    let of_root = || plan(sim.devices()).root.features.incompatible;
    let stored_of = |plain: Vec<u8>, codec: Codec, checksum: ChecksumKind| {
        let extent = store(&pool, std::slice::from_ref(&plain), codec, checksum)[0];
        let len = plain.len() as u32;
        let given = part(&pool, &extent, len / 2..len / 2 + 9).unwrap();
        assert!(given == plain[len as usize / 2..][..9]);
        extent.ptr.place.stored
    };
    let plain = || noise(1, RECORD);
    let bare = BLOCK_OVERHEAD + RECORD;
    assert_eq!(stored_of(plain(), Codec::Off, ChecksumKind::Blake3), bare);
    assert_eq!(stored_of(plain(), Codec::Off, ChecksumKind::Sha256), bare);
    assert_eq!(
        stored_of(noise(1, FRAMED_FROM - 1), Codec::Off, ChecksumKind::Fast),
        BLOCK_OVERHEAD + FRAMED_FROM - 1
    );
    assert!(stored_of(vec![7; RECORD as usize], Codec::Lz4, ChecksumKind::Fast) < RECORD);
    assert_eq!(of_root(), 0, "none has frames yet");
    assert_eq!(stored_of(plain(), Codec::Off, ChecksumKind::Fast), bare + RECORD / FRAME * 8);
    assert_eq!(of_root(), Features::FRAMES, "with the commit that has the first one");
    assert_eq!(stored_of(plain(), Codec::Lz4, ChecksumKind::Fast), bare + RECORD / FRAME * 8);
    assert_eq!(
        stored_of(noise(1, FRAMED_FROM), Codec::Off, ChecksumKind::Fast),
        BLOCK_OVERHEAD + FRAMED_FROM + FRAMED_FROM / FRAME * 8
    );
    let odd = FRAMED_FROM + 1;
    assert_eq!(
        stored_of(noise(1, odd), Codec::Off, ChecksumKind::Fast),
        BLOCK_OVERHEAD + odd + odd.div_ceil(FRAME) * 8
    );
    assert_eq!(
        stored_of(noise(1, 512 << 10), Codec::Off, ChecksumKind::Fast),
        BLOCK_OVERHEAD + (512 << 10) + 1024
    );
    drop(pool);
    let pool = open(&sim, 2);
    pool.commit().unwrap();
    assert_eq!(of_root(), Features::FRAMES, "and for ever");
    assert!(pool.store().members().get(DeviceIndex::new(0)).is_online());
}
