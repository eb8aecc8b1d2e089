//! The larder command of this machine, or of another by ssh: where streams come from and go to.
//!
//! All is done by commands as people would type them, on either side, so that both need not be of one version and a key
//! may be restricted to them. Words are quoted for the shell of the other machine, and none of a name is an option.

use crate::api::stream::Received;
use crate::api::{ApiError, ErrorKind, Result, name};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

/// The exit code by which ssh says that the connection is at fault.
const SSH_FAILED: i32 = 255;
/// That of shells for a command that they do not find.
const NO_COMMAND: i32 = 127;
/// Bytes of what a command complains that are kept.
const COMPLAINT_MAX: u64 = 64 << 10;

/// The way to other machines.
#[derive(Debug, Clone, clap::Args)]
pub struct Way {
    /// Command that reaches other machines, with its options
    #[arg(long, env = "LARDER_SSH", value_name = "COMMAND", default_value = "ssh")]
    ssh: String,
    /// Command that larder is there, with what is to come before it
    #[arg(long, value_name = "COMMAND", default_value = "larder")]
    remote_larder: String,
    /// Bytes that a command may have, words and quotes; Linux takes 128 KiB in one word, and ssh makes one of it all
    #[arg(long, value_name = "BYTES", default_value_t = 96 << 10, hide = true)]
    line_max: usize,
}

impl Way {
    /// The options that say it, where it is not the usual one.
    pub fn words(&self) -> Vec<&str> {
        let ssh = ["--ssh", &self.ssh].into_iter().filter(|_| self.ssh != "ssh");
        let larder = ["--remote-larder", &self.remote_larder].into_iter();
        ssh.chain(larder.filter(|_| self.remote_larder != "larder")).collect()
    }
}

/// A dataset, here or on another machine.
#[derive(Debug, Clone)]
pub struct Place {
    /// The machine.
    pub side: Side,
    /// The dataset's full name there.
    pub dataset: String,
}

/// A machine.
#[derive(Debug, Clone)]
pub struct Side {
    /// Nothing for this one.
    host: Option<String>,
    ssh: Vec<String>,
    larder: Vec<String>,
    line_max: usize,
}

/// Failure of a command, or of a stream between two.
#[derive(Debug)]
pub enum Failure {
    /// The connection broke, or the daemon is gone: another attempt may do.
    Lost(ApiError),
    /// It was refused, in the words of that side.
    Refused(ApiError),
}

impl Failure {
    /// The error alone.
    pub fn into_error(self) -> ApiError {
        match self {
            Self::Lost(error) | Self::Refused(error) => error,
        }
    }

    /// The message of what was refused; nothing for what was lost.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => Some(&error.message),
            Self::Lost(_) => None,
        }
    }
}

impl Place {
    /// `DATASET`, `HOST:DATASET` or `USER@HOST:DATASET`; as rsync has it, a host ends before the first slash.
    ///
    /// # Errors
    /// Usage, when a part is none, or could be taken for an option.
    pub fn parse(text: &str, way: &Way) -> Result<Self> {
        let words = |text: &str| {
            let words = shlex::split(text).filter(|words| !words.is_empty());
            words.ok_or_else(|| ApiError::usage(format!("'{text}' is no command: its quotes have no end")))
        };
        let (host, dataset) = match split_host(text) {
            Some((host, dataset)) => (Some(host.to_owned()), dataset),
            None => (None, text),
        };
        if let Some(host) = &host {
            let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
            // Brackets are for us alone.
            let bare = host.replace(['[', ']'], "");
            if bare.is_empty() || bare.starts_with('-') || !bare.chars().all(is_plain) {
                return Err(ApiError::usage(format!("'{host}' cannot be the name of a machine")));
            }
        }
        name::check_dataset(dataset)?;
        let side =
            Side { host, ssh: words(&way.ssh)?, larder: words(&way.remote_larder)?, line_max: way.line_max };
        Ok(Self { side, dataset: dataset.to_owned() })
    }

    /// The name of what lies at `path` below it, with its machine.
    pub fn told(&self, path: &str) -> String {
        let dataset = self.below(path);
        self.side.host.as_ref().map_or_else(|| dataset.clone(), |host| format!("{host}:{dataset}"))
    }

    /// The same without its machine.
    pub fn below(&self, path: &str) -> String {
        if path.is_empty() { self.dataset.clone() } else { format!("{}/{path}", self.dataset) }
    }
}

/// Host and dataset; an address with colons stands in brackets.
fn split_host(text: &str) -> Option<(&str, &str)> {
    if let Some(open) = text.find('[').filter(|at| *at == 0 || text[..*at].ends_with('@'))
        && let Some((_, dataset)) = text[open..].split_once("]:")
    {
        return Some((&text[..text.len() - dataset.len() - 1], dataset));
    }
    let (host, dataset) = text.split_once(':')?;
    (!host.contains('/')).then_some((host, dataset))
}

impl Side {
    /// Whether another is the same machine, by its name.
    pub fn is_same(&self, other: &Self) -> bool {
        self.host == other.host
    }

    /// The machine's name in front of what it said.
    fn said(&self, text: &str) -> String {
        self.host.as_ref().map_or_else(|| text.to_owned(), |host| format!("{host}: {text}"))
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let Some(host) = &self.host else {
            let own = std::env::current_exe().map_err(|error| {
                ApiError::new(ErrorKind::Internal, format!("cannot find the larder command: {error}"))
            })?;
            let mut command = Command::new(own);
            command.arg0("larder").args(arguments);
            return Ok(command);
        };
        let words = self.larder.iter().map(String::as_str).chain(arguments.iter().copied());
        let line = shlex::try_join(words)
            .map_err(|_| ApiError::usage("a name with a zero byte cannot be handed to another machine"))?;
        let mut command = Command::new(&self.ssh[0]);
        // Brackets are for us alone.
        let host = host.replace(['[', ']'], "");
        command.args(&self.ssh[1..]).arg(host).arg(line);
        Ok(command)
    }

    /// Runs of names, in their order, so that a command of these words and each run is not too long. A name that is too
    /// long by itself is a run of its own.
    pub fn runs<'a>(&self, words: &[&str], names: &'a [String]) -> Vec<&'a [String]> {
        let quoted = |word: &str| shlex::try_quote(word).map_or(word.len(), |quoted| quoted.len()) + 1;
        let larder = self.larder.iter().map(String::as_str);
        let room = self.line_max.saturating_sub(larder.chain(words.iter().copied()).map(quoted).sum());
        let (mut runs, mut from, mut len) = (Vec::new(), 0, 0);
        for (at, name) in names.iter().enumerate() {
            let more = quoted(name);
            if at > from && len + more > room {
                runs.push(&names[from..at]);
                (from, len) = (at, 0);
            }
            len += more;
        }
        runs.extend((from < names.len()).then(|| &names[from..]));
        runs
    }

    /// Runs a command for these names, several times where they are too many for one; what they printed.
    ///
    /// # Errors
    /// What the first one said that failed; later ones are not run.
    pub fn run_for(&self, words: &[&str], names: &[String]) -> Result<String, Failure> {
        let runs = self.runs(words, names).into_iter();
        let run = |names: &[String]| {
            let words = words.iter().copied().chain(names.iter().map(String::as_str));
            self.run(&words.collect::<Vec<_>>())
        };
        runs.map(run).collect()
    }

    /// Runs a command that reads these lines.
    ///
    /// # Errors
    /// What it said, when it failed.
    pub fn feed(&self, arguments: &[&str], lines: &[String]) -> Result<(), Failure> {
        let (mut child, complaint) = self.spawn(arguments, Stdio::piped())?;
        // It reads all before it prints anything; where it does not, it failed, and says why.
        let input = child.stdin.take().map(|mut input| input.write_all((lines.join("\n") + "\n").as_bytes()));
        let _ = input;
        let output = child.wait_with_output().map_err(|error| self.not_waited_for(&error))?;
        self.judge(output.status, complaint.text())
    }

    fn spawn(&self, arguments: &[&str], input: Stdio) -> Result<(Child, Complaint), Failure> {
        let mut command = self.command(arguments).map_err(Failure::Refused)?;
        let spawned = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            Failure::Refused(ApiError::new(ErrorKind::Denied, format!("cannot run '{program}': {error}")))
        })?;
        let complaint = Complaint::of(child.stderr.take());
        Ok((child, complaint))
    }

    /// Runs a command to its end; what it printed.
    ///
    /// # Errors
    /// What it said, when it failed.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Failure> {
        let (child, complaint) = self.spawn(arguments, Stdio::null())?;
        let output = child.wait_with_output().map_err(|error| self.not_waited_for(&error))?;
        self.judge(output.status, complaint.text())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether a command prints anything; it is not listened to any longer than that.
    ///
    /// # Errors
    /// What it said, when it failed without printing.
    pub fn prints(&self, arguments: &[&str]) -> Result<bool, Failure> {
        let (mut child, complaint) = self.spawn(arguments, Stdio::null())?;
        let some =
            child.stdout.take().is_some_and(|mut output| output.read(&mut [0]).is_ok_and(|len| len > 0));
        if some {
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| self.not_waited_for(&error))?;
        if some { Ok(true) } else { self.judge(status, complaint.text()).map(|()| false) }
    }

    /// Starts `fs send`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn send(&self, arguments: &[&str]) -> Result<Sender, Failure> {
        let (mut child, complaint) = self.spawn(&[&["fs", "send"], arguments].concat(), Stdio::null())?;
        let output = child.stdout.take();
        Ok(Sender { side: self.clone(), child, complaint, output })
    }

    /// Starts `fs receive`, which keeps what came when the stream breaks off.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn receive(&self, options: &[&str], dataset: &str) -> Result<Receiver, Failure> {
        let arguments = [&["fs", "receive", "-s", "-j"], options, &[dataset]].concat();
        let (mut child, complaint) = self.spawn(&arguments, Stdio::piped())?;
        let input = child.stdin.take();
        Ok(Receiver { side: self.clone(), child, complaint, input })
    }

    fn not_waited_for(&self, error: &std::io::Error) -> Failure {
        Failure::Refused(ApiError::new(
            ErrorKind::Internal,
            self.said(&format!("a command was lost: {error}")),
        ))
    }

    /// Failure of a command that ended so, and said this.
    fn judge(&self, status: ExitStatus, said: String) -> Result<(), Failure> {
        if status.success() {
            return Ok(());
        }
        let by_ssh = self.host.is_some();
        // It may come from anybody, and goes to a terminal.
        let said = said.lines().map(name::printable).collect::<Vec<_>>().join("\n");
        if by_ssh && status.code() == Some(NO_COMMAND) {
            let message = self.said(&format!("there is no '{}' ({said})", self.larder[0]));
            let hint = "--remote-larder names it, with its path";
            return Err(Failure::Refused(ApiError::new(ErrorKind::NotFound, message).hint(hint)));
        }
        let is_cut = by_ssh && (status.code() == Some(SSH_FAILED) || status.signal().is_some());
        let message = match said.as_str() {
            "" => self.said(&format!("it ended with {status} and without a word")),
            said => self.said(said),
        };
        let gone = ["the daemon ", "cannot reach the larder daemon"];
        // There may be a greeting before it.
        let is_gone = said.lines().any(|line| gone.iter().any(|words| line.starts_with(words)));
        // Where a connection broke the other side may not know yet.
        let is_busy = said.contains("a stream is being received into");
        if is_cut || is_gone || is_busy {
            let doing = if is_cut { "the connection broke off: " } else { "" };
            return Err(Failure::Lost(ApiError::new(ErrorKind::Daemon, format!("{doing}{message}"))));
        }
        // The other side's text has its hints behind it already.
        Err(Failure::Refused(ApiError::new(ErrorKind::Denied, message)))
    }
}

/// What a command complains about.
struct Complaint(Option<JoinHandle<String>>);

impl Complaint {
    fn of(stderr: Option<ChildStderr>) -> Self {
        let read = |mut stderr: ChildStderr| {
            let mut text = Vec::new();
            let _ = stderr.by_ref().take(COMPLAINT_MAX).read_to_end(&mut text);
            // A command that is not read from would stand still.
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
            String::from_utf8_lossy(&text).trim().to_owned()
        };
        #[expect(clippy::disallowed_methods, reason = "a command beside another, which no engine knows of")]
        Self(stderr.map(|stderr| std::thread::spawn(move || read(stderr))))
    }

    fn text(self) -> String {
        self.0.and_then(|reads| reads.join().ok()).unwrap_or_default()
    }
}

/// A stream on its way out of a machine.
pub struct Sender {
    side: Side,
    child: Child,
    complaint: Complaint,
    output: Option<ChildStdout>,
}

impl Sender {
    /// The stream.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.output.take()
    }

    /// Ends it: nobody listens any more.
    pub fn stop(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What it said, when it failed.
    pub fn finish(mut self) -> Result<(), Failure> {
        let status = self.child.wait().map_err(|error| self.side.not_waited_for(&error))?;
        self.side.judge(status, self.complaint.text())
    }
}

/// A stream on its way into a machine.
pub struct Receiver {
    side: Side,
    child: Child,
    complaint: Complaint,
    input: Option<ChildStdin>,
}

impl Receiver {
    /// Gives it a piece; false when it takes no more, and [`Receiver::finish`] tells why.
    pub fn take(&mut self, piece: &[u8]) -> bool {
        self.input.as_mut().is_some_and(|input| input.write_all(piece).is_ok())
    }

    /// Ends the stream, and waits for what comes of it.
    ///
    /// # Errors
    /// What it said, when it failed.
    pub fn finish(mut self) -> Result<Received, Failure> {
        drop(self.input.take());
        let mut told = Vec::new();
        if let Some(mut output) = self.child.stdout.take() {
            let _ = output.read_to_end(&mut told);
        }
        let status = self.child.wait().map_err(|error| self.side.not_waited_for(&error))?;
        self.side.judge(status, self.complaint.text())?;
        // Another version may tell it otherwise: then sizes are not known.
        Ok(serde_json::from_slice(&told).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way() -> Way {
        Way { ssh: "ssh -p 2222".into(), remote_larder: "sudo larder".into(), line_max: 60 }
    }

    fn line(place: &str, arguments: &[&str]) -> Vec<String> {
        let command = Place::parse(place, &way()).unwrap().side.command(arguments).unwrap();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_host_ends_before_the_first_slash() {
        let split = |text: &str| {
            let place = Place::parse(text, &way()).unwrap();
            (place.side.host.clone().unwrap_or_default(), place.dataset)
        };
        assert_eq!(split("tank/x"), (String::new(), "tank/x".into()));
        assert_eq!(split("nas:tank/x"), ("nas".into(), "tank/x".into()));
        assert_eq!(split("me@nas:tank/x:y"), ("me@nas".into(), "tank/x:y".into()));
        assert_eq!(split("tank/a:b"), (String::new(), "tank/a:b".into()));
        assert_eq!(split("me@[fe80::1]:tank"), ("me@[fe80::1]".into(), "tank".into()));
        assert_eq!(line("me@[fe80::1]:tank", &["x"])[3], "me@fe80::1");
    }

    #[test]
    fn no_name_is_an_option_or_a_command() {
        for bad in [
            "-oProxyCommand=x:tank",
            "[-oProxyCommand=x]:tank",
            ":tank",
            "a b:tank",
            "nas:",
            "nas:-x",
            "nas:tank/$(x)",
            "nas:tank/a;b",
        ] {
            assert!(Place::parse(bad, &way()).is_err(), "{bad}");
        }
        let told = line("nas:tank", &["fs", "send", "tank/a b@x", "$(reboot)", "it's", "", "tank#b"]);
        let whole = r#"sudo larder fs send 'tank/a b@x' '$(reboot)' "it's" '' 'tank#b'"#;
        assert_eq!(told, ["ssh", "-p", "2222", "nas", whole]);
    }

    #[test]
    fn names_that_are_too_many_for_one_command_go_in_several() {
        let side = Place::parse("nas:tank", &way()).unwrap().side;
        let words = ["fs", "release", "tag"];
        let names: Vec<_> = (0..9).map(|number| format!("tank/a b@{number}")).collect();
        let runs = side.runs(&words, &names);
        assert!(runs.len() > 1);
        assert_eq!(runs.concat(), names);
        for run in &runs {
            let words: Vec<_> = words.iter().copied().chain(run.iter().map(String::as_str)).collect();
            let line = line("nas:tank", &words).pop().unwrap();
            assert!(line.len() <= 60, "{line}");
            // One more would not have fitted.
            assert!(run.len() == 2 || run.last() == names.last(), "{line}");
        }
        let long = ["x".repeat(200), "y".to_owned()];
        assert_eq!(side.runs(&words, &long), [&long[..1], &long[1..]]);
        assert!(side.runs(&words, &[]).is_empty());
    }

    #[test]
    fn what_a_shell_reads_is_what_was_meant() {
        for word in ["a b", "it's", "$(exit 3)", "`x`", "a\"b\\c", "", "*", "~", "a\nb", "-n"] {
            let line = shlex::try_join(["printf", "%s", word]).unwrap();
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn what_another_machine_says_moves_no_cursor() {
        let side = Place::parse("nas:tank", &way()).unwrap().side;
        let refused = side.judge(ExitStatus::from_raw(256), "one\n\u{1b}[2Jtwo".to_owned()).unwrap_err();
        assert_eq!(refused.refusal(), Some("nas: one\n\\u{1b}[2Jtwo"));
    }

    #[test]
    fn a_broken_connection_is_told_from_a_refusal() {
        let judged = |place: &str, code: i32, said: &str| {
            let side = Place::parse(place, &way()).unwrap().side;
            side.judge(ExitStatus::from_raw(code << 8), said.to_owned())
        };
        assert!(judged("nas:tank", 0, "").is_ok());
        assert!(matches!(judged("nas:tank", 255, "no route"), Err(Failure::Lost(_))));
        assert!(matches!(judged("tank", 255, "x"), Err(Failure::Refused(_))));
        assert!(matches!(judged("tank", 1, "cannot reach the larder daemon: x"), Err(Failure::Lost(_))));
        let busy = judged("nas:tank", 1, "cannot receive: a stream is being received into tank");
        assert!(matches!(busy, Err(Failure::Lost(_))), "the one before, which will end");
        let refused = judged("nas:tank", 1, "cannot open 'tank'").unwrap_err();
        assert_eq!(refused.refusal(), Some("nas: cannot open 'tank'"));
        let missing = judged("nas:tank", 127, "sh: larder: not found").unwrap_err().into_error();
        assert!(missing.hint.unwrap().contains("--remote-larder"));
    }
}
