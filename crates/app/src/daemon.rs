//! The daemon: one process for all imported pools, answering HTTP with JSON on a Unix socket.
//!
//! Life: take the lock (a second daemon ends here, unless it takes over), remove a stale socket, bind, answer, import
//! what was imported before; then systemd hears that it is ready. It ends by `/v1/daemon/stop`, SIGTERM, SIGINT or
//! SIGHUP, which export all pools first: then the socket goes, and at last, with the process, the lock. So "the lock is
//! free" means that no daemon touches the run folder or a pool any more. A daemon that is killed leaves lock and pools
//! to its successor as a power cut would.

use crate::api::daemon::{DaemonStatus, Status, Stop};
use crate::api::diff::{Diff, Line};
use crate::api::events::Command;
use crate::api::name::printable;
use crate::api::stream::{self, Part, Receive, Received};
use crate::api::{ApiError, Done, ErrorKind, Result};
use crate::engine::{self, Engine, Verb, Visitor};
use crate::run_dir::{self, RunDir};
use crate::service;
use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::IncomingStream;
use axum::{Json, Router};
use http_body_util::BodyExt;
use hyper::body::Frame;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::convert::Infallible;
use std::fs;
use std::io::{ErrorKind as IoKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

/// This build's version; command and daemon must be of the same.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The header in which both sides tell their version.
pub const VERSION_HEADER: &str = "larder-version";
/// The header in which a command tells how it was typed; see [`encoded`].
pub const COMMAND_HEADER: &str = "larder-command";
/// Where [`Status`] is posted to.
pub const STATUS_ROUTE: &str = "/v1/daemon/status";
/// Where [`Stop`] is posted to.
pub const STOP_ROUTE: &str = "/v1/daemon/stop";

/// Where [`Diff`] is posted to.
pub const DIFF_ROUTE: &str = "/v1/fs/diff";
/// Where [`stream::Send`] is posted to.
pub const SEND_ROUTE: &str = "/v1/fs/send";
/// Where [`Receive`] is posted to, and a stream behind it.
pub const RECEIVE_ROUTE: &str = "/v1/fs/receive";
/// The most bytes of a request in front of a stream.
const REQUEST_MAX: usize = 1 << 20;
/// Bytes of a stream that travel together, and pieces of them that wait for a slow reader.
const STREAM_PIECE: usize = 64 << 10;
const STREAM_AHEAD: usize = 4;
/// Time limit for a reader to take a piece.
const STREAM_PATIENCE: Duration = Duration::from_secs(300);

/// Time between two looks at whether a reader or writer that takes its time is still to be waited for.
const STREAM_LOOK: Duration = Duration::from_millis(250);

/// Time limit for replies to leave once all pools are exported.
const LAST_REPLIES: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Shared {
    engine: Arc<dyn Engine>,
    stop: watch::Sender<bool>,
}

/// Options of a daemon's start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beginning {
    /// Has another one that runs end, and goes on where that was.
    pub take_over: bool,
    /// Imports the pools that were imported when the last one ended, and waits for missing devices that long; none, it
    /// imports nothing.
    pub import: Option<Duration>,
}

/// Runs a daemon in this process until it is told to stop. `start` makes the engine once the daemon
/// is known to be the only one.
///
/// # Errors
/// When another daemon runs, the engine or the socket cannot be set up, or pools could not be exported.
pub fn run(
    run_dir: &RunDir,
    beginning: Beginning,
    start: impl FnOnce() -> Result<Arc<dyn Engine>>,
) -> Result<()> {
    run_dir.create()?;
    let lock = match run_dir.try_lock()? {
        Some(lock) => lock,
        None if beginning.take_over => service::take_over(run_dir)?,
        None => {
            let message = format!("a daemon is already running in {}", run_dir.path().display());
            return Err(ApiError::new(ErrorKind::Exists, message)
                .hint("larder daemon status; to go on where it is: larder daemon --take-over"));
        }
    };
    run_dir::sign(&lock);
    raise_descriptors();
    let engine = start()?;
    let (listener, socket) = listen(run_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| internal("start the daemon's threads", &error))?;
    info!("larder {VERSION} is ready, pid {}", std::process::id());
    let outcome = runtime.block_on(serve(listener, engine, beginning.import));
    // Somebody else's may lie there now: systemd's, when its daemon takes over.
    if socket.is_some() && socket == inode(&run_dir.socket()) {
        let _ = fs::remove_file(run_dir.socket());
    }
    runtime.shutdown_background();
    info!("larder {VERSION} has ended");
    outcome
}

/// File descriptors that a daemon wants: one for each device and connection, some for each thread that reads. With
/// fewer than the second number threads do without theirs, so that a pool can still be exported.
const DESCRIPTORS: u64 = 65_536;
const DESCRIPTORS_FEW: u64 = 256;

/// Allows this process as many file descriptors as it may have.
fn raise_descriptors() {
    let before = getrlimit(Resource::Nofile);
    let some = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    // Root may go beyond the maximum.
    for maximum in [before.maximum.map(|most| most.max(DESCRIPTORS)), before.maximum] {
        let wished = Rlimit { current: maximum, maximum };
        if some(before.current) >= DESCRIPTORS || setrlimit(Resource::Nofile, wished).is_ok() {
            break;
        }
    }
    let now = some(getrlimit(Resource::Nofile).current);
    if now < DESCRIPTORS_FEW {
        warn!("only {now} files may be open (ulimit -n): reads are slower than they could be");
        larder_device::do_without_rings();
    }
}

/// Device and inode of what lies at a path.
fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The socket that systemd bound, or one that is bound here, and its inode: that is to be removed at the end. The lock
/// is held, so a socket that is there is nobody's.
fn listen(run_dir: &RunDir) -> Result<(UnixListener, Option<(u64, u64)>)> {
    let path = run_dir.socket();
    if let Some(listener) = service::given_listener().map_err(|error| internal("listen", &error))? {
        return Ok((listener, None));
    }
    let bind = || -> std::io::Result<UnixListener> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listener = bind().map_err(|error| internal(&format!("listen on {}", path.display()), &error))?;
    Ok((listener, inode(&path)))
}

/// Imports what was imported before, if asked to, and tells systemd when that is over.
async fn begin(engine: Arc<dyn Engine>, import: Option<Duration>) {
    if let Some(patience) = import {
        let again = blocking(move || {
            engine.import_again(patience, &|told| {
                info!("{told}");
                service::status(told);
            });
            Ok(())
        });
        tokio::pin!(again);
        while tokio::time::timeout(service::EXTENSION / 3, &mut again).await.is_err() {
            service::extend();
        }
    }
    service::ready();
}

async fn serve(listener: UnixListener, engine: Arc<dyn Engine>, import: Option<Duration>) -> Result<()> {
    let listener =
        tokio::net::UnixListener::from_std(listener).map_err(|error| internal("listen", &error))?;
    let (stop, stopped) = watch::channel(false);
    let router = router(Shared { engine: Arc::clone(&engine), stop });
    let watch = |kind| signal(kind).map_err(|error| internal("watch signals", &error));
    let mut terminate = watch(SignalKind::terminate())?;
    let mut interrupt = watch(SignalKind::interrupt())?;
    let mut hang_up = watch(SignalKind::hangup())?;
    let (mut ending, mut stopped) = (stopped.clone(), stopped);
    tokio::spawn(begin(Arc::clone(&engine), import));
    // Clients are answered until all is exported.
    let told = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
        }
        service::stopping();
        tokio::time::timeout(service::LEAVE_LIMIT, export_all(engine, true)).await.unwrap_or_else(|_| {
            let message = format!("not all pools could be left within {} s", service::LEAVE_LIMIT.as_secs());
            Err(ApiError::new(ErrorKind::Daemon, message).safe("what was committed or synced before"))
        })
    };
    let server = axum::serve(listener, router.into_make_service_with_connect_info::<Peer>())
        .with_graceful_shutdown(async move {
            let _ = ending.wait_for(|&stop| stop).await;
        });
    // Requests that are still unanswered when all pools are exported have nothing to wait for.
    let impatient = async move {
        let _ = stopped.wait_for(|&stop| stop).await;
        tokio::time::sleep(LAST_REPLIES).await;
    };
    tokio::select! {
        () = impatient => Ok(()),
        outcome = server => outcome.map_err(|error| internal("serve", &error)),
        outcome = told => outcome,
    }
}

/// With `force`, mounts are ended whoever is in them, and a suspended pool goes as it is.
async fn export_all(engine: Arc<dyn Engine>, force: bool) -> Result<()> {
    blocking(move || engine.export_all(force)).await
}

/// Runs what blocks where it may. A panic there ends the request, not the daemon.
async fn blocking<T: Send + 'static>(job: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(job).await.unwrap_or_else(|_| {
        Err(ApiError::new(ErrorKind::Internal, "the daemon met a bug while doing this")
            .safe("everything that was committed or synced before")
            .hint("see daemon.log in the run folder"))
    })
}

struct Routes(Router<Shared>);

impl Visitor for Routes {
    fn verb<V: Verb>(&mut self) {
        let router = std::mem::take(&mut self.0);
        self.0 = router.route(V::ROUTE, post(answer::<V>));
    }
}

fn router(shared: Shared) -> Router {
    let mut routes = Routes(Router::new());
    engine::visit(&mut routes);
    routes
        .0
        .route(DIFF_ROUTE, post(diff))
        .route(SEND_ROUTE, post(send))
        .route(RECEIVE_ROUTE, post(receive).layer(DefaultBodyLimit::disable()))
        .layer(middleware::from_fn(same_version))
        .route(STATUS_ROUTE, post(status))
        .route(STOP_ROUTE, post(stop))
        .layer(middleware::map_response(tell_version))
        .with_state(shared)
}

async fn answer<V: Verb>(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(request): Json<V>,
) -> std::result::Result<Json<V::Reply>, Failure> {
    let request = request.checked()?;
    let text = headers.get(COMMAND_HEADER).map(|text| printable(&decoded(text.as_bytes())));
    // Requests sent to the socket directly have no command line.
    let text = text.unwrap_or_else(|| format!("POST {}", V::ROUTE));
    let reply = blocking(move || {
        // Asking for a name may take a while, where it is not on this host.
        let command = Command { uid: peer.uid, user: user_name(peer.uid), text, ..Command::default() };
        engine::run(request, &*shared.engine, &command)
    });
    Ok(Json(reply.await?))
}

/// The user at the other end of a connection.
#[derive(Debug, Clone)]
struct Peer {
    uid: u32,
}

impl Connected<IncomingStream<'_, tokio::net::UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, tokio::net::UnixListener>) -> Self {
        // Nobody else may open the socket but the user that the daemon runs as, and root.
        Self { uid: stream.io().peer_cred().map_or(0, |peer| peer.uid()) }
    }
}

/// A user's name; empty when this host does not know it.
fn user_name(uid: u32) -> String {
    let user = uzers::get_user_by_uid(uid);
    user.map(|user| user.name().to_string_lossy().into_owned()).unwrap_or_default()
}

/// A command line as a header can carry it.
pub fn encoded(text: &str) -> String {
    const BESIDE_UNICODE: &AsciiSet = &CONTROLS.add(b'%');
    utf8_percent_encode(text, BESIDE_UNICODE).to_string()
}

fn decoded(text: &[u8]) -> String {
    percent_decode(text).decode_utf8_lossy().into_owned()
}

async fn status(State(shared): State<Shared>, Json(Status {}): Json<Status>) -> Json<DaemonStatus> {
    let pools = shared.engine.pools();
    Json(DaemonStatus { pid: Some(std::process::id()), version: VERSION.to_owned(), pools })
}

async fn stop(
    State(shared): State<Shared>,
    Json(Stop {}): Json<Stop>,
) -> std::result::Result<Json<Done>, Failure> {
    let Shared { engine, stop } = shared;
    export_all(engine, false).await?;
    service::stopping();
    stop.send_replace(true);
    Ok(Json(Done {}))
}

/// A stream of [`Line`]s, one object a line; the last one tells how it ended. It ends when nobody listens any more.
async fn diff(
    State(shared): State<Shared>,
    Json(request): Json<Diff>,
) -> std::result::Result<Response, Failure> {
    let request = request.checked()?;
    let (pieces, received) = mpsc::channel(STREAM_AHEAD);
    tokio::spawn(async move {
        let last = pieces.clone();
        let told = blocking(move || {
            let (mut piece, mut listens) = (Vec::new(), true);
            let told = shared.engine.fs_diff(request, &mut |line| {
                let is_going = line == Line::Going;
                if !is_going {
                    piece.extend(stream_line(&line));
                }
                if piece.len() >= STREAM_PIECE || is_going && !piece.is_empty() {
                    listens = send_in_time(&pieces, std::mem::take(&mut piece));
                }
                listens && !pieces.is_closed()
            });
            let is_told = listens && send_in_time(&pieces, piece);
            // A reader that is gone misses nothing.
            if is_told || pieces.is_closed() {
                return told;
            }
            let error = ApiError::new(ErrorKind::Busy, "not all was told: nobody took it for some minutes");
            Err(error.hint("larder fs diff … > FILE keeps all of it"))
        });
        let line = told.await.map_or_else(Line::Failed, |()| Line::Ended);
        let _ = last.send(stream_line(&line).into()).await;
    });
    Ok(Body::new(Pieces(received)).into_response())
}

/// A stream that is sent, in [`Part`]s. It ends when nobody listens any more.
async fn send(
    State(shared): State<Shared>,
    Json(request): Json<stream::Send>,
) -> std::result::Result<Response, Failure> {
    let request = request.checked()?;
    let (pieces, received) = mpsc::channel(STREAM_AHEAD);
    tokio::spawn(async move {
        let last = pieces.clone();
        let sent = blocking(move || {
            shared.engine.fs_send(request, &mut |part, waits| {
                let (head, bytes) = part.encode();
                send_while(&pieces, head, waits) && send_while(&pieces, bytes, waits)
            })
        });
        let (head, bytes) = Part::End(sent.await.err()).encode();
        let _ = last.send(head.into()).await;
        let _ = last.send(bytes.into()).await;
    });
    Ok(Body::new(Pieces(received)).into_response())
}

/// Sends a piece, to whoever takes as long as it likes; false when nobody is there, or it need not be waited for.
fn send_while(pieces: &mpsc::Sender<Bytes>, piece: Vec<u8>, waits: &dyn Fn() -> bool) -> bool {
    loop {
        let room = tokio::time::timeout(STREAM_LOOK, pieces.reserve());
        match Handle::current().block_on(room) {
            Ok(Ok(room)) => {
                room.send(piece.into());
                return true;
            }
            Ok(Err(_)) => return false,
            Err(_) if waits() => {}
            Err(_) => return false,
        }
    }
}

/// Receives a stream that comes behind its request. The reply begins at once and tells the outcome, so that a client
/// whose stream is refused need not send all of it first.
async fn receive(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let (pieces, arriving) = mpsc::channel(STREAM_AHEAD);
    tokio::spawn(async move {
        let mut body = body;
        // A client that is gone ends its stream early.
        while let Some(Ok(frame)) = body.frame().await {
            // Once nobody wants it the rest is passed over: the client is to see the reply.
            if let Ok(piece) = frame.into_data() {
                let _ = pieces.send(piece).await;
            }
        }
    });
    let text = headers.get(COMMAND_HEADER).map(|text| printable(&decoded(text.as_bytes())));
    let reply = blocking(move || {
        let mut input = Arriving { pieces: arriving, piece: Bytes::new(), limit: STREAM_PATIENCE };
        let request = input.request()?;
        let (changed, dry_run) = (request.target.clone(), request.dry_run);
        let received = shared.engine.fs_receive(request, &mut input)?;
        if !dry_run {
            let text = text.unwrap_or_else(|| format!("POST {RECEIVE_ROUTE}"));
            let command = Command { uid: peer.uid, user: user_name(peer.uid), text, ..Command::default() };
            shared.engine.keep_command(&changed, &command);
        }
        Ok(received)
    });
    let (outcome, told) = mpsc::channel(1);
    tokio::spawn(async move {
        let reply: Result<Received> = reply.await;
        let _ = outcome.send(serde_json::to_vec(&reply).unwrap_or_default().into()).await;
    });
    Body::new(Pieces(told)).into_response()
}

/// A body that arrives, for whoever waits for it: a read in which nothing comes ends with [`IoKind::TimedOut`], and can
/// be tried again.
struct Arriving {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
    /// Time limit of a read.
    limit: Duration,
}

impl Arriving {
    /// The request in front of the stream.
    fn request(&mut self) -> Result<Receive> {
        let unclear = || ApiError::usage("there is no request in front of the stream");
        let mut len = [0; 4];
        self.read_exact(&mut len).map_err(|_| unclear())?;
        let len = u32::from_le_bytes(len) as usize;
        if len > REQUEST_MAX {
            return Err(unclear());
        }
        let mut request = vec![0; len];
        self.read_exact(&mut request).map_err(|_| unclear())?;
        self.limit = STREAM_LOOK;
        serde_json::from_slice::<Receive>(&request).map_err(|_| unclear())?.checked()
    }
}

impl Read for Arriving {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        while self.piece.is_empty() {
            let arrives = tokio::time::timeout(self.limit, self.pieces.recv());
            match Handle::current().block_on(arrives) {
                Ok(Some(piece)) => self.piece = piece,
                Ok(None) => return Ok(0),
                Err(_) => return Err(IoKind::TimedOut.into()),
            }
        }
        let len = into.len().min(self.piece.len());
        into[..len].copy_from_slice(&self.piece.split_to(len));
        Ok(len)
    }
}

/// Sends a piece; false when nobody is there, or takes it in time: what is compared cannot be destroyed meanwhile.
fn send_in_time(pieces: &mpsc::Sender<Bytes>, piece: Vec<u8>) -> bool {
    let sent = tokio::time::timeout(STREAM_PATIENCE, pieces.send(piece.into()));
    matches!(Handle::current().block_on(sent), Ok(Ok(())))
}

fn stream_line(line: &Line) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// A body that comes by and by.
struct Pieces(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// Refuses commands of another version before their requests are looked into.
async fn same_version(headers: HeaderMap, request: Request, next: Next) -> Response {
    match headers.get(VERSION_HEADER).map(|version| version.to_str().unwrap_or("?")) {
        None | Some(VERSION) => next.run(request).await,
        Some(theirs) => Failure(
            ApiError::new(
                ErrorKind::Version,
                format!("the running daemon is version {VERSION}, this command is version {theirs}"),
            )
            .safe("everything; nothing was done")
            .hint("larder daemon stop exports all pools; then import them with this version"),
        )
        .into_response(),
    }
}

async fn tell_version(mut response: Response) -> Response {
    response.headers_mut().insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
    response
}

/// An error on its way out.
struct Failure(ApiError);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = match self.0.kind {
            ErrorKind::Usage => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Exists | ErrorKind::Busy | ErrorKind::Version => StatusCode::CONFLICT,
            ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            ErrorKind::ReadOnly | ErrorKind::Denied => StatusCode::FORBIDDEN,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Suspended => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Device | ErrorKind::Corrupt | ErrorKind::Daemon | ErrorKind::Internal => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        (code, [(header::CACHE_CONTROL, "no-store")], Json(self.0)).into_response()
    }
}

fn internal(doing: &str, error: &std::io::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("cannot {doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::snapshots::Snapshot;
    use crate::api::{fs as dataset, pool};
    use crate::client::{Client, pause};
    use crate::memory_engine::MemoryEngine;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;

    struct Running {
        client: Client,
        run_dir: RunDir,
        thread: JoinHandle<Result<()>>,
        _dir: tempfile::TempDir,
    }

    #[expect(clippy::disallowed_methods, reason = "stands in for a process")]
    fn running() -> Running {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::at(&dir.path().join("run"));
        run_dir.create().unwrap();
        // Left by a killed daemon.
        drop(UnixListener::bind(run_dir.socket()).unwrap());
        let client = Client::new(run_dir.clone());
        let of_daemon = run_dir.clone();
        let thread = std::thread::spawn(move || {
            run(&of_daemon, Beginning::default(), || Ok(Arc::new(MemoryEngine::default())))
        });
        while client.status().unwrap().is_none() {
            assert!(!thread.is_finished());
            pause(Duration::from_millis(1));
        }
        Running { client, run_dir, thread, _dir: dir }
    }

    fn tank() -> pool::Create {
        let devices = vec!["/a".to_owned(), "/b".to_owned()];
        pool::Create {
            name: "tank".into(),
            groups: vec![pool::Group { role: pool::Role::Data, word: pool::Word::Mirror, devices }],
            spares: vec![],
            caches: vec![],
            properties: [("memory".to_owned(), "1G".to_owned())].into(),
            fs_properties: [("recordsize".to_owned(), "64K".to_owned())].into(),
            altroot: None,
            dry_run: false,
        }
    }

    #[test]
    fn requests_and_errors_travel_over_the_socket_and_stop_exports_all() {
        let Running { client, run_dir, thread, _dir } = running();
        assert_eq!(client.call(tank()).unwrap().groups, tank().groups);
        assert_eq!(client.call(tank()).unwrap_err().kind, ErrorKind::Exists);
        let get = dataset::Get { names: vec!["tank".into()], ..Default::default() };
        let items = client.call(get).unwrap().items;
        assert_eq!(items[0].get("recordsize").unwrap().value, "65536", "the engine sees exact values");
        let set = |value: &str| dataset::Set {
            names: vec!["tank".into()],
            properties: [("checksum".to_owned(), value.to_owned())].into(),
        };
        assert_eq!(client.call(set("off")).unwrap_err().kind, ErrorKind::Usage);
        client.call(set("blake3")).unwrap();
        assert_eq!(
            client.call(pool::Status { names: vec!["x".into()] }).unwrap_err(),
            ApiError::no_such_pool("x")
        );

        let status = client.status().unwrap().unwrap();
        assert_eq!((status.pid, status.pools), (Some(std::process::id()), vec!["tank".to_owned()]));
        let second =
            run(&run_dir, Beginning::default(), || panic!("only the holder of the lock may start an engine"));
        assert_eq!(second.unwrap_err().kind, ErrorKind::Exists);

        assert_eq!(client.stop(), Ok(true));
        thread.join().unwrap().unwrap();
        assert!(!run_dir.socket().exists());
        assert_eq!((client.stop(), client.status()), (Ok(false), Ok(None)));
    }

    #[test]
    fn a_stream_travels_whole_and_tells_how_it_ended() {
        let Running { client, thread, _dir, .. } = running();
        client.call(tank()).unwrap();
        let snapshot = |name: &str| Snapshot {
            names: vec![format!("tank@{name}")],
            recursive: false,
            properties: Default::default(),
        };
        client.call(snapshot("a")).unwrap();
        client.call(snapshot("bad")).unwrap();
        let diff = |from: &str| {
            let (mut count, request) = (0, Diff { from: from.into(), to: "tank".into() });
            let told = client.diff(&request, &mut |line| {
                if let Line::Change(change) = line {
                    assert_eq!(change.inode, count);
                    count += 1;
                }
            });
            (count, told.map_err(|error| error.kind))
        };
        assert_eq!(diff("tank@a"), (20_000, Ok(())));
        assert_eq!(diff("tank@bad"), (20_000, Err(ErrorKind::Unsupported)));
        assert_eq!(diff("tank@none"), (0, Err(ErrorKind::NotFound)));
        assert_eq!(diff("tank"), (0, Err(ErrorKind::Usage)));
        client.stop().unwrap();
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_bug_in_the_engine_ends_the_request_and_not_the_daemon() {
        let Running { client, thread, _dir, .. } = running();
        let wait = pool::Wait { name: "tank".into(), activities: vec![] };
        assert_eq!(client.call(wait).unwrap_err().kind, ErrorKind::Internal);
        client.call(tank()).unwrap();
        client.stop().unwrap();
        thread.join().unwrap().unwrap();
    }

    fn raw(run_dir: &RunDir, request: &str) -> String {
        let mut stream = UnixStream::connect(run_dir.socket()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn post(route: &str, version: &str, body: &str) -> String {
        format!(
            "POST {route} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{VERSION_HEADER}: {version}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    #[test]
    fn another_version_is_told_so_but_may_look_and_stop() {
        let Running { run_dir, thread, _dir, .. } = running();
        let reply = raw(&run_dir, &post("/v1/pool/sync", "9.9.9", "{\"names\":[]}"));
        assert!(reply.starts_with("HTTP/1.1 409"), "{reply}");
        assert!(reply.contains("this command is version 9.9.9"), "{reply}");
        assert!(raw(&run_dir, &post("/v1/pool/sync", VERSION, "{\"no")).starts_with("HTTP/1.1 4"));
        assert!(raw(&run_dir, &post("/v1/pool/nonsense", VERSION, "{}")).starts_with("HTTP/1.1 404"));
        assert!(raw(&run_dir, &post(STATUS_ROUTE, "9.9.9", "{}")).contains("\"pid\""));
        assert!(raw(&run_dir, &post(STOP_ROUTE, "9.9.9", "{}")).starts_with("HTTP/1.1 200"));
        thread.join().unwrap().unwrap();
    }
}
