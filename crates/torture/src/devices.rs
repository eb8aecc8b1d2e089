//! The files that are a pool's devices, and damage to them.

use crate::failure::{Failure, Outcome};
use crate::plan::DEVICE_MIB;
use crate::random::Rng;
use rustix::fs::{SeekFrom, seek};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
/// Least unit of what is zeroed: a sector.
const SECTOR: u64 = 4096;

/// A place in the pool, and the file that stands in it.
#[derive(Debug)]
struct Seat {
    path: PathBuf,
    /// Of its control file.
    lines: Vec<String>,
    is_away: bool,
}

/// The devices of a pool.
pub struct Devices {
    folder: PathBuf,
    aside: PathBuf,
    seats: BTreeMap<usize, Seat>,
    made: u32,
    kept: Option<PathBuf>,
}

impl Devices {
    /// So many, in `folder`; `aside` is for those that no host finds.
    ///
    /// # Errors
    /// When the files cannot be made.
    pub fn make(folder: &Path, aside: &Path, count: usize) -> Outcome<Self> {
        for dir in [folder, aside] {
            fs::create_dir(dir).map_err(|error| failed(dir, &error))?;
        }
        let (folder, aside) = (folder.to_owned(), aside.to_owned());
        let mut devices = Self { folder, aside, seats: BTreeMap::new(), made: 0, kept: None };
        for seat in 0..count {
            let path = devices.another()?;
            devices.seats.insert(seat, Seat { path, lines: Vec::new(), is_away: false });
        }
        Ok(devices)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Paths of the seats' devices.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.seats.values().map(|seat| seat.path.as_path())
    }

    /// Path of a seat's device.
    pub fn path(&self, seat: usize) -> &Path {
        &self.seats[&seat].path
    }

    /// A new file for a device, that has no seat.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn another(&mut self) -> Outcome<PathBuf> {
        let path = self.folder.join(format!("device{:03}", self.made));
        self.made += 1;
        let made = File::create_new(&path).and_then(|file| file.set_len(DEVICE_MIB * MIB));
        made.map_err(|error| failed(&path, &error))?;
        Ok(path)
    }

    /// Another one takes the seat; who had it.
    pub fn seat(&mut self, seat: usize, path: PathBuf) -> PathBuf {
        let seat = self.seats.get_mut(&seat).expect("seats do not go");
        seat.lines.clear();
        std::mem::replace(&mut seat.path, path)
    }

    /// Removes the file of a device that is of no pool any more, and its control file.
    pub fn remove(&self, path: &Path) {
        let _ = fs::remove_file(control(path));
        let _ = fs::remove_file(path);
    }

    /// A line more in the control file of a seat's device.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn fail(&mut self, seat: usize, line: &str) -> Outcome<()> {
        let seat = self.seats.get_mut(&seat).expect("seats do not go");
        seat.lines.push(line.to_owned());
        let (path, new) = (control(&seat.path), self.aside.join("faults"));
        let text = seat.lines.join("\n") + "\n";
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(|error| failed(&path, &error))
    }

    /// All devices do what they are asked to from now on, and are where they belong.
    ///
    /// # Errors
    /// When one cannot be brought back.
    pub fn restore(&mut self) -> Outcome<()> {
        for seat in self.seats.values_mut() {
            seat.lines.clear();
            let _ = fs::remove_file(control(&seat.path));
            if std::mem::take(&mut seat.is_away) {
                let away = self.aside.join(seat.path.file_name().expect("devices have names"));
                fs::rename(away, &seat.path).map_err(|error| failed(&seat.path, &error))?;
            }
        }
        Ok(())
    }

    /// Nobody finds the device until all are restored.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn hide(&mut self, seat: usize) -> Outcome<()> {
        let seat = self.seats.get_mut(&seat).expect("seats do not go");
        if !seat.is_away {
            let away = self.aside.join(seat.path.file_name().expect("devices have names"));
            fs::rename(&seat.path, away).map_err(|error| failed(&seat.path, &error))?;
            seat.is_away = true;
        }
        Ok(())
    }

    /// Two devices have each other's names.
    ///
    /// # Errors
    /// When they cannot be renamed.
    pub fn swap(&mut self, a: usize, b: usize) -> Outcome<()> {
        if self.seats[&a].is_away || self.seats[&b].is_away {
            return Ok(());
        }
        let (first, second) = (self.seats[&a].path.clone(), self.seats[&b].path.clone());
        let third = self.aside.join("swapped");
        let renamed = fs::rename(&first, &third)
            .and_then(|()| fs::rename(&second, &first))
            .and_then(|()| fs::rename(&third, &second));
        renamed.map_err(|error| failed(&first, &error))?;
        self.seats.get_mut(&a).expect("seats do not go").path = second;
        self.seats.get_mut(&b).expect("seats do not go").path = first;
        Ok(())
    }

    /// Keeps a copy of a device that nobody has open.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn keep(&mut self, seat: usize) -> Outcome<()> {
        let (from, to) = (&self.seats[&seat].path, self.aside.join("kept"));
        copy_data(from, &to).map_err(|error| failed(from, &error))?;
        self.kept = Some(to);
        Ok(())
    }

    /// The device is what was kept.
    ///
    /// # Errors
    /// When it cannot be put there.
    pub fn put_past(&mut self, seat: usize) -> Outcome<()> {
        let seat = &self.seats[&seat];
        match self.kept.take() {
            Some(kept) if !seat.is_away => {
                fs::rename(kept, &seat.path).map_err(|error| failed(&seat.path, &error))
            }
            _ => Ok(()),
        }
    }

    /// Flips so many bits where the device holds something; how many were.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flip(&self, seat: usize, bits: u32, seed: u64) -> Outcome<u64> {
        let rng = Rng::new(&[seed]);
        self.damage(seat, |file, data| {
            let all: u64 = data.iter().map(|range| range.end - range.start).sum();
            for _ in 0..if all > 0 { bits } else { 0 } {
                let at = place(data, rng.below(all));
                let mut byte = [0];
                file.read_exact_at(&mut byte, at)?;
                file.write_all_at(&[byte[0] ^ (1 << rng.below(8))], at)?;
            }
            Ok(u64::from(bits))
        })
    }

    /// Zeroes so many ranges of up to 64 KiB where the device holds something; how many bytes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn zero(&self, seat: usize, ranges: u32, seed: u64) -> Outcome<u64> {
        let rng = Rng::new(&[seed]);
        self.damage(seat, |file, data| {
            let all: u64 = data.iter().map(|range| range.end - range.start).sum();
            let mut zeroed = 0;
            for _ in 0..if all > 0 { ranges } else { 0 } {
                let at = place(data, rng.below(all)) / SECTOR * SECTOR;
                let len = SECTOR * (1 + rng.below(16));
                let end = data.last().map_or(0, |range| range.end);
                let len = len.min(end.saturating_sub(at));
                file.write_all_at(&vec![0; len as usize], at)?;
                zeroed += len;
            }
            Ok(zeroed)
        })
    }

    /// Zeroes that share (of 1000) of all pieces of 64 KiB that hold something; how many bytes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn ruin(&self, seat: usize, share: u64, seed: u64) -> Outcome<u64> {
        let rng = Rng::new(&[seed]);
        self.damage(seat, |file, data| {
            let mut zeroed = 0;
            for range in data {
                let mut at = range.start;
                while at < range.end {
                    let len = (64 << 10).min(range.end - at);
                    if rng.below(1000) < share {
                        file.write_all_at(&vec![0; len as usize], at)?;
                        zeroed += len;
                    }
                    at += len;
                }
            }
            Ok(zeroed)
        })
    }

    fn damage(
        &self,
        seat: usize,
        does: impl FnOnce(&File, &[Range<u64>]) -> io::Result<u64>,
    ) -> Outcome<u64> {
        let seat = &self.seats[&seat];
        if seat.is_away {
            return Ok(0);
        }
        let run = || {
            let file = OpenOptions::new().read(true).write(true).open(&seat.path)?;
            let len = file.metadata()?.len();
            // Labels and roots are at both ends. Those of many devices are harmed by other means.
            let data: Vec<_> = data(&file, len)?
                .into_iter()
                .map(|range| range.start.max(MIB)..range.end.min(len - MIB))
                .filter(|range| range.start < range.end)
                .collect();
            let done = does(&file, &data)?;
            // Later, what is in memory would go over what was healed meanwhile.
            file.sync_data()?;
            Ok(done)
        };
        run().map_err(|error: io::Error| failed(&seat.path, &error))
    }
}

/// Where a file holds something.
fn data(file: &File, len: u64) -> io::Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match seek(file, SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => break,
            start => start?,
        };
        at = seek(file, SeekFrom::Hole(start))?;
        found.push(start..at);
    }
    Ok(found)
}

/// The byte of that number of all in the ranges.
fn place(data: &[Range<u64>], mut nth: u64) -> u64 {
    for range in data {
        let len = range.end - range.start;
        if nth < len {
            return range.start + nth;
        }
        nth -= len;
    }
    unreachable!("the number is below the sum")
}

/// Copies a file with its holes.
fn copy_data(from: &Path, to: &Path) -> io::Result<()> {
    let (source, target) = (File::open(from)?, File::create(to)?);
    let len = source.metadata()?.len();
    target.set_len(len)?;
    let mut buffer = vec![0; MIB as usize];
    for range in data(&source, len)? {
        let mut at = range.start;
        while at < range.end {
            let part = buffer.len().min((range.end - at) as usize);
            source.read_exact_at(&mut buffer[..part], at)?;
            target.write_all_at(&buffer[..part], at)?;
            at += part as u64;
        }
    }
    Ok(())
}

fn control(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".faults");
    name.into()
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}
