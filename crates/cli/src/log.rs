//! Where messages go: standard error while somebody is looking, then a file or the system's log.
//!
//! A message is one line. `VARVE_LOG` chooses what is said, in the syntax of `tracing_subscriber`'s `EnvFilter`
//! (default: `info`).

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::names::Shown;

const FILTER_DEFAULT: &str = "info";
/// What commands say that write to a pool themselves: what was wrong on the device and has been written again or cannot
/// be. All else comes as their error, or in their own words.
const FILTER_OF_WRITERS: &str = "off,varve_device=warn";
/// The system's log, and the facility number of daemons in it (RFC 5424).
const SYSTEM_LOG: &str = "/dev/log";
const FACILITY_DAEMON: u8 = 3;

/// How long a message may take to the system's log, beside those that it takes and drops.
const SYSTEM_LOG_MAX: Duration = Duration::from_millis(100);

/// So many messages that were said while somebody was looking are said again where they go from then on.
const SAID_MAX: usize = 16;

enum Target {
    /// With what has been said there: the first ones.
    StandardError(Vec<Said>),
    File(LogFile),
    System(SyncSender<ToSystem>),
    Nowhere,
}

/// A file that messages are appended to.
pub struct LogFile {
    path: PathBuf,
    file: File,
}

/// A message.
struct Said {
    at: String,
    level: Level,
    text: String,
}

/// A message, and whom to tell that it was sent.
struct ToSystem {
    text: String,
    sent: SyncSender<()>,
}

static TARGET: Mutex<Target> = Mutex::new(Target::StandardError(Vec::new()));

/// Starts logging to standard error, and logs panics.
pub fn start() {
    start_with(FILTER_DEFAULT);
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        tracing::error!("thread {} panicked: {panic}", thread.name().unwrap_or("without a name"));
    }));
}

/// Has a command that opens a pool for writing say on standard error what it would else mend without a word.
pub fn start_for_writer() {
    start_with(FILTER_OF_WRITERS);
}

fn start_with(filter_default: &str) {
    let filter = EnvFilter::try_from_env("VARVE_LOG").unwrap_or_else(|_| EnvFilter::new(filter_default));
    // Fails only if somebody has started logging already; then it works.
    let _ = tracing_subscriber::registry().with(filter).with(Messages).try_init();
}

/// Refuses a log file below `mountpoint` (absolute, without symbolic links). Where the mount hides it nobody would read it; and open in
/// the mount itself it would keep that from ever being unmounted, and messages would wait for who writes them.
pub fn must_lie_outside(path: &Path, mountpoint: &Path) -> Result<()> {
    let in_its_directory = || {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        Some(parent.canonicalize().ok()?.join(name))
    };
    // What cannot be found cannot be opened either, and is refused then.
    let found = path.canonicalize().ok().or_else(in_its_directory);
    if found.is_some_and(|found| found.starts_with(mountpoint)) {
        bail!(
            "the log file {} lies in {}, where the pool is to be mounted; give one outside",
            path.shown(),
            mountpoint.shown()
        );
    }
    Ok(())
}

impl LogFile {
    /// Opens a file that messages are to be appended to. This comes before the mount: whatever names lead into that then, the file lies
    /// somewhere else.
    pub fn open(path: &Path) -> Result<LogFile> {
        // The background process leaves its directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let file = open(&path)?;
        Ok(LogFile { path, file })
    }
}

fn open(path: &Path) -> Result<File> {
    // Appended to, also after somebody has cut it (copytruncate). A pipe that nobody reads is refused, and one whose reader is slow
    // stops nothing.
    OpenOptions::new()
        .create(true)
        .append(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NXIO) => anyhow!(
                "the log file {} is a pipe that nobody reads, or a socket; give a file, or start the reader first",
                path.shown()
            ),
            _ => anyhow!("cannot open the log file {}: {error}", path.shown()),
        })
}

/// From now on messages are appended to this file. Those that were said on standard error before, as that a pool was recovered, come first.
pub fn to_file(file: LogFile) {
    set(Target::File(file));
}

/// Opens the log file anew, if messages go to one: it may have been renamed or deleted. It must not lie on `device`, the mount's own: open
/// in there it would keep that from being unmounted. False: there is none.
pub fn reopen(device: (u32, u32)) -> Result<bool> {
    let path = match &*TARGET.lock().unwrap_or_else(PoisonError::into_inner) {
        Target::File(file) => file.path.clone(),
        _ => return Ok(false),
    };
    // Messages go on meanwhile, whatever the filesystem that it lies on does.
    let file = open(&path)?;
    let on = rustix::fs::fstat(&file)?.st_dev;
    if (rustix::fs::major(on), rustix::fs::minor(on)) == device {
        bail!("the log file {} would lie in the pool now", path.shown());
    }
    to_file(LogFile { path, file });
    Ok(true)
}

/// From now on messages go to the system's log, whenever there is one; those that were said on standard error before come first.
pub fn to_system() {
    set(start_system().map_or(Target::Nowhere, Target::System));
}

/// A thread looks for the log with each message: it begins anew while we run, and other names may lead to it then, even into the mount. Who
/// serves that must not wait there.
fn start_system() -> std::io::Result<SyncSender<ToSystem>> {
    let socket = UnixDatagram::unbound()?;
    // One whose reader is slow stops nothing; it misses messages.
    socket.set_nonblocking(true)?;
    let (messages, received): (_, Receiver<ToSystem>) = sync_channel(1);
    thread::Builder::new().name("log".into()).spawn(move || {
        for ToSystem { text, sent } in received {
            let _ = socket.send_to(text.as_bytes(), SYSTEM_LOG);
            // Who has waited too long has gone.
            let _ = sent.try_send(());
        }
    })?;
    Ok(messages)
}

fn set(mut target: Target) {
    let mut now = TARGET.lock().unwrap_or_else(PoisonError::into_inner);
    if let Target::StandardError(said) = &*now {
        for message in said {
            // There is nobody to tell that one could not be written.
            let _ = target.write(message);
        }
    }
    *now = target;
}

/// Turns events into lines.
struct Messages;

impl<S: Subscriber> Layer<S> for Messages {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let mut at = String::new();
        // Writing to a string does not fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut at));
        let text = format!("{}{}", text.message, text.fields);
        let message = Said { at, level: *event.metadata().level(), text };
        let mut target = TARGET.lock().unwrap_or_else(PoisonError::into_inner);
        // There is nobody to tell that a message could not be written.
        let _ = target.write(&message);
        if let Target::StandardError(said) = &mut *target
            && said.len() < SAID_MAX
        {
            said.push(message);
        }
    }
}

impl Target {
    fn write(&mut self, Said { at, level, text }: &Said) -> std::io::Result<()> {
        let word = match *level {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        match self {
            Target::StandardError(_) => writeln!(std::io::stderr(), "varve: {word}{text}"),
            Target::File(file) => {
                let line = format!("{at} varve[{}]: {word}{text}\n", std::process::id());
                let mut file = &file.file;
                file.write_all(line.as_bytes())
            }
            Target::System(messages) => {
                let severity = match *level {
                    Level::ERROR => 3,
                    Level::WARN => 4,
                    Level::INFO => 6,
                    _ => 7,
                };
                let priority = FACILITY_DAEMON * 8 + severity;
                let text = format!("<{priority}>varve[{}]: {text}", std::process::id());
                let (sent, is_sent) = sync_channel(1);
                // While the thread is held up somewhere messages are missed. Else this is soon sent, also if it is the last one.
                if messages.try_send(ToSystem { text, sent }).is_ok() {
                    let _ = is_sent.recv_timeout(SYSTEM_LOG_MAX);
                }
                Ok(())
            }
            Target::Nowhere => Ok(()),
        }
    }
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            // What the log crate's bridge adds.
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name if name.starts_with("log.") => {}
            name => {
                let _ = write!(self.fields, " {name}={value}");
            }
        }
    }
}
