//! Streams changed by seed.

use super::{Build, DIRECTORY, File, PLAIN, Piece, SA, packed_list};
use larder_zfs_stream::Order;

/// Numbers at random, from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

const ODD: [u64; 9] = [0, 1, 511, 1 << 31, (1 << 48) - 1, 1 << 62, i64::MAX as u64, u64::MAX - 1, u64::MAX];

fn change(bytes: &mut [u8], random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    // The start says more than the rest.
    let most = if random.below(2) == 0 { bytes.len().min(128) } else { bytes.len() };
    let at = random.below(most);
    match random.below(4) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        _ => {
            let value = ODD[random.below(ODD.len())].to_le_bytes();
            let (at, width) = (at - at % 8, [2, 4, 8][random.below(3)]);
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
    }
}

pub fn changed(pieces: &[Piece], random: &mut Random) -> Vec<Piece> {
    let mut pieces = pieces.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(pieces.len());
        match random.below(10) {
            0 => drop(pieces.remove(at)),
            1 => pieces.insert(at, pieces[random.below(pieces.len())].clone()),
            2 => {
                let other = random.below(pieces.len());
                pieces.swap(at, other);
            }
            3..=5 => change(&mut pieces[at].0[..128], random),
            _ => change(&mut pieces[at].1, random),
        }
    }
    pieces
}

/// A stream of all kinds of records and objects.
pub fn varied() -> Vec<Piece> {
    const SA_OBJECTS: [u64; 3] = [900, 901, 902];
    let mut build = Build::new(Order::Little);
    build.begin(1 << 2 | 1 << 16 | 1 << 22, 8, 0, 7, "tank@now").free_objects(0, 1);
    build.master(5, 34, Some(SA_OBJECTS)).attributes(SA_OBJECTS);
    // Their numbers are above those of the files; here they come first.
    let mut pieces = std::mem::take(&mut build.pieces);
    let sa = pieces.split_off(4);
    let names = build.micro(&[("f", 40), ("g", 40), ("l", 41), ("d", 42), ("x", 44)]);
    let dir = File { mode: 0o040_755, size: 7, ..File::default() };
    let bonus = build.sa(2, &dir, &[]);
    build.object(34, DIRECTORY, SA, names.len() as u32, &bonus).write(34, 0, &names);
    let bonus = build.sa(2, &File { size: 1500, links: 2, ..File::default() }, &[]);
    build.object(40, PLAIN, SA, 512, &bonus).write(40, 0, &[1; 512]).free(40, 512, 512);
    build.packed(40, 1024, 512, 14, &[&[63][..], &[9; 64], &[255, 255, 127]].concat());
    let bonus = build.sa(3, &File { mode: 0o120_777, size: 5, ..File::default() }, &[b"there"]);
    build.object(41, PLAIN, SA, 512, &bonus);
    let (header, leaf) = (build.zap_header(2), build.zap_leaf(&[("a", 8, vec![43]), ("b", 8, vec![43])]));
    let bonus = build.sa(2, &File { size: 4, ..dir }, &[]);
    build.object(42, DIRECTORY, SA, 4096, &bonus).write(42, 0, &header).write(42, 4096, &leaf);
    build.free(42, 8192, u64::MAX);
    let bonus = build.sa(2, &File { size: 10, ..File::default() }, &[]);
    let spill = build.sa_spill(&packed_list(&[("user.a", b"value")]));
    build.object_flagged(43, PLAIN, SA, 512, &bonus, 4).spill(43, &spill).embedded(43, 512, 2, 16, &[5; 16]);
    let bonus = build.sa(5, &File { xattr: 45, ..File::default() }, &[]);
    build.object(44, PLAIN, SA, 512, &bonus);
    let names = build.micro(&[("user.one", 46)]);
    let bonus = build.sa(2, &File { mode: 0o040_777, parent: 44, flags: 5, size: 3, ..File::default() }, &[]);
    build.object(45, DIRECTORY, SA, 512, &bonus).write(45, 0, &names);
    let bonus = build.sa(2, &File { parent: 45, flags: 5, size: 4, ..File::default() }, &[]);
    build.object(46, PLAIN, SA, 512, &bonus).write(46, 0, &[3; 512]);
    pieces.append(&mut build.pieces);
    pieces.extend(sa);
    build.free_objects(903, 1 << 40).end();
    pieces.append(&mut build.pieces);
    pieces
}
