//! The cells that are measured: fill, unit and pattern of overwrites.

use larder_benches::pattern::Pattern;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The unit of an overwrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Unit {
    /// 4 KiB of one large file.
    Page,
    /// 128 KiB of it.
    Record,
    /// A file of 1 MiB, cut to nothing and written again.
    File,
}

impl Unit {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Page, Self::Record, Self::File];

    /// Bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Page => 4 << 10,
            Self::Record => 128 << 10,
            Self::File => 1 << 20,
        }
    }

    /// The `recordsize` that Larder and ZFS are given.
    pub fn record_size(self) -> &'static str {
        if self == Self::Page { "16K" } else { "128K" }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Page => "4K",
            Self::Record => "128K",
            Self::File => "file",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// One measurement of one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// Per cent of AVAIL that are filled first; none for the same data as at 80, with eight times the room.
    pub fill: Option<u8>,
    /// The unit of an overwrite.
    pub unit: Unit,
    /// By zipf 1.1; else all alike.
    pub zipf: bool,
}

/// Fills that are measured, per cent of AVAIL.
pub const FILLS: [u8; 3] = [80, 90, 95];

impl Cell {
    /// The cell whose write amplification and throughput have targets.
    pub const TARGET: Self = Self { fill: Some(80), unit: Unit::Record, zipf: true };

    /// All of them; those with room stand beside what is compared with them.
    pub fn all() -> Vec<Self> {
        let fills = [None].into_iter().chain(FILLS.map(Some));
        let kinds = Unit::ALL.into_iter().flat_map(|unit| [true, false].map(|zipf| (unit, zipf)));
        kinds.flat_map(|(unit, zipf)| fills.clone().map(move |fill| Self { fill, unit, zipf })).collect()
    }

    /// The same with room.
    pub fn with_room(self) -> Self {
        Self { fill: None, ..self }
    }

    /// The pattern by which pieces are drawn.
    pub fn pattern(self) -> Pattern {
        if self.zipf { Pattern::Zipf(1.1) } else { Pattern::Uniform }
    }

    /// Whether a word on the command line means it: fill, unit and pattern, each of them or `*`.
    pub fn is(self, word: &Chosen) -> bool {
        let fill = self.fill.map_or("room".to_owned(), |fill| fill.to_string());
        let pattern = if self.zipf { "zipf" } else { "uniform" };
        let fits = |asked: &str, is: &str| asked == "*" || asked == is;
        let [a, b, c] = &word.0;
        fits(a, &fill) && fits(b, self.unit.name()) && fits(c, pattern)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fill = self.fill.map_or("room".to_owned(), |fill| fill.to_string());
        write!(out, "{fill}/{}/{}", self.unit, if self.zipf { "zipf" } else { "uniform" })
    }
}

/// Cells, as the command line names them: `80/128K/zipf`, `95/*/*`, `room/4K/uniform`.
#[derive(Debug, Clone)]
pub struct Chosen([String; 3]);

impl FromStr for Chosen {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let parts: Vec<_> = word.split('/').map(str::to_owned).collect();
        let chosen = parts.try_into().map(Self).map_err(|_| format!("not FILL/UNIT/PATTERN: {word}"))?;
        if Cell::all().into_iter().any(|cell| cell.is(&chosen)) {
            Ok(chosen)
        } else {
            Err(format!("no such cell: {word}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_chosen_by_the_name_that_it_is_told_with() {
        for cell in Cell::all() {
            let chosen: Chosen = cell.to_string().parse().unwrap();
            assert_eq!(Cell::all().into_iter().filter(|other| other.is(&chosen)).count(), 1);
        }
        let all: Chosen = "*/*/*".parse().unwrap();
        assert!(Cell::all().into_iter().all(|cell| cell.is(&all)));
        assert!("81/4K/zipf".parse::<Chosen>().is_err());
    }
}
