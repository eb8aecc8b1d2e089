//! Quotas and reservations, as those meet them who write files.

use crate::bed::{Bed, ROOT};
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_format::{ByteLen, DatasetId};
use larder_pool::{Dataset, ROOT_DATASET};
use std::collections::BTreeMap;
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Makes a dataset and shows it under its name; gives its root directory as well.
pub fn dataset(bed: &Bed, name: &str, properties: &[(&str, &str)]) -> (Arc<Dataset>, NodeId) {
    let properties = properties.iter().map(|&(name, value)| (name.into(), value.into())).collect();
    let made = bed.pool.create_dataset(name, properties).unwrap();
    bed.pool.commit().unwrap();
    (Arc::clone(&made), show(bed, &made))
}

pub fn show(bed: &Bed, dataset: &Arc<Dataset>) -> NodeId {
    let place = (dataset.parent(), dataset.last_name().into_bytes());
    bed.mount.attach(Arc::clone(dataset), Some(place)).unwrap();
    NodeId::pack(dataset.id(), larder_format::items::ROOT_INODE)
}

/// Commits; the pool's own check must find nothing.
fn whole(bed: &Bed) {
    bed.pool.commit().unwrap();
    bed.check();
}

fn write(bed: &Bed, node: NodeId, offset: u64, data: &[u8]) -> Result<u32> {
    bed.mount.write(node, Handle(0), offset, data, false)
}

/// Writes noise to the end of a file until it is refused; gives the bytes written and the refusal.
fn fill(bed: &Bed, node: NodeId, piece: usize, seed: u64) -> (u64, FsError) {
    let entropy = SeededEntropy::new(seed);
    let mut written = bed.mount.getattr(node).unwrap().size;
    loop {
        match write(bed, node, written, &entropy.bytes(piece)) {
            Ok(_) => written += piece as u64,
            Err(refusal) => return (written, refusal),
        }
    }
}

#[test]
fn a_write_meets_the_quota_and_a_removal_gives_it_back() {
    for property in ["quota", "refquota"] {
        let bed = Bed::new(&[("recordsize", "16384")]);
        let (home, root) = dataset(&bed, "tank/home", &[(property, "4194304")]);
        let file = bed.file(root, "file");
        let (written, refusal) = fill(&bed, file, 64 << 10, 1);
        assert_eq!(refusal, FsError::Quota);
        assert!((4 * MIB - 128 * KIB..=4 * MIB).contains(&written), "{written}");
        // Nothing comes later that was not said at the write.
        bed.fsync(file);
        bed.pool.commit().unwrap();
        bed.mount.flush(file, Handle(0)).unwrap();
        let used = bed.pool.share(home.id()).used;
        assert!(used <= 4 * MIB && used >= written, "{used}");
        let stat = bed.mount.statfs(root).unwrap();
        assert_eq!(stat.blocks * u64::from(stat.block_size), 4 * MIB, "df shows the quota");
        assert!(stat.available * u64::from(stat.block_size) < 128 * KIB);
        // The pool's own dataset does not feel it.
        bed.write(bed.file(ROOT, "other"), 0, &SeededEntropy::new(2).bytes(1 << 20));
        // Cutting works at the quota, and what it freed can be written at once.
        bed.resize(file, 2 * MIB);
        let (again, refusal) = fill(&bed, file, 64 << 10, 3);
        assert_eq!((again, refusal), (written, FsError::Quota));
        // Space freed in steps (here of 64 records) can be written at once as well.
        bed.mount.unlink(root, b"file").unwrap();
        let (fresh, _) = fill(&bed, bed.file(root, "fresh"), 64 << 10, 4);
        assert_eq!(fresh, written);
        whole(&bed);
    }
}

#[test]
fn at_a_used_up_quota_nothing_is_made_but_everything_can_go() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    let (home, root) = dataset(&bed, "tank/home", &[]);
    let file = bed.file(root, "file");
    bed.write(file, 0, &SeededEntropy::new(1).bytes(64 << 10));
    bed.pool.commit().unwrap();
    let used = bed.pool.share(home.id()).used;
    assert!(bed.pool.set_property(home.id(), "quota", &(used - 1).to_string()).is_err());
    bed.pool.set_property(home.id(), "quota", &used.to_string()).unwrap();
    let make = |name: &[u8]| bed.mount.mknod(root, name, FileKind::Regular, 0o644, 0, &crate::bed::USER);
    assert_eq!(make(b"more").unwrap_err(), FsError::Quota);
    assert_eq!(bed.mount.setxattr(file, b"user.a", b"b", XattrMode::Set).unwrap_err(), FsError::Quota);
    assert_eq!(
        bed.mount.fallocate(file, Handle(0), 0, 4096, Allocate::KeepSize).unwrap_err(),
        FsError::Quota
    );
    bed.mount.fallocate(file, Handle(0), 0, 8192, Allocate::Punch).unwrap();
    make(b"more").unwrap();
    bed.resize(file, 0);
    bed.mount.unlink(root, b"file").unwrap();
    bed.pool.commit().unwrap();
    assert_eq!(bed.pool.share(home.id()).used, 0);
    whole(&bed);
}

#[test]
fn a_quota_counts_what_is_stored_not_what_was_written() {
    let bed = Bed::new(&[]);
    let (home, root) = dataset(&bed, "tank/home", &[("quota", "1048576")]);
    let file = bed.file(root, "file");
    for piece in 0..64 {
        bed.write(file, piece * 128 * KIB, &vec![b'x'; 128 << 10]);
    }
    bed.pool.commit().unwrap();
    assert!(bed.pool.share(home.id()).used < 512 * KIB);
    let (_, refusal) = fill(&bed, file, 128 << 10, 1);
    assert_eq!(refusal, FsError::Quota);
}

#[test]
fn a_quota_bounds_all_below_and_a_refquota_does_not() {
    let bed = Bed::new(&[]);
    let (top, top_root) = dataset(&bed, "tank/top", &[("quota", "4194304"), ("refquota", "1048576")]);
    let (_, below_root) = dataset(&bed, "tank/top/below", &[]);
    let (below, refusal) = fill(&bed, bed.file(below_root, "file"), 64 << 10, 1);
    assert_eq!(refusal, FsError::Quota);
    assert!(below > 3 * MIB, "the refquota above does not count here: {below}");
    assert_eq!(fill(&bed, bed.file(below_root, "more"), 64 << 10, 2), (0, FsError::Quota));
    let own = bed.file(top_root, "file");
    assert_eq!(fill(&bed, own, 64 << 10, 2).1, FsError::Quota);
    let at = |id: DatasetId| bed.pool.share(id);
    bed.pool.commit().unwrap();
    assert_eq!(at(top.id()).used, at(top.id()).dataset + at(top.id()).children);
    // A child goes, and with it what it took.
    let child = bed.pool.dataset_by_name("tank/top/below").unwrap();
    bed.mount.detach(child.id()).unwrap();
    bed.pool.rename_dataset(child.id(), "tank/moved").unwrap();
    assert_eq!(at(top.id()).children, 0);
    let (written, _) = fill(&bed, own, 64 << 10, 3);
    assert!((MIB - 128 * KIB..=MIB).contains(&written), "{written}");
    let refused = bed.pool.rename_dataset(child.id(), "tank/top/below").unwrap_err().to_string();
    assert!(refused.contains("the quota of 4M there would be passed"), "{refused}");
    bed.pool.destroy_dataset(child.id()).unwrap();
    assert_eq!(at(ROOT_DATASET).children, at(top.id()).used);
    whole(&bed);
}

#[test]
fn what_is_reserved_can_be_written_when_everything_else_is_full() {
    for (property, record, others) in [
        ("reservation", "131072", "131072"),
        ("refreservation", "131072", "131072"),
        ("reservation", "16384", "131072"),
        ("reservation", "131072", "8192"),
    ] {
        let bed = Bed::with_layout("mirror", &[ByteLen::new(72 << 20); 2], &[]);
        let free = bed.mount.statfs(ROOT).unwrap();
        let free = free.available * u64::from(free.block_size);
        let reserved = free / 2;
        let (safe, safe_root) = dataset(&bed, "tank/safe", &[("recordsize", record)]);
        let too_much = bed.pool.set_property(safe.id(), property, &(2 * free).to_string()).unwrap_err();
        assert!(too_much.to_string().contains("that are available"), "{too_much}");
        bed.pool.set_property(safe.id(), property, &reserved.to_string()).unwrap();
        let (_, greedy_root) = dataset(&bed, "tank/greedy", &[]);
        let seen = bed.pool.space_of(&bed.pool.dataset(ROOT_DATASET).unwrap()).available;
        assert!(seen.abs_diff(free - reserved) < MIB, "for others it is used: {seen}");
        let greedy_file = bed.file(greedy_root, "file");
        bed.pool.set_property(ROOT_DATASET, "recordsize", others).unwrap();
        let seen = bed.pool.space_of(&bed.pool.dataset(ROOT_DATASET).unwrap()).available;
        let (greedy, refusal) = fill(&bed, greedy_file, 128 << 10, 1);
        assert_eq!(refusal, FsError::NoSpace);
        assert!(greedy.abs_diff(seen) < seen / 20, "{greedy} of {seen}");
        let said = bed.pool.space_of(&safe).available;
        assert!(said >= reserved - MIB, "{property} {record}: AVAIL says {said} of {reserved}");
        let file = bed.file(safe_root, "file");
        let (written, refusal) = fill(&bed, file, 64 << 10, 2);
        println!(
            "{property}, {record}, {others}: {reserved} reserved, {written} written, {greedy} by others of {free}"
        );
        assert_eq!(refusal, FsError::NoSpace);
        bed.pool.commit().unwrap();
        let used = bed.pool.share(safe.id()).dataset;
        assert!(used + 256 * KIB >= reserved, "{property}: {used} of {reserved}");
        // And still when all of it was overwritten.
        bed.resize(file, written / 2);
        if record == others {
            assert_eq!(write(&bed, greedy_file, greedy, &[1; 128 << 10]).unwrap_err(), FsError::NoSpace);
        }
        let (again, _) = fill(&bed, file, 64 << 10, 3);
        assert!(again + 256 * KIB >= written, "{again} of {written}");
        whole(&bed);
    }
}

#[test]
fn a_dataset_is_made_with_several_limits_at_once() {
    let bed = Bed::new(&[]);
    let limits = [
        ("quota", "67108864"),
        ("refquota", "33554432"),
        ("reservation", "2097152"),
        ("refreservation", "1048576"),
    ];
    let (home, root) = dataset(&bed, "tank/home", &limits);
    // The limits are counted in records of its own size, whatever its parent's is.
    let (other, _) = dataset(
        &bed,
        "tank/other",
        &[("recordsize", "4096"), ("reservation", "2097152"), ("refreservation", "1048576")],
    );
    bed.write(bed.file(root, "file"), 0, &SeededEntropy::new(1).bytes(1 << 20));
    assert!(bed.pool.space_of(&home).available > MIB && bed.pool.space_of(&other).available > MIB);
    let sizes = [("recordsize", "0"), ("reservation", "1048576"), ("refreservation", "1048576")];
    let sizes = sizes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let odd = bed.pool.create_dataset("tank/odd", sizes).unwrap();
    assert_eq!(odd.settings().record_size, 128 << 10, "what cannot be is not believed");
    whole(&bed);
}

#[test]
fn more_is_not_asked_of_a_quota_than_there_are_numbers_for() {
    let bed = Bed::new(&[]);
    let (home, root) = dataset(&bed, "tank/home", &[("quota", "8388608")]);
    let file = bed.file(root, "file");
    bed.write(file, 0, &SeededEntropy::new(1).bytes(1 << 20));
    let most = larder_format::items::MAX_FILE;
    let refused = bed.mount.fallocate(file, Handle(0), 0, most, Allocate::KeepSize);
    assert_eq!(refused.unwrap_err(), FsError::Quota);
    whole(&bed);
    assert!(bed.pool.share(home.id()).used < 2 * MIB);
}

#[test]
fn accounts_are_what_was_committed_and_replayed() {
    let bed = Bed::new(&[]);
    let (home, root) = dataset(&bed, "tank/home", &[("quota", "1048576"), ("refreservation", "524288")]);
    let file = bed.file(root, "file");
    let (written, _) = fill(&bed, file, 32 << 10, 1);
    bed.fsync(file);
    let id = home.id();
    drop(home);
    let bed = bed.crash(7);
    let home = bed.pool.dataset(id).unwrap();
    let root = show(&bed, &home);
    let file = bed.find("home/file").unwrap();
    assert_eq!(file.size, written);
    assert_eq!(fill(&bed, file.node, 32 << 10, 2), (written, FsError::Quota));
    bed.mount.unlink(root, b"file").unwrap();
    bed.pool.commit().unwrap();
    let share = bed.pool.share(id);
    assert_eq!((share.used, share.dataset, share.refreservation), (512 * KIB, 0, 512 * KIB));
    // Taken away again: nothing is kept, nothing bounds, and nothing is set.
    for name in ["quota", "refreservation"] {
        bed.pool.set_property(id, name, "0").unwrap();
    }
    assert!(home.own_properties().local().is_empty());
    assert_eq!(bed.pool.share(ROOT_DATASET).used, 0);
    whole(&bed);
}

/// Bytes of a record in the simulation.
const RECORD: u64 = 16 * KIB;
/// Bytes by which `used` may pass a quota: the rest of records that were stored shorter than they are now.
const SLACK: u64 = 24 * RECORD;

#[test]
fn random_work_stays_within_its_limits_and_is_refused_for_the_right_reason() {
    let (mut seen, mut overshoot) = (BTreeMap::new(), 0);
    for seed in 0..12 {
        simulate(seed, &mut seen, &mut overshoot);
    }
    println!("{seen:?}, at most {overshoot} B past a limit");
    for what in ["written", "EDQUOT", "ENOSPC", "set", "not set"] {
        assert!(seen.get(what).is_some_and(|&count| count > 5), "{what}: {seen:?}");
    }
}

fn simulate(seed: u64, seen: &mut BTreeMap<&'static str, u64>, overshoot: &mut u64) {
    let entropy = SeededEntropy::new(seed);
    let next = |n: u64| entropy.next_u64() % n;
    let mut bed = Bed::with_layout("single", &[ByteLen::new(64 << 20)], &[("recordsize", "16384")]);
    let names = ["tank/a", "tank/a/b", "tank/a/c", "tank/d"];
    let mut roots: Vec<NodeId> = names.iter().map(|name| dataset(&bed, name, &[]).1).collect();
    let mut count = |what: &'static str| *seen.entry(what).or_default() += 1;
    for step in 0..400 {
        let case = format!("seed {seed}, step {step}");
        let at = next(4) as usize;
        let id = roots[at].unpack().0;
        let set = bed.pool.dataset(id).unwrap();
        let name = format!("file{}", next(6));
        let file = match bed.mount.lookup(roots[at], name.as_bytes()) {
            Ok(attr) => Ok(attr.node),
            Err(_) => bed
                .mount
                .mknod(roots[at], name.as_bytes(), FileKind::Regular, 0o644, 0, &crate::bed::USER)
                .map(|attr| attr.node),
        };
        let refused = |refusal: FsError, bytes: u64| match refusal {
            FsError::Quota => {
                assert!(quota_is_near(&bed, &set, bytes), "{case}: {bytes} B met no quota");
                "EDQUOT"
            }
            FsError::NoSpace => {
                let free = bed.pool.store().space(RECORD as u32).available;
                let kept: u64 = ["tank/a", "tank/a/b", "tank/a/c", "tank/d", "tank"]
                    .iter()
                    .map(|name| kept_unused(&bed, name))
                    .sum();
                assert!(free < kept + bytes + 256 * KIB, "{case}: {free} B are free, {kept} kept");
                let mine = promises_to(&bed, &set);
                assert!(bytes > mine, "{case}: {bytes} B were refused, {mine} are kept for it");
                "ENOSPC"
            }
            other => panic!("{case}: {other}"),
        };
        match (next(20), file) {
            (_, Err(refusal)) => count(refused(refusal, 64 * KIB)),
            (0..12, Ok(file)) => {
                let len = 1 + next(if next(4) == 0 { MIB } else { 64 * KIB });
                let data = if next(3) == 0 { vec![b'x'; len as usize] } else { entropy.bytes(len as usize) };
                match write(&bed, file, next(2 * MIB), &data) {
                    Ok(_) => count("written"),
                    Err(refusal) => count(refused(refusal, len)),
                }
            }
            (12, Ok(file)) => bed.resize(file, next(MIB)),
            (13, Ok(_)) => bed.mount.unlink(roots[at], name.as_bytes()).unwrap(),
            (14, Ok(file)) => bed.fsync(file),
            (15..18, Ok(_)) => {
                let limit = larder_pool::Limits::NAMES[next(4) as usize];
                let most = if limit.ends_with("quota") { 3 * MIB } else { 40 * MIB };
                let value = if next(4) == 0 { 0 } else { next(most) };
                let before = bed.pool.space_of(&set).available;
                match bed.pool.set_property(id, limit, &value.to_string()) {
                    Ok(()) => count("set"),
                    Err(refusal) => {
                        assert!(value > 0, "{case}: {refusal}, {before} were available");
                        count("not set");
                    }
                }
            }
            (18, Ok(_)) => drop(bed.pool.commit().unwrap()),
            (_, Ok(_)) => {
                if next(4) == 0 {
                    drop(set);
                    bed = bed.crash(seed * 1000 + step);
                    let found = names.map(|name| bed.pool.dataset_by_name(name).unwrap());
                    roots = found.iter().map(|dataset| show(&bed, dataset)).collect();
                }
            }
        }
        for name in names {
            let dataset = bed.pool.dataset_by_name(name).unwrap();
            let (share, local) = (bed.pool.share(dataset.id()), dataset.own_properties().local().clone());
            let limit = |name: &str| local.get(name).map_or(u64::MAX / 2, |value| value.parse().unwrap());
            let over = share.used.saturating_sub(limit("quota"));
            let over = over.max(share.dataset.saturating_sub(limit("refquota")));
            assert!(over <= SLACK, "{case}: {name} uses {share:?}");
            *overshoot = (*overshoot).max(over);
        }
    }
    bed.pool.commit().unwrap();
    whole(&bed);
    let total: u64 = bed.pool.datasets().iter().map(|dataset| dataset.usage().referenced).sum();
    let shares: u64 = bed.pool.datasets().iter().map(|dataset| bed.pool.share(dataset.id()).dataset).sum();
    assert_eq!(total, shares, "seed {seed}");
}

/// Whether `bytes` more may pass a quota on the way up.
fn quota_is_near(bed: &Bed, dataset: &Arc<Dataset>, bytes: u64) -> bool {
    let most = bytes + (bytes / RECORD + 3) * RECORD;
    let limit = |dataset: &Dataset, name: &str| -> u64 {
        dataset.own_properties().local().get(name).map_or(u64::MAX, |value| value.parse().unwrap())
    };
    let own = bed.pool.share(dataset.id()).dataset;
    if own.saturating_add(most) > limit(dataset, "refquota") {
        return true;
    }
    let mut at = Arc::clone(dataset);
    loop {
        if bed.pool.share(at.id()).used.saturating_add(most) > limit(&at, "quota") {
            return true;
        }
        if at.id() == ROOT_DATASET {
            return false;
        }
        at = bed.pool.dataset(at.parent()).unwrap();
    }
}

/// Bytes kept for a dataset, and for it and others below the same ancestors.
fn promises_to(bed: &Bed, dataset: &Arc<Dataset>) -> u64 {
    let mut kept = bed.pool.share(dataset.id()).refreservation;
    let mut at = Arc::clone(dataset);
    while at.id() != ROOT_DATASET {
        let name = bed.pool.full_name(at.id());
        kept += kept_unused(bed, &name) - bed.pool.share(at.id()).refreservation;
        at = bed.pool.dataset(at.parent()).unwrap();
    }
    kept
}

/// Bytes that a dataset's reservations keep beyond its use.
fn kept_unused(bed: &Bed, name: &str) -> u64 {
    let dataset = bed.pool.dataset_by_name(name).unwrap();
    let share = bed.pool.share(dataset.id());
    let reserved =
        dataset.own_properties().local().get("reservation").map_or(0, |value| value.parse().unwrap());
    share.refreservation + u64::saturating_sub(reserved, share.used)
}

#[test]
fn small_overwrites_of_large_records_fit_a_pool_that_is_half_full() {
    // Each takes a whole record when it is stored: what is dirty needs 32 times what was written.
    let bed = Bed::with_layout("mirror", &[ByteLen::new(96 << 20); 2], &[("recordsize", "131072")]);
    let (half, entropy) = (bed.pool.store().space(128 << 10).available / 2, SeededEntropy::new(1));
    let file = bed.file(ROOT, "file");
    let mut content = entropy.bytes(half as usize);
    bed.write(file, 0, &content);
    bed.pool.commit().unwrap();
    for round in 0..3000 {
        let at = (entropy.next_u64() % (half / 4096)) as usize * 4096;
        let piece = entropy.bytes(4096);
        content[at..at + 4096].copy_from_slice(&piece);
        bed.write(file, at as u64, &piece);
        // Data streams out between commits, and what it replaces stays until they come.
        if round % 300 == 0 {
            let _ = bed.pool.flush_front();
        }
    }
    bed.pool.commit().unwrap();
    assert!(bed.content(file) == content);
    whole(&bed);
}

#[test]
fn what_was_accepted_by_a_pool_that_runs_full_can_be_stored() {
    // Records grow in halves, each of which is stored: more is written than was accepted.
    let bed = Bed::with_layout("mirror", &[ByteLen::new(72 << 20); 2], &[("recordsize", "8192")]);
    let (half, entropy) = (bed.pool.store().space(8192).available / 2, SeededEntropy::new(1));
    bed.write(bed.file(ROOT, "small records"), 0, &entropy.bytes(half as usize));
    bed.pool.commit().unwrap();
    bed.pool.set_property(ROOT_DATASET, "recordsize", "131072").unwrap();
    let file = bed.file(ROOT, "file");
    let said = bed.pool.store().space(128 << 10).available;
    let (written, _) = fill(&bed, file, 64 << 10, 2);
    assert!(written.abs_diff(said) < 512 * KIB, "{written} B were written, AVAIL said {said}");
    bed.pool.commit().unwrap();
    bed.resize(file, written / 2);
    let (again, _) = fill(&bed, file, 64 << 10, 3);
    assert!(again.abs_diff(written) < 512 * KIB, "{again} of {written}");
    whole(&bed);
}

#[test]
fn small_records_of_the_smallest_pool_can_be_overwritten_when_it_is_nearly_full() {
    const RECORD: u64 = 16 * KIB;
    for (word, devices) in [("single", 1), ("raidz1", 3)] {
        let sizes = vec![ByteLen::new(64 << 20); devices];
        let bed = Bed::with_layout(word, &sizes, &[("recordsize", "16384")]);
        let said = bed.pool.store().space(RECORD as u32).available;
        let (records, entropy) = (said / 100 * 95 / RECORD, SeededEntropy::new(1));
        let file = bed.file(ROOT, "file");
        for record in 0..records {
            bed.write(file, record * RECORD, &entropy.bytes(RECORD as usize));
        }
        bed.pool.commit().unwrap();
        for round in 0..4500 {
            let at = entropy.next_u64() % records * RECORD;
            let written = write(&bed, file, at, &entropy.bytes(RECORD as usize));
            let left = bed.pool.store().space(RECORD as u32).available;
            assert_eq!(written, Ok(RECORD as u32), "{word}, overwrite {round}: AVAIL {left} of {said}");
        }
        whole(&bed);
    }
}

#[test]
fn a_stream_takes_what_avail_said_in_the_widest_layouts() {
    for (word, devices) in [("raidz2", 6), ("raidz1", 3), ("mirror", 2)] {
        let sizes = vec![ByteLen::new(72 << 20); devices];
        let bed = Bed::with_layout(word, &sizes, &[]);
        bed.pool.set_pool_property("memory", &(64 * MIB).to_string()).unwrap();
        let said = bed.pool.store().space(128 << 10).available;
        let (file, entropy) = (bed.file(ROOT, "file"), SeededEntropy::new(1));
        let (mut written, mut piece) = (0, 3 * (128 << 10));
        while piece > 0 {
            if write(&bed, file, written, &entropy.bytes(piece)).is_err() {
                piece = if piece > 128 << 10 { 128 << 10 } else { 0 };
                continue;
            }
            written += piece as u64;
            // As the daemon does.
            if bed.pool.store().dirty().get() >= bed.pool.stream_from() {
                let stored = bed.mount.flush_stripes();
                assert!(stored.is_ok() || bed.pool.commit().is_ok());
            }
            if written % (100 * MIB) < piece as u64 {
                bed.pool.commit().unwrap();
            }
        }
        let ratio = written as f64 / said as f64;
        println!("{word}: {ratio:.4}");
        // A segment of so small a pool is two hundredths of it, and copies of a last record are in one of their own.
        assert!(
            (0.98..=1.01).contains(&ratio),
            "{word}: AVAIL said {said}, {written} B were written: {ratio:.4}"
        );
    }
}
