//! `varve import` and `varve export` where the other side is not an ordinary directory of root's: disks that fail, what is private,
//! users who may not do everything, mounts within a tree.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::XattrFlags;

use crate::harness::{Loop, Scratch, can_loop, detach, output, say, succeed, varve};
use crate::helper::script;
use crate::transfer::{done, export, import, ordinary_user};

/// A mount until this is dropped.
pub struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    pub fn mount<'a>(what: &[&str], device: &Path, point: &'a Path) -> Mounted<'a> {
        succeed(Command::new("mount").args(what).arg(device).arg(point));
        Mounted(point)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        detach(self.0);
    }
}

fn bits(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn past() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}

/// A file with a time that nothing has by chance.
fn file(path: &Path, contents: &[u8]) {
    fs::write(path, contents).expect("a file");
    fs::File::options().write(true).open(path).and_then(|file| file.set_modified(past())).expect("a time");
}

/// Goal: what an export could not make durable does not look finished, so that the next one copies it anew. Method: onto ext4 on a loop
/// device whose file lies on a full tmpfs: what the kernel writes back fails, which it tells once.
#[test]
fn what_a_disk_has_lost_is_not_finished() {
    if !can_loop("what_a_disk_has_lost_is_not_finished") {
        return;
    }
    let scratch = Scratch::new("export-lost");
    let (tree, small, point) = (scratch.subdir("tree"), scratch.subdir("small"), scratch.subdir("point"));
    // The second takes longer to copy than the first waits.
    for (name, len) in [("first", 1 << 20), ("second", 32 << 20)] {
        file(&tree.join(name), &vec![7; len]);
    }
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    let _small = Mounted::mount(&["-t", "tmpfs", "-o", "size=8m"], Path::new("none"), &small);
    let disk = fs::File::create(small.join("disk")).expect("a file");
    disk.set_len(64 << 20).expect("a sparse file");
    let disk = Loop::over(&small.join("disk"), &[]);
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-O", "^has_journal"]).arg(&disk.device);
    if !make.status().is_ok_and(|status| status.success()) {
        return say("*** skipped: ext4 cannot be made here ***");
    }
    let _mounted = Mounted::mount(&["-t", "ext4"], &disk.device, &point);
    // As much as fits.
    let _ = fs::write(small.join("fill"), vec![0; 8 << 20]);
    let mut command = varve(&["export", "--commit-every=0.01"]);
    let exported = output(command.arg(format!("{}:/", pool.display())).arg(point.join("out")));
    let said = String::from_utf8_lossy(&exported.stderr).into_owned();
    assert!(!exported.status.success() && said.contains("syncing the target failed"), "{exported:?}");
    for name in ["first", "second"] {
        let copy = fs::metadata(point.join("out").join(name)).expect("it was copied");
        assert_ne!(copy.modified().expect("a time"), past(), "{name} looks finished");
    }
}

/// Goal: what is private because its directory is does not become everybody's while it is copied, nor when that is cut off. Method: a tree
/// that others may not enter, exported by a process that the system ends in the middle of a file, and imported into a pool that is
/// too small for it; the directories that are made, and those above them.
#[test]
fn what_is_private_stays_so() {
    let scratch = Scratch::new("private");
    let tree = scratch.subdir("tree");
    fs::write(tree.join("file"), vec![7; 8 << 20]).expect("a file");
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o700)).expect("bits");
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    let out = scratch.path("new/out");
    let mut command = Command::new("bash");
    command.args(["-c", "umask 022; ulimit -c 0; ulimit -f 4096; exec \"$@\"", "bash"]);
    command.arg(varve(&[]).get_program());
    let ended = output(command.arg("export").arg(format!("{}:/", pool.display())).arg(&out));
    assert!(!ended.status.success(), "{ended:?}");
    assert_eq!((bits(&scratch.path("new")), bits(&out)), (0o755, 0o700));
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o750)).expect("bits");
    done(&import(&tree, &pool, "/"));
    done(&export(&pool, "/", &out));
    assert_eq!(bits(&out), 0o750);

    for number in 0..12 {
        fs::write(tree.join(format!("{number}")), vec![number; 8 << 20]).expect("a file");
    }
    let small = scratch.pool("small", "64M");
    let imported = import(&tree, &small, "/new/tree");
    assert_eq!(imported.status.code(), Some(1), "{imported:?}");
    let back = scratch.path("back");
    done(&export(&small, "/", &back));
    assert_eq!((bits(&back.join("new")), bits(&back.join("new/tree"))), (0o755, 0o700));
}

/// Runs an export with the calls traced that sync and that give names. `None`: calls cannot be traced here.
fn traced(export: &Command, pool: &Path, out: &Path, log: &Path) -> Option<Vec<String>> {
    let strace = || {
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "trace=syncfs,fdatasync,fsync,rename,renameat,renameat2,linkat", "-o"]);
        command.arg(log);
        command
    };
    if !strace().arg("true").output().is_ok_and(|out| out.status.success()) {
        say("\n*** SKIPPED: calls cannot be traced here ***\n");
        return None;
    }
    let mut command = strace();
    command.arg(export.get_program()).args(export.get_args());
    succeed(command.arg("export").arg(format!("{}:/", pool.display())).arg(out));
    let calls = fs::read_to_string(log).expect("what was called");
    Some(calls.lines().map(str::to_owned).collect())
}

/// Goal: a file that takes the place of an older copy has its bytes on the disk before, so that a cut of power leaves one of the two.
/// Method: the calls of such an export, with a file that is new and one that is not.
#[test]
fn what_takes_a_place_is_durable_before() {
    let scratch = Scratch::new("export-order");
    let (tree, out) = (scratch.subdir("tree"), scratch.subdir("out"));
    for name in ["new", "old"] {
        fs::write(tree.join(name), "the newer one").expect("a file");
    }
    fs::write(out.join("old"), "older").expect("a file");
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    let Some(calls) = traced(&varve(&[]), &pool, &out, &scratch.path("calls")) else { return };
    let at = |call: &str| calls.iter().position(|line| line.contains(call));
    let (synced, replaced) = (at("sync("), at("rename"));
    assert!(replaced.is_some() && synced.is_some() && synced < replaced, "{calls:#?}");
    let syncs = calls.iter().filter(|line| line.contains("sync(")).count();
    assert_eq!(syncs, 1, "what is new needs none: {calls:#?}");
    assert_eq!(fs::read_to_string(out.join("old")).expect("it is there"), "the newer one");
}

/// Goal: so has a file that takes the place by a further name, its first being nobody's before, also where its owner may not read it.
/// Method: the calls of such exports by root and by an ordinary user.
#[test]
fn a_further_name_takes_a_place_with_its_bytes() {
    let check = |name: &str, export: &Command, mode: u32| {
        let scratch = Scratch::new(name);
        let (tree, out) = (scratch.subdir("tree"), scratch.subdir("out"));
        fs::write(tree.join("x"), "the newer one").expect("a file");
        fs::set_permissions(tree.join("x"), fs::Permissions::from_mode(mode)).expect("bits");
        fs::hard_link(tree.join("x"), tree.join("y")).expect("a link");
        fs::write(out.join("y"), "older").expect("a file");
        let pool = scratch.pool("pool", "64M");
        done(&import(&tree, &pool, "/"));
        for path in [&out, &out.join("y"), &pool] {
            rustix::fs::chown(path, Some(rustix::fs::Uid::from_raw(65_534)), None).expect("an owner");
        }
        let Some(calls) = traced(export, &pool, &out, &scratch.path("calls")) else { return };
        let at = |call: &str| calls.iter().position(|line| line.contains(call));
        let (synced, replaced) = (at("sync"), at("rename"));
        assert!(replaced.is_some() && synced.is_some() && synced < replaced, "{name}: {calls:#?}");
        assert_eq!(fs::read_to_string(out.join("y")).expect("it is there"), "the newer one");
    };
    let Some(as_user) = ordinary_user() else { return };
    check("export-link", &varve(&[]), 0o644);
    check("export-link-closed", &as_user(), 0o200);
}

/// Goal: an ordinary user's export mends the attributes of files that he may not read or write, and finds nothing to do the next time.
/// Method: such files with attributes that change between two exports, and one that has no attribute any more; their bits in the end.
#[test]
fn attributes_of_closed_files_are_mended() {
    let Some(as_user) = ordinary_user() else { return };
    let scratch = Scratch::new("closed-files");
    let (tree, out) = (scratch.subdir("tree"), scratch.subdir("out"));
    let closed = [("read", 0o444), ("write", 0o200), ("closed", 0), ("bare", 0o400)];
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(tree.join(name), "user.a", value, XattrFlags::empty()).expect("an attribute");
    };
    for (name, mode) in closed {
        fs::write(tree.join(name), name).expect("a file");
        set(name, b"before");
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).expect("bits");
    }
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    rustix::fs::chown(&out, Some(rustix::fs::Uid::from_raw(65_534)), None).expect("an owner");
    fs::set_permissions(&pool, fs::Permissions::from_mode(0o644)).expect("bits");
    for (round, (copied, mended)) in [(4, 0), (0, 0), (0, 4), (0, 0)].into_iter().enumerate() {
        if round == 2 {
            for (name, _) in &closed[..3] {
                set(name, b"after");
            }
            rustix::fs::removexattr(tree.join("bare"), "user.a").expect("it is there");
            done(&import(&tree, &pool, "/"));
        }
        let mut command = as_user();
        command.args(["export", "--json"]).arg(format!("{}:/", pool.display())).arg(&out);
        let summary = done(&output(&mut command));
        assert_eq!(summary["files_copied_count"], copied, "{summary}");
        assert!(round == 0 || summary["attributes_changed_count"] == mended, "{round}: {summary}");
        for (name, mode) in closed {
            let mut room = [0; 16];
            let found = rustix::fs::getxattr(out.join(name), "user.a", &mut room[..]);
            let value = found.map(|len| room[..len].to_vec());
            let wanted = match (round, name) {
                (0 | 1, _) => Ok(b"before".to_vec()),
                (_, "bare") => Err(rustix::io::Errno::NODATA),
                _ => Ok(b"after".to_vec()),
            };
            assert_eq!((value, bits(&out.join(name))), (wanted, mode), "{name}");
        }
    }
}

/// Goal: `import -x` takes what is in the tree and leaves out what is mounted in it, where files have other device numbers than the
/// directory they lie in. Method: an overlay whose layers lie on different filesystems, with a directory and a file that are mount points.
#[test]
fn one_filesystem_may_have_several_numbers() {
    script(
        "import_overlay",
        r#"
mkdir "$S/lower" "$S/upper" "$S/merged"
mount -t tmpfs none "$S/lower"; mount -t tmpfs none "$S/upper"
mkdir -p "$S/lower/dir" "$S/lower/there" "$S/upper/u" "$S/upper/w"
echo 1 > "$S/lower/file"; echo 2 > "$S/lower/dir/file"; mkfifo "$S/lower/fifo"; echo hidden > "$S/lower/bound"
if mount -t overlay o -o "lowerdir=$S/lower,upperdir=$S/upper/u,workdir=$S/upper/w" "$S/merged"; then
    echo 3 > "$S/merged/dir/upper"
    mount -t tmpfs none "$S/merged/there"; echo no > "$S/merged/there/file"
    echo no > "$S/s"; mount --bind "$S/s" "$S/merged/bound"
    "$V" import -x --json "$S/merged" "$S/pool:/" > "$S/summary"
    grep -q '"filesystems_left_out_count": 2' "$S/summary" || fail "$(cat "$S/summary")"
    "$V" export "$S/pool:/" "$S/out"
    (cd "$S/out"; find . | LC_ALL=C sort | tr '\n' ' ') > "$S/found"
    [ "$(cat "$S/found")" = ". ./dir ./dir/file ./dir/upper ./fifo ./file ./there " ] || fail "$(cat "$S/found")"
else
    echo "*** skipped: overlayfs cannot be mounted here ***" >&2
fi
"#,
    );
}
