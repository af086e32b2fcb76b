//! Mounts whose requests come through rings (FUSE over io_uring). Kernels have it switched off: a test switches it on for
//! as long as a mount begins.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Mount, Random, Scratch, can_mount, check, say, succeed, varve};

/// Of what the files hold.
const SEED: u64 = 0x5eed;
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// How many files are acknowledged before the mount is killed under those who make more, however slow the machine is, and
/// how long that may take before nobody is believed to be answered.
const ENOUGH: usize = 40;
const PATIENCE: Duration = Duration::from_secs(60);
/// One test at a time has the switch, in all test programs: those of the mount's crate know this name, too. (The lock of mounts is
/// for the mounts that begin meanwhile.)
const HELD: &str = "varve-tests-rings.lock";

/// The switch, on; it is put back when this is dropped.
struct Switched {
    before: String,
    _held: fs::File,
}

impl Switched {
    fn on(test: &str) -> Option<Switched> {
        let held = fs::File::create(std::env::temp_dir().join(HELD)).expect("a file to lock");
        held.lock().expect("our own file");
        let before = fs::read_to_string(SWITCH).ok()?.trim().to_owned();
        if fs::write(SWITCH, "Y").is_err() {
            say(&format!("SKIPPED, nothing shown: {test}: only root may switch FUSE over io_uring on"));
            return None;
        }
        Some(Switched { before, _held: held })
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        fs::write(SWITCH, &self.before).expect("it could be written before");
    }
}

fn state() -> String {
    fs::read_to_string(SWITCH).unwrap_or_default()
}

/// Mounts with the switch on, with more options.
fn mount(test: &str, pool: &Path, point: &Path, options: &[&str]) -> Option<Mount> {
    if !Path::new(SWITCH).exists() {
        say(&format!("SKIPPED, nothing shown: {test}: this kernel has no FUSE over io_uring (Linux 6.14)"));
        return None;
    }
    let switched = Switched::on(test)?;
    let mount = Mount::start_with(pool, point, options);
    drop(switched);
    Some(mount)
}

fn through_rings(mount: &Mount) -> bool {
    let said = succeed(varve(&["stats", "--json"]).arg(&mount.point));
    let stats: Value = serde_json::from_str(&said).expect("stats --json is JSON");
    stats["rings"].as_bool().expect("a mount says how it is asked")
}

/// What a file of this name holds: up to 300 KiB, so that some are more than one page, and some more than one request of
/// the smallest kind.
fn contents(name: &str) -> Vec<u8> {
    let number = name.bytes().fold(SEED, |sum, byte| sum.wrapping_mul(131).wrapping_add(u64::from(byte)));
    let mut random = Random::new(number);
    let len = if random.below(8) == 0 { random.below(300 << 10) } else { random.below(20 << 10) };
    random.bytes(len as usize)
}

/// Makes files in `dir` until told to stop or refused, syncs them, and reads every other one back; gives those that were
/// acknowledged, and adds them to `count` as they come.
fn work(dir: &Path, thread: usize, stop: &AtomicBool, count: &AtomicUsize) -> Vec<PathBuf> {
    let mut made = Vec::new();
    for number in 0.. {
        let name = format!("{thread}-{number}");
        let write = || {
            let path = dir.join(format!("{name}.new"));
            let mut file = fs::File::create(&path)?;
            file.write_all(&contents(&name))?;
            file.sync_all()?;
            fs::rename(&path, dir.join(&name))?;
            fs::File::open(dir)?.sync_all()
        };
        if stop.load(Relaxed) || write().is_err() {
            break;
        }
        let path = dir.join(&name);
        made.push(path.clone());
        count.fetch_add(1, Relaxed);
        if number % 2 == 0 {
            let mut bytes = Vec::new();
            let Ok(mut file) = fs::File::open(&path) else { break };
            if file.read_to_end(&mut bytes).is_err() {
                break;
            }
            assert!(bytes == contents(&name), "{name} reads otherwise than it was written");
        }
    }
    made
}

/// Goal: a mount through rings answers more threads at once than there are processors or seats, loses nothing that it has
/// acknowledged when it is killed under them, leaves nobody waiting, and can be mounted again, with rings and without.
/// Method: 40 threads that make and sync files in one directory; SIGKILL; the files compared.
#[test]
fn killed_under_many_threads() {
    const TEST: &str = "killed_under_many_threads";
    if !can_mount(TEST) {
        return;
    }
    let scratch = Scratch::new("rings");
    let pool = scratch.pool("pool", "512M");
    let point = scratch.path("mnt");
    let Some(first) = mount(TEST, &pool, &point, &[]) else { return };
    assert!(through_rings(&first));
    let dir = first.path("dir");
    fs::create_dir(&dir).expect("a directory");
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let made: Vec<PathBuf> = thread::scope(|scope| {
        let threads: Vec<_> = (0..40)
            .map(|thread| {
                let (dir, stop, count) = (&dir, &stop, &count);
                scope.spawn(move || work(dir, thread, stop, count))
            })
            .collect();
        let start = Instant::now();
        while count.load(Relaxed) < ENOUGH && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(500));
        first.kill();
        stop.store(true, Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread that works")).collect()
    });
    assert!(made.len() >= ENOUGH, "only {} files in {} s", made.len(), PATIENCE.as_secs());
    for options in [&["-o", "norings"][..], &[]] {
        let Some(again) = mount(TEST, &pool, &point, options) else { return };
        assert_eq!(through_rings(&again), options.is_empty());
        for path in &made {
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name of ours");
            let bytes = fs::read(path).unwrap_or_else(|error| panic!("{name} was acknowledged: {error}"));
            assert!(bytes == contents(name), "{name} was acknowledged and is otherwise");
        }
        again.unmount();
    }
    check(&pool);
    say(&format!("{} files acknowledged, all there", made.len()));
}

/// Goal: the lab switches the kernel's switch on for its mounts, says so, and puts it back. Method: `--rings`, the report and
/// the switch.
#[test]
fn the_lab_puts_the_switch_back() {
    const TEST: &str = "the_lab_puts_the_switch_back";
    if !can_mount(TEST) || !Path::new(SWITCH).exists() {
        return;
    }
    let Some(held) = Switched::on(TEST) else { return };
    fs::write(SWITCH, "N").expect("it could be written before");
    let scratch = Scratch::new("rings-lab");
    let mut command = varve(&["lab", "commit", "--rings", "--scale", "tiny", "--on", "varve-mounted"]);
    let said = succeed(command.args(["--json", "-", "--dir"]).arg(scratch.path("")));
    let report: Value = serde_json::from_str(&said).expect("JSON");
    let kernel = report["provenance"]["kernel"].as_str().expect("a kernel");
    assert!(kernel.ends_with("FUSE over io_uring on"), "{kernel}");
    assert_eq!(state().trim(), "N");
    drop(held);
}

/// Goal: `-o rings` gives a mount rings though the kernel has them switched off, also several that begin at once, and the switch
/// is off again when they have begun; they go on without it. Without the option there are none.
/// Method: three mounts from three threads, what `varve stats` says, forty threads' work in each, the switch.
#[test]
fn wanted_where_the_switch_is_off() {
    const TEST: &str = "wanted_where_the_switch_is_off";
    if !can_mount(TEST) || !Path::new(SWITCH).exists() {
        return;
    }
    let Some(held) = Switched::on(TEST) else { return };
    fs::write(SWITCH, "N").expect("it could be written before");
    let scratch = Scratch::new("rings-wanted");
    let begin = |name: &str, options: &[&str]| {
        let pool = scratch.pool(&format!("pool-{name}"), "256M");
        Mount::start_with(&pool, &scratch.path(&format!("mnt-{name}")), options)
    };
    let mounts: Vec<Mount> = thread::scope(|scope| {
        let begin = &begin;
        let threads: Vec<_> =
            ["a", "b", "c"].map(|name| scope.spawn(move || begin(name, &["-o", "rings"]))).into();
        threads.into_iter().map(|thread| thread.join().expect("a mount")).collect()
    });
    assert_eq!(state().trim(), "N");
    for mount in &mounts {
        assert!(through_rings(mount), "{}", mount.point.display());
        let stop = AtomicBool::new(false);
        let made: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..40)
                .map(|thread| {
                    let (point, stop) = (&mount.point, &stop);
                    scope.spawn(move || work(point, thread, stop, &AtomicUsize::new(0)).len())
                })
                .collect();
            thread::sleep(Duration::from_millis(200));
            stop.store(true, Relaxed);
            threads.into_iter().map(|thread| thread.join().expect("a thread that works")).sum()
        });
        assert!(made > 0, "nothing could be made in {}", mount.point.display());
    }
    for mount in mounts {
        mount.unmount();
    }
    let without = begin("d", &[]);
    assert!(!through_rings(&without));
    without.unmount();
    drop(held);
}
