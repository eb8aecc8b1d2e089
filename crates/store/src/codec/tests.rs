use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn all_codecs() -> Vec<Codec> {
    let gzip = (1..=9).map(Codec::Gzip);
    let zstd = (1..=19).map(Codec::Zstd);
    [Codec::Off, Codec::Lz4].into_iter().chain(gzip).chain(zstd).collect()
}

const KINDS: [CodecKind; 4] = [CodecKind::Off, CodecKind::Lz4, CodecKind::Gzip, CodecKind::Zstd];

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| byte()).collect()
}

fn prose(len: usize) -> Vec<u8> {
    const WORDS: [&str; 8] = ["larder ", "bread ", "butter ", "and ", "jam ", "the ", "of ", "cellar\n"];
    noise(len).iter().flat_map(|byte| WORDS[usize::from(byte % 8)].bytes()).take(len).collect()
}

/// Compresses, checks the rule of the eighth, decodes again, and returns how the record is stored.
fn roundtrip(codec: Codec, plain: &[u8]) -> CodecKind {
    let Some(payload) = compress(codec, plain) else { return CodecKind::Off };
    let saved = plain.len() - payload.len();
    assert!(8 * saved >= plain.len(), "{codec} saved {saved} bytes");
    assert!(decompress(codec.kind(), &payload, plain.len()).unwrap() == plain, "{codec} returns other bytes");
    codec.kind()
}

#[test]
fn every_level_returns_what_it_was_given() {
    for codec in all_codecs() {
        for len in [0, 1, 7, 8, 100, 4096, 50_000] {
            for plain in [vec![0; len], noise(len), prose(len)] {
                roundtrip(codec, &plain);
            }
        }
        assert_eq!(roundtrip(codec, &prose(50_000)), codec.kind());
        assert_eq!(roundtrip(codec, &vec![0; 50_000]), codec.kind());
        assert_eq!(roundtrip(codec, &noise(50_000)), CodecKind::Off);
        assert_eq!(roundtrip(codec, &[]), CodecKind::Off);
    }
}

#[test]
fn the_largest_record_returns_as_it_was() {
    for codec in [Codec::Off, Codec::Lz4, Codec::Gzip(1), Codec::Gzip(6), Codec::Zstd(1), Codec::Zstd(3)] {
        for plain in [vec![0; 1 << 20], noise(1 << 20), prose(1 << 20)] {
            roundtrip(codec, &plain);
        }
    }
}

#[test]
fn less_than_an_eighth_saved_is_stored_plain() {
    // Noise with a tail of zeros: what is saved is about the tail.
    let record = |zeros: usize| [noise(32_768 - zeros), vec![0; zeros]].concat();
    for codec in all_codecs().into_iter().filter(|codec| *codec != Codec::Off) {
        assert_eq!(roundtrip(codec, &record(3_600)), CodecKind::Off, "{codec}");
        assert_eq!(roundtrip(codec, &record(4_600)), codec.kind(), "{codec}");
    }
}

#[test]
fn bytes_without_repetitions_but_few_values_are_not_given_up() {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let base64: Vec<u8> = noise(131_072).iter().map(|byte| DIGITS[usize::from(byte % 64)]).collect();
    assert_eq!(roundtrip(Codec::Lz4, &base64), CodecKind::Off);
    assert_eq!(roundtrip(Codec::Zstd(3), &base64), CodecKind::Zstd);
    assert_eq!(roundtrip(Codec::Gzip(6), &base64), CodecKind::Gzip);
}

#[test]
fn noise_that_repeats_is_not_given_up() {
    let repeating = noise(40_000).repeat(3);
    assert_eq!(roundtrip(Codec::Zstd(3), &repeating), CodecKind::Zstd);
}

#[test]
fn names_are_those_of_zfs() {
    for codec in all_codecs() {
        assert_eq!(codec.to_string().parse(), Ok(codec));
    }
    assert_eq!("on".parse(), Ok(Codec::default()));
    assert_eq!("gzip".parse(), Ok(Codec::Gzip(6)));
    assert_eq!("zstd".parse(), Ok(Codec::Zstd(3)));
    for name in ["", "ON", "gzip-0", "gzip-10", "zstd-20", "zstd-", "zstd-+3", "zstd-03", "lz4-1", "zstd-300"]
    {
        assert_eq!(name.parse::<Codec>(), Err(UnknownCodec(name.to_owned())));
    }
}

#[test]
fn a_record_of_another_length_is_corrupt() {
    let plain = prose(10_000);
    for codec in [Codec::Off, Codec::Lz4, Codec::Gzip(6), Codec::Zstd(3)] {
        let (kind, payload) = match compress(codec, &plain) {
            Some(payload) => (codec.kind(), payload),
            None => (CodecKind::Off, plain.clone()),
        };
        for logical in [0, 9_999, 10_001, 1 << 20] {
            let refused = Err(Corrupt::new("block payload", Reason::Codec));
            assert_eq!(decompress(kind, &payload, logical), refused, "{codec} as {logical}");
        }
    }
}

#[test]
fn a_small_payload_that_claims_gigabytes_is_corrupt() {
    // A Zstandard frame whose header claims 2^40 bytes, and an LZ4 match of many times 255.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0, 0x01, 0, 0];
    let lz4 = [&[0x1f, 0, 1, 0][..], &[0xff; 60_000]].concat();
    assert!(decompress(CodecKind::Zstd, &zstd, 4096).is_err());
    assert!(decompress(CodecKind::Lz4, &lz4, 4096).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_record_returns_as_it_was(
        codec in prop::sample::select(all_codecs()),
        pieces in vec((vec(any::<u8>(), 0..300), 1..20_usize), 0..12),
    ) {
        let plain: Vec<u8> = pieces.iter().flat_map(|(piece, times)| piece.repeat(*times)).collect();
        roundtrip(codec, &plain);
    }

    #[test]
    fn hostile_bytes_decode_or_are_corrupt(payload in vec(any::<u8>(), 0..600), logical in 0..5000_usize) {
        for kind in KINDS {
            if let Ok(plain) = decompress(kind, &payload, logical) {
                prop_assert_eq!(plain.len(), logical);
            }
        }
    }

    #[test]
    fn damaged_payloads_decode_or_are_corrupt(
        codec in prop::sample::select(vec![Codec::Lz4, Codec::Gzip(6), Codec::Zstd(3), Codec::Zstd(15)]),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let plain = prose(6_000);
        let mut payload = compress(codec, &plain).unwrap();
        for (at, byte) in damage {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        for payload in [&payload[..], &payload[..cut.index(payload.len())]] {
            if let Ok(found) = decompress(codec.kind(), payload, plain.len()) {
                prop_assert_eq!(found.len(), plain.len());
            }
        }
    }
}
