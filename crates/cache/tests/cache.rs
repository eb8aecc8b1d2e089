//! The cache held against a model of its devices: what lies where, and when it was written.

mod device;

use device::{Device, Step};
use larder_cache::{Cache, Config, Curve, GhostLength, Kind, Read, UNIT, WriteBudget};
use proptest::prelude::*;

fn config(seed: u64) -> Config {
    let budget = WriteBudget { share: 0.5, ..WriteBudget::default() };
    Config { seed, slot_units: device::MIXED_SLOT_UNITS, expected_blocks: 4096, cap: 1 << 20, budget }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![6 => Just(Kind::Demand), 2 => Just(Kind::Ahead), 1 => Just(Kind::Metadata)];
    let step = prop_oneof![
        100 => (0..600_u64, kind).prop_map(|(id, kind)| Step::Read(id, kind)),
        20 => (0..7_200_u64).prop_map(Step::Wait),
        4 => (0..24_u32).prop_map(Step::Add),
        2 => Just(Step::Reclaim),
        1 => (0..24_u32).prop_map(Step::Lose),
        2 => (0..600_u64).prop_map(Step::Rot),
        1 => (6_000..40_000_usize).prop_map(Step::Cap),
        1 => (0..100_u32).prop_map(|share| Step::Share(f64::from(share) / 100.0)),
    ];
    prop::collection::vec(step, 1..2_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// All that is found lies where it was written, in a slot that was given, and nothing else; memory and writes of
    /// any day keep within bounds. The same steps lead to the same places.
    #[test]
    fn what_is_found_is_there_whatever_comes_and_goes(seed in any::<u64>(), steps in steps()) {
        let [mut device, mut again] = [(); 2].map(|()| Device::new(config(seed)));
        for slot in 0..8 {
            device.step(&Step::Add(slot));
            again.step(&Step::Add(slot));
        }
        for (i, step) in steps.iter().enumerate() {
            device.step(step);
            again.step(step);
            if i % 8 == 0 {
                device.check();
            }
        }
        device.check();
        prop_assert_eq!(device.log(), again.log());
        prop_assert_eq!(device.cache.stats(), again.cache.stats());
    }
}

/// Without a budget that matters.
fn large(seed: u64, blocks: u64, slots: u64) -> Device {
    let budget = WriteBudget { share: 1e9, ..WriteBudget::default() };
    let slot_units = (blocks / slots) as u32;
    let mut device =
        Device::new(Config { seed, slot_units, expected_blocks: blocks, cap: usize::MAX >> 1, budget });
    (0..slots as u32).for_each(|slot| device.step(&Step::Add(slot)));
    device
}

#[test]
fn a_block_is_cached_when_it_is_read_again_and_read_ahead_takes_a_third_time() {
    let mut device = large(1, 4096, 128);
    let fill =
        |device: &mut Device| (1 << 32..(1 << 32) + 5_000).for_each(|id| device.read(id, Kind::Demand));
    fill(&mut device);
    let is_cached = |device: &mut Device, id| device.cache.find(id).is_some();
    device.read(1, Kind::Demand);
    assert!(!is_cached(&mut device, 1), "once is not enough");
    device.read(1, Kind::Demand);
    assert!(is_cached(&mut device, 1), "twice is");
    device.read(2, Kind::Ahead);
    device.read(2, Kind::Ahead);
    assert!(!is_cached(&mut device, 2), "for read-ahead twice is not enough");
    device.read(2, Kind::Ahead);
    assert!(is_cached(&mut device, 2));
    device.read(3, Kind::Metadata);
    assert!(is_cached(&mut device, 3), "metadata at once");
    device.read(4, Kind::Demand);
    (2 << 32..(2 << 32) + 20_000).for_each(|id| device.read(id, Kind::Demand));
    device.read(4, Kind::Demand);
    assert!(!is_cached(&mut device, 4), "too long ago to be remembered");
}

#[test]
fn a_scan_leaves_what_is_hit() {
    let mut device = large(2, 4096, 128);
    let hot = || (0..2_000_u64).chain(0..2_000).chain(0..2_000);
    hot().for_each(|id| device.read(id, Kind::Demand));
    let before = device.cache.stats().appended_bytes;
    (1 << 32..(1 << 32) + 40_960).for_each(|id| device.read(id, Kind::Demand));
    let left = (0..2_000).filter(|id| device.cache.find(*id).is_some()).count();
    assert!(left > 1_980, "{left} of 2,000");
    let filled = (4096 - 2_000) * UNIT;
    assert!(
        device.cache.stats().appended_bytes - before <= filled + filled / 16,
        "a scan is written in free room only"
    );
}

#[test]
fn memory_of_a_million_blocks_is_as_told_and_14_bytes_each_at_most() {
    let large = std::env::var_os("LARDER_LARGE").is_some();
    for blocks in if large { vec![1_000_000, 10_000_000, 100_000_000] } else { vec![1_000_000] } {
        let mut cache = None;
        let allocated = allocation_counter::measure(|| {
            let mut device = self::large(3, blocks, blocks / 4096);
            // Filled, read once more so that the ghost is there, and half of it replaced.
            (0..blocks).for_each(|id| device.read(id, Kind::Demand));
            for _ in 0..2 {
                (blocks..blocks + blocks / 2).for_each(|id| device.read(id, Kind::Demand));
            }
            cache = Some(device.into_cache());
        });
        let cache = cache.expect("it was made");
        let told = cache.memory() + cache.miniature_memory();
        let held = allocated.bytes_current as usize;
        // The allocator's own bytes are told and not counted here.
        assert!(held <= told && held + held / 16 >= told, "{held} bytes are held, {told} told");
        let each = cache.memory() as f64 / cache.blocks() as f64;
        println!("{} blocks: {each:.2} bytes each; miniatures {}", cache.blocks(), cache.miniature_memory());
        assert!(cache.blocks() > blocks * 9 / 10 && each <= 14.0, "{each} bytes");
        assert!(cache.miniature_memory() <= 2 << 20);
    }
}

#[test]
fn blocks_make_room_when_memory_is_taken_away() {
    let mut device = large(4, 100_000, 100);
    (0..120_000).for_each(|id| device.read(id, Kind::Demand));
    let full = device.cache.memory();
    device.step(&Step::Cap(full / 2));
    assert!(device.cache.memory() <= full / 2);
    let blocks = device.cache.blocks();
    assert!((25_000..60_000).contains(&blocks), "{blocks} blocks");
    (0..2).for_each(|_| (200_000..210_000).for_each(|id| device.read(id, Kind::Demand)));
    assert!(
        device.cache.memory() <= full / 2 && device.cache.find(209_999).is_some(),
        "others are still cached"
    );
}

/// Ids of which few are read much: the product of two even numbers' logarithm is spread evenly.
fn skewed(state: &mut u64, ids: f64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ids.powf((*state >> 11) as f64 / (1_u64 << 53) as f64) as u64
}

#[test]
fn the_curve_tells_what_caches_of_other_sizes_would_do() {
    let sizes = larder_cache::CURVE_SIZES;
    let blocks = 20_000.0;
    let mut devices = sizes.map(|size| large(5, (blocks * size) as u64, 100));
    // Only one needs miniatures.
    [0, 2, 3_usize].into_iter().for_each(|i| devices[i].step(&Step::Cap(7 << 20)));
    let mut before = [larder_cache::Stats::default(); 4];
    let mut curve = Curve::default();
    let mut state = 1;
    for read in 0..1_200_000 {
        if read == 600_000 {
            before = std::array::from_fn(|i| devices[i].cache.stats());
            curve = devices[1].cache.curve();
        }
        let id = skewed(&mut state, 1e6);
        devices.iter_mut().for_each(|device| device.read(id, Kind::Demand));
    }
    let told = devices[1].cache.curve().hit_ratios_since(&curve);
    for i in 0..4 {
        let real = (devices[i].cache.stats().hits - before[i].hits) as f64 / 6e5;
        assert!((real - told[i]).abs() < 0.015, "of {} times the size: {real} against {}", sizes[i], told[i]);
    }
    assert!(told[3] > told[0] + 0.05, "size matters here");
    assert!(devices[1].cache.miniature_memory() <= 2 << 20);
}

#[test]
fn the_ghost_gets_the_length_that_serves() {
    // Each block is read three times: the ghost has to remember it past some 6,000 others.
    let mut device = large(7, 4096, 128);
    for step in 10_000..120_000 {
        [step, step - 2_500, step - 3_000].into_iter().for_each(|id| device.read(id, Kind::Demand));
    }
    assert_eq!(device.cache.ghost_length(), GhostLength::Twice);
    // Few are read much: who is remembered for long only takes their room.
    let mut state = 1;
    (0..400_000).for_each(|_| device.read(skewed(&mut state, 1e6), Kind::Demand));
    assert_eq!(device.cache.ghost_length(), GhostLength::Half);
}

#[test]
fn when_writes_are_short_metadata_goes_first_and_short_blocks_next() {
    let budget = WriteBudget { share: 0.25, ..WriteBudget::default() };
    let config = Config { seed: 6, slot_units: 4096, expected_blocks: 4096, cap: 1 << 20, budget };
    let mut cache = Cache::new(config);
    (0..16).for_each(|slot| assert!(cache.add_slot(slot)));
    let mut admit = |id: u64, units, kind| {
        let verdict = cache.missed(Read { id, units, kind }, 0);
        let is_admitted =
            verdict == larder_cache::Verdict::Admitted && cache.append(id, units, kind, 0).is_some();
        while let Some(victim) = cache.next_victim() {
            assert!(cache.evict(victim, [(0, 0); 0], 0).is_empty());
            cache.release(victim, larder_cache::Fate::Stays);
        }
        is_admitted.then_some(cache.written_and_budget(0))
    };
    // The first fill is free; then half of the budget goes to whatever is wanted, long and short alike.
    let mut id = 0;
    let mut admitted = [0_u32; 2];
    let mut last = (0, 1);
    while last.0 * 10 < last.1 * 8 && id < 1_000_000 {
        id += 1;
        for (i, units) in [(0, 1), (1, larder_cache::LONGEST)] {
            for _ in 0..2 {
                if let Some(now) = admit(id * 2 + i, units, Kind::Demand) {
                    last = now;
                    admitted[i as usize] += u32::from(now.0 * 2 > now.1);
                    break;
                }
            }
        }
    }
    assert!(admitted[0] > 100 * admitted[1].max(1), "short ones save more a byte: {admitted:?}");
    while let Some(now) = admit(id * 2, 1, Kind::Demand).or_else(|| admit(id * 2, 1, Kind::Demand)) {
        (last, id) = (now, id + 1);
    }
    assert!((last.0 as f64 / last.1 as f64 - 0.9).abs() < 0.01, "the last tenth is not for data: {last:?}");
    while let Some(now) = admit(id * 2, 1, Kind::Metadata) {
        (last, id) = (now, id + 1);
    }
    assert_eq!(last.0, last.1, "but for metadata");
}

#[test]
fn slots_of_before_are_found_again_and_metadata_stays_in_up_to_half() {
    let config = Config {
        seed: 9,
        slot_units: 64,
        expected_blocks: 4096,
        cap: 1 << 20,
        budget: WriteBudget { share: 1000.0, ..WriteBudget::default() },
    };
    let mut cache = Cache::new(config);
    let lengths = [1, 7, larder_cache::LONGEST];
    assert!(cache.restore(2, Kind::Demand, (0..9).map(|i| (i, i as u32 * 7, 7, 0))));
    assert!(cache.restore(0, Kind::Metadata, (100..164).map(|i| (i, i as u32 - 100, 1, 2))));
    assert!(!cache.restore(2, Kind::Demand, []), "it is there");
    // Blocks that do not fit a slot, or have a length that none has, are passed over.
    assert!(cache.restore(1, Kind::Demand, lengths.map(|units| (200 + u64::from(units), 62, units, 0))));
    assert_eq!(cache.blocks(), 9 + 64 + 1);
    assert!((0..9).all(|id| cache.find(id).is_some_and(|of| of.units == 7 && of.place.slot == 2)));
    assert!((100..164).all(|id| cache.find(id).is_some_and(|of| of.place.slot == 0)));
    assert!(cache.is_pinned(0) && !cache.is_pinned(2));
    (3..8).for_each(|slot| assert!(cache.add_slot(slot)));
    // Data comes and goes, and metadata is never chosen.
    let append = |cache: &mut Cache, id, kind| {
        assert!(cache.append(id, 1, kind, 0).is_some(), "no room for {id}, {kind:?}");
        while let Some(victim) = cache.next_victim() {
            assert!(cache.evict(victim, [(0, 0); 0], 0).is_empty());
            cache.release(victim, larder_cache::Fate::Stays);
        }
    };
    (1000..3000).for_each(|id| append(&mut cache, id, Kind::Demand));
    assert!((100..164).all(|id| cache.find(id).is_some()) && (0..9).all(|id| cache.find(id).is_none()));
    // Of metadata alone half of the slots are kept, beside data.
    (5000..5064).for_each(|id| append(&mut cache, id, Kind::Demand));
    (10_000..12_000).for_each(|id| append(&mut cache, id, Kind::Metadata));
    let kept = (10_000..12_000).filter(|id| cache.find(*id).is_some()).count();
    assert!((3 * 64..=6 * 64).contains(&kept), "{kept} of metadata");
    assert_eq!(
        [255 * 4096, 256 * 4096, 257 * 4096].map(larder_cache::units_of),
        [Some(255), Some(257), Some(257)]
    );
    assert_eq!(larder_cache::units_of(257 * 4096 + 1), None);
}

#[test]
fn where_nothing_may_be_written_nothing_is_not_even_for_the_first_time() {
    let budget = WriteBudget { share: 0.0, ..WriteBudget::default() };
    let mut cache = Cache::new(Config { budget, ..config(7) });
    (0..4).for_each(|slot| assert!(cache.add_slot(slot)));
    let read = Read { id: 1, units: 1, kind: Kind::Metadata };
    assert_eq!(cache.missed(read, 0), larder_cache::Verdict::Budget);
    assert_eq!(cache.append(1, 1, Kind::Metadata, 0), None);
    cache.set_write_share(0.5);
    assert_eq!(cache.missed(read, 0), larder_cache::Verdict::Admitted);
    let place = cache.append(1, 1, Kind::Metadata, 0).unwrap();
    assert_eq!(cache.used_bytes(place.slot), UNIT);
    assert_eq!(cache.used_bytes(place.slot ^ 1), 0);
    assert_eq!(cache.written_and_budget(0).0, 0, "what fills a slot for the first time is free");
}

#[test]
fn counts_of_before_are_taken_over_and_those_that_change_are_told() {
    let config = Config {
        seed: 9,
        slot_units: 64,
        expected_blocks: 4096,
        cap: 1 << 20,
        budget: WriteBudget { share: 1000.0, ..WriteBudget::default() },
    };
    let mut cache = Cache::new(config);
    for slot in 0..8_u32 {
        // The oldest was read often.
        let count = if slot == 0 { 3 } else { 0 };
        let id = |unit: u32| u64::from(slot * 64 + unit);
        assert!(cache.restore(slot, Kind::Demand, (0..64).map(|unit| (id(unit), unit, 1, count))));
    }
    let all = |cache: &Cache| cache.counts(0..cache.buckets()).collect::<Vec<_>>();
    assert!(
        all(&cache).len() == 64 && all(&cache).iter().all(|(place, count)| (place.slot, *count) == (0, 3))
    );
    assert!(cache.recounted(0, 10, true).is_empty(), "nothing changed");
    let found = cache.find(5 * 64 + 7).unwrap();
    cache.hit(Read { id: 5 * 64 + 7, units: 1, kind: Kind::Demand }, found.place);
    assert_eq!(cache.recounted(0, 10, false), [5]);
    assert!(cache.recounted(0, 10, false).is_empty(), "it was told");
    assert!(all(&cache).contains(&(found.place, 1)));
    // Of the oldest quarter the other one makes room; of the first all would stay.
    assert_eq!(cache.reclaim(), Some(larder_cache::Reclaimed::Victim(1)));
    assert_eq!(cache.evict(0, (0..64).map(|unit| (unit, unit as u32)), 0).len(), 64);
}
