//! Real use: trees copied in, git, SQLite, a build.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::*;
use crate::tree;

/// Longest a copy or a build of the full-size run may take.
const LONG: Duration = Duration::from_secs(45 * 60);

/// Goal: a tree copied in is the same tree after a sync and a kill, and after an unmount; git finds its repository
/// whole. Method: a generated tree with every kind of oddity, `cp -a`, comparison of every attribute, `diff -r`.
#[test]
fn a_tree_survives_unmount_and_kill() {
    if !can_mount("a_tree_survives_unmount_and_kill") {
        return;
    }
    let files = scale("VARVE_TEST_FILES", 2_000, 50_000);
    let scratch = Scratch::new("tree");
    let before = scratch.subdir("before");
    tree::generate(&before, files, seed());
    let pool = scratch.pool("pool.img", if files > 10_000 { "8G" } else { "1G" });
    let point = scratch.path("mnt");

    let mount = Mount::start(&pool, &point);
    let copy = mount.path("copy");
    let started = Instant::now();
    succeed_within(Command::new("cp").arg("-a").arg(&before).arg(&copy), LONG);
    println!("{files} files copied in: {:.1} s", started.elapsed().as_secs_f64());
    tree::assert_equal(&before, &copy);
    mount.sync();
    // Work that nobody asked to keep: it may be there afterwards or not, but it must do no harm.
    succeed_within(Command::new("cp").arg("-a").arg(&before).arg(mount.path("unsynced")), LONG);
    mount.kill();

    let mount = Mount::start(&pool, &point);
    println!("mount after the kill: {:?}", mount.took);
    tree::assert_equal(&before, &copy);
    same_by_diff(&before, &copy);
    git_at_work(&copy);
    mount.unmount();
    check(&pool);

    let mount = Mount::start(&pool, &point);
    succeed_within(&mut program("git", &copy, &["fsck", "--full", "--strict"]), LONG);
    assert_eq!(succeed_within(&mut git(&copy, &["status", "--porcelain"]), LONG), "");
    fs::remove_dir_all(copy.join(".git")).expect("a repository can be removed");
    // git touched nothing but its own directory; removing that set the time of the one above it.
    let host = fs::metadata(&before).and_then(|meta| meta.modified()).expect("the host tells times");
    fs::File::open(&copy).and_then(|dir| dir.set_modified(host)).expect("times can be set");
    tree::assert_equal(&before, &copy);
    mount.unmount();
    check(&pool);
}

fn same_by_diff(a: &Path, b: &Path) {
    succeed_within(Command::new("diff").args(["-r", "--no-dereference"]).arg(a).arg(b), LONG);
}

fn git(dir: &Path, args: &[&str]) -> Command {
    let mut command = program("git", dir, &["-c", "user.name=test", "-c", "user.email=test@localhost"]);
    // What git calls done is on the disk; the machine's own configuration does not matter.
    command.args(["-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync", "-c", "gc.auto=0"]).args(args);
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command
}

fn git_at_work(dir: &Path) {
    succeed_within(&mut git(dir, &["init", "-q", "."]), LONG);
    succeed_within(&mut git(dir, &["add", "-A"]), LONG);
    succeed_within(&mut git(dir, &["commit", "-q", "-m", "all of it"]), LONG);
    succeed_within(&mut git(dir, &["fsck", "--full", "--strict"]), LONG);
    assert_eq!(succeed_within(&mut git(dir, &["status", "--porcelain"]), LONG), "");
}

/// Goal: after a kill a repository is whole and holds every commit that was made before a sync. Method: kills right
/// after commits; git does not sync the directories it renames in, so the last commit may be gone where no sync of
/// ours followed it, but never what it refers to while it is there.
#[test]
fn git_commits_survive_kills() {
    if !can_mount("git_commits_survive_kills") {
        return;
    }
    let rounds = scale("VARVE_TEST_KILLS", 5, 20).min(20);
    let scratch = Scratch::new("git");
    let pool = scratch.pool("pool.img", "256M");
    let mut random = Random::new(seed());
    let (mut made, mut certain) = (0, 0);
    for round in 0..rounds {
        let mount = Mount::start(&pool, &scratch.path("mnt"));
        let repository = mount.path("repository");
        if round == 0 {
            fs::create_dir(&repository).expect("a directory");
            succeed(&mut git(&repository, &["init", "-q", "-b", "main", "."]));
            mount.sync();
        } else {
            succeed(&mut git(&repository, &["fsck", "--full", "--strict"]));
            let count = succeed(&mut git(&repository, &["rev-list", "--count", "--all"]));
            let count: u64 = count.trim().parse().expect("a number");
            assert!((certain..=made).contains(&count), "{count} commits of {made}, {certain} of them synced");
            made = count;
            // What a user does after a crash: git leaves its lock files behind.
            for lock in ["index.lock", "HEAD.lock", "refs/heads/main.lock"] {
                let _mostly_not_there = fs::remove_file(repository.join(".git").join(lock));
            }
            succeed(&mut git(&repository, &["add", "-A"]));
        }
        for _ in 0..40 {
            let file = repository.join(format!("file{}", random.below(100)));
            let len = random.below(20_000) as usize;
            fs::write(file, random.bytes(len)).expect("a file can be written");
        }
        succeed(&mut git(&repository, &["add", "-A"]));
        succeed(&mut git(&repository, &["commit", "-q", "-m", "round"]));
        made += 1;
        if round % 2 == 0 {
            mount.sync();
            certain = made;
        }
        mount.kill();
    }
    check(&pool);
}

/// Both make a commit durable with an fsync whose failure SQLite reports. DELETE does not: having removed the journal,
/// SQLite syncs the directory only if it can still open it, and calls the commit done when it cannot, as in the moment
/// after the daemon was killed.
const JOURNAL_MODES: [&str; 2] = ["TRUNCATE", "WAL"];

/// Goal: every transaction SQLite reported as committed is there after a kill, and the database is whole. Method: a
/// writer that reports each commit, kills at random moments, both journal modes.
#[test]
fn sqlite_commits_survive_kills() {
    if !can_mount("sqlite_commits_survive_kills") {
        return;
    }
    let rounds = scale("VARVE_TEST_KILLS", 6, 40).min(200);
    let scratch = Scratch::new("sqlite");
    let pool = scratch.pool("pool.img", "256M");
    let mut random = Random::new(seed());
    let committed = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    for round in 0..rounds {
        let mount = Mount::start(&pool, &scratch.path("mnt"));
        let mode = JOURNAL_MODES[round as usize % 2];
        let database = mount.path(&format!("{mode}.db"));
        let committed = &committed[round as usize % 2];
        let known = committed.load(Ordering::SeqCst);
        if known > 0 {
            let text =
                succeed(sqlite(&database).args(["PRAGMA integrity_check; SELECT max(id), count(*) FROM t;"]));
            let (whole, rows) = text.trim().split_once('\n').expect("two answers");
            assert_eq!(whole, "ok", "round {round}, {mode}");
            let (last, count) = rows.split_once('|').expect("two columns");
            let last: u64 = last.parse().expect("a number");
            assert!(last >= known, "round {round}, {mode}: {known} was committed, {last} is the last row");
            assert_eq!(count, last.to_string(), "round {round}, {mode}: rows are missing in between");
            committed.store(last, Ordering::SeqCst);
        }
        write_until_killed(&database, mode, committed, mount, Duration::from_millis(300 + random.below(900)));
    }
    for (index, committed) in committed.iter().enumerate() {
        let rows = committed.load(Ordering::SeqCst);
        println!("rows committed: {rows}");
        assert!(rows > 0 || (index as u64) >= rounds, "the writer committed nothing, so nothing was tested");
    }
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    mount.unmount();
    check(&pool);
}

fn sqlite(database: &Path) -> Command {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail", "-init", "/dev/null"]).arg(database);
    command
}

/// Inserts rows until the filesystem is killed under it; `committed` is the last row that was reported committed.
fn write_until_killed(
    database: &Path,
    mode: &str,
    committed: &Arc<AtomicU64>,
    mount: Mount,
    after: Duration,
) {
    let mut writer = sqlite(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sqlite3 starts");
    let mut input = writer.stdin.take().unwrap();
    let output = BufReader::new(writer.stdout.take().unwrap());
    let known = committed.load(Ordering::SeqCst);
    let first = known + 1;
    let opening = format!(
        "PRAGMA journal_mode={mode};\nPRAGMA synchronous=FULL;\nPRAGMA wal_autocheckpoint=100;\n\
         CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, body BLOB);\n"
    );
    let feeder = thread::spawn(move || {
        let _killed = input.write_all(opening.as_bytes());
        for id in first.. {
            let line = format!("INSERT INTO t VALUES({id}, randomblob(2000));\nSELECT 'done', {id};\n");
            if input.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
    });
    let reports = Arc::clone(committed);
    let reader = thread::spawn(move || {
        for line in output.lines().map_while(|line| line.ok()) {
            if let Some(id) = line.strip_prefix("done|") {
                reports.store(id.parse().expect("a number"), Ordering::SeqCst);
            }
        }
    });
    // Until there is something to lose; what was kept in an earlier round is.
    let started = Instant::now();
    while known == 0 && committed.load(Ordering::SeqCst) == 0 && started.elapsed() < COMMAND_LIMIT {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(after);
    mount.kill();
    let _already_gone = writer.kill();
    writer.wait().expect("a child can be waited for");
    feeder.join().expect("the feeder ends with its pipe");
    reader.join().expect("the reader ends with its pipe");
}

/// Goal: what compilers and build systems do to a filesystem works. Method: this project, copied in and built there,
/// at full size only (it takes minutes).
#[test]
fn this_project_builds_inside() {
    if !is_full() {
        println!("only with VARVE_TEST_FULL=1");
        return;
    }
    if !can_mount("this_project_builds_inside") {
        return;
    }
    let scratch = Scratch::new("build");
    let pool = scratch.pool("pool.img", "8G");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace");
    let copy = mount.path("project");
    fs::create_dir(&copy).expect("a directory");
    let tracked = succeed(&mut program("git", &project, &["ls-files"]));
    for file in tracked.lines() {
        let to = copy.join(file);
        fs::create_dir_all(to.parent().expect("a file lies in a directory")).expect("directories");
        fs::copy(project.join(file), to).expect("a tracked file can be copied");
    }
    let build = ["build", "--offline", "--locked", "-p", "varve-cli"];
    let mut command = program("cargo", &copy, &build);
    command.env("CARGO_TARGET_DIR", copy.join("target"));
    let started = Instant::now();
    succeed_within(&mut command, LONG);
    println!("built inside the mount: {:.0} s", started.elapsed().as_secs_f64());
    let built = succeed(Command::new(copy.join("target/debug/varve")).arg("--version"));
    assert!(built.starts_with("varve"), "{built}");
    mount.unmount();
    check(&pool);
}

/// Goal: the short ways of the program work: `varve mount` returns with the mount answering and leaves a daemon,
/// `varve unmount` returns with the daemon gone. Method: processes are looked for by the pool on their command line.
#[test]
fn mount_and_unmount_return_when_done() {
    if !can_mount("mount_and_unmount_return_when_done") {
        return;
    }
    let scratch = Scratch::new("return");
    let pool = scratch.pool("pool.img", "64M");
    let point = scratch.subdir("mnt");
    succeed(varve(&["mount"]).arg(&pool).arg(&point));
    fs::write(point.join("file"), b"at once").expect("the mount answers when the command has returned");
    assert_eq!(processes_naming(&pool).len(), 1, "one daemon");
    succeed(varve(&["stats", "--json"]).arg(&point));
    succeed(varve(&["unmount"]).arg(&point));
    assert_eq!(
        processes_naming(&pool),
        Vec::<u32>::new(),
        "the daemon is gone when the command has returned"
    );
    assert_eq!(fs::read_dir(&point).expect("the mount point").count(), 0);
    check(&pool);
}

/// Processes with `pool` on their command line.
fn processes_naming(pool: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("processes are listed").flatten();
    let pids =
        entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).split('\0').any(|word| Path::new(word) == pool)
    })
    .collect()
}

/// Goal: the README does not name commands that are not there. Method: each `varve` command of its shell blocks
/// answers `--help`.
#[test]
fn commands_of_the_readme_exist() {
    let readme = include_str!("../../../../README.md");
    let mut seen = 0;
    for line in readme.split("```sh").skip(1).filter_map(|part| part.split("```").next()).flat_map(str::lines)
    {
        for words in line
            .split(';')
            .flat_map(|piece| piece.split("&&"))
            .map(|c| c.split_whitespace().collect::<Vec<_>>())
        {
            if let ["varve", verb, ..] = words[..] {
                succeed(&mut varve(&[verb, "--help"]));
                seen += 1;
            }
        }
    }
    assert!(seen >= 5, "the README shows five commands, {seen} were found");
}
