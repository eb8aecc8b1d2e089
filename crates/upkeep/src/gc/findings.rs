//! Findings of a collection, and their form as a note of the pool.

use larder_format::node::MAX_VALUE;
use larder_format::{BlockId, CommitId, DatasetId, Timestamp};
use std::fmt::Write;

/// Blocks, and bytes that they take before replication and parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Number of blocks.
    pub blocks: u64,
    /// Their footprints.
    pub bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes += bytes;
    }
}

/// Records that are referred to about equally often: what they are, and what all references to them come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct References {
    /// Records.
    pub blocks: u64,
    /// Their plain bytes.
    pub logical: u64,
    /// Their stored bytes.
    pub stored: u64,
    /// Their space, before replication and parity.
    pub allocated: u64,
    /// References to them.
    pub referenced: u64,
    /// Plain bytes, each record as often as it is referred to.
    pub referenced_logical: u64,
    /// Stored bytes, likewise.
    pub referenced_stored: u64,
    /// Their space if nothing were shared, likewise.
    pub referenced_allocated: u64,
}

impl References {
    /// So many references to one record.
    pub(super) fn of(references: u64, logical: u64, stored: u64, allocated: u64) -> Self {
        Self {
            blocks: 1,
            logical,
            stored,
            allocated,
            referenced: references,
            referenced_logical: references * logical,
            referenced_stored: references * stored,
            referenced_allocated: references * allocated,
        }
    }

    /// Adds up.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.all().into_iter().zip(other.numbers()) {
            *sum += more;
        }
    }

    fn all(&mut self) -> [&mut u64; 8] {
        [
            &mut self.blocks,
            &mut self.logical,
            &mut self.stored,
            &mut self.allocated,
            &mut self.referenced,
            &mut self.referenced_logical,
            &mut self.referenced_stored,
            &mut self.referenced_allocated,
        ]
    }

    fn numbers(&self) -> [u64; 8] {
        self.clone().all().map(|number| *number)
    }
}

/// References of a dataset and its snapshots, each record as often as it is referred to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sharing {
    /// The dataset.
    pub dataset: DatasetId,
    /// References.
    pub references: u64,
    /// Plain bytes of them.
    pub logical: u64,
    /// Their space if nothing were shared, before replication and parity.
    pub allocated: u64,
    /// The dataset's share of what they take: a record that is referred to `n` times counts as an `n`-th for each.
    pub share: u64,
}

impl Sharing {
    pub(super) fn add(&mut self, other: &Self) {
        self.references += other.references;
        self.logical += other.logical;
        self.allocated += other.allocated;
        self.share += other.share;
    }

    /// Bytes that sharing saves here.
    pub fn saved(&self) -> u64 {
        self.allocated.saturating_sub(self.share)
    }
}

/// Classes of the histogram: 1 reference, 2 or 3, 4 to 7, and so on; the last has no upper end.
pub const CLASSES: usize = 32;
/// Missing blocks that are named.
pub(super) const SAMPLE: usize = 16;
/// Datasets that are kept, those that share most.
const SHARING: usize = 16;
/// Bytes of findings, at most: they are a note with a name.
const ENCODED_MAX: usize = MAX_VALUE - 64;

/// Outcome of a collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    /// It saw everything.
    #[default]
    Done,
    /// Somebody stopped it.
    Stopped,
    /// It could not go on.
    Failed(String),
}

/// Findings of a collection. Of one that was stopped or failed only the times mean something.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// Its outcome.
    pub outcome: Outcome,
    /// The commit whose roots were walked.
    pub commit: CommitId,
    /// It looked at blocks from this id on for what is missing or cannot be read: one that takes up from where another
    /// was cut short, or failed, adds what that found dead, and looks no further down.
    pub from: BlockId,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Timestamp,
    /// Nodes and records that trees refer to.
    pub live: Amount,
    /// In the free queue.
    pub queued: Amount,
    /// Dead, as is expected after snapshots and second references.
    pub dead: Amount,
    /// Leaked: nothing refers to it, and it should not have been there.
    pub unreachable: Amount,
    /// Blocks that are referred to, but the block map does not know.
    pub missing: u64,
    /// The ids of some of them.
    pub missing_sample: Vec<u64>,
    /// Nodes that could not be read: what is below is not known, so nothing was freed.
    pub lost: u64,
    /// Datasets that some of them belong to, or to a snapshot of.
    pub lost_in: Vec<DatasetId>,
    /// Marks of second references that are gone.
    pub unshared: u64,
    /// Records by references: class `i` has those with 2^i or more, and less than twice that.
    pub histogram: Vec<References>,
    /// Records with a fingerprint that are referred to once, and more often.
    pub fingerprinted: (u64, u64),
    /// Sharing between datasets, those first that save most.
    pub sharing: Vec<Sharing>,
}

impl Findings {
    /// Counts a record.
    pub(super) fn count(&mut self, record: &References) {
        let class = (record.referenced.max(1).ilog2() as usize).min(CLASSES - 1);
        if self.histogram.len() <= class {
            self.histogram.resize(class + 1, References::default());
        }
        self.histogram[class].add(record);
    }

    /// The part to keep of a collection under way.
    pub(super) fn so_far(&self, sharing: Vec<Sharing>) -> Self {
        let mut found = self.clone();
        found.keep_sharing(sharing);
        found
    }

    /// Blocks that the sweep has judged.
    pub(super) fn judged_blocks(&self) -> u64 {
        [self.live, self.queued, self.dead, self.unreachable].iter().map(|amount| amount.blocks).sum()
    }

    /// Keeps of the datasets those that save most by sharing.
    pub(super) fn keep_sharing(&mut self, mut all: Vec<Sharing>) {
        all.retain(|of| of.saved() > 0);
        all.sort_by_key(|of| (std::cmp::Reverse(of.saved()), of.dataset));
        all.truncate(SHARING);
        self.sharing = all;
    }

    /// All classes of the histogram together.
    pub fn references(&self) -> References {
        let mut sum = References::default();
        self.histogram.iter().for_each(|of| sum.add(of));
        sum
    }

    /// Things that are wrong with the pool. What nothing refers to may be below a node that cannot be read.
    pub fn errors(&self) -> u64 {
        let leaked = if self.lost == 0 { self.unreachable.blocks } else { 0 };
        leaked + self.missing + self.lost
    }

    /// Whether something is.
    pub fn is_bad(&self) -> bool {
        self.errors() > 0
    }

    /// As a line of text: numbers by name, the histogram's classes, and last why it failed. What finds no room in a
    /// note is left out.
    pub(super) fn encode(&self) -> String {
        let mut out = String::new();
        let outcome = match self.outcome {
            Outcome::Done => "done",
            Outcome::Stopped => "stopped",
            Outcome::Failed(_) => "failed",
        };
        let mut put = |name: &str, value: &dyn std::fmt::Display| {
            let before = out.len();
            // Writing to a string does not fail.
            // A string takes whatever is written to it.
            let _ = write!(out, "{name}={value} ");
            if out.len() > ENCODED_MAX {
                out.truncate(before);
            }
        };
        put("outcome", &outcome);
        put("commit", &self.commit.get());
        put("from", &self.from.get());
        put("started", &self.started.secs);
        put("finished", &self.finished.secs);
        for (name, amount) in [
            ("live", self.live),
            ("queued", self.queued),
            ("dead", self.dead),
            ("unreachable", self.unreachable),
        ] {
            put(name, &format_args!("{},{}", amount.blocks, amount.bytes));
        }
        put("missing", &self.missing);
        self.missing_sample.iter().for_each(|id| put("sample", id));
        put("lost", &self.lost);
        self.lost_in.iter().for_each(|dataset| put("lost_in", dataset));
        put("unshared", &self.unshared);
        put("fingerprinted", &format_args!("{},{}", self.fingerprinted.0, self.fingerprinted.1));
        for (i, of) in self.histogram.iter().enumerate().filter(|(_, of)| of.blocks > 0) {
            let all: Vec<_> = of.numbers().iter().map(|number| format!("{number:x}")).collect();
            put("class", &format_args!("{i},{}", all.join(",")));
        }
        for of in &self.sharing {
            let Sharing { dataset, references, logical, allocated, share } = of;
            put("sharing", &format_args!("{dataset},{references},{logical},{allocated},{share}"));
        }
        if let Outcome::Failed(why) = &self.outcome {
            let room = ENCODED_MAX.saturating_sub(out.len() + "why= ".len());
            let end = (0..=room.min(why.len())).rev().find(|&end| why.is_char_boundary(end));
            out.push_str("why=");
            out.push_str(&why[..end.unwrap_or(0)]);
        }
        out.truncate(out.trim_end().len());
        out
    }

    /// Inverse of [`Findings::encode`]; `None` for anything else.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut findings = Self::default();
        let (numbers, why) = text.split_once(" why=").unwrap_or((text, ""));
        for (name, value) in numbers.split(' ').filter_map(|part| part.split_once('=')) {
            let number = || value.parse::<u64>().ok();
            let amount = || {
                let (blocks, bytes) = value.split_once(',')?;
                Some(Amount { blocks: blocks.parse().ok()?, bytes: bytes.parse().ok()? })
            };
            let time = || Some(Timestamp { secs: value.parse().ok()?, nanos: 0 });
            match name {
                "outcome" => {
                    findings.outcome = match value {
                        "done" => Outcome::Done,
                        "stopped" => Outcome::Stopped,
                        _ => Outcome::Failed(why.to_owned()),
                    }
                }
                "commit" => findings.commit = CommitId::new(number()?),
                "from" => findings.from = BlockId::new(number()?),
                "started" => findings.started = time()?,
                "finished" => findings.finished = time()?,
                "live" => findings.live = amount()?,
                "queued" => findings.queued = amount()?,
                "dead" => findings.dead = amount()?,
                "unreachable" => findings.unreachable = amount()?,
                "missing" => findings.missing = number()?,
                "sample" => findings.missing_sample.push(number()?),
                "lost" => findings.lost = number()?,
                "lost_in" => findings.lost_in.push(DatasetId::new(number()?)),
                "unshared" => findings.unshared = number()?,
                "class" => {
                    let (class, all) = value.split_once(',')?;
                    let class: usize = class.parse().ok().filter(|&class| class < CLASSES)?;
                    findings.histogram.resize(findings.histogram.len().max(class + 1), References::default());
                    let into = findings.histogram[class].all();
                    let mut numbers = all.split(',').map(|number| u64::from_str_radix(number, 16).ok());
                    for to in into {
                        *to = numbers.next()??;
                    }
                }
                "fingerprinted" => {
                    let (unique, more) = value.split_once(',')?;
                    findings.fingerprinted = (unique.parse().ok()?, more.parse().ok()?);
                }
                "sharing" => {
                    let mut numbers = value.split(',').map(|number| number.parse::<u64>().ok());
                    let mut number = || numbers.next()?;
                    findings.sharing.push(Sharing {
                        dataset: DatasetId::new(number()?),
                        references: number()?,
                        logical: number()?,
                        allocated: number()?,
                        share: number()?,
                    });
                }
                _ => {}
            }
        }
        Some(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_back_as_they_were_kept() {
        let mut findings = Findings {
            outcome: Outcome::Failed("the disk = gone".into()),
            commit: CommitId::new(9),
            from: BlockId::new(5),
            started: Timestamp { secs: 1, nanos: 0 },
            finished: Timestamp { secs: 2, nanos: 0 },
            live: Amount { blocks: 3, bytes: 4 },
            missing: 2,
            missing_sample: vec![7, 8],
            lost_in: vec![DatasetId::new(3)],
            ..Findings::default()
        };
        findings.count(&References::of(1, 10, 5, 8));
        findings.count(&References::of(5, 10, 5, 8));
        assert_eq!(findings.histogram[2].referenced_stored, 25);
        findings.fingerprinted = (3, 4);
        let of = |dataset, share| Sharing {
            dataset: DatasetId::new(dataset),
            references: 1,
            logical: 2,
            allocated: 10,
            share,
        };
        findings.keep_sharing(vec![of(1, 8), of(2, 10), of(3, 1)]);
        assert_eq!(findings.sharing, [of(3, 1), of(1, 8)]);
        assert_eq!(Findings::decode(&findings.encode()), Some(findings.clone()));
        findings.outcome = Outcome::Done;
        assert_eq!(Findings::decode(&findings.encode()), Some(findings));
        assert_eq!(Findings::decode("live=x"), None);
    }

    #[test]
    fn findings_of_the_largest_pool_find_room_in_a_note() {
        let most = u64::MAX >> 2;
        let of = References { referenced_allocated: most, ..References::of(1, most, most, most) };
        let sharing = Sharing { references: most, logical: most, allocated: most, ..Sharing::default() };
        let findings = Findings {
            outcome: Outcome::Failed("\u{fc}".repeat(3000)),
            missing_sample: vec![most; SAMPLE],
            lost_in: vec![DatasetId::new(most); SAMPLE],
            histogram: vec![of; CLASSES],
            sharing: (0..SHARING as u64)
                .map(|id| Sharing { dataset: DatasetId::new(id), ..sharing })
                .collect(),
            unshared: most,
            ..Findings::default()
        };
        let value = findings.encode();
        let name = "larder:trace-found".to_owned();
        let record = larder_format::property::PropertyRecord::local(&name, &value).encode();
        assert!(record.len() <= larder_format::node::MAX_VALUE, "{} bytes", record.len());
        let found = Findings::decode(&value).unwrap();
        assert_eq!((found.unshared, &found.histogram[0]), (most, &of));
        assert!(matches!(found.outcome, Outcome::Failed(why) if why.starts_with('\u{fc}')));
    }
}
