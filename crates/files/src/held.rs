//! Names of files of which snapshots hold something.

use crate::paths::{Path, Paths};
use crate::volume::inode_key;
use larder_format::items::Inode;
use larder_format::{BlockId, DatasetId, InodeId};
use larder_pool::{HeldFile, Look, Pool};
use std::collections::{BTreeMap, HashMap};

/// Paths of files in the newest of the snapshots that hold some of them, below the dataset, with `/` first; in the
/// order of `files`. Of a file that had no name there any more, or of which that cannot be read, why not.
pub fn held_paths(pool: &Pool, dataset: DatasetId, files: &[HeldFile]) -> Vec<Path> {
    let mut by_snapshot: BTreeMap<BlockId, Vec<InodeId>> = BTreeMap::new();
    for file in files {
        by_snapshot.entry(file.newest).or_default().push(file.inode);
    }
    let mut found: HashMap<InodeId, Path> = HashMap::new();
    for (high, inodes) in by_snapshot {
        let Some(view) = pool.snapshot_view_of(dataset, high) else { continue };
        let mut wanted = Vec::new();
        for id in inodes {
            let value = view.get(&inode_key(id)).map_err(|error| error.to_string());
            let inode = value.and_then(|value| {
                let inode = value.map(|value| Inode::decode(&value)).transpose();
                inode.map_err(|corrupt| corrupt.to_string())
            });
            match inode {
                Ok(Some(inode)) if inode.nlink > 0 => wanted.push((id, inode.parent)),
                Ok(_) => drop(found.insert(id, Err("it had no name any more".to_owned()))),
                Err(why) => drop(found.insert(id, Err(why))),
            }
        }
        let mut paths = Paths::new(&view);
        for (id, place) in paths.of(&wanted) {
            found.extend(paths.path(Some(place)).map(|path| (id, path)));
        }
    }
    let gone = || Err("its snapshot was destroyed meanwhile".to_owned());
    files.iter().map(|file| found.remove(&file.inode).unwrap_or_else(gone)).collect()
}
