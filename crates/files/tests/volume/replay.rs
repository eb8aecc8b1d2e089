//! Replay at import, where there is little memory or no room: what was promised is there.

use crate::bed::{Bed, READ_WRITE, ROOT, USER};
use crate::full::{LAYOUTS, setting};
use larder_device::{Entropy, Inline, SeededEntropy};
use larder_files::*;
use larder_format::checksum::ChecksumKind;
use larder_format::items::{EXTENT, Extent};
use larder_format::node::Key;
use larder_format::{ByteLen, Place};
use larder_pool::codec::Codec;
use larder_pool::{Dedup, NewRecord, PoolError, ROOT_DATASET};
use larder_sim::{SimWorld, Survival};
use larder_upkeep::Upkeep;
use std::collections::BTreeMap;
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const RECORD: u64 = 128 * KIB;

fn noise(entropy: &SeededEntropy, len: u64) -> Vec<u8> {
    entropy.bytes(len as usize)
}

/// Writes a file until so many bytes are available; the file, and what is in it.
fn fill(bed: &Bed, entropy: &SeededEntropy, name: &str, left: u64) -> (NodeId, Vec<u8>) {
    let (file, mut content) = (bed.file(ROOT, name), Vec::new());
    while bed.pool.store().space(RECORD as u32).available > left {
        let piece = noise(entropy, RECORD);
        bed.write(file, content.len() as u64, &piece);
        content.extend(piece);
        bed.pool.commit().unwrap();
    }
    (file, content)
}

/// Files with their content, all of it synced.
type Files = BTreeMap<String, Vec<u8>>;

/// The pool as the devices had it after event `cut`, imported with so much memory.
fn import(bed: &Bed, cut: usize, memory: u64) -> Result<Bed> {
    let sim = SimWorld::from_images(bed.sim.trace().crash_images(cut, Survival::DropAll));
    let clock = Arc::clone(&bed.clock);
    let pool = Bed::import_pool(Arc::new(Inline), &sim, &clock, 7 + cut as u64);
    pool.set_pool_property("memory", &memory.to_string()).unwrap();
    let mount = Mount::new(Arc::clone(&pool), (0, 0))?;
    mount.attach(pool.dataset(ROOT_DATASET).unwrap(), None).unwrap();
    pool.commit().unwrap();
    Ok(Bed { sim, clock, upkeep: Upkeep::new(&pool), pool, mount })
}

fn compare(bed: &Bed, files: &Files) {
    for (name, content) in files {
        let found = bed.find(name).unwrap();
        assert!(&bed.content(found.node) == content, "content of {name}");
    }
}

#[test]
fn what_a_file_held_before_its_first_name_is_there_however_little_memory_replay_has() {
    for committed in [false, true] {
        let bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], &[("compression", "off")]);
        let entropy = SeededEntropy::new(1);
        let node = bed.mount.tmpfile(ROOT, 0o600, READ_WRITE, &USER).unwrap().0.node;
        if committed {
            bed.pool.commit().unwrap();
        }
        let mut files = Files::from([("report".into(), noise(&entropy, 100 * KIB))]);
        bed.write(node, 0, &files["report"]);
        bed.fsync(node);
        for i in 0..8 {
            let (name, content) = (format!("other{i}"), noise(&entropy, 100 * KIB));
            let other = bed.file(ROOT, &name);
            bed.write(other, 0, &content);
            bed.fsync(other);
            files.insert(name, content);
        }
        bed.mount.link(node, ROOT, b"report").unwrap();
        bed.mount.unlink(ROOT, b"other3").unwrap();
        files.remove("other3");
        bed.mount.fsyncdir(ROOT, Handle(0), false).unwrap();
        let again = import(&bed, bed.sim.trace().len(), 2 << 20).unwrap();
        while again.mount.reap_step(100).unwrap() {}
        again.pool.commit().unwrap();
        compare(&again, &files);
        again.check();
        again.check_tree();
    }
}

#[test]
fn what_was_written_over_and_over_is_replayed_with_little_memory_into_little_room() {
    let bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], &[("compression", "off")]);
    let entropy = SeededEntropy::new(1);
    let (file, mut content) = fill(&bed, &entropy, "file", 6 << 20);
    let durable = bed.pool.store().durable_commit();
    let (mut cut, mut files) = (0, Files::new());
    for round in 0..90u64 {
        cut = bed.sim.trace().len();
        files.insert("file".into(), content.clone());
        for i in round * 10..round * 10 + 10 {
            let at = i % 30 * RECORD + i / 30 * 4 * KIB;
            let piece = noise(&entropy, 4 * KIB);
            bed.write(file, at, &piece);
            content[at as usize..][..piece.len()].copy_from_slice(&piece);
        }
        bed.fsync(file);
        if bed.pool.store().durable_commit() > durable {
            assert!(round > 50, "the log was full after {round} rounds");
            break;
        }
    }
    let again = import(&bed, cut, 1 << 20).unwrap();
    compare(&again, &files);
    again.check();
}

#[test]
fn an_import_that_finds_no_room_says_so_and_the_next_one_goes_on() {
    for (word, count) in [("single", 1), ("raidz1", 3)] {
        let sizes = vec![ByteLen::new(64 << 20); count];
        let bed = Bed::with_layout(word, &sizes, &[("compression", "off")]);
        let (entropy, mut files) = (SeededEntropy::new(1), Files::new());
        for i in 0..20 {
            let (name, content) = (format!("file{i}"), noise(&entropy, RECORD));
            let file = bed.file(ROOT, &name);
            bed.write(file, 0, &content);
            bed.fsync(file);
            files.insert(name, content);
        }
        let sim =
            SimWorld::from_images(bed.sim.trace().crash_images(bed.sim.trace().len(), Survival::DropAll));
        for seed in 0..2 {
            let pool = Bed::import_pool(Arc::new(Inline), &sim, &bed.clock, 7 + seed);
            // Somebody else has all the room.
            loop {
                let op = pool.enter().unwrap();
                let record = |_| NewRecord {
                    dataset: ROOT_DATASET,
                    inode: 1,
                    offset: 0,
                    plain: noise(&entropy, 32 * KIB).into(),
                    codec: Codec::Off,
                    encoded: None,
                    checksum: ChecksumKind::Fast,
                    dedup: Dedup::Off,
                    copies: 1,
                    replaces: None,
                };
                if pool.store_records(&op, (0..8).map(record).collect()).is_err() {
                    break;
                }
            }
            let told = Mount::new(Arc::clone(&pool), (0, 0)).err().expect("there is no room");
            assert!(told == FsError::NoSpace, "{word}: {told}");
            assert_eq!(pool.store().suspended(), None);
        }
        let again = Bed::import(sim, Arc::clone(&bed.clock), 10);
        compare(&again, &files);
        again.check();
    }
}

#[test]
fn what_the_log_holds_is_stored_at_one_place_where_more_are_asked_for_and_find_no_room() {
    let bed = Bed::with_layout("single", &[ByteLen::new(96 << 20)], &[("compression", "off")]);
    let (entropy, mut files) = (SeededEntropy::new(1), Files::new());
    files.insert("ballast".into(), fill(&bed, &entropy, "ballast", 12 << 20).1);
    let durable = bed.pool.store().durable_commit();
    let (mut cut, mut logged) = (0, 0);
    for i in 0..90 {
        let (name, content) = (format!("file{i}"), noise(&entropy, RECORD));
        let made = bed.mount.mknod(ROOT, name.as_bytes(), FileKind::Regular, 0o644, 0, &USER);
        let Ok(node) = made.map(|made| made.node) else { break };
        if bed.mount.write(node, Handle(0), 0, &content, false).is_err() {
            break;
        }
        bed.fsync(node);
        if bed.pool.store().durable_commit() > durable {
            break;
        }
        (cut, logged) = (bed.sim.trace().len(), logged + RECORD);
        files.insert(name, content);
    }
    println!("{logged} bytes are logged");
    for copies in [1, 3] {
        let sim = SimWorld::from_images(bed.sim.trace().crash_images(cut, Survival::DropAll));
        let pool = Bed::import_pool(Arc::new(Inline), &sim, &bed.clock, 7);
        // More were asked for before the data was there.
        pool.set_property(ROOT_DATASET, "copies", &copies.to_string()).unwrap();
        let dataset = pool.dataset(ROOT_DATASET).unwrap();
        for i in 0.. {
            if pool.store().storable_now(RECORD as u32, 3) < 3 * logged {
                break;
            }
            let op = pool.enter().unwrap();
            let record = NewRecord {
                dataset: ROOT_DATASET,
                inode: 1 << 40,
                offset: i * RECORD,
                plain: noise(&entropy, RECORD).into(),
                codec: Codec::Off,
                encoded: None,
                checksum: ChecksumKind::Fast,
                dedup: Dedup::Off,
                copies: 1,
                replaces: None,
            };
            let ptr = pool.store_records(&op, vec![record]).unwrap()[0];
            let len = RECORD as u32;
            let extent = Extent { ptr, len, block_offset: 0, logical: len, placed: 0, copies: 1 };
            let named = dataset.update(&op, |tree| {
                tree.insert(Key::new(1 << 40, EXTENT, i * RECORD), &extent.encode())?;
                tree.link_block(&extent);
                Ok::<_, PoolError>(())
            });
            named.unwrap();
        }
        let mount = Mount::new(Arc::clone(&pool), (0, 0)).unwrap();
        mount.attach(pool.dataset(ROOT_DATASET).unwrap(), None).unwrap();
        let again = Bed { sim, clock: Arc::clone(&bed.clock), upkeep: Upkeep::new(&pool), pool, mount };
        // Nodes may have found room.
        let several = |places: &[Place]| places.len() > 1 && u64::from(places[0].stored) > RECORD;
        let several =
            again.pool.blocks().unwrap().iter().filter(|(_, entry)| several(entry.places())).count();
        assert_eq!(several, 0, "records at more places than there was room for");
        compare(&again, &files);
        again.check();
        // Later writes get them, or are refused.
        let written = again.mount.write(again.find("file1").unwrap().node, Handle(0), 0, &[7; 100], false);
        assert!(written.is_ok() || written == Err(FsError::NoSpace), "{written:?}");
        again.pool.commit().unwrap();
        again.check();
    }
}

/// A pool that is full and was overwritten here and there, and the file in it.
fn aged((word, count): (&str, usize), record: u64, memory: u64, entropy: &SeededEntropy) -> (Bed, Files) {
    let properties = [("recordsize", &*record.to_string()), ("compression", "off"), ("atime", "off")];
    let bed = Bed::with_layout(word, &vec![ByteLen::new(64 << 20); count], &properties);
    bed.pool.set_pool_property("memory", &memory.to_string()).unwrap();
    let (ballast, mut content) = (bed.file(ROOT, "ballast"), Vec::new());
    loop {
        let piece = noise(entropy, 128 * KIB);
        if bed.mount.write(ballast, Handle(0), content.len() as u64, &piece, false).is_err() {
            break;
        }
        content.extend(piece);
    }
    bed.pool.commit().unwrap();
    for _ in 0..200 {
        let at = entropy.next_u64() % (content.len() as u64 - 4 * KIB);
        let piece = noise(entropy, 4 * KIB);
        if bed.mount.write(ballast, Handle(0), at, &piece, false).is_ok() {
            content[at as usize..][..piece.len()].copy_from_slice(&piece);
        }
    }
    bed.pool.commit().unwrap();
    (bed, Files::from([("ballast".into(), content)]))
}

/// A change of one of the files, synced, or refused.
fn change(bed: &Bed, files: &mut Files, entropy: &SeededEntropy) {
    let below = |n: u64| entropy.next_u64() % n;
    let name = if below(4) == 0 { format!("small{}", below(40)) } else { "ballast".into() };
    let made = bed
        .find(&name)
        .or_else(|_| bed.mount.mknod(ROOT, name.as_bytes(), FileKind::Regular, 0o644, 0, &USER));
    let Ok(node) = made.map(|made| made.node) else { return };
    let content = files.entry(name).or_default();
    let at = if content.is_empty() { 0 } else { below(content.len() as u64) };
    let piece = noise(entropy, 1 + below(6 * KIB));
    if bed.mount.write(node, Handle(0), at, &piece, false).is_ok() {
        content.resize(content.len().max(at as usize + piece.len()), 0);
        content[at as usize..][..piece.len()].copy_from_slice(&piece);
    }
    bed.fsync(node);
}

/// Number of pools: `LARDER_LIVES`; the first: `LARDER_SEED`.
#[test]
fn a_log_that_is_full_is_replayed_into_a_pool_that_is_full() {
    let first = setting("LARDER_SEED", 0);
    for seed in first..first + setting("LARDER_LIVES", 2) {
        let entropy = SeededEntropy::new(seed);
        let (layout, record) = (LAYOUTS[seed as usize % 4], [131_072, 16_384, 4096][seed as usize % 3]);
        let memory = [64u64, 8, 2][seed as usize / 2 % 3] << 20;
        let (bed, mut files) = aged(layout, record, memory, &entropy);
        // The moment before a commit at which the log had most.
        let (mut steps, mut most) = (0, (0, 0, Files::new()));
        for _ in 0..400 {
            let (cut, commit) = (bed.sim.trace().len(), bed.pool.store().durable_commit());
            if steps > most.0 {
                most = (steps, cut, files.clone());
            }
            change(&bed, &mut files, &entropy);
            steps = if bed.pool.store().durable_commit() == commit { steps + 1 } else { 0 };
        }
        let (steps, cut, files) = most;
        println!("seed {seed}: {layout:?}, records of {record}, memory {memory}: {steps} operations");
        for memory in [memory, 1 << 20] {
            let again = import(&bed, cut, memory);
            let again = again.unwrap_or_else(|error| panic!("seed {seed}, memory {memory}: {error}"));
            compare(&again, &files);
            again.check();
            // The import itself is cut short, and cut short again.
            let mut last = again;
            for _ in 0..3 {
                let cut = entropy.next_u64() as usize % (last.sim.trace().len() + 1);
                last = import(&last, cut, memory).unwrap();
                compare(&last, &files);
            }
        }
    }
}
