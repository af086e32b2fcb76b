//! PostgreSQL with its data directory on the mount: the most demanding caller of fsync that everybody has.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::harness::*;

/// Whose database it is: PostgreSQL refuses to run as root.
const USER: &str = "postgres";
/// Longest that a server may take to recover and answer.
const START_LIMIT: Duration = Duration::from_secs(180);
const INITIALISE_LIMIT: Duration = Duration::from_secs(600);

/// The server's programs and where it lies; everything outside the mount is in the scratch directory.
struct Cluster {
    programs: PathBuf,
    data: PathBuf,
    /// Sockets and messages.
    outside: PathBuf,
}

/// A running server. Its other processes are children of the first, in sessions of their own.
struct Server(Child);

impl Drop for Server {
    /// SIGKILL to all of its processes; returns when none is left that could still write.
    fn drop(&mut self) {
        let children: Vec<u32> =
            processes().filter(|(_, parent, _)| *parent == self.0.id()).map(|p| p.0).collect();
        let _already_gone = self.0.kill();
        let _status = self.0.wait();
        for child in &children {
            let pid = Pid::from_raw(*child as i32).expect("a process has a number");
            let _already_gone = rustix::process::kill_process(pid, Signal::KILL);
        }
        while processes().any(|(pid, _, dead)| children.contains(&pid) && !dead) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// All processes: number, number of the parent, whether dead and only waited for.
fn processes() -> impl Iterator<Item = (u32, u32, bool)> {
    fs::read_dir("/proc").expect("the kernel lists processes").filter_map(|entry| {
        let entry = entry.ok()?;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name, in brackets, may hold anything.
        let mut words = stat[stat.rfind(')')? + 1..].split_whitespace();
        let dead = words.next()? == "Z";
        Some((pid, words.next()?.parse().ok()?, dead))
    })
}

impl Cluster {
    /// Runs `program` as the database's user.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={USER}")).arg(format!("--regid={USER}")).arg("--init-groups");
        command.arg(self.programs.join(program)).current_dir(&self.outside).stdin(Stdio::null());
        command
    }

    fn start(&self) -> Server {
        let messages = fs::File::options()
            .create(true)
            .append(true)
            .open(self.outside.join("messages"))
            .expect("a file for messages");
        let mut command = self.command("postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.outside);
        // Small enough that checkpoints and the recycling of the log happen during the test.
        for setting in
            ["listen_addresses=", "shared_buffers=64MB", "max_wal_size=64MB", "checkpoint_timeout=30s"]
        {
            command.args(["-c", setting]);
        }
        command.process_group(0).stdout(messages.try_clone().unwrap()).stderr(messages);
        let mut server = Server(command.spawn().expect("postgres starts"));
        let started = Instant::now();
        while !output(self.command("pg_isready").arg("-q").arg("-h").arg(&self.outside)).status.success() {
            let ended = server.0.try_wait().expect("a child can be waited for");
            let said = || fs::read_to_string(self.outside.join("messages")).unwrap_or_default();
            assert!(ended.is_none(), "the server ended: {ended:?}\n{}", said());
            assert!(started.elapsed() < START_LIMIT, "the server does not answer\n{}", said());
            thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// One line of answer to a query.
    fn query(&self, text: &str) -> String {
        let out =
            succeed(self.command("psql").arg("-h").arg(&self.outside).args(["-At", "-c", text, "postgres"]));
        out.trim().to_owned()
    }

    /// Removes what a dead server leaves so that the next does not take a recycled process id for it.
    fn forget_the_dead(&self) {
        let _may_be_missing = fs::remove_file(self.data.join("postmaster.pid"));
    }
}

/// Where the newest installed server's programs are.
fn programs() -> Option<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| entry.ok())
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .filter(|(_, path)| path.join("pgbench").exists() && path.join("initdb").exists())
        .collect();
    versions.sort();
    versions.pop().map(|(_, path)| path)
}

/// Goal: no transaction that PostgreSQL acknowledged is lost, and nothing it stores is damaged, whoever is killed.
/// Method: pgbench with four clients writes down every transaction it was told is committed; SIGKILL of the server and
/// of the daemon in turn. After each restart the history has at least as many rows more as were written down, the
/// balances of accounts, branches and tellers add up to it, and at the end every index agrees with its table and every
/// page with its checksum.
#[test]
fn postgres_survives_kills() {
    let test = "postgres_survives_kills";
    if !can_mount(test) {
        return;
    }
    let Some(programs) = programs().filter(|_| rustix::process::getuid().is_root()) else {
        say(&format!(
            "\n*** SKIPPED {test}: it needs root and PostgreSQL (`cargo xtask test --full` installs it) ***\n"
        ));
        return;
    };
    let rounds = scale("VARVE_TEST_POSTGRES_KILLS", 2, 20);
    let scratch = Scratch::new("postgres");
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(scratch.path("."), everybody).expect("our own directory");
    let outside = scratch.subdir("outside");
    succeed(Command::new("chown").arg(USER).arg(&outside));
    let pool = scratch.pool("pool.img", "2G");
    let point = scratch.path("mnt");
    let mut mount = Mount::start_with(&pool, &point, &["-o", "allow_other"]);
    let cluster = Cluster { programs, data: mount.path("data"), outside };
    fs::create_dir(&cluster.data).expect("a directory");
    fs::set_permissions(&cluster.data, fs::Permissions::from_mode(0o700)).expect("our own directory");
    succeed(Command::new("chown").arg(USER).arg(&cluster.data));
    let mut initdb = cluster.command("initdb");
    succeed_within(initdb.args(["-k", "-A", "trust", "-D"]).arg(&cluster.data), INITIALISE_LIMIT);
    let mut server = cluster.start();
    let mut fill = cluster.command("pgbench");
    succeed_within(
        fill.arg("-h").arg(&cluster.outside).args(["-i", "-q", "-s", "2", "postgres"]),
        INITIALISE_LIMIT,
    );

    let mut random = Random::new(seed());
    let (mut acknowledged_all, mut kept_all) = (0, 0);
    for round in 0..rounds {
        let rows = |cluster: &Cluster| -> u64 {
            cluster.query("select count(*) from pgbench_history").parse().expect("a number")
        };
        let before = rows(&cluster);
        let mut bench = cluster.command("pgbench");
        bench.arg("-h").arg(&cluster.outside).args(["-n", "-c", "4", "-j", "2", "-T", "120", "--log"]);
        bench.arg(format!("--log-prefix=round{round}")).arg("postgres");
        bench.stdout(Stdio::null()).stderr(Stdio::null());
        let mut bench = bench.spawn().expect("pgbench starts");
        let started = Instant::now();
        while rows(&cluster) == before && started.elapsed() < COMMAND_LIMIT {
            thread::sleep(Duration::from_millis(50));
        }
        thread::sleep(Duration::from_millis(2_000 + random.below(3_000)));
        let of_the_daemon = round % 2 == 1;
        if of_the_daemon {
            mount.kill();
            drop(server);
            bench.wait().expect("a child can be waited for");
            mount = Mount::start_with(&pool, &point, &["-o", "allow_other"]);
        } else {
            drop(server);
            bench.wait().expect("a child can be waited for");
        }
        cluster.forget_the_dead();
        server = cluster.start();
        let acknowledged = written_down(&cluster.outside, &format!("round{round}."));
        let kept = rows(&cluster) - before;
        assert!(acknowledged > 0, "round {round}: nothing was committed, so nothing was tested");
        assert!(kept >= acknowledged, "round {round}: {acknowledged} commits acknowledged, {kept} kept");
        for sum in [
            "(select sum(abalance) from pgbench_accounts)",
            "(select sum(bbalance) from pgbench_branches)",
            "(select sum(tbalance) from pgbench_tellers)",
        ] {
            let equal = cluster.query(&format!("select {sum} = (select sum(delta) from pgbench_history)"));
            assert_eq!(equal, "t", "round {round}: {sum} is not the sum of the history");
        }
        acknowledged_all += acknowledged;
        kept_all += kept;
    }
    let mut amcheck = cluster.command("pg_amcheck");
    amcheck.arg("-h").arg(&cluster.outside).args(["--install-missing", "--heapallindexed", "postgres"]);
    succeed_within(&mut amcheck, INITIALISE_LIMIT);
    // SIGINT: end now, but in order.
    rustix::process::kill_process(Pid::from_child(&server.0), Signal::INT).expect("our own child");
    assert!(server.0.wait().expect("a child can be waited for").success(), "the server did not end in order");
    drop(server);
    succeed_within(
        cluster.command("pg_checksums").arg("--check").arg("-D").arg(&cluster.data),
        INITIALISE_LIMIT,
    );
    mount.unmount();
    check(&pool);
    say(&format!("PostgreSQL: {rounds} kills, {acknowledged_all} commits acknowledged, {kept_all} kept"));
}

/// Lines in the logs of pgbench that begin with `prefix`: transactions that the server called committed.
fn written_down(dir: &Path, prefix: &str) -> u64 {
    fs::read_dir(dir)
        .expect("our own directory")
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| fs::read_to_string(entry.path()).expect("a log of pgbench").lines().count() as u64)
        .sum()
}
