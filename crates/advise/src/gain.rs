//! Gain by codec, from records that are compressed as Larder would.
//!
//! Records are drawn by position: one position in every so many bytes of data, in the order of the walk, and the record
//! that holds it. So a record is drawn in proportion to its length, each folder gets its share of the draws, and the
//! mean of stored by plain bytes over the draws is the ratio of the whole.
//!
//! The dear codecs take ten times as long as all others together, so they are tried on one draw in [`DEAR_EVERY`]. What
//! they gain over zstd-3 differs far less from record to record than what they gain at all; so their ratio is that of
//! zstd-3 over all draws, and the mean difference over those that had both (a difference estimator with double
//! sampling: Cochran, "Sampling Techniques", chapter 12).

use larder_device::Clock;
use larder_format::block::{BLOCK_OVERHEAD, frame_sums_len};
use larder_format::is_zero;
use larder_pool::codec::{self, Codec};

/// Codecs that are tried, the dear ones last.
pub const CODECS: [Codec; 4] = [Codec::Lz4, Codec::Zstd(3), Codec::Zstd(9), Codec::Gzip(9)];
/// Number of those that are tried on each draw.
const CHEAP: usize = 2;
/// The one that the dear ones are held against.
const BASE: usize = 1;
/// Of so many draws one is for the dear codecs, too.
pub const DEAR_EVERY: u64 = 16;
/// Of draws that are all alike nobody knows what the next would be: one more may be so far from their mean.
const UNSEEN: f64 = 0.5;
/// The same of what a dear codec gains over the one that it is held against.
const UNSEEN_OVER: f64 = 0.25;
/// Fewer of those in a folder say less than what is known of everything.
const FEWEST_DEAR: usize = 8;
/// Lengths of records that are compressed: the shorter ones for datasets of small records.
pub const LENGTHS: [u64; 3] = [128 << 10, 16 << 10, 4 << 10];

/// That which a codec made of one draw.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tried {
    /// Stored by plain bytes, by length of the record.
    pub ratios: [f32; LENGTHS.len()],
    /// Nanoseconds of a processor a byte of the longest.
    pub cost: f32,
}

/// That which one draw gave.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// Folder of the file.
    pub folder: u32,
    /// Draws of one cluster are alike.
    pub cluster: u32,
    cheap: [Tried; CHEAP],
    dear: Option<[Tried; CODECS.len() - CHEAP]>,
}

impl Draw {
    fn of(&self, codec: usize) -> Option<&Tried> {
        match codec.checked_sub(CHEAP) {
            None => self.cheap.get(codec),
            Some(at) => self.dear.as_ref().map(|dear| &dear[at]),
        }
    }
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

/// Compresses the records of a draw, each in the one before; with all codecs if it is `dear`.
pub fn draw(clock: &dyn Clock, place: (u32, u32), dear: bool, records: [&[u8]; LENGTHS.len()]) -> Draw {
    let tried = |codec: Codec| {
        let mut cost = 0.0;
        let ratios = std::array::from_fn(|at| {
            let plain = records[at];
            let (began, stored) = (clock.processor_time(), stored(codec, plain));
            if at == 0 {
                cost = (clock.processor_time() - began).as_nanos() as f32 / plain.len().max(1) as f32;
            }
            stored as f32 / plain.len().max(1) as f32
        });
        Tried { ratios, cost }
    };
    Draw {
        folder: place.0,
        cluster: place.1,
        cheap: std::array::from_fn(|at| tried(CODECS[at])),
        dear: dear.then(|| std::array::from_fn(|at| tried(CODECS[CHEAP + at]))),
    }
}

/// Mean of a figure of a codec over draws, and its standard error; nothing without draws. `all` are those of
/// everything, which tell of a dear codec where those `here` are too few. Draws of one cluster come together.
pub fn mean_of(
    here: &[&Draw],
    all: &[Draw],
    codec: usize,
    figure: &dyn Fn(&Tried) -> f32,
) -> Option<(f64, f64)> {
    let base: Vec<(u32, f32)> =
        here.iter().map(|draw| (draw.cluster, figure(&draw.cheap[codec.min(BASE)]))).collect();
    let (mean, error) = mean(&base, UNSEEN)?;
    if codec < CHEAP {
        return Some((mean, error));
    }
    let over = |draw: &Draw| Some((draw.cluster, figure(draw.of(codec)?) - figure(&draw.cheap[BASE])));
    let own: Vec<(u32, f32)> = here.iter().filter_map(|draw| over(draw)).collect();
    let ((more, off), each) = if own.len() >= FEWEST_DEAR || here.len() == all.len() {
        (self::mean(&own, UNSEEN_OVER)?, 1.0)
    } else {
        // One folder may differ from the mean of all as one draw does.
        let others: Vec<(u32, f32)> = all.iter().filter_map(over).collect();
        (self::mean(&others, UNSEEN_OVER)?, (others.len() as f64).sqrt())
    };
    Some((mean + more, error.hypot(off * each)))
}

/// Mean of values and its standard error; those of one cluster come together, one after the other. One more
/// value may be `unseen` from their mean.
fn mean(values: &[(u32, f32)], unseen: f64) -> Option<(f64, f64)> {
    let count = values.len() as f64;
    let first = values.first()?;
    if values.len() < 2 {
        return Some((f64::from(first.1), 1.0));
    }
    let mean = values.iter().map(|(_, value)| f64::from(*value)).sum::<f64>() / count;
    let (mut squares, mut off, mut last) = (0.0, 0.0, first.0);
    for &(cluster, value) in values {
        if cluster != last {
            squares += off * off;
            (off, last) = (0.0, cluster);
        }
        off += f64::from(value) - mean;
    }
    squares += off * off;
    Some((mean, (squares.sqrt() / count).max(unseen / count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws whose records shrink to `plain`, with zstd-9 to a tenth less, and noise on both.
    fn drawn(count: u32, dear_every: u32, folder: u32, plain: f32) -> Vec<Draw> {
        let noise =
            |at: u32, by: u64| (crate::sample::mix(u64::from(at) << 8 | by) % 1000) as f32 / 1000.0 - 0.5;
        let tried = |ratio: f32| Tried { ratios: [ratio; 3], cost: 1.0 };
        (0..count)
            .map(|at| {
                let base = plain + 0.4 * noise(at, 1);
                let dear = tried(base - 0.1 + 0.02 * noise(at, 2));
                Draw {
                    folder,
                    cluster: at,
                    cheap: [tried(1.0), tried(base)],
                    dear: (at % dear_every == 0).then_some([dear, dear]),
                }
            })
            .collect()
    }

    #[test]
    fn a_dear_codec_is_known_as_well_from_a_part_of_the_draws_as_from_all() {
        let of = |dear_every| {
            let all = drawn(1000, dear_every, 0, 0.6);
            mean_of(&all.iter().collect::<Vec<_>>(), &all, 2, &|tried| tried.ratios[0]).unwrap()
        };
        let ((few, error), (whole, _)) = (of(DEAR_EVERY as u32), of(1));
        assert!((few - whole).abs() < 0.004 && (few - 0.5).abs() < 0.02, "{few} beside {whole}");
        assert!(error < 0.008, "{error}");
    }

    #[test]
    fn of_a_folder_with_few_dear_draws_little_is_claimed() {
        let mut all = drawn(1000, DEAR_EVERY as u32, 0, 0.6);
        all.extend(drawn(100, 1000, 1, 0.3));
        let here: Vec<&Draw> = all.iter().filter(|draw| draw.folder == 1).collect();
        let (mean, error) = mean_of(&here, &all, 2, &|tried| tried.ratios[0]).unwrap();
        let (_, plain) = mean_of(&here, &all, BASE, &|tried| tried.ratios[0]).unwrap();
        assert!((mean - 0.2).abs() < 2.0 * error && error > plain, "{mean} within {error}, {plain}");
        assert_eq!(mean_of(&[], &all, 2, &|tried| tried.ratios[0]), None);
    }
}
