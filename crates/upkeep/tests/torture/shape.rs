//! Pools by layout word and width, and what theory says of losses.

use crate::common::Kept;
use crate::common::world;
use larder_device::Device;
use larder_format::ByteLen;
use larder_format::segment::Layout;
use larder_pool::create::rule_for;
use larder_pool::{GroupSpec, PoolSpec};
use larder_sim::SimWorld;
use std::fmt;
use std::sync::Arc;

/// The widest pool that is enumerated.
pub const WIDEST: usize = 12;

/// A pool: groups of one word, each of so many devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub word: &'static str,
    pub width: usize,
    pub groups: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.groups {
            1 => write!(f, "{} of {}", self.word, self.width),
            groups => write!(f, "{groups} groups of {} of {}", self.word, self.width),
        }
    }
}

/// Every layout word in every width up to [`WIDEST`], alone and in stripes.
pub fn all() -> Vec<Shape> {
    let one = |word, widths: std::ops::RangeInclusive<usize>, step| {
        widths.step_by(step).map(move |width| Shape { word, width, groups: 1 })
    };
    let many = |word, width, groups: std::ops::RangeInclusive<usize>| {
        groups.map(move |groups| Shape { word, width, groups })
    };
    one("single", 1..=1, 1)
        .chain(one("mirror", 2..=WIDEST, 1))
        .chain(one("raidz1", 3..=WIDEST, 1))
        .chain(one("raidz2", 4..=WIDEST, 1))
        .chain(one("raidz3", 5..=WIDEST, 1))
        .chain(one("raid10", 4..=WIDEST, 2))
        .chain(one("raid14", 5..=WIDEST, 2))
        .chain(many("single", 1, 2..=WIDEST))
        .chain(many("mirror", 2, 2..=WIDEST / 2))
        .chain(many("mirror", 3, 2..=WIDEST / 3))
        .chain(many("raidz1", 3, 2..=WIDEST / 3))
        .chain(many("raidz2", 4, 2..=WIDEST / 4))
        .chain(many("raid14", 5, 2..=WIDEST / 5))
        .collect()
}

impl Shape {
    /// The layout of each group.
    pub fn layout(self) -> Layout {
        rule_for(self.word, self.width).unwrap().layout
    }

    /// Devices in all.
    pub fn devices(self) -> usize {
        self.width * self.groups
    }

    /// Whether every group survives when these devices are gone.
    pub fn survives(self, lost: impl Fn(usize) -> bool) -> bool {
        (0..self.groups).all(|group| self.layout().survives(|column| lost(group * self.width + column)))
    }

    /// A new pool of this shape.
    pub fn create(self, sim: &SimWorld) -> Kept {
        let rule = rule_for(self.word, self.width).unwrap();
        let devices = sim.devices();
        let groups = devices[..self.devices()].chunks(self.width);
        let groups = groups.map(|devices| GroupSpec::data(rule, devices.to_vec())).collect();
        Kept::create(world(1), PoolSpec { name: "tank".into(), groups, ashift: 12 }).unwrap()
    }

    /// The size of each device.
    pub fn device_size(self) -> ByteLen {
        ByteLen::new(64 << 20)
    }

    /// Its devices, blank.
    pub fn world(self) -> SimWorld {
        SimWorld::new(&vec![self.device_size(); self.devices()])
    }

    /// All ways to lose one to three devices, as bits.
    pub fn losses(self) -> Vec<u32> {
        (1..1u32 << self.devices()).filter(|lost| lost.count_ones() <= 3).collect()
    }

    /// Number of the ways to lose `losses` devices that are fatal to one group, counted by the meaning of each word and
    /// not by the formula of layouts.
    fn fatal_to_group(self, losses: usize) -> usize {
        let n = self.width;
        let all = choose(n, losses);
        match (self.word, losses) {
            (_, 0) => 0,
            ("single", _) => all,
            // All copies.
            ("mirror", _) => usize::from(losses == n),
            ("raidz1", _) => {
                if losses > 1 {
                    all
                } else {
                    0
                }
            }
            ("raidz2", _) => {
                if losses > 2 {
                    all
                } else {
                    0
                }
            }
            ("raidz3", _) => {
                if losses > 3 {
                    all
                } else {
                    0
                }
            }
            // One of the pairs, and for three any other device.
            ("raid10", 1) => 0,
            ("raid10", 2) => n / 2,
            ("raid10", 3) => n / 2 * (n - 2),
            // A pair and the parity.
            ("raid14", 1 | 2) => 0,
            ("raid14", 3) => (n - 1) / 2,
            _ => unreachable!("three losses are enough"),
        }
    }

    /// Number of the ways to lose `losses` devices that are survived, and of all of them.
    pub fn theory(self, losses: usize) -> (usize, usize) {
        // Ways to spread the losses over the groups so that each survives.
        let mut ways = vec![0; losses + 1];
        ways[0] = 1;
        for _ in 0..self.groups {
            ways = (0..=losses)
                .map(|sum| {
                    (0..=sum.min(self.width))
                        .map(|here| ways[sum - here] * (choose(self.width, here) - self.fatal_to_group(here)))
                        .sum()
                })
                .collect();
        }
        (ways[losses], choose(self.devices(), losses))
    }
}

fn choose(n: usize, k: usize) -> usize {
    if k > n { 0 } else { (0..k).fold(1, |ways, i| ways * (n - i) / (i + 1)) }
}

/// Whether device `i` is among `lost`.
pub fn is_lost(lost: u32, i: usize) -> bool {
    lost >> i & 1 == 1
}

/// The devices among `lost`.
pub fn numbers(lost: u32) -> Vec<usize> {
    (0..32).filter(|&i| is_lost(lost, i)).collect()
}

/// The devices that are not.
pub fn without(sim: &SimWorld, lost: u32) -> Vec<Arc<dyn Device>> {
    let devices = sim.devices().into_iter().enumerate();
    devices.filter(|&(i, _)| !is_lost(lost, i)).map(|(_, device)| device).collect()
}
