//! Fingerprints of records of all lengths in one pass.
//!
//! Each 4 KiB are hashed once (XXH3); a longer record's fingerprint is made of those of its halves. Records cut by
//! content are cut by Larder's own cutter and hashed whole. Zeros have no fingerprint: Larder makes holes of them.
//! These fingerprints only tell contents apart that nobody made to collide; nothing is shared because of them.

use crate::sample::{Sample, mix};
use larder_files::{Cutter, Marks};
use larder_format::is_zero;
use twox_hash::XxHash3_64;

/// A way to cut files into records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheme {
    /// Length of records, bytes; the average of those cut by content.
    pub record: u32,
    /// Whether content says where they are cut.
    pub by_content: bool,
}

const fn fixed_at(record: u32) -> Scheme {
    Scheme { record, by_content: false }
}

/// Number of schemes with fixed lengths.
pub const FIXED: usize = 9;
/// Number of schemes.
pub const COUNT: usize = FIXED + 2;
/// All that are tried.
pub const SCHEMES: [Scheme; COUNT] = [
    fixed_at(4 << 10),
    fixed_at(8 << 10),
    fixed_at(16 << 10),
    fixed_at(32 << 10),
    fixed_at(64 << 10),
    fixed_at(128 << 10),
    fixed_at(256 << 10),
    fixed_at(512 << 10),
    fixed_at(1 << 20),
    Scheme { record: 16 << 10, by_content: true },
    Scheme { record: 128 << 10, by_content: true },
];
/// The longest fixed record: pieces of files begin at multiples of it.
pub const LONGEST: usize = 1 << 20;
const SHORTEST: usize = 4 << 10;

/// A record's fingerprint and length.
pub type Print = (u64, u32);

/// Fingerprints of a piece of a file.
#[derive(Debug, Default, Clone)]
pub struct Prints {
    /// Those to be kept, by scheme.
    pub kept: [Vec<Print>; COUNT],
    /// Bytes of all records that are not zeros.
    pub bytes: [u64; COUNT],
    /// Number of them.
    pub records: [u64; COUNT],
    /// Bytes of records that are zeros.
    pub zeros: [u64; COUNT],
    /// Hash of all content.
    pub digest: u64,
}

/// Takes a piece of a file, part by part.
#[derive(Debug)]
pub struct Printer<'a> {
    thresholds: &'a [u64; COUNT],
    /// Schemes with records that do not fit into a piece are left out.
    most: usize,
    cutters: [(usize, Cutter, Cut); 2],
    /// Of what is held, so many bytes of it.
    marks: Marks,
    marked: usize,
    prints: Prints,
    nodes: Vec<(u64, u32)>,
}

/// State of cutting a piece by content.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Bytes of what is held that were cut.
    at: usize,
    /// The next record's beginning is none: it lies before the piece.
    torn: bool,
}

impl<'a> Printer<'a> {
    /// For a piece of at most `most` bytes (or a whole file); `torn` where records cut by content begin before it.
    pub fn new(thresholds: &'a [u64; COUNT], most: usize, torn: bool) -> Self {
        let cutter = |at: usize| {
            let cutter = Cutter::new(SCHEMES[at].record, LONGEST as u32);
            (at, cutter, Cut { at: 0, torn })
        };
        let cutters = [cutter(FIXED), cutter(FIXED + 1)];
        let marks = Marks::new(SCHEMES[FIXED].record);
        Self { thresholds, most, cutters, marks, marked: 0, prints: Prints::default(), nodes: Vec::new() }
    }

    fn keep(&mut self, scheme: usize, print: u64, len: u32) {
        if print == 0 {
            self.prints.zeros[scheme] += u64::from(len);
            return;
        }
        self.prints.bytes[scheme] += u64::from(len);
        self.prints.records[scheme] += 1;
        if Sample::wants(self.thresholds[scheme], print, u64::from(len)) {
            self.prints.kept[scheme].push((print, len));
        }
    }

    /// Records of fixed lengths of `bytes`, which begin at a multiple of the longest, and end at one or at the end.
    pub fn fixed(&mut self, bytes: &[u8]) {
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.clear();
        nodes.extend(bytes.chunks(SHORTEST).map(|chunk| (hash(chunk), chunk.len() as u32)));
        for (scheme, Scheme { record, .. }) in SCHEMES.iter().enumerate().take(FIXED) {
            if scheme > 0 {
                let halves = nodes.len();
                for at in 0..halves.div_ceil(2) {
                    let (left, right) = (nodes[2 * at], nodes.get(2 * at + 1).copied().unwrap_or((0, 0)));
                    let print = if left.0 | right.0 == 0 {
                        0
                    } else {
                        mix(mix(left.0 ^ u64::from(right.1)).wrapping_add(right.0)).max(1)
                    };
                    nodes[at] = (print, left.1 + right.1);
                }
                nodes.truncate(halves.div_ceil(2));
            }
            if *record as usize <= self.most {
                for &(print, len) in &nodes {
                    self.keep(scheme, print, len);
                }
            }
        }
        for &(print, len) in &nodes {
            self.prints.digest = mix(self.prints.digest ^ print).wrapping_add(u64::from(len));
        }
        self.nodes = nodes;
    }

    /// Records cut by content of what is held; `ended` when nothing follows, `whole` when that is the end of the
    /// file. Says how many bytes at the beginning are not needed any more.
    pub fn cut(&mut self, held: &[u8], ended: bool, whole: bool) -> usize {
        self.marks.extend(held, self.marked);
        for at in 0..self.cutters.len() {
            let (scheme, cutter, mut cut) = self.cutters[at];
            if 4 * SCHEMES[scheme].record as usize > self.most {
                cut.at = held.len();
            }
            while let Some(len) = cutter.next_marked(&self.marks, cut.at, held.len(), ended && whole) {
                let record = &held[cut.at..cut.at + len];
                cut.at += len;
                if std::mem::take(&mut cut.torn) {
                    continue;
                }
                self.keep(scheme, hash(record), len as u32);
            }
            self.cutters[at].2 = cut;
        }
        let done = self.cutters.iter().map(|(_, _, cut)| cut.at).min().unwrap_or(0);
        self.cutters.iter_mut().for_each(|(_, _, cut)| cut.at -= done);
        self.marks.skip(done);
        self.marked = held.len() - done;
        done
    }

    /// All fingerprints.
    pub fn finish(self) -> Prints {
        self.prints
    }
}

/// Hash of a record; 0 for zeros alone.
fn hash(bytes: &[u8]) -> u64 {
    if bytes.first() == Some(&0) && is_zero(bytes) { 0 } else { XxHash3_64::oneshot(bytes).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        (0..len.div_ceil(8) as u64).flat_map(|i| mix(seed ^ mix(i)).to_le_bytes()).take(len).collect()
    }

    fn prints(bytes: &[u8]) -> Prints {
        let mut printer = Printer::new(&[1; COUNT], usize::MAX, false);
        bytes.chunks(4 * LONGEST).for_each(|part| printer.fixed(part));
        printer.cut(bytes, true, true);
        printer.finish()
    }

    #[test]
    fn records_are_as_many_and_as_long_as_the_file_says() {
        let found = prints(&noise((1 << 20) + 5000, 1));
        assert_eq!(found.kept[0].len(), 258);
        assert_eq!(found.kept[5], [found.kept[5].clone(), vec![]].concat());
        assert_eq!(
            found.kept[5].iter().map(|print| print.1).collect::<Vec<_>>(),
            [[131_072; 8].as_slice(), &[5000]].concat()
        );
        assert_eq!(found.bytes, [(1 << 20) + 5000; COUNT]);
    }

    #[test]
    fn equal_records_have_equal_fingerprints_and_others_do_not() {
        let record = noise(128 << 10, 2);
        let mut other = record.clone();
        other[100_000] ^= 1;
        let found = prints(&[&record[..], &other, &record].concat());
        let of = |scheme: usize| found.kept[scheme].iter().map(|print| print.0).collect::<Vec<_>>();
        assert!(of(5)[0] == of(5)[2] && of(5)[0] != of(5)[1]);
        let mut all = of(0);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 33, "all pages of the record, and the changed one");
    }

    #[test]
    fn zeros_are_told_apart() {
        let found = prints(&[vec![0; 64 << 10], noise(64 << 10, 3)].concat());
        assert_eq!((found.zeros[4], found.bytes[4]), (64 << 10, 64 << 10));
        assert_eq!((found.zeros[5], found.bytes[5]), (0, 128 << 10));
    }

    #[test]
    fn content_that_was_shifted_is_found_when_cut_by_content() {
        let bytes = noise(3 << 20, 4);
        let (one, two) = (prints(&bytes), prints(&[&noise(1000, 5)[..], &bytes].concat()));
        let common = |scheme: usize| {
            let set: std::collections::HashSet<_> = one.kept[scheme].iter().collect();
            two.kept[scheme]
                .iter()
                .filter(|print| set.contains(print))
                .map(|print| u64::from(print.1))
                .sum::<u64>()
        };
        assert_eq!(common(0), 0);
        assert!(common(FIXED) > 2_900_000, "{}", common(FIXED));
    }
}
