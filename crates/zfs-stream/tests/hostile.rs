//! Streams that lie, with checksums that are right: refused or received, never a panic, nor without end.

mod build;

use build::lies::{Random, changed, varied};
use build::{Piece, serialize};
use larder_zfs_stream::{Memory, Order, Streams, receive};
use std::path::Path;

/// The records of a stream that is whole.
fn pieces(mut bytes: &[u8]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    while let Some((record, rest)) = bytes.split_first_chunk::<312>() {
        let number = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
        let len = match record[0] {
            0 => number(0) >> 32,
            1 => (number(24) >> 32).next_multiple_of(8),
            3 if record[50] == 0 => number(32),
            3 => number(96),
            7 => number(16),
            8 => (number(48) >> 32).next_multiple_of(8),
            _ => 0,
        };
        let (payload, rest) = rest.split_at(len as usize);
        pieces.push((*record, payload.to_vec()));
        bytes = rest;
    }
    pieces
}

fn take(sink: &mut Memory, pieces: &[Piece]) -> bool {
    let bytes = serialize(pieces, Order::Little, true);
    let mut streams = Streams::new(&bytes[..]);
    let mut all = || {
        while let Some(begin) = streams.next_stream().ok()? {
            receive(&mut streams, &begin, sink).ok()?;
        }
        Some(())
    };
    all().is_some()
}

fn golden(name: &str) -> Vec<Piece> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    pieces(&zstd::decode_all(&*std::fs::read(&path).expect("it is committed")).unwrap())
}

/// `LARDER_FULL` asks for more of them.
fn rounds(few: u64) -> u64 {
    if std::env::var_os("LARDER_FULL").is_some() { 20 * few } else { few }
}

#[test]
fn whole_streams_that_lie() {
    let whole = varied();
    assert!(take(&mut Memory::default(), &whole));
    let mut taken = 0;
    for seed in 0..rounds(3000) {
        taken += u64::from(take(&mut Memory::default(), &changed(&whole, &mut Random(seed))));
    }
    assert!(taken > 100, "{taken}");
}

#[test]
fn increments_that_lie() {
    let mut base = Memory::default();
    assert!(take(&mut base, &golden("zfs-fuse-0.stream.zst")));
    let increment = golden("zfs-fuse-1.stream.zst");
    assert!(take(&mut base.clone(), &increment));
    for seed in 0..rounds(20) {
        take(&mut base.clone(), &changed(&increment, &mut Random(seed)));
    }
    // An increment that says other things of what the first one made.
    let mut base = Memory::default();
    assert!(take(&mut base, &varied()));
    for seed in 0..rounds(3000) {
        let mut random = Random(seed);
        let mut again = varied();
        again[0].0[48] = 7;
        again[0].0[40] = 8;
        take(&mut base.clone(), &changed(&again, &mut random));
    }
}
