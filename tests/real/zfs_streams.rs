//! Receives streams of ZFS one after the other, and writes down after each of them what is there, in the text that
//! `zfs_listing.py` makes of a mounted tree: `zfs_streams STREAM...` writes `STREAM.SNAPSHOT.received` beside each. The
//! dataset of the first is the top of all; those below it, in packages, have their names before the snapshot's.

use larder_zfs_stream::{Memory, Streams, receive, received_guid};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};

fn digest(content: &[u8]) -> Vec<u8> {
    Sha256::digest(content).iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut trees, mut top) = (BTreeMap::<String, Memory>::new(), None);
    for path in std::env::args().skip(1) {
        let mut streams = Streams::new(BufReader::with_capacity(1 << 20, File::open(&path)?));
        while let Some(begin) = streams.next_stream()? {
            let dataset = String::from_utf8_lossy(begin.dataset()).into_owned();
            let snapshot = String::from_utf8_lossy(begin.snapshot()).into_owned();
            let top = top.get_or_insert_with(|| dataset.clone());
            let mut origins = trees.values_mut().filter(|_| begin.is_clone);
            let origin =
                origins.find_map(|tree| (received_guid(tree) == Ok(begin.from_guid)).then(|| tree.clone()));
            let below = dataset.strip_prefix(top.as_str()).unwrap_or(&dataset).replace('/', ".");
            let sink = trees.entry(dataset).or_insert(origin.unwrap_or_default());
            let received = receive(&mut streams, &begin, sink)?;
            println!("{path}{below}@{snapshot}: {received:?}, {} bytes of notes", sink.noted());
            let mut out = BufWriter::new(File::create(format!("{path}{below}.{snapshot}.received"))?);
            for line in sink.lines(&digest) {
                writeln!(out, "{line}")?;
            }
            out.flush()?;
        }
    }
    Ok(())
}
