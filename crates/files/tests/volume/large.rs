//! A directory of very many names: what each operation costs, and that it goes on costing that. By hand:
//! `LARDER_NAMES=1000000 cargo test --release -p larder-files --test volume large -- --ignored --nocapture`

use crate::bed::{Bed, ROOT, USER};
use larder_device::{Clock, SystemClock};
use larder_files::*;
use larder_format::ByteLen;
use std::collections::BTreeSet;

/// Names that a listing gives before they are removed.
const BATCH: usize = 1000;
/// Operations from one commit to the next.
const COMMIT_EVERY: usize = 20_000;

/// Prints what a name costs, of which each of `count` calls of `work` does `names`, in each quarter of them.
fn each(bed: &Bed, what: &str, (count, names): (usize, usize), mut work: impl FnMut(usize)) {
    let clock = SystemClock::default();
    let mut shown = String::new();
    for quarter in 0..4 {
        let range = count * quarter / 4..count * (quarter + 1) / 4;
        let (start, len) = (clock.monotonic(), range.len() * names);
        for i in range {
            work(i);
            if i * names % COMMIT_EVERY == 0 {
                bed.pool.commit().unwrap();
            }
        }
        let spent = clock.monotonic() - start;
        shown += &format!(" {:8.2}", spent.as_secs_f64() * 1e6 / len as f64);
    }
    println!("{what:<25} microseconds a name, by quarters:{shown}");
}

#[test]
#[ignore = "by hand: it takes minutes and a gigabyte"]
fn a_large_directory_costs_no_more_a_name_than_a_small_one() {
    let count = std::env::var("LARDER_NAMES").map_or(50_000, |names| names.parse().unwrap());
    let bed = Bed::with_layout("single", &[ByteLen::new(16 << 30)], &[]);
    let dir = bed.dir(ROOT, "dir");
    let name = |i: usize| format!("a name as they are {i:07}").into_bytes();
    // In no order that the tree knows.
    let shuffled = |i: usize| i * 7_368_787 % count;
    each(&bed, "make", (count, 1), |i| {
        bed.mount.mknod(dir, &name(i), FileKind::Regular, 0o644, 0, &USER).unwrap();
    });
    bed.pool.commit().unwrap();
    each(&bed, "look up", (count, 1), |i| {
        bed.mount.lookup(dir, &name(shuffled(i))).unwrap();
    });
    each(&bed, "look up what is not there", (count, 1), |i| {
        assert_eq!(bed.mount.lookup(dir, &name(count + i)), Err(FsError::NotFound));
    });
    for plus in [false, true] {
        let (mut cookie, mut seen) = (0, 0);
        let what = if plus { "list with attributes" } else { "list" };
        each(&bed, what, (count / BATCH, BATCH), |_| {
            let (from, before) = (cookie, seen);
            let mut emit = |entry: DirEntry<'_>| {
                let taken = seen < before + BATCH;
                if taken {
                    (cookie, seen) = (entry.next_cookie, seen + 1);
                }
                taken
            };
            bed.mount.readdir(dir, Handle(0), from, plus, &mut emit).unwrap();
        });
    }
    each(&bed, "rename", (count / 4, 1), |i| {
        let (from, to) = (name(i), name(2 * count + i));
        bed.mount.rename(dir, &from, dir, &to, RenameFlags::default()).unwrap();
    });
    each(&bed, "write a little", (count, 1), |i| {
        let found = bed.mount.lookup(dir, &name(if i < count / 4 { 2 * count + i } else { i })).unwrap();
        bed.write(found.node, 0, &[i as u8; 100]);
    });
    bed.pool.commit().unwrap();
    // As rm does: lists a batch, removes it, goes on from its cookie.
    let (mut cookie, mut gone) = (0, BTreeSet::new());
    each(&bed, "list and remove", (count / BATCH + 1, BATCH), |_| {
        let (from, mut batch) = (cookie, Vec::new());
        let mut emit = |entry: DirEntry<'_>| {
            let taken = batch.len() < BATCH;
            if taken {
                cookie = entry.next_cookie;
                batch.push(entry.name.to_vec());
            }
            taken
        };
        bed.mount.readdir(dir, Handle(0), from, false, &mut emit).unwrap();
        for name in batch.into_iter().filter(|name| !matches!(name.as_slice(), b"." | b"..")) {
            bed.mount.unlink(dir, &name).unwrap();
            assert!(gone.insert(name));
        }
    });
    assert_eq!((gone.len(), bed.names(dir).len()), (count, 2), "each was listed once");
    bed.mount.rmdir(ROOT, b"dir").unwrap();
    while bed.mount.reap_step(1000).unwrap() {}
    bed.pool.commit().unwrap();
    bed.check_tree();
}
