//! A file or block device that fails as a control file says, for tests and for who wants to see it.
//!
//! A [`FaultDevice`] stands between a pool and a [`FileDevice`]. It obeys the text file that has the device's path
//! with `.faults` behind it, one fault a line ([`rules`]), which is looked at before every request and, while
//! requests hang, ten times a second. Without that file nothing fails. A line that is changed begins anew; one that
//! stays keeps its counts, and what it remembers.
//!
//! Requests wait in one queue for a few threads, which hold them against the lines, wait as long as those say, and
//! perform them. Those that hang wait aside and occupy nobody. With a `disk` line they are performed at once, and
//! answered when such a disk would have ([`Paced`]). What is remembered of old data and of rot is in
//! memory alone: who opens the device anew finds what is on it.

mod rules;

use crate::{
    ALIGN, AlignedBuf, Completion, Device, DeviceError, DiskWork, Entropy, FileDevice, Kept, OpenError,
    OpenMode, Outcome, Paced, Pending, Request, SeededEntropy,
};
use larder_format::{ByteLen, DeviceOffset};
use larder_sync::{Condvar, Mutex};
use rules::{ALWAYS, Complaint, Kind, MOST_TEXT, Rule, Sort, parse};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const PAGE: u64 = ALIGN as u64;
/// Requests that are performed or delayed at once.
const THREADS: usize = FileDevice::THREADS;
/// From one look at the control file to the next, while requests hang.
const LOOK: Duration = Duration::from_millis(100);
/// Pages that a `stale` line remembers: 64 MiB. Of what is written beyond, reads show the truth.
const MOST_STALE: usize = 16 << 10;

/// Told what is wrong with the control file, a sentence each.
type Report = Box<dyn Fn(String) + Send + Sync>;

/// A [`FileDevice`] that fails to order.
pub struct FaultDevice {
    shared: Arc<FaultState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct FaultState {
    file: FileDevice,
    control: PathBuf,
    report: Report,
    script: Mutex<Script>,
    queue: Mutex<Queue>,
    ready: Condvar,
    paced: Paced<Outcome>,
}

/// A request, who waits for it, and its number with the disk that answers it.
type Waiting = (Request, Completion<Outcome>, Option<u64>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Those that hang.
    aside: Vec<Waiting>,
    closed: bool,
}

/// The control file as last read.
#[derive(Default)]
struct Script {
    /// The file then: modified (s, ns), size, inode. None without a file.
    stamp: Option<(i64, i64, u64, u64)>,
    lines: Vec<Line>,
}

/// A rule and what came of it so far.
struct Line {
    rule: Rule,
    rng: SeededEntropy,
    hits: u64,
    strikes: u64,
    /// Of a `rot` line: rotten pages that have been written since.
    healed: HashSet<u64>,
    /// Of a `stale` line: pages as they were.
    then: HashMap<u64, Box<[u8]>>,
}

/// Effect of all lines on a request.
#[derive(Default)]
struct Verdict {
    delay: Duration,
    act: Option<Act>,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Fail,
    Hang,
    /// Acknowledged and not done.
    Skip,
    Misdirect(u64),
    Gone,
}

impl FaultDevice {
    /// Prefix of a path that is to be opened as such a device.
    pub const PREFIX: &'static str = "fault:";

    /// Opens the file or block device at `path`. `report` is told of lines of its control file that say nothing.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open(
        path: impl AsRef<Path>,
        mode: OpenMode,
        report: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let mut control = path.as_os_str().to_owned();
        control.push(".faults");
        let shared = Arc::new(FaultState {
            // Its own thread has nothing to do.
            file: FileDevice::open_with_threads(path, mode, 1)?,
            control: control.into(),
            report: Box::new(report),
            script: Mutex::default(),
            queue: Mutex::default(),
            ready: Condvar::new(),
            paced: Paced::default(),
        });
        shared.refresh();
        let device = Self { shared, threads: Mutex::default() };
        let start = |life: fn(&FaultState)| {
            let shared = Arc::clone(&device.shared);
            let builder = std::thread::Builder::new().name("larder-faults".to_owned());
            let thread = builder.spawn(move || life(&shared)).map_err(|error| OpenError::Io {
                path: path.to_owned(),
                errno: error.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error()),
            })?;
            device.threads.lock().push(thread);
            Ok(())
        };
        (0..THREADS).try_for_each(|_| start(FaultState::work))?;
        start(|shared| shared.paced.answer())?;
        Ok(device)
    }
}

impl Device for FaultDevice {
    fn name(&self) -> String {
        format!("{}{}", Self::PREFIX, self.shared.file.name())
    }

    fn size(&self) -> ByteLen {
        self.shared.refresh();
        let size = self.shared.file.size();
        self.shared.script.lock().end().map_or(size, |end| size.min(ByteLen::new(end / PAGE * PAGE)))
    }

    fn grow(&self) -> ByteLen {
        self.shared.file.grow();
        self.size()
    }

    fn submit(&self, request: Request) -> Pending<Outcome> {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            return Pending::done(Err(DeviceError::Gone));
        }
        let (completion, pending) = Pending::new();
        let number = DiskWork::of(&request).and_then(|work| self.shared.paced.ask(work));
        queue.waiting.push_back((request, completion, number));
        drop(queue);
        self.shared.ready.notify_one();
        pending
    }

    fn forgive(&self) {
        self.shared.file.forgive();
    }

    fn abandon(&self) {
        self.shared.close();
        self.shared.file.abandon();
        self.threads.lock().clear();
    }
}

impl Drop for FaultDevice {
    fn drop(&mut self) {
        self.shared.close();
        for thread in self.threads.get_mut().drain(..) {
            // A thread that panicked has said so.
            drop(thread.join());
        }
    }
}

impl FaultState {
    /// Takes no more requests; those that nobody has begun, and those that hang, fail.
    fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        let aside = std::mem::take(&mut queue.aside);
        drop(queue);
        self.ready.notify_all();
        for (_, completion, _) in waiting.into_iter().chain(aside) {
            completion.complete(Err(DeviceError::Gone));
        }
        self.told(self.paced.close());
    }

    /// Tells how well a disk was kept to.
    fn told(&self, kept: Option<Kept>) {
        if let Some(kept) = kept {
            (self.report)(format!("{}: {kept}", self.control.display()));
        }
    }

    /// A thread's life.
    fn work(&self) {
        while let Some((request, completion, number)) = self.next() {
            completion.begin();
            self.refresh();
            let verdict = self.script.lock().judge(&request);
            if !verdict.delay.is_zero() {
                self.sleep(verdict.delay);
            }
            let outcome = match verdict.act {
                Some(Act::Hang) => {
                    self.put_aside(request, completion, number);
                    continue;
                }
                Some(Act::Gone) => Err(DeviceError::Gone),
                Some(Act::Fail) if matches!(request, Request::Flush) => self.file.fail_flush(),
                Some(Act::Fail) => Err(DeviceError::Io { errno: Errno::IO.raw_os_error() }),
                Some(Act::Skip) => Ok(AlignedBuf::zeroed(0)),
                Some(Act::Misdirect(to)) => self.misdirect(&request, to),
                None => self.perform(request),
            };
            match number {
                Some(number) => self.paced.done(number, completion, outcome),
                None => completion.complete(outcome),
            }
        }
    }

    /// The next request to perform; none when the device is closed.
    fn next(&self) -> Option<Waiting> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(next) = queue.waiting.pop_front() {
                return Some(next);
            }
            if queue.closed {
                return None;
            }
            if queue.aside.is_empty() {
                self.ready.wait(&mut queue);
            } else {
                self.ready.wait_for(&mut queue, LOOK);
                self.refresh();
                self.take_up(&mut queue);
            }
        }
    }

    /// Requests that no longer hang wait for a thread again.
    fn take_up(&self, queue: &mut Queue) {
        let script = self.script.lock();
        for (request, completion, number) in std::mem::take(&mut queue.aside) {
            let hangs =
                script.lines.iter().any(|line| line.rule.kind == Kind::Hang && line.concerns(&request));
            if hangs {
                queue.aside.push((request, completion, number));
            } else {
                queue.waiting.push_back((request, completion, number));
            }
        }
    }

    fn put_aside(&self, request: Request, completion: Completion<Outcome>, number: Option<u64>) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            completion.complete(Err(DeviceError::Gone));
        } else {
            queue.aside.push((request, completion, number));
        }
    }

    /// Lets time pass, unless the device is closed.
    fn sleep(&self, span: Duration) {
        let pause = Condvar::new();
        let mut left = span;
        while !left.is_zero() {
            let part = left.min(LOOK);
            let own = Mutex::new(());
            pause.wait_for(&mut own.lock(), part);
            left -= part;
            if self.queue.lock().closed {
                return;
            }
        }
    }

    fn misdirect(&self, request: &Request, to: u64) -> Outcome {
        if let Request::Write { data, .. } = request {
            let to = to / PAGE * PAGE;
            let fits = self.file.size().get().saturating_sub(to).min(data.len() as u64) as usize;
            if fits > 0 {
                let data = Arc::new(AlignedBuf::padded(&data[..fits]));
                self.file.now(Request::Write { offset: DeviceOffset::new(to), data })?;
            }
        }
        Ok(AlignedBuf::zeroed(0))
    }

    /// Performs a request. Reads show rot and old data; writes heal the one and make the other.
    fn perform(&self, request: Request) -> Outcome {
        let span = span(&request);
        let sort = sort(&request);
        if span.as_ref().is_some_and(|span| self.script.lock().end().is_some_and(|end| span.end > end)) {
            return Err(DeviceError::Range);
        }
        if sort == Sort::Write
            && let Some(span) = &span
        {
            self.script.lock().written(span, &self.file);
        }
        let mut bytes = self.file.now(request)?;
        if sort == Sort::Read
            && let Some(span) = &span
        {
            self.script.lock().shown(span, &mut bytes);
        }
        Ok(bytes)
    }

    /// Reads the control file again if it is not what it was.
    fn refresh(&self) {
        let meta = std::fs::metadata(&self.control).ok();
        let mut stamp = meta.map(|meta| (meta.mtime(), meta.mtime_nsec(), meta.size(), meta.ino()));
        let mut script = self.script.lock();
        if script.stamp == stamp {
            return;
        }
        let mut bytes = Vec::new();
        let read = std::fs::File::open(&self.control)
            .and_then(|file| file.take(MOST_TEXT as u64).read_to_end(&mut bytes));
        let (rules, mut complaints) = parse(&String::from_utf8_lossy(&bytes));
        if bytes.len() == MOST_TEXT {
            complaints.push(Complaint { line: 0, why: format!("only the first {MOST_TEXT} bytes are read") });
        }
        // It may have gone meanwhile.
        stamp = stamp.filter(|_| !matches!(&read, Err(error) if error.kind() == ErrorKind::NotFound));
        if stamp.is_some()
            && let Err(error) = read
        {
            complaints.push(Complaint { line: 0, why: format!("it cannot be read: {error}") });
        }
        script.stamp = stamp;
        script.replace(rules);
        let mut disks = script.lines.iter().filter(|line| line.rule.kind == Kind::Disk);
        let kept = self.paced.set(disks.next().map(|line| line.rule.disk));
        drop(script);
        self.told(kept);
        for complaint in complaints {
            (self.report)(format!("{}: {complaint}", self.control.display()));
        }
    }
}

fn sort(request: &Request) -> Sort {
    match request {
        Request::Read { .. } => Sort::Read,
        Request::Write { .. } | Request::Discard { .. } => Sort::Write,
        Request::Flush => Sort::Flush,
    }
}

/// The bytes that a request touches.
fn span(request: &Request) -> Option<Range<u64>> {
    let (offset, len) = match request {
        Request::Read { offset, len } | Request::Discard { offset, len } => (offset.get(), len.get()),
        Request::Write { offset, data } => (offset.get(), data.len() as u64),
        Request::Flush => return None,
    };
    Some(offset..offset.saturating_add(len))
}

impl Script {
    /// Takes up new rules; those that were there before go on as they are.
    fn replace(&mut self, rules: Vec<Rule>) {
        let mut before = std::mem::take(&mut self.lines);
        for rule in rules {
            let same = before.iter().position(|line| line.rule == rule);
            self.lines.push(match same {
                Some(at) => before.swap_remove(at),
                None => Line {
                    rng: SeededEntropy::new(rule.seed),
                    rule,
                    hits: 0,
                    strikes: 0,
                    healed: HashSet::new(),
                    then: HashMap::new(),
                },
            });
        }
    }

    /// Where the device ends, if it was shrunk.
    fn end(&self) -> Option<u64> {
        let shrunk = self.lines.iter().filter(|line| line.rule.kind == Kind::Shrink);
        shrunk.map(|line| line.rule.to).min()
    }

    fn judge(&mut self, request: &Request) -> Verdict {
        let mut verdict = Verdict::default();
        for line in &mut self.lines {
            let act = match line.rule.kind {
                Kind::Rot | Kind::Stale | Kind::Shrink | Kind::Disk => continue,
                Kind::Delay => None,
                Kind::Error => Some(Act::Fail),
                Kind::Hang => Some(Act::Hang),
                Kind::Lose | Kind::Lie => Some(Act::Skip),
                Kind::Misdirect => Some(Act::Misdirect(line.rule.to)),
                Kind::Gone => Some(Act::Gone),
            };
            if !line.concerns(request) || !line.strikes() {
                continue;
            }
            match act {
                None => verdict.delay += line.delay(),
                act => verdict.act = verdict.act.or(act),
            }
        }
        verdict
    }

    /// `span` is about to be written: rot there is healed, and what there was is old data.
    fn written(&mut self, span: &Range<u64>, file: &FileDevice) {
        for line in &mut self.lines {
            for page in pages(span) {
                match line.rule.kind {
                    Kind::Rot if line.is_rotten(page) => drop(line.healed.insert(page)),
                    Kind::Stale if line.reaches(page) && line.then.len() < MOST_STALE => {
                        let place = DeviceOffset::new(page * PAGE);
                        let before = || file.now(Request::Read { offset: place, len: ByteLen::new(PAGE) });
                        if !line.then.contains_key(&page)
                            && let Ok(bytes) = before()
                        {
                            line.then.insert(page, bytes.to_vec().into());
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Applies rot and old data to the bytes of a read of `span`.
    fn shown(&self, span: &Range<u64>, bytes: &mut [u8]) {
        for line in &self.lines {
            for (page, bytes) in pages(span).zip(bytes.chunks_mut(ALIGN)) {
                if line.rule.kind == Kind::Rot && line.is_rotten(page) {
                    let bit = mix(line.rule.seed ^ 1, page) as usize % (bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                if let Some(then) = line.then.get(&page) {
                    bytes.copy_from_slice(&then[..bytes.len()]);
                }
            }
        }
    }
}

fn pages(span: &Range<u64>) -> Range<u64> {
    span.start / PAGE..span.end.div_ceil(PAGE)
}

/// The same number for the same two, and no relation between those of neighbours.
fn mix(seed: u64, page: u64) -> u64 {
    SeededEntropy::new(SeededEntropy::new(seed).next_u64() ^ page).next_u64()
}

impl Line {
    /// Whether its rule is about such a request.
    fn concerns(&self, request: &Request) -> bool {
        let touches =
            |at: &Range<u64>| span(request).is_some_and(|span| span.start < at.end && at.start < span.end);
        self.rule.sorts.contains(&sort(request)) && self.rule.at.as_ref().is_none_or(touches)
    }

    /// A request is hit; whether the rule strikes it.
    fn strikes(&mut self) -> bool {
        self.hits += 1;
        if self.hits <= self.rule.after || self.strikes >= self.rule.count {
            return false;
        }
        let struck = self.rng.next_u64() % ALWAYS < self.rule.rate;
        self.strikes += u64::from(struck);
        struck
    }

    fn delay(&self) -> Duration {
        let jitter = u64::try_from(self.rule.jitter.as_micros()).unwrap_or(u64::MAX - 1);
        self.rule.delay + Duration::from_micros(self.rng.next_u64() % (jitter + 1))
    }

    /// Whether the rule is about this page.
    fn reaches(&self, page: u64) -> bool {
        let at = |at: &Range<u64>| pages(at).contains(&page);
        self.rule.at.as_ref().is_none_or(at)
    }

    fn is_rotten(&self, page: u64) -> bool {
        self.reaches(page)
            && mix(self.rule.seed, page) % ALWAYS < self.rule.rate
            && !self.healed.contains(&page)
    }
}
