//! Where blocks lie, told to people. Nobody in the engine asks: places change as blocks are moved.

use crate::error::Result;
use crate::segments::ColumnSlot;
use crate::store::Store;
use larder_format::run::Marks;
use larder_format::{BlockId, DeviceIndex, DeviceOffset, Place};
use larder_sorted::map::{Entry, Location};

/// Place of a block, and whether it has, or had, more than one reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whereabouts {
    /// Its place.
    pub place: Place,
    /// The devices that hold it, with the offset there: one for each replica of its column, of each place.
    pub copies: Vec<(DeviceIndex, DeviceOffset)>,
    /// A second reference was made, and no collection has found since that it is gone.
    pub shared: bool,
}

impl Store {
    /// Place of a block by the block map; `None` if it is unknown, as after it was freed.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn whereabouts(&self, id: BlockId) -> Result<Option<Whereabouts>> {
        let entry_of = |id| self.look_up(id, |look_up, io| look_up.entry(io));
        let entry = match entry_of(id)? {
            Some(Entry { location: Location::Alias(to), .. }) => entry_of(to)?,
            found => found,
        };
        let Some(entry) = entry else { return Ok(None) };
        let Some(&place) = entry.places().first() else { return Ok(None) };
        let copies = entry.places().iter().flat_map(|&place| self.copies_at(place)).collect();
        Ok(Some(Whereabouts { place, copies, shared: entry.marks.contains(Marks::SHARED) }))
    }

    /// The devices that hold what lies at a place.
    fn copies_at(&self, place: Place) -> Vec<(DeviceIndex, DeviceOffset)> {
        self.readable.get(place.segment).map_or_else(Vec::new, |segment| {
            let layout = segment.layout;
            let columns = (0..layout.r()).map(|replica| layout.replica(place.column.into(), replica));
            let slots = columns.filter_map(|column| segment.slots.get(column)).map(ColumnSlot::get);
            slots
                .map(|slot| {
                    let offset = self.members.get(slot.device).slot_offset(slot.index, place.offset);
                    (slot.device, offset)
                })
                .collect()
        })
    }
}
