//! What `varve import` and `varve export` must not do to what is there already, and what is true when they have ended.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, Mode, XattrFlags};

use crate::harness::{Loop, Mount, Scratch, can_loop, can_mount, check, detach, output, say, succeed, varve};
use crate::transfer::{done, export, import, ordinary_user};

/// Goal: an export does not put anything in the place of the pool that it reads. Method: a pool that lies in the directory which it
/// is exported to and has an entry with its own name, a file and a directory.
#[test]
fn an_export_leaves_its_pool_alone() {
    let scratch = Scratch::new("export-onto");
    for kind in ["file", "directory"] {
        let (tree, out) = (scratch.subdir(&format!("tree-{kind}")), scratch.subdir(&format!("out-{kind}")));
        match kind {
            "file" => fs::write(tree.join("pool"), "x").expect("a file"),
            _ => fs::create_dir(tree.join("pool")).expect("a directory"),
        }
        fs::write(tree.join("z"), "y").expect("a file");
        let pool = scratch.pool(&format!("out-{kind}/pool"), "64M");
        done(&import(&tree, &pool, "/"));
        let before = fs::metadata(&pool).expect("the pool");
        let exported = export(&pool, "/", &out);
        assert_eq!(exported.status.code(), Some(1), "{exported:?}");
        let said = String::from_utf8_lossy(&exported.stderr).into_owned();
        assert!(said.contains("this is the pool itself"), "{said}");
        let after = fs::metadata(&pool).expect("the pool");
        assert_eq!((before.ino(), before.len()), (after.ino(), after.len()));
        assert_eq!(fs::read(out.join("z")).expect("the rest"), b"y");
        check(&pool);
    }
}

/// Goal: files with several names in the source come into a pool where these lie in different subvolumes, which no link leaves, and
/// what an import cannot put in the place of something leaves it alone. Method: hard links of a file and a fifo across the border of a
/// subvolume that has older files there, twice.
#[test]
fn links_do_not_leave_their_subvolume() {
    if !can_mount("links_do_not_leave_their_subvolume") {
        return;
    }
    let scratch = Scratch::new("import-links");
    let (tree, pool) = (scratch.subdir("tree"), scratch.pool("pool", "64M"));
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    succeed(varve(&["subvolume", "create"]).arg(mount.path("s")));
    for name in ["s/x", "s/w", "y", "s/node", "node", "dir"] {
        fs::write(mount.path(name), "older").expect("a file");
    }
    mount.unmount();
    fs::create_dir(tree.join("s")).expect("a directory");
    fs::create_dir(tree.join("dir")).expect("a directory");
    fs::write(tree.join("s/x"), "newer").expect("a file");
    rustix::fs::mkfifoat(CWD, tree.join("s/node"), Mode::RUSR).expect("a fifo");
    for (of, name) in [("s/x", "s/w"), ("s/x", "y"), ("s/x", "z"), ("s/node", "node")] {
        fs::hard_link(tree.join(of), tree.join(name)).expect("a link");
    }
    for round in 0..2 {
        let summary = done(&import(&tree, &pool, "/"));
        assert!(round == 0 || summary["files_copied_count"] == 0, "{summary}");
        check(&pool);
        let back = scratch.path(&format!("back{round}"));
        done(&export(&pool, "/", &back));
        let ino = |name: &str| fs::symlink_metadata(back.join(name)).expect(name).ino();
        for name in ["s/x", "s/w", "y", "z"] {
            assert_eq!(fs::read(back.join(name)).expect(name), b"newer");
        }
        assert!(ino("s/x") == ino("s/w") && ino("y") == ino("z") && ino("s/x") != ino("y"));
        assert!(ino("s/node") != ino("node") && back.join("dir").is_dir());
        assert_eq!(fs::read_dir(&back).expect("a directory").count(), 5);
        assert_eq!(fs::read_dir(back.join("s")).expect("a directory").count(), 3);
    }
}

/// Goal: what a program may do when it is run goes when the pool's file has it no more. Method: a capability that is set, imported,
/// exported, removed, imported and exported again.
#[test]
fn capabilities_go_again() {
    let scratch = Scratch::new("capability");
    let (tree, out, pool) = (scratch.subdir("tree"), scratch.path("out"), scratch.pool("pool", "64M"));
    fs::write(tree.join("tool"), "#!/bin/sh").expect("a file");
    // Revision 2: net_raw, permitted and effective.
    let mut capability = [0; 20];
    (capability[0], capability[3], capability[5]) = (1, 2, 0x20);
    let name = "security.capability";
    if rustix::fs::lsetxattr(tree.join("tool"), name, &capability, XattrFlags::empty()).is_err() {
        return say("*** skipped: capabilities cannot be set here ***");
    }
    for has in [true, false] {
        if !has {
            rustix::fs::lremovexattr(tree.join("tool"), name).expect("it is there");
        }
        done(&import(&tree, &pool, "/"));
        done(&export(&pool, "/", &out));
        let mut room = [0; 64];
        let found = rustix::fs::lgetxattr(out.join("tool"), name, &mut room[..]);
        assert_eq!(found, if has { Ok(20) } else { Err(rustix::io::Errno::NODATA) });
    }
}

/// Goal: directories that keep their owner out are exported by him with all that is in them, and again. Method: files in such
/// directories, and in such a directory at the top, exported by an ordinary user twice.
#[test]
fn an_ordinary_export_of_closed_directories() {
    let Some(as_user) = ordinary_user() else { return };
    let scratch = Scratch::new("closed");
    let (tree, out) = (scratch.subdir("tree"), scratch.subdir("out"));
    let past = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let names = ["d/f", "d/inner/f", "e/f", "f"];
    for directory in ["d/inner", "e"] {
        fs::create_dir_all(tree.join(directory)).expect("a directory");
    }
    for name in names {
        fs::write(tree.join(name), name).expect("a file");
        fs::File::options()
            .write(true)
            .open(tree.join(name))
            .and_then(|file| file.set_modified(past))
            .expect("a time");
    }
    fs::hard_link(tree.join("d/f"), tree.join("e/second")).expect("a link");
    for (name, mode) in [("d/inner", 0o300), ("d", 0o600), ("e", 0), ("", 0o500)] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).expect("bits");
    }
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    rustix::fs::chown(&out, Some(rustix::fs::Uid::from_raw(65_534)), None).expect("an owner");
    fs::set_permissions(&pool, fs::Permissions::from_mode(0o644)).expect("bits");
    for copied in [4, 1] {
        if copied == 1 {
            // Something at the top is to be copied anew.
            let changed = tree.join("f");
            fs::write(&changed, "longer").expect("a file");
            let file = fs::File::options().write(true).open(&changed);
            file.and_then(|file| file.set_modified(past)).expect("a time");
            done(&import(&tree, &pool, "/"));
        }
        let mut command = as_user();
        command.args(["export", "--json"]).arg(format!("{}:/", pool.display())).arg(&out);
        let summary = done(&output(&mut command));
        assert_eq!(summary["files_copied_count"], copied, "{summary}");
        for name in names {
            let meta = fs::metadata(out.join(name)).expect(name);
            let len = fs::metadata(tree.join(name)).expect(name).len();
            assert_eq!((meta.modified().expect("a time"), meta.len()), (past, len), "{name}");
        }
        for (name, mode) in [("d/inner", 0o300), ("d", 0o600), ("e", 0), ("", 0o500)] {
            assert_eq!(
                fs::metadata(out.join(name)).expect(name).permissions().mode() & 0o7777,
                mode,
                "{name}"
            );
        }
    }
}

/// A filesystem of the kernel's, mounted until this is dropped.
struct Kernels<'a>(&'a Path);

impl Kernels<'_> {
    fn mount<'a>(device: &Loop, point: &'a Path) -> Kernels<'a> {
        // It writes by itself no sooner than in five minutes.
        let options = ["-t", "ext4", "-o", "commit=300"];
        succeed(std::process::Command::new("mount").args(options).arg(&device.device).arg(point));
        Kernels(point)
    }
}

impl Drop for Kernels<'_> {
    fn drop(&mut self) {
        detach(self.0);
    }
}

/// Goal: an export that says that it has finished is durable, with all times. Method: onto ext4 on a loop device, whose file is
/// copied at that moment; the copy shows what a cut of power would leave.
#[test]
fn a_finished_export_is_durable() {
    if !can_loop("a_finished_export_is_durable") {
        return;
    }
    let scratch = Scratch::new("export-durable");
    let tree = scratch.subdir("tree");
    let past = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for n in 0..50 {
        let name = tree.join(format!("file{n}"));
        fs::write(&name, format!("{n}")).expect("a file");
        fs::File::options().write(true).open(&name).and_then(|file| file.set_modified(past)).expect("a time");
    }
    let pool = scratch.pool("pool", "64M");
    done(&import(&tree, &pool, "/"));
    let disk = Loop::new(&scratch, "disk", 64 << 20);
    if !std::process::Command::new("mkfs.ext4")
        .arg("-q")
        .arg(&disk.device)
        .status()
        .is_ok_and(|status| status.success())
    {
        return say("*** skipped: ext4 cannot be made here ***");
    }
    let (point, copied) = (scratch.subdir("point"), scratch.subdir("copied"));
    let mounted = Kernels::mount(&disk, &point);
    done(&export(&pool, "/", &point.join("out")));
    fs::copy(scratch.path("disk"), scratch.path("copy")).expect("a copy");
    drop(mounted);
    let copy = Loop::over(&scratch.path("copy"), &[]);
    let _mounted = Kernels::mount(&copy, &copied);
    for n in 0..50 {
        let name = copied.join(format!("out/file{n}"));
        assert_eq!(fs::read_to_string(&name).expect("a file"), format!("{n}"));
        assert_eq!(fs::metadata(&name).and_then(|meta| meta.modified()).expect("a time"), past, "file{n}");
    }
}

/// Goal: an export into a mounted pool that says that it has finished is durable, with all times, as onto a disk. Method: the daemon is
/// killed then; once it is asked by its socket, and once it has none, so that each file has to be synced.
#[test]
fn a_finished_export_into_a_mount_is_durable() {
    if !can_mount("a_finished_export_into_a_mount_is_durable") {
        return;
    }
    let scratch = Scratch::new("export-mount");
    let tree = scratch.subdir("tree");
    let past = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    fs::create_dir_all(tree.join("d/empty")).expect("a directory");
    for n in 0..20 {
        let name = tree.join(format!("d/file{n}"));
        fs::write(&name, vec![n; 10_000]).expect("a file");
        fs::File::options().write(true).open(&name).and_then(|file| file.set_modified(past)).expect("a time");
    }
    fs::hard_link(tree.join("d/file0"), tree.join("link")).expect("a link");
    std::os::unix::fs::symlink("file", tree.join("symlink")).expect("a link");
    let pool = scratch.pool("from.img", "64M");
    done(&import(&tree, &pool, "/"));
    for has_socket in [true, false] {
        let (to, point) = (scratch.pool(&format!("to-{has_socket}.img"), "64M"), scratch.path("mnt"));
        let mount = Mount::start(&to, &point);
        if !has_socket {
            let device = fs::metadata(&point).expect("a mount").dev();
            let name = format!("{}-{}.sock", rustix::fs::major(device), rustix::fs::minor(device));
            let user = rustix::process::geteuid().as_raw();
            let run = if user == 0 { "/run/varve".into() } else { format!("/run/user/{user}/varve") };
            let sockets = [run, format!("/tmp/varve-{user}")].map(|dir| Path::new(&dir).join(&name));
            let removed = sockets.iter().filter(|socket| fs::remove_file(socket).is_ok());
            // Where there is something else it makes none anew.
            let taken = removed.map(|socket| fs::write(socket, b"").expect("a file")).count();
            assert_eq!(taken, 1, "the daemon has a socket");
        }
        done(&export(&pool, "/", &point.join("new/out")));
        mount.kill();
        let mount = Mount::start(&to, &point);
        crate::tree::assert_equal(&tree, &point.join("new/out"));
        mount.unmount();
        check(&to);
    }
}
