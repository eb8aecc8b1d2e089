//! Lost records cut out of a tree: their ranges become holes, and nothing refers to a block that is not there.

use larder_format::items::{EXTENT, Extent, INODE, Inode};
use larder_format::node::Key;
use larder_sorted::tree::Tree;
use larder_store::{DatasetNodes, PoolError, Store};
use std::ops::{Bound, ControlFlow};

/// Extents that are looked for before they are cut out: of a tree that lost most, not all are held in memory.
const BATCH: usize = 1 << 16;

/// Cuts out the extents whose blocks the map has not.
///
/// # Errors
/// When the map or the tree cannot be read.
pub(crate) fn cut_lost(tree: &mut Tree, store: &Store) -> Result<(), PoolError> {
    let nodes = DatasetNodes(store);
    let mut from = Bound::Unbounded;
    loop {
        let (mut lost, mut failed) = (Vec::<(Key, Extent)>::new(), None);
        tree.scan(&nodes, (from, Bound::Unbounded), |key, value| {
            if key.kind == EXTENT
                && let Ok(extent) = Extent::decode(value)
            {
                match store.places_of(extent.ptr.id) {
                    Ok(places) if places.is_empty() => lost.push((*key, extent)),
                    Ok(_) => {}
                    Err(error) => failed = Some(error),
                }
            }
            match failed.is_some() || lost.len() >= BATCH {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        for of_file in lost.chunk_by(|(one, _), (other, _)| one.object == other.object) {
            for (key, _) in of_file {
                tree.remove(&nodes, key)?;
            }
            let at = Key::new(of_file[0].0.object, INODE, 0);
            if let Some(Ok(mut inode)) = tree.get(&nodes, &at)?.map(|value| Inode::decode(&value)) {
                of_file.iter().for_each(|(_, extent)| inode.forget_extent(extent));
                tree.insert(&nodes, at, &inode.encode())?;
            }
        }
        match lost.last() {
            Some((last, _)) if lost.len() >= BATCH => from = Bound::Excluded(*last),
            _ => return Ok(()),
        }
    }
}
