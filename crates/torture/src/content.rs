//! Contents of files: now, and after a crash.
//!
//! After a crash each byte is what some state of the file since the last durable one had there, and so is the length:
//! older than it was, perhaps, but never garbage. Which bytes of which state is not asked, since writes to one file
//! become durable in an order of their own.

use crate::random::Rng;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A change of a file's content.
#[derive(Debug, Clone)]
pub enum Edit {
    /// Bytes from there on.
    Write(usize, Arc<Vec<u8>>),
    /// The length.
    Cut(usize),
    /// Zeros, within the length.
    Punch(usize, usize),
}

impl Edit {
    /// Applies it; which bytes may be others then, those beyond the end counted as zeros.
    fn apply(&self, to: &mut Vec<u8>) -> Range<usize> {
        match self {
            Self::Write(at, bytes) => {
                if to.len() < at + bytes.len() {
                    to.resize(at + bytes.len(), 0);
                }
                to[*at..at + bytes.len()].copy_from_slice(bytes);
                *at..at + bytes.len()
            }
            Self::Cut(len) => {
                let from = (*len).min(to.len());
                to.resize(*len, 0);
                from..usize::MAX
            }
            Self::Punch(at, len) => {
                let range = (*at).min(to.len())..(at + len).min(to.len());
                to[range.clone()].fill(0);
                range
            }
        }
    }
}

/// The content of a file.
#[derive(Debug, Clone, Default)]
pub struct Content {
    sure: Arc<Vec<u8>>,
    edits: Vec<Edit>,
    now: Arc<Vec<u8>>,
}

impl Content {
    /// One that is durable.
    pub fn durable(bytes: Arc<Vec<u8>>) -> Self {
        Self { sure: Arc::clone(&bytes), edits: Vec::new(), now: bytes }
    }

    /// The content.
    pub fn now(&self) -> &Arc<Vec<u8>> {
        &self.now
    }

    /// Changes it.
    pub fn edit(&mut self, edit: Edit) {
        edit.apply(Arc::make_mut(&mut self.now));
        self.edits.push(edit);
    }

    /// Makes it durable as it is now.
    pub fn settle(&mut self) {
        self.sure = Arc::clone(&self.now);
        self.edits.clear();
    }

    /// Whether `found` may be there after a crash.
    ///
    /// # Errors
    /// The reason, where it may not.
    pub fn allows(&self, found: &[u8]) -> Result<(), String> {
        let mut state = Vec::clone(&self.sure);
        let mut lengths = BTreeSet::from([state.len()]);
        let mut known = vec![false; found.len()];
        let mut compare = |state: &[u8], range: Range<usize>| {
            for at in range.start..range.end.min(found.len()) {
                known[at] |= found[at] == state.get(at).copied().unwrap_or(0);
            }
        };
        compare(&state, 0..usize::MAX);
        for edit in &self.edits {
            let changed = edit.apply(&mut state);
            compare(&state, changed);
            lengths.insert(state.len());
        }
        if !lengths.contains(&found.len()) {
            return Err(format!(
                "it has {} bytes, and never had since it was durable: {lengths:?}",
                found.len()
            ));
        }
        match known.iter().position(|known| !known) {
            None => Ok(()),
            Some(at) => {
                let wrong = known.iter().filter(|known| !**known).count();
                Err(format!("{wrong} bytes, the first at {at}, are of no state since it was durable"))
            }
        }
    }
}

/// Bytes to write: by kind, how well they are compressed and deduplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Names the bytes.
    pub seed: u64,
    /// Which sort of them.
    pub kind: u8,
}

impl Fill {
    /// The bytes, so many.
    pub fn bytes(self, len: usize) -> Vec<u8> {
        match self.kind % 4 {
            // Noise.
            0 => Rng::new(&[self.seed]).bytes(len),
            // Text.
            1 => {
                let line = |n: u64| format!("{:x} {n} lines of what every codec shrinks\n", self.seed);
                let mut text: Vec<u8> = (0..).flat_map(|n| line(n).into_bytes()).take(len).collect();
                text.truncate(len);
                text
            }
            // Duplicates.
            2 => Rng::new(&[self.seed % 5]).bytes(len),
            // Noise, with holes in it that nobody cut.
            _ => {
                let mut bytes = Rng::new(&[self.seed]).bytes(len);
                for part in bytes.chunks_mut(20_000).skip(1).step_by(2) {
                    part.fill(0);
                }
                bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Content {
        let mut content = Content::durable(Arc::new(b"aaaaaaaa".to_vec()));
        content.edit(Edit::Write(2, Arc::new(b"bb".to_vec())));
        content.edit(Edit::Cut(6));
        content.edit(Edit::Write(8, Arc::new(b"c".to_vec())));
        content
    }

    #[test]
    fn each_byte_is_of_some_state_since_the_last_durable_one() {
        let content = written();
        assert_eq!(content.now()[..], b"aabbaa\0\0c"[..]);
        for may in [&b"aaaaaaaa"[..], b"aabbaaaa", b"aaaaaa", b"aabbaa\0\0c", b"aaaaaaaac"] {
            assert_eq!(content.allows(may), Ok(()), "{may:?}");
        }
        for not in [&b"aaaaaaa"[..], b"aacbaaaa", b"", b"aabbaa\0\0a"] {
            assert!(content.allows(not).is_err(), "{not:?}");
        }
    }

    #[test]
    fn what_is_durable_is_not_older() {
        let mut content = written();
        content.settle();
        assert_eq!(content.allows(b"aabbaa\0\0c"), Ok(()));
        assert!(content.allows(b"aaaaaaaa").unwrap_err().contains("has 8 bytes"));
        assert!(content.allows(b"aaaaaa\0\0c").unwrap_err().contains("2 bytes, the first at 2,"));
        content.edit(Edit::Punch(0, 3));
        assert_eq!(content.allows(b"\0\0bbaa\0\0c").err(), None);
        assert_eq!(content.now()[..], b"\0\0\0baa\0\0c"[..]);
    }

    #[test]
    fn fills_are_known_by_their_seed() {
        for kind in 0..4 {
            let fill = Fill { seed: 11, kind };
            assert_eq!(fill.bytes(70_000), fill.bytes(70_000));
            assert_eq!(fill.bytes(777).len(), 777);
        }
        assert_eq!(Fill { seed: 1, kind: 2 }.bytes(100), Fill { seed: 6, kind: 2 }.bytes(100));
        assert_ne!(Fill { seed: 1, kind: 0 }.bytes(100), Fill { seed: 6, kind: 0 }.bytes(100));
    }
}
