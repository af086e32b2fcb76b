//! Snapshots of a large tree taken while it is being worked on: each stays what the tree was.
//!
//! Threads write to files of their own and log every step; compilers run beside them. What a snapshot shows of a file is
//! what the log says it held when the snapshot was begun, or what it was given until the snapshot was there: nothing
//! older, nothing newer, nothing else. That is looked at when all the work is done, long after the snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{
    COMMAND_LIMIT, Mount, Random, Scratch, can_mount, check, is_full, say, scale, succeed, varve,
};

const WRITERS: u64 = 2;
/// Files in one directory.
const DIRECTORY_FILES: u64 = 500;
/// Of the snapshots of a long run, every so many are looked at as a whole: all files of all of them would be sixty million.
const WHOLE_EVERY: usize = 100;
/// Of the others, the files touched by so many steps before and after, and so many others.
const NEAR_STEPS: usize = 100;
const REST_SAMPLE: u64 = 100;
/// So many of them stay when the others are deleted, all at once.
const STAYING: usize = 4;
/// How long the reaper may take for what hundreds of snapshots held of a tree that was worked on for ten minutes.
const REAPED_IN: Duration = Duration::from_secs(1800);
/// What the compiler is given to do, again and again.
const BUILD: &str = "cd \"$1\"; n=0; while :; do n=$((n + 1)); echo \"int f$n(void) { return $n; }\" > part.c; \
                     cc -c part.c -o part.o.new && mv part.o.new part$((n % 50)).o; done";

/// A writer's tree, and everything that became of it: which file held what from which step on. A file that is not
/// there holds `None`.
struct Log {
    steps: Vec<(u64, Option<u64>)>,
}

/// One writer's files: file `number` is made of its version alone.
struct Writer {
    root: PathBuf,
    files: u64,
    log: Mutex<Log>,
}

fn contents(number: u64, version: u64) -> Vec<u8> {
    // One page at most, and always as long as before, so that overwriting it is one step.
    Random::new(number << 32 | version).bytes(100 + (number * 37 % 3_900) as usize)
}

impl Writer {
    fn place(number: u64) -> PathBuf {
        PathBuf::from(format!("{}/{number}", number / DIRECTORY_FILES))
    }

    fn populate(&self) {
        for number in 0..self.files {
            let path = self.root.join(Writer::place(number));
            if number % DIRECTORY_FILES == 0 {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
            }
            fs::write(path, contents(number, 0)).unwrap();
        }
        fs::create_dir(self.root.join("new")).unwrap();
    }

    /// Works until it is told to stop.
    fn work(&self, seed: u64, stop: &AtomicBool) {
        let mut random = Random::new(seed);
        let mut there: Vec<bool> = vec![true; self.files as usize];
        let mut version = 0;
        while !stop.load(Ordering::Acquire) {
            version += 1;
            let number = random.below(self.files);
            let path = self.root.join(Writer::place(number));
            let exists = &mut there[number as usize];
            let now = match random.below(4) {
                0 if *exists => {
                    self.step(number, None, || fs::remove_file(&path).unwrap());
                    false
                }
                1 | 2 if *exists => {
                    let file = File::options().write(true).open(&path).unwrap();
                    let bytes = contents(number, version);
                    self.step(number, Some(version), || file.write_all_at(&bytes, 0).unwrap());
                    true
                }
                _ => {
                    let new = self.root.join("new/file");
                    let mut file = File::create(&new).unwrap();
                    file.write_all(&contents(number, version)).unwrap();
                    file.sync_all().unwrap();
                    self.step(number, Some(version), || fs::rename(&new, &path).unwrap());
                    true
                }
            };
            *exists = now;
        }
    }

    /// Logs a step, then does it: a snapshot taken meanwhile may have it or not, and all steps before it are done.
    fn step(&self, number: u64, version: Option<u64>, does: impl FnOnce()) {
        self.log.lock().unwrap().steps.push((number, version));
        does();
    }

    fn steps(&self) -> usize {
        self.log.lock().unwrap().steps.len()
    }

    /// Compares this writer's tree in a snapshot that was begun after `begun` steps had been begun (the last of which may not
    /// have been done) and was there after `ended`: all of it, or what was touched around it and some of the rest. Gives the
    /// files compared.
    fn compare(&self, snapshot: &Path, (begun, ended): (usize, usize), look: Look) -> Result<u64, String> {
        let log = self.log.lock().unwrap();
        let history = History::of(&log.steps);
        let root = snapshot.join(self.root.file_name().unwrap());
        let wanted: Vec<u64> = match look {
            Look::All => (0..self.files).collect(),
            Look::Some => {
                let mut random = Random::new(begun as u64);
                let mut wanted = history.touched_near(begun, ended);
                wanted.extend((0..REST_SAMPLE).map(|_| random.below(self.files)));
                wanted.into_iter().collect()
            }
        };
        for number in &wanted {
            let path = root.join(Writer::place(*number));
            let found = match fs::read(&path) {
                Ok(bytes) => Some(bytes),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => panic!("{}: {error}", path.display()),
            };
            let may = history.possible(*number, begun, ended);
            let right = may.iter().any(|version| version.map(|version| contents(*number, version)) == found);
            if !right {
                return Err(format!(
                    "{} holds {:?} bytes that are none of versions {may:?} (steps {begun} to {ended})",
                    path.display(),
                    found.map(|bytes| bytes.len())
                ));
            }
        }
        if look == Look::All {
            // Nothing else is there.
            let directories = (0..self.files).step_by(DIRECTORY_FILES as usize);
            let listed: usize = directories
                .map(|first| fs::read_dir(root.join(Writer::place(first)).parent().unwrap()).unwrap().count())
                .sum();
            let there = wanted.iter().filter(|number| root.join(Writer::place(**number)).exists()).count();
            if listed != there {
                return Err(format!("{} lists {listed} files of {there}", root.display()));
            }
        }
        Ok(wanted.len() as u64)
    }
}

/// How much of a snapshot is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    All,
    Some,
}

/// The steps file by file, in their order: (number of the step, what the file holds since).
struct History<'a> {
    steps: &'a [(u64, Option<u64>)],
    of: BTreeMap<u64, Vec<(usize, Option<u64>)>>,
}

impl History<'_> {
    fn of(steps: &[(u64, Option<u64>)]) -> History<'_> {
        let mut of: BTreeMap<u64, Vec<(usize, Option<u64>)>> = BTreeMap::new();
        for (at, (number, version)) in steps.iter().enumerate() {
            of.entry(*number).or_default().push((at, *version));
        }
        History { steps, of }
    }

    /// What a file may hold: what the last step that was done before `begun` gave it, or any from there to `ended`.
    fn possible(&self, number: u64, begun: usize, ended: usize) -> BTreeSet<Option<u64>> {
        let steps = self.of.get(&number).map_or(&[][..], Vec::as_slice);
        // Step `begun - 1` may not have been done.
        let done = steps.partition_point(|(at, _)| at + 1 < begun);
        let before = done.checked_sub(1).map_or(Some(0), |last| steps[last].1);
        let meanwhile = steps[done..].iter().take_while(|(at, _)| *at < ended).map(|(_, version)| *version);
        meanwhile.chain([before]).collect()
    }

    /// Files touched shortly before, between or shortly after these steps.
    fn touched_near(&self, begun: usize, ended: usize) -> BTreeSet<u64> {
        let near = begun.saturating_sub(NEAR_STEPS)..(ended + NEAR_STEPS).min(self.steps.len());
        self.steps[near].iter().map(|(number, _)| *number).collect()
    }
}

/// Ended when it is dropped.
struct Build(Child);

impl Build {
    fn start(directory: &Path) -> Option<Build> {
        let compiler =
            Command::new("cc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !compiler.is_ok_and(|status| status.success()) {
            return None;
        }
        let mut command = Command::new("sh");
        command.args(["-c", BUILD, "build"]).arg(directory).stderr(Stdio::null());
        Some(Build(command.spawn().unwrap()))
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        // It has children of its own; they end with their input.
        let _gone = self.0.kill();
        let _waited = self.0.wait();
    }
}

/// Tells the writers to stop when it is dropped, so that a failure ends them, too: their scope waits for them.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Names and contents of a directory without directories.
fn files_of(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap();
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (PathBuf::from(path.file_name().unwrap()), fs::read(&path).unwrap())
        })
        .collect()
}

// Goal: a snapshot of a tree at work is the tree at one time, and stays so, also when hundreds of others are deleted at once.
// Method: see the module; the first, the last and two others stay, and are looked at once more when the reaper has nothing to do.
// `VARVE_TEST_FULL=1`: 100,000 files, a snapshot a second for ten minutes (VARVE_FROZEN_SECONDS).
#[test]
fn snapshots_of_a_tree_at_work_stay() {
    if !can_mount("snapshots_of_a_tree_at_work_stay") {
        return;
    }
    let files = scale("VARVE_FROZEN_FILES", 2_000, 100_000);
    let snapshots = scale("VARVE_FROZEN_SECONDS", 8, 600);
    let pause = if is_full() { Duration::from_secs(1) } else { Duration::from_millis(250) };
    let scratch = Scratch::new("frozen");
    let pool = scratch.pool("pool.img", if is_full() { "12G" } else { "1G" });
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    succeed(varve(&["subvolume", "create"]).arg(mount.path("work")));
    let writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer {
            root: mount.path(&format!("work/{number}")),
            files: files / WRITERS,
            log: Mutex::new(Log { steps: Vec::new() }),
        })
        .collect();
    writers.iter().for_each(Writer::populate);
    let build = mount.path("work/build");
    fs::create_dir(&build).unwrap();
    mount.sync();

    let stop = AtomicBool::new(false);
    let mut taken = Vec::new();
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        let _compiling = Build::start(&build);
        for (seed, writer) in writers.iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || writer.work(seed as u64, stop));
        }
        let wait_until = |come_so_far: &dyn Fn() -> bool| {
            let asked = Instant::now();
            while !come_so_far() && asked.elapsed() < COMMAND_LIMIT {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        // The clock begins when everybody is at work.
        wait_until(&|| writers.iter().all(|writer| writer.steps() > 0));
        let begun = Instant::now();
        for number in 0..snapshots {
            let due = pause * (number as u32 + 1);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            let path = mount.path(&format!("frozen-{number}"));
            let before: Vec<usize> = writers.iter().map(Writer::steps).collect();
            let asked = Instant::now();
            succeed(varve(&["snapshot", "--read-only"]).arg(mount.path("work")).arg(&path));
            times.push(asked.elapsed());
            let after: Vec<usize> = writers.iter().map(Writer::steps).collect();
            taken.push((path.clone(), before, after, files_of(&path.join("build"))));
        }
        // Much has changed since the first snapshot.
        let (steps_then, steps) = (taken[0].2.clone(), || writers.iter().map(Writer::steps));
        wait_until(&|| {
            steps().sum::<usize>() as u64 > snapshots
                && steps().zip(&steps_then).all(|(now, then)| now > then + 100)
        });
    });
    let steps: usize = writers.iter().map(Writer::steps).sum();
    assert!(steps as u64 > snapshots, "the writers made {steps} steps");

    let compare = |(path, before, after, built): &(PathBuf, Vec<usize>, Vec<usize>, _), look: Look| {
        let mut compared = 0;
        for ((writer, before), after) in writers.iter().zip(before).zip(after) {
            compared += writer.compare(path, (*before, *after), look).unwrap_or_else(|what| panic!("{what}"));
        }
        assert_eq!(files_of(&path.join("build")), *built, "{}", path.display());
        compared
    };
    let mut compared = 0;
    for (number, snapshot) in taken.iter().enumerate() {
        let whole = !is_full() || number % WHOLE_EVERY == 0 || number + 1 == taken.len();
        compared += compare(snapshot, if whole { Look::All } else { Look::Some });
    }
    // What the tree has become since is none of its snapshots: this would be seen.
    let (_, before, after, _) = &taken[0];
    let now = writers[0].compare(&mount.path("work"), (before[0], after[0]), Look::All);
    assert!(now.is_err(), "the tree is still what the first snapshot shows");
    times.sort();
    say(&format!(
        "{snapshots} snapshots of {files} files beside {steps} steps: {compared} files compared; a snapshot took {:.1} ms, \
         at most {:.1} ms",
        times[times.len() / 2].as_secs_f64() * 1e3,
        times[times.len() - 1].as_secs_f64() * 1e3
    ));
    let last = taken.len() - 1;
    let stays = |number: usize| (0..STAYING).any(|part| part * last / (STAYING - 1) == number);
    let (staying, going): (Vec<_>, Vec<_>) = (0..).zip(taken).partition(|(number, _)| stays(*number));
    let asked = Instant::now();
    succeed(varve(&["subvolume", "delete"]).args(going.iter().map(|(_, (path, ..))| path)));
    let deleted = asked.elapsed();
    mount.wait_reaped(REAPED_IN);
    let reaped = asked.elapsed().as_secs_f64();
    let compared: u64 = staying.iter().map(|(_, snapshot)| compare(snapshot, Look::All)).sum();
    say(&format!(
        "{} of them deleted in {:.2} s, reaped in {reaped:.1} s; {compared} files of {} others compared once more",
        going.len(),
        deleted.as_secs_f64(),
        staying.len()
    ));
    mount.unmount();
    check(&pool);
}
