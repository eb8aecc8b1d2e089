//! Hostile bytes for every decoder.
//!
//! A [`Decoder`] is one way in for bytes from outside: how valid ones look, how their checksums are
//! repaired after damage (else no damage would get past the outermost check), and what is done with
//! them. The same bodies run in two ways:
//!
//! - `fuzz/` hands them to libFuzzer, which looks for inputs by coverage (`fuzz/README.md` says how);
//! - `tests/decoders.rs` runs them on any machine with inputs from [`mutate`]: seeded, bounded in number,
//!   and with an eye on what they allocate.
//!
//! A body panics when the decoder does, and when what was accepted is not what it says: it must be
//! readable by all accessors and give the same value when encoded and decoded again.

mod decoders;
pub mod mutate;
mod samples;

pub use decoders::ALL;

/// A decoder under attack.
pub struct Decoder {
    /// Its name, which is also the fuzz target's.
    pub name: &'static str,
    /// Valid encodings.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Bytes that it may allocate whatever the length of its input.
    pub spare: u64,
    resum: fn(&mut [u8]),
    decode: fn(&[u8]) -> bool,
}

/// Bytes that a decoder may allocate in all for each byte of its input.
const ALLOWED_PER_BYTE: u64 = 64;

impl Decoder {
    /// Decodes `bytes` as they are, and with their checksums repaired; whether either was accepted.
    ///
    /// # Panics
    /// When the decoder does, or accepts what does not survive a round trip.
    pub fn feed(&self, bytes: &[u8]) -> bool {
        let accepted = (self.decode)(bytes);
        let mut summed = bytes.to_vec();
        (self.resum)(&mut summed);
        (self.decode)(&summed) || accepted
    }

    /// Bytes that [`Decoder::feed`] may allocate in all for an input of `len` bytes.
    pub fn allowance(&self, len: usize) -> u64 {
        self.spare + ALLOWED_PER_BYTE * len as u64
    }
}

/// Feeds `bytes` to the decoder called `name`.
///
/// # Panics
/// When there is none; else as [`Decoder::feed`].
pub fn feed(name: &str, bytes: &[u8]) {
    let decoder = ALL.iter().find(|decoder| decoder.name == name).expect("a target names a decoder");
    decoder.feed(bytes);
}
