//! A witness writes files whose every byte follows from a seed, notes outside of the file system what was
//! acknowledged, and can tell afterwards whether that is what is there.
//!
//! ```text
//! witness write  DIR ACKS SEED    writes until an error comes (the daemon was killed); ACKS says what fsync confirmed
//! witness verify DIR ACKS SEED    holds DIR against ACKS
//! witness tree   DIR COUNT SEED   a tree of COUNT files: sizes, modes, times, hard links, symlinks
//! witness fsyncs FILE COUNT TIMES writes and syncs COUNT times; TIMES says when each began and ended
//! witness flushes STRACE TIMES DIR MEMBERS
//!                                 each time span has a flush, after a write, on MEMBERS of the devices in DIR
//! ```

#![expect(clippy::disallowed_methods, reason = "a program of its own, on a real machine's clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().expect("a number");
    match args[..] {
        ["write", dir, acks, seed] => write(Path::new(dir), Path::new(acks), number(seed)),
        ["verify", dir, acks, seed] => verify(Path::new(dir), Path::new(acks), number(seed)),
        ["tree", dir, count, seed] => tree(Path::new(dir), number(count), number(seed)).unwrap(),
        ["fsyncs", file, count, times] => fsyncs(Path::new(file), number(count), Path::new(times)).unwrap(),
        ["flushes", strace, times, dir, members] => {
            flushes(Path::new(strace), Path::new(times), dir, number(members) as usize);
        }
        _ => panic!("see the head of witness.rs"),
    }
}

/// SplitMix64: a number for each (seed, index).
fn mix(seed: u64, index: u64) -> u64 {
    let mut z = (seed ^ index.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `len` bytes that only (seed, index) give. Half of them repeat, so that codecs have work.
fn content(seed: u64, index: u64, len: usize) -> Vec<u8> {
    let key = mix(seed, index);
    let mut bytes = Vec::with_capacity(len + 16);
    let mut word = 0;
    while bytes.len() < len {
        bytes.extend_from_slice(&mix(key, word).to_le_bytes());
        bytes.extend_from_slice(&key.to_le_bytes());
        word += 1;
    }
    bytes.truncate(len);
    bytes
}

// Data that each actor writes, by its number `index`.

/// Small files, each synced.
fn small_len(seed: u64, index: u64) -> usize {
    (mix(seed ^ 1, index) % 24_000) as usize
}
/// Files that nobody syncs, up to 1 MiB, in pieces.
fn copied_len(seed: u64, index: u64) -> usize {
    (mix(seed ^ 2, index) % (1 << 20)) as usize
}
/// The file that is replaced by rename, version by version.
fn version_len(seed: u64, index: u64) -> usize {
    8 + (mix(seed ^ 3, index) % 200_000) as usize
}
/// Records of the file that grows.
const APPENDED: usize = 100;

const LANES: u64 = 2;

/// Time after which an actor without an error stops; one of them then says so by a panic.
const PATIENCE: Duration = Duration::from_secs(60);

/// Four actors at once, each until its first error. That one is expected: it is how the end looks from inside.
fn write(dir: &Path, acks: &Path, seed: u64) {
    fs::create_dir_all(dir).unwrap();
    let acks = OpenOptions::new().create(true).append(true).open(acks).unwrap();
    // One write(2) a line, so that lines of several threads stay whole.
    let begun = SystemTime::now();
    let ack = |who: char, index: u64| {
        (&acks).write_all(format!("{who} {index}\n").as_bytes()).unwrap();
        assert!(begun.elapsed().is_ok_and(|took| took < PATIENCE), "nobody killed the daemon");
    };
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            scope.spawn({
                let ack = &ack;
                move || -> io::Result<()> {
                    for index in (lane..).step_by(LANES as usize) {
                        let mut file = File::create(dir.join(format!("s{index}")))?;
                        file.write_all(&content(seed ^ 1, index, small_len(seed, index)))?;
                        file.sync_all()?;
                        ack('s', index);
                    }
                    Ok(())
                }
            });
        }
        scope.spawn(|| -> io::Result<()> {
            for index in 0.. {
                if begun.elapsed().is_ok_and(|took| took >= PATIENCE) {
                    break;
                }
                let mut file = File::create(dir.join(format!("c{index}")))?;
                for piece in content(seed ^ 2, index, copied_len(seed, index)).chunks(65_536) {
                    file.write_all(piece)?;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        scope.spawn(|| -> io::Result<()> {
            for index in 0u64.. {
                let new = dir.join("v.new");
                let mut file = File::create(&new)?;
                file.write_all(&index.to_le_bytes())?;
                file.write_all(&content(seed ^ 3, index, version_len(seed, index) - 8))?;
                file.sync_all()?;
                fs::rename(&new, dir.join("v"))?;
                File::open(dir)?.sync_all()?;
                ack('v', index);
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        });
        scope.spawn(|| -> io::Result<()> {
            let mut file = OpenOptions::new().create(true).append(true).open(dir.join("a"))?;
            for index in 0.. {
                file.write_all(&content(seed ^ 4, index, APPENDED))?;
                file.sync_data()?;
                ack('a', index);
            }
            Ok(())
        });
    });
}

/// Holds what is there against what was acknowledged; ends with 1 if a promise is broken.
fn verify(dir: &Path, acks: &Path, seed: u64) {
    let text = fs::read_to_string(acks).unwrap_or_default();
    let mut acked: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for line in text.lines() {
        let (who, index) = line.split_once(' ').expect("who and which");
        acked.entry(who).or_default().insert(index.parse().expect("a number"));
    }
    let of = |who: &str| acked.get(who).cloned().unwrap_or_default();
    let mut broken = Vec::new();
    let mut counts = BTreeMap::new();

    // Synced: there, equal.
    let synced = of("s");
    for &index in &synced {
        let name = format!("s{index}");
        match fs::read(dir.join(&name)) {
            Ok(bytes) if bytes == content(seed ^ 1, index, small_len(seed, index)) => {}
            Ok(bytes) => broken.push(format!(
                "{name} was synced with {} bytes; it has {} and {}",
                small_len(seed, index),
                bytes.len(),
                difference(&bytes, &content(seed ^ 1, index, small_len(seed, index)))
            )),
            Err(error) => broken.push(format!("{name} was synced: {error}")),
        }
    }
    counts.insert("synced", synced.len());

    // Not synced: absent, or right as far as it goes.
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let (kind, rest) = name.split_at(1);
        let Ok(index) = rest.parse::<u64>() else { continue };
        let expected = match kind {
            "s" if !synced.contains(&index) => content(seed ^ 1, index, small_len(seed, index)),
            "c" => content(seed ^ 2, index, copied_len(seed, index)),
            _ => continue,
        };
        match fs::read(dir.join(&name)) {
            Ok(bytes) if expected.starts_with(&bytes) => {}
            Ok(bytes) => broken.push(format!("{name}, not synced, {}", difference(&bytes, &expected))),
            Err(error) => broken.push(format!("{name}: {error}")),
        }
        *counts.entry("not synced").or_default() += 1;
    }

    // Replaced by rename: one whole version, the acknowledged one or the one under way.
    let versions = of("v");
    match (fs::read(dir.join("v")), versions.last()) {
        (Ok(bytes), last) if bytes.len() >= 8 => {
            let index = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
            if last.is_some_and(|&last| index < last || index > last + 1) {
                broken.push(format!("v is version {index}, acknowledged was {last:?}"));
            }
            if bytes[8..] != content(seed ^ 3, index, version_len(seed, index) - 8) {
                broken.push(format!("v is torn: version {index} with {} bytes", bytes.len()));
            }
        }
        (Ok(bytes), _) => broken.push(format!("v is torn: {} bytes", bytes.len())),
        (Err(error), Some(last)) => broken.push(format!("v had version {last}: {error}")),
        (Err(_), None) => {}
    }
    counts.insert("versions", versions.len());

    // Appended: every acknowledged record, and no wrong byte.
    let appended = of("a").last().map_or(0, |last| last + 1);
    let bytes = fs::read(dir.join("a")).unwrap_or_default();
    if bytes.len() < appended as usize * APPENDED {
        broken.push(format!("a has {} bytes, {appended} records of {APPENDED} were synced", bytes.len()));
    }
    for (index, record) in bytes.chunks(APPENDED).enumerate() {
        if !content(seed ^ 4, index as u64, APPENDED).starts_with(record) {
            broken.push(format!(
                "a is wrong in record {index} of {}, {appended} were synced",
                bytes.len() / APPENDED
            ));
            break;
        }
    }
    counts.insert("appended", appended as usize);

    println!("{counts:?}");
    for line in broken.iter().take(20) {
        println!("BROKEN: {line}");
    }
    if !broken.is_empty() {
        println!("{} promises broken in {}", broken.len(), dir.display());
        std::process::exit(1);
    }
}

/// Where two byte strings part.
fn difference(is: &[u8], should: &[u8]) -> String {
    match is.iter().zip(should).position(|(a, b)| a != b) {
        Some(at) => {
            let zeros = is[at..].iter().take_while(|&&byte| byte == 0).count();
            format!("differs from byte {at} of {} ({zeros} zeros there)", is.len())
        }
        None => format!("ends at {} of {}", is.len(), should.len()),
    }
}

/// Files in folders of 100, three deep; every tenth is a hard link to an earlier one, every fifteenth a symlink.
fn tree(dir: &Path, count: u64, seed: u64) -> io::Result<()> {
    let path = |index: u64| dir.join(format!("{}/{}/f{index}", index / 10_000, index / 100 % 100));
    for index in 0..count {
        let file = path(index);
        if index % 100 == 0 {
            fs::create_dir_all(file.parent().expect("a folder"))?;
        }
        if index % 15 == 14 {
            symlink(format!("../target of {index}"), &file)?;
            continue;
        }
        if index % 10 == 9 {
            // To the last plain file before it.
            let target = (0..index).rev().map(path).find(|path| path.is_file() && !path.is_symlink());
            fs::hard_link(target.expect("the first file is a plain one"), &file)?;
            continue;
        }
        // Most files are small; one in fifty is not.
        let most = if index % 50 == 7 { 300_000 } else { 9_000 };
        let mut out = File::create(&file)?;
        out.write_all(&content(seed, index, (mix(seed, index) % most) as usize))?;
        let mode = [0o644, 0o600, 0o755, 0o444, 0o4755, 0o660, 0o1644][(index % 7) as usize];
        out.set_permissions(Permissions::from_mode(mode))?;
        let at = UNIX_EPOCH + Duration::new(1_000_000_000 + index, (mix(seed, index) % 1_000_000_000) as u32);
        out.set_times(FileTimes::new().set_modified(at).set_accessed(at))?;
    }
    Ok(())
}

fn micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()
}

/// Alternates appends of small data, rewrites of a page in the middle, and new files.
fn fsyncs(path: &Path, count: u64, times: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path)?;
    file.write_all(&content(1, 0, 1 << 20))?;
    file.sync_all()?;
    let mut out = File::create(times)?;
    for index in 0..count {
        let bytes = content(1, index, 4096);
        let synced: File;
        let begin = micros();
        match index % 4 {
            0 | 1 => {
                file.seek(SeekFrom::End(0))?;
                file.write_all(&bytes[..700])?;
                synced = file.try_clone()?;
            }
            2 => {
                file.write_all_at(&bytes, index % 256 * 4096)?;
                synced = file.try_clone()?;
            }
            _ => {
                synced = File::create(path.with_extension(index.to_string()))?;
                (&synced).write_all(&bytes)?;
            }
        }
        if index % 2 == 0 {
            synced.sync_all()?
        } else {
            synced.sync_data()?
        }
        writeln!(out, "{begin} {}", micros())?;
    }
    Ok(())
}

/// One system call of the daemon, by strace.
struct Call {
    flush: bool,
    device: PathBuf,
    begin: u128,
    end: u128,
}

/// Reads `PID SECONDS.MICROS name(fd<path>...) = 0 <SECONDS>`, whole or split at `<unfinished ...>`.
fn calls(text: &str, dir: &str) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut open: BTreeMap<&str, Call> = BTreeMap::new();
    let at = |text: &str| -> Option<u128> {
        let (seconds, micros) = text.split_once('.')?;
        Some(seconds.parse::<u128>().ok()? * 1_000_000 + micros.parse::<u128>().ok()?)
    };
    for line in text.lines() {
        let mut words = line.trim_start().splitn(2, ' ');
        let (Some(pid), Some(rest)) = (words.next(), words.next()) else { continue };
        let Some((time, rest)) = rest.trim_start().split_once(' ') else { continue };
        let Some(time) = at(time) else { continue };
        if rest.starts_with("<...") {
            if let Some(mut call) = open.remove(pid)
                && !rest.contains("= -1")
            {
                call.end = time;
                calls.push(call);
            }
            continue;
        }
        let Some((name, args)) = rest.split_once('(') else { continue };
        let Some(path) = args.split_once('<').and_then(|(_, path)| path.split_once('>')) else { continue };
        if !path.0.starts_with(dir) {
            continue;
        }
        let flush = matches!(name, "fdatasync" | "fsync");
        let mut call = Call { flush, device: path.0.into(), begin: time, end: time };
        if rest.ends_with("<unfinished ...>") {
            open.insert(pid, call);
        } else if !rest.contains(" = -1 ") {
            let took = rest.rsplit_once('<').and_then(|(_, took)| at(took.trim_end_matches('>')));
            call.end += took.unwrap_or(0);
            calls.push(call);
        }
    }
    calls
}

/// For every span: on enough devices a write ended, then a flush began and ended, all within the span.
fn flushes(strace: &Path, times: &Path, dir: &str, members: usize) {
    let mut text = Vec::new();
    File::open(strace).and_then(|mut file| file.read_to_end(&mut text)).expect("the trace");
    let calls = calls(&String::from_utf8_lossy(&text), dir);
    let times = fs::read_to_string(times).expect("the times");
    let (mut good, mut bad, mut flushed) = (0, 0, 0);
    for line in times.lines() {
        let (begin, end) = line.split_once(' ').expect("two times");
        let (begin, end): (u128, u128) = (begin.parse().expect("a time"), end.parse().expect("a time"));
        let within: Vec<&Call> = calls.iter().filter(|call| call.begin >= begin && call.end <= end).collect();
        flushed += within.iter().filter(|call| call.flush).count();
        let devices: BTreeSet<&Path> = within
            .iter()
            .filter(|flush| flush.flush)
            .filter(|flush| {
                within
                    .iter()
                    .any(|write| !write.flush && write.device == flush.device && write.end <= flush.begin)
            })
            .map(|flush| flush.device.as_path())
            .collect();
        if devices.len() >= members {
            good += 1;
        } else {
            bad += 1;
            if bad <= 5 {
                println!("the fsync of {begin} to {end}: flushed after a write: {devices:?}");
            }
        }
    }
    let seen = calls.iter().filter(|call| call.flush).count();
    println!("{good} of {} fsyncs had writes and then flushes on {members} devices or more", good + bad);
    println!("{seen} flushes in all, {flushed} of them within an fsync");
    if bad > 0 || good == 0 {
        std::process::exit(1);
    }
}
