//! Codecs of ZFS: `zio_compress`.

use crate::error::{Result, corrupt};

/// Largest block, bytes: `SPA_MAXBLOCKSIZE`.
pub const MAX_BLOCK: usize = 16 << 20;

const OFF: u8 = 2;
const LZJB: u8 = 3;
const GZIP: std::ops::RangeInclusive<u8> = 5..=13;
const ZLE: u8 = 14;
const LZ4: u8 = 15;
const ZSTD: u8 = 16;

/// Fills `out` with what `packed` was made of by a codec of this number.
///
/// # Errors
/// When it is damaged, or the codec is none that is known.
pub fn decompress(codec: u8, packed: &[u8], out: &mut [u8]) -> Result<()> {
    let done = match codec {
        OFF => packed.get(..out.len()).map(|packed| out.copy_from_slice(packed)),
        LZJB => lzjb(packed, out),
        codec if GZIP.contains(&codec) => gzip(packed, out),
        ZLE => zle(packed, out),
        LZ4 => counted(packed, 4).and_then(|packed| {
            let len = lz4_flex::block::decompress_into(packed, out).ok()?;
            (len == out.len()).then_some(())
        }),
        ZSTD => zstd(packed, out),
        _ => return Err(corrupt("a block by an unknown codec")),
    };
    done.ok_or_else(|| corrupt("a block that its codec cannot read"))
}

/// The bytes behind a head of `head` bytes that begins with their count, big-endian.
fn counted(packed: &[u8], head: usize) -> Option<&[u8]> {
    let len = crate::bytes::Order::Big.u32(packed, 0)? as usize;
    packed.get(head..head.checked_add(len)?)
}

/// A zlib stream, with sector padding behind it.
fn gzip(packed: &[u8], out: &mut [u8]) -> Option<()> {
    let mut decompressor = libdeflater::Decompressor::new();
    let len = decompressor.zlib_decompress(packed, out).ok()?;
    (len == out.len()).then_some(())
}

/// A frame without its magic number, behind its length and the level.
fn zstd(packed: &[u8], out: &mut [u8]) -> Option<()> {
    let frame = counted(packed, 8)?;
    let whole = [&0xFD2F_B528_u32.to_le_bytes()[..], frame].concat();
    let len = zstd::bulk::Decompressor::new().ok()?.decompress_to_buffer(&whole, out).ok()?;
    (len == out.len()).then_some(())
}

/// Lempel-Ziv by Jeff Bonwick: copy maps of eight items, matches of 3 to 66 bytes at most 1023 back (`lzjb.c`).
fn lzjb(packed: &[u8], out: &mut [u8]) -> Option<()> {
    let mut bytes = packed.iter().copied();
    let (mut at, mut map, mut mask) = (0, 0_u8, 0_u8);
    while at < out.len() {
        mask = mask.rotate_left(1);
        if mask <= 1 {
            mask = 1;
            map = bytes.next()?;
        }
        if map & mask == 0 {
            out[at] = bytes.next()?;
            at += 1;
            continue;
        }
        let pair = u16::from_be_bytes([bytes.next()?, bytes.next()?]);
        let (len, back) = (usize::from(pair >> 10) + 3, usize::from(pair & 0x3ff));
        let from = at.checked_sub(back).filter(|_| back > 0)?;
        let end = (at + len).min(out.len());
        for (from, to) in (from..).zip(at..end) {
            out[to] = out[from];
        }
        at = end;
    }
    Some(())
}

/// Runs of zeros counted, the rest as it is: a byte below 64 is that many and one of them (`zle.c`).
fn zle(packed: &[u8], out: &mut [u8]) -> Option<()> {
    const LITERALS: usize = 64;
    let (mut rest, mut at) = (packed, 0);
    while at < out.len() {
        let (&head, tail) = rest.split_first()?;
        let len = usize::from(head) + 1;
        if len <= LITERALS {
            let len = len.min(out.len() - at);
            out[at..at + len].copy_from_slice(tail.get(..len)?);
            rest = &tail[len..];
            at += len;
        } else {
            let len = (len - LITERALS).min(out.len() - at);
            out[at..at + len].fill(0);
            rest = tail;
            at += len;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(codec: u8, packed: &[u8], len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0xEE; len];
        decompress(codec, packed, &mut out).map(|()| out)
    }

    #[test]
    fn zle_counts_zeros() {
        assert_eq!(plain(ZLE, &[1, 7, 8, 64 + 3, 0, 9], 7).unwrap(), [7, 8, 0, 0, 0, 0, 9]);
        assert!(plain(ZLE, &[5, 1], 6).is_err());
    }

    #[test]
    fn lzjb_copies_what_was_before() {
        // One literal, then a match of five bytes, one back.
        let pair = (2_u16 << 10 | 1).to_be_bytes();
        assert_eq!(plain(LZJB, &[0b10, b'x', pair[0], pair[1]], 6).unwrap(), b"xxxxxx");
        let beyond = (2_u16 << 10 | 2).to_be_bytes();
        assert!(plain(LZJB, &[0b10, b'x', beyond[0], beyond[1]], 6).is_err());
    }

    #[test]
    fn others_come_in_their_wrappings() {
        let text = b"the same and the same and the same".repeat(40);
        let lz4 = lz4_flex::block::compress(&text);
        let counted = [&(lz4.len() as u32).to_be_bytes()[..], &lz4, &[0; 100]].concat();
        assert_eq!(plain(LZ4, &counted, text.len()).unwrap(), text);
        let frame = zstd::bulk::compress(&text, 3).unwrap();
        let head = ((frame.len() - 4) as u32).to_be_bytes();
        let counted = [&head[..], &[1, 4, 5, 3], &frame[4..], &[0; 9]].concat();
        assert_eq!(plain(ZSTD, &counted, text.len()).unwrap(), text);
        let mut zlib = vec![0; 4096];
        let mut compressor = libdeflater::Compressor::new(libdeflater::CompressionLvl::default());
        compressor.zlib_compress(&text, &mut zlib).unwrap();
        assert_eq!(plain(10, &zlib, text.len()).unwrap(), text);
        for codec in [LZ4, ZSTD, 10, 99] {
            assert!(plain(codec, &[0; 16], text.len()).is_err());
        }
    }
}
