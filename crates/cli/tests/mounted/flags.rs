//! Flags of chattr in `varve import`, `varve export`, `varve diff` and `varve subvolume delete`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use rustix::fs::{IFlags, XattrFlags, ioctl_getflags, ioctl_setflags};
use serde_json::Value;

use crate::harness::{Mount, Scratch, can_mount, check, output, program, say, succeed, varve};
use crate::tree::assert_equal;

/// Those that a pool keeps.
const KEPT: IFlags = IFlags::IMMUTABLE
    .union(IFlags::APPEND)
    .union(IFlags::NODUMP)
    .union(IFlags::NOATIME)
    .union(IFlags::SYNC)
    .union(IFlags::DIRSYNC);

/// What has some in [`build`], and which. What lies in a directory comes before it.
const FLAGGED: [(&str, IFlags); 8] = [
    ("immutable", IFlags::IMMUTABLE),
    ("log", IFlags::APPEND.union(IFlags::NODUMP)),
    ("quiet", IFlags::NOATIME.union(IFlags::SYNC)),
    ("shut/inside", IFlags::IMMUTABLE),
    ("one", IFlags::IMMUTABLE),
    ("shut/below", IFlags::DIRSYNC),
    ("shut", IFlags::IMMUTABLE.union(IFlags::NODUMP)),
    ("names", IFlags::APPEND),
];

fn set(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    let file = fs::File::open(path).expect("a file or directory");
    let others = ioctl_getflags(&file)?.difference(KEPT);
    ioctl_setflags(&file, others | flags)
}

fn flags(path: &Path) -> IFlags {
    let file = fs::File::open(path).expect("a file or directory");
    ioctl_getflags(&file).map_or(IFlags::empty(), |flags| flags & KEPT)
}

/// The flags of all that has some, by path.
fn all_flags(dir: &Path) -> BTreeMap<PathBuf, IFlags> {
    let mut found = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let whole = dir.join(&path);
        if whole.is_dir() {
            left.extend(
                fs::read_dir(&whole).expect("a directory").map(|one| path.join(one.unwrap().file_name())),
            );
        }
        let flags = flags(&whole);
        if !flags.is_empty() {
            found.insert(path, flags);
        }
    }
    found
}

/// Takes all flags away in the end, so that the directory can be removed.
struct Free(PathBuf);

impl Drop for Free {
    fn drop(&mut self) {
        // Those above first: nothing can be opened the other way round only if it is gone.
        for path in all_flags(&self.0).keys() {
            let _it_stays_then = set(&self.0.join(path), IFlags::empty());
        }
    }
}

/// Whether flags can be set where tests make their files; says loudly that `test` is skipped when not.
fn can_flag(test: &str, scratch: &Scratch) -> bool {
    let file = scratch.path("probe");
    fs::write(&file, "").expect("a file");
    let able = FLAGGED.iter().all(|(_, flags)| set(&file, flags.difference(IFlags::DIRSYNC)).is_ok());
    let _it_has_none = set(&file, IFlags::empty());
    if !able {
        say(&format!(
            "\n*** SKIPPED {test}: flags of chattr cannot be set here (needs root, and ext4 or the like) ***\n"
        ));
    }
    able
}

fn build(tree: &Path) {
    fs::create_dir_all(tree.join("shut/below")).expect("a directory");
    fs::create_dir(tree.join("names")).expect("a directory");
    for name in ["immutable", "log", "quiet", "shut/inside", "one", "plain", "names/first"] {
        fs::write(tree.join(name), format!("{name} before")).expect("a file");
    }
    fs::hard_link(tree.join("one"), tree.join("shut/two")).expect("a hard link");
    fs::hard_link(tree.join("one"), tree.join("three")).expect("a hard link");
    flag(tree);
}

fn flag(tree: &Path) {
    FLAGGED.iter().for_each(|(name, flags)| set(&tree.join(name), *flags).expect("it was tried before"));
}

fn free(tree: &Path) {
    FLAGGED.iter().for_each(|(name, _)| set(&tree.join(name), IFlags::empty()).expect("it was tried before"));
}

fn done(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    let summary: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no summary: {said}"));
    assert!(output.status.success(), "{summary}\n{said}");
    summary
}

fn import(tree: &Path, pool: &Path) -> Value {
    done(&output(varve(&["import", "--json"]).arg(tree).arg(format!("{}:/place", pool.display()))))
}

fn export(pool: &Path, tree: &Path) -> Value {
    done(&output(varve(&["export", "--json"]).arg(format!("{}:/place", pool.display())).arg(tree)))
}

/// Both ways; what comes out must be the tree.
fn there_and_back(tree: &Path, pool: &Path, back: &Path) -> (Value, Value) {
    let (into, out) = (import(tree, pool), export(pool, back));
    check(pool);
    assert_equal(tree, back);
    assert_eq!(all_flags(tree), all_flags(back));
    assert_eq!(out["flags_left_out_count"], 0, "{out}");
    (into, out)
}

/// Goal: flags go in and out, what has them is changed all the same when the source was, and what is equal is left alone. Method: a
/// tree with all of them, there and back, and once more; then it is freed, changed in every way, flagged again, and copied again,
/// twice: what is immutable in the pool and in the target is in the way of that.
#[test]
fn flags_go_in_and_out() {
    let scratch = Scratch::new("flags");
    let (tree, back) = (scratch.subdir("tree"), scratch.path("back"));
    let _free = [Free(scratch.path(""))];
    if !can_flag("flags_go_in_and_out", &scratch) {
        return;
    }
    build(&tree);
    let pool = scratch.pool("pool", "64M");
    there_and_back(&tree, &pool, &back);
    assert_eq!(all_flags(&back).len(), FLAGGED.len() + 2, "and the other names of one");
    let again = there_and_back(&tree, &pool, &back);
    for summary in [&again.0, &again.1] {
        assert_eq!(summary["files_copied_count"], 0, "{summary}");
        assert_eq!(summary["attributes_changed_count"], 0, "{summary}");
    }

    free(&tree);
    fs::write(tree.join("immutable"), "immutable after").expect("a file");
    fs::write(tree.join("shut/new"), "new").expect("a file");
    fs::write(tree.join("shut/below/new"), "new").expect("a file");
    fs::hard_link(tree.join("one"), tree.join("one more")).expect("a hard link");
    fs::remove_file(tree.join("three")).expect("our own file");
    fs::write(tree.join("three"), "parted").expect("a file");
    rustix::fs::setxattr(tree.join("log"), "user.new", b"after", XattrFlags::empty()).expect("an attribute");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(tree.join("shut/inside"), mode).expect("a mode");
    flag(&tree);
    set(&tree.join("quiet"), IFlags::empty()).expect("it was tried before");
    set(&tree.join("plain"), IFlags::IMMUTABLE).expect("it was tried before");
    let (into, out) = there_and_back(&tree, &pool, &back);
    assert_eq!(into["files_copied_count"], 4, "{into}");
    // The log's attribute, inside's mode, and the flags of two.
    assert_eq!((&into["attributes_changed_count"], &out["attributes_changed_count"]), (&4.into(), &4.into()));

    // What is immutable gets another name, where something else has been.
    free(&tree);
    fs::remove_file(tree.join("three")).expect("our own file");
    fs::hard_link(tree.join("one"), tree.join("three")).expect("a hard link");
    flag(&tree);
    there_and_back(&tree, &pool, &back);
}

/// Goal: where the target takes no flags, or this user may not set them, all else is there, and one line says how many were left
/// out. Method: a filesystem without flags; a process that may not set two of them.
#[test]
fn flags_that_are_not_taken_are_counted() {
    let test = "flags_that_are_not_taken_are_counted";
    let scratch = Scratch::new("flags-not");
    let _free = [Free(scratch.path(""))];
    if !can_flag(test, &scratch) {
        return;
    }
    let tree = scratch.subdir("tree");
    build(&tree);
    let pool = scratch.pool("pool", "64M");
    import(&tree, &pool);
    let place = format!("{}:/place", pool.display());
    let said = |out: Output| {
        assert!(out.status.success(), "{out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };

    let back = scratch.path("back");
    let mut command = program("setpriv", &tree, &["--bounding-set=-linux_immutable"]);
    let text = said(output(command.arg(varve(&[]).get_program()).arg("export").arg(&place).arg(&back)));
    assert!(text.contains("flags (chattr) of 6 files and directories were left out"), "{text}");
    assert_equal(&tree, &back);
    let mut wanted = all_flags(&tree);
    wanted.values_mut().for_each(|flags| *flags = flags.difference(IFlags::IMMUTABLE | IFlags::APPEND));
    wanted.retain(|_, flags| !flags.is_empty());
    assert_eq!(all_flags(&back), wanted);

    let plain = scratch.subdir("plain");
    succeed(&mut program("mount", &tree, &["-t", "ramfs", "ramfs", plain.to_str().expect("a plain name")]));
    let out = output(varve(&["export"]).arg(&place).arg(plain.join("to")));
    let contents = fs::read(plain.join("to/shut/inside"));
    succeed(&mut program("umount", &tree, &[plain.to_str().expect("a plain name")]));
    let text = said(out);
    assert!(text.contains("flags (chattr) of 8 files and directories were left out"), "{text}");
    assert_eq!(contents.expect("it was exported"), b"shut/inside before");
}

/// Goal: `varve diff` shows changed flags, mounted and not. Method: flags given and taken between a snapshot and its source, text and
/// JSON, which says of each new file what it has, that it has none included.
#[test]
fn differences_of_flags_are_shown() {
    if !can_mount("differences_of_flags_are_shown") {
        return;
    }
    let scratch = Scratch::new("flags-diff");
    let pool = scratch.pool("pool.img", "64M");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    succeed(varve(&["subvolume", "create"]).arg(mount.path("work")));
    fs::create_dir(mount.path("work/dir")).expect("a directory");
    for name in ["given", "taken", "same"] {
        fs::write(mount.path("work").join(name), name).expect("a file");
    }
    let flag = |name: &str, flags| {
        let file = fs::File::open(mount.path(name)).expect("it is there");
        ioctl_setflags(file, flags)
    };
    if flag("work/same", IFlags::NODUMP).is_err() {
        say("\n*** SKIPPED differences_of_flags_are_shown: this kernel sets no flags through a mount ***\n");
        return;
    }
    flag("work/taken", IFlags::NODUMP).expect("it was tried before");
    succeed(varve(&["snapshot", "--read-only"]).arg(mount.path("work")).arg(mount.path("old")));
    flag("work/given", IFlags::NODUMP | IFlags::NOATIME).expect("it was tried before");
    flag("work/taken", IFlags::empty()).expect("it was tried before");
    flag("work/dir", IFlags::DIRSYNC).expect("it was tried before");
    fs::write(mount.path("work/new"), "new").expect("a file");
    fs::write(mount.path("work/newer"), "new").expect("a file");
    flag("work/newer", IFlags::NODUMP).expect("it was tried before");
    let expected = "M /dir/  (flags D)\nM /given  (flags dA)\nA /new\nA /newer\nM /taken  (no flags)\n";
    assert_eq!(succeed(varve(&["diff"]).arg(mount.path("old")).arg(mount.path("work"))), expected);
    mount.unmount();
    let place = |name: &str| format!("{}:/{name}", pool.display());
    assert_eq!(succeed(&mut varve(&["diff", &place("old"), &place("work")])), expected);
    let text = succeed(&mut varve(&["diff", "--json", &place("old"), &place("work")]));
    let json: Vec<Value> = serde_json::from_str(&text).expect("a list");
    let shown: Vec<_> = json.iter().map(|one| (one["path"].as_str(), one["flags"].as_str())).collect();
    let wanted = [("/dir", "D"), ("/given", "dA"), ("/new", ""), ("/newer", "d"), ("/taken", "")];
    assert_eq!(shown[1..], wanted.map(|(path, flags)| (Some(path), Some(flags))));
    assert_eq!(shown[0], (Some("/"), None), "it is not new, and has what it had");
}

/// Goal: who deletes a subvolume that is immutable, or lies in something that is, reads what to do, and that helps. Method: the flag on
/// its root, and on the directory around it; the command, and rmdir; then what was said is done.
#[test]
fn a_protected_subvolume_is_not_deleted() {
    if !can_mount("a_protected_subvolume_is_not_deleted") {
        return;
    }
    let scratch = Scratch::new("flags-delete");
    let pool = scratch.pool("pool.img", "64M");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    fs::create_dir(mount.path("dir")).expect("a directory");
    let sub = mount.path("dir/sub");
    succeed(varve(&["subvolume", "create"]).arg(&sub));
    fs::write(sub.join("file"), "file").expect("a file");
    if set(&sub.join("file"), IFlags::IMMUTABLE).is_err() {
        say(
            "\n*** SKIPPED a_protected_subvolume_is_not_deleted: flags cannot be set through a mount here ***\n",
        );
        return;
    }
    let refused = |words: &[&str]| {
        let out = output(varve(&["subvolume", "delete"]).arg(&sub));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        let error = fs::remove_dir(&sub).expect_err("it is there");
        assert_eq!(error.raw_os_error(), Some(1), "{error}");
    };
    set(&sub, IFlags::APPEND).expect("it was tried before");
    refused(&["its root directory is immutable or append only", "chattr -ia"]);
    set(&sub, IFlags::empty()).expect("it was tried before");
    set(&mount.path("dir"), IFlags::IMMUTABLE).expect("it was tried before");
    refused(&["the directory it is in", "chattr -ia"]);
    set(&mount.path("dir"), IFlags::empty()).expect("it was tried before");
    succeed(varve(&["subvolume", "delete"]).arg(&sub));
    assert!(!sub.exists());
    mount.unmount();
    check(&pool);
}
