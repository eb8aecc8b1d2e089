//! Every decoder under seeded damage: none panics, none allocates more than its input justifies.
//!
//! `LARDER_FUZZ_RUNS` is the number of inputs for each decoder, `LARDER_FUZZ_SEED` another series of them,
//! `LARDER_FUZZ_ONLY=decoder:number` the one input that a failure names.

use larder_fuzz_harness::mutate::{Numbers, mutant};
use larder_fuzz_harness::{ALL, Decoder};
use std::panic::{AssertUnwindSafe, catch_unwind};

const RUNS: u64 = 20_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Input `number` of series `series` for a decoder with these seeds.
fn input(series: u64, decoder: &Decoder, seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
    let own = decoder.name.bytes().fold(series, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    mutant(&mut Numbers::new(own.wrapping_mul(0x9e37_79b9).wrapping_add(number << 20)), seeds)
}

/// Feeds `bytes`; what was allocated in all and whether they were accepted, or why not.
fn attack(decoder: &Decoder, bytes: &[u8]) -> Result<(u64, bool), String> {
    let mut outcome = Ok(false);
    let info = allocation_counter::measure(|| {
        outcome = catch_unwind(AssertUnwindSafe(|| decoder.feed(bytes)));
    });
    let accepted = outcome.map_err(|_| "it panicked".to_owned())?;
    let allowed = decoder.allowance(bytes.len());
    if info.bytes_total > allowed {
        return Err(format!("it allocated {} bytes, {allowed} are allowed", info.bytes_total));
    }
    Ok((info.bytes_total, accepted))
}

#[test]
fn hostile_bytes_neither_panic_nor_take_memory() {
    let series = setting("LARDER_FUZZ_SEED", 1);
    let runs = setting("LARDER_FUZZ_RUNS", RUNS);
    let only = std::env::var("LARDER_FUZZ_ONLY").ok();
    for decoder in ALL {
        let seeds = (decoder.seeds)();
        let numbers = match only.as_deref().map(|only| only.split_once(':').expect("decoder:number")) {
            Some((name, number)) if name == decoder.name => {
                let number = number.parse().expect("a number");
                number..number + 1
            }
            Some(_) => continue,
            None => 0..runs,
        };
        let (mut count, mut accepted, mut most) = (0, 0, 0);
        for number in numbers {
            let bytes = input(series, decoder, &seeds, number);
            match attack(decoder, &bytes) {
                Ok((allocated, taken)) => {
                    count += 1;
                    accepted += u64::from(taken);
                    most = most.max(allocated);
                }
                Err(why) => panic!(
                    "{name}: {why}\nreplay: LARDER_FUZZ_SEED={series} LARDER_FUZZ_ONLY={name}:{number} \
                     cargo test -p larder-fuzz-harness\ninput: {bytes:02x?}",
                    name = decoder.name,
                ),
            }
        }
        println!("{:16} {count} inputs, {accepted} accepted, at most {most} bytes allocated", decoder.name);
        assert!(only.is_some() || accepted > 0, "{}: no damage got past the first check", decoder.name);
    }
}

#[test]
fn what_encoders_write_is_accepted() {
    for decoder in ALL {
        for (i, seed) in (decoder.seeds)().iter().enumerate() {
            let accepted = attack(decoder, seed).expect("a valid encoding").1;
            assert!(accepted, "{} {i} is refused", decoder.name);
        }
    }
}

#[test]
fn every_decoder_has_its_fuzz_target() {
    let targets = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(targets.join("Cargo.toml")).expect("fuzz/Cargo.toml");
    for Decoder { name, .. } in ALL {
        let file = format!("fuzz_targets/{name}.rs");
        let text = std::fs::read_to_string(targets.join(&file)).unwrap_or_else(|_| panic!("no {file}"));
        assert!(text.contains(&format!("feed({name:?}, bytes)")), "{file} feeds another decoder");
        assert!(manifest.contains(&format!("path = {file:?}")), "{file} is not in fuzz/Cargo.toml");
    }
}
