//! Every kernel against a plain byte loop, and every pattern of loss.

use super::*;
use proptest::prelude::*;

/// The definition, byte by byte: no Horner, no tables.
fn plain_parity(data: &[Vec<u8>], m: usize) -> Vec<Vec<u8>> {
    let k = data.len();
    let byte = |row: usize, at: usize| {
        (0..k).fold(0, |sum, column| sum ^ multiply(data[column][at], coefficient(k, row, column)))
    };
    (0..m).map(|row| (0..data[0].len()).map(|at| byte(row, at)).collect()).collect()
}

fn columns(k: usize, len: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..k).map(|_| (0..len).map(|_| byte()).collect()).collect()
}

fn with_parity(kernel: Kernel, data: &[Vec<u8>], m: usize) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xee; data[0].len()]; m];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    kernel.parity(&data, &mut slices);
    parity
}

fn reconstructed(
    kernel: Kernel,
    k: usize,
    row: &[Vec<u8>],
    lost: &[usize],
    want: &[usize],
) -> Result<Vec<Vec<u8>>, NotEnough> {
    let present: Vec<Option<&[u8]>> = row
        .iter()
        .enumerate()
        .map(|(column, bytes)| (!lost.contains(&column)).then_some(&bytes[..]))
        .collect();
    let mut out = vec![vec![0xee; row[0].len()]; want.len()];
    let mut slices: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    reconstruct_with(kernel, k, row.len() - k, &present, want, &mut slices)?;
    Ok(out)
}

/// All subsets of `0..n` with up to `most` members.
fn subsets(n: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for _ in 0..most {
        let longer = all.iter().flat_map(|set: &Vec<usize>| {
            (set.last().map_or(0, |last| last + 1)..n).map(move |next| [&set[..], &[next]].concat())
        });
        let longer: Vec<_> = longer.collect();
        all.extend(longer);
        all.sort();
        all.dedup();
    }
    all
}

#[test]
fn known_row_has_the_parity_that_the_definition_gives() {
    // Three columns of one byte value each: Q = 4a + 2b + c, R = 16a + 4b + c.
    let data = [vec![0x80; 8], vec![0x01; 8], vec![0x03; 8]];
    let parity = with_parity(Kernel::best(), &data, 3);
    // 4·0x80 = 0x3a and 16·0x80 = 0xe8 modulo 0x11d.
    assert_eq!(parity, [vec![0x82; 8], vec![0x3a ^ 0x02 ^ 0x03; 8], vec![0xe8 ^ 0x04 ^ 0x03; 8]]);
}

#[test]
fn every_kernel_agrees_with_the_byte_loop_at_every_tail() {
    for kernel in Kernel::available() {
        for len in (8..=8 * 80).step_by(8).chain([4096, 4104]) {
            for (k, m) in [(1, 1), (2, 3), (5, 2), (7, 3)] {
                let data = columns(k, len, len as u64);
                assert_eq!(with_parity(kernel, &data, m), plain_parity(&data, m), "{kernel:?} {k}+{m} {len}");
            }
        }
    }
}

#[test]
fn every_kernel_multiplies_by_every_factor() {
    let source: Vec<u8> = (0..=255).chain(0..=7).collect();
    for kernel in Kernel::available() {
        for value in 0..=255 {
            let mut sum = vec![0x5a; source.len()];
            kernel.add_product(&Factor::new(value), &source, &mut sum);
            let expected: Vec<u8> = source.iter().map(|&byte| 0x5a ^ multiply(byte, value)).collect();
            assert_eq!(sum, expected, "{kernel:?} {value}");
        }
    }
}

#[test]
fn unaligned_columns_are_as_good_as_aligned_ones() {
    let data = columns(4, 1024, 3);
    for kernel in Kernel::available() {
        for shift in 1..8 {
            let shifted: Vec<Vec<u8>> =
                data.iter().map(|column| [&[0; 8][..shift], column].concat()).collect();
            let slices: Vec<&[u8]> = shifted.iter().map(|column| &column[shift..]).collect();
            let mut buffers = vec![vec![0; 1024 + shift]; 3];
            let mut parity: Vec<&mut [u8]> = buffers.iter_mut().map(|column| &mut column[shift..]).collect();
            kernel.parity(&slices, &mut parity);
            assert_eq!(parity, plain_parity(&data, 3));
        }
    }
}

#[test]
fn every_loss_that_parity_covers_is_reconstructed() {
    for m in 1..=MAX_PARITY {
        for k in 1..=17 {
            let mut row = columns(k, 8, 7);
            row.extend(plain_parity(&row, m));
            for lost in subsets(k + m, m) {
                let found = reconstructed(Kernel::best(), k, &row, &lost, &lost).unwrap();
                let expected: Vec<Vec<u8>> = lost.iter().map(|&column| row[column].clone()).collect();
                assert_eq!(found, expected, "{k}+{m} without {lost:?}");
            }
        }
    }
}

#[test]
fn no_pattern_of_the_widest_row_is_singular() {
    // `invert` panics on a singular matrix; any part of the widest row's matrix is inverted here.
    for rows in subsets(MAX_PARITY, MAX_PARITY) {
        for lost in subsets(MAX_DATA, rows.len()).into_iter().filter(|lost| lost.len() == rows.len()) {
            let mut matrix = [[0; MAX_PARITY]; MAX_PARITY];
            for (line, &row) in matrix.iter_mut().zip(&rows) {
                for (cell, &column) in line.iter_mut().zip(&lost) {
                    *cell = coefficient(MAX_DATA, row, column);
                }
            }
            invert(matrix, rows.len());
        }
    }
}

#[test]
fn one_loss_too_many_is_an_error() {
    for (k, m) in [(1, 1), (4, 2), (8, 3)] {
        let mut row = columns(k, 8, 7);
        row.extend(plain_parity(&row, m));
        for lost in subsets(k + m, m + 1).into_iter().filter(|lost| lost.len() > m) {
            let found = reconstructed(Kernel::best(), k, &row, &lost, &lost);
            assert_eq!(found, Err(NotEnough { present: k - 1, needed: k }));
        }
    }
}

#[test]
fn a_present_column_may_be_wanted_too() {
    let mut row = columns(4, 64, 9);
    row.extend(plain_parity(&row, 2));
    let found = reconstructed(Kernel::best(), 4, &row, &[2], &[0, 2, 5]).unwrap();
    assert_eq!(found, [row[0].clone(), row[2].clone(), row[5].clone()]);
    assert_eq!(reconstructed(Kernel::best(), 4, &row, &[2], &[]), Ok(vec![]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_kernel_reconstructs_any_row(
        k in 1..=MAX_DATA,
        m in 1..=MAX_PARITY,
        steps in 1..1300_usize,
        seed: u64,
        picks in proptest::collection::vec(any::<prop::sample::Index>(), MAX_PARITY),
    ) {
        let mut row = columns(k, steps * STEP, seed);
        row.extend(plain_parity(&row, m));
        let mut lost: Vec<usize> = picks[..m].iter().map(|pick| pick.index(k + m)).collect();
        lost.sort();
        lost.dedup();
        for kernel in Kernel::available() {
            prop_assert_eq!(&with_parity(kernel, &row[..k], m)[..], &row[k..]);
            let found = reconstructed(kernel, k, &row, &lost, &lost).unwrap();
            let expected: Vec<Vec<u8>> = lost.iter().map(|&column| row[column].clone()).collect();
            prop_assert_eq!(found, expected, "{:?} {}+{} without {:?}", kernel, k, m, &lost);
        }
    }
}
