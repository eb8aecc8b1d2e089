//! Figures of one shape.
//!
//! Speed is arithmetic. A block lies in one column: a read at random asks one device, and with one replica parity is
//! spread over all of them. A stream uses the `k` data columns of a stripe, for reading and, as stripes are written
//! whole and anew, for writing, at random too. Streams that are read and written in turn, half of each, give a device
//! what of both falls to it: of `w` bytes a second written and as many read, `w/k` and, where copies share reads,
//! `w/(k·r)`; with one replica all devices share `w·(k+m)/k + w`.

use crate::assume::{Assumptions, HOURS};
use crate::chain::{Chances, Rates, chances};
use crate::disk::Disk;
use crate::shape::{Group, Shape};
use crate::survival::{Survival, survival};
use larder_format::segment::Layout;
use larder_pool::create::rule_for;
use serde::Serialize;

/// Chances of a loss within a year, and the mean years until one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Risk {
    /// The pool is lost: more devices than it survives.
    pub pool_lost: f64,
    /// Some block is lost, or the pool.
    pub block_lost: f64,
    /// Mean years until the pool is lost.
    pub years_to_pool_lost: f64,
    /// Mean years until some block is.
    pub years_to_block_lost: f64,
}

/// Effort of rebuilding the disk that takes longest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rebuild {
    /// Disks that are read.
    pub disks: usize,
    /// Bytes read from all of them.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Hours, from when the new disk is there.
    pub hours: f64,
    /// Hours that writing the new disk takes where nothing else is waited for.
    pub alone: f64,
}

/// Hours of a rebuild that nobody minds.
const A_DAY: f64 = 24.0;

impl Rebuild {
    /// Whether it takes a day at most, or no longer than the new disk itself does.
    fn is_short(&self) -> bool {
        self.hours <= A_DAY || self.hours <= self.alone * 1.05
    }
}

/// Speeds; bytes a second, but for reads a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Speed {
    /// Of a stream that is read.
    pub read: f64,
    /// Of what is written, one after the other or at random.
    pub write: f64,
    /// Reads at random a second, from as many threads as there are disks.
    pub reads: f64,
}

/// Streams read and written in turn, and what a bulk store is to give of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bulk {
    /// Bytes a second, both together.
    pub rate: f64,
    /// Bytes a second that so much space is to have.
    pub needed: f64,
    /// Whether it has.
    pub passes: bool,
}

impl Bulk {
    /// Of so much space, with so many bytes a second.
    pub fn of(rate: f64, space: u64, assume: &Assumptions) -> Self {
        let needed = assume.bulk * space as f64 / TERA;
        Self { rate, needed, passes: rate >= needed }
    }
}

/// Price.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Price {
    /// Of all disks that are used.
    pub total: f64,
    /// Of each usable TiB.
    pub per_tib: f64,
}

/// The next step of growth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Growth {
    /// Disks that it takes, as large as the largest.
    pub disks: usize,
    /// Bytes that files can take more.
    pub gain: u64,
    /// Words behind `larder pool`, for a pool named tank.
    pub words: Vec<String>,
}

/// A shape with its figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Its name: `2 x raidz2 of 6`.
    pub name: String,
    /// The layout word.
    pub word: &'static str,
    /// Groups, spares, and what is left out.
    #[serde(flatten)]
    pub shape: Shape,
    /// Bytes of all disks in groups.
    pub raw: u64,
    /// Bytes that files can take, as `pool create -n` shows.
    pub usable: u64,
    /// Losses that are survived.
    pub survival: Survival,
    /// Chances.
    pub risk: Risk,
    /// Rebuilding a disk; none where nothing could be rebuilt.
    pub rebuild: Option<Rebuild>,
    /// Speed.
    pub speed: Speed,
    /// The criterion for bulk stores.
    pub bulk: Bulk,
    /// Price, where it is known of all disks.
    pub price: Option<Price>,
    /// The next step of growth.
    pub growth: Growth,
    /// Words behind `larder pool create NAME`.
    pub create: Vec<String>,
    /// Risks are small enough.
    pub safe: bool,
}

const TIB: f64 = (1u64 << 40) as f64;
const TERA: f64 = 1e12;

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// All figures of a shape over these disks.
pub fn candidate(disks: &[Disk], shape: Shape, assume: &Assumptions, ashift: u8) -> Candidate {
    let usable = shape.usable(disks, ashift);
    let in_groups = || shape.groups.iter().flat_map(|group| &group.disks);
    let layouts: Vec<Layout> = shape.groups.iter().map(Group::layout).collect();
    let risk = risk(disks, &shape, assume);
    let speed = shape.groups.iter().map(|group| speed(disks, group, assume));
    let speed = speed.fold(Speed { read: 0.0, write: 0.0, reads: 0.0 }, |sum, one| Speed {
        read: (sum.read + one.read).min(assume.host),
        write: (sum.write + one.write).min(assume.host),
        reads: sum.reads + one.reads,
    });
    let rate: f64 = shape.groups.iter().map(|group| in_turn(disks, group, assume)).sum();
    let rebuilds = shape.groups.iter().filter_map(|group| rebuild(disks, group, assume));
    let rebuild = rebuilds.max_by(|a, b| a.hours.total_cmp(&b.hours));
    let used = in_groups().chain(&shape.spares);
    let total = used.map(|&at| disks[at].price).sum::<Option<f64>>();
    Candidate {
        name: shape.name(),
        word: shape.word(),
        raw: in_groups().map(|&at| disks[at].size).sum(),
        usable,
        survival: survival(&layouts),
        safe: risk.pool_lost <= assume.accept_pool
            && risk.block_lost <= assume.accept_block
            && rebuild.is_none_or(|rebuild| rebuild.is_short()),
        risk,
        rebuild,
        speed,
        bulk: Bulk::of(rate.min(assume.host), usable, assume),
        price: total.map(|total| Price { total, per_tib: total / (usable as f64 / TIB) }),
        growth: growth(disks, &shape, usable, ashift),
        create: shape.words(disks),
        shape,
    }
}

fn risk(disks: &[Disk], shape: &Shape, assume: &Assumptions) -> Risk {
    let mut last: Option<((Layout, Rates), Chances)> = None;
    let (mut pool, mut block, mut pool_rate, mut block_rate) = (0.0, 0.0, 0.0, 0.0);
    for group in &shape.groups {
        let (layout, rates) = (group.layout(), rates(disks, group, !shape.spares.is_empty(), assume));
        let one = match last {
            Some((of, one)) if of == (layout, rates) => one,
            _ => chances(layout, &rates),
        };
        last = Some(((layout, rates), one));
        // None of them is lost: the product of what none loses, in logarithms, which do not round what is small to 0.
        pool += (-one.group).ln_1p();
        block += (-one.block).ln_1p();
        pool_rate += 1.0 / one.years_to_group;
        block_rate += 1.0 / one.years_to_block;
    }
    Risk {
        pool_lost: -pool.exp_m1(),
        block_lost: -block.exp_m1(),
        years_to_pool_lost: 1.0 / pool_rate,
        years_to_block_lost: 1.0 / block_rate,
    }
}

/// Rates of a group. Where disks differ they are means: with one parity or copy that is exact as long as losses are
/// rare.
fn rates(disks: &[Disk], group: &Group, spare: bool, assume: &Assumptions) -> Rates {
    let wait = if spare { 0.0 } else { assume.replace_hours };
    let held = group.reachable(disks);
    let members = || group.disks.iter().map(|&at| &disks[at]).zip(&held);
    let copied = |bytes: u64| bytes as f64 * assume.full;
    let sources = sources(group.layout());
    Rates {
        failures: mean(members().map(|(disk, _)| assume.failures(disk))),
        correlation: assume.correlated,
        rebuild: mean(
            members().map(|(disk, &bytes)| {
                (wait + copied(bytes) / assume.rebuild(disk, sources) / 3600.0) / HOURS
            }),
        ),
        together: true,
        bad_sectors: mean(members().map(|(_, &bytes)| copied(bytes) * 8.0 / assume.ure)),
        scrubs: assume.scrubs,
    }
}

/// Disks that are read to rebuild one: where there are copies, the twin alone.
fn sources(layout: Layout) -> usize {
    if layout.r() > 1 { 1 } else { layout.k() }
}

/// Rebuilding the disk of a group that takes longest.
fn rebuild(disks: &[Disk], group: &Group, assume: &Assumptions) -> Option<Rebuild> {
    let layout = group.layout();
    if layout.tolerance() == 0 {
        return None;
    }
    let held = group.reachable(disks);
    let sources = sources(layout);
    let data = &group.disks[..layout.k() * layout.r()];
    let of = data.iter().zip(&held).map(|(&at, &bytes)| {
        let written = (bytes as f64 * assume.full) as u64;
        Rebuild {
            disks: sources,
            read: written * sources as u64,
            written,
            hours: written as f64 / assume.rebuild(&disks[at], sources) / 3600.0,
            alone: written as f64 / assume.rebuild(&disks[at], 0) / 3600.0,
        }
    });
    of.max_by(|a, b| a.hours.total_cmp(&b.hours))
}

fn speed(disks: &[Disk], group: &Group, assume: &Assumptions) -> Speed {
    let layout = group.layout();
    let members = || group.disks.iter().map(|&at| &disks[at]);
    let stream = members().map(|disk| assume.stream(disk)).fold(f64::INFINITY, f64::min) * layout.k() as f64;
    let asked = if layout.r() > 1 { layout.k() * layout.r() } else { layout.columns() };
    Speed { read: stream, write: stream, reads: members().take(asked).map(|disk| assume.reads(disk)).sum() }
}

/// Bytes a second of streams that are read and written in turn, both together.
fn in_turn(disks: &[Disk], group: &Group, assume: &Assumptions) -> f64 {
    let layout = group.layout();
    let slowest = group.disks.iter().map(|&at| assume.in_turn(&disks[at])).fold(f64::INFINITY, f64::min);
    let (k, r, all) = (layout.k() as f64, layout.r() as f64, layout.columns() as f64);
    let each = if layout.r() > 1 { k * slowest / (1.0 + 1.0 / r) } else { all * slowest / (1.0 + all / k) };
    2.0 * each
}

fn growth(disks: &[Disk], shape: &Shape, usable: u64, ashift: u8) -> Growth {
    let mut more = disks.to_vec();
    let largest =
        shape.groups.iter().flat_map(|group| &group.disks).map(|&at| disks[at].size).max().unwrap_or(0);
    let word = shape.word();
    let (at, narrowest) =
        shape.groups.iter().enumerate().min_by_key(|(_, group)| group.disks.len()).expect("one");
    let width = narrowest.disks.len();
    let step = match word {
        "single" => 1,
        "mirror" => width,
        "raid10" | "raid14" => 2,
        _ => 1,
    };
    let widens = !matches!(word, "single" | "mirror") && rule_for(word, width + step).is_ok();
    let count = if widens || matches!(word, "single" | "mirror") { step } else { width };
    let new: Vec<usize> = (0..count).map(|number| disks.len() + number).collect();
    let places: Vec<String> = (1..=count).map(|number| format!("NEW{number}")).collect();
    more.extend(places.iter().map(|name| Disk::of_size(name.clone(), largest)));
    let mut then = shape.clone();
    let mut words = Vec::new();
    if widens {
        let group = &mut then.groups[at];
        // The last one has parity over all.
        let before = if word == "raid14" { width - 1 } else { width };
        group.disks.splice(before..before, new);
        words.extend(["attach".into(), "tank".into(), format!("{word}-{at}")]);
    } else {
        then.groups.push(Group { word, disks: new });
        words.extend(["add".into(), "tank".into()]);
        words.extend((word != "single").then(|| word.to_owned()));
    }
    words.extend(places);
    Growth { disks: count, gain: then.usable(&more, ashift).saturating_sub(usable), words }
}
