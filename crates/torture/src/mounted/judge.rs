//! Cuts crash images out of a recording and judges each: it opens, the checker finds nothing, and everything that was
//! acknowledged before the cut is there, byte for byte. For a sample, git and SQLite look at their own files.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use varve_fs::{FileKind, Filesystem, InodeId, ROOT_INODE};
use varve_sim::{CrashCutter, CrashPolicy, Image, LogReader, Rng};

use super::record::Recording;
use super::{Fact, Line, REPLACED, version_bytes};
use crate::call::fill;
use crate::disk::Disk;
use crate::session::{Opened, Setup, StepClock, Violation};
use crate::soak::commit;
use crate::violation;

/// Images waiting for a judge.
const QUEUE_MAX: usize = 4;
/// Violations printed and kept.
const FAILURES_MAX: usize = 20;

/// Which images to judge.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many.
    pub images: u64,
    /// Seed of the instants and of what survives.
    pub seed: u64,
    /// Judges at work.
    pub threads: usize,
    /// Every so many images git and SQLite are asked.
    pub tools_every: u64,
    /// Only this image.
    pub only: Option<u64>,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Recordings judged.
    pub recordings: u64,
    /// Images judged.
    pub images: u64,
    /// Of them, those that git and SQLite looked at.
    pub asked_tools: u64,
    /// Facts verified, summed over images.
    pub facts: u64,
    /// Time spent, in seconds.
    pub seconds: u64,
    /// Commit of the last run.
    pub commit: String,
    /// What was wrong.
    pub failures: Vec<String>,
}

impl Verdict {
    /// Adds this verdict to those in `path`, and writes a table for people beside it.
    pub fn add_to(&self, path: &Path) -> io::Result<()> {
        let mut sum: Verdict = match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Verdict::default(),
            Err(error) => return Err(error),
        };
        sum.recordings += self.recordings;
        sum.images += self.images;
        sum.asked_tools += self.asked_tools;
        sum.facts += self.facts;
        sum.seconds += self.seconds;
        sum.commit.clone_from(&self.commit);
        sum.failures.extend(self.failures.iter().cloned());
        sum.failures.truncate(FAILURES_MAX);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut text = serde_json::to_string_pretty(&sum).map_err(io::Error::other)?;
        text.push('\n');
        fs::write(path, text)?;
        fs::write(path.with_extension("md"), sum.table())
    }

    fn table(&self) -> String {
        format!(
            "# Crash images of the mounted daemon\n\nPlain files, git and SQLite at work in a mount; everything the daemon \
             did to its device was recorded, and images were cut from the recording at random instants. Commit {}.\n\n\
             | recordings | images | facts verified | shown to git and SQLite | seconds | violations |\n\
             |---:|---:|---:|---:|---:|---:|\n| {} | {} | {} | {} | {} | {} |\n\n\
             Again: `cargo build --release -p varve-cli --features record`, then\n\
             `cargo run --release -p varve-torture -- mounted record --directory DIR` and\n\
             `cargo run --release -p varve-torture -- mounted judge --directory DIR`\n",
            self.commit,
            self.recordings,
            self.images,
            self.facts,
            self.asked_tools,
            self.seconds,
            self.failures.len()
        )
    }
}

/// What must be there at one instant.
#[derive(Clone, Default)]
struct Expected {
    files: BTreeMap<String, (u64, u32)>,
    prefixes: HashMap<String, (u64, u64)>,
    versions: HashMap<String, u64>,
    /// Number of the line that said so.
    commits: HashMap<String, usize>,
    rows: HashMap<String, u64>,
}

impl Expected {
    fn learn(&mut self, number: usize, fact: &Fact) {
        match fact {
            Fact::File { path, len, crc } => {
                self.files.insert(path.clone(), (*len, *crc));
            }
            Fact::Deleting { path } if path.ends_with('/') => {
                self.files.retain(|file, _| !file.starts_with(path));
                self.commits.remove(path.trim_end_matches('/'));
            }
            Fact::Deleting { path } => {
                self.files.remove(path);
            }
            Fact::Prefix { path, seed, len } => {
                self.prefixes.insert(path.clone(), (*seed, *len));
            }
            Fact::Version { path, version } => {
                self.versions.insert(path.clone(), *version);
            }
            Fact::Commit { path, .. } => {
                self.commits.insert(path.clone(), number);
            }
            Fact::Rows { path, rows } => {
                self.rows.insert(path.clone(), *rows);
            }
        }
    }

    fn count(&self) -> u64 {
        let rest = self.prefixes.len() + self.versions.len() + self.commits.len() + self.rows.len();
        (self.files.len() + rest) as u64
    }
}

struct Job {
    number: u64,
    at: u64,
    image: Image,
    expected: Arc<Expected>,
}

/// Judges the images of `plan`.
pub fn judge(recording: &Recording, plan: &Plan) -> io::Result<Verdict> {
    let lines = read_journal(&recording.journal())?;
    let length = fs::metadata(recording.log())?.len();
    let mut rng = Rng::new(plan.seed);
    let mut instants: Vec<u64> = (0..plan.images).map(|_| rng.below(length)).collect();
    instants.sort_unstable();
    let began = Instant::now();
    let verdict = Mutex::new(Verdict::default());
    let (sender, receiver) = mpsc::sync_channel::<Job>(QUEUE_MAX);
    let receiver = Mutex::new(receiver);
    thread::scope(|scope| {
        for _ in 0..plan.threads {
            scope.spawn(|| {
                loop {
                    let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = next else { break };
                    let ask = plan.only.is_some() || job.number.is_multiple_of(plan.tools_every);
                    let result = judge_image(&job, &lines, ask);
                    let mut verdict = verdict.lock().unwrap_or_else(PoisonError::into_inner);
                    verdict.images += 1;
                    verdict.asked_tools += u64::from(ask);
                    verdict.facts += job.expected.count();
                    if let Err(Violation(what)) = result {
                        let text = format!("image {} (byte {} of the recording): {what}", job.number, job.at);
                        println!("{text}\nreproduce: the same command with --only {}", job.number);
                        if verdict.failures.len() < FAILURES_MAX {
                            verdict.failures.push(text);
                        }
                    }
                }
            });
        }
        let cut = cut(recording, plan, &lines, &instants, &sender);
        drop(sender);
        cut
    })?;
    let mut verdict = verdict.into_inner().unwrap_or_else(PoisonError::into_inner);
    (verdict.recordings, verdict.seconds, verdict.commit) = (1, began.elapsed().as_secs(), commit());
    Ok(verdict)
}

/// Walks along the recording once and sends the images.
fn cut(
    recording: &Recording,
    plan: &Plan,
    lines: &[Line],
    instants: &[u64],
    sender: &mpsc::SyncSender<Job>,
) -> io::Result<()> {
    let mut reader = LogReader::open(recording.log()).map_err(|error| io::Error::other(error.to_string()))?;
    let mut cutter = CrashCutter::new(Image::load(recording.base())?);
    let (mut expected, mut learnt) = (Arc::new(Expected::default()), 0);
    for (number, at) in instants.iter().enumerate() {
        let number = number as u64;
        reader.feed_to(&mut cutter, *at).map_err(|error| io::Error::other(error.to_string()))?;
        // The event that begins before the instant and ends after it has been fed, too.
        let at = reader.offset().max(*at);
        while let Some(line) = lines.get(learnt).filter(|line| line.at <= at) {
            Arc::make_mut(&mut expected).learn(learnt, &line.fact);
            learnt += 1;
        }
        if plan.only.is_some_and(|only| only != number) {
            continue;
        }
        let mut rng = Rng::new(plan.seed.wrapping_add(number).wrapping_mul(0x9e37_79b9));
        let image = cutter.image(&mut rng, CrashPolicy::Seeded);
        let job = Job { number, at, image, expected: expected.clone() };
        if sender.send(job).is_err() {
            break;
        }
    }
    Ok(())
}

fn read_journal(path: &Path) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for line in BufReader::new(fs::File::open(path)?).lines() {
        let line: Line = serde_json::from_str(&line?).map_err(io::Error::other)?;
        lines.push(line);
    }
    // Workers take the length and then the journal's lock. Lines of one worker are in order.
    lines.sort_by_key(|line| line.at);
    Ok(lines)
}

fn judge_image(job: &Job, lines: &[Line], ask_tools: bool) -> Result<(), Violation> {
    let disk = Disk::of(job.image.clone());
    let clock = StepClock::new(1 << 32);
    let opened = Opened::open(&disk, &Setup::default(), &clock, false)
        .map_err(|error| violation!("the image does not open: {error}"))?;
    let fs = &opened.fs;
    let report = fs.check(true).map_err(|error| violation!("check fails: {error}"))?;
    if !report.problems.is_empty() {
        return Err(violation!("check finds:\n  {}", report.describe()));
    }
    let expected = &job.expected;
    for (path, (len, crc)) in &expected.files {
        let bytes = read(fs, path)?;
        if bytes.len() as u64 != *len || crc32c::crc32c(&bytes) != *crc {
            return Err(violation!(
                "{path} was acknowledged with {len} bytes and has {} others",
                bytes.len()
            ));
        }
    }
    for (path, (seed, len)) in &expected.prefixes {
        let bytes = read(fs, path)?;
        if (bytes.len() as u64) < *len {
            return Err(violation!("{path} was acknowledged up to {len} and has {} bytes", bytes.len()));
        }
        if bytes != fill(*seed, bytes.len()) {
            return Err(violation!("{path} holds bytes that were never written to it"));
        }
    }
    for (path, version) in &expected.versions {
        let bytes = read(fs, path)?;
        let found = bytes.first_chunk().map(|number| u64::from_le_bytes(*number));
        match found {
            // Another file's versions have another remainder.
            Some(found)
                if found >= *version
                    && found % REPLACED == version % REPLACED
                    && bytes == version_bytes(found) => {}
            _ => {
                return Err(violation!(
                    "{path} was acknowledged in version {version} and has {} bytes, version {found:?} or none",
                    bytes.len()
                ));
            }
        }
    }
    for (path, number) in &expected.commits {
        let bytes = read(fs, &format!("{path}/.git/refs/heads/main"))?;
        let head = String::from_utf8_lossy(&bytes).trim().to_owned();
        let mut later = lines[*number..].iter().map(|line| &line.fact);
        let known = later
            .any(|fact| matches!(fact, Fact::Commit { path: at, head: one } if at == path && *one == head));
        if !known {
            return Err(violation!(
                "{path} is at {head:?}, which is not the acknowledged commit nor a later one"
            ));
        }
    }
    for path in expected.rows.keys() {
        find(fs, path)?;
    }
    if ask_tools { tools(fs, job) } else { Ok(()) }
}

fn find(fs: &Filesystem, path: &str) -> Result<InodeId, Violation> {
    path.split('/').try_fold(ROOT_INODE, |parent, name| match fs.lookup(parent, name.as_bytes()) {
        Ok(attr) => Ok(attr.ino),
        Err(error) => Err(violation!("{path} was acknowledged, and looking up {name} fails: {error}")),
    })
}

fn read(fs: &Filesystem, path: &str) -> Result<Vec<u8>, Violation> {
    let ino = find(fs, path)?;
    read_inode(fs, ino).map_err(|Violation(what)| violation!("{path}: {what}"))
}

fn read_inode(fs: &Filesystem, ino: InodeId) -> Result<Vec<u8>, Violation> {
    let attr = fs.getattr(ino).map_err(|error| violation!("getattr fails: {error}"))?;
    fs.read(ino, 0, attr.size as usize).map_err(|error| violation!("read fails: {error}"))
}

/// Exports the repositories and databases and has their own programs look at them.
fn tools(fs: &Filesystem, job: &Job) -> Result<(), Violation> {
    let failed = |error: io::Error| violation!("exporting fails: {error}");
    let directory = std::env::temp_dir().join(format!("varve-torture-{}-{}", std::process::id(), job.number));
    let result = (|| {
        fs::create_dir_all(&directory).map_err(failed)?;
        for path in job.expected.commits.keys() {
            export(fs, find(fs, path)?, &directory.join(path))?;
            let mut git = Command::new("git");
            git.arg("-C").arg(directory.join(path)).args(["fsck", "--full", "--no-progress"]);
            run(git.env("GIT_CONFIG_GLOBAL", "/dev/null"), "git fsck")?;
        }
        if job.expected.rows.is_empty() {
            return Ok(());
        }
        export(fs, find(fs, "sqlite")?, &directory.join("sqlite"))?;
        for (path, rows) in &job.expected.rows {
            let mut python = Command::new("python3");
            python.args(["-c", SQLITE_CHECK]).arg(directory.join(path)).arg(rows.to_string());
            run(&mut python, &format!("SQLite's integrity check of {path}"))?;
        }
        Ok(())
    })();
    // What failed is left for whoever looks into it.
    result?;
    fs::remove_dir_all(&directory).map_err(failed)
}

fn run(command: &mut Command, what: &str) -> Result<(), Violation> {
    let output = command.output().map_err(|error| violation!("{what} does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(violation!("{what} finds: {}", String::from_utf8_lossy(&said)))
}

fn export(filesystem: &Filesystem, ino: InodeId, to: &Path) -> Result<(), Violation> {
    let failed = |error: io::Error| violation!("exporting to {} fails: {error}", to.display());
    fs::create_dir_all(to).map_err(failed)?;
    let mut entries = Vec::new();
    filesystem
        .readdir(ino, 0, &mut |entry| {
            entries.push(entry);
            true
        })
        .map_err(|error| violation!("readdir fails: {error}"))?;
    for entry in entries {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        match entry.kind {
            _ if name == "." || name == ".." => {}
            FileKind::Directory => export(filesystem, entry.ino, &to.join(name))?,
            FileKind::File => fs::write(to.join(name), read_inode(filesystem, entry.ino)?).map_err(failed)?,
            _ => {}
        }
    }
    Ok(())
}

/// Opens the database, which rolls back or replays what was under way, and counts.
const SQLITE_CHECK: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
found = db.execute("pragma integrity_check").fetchone()[0]
rows = db.execute("select count(*) from t").fetchone()[0]
if found != "ok" or rows < int(sys.argv[2]):
    sys.exit("integrity %s, %d rows of %s acknowledged" % (found, rows, sys.argv[2]))
"#;
