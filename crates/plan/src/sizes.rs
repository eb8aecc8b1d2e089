//! Disks that are not there yet, as people write them: `6x16T 2x4T`. Sizes are decimal, as disks are sold; with an `i`
//! they are binary.

/// Disks of one word, at most; also of all together, as many as a pool takes.
pub const MOST_DISKS: usize = larder_pool::create::MAX_DEVICES;
/// The largest disk: a hundred times what is sold.
const LARGEST: u64 = 4 << 50;

/// Bytes of a size: `16T` is 16·10¹², `16TiB` 16·2⁴⁰.
///
/// # Errors
/// A sentence with what is wrong.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size: use 500G, 16T or 14.5TiB");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit = unit.to_ascii_uppercase();
    let (letter, base) = match unit.as_bytes() {
        [] => return Err(format!("'{text}' has no unit: use 500G, 16T or 14.5TiB")),
        [letter] | [letter, b'B'] => (*letter, 1000u64),
        [letter, b'I'] | [letter, b'I', b'B'] => (*letter, 1024),
        _ => return Err(wrong()),
    };
    let power = b"KMGTP".iter().position(|&of| of == letter).ok_or_else(wrong)? as u32 + 1;
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number * (base as f64).powi(power as i32);
    if bytes < larder_format::label::MIN_DEVICE as f64 {
        return Err(format!("'{text}' is too small: a disk has 64MiB or more"));
    }
    if bytes > LARGEST as f64 {
        return Err(format!("'{text}' is larger than any disk: 4PiB at most"));
    }
    Ok(bytes.round() as u64)
}

/// Whether a word is one of sizes and not the name of a device: it begins with a digit and has no slash.
pub fn is_sizes(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && !word.contains('/')
}

/// Number and bytes of the disks of a word: `6x16T`, or `16T` for one.
///
/// # Errors
/// A sentence with what is wrong.
pub fn disks(word: &str) -> Result<(usize, u64), String> {
    let Some((count, each)) = word.split_once(['x', 'X', '×', '*']) else { return Ok((1, size(word)?)) };
    let number: usize = count.parse().map_err(|_| format!("'{word}': '{count}' is no number of disks"))?;
    if !(1..=MOST_DISKS).contains(&number) {
        return Err(format!("'{word}': a pool takes 1 to {MOST_DISKS} disks"));
    }
    Ok((number, size(each)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_decimal_unless_they_say_otherwise() {
        for (word, meant) in [
            ("6x16T", (6, 16_000_000_000_000)),
            ("16T", (1, 16_000_000_000_000)),
            ("2x4TiB", (2, 4 << 40)),
            ("12X1.5tb", (12, 1_500_000_000_000)),
            ("3×500g", (3, 500_000_000_000)),
            ("1x64MiB", (1, 64 << 20)),
            ("4x100T", (4, 100_000_000_000_000)),
        ] {
            assert_eq!(disks(word), Ok(meant), "{word}");
        }
    }

    #[test]
    fn what_is_no_size_is_told_why() {
        for (word, why) in [
            ("6x16", "no unit"),
            ("0x16T", "1 to 384"),
            ("x16T", "is no number"),
            ("1000x1T", "1 to 384"),
            ("6x", "no unit"),
            ("6x16Q", "is no size"),
            ("6x1.2.3T", "is no size"),
            ("6x10M", "too small"),
            ("6x9999P", "larger than any"),
            ("6x16Tx", "is no size"),
        ] {
            let error = disks(word).unwrap_err();
            assert!(error.contains(why), "{word}: {error}");
        }
        assert!(is_sizes("6x16T") && !is_sizes("sda") && !is_sizes("./6x16T"));
    }
}
