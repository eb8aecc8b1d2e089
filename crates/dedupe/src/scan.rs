//! Reading: files become hashes of their blocks.
//!
//! A hash is 64 bits of XXH3. More would buy nothing: the kernel compares bytes before it shares any, so two blocks of
//! one hash that differ cost a refused request. A hole has the hash 0 and is left alone; the block at the end of a file
//! is hashed with its length, so that it meets only ends of the same length, which is what the kernel permits.

use crate::hash_file::{Kind, Record};
use crate::walk::{Found, Root, stamp_of};
use crate::{Error, Options, Phase, Report, Run};
use rustix::fs::{self, Advice, IFlags, SeekFrom};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use twox_hash::XxHash3_64;

/// Bytes of a file that one worker hashes at a time.
const UNIT: u64 = 32 << 20;
/// Bytes that are read at a time; a multiple of every length of a block.
const READ: u64 = 1 << 20;
/// Bytes that are read between two commits: what is read again after kill -9.
const BATCH: u64 = 1 << 30;
const BATCH_FILES: usize = 4096;
/// Blocks after which a run of one content repeats itself: such runs share extents of this many blocks, not of one.
const TILE: u64 = 256;

/// Reads those of the files that the hash file does not know as they are; the records of all that could be read.
pub fn scan(
    run: &Run<'_>,
    roots: &[Root],
    found: &[Found],
    report: &mut Report,
) -> Result<Vec<Option<Record>>, Error> {
    let log2 = run.options.block_log2();
    let path = |file: &Found| roots[file.root].path.join(&file.below);
    let mut records = run.file.records(found.iter().map(path))?;
    for (record, file) in records.iter_mut().zip(found) {
        *record = record.filter(|known| known.stamp == file.stamp && known.block_log2 == log2);
    }
    let mut wanted: Vec<usize> = (0..found.len()).filter(|&at| records[at].is_none()).collect();
    // About in the order in which they lie on the device.
    wanted.sort_by_key(|&at| found[at].stamp.inode);
    let total: u64 = wanted.iter().map(|&at| found[at].stamp.size).sum();
    let done = AtomicU64::new(0);
    run.progress.begin(Phase::Read, total);
    let mut rest = &wanted[..];
    while !rest.is_empty() && !run.is_stopped() {
        let mut bytes = 0;
        let count = rest.iter().take(BATCH_FILES).take_while(|&&at| {
            let fits = bytes < BATCH;
            bytes += found[at].stamp.size;
            fits
        });
        let (batch, later) = rest.split_at(count.count());
        rest = later;
        let mut read = read_batch(run, roots, found, batch, &done);
        read.retain(|(_, file)| file.is_some());
        report.unreadable += (batch.len() - read.len()) as u64;
        report.bytes_read += read.iter().map(|&(at, _)| found[at].stamp.size).sum::<u64>();
        report.files_read += read.len() as u64;
        if run.is_stopped() {
            break;
        }
        let (places, mut noted): (Vec<usize>, Vec<_>) = read
            .into_iter()
            .filter_map(|(at, file)| file.map(|(record, hashes)| (at, (path(&found[at]), record, hashes))))
            .unzip();
        run.file.note(&mut noted)?;
        places.iter().zip(&noted).for_each(|(&at, (_, record, _))| records[at] = Some(*record));
    }
    Ok(records)
}

type Read = Option<(Record, Vec<u64>)>;

fn read_batch(
    run: &Run<'_>,
    roots: &[Root],
    found: &[Found],
    batch: &[usize],
    done: &AtomicU64,
) -> Vec<(usize, Read)> {
    // Units of several files: a large one has all workers, and small ones share one.
    let mut units: Vec<(usize, u64)> = Vec::new();
    for (number, &at) in batch.iter().enumerate() {
        units.extend((0..found[at].stamp.size.div_ceil(UNIT)).map(|unit| (number, unit * UNIT)));
    }
    let hashed = run.workers.map(units.len(), |unit| {
        let (number, from) = units[unit];
        let file = &found[batch[number]];
        if run.is_stopped() {
            return None;
        }
        let to = file.stamp.size.min(from + UNIT);
        let hashed = roots[file.root]
            .open(&file.below)
            .and_then(|fd| hash_part(run.options, &fd, file.stamp.size, from, to));
        run.progress.at(done.fetch_add(to - from, Ordering::Relaxed) + to - from);
        hashed.ok()
    });
    let mut files: Vec<(usize, Read)> = batch
        .iter()
        .map(|&at| {
            let stamp = found[at].stamp;
            let record = Record {
                id: 0,
                stamp,
                block_log2: run.options.block_log2(),
                kind: Kind::Plain,
                is_settled: false,
            };
            (at, Some((record, Vec::new())))
        })
        .collect();
    for (&(number, _), part) in units.iter().zip(hashed) {
        let file = &mut files[number].1;
        match (part, &mut *file) {
            (Some((kind, part)), Some((record, hashes))) => {
                record.kind = kind;
                hashes.extend(part);
            }
            _ => *file = None,
        }
    }
    files.iter_mut().filter_map(|(_, file)| file.as_mut()).for_each(|(_, hashes)| tile(hashes));
    files
}

/// Hashes a part of a file, from and up to multiples of a unit.
fn hash_part(
    options: &Options,
    fd: &OwnedFd,
    size: u64,
    from: u64,
    to: u64,
) -> Result<(Kind, Vec<u64>), Errno> {
    let flags = fs::ioctl_getflags(fd).unwrap_or(IFlags::empty());
    if flags.contains(IFlags::NOCOW) {
        return Ok((Kind::NoCow, Vec::new()));
    }
    let kind = if flags.contains(IFlags::IMMUTABLE) { Kind::Immutable } else { Kind::Plain };
    // Another size by now is another file: the next run reads it.
    if stamp_of(fd)?.size != size {
        return Err(Errno::AGAIN);
    }
    let _ = fs::fadvise(fd, from, std::num::NonZeroU64::new(to - from), Advice::Sequential);
    let block = options.block;
    let mut hashes = vec![0; (to - from).div_ceil(block) as usize];
    let mut buffer = vec![0; READ.min(to - from) as usize];
    let mut at = from;
    while at < to {
        // A shared position: each worker opens the file for itself.
        at = match fs::seek(fd, SeekFrom::Data(at)) {
            Ok(data) => (data / block * block).max(at),
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        if at >= to {
            break;
        }
        let end = fs::seek(fd, SeekFrom::Hole(at))?.next_multiple_of(block).min(to);
        while at < end {
            let want = (end - at).min(READ) as usize;
            let mut got = 0;
            while got < want {
                match rustix::io::retry_on_intr(|| {
                    rustix::io::pread(fd, &mut buffer[got..want], at + got as u64)
                })? {
                    0 => return Err(Errno::AGAIN),
                    count => got += count,
                }
            }
            for (number, bytes) in buffer[..want].chunks(block as usize).enumerate() {
                let seed = if bytes.len() < block as usize { bytes.len() as u64 } else { 0 };
                hashes[((at - from) / block) as usize + number] =
                    XxHash3_64::oneshot_with_seed(seed, bytes).max(1);
            }
            at += want as u64;
        }
    }
    Ok((kind, hashes))
}

/// Blocks of a run of one content are told apart by their place in it, so that runs share long extents.
fn tile(hashes: &mut [u64]) {
    let (mut last, mut place) = (0, 0);
    for hash in hashes {
        place = if *hash == last { (place + 1) % TILE } else { 0 };
        last = *hash;
        if last != 0 && place != 0 {
            *hash = last.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1);
        }
    }
}

/// Path of a file as the hash file has it.
pub fn path(roots: &[Root], file: &Found) -> PathBuf {
    roots[file.root].path.join(&file.below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_content_repeat_by_tiles_and_holes_stay_holes() {
        let mut hashes = vec![0, 0, 9];
        hashes.extend([5; TILE as usize * 2]);
        hashes.push(9);
        tile(&mut hashes);
        let (first, second) = hashes[3..].split_at(TILE as usize);
        assert_eq!(first, &second[..TILE as usize]);
        assert!((1..TILE as usize).all(|at| first[at] != first[0]));
        assert_eq!((hashes[0], hashes[1], hashes[2], hashes.last()), (0, 0, 9, Some(&9)));
    }

    #[test]
    fn an_end_meets_only_ends_of_its_length_and_holes_are_not_read() {
        let bed = tempfile::tempdir().unwrap();
        let options = Options { block: 4096, ..Options::default() };
        let of = |bytes: &[u8], size: u64| {
            let path = bed.path().join("file");
            std::fs::write(&path, bytes).unwrap();
            let file = std::fs::OpenOptions::new().write(true).read(true).open(&path).unwrap();
            file.set_len(size).unwrap();
            hash_part(&options, &file.into(), size, 0, size).unwrap().1
        };
        let a = of(&[7; 5000], 5000);
        let b = of(&[7; 9000], 9000);
        assert_eq!(a[0], b[0]);
        assert_ne!(a[1], b[2]);
        let sparse = of(&[7; 4096], 64 << 20);
        assert_eq!((sparse.len(), sparse[0], sparse[sparse.len() - 1]), (16384, a[0], 0));
    }
}
