//! Cutting by content: MB/s of ours and of the `fastcdc` crate (its v2020) on one thread, and what the cuts look like.
//!
//! `cargo run --release -p larder-benches --bin cut`

use fastcdc::v2020::{FastCDC, Normalization};
use larder_benches::content::Content;
use larder_benches::{MIB, mb_per_s, race};
use larder_files::Cutter;
use std::hint::black_box;

const BYTES: usize = 64 * MIB;
const ROUNDS: usize = 15;

fn main() {
    println!("content   average      cutter    MB/s   records   mean bytes   the longest");
    for content in [Content::Random, Content::Text] {
        let bytes = content.bytes(BYTES);
        for average in [16 << 10, 128 << 10, 512 << 10] {
            let cutter = Cutter::new(average, 1 << 20);
            let (min, max) = (cutter.min() as u32, cutter.max() as u32);
            let ours = || {
                let (mut at, mut lens) = (0, Vec::new());
                while let Some(len) = cutter.next(&bytes[at..], true) {
                    at += len;
                    lens.push(len);
                }
                lens
            };
            let crates = || {
                let chunks = FastCDC::with_level(&bytes, min, average, max, Normalization::Level2);
                chunks.map(|chunk| chunk.length).collect::<Vec<_>>()
            };
            let times = race(ROUNDS, [&mut || drop(black_box(ours())), &mut || drop(black_box(crates()))]);
            for (name, lens, time) in [("ours", ours(), times[0]), ("fastcdc", crates(), times[1])] {
                assert_eq!(lens.iter().sum::<usize>(), BYTES);
                let longest = lens.iter().filter(|&&len| len == cutter.max()).count();
                println!(
                    "{:8} {average:8} {name:>11} {:7.0} {:9} {:12} {:11.1} %",
                    content.name(),
                    mb_per_s(BYTES, time),
                    lens.len(),
                    BYTES / lens.len(),
                    100.0 * longest as f64 / lens.len() as f64,
                );
            }
        }
    }
}
