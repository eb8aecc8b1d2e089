//! Data to write: bytes that no codec makes smaller, and text as programs log it.

use larder_device::{Entropy, SeededEntropy};
use std::fmt::Write;

/// Kinds of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Random bytes.
    Random,
    /// Lines of a log; lz4 makes them about a third.
    Text,
}

impl Content {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Text => "text",
        }
    }

    /// `len` bytes, the same each time.
    pub fn bytes(self, len: usize) -> Vec<u8> {
        let rng = SeededEntropy::new(7);
        match self {
            Self::Random => rng.bytes(len),
            Self::Text => {
                let mut text = String::with_capacity(len + 256);
                while text.len() < len {
                    let (word, second) = (rng.next_u64(), text.len() / 500);
                    let (job, size) = (word % 90_000, word >> 40 & 0xfffff);
                    let verb = ["stored", "fetched", "checked", "moved"][(word >> 32) as usize % 4];
                    writeln!(
                        text,
                        "{second:>10} host worker[{job}]: {verb} {size} bytes of object {word:016x}"
                    )
                    .expect("a string takes what is written");
                }
                text.truncate(len);
                text.into_bytes()
            }
        }
    }
}
