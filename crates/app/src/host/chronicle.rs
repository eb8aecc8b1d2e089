//! Events of pools, commands that changed them, and their damaged files.

use super::Host;
use super::live::Live;
use crate::api::events::{Command, Event, EventLists, Events, Histories, History, PoolEvents, PoolHistory};
use crate::api::name::printable;
use crate::api::{Result, name};
use larder_files::Damaged;
use larder_format::ledger::EventRecord;
use larder_format::{DatasetId, InodeId};
use larder_pool::ledger::HEAD;

/// Files of events whose paths are looked for, the newest first.
const NAMED_AT_MOST: usize = 200;

impl Host {
    /// Events of pools.
    pub(super) fn events(&self, request: &Events) -> Result<EventLists> {
        let all = self.pools_named(&request.names)?;
        if request.clear {
            all.iter().for_each(|live| live.pool.clear_events());
            return Ok(EventLists::default());
        }
        let pools = all.iter().map(|live| {
            let name = live.pool.name();
            let after = request.after.iter().find(|(of, _)| *of == name).map_or(0, |(_, after)| *after);
            let found = live.pool.events(after);
            let unnamed =
                found.iter().filter(|(_, event)| event.file.is_some()).count().saturating_sub(NAMED_AT_MOST);
            let mut files = 0;
            let events = found.into_iter().map(|(number, record)| {
                files += usize::from(record.file.is_some());
                event(live, number, record, files > unnamed)
            });
            PoolEvents { name, events: events.collect() }
        });
        Ok(EventLists { pools: pools.collect() })
    }

    /// Which commands changed pools.
    pub(super) fn history(&self, request: &History) -> Result<Histories> {
        let pools = self.pools_named(&request.names)?.into_iter().map(|live| {
            let commands = live.pool.commands().into_iter().map(|record| Command {
                time: record.time.secs,
                uid: record.uid,
                user: record.user,
                host: record.host,
                text: record.text,
            });
            PoolHistory { name: live.pool.name(), commands: commands.collect() }
        });
        Ok(Histories { pools: pools.collect() })
    }

    /// Keeps a command that changed what is named, or is about to, with the pool; nothing where there is none.
    pub(super) fn keep_command(&self, changed: &str, command: &Command) {
        if let Ok(live) = self.pool(name::pool_of(changed))
            && !live.pool.store().is_read_only()
        {
            live.pool.log_command(&command.text, command.uid, &command.user);
        }
    }
}

fn event(live: &Live, number: u64, record: EventRecord, named: bool) -> Event {
    let dataset = record.file.and_then(|(dataset, _)| live.pool.dataset(dataset));
    let inode = record.file.map(|(_, inode)| inode).filter(|&inode| inode > 0);
    let path = match (record.file, inode) {
        (Some((dataset, _)), Some(inode)) if named => live
            .mount
            .volume(dataset)
            .and_then(|volume| volume.path_of(InodeId::new(inode)).ok().flatten())
            .map(|path| shown(live, dataset, &path)),
        _ => None,
    };
    Event {
        number,
        time: record.first.secs,
        time_ns: record.first.nanos,
        last: record.last.secs,
        count: record.count,
        class: record.class,
        device: (!record.device_name.is_empty()).then_some(record.device_name),
        device_guid: record.device.map(|guid| guid.get()),
        dataset: dataset.map(|dataset| live.pool.full_name(dataset.id())),
        inode,
        path,
        text: record.text,
    }
}

/// A path below a dataset as people reach it: below its mount point, else behind its name.
fn shown(live: &Live, dataset: DatasetId, path: &str) -> String {
    match live.table.path(dataset) {
        Some(at) => printable(&format!("{}{path}", at.to_string_lossy().trim_end_matches('/'))),
        None => printable(&format!("{}:{path}", live.pool.full_name(dataset))),
    }
}

fn damaged_line(live: &Live, of: Damaged) -> String {
    let dataset = live.pool.full_name(of.dataset);
    let snapshot = of.snapshot.map(|snapshot| format!("{dataset}@{snapshot}"));
    match (of.path, of.inode, snapshot) {
        (Some(path), _, Some(snapshot)) => printable(&format!("{snapshot}:{path}")),
        (Some(path), _, None) => shown(live, of.dataset, &path),
        (None, Some(inode), of) => format!("{}:<0x{:x}>", of.unwrap_or(dataset), inode.get()),
        (None, None, of) => format!("{}:<metadata>", of.unwrap_or(dataset)),
    }
}

/// Live files of these datasets with ranges that cannot be read.
pub(super) fn damaged_files(live: &Live, datasets: &[DatasetId]) -> Vec<String> {
    let mut known = live.upkeep.damage.known();
    known.retain(|entry| entry.snapshot == HEAD && datasets.contains(&entry.dataset));
    let files = live.mount.damaged(&known).into_iter().filter(|of| !of.ranges.is_empty());
    files.map(|of| damaged_line(live, of)).collect()
}

/// Damaged files and metadata of a pool, a line each, as `zpool status -v` shows them.
pub(super) fn damaged(live: &Live) -> Vec<String> {
    let all = live.mount.damaged(&live.upkeep.damage.known()).into_iter();
    let mut lines: Vec<String> = all.map(|of| damaged_line(live, of)).collect();
    lines.dedup();
    let beyond = live.pool.damage().beyond();
    if beyond > 0 {
        lines.push(format!("and {beyond} more places that found no room in this list"));
    }
    let unnamed = live.pool.damage().unnamed();
    if unnamed > 0 {
        lines.push(format!("what was found lost in {unnamed} segments is being looked for"));
    }
    lines
}
