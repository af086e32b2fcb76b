//! The control socket of a mount: `stats`, `sync`, `checkpoint`, `trim START MINIMUM`, `remount OPTIONS`, `versions REQUEST`, `objection` and
//! `wait`, for the other commands of this program.
//!
//! A client connects, writes one word and a newline, and reads one line of JSON: `{"ok": ...}` or
//! `{"error": "..."}`. After `wait` the first line says which process answers, and a second line comes when the pool has
//! been closed after the unmount; it may say what is lost all the same. The socket is named by the mount's device number, lies in a directory that only its
//! user can enter, and goes when the mount does. Should it lose its name before, it is made again, wherever it can be then.
//!
//! Bounded: so many clients at once, so long a request, so much patience with a client that says nothing.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde_json::{Value, json};
use varve_fs::Caller;

use crate::mountinfo::Mount;
use crate::names::Shown;
use crate::pool_file;

mod admission;
mod directories;
mod process;
#[cfg(test)]
mod tests;

use admission::{Admission, CLIENTS_MAX, CONNECTED_MAX};
use directories::is_private;

/// How long an unmount waits for another one of a pool in several places, which takes a moment.
const TURN_MAX: Duration = Duration::from_secs(10);
const TURN_PAUSE: Duration = Duration::from_millis(10);
/// Begins the answer to a request that a mount does not know.
pub const NO_REQUEST: &str = "there is no request";

/// Asks for [`Service::checkpoint`].
pub const CHECKPOINT: &str = "checkpoint";

/// Begins a request of [`crate::versions`].
pub const VERSIONS: &str = "subvolumes ";

/// Holds a name of 255 bytes as the numbers of a JSON list.
const REQUEST_BYTES_MAX: u64 = 4096;
/// A line of an answer: what may be longer comes in pages.
pub const REPLY_BYTES_MAX: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(10);
/// How long requests that have come may take to be answered when the mount has ended.
const ANSWERS_MAX: Duration = Duration::from_secs(2);
/// Between two looks at that.
const ANSWERS_PAUSE: Duration = Duration::from_millis(1);
/// Between two looks at whether the socket still has its name, while no client comes.
const LOOK_PAUSE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// What a mount answers.
pub trait Service: Send + Sync + 'static {
    /// Counters and space, as `varve stats --json` prints them.
    fn stats(&self) -> Result<Value>;
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
    /// Ends the log so far: what has been freed can be used again.
    fn checkpoint(&self) -> Result<()>;
    /// What speaks against an unmount now, in words.
    fn objection(&self) -> Option<String>;
    /// Gives free space back for a moment; see [`crate::trim`].
    fn trim(&self, request: &str) -> Result<Value>;
    /// The flags of the mount become these (words of `-o`). Answers with the settings that a remount cannot change.
    fn remount(&self, words: &str) -> Result<Value>;
    /// Subvolumes, snapshots and clones; see [`crate::versions`]. `caller` is who connected.
    fn versions(&self, caller: Caller, request: &str) -> Result<Value>;
}

/// How a pool was closed.
#[derive(Debug, Clone)]
pub enum Ending {
    /// Everything is durable.
    Durable,
    /// So it would be, but what it was stored in is gone, or some could not be stored, as this sentence says.
    Lost(String),
}

/// The outcome of closing the pool, in words if it failed.
pub type Closed = Result<Ending, String>;

#[derive(Default)]
struct Waiting {
    clients: Vec<UnixStream>,
    closed: Option<Closed>,
    /// Requests that have come and are not answered.
    unanswered_count: usize,
}

/// A request, until it is answered.
struct Unanswered<'a>(&'a Mutex<Waiting>);

impl<'a> Unanswered<'a> {
    fn begin(waiting: &'a Mutex<Waiting>) -> Unanswered<'a> {
        waiting.lock().unwrap_or_else(PoisonError::into_inner).unanswered_count += 1;
        Unanswered(waiting)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).unanswered_count -= 1;
    }
}

/// Where a socket is.
struct Place {
    path: PathBuf,
    inode: u64,
}

impl Place {
    /// At worst a file stays that nobody answers at; the next mount replaces it.
    fn remove(&self) {
        if is_inode(&self.path, self.inode) {
            let _ = remove_inode(&self.path, self.inode);
        }
    }
}

/// The socket of this process's mount.
pub struct Server {
    /// `None`: it has been taken away.
    place: Arc<Mutex<Option<Place>>>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Server {
    /// Binds the socket and answers from threads of its own.
    pub fn start(device: (u32, u32), service: Arc<dyn Service>) -> Result<Server> {
        let (listener, place) = bind(device)?;
        let place = Arc::new(Mutex::new(Some(place)));
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let server = Server { place: place.clone(), waiting: waiting.clone() };
        let mut door = Door { listener, device, place, has_complained: false };
        thread::Builder::new().name("control".into()).spawn(move || accept(&mut door, &service, &waiting))?;
        Ok(server)
    }

    /// Takes the socket away: the mount is gone, and its device number may be another mount's now.
    pub fn remove_socket(&self) {
        let place = self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(place) = place {
            place.remove();
        }
    }

    /// Lets requests be answered that were done before this process ends, for a moment.
    pub fn wait_answered(&self) {
        let until = Instant::now() + ANSWERS_MAX;
        let all = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner).unanswered_count == 0;
        while !all() && Instant::now() < until {
            thread::sleep(ANSWERS_PAUSE);
        }
    }

    /// Tells everybody who waits, now or later.
    pub fn announce(&self, closed: &Closed) {
        let clients = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.closed = Some(closed.clone());
            std::mem::take(&mut waiting.clients)
        };
        for client in clients {
            // A client that has gone away does not want to know.
            let _ = reply(&client, &closed_line(closed));
        }
    }
}

fn is_inode(path: &Path, inode: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.ino() == inode)
}

/// Removes `path` if it is this inode. What has the name can change between a look at it and its removal, when a new mount
/// gets the device number: so it is renamed first, and looked at where nobody else puts anything.
fn remove_inode(path: &Path, inode: u64) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".gone-{}", std::process::id()));
    let aside = PathBuf::from(aside);
    fs::rename(path, &aside)?;
    if !is_inode(&aside, inode) {
        match renameat_with(CWD, &aside, CWD, path, RenameFlags::NOREPLACE) {
            // A third mount has taken the name meanwhile: the second has ended, and nobody asks for its socket any more.
            Err(Errno::EXIST) => {}
            // Not every filesystem knows of that: a second name replaces none, either.
            Err(_) => fs::hard_link(&aside, path)?,
            Ok(()) => return Ok(()),
        }
    }
    fs::remove_file(&aside)
}

fn closed_line(closed: &Closed) -> Value {
    match closed {
        Ok(Ending::Durable) => json!({ "ok": "closed" }),
        Ok(Ending::Lost(loss)) => json!({ "ok": { "lost": loss } }),
        Err(error) => json!({ "error": error }),
    }
}

/// What clients come through.
struct Door {
    listener: UnixListener,
    device: (u32, u32),
    /// Shared with the [`Server`].
    place: Arc<Mutex<Option<Place>>>,
    /// It has been said that the socket cannot be made again.
    has_complained: bool,
}

impl Door {
    /// The next client. `None`: the socket has been taken away, and nobody can come any more.
    fn next(&mut self) -> Option<io::Result<UnixStream>> {
        loop {
            match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&LOOK_PAUSE)) {
                Ok(0) if !self.keep_name() => return None,
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Some(self.listener.accept().map(|(stream, _)| stream)),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }

    /// Makes the socket again if it has no name any more: systemd removes a user's directory in /run/user at the last logout, and the
    /// mount stays. False: it has been taken away by us.
    fn keep_name(&mut self) -> bool {
        let path = match &*self.place.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(place) => place.path.clone(),
            None => return false,
        };
        // What another has put there stays: it may be the socket of the next mount with this number.
        let gone = fs::symlink_metadata(&path).err().map(|error| error.kind());
        if gone != Some(io::ErrorKind::NotFound) {
            return true;
        }
        match bind(self.device) {
            Ok((listener, place)) => {
                tracing::info!(
                    "the control socket {} was removed; it is {} now",
                    path.shown(),
                    place.path.shown()
                );
                self.listener = listener;
                self.has_complained = false;
                let mut held = self.place.lock().unwrap_or_else(PoisonError::into_inner);
                if held.is_none() {
                    // The mount has ended meanwhile.
                    drop(held);
                    place.remove();
                    return false;
                }
                *held = Some(place);
            }
            Err(error) if !self.has_complained => {
                tracing::warn!(
                    "the control socket {} was removed, and {error:#}: varve sync, stats and unmount cannot reach this mount",
                    path.shown()
                );
                self.has_complained = true;
            }
            Err(_) => {}
        }
        true
    }
}

fn accept(door: &mut Door, service: &Arc<dyn Service>, waiting: &Arc<Mutex<Waiting>>) {
    let admission = Arc::new(Admission::default());
    while let Some(stream) = door.next() {
        let Ok(stream) = stream else {
            // Out of file descriptors, most likely: others must close some first.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let Some(taken) = admission.clients.take(CONNECTED_MAX) else {
            let _ = reply(&stream, &json!({ "error": "too many clients at once; try again" }));
            continue;
        };
        let (service, waiting, admission) = (service.clone(), waiting.clone(), admission.clone());
        // Without a thread nobody answers, and the client hears that by the end of its connection.
        let _ = thread::Builder::new().name("control-client".into()).spawn(move || {
            let _taken = taken;
            if let Err(error) = serve(stream, &*service, &waiting, &admission) {
                tracing::debug!("a client of the control socket: {error}");
            }
        });
    }
}

fn serve(
    stream: UnixStream,
    service: &dyn Service,
    waiting: &Mutex<Waiting>,
    admission: &Admission,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    BufReader::new((&stream).take(REQUEST_BYTES_MAX)).read_line(&mut request)?;
    let _unanswered = Unanswered::begin(waiting);
    let _place = match admission.admit(request.trim_end()) {
        Ok(place) => place,
        Err(error) => return reply(&stream, &json!({ "error": format!("{error}") })),
    };
    let line = match request.trim_end() {
        "stats" => service.stats(),
        "sync" => service.sync().map(|()| process::name()),
        CHECKPOINT => service.checkpoint().map(|()| json!("done")),
        "ping" => Ok(json!("here")),
        "objection" => Ok(json!(service.objection())),
        "wait" => return enlist(stream, waiting),
        line if line.starts_with(VERSIONS) => match peer(&stream) {
            Ok(caller) => service.versions(caller, &line[VERSIONS.len()..]),
            Err(error) => Err(error.context("cannot tell who asks")),
        },
        line if line.starts_with("trim ") => service.trim(&line["trim ".len()..]),
        line if line.starts_with("remount ") => service.remount(&line["remount ".len()..]),
        other => Err(anyhow!("{NO_REQUEST} {other:?}; this mount may be served by another version of varve")),
    };
    match line {
        Ok(value) => reply(&stream, &json!({ "ok": value }))?,
        Err(error) => reply(&stream, &json!({ "error": format!("{error:#}") }))?,
    }
    Ok(())
}

/// Says who serves the mount, to somebody who is told of its end from then on: he may end the mount as soon as he has heard, and
/// this process may be gone before this thread comes to anything else.
fn enlist(stream: UnixStream, waiting: &Mutex<Waiting>) -> io::Result<()> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    // An unmount that was refused does not wait any longer, and takes no place from the next.
    waiting.clients.retain(is_there);
    if waiting.closed.is_none() && waiting.clients.len() >= CLIENTS_MAX {
        return reply(&stream, &json!({ "error": "too many clients wait already" }));
    }
    process::send_with_process(&stream, format!("{}\n", json!({ "ok": process::name() })).as_bytes())?;
    match &waiting.closed {
        Some(closed) => reply(&stream, &closed_line(closed))?,
        None => waiting.clients.push(stream),
    }
    Ok(())
}

/// Whether a client that waits has not gone: it sends nothing more, so there is something to read only when it has.
fn is_there(client: &UnixStream) -> bool {
    match recv(client, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((read, _)) => read > 0,
        Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
    }
}

/// Who is at the other end, as the kernel knows it.
fn peer(stream: &UnixStream) -> Result<Caller> {
    let credentials = process::credentials(stream)?;
    Ok(Caller { uid: credentials.uid(), gid: credentials.gid() })
}

fn reply(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    let mut line = format!("{value}\n");
    if line.len() as u64 > REPLY_BYTES_MAX {
        let why = format!(
            "the answer of the process that serves the mount would be {} bytes long, and {REPLY_BYTES_MAX} is the most; \
             unmount the pool and give it as POOL:/PATH",
            line.len()
        );
        line = format!("{}\n", json!({ "error": why }));
    }
    stream.write_all(line.as_bytes())
}

/// A connection to the process that serves a mount.
pub struct Client {
    reader: BufReader<UnixStream>,
}

/// How long a process that was killed may keep its mount after it has let go of its socket.
const DEATH_MAX: Duration = Duration::from_secs(2);
/// Between two looks at it.
const DEATH_PAUSE: Duration = Duration::from_millis(20);

/// Whether the process that served `mount` has ended, or is just ending: one that was killed lets go of its socket first, and of
/// the mount a little later.
pub fn has_ended(mount: &Mount) -> bool {
    let begun = Instant::now();
    loop {
        if mount.is_dead() {
            return true;
        }
        let answers = match Client::connect(mount) {
            Ok(Some(mut client)) => client.answers(),
            Ok(None) => false,
            // Who may not ask does not know better than the mount itself.
            Err(_) => true,
        };
        if answers || begun.elapsed() > DEATH_MAX {
            return false;
        }
        thread::sleep(DEATH_PAUSE);
    }
}

/// Lets who looks whether a pool is mounted in another place, and unmounts it in this one because it is, be alone with that: of two at once each
/// would rely on the other's place. Held for as long as the result lives. `None`: nobody answers for this mount, where others look for it.
pub fn turn_to_unmount(mount: &Mount) -> Result<Option<File>> {
    // The directory of its socket, which nobody else's processes can enter.
    let has_socket = |directory: &PathBuf| {
        is_private(directory, mount.user_id) && directory.join(socket_name(mount.device)).exists()
    };
    let Some(directory) = directories::of_user(mount.user_id).into_iter().find(has_socket) else {
        return Ok(None);
    };
    let shown = directory.shown();
    let lock = File::open(&directory).with_context(|| format!("cannot open {shown}"))?;
    let begun = Instant::now();
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() < TURN_MAX => thread::sleep(TURN_PAUSE),
            result => {
                result.with_context(|| format!("another unmount does not end ({shown} is locked)"))?;
                return Ok(Some(lock));
            }
        }
    }
}

impl Client {
    /// `None`: nobody answers for this mount.
    pub fn connect(mount: &Mount) -> Result<Option<Client>> {
        Client::connect_in(&directories::of_user(mount.user_id), mount)
    }

    fn connect_in(directories: &[PathBuf], mount: &Mount) -> Result<Option<Client>> {
        for directory in directories {
            if !is_private(directory, mount.user_id) {
                continue;
            }
            match UnixStream::connect(directory.join(socket_name(mount.device))) {
                Ok(stream) => return Ok(Some(Client::over(stream))),
                // Of a directory that another may not enter, too: the own one may come behind it.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound
                            | io::ErrorKind::ConnectionRefused
                            | io::ErrorKind::PermissionDenied
                    ) => {}
                Err(error) => {
                    return Err(error).context("cannot connect to the process that serves the mount");
                }
            }
        }
        let me = rustix::process::geteuid();
        if !me.is_root() && me.as_raw() != mount.user_id {
            return Err(not_yours(mount));
        }
        Ok(None)
    }

    /// Over a connection that there is.
    pub fn over(stream: UnixStream) -> Client {
        Client { reader: BufReader::new(stream) }
    }

    /// The process at the other end, by its number here; `None`: it has none, because it is in another container.
    pub fn server(&self) -> Option<i32> {
        let credentials = process::credentials(self.reader.get_ref()).ok()?;
        Some(credentials.pid()).filter(|pid| *pid > 0)
    }

    /// Sends a request and waits for its answer, however long that takes. What a mount says of its process has the number that this has here.
    pub fn request(&mut self, word: &str) -> Result<Value> {
        self.ask(word)?;
        let answer = self.answer()?;
        Ok(match word {
            "stats" | "objection" => as_seen_here(answer, self.server()),
            _ => answer,
        })
    }

    /// The same, if there is an answer, all of it, within `limit`; else `None`.
    pub fn request_within(&mut self, word: &str, limit: Duration) -> Result<Option<Value>> {
        let until = Instant::now() + limit;
        self.ask(word)?;
        let mut line = Vec::new();
        while self.speaks_within(until.saturating_duration_since(Instant::now()))? {
            let come = self.reader.fill_buf().unwrap_or_default();
            let end = come.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(come.len());
            line.extend_from_slice(&come[..taken]);
            self.reader.consume(taken);
            if end.is_some() {
                return answer_in(&String::from_utf8_lossy(&line)).map(Some);
            }
            if taken == 0 {
                bail!("the process that serves the mount has gone away");
            }
            if line.len() as u64 >= REPLY_BYTES_MAX {
                bail!(
                    "the process that serves the mount gives an answer of more than {REPLY_BYTES_MAX} bytes"
                );
            }
        }
        Ok(None)
    }

    /// Waits from now on for the last word of the process, which is the next line. What it calls itself, and by what its end can be waited for
    /// wherever it is; `None`: it is of an earlier version.
    pub fn enlist(&mut self) -> Result<(Value, Option<OwnedFd>)> {
        self.ask("wait")?;
        let process = process::peek_process(self.reader.get_ref());
        Ok((self.answer()?, process))
    }

    fn ask(&mut self, word: &str) -> Result<()> {
        let asked = self.reader.get_mut().write_all(format!("{word}\n").as_bytes());
        asked.context("the process that serves the mount has gone away")
    }

    fn answer(&mut self) -> Result<Value> {
        self.next_line()?.ok_or_else(|| anyhow!("the process that serves the mount has gone away"))
    }

    /// Whether there is anybody at the other end: any answer will do.
    fn answers(&mut self) -> bool {
        let asked = self.reader.get_mut().write_all(b"ping\n");
        asked.is_ok() && !matches!(self.next_line(), Ok(None))
    }

    /// Whether there is something to read, or the connection has ended, within `limit`.
    pub fn speaks_within(&self, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        while self.reader.buffer().is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut polled = [PollFd::new(self.reader.get_ref(), PollFlags::IN)];
            match poll(&mut polled, Some(&left)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(error).context("cannot wait for the process that serves the mount");
                }
            }
        }
        Ok(true)
    }

    /// The next answer. `None`: the process ended without one.
    pub fn next_line(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        // A process that dies resets the connection: as good as an end.
        let read = self.reader.by_ref().take(REPLY_BYTES_MAX).read_line(&mut line).unwrap_or(0);
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == REPLY_BYTES_MAX && !line.ends_with('\n') {
            bail!("the process that serves the mount gives an answer of more than {REPLY_BYTES_MAX} bytes");
        }
        answer_in(&line).map(Some)
    }
}

/// What a line of the process says.
fn answer_in(line: &str) -> Result<Value> {
    let answer: Value =
        serde_json::from_str(line).context("the process that serves the mount talks nonsense")?;
    if let Some(error) = answer.get("error") {
        bail!("{}", error.as_str().unwrap_or("it failed without saying why"));
    }
    Ok(answer.get("ok").cloned().unwrap_or(Value::Null))
}

/// Counters or an objection, of a process that is `server` here.
fn as_seen_here(mut answer: Value, server: Option<i32>) -> Value {
    let translate = |advice: &mut Value| {
        if let Some(text) = advice.as_str() {
            *advice = json!(pool_file::advice_as_seen(text, server));
        }
    };
    translate(&mut answer);
    if let Some(pid) = answer.get_mut("pid") {
        *pid = json!(server);
    }
    let devices = answer.get_mut("devices").and_then(Value::as_array_mut);
    devices
        .into_iter()
        .flatten()
        .filter_map(|device| device.get_mut("file_state_reason"))
        .for_each(translate);
    answer
}

fn not_yours(mount: &Mount) -> anyhow::Error {
    anyhow!(
        "{} was mounted by user {}; only that user and root may do this",
        mount.mountpoint.shown(),
        mount.user_id
    )
}

fn socket_name((major, minor): (u32, u32)) -> String {
    format!("{major}-{minor}.sock")
}

fn bind(device: (u32, u32)) -> Result<(UnixListener, Place)> {
    let user_id = rustix::process::getuid().as_raw();
    bind_in_one_of(&directories::of_user(user_id), device, user_id)
}

fn bind_in_one_of(
    directories: &[PathBuf],
    device: (u32, u32),
    user_id: u32,
) -> Result<(UnixListener, Place)> {
    let mut failure = None;
    for directory in directories {
        match bind_in(directory, device, user_id) {
            Ok(bound) => return Ok(bound),
            Err(error) => {
                failure = Some(error.context(format!("no control socket in {}", directory.shown())))
            }
        }
    }
    Err(failure.expect("there is at least one directory to try"))
}

fn bind_in(directory: &Path, device: (u32, u32), user_id: u32) -> Result<(UnixListener, Place)> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    if !is_private(directory, user_id) {
        bail!("it is not private to user {user_id}");
    }
    let path = directory.join(socket_name(device));
    // What is there was left by a process that was killed: the device number is ours now.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let inode = fs::symlink_metadata(&path).map_or(0, |metadata| metadata.ino());
    Ok((listener, Place { path, inode }))
}
