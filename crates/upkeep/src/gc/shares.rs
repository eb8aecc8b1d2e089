//! Shares of datasets, and of parts of them, in what is stored.
//!
//! A reference is tagged with the number of a part. Without a [`Split`] each dataset is one part, and the number is
//! [`PinnedTree::origin`]. Parts of a dataset are next to each other, so that among the references to a record those of
//! a dataset are: its share is divided among its parts by running sums, and is the same whatever parts there are.
//! Nothing here has a say in what lives.

use super::findings::Sharing;
use super::spill::{Counted, Tag};
use larder_format::DatasetId;
use larder_pool::pins::{Pinned, PinnedTree};
use larder_pool::{Pool, Split};
use std::sync::Arc;

/// Of the collection's memory, a split has this part; so much less has the set of what is live.
pub(super) const SPLIT_SHARE: usize = 8;

/// Findings by part of a collection that saw everything.
pub struct Parts {
    /// Its parts.
    pub split: Arc<dyn Split>,
    /// Their shares, by number.
    pub sharing: Vec<Sharing>,
}

/// Shares by part, as they are being counted.
pub(super) struct Shares {
    datasets: Vec<DatasetId>,
    /// By part.
    sharing: Vec<Sharing>,
    split: Option<Arc<dyn Split>>,
    is_learned: bool,
    /// The last answer of the split: extents of a file come together.
    last: Option<(u32, u64, u32)>,
}

impl Shares {
    /// Of a collection that goes on from what was `found` before; a split takes `memory`.
    pub fn new(pinned: &Pinned, found: &[Sharing], split: Option<Arc<dyn Split>>, memory: usize) -> Self {
        let datasets = pinned.origins.clone();
        let of = |dataset: &DatasetId| {
            let before = found.iter().find(|of| of.dataset == *dataset);
            before.copied().unwrap_or(Sharing { dataset: *dataset, ..Sharing::default() })
        };
        // The last number stands for too many to be told.
        let sharing = datasets.iter().take(Tag::MAX_ORIGIN as usize).map(of).collect();
        if let Some(split) = &split {
            split.begin(&pinned.members, datasets.len(), Tag::MAX_ORIGIN as usize, memory);
        }
        Self { datasets, sharing, is_learned: split.is_none(), split, last: None }
    }

    /// Learns some more of what the parts are; whether there was something to be learned.
    pub fn learn(&mut self, pool: &Pool, effort: usize) -> bool {
        let Some(split) = self.split.as_ref().filter(|_| !self.is_learned) else { return false };
        if !split.learn(pool, effort) {
            self.is_learned = true;
            let dataset = |origin: &u32| self.datasets.get(*origin as usize).copied().unwrap_or_default();
            let of = |origin| Sharing { dataset: dataset(origin), ..Sharing::default() };
            self.sharing = split.origins().iter().take(Tag::MAX_ORIGIN as usize).map(of).collect();
        }
        true
    }

    /// The part that an object of a tree is in.
    pub fn part(&mut self, member: &PinnedTree, object: u64) -> u32 {
        let Some(split) = &self.split else { return member.origin };
        match self.last {
            Some((origin, last, part)) if (origin, last) == (member.origin, object) => part,
            _ => {
                let part = split.part(member.origin, object);
                self.last = Some((member.origin, object, part));
                part
            }
        }
    }

    /// The trees were walked.
    pub fn walked(&self) {
        if let Some(split) = &self.split {
            split.forget();
        }
    }

    /// The dataset of a part.
    pub fn dataset(&self, part: u32) -> Option<DatasetId> {
        self.sharing.get(part as usize).map(|of| of.dataset)
    }

    /// Counts the references to a record, ascending by tag, `count` together.
    pub fn count<'a>(
        &mut self,
        references: impl Iterator<Item = &'a Counted>,
        count: u64,
        logical: u64,
        allocated: u64,
    ) {
        let (mut dataset, mut before) = (None, 0);
        for one in references {
            let Some(of) = self.sharing.get_mut(one.tag.origin() as usize) else { continue };
            if dataset.replace(of.dataset) != Some(of.dataset) {
                before = 0;
            }
            let share = |references: u64| references * allocated / count;
            of.references += one.count;
            of.logical += one.count * logical;
            of.allocated += one.count * allocated;
            of.share += share(before + one.count) - share(before);
            before += one.count;
        }
    }

    /// The shares of datasets.
    pub fn by_dataset(&self) -> Vec<Sharing> {
        let mut sums: Vec<Sharing> = Vec::new();
        for part in &self.sharing {
            match sums.last_mut().filter(|sum| sum.dataset == part.dataset) {
                Some(sum) => sum.add(part),
                None => sums.push(*part),
            }
        }
        sums
    }

    /// The shares of parts, if it was split.
    pub fn into_parts(self) -> Option<Parts> {
        Some(Parts { split: self.split?, sharing: self.sharing })
    }
}
