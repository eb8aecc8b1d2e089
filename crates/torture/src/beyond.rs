//! More damage than the layout tolerates: files that are hit are named, all others read equal; then `larder repair`
//! saves what is left, and what it calls whole is.

use crate::command::pause;
use crate::failure::{Failure, Outcome};
use crate::layout::Layout;
use crate::model::{Frozen, Seen};
use crate::plan::Life;
use crate::random::Rng;
use crate::sight::{Look, look};
use crate::stage::{POOL, Stage};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Seconds until all that was found lost must be named.
const NAMED: u32 = 180;

/// Lives on beyond the end of a life.
///
/// # Errors
/// When something is not as it must be.
pub fn go_beyond(stage: &mut Stage<'_>, life: &Life) -> Outcome<()> {
    stage.export()?;
    ruin(stage, life)?;
    let folder = format!("fault:{}", stage.devices.folder().display());
    let import = stage.larder.run(&["pool", "import", "-d", &folder, POOL])?;
    if import.ok {
        let surveyed = survey(stage);
        if surveyed.is_err() {
            stage.evidence();
        }
        surveyed?;
        if !stage.larder.run(&["pool", "export", POOL])?.ok {
            stage.larder.must(&["pool", "export", "-f", POOL])?;
        }
    } else {
        stage.larder.note(&format!("no import beyond tolerance: {}", import.err.trim()));
        if import.err.trim().is_empty() {
            return Err(Failure::new("an import beyond tolerance failed without a word"));
        }
    }
    repair(stage).map_err(|failure| failure.when("repair"))
}

/// Shares of one device more than the layout tolerates become zeros, so that of stripes some hundredths are lost.
fn ruin(stage: &mut Stage<'_>, life: &Life) -> Outcome<()> {
    let rng = Rng::new(&[life.seed, 2]);
    let share = match life.layout.tolerates() {
        0 => 60,
        1 => 220,
        2 => 380,
        _ => 480,
    };
    let mut seats: Vec<usize> = (0..life.layout.devices()).collect();
    let count = life.layout.tolerates() + 1;
    // Of a raid10 those of two pairs would lose nothing.
    let first = if life.layout == Layout::Raid10 { 2 * rng.below(2) as usize } else { 0 };
    seats.rotate_left(first);
    for &seat in &seats[..count] {
        let zeroed = stage.devices.ruin(seat, share, rng.next())?;
        stage.larder.note(&format!("beyond: {zeroed} bytes of seat {seat} are zeros"));
        stage.tally.fault("beyond");
    }
    Ok(())
}

/// A head or a snapshot: where it is, and what it must hold.
struct Part {
    /// Prefix of names in the status.
    name: String,
    /// Prefix of numbers there, of files whose name is not known.
    number: String,
    top: PathBuf,
    frozen: Frozen,
}

fn parts(stage: &Stage<'_>) -> Vec<Part> {
    let mut parts = Vec::new();
    for lane in &stage.lanes {
        parts.push(Part {
            name: format!("{}/", lane.top().display()),
            number: format!("{}:<0x", lane.dataset()),
            top: lane.top().to_owned(),
            frozen: lane.frozen(),
        });
        for (name, frozen) in lane.snapshots() {
            parts.push(Part {
                name: format!("{}@{name}:/", lane.dataset()),
                number: format!("{}@{name}:<0x", lane.dataset()),
                top: lane.top().join(".zfs/snapshot").join(name),
                frozen: frozen.clone(),
            });
        }
    }
    parts
}

/// Looks at everything: readable files are right, others are named, and no others.
fn survey(stage: &mut Stage<'_>) -> Outcome<()> {
    let parts = parts(stage);
    let first = read_all(stage, &parts)?;
    // It meets what reads did not, and puts together in pieces what no read has as a whole.
    stage.larder.run(&["pool", "scrub", "-w", POOL])?;
    let hit = read_all(stage, &parts)?;
    let healed: usize = first.iter().zip(&hit).map(|(first, hit)| first.difference(hit).count()).sum();
    stage.larder.note(&format!("beyond: {healed} paths could be read after a scrub alone"));
    let mut waited = 0;
    loop {
        let status = stage.status()?;
        let named: BTreeSet<&str> =
            status["damaged"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let is_looking = named.iter().any(|line| line.contains("is being looked for"));
        let wrong = parts.iter().zip(&hit).find_map(|(part, hit)| misnamed(part, hit, &named));
        match wrong {
            None if !is_looking => break,
            Some(wrong) if waited >= NAMED => return Err(Failure::new(wrong)),
            None if waited >= NAMED => {
                return Err(Failure::new("what was found lost was not named in time"));
            }
            _ => {}
        }
        pause(Duration::from_secs(1));
        waited += 1;
    }
    let heads: usize = hit.iter().map(BTreeSet::len).sum();
    stage.tally.lost += heads as u64;
    stage.larder.note(&format!("beyond: {heads} paths cannot be read, and are named"));
    Ok(())
}

/// The paths of each part that cannot be read; all others are right.
fn read_all(stage: &mut Stage<'_>, parts: &[Part]) -> Outcome<Vec<BTreeSet<String>>> {
    let mut hit = Vec::new();
    for part in parts {
        let (failed, read) = readable(part)?;
        stage.tally.compared += read;
        hit.push(failed);
    }
    Ok(hit)
}

/// The paths of a part that cannot be read; all others are right. And how many bytes were read.
fn readable(part: &Part) -> Outcome<(BTreeSet<String>, u64)> {
    let Look { sight, failed, bytes } = match look(&part.top) {
        Ok(found) => found,
        Err((at, error)) => return Err(Failure::new(format!("{}: {error}", at.display()))),
    };
    let failed: BTreeSet<String> = failed.into_iter().collect();
    for (path, id) in part.frozen.files() {
        match sight.get(path) {
            Some(Seen::File { bytes: Some(bytes), .. }) => {
                let must = part.frozen.file(path).expect("it is one of its files");
                crate::model::equal(must, Some(bytes))
                    .map_err(|why| Failure::new(format!("{}{path} ({id}): {why}", part.name)))?;
            }
            Some(_) => {}
            None if is_below(path, &failed) => {}
            None => {
                return Err(Failure::new(format!("{}{path} is not there, and no error tells", part.name)));
            }
        }
    }
    let strange = sight.keys().find(|path| !part.frozen.has(path));
    match strange {
        Some(path) => Err(Failure::new(format!("{}{path} is there and must not be", part.name))),
        None => Ok((failed, bytes)),
    }
}

/// Whether an error was met there, or at a folder above.
fn is_below(path: &str, failed: &BTreeSet<String>) -> bool {
    failed.contains("") || failed.contains(path) || {
        let ends = path.match_indices('/').map(|(at, _)| at);
        ends.into_iter().any(|at| failed.contains(&path[..at]))
    }
}

/// A path that is hit and not named, or named and not hit.
fn misnamed(part: &Part, hit: &BTreeSet<String>, named: &BTreeSet<&str>) -> Option<String> {
    let own: BTreeSet<&str> = named.iter().filter_map(|line| line.strip_prefix(part.name.as_str())).collect();
    // Where a node is lost, what it held is named as that.
    let is_metadata_lost = named.iter().any(|line| line.contains("<metadata>"));
    let ids: BTreeMap<&str, u32> = part.frozen.files().collect();
    // A file that lost the name it was made by, and has another, is told by its number.
    let numbered = named.iter().filter(|line| line.starts_with(&part.number)).count();
    let mut nameless: BTreeSet<u32> = BTreeSet::new();
    for path in hit {
        let same = |other: &&str| ids.contains_key(other) && ids.get(other) == ids.get(path.as_str());
        if own.contains(path.as_str()) || own.iter().any(same) || is_metadata_lost {
            continue;
        }
        let id = ids.get(path.as_str());
        nameless.extend(id);
        if id.is_none() || nameless.len() > numbered {
            return Some(format!("{}{path} cannot be read, and is not named", part.name));
        }
    }
    // Of a file with several names one may be told, and another be hit.
    let hit_ids: BTreeSet<u32> = hit.iter().filter_map(|path| ids.get(path.as_str()).copied()).collect();
    for path in own {
        let is_hit = hit.contains(path) || ids.get(path).is_some_and(|id| hit_ids.contains(id));
        if !is_hit && !is_below(path, hit) && !part.name.contains('@') {
            return Some(format!("{}{path} is named, and can be read", part.name));
        }
    }
    None
}

/// Has `larder repair` save everything; files that it calls whole must be.
fn repair(stage: &mut Stage<'_>) -> Outcome<()> {
    let to = stage.devices.folder().with_file_name("saved");
    let (devices, target) = (stage.devices.folder().display().to_string(), to.display().to_string());
    let scratch = stage.devices.folder().with_file_name("aside").display().to_string();
    let words = [
        "repair",
        "-j",
        "-v",
        "--snapshots",
        "--scratch",
        &scratch,
        "--to",
        &target,
        "--pool",
        POOL,
        &devices,
    ];
    let said = stage.larder.run(&words)?;
    if !matches!(said.code, Some(0 | 1)) || said.out.trim().is_empty() {
        return Err(Failure::new(format!("it ended with {:?}: {}", said.code, said.err.trim())));
    }
    let report: Value = serde_json::from_str(&said.out)
        .map_err(|error| Failure::new(format!("it printed no JSON: {error}: {}", said.err.trim())))?;
    let _ = std::fs::write(stage.devices.folder().with_file_name("repair.json"), &said.out);
    let mut saved = 0;
    for lane in &stage.lanes {
        saved += compare(&report, &to, lane.dataset(), None, &lane.frozen())?;
        for (name, frozen) in lane.snapshots() {
            saved += compare(&report, &to, lane.dataset(), Some(name), frozen)?;
        }
    }
    stage.larder.note(&format!("repair: {saved} files are whole"));
    stage.tally.saved += saved;
    stage.tally.operation("repair");
    Ok(())
}

/// Compares a dataset or a snapshot that was saved: how many files are whole.
fn compare(
    report: &Value,
    to: &Path,
    dataset: &str,
    snapshot: Option<&str>,
    frozen: &Frozen,
) -> Outcome<u64> {
    let name = snapshot.map_or_else(|| dataset.to_owned(), |snapshot| format!("{dataset}@{snapshot}"));
    let is_this = |tree: &&Value| tree["dataset"] == dataset && tree["snapshot"].as_str() == snapshot;
    let tree = report["trees"].as_array().into_iter().flatten().find(is_this);
    let is_copied = |copy: &&Value| copy["name"] == name.as_str();
    let copied = report["copied"].as_array().into_iter().flatten().find(is_copied);
    let (Some(tree), Some(copied)) = (tree, copied) else {
        // Tables that are lost may have told of it.
        if report["whole"] == false {
            return Ok(0);
        }
        return Err(Failure::new(format!("{name} is not in a report that calls all whole")));
    };
    let paths = |list: &Value, of: &dyn Fn(&Value) -> Option<String>| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(of).collect()
    };
    let mut told = paths(&copied["copied"]["in_part"], &|file| Some(file["path"].as_str()?.to_owned()));
    told.extend(paths(&copied["copied"]["failed"], &|file| Some(file[0].as_str()?.to_owned())));
    // An older state of a file, or a name without it, is told by the tree alone.
    let is_older = tree["older_inodes"].as_array().is_some_and(|older| !older.is_empty());
    let is_guessed =
        is_older || tree["lost_nodes"] != 0 || tree["guessed"] == true || !tree["unread"].is_null();
    let found =
        look(&to.join(&name)).map_err(|(at, error)| Failure::new(format!("{}: {error}", at.display())))?;
    // Of a file with several names one is told.
    let is_named =
        |path: &str| told.iter().any(|told| format!("{name}/{path}") == told.trim_start_matches('/'));
    let told: BTreeSet<u32> = frozen.files().filter(|(path, _)| is_named(path)).map(|(_, id)| id).collect();
    let mut whole = 0;
    for (path, id) in frozen.files() {
        let must = frozen.file(path).expect("it is one of its files");
        let full = format!("{name}/{path}");
        let is_told = told.contains(&id);
        match found.sight.get(path) {
            Some(Seen::File { bytes: Some(bytes), .. }) if bytes == must => whole += 1,
            Some(_) if is_told || is_guessed => {}
            Some(Seen::File { bytes, .. }) => {
                let why = crate::model::equal(must, bytes.as_deref()).err().unwrap_or_default();
                return Err(Failure::new(format!("it calls {full} whole: {why}")));
            }
            Some(_) => return Err(Failure::new(format!("{full} is no file"))),
            None if is_told || is_guessed => {}
            None => return Err(Failure::new(format!("{full} is not there, and nothing is told of it"))),
        }
    }
    Ok(whole)
}
