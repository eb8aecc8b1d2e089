//! Codecs: how a record's plain bytes become a payload, and back.
//!
//! A payload is kept encoded only when that saves at least an eighth of the plain bytes; otherwise the
//! record is stored as it is, and reading it costs nothing. Compressors that can stop early get a buffer of
//! seven eighths. Contexts are kept for each thread, one a library: 0.5 to 3 MiB for records of 128 KiB;
//! zstd takes up to 18 MiB at its highest levels with records of 1 MiB.
//!
//! **Giving up early.** gzip takes about 1 ms to find that 128 KiB do not compress, zstd up to 0.2 ms. So
//! gzip and zstd from level 3 on first look whether there is anything to win:
//!
//! 1. The *collision entropy* of 4 KiB, sampled all over the record (1.5 us). It is a lower bound of
//!    Shannon's, so at 7.25 bits a byte or more, coding bytes by frequency saves less than 10 %. Most of
//!    what compresses is far below and goes on to the codec at once.
//! 2. Of the rest, lz4 must save a sixteenth by repetitions (15 us on noise, 40 us on archives).
//!
//! Only a record that fails both is given up. lz4 alone, the usual probe, refuses what has no repetitions
//! but few different bytes (base64, samples, tables of numbers): it would lose 0.2 % of zstd's savings and
//! 0.4 % of gzip's. What this one misses is noise that repeats only beyond lz4's 64 KiB. One record in
//! twelve (128 KiB) or fifty (16 KiB) of 7 GB of programs, libraries, fonts, documents and archives:
//!
//! | codec  | record  | incompressible: given up | compressible: given up | savings lost |
//! |--------|---------|--------------------------|------------------------|--------------|
//! | zstd-3 | 128 KiB | 543 of 580               | 0 of 11,689            | 0            |
//! | zstd-9 | 128 KiB | 542 of 577               | 1 of 11,692            | 0.005 %      |
//! | gzip-6 | 128 KiB | 541 of 574               | 2 of 11,695            | 0.009 %      |
//! | zstd-3 | 16 KiB  | 731 of 782               | 1 of 9,775             | 0.009 %      |
//! | gzip-6 | 16 KiB  | 731 of 775               | 1 of 9,782             | 0.005 %      |
//!
//! The time of a refusal falls from 1.1 ms to 30-45 us for gzip-6, from 240 to 40 us (archives) for zstd-9,
//! from 80 to 35 us (archives) or not at all (noise, 20 us) for zstd-3. The `codec` benchmark measures it
//! for any folder. zstd-1 and lz4 are about as fast as the look would be.
//!
//! Decoders take bytes that may be hostile: they write into a buffer of the record's length and nothing
//! else, and anything but exactly that many bytes is [`Corrupt`].

use larder_format::block::CodecKind;
use larder_format::{Corrupt, Reason};
use libdeflater::CompressionLvl;
use lz4_flex::block::CompressTable;
use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A codec as a dataset's property names it: what to encode with, and how hard to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Store as it is.
    Off,
    /// LZ4 block.
    Lz4,
    /// Raw deflate, level 1 to 9.
    Gzip(u8),
    /// Zstandard, level 1 to 19.
    Zstd(u8),
}

impl Codec {
    /// The codec that readers need.
    pub fn kind(&self) -> CodecKind {
        match self {
            Self::Off => CodecKind::Off,
            Self::Lz4 => CodecKind::Lz4,
            Self::Gzip(_) => CodecKind::Gzip,
            Self::Zstd(_) => CodecKind::Zstd,
        }
    }

    /// Whether it is slow enough that it pays to look first at what may save it.
    pub fn is_slow(&self) -> bool {
        matches!(self, Self::Gzip(_) | Self::Zstd(3..))
    }
}

/// The codec that `on` selects. zstd-1 stores a seventh less, but compresses at three quarters of lz4's speed and
/// decompresses at half of it.
impl Default for Codec {
    fn default() -> Self {
        Self::Lz4
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Gzip(level) => write!(f, "gzip-{level}"),
            Self::Zstd(level) => write!(f, "zstd-{level}"),
        }
    }
}

/// A name that names no codec.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no codec is called `{0}`: on, off, lz4, gzip, gzip-1 to gzip-9, zstd, zstd-1 to zstd-19")]
pub struct UnknownCodec(pub String);

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        let unknown = || UnknownCodec(name.to_owned());
        let level = |digits: &str, most: u8| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
            let level = digits.parse().ok().filter(|level| plain && (1..=most).contains(level));
            level.ok_or_else(unknown)
        };
        Ok(match name {
            "on" => Self::default(),
            "off" => Self::Off,
            "lz4" => Self::Lz4,
            "gzip" => Self::Gzip(6),
            "zstd" => Self::Zstd(3),
            _ => match name.split_once('-') {
                Some(("gzip", digits)) => Self::Gzip(level(digits, 9)?),
                Some(("zstd", digits)) => Self::Zstd(level(digits, 19)?),
                _ => return Err(unknown()),
            },
        })
    }
}

/// The payload that `plain` becomes, of kind [`Codec::kind`]; `None` when the codec does not save an eighth, and the
/// caller stores `plain` itself.
///
/// # Panics
/// When the codec's level is out of its range.
pub fn compress(codec: Codec, plain: &[u8]) -> Option<Vec<u8>> {
    CONTEXTS.with_borrow_mut(|contexts| {
        let len = contexts.compress(codec, plain)?;
        Some(contexts.out[..len].to_vec())
    })
}

/// Decodes `payload`, which must give exactly `logical` bytes.
///
/// Allocates `logical` bytes whatever the payload says; the caller bounds them.
pub fn decompress(kind: CodecKind, payload: &[u8], logical: usize) -> Result<Vec<u8>, Corrupt> {
    let mut out = vec![0; logical];
    decompress_into(kind, payload, &mut out)?;
    Ok(out)
}

/// Decodes `payload`, which must fill `out` exactly. After an error `out` holds arbitrary bytes.
pub fn decompress_into(kind: CodecKind, payload: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    let len = match kind {
        CodecKind::Off if payload.len() == out.len() => {
            out.copy_from_slice(payload);
            Some(out.len())
        }
        CodecKind::Off => None,
        CodecKind::Lz4 => lz4_flex::block::decompress_into(payload, out).ok(),
        CodecKind::Gzip => CONTEXTS.with_borrow_mut(|contexts| {
            let gunzip = contexts.gunzip.get_or_insert_with(libdeflater::Decompressor::new);
            gunzip.deflate_decompress(payload, out).ok()
        }),
        CodecKind::Zstd => CONTEXTS.with_borrow_mut(|contexts| {
            let unzstd =
                contexts.unzstd.get_or_insert_with(|| zstd::bulk::Decompressor::new().expect(MEMORY));
            unzstd.decompress_to_buffer(payload, out).ok()
        }),
    };
    if len == Some(out.len()) { Ok(()) } else { Err(Corrupt::new("block payload", Reason::Codec)) }
}

const MEMORY: &str = "memory for a codec's context";

thread_local! {
    static CONTEXTS: RefCell<Contexts> = const { RefCell::new(Contexts::new()) };
}

/// State of the libraries, kept from call to call, and their output buffer; compressors of the level used last.
struct Contexts {
    lz4: Option<CompressTable>,
    gzip: Option<(u8, libdeflater::Compressor)>,
    gunzip: Option<libdeflater::Decompressor>,
    zstd: Option<(u8, zstd::bulk::Compressor<'static>)>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    out: Vec<u8>,
}

impl Contexts {
    const fn new() -> Self {
        Self { lz4: None, gzip: None, gunzip: None, zstd: None, unzstd: None, out: Vec::new() }
    }

    /// Encodes into the start of `out` and returns the payload's length if that saves an eighth.
    fn compress(&mut self, codec: Codec, plain: &[u8]) -> Option<usize> {
        let limit = plain.len() - plain.len().div_ceil(8);
        if limit == 0 || (codec.is_slow() && self.is_hopeless(plain)) {
            return None;
        }
        let len = match codec {
            Codec::Off => None,
            Codec::Lz4 => Some(self.lz4(plain)),
            Codec::Gzip(level) => {
                self.make_room(limit);
                let (gzip, out) = self.gzip(level);
                gzip.deflate_compress(plain, &mut out[..limit]).ok()
            }
            Codec::Zstd(level) => {
                self.make_room(limit);
                let (zstd, out) = self.zstd(level);
                zstd.compress_to_buffer(plain, &mut out[..limit]).ok()
            }
        };
        len.filter(|&len| len <= limit)
    }

    /// The buffer holds at least so many bytes, whatever they are: zeroing it for each record would cost as much as
    /// summing the record does.
    fn make_room(&mut self, len: usize) {
        if self.out.len() < len {
            self.out.resize(len, 0);
        }
    }

    /// Whether a look at the record finds nothing to win; see the module's theory.
    fn is_hopeless(&mut self, plain: &[u8]) -> bool {
        is_flat(plain) && self.lz4(plain) > plain.len() - plain.len() / 16
    }

    /// Encodes all of `plain`, however long that gets.
    fn lz4(&mut self, plain: &[u8]) -> usize {
        // The library wants room for the worst case beforehand; it skips ahead where nothing repeats.
        self.make_room(lz4_flex::block::get_maximum_output_size(plain.len()));
        let table = self.lz4.get_or_insert_with(CompressTable::large);
        lz4_flex::block::compress_into_with_table(plain, &mut self.out, table)
            .expect("room for the worst case")
    }

    fn gzip(&mut self, level: u8) -> (&mut libdeflater::Compressor, &mut [u8]) {
        assert!((1..=9).contains(&level), "gzip has no level {level}");
        if self.gzip.as_ref().is_none_or(|(of, _)| *of != level) {
            let library_level = CompressionLvl::new(level.into()).expect("the library has these levels too");
            self.gzip = Some((level, libdeflater::Compressor::new(library_level)));
        }
        (&mut self.gzip.as_mut().expect("set above").1, &mut self.out)
    }

    fn zstd(&mut self, level: u8) -> (&mut zstd::bulk::Compressor<'static>, &mut [u8]) {
        assert!((1..=19).contains(&level), "zstd has no level {level}");
        if self.zstd.as_ref().is_none_or(|(of, _)| *of != level) {
            self.zstd = Some((level, zstd::bulk::Compressor::new(level.into()).expect(MEMORY)));
        }
        (&mut self.zstd.as_mut().expect("set above").1, &mut self.out)
    }
}

/// Whether the sampled bytes have a collision entropy of 7.25 bits or more: two of them, drawn at random,
/// are equal in at most one of 2^7.25 = 152 cases.
fn is_flat(plain: &[u8]) -> bool {
    const SAMPLES: usize = 16;
    const SAMPLE: usize = 256;
    let mut counts = [0_u64; 256];
    let mut count = |bytes: &[u8]| bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    if plain.len() <= SAMPLES * SAMPLE {
        count(plain);
    } else {
        let stride = (plain.len() - SAMPLE) / (SAMPLES - 1);
        (0..SAMPLES).for_each(|sample| count(&plain[sample * stride..][..SAMPLE]));
    }
    let total: u64 = counts.iter().sum();
    // Pairs of different places, so that a small sample does not look more orderly than its source.
    let equal_pairs: u64 = counts.iter().map(|&count| count * count.saturating_sub(1)).sum();
    152 * equal_pairs <= total * total.saturating_sub(1)
}

#[cfg(test)]
mod tests;
