//! Several callers at once, with commits and flushes under way: nobody waits for ever, nothing is lost.

use crate::bed::{Bed, READ_WRITE, ROOT, USER};
use larder_device::{Entropy, SeededEntropy};
use larder_files::*;
use larder_pool::ROOT_DATASET;

const CALLERS: u64 = 4;
const STEPS: u64 = 2500;
const LEN: usize = 40_000;

/// Writes, cuts, renames and syncs in a directory of its own and in one that all share.
fn work(bed: &Bed, caller: u64, shared: NodeId) {
    let entropy = SeededEntropy::new(caller);
    let below = |n: u64| entropy.next_u64() % n;
    let dir = bed.dir(ROOT, &format!("caller-{caller}"));
    let node = bed.file(dir, "file");
    let mut content = vec![0u8; LEN];
    bed.resize(node, LEN as u64);
    for step in 0..STEPS {
        let at = below(LEN as u64 - 5000) as usize;
        let data = vec![step as u8; 1 + below(5000) as usize];
        bed.write(node, at as u64, &data);
        content[at..at + data.len()].copy_from_slice(&data);
        match below(12) {
            0 => bed.fsync(node),
            1 => {
                bed.resize(node, at as u64);
                bed.resize(node, LEN as u64);
                content[at..].fill(0);
            }
            2 => {
                let mode = Allocate::Zero { keep_size: true };
                bed.mount.fallocate(node, Handle(0), at as u64, 3000, mode).unwrap();
                content[at..at + 3000].fill(0);
            }
            3 | 4 => {
                let name = format!("name-{}", below(3));
                let temporary = bed.file(shared, &format!("temporary-{caller}"));
                bed.write(temporary, 0, name.as_bytes());
                let from = format!("temporary-{caller}");
                let flags = RenameFlags::default();
                bed.mount.rename(shared, from.as_bytes(), shared, name.as_bytes(), flags).unwrap();
            }
            5 => {
                let name = format!("name-{}", below(3));
                if let Ok(found) = bed.mount.lookup(shared, name.as_bytes())
                    && bed.mount.open(found.node, READ_WRITE).is_ok()
                {
                    // Replaced or not, an open file keeps its content.
                    drop(bed.mount.unlink(shared, name.as_bytes()));
                    assert_eq!(bed.read(found.node, 0, 4), b"name");
                    bed.mount.release(found.node, Handle(0)).unwrap();
                }
            }
            6 => assert_eq!(bed.names(shared)[0].0, "."),
            7 => drop(bed.mount.mkdir(shared, b"dir", 0o755, &USER)),
            8 => drop(bed.mount.rmdir(shared, b"dir")),
            9 => bed.mount.volume(ROOT_DATASET).unwrap().flush_all().unwrap(),
            _ => assert_eq!(bed.read(node, 100, 2000), content[100..2100]),
        }
    }
    assert_eq!(bed.content(node), content);
}

#[test]
fn callers_and_commits_do_not_wait_for_each_other_for_ever() {
    let bed = Bed::new(&[("recordsize", "4096")]);
    bed.pool.set_pool_property("memory", "2097152").unwrap();
    let shared = bed.dir(ROOT, "shared");
    std::thread::scope(|scope| {
        let bed = &bed;
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| scope.spawn(move || work(bed, caller, shared))).collect();
        while !callers.iter().all(|caller| caller.is_finished()) {
            bed.pool.commit().unwrap();
            bed.mount.reap_step(10).unwrap();
            std::thread::yield_now();
        }
    });
    while bed.mount.reap_step(1000).unwrap() {}
    bed.pool.commit().unwrap();
    bed.check();
    assert_eq!(bed.pool.dirty().get(), 0);
}
