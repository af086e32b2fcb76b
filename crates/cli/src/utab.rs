//! libmount's notes about mounts (`/run/mount/utab`): a mount that is noted there is unmounted by its type's helper.
//!
//! Without a note umount(8) asks only statfs(2) for the type, hears `fuse`, and does not look for
//! `umount.fuse.varve`; then it returns before the pool is closed. The file is rewritten under libmount's own lock.
//! Nothing else depends on it, and only root can write it: what fails here is logged and otherwise passed over. Any user can take the
//! lock and keep it, so that it is not waited for long: the note is made when the lock is free, and a warning says what is missing until
//! then.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

const DIRECTORY: &str = "/run/mount";
/// The lock is asked for this often: whoever rewrites the file has it for moments.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Before a note that could not be made is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// The helper's name, as libmount wants it: `umount.` goes before it.
const HELPER: &str = "fuse.varve";

/// A note about one mount, for as long as this is not removed.
pub struct Note {
    line: Arc<Line>,
    /// Whether it is to be there. Held by who makes it or takes it away.
    wanted: Arc<Mutex<bool>>,
}

/// What is to become of a note.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// It is made: the mount is new.
    Now,
    /// It is made, some time after the mount.
    Late,
    /// It is taken away.
    Gone,
}

struct Line {
    /// As they stand in the file.
    source: String,
    target: String,
}

impl Note {
    /// Notes the mount of `source` at `mountpoint`.
    pub fn add(source: &str, mountpoint: &Path) -> Note {
        // A name that is no text has no note, and umount(8) does not wait there.
        let target = mountpoint.to_str().map(escape).unwrap_or_default();
        let line = Arc::new(Line { source: escape(source), target });
        let note = Note { line, wanted: Arc::new(Mutex::new(true)) };
        if let Err(error) = note.line.rewrite(Wanted::Now) {
            let point = mountpoint.display();
            tracing::warn!(
                "umount(8) of {point} may return before the pool is closed, as long as {DIRECTORY}/utab has no note of it ({error}); \
                 varve unmount does not"
            );
            note.make_later();
        }
        note
    }

    /// Tries again now and then until it is there, or not wanted any more.
    fn make_later(&self) {
        let (line, wanted) = (self.line.clone(), self.wanted.clone());
        let again = move || loop {
            thread::sleep(PAUSE);
            let wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
            if !*wanted || line.rewrite(Wanted::Late).is_ok() {
                return;
            }
        };
        let made = thread::Builder::new().name("varve-note".into()).spawn(again);
        if let Err(error) = made {
            tracing::debug!("no thread to note the mount later: {error}");
        }
    }

    /// Takes the note away, and the one that mount(8) may have made of options meant for itself.
    pub fn remove(&self) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = false;
        if let Err(error) = self.line.rewrite(Wanted::Gone) {
            tracing::debug!("cannot take the mount's note out of {DIRECTORY}: {error}");
        }
    }
}

impl Line {
    fn rewrite(&self, wanted: Wanted) -> io::Result<()> {
        if self.target.is_empty() || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        try_rewrite(Path::new(DIRECTORY), |text| self.changed(text, wanted, exists))
    }

    /// The file without lines about this mount, or with one of ours at its end. Lines of ours about directories that
    /// are no more, which processes that were killed left behind, go too.
    fn changed(&self, text: &str, wanted: Wanted, exists: fn(&str) -> bool) -> String {
        let (source, target) = (format!("SRC={}", self.source), format!("TARGET={}", self.target));
        let ours = format!("OPTS=uhelper={HELPER}");
        let goes = |line: &&str| {
            let has = |word: &str| line.split(' ').any(|part| part == word);
            let its_target = line.split(' ').find_map(|part| part.strip_prefix("TARGET="));
            // When a note goes, or comes late, another pool may be mounted there already, whose note stays.
            has(&target) && (has(&source) || wanted == Wanted::Now && has(&ours))
                || has(&ours) && its_target.is_some_and(|target| !exists(target))
        };
        let mut after: String =
            text.lines().filter(|line| !goes(line)).flat_map(|line| [line, "\n"]).collect();
        if wanted != Wanted::Gone {
            after.push_str(&format!("{source} {target} ROOT=/ {ours}\n"));
        }
        after
    }
}

/// Whether the target of a line is there, for all that is known. What cannot be read here, such as a name with blanks, is taken to be, and
/// so is what lies on another filesystem than the root: none is entered, since the target may be below a mount whose daemon hangs.
fn exists(target: &str) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = || openat2(CWD, target, flags, Mode::empty(), ResolveFlags::NO_XDEV);
    target.contains('\\') || found().err() != Some(Errno::NOENT)
}

fn try_rewrite(directory: &Path, change: impl FnOnce(&str) -> String) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Held until it is closed at the end.
    let lock = File::options().create(true).truncate(false).write(true).open(directory.join("utab.lock"))?;
    take(&lock)?;
    let path = directory.join("utab");
    let before = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        result => result?,
    };
    let after = change(&before);
    if after == before {
        return Ok(());
    }
    let temporary = directory.join("utab.varve-new");
    fs::write(&temporary, after)?;
    // Whoever asks what is mounted reads it, whatever this process's umask.
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o644))?;
    fs::rename(&temporary, &path)
}

fn take(lock: &File) -> io::Result<()> {
    for _ in 0..LOCK_ATTEMPTS {
        match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(LOCK_PAUSE),
            result => return Ok(result?),
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "another process keeps its lock"))
}

/// As in the kernel's table of mounts: blanks and backslashes are a backslash and three octal digits.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            ' ' | '\t' | '\n' | '\\' => escaped.push_str(&format!("\\{:03o}", u32::from(character))),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a note comes and goes, with what mount(8) noted of the same mount, and others' notes stay. Method: a file
    // with a note of another mount, and a directory with a blank in its name.
    #[test]
    fn notes_come_and_go() {
        let others = "ID=5 SRC=/dev/loop1 TARGET=/mnt/a\\040b ROOT=/ OPTS=_netdev\n";
        let note = Line { source: "/pool".into(), target: escape("/mnt/a b") };
        let line = "SRC=/pool TARGET=/mnt/a\\040b ROOT=/ OPTS=uhelper=fuse.varve\n";
        let there = |_: &str| true;
        let with = note.changed(others, Wanted::Now, there);
        assert_eq!(with, format!("{others}{line}"));
        assert_eq!(note.changed(&with, Wanted::Now, there), with);
        let with_mounts = format!("{with}SRC=/pool TARGET=/mnt/a\\040b ROOT=/ OPTS=_netdev,user\n");
        assert_eq!(note.changed(&with_mounts, Wanted::Gone, there), others);
        let elsewhere = Line { source: "/pool".into(), target: "/mnt/a".into() };
        assert_eq!(elsewhere.changed(&with, Wanted::Gone, there), with);
        // Another pool that is mounted there by the time the first one is closed.
        let other = Line { source: "/other".into(), target: note.target.clone() };
        let with_other = other.changed(&with, Wanted::Now, there);
        assert_eq!(
            with_other,
            format!("{others}SRC=/other TARGET=/mnt/a\\040b ROOT=/ OPTS=uhelper=fuse.varve\n")
        );
        assert_eq!(note.changed(&with_other, Wanted::Gone, there), with_other);
        assert_eq!(note.changed(&with_other, Wanted::Late, there), format!("{with_other}{line}"));
        // Left by a process that was killed, on a directory that is gone.
        assert_eq!(elsewhere.changed(&with, Wanted::Gone, |target| target == "/mnt"), others);
    }

    // Goal: a target that is no more is told from one that is, and no other filesystem is asked. Method: names in the root, and below
    // /proc, where nothing is.
    #[test]
    fn targets_below_mounts_are_not_asked_for() {
        assert!(exists("/"));
        assert!(!exists("/no-such-directory-of-varve/below"));
        assert!(exists("/proc"));
        assert!(exists("/proc/no-such-process"));
    }

    // Goal: a lock that somebody keeps is not waited for long, and what it guards is left alone. Method: it is taken, and a note is to be made.
    #[test]
    fn a_lock_is_not_waited_for_long() {
        let directory = tempfile::tempdir().expect("a directory");
        let rewrite = || try_rewrite(directory.path(), |_| "a note\n".to_owned());
        rewrite().expect("nobody has it locked");
        let kept = File::open(directory.path().join("utab.lock")).expect("it is there");
        rustix::fs::flock(&kept, FlockOperation::LockExclusive).expect("it is free");
        let begun = std::time::Instant::now();
        let error = rewrite().expect_err("it is locked");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        drop(kept);
        rewrite().expect("nobody has it locked any more");
    }
}
