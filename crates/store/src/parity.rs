//! P, Q and R parity of a stripe: Reed-Solomon over GF(2^8) as in RAID-Z.
//!
//! The field is that of OpenZFS's `vdev_raidz.c` and of H. P. Anvin, "The mathematics of RAID-6":
//! polynomial 0x11d, generators 1, 2 and 4. With `k` data columns `d[0]..d[k-1]`, byte by byte,
//!
//! ```text
//! P =          d[0] +          d[1] + … + d[k-1]
//! Q = 2^(k-1)·d[0] + 2^(k-2)·d[1] + … + d[k-1]
//! R = 4^(k-1)·d[0] + 4^(k-2)·d[1] + … + d[k-1]
//! ```
//!
//! which Horner's rule computes with nothing but "times two" and xor, all of them in one pass over
//! the data, at the speed of memory.
//!
//! *Any* `k` of the `k + m` columns give back the rest. The coefficients of a column are 1, x, x² with
//! x = 2^i, all different for i < 255, and each square submatrix has a determinant that is a product
//! of some x, of sums x + y of two different ones, and of squares of those: (P, R) gives
//! x² + y² = (x + y)². The tests enumerate the patterns.
//!
//! Reconstruction reads each column once as well. Missing data counts as zero in the same pass, which
//! gives the parity of what is left; its difference from a stored parity column is a *syndrome*, the
//! parity of what is missing. Inverting the matrix of at most 3 × 3 gives the factors by which the
//! syndromes make up each wanted column. Syndromes live in a chunk that stays in the first-level cache.
//!
//! [`kernel`] holds the only machine-dependent code.

mod kernel;
#[cfg(test)]
mod tests;

use kernel::{Factor, Kernel};
use thiserror::Error;

/// Most data columns that a stripe may have.
pub const MAX_DATA: usize = 61;
/// Most parity columns that a stripe may have.
pub const MAX_PARITY: usize = 3;
/// Lengths of columns are multiples of this many bytes.
pub const STEP: usize = 8;

/// Bytes of a column that reconstruction treats at once: three of them fit the first-level cache.
const CHUNK: usize = 4096;

/// More columns are lost than the parity can replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{present} columns are left where {needed} are needed")]
pub struct NotEnough {
    /// Columns that are there.
    pub present: usize,
    /// Columns that it takes: as many as the stripe has of data.
    pub needed: usize,
}

/// Computes the parity columns of a stripe: `parity[0]` is P, then Q, then R.
///
/// # Panics
/// Unless there are 1 to [`MAX_DATA`] data and 1 to [`MAX_PARITY`] parity columns, all of one length,
/// a multiple of [`STEP`].
pub fn encode(data: &[&[u8]], parity: &mut [&mut [u8]]) {
    check_shape(data.len(), parity.len());
    Kernel::best().parity(data, parity);
}

/// Computes the columns `want` of a stripe into `out`, from the columns that are present.
///
/// Columns are numbered as they lie in the stripe: data 0 to `k`, then P, Q and R. A wanted column that is
/// present is copied. Fails when fewer than `k` columns are present.
///
/// # Panics
/// Unless `present` has `k + m` entries in the limits of [`encode`], `out` as many columns as `want`,
/// each number in `want` is a column, and all columns have one length, a multiple of [`STEP`].
pub fn reconstruct(
    k: usize,
    m: usize,
    present: &[Option<&[u8]>],
    want: &[usize],
    out: &mut [&mut [u8]],
) -> Result<(), NotEnough> {
    reconstruct_with(Kernel::best(), k, m, present, want, out)
}

fn reconstruct_with(
    kernel: Kernel,
    k: usize,
    m: usize,
    present: &[Option<&[u8]>],
    want: &[usize],
    out: &mut [&mut [u8]],
) -> Result<(), NotEnough> {
    check_shape(k, m);
    assert_eq!(present.len(), k + m, "a row has k + m columns");
    assert_eq!(want.len(), out.len(), "one buffer a wanted column");
    let Some(len) = out.first().map(|column| column.len()) else { return Ok(()) };
    assert!(out.iter().all(|column| column.len() == len), "columns differ in length");
    assert!(present.iter().flatten().all(|column| column.len() == len), "columns differ in length");
    assert!(len.is_multiple_of(STEP), "columns are multiples of {STEP} bytes");

    let plan = Plan::new(k, present, want)?;
    let mut parity = [[0; CHUNK]; MAX_PARITY];
    for start in (0..len).step_by(CHUNK) {
        let range = start..len.min(start + CHUNK);
        let parity = &mut parity.each_mut().map(|chunk| &mut chunk[..range.len()])[..plan.rows];
        if plan.rows > 0 {
            let mut data = [&ZEROS[..range.len()]; MAX_DATA];
            for (chunk, column) in data.iter_mut().zip(&present[..k]) {
                if let Some(column) = column {
                    *chunk = &column[range.clone()];
                }
            }
            kernel.parity(&data[..k], parity);
        }
        for row in plan.syndromes() {
            let stored = present[k + row].expect("a syndrome takes a stored parity column");
            kernel.add_product(&Factor::ONE, &stored[range.clone()], parity[row]);
        }
        for ((&column, recipe), out) in want.iter().zip(&plan.recipes).zip(out.iter_mut()) {
            let out = &mut out[range.clone()];
            match present[column] {
                Some(stored) => out.copy_from_slice(&stored[range.clone()]),
                None => {
                    // Of a missing parity column, the pass has left the part that comes from present data.
                    if column < k {
                        out.fill(0)
                    } else {
                        out.copy_from_slice(parity[column - k])
                    }
                    for (factor, row) in recipe.iter().zip(plan.syndromes()) {
                        kernel.add_product(factor, parity[row], out);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Stands in for missing data.
static ZEROS: [u8; CHUNK] = [0; CHUNK];

fn check_shape(k: usize, m: usize) {
    assert!((1..=MAX_DATA).contains(&k), "{k} data columns");
    assert!((1..=MAX_PARITY).contains(&m), "{m} parity columns");
}

/// Steps of reconstruction on each chunk.
struct Plan {
    /// Parity columns that the pass over the data computes.
    rows: usize,
    /// The parity columns, one for each missing data column, that are turned into syndromes.
    used: [Option<usize>; MAX_PARITY],
    /// For each wanted column that is missing, the factors of the syndromes in it.
    recipes: Vec<Vec<Factor>>,
}

impl Plan {
    fn new(k: usize, present: &[Option<&[u8]>], want: &[usize]) -> Result<Self, NotEnough> {
        let (data, parity) = present.split_at(k);
        let left = present.iter().flatten().count();
        if left < k {
            return Err(NotEnough { present: left, needed: k });
        }
        let lost: Vec<usize> = (0..k).filter(|&column| data[column].is_none()).collect();
        let mut used = [None; MAX_PARITY];
        let stored = (0..parity.len()).filter(|&row| parity[row].is_some());
        for (slot, row) in used.iter_mut().zip(stored.take(lost.len())) {
            *slot = Some(row);
        }

        // syndrome[j] = Σ coefficient(used[j], lost[i]) · lost[i], hence lost = inverse · syndrome.
        let mut matrix = [[0; MAX_PARITY]; MAX_PARITY];
        for (line, row) in matrix.iter_mut().zip(used.into_iter().flatten()) {
            for (cell, &column) in line.iter_mut().zip(&lost) {
                *cell = coefficient(k, row, column);
            }
        }
        let inverse = invert(matrix, lost.len());
        let recipe = |&column: &usize| -> Vec<Factor> {
            // Coefficient of each lost data column in the wanted one.
            let share = |i: usize| match column.checked_sub(k) {
                Some(row) => coefficient(k, row, lost[i]),
                None => u8::from(lost[i] == column),
            };
            let factor = |j: usize| (0..lost.len()).fold(0, |sum, i| sum ^ multiply(share(i), inverse[i][j]));
            (0..lost.len()).map(|j| Factor::new(factor(j))).collect()
        };
        let recipes = want.iter().map(recipe).collect();

        let wanted = want.iter().filter(|&&column| present[column].is_none());
        let wanted_parity = wanted.filter_map(|column| column.checked_sub(k));
        let rows = used.into_iter().flatten().chain(wanted_parity).map(|row| row + 1).max().unwrap_or(0);
        Ok(Self { rows, used, recipes })
    }

    fn syndromes(&self) -> impl Iterator<Item = usize> {
        self.used.into_iter().flatten()
    }
}

/// The factor of data column `column` in parity column `row`.
fn coefficient(k: usize, row: usize, column: usize) -> u8 {
    (0..row * (k - 1 - column)).fold(1, |power, _| multiply(power, 2))
}

/// The product in the field.
const fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

/// The inverse of `a` in the field: a^254.
fn reciprocal(a: u8) -> u8 {
    assert_ne!(a, 0, "zero has no reciprocal");
    (0..254).fold(1, |power, _| multiply(power, a))
}

type Matrix = [[u8; MAX_PARITY]; MAX_PARITY];

/// The inverse of the upper left `n` × `n` part, by Gauss and Jordan.
fn invert(mut matrix: Matrix, n: usize) -> Matrix {
    let mut inverse = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    for pivot in 0..n {
        let row = (pivot..n).find(|&row| matrix[row][pivot] != 0).expect("the matrix is regular");
        matrix.swap(pivot, row);
        inverse.swap(pivot, row);
        let scale = reciprocal(matrix[pivot][pivot]);
        for column in 0..n {
            matrix[pivot][column] = multiply(matrix[pivot][column], scale);
            inverse[pivot][column] = multiply(inverse[pivot][column], scale);
        }
        for row in (0..n).filter(|&row| row != pivot) {
            let scale = matrix[row][pivot];
            for column in 0..n {
                matrix[row][column] ^= multiply(matrix[pivot][column], scale);
                inverse[row][column] ^= multiply(inverse[pivot][column], scale);
            }
        }
    }
    inverse
}
