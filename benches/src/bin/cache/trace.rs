//! Traces: ids of blocks, numbered from zero as they are first read.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

pub struct Trace {
    pub name: String,
    pub reads: Vec<u32>,
    /// Different ones.
    pub ids: usize,
}

/// All files of a folder that are called `NAME.lis.zst`; a line is `start count ignored request`.
pub fn in_folder(folder: &Path) -> std::io::Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".lis.zst"))
        else {
            continue;
        };
        let mut numbers = Numbers::default();
        for line in BufReader::new(zstd::Decoder::new(std::fs::File::open(&path)?)?).lines() {
            let line = line?;
            let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
            if let (Some(Ok(start)), Some(Ok(count))) = (fields.next(), fields.next()) {
                (start..start + count).for_each(|block| numbers.read(block));
            }
        }
        traces.push(numbers.trace(name.into()));
    }
    traces.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(traces)
}

/// Independent reads of ids whose frequency falls with the power `alpha` of their rank.
pub fn zipf(alpha: f64, ids: usize, reads: usize, seed: u64) -> Trace {
    let mut sums: Vec<f64> = (1..=ids).map(|rank| (rank as f64).powf(-alpha)).collect();
    let mut sum = 0.0;
    for part in &mut sums {
        sum += *part;
        *part = sum;
    }
    let mut numbers = Numbers::default();
    let mut state = seed;
    for _ in 0..reads {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let part = ((x ^ x >> 31) >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        numbers.read(sums.partition_point(|sum| *sum < part) as u64);
    }
    numbers.trace(format!("zipf {alpha}"))
}

#[derive(Default)]
struct Numbers {
    of: HashMap<u64, u32>,
    reads: Vec<u32>,
}

impl Numbers {
    fn read(&mut self, block: u64) {
        let new = self.of.len() as u32;
        self.reads.push(*self.of.entry(block).or_insert(new));
    }

    fn trace(self, name: String) -> Trace {
        Trace { name, ids: self.of.len(), reads: self.reads }
    }
}
