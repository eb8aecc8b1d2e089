//! Blocks with more than one place: what a property will ask for one day, and already holds for whoever reads, moves,
//! frees or counts blocks.
//!
//! A hint names one of the places; the block map has all. Whatever cannot be read at one is read at the next. The
//! cleaner moves them one by one. Freeing asks the map from the first such block on ([`crate::free`]), since
//! the hint does not tell of the others; the root says so by [`Features::COPIES`].

use crate::pool::Pool;
use larder_format::block::BlockKind;
use larder_format::label::Features;
use larder_format::run::{MAX_PLACES, Places};
use larder_format::{BlockId, BlockPtr};
use larder_sorted::map::Update;
use larder_store::heat;
use larder_store::stripe::Encoded;
use larder_store::{Appender, PoolError, Result, Watermark};

impl Pool {
    /// Stores a record or a node once more, at a further place.
    ///
    /// # Errors
    /// When the map does not know it, it cannot be read, has as many places as there can be, or finds no room.
    #[doc(hidden)]
    pub fn add_place(&self, id: BlockId) -> Result<()> {
        let _commits_wait = self.commit_turn();
        self.shared.store.check_writable()?;
        let entry = self.shared.store.look_up(id, |look_up, io| look_up.entry(io))?;
        let mut places = entry.map_or_else(Vec::new, |entry| entry.places().to_vec());
        let Some(&place) = places.first().filter(|_| places.len() < MAX_PLACES) else {
            return Err(PoolError::Invalid(format!("block {id} gets no further place")));
        };
        let (header, bytes) = self.shared.store.read_any_place(BlockPtr { id, place })?;
        let block = Encoded::Whole(bytes);
        let further = if header.info.kind == BlockKind::Node {
            let mut nodes = Appender::of_old_nodes(&self.shared.store);
            let further = nodes.push(block)?;
            nodes.submit()?;
            further
        } else {
            self.shared.store.append_by_class(&[heat::COLDEST], &[block], Watermark::Clean)?[0]
        };
        places.push(further);
        // Before the map has it: nothing is freed by a hint from now on.
        self.shared.store.core.lock().features.incompatible |= Features::COPIES;
        let places = Places::new(&places)?;
        self.shared.store.map.lock().apply(Update::Put { id, places });
        Ok(())
    }
}
