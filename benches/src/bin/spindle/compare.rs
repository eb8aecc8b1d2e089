//! fio against the model, as root: it says whether this machine can play the disk.

use super::file::{self, DiskFile};
use larder_device::{Disk, DiskShape, DiskWork, Entropy, SeededEntropy};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 50 << 30;
const PAGE: u64 = 4096;
/// Of the model's figure.
const TOLERANCE: f64 = 0.2;

/// Reads a second of some disks together, that many under way, each of them sent to the next disk.
fn modelled(shape: DiskShape, disks: usize, depth: u64) -> f64 {
    const COUNT: u64 = 5000;
    let mut all: Vec<_> = (0..disks).map(|_| Disk::new(shape)).collect();
    let rng = SeededEntropy::new(7);
    let (mut now, mut asked, mut done) = (Duration::ZERO, 0, 0);
    while done < COUNT {
        while asked < done + depth {
            let offset = rng.next_u64() % (SIZE / PAGE) * PAGE;
            all[asked as usize % disks].ask(now, asked, DiskWork::Read { offset, len: PAGE });
            asked += 1;
        }
        now = all.iter().filter_map(Disk::next).min().expect("something is under way").max(now);
        done += all.iter_mut().map(|disk| disk.answered(now).len() as u64).sum::<u64>();
    }
    COUNT as f64 / now.as_secs_f64()
}

/// Random reads a second, as fio counts them.
fn fio(disks: &[PathBuf], depth: u64) -> Result<f64, String> {
    let names = disks.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":");
    let output = Command::new("fio")
        .args([
            "--name=reads",
            "--rw=randread",
            "--bs=4k",
            "--direct=1",
            "--ioengine=libaio",
            "--norandommap",
        ])
        .args(["--time_based", "--runtime=10", "--output-format=json", "--allow_file_create=0"])
        .args([format!("--filename={names}"), format!("--iodepth={depth}"), format!("--filesize={SIZE}")])
        .output()
        .map_err(|error| format!("fio: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = || format!("fio: {text}{}", String::from_utf8_lossy(&output.stderr));
    let json = text.find('{').map(|at| &text[at..]).filter(|_| output.status.success()).ok_or_else(failed)?;
    let told: serde_json::Value = serde_json::from_str(json).map_err(|error| format!("fio: {error}"))?;
    told["jobs"][0]["read"]["iops"].as_f64().ok_or_else(failed)
}

/// Unmounted whatever happens.
struct Mounted(PathBuf, Arc<DiskFile>);

impl Drop for Mounted {
    fn drop(&mut self) {
        file::unmount(&self.0);
    }
}

/// Prints what fio measures and what the model says; whether they agree, in runs that are not void.
///
/// # Errors
/// When it cannot be measured.
pub fn compare(shape: DiskShape) -> Result<bool, String> {
    let told = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(told)?;
    let mut agrees = true;
    for (disks, depth) in [(1, 1), (2, 16)] {
        let expected = modelled(shape, disks, depth);
        let mut mounts = Vec::new();
        for i in 0..disks {
            let (bytes, at) = (folder.path().join(format!("{i}.img")), folder.path().join(i.to_string()));
            std::fs::create_dir_all(&at).map_err(told)?;
            let disk = Arc::new(DiskFile::open(&bytes, "disk", Some(SIZE), shape)?);
            let served = file::mount(&disk, &at)?;
            mounts.push((Mounted(at, disk), served));
        }
        let paths: Vec<_> = mounts.iter().map(|(mounted, _)| mounted.0.join("disk")).collect();
        let measured = fio(&paths, depth)?;
        let mut all = Vec::new();
        for (mounted, served) in mounts {
            let disk = Arc::clone(&mounted.1);
            drop(mounted);
            served.join().map_err(|error| error.to_string())?;
            all.extend(disk.close());
        }
        let kept: Vec<_> = all.iter().map(ToString::to_string).collect();
        println!(
            "{disks} disks, {depth} at once: {measured:.0} a second of {expected:.0}; {}",
            kept.join("; ")
        );
        agrees &= (measured / expected - 1.0).abs() < TOLERANCE && !all.iter().any(|kept| kept.is_void());
    }
    Ok(agrees)
}
