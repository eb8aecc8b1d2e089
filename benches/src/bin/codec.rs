//! Codecs over real files: speed in MB/s of plain bytes, ratio, and what giving up early costs.
//!
//! `cargo run --release -p larder-benches --bin codec [folder…]` reads up to 256 MiB of files, the same
//! share from each folder (/usr/lib and /usr/share unless told), as records of 128 KiB.

use larder_benches::timed;
use larder_format::block::CodecKind;
use larder_pool::codec::{self, Codec};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const RECORD: usize = 128 << 10;
const TOTAL: usize = 256 << 20;

fn main() {
    let mut folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if folders.is_empty() {
        folders = ["/usr/lib", "/usr/share"].map(PathBuf::from).to_vec();
    }
    let mut files = Vec::new();
    for folder in &folders {
        let mut room = TOTAL / folders.len();
        read_files(folder, &mut room, &mut files);
    }
    let records: Vec<&[u8]> = files.iter().flat_map(|file| file.chunks(RECORD)).collect();
    let plain: usize = records.iter().map(|record| record.len()).sum();
    println!("{} records of {} files, {} MiB", records.len(), files.len(), plain >> 20);

    println!("\ncodec     compress   decompress   ratio   stored plain");
    for name in ["off", "lz4", "zstd-1", "zstd-3", "gzip-6"] {
        speed(name.parse().expect("a codec"), &records, plain);
    }
    println!("\ncodec     incompressible: number, time, time of the library alone; given up wrongly");
    for level in [3, 9] {
        let mut library = zstd::bulk::Compressor::new(level).expect("a context");
        let unprobed = |record: &[u8], out: &mut [u8]| library.compress_to_buffer(record, out).ok();
        given_up(Codec::Zstd(level as u8), &records, unprobed);
    }
    let level = libdeflater::CompressionLvl::new(6).expect("a level");
    let mut library = libdeflater::Compressor::new(level);
    given_up(Codec::Gzip(6), &records, |record, out| library.deflate_compress(record, out).ok());
}

/// Reads files below `folder`, in the order of their names, until `room` bytes are used up.
fn read_files(folder: &Path, room: &mut usize, files: &mut Vec<Vec<u8>>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            read_files(&path, room, files);
        } else if meta.is_file()
            && *room > 0
            && let Ok(mut bytes) = fs::read(&path)
        {
            bytes.truncate(*room);
            *room -= bytes.len();
            files.push(bytes);
        }
    }
}

fn speed(codec: Codec, records: &[&[u8]], plain: usize) {
    let (mut compressing, mut decompressing) = (Duration::ZERO, Duration::ZERO);
    let (mut stored, mut stored_plain) = (0, 0);
    let mut back = vec![0; RECORD];
    for record in records {
        let mut payload = None;
        compressing += timed(|| payload = codec::compress(codec, record));
        let (kind, bytes) = match &payload {
            Some(payload) => (codec.kind(), &payload[..]),
            None => (CodecKind::Off, *record),
        };
        let back = &mut back[..record.len()];
        decompressing += timed(|| codec::decompress_into(kind, bytes, back).expect("our own payload"));
        assert!(back == *record, "{codec} returned other bytes");
        stored += bytes.len();
        stored_plain += usize::from(kind == CodecKind::Off);
    }
    let rate = |time: Duration| plain as f64 / 1e6 / time.as_secs_f64();
    println!(
        "{:8} {:6.0} MB/s  {:6.0} MB/s   {:5.3}   {:6.1} %",
        codec.to_string(),
        rate(compressing),
        rate(decompressing),
        plain as f64 / stored as f64,
        100.0 * stored_plain as f64 / records.len() as f64,
    );
}

/// Compares with the library itself, which does not look first.
fn given_up(codec: Codec, records: &[&[u8]], mut library: impl FnMut(&[u8], &mut [u8]) -> Option<usize>) {
    let (mut refused, mut missed, mut saved, mut lost) = (0, 0, 0, 0);
    let (mut looking, mut trying) = (Duration::ZERO, Duration::ZERO);
    let mut unprobed = vec![0; RECORD];
    for record in records {
        let limit = record.len() - record.len().div_ceil(8);
        let mut len = None;
        let library_time = timed(|| len = library(record, &mut unprobed[..limit]));
        let mut payload = None;
        let time = timed(|| payload = codec::compress(codec, record));
        match len {
            Some(len) => {
                saved += record.len() - len;
                if payload.is_none() {
                    missed += 1;
                    lost += record.len() - len;
                }
            }
            None if record.len() == RECORD => {
                refused += 1;
                looking += time;
                trying += library_time;
            }
            None => (),
        }
    }
    let us = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(refused.max(1));
    println!(
        "{:8}  {refused:6}  {:6.0} us  {:6.0} us   {missed:6} ({:.3} % of the savings)",
        codec.to_string(),
        us(looking),
        us(trying),
        100.0 * lost as f64 / (saved as f64).max(1.0),
    );
}
