//! Layouts of the pools that are made, and how many of a group's devices may be harmed at once.
//!
//! A device counts as harmed from the moment at which something may be wrong with what it holds or answers, until a
//! resilver and a scrub have gone through without an error. Never are more of a group harmed than its layout
//! tolerates, whichever they are; then nothing may be lost, whatever happens in detail.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A layout of groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One device: no damage is survived.
    Single,
    /// Two copies.
    Mirror,
    /// Parity of one device.
    Raidz1,
    /// Parity of two devices.
    Raidz2,
    /// Parity of three devices.
    Raidz3,
    /// Striped mirrors.
    Raid10,
    /// Striped mirrors with parity.
    Raid14,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Raidz1, Self::Mirror, Self::Raidz2, Self::Raid10, Self::Raid14, Self::Single, Self::Raidz3];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Mirror => "mirror",
            Self::Raidz1 => "raidz1",
            Self::Raidz2 => "raidz2",
            Self::Raidz3 => "raidz3",
            Self::Raid10 => "raid10",
            Self::Raid14 => "raid14",
        }
    }

    /// Word for `pool create` and `pool add`; none for a device alone.
    pub fn word(self) -> Option<&'static str> {
        (self != Self::Single).then(|| self.name())
    }

    /// Devices of a group.
    pub fn devices(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Mirror => 2,
            Self::Raidz1 => 3,
            Self::Raidz2 | Self::Raid10 => 4,
            Self::Raidz3 | Self::Raid14 => 5,
        }
    }

    /// Devices of a group, whichever, without which all is there.
    pub fn tolerates(self) -> usize {
        match self {
            Self::Single => 0,
            Self::Mirror | Self::Raidz1 | Self::Raid10 => 1,
            Self::Raidz2 | Self::Raid14 => 2,
            Self::Raidz3 => 3,
        }
    }

    /// Whether a group of it takes one device more.
    pub fn takes_one(self) -> bool {
        !matches!(self, Self::Raid10 | Self::Raid14)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|layout| layout.name() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|layout| layout.name()).collect();
            format!("it is none of {}", known.join(", "))
        })
    }
}

/// Which of the first group's devices are harmed.
#[derive(Debug, Clone)]
pub struct Tolerance {
    layout: Layout,
    harmed: BTreeSet<usize>,
}

impl Tolerance {
    /// Nothing is harmed.
    pub fn new(layout: Layout) -> Self {
        Self { layout, harmed: BTreeSet::new() }
    }

    /// Harms a device, if that is tolerated; whether it is.
    pub fn harm(&mut self, seat: usize) -> bool {
        let may = self.harmed.contains(&seat) || self.harmed.len() < self.layout.tolerates();
        if may {
            self.harmed.insert(seat);
        }
        may
    }

    /// Whether any is harmed.
    pub fn is_harmed(&self) -> bool {
        !self.harmed.is_empty()
    }

    /// Whether this one is.
    pub fn has(&self, seat: usize) -> bool {
        self.harmed.contains(&seat)
    }

    /// All was resilvered and scrubbed.
    pub fn heal(&mut self) {
        self.harmed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_devices_are_harmed_than_the_layout_tolerates() {
        for layout in Layout::ALL {
            let mut tolerance = Tolerance::new(layout);
            let harmed = (0..layout.devices()).filter(|&seat| tolerance.harm(seat)).count();
            assert_eq!(harmed, layout.tolerates(), "{layout}");
            assert_eq!(
                tolerance.harm(0),
                layout.tolerates() > 0,
                "{layout}: who is harmed may be harmed more"
            );
            tolerance.heal();
            assert_eq!(tolerance.harm(layout.devices() - 1), layout.tolerates() > 0, "{layout}");
        }
    }

    #[test]
    fn layouts_go_by_name() {
        for layout in Layout::ALL {
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        assert!("raid7".parse::<Layout>().unwrap_err().contains("raidz1, mirror"));
    }
}
