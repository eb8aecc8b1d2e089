//! Real files to store: copies of what the machine has.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder and what was copied into it.
#[derive(Debug, Clone)]
pub struct Tree {
    /// Where.
    pub path: PathBuf,
    /// Regular files.
    pub files: usize,
    /// Their content.
    pub bytes: u64,
}

impl Tree {
    /// A new, empty one.
    pub fn new(path: PathBuf) -> Self {
        fs::create_dir_all(&path).expect("our folder");
        Self { path, files: 0, bytes: 0 }
    }

    /// Copies files of `largest` bytes at most from below `from` to `to`, in the order of their names, until the tree
    /// has `limit` bytes.
    pub fn fill(&mut self, from: &Path, to: &Path, largest: u64, limit: u64) {
        let Ok(entries) = fs::read_dir(from) else { return };
        let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        entries.sort_unstable();
        for entry in entries {
            if self.bytes >= limit {
                return;
            }
            let (Ok(meta), Some(name)) = (entry.symlink_metadata(), entry.file_name()) else { continue };
            if meta.is_dir() {
                self.fill(&entry, &to.join(name), largest, limit);
            } else if meta.is_file() && meta.len() <= largest {
                fs::create_dir_all(to).expect("our folder");
                if fs::copy(&entry, to.join(name)).is_ok() {
                    self.files += 1;
                    self.bytes += meta.len();
                }
            }
        }
    }
}
