//! Whether the names in a tree agree with its inodes, in constant memory.
//!
//! Each fact about an inode is given a weight, a keyed hash of the fact. Inodes add the weights of what they say of
//! themselves, names and marks take away those of what they say of inodes. In a tree where both agree each sum is 0, so
//! it is for the difference of two such trees; in one where they do not it is 0 once in 2^64. (Fingerprints of
//! multisets by sums of hashes: Bellare and Micciancio, "A New Paradigm for Collision-Free Hashing", 1997. Here the
//! weights are keyed with a number that the sender does not know.)

use larder_format::Corrupt;
use larder_format::InodeId;
use larder_format::items::{ENTRY, Entry, FileKind, INODE, Inode, ORPHAN, ROOT_INODE};
use larder_format::node::Key;
use twox_hash::XxHash3_64;

/// Sums of a tree, or of the difference of two.
pub(crate) struct Agreement {
    seed: u64,
    /// Links of files; directories with their parents; subdirectories; entries; orphans.
    pub(crate) sums: [u64; 5],
}

/// Direction in which a fact counts.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Comes,
    Goes,
}

impl Agreement {
    pub(crate) fn new(seed: u64, sums: [u64; 5]) -> Self {
        Self { seed, sums }
    }

    pub(crate) fn holds(&self) -> bool {
        self.sums == [0; 5]
    }

    fn weight(&self, number: u8, first: u64, second: u64) -> u64 {
        let mut fact = [0; 17];
        fact[0] = number;
        fact[1..9].copy_from_slice(&first.to_le_bytes());
        fact[9..].copy_from_slice(&second.to_le_bytes());
        // Odd, so that no count times it is 0.
        XxHash3_64::oneshot_with_seed(self.seed, &fact) | 1
    }

    fn count(&mut self, change: Change, number: u8, first: u64, second: u64, times: u64) {
        let weight = self.weight(number, first, second).wrapping_mul(times);
        let sum = &mut self.sums[usize::from(number)];
        *sum = match change {
            Change::Comes => sum.wrapping_add(weight),
            Change::Goes => sum.wrapping_sub(weight),
        };
    }

    /// An entry of the tree comes or goes.
    ///
    /// # Errors
    /// When it does not decode.
    pub(crate) fn entry(&mut self, change: Change, key: &Key, value: &[u8]) -> Result<(), Corrupt> {
        let opposite = match change {
            Change::Comes => Change::Goes,
            Change::Goes => Change::Comes,
        };
        match key.kind {
            INODE => {
                let inode = Inode::decode(value)?;
                if inode.kind == FileKind::Directory {
                    if inode.nlink > 0 {
                        if InodeId::new(key.object) != ROOT_INODE {
                            self.count(change, 1, key.object, inode.parent.get(), 1);
                        }
                        self.count(change, 2, key.object, 0, u64::from(inode.nlink).wrapping_sub(2));
                    }
                    self.count(change, 3, key.object, 0, inode.entries);
                } else {
                    self.count(change, 0, key.object, inode.kind as u64, u64::from(inode.nlink));
                }
                if inode.nlink == 0 || inode.flags & Inode::HAS_TAIL != 0 {
                    self.count(change, 4, key.object, 0, 1);
                }
            }
            ENTRY => {
                let entry = Entry::decode(value)?;
                if entry.kind == FileKind::Directory {
                    self.count(opposite, 1, entry.inode.get(), key.object, 1);
                    self.count(opposite, 2, key.object, 0, 1);
                } else {
                    self.count(opposite, 0, entry.inode.get(), entry.kind as u64, 1);
                }
                self.count(opposite, 3, key.object, 0, 1);
            }
            ORPHAN => self.count(opposite, 4, key.offset, 0, 1),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::Timestamp;

    fn inode(kind: FileKind, nlink: u32, parent: u64, entries: u64) -> Vec<u8> {
        let time = Timestamp { secs: 1, nanos: 0 };
        let inode = Inode {
            kind,
            perm: 0o755,
            flags: 0,
            uid: 0,
            gid: 0,
            nlink,
            rdev: 0,
            size: 0,
            generation: 0,
            project: 0,
            record_size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            stored: 0,
            parent: InodeId::new(parent),
            entries,
            data: 0,
        };
        inode.encode().to_vec()
    }

    fn entry(inode: u64, kind: FileKind) -> Vec<u8> {
        Entry { inode: InodeId::new(inode), kind, name: b"x" }.encode()
    }

    fn agrees(tree: &[(Key, Vec<u8>)]) -> bool {
        let mut agreement = Agreement::new(7, [0; 5]);
        for (key, value) in tree {
            agreement.entry(Change::Comes, key, value).unwrap();
        }
        agreement.holds()
    }

    #[test]
    fn a_tree_agrees_with_itself_and_no_damaged_one_does() {
        use FileKind::{Directory, Regular};
        let tree = vec![
            (Key::new(0, ORPHAN, 5), Vec::new()),
            (Key::new(1, INODE, 0), inode(Directory, 3, 1, 3)),
            (Key::new(1, ENTRY, 1 << 22), entry(2, Directory)),
            (Key::new(1, ENTRY, 1 << 23), entry(3, Regular)),
            (Key::new(1, ENTRY, 1 << 24), entry(3, Regular)),
            (Key::new(2, INODE, 0), inode(Directory, 2, 1, 0)),
            (Key::new(3, INODE, 0), inode(Regular, 2, 1, 0)),
            (Key::new(5, INODE, 0), inode(Regular, 0, 1, 0)),
        ];
        assert!(agrees(&tree));
        for at in 0..tree.len() {
            let mut lacking = tree.clone();
            lacking.remove(at);
            assert!(!agrees(&lacking), "without {at}");
        }
        let with = |at: usize, value: Vec<u8>| {
            let mut other = tree.clone();
            other[at].1 = value;
            agrees(&other)
        };
        assert!(!with(1, inode(Directory, 2, 1, 3)), "a subdirectory is not counted");
        assert!(!with(1, inode(Directory, 3, 1, 2)), "an entry is not counted");
        assert!(!with(2, entry(3, Directory)), "an entry of the wrong kind");
        assert!(!with(3, entry(4, Regular)), "an entry of no inode");
        assert!(!with(5, inode(Directory, 2, 9, 0)), "another parent");
        assert!(!with(6, inode(Regular, 1, 1, 0)), "a link is not counted");
        assert!(!with(7, inode(Regular, 1, 1, 0)), "an orphan with a link");
    }
}
