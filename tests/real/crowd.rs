//! A crowd: many programs, many open files, many names; and one who holds files open while their daemon dies.
//!
//! ```text
//! crowd hold DIR               holds files of DIR open, says `ready`, waits for a line, then tries to use them:
//!                              prints what each try came to
//! crowd open DIR COUNT         makes COUNT files, has all of them open at once, reads and rewrites through all
//! crowd work DIR SEED OPS      OPS random operations in a folder of its own, held against a model, and beside the
//!                              others on what they share: a counter under flock, a log opened for appending
//! crowd sums DIR PROGRAMS OPS  what PROGRAMS of `work` must have left in what they share
//! crowd names DIR COUNT        COUNT names in one folder: made, listed, asked for their attributes, removed;
//!                              prints the times
//! ```

#![expect(clippy::disallowed_methods, reason = "a program of its own, on a real machine's clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Of open(2).
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    match args[..] {
        ["hold", dir] => hold(Path::new(dir)).unwrap(),
        ["open", dir, count] => open(Path::new(dir), number(count)).unwrap(),
        ["work", dir, seed, ops] => work(Path::new(dir), number(seed), number(ops)).unwrap(),
        ["sums", dir, programs, ops] => sums(Path::new(dir), number(programs), number(ops)).unwrap(),
        ["names", dir, count] => names(Path::new(dir), number(count)).unwrap(),
        _ => panic!("see the head of crowd.rs"),
    }
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len / 8 + 1).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(len as usize);
        bytes
    }
}

fn hold(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let path = dir.join("held");
    fs::write(&path, vec![7; 8 << 20])?;
    // Data in the kernel's cache can be read as long as the file is open; this descriptor bypasses the cache.
    let mut reads = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path)?;
    reads.read_exact(&mut [0; 4096])?;
    let mut writes = OpenOptions::new().append(true).create(true).open(dir.join("written"))?;
    writes.write_all(b"before")?;
    let folder = File::open(dir)?;
    std::env::set_current_dir(dir)?;
    println!("ready");
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let tell = |what: &str, result: io::Result<()>| {
        let came_to = match result {
            Ok(()) => "fine".to_owned(),
            Err(error) if error.raw_os_error() == Some(107) => "ENOTCONN".to_owned(),
            Err(error) => error.to_string(),
        };
        println!("{what}: {came_to}");
    };
    tell("write", writes.write_all(b"after"));
    tell("fsync", writes.sync_all());
    tell("read", reads.seek(SeekFrom::Start(7 << 20)).and_then(|_| reads.read_exact(&mut [0; 4096])));
    tell("truncate", writes.set_len(3));
    tell("fsync of the folder", folder.sync_all());
    tell("new file in the working directory", File::create("new").map(drop));
    tell(
        "list of the working directory",
        fs::read_dir(".").and_then(|mut list| list.try_for_each(|e| e.map(drop))),
    );
    Ok(())
}

fn open(dir: &Path, count: u64) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let content = |n: u64, turn: u64| Rng(n << 8 | turn).bytes(200 + n % 5000);
    let path = |n: u64| dir.join(format!("{}/file{n}", n % 100));
    for n in 0..count.min(100) {
        fs::create_dir_all(path(n).parent().expect("it is in a folder"))?;
    }
    let start = Instant::now();
    let mut files = Vec::new();
    for n in 0..count {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path(n))?;
        file.write_all(&content(n, 0))?;
        files.push(file);
    }
    println!("{count} files open after {:.1?}", start.elapsed());
    for turn in 0..2 {
        let start = Instant::now();
        for (n, file) in (0..).zip(&files) {
            let expected = content(n, turn);
            let mut found = vec![0; expected.len() + 1];
            let len = file.read_at(&mut found, 0)?;
            assert!(found[..len] == expected, "file {n} is not what was written");
            file.write_all_at(&content(n, turn + 1), 0)?;
            // Every third is removed and goes on being used.
            if turn == 0 && n % 3 == 0 {
                fs::remove_file(path(n))?;
            }
        }
        println!("read and rewritten in {:.1?}", start.elapsed());
    }
    drop(files);
    for n in (0..count).filter(|n| n % 3 != 0) {
        assert!(fs::read(path(n))? == content(n, 2), "file {n} after it was closed");
    }
    assert!((0..count).step_by(3).all(|n| !path(n).exists()));
    Ok(())
}

fn work(dir: &Path, seed: u64, ops: u64) -> io::Result<()> {
    let mine = dir.join(format!("program{seed}"));
    fs::create_dir_all(&mine)?;
    let mut rng = Rng(seed);
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for turn in 0..ops {
        let name = format!("f{}", rng.below(24));
        let path = mine.join(&name);
        match rng.below(12) {
            0..=2 => {
                let len = rng.below(40_000);
                let bytes = rng.bytes(len);
                fs::write(&path, &bytes)?;
                model.insert(name, bytes);
            }
            3..=4 => {
                let Some(bytes) = model.get_mut(&name) else { continue };
                let (at, len) = (rng.below(60_000) as usize, rng.below(20_000));
                let piece = rng.bytes(len);
                let file = OpenOptions::new().write(true).open(&path)?;
                file.write_all_at(&piece, at as u64)?;
                if rng.below(4) == 0 {
                    file.sync_all()?;
                }
                if !piece.is_empty() {
                    bytes.resize(bytes.len().max(at + piece.len()), 0);
                    bytes[at..at + piece.len()].copy_from_slice(&piece);
                }
            }
            5 => {
                let Some(bytes) = model.get_mut(&name) else { continue };
                let len = rng.below(50_000);
                OpenOptions::new().write(true).open(&path)?.set_len(len)?;
                bytes.resize(len as usize, 0);
            }
            6 => {
                let to = format!("f{}", rng.below(24));
                if let Some(bytes) = model.remove(&name) {
                    fs::rename(&path, mine.join(&to))?;
                    model.insert(to, bytes);
                }
            }
            7 => {
                if model.remove(&name).is_some() {
                    fs::remove_file(&path)?;
                }
            }
            8..=9 => match model.get(&name) {
                Some(bytes) => assert!(fs::read(&path)? == *bytes, "{path:?} in turn {turn}"),
                None => assert!(!path.exists(), "{path:?} in turn {turn}"),
            },
            10 => count_up(&dir.join("counter"))?,
            _ => {
                let mut log = OpenOptions::new().append(true).create(true).open(dir.join("log"))?;
                log.write_all(format!("{seed} {turn}\n").as_bytes())?;
            }
        }
    }
    // Changes that do not depend on chance, so that the sums are known.
    count_up(&dir.join("rounds"))?;
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("rolls"))?
        .write_all(format!("{seed:08}\n").as_bytes())?;
    let found: BTreeSet<_> = fs::read_dir(&mine)?
        .map(|entry| Ok(entry?.file_name().into_string().expect("text")))
        .collect::<io::Result<_>>()?;
    assert_eq!(found, model.keys().cloned().collect());
    for (name, bytes) in &model {
        assert!(fs::read(mine.join(name))? == *bytes, "{name} at the end");
    }
    Ok(())
}

/// Adds one to the number in a file that others count up as well.
fn count_up(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let number = text.trim().parse::<u64>().unwrap_or(0) + 1;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(format!("{number}\n").as_bytes())?;
    file.unlock()
}

fn sums(dir: &Path, programs: u64, ops: u64) -> io::Result<()> {
    let number =
        |name: &str| fs::read_to_string(dir.join(name)).map(|text| text.trim().parse::<u64>().expect(name));
    assert_eq!(number("rounds")?, programs, "each program counted itself once");
    let rolls = fs::read_to_string(dir.join("rolls"))?;
    let rolls: BTreeSet<u64> = rolls.lines().map(|line| line.parse().expect("a whole line")).collect();
    assert_eq!(rolls.len() as u64, programs, "each program appended one line");
    // A line is whole, and one program's come in its order.
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for line in fs::read_to_string(dir.join("log"))?.lines() {
        let (seed, turn) = line.split_once(' ').expect("a whole line");
        let (seed, turn) = (seed.parse().expect("a whole line"), turn.parse().expect("a whole line"));
        assert!(turn < ops && last.insert(seed, turn).is_none_or(|before| before < turn), "{line}");
    }
    println!("counter {}, {} programs in the log", number("counter")?, last.len());
    Ok(())
}

fn names(dir: &Path, count: u64) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let path = |n: u64| -> PathBuf { dir.join(format!("a name among many {n:07}")) };
    let mut times = Vec::new();
    let mut timed =
        |what: &str, start: Instant| times.push(format!("{what} {:.1} s", start.elapsed().as_secs_f64()));
    let start = Instant::now();
    for n in 0..count {
        File::create_new(path(n))?;
    }
    timed("made in", start);
    let start = Instant::now();
    let mut seen = vec![false; count as usize];
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let n: usize = std::str::from_utf8(&name.as_bytes()[name.len() - 7..]).unwrap().parse().unwrap();
        assert!(!std::mem::replace(&mut seen[n], true), "{name:?} was listed twice");
    }
    assert!(seen.iter().all(|seen| *seen), "a name was not listed");
    timed("listed in", start);
    let start = Instant::now();
    let mut inodes = BTreeSet::new();
    for n in 0..count {
        assert!(inodes.insert(fs::symlink_metadata(path(n))?.ino()), "two files of one number");
    }
    timed("asked in", start);
    let start = Instant::now();
    for n in 0..count {
        fs::remove_file(path(n))?;
    }
    timed("removed in", start);
    assert!(fs::read_dir(dir)?.next().is_none());
    fs::remove_dir(dir)?;
    println!("{}", times.join(", "));
    Ok(())
}
