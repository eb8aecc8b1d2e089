//! Entries of the tables that are attached to a snapshot, beside its record: holds and properties.

use larder_format::Timestamp;
use larder_format::node::Key;
use larder_format::property::PropertyRecord;
use larder_format::tables::{HoldRecord, SnapshotRecord, Table};
use std::collections::BTreeMap;

/// An entry of the tables with its value from now on; without one it goes.
pub(crate) type Change = (Key, Option<Vec<u8>>);

/// A hold's number in the tables, and when it was placed.
pub(crate) type Placed = (u32, Timestamp);

/// Holds and properties of a snapshot, each with its number in the tables.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attached {
    /// Values of properties.
    pub(crate) properties: BTreeMap<String, (u32, String)>,
    /// When holds were placed, by their tags.
    pub(crate) holds: BTreeMap<String, Placed>,
}

/// An entry of the tables that is attached to a snapshot.
#[derive(Debug)]
pub(crate) enum Entry {
    Property(PropertyRecord),
    Hold(HoldRecord),
}

/// The lowest number that none has.
pub(crate) fn free_number<T>(taken: &BTreeMap<String, (u32, T)>) -> u32 {
    let mut numbers: Vec<u32> = taken.values().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    (0..)
        .zip(&numbers)
        .find(|(number, taken)| number != *taken)
        .map_or(numbers.len() as u32, |(number, _)| number)
}

impl Attached {
    /// Those properties, of a snapshot that is being taken.
    pub(crate) fn of_new(properties: &BTreeMap<String, String>) -> Self {
        let numbered = (0..).zip(properties);
        let properties = numbered.map(|(number, (name, value))| (name.clone(), (number, value.clone())));
        Self { properties: properties.collect(), holds: BTreeMap::new() }
    }

    /// Has the tables have all entries of the snapshot `record`, or none of them.
    pub(crate) fn changes(&self, record: &SnapshotRecord, are_there: bool) -> Vec<Change> {
        let key = |table: Table, number| table.attached_key(record.dataset, record.high, number);
        let properties = self.properties.iter().map(|(name, (number, value))| {
            let entry = PropertyRecord::local(name, value);
            (key(Table::SnapshotProperties, *number), entry.encode())
        });
        let holds = self.holds.iter().map(|(tag, (number, created))| {
            let entry = HoldRecord { created: *created, tag: tag.clone() };
            (key(Table::Holds, *number), entry.encode())
        });
        properties.chain(holds).map(|(key, value)| (key, are_there.then_some(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_given() {
        let taken = |numbers: &[u32]| {
            numbers.iter().map(|number| (number.to_string(), (*number, ()))).collect::<BTreeMap<_, _>>()
        };
        for (numbers, free) in [(&[][..], 0), (&[0], 1), (&[1], 0), (&[0, 1, 3], 2), (&[2, 10, 0, 1], 3)] {
            assert_eq!(free_number(&taken(numbers)), free, "{numbers:?}");
        }
    }
}
