//! All candidates, and which of them to take.

use crate::assume::Assumptions;
use crate::candidate::{Bulk, Candidate, candidate};
use crate::disk::Disk;
use crate::shape::{WORDS, shapes};
use crate::warning::{Warning, warnings};
use larder_pool::create::DEFAULT_ASHIFT;
use serde::Serialize;

/// Candidates that are told when not all are asked for, at most.
const SHOWN: usize = 12;

/// The whole of what `larder plan` tells.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The disks.
    pub disks: Vec<Disk>,
    /// log2 of the alignment that the pool would have.
    pub ashift: u8,
    /// Assumptions behind all figures.
    pub assumptions: Assumptions,
    /// Candidates, most space first.
    pub candidates: Vec<Candidate>,
    /// Number of the one to take; none when there are no candidates.
    pub recommended: Option<usize>,
    /// Numbers of those worth a look: none is better in both space and risk, and the best of each word.
    pub shown: Vec<usize>,
    /// Of each disk, whether it alone is fit for a bulk store.
    pub bulk: Vec<Bulk>,
    /// Remarks about the disks.
    pub warnings: Vec<Warning>,
}

/// Plans with these disks, of which so many are to be spares; `memory` is that of the machine in bytes, 0 where it is
/// not known.
pub fn plan(disks: Vec<Disk>, spares: usize, memory: u64, assumptions: Assumptions) -> Plan {
    let sector = disks.iter().map(|disk| disk.sectors.1).max().unwrap_or(0);
    let ashift = (sector.max(1).ilog2() as u8).clamp(DEFAULT_ASHIFT, larder_format::label::MAX_ASHIFT);
    let mut candidates: Vec<Candidate> = shapes(&disks, spares)
        .into_iter()
        .map(|shape| candidate(&disks, shape, &assumptions, ashift))
        .filter(|candidate| candidate.usable > 0)
        .collect();
    candidates.sort_by(|a, b| {
        let risk = |of: &Candidate| of.risk.block_lost;
        b.usable.cmp(&a.usable).then(risk(a).total_cmp(&risk(b)))
    });
    let recommended = recommended(&candidates);
    let shown = shown(&candidates, recommended);
    let bulk =
        disks.iter().map(|disk| Bulk::of(assumptions.in_turn(disk), disk.size, &assumptions)).collect();
    Plan {
        warnings: warnings(&disks, memory),
        disks,
        ashift,
        assumptions,
        candidates,
        recommended,
        shown,
        bulk,
    }
}

/// The most space among those that are safe enough, of equal ones the fastest for small reads; the safest when none is.
fn recommended(all: &[Candidate]) -> Option<usize> {
    let safe = |at: &usize| all[*at].safe;
    let most = (0..all.len()).filter(safe).max_by(|&a, &b| {
        let (a, b) = (&all[a], &all[b]);
        let space = a.usable.cmp(&b.usable);
        space
            .then(a.speed.reads.total_cmp(&b.speed.reads))
            .then(b.risk.block_lost.total_cmp(&a.risk.block_lost))
    });
    most.or_else(|| (0..all.len()).min_by(|&a, &b| all[a].risk.block_lost.total_cmp(&all[b].risk.block_lost)))
}

fn shown(all: &[Candidate], recommended: Option<usize>) -> Vec<usize> {
    let mut shown: Vec<usize> = recommended.into_iter().collect();
    for word in WORDS {
        let of = || (0..all.len()).filter(|&at| all[at].word == word);
        let safest = || of().min_by(|&a, &b| all[a].risk.block_lost.total_cmp(&all[b].risk.block_lost));
        // They are in the order of space.
        shown.extend(of().find(|&at| all[at].safe).or_else(safest));
        // All of the disks, in as few groups as can be and with most space: what people ask about.
        shown.extend(of().find(|&at| all[at].shape.left_out.is_empty()));
        let widest = || of().min_by_key(|&at| (all[at].shape.left_out.len(), all[at].shape.groups.len()));
        shown.extend(widest().filter(|_| word != "mirror"));
    }
    shown.sort_unstable();
    shown.dedup();
    let mut best = f64::INFINITY;
    for (at, candidate) in all.iter().enumerate() {
        if candidate.risk.block_lost < best {
            best = candidate.risk.block_lost;
            if shown.len() < SHOWN && !shown.contains(&at) {
                shown.push(at);
            }
        }
    }
    shown.sort_unstable();
    shown
}
