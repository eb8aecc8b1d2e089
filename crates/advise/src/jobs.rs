//! Jobs of a scan: pieces of files are read, cut, hashed, and some of their records compressed.

use crate::Watch;
use crate::gain::{self, Draw};
use crate::prints::{COUNT, LONGEST, Printer, Prints};
use crate::read::Source;
use larder_device::Clock;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes that are held at once of a piece, but for what is not cut yet: few, so that they stay in the cache.
const STEP: usize = LONGEST;

/// A piece of a file to be read.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The file.
    pub path: Arc<PathBuf>,
    /// Number of its folder.
    pub folder: u32,
    /// The cluster that it belongs to, with the stratum in the lowest bits; 0 in a scan of everything.
    pub key: u32,
    /// Bytes from where to where.
    pub range: Range<u64>,
    /// Bytes of it that are no holes.
    pub data: u64,
    /// Of the whole file.
    pub size: u64,
    /// Part in the hash of the file.
    pub file: FilePart,
    /// Positions whose records are compressed, and whether dear codecs are tried.
    pub draws: Vec<(u64, bool)>,
    /// Nothing but its hash is wanted.
    pub probe: bool,
    /// Longest records that make sense.
    pub most: usize,
}

/// Part in the hash of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePart {
    /// Number of the file.
    pub number: u64,
    /// Whether no other piece follows.
    pub last: bool,
    /// Whether the hash is wanted; in a table for all large files, if so.
    pub hashed: Option<bool>,
}

/// That which came of a piece.
#[derive(Default)]
pub struct Outcome {
    /// Bytes read.
    pub read: u64,
    /// Fingerprints of its records.
    pub prints: Prints,
    /// Records that were compressed.
    pub draws: Vec<Draw>,
    /// The reason for which it could not be read.
    pub failed: Option<io::Error>,
    /// Whether the scan was stopped before.
    pub skipped: bool,
}

/// Reads pieces; those left when it is stopped are skipped. What cannot be read is in the outcomes.
pub fn read_job(
    pieces: &[Piece],
    thresholds: &[u64; COUNT],
    clock: &dyn Clock,
    watch: &dyn Watch,
) -> Vec<Outcome> {
    let mut open: Option<(Arc<PathBuf>, Source)> = None;
    let mut buffer = Vec::new();
    let mut outcomes = Vec::with_capacity(pieces.len());
    for piece in pieces {
        if watch.stopped() {
            outcomes.push(Outcome { skipped: true, ..Outcome::default() });
            continue;
        }
        let outcome = (|| {
            if !open.as_ref().is_some_and(|(path, _)| Arc::ptr_eq(path, &piece.path)) {
                let in_part = piece.range != (0..piece.size);
                open = Some((piece.path.clone(), Source::open(&piece.path, in_part)?));
            }
            let (_, source) = open.as_ref().expect("opened above");
            read_piece(piece, source, &mut buffer, thresholds, clock)
        })();
        let outcome = outcome.unwrap_or_else(|error| Outcome { failed: Some(error), ..Outcome::default() });
        watch.read(outcome.read);
        outcomes.push(outcome);
    }
    outcomes
}

fn read_piece(
    piece: &Piece,
    source: &Source,
    buffer: &mut Vec<u8>,
    thresholds: &[u64; COUNT],
    clock: &dyn Clock,
) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    let torn = piece.range.start > 0 && piece.most != usize::MAX;
    let mut printer = Printer::new(thresholds, piece.most, torn);
    let (mut at, end) = (piece.range.start, piece.range.end);
    let mut held = 0;
    while at < end {
        let want = (end - at).min(STEP as u64) as usize;
        if buffer.len() < held + want {
            buffer.resize(held + want, 0);
        }
        let got = source.read(&mut buffer[held..held + want], at)?;
        let fresh = &buffer[held..held + got];
        outcome.read += got as u64;
        if piece.probe {
            outcome.prints.digest = twox_hash::XxHash3_64::oneshot(fresh);
            return Ok(outcome);
        }
        printer.fixed(fresh);
        for &(draw, dear) in piece.draws.iter().filter(|(draw, _)| (at..at + got as u64).contains(draw)) {
            let within = draw - at;
            let part = |record: u64| {
                let start = within / record * record;
                &fresh[start as usize..(start + record).min(got as u64) as usize]
            };
            // Of a scan of everything each is drawn by itself.
            let cluster = if piece.key == 0 { (piece.range.start + draw) as u32 } else { piece.key };
            let place = (piece.folder, cluster);
            outcome.draws.push(gain::draw(clock, place, dear, gain::LENGTHS.map(part)));
        }
        at += got as u64;
        // The file may have become shorter since it was listed.
        let ended = got < want || at >= end;
        let whole = piece.most == usize::MAX || at >= piece.size || got < want;
        let done = printer.cut(&buffer[..held + got], ended, whole);
        buffer.copy_within(done..held + got, 0);
        held = held + got - done;
        if ended {
            break;
        }
    }
    outcome.prints = printer.finish();
    Ok(outcome)
}
