//! The program itself: its command line, and its daemon, which is a child of ours and lives in a run folder of its own.

use crate::failure::{Failure, Outcome};
use larder_device::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time that a command may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Interval of looks at a child.
const LOOK: Duration = Duration::from_millis(5);

/// Words and end of a command.
#[derive(Debug)]
pub struct Said {
    /// Whether it ended with 0.
    pub ok: bool,
    /// Its exit code; none after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// Whether it failed for want of room.
    pub fn lacks_room(&self) -> bool {
        let err = self.err.to_lowercase();
        !self.ok && ["no space left", "no room", "room for", "is full"].iter().any(|word| err.contains(word))
    }
}

/// The program, and the folder that is all its own.
pub struct Larder {
    program: PathBuf,
    folder: PathBuf,
    daemon: Mutex<Option<Child>>,
    /// The daemon is being ended: nobody wonders that calls fail.
    dying: AtomicBool,
    /// Somebody wants it all to end.
    stopped: AtomicBool,
    clock: SystemClock,
}

impl Larder {
    /// For daemons below this folder.
    pub fn new(program: &Path, folder: &Path) -> Self {
        Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            daemon: Mutex::default(),
            dying: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            clock: SystemClock::new(),
        }
    }

    /// Whether the daemon is being ended.
    pub fn is_dying(&self) -> bool {
        self.dying.load(Ordering::SeqCst)
    }

    /// From now on lanes end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Whether [`Larder::stop`] was said.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // A signal of the terminal is for us alone.
        command.args(words).process_group(0);
        command.env("LARDER_RUN_DIR", self.folder.join("run"));
        command.env("LARDER_STATE_DIR", self.folder.join("state"));
        command
    }

    /// The line that somebody would type.
    fn line(words: &[&str]) -> String {
        format!("larder {}", words.join(" "))
    }

    /// Has a command run.
    ///
    /// # Errors
    /// When it cannot, is killed by a signal, or takes too long.
    pub fn run(&self, words: &[&str]) -> Outcome<Said> {
        let line = Self::line(words);
        let mut command = self.command(words);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| Failure::new(format!("{line} cannot be run: {error}")))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        std::thread::scope(|scope| {
            let out = scope.spawn(|| read(out));
            let err = scope.spawn(|| read(err));
            let status = self.wait(&mut child, &line)?;
            let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
            said(status, &line, out, err)
        })
    }

    /// Has a command run that must succeed.
    ///
    /// # Errors
    /// Also when it fails.
    pub fn must(&self, words: &[&str]) -> Outcome<String> {
        let said = self.run(words)?;
        if said.ok {
            return Ok(said.out);
        }
        let code = said.code.unwrap_or(-1);
        Err(Failure::new(format!("{} ended with {code}: {}", Self::line(words), said.err.trim())))
    }

    /// The same, of one that prints JSON.
    ///
    /// # Errors
    /// Also when that is none.
    pub fn json(&self, words: &[&str]) -> Outcome<Value> {
        let out = self.must(words)?;
        serde_json::from_str(&out)
            .map_err(|error| Failure::new(format!("{} printed no JSON: {error}", Self::line(words))))
    }

    /// Has two commands run, the output of the first being the other's input: what both said.
    ///
    /// # Errors
    /// As [`Larder::run`].
    pub fn pipe(&self, from: &[&str], to: &[&str]) -> Outcome<[Said; 2]> {
        let line = format!("{} | {}", Self::line(from), Self::line(to));
        let failed = |error: io::Error| Failure::new(format!("{line} cannot be run: {error}"));
        let mut first = self.command(from);
        let mut first = first
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stream = first.stdout.take().expect("it is piped");
        let mut second = self.command(to);
        let second = second.stdin(stream).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        // Its own end of the pipe is with the command, which goes here.
        let mut second = match second {
            Ok(second) => second,
            Err(error) => {
                let _ = first.kill().and_then(|()| first.wait());
                return Err(failed(error));
            }
        };
        let (first_err, out, err) = (first.stderr.take(), second.stdout.take(), second.stderr.take());
        std::thread::scope(|scope| {
            let first_err = scope.spawn(|| read(first_err));
            let out = scope.spawn(|| read(out));
            let err = scope.spawn(|| read(err));
            let status = [self.wait(&mut first, &line)?, self.wait(&mut second, &line)?];
            let mut texts = [first_err, out, err].map(|text| text.join().unwrap_or_default());
            let [first_err, out, err] = texts.each_mut().map(std::mem::take);
            Ok([said(status[0], &line, String::new(), first_err)?, said(status[1], &line, out, err)?])
        })
    }

    fn wait(&self, child: &mut Child, line: &str) -> Outcome<ExitStatus> {
        let mut waited = Duration::ZERO;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) => return Err(Failure::new(format!("{line}: {error}"))),
            }
            if waited > PATIENCE {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(Failure::new(format!("{line} had not ended after {} s", PATIENCE.as_secs())));
            }
            pause(LOOK);
            waited += LOOK;
        }
    }

    /// A line in the log that is left with a failure.
    pub fn note(&self, line: &str) {
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("torture.log"));
        let now = self.clock.monotonic().as_secs_f64();
        // The log is for people; that it cannot be written is no failure of the pool.
        let _ = log.and_then(|mut log| log.write_all(format!("{now:9.3} {line}\n").as_bytes()));
    }

    /// Starts the daemon and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn start(&self) -> Outcome<()> {
        let log = self.folder.join("daemon.log");
        let log = OpenOptions::new().create(true).append(true).open(log);
        let log = log.and_then(|log| Ok([log.try_clone()?, log]));
        let [out, err] = log.map_err(|error| Failure::new(format!("the daemon's log: {error}")))?;
        let mut command = self.command(&["daemon", "--no-import"]);
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        let child = child.map_err(|error| Failure::new(format!("the daemon cannot be started: {error}")))?;
        *self.lock() = Some(child);
        self.dying.store(false, Ordering::SeqCst);
        for _ in 0..3000 {
            self.check_daemon()?;
            if self.run(&["daemon", "status", "-j"])?.ok {
                return Ok(());
            }
            pause(LOOK);
        }
        Err(Failure::new("the daemon was started and does not answer"))
    }

    /// Whether the daemon runs that was not ended.
    ///
    /// # Errors
    /// When it has ended by itself.
    pub fn check_daemon(&self) -> Outcome<()> {
        let ended = self.lock().as_mut().and_then(|child| child.try_wait().ok().flatten());
        match ended {
            Some(status) if !self.is_dying() => {
                Err(Failure::new(format!("the daemon ended by itself ({status}): see its log")))
            }
            _ => Ok(()),
        }
    }

    /// Kills the daemon, as `kill -9` does, and waits until it is gone.
    pub fn kill(&self) {
        self.dying.store(true, Ordering::SeqCst);
        let child = self.lock().take();
        if let Some(mut child) = child {
            let _ = child.kill().and_then(|()| child.wait());
        }
    }

    /// Ends daemons that commands started when ours was dead; nobody uses them any more.
    ///
    /// # Errors
    /// When one does not end.
    pub fn end_strays(&self) -> Outcome<()> {
        let said = self.run(&["daemon", "status", "-j"])?;
        if said.ok {
            self.must(&["daemon", "stop"])?;
        }
        Ok(())
    }

    /// Exports all and ends the daemon.
    ///
    /// # Errors
    /// When it does not end.
    pub fn end(&self) -> Outcome<()> {
        self.dying.store(true, Ordering::SeqCst);
        let stopped = self.must(&["daemon", "stop"]).map(drop);
        let child = self.lock().take();
        if let Some(mut child) = child {
            if stopped.is_err() {
                let _ = child.kill();
            }
            let _ = self.wait(&mut child, "larder daemon stop");
        }
        stopped
    }

    /// Has the daemon of a hung pool end, so that calls that wait return.
    pub fn give_up(&self) {
        let id = self.lock().as_ref().and_then(|child| i32::try_from(child.id()).ok());
        if let Some(pid) = id.and_then(Pid::from_raw) {
            self.dying.store(true, Ordering::SeqCst);
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// The first panic in the daemon's log.
    pub fn panics(&self) -> Option<String> {
        let mut text = Vec::new();
        File::open(self.folder.join("daemon.log")).and_then(|mut log| log.read_to_end(&mut text)).ok()?;
        let text = String::from_utf8_lossy(&text);
        text.lines().find(|line| line.contains("panicked at")).map(str::to_owned)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.daemon.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for Larder {
    fn drop(&mut self) {
        self.kill();
    }
}

fn said(status: ExitStatus, line: &str, out: String, err: String) -> Outcome<Said> {
    if let Some(signal) = status.signal() {
        return Err(Failure::new(format!("{line} was killed by signal {signal}: {}", err.trim())));
    }
    if status.code() == Some(101) {
        return Err(Failure::new(format!("{line} panicked: {}", err.trim())));
    }
    Ok(Said { ok: status.success(), code: status.code(), out, err })
}

fn read(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // A part of it is better than none.
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "it waits for processes and kernels, of which no engine knows")]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}
