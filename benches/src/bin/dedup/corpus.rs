//! The corpus: real files, the same with edits and insertions, a tar and a disk image of them, and noise.
//!
//! The same bytes each time on a machine whose `/usr` is the same: whatever is random comes from seeds, and times,
//! owners and identifiers are fixed.

use larder_benches::MIB;
use larder_benches::content::Content;
use larder_benches::peer::run;
use larder_benches::tree::Tree;
use larder_device::{Entropy, SeededEntropy};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files larger than this are left out, bytes: a few would be all of it.
const LARGEST: u64 = 8 << 20;
/// One file of so many gets an insertion, and one of so many is overwritten in the middle.
const INSERTED: u64 = 3;
const OVERWRITTEN: u64 = 5;
/// Time of everything in tar and image: seconds since 1970.
const WHEN: &str = "1700000000";
const IDENTIFIER: &str = "11111111-2222-4333-8444-555555555555";

/// The corpus, in a folder.
pub struct Corpus {
    /// All of it.
    pub path: PathBuf,
    /// The real files alone.
    pub tree: Tree,
    /// Bytes of everything.
    pub bytes: u64,
}

impl Corpus {
    /// Makes it in `folder`, of about `mib` mebibytes: four times the real files, and a quarter of them noise.
    pub fn new(folder: &Path, mib: usize) -> Self {
        let path = folder.join("corpus");
        let limit = (mib * MIB) as u64 * 4 / 17;
        let mut tree = Tree::new(path.join("tree"));
        for (i, from) in ["/usr/share", "/usr/lib"].iter().enumerate() {
            let to = tree.path.join(&from[1..]);
            tree.fill(Path::new(from), &to, LARGEST, limit * (i as u64 + 1) / 2);
        }
        let rng = SeededEntropy::new(5);
        let edited = path.join("edited");
        edit(&tree.path, &edited, &rng);
        let (tar, image) = (path.join("tree.tar"), path.join("tree.ext4"));
        let mut pack = Command::new("tar");
        pack.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{WHEN}"));
        let packed = pack.arg("-cf").arg(&tar).arg("-C").arg(&tree.path).arg(".").status();
        assert!(packed.expect("tar runs").success(), "tar");
        let size = fs::metadata(&tar).expect("it was just made").len() * 12 / 10 + (16 << 20);
        larder_benches::device::sparse_file(&image, size);
        let mut format = Command::new("mkfs.ext4");
        format.env("E2FSPROGS_FAKE_TIME", WHEN).args(["-q", "-F", "-m", "0", "-U", IDENTIFIER]);
        let seed = format!("hash_seed={IDENTIFIER},lazy_itable_init=0");
        let formatted =
            format.args(["-O", "^has_journal", "-E", &seed]).arg("-d").arg(&tree.path).arg(&image).output();
        let formatted = formatted.expect("mkfs.ext4 runs");
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let noise = Content::Random.bytes((limit / 4) as usize);
        fs::write(path.join("noise"), noise).expect("our folder");
        let told = run("du", ["-sb", path.to_str().expect("our path")]);
        let bytes =
            told.split_whitespace().next().and_then(|word| word.parse().ok()).expect("du tells a number");
        Self { path, tree, bytes }
    }
}

/// Copies a tree; some bytes are inserted into some files, and some written over in others.
fn edit(from: &Path, to: &Path, rng: &SeededEntropy) {
    fs::create_dir_all(to).expect("our folder");
    let mut entries: Vec<_> = fs::read_dir(from).expect("our folder").flatten().map(|e| e.path()).collect();
    entries.sort_unstable();
    for entry in entries {
        let target = to.join(entry.file_name().expect("it has a name"));
        if entry.is_dir() {
            edit(&entry, &target, rng);
            continue;
        }
        let mut content = fs::read(&entry).expect("our file");
        let at = rng.next_u64() as usize % (content.len() + 1);
        let piece: Vec<u8> = (0..1 + rng.next_u64() % 512).map(|_| rng.next_u64() as u8).collect();
        if rng.next_u64().is_multiple_of(INSERTED) {
            content.splice(at..at, piece);
        } else if rng.next_u64().is_multiple_of(OVERWRITTEN) {
            let end = (at + piece.len()).min(content.len());
            content[at..end].copy_from_slice(&piece[..end - at]);
        }
        File::create(&target).and_then(|mut file| file.write_all(&content)).expect("our file");
    }
}
