//! Puts a mounted pool to work and writes down what was acknowledged: plain files, git, SQLite.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use varve_sim::Rng;

use super::{Fact, Line, REPLACED, version_bytes};
use crate::call::fill;

/// Bytes the plain files may take together.
const FILE_BYTES_MAX: u64 = 12 << 20;
/// Commits after which the git repository begins again.
const COMMITS_MAX: u64 = 60;

/// Where everything is.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The `varve` program, built with the feature `record`.
    pub program: PathBuf,
    /// A directory on an ordinary filesystem, for the pool, the recording and the journal.
    pub directory: PathBuf,
    /// Size of the pool, as `varve create --size` takes it.
    pub size: String,
    /// How long to work.
    pub duration: Duration,
    /// Seed of the plain files.
    pub seed: u64,
}

impl Recording {
    /// The recording.
    pub fn log(&self) -> PathBuf {
        self.directory.join("device.log")
    }
    /// The pool as it was when the recording began.
    pub fn base(&self) -> PathBuf {
        self.directory.join("base.img")
    }
    /// The journal of acknowledgements.
    pub fn journal(&self) -> PathBuf {
        self.directory.join("acknowledged.jsonl")
    }

    /// Creates a pool, mounts it, works in it and unmounts it.
    pub fn run(&self) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let (pool, mount) = (self.directory.join("pool"), self.directory.join("mount"));
        fs::create_dir_all(&mount)?;
        self.varve(&[&"create", &pool, &"--size", &self.size])?;
        fs::copy(&pool, self.base())?;
        self.varve(&[&"mount", &"--record-log", &self.log(), &pool, &mount])?;
        let worked = self.work(&mount);
        self.varve(&[&"unmount", &mount])?;
        worked
    }

    fn varve(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        for argument in arguments {
            command.arg(argument.as_ref());
        }
        succeed(&mut command)
    }

    fn work(&self, mount: &Path) -> io::Result<()> {
        let journal = Journal {
            log: self.log(),
            file: Mutex::new(File::create(self.journal())?),
            mount: mount.to_owned(),
            until: Instant::now() + self.duration,
            failed: AtomicBool::new(false),
        };
        let journal = &journal;
        thread::scope(|scope| {
            let workers = [
                scope.spawn(move || journal.watch(journal.plain_files(self.seed))),
                scope.spawn(move || journal.watch(journal.replaced_files(self.seed))),
                scope.spawn(move || journal.watch(journal.git())),
                scope.spawn(move || journal.watch(journal.sqlite())),
            ];
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| io::Error::other("a worker panicked"))?)
        })
    }
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("{:?} fails: {said}", command.get_program())))
}

struct Journal {
    log: PathBuf,
    file: Mutex<File>,
    mount: PathBuf,
    until: Instant,
    failed: AtomicBool,
}

impl Journal {
    /// Writes down what is known now. The length is taken after the caller was told.
    fn note(&self, fact: Fact) -> io::Result<()> {
        let at = fs::metadata(&self.log)?.len();
        let mut line = serde_json::to_vec(&Line { at, fact }).map_err(io::Error::other)?;
        line.push(b'\n');
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }

    fn working(&self) -> bool {
        Instant::now() < self.until && !self.failed.load(Ordering::Relaxed)
    }

    /// A worker that fails stops the others.
    fn watch(&self, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// New files of all sizes, some deleted later, and one that grows: each made durable by its own fsync.
    fn plain_files(&self, seed: u64) -> io::Result<()> {
        let mut rng = Rng::new(seed);
        let mut living: Vec<(String, u64)> = Vec::new();
        let (growing_path, growing_seed, mut grown) = ("growing".to_owned(), 77, 0_u64);
        let growing = File::create(self.mount.join(&growing_path))?;
        let stream = fill(growing_seed, 4 << 20);
        fs::create_dir_all(self.mount.join("plain"))?;
        let mut number = 0_u64;
        while self.working() {
            let total: u64 = living.iter().map(|(_, len)| len).sum();
            if total > FILE_BYTES_MAX || (!living.is_empty() && rng.chance(0.2)) {
                let (path, _) = living.swap_remove(rng.index(living.len()));
                self.note(Fact::Deleting { path: path.clone() })?;
                fs::remove_file(self.mount.join(&path))?;
                continue;
            }
            if rng.chance(0.3) && grown < 3 << 20 {
                let more = 1 + rng.below(9_000);
                growing.write_all_at(&stream[grown as usize..(grown + more) as usize], grown)?;
                growing.sync_data()?;
                grown += more;
                self.note(Fact::Prefix { path: growing_path.clone(), seed: growing_seed, len: grown })?;
                continue;
            }
            number += 1;
            let len = [200, 6_000, 60_000, 1_500_000][rng.index(4)];
            let bytes = fill(seed ^ number, 1 + rng.below(len) as usize);
            let directory = format!("plain/{}", number % 16);
            fs::create_dir_all(self.mount.join(&directory))?;
            let path = format!("{directory}/{number}");
            let mut file = File::create(self.mount.join(&path))?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            self.note(Fact::File {
                path: path.clone(),
                len: bytes.len() as u64,
                crc: crc32c::crc32c(&bytes),
            })?;
            living.push((path, bytes.len() as u64));
        }
        Ok(())
    }

    /// What an editor does: a new file beside the old one, then a rename over it, with and without fsync.
    fn replaced_files(&self, seed: u64) -> io::Result<()> {
        let mut rng = Rng::new(seed ^ 1);
        let directory = self.mount.join("replaced");
        fs::create_dir_all(&directory)?;
        let handle = File::open(&directory)?;
        let mut version = 0;
        while self.working() {
            version += 1;
            let path = format!("replaced/{}", version % REPLACED);
            let new = directory.join("new");
            let mut file = File::create(&new)?;
            file.write_all(&version_bytes(version))?;
            let synced = rng.chance(0.3);
            if synced {
                file.sync_all()?;
            }
            // Over an existing file the bytes come first, fsync or not.
            let whole = synced || self.mount.join(&path).exists();
            fs::rename(&new, self.mount.join(&path))?;
            if rng.chance(0.5) {
                handle.sync_all()?;
                if whole {
                    self.note(Fact::Version { path, version })?;
                }
            }
        }
        Ok(())
    }

    /// Commits, each with its objects and its branch durable when it returns.
    fn git(&self) -> io::Result<()> {
        let mut round = 0_u64;
        while self.working() {
            round += 1;
            let path = format!("git{}", round % 2);
            let repository = self.mount.join(&path);
            if repository.exists() {
                self.note(Fact::Deleting { path: format!("{path}/") })?;
                fs::remove_dir_all(&repository)?;
            }
            fs::create_dir_all(&repository)?;
            let git = |arguments: &[&str]| {
                let mut command = Command::new("git");
                command.current_dir(&repository).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
                succeed(&mut command)
            };
            git(&["init", "-q", "-b", "main"])?;
            for (key, value) in [
                ("user.name", "varve"),
                ("user.email", "varve@localhost"),
                ("core.fsync", "all"),
                ("core.fsyncMethod", "fsync"),
                ("gc.auto", "0"),
            ] {
                git(&["config", key, value])?;
            }
            // git init syncs nothing: until this a crash may leave files with names and no bytes.
            for file in objects(&repository.join(".git"))? {
                File::open(file)?.sync_all()?;
            }
            let mut known = HashSet::new();
            for number in 0..COMMITS_MAX {
                if !self.working() {
                    break;
                }
                for file in 0..4_u64 {
                    let bytes =
                        fill(round << 32 | number << 8 | file, 100 + (number * 997 % 20_000) as usize);
                    fs::write(repository.join(format!("file{}", (number + file * 7) % 23)), bytes)?;
                }
                git(&["add", "-A"])?;
                git(&["commit", "-q", "-m", &format!("commit {number}")])?;
                // git syncs what it writes but not the directory into which it renames the branch.
                File::open(repository.join(".git/refs/heads"))?.sync_all()?;
                let head = fs::read_to_string(repository.join(".git/refs/heads/main"))?.trim().to_owned();
                self.note(Fact::Commit { path: path.clone(), head })?;
                for object in objects(&repository.join(".git/objects"))? {
                    if known.insert(object.clone()) {
                        let bytes = fs::read(&object)?;
                        let inside = object.strip_prefix(&self.mount).expect("listed below the mount");
                        let path = inside.to_string_lossy().into_owned();
                        self.note(Fact::File { path, len: bytes.len() as u64, crc: crc32c::crc32c(&bytes) })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Transactions of SQLite, in its own journal's mode and in write-ahead mode.
    fn sqlite(&self) -> io::Result<()> {
        let mut round = 0_u64;
        while self.working() {
            round += 1;
            let path = format!("sqlite/{round}.db");
            fs::create_dir_all(self.mount.join("sqlite"))?;
            let mode = ["delete", "wal"][(round % 2) as usize];
            let seconds = self.until.saturating_duration_since(Instant::now()).as_secs_f64().min(20.0);
            let mut child = Command::new("python3")
                .args(["-c", SQLITE_WORK, mode, &seconds.to_string()])
                .arg(self.mount.join(&path))
                .stdout(Stdio::piped())
                .spawn()?;
            let mut said = child.stdout.take().expect("piped above");
            let mut pending = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                let n = said.read(&mut buffer)?;
                if n == 0 {
                    break;
                }
                pending.extend_from_slice(&buffer[..n]);
                let text = String::from_utf8_lossy(&pending).into_owned();
                let Some(end) = text.rfind('\n') else { continue };
                let newest = text[..end].lines().last().and_then(|line| line.parse().ok());
                if let Some(rows) = newest {
                    self.note(Fact::Rows { path: path.clone(), rows })?;
                }
                pending.drain(..=end);
            }
            if !child.wait()?.success() {
                return Err(io::Error::other("the SQLite worker failed"));
            }
        }
        Ok(())
    }
}

fn objects(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(objects(&entry.path())?);
        } else {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Inserts rows and says how many are committed after each commit.
const SQLITE_WORK: &str = r#"
import os, sqlite3, sys, time
mode, seconds, path = sys.argv[1], float(sys.argv[2]), sys.argv[3]
db = sqlite3.connect(path, isolation_level=None)
db.execute("pragma journal_mode=" + mode)
# In the mode "delete" a commit is the unlinking of the journal, which only "extra" makes durable.
db.execute("pragma synchronous=extra")
db.execute("create table if not exists t (id integer primary key, v blob)")
rows, end = 0, time.time() + seconds
while time.time() < end:
    db.execute("begin")
    for _ in range(5):
        rows += 1
        db.execute("insert into t values (?, ?)", (rows, os.urandom(300)))
    if rows % 50 == 0:
        db.execute("update t set v = ? where id <= ?", (os.urandom(200), rows // 2))
    db.execute("commit")
    print(rows, flush=True)
    time.sleep(0.005)
"#;
