//! A pool on files, and what a life does to it.

use crate::command::{Larder, pause};
use crate::devices::Devices;
use crate::failure::{Failure, Outcome};
use crate::lane::Lane;
use crate::layout::Layout;
use crate::plan::{Deed, End, LANES, Life, Round, Trouble};
use crate::random::Rng;
use crate::sight::is_full;
use crate::tally::Tally;
use larder_device::{Clock, SystemClock};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The pool's name.
pub const POOL: &str = "torture";
/// Seconds without a step after which a call is said to hang.
const HANGS: u64 = 240;
const LOOK: Duration = Duration::from_millis(10);
/// Most that a pool is filled with.
const MOST_FILL: u64 = 4 << 30;

/// An onlooker of a run.
pub trait Watch: Sync {
    /// Whether it is to end.
    fn is_stopped(&self) -> bool;
    /// Tells of its progress.
    fn tell(&self, line: &str);
}

/// A newcomer in the pool.
enum Guest {
    Device(PathBuf),
    Group(Vec<PathBuf>),
}

/// See the module's text.
pub struct Stage<'a> {
    folder: PathBuf,
    mount: PathBuf,
    layout: Layout,
    /// The program.
    pub larder: Arc<Larder>,
    /// The devices.
    pub devices: Devices,
    /// Workers in the pool.
    pub lanes: Vec<Lane>,
    guest: Option<Guest>,
    /// Files of devices that are on their way out.
    leaving: Vec<PathBuf>,
    /// Starts of resilvers whose bytes are counted.
    counted: BTreeSet<(String, i64)>,
    clock: SystemClock,
    watch: &'a dyn Watch,
    /// Counts of the conductor's deeds.
    pub tally: Tally,
}

impl<'a> Stage<'a> {
    /// Makes the pool in a folder that is empty.
    ///
    /// # Errors
    /// When something of it fails.
    pub fn make(program: &Path, folder: &Path, layout: Layout, watch: &'a dyn Watch) -> Outcome<Self> {
        let mount = folder.join("mnt");
        fs::create_dir(&mount).map_err(|error| Failure::new(format!("{}: {error}", mount.display())))?;
        let devices = Devices::make(&folder.join("devices"), &folder.join("aside"), layout.devices())?;
        let larder = Arc::new(Larder::new(program, folder));
        let lanes = (0..LANES).map(|nth| Lane::new(POOL, &format!("lane{nth}"), &mount)).collect();
        let mut tally = Tally::default();
        tally.pools.insert(layout.name(), 1);
        let stage = Self {
            folder: folder.to_owned(),
            mount,
            layout,
            larder,
            devices,
            lanes,
            guest: None,
            leaving: Vec::new(),
            counted: BTreeSet::new(),
            clock: SystemClock::new(),
            watch,
            tally,
        };
        stage.larder.start()?;
        let paths: Vec<String> =
            stage.devices.paths().map(|path| format!("fault:{}", path.display())).collect();
        let mount = text(&stage.mount);
        let mut words =
            vec!["pool", "create", "-o", "device_timeout=5", "-o", "memory=64M", "-m", &mount, POOL];
        words.extend(layout.word());
        words.extend(paths.iter().map(String::as_str));
        stage.larder.must(&words)?;
        for lane in &stage.lanes {
            stage.larder.must(&["fs", "create", lane.dataset()])?;
        }
        stage.larder.must(&["fs", "create", &format!("{POOL}/fill")])?;
        Ok(stage)
    }

    /// The mount point.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// All of a life, while nobody wants it to end: whether it came to its end.
    ///
    /// # Errors
    /// When something is not as it must be.
    pub fn live(&mut self, life: &Life, is_over: &dyn Fn() -> bool) -> Outcome<bool> {
        let count = life.rounds.len();
        for (nth, round) in life.rounds.iter().enumerate() {
            if is_over() {
                return Ok(false);
            }
            let (faults, kills) = (self.tally.all_faults(), self.tally.kills);
            self.watch.tell(&format!(
                "seed {}, {}: round {} of {count}; {} faults, {kills} kills, nothing lost",
                life.seed,
                self.layout,
                nth + 1,
                faults
            ));
            self.larder.note(&format!(
                "round {nth}: {:?}, {:?}, {:?}, heal {}",
                round.troubles, round.end, round.deeds, round.heal
            ));
            self.round(round).map_err(|failure| failure.when(format!("round {nth}")))?;
        }
        self.export()?;
        self.import()?;
        self.verify(false).map_err(|failure| failure.when("at the end"))?;
        Ok(true)
    }

    fn round(&mut self, round: &Round) -> Outcome<()> {
        let is_kill = matches!(round.end, End::Kill { .. });
        let mut lanes = std::mem::take(&mut self.lanes);
        let outcome = self.at_work(&mut lanes, round);
        self.lanes = lanes;
        outcome?;
        if self.watch.is_stopped() {
            return Ok(());
        }
        if let Some(panic) = self.larder.panics() {
            return Err(Failure::new(format!("the daemon panicked: {panic}")));
        }
        match round.end {
            End::Quiet => self.larder.check_daemon()?,
            End::Export => self.export()?,
            End::Kill { .. } => self.larder.end_strays()?,
        }
        for deed in &round.deeds {
            self.larder.note(&format!("{deed:?}"));
            match *deed {
                Deed::Away { seat } => self.devices.hide(seat)?,
                Deed::Swap { a, b } => self.devices.swap(a, b)?,
                Deed::Keep { seat } => self.devices.keep(seat)?,
                Deed::Past { seat } => self.devices.put_past(seat)?,
            }
            if !matches!(deed, Deed::Keep { .. }) {
                self.tally.fault(&kind(deed));
            }
        }
        match round.end {
            End::Quiet => {}
            End::Export => self.import()?,
            End::Kill { again, .. } => {
                if let Some(after) = again {
                    self.killed_import(after)?;
                }
                self.larder.start()?;
                self.import()?;
            }
        }
        self.verify(is_kill)?;
        if round.troubles.contains(&Trouble::Shrink) {
            self.shrunk()?;
        }
        if round.heal {
            self.heal().map_err(|failure| failure.when("healing"))?;
        }
        self.tidy()
    }

    /// Lanes take their steps while trouble comes, until the round ends.
    fn at_work(&mut self, lanes: &mut [Lane], round: &Round) -> Outcome<()> {
        let work = Work {
            larder: Arc::clone(&self.larder),
            taken: AtomicU64::new(0),
            working: AtomicUsize::new(lanes.len()),
            all: round.lanes.iter().map(|steps| steps.len() as u64).sum(),
        };
        std::thread::scope(|scope| {
            let work = &work;
            let start = |(lane, steps): (&'_ mut Lane, &'_ Vec<_>)| {
                let done = lane.run(&work.larder, steps, &work.taken);
                work.working.fetch_sub(1, Ordering::SeqCst);
                done
            };
            let threads: Vec<_> =
                lanes.iter_mut().zip(&round.lanes).map(|both| scope.spawn(move || start(both))).collect();
            let conducted = self.conduct(round, work);
            if conducted.is_err() {
                self.larder.stop();
            }
            // A call that hangs is told, and ended, so that there is an end.
            let waited = self.wait(work, work.all + 1);
            let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            let ended = ended.into_iter().map(|ended| {
                ended.unwrap_or_else(|_| Err(Failure::new("a thread of the torture itself panicked")))
            });
            let ended: Outcome<Vec<()>> = ended.collect();
            // The failure of a lane is nearer to the cause.
            waited.and(ended.map(drop)).and(conducted)
        })
    }

    fn conduct(&mut self, round: &Round, work: &Work) -> Outcome<()> {
        let count = round.troubles.len() as u64;
        for (nth, trouble) in (1..).zip(&round.troubles) {
            self.wait(work, work.all * nth / (2 * (count + 1)))?;
            if self.is_enough() {
                return Ok(());
            }
            self.larder.note(&format!("{trouble:?}"));
            self.trouble(trouble).map_err(|failure| failure.when(format!("{trouble:?}")))?;
        }
        if let End::Kill { percent, later, .. } = round.end {
            self.wait(work, work.all * u64::from(percent) / 100)?;
            if self.is_enough() {
                return Ok(());
            }
            pause(Duration::from_millis(later.into()));
            self.larder.check_daemon()?;
            self.larder.note("kill");
            self.larder.kill();
            self.tally.kills += 1;
        }
        Ok(())
    }

    /// Whether a lane has failed, or somebody wants it all to end.
    fn is_enough(&self) -> bool {
        self.larder.is_stopped() || self.watch.is_stopped()
    }

    /// Waits until so many steps were taken, or all who take them have ended.
    fn wait(&self, work: &Work, steps: u64) -> Outcome<()> {
        let (mut last, mut since) = (0, self.clock.monotonic());
        loop {
            let taken = work.taken.load(Ordering::Relaxed);
            if self.is_enough() {
                self.larder.stop();
            }
            if taken >= steps || work.working.load(Ordering::SeqCst) == 0 {
                return Ok(());
            }
            let now = self.clock.monotonic();
            if taken != last {
                (last, since) = (taken, now);
            }
            if (now - since).as_secs() > HANGS {
                self.evidence();
                self.larder.stop();
                self.larder.give_up();
                return Err(Failure::new(format!("no call returned for {HANGS} s")));
            }
            pause(LOOK);
        }
    }

    fn trouble(&mut self, trouble: &Trouble) -> Outcome<()> {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match trouble {
            Trouble::Flip { seat, bits, seed } => drop(self.devices.flip(*seat, *bits, *seed)?),
            Trouble::Zero { seat, ranges, seed } => drop(self.devices.zero(*seat, *ranges, *seed)?),
            Trouble::Faults { seat, line } => self.devices.fail(*seat, line)?,
            Trouble::Offline { seat } => {
                let device = name(self.devices.path(*seat));
                self.may(&["pool", "offline", POOL, &device])?;
            }
            Trouble::Replace { seat } => {
                let new = self.devices.another()?;
                let device = name(self.devices.path(*seat));
                let to = format!("fault:{}", new.display());
                if self.may(&["pool", "replace", POOL, &device, &to])? {
                    let old = self.devices.seat(*seat, new);
                    self.leaving.push(old);
                } else {
                    self.devices.remove(&new);
                }
            }
            Trouble::Scrub => drop(self.may(&["pool", "scrub", POOL])?),
            Trouble::Trim => drop(self.may(&["pool", "trim", POOL])?),
            Trouble::Commit => drop(self.larder.must(&["pool", "sync", POOL])?),
            Trouble::Fill { seed } => self.fill(*seed)?,
            Trouble::Attach => self.attach()?,
            Trouble::Add => self.add()?,
            Trouble::Rebalance => drop(self.may(&["pool", "rebalance", POOL])?),
            Trouble::Shrink => self.shrink()?,
        }
        let what = match trouble {
            Trouble::Faults { line, .. } => line.split(' ').next().unwrap_or_default().to_owned(),
            other => kind(other),
        };
        if matches!(trouble, Trouble::Scrub | Trouble::Trim | Trouble::Commit) {
            self.tally.operation(&what);
        } else {
            self.tally.fault(&what);
        }
        Ok(())
    }

    /// Has a command run that may be refused, with a reason: whether it was done.
    fn may(&self, words: &[&str]) -> Outcome<bool> {
        let said = self.larder.run(words)?;
        if !said.ok {
            self.larder.note(&format!("refused: larder {}: {}", words.join(" "), said.err.trim()));
        }
        Ok(said.ok)
    }

    /// Files fill the pool, until it says that it is full, and go.
    fn fill(&self, seed: u64) -> Outcome<()> {
        let folder = self.mount.join("fill");
        let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()));
        let mut written = 0;
        let noise = Rng::new(&[seed]).bytes(1 << 20);
        'full: for nth in 0..MOST_FILL >> 25 {
            let at = folder.join(format!("f{nth}"));
            let mut file = match File::create(&at) {
                Err(error) if is_full(&error) => break,
                file => file.map_err(failed)?,
            };
            for part in 0..32_u64 {
                // No two parts are equal.
                let mut bytes = noise.clone();
                bytes
                    .chunks_mut(4096)
                    .for_each(|page| page[..8].copy_from_slice(&(nth * 32 + part).to_le_bytes()));
                match file.write(&bytes) {
                    Err(error) if is_full(&error) => break 'full,
                    count => written += count.map_err(failed)? as u64,
                }
                if self.is_enough() {
                    break 'full;
                }
            }
        }
        self.larder.note(&format!("filled with {written} bytes"));
        for entry in fs::read_dir(&folder).map_err(failed)? {
            fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
        }
        Ok(())
    }

    fn attach(&mut self) -> Outcome<()> {
        let new = self.devices.another()?;
        let first = text(self.devices.path(0));
        let first = first.rsplit('/').next().unwrap_or_default();
        let group = format!("{}-0", self.layout.name());
        let to = if matches!(self.layout, Layout::Single | Layout::Mirror) { first } else { &group };
        if self.may(&["pool", "attach", POOL, to, &format!("fault:{}", new.display())])? {
            self.guest = Some(Guest::Device(new));
        } else {
            self.devices.remove(&new);
        }
        Ok(())
    }

    fn add(&mut self) -> Outcome<()> {
        let new = (0..self.layout.devices()).map(|_| self.devices.another()).collect::<Outcome<Vec<_>>>()?;
        let paths: Vec<String> = new.iter().map(|path| format!("fault:{}", path.display())).collect();
        let mut words = vec!["pool", "add", POOL];
        words.extend(self.layout.word());
        words.extend(paths.iter().map(String::as_str));
        self.larder.must(&words)?;
        self.guest = Some(Guest::Group(new));
        Ok(())
    }

    fn shrink(&mut self) -> Outcome<()> {
        let Some(guest) = self.guest.take() else { return Ok(()) };
        // A device that is new gets what the others have before anything leaves.
        self.larder.must(&["pool", "wait", "-t", "resilver", POOL])?;
        self.may(&["pool", "rebalance", "-s", POOL])?;
        let paths = match guest {
            Guest::Device(path) => {
                let verb =
                    if matches!(self.layout, Layout::Single | Layout::Mirror) { "detach" } else { "remove" };
                let name = text(&path);
                let name = name.rsplit('/').next().unwrap_or_default();
                if !self.may(&["pool", verb, POOL, name])? {
                    return Ok(());
                }
                vec![path]
            }
            Guest::Group(paths) => {
                let status = self.status()?;
                let first = text(&paths[0]);
                let Some(name) = group_of(&status, &first) else {
                    return Err(Failure::new(format!("the status has no group with {first}")));
                };
                if !self.may(&["pool", "remove", POOL, &name])? {
                    return Ok(());
                }
                paths
            }
        };
        self.leaving.extend(paths);
        Ok(())
    }

    /// Waits until the devices that were told to leave are gone.
    fn shrunk(&mut self) -> Outcome<()> {
        self.larder.must(&["pool", "wait", "-t", "remove", POOL])?;
        self.tidy()
    }

    /// Removes files of devices that the pool has not any more.
    fn tidy(&mut self) -> Outcome<()> {
        if self.leaving.is_empty() {
            return Ok(());
        }
        let status = self.status()?.to_string();
        let (there, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.leaving).into_iter().partition(|path| status.contains(&text(path)));
        gone.iter().for_each(|path| self.devices.remove(path));
        self.leaving = there;
        Ok(())
    }

    /// The status of the pool.
    ///
    /// # Errors
    /// When there is none.
    pub fn status(&self) -> Outcome<Value> {
        let mut all = self.larder.json(&["pool", "status", "-j", POOL])?;
        Ok(all["pools"][POOL].take())
    }

    /// Exports the pool: all is durable then.
    ///
    /// # Errors
    /// When that fails.
    pub fn export(&mut self) -> Outcome<()> {
        self.larder.note("export");
        self.larder.must(&["pool", "export", POOL])?;
        self.tally.exports += 1;
        self.lanes.iter_mut().for_each(Lane::settle);
        Ok(())
    }

    /// Imports the pool.
    ///
    /// # Errors
    /// When that fails.
    pub fn import(&self) -> Outcome<()> {
        self.larder.note("import");
        self.larder.must(&[
            "pool",
            "import",
            "-d",
            &format!("fault:{}", self.devices.folder().display()),
            POOL,
        ])?;
        Ok(())
    }

    /// The daemon is killed so long after an import began.
    fn killed_import(&mut self, after: u32) -> Outcome<()> {
        self.larder.start()?;
        self.larder.note("import, to be killed");
        let folder = format!("fault:{}", self.devices.folder().display());
        std::thread::scope(|scope| {
            let larder = &self.larder;
            let import = scope.spawn(|| larder.run(&["pool", "import", "-d", &folder, POOL]));
            pause(Duration::from_millis(after.into()));
            larder.kill();
            // Done, or told that it was not: which of them is chance.
            drop(import.join());
        });
        self.tally.kills += 1;
        self.larder.end_strays()
    }

    /// All lanes find what they must.
    ///
    /// # Errors
    /// The first thing that they do not.
    pub fn verify(&mut self, crashed: bool) -> Outcome<()> {
        self.larder.note("verify");
        for lane in &mut self.lanes {
            lane.verify(&self.larder, crashed)?;
        }
        self.tally.comparisons += 1;
        let fill = self.mount.join("fill");
        for entry in fs::read_dir(&fill).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
        Ok(())
    }

    /// All devices are well again and have all that they must.
    fn heal(&mut self) -> Outcome<()> {
        self.larder.note("heal");
        self.devices.restore()?;
        self.back_in_use()?;
        self.larder.must(&["pool", "wait", "-t", "resilver", POOL])?;
        // One that runs began before the damage, or in its midst.
        self.may(&["pool", "scrub", "-s", POOL])?;
        let scrub = self.larder.run(&["pool", "scrub", "-w", POOL])?;
        let status = self.status()?;
        self.count_healed(&status);
        if !scrub.ok {
            return Err(Failure::new(format!("a scrub could not repair all: {}", scrub.err.trim())));
        }
        if let Some(damaged) = status["damaged"].as_array().filter(|damaged| !damaged.is_empty()) {
            return Err(Failure::new(format!("within tolerance something is lost: {damaged:?}")));
        }
        self.larder.must(&["pool", "clear", POOL])?;
        let check = self.larder.run(&["pool", "check", POOL])?;
        if !check.ok {
            return Err(Failure::new(format!("all was healed, and the pool says: {}", check.out.trim())));
        }
        Ok(())
    }

    /// Takes back what was out of use; what does not come back is replaced.
    fn back_in_use(&mut self) -> Outcome<()> {
        for _ in 0..3 {
            self.may(&["pool", "clear", POOL])?;
            let out = self.out_of_use()?;
            for seat in &out {
                let path = text(self.devices.path(*seat));
                let name = path.rsplit('/').next().unwrap_or_default();
                if !self.may(&["pool", "online", POOL, name])? {
                    self.may(&["pool", "online", POOL, &format!("fault:{path}")])?;
                }
            }
            if out.is_empty() {
                return Ok(());
            }
            for _ in 0..50 {
                if self.out_of_use()?.is_empty() {
                    return Ok(());
                }
                pause(10 * LOOK);
            }
        }
        for seat in self.out_of_use()? {
            let status = self.status()?;
            let old = text(self.devices.path(seat));
            let Some(guid) = guid_of(&status, &old) else {
                return Err(Failure::new(format!("the status does not tell of {old}")));
            };
            let new = self.devices.another()?;
            self.larder.note(&format!("replacing {old}, which did not come back"));
            self.larder.must(&["pool", "replace", POOL, &guid, &format!("fault:{}", new.display())])?;
            let old = self.devices.seat(seat, new);
            self.leaving.push(old);
            self.tally.fault("replace");
        }
        Ok(())
    }

    /// Seats whose devices the pool does not use.
    fn out_of_use(&self) -> Outcome<Vec<usize>> {
        let status = self.status()?;
        let online: BTreeSet<String> = leaves(&status)
            .iter()
            .filter(|leaf| leaf["state"] == "ONLINE")
            .filter_map(|leaf| path_of(leaf))
            .collect();
        let out = |seat: &usize| !online.contains(&text(self.devices.path(*seat)));
        Ok((0..self.layout.devices()).filter(out).collect())
    }

    fn count_healed(&mut self, status: &Value) {
        for scan in status["scans"].as_array().into_iter().flatten() {
            let key = (scan["kind"].to_string(), scan["started"].as_i64().unwrap_or(0));
            if self.counted.insert(key) {
                self.tally.healed += scan["repaired"].as_u64().unwrap_or(0);
            }
        }
    }

    /// Leaves the pool's own words in files, for people who look into a failure.
    pub fn evidence(&self) {
        for (name, words) in [
            ("status.txt", ["pool", "status", "-v", POOL]),
            ("events.txt", ["pool", "events", "-v", POOL]),
            ("history.txt", ["pool", "history", "-il", POOL]),
        ] {
            if let Ok(said) = self.larder.run(&words) {
                let _ = fs::write(self.folder.join(name), said.out + &said.err);
            }
        }
    }

    /// Ends the daemon; the mount goes with it.
    ///
    /// # Errors
    /// When it does not end by itself.
    pub fn end(&self) -> Outcome<()> {
        self.larder.end()
    }

    /// All that was done, also by lanes.
    pub fn tallied(&self) -> Tally {
        let mut all = self.tally.clone();
        self.lanes.iter().for_each(|lane| all += &lane.tally);
        all
    }
}

/// Lanes at work, and who waits for them.
struct Work {
    larder: Arc<Larder>,
    taken: AtomicU64,
    working: AtomicUsize,
    all: u64,
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn kind(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}").split([' ', '(']).next().unwrap_or_default().to_lowercase()
}

/// The devices in a status, at any depth.
fn leaves(status: &Value) -> Vec<&Value> {
    fn below<'v>(vdevs: &'v Value, found: &mut Vec<&'v Value>) {
        for vdev in vdevs.as_object().into_iter().flat_map(|all| all.values()) {
            match vdev.get("vdevs") {
                Some(children) if children.as_object().is_some_and(|all| !all.is_empty()) => {
                    below(children, found)
                }
                _ => found.push(vdev),
            }
        }
    }
    let mut found = Vec::new();
    below(&status["vdevs"], &mut found);
    found
}

/// Path of a device, as a file.
fn path_of(leaf: &Value) -> Option<String> {
    let path = leaf["path"].as_str()?;
    Some(path.strip_prefix("fault:").unwrap_or(path).to_owned())
}

/// Guid of the device at a path.
fn guid_of(status: &Value, path: &str) -> Option<String> {
    let leaf = leaves(status).into_iter().find(|leaf| path_of(leaf).as_deref() == Some(path))?;
    Some(leaf["guid"].as_u64()?.to_string())
}

/// Name of the group that has the device at a path.
fn group_of(status: &Value, path: &str) -> Option<String> {
    let groups = status["vdevs"][POOL]["vdevs"].as_object()?;
    groups.iter().find(|(_, group)| group.to_string().contains(path)).map(|(name, _)| name.clone())
}
