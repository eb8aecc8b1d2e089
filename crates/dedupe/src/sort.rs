//! Sorting in bounded memory: runs in temporary files without names, merged as they are read.

use crate::error::DedupeError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::mem::take;
use std::path::{Path, PathBuf};

const READ: usize = 16 << 10;
/// Runs, of which each is an open file with a buffer; when there are more, they become one.
const RUNS: usize = 256;

/// Takes numbers in any order and gives them back in theirs.
pub struct Sorter {
    folder: PathBuf,
    room: usize,
    held: Vec<u128>,
    runs: Vec<File>,
    taken: u64,
}

impl Sorter {
    /// One that holds `bytes` of memory, and puts what is more into `folder`.
    pub fn new(folder: PathBuf, bytes: u64) -> Self {
        Self { folder, room: (bytes / 16).max(1024) as usize, held: Vec::new(), runs: Vec::new(), taken: 0 }
    }

    /// Takes one.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn push(&mut self, number: u128) -> Result<(), DedupeError> {
        if self.held.len() >= self.room {
            self.spill().map_err(|error| DedupeError::Storage { path: self.folder.clone(), error })?;
        }
        self.held.push(number);
        self.taken += 1;
        Ok(())
    }

    /// As many as it has taken.
    pub fn len(&self) -> u64 {
        self.taken
    }

    fn spill(&mut self) -> io::Result<()> {
        if self.runs.len() >= RUNS {
            let runs = Self {
                folder: self.folder.clone(),
                room: 0,
                held: Vec::new(),
                taken: 0,
                runs: take(&mut self.runs),
            };
            self.runs.push(written(&self.folder, runs.sorted())?);
        }
        self.held.sort_unstable();
        self.runs.push(written(&self.folder, self.held.drain(..).map(Ok))?);
        Ok(())
    }

    /// All of them, in order.
    pub fn sorted(mut self) -> Sorted {
        self.held.sort_unstable();
        let mut sorted = Sorted {
            folder: self.folder,
            held: self.held.into_iter(),
            runs: self.runs.into_iter().map(|file| BufReader::with_capacity(READ, file)).collect(),
            heads: BinaryHeap::new(),
            failed: None,
        };
        for from in 0..=sorted.runs.len() {
            sorted.advance(from);
        }
        sorted
    }
}

/// A file of those numbers.
fn written(folder: &Path, numbers: impl Iterator<Item = Result<u128, DedupeError>>) -> io::Result<File> {
    let mut file = tempfile::tempfile_in(folder)?;
    let mut out = BufWriter::with_capacity(READ, &mut file);
    for number in numbers {
        out.write_all(&number.map_err(io::Error::other)?.to_le_bytes())?;
    }
    out.flush()?;
    drop(out);
    file.rewind()?;
    Ok(file)
}

/// Numbers in order.
pub struct Sorted {
    folder: PathBuf,
    held: std::vec::IntoIter<u128>,
    runs: Vec<BufReader<File>>,
    heads: BinaryHeap<Reverse<(u128, usize)>>,
    failed: Option<io::Error>,
}

impl Sorted {
    /// The next of `from`: a run, or past the last of them what is held.
    fn advance(&mut self, from: usize) {
        let next = match self.runs.get_mut(from) {
            None => self.held.next(),
            Some(run) => {
                let mut bytes = [0; 16];
                match run.read_exact(&mut bytes) {
                    Ok(()) => Some(u128::from_le_bytes(bytes)),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                    Err(error) => {
                        self.failed = Some(error);
                        None
                    }
                }
            }
        };
        self.heads.extend(next.map(|number| Reverse((number, from))));
    }
}

impl Iterator for Sorted {
    type Item = Result<u128, DedupeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            self.heads.clear();
            return Some(Err(DedupeError::Storage { path: self.folder.clone(), error }));
        }
        let Reverse((number, from)) = self.heads.pop()?;
        self.advance(from);
        Some(Ok(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_device::{Entropy, SeededEntropy};

    #[test]
    fn more_than_memory_holds_comes_back_in_order() {
        let random = SeededEntropy::new(9);
        let mut all: Vec<u128> = (0..10_000).map(|_| u128::from(random.next_u64() % 5000) << 64).collect();
        let mut sorter = Sorter::new(std::env::temp_dir(), 16 * 1024);
        all.iter().for_each(|number| sorter.push(*number).unwrap());
        assert_eq!(sorter.runs.len(), 9);
        assert_eq!(sorter.len(), 10_000);
        let sorted: Vec<u128> = sorter.sorted().map(Result::unwrap).collect();
        all.sort_unstable();
        assert_eq!(sorted, all);
    }

    #[test]
    fn many_runs_become_one() {
        let mut sorter = Sorter::new(std::env::temp_dir(), 1);
        let count = 1024 * (RUNS as u128 + 20);
        (0..count).rev().for_each(|number| sorter.push(number).unwrap());
        assert!(sorter.runs.len() < 30, "{}", sorter.runs.len());
        assert!(sorter.sorted().map(Result::unwrap).eq(0..count));
    }
}
