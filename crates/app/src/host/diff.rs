//! `fs diff`: from a snapshot of a dataset to a later one, or to what it is now.

use super::Host;
use crate::api::diff::{Change, Diff as Request, Kind, Line};
use crate::api::name::{check_snapshot, pool_of};
use crate::api::{ApiError, ErrorKind, Result};
use larder_files::{Diff, DiffItem, DiffKind, FileDiff, FileKind};
use larder_pool::SnapshotView;

impl Host {
    /// Tells of all that differs until nobody listens any more.
    ///
    /// # Errors
    /// When there are no such snapshots, or they cannot be read; what was told before is right.
    pub fn diff(&self, request: &Request, emit: &mut dyn FnMut(Line) -> bool) -> Result<()> {
        let doing = || format!("cannot compare '{}' with '{}'", request.from, request.to);
        let (full, name) = check_snapshot(&request.from)?;
        let (live, dataset) = self.dataset(full)?;
        let view = |of: &str, name: &str| -> Result<SnapshotView> {
            let view = live.pool.snapshot_view(dataset.id(), name);
            view.map_err(|_| ApiError::no_such_dataset(&format!("{of}@{name}")))
        };
        let old = view(full, name)?;
        let (now, later);
        let new = match request.to.split_once('@') {
            Some((_, name)) => {
                later = view(full, name)?;
                &later
            }
            None => {
                let taken = live.pool.momentary(dataset.id());
                now = taken.map_err(|error| ApiError::from(error).within(doing()).of_pool(pool_of(full)))?;
                now.view()
            }
        };
        if new.record().high < old.record().high {
            let why = format!("{}: Not an earlier snapshot from the same fs", doing());
            let hint = format!("the older one comes first: larder fs diff {} {}", request.to, request.from);
            return Err(ApiError::usage(why).hint(hint));
        }
        let mounted = live.table.path(dataset.id()).map(|path| path.to_string_lossy().into_owned());
        let mut listens = emit(Line::Began(mounted));
        let mut diff = Diff::new(&old, new);
        while listens {
            let more = diff.step(&mut |item| {
                listens = listens
                    && emit(match item {
                        DiffItem::Change(change) => Line::Change(told(change)),
                        DiffItem::Unknown { inode, snapshot, why } => {
                            // The moment has no name that anybody knows.
                            let of = match larder_pool::is_momentary(&snapshot) {
                                true => full.to_owned(),
                                false => format!("{full}@{snapshot}"),
                            };
                            let message =
                                format!("cannot tell what became of inode {inode} in '{of}': {why}");
                            Line::Unknown(
                                ApiError::new(ErrorKind::Corrupt, message)
                                    .hint(format!("larder pool status -v {}", pool_of(full))),
                            )
                        }
                    });
            });
            match more {
                Ok(true) => {
                    listens = listens && emit(Line::Going);
                    // An export waits for nobody who only reads.
                    if self.dataset(full).is_err() {
                        let why = format!("{}: the dataset is gone meanwhile", doing());
                        return Err(ApiError::new(ErrorKind::NotFound, why));
                    }
                }
                Ok(false) => break,
                Err(error) => return Err(ApiError::from(error).within(doing()).of_pool(pool_of(full))),
            }
        }
        Ok(())
    }
}

fn told(diff: FileDiff) -> Change {
    Change {
        kind: match diff.kind {
            DiffKind::Modified => Kind::Modified,
            DiffKind::Added => Kind::Added,
            DiffKind::Removed => Kind::Removed,
            DiffKind::Renamed => Kind::Renamed,
        },
        file: match diff.file {
            FileKind::Regular => 'F',
            FileKind::Directory => '/',
            FileKind::Symlink => '@',
            FileKind::Fifo => '|',
            FileKind::Socket => '=',
            FileKind::CharDevice => 'C',
            FileKind::BlockDevice => 'B',
        },
        inode: diff.inode.get(),
        old: diff.old.map(Into::into),
        new: diff.new.map(Into::into),
        links: diff.links,
        ctime: (diff.ctime.secs, diff.ctime.nanos),
        lost_names: diff.lost_names.into_iter().map(Into::into).collect(),
        new_names: diff.new_names.into_iter().map(Into::into).collect(),
    }
}
