//! Files that wait to be read, in a temporary file without a name: there can be more of them than memory holds.

use crate::error::DedupeError;
use crate::hashfile::Stamp;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// A file that is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its handle.
    pub handle: Vec<u8>,
    /// As it was when it was found.
    pub stamp: Stamp,
    /// Its absolute path.
    pub path: Vec<u8>,
    /// Whether nobody can write where it is.
    pub is_read_only: bool,
}

/// Those that wait.
pub struct Waiting {
    folder: PathBuf,
    out: BufWriter<File>,
    /// Their length, bytes.
    pub bytes: u64,
}

/// Lengths of handle and path, whether it is read-only, and the stamp.
const HEAD: usize = 1 + 4 + 1 + 32;

impl Waiting {
    /// None yet; kept in `folder`.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn new(folder: &Path) -> Result<Self, DedupeError> {
        let file = tempfile::tempfile_in(folder);
        let file = file.map_err(|error| DedupeError::Storage { path: folder.to_owned(), error })?;
        Ok(Self { folder: folder.to_owned(), out: BufWriter::new(file), bytes: 0 })
    }

    fn failed(&self, error: io::Error) -> DedupeError {
        DedupeError::Storage { path: self.folder.clone(), error }
    }

    /// Adds one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn push(&mut self, wanted: &Wanted) -> Result<(), DedupeError> {
        let mut head = Vec::with_capacity(HEAD);
        head.push(wanted.handle.len() as u8);
        head.extend_from_slice(&(wanted.path.len() as u32).to_le_bytes());
        head.push(u8::from(wanted.is_read_only));
        head.extend_from_slice(&wanted.stamp.encode());
        self.bytes += wanted.stamp.size;
        let parts = [&head[..], &wanted.handle, &wanted.path];
        parts.iter().try_for_each(|part| self.out.write_all(part)).map_err(|error| self.failed(error))
    }

    /// All of them, in the order in which they came.
    ///
    /// # Errors
    /// When the last ones cannot be written.
    pub fn all(mut self) -> Result<impl FnMut() -> Result<Option<Wanted>, DedupeError>, DedupeError> {
        self.out.flush().and_then(|()| self.out.get_mut().rewind()).map_err(|error| self.failed(error))?;
        let Self { folder, out, .. } = self;
        let file = out
            .into_inner()
            .map_err(|error| DedupeError::Storage { path: folder.clone(), error: error.into_error() })?;
        let mut from = BufReader::new(file);
        Ok(move || next(&mut from).map_err(|error| DedupeError::Storage { path: folder.clone(), error }))
    }
}

fn next(from: &mut impl Read) -> io::Result<Option<Wanted>> {
    let mut head = [0; HEAD];
    if from.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..])?;
    let mut handle = vec![0; head[0].into()];
    from.read_exact(&mut handle)?;
    let mut path = vec![0; u32::from_le_bytes(head[1..5].try_into().expect("four bytes")) as usize];
    from.read_exact(&mut path)?;
    let stamp = Stamp::decode(head[6..].try_into().expect("a stamp"));
    Ok(Some(Wanted { handle, stamp, path, is_read_only: head[5] != 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_comes_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut waiting = Waiting::new(folder.path()).unwrap();
        let of = |n: u64| Wanted {
            handle: vec![n as u8; n as usize % 40],
            stamp: Stamp { size: n, mtime: -5, ctime: 7, ino: n << 40 },
            path: format!("/{}", "ä".repeat(n as usize)).into_bytes(),
            is_read_only: n > 250,
        };
        (0..500).for_each(|n| waiting.push(&of(n)).unwrap());
        assert_eq!(waiting.bytes, 499 * 250);
        let mut next = waiting.all().unwrap();
        (0..500).for_each(|n| assert_eq!(next().unwrap(), Some(of(n))));
        assert_eq!(next().unwrap(), None);
    }
}
