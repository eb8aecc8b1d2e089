//! A line of the table, and the fingerprints that all are measured with.

use larder_format::Fingerprint;
use serde::{Deserialize, Serialize};

/// Speed of an index over that of another.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Against {
    /// By the clock on the wall.
    pub wall: f64,
    /// By the time of the processors, which others on the machine disturb less.
    pub processor: f64,
    /// By the clock on the wall, but for the time that pages were waited for: that is the disk's.
    pub without_reads: f64,
}

impl std::fmt::Display for Against {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2}x ({:.2}, {:.2})", self.wall, self.processor, self.without_reads)
    }
}

/// Figures of one index with one number of fingerprints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figures {
    /// Whose it is.
    pub who: String,
    /// Fingerprints in it.
    pub count: u64,
    /// The budget, bytes: of the pool; or of the cache.
    pub memory: u64,
    /// Of so many fingerprints one is kept.
    pub sampling: u64,
    /// Runs that a look-up asks.
    pub runs: usize,
    /// Inserted a second while it grew to this size from the one before, merges included.
    pub inserts: f64,
    /// Look-ups a second of fingerprints that are not there.
    pub misses: f64,
    /// Pages read for each of them.
    pub miss_reads: f64,
    /// Nanoseconds that each of them waits for pages, on the average.
    pub miss_waits: f64,
    /// Look-ups a second of fingerprints that are, at random.
    pub hits_random: f64,
    /// The same in the order in which they were written, in streams.
    pub hits_in_order: Option<f64>,
    /// New fingerprints a second, looked up and inserted.
    pub look_up_and_insert: f64,
    /// Misses, and hits in the order of writing, as parts of those of the smallest index, measured in turns.
    pub to_first: Option<(Against, Option<Against>)>,
    /// Bytes on disk, a fingerprint.
    pub disk: f64,
    /// The same with the block map, in which every record is anyway.
    pub disk_with_map: Option<f64>,
    /// Bytes that the file took at most, a fingerprint: with room for merges, and what they left free and unused.
    pub file: Option<f64>,
    /// Bytes of memory a fingerprint, computed.
    pub ram: f64,
    /// The same as the kernel sees it, with everything that the process has beside it.
    pub resident: f64,
    /// Bytes written for each inserted while it grew, with the block map.
    pub written: f64,
}

impl Figures {
    /// Promises for a large index that do not hold, in words.
    pub fn broken_promises(&self) -> Vec<String> {
        // A merge under way has memory of its own, which ten million are too few to share.
        let merging = f64::from(4 << 20) / self.count as f64;
        let most = [
            ("fingerprints of which one is kept", self.sampling as f64, 1.0),
            ("runs", self.runs as f64, 8.0),
            ("pages read for a miss", self.miss_reads, 0.005),
            ("bytes of memory a fingerprint, computed", self.ram, 2.0 + merging),
            ("bytes on disk a fingerprint", self.disk, 18.0),
            ("the same with the block map", self.disk_with_map.unwrap_or(0.0), 40.0),
        ];
        let broken = most.into_iter().filter(|(_, value, most)| value > most);
        broken
            .map(|(what, value, most)| {
                format!("{:.0e}: {value:.4} {what}, at most {most}", self.count as f64)
            })
            .collect()
    }
}

/// The `n`-th fingerprint.
pub fn print(n: u64) -> Fingerprint {
    // The finalizer of MurmurHash3, a bijection.
    let mix = |mut n: u64| {
        n = (n ^ (n >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        n = (n ^ (n >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        n ^ (n >> 33)
    };
    let high = mix(n.wrapping_add(0x9e37_79b9_7f4a_7c15));
    let low = mix(high ^ 0x2545_f491_4f6c_dd1d);
    Fingerprint::new((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
}

fn rate(value: f64) -> String {
    if value >= 1e6 { format!("{:.2}M", value / 1e6) } else { format!("{:.1}k", value / 1e3) }
}

/// The table.
pub fn table(rows: &[Figures]) {
    println!(
        "{:<8}{:>8}{:>10}{:>5}{:>5}{:>10}{:>9}{:>8}{:>7}{:>10}{:>10}{:>10}{:>40}{:>8}{:>9}{:>8}{:>7}{:>7}{:>10}",
        "",
        "count",
        "memory",
        "1 of",
        "runs",
        "insert/s",
        "miss/s",
        "reads",
        "ns",
        "hit/s",
        "in order",
        "new/s",
        "to the first",
        "disk B",
        "with map",
        "file B",
        "RAM B",
        "RSS B",
        "written B"
    );
    for row in rows {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        println!(
            "{:<8}{:>8}{:>6} MiB{:>5}{:>5}{:>10}{:>9}{:>8.4}{:>7.0}{:>10}{:>10}{:>10}{:>40}{:>8.1}{:>9}{:>8}{:>7.2}{:>7.2}{:>10.0}",
            row.who,
            format!("{:.0e}", row.count as f64),
            row.memory >> 20,
            row.sampling,
            row.runs,
            rate(row.inserts),
            rate(row.misses),
            row.miss_reads,
            row.miss_waits,
            rate(row.hits_random),
            or_dash(row.hits_in_order.map(rate)),
            rate(row.look_up_and_insert),
            or_dash(row.to_first.map(|(misses, in_order)| {
                let in_order = or_dash(in_order.map(|part| part.to_string()));
                format!("{misses}, {in_order}")
            })),
            row.disk,
            or_dash(row.disk_with_map.map(|bytes| format!("{bytes:.1}"))),
            or_dash(row.file.map(|bytes| format!("{bytes:.1}"))),
            row.ram,
            row.resident,
            row.written,
        );
    }
}
