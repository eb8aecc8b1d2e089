//! Receives streams of ZFS one after the other, and writes down after each of them what is there, in the text that
//! `zfs_listing.py` makes of a mounted tree: `zfs_streams STREAM...` writes `STREAM.received` beside each.

use larder_zfs_stream::{Memory, Streams, receive};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};

fn digest(content: &[u8]) -> Vec<u8> {
    Sha256::digest(content).iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sink = Memory::default();
    for path in std::env::args().skip(1) {
        let mut streams = Streams::new(BufReader::with_capacity(1 << 20, File::open(&path)?));
        while let Some(begin) = streams.next_stream()? {
            let received = receive(&mut streams, &begin, &mut sink)?;
            let name = String::from_utf8_lossy(&begin.to_name).into_owned();
            println!("{name}: {received:?}, {} bytes of notes", sink.noted());
            let snapshot = String::from_utf8_lossy(begin.snapshot()).into_owned();
            let mut out = BufWriter::new(File::create(format!("{path}.{snapshot}.received"))?);
            for line in sink.lines(&digest) {
                writeln!(out, "{line}")?;
            }
            out.flush()?;
        }
    }
    Ok(())
}
