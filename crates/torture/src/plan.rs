//! The life of a pool, as data: by seed and layout alone.
//!
//! A life is a number of rounds. In a round each *lane* (a dataset, with one who works in it) takes its steps, while
//! devices come to harm and the pool is changed beside it; then the round ends: all have taken them, or the daemon is
//! killed, or the pool exported; and all is compared. Steps name files by number; one that says something of a file
//! that is not there does nothing. Harm keeps within the layout's tolerance ([`Tolerance`]) by the plan itself.

use crate::content::Fill;
use crate::layout::{Layout, Tolerance};
use crate::random::Rng;

/// Lanes of a pool.
pub const LANES: usize = 3;
/// Numbers of files in a lane.
const FILES: u64 = 14;
/// Most bytes of a write: what the kernel passes on as one request.
const MOST: u64 = 600_000;
/// MiB of each device.
pub const DEVICE_MIB: u64 = 256;

/// A step in a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes into a file, which is made if need be; at a place in it, or at its end.
    Write { file: u8, at: Option<u32>, len: u32, fill: Fill },
    /// Writes a file anew, beside it, syncs that and renames it over the file.
    Replace { file: u8, len: u32, fill: Fill },
    /// Cuts or lengthens it.
    Cut { file: u8, len: u32 },
    /// Makes a hole.
    Punch { file: u8, at: u32, len: u32 },
    /// fsync.
    Sync { file: u8 },
    /// Removes a name.
    Remove { file: u8 },
    /// Another name, over what has it.
    Rename { from: u8, to: u8 },
    /// A further name.
    Link { from: u8, to: u8 },
    /// A symbolic link to a file.
    Symlink { file: u8 },
    /// Copies by reference.
    Copy { from: u8, to: u8 },
    /// Permission bits.
    Mode { file: u8, mode: u16 },
    /// An extended attribute.
    Attribute { file: u8, name: u8, value: u64 },
    /// Reads and compares.
    Read { file: u8 },
    /// Moves a folder with all in it.
    MoveFolder { from: u8, to: u8 },
    /// Removes such a folder.
    RemoveFolder { folder: u8 },
    /// Takes a snapshot; with many the oldest goes.
    Snapshot,
    /// Goes back to one of the snapshots.
    Rollback { nth: u8 },
    /// Makes a clone of a snapshot, compares, writes into it and destroys it.
    Clone { nth: u8 },
    /// Sends the newest snapshot to another dataset, as an increment where there is one before, and compares.
    Send,
    /// Sets a property of the dataset.
    Property(&'static str),
}

/// Trouble with devices, or a change of the pool, meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Bits flip on a device, where it holds something.
    Flip { seat: usize, bits: u32, seed: u64 },
    /// Ranges of it become zeros.
    Zero { seat: usize, ranges: u32, seed: u64 },
    /// Its requests fail from now on, as this line of its control file says.
    Faults { seat: usize, line: String },
    /// It is taken out of use.
    Offline { seat: usize },
    /// Another device takes its place, while it is copied from.
    Replace { seat: usize },
    /// A scrub begins.
    Scrub,
    /// Unused space is told to the devices.
    Trim,
    /// All is committed.
    Commit,
    /// Files fill the pool to the last byte, and go.
    Fill { seed: u64 },
    /// A group gets a device more.
    Attach,
    /// The pool gets a group more.
    Add,
    /// All data is spread over all devices.
    Rebalance,
    /// The device or group that came leaves.
    Shrink,
}

/// A deed to the devices while no daemon has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// It is not found at import.
    Away { seat: usize },
    /// Two of them have each other's names.
    Swap { a: usize, b: usize },
    /// A copy of it is kept.
    Keep { seat: usize },
    /// It is what was kept.
    Past { seat: usize },
}

/// End of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All have taken their steps.
    Quiet,
    /// The pool is exported and imported.
    Export,
    /// The daemon is killed when that share of the steps was taken (%), so much later (ms); and, where that is some,
    /// again so long (ms) after the import began.
    Kill { percent: u32, later: u32, again: Option<u32> },
}

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Steps of each lane.
    pub lanes: Vec<Vec<Step>>,
    /// In their order.
    pub troubles: Vec<Trouble>,
    /// Its end.
    pub end: End,
    /// Before the import, where it ends with one.
    pub deeds: Vec<Deed>,
    /// Whether all is healed at the end.
    pub heal: bool,
}

/// All that a pool goes through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// It came of this seed.
    pub seed: u64,
    /// Of its groups.
    pub layout: Layout,
    /// One after the other.
    pub rounds: Vec<Round>,
    /// In the end more is harmed than is tolerated.
    pub beyond: bool,
}

impl Life {
    /// The life that the seed and the layout name.
    pub fn new(seed: u64, layout: Layout, beyond: bool) -> Self {
        let rng = Rng::new(&[seed, 1]);
        let mut planner =
            Planner { rng, layout, tolerance: Tolerance::new(layout), kept: None, growth: 0, unhealed: 0 };
        let count = if beyond { 3 + planner.rng.below(3) } else { 12 + planner.rng.below(9) };
        let rounds = (0..count).map(|nth| planner.round(nth + 1 == count)).collect();
        Self { seed, layout, rounds, beyond }
    }
}

struct Planner {
    rng: Rng,
    layout: Layout,
    tolerance: Tolerance,
    /// The device of which a copy was kept.
    kept: Option<usize>,
    /// Growth of the pool: none, grown, rebalanced.
    growth: u8,
    /// Rounds since something is harmed.
    unhealed: u64,
}

impl Planner {
    fn round(&mut self, is_last: bool) -> Round {
        let lanes = (0..LANES).map(|lane| self.steps(lane)).collect();
        let mut troubles = Vec::new();
        let is_growing = self.growth > 0 || (!self.tolerance.is_harmed() && self.rng.one_in(5));
        if is_growing {
            troubles.push(self.grow(is_last));
        } else {
            for _ in 0..self.rng.below(4) {
                troubles.extend(self.harm());
            }
        }
        for _ in 0..self.rng.below(3) {
            troubles.push(match self.rng.below(4) {
                0 => Trouble::Scrub,
                1 => Trouble::Trim,
                _ => Trouble::Commit,
            });
        }
        if !is_growing && self.rng.one_in(16) {
            troubles.push(Trouble::Fill { seed: self.rng.next() });
        }
        let end = match self.rng.below(6) {
            0 => End::Quiet,
            1 => End::Export,
            _ => End::Kill {
                percent: 45 + self.rng.below(56) as u32,
                later: self.rng.below(120) as u32,
                again: self.rng.one_in(5).then(|| 20 + self.rng.below(600) as u32),
            },
        };
        let deeds = if end == End::Quiet || is_growing { Vec::new() } else { self.deeds() };
        self.unhealed += u64::from(self.tolerance.is_harmed());
        let heal = self.tolerance.is_harmed() && (is_last || self.unhealed > self.rng.below(3));
        if heal {
            self.tolerance.heal();
            self.unhealed = 0;
        }
        Round { lanes, troubles, end, deeds, heal }
    }

    fn seat(&self) -> usize {
        self.rng.below(self.layout.devices() as u64) as usize
    }

    fn grow(&mut self, is_last: bool) -> Trouble {
        match self.growth {
            // It would stay.
            0 if is_last => Trouble::Commit,
            0 => {
                self.growth = 1;
                if self.layout.takes_one() && !self.rng.one_in(3) { Trouble::Attach } else { Trouble::Add }
            }
            1 if !is_last => {
                self.growth = 2;
                Trouble::Rebalance
            }
            _ => {
                self.growth = 0;
                Trouble::Shrink
            }
        }
    }

    /// Something that happens to a device; nothing where it is too much.
    fn harm(&mut self) -> Option<Trouble> {
        let (seat, seed) = (self.seat(), self.rng.next());
        let what = self.rng.below(9);
        let ms = 5 + self.rng.below(40);
        let faults = |line: String| Some(Trouble::Faults { seat, line });
        match what {
            // Slow is no harm; so is a device that is replaced while it is well.
            0 => faults(format!("delay ms={ms} jitter={ms}")),
            1 if !self.tolerance.is_harmed() => {
                self.kept = self.kept.filter(|&kept| kept != seat);
                Some(Trouble::Replace { seat })
            }
            _ if !self.tolerance.harm(seat) => None,
            1 | 2 => Some(Trouble::Offline { seat }),
            3 | 4 => Some(Trouble::Flip { seat, bits: 1 << self.rng.below(11), seed }),
            5 | 6 => Some(Trouble::Zero { seat, ranges: 1 + self.rng.below(40) as u32, seed }),
            _ => {
                let n = seed % 1000;
                let lines = [
                    format!("rot rate=0.02 seed={n}"),
                    format!("error read rate=0.1 seed={n}"),
                    format!("error write after={}", n / 4),
                    "error flush".to_owned(),
                    "stale".to_owned(),
                    format!("lose rate=0.3 seed={n}"),
                    format!("misdirect to={}M rate=0.02 seed={n}", 2 + n % 200),
                    "gone".to_owned(),
                    "lie".to_owned(),
                    "hang".to_owned(),
                    format!("shrink to={}M", 70 + n % 100),
                ];
                faults(self.rng.pick(&lines).clone())
            }
        }
    }

    fn deeds(&mut self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        let seat = self.seat();
        if self.layout.devices() > 1 && self.rng.one_in(4) {
            let other = (seat + 1) % self.layout.devices();
            // Where control files are goes by names; so does who is away.
            if !self.tolerance.is_harmed() {
                deeds.push(Deed::Swap { a: seat, b: other });
                self.kept = None;
            }
        }
        if self.rng.one_in(3)
            && self.layout.tolerates() > 0
            && self.kept.is_none()
            && !self.tolerance.has(seat)
        {
            self.kept = Some(seat);
            deeds.push(Deed::Keep { seat });
        } else if let Some(seat) = self.kept.filter(|_| self.rng.one_in(2))
            && self.tolerance.harm(seat)
        {
            self.kept = None;
            deeds.push(Deed::Past { seat });
        } else if self.rng.one_in(3) && self.tolerance.harm(seat) {
            deeds.push(Deed::Away { seat });
        }
        deeds
    }

    fn steps(&self, lane: usize) -> Vec<Step> {
        (0..30 + self.rng.below(50)).map(|_| self.step(lane)).collect()
    }

    fn step(&self, lane: usize) -> Step {
        let rng = &self.rng;
        let file = rng.below(FILES) as u8;
        let other = rng.below(FILES) as u8;
        let fill = Fill { seed: rng.next(), kind: rng.below(4) as u8 };
        // Mostly small.
        let some = |most: u64| rng.below(1 + (most >> (2 * rng.below(6)))) as u32;
        match rng.below(100) {
            0..26 => {
                let at = (!rng.one_in(3)).then(|| some(1_500_000));
                Step::Write { file, at, len: 1 + some(MOST), fill }
            }
            26..36 => Step::Replace { file, len: some(MOST), fill },
            36..42 => Step::Cut { file, len: some(1_000_000) },
            42..45 => Step::Punch { file, at: some(500_000), len: 1 + some(300_000) },
            45..57 => Step::Sync { file },
            57..62 => Step::Remove { file },
            62..67 => Step::Rename { from: file, to: other },
            67..70 => Step::Link { from: file, to: other },
            70..72 => Step::Symlink { file },
            72..76 => Step::Copy { from: file, to: other },
            76..79 => Step::Mode { file, mode: 0o600 | rng.below(0o200) as u16 },
            79..82 => Step::Attribute { file, name: rng.below(3) as u8, value: rng.next() },
            82..90 => Step::Read { file },
            90 => Step::MoveFolder { from: file % 3, to: other % 2 },
            91 => Step::RemoveFolder { folder: other % 2 },
            92..95 => Step::Snapshot,
            95 => Step::Rollback { nth: rng.below(4) as u8 },
            96 => Step::Clone { nth: rng.below(4) as u8 },
            97 | 98 => Step::Send,
            _ => Step::Property(rng.pick::<&str>(&PROPERTIES[lane % 2])),
        }
    }
}

/// Of the lanes with even numbers, and of the others.
const PROPERTIES: [[&str; 6]; 2] = [
    [
        "compression=lz4",
        "compression=off",
        "compression=zstd",
        "recordsize=16K",
        "recordsize=128K",
        "dedup=off",
    ],
    ["compression=lz4", "compression=zstd", "dedup=on", "dedup=off", "copies=2", "copies=1"],
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_is_a_life() {
        for layout in Layout::ALL {
            assert_eq!(Life::new(3, layout, false), Life::new(3, layout, false));
            assert_ne!(Life::new(3, layout, false).rounds, Life::new(4, layout, false).rounds);
        }
    }

    /// Counted apart from the planner: what a round does, and when it is healed.
    #[test]
    fn harm_keeps_within_tolerance() {
        let mut most = BTreeSet::new();
        for (seed, layout) in (0..60).flat_map(|seed| Layout::ALL.map(|layout| (seed, layout))) {
            let mut harmed = BTreeSet::new();
            for round in Life::new(seed, layout, seed % 2 == 0).rounds {
                harmed.extend(round.troubles.iter().filter_map(|trouble| match trouble {
                    Trouble::Flip { seat, .. } | Trouble::Zero { seat, .. } | Trouble::Offline { seat } => {
                        Some(*seat)
                    }
                    Trouble::Faults { seat, line } if !line.starts_with("delay") => Some(*seat),
                    _ => None,
                }));
                harmed.extend(round.deeds.iter().filter_map(|deed| match deed {
                    Deed::Away { seat } | Deed::Past { seat } => Some(*seat),
                    _ => None,
                }));
                assert!(harmed.len() <= layout.tolerates(), "seed {seed}, {layout}: {harmed:?} are harmed");
                most.insert((layout.name(), harmed.len()));
                if round.heal {
                    harmed.clear();
                }
            }
            assert!(harmed.is_empty(), "seed {seed}, {layout}: the last round heals");
        }
        for layout in Layout::ALL {
            assert!(
                most.contains(&(layout.name(), layout.tolerates())),
                "{layout} is never harmed as far as it may be"
            );
        }
    }

    #[test]
    fn pools_grow_only_while_nothing_is_harmed_and_shrink_again() {
        for (seed, layout) in (0..60).flat_map(|seed| Layout::ALL.map(|layout| (seed, layout))) {
            let (mut grown, mut harmed) = (0, false);
            for round in Life::new(seed, layout, false).rounds {
                for trouble in &round.troubles {
                    match trouble {
                        Trouble::Attach | Trouble::Add => grown += 1,
                        Trouble::Shrink => grown -= 1,
                        Trouble::Flip { .. } | Trouble::Zero { .. } | Trouble::Offline { .. } => {
                            assert_eq!(grown, 0, "seed {seed}, {layout}");
                            harmed = true;
                        }
                        _ => {}
                    }
                }
                assert!(grown == 0 || !harmed, "seed {seed}, {layout}");
                harmed &= !round.heal;
            }
            assert_eq!(grown, 0, "seed {seed}, {layout}: what came leaves");
        }
    }

    #[test]
    fn all_kinds_of_steps_are_taken() {
        let steps: BTreeSet<String> = Life::new(1, Layout::Mirror, false)
            .rounds
            .iter()
            .flat_map(|round| round.lanes.iter().flatten())
            .map(|step| format!("{step:?}").split([' ', '(']).next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(steps.len(), 20, "{steps:?}");
    }
}
