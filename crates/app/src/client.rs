//! The way from commands to the daemon: plain HTTP/1.1 over its socket, one request a connection. A command that needs
//! the daemon and does not find it starts it.

use crate::api::daemon::{DaemonStatus, Status, Stop};
use crate::api::diff::{Diff, Line, broken_off};
use crate::api::stream::{self, PART_DATA, PART_END, PART_HEAD, Receive, Received};
use crate::api::{ApiError, Done, ErrorKind, Result};
use crate::daemon::{
    COMMAND_HEADER, DIFF_ROUTE, RECEIVE_ROUTE, SEND_ROUTE, STATUS_ROUTE, STOP_ROUTE, VERSION, VERSION_HEADER,
    encoded,
};
use crate::engine::Verb;
use crate::run_dir::RunDir;
use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::convert::Infallible;
use std::error::Error;
use std::io::{ErrorKind as IoKind, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::Duration;

/// Polls, `PAUSE` apart, for a daemon that was just started to answer.
const START_TRIES: u32 = 1500;
/// Starts of daemons that end at once, before that is an error.
const SPAWNS: u32 = 3;
/// Polls for a daemon to end that has exported its pools.
const STOP_TRIES: u32 = 3000;
/// Polls for a killed daemon to be gone.
const DEATH_TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes of a stream that travel together.
const PIECE: usize = 1 << 20;

/// A way to the daemon of one run folder.
pub struct Client {
    run_dir: RunDir,
}

impl Client {
    /// For the daemon of `run_dir`, which need not run yet.
    pub fn new(run_dir: RunDir) -> Self {
        Self { run_dir }
    }

    /// Whether it is the way to the system's daemon.
    pub fn is_of_system(&self) -> bool {
        self.run_dir.is_of_system()
    }

    /// Has the daemon do something, and starts it first where it does not run.
    ///
    /// # Errors
    /// The engine's, or that the daemon cannot be reached.
    pub fn call<V: Verb>(&self, request: V) -> Result<V::Reply> {
        let stream = match self.connect()? {
            Some(stream) => stream,
            None => self.start()?,
        };
        match exchange(stream, V::ROUTE, &request) {
            // It was dying when we came. What it had begun is as after a power cut, and its successor has no
            // pool imported.
            Err(error) if error.kind == ErrorKind::Daemon && self.has_died()? => {
                exchange(self.start()?, V::ROUTE, &request).map_err(of_successor)
            }
            reply => reply,
        }
    }

    /// Shows what differs between snapshots, line by line.
    ///
    /// # Errors
    /// As [`Client::call`]; also when not all was told.
    pub fn diff(&self, request: &Diff, show: &mut dyn FnMut(Line)) -> Result<()> {
        let stream = match self.connect()? {
            Some(stream) => stream,
            None => self.start()?,
        };
        let body = serde_json::to_vec(request).map_err(|error| garbled(&error.to_string()))?;
        let (mut rest, mut ended) = (Vec::new(), None);
        let (code, body) = post_and_watch(stream, DIFF_ROUTE, Full::new(body.into()), &mut |piece| {
            rest.extend_from_slice(piece);
            let whole = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            for line in rest[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                match serde_json::from_slice(line) {
                    Ok(Line::Ended) => ended = Some(Ok(())),
                    Ok(Line::Failed(error)) => ended = Some(Err(error)),
                    Ok(line) => show(line),
                    Err(error) => ended = Some(Err(garbled(&error.to_string()))),
                }
            }
            rest.drain(..whole);
        })?;
        match code {
            StatusCode::OK => ended.unwrap_or_else(|| Err(broken_off())),
            code => Err(refusal(code, &body)),
        }
    }

    /// Shows the parts of what is sent, as they come: kind and bytes.
    ///
    /// # Errors
    /// As [`Client::call`]; also when it is not whole.
    pub fn send(&self, request: &stream::Send, show: &mut dyn FnMut(u8, &[u8]) -> Result<()>) -> Result<()> {
        let stream = match self.connect()? {
            Some(stream) => stream,
            None => self.start()?,
        };
        let body = serde_json::to_vec(request).map_err(|error| garbled(&error.to_string()))?;
        let (mut head, mut left, mut whole) = (Vec::new(), 0, Vec::new());
        let mut outcome: Result<Option<Result<()>>> = Ok(None);
        let (code, body) = post_and_watch(stream, SEND_ROUTE, Full::new(body.into()), &mut |mut piece| {
            while !piece.is_empty() && !matches!(outcome, Err(_) | Ok(Some(_))) {
                if head.len() < PART_HEAD {
                    let (some, rest) = piece.split_at((PART_HEAD - head.len()).min(piece.len()));
                    head.extend_from_slice(some);
                    piece = rest;
                    if head.len() < PART_HEAD {
                        return;
                    }
                    left = u32::from_le_bytes(head[1..].try_into().expect("four bytes")) as usize;
                }
                let (some, rest) = piece.split_at(left.min(piece.len()));
                (piece, left) = (rest, left - some.len());
                let shown = match head[0] {
                    PART_DATA => show(PART_DATA, some),
                    kind => {
                        whole.extend_from_slice(some);
                        match (left, kind) {
                            (0, PART_END) => {
                                let end = serde_json::from_slice::<Option<ApiError>>(&whole);
                                let end = end.map_err(|error| garbled(&error.to_string()));
                                outcome = end.map(|end| Some(end.map_or(Ok(()), Err)));
                                Ok(())
                            }
                            (0, _) => show(kind, &std::mem::take(&mut whole)),
                            _ => Ok(()),
                        }
                    }
                };
                if let Err(error) = shown {
                    outcome = Err(error);
                }
                if left == 0 {
                    head.clear();
                }
            }
        })?;
        match code {
            StatusCode::OK => outcome?.unwrap_or_else(|| Err(broken_off())),
            code => Err(refusal(code, &body)),
        }
    }

    /// Has the daemon receive what `input` gives.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn receive(&self, request: &Receive, mut input: impl Read + Send + 'static) -> Result<Received> {
        let stream = match self.connect()? {
            Some(stream) => stream,
            None => self.start()?,
        };
        let json = serde_json::to_vec(request).map_err(|error| garbled(&error.to_string()))?;
        let mut first = (json.len() as u32).to_le_bytes().to_vec();
        first.extend_from_slice(&json);
        let (pieces, body) = tokio::sync::mpsc::channel(4);
        // Nobody waits for it: the daemon may answer before the input ends.
        #[expect(clippy::disallowed_methods, reason = "a command's input, which no engine knows of")]
        std::thread::spawn(move || {
            let mut sent = pieces.blocking_send(Bytes::from(first)).is_ok();
            while sent {
                let mut piece = vec![0; PIECE];
                match input.read(&mut piece) {
                    Ok(0) => return,
                    Ok(len) => {
                        piece.truncate(len);
                        sent = pieces.blocking_send(piece.into()).is_ok();
                    }
                    Err(error) if error.kind() == IoKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        });
        let mut whole = Vec::new();
        let (code, body) =
            post_and_watch(stream, RECEIVE_ROUTE, Pieces(body), &mut |piece| whole.extend_from_slice(piece))?;
        match code {
            StatusCode::OK if whole.is_empty() => Err(broken_off()),
            StatusCode::OK => {
                let outcome: Result<Result<Received>, _> = serde_json::from_slice(&whole);
                outcome.map_err(|error| garbled(&error.to_string()))?
            }
            code => Err(refusal(code, &body)),
        }
    }

    /// Whether the daemon that dropped a connection is gone. A process that is killed closes its socket a
    /// moment before it lets go of its lock.
    fn has_died(&self) -> Result<bool> {
        for _ in 0..DEATH_TRIES {
            if self.run_dir.try_lock()?.is_some() {
                return Ok(true);
            }
            pause(PAUSE);
        }
        Ok(false)
    }

    /// State of the daemon; nothing when none runs.
    ///
    /// # Errors
    /// When it is there and does not answer.
    pub fn status(&self) -> Result<Option<DaemonStatus>> {
        self.connect()?.map(|stream| exchange(stream, STATUS_ROUTE, &Status {})).transpose()
    }

    /// Has the daemon export all pools and end; returns when it has. False when none ran.
    ///
    /// # Errors
    /// When a pool cannot be exported: then the daemon goes on.
    pub fn stop(&self) -> Result<bool> {
        let Some(stream) = self.connect()? else { return Ok(false) };
        let Done {} = exchange(stream, STOP_ROUTE, &Stop {})?;
        for _ in 0..STOP_TRIES {
            if self.run_dir.try_lock()?.is_some() {
                return Ok(true);
            }
            pause(PAUSE);
        }
        Err(ApiError::new(ErrorKind::Daemon, "the daemon has exported all pools but does not end")
            .safe("everything; all pools are exported"))
    }

    /// A connection; nothing when no daemon listens.
    fn connect(&self) -> Result<Option<UnixStream>> {
        if !self.run_dir.check()? {
            return Ok(None);
        }
        match UnixStream::connect(self.run_dir.socket()) {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if matches!(error.kind(), IoKind::NotFound | IoKind::ConnectionRefused) => Ok(None),
            Err(error) if error.kind() == IoKind::PermissionDenied => {
                let message =
                    format!("cannot reach the larder daemon in {}: {error}", self.run_dir.path().display());
                Err(ApiError::new(ErrorKind::Denied, message).hint("run as the user that the daemon runs as"))
            }
            Err(error) => Err(self.unreachable(&error.to_string(), None)),
        }
    }

    /// Starts a daemon that outlives this command, and waits until it answers.
    fn start(&self) -> Result<UnixStream> {
        let log_before = std::fs::metadata(self.run_dir.log()).map_or(0, |log| log.len());
        let mut child = self.spawn()?;
        let (mut gone, mut spawned) = (false, 1);
        for _ in 0..START_TRIES {
            if let Some(stream) = self.connect()? {
                return Ok(stream);
            }
            // A child that found the lock taken leaves. Whoever has it may still answer; or it was on its way out, or
            // another command that only looked.
            if gone && self.run_dir.try_lock()?.is_some() {
                if spawned == SPAWNS {
                    return Err(self.unreachable("it ended at once", Some(log_before)));
                }
                child = self.spawn()?;
                (gone, spawned) = (false, spawned + 1);
            }
            gone = gone || child.try_wait().is_ok_and(|status| status.is_some());
            pause(PAUSE);
        }
        Err(self.unreachable("it does not answer", Some(log_before)))
    }

    fn spawn(&self) -> Result<Child> {
        self.run_dir.create()?;
        // A daemon outlives the command: it must not keep pipes and locks that a script passed on.
        close_fds::set_fds_cloexec(3, &[]);
        let log = self.run_dir.open_log()?;
        let spawn = || -> std::io::Result<Child> {
            Command::new(std::env::current_exe()?)
                .arg0("larder")
                .args(["daemon", "--detached"])
                .env("LARDER_RUN_DIR", self.run_dir.path())
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()
        };
        spawn().map_err(|error| self.unreachable(&format!("it cannot be started: {error}"), None))
    }

    /// An error, with the last words of a daemon that was started when its log had this many bytes.
    fn unreachable(&self, why: &str, log_before: Option<u64>) -> ApiError {
        let mut message = format!("cannot reach the larder daemon: {why}");
        let log = log_before.and_then(|_| std::fs::read(self.run_dir.log()).ok()).unwrap_or_default();
        let fresh = log.get(log_before.unwrap_or_default() as usize..).unwrap_or_default();
        let fresh = String::from_utf8_lossy(fresh);
        // Indented lines are the details of the line before them.
        if let Some(last) = fresh.lines().rev().find(|line| line.starts_with(|c: char| !c.is_whitespace())) {
            message += &format!("; its last words: {last}");
        }
        ApiError::new(ErrorKind::Daemon, message)
            .safe("everything on the devices; nothing was asked of them")
            .hint(format!("read {}", self.run_dir.log().display()))
    }
}

/// Waits a little, in a command.
#[expect(clippy::disallowed_methods, reason = "a command's only thread, waiting for another process")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// An error of the daemon started after one that died over the request. Its NotFound is about its own imports, not
/// about the pool.
fn of_successor(error: ApiError) -> ApiError {
    if error.kind != ErrorKind::NotFound {
        return error;
    }
    let message = format!("the daemon died meanwhile, and the one started after it says: {}", error.message);
    ApiError::new(ErrorKind::Daemon, message)
        .safe("everything that was committed or synced before")
        .hint(error.hint.unwrap_or_else(|| "larder pool import NAME, then try again".to_owned()))
}

fn exchange<Q: Serialize, A: DeserializeOwned>(stream: UnixStream, route: &str, request: &Q) -> Result<A> {
    let body = serde_json::to_vec(request).map_err(|error| garbled(&error.to_string()))?;
    let (code, body) = post(stream, route, body)?;
    if code == StatusCode::OK {
        return serde_json::from_slice(&body).map_err(|error| garbled(&error.to_string()));
    }
    Err(refusal(code, &body))
}

/// The error that a reply is. Those of axum's own (a route or body it does not know) are plain text.
fn refusal(code: StatusCode, body: &[u8]) -> ApiError {
    serde_json::from_slice(body).unwrap_or_else(|_| {
        garbled(&format!("status {}: {}", code.as_u16(), String::from_utf8_lossy(body).trim()))
    })
}

/// Posts `body` and reads the whole reply: its status code and body.
fn post(stream: UnixStream, route: &str, body: Vec<u8>) -> Result<(StatusCode, Bytes)> {
    let mut whole = Vec::new();
    let (code, refusal) =
        post_and_watch(stream, route, Full::new(body.into()), &mut |piece| whole.extend_from_slice(piece))?;
    Ok((code, if code == StatusCode::OK { whole.into() } else { refusal }))
}

/// Posts `body` and shows the body of the reply as it comes, unless it is an error: then it is given, with its code.
fn post_and_watch(
    stream: UnixStream,
    route: &str,
    body: impl Body<Data = Bytes, Error = Infallible> + Send + 'static,
    show: &mut dyn FnMut(&[u8]),
) -> Result<(StatusCode, Bytes)> {
    let request = Request::post(route)
        .header(header::HOST, "larder")
        .header(header::CONNECTION, "close")
        .header(header::CONTENT_TYPE, "application/json")
        .header(VERSION_HEADER, VERSION)
        .header(COMMAND_HEADER, encoded(&command_line()))
        .body(Box::pin(body))
        .map_err(|error| garbled(&error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(|error| garbled(&error.to_string()))?;
    let reply = async {
        stream.set_nonblocking(true)?;
        let stream = tokio::net::UnixStream::from_std(stream)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let reply = sender.send_request(request).await?;
        let (code, mut body) = (reply.status(), reply.into_body());
        if code != StatusCode::OK {
            return Ok::<_, Box<dyn Error + Send + Sync>>((code, body.collect().await?.to_bytes()));
        }
        while let Some(frame) = body.frame().await {
            if let Ok(piece) = frame?.into_data() {
                show(&piece);
            }
        }
        Ok((code, Bytes::new()))
    };
    runtime.block_on(reply).map_err(|error| garbled(&error.to_string()))
}

/// A body that comes by and by.
struct Pieces(tokio::sync::mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// This command as it was typed, without the folders of its name.
fn command_line() -> String {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let name = words.next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    let plain = |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '\'');
    let quoted =
        |word: String| if plain(&word) { word } else { format!("'{}'", word.replace('\'', "'\\''")) };
    let words: Vec<String> = std::iter::once(name).chain(words.map(quoted)).collect();
    words.join(" ")
}

fn garbled(why: &str) -> ApiError {
    ApiError::new(ErrorKind::Daemon, format!("the daemon did not answer: {why}"))
        .safe("everything that was committed or synced before")
        .hint("larder daemon status; daemon.log in the run folder tells why")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::Shutdown;

    #[test]
    fn a_pool_that_died_with_its_daemon_is_not_said_to_be_unknown() {
        let told = of_successor(ApiError::no_such_pool("tank"));
        assert_eq!(told.kind, ErrorKind::Daemon);
        assert!(told.to_string().contains("the daemon died"), "{told}");
        let busy = ApiError::new(ErrorKind::Busy, "in use");
        assert_eq!(of_successor(busy.clone()), busy);
    }

    #[test]
    fn a_reply_is_taken_only_when_it_is_whole() {
        let answered = |reply: &[u8]| {
            let (stream, mut peer) = UnixStream::pair().unwrap();
            peer.write_all(reply).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
            post(stream, STATUS_ROUTE, b"{}".to_vec())
        };
        let whole = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(answered(whole), Ok((StatusCode::NOT_FOUND, Bytes::from("{}"))));
        for end in 0..whole.len() {
            assert!(answered(&whole[..end]).is_err());
        }
        assert!(answered(b"SSH-2.0\r\n\r\n").is_err());
    }
}
