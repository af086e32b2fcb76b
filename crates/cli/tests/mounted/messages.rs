//! What a new user is told who gives what is no pool, is not there, or cannot be: word for word, so that whoever changes a
//! sentence reads it.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use varve_format::superblock::{SLOT_BYTES, SLOTS_PER_END, slot_offset};

use crate::harness::{Mount, Scratch, can_mount, output, succeed, varve};

const POOL_BYTES: u64 = 64 << 20;

/// Runs the command in the scratch directory, and gives its exit status, standard output and standard error, without the name
/// of that directory.
fn say(directory: &Path, words: &str) -> (Option<i32>, String, String) {
    let mut command = varve(&[]);
    let out = output(command.current_dir(directory).args(words.split(' ')));
    let plain = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).expect("text");
        text.replace(&format!("{}/", directory.display()), "")
    };
    (out.status.code(), plain(out.stdout), plain(out.stderr))
}

/// Pools that are damaged in one way each, beside one that is whole.
fn make(scratch: &Scratch) -> std::path::PathBuf {
    let pool = scratch.pool("pool.img", "64M");
    let directory = pool.parent().expect("it is in a directory").to_owned();
    let copy = |name: &str| {
        fs::copy(&pool, directory.join(name)).expect("a copy");
        fs::File::options().read(true).write(true).open(directory.join(name)).expect("a file")
    };
    let labels = copy("labels.img");
    for at in [0, POOL_BYTES - 4096] {
        labels.write_all_at(&[0xab; 4096], at).expect("an image can be written");
    }
    let slots = copy("slots.img");
    for index in 0..2 * SLOTS_PER_END {
        let at = slot_offset(index, POOL_BYTES);
        let mut slot = vec![0; SLOT_BYTES as usize];
        slots.read_exact_at(&mut slot, at).expect("an image can be read");
        if slot[..8] != [0; 8] {
            slots.write_all_at(&[0xab; 40], at + 30).expect("an image can be written");
        }
    }
    copy("short.img").set_len(40 << 20).expect("a shorter file");
    let cut = copy("cut.img");
    cut.set_len(40 << 20).expect("a shorter file");
    cut.write_all_at(&[0xab; 4096], 0).expect("an image can be written");
    fs::write(directory.join("text.txt"), "hello\n").expect("a file");
    fs::write(directory.join("large.txt"), vec![b'a'; 65 << 20]).expect("a file");
    fs::write(directory.join("small.txt"), vec![b'a'; 1 << 20]).expect("a file");
    fs::write(directory.join("empty.img"), "").expect("a file");
    for (name, bytes) in [("zeros.img", POOL_BYTES), ("middle.img", POOL_BYTES), ("tiny.img", 512)] {
        fs::File::create(directory.join(name)).and_then(|file| file.set_len(bytes)).expect("zeros");
    }
    let middle = fs::File::options().write(true).open(directory.join("middle.img")).expect("a file");
    middle.write_all_at(b"something", POOL_BYTES / 2).expect("room");
    fs::create_dir_all(directory.join("dir/few")).expect("a directory");
    drop(copy("full.img"));
    assert_eq!(say(&directory, "import dir full.img:/").0, Some(0));
    directory
}

/// Goal: every sentence says what is wrong and what to do next, and nothing untrue. Method: each kind of wrong pool to the
/// commands that look at one.
#[test]
fn what_is_no_pool_is_told() {
    let scratch = Scratch::new("messages");
    let directory = make(&scratch);
    let (_, overview, _) = say(&directory, "inspect --json pool.img");
    let overview: Value = serde_json::from_str(&overview).expect("JSON");
    let id = overview["pool_id"].as_str().expect("a pool has an id").to_owned();
    let expected = [
        ("check none.img", "none.img does not exist; give the file or block device of a pool"),
        ("inspect none.img", "none.img does not exist; give the file or block device of a pool"),
        (
            "subvolume list none.img",
            "cannot look at none.img: there is no such file or directory; give anything inside a mount, or the file or block \
             device of a pool",
        ),
        (
            "stats none.img",
            "cannot look at none.img: there is no such file or directory; give anything inside a mount, or the file or block \
             device of a pool",
        ),
        ("stats dir", "dir is neither inside a mounted pool nor the file or block device of a pool"),
        (
            "check dir",
            "dir is a directory; give the file or block device of a pool (varve stats dir says which is mounted there)",
        ),
        (
            "check text.txt",
            "text.txt is too short for anything and holds no pool; give the file or block device of a pool",
        ),
        (
            "inspect text.txt",
            "text.txt is 6 bytes long and holds no pool, which has at least 67108864; give the file or block device of a pool",
        ),
        (
            "inspect short.img",
            "short.img is 41943040 bytes long, but its label says 67108864: the device has been truncated; restore its length \
             before looking at it",
        ),
        (
            "inspect large.txt",
            "large.txt holds no pool that can be read: label without its magic at byte 0; give the file or block device of a \
             pool",
        ),
        (
            "inspect labels.img",
            "no label of labels.img can be read (label without its magic at byte 0), but superblocks of pool ID are there: do \
             not create a pool on it. varve inspect labels.img superblock shows what is left",
        ),
        (
            "inspect cut.img",
            "no label of cut.img can be read (label without its magic at byte 0), but superblocks of pool ID are there: do not \
             create a pool on it. It is 41943040 bytes long, and that pool had 67108864 at least: make a copy, give that its \
             length again (truncate -s 67108864 COPY), and varve inspect COPY superblock shows what is left",
        ),
        (
            "inspect slots.img",
            "slots.img has no valid superblock: nothing can be found without one; varve inspect slots.img superblock shows \
             what is left",
        ),
        (
            "import text.txt pool.img:/",
            "cannot open text.txt: it is not a directory; give the directory whose contents are to be copied",
        ),
        (
            "export pool.img:/ text.txt",
            "cannot make the directory text.txt: text.txt is not a directory; name another",
        ),
        (
            "export pool.img:/ text.txt/x",
            "cannot make the directory text.txt/x: text.txt is not a directory; name another",
        ),
        ("create empty.img", "empty.img is empty; give --size SIZE to make a pool of it, such as --size 10G"),
        (
            "create /dev/null --size 64M",
            "/dev/null is neither a regular file nor a block device: no pool can be made of it",
        ),
        (
            "create dir --size 64M",
            "dir is neither a regular file nor a block device: no pool can be made of it",
        ),
        (
            "diff full.img:/few full.img:/",
            "cannot compare full.img:/few and full.img:/: full.img:/few is neither a subvolume nor a snapshot; give two of \
             those that varve subvolume list full.img shows",
        ),
        (
            "diff full.img:/ dir",
            "cannot compare full.img:/ and dir: full.img:/ is a place in a pool as it lies on its device, and the other a path \
             in a mount; give two of one kind, paths if the pool is mounted",
        ),
        ("sync dir", "dir is not inside a mounted pool; give the directory of a mount, or anything in it"),
        ("sync none", "cannot find none: there is no such file or directory"),
        (
            "unmount dir",
            "no pool is mounted on dir; the directory it is mounted on is wanted (findmnt shows all)",
        ),
        (
            "unmount none",
            "cannot find none: there is no such file or directory; give the directory that the pool is mounted on",
        ),
    ];
    for (words, message) in expected {
        let (status, stdout, stderr) = say(&directory, words);
        let stderr = stderr.replace(&id, "ID");
        let verb = words.split(' ').next().expect("a verb");
        assert_eq!(stderr, format!("varve {verb}: {message}\n"), "varve {words}");
        assert_eq!((status, &stdout[..]), (Some(1), ""), "varve {words}");
    }
    let (_, _, said) = say(&directory, "check slots.img");
    assert!(
        said.contains("do not create a pool on it") && said.contains("varve inspect slots.img superblock"),
        "{said}"
    );
    // Whoever opens it says the same.
    let (_, _, inspected) = say(&directory, "inspect cut.img");
    let inspected = inspected.strip_prefix("varve inspect: ").expect("a sentence");
    for verb in ["check cut.img", "mount cut.img dir", "import dir cut.img:/x", "export cut.img:/ new"] {
        let (status, _, said) = say(&directory, verb);
        assert_eq!(status, Some(1), "{verb}");
        assert!(said.ends_with(inspected), "{verb}: {said}");
    }
    // What is left can be seen.
    fs::copy(directory.join("cut.img"), directory.join("copy.img")).expect("a copy");
    let copy = fs::File::options().write(true).open(directory.join("copy.img")).expect("a file");
    copy.set_len(POOL_BYTES).expect("a longer file");
    for image in ["labels.img", "slots.img", "copy.img"] {
        assert_eq!(say(&directory, &format!("inspect {image} superblock")).0, Some(0), "{image}");
    }
}

/// Goal: nobody is advised to make a pool where something is, and who writes is advised to where nothing is; none of it is changed. Method: text of
/// several lengths and an archive, by who opens to write and by who looks; an empty file, zeros, and zeros at both ends.
#[test]
fn nobody_is_advised_to_overwrite_anything() {
    let scratch = Scratch::new("messages-contents");
    let directory = make(&scratch);
    succeed(Command::new("tar").current_dir(&directory).args(["-cf", "backup.tar", "large.txt", "dir"]));
    let said = |words: &str| {
        let (status, stdout, stderr) = say(&directory, words);
        assert_eq!((status, &stdout[..]), (Some(1), ""), "varve {words}: {stderr}");
        stderr
    };
    let writers = |name: &str| [format!("mount {name} dir"), format!("import dir {name}:/x")];
    let lookers =
        |name: &str| [format!("check {name}"), format!("mount -o ro {name} dir"), format!("stats {name}")];
    for name in ["text.txt", "small.txt", "large.txt", "backup.tar"] {
        let before = fs::read(directory.join(name)).expect("a file");
        for words in writers(name).into_iter().chain(lookers(name)) {
            let said = said(&words);
            assert!(!said.contains("create"), "varve {words}: {said}");
            if name != "text.txt" {
                for wanted in ["nothing was changed", "name right", "make a copy"] {
                    assert!(said.contains(wanted), "varve {words}: {wanted}: {said}");
                }
                assert_eq!(said.contains("varve inspect"), name != "small.txt", "varve {words}: {said}");
            }
        }
        assert!(fs::read(directory.join(name)).expect("a file") == before, "{name}");
    }
    for (name, advised) in [
        ("none.img", "varve create none.img --size SIZE"),
        ("empty.img", "varve create empty.img --size SIZE"),
        ("zeros.img", "varve create zeros.img\n"),
        ("middle.img", "varve create middle.img\n"),
    ] {
        for words in writers(name) {
            let said = said(&words);
            assert!(said.ends_with(&format!("{advised}\n").replace("\n\n", "\n")), "varve {words}: {said}");
        }
        for words in lookers(name) {
            assert!(!said(&words).contains("create"), "varve {words}");
        }
    }
    assert!(!said("mount tiny.img dir").contains("--size"));
}

/// Goal: options that would make no difference are refused. Method: each of them.
#[test]
fn options_that_are_of_no_use_are_refused() {
    let scratch = Scratch::new("messages-options");
    let pool = scratch.pool("pool.img", "64M");
    let directory = pool.parent().expect("it is in a directory");
    let checkpoint = "--checkpoint is for tree, inode and path";
    let remount = "is of no use with -o remount";
    for (words, message) in [
        ("inspect pool.img --checkpoint", checkpoint),
        ("inspect pool.img superblock --checkpoint", checkpoint),
        ("inspect pool.img ring --checkpoint", checkpoint),
        ("inspect --checkpoint pool.img node 0x1000", checkpoint),
        ("mount -o remount,ro --create 64M pool.img dir", remount),
        ("mount -o remount,ro --cache-size 64M pool.img dir", remount),
        ("mount -o remount,ro --log x pool.img dir", remount),
        ("mount -o remount,ro --foreground pool.img dir", remount),
        ("check --cache-size 1K pool.img", "a cache below 4M is too small to work with"),
        ("lab commit --loops 5 --on varve", "--loops is for the experiment aging"),
        ("lab commit --days 5 --on varve", "--days is for the experiment aging"),
        (
            "lab aging --on varve --on ext4",
            "ext4 cannot age: it has neither snapshots nor clones; the targets of",
        ),
        ("lab aging --on bare", "bare cannot age: it is no filesystem"),
        ("lab aging --on /proc/self", "/proc/self cannot age: no file in it can be cloned"),
        ("lab floor --on varve", "floor has no targets to choose from"),
        ("lab large --on varve", "varve has no files that a program could call; the targets of large are"),
    ] {
        let (status, stdout, stderr) = say(directory, words);
        assert_eq!((status, &stdout[..]), (Some(2), ""), "varve {words}: {stderr}");
        assert!(stderr.contains(message), "varve {words}: {stderr}");
    }
    assert_eq!(say(directory, "inspect pool.img tree inodes --checkpoint").0, Some(0));
}

/// Goal: programs hear of a pool that cannot be opened as of any other problem; of what could not be looked at they hear by the
/// exit status alone. Method: `check --json` of each kind of damage, of a file that is none, and of one that is not there.
#[test]
fn check_has_json_for_what_cannot_be_opened() {
    let scratch = Scratch::new("messages-json");
    let directory = make(&scratch);
    for image in ["labels.img", "slots.img", "short.img", "cut.img", "text.txt", "large.txt"] {
        let (status, stdout, stderr) = say(&directory, &format!("check --json {image}"));
        assert_eq!((status, &stderr[..]), (Some(1), ""), "{image}");
        let report: Value =
            serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{image}: {error}: {stdout}"));
        assert_eq!(report["problems_count"], 1, "{report}");
        assert_eq!(report["problems"][0]["kind"], "pool-unopenable", "{report}");
        let text = report["problems"][0]["text"].as_str().expect("a sentence");
        assert!(text.contains(image), "{text}");
        let (status, stdout, stderr) = say(&directory, &format!("check {image}"));
        assert_eq!((status, &stdout[..], stderr), (Some(1), "", format!("varve check: {text}\n")));
    }
    let (status, stdout, stderr) = say(&directory, "check --json none.img");
    assert_eq!((status, &stdout[..]), (Some(1), ""));
    assert!(stderr.contains("does not exist"), "{stderr}");
    let (status, stdout, _) = say(&directory, "check --json pool.img");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((status, &report["problems_count"]), (Some(0), &Value::from(0)));
}

/// Goal: who may not read or write a pool hears so, and what would help; and who gives the pool where its mount is wanted hears
/// where that is. Method: an unprivileged user and a pool of root's; a mounted pool.
#[test]
fn what_is_not_allowed_is_told() {
    let scratch = Scratch::new("messages-user");
    let pool = scratch.pool("pool.img", "64M");
    if rustix::process::geteuid().is_root() {
        // The directory may be one that others cannot enter: they hear the same.
        let mut user = Command::new("setpriv");
        user.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(env!("CARGO_BIN_EXE_varve"));
        let out = output(user.arg("check").arg(&pool));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        if said.starts_with("varve") {
            assert_eq!(out.status.code(), Some(1), "{said}");
            assert!(said.contains("permission to read it") && !said.contains("write"), "{said}");
        }
    }
    if !can_mount("what_is_not_allowed_is_told") {
        return;
    }
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let out = output(varve(&["unmount"]).arg(&pool));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let advice = format!("varve unmount {}", mount.point.display());
    assert!(out.status.code() == Some(1) && said.contains(&advice), "{said}");
    mount.unmount();
}

/// Goal: who may not write to a pool, or to what is to be one, hears what would help with what he does: nothing but a mount has -o ro. Method: a pool and
/// zeros that are immutable, an empty file, too; the same of root's by an unprivileged user.
#[test]
fn what_cannot_be_written_is_told() {
    let scratch = Scratch::new("messages-unwritable");
    let directory = make(&scratch);
    let chattr = |flag: &str| {
        let files = ["pool.img", "zeros.img", "empty.img"];
        output(Command::new("chattr").current_dir(&directory).arg(flag).args(files)).status.success()
    };
    let commands =
        ["import dir pool.img:/x", "trim pool.img", "create zeros.img", "create empty.img --size 64M"];
    let mount = "mount pool.img dir";
    if !chattr("+i") {
        println!("SKIPPED what_cannot_be_written_is_told: flags of chattr cannot be set here");
        return;
    }
    let told: Vec<_> = commands.iter().chain([&mount]).map(|words| (words, say(&directory, words))).collect();
    assert!(chattr("-i"), "or nobody can remove it");
    for (words, (status, stdout, stderr)) in told {
        assert_eq!((status, &stdout[..]), (Some(1), ""), "varve {words}: {stderr}");
        assert!(stderr.contains("chattr -ia ") && !stderr.contains("you need"), "varve {words}: {stderr}");
        assert_eq!(stderr.contains("-o ro"), *words == mount, "varve {words}: {stderr}");
    }
    let mut copy = Command::new("cp");
    copy.args([env!("CARGO_BIN_EXE_varve"), "varve"]);
    succeed(copy.current_dir(&directory));
    for name in ["pool.img", "zeros.img", "empty.img"] {
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(0o644)).expect("it is ours");
    }
    for place in [&*directory, &scratch.path("")] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    for words in commands {
        let mut user = Command::new("setpriv");
        user.args(["--reuid=65534", "--regid=65534", "--clear-groups", "./varve"]).args(words.split(' '));
        let out = output(user.current_dir(&directory));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "varve {words}: {said}");
        assert!(
            said.contains("read and write permission") && !said.contains("-o ro"),
            "varve {words}: {said}"
        );
    }
}

/// Goal: who imports into a read-only snapshot hears where that is not possible, and what to do. Method: into a new directory of one.
#[test]
fn where_nothing_can_be_made_is_told() {
    if !can_mount("where_nothing_can_be_made_is_told") {
        return;
    }
    let scratch = Scratch::new("messages-place");
    let directory = make(&scratch);
    let mount = Mount::start(&directory.join("pool.img"), &scratch.path("mnt"));
    succeed(varve(&["snapshot", "--read-only"]).args([mount.path(""), mount.path("snap")]));
    mount.unmount();
    let (status, _, stderr) = say(&directory, "import dir pool.img:/snap/q");
    let message =
        "varve import: cannot make pool.img:/snap/q: the subvolume is read-only; name another place\n";
    assert_eq!((status, &stderr[..]), (Some(1), message));
}

/// Goal: a command that writes to a pool mends nothing without a word. Method: the first label is lost, then the first copy of every tree
/// node (blocks that are there twice); import and trim of each, which succeed, say what they have written again; without damage they
/// say nothing.
#[test]
fn who_writes_says_what_was_mended() {
    let scratch = Scratch::new("mended");
    let (pool, tree) = (scratch.pool("pool.img", "64M"), scratch.subdir("tree"));
    fs::write(tree.join("file"), "contents").expect("a file");
    let import = || output(varve(&["import"]).arg(&tree).arg(format!("{}:/", pool.display())));
    let trim = || output(varve(&["trim"]).arg(&pool));
    let commands: [(&str, &dyn Fn() -> std::process::Output); 2] = [("import", &import), ("trim", &trim)];
    let said = |name: &str, out: std::process::Output| {
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{name}: {text}");
        text
    };
    for (name, command) in commands {
        let damage = |what: &str| {
            let file = fs::File::options().read(true).write(true).open(&pool).expect("a pool");
            if what == "label" {
                file.write_all_at(&[0; 4096], 0).expect("an image can be written");
                return;
            }
            let bytes = fs::read(&pool).expect("a pool");
            let mut found = std::collections::HashMap::new();
            for (n, block) in bytes.chunks_exact(4096).enumerate().skip(9 << 8) {
                if block.iter().any(|byte| *byte != 0)
                    && let Some(first) = found.insert(block, n)
                {
                    file.write_all_at(&[!block[100]], first as u64 * 4096 + 100).expect("it can be written");
                }
            }
        };
        let text = said(name, command());
        assert!(!text.contains("warning"), "{name}: {text}");
        damage("label");
        let text = said(name, command());
        assert!(text.contains("varve: warning: wrote the label at byte 0 of "), "{name}: {text}");
        damage("nodes");
        let text = said(name, command());
        assert!(text.contains("varve: warning: rewrote a bad copy from a good one"), "{name}: {text}");
    }
}
