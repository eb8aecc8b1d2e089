//! Nodes of the tables, before the gate closes: with the gate closed nobody waits for a device.
//!
//! The tables of a large pool have many thousand leaves, and most of them lie on devices alone. Those that a commit
//! will change are known before, as far as they tell of segments: they are brought into memory, all at once, beside
//! traffic.
//!
//! # Scattered nodes
//! Each commit writes the nodes that it changed into the open segment of the tables, and those that they replace die
//! where they lie. Closed segments of which little lives are emptied by having what lives there written anew, with the
//! next commits: about as many nodes as they write anyway, which keeps what lives at a fourth of its segments or more,
//! since of segments a fourth full one written node brings the space of four. Segments that are to go, as their group
//! has another shape, are emptied as well, faster.

use crate::pool::Pool;
use larder_format::node::NODE_MAX;
use larder_format::segment::SegmentState;
use larder_format::tables::Table;
use larder_format::{BlockPtr, SegmentId};
use larder_store::core::Core;
use larder_store::segments::{Listed, SegmentEntry};
use larder_store::{Result, TableNodes};
use std::collections::HashSet;

/// So many closed segments of the tables, and room for four times what lives there, are no reason to write anything.
const SEGMENTS: usize = 4;
const ROOM: u64 = 4;
/// Nodes that a commit writes anew, besides as many as it changes; and where segments are to go.
const NODES: usize = 8;
const NODES_TO_GO: usize = 1024;

/// Segments of tables that are to be emptied, and the number of nodes that a commit writes anew for that.
fn to_empty(core: &Core, changed: usize) -> (HashSet<SegmentId>, usize) {
    let id = |entry: &SegmentEntry| entry.segment.id;
    let of_tables = || core.entries.listed(Listed::Table).filter(|entry| entry.live_blocks > 0);
    let to_go: HashSet<_> = of_tables().map(id).filter(|id| !core.fits(*id)).collect();
    let (mut all, most) = thin(core, changed);
    if to_go.is_empty() {
        return (all, most);
    }
    all.extend(to_go);
    (all, NODES_TO_GO)
}

/// Those of which little lives, if there are too many, and so the number of nodes.
fn thin(core: &Core, changed: usize) -> (HashSet<SegmentId>, usize) {
    let is_closed = |entry: &&SegmentEntry| entry.state == SegmentState::Closed;
    let mut closed: Vec<_> = core.entries.listed(Listed::Table).filter(is_closed).collect();
    let (live, height) = closed
        .iter()
        .fold((0, 0), |(live, height), entry| (live + entry.live_bytes, height + u64::from(entry.height)));
    if closed.len() <= SEGMENTS || height <= ROOM * live {
        return (HashSet::new(), 0);
    }
    // Those of which least lives.
    closed.retain(|entry| entry.live_blocks > 0);
    closed.sort_by_key(|entry| entry.live_bytes);
    let (most, mut nodes) = (NODES + changed, 0);
    let enough = |entry: &&&SegmentEntry| {
        let before = nodes;
        nodes += entry.live_blocks as usize;
        before < most
    };
    (closed.iter().take_while(enough).map(|entry| entry.segment.id).collect(), most)
}

impl Pool {
    /// The nodes of the tables.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn table_nodes(&self) -> Result<Vec<BlockPtr>> {
        let mut nodes = Vec::new();
        let met = |ptr| {
            nodes.push(ptr);
            true
        };
        let tables = self.tables.lock();
        tables.for_each_node(&TableNodes(&self.shared.store), met, |_, node| node.map(drop))?;
        Ok(nodes)
    }

    /// Brings the nodes that the next commit changes of the tables into memory, and says which it is to write anew
    /// besides. What cannot be read now is left to the commit.
    pub(crate) fn look_ahead_in_tables(&self) {
        let (store, nodes) = (&self.shared.store, TableNodes(&self.shared.store));
        let mut dying = self.shared.freeing.dropped_segments();
        for dataset in self.trees() {
            dying.extend(dataset.state.read().tree.dropped().iter().map(|ptr| ptr.place.segment));
        }
        let (changed, gone) = {
            let core = store.core.lock();
            let key = |id: &SegmentId| Table::segment_key(*id);
            let mut changed: Vec<_> = core.entries.ids(Listed::Dirty).iter().map(key).collect();
            changed.extend(core.entries.ids(Listed::Empty).iter().map(key));
            changed.extend(dying.iter().filter(|id| core.entries.contains_key(id)).map(key));
            changed.sort_unstable();
            let mut gone: Vec<_> = core.gone.iter().map(key).collect();
            gone.sort_unstable();
            (changed, gone)
        };
        let mut leaves: Vec<BlockPtr> = Vec::new();
        let others;
        {
            let tables = self.tables.lock();
            others = tables.dirty_bytes() / NODE_MAX;
            leaves.extend(tables.leaves_of(&nodes, changed, false).unwrap_or_default());
            // Where a leaf gets small its neighbours are looked at.
            leaves.extend(tables.leaves_of(&nodes, gone, true).unwrap_or_default());
        }
        let (segments, most) = to_empty(&store.core.lock(), leaves.len() + others);
        let mut scattered = Vec::new();
        if !segments.is_empty() {
            let is_there = |ptr: &BlockPtr| segments.contains(&ptr.place.segment);
            let tables = self.tables.lock();
            scattered = tables.ways_to(&nodes, is_there, most).unwrap_or_default();
            drop(tables);
            leaves.extend(scattered.iter().map(|(_, ptr)| *ptr));
        }
        let there = nodes.bring(&leaves);
        // One that cannot be read stays where it is: nobody waits for it with the gate closed.
        scattered.retain(|(_, ptr)| there.contains(&ptr.id));
        *self.sealing.scattered.lock() = scattered.into_iter().map(|(key, _)| key).collect();
    }
}
