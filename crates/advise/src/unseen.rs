//! Ranges for content of which a sample saw one copy only.
//!
//! Clusters of content are sampled independently with probability p. A fingerprint that is in m clusters is seen in j
//! of them with the binomial probability of (j; m, p), so duplicates across clusters are seen as squares of p. From
//! the bytes seen in two, three, … clusters follows how many can be in how many: of all histograms of multiplicity that
//! fit within the error of the sample, the one with the most and the one with the fewest distinct bytes bound the
//! truth. That is the linear program of Harnik, Khaitzin and Sotnikov ("Estimating Unseen Deduplication - from Theory
//! to Practice", FAST 2016), after Valiant and Valiant ("Estimating the unseen", STOC 2011).

/// Bytes seen in j clusters, for j from [`FIRST`]; the last is for all above, times j.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Bytes seen, in classes of j.
    pub bytes: [f64; CLASSES],
    /// Their error in either direction.
    pub slack: [f64; CLASSES],
}

/// Classes of j: 2, 3, 4, 5, 6 and above.
pub const CLASSES: usize = 6;
const FIRST: usize = 2;

/// Class of content that was seen in `j` clusters, and the factor with which its bytes count there.
pub fn class(j: usize) -> Option<(usize, f64)> {
    match j {
        0 | 1 => None,
        _ if j < FIRST + CLASSES - 1 => Some((j - FIRST, 1.0)),
        _ => Some((CLASSES - 1, j as f64)),
    }
}

/// The most likely, the least and the most distinct bytes, as parts of `all`: the bytes of all clusters, each without
/// what repeats in it, of which the sample has `p`. The most likely is what fits the sample best.
/// Nothing when no histogram fits.
pub fn range(shared: &Shared, all: f64, p: f64) -> Option<(f64, f64, f64)> {
    if all <= 0.0 {
        return Some((1.0, 1.0, 1.0));
    }
    if p >= 1.0 {
        return None;
    }
    let grid = grid(p);
    let mut likely = None;
    for widen in [0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0, 8.0] {
        if likely.is_some() && widen < 1.0 {
            continue;
        }
        // Columns are bytes of `all` with that multiplicity, so that all are numbers of one size.
        let mut rows = Vec::new();
        for (at, (&bytes, &slack)) in shared.bytes.iter().zip(&shared.slack).enumerate() {
            let row: Vec<f64> = grid.iter().map(|&m| expected(at, m, p) / m).collect();
            let unit = 1.0 / (all * p * p);
            let scaled: Vec<f64> = row.iter().map(|value| value / (p * p)).collect();
            rows.push(Row {
                values: scaled.clone(),
                kind: Kind::AtMost,
                bound: (bytes + widen * slack) * unit,
            });
            let least = bytes - widen * slack;
            if least > 0.0 {
                rows.push(Row { values: scaled, kind: Kind::AtLeast, bound: least * unit });
            }
        }
        rows.push(Row { values: vec![1.0; grid.len()], kind: Kind::Equal, bound: 1.0 });
        let cost: Vec<f64> = grid.iter().map(|m| 1.0 / m).collect();
        let minus: Vec<f64> = cost.iter().map(|value| -value).collect();
        if let (Some(least), Some(most)) = (minimum(&rows, &cost), minimum(&rows, &minus)) {
            let (least, most) = (least.clamp(0.0, 1.0), (-most).clamp(0.0, 1.0));
            let likely = *likely.get_or_insert(f64::midpoint(least, most));
            if widen >= 1.0 {
                return Some((likely.clamp(least, most), least, most));
            }
        }
    }
    None
}

/// Multiplicities: each up to eight, then by steps of a quarter, to where a sample surely sees each of them often.
fn grid(p: f64) -> Vec<f64> {
    let mut grid: Vec<f64> = (1..=8).map(f64::from).collect();
    let mut last = 8.0_f64;
    while last < 40.0 / p {
        last = (last * 1.25).ceil();
        grid.push(last);
    }
    grid
}

/// Part of the bytes in `m` clusters that is seen in the clusters of a class, with its factor.
fn expected(at: usize, m: f64, p: f64) -> f64 {
    let binomial = |j: usize| {
        if (j as f64) > m {
            return 0.0;
        }
        let ways: f64 = (0..j).map(|i| (m - i as f64) / (i + 1) as f64).product();
        ways * p.powi(j as i32) * (1.0 - p).powf(m - j as f64)
    };
    if at + 1 < CLASSES {
        binomial(at + FIRST)
    } else {
        // The mean of j, less what the classes below and a single sighting have.
        let below: f64 = (1..FIRST + CLASSES - 1).map(|j| j as f64 * binomial(j)).sum();
        (m * p - below).max(0.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    AtMost,
    AtLeast,
    Equal,
}

#[derive(Debug, Clone)]
struct Row {
    values: Vec<f64>,
    kind: Kind,
    bound: f64,
}

const TINY: f64 = 1e-10;

/// The least `cost · x` with x ≥ 0 under the rows, whose bounds are not negative; nothing when no x fits. The simplex
/// method in two phases with a dense tableau and Bland's rule, which ends on every input.
fn minimum(rows: &[Row], cost: &[f64]) -> Option<f64> {
    let slacks = rows.iter().filter(|row| row.kind != Kind::Equal).count();
    let artificial = rows.iter().filter(|row| row.kind != Kind::AtMost).count();
    let (plain, width) = (cost.len(), cost.len() + slacks + artificial);
    let mut table = vec![vec![0.0; width + 1]; rows.len()];
    let mut basis = vec![0; rows.len()];
    let (mut slack, mut made) = (plain, plain + slacks);
    for (at, row) in rows.iter().enumerate() {
        table[at][..plain].copy_from_slice(&row.values);
        table[at][width] = row.bound;
        if row.kind != Kind::Equal {
            table[at][slack] = if row.kind == Kind::AtMost { 1.0 } else { -1.0 };
            basis[at] = slack;
            slack += 1;
        }
        if row.kind != Kind::AtMost {
            table[at][made] = 1.0;
            basis[at] = made;
            made += 1;
        }
    }
    let mut first = vec![0.0; width];
    first[plain + slacks..].fill(1.0);
    if solve(&mut table, &mut basis, &first, width)? > 1e-7 {
        return None;
    }
    let mut second = vec![0.0; width];
    second[..plain].copy_from_slice(cost);
    solve(&mut table, &mut basis, &second, plain + slacks)
}

fn solve(table: &mut [Vec<f64>], basis: &mut [usize], cost: &[f64], columns: usize) -> Option<f64> {
    let width = cost.len();
    for _ in 0..5000 {
        let reduced = |column: usize| {
            let priced: f64 = basis.iter().zip(table.iter()).map(|(&var, row)| cost[var] * row[column]).sum();
            cost[column] - priced
        };
        let Some(enter) = (0..columns).find(|&column| !basis.contains(&column) && reduced(column) < -1e-9)
        else {
            return Some(basis.iter().zip(table.iter()).map(|(&var, row)| cost[var] * row[width]).sum());
        };
        let leave = (0..table.len())
            .filter(|&row| table[row][enter] > TINY)
            .map(|row| (table[row][width] / table[row][enter], basis[row], row))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (_, _, leave) = leave?;
        let pivot = table[leave][enter];
        table[leave].iter_mut().for_each(|value| *value /= pivot);
        let chosen = table[leave].clone();
        for (at, row) in table.iter_mut().enumerate() {
            let factor = row[enter];
            if at != leave && factor.abs() > 0.0 {
                row.iter_mut().zip(&chosen).for_each(|(value, by)| *value -= factor * by);
            }
        }
        basis[leave] = enter;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::mix;

    #[test]
    fn a_program_of_two_variables_has_the_minimum_of_the_textbook() {
        // 3x + 5y is greatest, 36, under x <= 4, 2y <= 12, 3x + 2y <= 18.
        let row = |values: [f64; 2], bound| Row { values: values.into(), kind: Kind::AtMost, bound };
        let rows = [row([1.0, 0.0], 4.0), row([0.0, 2.0], 12.0), row([3.0, 2.0], 18.0)];
        assert!((minimum(&rows, &[-3.0, -5.0]).unwrap() + 36.0).abs() < 1e-9);
        let never = [
            Row { values: vec![1.0], kind: Kind::AtMost, bound: 1.0 },
            Row { values: vec![1.0], kind: Kind::AtLeast, bound: 2.0 },
        ];
        assert_eq!(minimum(&never, &[1.0]), None);
    }

    /// Clusters of one unit each, of which every content is in `m`.
    fn drawn(m: u64, clusters: u64, p: f64, seed: u64) -> (Shared, f64) {
        let mut shared = Shared::default();
        let mut units = [0.0; CLASSES];
        for content in 0..clusters / m {
            let seen =
                (0..m).filter(|copy| (mix(mix(seed ^ content) ^ copy) as f64) < p * u64::MAX as f64).count();
            if let Some((at, factor)) = class(seen) {
                shared.bytes[at] += factor;
                units[at] += factor * factor;
            }
        }
        for (slack, var) in shared.slack.iter_mut().zip(units) {
            *slack = 2.0 * (var + 2.0_f64).sqrt();
        }
        (shared, clusters as f64)
    }

    #[test]
    fn the_range_holds_the_truth_for_every_multiplicity() {
        for m in [1, 2, 3, 5, 10, 40] {
            let mut held = 0;
            for seed in 0..20 {
                let (shared, all) = drawn(m, 60_000, 0.1, seed);
                let (likely, least, most) = range(&shared, all, 0.1).unwrap();
                assert!(least <= likely && likely <= most);
                let truth = 1.0 / m as f64;
                held += u32::from(least <= truth + 1e-3 && truth <= most + 1e-3);
                assert!(most - least < 0.25, "{m} copies: {least} to {most}");
            }
            assert!(held >= 17, "{m} copies: {held} of 20 ranges hold the truth");
        }
    }
}
