//! Nothing that a file holds passes for anything of the pool: neither what a user can make up, nor bytes of the pool
//! itself, as an image of one of its disks has them.

use crate::common::Kept;
use crate::common::{Model, commit, create, files, import_from, plans, verify, world};
use crate::forge::{WORDS, attack, forged, noise, store};
use larder_device::{AlignedBuf, Device, Entropy, Request, SeededEntropy, TIMEOUT};
use larder_format::block::CheckedHeader;
use larder_format::checksum::{KEY_LEN, PoolKey, Sums};
use larder_format::label::{Label, label_areas};
use larder_format::{BlockId, BlockPtr, ByteLen, CommitId, DeviceOffset, GroupIndex, Incarnation, Reason};
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, ImportOptions, Pool, PoolSpec, World};
use larder_sim::{Fault, SimWorld};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_block_in_a_files_content_is_content() {
    for seed in 0..WORDS.len() as u64 {
        attack(seed).unwrap();
    }
}

/// The cleaner looks for blocks behind a header on a sector that cannot be read.
#[test]
fn blocks_in_a_files_content_are_content_where_its_header_cannot_be_read() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let (pool, mut model) = (create(&sim, "single"), Model::new());
    commit(&pool, &mut model, &files(10, 9, 1));
    let root = plans(sim.devices()).remove(0).root;
    let targets = store(&pool, vec![noise(3, 64), noise(4, 64)]);
    let fake =
        |ptr: &BlockPtr| forged(pool.store().sums(), ptr.id, (root.incarnation, root.commit), &[b'F'; 64]);
    let fakes: Vec<u8> = targets.iter().flat_map(fake).collect();
    // The last says that it reaches beyond the next file.
    let long = forged(pool.store().sums(), targets[0].id, (root.incarnation, root.commit), &[0; 300 << 10]);
    let fakes = fakes.iter().copied().cycle().take(200 << 10).chain(long[..4096].iter().copied()).collect();
    let contents = [noise(5, 9000), fakes, noise(6, 9000)];
    let ptrs = store(&pool, contents.to_vec());
    let (segment, at) = (ptrs[1].place.segment, ptrs[1].place.offset);
    let segments = pool.store().segments();
    let slot = segments.iter().find(|of| of.id == segment).unwrap().slots[0];
    let at = pool.store().members().get(slot.device).slot_offset(slot.index, at).get() & !4095;
    assert!(ptrs.iter().chain(&targets).all(|ptr| ptr.place.segment == segment));
    assert!(ptrs[0].place.offset < ptrs[1].place.offset && ptrs[1].place.offset < ptrs[2].place.offset);
    // The segment is worth cleaning.
    commit(&pool, &mut model, &files(10, 3, 2));
    pool.store().core.lock().close_streams(GroupIndex::new(0));
    sim.device(0).inject(Fault::FailReads(at..at + 4096));
    pool.store().drop_caches();
    while pool.clean_step(true).unwrap().is_some() {}
    let segments = pool.store().segments();
    let left = segments.iter().find(|of| of.id == segment).map(|of| of.live_blocks);
    assert_eq!(left, Some(2), "all but the file, and the one whose end is on that sector");
    pool.store().drop_caches();
    for (ptr, content) in targets.iter().zip([noise(3, 64), noise(4, 64)]) {
        assert_eq!(
            &pool.store().read(*ptr).unwrap()[..],
            content,
            "what another file holds is not taken for it"
        );
    }
    assert_eq!(&pool.store().read(ptrs[2]).unwrap()[..], contents[2]);
    verify(&pool, &model);
    sim.device(0).clear_faults();
    for (ptr, content) in ptrs.iter().zip(&contents) {
        assert_eq!(&pool.store().read(*ptr).unwrap()[..], content);
    }
}

#[test]
fn what_everybody_knows_of_a_pool_does_not_make_a_block() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let stamp = (Incarnation::new(1), CommitId::new(1));
    let own = forged(pool.store().sums(), BlockId::new(7), stamp, b"content");
    CheckedHeader::check(pool.store().sums(), &own).unwrap();
    let guessed = Sums::new(pool.store().guid(), PoolKey::new([0; KEY_LEN]));
    let fake = forged(&guessed, BlockId::new(7), stamp, b"content");
    assert_eq!(CheckedHeader::check(pool.store().sums(), &fake).unwrap_err().reason, Reason::Checksum);
    let shown = format!("{:?} {:?}", pool.store().sums(), pool.store().sums().key());
    assert_eq!(shown, format!("Sums({}) PoolKey(..)", pool.store().guid()), "a key is not shown");
}

/// Blocks written by the other half of a pool that was taken apart are intact, have this pool's key, and ids that are
/// in use here.
#[test]
fn a_block_of_a_split_half_is_not_taken_for_the_one_of_its_id() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20); 2]);
    let pool = create(&sim, "mirror");
    store(&pool, vec![noise(1, 5000)]);
    drop(pool);
    let half = |at: usize, seed| {
        let half = SimWorld::from_images(vec![sim.device(at).image()]);
        let pool = import_from(half.devices(), seed).unwrap();
        let ptr = store(&pool, vec![noise(seed, 5000)])[0];
        (half, pool, ptr)
    };
    let ((first, pool, ptr), (other, other_pool, others)) = (half(0, 2), half(1, 3));
    if ptr.id != others.id {
        // Ids tell by themselves.
        return;
    }
    drop(other_pool);
    assert_eq!(ptr.place, others.place, "the same was done with both");
    drop(pool);
    let pool = import_from(first.devices(), 4).unwrap();
    let slot = |pool: &Pool| {
        let record =
            pool.store().segments().into_iter().find(|record| record.id == ptr.place.segment).unwrap();
        let mut slots = record.slots.iter().map(|slot| (pool.store().members().get(slot.device), slot.index));
        let (member, index) = slots.find(|(member, _)| member.is_online()).unwrap();
        member.slot_offset(index, 0)
    };
    let from = slot(&pool).get() + u64::from(ptr.place.offset / 4096 * 4096);
    let read = |sim: &SimWorld| sim.device(0).image().read(DeviceOffset::new(from), 12288).to_vec();
    let (own, foreign) = (read(&first), read(&other));
    assert_ne!(own, foreign);
    let written =
        Request::Write { offset: DeviceOffset::new(from), data: Arc::new(AlignedBuf::padded(&foreign)) };
    first.devices()[0].submit(written).within(TIMEOUT).unwrap();
    pool.store().read(ptr).expect_err("it is the other half's");
}

/// A file that is looked at as a device carries the label of the pool's own, GUIDs and all, and the newest root.
#[test]
fn a_device_made_up_by_somebody_joins_no_pool() {
    let sim = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let pool = create(&sim, "single");
    let ptr = store(&pool, vec![noise(1, 5000)])[0];
    drop(pool);
    let fake = SimWorld::from_images(sim.images());
    let device: Arc<dyn Device> = fake.devices().remove(0);
    for area in label_areas(device.size()) {
        let bytes = fake.device(0).image().read(area, 4096);
        let label = Label { key: PoolKey::new([7; KEY_LEN]), ..Label::check(&bytes).unwrap() };
        let data = Arc::new(AlignedBuf::padded(&label.encode()));
        device.submit(Request::Write { offset: area, data }).within(TIMEOUT).unwrap();
    }
    let mut both = sim.devices();
    both.push(Arc::clone(&device));
    let mut found = plans(both);
    // Its roots are not summed with the key that it names, so it is no pool at all.
    assert_eq!(found.len(), 1);
    let pool = Kept::import(world(3), found.remove(0), &ImportOptions::default()).unwrap();
    assert_eq!(&pool.store().read(ptr).unwrap()[..], noise(1, 5000));
    drop(pool);
    // One with roots of its own is told of, and nothing is chosen unasked.
    let other = SimWorld::new(&[ByteLen::new(64 << 20)]);
    let groups = vec![GroupSpec::data(rule_for("single", 1).unwrap(), other.devices())];
    let entropy = Arc::new(SameGuid(SeededEntropy::new(1), SeededEntropy::new(9), AtomicBool::new(true)));
    let spec = PoolSpec { name: "tank".into(), groups, ashift: 12 };
    let pool = Kept::create(World { entropy, ..world(1) }, spec).unwrap();
    assert_eq!(pool.store().guid(), plans(sim.devices()).remove(0).guid);
    drop(pool);
    let mut both = sim.devices();
    both.extend(other.devices());
    let found = plans(both);
    assert!(found.len() == 2 && found.iter().all(|plan| plan.refusal.is_some()), "neither is believed");
}

/// Gives one number of the first, which names the pool, and then the second's.
struct SameGuid(SeededEntropy, SeededEntropy, AtomicBool);

impl Entropy for SameGuid {
    fn next_u64(&self) -> u64 {
        if self.2.swap(false, Ordering::Relaxed) { self.0.next_u64() } else { self.1.next_u64() }
    }
}
