//! What every mounted test stands on: scratch directories, pools, mounts, loop devices, other programs.
//!
//! Each is a guard. It touches only what it made and ends only processes it started, by their id.

use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// Longest any single command of a test may take.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(300);
/// Longest a mount may take to answer before the test gives up on it.
const MOUNT_LIMIT: Duration = COMMAND_LIMIT;

/// Says something on the terminal although the test passes (libtest hides what the print macros write).
pub fn say(text: &str) {
    let _nobody_listens = writeln!(std::io::stderr(), "{text}");
}

/// Whether FUSE mounts are possible; says loudly that `test` is skipped when not.
pub fn can_mount(test: &str) -> bool {
    let possible = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !possible {
        say(&format!("\n*** SKIPPED {test}: /dev/fuse cannot be opened here ***\n"));
    }
    possible
}

/// Whether loop devices can be made; says loudly that `test` is skipped when not.
pub fn can_loop(test: &str) -> bool {
    let possible = fs::File::options().read(true).write(true).open("/dev/loop-control").is_ok();
    if !possible {
        say(&format!("\n*** SKIPPED {test}: loop devices cannot be made here (needs root) ***\n"));
    }
    possible
}

/// The number in environment variable `name`, or `full` for runs at full size, or `small`.
pub fn scale(name: &str, small: u64, full: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")),
        Err(_) if is_full() => full,
        Err(_) => small,
    }
}

/// Whether this is a run at full size.
pub fn is_full() -> bool {
    std::env::var_os("VARVE_TEST_FULL").is_some()
}

/// A directory of one test's own.
pub struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    pub fn new(test: &str) -> Scratch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = std::env::var_os("VARVE_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let base = base.canonicalize().expect("the directory for temporary files exists");
        // What was killed has left its own, and numbers of processes come again.
        let dir = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let dir = base.join(format!("varve-{test}-{}-{number}", std::process::id()));
            match fs::create_dir(&dir) {
                Ok(()) => break dir,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("no directory {}: {error}", dir.display()),
            }
        };
        // Users who are not root go in, too.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("our own directory");
        Scratch { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A new directory in it.
    pub fn subdir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("a fresh directory");
        path
    }

    /// A new pool in a file.
    pub fn pool(&self, name: &str, size: &str) -> PathBuf {
        let path = self.path(name);
        succeed(varve(&["create"]).arg(&path).args(["--size", size]));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for point in mount_points().into_iter().filter(|point| point.starts_with(&self.dir)) {
            detach(&point);
        }
        if mount_points().iter().any(|point| point.starts_with(&self.dir)) {
            say(&format!("{} is still mounted; it is left as it is", self.dir.display()));
        } else if let Err(error) = fs::remove_dir_all(&self.dir) {
            say(&format!("cannot remove {}: {error}", self.dir.display()));
        }
    }
}

/// The program under test. `VARVE_BIN` names another build of it.
pub fn varve(args: &[&str]) -> Command {
    let program = std::env::var_os("VARVE_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_varve").into());
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs `command` to its end, with a limit; its whole process group is ended when it takes longer.
pub fn output(command: &mut Command) -> Output {
    output_within(command, COMMAND_LIMIT)
}

pub fn output_within(command: &mut Command, limit: Duration) -> Output {
    let what = format!("{command:?}");
    // Files without names, not pipes: a daemon that a command leaves behind may hold its output open for as long as it
    // runs, and all that was written by the end of the command is in them then.
    let files = [(); 2].map(|()| nameless_file());
    let [to_out, to_err] = files.each_ref().map(|file| file.try_clone().expect("a file for output"));
    command.process_group(0).stdout(to_out).stderr(to_err);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
    let status = wait(&mut child, limit);
    let [stdout, stderr] = files.map(|mut file| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("output can be read");
        bytes
    });
    match status {
        Some(status) => Output { status, stdout, stderr },
        None => panic!("{what} took longer than {limit:?}\n{}", String::from_utf8_lossy(&stderr)),
    }
}

fn nameless_file() -> fs::File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("output", flags).expect("memory for output").into()
}

/// Waits for a process that leads its own group. `None`: it took too long and the group was ended.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if started.elapsed() > limit {
            let group = Pid::from_child(child);
            let _already_gone = rustix::process::kill_process_group(group, Signal::KILL);
            let _status = child.wait();
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `command` and gives its standard output; the test fails if the command does.
pub fn succeed(command: &mut Command) -> String {
    succeed_within(command, COMMAND_LIMIT)
}

pub fn succeed_within(command: &mut Command, limit: Duration) -> String {
    let out = output_within(command, limit);
    assert!(
        out.status.success(),
        "{command:?}: {}\n{}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// `program` in `dir`.
pub fn program(program: &str, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    // What it says is compared.
    command.current_dir(dir).args(args).stdin(Stdio::null()).env("LC_ALL", "C");
    command
}

/// `varve check` must find nothing.
pub fn check(pool: &Path) {
    succeed(varve(&["check"]).arg(pool));
}

/// A mounted pool, and its daemon as a child of this process.
pub struct Mount {
    daemon: Option<Child>,
    pub point: PathBuf,
    /// What the daemon says.
    log: PathBuf,
    /// From the start of the program to the answer of the mount.
    pub took: Duration,
}

impl Mount {
    /// Mounts `pool` on `point`, which is made if it is not there.
    pub fn start(pool: &Path, point: &Path) -> Mount {
        Mount::start_with(pool, point, &[])
    }

    pub fn start_with(pool: &Path, point: &Path, options: &[&str]) -> Mount {
        let mut command = varve(&["mount", "--foreground"]);
        command.args(options).arg(pool).arg(point);
        Mount::start_by(command, pool, point)
    }

    /// The same by a command that becomes the daemon.
    pub fn start_by(mut command: Command, pool: &Path, point: &Path) -> Mount {
        fs::create_dir_all(point).expect("a mount point");
        let log = point.with_extension("log");
        let file = fs::File::options().create(true).append(true).open(&log).expect("a file for messages");
        let said_before = file.metadata().expect("a file for messages").len() as usize;
        let started = Instant::now();
        command.process_group(0).stdout(file.try_clone().unwrap()).stderr(file);
        let daemon = command.spawn().expect("varve starts");
        let mut mount = Mount { daemon: Some(daemon), point: point.to_owned(), log, took: Duration::ZERO };
        // It says so when everything about it answers, `varve sync` and `varve unmount` included.
        while !mount.messages()[said_before..].contains("varve: mounted") {
            let daemon = mount.daemon.as_mut().unwrap();
            if let Some(status) = daemon.try_wait().expect("a child can be waited for") {
                panic!("varve mount {} ended ({status}):\n{}", pool.display(), mount.messages());
            }
            assert!(started.elapsed() < MOUNT_LIMIT, "no mount after {MOUNT_LIMIT:?}:\n{}", mount.messages());
            thread::sleep(Duration::from_millis(2));
        }
        mount.took = started.elapsed();
        assert!(
            mount_points().contains(&mount.point),
            "it says that it is mounted and the kernel does not know"
        );
        mount
    }

    /// Waits until the reaper has nothing to do; what is not durable yet is made so, since nothing of that is reaped.
    pub fn wait_reaped(&self, at_most: Duration) {
        self.sync();
        let end = Instant::now() + at_most;
        loop {
            let said = succeed(varve(&["stats", "--json"]).arg(&self.point));
            let stats: serde_json::Value = serde_json::from_str(&said).expect("JSON");
            if stats["reap"]["backlog_count"] == 0 {
                return;
            }
            assert!(Instant::now() < end, "not all is reaped after {at_most:?}: {said}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("the daemon runs").id()
    }

    /// What the daemon has said so far.
    pub fn messages(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn sync(&self) {
        succeed(varve(&["sync"]).arg(&self.point));
    }

    /// Resident memory of the daemon.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the daemon runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") << 10
    }

    /// `varve unmount`; afterwards the daemon must be gone, without an error.
    pub fn unmount(mut self) {
        succeed(varve(&["unmount"]).arg(&self.point));
        assert!(!mount_points().contains(&self.point), "varve unmount returned and the mount is still there");
        let mut daemon = self.daemon.take().unwrap();
        // The command returns when the daemon is gone; as our child it stays a zombie until it is waited for.
        let status = wait(&mut daemon, COMMAND_LIMIT);
        let status = status.unwrap_or_else(|| panic!("varve unmount returned before the daemon had gone"));
        assert!(status.success(), "the daemon ended with {status}:\n{}", self.messages());
    }

    /// SIGTERM: the daemon must end soon, without an error.
    pub fn terminate(&mut self) {
        let status = self.terminated();
        assert!(status.success(), "the daemon ended with {status}:\n{}", self.messages());
    }

    /// SIGTERM: the daemon must end soon.
    pub fn terminated(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), Signal::TERM)
            .expect("our own child");
        let status = wait(&mut daemon, COMMAND_LIMIT);
        let Some(status) = status else {
            self.daemon = Some(daemon);
            panic!("the daemon has not ended");
        };
        status
    }

    /// The daemon has been told to end; it must do so soon.
    pub fn ended(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().unwrap();
        wait(&mut daemon, COMMAND_LIMIT).unwrap_or_else(|| panic!("the daemon has not ended"))
    }

    /// SIGKILL, as a crash of the program: nothing is written any more. The dead mount is taken away.
    pub fn kill(mut self) {
        let mut daemon = self.daemon.take().unwrap();
        assert!(
            daemon.try_wait().expect("a child can be waited for").is_none(),
            "the daemon had ended by itself:\n{}",
            self.messages()
        );
        daemon.kill().expect("our own child can be killed");
        daemon.wait().expect("a child can be waited for");
        detach(&self.point);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _already_gone = daemon.kill();
            let _status = daemon.wait();
            detach(&self.point);
            if thread::panicking() {
                say(&format!("messages of the daemon of {}:\n{}", self.point.display(), self.messages()));
            }
        }
    }
}

/// Every mount point there is.
pub fn mount_points() -> Vec<PathBuf> {
    // Others may use any bytes in their names.
    let table = fs::read("/proc/self/mountinfo").expect("the kernel tells what is mounted");
    String::from_utf8_lossy(&table)
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .collect()
}

/// Takes a mount of ours away, whatever state it is in.
pub fn detach(point: &Path) {
    for (program, flags) in [("umount", &["-l"][..]), ("fusermount3", &["-u", "-z"])] {
        if !mount_points().iter().any(|mounted| mounted == point) {
            return;
        }
        let _the_other_may_do_it = Command::new(program)
            .args(flags)
            .arg(point)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// A loop device over a file.
pub struct Loop {
    pub device: PathBuf,
}

/// What the block layer has counted for a device.
#[derive(Clone, Copy, Debug)]
pub struct BlockStat {
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
}

impl BlockStat {
    pub fn since(self, before: BlockStat) -> BlockStat {
        BlockStat {
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}

impl Loop {
    /// A loop device over a new, sparse file.
    pub fn new(scratch: &Scratch, name: &str, bytes: u64) -> Loop {
        let file = scratch.path(name);
        fs::File::create(&file).and_then(|file| file.set_len(bytes)).expect("a file for a loop device");
        Loop::over(&file, &["--direct-io=on"])
    }

    /// A loop device over a file that is there.
    pub fn over(file: &Path, options: &[&str]) -> Loop {
        // Finding a free device and taking it are two steps of losetup.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _held = ONE_AT_A_TIME.lock();
        let device = succeed(Command::new("losetup").args(["--find", "--show"]).args(options).arg(file));
        Loop { device: PathBuf::from(device.trim()) }
    }

    pub fn stat(&self) -> BlockStat {
        let name = self.device.file_name().unwrap().to_string_lossy();
        let line =
            fs::read_to_string(format!("/sys/block/{name}/stat")).expect("a block device has statistics");
        let fields: Vec<u64> =
            line.split_whitespace().map(|field| field.parse().expect("a number")).collect();
        // Documentation/block/stat.rst of the kernel: 5 write I/Os, 7 write sectors, 16 flush I/Os (from 1).
        BlockStat { writes: fields[4], written_bytes: fields[6] * 512, flushes: fields[15] }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _still_busy_goes_when_closed = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

/// Numbers that depend on the seed alone.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number (splitmix64).
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// `len` bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// The seed of a run: the environment's, or today's.
pub fn seed() -> u64 {
    let seed = match std::env::var("VARVE_TEST_SEED") {
        Ok(text) => text.parse().expect("VARVE_TEST_SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64 >> 10),
    };
    println!("VARVE_TEST_SEED={seed}");
    seed
}
