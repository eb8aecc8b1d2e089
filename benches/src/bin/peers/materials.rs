//! Data to store: made once, in the folder below, from files that a Debian machine has.

use larder_benches::MIB;
use larder_benches::content::Content;
use larder_benches::tree::Tree;
use larder_device::{Entropy, SeededEntropy};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Files larger than this are left out of the tree, bytes: a few would be all of it.
const LARGEST: u64 = 16 << 20;

/// Random bytes, a tree of files and a git repository.
pub struct Materials {
    /// 64 MiB that no codec makes smaller.
    pub random: Vec<u8>,
    /// Real files and incompressible ones.
    pub tree: Tree,
    /// A repository with one commit.
    pub repository: Tree,
}

/// Adds incompressible files until the tree has `limit` bytes.
fn fill_randomly(tree: &mut Tree, random: &[u8], limit: u64) {
    let rng = SeededEntropy::new(11);
    let folder = tree.path.join("random");
    fs::create_dir(&folder).expect("our folder");
    while tree.bytes < limit {
        // From 16 KiB to 2 MiB, as many of each magnitude.
        let len = (16 << 10 << (rng.next_u64() % 7)) + (rng.next_u64() % 16384) as usize;
        let at = rng.next_u64() as usize % (random.len() - len);
        fs::write(folder.join(format!("file{:05}", tree.files)), &random[at..at + len]).expect("our file");
        tree.files += 1;
        tree.bytes += len as u64;
    }
}

impl Materials {
    /// Makes them in `folder`: a tree of `tree_mib` mebibytes, a repository of `repository_mib`.
    pub fn new(folder: &Path, tree_mib: usize, repository_mib: usize) -> Self {
        let random = Content::Random.bytes(64 * MIB);
        let mut tree = Tree::new(folder.join("tree"));
        let mib = |mib: usize| (mib * MIB) as u64;
        for (i, from) in ["/usr/include", "/usr/share", "/usr/lib"].iter().enumerate() {
            let to = tree.path.join(&from[1..]);
            tree.fill(Path::new(from), &to, LARGEST, mib(tree_mib) * (i as u64 + 1) / 4);
        }
        fill_randomly(&mut tree, &random, mib(tree_mib));
        let mut repository = Tree::new(folder.join("repository"));
        let to = repository.path.clone();
        repository.fill(Path::new("/usr/include"), &to, LARGEST, mib(repository_mib));
        let steps = [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "All"]];
        for arguments in steps.iter().filter(|_| repository.files > 0) {
            let status = git().arg("-C").arg(&repository.path).args(*arguments).status().expect("git runs");
            assert!(status.success(), "git {arguments:?}");
        }
        Self { random, tree, repository }
    }
}

/// git without anybody's settings.
pub fn git() -> Command {
    let mut git = Command::new("git");
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    for (name, value) in [("NAME", "Bench"), ("EMAIL", "bench@example.org")] {
        git.env(format!("GIT_AUTHOR_{name}"), value).env(format!("GIT_COMMITTER_{name}"), value);
    }
    git
}
