//! Events of the pool, and commands that changed it: two tables of numbered entries of which the oldest go.
//!
//! An event is noted in memory, under a lock that is held for moments and under which nothing else is taken, so
//! reads and writes may note one. Commits write noted events into the tables; a crash loses those after the last
//! commit. An event that recurs within [`TOGETHER`] for the same device and file is counted in the one that is there,
//! which is written anew: a device that fails every request makes one event a minute.
//!
//! Nothing depends on these tables. Entries that cannot be read are left out, and those that cannot be written stay in
//! memory, as far as there is room; no commit fails for it.
//!
//! Errors and states of devices are not reported one by one: [`EventLog::observe`] compares counters and states of the
//! members with those reported before.

use larder_device::Clock;
use larder_format::ledger::{CommandRecord, EventRecord};
use larder_format::tables::Table;
use larder_format::{DatasetId, DeviceGuid, DeviceIndex};
use larder_sorted::tree::Tree;
use larder_store::member::MemberState;
use larder_store::{Class, Event, EventSink, Store, TableNodes};
use larder_sync::Mutex;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Events that are kept.
pub const EVENTS_AT_MOST: u64 = 4096;
/// Commands that are kept, besides the first.
pub const COMMANDS_AT_MOST: u64 = 10_000;
/// Repetitions of an event within this time are counted with it.
const TOGETHER: Duration = Duration::from_secs(60);
/// Things whose repetitions are counted at a time.
const OPEN_AT_MOST: usize = 256;
/// Entries that a commit writes, and as many that it takes out.
const PER_COMMIT: usize = 512;

/// A table of numbered entries: what of it is not written yet, and which numbers there are.
struct Ring<T> {
    table: Table,
    /// Entries that are kept.
    most: u64,
    /// The lowest number that may be in the table, of those that go with time.
    first: u64,
    /// Lower numbers do not go with time.
    stays: u64,
    /// The lowest number that counts, of those that do.
    kept_from: u64,
    /// The next number.
    next: u64,
    waiting: BTreeMap<u64, T>,
}

impl<T: Clone + PartialEq> Ring<T> {
    fn new(table: Table, most: u64, first: u64) -> Self {
        Self { table, most, first, stays: first, kept_from: first, next: 1, waiting: BTreeMap::new() }
    }

    fn add(&mut self, entry: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, entry);
        self.kept_from = self.kept_from.max(self.next.saturating_sub(self.most));
        if self.waiting.len() as u64 > self.most
            && let Some(oldest) = self.waiting.range(self.stays..).next().map(|(&oldest, _)| oldest)
        {
            self.waiting.remove(&oldest);
        }
        number
    }

    /// Import: the table has this entry.
    fn met(&mut self, number: u64) {
        self.next = self.next.max(number.saturating_add(1));
        self.kept_from = self.kept_from.max(self.next.saturating_sub(self.most));
    }

    fn is_dirty(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Some of what waits to be written, and numbers that are too old.
    fn due(&self) -> (Vec<(u64, T)>, Range<u64>) {
        let some = self.waiting.iter().take(PER_COMMIT);
        (some.map(|(&number, entry)| (number, entry.clone())).collect(), self.first..self.kept_from)
    }

    /// Entries that wait above `after`, and whether a number in the table counts.
    fn beside(&self, after: u64) -> (Vec<(u64, T)>, impl Fn(u64) -> bool + use<T>) {
        let waiting = self.waiting.range(after.saturating_add(1)..);
        let (stays, kept_from) = (self.stays, self.kept_from);
        let counts = move |number| number >= kept_from || number < stays;
        (waiting.map(|(&number, entry)| (number, entry.clone())).collect(), counts)
    }
}

/// Identity of an event: repetitions share it.
type EventKey = (Class, Option<DeviceGuid>, Option<(DatasetId, u64)>);

/// A device's state as last reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    state: MemberState,
    read: u64,
    write: u64,
    checksum: u64,
}

/// See the module's text. Its lock is taken last of all, but for the devices' own.
struct Log {
    events: Ring<EventRecord>,
    commands: Ring<CommandRecord>,
    /// Events that repetitions are counted in.
    open: Vec<(EventKey, u64, EventRecord)>,
    devices: BTreeMap<DeviceIndex, Known>,
    /// Wrong bytes that were told of where they were met, with the file, and that the members count as well.
    told: BTreeMap<DeviceGuid, u64>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            events: Ring::new(Table::Events, EVENTS_AT_MOST, 1),
            // The first stays.
            commands: Ring::new(Table::Commands, COMMANDS_AT_MOST, 2),
            open: Vec::new(),
            devices: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }
}

impl Log {
    /// Import: such an entry is in the tables.
    fn met(&mut self, table: Table, number: u64) {
        match table {
            Table::Events => self.events.met(number),
            _ => self.commands.met(number),
        }
    }
}

/// The log, as the store's sink of events.
pub(crate) struct EventLog {
    clock: Arc<dyn Clock>,
    log: Mutex<Log>,
}

impl EventSink for EventLog {
    fn event(&self, event: Event) {
        if let (Class::Checksum, Some((device, _))) = (event.class, &event.device) {
            *self.log.lock().told.entry(*device).or_default() += event.count;
        }
        self.keep(event);
    }
}

impl EventLog {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, log: Mutex::default() }
    }

    /// Import: such an entry is in the tables.
    pub(crate) fn met(&self, table: Table, number: u64) {
        self.log.lock().met(table, number);
    }

    fn keep(&self, event: Event) {
        let now = self.clock.now();
        let Event { class, device, file, text, count } = event;
        let (device, device_name) = device.map_or((None, String::new()), |(guid, name)| (Some(guid), name));
        let event_key = (class, device, file);
        let mut log = self.log.lock();
        let log = &mut *log;
        if class.is_counted() {
            let together = TOGETHER.as_secs() as i64;
            log.open.retain(|(_, _, record)| now.secs < record.first.secs.saturating_add(together));
            if let Some((_, number, record)) = log.open.iter_mut().find(|(other, ..)| *other == event_key) {
                (record.last, record.count) = (now, record.count.saturating_add(count));
                if *number >= log.events.kept_from {
                    log.events.waiting.insert(*number, record.clone());
                    return;
                }
            }
        }
        let class = class.to_string();
        let record = EventRecord { first: now, last: now, count, device, file, class, device_name, text };
        let number = log.events.add(record.clone());
        if event_key.0.is_counted() {
            log.open.retain(|(other, ..)| *other != event_key);
            if log.open.len() == OPEN_AT_MOST {
                log.open.remove(0);
            }
            log.open.push((event_key, number, record));
        }
    }

    /// Events with numbers above `after`, oldest first.
    pub(crate) fn events(&self, store: &Store, tables: &Mutex<Tree>, after: u64) -> Vec<(u64, EventRecord)> {
        self.entries(store, tables, after, |log| &log.events, |value| EventRecord::decode(value).ok())
    }

    /// The commands that changed the pool, oldest first.
    pub(crate) fn commands(&self, store: &Store, tables: &Mutex<Tree>) -> Vec<CommandRecord> {
        let all =
            self.entries(store, tables, 0, |log| &log.commands, |value| CommandRecord::decode(value).ok());
        all.into_iter().map(|(_, command)| command).collect()
    }

    /// Forgets all events.
    pub(crate) fn clear_events(&self) {
        let log = &mut *self.log.lock();
        log.events.waiting.clear();
        log.open.clear();
        log.events.kept_from = log.events.next;
    }

    /// Keeps a command.
    pub(crate) fn keep_command(&self, command: CommandRecord) {
        self.log.lock().commands.add(command);
    }

    /// Whether a commit would write events or commands.
    pub(crate) fn is_dirty(&self) -> bool {
        let log = self.log.lock();
        log.events.is_dirty() || log.commands.is_dirty()
    }

    /// The entries of a ring above `after`, in order. Nodes are read without the log's lock: reading tells of events.
    fn entries<T: Clone + PartialEq>(
        &self,
        store: &Store,
        tables: &Mutex<Tree>,
        after: u64,
        ring: impl Fn(&Log) -> &Ring<T>,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Vec<(u64, T)> {
        let tables = tables.lock();
        let (table, (waiting, counts)) = {
            let log = self.log.lock();
            (ring(&log).table, ring(&log).beside(after))
        };
        let mut found = BTreeMap::new();
        let range = table.key(after.saturating_add(1))..=table.key(u64::MAX);
        // Entries that cannot be read are left out.
        let _ = tables.scan(&TableNodes(store), range, |key, value| {
            if let Some(entry) = decode(value).filter(|_| counts(key.offset)) {
                found.insert(key.offset, entry);
            }
            ControlFlow::Continue(())
        });
        drop(tables);
        found.extend(waiting);
        found.into_iter().collect()
    }

    /// Part of a commit: what was noted goes into the tables.
    pub(crate) fn seal(&self, store: &Store, tables: &mut Tree) {
        self.seal_ring(store, tables, |log| &mut log.events, EventRecord::encode);
        self.seal_ring(store, tables, |log| &mut log.commands, CommandRecord::encode);
    }

    /// Writes what waits, and takes out what is too old. What cannot be written waits on.
    fn seal_ring<T: Clone + PartialEq>(
        &self,
        store: &Store,
        tables: &mut Tree,
        ring: impl Fn(&mut Log) -> &mut Ring<T>,
        encode: impl Fn(&T) -> Vec<u8>,
    ) {
        let (table, (due, old)) = {
            let mut log = self.log.lock();
            let ring = ring(&mut log);
            (ring.table, ring.due())
        };
        for (number, entry) in due {
            if tables.insert(&TableNodes(store), table.key(number), &encode(&entry)).is_err() {
                return;
            }
            let mut log = self.log.lock();
            let waiting = &mut ring(&mut log).waiting;
            // It may have been counted again meanwhile.
            if waiting.get(&number) == Some(&entry) {
                waiting.remove(&number);
            }
        }
        if !old.is_empty() {
            let keys = table.key(old.start)..table.key(old.end);
            let removed = tables.remove_range(&TableNodes(store), keys, PER_COMMIT, |_, _| {});
            if removed.is_ok_and(|removed| removed < PER_COMMIT) {
                ring(&mut self.log.lock()).first = old.end;
            }
        }
    }

    /// Tells of devices that failed requests or changed their state since the last call.
    pub(crate) fn observe(&self, store: &Store) {
        for member in store.members.all() {
            let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            let counters = &member.counters;
            let now = Known {
                state: member.state(),
                read: load(&counters.read_errors),
                write: load(&counters.write_errors),
                checksum: load(&counters.checksum_errors),
            };
            let (before, told) = {
                let mut log = self.log.lock();
                (log.devices.insert(member.index, now), log.told.remove(&member.guid).unwrap_or(0))
            };
            // The state of a device at import is no change.
            let before = before.unwrap_or(Known { state: now.state, read: 0, write: 0, checksum: 0 });
            let about = |class| Event::new(class).device(member.guid, member.name());
            let failed = [("read", now.read, before.read), ("write", now.write, before.write)];
            // Counts start again when they are cleared.
            for (what, now, before) in failed.into_iter().filter(|(_, now, before)| now > before) {
                store.event(about(Class::Io).text(format!("{what} requests failed")).times(now - before));
            }
            let wrong = now.checksum.saturating_sub(before.checksum).saturating_sub(told);
            if wrong > 0 {
                self.keep(about(Class::Checksum).times(wrong));
            }
            if now.state != before.state {
                let (is, was) = (now.state, before.state);
                let text = format!("{is:?}, was {was:?}").to_lowercase();
                store.event(about(Class::StateChange).text(text));
            }
        }
    }
}
