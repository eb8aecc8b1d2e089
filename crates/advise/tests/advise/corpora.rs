//! Corpora that look like those that people have, from seeds: what is sampled of them is held against all of them.

use larder_device::{Entropy, SeededEntropy};
use std::fs;
use std::path::Path;

pub const MIB: usize = 1 << 20;

/// A folder that goes with the test, in memory where there is such a place: a file system on a disk is slow to give the
/// room of files that were just deleted to others.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Kinds of corpora.
pub const KINDS: [&str; 9] =
    ["real", "images", "backups", "media", "sources", "unique", "duplicate", "tars", "mixed"];

/// Random numbers.
struct Rng(SeededEntropy);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end.max(1) as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.0.bytes(len)
    }

    /// Lines that a compressor shrinks, no two alike.
    fn text(&mut self, len: usize) -> Vec<u8> {
        const WORDS: [&str; 16] = [
            "let", "fn", "return", "value", "offset", "length", "if", "else", "record", "count", "for", "in",
            "match", "self", "block", "pool",
        ];
        let mut text = Vec::with_capacity(len + 64);
        while text.len() < len {
            let number = self.0.next_u64();
            for part in 0..6 {
                text.extend_from_slice(WORDS[(number >> (4 * part)) as usize % 16].as_bytes());
                text.push(b' ');
            }
            text.extend_from_slice(format!("{:x}\n", number >> 40).as_bytes());
        }
        text.truncate(len);
        text
    }
}

fn put(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A tree of small files.
fn tree(rng: &mut Rng, size: usize) -> Vec<(String, Vec<u8>)> {
    let (mut files, mut sum) = (Vec::new(), 0);
    while sum < size {
        let most = 1 << (9 + rng.below(5));
        let len = 500 + rng.below(most);
        let bytes = if rng.below(5) == 0 { rng.bytes(len) } else { rng.text(len) };
        files.push((format!("d{}/f{}.rs", rng.below(20), files.len()), bytes));
        sum += len;
    }
    files
}

/// Some of the bytes are changed, in place or with others put in.
fn edit(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    let count = 1 + rng.below(200);
    let new = rng.bytes(count);
    if rng.below(2) == 0 {
        bytes.splice(at..at, new);
    } else {
        let end = (at + new.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&new[..end - at]);
    }
}

/// Writes a corpus of about `size` bytes.
pub fn write(kind: &str, seed: u64, size: usize, to: &Path) {
    let mut rng = Rng::new(seed ^ (KINDS.iter().position(|one| *one == kind).unwrap() as u64 * 7919));
    match kind {
        "media" | "unique" => {
            let mut sum = 0;
            for number in 0.. {
                let len = if kind == "media" {
                    2000 + rng.below(size / 3000)
                } else {
                    1000 + rng.below(size / 4000)
                };
                put(&to.join(format!("a{}/{number}.jpg", number % 7)), &rng.bytes(len));
                sum += len;
                if sum >= size {
                    break;
                }
            }
        }
        "duplicate" => {
            let copies = 2 + rng.below(4);
            let mut sum = 0;
            for number in 0.. {
                let len = 1000 + rng.below(size / 4000);
                let bytes = rng.bytes(len);
                for copy in 0..copies {
                    put(&to.join(format!("c{copy}/{number}.bin")), &bytes);
                }
                sum += len * copies;
                if sum >= size {
                    break;
                }
            }
        }
        "images" => {
            let machines = 4 + rng.below(6);
            let len = size / machines / 65536 * 65536;
            let mut template = rng.text(len / 3);
            template.extend(rng.bytes(len / 3));
            template.resize(len, 0);
            let edited = 1 + rng.below(30);
            for machine in 0..machines {
                let mut image = template.clone();
                for _ in 0..len * edited / 100 / 8192 {
                    let at = rng.below(len / 4096) * 4096;
                    let new = rng.bytes(8192);
                    let end = (at + 8192).min(len);
                    image[at..end].copy_from_slice(&new[..end - at]);
                }
                put(&to.join(format!("vm{machine}.img")), &image);
            }
        }
        "backups" => {
            let days = 3 + rng.below(5);
            let mut files = tree(&mut rng, size / days);
            for day in 0..days {
                for (name, bytes) in &files {
                    put(&to.join(format!("day{day}/{name}")), bytes);
                }
                for _ in 0..files.len() / 20 {
                    let file = rng.below(files.len());
                    edit(&mut rng, &mut files[file].1);
                }
            }
        }
        "sources" => {
            for (name, bytes) in tree(&mut rng, size) {
                put(&to.join(name), &bytes);
            }
        }
        "tars" => {
            let days = 3 + rng.below(4);
            let mut files = tree(&mut rng, size / days);
            for day in 0..days {
                let tar: Vec<u8> = files
                    .iter()
                    .flat_map(|(name, bytes)| {
                        let mut entry = name.clone().into_bytes();
                        entry.resize(512, 0);
                        entry.extend(bytes);
                        entry.resize(entry.len().next_multiple_of(512), 0);
                        entry
                    })
                    .collect();
                put(&to.join(format!("day{day}.tar")), &tar);
                for _ in 0..files.len() / 20 {
                    let file = rng.below(files.len());
                    edit(&mut rng, &mut files[file].1);
                }
            }
        }
        "mixed" => {
            for (at, part) in ["images", "backups", "media", "duplicate"].into_iter().enumerate() {
                write(part, seed ^ (at as u64 + 1) << 32, size / 4, &to.join(part));
            }
        }
        "real" => copy_real(Path::new("/usr/lib"), to, size, &mut rng),
        _ => unreachable!("{kind}"),
    }
}

/// Files of this machine, in an order that the seed says.
fn copy_real(from: &Path, to: &Path, size: usize, rng: &mut Rng) {
    let mut todo = vec![from.to_owned()];
    let mut left = size;
    while let Some(folder) = (!todo.is_empty()).then(|| todo.swap_remove(rng.below(todo.len()))) {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let mut entries: Vec<fs::DirEntry> = entries.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                todo.push(entry.path());
            } else if meta.is_file()
                && meta.len() as usize <= size / 1000
                && let Ok(bytes) = fs::read(entry.path())
            {
                let Ok(name) = entry.path().strip_prefix(from).map(Path::to_owned) else { continue };
                put(&to.join(name), &bytes);
                left = left.saturating_sub(bytes.len());
                if left == 0 {
                    return;
                }
            }
        }
    }
}
