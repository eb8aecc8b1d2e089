//! The real cleaner, in a pool on a file.

use crate::Args;
use larder_benches::committer::Committer;
use larder_benches::content::Content;
use larder_benches::pattern::Picker;
use larder_benches::{MIB, pool_in};
use larder_device::Histogram;
use larder_files::{Caller, FileKind, FsError, Handle, Mount, NodeId, Ops};
use larder_pool::{Pool, ROOT_DATASET, Writes};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;

const WRITER: Caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0 };

struct Bed {
    pool: Arc<Pool>,
    mount: Arc<Mount>,
    _folder: TempDir,
}

impl Bed {
    fn new(args: &Args) -> Self {
        let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
        let folder = TempDir::with_prefix_in("larder-bench-", folder).expect("the folder can be written");
        let pool = pool_in(folder.path(), "single", 1, (args.mib * MIB) as u64);
        let set = |name, value: String| pool.set_property(ROOT_DATASET, name, &value).expect("a property");
        set("compression", "off".into());
        set("recordsize", format!("{}K", args.record_kib));
        pool.set_pool_property("memory", &(args.memory_mib << 20).to_string()).expect("a property");
        let mount = Mount::new(Arc::clone(&pool), (0, 0)).expect("a mount");
        mount.attach(pool.dataset(ROOT_DATASET).expect("there is one"), None).expect("it is attached");
        pool.commit().expect("a commit");
        Self { pool, mount, _folder: folder }
    }

    fn available(&self, args: &Args) -> u64 {
        self.pool.store().space((args.record_kib << 10) as u32).available
    }

    /// Slots that are free, and all.
    fn slots(&self) -> (u64, u64) {
        let groups = self.pool.store().groups();
        let slots = groups.iter().flat_map(|group| &group.devices);
        slots.fold((0, 0), |(free, all), &(_, used, of)| (free + of - used, all + of))
    }

    fn device_bytes(&self) -> u64 {
        self.pool
            .store()
            .members()
            .iter()
            .map(|member| member.counters.written_bytes.load(Ordering::Relaxed))
            .sum()
    }
}

/// Counts so far.
#[derive(Clone, Copy)]
struct Seen {
    at: Duration,
    written: u64,
    device: u64,
    writes: Writes,
    commits: u64,
}

/// Fills, overwrites and prints.
pub fn run(args: &Args) {
    let bed = Bed::new(args);
    let committer = Committer::of(&bed.pool);
    std::thread::scope(|scope| {
        let (works, pool, mount) = (&committer, &bed.pool, &bed.mount);
        scope.spawn(|| works.work(pool, mount));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match args.rise {
            Some(step) => rise(args, &bed, step),
            None => overwrite(args, &bed),
        }));
        committer.stop();
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

fn overwrite(args: &Args, bed: &Bed) {
    let (pool, mount, clock) = (&bed.pool, &bed.mount, bed.pool.store().clock());
    let (unit, file_bytes) = (args.write_kib << 10, args.file_mib * MIB);
    assert!(file_bytes.is_multiple_of(unit) && unit > 0, "files of whole overwrites");
    let per_file = file_bytes / unit;
    let available = bed.available(args);
    let files = (available * args.fill / 100) as usize / file_bytes;
    println!(
        "{} MiB, AVAIL {} MiB, {} slots: filled to {} % with {files} files of {} MiB, then {} overwrites of {} KiB",
        args.mib,
        available >> 20,
        bed.slots().1,
        args.fill,
        args.file_mib,
        args.pattern,
        args.write_kib
    );
    let content = Content::Random.bytes(16 * MIB);
    let piece = |n: usize, len: usize| {
        let at = n.wrapping_mul(4096 * 7 + 8) % (content.len() - len);
        &content[at..at + len]
    };
    let begin = clock.monotonic();
    let nodes: Vec<NodeId> = (0..files)
        .map(|file| {
            let name = format!("file{file:05}");
            let made = mount.mknod(NodeId::ROOT, name.as_bytes(), FileKind::Regular, 0o644, 0, &WRITER);
            let node = made.expect("a file can be made").node;
            for mib in 0..args.file_mib {
                let data = piece(file + mib, MIB);
                mount.write(node, Handle(0), (mib * MIB) as u64, data, false).expect("it fits");
            }
            node
        })
        .collect();
    pool.commit().expect("a commit");
    let took = clock.monotonic() - begin;
    let filled = files * file_bytes;
    println!(
        "filled in {:.1} s, {:.0} MiB/s; AVAIL {} MiB, {} slots free\n",
        took.as_secs_f64(),
        filled as f64 / MIB as f64 / took.as_secs_f64(),
        bed.available(args) >> 20,
        bed.slots().0
    );

    let picker = Picker::new(args.pattern, files * per_file, args.seed);
    let waits = Histogram::default();
    let total = (args.mib as f64 * args.times * MIB as f64) as u64;
    let begin = clock.monotonic();
    let read = |written| Seen {
        at: clock.monotonic() - begin,
        written,
        device: bed.device_bytes(),
        writes: pool.writes(),
        commits: pool.store().durable_commit().get(),
    };
    let first = read(0);
    let (mut last, mut counted, mut before, mut worst) = (first, waits.read(), Duration::ZERO, 0);
    println!(
        "   s      MiB   MiB/s  moved MiB/s commits/s |  WA now  so far | dev/caller now  so far |    p50    p99    max us | free AVAIL MiB"
    );
    let (mut written, mut n, mut unsynced) = (0, 0, 0);
    let (mut refused, mut refused_in_a_row) = (0_u64, 0);
    while written < total {
        let (file, at) = {
            let of = picker.pick();
            (of / per_file, of % per_file)
        };
        n += 1;
        let node = nodes[file];
        match mount.write(node, Handle(0), (at * unit) as u64, piece(n, unit), false) {
            Ok(_) => refused_in_a_row = 0,
            Err(FsError::NoSpace) => {
                (refused, refused_in_a_row) = (refused + 1, refused_in_a_row + 1);
                assert!(refused_in_a_row < 1000, "nothing but ENOSPC after {} MiB", written >> 20);
                continue;
            }
            Err(error) => panic!("after {} MiB: {error}", written >> 20),
        }
        written += unit as u64;
        unsynced += unit;
        if args.sync_mib.is_some_and(|mib| unsynced >= mib * MIB) {
            mount.fsync(node, Handle(0), false).expect("it is synced");
            unsynced = 0;
        }
        let now = clock.monotonic() - begin;
        let wait = (now - before).as_nanos() as u64;
        before = now;
        waits.record(wait);
        worst = worst.max(wait);
        if now - last.at >= Duration::from_secs(args.every) {
            let (seen, counts) = (read(written), waits.read());
            line(bed, args, (&first, &last, &seen), &counts.since(&counted), worst);
            (last, counted, worst) = (seen, counts, 0);
            before = clock.monotonic() - begin;
        }
    }
    pool.commit().expect("a commit");
    let (seen, counts) = (read(written), waits.read());
    println!();
    line(bed, args, (&first, &first, &seen), &counts, counts.occupied().last().map_or(0, |(ns, _)| ns));
    if refused > 0 {
        println!("\n{refused} overwrites were refused for lack of space");
    }
}

/// Throughput, write amplification and latency of overwrites as the pool fills, in steps of `step` per cent.
fn rise(args: &Args, bed: &Bed, step: usize) {
    let (pool, mount, clock) = (&bed.pool, &bed.mount, bed.pool.store().clock());
    let (unit, file_bytes) = (args.write_kib << 10, args.file_mib * MIB);
    let empty = bed.available(args);
    let content = Content::Random.bytes(16 * MIB);
    let mut nodes: Vec<NodeId> = Vec::new();
    let (mut n, mut full) = (0, false);
    let mut data = |len: usize| {
        n += 1;
        let at = (n * (4096 * 7 + 8)) % (content.len() - len);
        &content[at..at + len]
    };
    println!(
        "{} MiB, AVAIL {} MiB; {} overwrites of {} KiB at each fill, {}\n\nfill %   MiB/s     WA |    p50    p90    p99  p99.9      max us | refused",
        args.mib,
        empty >> 20,
        (args.mib as f64 * args.times * MIB as f64) as usize / unit,
        args.write_kib,
        args.pattern,
    );
    for fill in (args.fill as usize..=100).step_by(step) {
        while !full && bed.available(args) as f64 > empty as f64 * (100 - fill) as f64 / 100.0 {
            let name = format!("file{:05}", nodes.len());
            let Ok(made) = mount.mknod(NodeId::ROOT, name.as_bytes(), FileKind::Regular, 0o644, 0, &WRITER)
            else {
                break;
            };
            let written = (0..args.file_mib).try_for_each(|at| {
                mount.write(made.node, Handle(0), (at * MIB) as u64, data(MIB), false).map(drop)
            });
            full = written.is_err();
            nodes.push(made.node);
        }
        pool.commit().expect("a commit");
        let picker = Picker::new(args.pattern, nodes.len() * (file_bytes / unit), args.seed);
        let (waits, before, begin) = (Histogram::default(), pool.writes(), clock.monotonic());
        let (mut refused, mut written) = (0u64, 0u64);
        let mut last = begin;
        let overwrites = (args.mib as f64 * args.times * MIB as f64) as usize / unit;
        for _ in 0..overwrites {
            let of = picker.pick();
            let (file, at) = (of / (file_bytes / unit), of % (file_bytes / unit));
            match mount.write(nodes[file], Handle(0), (at * unit) as u64, data(unit), false) {
                Ok(_) => written += unit as u64,
                Err(FsError::NoSpace) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            let now = clock.monotonic();
            waits.record((now - last).as_nanos() as u64);
            last = now;
        }
        let (took, after, counts) = (clock.monotonic() - begin, pool.writes(), waits.read());
        let stored = (after.stored - before.stored) as f64;
        let us = |per_mille| counts.percentile(per_mille).unwrap_or(0) / 1000;
        println!(
            "{fill:>6} {:>7.0} {:>6.2} | {:>6} {:>6} {:>6} {:>6} {:>11} | {refused:>7}",
            mib(written) / took.as_secs_f64(),
            (stored + (after.moved - before.moved) as f64) / stored.max(1.0),
            us(500),
            us(900),
            us(990),
            us(999),
            counts.occupied().last().map_or(0, |(ns, _)| ns) / 1000,
        );
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn line(bed: &Bed, args: &Args, seen: (&Seen, &Seen, &Seen), waits: &larder_device::Counts, worst: u64) {
    let (first, last, now) = seen;
    let seconds = (now.at - last.at).as_secs_f64();
    let since = |of: fn(&Seen) -> u64, from: &Seen| (of(now) - of(from)) as f64;
    let amplified = |from| {
        let (stored, moved) = (since(|seen| seen.writes.stored, from), since(|seen| seen.writes.moved, from));
        (stored + moved) / stored.max(1.0)
    };
    let device = |from| since(|seen| seen.device, from) / since(|seen| seen.written, from).max(1.0);
    let us = |per_mille| waits.percentile(per_mille).unwrap_or(0) / 1000;
    println!(
        "{:>4.0} {:>8.0} {:>7.0} {:>12.0} {:>9.1} | {:>7.3} {:>7.3} | {:>14.3} {:>7.3} | {:>6} {:>6} {:>9} | {:>4} {:>9}",
        now.at.as_secs_f64(),
        mib(now.written),
        mib(now.written - last.written) / seconds,
        mib(now.writes.moved - last.writes.moved) / seconds,
        (now.commits - last.commits) as f64 / seconds,
        amplified(last),
        amplified(first),
        device(last),
        device(first),
        us(500),
        us(990),
        worst / 1000,
        bed.slots().0,
        bed.available(args) >> 20,
    );
}
