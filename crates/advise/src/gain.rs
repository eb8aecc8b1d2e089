//! Gain by codec, from records that are compressed as Larder would.
//!
//! Records are drawn by position: one position in every so many bytes of data, in the order of the walk, and the record
//! that holds it. So a record is drawn in proportion to its length, each folder gets its share of the draws, and the
//! mean of stored by plain bytes over the draws is the ratio of the whole.

use larder_device::Clock;
use larder_format::block::{BLOCK_OVERHEAD, frame_sums_len};
use larder_format::is_zero;
use larder_pool::codec::{self, Codec};

/// Codecs that are tried.
pub const CODECS: [Codec; 4] = [Codec::Lz4, Codec::Zstd(3), Codec::Zstd(9), Codec::Gzip(9)];
/// Length of records that are compressed.
pub const RECORD: u64 = 128 << 10;
/// Length of the shorter ones, for datasets of small records.
pub const SHORT: u64 = 16 << 10;

/// That which one draw gave.
#[derive(Debug, Clone, Copy, Default)]
pub struct Draw {
    /// Folder of the file.
    pub folder: u32,
    /// Draws of one cluster are alike.
    pub cluster: u32,
    /// Stored by plain bytes, by codec.
    pub ratios: [f32; CODECS.len()],
    /// The same of records of [`SHORT`].
    pub shorts: [f32; CODECS.len()],
    /// Nanoseconds a byte, by codec.
    pub costs: [f32; CODECS.len()],
}

/// From this length on records that no codec shrinks have sums of their parts.
const FRAMED_FROM: usize = 16 << 10;

/// Bytes that a record takes in a stripe: header, payload, sums of parts, in steps of eight.
pub fn stored(codec: Codec, plain: &[u8]) -> u64 {
    if codec != Codec::Off && is_zero(plain) {
        return 0;
    }
    let payload = codec::compress(codec, plain).map(|payload| payload.len());
    let framed = if plain.len() >= FRAMED_FROM { frame_sums_len(plain.len() as u32) as usize } else { 0 };
    let payload = payload.unwrap_or(plain.len() + framed);
    (u64::from(BLOCK_OVERHEAD) + payload as u64).next_multiple_of(8)
}

/// Compresses the records of a draw: `long`, and `short` within it.
pub fn draw(clock: &dyn Clock, (folder, cluster): (u32, u32), long: &[u8], short: &[u8]) -> Draw {
    let ratio = |stored: u64, plain: &[u8]| stored as f32 / plain.len().max(1) as f32;
    let mut draw = Draw { folder, cluster, ..Draw::default() };
    for (at, &codec) in CODECS.iter().enumerate() {
        let began = clock.monotonic();
        draw.ratios[at] = ratio(stored(codec, long), long);
        draw.costs[at] = (clock.monotonic() - began).as_nanos() as f32 / long.len().max(1) as f32;
        draw.shorts[at] = ratio(stored(codec, short), short);
    }
    draw
}

/// Mean of values and its standard error; those of one cluster come together, one after the other.
pub fn mean(values: &[(u32, f32)]) -> (f64, f64) {
    let count = values.len() as f64;
    if values.len() < 2 {
        return (values.first().map_or(1.0, |(_, value)| f64::from(*value)), 1.0);
    }
    let mean = values.iter().map(|(_, value)| f64::from(*value)).sum::<f64>() / count;
    let (mut squares, mut off, mut last) = (0.0, 0.0, values[0].0);
    for &(cluster, value) in values {
        if cluster != last {
            squares += off * off;
            (off, last) = (0.0, cluster);
        }
        off += f64::from(value) - mean;
    }
    squares += off * off;
    // Of draws that are all alike nobody knows what the next would be.
    (mean, (squares.sqrt() / count).max(0.5 / count))
}
